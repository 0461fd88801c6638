//! Streams of the C library. A stream's writes pass no function that this library could stand in
//! front of: the C library calls itself. So a stream of a mirrored file is one of `fopencookie`,
//! whose reading, writing, seeking and closing are functions of this library.
//!
//! Considered and dropped: streams without buffers, as these too write unseen; and functions in
//! front of `fwrite`, `fprintf` and all others that write, as there are fifty, some of them macros.
//!
//! `fileno` gives -1 for such a stream, and programs call it to sync what they wrote. The number is
//! in the public part of the structure, so it is written there; `fileno` itself is asked whether
//! that was the place.

use crate::bytes::{Place, Source, Write, write};
use crate::raw::{self, word};
use crate::state::{Ready, mirrored, ready};
use crate::{descriptors, names};
use libc::{FILE, c_char, c_int, c_void, off64_t, size_t, ssize_t};
use std::ffi::CStr;

/// Bytes before the descriptor's number in the structure of a stream: flags, eleven pointers of
/// buffers, those of markers and of the next stream (`bits/types/struct_FILE.h`).
const NUMBER_AT: usize = 8 + 11 * 8 + 2 * 8;

#[repr(C)]
struct Functions {
    read: unsafe extern "C" fn(*mut c_void, *mut c_char, size_t) -> ssize_t,
    write: unsafe extern "C" fn(*mut c_void, *const c_char, size_t) -> ssize_t,
    seek: unsafe extern "C" fn(*mut c_void, *mut off64_t, c_int) -> c_int,
    close: unsafe extern "C" fn(*mut c_void) -> c_int,
}

unsafe extern "C" {
    fn fopencookie(cookie: *mut c_void, mode: *const c_char, functions: Functions) -> *mut FILE;
}

/// The descriptor is the cookie.
fn descriptor_of(cookie: *mut c_void) -> c_int {
    cookie as usize as c_int
}

unsafe extern "C" fn read_stream(cookie: *mut c_void, into: *mut c_char, len: size_t) -> ssize_t {
    raw::forward(libc::SYS_read, &[word(descriptor_of(cookie)), into as usize, len])
}

/// 0 is the error, as the C library has it.
unsafe extern "C" fn write_stream(
    cookie: *mut c_void,
    from: *const c_char,
    len: size_t,
) -> ssize_t {
    let (descriptor, address) = (descriptor_of(cookie), from as usize);
    let mut written = 0;
    while written < len {
        let (address, rest) = (address + written, len - written);
        let call = &|| raw::forward(libc::SYS_write, &[word(descriptor), address, rest]);
        let source = Source::Bytes { address, len: rest };
        let (append, synced, place) = (false, false, Place::Current);
        match write(&Write { descriptor, place, source, append, synced, call }) {
            more @ 1.. => written += more as usize,
            _ => break,
        }
    }
    written as ssize_t
}

unsafe extern "C" fn seek_stream(cookie: *mut c_void, at: *mut off64_t, whence: c_int) -> c_int {
    let place = raw::filled::<off64_t>(at as usize);
    let arguments = [word(descriptor_of(cookie)), *place as usize, word(whence)];
    let answer = raw::forward(libc::SYS_lseek, &arguments);
    if answer < 0 {
        return -1;
    }
    *place = answer as off64_t;
    0
}

unsafe extern "C" fn close_stream(cookie: *mut c_void) -> c_int {
    descriptors::close(descriptor_of(cookie)) as c_int
}

/// The C library's own function of a name that ends with a zero.
pub(crate) fn original(name: &CStr) -> *mut c_void {
    // SAFETY: the name ends with a zero; looking it up calls nothing.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    if found.is_null() {
        raw::tell(&[b"the C library lacks ", name.to_bytes()]);
        raw::exit(125);
    }
    found
}

type Open = unsafe extern "C" fn(*const c_char, *const c_char) -> *mut FILE;
type OpenOn = unsafe extern "C" fn(c_int, *const c_char) -> *mut FILE;
type OpenAgain = unsafe extern "C" fn(*const c_char, *const c_char, *mut FILE) -> *mut FILE;
type Make = unsafe extern "C" fn(*mut c_char, c_int, c_int) -> c_int;

/// Flags of `open` of a stream's mode; nothing for one that is none.
fn flags_of(mode: &[u8]) -> Option<c_int> {
    let (first, rest) = mode.split_first()?;
    let (one_way, more) = match first {
        b'r' => (libc::O_RDONLY, 0),
        b'w' => (libc::O_WRONLY, libc::O_CREAT | libc::O_TRUNC),
        b'a' => (libc::O_WRONLY, libc::O_CREAT | libc::O_APPEND),
        _ => return None,
    };
    let rest = rest.split(|byte| *byte == b',').next().unwrap_or_default();
    let ways = if rest.contains(&b'+') { libc::O_RDWR } else { one_way };
    let exclusive = if rest.contains(&b'x') { libc::O_EXCL } else { 0 };
    let closed = if rest.contains(&b'e') { libc::O_CLOEXEC } else { 0 };
    Some(ways | more | exclusive | closed)
}

/// Whether a file that is there is mirrored, by whatever name. Others stay the C library's own,
/// which knows more modes.
fn leads_to_mirror(ready: &Ready, path: usize) -> bool {
    let is_mirrored = |status: libc::stat| {
        raw::is_regular(&status) && ready.shared.find(status.st_dev, status.st_ino).is_some()
    };
    ready.shared.has_files() && raw::status_at(libc::AT_FDCWD, path, 0).is_some_and(is_mirrored)
}

pub(crate) fn open(path: *const c_char, mode: *const c_char, name: &CStr) -> *mut FILE {
    let known = raw::path(path as usize).zip(raw::path(mode as usize));
    let ours = ready().zip(known).filter(|(ready, (name, _))| {
        ready.may_match(name) || leads_to_mirror(ready, path as usize)
    });
    let flags = ours.and_then(|(_, (_, mode))| flags_of(mode));
    let Some(flags) = flags else {
        // SAFETY: the C library's function of that type, with the program's arguments.
        return unsafe { std::mem::transmute::<*mut c_void, Open>(original(name))(path, mode) };
    };
    let descriptor = names::open(libc::AT_FDCWD, path as usize, flags, 0o666) as c_int;
    if descriptor < 0 {
        return std::ptr::null_mut();
    }
    seek_to_append(descriptor, flags);
    let stream = on(descriptor, mode);
    if stream.is_null() {
        let reason = raw::errno();
        descriptors::close(descriptor);
        raw::set_errno(reason);
    }
    stream
}

/// `fdopen`: a stream on a descriptor.
pub(crate) fn on(descriptor: c_int, mode: *const c_char) -> *mut FILE {
    if mirrored(descriptor).is_none() {
        // SAFETY: the C library's function of that type, with the program's arguments.
        let original = unsafe { std::mem::transmute::<*mut c_void, OpenOn>(original(c"fdopen")) };
        // SAFETY: as above.
        return unsafe { original(descriptor, mode) };
    }
    let Some(flags) = raw::path(mode as usize).and_then(flags_of) else {
        raw::refuse(libc::EINVAL);
        return std::ptr::null_mut();
    };
    // The same checks as the C library's own: the ways, and that what appends does append.
    let has = raw::flags(descriptor);
    let (ways, wanted) = (has & libc::O_ACCMODE, flags & libc::O_ACCMODE);
    if ways != libc::O_RDWR && ways != wanted {
        raw::refuse(libc::EINVAL);
        return std::ptr::null_mut();
    }
    if flags & libc::O_APPEND != 0 && has & libc::O_APPEND == 0 {
        let set = [word(descriptor), word(libc::F_SETFL), word(has | libc::O_APPEND)];
        raw::forward(libc::SYS_fcntl, &set);
        seek_to_append(descriptor, flags);
    }
    cookie(descriptor, mode)
}

/// The C library's streams that only append begin at the end, which `ftell` says.
fn seek_to_append(descriptor: c_int, flags: c_int) {
    if flags & (libc::O_APPEND | libc::O_ACCMODE) == libc::O_APPEND | libc::O_WRONLY {
        raw::forward(libc::SYS_lseek, &[word(descriptor), 0, word(libc::SEEK_END)]);
    }
}

fn cookie(descriptor: c_int, mode: *const c_char) -> *mut FILE {
    let (read, write) = (read_stream as _, write_stream as _);
    let functions = Functions { read, write, seek: seek_stream, close: close_stream };
    let cookie = descriptor as usize as *mut c_void;
    // SAFETY: the functions take a descriptor's number for the cookie, and that is what it is.
    let stream = unsafe { fopencookie(cookie, mode, functions) };
    if stream.is_null() {
        return stream;
    }
    // SAFETY: the structure is longer than this in each GNU C library of 64 bits, and its number
    // is of the same type; fopencookie has just made it, and nobody else has it. The number there
    // is -2, by which the C library knows a stream without a descriptor.
    let place = unsafe { &mut *stream.byte_add(NUMBER_AT).cast::<c_int>() };
    if *place == -2 {
        *place = descriptor;
    }
    // SAFETY: the stream is open.
    if unsafe { libc::fileno(stream) } != descriptor {
        raw::tell(&[
            b"this C library's streams are of another form; a stream of a near-compute log \
            is refused",
        ]);
        raw::refuse(libc::ENOTSUP);
        return std::ptr::null_mut();
    }
    stream
}

/// `freopen`: the stream stays where it is, so it can become no other kind.
pub(crate) fn open_again(
    path: *const c_char,
    mode: *const c_char,
    stream: *mut FILE,
    name: &CStr,
) -> *mut FILE {
    let path_text = raw::path(path as usize);
    let to = ready().zip(path_text).is_some_and(|(ready, path)| ready.may_match(path));
    // SAFETY: the program gave a stream that is open.
    let from = ready().is_some() && mirrored(unsafe { libc::fileno(stream) }).is_some();
    if to || from {
        raw::tell(&[b"freopen of a near-compute log is refused (ENOTSUP)"]);
        raw::refuse(libc::ENOTSUP);
        return std::ptr::null_mut();
    }
    // SAFETY: the C library's function of that type, with the program's arguments.
    unsafe { std::mem::transmute::<*mut c_void, OpenAgain>(original(name))(path, mode, stream) }
}

/// `mkstemp` and its kin, which take fewer arguments, or all of these.
pub(crate) fn temporary(path: *mut c_char, first: c_int, second: c_int, name: &CStr) -> c_int {
    // SAFETY: the C library's function; arguments that it does not take lie in registers that it
    // does not read.
    let made =
        unsafe { std::mem::transmute::<*mut c_void, Make>(original(name))(path, first, second) };
    let flags = match name.to_bytes().strip_prefix(b"mko") {
        None => 0,
        Some(rest) if rest.starts_with(b"stemps") => second,
        Some(_) => first,
    };
    names::made_temporary(made, path as usize, flags)
}

/// `aio_write` and `aio_fsync`, which has a kind as well: the control block begins with the
/// descriptor. Threads of the C library would write unseen, and wait for nothing.
pub(crate) fn aio(control: *const c_int, name: &CStr, kind: Option<c_int>) -> c_int {
    type Write = unsafe extern "C" fn(*const c_int) -> c_int;
    type Sync = unsafe extern "C" fn(c_int, *const c_int) -> c_int;
    let descriptor = *raw::filled::<c_int>(control as usize);
    if mirrored(descriptor).is_some() {
        return refuse_aio(name);
    }
    let original = original(name);
    // SAFETY: the C library's function of that type, with the program's arguments.
    unsafe {
        match kind {
            Some(kind) => std::mem::transmute::<*mut c_void, Sync>(original)(kind, control),
            None => std::mem::transmute::<*mut c_void, Write>(original)(control),
        }
    }
}

/// `lio_listio`: several of such calls. Control blocks begin with the descriptor and the kind of
/// call; null pointers among them mean nothing.
pub(crate) fn aio_list(
    mode: c_int,
    list: *const *const c_void,
    count: c_int,
    event: *const c_void,
    name: &CStr,
) -> c_int {
    type List = unsafe extern "C" fn(c_int, *const *const c_void, c_int, *const c_void) -> c_int;
    let writes = |number: usize| {
        let control = *raw::filled::<usize>(list as usize + number * size_of::<usize>());
        let block = (control != 0).then(|| *raw::filled::<[c_int; 2]>(control));
        block.is_some_and(|[descriptor, kind]| {
            kind == libc::LIO_WRITE && mirrored(descriptor).is_some()
        })
    };
    if (0..usize::try_from(count).unwrap_or(0)).any(writes) {
        return refuse_aio(name);
    }
    // SAFETY: the C library's function of that type, with the program's arguments.
    unsafe { std::mem::transmute::<*mut c_void, List>(original(name))(mode, list, count, event) }
}

fn refuse_aio(name: &CStr) -> c_int {
    raw::tell(&[name.to_bytes(), b" of a near-compute log is refused (ENOSYS)"]);
    raw::refuse(libc::ENOSYS) as c_int
}

//! System calls by number, and the memory of the program.

use libc::{c_int, c_long};
use std::mem::MaybeUninit;

/// A result as the C library gives it: −1 and `errno`, or what the call says.
pub(crate) type Answer = isize;

/// Hands a call on to the kernel as the program made it. The C library sets `errno`.
///
/// The arguments are the program's own, so the memory that the kernel reads or writes is what the
/// program means by them, as without this library. Calls of this library on its own memory have
/// functions of their own below.
pub(crate) fn forward(number: c_long, arguments: &[usize]) -> Answer {
    #[cfg(feature = "planted")]
    crate::planted::tick();
    let mut all = [0; 6];
    all[..arguments.len()].copy_from_slice(arguments);
    let [a, b, c, d, e, f] = all;
    // SAFETY: as the text above says, the program vouches for its arguments; the kernel checks
    // each address, and a call that is not one gives ENOSYS.
    unsafe { libc::syscall(number, a, b, c, d, e, f) as isize }
}

/// A descriptor as an argument.
pub(crate) fn word(number: c_int) -> usize {
    number as isize as usize
}

pub(crate) fn errno() -> c_int {
    // SAFETY: the C library has one `errno` a thread, which lives as long as the thread.
    unsafe { *libc::__errno_location() }
}

pub(crate) fn set_errno(value: c_int) {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = value };
}

/// −1, with the reason.
pub(crate) fn refuse(reason: c_int) -> Answer {
    set_errno(reason);
    -1
}

/// A path that the program gave, without its zero; nothing for a null pointer.
pub(crate) fn path(address: usize) -> Option<&'static [u8]> {
    if address == 0 {
        return None;
    }
    // SAFETY: the program gave it as a path: bytes up to a zero that stay there during the call.
    // They are not kept beyond it.
    Some(unsafe { std::ffi::CStr::from_ptr(address as *const libc::c_char) }.to_bytes())
}

/// Bytes that the program gave to be written, of which the kernel has just read as many.
pub(crate) fn memory(address: usize, len: usize) -> &'static [u8] {
    if len == 0 {
        return &[];
    }
    // SAFETY: the kernel could read them, and the program must not change or unmap them before
    // its call returns. They are not kept beyond it.
    unsafe { std::slice::from_raw_parts(address as *const u8, len) }
}

/// Puts bytes into memory that this library has mapped, and that other processes have too.
pub(crate) fn put(address: usize, bytes: &[u8]) {
    // SAFETY: callers give a place within a mapping that is never taken away, which whoever has the
    // lock of the shared memory has to itself; no reference leads there while it is written.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), address as *mut u8, bytes.len()) };
}

/// The parts of a vectored write, of which the kernel has just read bytes.
pub(crate) fn parts(address: usize, count: usize) -> &'static [libc::iovec] {
    if count == 0 {
        return &[];
    }
    // SAFETY: as in `memory`.
    unsafe { std::slice::from_raw_parts(address as *const libc::iovec, count) }
}

/// Bytes of the parts of a vectored write; `None` if the parts cannot be read.
pub(crate) fn len_of_parts(address: usize, count: usize) -> Option<u64> {
    const AT_ONCE: usize = 32;
    let process = forward(libc::SYS_getpid, &[]) as usize;
    let (mut len, mut done) = (0_u64, 0);
    while done < count {
        let some = AT_ONCE.min(count - done);
        let mut parts = [[0_u64; 2]; AT_ONCE];
        let bytes = some * size_of::<libc::iovec>();
        let into = [parts.as_mut_ptr() as usize, bytes];
        let from = [address + done * size_of::<libc::iovec>(), bytes];
        let ends = [into.as_ptr() as usize, 1, from.as_ptr() as usize, 1];
        let arguments = [process, ends[0], ends[1], ends[2], ends[3], 0];
        if forward(libc::SYS_process_vm_readv, &arguments) != bytes as Answer {
            return None;
        }
        len = parts[..some].iter().fold(len, |sum, [_, len]| sum.saturating_add(*len));
        done += some;
    }
    Some(len)
}

/// A C library's structure of the program's memory, that the kernel has just filled.
pub(crate) fn filled<T>(address: usize) -> &'static mut T {
    // SAFETY: the kernel could write all of it, and until the call returns nobody else has it.
    // `T` is one of the kernel's own structures, for which all bytes are valid.
    unsafe { &mut *(address as *mut T) }
}

fn stat_at(directory: c_int, path: *const u8, flags: c_int) -> Option<libc::stat> {
    let mut status = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: the path ends with a zero, the kernel fills the structure or fails.
    unsafe {
        let done = libc::syscall(libc::SYS_newfstatat, directory, path, status.as_mut_ptr(), flags);
        (done == 0).then(|| status.assume_init())
    }
}

/// The kernel's answer about a descriptor.
pub(crate) fn status(descriptor: c_int) -> Option<libc::stat> {
    stat_at(descriptor, c"".as_ptr().cast(), libc::AT_EMPTY_PATH)
}

/// The kernel's answer about a path that the program gave.
pub(crate) fn status_at(directory: c_int, path: usize, flags: c_int) -> Option<libc::stat> {
    if path == 0 { None } else { stat_at(directory, path as *const u8, flags) }
}

pub(crate) fn is_regular(status: &libc::stat) -> bool {
    status.st_mode & libc::S_IFMT == libc::S_IFREG
}

pub(crate) fn is_directory(status: &libc::stat) -> bool {
    status.st_mode & libc::S_IFMT == libc::S_IFDIR
}

/// Opens a path of this library's own, which ends with a zero.
pub(crate) fn open(path: &[u8], flags: c_int) -> c_int {
    assert_eq!(path.last(), Some(&0), "a path ends with a zero");
    forward(libc::SYS_openat, &[word(libc::AT_FDCWD), path.as_ptr() as usize, word(flags)]) as c_int
}

pub(crate) fn close(descriptor: c_int) -> Answer {
    forward(libc::SYS_close, &[word(descriptor)])
}

/// Flags of a description; 0 if there is none.
pub(crate) fn flags(descriptor: c_int) -> c_int {
    forward(libc::SYS_fcntl, &[word(descriptor), word(libc::F_GETFL)]).max(0) as c_int
}

/// Has a file modified now, as far as its times tell.
pub(crate) fn touch(descriptor: c_int) -> Answer {
    let time = |tv_nsec| libc::timespec { tv_sec: 0, tv_nsec };
    let times = [time(libc::UTIME_OMIT), time(libc::UTIME_NOW)];
    forward(libc::SYS_utimensat, &[word(descriptor), 0, times.as_ptr() as usize, 0])
}

/// Whether it is memory of at least so many bytes that cannot shrink.
pub(crate) fn is_sealed(descriptor: c_int, len: usize) -> bool {
    let seals = forward(libc::SYS_fcntl, &[word(descriptor), word(libc::F_GET_SEALS)]);
    let is_sealed = seals > 0 && seals as c_int & libc::F_SEAL_SHRINK != 0;
    is_sealed && status(descriptor).is_some_and(|status| status.st_size as usize >= len)
}

/// The offset of a description.
pub(crate) fn position(descriptor: c_int) -> i64 {
    forward(libc::SYS_lseek, &[word(descriptor), 0, word(libc::SEEK_CUR)]) as i64
}

/// The link at a path of this library's own; how many bytes it has.
pub(crate) fn link(path: &[u8], into: &mut [u8]) -> Option<usize> {
    assert_eq!(path.last(), Some(&0), "a path ends with a zero");
    let (from, to) = (path.as_ptr() as usize, into.as_mut_ptr() as usize);
    let len = forward(libc::SYS_readlinkat, &[word(libc::AT_FDCWD), from, to, into.len()]);
    // As long as the room: it may have been cut.
    (1..into.len() as isize).contains(&len).then_some(len as usize)
}

/// The working directory, without a zero.
pub(crate) fn working_directory(into: &mut [u8]) -> Option<usize> {
    let len = forward(libc::SYS_getcwd, &[into.as_mut_ptr() as usize, into.len()]);
    (len > 1).then(|| len as usize - 1)
}

/// `/proc/self/fd/N` and a zero.
pub(crate) struct DescriptorPath {
    bytes: [u8; 32],
    len: usize,
}

impl DescriptorPath {
    pub(crate) fn new(descriptor: c_int) -> Self {
        let mut path = Self { bytes: [0; 32], len: 0 };
        for byte in *b"/proc/self/fd/" {
            path.push(byte);
        }
        let mut digits = [0; 10];
        let mut count = 0;
        let mut rest = descriptor.unsigned_abs();
        while rest > 0 || count == 0 {
            digits[count] = b'0' + (rest % 10) as u8;
            rest /= 10;
            count += 1;
        }
        for digit in digits[..count].iter().rev() {
            path.push(*digit);
        }
        path.push(0);
        path
    }

    fn push(&mut self, byte: u8) {
        self.bytes[self.len] = byte;
        self.len += 1;
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// A sentence to the program's standard error.
pub(crate) fn tell(parts: &[&[u8]]) {
    let kept = errno();
    let all = [&b"gabion: "[..]].into_iter().chain(parts.iter().copied()).chain([&b"\n"[..]]);
    for part in all {
        forward(libc::SYS_write, &[2, part.as_ptr() as usize, part.len()]);
    }
    set_errno(kept);
}

/// Ends the process, without what the C library would do at its end.
pub(crate) fn exit(code: c_int) -> ! {
    loop {
        forward(libc::SYS_exit_group, &[word(code)]);
    }
}

/// All signals of this thread, held back until it is dropped.
pub(crate) struct SignalsHeld(u64);

impl SignalsHeld {
    pub(crate) fn new() -> Self {
        let (all, mut before) = (u64::MAX, 0_u64);
        let (set, old) = (&raw const all as usize, &raw mut before as usize);
        forward(libc::SYS_rt_sigprocmask, &[word(libc::SIG_SETMASK), set, old, 8]);
        Self(before)
    }
}

impl Drop for SignalsHeld {
    fn drop(&mut self) {
        let set = &raw const self.0 as usize;
        forward(libc::SYS_rt_sigprocmask, &[word(libc::SIG_SETMASK), set, 0, 8]);
    }
}

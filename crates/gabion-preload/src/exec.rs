//! Calls that start programs. A program whose calls pass no C library writes its files unseen, so
//! whoever runs it is told. It is started all the same: a script runs many that write no such file.
//!
//! A child of `vfork` has its parent's memory, so nothing is changed here but the shared memory's
//! list of what was told; nothing is allocated, and nothing is looked up.
//!
//! `execl` and its kin take their arguments as a list, which Rust cannot; they are not looked at.

use crate::raw::{self, Answer, word};
use crate::state::ready;
use crate::streams::original;
use gabion_mirror::image::{self, HEAD, Unseen};
use gabion_mirror::wire::PATH_MAX;
use libc::{c_char, c_int, c_void};
use std::sync::atomic::{AtomicUsize, Ordering::*};

/// The C library's function that looks for a program, as it cannot be found after `vfork`.
static SEARCH: AtomicUsize = AtomicUsize::new(0);

/// Scripts that name scripts as their interpreters.
const SCRIPTS_MAX: usize = 4;

/// Looked up ahead of need.
pub(crate) fn prepare() {
    SEARCH.store(original(c"execvpe") as usize, Release);
}

/// The program at a path, which ends with a zero.
pub(crate) fn look(directory: c_int, path: usize) {
    look_as(directory, path, SCRIPTS_MAX);
}

fn look_as(directory: c_int, path: usize, scripts: usize) {
    let Some(name) = raw::path(path).filter(|_| ready().is_some()) else {
        return;
    };
    let kept = raw::errno();
    let flags = libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK;
    let opened = raw::forward(libc::SYS_openat, &[word(directory), path, word(flags)]) as c_int;
    // One that only may be run, and one that is not there: the call itself will tell.
    if opened >= 0 {
        look_at(opened, name, scripts);
        raw::close(opened);
    }
    raw::set_errno(kept);
}

/// The program of a descriptor.
pub(crate) fn look_at(descriptor: c_int, name: &[u8], scripts: usize) {
    let Some(ready) = ready() else { return };
    let read = |into: &mut [u8], at: u64| {
        let arguments = [word(descriptor), into.as_mut_ptr() as usize, into.len(), at as usize];
        raw::forward(libc::SYS_pread64, &arguments).max(0) as usize
    };
    let mut head = [0; HEAD];
    let len = read(&mut head, 0);
    if let Some(interpreter) = image::interpreter(&head[..len]) {
        let mut path = [0; HEAD];
        path[..interpreter.len()].copy_from_slice(interpreter);
        if scripts > 0 {
            look_as(libc::AT_FDCWD, path.as_ptr() as usize, scripts - 1);
        }
        return;
    }
    match image::look(&head[..len], &read) {
        // Not even begun.
        Ok(()) | Err(Unseen::NoProgram | Unseen::Damaged) => {}
        Err(why) if ready.shared.is_told_first(name) => raw::tell(&[
            name,
            b": ",
            why.why().as_bytes(),
            b"; what it writes to files of --match or --split is seen by nobody and not stored",
        ]),
        Err(_) => {}
    }
}

/// The program of a descriptor that the program gave.
pub(crate) fn look_at_open(descriptor: c_int) {
    let mut path = [0; PATH_MAX];
    let kept = raw::errno();
    let len = raw::link(raw::DescriptorPath::new(descriptor).bytes(), &mut path);
    if let Some(name) = len.and_then(|len| path.get(..len)) {
        look_at(descriptor, name, SCRIPTS_MAX);
    }
    raw::set_errno(kept);
}

/// The program that `execvp` and its kin would find.
pub(crate) fn look_for(name: *const c_char) {
    let Some(text) = raw::path(name as usize).filter(|_| ready().is_some()) else {
        return;
    };
    if text.contains(&b'/') {
        return look(libc::AT_FDCWD, name as usize);
    }
    // SAFETY: the name ends with a zero. A program that changes its environment meanwhile has no
    // right to start another one.
    let places = raw::path(unsafe { libc::getenv(c"PATH".as_ptr()) } as usize);
    let kept = raw::errno();
    for place in places.unwrap_or(b"/bin:/usr/bin").split(|byte| *byte == b':') {
        let mut path = [0; PATH_MAX];
        let parts =
            if place.is_empty() { [b"".as_slice(), b"", text] } else { [place, b"/", text] };
        let len: usize = parts.iter().map(|part| part.len()).sum();
        if len >= path.len() {
            continue;
        }
        let mut end = 0;
        for part in parts {
            path[end..end + part.len()].copy_from_slice(part);
            end += part.len();
        }
        let address = path.as_ptr() as usize;
        let may = [word(libc::AT_FDCWD), address, word(libc::X_OK)];
        if raw::forward(libc::SYS_faccessat, &may) == 0 {
            look(libc::AT_FDCWD, address);
            break;
        }
    }
    raw::set_errno(kept);
}

pub(crate) fn environment() -> usize {
    unsafe extern "C" {
        static environ: *const *const c_char;
    }
    // SAFETY: the C library has it; it is read as the C library's own functions do.
    unsafe { environ as usize }
}

type List = *const *const c_char;

pub(crate) fn execve(path: *const c_char, arguments: List, variables: usize) -> Answer {
    look(libc::AT_FDCWD, path as usize);
    raw::forward(libc::SYS_execve, &[path as usize, arguments as usize, variables])
}

pub(crate) fn search(name: *const c_char, arguments: List, variables: usize) -> c_int {
    type Search = unsafe extern "C" fn(*const c_char, List, usize) -> c_int;
    look_for(name);
    if SEARCH.load(Acquire) == 0 {
        prepare();
    }
    let found = SEARCH.load(Acquire) as *mut c_void;
    // SAFETY: the C library's function of that type, with the program's arguments.
    unsafe { std::mem::transmute::<*mut c_void, Search>(found)(name, arguments, variables) }
}

/// `posix_spawn` and `posix_spawnp`: process, program, what is done in the child, arguments,
/// variables.
pub(crate) fn spawn(
    name: &std::ffi::CStr,
    process: *mut c_int,
    program: *const c_char,
    actions: [usize; 2],
    arguments: List,
    variables: usize,
) -> c_int {
    type Spawn =
        unsafe extern "C" fn(*mut c_int, *const c_char, usize, usize, List, usize) -> c_int;
    // SAFETY: the C library's function of that type, with the program's arguments.
    let original = unsafe { std::mem::transmute::<*mut c_void, Spawn>(original(name)) };
    let [first, second] = actions;
    // SAFETY: as above.
    unsafe { original(process, program, first, second, arguments, variables) }
}

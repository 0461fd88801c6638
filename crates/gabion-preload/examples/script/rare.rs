//! Calls that few programs make.

use super::{bytes, name, result};
use std::ffi::{c_char, c_int, c_void};
use std::ptr::null_mut;

/// A list of asynchronous calls: a null pointer, a read, and a write at the beginning.
pub(super) unsafe fn write_list(descriptor: c_int, seed: u64, len: usize) -> String {
    let bytes = bytes(seed, len);
    let mut place = [0_u8];
    let control = |kind, at: *mut c_void, len| {
        let mut control: libc::aiocb = std::mem::zeroed();
        (control.aio_fildes, control.aio_lio_opcode) = (descriptor, kind);
        (control.aio_buf, control.aio_nbytes) = (at, len);
        control
    };
    let mut read = control(libc::LIO_READ, place.as_mut_ptr().cast(), 1);
    let mut write = control(libc::LIO_WRITE, bytes.as_ptr().cast_mut().cast(), len);
    let list: [*mut libc::aiocb; 3] = [null_mut(), &raw mut read, &raw mut write];
    result(libc::lio_listio(libc::LIO_WAIT, list.as_ptr(), 3, null_mut()).into())
}

#[repr(C)]
struct Handle {
    len: u32,
    kind: c_int,
    bytes: [u8; 128],
}

unsafe extern "C" {
    fn name_to_handle_at(
        at: c_int,
        path: *const c_char,
        handle: *mut Handle,
        mount: *mut c_int,
        flags: c_int,
    ) -> c_int;
    fn open_by_handle_at(mount: c_int, handle: *mut Handle, flags: c_int) -> c_int;
}

/// Opens a file by the kernel's handle of it.
pub(super) unsafe fn open_by_handle(path: &str, flags: c_int) -> c_int {
    let mut handle = Handle { len: 128, kind: 0, bytes: [0; 128] };
    let (mut mount, path) = (0, name(path));
    match name_to_handle_at(libc::AT_FDCWD, path.as_ptr(), &mut handle, &mut mount, 0) {
        0 => open_by_handle_at(libc::AT_FDCWD, &mut handle, flags),
        failed => failed,
    }
}

unsafe extern "C" {
    static environ: *const *const c_char;
    fn execveat(
        at: c_int,
        path: *const c_char,
        arguments: *const *const c_char,
        variables: *const *const c_char,
        flags: c_int,
    ) -> c_int;
}

/// Runs a program by one of the calls that do so. Its exit code.
pub(super) unsafe fn exec(call: &str, program: &str) -> String {
    let path = name(program);
    let arguments = [path.as_ptr(), std::ptr::null()];
    let (path, list) = (path.as_ptr(), arguments.as_ptr());
    let mut child = 0;
    let spawned = match call {
        "posix_spawn" => {
            let (actions, attributes) = (std::ptr::null(), std::ptr::null());
            libc::posix_spawn(&mut child, path, actions, attributes, list.cast(), environ.cast())
        }
        "posix_spawnp" => {
            let (actions, attributes) = (std::ptr::null(), std::ptr::null());
            libc::posix_spawnp(&mut child, path, actions, attributes, list.cast(), environ.cast())
        }
        _ => {
            child = libc::fork();
            0
        }
    };
    if child == 0 && spawned == 0 {
        match call {
            "execve" => libc::execve(path, list, environ),
            "execv" => libc::execv(path, list),
            "execvp" => libc::execvp(path, list),
            "execvpe" => libc::execvpe(path, list, environ),
            "fexecve" => libc::fexecve(libc::open(path, libc::O_RDONLY), list, environ),
            "execveat" => execveat(libc::AT_FDCWD, path, list, environ, 0),
            other => panic!("no call is named {other}"),
        };
        libc::_exit(127);
    }
    let mut status = 0;
    libc::waitpid(child, &mut status, 0);
    format!("{spawned} {}", libc::WEXITSTATUS(status))
}

//! A library that `LD_PRELOAD` puts in front of the interposer: it notes which files and
//! directories of a program were synced, so that a test can tell what a disk has for sure when its
//! machine is lost. Mirrored files have no name below the root, and are not noted.
//!
//! Files of a test's make the disk of the program worse: see `disk/shadow.rs`.
#![allow(clippy::disallowed_methods, reason = "a library of tests that copies files")]

#[path = "disk/shadow.rs"]
mod disk;

use std::ffi::{CString, c_int, c_long};
use std::fs::File;
use std::io;
use std::os::fd::FromRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

fn place(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).map(PathBuf::from)
}

/// The shadow and the root.
static PLACES: LazyLock<Option<(PathBuf, PathBuf)>> =
    LazyLock::new(|| place(disk::SHADOW).zip(place(disk::ROOT)));

/// The directory of the files that make the disk worse.
static MARKS: LazyLock<Option<PathBuf>> = LazyLock::new(|| place(disk::MARKS));

type Function = unsafe extern "C" fn(c_long, usize, usize, usize, usize, usize, usize) -> c_long;

/// The path of a file that is open, below the root.
fn noted(descriptor: c_int) -> Option<(&'static PathBuf, PathBuf)> {
    let (shadow, root) = PLACES.as_ref()?;
    let path = PathBuf::from(format!("/proc/self/fd/{descriptor}"));
    std::fs::read_link(&path).ok()?.starts_with(root).then_some((shadow, path))
}

/// Opens a file once more, past the interposer: it would ask the owner of it.
fn open(path: &Path) -> io::Result<File> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let (here, flags) = (libc::AT_FDCWD as usize, (libc::O_RDONLY | libc::O_CLOEXEC) as usize);
    // SAFETY: the path ends with a zero, and the descriptor is nobody else's.
    unsafe {
        match next()(libc::SYS_openat, here, path.as_ptr() as usize, flags, 0, 0, 0) {
            descriptor @ 0.. => Ok(File::from_raw_fd(descriptor as c_int)),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

fn note(descriptor: c_int) -> io::Result<()> {
    let Some((shadow, path)) = noted(descriptor) else { return Ok(()) };
    match std::fs::metadata(&path)?.is_dir() {
        true => disk::directory_synced(shadow, &path),
        false => disk::file_synced(shadow, open(&path)?),
    }
}

/// Whether the sync of a file fails, as it was marked.
fn fails(descriptor: c_int) -> io::Result<bool> {
    let Some(marks) = &*MARKS else { return Ok(false) };
    match noted(descriptor) {
        Some((shadow, path)) if disk::is_marked(marks, disk::BROKEN)? => {
            disk::sync_failed(shadow, open(&path)?).map(|()| true)
        }
        _ => Ok(false),
    }
}

/// How many bytes a write may have on a disk that is marked as full: those below the file's end.
fn room(number: c_long, descriptor: c_int, len: usize, offset: usize) -> Option<usize> {
    MARKS.as_ref().filter(|marks| marks.join(disk::FULL).exists())?;
    noted(descriptor)?;
    let end = std::fs::metadata(format!("/proc/self/fd/{descriptor}")).ok()?.len() as usize;
    // SAFETY: these two only ask for what is known of the caller's descriptor.
    let (flags, position) = unsafe {
        (libc::fcntl(descriptor, libc::F_GETFL), libc::lseek(descriptor, 0, libc::SEEK_CUR))
    };
    let at = match number {
        _ if flags & libc::O_APPEND != 0 => end,
        libc::SYS_pwrite64 => offset,
        _ => position as usize,
    };
    Some(end.saturating_sub(at).min(len))
}

fn refuse(errno: c_int) -> c_long {
    // SAFETY: the place is this thread's own.
    unsafe { *libc::__errno_location() = errno };
    -1
}

/// The C library's own function: its address.
static NEXT: AtomicUsize = AtomicUsize::new(0);

fn next() -> Function {
    let mut found = NEXT.load(Relaxed);
    if found == 0 {
        // SAFETY: the name ends with a zero; looking it up calls nothing.
        found = unsafe { libc::dlsym(libc::RTLD_NEXT, c"syscall".as_ptr()) } as usize;
        assert!(found != 0, "the C library lacks `syscall`");
        NEXT.store(found, Relaxed);
    }
    // SAFETY: the function of that name takes any number of arguments, in the registers in which
    // one of seven has them.
    unsafe { std::mem::transmute::<usize, Function>(found) }
}

fn done<T>(result: io::Result<T>) -> T {
    result.unwrap_or_else(|error| {
        eprintln!("a sync is not noted: {error}");
        std::process::abort()
    })
}

/// As the C library's: the interposer hands all on to the kernel by it, its own syncs too.
// SAFETY: as in `next`.
#[unsafe(no_mangle)]
extern "C" fn syscall(
    number: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> c_long {
    let syncs = number == libc::SYS_fsync || number == libc::SYS_fdatasync;
    let writes = number == libc::SYS_write || number == libc::SYS_pwrite64;
    if syncs && done(fails(a as c_int)) {
        return refuse(libc::EIO);
    }
    let len = match writes.then(|| room(number, a as c_int, c, d)).flatten() {
        Some(0) if c > 0 => return refuse(libc::ENOSPC),
        room => room.unwrap_or(c),
    };
    // SAFETY: the caller's own call, or of fewer of its bytes.
    let answer = unsafe { next()(number, a, b, len, d, e, f) };
    if answer == 0 && syncs {
        done(note(a as c_int));
    }
    let names = number == libc::SYS_renameat2 || number == libc::SYS_linkat;
    if answer == 0 && names && done(ends()) {
        // SAFETY: the process ends itself.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    }
    answer
}

/// Whether the process ends behind a change of names, before anybody hears of it.
fn ends() -> io::Result<bool> {
    MARKS.as_ref().map_or(Ok(false), |marks| disk::is_marked(marks, disk::ENDS))
}

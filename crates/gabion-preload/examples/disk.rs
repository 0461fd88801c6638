//! A library that `LD_PRELOAD` puts in front of the interposer: it notes which files and
//! directories of a program were synced, so that a test can tell what a disk has for sure when its
//! machine is lost. Mirrored files have no name below the root, and are not noted.
#![allow(clippy::disallowed_methods, reason = "a library of tests that copies files")]

#[path = "disk/shadow.rs"]
mod disk;

use std::ffi::{c_int, c_long};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{LazyLock, Mutex, PoisonError};

/// The shadow and the root.
static PLACES: LazyLock<Option<(PathBuf, PathBuf)>> = LazyLock::new(|| {
    let place = |name: &str| std::env::var_os(name).map(PathBuf::from);
    place(disk::SHADOW).zip(place(disk::ROOT))
});

/// Held while a file is noted, so that of two syncs of it the later one counts.
static NOTING: Mutex<()> = Mutex::new(());

type Function = unsafe extern "C" fn(c_long, usize, usize, usize, usize, usize, usize) -> c_long;

fn note(descriptor: c_int) -> std::io::Result<()> {
    let Some((shadow, root)) = &*PLACES else { return Ok(()) };
    let path = std::fs::read_link(format!("/proc/self/fd/{descriptor}"))?;
    if !path.starts_with(root) {
        return Ok(());
    }
    let path = PathBuf::from(format!("/proc/self/fd/{descriptor}"));
    let _noting = NOTING.lock().unwrap_or_else(PoisonError::into_inner);
    let is_directory = std::fs::metadata(&path)?.is_dir();
    let noted = if is_directory { disk::directory_synced } else { disk::file_synced };
    noted(shadow, &path)
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
    // SAFETY: the caller's own call.
    let answer = unsafe { next()(number, a, b, c, d, e, f) };
    let syncs = number == libc::SYS_fsync || number == libc::SYS_fdatasync;
    if answer == 0
        && syncs
        && let Err(error) = note(a as c_int)
    {
        eprintln!("a sync is not noted: {error}");
        std::process::abort();
    }
    answer
}

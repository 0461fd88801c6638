//! A library that `LD_PRELOAD` puts in front of the interposer: it notes which files and
//! directories of a program were synced, so that a test can tell what a disk has for sure when its
//! machine is lost. Mirrored files have no name below the root, and are not noted.
#![allow(clippy::disallowed_methods, reason = "a library of tests that copies files")]

#[path = "disk/shadow.rs"]
mod disk;

use std::ffi::{CStr, c_int, c_void};
use std::path::PathBuf;
use std::sync::{LazyLock, Mutex, PoisonError};

/// The shadow and the root.
static PLACES: LazyLock<Option<(PathBuf, PathBuf)>> = LazyLock::new(|| {
    let place = |name: &str| std::env::var_os(name).map(PathBuf::from);
    place(disk::SHADOW).zip(place(disk::ROOT))
});

/// Held while a file is noted, so that of two syncs of it the later one counts.
static NOTING: Mutex<()> = Mutex::new(());

type Sync = unsafe extern "C" fn(c_int) -> c_int;

/// The next function of the name, which is the interposer's.
fn next(name: &CStr) -> Sync {
    // SAFETY: the name ends with a zero, and the two functions that are asked for have that type.
    unsafe {
        let found = libc::dlsym(libc::RTLD_NEXT, name.as_ptr());
        assert!(!found.is_null(), "{name:?} is missing");
        std::mem::transmute::<*mut c_void, Sync>(found)
    }
}

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

fn sync(name: &CStr, descriptor: c_int) -> c_int {
    // SAFETY: the program's own call.
    let answer = unsafe { next(name)(descriptor) };
    if answer == 0
        && let Err(error) = note(descriptor)
    {
        eprintln!("a sync is not noted: {error}");
        std::process::abort();
    }
    answer
}

/// As the C library's.
// SAFETY: the type is that of the C library's function.
#[unsafe(no_mangle)]
extern "C" fn fsync(descriptor: c_int) -> c_int {
    sync(c"fsync", descriptor)
}

/// As the C library's.
// SAFETY: as above.
#[unsafe(no_mangle)]
extern "C" fn fdatasync(descriptor: c_int) -> c_int {
    sync(c"fdatasync", descriptor)
}

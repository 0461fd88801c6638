//! The owner of a test's process, whose calls of the C library go through here: what it syncs is
//! noted for a disk that is lost, and any of its calls can be its last one.
//!
//! A *step* is a call that changes files of a house or syncs them: at the root, and in the store of
//! this machine. An owner that is to end at a step gets `EIO` from it and from all that follow, so
//! nothing is changed from there on.
#![allow(dead_code, reason = "not each test program plans ends")]

use crate::common::disk;
use libc::{c_char, c_int, c_long, c_void};
use std::collections::BTreeMap;
use std::ffi::{CStr, OsStr};
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Shadows and roots of the owners, which sync files too: one of each test.
static PLACES: Mutex<BTreeMap<PathBuf, PathBuf>> = Mutex::new(BTreeMap::new());

/// Steps that are left to the owners of a house; below 0: they are over.
static LEFT: Mutex<BTreeMap<PathBuf, i64>> = Mutex::new(BTreeMap::new());

/// Directories with marks: houses in which the disk may get worse.
static MARKS: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// From now on, syncs of the owner at that root are noted in that shadow.
pub(crate) fn note(shadow: &Path, root: &Path) {
    std::fs::create_dir_all(shadow).unwrap();
    let mut places = PLACES.lock().unwrap_or_else(PoisonError::into_inner);
    places.insert(shadow.to_owned(), root.to_owned());
}

/// From now on, marks of that house count.
pub(crate) fn mark(home: &Path) {
    MARKS.lock().unwrap_or_else(PoisonError::into_inner).push(home.to_owned());
}

/// The owner of that house ends after so many steps from now.
pub(crate) fn end_after(home: &Path, steps: i64) {
    LEFT.lock().unwrap_or_else(PoisonError::into_inner).insert(home.to_owned(), steps);
}

/// It does not, after all. Whether it has.
pub(crate) fn has_ended(home: &Path) -> bool {
    let left = LEFT.lock().unwrap_or_else(PoisonError::into_inner).remove(home);
    left.is_some_and(|left| left < 0)
}

fn path_of(descriptor: c_int) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/self/fd/{descriptor}")).ok()
}

/// Whether a path is of one of a house's roots, or of its store.
fn is_of(path: &Path, home: &Path) -> bool {
    let below = path.strip_prefix(home).ok().and_then(|below| below.iter().next());
    let name = below.map(OsStr::as_bytes).unwrap_or_default();
    name.starts_with(b"root") || name == b"store"
}

/// One more step: whether the owner is over.
fn step(path: &Path) -> bool {
    let mut left = LEFT.lock().unwrap_or_else(PoisonError::into_inner);
    let plan = left.iter_mut().find(|(home, _)| is_of(path, home));
    plan.is_some_and(|(_, left)| {
        *left -= 1;
        *left < 0
    })
}

fn marks_of(path: &Path) -> Option<PathBuf> {
    let marks = MARKS.lock().unwrap_or_else(PoisonError::into_inner);
    let is_at = |home: &&PathBuf| is_of(path, home) && !path.starts_with(home.join("store"));
    marks.iter().find(is_at).cloned()
}

fn wait_if_marked(marks: &Path) {
    let [waits, is_waiting] = disk::OWNER_WAITS.map(|name| marks.join(name));
    while waits.exists() {
        std::fs::write(&is_waiting, b"").unwrap();
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn refuse(errno: c_int) -> c_int {
    // SAFETY: the place is this thread's own.
    unsafe { *libc::__errno_location() = errno };
    -1
}

fn sync(number: c_long, descriptor: c_int) -> c_int {
    let path = path_of(descriptor).unwrap_or_default();
    let breaks = |marks: PathBuf| {
        wait_if_marked(&marks);
        disk::is_marked(&marks, disk::OWNER_BROKEN).unwrap()
    };
    if step(&path) || marks_of(&path).is_some_and(breaks) {
        return refuse(libc::EIO);
    }
    // SAFETY: the caller's own call, of this process's own number.
    let answer = unsafe { libc::syscall(number, descriptor) } as c_int;
    if answer != 0 {
        return answer;
    }
    let places = PLACES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((shadow, _)) = places.iter().find(|(_, root)| path.starts_with(root)) {
        let file = PathBuf::from(format!("/proc/self/fd/{descriptor}"));
        let noted = match path.is_dir() {
            true => disk::directory_synced(shadow, &file),
            false => File::open(file).and_then(|file| disk::file_synced(shadow, file)),
        };
        noted.expect("a sync is noted");
    }
    answer
}

/// As the C library's.
// SAFETY: the type is that of the C library's function.
#[unsafe(no_mangle)]
extern "C" fn fsync(descriptor: c_int) -> c_int {
    sync(libc::SYS_fsync, descriptor)
}

/// As the C library's.
// SAFETY: as above.
#[unsafe(no_mangle)]
extern "C" fn fdatasync(descriptor: c_int) -> c_int {
    sync(libc::SYS_fdatasync, descriptor)
}

/// As the C library's.
// SAFETY: as above.
#[unsafe(no_mangle)]
extern "C" fn pwrite64(descriptor: c_int, from: *const c_void, len: usize, offset: i64) -> isize {
    let path = path_of(descriptor).unwrap_or_default();
    if step(&path) {
        return refuse(libc::EIO) as isize;
    }
    let is_full = marks_of(&path).is_some_and(|marks| marks.join(disk::FULL).exists());
    if is_full && path.metadata().is_ok_and(|status| status.len() < offset as u64 + len as u64) {
        return refuse(libc::ENOSPC) as isize;
    }
    // SAFETY: the caller's own call.
    unsafe { libc::syscall(libc::SYS_pwrite64, descriptor, from, len, offset) as isize }
}

/// As the C library's.
// SAFETY: as above.
#[unsafe(no_mangle)]
unsafe extern "C" fn rename(from: *const c_char, to: *const c_char) -> c_int {
    // SAFETY: the caller's path ends with a zero.
    let path = Path::new(OsStr::from_bytes(unsafe { CStr::from_ptr(to) }.to_bytes()));
    if step(path) {
        return refuse(libc::EIO);
    }
    // SAFETY: the caller's own call.
    unsafe { libc::renameat(libc::AT_FDCWD, from, libc::AT_FDCWD, to) }
}

//! Attributes: size, times and blocks are the mirror's, device, inode and links the placeholder's,
//! mode and ownership those of both.

use crate::ask::ask;
use crate::names::{self, follow};
use crate::raw::{self, Answer, word};
use crate::state::{Ready, mirrored, ready};
use gabion_mirror::wire::{Operation, Reply, Request};
use libc::c_int;
use std::sync::atomic::Ordering::Relaxed;

/// `stat`, `lstat`, `fstatat`, into the program's structure at `into`.
pub(crate) fn stat(directory: c_int, path: usize, into: usize, flags: c_int) -> Answer {
    let empty = flags & libc::AT_EMPTY_PATH != 0;
    if empty && mirrored(directory).is_some() && raw::path(path).is_none_or(<[u8]>::is_empty) {
        return fstat(directory, into);
    }
    let arguments = [word(directory), path, into, word(flags)];
    let answer = raw::forward(libc::SYS_newfstatat, &arguments);
    if answer == 0 { patched(into) } else { answer }
}

pub(crate) fn fstat(descriptor: c_int, into: usize) -> Answer {
    let answer = raw::forward(libc::SYS_fstat, &[word(descriptor), into]);
    let file = mirrored(descriptor);
    // A split file's attributes are its own.
    if answer != 0 || file.is_some_and(|file| file.split) {
        return answer;
    }
    let Some(file) = file else {
        return patched(into);
    };
    let Some(ready) = ready() else {
        return answer;
    };
    let status = raw::filled::<libc::stat>(into);
    match file.slot(&ready.shared) {
        Some(slot) if slot.mirror_inode.load(Relaxed) == status.st_ino => {
            status.st_dev = slot.device.load(Relaxed);
            status.st_ino = slot.inode.load(Relaxed);
            status.st_nlink = slot.links.load(Relaxed).into();
        }
        // Its last name went long ago, and another file has its slot; or it is not that file.
        _ => {}
    }
    0
}

/// Of a path, or of a descriptor that is not mirrored: a placeholder gets the mirror's attributes.
fn patched(into: usize) -> Answer {
    let Some(ready) = ready().filter(|ready| ready.shared.has_files()) else {
        return 0;
    };
    let status = raw::filled::<libc::stat>(into);
    if !raw::is_regular(status) {
        return 0;
    }
    let Some((slot, generation)) = names::find_mirrored(ready, status.st_dev, status.st_ino) else {
        return 0;
    };
    match attributes(ready, slot, generation) {
        Err(reason) => raw::refuse(reason),
        Ok(reply) => {
            let [size, blocks, mode, user, group, rest @ ..] = reply.attributes;
            let [atime, atime_nsec, mtime, mtime_nsec, ctime, ctime_nsec] = rest;
            (status.st_size, status.st_blocks) = (size as i64, blocks as i64);
            status.st_mode = mode as u32;
            (status.st_uid, status.st_gid) = (user as u32, group as u32);
            (status.st_atime, status.st_atime_nsec) = (atime as i64, atime_nsec as i64);
            (status.st_mtime, status.st_mtime_nsec) = (mtime as i64, mtime_nsec as i64);
            (status.st_ctime, status.st_ctime_nsec) = (ctime as i64, ctime_nsec as i64);
            0
        }
    }
}

/// The mirror's attributes.
fn attributes(ready: &Ready, slot: u32, generation: u32) -> Result<Reply, c_int> {
    let request = Request { slot, generation, ..Request::new(Operation::Attributes) };
    ask(ready, request, [&[], &[]])
}

/// `statx`, of the program's five arguments.
pub(crate) fn statx(arguments: [usize; 5]) -> Answer {
    let [directory, path, flags, mask, into] = arguments;
    let answer = raw::forward(libc::SYS_statx, &[directory, path, flags, mask, into]);
    let Some(ready) = ready().filter(|ready| answer == 0 && ready.shared.has_files()) else {
        return answer;
    };
    let (directory, flags) = (directory as c_int, flags as c_int);
    let itself = flags & libc::AT_EMPTY_PATH != 0 && raw::path(path).is_none_or(<[u8]>::is_empty);
    let status = raw::filled::<libc::statx>(into);
    if let Some(file) = mirrored(directory).filter(|_| itself) {
        if file.split {
            return answer;
        }
        let Some(slot) = file.slot(&ready.shared) else {
            return answer;
        };
        let device = slot.device.load(Relaxed);
        (status.stx_dev_major, status.stx_dev_minor) = (libc::major(device), libc::minor(device));
        status.stx_ino = slot.inode.load(Relaxed);
        status.stx_nlink = slot.links.load(Relaxed);
        return answer;
    }
    let device = libc::makedev(status.stx_dev_major, status.stx_dev_minor);
    let regular = u32::from(status.stx_mode) & libc::S_IFMT == libc::S_IFREG;
    let found = names::find_mirrored(ready, device, status.stx_ino).filter(|_| regular);
    let Some((slot, generation)) = found else {
        return answer;
    };
    match attributes(ready, slot, generation) {
        Err(reason) => raw::refuse(reason),
        Ok(reply) => {
            let [size, blocks, mode, user, group, rest @ ..] = reply.attributes;
            let [atime, atime_nsec, mtime, mtime_nsec, ctime, ctime_nsec] = rest;
            (status.stx_size, status.stx_blocks) = (size, blocks);
            status.stx_mode = mode as u16;
            (status.stx_uid, status.stx_gid) = (user as u32, group as u32);
            for (place, seconds, rest) in [
                (&mut status.stx_atime, atime, atime_nsec),
                (&mut status.stx_mtime, mtime, mtime_nsec),
                (&mut status.stx_ctime, ctime, ctime_nsec),
            ] {
                (place.tv_sec, place.tv_nsec) = (seconds as i64, rest as u32);
            }
            answer
        }
    }
}

/// `fchmod` and `fchown` of a descriptor, which the kernel does to the mirror: the placeholder has
/// to follow.
pub(crate) fn of_descriptor(descriptor: c_int, call: &dyn Fn() -> Answer) -> Answer {
    let answer = call();
    let Some(file) = mirrored(descriptor).filter(|file| answer == 0 && !file.split) else {
        return answer;
    };
    let Some(ready) = ready().filter(|ready| file.is_live(&ready.shared)) else {
        return answer;
    };
    let (slot, generation) = (file.slot, file.generation);
    let request = Request { slot, generation, ..Request::new(Operation::FromMirror) };
    ask(ready, request, [&[], &[]]).map_or_else(raw::refuse, |_| answer)
}

pub(crate) fn chmod(directory: c_int, path: usize, mode: u32) -> Answer {
    let answer = raw::forward(libc::SYS_fchmodat, &[word(directory), path, mode as usize]);
    follow(answer, (directory, path), 0, Operation::FromPlaceholder)
}

pub(crate) fn chown(
    (directory, path): (c_int, usize),
    user: u32,
    group: u32,
    flags: c_int,
) -> Answer {
    let arguments = [word(directory), path, user as usize, group as usize, word(flags)];
    let answer = raw::forward(libc::SYS_fchownat, &arguments);
    follow(answer, (directory, path), flags, Operation::FromPlaceholder)
}

/// Times, at an address of two `timespec`s or 0. Without a path they are the descriptor's; the
/// kernel sets in the mirror.
pub(crate) fn set_times(directory: c_int, path: usize, times: usize, flags: c_int) -> Answer {
    let answer = raw::forward(libc::SYS_utimensat, &[word(directory), path, times, word(flags)]);
    if path == 0 {
        return answer;
    }
    follow(answer, (directory, path), flags, Operation::TimesFromPlaceholder)
}

/// The same, of two times in seconds and microseconds.
pub(crate) fn set_times_in_microseconds(path: usize, times: usize, flags: c_int) -> Answer {
    if times == 0 {
        return set_times(libc::AT_FDCWD, path, 0, flags);
    }
    let times = raw::filled::<[libc::timeval; 2]>(times);
    if times.iter().any(|time| !(0..1_000_000).contains(&time.tv_usec)) {
        return raw::refuse(libc::EINVAL);
    }
    let precise =
        times.map(|time| libc::timespec { tv_sec: time.tv_sec, tv_nsec: time.tv_usec * 1000 });
    set_times(libc::AT_FDCWD, path, precise.as_ptr() as usize, flags)
}

/// The same, of two times in seconds.
pub(crate) fn set_times_in_seconds(path: usize, times: usize) -> Answer {
    if times == 0 {
        return set_times(libc::AT_FDCWD, path, 0, 0);
    }
    let times = *raw::filled::<[i64; 2]>(times);
    let precise = times.map(|seconds| libc::timespec { tv_sec: seconds, tv_nsec: 0 });
    set_times(libc::AT_FDCWD, path, precise.as_ptr() as usize, 0)
}

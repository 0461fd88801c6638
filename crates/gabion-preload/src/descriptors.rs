//! Calls that make, copy and close descriptors, and that map files.

use crate::direct;
use crate::raw::{self, Answer, word};
use crate::state::{self, mirrored};
use libc::c_int;

pub(crate) fn close(descriptor: c_int) -> Answer {
    // Ahead of the call: once it is closed, another thread may get the number for another file.
    if mirrored(descriptor).is_some() {
        state::set(descriptor, None);
        state::ready().into_iter().for_each(direct::let_go);
    }
    raw::close(descriptor)
}

/// A copy of a descriptor is of the same file.
fn copied(answer: Answer, from: c_int) -> Answer {
    if answer >= 0 {
        let (to, file) = (answer as c_int, mirrored(from));
        if file.is_some() && answer as usize >= state::DESCRIPTORS {
            raw::close(to);
            return raw::refuse(libc::EMFILE);
        }
        if to != from && (file.is_some() || mirrored(to).is_some()) {
            state::set(to, file);
        }
    }
    answer
}

pub(crate) fn dup(descriptor: c_int) -> Answer {
    copied(raw::forward(libc::SYS_dup, &[word(descriptor)]), descriptor)
}

pub(crate) fn dup2(from: c_int, to: c_int) -> Answer {
    if from == to {
        // The call has no number everywhere, and does nothing but to ask whether it is open.
        let open = raw::forward(libc::SYS_fcntl, &[word(from), word(libc::F_GETFD)]) >= 0;
        return if open { to as Answer } else { -1 };
    }
    copied(raw::forward(libc::SYS_dup3, &[word(from), word(to), 0]), from)
}

pub(crate) fn dup3(from: c_int, to: c_int, flags: c_int) -> Answer {
    copied(raw::forward(libc::SYS_dup3, &[word(from), word(to), word(flags)]), from)
}

pub(crate) fn fcntl(descriptor: c_int, command: c_int, argument: usize) -> Answer {
    let answer = raw::forward(libc::SYS_fcntl, &[word(descriptor), word(command), argument]);
    match command {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => copied(answer, descriptor),
        _ => answer,
    }
}

pub(crate) fn close_range(first: u32, last: u32, flags: c_int) -> Answer {
    let closes = flags & libc::CLOSE_RANGE_CLOEXEC as c_int == 0;
    if closes && first <= last {
        let known = state::known();
        let from = c_int::try_from(first).unwrap_or(known.end);
        let to = c_int::try_from(last).unwrap_or(known.end).min(known.end);
        for descriptor in from..=to {
            if mirrored(descriptor).is_some() {
                state::set(descriptor, None);
            }
        }
    }
    raw::forward(libc::SYS_close_range, &[first as usize, last as usize, word(flags)])
}

/// The program's arguments of `mmap`. A shared mapping through which a program could write would
/// change bytes behind everybody's back, so there is none: `ENODEV`, as of a file system that has
/// no mappings. Nor is there one to read of a descriptor that may write, as it could be made to
/// write later.
pub(crate) fn mmap(arguments: [usize; 6]) -> Answer {
    let [_, _, _, flags, descriptor, _] = arguments;
    let descriptor = descriptor as c_int;
    let kind = flags & libc::MAP_TYPE as usize;
    let shared = kind == libc::MAP_SHARED as usize || kind == libc::MAP_SHARED_VALIDATE as usize;
    let nameless = flags & libc::MAP_ANONYMOUS as usize != 0;
    let ours = !nameless && shared && mirrored(descriptor).is_some();
    if ours && raw::flags(descriptor) & libc::O_ACCMODE == libc::O_RDWR {
        raw::tell(&[
            b"a shared mapping of a near-compute log that may write is refused (ENODEV): \
            what is written through it cannot be seen; leave this file out of --match and --split",
        ]);
        return raw::refuse(libc::ENODEV);
    }
    raw::forward(libc::SYS_mmap, &arguments)
}

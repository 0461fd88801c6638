//! A death that tests plant: the process ends at one of its calls, by its count.
//!
//! `GABION_NCL_END_AT` is `kill:N` or `exit:N`. At the N-th call of the kernel after the library is
//! ready, before the kernel has it, the process gets SIGKILL, or exits inside of the call. Calls
//! count that the program makes through this library, and those that the library makes for it; so
//! there are points between a change of a mirror and its record, too. A child of `fork` goes on
//! with its parent's count.

use crate::raw::{exit, forward, word};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// The exit code of a process that was to exit.
const CODE: libc::c_int = 99;

/// Calls that are left; 0: without end.
static LEFT: AtomicU64 = AtomicU64::new(0);
static EXITS: AtomicBool = AtomicBool::new(false);

/// Reads the variable. Its value stays there until the program has begun.
pub(crate) fn arm() {
    // SAFETY: the name ends with a zero, and nobody changes the environment by then.
    let value = unsafe { libc::getenv(c"GABION_NCL_END_AT".as_ptr()) };
    let Some(value) = crate::raw::path(value as usize) else { return };
    let (exits, number) = match (value.strip_prefix(b"exit:"), value.strip_prefix(b"kill:")) {
        (Some(number), _) => (true, number),
        (None, Some(number)) => (false, number),
        (None, None) => return,
    };
    let number = crate::names::number(number).map_or(0, |(number, _)| number);
    EXITS.store(exits, Relaxed);
    LEFT.store(number.into(), Relaxed);
}

/// One more call.
pub(crate) fn tick() {
    if LEFT.load(Relaxed) == 0 || LEFT.fetch_sub(1, Relaxed) != 1 {
        return;
    }
    // The count is used up, so these two make no end of their own.
    if EXITS.load(Relaxed) {
        exit(CODE);
    }
    let process = forward(libc::SYS_getpid, &[]);
    forward(libc::SYS_kill, &[process as usize, word(libc::SIGKILL)]);
    exit(CODE);
}

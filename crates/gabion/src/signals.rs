//! SIGINT, SIGTERM and SIGHUP as messages to whoever watches over processes.

use gabion_base::{Error, ErrorKind, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// Calls `told` with each signal, on a thread of its own, until it returns false.
///
/// # Errors
/// The system's.
pub(crate) fn watch(mut told: impl FnMut(i32) -> bool + Send + 'static) -> Result<()> {
    let failed = |e| Error::with_source(ErrorKind::Io, "signals cannot be watched", e);
    // `nohup` has the process ignore the end of a terminal; so does this process then.
    let hangup = Some(SIGHUP).filter(|&signal| !is_ignored(signal));
    let ends = [SIGINT, SIGTERM].into_iter().chain(hangup);
    let mut signals = Signals::new(ends).map_err(failed)?;
    let watch = move || {
        for signal in signals.forever() {
            if !told(signal) {
                return;
            }
        }
    };
    crate::control::driver::spawn("gabion-signals", watch).map(drop)
}

/// Whether the process was started with a signal ignored.
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    is_ignored_in(&status, signal)
}

/// The same from a line such as `SigIgn: 0000000000001001`, whose lowest bit is signal 1.
fn is_ignored_in(status: &str, signal: i32) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask >> (signal - 1) & 1 == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_process_was_started_with_is_read_bit_by_bit() {
        let status = "Name:\tgabion\nSigBlk:\t0000000000000001\nSigIgn:\t0000000000001001\n";
        let ignored: Vec<i32> = (1..=64).filter(|&at| is_ignored_in(status, at)).collect();
        assert_eq!(ignored, [SIGHUP, 13]);
        for status in ["", "SigIgn:", "SigIgn:\tx", "SigIgn:\t10000000000000000"] {
            assert!(!is_ignored_in(status, SIGHUP), "{status}");
        }
    }
}

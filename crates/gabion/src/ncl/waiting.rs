//! Waits for files at log peers, and says what they lack once that takes long.

use gabion_base::Result;
use gabion_ncl_driver::Logs;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

/// How long nothing is said, and then how long at least until something else is.
const FIRST: Duration = Duration::from_secs(2);
const NEXT: Duration = Duration::from_secs(5);

/// [`Logs::wait_until_ready`], of which whoever types a command sees why it takes long.
///
/// # Errors
/// As that.
pub(super) fn wait_until_ready(logs: &Logs) -> Result<()> {
    let (end, ended) = channel();
    thread::scope(|scope| {
        scope.spawn(move || tell(logs, &ended));
        let ready = logs.wait_until_ready();
        drop(end);
        ready
    })
}

fn tell(logs: &Logs, ended: &Receiver<()>) {
    let (mut pause, mut told) = (FIRST, None);
    while ended.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
        let lacks = logs.lacks();
        if lacks != told
            && let Some(text) = &lacks
        {
            eprintln!("gabion ncl: waits: {text}");
        }
        (pause, told) = (NEXT, lacks);
    }
}

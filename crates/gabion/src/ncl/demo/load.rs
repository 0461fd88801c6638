//! Clients that write until their program is killed; each counts what was acknowledged to it.

use super::super::run::failed;
use super::house::signal;
use super::program::{Running, Session, Shared};
use gabion_base::{Error, Result};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

/// Bits of a key that count a client's writes; those above number the client.
const CLIENT_SHIFT: u32 = 32;
/// Keys that are read at a time.
const READS: usize = 4096;

pub(super) struct Load {
    acknowledged: Vec<Arc<AtomicU64>>,
    /// Clients leave their sessions to others for a while.
    is_paused: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Error>>,
}

/// The values that were read after a recovery.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Read {
    pub(super) acknowledged: u64,
    pub(super) missing: u64,
    pub(super) different: u64,
    /// Writes that are there, and that nobody was told of.
    pub(super) unacknowledged: u64,
}

pub(super) fn locked(session: &Shared) -> Result<MutexGuard<'_, Box<dyn Session>>> {
    session.lock().map_err(|_| Error::io("a thread of the demo panicked"))
}

pub(super) fn key(client: usize, write: u64) -> u64 {
    assert!(write < 1 << CLIENT_SHIFT, "a client's writes are counted in 32 bits");
    (client as u64) << CLIENT_SHIFT | write
}

/// The value of a key: digits that follow from it.
pub(super) fn value(key: u64, size: u32) -> String {
    let mut text = String::with_capacity(size as usize + 16);
    let mut state = key;
    while text.len() < size as usize {
        state = (state ^ state >> 31).wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(1);
        text.push_str(&format!("{state:016x}"));
    }
    text.truncate(size as usize);
    text
}

impl Load {
    /// Starts clients, as many as there are connections for.
    pub(super) fn start(running: &Running, clients: usize, size: u32) -> Result<Self> {
        let is_paused = Arc::new(AtomicBool::new(false));
        let mut load = Self { acknowledged: Vec::new(), is_paused, threads: Vec::new() };
        for (client, session) in running.sessions.iter().take(clients).enumerate() {
            let (session, counter) = (Arc::clone(session), Arc::new(AtomicU64::new(0)));
            load.acknowledged.push(Arc::clone(&counter));
            let is_paused = Arc::clone(&load.is_paused);
            let body = move || write_all(&session, client, size, &counter, &is_paused);
            let thread = std::thread::Builder::new().name("gabion-demo".into()).spawn(body);
            load.threads.push(thread.map_err(|error| failed("a thread", error))?);
        }
        Ok(load)
    }

    fn count(&self) -> u64 {
        self.acknowledged.iter().map(|one| one.load(Ordering::SeqCst)).sum()
    }

    /// Waits until so many writes are acknowledged.
    pub(super) fn wait_for(&self, writes: u64) -> Result<()> {
        while self.count() < writes {
            if signal().is_some() || self.threads.iter().any(JoinHandle::is_finished) {
                return Err(Error::unavailable("a client ended before its program was killed"));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Has the program compact its log: between the writes of its only client, or beside all.
    pub(super) fn compact(&self, running: &Running) -> Result<()> {
        let Some(session) = running.sessions.last() else { return Ok(()) };
        self.is_paused.store(running.sessions.len() == 1, Ordering::SeqCst);
        let done = locked(session)?.compact();
        self.is_paused.store(false, Ordering::SeqCst);
        done
    }

    /// The writes that were acknowledged to each client of a program that was killed.
    pub(super) fn end(self) -> Result<Vec<u64>> {
        for thread in self.threads {
            thread.join().map_err(|_| Error::io("a thread of the demo panicked"))?;
        }
        Ok(self.acknowledged.iter().map(|one| one.load(Ordering::SeqCst)).collect())
    }
}

/// Writes one key after the other until the first error.
fn write_all(
    session: &Shared,
    client: usize,
    size: u32,
    counter: &AtomicU64,
    is_paused: &AtomicBool,
) -> Error {
    loop {
        if is_paused.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
            continue;
        }
        let key = key(client, counter.load(Ordering::SeqCst) + 1);
        let written = locked(session).and_then(|mut session| session.write(key, &value(key, size)));
        match written {
            Ok(()) => drop(counter.fetch_add(1, Ordering::SeqCst)),
            Err(error) => return error,
        }
    }
}

/// Reads all that each client was told of, and the write that it was not told of.
pub(super) fn read(running: &Running, acknowledged: &[u64], size: u32) -> Result<Read> {
    let Some(session) = running.sessions.first() else {
        return Err(Error::unavailable("nobody is connected"));
    };
    let mut session = locked(session)?;
    let mut found = Read { acknowledged: acknowledged.iter().sum(), ..Read::default() };
    for (client, count) in acknowledged.iter().enumerate() {
        let keys: Vec<u64> = (1..=count + 1).map(|write| key(client, write)).collect();
        for keys in keys.chunks(READS) {
            let values = session.read(keys)?;
            if values.len() != keys.len() {
                return Err(Error::corruption(format!(
                    "{} of {} values",
                    values.len(),
                    keys.len()
                )));
            }
            keys.iter().zip(values).for_each(|(one, got)| {
                found.take(*one <= key(client, *count), got.as_deref(), &value(*one, size));
            });
        }
    }
    Ok(found)
}

impl Read {
    fn take(&mut self, is_acknowledged: bool, got: Option<&str>, expected: &str) {
        match got {
            None => self.missing += u64::from(is_acknowledged),
            // Of a write that nobody was told of there may be all or nothing.
            Some(got) if got != expected => self.different += 1,
            Some(_) => self.unacknowledged += u64::from(!is_acknowledged),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_that_are_missing_or_differ_are_counted_and_others_are_not() {
        let mut read = Read::default();
        for (is_acknowledged, got) in
            [(true, Some("a")), (true, None), (true, Some("b")), (false, None), (false, Some("a"))]
        {
            read.take(is_acknowledged, got, "a");
        }
        let expected = Read { missing: 1, different: 1, unacknowledged: 1, acknowledged: 0 };
        assert_eq!(read, expected);
        assert_eq!((value(7, 100).len(), value(7, 1).len()), (100, 1));
        assert_ne!(value(key(0, 1), 30), value(key(1, 1), 30));
    }
}

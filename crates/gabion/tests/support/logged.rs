//! Load of a test's own RESP client, of which each acknowledged write is remembered.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long anything is waited for: no test passes by its length.
const PATIENCE: Duration = Duration::from_secs(60);

/// A client that writes one key after the other through one replica's door, and logs what was
/// acknowledged. After an error it goes on with the next, on a new connection.
pub(crate) struct Logged {
    acknowledged: Arc<Mutex<Vec<u64>>>,
    is_to_end: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Logged {
    pub(crate) fn start(door: SocketAddr) -> Self {
        let acknowledged = Arc::<Mutex<Vec<u64>>>::default();
        let is_to_end = Arc::<AtomicBool>::default();
        let (log, ends) = (acknowledged.clone(), is_to_end.clone());
        let thread = std::thread::spawn(move || {
            let mut next = 0;
            while !ends.load(Ordering::SeqCst) {
                write_on(door, &log, &ends, &mut next);
                std::thread::sleep(Duration::from_millis(10));
            }
        });
        Self { acknowledged, is_to_end, thread: Some(thread) }
    }

    pub(crate) fn count(&self) -> usize {
        self.acknowledged.lock().unwrap().len()
    }

    /// Waits until writes are acknowledged that were not begun when it is called.
    pub(crate) fn goes_on(&self) {
        let (begun, before) = (Instant::now(), self.count());
        while self.count() < before + 20 {
            assert!(begun.elapsed() < PATIENCE, "nothing is written any more");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub(crate) fn end(mut self) -> Vec<u64> {
        self.is_to_end.store(true, Ordering::SeqCst);
        self.thread.take().unwrap().join().unwrap();
        self.acknowledged.lock().unwrap().clone()
    }
}

impl Drop for Logged {
    fn drop(&mut self) {
        self.is_to_end.store(true, Ordering::SeqCst);
    }
}

/// Writes until the first error, some hundreds a second.
fn write_on(door: SocketAddr, log: &Mutex<Vec<u64>>, ends: &AtomicBool, next: &mut u64) {
    let Ok(stream) = TcpStream::connect(door) else { return };
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut replies = BufReader::new(stream.try_clone().unwrap());
    let mut stream = stream;
    while !ends.load(Ordering::SeqCst) {
        *next += 1;
        let set = format!("SET logged-{next} {next}\r\n");
        let mut reply = String::new();
        let sent = stream.write_all(set.as_bytes());
        if sent.is_err() || replies.read_line(&mut reply).is_err() || reply != "+OK\r\n" {
            return;
        }
        log.lock().unwrap().push(*next);
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Every write that was acknowledged is there, as this door says.
pub(crate) fn has_all(door: SocketAddr, acknowledged: &[u64]) {
    let stream = TcpStream::connect(door).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut replies = BufReader::new(stream.try_clone().unwrap());
    let mut stream = stream;
    for number in acknowledged {
        stream.write_all(format!("GET logged-{number}\r\n").as_bytes()).unwrap();
        let (mut len, mut value) = (String::new(), String::new());
        replies.read_line(&mut len).unwrap();
        assert!(len.starts_with('$') && len != "$-1\r\n", "{number}: {len}");
        replies.read_line(&mut value).unwrap();
        assert_eq!(value, format!("{number}\r\n"), "{number} of {}", acknowledged.len());
    }
}

//! A group that loses a member serves without it, loses nothing that was acknowledged, and is whole
//! again by itself.

use super::{PATIENCE, Place, Up, kill, said};
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A client that writes one key after the other through one replica's door, and logs what was
/// acknowledged. After an error it goes on with the next, on a new connection.
struct Logged {
    acknowledged: Arc<Mutex<Vec<u64>>>,
    is_to_end: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Logged {
    fn start(port: u16) -> Self {
        let acknowledged = Arc::<Mutex<Vec<u64>>>::default();
        let is_to_end = Arc::<AtomicBool>::default();
        let (log, ends) = (acknowledged.clone(), is_to_end.clone());
        let thread = std::thread::spawn(move || {
            let mut next = 0;
            while !ends.load(Ordering::SeqCst) {
                write_on(port, &log, &ends, &mut next);
                std::thread::sleep(Duration::from_millis(10));
            }
        });
        Self { acknowledged, is_to_end, thread: Some(thread) }
    }

    fn count(&self) -> usize {
        self.acknowledged.lock().unwrap().len()
    }

    /// Waits until writes are acknowledged that were not begun when it is called.
    fn goes_on(&self) {
        let (begun, before) = (Instant::now(), self.count());
        while self.count() < before + 20 {
            assert!(begun.elapsed() < PATIENCE, "nothing is written any more");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn end(mut self) -> Vec<u64> {
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
fn write_on(port: u16, log: &Mutex<Vec<u64>>, ends: &AtomicBool, next: &mut u64) {
    let Ok(stream) = TcpStream::connect(("127.0.0.1", port)) else { return };
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

impl Place {
    fn group(&self) -> Value {
        let output = self.run(&["status", "--json"]);
        let value: Value = serde_json::from_slice(&output.stdout).expect("status is JSON");
        value["group"].clone()
    }

    fn writer(&self) -> u16 {
        self.group()["writer"].as_u64().expect("a writer") as u16
    }
}

/// Every write that was acknowledged is there.
fn has_all(place: &Place, door: u16, acknowledged: &[u64]) {
    for number in acknowledged {
        let reply = place.resp(door, &format!("GET logged-{number}"));
        let expected = format!("${}\r\n{number}\r\n", number.to_string().len());
        assert_eq!(reply, expected, "{number} of {}", acknowledged.len());
    }
}

fn heard(up: &Up) -> String {
    up.heard.borrow().join("\n")
}

/// docs/faults.md: R1
#[test]
fn a_head_that_hangs_is_done_without_and_nothing_is_lost() {
    let place = Place::new("head");
    let up = place.up(&[]);
    let client = Logged::start(place.port + 2);
    client.goes_on();
    assert_eq!(place.writer(), 1);
    // One that is stopped is not restarted: whatever goes on now goes on without it.
    let pid = place.pids()[0];
    kill(pid, "-STOP");
    up.wait_for("without replica 1 (replica 1: silent for");
    client.goes_on();
    assert_eq!(place.writer(), 2);
    // Writes move without a fault, too.
    let moved = place.run(&["failover"]);
    assert!(moved.status.success(), "{}", said(&moved));
    client.goes_on();
    assert_eq!(place.writer(), 3);
    let acknowledged = client.end();
    has_all(&place, 2, &acknowledged);
    let verify = place.run(&["verify"]);
    assert!(verify.status.success(), "{}\n{}", said(&verify), heard(&up));

    // The events are there while it runs, and afterwards.
    let told = said(&place.run(&["events"]));
    assert!(told.contains("told to have replica 3 take writes"), "{told}");
    kill(pid, "-9");
    up.wait_for("replica 1 starts again");
    up.signal("-TERM");
    assert_eq!(up.wait(), 0);
    let later = said(&place.run(&["events"]));
    assert!(later.starts_with(&told), "{told}\n{later}");
    let offline = place.run(&["verify", "--offline"]);
    assert!(offline.status.success(), "{}", said(&offline));
    let destroy = place.run(&["destroy", "--yes"]);
    assert!(destroy.status.success() && !place.data.exists(), "{}", said(&destroy));
}

#[test]
fn a_group_that_can_lose_nobody_says_so_and_one_that_compacts_everywhere_has_no_controller() {
    let place = Place::new("two");
    let up = place.up(&["--replicas", "2"]);
    assert!(heard(&up).contains("the loss of any replica stops writes"), "{}", heard(&up));
    drop(up);
    let place = Place::new("everywhere");
    let _up = place.up(&["--compaction", "every-replica"]);
    assert!(place.group().is_null());
    assert!(!place.data.join("control").exists());
    for words in [&["events"][..], &["failover"], &["group", "add", "4"]] {
        let refused = place.run(words);
        assert!(said(&refused).contains("no controller looks after this group"), "{words:?}");
    }
}

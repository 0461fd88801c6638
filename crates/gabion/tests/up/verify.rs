//! `gabion verify` while a client writes without a pause.

use super::{PATIENCE, Place, flip_a_byte_of, said};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Writes that are sent before their replies are waited for.
const PIPELINED: u64 = 50;

/// A client that writes until it is dropped.
struct Writer {
    written: Arc<AtomicU64>,
    is_to_end: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    /// Overwrites a few thousand keys, which lie behind those of [`fill`].
    fn start(place: &Place) -> Self {
        let (written, is_to_end) = (Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
        let mut stream = TcpStream::connect(("127.0.0.1", place.port)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let (count, ends) = (written.clone(), is_to_end.clone());
        let thread = std::thread::spawn(move || {
            while !ends.load(Ordering::SeqCst) {
                let first = count.load(Ordering::SeqCst);
                let set = |i: u64| format!("SET w-{:04} {}\r\n", i * 7919 % 3000, "v".repeat(200));
                let sets: String = (first..first + PIPELINED).map(set).collect();
                stream.write_all(sets.as_bytes()).unwrap();
                let mut replies = vec![0; 5 * PIPELINED as usize];
                stream.read_exact(&mut replies).unwrap();
                assert_eq!(String::from_utf8_lossy(&replies), "+OK\r\n".repeat(PIPELINED as usize));
                count.fetch_add(PIPELINED, Ordering::SeqCst);
            }
        });
        let writer = Self { written, is_to_end, thread: Some(thread) };
        writer.goes_on();
        writer
    }

    /// Waits until more writes are done than were under way.
    fn goes_on(&self) {
        let (begun, until) = (Instant::now(), self.written.load(Ordering::SeqCst) + 3 * PIPELINED);
        while self.written.load(Ordering::SeqCst) < until {
            assert!(begun.elapsed() < PATIENCE, "nothing is written any more");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn end(mut self) {
        self.is_to_end.store(true, Ordering::SeqCst);
        self.thread.take().unwrap().join().expect("every write was acknowledged");
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.is_to_end.store(true, Ordering::SeqCst);
    }
}

/// Sets keys in their order until the first of them are in a file below L0, and returns its number.
/// Nothing that comes later is merged with it.
fn fill(place: &Place) -> u64 {
    let begun = Instant::now();
    for i in 0.. {
        let value = format!("{i:04}").repeat(4096);
        let reply = place.run(&["cli", "set", &format!("a-{i:04}"), &value]);
        assert!(reply.status.success(), "{}", said(&reply));
        let told = place.run(&["cli", "gabion", "files"]);
        let told: Value = serde_json::from_slice(&told.stdout).expect("files are JSON");
        let files = told["files"].as_array().expect("files");
        if let Some(first) = files.iter().find(|file| file["level"].as_u64() > Some(0)) {
            return first["file"].as_u64().expect("a number");
        }
        assert!(begun.elapsed() < PATIENCE, "no file below L0 after a while: {told}");
    }
    unreachable!("it ends with a file or without patience")
}

/// Verifies while the writer writes, and returns the exit code and the output.
fn verify(place: &Place, writer: &Writer) -> (Option<i32>, Value, String) {
    let before = writer.written.load(Ordering::SeqCst);
    let output = place.run(&["verify", "--json"]);
    assert!(writer.written.load(Ordering::SeqCst) > before, "it was not verified under load");
    writer.goes_on();
    let text = said(&output);
    let verdict = serde_json::from_slice(&output.stdout).unwrap_or_default();
    (output.status.code(), verdict, text)
}

/// The group is sound, and the comparison was made amid the writes.
fn is_verified(place: &Place, writer: &Writer, mode: &str) {
    let (code, verdict, text) = verify(place, writer);
    assert_eq!(code, Some(0), "{mode}: {text}");
    assert_eq!(verdict["verified"], true, "{mode}: {text}");
    let of = |field: &str| {
        let replicas = verdict["replicas"].as_array().expect("replicas").iter();
        replicas.map(|replica| replica[field].clone()).collect::<Vec<_>>()
    };
    for same in ["log_end", "records", "digest"] {
        let values = of(same);
        assert!(values.len() == 3 && values.iter().all(|it| *it == values[0]), "{mode}: {text}");
    }
    let at = of("log_end")[0].as_u64().unwrap();
    let ends = place.status().into_iter().map(|replica| replica["log"]["end"].as_u64().unwrap());
    assert!(ends.min() > Some(at), "{mode}: the logs end where they were compared: {text}");
}

/// docs/faults.md: P7
#[test]
fn a_group_is_verified_while_clients_write_and_a_flipped_byte_is_named_meanwhile() {
    let place = Place::new("busy");
    let up = place.up(&[]);
    let file = fill(&place);
    let writer = Writer::start(&place);
    (0..3).for_each(|_| is_verified(&place, &writer, "as it was written"));
    writer.end();
    up.signal("-INT");
    assert_eq!(up.wait(), 0);

    let (name, offset) = flip_a_byte_of(&place.data.join("replica-3/pool"), |it| it == file);
    let up = place.up(&[]);
    let writer = Writer::start(&place);
    let (code, _, text) = verify(&place, &writer);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains(&name), "{name} at {offset}: {text}");
    let begun = Instant::now();
    while place.status()[2]["counters"]["repaired_files"].as_u64() != Some(1) {
        assert!(begun.elapsed() < PATIENCE, "{name} is not repaired: {:?}", place.status());
        std::thread::sleep(Duration::from_millis(50));
    }
    is_verified(&place, &writer, "as it was repaired");
    writer.end();
    up.signal("-INT");
    assert_eq!(up.wait(), 0);
}

/// docs/faults.md: P7
#[test]
fn replicas_that_compact_for_themselves_are_verified_while_clients_write() {
    let place = Place::new("busy-own");
    let up = place.up(&["--compaction", "every-replica"]);
    let writer = Writer::start(&place);
    is_verified(&place, &writer, "every-replica");
    writer.end();
    up.signal("-INT");
    assert_eq!(up.wait(), 0);
}

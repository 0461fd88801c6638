//! The cost of a pair in a bulk load, beside puts in order and in no order: processor time of all
//! threads until compaction is quiet (Linux), and bytes written by flushes, compactions and loads.
//! `cargo bench -p gabion-db --bench load -- [RECORDS] [VALUE_LEN]`; 1,000,000 of 100 bytes unless
//! said otherwise. Keys have 16 bytes; values do not compress.
#![expect(clippy::print_stdout, reason = "a measurement prints what it found")]
#![allow(clippy::disallowed_methods, reason = "a measurement needs clock and files")]

use gabion_db::{Db, Options};
use std::path::PathBuf;
use std::time::Instant;

/// Seconds of processor time of this process, in the kernel's ticks of 10 ms.
fn cpu_seconds() -> f64 {
    gabion_proc::processor_seconds().iter().sum()
}

fn mixed(n: u64) -> u64 {
    n.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

fn key(n: u64) -> [u8; 16] {
    let mut key = [b'0'; 16];
    let mut n = n;
    for digit in key.iter_mut().rev() {
        *digit = b'0' + (n % 10) as u8;
        n /= 10;
    }
    key
}

fn measure(name: &str, records: u64, value_len: u64, fill: impl FnOnce(&Db)) {
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("load");
    let _ = std::fs::remove_dir_all(&dir);
    let pool_len = (records * (value_len + 64) * 5 / 2).max(1 << 30).next_multiple_of(2 << 20);
    let options = Options { pool_len, ..Options::default() };
    let db = Db::create(&dir, &options).expect("a store can be made");
    let (began, cpu) = (Instant::now(), cpu_seconds());
    fill(&db);
    db.wait_until_quiet().expect("it comes to rest");
    let (wall, cpu) = (began.elapsed().as_secs_f64(), cpu_seconds() - cpu);
    let counters = db.stats().counters;
    let written = (counters.job_written_bytes + counters.loaded_bytes) as f64;
    println!(
        "{name}: {:.0} pairs a second, {:.2} µs of CPU each, written {:.2} times",
        records as f64 / wall,
        cpu * 1e6 / records as f64,
        written / (records * (16 + value_len)) as f64
    );
    drop(db);
    let _ = std::fs::remove_dir_all(&dir);
}

fn main() {
    let numbers: Vec<u64> = std::env::args().skip(1).filter_map(|arg| arg.parse().ok()).collect();
    let number = |at: usize, default| numbers.get(at).copied().unwrap_or(default);
    let (records, value_len) = (number(0, 1_000_000), number(1, 100));
    let words = (0..(1 << 17) + value_len).flat_map(|n| mixed(n).to_le_bytes());
    let bytes: Vec<u8> = words.collect();
    let value = |n: u64| &bytes[mixed(n) as usize % (1 << 20)..][..value_len as usize];
    measure("bulk load", records, value_len, |db| {
        db.load_sorted((0..records).map(|n| (key(n), value(n)))).expect("it is loaded");
    });
    measure("puts in order", records, value_len, |db| {
        (0..records).for_each(|n| db.put(&key(n), value(n)).expect("the put is taken"));
    });
    measure("puts in no order", records, value_len, |db| {
        let keys = (0..records).map(|n| mixed(n) % records);
        keys.for_each(|n| db.put(&key(n), value(n)).expect("the put is taken"));
    });
}

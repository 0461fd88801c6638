//! The cost of a pair in a scan of an embedded store, by way of reading: processor time (Linux). To
//! count instructions, run one way under `perf stat -e instructions:u` and subtract the count of
//! the way `none`.
//!
//! `cargo bench -p gabion-db --bench scan -- [RECORDS] [VALUE_LEN] [WAY]`; 1,000,000 of 100 bytes
//! and every way unless said otherwise. Keys have 16 bytes and come in random order; a tenth of
//! them is written twice. All blocks are cached. The last column is for a store with all records in
//! one MemTable.
#![expect(clippy::print_stdout, reason = "a measurement prints what it found")]
#![allow(clippy::disallowed_methods, reason = "a measurement needs clock and files")]

use gabion_base::Result;
use gabion_db::{Db, Options};
use std::hint::black_box;
use std::path::PathBuf;

/// Seconds of processor time of this process, in the kernel's ticks of 10 ms.
fn cpu_seconds() -> f64 {
    gabion_proc::processor_seconds().iter().sum()
}

fn key(n: u64) -> Vec<u8> {
    format!("{n:016}").into_bytes()
}

fn load(name: &str, records: u64, value_len: usize, memtable_len: u64) -> Db {
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&dir);
    let pool_len = (records * (value_len as u64 + 64) * 5 / 2).max(2 << 30);
    let mut options =
        Options { pool_len: pool_len.next_multiple_of(2 << 20), ..Options::default() };
    options.tree.memtable_len = memtable_len;
    options.run.block_cache_len = 4 << 30;
    let db = Db::create(&dir, &options).expect("a store can be made");
    let value = vec![0xa5; value_len];
    let put = |n: u64| db.put(&key(n), &value).expect("the put is taken");
    // An odd multiplier, modulo a power of two, meets every number once.
    let space = records.next_power_of_two();
    let shuffled = |n: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15) % space;
    (0..space).map(shuffled).filter(|n| *n < records).for_each(put);
    (0..records / 10).for_each(|n| put(n * 10));
    db.wait_until_quiet().expect("compactions end");
    db
}

type Way = (&'static str, fn(&Db) -> Result<u64>);

fn by_cursor(db: &Db, backwards: bool) -> Result<u64> {
    let (mut cursor, mut count) = (db.cursor(..), 0);
    let mut is_there = if backwards { cursor.seek_to_last()? } else { cursor.seek_to_first()? };
    while is_there {
        black_box(cursor.pair());
        count += 1;
        is_there = if backwards { cursor.prev()? } else { cursor.next()? };
    }
    Ok(count)
}

fn count<T>(pairs: impl Iterator<Item = Result<T>>) -> Result<u64> {
    pairs.into_iter().try_fold(0, |count, pair| {
        pair.map(|pair| count + u64::from(black_box(Some(pair)).is_some()))
    })
}

const WAYS: [Way; 4] = [
    ("range", |db| count(db.iter(..))),
    ("range.rev", |db| count(db.iter(..).rev())),
    ("cursor.next", |db| by_cursor(db, false)),
    ("cursor.prev", |db| by_cursor(db, true)),
];

fn main() {
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    let number =
        |at: usize, default| args.get(at).and_then(|arg| arg.parse().ok()).unwrap_or(default);
    let (records, value_len) = (number(0, 1_000_000), number(1, 100));
    let way = args.get(2);
    let files = load("scan-files", records, value_len as usize, 16 << 20);
    let in_memory = records.min(50_000);
    let memory = load("scan-memory", in_memory, value_len as usize, 64 << 20);
    println!(
        "ns of CPU per pair; {records} records of {value_len} bytes in files, {in_memory} in memory"
    );
    for (name, read) in WAYS.iter().filter(|(name, _)| way.is_none_or(|way| way == name)) {
        let measure = |db: &Db, records: u64| {
            let (mut best, mut sum) = (f64::MAX, 0);
            for _ in 0..5 {
                let rounds = (1_000_000 / records).max(1);
                let before = cpu_seconds();
                (0..rounds).for_each(|_| sum += read(db).expect("a scan ends"));
                best = best.min((cpu_seconds() - before) * 1e9 / (rounds * records) as f64);
            }
            assert_eq!(sum % records, 0, "every record is met");
            best
        };
        println!("{name:12} {:6.0} {:6.0}", measure(&files, records), measure(&memory, in_memory));
    }
}

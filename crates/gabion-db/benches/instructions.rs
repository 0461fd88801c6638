//! Fixed runs of an embedded store, for counts of instructions: two commits are compared by running
//! each way under `valgrind --tool=cachegrind --cache-sim=no`, and taking off `none`.
//!
//! `cargo bench -p gabion-db --bench instructions -- WAY [RECORDS]`; 50,000 records of 100 bytes
//! unless said otherwise. Keys have 16 bytes and come in random order. `put` stays within one
//! MemTable; `compact` is the same with MemTables of a sixteenth, flushed and compacted. `get` and
//! `scan` read what `compact` leaves, with all blocks cached.
#![expect(clippy::print_stdout, reason = "a measurement prints what it found")]
#![allow(clippy::disallowed_methods, reason = "a measurement needs files")]

use gabion_db::{Db, Options};
use std::hint::black_box;
use std::path::PathBuf;

const VALUE_LEN: u64 = 100;

fn key(n: u64) -> [u8; 16] {
    let mut key = [b'0'; 16];
    let mut n = n;
    for digit in key.iter_mut().rev() {
        *digit = b'0' + (n % 10) as u8;
        n /= 10;
    }
    key
}

/// Every number below `records` once, in no order.
fn shuffled(records: u64) -> impl Iterator<Item = u64> {
    let space = records.next_power_of_two();
    let numbers = (0..space).map(move |n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15) % space);
    numbers.filter(move |n| *n < records)
}

fn open(dir: &PathBuf, memtable_len: u64) -> Db {
    let _ = std::fs::remove_dir_all(dir);
    let mut options = Options { pool_len: 1 << 30, ..Options::default() };
    options.tree.memtable_len = memtable_len;
    options.run.block_cache_len = 256 << 20;
    Db::create(dir, &options).expect("a store can be made")
}

fn put(db: &Db, records: u64) {
    let value: Vec<u8> = (0..VALUE_LEN).map(|n| n as u8).collect();
    shuffled(records).for_each(|n| db.put(&key(n), &value).expect("the put is taken"));
}

fn get(db: &Db, records: u64) {
    for n in shuffled(records) {
        black_box(db.get(&key(n)).expect("it is read").expect("it is there")[0]);
    }
}

fn scan(db: &Db) -> u64 {
    db.iter(..).map(|pair| u64::from(black_box(pair.is_ok()))).sum()
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    let way = words.first().map_or("none", String::as_str);
    let records = words.get(1).and_then(|word| word.parse().ok()).unwrap_or(50_000);
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("instructions-{way}"));
    let db = open(&dir, if matches!(way, "put" | "none") { 32 << 20 } else { 512 << 10 });
    match way {
        "none" => {}
        "put" => put(&db, records),
        "compact" | "get" | "scan" => {
            put(&db, records);
            db.wait_until_quiet().expect("compactions end");
            // As often again for each reading, so that what a load needs shows less.
            for _ in 0..8 {
                match way {
                    "get" => get(&db, records),
                    "scan" => assert_eq!(scan(&db), records, "every record is met"),
                    _ => {}
                }
            }
        }
        other => panic!("{other}: no way of this measurement: none, put, compact, get, scan"),
    }
    println!("{way}: {records} records");
    drop(db);
    let _ = std::fs::remove_dir_all(&dir);
}

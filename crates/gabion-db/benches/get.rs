//! The cost of a look-up in an embedded store, by way of asking. Each way is measured in slices of
//! a hundred look-ups, and the fastest quarter of the slices counts: so other programs on the
//! machine show little.
//!
//! `cargo bench -p gabion-db --bench get -- [RECORDS] [VALUE_LEN] [THREADS] [WAY]`; 1,000,000 of
//! 100 bytes, one thread and every way unless said otherwise. Keys have 16 bytes and come in random
//! order; all blocks are cached. Missing keys lie between those that are there.
#![expect(clippy::print_stdout, reason = "a measurement prints what it found")]
#![allow(clippy::disallowed_methods, reason = "a measurement needs clock and files")]

use gabion_db::{Db, Options};
use std::hint::black_box;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Look-ups of a slice, and keys that are asked for at once.
const SLICE: u64 = 100;
const MANY: usize = 10;
const MEASURED: Duration = Duration::from_secs(3);

fn mixed(n: u64) -> u64 {
    let n = (n ^ n >> 31).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    (n ^ n >> 32).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 20
}

/// The key of a record; odd numbers have none.
fn key(n: u64) -> [u8; 16] {
    let mut key = *b"user000000000000";
    let mut n = n;
    for digit in key[4..].iter_mut().rev() {
        *digit = b'0' + (n % 10) as u8;
        n /= 10;
    }
    key
}

fn load(records: u64, value_len: usize) -> Db {
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("get");
    let _ = std::fs::remove_dir_all(&dir);
    let pool_len = (records * (value_len as u64 + 64) * 5 / 2).max(2 << 30);
    let mut options =
        Options { pool_len: pool_len.next_multiple_of(2 << 20), ..Options::default() };
    options.tree.memtable_len = 16 << 20;
    options.tree.level1_len = 64 << 20;
    options.run.block_cache_len = 4 << 30;
    let db = Db::create(&dir, &options).expect("a store can be made");
    let value = vec![0xa5; value_len];
    // An odd multiplier, modulo a power of two, meets every number once.
    let space = records.next_power_of_two();
    let shuffled = (0..space).map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15) % space);
    for n in shuffled.filter(|n| *n < records) {
        db.put(&key(2 * n), &value).expect("the put is taken");
    }
    db.wait_until_quiet().expect("compactions end");
    // All blocks into the cache.
    for n in 0..records {
        assert!(db.get(&key(2 * n)).expect("it is read").is_some(), "record {n}");
    }
    db
}

/// Look-ups from `from` on, each `step` apart.
type Way = (&'static str, fn(&Db, u64, u64));

fn present(db: &Db, from: u64, records: u64) {
    for n in from..from + SLICE {
        let found = db.get(&key(2 * (mixed(n) % records))).expect("it is read");
        black_box(found.expect("it is there")[0]);
    }
}

fn missing(db: &Db, from: u64, records: u64) {
    for n in from..from + SLICE {
        let found = db.get(&key(2 * (mixed(n) % records) + 1)).expect("it is read");
        assert!(found.is_none(), "nobody wrote it");
    }
}

fn many(db: &Db, from: u64, records: u64) {
    for n in (from..from + SLICE).step_by(MANY) {
        let keys: [[u8; 16]; MANY] =
            std::array::from_fn(|i| key(2 * (mixed(n + i as u64) % records)));
        for found in db.multi_get(keys.iter().map(|key| &key[..])) {
            black_box(found.expect("it is read").expect("it is there")[0]);
        }
    }
}

const WAYS: [Way; 3] = [("missing", missing), ("present", present), ("many", many)];

/// Nanoseconds of each slice's look-ups.
fn slices(db: &Db, records: u64, thread: u64, way: fn(&Db, u64, u64)) -> Vec<f64> {
    let (began, mut from, mut slices) = (Instant::now(), thread << 40, Vec::new());
    while began.elapsed() < MEASURED {
        let start = Instant::now();
        way(db, from, records);
        slices.push(start.elapsed().as_nanos() as f64 / SLICE as f64);
        from += SLICE;
    }
    slices
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    let number = |at: usize, default| words.get(at).and_then(|w| w.parse().ok()).unwrap_or(default);
    let (records, threads) = (number(0, 1_000_000), number(2, 1));
    let db = load(records, number(1, 100) as usize);
    for (name, way) in WAYS {
        if words.get(3).is_some_and(|wanted| wanted != name) {
            continue;
        }
        let mut all: Vec<f64> = std::thread::scope(|scope| {
            let db = &db;
            let readers: Vec<_> = (0..threads)
                .map(|thread| scope.spawn(move || slices(db, records, thread, way)))
                .collect();
            let ended = readers.into_iter().flat_map(|reader| reader.join().expect("it reads"));
            ended.collect()
        });
        all.sort_by(f64::total_cmp);
        let (fast, median) = (all[all.len() / 8], all[all.len() / 2]);
        println!("{name}: {fast:.0} ns a key in the fastest quarter, {median:.0} in the median");
    }
}

//! The cost of a put in an embedded store, flushes and compactions included: processor time of all
//! threads (Linux).
//!
//! `cargo bench -p gabion-db --bench fill -- [RECORDS] [VALUE_LEN] [THREADS]`; 1,000,000 of 100
//! bytes from one thread unless said otherwise. Keys have 16 bytes and come in random order; values
//! do not compress.
#![expect(clippy::print_stdout, reason = "a measurement prints what it found")]
#![allow(clippy::disallowed_methods, reason = "a measurement needs clock and files")]

use gabion_db::{Db, Options};
use std::path::PathBuf;
use std::time::Instant;

struct Random(u64);

impl Random {
    fn draw(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

/// Seconds of processor time of this process, in the kernel's ticks of 10 ms.
fn cpu_seconds() -> f64 {
    gabion_proc::processor_seconds().iter().sum()
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

fn fill(db: &Db, seed: u64, records: u64, keys: u64, bytes: &[u8], value_len: usize) {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    for _ in 0..records {
        let drawn = random.draw();
        let at = (drawn >> 20) as usize % (bytes.len() - value_len);
        db.put(&key(drawn % keys), &bytes[at..at + value_len]).expect("the put is taken");
    }
}

fn main() {
    let numbers: Vec<u64> = std::env::args().skip(1).filter_map(|arg| arg.parse().ok()).collect();
    let number = |at: usize, default| numbers.get(at).copied().unwrap_or(default);
    let (records, value_len, threads) = (number(0, 1_000_000), number(1, 100), number(2, 1).max(1));
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("fill");
    let _ = std::fs::remove_dir_all(&dir);
    let pool_len = (records * (value_len + 64) * 5 / 2).max(1 << 30).next_multiple_of(2 << 20);
    let options = Options { pool_len, ..Options::default() };
    let db = Db::create(&dir, &options).expect("a store can be made");
    let mut random = Random(7);
    let bytes: Vec<u8> = (0..(1 << 20) + value_len as usize).map(|_| random.draw() as u8).collect();
    let (started, cpu) = (Instant::now(), cpu_seconds());
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (db, bytes) = (&db, &bytes[..]);
            let share = records / threads;
            scope.spawn(move || fill(db, thread + 1, share, records, bytes, value_len as usize));
        }
    });
    let (loaded, loaded_cpu) = (started.elapsed().as_secs_f64(), cpu_seconds() - cpu);
    db.wait_until_quiet().expect("compactions end");
    let (quiet, quiet_cpu) = (started.elapsed().as_secs_f64(), cpu_seconds() - cpu);
    let (count, stats) = (records as f64, db.stats());
    println!("{records} puts of {value_len} bytes, {threads} threads");
    println!("loaded  {:9.0}/s  {:6.2} us of CPU each", count / loaded, loaded_cpu / count * 1e6);
    println!("quiet   {:9.0}/s  {:6.2} us of CPU each", count / quiet, quiet_cpu / count * 1e6);
    let user = count * (16 + value_len) as f64;
    println!(
        "files written {:.2} times what users wrote; slots {:.2} times",
        stats.counters.job_written_bytes as f64 / user,
        stats.slot_bytes as f64 / user,
    );
    drop(db);
    let _ = std::fs::remove_dir_all(&dir);
}

//! The library as a program links it: a write's latency against its size, and many threads.

use super::house::{House, failed};
use super::rows::{Disk, Key, Row, Side};
use super::{Bench, Part};
use gabion_base::{Error, Result};
use gabion_ncl::{FileNumber, Metadata};
use gabion_ncl_driver::Logs;
use gabion_workload::Latencies;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Bytes of a write, as in Figure 8.
pub(super) const SIZES: [usize; 7] = [128, 256, 512, 1024, 2048, 4096, 8192];
/// A file is written in its order up to here, and then again from its begin: the paper's length.
const FILE_LEN: u64 = 100 << 20;
pub(super) const THREADS: [u64; 3] = [1, 8, 64];
/// Bytes of a record where threads are counted.
pub(super) const RECORD: usize = 128;
/// Records of a thread's log, which goes round.
const RING: u64 = 1024;
/// Writes ahead of those that are measured.
const WARM: u64 = 200;

/// Latencies of a call, and the time that all took.
type Timed = (Latencies, Duration);

/// Calls `write` for a time.
fn timed(time: Duration, mut write: impl FnMut(u64) -> Result<()>) -> Result<Timed> {
    (0..WARM).try_for_each(&mut write)?;
    let mut latencies = Latencies::new();
    let begun = Instant::now();
    let mut last = begun;
    let mut number = WARM;
    while last.duration_since(begun) < time {
        write(number)?;
        let now = Instant::now();
        latencies.record(now.duration_since(last));
        (last, number) = (now, number + 1);
    }
    Ok((latencies, last.duration_since(begun)))
}

fn row(key: Key, (latencies, took): &Timed) -> Row {
    let (count, seconds) = (latencies.count() as f64, took.as_secs_f64());
    let figures = vec![
        ("mean_us", seconds * 1e6 / count),
        ("p50_us", latencies.quantile_us(0.5)),
        ("p99_us", latencies.quantile_us(0.99)),
        ("per_second", count / seconds),
    ];
    Row::new(key, 1, figures)
}

/// Figure 8.
pub(super) fn latency(bench: &mut Bench<'_>) -> Result<()> {
    let time = bench.time() / 2;
    for side in [Side::Shared, Side::Tcp] {
        bench.begin(&format!("latency of a write: {}", side.as_str()))?;
        let house = House::start(bench, side, 3)?;
        for size in SIZES {
            bench.check()?;
            let logs = house.open("latency")?;
            let file = logs.create(&format!("{size}.log"), Metadata::default())?;
            let timed = timed(time, |number| at_peers(&logs, file, number, size))?;
            logs.unlink(&format!("{size}.log"))?;
            bench.keep(row(key(side, None, size), &timed))?;
        }
    }
    for (disk, path) in bench.disks {
        for side in [Side::Unsynced, Side::Synced] {
            bench.begin(&format!("latency of a write: {}, {}", side.as_str(), disk.as_str()))?;
            for size in SIZES {
                bench.check()?;
                let timed = of_file(path, side, size, time)?;
                bench.keep(row(key(side, Some(*disk), size), &timed))?;
            }
        }
    }
    Ok(())
}

fn key(side: Side, disk: Option<Disk>, size: usize) -> Key {
    Key { disk, ..Key::library(Part::Latency, "write", side, size as u64) }
}

fn place(number: u64, size: usize) -> u64 {
    number * size as u64 % FILE_LEN
}

fn at_peers(logs: &Logs, file: FileNumber, number: u64, size: usize) -> Result<()> {
    let data = [7; SIZES[SIZES.len() - 1]];
    let number = logs.write(file, place(number, size), &data[..size])?;
    logs.wait_for(number)
}

fn of_file(parent: &Path, side: Side, size: usize, time: Duration) -> Result<Timed> {
    let path = parent.join("latency.log");
    let file = File::create(&path).map_err(failed(&path))?;
    let data = vec![7; size];
    let timed = timed(time, |number| {
        let written = file.write_all_at(&data, place(number, size));
        let synced = written.and_then(|()| match side {
            Side::Synced => file.sync_data(),
            _ => Ok(()),
        });
        synced.map_err(failed(&path))
    });
    std::fs::remove_file(&path).map_err(failed(&path))?;
    timed
}

/// Synced records by many threads, each with a log of its own.
pub(super) fn threads(bench: &mut Bench<'_>) -> Result<()> {
    for side in [Side::Shared, Side::Tcp] {
        bench.begin(&format!("records by threads: {}", side.as_str()))?;
        let house = House::start(bench, side, 3)?;
        for threads in THREADS {
            bench.check()?;
            let logs = house.open("threads")?;
            let (count, took) = count(&logs, threads, bench.time())?;
            let key = Key {
                clients: threads,
                ..Key::library(Part::Threads, "write", side, RECORD as u64)
            };
            let per_second = count as f64 / took.as_secs_f64();
            bench.keep(Row::new(key, 1, vec![("per_second", per_second)]))?;
        }
    }
    Ok(())
}

fn count(logs: &Logs, threads: u64, time: Duration) -> Result<(u64, Duration)> {
    let is_over = AtomicBool::new(false);
    let make = |thread| logs.create(&format!("{threads}-{thread}.log"), Metadata::default());
    let files = (0..threads).map(make).collect::<Result<Vec<_>>>()?;
    let begun = Instant::now();
    let write = |file: FileNumber| {
        let mut count = 0;
        while !is_over.load(Ordering::Relaxed) {
            let number = logs.write(file, count % RING * RECORD as u64, &[3; RECORD])?;
            logs.wait_for(number)?;
            count += 1;
        }
        Ok(count)
    };
    let counts = std::thread::scope(|scope| {
        let write = &write;
        let writers: Vec<_> = files.iter().map(|file| scope.spawn(move || write(*file))).collect();
        std::thread::sleep(time);
        is_over.store(true, Ordering::Relaxed);
        let join = |writer: std::thread::ScopedJoinHandle<'_, Result<u64>>| {
            writer.join().map_err(|_| Error::io("a thread of the benchmark panicked"))?
        };
        writers.into_iter().map(join).collect::<Result<Vec<u64>>>()
    })?;
    Ok((counts.iter().sum(), begun.elapsed()))
}

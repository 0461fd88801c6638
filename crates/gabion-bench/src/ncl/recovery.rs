//! Figure 11: a log is read by a new instance, and by a program that starts again; beside the same
//! bytes in a local file that is in no cache.

use super::house::{COPIES, House, failed};
use super::library::SIZES;
use super::programs::{ProgramChoice, Stage};
use super::replacement::{bytes, fill};
use super::rows::{Disk, Key, Row, Side};
use super::{Bench, Part};
use gabion_base::{Error, Result};
use gabion_ncl_driver::Logs;
use rustix::fs::{Advice, fadvise};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

const NAME: &str = "large.log";
/// Bytes of a read where nothing is said.
const READ: usize = 1 << 20;
/// Bytes of a command of Redis in its log, with a key of 23 bytes and a value of 100.
const COMMAND: u64 = 151;

pub(super) fn measure(programs: &[ProgramChoice], bench: &mut Bench<'_>) -> Result<()> {
    local(bench)?;
    for side in [Side::Shared, Side::Tcp] {
        library(side, bench)?;
    }
    if programs.contains(&ProgramChoice::Redis) {
        redis(bench)?;
    }
    Ok(())
}

fn key(load: &'static str, side: Side, bytes: u64) -> Key {
    let disk = (side == Side::Unsynced).then_some(Disk::Local);
    Key { disk, ..Key::library(Part::Recovery, load, side, bytes) }
}

/// Milliseconds since then.
fn ms(begun: Instant) -> f64 {
    begun.elapsed().as_secs_f64() * 1e3
}

/// Reads a log in its order, so many bytes at a time.
fn read_all(
    (len, size): (u64, usize),
    mut read: impl FnMut(u64, &mut [u8]) -> Result<usize>,
) -> Result<()> {
    let (mut at, mut buffer) = (0, vec![0; size]);
    while at < len {
        match read(at, &mut buffer)? {
            0 => return Err(Error::corruption(format!("the log ends at {at} of {len} bytes"))),
            some => at += some as u64,
        }
    }
    Ok(())
}

/// The same bytes in a file of the local disk.
fn local(bench: &mut Bench<'_>) -> Result<()> {
    let (len, path) = (bench.args.log_size, bench.local().join(NAME));
    bench.begin("reading of a log: a local file, cold")?;
    std::fs::write(&path, bytes(len)).map_err(failed(&path))?;
    let file = File::open(&path).map_err(failed(&path))?;
    let read = |size| -> Result<f64> {
        forget(&path)?;
        let begun = Instant::now();
        read_all((len, size), |at, into| file.read_at(into, at).map_err(failed(&path)))?;
        Ok(ms(begun))
    };
    for round in 1..=bench.args.rounds {
        let took = read(READ)?;
        bench.keep(Row::new(key("read", Side::Unsynced, len), round, vec![("total_ms", took)]))?;
    }
    for size in SIZES {
        bench.check()?;
        let took = read(size)?;
        bench.keep(read_row(Side::Unsynced, size, len, took))?;
    }
    std::fs::remove_file(&path).map_err(failed(&path))
}

/// The mean time of a read, with its part of what was fetched ahead.
fn read_row(side: Side, size: usize, len: u64, took_ms: f64) -> Row {
    let reads = len.div_ceil(size as u64) as f64;
    let figures = vec![("mean_us", took_ms * 1e3 / reads)];
    Row::new(key("read by size", side, size as u64), 1, figures)
}

/// Takes a file out of the kernel's cache, which has to be written for that.
fn forget(path: &Path) -> Result<()> {
    let file = File::open(path).map_err(failed(path))?;
    file.sync_all().map_err(failed(path))?;
    fadvise(&file, 0, None, Advice::DontNeed).map_err(|error| failed(path)(error.into()))
}

fn library(side: Side, bench: &mut Bench<'_>) -> Result<()> {
    bench.begin(&format!("reading of a log: {}", side.as_str()))?;
    let len = bench.args.log_size;
    let house = House::start(bench, side, COPIES)?;
    let logs = house.open("recovery")?;
    fill(&logs, NAME, len)?;
    drop(logs);
    for round in 1..=bench.args.rounds {
        bench.check()?;
        let begun = Instant::now();
        let logs = house.recover("recovery")?;
        let ready = ms(begun);
        read(&logs, len, READ)?;
        let total = ms(begun);
        let figures = vec![("total_ms", total), ("ready_ms", ready)];
        bench.keep(Row::new(key("read", side, len), round, figures))?;
        house.wait_until_whole(&logs)?;
        compare(&logs, len)?;
    }
    for size in SIZES {
        bench.check()?;
        let begun = Instant::now();
        let logs = house.recover("recovery")?;
        read(&logs, len, size)?;
        bench.keep(read_row(side, size, len, ms(begun)))?;
        house.wait_until_whole(&logs)?;
    }
    Ok(())
}

fn read(logs: &Logs, len: u64, size: usize) -> Result<()> {
    let missing = || Error::corruption("the log is not there");
    let file = logs.find(NAME)?.ok_or_else(missing)?;
    read_all((len, size), |at, into| logs.read(file, at, into))
}

/// A recovery that is fast and wrong would be worth nothing.
fn compare(logs: &Logs, len: u64) -> Result<()> {
    let missing = || Error::corruption("the log is not there");
    let file = logs.find(NAME)?.ok_or_else(missing)?;
    let mut found = vec![0; len as usize];
    let count = logs.read(file, 0, &mut found)?;
    match count as u64 == len && found == bytes(len) {
        true => Ok(()),
        false => Err(Error::corruption("the recovered log has other bytes")),
    }
}

/// Redis, from its start until it serves.
fn redis(bench: &mut Bench<'_>) -> Result<()> {
    let len = bench.args.log_size;
    for side in [Side::Unsynced, Side::Shared, Side::Tcp] {
        bench.begin(&format!("redis starts again: {}", side.as_str()))?;
        let stage = Stage::new(bench, "recovery")?.of_records(len / COMMAND);
        let mut house = match side {
            Side::Unsynced => None,
            _ => Some(House::start(bench, side, COPIES)?),
        };
        let mut server = ProgramChoice::Redis.start(&stage, side, house.as_mut())?;
        server.load(bench.stop)?;
        for round in 1..=bench.args.rounds {
            bench.check()?;
            server.process().kill();
            files(&stage.place(side))?.iter().try_for_each(|path| forget(path))?;
            let begun = Instant::now();
            server = ProgramChoice::Redis.start(&stage, side, house.as_mut())?;
            let key = Key { program: "redis", disk: Some(Disk::Local), ..key("start", side, len) };
            bench.keep(Row::new(key, round, vec![("total_ms", ms(begun))]))?;
        }
    }
    Ok(())
}

/// All files below a directory.
fn files(directory: &Path) -> Result<Vec<PathBuf>> {
    let (mut found, mut left) = (Vec::new(), vec![directory.to_owned()]);
    while let Some(next) = left.pop() {
        for entry in std::fs::read_dir(&next).map_err(failed(&next))? {
            let path = entry.map_err(failed(&next))?.path();
            if path.is_dir() {
                left.push(path);
            } else if path.is_file() {
                found.push(path);
            }
        }
    }
    Ok(found)
}

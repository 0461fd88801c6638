//! One run: load, open again, warm up, measure, wait until it is quiet, check everything.

use crate::args::Plan;
use crate::check;
use crate::engine::{Engine, EngineOptions, Log};
use crate::ledger::{Ledger, wrong_read};
use crate::row::{Memory, Row, Said, Space};
use crate::sizes::Sizes;
use crate::usage::{Usage, allocator, directory_len, free_len, peak_memory};
use crate::values::Values;
use crate::work::Shared;
use crate::workload::Workload;
use gabion_base::{Error, ErrorKind, Result};
use std::fs;
use std::io;
use std::time::Duration;

/// Records that one scan of a check goes through.
const CHECK_CHUNK: usize = 1000;

/// Runs a workload on an engine, and removes its directory. `say` gets the progress.
///
/// # Errors
/// The directory has content, the disk has too little space, the engine failed, or a read returned
/// something other than the written value (kind `Corruption`): then there is no row.
pub fn run<E: Engine>(plan: &Plan, say: &mut dyn FnMut(&str)) -> Result<Row> {
    make_directory(plan)?;
    let outcome = measure::<E>(plan, say);
    let directory = &plan.engine.directory;
    let removed = fs::remove_dir_all(directory).map_err(|error| {
        Error::with_source(ErrorKind::Io, format!("remove {}", directory.display()), error)
    });
    let row = outcome?;
    removed.map(|()| row)
}

/// Refuses a directory with content and a disk with too little space.
fn make_directory(plan: &Plan) -> Result<()> {
    let directory = plan.engine.directory.as_path();
    let name = directory.display();
    match fs::read_dir(directory).map(|mut entries| entries.next().is_none()) {
        Ok(true) => {}
        Ok(false) => {
            return Err(Error::invalid(format!("--dir is {name}, which is not empty")));
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => {
            return Err(Error::with_source(ErrorKind::Io, format!("look into {name}"), error));
        }
    }
    let (free, needed) = (free_len(directory)?, plan.disk_len());
    if free < needed {
        return Err(Error::no_space(format!(
            "{free} bytes are free where --dir {name} is, {needed} are needed for {} records of {} \
             bytes: name another --dir or fewer --records",
            plan.records, plan.value_len
        )));
    }
    fs::create_dir_all(directory)
        .map_err(|error| Error::with_source(ErrorKind::Io, format!("make {name}"), error))
}

fn measure<E: Engine>(plan: &Plan, say: &mut dyn FnMut(&str)) -> Result<Row> {
    let workload = plan.workload;
    let ledger = ledger(plan);
    if workload.is_loaded() {
        say(&format!("loading {} records", plan.records));
        load::<E>(plan, &ledger)?;
    }
    let engine = E::open(&plan.engine)?;
    let shared = Shared::new(&engine, plan, &ledger);
    if workload.is_loaded() {
        say("reading all of them once");
        check_all(&engine, plan, &ledger)?;
        if workload.reads() && (!workload.writes() || workload == Workload::Readwhilewriting) {
            shared.drive(plan.operations, Some(plan.warm_up), 0)?;
        }
    }
    say("measuring");
    let (start, reads) = (Usage::now()?, engine.reads());
    let tally = shared.drive(plan.operations, plan.limit, 1)?;
    let used = Usage::now()?.since(&start);
    let reads = engine.reads().zip(reads).map(|(now, before)| now.since(before));
    let (stalls, ring_len) = (engine.stalls()?, engine.ring_len());
    let said = Said { reads, stalls, notices: engine.notices(), ring_len };
    let quiet = workload.writes().then(|| settle(&engine)).transpose()?;
    let quiet = quiet.map(|(end, watched)| {
        let mut used = end.since(&start);
        used.wall_seconds -= watched.as_secs_f64();
        used
    });
    // Before the check of everything, as that fills the cache.
    let peak_memory = peak_memory()?;
    let mut space = space(&engine, plan, &ledger)?;
    if workload.writes() {
        say("checking all records");
        check_all(&engine, plan, &ledger)?;
        say("reading some of them one by one and many at once");
        check::sample(&engine, plan, &ledger)?;
    }
    let kinds = engine.memory();
    if plan.memory_max.is_some() {
        check::told(&kinds, ledger.memory_used(), gabion_proc::memory_bytes())?;
    }
    let memory = Memory {
        peak: peak_memory,
        // The kernel counts pages in batches by processor, so its peak may fall by a few.
        peak_checked: check_memory(plan)?.max(peak_memory),
        instrument: ledger.memory_used(),
        engine: kinds,
        allocator: allocator(),
    };
    engine.close()?;
    if space.log_len.is_none() {
        space.log_len = E::closed_log_space_len(&plan.engine)?;
    }
    Ok(Row::new::<E>(plan, &tally, &used, quiet.as_ref(), &said, &memory, &space))
}

/// The bytes on the disk while the engine is open and quiet.
fn space<E: Engine>(engine: &E, plan: &Plan, ledger: &Ledger) -> Result<Space> {
    let len = match engine.space_len()? {
        Some(len) => len,
        None => directory_len(&plan.engine.directory)?,
    };
    let data_len = ledger.present() * record_len(plan);
    Ok(Space { len, log_len: engine.log_space_len()?, data_len })
}

/// The most that was resident, unless it was too much.
fn check_memory(plan: &Plan) -> Result<u64> {
    let peak = peak_memory()?;
    match plan.memory_max {
        Some(max) if peak > max => Err(Error::limit(format!(
            "{peak} bytes of memory were resident, --memory-max is {max}"
        ))),
        _ => Ok(peak),
    }
}

fn record_len(plan: &Plan) -> u64 {
    plan.data_len() / plan.records
}

fn ledger(plan: &Plan) -> Ledger {
    let workload = plan.workload;
    let inserts = workload.mix().is_some_and(|mix| mix.inserts > 0);
    // Inserts are 5 % of the requests.
    let room = plan.records + if inserts { plan.operations / 10 + 100 } else { 0 };
    let writers = if workload.mix().is_some() { workload.threads() } else { 1 };
    let sizes = Sizes::one(plan.value_len);
    Ledger::new(room, writers, Values::new(sizes, plan.compressibility, plan.seed))
}

/// Makes the data set, and leaves it flushed, quiet and closed. Unmeasured writes are not synced.
fn load<E: Engine>(plan: &Plan, ledger: &Ledger) -> Result<()> {
    let log = if plan.engine.log == Log::Synced { Log::On } else { plan.engine.log };
    let engine = E::open(&EngineOptions { log, ..plan.engine.clone() })?;
    Shared::new(&engine, plan, ledger).load()?;
    settle(&engine)?;
    engine.close()
}

/// Waits until all writes are in files and compaction is quiet. Returns the use of the process up
/// to then, and how much of the time it only watched.
fn settle<E: Engine>(engine: &E) -> Result<(Usage, Duration)> {
    engine.flush()?;
    let watched = engine.wait_quiet()?;
    Ok((Usage::now()?, watched))
}

/// Goes through the whole key space once: every record that must be there is, at its newest
/// version, and nothing else.
fn check_all<E: Engine>(engine: &E, plan: &Plan, ledger: &Ledger) -> Result<()> {
    let keys = plan.workload.key_space();
    // Below every key of a record: the first byte of the lowest.
    let mut from = vec![0];
    let mut seen = 0_u64;
    loop {
        let mut checked = Ok(());
        let mut last = from.clone();
        let mut count = 0;
        engine.scan(&from, CHECK_CHUNK, &mut |key, value| {
            count += 1;
            if checked.is_ok() {
                checked = match keys.record(key) {
                    None => Err(wrong_read(0, &format!("{key:02x?} is there, which is no key"))),
                    Some(record) if key < last.as_slice() => {
                        Err(wrong_read(record, "a scan goes backwards"))
                    }
                    Some(record) => ledger.check_at_rest(record, value),
                };
            }
            last.clear();
            last.extend_from_slice(key);
        })?;
        checked?;
        seen += count as u64;
        if count < CHECK_CHUNK {
            break;
        }
        // The next possible key.
        last.push(0);
        from = last;
    }
    let present = ledger.present();
    if seen == present {
        return Ok(());
    }
    Err(Error::corruption(format!("wrong scan: {seen} records are there, {present} must be")))
}

#[cfg(test)]
mod tests;

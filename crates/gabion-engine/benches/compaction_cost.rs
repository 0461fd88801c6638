//! What a compaction costs: processor time per kilobyte of input, from memory to memory.
//!
//! `cargo bench -p gabion-engine --bench compaction_cost -- [value bytes] [files]`
//!
//! Two overlapping sets of files (L0 and L1) are merged into L1. Reads come from memory and outputs
//! are kept there, so what is measured is the engine alone: decoding, merging, encoding, checksums,
//! filters.
#![allow(clippy::print_stdout, reason = "its result is what it prints")]

use gabion_base::{Error, FileId, Frontier, GroupId, LogPosition, Result, SequenceNumber, Term};
use gabion_engine::{
    EntryKind, FileSink, FileSource, FinishedFile, JobContext, JobKind, Tree, TreeConfig, run_job,
};
use gabion_media::Bytes;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

#[derive(Clone, Default)]
struct Memory(Rc<RefCell<BTreeMap<FileId, Bytes>>>);

impl FileSource for Memory {
    async fn read(&self, file: FileId, offset: u64, len: usize) -> Result<Bytes> {
        let files = self.0.borrow();
        let bytes = files.get(&file).ok_or_else(|| Error::not_found(format!("{file}")))?;
        Ok(bytes.slice(offset as usize..offset as usize + len))
    }
}

impl FileSink for Memory {
    async fn finished(&mut self, file: FinishedFile) -> Result<()> {
        self.0.borrow_mut().insert(file.meta.id, file.bytes);
        Ok(())
    }
}

/// Nanoseconds that this thread has spent on a processor.
#[expect(clippy::disallowed_methods, reason = "the kernel tells the processor time in a file")]
fn cpu_ns() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split(' ').next().and_then(|ns| ns.parse().ok()).unwrap_or_default()
}

/// What this machine, as loaded as it is now, takes to checksum and to copy a kilobyte: the floor
/// under everything else here.
fn calibrate() {
    let bytes: Vec<u8> = (0..16usize << 20).map(|at| (at * 7) as u8).collect();
    let (mut crc, mut copies) = (0, Vec::new());
    let start = cpu_ns();
    for _ in 0..16 {
        crc ^= gabion_base::crc::crc32c(&bytes);
    }
    let crc_ns = cpu_ns() - start;
    let start = cpu_ns();
    for _ in 0..16 {
        copies.push(bytes.clone());
    }
    let copy_ns = cpu_ns() - start;
    let per_kb = |ns: u64| ns as f64 / 1e3 / (16.0 * bytes.len() as f64 / 1e3);
    println!(
        "calibration: CRC32C {:.3} µs per kB, copy to fresh memory {:.3} µs per kB ({crc:08x}, {})",
        per_kb(crc_ns),
        per_kb(copy_ns),
        copies.len()
    );
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => unreachable!("memory never waits"),
    }
}

/// Runs and applies every job that is due; reports flushes and compactions that merge.
fn settle(
    tree: &mut Tree,
    memory: &Memory,
    totals: &mut BTreeMap<u8, (u64, u64, u64)>,
) -> Result<()> {
    let context = JobContext { term: Term(1), slots_free: u64::MAX, urgent: false, collects: true };
    while let Some(job) = tree.next_job(&context) {
        let start = cpu_ns();
        let output = block_on(run_job(&job, GroupId(1), memory, &mut memory.clone()))?;
        let spent = cpu_ns() - start;
        let total = totals.entry(output.recipe.kind as u8).or_default();
        *total =
            (total.0 + spent, total.1 + output.stats.bytes_read, total.2 + output.stats.entries_in);
        let edit = tree.finish_job(output, tree.last_edit() + 1)?;
        tree.apply_edit(&edit)?;
        for id in tree.obsolete_files() {
            memory.0.borrow_mut().remove(&id);
        }
    }
    Ok(())
}

fn main() -> Result<()> {
    calibrate();
    let mut arguments = std::env::args()
        .skip(1)
        .filter(|a| a != "--bench")
        .map(|a| a.parse::<usize>().unwrap_or(1000));
    let value_len = arguments.next().unwrap_or(1000);
    let files = arguments.next().unwrap_or(24) as u64;
    let config = TreeConfig { level1_len: 1 << 40, sealed_max: 64, ..TreeConfig::default() };
    let mut tree = Tree::create(config, GroupId(1))?;
    let memory = Memory::default();
    let (mut random, mut totals) = (0x9e37_79b9_7f4a_7c15_u64, BTreeMap::new());
    let mut value = vec![0u8; value_len];
    let mut sequence = SequenceNumber::ZERO;
    let (mut sealed, mut inserted) = (0, 0u64);
    while sealed < files {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let key = format!("\u{1}user{:020}", random % 10_000_000_000);
        value.chunks_mut(8).for_each(|chunk| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            chunk.copy_from_slice(&random.to_le_bytes()[..chunk.len()]);
        });
        sequence = sequence.next();
        tree.apply_operation(sequence, EntryKind::Put, key.as_bytes(), &value)?;
        inserted += 1;
        if tree.needs_seal() {
            sealed += 1;
            tree.seal(tree.active_id(), Frontier::of(LogPosition(sealed)))?;
            settle(&mut tree, &memory, &mut totals)?;
        }
    }
    println!("{inserted} entries with values of {value_len} bytes");
    for (kind, (ns, bytes, entries)) in totals {
        let name = JobKind::from_byte(kind).map_or("?".into(), |kind| format!("{kind:?}"));
        let per_kb = ns as f64 / 1e3 / (bytes as f64 / 1e3);
        let per_entry = ns as f64 / 1e3 / entries.max(1) as f64;
        println!(
            "{name}: {} MB in {} ms: {per_kb:.3} µs per kB, {per_entry:.3} µs per entry",
            bytes / 1_000_000,
            ns / 1_000_000
        );
    }
    calibrate();
    Ok(())
}

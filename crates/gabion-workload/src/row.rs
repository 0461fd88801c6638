//! The findings of one run.

use crate::args::Plan;
use crate::build::Build;
use crate::engine::{Codec, Engine, Reads};
use crate::latencies::Latencies;
use crate::usage::Used;
use crate::work::{SLICE_SECONDS, Tally};
use serde_json::{Map, Value, json};

/// Raised whenever a workload changes or a figure changes its meaning: rows are compared only
/// within one revision.
///
/// - 2: bytes of a log that never reached the device are not written.
/// - 3: with `--quick` write-only workloads write all records, not a quarter, which was a burst of
///   less than a second that logs and MemTables took up, or much of it; rows have the operations
///   per second until compaction is quiet, and space without logs.
pub const REVISION: u64 = 3;

/// Memory of a run, in bytes.
pub(crate) struct Memory {
    /// Most that was resident when all was quiet.
    pub(crate) peak: u64,
    /// Most that was resident when all was checked.
    pub(crate) peak_checked: u64,
    /// The instrument's own memory for the records.
    pub(crate) instrument: u64,
    /// The engine's account of its memory, when all was checked.
    pub(crate) engine: Vec<(&'static str, u64)>,
    /// The allocator's memory in use and freed memory that it keeps, then.
    pub(crate) allocator: Option<[u64; 2]>,
}

/// An engine's account of the measured time, if it gives one.
pub(crate) struct Said {
    /// The hits and reads of its readers.
    pub(crate) reads: Option<Reads>,
    /// The causes that held its writers back.
    pub(crate) stalls: Vec<(String, f64)>,
    /// Options that it could not honour, as it turned out.
    pub(crate) notices: Vec<String>,
    /// Bytes of a log with a fixed length, beside its counted space.
    pub(crate) ring_len: Option<u64>,
}

/// The bytes on the disk when all is quiet.
pub(crate) struct Space {
    /// All that counts as the engine's.
    pub(crate) len: u64,
    /// The logs' part of it, if the engine tells it.
    pub(crate) log_len: Option<u64>,
    /// The newest version of each record, key and value.
    pub(crate) data_len: u64,
}

impl Space {
    /// The fields in rows; `ring_len` is beside them.
    fn fields(&self, ring_len: Option<u64>) -> Map<String, Value> {
        let files_len = self.log_len.map(|log_len| self.len.saturating_sub(log_len));
        object(&[
            ("space_amp", ratio(self.len, self.data_len).into()),
            ("space_amp_files", files_len.and_then(|len| ratio(len, self.data_len)).into()),
            ("space_bytes", Value::from(self.len)),
            ("log_space_bytes", self.log_len.into()),
            ("ring_bytes", ring_len.into()),
        ])
    }
}

/// Names and values as an object.
fn object<K: ToString, V: Into<Value> + Clone>(pairs: &[(K, V)]) -> Map<String, Value> {
    pairs.iter().map(|(name, value)| (name.to_string(), value.clone().into())).collect()
}

/// One count ÷ another; none where there is nothing to divide by.
fn ratio(of: u64, to: u64) -> Option<f64> {
    (to > 0).then(|| of as f64 / to as f64)
}

/// The findings of one run, as JSON: figures first, then their conditions.
#[derive(Clone, Debug, PartialEq)]
pub struct Row(Value);

impl Row {
    pub(crate) fn new<E: Engine>(
        plan: &Plan,
        tally: &Tally,
        used: &Used,
        quiet: Option<&Used>,
        said: &Said,
        memory: &Memory,
        space: &Space,
    ) -> Self {
        let us_per_op = |seconds: f64| seconds * 1e6 / tally.operations as f64;
        let all = quiet.unwrap_or(used);
        let (reads, latencies) = (said.reads, tally.latencies());
        let mut row = json!({
            "engine": E::NAME,
            "version": E::version(),
            "workload": plan.workload.as_str(),
            "value_size": plan.value_len,
            "log": plan.engine.log.as_str(),
            "operations": tally.operations,
            "per_second": tally.operations as f64 / used.wall_seconds,
            "per_second_quiet": quiet.map(|quiet| tally.operations as f64 / quiet.wall_seconds),
            "cpu_us_per_op": us_per_op(used.cpu_seconds),
            "p50_us": latencies.quantile_us(0.5),
            "p99_us": latencies.quantile_us(0.99),
            "p999_us": latencies.quantile_us(0.999),
            "max_us": latencies.max_us(),
            "over_time": over_time(tally),
            "write_amp": ratio(all.write_bytes, tally.written_len),
            "read_amp": ratio(used.read_bytes, tally.read_len),
            "peak_memory": memory.peak,
            "peak_memory_checked": memory.peak_checked,
            "instrument_memory": memory.instrument,
            "memory": object(&memory.engine),
            "allocator": memory.allocator.map(|[used, free]| json!({"in_use": used, "free": free})),
            "wall_seconds": used.wall_seconds,
            "quiet_seconds": quiet.map(|quiet| quiet.wall_seconds),
            "cpu_us_per_op_quiet": quiet.map(|quiet| us_per_op(quiet.cpu_seconds)),
            "written_bytes": all.write_bytes,
            "read_bytes": used.read_bytes,
            "writer_bytes_per_second": tally.writer_len_per_second,
            "cache_hits": reads.map(|reads| reads.hits),
            "cache_misses": reads.map(|reads| reads.misses),
            "reader_bytes": reads.map(|reads| reads.bytes),
            "stalls": object(&said.stalls),
            "others": all.others.map(|others| others.json()),
        });
        if let Value::Object(fields) = &mut row {
            fields.append(&mut space.fields(said.ring_len));
            fields.append(&mut conditions::<E>(plan, &said.notices));
        }
        Self(row)
    }

    /// The row.
    #[must_use]
    pub fn json(&self) -> &Value {
        &self.0
    }
}

/// The whole slices of a run: the last, which the end cuts off, is left out.
fn over_time(tally: &Tally) -> Value {
    let whole = tally.slices.len().saturating_sub(1);
    let slice = |slice: &Latencies| {
        json!({
            "per_second": slice.count() as f64 / SLICE_SECONDS as f64,
            "p99_us": slice.quantile_us(0.99),
            "max_us": slice.max_us(),
        })
    };
    let slices: Vec<Value> = tally.slices[..whole].iter().map(slice).collect();
    json!({"seconds": SLICE_SECONDS, "slices": slices})
}

/// The conditions of the figures.
fn conditions<E: Engine>(plan: &Plan, notices: &[String]) -> Map<String, Value> {
    let options = &plan.engine;
    let limits = [E::limits(options).as_slice(), notices].concat();
    let fields = json!({
        "records": plan.records,
        "threads": plan.workload.threads(),
        "compressibility": plan.compressibility,
        "memtable_size": options.memtable_len,
        "cache": options.cache_len,
        "block_size": plan.common_block_len,
        "compression": options.codec.as_str(),
        "bottom_compression": options.bottom_codec.map(Codec::as_str),
        "background_threads": options.background_threads,
        "direct_io": options.is_direct,
        "seed": plan.seed,
        "own_options": plan.own,
        "settings": object(&E::settings(options)),
        "limits": limits,
        "program": Build::own().json(),
        "revision": REVISION,
    });
    match fields {
        Value::Object(fields) => fields,
        _ => Map::new(),
    }
}

//! What one run found.

use crate::args::Plan;
use crate::build::Build;
use crate::engine::{Codec, Engine, Reads};
use crate::usage::Used;
use crate::work::Tally;
use serde_json::{Map, Value, json};

/// Raised whenever a workload does something else or a figure means something else: rows are compared
/// only within one revision.
///
/// - 2: bytes of a log that never reached the device are not written.
/// - 3: with `--quick` what only writes writes all records, not a quarter, which was a burst of less than a second that
///   logs and MemTables took up, or much of it; rows have what is done in a second until compaction is quiet, and space
///   without logs.
pub const REVISION: u64 = 3;

/// Memory of a run, in bytes.
pub(crate) struct Memory {
    /// Most that was resident when all was quiet.
    pub(crate) peak: u64,
    /// Most that was resident when all was checked.
    pub(crate) peak_checked: u64,
    /// What the instrument itself keeps of the records.
    pub(crate) instrument: u64,
    /// What the engine says of its own, when all was checked.
    pub(crate) engine: Vec<(&'static str, u64)>,
    /// What the allocator has in use and what it keeps of what was freed, then.
    pub(crate) allocator: Option<[u64; 2]>,
}

/// What an engine says of what was measured, where it does.
pub(crate) struct Said {
    /// What its readers met.
    pub(crate) reads: Option<Reads>,
    /// What held its writers back.
    pub(crate) stalls: Vec<(String, f64)>,
    /// What it could not do of what was asked, as it turned out.
    pub(crate) notices: Vec<String>,
    /// Bytes of a log that has them whatever is in it, beside what counts as its space.
    pub(crate) ring_len: Option<u64>,
}

/// What is on the disk when all is quiet, in bytes.
pub(crate) struct Space {
    /// All that counts as the engine's.
    pub(crate) len: u64,
    /// Of it, what logs take, where the engine says so.
    pub(crate) log_len: Option<u64>,
    /// The newest version of each record, key and value.
    pub(crate) data_len: u64,
}

impl Space {
    /// As it stands in rows; `ring_len` is beside it.
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

/// What one run found, as JSON: figures first, then what they hold for.
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
        let reads = said.reads;
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
            "p50_us": tally.latencies.quantile_us(0.5),
            "p99_us": tally.latencies.quantile_us(0.99),
            "p999_us": tally.latencies.quantile_us(0.999),
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

/// What the figures hold for.
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

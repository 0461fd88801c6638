//! What one run found.

use crate::args::Plan;
use crate::build::Build;
use crate::engine::{Codec, Engine, Reads};
use crate::usage::Used;
use crate::work::Tally;
use serde_json::{Map, Value, json};

/// Raised whenever a workload does something else or a figure means something else: rows are compared
/// only within one revision.
pub const REVISION: u64 = 2;

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

/// Names and values as an object.
fn object<K: ToString, V: Into<Value> + Copy>(pairs: &[(K, V)]) -> Map<String, Value> {
    pairs.iter().map(|(name, value)| (name.to_string(), (*value).into())).collect()
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
        (space_len, data_len): (u64, u64),
    ) -> Self {
        let ratio = |of: u64, to: u64| (to > 0).then(|| of as f64 / to as f64);
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
            "cpu_us_per_op": us_per_op(used.cpu_seconds),
            "p50_us": tally.latencies.quantile_us(0.5),
            "p99_us": tally.latencies.quantile_us(0.99),
            "p999_us": tally.latencies.quantile_us(0.999),
            "write_amp": ratio(all.write_bytes, tally.written_len),
            "read_amp": ratio(used.read_bytes, tally.read_len),
            "space_amp": ratio(space_len, data_len),
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
            "space_bytes": space_len,
            "ring_bytes": said.ring_len,
            "cache_hits": reads.map(|reads| reads.hits),
            "cache_misses": reads.map(|reads| reads.misses),
            "reader_bytes": reads.map(|reads| reads.bytes),
            "stalls": object(&said.stalls),
            "others": all.others.map(|others| others.json()),
        });
        if let Value::Object(fields) = &mut row {
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

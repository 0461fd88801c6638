//! The answer to GABION STATUS: what the benchmark reads of it, under the names that Gabion's replicas
//! have. `shipping`, `target` and `nvme` are Gabion's and 0 here.

use crate::process::Cpu;
use crate::server::Server;
use crate::store::Store;
use gabion_base::Result;
use serde_json::{Map, Value, json};

/// The status of a replica now.
pub(crate) fn status<S: Store>(server: &Server<S>) -> Result<Value> {
    let state = server.store.state()?;
    let place = &server.place;
    let role = match (place.is_head(), place.is_tail()) {
        (true, _) => "primary",
        (false, true) => "tail",
        (false, false) => "middle",
    };
    let cpu = Cpu::now(S::THREADS);
    let (read_bytes, write_bytes) = gabion_proc::device_bytes().unwrap_or_default();
    let files: u64 = state.levels.iter().sum();
    let counters = state.counters;
    let stalls: Map<String, Value> =
        state.stalls.into_iter().map(|(name, value)| (name, value.into())).collect();
    let [client_sent, client_received] = server.traffic.clients;
    let [chain_sent, chain_received] = server.traffic.chain;
    Ok(json!({
        "version": S::version(),
        "pid": std::process::id(),
        "replica": place.number,
        "role": role,
        "members": (1..=place.replicas).collect::<Vec<_>>(),
        "ready": server.is_ready(),
        "compaction": S::NAME,
        "live_files": files,
        "live_bytes": state.live_bytes,
        "space_bytes": state.space_bytes,
        "levels": state.levels.iter().map(|files| json!({"files": files})).collect::<Vec<_>>(),
        // Jobs that run or are due stand with what waits to be flushed: a store is quiet when none is left.
        "memtable": {"active_bytes": state.active_bytes, "sealed": state.pending},
        "counters": {
            "flushes": counters.flushes,
            "compactions": counters.compactions,
            "trivial_moves": counters.trivial_moves,
            "compaction_read_bytes": counters.compaction_read_bytes,
            "job_written_bytes": counters.job_written_bytes,
            "shipped_bytes": 0,
        },
        "stalls": stalls,
        "cpu_seconds": cpu.total,
        "cpu_seconds_by_role": {
            "requests": cpu.requests,
            "flush": cpu.flush,
            "compaction": cpu.compaction,
            "shipping": 0.0,
            "target": 0.0,
            "other": cpu.other(),
        },
        "memory_bytes": gabion_proc::memory_bytes(),
        "read_bytes": read_bytes,
        "write_bytes": write_bytes,
        "net": {
            "sent": {"client": client_sent, "peer": chain_sent, "nvme": 0},
            "received": {"client": client_received, "peer": chain_received, "nvme": 0},
        },
    }))
}

//! `GABION STATUS`: what this replica is, does and costs.

use crate::admin;
use crate::host::ServerHost;
use crate::metrics::{Latencies, bounds};
use crate::process;
use crate::service::Service;
use gabion_base::units::SLOT_LEN;
use gabion_base::{Frontier, ReplicaId};
use gabion_engine::picker::Strategy;
use gabion_host::memory::{Memory, MemoryKind};
use gabion_node::ring::Fate;
use gabion_node::{DamagedFile, Duties, Node, View, WriteGate};
use gabion_replication::MemberStatus;
use serde_json::{Map, Value, json};
use std::sync::atomic::Ordering::Relaxed;

/// The place of a replica in its chain, as users name it.
pub(crate) fn role(view: &View) -> &'static str {
    match (view.is_full(), view.duties()) {
        (false, _) if view.is_member() => "filling",
        (false, _) => "spare",
        (true, Duties { append: true, .. }) => "primary",
        (true, Duties { serve_reads: true, .. }) => "tail",
        (true, _) => "middle",
    }
}

/// A replica's part in the view in which it acts.
pub(crate) fn membership(view: &View) -> &'static str {
    match (view.is_member(), view.is_full()) {
        (true, true) => "full",
        (true, false) => "filling",
        (false, _) => "none",
    }
}

/// The members in order, and whether each has all that the group has.
fn replicas(view: &View) -> Vec<Value> {
    let members = view.group().members.iter();
    members.map(|it| json!({"replica": it.replica.get(), "is_full": it.is_full})).collect()
}

/// The status of this replica now.
pub(crate) fn status(service: &Service) -> Value {
    let mut status = always(service);
    let node = service.replica.node.borrow();
    status["ports"]["metrics"] = service.metrics.port().into();
    status["filling"] = filling(&node);
    status["lag"] = lags(service, &node).iter().map(Lag::json).collect();
    status["commands"] = service.commands.calls_count().into();
    status["acknowledged"] = times(&service.metrics.acknowledged);
    status
}

/// How far another member is behind the primary.
pub(crate) struct Lag {
    pub(crate) member: ReplicaId,
    /// Bytes of the log that it has not acknowledged.
    pub(crate) bytes: u64,
    /// Age of the oldest of them.
    pub(crate) ms: u64,
}

impl Lag {
    fn json(&self) -> Value {
        json!({"replica": self.member.get(), "bytes": self.bytes, "ms": self.ms})
    }
}

/// The same of each that has said how far it is. Only the primary knows; nobody elsewhere.
pub(crate) fn lags(service: &Service, node: &Node) -> Vec<Lag> {
    if !node.duties().append {
        return Vec::new();
    }
    let members = node.protocol().members();
    let others = members.iter().filter(|member| member.id != node.id());
    let lag = |member: &MemberStatus| {
        let end = member.progress?.end.bytes_since(&Frontier::ZERO);
        let ms = service.metrics.lag.lag_ms(service.now_ms, end);
        Some(Lag { member: member.id, bytes: member.lag_bytes, ms })
    };
    others.filter_map(lag).collect()
}

/// Times as JSON: how many ended in each bucket, which doubles, and the end of the first.
fn times(latencies: &Latencies) -> Value {
    let first_ns = bounds().next().map_or(0, |seconds| (seconds * 1e9) as u64);
    json!({"first_ns": first_ns, "counts": latencies.buckets.counts()})
}

/// The part that every replica has.
fn always(service: &Service) -> Value {
    let node = service.replica.node.borrow();
    let host: &ServerHost = &service.host;
    let config = node.config();
    let obstacle = obstacle(service, &node);
    let ready = obstacle.is_none();
    let reason = obstacle.or_else(|| gate_reason(&node).filter(|_| node.duties().append));
    let version = node.tree().version();
    let files: Vec<u64> = version.described().map(|file| file.rounded_len()).collect();
    let view = node.view().group();
    let members: Vec<u32> = view.members.iter().map(|member| member.replica.get()).collect();
    let progress = node.protocol().progress();
    let target = service.replica.threads.target.address();
    let status = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "pid": std::process::id(),
        "replica": node.id().get(),
        "role": role(node.view()),
        "membership": membership(node.view()),
        "group": config.group.get(),
        "members": members,
        "replicas": replicas(node.view()),
        "term": node.protocol().term().get(),
        "config": view.config.get(),
        "ready": ready,
        "reason": reason,
        "readable": node.is_readable(),
        "compaction": config.compaction.as_str(),
        "ack": config.ack.as_str(),
        "uptime_ms": host.uptime_ms(),
        "clock": admin::time(&node, &service.clock),
        "ports": {
            "resp": host.resp.port(),
            "peer": service.peer_door.local_addr().map_or(0, |address| address.port()),
            "target": target.port(),
        },
        "log": {
            "end": admin::place(&node.log_end()),
            "commit": admin::place(&node.protocol().commit()),
            "durable": admin::place(&progress.durable),
            "trimmed": node.state().trimmed.position.get(),
        },
        "memtable": {
            "active_bytes": node.tree().active_len(),
            "sealed": node.tree().sealed_count(),
        },
        "levels": levels(&node),
        "compaction_debt_bytes": node.tree().compaction_debt(),
        "compactions_idle": compactions_idle(&node),
        "live_files": files.len(),
        "live_bytes": files.iter().sum::<u64>(),
        "slots": slots(&node),
        "readers": readers(&node),
        "marks": node.marks_armed(),
        "ring": ring(&node),
        "damage": node.damage().map(ToString::to_string),
        "damaged_files": damaged_files(&node),
        "unshipped_bytes": node.unshipped_bytes(),
        "counters": counters(service, &node),
        "cpu_seconds": cpu_total(),
        "cpu_seconds_by_role": cpu_by_role(),
        "memory_bytes": gabion_proc::memory_bytes(),
        "memory": memory_json(&host.memory(&node)),
        "read_bytes": gabion_proc::device_bytes().unwrap_or_default().0,
        "write_bytes": gabion_proc::device_bytes().unwrap_or_default().1,
        "net": net(service),
        "replies": replies(service),
    });
    with_values(status, &node)
}

/// Adds what values files hold (dead are values that nothing leads to any more), and what all
/// takes. Apart, as the macro takes no more.
fn with_values(mut status: Value, node: &Node) -> Value {
    let stats = node.tree().version().values_stats();
    let (collected_bytes, collected_bytes_per_s) = node.collected();
    let age_ms = |since_ms| node.tree().now_ms().saturating_sub(since_ms);
    status["values"] = json!({
        "large_from": node.tree().config().large_values,
        "compression": node.tree().config().value_compression.to_string(),
        "files": stats.files,
        "log_segments": stats.segments,
        "file_bytes": stats.file_bytes,
        "live_bytes": stats.live_bytes,
        "dead_bytes": stats.dead_bytes(),
        "oldest_garbage_ms": stats.garbage_since_ms.map(age_ms),
        "collected_bytes": collected_bytes,
        "collected_bytes_per_s": collected_bytes_per_s,
        "collection_rate": node.collection_rate(),
    });
    status["space_bytes"] = space_bytes(node).into();
    status
}

/// Bytes that the store takes of the device: slots of files and of the log, without those that are
/// only granted to others.
fn space_bytes(node: &Node) -> u64 {
    let counts = node.pool().counts();
    SLOT_LEN * u64::from(counts.total - counts.free - counts.granted)
}

fn levels(node: &Node) -> Vec<Value> {
    let levels = node.tree().level_stats();
    levels.iter().map(|level| json!({"files": level.files, "bytes": level.bytes})).collect()
}

/// Why each strategy of the picker found no compaction; null where one may be found, or another
/// member begins them.
fn compactions_idle(node: &Node) -> Option<Map<String, Value>> {
    let reasons = Strategy::ORDER.into_iter().zip(node.tree().why_idle()?);
    Some(reasons.map(|(by, why)| (by.name().to_owned(), why.name().into())).collect())
}

/// Why the write gate is not open, if it is not.
fn gate_reason(node: &Node) -> Option<String> {
    match node.write_gate() {
        WriteGate::Open => None,
        WriteGate::Wait(reason) => Some(reason.to_owned()),
        WriteGate::Refuse(reason) | WriteGate::Full { reason, .. } => Some(reason),
    }
}

/// What keeps commands that come here from being run, if anything: who is told `ready` finds writes
/// taken and reads answered through this node. A pool that is full is no such thing, as reads go
/// on. A spare has members run them, and knows of the group what the view says.
pub(crate) fn obstacle(service: &Service, node: &Node) -> Option<String> {
    if service.is_guest() {
        return node.view().group().too_few().or_else(|| service.obstacle_to_forwarding());
    }
    if !node.protocol().is_ready() {
        return Some(gate_reason(node).unwrap_or_else(|| "the group is starting".to_owned()));
    }
    service.obstacle_to_forwarding()
}

/// What may be gone with a ring: null where nothing is, or nobody has to know any more.
fn ring(node: &Node) -> Value {
    node.ring_loss().map_or(Value::Null, |loss| {
        let source = match loss.fate {
            Fate::TakenOver(from) => Some(from.get()),
            Fate::Open | Fate::Gone(_) => None,
        };
        json!({
            "found": loss.why,
            "from": loss.from.get(),
            "len_max": loss.len_max,
            "since_ms": loss.since_ms,
            "fate": loss.fate_word(),
            "source": source,
            "message": loss.to_string(),
        })
    })
}

/// How far this member is that is being filled; null at any other.
fn filling(node: &Node) -> Value {
    node.fill_status().map_or(Value::Null, |status| {
        json!({
            "step": status.step.as_str(),
            "files": status.files,
            "files_done": status.files_done,
            "bytes": status.bytes,
            "bytes_done": status.bytes_done,
            "bytes_reused": status.bytes_reused,
            "bytes_per_s": status.bytes_per_s,
            "full_in_s": status.full_in_s(),
            "failure": status.failure.map(|failure| failure.to_string()),
        })
    })
}

fn damaged_files(node: &Node) -> Vec<Value> {
    let describe = |damaged: DamagedFile| {
        json!({
            "file": damaged.file.to_string(),
            "error": damaged.error.to_string(),
            "state": damaged.state.as_str(),
            "failure": damaged.failure.map(|failure| failure.to_string()),
        })
    };
    node.damaged_files().map(describe).collect()
}

fn slots(node: &Node) -> Value {
    let counts = node.pool().counts();
    json!({
        "total": counts.total,
        "free": counts.free,
        "allocated": counts.allocated,
        "granted": counts.granted,
        "live": counts.live,
        "retired": counts.retired,
        "quarantined": counts.quarantined,
    })
}

/// What memory a store takes, as JSON: each kind's bytes now, and at most where there is a bound.
#[must_use]
pub fn memory_json(memory: &Memory) -> Value {
    let one =
        |kind: &MemoryKind| (kind.name.to_owned(), json!({"bytes": kind.bytes, "max": kind.max}));
    Value::Object(memory.kinds.iter().map(one).collect())
}

fn readers(node: &Node) -> Value {
    let readers = node.readers();
    json!({
        "open": readers.open,
        "states_kept": readers.states_kept,
        "oldest_ms": readers.oldest_ms,
        "memtable_bytes": readers.memtable_bytes,
        "ended": readers.ended,
    })
}

fn counters(service: &Service, node: &Node) -> Value {
    let counters = node.counters();
    let stopped = counters.writes_stopped_ms;
    let by_what: Map<_, _> =
        stopped.each().map(|(what, ms)| (what.to_owned(), ms.into())).collect();
    let (cache, warmed) = (service.replica.cache.stats(), service.replica.cache.warmed());
    json!({
        "flushes": counters.flushes,
        "compactions": counters.compactions,
        "trivial_moves": counters.trivial_moves,
        "writes_slowed_ms": counters.writes_slowed_ms,
        "writes_stopped_ms": stopped.total(),
        "writes_stopped_ms_by": by_what,
        "jobs_without_space": counters.jobs_without_space,
        "refused_slots": counters.refused_slots,
        "jobs_set_aside": counters.jobs_set_aside,
        "damaged_files": counters.damaged_files,
        "repaired_files": counters.repaired_files,
        "compaction_read_bytes": counters.job_read_bytes,
        "job_written_bytes": counters.job_written_bytes,
        "flushed_bytes": counters.flushed_bytes,
        "logged_bytes": counters.logged_bytes,
        "log_written_bytes": counters.log_written_bytes,
        "shipped_bytes": counters.shipped_bytes,
        "shipped_files": counters.shipped_files,
        "received_bytes": counters.received_bytes,
        "verified_read_bytes": counters.verified_read_bytes,
        "reship_read_bytes": counters.reship_read_bytes,
        "rotten_buffers": counters.rotten_buffers,
        "pulled_files": counters.pulled_files,
        "skipped_files": counters.skipped_files,
        "kept_segments": counters.kept_segments,
        "edits": counters.edits,
        "block_cache_hits": cache.hits,
        "block_cache_misses": cache.misses,
        "warmed_blocks": warmed.blocks,
        "warmed_bytes": warmed.bytes,
        "warmings_given_up": warmed.given_up,
        "warmings_left": service.replica.threads.warm.left(),
        "warm_read_bytes": service.replica.threads.warm.read_bytes(),
        "client_read_bytes": service.replica.store.tables().source.pool.meter.bytes(),
    })
}

fn cpu_total() -> f64 {
    process::cpu().total
}

fn cpu_by_role() -> Value {
    let mut roles = Map::new();
    for (role, seconds) in process::cpu().by_role {
        roles.insert(role.to_owned(), json!(seconds));
    }
    Value::Object(roles)
}

/// Replies on their way: those that clients have not read or are expected to get, those that
/// members have not, and the reads of members that wait for that.
fn replies(service: &Service) -> Value {
    let links = || service.peers.iter().filter_map(|peer| peer.link.as_ref());
    json!({
        "client_bytes": service.sums.unread.get(),
        "member_bytes": links().map(|link| link.replies.bytes()).sum::<usize>(),
        "waiting_reads": links().map(|link| link.replies.waiting()).sum::<usize>(),
    })
}

fn net(service: &Service) -> Value {
    let traffic = &service.host.traffic;
    let (ship, target) =
        (service.replica.threads.ship.bytes(), service.replica.threads.target.wire_bytes());
    json!({
        "sent": {
            "client": traffic.client_sent.get(),
            "peer": traffic.peer_sent.get(),
            "nvme": ship.sent.load(Relaxed) + target.sent.load(Relaxed),
        },
        "received": {
            "client": traffic.client_received.get(),
            "peer": traffic.peer_received.get(),
            "nvme": ship.received.load(Relaxed) + target.received.load(Relaxed),
        },
    })
}

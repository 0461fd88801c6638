//! The page of a replica: the numbers of `GABION STATUS` and INFO as families.

use super::text::{Kind, Number, Page};
use crate::service::Service;
use crate::status::{self, role};
use gabion_base::units::SLOT_LEN;
use gabion_control::Probe;
use gabion_node::{Node, WriteGate};
use std::sync::atomic::Ordering::Relaxed;

const COUNTER: Kind = Kind::Counter;
const GAUGE: Kind = Kind::Gauge;

/// Its roles, of which it has one.
const ROLES: [&str; 5] = ["primary", "middle", "tail", "filling", "spare"];
/// Fates of a ring that was lost.
const FATES: [&str; 3] = ["open", "taken-over", "gone"];

/// The whole page. While the replica is opened again, that alone and what its door knows.
pub(super) fn page(service: &Service) -> String {
    let (group, me) = (service.group.get().to_string(), service.me.get().to_string());
    let mut page = Page::new(&[("group", &group), ("replica", &me)]);
    let help = "1 while the replica is open; 0 while it is opened again from its files.";
    page.gauge("gabion_replica_open", help, service.is_open());
    commands(service, &mut page);
    connections(service, &mut page);
    probe(service, &mut page);
    if service.is_open() {
        let node = service.replica.node.borrow();
        view(service, &node, &mut page);
        members(service, &node, &mut page);
        writes(service, &node, &mut page);
        log(&node, &mut page);
        tree(&node, &mut page);
        jobs(&node, &mut page);
        files(service, &node, &mut page);
        wire(service, &node, &mut page);
        values(&node, &mut page);
        rebuild(&node, &mut page);
        readers(service, &node, &mut page);
        damage(&node, &mut page);
        memory(service, &node, &mut page);
    }
    page.finish()
}

fn commands(service: &Service, page: &mut Page) {
    let stats = service.commands.stats();
    let help = "Commands of clients that came here, by name.";
    let mut family = page.family("gabion_commands_total", COUNTER, help);
    for (name, row) in stats.rows() {
        family.sample(&[("command", name)], row.calls.get());
    }
    let help = "Commands that ended with an error, and those refused before they ran.";
    let mut family = page.family("gabion_command_errors_total", COUNTER, help);
    for (name, row) in stats.rows() {
        for (kind, count) in [("failed", &row.failed), ("rejected", &row.rejected)] {
            family.sample(&[("command", name), ("kind", kind)], count.get());
        }
    }
    let help = "From the arrival of a command at the replica that runs it to its end there. The \
                wait for other members is gabion_acknowledge_duration_seconds.";
    let mut family = page.family("gabion_command_duration_seconds", Kind::Histogram, help);
    for (name, row) in stats.rows().filter(|(_, row)| row.timed.get() > 0) {
        family.times(&[("command", name)], &row.buckets.counts(), row.ns.get());
    }
    let help = "Errors that clients were told, by their first word.";
    let mut family = page.family("gabion_errors_total", COUNTER, help);
    for (word, count) in stats.errors() {
        family.sample(&[("error", &word)], count);
    }
}

fn connections(service: &Service, page: &mut Page) {
    let traffic = &service.host.traffic;
    let clients = service.commands.clients_count();
    page.gauge("gabion_clients", "Connections of clients.", clients);
    let most = service.host.seats.most();
    page.gauge("gabion_clients_max", "Connections of clients that are accepted at most.", most);
    let help = "Connections of clients since the start, by what became of them.";
    let mut family = page.family("gabion_connections_total", COUNTER, help);
    family.sample(&[("result", "accepted")], traffic.accepted.get());
    family.sample(&[("result", "rejected")], traffic.rejected.get());
}

/// The device, as the probe's writes show it.
fn probe(service: &Service, page: &mut Page) {
    let (running_ms, refuses) = match service.control.probe() {
        Probe::Running(ms) => (ms, false),
        Probe::Refused => (0, true),
        Probe::Well | Probe::Full => (0, false),
    };
    let help = "For how long a probe write has not ended: a device that hangs.";
    page.gauge("gabion_device_probe_seconds", help, Number::ms(running_ms));
    page.gauge("gabion_device_refuses", "1 while the device refuses probe writes.", refuses);
}

fn view(service: &Service, node: &Node, page: &mut Page) {
    let group = node.view().group();
    let term = node.protocol().term().get();
    let is_ready = status::obstacle(service, node).is_none();
    page.gauge("gabion_ready", "1 where clients are served through this replica.", is_ready);
    page.gauge("gabion_readable", "1 where this replica may answer reads.", node.is_readable());
    page.gauge("gabion_term", "The highest term that is durable here.", term);
    page.gauge("gabion_config", "The number of the view in effect here.", group.config.get());
    let mine = role(node.view());
    let mut family = page.family("gabion_role", GAUGE, "1 for the role of this replica.");
    for role in ROLES {
        family.sample(&[("role", role)], role == mine);
    }
    let full = group.full().count();
    let help = "Members in the view in effect here, by whether they have all that the group has.";
    let mut family = page.family("gabion_members", GAUGE, help);
    family.sample(&[("state", "full")], full);
    family.sample(&[("state", "filling")], group.members.len() - full);
    let help = "Full members without which the group takes no writes.";
    page.gauge("gabion_members_min", help, u32::from(group.members_min));
    let ahead_s = service.clock.system_ahead_ms() as f64 / 1e3;
    let help = "By how much the system's clock is ahead of the group's.";
    page.gauge("gabion_clock_ahead_seconds", help, ahead_s);
}

/// The other members. Only the head, which hears of all, tells how far each is behind.
fn members(service: &Service, node: &Node, page: &mut Page) {
    let all = node.protocol().members();
    let others: Vec<_> = all.iter().filter(|it| it.id != node.id()).collect();
    let names: Vec<String> = others.iter().map(|it| it.id.get().to_string()).collect();
    let help = "1 where there is a connection with this other member.";
    let mut family = page.family("gabion_member_connected", GAUGE, help);
    for (member, name) in others.iter().zip(&names) {
        family.sample(&[("member", name)], member.is_connected);
    }
    if !node.duties().append {
        return;
    }
    let lags = status::lags(service, node);
    let help = "Bytes of the primary's log that a member has not acknowledged.";
    let mut family = page.family("gabion_member_lag_bytes", GAUGE, help);
    for lag in &lags {
        family.sample(&[("member", &lag.member.get().to_string())], lag.bytes);
    }
    let help = "Age of the oldest record of the primary's log that a member has not acknowledged.";
    let mut family = page.family("gabion_member_lag_seconds", GAUGE, help);
    for lag in &lags {
        family.sample(&[("member", &lag.member.get().to_string())], Number::ms(lag.ms));
    }
}

fn writes(service: &Service, node: &Node, page: &mut Page) {
    let counters = node.counters();
    let help = "Time in which a write waited at the primary, by reason; pace: slowed down.";
    let mut family = page.family("gabion_write_stall_seconds_total", COUNTER, help);
    for (reason, ms) in counters.writes_stopped_ms.each() {
        family.sample(&[("reason", reason)], Number::ms(ms));
    }
    family.sample(&[("reason", "pace")], Number::ms(counters.writes_slowed_ms));
    let refused = &service.metrics.refused;
    let help = "Writes that were refused, by reason: not_ready, the group takes none; full, the \
                pool has no room; queue, too many wait.";
    let mut family = page.family("gabion_writes_refused_total", COUNTER, help);
    family.sample(&[("reason", "not_ready")], refused.not_ready.get());
    family.sample(&[("reason", "full")], service.replica.store.refused_full());
    family.sample(&[("reason", "queue")], refused.queue.get());
    let (help, gate) = ("1 while a write that comes now would wait.", node.write_gate());
    let waits = matches!(gate, WriteGate::Wait(_)) && node.duties().append;
    page.gauge("gabion_writes_wait", help, waits);
    let help = "1 while a write that comes now would be refused for want of room.";
    page.gauge("gabion_writes_full", help, matches!(gate, WriteGate::Full { .. }));
    page.gauge("gabion_writes_waiting", "Writes that wait now.", service.gated.len());
    let help = "From the end of a turn with writes to its acknowledgement by all members, one for \
                each turn; many commands may share it.";
    let acknowledged = &service.metrics.acknowledged;
    let mut family = page.family("gabion_acknowledge_duration_seconds", Kind::Histogram, help);
    family.times(&[], &acknowledged.buckets.counts(), acknowledged.sum_ns());
    let help = "Sessions whose writes are known, so that none is made twice.";
    page.gauge("gabion_sessions", help, node.sessions());
}

fn log(node: &Node, page: &mut Page) {
    let progress = node.protocol().progress();
    let (end, durable) = (node.log_end().only().get(), progress.durable.only().get());
    let commit = node.protocol().commit().only().get();
    let trimmed = node.state().trimmed.position.get();
    let help = "Places in the log, as bytes since its beginning: its end here, up to where all \
                members have it, up to where it is durable here, and from where on it is kept.";
    let mut family = page.family("gabion_log_position_bytes", GAUGE, help);
    for (place, at) in
        [("end", end), ("commit", commit), ("durable", durable), ("trimmed", trimmed)]
    {
        family.sample(&[("place", place)], at);
    }
    let ring_len = node.config().ring_len;
    page.gauge("gabion_ring_bytes", "Length of the log's ring.", ring_len);
    let help = "Bytes of the ring that are not durable in segments yet.";
    page.gauge("gabion_ring_used_bytes", help, end.saturating_sub(durable).min(ring_len));
    let counters = node.counters();
    let help = "Bytes of records that came into the log.";
    page.counter("gabion_logged_bytes_total", help, counters.logged_bytes);
    let help = "Bytes of the log that were written to segments, whole blocks.";
    page.counter("gabion_log_written_bytes_total", help, counters.log_written_bytes);
}

fn tree(node: &Node, page: &mut Page) {
    let tree = node.tree();
    let active = tree.active_len();
    page.gauge("gabion_memtable_bytes", "Bytes in the MemTable that takes writes.", active);
    let help = "MemTables that wait for their flush.";
    page.gauge("gabion_memtables_sealed", help, tree.sealed_count());
    let levels = tree.level_stats();
    let names: Vec<String> = (0..levels.len()).map(|level| level.to_string()).collect();
    let mut family = page.family("gabion_level_files", GAUGE, "Files of the tree, by level.");
    for (level, name) in levels.iter().zip(&names) {
        family.sample(&[("level", name)], level.files);
    }
    let mut family = page.family("gabion_level_bytes", GAUGE, "Bytes of files, by level.");
    for (level, name) in levels.iter().zip(&names) {
        family.sample(&[("level", name)], level.bytes);
    }
    let help = "Bytes that compaction has to read before the tree has its shape.";
    page.gauge("gabion_compaction_debt_bytes", help, tree.compaction_debt());
    let keys = tree.key_estimate();
    page.gauge("gabion_keys", "About how many keys there are.", keys.keys);
    let help = "About how many of them may expire, at most.";
    page.gauge("gabion_keys_expiring", help, keys.expiring);
    let help = "Edits of the tree that were applied.";
    page.counter("gabion_edits_total", help, node.counters().edits);
}

fn jobs(node: &Node, page: &mut Page) {
    let counters = node.counters();
    page.counter("gabion_flushes_total", "Flushes done here.", counters.flushes);
    let help = "Time from the beginning of a flush to its edit.";
    page.counter("gabion_flush_seconds_total", help, Number::ms(counters.flush_ms));
    page.counter("gabion_flushed_bytes_total", "Bytes of flushed files.", counters.flushed_bytes);
    page.counter("gabion_compactions_total", "Compactions done here.", counters.compactions);
    let help = "Time from the beginning of a compaction to its edit.";
    page.counter("gabion_compaction_seconds_total", help, Number::ms(counters.compaction_ms));
    let help = "Bytes of files that compactions read.";
    page.counter("gabion_compaction_read_bytes_total", help, counters.job_read_bytes);
    let written = counters.job_written_bytes.saturating_sub(counters.flushed_bytes);
    let help = "Bytes of files that compactions wrote.";
    page.counter("gabion_compaction_written_bytes_total", help, written);
    let help = "Files that changed their level without being written again.";
    page.counter("gabion_trivial_moves_total", help, counters.trivial_moves);
    page.gauge("gabion_jobs_running", "Flushes and compactions under way.", node.jobs_running());
    let help = "Jobs that ended for want of room on the device.";
    page.counter("gabion_jobs_without_space_total", help, counters.jobs_without_space);
}

fn files(service: &Service, node: &Node, page: &mut Page) {
    let counts = node.pool().counts();
    let mut family = page.family("gabion_pool_slots", GAUGE, "Slots of the pool, by state.");
    for (state, count) in [
        ("free", counts.free),
        ("allocated", counts.allocated),
        ("granted", counts.granted),
        ("live", counts.live),
        ("retired", counts.retired),
        ("quarantined", counts.quarantined),
    ] {
        family.sample(&[("state", state)], count);
    }
    page.gauge("gabion_pool_slots_all", "Slots of the pool.", counts.total);
    let help = "Length of the pool's slots together.";
    page.gauge("gabion_pool_bytes", help, u64::from(counts.total) * SLOT_LEN);
    let help = "1 while the pool has fewer free slots than are kept for flushes and the log.";
    page.gauge("gabion_pool_short", help, node.is_short_of_room());
    let (cache, warmed) = (service.replica.cache.stats(), service.replica.cache.warmed());
    let help = "Blocks that readers found in memory.";
    page.counter("gabion_block_cache_hits_total", help, cache.hits);
    let help = "Blocks that readers had to read.";
    page.counter("gabion_block_cache_misses_total", help, cache.misses);
    let help = "Bytes of blocks that were put into the cache as files replaced others.";
    page.counter("gabion_warmed_bytes_total", help, warmed.bytes);
    let help = "Bytes of files that were read for clients.";
    let read = service.replica.store.tables().source.pool.meter.bytes();
    page.counter("gabion_client_read_bytes_total", help, read);
}

fn wire(service: &Service, node: &Node, page: &mut Page) {
    let (traffic, threads) = (&service.host.traffic, &service.replica.threads);
    let (ship, target) = (threads.ship.bytes(), threads.target.wire_bytes());
    let sent = ship.sent.load(Relaxed) + target.sent.load(Relaxed);
    let received = ship.received.load(Relaxed) + target.received.load(Relaxed);
    let help = "Bytes on the wire: with clients, with members for the log and messages, and with \
                members for files.";
    let mut family = page.family("gabion_wire_bytes_total", COUNTER, help);
    for (kind, direction, bytes) in [
        ("client", "sent", traffic.client_sent.get()),
        ("client", "received", traffic.client_received.get()),
        ("log", "sent", traffic.peer_sent.get()),
        ("log", "received", traffic.peer_received.get()),
        ("files", "sent", sent),
        ("files", "received", received),
    ] {
        family.sample(&[("kind", kind), ("direction", direction)], bytes);
    }
    let counters = node.counters();
    let help = "Bytes of files that were shipped to other members.";
    page.counter("gabion_shipped_bytes_total", help, counters.shipped_bytes);
    let help = "Bytes of files that other members shipped here.";
    page.counter("gabion_shipped_here_bytes_total", help, counters.received_bytes);
    let help = "Bytes of built files that wait in memory until every member has them.";
    page.gauge("gabion_unshipped_bytes", help, node.unshipped_bytes());
}

fn values(node: &Node, page: &mut Page) {
    let stats = node.tree().version().values_stats();
    page.gauge("gabion_values_files", "Files of large values.", stats.files);
    let help = "Bytes of large values, by whether a key still leads to them.";
    let mut family = page.family("gabion_values_bytes", GAUGE, help);
    family.sample(&[("state", "live")], stats.live_bytes);
    family.sample(&[("state", "dead")], stats.dead_bytes());
    let age_ms = |since_ms| node.tree().now_ms().saturating_sub(since_ms);
    let oldest_ms = stats.garbage_since_ms.map_or(0, age_ms);
    let help = "Age of the oldest garbage among large values.";
    page.gauge("gabion_values_garbage_age_seconds", help, Number::ms(oldest_ms));
    let help = "Bytes of large values that compactions copied out of files with garbage.";
    page.counter("gabion_values_collected_bytes_total", help, node.collected().0);
    let help = "Bytes a second that may be copied so at most; 0: no limit.";
    page.gauge("gabion_values_collection_limit_bytes", help, node.collection_rate());
}

fn rebuild(node: &Node, page: &mut Page) {
    let status = node.fill_status();
    let help = "1 while this member is being filled.";
    page.gauge("gabion_rebuild_active", help, status.is_some());
    let (all, done, reused) =
        status.as_ref().map_or((0, 0, 0), |it| (it.bytes, it.bytes_done, it.bytes_reused));
    page.gauge("gabion_rebuild_bytes", "Bytes of files that are to be here.", all);
    page.gauge("gabion_rebuild_done_bytes", "Bytes of those that are here.", done);
    let help = "Bytes of those that were here before.";
    page.gauge("gabion_rebuild_reused_bytes", help, reused);
    let failed = status.is_some_and(|it| it.failure.is_some());
    page.gauge("gabion_rebuild_failed", "1 where the last try to fill it failed.", failed);
}

fn readers(service: &Service, node: &Node, page: &mut Page) {
    let readers = node.readers();
    page.gauge("gabion_readers", "Reads that are under way.", readers.open);
    let help = "Age of the oldest read that is under way.";
    page.gauge("gabion_readers_oldest_seconds", help, Number::ms(readers.oldest_ms));
    let help = "Reads that were ended as they kept too much.";
    page.counter("gabion_readers_ended_total", help, readers.ended);
    let unread = service.sums.unread.get();
    page.gauge("gabion_replies_bytes", "Bytes of replies that clients have not read.", unread);
}

fn damage(node: &Node, page: &mut Page) {
    let counters = node.counters();
    let count = node.damaged_files().count();
    page.gauge("gabion_damaged_files", "Damaged files that are not repaired.", count);
    let help = "Damaged files that were repaired.";
    page.counter("gabion_repaired_files_total", help, counters.repaired_files);
    let help = "Slots that are not used until the next start, as the device failed to write them.";
    page.counter("gabion_refused_slots_total", help, counters.refused_slots);
    let fate = node.ring_loss().map(|loss| loss.fate_word());
    let help = "1 for what became of a ring that was lost: open, it is not known whether others \
                have it; gone, acknowledged writes may be missing.";
    let mut family = page.family("gabion_ring_lost", GAUGE, help);
    for name in FATES {
        family.sample(&[("fate", name)], fate == Some(name));
    }
}

fn memory(service: &Service, node: &Node, page: &mut Page) {
    let memory = service.host.memory(node);
    let help = "Memory of the replica by its own account, by what for.";
    let mut family = page.family("gabion_memory_bytes", GAUGE, help);
    for kind in &memory.kinds {
        family.sample(&[("kind", kind.name)], kind.bytes);
    }
    let help = "The most that it may be, where there is a bound.";
    let mut family = page.family("gabion_memory_max_bytes", GAUGE, help);
    for kind in &memory.kinds {
        if let Some(max) = kind.max {
            family.sample(&[("kind", kind.name)], max);
        }
    }
}

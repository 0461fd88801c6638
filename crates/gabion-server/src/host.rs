//! What commands may know of the process around them.

use crate::PeerAddress;
use crate::admin::place;
use crate::commands::{GroupShown, Host, MemberInfo, NotSet, ServerInfo, SlowlogLimits};
use crate::connections::Seats;
use crate::process;
use crate::replica::WhileOpen;
use crate::settings::{self, DoorSettings, Settings};
use crate::spread::Exchange;
use crate::status;
use crate::store::SharedNode;
use bytes::Bytes;
use gabion_base::units::VALUE_LEN_MAX;
use gabion_base::{Error, Frontier, ReplicaId};
use gabion_engine::Codecs;
use gabion_host::cache::SharedCache;
use gabion_host::clock::Clock;
use gabion_host::jobs::JobThreads;
use gabion_host::memory::{Budgets, Memory};
use gabion_media::BufferMeter;
use gabion_node::{AckLevel, Node};
use gabion_replication::MemberStatus;
use gabion_resp::limits::REQUEST_LEN_MAX;
use gabion_tls::ServerFiles;
use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Instant;

/// Bytes and connections of the doors since the start.
#[derive(Default)]
pub(crate) struct Traffic {
    pub(crate) client_sent: Cell<u64>,
    pub(crate) client_received: Cell<u64>,
    pub(crate) peer_sent: Cell<u64>,
    pub(crate) peer_received: Cell<u64>,
    pub(crate) accepted: Cell<u64>,
    pub(crate) rejected: Cell<u64>,
}

/// Commands per second, as Redis counts them: the mean of the last samples, one every 100 ms.
#[derive(Default)]
pub(crate) struct CommandRate {
    samples: [u64; 16],
    next: usize,
    /// Commands since the start, and when, at the last sample.
    last: (u64, u64),
}

impl CommandRate {
    /// Takes a sample, when it is time for one.
    pub(crate) fn sample(&mut self, now_us: u64, commands: u64) {
        let (before, then_us) = self.last;
        let passed_us = now_us.saturating_sub(then_us);
        if passed_us < 100_000 {
            return;
        }
        // CONFIG RESETSTAT counts from nothing again.
        self.samples[self.next] = commands.saturating_sub(before) * 1_000_000 / passed_us;
        self.next = (self.next + 1) % self.samples.len();
        self.last = (commands, now_us);
    }

    fn per_second(&self) -> u64 {
        self.samples.iter().sum::<u64>() / self.samples.len() as u64
    }
}

/// What commands may know of an open replica.
pub(crate) struct Shown {
    pub(crate) node: SharedNode,
    pub(crate) cache: Arc<SharedCache>,
    /// The threads of jobs, which are the replica's: they end when it does.
    pub(crate) jobs: Weak<RefCell<JobThreads>>,
    /// Buffers of all threads.
    pub(crate) buffers: Arc<BufferMeter>,
}

/// The process, as commands of one service see it.
pub(crate) struct ServerHost {
    pub(crate) replica: WhileOpen<Shown>,
    pub(crate) traffic: Traffic,
    pub(crate) rate: RefCell<CommandRate>,
    pub(crate) peers: Vec<PeerAddress>,
    pub(crate) resp: SocketAddr,
    /// The door where all is encrypted.
    pub(crate) tls: Option<(SocketAddr, ServerFiles)>,
    pub(crate) run_id: [u8; 16],
    /// Clients for which there are descriptors.
    pub(crate) clients_max: usize,
    /// Steps by which jobs stand back.
    pub(crate) jobs_nice: u8,
    /// Options of the door that CONFIG SET changes, `maxclients` aside.
    pub(crate) door: Cell<DoorSettings>,
    /// Connections at all doors of the process.
    pub(crate) seats: Rc<Seats>,
    /// From when on the time of commands is counted.
    pub(crate) began: Instant,
    pub(crate) now_us: Cell<u64>,
    pub(crate) clock: Arc<Clock>,
    /// The knowledge that the groups of the cluster have of each other.
    pub(crate) exchange: Rc<Exchange>,
}

impl ServerHost {
    pub(crate) fn set_now(&self, now_us: u64) {
        self.now_us.set(now_us);
    }

    /// Options of the door that CONFIG SET changes.
    pub(crate) fn door_settings(&self) -> DoorSettings {
        DoorSettings { clients_max: self.seats.most(), ..self.door.get() }
    }

    pub(crate) fn uptime_ms(&self) -> u64 {
        self.clock.running_us() / 1000
    }

    /// What memory the replica takes, by what for.
    pub(crate) fn memory(&self, node: &Node) -> Memory {
        let cache = &self.replica.cache;
        let budgets = Budgets {
            block_cache: (cache.stats().bytes, cache.capacity()),
            open_files: (cache.open_bytes(), cache.open_capacity()),
        };
        Memory::of(node, &self.replica.buffers, budgets)
    }

    /// Redis's options of TLS, as they are.
    fn tls_options(&self) -> [(&'static str, String); 5] {
        let files = self.tls.as_ref().map(|(_, files)| files);
        let path = |of: Option<&PathBuf>| of.map_or(String::new(), |it| it.display().to_string());
        let clients = files.map_or("yes", |files| files.clients.as_str());
        [
            ("tls-port", self.tls.as_ref().map_or(0, |(at, _)| at.port()).to_string()),
            ("tls-cert-file", path(files.map(|files| &files.certificate))),
            ("tls-key-file", path(files.map(|files| &files.key))),
            ("tls-ca-cert-file", path(files.and_then(|files| files.authorities.as_ref()))),
            ("tls-auth-clients", clients.to_owned()),
        ]
    }

    /// Where clients reach another member.
    fn address_of(&self, member: ReplicaId) -> Option<SocketAddr> {
        self.peers.iter().find(|peer| peer.replica == member).map(|peer| peer.resp)
    }

    /// The head, where that is another replica, and at the head those that have joined it and
    /// those that are being filled: nobody else knows.
    fn members(&self, node: &Node) -> (Option<MemberInfo>, Vec<MemberInfo>) {
        let (me, head) = (node.id(), node.view().writer());
        let is_full = |id| node.view().group().full().any(|member| member.replica == id);
        let has_joined = node.protocol().is_joined();
        let mut of_head = None;
        let mut joined = Vec::new();
        for member in node.protocol().members().iter().filter(|member| member.id != me) {
            let is_up = member.is_connected && has_joined;
            if member.id == head {
                of_head = self.member(member, is_up, true);
            } else if node.duties().append {
                let is_full = is_full(member.id);
                // One that is being filled has joined nothing yet.
                let is_there = member.is_joined || member.is_connected && !is_full;
                joined.extend(self.member(member, true, is_full).filter(|_| is_there));
            }
        }
        // A replica that is left out has no connection with it.
        let unknown = || {
            let address = self.address_of(head).filter(|_| head != me)?;
            let silent_s = self.uptime_ms() / 1_000;
            Some(MemberInfo { address, is_up: false, is_full: true, log_position: 0, silent_s })
        };
        (of_head.or_else(unknown), joined)
    }

    fn member(&self, member: &MemberStatus, is_up: bool, is_full: bool) -> Option<MemberInfo> {
        let address = self.address_of(member.id)?;
        Some(MemberInfo {
            address,
            is_up,
            is_full,
            log_position: member
                .progress
                .map_or(0, |progress| progress.end.bytes_since(&Frontier::ZERO)),
            silent_s: (self.now_us.get() / 1000).saturating_sub(member.last_heard_ms) / 1000,
        })
    }
}

impl Host for ServerHost {
    fn unix_time_us(&self) -> u64 {
        self.now_us.get()
    }

    fn system_time_us(&self) -> u64 {
        self.clock.system_us()
    }

    fn replicas(&self) -> u32 {
        self.replica.node.borrow().view().group().full().count() as u32
    }

    fn is_head(&self) -> bool {
        self.replica.node.borrow().duties().append
    }

    fn acknowledges_durable(&self) -> bool {
        self.replica.node.borrow().config().ack == AckLevel::Durable
    }

    #[inline]
    fn clock_ns(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }

    #[inline]
    fn slowlog(&self) -> SlowlogLimits {
        self.door.get().slowlog
    }

    fn options(&self) -> Vec<(String, String)> {
        let node = self.replica.node.borrow();
        let config = node.config();
        let settings = Settings::of(&node, &self.replica.cache, self.door_settings());
        let Codecs { upper, bottom } = settings.codecs;
        let limits = settings.limits;
        let bottom = bottom.map_or(settings::SAME.to_owned(), |codec| codec.to_string());
        let head = (!node.duties().append).then(|| self.address_of(node.view().writer())).flatten();
        let head = head.map_or(String::new(), |at| format!("{} {}", at.ip(), at.port()));
        let options = [
            ("bind", self.resp.ip().to_string()),
            ("cluster-enabled", if self.exchange.is_of_several() { "yes" } else { "no" }.into()),
            ("client-query-buffer-limit", REQUEST_LEN_MAX.to_string()),
            ("proto-max-bulk-len", VALUE_LEN_MAX.to_string()),
            (settings::CLIENTS_MAX, settings.door.clients_max.to_string()),
            ("port", self.resp.port().to_string()),
            ("replicaof", head.clone()),
            ("slaveof", head),
            (settings::SLOWLOG_SLOWER_THAN, settings.door.slowlog.slower_than_us.to_string()),
            (settings::SLOWLOG_LEN, settings.door.slowlog.entries_max.to_string()),
            (settings::TCP_KEEPALIVE, settings.door.keepalive_s.to_string()),
            (settings::TIMEOUT, settings.door.timeout_s.to_string()),
            ("gabion-ack", config.ack.as_str().into()),
            (settings::BLOCK_CACHE_BYTES, settings.block_cache_bytes.to_string()),
            (settings::BOTTOM_COMPRESSION, bottom),
            (settings::COLLECTION_RATE, settings.collection_rate.to_string()),
            (settings::COMPRESSION, upper.to_string()),
            ("gabion-compaction", config.compaction.as_str().into()),
            (settings::COMPACTIONS_MAX, settings.compactions_max.to_string()),
            ("gabion-group", config.group.get().to_string()),
            ("gabion-jobs-nice", self.jobs_nice.to_string()),
            (settings::L0_SLOWDOWN, limits.l0_slowdown.to_string()),
            (settings::L0_STOP, limits.l0_stop.to_string()),
            (settings::L0_TRIGGER, limits.l0_trigger.to_string()),
            (settings::MEMTABLE_BYTES, limits.memtable_len.to_string()),
            (settings::OPEN_FILES_BYTES, settings.open_files_bytes.to_string()),
            (settings::READER_AGE_MS, settings.readers.age_ms_max.to_string()),
            (settings::READER_STATES, settings.readers.states_max.to_string()),
            (settings::REBUILD_RATE, settings.rebuild_rate.to_string()),
            (settings::VALUE_COMPRESSION, settings.value_codec.to_string()),
        ];
        let tls = self.tls_options().into_iter();
        let fixed = settings::FIXED.into_iter().map(|(name, value)| (name, value.to_owned()));
        options
            .into_iter()
            .chain(tls)
            .chain(fixed)
            .map(|(name, value)| (name.to_owned(), value))
            .collect()
    }

    fn set_options(&self, options: &[(Bytes, Bytes)]) -> Result<(), NotSet> {
        let before =
            Settings::of(&self.replica.node.borrow(), &self.replica.cache, self.door_settings());
        let all = self.options();
        let value = |name: &str| {
            let found = all.iter().find(|(other, _)| other == name);
            found.map(|(_, value)| value.as_str())
        };
        let settings = before.with(options, value)?;
        let grow = |count| match self.replica.jobs.upgrade() {
            Some(jobs) => jobs.borrow_mut().grow(count),
            None => Err(Error::unavailable("the threads of jobs have ended")),
        };
        settings.apply(
            &mut self.replica.node.borrow_mut(),
            &self.replica.cache,
            self.clients_max,
            grow,
        )?;
        self.door.set(settings.door);
        self.seats.set_most(settings.door.clients_max);
        Ok(())
    }

    fn cluster(&self) -> Option<(Vec<GroupShown>, u32)> {
        let groups = Some(self.exchange.groups()).filter(|groups| !groups.is_empty())?;
        Some((groups, self.replica.node.borrow().id().get()))
    }

    fn info(&self) -> ServerInfo {
        let cpu = process::cpu();
        let node = self.replica.node.borrow();
        let me = node.id();
        let (head, replicas) = self.members(&node);
        let view = node.view();
        let (counters, readers, memory) = (node.counters(), node.readers(), self.memory(&node));
        let (cache, warmed) = (self.replica.cache.stats(), self.replica.cache.warmed());
        let stopped = counters.writes_stopped_ms;
        let by_what: Vec<_> = stopped.each().map(|(what, ms)| format!("{what}={ms}")).collect();
        let keys = node.tree().key_estimate();
        let uptime_s = self.uptime_ms() / 1000;
        let us = |seconds: f64| (seconds * 1e6) as u64;
        ServerInfo {
            version: env!("CARGO_PKG_VERSION").into(),
            run_id: self.run_id.iter().map(|byte| format!("{byte:02x}")).collect::<String>()
                + &format!("{:08x}", std::process::id()),
            os: format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
            process_id: std::process::id(),
            tcp_port: self.resp.port(),
            uptime_s,
            maxclients: self.seats.most() as u64,
            memory_resident: gabion_proc::memory_bytes(),
            memory_used: memory.bytes(),
            memory_max: 0,
            memory_kinds: memory.kinds.iter().map(|kind| (kind.name, kind.bytes)).collect(),
            connections_received: self.traffic.accepted.get(),
            connections_rejected: self.traffic.rejected.get(),
            net_input_bytes: self.traffic.client_received.get(),
            net_output_bytes: self.traffic.client_sent.get(),
            ops_per_second: self.rate.borrow().per_second(),
            cpu_user_us: us(cpu.user),
            cpu_system_us: us(cpu.system),
            head,
            filling: node.fill_status().map(|status| (status.bytes, status.bytes_done)),
            replicas,
            log_position: node.log_end().bytes_since(&Frontier::ZERO),
            group: node.config().group.get(),
            keys: keys.keys,
            expiring_keys: keys.expiring,
            gabion: values_lines(&node)
                .into_iter()
                .chain([
                    ("replica", me.get().to_string()),
                    ("membership", status::membership(view).to_owned()),
                    ("config", node.view().group().config.get().to_string()),
                    ("term", node.protocol().term().get().to_string()),
                    ("log_end", place(&node.log_end()).to_string()),
                    ("log_commit", place(&node.protocol().commit()).to_string()),
                    ("flushes", counters.flushes.to_string()),
                    ("compactions", counters.compactions.to_string()),
                    ("shipped_bytes", counters.shipped_bytes.to_string()),
                    ("edits", counters.edits.to_string()),
                    ("writes_slowed_ms", counters.writes_slowed_ms.to_string()),
                    ("writes_stopped_ms", stopped.total().to_string()),
                    ("writes_stopped_ms_by", by_what.join(",")),
                    ("readers_open", readers.open.to_string()),
                    ("readers_oldest_ms", readers.oldest_ms.to_string()),
                    ("readers_ended", readers.ended.to_string()),
                    ("block_cache_hits", cache.hits.to_string()),
                    ("block_cache_misses", cache.misses.to_string()),
                    ("warmed_blocks", warmed.blocks.to_string()),
                    ("warmed_bytes", warmed.bytes.to_string()),
                    ("damaged_files", node.damaged_files().count().to_string()),
                    ("repaired_files", counters.repaired_files.to_string()),
                    ("rotten_buffers", counters.rotten_buffers.to_string()),
                ])
                .collect(),
        }
    }
}

/// The lines of INFO on large values.
fn values_lines(node: &Node) -> [(&'static str, String); 5] {
    let values = node.tree().version().values_stats();
    let (collected, collected_per_s) = node.collected();
    let age_ms = |since_ms| node.tree().now_ms().saturating_sub(since_ms);
    let oldest_ms = values.garbage_since_ms.map_or(0, age_ms);
    [
        ("values_live_bytes", values.live_bytes.to_string()),
        ("values_dead_bytes", values.dead_bytes().to_string()),
        ("values_oldest_garbage_ms", oldest_ms.to_string()),
        ("values_collected_bytes", collected.to_string()),
        ("values_collected_bytes_per_s", collected_per_s.to_string()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_the_mean_of_the_last_samples() {
        let mut rate = CommandRate { last: (0, 1_000_000), ..CommandRate::default() };
        let (mut now_us, mut commands) = (1_000_000, 0);
        let mut pass = |ticks: u32, more: u64| {
            for _ in 0..ticks {
                now_us += 20_000;
                commands += more;
                rate.sample(now_us, commands);
            }
            rate.per_second()
        };
        assert_eq!(pass(80, 5), 250);
        assert_eq!(pass(40, 0), 125, "half of the samples are of a time without commands");
        assert_eq!(pass(80, 0), 0);
        // The counters began anew.
        commands = 0;
        rate.sample(now_us + 100_000, commands);
        assert_eq!(rate.per_second(), 0);
    }
}

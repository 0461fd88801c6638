//! INFO: numbers about the node, in Redis's sections and under Redis's names where it has them.

use super::{Commands, Host, REDIS_VERSION};
use bytes::Bytes;
use core::fmt::{Display, Write};
use gabion_resp::Reply;
use std::net::SocketAddr;

/// What the server knows and INFO shows.
#[derive(Clone, Debug, Default)]
pub struct ServerInfo {
    /// Gabion's own version.
    pub version: String,
    /// Name of this start of the process: 40 hexadecimal digits.
    pub run_id: String,
    /// Operating system and machine.
    pub os: String,
    /// The process.
    pub process_id: u32,
    /// The port of the RESP door.
    pub tcp_port: u16,
    /// Seconds since the start.
    pub uptime_s: u64,
    /// Most connections.
    pub maxclients: u64,
    /// Resident memory in bytes.
    pub memory_resident: u64,
    /// Memory that the replica takes by its own account, the ring included, in bytes.
    pub memory_used: u64,
    /// The same by what for, in bytes.
    pub memory_kinds: Vec<(&'static str, u64)>,
    /// The memory budget in bytes; 0: none.
    pub memory_max: u64,
    /// Connections since the start.
    pub connections_received: u64,
    /// Connections refused since the start.
    pub connections_rejected: u64,
    /// Bytes read from clients.
    pub net_input_bytes: u64,
    /// Bytes written to clients.
    pub net_output_bytes: u64,
    /// Commands per second, lately.
    pub ops_per_second: u64,
    /// Processor time of the process in user mode, in microseconds.
    pub cpu_user_us: u64,
    /// Processor time of the process in the kernel, in microseconds.
    pub cpu_system_us: u64,
    /// The head of the group, where that is another node.
    pub head: Option<MemberInfo>,
    /// Bytes that this node copies as a member that is being filled, and how many it has; none at
    /// any other.
    pub filling: Option<(u64, u64)>,
    /// The other replicas that take part now, as the head knows them; nobody elsewhere.
    pub replicas: Vec<MemberInfo>,
    /// The last position of the log at this node.
    pub log_position: u64,
    /// The group, whose members share one log: the history of writes in Redis's terms.
    pub group: u64,
    /// About how many keys there are: what was deleted or set again counts until it is compacted.
    pub keys: u64,
    /// About how many of those may expire, at most.
    pub expiring_keys: u64,
    /// Lines of the section `gabion`: names without blanks or colons, and values.
    pub gabion: Vec<(&'static str, String)>,
}

/// Another member of the group.
#[derive(Clone, Copy, Debug)]
pub struct MemberInfo {
    /// Its door for clients.
    pub address: SocketAddr,
    /// It and this node take part together.
    pub is_up: bool,
    /// It has all that the group has, or else is being filled.
    pub is_full: bool,
    /// The last position of the log there, as far as it is known here.
    pub log_position: u64,
    /// Time since it was heard last, in seconds.
    pub silent_s: u64,
}

/// Sections in the order of INFO; the flag says whether it is shown without being asked for.
const SECTIONS: [(&str, bool); 13] = [
    ("server", true),
    ("clients", true),
    ("memory", true),
    ("persistence", true),
    ("stats", true),
    ("replication", true),
    ("cpu", true),
    ("modules", true),
    ("commandstats", false),
    ("errorstats", true),
    ("cluster", true),
    ("keyspace", true),
    ("gabion", true),
];
/// How often a second the loop looks whether anything is due.
const HZ: u32 = 50;

/// The text under construction.
struct Lines(String);

impl Lines {
    fn line(&mut self, name: &str, value: impl Display) {
        // Writing to a String cannot fail.
        let _ = write!(self.0, "{name}:{value}\r\n");
    }
}

impl Commands {
    pub(crate) fn info(&self, wanted: &[Bytes], host: &impl Host) -> Reply {
        let wants = |word: &str| wanted.iter().any(|w| w.eq_ignore_ascii_case(word.as_bytes()));
        let wants_all = wants("all") || wants("everything");
        let wants_default = wanted.is_empty() || wants("default");
        let info = host.info();
        let mut out = Lines(String::new());
        for (section, is_default) in SECTIONS {
            if !(wants_all || wants(section) || is_default && wants_default) {
                continue;
            }
            if !out.0.is_empty() {
                out.0.push_str("\r\n");
            }
            let title = section[..1].to_ascii_uppercase() + &section[1..];
            let _ = write!(out.0, "# {title}\r\n");
            self.info_section(section, &info, host, &mut out);
        }
        Reply::Verbatim(*b"txt", Bytes::from(out.0))
    }

    fn info_section(&self, section: &str, info: &ServerInfo, host: &impl Host, out: &mut Lines) {
        match section {
            "server" => server(info, host.system_time_us(), out),
            "clients" => self.clients_section(info, out),
            "memory" => {
                memory(info, out);
                let (count, bytes) = self.scripts.stats();
                out.line("number_of_cached_scripts", count);
                out.line("used_memory_scripts", bytes);
            }
            "persistence" => persistence(info, host.unix_time_us(), out),
            "stats" => self.stats_section(info, out),
            "replication" => replication(info, host.is_head(), out),
            "cpu" => {
                out.line("used_cpu_sys", seconds(info.cpu_system_us));
                out.line("used_cpu_user", seconds(info.cpu_user_us));
                out.line("used_cpu_sys_children", seconds(0));
                out.line("used_cpu_user_children", seconds(0));
            }
            // There are none.
            "modules" => {}
            "commandstats" => self.command_stats(out),
            "errorstats" => {
                for (word, count) in self.stats.errors() {
                    out.line(&format!("errorstat_{word}"), format_args!("count={count}"));
                }
            }
            "cluster" => out.line("cluster_enabled", u8::from(self.is_cluster())),
            "keyspace" => {
                if info.keys > 0 {
                    let (keys, expires) = (info.keys, info.expiring_keys);
                    let text = format_args!("keys={keys},expires={expires},avg_ttl=0,estimate=1");
                    out.line("db0", text);
                }
            }
            _ => info.gabion.iter().for_each(|(name, value)| out.line(name, value)),
        }
    }

    fn clients_section(&self, info: &ServerInfo, out: &mut Lines) {
        let clients = self.clients.borrow();
        let watched = clients.values().map(|client| client.watched.get());
        out.line("connected_clients", clients.len());
        out.line("cluster_connections", 0);
        out.line("maxclients", info.maxclients);
        out.line("blocked_clients", self.locks.len());
        out.line("tracking_clients", 0);
        out.line("pubsub_clients", 0);
        out.line("watching_clients", watched.clone().filter(|count| *count > 0).count());
        out.line("clients_in_timeout_table", 0);
        out.line("total_watched_keys", watched.sum::<usize>());
        out.line("total_blocking_keys", 0);
    }

    fn stats_section(&self, info: &ServerInfo, out: &mut Lines) {
        out.line("total_connections_received", info.connections_received);
        out.line("total_commands_processed", self.calls_count());
        out.line("instantaneous_ops_per_sec", info.ops_per_second);
        out.line("total_net_input_bytes", info.net_input_bytes);
        out.line("total_net_output_bytes", info.net_output_bytes);
        out.line("rejected_connections", info.connections_rejected);
        out.line("evicted_keys", 0);
        out.line("evicted_clients", 0);
        out.line("pubsub_channels", 0);
        out.line("pubsub_patterns", 0);
        out.line("pubsubshard_channels", 0);
        out.line("latest_fork_usec", 0);
        out.line("total_forks", 0);
        out.line("tracking_total_keys", 0);
        out.line("total_error_replies", self.stats.errors_total());
    }

    fn command_stats(&self, out: &mut Lines) {
        for (name, row) in self.stats.rows() {
            let (calls, us) = (row.calls.get(), row.ns.get() / 1000);
            let (rejected, failed) = (row.rejected.get(), row.failed.get());
            // A write that came here may have been run elsewhere, and what was run here may have come in elsewhere.
            let per_call = row.ns.get() as f64 / 1e3 / row.timed.get().max(1) as f64;
            out.line(
                &format!("cmdstat_{name}"),
                format_args!(
                    "calls={calls},usec={us},usec_per_call={per_call:.2},rejected_calls={rejected},failed_calls={failed}"
                ),
            );
        }
    }
}

fn server(info: &ServerInfo, now_us: u64, out: &mut Lines) {
    out.line("redis_version", REDIS_VERSION);
    out.line("redis_git_sha1", "00000000");
    out.line("redis_git_dirty", 0);
    out.line("redis_build_id", 0);
    out.line("redis_mode", "standalone");
    out.line("gabion_version", &info.version);
    out.line("os", &info.os);
    out.line("arch_bits", usize::BITS);
    out.line("multiplexing_api", "epoll");
    out.line("process_id", info.process_id);
    out.line("process_supervised", "no");
    out.line("run_id", &info.run_id);
    out.line("tcp_port", info.tcp_port);
    out.line("server_time_usec", now_us);
    out.line("uptime_in_seconds", info.uptime_s);
    out.line("uptime_in_days", info.uptime_s / 86_400);
    out.line("hz", HZ);
    out.line("configured_hz", HZ);
    out.line("config_file", "");
}

fn memory(info: &ServerInfo, out: &mut Lines) {
    out.line("used_memory", info.memory_used);
    out.line("used_memory_human", human(info.memory_used));
    out.line("used_memory_rss", info.memory_resident);
    out.line("used_memory_rss_human", human(info.memory_resident));
    out.line("maxmemory", info.memory_max);
    out.line("maxmemory_human", human(info.memory_max));
    out.line("maxmemory_policy", "noeviction");
    let ratio = info.memory_resident as f64 / info.memory_used.max(1) as f64;
    out.line("mem_fragmentation_ratio", format_args!("{ratio:.2}"));
    for (kind, bytes) in &info.memory_kinds {
        out.line(&format!("gabion_{kind}"), bytes);
    }
}

/// Everything is in the log before it is acknowledged, so there is nothing to save and nothing that was not.
fn persistence(info: &ServerInfo, now_us: u64, out: &mut Lines) {
    out.line("loading", 0);
    out.line("async_loading", 0);
    out.line("rdb_changes_since_last_save", 0);
    out.line("rdb_bgsave_in_progress", 0);
    out.line("rdb_last_save_time", (now_us / 1_000_000).saturating_sub(info.uptime_s));
    out.line("rdb_last_bgsave_status", "ok");
    out.line("aof_enabled", 1);
    out.line("aof_rewrite_in_progress", 0);
    out.line("aof_rewrite_scheduled", 0);
    out.line("aof_last_bgrewrite_status", "ok");
    out.line("aof_last_write_status", "ok");
}

/// The group in Redis's terms. Every node takes writes, so the others are slaves that are not read-only.
fn replication(info: &ServerInfo, is_head: bool, out: &mut Lines) {
    out.line("role", if is_head { "master" } else { "slave" });
    if let Some(head) = &info.head {
        out.line("master_host", head.address.ip());
        out.line("master_port", head.address.port());
        // As in Redis, whose replicas that are synchronized have no link yet.
        let is_up = head.is_up && info.filling.is_none();
        out.line("master_link_status", if is_up { "up" } else { "down" });
        out.line("master_last_io_seconds_ago", head.silent_s);
        out.line("master_sync_in_progress", u8::from(info.filling.is_some()));
        out.line("slave_read_repl_offset", info.log_position);
        out.line("slave_repl_offset", info.log_position);
        if let Some((bytes, done)) = info.filling {
            let percent = done as f64 * 100.0 / bytes.max(1) as f64;
            out.line("master_sync_total_bytes", bytes);
            out.line("master_sync_read_bytes", done);
            out.line("master_sync_left_bytes", bytes.saturating_sub(done));
            out.line("master_sync_perc", format_args!("{percent:.2}"));
            out.line("master_sync_last_io_seconds_ago", head.silent_s);
        }
        out.line("slave_priority", 100);
        out.line("slave_read_only", 0);
        out.line("replica_announced", 1);
    }
    out.line("connected_slaves", info.replicas.len());
    for (i, replica) in info.replicas.iter().enumerate() {
        let (ip, port) = (replica.address.ip(), replica.address.port());
        let (offset, lag) = (replica.log_position, replica.silent_s);
        let state = if replica.is_full { "online" } else { "send_bulk" };
        out.line(
            &format!("slave{i}"),
            format_args!("ip={ip},port={port},state={state},offset={offset},lag={lag}"),
        );
    }
    out.line("master_failover_state", "no-failover");
    // Whoever shares the history has the same.
    out.line("master_replid", format_args!("{:040x}", info.group));
    out.line("master_replid2", format_args!("{:040x}", 0));
    out.line("master_repl_offset", info.log_position);
    out.line("second_repl_offset", -1);
    out.line("repl_backlog_active", 0);
}

/// Bytes as Redis shows them to people.
fn human(bytes: u64) -> String {
    let units = [('T', 1_u64 << 40), ('G', 1 << 30), ('M', 1 << 20), ('K', 1 << 10)];
    match units.into_iter().find(|(_, unit)| bytes >= *unit) {
        Some((name, unit)) => format!("{:.2}{name}", bytes as f64 / unit as f64),
        None => format!("{bytes}B"),
    }
}

/// Microseconds as seconds with all their digits.
fn seconds(us: u64) -> String {
    format!("{}.{:06}", us / 1_000_000, us % 1_000_000)
}

//! INFO: numbers about the node, in Redis's sections and under Redis's names where it has them.

use super::{Commands, Host, REDIS_VERSION, TABLE};
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
    /// The other replicas that take part now, as the head knows them; nobody elsewhere.
    pub replicas: Vec<MemberInfo>,
    /// The last position of the log at this node.
    pub log_position: u64,
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
    /// The last position of the log there, as far as it is known here.
    pub log_position: u64,
    /// Time since it was heard last, in seconds.
    pub silent_s: u64,
}

/// Sections in the order of INFO; the flag says whether it is shown without being asked for.
const SECTIONS: [(&str, bool); 9] = [
    ("server", true),
    ("clients", true),
    ("memory", true),
    ("persistence", true),
    ("stats", true),
    ("replication", true),
    ("cpu", true),
    ("commandstats", false),
    ("gabion", true),
];

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
            "clients" => {
                out.line("connected_clients", self.clients_count());
                out.line("maxclients", info.maxclients);
                out.line("blocked_clients", self.locks.len());
            }
            "memory" => {
                out.line("used_memory", info.memory_used);
                out.line("used_memory_rss", info.memory_resident);
                out.line("maxmemory", info.memory_max);
                out.line("maxmemory_policy", "noeviction");
                for (kind, bytes) in &info.memory_kinds {
                    out.line(&format!("gabion_{kind}"), bytes);
                }
            }
            "persistence" => {
                // Everything is in the log before it is acknowledged.
                out.line("loading", 0);
                out.line("rdb_bgsave_in_progress", 0);
                out.line("aof_enabled", 1);
                out.line("aof_rewrite_in_progress", 0);
            }
            "stats" => {
                out.line("total_connections_received", info.connections_received);
                out.line("total_commands_processed", self.calls_count());
                out.line("instantaneous_ops_per_sec", info.ops_per_second);
                out.line("total_net_input_bytes", info.net_input_bytes);
                out.line("total_net_output_bytes", info.net_output_bytes);
                out.line("rejected_connections", info.connections_rejected);
            }
            "replication" => replication(info, host.is_head(), out),
            "cpu" => {
                out.line("used_cpu_sys", seconds(info.cpu_system_us));
                out.line("used_cpu_user", seconds(info.cpu_user_us));
            }
            "commandstats" => self.command_stats(out),
            _ => info.gabion.iter().for_each(|(name, value)| out.line(name, value)),
        }
    }

    fn command_stats(&self, out: &mut Lines) {
        for (spec, row) in TABLE.iter().zip(&self.stats.rows) {
            let (calls, rejected) = (row.calls.get(), row.rejected.get());
            if calls + rejected > 0 {
                let failed = row.failed.get();
                out.line(
                    &format!("cmdstat_{}", spec.name),
                    format_args!("calls={calls},rejected_calls={rejected},failed_calls={failed}"),
                );
            }
        }
    }
}

fn server(info: &ServerInfo, now_us: u64, out: &mut Lines) {
    out.line("redis_version", REDIS_VERSION);
    out.line("redis_mode", "standalone");
    out.line("gabion_version", &info.version);
    out.line("os", &info.os);
    out.line("arch_bits", usize::BITS);
    out.line("process_id", info.process_id);
    out.line("run_id", &info.run_id);
    out.line("tcp_port", info.tcp_port);
    out.line("server_time_usec", now_us);
    out.line("uptime_in_seconds", info.uptime_s);
    out.line("uptime_in_days", info.uptime_s / 86_400);
}

/// The group in Redis's terms. Every node takes writes, so the others are slaves that are not read-only.
fn replication(info: &ServerInfo, is_head: bool, out: &mut Lines) {
    out.line("role", if is_head { "master" } else { "slave" });
    if let Some(head) = &info.head {
        out.line("master_host", head.address.ip());
        out.line("master_port", head.address.port());
        out.line("master_link_status", if head.is_up { "up" } else { "down" });
        out.line("master_last_io_seconds_ago", head.silent_s);
        out.line("master_sync_in_progress", 0);
        out.line("slave_repl_offset", info.log_position);
        out.line("slave_read_only", 0);
    }
    out.line("connected_slaves", info.replicas.len());
    for (i, replica) in info.replicas.iter().enumerate() {
        let (ip, port) = (replica.address.ip(), replica.address.port());
        let (offset, lag) = (replica.log_position, replica.silent_s);
        out.line(
            &format!("slave{i}"),
            format_args!("ip={ip},port={port},state=online,offset={offset},lag={lag}"),
        );
    }
    out.line("master_repl_offset", info.log_position);
}

/// Microseconds as seconds with all their digits.
fn seconds(us: u64) -> String {
    format!("{}.{:06}", us / 1_000_000, us % 1_000_000)
}

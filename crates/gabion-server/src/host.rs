//! What commands may know of the process around them.

use crate::commands::{Host, ServerInfo};
use crate::process;
use crate::store::SharedNode;
use std::cell::Cell;
use std::net::SocketAddr;

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

/// The process, as commands see it.
pub(crate) struct ServerHost {
    pub(crate) node: SharedNode,
    pub(crate) traffic: Traffic,
    pub(crate) resp: SocketAddr,
    pub(crate) started_us: u64,
    pub(crate) run_id: [u8; 16],
    pub(crate) block_cache_bytes: usize,
    pub(crate) clients_max: usize,
    pub(crate) now_us: Cell<u64>,
}

impl ServerHost {
    pub(crate) fn set_now(&self, now_us: u64) {
        self.now_us.set(now_us);
    }

    pub(crate) fn uptime_ms(&self) -> u64 {
        (self.now_us.get() - self.started_us) / 1000
    }
}

impl Host for ServerHost {
    fn unix_time_us(&self) -> u64 {
        self.now_us.get()
    }

    fn replicas(&self) -> u32 {
        self.node.borrow().config().members.len() as u32
    }

    fn options(&self) -> Vec<(String, String)> {
        let node = self.node.borrow();
        let config = node.config();
        let options: [(&str, String); 14] = [
            ("appendfsync", "everysec".into()),
            ("appendonly", "yes".into()),
            ("bind", self.resp.ip().to_string()),
            ("databases", "1".into()),
            ("maxclients", self.clients_max.to_string()),
            ("maxmemory", "0".into()),
            ("maxmemory-policy", "noeviction".into()),
            ("port", self.resp.port().to_string()),
            ("save", String::new()),
            ("gabion-ack", config.ack.as_str().into()),
            ("gabion-block-cache-bytes", self.block_cache_bytes.to_string()),
            ("gabion-compaction", config.compaction.as_str().into()),
            ("gabion-group", config.group.get().to_string()),
            ("gabion-memtable-bytes", config.tree.memtable_len.to_string()),
        ];
        options.map(|(name, value)| (name.to_owned(), value)).into()
    }

    fn info(&self) -> ServerInfo {
        let cpu = process::cpu();
        let node = self.node.borrow();
        let me = node.id();
        let connected = node.chain().members().filter(|m| m.id != me && m.is_joined).count();
        let counters = node.counters();
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
            maxclients: self.clients_max as u64,
            memory_resident: process::memory_bytes(),
            memory_used: node.tree().active_len()
                + node.tree().sealed_count() as u64 * node.config().tree.memtable_len
                + self.block_cache_bytes as u64
                + node.config().ring_len,
            memory_max: 0,
            connections_received: self.traffic.accepted.get(),
            connections_rejected: self.traffic.rejected.get(),
            net_input_bytes: self.traffic.client_received.get(),
            net_output_bytes: self.traffic.client_sent.get(),
            ops_per_second: 0,
            cpu_user_us: us(cpu.user),
            cpu_system_us: us(cpu.system),
            is_head: node.is_head(),
            connected_replicas: connected as u32,
            log_position: node.log_end().get(),
            keys_estimate: None,
            gabion: vec![
                ("replica", me.get().to_string()),
                ("term", node.chain().term().get().to_string()),
                ("log_end", node.log_end().get().to_string()),
                ("log_commit", node.chain().commit().get().to_string()),
                ("flushes", counters.flushes.to_string()),
                ("compactions", counters.compactions.to_string()),
                ("shipped_bytes", counters.shipped_bytes.to_string()),
                ("edits", counters.edits.to_string()),
            ],
        }
    }
}

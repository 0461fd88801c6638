//! One replica of a group on this machine, for trying things out: `replica DIR ID COUNT BASE_PORT`
//! makes the replica in `DIR/ID` if it is not there and runs it. Doors: BASE_PORT + 10·ID for
//! clients, + 1 for members, + 2 for the target. `DURABLE=1`, `EVERY_REPLICA=1`, `POOL_MIB=n`,
//! `MEMTABLE_KIB=n` change the group.
#![allow(clippy::disallowed_methods, reason = "a program")]

use gabion_base::units::{KIB, MIB};
use gabion_base::{Error, GroupId, ReplicaId, Result};
use gabion_engine::TreeConfig;
use gabion_engine::cache::OPEN_FILES_LEN;
use gabion_node::{AckLevel, CompactionMode, GroupConfig, NodeOptions};
use gabion_server::{
    BackendChoice, ExitReason, Home, PeerAddress, SecurityConfig, ServerConfig, create_replica,
    exit_code, run,
};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

fn main() -> ExitCode {
    let result = try_main();
    match &result {
        Ok(ExitReason::Signal) => {}
        Ok(ExitReason::Failed(error) | ExitReason::Damaged { error, .. }) | Err(error) => {
            eprintln!("{error}")
        }
    }
    ExitCode::from(exit_code(&result))
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

fn try_main() -> Result<ExitReason> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [dir, id, count, base] = &args[..] else {
        return Err(Error::invalid("usage: replica DIR ID COUNT BASE_PORT"));
    };
    let parse = |text: &String| {
        text.parse::<u32>().map_err(|_| Error::invalid(format!("{text} is no number")))
    };
    let (id, count, base) = (parse(id)?, parse(count)?, parse(base)?);
    let dir = PathBuf::from(dir).join(id.to_string());
    if !dir.join("pool").exists() {
        create_replica(
            &dir,
            number("POOL_MIB").unwrap_or(512) * MIB,
            &group(count),
            ReplicaId(id),
        )?;
    }
    let port =
        |id: u32, door: u32| SocketAddr::from(([127, 0, 0, 1], (base + 10 * id + door) as u16));
    let peers = (1..=count).filter(|peer| *peer != id).map(|peer| PeerAddress {
        replica: ReplicaId(peer),
        peer: port(peer, 1),
        target: port(peer, 2),
        resp: port(peer, 0),
    });
    run(ServerConfig {
        spread: None,
        group: GroupId(1),
        replica: ReplicaId(id),
        data: dir,
        resp: port(id, 0),
        peer_listen: port(id, 1),
        target_listen: port(id, 2),
        home: Home::default(),
        metrics: None,
        peers: peers.collect(),
        io: BackendChoice::Auto,
        block_cache_bytes: 64 << 20,
        open_files_bytes: OPEN_FILES_LEN,
        client_input_bytes: gabion_server::INPUT_BYTES,
        jobs_nice: 0,
        security: SecurityConfig::default(),
        node: NodeOptions::default(),
    })
}

fn group(count: u32) -> GroupConfig {
    let chosen = |name: &str| number(name).is_some();
    let tree = TreeConfig {
        memtable_len: number("MEMTABLE_KIB").map_or(16 * MIB, |kib| kib * KIB),
        ..TreeConfig::default()
    };
    GroupConfig {
        group: GroupId(1),
        founders: (1..=count).map(ReplicaId).collect(),
        compaction: if chosen("EVERY_REPLICA") {
            CompactionMode::EveryReplica
        } else {
            CompactionMode::Primary
        },
        ack: if chosen("DURABLE") { AckLevel::Durable } else { AckLevel::Replicated },
        ring_len: 64 * MIB,
        segment_len: 16 * MIB,
        tree,
    }
}

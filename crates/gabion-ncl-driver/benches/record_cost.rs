//! Cost of near-compute logs, over shared memory and over TCP loopback, with three peers in this
//! process: a synced record of 128 bytes, many threads, the replacement of a peer and recovery.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "a program that measures"
)]

#[path = "../tests/support/peers.rs"]
mod peers;

use gabion_fabric::remote::PeerServer;
use gabion_media::remote::{Incarnation, PeerConfig, PeerId};
use gabion_ncl::{Metadata, Sizes};
use gabion_ncl_driver::{Logs, LogsOptions};
use peers::{Shared, Way};
use std::time::{Duration, Instant};

const MIB: usize = 1 << 20;
const LOG_LEN: usize = 60 * MIB;
const RECORDS: usize = 100_000;
const THREADS: usize = 64;

fn peer(store: &Shared, id: u64, way: Way) -> PeerServer {
    let name = format!("gabion-record-cost-{}-{id}", std::process::id());
    let path = std::env::temp_dir().join(name);
    let _ = std::fs::remove_file(&path);
    let mut config = PeerConfig::new(PeerId(id), Incarnation(1), 512 << 20);
    config.ready_bytes = 256 << 20;
    config.expected = Sizes::default().regions(LOG_LEN as u64);
    peers::start(store, way, &path, config).0
}

fn open(store: &Shared) -> Logs {
    let mut options = LogsOptions::new("app");
    options.core.takes_over = true;
    let logs = Logs::start(options, Box::new(store.clone())).unwrap();
    logs.wait_until_ready().unwrap();
    logs
}

fn latency(logs: &Logs, name: &str) {
    let file = logs.create("latency.log", Metadata::default()).unwrap();
    let record = [7; 128];
    let mut taken = Vec::with_capacity(RECORDS);
    for at in 0..RECORDS + 1000 {
        let began = Instant::now();
        // A log that goes round, as bytes at new places cost the system a page each.
        let offset = (at % 4096 * 128) as u64;
        let number = logs.write(file, offset, &record).unwrap();
        logs.wait_for(number).unwrap();
        if at >= 1000 {
            taken.push(began.elapsed().as_nanos() as u64);
        }
    }
    let mean = taken.iter().sum::<u64>() / RECORDS as u64;
    taken.sort_unstable();
    let at = |part: usize| taken[RECORDS * part / 1000] as f64 / 1e3;
    let mean = mean as f64 / 1e3;
    println!(
        "{name}: 128 B synced, 1 thread: mean {mean:.2} µs, p50 {:.2}, p99 {:.2}, p99.9 {:.2}",
        at(500),
        at(990),
        at(999)
    );
}

fn throughput(logs: &Logs, name: &str) {
    let each = RECORDS * 2 / THREADS;
    let make = |thread: usize| logs.create(&format!("{thread}.log"), Metadata::default()).unwrap();
    let files: Vec<_> = (0..THREADS).map(make).collect();
    let began = Instant::now();
    std::thread::scope(|scope| {
        for file in files {
            scope.spawn(move || {
                for at in 0..each {
                    let number = logs.write(file, (at % 1024 * 128) as u64, &[3; 128]).unwrap();
                    logs.wait_for(number).unwrap();
                }
            });
        }
    });
    let rate = (each * THREADS) as f64 / began.elapsed().as_secs_f64();
    println!("{name}: 128 B synced, {THREADS} threads: {rate:.0} records a second");
}

fn main() {
    for (name, way) in [("shared memory", Way::SharedMemory), ("TCP loopback", Way::Tcp)] {
        let store = Shared::default();
        let mut peers: Vec<PeerServer> = (1..=4).map(|id| peer(&store, id, way)).collect();
        let logs = open(&store);
        latency(&logs, name);
        throughput(&logs, name);
        let file = logs.create("large.log", Metadata::default()).unwrap();
        let bytes: Vec<u8> = (0..LOG_LEN).map(|at| ((at * 31) >> 5) as u8).collect();
        logs.write(file, 0, &bytes).unwrap();
        logs.sync().unwrap();
        // Time to zero ahead.
        std::thread::sleep(Duration::from_millis(500));
        let member = logs.status().unwrap().0.map.members[0].peer.0 as usize;
        drop(peers.remove(member - 1));
        let began = Instant::now();
        loop {
            let (status, counts) = logs.status().unwrap();
            if counts.losses > 0 && status.copies == 3 {
                println!("{name}: a peer with 60 MiB replaced in {} ms", counts.last_loss_ms);
                break;
            }
            assert!(began.elapsed() < Duration::from_secs(30), "{status:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
        std::mem::forget(logs);
        let began = Instant::now();
        let logs = open(&store);
        println!("{name}: 60 MiB recovered in {} ms", began.elapsed().as_millis());
        let mut found = vec![0; LOG_LEN];
        let file = logs.find("large.log").unwrap().unwrap();
        logs.read(file, 0, &mut found).unwrap();
        assert!(found == bytes, "other bytes");
    }
}

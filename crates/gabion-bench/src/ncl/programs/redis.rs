//! redis-server and its clients, which are driven by one thread.

use super::super::house::Process;
use super::{Drove, Load, Server, UNBOUNDED, VALUE, sleep};
use crate::args::WorkloadChoice;
use crate::client::{Client, Route, Shared, drive};
use crate::workload::{Hand, Supply, Tally};
use gabion_base::{Error, ErrorKind, Result};
use gabion_workload::{Sizes, Values};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::thread;
use std::time::{Duration, Instant};

/// How long it may take until it has read its log.
const PATIENCE: Duration = Duration::from_secs(120);
const TICK: Duration = Duration::from_millis(1);
const SEED: u64 = 1;
/// Clients that load, and requests that each has under way: a sync of the log is for all of them.
const LOADERS: u64 = 16;
const LOAD_PIPELINE: usize = 64;

pub(super) struct Redis {
    process: Process,
    route: Route,
    records: u64,
    /// Requests so far.
    requests: u64,
    runs: u64,
}

pub(super) fn start(
    mut command: Command,
    log: PathBuf,
    is_synced: bool,
    records: u64,
) -> Result<Box<dyn Server>> {
    let failed = |e| Error::with_source(ErrorKind::Io, "a free port for redis-server", e);
    let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(failed)?;
    let address = free.local_addr().map_err(failed)?;
    drop(free);
    let fsync = if is_synced { "always" } else { "no" };
    command.args(["--bind", "127.0.0.1", "--port", &address.port().to_string()]);
    command.args(["--appendonly", "yes", "--appendfsync", fsync, "--save", ""]);
    command.args(["--auto-aof-rewrite-percentage", "0"]).stdout(Stdio::null());
    let mut process = Process::start(&mut command, log)?;
    let begun = Instant::now();
    while !answers(address) {
        if process.has_ended() || begun.elapsed() > PATIENCE {
            return Err(process.ended("it served"));
        }
        thread::sleep(TICK);
    }
    let route = Route { writes: address, reads: address };
    Ok(Box::new(Redis { process, route, records, requests: 0, runs: 0 }))
}

/// Whether it has read its log.
fn answers(address: SocketAddr) -> bool {
    let ask = || -> std::io::Result<bool> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(b"PING\r\n")?;
        let mut said = [0; 5];
        stream.read_exact(&mut said)?;
        Ok(said == *b"+PONG")
    };
    ask().unwrap_or(false)
}

impl Redis {
    /// Until the supply is empty, which is at the end of `time` if there is one.
    fn run(
        &mut self,
        supply: &Supply,
        (clients, pipeline): (u64, usize),
        time: Option<Duration>,
        stop: &AtomicBool,
    ) -> Result<(Tally, Duration)> {
        let shared = Shared {
            values: Values::new(Sizes::one(VALUE), 0.0, SEED),
            is_only_loaded: false,
            pipeline,
            per_second: None,
            done: AtomicU64::new(0),
            stop,
            has_failed: AtomicBool::new(false),
        };
        let connect = |_| Client::connect(&[self.route]);
        let clients = (0..clients).map(connect).collect::<Result<Vec<_>>>()?;
        let hand = Hand::new(supply, SEED, self.runs, 0);
        let begun = Instant::now();
        let outcome = thread::scope(|scope| {
            let driver = scope.spawn(|| drive(clients, hand, &shared));
            if let Some(time) = time {
                sleep(time, stop);
                supply.end();
            }
            driver.join()
        });
        let panicked = |_| Error::unavailable("a thread of the clients panicked");
        let (tally, last) = outcome.map_err(panicked)??;
        if tally.wrong > 0 {
            let what = tally.examples.first().map_or("", String::as_str);
            return Err(Error::corruption(format!("redis-server: {what}")));
        }
        self.runs += 1;
        self.requests += tally.total();
        Ok((tally, last - begun))
    }
}

impl Server for Redis {
    fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    fn load(&mut self, stop: &AtomicBool) -> Result<()> {
        let load = Load { name: "load", workload: WorkloadChoice::Load };
        let supply = load.supply(self.records, self.records, 0);
        self.run(&supply, (LOADERS, LOAD_PIPELINE), None, stop).map(drop)
    }

    fn drive(
        &mut self,
        load: Load,
        clients: u64,
        time: Duration,
        stop: &AtomicBool,
    ) -> Result<Drove> {
        let supply = load.supply(UNBOUNDED, self.records, self.requests);
        let (tally, took) = self.run(&supply, (clients, 1), Some(time), stop)?;
        Ok(Drove { count: tally.total(), took, latencies: tally.latencies() })
    }
}

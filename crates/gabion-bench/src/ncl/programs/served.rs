//! Programs that serve many clients in Redis's protocol. The clients are driven by one thread.

use super::super::house::Process;
use super::{Drove, Load, Server, UNBOUNDED, VALUE, sleep};
use crate::args::WorkloadChoice;
use crate::client::{Client, Route, Shared, drive};
use crate::workload::{Hand, Supply, Tally};
use gabion_base::{Error, Result};
use gabion_workload::{Sizes, Values};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::thread;
use std::time::{Duration, Instant};

const SEED: u64 = 1;
/// Clients that load, and requests that each has under way: a sync of the log is for all of them.
const LOADERS: u64 = 16;
const LOAD_PIPELINE: usize = 64;

struct Served {
    name: &'static str,
    process: Process,
    route: Route,
    records: u64,
    /// Requests so far.
    requests: u64,
    runs: u64,
}

/// A program that serves, of these records.
pub(super) fn serve(
    name: &'static str,
    process: Process,
    address: SocketAddr,
    records: u64,
) -> Box<dyn Server> {
    let route = Route { writes: address, reads: address };
    Box::new(Served { name, process, route, records, requests: 0, runs: 0 })
}

impl Served {
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
            return Err(Error::corruption(format!("{}: {what}", self.name)));
        }
        self.runs += 1;
        self.requests += tally.total();
        Ok((tally, last - begun))
    }
}

impl Server for Served {
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

//! The processes of a chain of the baseline.

use super::Cell;
use crate::launch::RunningCluster;
use gabion_base::{Error, ErrorKind, Result};
use gabion_engine::{Codecs, Compression};
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Threads that flush and compact: as many as in a replica of Gabion.
const BACKGROUND_THREADS: u32 = 2;

/// How long a chain may take to end, and how often it is checked.
const STOP_MAX: Duration = Duration::from_secs(10);
const TICK: Duration = Duration::from_millis(10);

/// A chain that runs until it is dropped. A replica ends when its standard input does, so none
/// outlives this process, however that ends.
pub(super) struct Chain {
    /// From the tail to the head, as they were started.
    replicas: Vec<(Child, SocketAddr)>,
}

/// The codec of a chain as its program names it.
pub(super) fn codec_word(codecs: Codecs) -> Result<&'static str> {
    match codecs {
        Codecs { upper: Compression::None, bottom: None } => Ok("none"),
        Codecs { upper: Compression::Lz4, bottom: None } => Ok("lz4"),
        Codecs { upper, bottom } => Err(Error::invalid(format!(
            "RubbleDB's baseline has --compression none or lz4, on all levels (its RocksDB is built \
             without zstd); {} was asked for",
            bottom.map_or(upper.to_string(), |bottom| format!("{upper} above {bottom}"))
        ))),
    }
}

impl Chain {
    /// Starts the tail, and then each replica before the last started one.
    ///
    /// # Errors
    /// A replica that does not start; none of them runs then.
    pub(super) fn start(program: &Path, cell: &Cell, dir: &Path) -> Result<Self> {
        let mut chain = Self { replicas: Vec::new() };
        let mut next = None;
        for place in (1..=cell.cluster.replicas).rev() {
            let [clients, door] = chain.start_one(program, cell, (place, next), dir)?;
            next = Some(door);
            if let Some((_, address)) = chain.replicas.last_mut() {
                *address = clients;
            }
        }
        Ok(chain)
    }

    /// Starts a replica and gives the addresses of its doors.
    fn start_one(
        &mut self,
        program: &Path,
        cell: &Cell,
        (place, next): (u32, Option<SocketAddr>),
        dir: &Path,
    ) -> Result<[SocketAddr; 2]> {
        let cluster = &cell.cluster;
        let what = || format!("{}, replica {place} of {}", program.display(), cluster.replicas);
        let compression = codec_word(cluster.codecs)?;
        let mut command = Command::new(program);
        command
            .args(["--place", &place.to_string(), "--of", &cluster.replicas.to_string()])
            .args(["--log", cell.log.as_str(), "--compression", compression])
            .args(["--memtable-size", &cluster.memtable_len.to_string()])
            .args(["--cache", &cluster.baseline_cache_len.to_string()])
            .args(["--background-threads", &BACKGROUND_THREADS.to_string()])
            .args(["--jobs-nice", &cell.jobs_nice.to_string()])
            .args(["--growth-factor", &cluster.growth_factor.to_string()])
            .arg("--dir")
            .arg(dir.join(place.to_string()));
        if let Some(len) = cell.blobs_from {
            command.args(["--blobs-from", &len.to_string()]);
        }
        if let Some(next) = next {
            command.args(["--next", &next.to_string()]);
        }
        let failed = |error| Error::with_source(ErrorKind::Io, format!("{}: start", what()), error);
        // A process group of its own: Ctrl-C is for the benchmark, which then ends the chain.
        command.process_group(0);
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(failed)?;
        let output = child.stdout.take();
        self.replicas.push((child, SocketAddr::from(([127, 0, 0, 1], 0))));
        let mut line = String::new();
        if let Some(output) = output {
            BufReader::new(output).read_line(&mut line).map_err(failed)?;
        }
        addresses(&line).ok_or_else(|| {
            let said = line.trim_end();
            Error::unavailable(format!("{}: it said `{said}` in place of its addresses", what()))
        })
    }
}

/// A replica's line when it is ready: `ready CLIENTS CHAIN`.
fn addresses(line: &str) -> Option<[SocketAddr; 2]> {
    let mut words = line.strip_prefix("ready ")?.split_whitespace();
    Some([words.next()?.parse().ok()?, words.next()?.parse().ok()?])
}

impl RunningCluster for Chain {
    fn addresses(&self) -> Vec<SocketAddr> {
        self.replicas.iter().rev().map(|(_, address)| *address).collect()
    }
}

/// All are told to end before one is waited for, so that none takes the end of its neighbour for a
/// fault.
impl Drop for Chain {
    fn drop(&mut self) {
        for (child, _) in &mut self.replicas {
            drop(child.stdin.take());
        }
        let begun = Instant::now();
        for (child, _) in &mut self.replicas {
            while begun.elapsed() < STOP_MAX && matches!(child.try_wait(), Ok(None)) {
                thread::sleep(TICK);
            }
            // One that has ended cannot be killed, and is waited for all the same.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

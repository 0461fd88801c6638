//! The `main` of a replica's program: `replica-NAME --place 1 --of 3 --next … --dir …`.
//!
//! It says `ready CLIENTS CHAIN`, the addresses of its two doors, on standard output, and ends when its
//! standard input does: so that it never outlives who started it. The store is closed then. `replica-NAME built-from`
//! prints what it is built from ([`Build`]), and ends.

use crate::process::{LOOP, NICE, Standing};
use crate::server::{Place, Server};
use crate::store::Store;
use clap::{CommandFactory, FromArgMatches, Parser};
use gabion_base::{Error, ErrorKind, Result};
use gabion_workload::{Build, Codec, EngineOptions, Log, parse_bytes};
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// How long the threads of a replica may take to end with it.
const CLOSE_MAX: Duration = Duration::from_secs(5);

/// One replica of a chain, each with a store of its own.
#[derive(Clone, Debug, Parser)]
pub struct ReplicaArgs {
    /// Its place: 1 is the head, where writes go; the last is the tail, where reads go.
    #[arg(long)]
    pub place: u32,
    /// Replicas of the chain.
    #[arg(long)]
    pub of: u32,
    /// The chain's door of the next replica. All but the tail have one.
    #[arg(long)]
    pub next: Option<SocketAddr>,
    /// Where clients come in.
    #[arg(long, default_value = "127.0.0.1:0")]
    pub clients: SocketAddr,
    /// The chain's door.
    #[arg(long, default_value = "127.0.0.1:0")]
    pub chain: SocketAddr,
    /// Where the store keeps its files.
    #[arg(long)]
    pub dir: PathBuf,
    /// The store's write-ahead log.
    #[arg(long, value_enum, default_value_t = Log::On)]
    pub log: Log,
    /// Bytes of a MemTable.
    #[arg(long, default_value = "16MiB", value_parser = parse_bytes)]
    pub memtable_size: u64,
    /// Bytes of the block cache.
    #[arg(long, default_value = "64MiB", value_parser = parse_bytes)]
    pub cache: u64,
    /// How blocks of files are compressed.
    #[arg(long, value_enum, default_value_t = Codec::None)]
    pub compression: Codec,
    /// Threads that flush and compact.
    #[arg(long, default_value_t = 2)]
    pub background_threads: u32,
    /// Bytes at which a level aims ÷ those of the level above it [default: the store's].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=100))]
    pub growth_factor: Option<u32>,
    /// Values of so many bytes, or more, go into files of their own, whose garbage the store
    /// collects [default: none does].
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub blobs_from: Option<u64>,
    /// Use the page cache.
    #[arg(long)]
    pub buffered: bool,
    /// Threads for reads that the device has to answer. 8 gave most requests a second of 1, 4, 8 and 16 on
    /// two cores.
    #[arg(long, default_value_t = 8)]
    pub readers: u32,
    /// Steps of nice(2), 0 to 19, by which threads that compact stand back behind those that answer, and threads that
    /// flush by half as many.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u8).range(0..=i64::from(gabion_proc::STEPS_MAX)))]
    pub jobs_nice: u8,
}

impl ReplicaArgs {
    fn engine(&self) -> EngineOptions {
        EngineOptions {
            memtable_len: self.memtable_size,
            cache_len: self.cache,
            codec: self.compression,
            background_threads: self.background_threads,
            is_direct: !self.buffered,
            log: self.log,
            growth_factor: self.growth_factor,
            large_values: self.blobs_from,
            ..EngineOptions::new(self.dir.clone())
        }
    }

    const fn place(&self) -> Place {
        Place {
            number: self.place,
            replicas: self.of,
            clients: self.clients,
            previous: self.chain,
            next: self.next,
            readers: self.readers,
        }
    }
}

/// Reads the command line and runs the replica until standard input ends. Exit codes: 0 then, 2 for
/// anything else.
#[must_use]
pub fn program<S: Store>() -> ExitCode {
    let name = format!("replica-{}", S::NAME);
    match Build::print_if_asked() {
        Ok(false) => {}
        Ok(true) => return ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{name}: {error}");
            return ExitCode::from(2);
        }
    }
    let matches = ReplicaArgs::command().bin_name(&name).try_get_matches();
    let args = match matches.and_then(|matches| ReplicaArgs::from_arg_matches(&matches)) {
        Ok(args) => args,
        Err(error) => error.exit(),
    };
    match run::<S>(&args, std::io::stdin(), &mut std::io::stdout()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{name} {} of {}: {error}", args.place, args.of);
            ExitCode::from(2)
        }
    }
}

/// The replica until `input` ends; its addresses go to `out`.
pub(crate) fn run<S: Store>(
    args: &ReplicaArgs,
    input: impl Read + Send + 'static,
    out: &mut dyn Write,
) -> Result<()> {
    // As a replica of Gabion does: a store that reads and writes with direct I/O needs as many large buffers.
    gabion_proc::keep_freed_memory();
    let store = Arc::new(S::open(&args.engine())?);
    let server = Server::new(args.place(), Arc::clone(&store))?;
    let [clients, chain] = server.addresses()?;
    writeln!(out, "ready {clients} {chain}")
        .and_then(|()| out.flush())
        .map_err(|error| Error::with_source(ErrorKind::Io, "standard output", error))?;
    let stop = Arc::new(AtomicBool::new(false));
    let own = Arc::clone(&stop);
    let failed = |error| Error::with_source(ErrorKind::Io, "a thread cannot be made", error);
    thread::Builder::new().spawn(move || watch(input, &own)).map_err(failed)?;
    if args.jobs_nice > 0 {
        let (standing, stop) = (Standing::new(S::THREADS, args.jobs_nice), Arc::clone(&stop));
        let watch = move || standing.watch(&stop);
        thread::Builder::new().name(NICE.to_owned()).spawn(watch).map_err(failed)?;
    }
    // A thread of its own, as the kernel knows the first one by the program's name.
    let server = thread::Builder::new().name(LOOP.to_owned()).spawn(move || server.run(&stop));
    let outcome = server.map_err(failed)?.join();
    // Its threads end with it; what is in the store's own memory and theirs is not to be taken from them.
    let begun = Instant::now();
    while Arc::strong_count(&store) > 1 && begun.elapsed() < CLOSE_MAX {
        thread::sleep(Duration::from_millis(1));
    }
    drop(store);
    outcome.unwrap_or_else(|_| Err(Error::unavailable("the loop panicked")))
}

/// Sets `stop` when the input ends or breaks.
fn watch(mut input: impl Read, stop: &AtomicBool) {
    let mut buffer = [0; 64];
    while matches!(input.read(&mut buffer), Ok(1..)) {}
    stop.store(true, Ordering::Relaxed);
}

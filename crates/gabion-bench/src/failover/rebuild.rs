//! `gabion bench rebuild`: a replica of a real group loses its disk, idle and under load, and how
//! long it takes until it is full again.
//!
//! ```text
//!   peers: device, loopback ─► load N bytes ─► rest ─┬─► idle: wipe ───────────────► whole ─► rate
//!                                                    └─► full load ─► its half ─► wipe ─► whole
//!                                                         clients: p99 before, p99 meanwhile
//! ```
//!
//! - [`args`]: options; [`load`]: the clients; [`peers`]: what device and loopback give;
//!   [`tables`]: figures as lines, JSON and tables.

mod args;
mod load;
mod peers;
mod tables;

use super::group::{Group, UpProgram, UpSpec, in_role, obstacle};
use super::samples::{Answer, percentiles};
use crate::launch::ScratchDir;
use crate::provenance::provenance;
use crate::run::stop_on_signals;
use crate::sink::{Sink, print};
use crate::text::Style;
pub use args::{LoadKind, RebuildArgs};
use gabion_base::{Error, ErrorKind, Result};
use load::{Clients, Load, Pace};
use peers::Peers;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// How long the group may take to be whole.
const WHOLE_MAX: Duration = Duration::from_secs(900);
/// How often its replicas are asked.
const TICK: Duration = Duration::from_millis(20);
/// It rests once nothing was flushed or compacted for this long.
const REST: Duration = Duration::from_secs(3);

/// One disk that was lost.
#[derive(Clone, Debug, Default)]
struct Round {
    number: u64,
    kind: LoadKind,
    replica: u64,
    /// Bytes of the files of the state that was copied.
    bytes: u64,
    /// From the loss until the group was whole.
    whole: Duration,
    /// From when the first state was known until all its files were there.
    copy: Duration,
    /// Answers a second of the clients with nothing held back, and as they were paced.
    full_rate: f64,
    paced_rate: f64,
    /// Median and 99th percentile of writes and reads, in µs: before the loss, and from the begin
    /// of the copy until whole.
    before_us: [Option<[u64; 2]>; 2],
    during_us: [Option<[u64; 2]>; 2],
    /// Requests that failed from the loss on.
    failed: u64,
}

/// Runs the benchmark on a group of its own.
///
/// # Errors
/// An option does not fit, the group does not start or does not come back, its replicas differ in
/// the end, or the report cannot be written.
pub fn rebuild(args: &RebuildArgs, up: &UpProgram) -> Result<()> {
    let out = &mut std::io::stdout().lock();
    args.check()?;
    let interrupted = stop_on_signals()?;
    let mut sink = Sink::open(args.json.as_deref())?;
    let dir = ScratchDir::new(args.dir.as_deref().unwrap_or(&up.data_dir))?;
    let peers = Peers::measure(dir.path(), args.bytes)?;
    let is_quiet = sink.is_stdout();
    if !is_quiet {
        print(&tables::peers(&peers), out)?;
    }
    let rate = args.rebuild_rate.map(|rate| ["--rebuild-rate".to_owned(), rate.to_string()]);
    let spec = UpSpec {
        replicas: args.replicas,
        pool_size: args.pool_size(),
        ack: args.ack_level(),
        words: rate.into_iter().flatten().collect(),
    };
    let group = Group::start(&spec, up, dir.path())?;
    let mut run = Run { args, interrupted, group };
    run.wait_until_whole()?;
    let load = Load::new(args, run.group.addresses.clone());
    load.fill(&run.interrupted)?;
    let mut rounds = Vec::new();
    for number in 1..=args.rounds {
        for &kind in &args.loads {
            let round = run.round(number, kind, &load)?;
            if !is_quiet {
                print(&tables::line(&round, &peers), out)?;
            }
            sink.write(&tables::json(&round, &peers, args, provenance()), out)?;
            rounds.push(round);
        }
    }
    run.verify()?;
    if !is_quiet {
        let style = if args.markdown { Style::Markdown } else { Style::Plain };
        print(&tables::table(&rounds, &peers, style), out)?;
    }
    Ok(())
}

struct Run<'a> {
    args: &'a RebuildArgs,
    interrupted: Arc<AtomicBool>,
    group: Group,
}

impl Run<'_> {
    /// Fails once `up` has ended or a signal came; else waits a moment.
    fn tick(&mut self) -> Result<()> {
        if self.interrupted.load(Relaxed) {
            return Err(Error::unavailable("interrupted"));
        }
        self.group.check()?;
        std::thread::sleep(TICK);
        Ok(())
    }

    fn pass(&mut self, time: Duration) -> Result<()> {
        let begun = Instant::now();
        while begun.elapsed() < time {
            self.tick()?;
        }
        Ok(())
    }

    fn wait_until_whole(&mut self) -> Result<()> {
        let begun = Instant::now();
        loop {
            let answers = self.group.ask();
            let Some(why) = obstacle(&answers) else { return Ok(()) };
            if begun.elapsed() > WHOLE_MAX {
                return Err(self.not_whole(&why));
            }
            self.tick()?;
        }
    }

    fn not_whole(&self, why: &str) -> Error {
        let (limit, said) = (WHOLE_MAX.as_secs(), self.group.said());
        Error::unavailable(format!("not whole after {limit} s: {why}; `up` said:\n{said}"))
    }

    /// Waits until nothing is flushed or compacted any more.
    fn rest(&mut self) -> Result<()> {
        let (begun, mut since, mut before) = (Instant::now(), Instant::now(), Vec::new());
        while since.elapsed() < REST {
            let answers = self.group.ask();
            let now: Vec<Option<u64>> = answers.iter().map(|it| Some(it.as_ref()?.jobs)).collect();
            if now != before {
                (before, since) = (now, Instant::now());
            }
            if begun.elapsed() > WHOLE_MAX {
                return Err(self.not_whole("it goes on to compact"));
            }
            self.tick()?;
        }
        Ok(())
    }

    fn round(&mut self, number: u64, kind: LoadKind, load: &Load) -> Result<Round> {
        self.wait_until_whole()?;
        self.rest()?;
        let mut round = Round { number, kind, ..Round::default() };
        let clients = match kind {
            LoadKind::Idle => None,
            LoadKind::Half => {
                let calm = Duration::from_secs(self.args.calm);
                let full = load.start(Pace::Full)?;
                self.pass(calm)?;
                round.full_rate = full.stop()?.rate();
                let clients = load.start(Pace::PerSecond(round.full_rate / 2.0))?;
                // Until what the full load has left is flushed and compacted.
                self.pass(calm / 2)?;
                clients.take();
                self.pass(calm)?;
                let seen = clients.take();
                round.paced_rate = seen.rate();
                round.before_us = seen.kinds().map(figures);
                Some(clients)
            }
        };
        self.lose_disk(&mut round, clients.as_ref())?;
        if let Some(clients) = clients {
            let seen = clients.take();
            round.during_us = seen.kinds().map(figures);
            round.failed += seen.failed;
            clients.stop()?;
        }
        Ok(round)
    }

    /// Removes a replica's directory and waits until the group is whole. Latencies count from when
    /// the copy begins: before, a replica fails, and that is measured elsewhere.
    fn lose_disk(&mut self, round: &mut Round, clients: Option<&Clients>) -> Result<()> {
        let answers: Vec<_> = self.group.ask().into_iter().flatten().collect();
        let replica = in_role(&answers, self.args.role, 0)?.replica;
        let dir: PathBuf = self.group.data().join(format!("replica-{replica}"));
        let begun = Instant::now();
        std::fs::remove_dir_all(&dir).map_err(|error| {
            Error::with_source(ErrorKind::Io, format!("remove {}", dir.display()), error)
        })?;
        round.replica = replica;
        let (mut copy_begun, mut copy_ended, mut was_away) = (None, None, false);
        loop {
            let answers = self.group.ask();
            let now = Instant::now();
            let filled = answers.iter().flatten().find(|member| member.replica == replica);
            if let Some((bytes, done)) = filled.and_then(|member| member.copied) {
                round.bytes = round.bytes.max(bytes);
                if copy_begun.replace(copy_begun.unwrap_or(now)).is_none() {
                    round.failed += clients.map_or(0, |clients| clients.take().failed);
                }
                if done == bytes {
                    copy_ended.get_or_insert(now);
                }
            }
            let why = obstacle(&answers);
            was_away |= why.is_some();
            match why {
                None if was_away => break,
                Some(why) if begun.elapsed() > WHOLE_MAX => return Err(self.not_whole(&why)),
                _ => self.tick()?,
            }
            if was_away && filled_step_is_over(filled, copy_begun) {
                copy_ended.get_or_insert(now);
            }
        }
        round.whole = begun.elapsed();
        let copied = copy_begun.zip(copy_ended.or(Some(Instant::now())));
        round.copy = copied.map_or(round.whole, |(from, to)| to.saturating_duration_since(from));
        Ok(())
    }

    fn verify(&mut self) -> Result<()> {
        self.wait_until_whole()?;
        let (is_same, said) = self.group.verify()?;
        if is_same {
            return Ok(());
        }
        Err(Error::corruption(format!("the replicas differ in the end: {said}")))
    }
}

/// Whether a copy had begun and the replica answers without one: its state is installed.
fn filled_step_is_over(filled: Option<&super::group::Member>, begun: Option<Instant>) -> bool {
    begun.is_some() && filled.is_some_and(|member| member.copied.is_none())
}

fn figures(answers: &[Answer]) -> Option<[u64; 2]> {
    percentiles(answers.iter())
}

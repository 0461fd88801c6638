//! `gabion bench failover`: faults of a real group under load, every answer checked, and for how
//! long nobody was answered.
//!
//! ```text
//!   gabion up (child) ◄─ statuses ─ rounds: whole? ─► calm ─► fault ─► whole again? ─► figures
//!        ▲ doors                      │ kill, stop, cut, hang                            │
//!        │                            ▼                                                  ▼
//!   clients: writer, reader ─► samples, ledger ─► violation ends the run      table, JSON, SVG
//! ```
//!
//! - [`args`]: options; [`group`]: the processes; [`cut`]: links.
//! - [`client`]: the load; [`door`]: connections; [`ledger`]: which answers are right.
//! - [`samples`]: figures of a round; [`tables`]: of all rounds.
//! - [`rebuild`]: another benchmark of such a group: a replica that loses its disk.

mod args;
mod client;
mod cut;
mod door;
mod group;
mod ledger;
pub(crate) mod rebuild;
mod samples;
mod tables;

use crate::launch::ScratchDir;
use crate::page::{Mark, Timeline};
use crate::provenance::provenance;
use crate::run::stop_on_signals;
use crate::sink::{Sink, print};
use crate::text::{Style, grouped};
pub use args::{FailoverArgs, Fault, Role};
use client::{Clients, Pair, Shared, locked};
use cut::Cutter;
use gabion_base::{Error, ErrorKind, Result};
use gabion_workload::{Sizes, Values};
pub use group::UpProgram;
use group::{Group, Member, Process, Stopped, UpSpec, has_changed, in_role, neighbour, obstacle};
use rustix::process::Signal;
use samples::{Answer, Figures, Kind, Seen, Times, bins, merged};
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// How long the group may take to be whole, at first and after a fault.
const WHOLE_MAX: Duration = Duration::from_secs(180);
/// How often that is asked.
const TICK: Duration = Duration::from_millis(50);
/// It counts once it was whole for this long: a replica that wakes needs a moment to notice.
const WHOLE_FOR: Duration = Duration::from_millis(300);
/// A bin of the timeline.
const BIN_US: u64 = 100_000;

/// One round with its figures.
#[derive(Clone, Debug)]
struct Round {
    /// From 1.
    number: u64,
    fault: Fault,
    role: Role,
    replica: u64,
    /// A process or the configuration changed before the fault.
    has_changed: bool,
    times: Times,
    /// Of writes and reads.
    figures: [Figures; 2],
    /// Answers in each bin from the round's begin to its end, of writes and reads.
    bins: [Vec<u64>; 2],
}

/// Runs the benchmark on a group of its own. The exit code is 1 after a violation.
///
/// # Errors
/// An option does not fit, the group does not start or does not come back, or the report cannot be
/// written.
pub fn failover(args: &FailoverArgs, up: &UpProgram) -> Result<u8> {
    failover_to(args, up, &mut std::io::stdout().lock())
}

fn failover_to(args: &FailoverArgs, up: &UpProgram, out: &mut dyn Write) -> Result<u8> {
    args.check()?;
    if let Some(path) = args.svg.as_deref().filter(|path| path.exists()) {
        return Err(Error::invalid(format!(
            "--svg names {}, which is there: name another file, or remove it",
            path.display()
        )));
    }
    let interrupted = stop_on_signals()?;
    let sink = Sink::open(args.json.as_deref())?;
    let dir = ScratchDir::new(args.dir.as_deref().unwrap_or(&up.data_dir))?;
    let spec = UpSpec {
        replicas: args.replicas,
        pool_size: args.pool_size,
        ack: args.ack_level(),
        words: Vec::new(),
    };
    let group = Group::start(&spec, up, dir.path())?;
    let values = Values::new(Sizes::one(args.value_size as usize), 0.0, 1);
    let shared = Arc::new(Shared::new(group.addresses.clone(), values, args.timeout()));
    let pairs = (0..args.pairs()).map(|n| Arc::new(Pair::new(n, args.pairs(), args.records)));
    let pairs = pairs.collect();
    let mut run = Run { args, interrupted, shared, pairs, group, sink, rounds: Vec::new() };
    let ended = run.rounds_and_end(out);
    let Some(violation) = run.shared.violation() else { return ended.map(|()| 0) };
    print(&format!("violation: {violation}\n"), &mut std::io::stderr())?;
    let said = run.group.said();
    drop(run);
    let kept = dir.keep();
    let rest = format!("`up` said:\n{said}\nthe group's data is kept in {}\n", kept.display());
    print(&rest, &mut std::io::stderr())?;
    Ok(1)
}

struct Run<'a> {
    args: &'a FailoverArgs,
    interrupted: Arc<AtomicBool>,
    shared: Arc<Shared>,
    pairs: Vec<Arc<Pair>>,
    group: Group,
    sink: Sink,
    rounds: Vec<Round>,
}

impl Run<'_> {
    fn rounds_and_end(&mut self, out: &mut dyn Write) -> Result<()> {
        self.wait_until_whole()?;
        std::thread::scope(|scope| {
            let shared = &self.shared;
            let loads: Vec<_> =
                self.pairs.iter().map(|pair| scope.spawn(move || pair.load(shared))).collect();
            let failed = |_| Error::invalid("a thread that loads panicked");
            loads.into_iter().try_for_each(|load| load.join().map_err(failed)?)
        })?;
        let clients = Clients::start(&self.shared, &self.pairs)?;
        for number in 0..self.args.rounds {
            let round = self.round(number)?;
            if !self.sink.is_stdout() {
                print(&tables::line(&round), out)?;
            }
            let json = tables::json(&round, self.args, provenance());
            self.sink.write(&json, out)?;
            self.rounds.push(round);
        }
        self.wait_until_whole()?;
        clients.stop()?;
        self.read_back(out)?;
        if let Some(path) = &self.args.svg {
            self.draw(path)?;
        }
        if !self.sink.is_stdout() {
            let style = if self.args.markdown { Style::Markdown } else { Style::Plain };
            print(&tables::tables(&self.rounds, style), out)?;
        }
        Ok(())
    }

    /// Microseconds since the beginning of the run.
    fn now_us(&self) -> u64 {
        self.shared.epoch.elapsed().as_micros() as u64
    }

    /// Lets the load go on until then.
    ///
    /// # Errors
    /// There was a violation, `up` ended, or a signal came.
    fn pass(&mut self, until: Instant) -> Result<()> {
        loop {
            if self.interrupted.load(Relaxed) {
                return Err(Error::unavailable("interrupted"));
            }
            if self.shared.violation().is_some() {
                return Err(Error::corruption("there was a violation"));
            }
            self.group.check()?;
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            std::thread::sleep(left.min(TICK));
        }
    }

    /// Waits until all replicas are ready members of one configuration. Returns what they say, and
    /// since when it was so.
    fn wait_until_whole(&mut self) -> Result<(Vec<Member>, u64)> {
        let begun = Instant::now();
        let mut since: Option<(Instant, u64)> = None;
        loop {
            let (asked, asked_us) = (Instant::now(), self.now_us());
            let answers = self.group.ask();
            match obstacle(&answers) {
                None => {
                    let (whole, whole_us) = *since.get_or_insert((asked, asked_us));
                    if whole.elapsed() >= WHOLE_FOR {
                        return Ok((answers.into_iter().flatten().collect(), whole_us));
                    }
                }
                Some(why) if begun.elapsed() > WHOLE_MAX => {
                    return Err(Error::unavailable(format!(
                        "the group is not whole after {} s: {why}; after {}; `up` said:\n{}",
                        WHOLE_MAX.as_secs(),
                        locked(&self.shared.injected),
                        self.group.said()
                    )));
                }
                Some(_) => since = None,
            }
            self.pass(Instant::now() + TICK)?;
        }
    }

    fn take(&self, kind: Kind) -> Seen {
        merged(self.pairs.iter().map(|pair| pair.samples(kind).take()))
    }

    fn round(&mut self, number: u64) -> Result<Round> {
        let (fault, role) = self.args.fault(number);
        let cutter = self.args.cut_command.clone().map(Cutter);
        let (mut members, _) = self.wait_until_whole()?;
        if let Some(cutter) = &cutter {
            cutter.prepare(&members)?;
            members = self.wait_until_whole()?.0;
        }
        self.shared.round.fetch_add(1, Relaxed);
        for kind in Kind::ALL {
            self.take(kind);
        }
        let begun_us = self.now_us();
        self.pass(Instant::now() + Duration::from_secs(self.args.calm))?;
        // Roles of now: a fail-over without a fault is told, and ends no run.
        let (before, (members, _)) = (members, self.wait_until_whole()?);
        let has_changed = has_changed(&before, &members);
        let replica = in_role(&members, role, number)?.clone();
        let calm = Kind::ALL.map(|kind| self.take(kind));
        let fault_us = self.inject(fault, &replica, &members, cutter.as_ref())?;
        let (_, whole_us) = self.wait_until_whole()?;
        self.pass(Instant::now() + Duration::from_secs(self.args.after))?;
        let seen = Kind::ALL.map(|kind| self.take(kind));
        let times = Times { begun_us, fault_us, whole_us, ended_us: self.now_us() };
        let all = [0, 1].map(|kind| [&calm[kind].answers[..], &seen[kind].answers].concat());
        Ok(Round {
            number: number + 1,
            fault,
            role,
            replica: replica.replica,
            has_changed,
            times,
            figures: [0, 1].map(|kind| Figures::of(&calm[kind].answers, &seen[kind], times)),
            bins: all.map(|answers| binned(&answers, times)),
        })
    }

    /// Does the fault, and undoes it where it lasts. Returns when it began.
    fn inject(
        &mut self,
        fault: Fault,
        replica: &Member,
        members: &[Member],
        cutter: Option<&Cutter>,
    ) -> Result<u64> {
        let process = Process::of(replica)?;
        let lasts = Duration::from_secs(self.args.stop_for);
        let begun_us = self.now_us();
        *locked(&self.shared.injected) = format!(
            "{} of replica {}, which was process {} in the role '{}', at {:.3} s",
            fault.as_str(),
            replica.replica,
            replica.pid,
            replica.role,
            begun_us as f64 / 1e6
        );
        match (fault, cutter) {
            (Fault::Kill, _) => process.signal(Signal::KILL)?,
            (Fault::Stop, _) => {
                process.signal(Signal::STOP)?;
                let _stopped = Stopped(process);
                self.pass(Instant::now() + lasts)?;
            }
            (_, Some(cutter)) => {
                let cut = match fault {
                    Fault::Hang => cutter.hang(replica, &self.group.directory_of(replica))?,
                    _ => cutter.cut(fault, replica, neighbour(members, replica)?)?,
                };
                self.pass(Instant::now() + lasts)?;
                cut.heal()?;
            }
            (_, None) => unreachable!("the options are checked: a cut has a command"),
        }
        Ok(begun_us)
    }

    /// Reads every key through every door, and compares the replicas.
    fn read_back(&mut self, out: &mut dyn Write) -> Result<()> {
        let mut keys = 0;
        for door in 0..self.shared.addresses.len() {
            for pair in &self.pairs {
                keys += pair.read_back(&self.shared, door)?;
            }
        }
        self.pass(Instant::now())?;
        let (is_same, said) = self.group.verify()?;
        if !is_same {
            self.shared.violated_by_all(&said);
            return Err(Error::corruption("there was a violation"));
        }
        let retired: usize = self.pairs.iter().map(|pair| pair.retired()).sum();
        let line = format!(
            "{} reads through every door at the end were right, and `gabion verify` found no \
             difference; of {retired} writes nobody knew whether they were made\n",
            grouped(keys as u64)
        );
        if self.sink.is_stdout() { Ok(()) } else { print(&line, out) }
    }

    fn draw(&self, path: &Path) -> Result<()> {
        let Some(round) = self.rounds.iter().max_by_key(|round| round.figures[0].gap_us) else {
            return Ok(());
        };
        std::fs::write(path, timeline(round).svg()).map_err(|error| {
            Error::with_source(ErrorKind::Io, format!("write {}", path.display()), error)
        })
    }
}

fn binned(answers: &[Answer], times: Times) -> Vec<u64> {
    // The last bin would be part of one.
    let whole = (times.ended_us - times.begun_us) / BIN_US * BIN_US;
    bins(answers, (times.begun_us, times.begun_us + whole), BIN_US)
}

/// A round in the form of RubbleDB's Figure 11.
fn timeline(round: &Round) -> Timeline {
    let Times { begun_us, fault_us, whole_us, .. } = round.times;
    let seconds = |us: u64| us as f64 / 1e6;
    let since_begin = |us: u64| seconds(us.saturating_sub(begun_us));
    let fault = since_begin(fault_us);
    let per_second = |bins: &[u64]| bins.iter().map(|n| *n as f64 * 1e6 / BIN_US as f64).collect();
    let [writes, reads] = &round.bins;
    let first = round.figures[0].first_answer_us;
    let mut marks = vec![Mark { at: fault, text: round.fault.as_str().to_owned() }];
    marks.extend(first.map(|after_us| {
        let text = format!("first write after {} ms", round.figures[0].gap_us / 1000);
        Mark { at: fault + seconds(after_us), text }
    }));
    let whole = since_begin(whole_us);
    marks.push(Mark { at: whole, text: format!("whole after {:.1} s", whole - fault) });
    Timeline {
        title: format!(
            "Answers a second when the {} (replica {}) fails: {}",
            round.role.as_str(),
            round.replica,
            round.fault.as_str()
        ),
        note: "The form of RubbleDB's Figure 11; time in seconds, bins of 100 ms".to_owned(),
        bin_seconds: seconds(BIN_US),
        lines: vec![
            ("writes".to_owned(), per_second(writes)),
            ("reads".to_owned(), per_second(reads)),
        ],
        marks,
    }
}

//! Every crash point of every recovery. A small workload is cut short at each boundary, in each way
//! in which a crash may leave a machine. The recovery from each of these is cut short at each of
//! its own boundaries, in each of these ways again (docs/faults.md E2). The second recovery must
//! find a state that the first crash allows.
//!
//! A power cut leaves nothing, all, or one of two mixtures of torn sectors of the unflushed writes,
//! and zeros or garbage in the ring. A kill leaves the ring as it was, or with its last write torn.
//!
//! `cargo test` takes a sample of both, `GABION_CRASH_FULL=1` all.

use crate::crash_points::{is_allowed, recover};
use crate::rig::{Bounds, Moment, Recovery, RingReplay, Run};
use crate::workloads::{self, Workload};
use crate::{in_parts, is_full, times};
use gabion_media::simulated::{Recording, SimulatedDisk};
use gabion_sim::SimulatedMemory;

/// First crashes that are taken without `GABION_CRASH_FULL` and `GABION_TIMES`, and second ones
/// after each.
const FIRST_MAX: u64 = 6;
const SECOND_MAX: usize = 8;
/// First crashes between two progress messages, when all are taken.
const SAID_EVERY: usize = 50;

/// A way in which a crash may leave a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// The process is killed. A seed tears the last write to the ring.
    Kill(Option<u64>),
    /// The power is cut; the seed decides the remains.
    Power(u64),
}

/// A crash of a recorded run.
#[derive(Clone, Copy, Debug)]
struct Crash {
    moment: Moment,
    way: Way,
}

/// Every crash of a run or of a recovery, in order.
fn crashes(recording: &Recording, moments: &[Moment], ring: &RingReplay<'_>) -> Vec<Crash> {
    let (mut replay, mut all) = (recording.replay(), Vec::new());
    for (i, &moment) in moments.iter().enumerate() {
        while replay.boundary() < moment.effects {
            replay.advance();
        }
        all.push(Crash { moment, way: Way::Kill(None) });
        if ring.ends_with_write(moment) {
            all.extend([1, 2].map(|seed| Crash { moment, way: Way::Kill(Some(seed + i as u64)) }));
        }
        // The ring is lost: a write to it alone makes no difference.
        if moments.get(i + 1).is_some_and(|next| next.effects == moment.effects) {
            continue;
        }
        let seeds = [0, 1, 2 + 31 * i as u64, 3 + 31 * i as u64];
        let ways = if replay.unsynced() == 0 { 2 } else { 4 };
        all.extend(seeds[..ways].iter().map(|&seed| Crash { moment, way: Way::Power(seed) }));
    }
    all
}

/// The remains of crashes, one after the other.
struct Left<'a> {
    replay: gabion_media::simulated::Replay<'a>,
    ring: RingReplay<'a>,
}

impl Left<'_> {
    /// The machine after a crash that is no earlier than the one before.
    fn after(&mut self, crash: Crash) -> (SimulatedDisk, SimulatedMemory) {
        while self.replay.boundary() < crash.moment.effects {
            self.replay.advance();
        }
        match crash.way {
            Way::Kill(torn) => {
                (self.replay.image(1), self.ring.image(crash.moment.ring_writes, torn))
            }
            Way::Power(seed) => {
                let ring = self.ring.image(crash.moment.ring_writes, None);
                ring.crash_power(seed);
                (self.replay.image(seed), ring)
            }
        }
    }
}

/// The bounds after a first crash of either kind, and a second.
fn bounds(run: &Run, crash: Crash, is_kill: bool) -> Bounds {
    let bounds = run.bounds(crash.moment, is_kill);
    match crash.way {
        // The record whose write is torn was not acknowledged.
        Way::Kill(Some(_)) if is_kill => {
            let ring_writes = crash.moment.ring_writes - 1;
            let before = Moment { ring_writes, ..crash.moment };
            Bounds { least: run.bounds(before, true).least, ..bounds }
        }
        _ => bounds,
    }
}

const fn is_kill(way: Way) -> bool {
    matches!(way, Way::Kill(_))
}

#[derive(Default)]
struct Tally {
    first: usize,
    second: usize,
    /// Effects and writes to the ring of the longest recovery.
    longest: usize,
    failures: Vec<String>,
}

impl Tally {
    fn add(&mut self, other: Self) {
        self.first += other.first;
        self.second += other.second;
        self.longest = self.longest.max(other.longest);
        self.failures.extend(other.failures);
    }
}

/// The recovery from a crash, which is cut short everywhere, or at every `stride`th of its crashes.
fn cut_short(
    run: &Run,
    first: Crash,
    left: (SimulatedDisk, SimulatedMemory),
    wanted: Option<usize>,
) -> Result<Tally, String> {
    let recovery = Recovery::record(&left.0, left.1)?;
    let allowed = bounds(run, first, is_kill(first.way));
    is_allowed(run, &recovery.found, recovery.found_ms, allowed)?;
    let moments = recovery.moments();
    let ring = RingReplay::of_recovery(&recovery);
    let all = crashes(&recovery.recording, &moments, &ring);
    let stride = wanted.map_or(1, |wanted| all.len().div_ceil(wanted));
    let mut left = Left { replay: recovery.recording.replay(), ring };
    let mut tally = Tally { first: 1, longest: moments.len(), ..Tally::default() };
    let offset = first.moment.effects % stride;
    for &second in all.iter().skip(offset).step_by(stride) {
        let bounds = bounds(run, first, is_kill(first.way) && is_kill(second.way));
        let (disk, memory) = left.after(second);
        tally.second += 1;
        if let Err(error) = recover(&disk, &memory, run, bounds) {
            tally.failures.push(format!("{first:?}, then {second:?}: {error}"));
        }
    }
    Ok(tally)
}

/// A part of the first crashes, each with all of its recovery's.
fn some(workload: &Workload, part: usize, parts: usize) -> (Tally, String) {
    let run = Run::record(&workload.group, &workload.turns);
    let moments = run.moments();
    let ring = RingReplay::new(&run);
    let all = crashes(&run.recording, &moments, &ring);
    let most = (FIRST_MAX * times()) as usize;
    let (stride, wanted) =
        if is_full() { (1, None) } else { (all.len().div_ceil(most), Some(SECOND_MAX)) };
    let (mut left, mut tally) = (Left { replay: run.recording.replay(), ring }, Tally::default());
    for (i, &crash) in all.iter().enumerate().step_by(stride).skip(part).step_by(parts) {
        if is_full() && (i / parts).is_multiple_of(SAID_EVERY) {
            let (second, wrong) = (tally.second, tally.failures.len());
            eprintln!(
                "{}: crash {i} of {}, {second} states, {wrong} wrong",
                workload.name,
                all.len()
            );
        }
        match cut_short(&run, crash, left.after(crash), wanted) {
            Ok(more) => tally.add(more),
            Err(error) => tally.failures.push(format!("{crash:?}: {error}")),
        }
    }
    let effects = run.recording.effects().len();
    let what = format!(
        "{effects} effects on the disk, {} boundaries, {} crashes; {}",
        moments.len(),
        all.len(),
        run.counters
    );
    (tally, what)
}

/// docs/faults.md: E2
#[test]
fn a_recovery_that_is_cut_short_anywhere_is_recovered_from() {
    let workload = workloads::little();
    let parts = in_parts(|part, parts| some(&workload, part, parts));
    let mut tally = Tally::default();
    let mut what = String::new();
    for (part, run) in parts {
        tally.add(part);
        what = run;
    }
    eprintln!(
        "coverage: crash points of recoveries, {}: {} of them cut short at {} states in all, up to {} boundaries \
         each; {what}",
        workload.name, tally.first, tally.second, tally.longest
    );
    let failures = &tally.failures;
    let few: Vec<_> = failures.iter().take(5).collect();
    assert!(failures.is_empty(), "{} states are wrong: {few:#?}", failures.len());
    assert!(tally.second >= 4 * tally.first, "{} recoveries, {} states", tally.first, tally.second);
}

//! Every crash point of twenty-four workloads. A replica alone in its group writes, flushes,
//! compacts and trims, and all effects on its disk and its ring are recorded. For every boundary
//! between two such effects the machine is made anew as a crash there would have left it
//! (docs/faults.md E1 to E3).
//!
//! - Power cut: the ring is lost; of the unflushed writes nothing, all, or a seeded mixture of torn
//!   sectors survives. Everything that was durable must be there.
//!
//! The recovered state must be one after a whole number of records, between the acknowledged ones
//! and the begun ones: nothing lost, no deleted key back, no half record. At rest no slot is lost.
//! Recovery is then interrupted by power cuts itself, again and again.
//!
//! `cargo test` takes a sample with a stride; `GABION_CRASH_FULL=1` takes every boundary, which is
//! for `--release`, and prints its progress now and then (`-- --nocapture` shows it).
//!
//! docs/faults.md: E1, E2, E3

use crate::rig::{Bounds, Drive, Moment, Records, Replica, RingReplay, Run, Turn, is_state};
use crate::workloads::{self, Workload};
use crate::{in_parts, is_full, times};
use gabion_base::units::EDIT_KEY_BOUND_LEN_MAX;
use gabion_media::MemoryRegion;
use gabion_media::simulated::{Replay, SimulatedDisk};
use gabion_node::{AckLevel, GroupConfig};
use gabion_pool::Trust;
use gabion_sim::SimulatedMemory;
use gabion_sim::client::{LONG_KEYS, TWINS};

/// Moments that a test takes without `GABION_CRASH_FULL` and `GABION_TIMES`.
const MOMENTS_MAX: u64 = 4;
/// Distance of boundaries whose recovery is itself interrupted, when all are taken.
const RECOVERY_EVERY: usize = 60;
/// Boundaries between two progress messages, when all are taken.
const SAID_EVERY: usize = 50;

/// States, kills and power cuts in turn, between two whose replica goes on after recovery.
const GOES_ON_EVERY: u64 = 5;
/// How far the clock goes on: everything that expires is due then.
const GOES_ON_MS: u64 = 1 << 20;

/// The states of a workload, or of a part of its boundaries.
#[derive(Default)]
struct Tally {
    states: u64,
    deepest: u32,
    /// States after whose recovery more was written.
    went_on: u64,
    failures: Vec<String>,
}

/// A part of a workload's boundaries: every second, for example, of stretches of
/// [`RECOVERY_EVERY`].
struct Enumeration<'a> {
    name: &'a str,
    group: &'a GroupConfig,
    run: &'a Run,
    part: usize,
    parts: usize,
    /// Boundaries from one taken to the next.
    stride: usize,
    /// The most states to take; a wrong one ends it as well.
    states_max: Option<u64>,
    tally: Tally,
}

/// Opens an image, lets it come to rest, checks it, and opens the result once more.
pub(crate) fn recover(
    disk: &SimulatedDisk,
    ring: &SimulatedMemory,
    run: &Run,
    bounds: Bounds,
) -> Result<Records, String> {
    let mut replica = Replica::start(disk.clone(), Box::new(ring.clone()), Trust::Readable);
    replica.settle()?;
    let found = replica.records()?;
    is_allowed(run, &found, replica.group_ms(), bounds)?;
    replica.check_at_rest()?;
    drop(replica);
    let mut again = Replica::start(disk.clone(), Box::new(ring.clone()), Trust::Readable);
    again.settle().map_err(|error| format!("second opening: {error}"))?;
    if !is_state(&found, &again.records()?, again.group_ms()) {
        return Err("a second opening found something else".into());
    }
    again.check_at_rest()?;
    Ok(found)
}

/// Writes to a replica that has recovered: numbers that no workload has, over its keys and beside
/// them.
fn afterwards() -> Vec<Turn> {
    let put = |key: u64, number: u64| (key, Some((1_000_000 + number) << 8));
    vec![
        Turn::Write(vec![put(0, 1), put(TWINS, 1), put(LONG_KEYS + 7, 1), (3, None)]),
        Turn::Seal,
        Turn::Write(vec![put(1, 2), put(TWINS + 1, 2), put(0, 2), (TWINS + 2, None)]),
        Turn::DeleteRange(5..9),
        Turn::Add(vec![(2_000_000, 3)]),
        Turn::Seal,
        Turn::Rest,
        Turn::Compact,
        Turn::Add(vec![(2_000_000, 4)]),
        Turn::Write(vec![put(2, 3), put(3_000_000, 3)]),
        Turn::Rest,
    ]
}

/// Writes, flushes and compacts after recovery, and lets time pass. A file or a sequence number
/// that was used twice, or a job that does not begin any more, would show. The writes are there,
/// and after a power cut as well once they were called durable.
fn goes_on(disk: &SimulatedDisk, memory: &SimulatedMemory, ack: AckLevel) -> Result<(), String> {
    let ring = || Box::new(memory.clone()) as Box<dyn MemoryRegion>;
    let now = || Moment { effects: 0, ring_writes: 0 };
    let mut drive = Drive::start(disk, &ring, &now, ack, Trust::Readable);
    drive.run(&[Turn::Rest])?;
    drive.models = vec![drive.replica.records()?];
    drive.replica.pass(GOES_ON_MS);
    drive.run(&afterwards())?;
    let wanted = drive.models.last().cloned().unwrap_or_default();
    drive.replica.make_durable()?;
    drive.replica.settle()?;
    let (found, now_ms) = (drive.replica.records()?, drive.replica.group_ms());
    if !is_state(&wanted, &found, now_ms) {
        return Err(format!("{}, at {now_ms}", first_difference(&wanted, &found)));
    }
    drive.replica.check_at_rest()?;
    let node = drive.replica.node().ok_or("the replica is not open")?;
    let counters = node.counters();
    if counters.flushes < 2 || !node.tree().version().level(0).is_empty() {
        return Err(format!("what is to be flushed and compacted is not: {counters:?}"));
    }
    drop(drive);
    disk.crash_power(now_ms);
    memory.crash_power(now_ms);
    let mut last = Replica::start(disk.clone(), ring(), Trust::Readable);
    last.settle().map_err(|error| format!("power cut at last: {error}"))?;
    let found = last.records()?;
    if !is_state(&wanted, &found, last.group_ms()) {
        return Err(format!("power cut at last: {}", first_difference(&wanted, &found)));
    }
    last.check_at_rest()
}

fn first_difference(wanted: &Records, found: &Records) -> String {
    let missing = wanted.iter().find(|(key, value)| found.get(*key) != Some(value));
    let extra = found.iter().find(|(key, _)| !wanted.contains_key(*key));
    format!("first difference: wanted {missing:?}, too many {extra:?}")
}

/// Whether the records found at a time of the group may be there.
///
/// # Errors
/// Names the records, and the allowed ones.
pub(crate) fn is_allowed(
    run: &Run,
    found: &Records,
    now_ms: u64,
    bounds: Bounds,
) -> Result<(), String> {
    if bounds.is_cleared(found)? {
        return Ok(());
    }
    let found = bounds.check_unlogged(found)?;
    let is_found = |model: &Records| is_state(model, &found, now_ms);
    if run.models[bounds.least..=bounds.most].iter().any(is_found) {
        return Ok(());
    }
    let other = run.models.iter().position(is_found);
    let wanted = &run.models[bounds.least];
    Err(format!(
        "recovered the state after {other:?} records at {now_ms}, allowed is {bounds:?}; {}",
        first_difference(wanted, &found)
    ))
}

impl Enumeration<'_> {
    fn all(mut self) -> Tally {
        let moments = self.run.moments();
        let stride = self.stride;
        let (mut replay, mut ring) = (self.run.recording.replay(), RingReplay::new(self.run));
        for (i, moment) in moments.iter().enumerate() {
            while replay.boundary() < moment.effects {
                replay.advance();
            }
            if self.is_enough() {
                break;
            }
            // The stride is no multiple of anything in the workload.
            if i % stride != 0 || i / RECOVERY_EVERY % self.parts != self.part {
                continue;
            }
            if is_full() && i % SAID_EVERY == 0 {
                let Tally { states, failures, .. } = &self.tally;
                let (name, all, wrong) = (self.name, moments.len(), failures.len());
                eprintln!("{name}: boundary {i} of {all}, {states} states, {wrong} wrong");
            }
            let last_of_effect =
                moments.get(i + 1).is_none_or(|next| next.effects > moment.effects);
            self.kill(i, *moment, &replay, &mut ring);
            if last_of_effect || stride > 1 {
                self.power_cuts(i, *moment, &replay, &mut ring);
            }
            let interrupts = if is_full() { i % RECOVERY_EVERY == 0 } else { i == 3 * stride };
            if interrupts {
                self.interrupted(i, *moment, &replay, &mut ring);
            }
        }
        self.tally
    }

    fn is_enough(&self) -> bool {
        let Some(most) = self.states_max else { return false };
        self.tally.states >= most || !self.tally.failures.is_empty()
    }

    fn kill(&mut self, i: usize, moment: Moment, replay: &Replay<'_>, ring: &mut RingReplay<'_>) {
        let bounds = self.run.bounds(moment, true);
        let memory = ring.image(moment.ring_writes, None);
        self.check(moment, "kill", &replay.image(1), &memory, bounds);
        if ring.ends_with_write(moment) {
            let before = Moment { ring_writes: moment.ring_writes - 1, ..moment };
            let bounds = Bounds { least: self.run.bounds(before, true).least, ..bounds };
            let torn = ring.image(moment.ring_writes, Some(i as u64));
            self.check(moment, "kill, torn ring", &replay.image(1), &torn, bounds);
        }
    }

    fn power_cuts(
        &mut self,
        i: usize,
        moment: Moment,
        replay: &Replay<'_>,
        ring: &mut RingReplay<'_>,
    ) {
        let bounds = self.run.bounds(moment, false);
        let mixtures = if is_full() { 8 } else { 2 };
        let variants = if replay.unsynced() == 0 { 1 } else { 2 + mixtures };
        for variant in 0..variants {
            let seed = if variant < 2 { variant } else { variant + 31 * i as u64 };
            let lost = lost_ring(ring, moment.ring_writes, seed);
            let what = format!("power cut {seed}");
            self.check(moment, &what, &replay.image(seed), &lost, bounds);
        }
    }

    /// The recovery is itself cut short.
    fn interrupted(
        &mut self,
        i: usize,
        moment: Moment,
        replay: &Replay<'_>,
        ring: &mut RingReplay<'_>,
    ) {
        let lost = lost_ring(ring, moment.ring_writes, 0);
        let bounds = self.run.bounds(moment, false);
        let image = replay.image(7 + i as u64);
        match again_and_again(&image, &lost, self.run, bounds, 1) {
            Ok((states, depth)) => {
                self.tally.states += states;
                self.tally.deepest = self.tally.deepest.max(depth);
            }
            Err(error) => {
                self.tally.failures.push(format!("{}, {moment:?}, {error}", self.name));
            }
        }
    }

    fn check(
        &mut self,
        moment: Moment,
        what: &str,
        disk: &SimulatedDisk,
        memory: &SimulatedMemory,
        bounds: Bounds,
    ) {
        self.tally.states += 1;
        let mut checked = recover(disk, memory, self.run, bounds).map(drop);
        if self.tally.states.is_multiple_of(GOES_ON_EVERY) && checked.is_ok() {
            self.tally.went_on += 1;
            let ack = self.group.ack;
            checked = goes_on(disk, memory, ack).map_err(|error| format!("going on: {error}"));
        }
        if let Err(error) = checked {
            self.tally.failures.push(format!("{}, {moment:?}, {what}: {error}", self.name));
        }
    }
}

/// Boundaries from one taken to the next.
fn stride_of(moments: usize) -> usize {
    if is_full() { 1 } else { moments.div_ceil((MOMENTS_MAX * times()) as usize) }
}

fn lost_ring(ring: &mut RingReplay<'_>, writes: usize, seed: u64) -> SimulatedMemory {
    let lost = ring.image(writes, None);
    lost.crash_power(seed);
    lost
}

/// Recovers an image and cuts the power at boundaries of the recovery, to a depth of three (E2).
fn again_and_again(
    image: &SimulatedDisk,
    ring: &SimulatedMemory,
    run: &Run,
    bounds: Bounds,
    depth: u32,
) -> Result<(u64, u32), String> {
    let disk = image.fork();
    disk.start_recording();
    let mut replica = Replica::start(disk.clone(), Box::new(ring.clone()), Trust::Readable);
    replica.settle()?;
    is_allowed(run, &replica.records()?, replica.group_ms(), bounds)?;
    let recording = disk.recording().ok_or("no recording")?;
    drop(replica);
    let boundaries = recording.effects().len() + 1;
    let wanted = if is_full() { 12 } else { 3 };
    let stride = boundaries.div_ceil(wanted);
    let (mut states, mut deepest) = (1, depth);
    for boundary in (depth as usize % stride..boundaries).step_by(stride) {
        for variant in [0, 1, 3 + boundary as u64] {
            let cut = recording.image_at(boundary, variant);
            let lost = SimulatedMemory::new(MemoryRegion::len(ring) as usize);
            lost.crash_power(variant);
            let at =
                |error| format!("recovery {depth} cut at {boundary}, variant {variant}: {error}");
            if depth < 3 && variant > 1 {
                let (more, deeper) =
                    again_and_again(&cut, &lost, run, bounds, depth + 1).map_err(at)?;
                states += more;
                deepest = deepest.max(deeper);
            } else {
                recover(&cut, &lost, run, bounds).map_err(at)?;
                states += 1;
            }
        }
    }
    Ok((states, deepest))
}

/// Each part records the workload anew, as a seeded executor's work stays in its thread: it is the
/// same run.
fn all(workload: &Workload) {
    let _ = longest_bound_of_all(workload);
}

/// Takes every `stride`th boundary of a run until a state is wrong, or `states_max` are right.
/// Returns how many were taken, and the defect of the last.
#[cfg(feature = "planted")]
pub(crate) fn first_failure(
    workload: &Workload,
    run: &Run,
    stride: usize,
    states_max: u64,
) -> (u64, Option<String>) {
    let Workload { name, group, .. } = workload;
    let (states_max, tally) = (Some(states_max), Tally::default());
    let all = Enumeration { name, group, run, part: 0, parts: 1, stride, states_max, tally };
    let tally = all.all();
    (tally.states, tally.failures.into_iter().next())
}

/// The longest bound of a file when the workload is done, in bytes.
fn longest_bound_of_all(workload: &Workload) -> usize {
    let name = workload.name;
    let tallies = in_parts(|part, parts| {
        let run = Run::record(&workload.group, &workload.turns);
        let (group, tally) = (&workload.group, Tally::default());
        let (effects, moments) = (run.recording.effects().len(), run.moments().len());
        let (stride, states_max) = (stride_of(moments), None);
        let run = &run;
        let tally = Enumeration { name, group, run, part, parts, stride, states_max, tally };
        let tally = tally.all();
        let what = format!("{effects} effects on the disk, {moments} boundaries");
        (tally, what, run.counters.clone(), run.longest_bound)
    });
    let states: u64 = tallies.iter().map(|(tally, ..)| tally.states).sum();
    let went_on: u64 = tallies.iter().map(|(tally, ..)| tally.went_on).sum();
    let deepest = tallies.iter().map(|(tally, ..)| tally.deepest).max().unwrap_or_default();
    if let Some((_, run, counters, _)) = tallies.first() {
        eprintln!(
            "coverage: crash points, {name}: {run}, {states} states, {went_on} gone on from, recovery interrupted \
             {deepest} times in a row; {counters}"
        );
    }
    let failures: Vec<&String> = tallies.iter().flat_map(|(tally, ..)| &tally.failures).collect();
    let first: Vec<_> = failures.iter().take(5).collect();
    assert!(failures.is_empty(), "{} states are wrong: {first:#?}", failures.len());
    tallies.first().map_or(0, |(.., longest_bound)| *longest_bound)
}

#[test]
fn puts_and_overwrites_with_flush_and_compaction_survive_every_crash_point() {
    all(&workloads::puts());
}

#[test]
fn deletes_and_clears_with_lz4_survive_every_crash_point() {
    all(&workloads::deletes());
}

#[test]
fn durable_batches_over_segments_and_trims_survive_every_crash_point() {
    all(&workloads::durable_batches());
}

#[test]
fn syncs_amid_flushes_survive_every_crash_point() {
    all(&workloads::syncs());
}

/// docs/faults.md: E1
#[test]
fn values_that_stay_in_the_log_survive_every_crash_point() {
    all(&workloads::kept());
}

#[test]
fn ascending_keys_and_files_that_are_moved_survive_every_crash_point() {
    all(&workloads::ascending());
}

#[test]
fn descending_keys_survive_every_crash_point() {
    all(&workloads::descending());
}

#[test]
fn a_few_hot_keys_survive_every_crash_point() {
    all(&workloads::hot());
}

#[test]
fn long_values_and_batches_survive_every_crash_point() {
    all(&workloads::long_values());
}

#[test]
fn a_range_that_is_filled_and_emptied_survives_every_crash_point() {
    all(&workloads::fill_and_empty());
}

#[test]
fn tombstones_alone_survive_every_crash_point() {
    all(&workloads::tombstones());
}

#[test]
fn clears_between_puts_survive_every_crash_point() {
    all(&workloads::clears());
}

#[test]
fn seals_and_compactions_on_demand_survive_every_crash_point() {
    all(&workloads::on_demand());
}

#[test]
fn restarts_amid_everything_survive_every_crash_point() {
    all(&workloads::restarts());
}

/// docs/faults.md: P13
#[test]
fn counters_that_are_added_to_survive_every_crash_point() {
    all(&workloads::counters());
}

/// docs/faults.md: P16
#[test]
fn deleted_ranges_survive_every_crash_point_and_nothing_of_them_comes_back() {
    all(&workloads::range_deletes());
}

/// docs/faults.md: P10
#[test]
fn loads_survive_every_crash_point_whole_or_not_at_all() {
    all(&workloads::loads());
}

/// docs/faults.md: P26
#[test]
fn of_writes_past_the_log_what_is_in_files_survives_every_crash_point_and_the_log_does_beside_them()
{
    all(&workloads::past_the_log());
}

#[test]
fn pauses_survive_every_crash_point() {
    all(&workloads::pauses());
}

#[test]
fn keys_that_expire_survive_every_crash_point_until_their_time_and_no_longer() {
    all(&workloads::expiries());
}

#[test]
fn keys_that_expire_where_every_replica_compacts_survive_every_crash_point() {
    all(&workloads::expiries_everywhere());
}

#[test]
fn long_keys_and_bounds_survive_every_crash_point() {
    let longest_bound = longest_bound_of_all(&workloads::long_keys());
    assert!(longest_bound > EDIT_KEY_BOUND_LEN_MAX, "no bound is longer than {longest_bound}");
}

#[test]
fn deletes_where_every_replica_compacts_survive_every_crash_point() {
    all(&workloads::deletes_everywhere());
}

#[test]
fn clears_where_every_replica_compacts_survive_every_crash_point() {
    all(&workloads::clears_everywhere());
}

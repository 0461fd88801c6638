//! The same operations under many options give the same history.
//!
//! A script follows from a seed. It has writes (puts, puts that expire, counters that are added to,
//! deletes of keys and of ranges, clears, in batches, some past the log), bulk loads, seals,
//! compactions on demand, changes of options in between, kills, marks, a checkpoint and held views.
//! Groups of one to four replicas carry it out, each with other options ([`sets`]): sizes,
//! triggers, blocks, filters, codecs, caches, jobs, levels of acknowledgement, who compacts. The
//! answers of reads, at any replica, are a function of the script alone: they are compared with a
//! map, and so each group with every other. Files, places in the log and times of flushes differ,
//! and the test sees that they do.
//!
//! An *epoch* of the script is a stretch of group time. Everything that a script has expire does so
//! between the work of one epoch and that of the next, so that the duration of the work under some
//! options changes no answer.
//!
//! `cargo test` takes four of the sets, `GABION_TIMES` multiplies them, and from 15 on (four times
//! 15 are more than the sets) other scripts follow.

mod checkpoint;
mod group;
mod look;
mod script;
mod sets;

use crate::times;
use group::Group;
use std::collections::BTreeSet;

/// Sets of options that `cargo test` takes.
const RUNS: u64 = 4;
/// The first set taken; the second is of one replica, which writes past its log.
const FIRST: u64 = 28;
/// From one set taken to the next: every kind is among the first, and each is met once, as the
/// stride has no factor in common with their number.
const STRIDE: u64 = 13;

/// The counts of a test's runs.
#[derive(Default)]
struct Tally {
    answers: usize,
    flushes: BTreeSet<u64>,
    compactions: BTreeSet<u64>,
    kills: u64,
    shipped: u64,
    ended: u64,
    loads: u64,
    past_log: u64,
    shapes: BTreeSet<u32>,
}

/// docs/faults.md: P15
#[test]
fn the_same_operations_under_many_options_give_the_same_history() {
    let (sets, mut tally) = (sets::all(), Tally::default());
    let count = sets.len() as u64;
    let runs = RUNS * times();
    for run in 0..runs {
        let set = &sets[((FIRST + run * STRIDE) % count) as usize];
        let seed = run / count;
        let script = script::Script::new(seed);
        let end = Group::new(seed, set).carry_out(&script).unwrap_or_else(|error| {
            let name = set.name;
            panic!("script {seed}, {name}: {error}\nrepeat: run {run} of GABION_TIMES={}", times())
        });
        tally.answers += end.answers;
        tally.flushes.insert(end.outcome.flushes);
        tally.compactions.insert(end.outcome.compactions);
        tally.kills += end.outcome.crashes;
        tally.shipped += end.outcome.shipped_files;
        tally.ended += end.views_ended;
        tally.loads += end.loads;
        tally.past_log += end.past_log;
        tally.shapes.insert(end.shape);
    }
    eprintln!(
        "coverage: options: {runs} runs under {} of {count} sets, {} answers, {:?} to {:?} flushes, {:?} to {:?} \
         compactions, {} loads, {} batches past the log, {} files shipped, {} kills, {} views past their budget, {} trees \
         that differ",
        runs.min(count),
        tally.answers,
        tally.flushes.first(),
        tally.flushes.last(),
        tally.compactions.first(),
        tally.compactions.last(),
        tally.loads,
        tally.past_log,
        tally.shipped,
        tally.kills,
        tally.ended,
        tally.shapes.len(),
    );
    assert!(tally.answers as u64 > 1_000 * runs, "{} answers", tally.answers);
    assert!(tally.kills > runs, "{} kills", tally.kills);
    assert!(tally.shipped > 10 * runs, "{} files were shipped", tally.shipped);
    assert!(tally.loads > 3 * runs, "{} loads", tally.loads);
    assert!(tally.past_log > runs / 2, "{} batches past the log", tally.past_log);
    // Options that change nothing would prove nothing.
    let differ = tally.shapes.len() as u64;
    assert!(differ * 2 > runs.min(count), "{differ} of {runs} trees differ");
}

/// The map that groups are compared with depends on the script alone; a defect of it would show as
/// one of all groups.
#[test]
fn scripts_do_all_that_they_can() {
    let count = sets::all().len();
    assert!(count >= 30, "{count} sets of options");
    assert!(!(count as u64).is_multiple_of(STRIDE), "the stride has to meet each");
    let names: BTreeSet<&str> = sets::all().iter().map(|set| set.name).collect();
    assert_eq!(names.len(), count, "sets have names of their own");
    for seed in 0..3 {
        script::Script::new(seed).has_everything();
    }
}

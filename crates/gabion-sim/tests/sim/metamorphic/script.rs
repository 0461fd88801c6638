//! The operations, and the expected answers of reads: a function of the seed.

use super::look::{Look, any_look};
use gabion_engine::{Codecs, Compression};
use gabion_sim::Random;
use gabion_sim::client::encode_value;
use std::collections::BTreeMap;

/// Possible keys.
pub(super) const KEYS: u64 = 150;
/// Time from the beginning of an epoch to that of the next.
pub(super) const EPOCH_MS: u64 = 12_000;
/// The part of an epoch in which its work is done.
pub(super) const WORK_MS: u64 = 10_000;
/// The time in an epoch when its expiring values expire.
const EXPIRY_MS: u64 = 11_000;
const EPOCHS: u64 = 3;
/// Operations of an epoch.
const OPERATIONS: u64 = 60;

/// The value of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Value {
    /// The bytes of a number, which counters do not count with.
    Bytes(u64),
    /// A number in decimal.
    Counter(i64),
}

impl Value {
    pub(super) fn bytes(self) -> Vec<u8> {
        match self {
            Self::Bytes(number) => encode_value(number),
            Self::Counter(number) => number.to_string().into_bytes(),
        }
    }
}

/// A change of a key, or from a key on.
#[derive(Clone, Copy, Debug)]
pub(super) enum Change {
    Put(Value),
    /// With the time from which it is gone.
    PutExpiring(Value, u64),
    Add(i64),
    Delete,
    /// Up to another key, or to the end.
    DeleteRange(Option<u64>),
    /// Of all keys.
    Clear,
}

/// A changed option; none: back to the value in the set of options.
#[derive(Clone, Copy, Debug)]
pub(super) enum Tuning {
    Codecs(Option<Codecs>),
    /// Bytes for blocks and for the memory of open files.
    Cache(Option<(usize, usize)>),
    CompactionsMax(Option<usize>),
    /// Quarters of a MemTable, and the limits for runs of L0; none: back.
    Limits(Option<(u64, [u32; 3])>),
}

/// A key, its value, and the end of its life.
pub(super) type Loaded = (u64, Value, Option<u64>);

/// A step. A replica's number is taken modulo their count.
#[derive(Clone, Debug)]
pub(super) enum Operation {
    /// One record, or none where a group of one writes past its log.
    Write {
        changes: Vec<(u64, Change)>,
        is_past_log: bool,
    },
    /// A bulk load of ascending keys. A group in which each replica compacts for itself writes
    /// them.
    Load(Vec<Loaded>),
    Seal,
    /// Compacts from one key to another, or everything.
    Compact(Option<(u64, u64)>),
    /// Changes an option of all replicas until they are killed.
    Tune(Tuning),
    /// Kills one replica, or all, and starts them again.
    Kill(u64),
    /// Looks keys up at a replica, and walks over a range in every way.
    Look(Look),
    /// Has every replica's state captured at one record, and looks at each.
    Mark(Look),
    /// Copies the head into a pool of its own, opens that and looks at it.
    Checkpoint(Look),
    /// Holds a view of a replica.
    Hold(u64),
    /// Looks at every held view.
    LookBack(Look),
    /// Gives up the view that was held longest.
    Release,
    /// The next epoch begins.
    Time,
}

/// Values by key, and the ends of their lives.
pub(super) type Model = BTreeMap<u64, (Value, Option<u64>)>;

pub(super) struct Script {
    /// Operations, and the model after each.
    pub(super) steps: Vec<(Operation, Model)>,
}

impl Script {
    pub(super) fn new(seed: u64) -> Self {
        let mut random = Random::new(seed ^ 36);
        let (mut steps, mut model, mut next_value) = (Vec::new(), Model::new(), 1);
        for epoch in 0..EPOCHS {
            for number in 0..OPERATIONS {
                let operation = match (number, epoch) {
                    // Steps that chance may leave out.
                    (20, 1) => {
                        let changes = vec![(0, Change::Clear)];
                        Operation::Write { changes, is_past_log: false }
                    }
                    (10, _) => Operation::Load(any_load(&mut random, epoch, &mut next_value)),
                    (25, 2) => Operation::Checkpoint(any_look(&mut random)),
                    (30, _) => Operation::Compact(None),
                    (35, _) => Operation::Mark(any_look(&mut random)),
                    (40, _) => Operation::Compact(Some(any_range(&mut random))),
                    (45, _) => Operation::Tune(any_limits(&mut random)),
                    _ => any_operation(&mut random, epoch, &mut next_value),
                };
                apply(&operation, &mut model, epoch * EPOCH_MS);
                steps.push((operation, model.clone()));
            }
            model.retain(|_, (_, until)| until.is_none_or(|at| at > (epoch + 1) * EPOCH_MS));
            steps.push((Operation::Time, model.clone()));
        }
        Self { steps }
    }

    /// Checks that every script has all kinds of steps.
    pub(super) fn has_everything(&self) {
        let has =
            |is: fn(&Operation) -> bool| self.steps.iter().any(|(operation, _)| is(operation));
        assert!(has(|it| matches!(it, Operation::Load(_))));
        assert!(has(|it| matches!(it, Operation::Write { is_past_log: true, .. })));
        assert!(has(|it| matches!(it, Operation::Seal)));
        assert!(has(|it| matches!(it, Operation::Compact(None))));
        assert!(has(|it| matches!(it, Operation::Compact(Some(_)))));
        assert!(has(|it| matches!(it, Operation::Tune(_))));
        assert!(has(|it| matches!(it, Operation::Tune(Tuning::Limits(Some(_))))));
        assert!(has(|it| matches!(it, Operation::Kill(_))));
        assert!(has(|it| matches!(it, Operation::LookBack(_))));
        assert!(has(|it| matches!(it, Operation::Mark(_))));
        assert!(has(|it| matches!(it, Operation::Checkpoint(_))));
        let writes = self.steps.iter().filter_map(|(operation, _)| match operation {
            Operation::Write { changes, .. } => Some(changes),
            _ => None,
        });
        let changes: Vec<Change> = writes.flatten().map(|(_, change)| *change).collect();
        let count = |is: fn(&Change) -> bool| changes.iter().filter(|it| is(it)).count();
        assert!(count(|it| matches!(it, Change::Clear)) > 0);
        assert!(count(|it| matches!(it, Change::DeleteRange(Some(_)))) > 8);
        assert!(count(|it| matches!(it, Change::DeleteRange(None))) > 0);
        assert!(count(|it| matches!(it, Change::Add(_))) > 60);
        assert!(count(|it| matches!(it, Change::Put(Value::Counter(_)))) > 8);
        let sizes =
            self.steps.windows(2).map(|pair| (&pair[1].0, pair[0].1.len(), pair[1].1.len()));
        let expired: usize = sizes
            .filter(|(operation, ..)| matches!(operation, Operation::Time))
            .map(|(_, before, after)| before - after)
            .sum();
        assert!(expired > 8, "{expired} keys expire with the epochs");
        let last = self.steps.last().map_or(0, |(_, model)| model.len());
        assert!(last > 5, "{last} keys are there at the end");
    }
}

fn apply(operation: &Operation, model: &mut Model, now_ms: u64) {
    match operation {
        Operation::Write { changes, .. } => {
            changes.iter().for_each(|(key, change)| change_model(*key, *change, model, now_ms));
        }
        Operation::Load(pairs) => {
            for (key, value, until) in pairs {
                let change = match until {
                    None => Change::Put(*value),
                    Some(at) => Change::PutExpiring(*value, *at),
                };
                change_model(*key, change, model, now_ms);
            }
        }
        _ => {}
    }
}

fn change_model(key: u64, change: Change, model: &mut Model, now_ms: u64) {
    match change {
        Change::Put(value) => _ = model.insert(key, (value, None)),
        Change::PutExpiring(value, at) if at > now_ms => _ = model.insert(key, (value, Some(at))),
        Change::PutExpiring(..) | Change::Delete => _ = model.remove(&key),
        // A counter keeps its time, and a value that is no number stays as it is.
        Change::Add(delta) => {
            if let (Value::Counter(number), _) =
                model.entry(key).or_insert((Value::Counter(0), None))
            {
                *number = number.saturating_add(delta);
            }
        }
        Change::DeleteRange(to) => {
            model.retain(|it, _| *it < key || to.is_some_and(|to| *it >= to))
        }
        Change::Clear => model.clear(),
    }
}

fn any_operation(random: &mut Random, epoch: u64, next_value: &mut u64) -> Operation {
    match random.below(100) {
        0..3 => Operation::Seal,
        3 => Operation::Compact(None),
        4 => Operation::Compact(Some(any_range(random))),
        5..7 => Operation::Kill(random.number() >> 8),
        7..17 => Operation::Look(any_look(random)),
        17..21 => Operation::Hold(random.number() >> 8),
        21..25 => Operation::LookBack(any_look(random)),
        25..27 => Operation::Release,
        27 => Operation::Load(any_load(random, epoch, next_value)),
        28..31 => Operation::Tune(any_tuning(random)),
        31 => Operation::Mark(any_look(random)),
        _ => Operation::Write {
            changes: any_changes(random, epoch, next_value),
            is_past_log: random.once_in(4),
        },
    }
}

fn any_limits(random: &mut Random) -> Tuning {
    let trigger = 1 + random.below(4) as u32;
    let slowdown = trigger + random.below(4) as u32;
    let stop = slowdown + random.below(4) as u32;
    Tuning::Limits(Some((1 + random.below(6), [trigger, slowdown, stop])))
}

fn any_tuning(random: &mut Random) -> Tuning {
    const CODECS: [Compression; 3] =
        [Compression::None, Compression::Lz4, Compression::Zstd { level: 1 }];
    let any_codec = |random: &mut Random| CODECS[random.below(3) as usize];
    match random.below(8) {
        0 | 1 => {
            let upper = any_codec(random);
            let bottom = random.once_in(2).then(|| any_codec(random));
            Tuning::Codecs(Some(Codecs { upper, bottom }))
        }
        2 => Tuning::Codecs(None),
        3 => Tuning::Cache(Some(([0, 5_000, 1 << 20][random.below(3) as usize], 0))),
        4 => Tuning::Cache(None),
        5 => any_limits(random),
        6 => Tuning::Limits(None),
        _ => Tuning::CompactionsMax(random.once_in(2).then(|| 1 + random.below(4) as usize)),
    }
}

fn any_value(random: &mut Random, next_value: &mut u64) -> Value {
    *next_value += 1;
    match random.below(6) {
        0 => Value::Counter(random.below(2_000) as i64 - 1_000),
        _ => Value::Bytes(*next_value << 8),
    }
}

/// The end of life of a value written in an epoch: with that, or with the next.
fn any_expiry(random: &mut Random, epoch: u64) -> u64 {
    (epoch + random.below(2)) * EPOCH_MS + EXPIRY_MS
}

fn any_changes(random: &mut Random, epoch: u64, next_value: &mut u64) -> Vec<(u64, Change)> {
    let count = 1 + random.below(8);
    // One of a few stretches of the keys: some files then overlap, some do not.
    let base = random.below(4) * KEYS / 4;
    let mut changes = Vec::new();
    for _ in 0..count {
        let key = (base + random.below(60)) % KEYS;
        let change = match random.below(100) {
            0 if random.once_in(3) => Change::Clear,
            0..6 => Change::DeleteRange(Some(key + 1 + random.below(12))),
            6 if random.once_in(2) => Change::DeleteRange(None),
            6..24 => Change::Delete,
            24..44 => Change::Add(match random.below(30) {
                0 => i64::MAX - random.below(9) as i64,
                1 => i64::MIN + random.below(9) as i64,
                _ => random.below(40) as i64 - 15,
            }),
            // Of the epoch before: gone before it is written.
            44..48 if epoch > 0 => {
                let until = (epoch - 1) * EPOCH_MS + EXPIRY_MS;
                Change::PutExpiring(any_value(random, next_value), until)
            }
            44..58 => {
                let until = any_expiry(random, epoch);
                Change::PutExpiring(any_value(random, next_value), until)
            }
            _ => Change::Put(any_value(random, next_value)),
        };
        changes.push((key, change));
    }
    changes
}

/// Some of the keys of a range.
fn any_load(random: &mut Random, epoch: u64, next_value: &mut u64) -> Vec<Loaded> {
    let from = random.below(KEYS);
    let to = (from + 1 + random.below(80)).min(KEYS);
    let mut pairs = Vec::new();
    for key in from..to {
        if key > from && random.once_in(3) {
            continue;
        }
        let until = random.once_in(5).then(|| any_expiry(random, epoch));
        pairs.push((key, any_value(random, next_value), until));
    }
    pairs
}

pub(super) fn any_range(random: &mut Random) -> (u64, u64) {
    let (a, b) = (random.below(KEYS), random.below(KEYS));
    (a.min(b), a.max(b))
}

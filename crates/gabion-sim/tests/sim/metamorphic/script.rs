//! What is done and what reads have to answer: a function of the seed.

use gabion_sim::Random;
use std::collections::BTreeMap;

/// Keys that there may be.
pub(super) const KEYS: u64 = 150;
/// Time from the beginning of an epoch to that of the next.
pub(super) const EPOCH_MS: u64 = 12_000;
/// Time from the beginning of an epoch in which its work is done.
pub(super) const WORK_MS: u64 = 10_000;
/// What expires in an epoch does so at this time of it.
const EXPIRY_MS: u64 = 11_000;
const EPOCHS: u64 = 3;
/// Operations of an epoch.
const OPERATIONS: u64 = 60;

/// A change of a key.
#[derive(Clone, Copy, Debug)]
pub(super) enum Change {
    Put(u64),
    /// With the time from which it is gone.
    PutExpiring(u64, u64),
    Delete,
}

/// A step. Replicas are numbers of which the remainder by their count is meant.
#[derive(Clone, Debug)]
pub(super) enum Operation {
    /// One record.
    Write(Vec<(u64, Change)>),
    Clear,
    Seal,
    /// Compacts from one key to another, or everything.
    Compact(Option<(u64, u64)>),
    /// Kills one replica, or all, and starts them again.
    Kill(u64),
    /// Looks keys up at a replica, and walks over a range forwards and backwards.
    Look(Look),
    /// Holds a view of a replica.
    Hold(u64),
    /// Looks at every view that is held.
    LookBack(Look),
    /// Gives up the view that was held longest.
    Release,
    /// The next epoch begins.
    Time,
}

/// What a look sees.
#[derive(Clone, Debug)]
pub(super) struct Look {
    pub(super) replica: u64,
    pub(super) keys: Vec<u64>,
    pub(super) range: (u64, u64),
}

/// Values by key, and until when they are there.
pub(super) type Model = BTreeMap<u64, (u64, Option<u64>)>;

pub(super) struct Script {
    /// Operations, and after each what is there.
    pub(super) steps: Vec<(Operation, Model)>,
}

impl Script {
    pub(super) fn new(seed: u64) -> Self {
        let mut random = Random::new(seed ^ 0x6f70_7469_6f6e);
        let (mut steps, mut model, mut next_value) = (Vec::new(), Model::new(), 1);
        for epoch in 0..EPOCHS {
            for number in 0..OPERATIONS {
                let operation = match (number, epoch) {
                    // What chance may leave out.
                    (20, 1) => Operation::Clear,
                    (30, _) => Operation::Compact(None),
                    (40, _) => Operation::Compact(Some(any_range(&mut random))),
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

    /// Checks that nothing that a script may have is left to other seeds.
    pub(super) fn has_everything(&self) {
        let has =
            |is: fn(&Operation) -> bool| self.steps.iter().any(|(operation, _)| is(operation));
        assert!(has(|it| matches!(it, Operation::Clear)));
        assert!(has(|it| matches!(it, Operation::Seal)));
        assert!(has(|it| matches!(it, Operation::Compact(None))));
        assert!(has(|it| matches!(it, Operation::Compact(Some(_)))));
        assert!(has(|it| matches!(it, Operation::Kill(_))));
        assert!(has(|it| matches!(it, Operation::LookBack(_))));
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
        Operation::Clear => model.clear(),
        Operation::Write(changes) => {
            for (key, change) in changes {
                match *change {
                    Change::Put(value) => _ = model.insert(*key, (value, None)),
                    Change::PutExpiring(value, at) if at > now_ms => {
                        model.insert(*key, (value, Some(at)));
                    }
                    Change::PutExpiring(..) | Change::Delete => _ = model.remove(key),
                }
            }
        }
        _ => {}
    }
}

fn any_operation(random: &mut Random, epoch: u64, next_value: &mut u64) -> Operation {
    match random.below(100) {
        0 => Operation::Clear,
        1..4 => Operation::Seal,
        4 => Operation::Compact(None),
        5 => Operation::Compact(Some(any_range(random))),
        6..8 => Operation::Kill(random.number() >> 8),
        8..18 => Operation::Look(any_look(random)),
        18..22 => Operation::Hold(random.number() >> 8),
        22..26 => Operation::LookBack(any_look(random)),
        26..28 => Operation::Release,
        _ => Operation::Write(any_changes(random, epoch, next_value)),
    }
}

fn any_changes(random: &mut Random, epoch: u64, next_value: &mut u64) -> Vec<(u64, Change)> {
    let count = 1 + random.below(8);
    // One of a few stretches of the keys: some files then overlap, some do not.
    let base = random.below(4) * KEYS / 4;
    let change = |random: &mut Random, value: &mut u64| {
        *value += 1;
        let number = *value << 8;
        match random.below(10) {
            0..3 => Change::Delete,
            // Of the epoch before: gone before it is written.
            3 if epoch > 0 && random.once_in(3) => {
                Change::PutExpiring(number, (epoch - 1) * EPOCH_MS + EXPIRY_MS)
            }
            3 | 4 => {
                let until = (epoch + random.below(2)) * EPOCH_MS + EXPIRY_MS;
                Change::PutExpiring(number, until)
            }
            _ => Change::Put(number),
        }
    };
    (0..count).map(|_| ((base + random.below(60)) % KEYS, change(random, next_value))).collect()
}

fn any_range(random: &mut Random) -> (u64, u64) {
    let (a, b) = (random.below(KEYS), random.below(KEYS));
    (a.min(b), a.max(b))
}

fn any_look(random: &mut Random) -> Look {
    let keys = (0..12).map(|_| random.below(KEYS)).collect();
    let range = if random.once_in(3) { (0, KEYS) } else { any_range(random) };
    Look { replica: random.number() >> 8, keys, range }
}

//! Checks that a history is linearizable. Knows nothing of Gabion: a history is a list of
//! operations on one register per key, each with the moment of its call and, if it ended, of its
//! return.
//!
//! The search is that of Wing and Gong with Lowe's memory of visited states. It tries every
//! operation that may come next (no unplaced operation returned before its call), remembers (placed
//! set, register value), and gives up a branch that was seen before. A write with an unknown
//! outcome (the client was told "unavailable", or its server died) may take effect at any time
//! after its call, or never.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

/// The effect of an operation on its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Set the register; `None` deletes.
    Write(Option<u64>),
    /// Saw this value.
    Read(Option<u64>),
    /// Added one to a counter and saw the result; a missing counter counts as 0.
    Increment(u64),
    /// Added to a counter and saw nothing; a missing counter counts as 0.
    Add(u64),
    /// This value may be gone from now on, as it has expired; nobody returns.
    Expire(u64),
}

/// One operation of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// The register.
    pub key: u64,
    /// Its effect or its result.
    pub action: Action,
    /// When it was called. Moments are unique and rise.
    pub called: u64,
    /// When it returned; `None` when its outcome is unknown.
    pub returned: Option<u64>,
}

/// A history as other checkers read it: a line `key action value called returned` for each
/// operation, `-` for a value that is not there and for an outcome that is unknown.
#[must_use]
pub fn lines(history: &[Operation]) -> String {
    let text = |number: Option<u64>| number.map_or_else(|| "-".to_owned(), |n| n.to_string());
    let is_result =
        |it: &&Operation| it.returned.is_some() || !matches!(it.action, Action::Read(_));
    let mut lines = String::new();
    for Operation { key, action, called, returned } in history.iter().filter(is_result) {
        let (name, value) = match *action {
            Action::Write(value) => ("write", value),
            Action::Read(value) => ("read", value),
            Action::Increment(value) => ("increment", Some(value)),
            Action::Add(delta) => ("add", Some(delta)),
            Action::Expire(value) => ("expire", Some(value)),
        };
        let (value, returned) = (text(value), text(*returned));
        let _ = writeln!(lines, "{key} {name} {value} {called} {returned}");
    }
    lines
}

/// Checks every key's history by itself, which linearizability permits.
///
/// # Errors
/// Names the first key whose operations fit no order, and lists them.
pub fn check(history: &[Operation]) -> Result<(), String> {
    let mut by_key: BTreeMap<u64, Vec<&Operation>> = BTreeMap::new();
    for operation in history {
        // A read that never returned has no result.
        if operation.returned.is_some() || !matches!(operation.action, Action::Read(_)) {
            by_key.entry(operation.key).or_default().push(operation);
        }
    }
    for (key, mut operations) in by_key {
        operations.sort_by_key(|operation| operation.called);
        let mut search = Search::new(&operations);
        if !search.run() {
            let mut message = format!("key {key} has no linearizable order; at best, after");
            for &i in search.best.iter().rev().take(8).rev() {
                let _ = write!(message, "\n  {:?}", operations[i]);
            }
            message += "\nnone of these can follow:";
            let left = (0..operations.len()).filter(|i| !search.best.contains(i));
            for i in left.take(6) {
                let _ = write!(message, "\n  {:?}", operations[i]);
            }
            return Err(message);
        }
    }
    Ok(())
}

struct Search<'a> {
    operations: &'a [&'a Operation],
    seen: BTreeSet<(Vec<u64>, Option<u64>)>,
    /// The longest order found.
    best: Vec<usize>,
}

impl<'a> Search<'a> {
    fn new(operations: &'a [&'a Operation]) -> Self {
        Self { operations, seen: BTreeSet::new(), best: Vec::new() }
    }

    fn run(&mut self) -> bool {
        let words = self.operations.len().div_ceil(64);
        let mut stack = vec![(vec![0u64; words], None::<u64>, Vec::new())];
        while let Some((placed, value, order)) = stack.pop() {
            if self.complete(&placed) {
                return true;
            }
            if !self.seen.insert((placed.clone(), value)) {
                continue;
            }
            if order.len() > self.best.len() {
                self.best.clone_from(&order);
            }
            for next in self.candidates(&placed) {
                if let Some(after) = apply(value, &self.operations[next].action) {
                    let mut placed = placed.clone();
                    // A value is written once, so it can go once. Remembering that would double the
                    // states with each value that expires.
                    if !matches!(self.operations[next].action, Action::Expire(_)) {
                        placed[next / 64] |= 1 << (next % 64);
                    }
                    let mut order = order.clone();
                    order.push(next);
                    stack.push((placed, after, order));
                }
            }
        }
        false
    }

    /// Every operation with a known outcome is placed.
    fn complete(&self, placed: &[u64]) -> bool {
        (0..self.operations.len())
            .all(|i| is_placed(placed, i) || self.operations[i].returned.is_none())
    }

    /// Operations that may come next: called before every unplaced one has returned.
    fn candidates(&self, placed: &[u64]) -> Vec<usize> {
        let unplaced = || (0..self.operations.len()).filter(|&i| !is_placed(placed, i));
        let first_return =
            unplaced().filter_map(|i| self.operations[i].returned).min().unwrap_or(u64::MAX);
        unplaced().filter(|&i| self.operations[i].called < first_return).collect()
    }
}

fn is_placed(placed: &[u64], i: usize) -> bool {
    placed[i / 64] & (1 << (i % 64)) != 0
}

/// The register after the action, or nothing when the action cannot have seen its result.
#[expect(clippy::option_option, reason = "a register may be empty, and an action may not fit")]
fn apply(value: Option<u64>, action: &Action) -> Option<Option<u64>> {
    match action {
        Action::Write(new) => Some(*new),
        Action::Read(seen) => (*seen == value).then_some(value),
        Action::Add(delta) => Some(Some(value.unwrap_or(0) + delta)),
        Action::Increment(seen) => (*seen == value.unwrap_or(0) + 1).then_some(Some(*seen)),
        Action::Expire(expired) => (value == Some(*expired)).then_some(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operation(action: Action, called: u64, returned: impl Into<Option<u64>>) -> Operation {
        Operation { key: 1, action, called, returned: returned.into() }
    }

    #[test]
    fn concurrent_operations_may_take_effect_in_either_order() {
        let history = [
            operation(Action::Write(Some(1)), 0, 10),
            operation(Action::Write(Some(2)), 1, 9),
            operation(Action::Read(Some(1)), 11, 12),
        ];
        check(&history).unwrap();
    }

    #[test]
    fn a_stale_read_is_caught() {
        let history = [
            operation(Action::Write(Some(1)), 0, 1),
            operation(Action::Write(Some(2)), 2, 3),
            operation(Action::Read(Some(1)), 4, 5),
        ];
        assert!(check(&history).unwrap_err().starts_with("key 1 has no linearizable order"));
    }

    #[test]
    fn other_checkers_get_a_line_for_each_operation_that_has_a_result() {
        let history = [
            operation(Action::Write(Some(1)), 0, 10),
            operation(Action::Write(None), 1, None),
            operation(Action::Read(None), 2, 3),
            operation(Action::Read(None), 4, None),
            operation(Action::Increment(7), 5, 6),
            operation(Action::Add(2), 7, None),
            operation(Action::Expire(1), 8, None),
        ];
        let expected = "1 write 1 0 10\n1 write - 1 -\n1 read - 2 3\n1 increment 7 5 6\n\
                        1 add 2 7 -\n1 expire 1 8 -\n";
        assert_eq!(lines(&history), expected);
    }

    #[test]
    fn a_lost_acknowledged_write_is_caught() {
        let history =
            [operation(Action::Write(Some(1)), 0, 1), operation(Action::Read(None), 2, 3)];
        assert!(check(&history).is_err());
    }

    #[test]
    fn a_read_that_goes_back_in_time_is_caught() {
        let history = [
            operation(Action::Write(Some(1)), 0, 100),
            operation(Action::Read(Some(1)), 10, 11),
            operation(Action::Read(None), 12, 13),
        ];
        assert!(check(&history).is_err());
    }

    #[test]
    fn a_write_of_unknown_outcome_may_take_effect_late_or_never() {
        let unknown = operation(Action::Write(Some(7)), 0, None);
        for seen in [None, Some(7)] {
            check(&[unknown.clone(), operation(Action::Read(seen), 5, 6)]).unwrap();
        }
        let back =
            [unknown, operation(Action::Read(Some(7)), 5, 6), operation(Action::Read(None), 7, 8)];
        assert!(check(&back).is_err());
    }

    #[test]
    fn a_value_is_there_until_its_time_and_does_not_come_back() {
        let (written, expires) = (operation(Action::Write(Some(7)), 0, 1), |called| {
            operation(Action::Expire(7), called, None)
        });
        let read = |seen, called| operation(Action::Read(seen), called, called + 1);
        check(&[written.clone(), expires(4), read(Some(7), 2), read(None, 5)]).unwrap();
        check(&[written.clone(), expires(2), read(Some(7), 5)]).unwrap();
        let too_early = [written.clone(), read(None, 2), expires(4)];
        assert!(check(&too_early).is_err());
        let back = [written.clone(), expires(2), read(None, 3), read(Some(7), 5)];
        assert!(check(&back).is_err());
        let other = operation(Action::Write(Some(8)), 2, 3);
        assert!(check(&[written, other, expires(4), read(None, 5)]).is_err());
    }

    #[test]
    fn two_increments_that_see_the_same_result_are_caught() {
        let history =
            [operation(Action::Increment(1), 0, 5), operation(Action::Increment(1), 1, 6)];
        assert!(check(&history).is_err());
        let history =
            [operation(Action::Increment(2), 0, 5), operation(Action::Increment(1), 1, 6)];
        check(&history).unwrap();
    }

    /// docs/faults.md: P13
    #[test]
    fn an_addition_that_is_lost_or_counts_twice_is_caught() {
        let add = |delta, called| operation(Action::Add(delta), called, called + 1);
        let read = |seen, called| operation(Action::Read(Some(seen)), called, called + 1);
        check(&[add(2, 0), add(3, 2), read(5, 4)]).unwrap();
        for wrong in [2, 3, 7, 8, 10] {
            assert!(check(&[add(2, 0), add(3, 2), read(wrong, 4)]).is_err(), "{wrong}");
        }
        let unknown = Operation { returned: None, ..add(2, 0) };
        for seen in [3, 5] {
            check(&[unknown.clone(), add(3, 2), read(seen, 4)]).unwrap();
        }
        let seen = operation(Action::Increment(6), 4, 5);
        check(&[add(2, 0), add(3, 2), seen, read(6, 6)]).unwrap();
    }
}

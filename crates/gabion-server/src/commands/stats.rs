//! Counters of commands and of errors, for INFO.

use super::subcommands::{FIRST, SUBCOMMANDS, name_of};
use crate::metrics::Buckets;
use core::cell::{Cell, RefCell};
use gabion_resp::Reply;
use std::collections::BTreeMap;

/// Kinds of errors that are counted one by one, as in Redis: a script may invent as many as it likes.
const ERROR_KINDS_MAX: usize = 128;
/// Longest word that tells one from another.
const ERROR_WORD_MAX: usize = 64;

/// Counters of one command or subcommand.
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) calls: Cell<u64>,
    /// Time that calls took at this node, in nanoseconds.
    pub(crate) ns: Cell<u64>,
    /// Calls of which that is the time: those that were run here, whichever node they came to.
    pub(crate) timed: Cell<u64>,
    /// The same calls by how long each took.
    pub(crate) buckets: Buckets,
    /// Refused before they ran: wrong number of arguments, key too long.
    pub(crate) rejected: Cell<u64>,
    /// Ended with an error.
    pub(crate) failed: Cell<u64>,
}

/// Counters of every command, by its row in the table, then of every subcommand; and of errors by their first word.
pub(crate) struct Stats {
    rows: Vec<Counters>,
    errors: RefCell<BTreeMap<String, u64>>,
    errors_total: Cell<u64>,
}

impl Default for Stats {
    fn default() -> Self {
        Self {
            rows: (0..FIRST + SUBCOMMANDS.len()).map(|_| Counters::default()).collect(),
            errors: RefCell::default(),
            errors_total: Cell::default(),
        }
    }
}

fn add(counter: &Cell<u64>, more: u64) {
    counter.set(counter.get() + more);
}

impl Stats {
    #[inline]
    pub(crate) fn count_call(&self, counters: usize) {
        add(&self.rows[counters].calls, 1);
    }

    /// So much time passed while a command ran.
    #[inline]
    pub(crate) fn count_time(&self, counters: usize, ns: u64) {
        let row = &self.rows[counters];
        add(&row.ns, ns);
        add(&row.timed, 1);
        row.buckets.count(ns);
    }

    pub(crate) fn count_rejected(&self, counters: usize, error: &Reply) {
        add(&self.rows[counters].rejected, 1);
        self.count_error(error);
    }

    pub(crate) fn count_failed(&self, counters: usize, error: &Reply) {
        add(&self.rows[counters].failed, 1);
        self.count_error(error);
    }

    /// A client is told of an error that is no command's.
    pub(crate) fn count_error(&self, error: &Reply) {
        let Reply::Error(text) = error else { return };
        add(&self.errors_total, 1);
        let word = text.split(|byte| *byte == b' ').next().unwrap_or_default();
        let word = String::from_utf8_lossy(&word[..word.len().min(ERROR_WORD_MAX)]);
        let mut errors = self.errors.borrow_mut();
        if let Some(count) = errors.get_mut(&*word) {
            *count += 1;
        } else if errors.len() < ERROR_KINDS_MAX {
            errors.insert(word.into_owned(), 1);
        }
    }

    /// Calls of all commands.
    pub(crate) fn calls(&self) -> u64 {
        self.rows.iter().map(|row| row.calls.get()).sum()
    }

    /// Errors of all kinds.
    pub(crate) fn errors_total(&self) -> u64 {
        self.errors_total.get()
    }

    /// Names of commands and subcommands that came here or were run here, with their counters.
    pub(crate) fn rows(&self) -> impl Iterator<Item = (&'static str, &Counters)> {
        let was_called =
            |row: &Counters| row.calls.get() + row.rejected.get() + row.timed.get() > 0;
        let rows = self.rows.iter().enumerate().filter(move |(_, row)| was_called(row));
        rows.map(|(place, row)| (name_of(place), row))
    }

    /// The first words of errors, and how many there were of each.
    pub(crate) fn errors(&self) -> Vec<(String, u64)> {
        self.errors.borrow().iter().map(|(word, count)| (word.clone(), *count)).collect()
    }

    /// All begin anew.
    pub(crate) fn reset(&self) {
        for row in &self.rows {
            for counter in [&row.calls, &row.ns, &row.timed, &row.rejected, &row.failed] {
                counter.set(0);
            }
            row.buckets.reset();
        }
        self.errors.borrow_mut().clear();
        self.errors_total.set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_of_errors_are_bounded_and_all_are_counted() {
        let stats = Stats::default();
        for i in 0..1000 {
            stats.count_error(&Reply::error_from(format!("E{} x", i % 500)));
        }
        assert_eq!(stats.errors().len(), ERROR_KINDS_MAX);
        assert_eq!(stats.errors()[0], ("E0".to_owned(), 2));
        assert_eq!(stats.errors_total(), 1000);
        stats.count_error(&Reply::OK);
        stats.reset();
        // Of one that a script made up, no more than a word's length is kept.
        stats.count_error(&Reply::error_from("A".repeat(1 << 20)));
        assert_eq!(stats.errors(), [("A".repeat(ERROR_WORD_MAX), 1)]);
        stats.reset();
        assert_eq!((stats.errors().len(), stats.errors_total()), (0, 0));
    }
}

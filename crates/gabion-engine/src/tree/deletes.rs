//! Deletes in the MemTable that is being filled, as far as whoever reads in order would pass many
//! of them: it is sealed early then, so that flush and compaction take them away.
//!
//! A queue from which the first key is taken again and again, for ever, leaves tombstones at its
//! front, in ascending order. A few such runs are followed, key by key; deletes in no order make
//! none that is long. Others are looked for when deletes have come to rest
//! ([`Tree::has_dense_deletes`]).
//!
//! Known to the head alone, as seals are records of the log.

use super::Tree;
use crate::picker::{Picker, tombstones_worth};
use alloc::collections::BTreeSet;
use alloc::vec::Vec;

/// Runs that are followed at a time: of as many queues.
const RUNS: usize = 4;
/// A MemTable is sealed for a run of so many times the tombstones that are worth a compaction:
/// 8,192 where MemTables have 16 MiB, which a reader passes in less than half a millisecond.
const SEAL_TIMES: u64 = 8;
/// And no other than one of which this part, at least, are deletes of the run.
const SEAL_PART: u64 = 8;

/// Ascending deletes.
#[derive(Default)]
struct Run {
    first: Vec<u8>,
    last: Vec<u8>,
    count: u64,
    /// How many it has to be to be looked at, again.
    due: u64,
}

/// Runs of the MemTable that is being filled.
#[derive(Default)]
pub(super) struct DeleteRuns {
    runs: [Run; RUNS],
    /// One of them is dense.
    wants_seal: bool,
}

impl DeleteRuns {
    pub(super) const fn wants_seal(&self) -> bool {
        self.wants_seal
    }

    /// The run that goes on with this key: the one that ends next before it, or else the shortest,
    /// which begins anew.
    fn run_of(&mut self, key: &[u8]) -> usize {
        let ends_before = |at: &usize| self.runs[*at].count > 0 && self.runs[*at].last[..] <= *key;
        let next = (0..RUNS).filter(ends_before).max_by_key(|at| &self.runs[*at].last);
        let at = next.or_else(|| (0..RUNS).min_by_key(|at| self.runs[*at].count)).unwrap_or(0);
        if next.is_none() {
            let run = &mut self.runs[at];
            (run.count, run.due) = (0, 0);
            run.first.clear();
            run.first.extend_from_slice(key);
        }
        at
    }
}

impl Tree {
    /// A key is deleted.
    pub(super) fn note_delete(&mut self, key: &[u8]) {
        let least = tombstones_worth(&self.config) * SEAL_TIMES;
        let at = self.delete_runs.run_of(key);
        let run = &mut self.delete_runs.runs[at];
        run.count += 1;
        run.last.clear();
        run.last.extend_from_slice(key);
        if run.count < run.due.max(least) {
            return;
        }
        run.due = 2 * run.count;
        let run = &self.delete_runs.runs[at];
        let is_most = run.count.saturating_mul(SEAL_PART) >= self.active.len() as u64;
        if is_most && self.are_worth(run.count, &run.first, &run.last) {
            self.delete_runs.wants_seal = true;
        }
    }

    /// Whether so many tombstones between two keys hide most of what files have there.
    fn are_worth(&self, tombstones: u64, first: &[u8], last: &[u8]) -> bool {
        let nothing = BTreeSet::new();
        Picker::new(&self.config, self.version(), &nothing).are_worth(tombstones, first, last)
    }

    /// Deletes of keys in the MemTable that is being filled.
    #[must_use]
    pub fn active_deletes(&self) -> u64 {
        self.active.deletes() as u64
    }

    /// Whether the MemTable that is being filled has so many deletes in a row, of most of what
    /// files have there, that it is worth a flush and a compaction. Costs a look at each of its
    /// entries, if it has as many deletes at all.
    #[must_use]
    pub fn has_dense_deletes(&self) -> bool {
        let least = tombstones_worth(&self.config);
        if self.active_deletes() < least {
            return false;
        }
        let longest = self.active.longest_deleted().filter(|(.., count)| *count >= least);
        longest.is_some_and(|(first, last, count)| self.are_worth(count, &first, &last))
    }

    /// From how many tombstones in a row on a flush gives them files of their own: few stretches
    /// can be as long.
    pub(super) fn parted_from(&self, deletes: usize) -> u32 {
        const STRETCHES: u64 = PARTS / 2;
        let deletes = deletes as u64;
        let is_worth = deletes >= tombstones_worth(&self.config);
        let from = if is_worth { deletes.div_ceil(STRETCHES) } else { 0 };
        u32::try_from(from).unwrap_or(u32::MAX)
    }
}

/// Files more than usual of a flush that gives tombstones files of their own.
pub(crate) const PARTS: u64 = 8;

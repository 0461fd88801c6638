//! What an edit does to the files of a level, by their places.
//!
//! ```text
//!   places     0   1   2   3   4   5
//!   before   [ a   b   c   d   e   f ]      gone: 1, 4     added: x at 3, y at 6
//!   after    [ a   c   x   d   f   y ]
//! ```
//!
//! A level is kept as several lists in the order of its files. Each of them follows with one pass,
//! which looks at no file: in a large tree these are far apart in memory.

use super::order::newest_first;
use crate::file::FileMeta;
use alloc::sync::Arc;
use alloc::vec::Vec;

/// Places of a level's files that go, and files that come.
#[derive(Debug, Default)]
pub(super) struct Change {
    /// Ascending.
    pub(super) gone: Vec<usize>,
    /// Files before whose places, or at the end, others come, in their order.
    pub(super) added: Vec<(usize, Arc<FileMeta>)>,
}

impl Change {
    /// Finds the places in a level, in order as it is, of files that come.
    pub(super) fn place(
        &mut self,
        level: u8,
        files: &[Arc<FileMeta>],
        mut added: Vec<Arc<FileMeta>>,
    ) {
        let order = |a: &FileMeta, b: &FileMeta| match level {
            0 => newest_first(a, b),
            _ => a.smallest.cmp(&b.smallest),
        };
        added.sort_by(|a, b| order(a, b));
        let place =
            |file: &Arc<FileMeta>| files.partition_point(|other| order(other, file).is_lt());
        self.added = added.into_iter().map(|file| (place(&file), file)).collect();
        assert!(self.added.is_sorted_by_key(|(at, _)| *at), "places ascend with the files' order");
    }

    pub(super) fn is_empty(&self) -> bool {
        self.gone.is_empty() && self.added.is_empty()
    }

    /// The list of what there is of each file, after the change; `added` has it of those that come.
    pub(super) fn of<T: Clone>(&self, before: &[T], added: impl Iterator<Item = T>) -> Vec<T> {
        let mut after = Vec::with_capacity(before.len() + self.added.len() - self.gone.len());
        let mut gone = self.gone.iter().copied().peekable();
        let mut from = 0;
        let mut copy = |after: &mut Vec<T>, upto: usize| {
            while let Some(at) = gone.next_if(|at| *at < upto) {
                after.extend_from_slice(&before[from..at]);
                from = at + 1;
            }
            after.extend_from_slice(&before[from..upto]);
            from = upto;
        };
        for ((at, _), item) in self.added.iter().zip(added) {
            copy(&mut after, *at);
            after.push(item);
        }
        copy(&mut after, before.len());
        let change = (before.len() + self.added.len(), after.len() + self.gone.len());
        assert_eq!(change.0, change.1, "each list of a level changes alike");
        after
    }

    /// The places that the added files have after the change.
    pub(super) fn places(&self) -> impl Iterator<Item = usize> {
        self.added
            .iter()
            .enumerate()
            .map(|(others, (at, _))| at - self.gone.partition_point(|gone| gone < at) + others)
    }
}

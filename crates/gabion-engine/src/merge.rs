//! Merging sorted cursors into one, for jobs and for readers alike.
//!
//! A binary heap of cursor numbers, smallest entry on top. Nothing is copied or allocated per entry:
//! comparisons look at the keys where they lie, and taking the next entry advances one cursor and lets
//! it sink. Cursors of which two hold an equal entry (same key, same trailer) do not occur, as a sequence
//! number names one entry; the cursor number settles even that, so that order never depends on memory.

use crate::entry::{Entry, compare};
use alloc::vec::Vec;
use core::cmp::Ordering;
use gabion_base::Result;

/// Entries in order, one at a time.
pub(crate) trait Cursor {
    /// The entry under the cursor, none at the end.
    fn entry(&self) -> Option<Entry<'_>>;

    /// To the next entry.
    async fn advance(&mut self) -> Result<()>;
}

/// The entries of several cursors in order.
pub(crate) struct Merge<C> {
    cursors: Vec<C>,
    /// Numbers of the cursors that are not at their end; a heap by entry.
    heap: Vec<usize>,
}

impl<C: Cursor> Merge<C> {
    /// Merges `cursors`, each of which stands at its first entry or at its end.
    pub(crate) fn new(cursors: Vec<C>) -> Self {
        let mut heap: Vec<usize> =
            (0..cursors.len()).filter(|&i| cursors[i].entry().is_some()).collect();
        heap.sort_by(|&a, &b| order(&cursors, a, b));
        Self { cursors, heap }
    }

    /// The smallest entry, none at the end.
    #[inline]
    pub(crate) fn entry(&self) -> Option<Entry<'_>> {
        self.cursors[*self.heap.first()?].entry()
    }

    /// The cursor with the smallest entry.
    pub(crate) fn cursor(&self) -> Option<&C> {
        Some(&self.cursors[*self.heap.first()?])
    }

    /// To the next entry.
    #[inline]
    pub(crate) async fn advance(&mut self) -> Result<()> {
        let Some(&top) = self.heap.first() else { return Ok(()) };
        self.cursors[top].advance().await?;
        if self.cursors[top].entry().is_none() {
            self.heap.swap_remove(0);
        }
        self.sink();
        Ok(())
    }

    /// Lets the top cursor sink to its place.
    #[inline]
    fn sink(&mut self) {
        let (heap, cursors) = (&mut self.heap, &self.cursors);
        let mut at = 0;
        loop {
            let mut child = 2 * at + 1;
            if child >= heap.len() {
                return;
            }
            if child + 1 < heap.len() && order(cursors, heap[child + 1], heap[child]).is_lt() {
                child += 1;
            }
            if order(cursors, heap[at], heap[child]).is_le() {
                return;
            }
            heap.swap(at, child);
            at = child;
        }
    }
}

#[inline]
fn order<C: Cursor>(cursors: &[C], a: usize, b: usize) -> Ordering {
    match (cursors[a].entry(), cursors[b].entry()) {
        (Some(x), Some(y)) => compare(x.key, x.trailer, y.key, y.trailer).then(a.cmp(&b)),
        // Only cursors with an entry are in the heap.
        (x, y) => y.is_some().cmp(&x.is_some()),
    }
}

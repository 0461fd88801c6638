//! Merging sorted cursors into one, for jobs and for readers alike.
//!
//! A binary heap of cursor numbers, smallest entry on top. Nothing is copied or allocated per entry:
//! comparisons look at the keys where they lie, and taking the next entry advances one cursor and lets
//! it sink. Cursors of which two hold an equal entry (same key, same trailer) do not occur, as a sequence
//! number names one entry; the cursor number settles even that, so that order never depends on memory.
//!
//! Readers also merge backwards: the same heap with the largest entry on top. A merge goes one way from
//! one call of [`Merge::restart`] to the next; to turn round, all cursors are put on the other side first.

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

/// A cursor that goes both ways.
pub(crate) trait ReverseCursor: Cursor {
    /// To the entry before.
    async fn retreat(&mut self) -> Result<()>;
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
        heap.sort_by(|&a, &b| order::<C, false>(&cursors, a, b));
        Self { cursors, heap }
    }

    /// The entry on top: the smallest, or the largest when the merge goes backwards; none at the end.
    #[inline]
    pub(crate) fn entry(&self) -> Option<Entry<'_>> {
        self.cursors[*self.heap.first()?].entry()
    }

    /// The cursor with that entry.
    pub(crate) fn cursor(&self) -> Option<&C> {
        Some(&self.cursors[*self.heap.first()?])
    }

    /// To the next entry.
    #[inline]
    pub(crate) async fn advance(&mut self) -> Result<()> {
        let Some(&top) = self.heap.first() else { return Ok(()) };
        self.cursors[top].advance().await?;
        self.settle_top::<false>(top);
        Ok(())
    }

    /// Finds the place of cursor number `top`, which was on top and moved.
    #[inline]
    fn settle_top<const REVERSE: bool>(&mut self, top: usize) {
        if self.cursors[top].entry().is_none() {
            self.heap.swap_remove(0);
        }
        self.sink::<REVERSE>();
    }

    /// Lets the top cursor sink to its place.
    #[inline]
    fn sink<const REVERSE: bool>(&mut self) {
        let (heap, cursors) = (&mut self.heap, &self.cursors);
        let mut at = 0;
        loop {
            let mut child = 2 * at + 1;
            if child >= heap.len() {
                return;
            }
            if child + 1 < heap.len()
                && order::<C, REVERSE>(cursors, heap[child + 1], heap[child]).is_lt()
            {
                child += 1;
            }
            if order::<C, REVERSE>(cursors, heap[at], heap[child]).is_le() {
                return;
            }
            heap.swap(at, child);
            at = child;
        }
    }
}

impl<C: ReverseCursor> Merge<C> {
    /// The cursors, to be put elsewhere; then [`Merge::restart`].
    pub(crate) fn cursors_mut(&mut self) -> &mut [C] {
        &mut self.cursors
    }

    /// The cursor on top and its number, in the order in which they were given; to be put elsewhere, then
    /// [`Merge::restart`].
    pub(crate) fn top_mut(&mut self) -> Option<(usize, &mut C)> {
        let top = *self.heap.first()?;
        Some((top, &mut self.cursors[top]))
    }

    /// Merges from where the cursors stand: on with [`Merge::advance`], or with [`Merge::retreat`] when
    /// `REVERSE`.
    pub(crate) fn restart<const REVERSE: bool>(&mut self) {
        let (heap, cursors) = (&mut self.heap, &self.cursors);
        heap.clear();
        heap.extend((0..cursors.len()).filter(|&i| cursors[i].entry().is_some()));
        heap.sort_by(|&a, &b| order::<C, REVERSE>(cursors, a, b));
    }

    /// To the entry before.
    #[inline]
    pub(crate) async fn retreat(&mut self) -> Result<()> {
        let Some(&top) = self.heap.first() else { return Ok(()) };
        self.cursors[top].retreat().await?;
        self.settle_top::<true>(top);
        Ok(())
    }
}

#[inline]
fn order<C: Cursor, const REVERSE: bool>(cursors: &[C], a: usize, b: usize) -> Ordering {
    match (cursors[a].entry(), cursors[b].entry()) {
        (Some(x), Some(y)) => {
            let order = compare(x.key, x.trailer, y.key, y.trailer).then(a.cmp(&b));
            if REVERSE { order.reverse() } else { order }
        }
        // Only cursors with an entry are in the heap.
        (x, y) => y.is_some().cmp(&x.is_some()),
    }
}

//! Merging sorted cursors into one, for jobs and for readers alike.
//!
//! A binary heap of cursor numbers, smallest entry on top. Nothing is copied or allocated per entry:
//! comparisons look at the keys where they lie, and taking the next entry advances one cursor and lets
//! it sink. Cursors of which two hold an equal entry (same key, same trailer) do not occur, as a sequence
//! number names one entry; the cursor number settles even that, so that order never depends on memory.
//!
//! Nearly always the next entry is of the same cursor as the last. So the merge keeps in mind which one comes second:
//! while the top stays before it, a step is one comparison however many cursors there are, and with one left none.
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

/// A cursor for readers, which goes both ways.
pub(crate) trait ReverseCursor: Cursor {
    /// To the next entry if that is in memory; else `None`: it is at no entry then, and only [`Cursor::advance`] may
    /// follow, or a seek.
    fn try_advance(&mut self) -> Option<Result<()>>;

    /// To the entry before.
    async fn retreat(&mut self) -> Result<()>;
}

/// The entries of several cursors in order.
pub(crate) struct Merge<C> {
    cursors: Vec<C>,
    /// Numbers of the cursors that are not at their end; a heap by entry.
    heap: Vec<usize>,
    /// Which place of the heap comes first behind the top, 1 or 2; 0 if that is not known.
    second: usize,
}

impl<C: Cursor> Merge<C> {
    /// Merges `cursors`, each of which stands at its first entry or at its end.
    pub(crate) fn new(cursors: Vec<C>) -> Self {
        let mut heap: Vec<usize> =
            (0..cursors.len()).filter(|&i| cursors[i].entry().is_some()).collect();
        heap.sort_by(|&a, &b| order::<C, false>(&cursors, a, b));
        Self { cursors, heap, second: 0 }
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
            self.second = 0;
        }
        self.sink::<REVERSE>();
    }

    /// Lets the top cursor sink to its place.
    #[inline]
    fn sink<const REVERSE: bool>(&mut self) {
        let second = match self.second {
            0 => first_below::<C, REVERSE>(&self.heap, &self.cursors, 0),
            second => Some(second),
        };
        let Some(second) = second else { return };
        if order::<C, REVERSE>(&self.cursors, self.heap[0], self.heap[second]).is_le() {
            self.second = second;
            return;
        }
        self.sink_below::<REVERSE>(second);
    }

    /// Lets the top cursor sink below the one at `child`, which comes before it, to its place.
    fn sink_below<const REVERSE: bool>(&mut self, mut child: usize) {
        self.second = 0;
        let (heap, cursors) = (&mut self.heap, &self.cursors);
        let mut at = 0;
        loop {
            heap.swap(at, child);
            at = child;
            let Some(below) = first_below::<C, REVERSE>(heap, cursors, at) else { return };
            if order::<C, REVERSE>(cursors, heap[at], heap[below]).is_le() {
                return;
            }
            child = below;
        }
    }
}

/// Which of the places below `at` comes first, if there is one.
#[inline]
fn first_below<C: Cursor, const REVERSE: bool>(
    heap: &[usize],
    cursors: &[C],
    at: usize,
) -> Option<usize> {
    let child = 2 * at + 1;
    let (&left, right) = (heap.get(child)?, heap.get(child + 1));
    let is_right = right.is_some_and(|&right| order::<C, REVERSE>(cursors, right, left).is_lt());
    Some(child + usize::from(is_right))
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
        self.second = 0;
        let (heap, cursors) = (&mut self.heap, &self.cursors);
        heap.clear();
        heap.extend((0..cursors.len()).filter(|&i| cursors[i].entry().is_some()));
        heap.sort_by(|&a, &b| order::<C, REVERSE>(cursors, a, b));
    }

    /// As [`Merge::advance`] without waiting: `None` when the next entry of the cursor on top is not in memory. That
    /// one is at no entry then, and only [`Merge::advance`] may follow, or a seek of all.
    #[inline]
    pub(crate) fn try_advance(&mut self) -> Option<Result<()>> {
        let Some(&top) = self.heap.first() else { return Some(Ok(())) };
        let advanced = self.cursors[top].try_advance()?;
        if advanced.is_ok() {
            self.settle_top::<false>(top);
        }
        Some(advanced)
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

//! Reading: a view of the tree at one moment, point look-ups, ordered iteration both ways, sizes of
//! ranges.
//!
//! A view pins what it reads: MemTables, version, read point and floor. All of it is immutable but
//! the active MemTable, which only grows by entries newer than the read point. So a read may wait
//! for a disk as long as it takes; it never sees half a batch, nor a file whose slots went to
//! another.
//!
//! A [`ReadView`] may go to any thread. One that keeps for too long what the tree gave up is ended,
//! with its iterators (see [`crate::readers`]): the next step is an error then. One read of the
//! disk is never overtaken: what it reads is pinned until it is done. A lasting view
//! ([`crate::Tree::lasting_view`]) nobody ends.

mod ahead;
mod gone;
mod image;
mod many;
mod size;
mod source;
mod tables;
mod walk;

use crate::cache::{LocalCache, ReadCache};
use crate::file::FileSource;
use crate::readers::{Pin, Shape, State};
use alloc::rc::Rc;
use alloc::sync::Arc;
use gabion_base::{Error, Result, SequenceNumber};
use gabion_media::Bytes;
pub use image::PageCursor;
pub use size::RangeSize;
use source::Cursors;
pub use tables::Tables;
pub(crate) use walk::ReadPoint;
use walk::Walk;
pub use walk::{Found, FoundLen, Move};

/// The tree at one moment, for any thread. Cheap to clone. Keeps MemTables and files alive: a
/// lasting one as long as it is there, any other as long as the pin budget lets it, see
/// [`crate::Tree::limit_readers`].
#[derive(Clone)]
pub struct ReadView {
    keeps: Keeps,
    point: ReadPoint,
    /// The floor for who reads as of a moment before `point.floor`; see [`Self::replacing`].
    earlier_floor: SequenceNumber,
}

/// How a view keeps what it sees.
#[derive(Clone)]
enum Keeps {
    /// By itself.
    Lasting(Pin),
    /// With all that read the same, as long as the pin budget lets them.
    Budgeted(Arc<State>),
}

impl ReadView {
    pub(crate) const fn lasting(pin: Pin, point: ReadPoint) -> Self {
        Self { keeps: Keeps::Lasting(pin), point, earlier_floor: point.floor }
    }

    pub(crate) const fn budgeted(state: Arc<State>, point: ReadPoint) -> Self {
        Self { keeps: Keeps::Budgeted(state), point, earlier_floor: point.floor }
    }

    pub(crate) const fn point(&self) -> ReadPoint {
        self.point
    }

    /// The last write that the view sees.
    #[must_use]
    pub const fn sequence(&self) -> SequenceNumber {
        self.point.sequence
    }

    /// The group time by which the view judges what has expired: that of the last record that was
    /// applied when it was made. It stays, so that what is read twice is judged alike.
    #[must_use]
    pub const fn now_ms(&self) -> u64 {
        self.point.now_ms
    }

    /// Keeps what the view sees for one read, which the caller makes past the view.
    ///
    /// # Errors
    /// Snapshot too old when the view was past its pin budget; unavailable when it is none that
    /// lasts, and its tree was closed.
    pub fn pin(&self) -> Result<Pin> {
        match &self.keeps {
            Keeps::Lasting(pin) => Ok(pin.clone()),
            Keeps::Budgeted(state) => state.pin(),
        }
    }

    /// What the view sees, kept in `pinned` for the length of a read where the view itself may end
    /// meanwhile.
    #[inline]
    fn shape<'a>(&'a self, pinned: &'a mut Option<Pin>) -> Result<&'a Shape> {
        Ok(match &self.keeps {
            Keeps::Lasting(pin) => &pin.0,
            Keeps::Budgeted(state) => &pinned.insert(state.pin()?).0,
        })
    }

    /// An error once the view was past its pin budget.
    #[inline]
    fn check(&self) -> Result<()> {
        match &self.keeps {
            Keeps::Lasting(_) => Ok(()),
            Keeps::Budgeted(state) => state.check(),
        }
    }

    /// This view, reading as of `sequence` and judging by group time `now_ms`: at most the last
    /// write that was applied when the view was made, or one that went into the view's MemTables
    /// since; and the group time that came with the log up to there, or an earlier one. Before the
    /// last clear only where the view is said to replace one of before it: see [`Self::replacing`].
    #[must_use]
    pub fn at(&self, sequence: SequenceNumber, now_ms: u64) -> Self {
        let is_before = sequence < self.point.floor;
        let floor = if is_before { self.earlier_floor } else { self.point.floor };
        debug_assert!(floor <= sequence, "a reader at {sequence} under the floor {floor}");
        let point = ReadPoint { sequence, floor, now_ms };
        Self { point, ..self.clone() }
    }

    /// This view, for readers who may yet read as of the last write that `shown` sees, while it
    /// takes its place: until the number of a clear that came since is theirs, they read under the
    /// floor of `shown`. Else they would find cleared what was there, and not see yet what the same
    /// batch put in its place.
    ///
    /// No compaction that knew of the clear may have taken effect in this view: what it drops would
    /// be missing.
    #[must_use]
    pub fn replacing(self, shown: &Self) -> Self {
        Self { earlier_floor: shown.point.floor, ..self }
    }

    /// The same view, with a count of its own if it lasts: its clones and those of this one change
    /// different memory, so that threads do not take it from each other.
    #[must_use]
    pub fn apart(&self) -> Self {
        match &self.keeps {
            Keeps::Lasting(pin) => Self { keeps: Keeps::Lasting(pin.apart()), ..*self },
            Keeps::Budgeted(_) => self.clone(),
        }
    }

    /// Whether both views read the same MemTables and files under the same floor, and neither was
    /// ended.
    #[must_use]
    pub fn is_same_shape(&self, other: &Self) -> bool {
        let is_same = |(one, other): (Pin, Pin)| one.0.is_same(&other.0);
        self.point.floor == other.point.floor
            && self.pin().ok().zip(other.pin().ok()).is_some_and(is_same)
    }

    /// The value of an engine key (keyspace byte first), if it has one.
    ///
    /// # Errors
    /// Corruption, what the source reports; as [`Self::pin`].
    pub async fn get<S: FileSource, C: ReadCache>(
        &self,
        tables: &Tables<S, C>,
        key: &[u8],
    ) -> Result<Option<Bytes>> {
        Ok(self.look_up(tables, key).await?.map(|found| found.value))
    }

    /// The value of an engine key, if it has one, and until when.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub async fn look_up<S: FileSource, C: ReadCache>(
        &self,
        tables: &Tables<S, C>,
        key: &[u8],
    ) -> Result<Option<Found>> {
        let mut pinned = None;
        let shape = self.shape(&mut pinned)?;
        self.point.get(shape, tables, key, || self.check()).await
    }

    /// The length of the value of an engine key, if it has one, and until when. Costs no read of a
    /// value that lies apart from its key.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub async fn look_up_len<S: FileSource, C: ReadCache>(
        &self,
        tables: &Tables<S, C>,
        key: &[u8],
    ) -> Result<Option<FoundLen>> {
        let mut pinned = None;
        let shape = self.shape(&mut pinned)?;
        self.point.get_len(shape, tables, key, || self.check()).await
    }

    /// The values of many engine keys, in any order and any of them more than once: `give` gets
    /// each key's place in `keys` with what it has, as [`Self::look_up`] says it, in no order. Goes
    /// down the tree once for all of them; the blocks that are not in memory are read at once, up
    /// to 256 reads and 4 MiB at a time.
    ///
    /// An error of one key is given with it and leaves the others alone.
    ///
    /// # Errors
    /// The first that `give` returns, which ends it; as [`Self::pin`].
    pub async fn look_up_many<S: FileSource, C: ReadCache>(
        &self,
        tables: &Tables<S, C>,
        keys: &[impl AsRef<[u8]>],
        give: impl FnMut(usize, Result<Option<Found>>) -> Result<()>,
    ) -> Result<()> {
        let mut pinned = None;
        let shape = self.shape(&mut pinned)?;
        self.point.get_many(shape, tables, keys, || self.check(), give).await
    }

    /// The lengths of the values of many engine keys, as [`Self::look_up_len`] says them, given as
    /// [`Self::look_up_many`] does it. Costs no read of a value that lies apart from its key.
    ///
    /// # Errors
    /// As [`Self::look_up_many`].
    pub async fn look_up_len_many<S: FileSource, C: ReadCache>(
        &self,
        tables: &Tables<S, C>,
        keys: &[impl AsRef<[u8]>],
        give: impl FnMut(usize, Result<Option<FoundLen>>) -> Result<()>,
    ) -> Result<()> {
        let mut pinned = None;
        let shape = self.shape(&mut pinned)?;
        self.point.get_len_many(shape, tables, keys, || self.check(), give).await
    }

    /// What the engine keys in `from..to` (to the end without `to`) take, about. Reads nothing but
    /// the indexes of files that a bound lies in, and these only when they are not open.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub async fn approximate_size<S: FileSource, C: ReadCache>(
        &self,
        tables: &Tables<S, C>,
        from: &[u8],
        to: Option<&[u8]>,
    ) -> Result<RangeSize> {
        let mut pinned = None;
        size::size_of(self.shape(&mut pinned)?, tables, from, to).await
    }

    /// An iterator over the pairs with engine keys in `from..to` (to the end without `to`), before
    /// the first. It holds a copy of the view.
    pub fn scan<S: FileSource + Clone, C: ReadCache + Clone>(
        &self,
        tables: &Tables<S, C>,
        from: &[u8],
        to: Option<&[u8]>,
    ) -> ReadIterator<S, C> {
        let walk = Walk::new(self.point, tables, from, to);
        ReadIterator { view: self.clone(), walk, merge: None, is_open: false }
    }
}

/// Ordered pairs of a view, for one thread at a time. After an error, or a call that was dropped
/// half-way, only dropping it is of use. When its view was ended, it lets go of what it keeps at
/// its next step.
pub struct ReadIterator<S: FileSource, C = Rc<LocalCache>> {
    view: ReadView,
    walk: Walk<S, C>,
    /// Made by the first move; taken out for the length of a call.
    merge: Option<Cursors<S, C>>,
    is_open: bool,
}

impl<S: FileSource + Clone, C: ReadCache + Clone> ReadIterator<S, C> {
    /// The next pair: engine key and value.
    ///
    /// # Errors
    /// As [`Self::go`].
    pub async fn next(&mut self) -> Result<Option<(Bytes, Bytes)>> {
        Ok(if self.go(Move::Next).await? { self.to_pair() } else { None })
    }

    /// Goes to a pair, forwards or backwards; false when there is none.
    ///
    /// # Errors
    /// Corruption, what the source reports; as [`ReadView::pin`].
    pub async fn go(&mut self, to: Move<'_>) -> Result<bool> {
        let mut merge = self.take()?;
        let view = &self.view;
        let is_there = self.walk.go(&mut merge, to, || view.check()).await?;
        self.merge = Some(merge);
        Ok(is_there)
    }

    /// What is merged, for the length of a call.
    #[inline]
    fn take(&mut self) -> Result<Cursors<S, C>> {
        let taken = self.merge.take();
        self.view.check()?;
        match taken {
            Some(merge) => Ok(merge),
            None if core::mem::replace(&mut self.is_open, true) => Err(unusable()),
            None => {
                let mut pinned = None;
                Ok(self.walk.open(self.view.shape(&mut pinned)?))
            }
        }
    }

    /// As [`Self::go`] to the next pair, without waiting, where the iterator goes forwards and all
    /// that the step needs is in memory. Else nothing, and [`Self::go`] is to be called: the
    /// iterator may be at no pair meanwhile. A view that was ended is found so by the next step
    /// that is not this one.
    #[inline]
    pub fn try_next(&mut self) -> Option<Result<bool>> {
        let stepped = self.walk.try_next(self.merge.as_mut()?)?;
        if stepped.is_err() {
            self.merge = None;
        }
        Some(stepped)
    }

    /// The engine key here; none at no pair.
    #[inline]
    #[must_use]
    pub fn key(&self) -> Option<&[u8]> {
        self.merge.as_ref().and_then(|_| self.walk.key())
    }

    /// When the pair here expires, in milliseconds since 1970; none for one that does not, and at
    /// no pair.
    #[must_use]
    pub fn expires_ms(&self) -> Option<u64> {
        self.merge.as_ref().and_then(|_| self.walk.expires_ms())
    }

    /// The value here; none at no pair.
    #[must_use]
    pub fn value(&self) -> Option<&[u8]> {
        self.walk.value(self.merge.as_ref()?)
    }

    /// The value here, to keep; none at no pair. It shares the memory of a block, if it comes from
    /// a file.
    #[inline]
    #[must_use]
    pub fn value_bytes(&self) -> Option<Bytes> {
        self.walk.value_bytes(self.merge.as_ref()?)
    }

    /// Engine key and value here, to keep; none at no pair.
    #[must_use]
    pub fn to_pair(&self) -> Option<(Bytes, Bytes)> {
        self.key().map(Bytes::copy_from_slice).zip(self.value_bytes())
    }

    /// The same iterator, which leaves values out that lie apart from their keys: it has keys and
    /// expiries, and no read is made for a value. Of a pair with such a value there is none.
    #[must_use]
    pub fn of_keys(mut self) -> Self {
        self.walk.leave_out_values();
        self
    }

    /// The same iterator, for somebody who wants about so many pairs after each seek. Values that
    /// lie apart from their keys are read several at once, in order: without this one after a seek,
    /// then two, then four, at most 64 and 1 MiB.
    #[must_use]
    pub fn expecting(mut self, pairs: usize) -> Self {
        self.walk.set_pace(pairs);
        self
    }

    /// The same iterator, which stops when it has passed about `entries` versions of keys, whether
    /// they show or not: a walk over what was deleted, expired or cleared, all of it in memory,
    /// waits for nothing and would keep its thread until it comes to a pair. It stops between two
    /// keys, and behind one at the least; it is at no pair then, as at an end, and
    /// [`Self::stopped_at`] tells the two apart. To go on, another iterator begins past that key.
    #[must_use]
    pub fn limited(mut self, entries: u64) -> Self {
        self.walk.limit(entries);
        self
    }

    /// The engine key at which the last move stopped because of its limit, having found no pair:
    /// past that key, in the direction of the move, there may be more of them. None if it found a
    /// pair or came to the end.
    #[must_use]
    pub fn stopped_at(&self) -> Option<&[u8]> {
        self.walk.stopped_at()
    }

    /// Goes to a pair and on from there the same way, as long as there is one and `give`, which is
    /// lent each, returns that it wants another. Whether it was `give` that ended it: there may be
    /// more pairs then, as where the iterator was [`Self::limited`] and stopped. Costs less for
    /// each pair than [`Self::go`], as nothing is copied that `give` does not copy.
    ///
    /// # Errors
    /// As [`Self::go`].
    pub async fn each(
        &mut self,
        to: Move<'_>,
        mut give: impl FnMut(Lent<'_, S, C>) -> bool,
    ) -> Result<bool> {
        let mut cursors = self.take()?;
        let view = &self.view;
        let step = match to {
            Move::First | Move::Next | Move::Seek(_) => Move::Next,
            Move::Last | Move::Prev | Move::SeekForPrev(_) => Move::Prev,
        };
        let mut is_there = self.walk.go(&mut cursors, to, || view.check()).await?;
        while is_there && give(Lent { walk: &self.walk, cursors: &cursors }) {
            let at_once = if step == Move::Next { self.walk.try_next(&mut cursors) } else { None };
            is_there = match at_once {
                Some(stepped) => stepped?,
                None => self.walk.go(&mut cursors, step, || view.check()).await?,
            };
        }
        self.merge = Some(cursors);
        Ok(is_there)
    }
}

/// A pair that an iterator is at.
pub struct Lent<'a, S: FileSource, C> {
    walk: &'a Walk<S, C>,
    cursors: &'a Cursors<S, C>,
}

impl<S: FileSource + Clone, C: ReadCache + Clone> Lent<'_, S, C> {
    /// The engine key.
    #[must_use]
    pub fn key(&self) -> &[u8] {
        self.walk.key().unwrap_or_default()
    }

    /// The value, to keep. It shares the memory of a block, if it comes from a file.
    #[must_use]
    pub fn value_bytes(&self) -> Bytes {
        self.walk.value_bytes(self.cursors).unwrap_or_default()
    }

    /// When the pair expires, in milliseconds since 1970; none for one that does not.
    #[must_use]
    pub fn expires_ms(&self) -> Option<u64> {
        self.walk.expires_ms()
    }
}

#[cold]
fn unusable() -> Error {
    Error::invalid("the iterator's last call failed or was dropped half-way")
}

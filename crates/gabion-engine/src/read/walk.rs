//! How a shape is read, whoever keeps it: a look-up from new to old, and a walk over a merge of all
//! that it has, either way.
//!
//! Forwards one meets the newest version of a key first, so the first that the read point sees
//! decides, and the walk stays on it until it is told to go on. Backwards one meets the oldest
//! first: only when all of a key have been passed is it known which of them counts, so its value is
//! held aside.
//!
//! Where there are range deletes, the walk knows for each key below which sequence number they hide
//! its entries ([`super::gone`]), and to it those are not there.
//!
//! Between two pairs there may be any number of entries that do not show, all of them in memory.
//! Who must not hold up others gives the walk a number of entries after which it stops between two
//! keys, and goes on from there with a walk of its own.

use super::source::{Cursors, Held, Source, cursors};
use super::tables::Tables;
use crate::cache::ReadCache;
use crate::counter::{Base, Folded, Folding, Operand, stored_number};
use crate::entry::{EntryKind, Keyspace, Trailer};
use crate::expiry::{EXPIRY_LEN, expiry_of};
use crate::file::FileSource;
use crate::readers::Shape;
use crate::sst::key_hash;
use alloc::boxed::Box;
use alloc::format;
use alloc::vec::Vec;
use gabion_base::{Error, Result, SequenceNumber};
use gabion_media::Bytes;

/// Which of a shape's entries a reader sees.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct ReadPoint {
    /// The last write.
    pub(crate) sequence: SequenceNumber,
    /// Older entries of users were cleared.
    pub(crate) floor: SequenceNumber,
    /// Group time: what expires at or before it is gone.
    pub(crate) now_ms: u64,
}

/// A value, and until when it is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The value.
    pub value: Bytes,
    /// When its key is gone, in milliseconds since 1970; never without.
    pub expires_ms: Option<u64>,
}

/// What the newest visible entry of a key says.
pub(super) enum Newest {
    /// The key has this value, or none.
    Value(Option<Stored>),
    /// Older ones count too.
    Operand,
}

/// Where a value lies in what is stored of it, and until when it is there.
#[derive(Clone, Copy, Default)]
struct Alive {
    expires_ms: Option<u64>,
    value_at: usize,
}

impl ReadPoint {
    /// The value of a key when its newest visible entry has `stored`.
    pub(super) fn judge(
        &self,
        key: &[u8],
        trailer: Trailer,
        stored: &[u8],
        bytes: impl FnOnce(usize) -> Bytes,
    ) -> Result<Newest> {
        if trailer.kind() == EntryKind::Merge {
            return Ok(Newest::Operand);
        }
        let Some(alive) = self.alive(key, trailer, stored)? else {
            return Ok(Newest::Value(None));
        };
        let Alive { expires_ms, value_at } = alive;
        let kind = trailer.kind();
        let found = |value| Found { value, expires_ms };
        Ok(Newest::Value(Some(if kind.is_pointer() {
            Stored::Apart(apart(trailer, stored)?)
        } else if kind.is_packed() {
            Stored::Packed(PackedFound::new(trailer, found(bytes(value_at)))?)
        } else {
            Stored::Here(found(bytes(value_at)))
        })))
    }

    /// The value of a key, if it has one, when this is its newest visible entry.
    #[inline]
    fn alive(&self, key: &[u8], trailer: Trailer, stored: &[u8]) -> Result<Option<Alive>> {
        let sequence = trailer.sequence();
        match trailer.kind() {
            EntryKind::Put | EntryKind::Pointer | EntryKind::PackedPut => {
                Ok((!self.is_cleared(key, sequence)).then(Alive::default))
            }
            EntryKind::ExpiringPut | EntryKind::ExpiringPointer | EntryKind::ExpiringPackedPut => {
                let (expires_ms, value_at) = expiry_of(trailer, stored)?;
                let is_gone = expires_ms.is_some_and(|at| at <= self.now_ms);
                let is_there = !is_gone && !self.is_cleared(key, sequence);
                Ok(is_there.then_some(Alive { expires_ms, value_at }))
            }
            kind if kind.is_delete() => Ok(None),
            kind => Err(reserved(kind, sequence)),
        }
    }

    fn is_cleared(&self, key: &[u8], sequence: SequenceNumber) -> bool {
        sequence < self.floor && key.first() == Some(&(Keyspace::User as u8))
    }

    /// The value of an engine key in `shape`. After each wait `check` says whether to go on.
    pub(super) async fn get<S: FileSource, C: ReadCache>(
        &self,
        shape: &Shape,
        tables: &Tables<S, C>,
        key: &[u8],
        check: impl Fn() -> Result<()>,
    ) -> Result<Option<Found>> {
        match self.stored(shape, tables, key, &check).await? {
            None => Ok(None),
            Some(stored) => stored.fetch(tables).await.map(Some),
        }
    }

    /// The length of the value of an engine key in `shape`. A value in another file is not read.
    pub(super) async fn get_len<S: FileSource, C: ReadCache>(
        &self,
        shape: &Shape,
        tables: &Tables<S, C>,
        key: &[u8],
        check: impl Fn() -> Result<()>,
    ) -> Result<Option<FoundLen>> {
        Ok(self.stored(shape, tables, key, &check).await?.map(|stored| stored.len()))
    }

    #[inline]
    async fn stored<S: FileSource, C: ReadCache>(
        &self,
        shape: &Shape,
        tables: &Tables<S, C>,
        key: &[u8],
        check: &impl Fn() -> Result<()>,
    ) -> Result<Option<Stored>> {
        match self.newest(shape, tables, key, check).await? {
            Newest::Value(stored) => Ok(stored),
            // Apart, so that other reads carry no room for it.
            Newest::Operand => Box::pin(self.fold(shape, tables, key, check)).await,
        }
    }

    /// What the newest visible entry of an engine key says.
    async fn newest<S: FileSource, C: ReadCache>(
        &self,
        shape: &Shape,
        tables: &Tables<S, C>,
        key: &[u8],
        check: &impl Fn() -> Result<()>,
    ) -> Result<Newest> {
        for table in &shape.memtables {
            if let Some((kind, sequence, value)) = table.get(key, self.sequence) {
                let trailer = Trailer::new(sequence, kind);
                let bytes = |at| Bytes::copy_from_slice(&value[at..]);
                return self.judge(key, trailer, value, bytes);
            }
        }
        let hash = key_hash(key);
        for file in shape.version.files_for(key) {
            if let Some((trailer, value)) = tables.get(file, key, hash, self.sequence).await? {
                return self.judge(key, trailer, &value, |at| value.slice(at..));
            }
            check()?;
        }
        Ok(Newest::Value(None))
    }
}

#[cold]
fn reserved(kind: EntryKind, sequence: SequenceNumber) -> Error {
    Error::unsupported(format!("entry {sequence} is of kind {kind:?}, which is reserved"))
}

/// Where an iterator is to go. Keys are engine keys; what lies outside the iterator's range is not
/// there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Move<'a> {
    /// To the first pair.
    First,
    /// To the last pair.
    Last,
    /// To the next pair; to the first from before it.
    Next,
    /// To the pair before; to the last from past it.
    Prev,
    /// To the first pair at or after a key.
    Seek(&'a [u8]),
    /// To the last pair at or before a key.
    SeekForPrev(&'a [u8]),
}

/// A walk over the pairs of a key range; where it is lies here and in its [`Cursors`].
pub(super) struct Walk<S, C> {
    point: ReadPoint,
    tables: Tables<S, C>,
    from: Vec<u8>,
    to: Option<Vec<u8>>,
    place: Place,
    /// How the cursors stand when at a pair.
    way: Way,
    /// The key of the pair here, or the last that was judged.
    key: Vec<u8>,
    /// What is stored of the pair here, when the cursors have passed it.
    held: Held,
    /// Of the pair here.
    alive: Alive,
    /// Values that lie in other files are left out.
    is_of_keys: bool,
    /// The value of the pair here, which lies in another file and is to be read.
    wanted: Option<Apart>,
    /// Pairs that the cursors have passed.
    ahead: Option<Box<Ahead>>,
    pace: Pace,
    /// Entries that it may still pass.
    left: u64,
    /// That was why the last move found nothing: there may be more pairs past the key here.
    is_stopped: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    BeforeFirst,
    Pair,
    AfterLast,
}

/// Where a walk begins.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Start {
    /// On the entry of a pair, which is done with. Forwards alone.
    Pair,
    /// Past the entries that a pair was made of; what its key has besides is done with too.
    Past,
    /// On an entry that is to be judged.
    Anew,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// The cursors' merge is on the entry of the pair, all others are behind it.
    Forwards,
    /// The same, but the cursors have passed operands of the pair's key, and are on an older entry
    /// of it or on the next key; or they are on the pair's own, whose value lies in another file.
    Past,
    /// The cursors have passed all entries of the pair's key.
    Backwards,
}

impl<S: FileSource + Clone, C: ReadCache + Clone> Walk<S, C> {
    /// Before the first pair of `from..to`, or of all from `from` on.
    pub(super) fn new(
        point: ReadPoint,
        tables: &Tables<S, C>,
        from: &[u8],
        to: Option<&[u8]>,
    ) -> Self {
        Self {
            point,
            tables: tables.clone(),
            from: from.to_vec(),
            to: to.map(<[u8]>::to_vec),
            place: Place::BeforeFirst,
            way: Way::Forwards,
            key: Vec::new(),
            held: Held::Nothing,
            alive: Alive::default(),
            is_of_keys: false,
            wanted: None,
            ahead: None,
            pace: Pace::expecting(1),
            left: u64::MAX,
            is_stopped: false,
        }
    }

    /// Has it leave out values that lie in other files.
    pub(super) const fn leave_out_values(&mut self) {
        self.is_of_keys = true;
    }

    /// Has it read values that lie in other files for about so many pairs at once after a seek.
    pub(super) fn set_pace(&mut self, pairs: usize) {
        self.pace = Pace::expecting(pairs);
    }

    /// Has it stop when it has passed so many entries in all: see [`Self::stopped_at`].
    pub(super) fn limit(&mut self, entries: u64) {
        self.left = entries;
    }

    /// The key at which the last move stopped for having passed too many entries: all is known of
    /// it, and nothing of those past it. None if it did not stop.
    pub(super) fn stopped_at(&self) -> Option<&[u8]> {
        self.is_stopped.then_some(&self.key[..])
    }

    /// Counts an entry that was passed.
    #[inline]
    fn count_passed(&mut self) {
        self.left = self.left.saturating_sub(1);
    }

    /// Whether the walk stops here, between two keys, and is `past` all pairs from now on. Never
    /// before it has judged a key, `is_judged`: who goes on behind that one comes to the end,
    /// however small the limit is.
    #[inline]
    fn stops(&mut self, is_judged: bool, past: Place) -> bool {
        if self.left > 0 || !is_judged {
            return false;
        }
        (self.is_stopped, self.place, self.held) = (true, past, Held::Nothing);
        true
    }

    /// All that `shape` has in the range, nowhere as yet. Reads nothing.
    pub(super) fn open(&self, shape: &Shape) -> Cursors<S, C> {
        cursors(shape, &self.tables, &self.from, self.to.as_deref())
    }

    /// The key here, if the walk is at a pair.
    #[inline]
    pub(super) fn key(&self) -> Option<&[u8]> {
        (self.place == Place::Pair).then_some(&self.key)
    }

    /// The value here, if the walk is at a pair.
    pub(super) fn value<'a>(&'a self, cursors: &'a Cursors<S, C>) -> Option<&'a [u8]> {
        let stored = match (self.place, self.way) {
            (Place::Pair, Way::Forwards) => cursors.merge.entry().map(|entry| entry.value),
            (Place::Pair, Way::Past | Way::Backwards) => self.held.value(),
            _ => None,
        };
        stored.map(|stored| &stored[self.alive.value_at..])
    }

    /// When the pair here expires, if the walk is at one that does.
    pub(super) fn expires_ms(&self) -> Option<u64> {
        self.alive.expires_ms.filter(|_| self.place == Place::Pair)
    }

    /// The value here, to keep, if the walk is at a pair. It shares the memory of its block, if it
    /// comes from one.
    #[inline]
    pub(super) fn value_bytes(&self, cursors: &Cursors<S, C>) -> Option<Bytes> {
        let stored = match (self.place, self.way) {
            (Place::Pair, Way::Forwards) => cursors.merge.cursor()?.value(),
            (Place::Pair, Way::Past | Way::Backwards) => self.held.to_bytes(),
            _ => None,
        };
        match self.alive.value_at {
            0 => stored,
            at => stored.map(|stored| stored.slice(at..)),
        }
    }

    /// Goes there; false when there is no pair. After each wait `check` says whether to go on.
    pub(super) async fn go(
        &mut self,
        cursors: &mut Cursors<S, C>,
        to: Move<'_>,
        check: impl Fn() -> Result<()>,
    ) -> Result<bool> {
        check()?;
        if to == Move::Next
            && let Some(stepped) = self.try_next(cursors)
        {
            return stepped;
        }
        let is_there = self.go_elsewhere(cursors, to, &check).await?;
        let Some(apart) = self.wanted.take().filter(|_| is_there) else { return Ok(is_there) };
        if let Some(value) = self.tables.cached_value(&apart.pointer) {
            self.held = Held::Block(value);
            return Ok(true);
        }
        // Apart, so that other steps carry no room for it.
        Box::pin(self.fetch(cursors, apart, &check)).await
    }

    /// The commonest move, a step forwards after another, where all that it needs is in memory.
    /// Nothing if it is another, if something has to be waited for, or looked up, or added up, or
    /// if the limit is reached: then [`Self::go`] with [`Move::Next`] is to be called, and nothing
    /// else before, as cursors may be between two entries.
    #[inline]
    pub(super) fn try_next(&mut self, cursors: &mut Cursors<S, C>) -> Option<Result<bool>> {
        if self.place != Place::Pair || self.way != Way::Forwards {
            return self.next_ahead(false);
        }
        loop {
            // On top is what is done with, as at a pair: the slower way stops here.
            if self.left == 0 {
                return None;
            }
            if let Err(error) = cursors.merge.try_advance()? {
                return Some(Err(error));
            }
            self.count_passed();
            let within = |key: &[u8]| self.to.as_ref().is_none_or(|to| key < &to[..]);
            let Some(entry) = cursors.merge.entry().filter(|entry| within(entry.key)) else {
                self.place = Place::AfterLast;
                return Some(Ok(false));
            };
            let sequence = entry.trailer.sequence();
            if sequence > self.point.sequence || entry.key == &self.key[..] {
                continue;
            }
            if waits(entry.trailer.kind()) || !cursors.shows(entry.key, sequence) {
                // The pair before is left, and this entry not judged.
                (self.way, self.held) = (Way::Past, Held::Nothing);
                return None;
            }
            self.key.clear();
            self.key.extend_from_slice(entry.key);
            match self.point.alive(entry.key, entry.trailer, entry.value) {
                Ok(Some(alive)) => {
                    self.alive = alive;
                    return Some(Ok(true));
                }
                Ok(None) => {}
                Err(error) => return Some(Err(error)),
            }
        }
    }

    /// Every move that [`Self::try_next`] did not make.
    async fn go_elsewhere(
        &mut self,
        cursors: &mut Cursors<S, C>,
        to: Move<'_>,
        check: &impl Fn() -> Result<()>,
    ) -> Result<bool> {
        if let Some(moved) = self.go_ahead(to) {
            return moved;
        }
        match (to, self.place) {
            (Move::Prev, Place::Pair) if self.way == Way::Backwards => {
                self.backwards(cursors, Start::Past, check).await
            }
            (Move::Next, Place::AfterLast) | (Move::Prev, Place::BeforeFirst) => Ok(false),
            (Move::Next, Place::Pair) if self.way == Way::Past => {
                self.forwards(cursors, Start::Past, check).await
            }
            (Move::Next, Place::Pair) if self.way == Way::Forwards => {
                self.forwards(cursors, Start::Pair, check).await
            }
            (Move::Next, Place::Pair) => {
                let next = successor(&self.key);
                self.seek(cursors, &next, check).await
            }
            (Move::Prev, Place::Pair) => {
                let here = core::mem::take(&mut self.key);
                self.seek_before(cursors, Some(&here), check).await
            }
            (Move::First | Move::Next, _) => self.seek(cursors, &[], check).await,
            (Move::Last | Move::Prev, _) => self.seek_before(cursors, None, check).await,
            (Move::Seek(key), _) => self.seek(cursors, key, check).await,
            (Move::SeekForPrev(key), _) => {
                self.seek_before(cursors, Some(&successor(key)), check).await
            }
        }
    }

    /// To the first pair of the range at or after `key`.
    async fn seek(
        &mut self,
        cursors: &mut Cursors<S, C>,
        key: &[u8],
        check: &impl Fn() -> Result<()>,
    ) -> Result<bool> {
        self.is_stopped = false;
        self.forget_ahead();
        let key = key.max(&self.from);
        if self.to.as_deref().is_some_and(|to| key >= to) {
            self.place = Place::AfterLast;
            return Ok(false);
        }
        for cursor in cursors.merge.cursors_mut() {
            cursor.seek(key).await?;
            check()?;
        }
        cursors.merge.restart::<false>();
        self.forwards(cursors, Start::Anew, check).await
    }

    /// To the last pair of the range before `key`, or to its last.
    async fn seek_before(
        &mut self,
        cursors: &mut Cursors<S, C>,
        key: Option<&[u8]>,
        check: &impl Fn() -> Result<()>,
    ) -> Result<bool> {
        self.is_stopped = false;
        self.forget_ahead();
        let end = match (key, self.to.as_deref()) {
            (Some(key), Some(to)) => Some(key.min(to)),
            (key, to) => key.or(to),
        };
        if end.is_some_and(|end| end <= &self.from[..]) {
            self.place = Place::BeforeFirst;
            return Ok(false);
        }
        for cursor in cursors.merge.cursors_mut() {
            cursor.seek_before(end).await?;
            check()?;
        }
        cursors.merge.restart::<true>();
        self.backwards(cursors, Start::Anew, check).await
    }

    /// To the first pair from where the cursors are, or to the next from a pair.
    #[inline]
    async fn forwards(
        &mut self,
        cursors: &mut Cursors<S, C>,
        from: Start,
        check: &impl Fn() -> Result<()>,
    ) -> Result<bool> {
        if self.way != Way::Forwards {
            self.way = Way::Forwards;
            self.held = Held::Nothing;
        }
        // Whether the entry on top is done with, and whether the key here was judged.
        let (mut is_done, mut is_judged) = (from == Start::Pair, from != Start::Anew);
        let mut hidden = Hidden::default();
        loop {
            if self.stops(is_judged, Place::AfterLast) {
                return Ok(false);
            }
            if is_done {
                cursors.merge.advance().await?;
                check()?;
                self.count_passed();
            }
            is_done = true;
            let within = |key: &[u8]| self.to.as_ref().is_none_or(|to| key < &to[..]);
            let Some(entry) = cursors.merge.entry().filter(|entry| within(entry.key)) else {
                self.place = Place::AfterLast;
                return Ok(false);
            };
            let sequence = entry.trailer.sequence();
            let is_older = is_judged && entry.key == &self.key[..];
            if is_older || sequence > self.point.sequence {
                continue;
            }
            self.key.clear();
            self.key.extend_from_slice(entry.key);
            is_judged = true;
            let entry = if cursors.shows(&self.key, sequence) {
                entry
            } else {
                // Apart, so that other steps carry no room for it.
                match Box::pin(self.step_over(cursors, sequence, &mut hidden, check)).await? {
                    Step::Seen => {}
                    Step::Hidden => continue,
                    Step::HiddenAndPast => {
                        (is_done, is_judged) = (false, false);
                        continue;
                    }
                }
                let Some(entry) = cursors.merge.entry() else { continue };
                entry
            };
            if entry.trailer.kind() == EntryKind::Merge {
                // Apart, so that other steps carry no room for it.
                if Box::pin(self.fold_forwards(cursors, check)).await? {
                    return Ok(true);
                }
                (self.way, self.held) = (Way::Forwards, Held::Nothing);
                is_done = false;
                continue;
            }
            if let Some(alive) = self.point.alive(entry.key, entry.trailer, entry.value)? {
                (self.alive, self.place) = (alive, Place::Pair);
                if is_elsewhere(entry.trailer.kind()) {
                    self.way = Way::Past;
                    self.want_of(entry.trailer, entry.value)?;
                }
                return Ok(true);
            }
        }
    }

    /// Sees to range deletes that cover the key here, whose newest visible entry has this number.
    async fn step_over(
        &self,
        cursors: &mut Cursors<S, C>,
        sequence: SequenceNumber,
        hidden: &mut Hidden,
        check: &impl Fn() -> Result<()>,
    ) -> Result<Step> {
        self.look_up_gone(cursors, check).await?;
        if sequence >= cursors.hidden_below() {
            return Ok(Step::Seen);
        }
        let Some((top, cursor)) = cursors.merge.top_mut() else { return Ok(Step::Hidden) };
        let stretch = cursors.gone.as_ref().and_then(|gone| gone.nothing_but_hidden(top));
        let Some(to) = stretch.and_then(|stretch| stretch.to.as_ref()) else {
            return Ok(Step::Hidden);
        };
        if !hidden.is_one_more_of_many(top) {
            return Ok(Step::Hidden);
        }
        cursor.seek(to).await?;
        check()?;
        cursors.merge.restart::<false>();
        Ok(Step::HiddenAndPast)
    }

    /// Has what range deletes hide of the key here at hand.
    async fn look_up_gone(
        &self,
        cursors: &mut Cursors<S, C>,
        check: &impl Fn() -> Result<()>,
    ) -> Result<()> {
        let Some(gone) = cursors.gone.as_mut().filter(|gone| !gone.knows(&self.key)) else {
            return Ok(());
        };
        gone.look_up(&self.tables, &self.key, self.point.sequence).await?;
        check()
    }

    /// To the first pair backwards from where the cursors are.
    async fn backwards(
        &mut self,
        cursors: &mut Cursors<S, C>,
        from: Start,
        check: &impl Fn() -> Result<()>,
    ) -> Result<bool> {
        self.way = Way::Backwards;
        // Whether the key here was judged.
        let mut is_judged = from != Start::Anew;
        let mut hidden = Hidden::default();
        loop {
            check()?;
            if self.stops(is_judged, Place::BeforeFirst) {
                return Ok(false);
            }
            let Some(entry) = cursors.merge.entry().filter(|entry| entry.key >= &self.from[..])
            else {
                self.place = Place::BeforeFirst;
                self.held = Held::Nothing;
                return Ok(false);
            };
            self.key.clear();
            self.key.extend_from_slice(entry.key);
            if !cursors.shows(&self.key, SequenceNumber::ZERO)
                && Box::pin(self.step_over_backwards(cursors, &mut hidden, check)).await?
            {
                // Newer places may have something of it.
                is_judged = false;
                continue;
            }
            is_judged = true;
            let hidden_below = cursors.hidden_below();
            let merge = &mut cursors.merge;
            let (mut newest, mut folded) = (None, None);
            while let Some(entry) = merge.entry().filter(|entry| entry.key == &self.key[..]) {
                let trailer = entry.trailer;
                let sequence = trailer.sequence();
                if sequence > self.point.sequence || sequence < hidden_below {
                    // Written later, or deleted with its range.
                } else if trailer.kind() == EntryKind::Merge {
                    let operand = Operand::decode(entry.value)?;
                    folded = Some(self.fold_one(sequence, operand, newest, folded)?);
                } else {
                    (newest, folded) = (Some(trailer), None);
                    self.held = merge.cursor().map_or(Held::Nothing, Source::hold);
                }
                merge.retreat().await?;
                check()?;
                self.count_passed();
            }
            if let Some(base @ (Base::Absent | Base::Number { .. })) = folded {
                if self.stand_at_number(base) {
                    return Ok(true);
                }
            } else if let Some(newest) = newest
                && let Some(alive) =
                    self.point.alive(&self.key, newest, self.held.value().unwrap_or_default())?
            {
                self.alive = alive;
                self.place = Place::Pair;
                if is_elsewhere(newest.kind()) {
                    let held = core::mem::replace(&mut self.held, Held::Nothing);
                    self.want_of(newest, held.value().unwrap_or_default())?;
                }
                return Ok(true);
            }
        }
    }

    /// Looks up what range deletes hide of the key here. Whether the cursor on top, which has
    /// nothing but that in its stretch, was put before the stretch.
    async fn step_over_backwards(
        &self,
        cursors: &mut Cursors<S, C>,
        hidden: &mut Hidden,
        check: &impl Fn() -> Result<()>,
    ) -> Result<bool> {
        self.look_up_gone(cursors, check).await?;
        let Some((top, cursor)) = cursors.merge.top_mut() else { return Ok(false) };
        let stretch = cursors.gone.as_ref().and_then(|gone| gone.nothing_but_hidden(top));
        let Some(from) = stretch.and_then(|stretch| stretch.from.as_ref()) else {
            return Ok(false);
        };
        if !hidden.is_one_more_of_many(top) {
            return Ok(false);
        }
        cursor.seek_before(Some(from)).await?;
        check()?;
        cursors.merge.restart::<true>();
        Ok(true)
    }
}

/// Whether more than the entry is needed to know a pair: older ones, or its value.
#[inline]
const fn waits(kind: EntryKind) -> bool {
    matches!(kind, EntryKind::Merge) || is_elsewhere(kind)
}

/// Whether the value is not as it is beside its key: in another file, or packed.
#[inline]
const fn is_elsewhere(kind: EntryKind) -> bool {
    kind.is_pointer() || kind.is_packed()
}

/// What became of an entry that a range delete may cover.
enum Step {
    Seen,
    Hidden,
    /// Its cursor is behind all that is hidden with it.
    HiddenAndPast,
}

/// Hidden entries in a row, of one cursor.
#[derive(Default)]
struct Hidden {
    cursor: usize,
    count: u32,
}

/// From so many hidden entries in a row on a cursor is put behind the rest of them: a seek costs
/// about what so many steps do.
const HIDDEN_STEPS_MAX: u32 = 16;

impl Hidden {
    fn is_one_more_of_many(&mut self, cursor: usize) -> bool {
        let count = if self.cursor == cursor { self.count + 1 } else { 1 };
        let is_many = count > HIDDEN_STEPS_MAX;
        *self = Self { cursor, count: if is_many { 0 } else { count } };
        is_many
    }
}

mod ahead;
mod fold;
mod stored;

use ahead::{Ahead, Pace};
pub use stored::FoundLen;
pub(super) use stored::{Apart, PackedFound, Stored, apart, unpacked};

/// The smallest key after `key`.
fn successor(key: &[u8]) -> Vec<u8> {
    let mut next = Vec::with_capacity(key.len() + 1);
    next.extend_from_slice(key);
    next.push(0);
    next
}

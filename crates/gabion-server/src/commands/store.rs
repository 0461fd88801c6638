//! What commands run on: the newest state of a key space and a record to write into.

use bytes::Bytes;
use core::future::Future;
use core::ops::Bound;
use gabion_base::units::RECORD_OPS_MAX;
use gabion_base::{Error, Result};
use gabion_engine::batch::{BATCH_LEN_MAX, OPERATION_OVERHEAD_MAX};
use gabion_engine::{Found, FoundLen};

/// A write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Sets a key.
    Put(Bytes, Bytes),
    /// Sets a key until a time, in milliseconds since 1970.
    PutExpiring(Bytes, Bytes, u64),
    /// Deletes a key.
    Delete(Bytes),
    /// Deletes every key.
    Clear,
}

/// Which way a range is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// From its start on.
    Ascending,
    /// From its end back.
    Descending,
}

/// A part of the key space in key order, either way.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// Keys with their values (empty when they were not asked for).
    pub pairs: Vec<(Bytes, Bytes)>,
    /// The key after which the range goes on in its order, when the page ended at a limit rather than at the
    /// end of the range. It need not be the key of a pair, and there need not be any.
    pub resume_after: Option<Bytes>,
    /// The first expiry of those pairs, in milliseconds since 1970.
    pub soonest_ms: Option<u64>,
}

/// A key space, as one node sees it. Everything happens on one thread.
pub trait Store {
    /// The newest value of `key`, with every write before this call in it, and until when it is there. What
    /// has expired by [`Store::group_ms`] is not there.
    fn look_up(&self, key: &[u8]) -> impl Future<Output = Result<Option<Found>>>;

    /// The length of the newest value of `key`, and until when it is there. A value that lies apart
    /// from its key is not read for it.
    fn look_up_len(&self, key: &[u8]) -> impl Future<Output = Result<Option<FoundLen>>> {
        async {
            let found = self.look_up(key).await?;
            Ok(found.map(|Found { value, expires_ms }| FoundLen { len: value.len(), expires_ms }))
        }
    }

    /// The same without the time.
    fn get(&self, key: &[u8]) -> impl Future<Output = Result<Option<Bytes>>> {
        async { Ok(self.look_up(key).await?.map(|found| found.value)) }
    }

    /// The time from which a command reckons an expiry, in milliseconds since 1970: this node's clock, or the
    /// group's time where the clock is behind.
    fn now_ms(&self) -> u64;

    /// By how many milliseconds the system's clock, by which clients give times of day, is ahead of [`Self::now_ms`];
    /// negative where it is behind.
    fn system_ahead_ms(&self) -> i64;

    /// The group's time, by which reads judge what has expired. It goes on while a command waits.
    fn group_ms(&self) -> u64;

    /// The term in which this node is the head, if it is: while it stays the same, nobody else has written.
    fn term(&self) -> u64;

    /// Gives `give` the place of each of `keys` with what it has, in no order, all from one state: by default one after
    /// the other, which is one for a command that has locked them.
    ///
    /// # Errors
    /// The first of a key's, or of `give`'s.
    fn look_up_many(
        &self,
        keys: &[Bytes],
        mut give: impl FnMut(usize, Option<Found>) -> Result<()>,
    ) -> impl Future<Output = Result<()>> {
        async move {
            for (at, key) in keys.iter().enumerate() {
                give(at, self.look_up(key).await?)?;
            }
            Ok(())
        }
    }

    /// The values of `keys`, in their order and all from one state.
    ///
    /// # Errors
    /// `LimitExceeded` when the values are together over `bytes_max`; as [`Self::look_up_many`].
    fn get_many(
        &self,
        keys: &[Bytes],
        bytes_max: usize,
    ) -> impl Future<Output = Result<Vec<Option<Bytes>>>> {
        async move {
            let mut values = vec![None; keys.len()];
            let mut bytes = 0;
            let give = |at: usize, found: Option<Found>| {
                bytes += found.as_ref().map_or(0, |found| found.value.len());
                if bytes > bytes_max {
                    let text = format!("values are over the limit of {bytes_max} bytes");
                    return Err(Error::limit(text));
                }
                values[at] = found.map(|found| found.value);
                Ok(())
            };
            self.look_up_many(keys, give).await?;
            Ok(values)
        }
    }

    /// The same with the lengths of values. Those that lie apart from their keys are not read.
    ///
    /// # Errors
    /// As [`Self::look_up_many`].
    fn look_up_len_many(
        &self,
        keys: &[Bytes],
        mut give: impl FnMut(usize, Option<FoundLen>) -> Result<()>,
    ) -> impl Future<Output = Result<()>> {
        async move {
            for (at, key) in keys.iter().enumerate() {
                give(at, self.look_up_len(key).await?)?;
            }
            Ok(())
        }
    }

    /// Whether `key` is there. Its value is not read.
    fn is_there(&self, key: &[u8]) -> impl Future<Output = Result<bool>> {
        async { Ok(self.look_up_len(key).await?.is_some()) }
    }

    /// Whether each of `keys` is there, all from one state. Their values are not read.
    ///
    /// # Errors
    /// As [`Self::look_up_many`].
    fn are_there(&self, keys: &[Bytes]) -> impl Future<Output = Result<Vec<bool>>> {
        async move {
            let mut are_there = vec![false; keys.len()];
            let give = |at: usize, found: Option<FoundLen>| {
                are_there[at] = found.is_some();
                Ok(())
            };
            self.look_up_len_many(keys, give).await?;
            Ok(are_there)
        }
    }

    /// Whether reads that would have to wait for the device wait for ever from now on and leave it alone, for whoever
    /// polls one only once; returns what was so before.
    fn set_probing(&self, _is_probing: bool) -> bool {
        false
    }

    /// The first keys of a range, or the last in descending order. The page ends after `limit` keys, or with the pair
    /// that brings keys and values together to `bytes_max` or over, or when it took too many steps to find more. So it
    /// may have no pairs though the range goes on: the end is where there is no `resume_after`. Each page passes a
    /// key at least, if there is one, so that whoever goes on comes to the end. A bound may be one byte longer than the
    /// longest key.
    fn range(&self, query: PageQuery<'_>) -> impl Future<Output = Result<Page>>;

    /// Sets a key, in the record of this turn; reads that begin afterwards see it.
    ///
    /// # Errors
    /// The node cannot take writes now; nothing was done.
    fn put(&self, key: &[u8], value: &[u8]) -> Result<()>;

    /// The writes of one command or transaction, in order, all in one record or none.
    ///
    /// # Errors
    /// The node cannot take writes now, or not so many; nothing was done.
    fn write(&self, ops: &[Op]) -> Result<()>;
}

/// A request for a page: see [`Store::range`].
#[derive(Clone, Copy, Debug)]
pub struct PageQuery<'a> {
    /// Where the range starts, in the order of keys.
    pub start: Bound<&'a [u8]>,
    /// Where it ends.
    pub end: Bound<&'a [u8]>,
    /// Most keys.
    pub limit: usize,
    /// Bytes of keys and values with which the page ends.
    pub bytes_max: usize,
    /// Whether values are wanted; else they are empty.
    pub with_values: bool,
    /// Which end comes first.
    pub order: Order,
}

/// A page that is being filled, in the order of the range, as [`Store::range`] does.
pub(crate) struct PageBuilder {
    page: Page,
    bytes: usize,
    limit: usize,
    bytes_max: usize,
}

impl PageBuilder {
    /// An empty page with these limits.
    pub(crate) fn new(limit: usize, bytes_max: usize) -> Self {
        Self { page: Page::default(), bytes: 0, limit, bytes_max }
    }

    /// Adds a pair, which may expire. Returns whether there is room for another.
    pub(crate) fn push(&mut self, key: Bytes, value: Bytes, expires_ms: Option<u64>) -> bool {
        self.page.soonest_ms = self.page.soonest_ms.into_iter().chain(expires_ms).min();
        self.bytes += key.len() + value.len();
        self.page.pairs.push((key, value));
        self.page.pairs.len() < self.limit && self.bytes < self.bytes_max
    }

    /// The page, after the end of the range.
    pub(crate) fn finish(self) -> Page {
        self.page
    }

    /// The page, when the range may go on after its last key.
    pub(crate) fn cut(mut self) -> Page {
        self.page.resume_after = self.page.pairs.last().map(|(key, _)| key.clone());
        self.page
    }

    /// The page, when the search for more was broken off at the key `last`, which may be that of no pair.
    pub(crate) fn cut_at(mut self, last: Bytes) -> Page {
        self.page.resume_after = Some(last);
        self.page
    }
}

impl Op {
    /// Sets a key, until a time if there is one.
    pub(crate) fn put(key: Bytes, value: Bytes, expires_ms: Option<u64>) -> Self {
        match expires_ms {
            Some(at) => Self::PutExpiring(key, value, at),
            None => Self::Put(key, value),
        }
    }

    /// Whether it sets a key.
    pub(crate) const fn is_put(&self) -> bool {
        matches!(self, Self::Put(..) | Self::PutExpiring(..))
    }

    /// Bytes of a record that it takes at most.
    pub(crate) fn len_max(&self) -> usize {
        let len = match self {
            Self::Put(key, value) | Self::PutExpiring(key, value, _) => key.len() + value.len(),
            Self::Delete(key) => key.len(),
            Self::Clear => 0,
        };
        len + OPERATION_OVERHEAD_MAX
    }
}

/// Refuses operations that do not fit into one log record.
///
/// # Errors
/// `LimitExceeded` with the number and the limit.
pub fn check_fits_record(ops: &[Op]) -> Result<()> {
    check_record_len(ops.len(), ops.iter().map(Op::len_max).sum())
}

/// The same for so many operations with so many bytes of keys and values.
pub(crate) fn check_record_room(ops: usize, bytes: usize) -> Result<()> {
    check_record_len(ops, bytes + ops * OPERATION_OVERHEAD_MAX)
}

fn check_record_len(ops: usize, len: usize) -> Result<()> {
    if ops > RECORD_OPS_MAX {
        return Err(Error::limit(format!(
            "{ops} writes in one command or transaction are over the limit of {RECORD_OPS_MAX}"
        )));
    }
    if len > BATCH_LEN_MAX {
        return Err(Error::limit(format!(
            "the writes of one command or transaction take {len} bytes, over the limit of \
             {BATCH_LEN_MAX}"
        )));
    }
    Ok(())
}

/// Whether no key can lie between the bounds (a map's `range` panics on some of these).
pub(crate) fn is_empty_range(start: Bound<&[u8]>, end: Bound<&[u8]>) -> bool {
    match (start, end) {
        (Bound::Unbounded, _) | (_, Bound::Unbounded) => false,
        (Bound::Included(start), Bound::Included(end)) => start > end,
        (
            Bound::Included(start) | Bound::Excluded(start),
            Bound::Included(end) | Bound::Excluded(end),
        ) => start >= end,
    }
}

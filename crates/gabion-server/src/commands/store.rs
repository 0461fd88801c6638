//! What commands run on: the newest state of a key space and a record to write into.

use bytes::Bytes;
use core::future::Future;
use core::ops::Bound;
use gabion_base::units::{RECORD_LEN_MAX, RECORD_OPS_MAX};
use gabion_base::{Error, Result};

/// A write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Sets a key.
    Put(Bytes, Bytes),
    /// Deletes a key.
    Delete(Bytes),
    /// Deletes every key.
    Clear,
}

/// A part of the key space in key order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// Keys with their values (empty when they were not asked for).
    pub pairs: Vec<(Bytes, Bytes)>,
    /// The key after which the range goes on, when the page ended at a limit rather than at the end
    /// of the range.
    pub resume_after: Option<Bytes>,
}

/// A key space, as one node sees it. Everything happens on one thread.
pub trait Store {
    /// The newest value of `key`, with every write before this call in it.
    fn get(&self, key: &[u8]) -> impl Future<Output = Result<Option<Bytes>>>;

    /// The values of `keys`, all from one state.
    ///
    /// # Errors
    /// `LimitExceeded` when the values are together over `bytes_max`.
    fn get_many(
        &self,
        keys: &[Bytes],
        bytes_max: usize,
    ) -> impl Future<Output = Result<Vec<Option<Bytes>>>>;

    /// The first keys of a range. The page ends after `limit` keys, or with the pair that brings
    /// keys and values together to `bytes_max` or over; a range that is not empty gives at least
    /// one pair. A bound may be one byte longer than the longest key.
    fn range(
        &self,
        start: Bound<&[u8]>,
        end: Bound<&[u8]>,
        limit: usize,
        bytes_max: usize,
        with_values: bool,
    ) -> impl Future<Output = Result<Page>>;

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

/// Bytes of a record that an operation takes besides key and value, at most.
const OP_OVERHEAD: usize = 24;
/// Bytes of a record that are not operations, at most.
const RECORD_OVERHEAD: usize = 4096;

/// Refuses operations that do not fit into one log record.
///
/// # Errors
/// `LimitExceeded` with the number and the limit.
pub fn check_fits_record(ops: &[Op]) -> Result<()> {
    let len_of = |op: &Op| match op {
        Op::Put(key, value) => key.len() + value.len(),
        Op::Delete(key) => key.len(),
        Op::Clear => 0,
    };
    check_record_room(ops.len(), ops.iter().map(len_of).sum())
}

/// The same for so many operations with so many bytes of keys and values.
pub(crate) fn check_record_room(ops: usize, bytes: usize) -> Result<()> {
    if ops > RECORD_OPS_MAX {
        return Err(Error::limit(format!(
            "{ops} writes in one command are over the limit of {RECORD_OPS_MAX}"
        )));
    }
    let len = bytes + ops * OP_OVERHEAD;
    let max = RECORD_LEN_MAX - RECORD_OVERHEAD;
    if len > max {
        return Err(Error::limit(format!(
            "the writes of one command take {len} bytes, over the limit of {max}"
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

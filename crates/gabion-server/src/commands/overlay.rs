//! A store with writes on top that it does not know of yet: what the commands of a transaction see
//! while it runs. When it ends its writes go to the store beneath as one.

use super::store::{Op, Order, Page, PageQuery, Store, check_record_room, is_empty_range};
use bytes::Bytes;
use core::cell::{Cell, RefCell};
use core::ops::Bound;
use gabion_base::{Error, Result};
use gabion_engine::{Found, FoundLen};
use std::collections::BTreeMap;

/// Bytes that the commands of a transaction may read and write before others have their turn: a command that changes a
/// part of a long value copies all of it.
const TURN_LEN: usize = 1 << 20;
/// What a command counts at least.
const CALL_LEN: usize = 64;
/// Most bytes that the commands of a transaction may write, one over the other: some seconds of copying, for which
/// their keys are locked.
const WRITTEN_MAX: u64 = 4 << 30;

/// Writes over a store.
pub(crate) struct Overlay<'a, S> {
    beneath: &'a S,
    changes: RefCell<Changes>,
    /// Bytes read and written since others had their turn.
    turn_len: Cell<usize>,
}

#[derive(Default)]
struct Changes {
    /// The newest state of every key that was written since the last clear; `None`: deleted.
    keys: BTreeMap<Bytes, Option<Found>>,
    /// Whether the store beneath counts as empty.
    is_cleared: bool,
    /// Bytes of keys and values above.
    bytes: usize,
    /// The same, with all that was written over since.
    written: u64,
    /// Why a write was refused; the transaction fails as a whole.
    refused: Option<Error>,
}

impl Changes {
    /// Notes the newest state of a key.
    fn set(&mut self, key: &Bytes, state: Option<Found>) -> Result<()> {
        let len = key.len() + state.as_ref().map_or(0, |found| found.value.len());
        self.bytes += len;
        self.written += len as u64;
        if self.written > WRITTEN_MAX {
            return Err(Error::limit(format!(
                "what EXEC writes, one over the other, is over the limit of {WRITTEN_MAX} bytes: \
                 no key was changed"
            )));
        }
        if let Some(old) = self.keys.insert(key.clone(), state) {
            self.bytes -= key.len() + old.map_or(0, |found| found.value.len());
        }
        check_record_room(self.keys.len() + usize::from(self.is_cleared), self.bytes)
    }
}

impl<'a, S: Store> Overlay<'a, S> {
    pub(crate) fn new(beneath: &'a S) -> Self {
        Self { beneath, changes: RefCell::default(), turn_len: Cell::new(0) }
    }

    /// To be asked after each command.
    ///
    /// # Errors
    /// A write was refused, so the transaction will be.
    pub(crate) fn check(&self) -> Result<()> {
        self.changes.borrow().refused.clone().map_or(Ok(()), Err)
    }

    /// Whether others are to have their turn after this command; then a new one begins.
    pub(crate) fn is_turn_over(&self) -> bool {
        self.count(CALL_LEN);
        let is_over = self.turn_len.get() >= TURN_LEN;
        if is_over {
            self.turn_len.set(0);
        }
        is_over
    }

    fn count(&self, len: usize) {
        self.turn_len.set(self.turn_len.get() + len);
    }

    fn count_found(&self, found: Option<&Found>) {
        self.count(found.map_or(0, |found| found.value.len()));
    }

    /// What the writes come to: one for each key.
    ///
    /// # Errors
    /// They would not fit into one record.
    pub(crate) fn into_ops(self) -> Result<Vec<Op>> {
        let changes = self.changes.into_inner();
        if let Some(refused) = changes.refused {
            return Err(refused);
        }
        let clear = changes.is_cleared.then_some(Op::Clear);
        let keys = changes.keys.into_iter().map(|(key, state)| match state {
            Some(found) => Op::put(key, found.value, found.expires_ms),
            None => Op::Delete(key),
        });
        Ok(clear.into_iter().chain(keys).collect())
    }

    /// What the writes say of `key`; `None` when they say nothing.
    fn written(&self, key: &[u8]) -> Option<Option<Found>> {
        let changes = self.changes.borrow();
        let written = changes.keys.get(key).cloned();
        if written.is_none() && changes.is_cleared { Some(None) } else { written }
    }

    /// A page of the store beneath, or an empty one when it counts as empty.
    async fn page_beneath(&self, query: PageQuery<'_>) -> Result<Page> {
        if self.changes.borrow().is_cleared {
            return Ok(Page::default());
        }
        self.beneath.range(query).await
    }
}

/// Gives the states of those `keys` that `known` has one of, in order. The others come back, with
/// their places.
pub(crate) fn give_known<T>(
    keys: &[Bytes],
    known: impl Fn(&[u8]) -> Option<T>,
    give: &mut impl FnMut(usize, T) -> Result<()>,
) -> Result<(Vec<usize>, Vec<Bytes>)> {
    let (mut places, mut rest) = (Vec::new(), Vec::new());
    for (at, key) in keys.iter().enumerate() {
        match known(key) {
            Some(state) => give(at, state)?,
            None => {
                places.push(at);
                rest.push(key.clone());
            }
        }
    }
    Ok((places, rest))
}

/// The length and deadline of a value.
pub(crate) fn len_of(found: &Found) -> FoundLen {
    FoundLen { len: found.value.len(), expires_ms: found.expires_ms }
}

impl<S: Store> Store for Overlay<'_, S> {
    async fn look_up(&self, key: &[u8]) -> Result<Option<Found>> {
        let found = match self.written(key) {
            Some(state) => state,
            None => self.beneath.look_up(key).await?,
        };
        self.count_found(found.as_ref());
        Ok(found)
    }

    async fn look_up_len(&self, key: &[u8]) -> Result<Option<FoundLen>> {
        match self.written(key) {
            Some(state) => Ok(state.as_ref().map(len_of)),
            None => self.beneath.look_up_len(key).await,
        }
    }

    async fn look_up_many(
        &self,
        keys: &[Bytes],
        mut give: impl FnMut(usize, Option<Found>) -> Result<()>,
    ) -> Result<()> {
        let mut give = |at, found: Option<Found>| {
            self.count_found(found.as_ref());
            give(at, found)
        };
        let (places, rest) = give_known(keys, |key| self.written(key), &mut give)?;
        self.beneath.look_up_many(&rest, |at, found| give(places[at], found)).await
    }

    async fn look_up_len_many(
        &self,
        keys: &[Bytes],
        mut give: impl FnMut(usize, Option<FoundLen>) -> Result<()>,
    ) -> Result<()> {
        let known = |key: &[u8]| self.written(key).map(|state| state.as_ref().map(len_of));
        let (places, rest) = give_known(keys, known, &mut give)?;
        self.beneath.look_up_len_many(&rest, |at, found| give(places[at], found)).await
    }

    fn now_ms(&self) -> u64 {
        self.beneath.now_ms()
    }

    fn system_ahead_ms(&self) -> i64 {
        self.beneath.system_ahead_ms()
    }

    fn group_ms(&self) -> u64 {
        self.beneath.group_ms()
    }

    fn term(&self) -> u64 {
        self.beneath.term()
    }

    fn set_probing(&self, is_probing: bool) -> bool {
        self.beneath.set_probing(is_probing)
    }

    async fn range(&self, query: PageQuery<'_>) -> Result<Page> {
        let PageQuery { start, end, limit, with_values, order, .. } = query;
        if is_empty_range(start, end) {
            return Ok(Page::default());
        }
        let mut beneath = self.page_beneath(query).await?;
        // Beyond the last key of a page that was cut, keys beneath are not known yet.
        let known = match (&beneath.resume_after, order) {
            (Some(last), Order::Ascending) => (start, Bound::Included(&last[..])),
            (Some(last), Order::Descending) => (Bound::Included(&last[..]), end),
            (None, _) => (start, end),
        };
        // It has many bytes, or took long to pass what does not show: a turn's work either way.
        let is_turns_work = beneath.resume_after.is_some() && beneath.pairs.len() < limit;
        let changes = self.changes.borrow();
        let mut merged: BTreeMap<Bytes, Bytes> =
            core::mem::take(&mut beneath.pairs).into_iter().collect();
        for (key, state) in changes.keys.range::<[u8], _>(known) {
            match state {
                Some(found) => {
                    let value = if with_values { found.value.clone() } else { Bytes::new() };
                    merged.insert(key.clone(), value);
                }
                None => {
                    merged.remove(key);
                }
            }
        }
        self.count(merged.iter().map(|(key, value)| key.len() + value.len()).sum());
        if is_turns_work {
            self.count(TURN_LEN);
        }
        let pairs = match order {
            Order::Ascending => merged.into_iter().collect(),
            Order::Descending => merged.into_iter().rev().collect(),
        };
        Ok(Page { pairs, ..beneath })
    }

    fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        self.write(&[Op::Put(Bytes::copy_from_slice(key), Bytes::copy_from_slice(value))])
    }

    fn write(&self, ops: &[Op]) -> Result<()> {
        let changes = &mut *self.changes.borrow_mut();
        for op in ops {
            self.count(op.len_max());
            let found = |value: &Bytes, expires_ms| Found { value: value.clone(), expires_ms };
            let outcome = match op {
                Op::Put(key, value) => changes.set(key, Some(found(value, None))),
                Op::PutExpiring(key, value, at) => changes.set(key, Some(found(value, Some(*at)))),
                Op::Delete(key) => changes.set(key, None),
                Op::Clear => {
                    changes.keys.clear();
                    changes.bytes = 0;
                    changes.is_cleared = true;
                    Ok(())
                }
            };
            if let Err(error) = outcome {
                changes.refused = Some(error.clone());
                return Err(error);
            }
        }
        Ok(())
    }
}

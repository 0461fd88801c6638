//! A store as a command sees it that reads before it writes, while time goes on: keys' locks keep other writers
//! away, and nothing keeps keys from expiring.

use super::store::{Op, Page, PageQuery, Store};
use super::watch::Watches;
use bytes::Bytes;
use core::cell::Cell;
use gabion_base::{Error, ErrorKind, Result};
use gabion_engine::{Found, FoundLen};

/// A store, and what was read of it that expires. Where some of that has expired by the time of the write, the
/// write is refused and nothing was done: it would bring back what others have seen gone. The command is to
/// be run again then.
pub(crate) struct Timed<'a, S> {
    beneath: &'a S,
    /// Told of what is written.
    watches: &'a Watches,
    /// The first expiry among what was read.
    soonest_ms: Cell<u64>,
    is_overtaken: Cell<bool>,
}

impl<'a, S: Store> Timed<'a, S> {
    pub(crate) const fn new(beneath: &'a S, watches: &'a Watches) -> Self {
        Self { beneath, watches, soonest_ms: Cell::new(u64::MAX), is_overtaken: Cell::new(false) }
    }

    /// Whether a write was refused because of what had expired meanwhile.
    pub(crate) fn is_overtaken(&self) -> bool {
        self.is_overtaken.get()
    }

    fn note(&self, found: Option<&Found>) {
        self.note_expiry(found.and_then(|found| found.expires_ms));
    }

    fn note_expiry(&self, expires_ms: Option<u64>) {
        self.soonest_ms.set(self.soonest_ms.get().min(expires_ms.unwrap_or(u64::MAX)));
    }

    fn check(&self) -> Result<()> {
        if self.soonest_ms.get() > self.beneath.group_ms() {
            return Ok(());
        }
        self.is_overtaken.set(true);
        Err(Error::new(ErrorKind::Busy, "a key expired while the command waited"))
    }
}

impl<S: Store> Store for Timed<'_, S> {
    async fn look_up(&self, key: &[u8]) -> Result<Option<Found>> {
        let found = self.beneath.look_up(key).await?;
        self.note(found.as_ref());
        Ok(found)
    }

    async fn look_up_len(&self, key: &[u8]) -> Result<Option<FoundLen>> {
        let found = self.beneath.look_up_len(key).await?;
        self.note_expiry(found.and_then(|found| found.expires_ms));
        Ok(found)
    }

    async fn look_up_many(
        &self,
        keys: &[Bytes],
        mut give: impl FnMut(usize, Option<Found>) -> Result<()>,
    ) -> Result<()> {
        let noted = |at, found: Option<Found>| {
            self.note(found.as_ref());
            give(at, found)
        };
        self.beneath.look_up_many(keys, noted).await
    }

    async fn look_up_len_many(
        &self,
        keys: &[Bytes],
        mut give: impl FnMut(usize, Option<FoundLen>) -> Result<()>,
    ) -> Result<()> {
        let noted = |at, found: Option<FoundLen>| {
            self.note_expiry(found.and_then(|found| found.expires_ms));
            give(at, found)
        };
        self.beneath.look_up_len_many(keys, noted).await
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
        let page = self.beneath.range(query).await?;
        self.note_expiry(page.soonest_ms);
        Ok(page)
    }

    fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        self.check()?;
        self.beneath.put(key, value)?;
        self.watches.note_put(key);
        Ok(())
    }

    fn write(&self, ops: &[Op]) -> Result<()> {
        self.check()?;
        self.beneath.write(ops)?;
        self.watches.note(ops);
        Ok(())
    }
}

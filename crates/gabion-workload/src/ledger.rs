//! The version of each record that the engine must have, so that a read that finds less is caught.
//!
//! Each record has one writing thread, which counts its versions: 1 is that of the load, every
//! later one is new. The thread announces a version before it writes it and enters it when the
//! write has returned. A read is right if its version is not older than the one entered before the
//! read began, and was announced when it ended. That holds for any number of readers beside the
//! writers.

use crate::values::{Values, Wrong};
use gabion_base::{Error, Result};
use std::sync::atomic::{AtomicU32, Ordering};

/// The version that the load and an insert write.
pub(crate) const FIRST: u32 = 1;
/// The mark of an absent record, in place of a version.
const ABSENT: u32 = 0;

/// A writing thread's counter, on a cache line of its own.
#[derive(Debug)]
#[repr(align(64))]
struct Lane(AtomicU32);

/// The expected state of all records.
#[derive(Debug)]
pub(crate) struct Ledger {
    /// Newest written version, by record.
    entered: Vec<AtomicU32>,
    /// Newest version that may be there, by writing thread.
    announced: Vec<Lane>,
    values: Values,
}

impl Ledger {
    /// Space for `records` absent records, and for `writers` threads that write them.
    pub(crate) fn new(records: u64, writers: u64, values: Values) -> Self {
        let entered = (0..records).map(|_| AtomicU32::new(ABSENT)).collect();
        let announced = (0..writers).map(|_| Lane(AtomicU32::new(FIRST))).collect();
        Self { entered, announced, values }
    }

    /// Records with space.
    pub(crate) fn room(&self) -> u64 {
        self.entered.len() as u64
    }

    /// Its bytes of memory.
    pub(crate) fn memory_used(&self) -> u64 {
        size_of_val(&*self.entered) as u64
    }

    /// The values that are written.
    pub(crate) fn values(&self) -> &Values {
        &self.values
    }

    /// The thread that writes a record.
    fn writer(&self, record: u64) -> u64 {
        record % self.announced.len() as u64
    }

    /// The record next to `record`, itself included, that thread `writer` writes.
    pub(crate) fn own(&self, record: u64, writer: u64, records: u64) -> u64 {
        let writers = self.announced.len() as u64;
        let own = record - self.writer(record) + writer;
        if own < records { own } else { own - writers }
    }

    /// Announces the next version of thread `writer`.
    pub(crate) fn announce(&self, writer: u64) -> u32 {
        self.announced[writer as usize].0.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// A version of a record was written.
    pub(crate) fn enter(&self, record: u64, version: u32) {
        self.entered[record as usize].store(version, Ordering::Release);
    }

    /// A record was deleted.
    pub(crate) fn remove(&self, record: u64) {
        self.enter(record, ABSENT);
    }

    /// The entered version: asked before a read, and handed to [`Self::check`] after it.
    pub(crate) fn floor(&self, record: u64) -> u32 {
        self.entered[record as usize].load(Ordering::Acquire)
    }

    /// Whether a found value may be there.
    pub(crate) fn check(&self, record: u64, floor: u32, value: &[u8]) -> Result<()> {
        let checked = self.values.check(record, value).and_then(|version| {
            let lane = &self.announced[self.writer(record) as usize];
            let ceiling = lane.0.load(Ordering::Acquire);
            let may_be = u64::from(floor.max(FIRST))..=u64::from(ceiling);
            if may_be.contains(&version) { Ok(()) } else { Err(Wrong::Version(version)) }
        });
        checked.map_err(|wrong| wrong_read(record, &format!("its value {wrong}")))
    }

    /// Whether a record may be absent when `floor` was entered before the read.
    pub(crate) fn check_absent(record: u64, floor: u32) -> Result<()> {
        if floor == ABSENT { Ok(()) } else { Err(wrong_read(record, "it is not there")) }
    }

    /// Whether a value is the expected one, now that nobody writes.
    pub(crate) fn check_at_rest(&self, record: u64, value: &[u8]) -> Result<()> {
        let must_be = match self.entered.get(record as usize) {
            Some(version) => version.load(Ordering::Acquire),
            None => ABSENT,
        };
        match self.values.check(record, value) {
            Ok(_) if must_be == ABSENT => Err(wrong_read(record, "it is there, though deleted")),
            Ok(version) if version != u64::from(must_be) => {
                let wrong = Wrong::Version(version);
                Err(wrong_read(record, &format!("its value {wrong}, {must_be}")))
            }
            Ok(_) => Ok(()),
            Err(wrong) => Err(wrong_read(record, &format!("its value {wrong}"))),
        }
    }

    /// Records that must be there, now that nobody writes.
    pub(crate) fn present(&self) -> u64 {
        self.entered.iter().filter(|cell| cell.load(Ordering::Acquire) != ABSENT).count() as u64
    }
}

/// The error of an engine that returned something other than the written value.
pub(crate) fn wrong_read(record: u64, what: &str) -> Error {
    Error::corruption(format!("wrong read of record {record}: {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sizes::Sizes;

    fn ledger(writers: u64) -> Ledger {
        Ledger::new(10, writers, Values::new(Sizes::one(32), 0.5, 1))
    }

    fn value(ledger: &Ledger, record: u64, version: u32) -> Vec<u8> {
        let mut out = Vec::new();
        ledger.values().put(record, u64::from(version), &mut out);
        out
    }

    #[test]
    fn a_version_between_what_was_entered_and_what_was_announced_is_right() {
        let ledger = ledger(1);
        ledger.enter(4, FIRST);
        let [old, new, never] = [FIRST, 2, 3].map(|version| value(&ledger, 4, version));
        assert_eq!(ledger.announce(0), 2);
        let floor = ledger.floor(4);
        assert!(ledger.check(4, floor, &old).is_ok());
        assert!(ledger.check(4, floor, &new).is_ok());
        assert!(ledger.check(4, floor, &never).is_err());
        ledger.enter(4, 2);
        let floor = ledger.floor(4);
        assert!(ledger.check(4, floor, &old).is_err(), "a stale read");
        assert!(ledger.check(4, floor, &new).is_ok());
        assert!(Ledger::check_absent(4, floor).is_err(), "a lost write");
        assert!(Ledger::check_absent(5, ledger.floor(5)).is_ok());
    }

    #[test]
    fn at_rest_only_the_newest_version_is_right() {
        let ledger = ledger(1);
        ledger.enter(4, FIRST);
        let old = value(&ledger, 4, FIRST);
        assert!(ledger.check_at_rest(4, &old).is_ok());
        let version = ledger.announce(0);
        ledger.enter(4, version);
        assert!(ledger.check_at_rest(4, &old).is_err());
        assert!(ledger.check_at_rest(4, &value(&ledger, 4, version)).is_ok());
        assert_eq!(ledger.present(), 1);
        ledger.remove(4);
        assert!(ledger.check_at_rest(4, &value(&ledger, 4, version)).is_err(), "a deleted record");
        assert!(ledger.check_at_rest(99, &value(&ledger, 99, 1)).is_err(), "an unknown record");
        assert_eq!(ledger.present(), 0);
    }

    #[test]
    fn every_thread_writes_records_of_its_own() {
        let ledger = ledger(3);
        for record in 0..10 {
            for writer in 0..3 {
                let own = ledger.own(record, writer, 10);
                assert!(own < 10 && ledger.writer(own) == writer, "{record} {writer}: {own}");
            }
        }
    }
}

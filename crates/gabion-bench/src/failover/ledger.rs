//! The record of what was acknowledged, and the rules by which answers are judged.
//!
//! Each key has one writer and one reader, which may be at work on it at once. A version is a
//! number that the writer counts up; the value shows it.
//!
//! ```text
//!   versions of a key   0 … acknowledged … seen by a read … under way or unknown
//!                           └────── floor: the greater ──────┘
//!   a read may find     the floor of when it began, or any later version that was not refused
//! ```
//!
//! - An acknowledged version, or one that a read showed, is never followed by an older one.
//! - A refused version was not made: nothing shows it, neither before nor after the refusal.
//! - A write whose outcome is unknown retires its key: it keeps the floor or the unknown version,
//!   and once a read has shown the latter, it keeps that.

use std::collections::BTreeMap;
use std::time::Duration;

/// A key's versions.
#[derive(Clone, Copy, Debug, Default)]
struct Key {
    acknowledged: u64,
    acknowledged_at: Duration,
    /// The greatest version that a read has shown.
    seen: u64,
    /// The greatest version that was sent.
    issued: u64,
    is_retired: bool,
}

impl Key {
    fn floor(&self) -> u64 {
        self.acknowledged.max(self.seen)
    }
}

/// The keys of one writer and one reader, all of which hold version 0 at first.
#[derive(Clone, Debug)]
pub(super) struct Ledger {
    keys: Vec<Key>,
    /// Refused versions of a key above the acknowledged one.
    refused: BTreeMap<usize, Vec<u64>>,
    retired: Vec<usize>,
}

/// A read that began.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reading {
    pub(super) key: usize,
    floor: u64,
}

impl Ledger {
    pub(super) fn new(keys: usize) -> Self {
        Self { keys: vec![Key::default(); keys], refused: BTreeMap::new(), retired: Vec::new() }
    }

    /// The retired keys, oldest first.
    pub(super) fn retired(&self) -> &[usize] {
        &self.retired
    }

    pub(super) fn len(&self) -> usize {
        self.keys.len()
    }

    pub(super) fn is_retired(&self, key: usize) -> bool {
        self.keys[key].is_retired
    }

    /// The version of the next write of a key.
    pub(super) fn begin_write(&mut self, key: usize) -> u64 {
        let key = &mut self.keys[key];
        assert!(!key.is_retired, "a retired key is not written again");
        key.issued += 1;
        key.issued
    }

    pub(super) fn acknowledge(&mut self, key: usize, version: u64, at: Duration) {
        let entry = &mut self.keys[key];
        assert_eq!(entry.issued, version, "one write of a key at a time");
        (entry.acknowledged, entry.acknowledged_at) = (version, at);
        self.refused.remove(&key);
    }

    /// The write was not made.
    ///
    /// # Errors
    /// A read has shown it.
    pub(super) fn refuse(&mut self, key: usize, version: u64) -> Result<(), String> {
        let entry = &self.keys[key];
        assert_eq!(entry.issued, version, "one write of a key at a time");
        if entry.seen >= version {
            return Err(format!("version {version} was shown and then refused as not made"));
        }
        self.refused.entry(key).or_default().push(version);
        Ok(())
    }

    /// Nobody knows whether the last write of the key was made.
    pub(super) fn retire(&mut self, key: usize) {
        self.keys[key].is_retired = true;
        self.retired.push(key);
    }

    pub(super) fn begin_read(&self, key: usize) -> Reading {
        Reading { key, floor: self.keys[key].floor() }
    }

    /// Judges the version that a read found, `None` for no value.
    ///
    /// # Errors
    /// It is not one that may be there.
    pub(super) fn end_read(&mut self, read: Reading, found: Option<u64>) -> Result<(), String> {
        let key = &mut self.keys[read.key];
        let expected = || {
            let floor = read.floor;
            match key.acknowledged >= floor && floor > 0 {
                true => format!(
                    "expected version {floor} or later (version {} was acknowledged at {:.3} s)",
                    key.acknowledged,
                    key.acknowledged_at.as_secs_f64()
                ),
                false if floor > 0 => format!("expected version {floor}, which a read has shown"),
                false => "expected the loaded version 0 or later".to_owned(),
            }
        };
        let Some(found) = found else {
            return Err(format!("{}, found no value", expected()));
        };
        if found < read.floor {
            return Err(format!("{}, found version {found}", expected()));
        }
        if found > key.issued {
            return Err(format!("{}, found version {found}, which nobody wrote", expected()));
        }
        if self.refused.get(&read.key).is_some_and(|refused| refused.contains(&found)) {
            return Err(format!(
                "{}, found version {found}, which was refused as not made",
                expected()
            ));
        }
        key.seen = key.seen.max(found);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: Duration = Duration::from_millis(1500);

    fn read(ledger: &mut Ledger, key: usize, found: u64) -> Result<(), String> {
        let reading = ledger.begin_read(key);
        ledger.end_read(reading, Some(found))
    }

    #[test]
    fn a_read_shows_the_last_acknowledged_version_and_no_older_one() {
        let mut ledger = Ledger::new(2);
        read(&mut ledger, 0, 0).unwrap();
        let version = ledger.begin_write(0);
        ledger.acknowledge(0, version, AT);
        read(&mut ledger, 0, 1).unwrap();
        let error = read(&mut ledger, 0, 0).unwrap_err();
        assert!(error.contains("version 1 was acknowledged at 1.500 s"), "{error}");
        assert!(error.ends_with("found version 0"), "{error}");
        assert!(read(&mut ledger, 0, 2).unwrap_err().contains("nobody wrote"));
        let reading = ledger.begin_read(1);
        assert!(ledger.end_read(reading, None).unwrap_err().ends_with("found no value"));
    }

    #[test]
    fn a_read_beside_a_write_shows_either_and_the_next_read_shows_no_older_one() {
        let mut ledger = Ledger::new(1);
        let version = ledger.begin_write(0);
        read(&mut ledger, 0, 0).unwrap();
        let early = ledger.begin_read(0);
        read(&mut ledger, 0, version).unwrap();
        assert!(read(&mut ledger, 0, 0).unwrap_err().contains("which a read has shown"));
        ledger.end_read(early, Some(0)).unwrap();
        ledger.acknowledge(0, version, AT);
    }

    #[test]
    fn a_refused_version_is_not_shown_before_or_after() {
        let mut ledger = Ledger::new(1);
        let version = ledger.begin_write(0);
        ledger.refuse(0, version).unwrap();
        assert!(read(&mut ledger, 0, 1).unwrap_err().contains("refused as not made"));
        let version = ledger.begin_write(0);
        read(&mut ledger, 0, version).unwrap();
        assert!(ledger.refuse(0, version).unwrap_err().contains("was shown and then refused"));
        let mut ledger = Ledger::new(1);
        let version = ledger.begin_write(0);
        ledger.refuse(0, version).unwrap();
        let next = ledger.begin_write(0);
        assert!(read(&mut ledger, 0, version).unwrap_err().contains("refused as not made"));
        ledger.acknowledge(0, next, AT);
        assert!(read(&mut ledger, 0, version).unwrap_err().contains("found version 1"));
    }

    #[test]
    fn a_retired_key_has_one_of_two_versions_and_never_goes_back() {
        let mut ledger = Ledger::new(1);
        let version = ledger.begin_write(0);
        ledger.retire(0);
        assert_eq!((ledger.retired(), ledger.is_retired(0)), (&[0][..], true));
        read(&mut ledger, 0, 0).unwrap();
        read(&mut ledger, 0, 0).unwrap();
        read(&mut ledger, 0, version).unwrap();
        assert!(read(&mut ledger, 0, 0).is_err());
        assert!(read(&mut ledger, 0, version + 1).is_err());
    }
}

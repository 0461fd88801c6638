//! The controller's store: small values under names, replaced by compare-and-set.
//!
//! A store keeps a version for each name, which grows with each change of it. That is what etcd
//! calls a modification revision, and what [`MemoryStore`] counts for itself.

use alloc::collections::BTreeMap;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use gabion_base::Result;

/// The version of a value; zero where there is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub u64);

impl Version {
    /// Of a name without a value.
    pub const NONE: Self = Self(0);
}

/// A value and its version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Versioned {
    /// The version.
    pub version: Version,
    /// The bytes.
    pub value: Vec<u8>,
}

/// The outcome of a compare-and-set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Swapped {
    /// The value is stored, under this version.
    Stored(Version),
    /// Somebody else was first; the value that is there now.
    Lost(Option<Versioned>),
}

/// A store. Calls may wait for a disk or a network: drivers make them off the controller's thread.
///
/// Every implementation passes [`contract`].
pub trait Store {
    /// The value of a name.
    ///
    /// # Errors
    /// Unavailable when the store cannot say for now; I/O.
    fn get(&mut self, name: &str) -> Result<Option<Versioned>>;

    /// The names that begin with `prefix`, in their order, with their values.
    ///
    /// # Errors
    /// As [`Self::get`].
    fn list(&mut self, prefix: &str) -> Result<Vec<(String, Versioned)>>;

    /// Replaces the value of a name if it has this version, or makes it if [`Version::NONE`].
    ///
    /// # Durability
    /// A value that is stored survives a power cut of every machine of the store.
    ///
    /// # Errors
    /// As [`Self::get`]; then nobody knows whether the value was stored, and who asked reads again.
    fn swap(&mut self, name: &str, expected: Version, value: &[u8]) -> Result<Swapped>;
}

/// A store in memory, for simulations and tests.
#[derive(Clone, Debug, Default)]
pub struct MemoryStore {
    values: BTreeMap<String, Versioned>,
    last: u64,
}

impl Store for MemoryStore {
    fn get(&mut self, name: &str) -> Result<Option<Versioned>> {
        Ok(self.values.get(name).cloned())
    }

    fn list(&mut self, prefix: &str) -> Result<Vec<(String, Versioned)>> {
        let from = self.values.range(prefix.to_string()..);
        let found = from.take_while(|(name, _)| name.starts_with(prefix));
        Ok(found.map(|(name, value)| (name.clone(), value.clone())).collect())
    }

    fn swap(&mut self, name: &str, expected: Version, value: &[u8]) -> Result<Swapped> {
        let found = self.values.get(name);
        if found.map_or(Version::NONE, |found| found.version) != expected {
            return Ok(Swapped::Lost(found.cloned()));
        }
        self.last += 1;
        let version = Version(self.last);
        self.values.insert(name.to_string(), Versioned { version, value: value.to_vec() });
        Ok(Swapped::Stored(version))
    }
}

/// The checks that every store has to pass, on an empty one.
///
/// # Panics
/// When it does not.
pub fn contract(store: &mut dyn Store) {
    let is_there = |found: Result<Option<Versioned>>| found.expect("the store answers");
    assert_eq!(is_there(store.get("a/1")), None, "an empty store has nothing");
    let Ok(Swapped::Stored(first)) = store.swap("a/1", Version::NONE, b"one") else {
        panic!("a new value is stored");
    };
    assert!(first > Version::NONE, "a value has a version");
    let expected = Versioned { version: first, value: b"one".to_vec() };
    assert_eq!(is_there(store.get("a/1")), Some(expected.clone()));
    for wrong in [Version::NONE, Version(first.0 + 1)] {
        let lost = store.swap("a/1", wrong, b"two").expect("the store answers");
        assert_eq!(lost, Swapped::Lost(Some(expected.clone())), "{wrong:?} is not its version");
    }
    let lost = store.swap("a/2", first, b"two").expect("the store answers");
    assert_eq!(lost, Swapped::Lost(None), "a value that is not there has no version");
    let Ok(Swapped::Stored(second)) = store.swap("a/1", first, b"") else {
        panic!("a value is replaced under its version, also by an empty one");
    };
    assert!(second > first, "versions grow");
    let Ok(Swapped::Stored(other)) = store.swap("b", Version::NONE, b"three") else {
        panic!("another value is stored");
    };
    let names = |prefix, store: &mut dyn Store| -> Vec<_> {
        store.list(prefix).expect("the store answers").into_iter().map(|(name, _)| name).collect()
    };
    assert_eq!(names("a/", store), ["a/1"]);
    assert_eq!(names("", store), ["a/1", "b"]);
    assert!(names("c", store).is_empty());
    let all = store.list("b").expect("the store answers");
    assert_eq!(all[0].1, Versioned { version: other, value: b"three".to_vec() });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_store_in_memory_keeps_the_contract() {
        contract(&mut MemoryStore::default());
    }
}

//! The controller's store in an embedded store of Gabion's.
//!
//! ```text
//!   key: the name      value: u64 version | the bytes
//! ```
//!
//! A value is flushed to the device before [`Store::swap`] returns. One process has the store, as
//! opening it locks its directory, and one thread of it calls.

use super::AnyStore;
use crate::at_rest::AtRest;
use crate::db::value_at_rest;
use gabion_base::units::MIB;
use gabion_base::{Error, GroupId, Result};
use gabion_control::store::{Store, Swapped, Version, Versioned};
use gabion_control::{Epoch, GroupRecord};
use gabion_db::{Db, Durability, Options, RunOptions, WriteBatch};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The least that an embedded store may have.
const POOL_LEN: u64 = 64 * MIB;
const SEGMENT_LEN: u64 = MIB;
const RING_LEN: u64 = 4 * SEGMENT_LEN;
/// Bytes of disk that the store reserves.
pub(crate) const STORE_LEN: u64 = POOL_LEN + RING_LEN;
/// Bytes of a version.
const VERSION_LEN: usize = 8;
const EPOCH: &str = "epoch";

/// The name of a group's record.
pub(crate) fn record_name(group: GroupId) -> String {
    format!("groups/{}", group.get())
}

fn options() -> Options {
    Options {
        pool_len: POOL_LEN,
        ring_len: RING_LEN,
        segment_len: SEGMENT_LEN,
        run: RunOptions {
            block_cache_len: MIB as usize,
            open_files_len: MIB as usize,
            ..RunOptions::default()
        },
        // Nothing here is acknowledged before it is flushed, so the ring is not missed.
        accept_lost_ring: true,
        ..Options::default()
    }
}

/// The store.
pub(crate) struct DbStore {
    dir: PathBuf,
    /// None after a failure: the next call opens it anew.
    db: Option<Db>,
}

impl DbStore {
    /// Opens the store in a directory, or makes it.
    ///
    /// # Errors
    /// See [`Db::open_or_create`].
    pub(crate) fn open(dir: &Path) -> Result<Self> {
        let mut store = Self { dir: dir.to_owned(), db: None };
        store.with(|_| Ok(()))?;
        Ok(store)
    }

    fn with<T>(&mut self, body: impl FnOnce(&Db) -> Result<T>) -> Result<T> {
        let db = match self.db.take() {
            Some(db) => db,
            None => Db::open_or_create(&self.dir, &options())?,
        };
        let outcome = body(&db);
        // A store that failed takes nothing more, and one that is opened again may.
        if outcome.is_ok() {
            self.db = Some(db);
        }
        outcome
    }
}

impl Store for DbStore {
    fn get(&mut self, name: &str) -> Result<Option<Versioned>> {
        self.with(|db| get(db, name))
    }

    fn list(&mut self, prefix: &str) -> Result<Vec<(String, Versioned)>> {
        self.with(|db| {
            db.prefix(prefix)
                .map(|pair| {
                    let (key, value) = pair?;
                    let name = String::from_utf8(key.to_vec()).map_err(|_| {
                        Error::corruption("the controller's store: a name is not UTF-8")
                    })?;
                    let value = versioned(&name, &value)?;
                    Ok((name, value))
                })
                .collect()
        })
    }

    fn swap(&mut self, name: &str, expected: Version, value: &[u8]) -> Result<Swapped> {
        self.with(|db| {
            let found = get(db, name)?;
            let version = found.as_ref().map_or(Version::NONE, |found| found.version);
            if version != expected {
                return Ok(Swapped::Lost(found));
            }
            let version = Version(version.0 + 1);
            let mut bytes = version.0.to_le_bytes().to_vec();
            bytes.extend(value);
            let mut batch = WriteBatch::new();
            batch.put(name, bytes);
            db.write(&batch, Durability::Flushed)?;
            Ok(Swapped::Stored(version))
        })
    }
}

fn get(db: &Db, name: &str) -> Result<Option<Versioned>> {
    db.get(name)?.map(|bytes| versioned(name, &bytes)).transpose()
}

fn versioned(name: &str, bytes: &[u8]) -> Result<Versioned> {
    let Some((version, value)) = bytes.split_first_chunk::<VERSION_LEN>() else {
        return Err(Error::corruption(format!(
            "the controller's store: `{name}` has {} bytes, a version alone has {VERSION_LEN}",
            bytes.len()
        )));
    };
    let version = Version(u64::from_le_bytes(*version));
    Ok(Versioned { version, value: value.to_vec() })
}

/// A store for several threads.
#[derive(Clone)]
pub(crate) struct SharedStore(Arc<Mutex<AnyStore>>);

impl SharedStore {
    pub(crate) fn new(store: AnyStore) -> Self {
        Self(Arc::new(Mutex::new(store)))
    }

    fn lock(&self) -> MutexGuard<'_, AnyStore> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Store for SharedStore {
    fn get(&mut self, name: &str) -> Result<Option<Versioned>> {
        self.lock().get(name)
    }

    fn list(&mut self, prefix: &str) -> Result<Vec<(String, Versioned)>> {
        self.lock().list(prefix)
    }

    fn swap(&mut self, name: &str, expected: Version, value: &[u8]) -> Result<Swapped> {
        self.lock().swap(name, expected, value)
    }
}

/// The value of a name in a store that nobody has open; nothing is written.
///
/// # Errors
/// Not found when there is no store; busy; of its pool.
pub(crate) fn read_at_rest(dir: &Path, name: &str) -> Result<Option<Vec<u8>>> {
    let found = value_at_rest(AtRest::open(&dir.join("pool"))?, name.as_bytes())?;
    found.map(|bytes| versioned(name, &bytes).map(|found| found.value)).transpose()
}

/// The epoch of a controller that starts now: the number is durable when this returns.
///
/// # Errors
/// Of the store.
pub(crate) fn next_epoch(store: &mut dyn Store, id: u64) -> Result<Epoch> {
    let mut found = store.get(EPOCH)?;
    loop {
        let (version, last) = match &found {
            None => (Version::NONE, 0),
            Some(found) => (found.version, read_number(&found.value)?),
        };
        let epoch = Epoch { number: last + 1, id };
        match store.swap(EPOCH, version, &epoch.number.to_le_bytes())? {
            Swapped::Stored(_) => return Ok(epoch),
            Swapped::Lost(theirs) => found = theirs,
        }
    }
}

fn read_number(bytes: &[u8]) -> Result<u64> {
    let bytes = bytes.try_into().map_err(|_| {
        Error::corruption(format!("the controller's store: an epoch of {} bytes", bytes.len()))
    })?;
    Ok(u64::from_le_bytes(bytes))
}

/// The record of a group; the founding one is stored where there is none.
///
/// # Errors
/// Of the store; unsupported for a record of a later version.
pub(crate) fn record_of(
    store: &mut dyn Store,
    founding: GroupRecord,
) -> Result<(Version, GroupRecord)> {
    let name = record_name(founding.complete.group);
    let found = match store.get(&name)? {
        Some(found) => found,
        None => match store.swap(&name, Version::NONE, &founding.encode())? {
            Swapped::Stored(version) => return Ok((version, founding)),
            Swapped::Lost(theirs) => {
                theirs.ok_or_else(|| Error::unavailable("the controller's store changes"))?
            }
        },
    };
    Ok((found.version, GroupRecord::decode(&found.value)?))
}

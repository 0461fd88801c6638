//! An engine in memory, for tests: a sorted map, the model of an engine. With a defect it gives
//! wrong answers that must be caught.

use crate::engine::{Engine, EngineOptions};
use crate::key::Key;
use gabion_base::Result;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;

/// The defects of an engine in memory; none is right by chance.
pub(crate) mod defect {
    pub(crate) const NONE: u8 = 0;
    /// Every 500th put is dropped.
    pub(crate) const LOST_PUT: u8 = 1;
    /// A put of an existing key changes nothing.
    pub(crate) const STALE: u8 = 2;
    /// The last byte of values that are read one by one is changed.
    pub(crate) const WRONG_BYTE: u8 = 3;
    /// A delete does nothing.
    pub(crate) const NO_DELETE: u8 = 4;
    /// An absent key has the value of the one before it.
    pub(crate) const NEIGHBOUR: u8 = 5;
    /// Scans of many records leave out their third.
    pub(crate) const SKIP_LONG: u8 = 6;
    /// Closing loses unflushed data, and flush does nothing for every 100th key.
    pub(crate) const LOST_AT_CLOSE: u8 = 7;
    /// Reads of several keys exchange two values.
    pub(crate) const EXCHANGED: u8 = 8;
    /// Scans of few records leave out their third.
    pub(crate) const SKIP_SHORT: u8 = 9;
    /// Scans of few records begin behind their first.
    pub(crate) const BEGIN_BEHIND: u8 = 10;
}

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

/// The data "on disk", by directory.
static DISKS: Mutex<BTreeMap<PathBuf, Map>> = Mutex::new(BTreeMap::new());

pub(crate) struct Memory<const DEFECT: u8> {
    directory: PathBuf,
    map: Arc<RwLock<Map>>,
    puts: AtomicU64,
}

impl<const DEFECT: u8> Engine for Memory<DEFECT> {
    const NAME: &'static str = "memory";

    fn version() -> String {
        "1".to_owned()
    }

    fn limits(_: &EngineOptions) -> Vec<String> {
        vec!["it has no files".to_owned()]
    }

    fn settings(options: &EngineOptions) -> Vec<(&'static str, u64)> {
        vec![("block_size", options.block_len.unwrap_or(1))]
    }

    fn open(options: &EngineOptions) -> Result<Self> {
        let map = DISKS.lock().unwrap().remove(&options.directory).unwrap_or_default();
        let directory = options.directory.clone();
        Ok(Self { directory, map: Arc::new(RwLock::new(map)), puts: AtomicU64::new(0) })
    }

    fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        let number = self.puts.fetch_add(1, Ordering::Relaxed);
        let mut map = self.map.write().unwrap();
        let is_dropped = match DEFECT {
            defect::LOST_PUT => number % 500 == 499,
            defect::STALE => map.contains_key(key),
            _ => false,
        };
        if !is_dropped {
            map.insert(key.to_vec(), value.to_vec());
        }
        Ok(())
    }

    fn delete(&self, key: &[u8]) -> Result<()> {
        if DEFECT != defect::NO_DELETE {
            self.map.write().unwrap().remove(key);
        }
        Ok(())
    }

    fn get(&self, key: &[u8], read: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let map = self.map.read().unwrap();
        let mut found = map.get(key).cloned();
        if DEFECT == defect::NEIGHBOUR && found.is_none() {
            found = map.range(..key.to_vec()).next_back().map(|(_, value)| value.clone());
        }
        let Some(mut value) = found else { return Ok(false) };
        if DEFECT == defect::WRONG_BYTE {
            *value.last_mut().unwrap() ^= 1;
        }
        read(&value);
        Ok(true)
    }

    fn multi_get(&self, keys: &[Key], read: &mut dyn FnMut(usize, &[u8])) -> Result<()> {
        let map = self.map.read().unwrap();
        for (i, key) in keys.iter().enumerate() {
            let place = if DEFECT == defect::EXCHANGED { i ^ 1 } else { i };
            if let Some(value) = map.get(key.as_slice()) {
                read(place, value);
            }
        }
        Ok(())
    }

    fn scan(&self, from: &[u8], count: usize, read: &mut dyn FnMut(&[u8], &[u8])) -> Result<()> {
        let map = self.map.read().unwrap();
        let left_out = match (DEFECT, count > 100) {
            (defect::SKIP_LONG, true) | (defect::SKIP_SHORT, false) => Some(2),
            (defect::BEGIN_BEHIND, false) => Some(0),
            _ => None,
        };
        for (i, (key, value)) in map.range(from.to_vec()..).take(count).enumerate() {
            if left_out != Some(i) {
                read(key, value);
            }
        }
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        if DEFECT == defect::LOST_AT_CLOSE {
            let mut number = 0;
            self.map.write().unwrap().retain(|_, _| {
                number += 1;
                number % 100 != 0
            });
        }
        Ok(())
    }

    fn wait_quiet(&self) -> Result<Duration> {
        Ok(Duration::ZERO)
    }

    fn space_len(&self) -> Result<Option<u64>> {
        Ok(Some(1_000_000))
    }

    fn closed_log_space_len(_: &EngineOptions) -> Result<Option<u64>> {
        Ok(Some(400_000))
    }

    fn ring_len(&self) -> Option<u64> {
        Some(7)
    }

    fn notices(&self) -> Vec<String> {
        vec!["nor a device".to_owned()]
    }

    fn stalls(&self) -> Result<Vec<(String, f64)>> {
        Ok(vec![("seconds".to_owned(), 0.5)])
    }

    fn close(self) -> Result<()> {
        let map = std::mem::take(&mut *self.map.write().unwrap());
        DISKS.lock().unwrap().insert(self.directory, map);
        Ok(())
    }
}

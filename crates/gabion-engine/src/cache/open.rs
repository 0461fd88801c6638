//! Open files: their indexes and filters, within a budget of bytes.
//!
//! A reader of a file holds index, guide and filter, about 2 % of the file, and is loaded and dropped as a whole:
//! 0.3 MiB for a file of 16 MiB. RocksDB cuts indexes and filters into partitions because those of one of its files
//! (64 MiB, and more in deep levels) are megabytes.
//!
//! Up to seven eighths of the budget are *pinned*: their readers are found beside the files of versions, without a look
//! here, and stay until their file is retired or the budget changes. The others
//! are dropped by the clock algorithm: each has a mark that a look-up sets; the hand takes marks away, and drops
//! what has none. So a look-up changes nothing but its mark, and goes on beside others.

use crate::sst::SstReader;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use core::cell::RefCell;
use core::sync::atomic::{AtomicBool, Ordering};
use gabion_base::{FileId, HashMap};

/// Bytes that indexes and filters of open files may take where nobody says otherwise: 1 GiB, those of some 50 GB
/// of files.
pub const OPEN_FILES_LEN: usize = 1 << 30;

/// The readers of live files, within a budget of bytes. To be shared by threads behind a lock: [`Self::get`] needs it
/// for reading only.
pub struct OpenFiles {
    files: HashMap<FileId, Open>,
    /// Each file that is not pinned once; the hand of the clock is at the front.
    clock: VecDeque<FileId>,
    bytes: usize,
    pinned_bytes: usize,
    /// Bytes of the largest reader so far.
    largest: usize,
    capacity: usize,
    opened: u64,
}

struct Open {
    reader: Arc<SstReader>,
    bytes: usize,
    is_pinned: bool,
    is_used: AtomicBool,
}

/// The part of the budget that is left to files that are not pinned, at least.
const UNPINNED_PART: usize = 8;

impl OpenFiles {
    /// No files; those to come take up to `capacity` bytes. One alone may take more.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        let (files, clock) = (HashMap::default(), VecDeque::new());
        Self { files, clock, bytes: 0, pinned_bytes: 0, largest: 0, capacity, opened: 0 }
    }

    /// The reader of `file`, if it is open.
    #[must_use]
    pub fn get(&self, file: FileId) -> Option<Arc<SstReader>> {
        let open = self.files.get(&file)?;
        // Memory that is only read is shared by all processors.
        if !open.is_used.load(Ordering::Relaxed) {
            open.is_used.store(true, Ordering::Relaxed);
        }
        Some(open.reader.clone())
    }

    /// Keeps the reader of a live file, and drops others that are too many. Of several of one file all share the
    /// first, which is returned.
    pub fn keep(&mut self, file: FileId, reader: Arc<SstReader>) -> Arc<SstReader> {
        if let Some(open) = self.files.get(&file) {
            return open.reader.clone();
        }
        let bytes = reader.memory_used();
        self.opened += 1;
        self.largest = self.largest.max(bytes);
        self.make_room(bytes);
        self.bytes += bytes;
        self.clock.push_back(file);
        let is_used = AtomicBool::new(false);
        let open = Open { reader: reader.clone(), bytes, is_pinned: false, is_used };
        self.files.insert(file, open);
        reader
    }

    /// Whether a file that is open stays so until it is retired, as far as the budget goes: then its reader may be kept
    /// elsewhere as long.
    pub fn pin(&mut self, file: FileId) -> bool {
        let Some(open) = self.files.get_mut(&file) else { return false };
        // What is left has room for a file, however large they are.
        let others = self.largest.max(self.capacity / UNPINNED_PART);
        if !open.is_pinned && self.pinned_bytes + open.bytes + others <= self.capacity {
            open.is_pinned = true;
            self.pinned_bytes += open.bytes;
            self.clock.retain(|other| *other != file);
        }
        open.is_pinned
    }

    /// Forgets a retired file. Who holds its reader keeps it.
    pub fn remove(&mut self, file: FileId) {
        if let Some(open) = self.files.remove(&file) {
            self.bytes -= open.bytes;
            match open.is_pinned {
                true => self.pinned_bytes -= open.bytes,
                false => self.clock.retain(|other| *other != file),
            }
        }
    }

    /// Changes the most bytes that the readers may take. None is pinned then, and those that are too many go at once; so
    /// versions must be asked for others in which nothing is kept: [`crate::Tree::close_files`].
    pub fn set_capacity(&mut self, capacity: usize) {
        self.capacity = capacity;
        self.pinned_bytes = 0;
        for (file, open) in &mut self.files {
            if core::mem::take(&mut open.is_pinned) {
                self.clock.push_back(*file);
            }
        }
        self.make_room(0);
    }

    /// The most bytes that the readers may take.
    #[must_use]
    pub const fn capacity(&self) -> usize {
        self.capacity
    }

    /// Bytes that the open readers hold.
    #[must_use]
    pub const fn memory_used(&self) -> usize {
        self.bytes
    }

    /// Open readers.
    #[must_use]
    pub fn len(&self) -> usize {
        self.files.len()
    }

    /// Whether no reader is open.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// Files that were opened so far; one that was dropped meanwhile counts again.
    #[must_use]
    pub const fn opened(&self) -> u64 {
        self.opened
    }

    /// Drops files until `bytes` more are within the budget, or none is left.
    fn make_room(&mut self, bytes: usize) {
        while self.bytes + bytes > self.capacity
            && let Some(file) = self.clock.pop_front()
        {
            let is_used = self
                .files
                .get(&file)
                .is_some_and(|open| open.is_used.swap(false, Ordering::Relaxed));
            if is_used {
                self.clock.push_back(file);
            } else if let Some(open) = self.files.remove(&file) {
                self.bytes -= open.bytes;
            }
        }
    }
}

/// [`OpenFiles`] of one thread.
pub struct TableCache(RefCell<OpenFiles>);

impl TableCache {
    /// As [`OpenFiles::new`].
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self(RefCell::new(OpenFiles::new(capacity)))
    }

    /// As [`OpenFiles::get`].
    #[must_use]
    pub fn get(&self, file: FileId) -> Option<Arc<SstReader>> {
        self.0.borrow().get(file)
    }

    /// As [`OpenFiles::keep`].
    pub fn keep(&self, file: FileId, reader: Arc<SstReader>) -> Arc<SstReader> {
        self.0.borrow_mut().keep(file, reader)
    }

    /// As [`OpenFiles::pin`].
    pub fn pin(&self, file: FileId) -> bool {
        self.0.borrow_mut().pin(file)
    }

    /// As [`OpenFiles::remove`].
    pub fn remove(&self, file: FileId) {
        self.0.borrow_mut().remove(file);
    }

    /// As [`OpenFiles::set_capacity`].
    pub fn set_capacity(&self, capacity: usize) {
        self.0.borrow_mut().set_capacity(capacity);
    }

    /// As [`OpenFiles::capacity`].
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.0.borrow().capacity()
    }

    /// As [`OpenFiles::memory_used`].
    #[must_use]
    pub fn memory_used(&self) -> usize {
        self.0.borrow().memory_used()
    }

    /// As [`OpenFiles::len`].
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.borrow().len()
    }

    /// As [`OpenFiles::is_empty`].
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.borrow().is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::super::LocalCache;
    use super::super::warm::open_built;
    use super::super::warm::tests::{GROUP, file};

    #[test]
    fn pinned_files_stay_within_the_budget_until_it_changes_and_leave_room_for_others() {
        let cache = LocalCache::new(0);
        let open = |number: u64| {
            let file = file(number, 0..1_000);
            open_built(&cache, GROUP, &file.meta, &file.bytes).unwrap().memory_used()
        };
        let (id, len) = (gabion_base::FileId::sst, open(0));
        assert!(!cache.open.pin(id(1)), "it is not open");
        cache.open.set_capacity(16 * len);
        assert_eq!(
            (1..=20).filter(|&number| (open(number), cache.open.pin(id(number))).1).count(),
            14
        );
        assert!(cache.open.memory_used() <= 16 * len);
        assert!(
            (1..=14)
                .all(|number| cache.open.get(id(number)).is_some() && cache.open.pin(id(number)))
        );
        assert_eq!((15..=20).filter(|&number| cache.open.get(id(number)).is_some()).count(), 2);
        cache.open.remove(id(3));
        assert!(cache.open.pin(id(20)), "its place is free");
        cache.open.set_capacity(4 * len);
        assert_eq!((cache.open.len(), cache.open.memory_used()), (4, 4 * len));
        let pinned = (1..=20).filter(|&number| cache.open.pin(id(number))).count();
        assert_eq!(pinned, 3, "one is left for others");
        cache.open.set_capacity(0);
        assert!(cache.open.is_empty());
    }
}

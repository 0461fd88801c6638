//! Open files: their indexes and filters, within a budget of bytes.
//!
//! A reader of a file holds index, guide and filter, about 2 % of the file, and is loaded and
//! dropped as a whole: 0.3 MiB for a file of 16 MiB. RocksDB cuts indexes and filters into
//! partitions because those of one of its files (64 MiB, and more in deep levels) are megabytes.
//!
//! Up to seven eighths of the budget are *pinned*: their readers are found beside the files of
//! versions, without a look here, and stay until their file is retired or the budget changes. The
//! others are dropped by the clock algorithm: each has a mark that a look-up sets; the hand takes
//! marks away, and drops what has none. So a look-up changes nothing but its mark, and goes on
//! beside others.

use crate::sst::SstReader;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, Ordering};
use gabion_base::{FileId, HashMap};

/// Bytes that indexes and filters of open files may take where nobody says otherwise: 1 GiB, those
/// of some 50 GB of files.
pub const OPEN_FILES_LEN: usize = 1 << 30;

/// The readers of live files, within a budget of bytes. To be shared by threads behind a lock:
/// [`Self::get`] needs it for reading only.
pub struct OpenFiles {
    files: HashMap<FileId, Open>,
    /// Each file that is not pinned once; the hand of the clock is at the front.
    clock: VecDeque<FileId>,
    bytes: usize,
    pinned_bytes: usize,
    /// Bytes of the largest reader so far.
    largest: usize,
    capacity: usize,
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
        Self { files, clock, bytes: 0, pinned_bytes: 0, largest: 0, capacity }
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

    /// Keeps the reader of a live file, and drops others that are too many. Of several of one file
    /// all share the first, which is returned.
    pub fn keep(&mut self, file: FileId, reader: Arc<SstReader>) -> Arc<SstReader> {
        if let Some(open) = self.files.get(&file) {
            return open.reader.clone();
        }
        let bytes = reader.memory_used();
        self.largest = self.largest.max(bytes);
        self.make_room(bytes);
        self.bytes += bytes;
        self.clock.push_back(file);
        let is_used = AtomicBool::new(false);
        let open = Open { reader: reader.clone(), bytes, is_pinned: false, is_used };
        self.files.insert(file, open);
        self.end_step();
        reader
    }

    /// What [`Self::pin`] would say, without a lock for writing.
    #[must_use]
    pub fn can_pin(&self, file: FileId) -> bool {
        // What is left has room for a file, however large they are.
        let others = self.largest.max(self.capacity / UNPINNED_PART);
        self.files.get(&file).is_some_and(|open| {
            open.is_pinned || self.pinned_bytes + open.bytes + others <= self.capacity
        })
    }

    /// Whether a file that is open stays so until it is retired, as far as the budget goes: then
    /// its reader may be kept elsewhere as long.
    pub fn pin(&mut self, file: FileId) -> bool {
        let can_pin = self.can_pin(file);
        if let Some(open) = self.files.get_mut(&file).filter(|open| can_pin && !open.is_pinned) {
            open.is_pinned = true;
            self.pinned_bytes += open.bytes;
            self.clock.retain(|other| *other != file);
            self.end_step();
        }
        can_pin
    }

    /// Forgets a retired file. Who holds its reader keeps it.
    pub fn remove(&mut self, file: FileId) {
        if let Some(open) = self.files.remove(&file) {
            assert!(open.bytes <= self.bytes, "{file} was counted when it was opened");
            self.bytes -= open.bytes;
            match open.is_pinned {
                true => self.pinned_bytes -= open.bytes,
                false => self.clock.retain(|other| *other != file),
            }
            self.end_step();
        }
    }

    /// Changes the most bytes that the readers may take. None is pinned then, and those that are
    /// too many go at once; so versions must be asked for others in which nothing is kept:
    /// [`crate::Tree::close_files`]. Says whether it is another budget than before; nothing is done
    /// otherwise.
    pub fn set_capacity(&mut self, capacity: usize) -> bool {
        if core::mem::replace(&mut self.capacity, capacity) == capacity {
            return false;
        }
        self.pinned_bytes = 0;
        for (file, open) in &mut self.files {
            if core::mem::take(&mut open.is_pinned) {
                self.clock.push_back(*file);
            }
        }
        self.make_room(0);
        self.end_step();
        true
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

    /// Ends each step that changes which files are open or pinned.
    fn end_step(&self) {
        assert!(self.pinned_bytes <= self.bytes, "what is pinned is open");
        assert!(self.clock.len() <= self.files.len(), "the clock has files that are open");
        if crate::CHECKED {
            let bytes = |is_one: fn(&Open) -> bool| -> usize {
                self.files.values().filter(|open| is_one(open)).map(|open| open.bytes).sum()
            };
            assert_eq!(self.bytes, bytes(|_| true), "open files are counted");
            assert_eq!(self.pinned_bytes, bytes(|open| open.is_pinned), "pinned ones too");
            let is_unpinned = |file| self.files.get(file).is_some_and(|open| !open.is_pinned);
            assert!(self.clock.iter().all(is_unpinned), "pinned files are not dropped");
        }
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
                assert!(!open.is_pinned, "{file} stays while it is pinned");
                self.bytes -= open.bytes;
            }
        }
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
        let files = || cache.open.borrow_mut();
        let pin = |number| {
            let (mut files, id) = (files(), gabion_base::FileId::sst(number));
            let can_pin = files.can_pin(id);
            assert_eq!((files.pin(id), files.can_pin(id)), (can_pin, can_pin));
            can_pin
        };
        let is_open = |number| files().get(gabion_base::FileId::sst(number)).is_some();
        let len = open(0);
        assert!(!pin(1), "it is not open");
        assert!(files().set_capacity(16 * len));
        assert_eq!((1..=20).filter(|&number| (open(number), pin(number)).1).count(), 14);
        assert!(!files().set_capacity(16 * len), "nothing is unpinned");
        assert!(files().memory_used() <= 16 * len);
        assert!((1..=14).all(|number| is_open(number) && pin(number)));
        assert_eq!((15..=20).filter(|&number| is_open(number)).count(), 2);
        files().remove(gabion_base::FileId::sst(3));
        assert!(pin(20), "its place is free");
        assert!(files().set_capacity(4 * len));
        assert_eq!(files().len(), 4);
        assert_eq!(files().memory_used(), 4 * len);
        assert_eq!((1..=20).filter(|&number| pin(number)).count(), 3, "one is left for others");
        assert!(files().set_capacity(0));
        assert!(files().is_empty());
    }
}

//! Split files: small writes go to the store and to the file system, large ones to the file system
//! alone (SplitFT's fine-grained splitting, which the paper leaves as future work).
//!
//! ```text
//!   small write ─► file system's cache, and a frame of the journal ─┐
//!   sync: nothing but small writes since the last one ──────────────┴─► f+1 peers have the frames
//!   large write, truncation, a full journal ─► file system's cache alone
//!   sync: such a change since the last one ─► the file system's own sync
//!   start: file system's bytes, and over them the frames ─► synced, journal emptied
//! ```
//!
//! The program's descriptor is the file's own, so reads, mappings to read and attributes are the
//! kernel's. The [journal](crate::journal) is a log file of the application like any other; the
//! ranges of its frames are the map that says which bytes of a file are to come from it.
//!
//! Rules, all under the lock of the shared memory:
//!
//! - A write is a frame only while the file has no unsynced change of the file system's alone. So
//!   no frame depends on bytes that a crash may take.
//! - A change of the file system's alone never lies over a frame's bytes: the journal is emptied
//!   before. So frames are never older than the file's bytes, in a process's crash as in a
//!   machine's. Where that cannot be known, of a process that died amid a write, the file is
//!   *uncertain*, and its next sync empties the journal.
//! - The journal is *emptied* by the owner: no frame is written meanwhile, all files that have
//!   frames are synced, then a head of the next epoch is stored.
//! - A file that becomes split has an unsynced change: its first sync is the file system's. A file
//!   whose name changes or goes is split no more until that is done.
//!
//! So after a crash each byte of a file is the one of its last sync, or of a later write.

use crate::journal::{FRAMES_AT, frame_len};
use crate::shared::{Guard, Shared, Slot, state};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

/// Names of the journal in the store, and of split files: `PREFIX journal`, and
/// `PREFIX NUMBER / path`, all of one file. No file of the application's has such a name.
pub const PREFIX: &str = ".gabion-ncl-split/";

/// The journal, as processes see it.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Journal {
    slot: AtomicU32,
    generation: AtomicU32,
    /// Not 0: frames may be written.
    open: AtomicU32,
    /// Files that matched and were left alone.
    left_alone: AtomicU32,
    len: AtomicU64,
    epoch: AtomicU64,
    /// Of the head of that epoch.
    salt: AtomicU64,
    /// The place of the next frame.
    tail: AtomicU64,
    /// Frames that were written, and their bytes.
    frames: AtomicU64,
    bytes: AtomicU64,
    /// Writes of split files that are in the file system alone.
    large: AtomicU64,
}

/// A place for a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// The salt of the journal's head.
    pub salt: u64,
    /// The frame's place in the journal.
    pub at: u64,
}

/// Counts of split files since the owner began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Frames that were written.
    pub frames: u64,
    /// Bytes of these.
    pub bytes: u64,
    /// Writes in the file system alone.
    pub large: u64,
    /// How often the journal was emptied.
    pub emptied: u64,
}

impl Shared {
    /// Slot, generation and length of the journal.
    #[must_use]
    pub fn journal_file(&self) -> (u32, u32, u64) {
        let journal = self.journal();
        (journal.slot.load(Acquire), journal.generation.load(Acquire), journal.len.load(Acquire))
    }

    /// Whether files may be split.
    #[must_use]
    pub fn has_journal(&self) -> bool {
        self.journal().len.load(Acquire) != 0
    }

    /// Counts of split files.
    #[must_use]
    pub fn split_counts(&self) -> Counts {
        let journal = self.journal();
        let [frames, bytes, large, epoch] =
            [&journal.frames, &journal.bytes, &journal.large, &journal.epoch]
                .map(|count| count.load(Relaxed));
        Counts { frames, bytes, large, emptied: epoch.saturating_sub(1) }
    }

    /// Files that are split, and how many matched and were left alone since the owner began.
    #[must_use]
    pub fn split_files(&self) -> (usize, u32) {
        let slots = (0..self.used_slots()).filter_map(|number| self.slot(number));
        let live = slots.filter(|slot| slot.state.load(Acquire) == state::LIVE);
        let left_alone = self.journal().left_alone.load(Relaxed);
        (live.filter(|slot| slot.is_split()).count(), left_alone)
    }

    /// One more file matches and is left alone.
    #[cfg(feature = "owner")]
    pub(crate) fn count_left_alone(&self) {
        self.journal().left_alone.fetch_add(1, Relaxed);
    }

    /// There is a journal from now on, which is empty and closed.
    pub fn set_journal(&self, slot: u32, generation: u32, len: u64) {
        let journal = self.journal();
        journal.slot.store(slot, Relaxed);
        journal.generation.store(generation, Relaxed);
        journal.tail.store(len, Relaxed);
        journal.len.store(len, Release);
    }

    /// The slot and generation of the split file of an inode.
    #[must_use]
    pub fn find_split(&self, device: u64, inode: u64) -> Option<(u32, u32)> {
        let found = self.find(device, inode)?;
        self.slot(found.0).filter(|slot| slot.is_split()).map(|_| found)
    }

    /// The place of the next frame.
    #[must_use]
    pub fn journal_tail(&self) -> u64 {
        self.journal().tail.load(Acquire)
    }

    /// Whether any file is [uncertain](Slot::is_uncertain).
    #[must_use]
    pub fn is_any_uncertain(&self) -> bool {
        let slots = (0..self.used_slots()).filter_map(|number| self.slot(number));
        slots.filter(|slot| slot.is_split()).any(Slot::is_uncertain)
    }

    /// Whether the journal has no room for a frame of some length, so that a sync had better empty
    /// it.
    #[must_use]
    pub fn is_journal_full(&self, len: u64) -> bool {
        let journal = self.journal();
        journal.tail.load(Acquire) + frame_len(len) > journal.len.load(Acquire)
    }
}

impl Slot {
    /// Whether it is a split file's.
    #[must_use]
    pub fn is_split(&self) -> bool {
        self.split_below.load(Acquire) != 0
    }

    /// Writes of fewer bytes are frames.
    #[must_use]
    pub fn split_below(&self) -> u64 {
        self.split_below.load(Relaxed)
    }

    /// Makes the slot, which has its generation already, a mirrored file's (0), or a split one's
    /// with an unsynced change. Counts of each generation are beyond those of the ones before:
    /// whoever still notes a sync of another file notes nothing. And whoever has read these counts
    /// sees this generation.
    pub fn set_split(&self, below: u64, generation: u32) {
        let first = u64::from(generation) << 32;
        self.written.store(first + 1, Release);
        self.synced.store(first, Release);
        self.forget_frames();
        self.split_below.store(below, Release);
    }

    fn forget_frames(&self) {
        self.high.store(0, Relaxed);
        self.low.store(u64::MAX, Relaxed);
        self.is_uncertain.store(0, Relaxed);
    }

    /// The journal has frames of the file.
    #[must_use]
    pub fn has_frames(&self) -> bool {
        self.high.load(Acquire) != 0
    }

    /// Whether frames of the journal may lie in a range: anywhere, if that is not known.
    #[must_use]
    pub fn has_frames_in(&self, from: u64, to: u64) -> bool {
        self.is_uncertain() || from < self.high.load(Acquire) && to > self.low.load(Acquire)
    }

    /// Changes of the file system's alone, if not all of them are synced.
    #[must_use]
    pub fn unsynced(&self) -> Option<u64> {
        let written = self.written.load(Acquire);
        (written != self.synced.load(Acquire)).then_some(written)
    }

    /// So many changes of the file system's alone are synced.
    pub fn note_synced(&self, written: u64) {
        self.synced.fetch_max(written, Release);
    }

    /// The journal may have frames that are older than the file's bytes.
    #[must_use]
    pub fn is_uncertain(&self) -> bool {
        self.is_uncertain.load(Acquire) != 0
    }

    /// Bytes of the file changed, in a place that nobody knows.
    pub(crate) fn note_uncertain(&self) {
        self.is_uncertain.store(1, Release);
        self.written.fetch_add(1, Release);
    }
}

impl Guard {
    /// A place for a frame of the file of that slot; none if a write of so many bytes is to be in
    /// the file system alone.
    #[must_use]
    pub fn room(&mut self, slot: &Slot, len: u64) -> Option<Room> {
        let journal = self.shared().journal();
        let fits = len < slot.split_below()
            && slot.unsynced().is_none()
            && journal.open.load(Acquire) != 0
            && !self.shared().is_journal_full(len);
        let (salt, at) = (journal.salt.load(Relaxed), journal.tail.load(Relaxed));
        fits.then_some(Room { salt, at })
    }

    /// The frame is in the journal, and its record was put.
    pub fn framed(&mut self, slot: &Slot, room: Room, offset: u64, len: u64) {
        let journal = self.shared().journal();
        journal.tail.store(room.at + frame_len(len), Release);
        slot.low.fetch_min(offset, Relaxed);
        slot.high.fetch_max(offset + len, Release);
        journal.frames.fetch_add(1, Relaxed);
        journal.bytes.fetch_add(len, Relaxed);
    }

    /// The file was changed in the file system alone.
    pub fn changed(&mut self, slot: &Slot) {
        slot.written.fetch_add(1, Release);
        self.shared().journal().large.fetch_add(1, Relaxed);
    }

    /// The file was changed in a place that nobody knows.
    pub fn changed_somewhere(&mut self, slot: &Slot) {
        slot.note_uncertain();
        self.shared().journal().large.fetch_add(1, Relaxed);
    }

    /// No frame is written from now on.
    pub fn close_journal(&mut self) {
        self.shared().journal().open.store(0, Release);
    }

    /// The journal is empty and its new head stored, with this salt; frames may be written.
    pub fn open_journal(&mut self, epoch: u64, salt: u64) {
        let shared = *self.shared();
        let journal = shared.journal();
        for number in 0..shared.used_slots() {
            let slot = shared.slot(number).filter(|slot| slot.is_split());
            slot.into_iter().for_each(Slot::forget_frames);
        }
        journal.epoch.store(epoch, Relaxed);
        journal.salt.store(salt, Relaxed);
        journal.tail.store(FRAMES_AT, Relaxed);
        journal.open.store(1, Release);
    }

    /// Takes a split file's slot away, if the journal has no frames of it.
    pub fn retire(&mut self, slot: &Slot) -> bool {
        let may_go = !slot.has_frames() && !slot.is_uncertain();
        if may_go {
            slot.state.store(state::GONE, Release);
        }
        may_go
    }
}

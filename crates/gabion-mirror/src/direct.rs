//! Records that processes write to the log peers themselves, under a grant of the owner's store.
//!
//! ```text
//!   owner: publish ─► word = grant, 0
//!   process, with the lock:  claim n ─► full fence ─► word still the grant? ─► bytes, data, cell
//!                            ─► gates open? ─► word: grant, n − 1 → grant, n ─► the record counts
//!   owner: recall ─► word = 0 ─► full fence ─► records that count, and whether one is claimed
//! ```
//!
//! One word decides: its low bits count the records, and whoever recalls takes it away. So a record
//! counts, or whoever recalled knows that its number may be at peers and gives it to no other. By
//! the two full fences the process sees that the word is gone, or the owner sees the claim.
//! Nobody waits for anybody: not for a process that was stopped amid a record, nor for the owner.
//!
//! One process at a time has the lock, so it has the fields to itself, but for whoever recalls.
//! The state of a file after a record is first *pending*, under the number of that record, and
//! taken over once the record counts: of a process that dies between, the owner knows it all the
//! same.
//!
//! A peer that died leaves its memory and its gates as they are. The owner, which has the
//! connections, recalls the grant then; if it does not look at them for [`KNOWN_MS`], no record
//! counts.
//!
//! Records that go through the ring come behind all of these: the first one revokes the grant.

use crate::shared::{Guard, Shared};
use gabion_ncl::{FileNumber, Progress, Recalled};
#[cfg(feature = "owner")]
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*, fence};

/// Peers at most that a process writes to.
pub const PEERS_MAX: usize = 5;
/// Parts of a file at most that it maps.
pub const PARTS_MAX: usize = 48;
/// Bytes of one record at most.
pub const LEN_MAX: usize = gabion_ncl::RECORD_LEN_MAX as usize;

/// Bits of the word: records that count, revoked, the grant.
const COUNT: u64 = (1 << 39) - 1;
const REVOKED: u64 = 1 << 39;
const GRANT: u32 = 40;

/// The right of processes to write records of one file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Grant {
    /// The file as the store knows it.
    pub file: u64,
    /// Its slot and generation.
    pub slot: u32,
    /// See `slot`.
    pub generation: u32,
    /// The regions that are written: a process has to have mapped those of this number.
    pub window: u64,
    /// The term of the records.
    pub term: u64,
    /// The seed of their cells.
    pub owner: u32,
    /// The number of the record before the first one.
    pub last: u64,
    /// The file as of the last record.
    pub progress: Progress,
    /// The offset up to which the file can be written.
    pub capacity: u64,
    /// The offset up to which it can grow.
    pub near: u64,
}

/// The memory of one peer that holds a file.
#[cfg(feature = "owner")]
#[derive(Debug)]
pub struct PeerMemory {
    /// Regions by part: number, index of the gate, memory.
    pub regions: Vec<(u64, u32, OwnedFd)>,
    /// The memory of the peer's gates, and how many bytes it has.
    pub gates: (OwnedFd, u64),
}

/// The memory of all peers that a process writes a file's records to.
#[cfg(feature = "owner")]
#[derive(Debug)]
pub struct Window {
    /// No two have the same.
    pub number: u64,
    /// Bytes of data of each part.
    pub parts: Vec<u64>,
    /// The peers.
    pub peers: Vec<PeerMemory>,
}

/// Bytes of a window's description at most.
pub const WINDOW_LEN_MAX: usize = 16 + 8 * PARTS_MAX + PEERS_MAX * (8 + 16 * PARTS_MAX);
/// Descriptors of a window at most: the kernel passes no more than 253 on at once.
pub const DESCRIPTORS_MAX: usize = PEERS_MAX * (1 + PARTS_MAX);
const _: () = assert!(DESCRIPTORS_MAX <= 253);

#[cfg(feature = "owner")]
impl Window {
    /// The description, for a process: number, count of peers and of parts (u32 each), bytes of
    /// parts; of each peer bytes of the gates, and numbers and gates of the regions; all u64 but
    /// the counts.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = self.number.to_le_bytes().to_vec();
        bytes.extend((self.peers.len() as u32).to_le_bytes());
        bytes.extend((self.parts.len() as u32).to_le_bytes());
        self.parts.iter().for_each(|part| bytes.extend(part.to_le_bytes()));
        for peer in &self.peers {
            bytes.extend(peer.gates.1.to_le_bytes());
            for (region, gate, _) in &peer.regions {
                bytes.extend(region.to_le_bytes());
                bytes.extend(u64::from(*gate).to_le_bytes());
            }
        }
        bytes
    }

    /// The descriptors, in the order of the description: of each peer the gates, then the regions.
    #[must_use]
    pub fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        let mut all = Vec::new();
        for peer in &self.peers {
            all.push(peer.gates.0.as_fd());
            all.extend(peer.regions.iter().map(|(.., memory)| memory.as_fd()));
        }
        all
    }
}

#[derive(Debug, Default)]
#[repr(C)]
struct SharedProgress {
    len: AtomicU64,
    dirty: AtomicU64,
    ordinal: AtomicU32,
}

impl SharedProgress {
    fn load(&self) -> Progress {
        let (len, dirty) = (self.len.load(Relaxed), self.dirty.load(Relaxed));
        Progress { len, dirty, ordinal: self.ordinal.load(Relaxed) }
    }

    fn store(&self, progress: Progress) {
        self.len.store(progress.len, Relaxed);
        self.dirty.store(progress.dirty, Relaxed);
        self.ordinal.store(progress.ordinal, Relaxed);
    }
}

/// The grant, in the memory that processes share with the owner. All zeros: there is none.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct Direct {
    word: AtomicU64,
    /// When the owner last knew which peers live, in milliseconds.
    looked_ms: AtomicU64,
    /// The word that a record would make, once a process began it.
    claimed: AtomicU64,
    /// A slot, plus one, for whose records a process waited.
    wanted: AtomicU32,
    slot: AtomicU32,
    generation: AtomicU32,
    owner: AtomicU32,
    grants: AtomicU64,
    file: AtomicU64,
    window: AtomicU64,
    term: AtomicU64,
    last: AtomicU64,
    capacity: AtomicU64,
    near: AtomicU64,
    progress: SharedProgress,
    /// The word as of which the file is as `pending`; 0 while that changes.
    pending_at: AtomicU64,
    pending: SharedProgress,
    /// Records that counted, of all grants, and their bytes.
    records: AtomicU64,
    bytes: AtomicU64,
}

/// For so many milliseconds a process takes the peers for alive after the owner has looked at their
/// connections. A peer that died leaves its memory, and its gates open: nothing else tells.
pub const KNOWN_MS: u64 = 100;

/// A clock that all processes of the machine have, in milliseconds. It costs a few nanoseconds.
fn now_ms() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes one time, for which there is room.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &mut time) };
    time.tv_sec as u64 * 1000 + time.tv_nsec as u64 / 1_000_000
}

impl Direct {
    /// Whether the owner knows of the peers that died, if any did.
    fn is_known(&self) -> bool {
        now_ms().saturating_sub(self.looked_ms.load(Acquire)) <= KNOWN_MS
    }
}

/// A record that a process may write now.
#[derive(Clone, Copy, Debug)]
pub struct Turn {
    word: u64,
    /// The grant; `progress` is as of the record before this one.
    pub grant: Grant,
    /// The number of the record.
    pub number: u64,
}

impl Guard {
    /// The next record of a file, if it is granted.
    pub fn turn(&mut self, slot: u32, generation: u32) -> Option<Turn> {
        let direct = self.shared().direct();
        let word = direct.word.load(Acquire);
        let is_its = (direct.slot.load(Relaxed), direct.generation.load(Relaxed));
        if word == 0 || word & REVOKED != 0 || is_its != (slot, generation) || !direct.is_known() {
            return None;
        }
        let grant = Grant {
            file: direct.file.load(Relaxed),
            slot,
            generation,
            window: direct.window.load(Relaxed),
            term: direct.term.load(Relaxed),
            owner: direct.owner.load(Relaxed),
            last: direct.last.load(Relaxed),
            progress: direct.progress.load(),
            capacity: direct.capacity.load(Relaxed),
            near: direct.near.load(Relaxed),
        };
        Some(Turn { word, grant, number: grant.last + (word & COUNT) + 1 })
    }

    /// Claims the record: it may be at peers from now on. False if the grant was recalled.
    pub fn claim(&mut self, turn: &Turn) -> bool {
        let direct = self.shared().direct();
        direct.claimed.store(turn.word + 1, SeqCst);
        fence(SeqCst);
        direct.word.load(SeqCst) == turn.word
    }

    /// All peers have the record, of `len` bytes, and their gates were open afterwards: it counts.
    /// False if the grant was recalled, or nobody looked after the peers: it does not.
    pub fn count(&mut self, turn: &Turn, len: usize, after: Progress) -> bool {
        let direct = self.shared().direct();
        if !direct.is_known() {
            return false;
        }
        direct.pending_at.store(0, Release);
        fence(Release);
        direct.pending.store(after);
        direct.pending_at.store(turn.word + 1, Release);
        let counts = direct.word.compare_exchange(turn.word, turn.word + 1, SeqCst, Relaxed);
        if counts.is_ok() {
            direct.progress.store(after);
            direct.records.fetch_add(1, Relaxed);
            direct.bytes.fetch_add(len as u64, Relaxed);
        }
        counts.is_ok()
    }

    /// No more records count under the present grant.
    pub(crate) fn revoke(&mut self) {
        let word = &self.shared().direct().word;
        let present = word.load(Relaxed);
        if present != 0 {
            // It fails if the grant was recalled meanwhile: nobody else changes it now.
            let _ = word.compare_exchange(present, present | REVOKED, SeqCst, Relaxed);
        }
    }
}

impl Shared {
    /// A process waits for records of this file, and would rather write them itself.
    pub fn want(&self, slot: u32) {
        self.direct().wanted.store(slot + 1, Relaxed);
    }

    /// The file whose records a process waited for since this was asked last.
    #[must_use]
    pub fn wanted(&self) -> Option<u32> {
        let wanted = &self.direct().wanted;
        if wanted.load(Relaxed) == 0 { None } else { wanted.swap(0, Relaxed).checked_sub(1) }
    }

    /// The window that was published last, if it is of this file.
    #[must_use]
    pub fn window_of(&self, slot: u32, generation: u32) -> Option<u64> {
        let direct = self.direct();
        let is_its = (direct.slot.load(Relaxed), direct.generation.load(Relaxed));
        let window = direct.window.load(Acquire);
        (window != 0 && is_its == (slot, generation)).then_some(window)
    }

    /// Records that processes wrote to peers themselves, and their bytes.
    #[must_use]
    pub fn direct_records(&self) -> (u64, u64) {
        let direct = self.direct();
        (direct.records.load(Relaxed), direct.bytes.load(Relaxed))
    }

    /// The owner has looked at the connections of all peers, and has recalled the grant if one was
    /// lost. A grant is of use only while this is told again and again: an owner that is stopped,
    /// or dies, hears of no peer that does.
    pub fn looked(&self) {
        self.direct().looked_ms.store(now_ms(), Release);
    }

    /// Grants records. The caller keeps the lock of the shared memory from processes, and everybody
    /// from [`recall`](Self::recall); the grant before was recalled.
    pub fn publish(&self, grant: &Grant) {
        let direct = self.direct();
        assert_eq!(direct.word.load(SeqCst), 0, "the grant before was recalled");
        direct.file.store(grant.file, Relaxed);
        direct.slot.store(grant.slot, Relaxed);
        direct.generation.store(grant.generation, Relaxed);
        direct.window.store(grant.window, Relaxed);
        direct.term.store(grant.term, Relaxed);
        direct.owner.store(grant.owner, Relaxed);
        direct.last.store(grant.last, Relaxed);
        direct.progress.store(grant.progress);
        direct.capacity.store(grant.capacity, Relaxed);
        direct.near.store(grant.near, Relaxed);
        let number = direct.grants.fetch_add(1, Relaxed) % ((1 << (64 - GRANT)) - 1) + 1;
        direct.word.store(number << GRANT, SeqCst);
    }

    /// Ends the grant, if there is one, and says how far it came. One thread at a time may call it;
    /// processes may be amid a record.
    #[must_use]
    pub fn recall(&self) -> Option<Recalled> {
        let direct = self.direct();
        if direct.word.load(Relaxed) == 0 {
            return None;
        }
        let word = direct.word.swap(0, SeqCst) & !REVOKED;
        fence(SeqCst);
        let is_claimed = direct.claimed.load(SeqCst) == word + 1;
        let before = direct.pending_at.load(Acquire);
        let pending = direct.pending.load();
        fence(Acquire);
        let is_pending = before == word && direct.pending_at.load(Relaxed) == word;
        let progress = if is_pending { pending } else { direct.progress.load() };
        let file = FileNumber(direct.file.load(Relaxed));
        Some(Recalled { file, written: word & COUNT, is_claimed, progress })
    }
}

#[cfg(feature = "owner")]
#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::{Kind, LEN, Record};
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    use std::os::fd::AsRawFd;
    use std::sync::atomic::AtomicBool;

    const SLOT: (u32, u32) = (3, 9);

    fn memory() -> Shared {
        let memory = memfd_create("gabion-test", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&memory, LEN as u64).unwrap();
        Shared::create(memory.as_raw_fd(), false).unwrap()
    }

    fn grant(last: u64, progress: Progress) -> Grant {
        let (slot, generation) = SLOT;
        let (capacity, near) = (1 << 20, 1 << 19);
        Grant { file: 7, slot, generation, window: 1, last, progress, capacity, near, ..ZERO }
    }

    const ZERO: Grant = Grant {
        file: 0,
        slot: 0,
        generation: 0,
        window: 0,
        term: 0,
        owner: 0,
        last: 0,
        progress: Progress { len: 0, dirty: 0, ordinal: 0 },
        capacity: 0,
        near: 0,
    };

    fn after(before: Progress) -> Progress {
        let (len, ordinal) = (before.len + 10, before.ordinal + 1);
        Progress { len, dirty: len, ordinal }
    }

    fn write(guard: &mut Guard) -> bool {
        let turn = guard.turn(SLOT.0, SLOT.1).unwrap();
        guard.claim(&turn) && guard.count(&turn, 10, after(turn.grant.progress))
    }

    #[test]
    fn records_that_count_are_known_to_whoever_recalls() {
        let shared = memory();
        assert_eq!(shared.recall(), None, "nothing was granted");
        let begin = Progress { len: 5, dirty: 8, ordinal: 1 };
        shared.looked();
        shared.publish(&grant(40, begin));
        let mut guard = shared.lock();
        assert!(guard.turn(3, 8).is_none(), "of another file in the same slot");
        assert_eq!(guard.turn(SLOT.0, SLOT.1).unwrap().number, 41);
        assert!(write(&mut guard) && write(&mut guard));
        assert_eq!(guard.turn(SLOT.0, SLOT.1).unwrap().number, 43);
        let progress = after(after(begin));
        let file = FileNumber(7);
        let wanted = Recalled { file, written: 2, is_claimed: false, progress };
        assert_eq!(shared.recall(), Some(wanted));
        assert!(guard.turn(SLOT.0, SLOT.1).is_none());
        assert_eq!((shared.recall(), shared.direct_records()), (None, (2, 20)));
    }

    #[test]
    fn a_record_that_was_begun_does_not_count_once_the_grant_is_recalled() {
        let shared = memory();
        shared.looked();
        shared.publish(&grant(0, Progress::default()));
        let mut guard = shared.lock();
        assert!(write(&mut guard));
        let turn = guard.turn(SLOT.0, SLOT.1).unwrap();
        assert!(guard.claim(&turn));
        let recalled = shared.recall().unwrap();
        assert_eq!((recalled.written, recalled.is_claimed), (1, true));
        assert!(!guard.count(&turn, 10, after(turn.grant.progress)));
        assert_eq!(recalled.progress, after(Progress::default()));
        shared.looked();
        shared.publish(&grant(2, recalled.progress));
        assert!(!guard.claim(&turn), "it is of the grant before");
        assert!(!guard.count(&turn, 10, after(turn.grant.progress)));
        let recalled = shared.recall().unwrap();
        assert_eq!((recalled.written, recalled.is_claimed), (0, false));
    }

    #[test]
    fn a_record_in_the_ring_comes_behind_those_of_the_grant() {
        let shared = memory();
        shared.looked();
        shared.publish(&grant(0, Progress::default()));
        let mut guard = shared.lock();
        assert!(write(&mut guard));
        let (slot, generation) = SLOT;
        let cut = Record { kind: Kind::Truncate, slot, generation, offset: 0, len: 1 };
        guard.put(&cut, &[], &mut || true).unwrap();
        assert!(guard.turn(slot, generation).is_none(), "its number would be too small");
        assert_eq!(shared.recall().map(|it| it.written), Some(1));
        guard.put(&cut, &[], &mut || true).unwrap();
        assert_eq!(shared.recall(), None, "what is recalled is not revoked too");
    }

    /// docs/faults.md: N8
    #[test]
    fn no_record_counts_while_nobody_looks_whether_peers_live() {
        let shared = memory();
        shared.publish(&grant(0, Progress::default()));
        let mut guard = shared.lock();
        assert!(guard.turn(SLOT.0, SLOT.1).is_none(), "nobody has ever looked");
        shared.looked();
        let turn = guard.turn(SLOT.0, SLOT.1).unwrap();
        assert!(guard.claim(&turn));
        let long_ago = now_ms() - KNOWN_MS - 1;
        shared.direct().looked_ms.store(long_ago, Release);
        assert!(!guard.count(&turn, 10, after(turn.grant.progress)), "the owner was stopped");
        assert!(shared.recall().is_some_and(|it| it.is_claimed && it.written == 0));
    }

    #[test]
    fn the_file_that_is_wanted_is_told_once() {
        let shared = memory();
        assert_eq!(shared.wanted(), None);
        shared.want(0);
        assert_eq!((shared.wanted(), shared.wanted()), (Some(0), None));
        assert_eq!(shared.window_of(SLOT.0, SLOT.1), None);
        shared.looked();
        shared.publish(&grant(0, Progress::default()));
        assert_eq!(shared.window_of(SLOT.0, SLOT.1), Some(1));
        assert_eq!(shared.window_of(SLOT.0, 8), None);
    }

    /// Recalls at every moment of records, and deaths amid them: no number is given twice, and what
    /// counts is counted.
    #[test]
    fn whoever_recalls_and_whoever_writes_agree_on_each_record() {
        const GRANTS: u64 = 20_000;
        let shared = memory();
        static ENDED: AtomicBool = AtomicBool::new(false);
        let writer = std::thread::spawn(move || {
            let (mut counted, mut last, mut burnt) = (0, 0, 0);
            while !ENDED.load(Acquire) {
                let mut guard = shared.lock();
                let Some(turn) = guard.turn(SLOT.0, SLOT.1) else { continue };
                if !guard.claim(&turn) {
                    continue;
                }
                assert!(turn.number > last, "{} after {last}", turn.number);
                last = turn.number;
                match guard.count(&turn, 10, after(turn.grant.progress)) {
                    true => counted += 1,
                    false => burnt += 1,
                }
            }
            (counted, burnt)
        });
        let (mut last, mut progress, mut counted, mut claimed) = (0, Progress::default(), 0, 0);
        for number in 0..GRANTS {
            {
                // As the owner, who publishes under the lock.
                let _guard = shared.lock();
                shared.looked();
                shared.publish(&grant(last, progress));
            }
            for _ in 0..number % 97 {
                std::hint::spin_loop();
            }
            let recalled = shared.recall().unwrap();
            counted += recalled.written;
            claimed += u64::from(recalled.is_claimed);
            last += recalled.written + u64::from(recalled.is_claimed);
            progress = recalled.progress;
            assert_eq!((progress.len, u64::from(progress.ordinal)), (10 * counted, counted));
        }
        ENDED.store(true, Release);
        let (written, burnt) = writer.join().unwrap();
        assert_eq!(written, counted, "records that count");
        assert!(burnt <= claimed, "{burnt} numbers may be at peers, {claimed} were passed over");
        assert_eq!(shared.direct_records(), (counted, 10 * counted));
    }
}

//! The memory that the processes of an application and their owner share.
//!
//! ```text
//!  0          4 KiB                          64 KiB + …
//!  ┌──────────┬──────────────────────────────┬──────────────────────────────┐
//!  │ header   │ slots: one a file            │ ring of records              │
//!  │ lock     │ generation, state            │ kind, slot, generation,      │
//!  │ positions│ inodes, links                │ offset, length, bytes        │
//!  └──────────┴──────────────────────────────┴──────────────────────────────┘
//! ```
//!
//! A process changes the bytes of a mirror only under the lock: it notes the slot (`busy`), has the
//! kernel change the memory file, puts a record of it into the ring, and lets go. So the records
//! are in the order of the changes, whichever processes made them. Positions in the ring count the
//! bytes since the beginning and never wrap: `consumed ≤ head ≤ consumed + RING`, and
//! `stored ≤ consumed`. A sync waits until `stored` has passed the head that it saw.
//!
//! The lock is robust. If a process dies with it, whoever takes it next finds `busy` and puts a
//! record that has the owner read that mirror again: whatever the kernel had written becomes a
//! change like any other.
//!
//! The store may take the mirrors' bytes for a copy at any moment, whatever records of them are in
//! the ring. A [`mark`](Shared::mark) says which records such a copy lacks, and
//! [`has_issued`](Shared::has_issued) when the store has been told of them all.
//!
//! All fields that several processes touch are atomics or behind the lock. The mapping is never
//! taken away as long as a process lives, so references into it are good for the whole of it.

use crate::direct::Direct;
use crate::looks::Looks;
use crate::split::Journal;
use crate::times::Times;
use crate::told::Told;
use std::cell::UnsafeCell;
use std::io;
use std::mem::size_of;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*, fence};
use std::time::{Duration, Instant};

/// Bytes of the ring: what a program may write ahead of the store.
pub const RING: u64 = 4 << 20;
/// Files that an application has at once, and those removed that something still holds open.
pub const SLOTS: usize = 1 << 10;
/// Bytes of one record at most; longer writes are several.
pub const RECORD_MAX: u64 = 256 << 10;
/// Offsets of the grant, of the slots and of the ring.
const DIRECT_AT: usize = 2048;
const SLOTS_AT: usize = 4096;
const RING_AT: usize = SLOTS_AT + SLOTS * size_of::<Slot>();
/// Bytes of the whole.
pub const LEN: usize = RING_AT + RING as usize;
const MAGIC: u64 = u64::from_le_bytes(*b"gabncl\x00\x05");

const _: () = assert!(size_of::<Header>() <= DIRECT_AT);
const _: () = assert!(DIRECT_AT + size_of::<Direct>() <= SLOTS_AT);
const _: () = assert!(size_of::<Slot>() == 96);
const _: () = assert!(RING.is_power_of_two() && RECORD_MAX * 4 <= RING);

/// The change that a record makes to its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Kind {
    /// Bytes at an offset; they follow.
    Write = 1,
    /// The file has `len` bytes from now on.
    Truncate = 2,
    /// The owner reads `len` bytes at the offset from the mirror, and its length.
    Reread = 3,
}

impl Kind {
    fn of(word: u32) -> Option<Self> {
        [Self::Write, Self::Truncate, Self::Reread].into_iter().find(|kind| *kind as u32 == word)
    }
}

/// A record without its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Its effect.
    pub kind: Kind,
    /// The file.
    pub slot: u32,
    /// The generation of the slot; a record of an earlier one is of a file that is gone.
    pub generation: u32,
    /// First byte that changed.
    pub offset: u64,
    /// Bytes that changed, or the new length.
    pub len: u64,
}

const RECORD_HEAD: u64 = 32;

impl Record {
    fn words(&self) -> [u64; 4] {
        let generation = u64::from(self.generation) << 32;
        [generation | u64::from(self.slot), self.kind as u64, self.offset, self.len]
    }

    fn parse(words: [u64; 4]) -> Option<Self> {
        let kind = Kind::of(u32::try_from(words[1]).ok()?)?;
        let (slot, generation) = (words[0] as u32, (words[0] >> 32) as u32);
        Some(Self { kind, slot, generation, offset: words[2], len: words[3] })
    }

    /// Bytes behind the head in the ring.
    fn bytes(&self) -> u64 {
        if self.kind == Kind::Write { self.len } else { 0 }
    }
}

/// A state of a slot: nobody's, a file's, or that of a file without a name, whose bytes nobody will
/// ever recover and whose records therefore end.
pub mod state {
    /// Nobody's.
    pub const FREE: u32 = 0;
    /// A file's.
    pub const LIVE: u32 = 1;
    /// Of a file without a name.
    pub const GONE: u32 = 2;
}

/// One file: a mirrored one, or a [split](crate::split) one.
#[derive(Debug)]
#[repr(C)]
pub struct Slot {
    /// Goes up with each file that has the slot.
    pub generation: AtomicU32,
    /// One of [`state`].
    pub state: AtomicU32,
    /// Device and inode of the placeholder: the entry in the file system that has the file's name.
    pub device: AtomicU64,
    /// See `device`.
    pub inode: AtomicU64,
    /// Device and inode of the mirror; of a split file the same once more.
    pub mirror_device: AtomicU64,
    /// See `mirror_device`.
    pub mirror_inode: AtomicU64,
    /// Names of the file.
    pub links: AtomicU32,
    /// Not 0: the journal has frames that may be older than the file's bytes.
    pub(crate) is_uncertain: AtomicU32,
    /// A split file: writes of fewer bytes are frames of the journal. 0: a mirrored file.
    pub(crate) split_below: AtomicU64,
    /// Changes that were made in the file system alone, and those that are synced there.
    pub(crate) written: AtomicU64,
    /// See `written`.
    pub(crate) synced: AtomicU64,
    /// The bytes of the file between which all frames lie that the journal has of it.
    pub(crate) low: AtomicU64,
    /// See `low`.
    pub(crate) high: AtomicU64,
    /// The length that a mirror may have: the store has memory for so many bytes. More is asked
    /// for before the mirror has it. Behind the lock, once the file is live.
    pub capacity: AtomicU64,
}

#[repr(C)]
struct Header {
    magic: AtomicU64,
    lock: UnsafeCell<libc::pthread_mutex_t>,
    /// The slot that the holder of the lock changes, plus one; 0: none. The lock is never let go
    /// with another one, but by a process that dies.
    busy: AtomicU32,
    /// Slots ever used: the others need not be looked at.
    used: AtomicU32,
    /// 1: each write waits until it is stored.
    every_write: AtomicU32,
    /// An `errno`: the store has failed, and nothing will be stored any more. 0: it works.
    failed: AtomicU32,
    /// Goes up when there are records; the owner sleeps on it.
    work: AtomicU32,
    owner_sleeps: AtomicU32,
    /// Goes up when records are consumed or stored; processes sleep on it.
    done: AtomicU32,
    sleepers: AtomicU32,
    /// Changes that are over.
    changes: AtomicU64,
    head: AtomicU64,
    consumed: AtomicU64,
    /// The store was told of the records up to here.
    issued: AtomicU64,
    stored: AtomicU64,
    /// How long processes waited until their changes were stored.
    waited: Times,
    journal: Journal,
    told: Told,
}

/// A mapping of the memory.
#[derive(Clone, Copy, Debug)]
pub struct Shared {
    base: *mut u8,
}

// SAFETY: the memory behind `base` is made for several processes: all is atomic or behind the lock.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    /// Maps the memory behind a descriptor that has [`LEN`] bytes. It stays mapped as long as the
    /// process lives.
    ///
    /// # Errors
    /// The kernel's, or `InvalidData` if the memory is not such a one.
    pub fn map(memory: RawFd) -> io::Result<Self> {
        let shared = Self::map_raw(memory)?;
        if shared.header().magic.load(Acquire) == MAGIC {
            return Ok(shared);
        }
        Err(io::Error::from(io::ErrorKind::InvalidData))
    }

    /// Maps memory that is all zeros and makes it ready.
    ///
    /// # Errors
    /// The kernel's.
    pub fn create(memory: RawFd, every_write: bool) -> io::Result<Self> {
        let shared = Self::map_raw(memory)?;
        let header = shared.header();
        // SAFETY: the attributes live on this stack from their initialization to their end; the
        // lock is in memory that nobody else has mapped yet.
        let made = unsafe {
            let mut how = std::mem::zeroed::<libc::pthread_mutexattr_t>();
            libc::pthread_mutexattr_init(&mut how);
            libc::pthread_mutexattr_setpshared(&mut how, libc::PTHREAD_PROCESS_SHARED);
            libc::pthread_mutexattr_setrobust(&mut how, libc::PTHREAD_MUTEX_ROBUST);
            let made = libc::pthread_mutex_init(header.lock.get(), &how);
            libc::pthread_mutexattr_destroy(&mut how);
            made
        };
        if made != 0 {
            return Err(io::Error::from_raw_os_error(made));
        }
        header.every_write.store(u32::from(every_write), Relaxed);
        header.magic.store(MAGIC, Release);
        Ok(shared)
    }

    fn map_raw(memory: RawFd) -> io::Result<Self> {
        // By number: in the interposer `mmap` is its own function.
        // SAFETY: a new mapping at a place of the kernel's choice touches no other memory. Its
        // length is checked against the file's below, as pages past the end cannot be touched.
        let base = unsafe {
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            let (shared, none) = (libc::MAP_SHARED, 0_usize);
            libc::syscall(libc::SYS_mmap, none, LEN, protection, shared, memory, none)
        };
        if base == -1 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: seeking does not touch this process's memory.
        let len = unsafe { libc::syscall(libc::SYS_lseek, memory, 0_usize, libc::SEEK_END) };
        if len != LEN as i64 {
            return Err(io::Error::from(io::ErrorKind::InvalidData));
        }
        Ok(Self { base: base as *mut u8 })
    }

    fn header(&self) -> &'static Header {
        // SAFETY: `base` is the beginning of a mapping of LEN bytes that stays for ever, aligned to
        // a page; zeros are a valid Header, and all that others change in it is atomic.
        unsafe { &*self.base.cast::<Header>() }
    }

    pub(crate) fn direct(&self) -> &'static Direct {
        // SAFETY: as in `header`: the grant lies within the first page, as DIRECT_AT says, at a
        // multiple of its alignment, and is nothing but atomics, for which zeros are valid.
        unsafe { &*self.base.add(DIRECT_AT).cast::<Direct>() }
    }

    pub(crate) fn journal(&self) -> &'static Journal {
        &self.header().journal
    }

    /// A slot; `None` if there is none of that number.
    #[must_use]
    pub fn slot(&self, slot: u32) -> Option<&'static Slot> {
        if slot as usize >= SLOTS {
            return None;
        }
        // SAFETY: the slots lie within the mapping, as RING_AT says, and are nothing but atomics.
        Some(unsafe { &*self.base.add(SLOTS_AT).cast::<Slot>().add(slot as usize) })
    }

    /// The slot and generation of the file with this placeholder.
    #[must_use]
    pub fn find(&self, device: u64, inode: u64) -> Option<(u32, u32)> {
        self.find_slot(&|slot| {
            slot.inode.load(Relaxed) == inode && slot.device.load(Relaxed) == device
        })
    }

    /// The slot and generation of the file with this mirror.
    #[must_use]
    pub fn find_mirror(&self, device: u64, inode: u64) -> Option<(u32, u32)> {
        self.find_slot(&|slot| {
            let found = (&slot.mirror_inode, &slot.mirror_device);
            found.0.load(Relaxed) == inode && found.1.load(Relaxed) == device
        })
    }

    fn find_slot(&self, is_it: &dyn Fn(&Slot) -> bool) -> Option<(u32, u32)> {
        (0..self.used_slots()).find_map(|number| {
            let slot = self.slot(number)?;
            // The generation first: a slot that is given to another file meanwhile has a new one.
            let generation = slot.generation.load(Acquire);
            let same = is_it(slot);
            (slot.state.load(Acquire) == state::LIVE && same).then_some((number, generation))
        })
    }

    /// Whether nobody was told of something of that name before. From now on somebody was.
    #[must_use]
    pub fn is_told_first(&self, name: &[u8]) -> bool {
        let step = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
        let number = name.iter().fold(0xcbf2_9ce4_8422_2325, step);
        self.header().told.is_first(number.max(1))
    }

    /// True if any file has been mirrored since the start.
    #[must_use]
    pub fn has_files(&self) -> bool {
        self.header().used.load(Acquire) > 0
    }

    /// Slots that were ever used.
    pub(crate) fn used_slots(&self) -> u32 {
        self.header().used.load(Acquire).min(SLOTS as u32)
    }

    /// Tells how many slots were ever used.
    pub fn set_used(&self, slots: u32) {
        self.header().used.store(slots, Release);
    }

    /// True if each write waits until it is stored.
    #[must_use]
    pub fn every_write(&self) -> bool {
        self.header().every_write.load(Relaxed) != 0
    }

    /// Tells every process that the store failed; for ever, as nobody knows which records it has.
    pub fn fail(&self, errno: i32) {
        let header = self.header();
        header.failed.store(errno as u32, Release);
        header.done.fetch_add(1, SeqCst);
        wake(&header.done);
    }

    /// The error of a store that failed.
    ///
    /// # Errors
    /// Its `errno`.
    pub fn check(&self) -> Result<(), i32> {
        match self.header().failed.load(Acquire) {
            0 => Ok(()),
            errno => Err(errno as i32),
        }
    }

    /// Takes the lock. The caller keeps signals away as long as it has it: a handler that writes
    /// would wait for itself.
    #[must_use]
    pub fn lock(&self) -> Guard {
        // SAFETY: the lock was made by `create` before anybody could map the memory.
        let taken = unsafe { libc::pthread_mutex_lock(self.header().lock.get()) };
        self.locked(taken)
    }

    /// Has a record made of a change whose process died with the lock, if there is room for it: the
    /// caller is the owner, who alone makes room. Returns at once while somebody has the lock.
    pub fn mend(&self) {
        // SAFETY: as in `lock`.
        let taken = unsafe { libc::pthread_mutex_trylock(self.header().lock.get()) };
        if taken != libc::EBUSY {
            let mut guard = self.taken(taken);
            let header = self.header();
            let used = header.head.load(Relaxed) - header.consumed.load(Acquire);
            if used + RECORD_HEAD <= RING {
                guard.reread_busy();
            }
        }
    }

    /// The lock, if nobody has it and no process died with it, and if the ring is as it was read up
    /// to `read`.
    #[must_use]
    pub fn try_lock(&self, read: u64) -> Option<Guard> {
        // SAFETY: as in `lock`.
        let taken = unsafe { libc::pthread_mutex_trylock(self.header().lock.get()) };
        if taken == libc::EBUSY {
            return None;
        }
        let guard = self.taken(taken);
        (!self.is_busy() && self.head() == read).then_some(guard)
    }

    fn locked(&self, taken: i32) -> Guard {
        let mut guard = self.taken(taken);
        guard.reread_busy();
        guard
    }

    fn taken(&self, taken: i32) -> Guard {
        assert!(taken == 0 || taken == libc::EOWNERDEAD, "the lock of mirrors: error {taken}");
        let guard = Guard { shared: *self };
        if taken == libc::EOWNERDEAD {
            // SAFETY: this thread has just got the lock of one that died.
            unsafe { libc::pthread_mutex_consistent(self.header().lock.get()) };
        }
        guard
    }

    /// True if somebody changes a file, or died over it.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.header().busy.load(Acquire) != 0
    }

    /// A mark behind all changes that the mirrors may have by now: a place in the ring, times two.
    /// If somebody is changing a mirror, whose records may have no place yet, it is the count of
    /// changes that are over, times two, plus one; [`advance`](Self::advance) makes a place of it.
    #[must_use]
    pub fn mark(&self) -> u64 {
        // Bytes that were read before this may be of a change that begins before it: as the one
        // who changes them notes that first, behind a full fence, it is seen here.
        fence(SeqCst);
        match self.is_busy() {
            true => self.header().changes.load(Acquire) << 1 | 1,
            false => self.head() << 1,
        }
    }

    /// The place that a mark has once the change is over that was being made.
    #[must_use]
    pub fn advance(&self, mark: u64) -> u64 {
        let is_over = || self.header().changes.load(Acquire) > mark >> 1;
        if mark & 1 != 0 && is_over() { self.head() << 1 } else { mark }
    }

    /// Whether the store was told of all changes before a mark.
    #[must_use]
    pub fn has_issued(&self, mark: u64) -> bool {
        mark & 1 == 0 && self.header().issued.load(Acquire) >= mark >> 1
    }

    /// The position behind the last record.
    #[must_use]
    pub fn head(&self) -> u64 {
        self.header().head.load(Acquire)
    }

    /// Waits until the records up to a position are stored. `alive` is asked ten times a second
    /// whether the owner still is there.
    ///
    /// # Errors
    /// The `errno` of a store that failed, `EIO` if there is no owner any more: it is not known
    /// whether the records are stored.
    pub fn wait_stored(&self, position: u64, alive: &mut dyn FnMut() -> bool) -> Result<(), i32> {
        static LOOKS: Looks = Looks::new();
        let is_stored = |header: &Header| header.stored.load(Acquire) >= position;
        if is_stored(self.header()) {
            self.check()?;
            self.waited().count(Duration::ZERO);
            return Ok(());
        }
        let begun = Instant::now();
        // An owner that is about to wake may have to do so on this processor.
        if self.header().owner_sleeps.load(Relaxed) == 0 {
            LOOKS.wait(&|| is_stored(self.header()));
        }
        self.wait(alive, &is_stored)?;
        self.waited().count(begun.elapsed());
        Ok(())
    }

    /// How long processes waited until their changes were stored: in syncs, and in writes that
    /// wait.
    #[must_use]
    pub fn waited(&self) -> &'static Times {
        &self.header().waited
    }

    /// The position up to which records are stored.
    #[must_use]
    pub fn stored(&self) -> u64 {
        self.header().stored.load(Acquire)
    }

    fn wait(
        &self,
        alive: &mut dyn FnMut() -> bool,
        over: &dyn Fn(&Header) -> bool,
    ) -> Result<(), i32> {
        let header = self.header();
        loop {
            let seen = header.done.load(SeqCst);
            self.check()?;
            if over(header) {
                return Ok(());
            }
            header.sleepers.fetch_add(1, SeqCst);
            // Looked at again now that the owner is bound to wake: nothing is missed between.
            let slept = over(header) || sleep(&header.done, seen, 100);
            header.sleepers.fetch_sub(1, SeqCst);
            if !slept && !over(header) && !alive() {
                return Err(libc::EIO);
            }
        }
    }
}

/// The lock, taken.
#[derive(Debug)]
pub struct Guard {
    shared: Shared,
}

impl Guard {
    /// The memory whose lock it is.
    #[must_use]
    pub const fn shared(&self) -> &Shared {
        &self.shared
    }

    /// Notes whose bytes are about to change: if this process dies before the record is there, the
    /// owner reads all of the file again.
    pub fn begin(&mut self, slot: u32) {
        self.shared.header().busy.store(slot + 1, Release);
        // Before any byte is changed: see `Shared::mark`.
        fence(SeqCst);
    }

    /// The change and its record are complete, or there was none.
    pub fn end(&mut self) {
        let header = self.shared.header();
        header.changes.fetch_add(1, Release);
        header.busy.store(0, Release);
    }

    /// A record of the change that the one before has left without.
    fn reread_busy(&mut self) {
        let header = self.shared.header();
        let busy = header.busy.load(Acquire);
        let Some(slot) = busy.checked_sub(1).and_then(|slot| self.shared.slot(slot)) else {
            return;
        };
        if slot.is_split() {
            slot.note_uncertain();
            self.end();
            return;
        }
        let generation = slot.generation.load(Acquire);
        let (slot, len) = (busy - 1, u64::MAX);
        let record = Record { kind: Kind::Reread, slot, generation, offset: 0, len };
        // Without an owner the store has failed for everybody; there is nothing left to be told.
        if self.put(&record, &[], &mut || true).is_ok() {
            self.end();
        }
    }

    /// Puts a record into the ring, behind all others. Waits as long as there is no room.
    ///
    /// # Errors
    /// As of [`Shared::wait_stored`].
    ///
    /// # Panics
    /// If the bytes of a write are not as many as it says, or more than [`RECORD_MAX`].
    pub fn put(
        &mut self,
        record: &Record,
        bytes: &[u8],
        alive: &mut dyn FnMut() -> bool,
    ) -> Result<(), i32> {
        assert_eq!(record.bytes(), bytes.len() as u64, "bytes of {record:?}");
        assert!(record.bytes() <= RECORD_MAX, "{record:?} is longer than {RECORD_MAX} bytes");
        // Numbers that come with this record are greater than those of the grant.
        self.revoke();
        let header = self.shared.header();
        let head = header.head.load(Relaxed);
        let end = head + RECORD_HEAD + record.bytes().next_multiple_of(8);
        self.shared.wait(alive, &|header| end <= header.consumed.load(Acquire) + RING)?;
        let mut at = head;
        for word in record.words() {
            self.shared.copy_in(at, &word.to_le_bytes());
            at += 8;
        }
        self.shared.copy_in(at, bytes);
        header.head.store(end, SeqCst);
        header.work.fetch_add(1, SeqCst);
        if header.owner_sleeps.load(SeqCst) != 0 {
            wake(&header.work);
        }
        Ok(())
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // SAFETY: a guard exists only where this thread took the lock.
        unsafe { libc::pthread_mutex_unlock(self.shared.header().lock.get()) };
    }
}

/// The ring's bytes. Those between `consumed` and `head` are the owner's to read, the others those
/// of whoever has the lock to write; so nobody reads what another writes.
impl Shared {
    fn copy_in(&self, position: u64, bytes: &[u8]) {
        let (place, first) = self.place(position, bytes.len());
        // SAFETY: `place` and `first` stay within the ring, the rest begins at its first byte and
        // is shorter than a ring, as a record is; the source is no part of the mapping.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), place, first);
            let rest = bytes.len() - first;
            std::ptr::copy_nonoverlapping(bytes.as_ptr().add(first), self.ring(), rest);
        }
    }

    fn copy_out(&self, position: u64, bytes: &mut [u8]) {
        let (place, first) = self.place(position, bytes.len());
        // SAFETY: as in `copy_in`.
        unsafe {
            std::ptr::copy_nonoverlapping(place, bytes.as_mut_ptr(), first);
            let rest = bytes.len() - first;
            std::ptr::copy_nonoverlapping(self.ring(), bytes.as_mut_ptr().add(first), rest);
        }
    }

    fn ring(&self) -> *mut u8 {
        // SAFETY: the ring begins within the mapping.
        unsafe { self.base.add(RING_AT) }
    }

    /// The address of a position, and how many of `len` bytes there are until the ring's end.
    fn place(&self, position: u64, len: usize) -> (*mut u8, usize) {
        assert!(len as u64 <= RING, "{len} bytes in a ring of {RING}");
        let offset = (position % RING) as usize;
        // SAFETY: the offset is less than the ring's length.
        (unsafe { self.ring().add(offset) }, len.min(RING as usize - offset))
    }
}

/// The owner's end of the ring. One thread has it.
#[derive(Debug)]
pub struct Reader {
    shared: Shared,
    at: u64,
}

impl Reader {
    /// The reader of memory that was just created.
    #[must_use]
    pub fn new(shared: Shared) -> Self {
        Self { shared, at: 0 }
    }

    /// The next record, its bytes in `into`; `None` if there is none.
    ///
    /// # Errors
    /// A sentence, if the ring holds no record where one must be: a process wrote there that should
    /// not have.
    pub fn next(&mut self, into: &mut Vec<u8>) -> Result<Option<Record>, String> {
        let header = self.shared.header();
        let there = header.head.load(Acquire).wrapping_sub(self.at);
        if there == 0 {
            return Ok(None);
        }
        let damaged = |what: &str| Err(format!("ring of records, position {}: {what}", self.at));
        if !(RECORD_HEAD..=RING).contains(&there) {
            return damaged(&format!("{there} bytes to read, which cannot be"));
        }
        let mut words = [0_u64; 4];
        for (at, word) in (self.at..).step_by(8).zip(&mut words) {
            let mut bytes = [0_u8; 8];
            self.shared.copy_out(at, &mut bytes);
            *word = u64::from_le_bytes(bytes);
        }
        let Some(record) = Record::parse(words) else {
            return damaged(&format!("no record: {words:x?}"));
        };
        let len = record.bytes();
        if len > RECORD_MAX || RECORD_HEAD + len.next_multiple_of(8) > there {
            return damaged(&format!("{record:?} is longer than there are bytes"));
        }
        into.resize(len as usize, 0);
        self.shared.copy_out(self.at + RECORD_HEAD, into);
        self.at += RECORD_HEAD + len.next_multiple_of(8);
        header.consumed.store(self.at, Release);
        // Somebody may wait for room for a record of the longest kind.
        if there > RING / 2 {
            self.tell();
        }
        Ok(Some(record))
    }

    /// Notes that the store was told of whatever was read.
    pub fn issued(&mut self) {
        self.shared.header().issued.store(self.at, Release);
    }

    /// Tells all that whatever was read is stored.
    pub fn stored(&mut self) {
        let header = self.shared.header();
        if header.stored.load(Relaxed) != self.at {
            header.stored.store(self.at, SeqCst);
            self.tell();
        }
    }

    fn tell(&self) {
        let header = self.shared.header();
        header.done.fetch_add(1, SeqCst);
        if header.sleepers.load(SeqCst) != 0 {
            wake(&header.done);
        }
    }
}

impl Shared {
    /// The owner waits for records behind `read`, at most so many milliseconds.
    pub fn wait_for_work(&self, read: u64, milliseconds: u32) {
        static LOOKS: Looks = Looks::new();
        let header = self.header();
        LOOKS.wait(&|| header.head.load(SeqCst) != read);
        let seen = header.work.load(SeqCst);
        header.owner_sleeps.store(1, SeqCst);
        if header.head.load(SeqCst) == read {
            sleep(&header.work, seen, milliseconds);
        }
        header.owner_sleeps.store(0, SeqCst);
    }

    /// Has the owner look for its own reasons.
    pub fn wake_owner(&self) {
        let header = self.header();
        header.work.fetch_add(1, SeqCst);
        wake(&header.work);
    }
}

impl Reader {
    /// The position up to which records were read.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.at
    }
}

/// Sleeps while the word is as it was seen; false if the time was over.
fn sleep(word: &AtomicU32, seen: u32, milliseconds: u32) -> bool {
    let (seconds, rest) = (milliseconds / 1000, milliseconds % 1000);
    let time = libc::timespec { tv_sec: i64::from(seconds), tv_nsec: i64::from(rest) * 1_000_000 };
    // SAFETY: the word lives as long as the process, the time as long as this call.
    let slept =
        unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, seen, &time) };
    slept == 0 || io::Error::last_os_error().raw_os_error() != Some(libc::ETIMEDOUT)
}

fn wake(word: &AtomicU32) {
    // SAFETY: the kernel looks for sleepers at this address and does not touch the memory.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
}

#[cfg(feature = "owner")]
#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    use std::os::fd::AsRawFd;

    fn memory() -> Shared {
        let memory = memfd_create("gabion-test", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&memory, LEN as u64).unwrap();
        let shared = Shared::create(memory.as_raw_fd(), false).unwrap();
        assert!(Shared::map(memory.as_raw_fd()).is_ok());
        shared
    }

    fn write(offset: u64, len: u64) -> Record {
        Record { kind: Kind::Write, slot: 1, generation: 7, offset, len }
    }

    #[test]
    fn memory_that_is_not_such_a_one_is_not_mapped() {
        let memory = memfd_create("gabion-test", MemfdFlags::CLOEXEC).unwrap();
        for len in [0, LEN as u64 - 1, LEN as u64] {
            ftruncate(&memory, len).unwrap();
            assert!(Shared::map(memory.as_raw_fd()).is_err(), "{len} bytes of zeros");
        }
    }

    #[test]
    fn records_come_out_as_they_went_in_around_the_end_of_the_ring() {
        let shared = memory();
        let (mut reader, mut bytes) = (Reader::new(shared), Vec::new());
        for number in 0..400_u64 {
            let len = number * 977 % RECORD_MAX;
            let content: Vec<u8> = (0..len).map(|at| (at * 31 + number) as u8).collect();
            let cut = Record { kind: Kind::Truncate, ..write(0, number) };
            let mut guard = shared.lock();
            guard.put(&write(number, len), &content, &mut || true).unwrap();
            guard.put(&cut, &[], &mut || true).unwrap();
            drop(guard);
            assert_eq!(reader.next(&mut bytes), Ok(Some(write(number, len))));
            assert!(bytes == content, "record {number}");
            assert_eq!(reader.next(&mut bytes), Ok(Some(cut)));
        }
        assert_eq!(reader.next(&mut bytes), Ok(None));
        assert!(reader.position() > 3 * RING, "the ring was passed some times");
    }

    #[test]
    fn a_writer_waits_for_room_and_a_sync_for_the_store() {
        let shared = memory();
        let (mut reader, mut bytes) = (Reader::new(shared), Vec::new());
        let content = vec![1; RECORD_MAX as usize];
        let full = RING / (RECORD_MAX + RECORD_HEAD);
        for _ in 0..full {
            shared.lock().put(&write(0, RECORD_MAX), &content, &mut || true).unwrap();
        }
        // Nobody reads: the owner is asked after, and is not there.
        let put = shared.lock().put(&write(0, RECORD_MAX), &content, &mut || false);
        assert_eq!(put, Err(libc::EIO));
        let head = shared.head();
        assert_eq!(shared.wait_stored(head, &mut || false), Err(libc::EIO));
        let waits = std::thread::spawn(move || {
            shared.lock().put(&write(0, RECORD_MAX), &content, &mut || true).unwrap();
            shared.wait_stored(shared.head(), &mut || true)
        });
        for _ in 0..=full {
            while reader.next(&mut bytes).unwrap().is_none() {
                std::thread::yield_now();
            }
        }
        assert!(!waits.is_finished(), "it is read and not stored");
        let counted = || shared.waited().read().0.iter().sum::<u64>();
        assert_eq!(counted(), 0, "a wait that fails is none");
        reader.stored();
        assert_eq!(waits.join().unwrap(), Ok(()));
        assert_eq!((counted(), shared.stored()), (1, shared.head()));
        shared.fail(libc::EIO);
        assert_eq!(shared.wait_stored(0, &mut || true), Err(libc::EIO), "for ever");
    }

    /// docs/faults.md: N13
    #[test]
    fn whoever_finds_the_lock_of_one_that_died_has_its_file_read_again() {
        let shared = memory();
        shared.slot(3).unwrap().generation.store(9, Release);
        let died = std::thread::spawn(move || {
            let mut guard = shared.lock();
            guard.begin(3);
            std::mem::forget(guard);
        });
        died.join().unwrap();
        assert!(shared.is_busy());
        let (mut reader, mut bytes) = (Reader::new(shared), Vec::new());
        assert_eq!(reader.next(&mut bytes), Ok(None));
        drop(shared.lock());
        let (slot, generation, len) = (3, 9, u64::MAX);
        let wanted = Record { kind: Kind::Reread, slot, generation, offset: 0, len };
        assert_eq!(reader.next(&mut bytes), Ok(Some(wanted)));
        assert!(!shared.is_busy());
    }

    /// docs/faults.md: N4
    #[test]
    fn a_copy_lacks_each_record_of_a_change_that_it_may_have() {
        let shared = memory();
        let (mut reader, mut bytes) = (Reader::new(shared), Vec::new());
        let record = Record { kind: Kind::Write, slot: 3, generation: 0, offset: 0, len: 8 };
        let mut issue = || {
            assert!(reader.next(&mut bytes).unwrap().is_some());
            reader.issued();
        };
        assert!(shared.has_issued(shared.mark()), "nobody has changed anything");
        let mut guard = shared.lock();
        guard.begin(3);
        let mut mark = shared.mark();
        let is_over = |mark: &mut u64| {
            *mark = shared.advance(*mark);
            shared.has_issued(*mark)
        };
        assert!(!is_over(&mut mark), "it has no record yet");
        guard.put(&record, &[1; 8], &mut || true).unwrap();
        issue();
        assert!(!is_over(&mut mark), "there may be more");
        guard.put(&record, &[2; 8], &mut || true).unwrap();
        guard.end();
        assert!(!is_over(&mut mark), "the second one is missing");
        issue();
        assert!(is_over(&mut mark));
        guard.begin(3);
        let mut mark = shared.mark();
        guard.end();
        assert!(is_over(&mut mark), "a change without a record");
    }

    /// docs/faults.md: N13
    #[test]
    fn a_copy_waits_for_the_change_of_one_that_died_with_the_ring_full() {
        let shared = memory();
        let died = std::thread::spawn(move || {
            let mut guard = shared.lock();
            let bytes = vec![7; (RECORD_MAX - RECORD_HEAD) as usize];
            let len = bytes.len() as u64;
            let record = Record { kind: Kind::Write, slot: 3, generation: 0, offset: 0, len };
            for _ in 0..RING / RECORD_MAX {
                guard.put(&record, &bytes, &mut || true).unwrap();
            }
            guard.begin(3);
            std::mem::forget(guard);
        });
        died.join().unwrap();
        let mark = shared.mark();
        shared.mend();
        assert!(shared.is_busy(), "there is no room, and nobody waits for it");
        let (mut reader, mut bytes) = (Reader::new(shared), Vec::new());
        reader.next(&mut bytes).unwrap();
        reader.issued();
        assert_eq!(shared.advance(mark), mark, "nobody knows yet what it changed");
        shared.mend();
        let mark = shared.advance(mark);
        let mut last = None;
        while !shared.has_issued(mark) {
            last = reader.next(&mut bytes).unwrap();
            reader.issued();
        }
        assert_eq!(last.map(|record| record.kind), Some(Kind::Reread));
    }

    #[test]
    fn a_ring_that_holds_no_record_is_an_error() {
        let shared = memory();
        shared.header().head.store(8, Release);
        let mut bytes = Vec::new();
        assert!(Reader::new(shared).next(&mut bytes).is_err(), "too short");
        shared.header().head.store(RING + 8, Release);
        assert!(Reader::new(shared).next(&mut bytes).is_err(), "more than there can be");
        shared.header().head.store(64, Release);
        assert!(Reader::new(shared).next(&mut bytes).is_err(), "no kind");
        shared.copy_in(8, &1_u64.to_le_bytes());
        shared.copy_in(24, &64_u64.to_le_bytes());
        assert!(Reader::new(shared).next(&mut bytes).is_err(), "its bytes are not there");
    }
}

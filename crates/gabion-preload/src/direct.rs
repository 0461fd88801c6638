//! Records that this process writes to the log peers itself, where it can reach their memory: then
//! a sync has nothing to wait for. The rules are in `gabion_mirror::direct`.
//!
//! ```text
//!   a file at a peer, mapped in one piece:  cells │ bytes, each at its own offset │ …
//!                                            part 0                      part 1     part 2
//! ```
//!
//! Most files are not written often enough for that: a process asks for the memory once it had to
//! wait for [`MISSES_MAX`] records of one file. It asks without the lock, as the owner may need it
//! to answer, and maps under it.
//!
//! All pages are brought in before they are written. So memory that the system does not have is an
//! answer, and no signal.

use crate::ask::Asked;
use crate::bytes::Source;
use crate::raw::{self, SignalsHeld, word};
use crate::state::{self, Mirrored, Ready};
use gabion_base::{Term, crc};
use gabion_mirror::direct::{DESCRIPTORS_MAX, LEN_MAX, PARTS_MAX, PEERS_MAX, Turn, WINDOW_LEN_MAX};
use gabion_mirror::shared::Guard;
use gabion_mirror::wire::{Operation, Request};
use gabion_ncl::layout::{CELL_LEN, Cell, Kind, OwnerCrc, RING_LEN};
use gabion_ncl::{FileNumber, Number, Progress};
use libc::c_int;
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*, compiler_fence, fence};

/// Records of one file that a process waits for, before it would rather write them itself.
const MISSES_MAX: u32 = 8;
/// Pages are brought in by so many bytes, ahead of what is written.
const AHEAD: u64 = 256 << 10;
/// Mappings begin at such a multiple, so that they can have huge pages.
const HUGE_PAGE: usize = 2 << 20;
const MADV_POPULATE_WRITE: c_int = 23;

/// A region of a file.
#[derive(Clone, Copy)]
struct Region {
    number: u64,
    gate: u64,
}

/// One peer's memory of the file.
#[derive(Clone, Copy)]
struct Peer {
    /// The address of the mapping that has all of it, and that of part 0.
    mapped: usize,
    base: usize,
    gates: usize,
    gates_len: usize,
    regions: [Region; PARTS_MAX],
}

/// The number of the window that is mapped here; 0: none. It is written last, so that a process
/// that was forked amid a change has none.
static NUMBER: AtomicU64 = AtomicU64::new(0);
/// The file that it is of: slot and generation.
static FILE: AtomicU64 = AtomicU64::new(0);
/// The file of which records went through the ring, and how many did.
static MISSED: AtomicU64 = AtomicU64::new(0);
static MISSES: AtomicU32 = AtomicU32::new(0);

fn word_of(file: Mirrored) -> u64 {
    u64::from(file.generation) << 32 | u64::from(file.slot)
}

/// The window that is mapped here.
struct Window {
    parts: [u64; PARTS_MAX],
    count: usize,
    peers: [Peer; PEERS_MAX],
    peers_count: usize,
    /// The bytes of the file whose pages are there.
    present: (u64, u64),
}

const NO_REGION: Region = Region { number: 0, gate: 0 };
const NO_PEER: Peer =
    Peer { mapped: 0, base: 0, gates: 0, gates_len: 0, regions: [NO_REGION; PARTS_MAX] };

/// The window of this process: whoever has the lock of the shared memory has it too.
struct OfProcess(UnsafeCell<Window>);

// SAFETY: `window` hands it to whoever has the lock, which one thread of all processes has.
unsafe impl Sync for OfProcess {}

static WINDOW: OfProcess = OfProcess(UnsafeCell::new(Window {
    parts: [0; PARTS_MAX],
    count: 0,
    peers: [NO_PEER; PEERS_MAX],
    peers_count: 0,
    present: (0, 0),
}));

fn window(_lock: &mut Guard) -> &mut Window {
    // SAFETY: the reference lives as long as the caller's of the lock, of which there is one.
    unsafe { &mut *WINDOW.0.get() }
}

/// Writes a record of bytes that the mirror has. True: it counts. False: it has to go through the
/// ring, and may be at some of the peers.
pub(crate) fn write(
    guard: &mut Guard,
    file: Mirrored,
    place: u64,
    source: Source,
    len: usize,
) -> bool {
    let Some(turn) = guard.turn(file.slot, file.generation) else {
        return false;
    };
    let window = window(guard);
    let fits = NUMBER.load(Relaxed) == turn.grant.window && fits(&turn, place, len as u64);
    if !fits || !window.bring_in(place, len as u64) || !window.is_open(place, len as u64) {
        return false;
    }
    let (cell, after) = cell(&turn, place, source, len);
    let ring = cell.place();
    let cell = cell.encode(OwnerCrc::of_word(turn.grant.owner));
    if !guard.claim(&turn) {
        return false;
    }
    let window = self::window(guard);
    for peer in window.peers() {
        peer.put_source(RING_LEN + place, source, len);
        fence(Release);
        peer.put(ring, &cell);
    }
    fence(SeqCst);
    window.is_open(place, len as u64) && guard.count(&turn, len, after)
}

/// Whether the record needs nothing of the owner beside.
fn fits(turn: &Turn, place: u64, len: u64) -> bool {
    let (grant, file) = (&turn.grant, turn.grant.progress.len);
    let Some(end) = place.checked_add(len) else {
        return false;
    };
    len <= LEN_MAX as u64
        && place <= file
        && end <= grant.capacity
        && (end <= file || end <= grant.near)
}

/// The cell of the record, and the file after it.
fn cell(turn: &Turn, place: u64, source: Source, len: usize) -> (Cell, Progress) {
    let (grant, before) = (&turn.grant, turn.grant.progress);
    let mut sum = crc::crc32c(&[]);
    source.each(len, &mut |bytes| sum = crc::append(sum, bytes));
    let file_len = before.len.max(place + len as u64);
    let ordinal = before.ordinal.wrapping_add(1);
    let cell = Cell {
        kind: Kind::Write,
        file: FileNumber(grant.file),
        term: Term(grant.term),
        number: Number(turn.number),
        offset: place,
        len: len as u32,
        data_crc: sum,
        file_len,
        ordinal,
    };
    (cell, Progress { len: file_len, dirty: before.dirty.max(file_len), ordinal })
}

/// This process waits for a record of a file that went through the ring. The owner hears if it
/// would rather write such itself.
pub(crate) fn missed(ready: &Ready, file: Mirrored) {
    if MISSED.swap(word_of(file), Relaxed) != word_of(file) {
        MISSES.store(0, Relaxed);
    }
    let is_mapped = NUMBER.load(Relaxed) != 0 && FILE.load(Relaxed) == word_of(file);
    if MISSES.fetch_add(1, Relaxed) + 1 >= MISSES_MAX || is_mapped {
        ready.shared.want(file.slot);
    }
}

/// Maps the memory that the newest grant is of, if it is this file's and not mapped here. Not under
/// the lock.
pub(crate) fn adopt(ready: &Ready, file: Mirrored) {
    if MISSES.load(Relaxed) < MISSES_MAX || MISSED.load(Relaxed) != word_of(file) {
        return;
    }
    let newest = ready.shared.window_of(file.slot, file.generation);
    let Some(newest) = newest.filter(|newest| *newest != NUMBER.load(Relaxed)) else {
        return;
    };
    // A child of `vfork` has its parent's memory.
    if !state::is_own() {
        return;
    }
    // Not at each record, should it not succeed.
    MISSES.store(0, Relaxed);
    let kept = raw::errno();
    ask_and_map(ready, file, newest);
    raw::set_errno(kept);
}

/// Unmaps the memory of a file that has no name any more: peers want it back.
pub(crate) fn let_go(ready: &Ready) {
    let word = FILE.load(Relaxed);
    let (slot, generation) = (word as u32, (word >> 32) as u32);
    let file = Mirrored { slot, generation, synced: false, split: false };
    if NUMBER.load(Relaxed) == 0 || file.is_live(&ready.shared) || !state::is_own() {
        return;
    }
    let kept = raw::errno();
    let signals = SignalsHeld::new();
    let mut guard = ready.shared.lock();
    NUMBER.store(0, Release);
    window(&mut guard).unmap();
    drop((guard, signals));
    raw::set_errno(kept);
}

fn ask_and_map(ready: &Ready, file: Mirrored, newest: u64) {
    let mut text = [0; WINDOW_LEN_MAX];
    let request = Request { value: newest, ..Request::new(Operation::Window) };
    let Ok(asked) = Asked::new(ready.socket(), request, [&[], &[]], &mut text) else {
        return;
    };
    let mut descriptors = [-1; DESCRIPTORS_MAX];
    let count = asked.descriptors(&mut descriptors);
    let description = Description { bytes: &text[..asked.reply.text as usize] };
    {
        let _signals = SignalsHeld::new();
        let mut guard = ready.shared.lock();
        let newest = ready.shared.window_of(file.slot, file.generation);
        window(&mut guard).replace(description, &descriptors[..count], newest);
        FILE.store(word_of(file), Relaxed);
    }
    for descriptor in &descriptors[..count] {
        raw::close(*descriptor);
    }
}

/// The description of a window, of which the rest is to be read.
struct Description<'a> {
    bytes: &'a [u8],
}

impl Description<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.bytes.split_first_chunk::<N>()?;
        self.bytes = rest;
        Some(*taken)
    }

    fn word(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    fn count(&mut self, limit: usize) -> Option<usize> {
        let count = u32::from_le_bytes(self.take()?) as usize;
        (1..=limit).contains(&count).then_some(count)
    }
}

impl Window {
    fn peers(&self) -> &[Peer] {
        &self.peers[..self.peers_count]
    }

    fn parts(&self) -> &[u64] {
        &self.parts[..self.count]
    }

    /// Bytes of the file at a peer, cells included.
    fn len(&self) -> usize {
        (RING_LEN + self.parts().iter().sum::<u64>()) as usize
    }

    /// Unmaps what is mapped, and maps another window; or nothing, if that cannot be, or it is not
    /// the newest one any more.
    fn replace(
        &mut self,
        description: Description<'_>,
        descriptors: &[c_int],
        newest: Option<u64>,
    ) {
        NUMBER.store(0, Release);
        self.unmap();
        match self.map(description, descriptors) {
            Some(number) if newest == Some(number) => NUMBER.store(number, Release),
            _ => self.unmap(),
        }
    }

    fn unmap(&mut self) {
        let len = self.len() + HUGE_PAGE;
        self.peers_count = 0;
        for peer in &mut self.peers {
            // Forgotten first: a process that is forked amid this must not unmap what it has there.
            let Peer { mapped, gates, gates_len, .. } = std::mem::replace(peer, NO_PEER);
            compiler_fence(SeqCst);
            for (mapped, len) in [(mapped, len), (gates, gates_len)] {
                if mapped != 0 {
                    raw::forward(libc::SYS_munmap, &[mapped, len]);
                }
            }
        }
    }

    fn map(&mut self, mut text: Description<'_>, descriptors: &[c_int]) -> Option<u64> {
        let number = text.word()?;
        self.peers_count = text.count(PEERS_MAX)?;
        self.count = text.count(PARTS_MAX)?;
        for part in &mut self.parts[..self.count] {
            *part = text.word()?;
        }
        let of_peer = 1 + self.count;
        if descriptors.len() != of_peer * self.peers_count {
            return None;
        }
        let (parts, len) = (self.parts, self.len());
        for (peer, files) in self.peers.iter_mut().zip(descriptors.chunks_exact(of_peer)) {
            peer.map(&mut text, files, &parts, len)?;
        }
        self.present = (0, 0);
        Some(number)
    }

    /// Has the system bring in the pages of a range at all peers, and some ahead of it. False if
    /// it has no memory.
    fn bring_in(&mut self, place: u64, len: u64) -> bool {
        let end = place + len;
        if (self.present.0..=self.present.1).contains(&place) && end <= self.present.1 {
            return true;
        }
        let is_next = (self.present.0..=self.present.1).contains(&place);
        let from = if is_next { self.present.1 } else { place };
        let capacity: u64 = self.parts().iter().sum();
        if end > capacity {
            return false;
        }
        let to = end.next_multiple_of(AHEAD).min(capacity);
        let brought = self.peers().iter().all(|peer| {
            // The cells are there with the first one.
            let cells = self.present == (0, 0);
            (!cells || peer.bring_in(0, RING_LEN)) && peer.bring_in(RING_LEN + from, to - from)
        });
        if brought {
            self.present = (if is_next { self.present.0 } else { place }, to);
        }
        brought
    }

    /// Whether the gates are open of all regions that a record writes to.
    fn is_open(&self, place: u64, len: u64) -> bool {
        let mut begin = 0;
        self.parts().iter().enumerate().all(|(part, bytes)| {
            let end = begin + bytes;
            let is_touched = part == 0 || (place < end && begin < place + len);
            begin = end;
            !is_touched || self.peers().iter().all(|peer| peer.is_open(part))
        })
    }
}

impl Peer {
    fn map(
        &mut self,
        text: &mut Description<'_>,
        files: &[c_int],
        parts: &[u64; PARTS_MAX],
        len: usize,
    ) -> Option<()> {
        let (gates, memory) = files.split_first()?;
        self.gates_len = usize::try_from(text.word()?).ok()?;
        self.gates = place(0, self.gates_len, libc::PROT_READ, *gates)?;
        // Room that begins at the multiple, and nothing in it.
        self.mapped = place(0, len + HUGE_PAGE, libc::PROT_NONE, -1)?;
        self.base = self.mapped.next_multiple_of(HUGE_PAGE);
        let mut at = self.base;
        for (part, file) in memory.iter().enumerate() {
            let (number, gate) = (text.word()?, text.word()?);
            if gate as usize * 8 + 8 > self.gates_len {
                return None;
            }
            self.regions[part] = Region { number, gate };
            let bytes = (parts[part] + if part == 0 { RING_LEN } else { 0 }) as usize;
            place(at, bytes, libc::PROT_READ | libc::PROT_WRITE, *file)?;
            at += bytes;
        }
        // Nothing depends on either: larger pages, and none of them in a dump of this process.
        for advice in [libc::MADV_HUGEPAGE, libc::MADV_DONTDUMP] {
            raw::forward(libc::SYS_madvise, &[self.base, len, word(advice)]);
        }
        Some(())
    }

    fn bring_in(&self, offset: u64, len: u64) -> bool {
        let first = (self.base + offset as usize) & !4095;
        let len = self.base + (offset + len) as usize - first;
        len == 0 || raw::forward(libc::SYS_madvise, &[first, len, word(MADV_POPULATE_WRITE)]) == 0
    }

    fn is_open(&self, part: usize) -> bool {
        let Region { number, gate } = self.regions[part];
        let address = (self.gates + gate as usize * 8) as *const AtomicU64;
        // SAFETY: `map` checked that the word lies within the mapping of the gates, which is
        // replaced only under the lock. Nothing but atomic words are there.
        unsafe { (*address).load(Acquire) == number }
    }

    fn put_source(&self, offset: u64, source: Source, len: usize) {
        let mut at = offset;
        source.each(len, &mut |bytes| {
            self.put(at, bytes);
            at += bytes.len() as u64;
        });
    }

    /// Copies bytes to the peer.
    fn put(&self, offset: u64, bytes: &[u8]) {
        let to = (self.base + offset as usize) as *mut u8;
        // SAFETY: `fits` keeps ranges within the capacity, and cells lie in the ring: both within
        // the parts that `map` mapped to be written, which is replaced only under the lock. It is
        // memory of a peer, sealed against shrinking, and no allocation of this process: no
        // reference leads there, and other processes check what they read.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
    }
}

const _: () = assert!(CELL_LEN as u64 * gabion_ncl::layout::RING_CELLS as u64 == RING_LEN);

/// Maps memory anywhere that cannot shrink, to be written: its address.
pub(crate) fn map(memory: c_int, len: usize) -> Option<usize> {
    place(0, len, libc::PROT_READ | libc::PROT_WRITE, memory)
}

/// Maps a file at an address, or anywhere; −1: no file. Only memory that cannot shrink is mapped:
/// the program may have closed the descriptor, and have the number for a file of its own.
fn place(at: usize, len: usize, protection: c_int, file: c_int) -> Option<usize> {
    let kind = if file < 0 {
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE
    } else {
        libc::MAP_SHARED
    };
    if file >= 0 && !raw::is_sealed(file, len) {
        return None;
    }
    let kind = if at == 0 { kind } else { kind | libc::MAP_FIXED };
    let arguments = [at, len, word(protection), word(kind), word(file), 0];
    let placed = raw::forward(libc::SYS_mmap, &arguments);
    // Errors are the last page of addresses.
    (!(-4095..=-1).contains(&placed)).then_some(placed as usize)
}

//! Memory for what readers need again: decoded blocks and the readers of live files, within a
//! budget each.
//!
//! Blocks are kept by S3-FIFO (Yang et al., SOSP 2023): a block enters a small queue of a tenth of
//! the budget and reaches the main queue only when it is used there, or comes back soon after it
//! left. So one long scan passes through the small queue and leaves the main one as it was. Both
//! queues are FIFOs; a hit only counts.
//!
//! ```text
//!   insert ─► small (10 %) ── unused ─► forgotten, its name kept as a ghost
//!                │  used                      │ inserted again while a ghost
//!                └──────► main (90 %) ◄───────┘     main: used ones go round again
//!                              ▲
//!                            warmed: of a job whose inputs were here
//! ```
//!
//! A [`LocalCache`] is shared between the tasks of a thread as `Rc`. Who reads on several threads
//! puts a [`BlockCache`] and [`OpenFiles`] behind locks of its own and implements [`ReadCache`].

mod local;
mod open;
mod table;
mod warm;

pub use local::{LocalCache, ReadCache};
pub use open::{OPEN_FILES_LEN, OpenFiles};
pub use warm::{Had, WarmCache, Warmed, Warming, warm, warm_new};

use crate::skip_list::prefetch;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::cell::RefCell;
use gabion_base::{FileId, FileKind, HashMap, HashSet};
use gabion_media::Bytes;
use table::Table;

/// What a block costs besides its bytes: its slot, its place in the map and a queue, its reference
/// count.
pub const BLOCK_OVERHEAD: usize = 128;

/// Uses that are remembered for a block at most.
const USES_MAX: u8 = 3;

/// A cache of which less than such a part is free is full. What compactions replace leaves it at
/// once, so it is seldom quite full where there is much of that.
const FULL_PART: usize = 8;

/// Blocks whose memory is asked for side by side: processors wait for about ten lines at a time.
const RUN_MAX: usize = 8;

/// Bytes of a line of memory.
pub(crate) const LINE_LEN: usize = 64;

/// What a cache did and holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Look-ups that found their block.
    pub hits: u64,
    /// Look-ups that did not.
    pub misses: u64,
    /// Blocks that made room for others.
    pub evictions: u64,
    /// Bytes charged: blocks and [`BLOCK_OVERHEAD`] each.
    pub bytes: usize,
    /// Blocks held.
    pub blocks: usize,
}

/// Decoded blocks by file and offset, within a budget of bytes.
pub struct BlockCache {
    inner: RefCell<Inner>,
}

struct Inner {
    capacity: usize,
    small_bytes: usize,
    stats: CacheStats,
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Slots with blocks, by file and offset.
    table: Table,
    /// The blocks of each file that has any.
    files: HashMap<FileId, Blocks>,
    small: VecDeque<u32>,
    main: VecDeque<u32>,
    ghosts: VecDeque<(FileId, u64)>,
    ghost_names: HashSet<(FileId, u64)>,
}

/// In one line of memory.
#[repr(align(64))]
struct Slot {
    /// Of the file, and its kind: apart, for the line.
    number: u64,
    kind: FileKind,
    offset: u64,
    /// None when its file was evicted; the slot is free once its queue comes to it.
    block: Option<Bytes>,
    /// Neighbours in the list of the file's blocks; [`NONE`] at its ends.
    before: u32,
    after: u32,
    uses: u8,
    in_small: bool,
}

const _: () = assert!(size_of::<Slot>() == LINE_LEN);

impl Slot {
    #[inline]
    const fn file(&self) -> FileId {
        FileId { kind: self.kind, number: self.number }
    }

    /// The block, which is used once more.
    #[inline]
    fn take(&mut self) -> Option<Bytes> {
        // Most are used often: nothing is written then, so that the line stays with other
        // processors.
        if self.uses < USES_MAX {
            self.uses += 1;
        }
        self.block.clone()
    }

    /// Asks for what whoever goes through the block touches first: its first entries, its end,
    /// which says where entries end, and what is behind, where an allocator that had both in a row
    /// has put the count of those who share it.
    #[inline]
    fn prefetch(&self) {
        let Some(block) = &self.block else { return };
        let end = block.as_ptr().wrapping_add(block.len());
        for at in [block.as_ptr(), end.wrapping_sub(1), end.wrapping_add(LINE_LEN - 1)] {
            prefetch(at);
        }
    }
}

/// No slot.
const NONE: u32 = u32::MAX;

/// The blocks of a file, as a list through their slots.
#[derive(Clone, Copy)]
struct Blocks {
    first: u32,
    count: u32,
}

/// By what a block is found: as good as random for neighbours, and not the bits by which callers
/// may choose one of several caches.
#[inline]
fn tag(file: FileId, offset: u64) -> u32 {
    const K: u64 = 0x9e37_79b9_7f4a_7c15;
    let name = file.number.wrapping_mul(K) ^ offset ^ (file.kind as u64) << 56;
    let product = u128::from(name) * u128::from(K.rotate_left(32) | 1);
    ((product as u64 ^ (product >> 64) as u64) >> 16) as u32
}

/// Bytes at the front of a block that are asked for when it is: as many as a block has by default.
const PREFETCH_LEN: usize = 4096;

/// Asks for what a search in a block may look at: its restart points, at the end, and entries one
/// after the other.
#[inline]
fn prefetch_block(block: &Bytes) {
    let at = block.as_ptr();
    prefetch(at.wrapping_add(block.len().saturating_sub(1)));
    for line in (0..block.len().min(PREFETCH_LEN)).step_by(LINE_LEN) {
        prefetch(at.wrapping_add(line));
    }
}

const fn charge(block: &Bytes) -> usize {
    block.len() + BLOCK_OVERHEAD
}

impl BlockCache {
    /// A cache of at most `capacity` bytes, overhead included; 0 caches nothing.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        let inner = Inner {
            capacity,
            small_bytes: 0,
            stats: CacheStats::default(),
            slots: Vec::new(),
            free: Vec::new(),
            table: Table::default(),
            files: HashMap::default(),
            small: VecDeque::new(),
            main: VecDeque::new(),
            ghosts: VecDeque::new(),
            ghost_names: HashSet::default(),
        };
        Self { inner: RefCell::new(inner) }
    }

    /// The most bytes that it may hold.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.inner.borrow().capacity
    }

    /// Changes the most bytes that it may hold. Blocks that are too many for a smaller budget go at
    /// once, which takes about 0.2 µs a block: 0.2 s for 4 GiB of 4 KiB, in which nobody reads
    /// through this cache. What found them goes with them: tables that are less than half used
    /// afterwards are made anew for the blocks that stay.
    pub fn set_capacity(&self, capacity: usize) {
        let inner = &mut *self.inner.borrow_mut();
        inner.capacity = capacity;
        while inner.stats.bytes > capacity {
            inner.evict_one();
        }
        if inner.slots.len() > 2 * inner.stats.blocks {
            inner.rebuild();
        }
    }

    /// The block at `offset` of `file`, if it is here.
    #[must_use]
    pub fn get(&self, file: FileId, offset: u64) -> Option<Bytes> {
        let inner = &mut *self.inner.borrow_mut();
        let Some(index) = inner.find(file, offset) else {
            inner.stats.misses += 1;
            return None;
        };
        let slot = &mut inner.slots[index as usize];
        // Before the count of its readers, which lies elsewhere and is waited for.
        prefetch_block(slot.block.as_ref()?);
        inner.stats.hits += 1;
        slot.take()
    }

    /// The blocks at `offsets` of `file`, up to the first that is not here: added to `found` in
    /// this order. Costs less than [`Self::get`] for each: what lies in memory for one is asked for
    /// while another's is on its way.
    pub fn get_run(&self, file: FileId, offsets: &[u64], found: &mut Vec<Bytes>) {
        let inner = &mut *self.inner.borrow_mut();
        for offsets in offsets.chunks(RUN_MAX) {
            let mut places = [0; RUN_MAX];
            let mut count = 0;
            for (place, offset) in places.iter_mut().zip(offsets) {
                let Some(index) = inner.find(file, *offset) else { break };
                *place = index as usize;
                count += 1;
            }
            for &place in &places[..count] {
                inner.slots[place].prefetch();
            }
            found.extend(places[..count].iter().filter_map(|&place| inner.slots[place].take()));
            inner.stats.hits += count as u64;
            if count < offsets.len() {
                return;
            }
        }
    }

    /// Keeps a block, at the cost of others. One that is here already, or larger than the budget,
    /// is not taken.
    pub fn insert(&self, file: FileId, offset: u64, block: Bytes) {
        let _ = self.inner.borrow_mut().insert(file, offset, block, false);
    }

    /// Keeps a block in the main queue at once, though nobody used it yet: readers had what it was
    /// made of. It takes the place of one that was not used for a round, or is not taken, and goes
    /// the same way when it is not used. Says whether it was taken.
    pub fn insert_warm(&self, file: FileId, offset: u64, block: Bytes) -> bool {
        self.inner.borrow_mut().insert(file, offset, block, true)
    }

    /// Forgets the blocks of a file that is no longer live.
    pub fn evict_file(&self, file: FileId) {
        let inner = &mut *self.inner.borrow_mut();
        let Some(Blocks { first, .. }) = inner.files.remove(&file) else { return };
        let mut next = first;
        while next != NONE {
            let index = next;
            let slot = &inner.slots[index as usize];
            next = slot.after;
            inner.table.remove(tag(file, slot.offset), index);
            inner.forget(index);
        }
        let named = inner.small.len() + inner.main.len();
        assert!(named >= inner.stats.blocks, "each block is in a queue");
        let dead = named - inner.stats.blocks;
        if dead > inner.stats.blocks + 64 {
            inner.sweep();
        }
    }

    /// Where the blocks of a file begin that are here, added to `offsets` in no order.
    pub fn blocks_of(&self, file: FileId, offsets: &mut Vec<u64>) {
        self.inner.borrow().blocks_of(file, |_| true, offsets);
    }

    /// The same of those that are worth a read of the device if they had to be fetched again: all
    /// of them while there is room, and those alone that were used again lately, once others have
    /// to make room for what comes.
    pub fn blocks_in_use(&self, file: FileId, offsets: &mut Vec<u64>) {
        let inner = self.inner.borrow();
        let is_full = inner.stats.bytes > inner.capacity - inner.capacity / FULL_PART;
        inner.blocks_of(file, |slot| !is_full || slot.uses > 0, offsets);
    }

    /// What the cache did since it was made, and what it holds.
    #[must_use]
    pub fn stats(&self) -> CacheStats {
        self.inner.borrow().stats
    }
}

impl Inner {
    fn blocks_of(&self, file: FileId, is_one: impl Fn(&Slot) -> bool, offsets: &mut Vec<u64>) {
        let mut next = self.files.get(&file).map_or(NONE, |blocks| blocks.first);
        while let Some(slot) = self.slots.get(next as usize) {
            if is_one(slot) {
                offsets.push(slot.offset);
            }
            next = slot.after;
        }
    }

    /// Says whether the block was taken.
    fn insert(&mut self, file: FileId, offset: u64, block: Bytes, is_warm: bool) -> bool {
        let bytes = charge(&block);
        if self.find(file, offset).is_some() || bytes > self.capacity {
            return false;
        }
        while self.stats.bytes + bytes > self.capacity {
            if is_warm && self.evicts_used() {
                return false;
            }
            self.evict_one();
        }
        let is_ghost = self.ghost_names.remove(&(file, offset));
        let in_small = !is_warm && !is_ghost;
        let index = self.new_slot(Slot {
            number: file.number,
            kind: file.kind,
            offset,
            block: Some(block),
            before: NONE,
            after: NONE,
            uses: 0,
            in_small,
        });
        self.link(index);
        self.stats.bytes += bytes;
        self.stats.blocks += 1;
        if in_small {
            self.small_bytes += bytes;
            self.small.push_back(index);
        } else {
            self.main.push_back(index);
        }
        assert!(self.stats.bytes <= self.capacity, "a cache keeps to its budget");
        assert!(self.small_bytes <= self.stats.bytes, "a queue has a part of all");
        true
    }

    /// The slot of a block.
    #[inline]
    fn find(&self, file: FileId, offset: u64) -> Option<u32> {
        let is_it = |index: u32| {
            let slot = &self.slots[index as usize];
            slot.offset == offset && slot.file() == file
        };
        self.table.find(tag(file, offset), is_it)
    }

    /// Has the block in a slot found, by itself and with its file.
    fn link(&mut self, index: u32) {
        let slot = &self.slots[index as usize];
        let (file, offset) = (slot.file(), slot.offset);
        self.table.insert(tag(file, offset), index);
        let blocks = self.files.entry(file).or_insert(Blocks { first: NONE, count: 0 });
        let after = core::mem::replace(&mut blocks.first, index);
        blocks.count += 1;
        self.slots[index as usize].after = after;
        if let Some(after) = self.slots.get_mut(after as usize) {
            after.before = index;
        }
    }

    /// Undoes [`Self::link`].
    fn unlink(&mut self, index: u32) {
        let slot = &self.slots[index as usize];
        let &Slot { offset, before, after, .. } = slot;
        let file = slot.file();
        self.table.remove(tag(file, offset), index);
        if let Some(after) = self.slots.get_mut(after as usize) {
            after.before = before;
        }
        if let Some(before) = self.slots.get_mut(before as usize) {
            before.after = after;
        }
        let Some(blocks) = self.files.get_mut(&file) else { return };
        assert!(blocks.count > 0, "{file} has the blocks that are linked");
        blocks.count -= 1;
        if blocks.first == index {
            blocks.first = after;
        }
        if blocks.count == 0 {
            self.files.remove(&file);
        }
    }

    fn new_slot(&mut self, slot: Slot) -> u32 {
        match self.free.pop() {
            Some(index) => {
                assert!(self.slots[index as usize].block.is_none(), "a free slot holds nothing");
                self.slots[index as usize] = slot;
                index
            }
            None => {
                self.slots.push(slot);
                self.slots.len() as u32 - 1
            }
        }
    }

    /// Drops the block in a slot that some queue still names.
    fn forget(&mut self, index: u32) {
        let slot = &mut self.slots[index as usize];
        if let Some(block) = slot.block.take() {
            assert!(charge(&block) <= self.stats.bytes, "what goes was charged");
            self.stats.bytes -= charge(&block);
            self.stats.blocks -= 1;
            if slot.in_small {
                assert!(charge(&block) <= self.small_bytes, "to its queue, too");
                self.small_bytes -= charge(&block);
            }
        }
    }

    /// Frees one block, or takes a step towards it.
    fn evict_one(&mut self) {
        assert!(self.stats.blocks > 0, "bytes are those of blocks");
        if self.takes_of_small() {
            self.step_small();
        } else {
            self.step_main();
        }
    }

    /// Whether the next block to make room is one that was used since the round before.
    fn evicts_used(&self) -> bool {
        let queue = if self.takes_of_small() { &self.small } else { &self.main };
        queue.front().is_some_and(|&index| {
            let slot = &self.slots[index as usize];
            slot.block.is_some() && slot.uses > 0
        })
    }

    fn takes_of_small(&self) -> bool {
        self.small_bytes > self.capacity / 10 || self.main.is_empty()
    }

    fn step_small(&mut self) {
        let Some(index) = self.small.pop_front() else { return };
        let slot = &mut self.slots[index as usize];
        let Some(block) = &slot.block else { return self.free.push(index) };
        if slot.uses == 0 {
            let name = (slot.file(), slot.offset);
            self.drop_block(index);
            self.remember_ghost(name);
            return;
        }
        assert!(charge(block) <= self.small_bytes, "a block that moves on was charged");
        slot.uses = 0;
        slot.in_small = false;
        self.small_bytes -= charge(block);
        self.main.push_back(index);
    }

    fn step_main(&mut self) {
        let Some(index) = self.main.pop_front() else { return };
        let slot = &mut self.slots[index as usize];
        if slot.block.is_none() {
            self.free.push(index);
        } else if slot.uses == 0 {
            self.drop_block(index);
        } else {
            slot.uses -= 1;
            self.main.push_back(index);
        }
    }

    /// Frees a slot that no queue names any more.
    fn drop_block(&mut self, index: u32) {
        self.unlink(index);
        self.forget(index);
        self.free.push(index);
        self.stats.evictions += 1;
    }

    /// Remembers as many names as there are blocks.
    fn remember_ghost(&mut self, name: (FileId, u64)) {
        if self.ghost_names.insert(name) {
            self.ghosts.push_back(name);
        }
        self.trim_ghosts();
    }

    fn trim_ghosts(&mut self) {
        while self.ghosts.len() > self.stats.blocks.max(16) {
            if let Some(oldest) = self.ghosts.pop_front() {
                self.ghost_names.remove(&oldest);
            }
        }
    }

    /// Makes slots, queues and tables as large as the blocks that are here need. They grew with the
    /// most blocks that there ever were, and only what is here is charged.
    fn rebuild(&mut self) {
        let mut old = core::mem::replace(&mut self.slots, Vec::with_capacity(self.stats.blocks));
        (self.free, self.table, self.files) = (Vec::new(), Table::default(), HashMap::default());
        for is_small in [true, false] {
            let queue = if is_small { &mut self.small } else { &mut self.main };
            let mut kept = VecDeque::new();
            for index in core::mem::take(queue) {
                let slot = &mut old[index as usize];
                let Some(block) = slot.block.take() else { continue };
                let index = self.slots.len() as u32;
                self.slots.push(Slot { block: Some(block), before: NONE, after: NONE, ..*slot });
                self.link(index);
                kept.push_back(index);
            }
            *(if is_small { &mut self.small } else { &mut self.main }) = kept;
        }
        assert_eq!(self.slots.len(), self.stats.blocks, "each block that stays has a slot");
        self.trim_ghosts();
        self.ghosts.shrink_to_fit();
        self.ghost_names.shrink_to_fit();
    }

    /// Frees the slots of evicted files that the queues would come to only later.
    fn sweep(&mut self) {
        let (slots, free) = (&self.slots, &mut self.free);
        for queue in [&mut self.small, &mut self.main] {
            queue.retain(|&index| {
                let live = slots[index as usize].block.is_some();
                if !live {
                    free.push(index);
                }
                live
            });
        }
    }
}

#[cfg(test)]
mod tests;

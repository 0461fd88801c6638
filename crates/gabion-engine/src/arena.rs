//! The skip list under a MemTable, and the chunked memory that its nodes live in.
//!
//! One writer at a time, any number of readers without locks. Memory is only ever appended and is
//! freed all at once, so an address is valid for the life of the list. This is the only module of
//! the crate with `unsafe`; what makes it sound:
//!
//! 1. A node is written completely before a link to it is stored (release), and reached only through
//!    such a link (acquire). After that only its links change, and they are atomics.
//! 2. Nodes are never removed. Whoever holds a node borrows the list or owns a share of it.
//! 3. [`SkipList::writer`] hands out one [`ListWriter`] at a time, so that the writer's state has one
//!    user.
//!
//! ```text
//!  nodes:  │ trailer u64 │ key length u24, height u8 │ value length u32 │ value │ link × height │ key │ …
//!                                                                         │
//!  values: │ … ◄──────────────────────────────────────────────────────────┘
//! ```
//!
//! A search is made of cache misses, and two things make them few. Nodes lie close together, apart from
//! the values: those of 16 MiB of entries of 1 kB fit the second cache and a few hundred pages of address
//! translation. And a link carries the *rank* of the node it leads to, the bytes of its key behind what
//! most keys begin with, so that a node is touched only to go there, or when ranks are equal.
#![expect(unsafe_code, reason = "readers follow links while the writer appends; see above")]

use crate::entry::{Entry, Trailer, compare};
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cell::UnsafeCell;
use core::cmp::Ordering as Order;
use core::mem::MaybeUninit;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};

/// Levels of the list: with one node in four reaching the next, enough for 16 million entries.
const HEIGHT_MAX: usize = 12;
const CHUNK_LEN_FIRST: usize = 32 * 1024;
const CHUNK_LEN_MAX: usize = 1024 * 1024;
const KEY_LEN_LIMIT: usize = 1 << 24;

#[repr(C)]
struct Node {
    trailer: u64,
    key_len_and_height: u32,
    value_len: u32,
    value: *const u8,
}

/// Where a node's successor at a level is, and its rank.
///
/// The writer stores `node` before `rank`, readers load `rank` before `node`. The rank that a reader has
/// is therefore that of its node or of an older, later one, so it never goes too far; see
/// [`SkipList::seek_node`] for not going far enough.
#[repr(C)]
struct Link {
    node: AtomicPtr<Node>,
    rank: AtomicU64,
}

impl Link {
    /// To no node.
    const fn end() -> Self {
        Self { node: AtomicPtr::new(ptr::null_mut()), rank: AtomicU64::new(RANK_END) }
    }

    #[inline]
    fn load(&self) -> (u64, *const Node) {
        (self.rank.load(Ordering::Acquire), self.node.load(Ordering::Acquire))
    }
}

/// The rank that stands for no node: after every other.
const RANK_END: u64 = u64::MAX;
/// Most bytes of a common prefix that ranks leave out.
const PREFIX_LEN_MAX: usize = 64;

const HEADER_LEN: usize = size_of::<Node>();
const _: () = assert!(HEADER_LEN == 16 + size_of::<*const u8>());
const _: () = assert!(align_of::<Node>() <= align_of::<u64>());
const _: () = assert!(HEADER_LEN.is_multiple_of(align_of::<Link>()));
const _: () = assert!(align_of::<Link>() <= align_of::<u64>());

/// The link of `node` at `level`.
///
/// # Safety
/// `node` is a published node of a live list and `level` is below its height.
unsafe fn link(node: *const Node, level: usize) -> *const Link {
    // SAFETY: a node's links follow its header, within the same allocation.
    unsafe { node.cast::<u8>().add(HEADER_LEN).cast::<Link>().add(level) }
}

/// The entry in `node`.
///
/// # Safety
/// `node` is a published node of a list that lives at least for `'a`.
#[inline]
unsafe fn entry<'a>(node: *const Node) -> Entry<'a> {
    // SAFETY: the header was written before the node was published, and never changes.
    let header = unsafe { &*node };
    let key_len = (header.key_len_and_height & 0xff_ffff) as usize;
    let height = (header.key_len_and_height >> 24) as usize;
    let start = HEADER_LEN + height * size_of::<Link>();
    // SAFETY: the key follows the links within the same allocation, `value` points to as many bytes as
    // the header says in memory of the same list; both were written before the node was published, and
    // never change.
    let (key, value) = unsafe {
        let key = node.cast::<u8>().add(start);
        (
            core::slice::from_raw_parts(key, key_len),
            core::slice::from_raw_parts(header.value, header.value_len as usize),
        )
    };
    Entry { key, trailer: Trailer::from_raw_unchecked(header.trailer), value }
}

/// Sorted entries; see the module.
pub(crate) struct SkipList {
    /// What most keys are expected to begin with.
    prefix: Box<[u8]>,
    head: [Link; HEIGHT_MAX],
    height: AtomicUsize,
    writing: AtomicBool,
    state: UnsafeCell<WriterState>,
}

struct WriterState {
    nodes: Chunks,
    values: Chunks,
    random: u64,
}

/// Memory that is only ever appended.
struct Chunks {
    all: Vec<*mut [MaybeUninit<u64>]>,
    at: *mut u8,
    left: usize,
    allocated: usize,
}

// SAFETY: chunks are plain memory owned by the list; entries are bytes. Readers touch links (atomics)
// and published nodes (never changed); `state` is touched by the one writer and by `drop`.
unsafe impl Send for SkipList {}
// SAFETY: as above.
unsafe impl Sync for SkipList {}

impl SkipList {
    /// An empty list. `seed` decides the shape and `prefix`, what keys are expected to begin with, the
    /// speed; never the content.
    pub(crate) fn new(seed: u64, prefix: &[u8]) -> Self {
        Self {
            prefix: prefix[..prefix.len().min(PREFIX_LEN_MAX)].into(),
            head: [const { Link::end() }; HEIGHT_MAX],
            height: AtomicUsize::new(1),
            writing: AtomicBool::new(false),
            state: UnsafeCell::new(WriterState {
                nodes: Chunks::new(),
                values: Chunks::new(),
                random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            }),
        }
    }

    /// Claims the right to insert.
    ///
    /// # Panics
    /// While another writer holds it: a MemTable has one owner that applies the log.
    pub(crate) fn writer(&self) -> ListWriter<'_> {
        let was = self.writing.swap(true, Ordering::Acquire);
        assert!(!was, "a MemTable has one writer at a time");
        ListWriter { list: self }
    }

    /// Orders keys as far as it can: a smaller rank is a smaller key, of equal ranks nothing follows.
    /// Keys with the prefix have its successors in the middle; all others are before or after them.
    #[inline]
    fn rank(&self, key: &[u8]) -> u64 {
        const WITH_PREFIX: u64 = 1 << 62;
        match key.strip_prefix(&*self.prefix) {
            Some(rest) => {
                let mut bytes = [0; 8];
                let len = rest.len().min(8);
                bytes[..len].copy_from_slice(&rest[..len]);
                WITH_PREFIX | u64::from_be_bytes(bytes) >> 2
            }
            None if *key < *self.prefix => 0,
            None => 2 * WITH_PREFIX,
        }
    }

    /// What most keys begin with: the common prefix of a sample without its outermost keys.
    pub(crate) fn common_prefix(&self) -> &[u8] {
        const ENOUGH: usize = 16;
        let mut sample = Vec::new();
        for level in (0..self.height.load(Ordering::Relaxed)).rev() {
            sample.clear();
            let mut node = self.head[level].node.load(Ordering::Acquire).cast_const();
            while !node.is_null() {
                // SAFETY: links lead to published nodes of this list, which `&self` keeps alive; one that
                // was reached at this level has a link there.
                let (found, after) = unsafe { (entry(node), &*link(node, level)) };
                sample.push(found.key);
                node = after.node.load(Ordering::Acquire);
            }
            if sample.len() >= ENOUGH {
                break;
            }
        }
        let strays = sample.len() / 8;
        let inner = &sample[strays..sample.len() - strays];
        let (Some(first), Some(last)) = (inner.first(), inner.last()) else { return &[] };
        let common = first.iter().zip(*last).take_while(|(a, b)| a == b).count();
        &first[..common]
    }

    /// The first entry at or after (key, trailer).
    pub(crate) fn seek(&self, key: &[u8], trailer: Trailer) -> Option<Entry<'_>> {
        let node = self.seek_node(key, trailer);
        // SAFETY: null or a published node of this list, which `&self` keeps alive.
        (!node.is_null()).then(|| unsafe { entry(node) })
    }

    /// The first node at or after (key, trailer), or null.
    fn seek_node(&self, key: &[u8], trailer: Trailer) -> *const Node {
        let mut node = self.find(key, trailer, |_, _| {});
        // A rank older than its link may have hidden that a node being inserted is before the target.
        while !node.is_null() {
            // SAFETY: nodes that links lead to are published, and have a link at level 0.
            let (found, after) = unsafe { (entry(node), &*link(node, 0)) };
            if compare(found.key, found.trailer, key, trailer) != Order::Less {
                break;
            }
            node = after.node.load(Ordering::Acquire);
        }
        node
    }

    /// The first node at or after (key, trailer), or null; or, beside a writer, one that it is inserting
    /// right before that. Calls `left` with each level, from the highest, and the link through which the
    /// node would be reached there.
    #[inline]
    fn find(
        &self,
        key: &[u8],
        trailer: Trailer,
        mut left: impl FnMut(usize, *const Link),
    ) -> *const Node {
        let target = self.rank(key);
        let mut level = self.height.load(Ordering::Relaxed) - 1;
        let mut before: *const Node = ptr::null();
        let mut known_after: *const Node = ptr::null();
        loop {
            let at: *const Link = if before.is_null() {
                &self.head[level]
            } else {
                // SAFETY: `before` was reached at this level or a higher one, so it has this link.
                unsafe { link(before, level) }
            };
            // SAFETY: `at` points to a link of the head or of a published node.
            let (rank, next) = unsafe { (*at).load() };
            let goes_on = match rank.cmp(&target) {
                Order::Less => true,
                Order::Greater => false,
                Order::Equal if next == known_after => false,
                Order::Equal => {
                    // SAFETY: only the end has no node, and its rank is no key's; a node read from a
                    // link is published.
                    let found = unsafe { entry(next) };
                    known_after = next;
                    compare(found.key, found.trailer, key, trailer) == Order::Less
                }
            };
            if goes_on {
                before = next;
                continue;
            }
            left(level, at);
            if level == 0 {
                return next;
            }
            level -= 1;
        }
    }
}

/// The right to insert into a list; given back when dropped.
pub(crate) struct ListWriter<'a> {
    list: &'a SkipList,
}

impl Drop for ListWriter<'_> {
    fn drop(&mut self) {
        self.list.writing.store(false, Ordering::Release);
    }
}

impl ListWriter<'_> {
    /// Adds an entry, visible to readers from when this returns.
    ///
    /// # Panics
    /// When the key is 16 MiB or more, or the value 4 GiB; batches limit both far below.
    pub(crate) fn insert(&mut self, key: &[u8], trailer: Trailer, value: &[u8]) {
        let list = self.list;
        let height = self.random_height();
        let old_height = list.height.load(Ordering::Relaxed);
        let mut left = [ptr::null::<Link>(); HEIGHT_MAX];
        for (level, place) in left.iter_mut().enumerate().take(height).skip(old_height) {
            *place = &list.head[level];
        }
        let next = list.find(key, trailer, |level, at| left[level] = at);
        let is_new = next.is_null() || {
            // SAFETY: `find` returns null or a published node.
            let found = unsafe { entry(next) };
            found.trailer != trailer || found.key != key
        };
        debug_assert!(is_new, "an entry was inserted twice");
        let node = self.new_node(height, key, trailer, value);
        let rank = list.rank(key);
        for (level, &at) in left.iter().enumerate().take(height) {
            // SAFETY: `left` holds links of the head or of published nodes for every level below
            // `height`; the new node has `height` links. Only this writer stores links.
            unsafe {
                let (at, new) = (&*at, &*link(node, level));
                new.node.store(at.node.load(Ordering::Relaxed), Ordering::Relaxed);
                new.rank.store(at.rank.load(Ordering::Relaxed), Ordering::Relaxed);
                at.node.store(node, Ordering::Release);
                at.rank.store(rank, Ordering::Release);
            }
        }
        if height > old_height {
            list.height.store(height, Ordering::Relaxed);
        }
    }

    /// Bytes of memory taken for nodes so far.
    pub(crate) fn allocated(&mut self) -> usize {
        let state = self.state();
        state.nodes.allocated + state.values.allocated
    }

    fn state(&mut self) -> &mut WriterState {
        // SAFETY: `writing` admits one `ListWriter` at a time, borrowed exclusively here.
        unsafe { &mut *self.list.state.get() }
    }

    fn random_height(&mut self) -> usize {
        // xorshift64*: the shape depends on the seed and the number of inserts alone.
        let state = self.state();
        state.random ^= state.random >> 12;
        state.random ^= state.random << 25;
        state.random ^= state.random >> 27;
        let bits = state.random.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32;
        (1 + bits.trailing_zeros() as usize / 2).min(HEIGHT_MAX)
    }

    /// A complete node that no link reaches yet.
    fn new_node(&mut self, height: usize, key: &[u8], trailer: Trailer, value: &[u8]) -> *mut Node {
        assert!(key.len() < KEY_LEN_LIMIT, "a key of {} bytes in a MemTable", key.len());
        let value_len = u32::try_from(value.len()).expect("values are limited to 8 MiB");
        let links_len = height * size_of::<Link>();
        let state = self.state();
        let node = state.nodes.allocate(HEADER_LEN + links_len + key.len()).cast::<Node>();
        let value_at = state.values.allocate(value.len());
        let header = Node {
            trailer: trailer.raw(),
            key_len_and_height: key.len() as u32 | (height as u32) << 24,
            value_len,
            value: value_at,
        };
        // SAFETY: `node` is aligned to 8 and has room for header, links and key one behind the other,
        // `value_at` for the value; nobody else knows of either.
        unsafe {
            node.write(header);
            for level in 0..height {
                link(node, level).cast_mut().write(Link::end());
            }
            let key_at = node.cast::<u8>().add(HEADER_LEN + links_len);
            ptr::copy_nonoverlapping(key.as_ptr(), key_at, key.len());
            ptr::copy_nonoverlapping(value.as_ptr(), value_at, value.len());
        }
        node
    }
}

impl Chunks {
    const fn new() -> Self {
        Self { all: Vec::new(), at: ptr::without_provenance_mut(8), left: 0, allocated: 0 }
    }

    /// At least `len` fresh bytes, aligned to 8.
    fn allocate(&mut self, len: usize) -> *mut u8 {
        let len = len.next_multiple_of(align_of::<u64>());
        if len > self.left {
            let chunk_len = self.allocated.clamp(CHUNK_LEN_FIRST, CHUNK_LEN_MAX);
            if len > chunk_len / 4 {
                // A chunk of its own, so that the rest of the current one is not lost.
                return self.new_chunk(len);
            }
            self.at = self.new_chunk(chunk_len);
            self.left = chunk_len;
        }
        let at = self.at;
        // SAFETY: `left` bytes remain in the chunk behind `at`, and `len` is at most that.
        self.at = unsafe { at.add(len) };
        self.left -= len;
        at
    }

    fn new_chunk(&mut self, len: usize) -> *mut u8 {
        debug_assert!(len.is_multiple_of(8));
        let chunk = Box::into_raw(Box::<[u64]>::new_uninit_slice(len / 8));
        self.all.push(chunk);
        self.allocated += len;
        chunk.cast::<u8>()
    }
}

impl Drop for Chunks {
    fn drop(&mut self) {
        for &chunk in &self.all {
            // SAFETY: each chunk came from `Box::into_raw` and is freed here only; nothing of the list
            // is used after its chunks.
            drop(unsafe { Box::from_raw(chunk) });
        }
    }
}

/// A position in a list that it keeps alive. Sees entries that are inserted meanwhile.
pub(crate) struct Cursor {
    list: Arc<SkipList>,
    node: *const Node,
}

// SAFETY: the node belongs to the list, which is Send and Sync and outlives the cursor.
unsafe impl Send for Cursor {}
// SAFETY: as above; `&Cursor` only reads.
unsafe impl Sync for Cursor {}

impl Cursor {
    /// A cursor at no entry.
    pub(crate) const fn new(list: Arc<SkipList>) -> Self {
        Self { list, node: ptr::null() }
    }

    /// To the first entry, if there is one.
    pub(crate) fn seek_to_first(&mut self) {
        self.node = self.list.head[0].node.load(Ordering::Acquire);
    }

    /// To the first entry at or after (key, trailer), if there is one.
    pub(crate) fn seek(&mut self, key: &[u8], trailer: Trailer) {
        self.node = self.list.seek_node(key, trailer);
    }

    /// To the next entry, if there is one; stays at no entry.
    pub(crate) fn advance(&mut self) {
        if !self.node.is_null() {
            // SAFETY: the node is a published one of the list that the cursor keeps alive; every
            // node has a link at level 0.
            self.node = unsafe { (*link(self.node, 0)).node.load(Ordering::Acquire) };
        }
    }

    /// The entry here.
    #[inline]
    pub(crate) fn entry(&self) -> Option<Entry<'_>> {
        // SAFETY: as for `advance`; the entry borrows the cursor, which keeps the list alive.
        (!self.node.is_null()).then(|| unsafe { entry(self.node) })
    }
}

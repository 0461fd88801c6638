//! What memory a store takes, by what for: the one place that adds it up. Shared with the server.
//!
//! ```text
//!   Node ───► MemTables, descriptions, log ─┐
//!   caches ─► blocks, open files           ─┼─► Memory ─► DbStats, GABION STATUS, INFO
//!   meter ──► buffers of all threads        ─┤
//!   options ► ring, most of each kind      ─┘
//! ```
//!
//! Each kind is counted where it is taken from the allocator, or charged by what its parts take; a
//! test holds the sum against a counting allocator (tests/memory.rs). What is not in it: the
//! program and its threads' stacks (16 MiB or so), what the allocator keeps of what was freed,
//! connections of a server and what is on its way in them.

use gabion_base::units::{RECORD_LEN_MAX, RECORD_OPS_MAX, SLOT_LEN, TRANSFER_LEN_MAX};
use gabion_engine::memtable::ENTRY_OVERHEAD;
use gabion_engine::pointer::LARGE_VALUES_MIN;
use gabion_engine::{Compression, TreeConfig};
use gabion_media::BufferMeter;
use gabion_node::{GroupConfig, Node, NodeMemory};

/// Memory of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryKind {
    /// What for, as in JSON: lower case, words joined by `_`.
    pub name: &'static str,
    /// Bytes now.
    pub bytes: u64,
    /// The most bytes that it may be; `None` where no option bounds it.
    pub max: Option<u64>,
    /// Whether it is from the allocator; the ring is a mapped file.
    pub is_heap: bool,
}

/// All memory of a store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Kind by kind; none is a part of another.
    pub kinds: Vec<MemoryKind>,
}

/// What is there now and the most there may be, in bytes, of what readers share.
#[derive(Clone, Copy, Debug)]
pub struct Budgets {
    /// Decoded blocks of files.
    pub block_cache: (usize, usize),
    /// Indexes and filters of open files.
    pub open_files: (usize, usize),
}

/// What a file takes at most of memory to be described and placed: two keys of up to 256 bytes,
/// checksums and slots, and some for its places in maps. This is reckoned for each slot.
const FILE_DESCRIBED_LEN: u64 = 1024;
/// What a slot takes beside: its state, and, where keys are longer, a byte of these for each 4 KiB.
const SLOT_DESCRIBED_LEN: u64 = 64 + SLOT_LEN / 4096;
/// A MemTable takes memory in chunks of so many bytes, for entries, leaves and links each.
const MEMTABLE_SLACK_LEN: u64 = 3 << 20;
/// Bytes of a large value's place in the log, in a list that doubles.
const PLACE_LEN: u64 = 2 * 16;
/// Bytes of a record's place in the log, one for each 4 KiB of the ring, in a queue that doubles.
const MARK_LEN: u64 = 128;

impl Memory {
    /// What the machine, the buffers and the caches of a store take.
    #[must_use]
    pub fn of(node: &Node, buffers: &BufferMeter, budgets: Budgets) -> Self {
        let NodeMemory { tree, pool, log } = node.memory();
        let config = node.config();
        let tree_config = node.tree().config();
        let memtable_max = memtable_max(node.memtable_len_max(), config, tree_config);
        // A write is let in below `sealed_max`; what was in its turn may complete one MemTable, and
        // it another. Others than the head follow what the head does, and keep each until the edit
        // of its flush has come and is applied.
        let sealed_max = (u64::from(tree_config.sealed_max) + 1) * memtable_max;
        let sealed_max = node.duties().append.then_some(sealed_max);
        let slots = u64::from(node.pool().counts().total);
        let described_max = slots * (FILE_DESCRIBED_LEN + SLOT_DESCRIBED_LEN);
        let log_max = config.ring_len / 4096 * MARK_LEN
            + 2 * config.segment_len
            + 4 * TRANSFER_LEN_MAX as u64;
        let heap = |name, bytes: u64, max| MemoryKind { name, bytes, max, is_heap: true };
        let budget =
            |name, (bytes, max): (usize, usize)| heap(name, bytes as u64, Some(max as u64));
        let ring = config.ring_len;
        Self {
            kinds: vec![
                heap("memtable_active", tree.active, Some(memtable_max)),
                heap("memtables_sealed", tree.sealed, sealed_max),
                heap("memtables_of_readers", tree.kept, None),
                budget("block_cache", budgets.block_cache),
                budget("open_files", budgets.open_files),
                heap("buffers", buffers.held() as u64, None),
                heap("descriptions", tree.files + pool, Some(described_max)),
                heap("log", log, Some(log_max)),
                MemoryKind { name: "ring", bytes: ring, max: Some(ring), is_heap: false },
            ],
        }
    }

    /// Bytes of all kinds.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.kinds.iter().map(|kind| kind.bytes).sum()
    }

    /// Bytes of those kinds that are from the allocator.
    #[must_use]
    pub fn heap_bytes(&self) -> u64 {
        self.kinds.iter().filter(|kind| kind.is_heap).map(|kind| kind.bytes).sum()
    }
}

/// The most bytes of a MemTable. It is judged when a record was applied, of which there may be the
/// longest; of what is charged for entries it takes a quarter more at worst, as the ends of chunks
/// stay empty (tests of both are the engine's).
fn memtable_max(memtable_len: u64, config: &GroupConfig, tree: &TreeConfig) -> u64 {
    let record_max = config.segment_len.min(RECORD_LEN_MAX as u64);
    let charged_max = memtable_len + record_max + (RECORD_OPS_MAX * ENTRY_OVERHEAD) as u64;
    charged_max / 4 * 5 + places_max(charged_max, tree) + MEMTABLE_SLACK_LEN
}

/// The most bytes of the places of a MemTable's large values in the log.
fn places_max(charged: u64, tree: &TreeConfig) -> u64 {
    let shortest = match (tree.large_values, tree.value_compression) {
        (0, _) => return 0,
        (from, Compression::None) => from.max(LARGE_VALUES_MIN),
        // One that is packed counts by what it was.
        _ => LARGE_VALUES_MIN,
    };
    charged / (u64::from(shortest) + ENTRY_OVERHEAD as u64) * PLACE_LEN
}

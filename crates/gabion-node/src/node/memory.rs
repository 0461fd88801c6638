//! What memory the machine itself takes, by what for. Caches of readers and buffers of jobs belong to whoever
//! drives it, and are counted there.

use super::Node;
use gabion_engine::TreeMemory;

/// Bytes of memory that a replica's machine takes from the allocator, the ring aside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeMemory {
    /// MemTables and descriptions of files.
    pub tree: TreeMemory,
    /// Where files lie, the state of each slot, and what waits for the placement log.
    pub pool: u64,
    /// The record under way, records that came too early, blocks on their way to segments, and where records end.
    pub log: u64,
}

impl Node {
    /// What it takes now. Costs a look at each file, so some 50 µs for a thousand.
    #[must_use]
    pub fn memory(&self) -> NodeMemory {
        NodeMemory {
            tree: self.tree.memory(),
            pool: self.pool.memory_used() as u64 + self.files.memory_used() as u64,
            log: self.log.memory_used() as u64 + self.writing.memory_used() as u64,
        }
    }
}

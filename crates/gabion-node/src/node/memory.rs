//! Memory of the machine itself, by purpose. Its driver owns and counts the caches of readers and
//! the buffers of jobs.

use super::Node;
use gabion_engine::TreeMemory;

/// Bytes of memory that a replica's machine takes from the allocator, the ring aside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeMemory {
    /// MemTables and descriptions of files.
    pub tree: TreeMemory,
    /// Places of files and references to them, states of slots, and changes that wait for the
    /// placement log.
    pub pool: u64,
    /// The record under way, records that came too early, blocks on their way to segments, and ends
    /// of records; the writes of sessions.
    pub log: u64,
}

impl Node {
    /// Its memory now. Costs a look at each file, some 50 µs for a thousand.
    #[must_use]
    pub fn memory(&self) -> NodeMemory {
        NodeMemory {
            tree: self.tree.memory(),
            pool: self.pool.memory_used() as u64 + self.files.memory_used() as u64,
            log: self.log.memory_used() as u64
                + self.writing.memory_used() as u64
                + self.sessions.memory_used() as u64,
        }
    }
}

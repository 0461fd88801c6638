//! Compacting on demand.

use crate::Db;
use crate::read::engine_key;
use gabion_base::{Error, Result};
use gabion_engine::Keyspace;
use gabion_node::{RangeState, WriteGate};

impl Db {
    /// Compacts all keys in `from..to`, or from `from` to the end without `to`, and waits for it: what was
    /// written to them before is then in one level, in files without deleted or replaced values, unless a
    /// snapshot still holds what they were. Never needed: it makes reads of a range that was written once, or
    /// deleted, as cheap as they can be, and gives its space back at once instead of by and by. Costs reading
    /// and writing all that is there.
    ///
    /// Reads and writes go on meanwhile. Calls of several threads are carried out one after the other.
    ///
    /// # Errors
    /// No space when a compaction of a file with what it overlaps needs more than the pool has left;
    /// corruption with the file's name when one is damaged; what made the store fail. What was compacted
    /// before stays so.
    pub fn compact_range(&self, from: &[u8], to: Option<&[u8]>) -> Result<()> {
        self.flush()?;
        // The engine's range includes its end: a file that begins there is taken along.
        let to = to.map_or_else(|| vec![Keyspace::User as u8 + 1], engine_key);
        let mut core = self.lock();
        core.check()?;
        let number = core.node.compact_range(&engine_key(from), Some(&to));
        self.shared().carry_on(&mut core);
        loop {
            core.check()?;
            match core.node.range_state(number) {
                RangeState::Done => return Ok(()),
                RangeState::Working => {}
                RangeState::Stuck(error) => {
                    core.node.give_up_range(number);
                    return Err(error);
                }
            }
            if let (true, WriteGate::Full { reason, .. }) =
                (core.node.jobs_pause(), core.node.write_gate())
            {
                core.node.give_up_range(number);
                return Err(Error::no_space(reason));
            }
            core = self.shared().wait(core);
        }
    }
}

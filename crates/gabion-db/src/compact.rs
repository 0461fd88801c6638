//! Compacting on demand.

use crate::Db;
use crate::iter::{Bounds, EngineRange};
use gabion_base::{Error, Result};
use gabion_node::{RangeState, WriteGate};

impl Db {
    /// Compacts all keys within bounds (`..` for all) and waits for it. Everything written to them
    /// before is then in one level, in files without deleted or replaced values. Never needed: it
    /// makes reads of a range that was written once, or deleted, as cheap as they can be, and gives
    /// its space back at once instead of by and by. If a [`Snapshot`](crate::Snapshot) reads the
    /// range, the old files stay beside the new ones, and take their space, for as long as it
    /// lives.
    ///
    /// Costs a [`Self::flush`], then reading and writing the whole range, on the compaction
    /// threads. Reads and writes go on meanwhile. Calls of several threads run one after the other.
    ///
    /// ```
    /// # use gabion_db::{Db, Options};
    /// # let dir = std::env::temp_dir().join(format!("gabion-db-compact-{}", std::process::id()));
    /// # let _ = std::fs::remove_dir_all(&dir);
    /// # let db = Db::create(&dir, &Options { pool_len: 128 << 20, ..Options::default() })?;
    /// for day in 1..=31_u8 {
    ///     db.put(&[b"day:", &[day][..]].concat(), b"what happened")?;
    /// }
    /// db.flush()?;
    /// db.delete_range("day:\x01".."day:\x0f")?;
    /// db.compact_range("day:".."day;")?;
    /// let files: u64 = db.stats().levels.iter().map(|level| level.files).sum();
    /// assert_eq!(files, 1); // of the days that are left
    /// # drop(db);
    /// # std::fs::remove_dir_all(&dir).unwrap();
    /// # Ok::<(), gabion_base::Error>(())
    /// ```
    ///
    /// # Durability
    /// Everything written to any key before, at whatever [`Durability`](crate::Durability),
    /// survives a power cut, as after [`Self::flush`]. So do the results of the compactions, as far
    /// as they came.
    ///
    /// # Errors
    /// No space when a compaction of a file with its overlap, or the flush, needs more than the
    /// pool has left; corruption with the file's name when one is damaged; the error that made the
    /// store fail. Finished compactions stay.
    pub fn compact_range(&self, bounds: impl Bounds) -> Result<()> {
        self.compact_engine_range(&EngineRange::new(&bounds))
    }

    fn compact_engine_range(&self, range: &EngineRange) -> Result<()> {
        self.flush()?;
        if range.from >= range.to {
            return Ok(());
        }
        let mut core = self.lock();
        core.check()?;
        let number = core.node.compact_range(&range.from, Some(&range.to));
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

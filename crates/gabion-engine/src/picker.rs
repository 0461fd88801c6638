//! Picks the next compaction: leveled, by file, with moves in place of merges where nothing
//! overlaps (LevelDB's scheme, as RocksDB refined it; RubbleDB runs on it).
//!
//! ```text
//!   Drop ─► Tombstones ─► Levels ─► Values ─► Ranges ─► Expired ─► nothing, and why: a reason each
//!     └─────────┴───────────┴─────────┴─────────┴─────────┴──────► a pick
//! ```
//!
//! Six [strategies](Strategy) are asked in this order, and the first pick is taken. Each level has
//! a score: L0 its runs ÷ trigger (or bytes ÷ the most that L1 aims at, if larger), others bytes ÷
//! target. From the highest score over 1 downwards, the first level with work that collides with no
//! job under way gives the job of `Levels`:
//!
//! - **L0**: the oldest files and all that overlap them; one such job at a time, since files of L0
//!   overlap. They go to the first level that is in use, or is worth it. Where the oldest is of a
//!   load, those of the load that come behind it go too, as many as a job takes: each for itself
//!   would be merged with the same files below.
//! - **others**: the file with the least overlap per byte one level below, ties by key; the next
//!   where that has too many cuts.
//!
//! Bytes are those of files and, where more of a file's entries are tombstones than not, of the
//! values that those which are more may delete: deletes go down the levels as overwrites of the
//! same records would, and give back what they delete (RocksDB's compensated sizes, at half of
//! their weight). While writers are slowed down for L0 such levels come last.
//!
//! A file that overlaps nothing one level below is moved there as it is, and with it those behind
//! it of which that is true, as many as the level has too much. Where nothing at all lies below it
//! and the tree has a codec of its own for that ([`crate::config::Codecs`]), it is written anew
//! with that, unless it has it.
//!
//! A job that may need more slots than are free, or name more files than one edit can, is not
//! picked; a smaller one may be. Where there is none, the second is, with files of twice the length
//! or more, of which there will be fewer: a file that spans all of a level with thousands would
//! otherwise never go down. If cuts alone are too many, as of a small file over hundreds of GB two
//! levels deeper, as many are left out as it takes. When room is short ([`Picker::urgent`]), levels
//! are compacted that are not over their targets, from L0 downwards: that is how deletes give back
//! what they delete. Then files are written anew in which much has expired.
//!
//! Before all that, unless writers are slowed down for L0, goes what tombstones hide that are dense
//! (`tombstones`), so that nobody has to pass them for long.
//!
//! Files of which all is deleted by one range delete above them are dropped unread, as those below
//! the floor are, and those that hold nothing but tombstones above nothing. A file that holds
//! little but range deletes would never be picked for its length: when no level is over its target
//! it sinks, level by level, and at the last that has anything of its range it vanishes.
//!
//! The choice of values files that a compaction empties, and of SSTs that are written anew for that
//! alone, is in `values`.
//!
//! Two jobs never share an input. That suffices for outputs not to overlap either: a job's key
//! range at its output level is covered by its own inputs. Picking depends on the version, the
//! files that are busy and, for what has expired, group time, on nothing else.

mod down;
mod edits;
mod gone;
mod levels;
mod pick;
mod range;
mod shape;
mod tombstones;
mod values;

pub use pick::{NoPick, Pick, Picked};
pub(crate) use range::{Gone, RangePosition, RangeStep};
pub use shape::{Picker, Score};
pub(crate) use tombstones::tombstones_worth;

use crate::recipe::JobKind;
use gabion_base::SequenceNumber;

/// A way of finding a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strategy {
    /// Files that can go without being read.
    Drop,
    /// Files that are dense in tombstones, with what these delete.
    Tombstones,
    /// Levels that are over their targets.
    Levels,
    /// Files that reference values files with much garbage.
    Values,
    /// Files with little but range deletes.
    Ranges,
    /// Files in which much has expired, when room is short.
    Expired,
}

impl Strategy {
    /// All, in the order in which they are asked.
    pub const ORDER: [Self; 6] =
        [Self::Drop, Self::Tombstones, Self::Levels, Self::Values, Self::Ranges, Self::Expired];

    /// Its name in status.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Drop => "drop",
            Self::Tombstones => "tombstones",
            Self::Levels => "levels",
            Self::Values => "values",
            Self::Ranges => "ranges",
            Self::Expired => "expired",
        }
    }
}

/// Why no strategy has a job, by [`Strategy::ORDER`].
pub type WhyIdle = [NoPick; Strategy::ORDER.len()];

/// What is visible when a job is picked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    /// Entries of users with a smaller sequence number were cleared.
    pub(crate) floor: SequenceNumber,
    /// Group time.
    pub(crate) now_ms: u64,
}

impl Picker<'_> {
    /// The first job that a strategy has, or why each has none.
    pub(crate) fn pick_by_order(&self, moment: Moment) -> Result<Pick, WhyIdle> {
        let mut why = [NoPick::NothingDue; Strategy::ORDER.len()];
        for (strategy, why) in Strategy::ORDER.into_iter().zip(&mut why) {
            match self.pick_by(strategy, moment) {
                Ok(pick) => {
                    assert!(!pick.inputs.is_empty(), "{strategy:?}: a job has inputs");
                    assert!(pick.output_level < self.version.level_count(), "{strategy:?}");
                    let lowest = pick.inputs.last().map_or(0, |(level, _)| *level);
                    let goes_up = pick.kind != JobKind::Drop && lowest > pick.output_level;
                    assert!(!goes_up, "{strategy:?}: files of level {lowest} go up");
                    return Ok(pick);
                }
                Err(reason) => *why = reason,
            }
        }
        Err(why)
    }

    fn pick_by(&self, strategy: Strategy, moment: Moment) -> Picked {
        let Moment { floor, now_ms } = moment;
        match strategy {
            Strategy::Drop => self.pick_drop(floor),
            Strategy::Tombstones if self.slows_writers() => Err(NoPick::YieldsToL0),
            Strategy::Tombstones => self.pick_tombstones(),
            Strategy::Levels => self.pick(),
            Strategy::Values => self.pick_values(),
            Strategy::Ranges => self.pick_ranges(),
            Strategy::Expired => self.pick_expired(now_ms),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;

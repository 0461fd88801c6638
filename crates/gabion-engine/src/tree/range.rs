//! Compactions on demand: what was asked for, in order; one range at a time, one job at a time.

use super::{JobContext, Tree};
use crate::picker::{Gone, Pick, Picker, RangePosition, RangeStep};
use crate::recipe::JobKind;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// What was asked for and is not done.
#[derive(Default)]
pub(super) struct Ranges {
    waiting: VecDeque<Range>,
    /// Ranges asked for so far: the number of the last one.
    asked: u64,
}

struct Range {
    number: u64,
    from: Vec<u8>,
    to: Option<Vec<u8>>,
    /// How far it is, once it has begun.
    position: Option<RangePosition>,
}

impl Tree {
    /// Asks for all engine keys in `from..=to`, or to the end, to be compacted: what is in files
    /// then goes down, by ordinary jobs out of [`Tree::next_compaction`], to one level where it can
    /// rest, and what was deleted, replaced or has expired is gone. What MemTables hold is left
    /// out; whoever wants it compacted has it flushed first.
    ///
    /// Known to the primary alone, and forgotten with the process. Returns the range's number for
    /// [`Tree::is_compacted`].
    pub fn compact_range(&mut self, from: &[u8], to: Option<&[u8]>) -> u64 {
        let ranges = &mut self.jobs.ranges;
        ranges.asked += 1;
        let (number, to) = (ranges.asked, to.map(<[u8]>::to_vec));
        ranges.waiting.push_back(Range { number, from: from.to_vec(), to, position: None });
        number
    }

    /// Whether a range that was asked for is compacted, or was given up.
    #[must_use]
    pub fn is_compacted(&self, number: u64) -> bool {
        self.jobs.ranges.waiting.iter().all(|range| range.number != number)
    }

    /// Forgets a range; a job of it that is under way ends as any other.
    pub fn give_up_range(&mut self, number: u64) {
        self.jobs.ranges.waiting.retain(|range| range.number != number);
    }

    /// The next job of the first range that was asked for.
    pub(super) fn pick_asked(&mut self, context: &JobContext) -> Option<Pick> {
        let room = self.room(JobKind::Compaction, context);
        loop {
            let range = self.jobs.ranges.waiting.front_mut()?;
            let picker = Picker::new(&self.config, self.versions.current(), &self.jobs.busy);
            let picker = picker.within(room);
            if range.position.is_none() {
                let next_file = self.jobs.reserved.max(self.next_file);
                range.position = picker.begin_range(&range.from, range.to.as_deref(), next_file);
            }
            let gone = Gone { floor: self.floor, now_ms: self.now_ms };
            let step = match &mut range.position {
                Some(position) => picker.pick_range(position, gone),
                None => RangeStep::Done,
            };
            match step {
                RangeStep::Job(pick) => return Some(pick),
                RangeStep::Wait => return None,
                RangeStep::Done => drop(self.jobs.ranges.waiting.pop_front()),
            }
        }
    }
}

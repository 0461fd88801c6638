//! Compactions on demand: asked for at the head, carried out by its ordinary jobs.

use super::Node;
use gabion_base::Error;

/// How a compaction on demand is doing.
#[derive(Clone, Debug)]
pub enum RangeState {
    /// Jobs of it, or others that it waits for, are under way or about to be.
    Working,
    /// It is done, or was given up.
    Done,
    /// Nothing is under way, and nothing can be begun: for want of slots, or as files are damaged.
    Stuck(Error),
}

impl Node {
    /// Asks for a compaction of all user and system keys in files in `from..=to` (engine keys; to
    /// the end without `to`): see [`gabion_engine::Tree::compact_range`]. Returns the number for
    /// [`Self::range_state`]. Each job's recipe is complete, so this is legal in a group of
    /// several: its edits reach every member.
    ///
    /// # Panics
    /// When called at a member that runs no jobs.
    pub fn compact_range(&mut self, from: &[u8], to: Option<&[u8]>) -> u64 {
        assert!(self.duties().compact, "who compacts is asked");
        self.tree.compact_range(from, to)
    }

    /// How a range is doing; to be asked after [`Self::advance`].
    #[must_use]
    pub fn range_state(&self, number: u64) -> RangeState {
        if self.tree.is_compacted(number) {
            return RangeState::Done;
        }
        // Commits under way give slots back.
        let is_idle = self.orders.is_empty() && !self.makes_room();
        let is_held = self.loads.hold_compactions();
        if !is_idle || is_held || self.refused.is_some() || self.jobs_pause() {
            return RangeState::Working;
        }
        RangeState::Stuck(self.stuck())
    }

    /// Why nothing that is due can be begun, when nothing is under way.
    pub(super) fn stuck(&self) -> Error {
        match self.damage() {
            Some(damage) => damage.clone(),
            None => self.too_few_slots(),
        }
    }

    pub(super) fn too_few_slots(&self) -> Error {
        Error::no_space(alloc::format!(
            "a flush or compaction needs more than the {} slots of {} that are free",
            self.pool.counts().free,
            self.pool.counts().total
        ))
    }

    /// Forgets a range that was asked for.
    pub fn give_up_range(&mut self, number: u64) {
        self.tree.give_up_range(number);
    }
}

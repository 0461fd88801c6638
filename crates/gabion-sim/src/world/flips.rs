//! Bits that flip in the memory of a process, in files that its jobs have built, after their
//! checksums were taken.

use super::World;
use crate::process::{Flip, Process};
use gabion_base::FileId;

impl World {
    /// A bit flips in the next file of the kind that a replica's jobs build, unless its process
    /// ends before.
    ///
    /// # Panics
    /// When the replica is down.
    pub fn flip_next_built(&mut self, index: usize, flip: Flip) {
        let process = self.machines[index].process.as_mut().expect("the replica is up");
        process.flip_next(flip);
    }

    /// Files of a replica's process in which bits flipped like this.
    #[must_use]
    pub fn flipped(&self, index: usize) -> Vec<FileId> {
        self.machines[index].process.as_ref().map(Process::flipped).unwrap_or_default()
    }

    /// A bit that flipped in memory before the write is flipped on the disk as well.
    pub(super) fn flip_on_disk(&mut self, index: usize) {
        let machine = &mut self.machines[index];
        let Some(process) = &mut machine.process else { return };
        for offset in process.take_flips_on_disk() {
            machine.disk.flip_bit(offset, 0);
        }
    }
}

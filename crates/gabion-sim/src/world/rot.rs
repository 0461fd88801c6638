//! Bits that flip in files on a disk, and the required consequences.

use super::World;
use super::options::Faults;
use gabion_base::{Error, FileId, FileKind, crc};
use gabion_engine::FileMeta;
use gabion_node::{CompactionMode, RepairState, open};
use gabion_pool::{FilePlacement, Geometry};

/// Steps until a file is repaired, at most, when a whole copy is there: pauses included.
const REPAIR_STEPS: u64 = 20_000;

impl World {
    /// Flips a random bit of a file on a replica's disk.
    ///
    /// # Panics
    /// When the replica is down or has no such file.
    pub fn rot(&mut self, index: usize, file: FileId) {
        let node = self.node(index).expect("the replica is up");
        let placement = node.pool().placement(file).expect("the file is there");
        let geometry = node.pool().region().clone();
        let within = self.random.below(placement.len);
        let mut extents = gabion_pool::extents(&geometry, &placement, within, 1);
        let (offset, _) = extents.next().expect("the file has that byte");
        self.machines[index].disk.flip_bit(offset, self.random.below(8) as u8);
        self.outcome.rotten += 1;
        self.note(format!("{file} of replica {} rots at {within}", index + 1));
    }

    /// Kills a replica, which starts again soon, with empty caches.
    pub fn restart(&mut self, index: usize) {
        self.kill(index, false);
    }

    /// The files in a replica's tree.
    ///
    /// # Panics
    /// When the replica is down.
    #[must_use]
    pub fn files(&self, index: usize) -> Vec<FileId> {
        let node = self.node(index).expect("the replica is up");
        node.tree().version().described().map(|meta| meta.id).collect()
    }

    /// Whether the bytes on a replica's disk match the file's edit; no if the replica is down or
    /// has no such file in its tree.
    #[must_use]
    pub fn is_whole(&self, index: usize, file: FileId) -> bool {
        let Some(node) = self.node(index) else { return false };
        let mut live = node.tree().version().described();
        let Some(meta) = live.find(|meta| meta.id == file) else { return false };
        let Some(placement) = node.file_map().get(file) else { return false };
        self.checksum_of(index, node.pool().region(), &placement) == meta.checksum
    }

    /// Flips a bit of one of a replica's files that all members have whole.
    pub(super) fn rot_some_file(&mut self, index: usize) {
        let ships = self.group.compaction == CompactionMode::Primary && self.machines.len() > 1;
        if !ships || self.node(index).is_none() {
            return;
        }
        let mut files = self.files(index);
        files.retain(|file| (0..self.machines.len()).all(|other| self.is_whole(other, *file)));
        if files.is_empty() {
            return;
        }
        let file = files[self.random.below(files.len() as u64) as usize];
        self.rot(index, file);
    }

    /// Everything is read, past all caches: rotten bytes are met, and repaired soon after.
    pub(super) fn find_rot(&mut self) -> Result<(), String> {
        if self.outcome.rotten == 0 {
            return Ok(());
        }
        (0..self.machines.len()).for_each(|index| self.kill(index, false));
        self.settle()?;
        for index in 0..self.machines.len() {
            self.scan_until_whole(index)?;
        }
        self.settle()
    }

    fn scan_until_whole(&mut self, index: usize) -> Result<(), String> {
        let mut seen = String::new();
        for _ in 0..REPAIR_STEPS / 100 {
            match self.scan(index) {
                Ok(_) if !self.scrub_values(index) => return self.check_whole(index),
                Ok(_) => {}
                Err(error) => seen = error,
            }
            for _ in 0..100 {
                self.step();
                self.look_for_violation()?;
            }
        }
        Err(format!("replica {} is not repaired: {seen}; {}", index + 1, self.describe()))
    }

    /// Values files are read whole, as a reader meets neither dead values nor what lies between
    /// them. Returns whether one is rotten.
    fn scrub_values(&mut self, index: usize) -> bool {
        let rotten = self.files(index).into_iter().find(|file| {
            let is_read = file.kind == FileKind::Sst;
            !is_read && !self.is_whole(index, *file)
        });
        let Some((file, node)) = rotten.zip(self.node_mut(index)) else { return false };
        node.handle_damage(file, &Error::corruption(format!("{file}: another checksum")));
        true
    }

    /// Each segment that keeps values has the bytes of its edit, at every replica, where nothing
    /// has rotted.
    pub(super) fn check_segments(&mut self) -> Result<(), String> {
        let faults = &self.options.faults;
        if faults.rot > 0 || faults.log_rot > 0 {
            return Ok(());
        }
        for index in 0..self.machines.len() {
            if self.node(index).is_none() {
                continue;
            }
            let kept: Vec<FileId> = self
                .files(index)
                .into_iter()
                .filter(|it| it.kind == FileKind::LogSegment)
                .collect();
            if let Some(file) = kept.into_iter().find(|file| !self.is_whole(index, *file)) {
                return Err(format!(
                    "replica {}: {file} keeps values and has other bytes than its edit says",
                    index + 1
                ));
            }
        }
        Ok(())
    }

    /// The segments that keep values of the tree that a power cut has left are whole: their bytes
    /// are flushed before the edit that says so, and what only the ring had is gone. `index` is a
    /// replica that has just lost its power, and had a whole state.
    pub(super) fn check_segments_after_cut(&mut self, index: usize) {
        let Faults { rot, log_rot, lost, .. } = self.options.faults;
        if self.options.kept_segments == 0 || rot + log_rot + lost > 0 || self.outcome.rotten > 0 {
            return;
        }
        let disk = &self.machines[index].disk;
        let handle = disk.handle();
        // A pool that cannot be read is told by the start.
        let Ok(pool) = disk.block_on(&handle, open::read_pool(&handle)) else { return };
        let is_whole = |meta: &FileMeta| {
            let placement = pool.pool().placement(meta.id);
            placement.is_some_and(|placement| {
                self.checksum_of(index, pool.pool().region(), &placement) == meta.checksum
            })
        };
        let mut files = pool.tree().version().described();
        let bad = files.find(|meta| meta.id.kind == FileKind::LogSegment && !is_whole(meta));
        if let Some(bad) = bad.map(|meta| meta.id) {
            let what = format!("replica {}: {bad} keeps values, which a power cut took", index + 1);
            self.violation.get_or_insert(what);
        }
    }

    /// The checksum of what lies in a file's slots.
    fn checksum_of(&self, index: usize, region: &Geometry, placement: &FilePlacement) -> u32 {
        let disk = &self.machines[index].disk;
        let extents = gabion_pool::extents(region, placement, 0, placement.len);
        extents.fold(crc::crc32c(&[]), |sum, (offset, len)| {
            crc::append(sum, &disk.peek(offset, len as usize))
        })
    }

    fn check_whole(&self, index: usize) -> Result<(), String> {
        let node = self.node(index).ok_or("a replica that was read is down")?;
        if let Some(left) = node.damaged_files().next() {
            return Err(format!("replica {} was read, and has {left:?}", index + 1));
        }
        match self.files(index).into_iter().find(|file| !self.is_whole(index, *file)) {
            None => Ok(()),
            Some(file) => Err(format!("replica {} was read, and {file} is rotten", index + 1)),
        }
    }

    /// A file noted as damaged that is whole was noted for the content of an old place, unless a
    /// read of it was made to fail.
    pub(super) fn check_noted(&mut self, index: usize) {
        if self.failing == Some(index) {
            return;
        }
        let Some(node) = self.node(index) else { return };
        let whole = node.damaged_files().find(|file| file.state == RepairState::Whole);
        if let Some(noted) = whole {
            let what = format!("replica {} noted {noted:?}", index + 1);
            self.violation.get_or_insert(what);
        }
    }
}

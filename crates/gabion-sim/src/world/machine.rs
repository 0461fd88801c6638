//! One machine: its disk, its ring, and the process on it.

use super::power::Held;
use crate::lost::Moments;
use crate::process::{Process, RingLabel};
use crate::{Random, SimulatedMemory};
use gabion_base::units::SLOT_LEN;
use gabion_base::{ReplicaId, SlotIndex};
use gabion_media::MediumHandle;
use gabion_media::simulated::{DiskOptions, SimulatedDisk};
use gabion_node::{GroupConfig, open};
use gabion_pool::SlotState;

pub(super) struct Machine {
    pub(super) disk: SimulatedDisk,
    pub(super) ring: SimulatedMemory,
    pub(super) label: RingLabel,
    pub(super) process: Option<Process>,
    pub(super) starts: u64,
    pub(super) down_until_ms: u64,
    /// When held-back writes go on.
    pub(super) held_until_ms: u64,
    /// The end of its process's pause.
    pub(super) paused_until_ms: u64,
    /// Its process was paused and has not run since.
    pub(super) wakes: bool,
    /// The log that its last process left, until the next is open.
    pub(super) left: Option<Held>,
    /// The end of the time without space for files.
    pub(super) full_until_ms: u64,
    pub(super) moments: Moments,
    /// The notices of its processes.
    pub(super) notices: Vec<String>,
}

impl Machine {
    /// A machine with the pool of a founder, and no process yet.
    pub(super) fn new(
        group: &GroupConfig,
        member: ReplicaId,
        pool_len: u64,
        random: &mut Random,
    ) -> Self {
        let pool_id = [member.get() as u8; 16];
        Self::with_pool(group, pool_len, random, async |handle: &MediumHandle| {
            open::create(handle, group, member, pool_id).await
        })
    }

    /// A machine with the pool of a member that comes later, in place of one that was lost.
    pub(super) fn joining(
        group: &GroupConfig,
        member: ReplicaId,
        pool_len: u64,
        random: &mut Random,
    ) -> Self {
        let pool_id = [member.get() as u8 | 0x80; 16];
        Self::with_pool(group, pool_len, random, async |handle: &MediumHandle| {
            open::create_joining(handle, group, member, pool_id).await
        })
    }

    fn with_pool(
        group: &GroupConfig,
        pool_len: u64,
        random: &mut Random,
        create: impl AsyncFn(&MediumHandle) -> gabion_base::Result<()>,
    ) -> Self {
        let delay = random.below(6) as u32;
        let disk = SimulatedDisk::new(DiskOptions::delayed(pool_len, random.number(), delay));
        let handle = disk.handle();
        disk.block_on(&handle, create(&handle)).expect("the pool is large enough");
        Self {
            disk,
            ring: SimulatedMemory::new(group.ring_len as usize),
            label: RingLabel::new(Some(0)),
            process: None,
            starts: 0,
            down_until_ms: 0,
            held_until_ms: 0,
            paused_until_ms: 0,
            wakes: false,
            left: None,
            full_until_ms: 0,
            moments: Moments::default(),
            notices: Vec::new(),
        }
    }

    /// Keeps the bytes that losing the last commits of the placement log will need.
    pub(super) fn remember(&mut self) {
        let Some(process) = &mut self.process else { return };
        for (offset, len) in process.take_commit_writes() {
            self.moments.overwritten(offset, &self.disk.peek(offset, len));
        }
        if let Some(node) = process.node.as_ref().filter(|_| process.is_quiet()) {
            self.moments.quiet(node);
        }
    }

    /// Takes the space from slots without content, as a full thin file system does. The log's
    /// writes get their space, and so do shipped files: a disk that refuses those ends the process
    /// or the connection, which are other faults.
    pub(super) fn fill_up(&self, now_ms: u64) {
        let node = self.process.as_ref().and_then(|process| process.node.as_ref());
        let mut ranges = Vec::new();
        if let Some(node) = node.filter(|_| now_ms < self.full_until_ms) {
            let region = node.pool().region();
            for slot in (0..node.pool().counts().total).map(SlotIndex) {
                let state = node.pool().slot_state(slot);
                if matches!(state, Some(SlotState::Free | SlotState::Allocated { .. })) {
                    ranges.push((region.slot_offset(slot), SLOT_LEN));
                }
            }
        }
        self.disk.fill_up(ranges);
    }
}

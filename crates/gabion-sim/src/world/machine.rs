//! One machine: its disk, its ring, and the process on it.

use super::control::first_pool;
use super::power::Held;
use crate::lost::Moments;
use crate::process::{Process, RingLabel};
use crate::{Random, SimulatedMemory};
use gabion_base::units::SLOT_LEN;
use gabion_base::{ConfigNumber, ReplicaId, SlotIndex};
use gabion_control::Epoch;
use gabion_media::MediumHandle;
use gabion_media::simulated::{DiskOptions, SimulatedDisk};
use gabion_node::{GroupConfig, open};
use gabion_pool::SlotState;

/// The clock by which promises about reads are counted: it has a speed of its own, and goes on
/// while the process is paused (docs/faults.md R6).
pub(super) struct LeaseClock {
    offset_ms: u64,
    /// How much faster it is than that of the world, in millionths, plus [`DRIFT_PPM_MAX`].
    speed: u64,
}

/// Largest deviation of a clock's speed, in millionths.
const DRIFT_PPM_MAX: u64 = 500;

impl LeaseClock {
    pub(super) fn new(random: &mut Random) -> Self {
        let offset_ms = random.below(1 << 40);
        Self { offset_ms, speed: random.below(2 * DRIFT_PPM_MAX + 1) }
    }

    pub(super) const fn ms(&self, now_ms: u64) -> u64 {
        let million = 1_000_000;
        self.offset_ms + now_ms * (million - DRIFT_PPM_MAX + self.speed) / million
    }
}

pub(super) struct Machine {
    pub(super) id: ReplicaId,
    pub(super) pool_id: [u8; 16],
    pub(super) clock: LeaseClock,
    /// The highest epoch of a controller that its process heard.
    pub(super) epoch: Epoch,
    /// Whether its process was told a view that its replica took, or had.
    pub(super) is_told: bool,
    /// The last view that its replica refused.
    pub(super) refused_view: Option<ConfigNumber>,
    /// Its disk ends no operation between these.
    pub(super) hung_since_ms: u64,
    pub(super) hung_until_ms: u64,
    /// Its probe writes are refused until then.
    pub(super) refused_until_ms: u64,
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
        let pool_id = first_pool(member);
        Self::with_pool(
            (member, pool_id),
            group,
            pool_len,
            random,
            async |handle: &MediumHandle| open::create(handle, group, member, pool_id).await,
        )
    }

    /// A machine with the pool of a member that comes later, in place of one that was lost.
    pub(super) fn joining(
        group: &GroupConfig,
        member: ReplicaId,
        pool_len: u64,
        random: &mut Random,
    ) -> Self {
        let pool_id = [member.get() as u8 | 0x80; 16];
        Self::with_pool(
            (member, pool_id),
            group,
            pool_len,
            random,
            async |handle: &MediumHandle| {
                open::create_joining(handle, group, member, pool_id).await
            },
        )
    }

    fn with_pool(
        (member, pool_id): (ReplicaId, [u8; 16]),
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
            id: member,
            pool_id,
            clock: LeaseClock::new(&mut Random::new(u64::from(member.get()))),
            epoch: Epoch::default(),
            is_told: false,
            refused_view: None,
            hung_since_ms: 0,
            hung_until_ms: 0,
            refused_until_ms: 0,
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

    /// Whether its disk ends no operation now.
    pub(super) const fn is_hung(&self, now_ms: u64) -> bool {
        self.hung_until_ms > now_ms
    }

    /// Another disk and ring take the place of these, with an empty pool. For a machine without a
    /// process.
    pub(super) fn replace_disk(
        &mut self,
        group: &GroupConfig,
        pool_id: [u8; 16],
        random: &mut Random,
    ) {
        assert!(self.process.is_none(), "a process has its disk");
        let (len, delay) = (self.disk.handle().properties().len, random.below(6) as u32);
        self.disk = SimulatedDisk::new(DiskOptions::delayed(len, random.number(), delay));
        let handle = self.disk.handle();
        self.disk
            .block_on(&handle, open::create_joining(&handle, group, self.id, pool_id))
            .expect("the pool is large enough");
        self.ring = SimulatedMemory::new(group.ring_len as usize);
        self.label = RingLabel::new(Some(0));
        (self.pool_id, self.left, self.moments) = (pool_id, None, Moments::default());
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

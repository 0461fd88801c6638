//! Nodes for the tests of this module's parts.

use super::Node;
use crate::{AckLevel, CompactionMode, GroupConfig, NodeOptions, open};
use alloc::boxed::Box;
use gabion_base::units::MIB;
use gabion_base::{ConfigNumber, GroupId, ReplicaId};
use gabion_engine::TreeConfig;
use gabion_media::simulated::{DiskOptions, SimulatedDisk, SimulatedMemory};
use gabion_pool::Trust;

/// The head of [`one_of_two`]'s group.
pub(super) const HEAD: ReplicaId = ReplicaId(1);
/// The tail.
pub(super) const TAIL: ReplicaId = ReplicaId(2);

/// A member of a group of two, on a disk of its own, that was never connected with the other one.
pub(super) fn one_of_two(me: ReplicaId, options: NodeOptions) -> Node {
    let group = GroupConfig {
        group: GroupId(1),
        config: ConfigNumber(1),
        members: alloc::vec![HEAD, TAIL],
        compaction: CompactionMode::Primary,
        ack: AckLevel::Replicated,
        ring_len: MIB,
        segment_len: MIB / 4,
        tree: TreeConfig::default(),
    };
    let disk = SimulatedDisk::new(DiskOptions::immediate(256 * MIB));
    let handle = disk.handle();
    let opened = async {
        open::create(&handle, &group, me, [1; 16]).await?;
        let pool = open::open_pool(&handle, Trust::Readable).await?;
        let ring = Box::new(SimulatedMemory::new(group.ring_len as usize));
        pool.open_node(ring, options, 0).await
    };
    disk.block_on(&handle, opened).unwrap().0
}

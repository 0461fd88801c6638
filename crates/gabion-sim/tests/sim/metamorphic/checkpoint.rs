//! A copy of a replica, read as a pool of its own.

use super::look::{Look, Seen, look};
use crate::rig::driven;
use gabion_base::Error;
use gabion_engine::{LocalCache, Tables};
use gabion_media::MediumHandle;
use gabion_media::simulated::{DiskOptions, SimulatedDisk};
use gabion_node::checkpoint::{self, Origin};
use gabion_node::{NodeOptions, PoolSource, open};
use gabion_pool::Trust;
use gabion_sim::SimulatedMemory;
use gabion_sim::process::ReplicaTables;
use std::rc::Rc;

/// Makes a copy on a disk of its own, opens it as a restart would, and looks at it.
pub(super) async fn look_at_copy(
    origin: Origin,
    pool_len: u64,
    tables: ReplicaTables,
    now_ms: u64,
    at: Look,
) -> Result<Seen, Error> {
    let disk = SimulatedDisk::new(DiskOptions::immediate(pool_len));
    let handle = disk.handle();
    driven(&handle, checkpoint::write(&handle, [9; 16], &origin, &*tables.source, &mut |_| {}))
        .await?;
    let ring_len = origin.group.ring_len as usize;
    driven(&handle, look_at_pool(&handle, ring_len, now_ms, at)).await
}

async fn look_at_pool(
    handle: &MediumHandle,
    ring_len: usize,
    now_ms: u64,
    at: Look,
) -> Result<Seen, Error> {
    let pool = open::open_pool(handle, Trust::Readable).await?;
    let (store, ring) = (pool.store(), Box::new(SimulatedMemory::new(ring_len)));
    let (node, _) = pool.open_node(ring, NodeOptions::default(), now_ms).await?;
    let group = store.group;
    let source = PoolSource { store, locate: node.file_map().clone(), meter: Rc::default() };
    let tables =
        Tables { source: Rc::new(source), cache: Rc::new(LocalCache::new(1 << 16)), group };
    look(node.read_view(), tables, at).await
}

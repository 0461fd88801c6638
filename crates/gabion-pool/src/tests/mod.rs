//! Tests of the crate as a whole, on the simulated disk.

extern crate std;

mod creation;
mod files;
mod flips;
mod hostile;
mod inspect;
mod life;
mod model;
mod slot_lives;

use crate::recovery::create_planned;
use crate::{
    FilePlacement, Placed, Pool, PoolConfig, PoolId, Recovered, Superblock, open, write_commit,
};
use alloc::vec::Vec;
use core::future::Future;
use gabion_base::units::{BLOCK_LEN, MIB, SLOT_LEN};
use gabion_base::{FileId, GroupId, Result, Term};
use gabion_media::MediumHandle;
use gabion_media::simulated::{DiskOptions, SimulatedDisk};

const POOL_ID: PoolId = *b"pool of the test";
const GROUP: GroupId = GroupId(7);
const POOL_LEN: u64 = 64 * MIB;

const fn config() -> PoolConfig {
    PoolConfig { pool_id: POOL_ID, group: GROUP, len: POOL_LEN, region_id: 1 }
}

/// A process with a pool on a simulated disk.
struct Rig {
    disk: SimulatedDisk,
    handle: MediumHandle,
    pool: Pool,
    snapshot: Vec<u8>,
    opaque: Vec<(u16, Vec<u8>)>,
}

impl Rig {
    /// A new pool whose areas have `blocks` blocks, so that they fill soon.
    fn with_area(blocks: u64, snapshot: &[u8]) -> Self {
        let disk = SimulatedDisk::new(DiskOptions::immediate(POOL_LEN));
        let handle = disk.handle();
        let plan = Superblock::plan_with_area(&config(), blocks * BLOCK_LEN as u64).unwrap();
        disk.block_on(&handle, create_planned(&handle, &plan, snapshot)).unwrap();
        Self::open(disk).unwrap()
    }

    fn new() -> Self {
        Self::with_area(16, b"")
    }

    fn open(disk: SimulatedDisk) -> Result<Self> {
        let handle = disk.handle();
        let Recovered { pool, opaque_snapshot, opaque } =
            disk.block_on(&handle, open(&handle, crate::Trust::Readable))?;
        pool.invariants();
        Ok(Self { disk, handle, pool, snapshot: opaque_snapshot.to_vec(), opaque })
    }

    /// The process ends and the next one opens the pool.
    fn reopen(self) -> Self {
        let Self { disk, handle, pool, .. } = self;
        drop((handle, pool));
        Self::open(disk).unwrap()
    }

    fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.disk.block_on(&self.handle, future)
    }

    /// Commits what is staged, if anything is.
    fn commit(&mut self) {
        let Some(commit) = self.pool.take_commit() else { return };
        let number = commit.number;
        self.block_on(write_commit(&self.handle, commit)).unwrap();
        self.pool.committed(number);
        self.pool.invariants();
    }

    fn checkpoint(&mut self, snapshot: &[u8]) {
        let commit = self.pool.checkpoint(snapshot).unwrap();
        let number = commit.number;
        self.block_on(write_commit(&self.handle, commit)).unwrap();
        self.pool.committed(number);
        self.pool.invariants();
    }
}

/// A placement whose last slot holds one block.
fn placement(number: u64, slots: &[Placed]) -> FilePlacement {
    FilePlacement {
        file: FileId::sst(number),
        term: Term(3),
        len: (slots.len() as u64 - 1) * SLOT_LEN + BLOCK_LEN as u64,
        checksum: number as u32,
        slots: slots.to_vec(),
    }
}

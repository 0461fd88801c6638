//! Making a pool that holds files from its first moment: what a checkpoint of a replica is written
//! into.
//!
//! ```text
//!   begin ─► allocate ─► write_file ─► add_file ─► … ─► finish: flush ─► first checkpoint ─► superblock
//! ```
//!
//! The superblock comes last, as at any creation ([`crate::create`]): until then the medium holds
//! no pool, whatever was written into its slots.

use crate::pool::Pool;
use crate::recovery::{finish_creation, new_pool};
use crate::{FilePlacement, Placed, PoolConfig, Superblock};
use gabion_base::Result;
use gabion_media::MediumHandle;

/// A pool that is being made.
pub struct Creation {
    superblock: Superblock,
    pool: Pool,
}

impl Creation {
    /// Plans the pool. Nothing is written.
    ///
    /// # Errors
    /// Limit exceeded for a length out of bounds; invalid input when the medium is shorter or holds
    /// a pool already; the medium's.
    pub async fn begin(medium: &MediumHandle, config: &PoolConfig) -> Result<Self> {
        let superblock = Superblock::plan(config)?;
        let pool = new_pool(medium, &superblock).await?;
        Ok(Self { superblock, pool })
    }

    /// The pool as it will be.
    #[must_use]
    pub const fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Takes free slots, all or none.
    ///
    /// # Errors
    /// No space when fewer are free.
    pub fn allocate(&mut self, slots: u32) -> Result<alloc::vec::Vec<Placed>> {
        self.pool.give_out_at_once();
        self.pool.allocate(slots)
    }

    /// Gives slots back that hold no file.
    ///
    /// # Errors
    /// As [`Pool::release`].
    pub fn release(&mut self, slots: &[Placed]) -> Result<()> {
        self.pool.release(slots)
    }

    /// Makes a file that was written into allocated slots a part of the pool.
    ///
    /// # Errors
    /// As [`Pool::add_file`].
    pub fn add_file(&mut self, placement: FilePlacement) -> Result<()> {
        self.pool.add_file(placement)
    }

    /// Flushes the files and makes the medium the pool that holds them.
    ///
    /// # Durability
    /// Survives a power cut when it returns. A crash before, or an error, leaves no pool or the
    /// whole one.
    ///
    /// # Errors
    /// Limit exceeded when the state takes more than half an area of the placement log; the
    /// medium's.
    pub async fn finish(mut self, medium: &MediumHandle, opaque_snapshot: &[u8]) -> Result<()> {
        medium.flush().await?;
        finish_creation(medium, &self.superblock, &mut self.pool, opaque_snapshot).await
    }
}

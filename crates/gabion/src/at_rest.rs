//! A replica's pool that no process uses, opened for reading: for `db` and `verify --offline`.
//!
//! The pool's descriptor cannot write, and the ring is mapped so that changes stay in this process:
//! looking leaves no trace. The pool is locked: a running replica makes the lock fail, and none can
//! start meanwhile.

use bytes::Bytes;
use gabion_base::units::CHUNK_LEN;
use gabion_base::{Error, ErrorKind, Result, crc};
use gabion_engine::{FileMeta, FileSource};
use gabion_fabric::{BlockingMedium, DirectIo, MediumOptions, PoolFile};
use gabion_host::replica;
use gabion_log::RecoveryReport;
use gabion_media::{MediumHandle, MemoryRegion};
use gabion_node::open::OpenedPool;
use gabion_node::ring::{RingFound, nothing_lost};
use gabion_node::{FileMap, Node, NodeOptions, PoolSource, ReadMeter, open};
use std::future::Future;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// A locked pool.
pub(crate) struct AtRest {
    ring: PathBuf,
    pub(crate) medium: BlockingMedium,
}

/// A replica as it would be after a start, where its log ended, and its files.
pub(crate) type Replica = (Node, RecoveryReport, PoolSource<FileMap>, BlockingMedium);

impl AtRest {
    /// Locks the pool at `path`. Its ring is the file `ring` in the same directory.
    ///
    /// # Errors
    /// Busy, naming the process that runs on it; not found, also when it is no pool; I/O.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        replica::check_pool(path)?;
        let file = PoolFile::open_read_only(path, DirectIo::Try)?;
        let medium = file.medium(MediumOptions { notify: false, ..MediumOptions::default() })?;
        Ok(Self { ring: path.with_file_name("ring"), medium: BlockingMedium::new(medium) })
    }

    /// The pool's bytes.
    pub(crate) const fn medium(&self) -> &MediumHandle {
        self.medium.handle()
    }

    /// Waits for reads of the pool.
    pub(crate) fn wait<T>(&self, future: impl Future<Output = T>) -> T {
        self.medium.block_on(future)
    }

    /// The ring of the pool; changes stay in this process. Zeros where it is lost; the replica then
    /// reports the loss.
    ///
    /// # Errors
    /// Invalid input when the file is not the pool's ring; I/O.
    pub(crate) fn ring(&self, pool: &OpenedPool) -> Result<Box<dyn MemoryRegion>> {
        Ok(Box::new(replica::ring_at_rest(&self.ring, pool)?))
    }

    /// Superblock, placement log and tree.
    ///
    /// # Errors
    /// See [`open::read_pool`].
    pub(crate) fn pool(&self) -> Result<OpenedPool> {
        let mut pool = self.wait(open::read_pool(self.medium()))?;
        replica::look_at_ring(&self.ring, &mut pool);
        Ok(pool)
    }

    /// The message about the replica's ring, as its own start would give it, and whether writes may
    /// be missing.
    ///
    /// # Errors
    /// As [`Self::pool`], and of its log.
    pub(crate) fn ring_note(&self) -> Result<Option<(bool, String)>> {
        let pool = self.pool()?;
        let RingFound::Lost(why) = pool.ring_found() else {
            let known = pool.state.ring.loss.as_ref().filter(|loss| !loss.is_told);
            return Ok(known.map(|loss| (loss.may_miss(), loss.to_string())));
        };
        if let Some(stopped) = pool.state.ring.stopped {
            return Ok(Some((false, nothing_lost(why, stopped))));
        }
        let loss = self.wait(pool.ring_loss(self.ring(&pool)?))?;
        Ok(loss.map(|loss| (loss.may_miss(), loss.to_string())))
    }

    /// The replica as it would be after a start, its log replayed.
    ///
    /// # Errors
    /// See [`open::read_pool`], [`OpenedPool::open_node`] and [`Self::ring`].
    pub(crate) fn into_replica(self) -> Result<Replica> {
        let opened = self.pool()?;
        let ring = self.ring(&opened)?;
        let store = opened.store();
        let (node, report) = self.wait(opened.open_node(ring, NodeOptions::default(), 0))?;
        let meter = Rc::new(ReadMeter::default());
        let source = PoolSource { store, locate: node.file_map().clone(), meter };
        Ok((node, report, source, self.medium))
    }
}

/// Compares each chunk of a file with the checksum in its edit. Calls `step` before each chunk, and
/// `bad` for each that differs, with its offset, the expected checksum, and the bytes or the error
/// of their read.
pub(crate) fn check_file(
    medium: &BlockingMedium,
    source: &impl FileSource,
    meta: &FileMeta,
    step: &mut dyn FnMut(),
    mut bad: impl FnMut(u64, u32, Result<Bytes>),
) {
    for (i, &expected) in meta.chunk_crcs.iter().enumerate() {
        step();
        let offset = i as u64 * CHUNK_LEN;
        let len = CHUNK_LEN.min(meta.rounded_len() - offset) as usize;
        let found = medium.block_on(source.read(meta.id, offset, len));
        if !found.as_ref().is_ok_and(|bytes| crc::crc32c(bytes) == expected) {
            bad(offset, expected, found);
        }
    }
}

/// A sentence about a chunk with another checksum than expected.
pub(crate) fn differs(offset: u64, bytes: &[u8], expected: u32) -> String {
    let found = crc::crc32c(bytes);
    format!("the 1 MiB from {offset} on has checksum {found:08x}, the edit says {expected:08x}")
}

/// Whether an error is itself a finding.
pub(crate) fn is_damage(error: &Error) -> bool {
    error.kind() == ErrorKind::Corruption
}

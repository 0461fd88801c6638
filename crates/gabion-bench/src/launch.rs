//! The interface that gives a benchmark a cluster of its own. The command line implements it, as it
//! knows how to start the processes of replicas.

use gabion_base::{Error, ErrorKind, Result};
use gabion_engine::Codecs;
use gabion_node::{AckLevel, CompactionMode};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// The cluster that a measurement needs: one group of replicas.
#[derive(Clone, Debug, PartialEq)]
pub struct ClusterSpec {
    /// Number of replicas, at least one.
    pub replicas: u32,
    /// The members that flush and compact.
    pub compaction: CompactionMode,
    /// The meaning of an acknowledgement.
    pub ack: AckLevel,
    /// Bytes of each replica's pool.
    pub pool_len: u64,
    /// Bytes of a MemTable.
    pub memtable_len: u64,
    /// How blocks of files are compressed.
    pub codecs: Codecs,
    /// From which length on values lie apart from the tree; 0: none does.
    pub large_values: u32,
    /// Bytes at which a level aims ÷ those of the level above it.
    pub growth_factor: u32,
    /// An empty directory for all that the cluster keeps. The benchmark removes it at the end.
    pub dir: PathBuf,
}

/// Starts clusters.
pub trait Launcher {
    /// Creates and starts a cluster, and returns when every replica answers.
    ///
    /// # Errors
    /// The reason why it did not start; nothing runs then.
    fn start(&self, spec: &ClusterSpec) -> Result<Box<dyn RunningCluster>>;

    /// Whether the reservations of so many such clusters fit where their directory is or would be
    /// made. Makes nothing.
    ///
    /// # Errors
    /// No space, with the needed and the free bytes.
    fn check_room(&self, spec: &ClusterSpec, clusters: u32) -> Result<()>;

    /// The directory in whose file system clusters live when no other is named.
    fn data_dir(&self) -> PathBuf {
        PathBuf::from(".")
    }
}

/// A cluster that runs until it is dropped. The drop ends its processes and waits for their end.
pub trait RunningCluster {
    /// The RESP door of each replica, in the order of the chain: first the head.
    fn addresses(&self) -> Vec<SocketAddr>;
}

/// A directory that is removed, with its content, when this is dropped.
#[derive(Debug)]
pub(crate) struct ScratchDir(PathBuf);

impl ScratchDir {
    /// Makes a new directory under `parent`, which is made too if it is not there.
    pub(crate) fn new(parent: &Path) -> Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = parent.join(format!("gabion-bench-{}-{number}", std::process::id()));
        let failed = |error| {
            Error::with_source(ErrorKind::Io, format!("{}: cannot be made", path.display()), error)
        };
        std::fs::create_dir_all(parent).map_err(failed)?;
        std::fs::create_dir(&path).map_err(failed)?;
        Ok(Self(path))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Leaves it where it is.
    pub(crate) fn keep(self) -> PathBuf {
        let path = self.0.clone();
        std::mem::forget(self);
        path
    }
}

impl Drop for ScratchDir {
    fn drop(&mut self) {
        // The remains are named after this process, so a failure here is visible and harmless.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scratch_directory_goes_with_all_that_is_in_it() {
        let dir = ScratchDir::new(&std::env::temp_dir()).unwrap();
        let path = dir.path().to_path_buf();
        std::fs::write(path.join("pool"), b"x").unwrap();
        let other = ScratchDir::new(&std::env::temp_dir()).unwrap();
        assert_ne!(path, other.path());
        drop(dir);
        assert!(!path.exists());
        assert!(other.path().exists());
    }
}

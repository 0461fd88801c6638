//! The directory of a replica, `pool` and `ring`: making it, and opening what it holds.
//!
//! The pool is made under another name and gets its own when it is whole, so a `pool` that is there is
//! whole, and what an interrupted creation left is thrown away by the next one.

use crate::clock::Clock;
use crate::jobs::StoreParts;
use gabion_base::{Error, ErrorKind, ReplicaId, Result};
use gabion_fabric::lock::lock_exclusive;
use gabion_fabric::{BackendChoice, BlockingMedium, DirectIo, MappedRing, MediumOptions, PoolFile};
use gabion_node::{GroupConfig, LocalStore, Node, NodeOptions, open};
use gabion_pool::Trust;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The pool's file in a replica's directory.
pub fn pool_path(dir: &Path) -> PathBuf {
    dir.join("pool")
}

/// The ring's file in a replica's directory.
pub fn ring_path(dir: &Path) -> PathBuf {
    dir.join("ring")
}

/// What the pool is called until it is whole.
pub(crate) fn unfinished_path(dir: &Path) -> PathBuf {
    dir.join("pool.new")
}

/// A pool that is to be made; a number of bytes is one, whose I/O is carried out by what the kernel has.
#[derive(Clone, Copy, Debug)]
pub struct NewPool {
    /// Its bytes, all of which are reserved.
    pub len: u64,
    /// What carries out the I/O that makes it.
    pub io: BackendChoice,
}

impl From<u64> for NewPool {
    fn from(len: u64) -> Self {
        Self { len, io: BackendChoice::Auto }
    }
}

/// Makes a new replica in a directory, which is made if it is not there: a pool file, all of it reserved,
/// and the log's ring. The directory is locked meanwhile, so of several that make one there at
/// once one does, and no other touches its files.
///
/// # Durability
/// Survives a power cut when it returns.
///
/// # Errors
/// Invalid input when the directory holds a replica already or the configuration cannot work; busy while somebody else
/// makes one there; no space; I/O. Nothing that could be taken for a replica is left then.
pub fn create_replica(
    dir: &Path,
    new: impl Into<NewPool>,
    group: &GroupConfig,
    replica: ReplicaId,
) -> Result<()> {
    group.validate()?;
    std::fs::create_dir_all(dir).map_err(|e| failed(dir, "cannot be made", e))?;
    let _lock = lock_directory(dir, "a store is made there")?;
    if holds_replica(dir)? {
        return Err(Error::invalid(format!("{}: holds a replica already", dir.display())));
    }
    let unfinished = unfinished_path(dir);
    for left in [&unfinished, &ring_path(dir)] {
        match std::fs::remove_file(left) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(failed(left, "cannot be removed", error));
            }
            _ => {}
        }
    }
    let result = make_pool(dir, new.into(), group.ring_len, |medium, pool_id| {
        medium.block_on(open::create(medium.handle(), group, replica, pool_id))
    });
    if result.is_err() {
        // With what says that a flush of it failed.
        let mut mark = unfinished.clone().into_os_string();
        mark.push(".unflushed");
        for left in [unfinished, mark.into(), ring_path(dir)] {
            let _ = std::fs::remove_file(left);
        }
    }
    result
}

/// Makes a pool, which `fill` does, and its ring. The pool's name is its own once it is whole.
pub(crate) fn make_pool<T>(
    dir: &Path,
    new: NewPool,
    ring_len: u64,
    fill: impl FnOnce(&BlockingMedium, [u8; 16]) -> Result<T>,
) -> Result<T> {
    let unfinished = &unfinished_path(dir);
    gabion_fabric::preallocate(unfinished, new.len)?;
    let file = PoolFile::open(unfinished, DirectIo::Try)?;
    let options = MediumOptions { backend: new.io, notify: false, ..MediumOptions::default() };
    let medium = file.medium(options)?;
    let filled = fill(&BlockingMedium::new(medium), random_id()?)?;
    MappedRing::open(&ring_path(dir), ring_len as usize)?;
    std::fs::rename(unfinished, pool_path(dir))
        .map_err(|e| failed(unfinished, "cannot be renamed", e))?;
    if let Err(error) = sync_directory(dir) {
        // Its name may not last: nobody is to take for made what could not be.
        let _ = std::fs::remove_file(pool_path(dir));
        return Err(error);
    }
    Ok(filled)
}

/// Whether a directory has a pool that is whole.
///
/// # Errors
/// The system's, when it does not say.
pub(crate) fn holds_replica(dir: &Path) -> Result<bool> {
    let pool = pool_path(dir);
    pool.try_exists().map_err(|e| failed(&pool, "cannot be looked for", e))
}

/// Locks a directory until what is returned is dropped. `busy` says what whoever has the lock does.
///
/// # Errors
/// Busy; the system's, when the directory cannot be opened.
pub(crate) fn lock_directory(dir: &Path, busy: &str) -> Result<File> {
    let lock = File::open(dir).map_err(|e| failed(dir, "cannot be opened", e))?;
    lock_exclusive(&lock, dir).map_err(|e| e.within(busy))?;
    Ok(lock)
}

/// Makes the names in a directory last.
pub(crate) fn sync_directory(dir: &Path) -> Result<()> {
    let directory = File::open(dir).map_err(|e| failed(dir, "cannot be opened", e))?;
    directory.sync_all().map_err(|e| failed(dir, "cannot be flushed", e))
}

/// A replica that was opened, and what it was opened from.
pub struct OpenedReplica {
    /// The machine; it takes part in nothing yet.
    pub node: Box<Node>,
    /// The pool through [`Self::medium`].
    pub local: LocalStore,
    /// What each thread makes a store of its own from.
    pub parts: StoreParts,
    /// The medium of the thread that opened it.
    pub medium: BlockingMedium,
    /// The descriptor that says when the medium has results, for a loop that waits for several things.
    pub readiness: Option<i32>,
    /// What an operator should know: features that the system refused, a ring that was gone. A line each.
    pub remarks: Vec<String>,
}

/// Opens the replica in `dir`: lock, pool, ring, log. `check` sees the group's configuration and the
/// replica's number before the log is looked at, and may refuse them. From then on `clock` tells the time that the
/// replica goes by ([`Clock::open_at`]).
///
/// # Errors
/// Busy when another process has it; corruption with its place; unsupported for another format; what
/// `check` says; I/O.
pub fn open_replica(
    dir: &Path,
    io: BackendChoice,
    options: NodeOptions,
    clock: &Clock,
    check: impl FnOnce(&GroupConfig, ReplicaId) -> Result<()>,
) -> Result<OpenedReplica> {
    let path = pool_path(dir);
    let mut remarks = Vec::new();
    if !path.exists() && unfinished_path(dir).exists() {
        return Err(Error::not_found(format!(
            "{}: its pool is not whole, as what made it (a creation, a checkpoint) was interrupted; \
             nothing in it counts, the directory can be removed",
            dir.display()
        )));
    }
    let file = PoolFile::open(&path, DirectIo::Try)?;
    if let Some(refusal) = file.direct_refusal() {
        remarks.push(format!("{}: no direct I/O: {refusal}", path.display()));
    }
    let medium_options = MediumOptions { backend: io, ..MediumOptions::default() };
    let medium = file.medium(medium_options)?;
    if let Some(fallback) = medium.fallback() {
        remarks.push(format!("{}: no io_uring, threads instead: {fallback}", path.display()));
    }
    let readiness = medium.readiness_fd().map(|fd| fd.as_raw_fd());
    let medium = BlockingMedium::new(medium);
    let trust = if file.flush_had_failed() { Trust::Flushed } else { Trust::Readable };
    if trust == Trust::Flushed {
        remarks.push(format!(
            "{}: a flush had failed; what it may not have covered is written again",
            path.display()
        ));
    }
    let pool = medium.block_on(open::open_pool(medium.handle(), trust))?;
    check(&pool.group, pool.state.me)?;
    let ring_path = ring_path(dir);
    let ring = MappedRing::open(&ring_path, pool.group.ring_len as usize)?;
    if ring.was_created() {
        remarks.push(format!("{}: was gone; what only it held is lost here", ring_path.display()));
    }
    let local = pool.store();
    let parts = StoreParts {
        file,
        options: medium_options,
        geometry: local.geometry,
        pool_id: local.pool_id,
        group: local.group,
        buffers: Arc::default(),
    };
    medium.handle().count_buffers_by(parts.buffers.clone());
    let opening = pool.open_node(Box::new(ring), options, clock.now_ms());
    let (mut node, _) = medium.block_on(opening)?;
    remarks.extend(clock.open_at(node.tree().now_ms()));
    node.begin_at(clock.now_ms());
    parts.file.forget_failed_flush()?;
    Ok(OpenedReplica { node: Box::new(node), local, parts, medium, readiness, remarks })
}

/// Sixteen random bytes, for what must differ from all of its kind.
///
/// # Errors
/// The system's, when its source of randomness cannot be read.
pub fn random_id() -> Result<[u8; 16]> {
    let path = Path::new("/dev/urandom");
    let mut id = [0; 16];
    let mut file = File::open(path).map_err(|e| failed(path, "cannot be opened", e))?;
    file.read_exact(&mut id).map_err(|e| failed(path, "cannot be read", e))?;
    Ok(id)
}

/// An error of the system on a path.
pub(crate) fn failed(path: &Path, what: &str, error: io::Error) -> Error {
    let kind = match error.kind() {
        io::ErrorKind::NotFound => ErrorKind::NotFound,
        io::ErrorKind::StorageFull => ErrorKind::NoSpace,
        _ => ErrorKind::Io,
    };
    Error::with_source(kind, format!("{}: {what}", path.display()), error)
}

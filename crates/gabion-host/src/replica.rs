//! The directory of a replica, `pool` and `ring`: making it, and opening what it holds.
//!
//! ```text
//!   pool.new (labelled) ─► filled ─► ring.new (labelled) ─► ring ─► pool.new is renamed pool
//! ```
//!
//! The pool is made under another name and gets its own when it is whole, so a `pool` that is there
//! is whole, and what an interrupted creation left is thrown away by the next one: `owned.rs` says
//! how it is known.

use crate::clock::Clock;
use crate::jobs::StoreParts;
use crate::owned::{self, Owner, RingFile, find_ring, in_the_way, make_ring, new_ring_path, owner};
use gabion_base::{Error, ErrorKind, GroupId, ReplicaId, Result};
use gabion_engine::FileSource;
use gabion_fabric::file::remove_mark;
use gabion_fabric::fresh::{rename_new, sync_directory};
use gabion_fabric::lock::lock_exclusive;
use gabion_fabric::space::{Mark, preallocate_marked};
use gabion_fabric::{BackendChoice, BlockingMedium, DirectIo, MappedRing, MediumOptions, PoolFile};
use gabion_node::checkpoint::{Copied, Member, Origin};
use gabion_node::open::OpenedPool;
use gabion_node::{GroupConfig, LocalStore, Node, NodeOptions, checkpoint, open};
use gabion_pool::label::POOL_LABEL_AT;
use gabion_pool::{Label, PoolConfig, Purpose, Superblock, Trust};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use crate::owned::{check_pool, look_at_ring, ring_at_rest};

/// The pool's file in a replica's directory.
pub fn pool_path(dir: &Path) -> PathBuf {
    dir.join("pool")
}

/// The ring's file in a replica's directory.
pub fn ring_path(dir: &Path) -> PathBuf {
    dir.join("ring")
}

/// The file of probe writes in a replica's directory.
pub fn probe_path(dir: &Path) -> PathBuf {
    dir.join("probe")
}

/// What the pool is called until it is whole.
pub fn unfinished_path(dir: &Path) -> PathBuf {
    dir.join("pool.new")
}

/// A pool that is to be made; a number of bytes is one, whose I/O is carried out by what the kernel
/// has.
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

/// Makes a new replica in a directory, which is made if it is not there: a pool file, all of it
/// reserved, and the log's ring. The directory is locked meanwhile, so of several that make one
/// there at once one does, and no other touches its files.
///
/// What is there that is not Gabion's by its own bytes stays as it is, and so does a ring whose
/// pool is not here.
///
/// # Durability
/// Survives a power cut when it returns.
///
/// # Errors
/// Invalid input when the directory holds a replica already, something else has a name that is
/// needed, or the configuration cannot work; busy while somebody else makes one there; no space;
/// I/O. Nothing that could be taken for a replica is left then.
pub fn create_replica(
    dir: &Path,
    new: impl Into<NewPool>,
    group: &GroupConfig,
    replica: ReplicaId,
) -> Result<()> {
    make_replica(dir, new.into(), group, |medium, pool_id| {
        medium.block_on(open::create(medium.handle(), group, replica, pool_id))
    })
}

/// As [`create_replica`], for a group that takes writes with `members_min` full members.
///
/// # Durability
/// As [`create_replica`].
///
/// # Errors
/// As [`create_replica`]; also for fewer than one member, and for more than there are.
pub fn create_founder(
    dir: &Path,
    new: impl Into<NewPool>,
    group: &GroupConfig,
    members_min: u8,
    replica: ReplicaId,
) -> Result<()> {
    make_replica(dir, new.into(), group, |medium, pool_id| {
        medium.block_on(open::create_founder(medium.handle(), group, members_min, replica, pool_id))
    })
}

/// As [`create_replica`], for a replica that knows of no view: the group tells it one, and fills
/// it. It need be none of the founders.
///
/// # Durability
/// As [`create_replica`].
///
/// # Errors
/// As [`create_replica`].
pub fn create_joining(
    dir: &Path,
    new: impl Into<NewPool>,
    group: &GroupConfig,
    replica: ReplicaId,
) -> Result<()> {
    make_replica(dir, new.into(), group, |medium, pool_id| {
        medium.block_on(open::create_joining(medium.handle(), group, replica, pool_id))
    })
}

/// As [`create_replica`], for a replica that has what `origin` shows ([`checkpoint`]). `source` has
/// its files, and its reads must wait for nobody; `progress` gets the bytes of each.
///
/// # Durability
/// As [`create_replica`].
///
/// # Errors
/// As [`create_replica`]; corruption when a file is not what its description says.
pub fn create_member(
    dir: &Path,
    new: impl Into<NewPool>,
    origin: &Origin,
    member: &Member,
    source: &impl FileSource,
    progress: &mut dyn FnMut(u64),
) -> Result<Copied> {
    make_replica(dir, new.into(), member.group(), |medium, pool_id| {
        let handle = medium.handle();
        medium.block_on(checkpoint::write_member(handle, pool_id, origin, member, source, progress))
    })
}

fn make_replica<T>(
    dir: &Path,
    new: NewPool,
    group: &GroupConfig,
    fill: impl FnOnce(&BlockingMedium, [u8; 16]) -> Result<T>,
) -> Result<T> {
    group.validate()?;
    std::fs::create_dir_all(dir).map_err(|e| failed(dir, "cannot be made", e))?;
    let _lock = lock_directory(dir, "a store is made there")?;
    if holds_replica(dir)? {
        let pool = pool_path(dir);
        check_pool(&pool).map_err(|error| error.within("no store is made over what is there"))?;
        let what = if group.founders.len() == 1 { "store" } else { "replica" };
        return Err(Error::invalid(format!("{}: holds a {what} already", dir.display())));
    }
    clear_creation(dir)?;
    let result = make_pool(dir, new, group.ring_len, fill);
    if result.is_err() {
        // The next creation does it where this cannot.
        let _ = clear_creation(dir);
    }
    result
}

/// Removes what an interrupted creation left in a directory without a pool.
///
/// # Errors
/// Invalid input, and nothing is removed, when something there is not of one; I/O.
pub fn clear_creation(dir: &Path) -> Result<()> {
    let (pool, ring) = (unfinished_path(dir), ring_path(dir));
    let new_ring = new_ring_path(&ring);
    let mut left = Vec::new();
    let mut pool_id = None;
    match owner(&pool, Purpose::NewPool)? {
        Owner::Nobody => {}
        Owner::Gabion(label) => pool_id = Some(label.pool_id),
        Owner::Other(what) => return Err(in_the_way(&pool, &what)),
    }
    match owner(&ring, Purpose::Ring)? {
        Owner::Nobody => {}
        Owner::Gabion(label) if Some(label.pool_id) == pool_id => left.push(&ring),
        Owner::Gabion(label) => {
            return Err(Error::invalid(format!(
                "{}: is the ring of pool {}, which is not here, and may hold what that one has not; nothing was changed",
                ring.display(),
                owned::hex(&label.pool_id)
            )));
        }
        Owner::Other(what) => return Err(in_the_way(&ring, &what)),
    }
    match owner(&new_ring, Purpose::Ring)? {
        Owner::Nobody => {}
        Owner::Gabion(_) => left.push(&new_ring),
        Owner::Other(what) => return Err(in_the_way(&new_ring, &what)),
    }
    // The pool goes last: by it the ring is known.
    left.extend(pool_id.map(|_| &pool));
    left.into_iter().try_for_each(|path| owned::remove(path))?;
    remove_mark(&pool).map(drop)
}

/// Removes the files of a replica that nothing runs on from its directory: those that are Gabion's
/// by their own bytes. A ring of an earlier version, on which no later one ever ran, is not: it has
/// no label.
///
/// # Errors
/// I/O; the rest is removed by the next attempt.
pub fn remove_replica(dir: &Path) -> Result<()> {
    let (pool, unfinished, ring) = (pool_path(dir), unfinished_path(dir), ring_path(dir));
    // Links are the owner's, and what they lead to.
    if !pool.is_symlink() && check_pool(&pool).is_ok() {
        owned::remove(&pool)?;
    }
    let labelled = [
        (&unfinished, Purpose::NewPool),
        (&ring, Purpose::Ring),
        (&new_ring_path(&ring), Purpose::Ring),
    ];
    for (path, purpose) in labelled {
        if let Owner::Gabion(_) = owner(path, purpose)? {
            owned::remove(path)?;
        }
    }
    let probe = probe_path(dir);
    if matches!(owned::is_probe(&probe), Ok(true)) {
        owned::remove(&probe)?;
    }
    remove_mark(&pool)?;
    remove_mark(&unfinished).map(drop)
}

/// Makes a pool, which `fill` does, and its ring. The pool's name is its own once it is whole.
pub fn make_pool<T>(
    dir: &Path,
    new: NewPool,
    ring_len: u64,
    fill: impl FnOnce(&BlockingMedium, [u8; 16]) -> Result<T>,
) -> Result<T> {
    let (unfinished, whole) = (&unfinished_path(dir), &pool_path(dir));
    let pool_id = random_id()?;
    // Before anything is made of a length that no pool can have.
    Superblock::plan(&PoolConfig { pool_id, group: GroupId(1), len: new.len, region_id: 1 })?;
    let label = Label { purpose: Purpose::NewPool, pool_id, len: new.len, number: 0 }.encode();
    preallocate_marked(unfinished, new.len, Mark { at: POOL_LABEL_AT, bytes: &label })?;
    let file = PoolFile::open(unfinished, DirectIo::Try)?;
    let options = MediumOptions { backend: new.io, notify: false, ..MediumOptions::default() };
    let medium = file.medium(options)?;
    let filled = fill(&BlockingMedium::new(medium), pool_id)?;
    drop(file);
    make_ring(&ring_path(dir), pool_id, ring_len, 0)?;
    rename_new(unfinished, whole)?;
    if let Err(error) = sync_directory(dir) {
        // Its name may not last: nobody is to take for made what could not be.
        let _ = rename_new(whole, unfinished);
        return Err(error);
    }
    owned::unlabel_pool(whole);
    Ok(filled)
}

/// Whether something in a directory is called as a pool that is whole is.
///
/// # Errors
/// The system's, when it does not say.
pub fn holds_replica(dir: &Path) -> Result<bool> {
    let pool = pool_path(dir);
    match pool.symlink_metadata() {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(failed(&pool, "cannot be looked for", error)),
    }
}

/// Locks a directory until what is returned is dropped. `busy` says what whoever has the lock does.
///
/// # Errors
/// Busy; the system's, when the directory cannot be opened.
pub fn lock_directory(dir: &Path, busy: &str) -> Result<File> {
    let lock = File::open(dir).map_err(|e| failed(dir, "cannot be opened", e))?;
    lock_exclusive(&lock, dir).map_err(|e| e.within(busy))?;
    Ok(lock)
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
    /// The descriptor that says when the medium has results, for a loop that waits for several
    /// things.
    pub readiness: Option<i32>,
    /// What an operator should know: features that the system refused, a clock that is not
    /// believed. A line each.
    pub remarks: Vec<String>,
}

/// What is done about a ring that is gone, after a process that did not stop cleanly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LostRing {
    /// The replica starts and says what may be missing.
    GoOn,
    /// It does not start, and the ring can be brought back.
    Refuse,
}

/// Opens the ring of a pool, or makes one in place of one that is gone.
fn open_ring(
    path: &Path,
    pool: &mut OpenedPool,
    medium: &BlockingMedium,
    lost: LostRing,
) -> Result<MappedRing> {
    let (pool_id, len) = (pool.store().pool_id, pool.group.ring_len);
    let found = find_ring(path, pool, true)?;
    if let Some(why) = found.why_lost() {
        let number = pool.state.ring.number + 1;
        pool.replace_ring(why.to_owned(), number);
        let loss = medium.block_on(pool.ring_loss(Box::new(MappedRing::blank(len)?)))?;
        if let Some(loss) = loss.filter(|_| lost == LostRing::Refuse) {
            return Err(Error::corruption(format!(
                "{}: {loss}; if the ring lies elsewhere, bring it back, else open the store with \
                 `accept_lost_ring` to go on without",
                path.display()
            )));
        }
        if matches!(found, RingFile::Gone) {
            make_ring(path, pool_id, len, number)?;
        }
    }
    owned::map_ring(path, found, pool)
}

/// The files of a replica, locked: what stays while its node is closed and opened again. Nobody
/// else can open the replica before this and all media of its file are dropped.
pub struct ReplicaFiles {
    dir: PathBuf,
    file: PoolFile,
    options: MediumOptions,
}

impl ReplicaFiles {
    /// Locks the pool of the replica in `dir`.
    ///
    /// # Errors
    /// Busy when another process has it; not found for a pool that is not whole; unsupported for
    /// another format; I/O.
    pub fn lock(dir: &Path, io: BackendChoice) -> Result<Self> {
        let path = pool_path(dir);
        if !holds_replica(dir)?
            && matches!(owner(&unfinished_path(dir), Purpose::NewPool)?, Owner::Gabion(_))
        {
            return Err(Error::not_found(format!(
                "{}: its pool is not whole, as what made it (a creation, a checkpoint) was \
                 interrupted; nothing in it counts, the directory can be removed",
                dir.display()
            )));
        }
        check_pool(&path)?;
        let file = PoolFile::open(&path, DirectIo::Try)?;
        let options = MediumOptions { backend: io, ..MediumOptions::default() };
        Ok(Self { dir: dir.to_owned(), file, options })
    }

    /// Opens pool, ring and log. The replica takes part in nothing yet, and `clock` is told nothing
    /// of its time: [`Node::begin_at`] is to be called once that is known.
    ///
    /// # Errors
    /// As [`open_replica`]; busy while a medium of the files is left, whose writes could land
    /// beneath what is opened.
    pub fn open(
        &self,
        options: NodeOptions,
        lost: LostRing,
        clock: &Clock,
        check: impl FnOnce(&GroupConfig, ReplicaId) -> Result<()>,
    ) -> Result<OpenedReplica> {
        let file = self.file.clone();
        let path = file.path().to_owned();
        if self.file.has_medium() {
            let message = format!("{}: a medium of it is in use", path.display());
            return Err(Error::new(ErrorKind::Busy, message));
        }
        let mut remarks = Vec::new();
        if let Some(refusal) = file.direct_refusal() {
            remarks.push(format!("{}: no direct I/O: {refusal}", path.display()));
        }
        let medium = file.medium(self.options)?;
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
        let mut pool = medium.block_on(open::open_pool(medium.handle(), trust))?;
        check(&pool.group, pool.state.me)?;
        owned::unlabel_pool(&path);
        let ring = open_ring(&ring_path(&self.dir), &mut pool, &medium, lost)?;
        let local = pool.store();
        let parts = StoreParts {
            file,
            options: self.options,
            geometry: local.geometry.clone(),
            pool_id: local.pool_id,
            group: local.group,
            buffers: Arc::default(),
        };
        medium.handle().count_buffers_by(parts.buffers.clone());
        let opening = pool.open_node(Box::new(ring), options, clock.now_ms());
        let (node, _) = medium.block_on(opening)?;
        Ok(OpenedReplica { node: Box::new(node), local, parts, medium, readiness, remarks })
    }
}

/// Opens the replica in `dir`: lock, pool, ring, log. `check` sees the group's configuration and
/// the replica's number before the log is looked at, and may refuse them. From then on `clock`
/// tells the time that the replica goes by ([`Clock::open_at`]).
///
/// # Errors
/// Busy when another process has it; corruption with its place, and for a ring that is gone where
/// that is refused; invalid input for what is not its ring; unsupported for another format; what
/// `check` says; I/O.
pub fn open_replica(
    dir: &Path,
    io: BackendChoice,
    options: NodeOptions,
    lost: LostRing,
    clock: &Clock,
    check: impl FnOnce(&GroupConfig, ReplicaId) -> Result<()>,
) -> Result<OpenedReplica> {
    let mut opened = ReplicaFiles::lock(dir, io)?.open(options, lost, clock, check)?;
    opened.remarks.extend(clock.open_at(opened.node.tree().now_ms()));
    opened.node.begin_at(clock.now_ms());
    opened.remarks.extend(opened.parts.file.forget_failed_flush()?);
    Ok(opened)
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
pub fn failed(path: &Path, what: &str, error: io::Error) -> Error {
    let kind = match error.kind() {
        io::ErrorKind::NotFound => ErrorKind::NotFound,
        io::ErrorKind::StorageFull => ErrorKind::NoSpace,
        _ => ErrorKind::Io,
    };
    Error::with_source(kind, format!("{}: {what}", path.display()), error)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that meets an error has failed")]
mod tests {
    use super::*;
    use gabion_base::units::MIB;
    use gabion_engine::TreeConfig;
    use gabion_node::{AckLevel, CompactionMode};

    #[test]
    fn locked_files_are_read_again_once_no_medium_of_before_can_write_to_them() {
        let dir = std::env::temp_dir().join(format!("gabion-host-files-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        let group = GroupConfig {
            group: GroupId(7),
            founders: vec![ReplicaId(1)],
            compaction: CompactionMode::Primary,
            ack: AckLevel::Replicated,
            ring_len: 4 * MIB,
            segment_len: MIB,
            tree: TreeConfig { memtable_len: MIB, ..TreeConfig::default() },
        };
        create_replica(&dir, 64 * MIB, &group, ReplicaId(1)).unwrap();
        let clock = Clock::start();
        let files = ReplicaFiles::lock(&dir, BackendChoice::Threads).unwrap();
        let open = || files.open(NodeOptions::default(), LostRing::Refuse, &clock, |_, _| Ok(()));
        let mut opened = open().unwrap();
        let busy = |error: Option<Error>| error.map(|error| error.kind());
        assert_eq!(busy(open().err()), Some(ErrorKind::Busy), "its medium could still write");
        let medium = opened.parts.blocking().unwrap();
        opened.node.begin_at(clock.now_ms());
        opened.node.advance(clock.now_ms());
        let end = opened.node.log_end();
        drop(opened);
        assert_eq!(busy(open().err()), Some(ErrorKind::Busy), "that of a thread could");
        drop(medium);
        let lock = || ReplicaFiles::lock(&dir, BackendChoice::Threads);
        assert_eq!(busy(lock().err()), Some(ErrorKind::Busy), "the lock stays meanwhile");
        assert_eq!(open().unwrap().node.log_end(), end);
        drop(files);
        // Threads of the last medium may have their descriptor a moment longer.
        let begun = std::time::Instant::now();
        while let Err(error) = lock() {
            assert!(begun.elapsed() < std::time::Duration::from_secs(30), "{error}");
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        let _ = std::fs::remove_dir_all(&dir);
    }

    #[test]
    fn founders_know_how_many_they_need_and_one_that_joins_knows_of_no_view() {
        let dir = std::env::temp_dir().join(format!("gabion-host-made-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        let group = GroupConfig {
            group: GroupId(7),
            founders: (1..=3).map(ReplicaId).collect(),
            compaction: CompactionMode::Primary,
            ack: AckLevel::Replicated,
            ring_len: 4 * MIB,
            segment_len: MIB,
            tree: TreeConfig { memtable_len: MIB, ..TreeConfig::default() },
        };
        for (members_min, replica, part) in [
            (0, 1, "0 members take writes in a group of 3"),
            (4, 1, "4 members take writes in a group of 3"),
            (2, 4, "is no member"),
        ] {
            let made = create_founder(&dir, 64 * MIB, &group, members_min, ReplicaId(replica));
            let error = made.unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
            assert!(!holds_replica(&dir).unwrap());
        }
        let (founder, joining) = (dir.join("1"), dir.join("4"));
        create_founder(&founder, 64 * MIB, &group, 2, ReplicaId(1)).unwrap();
        create_joining(&joining, 64 * MIB, &group, ReplicaId(4)).unwrap();
        let clock = Clock::start();
        let view = |dir: &Path| {
            let files = ReplicaFiles::lock(dir, BackendChoice::Threads).unwrap();
            let opened =
                files.open(NodeOptions::default(), LostRing::Refuse, &clock, |_, _| Ok(()));
            let view = opened.unwrap().node.view().group().clone();
            (view.config.get(), view.members_min)
        };
        assert_eq!((view(&founder), view(&joining).0), ((1, 2), 0));
        let _ = std::fs::remove_dir_all(&dir);
    }
}

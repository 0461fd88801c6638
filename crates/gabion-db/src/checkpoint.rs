//! A consistent copy of a store, made while it is in use or of a replica at rest: a directory of
//! its own that opens as a store.
//!
//! ```text
//!   DIR.tmp (locked)  checkpoint.unfinished
//!                     pool.new ◄── files, then what is in memory; read back; superblock last
//!                     ring         │
//!                     pool ◄───────┘ rename
//!   DIR ◄── rename, once all of it is flushed
//! ```
//!
//! So a `DIR` that is there is whole. An interrupted checkpoint leaves `DIR.tmp`, whose pool has a
//! name that nothing opens; the next checkpoint into `DIR` removes it. It knows the directory by
//! `checkpoint.unfinished`, which is there before the directory is called `DIR.tmp`, and by the
//! labels of its files (`owned.rs`). For the new pool's files and tree see
//! [`gabion_node::checkpoint`].

use crate::Db;
use gabion_base::{Error, ErrorKind, Result};
use gabion_engine::FileSource;
use gabion_fabric::file::remove_mark;
use gabion_fabric::fresh::{NewFile, directory_of, new_directory, rename_new, sync_directory};
use gabion_host::owned::{self, Owner, in_the_way, new_ring_path, owner};
use gabion_host::replica::{
    NewPool, failed, lock_directory, make_pool, pool_path, ring_path, unfinished_path,
};
use gabion_node::checkpoint;
pub use gabion_node::checkpoint::{Copied, Origin};
use gabion_pool::{Label, Purpose};
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

impl Db {
    /// Makes a copy of the store in `dir`, which must not be there. The copy is a store of its own
    /// with a pool of the same length, all reserved; [`Db::open`] opens it. It holds all writes
    /// that had returned before the call, and none that began after it; of each batch all or
    /// nothing.
    ///
    /// Reads and writes go on meanwhile and wait for nothing. Works on a store that is full, or
    /// that has failed. Files that compactions replace meanwhile keep their slots until the copy is
    /// made, as with a [`crate::Snapshot`]. Costs reading each file once, writing it, and reading
    /// the copy back.
    ///
    /// # Durability
    /// Survives a power cut when it returns. After a kill before that there is no `dir`, but
    /// perhaps `dir.tmp`: it does not open, and the next checkpoint into `dir` removes it.
    ///
    /// # Errors
    /// Invalid input when `dir` is there; busy while another checkpoint into `dir` goes on; no
    /// space, naming the bytes wanted; corruption when a file of the store differs from its
    /// checksums. Nothing is left then.
    ///
    /// ```
    /// # use gabion_db::{Db, Options};
    /// # let dir = std::env::temp_dir().join(format!("gabion-db-copy-{}", std::process::id()));
    /// # let _ = std::fs::remove_dir_all(&dir);
    /// # let options = Options { pool_len: 128 << 20, ..Options::default() };
    /// # let db = Db::create(&dir.join("store"), &options)?;
    /// db.put(b"stone", b"grey")?;
    /// db.checkpoint(&dir.join("copy"))?;
    /// db.put(b"stone", b"red")?;
    /// let copy = Db::open(&dir.join("copy"), &options)?;
    /// assert_eq!(copy.get(b"stone")?.as_deref(), Some(&b"grey"[..]));
    /// # drop((db, copy));
    /// # std::fs::remove_dir_all(&dir).unwrap();
    /// # Ok::<(), gabion_base::Error>(())
    /// ```
    pub fn checkpoint(&self, dir: impl AsRef<Path>) -> Result<Copied> {
        self.checkpoint_into(dir.as_ref(), None, &mut |_, _| {})
    }

    /// As [`Self::checkpoint`], into a pool of `pool_len` bytes: it moves a store that is full, or
    /// was made too large, into another pool. Costs the same, and reserves `pool_len` bytes of the
    /// file system.
    ///
    /// # Durability
    /// As [`Self::checkpoint`].
    ///
    /// # Errors
    /// As [`Self::checkpoint`]; limit exceeded for a length that no pool can have.
    pub fn checkpoint_sized(&self, dir: impl AsRef<Path>, pool_len: u64) -> Result<Copied> {
        self.checkpoint_into(dir.as_ref(), Some(pool_len), &mut |_, _| {})
    }

    /// As [`Self::checkpoint`], or [`Self::checkpoint_sized`] with a `pool_len`, for callers that
    /// show progress. `progress` gets the bytes of files in the copy so far and in the end, before
    /// the first file is copied and after each. When both are the same, the MemTables still have to
    /// be written and everything to be read back, which takes no longer than copying did.
    ///
    /// # Durability
    /// As [`Self::checkpoint`].
    ///
    /// # Errors
    /// As [`Self::checkpoint_sized`].
    pub fn checkpoint_with(
        &self,
        dir: impl AsRef<Path>,
        pool_len: Option<u64>,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Copied> {
        self.checkpoint_into(dir.as_ref(), pool_len, progress)
    }

    fn checkpoint_into(
        &self,
        dir: &Path,
        pool_len: Option<u64>,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Copied> {
        self.shared().check_process()?;
        // The readers' view: whole writes only, and every acknowledged one.
        let snapshot = self.snapshot();
        let (group, view_then) = {
            let core = self.lock();
            (core.node.config().clone(), core.node.state().view.clone())
        };
        let pool_len = pool_len.unwrap_or_else(|| self.shared().placements.file.len());
        let origin = Origin { view: snapshot.view.clone(), group, view_then };
        let (mut done, total) = (0, origin.file_bytes()?);
        progress(done, total);
        let mut step = |bytes| {
            done += bytes;
            progress(done, total);
        };
        let pool = NewPool { len: pool_len, io: self.shared().placements.options.backend };
        write(dir, pool, &origin, &snapshot.tables.source, &mut step)
    }
}

/// Makes a checkpoint in `dir`, with such a pool. `source` has the files of the view, and its reads
/// must not wait for anybody else. `progress` gets the bytes of each copied file. Costs the same as
/// [`Db::checkpoint`], on the calling thread.
///
/// # Durability
/// As [`Db::checkpoint`].
///
/// # Errors
/// As [`Db::checkpoint`].
pub fn write(
    dir: &Path,
    pool: impl Into<NewPool>,
    origin: &Origin,
    source: &impl FileSource,
    progress: &mut dyn FnMut(u64),
) -> Result<Copied> {
    let unfinished = Unfinished::take(dir)?;
    let ring_len = origin.group.ring_len;
    let made = make_pool(&unfinished.path, pool.into(), ring_len, |medium, pool_id| {
        let handle = medium.handle();
        medium.block_on(checkpoint::write(handle, pool_id, origin, source, progress))
    });
    let kept = made.and_then(|copied| unfinished.keep(dir).map(|()| copied));
    kept.inspect_err(|_| unfinished.discard())
}

/// The mark of a directory in which a checkpoint is made.
fn mark_path(dir: &Path) -> PathBuf {
    dir.join("checkpoint.unfinished")
}

/// The directory that becomes the copy. Locked until it has.
struct Unfinished {
    path: PathBuf,
    _lock: File,
}

impl Unfinished {
    fn take(dir: &Path) -> Result<Self> {
        if dir.symlink_metadata().is_ok() {
            return Err(Error::invalid(format!(
                "{}: is there already; a checkpoint makes a directory of its own",
                dir.display()
            )));
        }
        let Some(name) = dir.file_name() else {
            return Err(Error::invalid(format!("{}: names no directory", dir.display())));
        };
        let mut name = name.to_owned();
        name.push(".tmp");
        let path = dir.with_file_name(name);
        if path.symlink_metadata().is_err() {
            make_marked(&path)?;
        }
        if path.is_symlink() || !path.is_dir() {
            return Err(in_the_way(&path, "a checkpoint makes a directory of that name"));
        }
        let busy = "another checkpoint is made there";
        let lock = lock_directory(&path, busy)?;
        // An earlier holder of the lock may have renamed or removed the directory.
        let inode = |data: io::Result<std::fs::Metadata>| data.ok().map(|data| data.ino());
        if inode(path.symlink_metadata()) != inode(lock.metadata()) {
            return Err(Error::new(
                ErrorKind::Busy,
                format!("{}: {busy}, or was until now", path.display()),
            ));
        }
        let unfinished = Self { path, _lock: lock };
        unfinished.clear()?;
        Ok(unfinished)
    }

    /// Removes the remains of an interrupted checkpoint, all but the mark.
    ///
    /// # Errors
    /// Invalid input, and nothing is removed, when something there is none of that: a store of that
    /// name for one.
    fn clear(&self) -> Result<()> {
        let mark = mark_path(&self.path);
        match owner(&mark, Purpose::Checkpoint)? {
            Owner::Gabion(_) => {}
            Owner::Nobody => return Err(in_the_way(&self.path, "no checkpoint left it")),
            Owner::Other(what) => return Err(in_the_way(&mark, &what)),
        }
        let io = |e| failed(&self.path, "cannot be read", e);
        let mut files = Vec::new();
        for entry in std::fs::read_dir(&self.path).map_err(io)? {
            let path = entry.map_err(io)?.path();
            if path != mark && self.is_left(&path)? {
                files.push(path);
            }
        }
        files.iter().try_for_each(|path| owned::remove(path))?;
        remove_mark(&unfinished_path(&self.path)).map(drop)
    }

    /// Whether a checkpoint left a file in its directory; false for the mark of a failed flush.
    ///
    /// # Errors
    /// Invalid input for a file that no checkpoint left.
    fn is_left(&self, path: &Path) -> Result<bool> {
        let (pool, ring) = (pool_path(&self.path), ring_path(&self.path));
        let unfinished = unfinished_path(&self.path);
        let purpose = match path {
            // As long as a checkpoint's directory has this name, its pool has its label; it loses
            // it last of all.
            path if path == pool => return owned::check_pool(path).map(|()| true),
            path if path == unfinished => Purpose::NewPool,
            path if path == ring || path == new_ring_path(&ring) => Purpose::Ring,
            path if path.extension().is_some_and(|end| end == "unflushed") => return Ok(false),
            path => match nameless(path) {
                Some(_) if path.metadata().is_ok_and(|data| data.len() == 0) => return Ok(true),
                Some(purpose) => purpose,
                None => return Err(in_the_way(path, "no checkpoint left it")),
            },
        };
        match owner(path, purpose)? {
            Owner::Nobody => Ok(false),
            Owner::Gabion(_) => Ok(true),
            Owner::Other(what) => Err(in_the_way(path, &what)),
        }
    }

    /// Gives the directory its name, and makes the name last. If that fails, it gets its former
    /// name back, so that it can be discarded.
    fn keep(&self, dir: &Path) -> Result<()> {
        rename_new(&self.path, dir)?;
        if let Err(error) = sync_directory(directory_of(dir)) {
            let _ = rename_new(dir, &self.path);
            return Err(error);
        }
        // It does no harm if a kill leaves it.
        let _ = std::fs::remove_file(mark_path(dir));
        Ok(())
    }

    /// Removes the copy, which would keep its space otherwise.
    fn discard(&self) {
        if self.clear().is_ok() {
            discard_marked(&self.path);
        }
    }
}

/// The purpose of a file that had no name of its own yet when a kill came: see
/// [`gabion_fabric::fresh`].
fn nameless(path: &Path) -> Option<Purpose> {
    let name = path.file_name()?.to_str()?.strip_suffix(".new")?;
    match name {
        name if name.starts_with("pool.new.") => Some(Purpose::NewPool),
        name if name.starts_with("ring.new.") => Some(Purpose::Ring),
        _ => None,
    }
}

/// Makes a directory that is marked as a checkpoint's before it has its name.
fn make_marked(path: &Path) -> Result<()> {
    let new = new_directory(path)?;
    let label = Label { purpose: Purpose::Checkpoint, pool_id: [0; 16], len: 0, number: 0 };
    let named =
        NewFile::write(&mark_path(&new), &label.encode()).and_then(|_| rename_new(&new, path));
    named.inspect_err(|_| {
        let _ = std::fs::remove_file(mark_path(&new));
        let _ = std::fs::remove_dir(&new);
    })
}

/// Removes a directory that holds its mark alone. The directory loses its name first: an empty one
/// could be anybody's.
fn discard_marked(path: &Path) {
    let discard = || -> Result<()> {
        let other = new_directory(path)?;
        // The rename replaces an empty directory, and this one is our own.
        std::fs::rename(path, &other).map_err(|e| failed(path, "cannot be renamed", e))?;
        owned::remove(&mark_path(&other))?;
        std::fs::remove_dir(&other).map_err(|e| failed(&other, "cannot be removed", e))
    };
    let _ = discard();
}

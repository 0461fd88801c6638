//! Whose the files are that have the names of a replica's: what is not Gabion's by its own bytes is
//! neither written nor removed, and is named by an error.
//!
//! | name | is ours by |
//! | --- | --- |
//! | `pool` | its superblock |
//! | `pool.new` | the [label](gabion_pool::label) in its block 2, until it is called `pool` |
//! | `ring`, `ring.new` | the label behind its bytes |
//! | `checkpoint.unfinished` | the label that it is |
//! | `probe` | the words with which it begins |
//!
//! A ring that an earlier version made has no label: a whole record of the group's log in it will
//! do, and it gets one.

use crate::replica::failed;
use gabion_base::units::BLOCK_LEN;
use gabion_base::{Error, Result};
use gabion_fabric::fresh::{Named, directory_of, named, rename_new, sync_directory};
use gabion_fabric::space::Mark;
use gabion_fabric::{MappedRing, space};
use gabion_node::open::OpenedPool;
use gabion_pool::label::POOL_LABEL_AT;
use gabion_pool::superblock::SUPERBLOCK_MAGIC;
use gabion_pool::{Label, PoolId, Purpose};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

const BLOCK: u64 = BLOCK_LEN as u64;

/// Whose something is.
pub enum Owner {
    /// There is nothing.
    Nobody,
    /// Gabion's, for such a purpose.
    Gabion(Label),
    /// Somebody else's; what it is, in words.
    Other(String),
}

/// Whose the file of such a purpose is that has a name.
///
/// # Errors
/// The system's.
pub fn owner(path: &Path, purpose: Purpose) -> Result<Owner> {
    let file = match named(path)? {
        Named::Nothing => return Ok(Owner::Nobody),
        Named::Other(what) => return Ok(Owner::Other(what.to_owned())),
        Named::File(file) => file,
    };
    let len = file.metadata().map_err(|e| failed(path, "has no length", e))?.len();
    Ok(match label_of(&file, path, len, purpose)? {
        Some(label) => Owner::Gabion(label),
        None => Owner::Other(content(len)),
    })
}

/// The words with which the file of a replica's probe writes begins, whatever is behind them.
pub const PROBE_WORDS: &[u8] = b"gabion probe: this block is written again and again\n";

/// Whether a file of that name is that of probe writes; false where there is none.
///
/// # Errors
/// Invalid input when it is somebody else's; the system's.
pub fn is_probe(path: &Path) -> Result<bool> {
    let file = match named(path)? {
        Named::Nothing => return Ok(false),
        Named::Other(what) => return Err(in_the_way(path, what)),
        Named::File(file) => file,
    };
    let mut words = [0; PROBE_WORDS.len()];
    match file.read_exact_at(&mut words, 0) {
        Ok(()) if words == PROBE_WORDS => Ok(true),
        Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => {
            Err(failed(path, "cannot be read", error))
        }
        _ => {
            let len = file.metadata().map_err(|e| failed(path, "has no length", e))?.len();
            Err(in_the_way(path, &content(len)))
        }
    }
}

/// The label of a file, if it has one of such a purpose.
fn label_of(file: &File, path: &Path, len: u64, purpose: Purpose) -> Result<Option<Label>> {
    let at = match purpose {
        Purpose::NewPool => POOL_LABEL_AT,
        Purpose::Ring => len.saturating_sub(BLOCK),
        Purpose::Checkpoint => 0,
    };
    let mut block = vec![0; BLOCK_LEN];
    match file.read_exact_at(&mut block, at) {
        Ok(()) => Ok(Label::decode(&block).filter(|label| label.purpose == purpose)),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
        Err(error) => Err(failed(path, "cannot be read", error)),
    }
}

fn content(len: u64) -> String {
    match len {
        0 => "an empty file".to_owned(),
        1 => "a file of 1 byte".to_owned(),
        len => format!("a file of {len} bytes"),
    }
}

/// The error where something stands in the way of what is to be made.
pub fn in_the_way(path: &Path, what: &str) -> Error {
    Error::invalid(format!(
        "{}: is in the way, and is not Gabion's ({what}); nothing was changed",
        path.display()
    ))
}

/// What is wrong with a file that is to be a pool, as far as it begins; nothing where it may be
/// one.
///
/// # Errors
/// Not found when there is nothing, or something that is no pool: its length, and what was
/// expected.
pub fn check_pool(path: &Path) -> Result<()> {
    let not_ours = |what: &str| {
        Err(Error::not_found(format!("{}: is not a Gabion pool: {what}", path.display())))
    };
    // A link is followed: a pool may lie elsewhere, on a device too, which is for whoever opens it
    // to judge.
    let file = match std::fs::canonicalize(path).map(|path| named(&path)) {
        Err(error) if path.is_symlink() && error.kind() == io::ErrorKind::NotFound => {
            return not_ours("it is a symbolic link that leads nowhere");
        }
        Err(error) => return Err(failed(path, "cannot be opened", error)),
        Ok(found) => match found? {
            Named::Nothing => return Err(failed(path, "is gone", io::ErrorKind::NotFound.into())),
            Named::Other("a device") => return Ok(()),
            Named::Other(what) => return not_ours(&format!("it is {what}")),
            Named::File(file) => file,
        },
    };
    let len = file.metadata().map_err(|e| failed(path, "has no length", e))?.len();
    let begins = |at| {
        let mut magic = [0; SUPERBLOCK_MAGIC.len()];
        file.read_exact_at(&mut magic, at).is_ok_and(|()| magic == SUPERBLOCK_MAGIC)
    };
    // Of a pool one copy may be damaged, or both further on: that is told with its place.
    if begins(0) || begins(BLOCK) {
        return Ok(());
    }
    not_ours(&format!(
        "it is {}, and neither its first block of {BLOCK} bytes nor its second begins with `GABPOOL`",
        content(len)
    ))
}

/// Says that the pool at a path is made: it needs its label no more. Where that cannot be written
/// it harms nobody: under its own name a pool is whole.
pub fn unlabel_pool(path: &Path) {
    let unlabel = || -> io::Result<()> {
        let file = File::options().read(true).write(true).open(path)?;
        let mut block = [0; BLOCK_LEN];
        file.read_exact_at(&mut block, POOL_LABEL_AT)?;
        if Label::decode(&block).is_some() {
            file.write_all_at(&[0; BLOCK_LEN], POOL_LABEL_AT)?;
            file.sync_data()?;
        }
        Ok(())
    };
    let _ = unlabel();
}

/// What a ring is called until all of it is reserved.
pub fn new_ring_path(ring: &Path) -> PathBuf {
    ring.with_file_name("ring.new")
}

/// Makes the ring of a pool, of zeros, with its number.
///
/// # Errors
/// Invalid input when something is in the way; no space; I/O.
pub fn make_ring(path: &Path, pool_id: PoolId, len: u64, number: u64) -> Result<()> {
    let new = new_ring_path(path);
    // One that is being made holds nothing, whoever's it was to be.
    match owner(&new, Purpose::Ring)? {
        Owner::Nobody => {}
        Owner::Gabion(_) => remove(&new)?,
        Owner::Other(what) => return Err(in_the_way(&new, &what)),
    }
    let label = Label { purpose: Purpose::Ring, pool_id, len, number }.encode();
    space::preallocate_marked(&new, len + BLOCK, Mark { at: len, bytes: &label })?;
    rename_new(&new, path).inspect_err(|_| {
        let _ = std::fs::remove_file(&new);
    })?;
    sync_directory(directory_of(path))
}

/// Removes a file of which it is known that it is ours.
pub fn remove(path: &Path) -> Result<()> {
    std::fs::remove_file(path).map_err(|e| failed(path, "cannot be removed", e))
}

/// What lies where the ring of a pool should.
pub enum RingFile {
    /// The ring.
    Whole(File),
    /// The ring of an earlier build, which has no label yet.
    Unlabelled(File),
    /// One that a start made in place of one that was lost, and that did not come to its end. It
    /// holds nothing.
    Begun(File),
    /// Nothing.
    Gone,
}

impl RingFile {
    /// Why the ring is lost, in words that follow "its ring".
    pub const fn why_lost(&self) -> Option<&'static str> {
        match self {
            Self::Whole(_) | Self::Unlabelled(_) => None,
            Self::Begun(_) => Some("was lost before a start that was interrupted"),
            Self::Gone => Some("is missing"),
        }
    }
}

/// Maps the ring of a pool for a replica that runs. One of an earlier build gets its label.
///
/// # Errors
/// I/O.
pub fn map_ring(path: &Path, found: RingFile, pool: &OpenedPool) -> Result<MappedRing> {
    let (pool_id, len) = (pool.store().pool_id, pool.group.ring_len);
    let file = match found {
        RingFile::Whole(file) | RingFile::Begun(file) => file,
        RingFile::Gone => {
            let made = File::options().read(true).write(true).open(path);
            made.map_err(|e| failed(path, "cannot be opened", e))?
        }
        RingFile::Unlabelled(file) => {
            let label = Label { purpose: Purpose::Ring, pool_id, len, number: 0 };
            file.write_all_at(&label.encode(), len)
                .and_then(|()| file.sync_all())
                .map_err(|e| failed(path, "cannot be labelled", e))?;
            file
        }
    };
    MappedRing::map(&file, path, len)
}

/// Looks for the ring of a pool at a path and tells the pool where it is lost, as a start would:
/// for tools that look at a replica. Nothing is changed.
pub fn look_at_ring(path: &Path, pool: &mut OpenedPool) {
    // What is not the ring is told by whoever wants to read it.
    if let Ok(found) = find_ring(path, pool, false)
        && let Some(why) = found.why_lost()
    {
        let number = pool.state.ring.number;
        pool.replace_ring(why.to_owned(), number);
    }
}

/// The ring of a pool at rest that was looked at, of which nothing is changed; zeros where it is
/// lost.
///
/// # Errors
/// Invalid input when what has the name is not the pool's ring; I/O.
pub fn ring_at_rest(path: &Path, pool: &OpenedPool) -> Result<MappedRing> {
    let len = pool.group.ring_len;
    match find_ring(path, pool, false)? {
        RingFile::Whole(file) | RingFile::Unlabelled(file) => {
            MappedRing::map_private(&file, path, len)
        }
        RingFile::Begun(_) | RingFile::Gone => MappedRing::blank(len),
    }
}

/// What a pool knows of its ring, for an error about what lies in its place.
fn without_it(pool: &OpenedPool) -> String {
    match pool.state.ring.stopped {
        Some(stopped) => format!(
            "It had stopped cleanly, with the log flushed up to {stopped}: move this away, and nothing is lost"
        ),
        None => "It had not stopped cleanly, so its ring may hold what nothing else does: bring that back, or move this \
                 away to go on without"
            .to_owned(),
    }
}

/// The file of a pool's ring.
///
/// # Errors
/// Invalid input when what has the name is not the pool's ring: it stays as it is; I/O.
pub fn find_ring(path: &Path, pool: &OpenedPool, to_write: bool) -> Result<RingFile> {
    let not_ours = |what: &str| {
        Error::invalid(format!(
            "{}: is not the ring of this pool: {what}; nothing was changed. {}",
            path.display(),
            without_it(pool)
        ))
    };
    if matches!(named(path)?, Named::Nothing) {
        return Ok(RingFile::Gone);
    }
    let place = std::fs::canonicalize(path);
    if path.is_symlink() && place.is_err() {
        return Err(not_ours("it is a symbolic link that leads nowhere"));
    }
    let place = place.map_err(|e| failed(path, "is missing", e))?;
    match named(&place)? {
        Named::Nothing => return Ok(RingFile::Gone),
        Named::Other(what) => return Err(not_ours(&format!("it is {what}"))),
        Named::File(_) => {}
    }
    let file = File::options().read(true).write(to_write).open(&place);
    let file = file.map_err(|e| failed(path, "cannot be opened", e))?;
    let found = file.metadata().map_err(|e| failed(path, "has no length", e))?.len();
    let (len, pool_id, number) =
        (pool.group.ring_len, pool.store().pool_id, pool.state.ring.number);
    match label_of(&file, path, found, Purpose::Ring)? {
        Some(label) if (label.pool_id, label.len, found) == (pool_id, len, len + BLOCK) => {
            match label.number {
                found if found == number => Ok(RingFile::Whole(file)),
                found if found == number + 1 => Ok(RingFile::Begun(file)),
                found => Err(not_ours(&format!(
                    "it is ring {found} of the pool, which has had ring {number} since"
                ))),
            }
        }
        Some(label) => Err(not_ours(&format!(
            "its {} bytes belong to pool {}, this is pool {} with a ring of {len}",
            label.len,
            hex(&label.pool_id),
            hex(&pool_id)
        ))),
        // The label of one that is only now getting it may be there in part.
        None if number == 0
            && [len, len + BLOCK].contains(&found)
            && pool.knows_ring(&MappedRing::map_private(&file, path, len)?) =>
        {
            Ok(RingFile::Unlabelled(file))
        }
        None => Err(not_ours(&format!("it is {}, and not labelled as Gabion's", content(found)))),
    }
}

pub(crate) fn hex(pool_id: &PoolId) -> String {
    pool_id.iter().map(|byte| format!("{byte:02x}")).collect()
}

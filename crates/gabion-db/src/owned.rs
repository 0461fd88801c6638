//! Whose the files are that have the names of a replica's: what is not Gabion's by its own bytes is neither written nor
//! removed, and is named by an error.
//!
//! | name | is ours by |
//! | --- | --- |
//! | `pool` | its superblock |
//! | `pool.new` | the [label](gabion_pool::label) in its block 2, until it is called `pool` |
//! | `ring`, `ring.new` | the label behind its bytes |
//! | `checkpoint.unfinished` | the label that it is |
//!
//! A ring that an earlier version made has no label: a whole record of the group's log in it will do, and it gets one.

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
pub(crate) enum Owner {
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
pub(crate) fn owner(path: &Path, purpose: Purpose) -> Result<Owner> {
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
pub(crate) fn in_the_way(path: &Path, what: &str) -> Error {
    Error::invalid(format!(
        "{}: is in the way, and is not Gabion's ({what}); nothing was changed",
        path.display()
    ))
}

/// What is wrong with a file that is to be a pool, as far as it begins; nothing where it may be one.
///
/// # Errors
/// Not found when there is nothing, or something that is no pool: its length, and what was expected.
pub fn check_pool(path: &Path) -> Result<()> {
    let not_ours = |what: &str| {
        Err(Error::not_found(format!("{}: is not a Gabion pool: {what}", path.display())))
    };
    // A link is followed: a pool may lie elsewhere, on a device too, which is for whoever opens it to judge.
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

/// Says that the pool at a path is made: it needs its label no more. Where that cannot be written it harms nobody: under
/// its own name a pool is whole.
pub(crate) fn unlabel_pool(path: &Path) {
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
pub(crate) fn new_ring_path(ring: &Path) -> PathBuf {
    ring.with_file_name("ring.new")
}

/// Makes the ring of a pool, of zeros.
///
/// # Errors
/// Invalid input when something is in the way; no space; I/O.
pub(crate) fn make_ring(path: &Path, pool_id: PoolId, len: u64) -> Result<()> {
    let new = new_ring_path(path);
    // One that is being made holds nothing, whoever's it was to be.
    match owner(&new, Purpose::Ring)? {
        Owner::Nobody => {}
        Owner::Gabion(_) => remove(&new)?,
        Owner::Other(what) => return Err(in_the_way(&new, &what)),
    }
    let label = Label { purpose: Purpose::Ring, pool_id, len }.encode();
    space::preallocate_marked(&new, len + BLOCK, Mark { at: len, bytes: &label })?;
    rename_new(&new, path).inspect_err(|_| {
        let _ = std::fs::remove_file(&new);
    })?;
    sync_directory(directory_of(path))
}

/// Removes a file of which it is known that it is ours.
pub(crate) fn remove(path: &Path) -> Result<()> {
    std::fs::remove_file(path).map_err(|e| failed(path, "cannot be removed", e))
}

/// The ring of a pool that was opened, at a path; made anew where it is gone. Returns it, and whether it was.
///
/// # Errors
/// Invalid input when what has the name is not the pool's ring: it stays as it is; I/O.
pub(crate) fn open_ring(path: &Path, pool: &OpenedPool) -> Result<(MappedRing, bool)> {
    let was_gone = matches!(named(path)?, Named::Nothing);
    if was_gone {
        make_ring(path, pool.store().pool_id, pool.group.ring_len)?;
    }
    let len = pool.group.ring_len;
    let (file, is_labelled) = ring_file(path, pool, true)?;
    if !is_labelled {
        let label = Label { purpose: Purpose::Ring, pool_id: pool.store().pool_id, len };
        file.write_all_at(&label.encode(), len)
            .and_then(|()| file.sync_all())
            .map_err(|e| failed(path, "cannot be labelled", e))?;
    }
    Ok((MappedRing::map(&file, path, len)?, was_gone))
}

/// The ring of a pool at rest, of which nothing is changed.
///
/// # Errors
/// Not found; invalid input when what has the name is not the pool's ring; I/O.
pub fn ring_at_rest(path: &Path, pool: &OpenedPool) -> Result<MappedRing> {
    let (file, _) = ring_file(path, pool, false)?;
    MappedRing::map_private(&file, path, pool.group.ring_len)
}

/// The file of a pool's ring, and whether it has its label.
fn ring_file(path: &Path, pool: &OpenedPool, to_write: bool) -> Result<(File, bool)> {
    let not_ours = |what: &str| {
        Error::invalid(format!(
            "{}: is not the ring of this pool: {what}; nothing was changed. Without the ring the pool opens with what \
             was written to it: move this one away if there is no other",
            path.display()
        ))
    };
    let place = std::fs::canonicalize(path);
    if path.is_symlink() && place.is_err() {
        return Err(not_ours("it is a symbolic link that leads nowhere"));
    }
    let place = place.map_err(|e| failed(path, "is missing", e))?;
    match named(&place)? {
        Named::Nothing => return Err(failed(path, "is missing", io::ErrorKind::NotFound.into())),
        Named::Other(what) => return Err(not_ours(&format!("it is {what}"))),
        Named::File(_) => {}
    }
    let file = File::options().read(true).write(to_write).open(&place);
    let file = file.map_err(|e| failed(path, "cannot be opened", e))?;
    let found = file.metadata().map_err(|e| failed(path, "has no length", e))?.len();
    let (len, pool_id) = (pool.group.ring_len, pool.store().pool_id);
    match label_of(&file, path, found, Purpose::Ring)? {
        Some(label) if (label.pool_id, label.len, found) == (pool_id, len, len + BLOCK) => {
            Ok((file, true))
        }
        Some(label) => Err(not_ours(&format!(
            "its {} bytes belong to pool {}, this is pool {} with a ring of {len}",
            label.len,
            hex(&label.pool_id),
            hex(&pool_id)
        ))),
        // The label of one that is only now getting it may be there in part.
        None if [len, len + BLOCK].contains(&found)
            && pool.knows_ring(&MappedRing::map_private(&file, path, len)?) =>
        {
            Ok((file, false))
        }
        None => Err(not_ours(&format!("it is {}, and not labelled as Gabion's", content(found)))),
    }
}

pub(crate) fn hex(pool_id: &PoolId) -> String {
    pool_id.iter().map(|byte| format!("{byte:02x}")).collect()
}

//! Stores of logs, as the owner of an application's files sees them.

use crate::direct::Window;
use crate::shared::Shared;
use crate::wire::MIRROR;
use std::fs::File;
use std::io;
use std::sync::Arc;

/// A file of an application, whatever its names are. A store never gives a number twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId(pub u64);

/// Attributes of a file beside bytes and names. Times are not kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metadata {
    /// Permissions, as of `chmod`.
    pub mode: u32,
    /// The user that owns it.
    pub user: u32,
    /// The group that owns it.
    pub group: u32,
}

/// A file as it was recovered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The file.
    pub file: FileId,
    /// Its names, at least one: paths below the root, without `.` or `..`.
    pub names: Vec<Vec<u8>>,
    /// Its bytes in number.
    pub len: u64,
    /// The rest.
    pub metadata: Metadata,
}

/// An empty memory file, of the name that processes know mirrors by.
///
/// # Errors
/// The kernel's, when it has no memory or no descriptor.
pub fn memory_file() -> io::Result<File> {
    let flags = rustix::fs::MemfdFlags::CLOEXEC | rustix::fs::MemfdFlags::ALLOW_SEALING;
    Ok(File::from(rustix::fs::memfd_create(MIRROR, flags)?))
}

/// One change of names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NameChange {
    /// The name is the file's from now on, and no other's.
    Set(Vec<u8>, FileId),
    /// The name is nobody's.
    Remove(Vec<u8>),
}

/// A store of one application's log files. One caller uses it, the owner.
///
/// Renaming, linking and unlinking are one call, [`edit_names`](Self::edit_names): all changes of
/// a system call take effect together. There is no appending: the owner gives offsets, in the order
/// in which the kernel made the changes.
///
/// # Durability
/// A change may be on its way when its call returns. All changes are stored when
/// [`sync`](Self::sync) returns. After a crash the bytes are those of some moment between the last
/// sync and the last call, changes in order. An error of any call but `read` ends the store: the
/// owner calls it no more, and every sync of the program fails. Three kinds do not, of which
/// nothing has changed: `InvalidInput`, refused names; `StorageFull`; `FileTooLarge`.
pub trait LogFiles: Send {
    /// Everything that the store has: first call of a new owner. An owner of before can change
    /// nothing any more when this returns.
    ///
    /// # Errors
    /// If the store cannot be reached, or somebody else owns the files.
    fn recover(&mut self) -> io::Result<Vec<Listed>>;

    /// Processes may change [memory](Self::memory) of the store from now on, and note it here.
    fn attach(&mut self, changes: Shared);

    /// The memory file that the store keeps the file's bytes in, if it does so: the mirror is the
    /// same one then. The program's changes are there before the store is told of them, so it takes
    /// a [`mark`](Shared::mark) for its copies. The owner changes bytes and length there
    /// itself, before [`pwrite`](Self::pwrite) and [`truncate`](Self::truncate).
    ///
    /// # Errors
    /// If there is no such file, or no descriptor for it.
    fn memory(&mut self, file: FileId) -> io::Result<Option<File>>;

    /// Makes a file with one name, which was nobody's, and no bytes.
    ///
    /// # Errors
    /// If it was not made, or has not been stored.
    fn create(&mut self, name: &[u8], metadata: Metadata) -> io::Result<FileId>;

    /// Reads bytes from an offset on; fewer only where the file ends.
    ///
    /// # Errors
    /// If there is no such file, or its bytes cannot be had.
    fn read(&mut self, file: FileId, offset: u64, into: &mut [u8]) -> io::Result<usize>;

    /// Writes bytes at an offset. Past the end, the bytes between are zeros.
    ///
    /// # Errors
    /// If the bytes will not be stored.
    fn pwrite(&mut self, file: FileId, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Gives the file a length; bytes that it gains are zeros.
    ///
    /// # Errors
    /// If it will not be stored.
    fn truncate(&mut self, file: FileId, len: u64) -> io::Result<()>;

    /// Makes sure of memory for a file of `end` bytes, before its mirror has them. Returns the
    /// length up to which it need not be asked again. None: nobody knows before the store was told
    /// of all changes so far.
    ///
    /// # Errors
    /// `StorageFull` if there is none, `FileTooLarge` if a file cannot be so long; these end
    /// nothing.
    fn reserve(&mut self, _file: FileId, _end: u64) -> io::Result<Option<u64>> {
        Ok(Some(u64::MAX))
    }

    /// Has files of these lengths give up the memory that they do not need. Their reservations
    /// hold no more. False if there was none.
    ///
    /// # Errors
    /// If it has not been stored.
    fn trim(&mut self, _lens: &[(FileId, u64)]) -> io::Result<bool> {
        Ok(false)
    }

    /// Waits until all that was changed so far is stored.
    ///
    /// # Errors
    /// If it is not stored, or nobody knows.
    fn sync(&mut self) -> io::Result<()>;

    /// The same: true. Or false, and not all is stored: the store makes a copy of
    /// [memory](Self::memory) that may have changes of which it was not told, and perhaps stores
    /// nothing before it is.
    ///
    /// # Errors
    /// As of [`sync`](Self::sync).
    fn sync_or_more(&mut self) -> io::Result<bool> {
        self.sync().map(|()| true)
    }

    /// Lets processes write records of a file to the log peers themselves, if all that it was told
    /// of is stored, and it can: then it has [published](Shared::publish) the grant in the memory
    /// that it was [attached](Self::attach) to. It recalls it whenever it has to. The caller keeps
    /// processes from changes meanwhile, and has told of all of them.
    fn grant(&mut self, _file: FileId, _slot: u32, _generation: u32) {}

    /// The memory of this number, which goes with a grant.
    fn window(&self, _number: u64) -> Option<Arc<Window>> {
        None
    }

    /// Whether [`edit_names`](Self::edit_names) would take these changes: a store may refuse names
    /// that are too long, and changes that are too many at once; and it has memory for them then. A
    /// change of names in the file system cannot be taken back, so that is asked before. Changes
    /// that only remove names are never refused.
    ///
    /// # Errors
    /// `InvalidInput`, if it would refuse them; `StorageFull` if there is no memory; these end
    /// nothing.
    fn prepare_names(&mut self, _changes: &[NameChange]) -> io::Result<()> {
        Ok(())
    }

    /// Changes names, all or none. A file that has no name afterwards is removed with its bytes.
    ///
    /// # Errors
    /// If it was not done or has not been stored.
    fn edit_names(&mut self, changes: &[NameChange]) -> io::Result<()>;

    /// Changes what a file has beside bytes and names.
    ///
    /// # Errors
    /// If it has not been stored.
    fn set_metadata(&mut self, file: FileId, metadata: Metadata) -> io::Result<()>;
}

//! Split files at the owner: which they are, their journal, and their bytes after a crash. The
//! rules are in [`split`](crate::split).
//!
//! The journal is one file of the store. Each split file has a name of it too, with the number that
//! its frames have and the file's own name; so the store's order of names and records is theirs.

mod apply;
mod unseen;

use super::mirrors::Mirror;
use super::plain::why;
use super::{Core, Errno, State, errno};
use crate::files::{Listed, Metadata, NameChange, memory_file};
use crate::journal::{self, FRAMES_AT};
use crate::pattern;
use crate::shared::{Guard, SLOTS, state};
use crate::split::PREFIX;
use crate::wire::{NO_GENERATION, Reply, Request, WAS_SPLIT, kind, moved};
use rustix::fs::SealFlags;
use rustix::rand::GetRandomFlags;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::sync::{Arc, PoisonError};

/// Which files are split, and their journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Splits {
    /// Globs of names, and below how many bytes a write of such a file is small: 1 to
    /// [`FRAME_MAX`](crate::journal::FRAME_MAX). The first glob that matches counts.
    pub globs: Vec<(String, u64)>,
    /// Bytes of the journal, within [`LEN`](crate::journal::LEN).
    pub journal_len: u64,
}

/// A split file.
#[derive(Debug)]
struct SplitFile {
    generation: u32,
    name: Vec<u8>,
    /// Open since before its first frame, so that it hears of each failure to write it back.
    file: Arc<File>,
}

/// A change of names by a process: no file gets split by one of them until it is over.
#[derive(Debug)]
struct Leaving {
    number: u32,
    names: Names,
    /// Files that were split until then: device and inode.
    inodes: Vec<(u64, u64)>,
    process: i32,
}

/// Names that a request means.
#[derive(Debug)]
struct Names {
    names: [Option<Vec<u8>>; 2],
    /// All below them, too.
    directory: bool,
}

impl Names {
    fn has(&self, name: &[u8]) -> bool {
        let below = |of: &[u8]| name.starts_with(of) && name.get(of.len()) == Some(&b'/');
        let mut names = self.names.iter().flatten();
        names.any(|of| name == of || self.directory && below(of))
    }
}

/// All that the owner knows of split files.
#[derive(Debug, Default)]
pub(super) struct Split {
    /// By slot.
    files: BTreeMap<u32, SplitFile>,
    /// Names that are being changed, and the last number that one of these has got.
    leaving: Vec<Leaving>,
    last_leaving: u32,
    /// The slot of the journal, and its epoch.
    journal: Option<(u32, u64)>,
}

/// Flags of files that are opened by name: nothing else that has it is opened.
const FLAGS: i32 = libc::O_NOFOLLOW | libc::O_NONBLOCK;
/// Names that one change removes: each has a path's length at most, and a record 128 KiB.
const NAMES_AT_ONCE: usize = 24;
/// Split files at most: mirrored ones have slots left.
const FILES_MAX: usize = SLOTS / 2;

/// A number that nobody can foretell.
fn salt() -> io::Result<u64> {
    let mut bytes = [0; 8];
    // So few bytes are never given in part.
    rustix::rand::getrandom(&mut bytes, GetRandomFlags::empty())?;
    Ok(u64::from_le_bytes(bytes))
}

fn invalid(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}

/// The name of the journal that says that frames of this number are of the file of that name.
fn name_in_store(number: u64, name: &[u8]) -> Vec<u8> {
    [PREFIX.as_bytes(), number.to_string().as_bytes(), b"/", name].concat()
}

/// Number and name of the file.
fn parse_name(name: &[u8]) -> Option<(u64, &[u8])> {
    let rest = name.strip_prefix(PREFIX.as_bytes())?;
    let digits = rest.iter().position(|byte| *byte == b'/')?;
    let number = std::str::from_utf8(&rest[..digits]).ok()?.parse().ok()?;
    Some((number, &rest[digits + 1..]))
}

/// Whether a file of the store is the journal of split files.
pub(super) fn is_journal(listed: &Listed) -> bool {
    listed.names.iter().any(|name| name.starts_with(PREFIX.as_bytes()))
}

/// Checks the settings.
pub(super) fn check(splits: &Splits) -> Result<(), String> {
    let (least, most) = (*journal::LEN.start(), *journal::LEN.end());
    if !journal::LEN.contains(&splits.journal_len) {
        let len = splits.journal_len;
        return Err(format!("a journal of {len} bytes, of {least} to {most}"));
    }
    for (glob, below) in &splits.globs {
        if glob.is_empty() || !(1..=journal::FRAME_MAX).contains(below) {
            let max = journal::FRAME_MAX;
            return Err(format!("split files '{glob}' below {below} bytes, of 1 to {max}"));
        }
    }
    Ok(())
}

impl State {
    fn split_below(&self, name: &[u8]) -> Option<u64> {
        let globs = &self.settings.splits.as_ref()?.globs;
        let of = |(glob, below): &(String, u64)| {
            pattern::matches(glob.as_bytes(), name).then_some(*below)
        };
        globs.iter().find_map(of)
    }

    /// Whether a file of that name would be split.
    pub(super) fn splits(&self, name: &[u8]) -> bool {
        self.split_below(name).is_some()
    }

    /// Whether the file was split until its name began to change.
    pub(super) fn is_leaving(&self, inode: (u64, u64)) -> bool {
        self.split.leaving.iter().any(|leaving| leaving.inodes.contains(&inode))
    }

    fn is_name_leaving(&self, name: &[u8]) -> bool {
        self.split.leaving.iter().any(|leaving| leaving.names.has(name))
    }

    /// Removes names of the journal, as many at once as one record of names surely takes.
    fn remove_names(&mut self, names: impl Iterator<Item = Vec<u8>>) -> io::Result<()> {
        let names: Vec<NameChange> = names.map(NameChange::Remove).collect();
        names.chunks(NAMES_AT_ONCE).try_for_each(|some| self.store.edit_names(some))
    }

    /// Makes the journal of this run.
    pub(super) fn make_journal(&mut self) -> io::Result<()> {
        let Some(len) = self.settings.splits.as_ref().map(|splits| splits.journal_len) else {
            return Ok(());
        };
        let (user, group) = (rustix::process::getuid(), rustix::process::getgid());
        let metadata = Metadata { mode: 0o600, user: user.as_raw(), group: group.as_raw() };
        let name = format!("{PREFIX}journal");
        let file = self.store.create(name.as_bytes(), metadata)?;
        let memory = self.store.memory(file)?.map_or_else(memory_file, Ok)?;
        memory.set_len(len)?;
        // A process maps only memory that stays as long as it is.
        rustix::fs::fcntl_add_seals(&memory, SealFlags::SHRINK | SealFlags::GROW)?;
        self.store.truncate(file, len)?;
        let too_many = || io::Error::other("more files than there are slots");
        let (slot, generation) = self.free_slot().ok_or_else(too_many)?;
        // It has no placeholder, and this is no file's.
        self.publish(slot, Mirror { file, generation, placeholder: (0, 0), memory })?;
        self.split.journal = Some((slot, 0));
        self.shared.set_journal(slot, generation, len);
        let mut guard = self.shared.lock();
        self.write_head(&mut guard)
    }

    /// A head of the next epoch, before which all records of frames were taken from the ring.
    fn write_head(&mut self, guard: &mut Guard) -> io::Result<()> {
        let Some((slot, epoch)) = &mut self.split.journal else {
            return Ok(());
        };
        *epoch += 1;
        let salt = salt()?;
        let (at, bytes) = journal::head(*epoch, salt);
        let (slot, epoch) = (*slot, *epoch);
        let Some(mirror) = &self.mirrors[slot as usize] else {
            return Err(io::Error::other("the journal has no mirror"));
        };
        guard.begin(slot);
        let written = mirror.memory.write_all_at(&bytes, at);
        let written = written.and_then(|()| self.store.pwrite(mirror.file, at, &bytes));
        guard.end();
        written?;
        self.settle()?;
        guard.open_journal(epoch, salt);
        Ok(())
    }

    /// The memory of the journal, for a process.
    pub(super) fn journal_memory(&self) -> Result<OwnedFd, Errno> {
        let (slot, _) = self.split.journal.ok_or(libc::ENOENT)?;
        let mirror = self.mirrors[slot as usize].as_ref().ok_or(libc::ENOENT)?;
        mirror.memory.try_clone().map(OwnedFd::from).map_err(|error| errno(&error))
    }

    /// The reply to whoever opened a file that is split already.
    pub(super) fn opened_split(&self, slot: u32) -> Option<Reply> {
        let generation = self.split.files.get(&slot)?.generation;
        Some(Reply { kind: kind::SPLIT, slot, generation, ..Reply::default() })
    }

    /// A file that is not mirrored was opened: whether it is to be split.
    fn is_to_be_split(&mut self, request: &Request, path: &Path) -> ToSplit {
        self.forget_dead();
        let inode = (request.device, request.inode);
        let is_known = self.shared.find(inode.0, inode.1).is_some();
        let Some(name) = self.name(path).filter(|name| !is_known && !self.matches(name)) else {
            return ToSplit::Nothing;
        };
        let Some(below) = self.split_below(&name) else {
            return ToSplit::Nothing;
        };
        if let Some(why) = self.why_plain(inode, path) {
            self.tell_of_unsplit(path, request.flags, why);
            return ToSplit::Nothing;
        }
        // Its name has changed since the process read it; it asks again at its next call.
        let is_stale = request.value != WAS_SPLIT && !is_at(path, inode);
        if is_stale || self.is_name_leaving(&name) {
            return ToSplit::NotNow;
        }
        let found = match self.split.files.len() < FILES_MAX {
            true => open_to_sync(path, inode),
            false => Err(why::TOO_MANY),
        };
        match found {
            Ok(file) => ToSplit::File { name, below, file },
            Err(why) => {
                // As it is not seen here, it must not be split later either.
                self.leave_unsplit((inode, path), request.flags, why);
                ToSplit::Nothing
            }
        }
    }

    /// The file is split from now on, and has an unsynced change.
    fn add_split(
        &mut self,
        inode: (u64, u64),
        (name, below, file): (Vec<u8>, u64, File),
    ) -> Result<Reply, Errno> {
        let (number, generation) = self.free_slot().ok_or(libc::ENFILE)?;
        let (journal, _) = self.split.journal.ok_or(libc::EIO)?;
        let journal = self.mirrors[journal as usize].as_ref().ok_or(libc::EIO)?.file;
        let set = NameChange::Set(name_in_store(journal::file(number, generation), &name), journal);
        let done = self.store.edit_names(&[set]);
        self.stored(done)?;
        let slot = self.shared.slot(number).ok_or(libc::ENFILE)?;
        slot.generation.store(generation, Release);
        for (device, number) in
            [(&slot.device, &slot.inode), (&slot.mirror_device, &slot.mirror_inode)]
        {
            device.store(inode.0, Relaxed);
            number.store(inode.1, Relaxed);
        }
        slot.links.store(1, Relaxed);
        slot.set_split(below, generation);
        slot.state.store(state::LIVE, Release);
        self.count_slot(number);
        self.split.files.insert(number, SplitFile { generation, name, file: Arc::new(file) });
        Ok(Reply { kind: kind::SPLIT, slot: number, generation, ..Reply::default() })
    }

    fn begin_leaving(&mut self, request: &Request, paths: [&Path; 2], process: i32) -> u32 {
        self.forget_dead();
        let directory = request.value & moved::DIRECTORY != 0;
        let names = Names { names: paths.map(|path| self.name(path)), directory };
        self.split.last_leaving = self.split.last_leaving.wrapping_add(1);
        let (number, inodes) = (self.split.last_leaving, Vec::new());
        self.split.leaving.push(Leaving { number, names, inodes, process });
        number
    }

    /// Files of which the journal has frames.
    fn framed(&self) -> Vec<Arc<File>> {
        let has_frames = |slot: u32| self.shared.slot(slot).is_some_and(|slot| slot.has_frames());
        let framed = self.split.files.iter().filter(|(slot, _)| has_frames(**slot));
        framed.map(|(_, file)| file.file.clone()).collect()
    }

    /// Whether the journal has no frame, and no file is uncertain.
    fn is_journal_empty(&self) -> bool {
        let slots = self.split.files.keys().filter_map(|slot| self.shared.slot(*slot));
        let mut uncertain = slots.filter(|slot| slot.is_uncertain());
        self.shared.journal_tail() == FRAMES_AT && uncertain.next().is_none()
    }

    /// Takes files out of those that are split, if they have no frames. Whether all are.
    fn retire(&mut self, guard: &mut Guard, number: u32) -> Result<bool, Errno> {
        let has = |leaving: &&mut Leaving| leaving.number == number;
        let Some(leaving) = self.split.leaving.iter_mut().find(has) else {
            return Ok(true);
        };
        let slots = self.split.files.iter().filter(|(_, file)| leaving.names.has(&file.name));
        let slots: Vec<u32> = slots.map(|(slot, _)| *slot).collect();
        let (mut removed, mut all) = (Vec::new(), true);
        for number in slots {
            let Some(slot) = self.shared.slot(number) else { continue };
            if !guard.retire(slot) {
                all = false;
                continue;
            }
            if let Some(file) = self.split.files.remove(&number) {
                leaving.inodes.push((slot.device.load(Relaxed), slot.inode.load(Relaxed)));
                removed.push(name_in_store(journal::file(number, file.generation), &file.name));
            }
        }
        if !removed.is_empty() {
            let done = self.remove_names(removed.into_iter());
            self.stored(done)?;
        }
        Ok(all)
    }

    /// The change of names is over.
    pub(super) fn arrive(&mut self, number: u32) -> Reply {
        self.split.leaving.retain(|leaving| leaving.number != number);
        Reply::default()
    }
}

/// A file that was opened, as far as splitting goes.
enum ToSplit {
    /// It is not to be split, or it is already.
    Nothing,
    /// Its name is being changed, or was.
    NotNow,
    File {
        name: Vec<u8>,
        below: u64,
        file: File,
    },
}

/// Syncs the directories from a file's up to the root.
fn sync_directories(path: &Path, root: &Path) -> io::Result<()> {
    for directory in path.ancestors().skip(1) {
        File::open(directory)?.sync_all()?;
        if directory == root {
            break;
        }
    }
    Ok(())
}

fn is_at(path: &Path, inode: (u64, u64)) -> bool {
    path.symlink_metadata().is_ok_and(|status| (status.dev(), status.ino()) == inode)
}

/// The file at a path, if it is that one, to be synced.
fn open_to_sync(path: &Path, inode: (u64, u64)) -> Result<File, &'static str> {
    let open = |options: &mut std::fs::OpenOptions| options.custom_flags(FLAGS).open(path);
    let file = open(File::options().read(true)).or_else(|_| open(File::options().write(true)));
    let opened = file.and_then(|file| file.metadata().map(|status| (file, status)));
    let (file, status) = opened.map_err(|_| why::UNOPENED)?;
    // By another name it may be open already, unseen.
    if status.nlink() > 1 {
        return Err(why::SEVERAL_NAMES);
    }
    let is_it = (status.dev(), status.ino()) == inode && status.is_file();
    if is_it { Ok(file) } else { Err(why::UNOPENED) }
}

impl Core {
    /// Empties the journal of split files: syncs all of which it has frames. The store is not held
    /// up meanwhile, and processes write past the journal.
    pub(super) fn empty_journal(&self) -> Result<(), Errno> {
        self.empty_journal_and(&mut |_, _| Ok(()))
    }

    /// The same, and then something under both locks, before any further frame.
    fn empty_journal_and(
        &self,
        then: &mut dyn FnMut(&mut State, &mut Guard) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        self.shared.check()?;
        // One at a time: frames that are written after one of them are not the other's to drop.
        let _emptying = self.emptying.lock().unwrap_or_else(PoisonError::into_inner);
        let framed = {
            let mut guard = self.shared.lock();
            let mut state = self.state();
            if state.split.journal.is_none() || state.is_journal_empty() {
                return then(&mut state, &mut guard);
            }
            guard.close_journal();
            state.framed()
        };
        for file in framed {
            if let Err(error) = file.sync_data() {
                return Err(self.state().failed(&error));
            }
        }
        let mut guard = self.shared.lock();
        let mut state = self.state();
        state.drain();
        self.shared.check()?;
        let done = state.write_head(&mut guard);
        done.map_err(|error| state.failed(&error))?;
        then(&mut state, &mut guard)
    }

    /// A file was opened: the reply, if it is split from now on, or may be later. Its bytes and its
    /// name are synced before; nothing is held up meanwhile.
    pub(super) fn open_split(
        &self,
        request: &Request,
        path: &Path,
    ) -> Result<Option<Reply>, Errno> {
        if self.settings.splits.is_none() {
            return Ok(None);
        }
        self.shared.check()?;
        let inode = (request.device, request.inode);
        let found = self.state().is_to_be_split(request, path);
        let (name, below, file) = match found {
            ToSplit::Nothing => return Ok(None),
            ToSplit::NotNow => {
                let (kind, generation) = (kind::SPLIT, NO_GENERATION);
                return Ok(Some(Reply { kind, generation, ..Reply::default() }));
            }
            ToSplit::File { name, below, file } => (name, below, file),
        };
        let synced = file.sync_all().and_then(|()| sync_directories(path, &self.settings.root));
        if synced.is_err() {
            // It is as durable as this file system has it, and its own syncs tell of that.
            self.state().leave_unsplit((inode, path), request.flags, why::UNSYNCED);
            return Ok(None);
        }
        // A writer without a slot is over by then, and the next one finds this.
        let _guard = self.shared.lock();
        let mut state = self.state();
        state.drain();
        match state.add_split(inode, (name, below, file)) {
            Err(libc::ENAMETOOLONG) => {
                state.leave_unsplit((inode, path), request.flags, why::TOO_LONG);
                Ok(None)
            }
            added => added.map(Some),
        }
    }

    /// Names are about to change: split files of these names are split no more.
    pub(super) fn leave(
        &self,
        request: &Request,
        paths: [&Path; 2],
        process: i32,
    ) -> Result<Reply, Errno> {
        let number = self.state().begin_leaving(request, paths, process);
        if let Err(errno) = self.retire(number) {
            self.state().arrive(number);
            return Err(errno);
        }
        Ok(Reply { slot: number, ..Reply::default() })
    }

    fn retire(&self, number: u32) -> Result<(), Errno> {
        {
            let mut guard = self.shared.lock();
            let mut state = self.state();
            state.drain();
            self.shared.check()?;
            if state.retire(&mut guard, number)? {
                return Ok(());
            }
        }
        self.empty_journal_and(&mut |state, guard| {
            let is_done = state.retire(guard, number)?;
            assert!(is_done, "no file has frames or is uncertain once the journal is empty");
            Ok(())
        })
    }

    /// All that the journal has is in the files, and the store without it: they need no run to be
    /// whole.
    pub(super) fn remove_journal(&self) -> Result<(), Errno> {
        if self.state().split.journal.is_none() || self.shared.check().is_err() {
            return Ok(());
        }
        self.empty_journal_and(&mut |state, guard| {
            guard.close_journal();
            let names = state.split.files.iter().map(|(slot, file)| {
                name_in_store(journal::file(*slot, file.generation), &file.name)
            });
            let names: Vec<_> = names.chain([format!("{PREFIX}journal").into_bytes()]).collect();
            let done = state.remove_names(names.into_iter());
            state.stored(done)
        })
    }
}

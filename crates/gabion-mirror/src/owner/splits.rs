//! Split files at the owner: which they are, their journal, and their bytes after a crash. The
//! rules are in [`split`](crate::split).
//!
//! The journal is one file of the store. Each split file has a name of it too, with the number that
//! its frames have and the file's own name; so the store's order of names and records is theirs.

use super::mirrors::Mirror;
use super::{Core, Errno, State, errno};
use crate::files::{Listed, Metadata, NameChange, memory_file};
use crate::journal::{self, FRAMES_AT};
use crate::pattern;
use crate::shared::{Guard, state};
use crate::split::PREFIX;
use crate::wire::{Reply, Request, WAS_SPLIT, kind, moved};
use rustix::fs::SealFlags;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
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

/// All that the owner knows of split files.
#[derive(Debug, Default)]
pub(super) struct Split {
    /// By slot.
    files: BTreeMap<u32, SplitFile>,
    /// Files whose names are being changed, by the former ones: device and inode.
    leaving: BTreeMap<Vec<u8>, (u64, u64)>,
    /// The slot of the journal, and its epoch.
    journal: Option<(u32, u64)>,
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

    /// Whether the file is split, but that its name is being changed.
    pub(super) fn is_leaving(&self, inode: (u64, u64)) -> bool {
        self.split.leaving.values().any(|leaving| *leaving == inode)
    }

    /// Puts the frames of a run that did not end into their files, syncs these, and removes the
    /// journal.
    pub(super) fn apply_journal(&mut self, listed: &Listed) -> io::Result<()> {
        if listed.len > *journal::LEN.end() {
            let (len, max) = (listed.len, journal::LEN.end());
            return Err(invalid(format!("a journal of split files has {len} bytes, of {max}")));
        }
        let mut bytes = vec![0; listed.len as usize];
        let read = self.store.read(listed.file, 0, &mut bytes)?;
        if read != bytes.len() {
            let len = bytes.len();
            return Err(invalid(format!("journal of split files: {read} bytes of {len} found")));
        }
        let frames = journal::frames(&bytes).map_err(invalid)?;
        let names: BTreeMap<u64, &[u8]> =
            listed.names.iter().filter_map(|name| parse_name(name)).collect();
        // All of them are opened before any is changed.
        let mut files = BTreeMap::new();
        for (frame, _) in &frames {
            if let Entry::Vacant(place) = files.entry(frame.file) {
                let name = names.get(&frame.file).copied();
                place.insert(self.open_to_apply(frame.file, name)?);
            }
        }
        for (frame, own) in &frames {
            files[&frame.file].write_all_at(&bytes[own.clone()], frame.offset)?;
        }
        files.values().try_for_each(File::sync_all)?;
        let removed: Vec<_> = listed.names.iter().cloned().map(NameChange::Remove).collect();
        self.store.edit_names(&removed)?;
        self.store.sync()
    }

    fn open_to_apply(&self, number: u64, name: Option<&[u8]>) -> io::Result<File> {
        let text = || format!("the journal has frames of file {number}, which has no name");
        let name = name.ok_or_else(|| invalid(text()))?;
        let path = self.path(name)?;
        let mut options = File::options();
        let opened = options.write(true).custom_flags(libc::O_NOFOLLOW).open(&path);
        let opened = opened.and_then(|file| match file.metadata()?.is_file() {
            true => Ok(file),
            false => Err(invalid("it is no file".to_owned())),
        });
        opened.map_err(|error| {
            let text = format!(
                "{} cannot be opened ({error}), of which the journal has synced writes: a split \
                 file must lie below --root as its last run left it",
                path.display()
            );
            io::Error::new(error.kind(), text)
        })
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
        let (at, bytes) = journal::head(*epoch);
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
        guard.open_journal(epoch);
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

    /// A file that is not mirrored was opened: whether it is split, and so from now on. What it has
    /// by then, and its name, are synced.
    pub(super) fn open_split(
        &mut self,
        name: Vec<u8>,
        path: &Path,
        inode: (u64, u64),
    ) -> Result<Reply, Errno> {
        let Some(below) = self.split_below(&name).filter(|_| !self.plain.contains(&inode)) else {
            return Ok(Reply::default());
        };
        if self.is_leaving(inode) {
            return Ok(Reply { kind: kind::SPLIT, ..Reply::default() });
        }
        let Some(file) = open_to_sync(path, inode) else {
            // As it is not seen here, it must not be split later either.
            self.plain.insert(inode);
            return Ok(Reply::default());
        };
        if let Err(error) = self.sync_with_names(&file, path) {
            if error.kind() != io::ErrorKind::PermissionDenied {
                return Err(errno(&error));
            }
            // A directory that this user may not read cannot be synced.
            self.plain.insert(inode);
            return Ok(Reply::default());
        }
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

    /// A file that was split and is not, whose writer goes on unseen, must not be split for others.
    pub(super) fn note_plain(&mut self, request: &Request, reply: &Reply) {
        if request.value == WAS_SPLIT && reply.kind == kind::PLAIN {
            self.plain.insert((request.device, request.inode));
        }
    }

    fn sync_with_names(&self, file: &File, path: &Path) -> io::Result<()> {
        file.sync_all()?;
        for directory in path.ancestors().skip(1) {
            File::open(directory)?.sync_all()?;
            if directory == self.settings.root {
                break;
            }
        }
        Ok(())
    }

    /// Names of paths of a request; with all below, if they are directories that are moved.
    fn is_meant(&self, request: &Request, paths: [&Path; 2]) -> impl Fn(&[u8]) -> bool + use<> {
        let directory = request.value & moved::DIRECTORY != 0;
        let names = paths.map(|path| self.name(path));
        move |name: &[u8]| {
            names.iter().flatten().any(|of| {
                name == of || directory && name.starts_with(of) && name.get(of.len()) == Some(&b'/')
            })
        }
    }

    /// Files of which the journal has frames.
    fn framed(&self) -> Vec<Arc<File>> {
        let has_frames = |slot: u32| self.shared.slot(slot).is_some_and(|slot| slot.has_frames());
        let framed = self.split.files.iter().filter(|(slot, _)| has_frames(**slot));
        framed.map(|(_, file)| file.file.clone()).collect()
    }

    /// Nothing is in the journal, nor can it be in question.
    fn is_journal_empty(&self) -> bool {
        let slots = self.split.files.keys().filter_map(|slot| self.shared.slot(*slot));
        let mut uncertain = slots.filter(|slot| slot.is_uncertain());
        self.shared.journal_tail() == FRAMES_AT && uncertain.next().is_none()
    }

    /// Takes files out of those that are split, if they have no frames. Whether all are.
    fn part(&mut self, guard: &mut Guard, is_meant: &dyn Fn(&[u8]) -> bool) -> Result<bool, Errno> {
        let meant = self.split.files.iter().filter(|(_, file)| is_meant(&file.name));
        let meant: Vec<u32> = meant.map(|(slot, _)| *slot).collect();
        let mut removed = Vec::new();
        let mut all = true;
        for number in meant {
            let Some(slot) = self.shared.slot(number) else { continue };
            if !guard.part(slot) {
                all = false;
                continue;
            }
            if let Some(file) = self.split.files.remove(&number) {
                let inode = (slot.device.load(Relaxed), slot.inode.load(Relaxed));
                let number = journal::file(number, file.generation);
                removed.push(NameChange::Remove(name_in_store(number, &file.name)));
                self.split.leaving.insert(file.name, inode);
            }
        }
        if !removed.is_empty() {
            let done = self.store.edit_names(&removed);
            self.stored(done)?;
        }
        Ok(all)
    }

    /// Names were changed, or not.
    pub(super) fn arrive(&mut self, request: &Request, paths: [&Path; 2]) -> Reply {
        let is_meant = self.is_meant(request, paths);
        self.split.leaving.retain(|name, _| !is_meant(name));
        Reply::default()
    }
}

/// The file at a path, if it is that one, to be synced.
fn open_to_sync(path: &Path, inode: (u64, u64)) -> Option<File> {
    let open = |options: &mut std::fs::OpenOptions| {
        options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)
    };
    let file =
        open(File::options().read(true)).or_else(|_| open(File::options().write(true))).ok()?;
    let status = file.metadata().ok()?;
    (status.is_file() && (status.dev(), status.ino()) == inode).then_some(file)
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

    /// Names are about to change: split files of these names are split no more.
    pub(super) fn leave(&self, request: &Request, paths: [&Path; 2]) -> Result<(), Errno> {
        let is_meant = self.state().is_meant(request, paths);
        {
            let mut guard = self.shared.lock();
            let mut state = self.state();
            state.drain();
            self.shared.check()?;
            if state.part(&mut guard, &is_meant)? {
                return Ok(());
            }
        }
        self.empty_journal_and(&mut |state, guard| {
            let is_done = state.part(guard, &is_meant)?;
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
        self.empty_journal()?;
        let mut guard = self.shared.lock();
        guard.close_journal();
        let mut state = self.state();
        let state = &mut *state;
        let names =
            state.split.files.iter().map(|(slot, file)| {
                name_in_store(journal::file(*slot, file.generation), &file.name)
            });
        let names = names.chain([format!("{PREFIX}journal").into_bytes()]);
        let removed: Vec<_> = names.map(NameChange::Remove).collect();
        let done = state.store.edit_names(&removed);
        state.stored(done)
    }
}

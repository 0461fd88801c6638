//! Names of mirrored files, and their placeholders.
//!
//! A *placeholder* is a file in the file system that has the names of a mirrored file and none of
//! its bytes: a line says where they are. So paths, links, listings, permissions and directories
//! are the kernel's own. The store's names are the truth; placeholders follow them at each start.
//!
//! A name is changed in the file system first, by the program's process, and then here. If it dies
//! between, the change has not happened, and nobody was told of it.

use super::mirrors::{Mirror, metadata_of};
use super::plain::{refusal, why};
use super::{Errno, State, errno, splits};
use crate::files::{FileId, Listed, NameChange};
use crate::pattern;
use crate::shared::Guard;
use crate::split::PREFIX;
use crate::wire::{Reply, Request, moved};
use std::ffi::OsStr;
use std::fs::{File, Metadata as Status};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;

/// How placeholders begin.
const MARK: &str = "gabion-ncl 1 ";

impl State {
    /// Every file of the store gets its mirror and placeholders.
    pub(super) fn recover(&mut self) -> io::Result<()> {
        let listed = self.store.recover()?;
        self.store.attach(self.shared);
        for file in &listed {
            match splits::is_journal(file) {
                true => self.apply_journal(file)?,
                false => self.recover_file(file)?,
            }
        }
        self.remove_strays()?;
        self.make_journal()
    }

    fn recover_file(&mut self, listed: &Listed) -> io::Result<()> {
        let paths: Vec<PathBuf> =
            listed.names.iter().map(|name| self.path(name)).collect::<io::Result<_>>()?;
        for path in &paths {
            self.make_way(path)?;
        }
        let Some((first, others)) = paths.split_first() else {
            let text = format!("file {} of the store has no name", listed.file.0);
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        };
        self.write_placeholder(first, listed.file)?;
        self.give_metadata(first, listed.metadata)?;
        for other in others {
            std::fs::hard_link(first, other)?;
        }
        let too_many = || io::Error::other("more files than there are slots");
        let (slot, generation) = self.free_slot().ok_or_else(too_many)?;
        let memory = self.store.memory(listed.file)?;
        let is_filled = memory.is_some();
        let mirror = Mirror::new(generation, listed.file, memory, &std::fs::metadata(first)?)?;
        if !is_filled {
            mirror.fill(listed.len, &mut *self.store)?;
        }
        self.publish(slot, mirror)?;
        for name in &listed.names {
            self.names.insert(name.clone(), slot);
        }
        self.count_links(slot);
        Ok(())
    }

    /// Removes a placeholder of before. A file with bytes of its own stays, and ends the start.
    fn make_way(&self, path: &Path) -> io::Result<()> {
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent)?;
        }
        let Ok(status) = std::fs::symlink_metadata(path) else {
            return Ok(());
        };
        if status.is_file() && (status.len() == 0 || is_placeholder(path, None)) {
            return std::fs::remove_file(path);
        }
        let text = format!(
            "{} is in the store and in the file system, with bytes of its own; move one of them",
            path.display()
        );
        Err(io::Error::new(io::ErrorKind::AlreadyExists, text))
    }

    /// Removes placeholders of this application that the store knows nothing of, from directories
    /// that have names: rests of changes that were not made.
    fn remove_strays(&self) -> io::Result<()> {
        let paths = self.names.keys().map(|name| self.path(name));
        let mut directories = vec![self.settings.root.clone()];
        for path in paths {
            directories.extend(path?.parent().map(Path::to_path_buf));
        }
        directories.sort();
        directories.dedup();
        for directory in directories {
            for entry in std::fs::read_dir(directory)? {
                let path = entry?.path();
                let name = path.strip_prefix(&self.settings.root).map(|name| name.as_os_str());
                let known = name.is_ok_and(|name| self.names.contains_key(name.as_bytes()));
                if !known && is_placeholder(&path, Some(&self.settings.application)) {
                    std::fs::remove_file(path)?;
                }
            }
        }
        Ok(())
    }

    fn write_placeholder(&self, path: &Path, file: FileId) -> io::Result<()> {
        let (application, file) = (&self.settings.application, file.0);
        let text = format!(
            "{MARK}{application} {file}\n\
             The bytes of this file are in a store of logs. The program that writes it must be \
             started by `gabion ncl run --app {application}`.\n"
        );
        let mut options = File::options();
        let mut placeholder = options.write(true).create(true).truncate(true).open(path)?;
        placeholder.write_all(text.as_bytes())
    }

    /// A path below the root, from its name.
    pub(super) fn path(&self, name: &[u8]) -> io::Result<PathBuf> {
        let below = Path::new(OsStr::from_bytes(name));
        let plain = |part| matches!(part, std::path::Component::Normal(_));
        if name.is_empty() || !below.components().all(plain) {
            let text = format!("'{}' is no path below a root", below.display());
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        Ok(self.settings.root.join(below))
    }

    /// A path that the file has.
    pub(super) fn path_of(&self, slot: u32) -> Option<PathBuf> {
        let name = self.names.iter().find(|(_, of)| **of == slot).map(|(name, _)| name)?;
        self.path(name).ok()
    }

    /// The name of an absolute path whose last part need not exist; `None` if it is not below the
    /// root.
    pub(super) fn name(&self, path: &Path) -> Option<Vec<u8>> {
        let resolved = match (path.parent(), path.file_name()) {
            (Some(parent), Some(last)) => parent.canonicalize().ok()?.join(last),
            _ => path.canonicalize().ok()?,
        };
        let name = resolved.strip_prefix(&self.settings.root).ok()?;
        (!name.as_os_str().is_empty()).then(|| name.as_os_str().as_bytes().to_vec())
    }

    /// Whether a file of that name is mirrored. The journal's names are its own.
    pub(super) fn matches(&self, name: &[u8]) -> bool {
        pattern::matches(self.settings.globs.as_bytes(), name)
            && !name.starts_with(PREFIX.as_bytes())
    }

    /// A file was opened; its mirror, if it has one or gets one.
    pub(super) fn open(
        &mut self,
        request: &Request,
        path: &Path,
        guard: Option<&mut Guard>,
    ) -> Result<(Reply, Option<OwnedFd>), Errno> {
        let inode = (request.device, request.inode);
        if let Some((slot, _)) = self.shared.find(inode.0, inode.1) {
            if let Some(reply) = self.opened_split(slot) {
                return Ok((reply, None));
            }
            self.reconcile(slot, path, inode)?;
            return self.opened(slot, request.flags, guard);
        }
        let plain = Ok((Reply::default(), None));
        let Some(name) = self.name(path).filter(|name| self.matches(name)) else {
            return plain;
        };
        let Some(status) = status_of(path, inode) else {
            return plain;
        };
        if !status.is_file() {
            return plain;
        }
        if let Some(why) = self.why_plain(inode, path) {
            self.tell_of_plain(path, request.flags, why);
            return plain;
        }
        if is_placeholder(path, None) {
            let path = path.display();
            eprintln!(
                "gabion ncl: {path} is the placeholder of a file that this store does not have"
            );
            return Err(libc::EIO);
        }
        // Bytes that are there already stay where they are, and so does what is written in their
        // place by whoever opens it now.
        if status.len() > 0 {
            if request.flags as i32 & libc::O_ACCMODE != libc::O_RDONLY {
                self.keep_plain(inode, path, why::HAD_BYTES);
            }
            self.tell_of_plain(path, request.flags, why::HAD_BYTES);
            return plain;
        }
        let slot = self.create(name, path, &status)?;
        self.opened(slot, request.flags & !(libc::O_TRUNC as u32), guard)
    }

    fn create(&mut self, name: Vec<u8>, path: &Path, status: &Status) -> Result<u32, Errno> {
        let (slot, generation) = self.free_slot().ok_or(libc::ENFILE)?;
        let created = self.store.create(&name, metadata_of(status));
        let file = self.stored(created)?;
        let memory = self.store.memory(file);
        let mirror = memory.and_then(|memory| Mirror::new(generation, file, memory, status));
        let published = mirror.and_then(|mirror| self.publish(slot, mirror));
        if let Err(error) = published {
            // Nothing was written to it; without its name it is gone.
            let removed = self.store.edit_names(&[NameChange::Remove(name)]);
            self.stored(removed)?;
            return Err(errno(&error));
        }
        // The line is for people. A placeholder that may not be written is one without it.
        let _ = self.write_placeholder(path, file);
        self.names.insert(name, slot);
        self.count_links(slot);
        Ok(slot)
    }

    /// A process that died amid a renaming left the file system ahead of the names. While others
    /// live, theirs is the file system's view.
    fn reconcile(&mut self, slot: u32, path: &Path, inode: (u64, u64)) -> Result<(), Errno> {
        let Some(name) = self.name(path).filter(|_| status_of(path, inode).is_some()) else {
            return Ok(());
        };
        if self.names.get(&name) == Some(&slot) {
            return Ok(());
        }
        let file = self.mirrors[slot as usize].as_ref().ok_or(libc::ENOENT)?.file;
        let stale = self.names.iter().filter(|(name, of)| {
            let path = self.path(name);
            **of == slot && path.is_ok_and(|path| status_of(&path, inode).is_none())
        });
        let mut changes: Vec<NameChange> =
            stale.map(|(name, _)| NameChange::Remove(name.clone())).collect();
        changes.push(NameChange::Set(name, file));
        self.edit(&changes)
    }

    /// Changes names in the store, then here.
    fn edit(&mut self, changes: &[NameChange]) -> Result<(), Errno> {
        if changes.is_empty() {
            return Ok(());
        }
        let done = self.store.edit_names(changes);
        self.stored(done)?;
        let mut touched = Vec::new();
        for change in changes {
            let before = match change {
                NameChange::Remove(name) => self.names.remove(name),
                NameChange::Set(name, file) => {
                    let has = |mirror: &Option<Mirror>| {
                        mirror.as_ref().is_some_and(|mirror| mirror.file == *file)
                    };
                    let slot = self.mirrors.iter().position(has).ok_or(libc::ENOENT)? as u32;
                    touched.push(slot);
                    self.names.insert(name.clone(), slot)
                }
            };
            touched.extend(before);
        }
        touched.sort_unstable();
        touched.dedup();
        for slot in touched {
            self.count_links(slot);
        }
        Ok(())
    }

    fn count_links(&mut self, slot: u32) {
        let links = self.names.values().filter(|of| **of == slot).count();
        if links == 0 {
            self.forget(slot);
        } else if let Some(slot) = self.shared.slot(slot) {
            slot.links.store(links as u32, Relaxed);
        }
    }

    fn file_of(&self, name: &[u8]) -> Option<FileId> {
        let slot = self.names.get(name)?;
        Some(self.mirrors[*slot as usize].as_ref()?.file)
    }

    /// The request's inode is that of what was moved, if it was a file.
    pub(super) fn renamed(
        &mut self,
        request: &Request,
        from: &Path,
        to: &Path,
    ) -> Result<Reply, Errno> {
        let names = [from, to].map(|path| self.name(path));
        let changes = self.changes(request.value, &names);
        let [file_from, file_to] = self.files_of(&names);
        let [name_from, name_to] = names;
        if request.value & moved::DIRECTORY != 0 {
            self.came_below(name_from.as_deref(), name_to.as_deref());
        } else if request.value & moved::EXCHANGED != 0 {
            for (path, file) in [(from, file_to), (to, file_from)] {
                let status = std::fs::symlink_metadata(path).ok().filter(|_| file.is_none());
                let inode = status.map(|status| (status.dev(), status.ino()));
                if let Some(inode) = inode.filter(|inode| !self.is_leaving(*inode)) {
                    self.keep_plain(inode, path, why::RENAMED);
                }
            }
        } else if file_from.is_none() {
            self.bytes_from_elsewhere(request, to, name_to.as_deref(), file_to)?;
        }
        self.edit(&changes)?;
        Ok(Reply::default())
    }

    /// The changes that a renaming is. A name outside the root is none.
    fn changes(&self, value: u64, names: &[Option<Vec<u8>>; 2]) -> Vec<NameChange> {
        let [from, to] = names.each_ref().map(Option::as_ref);
        let [file_from, file_to] = self.files_of(names);
        let set = |name: Option<&Vec<u8>>, file: Option<FileId>| match (name, file) {
            (Some(name), Some(file)) => Some(NameChange::Set(name.clone(), file)),
            (Some(name), None) => Some(NameChange::Remove(name.clone())),
            (None, _) => None,
        };
        if value & moved::DIRECTORY != 0 {
            let both = from.zip(to);
            return both.map_or(Vec::new(), |(from, to)| self.moved_directory(from, to));
        }
        if value & moved::EXCHANGED != 0 {
            return set(from, file_to).into_iter().chain(set(to, file_from)).collect();
        }
        // Nothing happens to two names of one file.
        if file_from == file_to {
            return Vec::new();
        }
        let gone = file_from.and_then(|_| set(from, None));
        gone.into_iter().chain(set(to, file_from)).collect()
    }

    fn files_of(&self, names: &[Option<Vec<u8>>; 2]) -> [Option<FileId>; 2] {
        names.each_ref().map(|name| name.as_ref().and_then(|name| self.file_of(name)))
    }

    /// A file whose bytes are in the file system has got a name that matches, perhaps over a
    /// mirrored file. The store forgets that one at once, so the name that replaces it has to be as
    /// durable before.
    fn bytes_from_elsewhere(
        &mut self,
        request: &Request,
        to: &Path,
        name: Option<&[u8]>,
        replaced: Option<FileId>,
    ) -> Result<(), Errno> {
        let inode = (request.device, request.inode);
        let splits = |name| self.splits(name) && !self.is_leaving(inode);
        if name.is_some_and(|name| self.matches(name) || splits(name)) {
            self.keep_plain(inode, to, why::RENAMED);
        }
        if replaced.is_some() {
            let directory = to.parent().unwrap_or(Path::new("/"));
            let synced = File::open(directory).and_then(|directory| directory.sync_all());
            synced.map_err(|error| errno(&error))?;
        }
        Ok(())
    }

    fn moved_directory(&self, from: &[u8], to: &[u8]) -> Vec<NameChange> {
        let below = |name: &&Vec<u8>| name.starts_with(from) && name.get(from.len()) == Some(&b'/');
        let mut changes = Vec::new();
        for name in self.names.keys().filter(below) {
            changes.push(NameChange::Remove(name.clone()));
            let new = [to, &name[from.len()..]].concat();
            changes.extend(self.file_of(name).map(|file| NameChange::Set(new, file)));
        }
        changes
    }

    pub(super) fn linked(&mut self, request: &Request, path: &Path) -> Result<Reply, Errno> {
        // Not mirrored, and linked to a name that matches.
        if request.inode != 0 {
            self.keep_plain((request.device, request.inode), path, why::RENAMED);
            return Ok(Reply::default());
        }
        let file = self.mirror(request)?.file;
        let name = self.name(path).ok_or(libc::EXDEV)?;
        self.edit(&[NameChange::Set(name, file)])?;
        Ok(Reply::default())
    }

    pub(super) fn unlinked(&mut self, path: &Path) -> Result<Reply, Errno> {
        let name = self.name(path).filter(|name| self.names.contains_key(name));
        let change = name.map(NameChange::Remove);
        self.edit(change.as_slice())?;
        Ok(Reply::default())
    }

    /// A renaming is about to be made, or a link of the file of the request, if there is no first
    /// path.
    pub(super) fn may_name(
        &mut self,
        request: &Request,
        from: &Path,
        to: &Path,
    ) -> Result<Reply, Errno> {
        let is_link = from.as_os_str().is_empty();
        // The kernel has its own reason against a directory that is none.
        let has_parent = |path: &Path| path.parent().is_some_and(|it| it.canonicalize().is_ok());
        if !has_parent(to) || !is_link && !has_parent(from) {
            return Ok(Reply::default());
        }
        let names = [from, to].map(|path| self.name(path));
        if is_link {
            let [_, name] = names;
            let file = self.mirror(request)?.file;
            let change = NameChange::Set(name.ok_or(libc::EXDEV)?, file);
            return self.prepare(&[change], libc::ENAMETOOLONG);
        }
        if self.leaves_root(request.value, &names) {
            return Err(libc::EXDEV);
        }
        let changes = self.changes(request.value, &names);
        // Programs move the files of such a directory one by one.
        let is_directory = request.value & moved::DIRECTORY != 0;
        self.prepare(&changes, if is_directory { libc::EXDEV } else { libc::ENAMETOOLONG })
    }

    /// Whether a mirrored file would be renamed to where names are none.
    fn leaves_root(&self, value: u64, names: &[Option<Vec<u8>>; 2]) -> bool {
        let is_directory = value & moved::DIRECTORY != 0;
        let has_files = |name: &Option<Vec<u8>>| {
            let below =
                |name: &Vec<u8>| is_directory && !self.moved_directory(name, name).is_empty();
            name.as_ref().is_some_and(|name| self.file_of(name).is_some() || below(name))
        };
        let [from, to] = names;
        let goes_back = value & moved::EXCHANGED != 0 && from.is_none();
        to.is_none() && has_files(from) || goes_back && has_files(to)
    }

    /// Has the store make room for changes, unless it would refuse them. If it fails, they will
    /// tell.
    fn prepare(&mut self, changes: &[NameChange], refused: Errno) -> Result<Reply, Errno> {
        let prepared = if changes.is_empty() { Ok(()) } else { self.store.prepare_names(changes) };
        match prepared {
            Err(error) if error.kind() == io::ErrorKind::StorageFull => Err(self.refused(error)),
            Err(error) if refusal(&error).is_some() => Err(refused),
            Err(_) | Ok(()) => Ok(Reply::default()),
        }
    }
}

/// The file at a path, if it is that one.
fn status_of(path: &Path, inode: (u64, u64)) -> Option<Status> {
    let status = std::fs::symlink_metadata(path).ok()?;
    ((status.dev(), status.ino()) == inode).then_some(status)
}

/// True for the placeholder of that application, or of any.
fn is_placeholder(path: &Path, application: Option<&str>) -> bool {
    let regular = std::fs::symlink_metadata(path).is_ok_and(|status| status.is_file());
    let mut begin = Vec::new();
    let read = regular
        && File::open(path).is_ok_and(|file| file.take(512).read_to_end(&mut begin).is_ok());
    let mark = application.map_or(MARK.to_owned(), |name| format!("{MARK}{name} "));
    read && begin.starts_with(mark.as_bytes())
}

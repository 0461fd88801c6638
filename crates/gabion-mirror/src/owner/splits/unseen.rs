//! Files that a process may have open unseen: the owner hears of no descriptor that was opened by a
//! name which does not match. So a file that gets a matching name stays in the file system for the
//! rest of the run, unless it was split until then.

use super::Leaving;
use crate::owner::State;
use crate::owner::plain::why;
use crate::wire::{HAS_NAMES, Reply, Request, WAS_SPLIT, kind};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

impl State {
    /// A directory was moved. Files below it have other names that match only if they come from
    /// outside of the root, or globs hold whole paths.
    pub(in crate::owner) fn came_below(&mut self, from: Option<&[u8]>, to: Option<&[u8]>) {
        let is_by_path = self.settings.all_globs().contains('/');
        let to = to.and_then(|to| self.path(to).ok());
        if let Some(to) = to.filter(|_| is_by_path || from.is_none()) {
            let were_split = self.were_split();
            self.note_unseen(&to, true, &were_split);
        }
    }

    /// A file that was split and is not, or has several names, and whose writer goes on unseen,
    /// must not be split for others.
    pub(in crate::owner) fn note_plain(&mut self, request: &Request, path: &Path, reply: &Reply) {
        let inode = (request.device, request.inode);
        let why = match request.value {
            WAS_SPLIT => why::RENAMED,
            HAS_NAMES => why::SEVERAL_NAMES,
            _ => return,
        };
        if reply.kind == kind::PLAIN && self.why_plain(inode, path).is_none() {
            self.keep_plain(inode, path, why);
        }
    }

    /// Files that were split until their names began to change.
    fn were_split(&self) -> Vec<(u64, u64)> {
        self.split.leaving.iter().flat_map(|leaving| leaving.inodes.iter().copied()).collect()
    }

    /// Forgets changes of names whose processes died amid them. They may have been made.
    pub(super) fn forget_dead(&mut self) {
        let lives = |process: i32| Path::new("/proc").join(process.to_string()).exists();
        let leaving = std::mem::take(&mut self.split.leaving).into_iter();
        let (alive, dead): (_, Vec<Leaving>) = leaving.partition(|leaving| lives(leaving.process));
        self.split.leaving = alive;
        for Leaving { names, inodes, .. } in dead {
            for name in names.names.iter().flatten() {
                if let Ok(path) = self.path(name) {
                    self.note_unseen(&path, names.directory, &inodes);
                }
            }
        }
    }

    /// Notes the file at a path, or all below it.
    fn note_unseen(&mut self, path: &Path, below: bool, were_split: &[(u64, u64)]) {
        let Ok(status) = path.symlink_metadata() else { return };
        if below && status.is_dir() {
            let entries = path.read_dir().into_iter().flatten().flatten();
            return entries.for_each(|entry| self.note_unseen(&entry.path(), true, were_split));
        }
        let Ok(name) = path.strip_prefix(&self.settings.root) else { return };
        let name = name.as_os_str().as_bytes();
        let inode = (status.dev(), status.ino());
        let matches = self.matches(name) || self.splits(name);
        if status.is_file() && matches && !were_split.contains(&inode) {
            self.keep_plain(inode, path, why::RENAMED);
        }
    }
}

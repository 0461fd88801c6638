//! Files that match and stay in the file system all the same, as long as they are there. A number
//! (device, inode) finds them; the file that has it next is another one, which its handle tells.
//! The number alone counts if there is no handle: the next file of it stays, too. A file that
//! is gone is forgotten when its number comes again, so on file systems that give none twice, as
//! btrfs and tmpfs, at the end of the run.

use super::{Errno, State};
use crate::handle;
use rustix::fs::{Mode, OFlags};
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Why a file stays: sentences that go on from its path.
pub(super) mod why {
    pub(in super::super) const HAD_BYTES: &str = "had bytes before it was mirrored";
    pub(in super::super) const RENAMED: &str =
        "got its name by a rename or a link, and may be open unseen";
    pub(in super::super) const SEVERAL_NAMES: &str = "has or had several names";
    pub(in super::super) const TOO_MANY: &str = "is one too many: 512 files are split";
    pub(in super::super) const UNOPENED: &str = "cannot be opened by `gabion ncl run`";
    pub(in super::super) const UNSYNCED: &str = "cannot be synced with its directories";
    pub(in super::super) const TOO_LONG: &str = "has a name that is too long for the store";
}

/// One of them.
#[derive(Debug)]
pub(super) struct Plain {
    handle: Option<Vec<u8>>,
    why: &'static str,
    /// It would be split.
    is_split: bool,
}

/// The handle of the file at a path, if it is that one and has one.
fn handle_of(path: &Path, inode: (u64, u64)) -> Option<Vec<u8>> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty()).ok()?);
    let status = file.metadata().ok()?;
    let is_it = (status.dev(), status.ino()) == inode;
    is_it.then(|| handle::of(&file.into())).flatten()
}

impl State {
    /// The file at the path stays where it is.
    pub(super) fn keep_plain(&mut self, inode: (u64, u64), path: &Path, why: &'static str) {
        let name = self.name(path);
        let is_split = name.is_some_and(|name| !self.matches(&name) && self.splits(&name));
        let plain = Plain { handle: handle_of(path, inode), why, is_split };
        let is_it = |former: Plain| former.is_split && former.handle == plain.handle;
        if is_split && !self.plain.remove(&inode).is_some_and(is_it) {
            self.shared.count_left_alone();
        }
        self.plain.insert(inode, plain);
    }

    /// Why the file at the path stays where it is, if it does.
    pub(super) fn why_plain(&mut self, inode: (u64, u64), path: &Path) -> Option<&'static str> {
        let Plain { handle, why, .. } = self.plain.get(&inode)?;
        let now = handle.as_ref().and_then(|_| handle_of(path, inode));
        if now.is_some() && now != *handle {
            self.plain.remove(&inode);
            return None;
        }
        Some(why)
    }

    /// The user of the globs is told of the first file that they match and that is written where
    /// it is. Others are alike: PostgreSQL's segments, which it uses again and again.
    pub(super) fn tell_of_plain(&mut self, path: &Path, flags: u32, why: &str) {
        let is_written = flags as i32 & libc::O_ACCMODE != libc::O_RDONLY;
        if is_written && !std::mem::replace(&mut self.is_plain_told, true) {
            eprintln!(
                "gabion ncl: {} {why}, so it stays in the file system, as any such file does, and \
                 is as durable as that; `gabion ncl import` takes files",
                path.display()
            );
        }
    }

    /// The same of files that would be split.
    pub(super) fn tell_of_unsplit(&mut self, path: &Path, flags: u32, why: &str) {
        let is_written = flags as i32 & libc::O_ACCMODE != libc::O_RDONLY;
        if is_written && !std::mem::replace(&mut self.is_unsplit_told, true) {
            eprintln!(
                "gabion ncl: {} {why}, so it is left alone, as any such file is, and its syncs \
                 wait for the disk; the metric gabion_ncl_app_split_left_alone_total counts them",
                path.display()
            );
        }
    }

    /// A file that would be split is left alone.
    pub(super) fn leave_unsplit(
        &mut self,
        (inode, path): ((u64, u64), &Path),
        flags: u32,
        why: &'static str,
    ) {
        self.keep_plain(inode, path, why);
        self.tell_of_unsplit(path, flags, why);
    }
}

/// The errno for names that a store refused, and has not changed: too long, or too many at once.
pub(super) fn refusal(error: &std::io::Error) -> Option<Errno> {
    (error.kind() == std::io::ErrorKind::InvalidInput).then_some(libc::ENAMETOOLONG)
}

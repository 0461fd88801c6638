//! A start after a run that did not end: frames of its journal go into their files.

use super::{invalid, parse_name, salt};
use crate::files::Listed;
use crate::journal;
use crate::owner::State;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs::{File, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

impl State {
    /// Puts the frames of a run that did not end into their files, syncs these, and removes the
    /// journal.
    pub(in crate::owner) fn apply_journal(&mut self, listed: &Listed) -> io::Result<()> {
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
        let failed = |number: &u64, error: io::Error| {
            let name = names.get(number).map(|name| String::from_utf8_lossy(name));
            let name = name.unwrap_or_default();
            let text = format!("{name}, which gets what the journal has of it: {error}");
            io::Error::new(error.kind(), text)
        };
        for (frame, own) in &frames {
            let written = files[&frame.file].write_all_at(&bytes[own.clone()], frame.offset);
            written.map_err(|error| failed(&frame.file, error))?;
        }
        for (number, file) in &files {
            file.sync_all().map_err(|error| failed(number, error))?;
        }
        // Empty before its first name goes, and there until its last one has.
        if let Some((at, head)) = journal::next_head(&bytes, salt()?) {
            if let Some(memory) = self.store.memory(listed.file)? {
                memory.write_all_at(&head, at)?;
            }
            self.store.pwrite(listed.file, at, &head)?;
        }
        let (last, others): (Vec<_>, Vec<_>) =
            listed.names.iter().cloned().partition(|name| parse_name(name).is_none());
        self.remove_names(others.into_iter().chain(last))?;
        self.store.sync()
    }

    fn open_to_apply(&self, number: u64, name: Option<&[u8]>) -> io::Result<File> {
        let text = || format!("the journal has frames of file {number}, which has no name");
        let name = name.ok_or_else(|| invalid(text()))?;
        let path = self.path(name)?;
        open_to_write(&path).map_err(|error| {
            let wanted = match error.kind() {
                io::ErrorKind::PermissionDenied => "this user must be able to write to it",
                _ => "a split file must lie below --root as its last run left it",
            };
            let text = format!(
                "{} cannot be opened ({error}), of which the journal has synced writes: {wanted}",
                path.display()
            );
            io::Error::new(error.kind(), text)
        })
    }
}

/// Opens a file for writing, also one that its owner may only read, as it was when its program made
/// it.
fn open_to_write(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    let flags = libc::O_PATH | libc::O_NOFOLLOW;
    let found = options.read(true).custom_flags(flags).open(path)?;
    if !found.metadata()?.is_file() {
        return Err(invalid("it is no file".to_owned()));
    }
    // The file itself, whatever has its name by now.
    let found_path = format!("/proc/self/fd/{}", found.as_raw_fd());
    let open = || File::options().write(true).open(&found_path);
    match open() {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            let mode = found.metadata()?.permissions().mode();
            let set = |mode| std::fs::set_permissions(&found_path, Permissions::from_mode(mode));
            set(mode | 0o200)?;
            let opened = open();
            set(mode)?;
            opened
        }
        opened => opened,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use std::io::Write;
    use std::os::unix::fs::MetadataExt;

    /// A program may keep a descriptor that writes to a file that it made read-only.
    #[test]
    fn a_file_that_its_owner_may_only_read_is_opened_and_keeps_its_mode() {
        let dir = std::env::temp_dir().join(format!("gabion-apply-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let path = dir.join("a.db");
        std::fs::write(&path, "old").unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o400)).unwrap();
        let (user, own) = (65_534, rustix::process::getuid().as_raw());
        if own == 0 {
            std::os::unix::fs::chown(&path, Some(user), None).unwrap();
        }
        let of_user = path.clone();
        let opened = std::thread::spawn(move || {
            if own == 0 {
                rustix::thread::set_thread_uid(rustix::process::Uid::from_raw(user)).unwrap();
            }
            open_to_write(&of_user)
        });
        opened.join().unwrap().unwrap().write_all(b"new").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "new");
        assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o400);
        std::os::unix::fs::symlink("a.db", dir.join("b.db")).unwrap();
        assert!(open_to_write(&dir.join("b.db")).is_err(), "a link is no split file");
        std::fs::remove_dir_all(&dir).unwrap();
    }
}

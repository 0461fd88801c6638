//! The files of an application as the interposer's owner sees them.

use crate::Logs;
use gabion_base::{Error, ErrorKind, Result};
use gabion_mirror::direct::Window;
use gabion_mirror::files::{FileId, Listed, LogFiles, Metadata, NameChange};
use gabion_mirror::shared::Shared;
use gabion_ncl::{FileNumber, NameEdit};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs::File;
use std::io;
use std::sync::Arc;

/// A store of log files at log peers.
///
/// Names are bytes there and text here: bytes that are no UTF-8, and '%', become '%' and two
/// digits.
#[derive(Clone)]
pub struct PeerFiles {
    logs: Arc<Logs>,
}

impl PeerFiles {
    /// Files of an instance, which others may look at meanwhile.
    #[must_use]
    pub const fn new(logs: Arc<Logs>) -> Self {
        Self { logs }
    }
}

fn io_error(error: Error) -> io::Error {
    let kind = match error.kind() {
        ErrorKind::NotFound => io::ErrorKind::NotFound,
        // Names that are too long, or too many at once; nothing was changed.
        ErrorKind::LimitExceeded => io::ErrorKind::InvalidInput,
        ErrorKind::Unavailable => io::ErrorKind::TimedOut,
        ErrorKind::NoSpace => io::ErrorKind::StorageFull,
        _ => io::ErrorKind::Other,
    };
    io::Error::new(kind, error)
}

/// A name as text; different names are different texts. Bytes that are no UTF-8, and '%', become
/// '%' and two digits; `gabion_mirror::local::unescape` takes it back.
#[must_use]
pub fn escape(name: &[u8]) -> String {
    let mut text = String::new();
    for chunk in name.utf8_chunks() {
        text.push_str(&chunk.valid().replace('%', "%25"));
        for byte in chunk.invalid() {
            // A string takes all.
            let _ = write!(text, "%{byte:02x}");
        }
    }
    text
}

/// The name that a text means.
fn unescape(text: &str) -> Result<Vec<u8>> {
    let bad = || Error::corruption(format!("'{}' is no name", text.escape_debug()));
    gabion_mirror::local::unescape(text).ok_or_else(bad)
}

fn edits(changes: &[NameChange]) -> Vec<NameEdit> {
    let edit = |change: &NameChange| match change {
        NameChange::Set(name, file) => {
            NameEdit::Set { path: escape(name), file: FileNumber(file.0) }
        }
        NameChange::Remove(name) => NameEdit::Remove { path: escape(name) },
    };
    changes.iter().map(edit).collect()
}

fn to_core(metadata: Metadata) -> gabion_ncl::Metadata {
    let Metadata { mode, user, group } = metadata;
    gabion_ncl::Metadata { mode, user, group, modified_ns: 0 }
}

impl PeerFiles {
    fn listed(&self) -> Result<Vec<Listed>> {
        self.logs.wait_until_ready()?;
        let mut names: BTreeMap<FileNumber, Vec<Vec<u8>>> = BTreeMap::new();
        for (name, file) in self.logs.list("")? {
            names.entry(file).or_default().push(unescape(&name)?);
        }
        let listed = names.into_iter().map(|(file, names)| {
            let stat = self.logs.stat(file)?;
            let gabion_ncl::Metadata { mode, user, group, .. } = stat.entry.metadata;
            let metadata = Metadata { mode, user, group };
            Ok(Listed { file: FileId(file.0), names, len: stat.len, metadata })
        });
        listed.collect()
    }
}

impl LogFiles for PeerFiles {
    fn recover(&mut self) -> io::Result<Vec<Listed>> {
        self.listed().map_err(io_error)
    }

    fn attach(&mut self, changes: Shared) {
        self.logs.attach(changes);
    }

    fn memory(&mut self, file: FileId) -> io::Result<Option<File>> {
        self.logs.memory(FileNumber(file.0)).map_err(io_error)
    }

    fn create(&mut self, name: &[u8], metadata: Metadata) -> io::Result<FileId> {
        let (name, metadata) = (escape(name), to_core(metadata));
        let created = self.logs.change(|core| core.create(&name, metadata));
        created.map(|(file, _)| FileId(file.0)).map_err(io_error)
    }

    fn read(&mut self, file: FileId, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        self.logs.read(FileNumber(file.0), offset, into).map_err(io_error)
    }

    fn pwrite(&mut self, file: FileId, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.logs.write(FileNumber(file.0), offset, bytes).map(|_| ()).map_err(io_error)
    }

    fn truncate(&mut self, file: FileId, len: u64) -> io::Result<()> {
        self.logs.truncate(FileNumber(file.0), len).map(|_| ()).map_err(io_error)
    }

    fn reserve(&mut self, file: FileId, end: u64) -> io::Result<Option<u64>> {
        self.logs.reserve(FileNumber(file.0), end).map_err(|error| match error.kind() {
            ErrorKind::LimitExceeded => io::Error::new(io::ErrorKind::FileTooLarge, error),
            _ => io_error(error),
        })
    }

    fn trim(&mut self, lens: &[(FileId, u64)]) -> io::Result<bool> {
        let lens = lens.iter().map(|(file, len)| (FileNumber(file.0), *len)).collect();
        self.logs.change(|core| core.trim(&lens)).map(|(trimmed, _)| trimmed).map_err(io_error)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.logs.sync().map_err(io_error)
    }

    fn sync_or_more(&mut self) -> io::Result<bool> {
        self.logs.sync_or_more().map_err(io_error)
    }

    fn grant(&mut self, file: FileId, slot: u32, generation: u32) {
        self.logs.grant(FileNumber(file.0), slot, generation);
    }

    fn window(&self, number: u64) -> Option<Arc<Window>> {
        self.logs.window(number)
    }

    fn prepare_names(&mut self, changes: &[NameChange]) -> io::Result<()> {
        self.logs.prepare_names(&edits(changes)).map_err(io_error)
    }

    fn edit_names(&mut self, changes: &[NameChange]) -> io::Result<()> {
        let edits = edits(changes);
        self.logs.change(|core| core.edit_names(&edits)).map(|_| ()).map_err(io_error)
    }

    fn set_metadata(&mut self, file: FileId, metadata: Metadata) -> io::Result<()> {
        let (file, metadata) = (FileNumber(file.0), to_core(metadata));
        self.logs.change(|core| core.set_metadata(file, metadata)).map(|_| ()).map_err(io_error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_any_bytes_come_back_as_they_were() {
        let names: [&[u8]; 5] = [b"a/b.aof", b"100%", b"\xff\xfe%41", "ä€".as_bytes(), b"%"];
        let texts: Vec<String> = names.iter().map(|name| escape(name)).collect();
        assert_eq!(texts, ["a/b.aof", "100%25", "%ff%fe%2541", "ä€", "%25"]);
        for (name, text) in names.iter().zip(&texts) {
            assert_eq!(unescape(text).unwrap(), *name);
        }
        for bad in ["%", "%4", "%x1", "a%ä"] {
            assert!(unescape(bad).is_err(), "{bad}");
        }
    }
}

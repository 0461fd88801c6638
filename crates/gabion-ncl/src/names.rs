//! The table of names: which file has which names, its metadata, and which parts it has.
//!
//! The table is a file itself, so a rename is a record like any other and stands in the one order
//! with the writes before and after it. Each of its two files is a list of frames:
//!
//! ```text
//!   frame     body length u32 | CRC32C of the body u32 | body
//!   body      kind u8 | fields by kind; the first frame is a table
//!     0 table   generation u64 | next file u64 | files varint, each:
//!               file u64, links u32, metadata, parts varint, bytes u64 each
//!               | names varint, each: path prefixed, file u64
//!     1 create  file u64, metadata, bytes of part 0 u64, path prefixed
//!     2 link    file u64, path prefixed        3 rename  from prefixed, to prefixed
//!     4 unlink  path prefixed                  5 meta    file u64, metadata
//!     6 grow    file u64, bytes of part u64    7 forget  file u64
//!   metadata  mode u32, user u32, group u32, modified i64
//! ```
//!
//! A table that has become long goes into the other file whole, with the next generation, and later
//! frames follow it there. Recovery takes the greatest generation whose table is complete.

use crate::layout::parts_of;
use crate::number::FileNumber;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use gabion_base::codec::{Put, Reader};
use gabion_base::{Error, Result, crc};

/// Longest path in bytes.
pub const PATH_LEN_MAX: usize = 4095;
/// Most parts of a file.
pub const PARTS_MAX: usize = 4096;
/// Bytes before a frame's body.
const FRAME_HEADER_LEN: usize = 8;
const WHAT: &str = "table of names";

/// Metadata of a file that its program sets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Metadata {
    /// Type and permissions, as `st_mode`.
    pub mode: u32,
    /// The user that owns it.
    pub user: u32,
    /// The group that owns it.
    pub group: u32,
    /// Time of modification that was set, in ns since 1970.
    pub modified_ns: i64,
}

/// A file in the table.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct FileEntry {
    /// Its names.
    pub links: u32,
    /// Its metadata.
    pub metadata: Metadata,
    /// The bytes of data of each part.
    pub parts: Vec<u64>,
}

impl FileEntry {
    /// Bytes that the parts hold.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        self.parts.iter().sum()
    }
}

/// A change of the table.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Change {
    /// A new file under a free name.
    Create {
        /// The file.
        file: FileNumber,
        /// Its metadata.
        metadata: Metadata,
        /// Bytes of part 0.
        bytes: u64,
        /// Its name.
        path: String,
    },
    /// One more name, which is free.
    Link {
        /// The file.
        file: FileNumber,
        /// The name.
        path: String,
    },
    /// Another name; a file that had it loses it.
    Rename {
        /// The old name.
        from: String,
        /// The new one.
        to: String,
    },
    /// A name less.
    Unlink {
        /// The name.
        path: String,
    },
    /// Other metadata.
    Metadata {
        /// The file.
        file: FileNumber,
        /// The metadata.
        metadata: Metadata,
    },
    /// One more part.
    Grow {
        /// The file.
        file: FileNumber,
        /// Bytes of the part.
        bytes: u64,
    },
    /// A file without a name is closed: its parts go.
    Forget {
        /// The file.
        file: FileNumber,
    },
}

/// A change of one name, out of several that are made together.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum NameEdit {
    /// The name is this file's from now on, and no other's.
    Set {
        /// The name.
        path: String,
        /// The file.
        file: FileNumber,
    },
    /// The name is nobody's, as it may be already.
    Remove {
        /// The name.
        path: String,
    },
}

/// The table.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Names {
    names: BTreeMap<String, FileNumber>,
    files: BTreeMap<FileNumber, FileEntry>,
    next: FileNumber,
}

impl Default for Names {
    fn default() -> Self {
        let (names, files) = (BTreeMap::new(), BTreeMap::new());
        Self { names, files, next: FileNumber::FIRST }
    }
}

impl Names {
    /// The file of this name.
    #[must_use]
    pub fn get(&self, path: &str) -> Option<FileNumber> {
        self.names.get(path).copied()
    }

    /// A file of the table.
    #[must_use]
    pub fn file(&self, file: FileNumber) -> Option<&FileEntry> {
        self.files.get(&file)
    }

    /// All files.
    pub fn files(&self) -> impl Iterator<Item = (FileNumber, &FileEntry)> {
        self.files.iter().map(|(file, entry)| (*file, entry))
    }

    /// The names that begin with `prefix`, in their order.
    pub fn list(&self, prefix: &str) -> impl Iterator<Item = (&str, FileNumber)> {
        let from = self.names.range(prefix.to_string()..);
        from.take_while(move |(name, _)| name.starts_with(prefix))
            .map(|(name, file)| (name.as_str(), *file))
    }

    /// Bytes at most that the table is longer once it has the names `set` and lacks `removed`.
    pub(crate) fn added(&self, set: &[&str], removed: &[&str]) -> u64 {
        let is_here = |path: &&str| self.names.contains_key(*path);
        let set: BTreeSet<&str> = set.iter().copied().collect();
        let gone: BTreeSet<&str> = removed.iter().copied().filter(is_here).collect();
        let len = |path: &str| name_len(path) as u64;
        let added: u64 = set.iter().filter(|path| !is_here(path)).map(|path| len(path)).sum();
        let lacks: u64 = gone.difference(&set).map(|path| len(path)).sum();
        // Of numbers of names one may be longer.
        if added > lacks { added - lacks + 1 } else { 0 }
    }

    /// The number of the next new file.
    #[must_use]
    pub const fn next(&self) -> FileNumber {
        self.next
    }

    /// Without the files that have lost their names: nobody has them open.
    #[must_use]
    pub fn without_nameless(mut self) -> Self {
        self.files.retain(|_, entry| entry.links > 0);
        self
    }

    /// A name of a file.
    #[must_use]
    pub fn name_of(&self, file: FileNumber) -> Option<&str> {
        self.names.iter().find(|(_, of)| **of == file).map(|(name, _)| name.as_str())
    }

    /// A file keeps its first parts. No frame says so: the table is to be written anew.
    pub(crate) fn keep_parts(&mut self, file: FileNumber, count: usize) {
        self.change(file, |entry| entry.parts.truncate(count));
    }

    /// Without the parts that files of these lengths need not have.
    pub(crate) fn fitted(mut self, lens: &BTreeMap<FileNumber, u64>) -> Self {
        for (file, entry) in &mut self.files {
            let len = lens.get(file).copied().unwrap_or(0);
            entry.parts.truncate(parts_of(&entry.parts, len));
        }
        self
    }

    /// Whether a change fits the table.
    ///
    /// # Errors
    /// Invalid input or not found, with the name; limit exceeded for a path or too many parts.
    pub fn check(&self, change: &Change) -> Result<()> {
        match change {
            Change::Create { file, path, .. } => {
                debug_assert!(*file >= self.next, "{file} is new");
                self.check_free(path)
            }
            Change::Link { file, path } => {
                self.entry(*file)?;
                self.check_free(path)
            }
            Change::Rename { from, to } => {
                self.named(from)?;
                check_path(to)
            }
            Change::Unlink { path } => self.named(path).map(|_| ()),
            Change::Metadata { file, .. } => self.entry(*file).map(|_| ()),
            Change::Grow { file, .. } => match self.entry(*file)?.parts.len() {
                PARTS_MAX.. => {
                    Err(Error::limit(format!("{file}: {PARTS_MAX} parts, the most of a file")))
                }
                _ => Ok(()),
            },
            Change::Forget { file } => match self.entry(*file)?.links {
                0 => Ok(()),
                links => Err(Error::invalid(format!("{file} has {links} names and stays"))),
            },
        }
    }

    /// Makes a change. Files that have lost their last name stay until they are forgotten.
    ///
    /// # Errors
    /// As [`Self::check`]; then nothing changed.
    pub fn apply(&mut self, change: &Change) -> Result<()> {
        self.check(change)?;
        match change {
            Change::Create { file, metadata, bytes, path } => {
                let entry = FileEntry { links: 1, metadata: *metadata, parts: [*bytes].into() };
                self.files.insert(*file, entry);
                self.names.insert(path.clone(), *file);
                self.next = FileNumber(file.0 + 1);
            }
            Change::Link { file, path } => {
                self.names.insert(path.clone(), *file);
                self.change(*file, |entry| entry.links += 1);
            }
            Change::Rename { from, to } => self.rename(from, to),
            Change::Unlink { path } => {
                let file = self.names.remove(path);
                file.into_iter().for_each(|file| self.change(file, |entry| entry.links -= 1));
            }
            Change::Metadata { file, metadata } => {
                self.change(*file, |entry| entry.metadata = *metadata);
            }
            Change::Grow { file, bytes } => self.change(*file, |entry| entry.parts.push(*bytes)),
            Change::Forget { file } => drop(self.files.remove(file)),
        }
        Ok(())
    }

    /// Two names of one file stay both, as POSIX has it.
    fn rename(&mut self, from: &str, to: &str) {
        if self.get(from) == self.get(to) {
            return;
        }
        let Some(file) = self.names.remove(from) else { return };
        if let Some(replaced) = self.names.insert(to.to_string(), file) {
            self.change(replaced, |entry| entry.links -= 1);
        }
    }

    fn change(&mut self, file: FileNumber, change: impl FnOnce(&mut FileEntry)) {
        change(self.files.get_mut(&file).expect("a name's file is in the table"));
    }

    fn entry(&self, file: FileNumber) -> Result<&FileEntry> {
        self.files.get(&file).ok_or_else(|| Error::not_found(format!("{file} does not exist")))
    }

    fn named(&self, path: &str) -> Result<FileNumber> {
        self.get(path).ok_or_else(|| Error::not_found(format!("'{path}' does not exist")))
    }

    /// Whether a new file may have this name.
    pub(crate) fn check_new(&self, path: &str) -> Result<()> {
        self.check_free(path)
    }

    fn check_free(&self, path: &str) -> Result<()> {
        check_path(path)?;
        match self.get(path) {
            None => Ok(()),
            Some(file) => Err(Error::invalid(format!("'{path}' exists: it is {file}"))),
        }
    }

    /// The frame of the whole table.
    #[must_use]
    pub fn encode(&self, generation: u64) -> Vec<u8> {
        let mut body = Vec::new();
        body.put_u8(0);
        body.put_u64(generation);
        body.put_u64(self.next.0);
        body.put_varint(self.files.len() as u64);
        for (file, entry) in &self.files {
            body.put_u64(file.0);
            body.put_u32(entry.links);
            put_metadata(&mut body, entry.metadata);
            body.put_varint(entry.parts.len() as u64);
            entry.parts.iter().for_each(|bytes| body.put_u64(*bytes));
        }
        body.put_varint(self.names.len() as u64);
        for (path, file) in &self.names {
            body.put_prefixed(path.as_bytes());
            body.put_u64(file.0);
        }
        frame(&body)
    }

    fn decode(body: &[u8]) -> Result<(u64, Self)> {
        let mut reader = Reader::new(body, WHAT);
        if reader.u8()? != 0 {
            return Err(Error::corruption(format!("{WHAT}: does not begin with a table")));
        }
        let (generation, next) = (reader.u64()?, FileNumber(reader.u64()?));
        let mut table = Self { next, ..Self::default() };
        for _ in 0..reader.varint()? {
            let file = FileNumber(reader.u64()?);
            let (links, metadata) = (reader.u32()?, metadata(&mut reader)?);
            let mut entry = FileEntry { links, metadata, parts: Vec::new() };
            for _ in 0..reader.varint()? {
                entry.parts.push(reader.u64()?);
            }
            table.files.insert(file, entry);
        }
        for _ in 0..reader.varint()? {
            let path = path(&mut reader)?;
            table.names.insert(path, FileNumber(reader.u64()?));
        }
        let ends = table.names.values().all(|file| table.files.contains_key(file));
        if !ends || !reader.is_empty() {
            return Err(Error::corruption(format!("{WHAT}: a name without a file")));
        }
        Ok((generation, table))
    }

    /// The table that a file of it holds, its generation, and how far its frames are whole. None
    /// when the file does not even hold the table that it begins with.
    ///
    /// # Errors
    /// Corruption, with the place of the frame.
    pub fn read(bytes: &[u8]) -> Result<Option<(u64, Self, u64)>> {
        let Some((body, mut end)) = next_frame(bytes, 0)? else { return Ok(None) };
        let (generation, mut table) = Self::decode(body)?;
        while let Some((body, next)) = next_frame(bytes, end)? {
            let change = Change::decode(body)?;
            let applied = table.apply(&change);
            applied
                .map_err(|error| Error::corruption(format!("{WHAT}: frame at {end}: {error}")))?;
            end = next;
        }
        Ok(Some((generation, table, end as u64)))
    }
}

impl Change {
    /// The frame of the change.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut body = Vec::new();
        match self {
            Self::Create { file, metadata, bytes, path } => {
                body.put_u8(1);
                body.put_u64(file.0);
                put_metadata(&mut body, *metadata);
                body.put_u64(*bytes);
                body.put_prefixed(path.as_bytes());
            }
            Self::Link { file, path } => {
                body.put_u8(2);
                body.put_u64(file.0);
                body.put_prefixed(path.as_bytes());
            }
            Self::Rename { from, to } => {
                body.put_u8(3);
                body.put_prefixed(from.as_bytes());
                body.put_prefixed(to.as_bytes());
            }
            Self::Unlink { path } => {
                body.put_u8(4);
                body.put_prefixed(path.as_bytes());
            }
            Self::Metadata { file, metadata } => {
                body.put_u8(5);
                body.put_u64(file.0);
                put_metadata(&mut body, *metadata);
            }
            Self::Grow { file, bytes } => {
                body.put_u8(6);
                body.put_u64(file.0);
                body.put_u64(*bytes);
            }
            Self::Forget { file } => {
                body.put_u8(7);
                body.put_u64(file.0);
            }
        }
        frame(&body)
    }

    fn decode(body: &[u8]) -> Result<Self> {
        let mut reader = Reader::new(body, WHAT);
        let kind = reader.u8()?;
        let change = match kind {
            1 => {
                let (file, metadata) = (FileNumber(reader.u64()?), metadata(&mut reader)?);
                Self::Create { file, metadata, bytes: reader.u64()?, path: path(&mut reader)? }
            }
            2 => Self::Link { file: FileNumber(reader.u64()?), path: path(&mut reader)? },
            3 => Self::Rename { from: path(&mut reader)?, to: path(&mut reader)? },
            4 => Self::Unlink { path: path(&mut reader)? },
            5 => {
                let file = FileNumber(reader.u64()?);
                Self::Metadata { file, metadata: metadata(&mut reader)? }
            }
            6 => Self::Grow { file: FileNumber(reader.u64()?), bytes: reader.u64()? },
            7 => Self::Forget { file: FileNumber(reader.u64()?) },
            _ => return Err(Error::unsupported(format!("{WHAT}: frame of kind {kind}"))),
        };
        if !reader.is_empty() {
            return Err(Error::corruption(format!("{WHAT}: frame with bytes left over")));
        }
        Ok(change)
    }
}

fn check_path(path: &str) -> Result<()> {
    match path.len() {
        0 => Err(Error::invalid("a path is empty")),
        1..=PATH_LEN_MAX => Ok(()),
        len => Err(Error::limit(format!("a path has {len} bytes, limit {PATH_LEN_MAX}"))),
    }
}

fn put_metadata(out: &mut Vec<u8>, metadata: Metadata) {
    out.put_u32(metadata.mode);
    out.put_u32(metadata.user);
    out.put_u32(metadata.group);
    out.put_u64(metadata.modified_ns as u64);
}

fn metadata(reader: &mut Reader<'_>) -> Result<Metadata> {
    let (mode, user, group) = (reader.u32()?, reader.u32()?, reader.u32()?);
    Ok(Metadata { mode, user, group, modified_ns: reader.u64()? as i64 })
}

fn path(reader: &mut Reader<'_>) -> Result<String> {
    let len = reader.varint()?;
    let bytes = reader.bytes(usize::try_from(len).unwrap_or(usize::MAX))?;
    let text = core::str::from_utf8(bytes);
    text.map(ToString::to_string).map_err(|_| Error::corruption(format!("{WHAT}: path")))
}

/// Bytes of a name in the table: the length of its path, the path and the file.
const fn name_len(path: &str) -> usize {
    let prefix = if path.len() < 128 { 1 } else { 2 };
    prefix + path.len() + 8
}

fn frame(body: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(FRAME_HEADER_LEN + body.len());
    out.put_u32(u32::try_from(body.len()).expect("a table is far below 4 GiB"));
    out.put_u32(crc::crc32c(body));
    out.put_bytes(body);
    out
}

/// The body of the frame at `at`, and where the next one begins. None where the bytes end.
fn next_frame(bytes: &[u8], at: usize) -> Result<Option<(&[u8], usize)>> {
    let mut reader = Reader::new(&bytes[at..], WHAT);
    if reader.remaining() < FRAME_HEADER_LEN {
        return Ok(None);
    }
    let (len, sum) = (reader.u32()? as usize, reader.u32()?);
    if reader.remaining() < len {
        return Ok(None);
    }
    let body = reader.bytes(len)?;
    if crc::crc32c(body) != sum {
        return Err(Error::corruption(format!("{WHAT}: frame at {at} has another checksum")));
    }
    Ok(Some((body, at + FRAME_HEADER_LEN + len)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    fn create(file: u64, path: &str) -> Change {
        let metadata = Metadata { mode: 0o100_644, user: 5, group: 6, modified_ns: -1 };
        Change::Create { file: FileNumber(file), metadata, bytes: 4096, path: path.to_string() }
    }

    fn changes() -> Vec<Change> {
        let (file, metadata) =
            (FileNumber(2), Metadata { mode: 1, modified_ns: 2, ..Metadata::default() });
        vec![
            create(2, "a"),
            create(3, "b"),
            Change::Link { file, path: "dir/a".to_string() },
            Change::Metadata { file, metadata },
            Change::Grow { file, bytes: 1 << 20 },
            Change::Rename { from: "a".to_string(), to: "b".to_string() },
            Change::Unlink { path: "dir/a".to_string() },
            Change::Forget { file: FileNumber(3) },
        ]
    }

    #[test]
    fn a_table_is_read_as_it_was_changed_and_an_end_that_is_cut_is_not_there() {
        let mut table = Names::default();
        table.apply(&create(2, "first")).expect("the name is free");
        table.apply(&Change::Rename { from: "first".into(), to: "z".into() }).expect("it is there");
        let mut bytes = table.encode(7);
        let whole = bytes.len();
        let mut ends = vec![(whole, table.clone())];
        for change in changes() {
            let Change::Create { file: FileNumber(file), path, .. } = &change else { continue };
            let change = create(file + 1, path);
            table.apply(&change).expect("the name is free");
            bytes.extend(change.encode());
            ends.push((bytes.len(), table.clone()));
        }
        for len in 0..=bytes.len() {
            let read = Names::read(&bytes[..len]).expect("it is whole as far as it goes");
            let expected = ends.iter().rfind(|(end, _)| *end <= len);
            let expected = expected.map(|(end, table)| (7, table.clone(), *end as u64));
            assert_eq!(read, expected, "{len} bytes");
        }
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            if let Ok(Some((_, read, end))) = Names::read(&flipped) {
                // A length that grew looks like a frame that is cut.
                let expected = ends.iter().find(|(at, _)| *at as u64 == end);
                assert_eq!(Some(&read), expected.map(|(_, table)| table), "bit {bit}");
            }
        }
    }

    #[test]
    fn names_make_a_table_longer_by_what_is_said_at_most() {
        let (long, longer) = ("l".repeat(127), "m".repeat(128));
        let mut table = Names::default();
        for file in 2..127 {
            table.apply(&create(file, &file.to_string())).expect("the name is free");
        }
        for (file, path) in [(127, "a"), (128, &long), (129, &longer)] {
            table.apply(&create(file, path)).expect("the name is free");
        }
        let cases: [(&[&str], &[&str]); 7] = [
            (&["b"], &[]),
            (&["b"], &["a"]),
            (&["b", "c", "d"], &["a", "a", "missing"]),
            (&["a"], &["a"]),
            (&[&"n".repeat(128)], &[&long]),
            (&[&"n".repeat(127)], &[&longer]),
            (&["b", "b", &"n".repeat(300)], &[]),
        ];
        for (set, removed) in cases {
            let mut changed = table.clone();
            let gone = removed.iter().filter(|path| !set.contains(path));
            for path in gone {
                changed.names.remove(*path);
            }
            for path in set {
                changed.names.insert((*path).to_string(), FileNumber(2));
            }
            let (before, after) = (table.encode(1).len(), changed.encode(1).len());
            let (added, longer) = (table.added(set, removed), after.saturating_sub(before) as u64);
            assert!(
                longer <= added && added <= longer + 1,
                "{set:?} {removed:?}: {longer}, {added}"
            );
        }
    }

    #[test]
    fn every_change_does_what_posix_says() {
        let mut table = Names::default();
        let mut bytes = table.encode(1);
        for change in changes() {
            table.apply(&change).expect("it fits");
            bytes.extend(change.encode());
        }
        assert_eq!(table.list("").collect::<Vec<_>>(), [("b", FileNumber(2))]);
        let file = table.file(FileNumber(2)).expect("it has a name");
        assert_eq!((file.links, file.capacity(), file.metadata.mode), (1, 4096 + (1 << 20), 1));
        assert_eq!(table.next(), FileNumber(4), "a number is not given twice");
        assert_eq!(Names::read(&bytes).expect("whole"), Some((1, table, bytes.len() as u64)));
    }

    #[test]
    fn a_change_that_does_not_fit_changes_nothing_and_says_which_name() {
        let mut table = Names::default();
        table.apply(&create(2, "a")).expect("the name is free");
        let before = table.clone();
        let wrong = [
            (create(3, "a"), "'a' exists"),
            (create(3, ""), "empty"),
            (create(3, &"x".repeat(PATH_LEN_MAX + 1)), "limit 4095"),
            (Change::Unlink { path: "b".to_string() }, "'b' does not exist"),
            (Change::Rename { from: "b".into(), to: "a".into() }, "'b' does not exist"),
            (Change::Link { file: FileNumber(9), path: "c".to_string() }, "file 9"),
            (Change::Forget { file: FileNumber(2) }, "1 names"),
        ];
        for (change, expected) in wrong {
            let error = table.apply(&change).expect_err("it does not fit");
            assert!(error.message().contains(expected), "{error}");
        }
        assert_eq!(table, before);
    }
}

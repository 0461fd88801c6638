//! The files: their mirrors, lengths and names, and the records that change them.
//!
//! The mirror is the truth for readers and for copies to new peers. Every change is made there and
//! is a record at once. A file never loses bytes between its length and its greatest one so far:
//! when it grows over bytes that it once cut off, records of zeros go first.
//!
//! A program that the interposer is in changes its mirrors itself, and the records come behind:
//! such a mirror *is ahead*. It is never changed here, and a copy of it counts only once all
//! records are issued that it may have the changes of ([`Images::mark`]).

use crate::command::Label;
use crate::layout::{Cell, Kind, Piece, RING_LEN, parts_of, pieces, room};
use crate::log::{Effect, Log, Need, Record};
use crate::names::{Change, FileEntry, NameEdit, Names};
use crate::number::{FileNumber, Number};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::vec;
use alloc::vec::Vec;
use bytes::Bytes;
use gabion_base::{Error, Result, crc};
use gabion_media::remote::peer::PAGE_LEN;

/// The state of a file that its records change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Its length in bytes.
    pub len: u64,
    /// The greatest length that peers may have bytes for.
    pub dirty: u64,
    /// Ordinal of its last record.
    pub ordinal: u32,
}

/// How far a program came with a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recalled {
    /// The file.
    pub file: FileNumber,
    /// Records that count.
    pub written: u64,
    /// Whether it may have begun one more, which does not.
    pub is_claimed: bool,
    /// The file as of the last record that counts.
    pub progress: Progress,
}

/// The mirror of a file. Bytes that were never written, and those past the length, are zeros.
pub trait Image {
    /// Bytes at an offset; the image grows to their end.
    ///
    /// # Errors
    /// Those of the system that has no memory for them.
    fn write(&mut self, offset: u64, data: &[u8]) -> Result<()>;

    /// Copies from `offset` into the whole of `into`.
    ///
    /// # Errors
    /// Those of the system.
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<()>;

    /// Another length.
    ///
    /// # Errors
    /// Those of the system.
    fn resize(&mut self, len: u64) -> Result<()>;

    /// Whether the program changes the image itself, before the record of a change is issued.
    fn is_ahead(&self) -> bool {
        false
    }
}

impl Image for Vec<u8> {
    fn write(&mut self, offset: u64, data: &[u8]) -> Result<()> {
        let offset = offset as usize;
        if self.len() < offset {
            self.resize(offset, 0);
        }
        // Bytes at the end are not written twice.
        let (over, beyond) = data.split_at((self.len() - offset).min(data.len()));
        self[offset..offset + over.len()].copy_from_slice(over);
        self.extend_from_slice(beyond);
        Ok(())
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        let from = self.get(offset as usize..).unwrap_or_default();
        let len = from.len().min(into.len());
        into[..len].copy_from_slice(&from[..len]);
        into[len..].fill(0);
        Ok(())
    }

    fn resize(&mut self, len: u64) -> Result<()> {
        Self::resize(self, len as usize, 0);
        Ok(())
    }
}

/// Makes mirrors.
pub trait Images {
    /// A mirror.
    type Image: Image;

    /// An empty mirror for a file.
    ///
    /// # Errors
    /// Those of the system that has no memory or descriptor for it.
    fn create(&mut self, file: FileNumber) -> Result<Self::Image>;

    /// A mark behind all changes that any image that is ahead may have by now.
    fn mark(&self) -> u64 {
        0
    }

    /// The same mark, or one that is as good: a change that was being made when it was taken may be
    /// over, and have its place among the records.
    fn advance(&self, mark: u64) -> u64 {
        mark
    }

    /// Whether the records of all changes before a mark are issued.
    fn has_issued(&self, _mark: u64) -> bool {
        true
    }

    /// Ends a [`Grant`](crate::Grant), if the program has one. When this returns no more records
    /// count that the program writes, and those that did are counted.
    fn recall(&mut self) -> Option<Recalled> {
        None
    }
}

/// Data of a record at most, whatever the sizes of an application are.
pub const RECORD_LEN_MAX: u64 = 128 << 10;

/// The longest file. Owners of mirrors refuse more before. It fits the parts that a
/// file may have.
pub const FILE_LEN_MAX: u64 = 255 << 30;

/// Bytes of the records that fill a range which was cut off.
static ZEROS: [u8; 16 << 10] = [0; 16 << 10];

/// Sizes of parts and records, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Data of the first part of a file.
    pub part_min: u64,
    /// Data of the largest part: each has as much as all before it, and up to the next power of
    /// two, so that a peer can give it huge pages; up to this.
    pub part_max: u64,
    /// Data of the largest record. Longer writes are several.
    pub record_max: usize,
    /// The longest file.
    pub file_max: u64,
    /// A table of names that is longer, and four times what it must be, is written anew.
    pub names_max: u64,
}

impl Default for Sizes {
    fn default() -> Self {
        Self {
            part_min: (1 << 20) - RING_LEN,
            part_max: 64 << 20,
            record_max: 128 << 10,
            file_max: FILE_LEN_MAX,
            names_max: 256 << 10,
        }
    }
}

impl Sizes {
    /// Lengths of the regions that an application with one file of so many bytes has at a peer.
    #[must_use]
    pub fn regions(&self, len: u64) -> Vec<u64> {
        let mut parts = vec![self.part_min];
        while parts.iter().sum::<u64>() < len {
            parts.push(next_part(self, &parts));
        }
        let names = FileNumber::NAMES.map(|_| region_bytes(0, self.part_min));
        let of_file = (0..).zip(parts).map(|(part, bytes)| region_bytes(part, bytes));
        names.into_iter().chain(of_file).collect()
    }
}

/// A file.
#[derive(Debug)]
pub(crate) struct File<I> {
    pub(crate) image: I,
    pub(crate) len: u64,
    /// Bytes of data of each part.
    pub(crate) parts: Vec<u64>,
    /// Ordinal of its last record.
    pub(crate) ordinal: u32,
    /// The greatest length that peers may have bytes for.
    dirty: u64,
    /// A peer may have the next record of it, which does not count: another one takes its place.
    is_claimed: bool,
    opens: u32,
}

impl<I: Image> File<I> {
    pub(crate) fn new(image: I, len: u64, parts: Vec<u64>) -> Self {
        Self { image, len, parts, ordinal: 0, dirty: len, is_claimed: false, opens: 0 }
    }

    /// The offset up to which it has parts.
    pub(crate) fn capacity(&self) -> u64 {
        self.parts.iter().sum()
    }

    /// Length of the region of a part.
    pub(crate) fn region_bytes(&self, part: u32) -> u64 {
        region_bytes(part, self.parts[part as usize])
    }
}

const fn region_bytes(part: u32, data: u64) -> u64 {
    if part == 0 { data + RING_LEN } else { data }
}

/// A file as a program sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stat {
    /// The file.
    pub file: FileNumber,
    /// Its length in bytes.
    pub len: u64,
    /// Its names, metadata and parts.
    pub entry: FileEntry,
}

/// All files of an application.
#[derive(Debug)]
pub(crate) struct Files<S: Images> {
    pub(crate) images: S,
    sizes: Sizes,
    pub(crate) names: Names,
    /// Generation of the table; its file is that of this parity.
    generation: u64,
    files: BTreeMap<FileNumber, File<S::Image>>,
    /// How often a file became shorter: it may have parts to give up since.
    cuts: u64,
}

impl<S: Images> Files<S> {
    /// The files of a table, all empty, and the table itself in the next generation.
    pub(crate) fn new(mut images: S, sizes: Sizes, names: Names, generation: u64) -> Result<Self> {
        let table = names.encode(generation);
        let mut files = BTreeMap::new();
        let active = FileNumber::NAMES[(generation % 2) as usize];
        for file in FileNumber::NAMES {
            let mut image = images.create(file)?;
            let (mut parts, mut len) = (vec![sizes.part_min], 0);
            if file == active {
                image.write(0, &table)?;
                len = table.len() as u64;
            }
            while room(&parts).1 < table.len() as u64 {
                parts.push(next_part(&sizes, &parts));
            }
            files.insert(file, File::new(image, len, parts));
        }
        for (file, entry) in names.files() {
            files.insert(file, File::new(images.create(file)?, 0, entry.parts.clone()));
        }
        Ok(Self { images, sizes, names, generation, files, cuts: 0 })
    }

    /// A file of the table, or of names.
    pub(crate) fn get(&self, file: FileNumber) -> Option<&File<S::Image>> {
        self.files.get(&file)
    }

    /// All of them.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (FileNumber, &File<S::Image>)> {
        self.files.iter().map(|(number, file)| (*number, file))
    }

    /// The parts of a file that a program may write records of itself.
    pub(crate) fn directly_written(&self, file: FileNumber) -> Option<Vec<u64>> {
        let found = self.files.get(&file).filter(|found| found.image.is_ahead())?;
        Some(found.parts.clone())
    }

    /// The state of a file that its records change.
    pub(crate) fn progress(&self, file: FileNumber) -> Progress {
        let progress = |found: &File<S::Image>| {
            let (len, dirty, ordinal) = (found.len, found.dirty, found.ordinal);
            Progress { len, dirty, ordinal }
        };
        self.files.get(&file).map(progress).unwrap_or_default()
    }

    /// The same, after records that the program wrote. One more may be at peers in part: it begins
    /// within the file.
    pub(crate) fn set_progress(&mut self, file: FileNumber, progress: Progress, is_claimed: bool) {
        let Some(found) = self.files.get_mut(&file) else { return };
        let Progress { len, dirty, ordinal } = progress;
        (found.len, found.dirty, found.ordinal) = (len, dirty, ordinal);
        if is_claimed {
            let reached = (len + RECORD_LEN_MAX).min(room(&found.parts).0);
            found.dirty = dirty.max(reached);
            found.is_claimed = true;
        }
    }

    /// See [`Images::mark`].
    pub(crate) fn mark(&self) -> u64 {
        self.images.mark()
    }

    /// See [`Images::advance`].
    pub(crate) fn advance(&self, mark: u64) -> u64 {
        self.images.advance(mark)
    }

    /// See [`Images::has_issued`].
    pub(crate) fn has_issued(&self, mark: u64) -> bool {
        self.images.has_issued(mark)
    }

    /// The maker of mirrors, for other files than these.
    pub(crate) fn into_images(self) -> S {
        self.images
    }

    /// Recovered bytes of a file; no record.
    pub(crate) fn load(&mut self, file: FileNumber, offset: u64, data: &[u8]) -> Result<()> {
        match self.files.get_mut(&file) {
            Some(file) => file.image.write(offset, data),
            None => Ok(()),
        }
    }

    /// The recovered length of a file; no record.
    pub(crate) fn load_len(&mut self, file: FileNumber, len: u64) -> Result<()> {
        if let Some(file) = self.files.get_mut(&file) {
            file.image.resize(len)?;
            (file.len, file.dirty) = (len, len);
        }
        Ok(())
    }

    pub(crate) fn stat(&self, file: FileNumber) -> Result<Stat> {
        let entry = self.names.file(file).cloned();
        let (Some(entry), Some(found)) = (entry, self.files.get(&file)) else {
            return Err(missing(file));
        };
        Ok(Stat { file, len: found.len, entry })
    }

    pub(crate) fn read(&self, file: FileNumber, offset: u64, into: &mut [u8]) -> Result<usize> {
        let found = self.files.get(&file).ok_or_else(|| missing(file))?;
        let len = found.len.saturating_sub(offset).min(into.len() as u64) as usize;
        found.image.read(offset, &mut into[..len])?;
        Ok(len)
    }

    pub(crate) fn image(&self, file: FileNumber) -> Result<&S::Image> {
        self.files.get(&file).map(|found| &found.image).ok_or_else(|| missing(file))
    }

    /// One more holder of a file: it outlives its names.
    pub(crate) fn open(&mut self, file: FileNumber) -> Result<()> {
        self.files.get_mut(&file).ok_or_else(|| missing(file))?.opens += 1;
        Ok(())
    }

    /// A holder less. The last one of a file without names ends it.
    pub(crate) fn close(&mut self, log: &mut Log, file: FileNumber) -> Result<()> {
        let found = self.files.get_mut(&file).ok_or_else(|| missing(file))?;
        match found.opens.checked_sub(1) {
            Some(opens) => found.opens = opens,
            None => return Err(Error::invalid(format!("{file} is not open"))),
        }
        self.forget_if_unused(log, file)
    }

    fn forget_if_unused(&mut self, log: &mut Log, file: FileNumber) -> Result<()> {
        let is_named = self.names.file(file).is_none_or(|entry| entry.links > 0);
        let is_open = self.files.get(&file).is_none_or(|found| found.opens > 0);
        if is_named || is_open {
            return Ok(());
        }
        self.change(log, &Change::Forget { file }, Effect::Frees(vec![(file, 0)]))?;
        self.files.remove(&file);
        Ok(())
    }

    /// Makes a change of the table, which is a record of it.
    fn change(&mut self, log: &mut Log, change: &Change, effect: Effect) -> Result<Number> {
        self.names.apply(change)?;
        self.note(log, &change.encode(), effect)
    }

    /// Frames of changes that were made go into the table's file, as one record if it can hold
    /// them.
    fn note(&mut self, log: &mut Log, frames: &[u8], effect: Effect) -> Result<Number> {
        if self.wants_other_table(frames.len() as u64) {
            return self.write_table(log, effect);
        }
        let file = self.active();
        let len = self.files.get(&file).map_or(0, |found| found.len);
        self.write_all(log, file, len, Bytes::copy_from_slice(frames), effect)
    }

    /// The whole table goes into the other one of its files, which always has room for it: see
    /// [`Self::table_needs`].
    fn write_table(&mut self, log: &mut Log, effect: Effect) -> Result<Number> {
        self.generation += 1;
        let file = self.active();
        let table = self.names.encode(self.generation);
        self.issue_truncate(log, file, 0)?;
        self.write_all(log, file, 0, table.into(), effect)
    }

    /// Whether the table is to be written anew instead of taking so many bytes more: it has grown
    /// long, or its file has no room for them.
    fn wants_other_table(&self, more: u64) -> bool {
        let Some(file) = self.files.get(&self.active()) else { return false };
        let (len, is_full) = (file.len, file.len + more > file.capacity());
        // The least length of a table is known once it is encoded, so that is asked rarely.
        is_full || len > self.sizes.names_max && len > 4 * self.names.encode(0).len() as u64
    }

    /// The regions that the table needs before it is so many bytes longer. Each of its files has
    /// room for the whole table, and some more: so changes that do not make it longer, and all that
    /// give memory back, need none.
    pub(crate) fn table_needs(&self, more: u64) -> Vec<Need> {
        let tables = || FileNumber::NAMES.into_iter().filter_map(|it| Some((it, self.get(it)?)));
        let lacks = |len: u64| tables().any(|(_, file)| len + more > room(&file.parts).1);
        let active = self.get(self.active()).map_or(0, |file| file.len);
        if more == 0 || !lacks(active) {
            return Vec::new();
        }
        let len = self.names.encode(0).len() as u64 + more;
        let (least, most) = (self.sizes.part_min, self.sizes.part_max.max(self.sizes.part_min));
        let short = tables().filter(|(_, file)| len > room(&file.parts).1);
        let needs = short.map(|(number, file)| {
            let lacking = len.saturating_sub(file.capacity()).max(least).next_power_of_two();
            let bytes = next_part(&self.sizes, &file.parts).max(lacking.min(most));
            Need { label: Label { file: number, part: file.parts.len() as u32 }, bytes }
        });
        needs.collect()
    }

    /// The table's files get parts, whose regions peers have lent. Labels tell of them, no frame.
    pub(crate) fn grow_table(&mut self, log: &mut Log, needs: &[Need]) {
        for &need in needs {
            let number = need.label.file;
            let Some(file) = self.files.get_mut(&number) else { continue };
            file.parts.push(need.bytes);
            let (len, effect) = (file.len, Effect::Needs(need));
            issue(log, file, number, Kind::Truncate, len, Bytes::new(), len, effect);
        }
    }

    const fn active(&self) -> FileNumber {
        FileNumber::NAMES[(self.generation % 2) as usize]
    }

    /// A new file.
    pub(crate) fn create(&mut self, log: &mut Log, change: &Change) -> Result<Number> {
        let &Change::Create { file, bytes, .. } = change else {
            return Err(Error::invalid("only a creation creates"));
        };
        self.names.check(change)?;
        let image = self.images.create(file)?;
        let need = first_need(file, bytes);
        self.files.insert(file, File::new(image, 0, vec![bytes]));
        self.change(log, change, Effect::Needs(need))
    }

    /// How often a file became shorter.
    pub(crate) const fn cuts(&self) -> u64 {
        self.cuts
    }

    /// Data bytes of the first part of a file.
    pub(crate) const fn part_min(&self) -> u64 {
        self.sizes.part_min
    }

    /// A change of names alone. Files that lose their last name end with their last holder.
    pub(crate) fn rename(&mut self, log: &mut Log, change: &Change) -> Result<Number> {
        let target = match change {
            Change::Rename { to: path, .. } | Change::Unlink { path } => self.names.get(path),
            _ => None,
        };
        self.change(log, change, Effect::None)?;
        if let Some(file) = target {
            self.forget_if_unused(log, file)?;
        }
        Ok(log.issued())
    }

    /// The table after changes of names, their frames, and the files that had such names.
    fn edited(&self, edits: &[NameEdit]) -> Result<(Names, Vec<u8>, BTreeSet<FileNumber>)> {
        let (mut table, mut frames) = (self.names.clone(), Vec::new());
        let mut touched = BTreeSet::new();
        for edit in edits {
            let (NameEdit::Set { path, .. } | NameEdit::Remove { path }) = edit;
            let before = table.get(path);
            let link = match edit {
                NameEdit::Set { file, .. } if before == Some(*file) => continue,
                NameEdit::Set { file, path } => {
                    Some(Change::Link { file: *file, path: path.clone() })
                }
                NameEdit::Remove { .. } => None,
            };
            let unlink = before.map(|_| Change::Unlink { path: path.clone() });
            for change in unlink.into_iter().chain(link) {
                table.apply(&change)?;
                frames.extend(change.encode());
            }
            touched.extend(before);
        }
        let limit = self.sizes.record_max;
        if frames.len() > limit {
            let len = frames.len();
            return Err(Error::limit(format!("changes of names: {len} bytes, limit {limit}")));
        }
        Ok((table, frames, touched))
    }

    /// Whether [`Self::edit`] would make these changes.
    pub(crate) fn check_edit(&self, edits: &[NameEdit]) -> Result<()> {
        self.edited(edits).map(|_| ())
    }

    /// Changes of names, all or none: they are one record.
    pub(crate) fn edit(&mut self, log: &mut Log, edits: &[NameEdit]) -> Result<Number> {
        let (table, frames, touched) = self.edited(edits)?;
        if !frames.is_empty() {
            self.names = table;
            self.note(log, &frames, Effect::None)?;
        }
        touched.into_iter().try_for_each(|file| self.forget_if_unused(log, file))?;
        Ok(log.issued())
    }

    /// Bytes at an offset. Returns the last of the records that this is.
    pub(crate) fn write(
        &mut self,
        log: &mut Log,
        file: FileNumber,
        offset: u64,
        data: &[u8],
    ) -> Result<Number> {
        let end = self.end_of(file, offset, data.len())?;
        if data.is_empty() {
            return Ok(log.issued());
        }
        self.check_capacity(file, end)?;
        self.zero_to(log, file, offset)?;
        self.write_all(log, file, offset, Bytes::copy_from_slice(data), Effect::None)
    }

    /// Another length.
    pub(crate) fn truncate(&mut self, log: &mut Log, file: FileNumber, len: u64) -> Result<Number> {
        self.end_of(file, len, 0)?;
        self.check_capacity(file, len)?;
        self.zero_to(log, file, len)?;
        let found = self.files.get(&file).ok_or_else(|| missing(file))?;
        if found.len != len || found.is_claimed {
            self.issue_truncate(log, file, len)?;
        }
        Ok(log.issued())
    }

    /// The end of bytes at an offset.
    pub(crate) fn end_of(&self, file: FileNumber, offset: u64, len: usize) -> Result<u64> {
        let (end, limit) = (offset.checked_add(len as u64), self.sizes.file_max);
        end.filter(|end| *end <= limit)
            .ok_or_else(|| Error::limit(format!("{file}: {len} bytes at {offset}, limit {limit}")))
    }

    /// The caller had the parts made: [`Self::part_need`].
    fn check_capacity(&self, file: FileNumber, end: u64) -> Result<()> {
        let capacity = self.files.get(&file).ok_or_else(|| missing(file))?.capacity();
        if end <= capacity {
            return Ok(());
        }
        Err(Error::no_space(format!("{file}: {end} bytes, it has parts for {capacity}")))
    }

    /// The region of the next part, if a file of `end` bytes needs one, and the fewest bytes that
    /// do. A part has as many as a record at least.
    pub(crate) fn part_need(&self, number: FileNumber, end: u64) -> Result<Option<(Need, u64)>> {
        let file = self.files.get(&number).ok_or_else(|| missing(number))?;
        let Some(lacking) = end.checked_sub(file.capacity()).filter(|lacking| *lacking > 0) else {
            return Ok(None);
        };
        let (least, most) = (self.sizes.part_min, self.sizes.part_max.max(self.sizes.part_min));
        let least = lacking.next_multiple_of(PAGE_LEN).clamp(least, most);
        let bytes = next_part(&self.sizes, &file.parts).max(least.next_power_of_two().min(most));
        self.names.check(&Change::Grow { file: number, bytes })?;
        let label = Label { file: number, part: file.parts.len() as u32 };
        Ok(Some((Need { label, bytes }, least)))
    }

    /// The region of the next part, if a file that grows to `end` will need one soon.
    pub(crate) fn part_need_ahead(&self, number: FileNumber, end: u64) -> Option<Need> {
        let file = self.files.get(&number)?;
        let (_, near) = room(&file.parts);
        if end <= near || end <= file.len {
            return None;
        }
        let bytes = next_part(&self.sizes, &file.parts);
        let may_grow = self.names.check(&Change::Grow { file: number, bytes }).is_ok();
        let label = Label { file: number, part: file.parts.len() as u32 };
        may_grow.then_some(Need { label, bytes })
    }

    /// One more part, whose region peers have lent.
    pub(crate) fn grow(&mut self, log: &mut Log, number: FileNumber, bytes: u64) -> Result<()> {
        let file = self.files.get(&number).ok_or_else(|| missing(number))?;
        let label = Label { file: number, part: file.parts.len() as u32 };
        let need = Need { label, bytes };
        self.change(log, &Change::Grow { file: number, bytes }, Effect::Needs(need))?;
        self.files.get_mut(&number).expect("it was found").parts.push(bytes);
        Ok(())
    }

    /// Files give up the parts that have no byte of them: one whose image is ahead is as long as
    /// `lens` say, or is left alone. False if there is no such part.
    pub(crate) fn trim(
        &mut self,
        log: &mut Log,
        lens: &BTreeMap<FileNumber, u64>,
        except: Option<FileNumber>,
    ) -> Result<bool> {
        let mut table = self.names.clone();
        let mut freed = Vec::new();
        for (&number, file) in self.files.iter().filter(|(number, _)| !number.is_names()) {
            let len = lens.get(&number).map(|len| file.len.max(*len));
            let len = if file.image.is_ahead() { len } else { Some(file.len) };
            let Some(len) = len.filter(|_| Some(number) != except) else { continue };
            let kept = parts_of(&file.parts, len);
            if kept < file.parts.len() {
                table.keep_parts(number, kept);
                freed.push((number, kept as u32));
            }
        }
        if freed.is_empty() {
            return Ok(false);
        }
        self.names = table;
        for (number, kept) in &freed {
            let file = self.files.get_mut(number).expect("it was found");
            file.parts.truncate(*kept as usize);
            // A part that comes again is zeros.
            file.dirty = file.dirty.min(file.capacity());
        }
        self.write_table(log, Effect::Frees(freed))?;
        Ok(true)
    }

    /// Peers have zeros between the length and `offset`. However many records that takes, they
    /// share their bytes.
    fn zero_to(&mut self, log: &mut Log, number: FileNumber, offset: u64) -> Result<()> {
        let zeros = Bytes::from_static(&ZEROS);
        let zeros = zeros.slice(..zeros.len().min(self.sizes.record_max));
        loop {
            let file = self.files.get(&number).ok_or_else(|| missing(number))?;
            let to = offset.min(file.dirty);
            if file.len >= to {
                return Ok(());
            }
            let (at, len) = (file.len, (to - file.len).min(zeros.len() as u64) as usize);
            self.write_all(log, number, at, zeros.slice(..len), Effect::None)?;
        }
    }

    /// Records of bytes within the parts.
    fn write_all(
        &mut self,
        log: &mut Log,
        number: FileNumber,
        mut offset: u64,
        mut data: Bytes,
        mut effect: Effect,
    ) -> Result<Number> {
        let record_max = self.sizes.record_max;
        let file = self.files.get_mut(&number).ok_or_else(|| missing(number))?;
        let end = offset + data.len() as u64;
        while !data.is_empty() {
            let piece = data.split_to(data.len().min(record_max));
            let piece_end = offset + piece.len() as u64;
            let len = file.len.max(piece_end);
            if !file.image.is_ahead() {
                file.image.write(offset, &piece)?;
            }
            let is_last = piece_end == end;
            // A need comes first, and what is freed goes last.
            let now = match effect {
                Effect::Frees(_) if !is_last => Effect::None,
                _ => core::mem::replace(&mut effect, Effect::None),
            };
            issue(log, file, number, Kind::Write, offset, piece, len, now);
            offset = piece_end;
        }
        Ok(log.issued())
    }

    fn issue_truncate(&mut self, log: &mut Log, number: FileNumber, len: u64) -> Result<()> {
        if let Some(file) = self.files.get_mut(&number) {
            if !file.image.is_ahead() {
                file.image.resize(len)?;
            }
            self.cuts += u64::from(len < file.len && !number.is_names());
            issue(log, file, number, Kind::Truncate, len, Bytes::new(), len, Effect::None);
        }
        Ok(())
    }
}

/// The region of the first part of a new file.
pub(crate) const fn first_need(file: FileNumber, bytes: u64) -> Need {
    Need { label: Label { file, part: 0 }, bytes: region_bytes(0, bytes) }
}

fn next_part(sizes: &Sizes, parts: &[u64]) -> u64 {
    parts.iter().sum::<u64>().next_power_of_two().clamp(sizes.part_min, sizes.part_max)
}

fn missing(file: FileNumber) -> Error {
    Error::not_found(format!("{file} does not exist"))
}

#[expect(clippy::too_many_arguments, reason = "the fields of a cell")]
fn issue<I: Image>(
    log: &mut Log,
    file: &mut File<I>,
    number: FileNumber,
    kind: Kind,
    offset: u64,
    data: Bytes,
    file_len: u64,
    effect: Effect,
) {
    file.ordinal = file.ordinal.wrapping_add(1);
    file.is_claimed = false;
    file.len = file_len;
    file.dirty = file.dirty.max(file_len);
    let cell = Cell {
        kind,
        file: number,
        term: log.term,
        number: log.issued().next(),
        offset,
        len: data.len() as u32,
        data_crc: crc::crc32c(&data),
        file_len,
        ordinal: file.ordinal,
    };
    let found = pieces(&file.parts, offset, data.len() as u64).unwrap_or_default();
    assert_eq!(found.iter().map(|piece| piece.len).sum::<u64>(), data.len() as u64, "has parts");
    assert!(found.len() <= 2, "a record is no longer than a part");
    let mut pieces: [Option<Piece>; 2] = [None; 2];
    pieces.iter_mut().zip(found).for_each(|(place, piece)| *place = Some(piece));
    log.push(Record { cell, data, pieces, effect });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::OwnerCrc;
    use crate::names::Metadata;
    use crate::names::PARTS_MAX;
    use alloc::string::ToString;
    use gabion_base::Term;

    struct Own;

    impl Images for Own {
        type Image = Vec<u8>;

        fn create(&mut self, _: FileNumber) -> Result<Vec<u8>> {
            Ok(Vec::new())
        }
    }

    #[test]
    fn the_longest_file_has_no_more_parts_than_one_may_have() {
        let parts = Sizes::default().regions(FILE_LEN_MAX).len() - FileNumber::NAMES.len();
        assert!(parts <= PARTS_MAX, "{parts} parts of {PARTS_MAX}");
    }

    #[test]
    fn a_file_that_grows_over_what_it_cut_off_has_zeros_there_that_take_no_memory() {
        let (file, len) = (FileNumber(9), 1 << 20);
        let mut log = Log::new(OwnerCrc::new("app"), Term(1), Number::ZERO);
        let mut files = Files::new(Own, Sizes::default(), Names::default(), 0).unwrap();
        let bytes = files.part_min();
        let (metadata, path) = (Metadata::default(), "a.log".to_string());
        let create = Change::Create { file, metadata, bytes, path };
        files.create(&mut log, &create).unwrap();
        while let Some((need, _)) = files.part_need(file, len as u64).unwrap() {
            files.grow(&mut log, file, need.bytes).unwrap();
        }
        files.write(&mut log, file, 0, &vec![7; len]).unwrap();
        files.truncate(&mut log, file, 100).unwrap();
        let cut = log.issued();
        files.truncate(&mut log, file, len as u64).unwrap();
        let zeros: Vec<&Record> =
            (cut.0 + 1..=log.issued().0).filter_map(|number| log.get(Number(number))).collect();
        assert_eq!(zeros.iter().map(|record| record.data.len()).sum::<usize>(), len - 100);
        assert!(zeros.len() > 10, "{} records", zeros.len());
        for record in zeros {
            assert_eq!(record.data.as_ptr(), ZEROS.as_ptr(), "the bytes are shared");
        }
        let mut found = vec![1; len];
        files.read(file, 0, &mut found).unwrap();
        assert!(found[..100].iter().all(|byte| *byte == 7), "what was left stays");
        assert!(found[100..].iter().all(|byte| *byte == 0), "the rest was cut off");
    }
}

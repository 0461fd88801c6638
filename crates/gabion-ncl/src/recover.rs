//! Remains of a former copy at a peer: its number, whether it is whole, and its bytes.
//!
//! ```text
//!   regions of one epoch ─► rings ─► newest cells ─► table of names ─► all parts there? ─► Copy
//! ```
//!
//! A copy that lacks a region of a file that its own table names is no copy: it never counts as an
//! empty or a shorter one. Copies are ordered by term and number; of equal ones that is better
//! whose newest cells fit the data. A cell that does not fit is no proof of damage: a record that
//! nobody acknowledged may have overwritten the data in part.

use crate::command::Label;
use crate::layout::{Cell, Kind, OwnerCrc, RING_LEN, cells, pieces};
use crate::names::Names;
use crate::number::{FileNumber, Number};
use alloc::collections::{BTreeMap, VecDeque};
use alloc::format;
use alloc::vec::Vec;
use gabion_base::{Error, Result, Term, crc};
use gabion_media::remote::RegionEntry;
use gabion_media::remote::message::TRANSFER_LEN_MAX;

/// Cells whose data is checked.
const CHECKED_CELLS: usize = 8;

/// How new a copy is. The greatest is recovered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Position {
    pub(crate) term: Term,
    pub(crate) number: Number,
    /// How many of the newest cells fit their data, without a gap.
    pub(crate) intact: usize,
}

/// A whole copy.
#[derive(Clone, Debug)]
pub(crate) struct Copy {
    pub(crate) position: Position,
    pub(crate) names: Names,
    pub(crate) generation: u64,
    /// Files with a name, and how long they are.
    pub(crate) lens: BTreeMap<FileNumber, u64>,
}

/// Bytes of a file that is loaded, from an offset on.
pub(crate) type Loaded = (FileNumber, u64, Vec<u8>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Rings,
    Names,
    Checks,
    Done,
    Load,
}

/// A range that is read: of a region, for a buffer.
#[derive(Clone, Copy, Debug)]
struct Range {
    label: Label,
    /// First byte in the region.
    offset: u64,
    len: u32,
    /// The buffer: a file's ring or names, or the ordinal of a check.
    buffer: u64,
    /// The offset of the bytes in it; while loading, in the file.
    at: u64,
}

/// The reading of one peer.
#[derive(Debug)]
pub(crate) struct Reading {
    owner: OwnerCrc,
    step: Step,
    regions: BTreeMap<Label, RegionEntry>,
    ranges: Vec<Range>,
    queue: VecDeque<usize>,
    outstanding: usize,
    buffers: BTreeMap<u64, Vec<u8>>,
    rings: BTreeMap<FileNumber, Vec<Cell>>,
    checks: Vec<Cell>,
    names: Option<(u64, Names)>,
}

impl Reading {
    /// Of the copy that is published among the regions that a peer lists. Its epoch may be later
    /// than the map's: an instance may end between the publication and the map's change.
    pub(crate) fn new(owner: OwnerCrc, listed: &[RegionEntry]) -> Self {
        let published = || listed.iter().filter(|it| it.is_published);
        let epoch = published().map(|it| it.epoch).max();
        let ours = published().filter(|it| Some(it.epoch) == epoch);
        let labelled = ours.filter_map(|it| Some((Label::decode(&it.label)?, it.clone())));
        let mut reading = Self {
            owner,
            step: Step::Rings,
            regions: labelled.collect(),
            ranges: Vec::new(),
            queue: VecDeque::new(),
            outstanding: 0,
            buffers: BTreeMap::new(),
            rings: BTreeMap::new(),
            checks: Vec::new(),
            names: None,
        };
        let firsts: Vec<Label> =
            reading.regions.keys().filter(|label| label.part == 0).copied().collect();
        for label in firsts {
            reading.want(Range {
                label,
                offset: 0,
                len: RING_LEN as u32,
                buffer: label.file.0,
                at: 0,
            });
        }
        reading
    }

    fn want(&mut self, range: Range) {
        if self.step != Step::Load {
            let buffer = self.buffers.entry(range.buffer).or_default();
            let end = range.at as usize + range.len as usize;
            buffer.resize(buffer.len().max(end), 0);
        }
        self.queue.push_back(self.ranges.len());
        self.ranges.push(range);
    }

    /// Wants bytes of a file whose parts have `parts` bytes of data, into a buffer from `at` on.
    fn want_bytes(
        &mut self,
        file: FileNumber,
        parts: &[u64],
        offset: u64,
        len: u64,
        buffer: u64,
    ) -> Result<()> {
        let Some(found) = pieces(parts, offset, len) else {
            return Err(lacking(file, "bytes within its length"));
        };
        let mut at = if self.step == Step::Load { offset } else { 0 };
        for piece in found {
            let label = Label { file, part: piece.part };
            let (mut from, to) = (piece.offset, piece.offset + piece.len);
            while from < to {
                let len = (to - from).min(TRANSFER_LEN_MAX as u64) as u32;
                self.want(Range { label, offset: from, len, buffer, at });
                from += u64::from(len);
                at += u64::from(len);
            }
        }
        Ok(())
    }

    /// The bytes of a range.
    pub(crate) fn handle(&mut self, tag: usize, bytes: Vec<u8>) -> Result<Option<Loaded>> {
        self.outstanding -= 1;
        let Some(range) = self.ranges.get(tag).filter(|it| it.len as usize == bytes.len()) else {
            return Err(Error::corruption(format!("{} bytes of range {tag}", bytes.len())));
        };
        if self.step == Step::Load {
            return Ok(Some((range.label.file, range.at, bytes)));
        }
        if let Some(buffer) = self.buffers.get_mut(&range.buffer) {
            buffer[range.at as usize..][..bytes.len()].copy_from_slice(&bytes);
        }
        Ok(None)
    }

    /// The next range to be read: its tag, region, offset there and length.
    pub(crate) fn next_range(&mut self) -> Result<Option<(usize, RegionEntry, u64, u32)>> {
        let Some(tag) = self.queue.pop_front() else { return Ok(None) };
        let Range { label, offset, len, .. } = self.ranges[tag];
        let region = self.regions.get(&label).cloned();
        let region = region.ok_or_else(|| lacking(label.file, "a region"))?;
        self.outstanding += 1;
        Ok(Some((tag, region, offset, len)))
    }

    fn is_idle(&self) -> bool {
        self.outstanding == 0 && self.queue.is_empty()
    }

    /// Goes on with the next step once all of one is here; what is read then comes from
    /// [`Self::next_range`]. True when there is nothing more to read.
    pub(crate) fn advance_if_idle(&mut self) -> Result<bool> {
        while self.is_idle() && !matches!(self.step, Step::Done | Step::Load) {
            self.advance()?;
        }
        Ok(self.is_idle())
    }

    /// Begins to read all files of the copy.
    pub(crate) fn start_load(&mut self, copy: &Copy) -> Result<()> {
        assert_eq!(self.step, Step::Done, "a copy is loaded once it is known");
        self.step = Step::Load;
        for (file, len) in &copy.lens {
            let parts = copy.names.file(*file).map(|entry| entry.parts.clone());
            self.want_bytes(*file, &parts.unwrap_or_default(), 0, *len, 0)?;
        }
        Ok(())
    }

    /// Whether all of it is here.
    pub(crate) fn is_loaded(&self) -> bool {
        self.step == Step::Load && self.is_idle()
    }

    /// All of a step is here: goes to the next one.
    fn advance(&mut self) -> Result<()> {
        self.ranges.clear();
        let buffers = core::mem::take(&mut self.buffers);
        match self.step {
            Step::Rings => {
                for (file, ring) in buffers {
                    let file = FileNumber(file);
                    self.rings.insert(file, cells(&ring, self.owner, file));
                }
                self.step = Step::Names;
                for file in FileNumber::NAMES {
                    let Some(newest) = self.rings.get(&file).and_then(|cells| cells.first()) else {
                        return Err(lacking(file, "any cell"));
                    };
                    let len = newest.file_len;
                    let parts = self.names_parts(file);
                    self.want_bytes(file, &parts, 0, len, file.0)?;
                }
            }
            Step::Names => {
                self.take_names(&buffers)?;
                self.step = Step::Checks;
                self.want_checks();
            }
            Step::Checks => {
                let fits = |(at, cell): &(usize, &Cell)| {
                    let data = buffers.get(&(*at as u64)).map_or(&[][..], |data| data);
                    crc::crc32c(data) == cell.data_crc
                };
                let intact = self.checks.iter().enumerate().take_while(fits).count();
                self.checks.truncate(intact);
                self.step = Step::Done;
            }
            Step::Done | Step::Load => {}
        }
        Ok(())
    }

    /// Parts of a file of names: its regions, as far as there is no gap.
    fn names_parts(&self, file: FileNumber) -> Vec<u64> {
        let regions = (0..).map_while(|part| self.regions.get(&Label { file, part }));
        let ring = core::iter::once(RING_LEN).chain(core::iter::repeat(0));
        regions.zip(ring).map(|(region, ring)| region.bytes.saturating_sub(ring)).collect()
    }

    /// The newest table, if all that it names is here.
    fn take_names(&mut self, buffers: &BTreeMap<u64, Vec<u8>>) -> Result<()> {
        for file in FileNumber::NAMES {
            let bytes = buffers.get(&file.0).map_or(&[][..], |bytes| bytes);
            let found = Names::read(bytes)?;
            if let Some((generation, names, _)) = found
                && self.names.as_ref().is_none_or(|(best, _)| generation > *best)
            {
                self.names = Some((generation, names));
            }
        }
        let Some((_, names)) = &self.names else { return Err(lacking(FileNumber(0), "a table")) };
        for (file, entry) in names.files() {
            for (part, &bytes) in (0u32..).zip(&entry.parts) {
                let ring = if part == 0 { RING_LEN } else { 0 };
                let region = self.regions.get(&Label { file, part });
                if region.is_none_or(|region| region.bytes < bytes + ring) {
                    return Err(lacking(file, &format!("the region of part {part}")));
                }
            }
        }
        Ok(())
    }

    fn want_checks(&mut self) {
        let names = self.names.as_ref().map(|(_, names)| names);
        let is_here = |cell: &&Cell| {
            let is_named = names.is_some_and(|names| names.file(cell.file).is_some());
            cell.kind == Kind::Write && (cell.file.is_names() || is_named)
        };
        let mut newest: Vec<Cell> =
            self.rings.values().flatten().filter(is_here).copied().collect();
        newest.sort_unstable_by_key(|cell| core::cmp::Reverse((cell.term, cell.number)));
        newest.truncate(CHECKED_CELLS);
        // A cell whose bytes are not even there does not fit.
        for (at, cell) in newest.iter().enumerate() {
            let parts = self.parts(cell.file);
            let wanted =
                self.want_bytes(cell.file, &parts, cell.offset, cell.len.into(), at as u64);
            if wanted.is_err() {
                newest.truncate(at);
                break;
            }
        }
        self.checks = newest;
    }

    fn parts(&self, file: FileNumber) -> Vec<u64> {
        let entry = self.names.as_ref().and_then(|(_, names)| names.file(file));
        entry.map_or_else(|| self.names_parts(file), |entry| entry.parts.clone())
    }

    /// The copy, once all is read.
    pub(crate) fn copy(&self) -> Option<Copy> {
        let (generation, names) = self.names.clone().filter(|_| self.step == Step::Done)?;
        let newest = |cells: &Vec<Cell>| cells.first().map(|cell| (cell.term, cell.number));
        let (term, number) = self.rings.values().filter_map(newest).max()?;
        let position = Position { term, number, intact: self.checks.len() };
        let named = names.files().filter(|(_, entry)| entry.links > 0);
        let lens = named.map(|(file, _)| {
            let newest = self.rings.get(&file).and_then(|cells| cells.first());
            (file, newest.map_or(0, |cell| cell.file_len))
        });
        Some(Copy { position, generation, lens: lens.collect(), names })
    }
}

fn lacking(file: FileNumber, what: &str) -> Error {
    Error::corruption(format!("a copy lacks {what} of {file}"))
}

/// A buffer for the newest length of a file, for the planted defect that infers it.
pub(crate) fn length_by_content(bytes: &[u8]) -> u64 {
    bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last as u64 + 1)
}

/// The peer whose copy is recovered.
pub(crate) fn newest<'a, K: 'a>(
    copies: impl Iterator<Item = (K, &'a Copy)>,
    smallest: bool,
) -> Option<K> {
    let key = |(_, copy): &(K, &Copy)| copy.position;
    if smallest { copies.min_by_key(key) } else { copies.max_by_key(key) }.map(|(peer, _)| peer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use gabion_media::remote::{Key, RegionId};

    /// docs/faults.md: N8
    #[test]
    fn a_copy_without_its_table_or_a_region_is_none() {
        let label = |file, part| Label { file: FileNumber(file), part }.encode().to_vec();
        let entry = |file, epoch, is_published| RegionEntry {
            region: RegionId(1),
            key: Key(1),
            bytes: 8192,
            epoch,
            term: Term(1),
            is_published,
            label: label(file, 0),
        };
        let listed = vec![entry(0, 5, true), entry(1, 4, true), entry(2, 5, false)];
        let mut reading = Reading::new(OwnerCrc::new("app"), &listed);
        assert_eq!(reading.regions.len(), 1, "other epochs and what is not published is not of it");
        let error = reading.advance().expect_err("no ring has a cell");
        assert!(error.message().contains("any cell of file 0"), "{error}");
    }

    #[test]
    fn the_greatest_term_and_number_wins_and_of_equals_the_one_that_fits_its_cells() {
        let copy = |term, number, intact| Copy {
            position: Position { term: Term(term), number: Number(number), intact },
            names: Names::default(),
            generation: 1,
            lens: BTreeMap::new(),
        };
        let copies = [copy(1, 9, 8), copy(2, 5, 3), copy(2, 5, 4), copy(2, 4, 8)];
        assert_eq!(newest(copies.iter().enumerate(), false), Some(2));
    }
}

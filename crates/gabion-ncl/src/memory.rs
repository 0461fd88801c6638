//! Memory of peers: asked for before a record needs it, and an error in time where there is none.
//!
//! ```text
//!   a change that needs a part ─► ask copies that count ─┬─ f+1 have lent ─► the part, a record
//!                                    ▲                   ├─ f+1 may yet ───► Busy: ask again
//!                                    └── a smaller part ◄┴─ no f+1 can ────► trim, or NoSpace
//! ```
//!
//! So a change that cannot be stored changes nothing, and all others go on. A peer without room
//! keeps its copy, and the link to it, until a record needs what it has not: with f+1 others the
//! application goes on then without it. Before that another peer takes its place, if one has room.

use crate::application::{Application, State};
use crate::command::Label;
use crate::files::{Images, first_need};
use crate::log::Need;
use crate::number::FileNumber;
use crate::places::Place;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::ToString;
use alloc::vec::Vec;
use core::cmp::Reverse;
use gabion_base::{Error, ErrorKind, Result};
use gabion_media::remote::PeerId;
use gabion_media::remote::peer::PAGE_LEN;

/// Bytes at most that a new part of a file has in the table.
const PART_LEN_MAX: u64 = 16;

/// Peers had no room for a part.
#[derive(Clone, Debug)]
pub(crate) struct Denied {
    /// It was not to be smaller.
    least: u64,
    until_ms: u64,
    /// Records so far that free regions, and cuts of files that may have some to give up: after the
    /// next one it is asked again.
    freed: (u64, u64),
    error: Error,
}

/// Parts that peers are asked for before any file has them.
#[derive(Debug, Default)]
pub(crate) struct Wants {
    /// The length of the region of each.
    pub(crate) asked: BTreeMap<Label, u64>,
    denied: BTreeMap<Label, Denied>,
}

/// The answers of copies that count.
struct Answers {
    lent: usize,
    open: usize,
    /// The bytes that are free at each of those without room.
    no_room: Vec<u64>,
}

impl Answers {
    /// The longest region that `copies` of them can lend.
    fn room_of(&self, copies: usize) -> u64 {
        let mut room = self.no_room.clone();
        room.extend(core::iter::repeat_n(u64::MAX, self.lent + self.open));
        room.sort_unstable_by_key(|bytes| Reverse(*bytes));
        room.get(copies - 1).copied().unwrap_or(0)
    }
}

/// A shorter part, of a power of two if that is enough; none if there is no room for `least`.
fn shorter(bytes: u64, room: u64, least: u64) -> Option<u64> {
    let pages = room / PAGE_LEN * PAGE_LEN;
    let power = pages.checked_ilog2().map_or(0, |bits| 1 << bits);
    [power, pages].into_iter().find(|len| (least..bytes).contains(len))
}

impl<S: Images> Application<S> {
    /// Has peers lend what a file of `end` bytes needs, and some ahead. Returns the length up to
    /// which the file may grow without asking again. A program that changes images itself calls
    /// this first, so that none is longer than peers have room for.
    ///
    /// # Errors
    /// Busy while peers are asked: call again once something was handed in. No space where f+1
    /// copies cannot have it; then nothing has changed. Not found; limit exceeded;
    /// those of [`Self::is_ready`].
    pub fn reserve(&mut self, file: FileNumber, end: u64) -> Result<u64> {
        let files = &self.state()?.files;
        files.end_of(file, end, 0)?;
        if files.part_need(file, end)?.is_some() {
            self.begin_change()?;
            self.make_room(file, end)?;
        }
        Ok(self.state()?.files.stat(file)?.entry.capacity())
    }

    /// Files give up the memory that no byte of them needs. A file whose image the program changes
    /// is as long as `lens` say, or is left alone. Their capacity is less then, of which the
    /// program hears by [`Self::reserve`]. False if there was nothing to give up.
    ///
    /// # Errors
    /// Unavailable without room for records; those of [`Self::is_ready`].
    pub fn trim(&mut self, lens: &BTreeMap<FileNumber, u64>) -> Result<bool> {
        self.begin_change()?;
        self.trim_but(lens, None)
    }

    fn trim_but(
        &mut self,
        lens: &BTreeMap<FileNumber, u64>,
        except: Option<FileNumber>,
    ) -> Result<bool> {
        let trimmed = self.apply(|files, log| files.trim(log, lens, except))?;
        if trimmed {
            self.forget_wants();
        }
        Ok(trimmed)
    }

    /// Makes the parts that a file of `end` bytes needs, and one ahead of need if all copies can
    /// have it.
    pub(crate) fn make_room(&mut self, file: FileNumber, end: u64) -> Result<()> {
        while let Some((need, least)) = self.state()?.files.part_need(file, end)? {
            let table = self.make_table_room(PART_LEN_MAX)?;
            let bytes = self.ask(need, least, &table)?;
            self.grow(file, bytes, &table)?;
        }
        let Some(need) = self.state()?.files.part_need_ahead(file, end) else { return Ok(()) };
        let bytes = *self.wants.asked.entry(need.label).or_insert(need.bytes);
        let answers = self.ask_copies(Need { bytes, ..need }, &[])?;
        let is_lent = answers.lent > self.options.f && answers.open + answers.no_room.len() == 0;
        if is_lent && self.state()?.files.table_needs(PART_LEN_MAX).is_empty() {
            self.grow(file, bytes, &[])?;
        }
        Ok(())
    }

    fn grow(&mut self, file: FileNumber, bytes: u64, table: &[Need]) -> Result<()> {
        self.apply(|files, log| {
            files.grow_table(log, table);
            files.grow(log, file, bytes)
        })?;
        self.forget_wants();
        Ok(())
    }

    /// Has peers lend the first part of the next new file, which adds so many bytes to the table.
    pub(crate) fn make_first_part(&mut self, more: u64) -> Result<()> {
        let table = self.make_table_room(more)?;
        let files = &self.state()?.files;
        let need = first_need(files.names.next(), files.part_min());
        self.ask(need, need.bytes, &table).map(|_| ())
    }

    /// Has peers lend what the table needs for so many bytes more. Returns that.
    pub(crate) fn make_table_room(&mut self, more: u64) -> Result<Vec<Need>> {
        let mut needs = self.state()?.files.table_needs(more);
        for at in 0..needs.len() {
            needs[at].bytes = self.ask(needs[at], needs[at].bytes, &needs[..at])?;
        }
        Ok(needs)
    }

    /// Wants of files that are gone, and of parts that files have, are none any more.
    pub(crate) fn forget_wants(&mut self) {
        let Some(state) = &self.state else { return };
        let files = &state.files;
        let is_wanted = |label: &Label| match files.get(label.file) {
            Some(file) => label.part as usize == file.parts.len(),
            None => label.file == files.names.next(),
        };
        self.wants.asked.retain(|label, _| is_wanted(label));
        self.wants.denied.retain(|label, _| is_wanted(label));
    }

    /// The length of a region that f+1 copies have lent, and the same copies the table's. Where
    /// fewer count it is all of those: nobody knows what others will have room for, and a new copy
    /// may wait for records that follow this one, so it is not waited for.
    fn ask(&mut self, need: Need, least: u64, table: &[Need]) -> Result<u64> {
        let label = need.label;
        let labels: Vec<Label> = table.iter().map(|table| table.label).chain([label]).collect();
        if let Some(denied) = self.wants.denied.get(&label)
            && denied.freed == self.freed()
            && denied.least <= least
            && self.now_ms < denied.until_ms
            && self.counted().filter(|link| !link.refuses(&labels, self.now_ms)).count()
                < self.lenders()
        {
            return Err(denied.error.clone());
        }
        self.wants.denied.remove(&label);
        let mut bytes = *self.wants.asked.get(&label).unwrap_or(&need.bytes);
        if bytes < least {
            bytes = need.bytes;
        }
        loop {
            self.wants.asked.insert(label, bytes);
            let answers = self.ask_copies(Need { label, bytes }, table)?;
            let copies = self.lenders();
            if answers.lent >= copies {
                return Ok(bytes);
            }
            if answers.lent + answers.open >= copies {
                break;
            }
            match shorter(bytes, answers.room_of(copies), least) {
                Some(len) => bytes = len,
                None if self.release_others(label, table)? => break,
                None => return Err(self.deny(need, least)),
            }
        }
        self.step();
        Err(Error::new(ErrorKind::Busy, format!("peers are asked for memory of {}", label.file)))
    }

    fn lenders(&self) -> usize {
        self.counted().count().min(self.options.f + 1)
    }

    fn freed(&self) -> (u64, u64) {
        (self.frees(), self.state.as_ref().map_or(0, |state| state.files.cuts()))
    }

    fn frees(&self) -> u64 {
        self.state.as_ref().map_or(0, |state| state.log.frees())
    }

    /// A copy that lacks what former records need may be given up by them: it is no lender.
    fn ask_copies(&mut self, need: Need, table: &[Need]) -> Result<Answers> {
        self.state()?;
        let peers: Vec<PeerId> = self.counted().map(|link| link.peer).collect();
        let mut answers = Answers { lent: 0, open: 0, no_room: Vec::new() };
        let Some(State { log, .. }) = &self.state else { return Ok(answers) };
        for peer in peers {
            let Some(link) = self.links.get_mut(&peer) else { continue };
            let mut want = |need| link.want_ahead(need, self.now_ms, log.frees());
            let (place, beside) = (want(need), table.iter().copied().map(want));
            let beside: Vec<Place> = beside.collect();
            let is_lent = |place: &Place| matches!(place, Place::Lent(_));
            let is_refused = |place: &Place| matches!(place, Place::NoRoom(_));
            match place {
                _ if beside.iter().any(is_refused) => answers.no_room.push(0),
                Place::NoRoom(no_room) => answers.no_room.push(no_room.free_bytes()),
                Place::Lent(_) if beside.iter().all(is_lent) && link.has_needs(log) => {
                    answers.lent += 1;
                }
                _ => answers.open += 1,
            }
        }
        Ok(answers)
    }

    /// Gives back what others had lent ahead of their need, or have of no byte. False if that is
    /// nothing.
    fn release_others(&mut self, label: Label, table: &[Need]) -> Result<bool> {
        let frees = self.frees();
        let is_other = |it: &Label| *it != label && table.iter().all(|need| need.label != *it);
        let others: Vec<_> = self.wants.asked.keys().copied().filter(is_other).collect();
        let mut is_released = false;
        for link in self.links.values_mut() {
            for other in &others {
                is_released |= link.want_no_more(*other, frees);
            }
        }
        self.wants.asked.retain(|it, _| !is_other(it));
        Ok(is_released || self.trim_but(&BTreeMap::new(), Some(label.file))?)
    }

    fn deny(&mut self, need: Need, least: u64) -> Error {
        let (label, frees) = (need.label, self.frees());
        let error = self.no_space(label.file, least);
        for link in self.links.values_mut() {
            link.want_no_more(label, frees);
        }
        self.wants.asked.remove(&label);
        let (until_ms, freed) = (self.now_ms + self.options.cooling_ms, self.freed());
        self.wants.denied.insert(label, Denied { least, until_ms, freed, error: error.clone() });
        self.step();
        error
    }

    fn no_space(&self, file: FileNumber, bytes: u64) -> Error {
        let names = self.state.as_ref().map(|state| &state.files.names);
        let name = match names.and_then(|names| names.name_of(file)) {
            Some(name) => format!("'{name}'"),
            None if file.is_names() => "the table of names".to_string(),
            None => "another file".to_string(),
        };
        let (owner, copies) = (&self.options.owner, self.options.f + 1);
        Error::no_space(format!(
            "application '{owner}': log peers have no memory for {name}: {bytes} bytes more are \
             wanted, at {copies} peers{}",
            self.memory()
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_shortened_to_what_there_is_room_for_and_to_no_less_than_is_needed() {
        let mib = 1 << 20;
        assert_eq!(shorter(32 * mib, 21 * mib, mib), Some(16 * mib));
        assert_eq!(shorter(32 * mib, 21 * mib, 20 * mib), Some(21 * mib));
        assert_eq!(shorter(32 * mib, 21 * mib + 5, 21 * mib), Some(21 * mib));
        assert_eq!(shorter(32 * mib, 21 * mib, 22 * mib), None);
        assert_eq!(shorter(mib, 21 * mib, mib), None);
        assert_eq!(shorter(mib, 0, 1), None);
    }
}

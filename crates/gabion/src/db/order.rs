//! Rules for the entries of a file and the files of a level, beyond checksums: a defect in their
//! writer has good checksums.

use super::out::quoted;
use gabion_base::{FileId, SequenceNumber};
use gabion_engine::expiry::EXPIRY_LEN;
use gabion_engine::sst::Properties;
use gabion_engine::sst::inspect::IndexEntry;
use gabion_engine::{
    Entry, EntryKind, ExpirySpan, FileMeta, Operand, Operands, Pointer, Trailer, Version,
};
use std::collections::BTreeMap;

/// Goes through the entries of one file, in their order.
pub(super) struct Order<'a> {
    meta: &'a FileMeta,
    last: Option<(Vec<u8>, Trailer)>,
    /// The offset where the next block must begin.
    block_at: u32,
    entries: u64,
    deletes: u64,
    expiry: Option<ExpirySpan>,
    operands: Option<Operands>,
    /// Bytes of values in other files, by file.
    references: BTreeMap<FileId, u64>,
    key_bytes: u64,
    value_bytes: u64,
    sequences: Option<(SequenceNumber, SequenceNumber)>,
    first: Vec<u8>,
}

impl<'a> Order<'a> {
    pub(super) fn new(meta: &'a FileMeta) -> Self {
        Self {
            meta,
            last: None,
            block_at: 0,
            entries: 0,
            deletes: 0,
            expiry: None,
            operands: None,
            references: BTreeMap::new(),
            key_bytes: 0,
            value_bytes: 0,
            sequences: None,
            first: Vec::new(),
        }
    }

    /// Begins a block.
    pub(super) fn block(&mut self, block: &IndexEntry) -> Result<(), String> {
        let expected = std::mem::replace(&mut self.block_at, block.offset + block.stored_len);
        if block.offset == expected {
            return Ok(());
        }
        Err(format!("the index has a block at {}, the one before ends at {expected}", block.offset))
    }

    /// The next entry, and whether the filter knows its key.
    pub(super) fn entry(&mut self, entry: &Entry<'_>, in_filter: bool) -> Result<(), String> {
        let (key, sequence) = (entry.key, entry.trailer.sequence());
        let named = || format!("key {} {sequence}", quoted(key));
        let before = self.last.replace((key.to_vec(), entry.trailer));
        match &before {
            None => self.first = key.to_vec(),
            Some((last, trailer)) => {
                if gabion_engine::entry::compare(last, *trailer, key, entry.trailer).is_ge() {
                    let last = format!("{} {}", quoted(last), trailer.sequence());
                    return Err(format!("{} follows {last}: not in order", named()));
                }
            }
        }
        self.entries += 1;
        self.deletes += u64::from(entry.trailer.kind().is_delete());
        self.key_bytes += key.len() as u64;
        self.value_bytes += entry.value.len() as u64;
        let (low, high) = self.sequences.unwrap_or((sequence, sequence));
        self.sequences = Some((low.min(sequence), high.max(sequence)));
        let times = self.times(entry);
        if !self.meta.may_hold(key) {
            return Err(format!("{} lies outside of the bounds in its edit", named()));
        }
        if !in_filter {
            return Err(format!("the filter denies {}", named()));
        }
        times.map_err(|wrong| format!("{}: {wrong}", named()))
    }

    /// Takes the times in an entry. Jobs rely on the spans of these: what may be merged, and what
    /// is gone.
    fn times(&mut self, entry: &Entry<'_>) -> Result<(), String> {
        match entry.trailer.kind() {
            EntryKind::ExpiringPut | EntryKind::ExpiringPointer | EntryKind::ExpiringPackedPut => {
                let Some(expiry) = entry.value.first_chunk::<EXPIRY_LEN>() else {
                    let len = entry.value.len();
                    return Err(format!(
                        "{len} bytes are stored, its expiry alone has {EXPIRY_LEN}"
                    ));
                };
                let expiry = ExpirySpan::at(u64::from_le_bytes(*expiry));
                self.expiry = Some(self.expiry.map_or(expiry, |span| span.with(expiry)));
            }
            EntryKind::Merge => {
                let Operand { at_ms, .. } =
                    Operand::decode(entry.value).map_err(|error| error.to_string())?;
                let (count, first_ms) =
                    self.operands.map_or((0, at_ms), |all| (all.count, all.first_ms));
                self.operands = Some(Operands { count: count + 1, first_ms: first_ms.min(at_ms) });
            }
            _ => {}
        }
        if entry.trailer.kind().is_pointer() {
            let at = if entry.trailer.kind().is_expiring() { EXPIRY_LEN } else { 0 };
            let pointer = Pointer::decode(&entry.value[at..]).map_err(|error| error.to_string())?;
            *self.references.entry(pointer.file).or_default() += u64::from(pointer.len);
        }
        Ok(())
    }

    /// Ends a block: its separator in the index must be at or after its last key.
    pub(super) fn block_end(&self, block: &IndexEntry) -> Result<(), String> {
        match &self.last {
            Some((last, _)) if block.separator < *last => Err(format!(
                "the index says that the block ends with {}, it ends with {}",
                quoted(&block.separator),
                quoted(last)
            )),
            _ => Ok(()),
        }
    }

    /// The next block must begin behind the separator of this one.
    pub(super) fn separated(&self, before: &IndexEntry, first: &[u8]) -> Result<(), String> {
        if before.separator.as_slice() <= first {
            return Ok(());
        }
        Err(format!(
            "the block begins with {}, the index ends the one before with {}",
            quoted(first),
            quoted(&before.separator)
        ))
    }

    pub(super) const fn entries(&self) -> u64 {
        self.entries
    }

    /// Checks that the entries are as many and as large as the file's properties say.
    pub(super) fn finish(&self, properties: &Properties) -> Vec<String> {
        let (first, last, (low, high)) = self.enclosed(properties);
        let numbers = [
            ("entries", self.entries, properties.entries),
            ("deletes", self.deletes, properties.deletes),
            ("bytes of keys", self.key_bytes, properties.raw_key_bytes),
            ("bytes of values", self.value_bytes, properties.raw_value_bytes),
            ("as smallest sequence number", low.get(), properties.smallest_sequence.get()),
            ("as largest sequence number", high.get(), properties.largest_sequence.get()),
        ];
        let keys = [("first", &first, &properties.smallest), ("last", &last, &properties.largest)];
        let numbers = numbers.iter().filter(|(_, found, said)| found != said);
        let numbers = numbers
            .map(|(what, found, said)| format!("holds {found} {what}, its properties say {said}"));
        let keys = keys.iter().filter(|(_, found, said)| found != said);
        let keys = keys.map(|(what, found, said)| {
            format!("has {} as {what} key, its properties say {}", quoted(found), quoted(said))
        });
        let times = [
            (expiring(self.expiry), expiring(self.meta.expiry)),
            (added(self.operands), added(self.meta.operands)),
        ];
        let times = times.into_iter().filter(|(found, said)| found != said);
        let times = times.map(|(found, said)| format!("holds {found}, its edit says {said}"));
        let ranges = (properties.ranges.described() != self.meta.ranges)
            .then(|| "has other range deletes than its edit says".to_owned());
        let said = self.meta.references.iter().map(|it| (it.file, it.live_bytes));
        let references = (!self.references.iter().map(|(file, len)| (*file, *len)).eq(said))
            .then(|| "has pointers to other values than its edit says".to_owned());
        numbers.chain(keys).chain(times).chain(ranges).chain(references).collect()
    }

    /// The first key and the last, and the smallest sequence number and the largest, of entries and
    /// range deletes.
    fn enclosed(
        &self,
        properties: &Properties,
    ) -> (Vec<u8>, Vec<u8>, (SequenceNumber, SequenceNumber)) {
        let last = self.last.as_ref().map(|(key, _)| key.clone()).unwrap_or_default();
        let (mut first, mut last, mut sequences) = (self.first.clone(), last, self.sequences);
        if let Some((start, end)) = properties.ranges.bounds() {
            if self.entries == 0 || *start < *first {
                first = start.to_vec();
            }
            if self.entries == 0 || *end > *last {
                last = end.to_vec();
            }
        }
        let ranges = properties.ranges.as_slice().iter();
        for sequence in ranges.flat_map(|range| range.sequences.iter().copied()) {
            let (low, high) = sequences.unwrap_or((sequence, sequence));
            sequences = Some((low.min(sequence), high.max(sequence)));
        }
        (first, last, sequences.unwrap_or_default())
    }
}

/// The span in which a file's entries expire.
fn expiring(span: Option<ExpirySpan>) -> String {
    span.map_or_else(
        || "nothing that expires".to_owned(),
        |ExpirySpan { first_ms, last_ms }| format!("expiries from {first_ms} to {last_ms} ms"),
    )
}

/// The additions to counters in a file.
fn added(operands: Option<Operands>) -> String {
    operands.map_or_else(
        || "no operands".to_owned(),
        |Operands { count, first_ms }| format!("{count} operands from {first_ms} ms on"),
    )
}

/// Overlapping files of L0 that are not as new as their places say: reads take the first that has a
/// key. Opening a tree always checks that the other levels are sorted and disjoint.
pub(super) fn of_l0(version: &Version) -> Vec<String> {
    let files = version.level(0);
    let mut wrong = Vec::new();
    for (i, newer) in files.iter().enumerate() {
        for older in &files[i + 1..] {
            let overlap = newer.smallest <= older.largest && older.smallest <= newer.largest;
            if overlap && newer.smallest_sequence <= older.largest_sequence {
                wrong.push(format!(
                    "{} lies before {} in L0 and begins with sequence number {}, which is not after its {}",
                    newer.id, older.id, newer.smallest_sequence, older.largest_sequence
                ));
            }
        }
    }
    wrong
}

#[cfg(test)]
mod tests;

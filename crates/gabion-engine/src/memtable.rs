//! MemTables: the newest entries, sorted in memory.
//!
//! MemTables with the same number hold the same entries with the same sequence numbers at every
//! replica (RubbleDB §4.2), because the log decides both. One owner applies the log
//! and inserts; readers on any thread look up and iterate meanwhile without locks and see what was
//! inserted before they began, by sequence number.
//!
//! Clears of everything are a number of the tree's ([`crate::tree`]). Range deletes are no entries
//! either: a table with more of them is another handle of the same entries
//! ([`MemTable::with_range_deletes`]). Whoever holds a table with too few began to read before they
//! were written.

use crate::counter::Operand;
use crate::entry::{Entry, EntryKind, Trailer, compare};
use crate::expiry::{ExpirySpan, expiry_of};
use crate::range_delete::{MEMTABLE_RANGES_MAX, RangeDelete, Stretch, TableRanges};
use crate::skip_list::{Cursor, ListWriter, SkipList};
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use gabion_base::{MemTableId, SequenceNumber};

/// What each entry costs besides key and value when a table's size is charged: its header and
/// rounding, and its place in leaves, on average, for keys that come in no order.
pub const ENTRY_OVERHEAD: usize = 60;

/// A sorted table of entries in memory. `Send` and `Sync`; share it as `Arc<MemTable>`.
pub struct MemTable {
    id: MemTableId,
    list: Arc<SkipList>,
    counts: Arc<Counts>,
    ranges: TableRanges,
}

/// A table that left the tree, as far as readers or jobs still have it.
pub(crate) struct KeptTable {
    list: Weak<SkipList>,
    bytes: usize,
}

impl KeptTable {
    /// Bytes of memory that it takes.
    pub(crate) fn bytes(&self) -> usize {
        if self.list.strong_count() > 0 { self.bytes } else { 0 }
    }
}

/// What handles of the same entries share.
struct Counts {
    memory_used: AtomicUsize,
    allocated: AtomicUsize,
    len: AtomicUsize,
    deletes: AtomicUsize,
    // Values from this length on are counted in bytes.
    large_from: AtomicUsize,
    large_bytes: AtomicUsize,
    // u64::MAX and 0 while empty.
    smallest_sequence: AtomicU64,
    largest_sequence: AtomicU64,
    // u64::MAX: it holds no operand.
    operands_from_ms: AtomicU64,
    // u64::MAX and 0: it holds nothing that expires.
    expiry_first_ms: AtomicU64,
    expiry_last_ms: AtomicU64,
}

impl MemTable {
    /// An empty table.
    #[must_use]
    pub fn new(id: MemTableId) -> Self {
        Self::with_prefix(id, &[])
    }

    /// An empty table that is fastest for keys which begin with `prefix`.
    fn with_prefix(id: MemTableId, prefix: &[u8]) -> Self {
        Self {
            id,
            list: Arc::new(SkipList::new(id.get(), prefix)),
            counts: Arc::new(Counts {
                memory_used: AtomicUsize::new(0),
                allocated: AtomicUsize::new(0),
                len: AtomicUsize::new(0),
                deletes: AtomicUsize::new(0),
                large_from: AtomicUsize::new(usize::MAX),
                large_bytes: AtomicUsize::new(0),
                smallest_sequence: AtomicU64::new(u64::MAX),
                largest_sequence: AtomicU64::new(0),
                operands_from_ms: AtomicU64::new(u64::MAX),
                expiry_first_ms: AtomicU64::new(u64::MAX),
                expiry_last_ms: AtomicU64::new(0),
            }),
            ranges: TableRanges::default(),
        }
    }

    /// The same entries, charges and counts with more range deletes, of which there is at least
    /// one. To be called by the one who inserts; a reader whose read point is published after this
    /// sees them through the handle that is returned, and not through this one.
    ///
    /// Costs a search for each doubling of the table's range deletes when they are looked up, and
    /// to cut as many into fragments anew here, on average once for each doubling.
    #[must_use]
    pub fn with_range_deletes(&self, added: Vec<RangeDelete>) -> Self {
        assert!(!added.is_empty(), "{}: another handle has more range deletes", self.id);
        for range in &added {
            assert!(range.start < range.end, "{}: a range delete has keys", self.id);
            let charge = range.start.len() + range.end.len() + ENTRY_OVERHEAD;
            self.counts.add(range.sequence, charge);
        }
        Self {
            id: self.id,
            list: self.list.clone(),
            counts: self.counts.clone(),
            ranges: self.ranges.with(added),
        }
    }

    /// Its range deletes, in no order.
    pub fn range_deletes(&self) -> impl Iterator<Item = &RangeDelete> {
        self.ranges.iter()
    }

    /// Whether there are range deletes.
    #[inline]
    #[must_use]
    pub const fn has_range_deletes(&self) -> bool {
        !self.ranges.is_empty()
    }

    /// Whether it has so many range deletes that it is to be sealed.
    #[must_use]
    pub const fn is_full_of_range_deletes(&self) -> bool {
        self.ranges.len() >= MEMTABLE_RANGES_MAX
    }

    /// The newest range delete at or below `read_sequence` that covers `key`.
    #[inline]
    #[must_use]
    pub fn range_delete_of(
        &self,
        key: &[u8],
        read_sequence: SequenceNumber,
    ) -> Option<SequenceNumber> {
        if self.ranges.is_empty() { None } else { self.ranges.newest(key, read_sequence) }
    }

    /// The same, and of which keys around it that is true too.
    pub(crate) fn stretch(&self, key: &[u8], read_sequence: SequenceNumber) -> Stretch {
        self.ranges.stretch(key, read_sequence)
    }

    /// The next table, empty, for keys like these.
    #[must_use]
    pub fn successor(&self) -> Self {
        let next = Self::with_prefix(self.id.next(), self.list.common_prefix());
        let large_from = self.counts.large_from.load(Ordering::Relaxed);
        next.counts.large_from.store(large_from, Ordering::Relaxed);
        next
    }

    /// Counts the bytes of values of at least `len` that are inserted from now on; 0: of none.
    pub(crate) fn count_large_from(&self, len: u32) {
        let from = if len == 0 { usize::MAX } else { len as usize };
        self.counts.large_from.store(from, Ordering::Relaxed);
    }

    /// Bytes of values that are so long. May differ between replicas.
    pub(crate) fn large_bytes(&self) -> usize {
        self.counts.large_bytes.load(Ordering::Relaxed)
    }

    /// Its number.
    #[must_use]
    pub const fn id(&self) -> MemTableId {
        self.id
    }

    /// Claims the right to insert, for as long as the writer lives.
    ///
    /// # Panics
    /// While another writer lives: the one that applies the log is the only one.
    #[must_use]
    pub fn writer(&self) -> MemTableWriter<'_> {
        MemTableWriter { table: self, list: self.list.writer() }
    }

    /// Inserts one entry: `writer().insert(…)`.
    ///
    /// # Panics
    /// As [`MemTable::writer`] and [`MemTableWriter::insert`].
    pub fn insert(&self, key: &[u8], sequence: SequenceNumber, kind: EntryKind, value: &[u8]) {
        self.writer().insert(key, sequence, kind, value);
    }

    /// What a reader at `read_sequence` finds for `key`: its newest entry, or the range delete that
    /// covers it, when that is newer. `None`: this table says nothing about the key.
    #[inline]
    #[must_use]
    pub fn get(
        &self,
        key: &[u8],
        read_sequence: SequenceNumber,
    ) -> Option<(EntryKind, SequenceNumber, &[u8])> {
        let found = self.list.seek(key, Trailer::seek(read_sequence)).filter(|e| e.key == key);
        if !self.ranges.is_empty() {
            return self.get_under_ranges(found, key, read_sequence);
        }
        found.map(|entry| (entry.trailer.kind(), entry.trailer.sequence(), entry.value))
    }

    /// The same where there are range deletes.
    #[cold]
    fn get_under_ranges<'a>(
        &self,
        found: Option<Entry<'a>>,
        key: &[u8],
        read_sequence: SequenceNumber,
    ) -> Option<(EntryKind, SequenceNumber, &'a [u8])> {
        let ranged = self.ranges.newest(key, read_sequence);
        match found {
            Some(entry) if Some(entry.trailer.sequence()) >= ranged => {
                Some((entry.trailer.kind(), entry.trailer.sequence(), entry.value))
            }
            _ => ranged.map(|sequence| (EntryKind::RangeDelete, sequence, &[][..])),
        }
    }

    /// A cursor at no entry, which keeps the entries alive and may go to another thread.
    #[must_use]
    pub fn iter(&self) -> MemTableIter {
        MemTableIter { cursor: Cursor::new(self.list.clone()) }
    }

    /// The first and the last key of its entries and range deletes, the end of a range included;
    /// none while empty.
    #[must_use]
    pub(crate) fn bounds(&self) -> Option<(Vec<u8>, Vec<u8>)> {
        let (mut first, mut last) = (self.iter(), self.iter());
        first.seek_to_first();
        last.seek_to_last();
        let of_entries = first.entry().zip(last.entry());
        let of_entries = of_entries.map(|(first, last)| (first.key.to_vec(), last.key.to_vec()));
        let of_ranges = self.range_deletes().map(|it| (it.start.to_vec(), it.end.to_vec()));
        of_entries.into_iter().chain(of_ranges).reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)))
    }

    /// About how many entries have engine keys in `from..to` (to the end without `to`), and the
    /// bytes of memory charged for them. Exact up to 2,000 entries; beyond, both are estimated from
    /// 256 groups of up to 15 neighbours or more, with a standard error of a sixteenth of the count
    /// (and more of the bytes where lengths differ much). Costs a search and a look at 4,000
    /// entries or so at most.
    #[must_use]
    pub fn estimate(&self, from: &[u8], to: Option<&[u8]>) -> (u64, u64) {
        let (count, bytes) = self.list.estimate(from, to);
        (count, bytes + count * ENTRY_OVERHEAD as u64)
    }

    /// What is gone once nothing keeps the entries' memory any more.
    #[cfg(test)]
    pub(crate) fn memory(&self) -> Weak<SkipList> {
        Arc::downgrade(&self.list)
    }

    /// Bytes charged for entries and range deletes: keys, values and [`ENTRY_OVERHEAD`] each. The
    /// same at every replica.
    #[must_use]
    pub fn memory_used(&self) -> usize {
        self.counts.memory_used.load(Ordering::Relaxed)
    }

    /// Bytes of memory that the table takes from the allocator: in steps of up to 1 MiB for
    /// entries, leaves and links each, and of range deletes what is charged. May differ between
    /// replicas.
    #[must_use]
    pub fn allocated(&self) -> usize {
        let ranges = self.range_deletes();
        let ranges = ranges.map(|it| it.start.len() + it.end.len() + ENTRY_OVERHEAD);
        self.counts.allocated.load(Ordering::Relaxed) + ranges.sum::<usize>()
    }

    /// What lets go of nothing and tells whether the entries' memory is still kept by anybody.
    pub(crate) fn kept(&self) -> KeptTable {
        KeptTable { list: Arc::downgrade(&self.list), bytes: self.allocated() }
    }

    /// Entries and range deletes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.counts.len.load(Ordering::Relaxed)
    }

    /// Deletes of keys among the entries.
    #[must_use]
    pub fn deletes(&self) -> usize {
        self.counts.deletes.load(Ordering::Relaxed)
    }

    /// The longest stretch of keys of which each is deleted, with none beside them that is not: its
    /// first and last key and how many there are. Costs a look at each entry.
    #[must_use]
    pub(crate) fn longest_deleted(&self) -> Option<(Vec<u8>, Vec<u8>, u64)> {
        let mut iter = self.iter();
        iter.seek_to_first();
        let (mut stretch, mut longest) = (Deleted::default(), Deleted::default());
        let mut key: Option<Vec<u8>> = None;
        while let Some(entry) = iter.entry() {
            // Older versions of a key come after the newest.
            if key.as_deref() != Some(entry.key) {
                if entry.trailer.kind() == EntryKind::Delete {
                    stretch.push(entry.key);
                } else {
                    longest = longest.max(core::mem::take(&mut stretch));
                }
                let key = key.get_or_insert_default();
                key.clear();
                key.extend_from_slice(entry.key);
            }
            iter.advance();
        }
        let Deleted { count, first, last } = longest.max(stretch);
        (count > 0).then_some((first, last, count))
    }

    /// Checks that entries are in order and that counts agree with them. Costs a look at each
    /// entry.
    ///
    /// # Panics
    /// When one of them does not hold.
    pub(crate) fn invariants(&self) {
        let (mut count, mut deletes, mut charged) = (0, 0, 0);
        let (smallest, largest) = (self.smallest_sequence(), self.largest_sequence());
        let mut iter = self.iter();
        iter.seek_to_first();
        let mut before: Option<(Vec<u8>, Trailer)> = None;
        while let Some(entry) = iter.entry() {
            if let Some((key, trailer)) = &before {
                let order = compare(key, *trailer, entry.key, entry.trailer);
                assert!(order.is_lt(), "{}: entries are in order", self.id);
            }
            let sequence = Some(entry.trailer.sequence());
            assert!(smallest <= sequence, "{}: the first is the smallest", self.id);
            assert!(sequence <= largest, "{}: the last is the largest", self.id);
            count += 1;
            deletes += usize::from(entry.trailer.kind() == EntryKind::Delete);
            charged += entry.key.len() + entry.value.len() + ENTRY_OVERHEAD;
            before = Some((entry.key.to_vec(), entry.trailer));
            iter.advance();
        }
        for range in self.range_deletes() {
            count += 1;
            charged += range.start.len() + range.end.len() + ENTRY_OVERHEAD;
        }
        assert_eq!(self.len(), count, "{}: entries are counted", self.id);
        assert_eq!(self.deletes(), deletes, "{}: deletes are counted", self.id);
        assert_eq!(self.memory_used(), charged, "{}: bytes are charged", self.id);
    }

    /// Whether there are no entries and no range deletes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The smallest sequence number inserted; none while empty.
    #[must_use]
    pub fn smallest_sequence(&self) -> Option<SequenceNumber> {
        let smallest = self.counts.smallest_sequence.load(Ordering::Relaxed);
        (smallest != u64::MAX).then_some(SequenceNumber(smallest))
    }

    /// The largest sequence number inserted; none while empty.
    #[must_use]
    pub fn largest_sequence(&self) -> Option<SequenceNumber> {
        self.smallest_sequence()
            .map(|_| SequenceNumber(self.counts.largest_sequence.load(Ordering::Relaxed)))
    }

    /// When the first of its operands was written, in group time; none without operands.
    #[must_use]
    pub fn operands_from_ms(&self) -> Option<u64> {
        Some(self.counts.operands_from_ms.load(Ordering::Relaxed)).filter(|from| *from < u64::MAX)
    }

    /// When what it holds expires, if any of it does.
    #[must_use]
    pub fn expiry(&self) -> Option<ExpirySpan> {
        let first_ms = self.counts.expiry_first_ms.load(Ordering::Relaxed);
        let last_ms = self.counts.expiry_last_ms.load(Ordering::Relaxed);
        (first_ms <= last_ms).then_some(ExpirySpan { first_ms, last_ms })
    }
}

/// A stretch of keys that are deleted. The one with more is the greater.
#[derive(Default, PartialEq, Eq, PartialOrd, Ord)]
struct Deleted {
    count: u64,
    first: Vec<u8>,
    last: Vec<u8>,
}

impl Deleted {
    fn push(&mut self, key: &[u8]) {
        if self.count == 0 {
            self.first = key.to_vec();
        }
        self.count += 1;
        self.last.clear();
        self.last.extend_from_slice(key);
    }
}

impl Counts {
    /// One more entry or range delete.
    #[inline]
    fn add(&self, sequence: SequenceNumber, charge: usize) {
        // Plain load and store suffice: there is one writer.
        let add = |counter: &AtomicUsize, n: usize| {
            counter.store(counter.load(Ordering::Relaxed) + n, Ordering::Relaxed);
        };
        add(&self.memory_used, charge);
        add(&self.len, 1);
        if sequence.get() > self.largest_sequence.load(Ordering::Relaxed) {
            self.largest_sequence.store(sequence.get(), Ordering::Relaxed);
        }
        if sequence.get() < self.smallest_sequence.load(Ordering::Relaxed) {
            self.smallest_sequence.store(sequence.get(), Ordering::Relaxed);
        }
    }

    /// What jobs have to know of an operand, and of what expires.
    #[inline]
    fn note_times(&self, sequence: SequenceNumber, kind: EntryKind, value: &[u8]) {
        if kind == EntryKind::Merge {
            // The largest number means none.
            let at_ms = Operand::at_ms_of(value).unwrap_or_default().min(u64::MAX - 1);
            self.operands_from_ms.fetch_min(at_ms, Ordering::Relaxed);
        } else if kind.is_expiring()
            && let Ok((Some(at_ms), _)) = expiry_of(Trailer::new(sequence, kind), value)
        {
            self.expiry_first_ms.fetch_min(at_ms, Ordering::Relaxed);
            self.expiry_last_ms.fetch_max(at_ms, Ordering::Relaxed);
        }
    }
}

/// The right to insert into a MemTable; given back when dropped.
pub struct MemTableWriter<'a> {
    table: &'a MemTable,
    list: ListWriter<'a>,
}

impl MemTableWriter<'_> {
    /// Inserts an entry. A reader whose read point the writer publishes after this returns sees it.
    ///
    /// # Panics
    /// When the kind is `Clear` or `RangeDelete`, the sequence number is over 56 bits, or (in debug
    /// builds) the entry is there already: tree, batches and log rule all of these out.
    pub fn insert(&mut self, key: &[u8], sequence: SequenceNumber, kind: EntryKind, value: &[u8]) {
        let is_entry = !matches!(kind, EntryKind::Clear | EntryKind::RangeDelete);
        assert!(is_entry, "range deletes and clears are no entries");
        let counts = &self.table.counts;
        self.list.insert(key, Trailer::new(sequence, kind), value);
        let allocated = self.list.allocated();
        if allocated != counts.allocated.load(Ordering::Relaxed) {
            counts.allocated.store(allocated, Ordering::Relaxed);
        }
        counts.note_times(sequence, kind, value);
        if kind == EntryKind::Delete {
            let deletes = counts.deletes.load(Ordering::Relaxed);
            counts.deletes.store(deletes + 1, Ordering::Relaxed);
        }
        // A packed value was large before.
        let large_from = counts.large_from.load(Ordering::Relaxed);
        let is_large = value.len() >= large_from || kind.is_packed() && large_from < usize::MAX;
        if is_large {
            let large = counts.large_bytes.load(Ordering::Relaxed);
            counts.large_bytes.store(large + value.len(), Ordering::Relaxed);
        }
        counts.add(sequence, key.len() + value.len() + ENTRY_OVERHEAD);
    }
}

/// A cursor over a MemTable in tree order. Of entries that are inserted while it is in use it sees
/// those that lie beyond the neighbours of the entry here; all that were there before, it sees.
#[derive(Clone)]
pub struct MemTableIter {
    cursor: Cursor,
}

impl MemTableIter {
    /// Goes to the first entry, if there is one.
    pub fn seek_to_first(&mut self) {
        self.cursor.seek_to_first();
    }

    /// Goes to what a reader at `sequence` finds first at or after `key`: the first entry of `key`
    /// no newer than `sequence`, or the newest of the next key.
    pub fn seek(&mut self, key: &[u8], sequence: SequenceNumber) {
        self.cursor.seek(key, Trailer::seek(sequence));
    }

    /// Goes to the next entry, if there is one; at no entry it stays there.
    pub fn advance(&mut self) {
        self.cursor.advance();
    }

    /// Goes to the last entry, if there is one.
    pub fn seek_to_last(&mut self) {
        self.cursor.seek_to_last();
    }

    /// Goes to the last entry before every entry of `key`, if there is one.
    pub fn seek_before(&mut self, key: &[u8]) {
        self.cursor.seek_before(key);
    }

    /// Goes to the entry before, if there is one; at no entry it stays there. Within a group of up
    /// to 15 neighbours that costs what a step forwards does; from one group to the one before, a
    /// search.
    pub fn retreat(&mut self) {
        self.cursor.retreat();
    }

    /// The entry here; `None` past the ends and before the first seek.
    #[inline]
    #[must_use]
    pub fn entry(&self) -> Option<Entry<'_>> {
        self.cursor.entry()
    }
}

#[cfg(test)]
mod tests;

//! MemTables.
use crate::entry::{Entry, EntryKind, Keyspace};
use alloc::sync::Arc;
use gabion_base::{MemTableId, SequenceNumber};

/// A MemTable.
pub struct MemTable {
    id: MemTableId,
}

impl MemTable {
    /// An empty table.
    #[must_use]
    pub fn new(id: MemTableId) -> Self {
        Self { id }
    }
    /// Its number.
    #[must_use]
    pub const fn id(&self) -> MemTableId {
        self.id
    }
    /// Claims the right to insert; panics when another writer holds it.
    pub fn writer(&self) -> MemTableWriter<'_> {
        MemTableWriter { table: self }
    }
    /// One insert: `writer().insert(…)`.
    pub fn insert(&self, key: &[u8], sequence: SequenceNumber, kind: EntryKind, value: &[u8]) {
        self.writer().insert(key, sequence, kind, value);
    }
    /// Newest entry of `key` at or below `read_sequence`; a clear of the keyspace counts as one.
    pub fn get(
        &self,
        _key: &[u8],
        _read_sequence: SequenceNumber,
    ) -> Option<(EntryKind, SequenceNumber, &[u8])> {
        None
    }
    /// Newest clear of a keyspace at or below `read_sequence`.
    pub fn clear_sequence(
        &self,
        _keyspace: Keyspace,
        _read_sequence: SequenceNumber,
    ) -> Option<SequenceNumber> {
        None
    }
    /// A cursor that keeps the entries alive; starts before the first entry (call a seek).
    pub fn iter(&self) -> MemTableIter {
        MemTableIter { _list: Arc::new(()) }
    }
    /// Charged bytes: key + value + fixed overhead for each entry.
    pub fn memory_used(&self) -> usize {
        0
    }
    /// Entries.
    pub fn len(&self) -> usize {
        0
    }
    /// No entries.
    pub fn is_empty(&self) -> bool {
        true
    }
    /// First sequence number inserted.
    pub fn smallest_sequence(&self) -> Option<SequenceNumber> {
        None
    }
    /// Last sequence number inserted.
    pub fn largest_sequence(&self) -> Option<SequenceNumber> {
        None
    }
}

/// The right to insert.
pub struct MemTableWriter<'a> {
    table: &'a MemTable,
}
impl MemTableWriter<'_> {
    /// Inserts.
    pub fn insert(
        &mut self,
        _key: &[u8],
        _sequence: SequenceNumber,
        _kind: EntryKind,
        _value: &[u8],
    ) {
        let _ = self.table;
    }
}

/// A cursor over a MemTable ('static, Send).
pub struct MemTableIter {
    _list: Arc<()>,
}
impl MemTableIter {
    /// To the first entry.
    pub fn seek_to_first(&mut self) {}
    /// To the first entry at or after (key, sequence).
    pub fn seek(&mut self, _key: &[u8], _sequence: SequenceNumber) {}
    /// To the next entry. Does nothing at the end.
    pub fn advance(&mut self) {}
    /// The entry under the cursor, none at the end.
    pub fn entry(&self) -> Option<Entry<'_>> {
        None
    }
}

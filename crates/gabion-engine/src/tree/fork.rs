//! A tree of its own that holds what a view shows: how a checkpoint begins.
//!
//! Files are shared, and kept by the fork as a reader keeps them. Of MemTables only those entries
//! count that the view sees; its log begins at 0 and holds nothing, so they are to be flushed
//! before the fork is what a pool is made of ([`Tree::next_flush`] to [`Tree::apply_edit`], then
//! [`Tree::snapshot`]).

use super::{Sealed, Tree, kept_of};
use crate::config::TreeConfig;
use crate::edit::Flushed;
use crate::memtable::MemTable;
use crate::read::ReadView;
use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;
use gabion_base::{Error, Frontier, GroupId, MemTableId, Result, SequenceNumber};

impl Tree {
    /// The tree that `view` shows, with no edit and no log of its own. Whoever writes goes on
    /// meanwhile: what it adds to the view's MemTables is left out.
    ///
    /// # Errors
    /// Invalid input for a configuration of another shape, and for a view that ends before its
    /// floor: what the fork wrote next would be taken for cleared; corruption when a file holds
    /// what the view does not see.
    pub fn fork(view: &ReadView, config: TreeConfig, group: GroupId) -> Result<Self> {
        config.validate()?;
        let (pin, point) = (view.pin()?, view.point());
        let (shape, upto) = (&pin.0, point.sequence);
        let floor = point.floor;
        if floor > upto {
            return Err(Error::invalid(format!(
                "a view that ends at {upto}, its floor is {floor}: what a copy wrote next would be cleared"
            )));
        }
        let version = (*shape.version).clone();
        if version.level_count() != config.levels {
            return Err(Error::invalid(format!(
                "a view of {} levels for a tree of {}",
                version.level_count(),
                config.levels
            )));
        }
        if let Some((_, file)) = version.files().find(|(_, file)| file.largest_sequence > upto) {
            return Err(Error::corruption(format!(
                "{} holds entries up to {}, the view ends at {upto}",
                file.id, file.largest_sequence
            )));
        }
        let next_file = version.files_end().max(1);
        let newest = shape.memtables.first().map_or(MemTableId::ZERO, |table| table.id());
        let flushed = Flushed { memtable: newest, frontier: Frontier::ZERO, sequence: upto };
        let counters = (0, next_file, floor);
        // A fork flushes little, and keeps values at their keys.
        let config = TreeConfig { large_values: 0, ..config };
        let mut tree = Self::with_state(config, group, version, flushed, counters);
        tree.take_memtables(&shape.memtables, upto);
        tree.end_step();
        Ok(tree)
    }

    /// The fork's log begins there and not at 0, once nothing is in memory: files have all that was
    /// before.
    pub fn begin_log(&mut self, at: Frontier) {
        assert!(self.sealed.is_empty(), "what is in memory has no log");
        assert!(self.flushed.frontier == Frontier::ZERO, "its log has a begin");
        self.flushed.frontier = at;
        self.end_step();
    }

    /// Takes over what `upto` sees of MemTables, newest first, as sealed ones.
    fn take_memtables(&mut self, newest_first: &[Arc<MemTable>], upto: SequenceNumber) {
        for (age, table) in newest_first.iter().enumerate().rev() {
            // The newest may be written to, now or later; the others are complete.
            let is_complete = age > 0 && table.largest_sequence().is_none_or(|last| last <= upto);
            let table = if is_complete { table.clone() } else { Arc::new(seen(table, upto)) };
            let Some(last_sequence) = table.largest_sequence() else { continue };
            assert!(last_sequence <= upto, "{}: a copy has what its view sees", table.id());
            let before = self.sealed.back().map(|before| before.table.id());
            assert!(before < Some(table.id()), "{} follows what is older", table.id());
            let frontier = Frontier::ZERO;
            let (places, kept) = Default::default();
            self.sealed.push_back(Sealed { table, frontier, last_sequence, places, kept });
        }
        // Sequence numbers without entries, as of clears and of what was shadowed, belong to the
        // last.
        if let Some(last) = self.sealed.back_mut() {
            last.last_sequence = upto;
            self.flushed.sequence = SequenceNumber::ZERO;
            self.flushed.memtable = MemTableId::ZERO;
        }
        self.now = kept_of(&self.active, &self.sealed, &self.versions);
    }
}

/// A MemTable with the entries and range deletes that a reader at `upto` may see.
fn seen(table: &MemTable, upto: SequenceNumber) -> MemTable {
    let copy = MemTable::new(table.id());
    let mut writer = copy.writer();
    let mut entries = table.iter();
    entries.seek_to_first();
    while let Some(entry) = entries.entry() {
        if entry.trailer.sequence() <= upto {
            writer.insert(entry.key, entry.trailer.sequence(), entry.trailer.kind(), entry.value);
        }
        entries.advance();
    }
    drop(writer);
    let ranges = table.range_deletes().filter(|range| range.sequence <= upto);
    let ranges: Vec<_> = ranges.cloned().collect();
    if ranges.is_empty() { copy } else { copy.with_range_deletes(ranges) }
}

//! What holds of a tree after each step.

use super::Tree;
use crate::edit::Flushed;
use alloc::collections::BTreeSet;
use alloc::sync::Arc;
use gabion_base::MemTableId;

impl Tree {
    /// Ends each step that changes MemTables, files or jobs.
    pub(super) fn end_step(&self) {
        let sealed = self.sealed.back();
        let before = sealed.map_or(self.flushed.memtable, |sealed| sealed.table.id());
        assert!(before < self.active.id(), "MemTables are numbered in their order");
        assert!(self.sealed_sequence() <= self.last_sequence, "a seal follows what it seals");
        let first = self.active.smallest_sequence();
        assert!(
            first.is_none_or(|first| first > self.sealed_sequence()),
            "what was sealed is not written to again"
        );
        assert!(self.active.largest_sequence() <= Some(self.last_sequence));
        assert!(self.floor_in_edits <= self.floor, "what an edit cleared stays so");
        if crate::CHECKED {
            self.invariants();
        }
    }

    /// Checks that MemTables follow each other without overlap, that jobs have taken what is there,
    /// and that readers are given the tree as it is.
    ///
    /// # Panics
    /// When one of them does not hold.
    pub fn invariants(&self) {
        let Flushed { memtable, frontier, sequence } = self.flushed;
        let mut before = (memtable, frontier, sequence);
        for sealed in &self.sealed {
            let (id, at, sequence) = (sealed.table.id(), sealed.frontier, sealed.last_sequence);
            assert!(before.0 < id, "{id} is sealed in its order");
            assert!(at.covers(&before.1), "{id} is sealed at {at}, after {}", before.1);
            let (first, last) = (sealed.table.smallest_sequence(), sealed.table.largest_sequence());
            assert!(first.is_none_or(|first| before.2 < first), "{id} begins after {}", before.2);
            assert!(last <= Some(sequence), "{id} ends at {sequence}");
            before = (id, at, sequence);
        }
        let sealed: BTreeSet<MemTableId> =
            self.sealed.iter().map(|sealed| sealed.table.id()).collect();
        assert!(self.jobs.flushing.is_subset(&sealed), "what is being flushed was sealed");
        let files: BTreeSet<_> = self.version().files().map(|(_, file)| file.id).collect();
        assert!(self.jobs.busy.is_subset(&files), "jobs read files that are there");
        if let Some(needed) = self.jobs.needed {
            assert_eq!(needed, self.slots_needed(), "slots needed are those of the tree as it is");
        }
        let shape = &self.now.shape;
        let tables = self.sealed.iter().rev().map(|sealed| &sealed.table);
        let tables = core::iter::once(&self.active).chain(tables);
        assert_eq!(shape.memtables.len(), 1 + self.sealed.len(), "readers see every MemTable");
        assert!(tables.zip(&shape.memtables).all(|(a, b)| Arc::ptr_eq(a, b)));
        assert!(Arc::ptr_eq(&shape.version, self.version()), "readers see the current version");
    }
}

//! What a recipe says of operands of the merge operator: see [`crate::counter`], *Expiry*.
//!
//! ```text
//!   above     newer MemTables, upper levels    operands from when on?   ─► what expired since then stays
//!   inputs    what the job reads               what expires when?      ─┐
//!   below     deeper levels                    what expires when?      ─┴► which operands become one
//! ```
//!
//! Nothing of it changes under the job in a way that matters: what is written while it runs was
//! written at its group time or later, and what goes from level to level below it stays below it.

use super::Tree;
use crate::expiry::ExpirySpan;
use crate::memtable::MemTable;
use crate::picker::Pick;
use crate::recipe::Merging;
use gabion_base::FileId;

impl Tree {
    /// For a flush. All files lie below its MemTable, and the older MemTables whose flushes are
    /// under way.
    pub(super) fn merging_of_flush(&self, table: &MemTable) -> Option<Merging> {
        let tables = || self.sealed.iter().map(|sealed| &sealed.table).chain([&self.active]);
        let newer = || tables().filter(|other| other.id() > table.id());
        let above = || newer().filter_map(|other| other.operands_from_ms()).min();
        let older = || tables().filter(|other| other.id() < table.id());
        let below = || {
            let in_files = self.version().files().filter_map(|(_, file)| file.expiry);
            in_files.chain(older().filter_map(|other| other.expiry())).reduce(ExpirySpan::with)
        };
        let has_operands = table.operands_from_ms().is_some();
        self.merging(has_operands, table.expiry(), above, below)
    }

    /// For a compaction; none for jobs that only say which files count.
    pub(super) fn merging_of(&self, pick: &Pick) -> Option<Merging> {
        let files = || pick.inputs.iter().map(|(_, file)| file);
        let smallest = files().map(|file| &file.smallest[..]).min()?;
        let largest = files().map(|file| &file.largest[..]).max()?;
        let below_level = pick.output_level + 1;
        if !pick.kind.makes_files() {
            return None;
        }
        let is_input = |id: FileId| files().any(|file| file.id == id);
        let version = self.version();
        let above = || {
            let in_files = version.operands_from_ms(0..below_level, smallest, largest, &is_input);
            in_files.into_iter().chain(self.operands_in_memory_ms()).min()
        };
        let below = || {
            let files = version.files_within(below_level..version.level_count(), smallest, largest);
            files.filter_map(|file| file.expiry).reduce(ExpirySpan::with)
        };
        let has_operands = files().any(|file| file.operands.is_some());
        let expiries = files().filter_map(|file| file.expiry).reduce(ExpirySpan::with);
        self.merging(has_operands, expiries, above, below)
    }

    fn merging(
        &self,
        has_operands: bool,
        expiries: Option<ExpirySpan>,
        above: impl FnOnce() -> Option<u64>,
        below: impl FnOnce() -> Option<ExpirySpan>,
    ) -> Option<Merging> {
        let has_expired = expiries.is_some_and(|span| span.first_ms <= self.now_ms);
        let above_from_ms = if has_expired { above() } else { None };
        if !has_operands && above_from_ms.is_none() {
            return None;
        }
        let expiries = expiries.into_iter().chain(below()).reduce(ExpirySpan::with);
        Some(Merging { expiries, above_from_ms })
    }

    /// When the first of the operands was written that are not in files, in group time.
    pub(super) fn operands_in_memory_ms(&self) -> Option<u64> {
        let tables = self.sealed.iter().map(|sealed| &sealed.table).chain([&self.active]);
        tables.filter_map(|table| table.operands_from_ms()).min()
    }
}

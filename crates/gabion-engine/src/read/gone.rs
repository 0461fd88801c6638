//! What range deletes hide from a walk.
//!
//! A walk meets entries key by key; whether one is hidden follows from the newest range delete that
//! covers its key anywhere in the shape, as of two places that hold something of a key the one
//! above holds all that is newer. The answer is the same for all keys of a *stretch*, so it is
//! looked up once for each stretch:
//!
//! ```text
//!   MemTable      ─────┤ 9 ├────────────────────
//!   file of L0    ──────────┤ 7 ├───────────────
//!   level 1       ───┤  4  ├─────────┤ 3 ├──────
//!   stretches     ───│4│ 9 │.│ 7 │..  │ 3 │
//! ```
//!
//! Places below the one whose range delete it is hold nothing that is newer: there the walk need
//! not go through what is hidden, it goes on behind the stretch.

use super::tables::Tables;
use crate::cache::ReadCache;
use crate::file::{FileMeta, FileSource};
use crate::memtable::MemTable;
use crate::range_delete::Stretch;
use crate::sst::SstReader;
use alloc::sync::Arc;
use alloc::vec::Vec;
use gabion_base::{Result, SequenceNumber};

/// The places of a shape that have range deletes.
#[derive(Default)]
pub(super) struct Gone {
    places: Vec<Place>,
    /// Where the walk is, once it is anywhere.
    stretch: Option<Stretch>,
    /// The place that has the newest range delete there: its number among the walk's cursors.
    by: usize,
}

struct Place {
    /// The number of the cursor over the same; from new to old.
    cursor: usize,
    what: What,
}

enum What {
    Table(Arc<MemTable>),
    /// Disjoint files with range deletes, by key, and the one of them that was read last.
    Files(Vec<Arc<FileMeta>>, Option<(usize, Arc<SstReader>)>),
}

impl Gone {
    /// The MemTable under this cursor may have range deletes.
    pub(super) fn add_table(&mut self, cursor: usize, table: &Arc<MemTable>) {
        if table.has_range_deletes() {
            self.places.push(Place { cursor, what: What::Table(table.clone()) });
        }
    }

    /// Some of the files under this cursor, which are disjoint and in order, may have range
    /// deletes.
    pub(super) fn add_files(&mut self, cursor: usize, files: &[Arc<FileMeta>]) {
        let with_ranges: Vec<_> =
            files.iter().filter(|file| file.ranges.is_some()).cloned().collect();
        if !with_ranges.is_empty() {
            self.places.push(Place { cursor, what: What::Files(with_ranges, None) });
        }
    }

    /// Whether there are no such places.
    pub(super) const fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Whether it is known that an entry of `key` with this number, and each that is newer, is not
    /// hidden.
    pub(super) fn shows(&self, key: &[u8], sequence: SequenceNumber) -> bool {
        self.knows(key) && sequence >= self.hidden_below()
    }

    /// Whether [`Self::hidden_below`] speaks of `key`; else it is to be looked up.
    pub(super) fn knows(&self, key: &[u8]) -> bool {
        self.stretch.as_ref().is_some_and(|stretch| stretch.holds(key))
    }

    /// Entries of the keys here with a smaller number are hidden.
    #[inline]
    pub(super) fn hidden_below(&self) -> SequenceNumber {
        self.stretch.as_ref().and_then(|stretch| stretch.newest).unwrap_or(SequenceNumber::ZERO)
    }

    /// The keys here, if the cursor of this number has nothing there that is not hidden.
    pub(super) fn nothing_but_hidden(&self, cursor: usize) -> Option<&Stretch> {
        self.stretch.as_ref().filter(|stretch| stretch.newest.is_some() && cursor > self.by)
    }

    /// Looks up what hides `key` from a reader at `read_sequence`.
    pub(super) async fn look_up<S: FileSource, C: ReadCache>(
        &mut self,
        tables: &Tables<S, C>,
        key: &[u8],
        read_sequence: SequenceNumber,
    ) -> Result<()> {
        let (mut all, mut by) = (Stretch::EVERYWHERE, usize::MAX);
        for place in &mut self.places {
            let here = match &mut place.what {
                What::Table(table) => table.stretch(key, read_sequence),
                What::Files(files, open) => {
                    stretch_of(tables, files, open, key, read_sequence).await?
                }
            };
            if here.newest > all.newest {
                by = place.cursor;
            }
            all = all.and(here);
        }
        debug_assert!(all.holds(key));
        (self.stretch, self.by) = (Some(all), by);
        Ok(())
    }
}

/// What is true of `key` in files of a level. Opens one when its bounds enclose the key.
async fn stretch_of<S: FileSource, C: ReadCache>(
    tables: &Tables<S, C>,
    files: &[Arc<FileMeta>],
    open: &mut Option<(usize, Arc<SstReader>)>,
    key: &[u8],
    read_sequence: SequenceNumber,
) -> Result<Stretch> {
    let at = files.partition_point(|file| *file.largest < *key);
    let file = files.get(at).filter(|file| *file.smallest <= *key);
    let Some(file) = file else {
        return Ok(Stretch {
            from: at.checked_sub(1).map(|before| after(&files[before].largest)),
            to: files.get(at).map(|next| next.smallest[..].into()),
            newest: None,
        });
    };
    let reader = match open {
        Some((opened, reader)) if *opened == at => reader.clone(),
        _ => tables.reader(file).await?,
    };
    let here = reader.ranges().stretch(key, read_sequence);
    *open = Some((at, reader));
    // Of what lies outside of the file its range deletes say nothing.
    let within = Stretch {
        from: Some(file.smallest[..].into()),
        to: Some(after(&file.largest)),
        newest: None,
    };
    Ok(here.and(within))
}

/// The next key.
fn after(key: &[u8]) -> Arc<[u8]> {
    [key, &[0]].concat().into()
}

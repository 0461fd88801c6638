//! `gabion db verify`: everything on a pool, by its checksums and by the rules beyond them.

use super::order::{self, Order};
use super::out::{Out, Told, quoted};
use super::scrub::{Scrubbed, Source, run_with, scrub, source};
use crate::at_rest::AtRest;
use gabion_base::{Error, FileKind, Result};
use gabion_engine::sst::inspect::Inspector;
use gabion_engine::{FileMeta, FileSource, SstReader, ValueRecords, packed};
use gabion_node::NodeOptions;
use gabion_node::open::OpenedPool;
use gabion_pool::inspect;

/// Most places of one file that are named one by one.
const NAMED_MAX: usize = 20;

pub(super) fn run(pool: &AtRest, out: &mut Out) -> Told {
    run_with(out, |scrubbed, progress| {
        superblocks(pool, scrubbed);
        scrub(pool, scrubbed, progress)?;
        let opened = pool.pool()?;
        tree(&opened, scrubbed);
        let source = source(pool, &opened);
        let total: u64 = opened.tree().version().files().map(|(_, meta)| meta.entries).sum();
        let mut done = 0;
        for (level, meta) in opened.tree().version().files() {
            progress.bar_of(done, total, "entries", &format!("{} of L{level}", meta.id));
            done += entries(pool, &source, meta, scrubbed)?;
        }
        let values_files = opened.tree().version().values_files();
        // Segments of the log that keep values have been read by their checksums.
        for meta in values_files.filter(|meta| meta.id.kind == FileKind::Values) {
            progress.say(&format!("reading {}", meta.id));
            values(pool, &source, meta, scrubbed)?;
        }
        scrubbed.entries = Some(done);
        progress.say("replaying the log");
        replay(pool, opened)
    })
}

fn superblocks(pool: &AtRest, scrubbed: &mut Scrubbed) {
    for (copy, found) in pool.wait(inspect::superblocks(pool.medium())).into_iter().enumerate() {
        let wrong = match found {
            Ok(Some(_)) => continue,
            Ok(None) => "does not begin like a superblock".to_owned(),
            Err(error) => error.to_string(),
        };
        let at = copy as u64 * gabion_base::units::BLOCK_LEN as u64;
        scrubbed.damage(None, Some(at), format!("superblock, copy {copy}: {wrong}"));
    }
}

/// Files and the terms of their numbers, and levels.
fn tree(opened: &OpenedPool, scrubbed: &mut Scrubbed) {
    let term = opened.state.term();
    let made = opened.pool().files().filter(|file| file.file.kind != FileKind::LogSegment);
    for file in made.filter(|file| file.file.term() > term) {
        let message = format!("its number is of a later term than {term}, the replica's");
        scrubbed.damage(Some(file.file), None, message);
    }
    for wrong in order::of_l0(opened.tree().version()) {
        scrubbed.damage(None, None, wrong);
    }
}

/// Reads a file entry by entry. Damage that scrubbing has named is not named again.
fn entries(
    pool: &AtRest,
    source: &Source,
    meta: &FileMeta,
    scrubbed: &mut Scrubbed,
) -> Result<u64> {
    let mut order = Order::new(meta);
    match look(pool, source, meta, &mut order, scrubbed) {
        Ok(()) => {}
        Err(error) if crate::at_rest::is_damage(&error) => {
            if !scrubbed.names(meta.id) {
                scrubbed.damage(Some(meta.id), None, error);
            }
        }
        Err(error) => return Err(error),
    }
    Ok(order.entries())
}

/// Reads a values file record by record, each with the checksum of its value. Damage that scrubbing
/// has named is not named again.
fn values(pool: &AtRest, source: &Source, meta: &FileMeta, scrubbed: &mut Scrubbed) -> Result<()> {
    let look = || {
        let bytes = pool.wait(source.read(meta.id, 0, meta.rounded_len() as usize))?;
        for record in ValueRecords::new(&bytes, source.store.group, meta)? {
            let record = record?;
            record.pointer.check(record.value)?;
            if record.pointer.is_packed() {
                packed::unpack_at(&record.pointer, record.value.to_vec().into())?;
            }
        }
        Ok(())
    };
    match look() {
        Err(error) if crate::at_rest::is_damage(&error) => {
            if !scrubbed.names(meta.id) {
                scrubbed.damage(Some(meta.id), None, error);
            }
            Ok(())
        }
        result => result,
    }
}

fn look(
    pool: &AtRest,
    source: &Source,
    meta: &FileMeta,
    order: &mut Order<'_>,
    scrubbed: &mut Scrubbed,
) -> Result<()> {
    let group = source.store.group;
    // Compares footer, filter, index and properties with the edit.
    let reader = pool.wait(SstReader::open(source, group, meta))?;
    let file = pool.wait(Inspector::open(source.clone(), group, meta.id, meta.rounded_len()))?;
    let index = pool.wait(file.index())?;
    let (mut before, mut wrong_places) = (None, 0);
    for place in &index {
        let at = Some(u64::from(place.offset));
        let mut name = |result: std::result::Result<(), String>| {
            if let Err(wrong) = result {
                wrong_places += 1;
                if wrong_places <= NAMED_MAX {
                    scrubbed.damage(Some(meta.id), at, wrong);
                }
            }
        };
        name(order.block(place));
        let mut block = pool.wait(file.block(place))?;
        let mut is_first = true;
        while let Some(entry) = block.next_entry()? {
            if let (true, Some(before)) = (is_first, before) {
                name(order.separated(before, entry.key));
            }
            is_first = false;
            name(order.entry(&entry, reader.may_contain(entry.key)));
        }
        name(order.block_end(place));
        before = Some(place);
    }
    if wrong_places > NAMED_MAX {
        let message = format!("{} more places of it are wrong", wrong_places - NAMED_MAX);
        scrubbed.damage(Some(meta.id), None, message);
    }
    for wrong in order.finish(reader.properties()) {
        scrubbed.damage(Some(meta.id), None, wrong);
    }
    Ok(())
}

/// Replays the log as a start would: every record is decoded and applied, edits in their order.
fn replay(pool: &AtRest, opened: OpenedPool) -> Result<()> {
    let ring = pool.ring(&opened)?;
    let (node, _) = pool.wait(opened.open_node(ring, NodeOptions::default(), 0))?;
    let mut files = node.tree().version().described();
    let stranger = files.find(|meta| node.file_map().get(meta.id).is_none());
    match stranger {
        None => Ok(()),
        Some(meta) => Err(Error::corruption(format!(
            "{}, {} on, has no place in the pool",
            meta.id,
            quoted(&meta.smallest)
        ))),
    }
}

//! `gabion db scrub`: every live file and log segment against its checksums.

use super::log::recover;
use super::out::{Out, Told};
use crate::at_rest::{AtRest, check_file, differs};
use crate::screen::Progress;
use crate::units::{count, size};
use gabion_base::units::CHUNK_LEN;
use gabion_base::{FileId, FileKind, Result};
use gabion_bench::grouped;
use gabion_engine::FileMeta;
use gabion_engine::sst::inspect::Inspector;
use gabion_log::{RecordScan, RecoveryReport, Seen};
use gabion_node::open::OpenedPool;
use gabion_node::{LocalStore, PoolSource, ReadMeter};
use gabion_pool::{FilePlacement, SlotHeader};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

/// A place that differs from the written bytes.
pub(super) struct Damage {
    file: Option<FileId>,
    offset: Option<u64>,
    message: String,
}

/// The read parts, and their damage.
#[derive(Default)]
pub(super) struct Scrubbed {
    files: u64,
    file_bytes: u64,
    records: u64,
    log_bytes: u64,
    /// Entries of files, if they were checked one by one.
    pub(super) entries: Option<u64>,
    pub(super) damage: Vec<Damage>,
}

impl Scrubbed {
    pub(super) fn damage(
        &mut self,
        file: Option<FileId>,
        offset: Option<u64>,
        message: impl ToString,
    ) {
        self.damage.push(Damage { file, offset, message: message.to_string() });
    }
}

impl Scrubbed {
    /// Whether the damage names a file.
    pub(super) fn names(&self, file: FileId) -> bool {
        self.damage.iter().any(|damage| damage.file == Some(file))
    }
}

pub(super) fn run(pool: &AtRest, out: &mut Out) -> Told {
    run_with(out, |scrubbed, progress| scrub(pool, scrubbed, progress))
}

/// Goes through a pool and prints the findings.
pub(super) fn run_with(
    out: &mut Out,
    go: impl FnOnce(&mut Scrubbed, &mut Progress) -> Result<()>,
) -> Told {
    let mut progress = Progress::new();
    let mut scrubbed = Scrubbed::default();
    let went = go(&mut scrubbed, &mut progress);
    progress.clear();
    if let Err(error) = went {
        // A pool that cannot be opened cannot be gone through; it counts as damage like any other.
        if !crate::at_rest::is_damage(&error) {
            return Err(error.into());
        }
        // The log's replay names the place in its error.
        let message = error.to_string();
        if scrubbed.damage.iter().all(|damage| damage.message != message) {
            scrubbed.damage(None, None, message);
        }
    }
    tell(&scrubbed, out)
}

pub(super) fn scrub(pool: &AtRest, scrubbed: &mut Scrubbed, progress: &mut Progress) -> Result<()> {
    for (offset, len) in pool.wait(gabion_pool::read(pool.medium()))?.bad_copies {
        let message = format!("copy of {len} bytes is bad; the next start writes it again");
        scrubbed.damage(None, Some(offset), message);
    }
    let opened = pool.pool()?;
    files(pool, &opened, scrubbed, progress)?;
    log(pool, &opened, scrubbed, progress)
}

pub(super) type Source = PoolSource<BTreeMap<FileId, Arc<FilePlacement>>>;

/// The pool's files.
pub(super) fn source(pool: &AtRest, opened: &OpenedPool) -> Source {
    let locate = opened.pool().files().map(|file| (file.file, file.clone())).collect();
    let store = LocalStore::of(pool.medium(), opened.pool());
    Source { store, locate, meter: Rc::new(ReadMeter::default()) }
}

fn files(
    pool: &AtRest,
    opened: &OpenedPool,
    scrubbed: &mut Scrubbed,
    progress: &mut Progress,
) -> Result<()> {
    let version = opened.tree().version();
    let total: u64 = version.described().map(|meta| meta.rounded_len()).sum();
    let source = source(pool, opened);
    for meta in version.described() {
        let step = &mut || progress.bar(source.meter.bytes(), total, &meta.id.to_string());
        let mut bad = Vec::new();
        check_file(&pool.medium, &source, meta, step, |offset, expected, found| {
            let message = match found {
                Ok(bytes) => differs(offset, &bytes, expected),
                Err(error) => error.to_string(),
            };
            bad.push((offset, message));
        });
        for (offset, message) in bad {
            let (offset, message) = match bad_block(pool, &source, meta, offset) {
                Some((at, len)) => {
                    (at, format!("the data block of {len} bytes there is not whole; {message}"))
                }
                None => (offset, message),
            };
            scrubbed.damage(Some(meta.id), Some(offset), message);
        }
        // Segments of the log are written block by block, and have no headers.
        if meta.id.kind != FileKind::LogSegment {
            headers(pool, opened, meta, scrubbed);
        }
        scrubbed.files += 1;
        scrubbed.file_bytes += meta.rounded_len();
    }
    Ok(())
}

/// The first block that is not whole in the chunk at `chunk`: its start and its bytes. Nothing when
/// the file's own parts are whole, or too damaged to tell.
fn bad_block(pool: &AtRest, source: &Source, meta: &FileMeta, chunk: u64) -> Option<(u64, u32)> {
    let group = source.store.group;
    let file = pool.wait(Inspector::open(source, group, meta.id, meta.rounded_len())).ok()?;
    let index = pool.wait(file.index()).ok()?;
    let touches = |offset: u32, len: u32| {
        u64::from(offset) < chunk + CHUNK_LEN && u64::from(offset) + u64::from(len) > chunk
    };
    let mut blocks = index.iter().filter(|entry| touches(entry.offset, entry.stored_len));
    let bad = blocks.find(|entry| pool.wait(file.block(entry)).is_err())?;
    Some((u64::from(bad.offset), bad.stored_len))
}

/// Compares the headers of a file's slots with the placement log and the edit.
fn headers(pool: &AtRest, opened: &OpenedPool, meta: &FileMeta, scrubbed: &mut Scrubbed) {
    let ours = opened.pool();
    let Some(placement) = ours.placement(meta.id) else { return };
    let region = ours.region();
    let check = || -> Result<()> {
        let expected =
            gabion_pool::file_headers(ours.pool_id(), ours.group(), &placement, &meta.chunk_crcs)?;
        for (slot, block) in expected {
            let header = gabion_pool::read_slot_header(pool.medium(), region, slot);
            pool.wait(header)?.check(&SlotHeader::decode(&block)?)?;
        }
        Ok(())
    };
    if let Err(error) = check() {
        scrubbed.damage(Some(meta.id), None, error);
    }
}

/// Goes through the records in the segments: the ring may hold the same records whole, and hide the
/// state after a power cut.
fn log(
    pool: &AtRest,
    opened: &OpenedPool,
    scrubbed: &mut Scrubbed,
    progress: &mut Progress,
) -> Result<()> {
    let report = recover(pool, opened);
    let (config, state) = (opened.log_config(), &opened.state);
    let total = opened.segments().placements().map(|segment| segment.len).sum();
    let segments = opened.segments();
    let mut scan = RecordScan::new(config, &state.spans, state.trimmed, None)?;
    while let Some(seen) = pool.wait(scan.next(&segments))? {
        match seen {
            Seen::Record { record, .. } => {
                scrubbed.records += 1;
                scrubbed.log_bytes += record.bytes.len() as u64;
                progress.bar(scrubbed.log_bytes, total, "log segments");
            }
            Seen::Bad { from, to, error } => {
                let was_durable = durable(opened, report.as_ref().ok());
                if to.is_none() && report.is_ok() && from.get() >= was_durable {
                    // The drained log ends in the middle of a record; the ring has all of it.
                    continue;
                }
                let at = from.get();
                let segment = config.segment_at(at);
                scrubbed.damage(Some(segment), Some(at % config.segment_len), error);
            }
        }
    }
    if let Err(error) = report
        && scrubbed.damage.iter().all(|damage| damage.message != error.to_string())
    {
        scrubbed.damage(None, None, error);
    }
    Ok(())
}

/// Segments must hold the log up to here.
fn durable(opened: &OpenedPool, report: Option<&RecoveryReport>) -> u64 {
    let flushed = opened.tree().flushed().frontier.only();
    report.map_or(flushed, |report| flushed.max(report.watermark)).get()
}

fn tell(scrubbed: &Scrubbed, out: &mut Out) -> Told {
    scrubbed.damage.iter().for_each(|_| out.count_damage());
    if out.json {
        return out.document(&to_json(scrubbed));
    }
    for damage in &scrubbed.damage {
        out.text(&format!("DAMAGED {}\n", describe(damage)))?;
    }
    let entries = scrubbed.entries.map(|entries| format!(" with {}", entries_of(entries)));
    out.text(&format!(
        "read {}{} ({}) and {} of the log ({})",
        count(scrubbed.files, "file"),
        entries.unwrap_or_default(),
        size(scrubbed.file_bytes),
        count(scrubbed.records, "record"),
        size(scrubbed.log_bytes)
    ))?;
    out.text(if scrubbed.damage.is_empty() { ": all as they were written\n" } else { "\n" })
}

/// A number of entries in words.
pub(super) fn entries_of(number: u64) -> String {
    if number == 1 { "1 entry".to_owned() } else { format!("{} entries", grouped(number)) }
}

fn describe(damage: &Damage) -> String {
    let place = match (damage.file, damage.offset) {
        (Some(file), Some(offset)) => format!("{file}, offset {offset}: "),
        (Some(file), None) => format!("{file}: "),
        (None, Some(offset)) => format!("pool, byte {offset}: "),
        (None, None) => String::new(),
    };
    place + &damage.message
}

fn to_json(scrubbed: &Scrubbed) -> Value {
    let damage = scrubbed.damage.iter().map(|damage| {
        json!({
            "file": damage.file.map(|file| file.to_string()),
            "offset": damage.offset,
            "message": damage.message,
        })
    });
    let mut told = json!({
        "clean": scrubbed.damage.is_empty(),
        "files": scrubbed.files,
        "file_bytes": scrubbed.file_bytes,
        "log_records": scrubbed.records,
        "log_bytes": scrubbed.log_bytes,
        "damage": damage.collect::<Vec<_>>(),
    });
    if let Some(entries) = scrubbed.entries {
        told["entries"] = entries.into();
    }
    told
}

#[cfg(test)]
mod tests {
    use super::*;
    use gabion_base::ShardId;

    #[test]
    fn a_damaged_place_is_named_as_far_as_it_is_known() {
        let said = |file, offset| describe(&Damage { file, offset, message: "is bad".into() });
        assert_eq!(said(Some(FileId::sst(7)), Some(4096)), "000007.sst, offset 4096: is bad");
        assert_eq!(said(Some(FileId::log_segment(ShardId::ZERO, 1)), None), "000001.log: is bad");
        assert_eq!(said(None, Some(12)), "pool, byte 12: is bad");
        assert_eq!(said(None, None), "is bad");
    }
}

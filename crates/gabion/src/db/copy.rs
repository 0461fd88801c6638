//! `gabion db checkpoint`, and `checkpoint` of an open store: its content as a store of its own.

use super::out::{Out, Told};
use crate::at_rest::AtRest;
use crate::screen::Progress;
use crate::units::{count, size};
use bytes::Bytes;
use gabion_base::{Error, FileId, Result};
use gabion_bench::grouped;
use gabion_db::Db;
use gabion_db::checkpoint::{self, Copied, Origin};
use gabion_engine::FileSource;
use gabion_fabric::BlockingMedium;
use gabion_node::{FileMap, PoolSource};
use gabion_pool::inspect;
use serde_json::json;
use std::path::Path;

/// The files of the replica, read while the copy waits: it is written through another medium.
struct Waited<'a> {
    source: &'a PoolSource<FileMap>,
    medium: &'a BlockingMedium,
}

impl FileSource for Waited<'_> {
    async fn read(&self, file: FileId, offset: u64, len: usize) -> Result<Bytes> {
        self.medium.block_on(self.source.read(file, offset, len))
    }

    fn note_damage(&self, file: FileId, error: &Error) {
        self.source.note_damage(file, error);
    }
}

pub(super) fn run(pool: AtRest, target: &Path, pool_len: Option<u64>, out: &mut Out) -> Told {
    let own_len = pool.wait(inspect::superblock(pool.medium()))?.len;
    let (node, _, source, medium) = pool.into_replica()?;
    let origin = Origin {
        view: node.tree().lasting_view(),
        group: node.config().clone(),
        view_then: node.state().view.clone(),
    };
    let (total, mut done) = (origin.file_bytes()?, 0);
    let mut progress = Progress::new();
    say(&mut progress, done, total);
    let mut step = |bytes| {
        done += bytes;
        say(&mut progress, done, total);
    };
    let source = Waited { source: &source, medium: &medium };
    let pool_len = pool_len.unwrap_or(own_len);
    let made = checkpoint::write(target, pool_len, &origin, &source, &mut step);
    progress.clear();
    tell(target, &made?, out)
}

/// The same for an open store.
pub(super) fn of_open(db: &Db, target: &Path, out: &mut Out) -> Told {
    let mut progress = Progress::new();
    let made = db.checkpoint_with(target, None, &mut |done, total| say(&mut progress, done, total));
    progress.clear();
    tell(target, &made?, out)
}

/// Draws how much of the files is copied. Once all are, the copy is read back.
fn say(progress: &mut Progress, done: u64, total: u64) {
    progress.bar(done, total, if done < total { "copied" } else { "copied, now read back" });
}

/// Prints what was copied.
fn tell(target: &Path, copied: &Copied, out: &mut Out) -> Told {
    if out.json {
        return out.document(&json!({
            "target": target.display().to_string(),
            "files": copied.files,
            "file_bytes": copied.file_bytes,
            "flushed_files": copied.flushed_files,
            "flushed_bytes": copied.flushed_bytes,
            "last_sequence": copied.sequence,
        }));
    }
    out.text(&format!(
        "{}: {} copied ({}), {} made of what was in memory ({}); holds everything up to write {}\n",
        target.display(),
        count(copied.files, "file"),
        size(copied.file_bytes),
        count(copied.flushed_files, "file"),
        size(copied.flushed_bytes),
        grouped(copied.sequence)
    ))
}

//! Marks: positions of the log at which the state of a replica is captured, to be compared with what others
//! hold there while writes go on.
//!
//! ```text
//!   arm ─► a record ends there or beyond ─► view, files, end and checksum ─► read ─► still in the log?
//!     └ ends after a while, and with a new term or a cut of the log
//! ```
//!
//! Records are the same bytes at the same positions everywhere, so the first
//! record that ends at or past a position is the same at every replica, and its checksum, which covers the
//! one before, stands for the whole log up to it. A pad at the end of a segment is passed over: the head appends it
//! together with the record behind it, when the tree has that one's operations already. One that makes what is
//! before it durable stands alone and counts.
//!
//! Files are those that the edits in the log up to there leave in the tree, applied or not: when an edit is
//! applied differs between replicas, where it stands in the log does not.

use super::{Mutant, Node, Output};
use crate::CompactionMode;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use gabion_base::{Error, FileId, Frontier, LogPosition, Result};
use gabion_engine::{FileMeta, ReadView};

/// Most marks that may wait at a time: each costs a list of all files once it is reached.
const MARKS_MAX: usize = 16;
/// How long a mark may wait for its record, in ms: whoever asks takes the next records to come soon.
const MARK_WAIT_MS_MAX: u64 = 3_000;

/// A mark that was armed. No two of a process have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MarkId(u64);

/// A file of a captured state, as the edit that added it names it. It keeps nothing from being given back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CapturedFile {
    /// Its level.
    pub level: u8,
    /// Its number and kind.
    pub file: FileId,
    /// Bytes on the device: rounded up to whole blocks.
    pub len: u64,
    /// CRC32C of them.
    pub checksum: u32,
}

impl CapturedFile {
    /// A file of a version.
    #[must_use]
    pub fn of((level, meta): (u8, &Arc<FileMeta>)) -> Self {
        let (len, checksum) = (meta.rounded_len(), meta.checksum);
        Self { level, file: meta.id, len, checksum }
    }
}

/// The state of a replica at the end of a record.
pub struct Captured {
    /// All that records up to there wrote. It counts against the pin budget, as every view does.
    pub view: ReadView,
    /// Where the record ends.
    pub log_end: LogPosition,
    /// The record's checksum. Replicas with the same one at the same end have the same log up to there.
    pub log_crc: u32,
    /// Number of the last edit in the log up to there.
    pub edit: u64,
    /// The files that the edits up to there leave in the tree, level by level. Where every replica compacts
    /// for itself, those of its own edits.
    pub files: Vec<CapturedFile>,
    /// Between which cuts of the log it was captured.
    pub era: LogEra,
}

/// A time in which no record leaves the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogEra(u64);

/// What waits for its record.
struct Armed {
    position: LogPosition,
    since_ms: u64,
}

/// Marks that wait, and what ends them.
#[derive(Default)]
pub(super) struct Marks {
    armed: BTreeMap<MarkId, Armed>,
    next: u64,
    era: LogEra,
    /// The log ends at the pad of a segment: the record behind it is on its way.
    is_at_pad: bool,
}

impl Node {
    /// Has the state captured at the end of the first record, not the pad of a segment, that ends at `position` or beyond;
    /// at once when the log ends right there, and not with such a pad. [`Output::Marked`] brings it, or says why it does not come:
    /// 3 s have passed, a new term began, the log was cut.
    ///
    /// # Errors
    /// Unavailable for a position that the log has passed, naming both; while the log is being repaired; and
    /// when 16 marks wait already.
    pub fn arm_mark(&mut self, position: LogPosition, now_ms: u64) -> Result<MarkId> {
        self.end_turn_before_event();
        self.set_now(now_ms);
        // The log may have grown by what was waiting beyond a gap.
        self.apply_records();
        let end = self.log.end();
        if position < end {
            return Err(Error::unavailable(format!(
                "log position {position} is passed: the log of {} ends at {end}",
                self.me
            )));
        }
        if self.is_tree_ahead() {
            return Err(Error::unavailable(format!(
                "the log of {} is being repaired, and its files are ahead of it",
                self.me
            )));
        }
        if self.marks.armed.len() >= MARKS_MAX {
            return Err(Error::unavailable(format!(
                "{MARKS_MAX} positions of the log are waited for already, which is the limit"
            )));
        }
        let mark = MarkId(self.marks.next);
        self.marks.next += 1;
        if position == end && !self.marks.is_at_pad {
            let captured = self.capture(end, self.log.last().crc);
            self.outputs.push_back(Output::Marked(mark, captured));
        } else {
            self.marks.armed.insert(mark, Armed { position, since_ms: now_ms });
        }
        Ok(mark)
    }

    /// Nobody waits for the mark any more. Nothing comes of it, unless that has come already.
    pub fn withdraw_mark(&mut self, mark: MarkId) {
        self.marks.armed.remove(&mark);
    }

    /// Marks that wait for their records.
    #[must_use]
    pub fn marks_armed(&self) -> usize {
        self.marks.armed.len()
    }

    /// Whether what was captured in an era is still what the log says. To be asked before anything is told
    /// that was read of it.
    ///
    /// # Errors
    /// Unavailable when a term began or the log was cut since, and records of it may be no part of the log.
    pub fn check_era(&self, era: LogEra) -> Result<()> {
        if era == self.marks.era {
            return Ok(());
        }
        Err(Error::unavailable(format!(
            "what was captured may not be in the log of {} any more: a term began or the log was cut",
            self.me
        )))
    }

    /// Whether files hold what the log does not: it ended at a rotten record when the replica started, and
    /// others have not yet filled it up to where files are.
    fn is_tree_ahead(&self) -> bool {
        let edits_come_again =
            self.config.compaction == CompactionMode::Primary && self.apply.is_replaying();
        edits_come_again || !Frontier::of(self.log.end()).covers(&self.tree.flushed().frontier)
    }

    /// A record is applied, and the log continues behind it.
    pub(super) fn pass_marks(&mut self, end: LogPosition, crc: u32) {
        self.marks.is_at_pad = false;
        if self.marks.armed.is_empty() {
            return;
        }
        if self.is_in_turn() {
            return; // an edit amid a turn, whose operations are in the tree and not in the log
        }
        let reached: Vec<MarkId> = self
            .marks
            .armed
            .iter()
            .filter(|(_, armed)| armed.position <= end)
            .map(|(mark, _)| *mark)
            .collect();
        for mark in reached {
            self.marks.armed.remove(&mark);
            let captured = self.capture(end, crc);
            self.outputs.push_back(Output::Marked(mark, captured));
        }
    }

    /// The pad of a segment came: no state is captured here.
    pub(super) const fn pass_pad(&mut self) {
        self.marks.is_at_pad = true;
    }

    fn capture(&self, log_end: LogPosition, log_crc: u32) -> Result<Captured> {
        // When an edit is applied differs between replicas; what one of any other kind leaves to be read does not.
        if let Some(edit) = self.apply.last_load() {
            return Err(Error::unavailable(format!(
                "at {log_end} a bulk load (edit {edit}) is in the log of {} and not applied",
                self.me
            )));
        }
        let applied = self.tree.version();
        let version = match self.has(Mutant::FilesOfAppliedEdits) {
            true => applied.clone(),
            false => self.apply.version_at_the_end(applied)?,
        };
        Ok(Captured {
            view: self.tree.view(),
            log_end,
            log_crc,
            edit: self.apply.last_appended(self.tree.last_edit()),
            files: version.files().map(CapturedFile::of).collect(),
            era: self.marks.era,
        })
    }

    /// Ends marks whose records do not come.
    pub(super) fn tick_marks(&mut self) {
        let (now_ms, end) = (self.now_ms, self.log.end());
        self.end_marks(
            |armed| now_ms.saturating_sub(armed.since_ms) > MARK_WAIT_MS_MAX,
            |armed| {
                let position = armed.position;
                format!(
                    "the log did not reach {position} in {MARK_WAIT_MS_MAX} ms: it ends at {end}"
                )
            },
        );
    }

    /// Records may leave the log, or others take their place: what waits may wait for what never comes, and
    /// what was captured may be of records that are gone.
    pub(super) fn cut_marks(&mut self) {
        self.marks.era.0 += 1;
        self.marks.is_at_pad = false;
        let end = self.log.end();
        self.end_marks(
            |_| true,
            |armed| {
                let position = armed.position;
                format!("a term began or the log was cut at {end} before it reached {position}")
            },
        );
    }

    fn end_marks(&mut self, ends: impl Fn(&Armed) -> bool, why: impl Fn(&Armed) -> String) {
        for (mark, armed) in core::mem::take(&mut self.marks.armed) {
            if ends(&armed) {
                let error = Error::unavailable(why(&armed));
                self.outputs.push_back(Output::Marked(mark, Err(error)));
            } else {
                self.marks.armed.insert(mark, armed);
            }
        }
    }
}

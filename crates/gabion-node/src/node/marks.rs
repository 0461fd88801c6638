//! Marks: positions of the log at which the state of a replica is captured, to be compared with
//! what others hold there while writes go on.
//!
//! ```text
//!   arm ─► a record ends there or beyond ─► view, files, end and checksum ─► read ─► still in the log?
//!     └ ends after a while, and with a new term or a cut of the log
//! ```
//!
//! Records are the same bytes at the same positions everywhere. So the first record that ends at or
//! past a position is the same at every replica. Its checksum covers the one before, and so the
//! whole log up to it. A pad at the end of a segment is passed over: the head appends it together
//! with the record behind it, whose operations the tree has already. A pad that makes the log
//! before it durable stands alone and counts.
//!
//! The files are those that the edits in the log up to there leave in the tree, applied or not.
//! Replicas apply an edit at different times, but it has one position in the log.

use super::Output;
use super::effects::Effects;
use super::facts::Facts;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use gabion_base::{Error, FileId, Frontier, LogPosition, ReplicaId, Result};
use gabion_engine::{FileMeta, ReadView, Version};

/// Most marks that may wait at a time: each costs a list of all files once it is reached.
const MARKS_MAX: usize = 16;
/// How long a mark may wait for its record, in ms: a caller expects the next records soon.
const MARK_WAIT_MS_MAX: u64 = 3_000;

/// The number of an armed mark, unique in its process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MarkId(u64);

/// A file of a captured state, as the edit that added it names it. It does not pin the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CapturedFile {
    /// Its level, or [`Self::NO_LEVEL`].
    pub level: u8,
    /// Its number and kind.
    pub file: FileId,
    /// Bytes on the device: rounded up to whole blocks.
    pub len: u64,
    /// CRC32C of them.
    pub checksum: u32,
}

impl CapturedFile {
    /// The level of what lies at none: of values files.
    pub const NO_LEVEL: u8 = u8::MAX;

    /// All files of a version, level by level, then its values files.
    pub fn all(version: &Version) -> impl Iterator<Item = Self> {
        let values = version.values_files().map(|meta| Self::of((Self::NO_LEVEL, meta)));
        version.files().map(Self::of).chain(values)
    }

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
    /// The log ends there with the record.
    pub log_end: Frontier,
    /// The record's checksum. Replicas with the same one at the same end have the same log up to
    /// there.
    pub log_crc: u32,
    /// Number of the last edit in the log up to there.
    pub edit: u64,
    /// The files that the edits up to there leave in the tree, level by level, then values files.
    /// With `every-replica` these are its own edits' files.
    pub files: Vec<CapturedFile>,
    /// The era of the log in which it was captured.
    pub era: LogEra,
}

/// A time in which no record leaves the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogEra(u64);

/// A mark that waits for its record.
struct Armed {
    position: LogPosition,
    since_ms: u64,
}

/// Marks that wait, and the era of the log.
#[derive(Default)]
pub(super) struct Marks {
    armed: BTreeMap<MarkId, Armed>,
    next: u64,
    era: LogEra,
    /// The log ends at the pad of a segment: the record behind it is on its way.
    is_at_pad: bool,
}

/// The replica's state at the end of its log.
pub(super) struct AtEnd {
    pub(super) me: ReplicaId,
    pub(super) view: ReadView,
    /// Number of the last edit of a bulk load that is in the log and not applied.
    pub(super) load: Option<u64>,
    /// Number of the last edit in the log.
    pub(super) edit: u64,
    /// The files that the edits in the log leave in the tree.
    pub(super) version: Result<Arc<Version>>,
}

impl Marks {
    /// Arms a mark at `position`. Where the log ends right there it is reached at once.
    ///
    /// # Errors
    /// As [`super::Node::arm_mark`].
    pub(super) fn arm(
        &mut self,
        facts: &Facts,
        effects: &mut Effects,
        at_end: &dyn Fn() -> AtEnd,
        is_tree_ahead: bool,
        position: LogPosition,
    ) -> Result<MarkId> {
        let (me, end) = (facts.me, facts.log.end());
        if position < end {
            return Err(Error::unavailable(format!(
                "log position {position} is passed: the log of {me} ends at {end}"
            )));
        }
        if is_tree_ahead {
            return Err(Error::unavailable(format!(
                "the log of {me} is being repaired, and its files are ahead of it"
            )));
        }
        if self.armed.len() >= MARKS_MAX {
            return Err(Error::unavailable(format!(
                "{MARKS_MAX} positions of the log are waited for already, which is the limit"
            )));
        }
        let mark = MarkId(self.next);
        self.next += 1;
        if position == end && !self.is_at_pad {
            let captured = self.capture(at_end(), end, facts.log.last().crc);
            effects.put_out(Output::Marked(mark, captured));
        } else {
            self.armed.insert(mark, Armed { position, since_ms: facts.now_ms });
        }
        Ok(mark)
    }

    /// Drops a mark: its caller no longer waits.
    pub(super) fn withdraw(&mut self, mark: MarkId) {
        self.armed.remove(&mark);
    }

    /// Marks that wait for their records.
    pub(super) fn waiting(&self) -> usize {
        self.armed.len()
    }

    /// Checks that a state captured in `era` still matches the log of `me`.
    pub(super) fn check(&self, era: LogEra, me: ReplicaId) -> Result<()> {
        if era == self.era {
            return Ok(());
        }
        Err(Error::unavailable(format!(
            "what was captured may not be in the log of {me} any more: a term began or the log was cut"
        )))
    }

    /// Checks what holds between steps.
    pub(super) fn invariants(&self) {
        assert!(self.armed.len() <= MARKS_MAX, "{} marks wait", self.armed.len());
        let last = self.armed.keys().next_back();
        assert!(last.is_none_or(|mark| mark.0 < self.next), "a mark has a number to come");
    }

    /// A record is applied that ends at `end`, and the log continues behind it.
    pub(super) fn pass(
        &mut self,
        effects: &mut Effects,
        at_end: &dyn Fn() -> AtEnd,
        is_in_turn: bool,
        end: LogPosition,
        crc: u32,
    ) {
        self.is_at_pad = false;
        if self.armed.is_empty() || is_in_turn {
            return; // or an edit amid a turn, whose operations are in the tree and not in the log
        }
        let reached = self.armed.iter().filter(|(_, armed)| armed.position <= end);
        let reached: Vec<MarkId> = reached.map(|(mark, _)| *mark).collect();
        for mark in reached {
            self.armed.remove(&mark);
            effects.put_out(Output::Marked(mark, self.capture(at_end(), end, crc)));
        }
    }

    /// The pad of a segment came: no state is captured here.
    pub(super) const fn pass_pad(&mut self) {
        self.is_at_pad = true;
    }

    fn capture(&self, at_end: AtEnd, log_end: LogPosition, log_crc: u32) -> Result<Captured> {
        let AtEnd { me, view, load, edit, version } = at_end;
        // Replicas apply an edit at different times. Only a bulk load's changes the pairs to be
        // read.
        if let Some(edit) = load {
            return Err(Error::unavailable(format!(
                "at {log_end} a bulk load (edit {edit}) is in the log of {me} and not applied"
            )));
        }
        let files = CapturedFile::all(&*version?).collect();
        let log_end = Frontier::of(log_end);
        Ok(Captured { view, log_end, log_crc, edit, files, era: self.era })
    }

    /// Ends marks whose records do not come.
    pub(super) fn tick(&mut self, facts: &Facts, effects: &mut Effects) {
        let (now_ms, end) = (facts.now_ms, facts.log.end());
        self.end(
            effects,
            |armed| now_ms.saturating_sub(armed.since_ms) > MARK_WAIT_MS_MAX,
            |armed| {
                let position = armed.position;
                format!(
                    "the log did not reach {position} in {MARK_WAIT_MS_MAX} ms: it ends at {end}"
                )
            },
        );
    }

    /// Records may leave the log, or others take their place: a waiting mark may never get its
    /// record, and a captured state may be of records that are gone.
    pub(super) fn cut(&mut self, facts: &Facts, effects: &mut Effects) {
        self.era.0 += 1;
        self.is_at_pad = false;
        let end = facts.log.end();
        self.end(
            effects,
            |_| true,
            |armed| {
                let position = armed.position;
                format!("a term began or the log was cut at {end} before it reached {position}")
            },
        );
    }

    fn end(
        &mut self,
        effects: &mut Effects,
        ends: impl Fn(&Armed) -> bool,
        why: impl Fn(&Armed) -> String,
    ) {
        self.armed.retain(|mark, armed| {
            if ends(armed) {
                let error = Error::unavailable(why(armed));
                effects.put_out(Output::Marked(*mark, Err(error)));
                return false;
            }
            true
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NodeOptions;
    use crate::node::effects::Effect;
    use crate::node::facts::facts;
    use crate::node::testing::{HEAD, one_of_two};
    use gabion_base::ErrorKind;

    /// The marks that came, and whether each has a state.
    fn marked(effects: &mut Effects) -> Vec<(u64, bool)> {
        let marked = |effect| match effect {
            Effect::Output(Output::Marked(mark, captured)) => (mark.0, captured.is_ok()),
            _ => panic!("a mark asks for nothing else"),
        };
        core::iter::from_fn(|| effects.next_effect()).map(marked).collect()
    }

    #[test]
    fn a_mark_is_reached_once_at_the_first_record_that_is_no_pad_and_stands_in_the_tree_alone() {
        let node = one_of_two(HEAD, NodeOptions::default());
        let (mut marks, mut asked) = (Marks::default(), Effects::default());
        let at_end = || AtEnd {
            me: node.me,
            view: node.tree.view(),
            load: None,
            edit: 0,
            version: Ok(node.tree.version().clone()),
        };
        let end = node.log.end();
        let next = LogPosition(end.get() + 8);
        let arm = |marks: &mut Marks, asked: &mut Effects, position| {
            marks.invariants();
            marks.arm(&facts!(node), asked, &at_end, false, position)
        };
        arm(&mut marks, &mut asked, end).unwrap();
        assert_eq!(marked(&mut asked), [(0, true)], "the log ends there");
        arm(&mut marks, &mut asked, next).unwrap();
        marks.pass_pad();
        arm(&mut marks, &mut asked, end).unwrap();
        marks.pass(&mut asked, &at_end, true, next, 1);
        assert_eq!(marked(&mut asked), [], "the tree is ahead of the log");
        marks.pass(&mut asked, &at_end, false, next, 1);
        marks.pass(&mut asked, &at_end, false, next, 1);
        assert_eq!(marked(&mut asked), [(1, true), (2, true)]);
        let era = marks.era;
        for _ in 0..MARKS_MAX {
            arm(&mut marks, &mut asked, next).unwrap();
        }
        let error = arm(&mut marks, &mut asked, next).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        marks.cut(&facts!(node), &mut asked);
        let ended = marked(&mut asked);
        assert_eq!(ended.len(), MARKS_MAX);
        assert!(ended.iter().all(|(_, is_whole)| !is_whole));
        assert!(marks.check(era, HEAD).is_err());
        assert!(marks.check(marks.era, HEAD).is_ok());
    }

    #[test]
    fn no_state_is_captured_while_a_bulk_load_is_on_its_way() {
        let node = one_of_two(HEAD, NodeOptions::default());
        let (mut marks, mut asked) = (Marks::default(), Effects::default());
        let at_end = || AtEnd {
            me: node.me,
            view: node.tree.view(),
            load: Some(7),
            edit: 7,
            version: Ok(node.tree.version().clone()),
        };
        let end = node.log.end();
        marks.arm(&facts!(node), &mut asked, &at_end, false, end).unwrap();
        assert_eq!(marked(&mut asked), [(0, false)]);
    }
}

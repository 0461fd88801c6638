//! Defects that tests plant, to prove that the simulator's checkers can fail (docs/faults.md,
//! "Seeded mutants"; the first three are RubbleDB's own). Without the feature `planted` nothing can
//! be planted and every question is `false` at compile time.

use crate::NodeOptions;
use gabion_replication::{Frame, Lease, Message};

/// A defect.
#[cfg_attr(not(feature = "planted"), expect(unreachable_pub, reason = "exported with the feature"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// The slots of a file that an edit removes are free when the edit is applied, even under
    /// readers.
    SlotFreedUnderReader,
    /// Files that readers past their budget kept are free at once, although a read is under way.
    ReadUnderWayNotWaitedFor,
    /// The slots of a values file are free as soon as no file of the tree references it, even under
    /// readers of those that did.
    ValuesFreedUnderReader,
    /// A compaction that empties values files in place puts what it makes of old versions above
    /// newer ones.
    CollectedOverNewer,
    /// A flush leaves values in segments in which a term begins, behind a gap.
    GapsKept,
    /// A segment goes when the log begins behind it, though files reference it.
    KeptSegmentsTrimmed,
    /// The log stays in the ring as in a group of one, and an edit that leaves values in the log is
    /// applied though only the ring has them here.
    KeptInRing,
    /// The number of an edit is not the one after the last.
    GapInEdits,
    /// Two records that arrive together are applied the second one first.
    RecordsOutOfOrder,
    /// A write is acknowledged when the head has it (A1).
    AckWithoutMembers,
    /// An edit goes into the log before its files are everywhere, and is applied without them.
    EditBeforeFiles,
    /// A new session voids no grant.
    OldGrantsHonoured,
    /// A replica waits for a file that its disk lost, and asks nobody for it.
    MissingFilesNotAsked,
    /// Jobs begin however many built files of others wait to be shipped.
    JobsWithoutBound,
    /// A job that has begun makes all its files however many of them wait to be shipped.
    JobsNotHeldBack,
    /// A mark tells the files of the edits that are applied, not of those that are in the log.
    FilesOfAppliedEdits,
    /// Segments that a crash left below the log's beginning are not given back at the next start.
    SegmentsKept,
    /// In a group of one the edit of a flush is kept, and the log still begins before the records
    /// that the flush put into files.
    LogBeginsBeforeFlush,
    /// A batch that is applied from the log lacks its last operation.
    HalfBatchReplayed,
    /// Jobs drop tombstones as if nothing lay deeper.
    TombstonesDropped,
    /// A start reuses file numbers that the last process used without an edit.
    FileNumbersAgain,
    /// A start does not forget that the last process stopped cleanly.
    MarkerKept,
    /// A process that stops says so before its log is flushed.
    MarkerBeforeLog,
    /// Files of before count for a copy of the group's state though nobody compared their bytes.
    FilledWithoutCheck,
    /// The slots of the old state are given away before the mark is durable that a replica is being
    /// filled.
    OldStateOverwritten,
    /// A node is opened anew before the cut of its log is durable.
    CutNotKept,
    /// A newer view takes effect while the one that answers reads may still hold a promise.
    LeaseNotWaitedFor,
    /// A promise counts from when it came, not from when it was asked for.
    LeaseFromReceipt,
    /// A member promises although it has taken a newer view.
    PromiseAfterView,
    /// A start waits for no promise of the process before.
    RestartForgetsPromise,
    /// Reads are answered without a promise of anybody.
    ReadsWithoutPromise,
    /// The only full member of a view takes writes and answers reads from its start on.
    NoWordAwaited,
    /// Records that are cut off the log stay in the MemTables.
    PhantomsKept,
    /// A newer view takes effect before it is durable.
    ViewNotDurable,
    /// Below the minimum a survivor takes its whole log for committed.
    CommitBelowMinimum,
    /// A member that is kept gives up what it has, as one that is to be filled does.
    KeptIsEmptied,
    /// A replica that was filled takes edits that came with the copy for new ones when the log
    /// brings them again.
    CopiedEditsAgain,
    /// A new session's target is open before the old one's writes have ended (A13). The defect is
    /// the target driver's, as that is where the wait is.
    #[cfg(feature = "planted")]
    DrainNotWaitedFor,
}

#[cfg(feature = "planted")]
pub(super) fn is_planted(options: &NodeOptions, mutant: Mutant) -> bool {
    options.planted == Some(mutant)
}

#[cfg(not(feature = "planted"))]
pub(super) const fn is_planted(_: &NodeOptions, _: Mutant) -> bool {
    false
}

impl super::Node {
    pub(crate) fn has(&self, mutant: Mutant) -> bool {
        is_planted(&self.options, mutant)
    }

    /// A frame as it came, but with a planted defect.
    pub(super) fn planted_receipt(&self, mut frame: Frame) -> Frame {
        let lease_ms = self.leasing.now_ms().filter(|_| self.has(Mutant::LeaseFromReceipt));
        if let (Some(lease_ms), Message::Ack(_, lease)) = (lease_ms, &mut frame.message) {
            *lease = Lease { asked_ms: lease_ms, ..*lease };
        }
        frame
    }

    /// Whether a defect is planted that the owner of files would notice at once: readers and
    /// checkers are to.
    pub(super) fn has_wrong_files(&self) -> bool {
        let wrong = [
            Mutant::SlotFreedUnderReader,
            Mutant::ReadUnderWayNotWaitedFor,
            Mutant::ValuesFreedUnderReader,
            Mutant::KeptSegmentsTrimmed,
            Mutant::KeptInRing,
            Mutant::EditBeforeFiles,
            Mutant::SegmentsKept,
            Mutant::OldStateOverwritten,
        ];
        wrong.into_iter().any(|mutant| self.has(mutant))
    }
}

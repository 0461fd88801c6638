//! Files of which a part rotted, from the read that met it to the whole file in other slots
//! (docs/faults.md E5, R13). Repair trusts the checksum in the edit: nothing that another replica
//! sends counts before it has it.
//!
//! ```text
//!   a read, a job, a peer's wish ─► noted ─► checked here ─┬─► whole: the error passed, or is in the file itself
//!                                                          └─► damaged
//!   at a secondary:  NeedFile ─► the primary reads, checks, ships into granted slots ─► Placement ─┐
//!   at the primary:  NeedFile ─► a secondary checks its copy ─► CopyAt ─► read there, one-sided,   │
//!                    checked, written into own slots ─────────────────────────────────────────────┤
//!                                      placement commit: file → new slots; old ones quarantined ◄──┘
//!   a member whose copy is not whole says NoCopy, and begins to have it repaired
//! ```
//!
//! A file that an edit adds may be missing at the primary: it shipped under another one that had
//! not got it to this replica. It is had from a secondary in the same way, into a place of its own.
//!
//! A round asks each source once; after one without success there is a pause, which doubles. Where
//! each replica compacts for itself a file is nobody else's, and a replica alone has nobody to ask:
//! there it stays damaged until a compaction, a clear or a restore does without it.

use super::effects::{Effects, Signal};
use super::facts::{Facts, MetaOf};
use super::orders::{After, Order};
use super::{Counters, Output};
use crate::message::{NodeMessage, ShippedFile};
use crate::work::{FetchOrder, Fetched, RewriteOrder, VerifyOrder, Work};
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;
use gabion_base::units::SLOT_LEN;
use gabion_base::{Ends, Error, Failed, FileId, ReplicaId, Result};
use gabion_engine::FileMeta;
use gabion_pool::{FilePlacement, Geometry, Pool};

/// Repairs under way at a time: each may hold a file in memory.
const REPAIRS_MAX: usize = 2;
/// The pause after the first round without success; each further round doubles it.
const PAUSE_MS_MIN: u64 = 1_000;
/// The longest pause, and how long a file that was found whole is not checked again.
const PAUSE_MS_MAX: u64 = 60_000;
/// How long a member may take to answer, which at a secondary includes the shipment.
const ANSWER_MS_MAX: u64 = 10_000;

/// Files that are damaged, as far as reads have met it.
#[derive(Default)]
pub(super) struct Repairs {
    files: BTreeMap<FileId, Damaged>,
    damaged_files: u64,
    repaired_files: u64,
    fetched_bytes: u64,
    verified_read_bytes: u64,
}

struct Damaged {
    /// The error of the first read.
    error: Error,
    /// Its bytes were compared with the checksums of its edit.
    is_checked: bool,
    step: Step,
    /// Some member was asked for it.
    was_asked: bool,
    /// Sources that this round has yet to ask.
    left: VecDeque<ReplicaId>,
    /// Sources of this round that said that they have no whole copy.
    without: usize,
    /// Why the last source or step failed, where it was not for the lack of a copy.
    failure: Option<Error>,
    /// Every source of the last round had no whole copy.
    no_good_copy: bool,
    pause_ms: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    /// For its turn, or for the end of a pause.
    Waits { until_ms: u64 },
    /// It is read here and compared with its checksums.
    Checking,
    /// Its bytes match its edit. It is forgotten at `until_ms`.
    Whole { until_ms: u64 },
    /// A member was asked for it.
    Asked { of: ReplicaId, until_ms: u64 },
    /// Its bytes are on their way into new slots.
    Arriving,
    /// Its new place is being made durable.
    Placing,
}

impl Step {
    const fn is_under_way(self) -> bool {
        !matches!(self, Self::Waits { .. } | Self::Whole { .. })
    }
}

/// How far the repair of a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RepairState {
    /// It waits for its turn, or for the end of a pause.
    Waiting,
    /// It is compared with its checksums, or its bytes are on their way.
    Repairing,
    /// No other replica has it whole. They are asked again after a pause.
    NoGoodCopy,
    /// Its bytes are those of its edit: the error passed, or every replica has it.
    Whole,
}

impl RepairState {
    /// The state as words for messages and JSON.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Repairing => "repairing",
            Self::NoGoodCopy => "no good copy",
            Self::Whole => "whole",
        }
    }
}

/// A file that a read found damaged.
#[derive(Clone, Debug)]
pub struct DamagedFile {
    /// The file.
    pub file: FileId,
    /// The error of the first read.
    pub error: Error,
    /// How far its repair is.
    pub state: RepairState,
    /// Why it did not succeed yet, where it is for something else than the lack of a whole copy.
    pub failure: Option<Error>,
}

impl Damaged {
    const fn new(error: Error, is_checked: bool) -> Self {
        Self {
            error,
            is_checked,
            step: Step::Waits { until_ms: 0 },
            was_asked: false,
            left: VecDeque::new(),
            without: 0,
            failure: None,
            no_good_copy: false,
            pause_ms: PAUSE_MS_MIN,
        }
    }

    const fn state(&self) -> RepairState {
        match self.step {
            Step::Whole { .. } => RepairState::Whole,
            _ if self.no_good_copy => RepairState::NoGoodCopy,
            Step::Waits { .. } => RepairState::Waiting,
            _ => RepairState::Repairing,
        }
    }
}

impl Repairs {
    // ---- questions

    /// Files that reads found damaged and that are not repaired, in the order of their numbers.
    pub(super) fn all(&self) -> impl Iterator<Item = DamagedFile> + '_ {
        self.files.iter().map(|(file, damaged)| DamagedFile {
            file: *file,
            error: damaged.error.clone(),
            state: damaged.state(),
            failure: damaged.failure.clone(),
        })
    }

    /// The error of the first damaged file's reader.
    pub(super) fn first_error(&self) -> Option<&Error> {
        self.files.values().next().map(|damaged| &damaged.error)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// Whether it was noted, even if it was found whole since.
    pub(super) fn is_noted(&self, file: FileId) -> bool {
        self.files.contains_key(&file)
    }

    pub(super) fn is_damaged(&self, file: FileId) -> bool {
        self.files.get(&file).is_some_and(|damaged| !matches!(damaged.step, Step::Whole { .. }))
    }

    /// The error of a file whose bytes are known not to match its edit, while nobody is asked for
    /// it.
    pub(super) fn lost(&self, file: FileId) -> Option<&Error> {
        let damaged = self.files.get(&file)?;
        let is_lost = damaged.is_checked && matches!(damaged.step, Step::Waits { .. });
        is_lost.then_some(&damaged.error)
    }

    /// Whether a shipment of the file is taken: it is damaged, and no other one is on its way.
    pub(super) fn wants(&self, file: FileId) -> bool {
        self.files.get(&file).is_some_and(|damaged| {
            damaged.is_checked && matches!(damaged.step, Step::Waits { .. } | Step::Asked { .. })
        })
    }

    /// Whether its bytes are on their way into new slots.
    pub(super) fn is_arriving(&self, file: FileId) -> bool {
        self.files.get(&file).is_some_and(|damaged| damaged.step == Step::Arriving)
    }

    /// Whether its bytes are on their way into new slots, or these are being made its place.
    pub(super) fn is_coming(&self, file: FileId) -> bool {
        let coming = |damaged: &Damaged| matches!(damaged.step, Step::Arriving | Step::Placing);
        self.files.get(&file).is_some_and(coming)
    }

    /// Whether a member was asked for it and may yet send it, even if late.
    pub(super) fn may_come(&self, file: FileId) -> bool {
        self.files.get(&file).is_some_and(|damaged| {
            damaged.was_asked && matches!(damaged.step, Step::Waits { .. } | Step::Asked { .. })
        })
    }

    fn under_way(&self) -> usize {
        self.files.values().filter(|damaged| damaged.step.is_under_way()).count()
    }

    fn is_asked_of(&self, member: ReplicaId, file: FileId) -> bool {
        let is_asked = |step: Step| matches!(step, Step::Asked { of, .. } if of == member);
        self.files.get(&file).is_some_and(|damaged| is_asked(damaged.step))
    }

    pub(super) fn count_into(&self, counters: &mut Counters) {
        counters.damaged_files += self.damaged_files;
        counters.repaired_files += self.repaired_files;
        counters.received_bytes += self.fetched_bytes;
        counters.verified_read_bytes += self.verified_read_bytes;
    }

    /// Checks what holds between steps: a file is asked for only once it is known to be damaged.
    pub(super) fn invariants(&self) {
        assert!(self.repaired_files <= self.damaged_files, "what is repaired was damaged");
        if !cfg!(debug_assertions) {
            return;
        }
        for (file, damaged) in &self.files {
            let is_unchecked = matches!(damaged.step, Step::Waits { .. } | Step::Checking);
            assert!(damaged.is_checked || is_unchecked, "{file} is repaired unseen");
            assert!(!damaged.is_checked || damaged.step != Step::Checking, "{file} twice");
            assert!(damaged.pause_ms <= PAUSE_MS_MAX, "{file} waits {} ms", damaged.pause_ms);
        }
    }

    // ---- noting

    /// Notes a file as damaged, once. It is compared with its checksums first, unless it was.
    pub(super) fn note(
        &mut self,
        effects: &mut Effects,
        meta_of: MetaOf,
        file: FileId,
        error: Error,
        is_checked: bool,
    ) {
        // A file that has left the tree is not repaired: only its last readers need it.
        if self.is_noted(file) || meta_of(file).is_none() {
            return;
        }
        self.damaged_files += 1;
        effects.notice(format!("{file} is damaged: {error}"));
        self.files.insert(file, Damaged::new(error, is_checked));
    }

    /// Notes a file that an edit in line adds and that is not here, at the member that ships: the
    /// others may have got it from the one that shipped before.
    pub(super) fn note_missing(&mut self, effects: &mut Effects, meta_of: MetaOf, file: FileId) {
        if self.is_noted(file) || meta_of(file).is_none() {
            return;
        }
        let error = Error::not_found(format!("{file} is not here"));
        effects.notice(format!("{error}, and an edit needs it: other replicas are asked for it"));
        self.files.insert(file, Damaged::new(error, true));
    }

    /// Forgets files that are not here: from now on the applier asks for them, or nobody does.
    pub(super) fn forget_missing(&mut self, facts: &Facts) {
        self.files.retain(|file, _| facts.place(*file).is_some());
    }

    /// As [`Self::note`] of a file whose bytes were found not to have its checksum at this place,
    /// unless it was repaired since.
    pub(super) fn note_at(
        &mut self,
        facts: &Facts,
        effects: &mut Effects,
        meta_of: MetaOf,
        place: &FilePlacement,
        error: Error,
    ) {
        if facts.place(place.file).is_some_and(|now| *now == *place) {
            self.note(effects, meta_of, place.file, error, true);
        }
    }

    /// An edit removed the file: nobody needs it whole.
    pub(super) fn forget(&mut self, file: FileId) {
        self.files.remove(&file);
    }

    /// A shipment of the file came, and is on its way to its place.
    pub(super) fn arrives(&mut self, file: FileId) {
        if let Some(damaged) = self.files.get_mut(&file) {
            damaged.step = Step::Arriving;
        }
    }

    // ---- rounds

    /// Goes on with repairs that are due.
    pub(super) fn schedule(&mut self, facts: &Facts, effects: &mut Effects, meta_of: MetaOf) {
        let due = |(file, damaged): (&FileId, &Damaged)| match damaged.step {
            Step::Waits { until_ms } | Step::Whole { until_ms } | Step::Asked { until_ms, .. }
                if until_ms <= facts.now_ms =>
            {
                Some((*file, damaged.step))
            }
            _ => None,
        };
        let due: Vec<(FileId, Step)> = self.files.iter().filter_map(due).collect();
        for (file, step) in due {
            match step {
                Step::Whole { .. } => {
                    self.forget(file);
                    effects.signal(Signal::FileWhole(file));
                }
                Step::Asked { of, .. } => {
                    let late = format!("{of} has not answered for {ANSWER_MS_MAX} ms");
                    self.source_failed(facts, effects, file, Error::unavailable(late));
                }
                _ if self.under_way() < REPAIRS_MAX => {
                    self.begin_round(facts, effects, meta_of, file);
                }
                _ => {}
            }
        }
    }

    fn begin_round(&mut self, facts: &Facts, effects: &mut Effects, meta_of: MetaOf, file: FileId) {
        let Some(damaged) = self.files.get_mut(&file) else { return };
        if damaged.is_checked {
            let sources = facts.view.copies_at();
            (damaged.left, damaged.without, damaged.failure) = (sources.into(), 0, None);
            return self.ask_next(facts, effects, file);
        }
        let Some(order) = to_verify(facts, meta_of, file) else { return self.forget(file) };
        damaged.step = Step::Checking;
        self.verified_read_bytes += order.placement.len;
        effects.begin(Order::Check(file), Work::Verify(order));
    }

    /// Asks the next source of the round that can be reached; after the last there is a pause.
    fn ask_next(&mut self, facts: &Facts, effects: &mut Effects, file: FileId) {
        loop {
            let Some(damaged) = self.files.get_mut(&file) else { return };
            let Some(of) = damaged.left.pop_front() else {
                return self.end_round(facts, effects, file);
            };
            if facts.can_reach(of) {
                let until_ms = facts.now_ms.saturating_add(ANSWER_MS_MAX);
                (damaged.step, damaged.was_asked) = (Step::Asked { of, until_ms }, true);
                return effects.tell_member(of, NodeMessage::NeedFile { file });
            }
            damaged.failure = Some(Error::unavailable(format!("{of} cannot be reached")));
        }
    }

    /// No source of the round had it.
    fn end_round(&mut self, facts: &Facts, effects: &mut Effects, file: FileId) {
        let sources = facts.view.copies_at().len();
        let Some(damaged) = self.files.get_mut(&file) else { return };
        let had_none = core::mem::replace(&mut damaged.no_good_copy, damaged.without == sources);
        if sources == 0 {
            damaged.pause_ms = PAUSE_MS_MAX;
        }
        damaged.step = Step::Waits { until_ms: facts.now_ms.saturating_add(damaged.pause_ms) };
        damaged.pause_ms = (damaged.pause_ms * 2).min(PAUSE_MS_MAX);
        if damaged.no_good_copy && !had_none {
            let copies = match sources {
                0 => "reads that need what is damaged fail",
                _ => "no other replica has a whole copy of it",
            };
            let is_here = facts.place(file).is_some();
            let state = if is_here { "is damaged" } else { "is not here" };
            effects.notice(format!("{file} {state}, and {copies}"));
        }
    }

    /// The source that was asked last, or its copy, was of no use.
    fn source_failed(&mut self, facts: &Facts, effects: &mut Effects, file: FileId, reason: Error) {
        let Some(damaged) = self.files.get_mut(&file) else { return };
        damaged.failure = Some(reason);
        self.ask_next(facts, effects, file);
    }

    /// A step failed that another source would not mend.
    fn round_failed(&mut self, facts: &Facts, effects: &mut Effects, file: FileId, reason: Error) {
        let Some(damaged) = self.files.get_mut(&file) else { return };
        damaged.failure = Some(reason);
        damaged.left.clear();
        self.end_round(facts, effects, file);
    }

    /// The file was compared with its checksums here.
    pub(super) fn check_done(
        &mut self,
        facts: &Facts,
        effects: &mut Effects,
        file: FileId,
        result: &Result<()>,
    ) {
        let until_ms = facts.now_ms.saturating_add(PAUSE_MS_MAX);
        let Some(damaged) = self.files.get_mut(&file) else { return };
        damaged.is_checked = true;
        if result.is_err() {
            damaged.step = Step::Waits { until_ms: 0 };
            return;
        }
        damaged.step = Step::Whole { until_ms };
        effects.notice(format!("{file} is what its edit says: it is as whole here as anywhere"));
        // Most likely the error passed. A compaction that meets it again waits until this is
        // forgotten.
        effects.signal(Signal::FileWhole(file));
    }

    /// The connection with a member is gone, and with it the requests to it.
    pub(super) fn lose(&mut self, facts: &Facts, effects: &mut Effects, peer: ReplicaId) {
        let asked = self.files.keys().filter(|file| self.is_asked_of(peer, **file));
        let asked: Vec<FileId> = asked.copied().collect();
        for file in asked {
            let reason = Error::unavailable(format!("{peer} was lost"));
            self.source_failed(facts, effects, file, reason);
        }
    }

    /// Files that were shipped here and have no durable place are void.
    pub(super) fn lose_arriving(&mut self, facts: &Facts, effects: &mut Effects) {
        let arriving = self.files.iter().filter(|(_, it)| it.step == Step::Arriving);
        let arriving: Vec<FileId> = arriving.map(|(file, _)| *file).collect();
        for file in arriving {
            let reason = Error::unavailable("the session with the primary ended");
            self.round_failed(facts, effects, file, reason);
        }
    }

    // ---- the source's side

    /// The primary's copy of a file is damaged, and it asks where a whole one lies. The copy here
    /// is compared with its checksums before the answer.
    pub(super) fn offer_copy(
        &mut self,
        facts: &Facts,
        effects: &mut Effects,
        meta_of: MetaOf,
        file: FileId,
    ) {
        let order = to_verify(facts, meta_of, file).filter(|_| !self.is_damaged(file));
        let Some(order) = order else {
            return effects.tell_member(facts.writer(), NodeMessage::NoCopy { file });
        };
        self.verified_read_bytes += order.placement.len;
        effects.begin(Order::CheckForHead(order.placement.clone()), Work::Verify(order));
    }

    pub(super) fn copy_checked(
        &mut self,
        facts: &Facts,
        effects: &mut Effects,
        meta_of: MetaOf,
        checked: &FilePlacement,
        result: Result<()>,
    ) {
        let file = checked.file;
        match (result, facts.place(file), meta_of(file)) {
            (Ok(()), Some(placement), Some(meta)) => {
                let file = ShippedFile {
                    file,
                    // The place of a segment was made before its bytes came, and tells none.
                    term: meta.term,
                    len: meta.rounded_len(),
                    checksum: meta.checksum,
                    chunk_crcs: meta.chunk_crcs.clone(),
                    slots: placement.slots.clone(),
                };
                let session = facts.state.session;
                effects.tell_member(facts.writer(), NodeMessage::CopyAt { session, file });
            }
            (result, ..) => {
                if let Err(error) = result {
                    self.note_at(facts, effects, meta_of, checked, error);
                }
                effects.tell_member(facts.writer(), NodeMessage::NoCopy { file });
            }
        }
    }

    // ---- the repairing side

    /// A member has no whole copy.
    pub(super) fn no_copy(
        &mut self,
        facts: &Facts,
        effects: &mut Effects,
        from: ReplicaId,
        file: FileId,
    ) {
        if !self.is_asked_of(from, file) {
            return;
        }
        if let Some(damaged) = self.files.get_mut(&file) {
            damaged.without += 1;
        }
        self.ask_next(facts, effects, file);
    }

    /// A secondary has a whole copy, in these slots of its pool. It is read there even if the slots
    /// are written meanwhile: bytes with another checksum do not count. `geometry` is that of the
    /// secondary's namespace, while the connection to it is of this session.
    pub(super) fn copy_at(
        &mut self,
        facts: &Facts,
        effects: &mut Effects,
        meta_of: MetaOf,
        geometry: Option<Geometry>,
        (from, session): (ReplicaId, u64),
        copy: ShippedFile,
    ) {
        let file = copy.file;
        if !self.is_asked_of(from, file) {
            return;
        }
        let Some(meta) = meta_of(file) else { return self.forget(file) };
        let Some(geometry) = geometry else {
            let reason = format!("{from} has a whole copy and is not connected to for files");
            return self.source_failed(facts, effects, file, Error::unavailable(reason));
        };
        let placement = FilePlacement {
            file,
            term: meta.term,
            len: meta.rounded_len(),
            checksum: meta.checksum,
            slots: copy.slots,
        };
        let chunk_crcs = meta.chunk_crcs.clone();
        let order = FetchOrder { from, session, geometry, chunk_crcs, placement };
        self.arrives(file);
        effects.begin(Order::Fetch { from, session, file }, Work::Fetch(Box::new(order)));
    }

    /// A secondary's slots were read, or could not be.
    pub(super) fn fetch_done(
        &mut self,
        facts: &Facts,
        effects: &mut Effects,
        meta_of: MetaOf,
        pool: &mut Pool,
        (from, session, file): (ReplicaId, u64, FileId),
        result: Result<Fetched>,
    ) {
        if let Err(reason) = &result {
            let reason = reason.clone();
            effects.signal(Signal::RemoteFailed { of: from, session, reason });
        }
        if !self.is_arriving(file) {
            return;
        }
        let Some(meta) = meta_of(file) else { return self.forget(file) };
        let bytes = match result {
            Ok(Fetched::Whole(bytes)) => bytes,
            Ok(Fetched::Other(reason)) | Err(reason) => {
                return self.source_failed(facts, effects, file, reason);
            }
        };
        self.fetched_bytes += bytes.len() as u64;
        let slots = match pool.allocate(meta.rounded_len().div_ceil(SLOT_LEN) as u32) {
            Ok(slots) => slots,
            Err(reason) => return self.round_failed(facts, effects, file, reason),
        };
        let placement = Arc::new(FilePlacement {
            file,
            term: meta.term,
            len: meta.rounded_len(),
            checksum: meta.checksum,
            slots,
        });
        let chunk_crcs = meta.chunk_crcs.clone();
        let order = RewriteOrder { placement: placement.clone(), bytes, chunk_crcs };
        effects.begin(Order::Rewrite(placement), Work::Rewrite(order));
    }

    /// The whole file is in new slots and flushed, or could not be written.
    pub(super) fn rewrite_done(
        &mut self,
        facts: &Facts,
        effects: &mut Effects,
        pool: &mut Pool,
        placement: &Arc<FilePlacement>,
        result: Result<()>,
    ) {
        let file = placement.file;
        match result {
            Ok(()) if self.is_arriving(file) => return self.give_place(facts, effects, placement),
            Err(error) if Failed::RepairWrite.ends(&error) == Ends::Process => {
                let error = error.within(format!("{file}, to be repaired"));
                return effects.failed(Failed::RepairWrite, error);
            }
            Err(reason) => self.round_failed(facts, effects, file, reason),
            Ok(()) => {}
        }
        if let Err(error) = pool.release(&placement.slots) {
            effects.failed(Failed::Accounts, error);
        }
    }

    /// Swaps the place of a damaged file for one that holds it whole, or gives a missing one its
    /// place.
    pub(super) fn give_place(
        &mut self,
        facts: &Facts,
        effects: &mut Effects,
        placement: &Arc<FilePlacement>,
    ) {
        let file = placement.file;
        assert!(self.is_arriving(file), "{file} has a new place and did not arrive");
        if let Some(damaged) = self.files.get_mut(&file) {
            damaged.step = Step::Placing;
        }
        if facts.place(file).is_some() {
            return effects.replace(placement.clone());
        }
        effects.place(alloc::vec![placement.clone()], After::FilePlaced { file, tell: false });
    }

    /// A file has a place, durably, and had none before.
    pub(super) fn placed(&mut self, effects: &mut Effects, file: FileId) {
        if self.files.remove(&file).is_some() {
            effects.notice(format!("{file} is here: another replica had it whole"));
        }
    }

    /// The swap is durable, and reads go to the new place from here on.
    pub(super) fn repaired(&mut self, effects: &mut Effects, file: FileId) {
        // Cached blocks were checked and are the same. The index of an open reader may be damaged,
        // too.
        effects.put_out(Output::FilesGone(alloc::vec![file]));
        self.repaired_files += 1;
        self.forget(file);
        effects.notice(format!("{file} is repaired: another replica had it whole"));
        effects.signal(Signal::FileWhole(file));
    }
}

/// The file's place and the checksums that it must have, if it is here.
fn to_verify(facts: &Facts, meta_of: MetaOf, file: FileId) -> Option<VerifyOrder> {
    let (placement, meta): (_, Arc<FileMeta>) = (facts.place(file)?, meta_of(file)?);
    Some(VerifyOrder { placement, chunk_crcs: meta.chunk_crcs.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NodeOptions;
    use crate::node::effects::Effect;
    use crate::node::facts::facts;
    use crate::node::testing::{HEAD, TAIL, built, one_of_two, placed};
    use gabion_base::Term;

    fn effects(effects: &mut Effects) -> Vec<Effect> {
        core::iter::from_fn(|| effects.next_effect()).collect()
    }

    fn rot() -> Error {
        Error::corruption("a bit flipped")
    }

    #[test]
    fn a_file_is_compared_before_anybody_is_asked_and_forgotten_where_it_is_whole() {
        let mut node = one_of_two(HEAD, NodeOptions::default());
        let slots = node.pool.allocate(1).unwrap();
        let file = built(FileId::sst(1), Term(1), slots, 4_096);
        let (id, meta) = (file.meta.id, file.meta.clone());
        placed(&mut node, &file);
        let (mut repairs, mut asked) = (Repairs::default(), Effects::default());
        repairs.note(&mut asked, &|_| None, id, rot(), false);
        assert!(effects(&mut asked).is_empty(), "it has left the tree");
        let meta_of: MetaOf = &|_| Some(meta.clone());
        for _ in 0..2 {
            repairs.note(&mut asked, meta_of, id, rot(), false);
        }
        assert!(matches!(effects(&mut asked)[..], [Effect::Output(Output::Notice(_))]), "once");
        repairs.schedule(&facts!(node), &mut asked, meta_of);
        assert!(matches!(effects(&mut asked)[..], [Effect::Order(Order::Check(_), _)]));
        repairs.check_done(&facts!(node), &mut asked, id, &Ok(()));
        let said = effects(&mut asked);
        let is_whole = |effect: &Effect| matches!(effect, Effect::Signal(Signal::FileWhole(file)) if *file == id);
        assert!(said.iter().any(is_whole));
        assert!(!repairs.is_damaged(id));
        node.now_ms = PAUSE_MS_MAX;
        repairs.schedule(&facts!(node), &mut asked, meta_of);
        assert!(matches!(&effects(&mut asked)[..], [effect] if is_whole(effect)));
        assert!(!repairs.is_noted(id));
        repairs.invariants();
    }

    #[test]
    fn a_round_without_a_source_is_followed_by_pauses_that_double() {
        let mut node = one_of_two(HEAD, NodeOptions::default());
        let file = built(FileId::sst(1), Term(1), Vec::new(), 4_096);
        let meta_of: MetaOf = &|_| Some(file.meta.clone());
        let (mut repairs, mut asked) = (Repairs::default(), Effects::default());
        repairs.note(&mut asked, meta_of, file.meta.id, rot(), true);
        for pause_ms in [1_000, 2_000, 4_000] {
            repairs.schedule(&facts!(node), &mut asked, meta_of);
            let [DamagedFile { state, failure, .. }] = &repairs.all().collect::<Vec<_>>()[..]
            else {
                panic!("one file is damaged");
            };
            assert_eq!((*state, failure.is_some()), (RepairState::Waiting, true));
            node.now_ms += pause_ms - 1;
            repairs.files.values_mut().for_each(|damaged| damaged.failure = None);
            repairs.schedule(&facts!(node), &mut asked, meta_of);
            let mut failures = repairs.all().filter_map(|damaged| damaged.failure);
            assert!(failures.next().is_none(), "asked after less than {pause_ms} ms");
            node.now_ms += 1;
        }
        repairs.invariants();
    }

    #[test]
    fn a_missing_file_is_had_from_another_member_and_gets_a_place() {
        let mut node = one_of_two(HEAD, NodeOptions::default());
        let slots = node.pool.allocate(1).unwrap();
        let file = built(FileId::sst(1), Term(1), slots, 4_096);
        let (id, meta, place) = (file.meta.id, file.meta.clone(), file.placement.clone());
        let meta_of: MetaOf = &|_| Some(meta.clone());
        let (mut repairs, mut asked) = (Repairs::default(), Effects::default());
        repairs.note_missing(&mut asked, &|_| None, id);
        assert!(!repairs.is_noted(id), "no edit adds it any more");
        repairs.note_missing(&mut asked, meta_of, id);
        repairs.note_missing(&mut asked, meta_of, id);
        assert!(matches!(effects(&mut asked)[..], [Effect::Output(Output::Notice(_))]), "once");
        repairs.files.values_mut().for_each(|it| it.step = Step::Arriving);
        repairs.rewrite_done(&facts!(node), &mut asked, &mut node.pool, &place, Ok(()));
        let said = effects(&mut asked);
        assert!(matches!(&said[..], [Effect::Place(places, After::FilePlaced { tell: false, .. })]
            if places[..] == [place]));
        placed(&mut node, &file);
        repairs.placed(&mut asked, id);
        assert!(repairs.is_empty());
        // One that is missing still is no longer asked for by a replica that receives files.
        let other = FileId::sst(2);
        repairs.note_missing(&mut asked, meta_of, other);
        repairs.note(&mut asked, meta_of, id, rot(), true);
        repairs.forget_missing(&facts!(node));
        assert!(repairs.is_noted(id) && !repairs.is_noted(other));
        repairs.invariants();
    }

    #[test]
    fn a_copy_elsewhere_is_fetched_only_from_who_was_asked() {
        let mut node = one_of_two(HEAD, NodeOptions::default());
        let file = built(FileId::sst(1), Term(1), Vec::new(), 4_096);
        let (id, meta) = (file.meta.id, file.meta.clone());
        let meta_of: MetaOf = &|_| Some(meta.clone());
        let (mut repairs, mut asked) = (Repairs::default(), Effects::default());
        repairs.note(&mut asked, meta_of, id, rot(), true);
        effects(&mut asked);
        let copy = || ShippedFile {
            file: id,
            term: Term(1),
            len: 4_096,
            checksum: 0,
            chunk_crcs: alloc::vec![0],
            slots: Vec::new(),
        };
        let geometry = Some(Geometry::new(0, 64));
        let facts = facts!(node);
        repairs.copy_at(&facts, &mut asked, meta_of, geometry.clone(), (TAIL, 1), copy());
        assert!(effects(&mut asked).is_empty(), "nobody asked");
        let step = Step::Asked { of: TAIL, until_ms: 10 };
        repairs.files.values_mut().for_each(|damaged| damaged.step = step);
        repairs.copy_at(&facts, &mut asked, meta_of, geometry, (TAIL, 1), copy());
        assert!(matches!(effects(&mut asked)[..], [Effect::Order(Order::Fetch { .. }, _)]));
        let (failed, of) = (Err(Error::unavailable("the link is cut")), (TAIL, 1, id));
        let pool = &mut node.pool;
        repairs.fetch_done(&facts, &mut asked, meta_of, pool, of, failed);
        let said = effects(&mut asked);
        assert!(matches!(said[..], [Effect::Signal(Signal::RemoteFailed { session: 1, .. })]));
        assert_eq!(repairs.all().next().map(|it| it.state), Some(RepairState::Waiting));
        repairs.invariants();
    }
}

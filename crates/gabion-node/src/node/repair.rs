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
//! A round asks each source once; after one without success there is a pause, which doubles. Where each
//! replica compacts for itself a file is nobody else's, and a replica alone has nobody to ask: there it
//! stays damaged until a compaction, a clear or a restore does without it.

use super::{After, Node, Order};
use crate::message::{NodeMessage, ShippedFile};
use crate::work::{FetchOrder, Fetched, RewriteOrder, VerifyOrder, Work};
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use gabion_base::{Error, ErrorKind, FileId, ReplicaId, Result};
use gabion_engine::FileMeta;
use gabion_pool::FilePlacement;

/// Repairs under way at a time: each may hold a file in memory.
const REPAIRS_MAX: usize = 2;
/// The pause after the first round without success; each further round doubles it.
const PAUSE_MS_MIN: u64 = 1_000;
/// The longest pause, and how long a file that was found whole is not checked again.
const PAUSE_MS_MAX: u64 = 60_000;
/// How long a member may take to answer, which at a secondary includes the shipment.
pub(super) const ANSWER_MS_MAX: u64 = 10_000;

/// Files that are damaged, as far as reads have met it.
#[derive(Default)]
pub(super) struct Repairs {
    files: BTreeMap<FileId, Damaged>,
}

struct Damaged {
    /// What the first read met.
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
    /// Its bytes are those of its edit. It is forgotten at that time.
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
    /// What the first read met.
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
    pub(super) fn is_damaged(&self, file: FileId) -> bool {
        self.files.get(&file).is_some_and(|damaged| !matches!(damaged.step, Step::Whole { .. }))
    }

    /// What was met in a file that is known not to have the bytes of its edit, and that nobody is asked for now.
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

    /// Whether a member was asked for it and may yet send it, be it late.
    pub(super) fn may_come(&self, file: FileId) -> bool {
        self.files.get(&file).is_some_and(|damaged| {
            damaged.was_asked && matches!(damaged.step, Step::Waits { .. } | Step::Asked { .. })
        })
    }

    pub(super) fn arrives(&mut self, file: FileId) {
        if let Some(damaged) = self.files.get_mut(&file) {
            damaged.step = Step::Arriving;
        }
    }

    /// An edit removed the file: nobody needs it whole.
    pub(super) fn forget(&mut self, file: FileId) {
        self.files.remove(&file);
    }

    fn under_way(&self) -> usize {
        self.files.values().filter(|damaged| damaged.step.is_under_way()).count()
    }
}

impl Node {
    /// Files that reads found damaged and that are not repaired, in the order of their numbers.
    pub fn damaged_files(&self) -> impl Iterator<Item = DamagedFile> + '_ {
        self.repairs.files.iter().map(|(file, damaged)| DamagedFile {
            file: *file,
            error: damaged.error.clone(),
            state: damaged.state(),
            failure: damaged.failure.clone(),
        })
    }

    /// What the first damaged file's reader met.
    pub(super) fn first_damage(&self) -> Option<&Error> {
        self.repairs.files.values().next().map(|damaged| &damaged.error)
    }

    /// Tells whoever runs the replica.
    pub(super) fn say(&mut self, text: String) {
        self.outputs.push_back(super::Output::Notice(text));
    }

    // ---- noting

    /// Takes what reads on this thread have met.
    pub(super) fn take_damage(&mut self) {
        for (file, error) in self.files.take_damage() {
            self.note_damage(file, error, false);
        }
    }

    /// Notes a file as damaged, once. It is compared with its checksums first, unless it was.
    pub(super) fn note_damage(&mut self, file: FileId, error: Error, is_checked: bool) {
        // Of a file that has left the tree nothing is to be kept but its last readers' view.
        if self.repairs.files.contains_key(&file) || self.meta_of(file).is_none() {
            return;
        }
        self.counters.damaged_files += 1;
        self.say(format!("{file} is damaged: {error}"));
        self.repairs.files.insert(file, Damaged::new(error, is_checked));
    }

    /// As [`Self::note_damage`] of a file whose bytes were found not to have its checksum at this place,
    /// unless it was repaired since.
    pub(super) fn note_damage_at(&mut self, place: &FilePlacement, error: Error) {
        if self.files.get(place.file).is_some_and(|now| *now == *place) {
            self.note_damage(place.file, error, true);
        }
    }

    /// What the tree, or an edit on its way there, says of a file.
    pub(super) fn meta_of(&self, file: FileId) -> Option<Arc<FileMeta>> {
        let live = self.tree.version().files().find(|(_, meta)| meta.id == file);
        // A copy: holding the tree's own would count as a reader of the file.
        let live = live.map(|(_, meta)| Arc::new((**meta).clone()));
        live.or_else(|| self.apply.added(file))
    }

    /// The file as it lies here and what it must be, if it is here.
    fn to_verify(&self, file: FileId) -> Option<VerifyOrder> {
        let (placement, meta) = (self.files.get(file)?, self.meta_of(file)?);
        Some(VerifyOrder { placement, chunk_crcs: meta.chunk_crcs.clone() })
    }

    // ---- rounds

    /// Goes on with repairs that are due.
    pub(super) fn schedule_repairs(&mut self) {
        let now_ms = self.now_ms;
        let due = |(file, damaged): (&FileId, &Damaged)| match damaged.step {
            Step::Waits { until_ms } | Step::Whole { until_ms } | Step::Asked { until_ms, .. }
                if until_ms <= now_ms =>
            {
                Some((*file, damaged.step))
            }
            _ => None,
        };
        let due: Vec<(FileId, Step)> = self.repairs.files.iter().filter_map(due).collect();
        for (file, step) in due {
            match step {
                Step::Whole { .. } => {
                    self.repairs.forget(file);
                    self.resume_jobs(file);
                }
                Step::Asked { of, .. } => {
                    let late = format!("{of} has not answered for {ANSWER_MS_MAX} ms");
                    self.source_failed(file, Error::unavailable(late));
                }
                _ if self.repairs.under_way() < REPAIRS_MAX => self.begin_round(file),
                _ => {}
            }
        }
    }

    fn begin_round(&mut self, file: FileId) {
        let order = self.to_verify(file);
        let sources = self.view.copies_at();
        let Some(damaged) = self.repairs.files.get_mut(&file) else { return };
        if damaged.is_checked {
            (damaged.left, damaged.without, damaged.failure) = (sources.into(), 0, None);
            return self.ask_next(file);
        }
        let Some(order) = order else { return self.repairs.forget(file) };
        damaged.step = Step::Checking;
        self.counters.verified_read_bytes += order.placement.len;
        self.order(Order::Check(file), Work::Verify(order));
    }

    /// Asks the next source of the round that can be reached; after the last there is a pause.
    fn ask_next(&mut self, file: FileId) {
        loop {
            let Some(damaged) = self.repairs.files.get_mut(&file) else { return };
            let Some(of) = damaged.left.pop_front() else { return self.end_round(file) };
            if self.chain.is_connected(of) {
                let until_ms = self.now_ms.saturating_add(ANSWER_MS_MAX);
                (damaged.step, damaged.was_asked) = (Step::Asked { of, until_ms }, true);
                return self.tell(of, &NodeMessage::NeedFile { file });
            }
            damaged.failure = Some(Error::unavailable(format!("{of} cannot be reached")));
        }
    }

    /// No source of the round had it.
    fn end_round(&mut self, file: FileId) {
        let sources = self.view.copies_at().len();
        let now_ms = self.now_ms;
        let Some(damaged) = self.repairs.files.get_mut(&file) else { return };
        let had_none = core::mem::replace(&mut damaged.no_good_copy, damaged.without == sources);
        if sources == 0 {
            damaged.pause_ms = PAUSE_MS_MAX;
        }
        damaged.step = Step::Waits { until_ms: now_ms.saturating_add(damaged.pause_ms) };
        damaged.pause_ms = (damaged.pause_ms * 2).min(PAUSE_MS_MAX);
        if damaged.no_good_copy && !had_none {
            let copies = match sources {
                0 => "reads that need what is damaged fail",
                _ => "no other replica has a whole copy of it",
            };
            self.say(format!("{file} is damaged, and {copies}"));
        }
    }

    /// The source that was asked last, or what came from it, was of no use.
    fn source_failed(&mut self, file: FileId, reason: Error) {
        let Some(damaged) = self.repairs.files.get_mut(&file) else { return };
        damaged.failure = Some(reason);
        self.ask_next(file);
    }

    /// Something failed that the next source would not better.
    fn round_failed(&mut self, file: FileId, reason: Error) {
        let Some(damaged) = self.repairs.files.get_mut(&file) else { return };
        damaged.failure = Some(reason);
        damaged.left.clear();
        self.end_round(file);
    }

    /// The file was compared with its checksums here.
    pub(super) fn check_done(&mut self, file: FileId, result: Result<()>) {
        let until_ms = self.now_ms.saturating_add(PAUSE_MS_MAX);
        let Some(damaged) = self.repairs.files.get_mut(&file) else { return };
        damaged.is_checked = true;
        match result {
            Err(_) => damaged.step = Step::Waits { until_ms: 0 },
            Ok(()) => {
                damaged.step = Step::Whole { until_ms };
                self.say(format!("{file} is what its edit says: it is as whole here as anywhere"));
                // Most likely the error passed. A compaction that meets it again waits until this is forgotten.
                self.resume_jobs(file);
            }
        }
    }

    /// The connection with a member is gone, and with it what it was asked.
    pub(super) fn repairs_lose(&mut self, peer: ReplicaId) {
        let asked =
            self.repairs.files.iter().filter(
                |(_, damaged)| matches!(damaged.step, Step::Asked { of, .. } if of == peer),
            );
        let asked: Vec<FileId> = asked.map(|(file, _)| *file).collect();
        for file in asked {
            self.source_failed(file, Error::unavailable(format!("{peer} was lost")));
        }
    }

    /// What was shipped here and had no durable place is void.
    pub(super) fn repairs_lose_arriving(&mut self) {
        let arriving = self.repairs.files.iter().filter(|(_, it)| it.step == Step::Arriving);
        let arriving: Vec<FileId> = arriving.map(|(file, _)| *file).collect();
        for file in arriving {
            self.round_failed(file, Error::unavailable("the session with the primary ended"));
        }
    }

    // ---- the source's side

    /// The primary's copy of a file is damaged, and it wants to know where a whole one lies. Before that is
    /// said, it is compared with its checksums.
    pub(super) fn handle_copy_wanted(&mut self, file: FileId) {
        let order = self.to_verify(file).filter(|_| !self.repairs.is_damaged(file));
        let Some(order) = order else {
            let head = self.view.writer();
            return self.tell(head, &NodeMessage::NoCopy { file });
        };
        self.counters.verified_read_bytes += order.placement.len;
        self.order(Order::CheckForHead(order.placement.clone()), Work::Verify(order));
    }

    pub(super) fn copy_checked(&mut self, checked: &FilePlacement, result: Result<()>) {
        let file = checked.file;
        let head = self.view.writer();
        let (placement, meta) = (self.files.get(file), self.meta_of(file));
        match (result, placement, meta) {
            (Ok(()), Some(placement), Some(meta)) => {
                let file = ShippedFile {
                    file,
                    term: placement.term,
                    len: placement.len,
                    checksum: placement.checksum,
                    chunk_crcs: meta.chunk_crcs.clone(),
                    slots: placement.slots.clone(),
                };
                self.tell(head, &NodeMessage::CopyAt { session: self.state.session, file });
            }
            (result, ..) => {
                if let Err(error) = result {
                    self.note_damage_at(checked, error);
                }
                self.tell(head, &NodeMessage::NoCopy { file });
            }
        }
    }

    // ---- the repairing side

    /// A member has no whole copy.
    pub(super) fn handle_no_copy(&mut self, from: ReplicaId, file: FileId) {
        let Some(damaged) = self.repairs.files.get_mut(&file) else {
            return self.ask_later(file);
        };
        if matches!(damaged.step, Step::Asked { of, .. } if of == from) {
            damaged.without += 1;
            self.ask_next(file);
        }
    }

    /// A secondary has a whole copy, in these slots of its pool: it is read there, whoever writes there by
    /// the time that it is: bytes with another checksum do not count.
    pub(super) fn handle_copy_at(&mut self, from: ReplicaId, session: u64, copy: ShippedFile) {
        let file = copy.file;
        let is_asked =
            self.repairs.files.get(&file).is_some_and(
                |damaged| matches!(damaged.step, Step::Asked { of, .. } if of == from),
            );
        if !is_asked {
            return;
        }
        let Some(meta) = self.meta_of(file) else { return self.repairs.forget(file) };
        let Some(geometry) = self.remote_geometry(from, session) else {
            let reason = format!("{from} has a whole copy and is not connected to for files");
            return self.source_failed(file, Error::unavailable(reason));
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
        self.repairs.arrives(file);
        self.order(Order::Fetch { from, session, file }, Work::Fetch(Box::new(order)));
    }

    /// What lies in a secondary's slots was read, or could not be.
    pub(super) fn fetch_done(
        &mut self,
        (from, session): (ReplicaId, u64),
        file: FileId,
        result: Result<Fetched>,
    ) {
        if let Err(reason) = &result {
            self.lose_remote(from, session, reason.clone());
        }
        if !self.repairs.is_arriving(file) {
            return;
        }
        let Some(meta) = self.meta_of(file) else { return self.repairs.forget(file) };
        let bytes = match result {
            Ok(Fetched::Whole(bytes)) => bytes,
            Ok(Fetched::Other(reason)) | Err(reason) => return self.source_failed(file, reason),
        };
        self.counters.received_bytes += bytes.len() as u64;
        let wanted = meta.rounded_len().div_ceil(gabion_base::units::SLOT_LEN) as u32;
        let slots = match self.pool.allocate(wanted) {
            Ok(slots) => slots,
            Err(reason) => return self.round_failed(file, reason),
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
        self.order(Order::Rewrite(placement), Work::Rewrite(order));
    }

    /// The whole file is in new slots and flushed, or could not be written.
    pub(super) fn rewrite_done(&mut self, placement: &FilePlacement, result: Result<()>) {
        let file = placement.file;
        let is_wanted = self.repairs.is_arriving(file);
        match result {
            Ok(()) if is_wanted => return self.replace_damaged(placement.clone()),
            Err(error) if error.kind() != ErrorKind::NoSpace => {
                // A flush after one that failed proves nothing (docs/faults.md E8).
                return self.fatal(error.within(format!("{file}, to be repaired")));
            }
            Err(reason) => self.round_failed(file, reason),
            Ok(()) => {}
        }
        if let Err(error) = self.pool.release(&placement.slots) {
            self.fatal(error);
        }
    }

    /// Swaps the place of a damaged file for one that holds it whole.
    pub(super) fn replace_damaged(&mut self, placement: FilePlacement) {
        let file = placement.file;
        if let Err(error) = self.pool.replace_file(placement) {
            return self.fatal(error);
        }
        if let Some(damaged) = self.repairs.files.get_mut(&file) {
            damaged.step = Step::Placing;
        }
        self.commits.staged.push(After::FileRepaired(file));
    }

    /// The swap is durable: reads go to the new place from here on.
    pub(super) fn file_repaired(&mut self, file: FileId) {
        if self.duties().receive {
            // Even if an edit removed it meanwhile: else the primary keeps its bytes for us, and begins no jobs at
            // last.
            let head = self.view.writer();
            self.tell(head, &NodeMessage::Have { file });
        }
        let Some(placement) = self.pool.placement(file) else { return };
        if self.files.get(file).is_none() {
            return;
        }
        // Reads of the old place may have said what they met there since the last turn.
        self.take_damage();
        self.files.insert(placement);
        // What is cached was checked and is the same. What an open reader holds may have been hit, too.
        self.outputs.push_back(super::Output::FilesGone(alloc::vec![file]));
        self.counters.repaired_files += 1;
        self.repairs.forget(file);
        self.say(format!("{file} is repaired: another replica had it whole"));
        self.resume_jobs(file);
    }
}

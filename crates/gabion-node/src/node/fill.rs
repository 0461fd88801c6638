//! A full copy of the group's state, at the member that is being filled (Tebis §3.5 rebuilds an
//! index; here the files come as they are). The head's side is [`super::copies`].
//!
//! ```text
//!   the log here cannot be followed ─► asks the head ─► it offers a state
//!     ─► mark "being filled" ─► durable ─► opened anew: no tree, no log, all files unnamed
//!     ┌────────────────────────────────────────────────────────────┘
//!     ▼                        ┌─ it lies here ─► read, compared ─┬─► whole ─────────────┐
//!   asks again ─► state ─► for each file                 rotten: dropped                 │
//!     ▲                        └─ else ─► NeedFile ◄──────────────┘                      │
//!     │                             shipped into granted slots, placed ─► Have ──────────┤
//!     │ the connection is lost, or nothing moves for 10 s:                               ▼
//!     └ another state, with what is here       all are here ─► the head confirms that it holds
//!                                              the log ─► one checkpoint ─► opened anew ─► log
//! ```
//!
//! Files keep their numbers for ever, so a file that lies here from before is the file of the state
//! if its bytes have the checksums of the description. All others are dropped once the state is
//! known. A file that arrives is kept by the commit that places it, so a copy that is cut short
//! goes on with those that are there.
//!
//! Invariants: a file of the old tree loses its slots only once the mark is durable; a file counts
//! only once its bytes were compared; the state is installed by one commit or not at all.

use super::effects::{Effects, Signal};
use super::facts::Facts;
use super::orders::Order;
use super::planted::Mutant;
use crate::copied::CopiedState;
use crate::message::{NodeMessage, STATE_LEN_MAX, ShippedFile};
use crate::work::{VerifyOrder, Work};
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;
use gabion_base::units::SLOT_LEN;
use gabion_base::{Error, FileId, FileKind, Frontier, ReplicaId, Result, Term};
use gabion_engine::FileMeta;
use gabion_pool::{FilePlacement, Pool};

/// Files that are read here and compared, at a time.
const CHECKS_MAX: usize = 2;
/// Files that the head was asked for and that have not come: two are read there while two are on
/// their way. More would keep memory there for which compactions wait.
const ASKED_MAX: usize = 4;
/// Fetches are held back until the group's log has not grown for so long.
const QUIET_MS: u64 = 500;
/// How long an answer about the state is waited for before the head is asked again.
const ASK_AGAIN_MS: u64 = 1_000;
/// How often the head hears that its state is still needed.
const STILL_NEEDED_MS: u64 = 2_000;
/// A copy that has not moved for so long begins anew; so does the head's side.
pub(super) const STILL_MS_MAX: u64 = 10_000;
/// After so many answers in a row that a file is not whole at the head another state is asked for:
/// its files may be others.
const NO_COPIES_MAX: u32 = 10;

/// The progress of a full copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FillStep {
    /// Nothing is to be copied: the log is followed.
    #[default]
    FollowingLog,
    /// The head was asked for a state.
    Asking,
    /// Files are compared and fetched.
    Copying,
    /// All files are here, and the state is about to be installed.
    Installing,
}

impl FillStep {
    /// The step as words for messages and JSON.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::FollowingLog => "following the log",
            Self::Asking => "asking for a state",
            Self::Copying => "copying files",
            Self::Installing => "installing the state",
        }
    }
}

/// How far a member is that is being filled. The counts are of the state that is being copied, and
/// zero before one is known and after it is installed.
#[derive(Clone, Debug, Default)]
pub struct FillStatus {
    /// Its present work.
    pub step: FillStep,
    /// Files of the state.
    pub files: u64,
    /// Of these, files that are here and were compared.
    pub files_done: u64,
    /// Bytes of the files.
    pub bytes: u64,
    /// Of these, bytes that are here.
    pub bytes_done: u64,
    /// Of these, bytes that were here before this copy, or an earlier try of it.
    pub bytes_reused: u64,
    /// Bytes that were fetched in a second, over the time since the state was known.
    pub bytes_per_s: u64,
    /// Why the last try failed, if one did.
    pub failure: Option<Error>,
}

impl FillStatus {
    /// Seconds until all bytes are here, at the present rate; none where that is not known.
    #[must_use]
    pub const fn full_in_s(&self) -> Option<u64> {
        if self.bytes == 0 || self.bytes_per_s == 0 {
            return None;
        }
        Some(self.bytes.saturating_sub(self.bytes_done).div_ceil(self.bytes_per_s))
    }
}

/// An order of the machine to the node, which has what it takes.
pub(super) enum FillWish {
    /// Make the mark durable that says that this replica is being filled.
    Mark,
    /// Grant slots to the head, which makes itself known by this term.
    Serve(Term),
    /// Install the state.
    Install(CopiedState),
}

#[derive(Default)]
enum Step {
    #[default]
    Idle,
    /// For the next part of the state, or its offer.
    Asking,
    /// The head offers a state, and the mark is to be made.
    Offered,
    Copying,
    /// All files are here. The head says whether it holds the log.
    Confirming,
    Installing,
}

/// The copy under way.
#[derive(Default)]
pub(super) struct Fill {
    step: Step,
    /// This member's number for the state; below it lie those of earlier tries and lives.
    number: u64,
    /// When the head is asked, or hears that the state is needed.
    ask_ms: u64,
    /// When anything last moved.
    moved_ms: u64,
    /// The state's bytes as far as they are here, and how many there will be.
    received: Vec<u8>,
    total: u64,
    state: Option<CopiedState>,
    files: BTreeMap<FileId, Arc<FileMeta>>,
    to_check: VecDeque<FileId>,
    checking: BTreeSet<FileId>,
    missing: VecDeque<FileId>,
    /// Nothing is asked for before.
    fetch_ms: u64,
    asked: BTreeSet<FileId>,
    no_copies: u32,
    /// Files that were compared in this process, of this state or an earlier one.
    whole: BTreeSet<FileId>,
    budget: Budget,
    traffic: Traffic,
    begun_ms: u64,
    now_ms: u64,
    bytes: u64,
    bytes_done: u64,
    bytes_reused: u64,
    bytes_fetched: u64,
    files_done: u64,
    failure: Option<Error>,
}

/// A token bucket that fills with time, up to what a quarter of a second brings. A file is fetched
/// whole, so it may fall below zero.
#[derive(Default)]
struct Budget {
    bytes: i64,
    at_ms: u64,
}

impl Budget {
    /// Whether a file may be fetched now.
    fn has_some(&mut self, bytes_per_s: u64, now_ms: u64) -> bool {
        if bytes_per_s == 0 {
            return true;
        }
        let (rate, passed) = (i128::from(bytes_per_s), now_ms.saturating_sub(self.at_ms));
        let most = (rate / 4).max(1);
        let filled = i128::from(self.bytes) + rate * i128::from(passed) / 1_000;
        // Time that brought nothing yet counts for the next look.
        if filled != i128::from(self.bytes) || passed >= 1_000 {
            self.at_ms = now_ms;
        }
        self.bytes = filled.min(most) as i64;
        self.bytes > 0
    }

    const fn spend(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_sub_unsigned(bytes);
    }
}

/// Whether clients write, as far as a member knows that has no log yet.
#[derive(Default)]
struct Traffic {
    /// As far as everything is committed, and when that was seen first.
    commit: Frontier,
    grown_ms: u64,
}

impl Traffic {
    /// The writer said that everything is committed up to there.
    fn hear(&mut self, commit: Frontier, now_ms: u64) {
        if commit != self.commit {
            (self.commit, self.grown_ms) = (commit, now_ms);
        }
    }

    const fn is_quiet(&self, now_ms: u64) -> bool {
        now_ms.saturating_sub(self.grown_ms) >= QUIET_MS
    }
}

impl Fill {
    // ---- questions

    /// Whether a copy is wanted or under way.
    pub(super) const fn is_begun(&self) -> bool {
        !matches!(self.step, Step::Idle)
    }

    /// Whether slots are granted for files of a state.
    pub(super) const fn takes_files(&self) -> bool {
        matches!(self.step, Step::Copying | Step::Confirming)
    }

    /// As [`super::Node::fill_status`].
    pub(super) fn status(&self) -> FillStatus {
        let step = match self.step {
            Step::Idle => FillStep::FollowingLog,
            Step::Asking | Step::Offered => FillStep::Asking,
            Step::Copying => FillStep::Copying,
            Step::Confirming | Step::Installing => FillStep::Installing,
        };
        let took_ms = self.now_ms.saturating_sub(self.begun_ms).max(1);
        let bytes_per_s = u128::from(self.bytes_fetched) * 1_000 / u128::from(took_ms);
        FillStatus {
            step,
            files: self.files.len() as u64,
            files_done: self.files_done,
            bytes: self.bytes,
            bytes_done: self.bytes_done,
            bytes_reused: self.bytes_reused,
            bytes_per_s: u64::try_from(bytes_per_s).unwrap_or(u64::MAX),
            failure: self.failure.clone(),
        }
    }

    /// Checks what holds between steps: each file of the state is in one place.
    pub(super) fn invariants(&self) {
        assert!(self.checking.len() <= CHECKS_MAX, "too much is compared at a time");
        assert!(self.asked.len() <= ASKED_MAX, "too many files are on their way");
        assert!(self.bytes_done <= self.bytes, "more than all is here");
        if self.takes_files() {
            let open = self.to_check.len() + self.checking.len();
            let all = open + self.missing.len() + self.asked.len() + self.files_done as usize;
            assert_eq!(all, self.files.len(), "a file of the state is in no place, or in two");
        }
    }

    // ---- begin and end

    /// The log here cannot be followed, or the mark says that a copy was begun.
    pub(super) fn begin(&mut self, facts: &Facts) {
        if !self.is_begun() {
            self.number = self.number.max(facts.state.incarnation << 20);
            self.restart(facts.now_ms);
        }
    }

    /// Nothing is to be copied any more: the log can be followed, or the view has other duties.
    pub(super) fn give_up(&mut self) {
        *self = Self { number: self.number, ..Self::default() };
    }

    /// Begins anew with another state, and with the files that are here.
    fn restart(&mut self, now_ms: u64) {
        let whole = core::mem::take(&mut self.whole);
        let (number, failure) = (self.number + 1, self.failure.take());
        let (ask_ms, moved_ms, step) = (now_ms, now_ms, Step::Asking);
        let traffic = Traffic { grown_ms: now_ms, ..Traffic::default() };
        let next = Self { step, number, ask_ms, moved_ms, now_ms, ..Self::default() };
        *self = Self { whole, failure, traffic, ..next };
    }

    /// As [`Self::restart`] after a pause, for a reason that the next try may meet again.
    fn fail(&mut self, effects: &mut Effects, now_ms: u64, error: Error) {
        effects.notice(format!("the copy of the group's state begins anew: {error}"));
        self.failure = Some(error);
        self.restart(now_ms);
        self.ask_ms = now_ms.saturating_add(ASK_AGAIN_MS);
    }

    /// The connection with the head is gone, and with it the state that it held.
    pub(super) fn lose(&mut self, now_ms: u64) {
        if self.is_begun() && !matches!(self.step, Step::Installing) {
            self.restart(now_ms);
        }
    }

    // ---- the state

    /// The head sent a part of a state. Returns an order, if one follows.
    pub(super) fn part_came(
        &mut self,
        facts: &Facts,
        effects: &mut Effects,
        pool: &Pool,
        (number, total, at): (u64, u64, u64),
        bytes: &[u8],
    ) -> Option<FillWish> {
        if number != self.number {
            return None;
        }
        match self.step {
            Step::Asking if total > 0 && !facts.state.is_being_filled() => {
                self.step = Step::Offered;
                None
            }
            Step::Asking if total > 0 => self.take_part(facts, effects, pool, (total, at), bytes),
            Step::Asking | Step::Copying | Step::Confirming if total == 0 => {
                let error = Error::unavailable("the head holds the state no longer");
                self.fail(effects, facts.now_ms, error);
                None
            }
            Step::Confirming => {
                self.step = Step::Installing;
                self.state.take().map(FillWish::Install)
            }
            _ => None,
        }
    }

    fn take_part(
        &mut self,
        facts: &Facts,
        effects: &mut Effects,
        pool: &Pool,
        (total, at): (u64, u64),
        bytes: &[u8],
    ) -> Option<FillWish> {
        assert!(total <= STATE_LEN_MAX, "a state of {total} bytes was decoded");
        if at != self.received.len() as u64 || bytes.is_empty() {
            return None; // it was asked for twice
        }
        self.total = total;
        self.received.extend_from_slice(bytes);
        self.moved_ms = facts.now_ms;
        if (self.received.len() as u64) < total {
            self.ask(facts, effects);
            return None;
        }
        let received = core::mem::take(&mut self.received);
        match self.know(facts, effects, pool, &received) {
            Ok(term) => Some(FillWish::Serve(term)),
            Err(error) => {
                self.fail(effects, facts.now_ms, error);
                None
            }
        }
    }

    /// The whole state is here: sorts its files, and drops all others.
    fn know(
        &mut self,
        facts: &Facts,
        effects: &mut Effects,
        pool: &Pool,
        bytes: &[u8],
    ) -> Result<Term> {
        let state = CopiedState::decode(bytes)?;
        let tree = state.open_tree(&facts.config.tree, facts.config.group)?;
        let files = tree.version().described().map(|meta| (meta.id, Arc::new((**meta).clone())));
        self.files = files.collect();
        let slots = |meta: &Arc<FileMeta>| meta.rounded_len().div_ceil(SLOT_LEN);
        let (wanted, total) = (self.files.values().map(slots).sum::<u64>(), pool.counts().total);
        if wanted > u64::from(total) {
            return Err(Error::no_space(format!(
                "the state takes {wanted} slots of 2 MiB, the pool here has {total}"
            )));
        }
        self.bytes = self.files.values().map(|meta| meta.rounded_len()).sum();
        self.whole.retain(|file| self.files.contains_key(file));
        for file in facts.files.unnamed() {
            if !self.files.contains_key(&file) {
                effects.signal(Signal::Orphan(file));
            }
        }
        let (here, rest): (Vec<_>, Vec<_>) =
            self.files.keys().copied().partition(|file| self.whole.contains(file));
        for file in rest {
            match facts.place(file) {
                Some(_) => self.to_check.push_back(file),
                None => self.missing.push_back(file),
            }
        }
        self.step = Step::Copying;
        (self.begun_ms, self.ask_ms) = (facts.now_ms, facts.now_ms.saturating_add(STILL_NEEDED_MS));
        self.budget.at_ms = facts.now_ms;
        here.into_iter().for_each(|file| self.is_here(effects, facts, file, true));
        let term = state.term;
        self.state = Some(state);
        Ok(term)
    }

    /// Asks the head for the next part of the state, or says that it is needed.
    fn ask(&mut self, facts: &Facts, effects: &mut Effects) {
        let (number, pause_ms) = (
            self.number,
            match self.step {
                Step::Copying => STILL_NEEDED_MS,
                _ => ASK_AGAIN_MS,
            },
        );
        let at = if self.takes_files() { self.total } else { self.received.len() as u64 };
        self.ask_ms = facts.now_ms.saturating_add(pause_ms);
        effects.tell_member(facts.writer(), NodeMessage::WantState { number, at });
    }

    // ---- files

    /// Goes on with what is due. Returns an order, if one follows.
    pub(super) fn schedule(
        &mut self,
        facts: &Facts,
        effects: &mut Effects,
        pool: &Pool,
    ) -> Option<FillWish> {
        self.now_ms = facts.now_ms;
        self.traffic.hear(facts.protocol.heard_commit(), facts.now_ms);
        match self.step {
            Step::Idle | Step::Installing => return None,
            Step::Offered => return Some(FillWish::Mark),
            Step::Asking => {}
            Step::Copying | Step::Confirming => {
                self.check_next(facts, effects);
                self.fetch_next(facts, effects, pool);
                self.look_for_end(facts);
            }
        }
        let is_still = facts.now_ms.saturating_sub(self.moved_ms) >= STILL_MS_MAX;
        let waits = !self.asked.is_empty() || !self.received.is_empty();
        if is_still && waits && self.checking.is_empty() {
            let error = format!("nothing has come from the head for {STILL_MS_MAX} ms");
            self.fail(effects, facts.now_ms, Error::unavailable(error));
        }
        if self.ask_ms <= facts.now_ms && facts.can_reach(facts.writer()) {
            self.ask(facts, effects);
        }
        None
    }

    fn check_next(&mut self, facts: &Facts, effects: &mut Effects) {
        while self.checking.len() < CHECKS_MAX {
            let Some(file) = self.to_check.pop_front() else { return };
            let Some(meta) = self.files.get(&file).cloned() else { continue };
            let placement = facts.place(file).filter(|placement| is_of(placement, &meta));
            match placement {
                Some(_) if facts.has(Mutant::FilledWithoutCheck) => {
                    self.is_here(effects, facts, file, true);
                }
                Some(placement) => {
                    self.checking.insert(file);
                    let chunk_crcs = meta.chunk_crcs.clone();
                    let order = VerifyOrder { placement: placement.clone(), chunk_crcs };
                    effects.begin(Order::CheckForFill(placement), Work::Verify(order));
                }
                None => self.is_other(facts, effects, file),
            }
        }
    }

    /// A file that lay here was compared with the checksums of the state.
    pub(super) fn checked(
        &mut self,
        facts: &Facts,
        effects: &mut Effects,
        file: FileId,
        result: Result<()>,
    ) {
        self.moved_ms = facts.now_ms;
        // The state may be another by now.
        if !self.checking.remove(&file) {
            return;
        }
        match result {
            Ok(()) => self.is_here(effects, facts, file, true),
            Err(error) => {
                effects.notice(format!("{file} lay here and is fetched: {error}"));
                self.is_other(facts, effects, file);
            }
        }
    }

    /// The file that lies here is not that of the state: it goes, and that one is fetched.
    fn is_other(&mut self, facts: &Facts, effects: &mut Effects, file: FileId) {
        if facts.files.is_unnamed(file) {
            effects.signal(Signal::Orphan(file));
        }
        self.missing.push_back(file);
    }

    /// A file of the state is here, as its description says.
    fn is_here(&mut self, effects: &mut Effects, facts: &Facts, file: FileId, is_reused: bool) {
        let Some(meta) = self.files.get(&file) else { return };
        let len = meta.rounded_len();
        self.whole.insert(file);
        (self.files_done, self.bytes_done) = (self.files_done + 1, self.bytes_done + len);
        if is_reused {
            self.bytes_reused += len;
            // The head need not keep it for us. (It hears of one that it shipped in any case.)
            effects.tell_member(facts.writer(), NodeMessage::Have { file });
        } else {
            self.bytes_fetched += len;
        }
    }

    fn fetch_next(&mut self, facts: &Facts, effects: &mut Effects, pool: &Pool) {
        let now_ms = facts.now_ms;
        // Nobody is to be spared where nobody writes. Reads are answered by a member that has no
        // part in a copy.
        let rate = match self.traffic.is_quiet(now_ms) {
            true => 0,
            false => facts.options.rebuild_bytes_per_s,
        };
        if !facts.can_reach(facts.writer()) || now_ms < self.fetch_ms {
            return;
        }
        // One that lay here has to be gone, durably.
        let mut tries = self.missing.len();
        while tries > 0 && self.asked.len() < ASKED_MAX && self.budget.has_some(rate, now_ms) {
            tries -= 1;
            let Some(file) = self.missing.pop_front() else { return };
            let Some(meta) = self.files.get(&file).filter(|_| pool.placement(file).is_none())
            else {
                self.missing.push_back(file);
                continue;
            };
            if self.asked.is_empty() {
                self.moved_ms = now_ms;
            }
            // Fetches that are not held back leave no debt.
            if rate > 0 {
                self.budget.spend(meta.rounded_len());
            }
            self.asked.insert(file);
            effects.tell_member(facts.writer(), NodeMessage::NeedFile { file });
        }
    }

    fn look_for_end(&mut self, facts: &Facts) {
        let is_all = self.files_done as usize == self.files.len();
        if is_all && matches!(self.step, Step::Copying) {
            // The log must go on from the state's end, and only the head knows whether it does.
            (self.step, self.ask_ms) = (Step::Confirming, facts.now_ms);
        }
    }

    /// Checks the description that a file comes with against that of the state.
    ///
    /// # Errors
    /// Corruption that names both.
    pub(super) fn check_shipped(&self, shipped: &ShippedFile) -> Result<()> {
        let Some(meta) = self.files.get(&shipped.file) else { return Ok(()) };
        let of_state = (meta.rounded_len(), meta.checksum, &meta.chunk_crcs);
        if (shipped.len, shipped.checksum, &shipped.chunk_crcs) == of_state {
            return Ok(());
        }
        Err(Error::corruption(format!(
            "{} comes with {} bytes and checksum {:08x}, the state has {} and {:08x}",
            shipped.file, shipped.len, shipped.checksum, of_state.0, of_state.1
        )))
    }

    /// A file that was shipped here has its place, durably.
    pub(super) fn placed(&mut self, facts: &Facts, effects: &mut Effects, file: FileId) {
        if !self.takes_files() {
            return; // the next state says whether it has it
        }
        self.moved_ms = facts.now_ms;
        let Some(meta) = self.files.get(&file).cloned() else {
            return effects.signal(Signal::Orphan(file));
        };
        let was_missing = !self.asked.remove(&file) && {
            // It was given up, and came all the same.
            let before = self.missing.len();
            self.missing.retain(|missing| *missing != file);
            self.missing.len() == before
        };
        if was_missing {
            return; // it is here already
        }
        self.no_copies = 0;
        match facts.place(file).is_some_and(|placement| is_of(&placement, &meta)) {
            true => self.is_here(effects, facts, file, false),
            false => self.is_other(facts, effects, file),
        }
    }

    /// The head has no whole copy of a file, as yet.
    pub(super) fn no_copy(&mut self, facts: &Facts, effects: &mut Effects, file: FileId) {
        if !self.asked.remove(&file) {
            return;
        }
        self.missing.push_back(file);
        self.no_copies += 1;
        self.fetch_ms = facts.now_ms.saturating_add(ASK_AGAIN_MS);
        if self.no_copies >= NO_COPIES_MAX {
            let error = Error::not_found(format!("the head has no whole copy of {file}"));
            self.fail(effects, facts.now_ms, error);
        }
    }

    /// The member that is asked for a state and files.
    pub(super) fn is_source(facts: &Facts, peer: ReplicaId) -> bool {
        peer == facts.writer()
    }
}

/// Whether what lies somewhere may have been written as the file of this description. The place of
/// a segment that was logged here tells no checksum: it was made before its bytes came.
fn is_of(placement: &FilePlacement, meta: &FileMeta) -> bool {
    let is_segment = meta.id.kind == FileKind::LogSegment;
    let is_same = is_segment || placement.checksum == meta.checksum;
    is_same && placement.len == meta.rounded_len()
}

#[cfg(test)]
mod tests;

//! Room for files and for the log. A put is refused while enough slots are still free to flush what is in
//! memory, to compact the tree and to let the log grow until it is trimmed: deletes, which need that, go on
//! and give back what they delete (docs/faults.md E10: the reserve that keeps a full pool from
//! deadlocking).
//!
//! ```text
//!   slots:  [ live files ··· | log ··· | files of no edit yet | free ······· ]
//!                                       └────── available ────────────────┘
//!   for_jobs: unflushed memory + one flush as it may turn out + the smallest compaction of any level
//!   for_log:  segments until the log has as many as it may
//!   short:  available < for_jobs + for_log ─► levels are compacted below their aims, MemTables sealed early;
//!           with nothing left to do: puts are refused, deletes and FLUSHALL are not
//! ```
//!
//! Nobody waits for what does not come: where something lags behind, room is short and no job has been under way for
//! [`STUCK_MS`], as for want of slots that readers keep, whoever waits is refused with that reason
//! ([`Node::jobs_pause`]). Range deletes and FLUSHALL are taken then all the same, as they give back whole files.
//!
//! Members hold the same files and not the same slots: an edit that is applied later keeps what it removes, and
//! granted slots are no use to the log. So each member tells the head how much room it has, and the head acts
//! on the least: no job begins whose files might not fit everywhere, no slot is granted that the log may need.

use super::Node;
use crate::message::{NodeMessage, Spare};
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use gabion_base::units::SLOT_LEN;
use gabion_base::{Error, ReplicaId, Result};

/// How often a MemTable that is not full is sealed while room is short, in ms: what is deleted bit by bit
/// is to be given back soon, not in a file each.
const SEAL_EVERY_MS: u64 = 1_000;
/// After so long without another delete, in ms, those of a MemTable are looked at: whoever deletes a range key by key does
/// not pause for that.
const DELETES_REST_MS: u64 = 1_000;
/// Slots that each MemTable's files may leave half empty.
const PARTIAL_SLOTS: u64 = 2;
/// The log takes this part of the pool at most, unless that is less than its least.
const LOG_PART: u64 = 8;
/// Fewest segments that a log may have: one for what is sealed, flushed and trimmed in turns, and what the gate
/// leaves to seals and edits.
const LOG_SEGMENTS_MIN: u64 = 3;
/// Segments that are left to seals and edits while writes wait for the log to be trimmed.
const LOG_SEGMENTS_KEPT: u64 = 2;
/// Terms in the log from which on a MemTable is sealed, however little is in it: each start of a head is one, and a store
/// that is opened for a put each minute would have more of them than the chain takes (16,384) before its log is long.
const SPANS_BEFORE_SEAL: usize = 256;
/// Jobs that have not moved for so long, in ms, make no room.
const STUCK_MS: u64 = 5_000;

/// What is known of the room, since the last turn.
#[derive(Default)]
pub(super) struct Room {
    /// Slots that the version which an edit left may need for its next jobs, and that edit.
    for_jobs: Option<(u64, u64)>,
    /// What other members said last, on connections that are there.
    members: BTreeMap<ReplicaId, Spare>,
    /// What the head was told last.
    told: Option<Spare>,
    /// The member that is most short of room, while one is.
    short: Option<(ReplicaId, Spare)>,
    /// When a MemTable was sealed for the sake of room; never in this process, at first.
    sealed_ms: Option<u64>,
    /// How many keys are deleted in the MemTable that is being filled, since when, and whether that was looked at.
    deletes: (u64, u64, bool),
    /// Since when deletes have waited for room with no job under way.
    stuck_since_ms: Option<u64>,
    /// What jobs had done, and since when it has not been more.
    progress: (u64, u64),
}

impl Spare {
    fn kept(&self) -> u64 {
        u64::from(self.for_jobs) + u64::from(self.for_log)
    }

    /// Slots above what is kept; below zero when there are too few.
    fn above(&self) -> i64 {
        i64::from(self.available) - self.kept() as i64
    }
}

impl Room {
    pub(super) const fn is_short(&self) -> bool {
        self.short.is_some()
    }

    pub(super) fn heard(&mut self, from: ReplicaId, spare: Spare) {
        self.members.insert(from, spare);
    }

    /// Jobs need more slots than was reckoned, or fewer.
    pub(super) fn forget_jobs(&mut self) {
        self.for_jobs = None;
    }

    /// What was told of this replica's room is told again.
    pub(super) fn forget_told(&mut self) {
        self.told = None;
    }

    /// The connection with a member is gone, and with it what was said on it.
    pub(super) fn forget(&mut self, peer: ReplicaId) {
        self.members.remove(&peer);
        self.told = None;
    }
}

impl Node {
    /// Judges how much room there is, once a turn.
    pub(super) fn judge_room(&mut self) {
        let mine = self.spare();
        self.tell_room(mine);
        let all = self.room.members.iter().map(|(member, spare)| (*member, *spare));
        let all = all.chain([(self.me, mine)]);
        let least = all.min_by_key(|(_, spare)| spare.above());
        self.room.short = least.filter(|(_, spare)| self.duties().compact && spare.above() < 0);
        self.note_progress();
        self.note_stuck();
        self.seal_for_room();
        self.seal_for_readers();
    }

    fn spare(&mut self) -> Spare {
        let edit = self.tree.last_edit();
        let for_jobs = match self.room.for_jobs {
            Some((of, slots)) if of == edit => slots,
            _ => self.tree.slots_needed(),
        };
        self.room.for_jobs = Some((edit, for_jobs));
        let (memory, tables) = self.tree.unflushed();
        let for_jobs = for_jobs + memory.div_ceil(SLOT_LEN) + PARTIAL_SLOTS * tables;
        let counts = self.pool.counts();
        let log = self.drain.segments.len() as u64 * self.segment_slots();
        let (total, lost) = (counts.total, counts.retired + counts.quarantined);
        let taken = u64::from(lost) + log + self.tree.version().slots();
        let slots = |slots: u64| u32::try_from(slots).unwrap_or(u32::MAX);
        Spare {
            total,
            available: slots(u64::from(total).saturating_sub(taken)),
            for_jobs: slots(for_jobs),
            for_log: slots(self.slots_for_log()),
        }
    }

    /// Tells the head, when there is something new.
    fn tell_room(&mut self, mine: Spare) {
        let head = self.view.writer();
        let can_hear =
            !self.duties().append && self.chain.is_joined() && self.chain.is_connected(head);
        if !can_hear || self.room.told == Some(mine) {
            return;
        }
        self.room.told = Some(mine);
        self.tell(head, &NodeMessage::Room(mine));
    }

    // ---- the log

    const fn segment_slots(&self) -> u64 {
        self.config.segment_len.div_ceil(SLOT_LEN)
    }

    /// Most segments that the log is to have.
    fn log_segments_max(&self) -> u64 {
        let (segment_len, memtable_len) =
            (self.config.segment_len, self.tree.config().memtable_len);
        // The active MemTable, those that wait, and as much again on its way to being trimmed.
        let tables = 2 * (self.options.sealed_max as u64 + 1);
        let usual = (tables * memtable_len).div_ceil(segment_len) + LOG_SEGMENTS_KEPT;
        let part = u64::from(self.pool.counts().total) / LOG_PART / self.segment_slots();
        usual.min(part).max(LOG_SEGMENTS_MIN)
    }

    /// Slots that the log may still take before it is trimmed.
    pub(super) fn slots_for_log(&self) -> u64 {
        let more = self.log_segments_max().saturating_sub(self.drain.segments.len() as u64);
        more * self.segment_slots()
    }

    /// Bytes of log that are kept, and how many there may be before writes wait.
    fn log_kept(&self) -> (u64, u64) {
        let kept = self.log.end().get().saturating_sub(self.state.trimmed.position.get());
        (kept, (self.log_segments_max() - LOG_SEGMENTS_KEPT) * self.config.segment_len)
    }

    /// Whether the log has to be trimmed before it may grow.
    pub(super) fn is_log_long(&self) -> bool {
        let (kept, most) = self.log_kept();
        kept >= most
    }

    // ---- what is done about it

    /// Slots that a job may take: as many as all members have, but for the log.
    pub(super) fn slots_for_job(&self) -> u64 {
        let own = u64::from(self.pool.counts().free).saturating_sub(self.slots_for_log());
        if !self.view.has_one_tree() {
            return own;
        }
        let under_way = self.job_slots();
        let of = |member: ReplicaId| match self.room.members.get(&member) {
            Some(spare) => u64::from(spare.available)
                .saturating_sub(u64::from(spare.for_log))
                .saturating_sub(under_way),
            None => 0, // it has not said yet
        };
        let others = self.view.others();
        others.map(of).fold(own, u64::min)
    }

    /// Whether a load may take so many slots more: at every member they are left over beside what flushes,
    /// compactions and the log may need, and what loads have taken already.
    pub(super) fn room_for_load(&mut self, wanted: u64) -> Result<()> {
        let mine = self.spare();
        let others = self.view.others();
        let said = others.map(|member| (member, self.room.members.get(&member).copied()));
        let all = said.chain([(self.me, Some(mine))]);
        let taken = self.loads.slots() as i64;
        for (member, spare) in all {
            let Some(spare) = spare else { continue }; // it is about to say
            let left = (spare.above() - taken).max(0);
            if left < wanted as i64 {
                return Err(Error::no_space(format!(
                    "{} has {left} slots left for a load, {wanted} are wanted",
                    self.pool_of(member)
                )));
            }
        }
        Ok(())
    }

    /// Seals a MemTable that is not full: so that the deletes in it take effect, or so that the log, which
    /// may hold little of much length (padding of durable records, records of time), can be trimmed.
    fn seal_for_room(&mut self) {
        if !self.duties().append || self.is_in_turn() {
            return;
        }
        let (_, most) = self.log_kept();
        let sealed =
            self.apply.seals.back().map_or(self.state.trimmed.position, |(seal, _)| seal.position);
        let since_seal = self.log.end().get().saturating_sub(sealed.get());
        // At once in each process: one that ends before the pause is over would add a term to the
        // log and take none off.
        let is_due = self
            .room
            .sealed_ms
            .is_none_or(|sealed_ms| self.now_ms.saturating_sub(sealed_ms) >= SEAL_EVERY_MS);
        let gives_back = self.room.is_short() && !self.makes_room() && !self.tree.active_is_empty();
        // Of an empty MemTable too: records that only carry time fill none.
        let has_spans = self.log.spans().len() >= SPANS_BEFORE_SEAL && since_seal > 0;
        // Writes wait once the log is as long as that, so this waits for no pause: a synced write of a few bytes takes a block.
        let is_long = since_seal >= most / 2;
        if (is_long || (is_due && (gives_back || has_spans))) && self.not_writing().is_none() {
            self.room.sealed_ms = Some(self.now_ms);
            self.append_seal();
        }
    }

    /// Seals a MemTable in which deletes have come to rest that readers would pass one by one.
    fn seal_for_readers(&mut self) {
        let deletes = self.tree.active_deletes();
        let (before, since_ms, was_looked_at) = self.room.deletes;
        if deletes != before {
            self.room.deletes = (deletes, self.now_ms, false);
            return;
        }
        let rests = self.now_ms.saturating_sub(since_ms) >= DELETES_REST_MS;
        let may_seal = self.duties().append && !self.is_in_turn() && self.not_writing().is_none();
        if deletes == 0 || was_looked_at || !rests || !may_seal {
            return;
        }
        self.room.deletes.2 = true;
        if self.tree.has_dense_deletes() {
            self.append_seal();
        }
    }

    /// Whether the head is about to look at deletes that rest in memory, and may seal them.
    #[must_use]
    pub const fn looks_at_deletes(&self) -> bool {
        let (deletes, _, was_looked_at) = self.room.deletes;
        deletes > 0 && !was_looked_at
    }

    fn note_progress(&mut self) {
        let counters = &self.counters;
        let done = self.tree.last_edit() + counters.shipped_files + counters.job_written_bytes;
        let is_idle = self.jobs_running() == 0 && self.apply.waiting_count() == 0;
        if is_idle || done != self.room.progress.0 {
            self.room.progress = (done, self.now_ms);
        }
    }

    fn note_stuck(&mut self) {
        let is_idle = self.jobs_running() == 0 && self.apply.waiting_count() == 0;
        let is_stuck = is_idle && self.room.is_short() && self.lag().is_some();
        self.room.stuck_since_ms =
            is_stuck.then(|| self.room.stuck_since_ms.unwrap_or(self.now_ms));
    }

    /// Whether what deletes wait for lacks slots, which nothing has given back for so long that nobody is to wait for it.
    pub(super) fn waits_in_vain_for_room(&self) -> bool {
        let since_ms = self.room.stuck_since_ms;
        since_ms.is_some_and(|since_ms| self.now_ms.saturating_sub(since_ms) >= STUCK_MS)
    }

    /// Whether something is under way that may end with more room.
    pub(super) fn makes_room(&self) -> bool {
        let moves = self.now_ms.saturating_sub(self.room.progress.1) < STUCK_MS;
        moves && (self.jobs_running() > 0 || self.apply.waiting_count() > 0)
    }

    /// A member's pool in messages: a store alone has one.
    fn pool_of(&self, member: ReplicaId) -> String {
        match self.view.others().count() {
            0 => "the pool".into(),
            _ => format!("the pool of replica {}", member.get()),
        }
    }

    /// Why puts are not taken, while room is short.
    pub(super) fn full(&self) -> Option<String> {
        let (member, spare) = self.room.short?;
        let whose = self.pool_of(member);
        Some(format!(
            "{whose} is full: {} slots of {} are free, {} are kept for flushes, compactions and the log",
            spare.available,
            spare.total,
            spare.kept()
        ))
    }
}

//! Room for files and for the log. A put is refused while enough slots are still free to flush the
//! MemTables, to compact the tree and to let the log grow until it is trimmed. Deletes need those
//! slots: they go on and give back room (docs/faults.md E10: the reserve that keeps a full pool
//! from deadlocking).
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
//! No write waits in vain. Where something lags behind, room is short and no job has been under way
//! for [`STUCK_MS`], as readers keep slots, a waiting write is refused with that reason
//! ([`super::Node::jobs_pause`]). Range deletes and FLUSHALL are taken all the same, as they give
//! back whole files.
//!
//! Members hold the same files but not the same slots: an edit that is not applied yet keeps the
//! files that it removes, and granted slots are no use to the log. So each member tells the head
//! how much room it has, and the head acts on the least: no job begins whose files might not fit
//! everywhere, no slot is granted that the log may need.

use super::effects::Effects;
use super::facts::Facts;
use crate::message::{NodeMessage, Spare};
use crate::view::View;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use gabion_base::units::SLOT_LEN;
use gabion_base::{Error, LogPosition, ReplicaId, Result};
use gabion_engine::Tree;
use gabion_pool::Pool;

/// How often a MemTable that is not full is sealed while room is short, in ms: small deletes are to
/// give back room soon, but not with a file each.
const SEAL_EVERY_MS: u64 = 1_000;
/// After so long without another delete, in ms, those of a MemTable are looked at: a client that
/// deletes a range key by key makes no such pause.
const DELETES_REST_MS: u64 = 1_000;
/// Slots that each MemTable's files may leave half empty.
const PARTIAL_SLOTS: u64 = 2;
/// The log takes this part of the pool at most, unless that is less than its least.
const LOG_PART: u64 = 8;
/// Fewest segments that a log may have: one that is sealed, flushed and trimmed in turns, and those
/// that the gate leaves to seals and edits.
const LOG_SEGMENTS_MIN: u64 = 3;
/// Segments that are left to seals and edits while writes wait for the log to be trimmed.
const LOG_SEGMENTS_KEPT: u64 = 2;
/// Terms in the log from which on a MemTable is sealed, however little is in it. Each start of a
/// head is a term: a store that is opened for a put each minute would pass the chain's limit
/// (16,384) before its log is long.
const SPANS_BEFORE_SEAL: usize = 256;
/// Jobs that have not moved for so long, in ms, make no room.
const STUCK_MS: u64 = 5_000;

/// The room as of the last turn.
#[derive(Default)]
pub(super) struct Room {
    /// The last edit, and the slots that its version may need for its next jobs.
    for_jobs: Option<(u64, u64)>,
    /// The last report of each other member, on a connection that is still there.
    members: BTreeMap<ReplicaId, Spare>,
    /// The last report to the head.
    told: Option<Spare>,
    /// This replica itself has fewer slots than are kept.
    is_short_here: bool,
    /// The member that is most short of room, while one is.
    short: Option<(ReplicaId, Spare)>,
    /// When a MemTable was last sealed for room; none at first in each process.
    sealed_ms: Option<u64>,
    /// Deletes in the active MemTable, since when they are so many, and whether they were looked
    /// at.
    deletes: (u64, u64, bool),
    /// Since when deletes have waited for room with no job under way.
    stuck_since_ms: Option<u64>,
    /// The progress of jobs, and since when it has not grown.
    progress: (u64, u64),
}

/// The state of log and jobs, as far as room is judged by it.
pub(super) struct RoomGiven {
    /// Where the last seal of the log lies, or else its beginning.
    pub(super) sealed: LogPosition,
    /// No job is under way, and no edit.
    pub(super) is_idle: bool,
    /// A number that grows with the work of jobs.
    pub(super) moved: u64,
}

/// Why a MemTable is to be sealed that is not full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SealWish {
    /// So that deletes in it take effect, or the log can be trimmed.
    Room,
    /// So that readers need not pass the deletes in it, if they are dense.
    Readers,
}

impl Spare {
    fn kept(&self) -> u64 {
        u64::from(self.for_jobs) + u64::from(self.for_log)
    }

    /// Slots above those that are kept; below zero when there are too few.
    fn above(&self) -> i64 {
        i64::from(self.available) - self.kept() as i64
    }
}

impl Room {
    // ---- questions

    pub(super) const fn is_short(&self) -> bool {
        self.short.is_some()
    }

    pub(super) const fn is_short_here(&self) -> bool {
        self.is_short_here
    }

    /// Slots of the member that has least, if files are to fit at others.
    pub(super) fn elsewhere(&self, view: &View) -> Option<u64> {
        let of = |member: ReplicaId| match self.members.get(&member) {
            Some(spare) => u64::from(spare.available).saturating_sub(u64::from(spare.for_log)),
            None => 0, // it has not said yet
        };
        match view.has_one_tree() {
            true => view.others_full().map(of).min(),
            false => None,
        }
    }

    /// Checks that a load may take so many more slots: every member has them beside those that
    /// flushes, compactions and the log may need, and those that loads have `taken` already.
    ///
    /// # Errors
    /// No space at a member, with the slots left there.
    pub(super) fn has_room_for_load(
        &mut self,
        facts: &Facts,
        tree: &Tree,
        pool: &Pool,
        (taken, wanted): (u64, u64),
    ) -> Result<()> {
        let mine = self.spare(facts, tree, pool);
        let others = facts.view.others_full();
        let said = others.map(|member| (member, self.members.get(&member).copied()));
        let all = said.chain([(facts.me, Some(mine))]);
        for (member, spare) in all {
            let Some(spare) = spare else { continue }; // it is about to say
            let left = (spare.above() - taken as i64).max(0);
            if left < wanted as i64 {
                return Err(Error::no_space(format!(
                    "{} has {left} slots left for a load, {wanted} are wanted",
                    pool_of(facts.view, member)
                )));
            }
        }
        Ok(())
    }

    /// Whether the head is about to look at deletes that rest in memory, and may seal them.
    pub(super) const fn is_looking_at_deletes(&self) -> bool {
        let (deletes, _, was_looked_at) = self.deletes;
        deletes > 0 && !was_looked_at
    }

    /// Whether the work that deletes wait for has lacked slots for so long that nobody is to wait
    /// for it.
    pub(super) fn waits_in_vain(&self, now_ms: u64) -> bool {
        let since_ms = self.stuck_since_ms;
        since_ms.is_some_and(|since_ms| now_ms.saturating_sub(since_ms) >= STUCK_MS)
    }

    /// Whether something is under way that may end with more room.
    pub(super) fn moves(&self, now_ms: u64, is_idle: bool) -> bool {
        !is_idle && now_ms.saturating_sub(self.progress.1) < STUCK_MS
    }

    /// Why puts are not taken, while room is short.
    pub(super) fn reason(&self, view: &View) -> Option<String> {
        let (member, spare) = self.short?;
        Some(format!(
            "{} is full: {} slots of {} are free, {} are kept for flushes, compactions and the log",
            pool_of(view, member),
            spare.available,
            spare.total,
            spare.kept()
        ))
    }

    /// Checks what holds between steps: room is short only where too few slots are left.
    pub(super) fn invariants(&self) {
        let short = self.short.map(|(_, spare)| spare);
        assert!(short.is_none_or(|spare| spare.above() < 0), "{short:?} is short of nothing");
        assert!(
            self.stuck_since_ms.is_none() || self.is_short(),
            "what waits for room waits where it is short"
        );
    }

    // ---- heard

    pub(super) fn heard(&mut self, from: ReplicaId, spare: Spare) {
        self.members.insert(from, spare);
    }

    /// Jobs need more slots than was reckoned, or fewer.
    pub(super) fn forget_jobs(&mut self) {
        self.for_jobs = None;
    }

    /// The head is told this replica's room again.
    pub(super) fn forget_told(&mut self) {
        self.told = None;
    }

    /// The connection with a member is gone, and with it the report of its room.
    pub(super) fn forget(&mut self, peer: ReplicaId) {
        self.members.remove(&peer);
        self.told = None;
    }

    // ---- judged

    /// Judges how much room there is, once a turn. Returns why a MemTable is to be sealed, if one
    /// is; a wish that cannot be met comes again.
    pub(super) fn judge(
        &mut self,
        facts: &Facts,
        effects: &mut Effects,
        tree: &Tree,
        pool: &Pool,
        given: &RoomGiven,
    ) -> Option<SealWish> {
        let mine = self.spare(facts, tree, pool);
        self.tell_head(facts, effects, mine);
        self.is_short_here = mine.above() < 0;
        let full = self.members.iter().filter(|(id, _)| facts.view.group().has_full(**id));
        let all = full.map(|(member, spare)| (*member, *spare));
        let least = all.chain([(facts.me, mine)]).min_by_key(|(_, spare)| spare.above());
        let compacts = facts.view.duties().compact;
        self.short = least.filter(|(_, spare)| compacts && spare.above() < 0);
        let done = tree.last_edit() + given.moved;
        if given.is_idle || done != self.progress.0 {
            self.progress = (done, facts.now_ms);
        }
        let for_readers = self.looks_at_rest(tree.active_deletes(), facts.now_ms);
        if self.seals_for_room(facts, tree, pool, given) {
            return Some(SealWish::Room);
        }
        for_readers.then_some(SealWish::Readers)
    }

    /// Notes whether something waits for room while nothing under way gives any.
    pub(super) fn note_stuck(&mut self, is_stuck: bool, now_ms: u64) {
        self.stuck_since_ms = is_stuck.then(|| self.stuck_since_ms.unwrap_or(now_ms));
    }

    /// A MemTable may be sealed now. Returns whether it is to be.
    pub(super) fn grant_seal(&mut self, wish: SealWish, tree: &Tree, now_ms: u64) -> bool {
        match wish {
            SealWish::Room => {
                self.sealed_ms = Some(now_ms);
                true
            }
            SealWish::Readers => {
                self.deletes.2 = true;
                tree.has_dense_deletes()
            }
        }
    }

    fn spare(&mut self, facts: &Facts, tree: &Tree, pool: &Pool) -> Spare {
        let edit = tree.last_edit();
        let for_jobs = match self.for_jobs {
            Some((of, slots)) if of == edit => slots,
            _ => tree.slots_needed(),
        };
        self.for_jobs = Some((edit, for_jobs));
        let (memory, tables) = tree.unflushed();
        let for_jobs = for_jobs + memory.div_ceil(SLOT_LEN) + PARTIAL_SLOTS * tables;
        let counts = pool.counts();
        let segments = facts.files.segments();
        // Those that keep values are files of the tree.
        let of_tree = tree.version().values_stats().segments;
        let others = (segments.of_log + segments.referenced).saturating_sub(of_tree);
        let log = others * segment_slots(facts);
        let (total, lost) = (counts.total, counts.retired + counts.quarantined);
        let taken = u64::from(lost) + log + tree.version().slots();
        let slots = |slots: u64| u32::try_from(slots).unwrap_or(u32::MAX);
        Spare {
            total,
            available: slots(u64::from(total).saturating_sub(taken)),
            for_jobs: slots(for_jobs),
            for_log: slots(slots_for_log(facts, tree, pool)),
        }
    }

    /// Tells the head, when there is something new.
    fn tell_head(&mut self, facts: &Facts, effects: &mut Effects, mine: Spare) {
        let head = facts.writer();
        let appends = facts.view.duties().append;
        let can_hear = !appends && facts.is_joined() && facts.can_reach(head);
        if !can_hear || self.told == Some(mine) {
            return;
        }
        self.told = Some(mine);
        effects.tell_member(head, NodeMessage::Room(mine));
    }

    /// Whether to seal a MemTable that is not full: so that the deletes in it take effect, or so
    /// that the log can be trimmed, which may be long with little in it (padding of durable
    /// records, records of time).
    fn seals_for_room(&self, facts: &Facts, tree: &Tree, pool: &Pool, given: &RoomGiven) -> bool {
        let now_ms = facts.now_ms;
        let since_seal = facts.log.end().get().saturating_sub(given.sealed.get());
        // At once in each process: one that ends before the pause does would add a term to the log
        // and trim none.
        let is_due = self
            .sealed_ms
            .is_none_or(|sealed_ms| now_ms.saturating_sub(sealed_ms) >= SEAL_EVERY_MS);
        let gives_back =
            || self.is_short() && !self.moves(now_ms, given.is_idle) && !tree.active_is_empty();
        // An empty MemTable is sealed too: records that only carry time fill none.
        let has_spans = || facts.log.spans().len() >= SPANS_BEFORE_SEAL && since_seal > 0;
        // Writes wait once the log is twice as long, so this waits for no pause: a synced write of
        // a few bytes takes a block.
        let is_long = since_seal >= log_len_max(facts, tree, pool) / 2;
        is_long || (is_due && (gives_back() || has_spans()))
    }

    /// Whether deletes that readers would pass one by one rest in the active MemTable and were not
    /// looked at.
    fn looks_at_rest(&mut self, deletes: u64, now_ms: u64) -> bool {
        let (before, since_ms, was_looked_at) = self.deletes;
        if deletes != before {
            self.deletes = (deletes, now_ms, false);
            return false;
        }
        let rests = now_ms.saturating_sub(since_ms) >= DELETES_REST_MS;
        deletes > 0 && !was_looked_at && rests
    }
}

/// A member's pool in messages: a store alone has only one.
fn pool_of(view: &View, member: ReplicaId) -> String {
    match view.others().count() {
        0 => "the pool".into(),
        _ => format!("the pool of replica {}", member.get()),
    }
}

// ---- the log

const fn segment_slots(facts: &Facts) -> u64 {
    facts.config.segment_len.div_ceil(SLOT_LEN)
}

/// Most segments that the log is to have.
fn log_segments_max(facts: &Facts, tree: &Tree, pool: &Pool) -> u64 {
    let (segment_len, memtable_len) = (facts.config.segment_len, tree.config().memtable_len);
    // The active MemTable, those that wait, and as much again on its way to being trimmed.
    let tables = 2 * (facts.options.sealed_max as u64 + 1);
    let usual = (tables * memtable_len).div_ceil(segment_len) + LOG_SEGMENTS_KEPT;
    let part = u64::from(pool.counts().total) / LOG_PART / segment_slots(facts);
    usual.min(part).max(LOG_SEGMENTS_MIN)
}

/// Slots that the log may still take before it is trimmed. Its segments that keep values give none
/// back then.
pub(super) fn slots_for_log(facts: &Facts, tree: &Tree, pool: &Pool) -> u64 {
    let segments = facts.files.segments();
    let kept = tree.version().values_stats().segments.saturating_sub(segments.referenced);
    let trimmed = segments.of_log.saturating_sub(kept);
    log_segments_max(facts, tree, pool).saturating_sub(trimmed) * segment_slots(facts)
}

/// Bytes of log that there may be before writes wait.
fn log_len_max(facts: &Facts, tree: &Tree, pool: &Pool) -> u64 {
    (log_segments_max(facts, tree, pool) - LOG_SEGMENTS_KEPT) * facts.config.segment_len
}

/// Whether the log has to be trimmed before it may grow.
pub(super) fn is_log_long(facts: &Facts, tree: &Tree, pool: &Pool) -> bool {
    let kept = facts.log.end().get().saturating_sub(facts.state.trimmed.position.get());
    kept >= log_len_max(facts, tree, pool)
}

/// Whether the log has grown so far that no copy of the group's state may hold it: a quarter of its
/// room is left to writes until it is trimmed.
pub(super) fn is_log_long_for_copies(facts: &Facts, tree: &Tree, pool: &Pool) -> bool {
    let kept = facts.log.end().get().saturating_sub(facts.state.trimmed.position.get());
    kept >= log_len_max(facts, tree, pool) / 4 * 3
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NodeOptions;
    use crate::node::Node;
    use crate::node::facts::facts;
    use crate::node::testing::{HEAD, TAIL, one_of_two};
    use gabion_base::SequenceNumber;
    use gabion_engine::EntryKind;

    /// Judges in a turn in which nothing is under way and something waits. Returns whether a
    /// MemTable is to be sealed.
    fn judge(room: &mut Room, node: &Node) -> bool {
        let given = RoomGiven { sealed: node.log.end(), is_idle: true, moved: 0 };
        let mut asked = Effects::default();
        let wish = room.judge(&facts!(node), &mut asked, &node.tree, &node.pool, &given);
        room.note_stuck(room.is_short(), node.now_ms);
        room.invariants();
        assert!(asked.is_settled(), "the head has nobody to tell");
        wish.is_some_and(|wish| room.grant_seal(wish, &node.tree, node.now_ms))
    }

    #[test]
    fn the_member_with_the_least_room_decides_and_what_waits_for_it_waits_five_seconds() {
        let mut node = one_of_two(HEAD, NodeOptions::default());
        let (key, value) = (b"\x01k", b"v");
        node.tree.apply_operation(SequenceNumber(1), EntryKind::Put, key, value).unwrap();
        let mut room = Room::default();
        assert!(!judge(&mut room, &node) && !room.is_short());
        assert_eq!(room.elsewhere(&node.view), Some(0), "the other one has not said");
        let spare = Spare { total: 100, available: 5, for_jobs: 4, for_log: 2 };
        room.heard(TAIL, spare);
        assert!(judge(&mut room, &node), "what is deleted is to be given back");
        let reason = room.reason(&node.view).expect("room is short");
        assert!(reason.starts_with("the pool of replica 2 is full: 5 slots of 100"), "{reason}");
        assert_eq!(room.elsewhere(&node.view), Some(3));
        assert!(!judge(&mut room, &node), "a file in each turn");
        assert!(!room.waits_in_vain(node.now_ms + STUCK_MS - 1));
        assert!(room.waits_in_vain(node.now_ms + STUCK_MS));
        node.now_ms += SEAL_EVERY_MS;
        assert!(judge(&mut room, &node));
        let (facts, tree, pool) = (facts!(node), &node.tree, &node.pool);
        assert!(room.has_room_for_load(&facts, tree, pool, (0, 1)).is_err());
        room.heard(TAIL, Spare { available: 6, ..spare });
        judge(&mut room, &node);
        assert!(!room.is_short() && !room.waits_in_vain(u64::MAX));
        room.forget(TAIL);
        assert_eq!(room.elsewhere(&node.view), Some(0));
    }
}

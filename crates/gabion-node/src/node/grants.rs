//! The secondary's side of shipping: sessions, granted slots, arriving files (RubbleDB §4.2.1, slot
//! management).
//!
//! ```text
//!   raise session ─► durable ─► target closes the old subsystem, drains, opens the new one
//!      ─► voided slots are free again ─► grant ─► durable ─► admitted at the target ─► Grant message
//! ```

use super::effects::{Effects, Signal};
use super::facts::Facts;
use super::names::{host_name, subsystem_name};
use super::orders::{After, Order};
use super::{Counters, Mutant, Output};
use crate::message::{NodeMessage, ShippedFile};
use crate::work::{VerifyOrder, Work};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Range;
use gabion_base::units::{BLOCK_LEN, CHUNK_LEN, SLOT_LEN};
use gabion_base::{Error, FileId, HashMap, LogPosition, ReplicaId, Result, SlotIndex, Term};
use gabion_media::nvme::TargetCommand;
use gabion_pool::{Drained, FilePlacement, Placed, Pool, SlotState};

/// State of the session with the primary.
#[derive(Default)]
pub(super) struct Grants {
    /// Port of the embedded target, once it listens.
    port: u16,
    /// The session whose subsystem is open, 0 for none.
    open: u64,
    raising: bool,
    /// Slots granted in this session that hold no file.
    free: BTreeSet<SlotIndex>,
    granting: bool,
    /// The number of slots to grant at the primary's wish, if above the usual one.
    wanted: u32,
    /// Slots into which the device did not write. A grant of such a slot is void with its session,
    /// and the slot is granted no more.
    refused: BTreeSet<SlotIndex>,
    /// Lengths and checksums of the chunks that the target received, by slot and chunk in it.
    received: HashMap<(SlotIndex, u32), (u32, u32)>,
    /// Files that were shipped and flushed, and have no durable place yet.
    arriving: BTreeMap<FileId, Arriving>,
    /// Files that were no longer needed before they came, asked for or not. They are not kept.
    unneeded: BTreeSet<FileId>,
    /// The adopted term and its begin: files of older terms that no edit before it names belong to
    /// nobody.
    pub(super) orphans_of: Option<(Term, LogPosition)>,
    received_bytes: u64,
    verified_read_bytes: u64,
    refused_slots: u64,
    /// The term by which the primary makes itself known where it is not that of the log here: this
    /// member is being filled.
    served: Option<Term>,
}

/// The repair of a file that is shipped, if there is one.
pub(super) struct RepairOfFile {
    /// It waits for a shipment.
    pub(super) wants: bool,
    /// Its bytes are on their way to their place.
    pub(super) is_coming: bool,
}

struct Arriving {
    placement: Arc<FilePlacement>,
    /// It is here already, damaged.
    repairs: bool,
}

impl Grants {
    // ---- questions

    /// Whether a session's subsystem is open.
    pub(super) const fn is_open(&self) -> bool {
        self.open != 0
    }

    pub(super) fn is_arriving(&self, file: FileId) -> bool {
        self.arriving.contains_key(&file)
    }

    /// Whether a file is arriving in just these slots.
    fn is_arriving_at(&self, placement: &Arc<FilePlacement>) -> bool {
        let arriving = self.arriving.get(&placement.file);
        arriving.is_some_and(|arriving| Arc::ptr_eq(&arriving.placement, placement))
    }

    pub(super) fn count_into(&self, counters: &mut Counters) {
        counters.received_bytes += self.received_bytes;
        counters.verified_read_bytes += self.verified_read_bytes;
        counters.refused_slots += self.refused_slots;
    }

    /// Checks the invariants between steps, in this session.
    pub(super) fn invariants(&self, session: u64) {
        assert!([0, session].contains(&self.open), "session {} is open, not {session}", self.open);
        if !cfg!(debug_assertions) {
            return;
        }
        for (file, arriving) in &self.arriving {
            let mut slots = arriving.placement.slots.iter().map(|placed| placed.slot);
            assert!(slots.all(|slot| !self.free.contains(&slot)), "{file} lies in a free slot");
        }
    }

    // ---- sessions

    /// From the next session on the primary makes itself known by this term. Returns whether it did
    /// by another before.
    pub(super) fn serve(&mut self, term: Term) -> bool {
        self.served.replace(term) != Some(term)
    }

    /// A new session begins: grants of older ones are void from here on.
    pub(super) fn begin_session(&mut self, facts: &Facts, effects: &mut Effects, pool: &mut Pool) {
        self.open = 0;
        self.free.clear();
        self.arriving.clear();
        self.received.clear();
        if !facts.has(Mutant::OldGrantsHonoured) {
            pool.void_grants(facts.state.session);
        }
        let is_raising = core::mem::replace(&mut self.raising, true);
        effects.stage_state((!is_raising).then_some(After::SessionRaised));
    }

    /// The session is durable.
    pub(super) fn session_raised(&mut self, facts: &Facts, effects: &mut Effects, pool: &Pool) {
        self.raising = false;
        effects.put_out(Output::Target(TargetCommand::Open {
            subsystem: subsystem(facts, pool),
            session: facts.state.session,
            hosts: alloc::vec![self.host(facts)],
        }));
    }

    /// The target serves a session's subsystem on `port`, and nothing of an older one is in flight.
    pub(super) fn target_open(&mut self, facts: &Facts, pool: &mut Pool, session: u64, port: u16) {
        if session != facts.state.session {
            return;
        }
        self.port = port;
        self.open = session;
        // Drained: no write of an older session can land any more.
        pool.release_quarantined_but(Drained::SessionsBelow(session), &self.refused);
    }

    /// The target completed a write of the primary.
    pub(super) fn target_write(&mut self, pool: &Pool, offset: u64, len: u32, crc: u32) {
        if let Some((slot, Some(within))) = pool.region().namespace().slot_at(offset)
            && within.is_multiple_of(CHUNK_LEN)
        {
            self.received.insert((slot, (within / CHUNK_LEN) as u32), (len, crc));
        }
    }

    /// The device failed a write that came to the target.
    pub(super) fn target_write_failed(
        &mut self,
        effects: &mut Effects,
        pool: &Pool,
        offset: u64,
        error: &Error,
    ) {
        if let Some((slot, _)) = pool.region().namespace().slot_at(offset)
            && self.refused.insert(slot)
        {
            self.refused_slots += 1;
            effects.notice_refused(&[slot], error);
        }
    }

    // ---- grants

    /// Keeps the usual number of slots granted. Those that the log may need are not for files.
    pub(super) fn grant_slots(
        &mut self,
        facts: &Facts,
        effects: &mut Effects,
        pool: &mut Pool,
        (slots_for_log, is_filled): (u64, bool),
    ) {
        let (session, head) = (facts.state.session, facts.writer());
        if self.open != session || self.open == 0 || self.granting {
            return;
        }
        // A grant that nobody hears of would never be used and never be voided.
        if !(facts.is_joined() || is_filled) || !facts.can_reach(head) {
            return;
        }
        let usual = facts.options.granted_slots.min(pool.counts().total / 4).max(8);
        let target = usual.max(self.wanted);
        let have = self.free.len() as u32;
        if have * 4 > target * 3 {
            return;
        }
        let free = u64::from(pool.counts().free).saturating_sub(slots_for_log);
        let missing = (target - have).min(u32::try_from(free).unwrap_or(u32::MAX));
        if missing == 0 {
            return;
        }
        let granted = (0..4).find_map(|shift| {
            let count = (missing >> shift).max(1);
            pool.grant(facts.group_term(), session, head, count).ok()
        });
        if let Some(slots) = granted {
            self.granting = true;
            effects.stage(After::Granted(slots));
        }
    }

    /// Granted slots are durable: admit them at the target, then tell the primary.
    pub(super) fn grant_is_durable(
        &mut self,
        facts: &Facts,
        effects: &mut Effects,
        pool: &Pool,
        slots: Vec<Placed>,
    ) {
        self.granting = false;
        if self.open != facts.state.session {
            return; // a newer session voided them
        }
        self.wanted = 0;
        self.admit(facts, effects, pool, slots);
    }

    /// Admits the primary to slots that are granted to it, and nobody else.
    fn admit(&mut self, facts: &Facts, effects: &mut Effects, pool: &Pool, slots: Vec<Placed>) {
        self.free.extend(slots.iter().map(|placed| placed.slot));
        let writer = facts.writer();
        debug_assert!(slots.iter().all(|placed| is_granted_to(pool, placed.slot, writer)));
        let (host, ranges) = (self.host(facts), ranges(pool, &slots));
        effects.put_out(Output::Target(TargetCommand::Admit { host, ranges }));
        self.tell_grant(facts, effects, pool, slots);
    }

    /// The name by which the member that takes writes makes itself known to targets.
    fn host(&self, facts: &Facts) -> String {
        let term = self.served.unwrap_or(facts.state.term());
        host_name(facts.config.group, term, facts.writer())
    }

    fn tell_grant(&self, facts: &Facts, effects: &mut Effects, pool: &Pool, slots: Vec<Placed>) {
        let message = NodeMessage::Grant {
            session: facts.state.session,
            writer: facts.writer(),
            pool_id: pool.pool_id(),
            subsystem: subsystem(facts, pool),
            port: self.port,
            region: pool.region().namespace(),
            slots,
        };
        effects.tell_member(facts.writer(), message);
    }

    /// The primary wants so many slots at once, a number off the wire: twice as many are granted,
    /// but at most half of the pool.
    pub(super) fn want_grant(&mut self, pool: &Pool, slots: u32) {
        let half = pool.counts().total / 2;
        self.wanted = self.wanted.max(slots.saturating_mul(2).min(half));
    }

    // ---- files

    /// A file is not needed any more, and may come all the same.
    pub(super) fn note_unneeded(&mut self, file: FileId) {
        self.unneeded.insert(file);
    }

    /// The primary shipped a file and flushed it.
    pub(super) fn shipped(
        &mut self,
        facts: &Facts,
        effects: &mut Effects,
        pool: &mut Pool,
        repair: &RepairOfFile,
        (session, file): (u64, ShippedFile),
    ) {
        if session != facts.state.session && !facts.has(Mutant::OldGrantsHonoured) {
            return; // of a connection that is gone; the primary ships it again
        }
        let (id, repairs) = (file.file, repair.wants);
        let is_unneeded = self.unneeded.remove(&id);
        let is_here = pool.placement(id).is_some() && !repairs;
        if is_unneeded || is_here || self.is_arriving(id) {
            // `Have` follows later for a file whose place, or new place, is not durable yet.
            let is_told = is_unneeded || facts.place(id).is_some() && !repair.is_coming;
            return self.return_slots(facts, effects, pool, &file, is_told);
        }
        let placement = Arc::new(FilePlacement {
            file: id,
            term: file.term,
            len: file.len,
            checksum: file.checksum,
            slots: file.slots.clone(),
        });
        effects.put_out(Output::Target(TargetCommand::Revoke(ranges(pool, &file.slots))));
        for placed in &file.slots {
            self.free.remove(&placed.slot);
        }
        let seen = self.take_received(&file);
        self.received_bytes += file.len;
        self.arriving.insert(id, Arriving { placement: placement.clone(), repairs });
        if repairs {
            effects.signal(Signal::RepairArrives(id));
        }
        if seen {
            return self.place_arrived(effects, id);
        }
        self.verified_read_bytes += placement.len;
        let order = VerifyOrder { placement: placement.clone(), chunk_crcs: file.chunk_crcs };
        effects.begin(Order::Verify(placement), Work::Verify(order));
    }

    /// A file came that is here already or about to be, or that nothing needs: its slots can be
    /// used again.
    fn return_slots(
        &mut self,
        facts: &Facts,
        effects: &mut Effects,
        pool: &Pool,
        file: &ShippedFile,
        is_told: bool,
    ) {
        let slots = file.slots.iter().filter(|placed| self.free.contains(&placed.slot));
        let slots = slots.copied().collect();
        self.take_received(file);
        self.tell_grant(facts, effects, pool, slots);
        if is_told {
            effects.tell_member(facts.writer(), NodeMessage::Have { file: file.file });
        }
    }

    /// Whether the target saw every chunk of the file arrive with the checksum that it must have.
    fn take_received(&mut self, file: &ShippedFile) -> bool {
        let per_slot = (SLOT_LEN / CHUNK_LEN) as usize;
        let mut all = file.chunk_crcs.len() as u64 == file.len.div_ceil(CHUNK_LEN);
        for (i, expected) in file.chunk_crcs.iter().enumerate() {
            let Some(placed) = file.slots.get(i / per_slot) else { return false };
            let len = CHUNK_LEN.min(file.len - (i as u64 * CHUNK_LEN).min(file.len)) as u32;
            let key = (placed.slot, (i % per_slot) as u32);
            all &= self.received.remove(&key) == Some((len, *expected));
        }
        all
    }

    /// A file was compared with its checksums on the device, at the place where it had arrived. In
    /// a later session it may arrive elsewhere, of which this result says nothing.
    pub(super) fn verified(
        &mut self,
        facts: &Facts,
        effects: &mut Effects,
        at: &Arc<FilePlacement>,
        result: Result<()>,
    ) {
        if !self.is_arriving_at(at) {
            return;
        }
        match result {
            Ok(()) => self.place_arrived(effects, at.file),
            // The connection ends, and with it the session; the file is shipped again into other
            // slots.
            Err(error) => {
                self.arriving.remove(&at.file);
                effects.disconnect(facts.writer(), error);
            }
        }
    }

    /// An arrived file is whole: its place is made durable.
    fn place_arrived(&mut self, effects: &mut Effects, file: FileId) {
        let Some(Arriving { placement, repairs }) = self.arriving.remove(&file) else { return };
        match repairs {
            true => effects.signal(Signal::RepairArrived(placement)),
            false => {
                let after = After::FilePlaced { file, tell: true };
                effects.place(alloc::vec![placement], after);
            }
        }
    }

    /// A file arrived whole that was damaged here, and that an edit removed meanwhile. Its slots
    /// are as good as new.
    pub(super) fn give_back(
        &mut self,
        facts: &Facts,
        effects: &mut Effects,
        pool: &Pool,
        placement: &FilePlacement,
    ) {
        self.admit(facts, effects, pool, placement.slots.clone());
        // Else the primary keeps its bytes for us, and in the end begins no jobs.
        effects.tell_member(facts.writer(), NodeMessage::Have { file: placement.file });
    }

    // ---- orphans

    /// The primary gave up the job that made these files. Files that an edit on its way names stay.
    pub(super) fn discarded(
        facts: &Facts,
        effects: &mut Effects,
        files: &[FileId],
        is_named: impl Fn(FileId) -> bool,
    ) {
        let unnamed = |file: &&FileId| facts.files.is_unnamed(**file) && !is_named(**file);
        files.iter().filter(unnamed).for_each(|file| effects.signal(Signal::Orphan(*file)));
    }

    /// Forgets files of older terms once the log is here up to the start of the current one: by
    /// then it has all that older primaries said of them.
    pub(super) fn drop_old_orphans(
        &mut self,
        facts: &Facts,
        effects: &mut Effects,
        pool: &Pool,
        is_named: impl Fn(FileId) -> bool,
    ) {
        if let Some((term, start)) = self.orphans_of
            && facts.log.end() >= start
            && facts.group_term() == term
        {
            self.orphans_of = None;
            drop_orphans(facts, effects, pool, Some(term), is_named);
        }
    }
}

/// Forgets files, made before a term if one is given, that no edit has named and nothing else
/// names: their job died with its primary.
pub(super) fn drop_orphans(
    facts: &Facts,
    effects: &mut Effects,
    pool: &Pool,
    before: Option<Term>,
    is_named: impl Fn(FileId) -> bool,
) {
    let is_old = |file: FileId| {
        let term = pool.placement(file).map(|placement| placement.term);
        before.is_none_or(|before| term.is_some_and(|term| term < before))
    };
    for file in facts.files.unnamed().filter(|file| is_old(*file) && !is_named(*file)) {
        effects.signal(Signal::Orphan(file));
    }
}

fn subsystem(facts: &Facts, pool: &Pool) -> String {
    let state = facts.state;
    subsystem_name(facts.config.group, state.term(), state.session, &pool.pool_id())
}

fn is_granted_to(pool: &Pool, slot: SlotIndex, writer: ReplicaId) -> bool {
    let state = pool.slot_state(slot);
    matches!(state, Some(SlotState::Granted { to, .. }) if to == writer)
}

/// Whether slots are granted, or kept out of use as a write of an older session might land there.
pub(super) fn has_old_grants(pool: &Pool) -> bool {
    let counts = pool.counts();
    counts.granted > 0 || counts.quarantined > 0
}

/// Data and header of each slot, as ranges of the namespace.
fn ranges(pool: &Pool, slots: &[Placed]) -> Vec<Range<u64>> {
    let geometry = pool.region().namespace();
    let mut ranges = Vec::with_capacity(slots.len() * 2);
    for placed in slots {
        let (data, header) =
            (geometry.slot_offset(placed.slot), geometry.header_offset(placed.slot));
        ranges.push(data..data + SLOT_LEN);
        ranges.push(header..header + BLOCK_LEN as u64);
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NodeOptions;
    use crate::node::Node;
    use crate::node::effects::Effect;
    use crate::node::facts::facts;
    use crate::node::testing::{HEAD, TAIL, one_of_two};

    fn secondary() -> Node {
        one_of_two(TAIL, NodeOptions::default())
    }

    /// docs/faults.md: E14
    #[test]
    fn a_primary_that_wants_more_slots_than_there_are_is_granted_half_of_the_pool() {
        let half = secondary().pool.counts().total / 2;
        for (slots, wanted) in
            [(0, 0), (8, 16), (half, half), (1 << 31, half), ((1 << 31) + 4, half), (!0, half)]
        {
            let mut node = secondary();
            let bytes = NodeMessage::WantGrant { slots }.encode();
            let Ok(NodeMessage::WantGrant { slots }) = NodeMessage::decode(&bytes) else {
                panic!("{slots} slots are wanted by no message");
            };
            node.handle_want_grant(slots);
            assert_eq!(node.grants.wanted, wanted, "{slots}");
        }
    }

    #[test]
    fn a_session_that_the_primary_knows_is_passed_over_and_an_older_one_is_not_heard() {
        let mut node = secondary();
        node.state.session = 7;
        node.pool.grant(Term(1), 7, HEAD, 2).unwrap();
        for (known, expected) in [(6, 7), (7, 8), (12, 13), (12, 13)] {
            node.handle_known_session(known);
            assert_eq!(node.state.session, expected, "{known}");
        }
        assert_eq!(node.pool.counts().granted, 0, "grants of older sessions are void");
    }

    fn effects(effects: &mut Effects) -> Vec<Effect> {
        core::iter::from_fn(|| effects.next_effect()).collect()
    }

    #[test]
    fn a_file_that_the_target_saw_whole_is_placed_and_any_other_is_read_first() {
        let mut node = secondary();
        let session = node.state.session;
        let (mut grants, mut asked) = (Grants::default(), Effects::default());
        grants.target_open(&facts!(node), &mut node.pool, session, 1);
        let slots = node.pool.grant(Term(1), session, HEAD, 2).unwrap();
        let repair = RepairOfFile { wants: false, is_coming: false };
        let file = |number: u64| ShippedFile {
            file: FileId::sst(number),
            term: Term(1),
            len: 4_096,
            checksum: 7,
            chunk_crcs: alloc::vec![7],
            slots: alloc::vec![slots[number as usize]],
        };
        let seen = node.pool.region().namespace().slot_offset(slots[0].slot);
        grants.target_write(&node.pool, seen, 4_096, 7);
        for number in [0, 1] {
            let shipped = (session, file(number));
            grants.shipped(&facts!(node), &mut asked, &mut node.pool, &repair, shipped);
            grants.invariants(session);
        }
        let asked_for = effects(&mut asked);
        let [Effect::Output(_), placed, Effect::Output(_), read] = &asked_for[..] else {
            panic!("the target refuses both, one is placed and one is read");
        };
        let after = After::FilePlaced { file: FileId::sst(0), tell: true };
        assert!(matches!(placed, Effect::Place(_, step) if *step == after));
        let Effect::Order(Order::Verify(at), _) = read else { panic!("it is not read") };
        grants.verified(&facts!(node), &mut asked, at, Ok(()));
        assert!(matches!(effects(&mut asked)[..], [Effect::Place(_, After::FilePlaced { .. })]));
        grants.verified(&facts!(node), &mut asked, at, Ok(()));
        assert!(effects(&mut asked).is_empty(), "it is placed once");
    }

    #[test]
    fn a_repair_goes_by_the_repairer_and_an_older_session_brings_nothing() {
        let mut node = secondary();
        let session = node.state.session;
        let (mut grants, mut asked) = (Grants::default(), Effects::default());
        let slots = node.pool.grant(Term(1), session, HEAD, 1).unwrap();
        let file = ShippedFile {
            file: FileId::sst(1),
            term: Term(1),
            len: 4_096,
            checksum: 7,
            chunk_crcs: alloc::vec![7],
            slots,
        };
        let repair = RepairOfFile { wants: true, is_coming: false };
        let old = (session - 1, file.clone());
        grants.shipped(&facts!(node), &mut asked, &mut node.pool, &repair, old);
        assert!(effects(&mut asked).is_empty());
        grants.shipped(&facts!(node), &mut asked, &mut node.pool, &repair, (session, file));
        let asked_for = effects(&mut asked);
        let [_, Effect::Signal(Signal::RepairArrives(_)), Effect::Order(Order::Verify(at), _)] =
            &asked_for[..]
        else {
            panic!("it arrives and is read");
        };
        grants.verified(&facts!(node), &mut asked, at, Ok(()));
        let asked_for = effects(&mut asked);
        assert!(matches!(asked_for[..], [Effect::Signal(Signal::RepairArrived(_))]));
        let rotten = Err(Error::corruption("a bit flipped"));
        grants.verified(&facts!(node), &mut asked, at, rotten);
        assert!(effects(&mut asked).is_empty(), "it is the repairer's by now");
    }
}

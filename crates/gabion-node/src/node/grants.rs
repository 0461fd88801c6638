//! The secondary's side of shipping: sessions, granted slots, arriving files (RubbleDB §4.2.1, slot
//! management).
//!
//! ```text
//!   raise session ─► durable ─► target closes the old subsystem, drains, opens the new one
//!      ─► voided slots are free again ─► grant ─► durable ─► admitted at the target ─► Grant message
//! ```

use super::{After, Mutant, Node, Output};
use crate::message::{NodeMessage, ShippedFile};
use crate::work::VerifyOrder;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Range;
use gabion_base::units::{BLOCK_LEN, CHUNK_LEN, SLOT_LEN};
use gabion_base::{Error, FileId, GroupId, HashMap, LogPosition, ReplicaId, SlotIndex, Term};
use gabion_media::nvme::TargetCommand;
use gabion_pool::{Drained, FilePlacement, Placed, SlotState};

/// Name of the subsystem that a secondary serves in a term and session.
#[must_use]
pub(super) fn subsystem_name(
    group: GroupId,
    term: Term,
    session: u64,
    pool_id: &[u8; 16],
) -> String {
    let mut pool = String::new();
    for byte in &pool_id[..8] {
        pool.push_str(&format!("{byte:02x}"));
    }
    format!("nqn.2026-11.dev.gabion:{group}:{term}:s{session}:{pool}")
}

/// Name by which a member makes itself known to targets as the writer of a group in a term.
#[must_use]
pub(super) fn host_name(group: GroupId, term: Term, writer: ReplicaId) -> String {
    format!("nqn.2026-11.dev.gabion:host:{group}:{term}:{writer}")
}

/// State of the session with the primary.
#[derive(Default)]
pub(super) struct Grants {
    /// Port of the embedded target, once it listens.
    port: u16,
    /// The session whose subsystem is open, 0 for none.
    open: u64,
    raising: bool,
    /// Granted in this session and not holding a file.
    free: BTreeSet<SlotIndex>,
    granting: bool,
    /// More than the usual number, as the primary asked.
    wanted: u32,
    /// Slots into which the device did not write. A grant of one is void with its session, and it is granted no more.
    refused: BTreeSet<SlotIndex>,
    /// Checksums of the chunks that the target received, by slot and chunk in it.
    received: HashMap<(SlotIndex, u32), (u32, u32)>,
    /// Shipped and flushed, on the way to having a durable place.
    arriving: BTreeMap<FileId, Arriving>,
    /// Not needed any more before they came, asked for or not: not kept when they come.
    pub(super) unneeded: BTreeSet<FileId>,
    /// A term was adopted that begins at this position: files of older terms that no edit before it
    /// names belong to nobody.
    pub(super) orphans_of: Option<(Term, LogPosition)>,
}

struct Arriving {
    placement: Arc<FilePlacement>,
    /// It is here already, damaged.
    repairs: bool,
}

impl Grants {
    pub(super) fn is_arriving(&self, file: FileId) -> bool {
        self.arriving.contains_key(&file)
    }

    /// Whether a file is arriving in just these slots.
    pub(super) fn is_arriving_at(&self, placement: &Arc<FilePlacement>) -> bool {
        let arriving = self.arriving.get(&placement.file);
        arriving.is_some_and(|arriving| Arc::ptr_eq(&arriving.placement, placement))
    }
}

impl Node {
    /// Begins a new session: grants of older ones are void from here on.
    pub(super) fn raise_session(&mut self) {
        self.grants.open = 0;
        self.grants.free.clear();
        self.grants.arriving.clear();
        self.grants.received.clear();
        self.state.session += 1;
        if !self.has(Mutant::OldGrantsHonoured) {
            self.pool.void_grants(self.state.session);
        }
        if !self.grants.raising {
            self.grants.raising = true;
            self.stage_state(Some(After::SessionRaised));
        } else {
            self.stage_state(None);
        }
        self.ask_again();
        self.repairs_lose_arriving();
    }

    /// Whether slots are granted, or kept out of use as a write of an older session might land there.
    pub(super) fn has_old_grants(&self) -> bool {
        let counts = self.pool.counts();
        counts.granted > 0 || counts.quarantined > 0
    }

    pub(super) fn session_raised(&mut self) {
        self.grants.raising = false;
        let subsystem = self.subsystem();
        self.outputs.push_back(Output::Target(TargetCommand::Open {
            subsystem,
            session: self.state.session,
            hosts: alloc::vec![self.host_of(self.view.writer())],
        }));
    }

    fn host_of(&self, writer: ReplicaId) -> String {
        host_name(self.config.group, self.state.term(), writer)
    }

    /// Lets the writer write into slots that are granted to it, and nobody else.
    fn admit(&mut self, slots: &[Placed]) {
        let (writer, ranges) = (self.view.writer(), self.ranges(slots));
        debug_assert!(slots.iter().all(|placed| self.is_granted_to(placed.slot, writer)));
        let host = self.host_of(writer);
        self.outputs.push_back(Output::Target(TargetCommand::Admit { host, ranges }));
    }

    fn is_granted_to(&self, slot: SlotIndex, writer: ReplicaId) -> bool {
        let state = self.pool.slot_state(slot);
        matches!(state, Some(SlotState::Granted { to, .. }) if to == writer)
    }

    fn subsystem(&self) -> String {
        let pool_id = self.pool.pool_id();
        subsystem_name(self.config.group, self.state.term(), self.state.session, &pool_id)
    }

    /// The target closed what it served before, nothing of it is in flight, and it serves the
    /// session's subsystem on `port`.
    pub fn handle_target_open(&mut self, session: u64, port: u16) {
        if session != self.state.session {
            return;
        }
        self.grants.port = port;
        self.grants.open = session;
        // Drained: no write of an older session can land any more.
        self.pool.release_quarantined_but(Drained::SessionsBelow(session), &self.grants.refused);
    }

    /// The target completed a write of the primary: `len` bytes at `offset` of the namespace have this
    /// checksum. Not durable yet.
    pub fn handle_target_write(&mut self, offset: u64, len: u32, crc: u32) {
        if let Some((slot, Some(within))) = self.pool.region().namespace().slot_at(offset)
            && within.is_multiple_of(CHUNK_LEN)
        {
            self.grants.received.insert((slot, (within / CHUNK_LEN) as u32), (len, crc));
        }
    }

    /// The device did not write what came to the target at `offset` of the namespace, though it has room. The primary is
    /// told by the target, and ships the file again in another session: into other slots, as this one stays in quarantine
    /// until the next start (docs/faults.md E9).
    pub fn handle_target_write_failed(&mut self, offset: u64, error: &Error) {
        if let Some((slot, _)) = self.pool.region().namespace().slot_at(offset)
            && self.grants.refused.insert(slot)
        {
            self.note_refused(&[slot], error);
        }
    }

    /// Keeps the usual number of slots granted.
    pub(super) fn grant_slots(&mut self) {
        let grants = &self.grants;
        if grants.open != self.state.session || grants.open == 0 || grants.granting {
            return;
        }
        // A grant that nobody hears of would never be used and never be voided.
        if !self.chain.is_joined() || !self.chain.is_connected(self.view.writer()) {
            return;
        }
        let usual = self.options.granted_slots.min(self.pool.counts().total / 4).max(8);
        let target = usual.max(grants.wanted);
        let have = grants.free.len() as u32;
        if have * 4 > target * 3 {
            return;
        }
        // What the log may need is not for files.
        let free = u64::from(self.pool.counts().free).saturating_sub(self.slots_for_log());
        let missing = (target - have).min(u32::try_from(free).unwrap_or(u32::MAX));
        if missing == 0 {
            return;
        }
        let (term, head) = (self.chain.term(), self.view.writer());
        let granted = (0..4).find_map(|shift| {
            let count = (missing >> shift).max(1);
            self.pool.grant(term, self.state.session, head, count).ok()
        });
        if let Some(slots) = granted {
            self.grants.granting = true;
            self.commits.staged.push(After::Granted(slots));
        }
    }

    /// Granted slots are durable: admit them at the target, then tell the primary.
    pub(super) fn granted(&mut self, slots: Vec<Placed>) {
        self.grants.granting = false;
        if self.grants.open != self.state.session {
            return; // a newer session voided them
        }
        self.grants.wanted = 0;
        self.grants.free.extend(slots.iter().map(|placed| placed.slot));
        self.admit(&slots);
        self.tell_grant(slots);
    }

    fn tell_grant(&mut self, slots: Vec<Placed>) {
        let head = self.view.writer();
        let message = NodeMessage::Grant {
            session: self.state.session,
            writer: head,
            pool_id: self.pool.pool_id(),
            subsystem: self.subsystem(),
            port: self.grants.port,
            region: self.pool.region().namespace(),
            slots,
        };
        self.tell(head, &message);
    }

    /// Data and header of each slot, as ranges of the namespace.
    fn ranges(&self, slots: &[Placed]) -> Vec<Range<u64>> {
        let geometry = self.pool.region().namespace();
        let mut ranges = Vec::with_capacity(slots.len() * 2);
        for placed in slots {
            let (data, header) =
                (geometry.slot_offset(placed.slot), geometry.header_offset(placed.slot));
            ranges.push(data..data + SLOT_LEN);
            ranges.push(header..header + BLOCK_LEN as u64);
        }
        ranges
    }

    /// The primary wants so many slots at once, by a number off the wire: twice as many are granted, up to half of the
    /// pool's.
    pub(super) fn handle_want_grant(&mut self, slots: u32) {
        let half = self.pool.counts().total / 2;
        self.grants.wanted = self.grants.wanted.max(slots.saturating_mul(2).min(half));
    }

    /// The primary shipped a file and flushed it.
    pub(super) fn handle_placement(&mut self, session: u64, file: ShippedFile) {
        if session != self.state.session && !self.has(Mutant::OldGrantsHonoured) {
            return; // of a connection that is gone; the primary ships it again
        }
        let id = file.file;
        let is_unneeded = self.grants.unneeded.remove(&id);
        let repairs = self.repairs.wants(id);
        let is_here = self.pool.placement(id).is_some() && !repairs;
        if is_unneeded || is_here || self.grants.is_arriving(id) {
            return self.return_slots(&file, is_unneeded);
        }
        let placement = Arc::new(FilePlacement {
            file: id,
            term: file.term,
            len: file.len,
            checksum: file.checksum,
            slots: file.slots.clone(),
        });
        self.outputs.push_back(Output::Target(TargetCommand::Revoke(self.ranges(&file.slots))));
        for placed in &file.slots {
            self.grants.free.remove(&placed.slot);
        }
        let seen = self.take_received(&file);
        let chunk_crcs = file.chunk_crcs.clone();
        self.counters.received_bytes += file.len;
        self.grants.arriving.insert(id, Arriving { placement: placement.clone(), repairs });
        if repairs {
            self.repairs.arrives(id);
        }
        if seen {
            self.place_arrived(id);
        } else {
            self.order_verify(VerifyOrder { placement, chunk_crcs });
        }
    }

    /// A file came that is here already or about to be, or that nothing needs: its slots can be used
    /// again.
    fn return_slots(&mut self, file: &ShippedFile, is_unneeded: bool) {
        let slots = file.slots.iter().filter(|placed| self.grants.free.contains(&placed.slot));
        let slots = slots.copied().collect();
        self.take_received(file);
        self.tell_grant(slots);
        // Of one whose place is not durable yet, or whose new place, it is said once that is.
        let id = file.file;
        if is_unneeded || self.files.get(id).is_some() && !self.repairs.is_coming(id) {
            let head = self.view.writer();
            self.tell(head, &NodeMessage::Have { file: file.file });
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
            all &= self.grants.received.remove(&key) == Some((len, *expected));
        }
        all
    }

    /// An arrived file is whole: its place is made durable.
    pub(super) fn place_arrived(&mut self, file: FileId) {
        let Some(Arriving { placement, repairs }) = self.grants.arriving.remove(&file) else {
            return;
        };
        if repairs {
            return self.place_repaired(&placement);
        }
        match self.pool.add_file((*placement).clone()) {
            Ok(()) => self.commits.staged.push(After::FilePlaced { file, tell: true }),
            Err(error) => self.refuse(error),
        }
    }

    /// A file that is damaged here arrived whole. Its slots are as good as new where an edit removed it
    /// meanwhile.
    fn place_repaired(&mut self, placement: &FilePlacement) {
        if self.repairs.is_arriving(placement.file) {
            return self.replace_damaged(placement.clone());
        }
        let slots = placement.slots.clone();
        self.grants.free.extend(slots.iter().map(|placed| placed.slot));
        self.admit(&slots);
        self.tell_grant(slots);
        // Else the primary keeps its bytes for us, and begins no jobs at last.
        let head = self.view.writer();
        self.tell(head, &NodeMessage::Have { file: placement.file });
    }

    /// An arrived file is not what it should be: the connection ends, and with it the session; the
    /// file is shipped again into other slots.
    pub(super) fn refuse_arrived(&mut self, file: FileId, error: Error) {
        if self.grants.arriving.remove(&file).is_some() {
            self.refuse(error);
        }
    }

    fn refuse(&mut self, reason: Error) {
        let peer = self.view.writer();
        self.outputs.push_back(Output::Disconnect { peer, connection: None, reason });
    }

    /// The primary gave up the job that made these files.
    pub(super) fn handle_discard(&mut self, files: &[FileId]) {
        let placed = files.iter().filter(|file| self.files.get(**file).is_some());
        let placed: Vec<FileId> = placed.copied().collect();
        if placed.is_empty() {
            return;
        }
        let live = self.live_files();
        for file in placed {
            if !live.contains(&file) && !self.apply.names(file) {
                self.drop_orphan(file);
            }
        }
    }

    /// Forgets files of older terms once the log is here up to the start of the current one: whatever
    /// an older term's primary wanted to say of them has been said.
    pub(super) fn drop_old_orphans(&mut self) {
        if let Some((term, start)) = self.grants.orphans_of
            && self.log.end() >= start
            && self.chain.term() == term
        {
            self.grants.orphans_of = None;
            self.drop_orphans(Some(term));
        }
    }

    /// Forgets files, made before a term if one is given, that no edit, applied or waiting, names: their
    /// job died with its primary.
    pub(super) fn drop_orphans(&mut self, before: Option<Term>) {
        let live = self.live_files();
        let orphans: Vec<FileId> = self
            .pool
            .files()
            .filter(|placement| before.is_none_or(|term| placement.term < term))
            .map(|placement| placement.file)
            .filter(|file| file.kind == gabion_base::FileKind::Sst)
            .filter(|file| !live.contains(file) && !self.apply.names(*file))
            .filter(|file| !self.jobs.build(*file) && !self.loads.made(*file))
            .collect();
        for file in orphans {
            self.drop_orphan(file);
        }
    }

    /// The files of the tree's current version. To be asked of many, it is made once: there may be as many in the pool.
    fn live_files(&self) -> BTreeSet<FileId> {
        self.tree.version().files().map(|(_, meta)| meta.id).collect()
    }

    pub(super) fn drop_orphan(&mut self, file: FileId) {
        self.ship.files_remove(file);
        self.repairs.forget(file);
        if let Err(error) = self.pool.retire_file(file) {
            return self.fatal(error);
        }
        self.files.remove(file);
        if let Err(error) = self.pool.free_file(file) {
            self.fatal(error);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NodeOptions;
    use crate::node::testing::{TAIL, one_of_two};

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
}

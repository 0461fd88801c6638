//! The primary's side of shipping: each built file goes to every secondary at once, into slots that
//! the secondary granted (RubbleDB §4.2.1). It goes from the aligned buffer in which it was built,
//! as in RubbleDB's code, so nobody reads again what was just written. A secondary that has lost a
//! file asks for it; it is read here and shipped again.
//!
//! A bit may flip in that buffer once the file's checksums are taken. Whoever is sent it refuses
//! it, its session ends, and the next one would begin with the same bytes. So what goes to a member
//! again is compared with its checksums first:
//!
//! ```text
//!   sent ─► refused, or the connection was lost ─► sent again ─┬─► whole
//!                                   the buffer is dropped, ◄───┘ rotten
//!                                   the session stays
//!      ─► its place is durable here ─► read back ─┬─► whole: shipped
//!                                                 └─► rotten here, too: its job is made anew
//! ```

use super::effects::{Effects, Signal};
use super::facts::{Facts, MetaOf};
use super::names::host_name;
use super::orders::Order;
use super::outgoing::{Outgoing, OutgoingFiles};
use super::{Counters, Output, RemoteCommand};
use crate::message::{NodeMessage, ShippedFile};
use crate::view::View;
use crate::work::{BuiltFile, ShipOrder, Shipped, VerifyOrder, Work};
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use bytes::Bytes;
use gabion_base::units::SLOT_LEN;
use gabion_base::{Error, FileId, ReplicaId, Result};
use gabion_engine::{Edit, FileMeta};
use gabion_pool::{FilePlacement, Geometry, Placed};

/// Shipments under way to one secondary: enough to fill its queue while another one flushes.
const SHIPMENTS_MAX: usize = 2;
/// Files that are being read back for one secondary, or were and wait for it: one is read while
/// another is shipped.
const READS_MAX: usize = 2;
/// Built files that wait for a member that is being filled: nobody waits for it.
const BESIDES_MAX: usize = 8;

/// Files on their way to secondaries.
#[derive(Default)]
pub(super) struct Shipping {
    remotes: BTreeMap<ReplicaId, Remote>,
    /// Those of them that are full members: an edit waits until each has its files.
    full: BTreeSet<ReplicaId>,
    files: OutgoingFiles,
    /// Files of jobs of this term that failed: nobody wants them wherever they arrive.
    discarded: BTreeSet<FileId>,
    shipped_bytes: u64,
    shipped_files: u64,
    reship_read_bytes: u64,
    rotten_buffers: u64,
}

/// Slots that a secondary grants, and where they are served.
pub(super) struct Granted {
    pub(super) session: u64,
    pub(super) pool_id: [u8; 16],
    pub(super) subsystem: String,
    pub(super) port: u16,
    pub(super) region: Geometry,
    pub(super) slots: Vec<Placed>,
}

/// A secondary as a place to ship to.
#[derive(Default)]
struct Remote {
    /// 0 while it has granted nothing on this connection.
    session: u64,
    pool_id: [u8; 16],
    geometry: Option<Geometry>,
    granted: VecDeque<Placed>,
    queue: VecDeque<FileId>,
    in_flight: BTreeMap<FileId, ShippedFile>,
    asked: bool,
}

impl Remote {
    /// Puts a file in line: that of a flush behind those of flushes, any other at the end.
    fn enqueue(&mut self, file: FileId, files: &OutgoingFiles) {
        let first = || self.queue.iter().take_while(|queued| files.is_flush(**queued)).count();
        let at = if files.is_flush(file) { first() } else { self.queue.len() };
        self.queue.insert(at, file);
    }
}

impl Shipping {
    /// For the members to whom a view has this replica ship.
    pub(super) fn to_members_of(view: &View) -> Self {
        let others = view.others().filter(|_| view.duties().ship);
        let remotes = others.map(|member| (member, Remote::default())).collect();
        let full = view.others_full().filter(|_| view.duties().ship).collect();
        Self { remotes, full, ..Self::default() }
    }

    /// Ships to the members to whom the view has this replica ship, from now on. Files of jobs
    /// under way go to these.
    pub(super) fn take_view(&mut self, view: &View) {
        let Self { remotes: next, full, .. } = Self::to_members_of(view);
        self.full = full;
        if next.is_empty() {
            self.files = OutgoingFiles::default();
            self.discarded.clear();
        }
        let mut before = core::mem::replace(&mut self.remotes, next);
        for (member, remote) in &mut self.remotes {
            // A late grant of an old session is not taken for a new one.
            let before = before.remove(member);
            let before = before.map_or((0, [0; 16]), |before| (before.session, before.pool_id));
            (remote.session, remote.pool_id) = before;
        }
    }

    // ---- questions

    /// Whether every secondary that is a full member holds the file.
    pub(super) fn held_everywhere(&self, file: FileId) -> bool {
        match self.files.get(file) {
            Some(outgoing) => self.full.is_subset(&outgoing.held_by),
            None => self.full.is_empty(),
        }
    }

    /// Whether a file that left the tree is still to be read for a secondary that lacks it.
    pub(super) fn is_to_be_read(&self, file: FileId) -> bool {
        self.files.is_to_be_read(file)
    }

    /// Whether a file that some secondary is to get is of a job whose edit is not applied here.
    pub(super) fn is_of_job(&self, file: FileId) -> Option<bool> {
        self.files.get(file).map(|outgoing| outgoing.of_job)
    }

    /// Where slots lie in a secondary's namespace, while the connection to it is of this session.
    pub(super) fn remote_geometry(&self, of: ReplicaId, session: u64) -> Option<Geometry> {
        let remote = self.remotes.get(&of)?;
        remote.geometry.clone().filter(|_| remote.session == session)
    }

    /// Bytes of memory that are kept until every secondary that is to have them does.
    pub(super) const fn unshipped(&self) -> u64 {
        self.files.kept()
    }

    /// Those of flushes.
    pub(super) const fn unshipped_of_flushes(&self) -> u64 {
        self.files.kept_of_flushes()
    }

    /// Those of some files.
    pub(super) fn kept_of_files(&self, files: &[Arc<FilePlacement>]) -> u64 {
        files.iter().map(|placement| self.files.kept_of(placement.file)).sum()
    }

    /// Whether files are shipped from here.
    pub(super) fn ships(&self) -> bool {
        !self.remotes.is_empty()
    }

    /// The files that were shipped.
    pub(super) const fn shipped_files(&self) -> u64 {
        self.shipped_files
    }

    /// As [`super::Node::shipping_to`].
    pub(super) fn status_of(&self, member: ReplicaId) -> (u64, usize, usize, usize) {
        let Some(remote) = self.remotes.get(&member) else { return (0, 0, 0, 0) };
        (remote.session, remote.granted.len(), remote.queue.len(), remote.in_flight.len())
    }

    pub(super) fn count_into(&self, counters: &mut Counters) {
        counters.shipped_bytes += self.shipped_bytes;
        counters.shipped_files += self.shipped_files;
        counters.reship_read_bytes += self.reship_read_bytes;
        counters.rotten_buffers += self.rotten_buffers;
    }

    /// Checks what holds between steps: nothing is on its way but into slots of a session.
    pub(super) fn invariants(&self) {
        self.files.invariants();
        for (to, remote) in &self.remotes {
            assert!(remote.in_flight.len() <= SHIPMENTS_MAX, "{to} is sent too much at a time");
            let has_slots = !remote.granted.is_empty() || !remote.in_flight.is_empty();
            assert!(remote.geometry.is_some() || !has_slots, "{to} has granted nothing");
            assert!(remote.session > 0 || remote.geometry.is_none(), "{to} has no session");
        }
    }

    // ---- files

    /// Ships a file that was built. That of a flush goes before what others made: writes may wait
    /// for it, and not for them.
    pub(super) fn ship(&mut self, file: &BuiltFile, is_flush: bool) {
        if self.full.is_empty() {
            return; // nobody waits for it, so nothing keeps its bytes once they are written
        }
        self.files.insert(file.meta.id, Outgoing::built(file, is_flush));
        // A member that is being filled asks for those that it lacks.
        for (_, remote) in self.remotes.iter_mut().filter(|(to, _)| self.full.contains(to)) {
            remote.enqueue(file.meta.id, &self.files);
        }
    }

    /// Ships a built file to a member that is being filled, too, unless enough waits for it.
    pub(super) fn ship_besides(&mut self, file: &BuiltFile, is_flush: bool, to: ReplicaId) {
        let takes = |remote: &&mut Remote| remote.queue.len() < BESIDES_MAX;
        let remote = self.remotes.get_mut(&to).filter(|_| !self.full.contains(&to));
        let Some(remote) = remote.filter(takes) else { return };
        if self.files.get(file.meta.id).is_none() {
            self.files.insert(file.meta.id, Outgoing::besides(file, is_flush, to));
        }
        self.files.change(file.meta.id, |outgoing| _ = outgoing.wanted_by.insert(to));
        remote.enqueue(file.meta.id, &self.files);
    }

    /// A file goes to nobody any more.
    pub(super) fn forget(&mut self, file: FileId) {
        self.files.remove(file);
    }

    /// The edit of these files is applied here: they are shipped on only to who asks for them.
    pub(super) fn forget_built(&mut self, edit: &Edit) {
        for meta in edit.made() {
            self.files.change(meta.id, |outgoing| outgoing.of_job = false);
        }
    }

    /// The files of a job that was given up go nowhere.
    pub(super) fn discard(&mut self, effects: &mut Effects, files: &[FileId]) {
        for file in files {
            self.files.remove(*file);
        }
        if files.is_empty() || self.remotes.is_empty() {
            return;
        }
        self.discarded.extend(files);
        for to in self.remotes.keys() {
            tell_discard(effects, *to, files);
        }
    }

    /// A term begins. Whoever takes part in it drops what was made before and no edit names
    /// (`drop_old_orphans`), and takes nothing more that was shipped in an older session.
    pub(super) fn forget_discarded(&mut self) {
        self.discarded.clear();
    }

    // ---- sessions

    /// A secondary granted slots.
    pub(super) fn granted(
        &mut self,
        facts: &Facts,
        effects: &mut Effects,
        from: ReplicaId,
        grant: Granted,
    ) {
        let Some(remote) = self.remotes.get_mut(&from) else { return };
        let Granted { session, pool_id, subsystem, port, region, slots } = grant;
        // Sessions are those of one pool: another disk of the member counts its own.
        let is_other_pool = remote.session > 0 && pool_id != remote.pool_id;
        let is_late =
            session < remote.session || (session == remote.session && remote.geometry.is_none());
        if is_late && !is_other_pool {
            if remote.geometry.is_none() {
                // Its disk may be an older one, which has it count from there.
                let session = remote.session;
                effects.tell_member(from, NodeMessage::KnownSession { session });
            }
            return;
        }
        let is_new = is_other_pool || session > remote.session;
        if is_new {
            let counts = self.full.contains(&from);
            let mut queue: VecDeque<_> = self.files.lacking_at(from, counts).collect();
            queue.make_contiguous().sort_by_key(|id| !self.files.is_flush(*id));
            *remote =
                Remote { session, pool_id, geometry: Some(region), queue, ..Remote::default() };
            let host = host_name(facts.config.group, facts.group_term(), facts.me);
            let connect = RemoteCommand::Connect { to: from, session, subsystem, port, host };
            effects.put_out(Output::Remote(connect));
        }
        remote.asked = false;
        remote.granted.extend(slots);
        if is_new {
            // What it said on the old connection of a file that had arrived, or was told there,
            // may be lost.
            let files: Vec<FileId> = self.discarded.iter().copied().collect();
            tell_discard(effects, from, &files);
        }
    }

    /// The connection with a member is gone: what was granted on it is void.
    pub(super) fn lose(&mut self, effects: &mut Effects, peer: ReplicaId) {
        let Some(remote) = self.remotes.get_mut(&peer) else { return };
        let (session, pool_id) = (remote.session, remote.pool_id);
        // Remember the session, so that a late grant of it is not taken for a new one.
        *remote = Remote { session, pool_id, ..Remote::default() };
        if session > 0 {
            effects.put_out(Output::Remote(RemoteCommand::Drop { to: peer }));
        }
        self.files.forget_wishes_of(peer);
    }

    /// The connection for files to a secondary failed. It belongs to a session, as that of the log
    /// does, and nothing but a new session brings another: without one no file would go over it
    /// again.
    pub(super) fn remote_failed(
        &mut self,
        effects: &mut Effects,
        peer: ReplicaId,
        session: u64,
        reason: Error,
    ) {
        if self.remotes.get(&peer).is_some_and(|remote| remote.session == session) {
            effects.disconnect(peer, reason);
        }
    }

    // ---- shipments

    pub(super) fn schedule(&mut self, facts: &Facts, effects: &mut Effects) {
        let remotes: Vec<ReplicaId> = self.remotes.keys().copied().collect();
        for to in remotes {
            while self.ship_next(facts, effects, to) {}
        }
    }

    /// Orders the next shipment to a secondary, if there is one and room for it.
    fn ship_next(&mut self, facts: &Facts, effects: &mut Effects, to: ReplicaId) -> bool {
        self.read_ahead(facts, effects, to);
        let Some(remote) = self.remotes.get_mut(&to) else { return false };
        let Some(geometry) = remote.geometry.clone() else { return false };
        if remote.in_flight.len() >= SHIPMENTS_MAX {
            return false;
        }
        // One that is to be read back may have no place here yet and wait for its job, and that may
        // wait until those behind it are shipped: they go first.
        let may_go = |file: &FileId| !self.files.is_to_be_read(*file);
        let Some(at) = remote.queue.iter().position(may_go) else { return false };
        let file = remote.queue[at];
        let Some((outgoing, bytes)) =
            self.files.get(file).and_then(|it| Some((it, it.bytes.clone()?)))
        else {
            remote.queue.remove(at);
            return true;
        };
        let wanted = (bytes.len() as u64).div_ceil(SLOT_LEN) as usize;
        if remote.granted.len() < wanted {
            if !core::mem::replace(&mut remote.asked, true) {
                effects.tell_member(to, NodeMessage::WantGrant { slots: wanted as u32 });
            }
            return false;
        }
        remote.queue.remove(at);
        let slots: Vec<Placed> = remote.granted.drain(..wanted).collect();
        let shipped = shipped_file(&outgoing.meta, slots);
        let is_again = self.files.note_sent(file, to);
        let session = remote.session;
        let order = ShipOrder {
            to,
            session,
            pool_id: remote.pool_id,
            geometry,
            group: facts.config.group,
            chunk_crcs: shipped.chunk_crcs.clone(),
            bytes,
            placement: FilePlacement {
                file,
                term: shipped.term,
                len: shipped.len,
                checksum: shipped.checksum,
                slots: shipped.slots.clone(),
            },
            is_again,
        };
        remote.in_flight.insert(file, shipped);
        effects.begin(Order::Ship { to, session, file }, Work::Ship(Box::new(order)));
        true
    }

    /// Reads the next files here that a secondary is to get and that are not in memory.
    fn read_ahead(&mut self, facts: &Facts, effects: &mut Effects, to: ReplicaId) {
        let Some(remote) = self.remotes.get(&to).filter(|it| it.geometry.is_some()) else { return };
        let is_readable =
            |file: &&FileId| self.files.is_unread(**file) && facts.place(**file).is_some();
        let is_ahead = |file: &&FileId| self.files.is_read_for(**file, to);
        let ahead = remote.queue.iter().filter(is_ahead).take(READS_MAX).count();
        let next = remote.queue.iter().filter(is_readable).take(READS_MAX - ahead).copied();
        let next: Vec<FileId> = next.collect();
        next.into_iter().for_each(|file| self.read_back(facts, effects, file));
    }

    /// Reads a file here, to be shipped, unless that is under way.
    fn read_back(&mut self, facts: &Facts, effects: &mut Effects, file: FileId) {
        let Some(outgoing) = self.files.get(file).filter(|outgoing| !outgoing.reading) else {
            return;
        };
        let chunk_crcs = outgoing.meta.chunk_crcs.clone();
        let Some(placement) = facts.place(file) else { return };
        self.files.change(file, |outgoing| outgoing.reading = true);
        self.reship_read_bytes += placement.len;
        let order = VerifyOrder { placement: placement.clone(), chunk_crcs };
        effects.begin(Order::ReadFile(placement), Work::ReadFile(order));
    }

    pub(super) fn ship_done(
        &mut self,
        facts: &Facts,
        effects: &mut Effects,
        (to, session, file): (ReplicaId, u64, FileId),
        result: Result<Shipped>,
    ) {
        let Some(remote) = self.remotes.get_mut(&to) else { return };
        if remote.session != session {
            return;
        }
        let Some(shipped) = remote.in_flight.remove(&file) else { return };
        match result {
            Ok(Shipped::Whole) => {
                self.shipped_bytes += shipped.len;
                self.shipped_files += 1;
                effects.tell_member(to, NodeMessage::Placement { session, file: shipped });
            }
            Ok(Shipped::Rotten(error)) => self.ship_rotten(facts, effects, to, shipped, &error),
            // Never again into these slots: a new connection brings a new session and other slots.
            Err(reason) => self.remote_failed(effects, to, session, reason),
        }
    }

    /// What was to be shipped again is not what was built any more. Nothing of it was written, so
    /// its slots are as they were granted; its bytes come from here, where they were written, once
    /// that is durable.
    fn ship_rotten(
        &mut self,
        facts: &Facts,
        effects: &mut Effects,
        to: ReplicaId,
        shipped: ShippedFile,
        error: &Error,
    ) {
        let file = shipped.file;
        self.rotten_buffers += 1;
        effects.notice(format!(
            "{file} rotted in memory and is not shipped from there again: {error}"
        ));
        if let Some(remote) = self.remotes.get_mut(&to) {
            shipped.slots.into_iter().rev().for_each(|placed| remote.granted.push_front(placed));
        }
        self.files.change(file, |outgoing| outgoing.bytes = None);
        let Some(outgoing) = self.files.get(file) else { return };
        if !outgoing.of_job && facts.place(file).is_none() {
            // An edit removed it meanwhile: see `need_file`.
            return self.forget(file);
        }
        let is_lacking = outgoing.is_lacking_at(to, self.full.contains(&to));
        if let Some(remote) = self.remotes.get_mut(&to).filter(|_| is_lacking) {
            remote.enqueue(file, &self.files);
        }
    }

    /// A secondary has a file.
    pub(super) fn have(&mut self, effects: &mut Effects, from: ReplicaId, file: FileId) {
        if self.files.get(file).is_none() {
            // It arrived after it was told that nobody wants it.
            if self.discarded.contains(&file) {
                effects.tell_member(from, NodeMessage::Discard { files: alloc::vec![file] });
            }
            return;
        }
        self.files.change(file, |outgoing| {
            outgoing.held_by.insert(from);
            outgoing.wanted_by.remove(&from);
        });
        if self.held_everywhere(file) {
            self.files.change(file, |outgoing| outgoing.bytes = None);
        }
    }

    /// A secondary lacks a file that an edit names: it is read here and shipped, unless it
    /// `is_damaged` here. One that is here no more was removed by an edit that the secondary has or
    /// will have in its log, and that it then applies together with the one that names the file:
    /// there is nothing to be done.
    pub(super) fn need_file(
        &mut self,
        facts: &Facts,
        effects: &mut Effects,
        meta_of: MetaOf,
        is_damaged: bool,
        from: ReplicaId,
        file: FileId,
    ) {
        if !self.remotes.contains_key(&from) || facts.place(file).is_none() {
            return;
        }
        if is_damaged {
            return effects.tell_member(from, NodeMessage::NoCopy { file });
        }
        if self.files.get(file).is_none() {
            let Some(meta) = meta_of(file) else { return };
            self.files.insert(file, Outgoing::lost(meta, from));
        }
        self.files.change(file, |outgoing| {
            outgoing.held_by.remove(&from);
            outgoing.wanted_by.insert(from);
        });
        if let Some(remote) = self.remotes.get_mut(&from)
            && !remote.queue.contains(&file)
            && !remote.in_flight.contains_key(&file)
        {
            remote.queue.push_back(file);
        }
    }

    /// A file was read back, to be shipped again.
    pub(super) fn reread(&mut self, file: FileId, bytes: Bytes) {
        self.files.change(file, |outgoing| {
            outgoing.reading = false;
            outgoing.memory = bytes.len() as u64;
            outgoing.bytes = Some(bytes);
        });
    }

    /// What was read, to be shipped again, is not what was written: whoever asked for it asks again
    /// later.
    pub(super) fn reread_failed(
        &mut self,
        effects: &mut Effects,
        from: &Arc<FilePlacement>,
        error: Error,
    ) {
        let file = from.file;
        let mut wanted_by = BTreeSet::new();
        self.files.change(file, |outgoing| {
            outgoing.reading = false;
            wanted_by = core::mem::take(&mut outgoing.wanted_by);
        });
        for remote in self.remotes.values_mut() {
            remote.queue.retain(|queued| *queued != file);
        }
        effects.signal(Signal::DamagedAt { place: from.clone(), error });
        for to in wanted_by {
            effects.tell_member(to, NodeMessage::NoCopy { file });
        }
    }
}

fn tell_discard(effects: &mut Effects, to: ReplicaId, files: &[FileId]) {
    for message in NodeMessage::discards(files) {
        effects.tell_member(to, message);
    }
}

fn shipped_file(meta: &FileMeta, slots: Vec<Placed>) -> ShippedFile {
    ShippedFile {
        file: meta.id,
        term: meta.term,
        len: meta.rounded_len(),
        checksum: meta.checksum,
        chunk_crcs: meta.chunk_crcs.clone(),
        slots,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NodeOptions;
    use crate::node::Node;
    use crate::node::effects::Effect;
    use crate::node::facts::facts;
    use crate::node::testing::{self, HEAD, TAIL, one_of_two, ordered, placed};
    use crate::work::{Done, WorkId, run_ship};
    use gabion_base::units::MIB;
    use gabion_base::{FileKind, Generation, GroupId, SlotIndex, Term, crc};
    use gabion_engine::{FileMeta, JobKind};
    use gabion_media::AlignedBuf;
    use gabion_media::simulated::{DiskOptions, SimulatedDisk};

    fn primary(unshipped_bytes_max: u64) -> Node {
        one_of_two(HEAD, NodeOptions { unshipped_bytes_max, ..NodeOptions::default() })
    }

    fn built(number: u64, memory: u64) -> BuiltFile {
        BuiltFile { memory, ..testing::built(FileId::sst(number), Term(1), Vec::new(), 10) }
    }

    /// A file that was built into a slot of the pool.
    fn built_here(node: &mut Node, number: u64, memory: u64) -> BuiltFile {
        let slots = node.pool.allocate(1).unwrap();
        BuiltFile { memory, ..testing::built(FileId::sst(number), Term(1), slots, 4_096) }
    }

    fn queue(node: &Node) -> Vec<u64> {
        node.ship.remotes[&TAIL].queue.iter().map(|file| file.number).collect()
    }

    /// The secondary grants slots in a session.
    fn grant(node: &mut Node, session: u64, slots: core::ops::Range<u32>) -> Vec<Placed> {
        let generation = Generation(session);
        let slots = slots.map(|slot| Placed { slot: SlotIndex(slot), generation });
        let slots: Vec<Placed> = slots.collect();
        node.handle_grant(
            TAIL,
            session,
            [2; 16],
            (String::from("s"), 1),
            Geometry::new(0, 64),
            slots.clone(),
        );
        slots
    }

    fn work(node: &mut Node) -> Option<(WorkId, Work)> {
        node.schedule_shipping();
        ordered(node)
    }

    fn shipment(node: &mut Node) -> (WorkId, Box<ShipOrder>) {
        match work(node) {
            Some((id, Work::Ship(order))) => (id, order),
            _ => panic!("no shipment is ordered"),
        }
    }

    fn rotten() -> Done {
        Done::Ship(Ok(Shipped::Rotten(Error::corruption("a bit flipped"))))
    }

    /// docs/faults.md: E17
    #[test]
    fn what_goes_again_is_compared_and_what_rotted_is_read_back_once_it_has_its_place() {
        let mut node = primary(100);
        let file = built_here(&mut node, 1, 8_192);
        node.ship.ship(&file, true);
        grant(&mut node, 1, 0..3);
        let (id, order) = shipment(&mut node);
        assert!(!order.is_again, "nothing is compared the first time");
        node.handle_done(id, Done::Ship(Err(Error::unavailable("the target refused it"))));
        node.forget_remote(TAIL);
        let slots = grant(&mut node, 2, 3..6);
        let (id, order) = shipment(&mut node);
        assert!(order.is_again);
        assert_eq!(order.placement.slots, slots[..1]);
        node.handle_done(id, rotten());
        assert_eq!(node.ship.remotes[&TAIL].granted, slots, "nothing was written there");
        assert_eq!((node.unshipped_bytes(), node.ship.unshipped_of_flushes()), (0, 0));
        assert_eq!(node.counters().rotten_buffers, 1);
        node.schedule_shipping();
        let said: Vec<Output> = core::iter::from_fn(|| node.poll_output()).collect();
        assert!(matches!(said[..], [Output::Notice(_)]), "no order, and the session stays");
        placed(&mut node, &file);
        let Some((id, Work::ReadFile(order))) = work(&mut node) else { panic!("it is not read") };
        assert_eq!(order.placement, file.placement);
        node.handle_done(id, Done::ReadFile(Ok(file.bytes.clone())));
        assert_eq!((node.unshipped_bytes(), node.ship.unshipped_of_flushes()), (4_096, 4_096));
        let (id, order) = shipment(&mut node);
        assert!(order.is_again);
        assert_eq!(order.placement.slots, slots[..1]);
        node.handle_done(id, Done::Ship(Ok(Shipped::Whole)));
        assert_eq!(node.counters().shipped_files, 1);
        node.handle_have(TAIL, file.meta.id);
        assert_eq!(node.unshipped_bytes(), 0);
    }

    /// The job that is to give it a place may wait until the others are shipped.
    /// docs/faults.md: E17
    #[test]
    fn what_waits_for_its_place_to_be_read_back_holds_up_nothing_behind_it() {
        let mut node = primary(100);
        let (first, second) = (built_here(&mut node, 1, 60), built(2, 60));
        node.ship.ship(&first, false);
        node.ship.ship(&second, false);
        node.ship.files.change(first.meta.id, |outgoing| outgoing.bytes = None);
        grant(&mut node, 1, 0..3);
        let (_, order) = shipment(&mut node);
        assert_eq!(order.placement.file, second.meta.id);
        assert_eq!(queue(&node), [1]);
        placed(&mut node, &first);
        assert!(matches!(work(&mut node), Some((_, Work::ReadFile(_)))));
    }

    /// One read after the other would leave device and link idle in turn.
    #[test]
    fn files_that_a_member_lacks_are_read_two_at_a_time_and_shipped_as_they_come() {
        let mut node = primary(100);
        let files: Vec<_> = (1..=3).map(|number| built_here(&mut node, number, 8_192)).collect();
        for file in &files {
            placed(&mut node, file);
            node.ship.files.insert(file.meta.id, Outgoing::lost(file.meta.clone(), TAIL));
        }
        grant(&mut node, 1, 0..3);
        let mut reads = Vec::new();
        while let Some((id, Work::ReadFile(order))) = work(&mut node) {
            reads.push((id, order.placement.file));
        }
        let [(_, first), (id, second)] = reads[..] else { panic!("{reads:?}") };
        assert_eq!([first, second], [files[0].meta.id, files[1].meta.id]);
        node.handle_done(id, Done::ReadFile(Ok(files[1].bytes.clone())));
        assert_eq!(shipment(&mut node).1.placement.file, second, "it waits for none before it");
        let Some((_, Work::ReadFile(order))) = work(&mut node) else { panic!("none is read") };
        assert_eq!(order.placement.file, files[2].meta.id);
    }

    /// A member that grants no slots takes nothing, and what is read for it would fill the memory.
    #[test]
    fn no_more_files_are_read_back_than_wait_to_be_shipped() {
        let mut node = primary(100);
        let files: Vec<_> = (1..=5).map(|number| built_here(&mut node, number, 8_192)).collect();
        for file in &files {
            placed(&mut node, file);
            node.ship.files.insert(file.meta.id, Outgoing::lost(file.meta.clone(), TAIL));
        }
        grant(&mut node, 1, 0..0);
        let mut reads = 0;
        while let Some((id, Work::ReadFile(order))) = work(&mut node) {
            let file = files.iter().find(|file| file.meta.id == order.placement.file).unwrap();
            node.handle_done(id, Done::ReadFile(Ok(file.bytes.clone())));
            reads += 1;
        }
        assert_eq!(reads, READS_MAX);
    }

    #[test]
    fn the_files_that_an_edit_brings_leave_with_it_those_of_values_too() {
        let mut node = primary(100);
        let sst = built_here(&mut node, 1, 8_192);
        let mut values = built_here(&mut node, 2, 8_192);
        let file = FileId { kind: FileKind::Values, number: 2 };
        values.meta = Arc::new(FileMeta { id: file, ..(*values.meta).clone() });
        for built in [&sst, &values] {
            node.ship.files.insert(built.meta.id, Outgoing::built(built, true));
        }
        let edit = Edit {
            number: 1,
            kind: JobKind::Flush,
            term: Term(1),
            removed: Vec::new(),
            added: alloc::vec![(0, (*sst.meta).clone())],
            values: alloc::vec![(*values.meta).clone()],
            flushed: None,
            next_file: 3,
            floor: None,
            recipe: None,
        };
        node.ship.forget_built(&edit);
        assert_eq!(node.ship.files.kept(), 0, "of bytes that nobody is to be sent");
        assert!(node.ship.files.get(file).is_none());
    }

    /// docs/faults.md: E17
    #[test]
    fn what_rotted_and_is_wanted_no_more_is_not_read_back() {
        let mut node = primary(100);
        let (held, lost) = (built(1, 60), built(2, 60));
        node.ship.ship(&held, false);
        grant(&mut node, 1, 0..3);
        let (id, _) = shipment(&mut node);
        // It had arrived on the connection before.
        node.handle_have(TAIL, held.meta.id);
        node.handle_done(id, rotten());
        assert!(queue(&node).is_empty());
        // An edit removed it while it was on its way.
        node.ship.files.insert(lost.meta.id, Outgoing::lost(lost.meta.clone(), TAIL));
        node.reread_done(&lost.placement, Ok(lost.bytes.clone()));
        let slots = grant(&mut node, 2, 3..6);
        let (id, _) = shipment(&mut node);
        node.handle_done(id, rotten());
        assert!(node.ship.files.get(lost.meta.id).is_none() && queue(&node).is_empty());
        assert_eq!(node.ship.remotes[&TAIL].granted, slots);
    }

    /// docs/faults.md: E17
    #[test]
    fn what_rotted_is_not_written_when_it_goes_again() {
        let disk = SimulatedDisk::new(DiskOptions::immediate(16 * MIB));
        let handle = disk.handle();
        let bytes = AlignedBuf::zeroed(4_096).freeze();
        let placed = Placed { slot: SlotIndex(1), generation: Generation(1) };
        let order = |checksum: u32, is_again: bool| ShipOrder {
            to: TAIL,
            session: 1,
            pool_id: [2; 16],
            geometry: Geometry::new(0, 4),
            group: GroupId(1),
            chunk_crcs: alloc::vec![checksum],
            bytes: bytes.clone(),
            placement: FilePlacement {
                file: FileId::sst(1),
                term: Term(1),
                len: 4_096,
                checksum,
                slots: alloc::vec![placed],
            },
            is_again,
        };
        let whole = crc::crc32c(&bytes);
        for (checksum, is_again) in
            [(whole, false), (whole ^ 1, false), (whole, true), (whole ^ 1, true)]
        {
            let is_written = checksum == whole || !is_again;
            let before = disk.stats().writes;
            let order = order(checksum, is_again);
            let shipped = disk.block_on(&handle, run_ship(&order, &handle)).unwrap();
            assert_eq!(matches!(shipped, Shipped::Whole), is_written, "{checksum} {is_again}");
            assert_eq!(disk.stats().writes > before, is_written, "{checksum} {is_again}");
        }
    }

    /// docs/faults.md: P8
    #[test]
    fn flushes_wait_neither_behind_files_of_compactions_nor_for_them() {
        let mut node = primary(100);
        for (number, is_flush) in [(1, false), (2, false), (3, true), (4, false), (5, true)] {
            node.ship.ship(&built(number, 30), is_flush);
        }
        assert_eq!(queue(&node), [3, 5, 1, 2, 4]);
        assert!(node.unshipped().is_too_much(), "150 of 100 bytes");
        assert!(!node.unshipped().flushes_are_too_much(), "60 of 100 bytes");
        node.ship.ship(&built(6, 41), true);
        assert!(node.unshipped().flushes_are_too_much(), "101 of 100 bytes");
        node.handle_have(TAIL, FileId::sst(5));
        assert!(!node.unshipped().flushes_are_too_much(), "71 of 100 bytes");
        // A new session begins anew, in the same order.
        let subsystem = String::from("s");
        node.handle_grant(TAIL, 7, [2; 16], (subsystem, 1), Geometry::new(0, 64), Vec::new());
        assert_eq!(queue(&node), [3, 6, 1, 2, 4]);
    }

    #[test]
    fn what_is_unshipped_is_the_memory_that_it_keeps() {
        let mut node = primary(100);
        node.ship.ship(&built(1, 4_096), false);
        assert_eq!(node.unshipped_bytes(), 4_096);
        node.handle_have(TAIL, FileId::sst(1));
        assert_eq!(node.unshipped_bytes(), 0);
    }

    #[test]
    fn what_is_read_to_be_shipped_again_counts_until_nobody_wants_it() {
        let mut node = primary(100);
        let file = built(1, 4_096);
        node.ship.files.insert(file.meta.id, Outgoing::lost(file.meta.clone(), TAIL));
        assert_eq!(node.unshipped_bytes(), 0, "it is not read yet");
        node.reread_done(&file.placement, Ok(file.bytes.clone()));
        assert_eq!((node.unshipped_bytes(), node.ship.unshipped_of_flushes()), (10, 0));
        // The same file once more takes the place of what was known of it.
        node.ship.ship(&file, true);
        assert_eq!((node.unshipped_bytes(), node.ship.unshipped_of_flushes()), (4_096, 4_096));
        node.ship.discard(&mut node.effects, &[file.meta.id]);
        assert_eq!((node.unshipped_bytes(), node.ship.unshipped_of_flushes()), (0, 0));
        node.ship.files.insert(file.meta.id, Outgoing::lost(file.meta.clone(), TAIL));
        node.reread_done(&file.placement, Ok(file.bytes));
        node.forget_remote(TAIL);
        assert_eq!(node.unshipped_bytes(), 0, "who wanted it is gone");
        assert!(node.ship.files.get(file.meta.id).is_none());
    }

    #[test]
    fn what_is_said_of_an_older_session_changes_nothing() {
        let node = primary(100);
        let (mut ship, mut asked) = (Shipping::to_members_of(&node.view), Effects::default());
        let grant = |session: u64| {
            let (subsystem, slots) = (String::from("s"), Vec::new());
            Granted {
                session,
                pool_id: [2; 16],
                subsystem,
                port: 1,
                region: Geometry::new(0, 64),
                slots,
            }
        };
        let mut next = |ship: &mut Shipping, session: u64| {
            ship.granted(&facts!(node), &mut asked, TAIL, grant(session));
            ship.remote_failed(&mut asked, TAIL, 1, Error::unavailable("the link is cut"));
            ship.invariants();
            core::iter::from_fn(|| asked.next_effect()).count()
        };
        assert_eq!(next(&mut ship, 2), 1, "it connects, and the failure is of another session");
        assert_eq!(next(&mut ship, 1), 0);
        assert!(ship.remote_geometry(TAIL, 1).is_none());
        assert!(ship.remote_geometry(TAIL, 2).is_some());
        ship.lose(&mut asked, TAIL);
        assert!(matches!(asked.next_effect(), Some(Effect::Output(Output::Remote(_)))));
        assert!(ship.remote_geometry(TAIL, 2).is_none());
        ship.invariants();
        // A late grant of a session that is over, or a disk that was set back and counts again.
        ship.granted(&facts!(node), &mut asked, TAIL, grant(2));
        assert!(ship.remote_geometry(TAIL, 2).is_none());
        let Some(Effect::Tell(TAIL, said)) = asked.next_effect() else { panic!("nothing is said") };
        assert_eq!(said, NodeMessage::KnownSession { session: 2 });
        // Another disk, which counts its own.
        let other = Granted { pool_id: [3; 16], ..grant(1) };
        ship.granted(&facts!(node), &mut asked, TAIL, other);
        assert!(ship.remote_geometry(TAIL, 1).is_some());
        ship.invariants();
    }
}

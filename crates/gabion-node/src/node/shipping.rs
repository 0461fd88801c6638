//! The primary's side of shipping: each built file goes to every secondary at once, into slots that
//! the secondary granted (RubbleDB §4.2.1). It goes from the aligned buffer in which it was built,
//! as in RubbleDB's code, so nobody reads again what was just written. A secondary that has lost a
//! file asks for it; it is read here and shipped again.
//!
//! A bit may flip in that buffer once the file's checksums are taken. Whoever is sent it refuses it, its session ends, and
//! the next one would begin with the same bytes. So what goes to a member again is compared with its checksums first:
//!
//! ```text
//!   sent ─► refused, or the connection was lost ─► sent again ─┬─► whole
//!                                                              └─► rotten: the buffer is dropped, the session stays
//!      ─► its place is durable here ─► read back ─┬─► whole: shipped
//!                                                 └─► rotten here, too: its job is made anew
//! ```

use super::outgoing::{Outgoing, OutgoingFiles};
use super::{Node, Order, Output, RemoteCommand};
use crate::message::{NodeMessage, ShippedFile};
use crate::node::grants::host_name;
use crate::view::View;
use crate::work::{BuiltFile, ShipOrder, Shipped, Work};
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

/// Files on their way to secondaries.
#[derive(Default)]
pub(super) struct Shipping {
    remotes: BTreeMap<ReplicaId, Remote>,
    files: OutgoingFiles,
    /// Files of jobs of this term that failed: nobody wants them wherever they arrive.
    discarded: BTreeSet<FileId>,
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
        Self { remotes, ..Self::default() }
    }

    /// A term begins. Whoever takes part in it drops what was made before and no edit names (`drop_old_orphans`), and
    /// takes nothing more that was shipped in an older session.
    pub(super) fn forget_discarded(&mut self) {
        self.discarded.clear();
    }

    /// Bytes of memory that are kept of some files.
    pub(super) fn kept_of(&self, files: &[Arc<FilePlacement>]) -> u64 {
        files.iter().map(|placement| self.files.kept_of(placement.file)).sum()
    }

    pub(super) fn files_remove(&mut self, file: FileId) {
        self.files.remove(file);
    }
}

impl Node {
    /// Ships to the members to whom the view has this replica ship, from now on. Files of jobs under
    /// way go to these.
    pub(super) fn ship_to(&mut self, view: &View) {
        let next = Shipping::to_members_of(view);
        if next.remotes.is_empty() {
            self.ship = next;
            return;
        }
        let mut before = core::mem::replace(&mut self.ship.remotes, next.remotes);
        for (member, remote) in &mut self.ship.remotes {
            // A late grant of an old session is not taken for a new one.
            remote.session = before.remove(member).map_or(0, |before| before.session);
        }
    }

    /// Ships a file that was built. That of a flush goes before what others made: writes may wait for it, and not for them.
    pub(super) fn ship_built(&mut self, file: &BuiltFile, is_flush: bool) {
        if self.ship.remotes.is_empty() {
            return; // nobody waits for it, so nothing keeps its bytes once they are written
        }
        self.ship.files.insert(file.meta.id, Outgoing::built(file, is_flush));
        let Shipping { remotes, files, .. } = &mut self.ship;
        for remote in remotes.values_mut() {
            remote.enqueue(file.meta.id, files);
        }
    }

    /// Whether every secondary holds the file.
    pub(super) fn held_everywhere(&self, file: FileId) -> bool {
        match self.ship.files.get(file) {
            Some(outgoing) => self.ship.remotes.keys().all(|to| outgoing.held_by.contains(to)),
            None => self.ship.remotes.is_empty(),
        }
    }

    /// A secondary granted slots.
    pub(super) fn handle_grant(
        &mut self,
        from: ReplicaId,
        session: u64,
        pool_id: [u8; 16],
        (subsystem, port): (String, u16),
        region: Geometry,
        slots: Vec<Placed>,
    ) {
        let Some(remote) = self.ship.remotes.get_mut(&from) else { return };
        if session < remote.session {
            return;
        }
        let is_new = session > remote.session;
        if is_new {
            let mut queue: VecDeque<_> = self.ship.files.lacking_at(from).collect();
            queue.make_contiguous().sort_by_key(|id| !self.ship.files.is_flush(*id));
            *remote =
                Remote { session, pool_id, geometry: Some(region), queue, ..Remote::default() };
            let host = host_name(self.config.group, self.chain.term(), self.me);
            let connect = RemoteCommand::Connect { to: from, session, subsystem, port, host };
            self.outputs.push_back(Output::Remote(connect));
        }
        remote.asked = false;
        remote.granted.extend(slots);
        if is_new {
            self.discard_again(from);
        }
    }

    /// The connection with a member is gone: what was granted on it is void.
    pub(super) fn forget_remote(&mut self, peer: ReplicaId) {
        let Some(remote) = self.ship.remotes.get_mut(&peer) else { return };
        let session = remote.session;
        // Remember the session, so that a late grant of it is not taken for a new one.
        *remote = Remote { session, ..Remote::default() };
        if session > 0 {
            self.outputs.push_back(Output::Remote(RemoteCommand::Drop { to: peer }));
        }
        self.ship.files.forget_wishes_of(peer);
    }

    pub(super) fn schedule_shipping(&mut self) {
        let remotes: Vec<ReplicaId> = self.ship.remotes.keys().copied().collect();
        for to in remotes {
            while self.ship_next(to) {}
        }
    }

    /// Orders the next shipment to a secondary, if there is one and room for it.
    fn ship_next(&mut self, to: ReplicaId) -> bool {
        let Some(remote) = self.ship.remotes.get_mut(&to) else { return false };
        let Some(geometry) = remote.geometry.clone() else { return false };
        if remote.in_flight.len() >= SHIPMENTS_MAX {
            return false;
        }
        // One that is to be read back and has no place here yet waits for its job, and that may wait until those behind it
        // are shipped: they go first.
        let may_go = |file: &FileId| {
            !self.ship.files.is_to_be_read(*file) || self.files.get(*file).is_some()
        };
        let Some(at) = remote.queue.iter().position(may_go) else { return false };
        let file = remote.queue[at];
        let Some(outgoing) = self.ship.files.get(file) else {
            remote.queue.remove(at);
            return true;
        };
        let Some(bytes) = outgoing.bytes.clone() else {
            if !outgoing.reading
                && let Some(placement) = self.files.get(file)
            {
                self.ship.files.change(file, |outgoing| outgoing.reading = true);
                self.counters.reship_read_bytes += placement.len;
                self.order(Order::ReadFile(placement.clone()), Work::ReadFile(placement));
            }
            return false;
        };
        let wanted = (bytes.len() as u64).div_ceil(SLOT_LEN) as usize;
        if remote.granted.len() < wanted {
            if !core::mem::replace(&mut remote.asked, true) {
                self.tell(to, &NodeMessage::WantGrant { slots: wanted as u32 });
            }
            return false;
        }
        remote.queue.remove(at);
        let slots: Vec<Placed> = remote.granted.drain(..wanted).collect();
        let shipped = shipped_file(&outgoing.meta, slots);
        let is_again = self.ship.files.note_sent(file, to);
        let order = ShipOrder {
            to,
            session: remote.session,
            pool_id: remote.pool_id,
            geometry,
            group: self.config.group,
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
        let session = remote.session;
        remote.in_flight.insert(file, shipped);
        self.order(Order::Ship { to, session, file }, Work::Ship(Box::new(order)));
        true
    }

    pub(super) fn ship_done(
        &mut self,
        to: ReplicaId,
        session: u64,
        file: FileId,
        result: Result<Shipped>,
    ) {
        let Some(remote) = self.ship.remotes.get_mut(&to) else { return };
        if remote.session != session {
            return;
        }
        let Some(shipped) = remote.in_flight.remove(&file) else { return };
        match result {
            Ok(Shipped::Whole) => {
                self.counters.shipped_bytes += shipped.len;
                self.counters.shipped_files += 1;
                self.tell(to, &NodeMessage::Placement { session, file: shipped });
            }
            Ok(Shipped::Rotten(error)) => self.ship_rotten(to, shipped, &error),
            // Never again into these slots: a new connection brings a new session and other slots.
            Err(reason) => self.lose_remote(to, session, reason),
        }
    }

    /// What was to be shipped again is not what was built any more. Nothing of it was written, so its slots are as they
    /// were granted; its bytes come from here, where they were written, once that is durable.
    fn ship_rotten(&mut self, to: ReplicaId, shipped: ShippedFile, error: &Error) {
        let file = shipped.file;
        self.counters.rotten_buffers += 1;
        self.say(format!("{file} rotted in memory and is not shipped from there again: {error}"));
        if let Some(remote) = self.ship.remotes.get_mut(&to) {
            shipped.slots.into_iter().rev().for_each(|placed| remote.granted.push_front(placed));
        }
        self.ship.files.change(file, |outgoing| outgoing.bytes = None);
        let Some(outgoing) = self.ship.files.get(file) else { return };
        if !outgoing.of_job && self.files.get(file).is_none() {
            // An edit removed it meanwhile: see `handle_need_file`.
            return self.ship.files_remove(file);
        }
        let is_lacking = outgoing.is_lacking_at(to);
        let Shipping { remotes, files, .. } = &mut self.ship;
        if let Some(remote) = remotes.get_mut(&to).filter(|_| is_lacking) {
            remote.enqueue(file, files);
        }
    }

    /// The connection for files to a secondary failed. It belongs to a session, as that of the log does, and
    /// nothing but a new session brings another: without one no file would go over it again.
    pub(super) fn lose_remote(&mut self, peer: ReplicaId, session: u64, reason: Error) {
        if self.ship.remotes.get(&peer).is_some_and(|remote| remote.session == session) {
            self.outputs.push_back(Output::Disconnect { peer, connection: None, reason });
        }
    }

    pub(super) fn handle_have(&mut self, from: ReplicaId, file: FileId) {
        if self.ship.files.get(file).is_none() {
            // It arrived after it was told that nobody wants it.
            if self.ship.discarded.contains(&file) {
                self.tell(from, &NodeMessage::Discard { files: alloc::vec![file] });
            }
            return;
        }
        self.ship.files.change(file, |outgoing| {
            outgoing.held_by.insert(from);
            outgoing.wanted_by.remove(&from);
        });
        if self.held_everywhere(file) {
            self.ship.files.change(file, |outgoing| outgoing.bytes = None);
        }
    }

    /// A secondary lacks a file that an edit names: it is read here and shipped. One that is here no
    /// more was removed by an edit that the secondary has or will have in its log, and that it then
    /// applies together with the one that names the file: there is nothing to be done.
    pub(super) fn handle_need_file(&mut self, from: ReplicaId, file: FileId) {
        if !self.ship.remotes.contains_key(&from) || self.files.get(file).is_none() {
            return;
        }
        if self.repairs.is_damaged(file) {
            return self.tell(from, &NodeMessage::NoCopy { file });
        }
        if self.ship.files.get(file).is_none() {
            let Some(meta) = self.meta_of(file) else { return };
            self.ship.files.insert(file, Outgoing::lost(meta, from));
        }
        self.ship.files.change(file, |outgoing| {
            outgoing.held_by.remove(&from);
            outgoing.wanted_by.insert(from);
        });
        if let Some(remote) = self.ship.remotes.get_mut(&from)
            && !remote.queue.contains(&file)
            && !remote.in_flight.contains_key(&file)
        {
            remote.queue.push_back(file);
        }
    }

    /// Whether a file that left the tree is still to be read for a secondary that lacks it.
    pub(super) fn is_to_be_read(&self, file: FileId) -> bool {
        self.ship.files.is_to_be_read(file)
    }

    pub(super) fn reread_done(&mut self, from: &FilePlacement, result: Result<Bytes>) {
        let file = from.file;
        match result {
            Ok(bytes) => self.ship.files.change(file, |outgoing| {
                outgoing.reading = false;
                outgoing.memory = bytes.len() as u64;
                outgoing.bytes = Some(bytes);
            }),
            Err(error) => self.cannot_ship_again(from, error),
        }
    }

    /// What was read, to be shipped again, is not what was written: who asked for it asks again later. One that no edit
    /// names is made anew, as nobody has it to repair it from.
    fn cannot_ship_again(&mut self, from: &FilePlacement, error: Error) {
        let file = from.file;
        let Some(outgoing) = self.ship.files.get(file) else { return };
        if outgoing.of_job && self.give_up_built(file, &error) {
            return;
        }
        let mut wanted_by = BTreeSet::new();
        self.ship.files.change(file, |outgoing| {
            outgoing.reading = false;
            wanted_by = core::mem::take(&mut outgoing.wanted_by);
        });
        for remote in self.ship.remotes.values_mut() {
            remote.queue.retain(|queued| *queued != file);
        }
        self.note_damage_at(from, error);
        for to in wanted_by {
            self.tell(to, &NodeMessage::NoCopy { file });
        }
    }

    /// Where slots lie in a secondary's namespace, while the connection to it is of this session.
    pub(super) fn remote_geometry(&self, of: ReplicaId, session: u64) -> Option<Geometry> {
        let remote = self.ship.remotes.get(&of)?;
        remote.geometry.clone().filter(|_| remote.session == session)
    }

    /// The files of a job that was given up go nowhere.
    pub(super) fn discard_built(&mut self, files: &[FileId]) {
        for file in files {
            self.ship.files_remove(*file);
        }
        if files.is_empty() || self.ship.remotes.is_empty() {
            return;
        }
        self.ship.discarded.extend(files);
        let remotes: Vec<ReplicaId> = self.ship.remotes.keys().copied().collect();
        for to in remotes {
            self.tell_discard(to, files);
        }
    }

    /// A secondary began a new session: what it said on the old connection of a file that had arrived, or
    /// was told there, may be lost.
    fn discard_again(&mut self, to: ReplicaId) {
        let files: Vec<FileId> = self.ship.discarded.iter().copied().collect();
        self.tell_discard(to, &files);
    }

    fn tell_discard(&mut self, to: ReplicaId, files: &[FileId]) {
        for message in NodeMessage::discards(files) {
            self.tell(to, &message);
        }
    }

    /// The edit of these files is applied here: they are shipped on only to who asks for them.
    pub(super) fn forget_built(&mut self, edit: &Edit) {
        for (_, meta) in &edit.added {
            self.ship.files.change(meta.id, |outgoing| outgoing.of_job = false);
        }
    }

    /// Bytes of memory of files that are kept until every secondary that is to have them does.
    #[must_use]
    pub const fn unshipped_bytes(&self) -> u64 {
        self.ship.files.kept()
    }

    /// Those of flushes.
    pub(super) const fn unshipped_bytes_of_flushes(&self) -> u64 {
        self.ship.files.kept_of_flushes()
    }

    /// Whether files are shipped from here.
    pub(super) fn ships(&self) -> bool {
        !self.ship.remotes.is_empty()
    }

    /// Shipping to a secondary, for status: its session, slots granted and not used, files that
    /// wait, files on their way.
    #[must_use]
    pub fn shipping_to(&self, member: ReplicaId) -> (u64, usize, usize, usize) {
        let Some(remote) = self.ship.remotes.get(&member) else { return (0, 0, 0, 0) };
        (remote.session, remote.granted.len(), remote.queue.len(), remote.in_flight.len())
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
    use crate::node::testing::{self, HEAD, TAIL, one_of_two, ordered};
    use crate::work::{Done, WorkId, run_ship};
    use gabion_base::units::MIB;
    use gabion_base::{Generation, GroupId, SlotIndex, Term, crc};
    use gabion_media::AlignedBuf;
    use gabion_media::simulated::{DiskOptions, SimulatedDisk};

    fn primary(unshipped_bytes_max: u64) -> Node {
        one_of_two(HEAD, NodeOptions { unshipped_bytes_max, ..NodeOptions::default() })
    }

    fn built(number: u64, memory: u64) -> BuiltFile {
        BuiltFile { memory, ..testing::built(FileId::sst(number), Term(1), Vec::new(), 10) }
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
        let file = built(1, 4_096);
        node.ship_built(&file, true);
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
        assert_eq!((node.unshipped_bytes(), node.unshipped_bytes_of_flushes()), (0, 0));
        assert_eq!(node.counters.rotten_buffers, 1);
        node.schedule_shipping();
        let said: Vec<Output> = core::iter::from_fn(|| node.poll_output()).collect();
        assert!(matches!(said[..], [Output::Notice(_)]), "no order, and the session stays");
        node.files.insert(file.placement.clone());
        let Some((id, Work::ReadFile(place))) = work(&mut node) else { panic!("it is not read") };
        assert_eq!(place, file.placement);
        node.handle_done(id, Done::ReadFile(Ok(file.bytes.clone())));
        assert_eq!((node.unshipped_bytes(), node.unshipped_bytes_of_flushes()), (10, 10));
        let (id, order) = shipment(&mut node);
        assert!(order.is_again);
        assert_eq!(order.placement.slots, slots[..1]);
        node.handle_done(id, Done::Ship(Ok(Shipped::Whole)));
        assert_eq!(node.counters.shipped_files, 1);
        node.handle_have(TAIL, file.meta.id);
        assert_eq!(node.unshipped_bytes(), 0);
    }

    /// The job that is to give it a place may wait until the others are shipped.
    /// docs/faults.md: E17
    #[test]
    fn what_waits_for_its_place_to_be_read_back_holds_up_nothing_behind_it() {
        let mut node = primary(100);
        let (first, second) = (built(1, 60), built(2, 60));
        node.ship_built(&first, false);
        node.ship_built(&second, false);
        node.ship.files.change(first.meta.id, |outgoing| outgoing.bytes = None);
        grant(&mut node, 1, 0..3);
        let (_, order) = shipment(&mut node);
        assert_eq!(order.placement.file, second.meta.id);
        assert_eq!(queue(&node), [1]);
        node.files.insert(first.placement.clone());
        assert!(matches!(work(&mut node), Some((_, Work::ReadFile(_)))));
    }

    /// docs/faults.md: E17
    #[test]
    fn what_rotted_and_is_wanted_no_more_is_not_read_back() {
        let mut node = primary(100);
        let (held, lost) = (built(1, 60), built(2, 60));
        node.ship_built(&held, false);
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
            node.ship_built(&built(number, 30), is_flush);
        }
        assert_eq!(queue(&node), [3, 5, 1, 2, 4]);
        assert!(node.too_much_is_unshipped(), "150 of 100 bytes");
        assert!(!node.too_many_flushes_are_unshipped(), "60 of 100 bytes");
        node.ship_built(&built(6, 41), true);
        assert!(node.too_many_flushes_are_unshipped(), "101 of 100 bytes");
        node.handle_have(TAIL, FileId::sst(5));
        assert!(!node.too_many_flushes_are_unshipped(), "71 of 100 bytes");
        // A new session begins anew, in the same order.
        let subsystem = String::from("s");
        node.handle_grant(TAIL, 7, [2; 16], (subsystem, 1), Geometry::new(0, 64), Vec::new());
        assert_eq!(queue(&node), [3, 6, 1, 2, 4]);
    }

    #[test]
    fn what_is_unshipped_is_the_memory_that_it_keeps() {
        let mut node = primary(100);
        node.ship_built(&built(1, 4_096), false);
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
        assert_eq!((node.unshipped_bytes(), node.unshipped_bytes_of_flushes()), (10, 0));
        // The same file once more takes the place of what was known of it.
        node.ship_built(&file, true);
        assert_eq!((node.unshipped_bytes(), node.unshipped_bytes_of_flushes()), (4_096, 4_096));
        node.discard_built(&[file.meta.id]);
        assert_eq!((node.unshipped_bytes(), node.unshipped_bytes_of_flushes()), (0, 0));
        node.ship.files.insert(file.meta.id, Outgoing::lost(file.meta.clone(), TAIL));
        node.reread_done(&file.placement, Ok(file.bytes));
        node.forget_remote(TAIL);
        assert_eq!(node.unshipped_bytes(), 0, "who wanted it is gone");
        assert!(node.ship.files.get(file.meta.id).is_none());
    }
}

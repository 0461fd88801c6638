//! The primary's side of shipping: each built file goes to every secondary at once, from the buffer in
//! which it was built (RubbleDB §4.2.1; PRIOR-ART.md §4.3.3), into slots that the secondary granted. A
//! secondary that has lost a file asks for it; it is read here and shipped again.

use super::{Node, Order, Output, RemoteCommand};
use crate::CompactionMode;
use crate::GroupConfig;
use crate::message::{NodeMessage, ShippedFile};
use crate::node::grants::host_name;
use crate::work::{BuiltFile, ShipOrder, Work};
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
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
pub(super) struct Shipping {
    remotes: BTreeMap<ReplicaId, Remote>,
    files: BTreeMap<FileId, Outgoing>,
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

/// A file that some secondary is to get.
struct Outgoing {
    meta: Arc<FileMeta>,
    /// In memory since it was built, or read back to be shipped again.
    bytes: Option<Bytes>,
    reading: bool,
    held_by: BTreeSet<ReplicaId>,
    /// Whose edits name it and who have lost it.
    wanted_by: BTreeSet<ReplicaId>,
    /// Its edit is not applied here yet: every secondary must hold it.
    of_job: bool,
}

impl Outgoing {
    fn new(meta: Arc<FileMeta>, bytes: Option<Bytes>) -> Self {
        let of_job = bytes.is_some();
        let (held_by, wanted_by) = (BTreeSet::new(), BTreeSet::new());
        Self { meta, bytes, reading: false, held_by, wanted_by, of_job }
    }

    /// Whether a secondary is to be sent it.
    fn is_lacking_at(&self, member: ReplicaId) -> bool {
        (self.of_job && !self.held_by.contains(&member)) || self.wanted_by.contains(&member)
    }

    /// Whether nobody is to be sent it any more.
    fn is_done(&self) -> bool {
        !self.of_job && self.wanted_by.is_empty()
    }
}

impl Shipping {
    pub(super) fn new(config: &GroupConfig, me: ReplicaId) -> Self {
        let to = config.members.iter().filter(|member| **member != me);
        let remotes = if config.head() == me && config.compaction == CompactionMode::Primary {
            to.map(|member| (*member, Remote::default())).collect()
        } else {
            BTreeMap::new()
        };
        Self { remotes, files: BTreeMap::new(), discarded: BTreeSet::new() }
    }

    /// A term begins. Whoever takes part in it drops what was made before and no edit names (`drop_old_orphans`), and
    /// takes nothing more that was shipped in an older session.
    pub(super) fn forget_discarded(&mut self) {
        self.discarded.clear();
    }

    pub(super) fn files_remove(&mut self, file: FileId) {
        self.files.remove(&file);
    }
}

impl Node {
    pub(super) fn ship_built(&mut self, file: &BuiltFile) {
        if self.ship.remotes.is_empty() {
            return; // nobody waits for it, so nothing keeps its bytes once they are written
        }
        let outgoing = Outgoing::new(file.meta.clone(), Some(file.bytes.clone()));
        self.ship.files.insert(file.meta.id, outgoing);
        for remote in self.ship.remotes.values_mut() {
            remote.queue.push_back(file.meta.id);
        }
    }

    /// Whether every secondary holds the file.
    pub(super) fn held_everywhere(&self, file: FileId) -> bool {
        match self.ship.files.get(&file) {
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
        region_slots: u32,
        slots: Vec<Placed>,
    ) {
        let Some(remote) = self.ship.remotes.get_mut(&from) else { return };
        if session < remote.session {
            return;
        }
        let is_new = session > remote.session;
        if is_new {
            let lacking = self.ship.files.iter().filter(|(_, file)| file.is_lacking_at(from));
            let queue = lacking.map(|(id, _)| *id);
            *remote = Remote {
                session,
                pool_id,
                geometry: Some(Geometry::new(0, region_slots)),
                queue: queue.collect(),
                ..Remote::default()
            };
            let host = host_name(self.config.group, self.chain.term());
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
        for outgoing in self.ship.files.values_mut() {
            outgoing.wanted_by.remove(&peer); // It asks again.
        }
        self.ship.files.retain(|_, outgoing| !outgoing.is_done());
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
        let Some(geometry) = remote.geometry else { return false };
        if remote.in_flight.len() >= SHIPMENTS_MAX {
            return false;
        }
        let Some(&file) = remote.queue.front() else { return false };
        let Some(outgoing) = self.ship.files.get_mut(&file) else {
            remote.queue.pop_front();
            return true;
        };
        let Some(bytes) = outgoing.bytes.clone() else {
            if !outgoing.reading
                && let Some(placement) = self.files.get(file)
            {
                outgoing.reading = true;
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
        remote.queue.pop_front();
        let slots: Vec<Placed> = remote.granted.drain(..wanted).collect();
        let shipped = shipped_file(&outgoing.meta, slots);
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
        result: Result<()>,
    ) {
        let Some(remote) = self.ship.remotes.get_mut(&to) else { return };
        if remote.session != session {
            return;
        }
        let Some(shipped) = remote.in_flight.remove(&file) else { return };
        match result {
            Ok(()) => {
                self.counters.shipped_bytes += shipped.len;
                self.counters.shipped_files += 1;
                self.tell(to, &NodeMessage::Placement { session, file: shipped });
            }
            // Never again into these slots: a new connection brings a new session and other slots.
            Err(reason) => self.lose_remote(to, session, reason),
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
        let Some(outgoing) = self.ship.files.get_mut(&file) else {
            // It arrived after it was told that nobody wants it.
            if self.ship.discarded.contains(&file) {
                self.tell(from, &NodeMessage::Discard { files: alloc::vec![file] });
            }
            return;
        };
        outgoing.held_by.insert(from);
        outgoing.wanted_by.remove(&from);
        if outgoing.is_done() {
            self.ship.files.remove(&file);
        } else if self.held_everywhere(file)
            && let Some(outgoing) = self.ship.files.get_mut(&file)
        {
            outgoing.bytes = None;
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
        if !self.ship.files.contains_key(&file) {
            let Some(meta) = self.meta_of(file) else { return };
            self.ship.files.insert(file, Outgoing::new(meta, None));
        }
        if let Some(outgoing) = self.ship.files.get_mut(&file) {
            outgoing.held_by.remove(&from);
            outgoing.wanted_by.insert(from);
        }
        if let Some(remote) = self.ship.remotes.get_mut(&from)
            && !remote.queue.contains(&file)
            && !remote.in_flight.contains_key(&file)
        {
            remote.queue.push_back(file);
        }
    }

    /// Whether a file that left the tree is still to be read for a secondary that lacks it.
    pub(super) fn is_to_be_read(&self, file: FileId) -> bool {
        self.ship.files.get(&file).is_some_and(|outgoing| outgoing.bytes.is_none())
    }

    pub(super) fn reread_done(&mut self, from: &FilePlacement, result: Result<Bytes>) {
        let file = from.file;
        let Some(outgoing) = self.ship.files.get_mut(&file) else { return };
        outgoing.reading = false;
        match result {
            Ok(bytes) => outgoing.bytes = Some(bytes),
            Err(error) => self.cannot_ship_again(from, error),
        }
    }

    /// What was read, to be shipped again, is not what was written: who asked for it asks again later.
    fn cannot_ship_again(&mut self, from: &FilePlacement, error: Error) {
        let file = from.file;
        let Some(outgoing) = self.ship.files.get_mut(&file) else { return };
        let wanted_by = core::mem::take(&mut outgoing.wanted_by);
        if outgoing.is_done() {
            self.ship.files.remove(&file);
        }
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
        remote.geometry.filter(|_| remote.session == session)
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
            let Some(outgoing) = self.ship.files.get_mut(&meta.id) else { continue };
            outgoing.of_job = false;
            if outgoing.is_done() {
                self.ship.files.remove(&meta.id);
            }
        }
    }

    /// Bytes of files that are kept in memory until every secondary that is to have them does.
    #[must_use]
    pub fn unshipped_bytes(&self) -> u64 {
        let bytes = self.ship.files.values().filter_map(|outgoing| outgoing.bytes.as_ref());
        bytes.map(|bytes| bytes.len() as u64).sum()
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

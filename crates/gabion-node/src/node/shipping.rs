//! The primary's side of shipping: each built file goes to every secondary at once, from the buffer in
//! which it was built (RubbleDB §4.2.1; PRIOR-ART.md §4.3.3), into slots that the secondary granted.

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
    /// Files that left the tree here and that a member which applies edits later may still ask for,
    /// with the edit that removed them.
    leaving: BTreeMap<FileId, (u64, Arc<FileMeta>)>,
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
    /// Asked for by one secondary: not part of a job that waits.
    pulled: bool,
}

impl Shipping {
    pub(super) fn new(config: &GroupConfig, me: ReplicaId) -> Self {
        let to = config.members.iter().filter(|member| **member != me);
        let remotes = if config.head() == me && config.compaction == CompactionMode::Primary {
            to.map(|member| (*member, Remote::default())).collect()
        } else {
            BTreeMap::new()
        };
        Self { remotes, files: BTreeMap::new(), leaving: BTreeMap::new() }
    }

    pub(super) fn files_remove(&mut self, file: FileId) {
        self.files.remove(&file);
    }
}

impl Node {
    pub(super) fn ship_built(&mut self, file: &BuiltFile) {
        let outgoing = Outgoing {
            meta: file.meta.clone(),
            bytes: Some(file.bytes.clone()),
            reading: false,
            held_by: BTreeSet::new(),
            pulled: false,
        };
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
        if session > remote.session {
            let lacking =
                |outgoing: &Outgoing| !outgoing.pulled && !outgoing.held_by.contains(&from);
            let queue = self.ship.files.iter().filter(|(_, o)| lacking(o)).map(|(id, _)| *id);
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
        self.ship.files.retain(|_, outgoing| !outgoing.pulled);
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
            let start = !core::mem::replace(&mut outgoing.reading, true);
            if start && let Some(placement) = self.files.get(file) {
                self.counters.reship_read_bytes += placement.len;
                self.order(Order::ReadFile(file), Work::ReadFile(placement));
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
            Err(reason) => {
                self.outputs.push_back(Output::Disconnect { peer: to, connection: None, reason });
            }
        }
    }

    pub(super) fn handle_have(&mut self, from: ReplicaId, file: FileId) {
        let Some(outgoing) = self.ship.files.get_mut(&file) else { return };
        outgoing.held_by.insert(from);
        if outgoing.pulled {
            self.ship.files.remove(&file);
        } else if self.held_everywhere(file)
            && let Some(outgoing) = self.ship.files.get_mut(&file)
        {
            outgoing.bytes = None;
        }
    }

    /// A secondary lacks a file that an edit names: it is read here and shipped.
    pub(super) fn handle_need_file(&mut self, from: ReplicaId, file: FileId) {
        let Some(remote) = self.ship.remotes.get_mut(&from) else { return };
        if remote.queue.contains(&file) || remote.in_flight.contains_key(&file) {
            return;
        }
        if !self.ship.files.contains_key(&file) {
            let live = self.tree.version().files().find(|(_, meta)| meta.id == file);
            let live = live.map(|(_, meta)| Arc::new((**meta).clone()));
            let left = || self.ship.leaving.get(&file).map(|(_, meta)| meta.clone());
            let Some(meta) = live.or_else(|| self.apply.added(file)).or_else(left) else {
                let reason = Error::not_found(alloc::format!(
                    "{from} asks for {file}, which the primary no longer has: it needs a full copy"
                ));
                return self.outputs.push_back(Output::Disconnect {
                    peer: from,
                    connection: None,
                    reason,
                });
            };
            let outgoing = Outgoing {
                meta,
                bytes: None,
                reading: false,
                held_by: BTreeSet::new(),
                pulled: true,
            };
            self.ship.files.insert(file, outgoing);
        }
        remote.queue.push_back(file);
    }

    /// Keeps what a member may still ask for: files that an edit removes, until every member has
    /// applied it.
    pub(super) fn keep_leaving(&mut self, edit: &Edit) {
        if self.ship.remotes.is_empty() {
            return;
        }
        for (_, file) in &edit.removed {
            let meta = self.tree.version().files().find(|(_, meta)| meta.id == *file);
            // A copy: holding the tree's own would count as a reader of the file.
            if let Some(meta) = meta.map(|(_, meta)| Arc::new((**meta).clone())) {
                self.ship.leaving.insert(*file, (edit.number, meta));
            }
        }
    }

    /// Whether some member may still ask for a file that left the tree.
    pub(super) fn may_be_asked_for(&mut self, file: FileId) -> bool {
        let applied = self.chain.edits_applied_min();
        let waits = self.ship.leaving.get(&file).is_some_and(|(edit, _)| *edit > applied);
        if !waits {
            self.ship.leaving.remove(&file);
        }
        waits
    }

    pub(super) fn reread_done(&mut self, file: FileId, result: Result<Bytes>) {
        let Some(outgoing) = self.ship.files.get_mut(&file) else { return };
        outgoing.reading = false;
        match result {
            Ok(bytes) => outgoing.bytes = Some(bytes),
            Err(error) => self.fatal(error.within(alloc::format!("{file}, to be shipped again"))),
        }
    }

    /// The files of a job that was given up go nowhere.
    pub(super) fn discard_built(&mut self, files: &[FileId]) {
        if files.is_empty() || self.ship.remotes.is_empty() {
            return;
        }
        for file in files {
            self.ship.files.remove(file);
        }
        let remotes: Vec<ReplicaId> = self.ship.remotes.keys().copied().collect();
        for to in remotes {
            self.tell(to, &NodeMessage::Discard { files: files.to_vec() });
        }
    }

    pub(super) fn forget_built(&mut self, edit: &Edit) {
        for (_, meta) in &edit.added {
            if self.ship.files.get(&meta.id).is_some_and(|outgoing| !outgoing.pulled) {
                self.ship.files.remove(&meta.id);
            }
        }
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

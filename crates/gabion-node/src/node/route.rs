//! Between the sub-machines: the node hands each the facts and values that it needs, carries out
//! the effects that it asks for, and takes what one machine says to those that have to know.
//!
//! ```text
//!   event ──► machine ──► effects ──► settle ─┬─► outputs, orders, messages, staged steps
//!                ▲                            └─► signal ─┐
//!                └────────────────────────────────────────┘  the routes, in `route` alone
//! ```
//!
//! Effects are carried out in the order in which they were asked for, those of a signal behind all
//! that were asked for before it. So a machine is done with an event before another one hears of
//! it, and none is called while it is at work. Nothing is left when the next event comes.
//!
//! Routes that also add to the log or commit have files of their own: `applying` for records and
//! edits, `writing` and `logging` for turns and the records of this replica, `gate` for what holds
//! writes back, `commits` for the steps behind a placement commit, `stopping` for the end. They
//! call this file, and it calls none of them.

mod applying;
mod commits;
mod filling;
mod gate;
mod logging;
mod stopping;
mod writing;

use super::apply::Applying;
use super::effects::{Effect, Signal};
use super::facts::{Unshipped, facts};
use super::file_table::FileTable;
use super::grants::{self, Grants, RepairOfFile};
use super::jobs::{JobsGiven, SlotsForJobs};
use super::marks::AtEnd;
use super::orders::{After, Order};
use super::planted::{Mutant, is_planted};
use super::shipping::Granted;
use super::steps::Step;
use super::{LoadId, Node};
use crate::NodeOptions;
use crate::message::{NodeMessage, ShippedFile};
use crate::work::{BuiltFile, Fetched, JobDone, JobFailed, Shipped, WorkId};
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use bytes::Bytes;
use gabion_base::{Error, Failed, FileId, Frontier, LogPosition, ReplicaId, Result};
use gabion_engine::{Edit, FileMeta, Tree};
use gabion_pool::{FilePlacement, Geometry, Placed};

/// What the tree, or an edit on its way there, says of a file.
fn described(tree: &Tree, apply: &Applying, file: FileId) -> Option<Arc<FileMeta>> {
    let live = tree.version().described().find(|meta| meta.id == file);
    // A copy: holding the tree's own would count as a reader of the file.
    let live = live.map(|meta| Arc::new((**meta).clone()));
    live.or_else(|| apply.added(file))
}

/// The state at the end of the log, with the edits in it applied or not: when an edit is applied
/// differs between replicas, where it stands in the log does not.
pub(super) fn state_at_end(
    tree: &Tree,
    apply: &Applying,
    me: ReplicaId,
    options: &NodeOptions,
) -> AtEnd {
    let applied = tree.version();
    let version = match is_planted(options, Mutant::FilesOfAppliedEdits) {
        true => Ok(applied.clone()),
        false => apply.version_at_the_end(applied),
    };
    let (load, edit) = (apply.last_load(), apply.last_appended(tree.last_edit()));
    AtEnd { me, view: tree.view(), load, edit, version }
}

impl Node {
    /// Carries out what machines have asked for, and what others ask for on hearing of it.
    #[inline]
    pub(super) fn settle(&mut self) {
        // Mostly there is nothing, and a turn asks after each of its steps.
        if !self.effects.is_settled() {
            self.carry_out_effects();
        }
    }

    fn carry_out_effects(&mut self) {
        if self.effects.is_routed {
            return;
        }
        self.effects.is_routed = true;
        while let Some(effect) = self.effects.next_effect() {
            match effect {
                Effect::Output(output) => self.outputs.push_back(output),
                Effect::Order(order, work) => self.order(order, work),
                Effect::Tell(to, message) => self.tell(to, &message),
                Effect::Place(places, after) => self.place_files(places, after),
                Effect::Replace(place) => self.replace_file(&place),
                Effect::Stage(after) => self.commits.staged.push(after),
                Effect::StageState(after) => self.stage_state(after),
                Effect::Due(steps) => self.due.mark_all(steps),
                Effect::Signal(signal) => self.route(signal),
                Effect::Fatal(error) => self.fatal(error),
            }
        }
        self.effects.is_routed = false;
    }

    fn route(&mut self, signal: Signal) {
        match signal {
            Signal::FileWhole(file) => self.jobs.resume(&mut self.tree, file),
            Signal::Damaged { file, error } => {
                let meta_of = |file| described(&self.tree, &self.apply, file);
                self.repairs.note(&mut self.effects, &meta_of, file, error, false);
            }
            Signal::JobsNeedMore => self.room.forget_jobs(),
            Signal::Compacted { bytes, took_ms } => self.pace.compacted(bytes, took_ms),
            Signal::DamagedAt { place, error } => {
                let meta_of = |file| described(&self.tree, &self.apply, file);
                self.repairs.note_at(&facts!(self), &mut self.effects, &meta_of, &place, error);
            }
            Signal::FileBuilt { file, is_flush } => self.ship_built(&file, is_flush),
            Signal::Discard(files) => self.ship.discard(&mut self.effects, &files),
            Signal::RepairArrives(file) => self.repairs.arrives(file),
            Signal::RepairArrived(placement) => self.take_repaired(&placement),
            Signal::Orphan(file) => self.drop_orphan(file),
            Signal::LogDurable => self.log_durable(),
            Signal::LogTrimmed(at) => self.log_trimmed(at),
            Signal::Missing(file) => {
                let meta_of = |file| described(&self.tree, &self.apply, file);
                self.repairs.note_missing(&mut self.effects, &meta_of, file);
            }
            Signal::Unneeded(file) => {
                self.grants.note_unneeded(file);
                self.repairs.forget(file);
            }
            Signal::DurableWanted(end) => self.want_durable(end),
            Signal::RemoteFailed { of, session, reason } => {
                self.ship.remote_failed(&mut self.effects, of, session, reason);
            }
        }
    }

    /// Checks what must hold of each machine between steps.
    pub(super) fn machine_invariants(&self) {
        assert!(self.effects.is_settled(), "effects are left that nobody carries out");
        if !self.ended {
            // An edit that failed is out of the line and not in the tree.
            self.apply.invariants(self.tree.last_edit());
        }
        self.writing.invariants(&self.tree);
        self.sessions.invariants();
        self.repairs.invariants();
        self.ship.invariants();
        self.grants.invariants(self.state.session);
        self.files.invariants();
        self.drain.invariants();
        self.stopping.invariants();
        self.log_repair.invariants();
        self.marks.invariants();
        self.loads.invariants();
        self.fill.invariants();
        self.copies.invariants();
        self.jobs.invariants();
        self.room.invariants();
    }

    // ---- the log

    /// Somebody waits until the log is durable up to `position`, here and elsewhere.
    pub(super) fn want_durable(&mut self, position: LogPosition) {
        self.drain.want(position);
    }

    /// The log is durable further than before.
    pub(super) fn log_durable(&mut self) {
        let durable = self.log.durable_end();
        self.protocol.handle_durable(Frontier::of(durable));
        self.log_repair.durable(&mut self.effects, durable);
    }

    /// The log begins there.
    pub(super) fn log_trimmed(&mut self, at: LogPosition) {
        self.protocol.handle_trimmed(Frontier::of(at));
        // Spans of terms that wrote nothing behind it are not to be read, and added to, by each
        // start from here on.
        if self.log.spans().len() < self.state.spans.len() {
            self.state.spans = self.log.spans().to_vec();
            self.stage_state(None);
        }
    }

    // ---- the repairer

    /// Takes what reads on this thread have met.
    pub(super) fn take_damage(&mut self) {
        for (file, error) in self.damaged.take() {
            self.effects.signal(Signal::Damaged { file, error });
        }
        self.settle();
    }

    pub(super) fn schedule_repairs(&mut self) {
        if self.repairs.is_empty() {
            return;
        }
        let meta_of = |file| described(&self.tree, &self.apply, file);
        self.repairs.schedule(&facts!(self), &mut self.effects, &meta_of);
        self.settle();
    }

    pub(super) fn repairs_lose(&mut self, peer: ReplicaId) {
        self.repairs.lose(&facts!(self), &mut self.effects, peer);
        self.settle();
    }

    pub(super) fn repairs_lose_arriving(&mut self) {
        self.repairs.lose_arriving(&facts!(self), &mut self.effects);
        self.settle();
    }

    pub(super) fn handle_copy_wanted(&mut self, file: FileId) {
        let meta_of = |file| described(&self.tree, &self.apply, file);
        self.repairs.offer_copy(&facts!(self), &mut self.effects, &meta_of, file);
        self.settle();
    }

    /// A member has no whole copy: of a file that is damaged here, or that an edit waits for.
    pub(super) fn handle_no_copy(&mut self, from: ReplicaId, file: FileId) {
        if self.fill.takes_files() {
            self.fill.no_copy(&facts!(self), &mut self.effects, file);
            return self.settle();
        }
        if !self.repairs.is_noted(file) {
            return self.apply.ask_later(file, self.now_ms);
        }
        self.repairs.no_copy(&facts!(self), &mut self.effects, from, file);
        self.settle();
    }

    pub(super) fn handle_copy_at(&mut self, from: ReplicaId, session: u64, copy: ShippedFile) {
        let geometry = self.ship.remote_geometry(from, session);
        let meta_of = |file| described(&self.tree, &self.apply, file);
        let (facts, from) = (facts!(self), (from, session));
        self.repairs.copy_at(&facts, &mut self.effects, &meta_of, geometry, from, copy);
        self.settle();
    }

    pub(super) fn check_done(&mut self, file: FileId, result: &Result<()>) {
        self.repairs.check_done(&facts!(self), &mut self.effects, file, result);
        self.settle();
    }

    pub(super) fn copy_checked(&mut self, at: &FilePlacement, result: Result<()>) {
        let meta_of = |file| described(&self.tree, &self.apply, file);
        self.repairs.copy_checked(&facts!(self), &mut self.effects, &meta_of, at, result);
        self.settle();
    }

    pub(super) fn fetch_done(&mut self, of: (ReplicaId, u64, FileId), result: Result<Fetched>) {
        let meta_of = |file| described(&self.tree, &self.apply, file);
        let (facts, pool) = (facts!(self), &mut self.pool);
        self.repairs.fetch_done(&facts, &mut self.effects, &meta_of, pool, of, result);
        self.settle();
    }

    pub(super) fn rewrite_done(&mut self, placement: &Arc<FilePlacement>, result: Result<()>) {
        let (facts, pool) = (facts!(self), &mut self.pool);
        self.repairs.rewrite_done(&facts, &mut self.effects, pool, placement, result);
        self.settle();
    }

    /// A shipment of a file that was damaged here is whole. Its place becomes the file's, unless an
    /// edit removed it meanwhile.
    fn take_repaired(&mut self, placement: &Arc<FilePlacement>) {
        if self.repairs.is_arriving(placement.file) {
            self.repairs.give_place(&facts!(self), &mut self.effects, placement);
        } else {
            self.grants.give_back(&facts!(self), &mut self.effects, &self.pool, placement);
        }
    }

    /// The new place of a file that was damaged is durable.
    pub(super) fn file_repaired(&mut self, file: FileId) {
        if self.duties().receive {
            // Even if an edit removed it meanwhile: else the primary keeps its bytes for us, and
            // begins no jobs at last.
            let head = self.view.writer();
            self.tell(head, &NodeMessage::Have { file });
        }
        if self.files.get(file).is_none() {
            return;
        }
        // Reads of the old place may have said what they met there since the last turn.
        self.take_damage();
        self.files.placed(&self.pool, file);
        self.repairs.repaired(&mut self.effects, file);
        self.settle();
    }

    // ---- files

    /// A file that was shipped here has its place: an edit may now name it.
    pub(super) fn file_placed(&mut self, file: FileId, tell: bool) {
        if !self.files.placed(&self.pool, file) {
            return;
        }
        self.repairs.placed(&mut self.effects, file);
        self.settle();
        self.fill.placed(&facts!(self), &mut self.effects, file);
        self.settle();
        if tell {
            let head = self.view.writer();
            self.tell(head, &NodeMessage::Have { file });
        }
    }

    /// A file was built: it goes to all full members, and to those that are being filled and follow
    /// the log by now.
    fn ship_built(&mut self, file: &BuiltFile, is_flush: bool) {
        self.ship.ship(file, is_flush);
        let members = self.protocol.members().into_iter();
        for member in members.filter(|it| it.is_joined && !self.copies.has(it.id)) {
            self.ship.ship_besides(file, is_flush, member.id);
        }
    }

    fn place_files(&mut self, places: Vec<Arc<FilePlacement>>, after: After) {
        for place in places {
            let Err(error) = self.files.add(&mut self.pool, FilePlacement::clone(&place)) else {
                continue;
            };
            // A member that ships into slots that it does not hold is not to be heard.
            return match after {
                After::FilePlaced { .. } => self.effects.disconnect(self.view.writer(), error),
                _ => self.failed(Failed::Accounts, error),
            };
        }
        self.commits.staged.push(after);
    }

    fn replace_file(&mut self, place: &Arc<FilePlacement>) {
        match FileTable::replace(&mut self.pool, FilePlacement::clone(place)) {
            Ok(()) => self.commits.staged.push(After::FileRepaired(place.file)),
            Err(error) => self.failed(Failed::Accounts, error),
        }
    }

    // ---- the shipper

    pub(super) fn handle_grant(
        &mut self,
        from: ReplicaId,
        session: u64,
        pool_id: [u8; 16],
        (subsystem, port): (String, u16),
        region: Geometry,
        slots: Vec<Placed>,
    ) {
        let grant = Granted { session, pool_id, subsystem, port, region, slots };
        self.ship.granted(&facts!(self), &mut self.effects, from, grant);
        self.settle();
    }

    pub(super) fn forget_remote(&mut self, peer: ReplicaId) {
        self.ship.lose(&mut self.effects, peer);
        self.settle();
    }

    pub(super) fn schedule_shipping(&mut self) {
        if !self.ship.ships() {
            return;
        }
        self.ship.schedule(&facts!(self), &mut self.effects);
        self.settle();
    }

    pub(super) fn ship_done(&mut self, of: (ReplicaId, u64, FileId), result: Result<Shipped>) {
        self.ship.ship_done(&facts!(self), &mut self.effects, of, result);
        self.settle();
    }

    pub(super) fn handle_have(&mut self, from: ReplicaId, file: FileId) {
        self.copies.have(from, file, self.now_ms);
        self.ship.have(&mut self.effects, from, file);
        self.settle();
    }

    pub(super) fn handle_need_file(&mut self, from: ReplicaId, file: FileId) {
        if self.copies.has(from) && self.files.get(file).is_none() {
            // Its state is here no more.
            return self.tell(from, &NodeMessage::NoCopy { file });
        }
        let is_damaged = self.repairs.is_damaged(file);
        let copies = &self.copies;
        let of_tree = |file| described(&self.tree, &self.apply, file);
        let meta_of = |file| copies.described(from, file).or_else(|| of_tree(file));
        let facts = facts!(self);
        self.ship.need_file(&facts, &mut self.effects, &meta_of, is_damaged, from, file);
        self.settle();
    }

    /// A file was read to be shipped again. One that no edit names, and that is not whole, is made
    /// anew, as nobody has it to repair it from.
    pub(super) fn reread_done(&mut self, from: &Arc<FilePlacement>, result: Result<Bytes>) {
        let error = match result {
            Ok(bytes) => return self.ship.reread(from.file, bytes),
            Err(error) => error,
        };
        let Some(is_of_job) = self.ship.is_of_job(from.file) else { return };
        if is_of_job && self.give_up_built(from.file, &error) {
            return;
        }
        self.ship.reread_failed(&mut self.effects, from, error);
        self.settle();
    }

    // ---- the receiver

    /// Begins a new session: grants of older ones are void from here on.
    pub(super) fn raise_session(&mut self) {
        self.state.session += 1;
        self.grants.begin_session(&facts!(self), &mut self.effects, &mut self.pool);
        self.settle();
        self.apply.ask_again();
        self.repairs_lose_arriving();
    }

    pub(super) fn session_raised(&mut self) {
        self.grants.session_raised(&facts!(self), &mut self.effects, &self.pool);
        self.settle();
    }

    /// The target closed what it served before, nothing of it is in flight, and it serves the
    /// session's subsystem on `port`.
    pub fn handle_target_open(&mut self, session: u64, port: u16) {
        self.grants.target_open(&facts!(self), &mut self.pool, session, port);
    }

    /// The target completed a write of the primary: `len` bytes at `offset` of the namespace have
    /// this checksum. Not durable yet.
    pub fn handle_target_write(&mut self, offset: u64, len: u32, crc: u32) {
        self.grants.target_write(&self.pool, offset, len, crc);
    }

    /// The device did not write what came to the target at `offset` of the namespace, though it has
    /// room. The primary is told by the target, and ships the file again in another session: into
    /// other slots, as this one stays in quarantine until the next start (docs/faults.md E9).
    pub fn handle_target_write_failed(&mut self, offset: u64, error: &Error) {
        self.grants.target_write_failed(&mut self.effects, &self.pool, offset, error);
        self.settle();
    }

    pub(super) fn grant_slots(&mut self) {
        if !self.grants.is_open() {
            return;
        }
        let for_log = self.slots_for_log();
        let is_filled = self.fill.takes_files();
        let (facts, pool) = (facts!(self), &mut self.pool);
        self.grants.grant_slots(&facts, &mut self.effects, pool, (for_log, is_filled));
        self.settle();
    }

    pub(super) fn granted(&mut self, slots: Vec<Placed>) {
        self.grants.grant_is_durable(&facts!(self), &mut self.effects, &self.pool, slots);
        self.settle();
    }

    pub(super) fn handle_want_grant(&mut self, slots: u32) {
        self.grants.want_grant(&self.pool, slots);
    }

    /// The primary has had a later session of this pool, whose disk was set back since. One above
    /// it begins, so that no number means two sessions.
    pub(super) fn handle_known_session(&mut self, session: u64) {
        if session >= self.state.session {
            self.state.session = session;
            self.raise_session();
        }
    }

    pub(super) fn handle_placement(&mut self, session: u64, file: ShippedFile) {
        if let Err(error) = self.fill.check_shipped(&file) {
            let head = self.view.writer();
            self.effects.disconnect(head, error);
            return self.settle();
        }
        let (wants, is_coming) = (self.repairs.wants(file.file), self.repairs.is_coming(file.file));
        let repair = RepairOfFile { wants, is_coming };
        let (facts, pool) = (facts!(self), &mut self.pool);
        self.grants.shipped(&facts, &mut self.effects, pool, &repair, (session, file));
        self.settle();
    }

    pub(super) fn verify_done(&mut self, at: &Arc<FilePlacement>, result: Result<()>) {
        self.grants.verified(&facts!(self), &mut self.effects, at, result);
        self.settle();
    }

    pub(super) fn handle_discard(&mut self, files: &[FileId]) {
        let names = |file| self.apply.names(file);
        Grants::discarded(&facts!(self), &mut self.effects, files, names);
        self.settle();
    }

    pub(super) fn drop_old_orphans(&mut self) {
        if self.grants.orphans_of.is_none() || !self.view.is_member() {
            return;
        }
        let names = |file| self.apply.names(file) || self.jobs.build(file) || self.loads.made(file);
        let (facts, effects) = (facts!(self), &mut self.effects);
        self.grants.drop_old_orphans(&facts, effects, &self.pool, names);
        self.settle();
    }

    /// Forgets files that no edit, applied or waiting, names.
    pub(super) fn drop_orphans(&mut self) {
        let names = |file| self.apply.names(file);
        grants::drop_orphans(&facts!(self), &mut self.effects, &self.pool, None, names);
        self.settle();
    }

    /// Forgets a file that nothing names, and gives its slots back.
    pub(super) fn drop_orphan(&mut self, file: FileId) {
        self.ship.forget(file);
        self.repairs.forget(file);
        if let Err(error) = self.files.forget(&mut self.pool, file) {
            self.failed(Failed::Accounts, error);
        }
    }

    // ---- marks

    /// A record is applied, and the log continues behind it.
    pub(super) fn pass_marks(&mut self, end: LogPosition, crc: u32) {
        let is_in_turn = self.writing.is_in_turn();
        let at_end = || state_at_end(&self.tree, &self.apply, self.me, &self.options);
        self.marks.pass(&mut self.effects, &at_end, is_in_turn, end, crc);
        self.settle();
    }

    pub(super) fn tick_marks(&mut self) {
        self.marks.tick(&facts!(self), &mut self.effects);
        self.settle();
    }

    pub(super) fn cut_marks(&mut self) {
        self.marks.cut(&facts!(self), &mut self.effects);
        self.settle();
    }

    // ---- the loader

    pub(super) fn load_file_done(&mut self, id: LoadId, result: Result<()>) {
        self.loads.file_done(&mut self.effects, &mut self.pool, id, result);
        self.settle();
    }

    pub(super) fn load_placed(&mut self, id: LoadId) {
        for file in self.loads.files_of(id) {
            self.file_placed(file.id, false);
        }
        self.loads.placed(&mut self.effects, &mut self.pool, id);
        self.settle();
    }

    // ---- jobs

    /// What is not shipped, and the bound of it.
    pub(super) fn unshipped(&self) -> Unshipped {
        let most = match self.has(Mutant::JobsWithoutBound) {
            true => u64::MAX,
            false => self.options.unshipped_bytes_max,
        };
        let (all, of_flushes) = (self.ship.unshipped(), self.ship.unshipped_of_flushes());
        Unshipped { all, of_flushes, most }
    }

    pub(super) fn jobs_given(&self) -> JobsGiven {
        JobsGiven {
            may_begin: !self.view.has_one_tree() || self.refused.is_none(),
            edits_waiting: self.apply.waiting_count(),
            holds_compactions: self.loads.hold_compactions(),
            is_short: self.room.is_short(),
            slots: SlotsForJobs {
                for_log: self.slots_for_log(),
                elsewhere: self.room.elsewhere(&self.view),
                of_loads: self.loads.slots(),
            },
            unshipped: self.unshipped(),
            ships: self.ship.ships(),
        }
    }

    /// Starts what the tree wants done.
    pub(super) fn schedule_jobs(&mut self) {
        if !self.duties().compact || !self.jobs.may_try(self.now_ms) {
            return;
        }
        self.await_log_of_flush();
        let given = self.jobs_given();
        let (facts, tree, pool) = (facts!(self), &mut self.tree, &mut self.pool);
        self.jobs.schedule(&facts, &mut self.effects, tree, pool, &given);
        self.settle();
    }

    /// The values of the next flush that stay in the log are to be there first. If it has no room
    /// for its segments they go to a values file, as that may give back room.
    fn await_log_of_flush(&mut self) {
        let Some(end) = self.tree.next_flush_awaits() else { return };
        if end <= self.log.durable_end() {
            return;
        }
        if self.drain.lacks_slots(&self.log, &self.pool).is_some() {
            return self.tree.keep_none_at_next_flush();
        }
        self.drain.want(end);
        self.due.mark(Step::Drains);
    }

    pub(super) fn let_jobs_build(&mut self) {
        if self.jobs.running() == 0 {
            return;
        }
        let unshipped = self.ship.unshipped();
        self.jobs.let_build(&facts!(self), &mut self.effects, unshipped);
        self.settle();
    }

    /// A running job built a file and writes it into its slots.
    pub fn handle_job_file(&mut self, id: WorkId, file: BuiltFile) {
        let Some(Order::Job(number)) = self.orders.get(&id) else { return };
        self.jobs.file_built(&facts!(self), &mut self.effects, *number, file);
        self.settle();
    }

    pub(super) fn job_done(
        &mut self,
        number: u64,
        result: core::result::Result<JobDone, JobFailed>,
    ) {
        let (facts, tree, pool) = (facts!(self), &mut self.tree, &mut self.pool);
        self.jobs.done(&facts, &mut self.effects, tree, pool, number, result);
        self.settle();
    }

    pub(super) fn built_placed(&mut self, number: u64) {
        for file in self.jobs.files_of(number) {
            self.file_placed(file, false);
        }
        let (facts, tree) = (facts!(self), &mut self.tree);
        self.jobs.placed(&facts, &mut self.effects, tree, number);
        self.settle();
    }

    /// Gives up jobs and loads whose edits are not in the log: another term begins, or another
    /// member makes files and takes writes.
    pub(super) fn give_up_work(&mut self) {
        self.jobs.give_up(&mut self.effects, &mut self.tree);
        self.loads.give_up(&mut self.effects, &mut self.pool);
        self.settle();
    }

    /// A file that no edit names cannot be shipped: a load fails, as only its caller can make it
    /// anew, and a job is made anew. Returns whether one built it whose edit is not in the log.
    pub(super) fn give_up_built(&mut self, file: FileId, error: &Error) -> bool {
        let (effects, pool) = (&mut self.effects, &mut self.pool);
        let is_given_up = self.loads.give_up_load_of(effects, pool, file, error)
            || self.jobs.make_anew(effects, &mut self.tree, file, error);
        self.settle();
        is_given_up
    }

    /// An edit is applied here: what it is of is over.
    pub(super) fn jobs_edit_applied(&mut self, edit: &Edit) {
        self.jobs.edit_applied(&facts!(self), &mut self.effects, edit.number);
        self.loads.edit_applied(edit);
        self.ship.forget_built(edit);
        self.settle();
    }
}

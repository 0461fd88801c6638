//! The state machine of one replica.
//!
//! Order of calls: any of `handle_*`, `put`, `delete`, `clear`, `end_turn` in any order; then
//! [`Node::advance`] once; then [`Node::poll_output`] until it is empty. Nothing is sent or ordered
//! except through outputs; [`Node::acknowledged`] tells which writes are acknowledged.

mod appending;
mod apply;
mod back_off;
mod collection;
mod commands;
mod commits;
mod copies;
mod counters;
mod drain;
mod effects;
mod facts;
mod file_table;
mod fill;
mod gate;
mod grants;
mod held;
mod jobs;
mod leasing;
mod load;
mod log;
mod log_repair;
mod marks;
mod memory;
mod messages;
mod names;
mod orders;
mod outgoing;
mod output;
mod outward;
mod pace;
mod planted;
mod ranges;
mod reopen;
mod repair;
mod room;
mod route;
mod sessions;
mod settings;
mod shipping;
mod status;
mod steps;
mod stop;
#[cfg(test)]
pub(crate) mod testing;
mod time;
mod views;
mod writes;

use crate::files::{DamageList, FileMap};
use crate::state::ReplicaState;
use crate::view::{Duties, View};
use crate::work::{Done, WorkId};
use crate::{GroupConfig, NodeOptions};
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use commits::Commits;
pub use counters::Counters;
use effects::Effects;
use file_table::FileTable;
pub use fill::{FillStatus, FillStep};
use gabion_base::{
    ConfigNumber, Error, Failed, FileId, FileKind, Frontier, LogPosition, ReplicaId,
};
use gabion_engine::{LogLayout, ReadView, ReaderStats, Tree};
use gabion_log::{Log, LogConfig, RecoveryReport, SegmentSource};
use gabion_pool::Pool;
use gabion_replication::{Action, Frame, Lost, Protocol};
pub use held::{StoppedMs, WriteStop};
pub use load::{LoadGate, LoadState};
pub use marks::{Captured, CapturedFile, LogEra, MarkId};
pub use memory::NodeMemory;
pub use names::replica_of_host;
pub use orders::LoadId;
use orders::{After, Order};
pub use output::{Output, RemoteCommand, Replaced, WriteGate};
#[cfg_attr(
    not(feature = "planted"),
    expect(unreachable_pub, reason = "exported with the feature")
)]
pub use planted::Mutant;
pub use ranges::RangeState;
pub use repair::{DamagedFile, RepairState};
pub use sessions::WriteFate;
pub use settings::check_memtable_len;
use steps::{Step, WorkList};
pub use stop::StopState;

/// One replica.
pub struct Node {
    config: GroupConfig,
    view: View,
    options: NodeOptions,
    me: ReplicaId,
    state: ReplicaState,
    log: Log,
    /// Where the log ended when this process began.
    log_from: LogPosition,
    tree: Tree,
    pool: Pool,
    protocol: Box<dyn Protocol>,
    leasing: leasing::Leasing,
    /// See [`Self::keeps_turns`].
    keeps_turns: bool,
    /// The end of the log, where it was whole as the view that runs began (see [`Self::is_whole`]).
    whole_end: Option<LogPosition>,
    files: FileTable,
    /// Damage that reads here have met and that is not noted yet.
    damaged: DamageList,
    now_ms: u64,
    /// See [`Self::await_word`].
    awaits_word: bool,
    /// When the view that runs took effect here, or the node was opened with it, in ms.
    view_since_ms: u64,
    /// Why writes are refused, as the protocol last said.
    refused: Option<String>,
    /// Why a full copy was asked for, in this view.
    copy_wanted: Option<String>,
    /// The newest view that was refused as it has this member full, and it is being filled.
    called_full: ConfigNumber,
    /// Whether reads are answered here.
    readable: bool,
    /// The edit that must be applied before reads are answered.
    readable_from: u64,
    /// An action of the protocol that waits for a drain or a note to end.
    held: Option<Action>,
    /// The part of the log that was lost and is not back yet.
    log_repair: log_repair::LogRepair,
    outputs: VecDeque<Output>,
    /// Effects that machines asked for and that are not carried out: none between events.
    effects: Effects,
    /// The steps that are due in this turn.
    due: WorkList,
    /// Something fatal happened, or the node is to be opened anew: nothing is begun any more.
    ended: bool,
    next_work: u64,
    orders: BTreeMap<WorkId, Order>,
    writing: writes::Writing,
    sessions: sessions::Sessions,
    held_writes: held::HeldWrites,
    apply: apply::Applying,
    jobs: jobs::Jobs,
    loads: load::Loads,
    room: room::Room,
    ship: shipping::Shipping,
    grants: grants::Grants,
    drain: drain::Draining,
    stopping: stop::Stopping,
    reopening: reopen::Reopening,
    repairs: repair::Repairs,
    /// The copy of the group's state that fills this member.
    fill: fill::Fill,
    /// The states that others are filled with.
    copies: copies::Copies,
    marks: marks::Marks,
    commits: Commits,
    counters: Counters,
    pace: pace::Pace,
}

// A driver may move it to any thread.
const _: fn() = || {
    fn is_send<T: Send>() {}
    is_send::<Node>();
};

impl Node {
    /// Builds the machine from its recovered parts (see [`crate::open`]).
    #[expect(clippy::too_many_arguments, reason = "the one production constructor")]
    pub(crate) fn assemble(
        config: GroupConfig,
        options: NodeOptions,
        state: ReplicaState,
        log: Log,
        mut tree: Tree,
        pool: Pool,
        protocol: Box<dyn Protocol>,
        now_ms: u64,
    ) -> Self {
        let me = state.me;
        let &LogConfig { shard, segment_len, .. } = log.config();
        tree.keep_values_in(LogLayout { shard, segment_len });
        let view = View::new(config.compaction, state.view_in_effect(), me);
        let has_all = state.trimmed.position == LogPosition::ZERO;
        let sessions = sessions::Sessions::new(config.segment_len, has_all);
        Self {
            leasing: leasing::Leasing::begin(&state, view.is_full(), &options),
            keeps_turns: false,
            whole_end: None,
            ship: shipping::Shipping::to_members_of(&view),
            apply: apply::Applying::new(tree.floor()),
            files: FileTable::new(log.config().segment(0)),
            config,
            view,
            options,
            me,
            state,
            log,
            log_from: LogPosition::ZERO,
            tree,
            pool,
            protocol,
            damaged: DamageList::default(),
            now_ms,
            awaits_word: false,
            view_since_ms: now_ms,
            refused: Some("the group is starting".into()),
            copy_wanted: None,
            called_full: ConfigNumber::ZERO,
            readable: false,
            readable_from: 0,
            held: None,
            log_repair: log_repair::LogRepair::default(),
            outputs: VecDeque::new(),
            effects: Effects::default(),
            due: WorkList::default(),
            ended: false,
            next_work: 0,
            orders: BTreeMap::new(),
            writing: writes::Writing::default(),
            sessions,
            held_writes: held::HeldWrites::default(),
            jobs: jobs::Jobs::default(),
            loads: load::Loads::default(),
            room: room::Room::default(),
            grants: grants::Grants::default(),
            drain: drain::Draining::default(),
            stopping: stop::Stopping::default(),
            reopening: reopen::Reopening::default(),
            repairs: repair::Repairs::default(),
            fill: fill::Fill::default(),
            copies: copies::Copies::default(),
            marks: marks::Marks::default(),
            commits: Commits::default(),
            counters: Counters::default(),
            pace: pace::Pace::default(),
        }
    }

    /// Takes the log that recovery found; done once, before any event. `edits` are the last applied
    /// ones, encoded; `lost` is the part that is gone where the log was cut.
    pub(crate) async fn replay(
        &mut self,
        segments: &impl SegmentSource,
        edits: BTreeMap<u64, Vec<u8>>,
        report: &RecoveryReport,
        lost: Option<Lost>,
    ) -> gabion_base::Result<()> {
        self.adopt_files()?;
        self.apply.begin_replay(edits);
        while let Some(record) = self.log.next_recovered(segments).await? {
            self.apply_record(&record)?;
        }
        let is_behind = self.state.is_log_behind(report.end);
        self.apply.end_replay(&self.tree, lost.is_some() || is_behind);
        self.skip_cleared()?;
        match report.rotten.zip(lost) {
            Some((rot, lost)) => self.log_repair.begin(&mut self.effects, &rot, lost),
            None => self.log_repair.begin_drain_again(&mut self.effects, report),
        }
        self.settle();
        if !self.view.has_one_tree() {
            self.skip_used_numbers();
            self.drop_orphans();
        }
        if self.duties().receive || (self.duties().ship && grants::has_old_grants(&self.pool)) {
            // Grants of an earlier process are void, as nobody knows their use. So they are where
            // that process was a secondary and this one ships.
            self.raise_session();
        }
        self.log_from = self.log.end();
        // The term begins where it was adopted, even past the log's end here: edits that name files
        // shipped before may yet come.
        let adopted = self.state.spans.last().map_or(LogPosition::ZERO, |span| span.start);
        let start = self.log.spans().last().map_or(self.log.end(), |span| span.start).max(adopted);
        self.grants.orphans_of = Some((self.state.term(), start));
        Ok(())
    }

    // ---- getters

    /// This member.
    #[must_use]
    pub fn id(&self) -> ReplicaId {
        self.me
    }

    /// The group's configuration.
    #[must_use]
    pub fn config(&self) -> &GroupConfig {
        &self.config
    }

    /// The configuration of the log.
    #[must_use]
    pub const fn log_config(&self) -> &LogConfig {
        self.log.config()
    }

    /// The members, and the duties of this one.
    #[must_use]
    pub const fn view(&self) -> &View {
        &self.view
    }

    /// The duties of this member.
    #[must_use]
    pub const fn duties(&self) -> Duties {
        self.view.duties()
    }

    /// A view of everything applied here. It ends when it is past the pin budget of the options.
    #[must_use]
    pub fn read_view(&self) -> ReadView {
        self.tree.view()
    }

    /// A view of everything applied here, with its end of the log. At the head the MemTable is
    /// ahead of the log by the writes of the turn, so the turn ends here.
    pub fn digest_point(&mut self) -> (ReadView, Frontier) {
        self.end_turn_before_event();
        (self.read_view(), self.log_end())
    }

    /// Readers here, and the state that they keep.
    #[must_use]
    pub fn readers(&self) -> ReaderStats {
        self.tree.readers(self.now_ms)
    }

    /// Where files lie now.
    #[must_use]
    pub const fn file_map(&self) -> &FileMap {
        self.files.readable()
    }

    /// A read of the file met damage: it is repaired where it can be.
    pub fn handle_damage(&mut self, file: FileId, error: &Error) {
        self.damaged.note(file, error);
    }

    /// Whether reads are answered here: at the tail, once it has caught up, under the promises of
    /// all other full members.
    #[must_use]
    pub fn is_readable(&self) -> bool {
        self.may_read_when_leased() && self.holds_lease()
    }

    /// Whether nothing but a promise keeps reads from being answered here: they need only wait for
    /// a moment.
    #[must_use]
    pub fn may_read_when_leased(&self) -> bool {
        self.readable && self.tree.last_edit() >= self.readable_from
    }

    /// Edits that are in the log and not applied here.
    #[must_use]
    pub fn edits_waiting(&self) -> usize {
        self.apply.waiting_count()
    }

    /// The tree, for status.
    #[must_use]
    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    /// The pool, for status.
    #[must_use]
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// The protocol of the view, for status.
    #[must_use]
    pub fn protocol(&self) -> &dyn Protocol {
        &*self.protocol
    }

    /// Durable counters.
    #[must_use]
    pub fn state(&self) -> &ReplicaState {
        &self.state
    }

    /// Counters of the replica since it started.
    #[must_use]
    pub fn counters(&self) -> Counters {
        // The group may have cut the log below its end at the start.
        let logged_bytes = self.log.end().get().saturating_sub(self.log_from.get());
        let mut counters = Counters { logged_bytes, ..self.counters };
        self.apply.count_into(&mut counters);
        self.repairs.count_into(&mut counters);
        self.ship.count_into(&mut counters);
        self.drain.count_into(&mut counters);
        self.grants.count_into(&mut counters);
        self.loads.count_into(&mut counters);
        self.jobs.count_into(&mut counters);
        self.held_writes.count_into(&mut counters);
        counters
    }

    /// Orders that have not come back. Zero when the replica rests.
    #[must_use]
    pub fn orders_in_flight(&self) -> usize {
        self.orders.len()
    }

    // ---- events

    /// A connection with a member was made. Its number is never used again in this process.
    pub fn handle_connected(&mut self, peer: ReplicaId, connection: u64, now_ms: u64) {
        self.end_turn_before_event();
        self.set_now(now_ms);
        self.protocol.handle_connected(peer, connection, now_ms);
    }

    /// A connection with a member was lost.
    pub fn handle_disconnected(&mut self, peer: ReplicaId, connection: u64, now_ms: u64) {
        self.end_turn_before_event();
        self.set_now(now_ms);
        self.protocol.handle_disconnected(peer, connection, now_ms);
    }

    /// A message came on a connection. A message that breaks the protocol ends the connection.
    pub fn handle_message(&mut self, from: ReplicaId, connection: u64, frame: Frame, now_ms: u64) {
        self.end_turn_before_event();
        self.set_now(now_ms);
        let frame = self.planted_receipt(frame);
        if let Err(reason) = self.protocol.handle_message(from, connection, frame, now_ms) {
            let connection = Some(connection);
            self.outputs.push_back(Output::Disconnect { peer: from, connection, reason });
        }
    }

    /// Time passed. To be called at least every heartbeat interval.
    pub fn handle_tick(&mut self, now_ms: u64) {
        self.set_now(now_ms);
        self.take_effect();
        self.protocol.handle_tick(now_ms);
        self.ask_for_missing_files();
        self.tick_marks();
    }

    /// A work order ended.
    pub fn handle_done(&mut self, id: WorkId, done: Done) {
        let Some(order) = self.orders.remove(&id) else {
            debug_assert!(false, "a result without an order");
            return;
        };
        if self.is_reopening() && !matches!(order, Order::Commit) {
            return;
        }
        match (order, done) {
            (Order::Commit, Done::Commit(result)) => self.commit_done(result),
            (Order::Drain(drain), Done::Drain(result)) => self.drain_done(drain, result),
            (Order::Job(job), Done::Job(result)) => self.job_done(job, result),
            (Order::LoadFile(load), Done::Rewrite(result)) => self.load_file_done(load, result),
            (Order::Ship { to, session, file }, Done::Ship(result)) => {
                self.ship_done((to, session, file), result);
            }
            (Order::ReadFile(from), Done::ReadFile(result)) => self.reread_done(&from, result),
            (Order::Verify(at), Done::Verify(result)) => self.verify_done(&at, result),
            (Order::Check(file), Done::Verify(result)) => self.check_done(file, &result),
            (Order::CheckForFill(at), Done::Verify(result)) => self.fill_checked(&at, result),
            (Order::CheckForHead(at), Done::Verify(result)) => self.copy_checked(&at, result),
            (Order::Fetch { from, session, file }, Done::Fetch(result)) => {
                self.fetch_done((from, session, file), result);
            }
            (Order::Rewrite(placement), Done::Rewrite(result)) => {
                self.rewrite_done(&placement, result);
            }
            (Order::ReadLog { ticket }, Done::ReadLog(result)) => self.log_read(ticket, result),
            _ => self.failed(Failed::Accounts, Error::invalid("a result does not fit its order")),
        }
    }

    /// Carries on with everything that events made possible.
    pub fn advance(&mut self, now_ms: u64) {
        self.set_now(now_ms);
        self.due.mark_every();
        while !self.ended && !self.is_stopping() && !self.take_due_steps() {}
        while !self.ended && self.is_stopping() {
            let before = self.outputs.len();
            self.advance_stop();
            if self.outputs.len() == before {
                break;
            }
        }
        if self.keeps_cut() {
            self.schedule_commit();
        }
        self.let_jobs_build();
        self.judge_held();
        self.machine_invariants();
    }

    /// Takes the steps of a turn that are due, in the order that [`steps`] argues, until one has
    /// made itself or an earlier one due. Returns whether none has.
    fn take_due_steps(&mut self) -> bool {
        self.step(Step::Protocol, Self::pump_protocol)
            && self.step(Step::TermStart, Self::append_term_start)
            && self.step(Step::RingLoss, Self::judge_ring_loss)
            && self.step(Step::Records, Self::apply_records)
            && self.step(Step::Edits, Self::apply_edits)
            && self.step(Step::Damage, Self::take_damage)
            && self.step(Step::Repairs, Self::schedule_repairs)
            && self.step(Step::Room, Self::judge_room)
            && self.step(Step::Time, Self::carry_time)
            && self.step(Step::LogAge, Self::age_log)
            && self.step(Step::Jobs, Self::schedule_jobs)
            && self.step(Step::AppendEdits, Self::append_edits)
            && self.step(Step::Loads, Self::advance_loads)
            && self.step(Step::Copies, Self::advance_copies)
            && self.step(Step::Orphans, Self::drop_old_orphans)
            && self.step(Step::Shipping, Self::schedule_shipping)
            && self.step(Step::Grants, Self::grant_slots)
            && self.step(Step::Drains, Self::schedule_drains)
            && self.step(Step::Reclaim, Self::reclaim)
            && self.step(Step::Commit, Self::schedule_commit)
    }

    /// Takes a step if it is due. Returns whether those behind it may follow.
    #[inline]
    fn step(&mut self, step: Step, run: impl FnOnce(&mut Self)) -> bool {
        if self.due.take(step) {
            run(self);
            return !self.ended && !self.due.is_due_by(step);
        }
        true
    }

    /// The next thing to do, if any.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// Has file numbers begin behind those of all files here, also of jobs that died with the last
    /// process. A replica that compacts for itself may go on in the same term, so the term alone
    /// does not tell its numbers from theirs.
    fn skip_used_numbers(&mut self) {
        if self.has(Mutant::FileNumbersAgain) {
            return;
        }
        let files = self.pool.files().map(|placement| placement.file);
        let made = files.filter(|file| file.kind != FileKind::LogSegment);
        self.tree.reserve_files(made.map(|file| file.number + 1).max().unwrap_or(0));
    }

    /// Checks what must hold between steps, in this machine and in its parts.
    ///
    /// # Panics
    /// When it does not.
    pub fn invariants(&self) {
        self.pool.invariants();
        self.tree.version().invariants();
        // A head that lost log in a power cut, and has yet to fetch it, knows of more.
        let has_log = self.duties().append && self.protocol.is_joined();
        assert!(
            self.protocol.commit().only() <= self.log.end() || !has_log,
            "{}",
            format!("commit {} beyond the log's end {}", self.protocol.commit(), self.log.end())
        );
        if !self.has_wrong_files() {
            self.files.check(&self.pool, self.tree.version());
        }
    }
}

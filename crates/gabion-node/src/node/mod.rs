//! The state machine of one replica.
//!
//! Order of calls: any of `handle_*`, `put`, `delete`, `clear`, `end_turn` in any order; then
//! [`Node::advance`] once; then [`Node::poll_output`] until it is empty. Nothing is sent, ordered or
//! acknowledged except through outputs.

mod apply;
mod back_off;
mod grants;
mod held;
mod jobs;
mod load;
mod log;
mod log_repair;
mod marks;
mod memory;
mod messages;
mod outgoing;
mod pace;
mod planted;
mod ranges;
mod repair;
mod room;
mod shipping;
mod stop;
#[cfg(test)]
mod testing;
mod time;
mod writes;

use crate::files::FileMap;
use crate::message::NodeMessage;
use crate::state::{ReplicaState, Snapshot, opaque};
use crate::view::{Duties, View};
use crate::work::{Done, Work, WorkId};
use crate::{GroupConfig, NodeOptions};
use alloc::collections::{BTreeMap, VecDeque};
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use bytes::Bytes;
use gabion_base::units::MIB;
use gabion_base::{Error, FileId, FileKind, LogPosition, ReplicaId, Term};
use gabion_engine::{
    Codecs, FileMeta, Flushed, PinBudget, ReadView, ReaderStats, Tree, TreeConfig, WriteLimits,
    WriteState,
};
use gabion_log::{Log, RecoveryReport, SegmentSource};
use gabion_pool::{FilePlacement, Pool};
use gabion_replication::{Action, Chain, Frame, Lost, Message};
pub use held::{StoppedMs, WriteStop};
pub use load::{LoadGate, LoadId, LoadState};
pub use marks::{Captured, CapturedFile, LogEra, MarkId};
pub use memory::NodeMemory;
#[cfg_attr(
    not(feature = "planted"),
    expect(unreachable_pub, reason = "exported with the feature")
)]
pub use planted::Mutant;
pub use ranges::RangeState;
pub use repair::{DamagedFile, RepairState};
pub use stop::StopState;

/// How many MemTables, each as long as may be set while a replica runs, a pool has room for; as many as `gabion up` asks for.
const MEMTABLES_OF_POOL: u64 = 16;

/// Checks that MemTables are no longer than a sixteenth of a pool of so many bytes, unless `made` has them so.
///
/// # Errors
/// Invalid input that names length and limit.
pub fn check_memtable_len(
    limits: WriteLimits,
    pool_len: u64,
    made: &TreeConfig,
) -> gabion_base::Result<()> {
    let most = (pool_len / MEMTABLES_OF_POOL).max(made.memtable_len);
    if limits.memtable_len <= most {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "memtable_len is {}, of a pool of {pool_len} bytes it may be {most}",
        limits.memtable_len
    )))
}

/// What the driver is to do.
pub enum Output {
    /// Send a frame to its receiver, on the connection that it names, in order.
    Send {
        /// The frame.
        frame: Frame,
    },
    /// Break the connection with a member; it is made anew afterwards.
    Disconnect {
        /// The member.
        peer: ReplicaId,
        /// Which connection; the current one if not said.
        connection: Option<u64>,
        /// Why, for the log.
        reason: Error,
    },
    /// Carry out an order and hand its result to [`Node::handle_done`].
    Work(WorkId, Work),
    /// What a client sent through another node's door, or the answer to what ours did.
    Deliver {
        /// The member.
        from: ReplicaId,
        /// `Forward` or `ForwardReply`.
        message: Message,
    },
    /// Change what the embedded target serves.
    Target(TargetCommand),
    /// Connect to, or drop, a secondary's namespace.
    Remote(RemoteCommand),
    /// Bounded jobs may build until they have built so many bytes since the node began: [`crate::work::BuildCredit`].
    JobsMayBuild(u64),
    /// An edit was applied whose files were sent here: what readers had of those that it removes they will want of
    /// those that it adds.
    Replaced(Replaced),
    /// These files are gone, or lie elsewhere now: forget cached blocks and readers.
    FilesGone(Vec<FileId>),
    /// What became of a mark: the state at its record, or why there is none.
    Marked(MarkId, gabion_base::Result<Captured>),
    /// Something that whoever runs the replica should know: one sentence for its log.
    Notice(String),
    /// The replica can no longer be trusted with its disk; end the process and start anew.
    Fatal(Error),
}

/// What an edit did to files that others have made.
pub struct Replaced {
    /// Those that it removes; none with a flush's, all there is where files are dropped. They are gone when
    /// [`Output::FilesGone`] says so, which comes later.
    pub removed: Vec<FileId>,
    /// Those that it adds and where they lie. Who keeps the description keeps the file's slots, so it is to be dropped
    /// soon.
    pub added: Vec<(Arc<FileMeta>, Arc<FilePlacement>)>,
}

/// What the embedded NVMe/TCP target is to do. Byte ranges are relative to the namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TargetCommand {
    /// Close what is served now, let what is in flight end, then serve under this name and answer
    /// with [`Node::handle_target_open`].
    Open {
        /// Name of the subsystem: group, term and session.
        subsystem: String,
        /// The session, to be handed back.
        session: u64,
        /// The only host admitted.
        host: String,
    },
    /// Admit writes to these ranges (offset, length).
    Admit(Vec<(u64, u64)>),
    /// Refuse writes to these ranges from now on: the slots hold files.
    Revoke(Vec<(u64, u64)>),
}

/// What the shipping side is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RemoteCommand {
    /// Connect to a secondary's namespace; orders for it follow.
    Connect {
        /// The secondary.
        to: ReplicaId,
        /// Its session.
        session: u64,
        /// Name of its subsystem.
        subsystem: String,
        /// Port on its host.
        port: u16,
        /// The name that we present.
        host: String,
    },
    /// Drop the connection; orders under way end as failed or unknown.
    Drop {
        /// The secondary.
        to: ReplicaId,
    },
}

/// Whether a write can be taken now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WriteGate {
    /// Yes.
    Open,
    /// Not yet: compaction, the ring or a member lags. The command waits.
    Wait(&'static str),
    /// No, as there is no room for files: refused with this sentence. Deletes and clears may be taken.
    Full {
        /// How much room there is, and what is wanted.
        reason: String,
        /// Whether deletes are taken now; else they wait, for what lags behind or for jobs to give back what deletes took
        /// before. They are refused while [`Node::jobs_pause`]: nothing under way gives any room then.
        takes_deletes: bool,
        /// Whether range deletes and clears are taken now, which take next to nothing and give back whole files; else as
        /// with deletes.
        takes_clears: bool,
    },
    /// No: refused with this sentence.
    Refuse(String),
}

/// File numbers that a start may use.
const FILE_NUMBERS: u64 = 1 << 32;

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
    chain: Chain,
    files: FileMap,
    now_ms: u64,
    /// Files that no reader here needs any more.
    obsolete: Vec<FileId>,
    /// Why writes are refused, as the chain last said.
    refused: Option<String>,
    /// Whether reads are answered here.
    readable: bool,
    /// Once the edit with this number is applied.
    readable_from: u64,
    /// What the chain wants done to the log once no drain is under way.
    held: Option<Action>,
    /// What the log lost and has not got back.
    log_repair: Option<log_repair::LogRepair>,
    outputs: VecDeque<Output>,
    /// Something fatal happened: nothing is begun any more.
    ended: bool,
    next_work: u64,
    orders: BTreeMap<WorkId, Order>,
    writing: writes::Writing,
    held_writes: held::HeldWrites,
    apply: apply::Applying,
    jobs: jobs::Jobs,
    loads: load::Loads,
    room: room::Room,
    ship: shipping::Shipping,
    grants: grants::Grants,
    drain: log::Draining,
    stopping: stop::Stopping,
    repairs: repair::Repairs,
    marks: marks::Marks,
    commits: Commits,
    counters: Counters,
    pace: pace::Pace,
}

/// What a work order was for, until its result comes.
enum Order {
    Commit,
    Drain(log::DrainInFlight),
    Job(u64),
    LoadFile(LoadId),
    Ship {
        to: ReplicaId,
        session: u64,
        file: FileId,
    },
    ReadFile(Arc<FilePlacement>),
    /// A file that was shipped, where it arrived.
    Verify(Arc<FilePlacement>),
    /// A file that a read found damaged.
    Check(FileId),
    /// A file of which the primary has no whole copy.
    CheckForHead(Arc<FilePlacement>),
    Fetch {
        from: ReplicaId,
        session: u64,
        file: FileId,
    },
    Rewrite(Arc<FilePlacement>),
    ReadLog {
        ticket: u64,
    },
}

/// Placement commits: what is staged, what is being written, and what follows when it is durable.
#[derive(Default)]
struct Commits {
    staged: Vec<After>,
    in_flight: Option<(u64, Vec<After>)>,
}

/// What happens when a placement commit is durable.
enum After {
    EditApplied { edit: u64, flushed: Flushed },
    FilePlaced { file: FileId, tell: bool },
    SegmentPlaced(u64),
    TermAdopted(Term),
    Trimmed(LogPosition),
    SessionRaised,
    LossNoted,
    RingNoted,
    Stopped,
    Granted(Vec<gabion_pool::Placed>),
    BuiltPlaced(u64),
    LoadPlaced(LoadId),
    FileRepaired(FileId),
}

/// What a replica did, for status, metrics and benchmarks. Bytes unless the name says otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Flushes done here.
    pub flushes: u64,
    /// Compactions done here, trivial moves not counted.
    pub compactions: u64,
    /// Trivial moves decided here.
    pub trivial_moves: u64,
    /// Bulk loads that came to their end here.
    pub loads: u64,
    /// File bytes of bulk loads.
    pub loaded_bytes: u64,
    /// Milliseconds in which a write waited as writers were slowed down: L0 grew faster than it was compacted.
    pub writes_slowed_ms: u64,
    /// Milliseconds in which a write waited as nothing was taken, by what stopped it.
    pub writes_stopped_ms: StoppedMs,
    /// Jobs that ended because the device had no room for their files.
    pub jobs_without_space: u64,
    /// Slots that are not used until the next start, as the device did not write what was to be there.
    pub refused_slots: u64,
    /// Compactions given up as their inputs are damaged; they begin again once those are repaired.
    pub jobs_set_aside: u64,
    /// Files in which a read met damage.
    pub damaged_files: u64,
    /// Damaged files that were put whole into other slots.
    pub repaired_files: u64,
    /// File bytes read by jobs.
    pub job_read_bytes: u64,
    /// File bytes written by jobs.
    pub job_written_bytes: u64,
    /// Of these, by flushes. `job_written_bytes` ÷ this is the write amplification of the tree.
    pub flushed_bytes: u64,
    /// Bytes of records that came into the log here, those of seals and edits included.
    pub logged_bytes: u64,
    /// Bytes of the log that were ordered to be written to its segments, whole blocks.
    pub log_written_bytes: u64,
    /// File bytes shipped to others.
    pub shipped_bytes: u64,
    /// Files shipped to others.
    pub shipped_files: u64,
    /// File bytes that others shipped here.
    pub received_bytes: u64,
    /// File bytes read to verify what was shipped here.
    pub verified_read_bytes: u64,
    /// File bytes read to ship a file again.
    pub reship_read_bytes: u64,
    /// Files that were to be shipped again and whose bytes in memory were not what was built any more.
    pub rotten_buffers: u64,
    /// Files asked for because an edit named them and they were not here.
    pub pulled_files: u64,
    /// Files that an edit added, that were not here, and that were not needed as a later edit that was
    /// applied together with it removed them.
    pub skipped_files: u64,
    /// Edits applied.
    pub edits: u64,
    /// Most bytes of built files that waited to be shipped when a job was begun; of flushes alone when that was one.
    pub unshipped_bytes_at_job_max: u64,
}

impl Node {
    /// Builds the machine from its recovered parts (see [`crate::open`]).
    #[expect(clippy::too_many_arguments, reason = "the one production constructor")]
    pub(crate) fn assemble(
        config: GroupConfig,
        options: NodeOptions,
        state: ReplicaState,
        log: Log,
        tree: Tree,
        pool: Pool,
        chain: Chain,
        now_ms: u64,
    ) -> Self {
        let me = state.me;
        let view = View::of_chain(&config, me);
        Self {
            ship: shipping::Shipping::new(&view),
            apply: apply::Applying::new(tree.floor()),
            config,
            view,
            options,
            me,
            state,
            log,
            log_from: LogPosition::ZERO,
            tree,
            pool,
            chain,
            files: FileMap::default(),
            now_ms,
            obsolete: Vec::new(),
            refused: Some("the group is starting".into()),
            readable: false,
            readable_from: 0,
            held: None,
            log_repair: None,
            outputs: VecDeque::new(),
            ended: false,
            next_work: 0,
            orders: BTreeMap::new(),
            writing: writes::Writing::default(),
            held_writes: held::HeldWrites::default(),
            jobs: jobs::Jobs::default(),
            loads: load::Loads::default(),
            room: room::Room::default(),
            grants: grants::Grants::default(),
            drain: log::Draining::default(),
            stopping: stop::Stopping::default(),
            repairs: repair::Repairs::default(),
            marks: marks::Marks::default(),
            commits: Commits::default(),
            counters: Counters::default(),
            pace: pace::Pace::default(),
        }
    }

    /// Takes what recovery found in the log; done once, before any event. `edits` are the last ones that
    /// were applied, encoded; `lost` is what is gone where the log was cut.
    pub(crate) async fn replay(
        &mut self,
        segments: &impl SegmentSource,
        edits: BTreeMap<u64, Vec<u8>>,
        report: &RecoveryReport,
        lost: Option<Lost>,
    ) -> gabion_base::Result<()> {
        for placement in self.pool.files() {
            if placement.file.kind == FileKind::Sst {
                self.files.insert(placement.clone());
            }
        }
        self.adopt_segments()?;
        self.begin_replay(edits);
        while let Some(record) = self.log.next_recovered(segments).await? {
            self.apply_record(&record)?;
        }
        self.end_replay(lost.is_some());
        self.skip_cleared()?;
        match report.rotten.zip(lost) {
            Some((rot, lost)) => self.begin_repair(rot, lost),
            None => self.begin_drain_again(report),
        }
        if !self.view.has_one_tree() {
            self.drop_orphans(None);
            self.reserve_file_numbers();
            self.stage_state(None);
        }
        if self.duties().receive {
            // What an earlier process granted is void: nobody knows what it was used for.
            self.raise_session();
        }
        self.log_from = self.log.end();
        let start = self.log.spans().last().map_or(self.log.end(), |span| span.start);
        self.grants.orphans_of = Some((self.state.term, start));
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

    /// Changes how many compactions may run at once. Those under way go on.
    pub fn set_compactions_max(&mut self, compactions_max: usize) {
        self.options.compactions_max = compactions_max;
    }

    /// How many compactions may run at once.
    #[must_use]
    pub const fn compactions_max(&self) -> usize {
        self.options.compactions_max
    }

    /// Changes the codecs of files that are made from now on by jobs of this member's; none: those of the group. Other
    /// members need not know: each recipe names its own.
    ///
    /// # Errors
    /// Invalid input for a level out of its limits; nothing has changed then.
    pub fn set_codecs(&mut self, codecs: Option<Codecs>) -> gabion_base::Result<()> {
        self.tree.set_codecs(codecs.unwrap_or_else(|| self.config.tree.codecs()))?;
        self.room.forget_jobs();
        Ok(())
    }

    /// Changes when MemTables are sealed and how many runs L0 may have, where this member decides that: it has the first
    /// as the head, the others where it compacts. None: as the group says.
    ///
    /// # Errors
    /// Invalid input for a limit out of its own limits, and for MemTables longer than a sixteenth of the pool and than
    /// the group's: flushes of them would leave compactions no room. Nothing has changed then.
    pub fn set_write_limits(&mut self, limits: Option<WriteLimits>) -> gabion_base::Result<()> {
        self.check_write_limits(limits)?;
        let limits = limits.unwrap_or_else(|| self.config.tree.write_limits());
        self.tree.set_write_limits(limits)?;
        self.room.forget_jobs();
        Ok(())
    }

    /// Whether [`Self::set_write_limits`] would take these.
    ///
    /// # Errors
    /// As there.
    pub fn check_write_limits(&self, limits: Option<WriteLimits>) -> gabion_base::Result<()> {
        let Some(limits) = limits else { return Ok(()) };
        limits.check()?;
        let region = self.pool.region();
        // Less than a slot of the pool lies behind the region.
        let pool_len = (region.offset() + region.len()).next_multiple_of(MEMTABLES_OF_POOL * MIB);
        check_memtable_len(limits, pool_len, &self.config.tree)
    }

    /// To be called after the budget of open files changed: see [`Tree::close_files`].
    pub fn close_files(&mut self) {
        self.tree.close_files();
    }

    /// Changes what readers may keep. Those past a smaller budget end with the next event.
    pub fn set_pin_budget(&mut self, pin_budget: PinBudget) {
        self.options.pin_budget = pin_budget;
    }

    /// What readers may keep.
    #[must_use]
    pub const fn pin_budget(&self) -> PinBudget {
        self.options.pin_budget
    }

    /// Who the members are, and what this one does among them.
    #[must_use]
    pub const fn view(&self) -> &View {
        &self.view
    }

    /// What this member does.
    #[must_use]
    pub const fn duties(&self) -> Duties {
        self.view.duties()
    }

    /// A view of everything applied here. It ends when it is past the pin budget of the options.
    #[must_use]
    pub fn read_view(&self) -> ReadView {
        self.tree.view()
    }

    /// A view of everything applied here, with the end of the log that it is of. At the head the MemTable is ahead of
    /// the log by the writes of the turn: the turn ends here.
    pub fn digest_point(&mut self) -> (ReadView, LogPosition) {
        self.end_turn_before_event();
        (self.read_view(), self.log_end())
    }

    /// Who reads here, and what that keeps from being given back.
    #[must_use]
    pub fn readers(&self) -> ReaderStats {
        self.tree.readers(self.now_ms)
    }

    /// Where files lie, for reads on this thread.
    #[must_use]
    pub fn file_map(&self) -> FileMap {
        self.files.clone()
    }

    /// Whether reads are answered here: the tail, once it has caught up.
    #[must_use]
    pub fn is_readable(&self) -> bool {
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

    /// The chain, for status.
    #[must_use]
    pub fn chain(&self) -> &Chain {
        &self.chain
    }

    /// Durable counters.
    #[must_use]
    pub fn state(&self) -> &ReplicaState {
        &self.state
    }

    /// End of the log here: everything before it is applied to the MemTables.
    #[must_use]
    pub fn log_end(&self) -> LogPosition {
        self.log.end()
    }

    /// What the replica did since it started.
    #[must_use]
    pub fn counters(&self) -> Counters {
        // Less than at the start where the group had it cut.
        let logged_bytes = self.log.end().get().saturating_sub(self.log_from.get());
        Counters { logged_bytes, ..self.counters }
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
        self.chain.handle_connected(peer, connection, now_ms);
    }

    /// A connection with a member was lost.
    pub fn handle_disconnected(&mut self, peer: ReplicaId, connection: u64, now_ms: u64) {
        self.end_turn_before_event();
        self.set_now(now_ms);
        self.chain.handle_disconnected(peer, connection, now_ms);
    }

    /// A message came on a connection. A message that breaks the protocol ends the connection.
    pub fn handle_message(&mut self, from: ReplicaId, connection: u64, frame: Frame, now_ms: u64) {
        self.end_turn_before_event();
        self.set_now(now_ms);
        if let Err(reason) = self.chain.handle_message(from, connection, frame, now_ms) {
            let connection = Some(connection);
            self.outputs.push_back(Output::Disconnect { peer: from, connection, reason });
        }
    }

    /// Time passed. To be called at least every heartbeat interval.
    pub fn handle_tick(&mut self, now_ms: u64) {
        self.set_now(now_ms);
        self.chain.handle_tick(now_ms);
        self.ask_for_missing_files();
        self.tick_marks();
    }

    /// A work order ended.
    pub fn handle_done(&mut self, id: WorkId, done: Done) {
        let Some(order) = self.orders.remove(&id) else {
            debug_assert!(false, "a result without an order");
            return;
        };
        match (order, done) {
            (Order::Commit, Done::Commit(result)) => self.commit_done(result),
            (Order::Drain(drain), Done::Drain(result)) => self.drain_done(drain, result),
            (Order::Job(job), Done::Job(result)) => self.job_done(job, result),
            (Order::LoadFile(load), Done::Rewrite(result)) => self.load_file_done(load, result),
            (Order::Ship { to, session, file }, Done::Ship(result)) => {
                self.ship_done(to, session, file, result);
            }
            (Order::ReadFile(from), Done::ReadFile(result)) => self.reread_done(&from, result),
            (Order::Verify(at), Done::Verify(result)) => self.verify_done(&at, result),
            (Order::Check(file), Done::Verify(result)) => self.check_done(file, result),
            (Order::CheckForHead(at), Done::Verify(result)) => self.copy_checked(&at, result),
            (Order::Fetch { from, session, file }, Done::Fetch(result)) => {
                self.fetch_done((from, session), file, result);
            }
            (Order::Rewrite(placement), Done::Rewrite(result)) => {
                self.rewrite_done(&placement, result);
            }
            (Order::ReadLog { ticket }, Done::ReadLog(result)) => self.log_read(ticket, result),
            _ => self.fatal(Error::invalid("a result does not fit its order")),
        }
    }

    /// Carries on with everything that events made possible.
    pub fn advance(&mut self, now_ms: u64) {
        self.set_now(now_ms);
        while !self.ended {
            let progress = |node: &Self| {
                let edits = (node.tree.last_edit(), node.apply.waiting_count());
                (node.outputs.len(), node.log.end(), edits)
            };
            let before = progress(self);
            if self.is_stopping() {
                self.advance_stop();
                if before == progress(self) {
                    break;
                }
                continue;
            }
            self.pump_chain();
            self.judge_ring_loss();
            self.apply_records();
            self.apply_edits();
            self.take_damage();
            self.schedule_repairs();
            self.judge_room();
            self.carry_time();
            self.age_log();
            self.schedule_jobs();
            self.append_edits();
            self.advance_loads();
            self.drop_old_orphans();
            self.schedule_shipping();
            self.grant_slots();
            self.schedule_drains();
            self.reclaim();
            self.schedule_commit();
            if before == progress(self) {
                break;
            }
        }
        self.let_jobs_build();
        self.judge_held();
    }

    fn set_now(&mut self, now_ms: u64) {
        self.count_held(now_ms);
        self.now_ms = now_ms;
        let fill = match self.tree.write_state() {
            WriteState::Slow(fill) => Some(fill),
            WriteState::Ok | WriteState::Stop(_) => None,
        };
        self.pace.pass(now_ms, fill);
    }

    /// The next thing to do, if any.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// Makes sure that no file number is used twice, also not for a file that was lost with the process
    /// that made it: every start takes a fresh range, durable before the first file is.
    fn reserve_file_numbers(&mut self) {
        if self.has(Mutant::FileNumbersAgain) {
            return;
        }
        self.tree.reserve_files(self.state.files_reserved);
        self.state.files_reserved = self.tree.files_reserved() + FILE_NUMBERS;
    }

    // ---- orders and commits

    fn order(&mut self, order: Order, work: Work) {
        let id = WorkId(self.next_work);
        self.next_work += 1;
        self.orders.insert(id, order);
        self.outputs.push_back(Output::Work(id, work));
    }

    fn fatal(&mut self, error: Error) {
        self.ended = true;
        self.outputs.push_back(Output::Fatal(error));
    }

    fn tell(&mut self, to: ReplicaId, message: &NodeMessage) {
        let bytes = Bytes::from(message.encode());
        // Without a connection there is nobody to tell; the next one starts from what is durable.
        let _ = self.chain.send(to, Message::Node { bytes });
    }

    /// Stages the replica's counters; `after` follows when they are durable.
    fn stage_state(&mut self, after: Option<After>) {
        self.pool.stage_opaque(opaque::STATE, self.state.encode());
        self.commits.staged.extend(after);
    }

    /// Writes what is staged, one commit at a time: a commit carries all that gathered meanwhile.
    fn schedule_commit(&mut self) {
        if self.commits.in_flight.is_some() {
            return;
        }
        let commit = if self.pool.needs_checkpoint() {
            let snapshot = Snapshot::encode(&self.config, &self.state, &self.tree.snapshot());
            match self.pool.checkpoint(&snapshot) {
                Ok(commit) => Some(commit),
                Err(error) => return self.fatal(error.within("placement log checkpoint")),
            }
        } else {
            self.pool.take_commit()
        };
        match commit {
            Some(commit) => {
                let after = core::mem::take(&mut self.commits.staged);
                self.commits.in_flight = Some((commit.number, after));
                self.order(Order::Commit, Work::Commit(commit));
            }
            None => debug_assert!(self.commits.staged.is_empty()),
        }
    }

    fn commit_done(&mut self, result: gabion_base::Result<()>) {
        if let Err(error) = result {
            // What the device holds now is not known; a second flush proves nothing (FAULTS.md E8).
            return self.fatal(error.within("placement log"));
        }
        let Some((number, after)) = self.commits.in_flight.take() else { return };
        self.pool.committed(number);
        for step in after {
            match step {
                After::EditApplied { edit, flushed } => {
                    self.chain.handle_edit_applied(edit, flushed.position);
                    self.writing.keep_flushed(flushed.sequence);
                }
                After::FilePlaced { file, tell } => self.file_placed(file, tell),
                After::SegmentPlaced(segment) => self.segment_placed(segment),
                After::TermAdopted(term) => self.chain.handle_term_adopted(term),
                After::Trimmed(at) => self.trimmed(at),
                After::SessionRaised => self.session_raised(),
                After::LossNoted => self.loss_noted(),
                After::RingNoted => self.ring_noted(),
                After::Stopped => self.stopped(),
                After::Granted(slots) => self.granted(slots),
                After::BuiltPlaced(job) => self.built_placed(job),
                After::LoadPlaced(load) => self.load_placed(load),
                After::FileRepaired(file) => self.file_repaired(file),
            }
        }
    }

    /// Gives back slots and log that nobody needs anymore.
    fn reclaim(&mut self) {
        self.tree.limit_readers(self.now_ms, self.options.pin_budget);
        self.obsolete.extend(self.tree.obsolete_files());
        if self.has(Mutant::ReadUnderWayNotWaitedFor) {
            self.obsolete.extend(self.tree.leaving_files().iter().map(|file| file.id));
        }
        let obsolete = core::mem::take(&mut self.obsolete);
        // Those that were skipped were never here.
        let obsolete = obsolete.into_iter().filter(|file| self.files.get(*file).is_some());
        let (kept, gone): (Vec<FileId>, Vec<FileId>) =
            obsolete.partition(|file| self.is_to_be_read(*file));
        self.obsolete = kept;
        if !gone.is_empty() {
            for file in &gone {
                self.files.remove(*file);
                if let Err(error) = self.pool.free_file(*file)
                    && !self.has(Mutant::SlotFreedUnderReader)
                {
                    return self.fatal(error);
                }
            }
            self.outputs.push_back(Output::FilesGone(gone));
        }
        self.trim_log();
    }

    /// Checks what must hold between steps, in this machine and in its parts.
    ///
    /// # Panics
    /// When it does not.
    pub fn invariants(&self) {
        self.pool.invariants();
        assert!(self.apply.pending_in_order(), "edits wait in the order of their numbers");
        assert!(
            self.chain.commit() <= self.log.end() || !self.duties().append,
            "{}",
            format!("commit {} beyond the log's end {}", self.chain.commit(), self.log.end())
        );
        for number in self.drain.segments.keys() {
            let file = FileId::log_segment(*number);
            assert!(self.pool.placement(file).is_some(), "{file} is the log's and in no slot");
        }
    }
}

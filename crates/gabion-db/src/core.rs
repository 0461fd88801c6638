//! The machine under its lock, and the state that its threads share.
//!
//! A thread with an input for the machine (a write, a result, the clock) takes the lock, hands it
//! in, advances the machine and carries out its outputs, none of which takes longer than queueing
//! an order. So no thread only passes things on, and a write without contention wakes nobody.

use crate::drain::Drains;
use crate::moments::Moments;
use crate::read::Placements;
use crate::views::Views;
use gabion_base::{Error, Frontier, GroupId, MemTableId, Result, SequenceNumber};
use gabion_engine::{FileMeta, ReadView, Tree};
use gabion_fabric::fork::Process;
use gabion_host::RunOptions;
use gabion_host::cache::SharedCache;
use gabion_host::clock::Clock;
use gabion_host::jobs::{IoThread, JobSink, JobThreads};
use gabion_media::BufferMeter;
use gabion_node::work::{BuiltFile, Done, DrainOrder, Work, WorkId};
use gabion_node::{Node, Output};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

/// The interval of ticks for writers that wait.
const TICK: Duration = Duration::from_millis(20);
/// The interval of ticks for an idle machine, which gives back files that readers let go.
pub(crate) const IDLE_TICK: Duration = Duration::from_millis(200);

/// Bytes of log after which a write advances the machine, if nothing else does: enough for a drain,
/// and little against the ring.
const CARRY_ON_LEN: u64 = 64 << 10;

/// Notices that are kept for the operator.
const NOTICES_MAX: usize = 1_000;

/// The state behind the lock.
pub(crate) struct Core {
    pub(crate) node: Box<Node>,
    /// The options that may change, as they are now.
    pub(crate) run: RunOptions,
    /// None while the store starts, and again once it closes.
    pub(crate) threads: Option<Threads>,
    /// The drain that a waiting holder of the lock carries out itself: [`crate::drain`].
    own_drain: OwnDrain,
    /// The log ended here when the machine was last carried on.
    carried_on_at: Frontier,
    /// The MemTable that readers know as the active one.
    active: MemTableId,
    /// The number of the shape that readers know.
    shape: u64,
    /// Why nothing can be written any more.
    failed: Option<Error>,
    /// Nothing is written any more, as somebody closed the store.
    pub(crate) is_closed: bool,
}

/// Whether the next drain of the machine stays with the holder of the lock.
enum OwnDrain {
    /// It goes to the thread of I/O.
    No,
    /// It stays.
    Wanted,
    /// It is here.
    Is(WorkId, DrainOrder),
}

/// The threads that work for the machine.
pub(crate) struct Threads {
    pub(crate) jobs: JobThreads,
    pub(crate) io: IoThread,
}

/// The store, shared by handles and threads.
pub(crate) struct Shared {
    core: Mutex<Core>,
    /// Something happened that a writer may have waited for.
    progress: Condvar,
    clock: Clock,
    /// The newest view, and the write up to which it is read; see `newest`.
    views: Views,
    /// The moments that snapshots and cursors read.
    pub(crate) moments: Moments,
    pub(crate) cache: Arc<SharedCache>,
    pub(crate) placements: Placements,
    drains: Drains,
    pub(crate) group: GroupId,
    /// Buffers of all threads.
    pub(crate) buffers: Arc<BufferMeter>,
    notices: Mutex<Vec<String>>,
    /// The process that opened the store: a fork of it must not touch a thing.
    process: Process,
}

impl Shared {
    #[expect(clippy::too_many_arguments, reason = "the one production constructor")]
    pub(crate) fn new(
        node: Box<Node>,
        clock: Clock,
        run: RunOptions,
        placements: Placements,
        drains: Drains,
        group: GroupId,
        buffers: Arc<BufferMeter>,
        process: Process,
    ) -> Self {
        let view = node.tree().lasting_view();
        Self {
            moments: Moments::new(),
            views: Views::new(&view, clock.now_ms()),
            core: Mutex::new(Core {
                carried_on_at: Frontier::ZERO,
                active: node.tree().active_id(),
                shape: node.tree().shape_number(),
                node,
                run,
                threads: None,
                own_drain: OwnDrain::No,
                failed: None,
                is_closed: false,
            }),
            progress: Condvar::new(),
            clock,
            cache: Arc::new(SharedCache::new(run.block_cache_len, run.open_files_len)),
            placements,
            drains,
            group,
            buffers,
            notices: Mutex::default(),
            process,
        }
    }

    /// Whether this process opened the store; a fork of it did not. Costs a load.
    #[inline]
    pub(crate) fn is_ours(&self) -> bool {
        self.process.is_this()
    }

    /// Callers check this before anything else: in a fork a thread that is not there may hold any
    /// lock.
    ///
    /// # Errors
    /// Invalid input, in a fork.
    #[inline]
    pub(crate) fn check_process(&self) -> Result<()> {
        if self.is_ours() { Ok(()) } else { Err(self.forked()) }
    }

    /// For calls that return no error.
    #[inline]
    pub(crate) fn assert_process(&self) {
        if !self.is_ours() {
            panic!("{}", self.forked());
        }
    }

    #[cold]
    fn forked(&self) -> Error {
        Error::invalid(format!(
            "the store was opened by process {}, of which process {} is a fork: it is for the former alone",
            self.process.id(),
            std::process::id()
        ))
    }

    /// # Panics
    /// In a fork of the process that opened the store, where the lock may never be given back.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Core> {
        self.assert_process();
        match self.core.lock() {
            Ok(core) => core,
            // The panicked thread left the store half changed: nothing may be built on it.
            Err(poisoned) => {
                let mut core = poisoned.into_inner();
                core.fail(half_done());
                core
            }
        }
    }

    /// Notices that the operator has not taken yet.
    pub(crate) fn notices(&self) -> MutexGuard<'_, Vec<String>> {
        self.notices.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers a notice for the operator; the oldest is dropped if nobody takes them.
    pub(crate) fn note(&self, text: String) {
        let mut notices = self.notices();
        if notices.len() == NOTICES_MAX {
            notices.remove(0);
        }
        notices.push(text);
    }

    /// Waits for something to happen, or for time to pass.
    pub(crate) fn wait<'a>(&self, core: MutexGuard<'a, Core>) -> MutexGuard<'a, Core> {
        let due_ms = core.node.writes_due_ms();
        let due =
            due_ms.map(|at| Duration::from_millis(at.saturating_sub(self.clock.now_ms()).max(1)));
        let (mut core, timeout) =
            match self.progress.wait_timeout(core, due.map_or(TICK, |due| due.min(TICK))) {
                Ok(waited) => waited,
                Err(poisoned) => {
                    let (mut core, timeout) = poisoned.into_inner();
                    core.fail(half_done());
                    (core, timeout)
                }
            };
        if timeout.timed_out() {
            self.carry_on(&mut core);
        }
        core
    }

    /// The tree as of the last write that was applied whole, at the current time if something may
    /// have expired. If the shown part of a shape ends before a clear, the clear is not visible:
    /// see [`Self::publish_shape`].
    pub(crate) fn newest(&self) -> ReadView {
        let due_ms = self.views.due_ms();
        if due_ms < u64::MAX && due_ms <= self.clock.now_ms() {
            self.pass_time();
        }
        self.views.newest(|view, sequence, now_ms| view.at(SequenceNumber(sequence), now_ms))
    }

    /// The machine's clock.
    pub(crate) const fn clock(&self) -> &Clock {
        &self.clock
    }

    /// The clock's time, in milliseconds since 1970.
    pub(crate) fn clock_ms(&self) -> u64 {
        self.clock.now_ms()
    }

    /// The clock's time, at most [`IDLE_TICK`] ago, for next to nothing.
    pub(crate) fn late_ms(&self) -> u64 {
        self.views.late_ms()
    }

    /// The time from which a life is counted. The clock may be behind the log's time, which decides
    /// expiry.
    pub(crate) fn expiry_base_ms(&self) -> u64 {
        self.clock.now_ms().max(self.views.now_ms())
    }

    /// Has the machine log that time has passed, unless another thread just did. If the store has
    /// failed, time stands still.
    fn pass_time(&self) {
        let mut core = self.lock();
        let is_due = |core: &Core| {
            core.node.time_due_ms().is_some_and(|due_ms| due_ms <= self.clock.now_ms())
        };
        if is_due(&core) {
            self.carry_on(&mut core);
        }
        if is_due(&core) {
            // The log takes nothing now: reads need not ask each time.
            let later_ms = self.clock.now_ms() + TICK.as_millis() as u64;
            self.views.set_due_ms(later_ms);
        }
    }

    /// Shows readers a write that went into the log, and advances the machine when there is enough
    /// to do.
    pub(crate) fn written(&self, core: &mut Core, end: Frontier) {
        let tree = core.node.tree();
        let is_sealed = tree.active_id() != core.active;
        if is_sealed || end.bytes_since(&core.carried_on_at) >= CARRY_ON_LEN {
            return self.carry_on(core);
        }
        match tree.shape_number() == core.shape {
            true => self.show(tree),
            // A range was deleted.
            false => self.publish(core),
        }
    }

    /// Shows readers the newest writes in the MemTables that they know, and the time.
    fn show(&self, tree: &Tree) {
        let due_ms = tree.time_due_ms().unwrap_or(u64::MAX);
        self.views.show(tree.last_sequence().get(), tree.now_ms(), due_ms);
    }

    /// Advances the machine and carries out its outputs; then readers see the writes.
    pub(crate) fn carry_on(&self, core: &mut Core) {
        let now_ms = self.clock.now_ms();
        self.views.set_late_ms(now_ms);
        if core.failed.is_some() {
            return;
        }
        core.node.advance(now_ms);
        while let Some(output) = core.node.poll_output() {
            self.carry_out(core, output);
        }
        core.carried_on_at = core.node.log_end();
        self.publish(core);
    }

    /// Advances the machine and waits until the log is durable up to `end`. This thread carries out
    /// the drain itself, if none is under way.
    ///
    /// # Errors
    /// No space where the log has no slot to grow into, and none is about to become free; the error
    /// that made the store fail.
    pub(crate) fn wait_durable<'a>(
        &'a self,
        mut core: MutexGuard<'a, Core>,
        end: Frontier,
    ) -> Result<()> {
        core.own_drain = OwnDrain::Wanted;
        self.carry_on(&mut core);
        // Even if the store has failed: only this thread has the order.
        if let OwnDrain::Is(id, order) = std::mem::replace(&mut core.own_drain, OwnDrain::No) {
            drop(core);
            let unfinished = Unfinished(self);
            let drained = self.drains.carry_out(order);
            std::mem::forget(unfinished);
            self.hand_in(|core| core.node.handle_done(id, Done::Drain(drained)));
            core = self.lock();
        }
        while !core.node.durable_everywhere().covers(&end) {
            core.check()?;
            if let Some(error) = core.node.log_waits_in_vain() {
                return Err(error);
            }
            core = self.wait(core);
        }
        Ok(())
    }

    /// Shows readers the writes so far.
    fn publish(&self, core: &mut Core) {
        self.publish_shape(core);
        self.show(core.node.tree());
    }

    /// Gives readers the tree's current shape. They read it as of the last write that they were
    /// shown, until they are shown the next; until then they still see what that write cleared.
    ///
    /// No job that knows of the clear can have ended by now. Its work goes to threads, whose
    /// results come in under the lock, and the writer has held that since before the clear.
    fn publish_shape(&self, core: &mut Core) {
        let newest = core.node.tree().lasting_view();
        core.active = core.node.tree().active_id();
        core.shape = core.node.tree().shape_number();
        let replace = |known: &ReadView| {
            let is_known = known.is_same_shape(&newest);
            (!is_known).then(|| newest.clone().replacing(known))
        };
        if let Some(newest) = self.views.with(replace) {
            self.views.publish(&newest);
        }
    }

    fn carry_out(&self, core: &mut Core, output: Output) {
        match output {
            Output::Work(id, Work::Job(order)) => {
                let _ = core.threads.as_ref().map(|threads| threads.jobs.begin(id, order));
            }
            // One that reads first is left to the thread of I/O.
            Output::Work(id, Work::Drain(order))
                if matches!(core.own_drain, OwnDrain::Wanted) && order.keeps_behind.is_none() =>
            {
                core.own_drain = OwnDrain::Is(id, order);
            }
            Output::Work(id, work) => {
                let _ = core.threads.as_ref().map(|threads| threads.io.begin(id, work));
            }
            Output::FilesGone(files) => {
                for file in files {
                    self.placements.forget(file);
                    self.cache.evict_file(file);
                }
            }
            // A log that nobody else writes is never cut.
            Output::Fatal(error) | Output::Reopen(error) => core.fail(error),
            Output::Notice(text) => self.note(text),
            // A group of one has no peer: nothing to send, to receive, to ship or to compare.
            Output::Send { .. }
            | Output::JobsMayBuild(_)
            | Output::Replaced(_)
            | Output::Disconnect { .. }
            | Output::Deliver { .. }
            | Output::Marked(..)
            | Output::Target(_)
            | Output::View(_)
            | Output::Remote(_) => {}
        }
    }

    /// Time passed.
    fn tick(&self) {
        let now_ms = self.clock.now_ms();
        self.views.set_late_ms(now_ms);
        self.hand_in(|core| core.node.handle_tick(now_ms));
    }

    /// Gives the machine an event, unless it has failed, and wakes the waiters.
    fn hand_in(&self, give: impl FnOnce(&mut Core)) {
        let mut core = self.lock();
        if core.failed.is_none() {
            give(&mut core);
            self.carry_on(&mut core);
        }
        drop(core);
        self.progress.notify_all();
    }
}

/// A drain on a caller's thread. If that thread panics nobody ends the drain, and the log never
/// becomes durable again.
struct Unfinished<'a>(&'a Shared);

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        self.0.lock().fail(half_done());
        self.0.progress.notify_all();
    }
}

fn half_done() -> Error {
    Error::io("a thread panicked while it changed the store")
}

impl Core {
    pub(crate) fn fail(&mut self, error: Error) {
        self.failed.get_or_insert(error);
    }

    /// # Errors
    /// Why nothing can be written any more: the device's content is not known, a thread is gone, or
    /// the store was closed. A process that opens the store anew finds all that was acknowledged.
    pub(crate) fn check(&self) -> Result<()> {
        match &self.failed {
            Some(error) => {
                Err(error.clone().within("the store has failed and must be opened anew"))
            }
            None if self.is_closed => Err(Error::unavailable("the store is closed")),
            None => Ok(()),
        }
    }
}

/// The store as its threads know it: they do not keep it open.
#[derive(Clone)]
pub(crate) struct Sink(pub(crate) Weak<Shared>);

impl Sink {
    fn with(&self, give: impl FnOnce(&mut Core)) {
        if let Some(shared) = self.0.upgrade() {
            shared.hand_in(give);
        }
    }

    /// Time passed.
    pub(crate) fn tick(&self) {
        if let Some(shared) = self.0.upgrade() {
            shared.tick();
        }
    }
}

impl JobSink for Sink {
    fn built(&self, id: WorkId, inputs: &[(u8, Arc<FileMeta>)], file: BuiltFile) {
        if let Some(shared) = self.0.upgrade() {
            let warmed = shared.cache.warm(shared.group, inputs, &file);
            // The store can do without it; a later reader of the file meets the same error.
            if let Err(error) = warmed {
                shared.note(format!("{}: not kept for readers: {error}", file.meta.id));
            }
        }
        self.with(|core| core.node.handle_job_file(id, file));
    }

    fn done(&self, id: WorkId, done: Done) {
        self.with(|core| core.node.handle_done(id, done));
    }

    fn died(&self, thread: &'static str) {
        self.with(|core| core.fail(Error::io(format!("thread {thread} ended by a panic"))));
    }
}

/// A handle keeps the store open.
pub(crate) type Handle = Arc<Shared>;

#[cfg(test)]
mod tests {
    use crate::{Db, Options, RunOptions, Snapshot, checkpoint};
    use gabion_engine::Keyspace;
    use gabion_node::checkpoint::Origin;

    const KEYS: [&[u8]; 4] = [b"k", b"l", b"m", b"n"];
    type Values = [Option<Vec<u8>>; 4];

    fn values(all: [Option<&str>; 4]) -> Values {
        all.map(|value| value.map(|value| value.as_bytes().to_vec()))
    }

    /// A snapshot's pairs, read in three ways that must agree.
    fn read(snapshot: &Snapshot) -> Values {
        let each = KEYS.map(|key| snapshot.get(key).unwrap().map(|value| value.to_vec()));
        for (many, one) in snapshot.multi_get(KEYS).into_iter().zip(&each) {
            assert_eq!(many.unwrap().as_deref(), one.as_deref());
        }
        let scanned = snapshot.iter(..).map(|pair| pair.unwrap().1.to_vec());
        let there: Vec<_> = each.iter().flatten().cloned().collect();
        assert_eq!(scanned.collect::<Vec<_>>(), there);
        each
    }

    /// The writer is stopped after it has given readers the new shape, before the number of its
    /// write.
    /// docs/faults.md: P21
    #[test]
    fn a_batch_that_clears_everything_is_read_whole_or_not_at_all_and_so_copied() {
        let dir = std::env::temp_dir().join(format!("gabion-db-clear-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        let options = Options::small();
        let db = Db::create(&dir.join("store"), &options).unwrap();
        db.put(b"k", b"in a file").unwrap();
        db.put(b"m", b"in a file").unwrap();
        db.flush().unwrap();
        db.put(b"k", b"old").unwrap();
        let old = values([Some("old"), None, Some("in a file"), None]);
        let new = values([Some("new"), None, None, Some("new")]);
        assert_eq!(read(&db.snapshot()), old);

        let mut core = db.lock();
        for (key, value) in [(b"l", b"gone"), (b"m", b"gone")] {
            core.node.put(Keyspace::User, key, value).unwrap();
        }
        core.node.clear().unwrap();
        for key in [b"k", b"n"] {
            core.node.put(Keyspace::User, key, b"new").unwrap();
        }
        let end = core.node.end_turn().unwrap();
        let (group, view_then) = (core.node.config().clone(), core.node.state().view.clone());
        db.shared().publish_shape(&mut core);
        let amid = db.snapshot();
        assert_eq!(read(&amid), old);
        assert_eq!(db.get(b"k").unwrap().unwrap(), &b"old"[..]);
        db.shared().written(&mut core, end);
        drop(core);
        assert_eq!(read(&db.snapshot()), new);
        // The job drops the cleared keys, but not for the snapshot.
        db.compact_range(..).unwrap();
        assert_eq!(read(&db.snapshot()), new);
        assert_eq!(read(&amid), old);

        let origin = Origin { view: amid.view.clone(), group, view_then };
        let source = &amid.tables.source;
        checkpoint::write(&dir.join("copy"), 512 << 20, &origin, source, &mut |_| {}).unwrap();
        let copy = Db::open(&dir.join("copy"), &options).unwrap();
        assert_eq!(read(&copy.snapshot()), old);
        // Their numbers are those of the batch in the source, some before its clear.
        for key in KEYS {
            copy.put(key, b"copied").unwrap();
        }
        copy.flush().unwrap();
        assert_eq!(read(&copy.snapshot()), values([Some("copied"); 4]));
        drop((amid, origin, copy, db));
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn more_compactions_at_once_get_more_threads_and_fewer_keep_them() {
        let dir = std::env::temp_dir().join(format!("gabion-db-jobs-{}", std::process::id()));
        // An earlier process of this number may have been killed.
        let _absent = std::fs::remove_dir_all(&dir);
        let options = Options { pool_len: 128 << 20, ..Options::default() };
        let db = Db::create(&dir, &options).unwrap();
        let threads = || db.lock().threads.as_ref().map(|threads| threads.jobs.compactions_max());
        let before = db.run_options();
        assert_eq!(threads(), Some(1));
        for (compactions_max, wanted) in [(3, 3), (1, 3), (4, 4)] {
            db.set_run_options(RunOptions { compactions_max, ..before }).unwrap();
            assert_eq!(db.run_options().compactions_max, compactions_max);
            assert_eq!(threads(), Some(wanted));
        }
        drop(db);
        std::fs::remove_dir_all(&dir).unwrap();
    }
}

//! The threads that flush and compact. Each has its own medium on the pool's one locked descriptor
//! and sleeps while its I/O is under way.

use gabion_base::{Error, GroupId, Result};
use gabion_engine::{FileMeta, JobKind};
use gabion_fabric::{BlockingMedium, MediumOptions, PoolFile};
use gabion_media::BufferMeter;
use gabion_node::LocalStore;
use gabion_node::work::{self, BuildCredit, BuiltFile, Done, JobOrder, Work, WorkId};
use gabion_pool::Geometry;
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// What a thread needs to make a [`LocalStore`] of its own.
#[derive(Clone)]
pub struct StoreParts {
    /// The pool, locked.
    pub file: PoolFile,
    /// How its media work.
    pub options: MediumOptions,
    /// Where slots lie.
    pub geometry: Geometry,
    /// The pool's identity.
    pub pool_id: [u8; 16],
    /// The owner of the region.
    pub group: GroupId,
    /// Counts the buffers of all threads: what jobs read ahead, and files that are built, written
    /// and shipped.
    pub buffers: Arc<BufferMeter>,
}

/// Who is told what the threads did. A clone is the same.
pub trait JobSink: Clone + Send + 'static {
    /// A job built a file of these inputs (level and file; none for a flush), which is being
    /// written.
    fn built(&self, id: WorkId, inputs: &[(u8, Arc<FileMeta>)], file: BuiltFile);
    /// An order ended.
    fn done(&self, id: WorkId, done: Done);
    /// A thread ended by a panic.
    fn died(&self, thread: &'static str);
}

/// Tells the sink when its thread ends by a panic.
pub struct Alarm<S: JobSink> {
    /// Whom to tell.
    pub sink: S,
    /// The thread's name.
    pub thread: &'static str,
}

impl<S: JobSink> Drop for Alarm<S> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.sink.died(self.thread);
        }
    }
}

impl StoreParts {
    /// A medium of this thread's own, and the pool through it.
    ///
    /// # Errors
    /// As [`PoolFile::medium`].
    pub fn blocking(&self) -> Result<(BlockingMedium, LocalStore)> {
        let options = MediumOptions { notify: false, ..self.options };
        let medium = BlockingMedium::new(self.file.medium(options)?);
        medium.handle().count_buffers_by(self.buffers.clone());
        let store = LocalStore {
            medium: medium.handle().clone(),
            geometry: self.geometry.clone(),
            pool_id: self.pool_id,
            group: self.group,
        };
        Ok((medium, store))
    }
}

type Order = (WorkId, Box<JobOrder>);

/// How much jobs may build, for which threads wait.
#[derive(Default)]
struct Credit {
    /// With whether the threads are to end.
    state: Mutex<(BuildCredit, bool)>,
    changed: Condvar,
}

impl Credit {
    fn lock(&self) -> MutexGuard<'_, (BuildCredit, bool)> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn may_build(&self, until: u64) {
        self.lock().0.may_build(until);
        self.changed.notify_all();
    }

    /// Nobody will say any more how much may be built.
    fn end(&self) {
        self.lock().1 = true;
        self.changed.notify_all();
    }

    /// A file of a bounded job was built that keeps so many bytes of memory.
    fn built(&self, memory: u64) {
        self.lock().0.built(memory);
    }

    /// Sleeps until the next file may be begun: in a bounded job. What is being written is written
    /// meanwhile.
    ///
    /// # Errors
    /// Unavailable when the threads are to end: a job of many files is not waited for, it begins
    /// anew at the next start.
    fn wait(&self, is_bounded: bool) -> Result<()> {
        let is_held =
            |(credit, ends): &mut (BuildCredit, bool)| is_bounded && !*ends && !credit.may_go_on();
        let state =
            self.changed.wait_while(self.lock(), is_held).unwrap_or_else(PoisonError::into_inner);
        match state.1 {
            true => Err(Error::unavailable("the process ends before its job")),
            false => Ok(()),
        }
    }
}

/// One thread for flushes, so that none waits for a compaction, and some for compactions.
pub struct JobThreads {
    flush: Option<Sender<Order>>,
    compact: Option<Sender<Order>>,
    threads: Vec<JoinHandle<()>>,
    credit: Arc<Credit>,
    /// Starts one more that compacts.
    one_more: Box<dyn Fn() -> Result<JoinHandle<()>> + Send>,
}

impl JobThreads {
    /// Starts the threads; `compactions_max` of them compact, at least one. Those stand back by
    /// `nice` steps ([`gabion_proc::stand_back`]), and the one that flushes by half as many:
    /// writers wait for it sooner.
    ///
    /// # Errors
    /// The system's, when a thread cannot start.
    pub fn start(
        parts: &StoreParts,
        compactions_max: usize,
        nice: u8,
        sink: &impl JobSink,
    ) -> Result<Self> {
        let (flush, flushes) = channel();
        let (compact, compactions) = channel();
        let credit = Arc::new(Credit::default());
        let flushes = flushes.into_shared();
        let threads = vec![spawn("gabion-flush", nice / 2, parts, flushes, &credit, sink)?];
        let (compactions, parts, sink) = (compactions.into_shared(), parts.clone(), sink.clone());
        let of_all = credit.clone();
        let one_more = Box::new(move || {
            spawn("gabion-compact", nice, &parts, compactions.clone(), &of_all, &sink)
        });
        let (flush, compact) = (Some(flush), Some(compact));
        let mut all = Self { flush, compact, threads, credit, one_more };
        all.grow(compactions_max)?;
        Ok(all)
    }

    /// Starts what is missing for so many compactions at once. More than are needed stay, and
    /// sleep.
    ///
    /// # Errors
    /// As [`Self::start`]; those that could start stay.
    pub fn grow(&mut self, compactions_max: usize) -> Result<()> {
        while self.compactions_max() < compactions_max.max(1) {
            self.threads.push((self.one_more)()?);
        }
        Ok(())
    }

    /// Compactions that may run at once.
    #[must_use]
    pub const fn compactions_max(&self) -> usize {
        // One of them flushes.
        self.threads.len() - 1
    }

    /// Hands a job to the threads of its kind.
    pub fn begin(&self, id: WorkId, order: Box<JobOrder>) {
        let queue = match order.inputs.recipe.kind {
            JobKind::Flush => &self.flush,
            _ => &self.compact,
        };
        // It fails only when the thread is gone, which its alarm has told.
        let _ = queue.as_ref().map(|queue| queue.send((id, order)));
    }

    /// Says how much bounded jobs may build ([`gabion_node::Output::JobsMayBuild`]).
    pub fn may_build(&self, until: u64) {
        self.credit.may_build(until);
    }
}

impl Drop for JobThreads {
    /// Waits for the jobs under way: their writes must not land after the lock is given back. One
    /// that waits for what nobody will say any more ends.
    fn drop(&mut self) {
        self.credit.end();
        (self.flush, self.compact) = (None, None);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

type Shared = Arc<Mutex<Receiver<Order>>>;

trait IntoShared {
    fn into_shared(self) -> Shared;
}

impl IntoShared for Receiver<Order> {
    fn into_shared(self) -> Shared {
        Arc::new(Mutex::new(self))
    }
}

fn spawn(
    name: &'static str,
    nice: u8,
    parts: &StoreParts,
    orders: Shared,
    credit: &Arc<Credit>,
    sink: &impl JobSink,
) -> Result<JoinHandle<()>> {
    let (credit, sink) = (credit.clone(), sink.clone());
    store_thread(name, nice, parts, move |medium, store| {
        let _alarm = Alarm { sink: sink.clone(), thread: name };
        loop {
            let next = orders.lock().unwrap_or_else(PoisonError::into_inner).recv();
            let Ok((id, order)) = next else { return };
            let inputs = order.inputs.files.clone();
            let is_bounded = order.is_bounded;
            let built = |file: BuiltFile| {
                if is_bounded {
                    credit.built(file.memory);
                }
                sink.built(id, &inputs, file);
            };
            let wait = async || credit.wait(is_bounded);
            let result = medium.block_on(work::run_job(*order, store, built, wait));
            sink.done(id, Done::Job(result));
        }
    })
}

/// A thread for orders that need the pool and no other thread: the placement log and the log's
/// segments.
pub struct IoThread {
    orders: Option<Sender<(WorkId, Work)>>,
    thread: Option<JoinHandle<()>>,
}

impl IoThread {
    /// Starts the thread. Without an order it calls `idle` every `every`.
    ///
    /// # Errors
    /// The system's, when the thread cannot start.
    pub fn start(
        parts: &StoreParts,
        sink: &impl JobSink,
        every: Duration,
        idle: impl Fn() + Send + 'static,
    ) -> Result<Self> {
        let (orders, queue) = channel::<(WorkId, Work)>();
        let sink = sink.clone();
        let thread = store_thread("gabion-io", 0, parts, move |medium, store| {
            let _alarm = Alarm { sink: sink.clone(), thread: "gabion-io" };
            loop {
                let (id, work) = match queue.recv_timeout(every) {
                    Ok(order) => order,
                    Err(RecvTimeoutError::Timeout) => {
                        idle();
                        continue;
                    }
                    Err(RecvTimeoutError::Disconnected) => return,
                };
                let done = medium.block_on(work::run_local(work, store));
                sink.done(id, done);
            }
        })?;
        Ok(Self { orders: Some(orders), thread: Some(thread) })
    }

    /// Hands an order to the thread: anything but jobs and shipments.
    pub fn begin(&self, id: WorkId, work: Work) {
        // It fails only when the thread is gone, which its alarm has told.
        let _ = self.orders.as_ref().map(|orders| orders.send((id, work)));
    }
}

impl Drop for IoThread {
    /// Waits for the orders under way.
    fn drop(&mut self) {
        self.orders = None;
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Starts a thread that has a medium of its own, and the pool through it, before this returns: one
/// that found out by its first order that the system gives it none would end the store.
///
/// # Errors
/// The system's, for the thread and for its medium.
fn store_thread(
    name: &'static str,
    nice: u8,
    parts: &StoreParts,
    run: impl FnOnce(&BlockingMedium, &LocalStore) + Send + 'static,
) -> Result<JoinHandle<()>> {
    let parts = parts.clone();
    let (told, made) = channel();
    let thread = thread(name, nice, move || {
        let medium = parts.blocking();
        // It fails only when nobody waits any more.
        let _ = told.send(medium.as_ref().map(drop).map_err(Error::clone));
        if let Ok((medium, store)) = medium {
            run(&medium, &store);
        }
    })?;
    match made.recv() {
        Ok(Ok(())) => Ok(thread),
        Ok(Err(error)) => Err(error.within(format!("thread {name} cannot start"))),
        Err(_) => Err(Error::io(format!("thread {name} ended by a panic at its start"))),
    }
}

/// Starts a thread under a name that the CPU report knows, which stands back by `nice` steps
/// ([`gabion_proc::stand_back`]).
///
/// # Errors
/// The system's.
pub fn thread(
    name: &'static str,
    nice: u8,
    run: impl FnOnce() + Send + 'static,
) -> Result<JoinHandle<()>> {
    let run = move || {
        gabion_proc::stand_back(nice);
        run();
    };
    std::thread::Builder::new().name(name.to_owned()).spawn(run).map_err(|error: io::Error| {
        Error::with_source(gabion_base::ErrorKind::Io, format!("thread {name} cannot start"), error)
    })
}

#[cfg(test)]
mod tests {
    use super::Credit;
    use gabion_base::ErrorKind;
    use std::sync::Arc;
    use std::sync::mpsc::channel;
    use std::time::Duration;

    /// docs/faults.md: P8
    #[test]
    fn a_thread_builds_no_further_file_before_it_may_and_ends_with_the_process() {
        let credit = Arc::new(Credit::default());
        credit.may_build(10);
        let (said, heard) = channel();
        let of_thread = credit.clone();
        let thread = std::thread::spawn(move || {
            for memory in [10, 1, 5, 1] {
                of_thread.built(memory);
                said.send(of_thread.wait(true).map_err(|error| error.kind())).unwrap();
            }
        });
        let next = || heard.recv_timeout(Duration::from_secs(60)).unwrap();
        let is_held = || heard.recv_timeout(Duration::from_millis(20)).is_err();
        assert_eq!(next(), Ok(()), "10 of 10 bytes are built");
        assert!(is_held(), "11 of 10");
        credit.may_build(9);
        assert!(is_held(), "11 of 9");
        credit.may_build(16);
        assert_eq!((next(), next()), (Ok(()), Ok(())), "16 of 16");
        assert!(is_held(), "17 of 16");
        assert_eq!(credit.wait(false).map_err(|error| error.kind()), Ok(()), "no bounded job");
        credit.end();
        assert_eq!(next(), Err(ErrorKind::Unavailable));
        assert_eq!(credit.wait(false).map_err(|error| error.kind()), Err(ErrorKind::Unavailable));
        thread.join().unwrap();
    }
}

//! The threads that flush and compact. Each has its own medium on the pool's one locked descriptor and
//! sleeps while its I/O is under way.

use gabion_base::{Error, GroupId, Result};
use gabion_engine::{FileMeta, JobKind};
use gabion_fabric::{BlockingMedium, MediumOptions, PoolFile};
use gabion_media::BufferMeter;
use gabion_node::LocalStore;
use gabion_node::work::{self, BuiltFile, Done, JobOrder, Work, WorkId};
use gabion_pool::Geometry;
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
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
    /// Counts the buffers of all threads: what jobs read ahead, and files that are built, written and shipped.
    pub buffers: Arc<BufferMeter>,
}

/// Who is told what the threads did. A clone is the same.
pub trait JobSink: Clone + Send + 'static {
    /// A job built a file of these inputs (level and file; none for a flush), which is being written.
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
            geometry: self.geometry,
            pool_id: self.pool_id,
            group: self.group,
        };
        Ok((medium, store))
    }
}

type Order = (WorkId, Box<JobOrder>);

/// One thread for flushes, so that none waits for a compaction, and some for compactions.
pub struct JobThreads {
    flush: Option<Sender<Order>>,
    compact: Option<Sender<Order>>,
    threads: Vec<JoinHandle<()>>,
    /// Starts one more that compacts.
    one_more: Box<dyn Fn() -> Result<JoinHandle<()>> + Send>,
}

impl JobThreads {
    /// Starts the threads; `compactions_max` of them compact, at least one.
    ///
    /// # Errors
    /// The system's, when a thread cannot start.
    pub fn start(parts: &StoreParts, compactions_max: usize, sink: &impl JobSink) -> Result<Self> {
        let (flush, flushes) = channel();
        let (compact, compactions) = channel();
        let threads = vec![spawn("gabion-flush", parts, flushes.into_shared(), sink)?];
        let (compactions, parts, sink) = (compactions.into_shared(), parts.clone(), sink.clone());
        let one_more =
            Box::new(move || spawn("gabion-compact", &parts, compactions.clone(), &sink));
        let mut all = Self { flush: Some(flush), compact: Some(compact), threads, one_more };
        all.grow(compactions_max)?;
        Ok(all)
    }

    /// Starts what is missing for so many compactions at once. More than are needed stay, and sleep.
    ///
    /// # Errors
    /// As [`Self::start`]; those that could start stay.
    pub fn grow(&mut self, compactions_max: usize) -> Result<()> {
        // One of them flushes.
        while self.threads.len() <= compactions_max.max(1) {
            self.threads.push((self.one_more)()?);
        }
        Ok(())
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
}

impl Drop for JobThreads {
    /// Waits for the jobs under way: their writes must not land after the lock is given back.
    fn drop(&mut self) {
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
    parts: &StoreParts,
    orders: Shared,
    sink: &impl JobSink,
) -> Result<JoinHandle<()>> {
    let (parts, sink) = (parts.clone(), sink.clone());
    let run = move || {
        let _alarm = Alarm { sink: sink.clone(), thread: name };
        let made = parts.blocking();
        loop {
            let next = orders.lock().unwrap_or_else(PoisonError::into_inner).recv();
            let Ok((id, order)) = next else { return };
            let result = match &made {
                Ok((medium, store)) => {
                    let inputs = order.inputs.files.clone();
                    let built = |file| sink.built(id, &inputs, file);
                    medium.block_on(work::run_job(*order, store, built))
                }
                Err(error) => Err(error.clone().into()),
            };
            sink.done(id, Done::Job(result));
        }
    };
    thread(name, run)
}

/// A thread for orders that need the pool and no other thread: the placement log and the log's segments.
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
        let (parts, sink) = (parts.clone(), sink.clone());
        let run = move || {
            let _alarm = Alarm { sink: sink.clone(), thread: "gabion-io" };
            let made = parts.blocking();
            loop {
                let (id, work) = match queue.recv_timeout(every) {
                    Ok(order) => order,
                    Err(RecvTimeoutError::Timeout) => {
                        idle();
                        continue;
                    }
                    Err(RecvTimeoutError::Disconnected) => return,
                };
                let done = match &made {
                    Ok((medium, store)) => medium.block_on(work::run_local(work, store)),
                    Err(error) => work::failed(&work, error),
                };
                sink.done(id, done);
            }
        };
        Ok(Self { orders: Some(orders), thread: Some(thread("gabion-io", run)?) })
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

/// Starts a thread under a name that the CPU report knows.
///
/// # Errors
/// The system's.
pub fn thread(name: &'static str, run: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
    std::thread::Builder::new().name(name.to_owned()).spawn(run).map_err(|error: io::Error| {
        Error::with_source(gabion_base::ErrorKind::Io, format!("thread {name} cannot start"), error)
    })
}

#[cfg(test)]
mod tests {
    use crate::{Db, Options, RunOptions};

    #[test]
    fn more_compactions_at_once_get_more_threads_and_fewer_keep_them() {
        let dir = std::env::temp_dir().join(format!("gabion-db-jobs-{}", std::process::id()));
        // An earlier process of this number may have been killed.
        let _absent = std::fs::remove_dir_all(&dir);
        let options = Options { pool_len: 128 << 20, ..Options::default() };
        let db = Db::create(&dir, &options).unwrap();
        let threads = || db.lock().threads.as_ref().map(|threads| threads.jobs.threads.len());
        let before = db.run_options();
        assert_eq!(threads(), Some(2), "one of them flushes");
        for (compactions_max, wanted) in [(3, 4), (1, 4), (4, 5)] {
            db.set_run_options(RunOptions { compactions_max, ..before }).unwrap();
            assert_eq!(db.run_options().compactions_max, compactions_max);
            assert_eq!(threads(), Some(wanted));
        }
        drop(db);
        std::fs::remove_dir_all(&dir).unwrap();
    }
}

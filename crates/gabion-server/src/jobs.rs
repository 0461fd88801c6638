//! The threads that flush and compact. Each has its own medium on the pool's one locked descriptor and
//! sleeps while its I/O is under way.

use crate::events::{Alarm, Event, Mailbox};
use gabion_base::{Error, GroupId, Result};
use gabion_engine::JobKind;
use gabion_fabric::{BlockingMedium, MediumOptions, PoolFile};
use gabion_node::LocalStore;
use gabion_node::work::{self, Done, JobOrder, WorkId};
use gabion_pool::Geometry;
use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// What a thread needs to make a [`LocalStore`] of its own.
#[derive(Clone)]
pub(crate) struct StoreParts {
    pub(crate) file: PoolFile,
    pub(crate) options: MediumOptions,
    pub(crate) geometry: Geometry,
    pub(crate) pool_id: [u8; 16],
    pub(crate) group: GroupId,
}

impl StoreParts {
    fn blocking(&self) -> Result<(BlockingMedium, LocalStore)> {
        let options = MediumOptions { notify: false, ..self.options };
        let medium = BlockingMedium::new(self.file.medium(options)?);
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
pub(crate) struct JobThreads {
    flush: Option<Sender<Order>>,
    compact: Option<Sender<Order>>,
    threads: Vec<JoinHandle<()>>,
}

impl JobThreads {
    pub(crate) fn start(
        parts: &StoreParts,
        compactions_max: usize,
        mailbox: &Mailbox,
    ) -> Result<Self> {
        let (flush, flushes) = channel();
        let (compact, compactions) = channel();
        let mut threads = vec![spawn("gabion-flush", parts, flushes.into_shared(), mailbox)?];
        let compactions = compactions.into_shared();
        for _ in 0..compactions_max.max(1) {
            threads.push(spawn("gabion-compact", parts, compactions.clone(), mailbox)?);
        }
        Ok(Self { flush: Some(flush), compact: Some(compact), threads })
    }

    pub(crate) fn begin(&self, id: WorkId, order: Box<JobOrder>) {
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
    mailbox: &Mailbox,
) -> Result<JoinHandle<()>> {
    let (parts, mailbox) = (parts.clone(), mailbox.clone());
    let run = move || {
        let _alarm = Alarm { mailbox: mailbox.clone(), thread: name };
        let made = parts.blocking();
        loop {
            let next = orders.lock().unwrap_or_else(PoisonError::into_inner).recv();
            let Ok((id, order)) = next else { return };
            let result = match &made {
                Ok((medium, store)) => {
                    let built = |file| mailbox.tell(Event::JobFile(id, file));
                    medium.block_on(work::run_job(*order, store, built))
                }
                Err(error) => Err(error.clone().into()),
            };
            mailbox.tell(Event::Done(id, Done::Job(result)));
        }
    };
    thread(name, run)
}

/// Starts a thread under a name that the CPU report knows.
pub(crate) fn thread(
    name: &'static str,
    run: impl FnOnce() + Send + 'static,
) -> Result<JoinHandle<()>> {
    std::thread::Builder::new().name(name.to_owned()).spawn(run).map_err(|error: io::Error| {
        Error::with_source(gabion_base::ErrorKind::Io, format!("thread {name} cannot start"), error)
    })
}

//! The threads that wait for the store, so that the loop need not: one for writes while they stall, a few
//! for reads that the device has to answer. While nothing stalls and all is in the cache they sleep.

use crate::commands::Read;
use crate::process::{READER, WRITER};
use crate::store::{Found, Store};
use gabion_base::{Error, ErrorKind, Result};
use gabion_resp::put_bulk;
use mio::Waker;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

/// A read, and where its reply belongs.
pub(crate) struct ReadJob {
    pub(crate) token: usize,
    pub(crate) serial: u64,
    pub(crate) slot: u64,
    pub(crate) read: Read,
}

/// What a thread tells the loop.
pub(crate) enum Done {
    /// This batch is in the store, and so are all before it.
    Written(u64),
    /// A read was made; its reply as it goes to the client.
    Read(ReadJob, Vec<u8>),
    /// The store failed.
    Failed(Error),
}

/// Where threads put what they have to tell.
#[derive(Clone)]
pub(crate) struct Mailbox {
    sender: Sender<Done>,
    waker: Arc<Waker>,
}

impl Mailbox {
    pub(crate) const fn new(sender: Sender<Done>, waker: Arc<Waker>) -> Self {
        Self { sender, waker }
    }

    /// Tells the loop. Returns false when it is gone, and so is what the thread is for.
    fn tell(&self, done: Done) -> bool {
        self.sender.send(done).is_ok() && self.waker.wake().is_ok()
    }
}

/// The threads of a replica. They end when this is dropped and what they do is done.
pub(crate) struct Threads<B> {
    pub(crate) writes: Sender<(u64, B)>,
    pub(crate) reads: Sender<ReadJob>,
}

impl<B: Send + 'static> Threads<B> {
    /// Starts them; `readers` of them read.
    ///
    /// # Errors
    /// The system's: no thread can be made.
    pub(crate) fn start<S: Store<Batch = B>>(
        store: &Arc<S>,
        readers: u32,
        mailbox: &Mailbox,
    ) -> Result<Self> {
        let (writes, batches) = mpsc::channel();
        let (reads, jobs) = mpsc::channel();
        let (own, sink) = (Arc::clone(store), mailbox.clone());
        spawn(WRITER, move || write(&*own, &batches, &sink))?;
        let jobs = Arc::new(Mutex::new(jobs));
        for _ in 0..readers {
            let (store, jobs, sink) = (Arc::clone(store), Arc::clone(&jobs), mailbox.clone());
            spawn(READER, move || read(&*store, &jobs, &sink))?;
        }
        Ok(Self { writes, reads })
    }
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<()> {
    let thread = thread::Builder::new().name(name.to_owned()).spawn(run);
    thread
        .map(drop)
        .map_err(|error| Error::with_source(ErrorKind::Io, format!("thread {name}"), error))
}

fn write<S: Store>(store: &S, batches: &Receiver<(u64, S::Batch)>, sink: &Mailbox) {
    for (number, batch) in batches {
        let done = match store.write(&batch, true) {
            Ok(_) => Done::Written(number),
            Err(error) => Done::Failed(error),
        };
        if !sink.tell(done) {
            return;
        }
    }
}

fn read<S: Store>(store: &S, jobs: &Mutex<Receiver<ReadJob>>, sink: &Mailbox) {
    loop {
        let job = jobs.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(job) = job else { return };
        let mut reply = Vec::new();
        let done = match run(store, &job.read, &mut reply) {
            Ok(()) => Done::Read(job, reply),
            Err(error) => Done::Failed(error),
        };
        if !sink.tell(done) {
            return;
        }
    }
}

/// Makes a read, whatever it has to wait for, and appends its reply.
fn run<S: Store>(store: &S, read: &Read, reply: &mut Vec<u8>) -> Result<()> {
    match read {
        Read::Get(key) => {
            let keys = std::slice::from_ref(key);
            store.get(keys, true, &mut |_, found| put_found(found, reply))
        }
        Read::Range(from, limit) => range(store, from, *limit, true, reply).map(drop),
    }
}

/// Appends the reply of a GET.
pub(crate) fn put_found(found: Found<'_>, reply: &mut Vec<u8>) {
    match found {
        Found::Value(value) => put_bulk(reply, value),
        Found::Nothing | Found::WouldWait => reply.extend_from_slice(b"$-1\r\n"),
    }
}

/// Appends the reply of a RANGE. Returns false, and appends nothing, where it has to wait and may not.
pub(crate) fn range<S: Store>(
    store: &S,
    from: &[u8],
    limit: usize,
    may_wait: bool,
    reply: &mut Vec<u8>,
) -> Result<bool> {
    let (mut count, mut pairs) = (0, Vec::new());
    let is_whole = store.scan(from, limit, may_wait, &mut |key, value| {
        count += 1;
        put_bulk(&mut pairs, key);
        put_bulk(&mut pairs, value);
    })?;
    if is_whole {
        reply.extend_from_slice(format!("*{}\r\n", 2 * count).as_bytes());
        reply.extend_from_slice(&pairs);
    }
    Ok(is_whole)
}

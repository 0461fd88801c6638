//! The backend for kernels that refuse io_uring: a few threads that call pread, pwrite and
//! fdatasync.

use crate::engine::{Ended, Engine, Job};
use gabion_media::OperationKind;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Threads of one pool file. Enough for the depth of four that shipping and draining keep.
const THREADS: usize = 4;

/// The place where the jobs of one medium come back.
struct Replies {
    ended: Mutex<Vec<Ended>>,
    arrived: Condvar,
    notify: Option<OwnedFd>,
}

impl Replies {
    /// The list; a thread that panicked while it held it left it whole (one push or take at a
    /// time).
    fn lock(&self) -> MutexGuard<'_, Vec<Ended>> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn give(&self, ended: Ended) {
        self.lock().push(ended);
        self.arrived.notify_one();
        if let Some(notify) = &self.notify {
            // It fails only when the counter is at its maximum, and then the reader is awake
            // anyway.
            let _ = rustix::io::write(notify, &1u64.to_ne_bytes());
        }
    }
}

struct Task {
    job: Job,
    file: Arc<File>,
    flush_file: Arc<File>,
    replies: Arc<Replies>,
}

/// The threads. They end when the last handle is gone.
pub(crate) struct ThreadPool(Sender<Task>);

impl ThreadPool {
    pub(crate) fn start() -> io::Result<Self> {
        let (sender, receiver) = channel();
        let receiver = Arc::new(Mutex::new(receiver));
        for i in 0..THREADS {
            let receiver = receiver.clone();
            std::thread::Builder::new()
                .name(format!("gabion-io-{i}"))
                .spawn(move || serve(&receiver))?;
        }
        Ok(Self(sender))
    }
}

fn serve(tasks: &Mutex<Receiver<Task>>) {
    loop {
        let next = tasks.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(Task { mut job, file, flush_file, replies }) = next else { return };
        let result = attempt(&mut job, &file, &flush_file);
        replies.give(Ended { job, result });
    }
}

/// One system call for the rest of the job.
fn attempt(job: &mut Job, file: &File, flush_file: &File) -> io::Result<usize> {
    let done = job.done;
    match &mut job.kind {
        OperationKind::Read { offset, into } => {
            file.read_at(&mut into[done..], *offset + done as u64)
        }
        OperationKind::Write { offset, data } => {
            file.write_at(&data[done..], *offset + done as u64)
        }
        OperationKind::Flush => flush_file.sync_data().map(|()| 0),
    }
}

/// One medium's share of the threads.
pub(crate) struct Threads {
    pool: Arc<ThreadPool>,
    file: Arc<File>,
    flush_file: Arc<File>,
    replies: Arc<Replies>,
    running: usize,
}

impl Threads {
    pub(crate) fn new(
        pool: Arc<ThreadPool>,
        file: Arc<File>,
        flush_file: Arc<File>,
        notify: Option<OwnedFd>,
    ) -> Self {
        let replies = Replies { ended: Mutex::new(Vec::new()), arrived: Condvar::new(), notify };
        Self { pool, file, flush_file, replies: Arc::new(replies), running: 0 }
    }
}

impl Engine for Threads {
    fn start(&mut self, job: Job) {
        self.running += 1;
        let task = Task {
            job,
            file: self.file.clone(),
            flush_file: self.flush_file.clone(),
            replies: self.replies.clone(),
        };
        if let Err(refused) = self.pool.0.send(task) {
            // Every thread is gone: only a panic in each of them does that.
            let error = io::Error::other("the I/O threads are gone");
            self.replies.give(Ended { job: refused.0.job, result: Err(error) });
        }
    }

    fn submit(&mut self) {}

    fn collect(&mut self, ended: &mut Vec<Ended>) {
        let mut list = self.replies.lock();
        self.running -= list.len();
        ended.append(&mut list);
    }

    fn running(&self) -> usize {
        self.running
    }

    fn wait(&mut self) {
        if self.running == 0 {
            return;
        }
        let mut list = self.replies.lock();
        while list.is_empty() {
            list = self.replies.arrived.wait(list).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        let mut ended = Vec::new();
        while self.running > 0 {
            self.wait();
            self.collect(&mut ended);
        }
    }
}

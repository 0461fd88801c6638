//! The io_uring backend: one ring per medium, one system call per batch.
//!
//! ```text
//!   start ─► waiting ─► slot (owns the buffer) ─► SQE ─► kernel ─► CQE ─► slot emptied ─► collect
//! ```
//!
//! A job's buffer lives in its slot from before the kernel learns its address until after the kernel
//! reported the end; dropping the ring waits for that. This is the whole of the safety argument.

use crate::engine::{Ended, Engine, Job};
use gabion_media::OperationKind;
use io_uring::{IoUring, opcode, squeue, types};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

pub(crate) struct Uring {
    ring: IoUring,
    file: Arc<File>,
    flush_file: Arc<File>,
    slots: Vec<Option<Job>>,
    free: Vec<usize>,
    waiting: VecDeque<Job>,
    /// Whether the submission queue holds entries that the kernel did not take yet.
    unsubmitted: bool,
}

impl Uring {
    /// A ring with at most `depth` operations in the kernel. `notify` is signalled at each end.
    pub(crate) fn new(
        file: Arc<File>,
        flush_file: Arc<File>,
        depth: u32,
        notify: Option<&OwnedFd>,
    ) -> io::Result<Self> {
        let ring = IoUring::new(depth)?;
        let mut probe = io_uring::Probe::new();
        ring.submitter().register_probe(&mut probe)?;
        let needed = [opcode::Read::CODE, opcode::Write::CODE, opcode::Fsync::CODE];
        if !needed.iter().all(|&code| probe.is_supported(code)) {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "io_uring without read/write"));
        }
        if let Some(notify) = notify {
            ring.submitter().register_eventfd(notify.as_raw_fd())?;
        }
        let depth = depth as usize;
        Ok(Self {
            ring,
            file,
            flush_file,
            slots: std::iter::repeat_with(|| None).take(depth).collect(),
            free: (0..depth).rev().collect(),
            waiting: VecDeque::new(),
            unsubmitted: false,
        })
    }

    /// Moves waiting jobs into slots and the submission queue.
    fn fill(&mut self) {
        while !self.waiting.is_empty()
            && let Some(slot) = self.free.pop()
        {
            let Some(job) = self.waiting.pop_front() else { return };
            let job = self.slots[slot].insert(job);
            let entry = entry(job, &self.file, &self.flush_file).user_data(slot as u64);
            // SAFETY: the entry points into the heap memory of a buffer that the slot owns. The slot
            // is emptied only when the kernel has reported the end (`collect`), and the ring is
            // dropped only after that (`drop`). Moving the `Job` does not move its heap memory, and
            // nobody else has access to a read's buffer meanwhile.
            let pushed = unsafe { self.ring.submission().push(&entry) };
            // Each entry belongs to a slot and there are no more slots than places in the queue.
            pushed.expect("the submission queue has a place for each slot");
            self.unsubmitted = true;
        }
    }

    fn in_kernel(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}

/// What the kernel is to do for a job; the buffer is the part not transferred yet.
fn entry(job: &mut Job, file: &File, flush_file: &File) -> squeue::Entry {
    let fd = types::Fd(file.as_raw_fd());
    let done = job.done;
    match &mut job.kind {
        OperationKind::Read { offset, into } => {
            let rest = &mut into[done..];
            opcode::Read::new(fd, rest.as_mut_ptr(), rest.len() as u32)
                .offset(*offset + done as u64)
                .build()
        }
        OperationKind::Write { offset, data } => {
            let rest = &data[done..];
            opcode::Write::new(fd, rest.as_ptr(), rest.len() as u32)
                .offset(*offset + done as u64)
                .build()
        }
        OperationKind::Flush => opcode::Fsync::new(types::Fd(flush_file.as_raw_fd()))
            .flags(types::FsyncFlags::DATASYNC)
            .build(),
    }
}

/// Whether a refusal of the kernel ends by itself.
pub(crate) fn is_passing(error: &io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    matches!(errno, Some(Errno::INTR | Errno::AGAIN | Errno::BUSY))
}

impl Engine for Uring {
    fn start(&mut self, job: Job) {
        self.waiting.push_back(job);
    }

    fn submit(&mut self) {
        self.fill();
        if self.unsubmitted {
            // Refused for now (EAGAIN, EBUSY, EINTR): the entries stay queued and the next call,
            // which every poll makes, offers them again.
            let _ = self.ring.submit();
            self.unsubmitted = !self.ring.submission().is_empty();
        }
    }

    fn collect(&mut self, ended: &mut Vec<Ended>) {
        for completion in self.ring.completion() {
            let slot = completion.user_data() as usize;
            let Some(job) = self.slots.get_mut(slot).and_then(Option::take) else { continue };
            self.free.push(slot);
            let result = match completion.result() {
                bytes if bytes >= 0 => Ok(bytes as usize),
                errno => Err(io::Error::from_raw_os_error(-errno)),
            };
            ended.push(Ended { job, result });
        }
    }

    fn running(&self) -> usize {
        self.in_kernel() + self.waiting.len()
    }

    fn wait(&mut self) {
        self.fill();
        if self.in_kernel() > 0 && self.ring.completion().is_empty() {
            // An error (EINTR, EBUSY) only means that the caller looks and waits again.
            let _ = self.ring.submit_and_wait(1);
            self.unsubmitted = !self.ring.submission().is_empty();
        }
    }
}

impl Drop for Uring {
    fn drop(&mut self) {
        self.waiting.clear();
        let mut ended = Vec::new();
        while self.in_kernel() > 0 {
            let waited = self.ring.submit_and_wait(1);
            self.collect(&mut ended);
            if waited.is_err_and(|error| !is_passing(&error)) {
                // The kernel may still use the buffers: they are never to be freed.
                std::mem::forget(std::mem::take(&mut self.slots));
                return;
            }
        }
    }
}

//! The io_uring backend: one ring per medium, one system call per batch.
//!
//! ```text
//!   start ─► waiting ─► slot (owns the buffer) ─► SQE ─► kernel ─► CQE ─► slot emptied ─► collect
//! ```
//!
//! A job's buffer lives in its slot from before the kernel learns its address until after the
//! kernel reported the end; dropping the ring waits for that. This is the whole safety argument,
//! but for a kernel that refuses calls: jobs that it did not take are given back, and it is not
//! called again.

use crate::engine::{Ended, Engine, Job};
use gabion_media::OperationKind;
use io_uring::{IoUring, opcode, squeue, types};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

/// Pause between two checks for completions of a kernel that refuses calls.
const REFUSED_PAUSE: Duration = Duration::from_millis(1);

pub(crate) struct Uring {
    ring: IoUring,
    file: Arc<File>,
    flush_file: Arc<File>,
    slots: Vec<Option<Job>>,
    free: Vec<usize>,
    waiting: VecDeque<Job>,
    /// Slots whose entries the kernel did not take yet, in order.
    unsubmitted: VecDeque<usize>,
    /// Why the kernel takes nothing any more. It is not called again then: entries in the
    /// submission queue may name buffers that were given back.
    refusal: Option<io::Error>,
}

impl Uring {
    /// A ring with at most `depth` operations in the kernel. `notify` is signalled at each end.
    pub(crate) fn new(
        file: Arc<File>,
        flush_file: Arc<File>,
        depth: u32,
        notify: Option<&OwnedFd>,
    ) -> io::Result<Self> {
        Self::with_ring(IoUring::new(depth)?, file, flush_file, depth, notify)
    }

    fn with_ring(
        mut ring: IoUring,
        file: Arc<File>,
        flush_file: Arc<File>,
        depth: u32,
        notify: Option<&OwnedFd>,
    ) -> io::Result<Self> {
        let mut probe = io_uring::Probe::new();
        ring.submitter().register_probe(&mut probe)?;
        let needed = [opcode::Read::CODE, opcode::Write::CODE, opcode::Fsync::CODE];
        if !needed.iter().all(|&code| probe.is_supported(code)) {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "io_uring without read/write"));
        }
        prove(&mut ring)?;
        if let Some(notify) = notify {
            ring.submitter().register_eventfd(notify.as_raw_fd())?;
        }
        Ok(Self::on(ring, file, flush_file, depth as usize))
    }

    fn on(ring: IoUring, file: Arc<File>, flush_file: Arc<File>, depth: usize) -> Self {
        Self {
            ring,
            file,
            flush_file,
            slots: std::iter::repeat_with(|| None).take(depth).collect(),
            free: (0..depth).rev().collect(),
            waiting: VecDeque::new(),
            unsubmitted: VecDeque::new(),
            refusal: None,
        }
    }

    /// Moves waiting jobs into slots and the submission queue.
    fn fill(&mut self) {
        while !self.waiting.is_empty()
            && let Some(slot) = self.free.pop()
        {
            let Some(job) = self.waiting.pop_front() else { return };
            let job = self.slots[slot].insert(job);
            let entry = entry(job, &self.file, &self.flush_file).user_data(slot as u64);
            // SAFETY: the entry points into the heap memory of a buffer that the slot owns. The
            // slot is emptied only when the kernel has reported the end (`collect`), and the ring
            // is dropped only after that (`drop`). Moving the `Job` does not move its heap memory,
            // and nobody else has access to a read's buffer meanwhile.
            let pushed = unsafe { self.ring.submission().push(&entry) };
            // Each entry belongs to a slot and there are no more slots than places in the queue.
            pushed.expect("the submission queue has a place for each slot");
            self.unsubmitted.push_back(slot);
        }
    }

    /// Has the kernel take the queued entries, and waits for an end where `wanted` is 1.
    fn enter(&mut self, wanted: usize) {
        if self.refusal.is_some() {
            return;
        }
        let entered = self.ring.submit_and_wait(wanted);
        let left = self.ring.submission().len();
        self.unsubmitted.drain(..self.unsubmitted.len().saturating_sub(left));
        // Refused for now (EAGAIN, EBUSY, EINTR): the entries stay queued, and the next call offers
        // them again. Every poll makes one.
        self.refusal = entered.err().filter(|error| !is_passing(error));
    }

    /// Gives back the jobs that the kernel will never take; those that it took may still end by
    /// themselves.
    fn give_up(&mut self, ended: &mut Vec<Ended>) {
        let Some(errno) = self.refusal.as_ref().map(io::Error::raw_os_error) else { return };
        let mut lost = std::mem::take(&mut self.waiting);
        for slot in std::mem::take(&mut self.unsubmitted) {
            lost.extend(self.slots[slot].take());
            self.free.push(slot);
        }
        let error = || errno.map_or(io::ErrorKind::Other.into(), io::Error::from_raw_os_error);
        ended.extend(lost.into_iter().map(|job| Ended { job, result: Err(error()) }));
    }

    fn in_kernel(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}

/// Proves that the kernel carries out queued entries: a filter of system calls may permit to make a
/// ring and refuse every use of it.
fn prove(ring: &mut IoUring) -> io::Result<()> {
    // SAFETY: the entry has no buffer.
    let pushed = unsafe { ring.submission().push(&opcode::Nop::new().build()) };
    pushed.map_err(io::Error::other)?;
    while ring.completion().next().is_none() {
        match ring.submit_and_wait(1) {
            Err(error) if !is_passing(&error) => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// The kernel's entry for a job; the buffer is the part not transferred yet.
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

/// Whether a refusal of the kernel is temporary.
pub(crate) fn is_passing(error: &io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    matches!(errno, Some(Errno::INTR | Errno::AGAIN | Errno::BUSY))
}

impl Engine for Uring {
    fn start(&mut self, job: Job) {
        self.waiting.push_back(job);
    }

    fn submit(&mut self) {
        if self.refusal.is_some() {
            return;
        }
        self.fill();
        if !self.unsubmitted.is_empty() {
            self.enter(0);
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
        self.give_up(ended);
    }

    fn running(&self) -> usize {
        self.in_kernel() + self.waiting.len()
    }

    fn wait(&mut self) {
        if self.refusal.is_some() {
            // Only time brings the jobs that the kernel has.
            return std::thread::sleep(REFUSED_PAUSE);
        }
        self.fill();
        if self.in_kernel() > 0 && self.ring.completion().is_empty() {
            // After a temporary error the caller just looks and waits again.
            self.enter(1);
        }
    }
}

impl Drop for Uring {
    fn drop(&mut self) {
        self.waiting.clear();
        let mut ended = Vec::new();
        while self.in_kernel() > 0 {
            self.enter(1);
            self.collect(&mut ended);
            if self.refusal.is_some() && self.in_kernel() > 0 {
                // The kernel may still use the buffers: they are never to be freed.
                std::mem::forget(std::mem::take(&mut self.slots));
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gabion_media::AlignedBuf;

    /// A ring that the system permits to make and refuses every use of, as a filter of system calls
    /// may. None where not even that is allowed.
    fn refused_ring() -> Option<IoUring> {
        IoUring::builder().setup_r_disabled().build(4).ok()
    }

    fn some_file() -> Arc<File> {
        Arc::new(File::open("/proc/self/exe").unwrap())
    }

    #[test]
    fn a_ring_that_may_be_made_and_not_used_is_refused_at_once() {
        let Some(ring) = refused_ring() else { return };
        let made = Uring::with_ring(ring, some_file(), some_file(), 4, None);
        let error = made.err().expect("no engine on a ring that does nothing");
        assert!(!is_passing(&error), "{error}");
    }

    #[test]
    fn operations_on_a_ring_that_is_refused_later_end_with_an_error() {
        let Some(ring) = refused_ring() else { return };
        let mut ring = Uring::on(ring, some_file(), some_file(), 2);
        // More than the ring has places for.
        for tag in 0..3 {
            let kind = OperationKind::Read { offset: 0, into: AlignedBuf::zeroed(4096) };
            ring.start(Job { tag, kind, done: 0, stalls: 0, chain: VecDeque::new() });
        }
        let mut ended = Vec::new();
        for _ in 0..100 {
            ring.submit();
            ring.wait();
            ring.collect(&mut ended);
        }
        let tags: Vec<u64> = ended.iter().map(|ended| ended.job.tag).collect();
        assert_eq!(tags.len(), 3, "{tags:?}");
        assert!(ended.iter().all(|ended| ended.result.is_err()));
        assert_eq!(ring.running(), 0);
    }
}

//! `async` over any [`Medium`], without a runtime.
//!
//! A [`MediumHandle`] is a cheap clone of a shared medium on one thread. Its futures submit at
//! their first poll (or, for [`MediumHandle::submit`], at the call) and are woken by
//! [`MediumHandle::drive`], which the thread's loop calls after its medium made progress.

use crate::buffers::Buffers;
use crate::medium::{Completion, Medium, MediumProperties, Operation, OperationKind, Outcome};
use crate::{AlignedBuf, BufferMeter, Bytes};
use alloc::boxed::Box;
use alloc::rc::Rc;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cell::RefCell;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use gabion_base::units::TRANSFER_LEN_MAX;
use gabion_base::{Error, HashMap, Result};

enum Slot {
    Waiting(Option<Waker>),
    Ended(Completion),
    /// The future was dropped; the completion is thrown away.
    Abandoned,
}

/// Bytes of buffers that a handle keeps for the reads to come: some inputs of a merge.
const BUFFERS_LEN_MAX: usize = 16 * TRANSFER_LEN_MAX;

struct Inner {
    medium: Box<dyn Medium>,
    next_tag: u64,
    slots: HashMap<u64, Slot>,
    scratch: Vec<Completion>,
    buffers: Buffers,
    meter: Arc<BufferMeter>,
}

/// A shared medium whose operations can be awaited.
#[derive(Clone)]
pub struct MediumHandle(Rc<RefCell<Inner>>);

impl MediumHandle {
    /// Takes ownership of a medium.
    #[must_use]
    pub fn new(medium: impl Medium + 'static) -> Self {
        Self(Rc::new(RefCell::new(Inner {
            medium: Box::new(medium),
            next_tag: 0,
            slots: HashMap::default(),
            scratch: Vec::new(),
            buffers: Buffers::default(),
            meter: Arc::default(),
        })))
    }

    /// Has the buffers that are made for reads and for files from now on counted by `meter`.
    pub fn count_buffers_by(&self, meter: Arc<BufferMeter>) {
        self.0.borrow_mut().meter = meter;
    }

    /// What the medium needs and promises.
    #[must_use]
    pub fn properties(&self) -> MediumProperties {
        self.0.borrow().medium.properties()
    }

    /// Operations under way.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.0.borrow().medium.in_flight()
    }

    /// Whether clones of this handle exist, or futures made from it: somebody may still wait for
    /// what only [`Self::drive`] brings.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        Rc::strong_count(&self.0) > 1
    }

    /// Collects what ended and wakes who waits for it. Returns how many operations ended.
    pub fn drive(&self) -> usize {
        let inner = &mut *self.0.borrow_mut();
        inner.medium.poll(&mut inner.scratch);
        let ended = inner.scratch.len();
        let mut wakers = Vec::new();
        for completion in inner.scratch.drain(..) {
            let tag = completion.tag;
            match inner.slots.insert(tag, Slot::Ended(completion)) {
                Some(Slot::Waiting(waker)) => wakers.extend(waker),
                Some(Slot::Abandoned) => {
                    inner.slots.remove(&tag);
                }
                Some(Slot::Ended(_)) | None => {
                    unreachable!("a medium completes each operation once")
                }
            }
        }
        for waker in wakers {
            waker.wake();
        }
        ended
    }

    /// Submits operations at once; each future ends with its operation. `chained` makes each wait
    /// for the one before it.
    #[must_use]
    pub fn submit(&self, kinds: Vec<OperationKind>, chained: bool) -> Vec<Pending> {
        let inner = &mut *self.0.borrow_mut();
        let mut batch = Vec::with_capacity(kinds.len());
        let mut futures = Vec::with_capacity(kinds.len());
        let count = kinds.len();
        for (i, kind) in kinds.into_iter().enumerate() {
            let tag = inner.next_tag;
            inner.next_tag += 1;
            let before = inner.slots.insert(tag, Slot::Waiting(None));
            assert!(before.is_none(), "{tag} names one operation");
            batch.push(Operation { tag, kind, then: chained && i + 1 < count });
            futures.push(Pending { handle: self.clone(), tag });
        }
        inner.medium.submit(batch);
        futures
    }

    fn submit_one(&self, kind: OperationKind) -> Pending {
        self.submit(alloc::vec![kind], false).remove(0)
    }

    /// Reads `len` bytes at `offset`; both multiples of the alignment, `len` within one transfer.
    ///
    /// # Errors
    /// The medium's error.
    pub async fn read(&self, offset: u64, len: usize) -> Result<AlignedBuf> {
        let mut into = AlignedBuf::zeroed(len);
        into.count_by(&self.0.borrow().meter);
        let ended = self.submit_one(OperationKind::Read { offset, into }).await;
        ended.outcome.into_result()?;
        let lost = || Error::io("a medium lost the buffer of a read");
        let buffer = ended.buffer.ok_or_else(lost)?;
        assert_eq!(buffer.len(), len, "a read gives back the buffer that it was given");
        Ok(buffer)
    }

    /// Reads ranges (pairs of offset and length, as [`Self::read`] takes them), all at once, and
    /// returns their bytes in order. Buffers of a whole transfer are used again when their bytes
    /// are dropped.
    ///
    /// # Errors
    /// The first error; nothing is under way any more then.
    pub async fn read_ranges(
        &self,
        ranges: impl Iterator<Item = (u64, usize)>,
    ) -> Result<Vec<Bytes>> {
        self.read_each(ranges).await.into_iter().collect()
    }

    /// The same with a result for each range. Nothing is under way any more when it returns.
    pub async fn read_each(
        &self,
        ranges: impl Iterator<Item = (u64, usize)>,
    ) -> Vec<Result<Bytes>> {
        let take = |(offset, len)| {
            let inner = &mut *self.0.borrow_mut();
            let mut into = inner.buffers.take(len);
            into.count_by(&inner.meter);
            OperationKind::Read { offset, into }
        };
        let kinds: Vec<OperationKind> = ranges.map(take).collect();
        let mut results = Vec::with_capacity(kinds.len());
        // Every one is waited for, also after an error, so that none is left behind.
        for pending in self.submit(kinds, false) {
            let ended = pending.await;
            let buffer = ended.outcome.into_result().and_then(|()| {
                ended.buffer.ok_or_else(|| Error::io("a medium lost the buffer of a read"))
            });
            results.push(buffer.map(|buffer| {
                let (bytes, lent) = Buffers::lend(buffer);
                self.0.borrow_mut().buffers.put(lent, BUFFERS_LEN_MAX);
                bytes
            }));
        }
        results
    }

    /// A buffer for a file that is to be built: [`Buffers::take_for_file`].
    #[must_use]
    pub fn take_for_file(&self, capacity: usize) -> AlignedBuf {
        let inner = &mut *self.0.borrow_mut();
        let mut buffer = inner.buffers.take_for_file(capacity);
        buffer.count_by(&inner.meter);
        buffer
    }

    /// Takes the buffer of a file back: [`Buffers::put_of_file`].
    pub fn put_of_file(&self, buffer: Arc<AlignedBuf>) {
        self.0.borrow_mut().buffers.put_of_file(buffer);
    }

    /// Writes `data` at `offset`; both multiples of the alignment, the length within one transfer.
    ///
    /// # Durability
    /// None before a [`Self::flush`] that follows, unless the medium is durable at completion.
    ///
    /// # Errors
    /// The medium's error; kind `Unknown` when the write may still land later.
    pub async fn write(&self, offset: u64, data: Bytes) -> Result<()> {
        self.submit_one(OperationKind::Write { offset, data }).await.outcome.into_result()
    }

    /// Writes `data` at `offset`, cut into transfers of the medium's largest length, all at once.
    ///
    /// # Errors
    /// The first error; others may have been written.
    pub async fn write_all(&self, offset: u64, data: Bytes) -> Result<()> {
        let step = self.properties().transfer_len_max;
        let mut kinds = Vec::with_capacity(data.len().div_ceil(step));
        for start in (0..data.len()).step_by(step) {
            let part = data.slice(start..data.len().min(start + step));
            kinds.push(OperationKind::Write { offset: offset + start as u64, data: part });
        }
        let mut result = Ok(());
        for pending in self.submit(kinds, false) {
            let outcome = pending.await.outcome.into_result();
            result = result.and(outcome);
        }
        result
    }

    /// Makes every write that is complete by now durable.
    ///
    /// # Durability
    /// When it returns without error those writes survive a power cut. After an error nothing since
    /// the last good flush counts, and a repeated flush proves nothing (docs/faults.md E8).
    ///
    /// # Errors
    /// The medium's error.
    pub async fn flush(&self) -> Result<()> {
        self.submit_one(OperationKind::Flush).await.outcome.into_result()
    }
}

/// An operation under way. Dropping it does not cancel the operation.
#[must_use = "an operation's outcome is to be looked at"]
pub struct Pending {
    handle: MediumHandle,
    tag: u64,
}

impl Future for Pending {
    type Output = Completion;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Completion> {
        let slots = &mut self.handle.0.borrow_mut().slots;
        match slots.get_mut(&self.tag) {
            Some(Slot::Waiting(waker)) => {
                *waker = Some(cx.waker().clone());
                Poll::Pending
            }
            Some(Slot::Ended(_)) => match slots.remove(&self.tag) {
                Some(Slot::Ended(completion)) => Poll::Ready(completion),
                _ => unreachable!("the slot was just seen"),
            },
            Some(Slot::Abandoned) | None => Poll::Ready(Completion {
                tag: self.tag,
                outcome: Outcome::Failed(Error::invalid("polled after the end")),
                buffer: None,
            }),
        }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        // A medium may be dropped inside `drive`; then nobody is left to be told.
        let Ok(mut inner) = self.handle.0.try_borrow_mut() else { return };
        match inner.slots.get_mut(&self.tag) {
            Some(slot @ Slot::Waiting(_)) => *slot = Slot::Abandoned,
            Some(Slot::Ended(_)) => {
                inner.slots.remove(&self.tag);
            }
            Some(Slot::Abandoned) | None => {}
        }
    }
}

#[cfg(test)]
mod tests;

//! The one trait of the data plane: positioned reads, writes and flushes that own their buffers.
//!
//! A driver calls [`Medium::submit`] with a batch and later [`Medium::poll`] for what ended.
//! Nothing is ordered except by an explicit chain: an operation with [`Operation::then`] set is
//! followed by the next of its batch only after it is done; if it ends otherwise, the rest of the
//! chain ends as `Failed` without having started.

use crate::AlignedBuf;
use alloc::collections::VecDeque;
use alloc::rc::Rc;
use alloc::vec::Vec;
use bytes::Bytes;
use core::cell::RefCell;
use gabion_base::Error;

/// What a medium needs and promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MediumProperties {
    /// Addressable bytes.
    pub len: u64,
    /// Offsets and lengths must be multiples of this; buffers too where `align_memory` is set.
    pub alignment: usize,
    /// Whether buffer addresses must be aligned as offsets are (direct I/O).
    pub align_memory: bool,
    /// Longest single read or write, in bytes.
    pub transfer_len_max: usize,
    /// Whether a completed write is durable without a flush.
    pub durable_at_completion: bool,
}

/// What to do.
#[derive(Debug)]
pub enum OperationKind {
    /// Fills the whole of `into` from `offset`.
    Read {
        /// First byte, a multiple of the medium's alignment.
        offset: u64,
        /// Where the bytes go; comes back in the completion.
        into: AlignedBuf,
    },
    /// Writes all of `data` at `offset`.
    Write {
        /// First byte, a multiple of the medium's alignment.
        offset: u64,
        /// What to write.
        data: Bytes,
    },
    /// Makes durable every write that was complete when the flush was submitted.
    Flush,
}

impl OperationKind {
    /// The end of an operation of this kind: a read gives its buffer back.
    #[must_use]
    pub fn ended(self, tag: u64, outcome: Outcome) -> Completion {
        let buffer = match self {
            Self::Read { into, .. } => Some(into),
            Self::Write { .. } | Self::Flush => None,
        };
        Completion { tag, outcome, buffer }
    }
}

/// One operation of a batch.
#[derive(Debug)]
pub struct Operation {
    /// Chosen by the caller; names the completion. Unique among the operations in flight.
    pub tag: u64,
    /// What to do.
    pub kind: OperationKind,
    /// Whether the next operation of the batch waits for this one to be done.
    pub then: bool,
}

/// How an operation ended.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// It took effect.
    Done,
    /// It did not take effect and never will. A failed write may have changed any part of its
    /// range; a failed flush makes nothing durable, and repeating it proves nothing (docs/faults.md
    /// E8).
    Failed(Error),
    /// It may have taken effect, and may still do so later (connection lost). A write like this is
    /// never repeated at the same place.
    Unknown(Error),
}

impl Outcome {
    /// Done, or the error.
    ///
    /// # Errors
    /// The error of a failed operation, or of an unknown one, whose kind is then
    /// [`gabion_base::ErrorKind::Unknown`].
    pub fn into_result(self) -> gabion_base::Result<()> {
        match self {
            Self::Done => Ok(()),
            Self::Failed(error) => Err(error),
            Self::Unknown(error) if error.kind() == gabion_base::ErrorKind::Unknown => Err(error),
            Self::Unknown(error) => {
                Err(Error::with_source(gabion_base::ErrorKind::Unknown, "outcome unknown", error))
            }
        }
    }
}

/// An operation that ended.
#[derive(Debug)]
pub struct Completion {
    /// The operation's tag.
    pub tag: u64,
    /// How it ended.
    pub outcome: Outcome,
    /// A read's buffer; its content counts only when the outcome is `Done`.
    pub buffer: Option<AlignedBuf>,
}

/// A device, file, remote namespace or simulation of one.
///
/// Single-threaded: one owner submits and polls. Every submitted operation completes exactly once.
pub trait Medium {
    /// What the medium needs and promises. Constant for its life.
    fn properties(&self) -> MediumProperties;

    /// Takes a batch. An operation that breaks the medium's rules (range, alignment, length) ends
    /// as `Failed`; nothing is refused here.
    fn submit(&mut self, batch: Vec<Operation>);

    /// Appends what ended since the last call. Never blocks.
    fn poll(&mut self, completed: &mut Vec<Completion>);

    /// Operations submitted and not yet returned by `poll`.
    fn in_flight(&self) -> usize;
}

/// A medium that its driver and a [`crate::MediumHandle`] share on one thread.
impl<M: Medium> Medium for Rc<RefCell<M>> {
    fn properties(&self) -> MediumProperties {
        self.borrow().properties()
    }

    fn submit(&mut self, batch: Vec<Operation>) {
        self.borrow_mut().submit(batch);
    }

    fn poll(&mut self, completed: &mut Vec<Completion>) {
        self.borrow_mut().poll(completed);
    }

    fn in_flight(&self) -> usize {
        self.borrow().in_flight()
    }
}

/// The chains of a batch, for implementations of `submit`: operations of which each waits for the
/// one before. An operation that nothing waits for and that waits for nothing is a chain of its
/// own.
pub fn chains(batch: Vec<Operation>) -> impl Iterator<Item = VecDeque<Operation>> {
    let mut operations = batch.into_iter();
    core::iter::from_fn(move || {
        let mut chain = VecDeque::new();
        for operation in operations.by_ref() {
            let goes_on = operation.then;
            chain.push_back(operation);
            if !goes_on {
                break;
            }
        }
        (!chain.is_empty()).then_some(chain)
    })
}

/// Checks an operation against a medium's properties, for implementations of `submit`.
///
/// # Errors
/// Invalid input that names the operation's range and the rule that it breaks.
pub fn check_operation(kind: &OperationKind, properties: &MediumProperties) -> Result<(), Error> {
    let (name, offset, len, address) = match kind {
        OperationKind::Read { offset, into } => {
            ("read", *offset, into.len(), into.as_ptr() as usize)
        }
        OperationKind::Write { offset, data } => {
            ("write", *offset, data.len(), data.as_ptr() as usize)
        }
        OperationKind::Flush => return Ok(()),
    };
    let align = properties.alignment;
    let broken = if len == 0 {
        "is empty"
    } else if len > properties.transfer_len_max {
        "is longer than the largest transfer"
    } else if !offset.is_multiple_of(align as u64) || !len.is_multiple_of(align) {
        "is not aligned"
    } else if properties.align_memory && !address.is_multiple_of(align) {
        "has a buffer that is not aligned"
    } else if offset.checked_add(len as u64).is_none_or(|end| end > properties.len) {
        "reaches past the end"
    } else {
        return Ok(());
    };
    Err(Error::invalid(alloc::format!(
        "{name} of {len} bytes at {offset} {broken} (medium of {} bytes, alignment {align}, largest transfer {})",
        properties.len,
        properties.transfer_len_max
    )))
}

//! Faults that a test plans: which operation, and what happens to it.

use crate::medium::OperationKind;
use alloc::vec::Vec;

/// Operations that are counted together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperationClass {
    /// Reads.
    Read,
    /// Writes.
    Write,
    /// Flushes.
    Flush,
}

impl OperationClass {
    /// The class of an operation.
    #[must_use]
    pub const fn of(kind: &OperationKind) -> Self {
        match kind {
            OperationKind::Read { .. } => Self::Read,
            OperationKind::Write { .. } => Self::Write,
            OperationKind::Flush => Self::Flush,
        }
    }
}

/// What happens to an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It fails with an I/O error. A write may leave any of its sectors; after a flush, writes not
    /// yet durable may never be, though later reads see them and the next medium's flush succeeds.
    /// Those of this one fail, as those of a real one do.
    Fail,
    /// A write finds no room: it fails with 'no space', and some beginning of it is there.
    NoSpace,
    /// A write or flush is reported as done and has no effect.
    Lost,
    /// A read or write goes to this offset instead (cut at the end of the disk).
    Misdirected {
        /// The wrong place.
        to: u64,
    },
    /// A write's outcome is reported as unknown; it lands a few ticks later.
    Unknown,
    /// It stays in flight until [`super::SimulatedDisk::release_held`].
    Hold,
}

struct Planned {
    class: OperationClass,
    /// Operations of the class that are still to come, this one included.
    remaining: u64,
    fault: Fault,
}

/// The faults of one disk.
#[derive(Default)]
pub(super) struct Faults {
    planned: Vec<Planned>,
    pub(super) bad_ranges: Vec<(u64, u64)>,
    pub(super) full_ranges: Vec<(u64, u64)>,
    pub(super) refusing_ranges: Vec<(u64, u64)>,
}

impl Faults {
    pub(super) fn plan(&mut self, class: OperationClass, nth: u64, fault: Fault) {
        self.planned.push(Planned { class, remaining: nth, fault });
    }

    pub(super) fn to_come(&self) -> usize {
        self.planned.len()
    }

    /// Counts an operation that starts, and says what is planned for it.
    pub(super) fn strike(&mut self, class: OperationClass) -> Option<Fault> {
        let mut struck = None;
        self.planned.retain_mut(|planned| {
            if planned.class != class {
                return true;
            }
            planned.remaining -= 1;
            if planned.remaining == 0 {
                struck = struck.or(Some(planned.fault));
            }
            planned.remaining > 0
        });
        struck
    }

    pub(super) fn is_bad(&self, offset: u64, len: u64) -> bool {
        touches(&self.bad_ranges, offset, len)
    }

    /// Whether a write fails for where it goes.
    pub(super) fn refuses(&self, offset: u64, len: u64) -> bool {
        touches(&self.refusing_ranges, offset, len)
    }

    /// Whether there is no room for a write.
    pub(super) fn is_full(&self, offset: u64, len: u64) -> bool {
        touches(&self.full_ranges, offset, len)
    }
}

fn touches(ranges: &[(u64, u64)], offset: u64, len: u64) -> bool {
    ranges.iter().any(|&(start, n)| offset < start + n && start < offset + len)
}

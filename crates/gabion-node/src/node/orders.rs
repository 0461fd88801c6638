//! Plain data that comes back to the node: with the result of a work order, and when a placement
//! commit is durable.

use alloc::sync::Arc;
use alloc::vec::Vec;
use gabion_base::{ConfigNumber, FileId, LogPosition, ReplicaId, Term};
use gabion_engine::Flushed;
use gabion_pool::{FilePlacement, Placed};

/// Names a load until it is forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LoadId(pub(super) u64);

/// The purpose of a work order, until its result comes.
pub(super) enum Order {
    Commit,
    Drain(DrainInFlight),
    Job(u64),
    LoadFile(LoadId),
    Ship {
        to: ReplicaId,
        session: u64,
        file: FileId,
    },
    ReadFile(Arc<FilePlacement>),
    /// A file that was shipped, where it arrived.
    Verify(Arc<FilePlacement>),
    /// A file that a read found damaged.
    Check(FileId),
    /// A file that lies here, and that a state has which is copied.
    CheckForFill(Arc<FilePlacement>),
    /// A file of which the primary has no whole copy.
    CheckForHead(Arc<FilePlacement>),
    Fetch {
        from: ReplicaId,
        session: u64,
        file: FileId,
    },
    Rewrite(Arc<FilePlacement>),
    ReadLog {
        ticket: u64,
    },
}

/// The records that a drain order writes.
pub(super) struct DrainInFlight {
    pub(super) ends: Vec<LogPosition>,
    /// End of the log that its flush covers, 0 without one.
    pub(super) covered: LogPosition,
}

/// A step that follows when a placement commit is durable.
#[derive(Debug, PartialEq)]
pub(super) enum After {
    EditApplied {
        edit: u64,
        flushed: Flushed,
    },
    FilePlaced {
        file: FileId,
        tell: bool,
    },
    SegmentPlaced(FileId),
    TermAdopted(Term),
    /// The spans of a log that the node is opened anew with.
    CutKept,
    ViewKept(ConfigNumber),
    Trimmed(LogPosition),
    SessionRaised,
    LossNoted,
    RingNoted,
    Stopped,
    Granted(Vec<Placed>),
    BuiltPlaced(u64),
    LoadPlaced(LoadId),
    FileRepaired(FileId),
}

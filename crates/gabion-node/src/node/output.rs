//! Orders of a replica to its driver, and its gate for writes.

use super::{Captured, MarkId};
use crate::work::{Work, WorkId};
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use gabion_base::{Error, FileId, ReplicaId};
use gabion_engine::FileMeta;
use gabion_media::nvme::TargetCommand;
use gabion_pool::FilePlacement;
use gabion_replication::{Frame, GroupView, Message};

/// An order to the driver.
pub enum Output {
    /// Send a frame to its receiver, on the connection that it names, in order.
    Send {
        /// The frame.
        frame: Frame,
    },
    /// Break the connection with a member; it is made anew afterwards.
    Disconnect {
        /// The member.
        peer: ReplicaId,
        /// The connection; none means the current one.
        connection: Option<u64>,
        /// Why, for the log.
        reason: Error,
    },
    /// Carry out an order and hand its result to [`Node::handle_done`](crate::Node::handle_done).
    Work(WorkId, Work),
    /// A command of a client at another node's door, or the answer to one of ours.
    Deliver {
        /// The member.
        from: ReplicaId,
        /// `Forward` or `ForwardReply`.
        message: Message,
    },
    /// Change what the embedded NVMe/TCP target serves. The answer to an `Open` is
    /// [`Node::handle_target_open`](crate::Node::handle_target_open).
    Target(TargetCommand),
    /// Connect to, or drop, a secondary's namespace.
    Remote(RemoteCommand),
    /// Bounded jobs may build until they have built so many bytes since the node began:
    /// [`crate::work::BuildCredit`].
    JobsMayBuild(u64),
    /// An applied edit has files that were sent here. Readers will want of its added files what
    /// they had of its removed ones.
    Replaced(Replaced),
    /// These files are gone, or lie elsewhere now: forget cached blocks and readers.
    FilesGone(Vec<FileId>),
    /// The outcome of a mark: the state at its record, or why there is none.
    Marked(MarkId, gabion_base::Result<Captured>),
    /// This view is durable here and runs: the driver of the node reaches the members by it.
    View(GroupView),
    /// A notice for the operator: one sentence for the replica's log.
    Notice(String),
    /// The log must end below what is applied here, and by the durable state it does: drop the node
    /// and open the replica again from the same pool and ring ([`crate::open`]). The process goes
    /// on. It is the last output, and nothing more comes of anything that the node is told.
    ///
    /// The driver first ends all that it does for the node, and reads of its views with an error
    /// after which clients try again. It waits until nothing of it can reach the medium any more:
    /// the next node uses the same slots for other files. Connections and what is cached of files
    /// end with the node.
    Reopen(Error),
    /// The replica can no longer be trusted with its disk; end the process and start anew.
    Fatal(Error),
}

/// The effect of an edit on files that others have made.
pub struct Replaced {
    /// Files that it removes: none for a flush, and nothing else where files are dropped. They are
    /// gone once [`Output::FilesGone`] names them, which comes later.
    pub removed: Vec<FileId>,
    /// Files that it adds, and their places. A kept description keeps the file's slots, so drop it
    /// soon.
    pub added: Vec<(Arc<FileMeta>, Arc<FilePlacement>)>,
}

/// An order to the shipping side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RemoteCommand {
    /// Connect to a secondary's namespace; orders for it follow.
    Connect {
        /// The secondary.
        to: ReplicaId,
        /// Its session.
        session: u64,
        /// Name of its subsystem.
        subsystem: String,
        /// Port on its host.
        port: u16,
        /// The name that we present.
        host: String,
    },
    /// Drop the connection; orders under way end as failed or unknown.
    Drop {
        /// The secondary.
        to: ReplicaId,
    },
}

/// Whether a write can be taken now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WriteGate {
    /// Yes.
    Open,
    /// Not yet: compaction, the ring or a member lags. The command waits.
    Wait(&'static str),
    /// No, as there is no room for files: refused with this sentence. Deletes and clears may be
    /// taken.
    Full {
        /// The room that there is, and the room that is wanted.
        reason: String,
        /// Whether deletes are taken now. Else they wait, for work that lags behind or for jobs to
        /// give back the room that deletes took before. They are refused while
        /// [`Node::jobs_pause`](crate::Node::jobs_pause): nothing under way gives any room then.
        takes_deletes: bool,
        /// Whether range deletes and clears are taken now, which take next to nothing and give back
        /// whole files; else as with deletes.
        takes_clears: bool,
    },
    /// No: refused with this sentence.
    Refuse(String),
}

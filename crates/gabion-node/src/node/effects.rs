//! The effects that a sub-machine asks for. It carries out none of them itself: the node does, in
//! the order in which they were asked for (route.rs).

use super::Output;
use super::orders::{After, Order};
use super::steps::Step;
use crate::message::NodeMessage;
use crate::work::{BuiltFile, Work};
use alloc::collections::VecDeque;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;
use gabion_base::{Ends, Error, Failed, FileId, LogPosition, ReplicaId, SlotIndex};
use gabion_pool::FilePlacement;

/// Something that a machine asks for.
pub(super) enum Effect {
    /// An output for the driver.
    Output(Output),
    /// A work order for the driver; the order comes back with the result.
    Order(Order, Work),
    /// A message to a member, if it is connected.
    Tell(ReplicaId, NodeMessage),
    /// Files are here in slots of the pool: that is made durable, and then the step follows.
    Place(Vec<Arc<FilePlacement>>, After),
    /// A damaged file is whole at another place, which is made its own.
    Replace(Arc<FilePlacement>),
    /// A step that follows on the next placement commit.
    Stage(After),
    /// The replica's counters on the next placement commit, and a step that follows on it.
    StageState(Option<After>),
    /// Steps of the turn that are due.
    Due(&'static [Step]),
    /// A signal for other machines.
    Signal(Signal),
    /// The replica is not to be trusted with its disk any more.
    Fatal(Error),
}

/// News from one machine that another one needs. The node alone knows which one.
pub(super) enum Signal {
    /// A file that was damaged is whole, or may be.
    FileWhole(FileId),
    /// A job met damage in a file, which is to be compared with its checksums.
    Damaged { file: FileId, error: Error },
    /// The bytes of a file at this place do not have its checksum.
    DamagedAt { place: Arc<FilePlacement>, error: Error },
    /// A file was built, and is to be shipped.
    FileBuilt { file: BuiltFile, is_flush: bool },
    /// Files were built, and no edit will name them.
    Discard(Vec<FileId>),
    /// A shipment of a file that is damaged here has come.
    RepairArrives(FileId),
    /// A shipment of a file that is damaged here is whole at this place.
    RepairArrived(Arc<FilePlacement>),
    /// Jobs need more slots than was reckoned.
    JobsNeedMore,
    /// A compaction is applied that took so many bytes out of L0.
    Compacted { bytes: u64, took_ms: u64 },
    /// A file has a place here, but nothing names it or ever will.
    Orphan(FileId),
    /// The log is durable further than before.
    LogDurable,
    /// The log begins there by now.
    LogTrimmed(LogPosition),
    /// An edit in line adds a file that is not here, at the member that ships.
    Missing(FileId),
    /// A file that may come will never be named by an edit again.
    Unneeded(FileId),
    /// Somebody waits until the log is durable up to here, on every member.
    DurableWanted(LogPosition),
    /// The connection for files to a member failed, in this session.
    RemoteFailed { of: ReplicaId, session: u64, reason: Error },
}

/// The effects that are asked for and not carried out, the first asked for first.
#[derive(Default)]
pub(super) struct Effects {
    queue: VecDeque<Effect>,
    /// The node is carrying them out, and must not begin a second time.
    pub(super) is_routed: bool,
}

impl Effects {
    #[inline]
    pub(super) fn is_settled(&self) -> bool {
        self.queue.is_empty() && !self.is_routed
    }

    pub(super) fn next_effect(&mut self) -> Option<Effect> {
        self.queue.pop_front()
    }

    pub(super) fn put_out(&mut self, output: Output) {
        self.queue.push_back(Effect::Output(output));
    }

    /// Tells the operator of the replica.
    pub(super) fn notice(&mut self, text: String) {
        self.put_out(Output::Notice(text));
    }

    /// The device did not write into slots, which are in quarantine until the next start.
    pub(super) fn notice_refused(&mut self, slots: &[SlotIndex], error: &Error) {
        let names: Vec<String> = slots.iter().map(SlotIndex::to_string).collect();
        self.notice(format!(
            "{}: not used until the next start, as the device did not take what was written there: {error}",
            names.join(", ")
        ));
    }

    /// Breaks the current connection with a member.
    pub(super) fn disconnect(&mut self, peer: ReplicaId, reason: Error) {
        self.put_out(Output::Disconnect { peer, connection: None, reason });
    }

    pub(super) fn begin(&mut self, order: Order, work: Work) {
        self.queue.push_back(Effect::Order(order, work));
    }

    pub(super) fn tell_member(&mut self, to: ReplicaId, message: NodeMessage) {
        self.queue.push_back(Effect::Tell(to, message));
    }

    /// Has the places of files made durable; the step follows then.
    pub(super) fn place(&mut self, places: Vec<Arc<FilePlacement>>, after: After) {
        self.queue.push_back(Effect::Place(places, after));
    }

    pub(super) fn replace(&mut self, place: Arc<FilePlacement>) {
        self.queue.push_back(Effect::Replace(place));
    }

    pub(super) fn stage(&mut self, after: After) {
        self.queue.push_back(Effect::Stage(after));
    }

    pub(super) fn stage_state(&mut self, after: Option<After>) {
        self.queue.push_back(Effect::StageState(after));
    }

    pub(super) fn due(&mut self, steps: &'static [Step]) {
        self.queue.push_back(Effect::Due(steps));
    }

    pub(super) fn signal(&mut self, signal: Signal) {
        self.queue.push_back(Effect::Signal(signal));
    }

    /// Ends the process if this failure does; ending anything less is up to the caller.
    pub(super) fn failed(&mut self, what: Failed, error: Error) {
        if what.ends(&error) == Ends::Process {
            self.queue.push_back(Effect::Fatal(error));
        }
    }
}

//! The node's calls that go outward: work orders and messages for its driver, the end of the
//! process, and the counters that the pool is to keep. Everything here may call them; they call
//! nothing.

use super::orders::{After, Order};
use super::steps::Step;
use super::{Node, Output};
use crate::message::NodeMessage;
use crate::state::opaque;
use crate::work::{Work, WorkId};
use bytes::Bytes;
use gabion_base::{Ends, Error, Failed, ReplicaId};
use gabion_replication::Message;

impl Node {
    pub(super) fn order(&mut self, order: Order, work: Work) {
        let id = WorkId(self.next_work);
        self.next_work += 1;
        self.orders.insert(id, order);
        self.outputs.push_back(Output::Work(id, work));
    }

    /// Ends the process if the failure does; the caller ends anything else.
    pub(super) fn failed(&mut self, what: Failed, error: Error) {
        if what.ends(&error) == Ends::Process {
            self.fatal(error);
        }
    }

    pub(super) fn fatal(&mut self, error: Error) {
        self.ended = true;
        self.outputs.push_back(Output::Fatal(error));
    }

    pub(super) fn tell(&mut self, to: ReplicaId, message: &NodeMessage) {
        let bytes = Bytes::from(message.encode());
        self.due.mark(Step::Protocol);
        // Without a connection there is nobody to tell; the next one starts from durable state.
        let _ = self.protocol.send(to, Message::Node { bytes });
    }

    /// Stages the replica's counters; `after` follows when they are durable.
    pub(super) fn stage_state(&mut self, after: Option<After>) {
        self.pool.stage_opaque(opaque::STATE, self.state.encode());
        self.commits.staged.extend(after);
    }
}

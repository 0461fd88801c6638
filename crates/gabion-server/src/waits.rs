//! WAIT and WAITAOF that ask for more than there is: the reply comes when there is, or in time.

use crate::client::{Client, Kind};
use crate::commands::WaitFor;
use crate::service::Service;
use gabion_base::{Frontier, ReplicaId};
use gabion_node::{AckLevel, WriteGate};
use gabion_resp::Reply;

/// Members do not tell a guest how far they are.
const NOT_KNOWN_HERE: Reply = Reply::error(
    "ERR WAITAOF: this replica is no member of its group, and does not know what is on devices: \
     ask another one",
);

/// A connection that waits.
pub(crate) struct Waiter {
    token: usize,
    serial: u64,
    slot: u64,
    wait: WaitFor,
    /// None: as long as it takes.
    until_ms: Option<u64>,
    /// The members were told to flush the log.
    is_flushed: bool,
}

impl Service {
    /// Has a connection wait; none of its further requests begins meanwhile, as in Redis.
    pub(crate) fn begin_wait(&mut self, token: usize, client: &mut Client, wait: WaitFor) {
        let slot = client.reserve(client.session.protocol(), Kind::Wait, false, 0);
        if wait.is_aof && self.is_guest() {
            client.fill(slot, NOT_KNOWN_HERE, 0);
            return self.mark(token, client);
        }
        client.is_waiting = true;
        let until_ms = Some(wait.timeout_ms).filter(|ms| *ms > 0);
        let until_ms = until_ms.map(|ms| self.now_ms.saturating_add(ms));
        let serial = client.serial;
        let waiting = Waiter { token, serial, slot, wait, until_ms, is_flushed: false };
        if !self.end_wait(client, &waiting) {
            return self.waits.push(waiting);
        }
        self.mark(token, client);
    }

    /// Replies to those who have waited enough.
    pub(crate) fn tick_waits(&mut self) {
        let mut is_to_be_flushed = false;
        for mut waiting in std::mem::take(&mut self.waits) {
            let token = waiting.token;
            let Some(mut client) = self.clients.get_mut(token).and_then(Option::take) else {
                continue;
            };
            if client.serial == waiting.serial {
                if self.end_wait(&mut client, &waiting) {
                    self.mark(token, &mut client);
                } else {
                    let is_due = waiting.wait.is_aof && client.is_front(waiting.slot);
                    is_to_be_flushed |= is_due && !waiting.is_flushed;
                    waiting.is_flushed |= is_due;
                    self.waits.push(waiting);
                }
            }
            self.clients[token] = Some(client);
        }
        if is_to_be_flushed {
            self.flush_log();
        }
    }

    /// Has every member flush the log, where this replica takes writes: else it stays in the rings
    /// until more is written.
    fn flush_log(&self) {
        let mut node = self.replica.node.borrow_mut();
        if node.duties().append && matches!(node.write_gate(), WriteGate::Open) {
            // An error has been reported as fatal.
            let _ = node.make_durable();
        }
    }

    /// Replies if there is what is waited for, if time is over, or if nobody may listen any more.
    fn end_wait(&self, client: &mut Client, waiting: &Waiter) -> bool {
        let wait = waiting.wait;
        // Before, it is not known up to where the connection's writes reach.
        let counts = client.is_front(waiting.slot).then(|| self.held(client, wait.is_aof));
        let [local, others] = counts.unwrap_or_default();
        let is_enough = counts.is_some() && local >= wait.local && others >= wait.replicas;
        let is_over = waiting.until_ms.is_some_and(|until_ms| until_ms <= self.now_ms);
        let ends = is_enough || is_over && counts.is_some() || client.is_finished;
        if !ends {
            return false;
        }
        let [local, others] = [local, others].map(|count| Reply::Integer(count as i64));
        let reply = if wait.is_aof { Reply::Array(vec![local, others]) } else { others };
        client.is_waiting = false;
        client.fill(waiting.slot, reply, 0);
        true
    }

    /// Whether this replica, and how many others, hold the writes of a connection that were
    /// acknowledged: on their devices, or at all.
    fn held(&self, client: &Client, is_on_device: bool) -> [u64; 2] {
        let node = self.replica.node.borrow();
        let group = node.view().group();
        let is_full = |id: ReplicaId| group.full().any(|member| member.replica == id);
        let others = group.full().filter(|member| member.replica != self.me).count() as u64;
        let here = u64::from(is_full(self.me));
        if !is_on_device || node.config().ack == AckLevel::Durable {
            return [here, others];
        }
        let written = match client.write_turn {
            0 => client.frontier,
            _ => client.frontier.join(self.replica.turns.last_end),
        };
        let protocol = node.protocol();
        let covers = |durable: &Frontier| durable.covers(&written);
        let here = here.min(u64::from(covers(&protocol.progress().durable)));
        if covers(&protocol.durable_commit()) {
            return [here, others];
        }
        let others = protocol.members().into_iter().filter(|member| {
            let durable = member.progress.map(|progress| progress.durable);
            member.id != self.me && is_full(member.id) && durable.is_some_and(|at| covers(&at))
        });
        [here, others.count() as u64]
    }
}

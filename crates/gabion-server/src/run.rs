//! Running commands at this node: at once where nothing has to be waited for, else as tasks; and
//! the queues of those that may not run yet.

use crate::commands::{Asker, Route, Work};
use crate::forward::{self, Origin, Outcome, WriteId};
use crate::replies::Replies;
use crate::service::Service;
use crate::store::{Entry, Wish, entry, write_gate};
use gabion_base::Frontier;
use gabion_node::{AckLevel, WriteGate};
use gabion_resp::{Protocol, Reply};
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};

/// How long a command waits, at each node on its way, for what a group that recovers will soon
/// have: a connection with the head or the tail, a term that has begun, a tail that has joined, the
/// log up to what a read's connection has seen. In ms. A thing that has been missing for as long
/// is not waited for at all.
pub(crate) const WAIT_MAX_MS: u64 = 5_000;
/// Bytes of commands that may wait for the write gate; beyond them members are refused.
const GATED_BYTES_MAX: usize = 256 << 20;
/// Reads of members that waited and are run before others are heard.
const RETRIES_MAX: usize = 1024;
/// Bytes of reads that may wait for the tail, or for what they must show, and of writes that may
/// wait for a connection with the head.
const WAITING_BYTES_MAX: usize = 64 << 20;
/// Above so many bytes of writes that wait, this node's own clients are not read any more.
pub(crate) const GATED_BYTES_HIGH: usize = 32 << 20;

/// Why the tail answers no reads.
const NOT_JOINED: &str =
    "reads are not possible yet: the tail of the chain has not joined its group since it started";
const NO_LEASE: &str = "reads are not possible now: the tail of the chain waits for another \
                        replica's promise that no other tail answers";
/// The answer of a replica that the view leaves out.
pub(crate) const LEFT_OUT: Reply =
    Reply::error("TRYAGAIN this replica is no member of its group now: ask another one");
pub(crate) const NOT_HERE: Reply =
    Reply::error("TRYAGAIN the member that was asked does not run this");
const TOO_FAR_BEHIND: Reply = Reply::error(
    "TRYAGAIN the tail of the chain has not yet applied what this connection has seen",
);
const TOO_MANY_READS: Reply =
    Reply::error("TRYAGAIN too many reads wait for the tail of the chain to come back");
pub(crate) const TOO_MUCH_WAITS: Reply =
    Reply::error("TRYAGAIN too many writes wait for the head of the chain");

/// A command to be run here.
pub(crate) struct Item {
    /// Order of arrival.
    pub(crate) number: u64,
    pub(crate) origin: Origin,
    pub(crate) work: Work,
    pub(crate) protocol: Protocol,
    /// Reads must show at least the log up to here.
    pub(crate) frontier: Frontier,
    pub(crate) since_ms: u64,
    /// The same by the clock for the time of commands.
    pub(crate) begun_ns: u64,
    pub(crate) len: usize,
    /// By which a write is known at every head.
    pub(crate) id: WriteId,
    /// It may have been made before.
    pub(crate) is_again: bool,
}

impl Item {
    pub(crate) fn is_read(&self) -> bool {
        self.work.route() == Route::Read
    }

    /// The memory that it takes while it waits, in bytes.
    pub(crate) const fn footprint(&self) -> usize {
        self.len + size_of::<Self>()
    }
}

/// Commands that wait, within a limit: what they take comes from clients.
#[derive(Default)]
pub(crate) struct Waiting {
    items: Vec<Item>,
    bytes: usize,
}

impl Waiting {
    pub(crate) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    pub(crate) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Takes a command in behind the others, or ends it when too much waits.
    pub(crate) fn push(&mut self, item: Item) -> Begun {
        if self.bytes + item.len > WAITING_BYTES_MAX {
            return Begun::Refused(if item.is_read() { TOO_MANY_READS } else { TOO_MUCH_WAITS });
        }
        self.bytes += item.len;
        self.items.push(item);
        Begun::Later
    }

    /// All of them; those that are to go on waiting are pushed again.
    pub(crate) fn take(&mut self) -> Vec<Item> {
        self.bytes = 0;
        std::mem::take(&mut self.items)
    }
}

/// A task that ended.
pub(crate) enum Finished {
    /// A command; void when it met a closed gate.
    Command { item: Item, reply: Reply, hit_gate: bool },
    /// A command that has to begin anew: its task was dropped, or the node that it waited for is
    /// gone. It has done nothing, as every command writes last.
    CutOff { item: Item },
    /// An answer that depends on no turn.
    Answer { origin: Origin, reply: Reply },
}

/// For a question to a node that ended before it answered.
pub(crate) const ASKED_TOO_EARLY: Reply = Reply::error(
    "TRYAGAIN the replica was opened again meanwhile: nothing was done, and it can be asked anew",
);

/// What a task owes somebody: it is told also where the task is dropped before its end.
pub(crate) struct Owed {
    finished: Rc<RefCell<Vec<Finished>>>,
    end: Option<Finished>,
}

impl Owed {
    /// Of a command.
    pub(crate) fn command(finished: &Rc<RefCell<Vec<Finished>>>, item: Item) -> Self {
        Self { finished: finished.clone(), end: Some(Finished::CutOff { item }) }
    }

    /// Of a question to the node.
    pub(crate) fn answer(finished: &Rc<RefCell<Vec<Finished>>>, origin: Origin) -> Self {
        let end = Finished::Answer { origin, reply: ASKED_TOO_EARLY };
        Self { finished: finished.clone(), end: Some(end) }
    }

    /// The command's work.
    fn item(&self) -> Option<&Item> {
        match &self.end {
            Some(Finished::CutOff { item }) => Some(item),
            _ => None,
        }
    }

    /// The task has ended with this reply.
    pub(crate) fn pay(mut self, reply: Reply, hit_gate: bool) {
        self.end = self.end.take().map(|end| match end {
            Finished::CutOff { item } => Finished::Command { item, reply, hit_gate },
            Finished::Answer { origin, .. } => Finished::Answer { origin, reply },
            paid @ Finished::Command { .. } => paid,
        });
    }
}

impl Drop for Owed {
    fn drop(&mut self) {
        let end = self.end.take();
        self.finished.borrow_mut().extend(end);
    }
}

/// The end of a command of a client here.
pub(crate) struct Ended {
    pub(crate) reply: Reply,
    pub(crate) outcome: Outcome,
    /// The turn that must be acknowledged before the reply is shown.
    pub(crate) turn: u64,
    /// The log that the reply shows, where another member made it.
    pub(crate) frontier: Frontier,
}

/// What became of a command that was begun.
pub(crate) enum Begun {
    /// It ran: the reply, and the turn that must be acknowledged before it is shown.
    Done(Reply, u64),
    /// It was refused before it saw or wrote anything: the error.
    Refused(Reply),
    /// A write whose reply is lost, or that may have been made or not: the error.
    Forgotten(Reply),
    /// The reply comes later.
    Later,
}

impl Service {
    /// A command for this node.
    pub(crate) fn item(
        &mut self,
        origin: Origin,
        work: Work,
        protocol: Protocol,
        frontier: Frontier,
    ) -> Item {
        let number = self.next_item;
        self.next_item += 1;
        let len = work.memory();
        let (since_ms, begun_ns) = (self.now_ms, self.commands.next_begins_ns());
        let (id, is_again) = (WriteId { session: self.session, number }, false);
        Item { number, origin, work, protocol, frontier, since_ms, begun_ns, len, id, is_again }
    }

    /// Begins a command where the view says.
    pub(crate) fn begin_in_view(&mut self, item: Item) -> Begun {
        if self.knows_no_member() {
            return Begun::Refused(LEFT_OUT);
        }
        if !item.is_read() && self.has_writes_before() {
            return self.queue_behind_retries(item);
        }
        let place = if item.is_read() { self.reader() } else { self.writer() };
        match place == self.me {
            true => self.begin(item),
            false => self.forward(place, item),
        }
    }

    /// Begins a command here: this node is the tail for a read, the head for anything else.
    pub(crate) fn begin(&mut self, item: Item) -> Begun {
        if item.is_read() {
            return self.begin_read(item);
        }
        if !self.gated.is_empty() {
            return self.gate(item);
        }
        let gate = write_gate(&self.replica.node.borrow());
        match gate {
            WriteGate::Open | WriteGate::Full { .. } => self.run_item(item),
            WriteGate::Wait(_) => self.gate(item),
            // Its fate is told later, before any write that its door sends after it.
            WriteGate::Refuse(_) if item.is_again => self.gate(item),
            WriteGate::Refuse(reason) => self.refuse_write(item, &reason),
        }
    }

    fn begin_read(&mut self, item: Item) -> Begun {
        if self.may_read(&item) {
            return self.run_read(item);
        }
        if let Some(why) = self.why_unreadable()
            && self.unreadable_ms() > WAIT_MAX_MS
        {
            return Begun::Refused(Reply::error_from(format!("TRYAGAIN {why}")));
        }
        self.lagging.push(item)
    }

    /// Why this node, the tail, answers no reads, if it does not.
    pub(crate) fn why_unreadable(&self) -> Option<&'static str> {
        let node = self.replica.node.borrow();
        let why = if node.may_read_when_leased() { NO_LEASE } else { NOT_JOINED };
        (!node.is_readable()).then_some(why)
    }

    /// For how long it has not answered any.
    fn unreadable_ms(&self) -> u64 {
        let passed_us = |since_us| self.clock.running_us().saturating_sub(since_us);
        self.unreadable_us.map_or(0, passed_us) / 1_000
    }

    /// Notes whether reads can be answered.
    fn note_readable(&mut self) {
        let now_us = self.clock.running_us();
        let is_readable = self.replica.node.borrow().is_readable();
        self.unreadable_us = self.unreadable_us.or(Some(now_us)).filter(|_| !is_readable);
    }

    /// Runs a read, or lets it wait until the member that forwarded it has been sent more of its
    /// replies.
    fn run_read(&mut self, item: Item) -> Begun {
        let admitted = match self.replies_to(&item.origin) {
            Some(replies) => replies.admit(item),
            None => Ok(item),
        };
        match admitted {
            Ok(item) => self.run_item(item),
            Err(begun) => begun,
        }
    }

    /// Replies owed on the connection on which a member asked, while that stands.
    pub(crate) fn replies_to(&mut self, origin: &Origin) -> Option<&mut Replies> {
        let Origin::Peer { replica, connection, .. } = *origin else { return None };
        let peer = self.peers.iter_mut().find(|peer| peer.id == replica)?;
        let link = peer.link.as_mut().filter(|link| link.connection == connection)?;
        Some(&mut link.replies)
    }

    /// Runs reads of members that waited for replies to be sent, some at a time. Returns how many.
    pub(crate) fn retry_replies(&mut self) -> usize {
        let mut count = 0;
        for place in 0..self.peers.len() {
            while count < RETRIES_MAX
                && let Some(link) = &mut self.peers[place].link
                && let Some(item) = link.replies.next()
            {
                count += 1;
                let (origin, protocol) = (item.origin.clone(), item.protocol);
                let begun = match self.may_read(&item) {
                    true => self.run_item(item),
                    false => self.lagging.push(item),
                };
                self.complete(&origin, protocol, true, begun);
            }
        }
        count
    }

    /// Whether this node, the tail, can show what a read must show.
    fn may_read(&self, item: &Item) -> bool {
        let node = self.replica.node.borrow();
        node.is_readable() && node.log_end().covers(&item.frontier)
    }

    /// Refuses a write that the group does not take now.
    fn refuse_write(&mut self, item: Item, reason: &str) -> Begun {
        count(&self.metrics.refused.not_ready);
        self.refuse(item, refused("TRYAGAIN", reason))
    }

    fn gate(&mut self, item: Item) -> Begun {
        if self.gated_bytes + item.len > GATED_BYTES_MAX {
            count(&self.metrics.refused.queue);
            return self.refuse(item, TOO_MUCH_WAITS);
        }
        self.replica.node.borrow_mut().hold_write(self.now_ms);
        self.gated_bytes += item.len;
        self.gated.insert(item.number, item);
        self.replica.store.hold_back_after(self.gated.first_key_value().map(|(number, _)| *number));
        Begun::Later
    }

    /// The first of the commands that wait for the gate.
    fn pop_gated(&mut self) -> Option<Item> {
        let (_, item) = self.gated.pop_first()?;
        self.gated_bytes -= item.len;
        self.replica.store.hold_back_after(self.gated.first_key_value().map(|(number, _)| *number));
        Some(item)
    }

    /// Polls a command once on the stack, without touching the device: a blind write or a read that
    /// finds all in memory ends there. Otherwise it becomes a task and begins anew; nothing was
    /// done by then, as every command writes last.
    fn run_item(&mut self, item: Item) -> Begun {
        let item = match self.judge_again(item) {
            Ok(item) => item,
            Err(begun) => return begun,
        };
        let (number, is_read) = (item.number, item.is_read());
        self.replica.store.run_as(number);
        self.replica.store.probe(true);
        let outcome = {
            let execution = pin!(self.commands.execute(&self.replica.store, &item.work));
            execution.poll(&mut Context::from_waker(Waker::noop()))
        };
        self.replica.store.probe(false);
        match outcome {
            Poll::Ready(_) if self.replica.store.take_hit_gate() => self.gate(item),
            Poll::Ready(reply) => {
                self.replica.store.end_command(item.id, &reply, item.protocol);
                self.note_time(&item);
                let turn = self.reply_turn(is_read);
                self.keep_own(item, turn);
                Begun::Done(reply, turn)
            }
            Poll::Pending => {
                let item = match self.replies_to(&item.origin) {
                    Some(replies) if is_read => match replies.begin(item) {
                        Ok(item) => item,
                        Err(begun) => return begun,
                    },
                    _ => item,
                };
                self.run_as_task(item);
                Begun::Later
            }
        }
    }

    /// Runs a command that has to wait. A write that finds another view is cut off: whoever takes
    /// writes then may have been asked for it.
    fn run_as_task(&mut self, item: Item) {
        let (number, is_read) = (item.number, item.is_read());
        if !is_read {
            self.writes_in_tasks.insert(item.id);
        }
        let (commands, store) = (self.commands.clone(), self.replica.store.clone());
        let owed = Owed::command(&self.finished, item);
        let config = store.config();
        let task = self.replica.executor.spawn(async move {
            let reply = {
                let Some(item) = owed.item() else { return };
                let mut execution = pin!(commands.execute(&store, &item.work));
                let run = poll_fn(|cx| {
                    if !is_read && store.config() != config {
                        return Poll::Ready(None);
                    }
                    store.run_as(number);
                    let reply = ready!(execution.as_mut().poll(cx));
                    store.end_command(item.id, &reply, item.protocol);
                    Poll::Ready(Some(reply))
                });
                run.await
            };
            let Some(reply) = reply else { return };
            let hit_gate = store.take_hit_gate();
            owed.pay(reply, hit_gate);
        });
        // At once, so that it is in the queues of its keys before any command that comes later.
        self.replica.executor.run_one(task);
    }

    /// A command has ended here: how long it took since it came.
    #[inline]
    fn note_time(&self, item: &Item) {
        let asker = || match &item.origin {
            Origin::Client { serial, .. } => self.commands.asker(*serial),
            Origin::Peer { replica, .. } => Asker::member(replica.get()),
            Origin::Probe => Asker::default(),
        };
        self.commands.note_work(&item.work, item.begun_ns, asker, &self.host);
    }

    /// The turn that must be acknowledged before a reply made now is shown. What the tail of a
    /// chain has applied, every member has in its ring; only the level `durable` asks for more.
    pub(crate) fn reply_turn(&mut self, is_read: bool) -> u64 {
        let is_acknowledged = is_read
            && self.me != self.writer()
            && self.replica.node.borrow().config().ack == AckLevel::Replicated;
        if is_acknowledged {
            return 0;
        }
        self.replica.turns.is_used = true;
        self.replica.turns.current
    }

    /// Takes the results of tasks. Returns how many there were.
    pub(crate) fn take_finished(&mut self) -> usize {
        let finished = self.finished.take();
        let count = finished.len();
        for ended in finished {
            if let Finished::Command { item, .. } | Finished::CutOff { item } = &ended {
                self.writes_in_tasks.remove(&item.id);
            }
            match ended {
                Finished::Command { item, hit_gate: true, .. } => {
                    let (origin, protocol, is_read) =
                        (item.origin.clone(), item.protocol, item.is_read());
                    let begun = self.gate(item);
                    self.complete(&origin, protocol, is_read, begun);
                }
                Finished::Command { item, reply, .. } => {
                    self.note_time(&item);
                    let is_read = item.is_read();
                    if is_read && let Some(replies) = self.replies_to(&item.origin) {
                        replies.end();
                    }
                    let turn = self.reply_turn(is_read);
                    let (origin, protocol) = (item.origin.clone(), item.protocol);
                    self.keep_own(item, turn);
                    self.complete(&origin, protocol, is_read, Begun::Done(reply, turn));
                }
                Finished::CutOff { item } => self.begin_cut_off(item),
                Finished::Answer { origin, reply } => self.answer(&origin, reply),
            }
        }
        count
    }

    /// Begins a command that was cut off by the end of the node. A position beyond its log is that
    /// of records that were cut, and nothing is to be seen there.
    fn begin_cut_off(&mut self, mut item: Item) {
        item.frontier = item.frontier.meet(self.replica.node.borrow().log_end());
        self.begin_anew(item);
    }

    /// Begins a command anew that has done nothing yet, where the view says. A member is told that
    /// it is to ask again: it knows the view, or will.
    fn begin_anew(&mut self, item: Item) {
        let (origin, protocol, is_read) = (item.origin.clone(), item.protocol, item.is_read());
        let begun = match origin {
            Origin::Client { .. } if self.knows_no_member() => self.refuse(item, LEFT_OUT),
            // In its place before all that came later.
            Origin::Client { .. } if !is_read && self.writer() == self.me => self.gate(item),
            Origin::Client { .. } => self.begin_in_view(item),
            Origin::Peer { .. } => Begun::Refused(NOT_HERE),
            Origin::Probe => return,
        };
        self.complete(&origin, protocol, is_read, begun);
    }

    /// Another view runs: commands that wait begin anew where it says, in the order in which they
    /// came, and reads are waited for from now on.
    pub(crate) fn begin_waiting_anew(&mut self) {
        self.unreadable_us = None;
        let writes_go = !self.is_member() || self.writer() != self.me;
        let mut items = self.lagging.take();
        items.append(&mut self.unsent.take());
        while writes_go && let Some(item) = self.pop_gated() {
            items.push(item);
        }
        items.into_iter().for_each(|item| self.begin_anew(item));
    }

    /// Runs writes that waited for the gate, in the order in which they came. Returns how many.
    pub(crate) fn retry_gated(&mut self) -> usize {
        let mut count = 0;
        while !self.gated.is_empty() {
            let (gate, jobs_pause) = {
                let node = self.replica.node.borrow();
                (write_gate(&node), node.jobs_pause())
            };
            // Whether it is a put comes out when it runs: what a delete waits for, all behind it
            // do.
            if matches!(entry(gate.clone(), jobs_pause, Wish::Delete), Entry::Wait(_)) {
                self.replica.node.borrow_mut().hold_write(self.now_ms);
                break;
            }
            if matches!(gate, WriteGate::Refuse(_)) && self.first_gated_may_be_made() {
                break;
            }
            let Some(item) = self.pop_gated() else { break };
            let (origin, protocol) = (item.origin.clone(), item.protocol);
            let begun = match gate {
                WriteGate::Refuse(reason) => self.refuse_write(item, &reason),
                _ => self.run_item(item),
            };
            count += 1;
            self.complete(&origin, protocol, false, begun);
        }
        count
    }

    /// Whether the first write at the gate may have been made, and has not waited for long.
    fn first_gated_may_be_made(&self) -> bool {
        let first = self.gated.first_key_value().map(|(_, item)| item);
        let waited_ms = |item: &Item| self.now_ms.saturating_sub(item.since_ms);
        first.is_some_and(|item| item.is_again && waited_ms(item) <= WAIT_MAX_MS)
    }

    /// Runs or forwards what waited for the tail or for a connection, where that is possible now.
    /// Returns how many.
    pub(crate) fn retry_waiting_commands(&mut self) -> usize {
        let mut count = 0;
        if self.has_waiting_reads() {
            self.pass_lease_time();
        }
        for item in self.lagging.take() {
            if !self.may_read(&item) {
                // There was room for it before.
                let _ = self.lagging.push(item);
                continue;
            }
            count += 1;
            let (origin, protocol) = (item.origin.clone(), item.protocol);
            let begun = self.run_read(item);
            self.complete(&origin, protocol, true, begun);
        }
        count + self.retry_replies() + self.retry_unsent()
    }

    fn has_waiting_reads(&self) -> bool {
        let links = self.peers.iter().filter_map(|peer| peer.link.as_ref());
        !self.lagging.is_empty()
            || !self.unsent.is_empty()
            || links.into_iter().any(|link| link.replies.may_go_on())
    }

    /// Ends commands that have waited too long.
    pub(crate) fn tick_waiting(&mut self) {
        let now_ms = self.now_ms;
        let is_late = |item: &Item| now_ms.saturating_sub(item.since_ms) > WAIT_MAX_MS;
        self.note_readable();
        for item in self.lagging.take() {
            if !is_late(&item) {
                let _ = self.lagging.push(item);
                continue;
            }
            let reply = match self.why_unreadable() {
                None => TOO_FAR_BEHIND,
                Some(why) => Reply::error_from(format!("TRYAGAIN {why}")),
            };
            self.complete(&item.origin, item.protocol, true, Begun::Refused(reply));
        }
        self.tick_unsent();
    }

    /// Hands the reply of a command that was begun to who asked, unless it comes later.
    pub(crate) fn complete(
        &mut self,
        origin: &Origin,
        protocol: Protocol,
        is_read: bool,
        begun: Begun,
    ) {
        let (reply, outcome, turn) = match begun {
            Begun::Done(reply, turn) => (reply, Outcome::Made, turn),
            Begun::Refused(reply) => (reply, Outcome::NotMade, 0),
            Begun::Forgotten(reply) => (reply, Outcome::Forgotten, 0),
            Begun::Later => return,
        };
        match origin {
            Origin::Client { token, serial, slot } => {
                let ended = Ended { reply, outcome, turn, frontier: Frontier::ZERO };
                self.complete_client(*token, *serial, *slot, is_read, ended);
            }
            Origin::Probe => {}
            Origin::Peer { .. } => {
                let bytes = forward::encode_reply(outcome, &reply, protocol);
                // Its memory is in the bytes now, or shared with others.
                drop(reply);
                self.complete_peer(origin, is_read, bytes, turn);
            }
        }
    }

    /// Sends a member the reply to its command, once the turn is acknowledged.
    fn complete_peer(&mut self, origin: &Origin, is_read: bool, bytes: Vec<u8>, turn: u64) {
        if let Some(replies) = self.replies_to(origin) {
            if is_read {
                replies.expect(bytes.len());
            }
            if turn != 0 {
                replies.add(bytes.len());
            }
        }
        if turn != 0 {
            return self.peer_replies.push_back((turn, origin.clone(), bytes.into()));
        }
        let shown = if is_read { self.replica.node.borrow().log_end() } else { Frontier::ZERO };
        self.send_reply(origin, shown, &bytes);
    }
}

fn count(counter: &Cell<u64>) {
    counter.set(counter.get() + 1);
}

/// The error for a write that the group does not take now.
fn refused(code: &str, reason: &str) -> Reply {
    Reply::error_from(format!("{code} writes are refused: {reason}"))
}

//! The loop: one thread, one turn after the other.
//!
//! ```text
//!  wait ─► sockets, device, threads, signals ─► commands, messages, results ─► node
//!    ▲                                                                          │
//!    │      tasks ─► end of the turn (one record) ─► node.advance ─► outputs ◄──┘
//!    └──── one send per socket ◄── replies whose turn is acknowledged ◄──┘
//! ```
//!
//! Commands of all connections that were ready in a turn become one record and one send.

use crate::ExitReason;
use crate::client::{Client, READ_LEN, Sums};
use crate::commands::Commands;
use crate::descriptors::Spare;
use crate::door::Ahead;
use crate::events::Event;
use crate::forward::{self, Origin, Outcome};
use crate::host::ServerHost;
use crate::peers::{Link, Peer, Stranger};
use crate::routing::{Forwarded, ForwardedList};
use crate::run::{Finished, Item, WaitingReads};
use crate::shipping::{ShipCommand, ShipThread};
use crate::store::{NodeStore, SharedNode};
use crate::warm::{WarmCommand, WarmThread};
use bytes::{Bytes, BytesMut};
use gabion_base::{Error, ErrorKind, Frontier, ReplicaId, Result};
use gabion_fabric::nvme::{TargetEvent, TargetServer};
use gabion_host::clock::Clock;
use gabion_host::jobs::{JobThreads, StoreParts};
use gabion_media::MediumHandle;
use gabion_media::nvme::InitiatorConfig;
use gabion_media::task::Executor;
use gabion_node::work::{self, Work, WorkId};
use gabion_node::{LocalStore, MarkId, Output, RemoteCommand, WriteGate};
use gabion_resp::{Protocol, Reply};
use mio::net::{TcpListener, UnixStream};
use mio::{Events, Poll, Token};
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::io::{self, Read};
use std::rc::Rc;
use std::sync::mpsc::Receiver;
use std::time::Duration;

pub(crate) const RESP: Token = Token(0);
pub(crate) const PEER_DOOR: Token = Token(1);
pub(crate) const MEDIUM: Token = Token(2);
pub(crate) const WAKER: Token = Token(3);
pub(crate) const SIGNAL: Token = Token(4);
/// Tokens of members, by their place in the list.
pub(crate) const PEERS: usize = 16;
/// Tokens of those who have not said who they are.
pub(crate) const STRANGERS: usize = 64;
/// Most of them at a time.
pub(crate) const STRANGERS_MAX: usize = 64;
/// Tokens of clients.
pub(crate) const CLIENTS: usize = STRANGERS + STRANGERS_MAX;

/// Longest sleep: time passes for the node at least as often.
const TICK_MS: u64 = 20;
/// Between two lines that say why connections of the target ended.
const TARGET_NOTE_MS: u64 = 10_000;
/// Rounds of tasks and of commands that become possible by them, in one turn.
const ROUNDS_MAX: usize = 8;
/// How long tasks run in one turn, in microseconds, before others are heard: members, who take a
/// silent node for lost, and clients. A task may take 2 ms at a time, and there may be thousands.
const TASKS_US_MAX: u64 = 10_000;

/// How long a reply waits for a member that is out, in ms.
const UNACKNOWLEDGED_MAX_MS: u64 = 5_000;
const UNACKNOWLEDGED: Reply = Reply::error(
    "UNKNOWN a replica has been out for too long to wait for: the write is in the log and may take effect",
);
const VIEW_CHANGED: Reply = Reply::error(
    "UNKNOWN another configuration began meanwhile: the write may have been made or not",
);

/// Threads of the process.
pub(crate) struct Threads {
    pub(crate) jobs: Rc<RefCell<JobThreads>>,
    pub(crate) ship: ShipThread,
    pub(crate) target: TargetServer,
    pub(crate) warm: WarmThread,
}

/// Everything the loop owns.
pub(crate) struct Server {
    pub(crate) me: ReplicaId,
    pub(crate) clock: Rc<Clock>,
    pub(crate) now_ms: u64,
    pub(crate) poll: Poll,
    pub(crate) resp: TcpListener,
    pub(crate) peer_door: TcpListener,
    pub(crate) signals: UnixStream,
    pub(crate) inbox: Receiver<Event>,
    pub(crate) node: SharedNode,
    pub(crate) store: NodeStore,
    pub(crate) local: LocalStore,
    pub(crate) medium: MediumHandle,
    pub(crate) parts: StoreParts,
    pub(crate) executor: Executor,
    /// What tasks of this thread have to tell.
    pub(crate) local_events: Rc<RefCell<Vec<Event>>>,
    pub(crate) finished: Rc<RefCell<Vec<Finished>>>,
    /// Below all that holds the medium, which goes first: a flush of a job that is waited for here
    /// may itself wait for what one of the loop's comes to.
    pub(crate) threads: Threads,
    pub(crate) commands: Rc<Commands>,
    pub(crate) host: Rc<ServerHost>,

    // Members.
    pub(crate) peers: Vec<Peer>,
    pub(crate) strangers: Vec<Option<Stranger>>,
    pub(crate) next_connection: u64,
    pub(crate) forwarded: ForwardedList,
    pub(crate) next_forward: u64,
    /// Those whose connection is gone; answered in the next turn.
    pub(crate) lost: Vec<Forwarded>,
    /// Parts of commands that members forward to us.
    pub(crate) incoming: BTreeMap<(ReplicaId, u64), Vec<u8>>,
    /// Replies to members, in the order of their turns.
    pub(crate) peer_replies: VecDeque<(u64, Origin, Bytes)>,

    // Clients.
    pub(crate) clients: Vec<Option<Box<Client>>>,
    pub(crate) free_clients: Vec<usize>,
    pub(crate) sums: Sums,
    /// Bytes of requests that may wait of all connections together.
    pub(crate) input_sum_max: usize,
    /// Nobody could be accepted, most likely for want of descriptors.
    pub(crate) door_is_stuck: bool,
    /// More wait at the door than are accepted in one turn.
    pub(crate) door_has_more: bool,
    /// A descriptor for telling a client that there is none.
    pub(crate) spare: Spare,
    /// When it was said last that clients are not accepted.
    pub(crate) full_noted_ms: Option<u64>,
    /// When a connection that spoke HTTP was noted last.
    pub(crate) http_noted_ms: Option<u64>,
    /// When it was said last why a connection of the target ended.
    pub(crate) target_noted_ms: Option<u64>,
    /// Connections whose replies or sockets want looking after in this turn.
    pub(crate) listed: Vec<usize>,
    /// Connections that can read on without a new event.
    pub(crate) eager: Vec<usize>,
    /// Connections that are too far ahead with their requests.
    pub(crate) ahead: VecDeque<Ahead>,
    /// Connections that are closed amid their requests: until when they are waited for, place,
    /// serial.
    pub(crate) lingering: VecDeque<(u64, usize, u64)>,
    /// Connections with a command that is held back.
    pub(crate) held: Vec<usize>,
    /// Connections that wait for a turn to be acknowledged, in the order of turns.
    pub(crate) waiting_clients: VecDeque<(u64, usize)>,
    /// Connections that wait for the log to pass a frontier.
    pub(crate) marks: BTreeMap<MarkId, Origin>,
    pub(crate) scratch: Vec<u8>,
    pub(crate) shared_input: BytesMut,
    pub(crate) encoded: Vec<u8>,

    // Turns.
    /// The turn whose record is being filled; the first is 1.
    pub(crate) turn: u64,
    /// A reply depends on this turn.
    pub(crate) turn_is_used: bool,
    /// Turns that are not acknowledged: number, end of the log, when they ended.
    pub(crate) turns: VecDeque<(u64, Frontier, u64)>,
    pub(crate) acknowledged_turn: u64,
    pub(crate) acknowledged_at: Frontier,
    /// The end of the log when the last turn ended.
    pub(crate) last_end: Frontier,

    // Commands that cannot run yet.
    pub(crate) next_item: u64,
    pub(crate) gated: BTreeMap<u64, Item>,
    pub(crate) gated_bytes: usize,
    /// Reads that wait until this node has what they must show.
    pub(crate) lagging: WaitingReads,
    /// Reads that wait for a connection with the tail.
    pub(crate) unsent: WaitingReads,

    /// Room for what the node wants done.
    pub(crate) outputs: Vec<Output>,
    pub(crate) exit: Option<ExitReason>,
}

impl Server {
    /// The member that takes writes.
    pub(crate) fn writer(&self) -> ReplicaId {
        self.node.borrow().view().writer()
    }

    /// The member that answers reads.
    pub(crate) fn reader(&self) -> ReplicaId {
        self.node.borrow().view().reader()
    }

    /// Runs until a signal or a failure.
    pub(crate) fn run(mut self) -> Result<ExitReason> {
        let mut events = Events::with_capacity(1024);
        let (mut next_tick_ms, mut next_second_ms) = (0_u64, 0_u64);
        loop {
            let timeout = if self.is_busy() {
                Duration::ZERO
            } else {
                // Not before a millisecond has passed, also where the log takes no record of time
                // now.
                let node = self.node.borrow();
                let writes_due_ms = node.writes_due_ms().filter(|_| !self.gated.is_empty());
                let due_ms = node.time_due_ms().into_iter().chain(writes_due_ms).min();
                let due_ms = due_ms.map_or(u64::MAX, |at| at.max(self.now_ms + 1));
                let until_ms = next_tick_ms.min(due_ms);
                Duration::from_millis(until_ms.saturating_sub(self.clock.now_ms()).min(TICK_MS))
            };
            match self.poll.poll(&mut events, Some(timeout)) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => events.clear(),
                Err(error) => {
                    let kind = ErrorKind::Io;
                    return Err(Error::with_source(kind, "the loop cannot wait", error));
                }
            }
            self.now_ms = self.clock.now_ms();
            self.host.set_now(self.clock.now_us());
            self.commands.begin_turn();
            self.node.borrow_mut().pass_time(self.now_ms);
            for event in &events {
                self.handle_event(event);
            }
            while let Ok(event) = self.inbox.try_recv() {
                self.take_event(event);
            }
            self.medium.drive();
            if self.now_ms >= next_tick_ms {
                next_tick_ms = self.now_ms + TICK_MS;
                // What other members have logged may be ahead of this clock.
                self.clock.follow(self.node.borrow().tree().now_ms());
                self.node.borrow_mut().handle_tick(self.now_ms);
                self.tick_peers();
                if std::mem::take(&mut self.door_is_stuck) {
                    self.accept_clients();
                }
                self.tick_reads();
                self.probe_tail();
                self.tick_unacknowledged();
                self.tick_lingering();
                self.tick_ahead();
                self.tick_marks();
                let commands = self.commands.calls_count();
                self.host.rate.borrow_mut().sample(self.clock.now_us(), commands);
                if self.now_ms >= next_second_ms {
                    next_second_ms = self.now_ms + 1_000;
                    self.close_idle();
                }
            }
            self.take_turn();
            if let Some(reason) = self.exit.take() {
                self.say_goodbye();
                if matches!(reason, ExitReason::Signal) {
                    self.stop();
                }
                return Ok(reason);
            }
        }
    }

    fn is_busy(&self) -> bool {
        self.executor.has_ready()
            || !self.eager.is_empty()
            || !self.listed.is_empty()
            || self.door_has_more
            || self.turn_is_used
            || self.peers.iter().filter_map(|peer| peer.link.as_ref()).any(Link::is_busy)
    }

    fn handle_event(&mut self, event: &mio::event::Event) {
        match event.token() {
            RESP => self.accept_clients(),
            PEER_DOOR => self.accept_strangers(),
            MEDIUM | WAKER => {}
            SIGNAL => self.take_signal(),
            Token(n) if n >= CLIENTS => self.wake_client(n - CLIENTS, event),
            Token(n) if n >= STRANGERS => self.hear_stranger(n - STRANGERS),
            Token(n) => self.wake_peer(n - PEERS, event),
        }
    }

    fn take_signal(&mut self) {
        if self.is_signalled() {
            self.exit = Some(ExitReason::Signal);
        }
    }

    pub(crate) fn take_event(&mut self, event: Event) {
        let mut node = self.node.borrow_mut();
        match event {
            Event::JobFile(id, file) => node.handle_job_file(id, file),
            Event::Done(id, done) => node.handle_done(id, done),
            Event::Target(TargetEvent::Opened { session }) => {
                node.handle_target_open(session, self.threads.target.address().port());
            }
            Event::Target(TargetEvent::Wrote { offset, len, crc, .. }) => {
                node.handle_target_write(offset, len, crc);
            }
            Event::Target(TargetEvent::Refused { offset, error, .. }) => {
                node.handle_target_write_failed(offset, &error);
            }
            Event::Target(TargetEvent::Closed) => {}
            Event::Target(TargetEvent::Ended { peer, error }) => {
                // Connections end whenever a session does; only what should not be is said, and a
                // stranger who sends nonsense again and again fills no log.
                let is_due = |then| self.now_ms - then >= TARGET_NOTE_MS;
                if matches!(error.kind(), ErrorKind::Corruption | ErrorKind::Fenced)
                    && self.target_noted_ms.is_none_or(is_due)
                {
                    self.target_noted_ms = Some(self.now_ms);
                    note!("NVMe/TCP target: connection of {peer} ended: {error}");
                }
            }
            Event::Target(TargetEvent::Failed(error)) => {
                self.exit = Some(ExitReason::Failed(error.within("NVMe/TCP target")));
            }
            Event::Damaged(place, error) => {
                // It may have been repaired since.
                if node.file_map().get(place.file).is_some_and(|now| *now == *place) {
                    node.handle_damage(place.file, &error);
                }
            }
            Event::Died(thread) => {
                let error = Error::io(format!("thread {thread} ended"));
                self.exit = Some(ExitReason::Failed(error));
            }
        }
    }

    /// Whether a signal came.
    pub(crate) fn is_signalled(&mut self) -> bool {
        matches!(self.signals.read(&mut [0]), Ok(1))
    }

    /// Everything that follows from what came in.
    fn take_turn(&mut self) {
        if std::mem::take(&mut self.door_has_more) {
            self.accept_clients();
        }
        self.read_peers_on();
        for token in std::mem::take(&mut self.eager) {
            self.serve_client(token);
        }
        self.answer_lost();
        let mut until_us = None;
        for _ in 0..ROUNDS_MAX {
            let ran = self.run_tasks(&mut until_us);
            let ended = self.take_finished();
            let begun = self.retry_gated() + self.retry_reads() + self.retry_held();
            let has_record = self.end_turn();
            let has_outputs = self.carry_on();
            let is_over = until_us.is_some_and(|until_us| self.clock.running_us() >= until_us);
            if is_over || ran + ended + begun == 0 && !has_record && !has_outputs {
                break;
            }
        }
        self.answer_lost();
        self.acknowledge();
        self.close_killed();
        self.flush_clients();
        self.flush_peers();
    }

    /// Polls the tasks that were woken while time is left of the turn, which begins with the first.
    /// Returns how many ran.
    fn run_tasks(&mut self, until_us: &mut Option<u64>) -> usize {
        if !self.executor.has_ready() {
            return 0;
        }
        let clock = &self.clock;
        let until_us = *until_us.get_or_insert_with(|| clock.running_us() + TASKS_US_MAX);
        self.executor.run_ready_while(|| clock.running_us() < until_us)
    }

    /// Ends the turn when a reply depends on it: its writes become a record, and its replies wait
    /// until the log is acknowledged up to here. Returns whether it ended.
    fn end_turn(&mut self) -> bool {
        let has_written = self.store.take_written();
        if !has_written && !self.turn_is_used {
            return false;
        }
        let ended = self.node.borrow_mut().end_turn();
        let failure = self.store.take_failure();
        match (ended, failure) {
            (Ok(end), None) => {
                self.turns.push_back((self.turn, end, self.now_ms));
                self.last_end = end;
                self.turn += 1;
                self.turn_is_used = false;
            }
            // The tree holds what the log does not: a new process starts from the log.
            (Err(error), _) | (_, Some(error)) => {
                self.exit = Some(ExitReason::Failed(error.within("the log")));
            }
        }
        true
    }

    /// Lets the node carry on with what tasks told, and does what it wants done. Returns whether
    /// that was anything.
    pub(crate) fn carry_on(&mut self) -> bool {
        for event in self.local_events.take() {
            self.take_event(event);
        }
        let mut outputs = std::mem::take(&mut self.outputs);
        {
            let mut node = self.node.borrow_mut();
            node.advance(self.now_ms);
            outputs.extend(std::iter::from_fn(|| node.poll_output()));
        }
        let has_outputs = !outputs.is_empty();
        for output in outputs.drain(..) {
            self.carry_out(output);
        }
        self.outputs = outputs;
        has_outputs
    }

    fn carry_out(&mut self, output: Output) {
        match output {
            Output::Send { frame } => self.send_frame(&frame),
            Output::Disconnect { peer, connection, reason } => {
                self.disconnect(peer, connection, &reason.to_string());
            }
            Output::Work(id, work) => self.begin_work(id, work),
            Output::Deliver { from, message } => self.take_message(from, message),
            Output::Target(command) => self.threads.target.send(command),
            Output::Remote(RemoteCommand::Connect { to, session, subsystem, port, host }) => {
                let Some(peer) = self.peers.iter().find(|peer| peer.id == to) else { return };
                let mut address = peer.target;
                address.set_port(port);
                let config = InitiatorConfig::new(host, self.parts.pool_id, subsystem);
                self.threads.ship.send(ShipCommand::Connect { to, session, address, config });
            }
            Output::Remote(RemoteCommand::Drop { to }) => {
                self.threads.ship.send(ShipCommand::Drop { to });
            }
            Output::JobsMayBuild(until) => self.threads.jobs.borrow().may_build(until),
            Output::Replaced(replaced) => self.threads.warm.send(WarmCommand::Replaced(replaced)),
            Output::FilesGone(files) => self.threads.warm.send(WarmCommand::Gone(files)),
            Output::Marked(mark, captured) => self.take_marked(mark, captured),
            Output::View(view) => self.follow_view(&view),
            Output::Notice(text) => note!("{text}"),
            Output::Fatal(error) => self.exit = Some(ExitReason::Failed(error)),
        }
    }

    fn begin_work(&mut self, id: WorkId, work: Work) {
        match work {
            Work::Job(order) => self.threads.jobs.borrow().begin(id, order),
            Work::Ship(order) => self.threads.ship.send(ShipCommand::Ship(id, order)),
            Work::Fetch(order) => self.threads.ship.send(ShipCommand::Fetch(id, order)),
            work => {
                let (store, events) = (self.local.clone(), self.local_events.clone());
                self.executor.spawn(async move {
                    let done = work::run_local(work, &store).await;
                    events.borrow_mut().push(Event::Done(id, done));
                });
            }
        }
    }

    /// Shows the replies whose turn is acknowledged.
    fn acknowledge(&mut self) {
        let acknowledged = self.node.borrow().acknowledged();
        while let Some(&(turn, end, _)) = self.turns.front()
            && acknowledged.covers(&end)
        {
            self.acknowledged_turn = turn;
            self.acknowledged_at = end;
            self.turns.pop_front();
        }
        while let Some((origin, reply)) = self.pop_peer_reply(self.acknowledged_turn) {
            self.send_reply(&origin, self.acknowledged_at, &reply);
        }
        while let Some(&(turn, token)) = self.waiting_clients.front()
            && turn <= self.acknowledged_turn
        {
            self.waiting_clients.pop_front();
            self.list_client(token);
        }
    }

    /// The next reply to a member, if its turn is one up to `last`.
    fn pop_peer_reply(&mut self, last: u64) -> Option<(Origin, Bytes)> {
        self.peer_replies.front().filter(|(turn, _, _)| *turn <= last)?;
        let (_, origin, reply) = self.peer_replies.pop_front()?;
        if let Some(replies) = self.replies_to(&origin) {
            replies.remove(reply.len());
        }
        Some((origin, reply))
    }

    /// Gives up on replies that wait for a member that is out: their writes are in the log here,
    /// and what becomes of them is not known before it is back.
    fn tick_unacknowledged(&mut self) {
        let is_late = |&&(_, _, since): &&(u64, Frontier, u64)| {
            self.now_ms.saturating_sub(since) > UNACKNOWLEDGED_MAX_MS
        };
        let Some(&(last, _, _)) = self.turns.iter().take_while(is_late).last() else { return };
        let gate = self.node.borrow().write_gate();
        if matches!(gate, WriteGate::Refuse(_) | WriteGate::Full { .. }) {
            self.give_up_turns(last, &UNACKNOWLEDGED);
        }
    }

    /// Gives up on what was written under the view before: whether it is in the log that goes on,
    /// the writer of the new view knows, and a position in that log no longer tells.
    pub(crate) fn give_up_view(&mut self) {
        // First what was acknowledged by then.
        self.acknowledge();
        self.give_up_turns(self.turn - 1, &VIEW_CHANGED);
        self.turns.clear();
    }

    /// Answers what waits for turns up to `last`: nobody knows whether they commit.
    fn give_up_turns(&mut self, last: u64, error: &Reply) {
        while let Some((origin, _)) = self.pop_peer_reply(last) {
            let bytes = forward::encode_reply(Outcome::Unknown, error, Protocol::Resp3);
            self.send_reply(&origin, Frontier::ZERO, &bytes);
        }
        let acknowledged = self.acknowledged_turn;
        while let Some(&(turn, token)) = self.waiting_clients.front()
            && turn <= last
        {
            self.waiting_clients.pop_front();
            if let Some(Some(client)) = self.clients.get_mut(token) {
                client.give_up(acknowledged, last, error);
            }
            self.list_client(token);
        }
    }

    /// The last replies that are ready go out before the sockets close.
    fn say_goodbye(&mut self) {
        self.flush_clients();
        self.flush_peers();
    }
}

/// A buffer of the loop for reads.
pub(crate) fn scratch() -> Vec<u8> {
    vec![0; READ_LEN]
}

/// What wakes the loop when a thread has something to tell; kept in one place with the tokens.
pub(crate) fn waker(poll: &Poll) -> Result<mio::Waker> {
    mio::Waker::new(poll.registry(), WAKER)
        .map_err(|error| Error::with_source(ErrorKind::Io, "the loop gets no waker", error))
}

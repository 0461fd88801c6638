//! A replica's service: one turn after the other.
//!
//! ```text
//!   sockets, device, threads ─► commands, messages, results ─► node
//!                                                               │
//!           tasks ─► end of the turn (one record) ─► node.advance ─► outputs
//!             one send per socket ◄── replies whose turn is acknowledged ◄──┘
//! ```
//!
//! Commands of all connections that were ready in a turn become one record and one send.

use crate::ExitReason;
use crate::backup::Moments;
use crate::client::{Client, READ_LEN, Sums};
use crate::commands::Commands;
use crate::control::Control;
use crate::descriptors::Spare;
use crate::door::Ahead;
use crate::events::Event;
use crate::failover::AskedList;
use crate::forward::{self, Origin, Outcome, WriteId};
use crate::host::ServerHost;
use crate::listen::GroupDoor;
use crate::metrics::Metrics;
use crate::peers::{Link, Peer, Stranger};
use crate::reopen::Reopened;
use crate::replica::{OpenTurn, Replica, WhileOpen};
use crate::retries::{OwnWrites, Retries};
use crate::routing::Unsent;
use crate::routing::{Forwarded, ForwardedList};
use crate::run::{Finished, Item, Waiting};
use crate::server::{
    CLIENTS, CONTROLS, MEDIUM, PEER_DOOR, PEERS, RESP, RESP_GROUP, RESP_GROUP_TLS, RESP_TLS,
    STRANGERS, TICK_MS,
};
use crate::shipping::ShipCommand;
use crate::spread::{Exchange, Far, SpreadConfig};
use crate::tls::Tls;
use crate::trust::MembersTls;
use crate::users::UserChanges;
use crate::waits::Waiter;
use crate::warm::WarmCommand;
use bytes::{Bytes, BytesMut};
use gabion_base::{Error, ErrorKind, Frontier, GroupId, ReplicaId};
use gabion_fabric::nvme::TargetEvent;
use gabion_host::clock::Clock;
use gabion_media::nvme::InitiatorConfig;
use gabion_node::{MarkId, Output, RemoteCommand, WriteGate};
use gabion_resp::{Protocol, Reply};
use mio::Registry;
use mio::net::TcpListener;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Between two lines that say why connections of the target ended.
const TARGET_NOTE_MS: u64 = 1_000;
/// Rounds of tasks and of commands that become possible by them, in one turn.
const ROUNDS_MAX: usize = 8;
/// How long tasks run in one turn, in microseconds, before others are heard: members, who take a
/// silent node for lost, and clients. A task may take 2 ms at a time, and there may be thousands.
const TASKS_US_MAX: u64 = 10_000;

/// How long a reply waits for a member that is out, in ms.
const UNACKNOWLEDGED_MAX_MS: u64 = 5_000;
const UNACKNOWLEDGED: Reply = Reply::error(
    "UNKNOWN a replica has been out for too long to wait for: the write is in the log and may take \
     effect",
);
const VIEW_CHANGED: Reply = Reply::error(
    "UNKNOWN another configuration began meanwhile: the write may have been made or not",
);

/// Whether a connection with the target ended as none should: garbage, an old session, or a
/// certificate that is not let in.
const fn is_of_a_stranger(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::Corruption | ErrorKind::Fenced | ErrorKind::InvalidInput)
}

/// What one replica of this process serves: its doors, clients and members, and what routes between
/// them and the replica.
pub(crate) struct Service {
    /// Its place in the server's list, which its tokens name.
    pub(crate) place: usize,
    pub(crate) me: ReplicaId,
    pub(crate) group: GroupId,
    pub(crate) clock: Arc<Clock>,
    pub(crate) now_ms: u64,
    pub(crate) next_tick_ms: u64,
    pub(crate) next_second_ms: u64,
    pub(crate) registry: Rc<Registry>,
    pub(crate) resp: TcpListener,
    pub(crate) tls: Option<Tls>,
    /// The door of this group alone, where the other one is for all groups.
    pub(crate) group_door: Option<GroupDoor>,
    /// The place of the group among several.
    pub(crate) spread: Option<SpreadConfig>,
    pub(crate) exchange: Rc<Exchange>,
    /// Clients that stand for connections at other services, by those.
    pub(crate) within: BTreeMap<Far, usize>,
    pub(crate) peer_door: TcpListener,
    pub(crate) replica: WhileOpen<Replica>,
    /// Why the replica is to be opened again at the end of the turn.
    pub(crate) to_reopen: Option<String>,
    /// While the replica is opened again.
    pub(crate) reopening: Option<Reopened>,
    /// What ended of the tasks, for those who asked.
    pub(crate) finished: Rc<RefCell<Vec<Finished>>>,
    pub(crate) commands: Rc<Commands>,
    pub(crate) host: ServerHost,

    // Members.
    pub(crate) peers: Vec<Peer>,
    pub(crate) strangers: Vec<Option<Stranger>>,
    /// Certificates of members and controllers; none where all are on this machine.
    pub(crate) members_tls: Option<MembersTls>,
    pub(crate) control: Control,
    /// Numbers for scrapers, and their door.
    pub(crate) metrics: Metrics,
    pub(crate) next_connection: u64,
    pub(crate) forwarded: ForwardedList,
    pub(crate) next_forward: u64,
    /// The session of this start of the door, of which its writes have numbers.
    pub(crate) session: u64,
    /// Writes that may have been made, and those behind them.
    pub(crate) retries: Retries,
    /// Writes that were made here for own clients.
    pub(crate) own_writes: OwnWrites,
    /// Writes that run as tasks.
    pub(crate) writes_in_tasks: BTreeSet<WriteId>,
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
    /// When it was said last why somebody at the door for members was refused.
    pub(crate) stranger_noted_ms: Option<u64>,
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
    /// Other groups for which some of these are, as too much waits there; by their bits.
    pub(crate) awaited: u32,
    /// Connections that wait for a turn to be acknowledged, in the order of turns.
    pub(crate) waiting_clients: VecDeque<(u64, usize)>,
    /// Connections that wait for the log to pass a frontier.
    pub(crate) marks: BTreeMap<MarkId, Origin>,
    /// Moments of which backups are made.
    pub(crate) backups: Moments,
    /// Connections that wait for more replicas than hold their writes.
    pub(crate) waits: Vec<Waiter>,
    /// Connections that wait for the controller's word.
    pub(crate) asked: AskedList,
    /// Changes of users under way.
    pub(crate) user_changes: UserChanges,
    pub(crate) scratch: Vec<u8>,
    pub(crate) shared_input: BytesMut,
    pub(crate) encoded: Vec<u8>,

    // Commands that cannot run yet.
    pub(crate) next_item: u64,
    pub(crate) gated: BTreeMap<u64, Item>,
    pub(crate) gated_bytes: usize,
    /// Reads that wait until this node has what they must show.
    pub(crate) lagging: Waiting,
    /// Commands that wait for a connection with the member that is to run them.
    pub(crate) unsent: Unsent,
    /// Since when the replica has not been able to answer reads, by [`Clock::running_us`].
    pub(crate) unreadable_us: Option<u64>,

    pub(crate) exit: Option<ExitReason>,
}

impl Service {
    /// The member that takes writes.
    pub(crate) fn writer(&self) -> ReplicaId {
        self.replica.node.borrow().view().writer()
    }

    /// The member that answers reads.
    pub(crate) fn reader(&self) -> ReplicaId {
        self.replica.node.borrow().view().reader()
    }

    /// Whether the replica takes part. Else no event may be handed to it, and turns are not taken.
    pub(crate) const fn is_open(&self) -> bool {
        self.replica.is_open()
    }

    /// How long nothing has to be done, if no event comes.
    pub(crate) fn wait(&self) -> Duration {
        if !self.is_open() {
            return Duration::from_millis(TICK_MS);
        }
        if self.is_busy() {
            return Duration::ZERO;
        }
        // Not before a millisecond has passed, also where the log takes no record of time now.
        let node = self.replica.node.borrow();
        let writes_due_ms = node.writes_due_ms().filter(|_| !self.gated.is_empty());
        let due_ms = node.time_due_ms().into_iter().chain(writes_due_ms).min();
        let due_ms = due_ms.map_or(u64::MAX, |at| at.max(self.now_ms + 1));
        let until_ms = self.next_tick_ms.min(due_ms);
        Duration::from_millis(until_ms.saturating_sub(self.clock.now_ms()).min(TICK_MS))
    }

    /// Tells the time, before events are handed in.
    pub(crate) fn begin_turn(&mut self) {
        self.now_ms = self.clock.now_ms();
        self.host.set_now(self.clock.now_us());
        self.commands.begin_turn();
        if self.is_open() {
            self.replica.node.borrow_mut().pass_time(self.now_ms);
        }
    }

    /// Tells the time by which promises about reads are counted. To be called once the bytes of a
    /// request or message were read, before they are handed in, and before a read that waited is
    /// judged: a process that was stopped in between must not answer from before.
    pub(crate) fn pass_lease_time(&self) {
        self.replica.node.borrow_mut().pass_lease_time(Clock::boot_ms());
    }

    /// What passes with time.
    fn tick(&mut self) {
        self.next_tick_ms = self.now_ms + TICK_MS;
        // What other members have logged may be ahead of this clock.
        self.clock.follow(self.replica.node.borrow().tree().now_ms());
        self.pass_lease_time();
        self.replica.node.borrow_mut().handle_tick(self.now_ms);
        self.tick_peers();
        if std::mem::take(&mut self.door_is_stuck) {
            self.accept_clients();
        }
        self.tick_waiting();
        self.probe_tail();
        self.tick_unacknowledged();
        self.tick_handshakes();
        self.tick_lingering();
        self.tick_ahead();
        self.tick_marks();
        self.tick_backups();
        self.tick_asked();
        self.tick_users();
        self.tick_waits();
        self.show_group();
        self.note_log_end();
        let commands = self.commands.calls_count();
        self.host.rate.borrow_mut().sample(self.clock.now_us(), commands);
        if self.now_ms >= self.next_second_ms {
            self.next_second_ms = self.now_ms + 1_000;
            self.close_idle();
            self.refresh_tls();
            self.commands.follow_users();
        }
    }

    /// The head notes where its log ends, by which it tells how old what a member lacks is.
    fn note_log_end(&mut self) {
        let node = self.replica.node.borrow();
        if node.duties().append {
            self.metrics.lag.note(self.now_ms, node.log_end().bytes_since(&Frontier::ZERO));
        }
    }

    fn is_busy(&self) -> bool {
        self.replica.executor.has_ready()
            || !self.eager.is_empty()
            || !self.listed.is_empty()
            || self.door_has_more
            || self.commands.has_killed()
            || self.exchange.has_for(self.place)
            || self.exchange.has_room_again(self.awaited)
            || self.replica.turns.is_used
            || self.control.is_busy()
            || self.peers.iter().filter_map(|peer| peer.link.as_ref()).any(Link::is_busy)
    }

    /// Takes what a socket or the device has to tell.
    pub(crate) fn handle_event(&mut self, token: usize, event: &mio::event::Event) {
        match token {
            RESP | RESP_TLS | RESP_GROUP | RESP_GROUP_TLS => self.accept_clients(),
            PEER_DOOR => self.accept_strangers(),
            MEDIUM => {}
            n if n >= CLIENTS => self.wake_client(n - CLIENTS, event),
            n if n >= STRANGERS => self.hear_stranger(n - STRANGERS),
            n if n >= PEERS => self.wake_peer(n - PEERS, event),
            n => self.wake_control(n - CONTROLS, event),
        }
    }

    pub(crate) fn take_event(&mut self, event: Event) {
        let mut node = self.replica.node.borrow_mut();
        match event {
            Event::JobFile(id, file) => node.handle_job_file(id, file),
            Event::Done(id, done) => node.handle_done(id, done),
            Event::Target(TargetEvent::Opened { session }) => {
                node.handle_target_open(session, self.replica.threads.target.address().port());
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
                if is_of_a_stranger(error.kind()) && self.target_noted_ms.is_none_or(is_due) {
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

    /// Everything that follows from what came in.
    pub(crate) fn take_turn(&mut self) {
        if !self.is_open() && !self.finish_reopening() {
            return self.serve_control();
        }
        self.take_handed();
        while let Ok(event) = self.replica.inbox.try_recv() {
            self.take_event(event);
        }
        self.replica.medium.drive();
        if self.now_ms >= self.next_tick_ms {
            self.tick();
        }
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
            let begun = self.retry_gated()
                + self.retry_writes()
                + self.retry_waiting_commands()
                + self.retry_held();
            let has_record = self.end_turn();
            let has_outputs = self.carry_on();
            let is_over = self.to_reopen.is_some()
                || until_us.is_some_and(|until_us| self.clock.running_us() >= until_us);
            if is_over || ran + ended + begun == 0 && !has_record && !has_outputs {
                break;
            }
        }
        if let Some(why) = self.to_reopen.take() {
            return self.close_replica(&why);
        }
        self.answer_lost();
        self.retry_writes();
        self.retry_unsent();
        self.acknowledge();
        self.close_killed();
        self.serve_control();
        self.flush_clients();
        self.flush_peers();
    }

    /// Polls the tasks that were woken while time is left of the turn, which begins with the first.
    /// Returns how many ran.
    fn run_tasks(&mut self, until_us: &mut Option<u64>) -> usize {
        if !self.replica.executor.has_ready() {
            return 0;
        }
        let clock = &self.clock;
        let until_us = *until_us.get_or_insert_with(|| clock.running_us() + TASKS_US_MAX);
        self.replica.executor.run_ready_while(|| clock.running_us() < until_us)
    }

    /// Ends the turn when a reply depends on it: its writes become a record, and its replies wait
    /// until the log is acknowledged up to here. Returns whether it ended.
    fn end_turn(&mut self) -> bool {
        let has_written = self.replica.store.take_written();
        if !has_written && !self.replica.turns.is_used {
            return false;
        }
        let ended = self.replica.node.borrow_mut().end_turn();
        let failure = self.replica.store.take_failure();
        match (ended, failure) {
            (Ok(end), None) => {
                let turns = &mut self.replica.turns;
                let (number, since_ms) = (turns.current, self.now_ms);
                let ended_us = if has_written { self.clock.running_us() } else { 0 };
                let turn = OpenTurn { number, end, since_ms, ended_us, has_record: has_written };
                turns.open.push_back(turn);
                turns.last_end = end;
                turns.current += 1;
                turns.is_used = false;
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
        for event in self.replica.local_events.take() {
            self.take_event(event);
        }
        let mut outputs = std::mem::take(&mut self.replica.outputs);
        {
            let mut node = self.replica.node.borrow_mut();
            node.advance(self.now_ms);
            outputs.extend(std::iter::from_fn(|| node.poll_output()));
        }
        let has_outputs = !outputs.is_empty();
        for output in outputs.drain(..) {
            self.carry_out(output);
        }
        self.replica.outputs = outputs;
        has_outputs
    }

    fn carry_out(&mut self, output: Output) {
        match output {
            Output::Send { frame } => self.send_frame(&frame),
            Output::Disconnect { peer, connection, reason } => {
                self.disconnect(peer, connection, &reason.to_string());
            }
            Output::Work(id, work) => self.replica.begin_work(id, work),
            Output::Deliver { from, message } => self.take_message(from, message),
            Output::Target(command) => self.replica.threads.target.send(command),
            Output::Remote(RemoteCommand::Connect { to, session, subsystem, port, host }) => {
                let Some(peer) = self.peers.iter().find(|peer| peer.id == to) else { return };
                let mut address = peer.target;
                address.set_port(port);
                let config = InitiatorConfig::new(host, self.replica.parts.pool_id, subsystem);
                self.replica.threads.ship.send(ShipCommand::Connect {
                    to,
                    session,
                    address,
                    config,
                });
            }
            Output::Remote(RemoteCommand::Drop { to }) => {
                self.replica.threads.ship.send(ShipCommand::Drop { to });
            }
            Output::JobsMayBuild(until) => self.replica.threads.jobs.borrow().may_build(until),
            Output::Replaced(replaced) => {
                self.replica.threads.warm.send(WarmCommand::Replaced(replaced))
            }
            Output::FilesGone(files) => self.replica.threads.warm.send(WarmCommand::Gone(files)),
            Output::Marked(mark, captured) => self.take_marked(mark, captured),
            Output::View(view) => self.follow_view(&view),
            Output::Notice(text) => note!("{text}"),
            Output::Reopen(why) => self.reopen(why.to_string()),
            Output::Fatal(error) => self.exit = Some(ExitReason::Failed(error)),
        }
    }

    /// Shows the replies whose turn is acknowledged.
    fn acknowledge(&mut self) {
        let (acknowledged, is_current) = {
            let node = self.replica.node.borrow();
            // A turn without writes has reads alone, which were judged when they began.
            (node.acknowledged(), node.holds_lease() || !node.duties().append)
        };
        let turns = &mut self.replica.turns;
        let shown = turns.shown(acknowledged, is_current);
        if shown > 0 {
            let now_us = self.clock.running_us();
            for turn in turns.open.drain(..shown) {
                (turns.acknowledged, turns.acknowledged_at) = (turn.number, turn.end);
                if turn.has_record {
                    let took_us = now_us.saturating_sub(turn.ended_us);
                    self.metrics.acknowledged.count(took_us.saturating_mul(1_000));
                }
            }
            self.own_writes.acknowledge(turns.acknowledged);
        }
        while let Some((origin, reply)) = self.pop_peer_reply(self.replica.turns.acknowledged) {
            self.send_reply(&origin, self.replica.turns.acknowledged_at, &reply);
        }
        while let Some(&(turn, token)) = self.waiting_clients.front()
            && turn <= self.replica.turns.acknowledged
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
        let now_ms = self.now_ms;
        let is_late =
            |turn: &&OpenTurn| now_ms.saturating_sub(turn.since_ms) > UNACKNOWLEDGED_MAX_MS;
        let late = self.replica.turns.open.iter().take_while(is_late).last();
        let Some(last) = late.map(|turn| turn.number) else { return };
        let gate = self.replica.node.borrow().write_gate();
        if matches!(gate, WriteGate::Refuse(_) | WriteGate::Full { .. }) {
            self.give_up_turns(last, Outcome::Forgotten, &UNACKNOWLEDGED);
        }
    }

    /// Gives up on what was written under the view before: whether it is in the log that goes on,
    /// the writer of the new view knows, and a position in that log no longer tells.
    pub(crate) fn give_up_view(&mut self) {
        // First what was acknowledged by then.
        self.acknowledge();
        let last = self.replica.turns.current - 1;
        self.recall_own(last);
        self.give_up_turns(last, Outcome::Unknown, &VIEW_CHANGED);
        self.replica.turns.open.clear();
    }

    /// Gives up on what was written before the replica is opened again, the turn that is being
    /// filled with it: the log that is read then may lack what no other member has.
    pub(crate) fn give_up_log(&mut self) {
        self.acknowledge();
        let last = self.replica.turns.current;
        self.recall_own(last);
        self.give_up_turns(last, Outcome::Unknown, &VIEW_CHANGED);
    }

    /// Answers what waits for turns up to `last`: nobody knows whether they commit. With
    /// [`Outcome::Unknown`] members ask again.
    fn give_up_turns(&mut self, last: u64, outcome: Outcome, error: &Reply) {
        self.own_writes.acknowledge(last);
        while let Some((origin, _)) = self.pop_peer_reply(last) {
            let bytes = forward::encode_reply(outcome, error, Protocol::Resp3);
            self.send_reply(&origin, Frontier::ZERO, &bytes);
        }
        let acknowledged = self.replica.turns.acknowledged;
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
    pub(crate) fn say_goodbye(&mut self) {
        if !self.is_open() {
            return;
        }
        self.flush_clients();
        self.flush_peers();
    }
}

/// A buffer of the loop for reads.
pub(crate) fn scratch() -> Vec<u8> {
    vec![0; READ_LEN]
}

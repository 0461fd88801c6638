//! Connections of controllers: what they tell, and what this replica reports to each of them.
//!
//! ```text
//!   controller ─► door for members ─► link ── Tell(epoch, view) ──► Node::handle_told
//!              ◄─────────────────────  │  ◄─ Report: every 100 ms, and at once when it is news
//!              ◄─────────────────────  │  ◄─ Ask ── FAILOVER of a client, which Answer is told
//! ```
//!
//! A link outlives the replica's node: while that is opened again, the last facts are reported as
//! those of a replica that has nothing, for as long as an opening takes. A controller that is told
//! nothing any more takes the replica for lost.

use crate::config::Home;
use crate::probe::ProbeThread;
use crate::server::{self, CONTROLS};
use crate::service::Service;
use crate::stream::Stream;
use gabion_base::{ConfigNumber, Error, ErrorKind, GroupId, ReplicaId, Result};
use gabion_control::wire::{ControlMessage, MESSAGE_LEN_MAX};
use gabion_control::{Epoch, Filling, FillingStep, Patience, Probe, Report, Vitals};
use gabion_node::{FillStatus, FillStep, Node, WriteGate};
use gabion_pool::PoolId;
use gabion_replication::{GroupView, Member};
use mio::{Interest, event::Event};
use std::io;

/// Connections at a time: two controllers that both believe to be the one, and those of before
/// whose end has not come here.
pub(crate) const CONTROLS_MAX: usize = 4;
/// How long a replica that is being opened again counts as one that lives, in ms.
const REOPENING_MAX_MS: u64 = 3_000;
/// How long the pool of a member that takes no writes itself may be short of room before it counts
/// as full, in ms: a compaction of the writer's makes room as fast, as a rule.
const SHORT_MAX_MS: u64 = 5_000;
/// How long another member may be silent, in ms, before controllers are told: three heartbeats.
const UNHEARD_MS: u64 = 300;
/// How long it says the same of its load, in ms.
const VITALS_EVERY_MS: u64 = 1_000;
/// Bytes of one read.
const READ_LEN: usize = 16 << 10;
/// Reads in one turn.
const READS_MAX: usize = 16;

/// A connection of a controller.
struct Link {
    stream: Stream,
    /// Greater than that of every link before.
    number: u64,
    input: Vec<u8>,
    /// A report that is being sent, and how much of it is.
    out: (Vec<u8>, usize),
    can_write: bool,
    /// It has sent more than was read in one turn.
    has_more: bool,
    /// When the next report is due; 0: at once.
    due_ms: u64,
    /// The controller's own, from its last word.
    epoch: Epoch,
}

/// The facts that a replica reports of its node.
#[derive(Clone, PartialEq, Eq)]
struct Facts {
    member: Member,
    view: Option<GroupView>,
    founded: ConfigNumber,
    is_filled: bool,
}

impl Facts {
    fn of(node: &Node, pool_id: PoolId, home: &Home) -> Self {
        let incarnation = node.state().incarnation;
        let (number, addresses) = (home.node, home.addresses.clone());
        let member = Member::new(node.id());
        Self {
            member: Member { incarnation, pool_id, node: number, addresses, ..member },
            view: node.view_told().cloned(),
            founded: node.founded(),
            is_filled: node.is_filled(),
        }
    }

    /// Whether the node says the same, without a copy of its view.
    fn is_of(&self, node: &Node) -> bool {
        let config = |view: Option<&GroupView>| view.map(|view| (view.config, view.term));
        let incarnation = node.state().incarnation;
        let is_filled = node.is_filled();
        (self.member.incarnation, config(self.view.as_ref()), self.founded, self.is_filled)
            == (incarnation, config(node.view_told()), node.founded(), is_filled)
    }

    /// The replica is closed, and is opened again from its files: nobody knows what is in them.
    fn close(&mut self) {
        (self.founded, self.is_filled) = (ConfigNumber::ZERO, false);
    }
}

/// The controllers of a replica.
pub(crate) struct Control {
    links: [Option<Link>; CONTROLS_MAX],
    next_number: u64,
    /// The highest that was heard.
    epoch: Epoch,
    /// The newest view that came while the replica was closed.
    told: Option<GroupView>,
    /// Whether this process was told a view that the replica took, or had.
    is_told: bool,
    facts: Facts,
    home: Home,
    probe: ProbeThread,
    /// Since when the replica is closed, in ms.
    closed_ms: Option<u64>,
    /// Since when its pool is short of room, in ms.
    short_ms: Option<u64>,
    /// Its word on its load, and the time when that was gathered, in ms.
    vitals: Option<(u64, Vitals)>,
    /// The last complaint, so that it is logged once.
    complaint: String,
}

impl Control {
    pub(crate) fn new(node: &Node, pool_id: PoolId, home: Home, probe: ProbeThread) -> Self {
        Self {
            links: Default::default(),
            next_number: 0,
            epoch: Epoch::default(),
            told: None,
            is_told: false,
            facts: Facts::of(node, pool_id, &home),
            home,
            probe,
            closed_ms: None,
            short_ms: None,
            vitals: None,
            complaint: String::new(),
        }
    }

    /// The shortest of its last probe writes, in µs.
    pub(crate) fn probe_us(&self) -> u64 {
        self.probe.least_us()
    }

    /// How the device answers probe writes.
    pub(crate) fn probe(&self) -> Probe {
        self.probe.state()
    }

    /// Whether there is more to do without a new event.
    pub(crate) fn is_busy(&self) -> bool {
        self.links.iter().flatten().any(|link| link.has_more)
    }

    fn has_links(&self) -> bool {
        self.links.iter().any(Option::is_some)
    }

    /// The place for a new link: a free one, or that of the oldest.
    fn place(&self) -> usize {
        let age = |place: &usize| self.links[*place].as_ref().map_or(0, |link| link.number);
        (0..CONTROLS_MAX).min_by_key(age).unwrap_or(0)
    }

    /// Logs what is wrong, once.
    fn complain(&mut self, complaint: String) {
        if self.complaint != complaint {
            note!("controller: {complaint}");
            self.complaint = complaint;
        }
    }

    /// The report, as far as it is of facts that are kept here.
    fn report(&self, group: GroupId, probe: Probe) -> Report {
        let Facts { member, view, founded, is_filled } = self.facts.clone();
        Report {
            member,
            group,
            view,
            founded,
            is_filled,
            is_whole: false,
            filling: None,
            vitals: None,
            probe,
            unheard: Vec::new(),
            epoch: self.epoch,
        }
    }
}

impl Link {
    /// Reads on, and returns the next whole message. None means that no more is there, or that
    /// others are to be heard first.
    fn next_message(&mut self, reads: &mut usize) -> Result<Option<ControlMessage>> {
        let mut chunk = [0; READ_LEN];
        loop {
            if let Some((message, len)) = ControlMessage::decode(&self.input)? {
                self.input.drain(..len);
                return Ok(Some(message));
            }
            self.has_more = *reads == 0;
            if self.has_more {
                return Ok(None);
            }
            *reads -= 1;
            match self.stream.read(&mut chunk) {
                Ok(0) => return Err(Error::io("the connection ended")),
                Ok(count) => self.input.extend_from_slice(&chunk[..count]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) => return Err(broken(error)),
            }
            // A message that is longer is refused by its first bytes.
            assert!(self.input.len() <= 4 + MESSAGE_LEN_MAX + READ_LEN, "input is bounded");
        }
    }

    /// Whether a report can be put in: none waits that the socket has not taken.
    const fn is_sent(&self) -> bool {
        self.out.1 == self.out.0.len()
    }

    /// Sends what the socket takes.
    fn flush(&mut self) -> Result<()> {
        self.flush_pending()?;
        while self.can_write && !self.is_sent() {
            match self.stream.write(&self.out.0[self.out.1..]) {
                Ok(0) => return Err(broken(io::ErrorKind::WriteZero.into())),
                Ok(count) => self.out.1 += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.can_write = false,
                Err(error) => return Err(broken(error)),
            }
        }
        self.flush_pending()
    }

    /// Sends what was encrypted and is not sent: an edge of the socket is due where some is left.
    fn flush_pending(&mut self) -> Result<()> {
        if self.can_write && self.stream.has_pending() {
            self.can_write = self.stream.send_pending().map_err(broken)?;
        }
        Ok(())
    }
}

fn broken(error: io::Error) -> Error {
    Error::with_source(ErrorKind::Io, "the connection broke", error)
}

impl Service {
    /// A controller has said who it is, on a connection that is watched under another token.
    pub(crate) fn welcome_controller(&mut self, mut stream: Stream) {
        let place = self.control.place();
        self.end_control(place, "another one connected, and there are enough");
        let token = server::token(self.place, CONTROLS + place);
        let interest = Interest::READABLE | Interest::WRITABLE;
        if let Err(error) = self.registry.reregister(stream.socket_mut(), token, interest) {
            return self.control.complain(format!("its connection cannot be watched: {error}"));
        }
        let _ = stream.socket().set_nodelay(true);
        self.control.next_number += 1;
        self.control.links[place] = Some(Link {
            stream,
            number: self.control.next_number,
            input: Vec::new(),
            out: (Vec::new(), 0),
            can_write: true,
            has_more: false,
            due_ms: 0,
            epoch: Epoch::default(),
        });
        self.greet_with_users();
        // Bytes that came with the preamble give no further event.
        self.read_control(place);
    }

    pub(crate) fn wake_control(&mut self, place: usize, event: &Event) {
        let Some(Some(link)) = self.control.links.get_mut(place) else { return };
        link.can_write |= event.is_writable();
        if event.is_readable() || event.is_read_closed() || event.is_error() {
            self.read_control(place);
        }
    }

    fn read_control(&mut self, place: usize) {
        let mut reads = READS_MAX;
        while let Some(link) = &mut self.control.links[place] {
            match link.next_message(&mut reads) {
                Ok(Some(ControlMessage::Tell { epoch, view })) => {
                    link.epoch = epoch;
                    self.take_tell(epoch, view);
                }
                Ok(Some(ControlMessage::Answer { number, refused })) => {
                    self.take_answer(number, refused);
                }
                Ok(Some(ControlMessage::Users(record))) => self.take_users(place, record),
                Ok(Some(ControlMessage::UsersChanged { number, outcome })) => {
                    self.take_users_changed(number, outcome);
                }
                Ok(Some(
                    ControlMessage::Report(_)
                    | ControlMessage::Ask { .. }
                    | ControlMessage::UsersKnown(_)
                    | ControlMessage::ChangeUsers(_),
                )) => {
                    self.end_control(place, "a controller sends no reports and asks nothing");
                }
                Ok(None) => return,
                Err(error) => self.end_control(place, &error.to_string()),
            }
        }
    }

    /// Ends a controller's connection, if there is one.
    fn end_control(&mut self, place: usize, why: &str) {
        let Some(mut link) = self.control.links[place].take() else { return };
        let _ = self.registry.deregister(link.stream.socket_mut());
        self.control.complain(format!("its connection was ended: {why}"));
    }

    fn take_tell(&mut self, epoch: Epoch, view: GroupView) {
        self.control.epoch = self.control.epoch.max(epoch);
        if !self.is_open() || self.replica.node.borrow().is_reopening() {
            let is_newer = |told: &GroupView| view.config > told.config;
            if self.control.told.as_ref().is_none_or(is_newer) {
                self.control.told = Some(view);
            }
            return;
        }
        let taken = self.replica.node.borrow_mut().handle_told(view);
        self.control.is_told |= taken.is_ok();
        if let Err(error) = taken {
            self.control.complain(format!("its view is not taken: {error}"));
        }
    }

    /// Asks the controller, the last one of several, for a fail-over. Returns false where none is
    /// connected.
    pub(crate) fn ask_control(&mut self, number: u64, to: Option<ReplicaId>) -> bool {
        let Some(place) = self.newest_control() else { return false };
        self.send_control(place, &ControlMessage::Ask { number, to });
        true
    }

    /// The connection of the last one of several controllers.
    pub(crate) fn newest_control(&self) -> Option<usize> {
        let places = (0..CONTROLS_MAX).filter(|place| self.control.links[*place].is_some());
        let epoch = |place: &usize| self.control.links[*place].as_ref().map(|link| link.epoch);
        places.max_by_key(epoch)
    }

    /// Connections over which all was sent.
    pub(crate) fn idle_controls(&self) -> impl Iterator<Item = usize> + use<> {
        let is_idle = |link: &Option<Link>| link.as_ref().is_some_and(Link::is_sent);
        let idle: [bool; CONTROLS_MAX] = std::array::from_fn(|at| is_idle(&self.control.links[at]));
        (0..CONTROLS_MAX).filter(move |place| idle[*place])
    }

    /// Sends a message behind what is being sent.
    pub(crate) fn send_control(&mut self, place: usize, message: &ControlMessage) {
        let Some(link) = &mut self.control.links[place] else { return };
        link.out.0.drain(..link.out.1);
        link.out.1 = 0;
        link.out.0.extend(message.encode());
        if let Err(error) = link.flush() {
            self.end_control(place, &error.to_string());
        }
    }

    /// The replica is closed, to be opened again: controllers are told at once.
    pub(crate) fn close_control(&mut self) {
        self.control.closed_ms = Some(self.clock.running_us() / 1_000);
        self.control.facts.close();
        self.control.links.iter_mut().flatten().for_each(|link| link.due_ms = 0);
        self.serve_control();
    }

    /// The replica is open again.
    pub(crate) fn open_control(&mut self) {
        self.control.closed_ms = None;
        if !self.control.is_told {
            self.replica.node.borrow_mut().await_word();
        }
        let epoch = self.control.epoch;
        if let Some(view) = self.control.told.take() {
            self.take_tell(epoch, view);
        }
    }

    /// Reads on where a controller has sent more than it may in one turn, and reports what is due.
    /// To be called once a turn, also while the replica is closed.
    pub(crate) fn serve_control(&mut self) {
        if !self.control.has_links() {
            return;
        }
        for place in 0..CONTROLS_MAX {
            let link = self.control.links[place].as_mut();
            if link.is_some_and(|link| std::mem::take(&mut link.has_more)) {
                self.read_control(place);
            }
        }
        let now_ms = self.clock.running_us() / 1_000;
        let is_news = self.is_open() && self.look_at_node();
        let is_silent = |since_ms: u64| now_ms.saturating_sub(since_ms) > REOPENING_MAX_MS;
        if self.control.closed_ms.is_some_and(is_silent) {
            return;
        }
        let mut bytes = None;
        for place in 0..CONTROLS_MAX {
            let Some(link) = &mut self.control.links[place] else { continue };
            if is_news {
                link.due_ms = 0;
            }
            if link.is_sent() && link.due_ms <= now_ms {
                let bytes = bytes.get_or_insert_with(|| self.encoded_report(now_ms));
                let Some(link) = &mut self.control.links[place] else { continue };
                link.out = (bytes.clone(), 0);
                link.due_ms = now_ms + Patience::default().report_ms;
            }
            let Some(link) = &mut self.control.links[place] else { continue };
            if let Err(error) = link.flush() {
                self.end_control(place, &error.to_string());
            }
        }
    }

    /// Looks at the node for what is to be reported. Returns whether that has changed.
    fn look_at_node(&mut self) -> bool {
        let node = self.replica.node.borrow();
        // One that ends says what it was; it is closed in this turn.
        if node.is_reopening() || self.control.facts.is_of(&node) {
            return false;
        }
        self.control.facts = Facts::of(&node, self.replica.parts.pool_id, &self.control.home);
        true
    }

    fn encoded_report(&mut self, now_ms: u64) -> Vec<u8> {
        let probe = match self.control.probe.state() {
            Probe::Well if self.is_full(now_ms) => Probe::Full,
            probe => probe,
        };
        let mut report = self.control.report(self.group, probe);
        if self.is_open() {
            let node = self.replica.node.borrow();
            report.unheard = node.unheard(UNHEARD_MS);
            report.is_whole = node.is_whole();
            report.filling = node.fill_status().as_ref().map(filling);
            drop(node);
            report.vitals = Some(self.vitals(now_ms));
        }
        ControlMessage::Report(report).encode()
    }

    /// The word on the load, gathered anew where that is old.
    fn vitals(&mut self, now_ms: u64) -> Vitals {
        if let Some((since_ms, vitals)) = &self.control.vitals
            && now_ms.saturating_sub(*since_ms) < VITALS_EVERY_MS
        {
            return vitals.clone();
        }
        let vitals = crate::vitals::of(self);
        self.control.vitals = Some((now_ms, vitals.clone()));
        vitals
    }

    /// Whether it is this replica's pool that holds up writes.
    fn is_full(&mut self, now_ms: u64) -> bool {
        if !self.is_open() {
            return false;
        }
        let node = self.replica.node.borrow();
        if !node.is_short_of_room() {
            self.control.short_ms = None;
            return false;
        }
        let since_ms = *self.control.short_ms.get_or_insert(now_ms);
        let is_refusing = matches!(node.write_gate(), WriteGate::Full { .. });
        is_refusing || now_ms.saturating_sub(since_ms) > SHORT_MAX_MS
    }
}

/// The progress of a filling as controllers hear it.
fn filling(status: &FillStatus) -> Filling {
    let step = match status.step {
        FillStep::Asking => FillingStep::Asking,
        FillStep::Copying => FillingStep::Copying,
        FillStep::Installing => FillingStep::Installing,
        FillStep::FollowingLog => FillingStep::FollowingLog,
    };
    let FillStatus { bytes, bytes_done, bytes_per_s, .. } = *status;
    Filling { step, bytes, bytes_done, bytes_per_s }
}

/// Whether somebody who connects under this number is a controller.
pub(crate) fn is_controller(from: ReplicaId) -> bool {
    from == gabion_control::wire::CONTROLLER
}

#[cfg(test)]
mod tests;

//! The protocol of a replica that its group's newest view leaves out, or that has heard of no view
//! yet. It appends, serves and acknowledges nothing, and keeps what it has, until a view has it.
//!
//! ```text
//!   member of a newer view ─► View ─► Action::View
//!   member of an older one ─► any frame ─► answered with this view, once in each connection
//! ```

use crate::frame::{VERSION, VERSION_MIN};
use crate::message::{MemberState, Watermarks};
use crate::protocol::Protocol;
use crate::{
    Action, Config, Frame, GroupView, LocalState, MemberStatus, Message, Progress, Spans, Whole,
};
use alloc::collections::{BTreeMap, VecDeque};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use bytes::Bytes;
use gabion_base::{ConfigNumber, Error, Frontier, LogPosition, ReplicaId, Result, ShardId, Term};

/// A connection with a replica that may be a member.
struct Link {
    connection: u64,
    /// It was told the view that is known here.
    is_told: bool,
    last_heard_ms: u64,
}

/// A replica without a place in its group.
pub struct LeftOut {
    me: ReplicaId,
    view: GroupView,
    now_ms: u64,
    /// Its account of itself, which hardly changes.
    state: MemberState,
    term: Term,
    marks: Watermarks,
    reason: String,
    links: BTreeMap<ReplicaId, Link>,
    next_ticket: u64,
    actions: VecDeque<Action>,
}

impl LeftOut {
    /// The protocol of a replica that begins with this state.
    ///
    /// # Errors
    /// Invalid input for a configuration that cannot work, or in which this replica is a member.
    pub fn new(config: Config, state: LocalState, now_ms: u64) -> Result<Self> {
        config.check()?;
        let Config { view, me, .. } = config;
        if view.config > ConfigNumber::ZERO && view.place_of(me).is_some() {
            return Err(Error::invalid(format!(
                "replica {} is a member in configuration {}",
                me.get(),
                view.config.get()
            )));
        }
        let reason = match view.config {
            ConfigNumber::ZERO => "this replica has heard of no view of its group yet".into(),
            config => format!(
                "this replica is no member of its group's newest view, configuration {}",
                config.get()
            ),
        };
        let spans = state.spans.clipped(state.progress.end.only());
        let account = MemberState {
            versions: (VERSION_MIN, VERSION),
            incarnation: state.incarnation,
            session: state.session,
            oldest: state.oldest,
            last_crc: state.last_crc,
            progress: Progress { end: Frontier::of(spans.tip().1), ..state.progress },
            spans,
            lost: state.lost,
            gap: state.gap,
        };
        let mut actions = VecDeque::new();
        actions.push_back(Action::NotReady { reason: reason.clone() });
        Ok(Self {
            me,
            view,
            now_ms,
            state: account,
            term: state.term,
            marks: state.marks,
            reason,
            links: BTreeMap::new(),
            next_ticket: state.next_ticket,
            actions,
        })
    }

    fn push(&mut self, to: ReplicaId, message: Message) {
        let Some(link) = self.links.get(&to) else { return };
        let frame = Frame {
            group: self.view.group,
            shard: ShardId::ZERO,
            config: self.view.config,
            term: self.term,
            from: self.me,
            to,
            connection: link.connection,
            message,
        };
        self.actions.push_back(Action::Send { frame });
    }

    /// A replica tells the view that runs at it.
    fn view_from(&mut self, peer: ReplicaId, view: GroupView) -> Result<()> {
        if view.config == self.view.config && view.members != self.view.members {
            return Err(Error::invalid(format!(
                "replica {} tells configuration {} with other members than are known here",
                peer.get(),
                view.config
            )));
        }
        if view.config > self.view.config {
            self.actions.push_back(Action::View { view });
        }
        Ok(())
    }
}

impl Protocol for LeftOut {
    fn begin_at(&mut self, now_ms: u64) {
        self.now_ms = now_ms;
    }

    fn handle_connected(&mut self, peer: ReplicaId, connection: u64, now_ms: u64) {
        self.now_ms = self.now_ms.max(now_ms);
        let link = Link { connection, is_told: false, last_heard_ms: self.now_ms };
        self.links.insert(peer, link);
        // A member of a newer view that has this replica answers with that view.
        self.push(peer, Message::Hello(self.state.clone()));
    }

    fn handle_disconnected(&mut self, peer: ReplicaId, connection: u64, now_ms: u64) {
        self.now_ms = self.now_ms.max(now_ms);
        if self.links.get(&peer).is_some_and(|link| link.connection == connection) {
            self.links.remove(&peer);
        }
    }

    fn handle_message(
        &mut self,
        peer: ReplicaId,
        connection: u64,
        frame: Frame,
        now_ms: u64,
    ) -> Result<()> {
        self.now_ms = self.now_ms.max(now_ms);
        let is_ours = frame.group == self.view.group && Frontier::has(frame.shard);
        if !is_ours || frame.from != peer || frame.to != self.me {
            return Err(Error::invalid(format!(
                "frame for {} from {} to {} arrived at {} of {} from {peer}",
                frame.group, frame.from, frame.to, self.me, self.view.group
            )));
        }
        let now_ms = self.now_ms;
        let Some(link) = self.links.get_mut(&peer) else { return Ok(()) };
        if link.connection != connection {
            return Ok(());
        }
        link.last_heard_ms = now_ms;
        if let Message::View(view) = frame.message {
            return self.view_from(peer, view);
        }
        let is_old = frame.config < self.view.config;
        if is_old && !core::mem::replace(&mut link.is_told, true) {
            let view = GroupView { term: self.term, ..self.view.clone() };
            self.push(peer, Message::View(view));
        }
        Ok(())
    }

    fn handle_tick(&mut self, now_ms: u64) {
        self.now_ms = self.now_ms.max(now_ms);
    }

    fn pass_lease_time(&mut self, _: u64) {}

    fn stop_promising(&mut self) {}

    /// Of a term that the protocol of the view before asked for, and that counts no more.
    fn handle_term_adopted(&mut self, _: ShardId, _: Term) {}

    fn handle_appended(&mut self, _: ShardId, _: &[Bytes], _: u32) {
        panic!("replica {} is left out and appends nothing", self.me.get());
    }

    /// Of records that came in the view before.
    fn handle_placed(&mut self, _: ShardId, _: LogPosition, _: u32) {}

    fn handle_rejected(&mut self, _: ShardId, _: LogPosition, _: u32, _: &Error) {}

    fn handle_durable(&mut self, durable: Frontier) {
        let progress = &mut self.state.progress;
        progress.durable = progress.durable.join(durable.meet(progress.end));
    }

    fn handle_edit_applied(&mut self, edit: u64, flushed: Frontier) {
        let progress = &mut self.state.progress;
        progress.edit = progress.edit.max(edit);
        progress.flushed = progress.flushed.join(flushed);
    }

    fn handle_trimmed(&mut self, oldest: Frontier) {
        self.state.oldest = self.state.oldest.max(oldest.only());
        self.state.spans.trim(oldest.only(), self.state.progress.end.only());
    }

    fn handle_log_read(&mut self, _: u64, _: Result<Vec<Bytes>>) {}

    fn send(&mut self, to: ReplicaId, _: Message) -> Result<()> {
        Err(Error::unavailable(format!(
            "replica {} is not sent anything: {}",
            to.get(),
            self.reason
        )))
    }

    fn set_gap(&mut self, gap: Option<Term>) {
        self.state.gap = gap;
    }

    fn poll(&mut self, now_ms: u64) -> Option<Action> {
        self.now_ms = self.now_ms.max(now_ms);
        self.actions.pop_front()
    }

    fn term(&self) -> Term {
        self.term
    }

    fn is_joined(&self) -> bool {
        false
    }

    fn has_caught_up(&self) -> bool {
        false
    }

    fn is_ready(&self) -> bool {
        false
    }

    fn may_append(&self) -> bool {
        false
    }

    fn not_ready_reason(&self) -> Option<&str> {
        Some(&self.reason)
    }

    fn is_readable(&self) -> bool {
        false
    }

    fn holds_lease(&self) -> bool {
        false
    }

    fn promised_until_ms(&self, _: ReplicaId) -> u64 {
        0
    }

    fn is_connected(&self, _: ReplicaId) -> bool {
        false
    }

    fn watermarks(&self) -> &Watermarks {
        &self.marks
    }

    fn progress(&self) -> Progress {
        self.state.progress
    }

    fn spans(&self) -> &Spans {
        &self.state.spans
    }

    fn source(&self) -> Option<ReplicaId> {
        None
    }

    fn whole_member(&self, _: Term) -> Whole {
        Whole::Unknown
    }

    fn next_ticket(&self) -> u64 {
        self.next_ticket
    }

    fn members(&self) -> Vec<MemberStatus> {
        let of = |id: ReplicaId| MemberStatus {
            id,
            is_connected: self.links.contains_key(&id),
            is_joined: false,
            last_heard_ms: self.links.get(&id).map_or(0, |link| link.last_heard_ms),
            progress: None,
            lag_bytes: 0,
            refused: None,
        };
        self.view.others(self.me).map(of).collect()
    }
}

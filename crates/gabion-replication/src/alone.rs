//! A group of one: the protocol of a replica that has nobody to agree with. Everything that its log
//! has is committed, and each start begins a term.

use crate::message::Watermarks;
use crate::protocol::{AWAITS_WORD, Protocol};
use crate::{Action, Config, Frame, LocalState, MemberStatus, Message, Progress, Spans, Whole};
use alloc::collections::VecDeque;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use bytes::Bytes;
use gabion_base::{Error, Frontier, LogPosition, ReplicaId, Result, ShardId, Term};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// No term was chosen in the life of this protocol.
    Starting,
    /// The node makes this term durable.
    Adopting(Term),
    /// The term runs.
    Runs,
}

/// The only member of a group.
pub struct Alone {
    config: Config,
    now_ms: u64,
    term: Term,
    spans: Spans,
    progress: Progress,
    marks: Watermarks,
    phase: Phase,
    /// See [`Protocol::await_word`].
    awaits_word: bool,
    /// Why no term may begin: the log lacks records that were durable.
    blocked: Option<String>,
    /// Why no writes are taken in this view, though the term runs.
    too_few: Option<String>,
    next_ticket: u64,
    actions: VecDeque<Action>,
}

impl Alone {
    /// The protocol of a replica that begins with this state.
    ///
    /// # Errors
    /// Invalid input for a configuration that cannot work.
    pub fn new(config: Config, state: LocalState, now_ms: u64) -> Result<Self> {
        config.validate()?;
        let LocalState { term, spans, progress, marks, next_ticket, .. } = state;
        let spans = spans.clipped(progress.end.only());
        if spans.tip().0 > term {
            return Err(Error::corruption(format!(
                "a log with records of {}, at a replica in {term}",
                spans.tip().0
            )));
        }
        let lost = state.lost.filter(|lost| spans.tip() < lost.tip());
        let lost: Vec<_> = lost.into_iter().map(|lost| (config.me, lost)).collect();
        let blocked = config.reason_of_loss(&lost);
        let not_ready = blocked.clone().map(|reason| Action::NotReady { reason });
        let (phase, actions) = (Phase::Starting, not_ready.into_iter().collect());
        let too_few = config.view.too_few();
        Ok(Self {
            config,
            now_ms,
            term,
            spans,
            progress,
            marks,
            phase,
            awaits_word: false,
            blocked,
            too_few,
            next_ticket,
            actions,
        })
    }

    /// Chooses the term of this life.
    fn begin_term(&mut self) {
        let term = self.config.next_term(self.term.max(self.spans.tip().0));
        let (spans, end) = self.spans.with_term(term, self.progress.end.only());
        self.spans = spans.clone();
        self.progress.end = Frontier::of(end);
        self.phase = Phase::Adopting(term);
        self.actions.push_back(Action::AdoptTerm { shard: ShardId::ZERO, term, spans, end });
    }

    fn invariants(&self) {
        assert!(self.progress.end.covers(&self.progress.durable), "durable beyond the end");
        assert!(self.progress.end.covers(&self.marks.commit), "committed more than there is");
        if self.phase == Phase::Runs {
            assert!(self.spans.tip().0 <= self.term, "records of a later term");
        }
    }
}

impl Protocol for Alone {
    fn begin_at(&mut self, now_ms: u64) {
        self.now_ms = now_ms;
    }

    fn handle_connected(&mut self, _: ReplicaId, _: u64, _: u64) {}

    fn handle_disconnected(&mut self, _: ReplicaId, _: u64, _: u64) {}

    fn handle_message(&mut self, peer: ReplicaId, _: u64, frame: Frame, _: u64) -> Result<()> {
        Err(Error::invalid(format!(
            "message of kind {} from replica {}: replica {} is the only member of {}",
            frame.message.kind(),
            peer.get(),
            self.config.me.get(),
            frame.group
        )))
    }

    fn handle_tick(&mut self, now_ms: u64) {
        self.now_ms = self.now_ms.max(now_ms);
    }

    fn pass_lease_time(&mut self, _: u64) {}

    fn stop_promising(&mut self) {}

    fn await_word(&mut self) {
        self.awaits_word = true;
    }

    fn hear_word(&mut self) {
        self.awaits_word = false;
    }

    fn handle_term_adopted(&mut self, _: ShardId, term: Term) {
        if self.phase != Phase::Adopting(term) {
            return;
        }
        self.term = term;
        self.phase = Phase::Runs;
        self.actions.push_back(Action::Readable);
        self.actions.push_back(match self.too_few.clone() {
            Some(reason) => Action::NotReady { reason },
            None => Action::Ready,
        });
        self.invariants();
    }

    fn handle_appended(&mut self, _: ShardId, records: &[Bytes], _: u32) {
        assert!(self.phase == Phase::Runs, "appended before the term runs");
        let len = records.iter().map(|record| record.len() as u64).sum::<u64>();
        self.progress.end = Frontier::of(LogPosition(self.progress.end.only().get() + len));
    }

    /// Of records that came in the view before.
    fn handle_placed(&mut self, _: ShardId, _: LogPosition, _: u32) {}

    fn handle_rejected(&mut self, _: ShardId, _: LogPosition, _: u32, _: &Error) {}

    fn handle_durable(&mut self, durable: Frontier) {
        self.progress.durable = self.progress.durable.join(durable.meet(self.progress.end));
    }

    fn handle_edit_applied(&mut self, edit: u64, flushed: Frontier) {
        self.progress.edit = self.progress.edit.max(edit);
        self.progress.flushed = self.progress.flushed.join(flushed);
    }

    fn handle_trimmed(&mut self, oldest: Frontier) {
        self.spans.trim(oldest.only(), self.progress.end.only());
    }

    /// For a member of the view before.
    fn handle_log_read(&mut self, _: u64, _: Result<Vec<Bytes>>) {}

    fn send(&mut self, to: ReplicaId, _: Message) -> Result<()> {
        Err(Error::unavailable(format!("replica {} is not connected", to.get())))
    }

    fn set_gap(&mut self, _: Option<Term>) {}

    fn poll(&mut self, now_ms: u64) -> Option<Action> {
        self.now_ms = self.now_ms.max(now_ms);
        match self.phase {
            Phase::Starting if self.blocked.is_none() && !self.awaits_word => self.begin_term(),
            Phase::Starting => {}
            Phase::Adopting(_) => {}
            Phase::Runs => {
                let least = Progress {
                    flushed: self.progress.flushed.meet(self.progress.durable),
                    ..self.progress
                };
                self.marks = self.marks.join(Watermarks::of(least));
            }
        }
        self.invariants();
        self.actions.pop_front()
    }

    fn term(&self) -> Term {
        self.term
    }

    fn is_joined(&self) -> bool {
        self.phase == Phase::Runs
    }

    fn has_caught_up(&self) -> bool {
        self.is_joined()
    }

    fn is_ready(&self) -> bool {
        self.is_joined() && self.too_few.is_none()
    }

    fn may_append(&self) -> bool {
        self.is_joined()
    }

    fn not_ready_reason(&self) -> Option<&str> {
        let reason = self.blocked.as_deref().or(self.too_few.as_deref());
        let reason = reason.or(self.awaits_word.then_some(AWAITS_WORD));
        reason.or_else(|| (!self.is_joined()).then_some("the replica is starting"))
    }

    fn is_readable(&self) -> bool {
        self.is_joined()
    }

    fn holds_lease(&self) -> bool {
        true
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
        self.progress
    }

    fn spans(&self) -> &Spans {
        &self.spans
    }

    fn source(&self) -> Option<ReplicaId> {
        None
    }

    fn whole_member(&self, _: Term) -> Whole {
        Whole::Nobody
    }

    fn next_ticket(&self) -> u64 {
        self.next_ticket
    }

    fn members(&self) -> Vec<MemberStatus> {
        alloc::vec![MemberStatus {
            id: self.config.me,
            is_connected: true,
            is_joined: self.is_joined(),
            last_heard_ms: self.now_ms,
            progress: Some(self.progress),
            lag_bytes: 0,
            refused: self.blocked.clone(),
        }]
    }
}

//! Between the protocol and the rest: carrying out its actions, and messages from other nodes.

use super::reopen::Cut;
use super::{After, Mutant, Node, Order, Output};
use crate::message::NodeMessage;
use crate::protocol::spans_of;
use crate::work::{ReadLogOrder, Work};
use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use bytes::Bytes;
use gabion_base::{Ends, Error, Failed, LogPosition, ReplicaId, Result, ShardId, Term};
use gabion_log::Resend;
use gabion_replication::{Action, GroupView, Message, Spans};

impl Node {
    /// Carries out the actions of the protocol.
    pub(super) fn pump_protocol(&mut self) {
        while let Some(action) = self.held.take().or_else(|| self.protocol.poll(self.now_ms)) {
            if self.is_for_log_to_come(&action) {
                continue;
            }
            let cuts = matches!(
                action,
                Action::AdoptTerm { .. } | Action::Truncate { .. } | Action::Follow { .. }
            );
            let cut = cuts.then(|| self.cut_by(&action)).flatten();
            if let Some(cut) = cut.filter(|_| !self.has(Mutant::PhantomsKept)) {
                // Before anything looks at what the group has committed in the other log.
                return self.begin_reopening(cut);
            }
            let fills = matches!(action, Action::Place { .. });
            if (cuts && self.is_draining()) || (fills && self.awaits_note()) {
                // A log is not cut under a drain, and no later action overtakes this one.
                self.held = Some(action);
                return;
            }
            if cuts {
                self.cut_marks();
            }
            if !matches!(action, Action::Send { .. } | Action::Disconnect { .. }) {
                // It may make anything possible.
                self.due.mark_every();
            }
            match action {
                Action::Send { frame } => self.outputs.push_back(Output::Send { frame }),
                Action::Disconnect { peer, connection, reason } => {
                    self.outputs.push_back(Output::Disconnect {
                        peer,
                        connection: Some(connection),
                        reason: Error::unavailable(reason),
                    });
                }
                Action::SendLog { shard: _, to: _, ticket, from, until, bytes_max, check } => {
                    // `until` is the end of a record, so whole records within the bytes up to it
                    // never pass it.
                    let room = until.get().saturating_sub(from.get()) as usize;
                    self.read_log(ticket, from, bytes_max.min(room), check);
                }
                Action::Fatal { error } => self.fatal(error),
                Action::Place { from, term, bytes, .. } => self.place(from, term, &bytes),
                Action::Truncate { at, .. } => {
                    if let Err(error) = self.log.truncate(at) {
                        self.failed(Failed::Log, error);
                    }
                }
                Action::Follow { spans, .. } => {
                    if let Err(error) = self.follow_unknown(&spans) {
                        self.failed(Failed::Apply, error);
                    }
                }
                Action::AdoptTerm { term, spans, end, .. } => self.adopt_term(term, &spans, end),
                Action::View { view } => self.view_from_member(view),
                Action::VoidGrants { peer } => self.void_grants(peer),
                Action::NeedsCopy { reason } => self.want_copy(reason),
                Action::Ready => self.refused = None,
                Action::NotReady { reason } => self.refused = Some(reason),
                Action::Readable => {
                    self.readable = true;
                    // A bulk load that was read before a restart is applied again before anybody
                    // reads.
                    self.readable_from = self.apply.last_load().unwrap_or_default();
                }
                Action::Deliver { from, term: _, message } => self.deliver(from, message),
            }
        }
    }

    /// Ends this node for a log that is cut below what is applied, if there can be a next one.
    fn begin_reopening(&mut self, cut: Cut) {
        let error = self.judge_cut(&cut);
        if Failed::Cut.ends(&error) != Ends::Node {
            if self.view.is_member() && !self.view.is_full() && !self.view.is_kept() {
                // It is to be filled: the group goes on, and nothing here counts.
                return self.want_copy(format!("{error}"));
            }
            return self.fatal(error);
        }
        self.cut_marks();
        if self.has(Mutant::CutNotKept) {
            self.end_with(None, error);
            return self.cut_kept();
        }
        self.end_with(Some(cut), error);
        self.stage_state(Some(After::CutKept));
    }

    /// A member has a newer view.
    fn view_from_member(&mut self, view: GroupView) {
        if let Err(error) = self.handle_view(view) {
            let text = format!("a view that a member told is not taken: {error}");
            self.outputs.push_back(Output::Notice(text));
        }
    }

    /// Nothing but a full copy makes this replica a member.
    fn want_copy(&mut self, reason: String) {
        self.copy_wanted = Some(reason.clone());
        self.begin_copy(&reason);
    }

    fn deliver(&mut self, from: ReplicaId, message: Message) {
        let Message::Node { bytes } = message else {
            return self.outputs.push_back(Output::Deliver { from, message });
        };
        match NodeMessage::decode(&bytes) {
            Ok(message) => self.handle_node_message(from, message),
            Err(reason) => {
                self.outputs.push_back(Output::Disconnect { peer: from, connection: None, reason });
            }
        }
    }

    fn handle_node_message(&mut self, from: ReplicaId, message: NodeMessage) {
        let from_head = from == self.view.writer() && self.duties().receive;
        match message {
            NodeMessage::Grant { writer, .. } if writer != self.me => {
                let reason = Error::fenced(alloc::format!("slots that are granted to {writer}"));
                self.outputs.push_back(Output::Disconnect { peer: from, connection: None, reason });
            }
            NodeMessage::Grant { session, pool_id, subsystem, port, region, slots, .. } => {
                let place = (subsystem, port);
                self.handle_grant(from, session, pool_id, place, region, slots);
            }
            NodeMessage::Have { file } => self.handle_have(from, file),
            NodeMessage::Room(spare) => self.room.heard(from, spare),
            NodeMessage::WantState { number, at } => self.handle_want_state(from, (number, at)),
            NodeMessage::State { number, total, at, bytes } => {
                self.handle_state(from, (number, total, at), &bytes);
            }
            NodeMessage::NeedFile { file } if from_head => self.handle_copy_wanted(file),
            NodeMessage::NeedFile { file } => self.handle_need_file(from, file),
            NodeMessage::CopyAt { session, file } => self.handle_copy_at(from, session, file),
            NodeMessage::NoCopy { file } => self.handle_no_copy(from, file),
            NodeMessage::WantGrant { slots } if from_head => self.handle_want_grant(slots),
            NodeMessage::Placement { session, file } if from_head => {
                self.handle_placement(session, file);
            }
            NodeMessage::Discard { files } if from_head => self.handle_discard(&files),
            NodeMessage::KnownSession { session } if from_head => {
                self.handle_known_session(session);
            }
            NodeMessage::WantGrant { .. }
            | NodeMessage::KnownSession { .. }
            | NodeMessage::Placement { .. }
            | NodeMessage::Discard { .. } => {
                let reason = Error::fenced("a member that is not the primary ships files");
                self.outputs.push_back(Output::Disconnect { peer: from, connection: None, reason });
            }
        }
    }

    fn void_grants(&mut self, peer: ReplicaId) {
        self.forget_remote(peer);
        self.room.forget(peer);
        self.repairs_lose(peer);
        self.copies.lose(peer);
        if peer == self.view.writer() {
            self.fill.lose(self.now_ms);
        }
        if peer == self.view.writer() && self.duties().receive {
            self.raise_session();
        }
    }

    /// Adopts a term: durable together with the spans of the log and the end of every older grant.
    fn adopt_term(&mut self, term: Term, spans: &Spans, end: LogPosition) {
        if let Err(error) = self.take_spans(term, spans) {
            return self.failed(
                Failed::Apply,
                error.within(alloc::format!("{term}, which begins at {end}")),
            );
        }
        debug_assert_eq!(self.log.end(), end);
        // The log can be followed after all.
        self.fill.give_up();
        self.state.view.term = term;
        self.state.spans = self.log.spans().to_vec();
        if self.duties().receive {
            self.raise_session();
        }
        if self.duties().append {
            if self.view.has_one_tree() {
                self.give_up_work();
            }
            self.ship.forget_discarded();
        }
        self.grants.orphans_of =
            Some((term, self.log.spans().last().map_or(end, |span| span.start)));
        self.stage_state(Some(After::TermAdopted(term)));
    }

    /// The term is durable here.
    pub(super) fn term_adopted(&mut self, term: Term) {
        self.copy_wanted = None;
        self.protocol.handle_term_adopted(ShardId::ZERO, term);
        let begins = self.duties().append && self.protocol.is_joined();
        self.writing.adopt_term(begins && !self.view.log_is_private());
        // The head ignores a member of an older term, so this one tells its room again.
        self.room.forget_told();
    }

    fn take_spans(&mut self, term: Term, spans: &Spans) -> Result<()> {
        if self.duties().append {
            return self.log.begin_term(term).map(|_| ());
        }
        self.follow(spans)
    }

    /// Follows a log with terms that this head never knew; the result is found again after a kill.
    fn follow_unknown(&mut self, spans: &Spans) -> Result<()> {
        self.follow(spans)?;
        self.state.view.term = self.state.term().max(spans.tip().0);
        self.state.spans = self.log.spans().to_vec();
        self.stage_state(None);
        Ok(())
    }

    /// Makes the log a follower of one with these spans.
    fn follow(&mut self, spans: &Spans) -> Result<()> {
        self.log.adopt_spans(&spans_of(spans)).map(|_| ())
    }

    /// Puts records from a member into the log.
    fn place(&mut self, from: LogPosition, term: Term, bytes: &[Bytes]) {
        self.log_filled(from);
        for part in bytes {
            if let Err(error) = self.log.place(part.clone()) {
                // Records before the bad one are in the log.
                self.apply_records();
                let error = error.within(alloc::format!("records of {term} from {from}"));
                let last = self.log.last();
                return self.protocol.handle_rejected(ShardId::ZERO, last.end, last.crc, &error);
            }
        }
        self.apply_records();
    }

    /// Reads log for a member: from the ring at once, or from segments by a work order. Segments
    /// are checked in any case.
    fn read_log(&mut self, ticket: u64, from: LogPosition, bytes_max: usize, check: bool) {
        let read = self.log.read(from, bytes_max).and_then(|read| match &read {
            Resend::Bytes(bytes) if check => self.log.check(bytes).map(|()| read),
            _ => Ok(read),
        });
        match read {
            Ok(Resend::Bytes(bytes)) => {
                self.protocol.handle_log_read(ticket, Ok(alloc::vec![bytes]));
            }
            Ok(Resend::InSegments(_)) => {
                let files = self.begin_log_read(ticket, from, bytes_max);
                let reader = self.log.segment_reader();
                let order = ReadLogOrder { reader, from, bytes_max, files };
                self.order(Order::ReadLog { ticket }, Work::ReadLog(Box::new(order)));
            }
            Ok(Resend::TooOld) => {
                let error = Error::not_found(alloc::format!("the log from {from} on was trimmed"));
                self.protocol.handle_log_read(ticket, Err(error));
            }
            Err(error) => self.protocol.handle_log_read(ticket, Err(error)),
        }
    }

    pub(super) fn log_read(&mut self, ticket: u64, result: Result<Bytes>) {
        self.end_log_read(ticket);
        self.protocol.handle_log_read(ticket, result.map(|bytes| alloc::vec![bytes]));
    }
}

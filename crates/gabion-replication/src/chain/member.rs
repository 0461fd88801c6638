//! Every member but the head: joins terms, places records, acknowledges.

use super::{Chain, Phase};
use crate::message::{Lease, Message, Watermarks};
use crate::planted::Mutant;
use crate::protocol::Protocol;
use crate::{Action, Spans};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use bytes::Bytes;
use gabion_base::{Error, Frontier, LogPosition, Result, ShardId, Term};

impl Chain {
    /// The head says that a term runs.
    pub(super) fn new_term_from(
        &mut self,
        i: usize,
        term: Term,
        end: LogPosition,
        last_crc: u32,
        marks: Watermarks,
        spans: Spans,
    ) -> Result<()> {
        let is_of_term = spans.as_slice().last().map(|s| s.term) == Some(term);
        // No term runs in a view that waits.
        let may_run = self.peers[i].id == self.head() && !self.config.view.waits();
        if !may_run || !is_of_term {
            return Err(Error::invalid(format!(
                "replica {} announces {term}, which it cannot",
                self.peers[i].id.get()
            )));
        }
        if term < self.latest_term() {
            let is_first = self.peers[i].link.as_ref().is_some_and(|l| l.welcomed.is_none());
            if !self.is_full() && is_first {
                self.refuse_to_follow(format!(
                    "replica {} needs a full copy: it is in {}, the group in {term}",
                    self.config.me.get(),
                    self.latest_term()
                ));
            }
            return Ok(());
        }
        let mine = self.spans.clipped(self.received);
        // The head waits for no more log of a member that is not full: that one cuts what the
        // others do not have.
        if self.is_full() && mine.tip() > spans.clipped(end).tip() {
            // The head chose before this much had come: it must choose again.
            let hello = self.hello();
            self.push(self.head(), hello);
            return Ok(());
        }
        let common = mine.common_end(&spans);
        let keep = spans.after(common);
        let spans = spans.followed_from(&mine, common);
        if let Some(reason) = self.reason_against(&mine, term, common, (end, last_crc), &spans) {
            self.refuse_to_follow(reason);
            return Ok(());
        }
        self.blocked = None;
        if let Some(link) = &mut self.peers[i].link {
            link.welcomed = Some(term);
            link.accepted = None;
        }
        if !self.is_readable {
            self.read_target = Some(end);
        }
        if term > self.latest_term() {
            self.adopt(term, spans, keep, common < mine.tip().1);
        } else if self.phase == Phase::Waiting {
            self.recent.clear();
            self.spans = spans;
            self.received = keep;
            self.progress.end = Frontier::of(keep);
            self.phase = Phase::Joined;
        }
        match &mut self.phase {
            Phase::Adopting { marks: to_come, .. } => *to_come = to_come.join(marks),
            _ => self.marks = self.marks.join(marks),
        }
        Ok(())
    }

    /// How far the own log is the same as one with these spans.
    pub(super) fn common_with(&self, spans: &Spans) -> LogPosition {
        self.spans.clipped(self.received).common_end(spans)
    }

    /// The head has forgotten the log after the end of this one.
    pub(super) fn lacks_trimmed_log(&mut self, oldest: LogPosition) {
        let reason = format!(
            "replica {} needs a full copy: its log ends at {}, the primary's begins at {oldest}",
            self.config.me.get(),
            self.end()
        );
        self.refuse_to_follow(reason);
    }

    /// This member cannot take part: it tells the head.
    fn refuse_to_follow(&mut self, reason: String) {
        self.push(self.head(), Message::Refused { reason: reason.clone() });
        self.cannot_follow(reason);
    }

    /// This member cannot take part. One that is not full asks for a copy; the others go on. A full
    /// one says so, too: its group goes on without it, and then it is filled.
    fn cannot_follow(&mut self, reason: String) {
        let link = self.peer_index(self.head()).and_then(|i| self.peers[i].link.as_mut());
        let is_asked = link.is_some_and(|l| core::mem::replace(&mut l.asked_for_copy, true));
        if !is_asked {
            self.actions.push_back(Action::NeedsCopy { reason: reason.clone() });
        }
        self.blocked = Some(reason);
    }

    /// Why the head's log cannot be followed, if it cannot.
    fn reason_against(
        &self,
        mine: &Spans,
        term: Term,
        common: LogPosition,
        (end, last_crc): (LogPosition, u32),
        spans: &Spans,
    ) -> Option<String> {
        let me = self.config.me.get();
        let is_cut = common < mine.tip().1;
        let needed = self.progress.flushed.only().max(self.marks.commit.only()).min(mine.tip().1);
        // A mark may stand where the next span begins, of which it has nothing.
        if is_cut && (term == self.term || mine.after(common) < needed) {
            return Some(format!(
                "replica {me} needs a full copy: its log agrees with the primary's up to {common} \
                 only and ends at {}",
                mine.tip().1
            ));
        }
        let is_whole = !is_cut && spans.after(common) == end && self.received == self.end();
        if is_whole && last_crc != 0 && self.last_crc != 0 && last_crc != self.last_crc {
            return Some(format!(
                "replica {me} needs a full copy: its last record has checksum {:#010x}, the \
                 primary's {last_crc:#010x}",
                self.last_crc
            ));
        }
        None
    }

    fn adopt(&mut self, term: Term, spans: Spans, keep: LogPosition, is_cut: bool) {
        self.recent.clear();
        self.spans = spans.clone();
        self.received = keep;
        self.progress.end = Frontier::of(keep);
        self.progress.durable = Frontier::of(self.durable().min(keep));
        if is_cut {
            self.last_crc = 0;
        }
        self.phase = Phase::Adopting { term, marks: Watermarks::default() };
        // The node gives up a copy that it has begun, as the log may be followed now.
        let link = self.peer_index(self.head()).and_then(|i| self.peers[i].link.as_mut());
        link.into_iter().for_each(|link| link.asked_for_copy = false);
        self.actions.push_back(Action::AdoptTerm { shard: ShardId::ZERO, term, spans, end: keep });
    }

    /// The log is shorter than the Hello to the head may have said, and the term that the head told
    /// is not adopted. Unless it runs here, the head goes by the Hello: it gets another one.
    pub(super) fn correct_hello(&mut self) {
        let head = self.head();
        let link = self.peer_index(head).and_then(|i| self.peers[i].link.as_ref());
        if link.is_some_and(|link| link.welcomed != Some(self.term)) {
            let hello = self.hello();
            self.push(head, hello);
        }
    }

    /// Tells head and predecessor, once per connection and term, that this member is in the term
    /// and where its log ends; only when that is known, with nothing under way to the log.
    pub(super) fn accept_term(&mut self) {
        let Some(predecessor) = self.predecessor() else { return };
        if self.phase != Phase::Joined || self.received != self.end() {
            return;
        }
        let (head, term) = (self.head(), self.term);
        let (end, durable) = (self.end(), self.durable());
        for i in 0..self.peers.len() {
            let id = self.peers[i].id;
            if id != head && id != predecessor {
                continue;
            }
            let Some(link) = &mut self.peers[i].link else { continue };
            let is_due = if id == head { link.welcomed == Some(term) } else { true };
            if !is_due || link.accepted == Some(term) {
                continue;
            }
            link.accepted = Some(term);
            (link.told_end, link.told_durable) = (end, durable);
            let (last_crc, progress) = (self.last_crc, self.told());
            self.push(id, Message::TermAccepted { last_crc, progress });
        }
    }

    /// Records from the predecessor, which `place` will put into the log.
    pub(super) fn records_from(
        &mut self,
        i: usize,
        term: Term,
        marks: Watermarks,
        place: Action,
    ) -> Result<()> {
        let is_predecessor = Some(self.peers[i].id) == self.predecessor();
        let is_attached = self.peers[i].link.as_ref().is_some_and(|l| l.accepted == Some(term));
        if !is_predecessor || !is_attached || term != self.term || self.phase != Phase::Joined {
            return Ok(());
        }
        let Action::Place { from, term, bytes, .. } = place else { return Ok(()) };
        self.take_records(i, from, term, bytes)?;
        self.marks = self.marks.join(marks);
        Ok(())
    }

    /// Hands records that continue the log to the node.
    pub(super) fn take_records(
        &mut self,
        i: usize,
        from: LogPosition,
        term: Term,
        bytes: Vec<Bytes>,
    ) -> Result<()> {
        let len = bytes.iter().map(|b| b.len() as u64).sum::<u64>();
        let end = from.get().checked_add(len).map(LogPosition);
        let span = self.spans.at(from);
        let fits = span.zip(end).is_some_and(|(s, end)| s.term == term && end <= s.end);
        if from != self.received || !fits || len == 0 || !len.is_multiple_of(8) {
            return Err(Error::corruption(format!(
                "replica {} sends {len} bytes of log at {from} in {term}, expected at {}",
                self.peers[i].id.get(),
                self.received
            )));
        }
        self.received = self.spans.after(end.unwrap_or(from));
        if self.planted.has(Mutant::AckBeforePlaced) {
            self.ack_due = true;
        }
        self.pass_on(from, term, bytes.clone());
        self.actions.push_back(Action::Place { shard: ShardId::ZERO, from, term, bytes });
        Ok(())
    }

    /// One acknowledgement for all that happened since the last poll.
    pub(super) fn send_acks(&mut self) {
        if !self.ack_due || self.phase != Phase::Joined {
            return;
        }
        self.ack_due = false;
        let Some(predecessor) = self.predecessor() else { return };
        let (head, term) = (self.head(), self.term);
        let mut progress = self.told();
        if self.planted.has(Mutant::AckBeforePlaced) {
            progress.end = Frontier::of(self.received);
        }
        for i in 0..self.peers.len() {
            let id = self.peers[i].id;
            let Some(link) = &mut self.peers[i].link else { continue };
            // The end moves the predecessor's window. So does `durable` where the ring was full,
            // but not each of its steps is worth a message.
            let more_durable =
                progress.durable.only().get().saturating_sub(link.told_durable.get());
            let has_moved =
                link.told_end != progress.end.only() || more_durable >= self.config.ring_len / 8;
            if (id == head || (id == predecessor && has_moved)) && link.accepted == Some(term) {
                (link.told_end, link.told_durable) = (progress.end.only(), progress.durable.only());
                self.push(id, Message::Ack(progress, Lease::default()));
            }
        }
    }

    /// Head or predecessor say what holds at every member.
    pub(super) fn learn_marks(&mut self, i: usize, term: Term, marks: Watermarks) {
        let id = self.peers[i].id;
        if id == self.head() {
            self.heard_commit = self.heard_commit.join(marks.commit);
        }
        let is_source = self.index != 0 && (id == self.head() || Some(id) == self.predecessor());
        if is_source && term == self.term && self.phase == Phase::Joined {
            self.marks = self.marks.join(marks);
        }
    }

    pub(super) fn refused_by(&mut self, i: usize, reason: String) {
        if self.index == 0 {
            if let Some(link) = &mut self.peers[i].link {
                link.refused = Some(reason);
            }
            return;
        }
        if self.peers[i].id != self.head() {
            self.push(self.head(), Message::Refused { reason: reason.clone() });
        }
        // Before the term runs the group itself cannot begin.
        let is_of_term = self.peers[i].link.as_ref().is_some_and(|l| l.accepted == Some(self.term));
        if is_of_term {
            self.cannot_follow(reason);
        } else {
            self.blocked = Some(reason);
        }
    }

    /// The tail may answer reads once it has all records acknowledged before it (re)joined: a head
    /// that is the only full member has them. If the view waits for others, nothing that it lacks
    /// can come, nor may it have more.
    pub(super) fn become_readable(&mut self) {
        let (is_tail, is_head) = (self.is_reader(), self.index == 0);
        let is_early = self.planted.has(Mutant::ReadableAtOnce);
        if self.is_readable || !is_tail {
            return;
        }
        let is_joined = self.phase == Phase::Joined;
        let has_all = is_head || self.read_target.is_some_and(|t| self.end() >= t);
        let is_survivor = self.is_whole && self.waits_with_all();
        if is_early || is_survivor || (is_joined && has_all) {
            self.is_readable = true;
            self.actions.push_back(Action::Readable);
        }
    }
}

//! Sending log: the streams to the next in the chain, or to those that are not full, and answers to
//! a head that pulls.

use super::peer::{Pull, Read, Stream};
use super::recent::Ready;
use super::{Chain, Phase};
use crate::Action;
use crate::message::{Message, Progress};
use crate::planted::Mutant;
use alloc::format;
use alloc::vec::Vec;
use bytes::Bytes;
use gabion_base::units::MIB;
use gabion_base::{Ends, Error, Failed, LogPosition, ReplicaId, Result, Term};

/// The next step of a stream.
enum Step {
    Send { to: ReplicaId, ready: Ready },
    Read(Action),
    Refuse { i: usize, from: LogPosition },
}

/// Bytes of log in one message, unless a record is longer: so many that a system call costs little
/// for each.
const SEND_BYTES_MAX: u64 = MIB;

impl Chain {
    /// A receiver is so far in `term`: stream from the end of its log once that term runs here.
    pub(super) fn attach(&mut self, i: usize, term: Term, progress: &Progress) {
        if !self.sends_to(self.peers[i].id) || term < self.term {
            return;
        }
        assert!(self.is_full(), "a member that is not full sends nobody its log");
        if let Some(link) = &mut self.peers[i].link {
            let (end, durable) = (progress.end.only(), progress.durable.only());
            let (next, acked) = (end, end);
            link.stream =
                Some(Stream { term, next, acked, durable, is_sound: false, reading: None });
        }
    }

    /// A receiver has, and has made durable, so much: the window of its stream and its ring have
    /// room again.
    pub(super) fn note_room(&mut self, i: usize, term: Term, progress: &Progress) {
        let stream = self.peers[i].link.as_mut().and_then(|link| link.stream.as_mut());
        if let Some(stream) = stream.filter(|stream| stream.term == term) {
            stream.acked = stream.acked.max(progress.end.only());
            stream.durable = stream.durable.max(progress.durable.only());
        }
    }

    /// Sends the next records of each stream while its window is open and the receiver's ring has
    /// room. A successor with a slow disk thus holds the others back, and never has to refuse
    /// records (docs/faults.md E15, R14). Records that have just come go on as they are; the node
    /// reads older ones.
    pub(super) fn read_streams(&mut self) {
        if self.phase != Phase::Joined {
            return;
        }
        for i in 0..self.peers.len() {
            if self.sends_to(self.peers[i].id) {
                self.read_stream(i);
            }
        }
    }

    fn read_stream(&mut self, i: usize) {
        while let Some(step) = self.next_of_stream(i) {
            match step {
                Step::Send { to, ready } => {
                    let (marks, bytes) = (self.marks, self.planted_gap(to, &ready));
                    let Ready { from, term, .. } = ready;
                    self.push(to, Message::Records { from, term, marks, bytes });
                }
                Step::Refuse { i, from } => return self.refuse_log(i, from),
                Step::Read(action) => return self.actions.push_back(action),
            }
        }
    }

    /// The next step of a receiver's stream, if any.
    fn next_of_stream(&mut self, i: usize) -> Option<Step> {
        let (to, end, window) = (self.peers[i].id, self.end(), self.config.window_bytes);
        let takes_recent = self.receives_recent() == Some(to);
        let link = self.peers[i].link.as_mut()?;
        let stream = link.stream.as_mut().filter(|s| s.term == self.term)?;
        if stream.reading.is_some() || link.is_closing {
            return None;
        }
        // Before anything else: the next record that is left may lie beyond the window and the
        // ring, which would then be waited for in vain.
        let (sent, from) = (stream.next, self.spans.after(stream.next));
        if from < self.oldest || self.spans.forgot_after(sent, self.oldest) {
            return Some(Step::Refuse { i, from: sent });
        }
        stream.next = from;
        let unacked = from.get().saturating_sub(stream.acked.get());
        let ring_ends = self.config.ring_ends(stream.durable);
        if from >= end || unacked >= window || from >= ring_ends {
            return None;
        }
        let room = (window - unacked).min(ring_ends.get() - from.get());
        let span = self.spans.at(from)?;
        let until = span.end.min(end);
        let bytes_max = room.min(SEND_BYTES_MAX);
        if takes_recent && let Some(ready) = self.recent.take(from, until, (bytes_max, room)) {
            stream.next = ready.end;
            return Some(Step::Send { to, ready });
        }
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        let read = Read { ticket, from, until, term: span.term };
        stream.reading = Some(read);
        // The receiver may have found these very bytes bad, and this side may be the cause.
        let check = !core::mem::replace(&mut stream.is_sound, true);
        Some(Step::Read(read.order(to, bytes_max as usize, check)))
    }

    /// The records to send: all of them, but with a planted defect.
    fn planted_gap(&self, to: ReplicaId, ready: &Ready) -> Vec<Bytes> {
        let link = self.peer_index(to).and_then(|i| self.peers[i].link.as_ref());
        let acked = link.and_then(|link| link.stream.as_ref()).map(|stream| stream.acked);
        let skips = self.planted.has(Mutant::ResendSkipsRecord) && acked == Some(ready.from);
        ready.bytes.iter().skip(usize::from(skips)).cloned().collect()
    }

    /// The log at `from` is gone, and this peer needs it.
    fn refuse_log(&mut self, i: usize, from: LogPosition) {
        let to = self.peers[i].id;
        let reason = format!(
            "replica {} needs a full copy: its log ends at {from}, that of replica {} begins at {}",
            to.get(),
            self.config.me.get(),
            self.oldest
        );
        if let Some(link) = &mut self.peers[i].link {
            link.stream = None;
            link.pull = None;
            link.refused = Some(reason.clone());
        }
        self.push(to, Message::Refused { reason });
    }

    /// A head wants log from `from`.
    pub(super) fn pull_wanted(&mut self, i: usize, from: LogPosition, bytes_max: u32) {
        if self.peers[i].id != self.head() {
            return;
        }
        if let Some(link) = &mut self.peers[i].link {
            let bytes_max = u64::from(bytes_max).min(SEND_BYTES_MAX) as usize;
            link.pull = Some(Pull { from, bytes_max, reading: None });
        }
    }

    /// Asks the node for the log that the head pulls, as soon as it is there.
    pub(super) fn read_pulls(&mut self) {
        if self.index == 0 || matches!(self.phase, Phase::Adopting { .. }) {
            return;
        }
        let head = self.head();
        let Some(i) = self.peer_index(head) else { return };
        let end = self.end();
        let Some(pull) = self.peers[i].link.as_mut().and_then(|l| l.pull.as_mut()) else { return };
        if pull.reading.is_some() || pull.from >= end {
            return;
        }
        let (from, bytes_max) = (pull.from, pull.bytes_max);
        let Some(span) = self.spans.at(from).filter(|_| from >= self.oldest) else {
            self.refuse_log(i, from);
            return;
        };
        let until = span.end.min(end);
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        let read = Read { ticket, from, until, term: span.term };
        pull.reading = Some(read);
        self.actions.push_back(read.order(head, bytes_max, true));
    }

    /// The node's answer to `SendLog`. Dropped when nobody waits for it any more (the connection
    /// broke, a term began).
    pub(super) fn log_read(&mut self, ticket: u64, records: Result<Vec<Bytes>>) {
        let waits = |read: &Option<Read>| read.is_some_and(|r| r.ticket == ticket);
        for i in 0..self.peers.len() {
            let to = self.peers[i].id;
            let Some(link) = &mut self.peers[i].link else { continue };
            let read = if let Some(stream) = link.stream.as_mut().filter(|s| waits(&s.reading)) {
                stream.reading.take()
            } else if let Some(pull) = link.pull.take_if(|p| waits(&p.reading)) {
                pull.reading
            } else {
                continue;
            };
            let Some(read) = read else { return };
            return match records {
                Ok(bytes) => self.send_records(i, read, bytes),
                Err(e) => {
                    let ends = Failed::LogForPeer.ends(&e);
                    let place = format!("the log at {} for replica {}", read.from, to.get());
                    let error = e.within(place);
                    match ends {
                        Ends::Operation => self.refuse_log(i, read.from),
                        Ends::Connection => self.close_link(i, format!("{error}")),
                        Ends::Node | Ends::Process => {
                            self.actions.push_back(Action::Fatal { error })
                        }
                    }
                }
            };
        }
    }

    fn send_records(&mut self, i: usize, read: Read, mut bytes: Vec<Bytes>) {
        let len = bytes.iter().map(|b| b.len() as u64).sum::<u64>();
        let next = LogPosition(read.from.get().saturating_add(len));
        if len == 0 || next > read.until {
            let error = Error::corruption(format!(
                "a read of the log from {} to {} gave {len} bytes",
                read.from, read.until
            ));
            self.actions.push_back(Action::Fatal { error });
            return;
        }
        // Between a NewTerm and its adoption, and in another term than the receiver's, nothing
        // flows.
        if matches!(self.phase, Phase::Adopting { .. }) {
            return;
        }
        let to = self.peers[i].id;
        if self.sends_to(to) {
            let term = self.term;
            let stream = self.peers[i].link.as_mut().and_then(|l| l.stream.as_mut());
            let Some(stream) = stream.filter(|s| s.term == term && s.next == read.from) else {
                return;
            };
            if self.planted.has(Mutant::ResendSkipsRecord) && stream.acked == read.from {
                bytes.remove(0);
            }
            stream.next = next;
        }
        let marks = self.marks;
        self.push(to, Message::Records { from: read.from, term: read.term, marks, bytes });
    }
}

//! The head: starts terms, counts acknowledgements, decides whether the group accepts writes.

use super::peer::Peer;
use super::{Announced, Chain, Phase};
use crate::Action;
use crate::frame::{VERSION, VERSION_MIN};
use crate::message::{MemberState, Message, Progress, Watermarks};
use crate::planted::Mutant;
use crate::protocol::AWAITS_WORD;
use crate::spans::TERMS;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use bytes::Bytes;
use gabion_base::units::MIB;
use gabion_base::{Error, Frontier, LogPosition, ReplicaId, Result, ShardId, Term};

/// Bytes of log asked for at once.
const PULL_BYTES_MAX: u32 = MIB as u32;

/// Whether writes are accepted.
enum Readiness {
    Ready,
    /// No reason to stop, but none to begin either.
    Settling(String),
    NotReady(String),
}

impl Chain {
    pub(super) fn hello_from(&mut self, i: usize, term: Term, state: MemberState) -> Result<()> {
        let furthest = self.config.position_max();
        let is_sane = term.get() < TERMS.end
            && state.progress.end.only() <= furthest
            && state.lost.is_none_or(|lost| {
                TERMS.contains(&lost.term.get()) && lost.from <= lost.to && lost.to <= furthest
            });
        if state.spans.tip().1 != state.progress.end.only() || !is_sane {
            return Err(Error::corruption(format!(
                "Hello of replica {} in {term} with a log that ends at {}, its last span at {}, and \
                 lost {:?}",
                self.peers[i].id.get(),
                state.progress.end.only(),
                state.spans.tip().1,
                state.lost
            )));
        }
        let (lowest, highest) = state.versions;
        if lowest > VERSION || highest < VERSION_MIN {
            return Err(Error::unsupported(format!(
                "replica {} speaks versions {lowest} to {highest}, this build {VERSION_MIN} to \
                 {VERSION}",
                self.peers[i].id.get()
            )));
        }
        let peer = &mut self.peers[i];
        peer.progress = Some(state.progress);
        let Some(link) = peer.link.as_mut() else { return Ok(()) };
        let tip = state.known_tip();
        link.hello = Some((term, state));
        link.joined = None;
        link.refused = None;
        let is_full = peer.is_full;
        if self.index != 0 {
            return Ok(());
        }
        match self.phase {
            Phase::Joined if is_full && (term > self.term || tip > self.tip()) => {
                self.phase = Phase::Waiting;
            }
            Phase::Joined => self.welcome(i),
            _ if !is_full => {}
            Phase::Pulling { winner, .. }
                if Some(tip) > self.tip_of(winner) || winner == self.peers[i].id =>
            {
                self.phase = Phase::Waiting;
            }
            _ => {}
        }
        Ok(())
    }

    /// Head: chooses the log that goes on, once every full member has said what it has.
    pub(super) fn begin_term(&mut self) {
        let is_due = self.index == 0 && self.phase == Phase::Waiting;
        if !is_due || self.awaits_word || self.config.view.waits() || self.received != self.end() {
            return;
        }
        let mut best = (self.tip(), None);
        for (i, peer) in self.peers.iter().enumerate().filter(|(_, peer)| peer.is_full) {
            let Some((_, state)) = peer.link.as_ref().and_then(|l| l.hello.as_ref()) else {
                return;
            };
            let is_better = if self.planted.has(Mutant::ShortestLogWins) {
                state.spans.tip() < best.0
            } else {
                state.spans.tip() > best.0
            };
            if is_better && !self.planted.has(Mutant::HeadKeepsItsLog) {
                best = (state.spans.tip(), Some(i));
            }
        }
        if let Some(reason) = self.reason_of_loss(best.0) {
            return self.refuse_to_begin(reason);
        }
        match best.1 {
            None => self.adopt_new_term(),
            Some(winner) => self.pull_from(winner),
        }
    }

    /// Why no term may begin with a log that ends at `best`: some member's log once reached
    /// further, that part was committed, and no member has it any more.
    fn reason_of_loss(&self, best: (Term, LogPosition)) -> Option<String> {
        if self.planted.has(Mutant::LossIgnored) {
            return None;
        }
        let of_peer = |peer: &Peer| Some((peer.id, peer.link.as_ref()?.hello.as_ref()?.1.lost?));
        let mine = self.still_lost().map(|lost| (self.config.me, lost));
        let full = self.peers.iter().filter(|peer| peer.is_full);
        let all = mine.into_iter().chain(full.filter_map(of_peer));
        let lost: Vec<_> = all.filter(|(_, lost)| lost.tip() > best).collect();
        self.config.reason_of_loss(&lost)
    }

    /// Tells every member, once, and waits for a member that comes back with the missing records.
    fn refuse_to_begin(&mut self, reason: String) {
        let is_new = self.blocked.as_ref() != Some(&reason);
        for i in 0..self.peers.len() {
            let Some(link) = &mut self.peers[i].link else { continue };
            if is_new || !link.knows_of_loss {
                link.knows_of_loss = true;
                self.push(self.peers[i].id, Message::Refused { reason: reason.clone() });
            }
        }
        self.blocked = Some(reason);
    }

    fn pull_from(&mut self, i: usize) {
        let winner = self.peers[i].id;
        let Some((_, state)) = self.peers[i].link.as_ref().and_then(|l| l.hello.clone()) else {
            return;
        };
        let mine = self.spans.clipped(self.received);
        let common = mine.common_end(&state.spans);
        let from = state.spans.after(common);
        let needed = self.progress.flushed.only().max(self.marks.commit.only()).min(mine.tip().1);
        let is_forgotten = state.spans.forgot_after(common, state.oldest);
        if is_forgotten || from < state.oldest || mine.after(common) < needed {
            let reason = format!(
                "replica {} (the primary) needs a full copy: its log agrees with that of replica {} \
                 up to {common} only, which begins at {}",
                self.config.me.get(),
                winner.get(),
                state.oldest
            );
            if self.blocked.as_ref() != Some(&reason) {
                self.actions.push_back(Action::NeedsCopy { reason: reason.clone() });
            }
            self.blocked = Some(reason);
            return;
        }
        self.blocked = None;
        let spans = state.spans.followed_from(&mine, common);
        // A term that was adopted here and wrote nothing gives its place to the older one that goes
        // on: the winner was no member when it began.
        let gives_way = spans.tip().0 < self.term;
        if common < mine.tip().1 || gives_way {
            self.actions.push_back(Action::Truncate { shard: ShardId::ZERO, at: common });
        }
        if common < mine.tip().1 {
            self.last_crc = 0;
        }
        if spans.tip().0 > self.term || gives_way {
            self.followed = self.followed.max(spans.tip().0);
            self.actions.push_back(Action::Follow { shard: ShardId::ZERO, spans: spans.clone() });
        }
        self.recent.clear();
        self.spans = spans;
        self.received = from;
        self.progress.end = Frontier::of(from);
        self.progress.durable = Frontier::of(self.durable().min(from));
        self.phase = Phase::Pulling { winner, end: state.progress.end.only(), is_asked: false };
        self.pull_more();
    }

    /// The winner's answer to PullLog.
    pub(super) fn pulled_records(
        &mut self,
        i: usize,
        from: LogPosition,
        term: Term,
        bytes: Vec<Bytes>,
    ) -> Result<()> {
        let Phase::Pulling { winner, .. } = self.phase else { return Ok(()) };
        if winner != self.peers[i].id {
            return Ok(());
        }
        self.take_records(i, from, term, bytes)
    }

    /// Head: the node placed some of the pulled records.
    pub(super) fn after_placed(&mut self) {
        let here = self.end();
        let Phase::Pulling { end, is_asked, .. } = &mut self.phase else { return };
        if here >= *end {
            self.adopt_new_term();
        } else if here == self.received {
            *is_asked = false;
            self.pull_more();
        }
    }

    /// Head: asks for more of what it pulls, once the ring here has room for it.
    pub(super) fn pull_more(&mut self) {
        let (from, limit) = (self.received, self.config.ring_ends(self.durable()));
        let Phase::Pulling { winner, is_asked, .. } = &mut self.phase else { return };
        if *is_asked || from >= limit {
            return;
        }
        *is_asked = true;
        let (winner, room) = (*winner, limit.get() - from.get());
        let bytes_max = u32::try_from(room).unwrap_or(u32::MAX).min(PULL_BYTES_MAX);
        self.push(winner, Message::PullLog { from, bytes_max });
    }

    fn adopt_new_term(&mut self) {
        let hellos = self.peers.iter().filter_map(|p| p.link.as_ref()?.hello.as_ref());
        let terms = hellos.map(|(term, state)| state.spans.tip().0.max(*term));
        let highest = terms.max().unwrap_or_default().max(self.latest_term()).max(self.tip().0);
        let term = self.config.next_term(highest);
        let (spans, start) = self.spans.with_term(term, self.end());
        self.recent.clear();
        self.spans = spans.clone();
        self.progress.end = Frontier::of(start);
        self.received = start;
        self.blocked = None;
        self.phase = Phase::Adopting { term, marks: Watermarks::default() };
        self.actions.push_back(Action::AdoptTerm { shard: ShardId::ZERO, term, spans, end: start });
    }

    /// The term runs here: tells the others, unless one has more log than was known.
    pub(super) fn welcome_all(&mut self) {
        let tip = self.tip();
        let full = self.peers.iter().filter(|peer| peer.is_full);
        let mut hellos = full.filter_map(|p| p.link.as_ref()?.hello.as_ref());
        if hellos.any(|(term, state)| *term > self.term || state.known_tip() > tip) {
            self.phase = Phase::Waiting;
            return;
        }
        for i in 0..self.peers.len() {
            self.welcome(i);
        }
    }

    fn welcome(&mut self, i: usize) {
        let end = self.end();
        let Some(link) = self.peers[i].link.as_mut().filter(|l| l.hello.is_some()) else { return };
        link.joined = None;
        link.target = end;
        let message = Message::NewTerm {
            oldest: self.oldest,
            end,
            last_crc: self.last_crc,
            marks: self.marks,
            spans: self.spans.clone(),
        };
        self.push(self.peers[i].id, message);
    }

    /// A member says that it is in the term; a receiver also asks for the stream with it.
    pub(super) fn term_accepted_by(
        &mut self,
        i: usize,
        term: Term,
        last_crc: u32,
        progress: Progress,
    ) -> Result<()> {
        self.attach(i, term, &progress);
        if self.index != 0 || term != self.term || self.phase != Phase::Joined {
            return Ok(());
        }
        self.check_progress(i, &progress)?;
        let is_whole = progress.end.only() == self.end();
        if is_whole && last_crc != 0 && self.last_crc != 0 && last_crc != self.last_crc {
            let id = self.peers[i].id;
            let reason = format!(
                "replica {} needs a full copy: its last record has checksum {last_crc:#010x}, the \
                 primary's {:#010x}",
                id.get(),
                self.last_crc
            );
            self.push(id, Message::Refused { reason: reason.clone() });
            self.refused_by(i, reason);
            return Ok(());
        }
        let peer = &mut self.peers[i];
        peer.progress = Some(progress);
        if let Some(link) = &mut peer.link {
            link.joined = Some(term);
            link.acked = progress;
            if !peer.is_full {
                peer.acked_ms = self.now_ms;
            }
        }
        Ok(())
    }

    /// Head: notes that every full member is in the term. From then on none has log that a later
    /// term could take over in place of this one's, so the term may have records. One that leaves
    /// after that has adopted the term all the same.
    pub(super) fn note_begun(&mut self) {
        let mut full = self.peers.iter().filter(|peer| peer.is_full);
        let is_in = |peer: &Peer| peer.link.as_ref().is_some_and(|l| l.joined == Some(self.term));
        if self.index == 0 && self.phase == Phase::Joined && full.all(is_in) {
            self.begun = self.term;
        }
    }

    pub(super) fn ack_from(&mut self, i: usize, term: Term, progress: Progress) -> Result<()> {
        let is_any_counted = self.planted.has(Mutant::AckOfOldTerm);
        if (term != self.term && !is_any_counted) || self.phase != Phase::Joined {
            // A receiver may be in a term that this member has yet to adopt, and its log may be
            // durable before: it says that once.
            self.note_room(i, term, &progress);
            return Ok(());
        }
        self.check_progress(i, &progress)?;
        self.note_room(i, term, &progress);
        let peer = &mut self.peers[i];
        peer.progress = Some(progress);
        let Some(link) = &mut peer.link else { return Ok(()) };
        if link.joined == Some(term) || is_any_counted {
            if progress.end.only() > link.acked.end.only() {
                peer.acked_ms = self.now_ms;
            }
            link.acked = link.acked.join(progress);
        }
        Ok(())
    }

    fn check_progress(&self, i: usize, progress: &Progress) -> Result<()> {
        if progress.end.only() > self.end() || progress.durable.only() > progress.end.only() {
            return Err(Error::corruption(format!(
                "replica {} acknowledges the log up to {} ({} of it durable), it ends at {}",
                self.peers[i].id.get(),
                progress.end.only(),
                progress.durable.only(),
                self.end()
            )));
        }
        Ok(())
    }

    /// Head: raises the marks to the least of all full members, while each is in this term. One
    /// that is not full, has joined and acknowledges keeps the log that it needs, and holds nothing
    /// else back.
    pub(super) fn raise_marks(&mut self) {
        if self.index != 0 || self.phase != Phase::Joined {
            return;
        }
        let mut least = self.told();
        let counts_filled = self.planted.has(Mutant::FilledMembersCount);
        for peer in self.peers.iter().filter(|peer| peer.is_full != counts_filled) {
            let Some(link) = peer.link.as_ref().filter(|l| l.joined == Some(self.term)) else {
                return;
            };
            least = if self.planted.has(Mutant::MaxOfAcks) {
                least.join(link.acked)
            } else {
                least.meet(link.acked)
            };
        }
        let filled = self.peers.iter().filter(|peer| !peer.is_full);
        for flushed in filled.filter_map(|peer| self.flushed_while_filled(peer)) {
            least.flushed = least.flushed.meet(flushed);
        }
        if self.planted.has(Mutant::TrimByHeadOnly) {
            least.flushed = self.progress.flushed;
        }
        self.marks = self.marks.join(Watermarks::of(least));
    }

    /// How far a member that is being filled has flushed, if it takes part in the term.
    fn flushed_while_filled(&self, peer: &Peer) -> Option<Frontier> {
        let link = peer.link.as_ref().filter(|link| !link.is_closing)?;
        let acks = self.now_ms - peer.acked_ms < self.config.timeout_ms;
        let holds = link.joined == Some(self.term) && link.refused.is_none() && acks;
        holds.then_some(link.acked.flushed)
    }

    /// Tells the node when the answer to "does the group accept writes?" changes.
    pub(super) fn announce(&mut self) {
        let waits = self.config.view.too_few().filter(|_| self.config.view.waits());
        let readiness = if let Some(reason) = self.blocked.as_ref().or(waits.as_ref()) {
            Readiness::NotReady(reason.clone())
        } else if self.index == 0 {
            self.readiness()
        } else {
            self.readiness_of_head()
        };
        let next = match readiness {
            Readiness::Ready => Announced::Ready,
            Readiness::Settling(_) if self.announced == Announced::Ready => return,
            Readiness::Settling(reason) | Readiness::NotReady(reason) => {
                Announced::NotReady(reason)
            }
        };
        if next == self.announced {
            return;
        }
        self.actions.push_back(match &next {
            Announced::NotReady(reason) => Action::NotReady { reason: reason.clone() },
            _ => Action::Ready,
        });
        self.announced = next;
    }

    fn readiness(&self) -> Readiness {
        if let Some(reason) = self.config.view.too_few() {
            return Readiness::NotReady(reason);
        }
        let mut settling = None;
        for i in (0..self.peers.len()).filter(|i| self.peers[*i].is_full) {
            if let Some(reason) = self.peers[i].link.as_ref().and_then(|l| l.refused.as_ref()) {
                return Readiness::NotReady(reason.clone());
            }
            let Err((what, since_ms)) = self.place_of(i) else { continue };
            let reason = format!("replica {} {what}", self.peers[i].id.get());
            if self.now_ms - since_ms >= self.config.timeout_ms {
                return Readiness::NotReady(reason);
            }
            settling = settling.or(Some(reason));
        }
        match (&self.phase, settling) {
            (Phase::Joined, None) => Readiness::Ready,
            (Phase::Joined, Some(reason)) => Readiness::Settling(reason),
            (Phase::Pulling { winner, .. }, _) => Readiness::NotReady(format!(
                "the group is starting: the primary fetches log from replica {}",
                winner.get()
            )),
            (_, _) => Readiness::NotReady(match self.peers.iter().find(|p| p.is_awaited()) {
                Some(peer) => {
                    format!("the group is starting: waiting for replica {}", peer.id.get())
                }
                None if self.awaits_word => AWAITS_WORD.into(),
                None => "the group is starting".into(),
            }),
        }
    }

    /// Whether a member is where it should be; if not, what is wrong, and since when.
    fn place_of(&self, i: usize) -> Result<(), (&'static str, u64)> {
        let peer = &self.peers[i];
        let since_ms = peer.in_place_ms.min(peer.last_heard_ms);
        let is_silent = self.now_ms - peer.last_heard_ms >= self.config.timeout_ms;
        let Some(link) = peer.link.as_ref().filter(|_| !is_silent) else {
            return Err(("is out; writes are refused until it is back", since_ms));
        };
        if link.joined != Some(self.term) {
            return Err(("has not joined; writes are refused until it has", since_ms));
        }
        if link.acked.end.only() < link.target {
            return Err(("is catching up; writes are refused until it has", since_ms));
        }
        let is_behind = link.acked.end.only() < self.end();
        if is_behind && self.now_ms - peer.acked_ms >= self.config.timeout_ms {
            return Err((
                "does not acknowledge writes; more are refused until it does",
                peer.acked_ms,
            ));
        }
        Ok(())
    }

    /// Head: notes the members in place now, for the day when one is not.
    pub(super) fn note_places(&mut self) {
        if self.index != 0 || self.phase != Phase::Joined {
            return;
        }
        for i in 0..self.peers.len() {
            let acked = self.peers[i].link.as_ref().map(|l| l.acked.end.only());
            if acked == Some(self.end()) {
                self.peers[i].acked_ms = self.now_ms;
            }
            if self.place_of(i).is_ok() {
                self.peers[i].in_place_ms = self.now_ms;
            }
        }
    }

    /// At any other member: whether there is a head to send writes to.
    fn readiness_of_head(&self) -> Readiness {
        let head = self.head();
        let Some(peer) = self.peers.iter().find(|p| p.id == head) else {
            return Readiness::NotReady("the group has no primary".into());
        };
        if self.now_ms - peer.last_heard_ms >= self.config.timeout_ms {
            return Readiness::NotReady(format!(
                "replica {} (the primary) is out; writes are refused until it is back",
                head.get()
            ));
        }
        let is_welcome = peer.link.as_ref().is_some_and(|l| l.welcomed == Some(self.term));
        if is_welcome && self.phase == Phase::Joined {
            return Readiness::Ready;
        }
        Readiness::Settling(format!("waiting for replica {} (the primary)", head.get()))
    }

    pub(super) fn tip(&self) -> (Term, LogPosition) {
        self.spans.clipped(self.received).tip()
    }

    fn tip_of(&self, id: ReplicaId) -> Option<(Term, LogPosition)> {
        let peer = &self.peers[self.peer_index(id)?];
        Some(peer.link.as_ref()?.hello.as_ref()?.1.spans.tip())
    }
}

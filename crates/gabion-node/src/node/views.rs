//! A view takes effect: the one place where members and duties change.
//!
//! ```text
//!   handle_view ─► newer? ─► durable ─► promises ran out ─► in effect: connections end, grants are
//!                                         void, jobs of a duty that went are given up, and the
//!                                         protocol begins anew
//! ```
//!
//! The new protocol begins as after a start of the process, with all that is in memory: it learns
//! the logs of the others, and only then the term of the new writer begins.

use super::facts::facts;
use super::grants::has_old_grants;
use super::{After, Mutant, Node, Output};
use crate::AckLevel;
use crate::protocol::{begin_protocol, local_state};
use crate::view::View;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use gabion_base::{ConfigNumber, Error, Failed, Frontier, LogPosition, ReplicaId, Result};
use gabion_replication::{GroupView, LocalState, Lost, Watermarks};

impl Node {
    /// Takes a view of the group, which takes effect once it is durable here and what this member
    /// has promised about reads has run out: the view before goes on until then. A view that is not
    /// newer than the last that was taken changes nothing. One that leaves this replica out has it
    /// rest until a view has it again.
    ///
    /// # Durability
    /// None when it returns: [`Output::View`] says that the view is durable, and runs.
    ///
    /// # Errors
    /// Invalid input for a view that cannot be, or of another group; for one whose number is known
    /// with other members; fenced for one that means another disk of this replica; unsupported for
    /// another kind of log.
    pub fn handle_view(&mut self, view: GroupView) -> Result<()> {
        let is_ours = view.group == self.state.view.group;
        if is_ours && self.state.is_being_filled() && view.has_full(self.me) {
            self.called_full = self.called_full.max(view.config);
        }
        self.check_view(&view)?;
        if view.config <= self.state.view.config {
            return Ok(());
        }
        self.awaits_word = false;
        self.end_turn_before_event();
        if !self.has(Mutant::PromiseAfterView) {
            self.protocol.stop_promising();
        }
        for holder in self.view.group().members.iter().map(|member| member.replica) {
            self.leasing.end(holder, self.protocol.promised_until_ms(holder));
        }
        // A term is adopted together with the log of its writer, and not by hearsay.
        let (config, term) = (view.config, self.state.term());
        self.state.view = GroupView { term, ..view };
        self.state.view_waits = self.leasing.now_ms().is_some();
        self.stage_state(Some(After::ViewKept(config)));
        Ok(())
    }

    /// The process has just started with this replica, and controllers keep its group. Its disk may
    /// be an older one, put back, and the view on it one that the group has left behind. If that
    /// has other full members, they will say so. If it has none, no term begins here and no reads
    /// are answered before a controller [has told](Self::handle_told) a view. One that no
    /// controller has made is the first, and needs no word. To be called before the first poll.
    pub fn await_word(&mut self) {
        self.awaits_word = !self.has(Mutant::NoWordAwaited);
        self.await_word_if_lone();
    }

    /// As [`Self::handle_view`], of a view that a controller tells: its newest one.
    ///
    /// # Errors
    /// As there; then it is no word about this replica.
    pub fn handle_told(&mut self, view: GroupView) -> Result<()> {
        let is_known = view.config <= self.view.group().config;
        self.handle_view(view)?;
        if is_known {
            self.awaits_word = false;
            self.protocol.hear_word();
        }
        Ok(())
    }

    fn await_word_if_lone(&mut self) {
        let view = self.view.group();
        let is_lone = self.view.is_full() && view.full().count() == 1;
        if self.awaits_word && is_lone && view.config > ConfigNumber(1) {
            self.protocol.await_word();
        }
    }

    /// Tells the clock by which promises about reads are counted, as
    /// [`Protocol::pass_lease_time`](gabion_replication::Protocol::pass_lease_time) says: after
    /// bytes were received, before they are handed in.
    pub fn pass_lease_time(&mut self, lease_ms: u64) {
        self.leasing.pass(lease_ms);
        self.protocol.pass_lease_time(lease_ms);
    }

    /// Whether positions of the log that were to be waited for in the view before stay what they
    /// are. To be asked at [`Output::View`]. They do where this replica took writes in that view
    /// and does so in the next; else nobody can tell what becomes of writes that were not
    /// acknowledged.
    ///
    /// No phantom is acknowledged. Acknowledgements go on only once the new term runs here, and
    /// that begins with the whole log of the winner. Either its own log, up to the end, is a part
    /// of that one. Then a position still is the end of the record that was waited for. Or the log
    /// is cut below its end. Then this node ends before anything of the other log counts
    /// ([`Output::Reopen`]), and [`Self::acknowledged`] is zero from then on.
    #[must_use]
    pub const fn keeps_turns(&self) -> bool {
        self.keeps_turns
    }

    /// Whether this replica may answer from its state alone, as no other view is in effect at the
    /// time that was passed last.
    #[must_use]
    pub fn holds_lease(&self) -> bool {
        self.protocol.holds_lease() || self.has(Mutant::ReadsWithoutPromise)
    }

    /// The newest view that is durable here, for reports; none where none was heard of. A full
    /// member that would need a full copy has none either: its disk is not the one that the view
    /// means, so the group has to go on without it before it can be filled. So it is with a member
    /// that is being filled and was called full: it had the whole log when it said so, and its log
    /// was trimmed past that before the view came.
    #[must_use]
    pub fn view_told(&self) -> Option<&GroupView> {
        let is_another_disk = self.view.is_full() && self.needs_copy().is_some();
        let known = self.state.view.config;
        let has_view = known > ConfigNumber::ZERO && self.called_full <= known;
        Some(&self.state.view).filter(|_| has_view && !is_another_disk)
    }

    /// Whether the log here has all that was acknowledged, as far as its end, and nothing that may
    /// yet be cut: then reads could be answered from it alone, if no others acknowledge anything.
    /// So it is with the tail, whose log is a part of every other full member's, and with a member
    /// that knows that its whole log is committed.
    ///
    /// A view whose term has not begun changes nothing about that, as none commits without its full
    /// members. A process that has just started does not know.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        let end = self.log.last().end;
        if !self.view.is_full() || self.is_reopening() {
            return false;
        }
        if self.has(Mutant::CommitBelowMinimum) {
            return true;
        }
        if !self.protocol.is_joined() {
            return self.whole_end == Some(end);
        }
        let is_acknowledged = self.acknowledged() == Frontier::of(end);
        let is_tail = self.protocol.is_readable() && self.config.ack == AckLevel::Replicated;
        self.protocol.has_caught_up() && (is_tail || is_acknowledged)
    }

    /// The configuration whose term has a record in the log here; zero while none of the term that
    /// runs has come. The log before it is then all that was acknowledged. A term with too few full
    /// members gets no record: there the log up to its begin does. A view that waits has no term:
    /// there it counts that all its full members are in it.
    #[must_use]
    pub fn founded(&self) -> ConfigNumber {
        if self.protocol.waits_with_all() {
            return self.view.group().config;
        }
        let has_record = match self.view.has_too_few() {
            true => self.protocol.has_caught_up(),
            false => self.log.last().term == self.protocol.term(),
        };
        let is_founded = self.protocol.is_joined() && has_record;
        if is_founded { self.view.group().config } else { ConfigNumber::ZERO }
    }

    fn check_view(&self, view: &GroupView) -> Result<()> {
        view.validate()?;
        let known = &self.state.view;
        if view.group != known.group {
            return Err(Error::invalid(format!("a view of {} at {}", view.group, known.group)));
        }
        if view.config == known.config && view.members != known.members {
            return Err(Error::invalid(format!(
                "configuration {} is known with other members than these",
                view.config
            )));
        }
        if view.log != known.log {
            return Err(Error::unsupported(format!(
                "configuration {} changes the kind of the log from {:?} to {:?}",
                view.config, known.log, view.log
            )));
        }
        if self.state.is_being_filled() && view.config > known.config && view.has_full(self.me) {
            return Err(Error::invalid(format!(
                "{} is full in configuration {}, and it is being filled",
                self.me, view.config
            )));
        }
        self.check_disk(view)
    }

    /// Whether a view that names this replica means this pool, and none that it had before or that
    /// was put in its place.
    fn check_disk(&self, view: &GroupView) -> Result<()> {
        let Some(place) = view.place_of(self.me) else { return Ok(()) };
        let (member, mine) = (&view.members[place], self.pool.pool_id());
        if member.pool_id != [0; 16] && member.pool_id != mine {
            return Err(Error::fenced(format!(
                "configuration {} has {} with the pool {}, its pool here is {}",
                view.config,
                self.me,
                hex(&member.pool_id),
                hex(&mine)
            )));
        }
        if member.incarnation > self.state.incarnation {
            return Err(Error::fenced(format!(
                "configuration {} has {} at its start {}, the pool here is at start {}: it is \
                 older than the one that is meant",
                view.config, self.me, member.incarnation, self.state.incarnation
            )));
        }
        Ok(())
    }

    /// The view of this number is durable. Of several that came one after the other the last
    /// counts.
    pub(super) fn view_kept(&mut self, config: ConfigNumber) {
        self.leasing.keep(config);
        self.take_effect();
    }

    /// The newest view takes effect, if it is durable and nothing that was promised speaks against
    /// it. To be called as time passes, so that none waits for ever.
    pub(super) fn take_effect(&mut self) {
        let config = self.state.view.config;
        let is_kept = self.leasing.is_kept(config) || self.has(Mutant::ViewNotDurable);
        let is_new = config > self.view.group().config && is_kept;
        if self.ended || !is_new || !self.leasing.is_free(&self.state.view, &self.options) {
            return;
        }
        self.end_turn_before_event();
        if core::mem::take(&mut self.state.view_waits) {
            self.stage_state(None);
        }
        if let Err(error) = self.begin_view() {
            self.failed(Failed::Apply, error.within(format!("configuration {config}")));
        }
    }

    fn begin_view(&mut self) -> Result<()> {
        let (before, me) = (self.view.clone(), self.me);
        self.whole_end = self.is_whole().then(|| self.log.last().end);
        self.view = View::new(self.config.compaction, self.state.view.clone(), me);
        let reason = format!("configuration {} begins", self.state.view.config);
        let others: Vec<ReplicaId> = before.others().collect();
        for peer in others {
            self.forget_remote(peer);
            self.room.forget(peer);
            self.repairs_lose(peer);
            let reason = Error::unavailable(reason.clone());
            self.outputs.push_back(Output::Disconnect { peer, connection: None, reason });
        }
        assert!(before.group().config < self.view.group().config, "no replica goes back");
        self.take_duties(&before);
        self.view_since_ms = self.now_ms;
        self.keeps_turns = before.duties().append && self.duties().append;
        self.begin_protocol_anew()?;
        self.outputs.push_back(Output::View(self.state.view.clone()));
        if self.has(Mutant::KeptIsEmptied) && self.view.is_kept() {
            self.mark_copy();
        }
        Ok(())
    }

    /// Gives up the work of duties that went, and begins that of those that came.
    fn take_duties(&mut self, before: &View) {
        let (had, has) = (before.duties(), self.duties());
        if (had.compact && !has.compact) || (had.append && !has.append) {
            self.give_up_work();
        }
        self.give_up_copies();
        self.ship.take_view(&self.view);
        // The members to be asked for missing files are others now, and so may be whoever asks.
        self.repairs.forget_missing(&facts!(self));
        self.apply.ask_again();
        // A process that started with a view that waited has acted in none, and still has the
        // grants of the process before.
        let has_old_grants = has.ship && !had.ship && has_old_grants(&self.pool);
        if had.receive || has.receive || has_old_grants {
            // What was granted to another writer is void, and whatever it has begun lands nowhere.
            self.raise_session();
        }
    }

    fn begin_protocol_anew(&mut self) -> Result<()> {
        // Every full member of the view before has what its tail has.
        let waits = self.view.group().waits();
        let whole = Frontier::of(self.whole_end.filter(|_| waits).unwrap_or(LogPosition::ZERO));
        let marks = Watermarks {
            commit: self.protocol.commit().join(whole),
            durable: self.protocol.durable_commit(),
            flushed: self.protocol.flushed_min(),
            edit: self.protocol.edits_applied_min(),
        };
        let local = LocalState {
            lost: self.lost_log(),
            gap: self.state.ring.loss.as_ref().and_then(crate::ring::RingLoss::gap),
            marks,
            is_whole: self.whole_end.is_some(),
            next_ticket: self.protocol.next_ticket(),
            ..local_state(&self.state, &self.tree, &self.log)?
        };
        let settings = (&self.config, &self.options);
        self.protocol = begin_protocol(settings, local, &self.state, self.now_ms)?;
        self.await_word_if_lone();
        if let Some(lease_ms) = self.leasing.now_ms() {
            self.protocol.pass_lease_time(lease_ms);
        }
        // What the protocol before wanted done to the log is of no term that runs.
        self.held = None;
        self.copy_wanted = None;
        self.refused = Some("the group is starting".into());
        self.readable = false;
        Ok(())
    }

    /// What the log lost and has not got back.
    fn lost_log(&self) -> Option<Lost> {
        self.log_repair.lost()
    }
}

/// The digits of an id.
fn hex(id: &[u8; 16]) -> String {
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests;

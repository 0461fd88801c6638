//! The facts by which the write gate is judged, from machine to machine, and those who wait before
//! it. Also the room that the gate closes for, as a seal may make some.

use crate::node::facts::facts;
use crate::node::gate::{GateGiven, Hold, Lag, Refusal, judge};
use crate::node::room::RoomGiven;
use crate::node::{Node, WriteGate, WriteStop};
use gabion_engine::{Pressure, WriteState};

impl Node {
    // ---- the gate

    /// Whether a write can be taken now. Whoever has one wait says so with [`Self::hold_write`].
    #[must_use]
    pub fn write_gate(&self) -> WriteGate {
        self.hold().gate()
    }

    /// For how long this member, which takes writes in the view that runs, has waited for the
    /// others to join and its term to begin, in ms, if it does: what refuses writes now passes once
    /// they are reached. With fewer members than the group needs it does not pass.
    #[must_use]
    pub fn begins_term_for_ms(&self) -> Option<u64> {
        let is_begun = self.protocol.is_ready() && !self.writing.awaits_term_start();
        let goes_on = self.duties().append
            && !is_begun
            && self.writing.refusal().is_none()
            && !self.is_stopping()
            && self.view.group().too_few().is_none();
        goes_on.then(|| self.now_ms.saturating_sub(self.view_since_ms))
    }

    /// Whether [`Self::make_durable`] can be called now: the log takes a record. Flushes and
    /// compactions that are behind, and a pool that is full, hold nobody back who writes nothing.
    #[must_use]
    pub fn durable_gate(&self) -> WriteGate {
        let (refusal, lag) = (self.refusal(), self.load_lag().or_else(|| self.ring_lag()));
        judge(GateGiven { refusal, lag, ..GateGiven::default() }).gate()
    }

    /// What holds back a write that comes now.
    #[inline]
    fn hold(&self) -> Hold {
        let refusal = match self.duties().append {
            false if self.view.is_member() => Some(Refusal::Elsewhere(self.view.writer())),
            _ => self.refusal(),
        };
        if refusal.is_some() {
            return judge(GateGiven { refusal, ..GateGiven::default() });
        }
        let (no_space, lag) = (self.jobs.out_of_space(), self.lag());
        let (is_short, slowed_until_ms) = (self.room.is_short(), self.writes_due_ms());
        if no_space.is_none() && lag.is_none() && !is_short && slowed_until_ms.is_none() {
            return Hold::Nothing; // which every put asks
        }
        judge(GateGiven {
            refusal: None,
            no_space,
            no_room: self.full(),
            room_is_made: is_short && self.makes_room(),
            room_in_vain: is_short && self.waits_in_vain_for_room(),
            log_goes_on: is_short && self.log_goes_on(),
            lag,
            lag_in_vain: lag.is_some() && self.writes_wait_in_vain().is_some(),
            slowed_until_ms,
        })
    }

    /// Whether a record that gives back whole files can go into the log.
    fn log_goes_on(&self) -> bool {
        self.load_lag().is_none() && self.ring_lag().is_none() && !self.is_log_long()
    }

    /// The load that any record waits for.
    fn load_lag(&self) -> Option<Lag> {
        let holds = self.loads.hold_writes() || self.apply.last_load().is_some();
        holds.then_some(Lag::of(WriteStop::Load, "a bulk load takes effect"))
    }

    /// The drain that any record waits for.
    fn ring_lag(&self) -> Option<Lag> {
        self.ring_is_full().then_some(Lag::of(WriteStop::Ring, "the log's ring is full"))
    }

    /// While writers are slowed down: when, by the clock that the node is told, they may go on.
    /// Whoever drives a head calls [`Self::pass_time`] or [`Self::advance`] then.
    #[must_use]
    pub fn writes_due_ms(&self) -> Option<u64> {
        self.pace.wait_until_ms(self.writing.pending())
    }

    /// What lags behind so far that any write waits for it, and the words for it.
    pub(in crate::node) fn lag(&self) -> Option<Lag> {
        if let Some(load) = self.load_lag() {
            Some(load)
        } else if let WriteState::Stop(pressure) = self.tree.write_state() {
            Some(match (pressure, self.damage()) {
                (Pressure::SealedMemTables(_), _) => Lag::of(WriteStop::Flush, "flush is behind"),
                (_, Some(_)) => {
                    Lag::of(WriteStop::Compaction, "compaction is behind, as files are damaged")
                }
                (_, None) => Lag::of(WriteStop::Compaction, "compaction is behind"),
            })
        } else if self.tree.sealed_count() > self.options.sealed_max {
            Some(Lag::of(WriteStop::Flush, "flush is behind"))
        } else if self.edits_not_applied_everywhere() > self.options.sealed_max as u64 * 4 {
            let who = match self.duties().log_edits {
                false => "edits are applied late",
                true => "a replica applies edits late",
            };
            Some(Lag::of(WriteStop::Edits, who))
        } else if let Some(ring) = self.ring_lag() {
            Some(ring)
        } else {
            self.is_log_long().then_some(Lag::of(WriteStop::Log, "the log waits for flushes"))
        }
    }

    /// Why nothing may go into the log, if so. A pool that is full is no such reason: an edit that
    /// waits to be appended may be what gives slots back.
    #[inline]
    pub(in crate::node) fn refusal(&self) -> Option<Refusal<'_>> {
        if let Some(error) = self.writing.refusal() {
            return Some(Refusal::Failed(error));
        }
        if self.is_stopping() {
            return Some(Refusal::Stops);
        }
        if let Some(reason) = self.protocol.not_ready_reason().or(self.refused.as_deref()) {
            return Some(Refusal::NotReady(reason));
        }
        let is_starting = !self.protocol.is_joined() || self.writing.awaits_term_start();
        is_starting.then_some(Refusal::Starts)
    }

    /// Whether every member has an edit in its placement log, so that none starts without it.
    /// Members that compact for themselves do not tell.
    #[must_use]
    pub fn is_edit_kept(&self, edit: u64) -> bool {
        !self.view.has_one_tree() || self.protocol.edits_applied_min() >= edit
    }

    fn edits_not_applied_everywhere(&self) -> u64 {
        if !self.view.has_one_tree() {
            return 0;
        }
        self.apply.last_appended(self.tree.last_edit()) - self.protocol.edits_applied_min()
    }

    // ---- writes that wait

    /// A write met the gate at `now_ms`, in milliseconds since 1970, and waits for it: to be said
    /// each time that one does, also by one that has waited already. Without effect when the gate
    /// holds nothing back.
    pub fn hold_write(&mut self, now_ms: u64) {
        if !self.held_writes.is_held() {
            let held = self.hold().held();
            self.held_writes.hold(held, now_ms);
        }
    }

    /// Looks at what holds back who waits, once everything that was possible was done.
    pub(in crate::node) fn judge_held(&mut self) {
        if self.held_writes.is_held() {
            let held = self.hold().held();
            self.held_writes.judge(held);
        }
    }

    // ---- room

    /// Judges how much room there is, once a turn, and has a MemTable sealed where that makes some.
    pub(in crate::node) fn judge_room(&mut self) {
        let given = RoomGiven {
            sealed: self.apply.last_seal().unwrap_or(self.state.trimmed.position),
            is_idle: self.is_idle(),
            moved: self.ship.shipped_files() + self.jobs.written_bytes(),
        };
        let (facts, tree, pool) = (facts!(self), &self.tree, &self.pool);
        let wish = self.room.judge(&facts, &mut self.effects, tree, pool, &given);
        self.settle();
        let is_stuck = given.is_idle && self.room.is_short() && self.lag().is_some();
        self.room.note_stuck(is_stuck, self.now_ms);
        let Some(wish) = wish else { return };
        let may_append = self.duties().append && !self.writing.is_in_turn();
        if may_append
            && self.refusal().is_none()
            && self.room.grant_seal(wish, &self.tree, self.now_ms)
        {
            self.append_seal();
        }
    }
}

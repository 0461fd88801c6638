//! Questions to the node that one machine or several answer. None of them changes anything, and
//! none goes by what the node does.

use super::facts::facts;
use super::orders::Order;
use super::{DamagedFile, LoadId, LoadState, LogEra, Node, room};
use crate::work::WorkId;
use alloc::string::String;
use alloc::vec::Vec;
use gabion_base::{Error, Frontier, ReplicaId, Result};
use gabion_engine::{Pressure, WriteState};
use gabion_replication::MemberStatus;

impl Node {
    // ---- the log

    /// End of the log here: everything before it is applied to the MemTables.
    #[must_use]
    pub fn log_end(&self) -> Frontier {
        Frontier::of(self.log.end())
    }

    /// Why this replica needs a full copy of its group's state, if it does: as a member that is not
    /// full it has a log that no other's continues.
    #[must_use]
    pub fn needs_copy(&self) -> Option<&str> {
        let is_begun = self.state.is_being_filled();
        let begun = is_begun.then_some("a full copy was begun and is not whole");
        self.copy_wanted.as_deref().or(begun)
    }

    /// Whether it was told to stop: nothing is begun any more but what writes the log out.
    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.is_begun()
    }

    /// Sessions whose writes are known here.
    #[must_use]
    pub fn sessions(&self) -> usize {
        self.sessions.len()
    }

    // ---- files

    /// Files that reads found damaged and that are not repaired, in the order of their numbers.
    pub fn damaged_files(&self) -> impl Iterator<Item = DamagedFile> + '_ {
        self.repairs.all()
    }

    /// Bytes of memory of files that are kept until every secondary that is to have them does.
    #[must_use]
    pub const fn unshipped_bytes(&self) -> u64 {
        self.ship.unshipped()
    }

    /// Shipping to a secondary, for status: its session, slots granted and not used, files that
    /// wait, files on their way.
    #[must_use]
    pub fn shipping_to(&self, member: ReplicaId) -> (u64, usize, usize, usize) {
        self.ship.status_of(member)
    }

    // ---- marks

    /// Marks that wait for their records.
    #[must_use]
    pub fn marks_armed(&self) -> usize {
        self.marks.waiting()
    }

    /// Whether what was captured in an era is still what the log says. To be asked before anything
    /// is told that was read of it.
    ///
    /// # Errors
    /// Unavailable when a term began or the log was cut since, and records of it may be no part of
    /// the log.
    pub fn check_era(&self, era: LogEra) -> Result<()> {
        self.marks.check(era, self.me)
    }

    // ---- loads

    /// How a load is doing.
    #[must_use]
    pub fn load_state(&self, id: LoadId) -> LoadState {
        self.loads.state(id)
    }

    /// Whether [`Self::forget_load`] still gives the load up: its edit is not in the log.
    #[must_use]
    pub fn may_give_up_load(&self, id: LoadId) -> bool {
        self.loads.may_give_up(id)
    }

    /// Loads that are not done, and files of them that are written or being written here.
    #[must_use]
    pub fn loads(&self) -> (usize, usize) {
        self.loads.open()
    }

    // ---- jobs

    /// Jobs under way, for status.
    #[must_use]
    pub fn jobs_running(&self) -> usize {
        self.jobs.running()
    }

    /// Bytes of memory of files that a running job has built and that wait to be shipped, if it is
    /// held back by them, for whoever checks that it was: looks at each.
    #[must_use]
    pub fn unshipped_bytes_of(&self, id: WorkId) -> u64 {
        let Some(Order::Job(number)) = self.orders.get(&id) else { return 0 };
        self.ship.kept_of_files(self.jobs.built_by_bounded(*number))
    }

    /// What reads and compactions met in a file that is not what was written and not repaired, if
    /// there is one (docs/faults.md E5, E9); [`Self::damaged_files`] has them all.
    #[must_use]
    pub fn damage(&self) -> Option<&Error> {
        self.repairs.first_error().or(self.jobs.unnamed_damage())
    }

    /// What keeps from ending the compactions that writes wait for, if nothing will change that: L0
    /// is full, what they read is damaged, nothing else is under way, and a replica alone has
    /// nobody to have it from. None for a file whose bytes are those of its edit: it is read again.
    #[must_use]
    pub fn writes_wait_in_vain(&self) -> Option<&Error> {
        let is_full = matches!(self.tree.write_state(), WriteState::Stop(Pressure::Level0Runs(_)));
        let rests = self.orders.is_empty() && self.apply.waiting_count() == 0;
        if !is_full || !rests || !self.view.copies_at().is_empty() {
            return None;
        }
        let lost = self.jobs.awaited_repairs().find_map(|file| self.repairs.lost(file));
        lost.or(self.jobs.unnamed_damage())
    }

    /// Whether jobs wait for room that nothing under way gives them: for a pause to end, as the
    /// device had no room for the files of one, or for slots. Who is behind them waits for as long.
    #[must_use]
    pub fn jobs_pause(&self) -> bool {
        self.jobs.out_of_space().is_some() || self.waits_in_vain_for_room()
    }

    /// Whether no job is under way, and no edit.
    pub(super) fn is_idle(&self) -> bool {
        self.jobs.running() == 0 && self.apply.waiting_count() == 0
    }

    /// Members of the view in effect with which there is no connection, or of which nothing was
    /// heard for longer than `least_ms`.
    #[must_use]
    pub fn unheard(&self, least_ms: u64) -> Vec<ReplicaId> {
        let is_silent = |member: &MemberStatus| {
            let silent_ms = self.now_ms.saturating_sub(member.last_heard_ms);
            member.id != self.me && (!member.is_connected || silent_ms > least_ms)
        };
        let members = self.protocol.members();
        members.iter().filter(|member| is_silent(member)).map(|member| member.id).collect()
    }

    // ---- room

    /// Whether this replica's own pool, whatever others have, has fewer slots than are kept for
    /// flushes, compactions and the log.
    #[must_use]
    pub const fn is_short_of_room(&self) -> bool {
        self.room.is_short_here()
    }

    /// Whether the head is about to look at deletes that rest in memory, and may seal them.
    #[must_use]
    pub const fn looks_at_deletes(&self) -> bool {
        self.room.is_looking_at_deletes()
    }

    /// Slots that the log may still take before it is trimmed.
    pub(super) fn slots_for_log(&self) -> u64 {
        room::slots_for_log(&facts!(self), &self.tree, &self.pool)
    }

    /// Whether the log has to be trimmed before it may grow.
    pub(super) fn is_log_long(&self) -> bool {
        room::is_log_long(&facts!(self), &self.tree, &self.pool)
    }

    /// Whether what deletes wait for lacks slots, which nothing has given back for so long that
    /// nobody is to wait for it.
    pub(super) fn waits_in_vain_for_room(&self) -> bool {
        self.room.waits_in_vain(self.now_ms)
    }

    /// Whether something is under way that may end with more room.
    pub(super) fn makes_room(&self) -> bool {
        self.room.moves(self.now_ms, self.is_idle())
    }

    /// Why puts are not taken, while room is short.
    pub(super) fn full(&self) -> Option<String> {
        self.room.reason(&self.view)
    }
}

//! A head that a view leaves out, and that comes back with a later one.
//!
//! ```text
//!   view n    1 2 3   replica 1 writes on; nobody follows it any more   ─┐ its log parts from
//!   view n+1  2 3     a new head, which writes too                       ├ that of the others
//!   view n+2  3 1 2   replica 1 is a member again                       ─┘ and must be cut
//! ```
//!
//! The world stands for whoever decides on views, which keeps to these rules:
//!
//! - A view leaves nobody out while the one before does not run everywhere, and no member stays
//!   that lost log in a power cut and has not fetched it: what is committed is with every member
//!   that stays.
//! - The members that answer reads by any view stay. Reads have no lease, so nothing but the new
//!   view would end them.
//! - A member comes back before its successors have trimmed log that it lacks, as it could not be
//!   filled; for the same reason its power is not cut meanwhile.
//! - No log rots meanwhile: what is acknowledged then may be with one member alone.

use super::World;
use gabion_base::{Frontier, ReplicaId};
use gabion_node::Node;

/// Most steps for which a member is left out.
const STEPS_MAX: u64 = 300;

/// An absence, until the view with all members runs.
pub(super) struct Absence {
    /// Who is not left out.
    stay: Vec<usize>,
    /// Steps until it ends.
    left: u64,
    /// The newest view has all members again.
    is_back: bool,
}

impl World {
    /// Whether the newest view leaves a machine out.
    pub(super) fn is_absent(&self, index: usize) -> bool {
        self.view.place_of(self.id_of(index)).is_none()
    }

    /// Whether what a machine has counts until all are members again: what was acknowledged
    /// meanwhile is with those who were not left out.
    pub(super) fn counts(&self, index: usize) -> bool {
        self.absence.as_ref().is_none_or(|absence| absence.stay.contains(&index))
    }

    /// Whether a member is left out, or was and is not back yet.
    pub(super) const fn is_somebody_absent(&self) -> bool {
        self.absence.is_some()
    }

    pub(super) fn inject_absences(&mut self) {
        let rate = self.options.faults.absences;
        let is_due = rate > 0 && self.net.random.once_in(rate);
        let has_all = self.runs_newest_view();
        match &mut self.absence {
            None if is_due && self.options.power_all_at.is_none() => self.leave_out_some_head(),
            None => {}
            Some(absence) if absence.is_back && has_all => self.absence = None,
            Some(absence) if absence.is_back => {}
            Some(absence) => {
                absence.left = absence.left.saturating_sub(1);
                if absence.left == 0 || self.is_about_to_flush() {
                    self.take_back_some_place();
                }
            }
        }
    }

    /// Tells the head that somebody is back, as soon as it can hear it: until then the members of
    /// the view before go on without the others, and one that is alone hears nobody.
    pub(super) fn tell_of_return(&mut self) {
        let head = self.writer();
        let is_older = |node: &Node| node.state().view.config < self.view.config;
        if self.absence.as_ref().is_some_and(|absence| absence.is_back)
            && self.node(head).is_some_and(is_older)
        {
            self.tell_view(head);
        }
    }

    /// Whether the newest view runs at every machine.
    fn runs_newest_view(&self) -> bool {
        let runs = |index: usize| {
            let node = self.node(index);
            node.is_some_and(|node| node.view().group().config == self.view.config)
        };
        let writer = self.node(self.writer());
        (0..self.len()).all(runs) && writer.is_some_and(|head| head.protocol().is_ready())
    }

    fn is_about_to_flush(&self) -> bool {
        let members = self.view.members.iter().filter_map(|member| self.index_of(member.replica));
        members.filter_map(|index| self.node(index)).any(|node| node.tree().sealed_count() > 0)
    }

    fn leave_out_some_head(&mut self) {
        let is_calm = |index: usize| {
            !self.is_paused(index)
                && self.node(index).is_some_and(|node| node.tree().sealed_count() == 0)
        };
        let has_others = self.view.members.len() > 1;
        if !has_others || !self.runs_newest_view() || !(0..self.len()).all(is_calm) {
            return;
        }
        let (writer, reader) = (self.view.writer(), self.view.reader());
        let mut order: Vec<ReplicaId> = self.view.others(writer).collect();
        self.shuffle(&mut order);
        if self.net.random.once_in(4) {
            order = vec![reader];
        }
        if self.may_head(&order) {
            let left = 1 + self.net.random.below(STEPS_MAX);
            self.leave_out(&order, left);
        }
    }

    /// Whether the first of these lacks nothing that another of them has, and none of them anything
    /// that was acknowledged.
    fn may_head(&self, order: &[ReplicaId]) -> bool {
        let node = |id: &ReplicaId| self.node(self.index_of(*id)?);
        let ends = order.iter().filter_map(node).map(|node| node.log_end());
        let end = ends.fold(Frontier::ZERO, Frontier::join);
        let head = order.first().and_then(node);
        let is_up = order.first().and_then(|id| self.index_of(*id));
        let mut stay = order.iter().filter_map(|id| self.index_of(*id));
        stay.all(|index| self.has_promised(index, false))
            && is_up.is_some_and(|index| !self.is_paused(index))
            && head.is_some_and(|it| it.edits_waiting() == 0 && it.log_end().covers(&end))
    }

    /// Makes a view without the head, which is not told of it, for so many steps.
    ///
    /// # Panics
    /// When the head is among the members, or the reader is not.
    pub fn leave_out(&mut self, order: &[ReplicaId], steps: u64) {
        let reader = self.view.reader();
        assert!(order.contains(&reader) && !order.contains(&self.view.writer()));
        let stay: Vec<_> = order.iter().filter_map(|id| self.index_of(*id)).collect();
        self.absence = Some(Absence { stay: stay.clone(), left: steps, is_back: false });
        self.outcome.absences += 1;
        self.move_head(order, |index| stay.contains(&index));
    }

    fn take_back_some_place(&mut self) {
        let mut order = self.group.founders.clone();
        self.shuffle(&mut order);
        // It lacks no file.
        let first = self.view.writer();
        order.retain(|id| *id != first);
        order.insert(0, first);
        let told = self.net.random.number();
        let head = self.index_of(first).unwrap_or_default();
        self.take_back(&order, |index| index == head || told >> index & 1 == 1);
    }

    /// Makes a view in which all are members again, in this order, and tells it to some of them.
    pub fn take_back(&mut self, order: &[ReplicaId], is_told: impl Fn(usize) -> bool) {
        if let Some(absence) = &mut self.absence {
            absence.is_back = true;
        }
        self.move_head(order, is_told);
    }

    /// Nobody is left out from now on.
    pub(super) fn take_back_now(&mut self) {
        if (0..self.len()).any(|index| self.is_absent(index)) {
            self.take_back_some_place();
        }
    }
}

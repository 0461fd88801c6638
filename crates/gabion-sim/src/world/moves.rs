//! A head that moves: the members stand in another order from one configuration to the next.
//!
//! ```text
//!   world: view 2 ─► the new head ─► (others, some at once) ─► the rest hear of it from these
//! ```
//!
//! The world stands for the controller that decides on views. The new head is up, has the longest
//! log and lacks no file of it, as a controller would choose it; it is told first.

use super::World;
use gabion_base::{Frontier, ReplicaId};
use gabion_node::Node;
use gabion_replication::{GroupView, Member};

impl World {
    /// The newest view.
    #[must_use]
    pub const fn view(&self) -> &GroupView {
        &self.view
    }

    /// The index of the machine that takes writes in the newest view.
    #[must_use]
    pub fn writer(&self) -> usize {
        self.index_of(self.view.writer()).unwrap_or_default()
    }

    /// The index of the machine that answers reads in the newest view.
    #[must_use]
    pub fn reader(&self) -> usize {
        self.index_of(self.view.reader()).unwrap_or_default()
    }

    /// The machine whose replica takes writes by its own view, which may be an old one.
    pub(super) fn some_writer(&self) -> usize {
        let is_writer = |index: &usize| self.node(*index).is_some_and(|it| it.duties().append);
        self.one_from(is_writer).unwrap_or_else(|| self.writer())
    }

    /// The machine whose replica answers reads by its own view, which may be an old one.
    pub(super) fn some_reader(&self) -> usize {
        let is_reader = |index: &usize| self.node(*index).is_some_and(|it| it.duties().serve_reads);
        self.one_from(is_reader).unwrap_or_else(|| self.reader())
    }

    /// In a run with controllers, now and then: any machine.
    pub(super) fn some_door(&mut self) -> Option<usize> {
        let count = self.machines.len() as u64;
        let is_any = self.control.is_some() && self.net.random.once_in(8);
        is_any.then(|| self.net.random.below(count) as usize)
    }

    /// The first machine of this kind, from one on that changes with time.
    fn one_from(&self, is_it: impl Fn(&usize) -> bool) -> Option<usize> {
        let (count, first) = (self.machines.len(), self.moment as usize);
        (0..count).map(|index| (first + index) % count).find(is_it)
    }

    pub(super) fn inject_moves(&mut self) {
        let rate = self.options.faults.moves;
        if rate > 0 && self.net.random.once_in(rate) && !self.is_somebody_absent() {
            self.move_some_head();
        }
    }

    fn move_some_head(&mut self) {
        let mut order: Vec<ReplicaId> = self.group.founders.clone();
        if order.len() < 2 {
            return;
        }
        self.shuffle(&mut order);
        let Some(head) = order.first().and_then(|id| self.index_of(*id)) else { return };
        let ends = (0..self.len()).map(|index| self.node(index).map(Node::log_end));
        let Some(ends) = ends.collect::<Option<Vec<_>>>() else { return };
        let end = ends.into_iter().fold(Frontier::ZERO, Frontier::join);
        let has_all = |node: &Node| node.edits_waiting() == 0 && node.log_end().covers(&end);
        if !self.node(head).is_some_and(has_all) || self.is_paused(head) {
            return;
        }
        let told = self.net.random.number();
        self.move_head(&order, |index| index == head || told >> index & 1 == 1);
    }

    pub(super) fn shuffle(&mut self, order: &mut [ReplicaId]) {
        for i in (1..order.len()).rev() {
            order.swap(i, self.net.random.below(i as u64 + 1) as usize);
        }
    }

    /// Makes a view in which the members stand in this order, and tells it to some of the machines.
    pub fn move_head(&mut self, order: &[ReplicaId], is_told: impl Fn(usize) -> bool) {
        self.make_view(order, &[], is_told);
    }

    /// Makes a view with these full members in this order, and these that are being filled, and
    /// tells it to some of the machines.
    pub fn make_view(
        &mut self,
        order: &[ReplicaId],
        filled: &[ReplicaId],
        is_told: impl Fn(usize) -> bool,
    ) {
        self.trace(b"move");
        self.view.config = self.view.config.next();
        let full = order.iter().map(|id| Member::new(*id));
        let others = filled.iter().map(|id| Member { is_full: false, ..Member::new(*id) });
        self.view.members = full.chain(others).collect();
        // All of them are needed.
        self.view.members_min = order.len() as u8;
        self.outcome.moves += 1;
        let ids = |of: &[ReplicaId]| of.iter().map(|id| id.get()).collect::<Vec<u32>>();
        let (order, filled) = (ids(order), ids(filled));
        self.note(format!("{} has the order {order:?}, and fills {filled:?}", self.view.config));
        for index in (0..self.machines.len()).filter(|index| is_told(*index)) {
            self.tell_view(index);
        }
    }

    /// Tells the newest view once more where no replica that is up has it: whoever was told may
    /// have ended before it was durable. A controller also says it until it hears that it runs.
    pub(super) fn tell_again(&mut self) {
        let has_it = |node: &Node| node.state().view.config == self.view.config;
        let is_known = (0..self.len()).any(|index| self.node(index).is_some_and(has_it));
        if self.control.is_none() && !is_known {
            (0..self.len()).for_each(|index| self.tell_view(index));
        }
    }

    /// Tells a machine the newest view, if its replica is up.
    pub fn tell_view(&mut self, index: usize) {
        let view = self.view.clone();
        if self.is_paused(index) {
            return;
        }
        let Some(node) = self.node_mut(index) else { return };
        if let Err(error) = node.handle_view(view) {
            self.violation.get_or_insert(format!("replica {} takes no view: {error}", index + 1));
        }
    }
}

//! The power cuts that the level's promise covers (README, "What an acknowledgement means").
//!
//! At level `durable` any. At level `replicated` every record that was acknowledged, or shown by
//! the tail, was in the ring of every member. A power cut takes a machine's ring, and the machine
//! is whole again once it has fetched the lost log. So a power cut of any machines, with any others
//! down or behind, must lose nothing while one member keeps all of that: in its ring, or on its
//! disk if its own power is cut.

use super::World;
use gabion_base::{LogPosition, Term};
use gabion_node::{AckLevel, Node};
use gabion_replication::Span;

/// The log that a machine has.
pub(super) struct Held {
    spans: Vec<Span>,
    /// The part that no member's log has any more, as all have it in files.
    trimmed: LogPosition,
    end: LogPosition,
    durable: LogPosition,
}

impl Held {
    fn of(node: &Node) -> Self {
        let chain = node.protocol();
        let (end, durable) = (chain.progress().end.only(), chain.progress().durable.only());
        let spans = chain.spans().clipped(end).as_slice().to_vec();
        Self { spans, trimmed: node.state().trimmed.position, end, durable }
    }

    /// Whether the record of this term that ends here is in a log that ends at `end`. A term has
    /// one writer, and nobody has a record without all that precede it.
    fn has(&self, (term, position): (Term, LogPosition), end: LogPosition) -> bool {
        let is_in =
            |span: &Span| span.term == term && span.start < position && position <= span.end;
        position <= end && (position <= self.trimmed || self.spans.iter().any(is_in))
    }
}

impl World {
    /// Notes the records that are shown or acknowledged from now on: those of the tail, and those
    /// that the head counts as written. It counts on where the tail lacks a promise and is silent.
    pub(super) fn note_promised(&mut self) {
        let tail = self.node(self.some_reader()).filter(|tail| tail.is_readable());
        let shown = tail.map(|tail| (tail, tail.protocol().progress().end.only()));
        let head = self.node(self.some_writer()).filter(|head| head.duties().append);
        let written = head.map(|head| (head, head.acknowledged().only()));
        let both = [shown, written].into_iter().flatten();
        let last_of = |(node, end): (&Node, LogPosition)| {
            let chain = node.protocol();
            let mut spans = chain.spans().as_slice().iter().rev();
            let span = spans.find(|span| span.start < end)?;
            chain.is_joined().then(|| (span.term, span.end.min(end)))
        };
        let promised = both.filter_map(last_of).max();
        self.promised = promised.map_or(self.promised, |last| self.promised.max(last));
    }

    /// Notes the log of a machine whose process ends now.
    pub(super) fn note_left(&mut self, index: usize, power: bool) {
        let held = self.node(index).map(Held::of).or_else(|| self.machines[index].left.take());
        self.machines[index].left = held.map(|mut held| {
            if power {
                held.end = held.durable;
            }
            held
        });
    }

    /// Whether a machine has everything shown; after a power cut, if it will have one.
    pub(super) fn has_promised(&self, index: usize, is_cut: bool) -> bool {
        let has = |held: &Held| {
            let end = if is_cut { held.durable } else { held.end };
            held.has(self.promised, end)
        };
        match self.node(index) {
            Some(node) => has(&Held::of(node)),
            None => self.machines[index].left.as_ref().is_some_and(has),
        }
    }

    /// Cuts the power of machines, a bit for each, unless that may lose acknowledged records.
    pub(super) fn cut_power(&mut self, machines: u64) {
        let absent = (0..self.len()).filter(|index| self.is_absent(*index));
        let machines = absent.fold(machines, |machines, index| machines & !(1 << index));
        let is_cut = |index: usize| machines >> index & 1 == 1;
        // Whoever was left out may have more log than is durable where it counts.
        let is_durable = self.options.ack == AckLevel::Durable && !self.is_somebody_absent();
        let has_promised =
            |index: usize| self.counts(index) && self.has_promised(index, is_cut(index));
        let may = is_durable || (0..self.len()).any(has_promised);
        if !may || (self.control.is_some() && !self.may_cut_power(machines)) {
            return;
        }
        let end =
            self.node(self.writer()).filter(|head| head.protocol().is_ready()).map(Node::log_end);
        let is_whole = |index: usize| {
            end.is_some_and(|end| self.node(index).is_some_and(|node| node.log_end().covers(&end)))
        };
        let are_whole = (0..self.len()).all(is_whole) && machines.count_ones() == 1;
        for index in (0..self.len()).filter(|index| is_cut(*index)) {
            if self.machines[index].process.is_some() {
                self.outcome.power_cuts += 1;
                self.outcome.power_cuts_amid_others += u64::from(!are_whole);
            }
            let had_state = self.node(index).is_some_and(|node| !node.state().is_being_filled());
            self.kill(index, true);
            if had_state {
                self.check_segments_after_cut(index);
            }
        }
    }
}

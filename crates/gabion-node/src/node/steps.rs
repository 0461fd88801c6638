//! The steps of a turn, in their order, and the list of those that are due.
//!
//! ```text
//!   event ──► advance: every step is due ──► the first due step runs ─┬─► marks those that it made due
//!                           ▲                                        │
//!                           └────────────────────────────────────────┘ until none is due
//! ```
//!
//! The order: the log first, as all else follows from it (the protocol's wishes, then records, then
//! edits). Then the judgements by which work begins (damage, room, time). Then work: jobs before
//! loads, since a load waits for flushes; edits before files are shipped, so that who waits for an
//! edit waits least; grants after orphans, whose slots they may have (what is given back later
//! makes them due again). At last what makes things durable: the drain of the ring, what is given
//! back, and one commit for all that was staged before it.
//!
//! A step that changes something marks the steps that look at it. A mark that is missing costs time
//! only: with the next event every step is due again.

/// A step of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Step {
    /// The protocol's actions are carried out.
    Protocol,
    /// A term's first record is appended.
    TermStart,
    /// A lost ring is judged.
    RingLoss,
    /// Records that came are applied.
    Records,
    /// Edits that are ready are applied.
    Edits,
    /// Damage that reads met is noted.
    Damage,
    /// Repairs that are due go on.
    Repairs,
    /// Room is judged.
    Room,
    /// A record that carries time is appended.
    Time,
    /// An old tail of a private log is made durable.
    LogAge,
    /// Jobs begin.
    Jobs,
    /// Edits of jobs that are done are appended.
    AppendEdits,
    /// Loads go on.
    Loads,
    /// Full copies go on, here and for others.
    Copies,
    /// Files of older terms that nothing names are forgotten.
    Orphans,
    /// Files are shipped.
    Shipping,
    /// Slots are granted.
    Grants,
    /// The ring is drained.
    Drains,
    /// Slots and log that nobody needs are given back.
    Reclaim,
    /// A placement commit is ordered.
    Commit,
}

impl Step {
    const ALL: [Self; 20] = [
        Self::Protocol,
        Self::TermStart,
        Self::RingLoss,
        Self::Records,
        Self::Edits,
        Self::Damage,
        Self::Repairs,
        Self::Room,
        Self::Time,
        Self::LogAge,
        Self::Jobs,
        Self::AppendEdits,
        Self::Loads,
        Self::Copies,
        Self::Orphans,
        Self::Shipping,
        Self::Grants,
        Self::Drains,
        Self::Reclaim,
        Self::Commit,
    ];

    /// The log has grown here by a record of this replica's.
    pub(super) const APPENDED: [Self; 5] =
        [Self::Protocol, Self::Edits, Self::Room, Self::Orphans, Self::Drains];
    /// The log has grown here by records that came.
    pub(super) const PLACED: [Self; 6] =
        [Self::Protocol, Self::RingLoss, Self::Edits, Self::Room, Self::Orphans, Self::Drains];
    /// An edit is in line.
    pub(super) const QUEUED: [Self; 4] = [Self::Edits, Self::Room, Self::Jobs, Self::Drains];
    /// An edit is applied.
    pub(super) const APPLIED: [Self; 9] = [
        Self::Protocol,
        Self::Repairs,
        Self::Room,
        Self::Jobs,
        Self::AppendEdits,
        Self::Loads,
        Self::Orphans,
        Self::Shipping,
        Self::Reclaim,
    ];
    /// Slots were given back.
    pub(super) const FREED: [Self; 5] =
        [Self::Room, Self::Jobs, Self::Loads, Self::Grants, Self::Drains];
}

/// The steps that are due.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct WorkList(u32);

impl WorkList {
    pub(super) fn mark(&mut self, step: Step) {
        self.0 |= 1 << step as u8;
    }

    pub(super) fn mark_all(&mut self, steps: &[Step]) {
        steps.iter().for_each(|step| self.mark(*step));
    }

    pub(super) fn mark_every(&mut self) {
        self.0 = (1 << Step::ALL.len()) - 1;
    }

    /// Whether a step is due, which is not due any more. A commit follows whatever is done.
    #[inline]
    pub(super) const fn take(&mut self, step: Step) -> bool {
        let (bit, commit) = (1 << step as u8, 1 << Step::Commit as u8);
        if self.0 & bit == 0 {
            return false;
        }
        self.0 = (self.0 | commit) & !bit;
        true
    }

    /// Whether this step, or one that comes before it, is due.
    #[inline]
    pub(super) const fn is_due_by(self, step: Step) -> bool {
        self.0 & ((2 << step as u8) - 1) != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first step that is due, as a turn takes them.
    fn next_due(due: &mut WorkList) -> Option<Step> {
        Step::ALL.into_iter().find(|step| due.take(*step))
    }

    #[test]
    fn steps_come_in_their_order_and_a_commit_follows_each() {
        let mut due = WorkList::default();
        assert_eq!(next_due(&mut due), None);
        due.mark(Step::Grants);
        due.mark_all(&[Step::Records, Step::Jobs]);
        assert_eq!(next_due(&mut due), Some(Step::Records));
        assert!(!due.is_due_by(Step::Records), "it was taken");
        assert!(due.is_due_by(Step::Jobs));
        due.mark(Step::Protocol);
        assert!(due.is_due_by(Step::Protocol));
        let rest = core::iter::from_fn(|| next_due(&mut due));
        let expected = [Step::Protocol, Step::Jobs, Step::Grants, Step::Commit];
        assert!(rest.eq(expected));
        assert!(Step::ALL.iter().enumerate().all(|(at, step)| *step as usize == at));
    }

    #[test]
    fn every_step_is_due_once() {
        let mut due = WorkList::default();
        due.mark_every();
        assert!(core::iter::from_fn(|| next_due(&mut due)).eq(Step::ALL));
    }
}

//! Counts of a store that is served to other processes, for its operator's metrics. Each is an
//! addition where the thing happens.

use crate::store_wire::{Answer, Question};

/// The outcome of a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was answered, and a value that was to be stored is.
    Done,
    /// A compare-and-set found another version than it expected.
    Conflict,
    /// It was not done, and will not be if it is asked again.
    Refused,
    /// The store failed: nobody knows whether it was done.
    Failed,
}

impl Outcome {
    /// All of them, in their order.
    pub const ALL: [Self; 4] = [Self::Done, Self::Conflict, Self::Refused, Self::Failed];

    /// The outcome of a question with this answer.
    #[must_use]
    pub const fn of(answer: &Answer) -> Self {
        match answer {
            Answer::Swapped(crate::Swapped::Lost(_)) => Self::Conflict,
            Answer::Failed { is_refused: true, .. } => Self::Refused,
            Answer::Failed { is_refused: false, .. } => Self::Failed,
            Answer::Welcome | Answer::Got(_) | Answer::Listed(..) | Answer::Swapped(_) => {
                Self::Done
            }
        }
    }

    /// The outcome as a word.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Conflict => "conflict",
            Self::Refused => "refused",
            Self::Failed => "failed",
        }
    }
}

/// The reason why a client was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// It shook no hands: it spoke no TLS, or its certificate is of another authority.
    Handshake,
    /// It has not the store's token.
    Token,
    /// It asked before it greeted.
    Greeting,
    /// Its certificate is not one of whom the name is.
    Certificate,
    /// No value can have the name.
    Name,
    /// Its message is longer than any may be.
    TooLong,
    /// Its bytes are no message.
    Malformed,
}

impl Reason {
    /// All of them, in their order.
    pub const ALL: [Self; 7] = [
        Self::Handshake,
        Self::Token,
        Self::Greeting,
        Self::Certificate,
        Self::Name,
        Self::TooLong,
        Self::Malformed,
    ];

    /// The reason as a word.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Handshake => "handshake",
            Self::Token => "token",
            Self::Greeting => "greeting",
            Self::Certificate => "certificate",
            Self::Name => "name",
            Self::TooLong => "too_long",
            Self::Malformed => "malformed",
        }
    }
}

/// Work of a served store since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreTally {
    /// Questions by kind, in the order of [`Question::KINDS`], and by [`Outcome`].
    pub questions: [[u64; Outcome::ALL.len()]; Question::KINDS.len()],
    /// Clients that were refused, by [`Reason`]. Some of them asked no question.
    pub refusals: [u64; Reason::ALL.len()],
}

impl StoreTally {
    /// A question of this kind was answered.
    pub const fn count(&mut self, kind: usize, outcome: Outcome) {
        self.questions[kind][outcome as usize] += 1;
    }

    /// A client was refused.
    pub const fn refuse(&mut self, reason: Reason) {
        self.refusals[reason as usize] += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Swapped, Version};
    use gabion_base::Error;

    #[test]
    fn outcomes_and_reasons_are_counted_at_their_places() {
        let answers = [
            (Answer::Swapped(Swapped::Stored(Version(1))), Outcome::Done),
            (Answer::Got(None), Outcome::Done),
            (Answer::Swapped(Swapped::Lost(None)), Outcome::Conflict),
            (Answer::failed(&Error::invalid("no name")), Outcome::Refused),
            (Answer::failed(&Error::io("the disk")), Outcome::Failed),
        ];
        for (answer, outcome) in answers {
            assert_eq!(Outcome::of(&answer), outcome, "{answer:?}");
        }
        let mut tally = StoreTally::default();
        for (at, outcome) in Outcome::ALL.into_iter().enumerate() {
            (0..=at).for_each(|_| tally.count(1, outcome));
        }
        assert_eq!(tally.questions, [[0; 4], [1, 2, 3, 4], [0; 4], [0; 4]]);
        for (at, reason) in Reason::ALL.into_iter().enumerate() {
            (0..=at).for_each(|_| tally.refuse(reason));
        }
        assert_eq!(tally.refusals, [1, 2, 3, 4, 5, 6, 7]);
    }
}

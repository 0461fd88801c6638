//! Defects that tests plant, to prove that the checkers can fail (docs/faults.md, "Seeded
//! mutants"). Outside tests nothing can be planted and every question is `false` at compile time.

/// A defect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mutant {
    /// The head counts acknowledgements of any term.
    AckOfOldTerm,
    /// The commit mark is the most that any member has, not the least.
    MaxOfAcks,
    /// A stream that begins anew leaves out a record.
    ResendSkipsRecord,
    /// A member acknowledges what it received, before it is in the log.
    AckBeforePlaced,
    /// The shortest log goes on (A2).
    ShortestLogWins,
    /// The head does not look at other logs when it starts.
    HeadKeepsItsLog,
    /// The head appends to its term while full members have yet to join it.
    AppendsBeforeAllJoined,
    /// The tail answers reads before it knows the acknowledged end.
    ReadableAtOnce,
    /// The bound for trimming looks at the head only.
    TrimByHeadOnly,
    /// The head ignores members' losses.
    LossIgnored,
    /// Records of an old connection are taken.
    OldConnectionCounts,
    /// Marks rise without the members that are full, by those alone that are not.
    FilledMembersCount,
    /// The reader needs no promise.
    ReadsWithoutLease,
    /// A member promises although it has taken a newer view.
    PromiseAfterView,
    /// A promise counts from when it came, not from when it was asked for.
    LeaseFromReceipt,
}

/// The planted defect of one chain.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Planted {
    #[cfg(test)]
    pub(crate) mutant: Option<Mutant>,
}

impl Planted {
    #[cfg(test)]
    pub(crate) fn has(self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }

    #[cfg(not(test))]
    #[expect(clippy::unused_self, reason = "the twin in tests needs it")]
    pub(crate) const fn has(self, _: Mutant) -> bool {
        false
    }
}

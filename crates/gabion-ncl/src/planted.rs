//! Defects that tests plant, to prove that the checkers can fail (docs/faults.md, "Seeded
//! mutants"). Without the feature `planted` nothing can be planted and every question is `false` at
//! compile time.

/// A defect.
#[cfg_attr(not(feature = "planted"), expect(unreachable_pub, reason = "exported with the feature"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// A1: a record counts though too few copies are left to hold it.
    AckWithoutQuorum,
    /// A2: recovery takes the copy with the smallest number.
    SmallestNumber,
    /// A3: the number of the first record means that there is no copy.
    FirstNumberIsNone,
    /// A4: old copies go before there are new ones.
    CatchUpInPlace,
    /// A5: numbers begin again after recovery.
    NumbersRestart,
    /// A6: a file ends with its last byte that is not zero.
    LengthByContent,
    /// A7: peers take the writes of a former instance, under its old keys.
    #[cfg_attr(not(feature = "planted"), expect(dead_code, reason = "planted in the peers"))]
    KeysStay,
    /// A8: the ap-map and the lease are set whatever they are.
    MapWithoutCompare,
    /// A9: a term is the wall clock.
    EpochIsClock,
    /// The cell of a record is written before its data (SplitFT §4.6).
    NumberBeforeData,
    /// A peer is in the ap-map, and counts, before it is caught up (SplitFT §4.6).
    MapBeforeCatchUp,
    /// Recovery ends with one copy that is up to date (SplitFT §4.6).
    LaggingNotCaughtUp,
    /// A peer's refusal counts like a write that was made (PRIOR-ART.md §2.1).
    ErrorCounts,
    /// Regions of a file go before it is known to be gone.
    FreedEarly,
    /// A copy counts though it has changes whose records are not issued.
    CopyIsAhead,
    /// The number of a record that a program claimed, and that does not count, is given again.
    ClaimedAgain,
}

/// The planted defect of one instance.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Planted {
    #[cfg(feature = "planted")]
    pub(crate) mutant: Option<Mutant>,
}

impl Planted {
    #[cfg(feature = "planted")]
    pub(crate) fn has(self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }

    #[cfg(not(feature = "planted"))]
    #[expect(clippy::unused_self, reason = "the twin with the feature needs it")]
    pub(crate) const fn has(self, _: Mutant) -> bool {
        false
    }
}

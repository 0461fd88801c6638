//! Defects that tests plant, to prove that the simulator's checkers can fail (docs/faults.md,
//! "Seeded mutants"). Without the feature `planted` nothing can be planted and every question is
//! `false` at compile time.

use crate::record::GroupRecord;
use alloc::vec::Vec;
use gabion_base::ReplicaId;

/// A defect.
#[cfg_attr(not(feature = "planted"), expect(unreachable_pub, reason = "exported with the feature"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// Members are told a view before it is stored as intended.
    ToldBeforeStored,
    /// A view is complete with the first full member that has founded it.
    CompleteWithFirst,
    /// A controller that was paused judges by the silence that it did not hear.
    PauseIsSilence,
    /// A store that was set back is believed: views that replicas have are ignored.
    OldStoreBelieved,
    /// A member whose disk is another one stays.
    OtherDiskStays,
    /// A replica that comes counts at once, before it is filled. So does one that is kept: no
    /// controller may store such a view.
    NewcomerIsFull,
    /// Members that were kept go on without whoever may answer reads.
    SurvivorNotWaitedFor,
}

/// The planted defect of one controller.
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

    /// The disks that are gone, with a defect.
    pub(crate) fn give_up(
        self,
        record: &GroupRecord,
        failed: &[ReplicaId],
        gone: &mut Vec<ReplicaId>,
    ) {
        if self.has(Mutant::SurvivorNotWaitedFor) && !record.kept.is_empty() {
            let newest = record.newest();
            gone.extend(failed.iter().filter(|id| newest.has_full(**id)));
        }
    }

    /// The next view, with a defect.
    pub(crate) fn change(self, record: &mut GroupRecord) {
        if self.has(Mutant::NewcomerIsFull) {
            let members = record.intended.iter_mut().flat_map(|view| &mut view.members);
            members.for_each(|member| member.is_full = true);
        }
    }

    #[cfg(not(feature = "planted"))]
    #[expect(clippy::unused_self, reason = "the twin with the feature needs it")]
    pub(crate) const fn has(self, _: Mutant) -> bool {
        false
    }
}

//! Records that a program writes to the peers itself, where it can reach their memory: no process
//! stands between it and its log.
//!
//! ```text
//!   at rest ── grant(file) ──► the program writes data and cells, with the next numbers
//!      ▲                                        │
//!      └────── recall: how far it came ◄────────┘   a change, a lost peer, a new copy
//! ```
//!
//! A *grant* is of one file and holds while nothing else happens. It is given when all copies have
//! all records, and says which number comes next. The program's record counts once every copy of
//! the grant has it, which are f+1 at least, and only if the grant still stands then
//! ([`Images::recall`] decides between the two). The instance recalls it before it needs numbers,
//! lengths or records.
//!
//! The program may have begun a record that does not count: it is *claimed*. Its number is passed
//! over, as copies may have it. The program has it issued anew, like any change of an image; if it
//! died, whatever its image then has is issued. Until then a copy may have bytes of it, past the
//! length or not, and its cell: so the next record of the file takes the cell's place, even one
//! that changes nothing.

use crate::application::{Application, Phase};
use crate::command::Label;
use crate::files::{Files, Images, Progress, Recalled};
use crate::layout::OwnerCrc;
use crate::link::{Link, Stage};
use crate::number::{FileNumber, Number};
use crate::planted::Mutant;
use alloc::vec::Vec;
use gabion_base::Term;
use gabion_media::remote::{PeerId, RegionId};

/// The right to write records of one file to the peers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The file.
    pub file: FileNumber,
    /// The term of the records.
    pub term: Term,
    /// The seed of their cells.
    pub owner: OwnerCrc,
    /// The record before the first of them.
    pub last: Number,
    /// The file as of that record.
    pub progress: Progress,
    /// Bytes of data of each part.
    pub parts: Vec<u64>,
    /// The peers that each record has to reach, and their regions of the file, by part.
    pub peers: Vec<(PeerId, Vec<RegionId>)>,
}

impl<S: Images> Application<S> {
    /// Lets the program write records of a file itself, if all copies have all records, no other
    /// copy is being made, and the program changes the file's image. Until
    /// [`Images::recall`] is called it may.
    #[must_use]
    pub fn grant(&self, file: FileNumber) -> Option<Grant> {
        let state = self.state.as_ref().filter(|_| self.phase == Phase::Running)?;
        let issued = state.log.issued();
        if self.acknowledged != issued || file.is_names() {
            return None;
        }
        let parts = state.files.directly_written(file)?;
        let (mut peers, mut counted) = (Vec::new(), self.counted());
        for link in self.links.values().filter(|link| link.stage >= Stage::Filling) {
            let is_counted = counted.next().is_some_and(|one| one.peer == link.peer);
            if !is_counted || !link.is_at_rest(issued) {
                return None;
            }
            let region = |part| link.region(Label { file, part });
            let regions: Option<Vec<RegionId>> = (0..parts.len() as u32).map(region).collect();
            peers.push((link.peer, regions?));
        }
        let is_enough = peers.len() > self.options.f;
        is_enough.then(|| Grant {
            file,
            term: self.term,
            owner: self.owner,
            last: issued,
            progress: state.files.progress(file),
            parts,
            peers,
        })
    }

    /// Ends a grant, if there is one: its records are this instance's from here on. Called before
    /// numbers, lengths or copies matter: callers do so who ask for them.
    pub fn recall(&mut self) {
        let Some(state) = &mut self.state else { return };
        let Some(recalled) = state.files.recall() else { return };
        let Recalled { file, written, is_claimed, progress } = recalled;
        assert_eq!(self.acknowledged, state.log.issued(), "a grant is given at rest");
        let is_passed = is_claimed && !self.planted.has(Mutant::ClaimedAgain);
        let last = Number(state.log.issued().0 + written + u64::from(is_passed));
        state.files.set_progress(file, progress, is_claimed);
        state.log.pass(last);
        self.acknowledged = last;
        for link in self.links.values_mut().filter(|link| link.stage == Stage::Full) {
            link.pass(last);
        }
    }
}

impl<S: Images> Files<S> {
    /// Ends a grant and says how far the program came.
    fn recall(&mut self) -> Option<Recalled> {
        self.images.recall()
    }
}

impl Link {
    /// Whether it has all records up to `issued`, and owes nothing.
    fn is_at_rest(&self, issued: Number) -> bool {
        self.stage == Stage::Full && self.done == issued && !self.owes()
    }

    /// It has all records up to `last`, which the program wrote.
    fn pass(&mut self, last: Number) {
        assert!(self.done < self.cursor && self.cursor <= last.next(), "records were at rest");
        (self.done, self.cursor) = (last, last.next());
    }
}

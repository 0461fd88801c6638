//! A state of the model, and the limits within which it is explored.

use crate::instance::{Instance, Phase};
use crate::peer::{Content, Peer};
use crate::rules::is_zero;
use gabion_base::Term;
use gabion_media::remote::{Incarnation, PeerId};
use gabion_ncl::map::{ApMap, Member};

/// Losses at a time that lose nothing.
pub(crate) const F: usize = 1;
/// Copies that the map names.
pub(crate) const WANTED: usize = 2 * F + 1;

/// A planted defect. Those of the prototype have its numbers (docs/faults.md).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Defect {
    /// A1: a record counts though too few copies are left to hold it.
    AckWithoutQuorum,
    /// A2: recovery takes the copy with the smallest number.
    SmallestNumber,
    /// A3: the number of the first record means that there is no copy.
    FirstNumberIsNone,
    /// A4: recovery frees the good copies before there are new ones.
    CatchUpInPlace,
    /// A5: numbers begin again after recovery, and nothing else orders copies.
    NumbersRestart,
    /// A6: a log ends with its last byte that is not zero.
    LengthByContent,
    /// A7: peers take writes under old keys.
    KeysStay,
    /// A9: a term is the wall clock of whoever starts.
    EpochIsClock,
    /// The cell of a record lands before its data (SplitFT §4.6).
    NumberBeforeData,
    /// A peer is entered, and counts, before it is caught up (SplitFT §4.6).
    MapBeforeCatchUp,
    /// Recovery ends with one copy that is up to date (SplitFT §4.6).
    LaggingNotCaughtUp,
    /// A refusal counts like a write.
    ErrorCounts,
    /// Numbers are read before the keys change.
    ReadBeforeFence,
}

/// Faults that may still come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Budget {
    /// Peers that lose their memory.
    pub(crate) losses: u8,
    /// Copies that peers take back.
    pub(crate) revocations: u8,
    /// Connections that end without a reason.
    pub(crate) cuts: u8,
    /// Changes of the map whose outcome nobody knows.
    pub(crate) store_errors: u8,
}

/// The model's limits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) peers: usize,
    /// Instances that may start one after the other. None ever ends before it learns of another:
    /// one that does nothing any more is dead.
    pub(crate) instances: usize,
    /// Records of a log, at most [`crate::peer::RECORDS_MAX`].
    pub(crate) records: u8,
    pub(crate) budget: Budget,
    /// Instances write into shared memory: nobody can keep them from it, but a write counts only
    /// while the gate of its region is open.
    pub(crate) is_shared: bool,
    /// Peers are lost even if fewer than f+1 copies are left.
    pub(crate) is_disaster: bool,
    /// A record lands in halves, and a copy and the reading of a number take a time of their own.
    /// Else they are one step with what comes before: nobody sees the state between.
    pub(crate) is_fine: bool,
    /// Begins before the first instance; else it runs already.
    pub(crate) from_nothing: bool,
    pub(crate) defect: Option<Defect>,
}

impl Limits {
    pub(crate) fn has(&self, defect: Defect) -> bool {
        self.defect == Some(defect)
    }
}

/// Something that must never be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Wrong {
    /// An empty file is shown in place of acknowledged bytes.
    Empty,
    /// A shorter one.
    Shortened,
    /// Other bytes.
    Changed,
    /// A record of a former instance is acknowledged which its successor does not have.
    FormerAcknowledged,
    /// A number was read while the former instance's keys were right.
    ReadUnfenced,
}

/// The store: the term of the lease, and the ap-map with its version.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Store {
    pub(crate) term: u8,
    pub(crate) version: u8,
    pub(crate) map: ApMap,
}

/// A state.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct World {
    pub(crate) peers: Vec<Peer>,
    pub(crate) store: Store,
    pub(crate) instances: Vec<Instance>,
    pub(crate) budget: Budget,
    /// All that was acknowledged, or shown by a recovery.
    pub(crate) promised: Content,
    /// The instance that came to run last.
    pub(crate) latest: Option<u8>,
    pub(crate) wrong: Option<Wrong>,
}

impl World {
    pub(crate) fn new(limits: &Limits) -> Self {
        Self {
            peers: vec![Peer::new(); limits.peers],
            store: Store::default(),
            instances: vec![Instance::new(limits.peers); limits.instances],
            budget: limits.budget,
            promised: Content::default(),
            latest: None,
            wrong: None,
        }
    }

    pub(crate) fn note(&mut self, wrong: Wrong) {
        self.wrong = self.wrong.or(Some(wrong));
    }

    /// Whether a machine has the copy of a member.
    fn has_copy(&self, member: &Member) -> bool {
        let peer = &self.peers[place_of(member.peer)];
        peer.is_up && run_of(peer) == member.incarnation && peer.published().is_some()
    }

    /// Whether the assumption holds that at most f are lost at a time, if this machine is lost now:
    /// f+1 copies of the map are left, and of each map that may yet be stored.
    pub(crate) fn can_spare(&self, lost: usize) -> bool {
        let asked = self.instances.iter().flat_map(|it| [&it.asked, &it.stray]);
        let asked = asked.flatten().map(|(_, map)| map);
        asked.chain([&self.store.map]).filter(|map| !map.members.is_empty()).all(|map| {
            let is_left = |member: &&Member| place_of(member.peer) != lost && self.has_copy(member);
            map.members.iter().filter(is_left).count() > F
        })
    }

    /// An instance has its files: they must have all that was promised.
    pub(crate) fn note_shown(&mut self, i: usize) {
        let mirror = self.instances[i].mirror;
        if !mirror.begins_with(&self.promised) {
            let is_shorter = mirror.len < self.promised.len;
            self.note(match mirror.len {
                0 => Wrong::Empty,
                _ if is_shorter => Wrong::Shortened,
                _ => Wrong::Changed,
            });
        }
        // Nobody wrote a zero there: the length covers a record of which a part is missing.
        if (0..mirror.len).any(|at| !is_zero(at) && mirror.bytes[at as usize] == 0) {
            self.note(Wrong::Changed);
        }
        (self.promised, self.latest) = (mirror, Some(i as u8));
    }

    /// More records of an instance are acknowledged.
    pub(crate) fn note_acknowledged(&mut self, i: usize) {
        let instance = &self.instances[i];
        let told = instance.mirror.prefix(instance.position(instance.acknowledged));
        match self.latest {
            Some(latest) if latest as usize != i => {
                let successor = &self.instances[latest as usize];
                if !successor.mirror.prefix(successor.base_len).begins_with(&told) {
                    self.note(Wrong::FormerAcknowledged);
                }
            }
            _ if told.len > self.promised.len => self.promised = told,
            _ => {}
        }
    }

    /// The instance that runs and was not replaced.
    pub(crate) fn running(&self) -> Option<usize> {
        let latest = self.latest? as usize;
        let instance = &self.instances[latest];
        let is_last = instance.phase == Phase::Running
            && instance.term == self.store.term
            && self.store.map.term == Term(u64::from(instance.term))
            && self.peers.iter().all(|peer| peer.term <= instance.term);
        is_last.then_some(latest)
    }
}

pub(crate) fn run_of(peer: &Peer) -> Incarnation {
    Incarnation(u32::from(peer.incarnation))
}

pub(crate) fn peer_id(p: usize) -> PeerId {
    PeerId(p as u64)
}

pub(crate) fn place_of(peer: PeerId) -> usize {
    peer.0 as usize
}

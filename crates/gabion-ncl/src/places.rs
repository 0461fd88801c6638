//! The regions that a peer lends for the new copy: asked for, lent, or refused for now.
//!
//! A peer without room stays what it is: its copy has all records so far, and it is asked again
//! after a pause, or once regions were given back. A request is known by its number, as the same
//! part may have been given up, and asked for again, while it was under way.

use crate::command::Label;
use crate::number::FileNumber;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use gabion_media::remote::{Key, Refusal, RefusalReason, RegionId};

/// A region of the new copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lent {
    pub(crate) region: RegionId,
    pub(crate) key: Key,
}

/// A peer's word that it has no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoRoom {
    /// Bytes that were asked for.
    pub(crate) bytes: u64,
    /// The reason, with the peer's numbers.
    pub(crate) refusal: Refusal,
    /// It is not asked again before.
    pub(crate) until_ms: u64,
    /// How often the link had given regions back when it asked.
    pub(crate) given: u64,
}

impl NoRoom {
    /// Bytes that the peer could lend in one region, at most.
    pub(crate) const fn free_bytes(&self) -> u64 {
        match self.refusal.reason {
            RefusalReason::NoMemory | RefusalReason::RegionLength => self.refusal.limit,
            _ => 0,
        }
    }
}

/// Whether a refusal means that the peer has no room, which may change.
pub(crate) const fn is_no_room(reason: RefusalReason) -> bool {
    use RefusalReason as R;
    matches!(
        reason,
        R::NoMemory | R::SystemMemory | R::RegionLength | R::TooManyRegions | R::TooManyOwners
    )
}

/// The state of a part at a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// By the request of this number.
    Asked(u64),
    Lent(Lent),
    NoRoom(NoRoom),
}

/// The parts of a copy.
#[derive(Debug, Default)]
pub(crate) struct Places {
    places: BTreeMap<Label, (u64, Place)>,
    asked: u64,
    /// How many of them are not lent, and for how many there is no room: asked at each record.
    counts: Counts,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    not_lent: usize,
    no_room: usize,
}

impl Counts {
    const fn of(place: Place) -> [usize; 2] {
        match place {
            Place::Lent(_) => [0, 0],
            Place::Asked(_) => [1, 0],
            Place::NoRoom(_) => [1, 1],
        }
    }

    fn add(&mut self, place: Place) {
        let [not_lent, no_room] = Self::of(place);
        self.not_lent += not_lent;
        self.no_room += no_room;
    }

    fn remove(&mut self, place: Place) {
        let [not_lent, no_room] = Self::of(place);
        self.not_lent -= not_lent;
        self.no_room -= no_room;
    }
}

impl Places {
    fn set(&mut self, label: Label, bytes: u64, place: Place) {
        self.counts.add(place);
        if let Some((_, former)) = self.places.insert(label, (bytes, place)) {
            self.counts.remove(former);
        }
    }

    pub(crate) fn get(&self, label: Label) -> Option<Place> {
        self.places.get(&label).map(|(_, place)| *place)
    }

    /// The region of a part, if it is lent.
    pub(crate) fn lent(&self, label: Label) -> Option<Lent> {
        match self.get(label) {
            Some(Place::Lent(lent)) => Some(lent),
            _ => None,
        }
    }

    /// The part is to be asked for; returns the number of the request.
    pub(crate) fn ask(&mut self, label: Label, bytes: u64) -> u64 {
        self.asked += 1;
        self.set(label, bytes, Place::Asked(self.asked));
        self.asked
    }

    /// The length that a part has, or was asked for with.
    pub(crate) fn bytes(&self, label: Label) -> Option<u64> {
        self.places.get(&label).map(|(bytes, _)| *bytes)
    }

    /// Whether the request of this number is still wanted.
    pub(crate) fn is_wanted(&self, label: Label, request: u64) -> bool {
        self.get(label) == Some(Place::Asked(request))
    }

    /// The answer to a request. False if nobody wants it any more.
    pub(crate) fn answer(&mut self, label: Label, request: u64, place: Place) -> bool {
        let is_wanted = self.is_wanted(label, request);
        if let Some(bytes) = self.bytes(label).filter(|_| is_wanted) {
            self.set(label, bytes, place);
        }
        is_wanted
    }

    /// Gives up the parts of a file from one on. Returns the regions that they had.
    pub(crate) fn remove(&mut self, file: FileNumber, from: u32) -> Vec<RegionId> {
        let range = Label { file, part: from }..=Label { file, part: u32::MAX };
        let labels: Vec<Label> = self.places.range(range).map(|(label, _)| *label).collect();
        labels.into_iter().filter_map(|label| self.remove_one(label)).collect()
    }

    /// Gives up all of them. Returns the regions that they had.
    pub(crate) fn clear(&mut self) -> Vec<RegionId> {
        let regions = self.regions().collect();
        self.places.clear();
        self.counts = Counts::default();
        regions
    }

    /// Gives up a part. Returns the region that it had.
    pub(crate) fn remove_one(&mut self, label: Label) -> Option<RegionId> {
        let (_, place) = self.places.remove(&label)?;
        self.counts.remove(place);
        match place {
            Place::Lent(lent) => Some(lent.region),
            Place::Asked(_) | Place::NoRoom(_) => None,
        }
    }

    /// The regions that are lent.
    pub(crate) fn regions(&self) -> impl Iterator<Item = RegionId> {
        self.places.values().filter_map(|(_, place)| match place {
            Place::Lent(lent) => Some(lent.region),
            Place::Asked(_) | Place::NoRoom(_) => None,
        })
    }

    /// Bytes that are lent.
    pub(crate) fn lent_bytes(&self) -> u64 {
        let lent = self.places.values().filter(|(_, place)| matches!(place, Place::Lent(_)));
        lent.map(|(bytes, _)| bytes).sum()
    }

    /// Whether all of them are lent.
    pub(crate) fn are_lent(&self) -> bool {
        self.counts.not_lent == 0
    }

    /// A part for which there is no room, if there is one.
    pub(crate) fn no_room(&self) -> Option<NoRoom> {
        if self.counts.no_room == 0 {
            return None;
        }
        self.places.values().find_map(|(_, place)| match place {
            Place::NoRoom(no_room) => Some(*no_room),
            Place::Asked(_) | Place::Lent(_) => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_to_a_request_of_before_is_none_to_the_next_one() {
        let (mut places, label) = (Places::default(), Label { file: FileNumber(2), part: 3 });
        let lent = |region| Place::Lent(Lent { region: RegionId(region), key: Key(1) });
        let first = places.ask(label, 4096);
        assert_eq!(places.remove(FileNumber(2), 3), [], "it was not lent yet");
        let second = places.ask(label, 8192);
        assert!(!places.answer(label, first, lent(1)), "nobody wants it");
        assert!(places.answer(label, second, lent(2)));
        assert_eq!((places.lent_bytes(), places.are_lent()), (8192, true));
        assert_eq!(places.remove(FileNumber(2), 4), [], "parts before stay");
        assert_eq!(places.remove(FileNumber(2), 0), [RegionId(2)]);
    }

    #[test]
    fn a_part_for_which_there_is_no_room_is_none_of_the_copy() {
        let (mut places, label) = (Places::default(), Label { file: FileNumber(2), part: 0 });
        let refusal = Refusal::new(RefusalReason::NoMemory, 8192, 4096);
        let no_room = NoRoom { bytes: 8192, refusal, until_ms: 5, given: 0 };
        let request = places.ask(label, 8192);
        assert!(places.answer(label, request, Place::NoRoom(no_room)));
        assert_eq!((places.no_room(), places.are_lent()), (Some(no_room), false));
        assert_eq!((no_room.free_bytes(), places.clear()), (4096, Vec::new()));
    }
}

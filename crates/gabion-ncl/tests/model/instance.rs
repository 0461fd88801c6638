//! One instance of an application: what it knows, and what follows from it.

use crate::peer::{Cell, Content};
use crate::world::{Defect, F, Limits, WANTED, peer_id};
use gabion_base::Term;
use gabion_media::remote::Incarnation;
use gabion_ncl::map::{ApMap, Member};

/// As in the library; loading is one step with the choice of the copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Phase {
    Waiting,
    Claiming,
    Recovering,
    Filling,
    Running,
    Ended,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Stage {
    #[default]
    Apart,
    Ready,
    Known,
    Filling,
    Copied,
    Full,
}

/// One peer as an instance knows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Link {
    pub(crate) stage: Stage,
    pub(crate) incarnation: u8,
    pub(crate) epoch: u64,
    /// How far its former copy goes.
    pub(crate) known: Option<Cell>,
    /// A part of the next record is there: its data, without its cell.
    pub(crate) is_half: bool,
    /// Records up to it are there.
    pub(crate) landed: u8,
    /// Records up to it are known to be there.
    pub(crate) done: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Instance {
    pub(crate) phase: Phase,
    pub(crate) term: u8,
    pub(crate) map: ApMap,
    pub(crate) version: u8,
    /// The store has another map than this instance wrote last.
    pub(crate) map_differs: bool,
    /// A change of the map under way, and the version that it is for.
    pub(crate) asked: Option<(u8, ApMap)>,
    /// One of which nobody knows whether it was made.
    pub(crate) stray: Option<(u8, ApMap)>,
    pub(crate) links: Vec<Link>,
    pub(crate) epochs: u64,
    pub(crate) mirror: Content,
    /// Length and number with which it began.
    pub(crate) base_len: u8,
    pub(crate) base_number: u8,
    pub(crate) issued: u8,
    pub(crate) acknowledged: u8,
}

impl Instance {
    pub(crate) fn new(peers: usize) -> Self {
        Self {
            phase: Phase::Waiting,
            term: 0,
            map: ApMap::default(),
            version: 0,
            map_differs: false,
            asked: None,
            stray: None,
            links: vec![Link::default(); peers],
            epochs: 0,
            mirror: Content::default(),
            base_len: 0,
            base_number: 0,
            issued: 0,
            acknowledged: 0,
        }
    }

    /// The length of the log up to a record.
    pub(crate) fn position(&self, number: u8) -> u8 {
        self.base_len + number - self.base_number
    }

    /// Nothing follows any more. Requests to the store stay under way.
    pub(crate) fn end(&mut self) {
        self.phase = Phase::Ended;
        self.links.fill(Link::default());
    }

    /// Begins with a content, up to a number.
    pub(crate) fn begin(&mut self, content: Content, number: u8) {
        (self.mirror, self.base_len) = (content, content.len);
        (self.base_number, self.issued, self.acknowledged) = (number, number, number);
        self.phase = Phase::Filling;
    }

    fn member(&self, p: usize) -> Member {
        let link = &self.links[p];
        let incarnation = Incarnation(u32::from(link.incarnation));
        Member { peer: peer_id(p), incarnation, epoch: link.epoch }
    }

    /// Whether the copy at a peer counts.
    fn counts(&self, p: usize, limits: &Limits) -> bool {
        let early = limits.has(Defect::MapBeforeCatchUp) && self.links[p].stage >= Stage::Filling;
        (self.links[p].stage == Stage::Full || early) && self.map.members.contains(&self.member(p))
    }

    pub(crate) fn counted(&self, limits: &Limits) -> usize {
        (0..self.links.len()).filter(|p| self.counts(*p, limits)).count()
    }

    /// Copies that a recovered log needs before it is shown.
    pub(crate) fn needed(limits: &Limits) -> usize {
        if limits.has(Defect::LaggingNotCaughtUp) { 1 } else { F + 1 }
    }

    /// The last record that f+1 copies of the map are known to have.
    pub(crate) fn reached(&self, limits: &Limits) -> u8 {
        let counted = (0..self.links.len()).filter(|p| self.counts(*p, limits));
        let mut done: Vec<u8> = counted.map(|p| self.links[p].done).collect();
        done.sort_unstable_by(|a, b| b.cmp(a));
        match done.get(F) {
            Some(reached) => *reached,
            None if limits.has(Defect::AckWithoutQuorum) => self.issued,
            None => 0,
        }
    }

    /// The next change of the map, if it should change.
    pub(crate) fn proposal(&self, limits: &Limits) -> Option<ApMap> {
        let term = Term(u64::from(self.term));
        if self.phase == Phase::Claiming {
            return Some(ApMap { term, ..self.map.clone() });
        }
        let links = || 0..self.links.len();
        let mut members: Vec<Member> =
            links().filter(|p| self.counts(*p, limits)).map(|p| self.member(p)).collect();
        let counted = members.len();
        let early = limits.has(Defect::MapBeforeCatchUp);
        let is_whole = |p: &usize| match self.links[*p].stage {
            Stage::Full => self.links[*p].done >= self.acknowledged,
            stage => early && stage >= Stage::Filling,
        };
        for member in links().filter(is_whole).map(|p| self.member(p)) {
            if members.len() < WANTED && !members.contains(&member) {
                members.push(member);
            }
        }
        let current = members.len();
        let is_named = |member: &&Member| !members.iter().any(|it| it.peer == member.peer);
        let former = self.map.members.iter().filter(is_named);
        let mut former: Vec<Member> = former.copied().collect();
        former.sort_by_key(|member| self.doubt(member));
        members.extend(former.into_iter().take(WANTED - current));
        members.sort_unstable();
        let is_enough = current >= Self::needed(limits) && members.len() == WANTED;
        if self.phase == Phase::Filling && !is_enough {
            return None;
        }
        let epoch = self.epoch_to_end(&members, current);
        let changes = current > counted || self.map_differs || epoch > self.map.epoch;
        changes.then_some(ApMap { term, epoch, members })
    }

    fn doubt(&self, member: &Member) -> u8 {
        let link = &self.links[crate::world::place_of(member.peer)];
        match link.stage {
            Stage::Apart => 1,
            _ if u32::from(link.incarnation) == member.incarnation.0 => 0,
            _ => 2,
        }
    }

    /// As in the library: no attempt ends while an entry is of a former copy.
    fn epoch_to_end(&self, members: &[Member], current: usize) -> u64 {
        if current <= F || current < members.len() {
            return self.map.epoch;
        }
        let open = (0..self.links.len())
            .filter(|p| self.links[*p].stage >= Stage::Filling)
            .filter(|p| !members.contains(&self.member(*p)));
        let first = open.map(|p| self.links[p].epoch).min();
        self.map.epoch.max(first.map_or(self.epochs, |first| first - 1))
    }
}

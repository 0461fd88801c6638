//! The ap-map, the registry, and which peers an instance has.
//!
//! # Why an entry may count
//!
//! A copy is entered once it has all records up to the last acknowledged one, and every other entry
//! that goes for it belongs to a copy that this instance has given up, so that nothing is
//! acknowledged by it any more. So at each time the holders of an acknowledged record meet every
//! f+1 of the map's copies. A change whose outcome is unknown may take effect later and does no
//! harm then: its entries still hold what was acknowledged, and copies that are not known to be in
//! the map do not count.

use crate::application::{Application, Phase, State};
use crate::command::{Asker, StoreOperation, StoreReply};
use crate::files::{Files, Images};
use crate::link::{Link, Stage};
use crate::log::Log;
use crate::map::{ApMap, MEMBERS_MAX, Member, PEERS_PREFIX, PeerRecord, map_name, peer_of};
use crate::names::Names;
use crate::number::{FileNumber, Number};
use crate::planted::Mutant;
use crate::recover::{length_by_content, newest};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec;
use alloc::vec::Vec;
use core::cmp::Reverse;
use gabion_base::{Error, Result};
use gabion_control::{Swapped, Version, Versioned};
use gabion_media::remote::PeerId;

/// How long an answer of the store that was an error is not asked for again.
const STORE_RETRY_MS: u64 = 50;

impl<S: Images> Application<S> {
    /// Goes on with whatever the phase is about.
    pub(crate) fn step_control(&mut self) {
        self.poll_registry();
        match self.phase {
            Phase::Leasing | Phase::Ended => {}
            Phase::Claiming => self.poll_claim(),
            Phase::Recovering => self.recover(),
            Phase::Loading => self.load(),
            Phase::Filling | Phase::Running => {
                self.find_peers();
                self.fill();
                self.settle_spare();
                self.propose();
            }
        }
    }

    // The registry.

    fn poll_registry(&mut self) {
        let is_wanted = self.registry.is_none() || self.wants_peers();
        if is_wanted && !self.registry_is_asked && self.now_ms >= self.registry_next_ms {
            self.registry_is_asked = true;
            self.registry_next_ms = self.now_ms + self.options.patience_ms / 4;
            self.ask_store(Asker::Registry, StoreOperation::List(PEERS_PREFIX.into()));
        }
    }

    /// Whether a copy is missing, or a peer has no room for what it should have.
    fn wants_peers(&self) -> bool {
        let is_other = |link: &Link| link.stage < Stage::Filling || link.no_room().is_some();
        self.links.len() < 2 * self.options.f + 1 || self.links.values().any(is_other)
    }

    pub(crate) fn handle_registry(&mut self, reply: Result<StoreReply>) -> Result<()> {
        self.registry_is_asked = false;
        if let Ok(StoreReply::Listed(found)) = reply {
            // A record that this build cannot read is a peer that it cannot use.
            let read = |(name, found): &(alloc::string::String, Versioned)| {
                Some((peer_of(name)?, PeerRecord::decode(&found.value).ok()?))
            };
            self.registry = Some(found.iter().filter_map(read).collect());
        }
        Ok(())
    }

    fn connect(&mut self, peer: PeerId) {
        let Some(record) = self.registry.as_ref().and_then(|registry| registry.get(&peer)) else {
            return;
        };
        if self.links.contains_key(&peer) || self.cooling.contains_key(&peer) {
            return;
        }
        let (domain, address) = (record.domain.clone(), record.address.clone());
        self.send_connect(peer, address);
        let link = Link::new(peer, domain, self.now_ms, self.options.cooling_ms);
        self.links.insert(peer, link);
    }

    /// Copies that are there or being made, and those that are wanted: one more if a peer has no
    /// room for what it should have.
    fn present_and_wanted(&self) -> (usize, usize) {
        let is_present = |link: &&Link| !self.waits_for_room(link);
        let present = self.links.values().filter(is_present).count();
        let is_full = self.phase == Phase::Running && self.counted().any(|it| self.is_full(it));
        (present, 2 * self.options.f + 1 + usize::from(is_full))
    }

    /// Peers for the copies that are missing, with room for one: in other domains than those that
    /// are there, if it can be, and of equal ones those with most memory.
    fn find_peers(&mut self) {
        // Peers without room are not present, and stay until they have some.
        while self.wants_peers()
            && self.links.len() < 2 * self.options.f + 1 + MEMBERS_MAX
            && let (present, wanted) = self.present_and_wanted()
            && present < wanted
            && let Some(registry) = &self.registry
        {
            let in_domain =
                |domain: &str| self.links.values().filter(|link| link.domain == domain).count();
            let is_new =
                |peer: &PeerId| !self.links.contains_key(peer) && !self.cooling.contains_key(peer);
            // One more than all is for a full one.
            let is_spare = present > 2 * self.options.f;
            let has_room = |peer: PeerId| match is_spare {
                true => self.has_more_room(peer),
                false => self.has_room_for_copy(peer),
            };
            let may_hold = |peer: &PeerId| is_new(peer) && has_room(*peer);
            let candidates = registry.iter().filter(|(peer, _)| may_hold(peer));
            let best = candidates.min_by_key(|(peer, record)| {
                (in_domain(&record.domain), Reverse(record.free_bytes), **peer)
            });
            let Some(peer) = best.map(|(peer, _)| *peer) else { return };
            self.connect(peer);
        }
    }

    // Recovery.

    fn recover(&mut self) {
        if self.map.members.is_empty() {
            // Nothing was ever acknowledged.
            return self.begin(Names::default(), 0, Number::ZERO);
        }
        for member in self.map.members.clone() {
            self.connect(member.peer);
        }
        let (map, owner) = (&self.map, self.owner);
        let links = self.links.values_mut().filter(|link| link.stage == Stage::Ready);
        for link in links {
            let entry = map.member(link.peer);
            // Another run of the peer has nothing of what it held.
            if entry.is_some_and(|entry| entry.incarnation == link.incarnation) {
                link.start_reading(owner);
            }
        }
        let known = self.links.values().filter(|link| link.stage == Stage::Known).count();
        if known < self.copies_to_recover() {
            self.known_since_ms = None;
            return;
        }
        let since_ms = *self.known_since_ms.get_or_insert(self.now_ms);
        let is_last = known == self.map.members.len();
        if is_last || self.now_ms >= since_ms + self.options.patience_ms / 4 {
            self.choose();
        }
    }

    /// Copies among which the newest is sought: a majority of the map's. Its writer may have had
    /// another f than this instance.
    pub(crate) fn copies_to_recover(&self) -> usize {
        match self.map.members.len() {
            0 => self.options.f + 1,
            members => members / 2 + 1,
        }
    }

    /// The newest of the copies that are known, a majority at least, is loaded.
    fn choose(&mut self) {
        let is_copy =
            |number: Number| !self.planted.has(Mutant::FirstNumberIsNone) || number > Number(1);
        let links = self.links.values();
        let known = links.filter_map(|link| Some((link.peer, link.copy.as_ref()?)));
        let copies = known.filter(|(_, copy)| is_copy(copy.position.number));
        let Some(peer) = newest(copies, self.planted.has(Mutant::SmallestNumber)) else {
            return self.begin(Names::default(), 0, Number::ZERO);
        };
        let generations = self.links.values().filter_map(|link| link.copy.as_ref());
        let generation = generations.map(|copy| copy.generation).max().unwrap_or(0);
        let Some(link) = self.links.get_mut(&peer) else { return };
        let Some(copy) = link.copy.clone() else { return };
        if let Err(error) = link.start_load() {
            return self.lose(peer, error);
        }
        self.loading = Some(peer);
        let names = copy.names.without_nameless().fitted(&copy.lens);
        self.prepare(names, generation, copy.position.number);
        if self.state.is_some() {
            self.phase = Phase::Loading;
        }
    }

    /// The files of a table, all empty still, and a log that follows `last`.
    fn prepare(&mut self, names: Names, generation: u64, last: Number) {
        let Some(images) = self.images.take() else { return };
        let last = if self.planted.has(Mutant::NumbersRestart) { Number::ZERO } else { last };
        match Files::new(images, self.options.sizes, names, generation + 1) {
            Ok(files) => {
                let log = Log::new(self.owner, self.term, last);
                self.state = Some(State { files, log });
                self.acknowledged = last;
            }
            Err(error) => self.end(error.within("mirrors of the recovered files")),
        }
    }

    fn begin(&mut self, names: Names, generation: u64, last: Number) {
        self.prepare(names, generation, last);
        if self.state.is_some() {
            self.phase = Phase::Filling;
        }
    }

    fn load(&mut self) {
        let link = self.loading.and_then(|peer| self.links.get(&peer));
        let Some(link) = link else {
            // The newest copy is lost. The others, and those that come back, are asked again.
            self.loading = None;
            if let Some(state) = self.state.take() {
                self.images = Some(state.files.into_images());
            }
            self.phase = Phase::Recovering;
            return;
        };
        if !link.is_loaded() {
            return;
        }
        let lens = link.copy.as_ref().map(|copy| copy.lens.clone()).unwrap_or_default();
        self.loading = None;
        match self.load_lens(lens) {
            Ok(()) => self.phase = Phase::Filling,
            Err(error) => self.end(error),
        }
    }

    fn load_lens(&mut self, lens: BTreeMap<FileNumber, u64>) -> Result<()> {
        let Some(state) = &mut self.state else { return Ok(()) };
        for (file, mut len) in lens {
            if self.planted.has(Mutant::LengthByContent) {
                let mut bytes = vec![0; len as usize];
                state.files.load_len(file, len)?;
                let read = state.files.read(file, 0, &mut bytes)?;
                len = length_by_content(&bytes[..read]);
            }
            state.files.load_len(file, len)?;
        }
        Ok(())
    }

    // Filling.

    fn fill(&mut self) {
        let needed = self.needed();
        let is_next = |link: &&Link| {
            matches!(link.stage, Stage::Ready | Stage::Known) && !self.waits_for_room(link)
        };
        let next: Vec<PeerId> = self.links.values().filter(is_next).map(|it| it.peer).collect();
        if !next.is_empty() {
            self.recall();
        }
        let Some(state) = &self.state else { return };
        let window = crate::link::Window { requests: usize::MAX, bytes: usize::MAX };
        let (files, log, planted) = (&state.files, &state.log, self.planted);
        let context = crate::link::Context { files, log, planted, window };
        for peer in next {
            if let Some(link) = self.links.get_mut(&peer) {
                self.epochs += 1;
                link.start_fill(&context, self.epochs);
            }
        }
        // Former copies stay until there are new ones enough.
        let is_copied = |link: &&Link| link.stage >= Stage::Copied && !link.is_given_up();
        let copied = self.links.values().filter(is_copied).count();
        if self.phase == Phase::Running || copied >= needed {
            let copied = self.links.values_mut().filter(|link| link.stage == Stage::Copied);
            copied.filter(|link| !link.is_given_up()).for_each(Link::publish);
        }
    }

    /// The link whose copies wait until the program has its files: those after the first ones that
    /// suffice. They wait for a part of the patience at most, as one of the first may be slow.
    pub(crate) fn first_held_back(&mut self) -> Option<(Reverse<Stage>, u64)> {
        if self.phase != Phase::Filling {
            self.filling_since_ms = None;
            return None;
        }
        // Without former entries beside new ones the map has to wait for all copies.
        if self.map.members.len() < 2 * self.options.f + 1 {
            return None;
        }
        let since_ms = *self.filling_since_ms.get_or_insert(self.now_ms);
        if self.now_ms >= since_ms + self.options.patience_ms / 4 {
            return None;
        }
        let filled = self.links.values().filter(|link| link.stage >= Stage::Filling);
        let mut order: Vec<_> = filled.map(Link::order).collect();
        order.sort_unstable();
        order.get(self.needed()).copied()
    }

    /// Copies that a recovered state needs before it is shown.
    fn needed(&self) -> usize {
        if self.planted.has(Mutant::LaggingNotCaughtUp) { 1 } else { self.options.f + 1 }
    }

    /// A peer without room leaves once another one has a whole copy; or that one does, if all have
    /// room again. The copies that count are f+1 without it.
    fn settle_spare(&mut self) {
        let wanted = 2 * self.options.f + 1;
        if self.links.len() <= wanted || self.counted().count() != wanted {
            return;
        }
        let Some(State { log, .. }) = &self.state else { return };
        let is_spare = |link: &&Link| {
            let is_whole = link.stage == Stage::Full && link.done >= self.acknowledged;
            is_whole && link.has_needs(log) && self.map.member(link.peer).is_none()
        };
        let Some(spare) = self.links.values().find(is_spare).map(|link| link.peer) else { return };
        let full = self.full();
        if full.is_empty() {
            let text = "the application has all the copies that it wants";
            return self.lose(spare, Error::no_space(text));
        }
        // Another one may lack what records on their way need, and go by itself.
        if let Some(full) = full.into_iter().find(|peer| self.can_spare(*peer)) {
            let text = "it has no memory for more, and another peer takes its place";
            self.lose(full, Error::no_space(text));
        }
    }

    // The ap-map.

    fn poll_claim(&mut self) {
        if self.map_is_asked || self.now_ms < self.map_next_ms {
            return;
        }
        if self.map_is_read {
            // Its epoch stays: an attempt of before may have replaced a copy that the map names.
            let claimed = ApMap { term: self.term, ..self.map.clone() };
            self.swap_map(claimed);
        } else {
            self.get_map();
        }
    }

    fn get_map(&mut self) {
        self.map_is_asked = true;
        self.ask_store(Asker::Map, StoreOperation::Get(map_name(&self.options.owner)));
    }

    fn swap_map(&mut self, map: ApMap) {
        self.map_is_asked = true;
        let (name, value) = (map_name(&self.options.owner), map.encode());
        self.proposal = Some(map);
        self.ask_store(Asker::Map, StoreOperation::Swap(name, self.version, value));
    }

    pub(crate) fn handle_map(&mut self, reply: Result<StoreReply>) -> Result<()> {
        self.map_is_asked = false;
        match reply {
            Err(_) => {
                self.map_is_read = false;
                self.map_next_ms = self.now_ms + STORE_RETRY_MS;
                Ok(())
            }
            Ok(StoreReply::Swapped(Swapped::Stored(version))) => {
                self.version = version;
                if let Some(map) = self.proposal.take() {
                    self.adopt(map);
                }
                Ok(())
            }
            Ok(StoreReply::Got(found) | StoreReply::Swapped(Swapped::Lost(found))) => {
                self.found_map(found)
            }
            Ok(StoreReply::Listed(_)) => Err(Error::corruption("the map was not listed")),
        }
    }

    /// The map as it is in the store.
    fn found_map(&mut self, found: Option<Versioned>) -> Result<()> {
        self.map_is_read = true;
        self.version = found.as_ref().map_or(Version::NONE, |found| found.version);
        let found = found.map(|found| ApMap::decode(&found.value)).transpose()?;
        let found = found.unwrap_or_default();
        if self.planted.has(Mutant::MapWithoutCompare) && self.phase > Phase::Claiming {
            self.map_differs = true;
            return Ok(());
        }
        if self.proposal.as_ref() == Some(&found) {
            // It was stored, though the answer was an error.
            self.proposal = None;
            self.adopt(found);
        } else if self.phase > Phase::Claiming && found.term > self.term {
            return Err(self.fenced(found.term));
        } else if self.phase > Phase::Claiming && found == self.map {
            self.map_differs = false;
        } else if self.phase > Phase::Claiming {
            // An older one: the store was set back. Or one of this instance that came late.
            self.map_differs = true;
            self.map.epoch = self.map.epoch.max(found.epoch);
        } else if self.phase == Phase::Claiming && found.term >= self.term {
            // Also of its own term: a lease that was set back gives a term twice.
            self.raise_above(found.term);
        } else if self.phase == Phase::Claiming {
            self.map = found;
        }
        Ok(())
    }

    /// The store has this map, which this instance wrote.
    fn adopt(&mut self, map: ApMap) {
        if self.phase == Phase::Running {
            let is_new = |member: &&Member| !self.map.members.contains(member);
            self.replaced += map.members.iter().filter(is_new).count() as u64;
        }
        (self.map, self.map_differs) = (map, false);
        match self.phase {
            Phase::Claiming => self.phase = Phase::Recovering,
            Phase::Filling if self.counted().count() >= self.needed() => {
                self.phase = Phase::Running;
            }
            _ => {}
        }
        let is_full = self.counted().any(|link| self.is_full(link));
        if self.counted().count() > 2 * self.options.f && !is_full {
            self.leave_surplus();
        }
    }

    /// Lets peers go that a former instance with more copies had: nobody needs them as long as all
    /// that are wanted count.
    fn leave_surplus(&mut self) {
        let is_surplus = |peer: &&PeerId| self.map.member(**peer).is_none();
        let surplus: Vec<PeerId> = self.links.keys().filter(is_surplus).copied().collect();
        for peer in surplus {
            self.lose(peer, Error::unavailable("the application has all the copies that it wants"));
        }
    }

    /// Enters copies that are whole, and ends attempts that failed.
    fn propose(&mut self) {
        if self.map_is_asked || self.now_ms < self.map_next_ms {
            return;
        }
        if !self.map_is_read {
            return self.get_map();
        }
        let wanted = 2 * self.options.f + 1;
        // This is asked at each record.
        let filled = self.links.values().filter(|link| link.stage >= Stage::Filling).count();
        let is_complete = filled == wanted && self.counted().count() == wanted;
        if is_complete && !self.map_differs && self.map.epoch >= self.epochs {
            return;
        }
        let entry = |link: &Link| Member {
            peer: link.peer,
            incarnation: link.incarnation,
            epoch: link.epoch,
        };
        let mut members: Vec<Member> = self.counted().map(entry).collect();
        let counted = members.len();
        let is_whole = |link: &&Link| {
            let has_all = link.stage == Stage::Full && link.done >= self.acknowledged;
            has_all || (self.planted.has(Mutant::MapBeforeCatchUp) && link.stage >= Stage::Filling)
        };
        let whole: Vec<Member> = self.links.values().filter(is_whole).map(entry).collect();
        for member in whole {
            if members.len() < wanted && !members.contains(&member) {
                members.push(member);
            }
        }
        let current = members.len();
        let named: BTreeSet<PeerId> = members.iter().map(|member| member.peer).collect();
        let former = self.map.members.iter().filter(|member| !named.contains(&member.peer));
        let mut former: Vec<Member> = former.copied().collect();
        former.sort_by_key(|member| self.doubt(*member));
        members.extend(former.into_iter().take(wanted - current));
        // With fewer than 2f+1 entries the loss of f could leave fewer than f+1.
        let is_enough = current >= self.needed() && members.len() == wanted;
        if self.phase == Phase::Filling && !is_enough {
            return;
        }
        let epoch = self.epoch_to_end(&members, current);
        if current > counted || self.map_differs || epoch > self.map.epoch {
            self.swap_map(ApMap { term: self.term, epoch, members });
        }
    }

    /// How little is hoped of a former copy: nothing of one of another run of its peer, and less of
    /// one out of reach than of one whose peer is there.
    fn doubt(&self, member: Member) -> u8 {
        match self.links.get(&member.peer) {
            Some(link) if link.stage <= Stage::Fencing => 1,
            Some(link) if link.incarnation == member.incarnation => 0,
            Some(_) => 2,
            None => 1,
        }
    }

    /// Attempts up to this epoch have ended once the map has these members. None ends while an
    /// entry is of a former copy: an attempt that failed may have taken its place at the peer.
    fn epoch_to_end(&self, members: &[Member], current: usize) -> u64 {
        if current <= self.options.f || current < members.len() {
            return self.map.epoch;
        }
        let epochs: BTreeMap<PeerId, u64> =
            members.iter().map(|member| (member.peer, member.epoch)).collect();
        let filling = self.links.values().filter(|link| link.stage >= Stage::Filling);
        let open = filling.filter(|link| epochs.get(&link.peer) != Some(&link.epoch));
        let first = open.map(|link| link.epoch).min();
        self.map.epoch.max(first.map_or(self.epochs, |first| first - 1))
    }
}

//! Steps: what can happen in a state, and the state after it.

use crate::instance::{Instance, Link, Phase, Stage};
use crate::peer::{Cell, Content, Region};
use crate::world::{Defect, Limits, WANTED, World, Wrong, peer_id, run_of};
use gabion_base::Term;
use gabion_ncl::map::{ApMap, Named};

/// Records that an instance issues before the first of them is acknowledged.
const WINDOW: u8 = 2;

/// A step. Instances and peers are given by their place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Action {
    /// An instance takes the lease, in this term.
    Start(usize, u8),
    /// It asks the store to change the map.
    Ask(usize),
    /// The store answers.
    Store(usize),
    /// The answer is lost; the change may yet be made.
    LoseAnswer(usize),
    /// A change that was given up is made late.
    StoreLate(usize),
    Fence(usize, usize),
    ReadNumber(usize, usize),
    Choose(usize),
    Fill(usize, usize),
    Copy(usize, usize),
    Publish(usize, usize),
    Issue(usize),
    /// The first half of a record lands: its data.
    LandData(usize, usize),
    /// The second: its cell.
    LandCell(usize, usize),
    Refuse(usize, usize),
    Reply(usize, usize),
    /// An instance gives up a peer.
    Lose(usize, usize),
    Kill(usize),
    Restart(usize),
    Revoke(usize, usize),
    /// A peer frees what the map does not name.
    Collect(usize),
}

impl Limits {
    /// All that can happen to an instance by its own doing and that of healthy peers, in the order
    /// in which somebody who wants to get on would take it.
    pub(crate) fn progress(&self, world: &World, i: usize, actions: &mut Vec<Action>) {
        let instance = &world.instances[i];
        if instance.asked.is_some() {
            actions.push(Action::Store(i));
        }
        if matches!(instance.phase, Phase::Waiting | Phase::Ended) {
            return;
        }
        if instance.asked.is_none() && instance.proposal(self).is_some() {
            actions.push(Action::Ask(i));
        }
        let peers = || 0..world.peers.len();
        actions.extend(peers().filter(|p| world.is_broken(i, *p)).map(|p| Action::Lose(i, p)));
        for p in peers() {
            self.progress_of_link(world, i, p, actions);
        }
        if instance.phase == Phase::Recovering && self.can_choose(world, i) {
            actions.push(Action::Choose(i));
        }
        if instance.phase == Phase::Running
            && instance.mirror.len < self.records
            && instance.issued < instance.acknowledged + WINDOW
        {
            actions.push(Action::Issue(i));
        }
    }

    fn progress_of_link(&self, world: &World, i: usize, p: usize, actions: &mut Vec<Action>) {
        let (instance, peer) = (&world.instances[i], &world.peers[p]);
        let link = &instance.links[p];
        let recovers = instance.phase == Phase::Recovering;
        let fills = instance.phase >= Phase::Filling;
        let is_there = peer.is_up && !world.is_broken(i, p);
        if link.stage == Stage::Apart {
            let linked = instance.links.iter().filter(|link| link.stage > Stage::Apart).count();
            let is_member = instance.map.member(peer_id(p)).is_some();
            if peer.is_up && ((recovers && is_member) || (fills && linked < WANTED)) {
                actions.push(Action::Fence(i, p));
            }
            if self.has(Defect::ReadBeforeFence) && recovers && self.can_read(world, i, p) {
                actions.push(Action::ReadNumber(i, p));
            }
            return;
        }
        if !is_there {
            return;
        }
        let copied = instance.links.iter().filter(|link| link.stage >= Stage::Copied).count();
        let publishes = instance.phase == Phase::Running || copied >= Instance::needed(self);
        match link.stage {
            Stage::Ready if recovers && self.can_read(world, i, p) => {
                actions.push(Action::ReadNumber(i, p));
            }
            Stage::Ready | Stage::Known if fills => actions.push(Action::Fill(i, p)),
            Stage::Filling => actions.push(Action::Copy(i, p)),
            Stage::Copied if publishes => actions.push(Action::Publish(i, p)),
            _ => {}
        }
        if link.stage < Stage::Copied {
            return;
        }
        if link.landed > link.done {
            actions.push(Action::Reply(i, p));
        }
        if link.landed < instance.issued {
            actions.push(match (world.takes_writes(self, i, p), link.is_half) {
                (true, false) => Action::LandData(i, p),
                (true, true) => Action::LandCell(i, p),
                (false, _) => Action::Refuse(i, p),
            });
        }
    }

    /// Whether the peer has the copy that the map names.
    fn can_read(&self, world: &World, i: usize, p: usize) -> bool {
        let (instance, peer) = (&world.instances[i], &world.peers[p]);
        let member = instance.map.member(peer_id(p));
        let is_run = member.is_some_and(|member| member.incarnation == run_of(peer));
        let holds = peer.holder == Some(i as u8) || self.has(Defect::ReadBeforeFence);
        peer.is_up && is_run && holds && peer.published().is_some()
    }

    fn can_choose(&self, world: &World, i: usize) -> bool {
        let instance = &world.instances[i];
        let known = instance.links.iter().filter(|link| link.known.is_some()).count();
        match instance.map.members.len() {
            0 => true,
            members => known > members / 2,
        }
    }

    /// Faults, and what others do: starts, late changes of the map, collections.
    pub(crate) fn others(&self, world: &World, actions: &mut Vec<Action>) {
        for (i, instance) in world.instances.iter().enumerate() {
            let is_turn = i == 0 || world.instances[i - 1].phase > Phase::Waiting;
            if instance.phase == Phase::Waiting && is_turn {
                // A clock may stand before, at or after the one of whoever held the lease.
                let skews = self.has(Defect::EpochIsClock) && world.store.term > 0;
                let terms = if skews { 1..=world.store.term + 1 } else { 0..=0 };
                let terms = terms.map(|term| if skews { term } else { world.store.term + 1 });
                actions.extend(terms.map(|term| Action::Start(i, term)));
            }
            if instance.asked.is_some() && world.budget.store_errors > 0 {
                actions.push(Action::LoseAnswer(i));
            }
            if instance.stray.is_some() {
                actions.push(Action::StoreLate(i));
            }
            if world.budget.cuts > 0 && instance.phase >= Phase::Recovering {
                let links = (0..instance.links.len())
                    .filter(|p| instance.links[*p].stage > Stage::Apart)
                    .filter(|p| !world.is_broken(i, *p));
                actions.extend(links.map(|p| Action::Lose(i, p)));
            }
        }
        for (p, peer) in world.peers.iter().enumerate() {
            let is_spared = || self.is_disaster || world.can_spare(p);
            if !peer.is_up {
                actions.push(Action::Restart(p));
                continue;
            }
            if world.budget.losses > 0 && is_spared() {
                actions.push(Action::Kill(p));
            }
            for (at, region) in peer.regions.iter().enumerate() {
                if world.budget.revocations > 0 && (!region.is_published || is_spared()) {
                    actions.push(Action::Revoke(p, at));
                }
            }
            if peer.regions.iter().any(|region| world.has_leaked(p, region)) {
                actions.push(Action::Collect(p));
            }
        }
    }

    /// The state after a step.
    pub(crate) fn take(&self, world: &mut World, action: Action) {
        match action {
            Action::Start(i, term) => world.start(i, term),
            Action::Ask(i) => world.ask(self, i),
            Action::Store(i) => world.answer(self, i),
            Action::LoseAnswer(i) => world.lose_answer(i),
            Action::StoreLate(i) => {
                if let Some(change) = world.instances[i].stray.take() {
                    world.swap(change);
                }
            }
            Action::Fence(i, p) => {
                world.fence(i, p);
                let is_ready = world.instances[i].links[p].stage == Stage::Ready;
                let recovers = world.instances[i].phase == Phase::Recovering;
                if !self.is_fine && is_ready && recovers && self.can_read(world, i, p) {
                    world.read_number(i, p);
                }
            }
            Action::ReadNumber(i, p) => world.read_number(i, p),
            Action::Choose(i) => world.choose(self, i),
            Action::Fill(i, p) => {
                world.fill(self, i, p);
                if !self.is_fine && world.instances[i].links[p].stage == Stage::Filling {
                    world.copy(i, p);
                }
            }
            Action::Copy(i, p) => world.copy(i, p),
            Action::Publish(i, p) => {
                let epoch = world.instances[i].links[p].epoch;
                world.peers[p].publish(i as u8, epoch);
                world.instances[i].links[p].stage = Stage::Full;
            }
            Action::Issue(i) => world.issue(i),
            Action::LandData(i, p) => {
                world.land(self, i, p, false);
                if !self.is_fine {
                    world.land(self, i, p, true);
                }
            }
            Action::LandCell(i, p) => world.land(self, i, p, true),
            Action::Refuse(i, p) => world.refuse(self, i, p),
            Action::Reply(i, p) => world.reply(self, i, p),
            Action::Lose(i, p) => {
                if !world.is_broken(i, p) {
                    world.budget.cuts -= 1;
                }
                world.instances[i].links[p] = Link::default();
            }
            Action::Kill(p) => {
                world.budget.losses -= 1;
                world.peers[p].kill();
            }
            Action::Restart(p) => world.peers[p].restart(),
            Action::Revoke(p, at) => {
                world.budget.revocations -= 1;
                world.peers[p].regions.remove(at);
            }
            Action::Collect(p) => {
                let map = world.store.map.clone();
                let run = run_of(&world.peers[p]);
                let never = |epoch| map.names(peer_id(p), run, epoch) == Named::Never;
                world.peers[p].regions.retain(|region| !never(region.epoch));
            }
        }
        world.settle(self);
    }
}

impl World {
    fn has_leaked(&self, p: usize, region: &Region) -> bool {
        let run = run_of(&self.peers[p]);
        self.store.map.names(peer_id(p), run, region.epoch) == Named::Never
    }

    /// Whether an instance finds out that a peer is lost: it died, or took back the new copy.
    pub(crate) fn is_broken(&self, i: usize, p: usize) -> bool {
        let (link, peer) = (&self.instances[i].links[p], &self.peers[p]);
        let lacks = link.stage >= Stage::Filling && peer.place(i as u8, link.epoch).is_none();
        link.stage > Stage::Apart && (!peer.is_up || peer.incarnation != link.incarnation || lacks)
    }

    /// Whether bytes of an instance land. In shared memory nobody can refuse them.
    fn takes_writes(&self, limits: &Limits, i: usize, p: usize) -> bool {
        let (link, peer) = (&self.instances[i].links[p], &self.peers[p]);
        peer.place(i as u8, link.epoch).is_some()
            && (limits.is_shared || limits.has(Defect::KeysStay) || peer.holder == Some(i as u8))
    }

    /// The lease's term is one more than that before, by compare-and-set.
    fn start(&mut self, i: usize, term: u8) {
        self.store.term = term;
        let instance = &mut self.instances[i];
        (instance.phase, instance.term) = (Phase::Claiming, term);
        instance.epochs = ApMap::first_epoch(Term(u64::from(term)));
        (instance.map, instance.version) = (self.store.map.clone(), self.store.version);
    }

    fn ask(&mut self, limits: &Limits, i: usize) {
        let instance = &mut self.instances[i];
        let asked = instance.proposal(limits);
        instance.asked = asked.map(|map| (instance.version, map));
    }

    /// Compare-and-set. False when the map has another version.
    fn swap(&mut self, (version, map): (u8, ApMap)) -> bool {
        let is_same = version == self.store.version;
        if is_same {
            self.store.version += 1;
            self.store.map = map;
        }
        is_same
    }

    fn answer(&mut self, limits: &Limits, i: usize) {
        let Some((version, map)) = self.instances[i].asked.take() else { return };
        if self.swap((version, map.clone())) {
            self.adopt(limits, i, map);
        } else {
            self.find_map(i);
        }
    }

    /// The instance reads the map again, and goes on with what it finds.
    fn lose_answer(&mut self, i: usize) {
        self.budget.store_errors -= 1;
        self.instances[i].stray = self.instances[i].asked.take();
        self.find_map(i);
    }

    /// The store has this map, which the instance wrote.
    fn adopt(&mut self, limits: &Limits, i: usize, map: ApMap) {
        let version = self.store.version;
        let instance = &mut self.instances[i];
        (instance.map, instance.version, instance.map_differs) = (map, version, false);
        match instance.phase {
            Phase::Claiming => instance.phase = Phase::Recovering,
            Phase::Filling if instance.counted(limits) >= Instance::needed(limits) => {
                instance.phase = Phase::Running;
                self.note_shown(i);
            }
            _ => {}
        }
    }

    /// The store has another map, or another version of it.
    fn find_map(&mut self, i: usize) {
        let found = self.store.map.clone();
        let instance = &mut self.instances[i];
        instance.version = self.store.version;
        if found.term > Term(u64::from(instance.term)) {
            instance.end();
        } else if instance.phase == Phase::Claiming {
            instance.map = found;
        } else if found == instance.map {
            instance.map_differs = false;
        } else {
            instance.map_differs = true;
            instance.map.epoch = instance.map.epoch.max(found.epoch);
        }
    }

    fn fence(&mut self, i: usize, p: usize) {
        let (instance, peer) = (&mut self.instances[i], &mut self.peers[p]);
        if !peer.fence(i as u8, instance.term) {
            // It learns of a later term: another instance has the lease.
            return instance.end();
        }
        let known = instance.links[p].known;
        let (stage, incarnation) = (Stage::Ready, peer.incarnation);
        instance.links[p] = Link { stage, incarnation, known, ..Link::default() };
    }

    /// docs/near-compute-logs.md, step 4: keys change first.
    fn read_number(&mut self, i: usize, p: usize) {
        let (instance, peer) = (&mut self.instances[i], &self.peers[p]);
        let link = &mut instance.links[p];
        let is_fenced = peer.term >= instance.term;
        link.known = peer.published().map(|region| region.cell);
        if link.stage == Stage::Ready {
            link.stage = Stage::Known;
        }
        if !is_fenced {
            self.note(Wrong::ReadUnfenced);
        }
    }

    /// The newest of the copies that are known is loaded.
    fn choose(&mut self, limits: &Limits, i: usize) {
        let known = (0..self.peers.len()).filter_map(|p| {
            let cell = self.instances[i].links[p].known?;
            (!limits.has(Defect::FirstNumberIsNone) || cell.number > 1).then_some((p, cell))
        });
        let order = |(p, cell): &(usize, Cell)| {
            let term = if limits.has(Defect::NumbersRestart) { 0 } else { cell.term };
            (term, cell.number, self.is_intact(*p))
        };
        let chosen = if limits.has(Defect::SmallestNumber) {
            known.min_by_key(order)
        } else {
            known.max_by_key(order)
        };
        let Some((p, cell)) = chosen else {
            return self.instances[i].begin(Content::default(), 0);
        };
        let Some(region) = self.peers[p].published() else {
            // It was lost meanwhile; the others, and those that come back, are asked again.
            self.instances[i].links[p] = Link::default();
            return;
        };
        let mut content = Content { len: cell.len, bytes: region.bytes }.prefix(cell.len);
        if limits.has(Defect::LengthByContent) {
            let last = content.bytes.iter().rposition(|byte| *byte != 0);
            content.len = last.map_or(0, |last| last as u8 + 1);
        }
        let restarts = limits.has(Defect::NumbersRestart);
        self.instances[i].begin(content, if restarts { 0 } else { cell.number });
    }

    /// Whether the data of the newest record fits its cell.
    fn is_intact(&self, p: usize) -> bool {
        self.peers[p].published().is_some_and(|region| match region.cell.len.checked_sub(1) {
            Some(last) => is_zero(last) || region.bytes[last as usize] != 0,
            None => true,
        })
    }

    /// A region for a new copy, which begins with what is issued until now.
    fn fill(&mut self, limits: &Limits, i: usize, p: usize) {
        let (instance, peer) = (&mut self.instances[i], &mut self.peers[p]);
        if peer.holder != Some(i as u8) {
            // The lend is refused, under an older term or an older key.
            return match peer.term > instance.term {
                true => instance.end(),
                false => instance.links[p] = Link::default(),
            };
        }
        instance.epochs += 1;
        let link = &mut instance.links[p];
        (link.stage, link.epoch, link.known) = (Stage::Filling, instance.epochs, None);
        (link.landed, link.done) = (instance.issued, instance.issued);
        if limits.has(Defect::CatchUpInPlace) {
            peer.regions.clear();
        }
        let (by, epoch) = (i as u8, instance.epochs);
        let region = Region {
            by,
            epoch,
            is_published: false,
            cell: Cell::default(),
            bytes: Default::default(),
        };
        peer.regions.push(region);
    }

    /// The copy lands, up to the record that was the last when it began.
    fn copy(&mut self, i: usize, p: usize) {
        let (instance, peer) = (&mut self.instances[i], &mut self.peers[p]);
        let link = &mut instance.links[p];
        let Some(at) = peer.place(i as u8, link.epoch) else { return };
        let (term, number) = (instance.term, link.landed);
        let len = instance.base_len + number - instance.base_number;
        let region = &mut peer.regions[at];
        region.cell = Cell { term, number, len };
        region.bytes = instance.mirror.prefix(len).bytes;
        link.stage = Stage::Copied;
    }

    fn issue(&mut self, i: usize) {
        let instance = &mut self.instances[i];
        let at = instance.mirror.len;
        instance.mirror.bytes[at as usize] = if is_zero(at) { 0 } else { instance.term };
        instance.mirror.len += 1;
        instance.issued += 1;
    }

    fn land(&mut self, limits: &Limits, i: usize, p: usize, is_second: bool) {
        let instance = &mut self.instances[i];
        let number = instance.links[p].landed + 1;
        let (term, len) = (instance.term, instance.position(number));
        let byte = instance.mirror.bytes[len as usize - 1];
        let link = &mut instance.links[p];
        let Some(at) = self.peers[p].place(i as u8, link.epoch) else { return };
        let region = &mut self.peers[p].regions[at];
        if is_second == limits.has(Defect::NumberBeforeData) {
            region.bytes[len as usize - 1] = byte;
        } else {
            region.cell = Cell { term, number, len };
        }
        link.is_half = !is_second;
        if is_second {
            link.landed = number;
        }
    }

    /// A peer refuses a record: it has a later term, another key, or not the region any more.
    fn refuse(&mut self, limits: &Limits, i: usize, p: usize) {
        let (instance, peer) = (&mut self.instances[i], &self.peers[p]);
        if limits.has(Defect::ErrorCounts) {
            instance.links[p].landed += 1;
        } else if peer.term > instance.term {
            instance.end();
        } else {
            instance.links[p] = Link::default();
        }
    }

    /// A reply arrives. In shared memory it is the writer's look at the gate of its region.
    fn reply(&mut self, limits: &Limits, i: usize, p: usize) {
        let peer = &self.peers[p];
        if limits.is_shared && peer.holder != Some(i as u8) && !limits.has(Defect::KeysStay) {
            return self.refuse(limits, i, p);
        }
        self.instances[i].links[p].done = self.instances[i].links[p].landed;
    }

    /// Every step's consequences: acknowledgements.
    fn settle(&mut self, limits: &Limits) {
        for i in 0..self.instances.len() {
            let instance = &mut self.instances[i];
            if instance.phase != Phase::Running {
                continue;
            }
            let reached = instance.reached(limits);
            if reached > instance.acknowledged {
                instance.acknowledged = reached;
                self.note_acknowledged(i);
            }
        }
    }
}

/// Whether a record at this place is a zero.
pub(crate) const fn is_zero(at: u8) -> bool {
    at % 2 == 1
}

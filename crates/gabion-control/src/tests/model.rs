//! A group of model members, one or two controllers and a store, with faults drawn from a seed.
//!
//! A member of the model keeps the acknowledged writes that it has. A write is acknowledged when
//! every full member of a view acts in that view, and each keeps it. Whenever a view begins, its
//! full members have to have every write that was ever acknowledged: one has all of them, and the
//! others, once filled, lack no more than an end of the log, which they get from that one.

use crate::record::GroupRecord;
use crate::store::{MemoryStore, Store, Version};
use crate::{Command, Controller, Epoch, Moment, Output, Patience, Probe, Report};
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;
use gabion_base::{ConfigNumber, Error, GroupId, LogKind, ReplicaId};
use gabion_replication::{GroupView, Member};

const GROUP: GroupId = GroupId(1);
const NAME: &str = "groups/1";
const EPOCH: &str = "epoch";
/// A step of the model.
const STEP_MS: u64 = 20;

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound
    }

    fn one_in(&mut self, bound: u64) -> bool {
        self.below(bound) == 0
    }
}

/// A member, or a replica that may become one.
#[derive(Clone)]
struct Replica {
    me: Member,
    view: Option<GroupView>,
    founded: ConfigNumber,
    writes: BTreeSet<u64>,
    /// Has all that the group has, as a member that is being filled.
    is_filled: bool,
    /// Was filled in this life of its disk, or was made with the group: it lacks an end of the log
    /// at most.
    is_whole: bool,
    epoch: Epoch,
    /// Neither runs nor hears until then.
    away_until: u64,
    /// Reports do not reach any controller until then; members hear each other.
    cut_until: u64,
}

impl Replica {
    fn new(id: u32) -> Self {
        let mut me = Member::new(ReplicaId(id));
        me.pool_id = [id as u8; 16];
        Self {
            me,
            view: None,
            founded: ConfigNumber::ZERO,
            writes: BTreeSet::new(),
            is_filled: false,
            is_whole: false,
            epoch: Epoch::default(),
            away_until: 0,
            cut_until: 0,
        }
    }

    fn report(&self, unheard: Vec<ReplicaId>) -> Report {
        let has_begun = |view: &GroupView| view.waits() || self.founded >= view.config;
        let is_full = |view: &&GroupView| view.has_full(self.me.replica);
        Report {
            group: GROUP,
            member: self.me.clone(),
            view: self.view.clone(),
            founded: self.founded,
            is_filled: self.is_filled,
            is_whole: self.view.as_ref().filter(is_full).is_some_and(has_begun),
            filling: None,
            vitals: None,
            unheard,
            probe: Probe::Well,
            epoch: self.epoch,
        }
    }

    /// As `Node::handle_view`: a later view is taken, another one of the same number is not, nor
    /// one that means another disk.
    fn take(&mut self, view: GroupView, epoch: Epoch) {
        self.epoch = self.epoch.max(epoch);
        let is_me = |member: &Member| member.replica == self.me.replica;
        if view.members.iter().any(|member| is_me(member) && member.pool_id != self.me.pool_id) {
            return;
        }
        if self.view.as_ref().is_none_or(|known| known.config < view.config) {
            self.view = Some(view);
            self.is_filled = false;
        }
    }
}

/// A controller and the answers of the store that are on their way to it.
struct Running {
    machine: Controller,
    answers: VecDeque<(u64, Output)>,
    asleep_until: u64,
}

struct World {
    random: Random,
    now_ms: u64,
    store: MemoryStore,
    controllers: Vec<Option<Running>>,
    replicas: BTreeMap<ReplicaId, Replica>,
    /// The last fault ends then.
    calm_since: u64,
    /// No fault comes before.
    calm_until: u64,
    /// The store may be set back. Then no disk is lost: after both, at a bad time, nobody knows
    /// which members have everything, and the group waits for an operator.
    is_set_back: bool,
    /// The store as it was at some time.
    backup: MemoryStore,
    /// Views that began, by their number.
    begun: BTreeMap<ConfigNumber, GroupView>,
    acknowledged: BTreeSet<u64>,
    next_write: u64,
    /// Reads that a survivor answered below the minimum.
    reads_alone: u64,
}

fn is_full(view: &GroupView, replica: ReplicaId) -> bool {
    view.members.iter().any(|member| member.replica == replica && member.is_full)
}

fn full(view: &GroupView) -> impl Iterator<Item = ReplicaId> + '_ {
    view.full().map(|member| member.replica)
}

impl World {
    fn new(seed: u64, members: u32, spares: u32, members_min: u8) -> Self {
        let founders: Vec<_> = (1..=members).map(ReplicaId).collect();
        let mut view = GroupView::founding(GROUP, &founders, LogKind::Shared);
        view.members_min = members_min;
        let mut replicas: BTreeMap<_, _> =
            (1..=members + spares).map(|id| (ReplicaId(id), Replica::new(id))).collect();
        for member in &mut view.members {
            member.pool_id = replicas[&member.replica].me.pool_id;
        }
        for founder in founders {
            let replica = replicas.get_mut(&founder).unwrap();
            (replica.view, replica.founded) = (Some(view.clone()), view.config);
            replica.is_whole = true;
        }
        let mut store = MemoryStore::default();
        let record = GroupRecord::founding(view.clone()).encode();
        store.swap(NAME, Version::NONE, &record).unwrap();
        Self {
            random: Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1),
            now_ms: 1_000,
            calm_since: 0,
            calm_until: 0,
            is_set_back: seed.is_multiple_of(3),
            backup: store.clone(),
            store,
            controllers: Vec::new(),
            replicas,
            begun: BTreeMap::from([(view.config, view)]),
            acknowledged: BTreeSet::new(),
            next_write: 0,
            reads_alone: 0,
        }
    }

    fn moment(&self) -> Moment {
        Moment { now_ms: self.now_ms, unix_ms: self.now_ms }
    }

    fn start_controller(&mut self, at: usize) {
        let found = self.store.get(EPOCH).unwrap();
        let (version, last) = found.map_or((Version::NONE, 0), |found| {
            (found.version, u64::from_le_bytes(found.value.try_into().unwrap()))
        });
        let epoch = Epoch { number: last + 1, id: self.random.below(1 << 40) };
        self.store.swap(EPOCH, version, &epoch.number.to_le_bytes()).unwrap();
        let found = self.store.get(NAME).unwrap().unwrap();
        let record = GroupRecord::decode(&found.value).unwrap();
        let records = [(found.version, record)];
        let start_ms = 400 + self.random.below(2_000);
        let replace_ms = [0, 2_000, 600_000][self.random.below(3) as usize];
        let patience = Patience { start_ms, replace_ms, ..Patience::default() };
        let machine = Controller::new(patience, epoch, records, self.moment());
        let running = Running { machine, answers: VecDeque::new(), asleep_until: 0 };
        self.controllers.resize_with(self.controllers.len().max(at + 1), || None);
        self.controllers[at] = Some(running);
    }

    /// Time passes, and everything that follows happens, some of it later.
    fn step(&mut self) {
        self.now_ms += STEP_MS;
        for at in 0..self.controllers.len() {
            self.run_controller(at);
        }
        self.begin_views();
        self.fill();
        self.write();
        self.read();
    }

    /// The members of a replica's view that do not run.
    fn unheard_by(&self, replica: &Replica) -> Vec<ReplicaId> {
        let members = replica.view.iter().flat_map(|view| &view.members);
        members.map(|member| member.replica).filter(|id| !self.is_here(*id)).collect()
    }

    fn run_controller(&mut self, at: usize) {
        let (now, now_ms) = (self.moment(), self.now_ms);
        let Some(mut running) = self.controllers[at].take() else { return };
        if running.asleep_until <= now_ms {
            let is_time =
                |id: &ReplicaId| (now_ms / STEP_MS + u64::from(id.get())).is_multiple_of(5);
            let reporting = self.replicas.iter().filter(|(id, replica)| {
                is_time(id) && replica.away_until <= now_ms && replica.cut_until <= now_ms
            });
            let reports: Vec<_> =
                reporting.map(|(_, replica)| replica.report(self.unheard_by(replica))).collect();
            running.machine.handle_tick(now);
            for report in reports.into_iter().filter(|_| !self.random.one_in(20)) {
                running.machine.handle_report(report, now);
            }
            while running.answers.front().is_some_and(|(due_ms, _)| *due_ms <= now_ms) {
                let Some((_, output)) = running.answers.pop_front() else { break };
                self.answer(&mut running.machine, output);
            }
            while let Some(output) = running.machine.poll_output() {
                self.carry_out(&mut running, output);
            }
        }
        self.controllers[at] = Some(running);
    }

    fn carry_out(&mut self, running: &mut Running, output: Output) {
        match output {
            Output::Tell { to, view, epoch } => {
                let now_ms = self.now_ms;
                let is_lost = self.random.one_in(10);
                let Some(replica) = self.replicas.get_mut(&to).filter(|_| !is_lost) else { return };
                if replica.away_until <= now_ms && replica.cut_until <= now_ms {
                    replica.take(view, epoch);
                }
            }
            other => running.answers.push_back((self.now_ms + self.random.below(100), other)),
        }
    }

    /// The store answers, or fails after or before it stored.
    fn answer(&mut self, machine: &mut Controller, output: Output) {
        let now = self.moment();
        let fails = self.random.one_in(12);
        match output {
            Output::Swap { group, expected, record } => {
                let stores = !fails || self.random.one_in(2);
                let swapped = stores.then(|| self.store.swap(NAME, expected, &record).unwrap());
                let swapped = swapped.filter(|_| !fails);
                let swapped = swapped.ok_or_else(|| Error::unavailable("the store is away"));
                machine.handle_swapped(group, swapped, now);
            }
            Output::Read { group } => {
                let read = self.store.get(NAME);
                let read = if fails { Err(Error::unavailable("the store is away")) } else { read };
                machine.handle_read(group, read, now);
            }
            Output::Tell { .. } => unreachable!("told at once"),
        }
    }

    fn is_here(&self, replica: ReplicaId) -> bool {
        self.replicas[&replica].away_until <= self.now_ms
    }

    /// The newest view in which every full member is and acts.
    fn running_view(&self) -> Option<GroupView> {
        let views = self.replicas.values().filter_map(|replica| replica.view.as_ref());
        let acts = |view: &GroupView| {
            full(view).all(|id| self.is_here(id) && self.replicas[&id].view.as_ref() == Some(view))
        };
        views.filter(|view| acts(view)).max_by_key(|view| view.config).cloned()
    }

    /// A view begins where all its full members act in it; each of them must have everything.
    fn begin_views(&mut self) {
        let Some(view) = self.running_view() else { return };
        if view.waits() {
            for id in full(&view) {
                self.replicas.get_mut(&id).unwrap().founded = view.config;
            }
            return;
        }
        if full(&view).all(|id| self.replicas[&id].founded >= view.config) {
            return;
        }
        let most = full(&view).map(|id| self.replicas[&id].writes.len()).max();
        let (most, all) = (most.unwrap_or_default(), self.acknowledged.len());
        assert_eq!(most, all, "the longest log of {} has {most} of {all} writes", view.config);
        for id in full(&view) {
            let replica = self.replicas.get_mut(&id).unwrap();
            assert!(replica.is_whole, "{id} is full in {} and has no files", view.config);
            replica.writes.clone_from(&self.acknowledged);
            replica.founded = view.config;
        }
        if let Some(other) = self.begun.insert(view.config, view.clone()) {
            assert_eq!(other, view, "two views of one number began");
        }
        let before: Vec<_> = self.begun.keys().copied().filter(|c| *c > view.config).collect();
        assert!(before.is_empty(), "{} begins after {before:?}", view.config);
    }

    /// Members that are being filled get what the others have, and follow from then on.
    fn fill(&mut self) {
        let Some(view) = self.running_view().filter(|view| !view.waits()) else { return };
        let source = self.replicas[&view.writer()].writes.clone();
        for member in view.members.iter().filter(|member| !member.is_full) {
            let quick = self.random.one_in(4);
            let replica = self.replicas.get_mut(&member.replica).unwrap();
            let acts = replica.view.as_ref() == Some(&view) && replica.away_until <= self.now_ms;
            if acts && (quick || replica.is_filled) {
                replica.writes.clone_from(&source);
                (replica.is_filled, replica.is_whole) = (true, true);
            }
        }
    }

    fn write(&mut self) {
        let Some(view) = self.running_view().filter(|view| view.too_few().is_none()) else {
            return;
        };
        self.next_write += 1;
        for id in full(&view) {
            self.replicas.get_mut(&id).unwrap().writes.insert(self.next_write);
        }
        // One that was filled gets every record as the full ones do, before it is acknowledged.
        let now_ms = self.now_ms;
        for (id, replica) in &mut self.replicas {
            let is_here = replica.away_until <= now_ms;
            if replica.is_filled
                && !is_full(&view, *id)
                && !(is_here && replica.view.as_ref() == Some(&view))
            {
                replica.is_filled = false;
            } else if replica.is_filled {
                replica.writes.insert(self.next_write);
            }
        }
        self.acknowledged.insert(self.next_write);
    }

    /// The reader of a view, its last full member, has every write that was ever acknowledged, as
    /// long as every other full one promises that it acts in no newer view.
    fn read(&mut self) {
        for replica in self.replicas.values() {
            let id = replica.me.replica;
            let Some(view) = replica.view.as_ref().filter(|view| view.reader() == id) else {
                continue;
            };
            let acts =
                |id: ReplicaId| self.is_here(id) && self.replicas[&id].view.as_ref() == Some(view);
            let has_begun = view.waits() || replica.founded >= view.config;
            if has_begun && full(view).all(acts) {
                let (has, all) = (replica.writes.len(), self.acknowledged.len());
                assert!(has >= all, "{id} answers in {} with {has} of {all} writes", view.config);
                self.reads_alone += u64::from(view.waits());
            }
        }
    }

    /// Whether a disk may be lost: where only one other member has everything, as nothing else
    /// happens. A pause of that one would have the group wait for an operator.
    fn may_lose_a_disk(&mut self) -> bool {
        let found = self.store.get(NAME).unwrap().unwrap();
        let record = GroupRecord::decode(&found.value).unwrap();
        let is_calm = self.calm_since + 3_000 < self.now_ms && record.intended.is_none();
        self.running_view().as_ref() == Some(record.newest())
            && (record.trusted.len() > 2 || (record.trusted.len() == 2 && is_calm))
    }

    fn fault(&mut self) {
        let count = self.replicas.len() as u64;
        let id = ReplicaId(1 + self.random.below(count) as u32);
        let until = self.now_ms + 50 + self.random.below(6_000);
        if self.now_ms < self.calm_until {
            return;
        }
        let replica = self.replicas.get_mut(&id).unwrap();
        match self.random.below(10) {
            0..=2 => replica.away_until = until,
            3 => replica.cut_until = until,
            4 if !self.is_set_back && self.may_lose_a_disk() => {
                let incarnation = self.replicas[&id].me.incarnation + 1;
                let mut fresh = Replica::new(id.get());
                fresh.me.pool_id = [100 + (incarnation % 100) as u8; 16];
                fresh.me.incarnation = incarnation;
                fresh.away_until = self.now_ms + 200;
                self.replicas.insert(id, fresh);
                self.calm_until = self.now_ms + 3_000;
                return;
            }
            5 => {
                let at = self.random.below(self.controllers.len() as u64) as usize;
                if let Some(running) = &mut self.controllers[at] {
                    running.asleep_until = until;
                }
            }
            6 => {
                let at = self.random.below(self.controllers.len() as u64) as usize;
                self.controllers[at] = None;
                self.start_controller(at);
            }
            7 if self.is_set_back && self.random.one_in(3) => {
                self.store = self.backup.clone();
                for at in 0..self.controllers.len() {
                    self.controllers[at] = None;
                    self.start_controller(at);
                }
            }
            8 => return self.command(id),
            _ if self.random.one_in(3) => self.backup = self.store.clone(),
            _ => return,
        }
        self.calm_since = self.calm_since.max(until);
    }

    /// An operator says something to a controller, which may refuse it.
    fn command(&mut self, id: ReplicaId) {
        let at = self.random.below(self.controllers.len() as u64) as usize;
        let other = ReplicaId(1 + self.random.below(self.replicas.len() as u64) as u32);
        let command = match self.random.below(5) {
            0 => Command::Add(id),
            1 => Command::Remove(id),
            2 => Command::Replace(id, None),
            3 => Command::Replace(id, Some(other)),
            _ => Command::FailOver(Some(id).filter(|_| self.random.one_in(2))),
        };
        let now = self.moment();
        if let Some(running) = &mut self.controllers[at] {
            let _ = running.machine.handle_command(GROUP, command, now);
        }
    }

    /// Everybody is back and hears: the group has what it wants within ten seconds.
    fn heal(&mut self) {
        for replica in self.replicas.values_mut() {
            (replica.away_until, replica.cut_until) = (0, 0);
        }
        for running in self.controllers.iter_mut().flatten() {
            running.asleep_until = 0;
        }
        for _ in 0..10_000 / STEP_MS {
            self.step();
        }
        let found = self.store.get(NAME).unwrap().unwrap();
        let record = GroupRecord::decode(&found.value).unwrap();
        let events: Vec<_> = record.events.iter().map(|event| &event.text).collect();
        assert_eq!(record.intended, None, "{events:#?}");
        let view = &record.complete;
        // One more, where a third was taken to get above the minimum.
        assert!(full(view).count() >= usize::from(record.wanted), "{view:?} {events:#?}");
        assert_eq!(self.running_view().as_ref(), Some(view), "{events:#?}");
    }
}

/// A run of half a minute; returns how many views began, and how often a survivor alone could have
/// answered reads.
fn run(seed: u64) -> (usize, u64) {
    let mut random = Random(seed.wrapping_mul(0xbf58_476d_1ce4_e5b9) | 1);
    let (members, spares) = (2 + random.below(4) as u32, random.below(3) as u32);
    let members_min = 1 + random.below(u64::from(members)) as u8;
    let mut world = World::new(seed, members, spares, members_min);
    for at in 0..=random.below(2) as usize {
        world.start_controller(at);
    }
    for round in 0..1_500 {
        if round > 20 && world.random.one_in(25) {
            world.fault();
        }
        world.step();
    }
    world.heal();
    (world.begun.len(), world.reads_alone)
}

/// docs/faults.md: R8
#[test]
fn whoever_fails_acknowledged_writes_are_kept_and_the_group_is_whole_again() {
    let seeds = std::env::var("GABION_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(20);
    let (mut begun, mut alone) = (0, 0);
    for seed in 1..=seeds {
        std::eprintln!("seed {seed}");
        let (views, reads) = run(seed);
        (begun, alone) = (begun + views, alone + reads);
    }
    assert!(alone > 0, "survivors answer reads below the minimum");
    assert!(begun > 4 * seeds as usize, "{begun} views in {seeds} runs: faults change the members");
}

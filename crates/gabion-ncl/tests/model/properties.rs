//! The model for stateright, and what must hold in every state.

use crate::instance::{Instance, Phase};
use crate::rules::Action;
use crate::world::{F, Limits, World, Wrong};
use stateright::{Model, Property};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};

/// Steps within which somebody who wants to get on must have got there.
const STEPS_MAX: usize = 120;

thread_local! {
    /// States of peers and store from which an instance recovers: the others have no part in it.
    static RECOVERED: RefCell<BTreeSet<u64>> = RefCell::default();
}

/// Properties that hold by [`Wrong`].
const NEVER: [(&str, Wrong); 5] = [
    ("no empty log is shown", Wrong::Empty),
    ("no log is shortened by recovery", Wrong::Shortened),
    ("recovery changes nothing", Wrong::Changed),
    ("no former instance gets a write acknowledged", Wrong::FormerAcknowledged),
    ("keys change before numbers are read", Wrong::ReadUnfenced),
];
const RECOVERS: &str = "a new instance can always recover";
const PROCEEDS: &str = "the instance that runs can always go on";

impl Model for Limits {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        let mut world = World::new(self);
        if !self.from_nothing {
            self.take(&mut world, Action::Start(0, 1));
            while self.counted(&world, 0) < self.peers.min(3) {
                let step = self.next_of(&world, 0).expect("a first instance comes to run");
                self.take(&mut world, step);
            }
        }
        world.representative();
        vec![world]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        // A state that must not be proves nothing by its successors.
        if world.wrong.is_some() {
            return;
        }
        (0..world.instances.len()).for_each(|i| self.progress(world, i, actions));
        self.others(world, actions);
    }

    fn next_state(&self, world: &World, action: Action) -> Option<World> {
        let mut next = world.clone();
        self.take(&mut next, action);
        next.representative();
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let [empty, shortened, changed, former, unfenced] = NEVER.map(|(name, _)| name);
        let mut properties = vec![
            Property::always(empty, |_, world: &World| world.wrong != Some(Wrong::Empty)),
            Property::always(shortened, |_, world: &World| world.wrong != Some(Wrong::Shortened)),
            Property::always(changed, |_, world: &World| world.wrong != Some(Wrong::Changed)),
            Property::always(former, |_, world: &World| {
                world.wrong != Some(Wrong::FormerAcknowledged)
            }),
            Property::always(unfenced, |_, world: &World| world.wrong != Some(Wrong::ReadUnfenced)),
            Property::always(RECOVERS, |limits: &Self, world: &World| {
                limits.is_disaster || limits.recovers(world)
            }),
            Property::always(PROCEEDS, |limits: &Self, world: &World| {
                limits.is_disaster || limits.proceeds(world)
            }),
        ];
        properties.extend(self.reachable());
        properties
    }
}

impl Limits {
    /// Something must happen at all.
    fn reachable(&self) -> Vec<Property<Self>> {
        let all = Property::sometimes(
            "the last one runs with all records",
            |limits: &Self, world: &World| {
                let last = world.instances.last();
                last.is_some_and(|it| it.phase == Phase::Running)
                    && world.promised.len == limits.records
            },
        );
        let down =
            Property::sometimes("a record is acknowledged with a peer down", |_, world: &World| {
                let runs = world.running().map(|i| &world.instances[i]);
                runs.is_some_and(|it| it.acknowledged > it.base_number)
                    && world.peers.iter().filter(|peer| !peer.is_up).count() == F
            });
        let former =
            Property::sometimes("a former instance waits for a record", |_, world: &World| {
                let latest = world.latest.map_or(0, |latest| latest as usize);
                let is_late =
                    |it: &Instance| it.phase == Phase::Running && it.issued > it.acknowledged;
                world.instances[..latest].iter().any(is_late)
            });
        let mut reachable = vec![all];
        reachable.extend((self.budget.losses > 0).then_some(down));
        reachable.extend((self.instances > 1).then_some(former));
        reachable
    }

    fn counted(&self, world: &World, i: usize) -> usize {
        world.instances[i].counted(self)
    }

    /// The next step of an instance that wants to get on.
    fn next_of(&self, world: &World, i: usize) -> Option<Action> {
        let mut actions = Vec::new();
        self.progress(world, i, &mut actions);
        let is_record = |action: &Action| matches!(action, Action::Issue(_));
        actions.into_iter().find(|action| !is_record(action))
    }

    /// Whether the instance comes where it should by its own steps, while no fault comes, nobody
    /// who is down comes back and no other instance does anything.
    fn comes_to(&self, world: &mut World, i: usize, is_there: impl Fn(&Instance) -> bool) -> bool {
        for _ in 0..STEPS_MAX {
            if is_there(&world.instances[i]) {
                return world.wrong.is_none();
            }
            let Some(step) = self.next_of(world, i) else { return false };
            self.take(world, step);
        }
        false
    }

    /// Whether another instance that starts now comes to run, and has all that was promised, if
    /// all others are dead.
    fn recovers(&self, world: &World) -> bool {
        if world.wrong.is_some() {
            return true;
        }
        let key = (&world.peers, &world.store, &world.promised);
        let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(key);
        if RECOVERED.with_borrow(|recovered| recovered.contains(&hash)) {
            return true;
        }
        let mut world = world.clone();
        let i = world.instances.len();
        world.instances.push(Instance::new(world.peers.len()));
        let term = world.store.term + 1;
        self.take(&mut world, Action::Start(i, term));
        let recovers = self.comes_to(&mut world, i, |it| it.phase == Phase::Running);
        if recovers {
            RECOVERED.with_borrow_mut(|recovered| recovered.insert(hash));
        }
        recovers
    }

    /// Whether the instance that runs and was not replaced gets all its records acknowledged.
    fn proceeds(&self, world: &World) -> bool {
        let Some(i) = world.running().filter(|_| world.wrong.is_none()) else { return true };
        let mut world = world.clone();
        self.comes_to(&mut world, i, |it| it.acknowledged == it.issued && it.counted(self) > F)
    }
}

//! Controllers: the machine of `gabion-control` decides on views, and the world stands for its
//! process, its store and its connections.
//!
//! ```text
//!   store ◄─ swaps, reads: late, lost, of unknown outcome ─► seat: Controller, one or two
//!     └─ set back to an earlier state                         │ ▲  crashes between any two actions
//!                                         Tell, late ─► bytes │ │ bytes ◄─ Report
//!   machines: Node, lease clock, disk that hangs, ... ◄───────┘ │
//!                            └──────────────────────────────────┘ each way is cut by itself
//! ```
//!
//! Beside the checks at rest there are some of every step:
//!
//! - Nobody is told a view that was not stored before.
//! - A view is complete once each full member has had a record of its term.
//! - In one configuration one member acknowledges writes.
//! - No read begins in a configuration once a newer one has acknowledged writes.
//! - No replica acts in an older configuration than before, unless its disk is an older one.
//!
//! `seat` is the controller's process, `ways` are its connections, `reports` the machines' side,
//! `harm` the faults, and `whole` tells when the group is whole again.

mod harm;
mod reports;
mod seat;
mod ways;
mod whole;

use super::World;
use super::faults::Image;
use crate::Random;
use gabion_base::{ConfigNumber, ReplicaId};
use gabion_control::store::{MemoryStore, Store};
use gabion_control::{GroupRecord, Swapped, Version};
use gabion_replication::GroupView;
use harm::Flap;
pub(super) use reports::UNHEARD_MS;
use seat::Seat;
use std::collections::BTreeMap;

/// The name of the group's record in the store.
const RECORD: &str = "groups/1";
/// The name of the number of the last controller's life.
const EPOCH: &str = "epoch";

/// The controllers of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControlOptions {
    /// Controllers that run at once, over one store.
    pub controllers: usize,
    /// Replicas with an empty pool that are no members at first.
    pub spares: u32,
    /// Fewest full members with which the group takes writes.
    pub members_min: u8,
    /// Their faults.
    pub faults: ControlFaults,
}

/// Faults of runs with controllers, each about once in so many steps; 0 is never.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ControlFaults {
    /// A controller's process ends, at once or after some of its next actions.
    pub crash: u64,
    /// A controller's process is paused, for up to six seconds.
    pub pause: u64,
    /// A connection of a controller breaks.
    pub way: u64,
    /// A bit flips in the next bytes between a controller and a machine.
    pub flip: u64,
    /// The store is set back to an earlier state. No disk is lost in such a run: after both nobody
    /// may know which members have everything.
    pub set_back: u64,
    /// A machine is down for up to six seconds.
    pub away: u64,
    /// A process is paused for up to six seconds.
    pub freeze: u64,
    /// A machine comes back with an empty disk.
    pub wipe: u64,
    /// A machine comes back with its disk as it was earlier.
    pub older: u64,
    /// A disk ends no operation, for up to three seconds.
    pub hang: u64,
    /// The probe write of a disk is refused, for up to three seconds.
    pub refuse: u64,
    /// A disk has no room, for up to four seconds.
    pub full: u64,
    /// The way between two machines, or a machine and a controller, is cut again and again.
    pub flap: u64,
    /// A controller or a machine does not hear the other for up to 1.5 s, or neither does. The
    /// members hear each other.
    pub deaf: u64,
    /// Machines and controllers are in two parts, of which one or none hears the other.
    pub split: u64,
}

/// The controllers, their store, and what the world remembers for its checks.
pub(super) struct Control {
    options: ControlOptions,
    /// A stream of its own, so that runs without controllers stay as they are.
    random: Random,
    store: MemoryStore,
    /// The store as it was at some time.
    backup: MemoryStore,
    seats: Vec<Seat>,
    /// Every view that the store ever had.
    stored: Vec<GroupView>,
    /// The newest configuration of which a disk had the term's first record.
    founded: BTreeMap<[u8; 16], ConfigNumber>,
    /// The member that acknowledged writes of a configuration.
    acknowledging: BTreeMap<ConfigNumber, usize>,
    /// The newest configuration in which the replica of a disk acted.
    acted: BTreeMap<[u8; 16], ConfigNumber>,
    flaps: Vec<Flap>,
    images: BTreeMap<usize, Image>,
}

impl Control {
    pub(super) fn new(seed: u64, options: &ControlOptions, view: GroupView) -> Self {
        let mut store = MemoryStore::default();
        let record = GroupRecord::founding(view.clone()).encode();
        store.swap(RECORD, Version::NONE, &record).expect("memory answers");
        let founded = view.members.iter().map(|it| (first_pool(it.replica), view.config)).collect();
        Self {
            options: options.clone(),
            random: Random::new(seed ^ 0x0063_6f6e_7472_6f6c),
            backup: store.clone(),
            store,
            seats: (0..options.controllers).map(|_| Seat::default()).collect(),
            stored: vec![view],
            founded,
            acknowledging: BTreeMap::new(),
            acted: BTreeMap::new(),
            flaps: Vec::new(),
            images: BTreeMap::new(),
        }
    }

    /// The record that the store has now.
    fn record(&mut self) -> GroupRecord {
        let found = self.store.get(RECORD).expect("memory answers").expect("it is never removed");
        GroupRecord::decode(&found.value).expect("a controller wrote it")
    }

    /// Whether the store may be set back in this run.
    const fn forgets(&self) -> bool {
        self.options.faults.set_back > 0
    }

    /// Replaces the group's record, and checks what a controller may store.
    fn swap(&mut self, expected: Version, value: &[u8]) -> Result<Swapped, String> {
        let swapped = self.store.swap(RECORD, expected, value).expect("memory answers");
        if let Swapped::Stored(_) = swapped {
            let record = self.record();
            self.check_complete(&record.complete)?;
            for view in [Some(record.complete), record.intended].into_iter().flatten() {
                if !self.stored.contains(&view) {
                    self.stored.push(view);
                }
            }
        }
        Ok(swapped)
    }

    fn check_complete(&self, view: &GroupView) -> Result<(), String> {
        let founded = |pool: &[u8; 16]| self.founded.get(pool).copied().unwrap_or_default();
        for member in view.full() {
            let first = first_pool(member.replica);
            let pool = if member.pool_id == [0; 16] { &first } else { &member.pool_id };
            if founded(pool) < view.config {
                let id = member.replica;
                return Err(format!("{} is complete before {id} has founded it", view.config));
            }
        }
        Ok(())
    }
}

/// The pool with which a replica begins.
pub(super) const fn first_pool(replica: ReplicaId) -> [u8; 16] {
    [replica.get() as u8; 16]
}

impl World {
    /// The group's record in the store, in a run with controllers.
    #[must_use]
    pub fn record(&mut self) -> Option<GroupRecord> {
        Some(self.control.as_mut()?.record())
    }

    /// A step of the controllers and of their connections.
    pub(super) fn step_control(&mut self) {
        let Some(mut control) = self.control.take() else { return };
        control.note_founded(self);
        control.note_acting(self);
        for at in 0..control.seats.len() {
            control.connect(at, self);
            control.run_machines(at, self);
            control.run_seat(at, self);
        }
        control.flap(self);
        self.control = Some(control);
    }

    /// Whether a newer configuration than this one has acknowledged writes.
    pub(super) fn is_late(&self, config: ConfigNumber) -> bool {
        let last = self.control.as_ref().and_then(|control| control.acknowledging.keys().last());
        last.is_some_and(|newest| *newest > config)
    }

    /// A write was acknowledged by a machine that acts in this configuration.
    pub(super) fn note_acknowledged(&mut self, index: usize, config: ConfigNumber) {
        let Some(control) = &mut self.control else { return };
        let other = *control.acknowledging.entry(config).or_insert(index);
        if other != index {
            let (a, b) = (other + 1, index + 1);
            let what = format!("replicas {a} and {b} both acknowledge writes in {config}");
            self.violation.get_or_insert(what);
        }
    }
}

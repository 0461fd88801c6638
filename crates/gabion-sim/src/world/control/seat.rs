//! One controller's process: its life, and what it does in a step.

use super::ways::Way;
use super::{Control, EPOCH, RECORD};
use crate::world::World;
use gabion_base::Error;
use gabion_control::store::{Store, Swapped, Version};
use gabion_control::wire::ControlMessage;
use gabion_control::{Controller, Epoch, GroupRecord, Moment, Output, Patience};
use std::collections::{BTreeMap, VecDeque};

/// A place for a controller.
#[derive(Default)]
pub(super) struct Seat {
    pub(super) running: Option<Running>,
    pub(super) down_until_ms: u64,
    pub(super) paused_until_ms: u64,
    /// Its process was paused and has not run since.
    pub(super) wakes: bool,
    /// Connections to machines.
    pub(super) ways: BTreeMap<usize, Way>,
}

pub(super) struct Running {
    pub(super) machine: Controller,
    /// Orders to the store, and when it carries them out.
    orders: VecDeque<(u64, Output)>,
    /// Its process ends after so many actions.
    pub(super) actions_left: Option<u64>,
}

impl Running {
    /// Counts an action; whether the process still lives.
    fn lives(&mut self) -> bool {
        match &mut self.actions_left {
            Some(0) => false,
            Some(left) => {
                *left -= 1;
                true
            }
            None => true,
        }
    }
}

impl Control {
    /// Starts a controller: it takes the next epoch, and reads the record.
    fn start(&mut self, at: usize, world: &mut World) {
        let found = self.store.get(EPOCH).expect("memory answers");
        let (version, last) = found.map_or((Version::NONE, 0), |found| {
            let bytes = found.value.try_into().expect("a controller wrote it");
            (found.version, u64::from_le_bytes(bytes))
        });
        let epoch = Epoch { number: last + 1, id: self.random.number() };
        self.store.swap(EPOCH, version, &epoch.number.to_le_bytes()).expect("memory answers");
        let found = self.store.get(RECORD).expect("memory answers").expect("it is never removed");
        let record = GroupRecord::decode(&found.value).expect("a controller wrote it");
        let records = [(found.version, record)];
        let machine = Controller::new(Patience::default(), epoch, records, moment(world));
        #[cfg(feature = "planted")]
        let machine = machine.planted(world.options.planted_control);
        world.note(format!("controller {at} starts as {epoch:?}"));
        let seat = &mut self.seats[at];
        seat.running = Some(Running { machine, orders: VecDeque::new(), actions_left: None });
        seat.ways.clear();
    }

    /// Ends a controller's process.
    pub(super) fn end_seat(&mut self, at: usize, down_ms: u64, world: &mut World) {
        let seat = &mut self.seats[at];
        if seat.running.take().is_some() {
            world.outcome.controller_crashes += 1;
            world.note(format!("controller {at} ends for {down_ms} ms"));
        }
        seat.ways.clear();
        (seat.paused_until_ms, seat.wakes) = (0, false);
        seat.down_until_ms = world.now_ms + down_ms;
    }

    pub(super) fn is_asleep(&self, at: usize, now_ms: u64) -> bool {
        self.seats[at].paused_until_ms > now_ms
    }

    /// A turn of a controller's process.
    pub(super) fn run_seat(&mut self, at: usize, world: &mut World) {
        let now_ms = world.now_ms;
        if self.is_asleep(at, now_ms) {
            return;
        }
        if self.seats[at].running.is_none() {
            if self.seats[at].down_until_ms > now_ms {
                return;
            }
            self.start(at, world);
        }
        let Some(mut running) = self.seats[at].running.take() else { return };
        // Of what waits after a pause anything may come first.
        let ticks_first = !std::mem::take(&mut self.seats[at].wakes) || self.random.once_in(2);
        let mut lives = true;
        if ticks_first && self.random.once_in(8) {
            running.machine.handle_tick(moment(world));
            lives &= self.carry_out_all(at, &mut running, world);
        }
        for message in self.arrived_at_seat(at, world) {
            lives = lives && running.lives();
            let ControlMessage::Report(report) = message else { continue };
            if lives {
                running.machine.handle_report(report, moment(world));
                lives &= self.carry_out_all(at, &mut running, world);
            }
        }
        while lives && running.orders.front().is_some_and(|(due_ms, _)| *due_ms <= now_ms) {
            let Some((_, order)) = running.orders.pop_front() else { break };
            lives &= self.answer(&mut running, order, world) && running.lives();
            lives = lives && self.carry_out_all(at, &mut running, world);
        }
        if lives {
            self.seats[at].running = Some(running);
        } else {
            let down_ms = self.random.below(1_500);
            self.seats[at].running = Some(running);
            self.end_seat(at, down_ms, world);
        }
    }

    /// Returns whether the process lives afterwards.
    fn carry_out_all(&mut self, at: usize, running: &mut Running, world: &mut World) -> bool {
        while let Some(output) = running.machine.poll_output() {
            if !running.lives() {
                return false;
            }
            match output {
                Output::Tell { to, view, epoch } => {
                    let message = ControlMessage::Tell { epoch, view };
                    let to = world.index_of(to);
                    to.into_iter().for_each(|to| self.send_to_machine(at, to, &message, world));
                }
                order => {
                    let limit = if self.random.once_in(8) { 300 } else { 12 };
                    let due_ms = world.now_ms + self.random.below(limit);
                    running.orders.push_back((due_ms, order));
                }
            }
        }
        true
    }

    /// The store carries out an order, and answers unless the process ends before. Returns whether
    /// it lives.
    fn answer(&mut self, running: &mut Running, order: Output, world: &mut World) -> bool {
        let fails = self.random.once_in(12);
        let away = || Error::unavailable("the store is away");
        match order {
            Output::Swap { group, expected, record } => {
                let stores = !fails || self.random.once_in(2);
                let swapped = stores.then(|| self.swap(expected, &record)).transpose();
                let swapped = match swapped {
                    Ok(swapped) => swapped.filter(|_| !fails),
                    Err(broken) => {
                        world.violation.get_or_insert(broken);
                        None
                    }
                };
                self.follow_store(world);
                if !running.lives() {
                    return false;
                }
                let swapped: Result<Swapped, Error> = swapped.ok_or_else(away);
                running.machine.handle_swapped(group, swapped, moment(world));
            }
            Output::Read { group } => {
                let read = self.store.get(RECORD);
                let read = if fails { Err(away()) } else { read };
                running.machine.handle_read(group, read, moment(world));
            }
            Output::Tell { .. } => unreachable!("told over its way"),
        }
        true
    }

    /// The world's view is the newest that the store has.
    pub(super) fn follow_store(&mut self, world: &mut World) {
        let record = self.record();
        if world.view != *record.newest() {
            world.view = record.newest().clone();
            world.outcome.moves += 1;
            let name = |member: &gabion_replication::Member| {
                let id = member.replica.get();
                match (member.is_full, member.is_kept) {
                    (true, _) => format!("{id}"),
                    (_, true) => format!("[{id}]"),
                    _ => format!("({id})"),
                }
            };
            let shape: Vec<String> = world.view.members.iter().map(name).collect();
            let events = record.events.iter().rev().map(|event| event.text.as_str());
            let why: Vec<&str> = events.take(1 + world.machines.len() / 4).collect();
            let (config, why) = (world.view.config, why.join("; "));
            world.note(format!("{config} is intended: {}, as {why}", shape.join(" ")));
        }
        if let Some(event) = record.events.back().filter(|_| record.intended.is_none()) {
            world.note(format!("the store: {}", event.text));
        }
    }
}

/// The time at a controller: the clock goes on while a process is stopped.
pub(super) const fn moment(world: &World) -> Moment {
    Moment { now_ms: world.now_ms, unix_ms: world.now_ms }
}

//! The machines' side: a door where controllers are heard, and reports on the replica.

use super::Control;
use crate::world::World;
use gabion_control::wire::ControlMessage;
use gabion_control::{Epoch, Patience, Probe, Report};
use gabion_replication::{GroupView, Member};

impl Control {
    /// Every machine that runs hears a controller, and reports to it.
    pub(super) fn run_machines(&mut self, at: usize, world: &mut World) {
        for index in 0..world.machines.len() {
            let starts = world.machines[index].starts;
            let is_its_own =
                self.seats[at].ways.get(&index).is_some_and(|way| way.starts == starts);
            if !is_its_own || world.is_paused(index) || world.node(index).is_none() {
                continue;
            }
            for message in self.arrived_at_machine(at, index, world) {
                if let ControlMessage::Tell { epoch, view } = message {
                    self.tell(index, epoch, view, world);
                }
            }
            self.report(at, index, world);
        }
    }

    /// A replica is told a view.
    fn tell(&mut self, index: usize, epoch: Epoch, view: GroupView, world: &mut World) {
        if !self.stored.contains(&view) {
            let what =
                format!("replica {} is told {}, which nobody stored", index + 1, view.config);
            world.violation.get_or_insert(what);
        }
        let machine = &mut world.machines[index];
        machine.epoch = machine.epoch.max(epoch);
        let config = view.config;
        let Some(node) = world.node_mut(index) else { return };
        let taken = node.handle_told(view);
        let machine = &mut world.machines[index];
        machine.is_told |= taken.is_ok();
        if let Err(error) = taken
            && machine.refused_view.replace(config) != Some(config)
        {
            world.note(format!("replica {} takes no view: {error}", index + 1));
        }
    }

    /// Reports where it is time, or where something has changed.
    fn report(&mut self, at: usize, index: usize, world: &World) {
        let Some(report) = report_of(index, world) else { return };
        let (config, founded) = (report.config().get(), report.founded.get());
        let Some(way) = self.seats[at].ways.get_mut(&index) else { return };
        let is_due = way.said.is_none_or(|(a, b, said_ms)| {
            let is_time = said_ms + Patience::default().report_ms <= world.now_ms;
            (a, b) != (config, founded) || is_time
        });
        if is_due {
            way.said = Some((config, founded, world.now_ms));
            self.send_to_seat(at, index, &ControlMessage::Report(report), world);
        }
    }

    /// Looks at which replica acts in which configuration.
    pub(super) fn note_acting(&mut self, world: &mut World) {
        for index in 0..world.machines.len() {
            let Some(node) = world.node(index).filter(|node| node.view().is_member()) else {
                continue;
            };
            let config = node.view().group().config;
            let before = self.acted.entry(world.machines[index].pool_id).or_default();
            let before = std::mem::replace(before, config);
            if config < before {
                let what = format!("replica {} acts in {config}, and did in {before}", index + 1);
                world.violation.get_or_insert(what);
            }
        }
    }

    /// Remembers which disk has the first record of which term.
    pub(super) fn note_founded(&mut self, world: &World) {
        for index in 0..world.machines.len() {
            let Some(node) = world.node(index) else { continue };
            let founded = self.founded.entry(world.machines[index].pool_id).or_default();
            *founded = (*founded).max(node.founded());
        }
    }
}

/// How long another member may be silent, in ms, before it is reported: three heartbeats.
pub(in crate::world) const UNHEARD_MS: u64 = 60;

/// A replica's word on itself.
fn report_of(index: usize, world: &World) -> Option<Report> {
    let (machine, node) = (&world.machines[index], world.node(index)?);
    let member = Member {
        incarnation: node.state().incarnation,
        pool_id: machine.pool_id,
        ..Member::new(world.id_of(index))
    };
    Some(Report {
        member,
        group: world.group.group,
        view: node.view_told().cloned(),
        founded: node.founded(),
        is_filled: node.is_filled(),
        is_whole: node.is_whole(),
        filling: None,
        vitals: None,
        unheard: node.unheard(UNHEARD_MS),
        probe: probe_of(index, world),
        epoch: machine.epoch,
    })
}

fn probe_of(index: usize, world: &World) -> Probe {
    let (machine, now_ms) = (&world.machines[index], world.now_ms);
    if machine.refused_until_ms > now_ms {
        Probe::Refused
    } else if machine.is_hung(now_ms) {
        Probe::Running(now_ms - machine.hung_since_ms)
    } else if machine.full_until_ms > now_ms {
        Probe::Full
    } else {
        Probe::Well
    }
}

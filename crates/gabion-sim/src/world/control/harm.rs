//! Faults of runs with controllers.
//!
//! Some take what a member was promised to keep: a wiped disk, one that is set back, the power of
//! a machine whose ring was all that had a record. The group survives them as long as any view that
//! a controller may make has a member that lacks nothing: as long as fewer members lack something
//! than every view has.

use super::{Control, first_pool};
use crate::Random;
use crate::world::World;
use gabion_base::ReplicaId;
use gabion_control::GroupRecord;

/// Ms between two cuts of a way that flaps, at most.
const FLAP_MS_MAX: u64 = 120;

/// A way that is cut again and again.
pub(super) struct Flap {
    from: usize,
    to: usize,
    until_ms: u64,
    next_ms: u64,
}

impl World {
    /// Faults that need controllers to be healed.
    pub(in crate::world) fn inject_control_faults(&mut self) {
        let Some(mut control) = self.control.take() else { return };
        control.harm_controllers(self);
        control.harm_machines(self);
        control.harm_ways(self);
        self.control = Some(control);
    }

    /// Whether the power of machines may be cut, a bit for each: see the module.
    pub(in crate::world) fn may_cut_power(&mut self, machines: u64) -> bool {
        let Some(mut control) = self.control.take() else { return false };
        let may = control.may_lose(machines, false, self);
        self.control = Some(control);
        may
    }
}

fn happens(random: &mut Random, rate: u64) -> bool {
    rate > 0 && random.once_in(rate)
}

impl Control {
    fn harm_controllers(&mut self, world: &mut World) {
        let faults = self.options.faults;
        let count = self.seats.len() as u64;
        if happens(&mut self.random, faults.crash) {
            let at = self.random.below(count) as usize;
            let actions = self.random.below(12);
            match &mut self.seats[at].running {
                Some(running) if actions > 2 => running.actions_left = Some(actions - 3),
                _ => {
                    let down_ms = self.random.below(3_000);
                    self.end_seat(at, down_ms, world);
                }
            }
        }
        if happens(&mut self.random, faults.pause) {
            let at = self.random.below(count) as usize;
            let ms = 50 + self.random.below(6_000);
            world.note(format!("controller {at} is paused for {ms} ms"));
            self.seats[at].paused_until_ms = world.now_ms + ms;
            self.seats[at].wakes = true;
        }
        if happens(&mut self.random, faults.set_back) {
            if self.random.once_in(3) {
                world.note("the store is set back".into());
                world.outcome.set_backs += 1;
                self.store = self.backup.clone();
                (0..self.seats.len()).for_each(|at| self.end_seat(at, 0, world));
                self.follow_store(world);
            } else {
                self.backup = self.store.clone();
            }
        }
    }

    fn harm_machines(&mut self, world: &mut World) {
        let faults = self.options.faults;
        let count = world.machines.len() as u64;
        let now_ms = world.now_ms;
        if happens(&mut self.random, faults.away) {
            let index = self.random.below(count) as usize;
            let down_ms = self.random.below(6_000);
            world.crash(index, None, self.random.number());
            let machine = &mut world.machines[index];
            machine.down_until_ms = machine.down_until_ms.max(now_ms + down_ms);
        }
        if happens(&mut self.random, faults.freeze) {
            let index = self.random.below(count) as usize;
            let ms = 300 + self.random.below(6_000);
            world.pause(index, ms);
        }
        if happens(&mut self.random, faults.wipe) {
            self.wipe_some(world);
        }
        if happens(&mut self.random, faults.older) {
            self.set_some_disk_back(world);
        }
        if happens(&mut self.random, faults.hang) {
            let index = self.random.below(count) as usize;
            let ms = self.random.below(3_000);
            world.note(format!("the disk of replica {} hangs for {ms} ms", index + 1));
            let machine = &mut world.machines[index];
            if !machine.is_hung(now_ms) {
                machine.hung_since_ms = now_ms;
            }
            machine.hung_until_ms = machine.hung_until_ms.max(now_ms + ms);
        }
        if happens(&mut self.random, faults.refuse) {
            let index = self.random.below(count) as usize;
            let ms = self.random.below(3_000);
            world.note(format!("probes of replica {} are refused for {ms} ms", index + 1));
            world.machines[index].refused_until_ms = now_ms + ms;
        }
        if happens(&mut self.random, faults.full) {
            let index = self.random.below(count) as usize;
            let ms = self.random.below(4_000);
            world.note(format!("the disk of replica {} is full for {ms} ms", index + 1));
            world.fill_disk(index, ms);
        }
    }

    fn harm_ways(&mut self, world: &mut World) {
        let faults = self.options.faults;
        let machines = world.machines.len();
        let places = (machines + self.seats.len()) as u64;
        let now_ms = world.now_ms;
        if happens(&mut self.random, faults.way) {
            let at = self.random.below(self.seats.len() as u64) as usize;
            let index = self.random.below(machines as u64) as usize;
            self.seats[at].ways.remove(&index);
        }
        if happens(&mut self.random, faults.flip) {
            let at = self.random.below(self.seats.len() as u64) as usize;
            let index = self.random.below(machines as u64) as usize;
            if let Some(way) = self.seats[at].ways.get_mut(&index) {
                way.flips = true;
            }
        }
        if happens(&mut self.random, faults.flap) {
            let (from, to) = (self.random.below(places), self.random.below(places));
            let until_ms = now_ms + self.random.below(3_000);
            let flap = Flap { from: from as usize, to: to as usize, until_ms, next_ms: now_ms };
            self.flaps.push(flap);
        }
        if happens(&mut self.random, faults.deaf) {
            let at = machines + self.random.below(self.seats.len() as u64) as usize;
            let index = self.random.below(machines as u64) as usize;
            let (ms, ways) = (self.random.below(1_500), self.random.below(3));
            let both = [(index, at), (at, index)];
            let cut = both.into_iter().enumerate().filter(|(way, _)| *way as u64 != ways);
            cut.for_each(|(_, (from, to))| world.cut_one_way(from, to, ms));
        }
        if happens(&mut self.random, faults.split) {
            let side = self.random.below(1 << places);
            let ms = self.random.below(4_000);
            let is_one_way = self.random.once_in(3);
            let is_in = |place: usize| side >> place & 1 == 1;
            for (from, to) in pairs(places as usize) {
                let is_across = is_in(from) != is_in(to) && (is_in(from) || !is_one_way);
                // Controllers do not talk to each other.
                if is_across && (from < machines || to < machines) {
                    world.cut_one_way(from, to, ms);
                }
            }
        }
    }

    /// Cuts ways that flap, for a moment.
    pub(super) fn flap(&mut self, world: &mut World) {
        let now_ms = world.now_ms;
        self.flaps.retain(|flap| flap.until_ms > now_ms && flap.from != flap.to);
        for flap in &mut self.flaps {
            if flap.next_ms <= now_ms {
                let ms = 1 + self.random.below(FLAP_MS_MAX);
                flap.next_ms = now_ms + ms + self.random.below(FLAP_MS_MAX);
                world.cut_one_way(flap.from, flap.to, ms);
                if self.random.once_in(2) {
                    std::mem::swap(&mut flap.from, &mut flap.to);
                }
            }
        }
    }

    /// No fault goes on.
    pub(super) fn heal(&mut self) {
        self.flaps.clear();
        for seat in &mut self.seats {
            (seat.paused_until_ms, seat.down_until_ms) = (0, 0);
            seat.running.iter_mut().for_each(|running| running.actions_left = None);
        }
    }

    // ---- what is lost

    /// Full or kept members of every view that may be in effect: they alone count for the next.
    fn counted(record: &GroupRecord) -> Vec<ReplicaId> {
        let is_full = |id: &ReplicaId| {
            let views = [Some(&record.complete), record.intended.as_ref()];
            views.into_iter().flatten().all(|view| view.has_full(*id) || view.keeps(*id))
        };
        record.trusted.iter().copied().filter(is_full).collect()
    }

    /// Whether these machines, a bit for each, may lose what is not durable, or all of their disks.
    fn may_lose(&mut self, machines: u64, is_all: bool, world: &World) -> bool {
        if self.forgets() {
            return false;
        }
        let record = self.record();
        let is_lost = |index: usize| machines >> index & 1 == 1;
        let lacks = |id: &ReplicaId| {
            let index = world.index_of(*id);
            index.is_none_or(|index| {
                let is_cut = is_lost(index);
                let is_other = Self::is_other_disk(index, &record, world);
                (is_all && is_cut) || is_other || !world.has_promised(index, is_cut)
            })
        };
        let views = [Some(&record.complete), record.intended.as_ref()];
        let full = views.into_iter().flatten().flat_map(|view| view.full());
        let mut full: Vec<ReplicaId> = full.map(|member| member.replica).collect();
        full.sort_unstable();
        full.dedup();
        let lacking = full.iter().filter(|id| lacks(id)).count();
        let whole = Self::counted(&record).iter().filter(|id| !lacks(id)).count();
        whole > 0 && lacking < usize::from(record.newest().members_min)
    }

    /// Whether a machine has another disk than the newest view means.
    fn is_other_disk(index: usize, record: &GroupRecord, world: &World) -> bool {
        let (id, pool_id) = (world.id_of(index), world.machines[index].pool_id);
        let member = record.newest().members.iter().find(|member| member.replica == id);
        let named = member.map_or([0; 16], |member| member.pool_id);
        pool_id != if named == [0; 16] { first_pool(id) } else { named }
    }

    fn wipe_some(&mut self, world: &mut World) {
        let count = world.machines.len() as u64;
        let times = if self.random.once_in(4) { 2 } else { 1 };
        for _ in 0..times {
            let index = self.random.below(count) as usize;
            if self.may_lose(1 << index, true, world) {
                self.wipe(index, world);
            }
        }
    }

    /// A machine gets an empty disk.
    fn wipe(&mut self, index: usize, world: &mut World) {
        world.crash(index, Some(self.random.number()), self.random.number());
        world.note(format!("the disk of replica {} is wiped", index + 1));
        world.outcome.wipes += 1;
        let mut pool_id = [0; 16];
        pool_id[..8].copy_from_slice(&self.random.number().to_le_bytes());
        assert_ne!(pool_id, first_pool(world.id_of(index)), "chance");
        let down_ms = self.random.below(2_000);
        let machine = &mut world.machines[index];
        machine.replace_disk(&world.group, pool_id, &mut self.random);
        machine.down_until_ms = world.now_ms + down_ms;
        self.images.remove(&index);
    }

    /// A machine gets its disk as it was when somebody made an image of it; makes one if there is
    /// none.
    fn set_some_disk_back(&mut self, world: &mut World) {
        let index = self.random.below(world.machines.len() as u64) as usize;
        let machine = &world.machines[index];
        if self.images.get(&index).is_none_or(|it| it.pool_id != machine.pool_id) {
            if let Some(image) = world.image(index) {
                self.images.insert(index, image);
            }
            return;
        }
        // Nobody knows that it is older: it counts as one that lacks what it had.
        if !self.may_lose(1 << index, true, world) {
            return;
        }
        world.put_back(index, &self.images[&index]);
        let machine = &mut world.machines[index];
        machine.down_until_ms = world.now_ms + self.random.below(2_000);
        let pool_id = machine.pool_id;
        self.forget_acts(&pool_id);
    }

    /// An older disk was put in place, with an older view on it.
    pub(in crate::world) fn forget_acts(&mut self, pool_id: &[u8; 16]) {
        self.acted.remove(pool_id);
    }
}

/// All ways between so many places.
fn pairs(count: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..count * count).map(move |n| (n / count, n % count)).filter(|(a, b)| a != b)
}

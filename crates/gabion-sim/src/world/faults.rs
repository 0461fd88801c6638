//! The faults, and when they happen.

use super::World;
use super::machine::Machine;
use crate::lost::Moments;
use crate::{Random, SimulatedMemory};
use gabion_base::SlotIndex;
use gabion_base::units::SLOT_LEN;
use gabion_media::simulated::{DiskStats, Fault, OperationClass, SimulatedDisk};
use gabion_node::StopState;
use gabion_pool::SlotState;

/// Steps after which a process that is told to stop counts as stuck.
const STOP_STEPS_MAX: u32 = 100_000;

/// A disk and a ring as they were.
pub struct Image {
    disk: SimulatedDisk,
    ring: SimulatedMemory,
    pub(super) pool_id: [u8; 16],
}

impl World {
    pub(super) fn inject_faults(&mut self) {
        let faults = self.options.faults;
        let count = self.machines.len() as u64;
        let happens = |random: &mut Random, rate: u64| rate > 0 && random.once_in(rate);
        if happens(&mut self.random, faults.kill) {
            let index = self.random.below(count) as usize;
            self.kill(index, false);
        }
        if happens(&mut self.random, faults.power) {
            let index = self.random.below(count) as usize;
            self.cut_power(1 << index);
        }
        if happens(&mut self.random, faults.kill_all) {
            self.kill_all();
        }
        if happens(&mut self.random, faults.link) {
            let (a, b) = (self.random.below(count) as usize, self.random.below(count) as usize);
            self.break_link(a, b);
        }
        if happens(&mut self.random, faults.pipe) {
            let index = self.random.below(count) as usize;
            self.cut_remotes(index);
        }
        if happens(&mut self.random, faults.lost) {
            let index = self.random.below(count) as usize;
            self.lose_commits(index);
        }
        if happens(&mut self.random, faults.log_rot) {
            let index = self.random.below(count) as usize;
            self.rot_log(index);
        }
        if happens(&mut self.random, faults.rot) {
            let index = self.random.below(count) as usize;
            self.rot_some_file(index);
        }
        for machine in &self.machines {
            if machine.held_until_ms <= self.now_ms {
                machine.disk.release_held();
            }
        }
        if happens(&mut self.random, faults.hold) {
            let index = self.random.below(count) as usize;
            let (nth, held_ms) = (1 + self.random.below(8), self.random.below(500));
            let machine = &mut self.machines[index];
            machine.disk.plan(OperationClass::Write, nth, Fault::Hold);
            machine.held_until_ms = self.now_ms + held_ms;
        }
        if happens(&mut self.random, faults.full) {
            let index = self.random.below(count) as usize;
            let full_ms = self.random.below(2_000);
            self.fill_disk(index, full_ms);
        }
        if happens(&mut self.random, faults.slow) {
            let index = self.random.below(count) as usize;
            let factor = [1, 1, 20][self.random.below(3) as usize];
            self.machines[index].disk.slow_down(factor);
        }
        self.inject_net_faults();
    }

    /// Cuts a replica's connections for files; that of the log stays.
    pub fn cut_remotes(&mut self, index: usize) {
        self.trace(b"pipe");
        if let Some(process) = &self.machines[index].process {
            process.cut_remotes();
        }
    }

    /// Notes what happened, for reports of failure.
    pub(super) fn note(&mut self, what: String) {
        self.events.push(format!("{what} at {} ({} ms)", self.moment, self.now_ms));
    }

    /// For a time from now on, or until the cluster has to come to rest, a disk has no space for
    /// files.
    pub fn fill_disk(&mut self, index: usize, full_ms: u64) {
        self.trace(b"full");
        self.machines[index].full_until_ms = self.now_ms.saturating_add(full_ms);
    }

    /// Kills every process.
    pub fn kill_all(&mut self) {
        (0..self.machines.len()).for_each(|index| self.kill(index, false));
    }

    pub(super) fn kill(&mut self, index: usize, power: bool) {
        self.trace(&[u8::from(power), index as u8]);
        let (seed, wait_ms) = (self.random.number(), self.random.below(400));
        if self.crash(index, power.then_some(seed), seed) {
            self.machines[index].down_until_ms = self.now_ms + wait_ms;
        }
    }

    /// Ends a machine's process, or cuts the power of the machine, too. `power` decides which
    /// unflushed writes survive, as in [`gabion_media::simulated::SimulatedDisk::crash_power`];
    /// `seed` decides the fate of writes in flight. It starts again at once. Returns false if there
    /// was no process.
    pub fn crash(&mut self, index: usize, power: Option<u64>, seed: u64) -> bool {
        self.end_node(index, power.is_some());
        if self.machines[index].process.take().is_none() {
            return false;
        }
        self.outcome.crashes += 1;
        let what = if power.is_some() { "power cut" } else { "kill" };
        self.note(format!("{what} of replica {}", index + 1));
        let machine = &mut self.machines[index];
        machine.down_until_ms = self.now_ms;
        machine.moments = Moments::default();
        machine.refused_view = None;
        (machine.paused_until_ms, machine.wakes) = (0, false);
        if let Some(left) = power {
            machine.disk.crash_power(left);
            machine.ring.crash_power(seed);
        } else {
            machine.disk.crash_process(seed);
        }
        true
    }

    /// A machine's replica ends, and all that others have of it.
    pub(super) fn end_node(&mut self, index: usize, power: bool) {
        self.end_links_of(index);
        self.note_left(index, power);
        let mut outcome = std::mem::take(&mut self.outcome);
        self.count_work(index, &mut outcome);
        self.outcome = outcome;
    }

    /// A machine is replaced: its process ends, and the next one finds an empty pool and ring.
    pub fn replace_machine(&mut self, index: usize, seed: u64) {
        self.crash(index, None, seed);
        let member = self.group.founders[index];
        let empty = Machine::joining(&self.group, member, self.options.pool_len, &mut self.random);
        self.events.push(format!("the machine of replica {} is replaced", index + 1));
        let machine = &mut self.machines[index];
        // Connections to it name its starts.
        let starts = machine.starts;
        *machine = Machine { starts, down_until_ms: self.now_ms, ..empty };
    }

    /// A machine's disk and ring as they are, if nothing is under way there: a disk that is copied
    /// while it is written may be no pool.
    #[must_use]
    pub fn image(&self, index: usize) -> Option<Image> {
        let machine = &self.machines[index];
        machine.process.as_ref().filter(|process| process.is_idle())?;
        let (disk, ring) = (machine.disk.fork(), machine.ring.fork());
        Some(Image { disk, ring, pool_id: machine.pool_id })
    }

    /// The power of a machine is cut, and the next process finds its disk and ring as they were.
    ///
    /// # Panics
    /// When it has another disk by now.
    pub fn put_back(&mut self, index: usize, image: &Image) {
        let (left, seed) = (self.random.number(), self.random.number());
        self.crash(index, Some(left), seed);
        self.note(format!("the disk of replica {} is an older one", index + 1));
        self.outcome.older_disks += 1;
        let machine = &mut self.machines[index];
        assert_eq!(machine.pool_id, image.pool_id, "it is the same disk");
        (machine.disk, machine.ring) = (image.disk.fork(), image.ring.fork());
        machine.left = None;
        if let Some(control) = &mut self.control {
            control.forget_acts(&image.pool_id);
        }
    }

    /// A machine's ring is gone, like a file that somebody removed. For a machine whose process has
    /// ended.
    ///
    /// # Panics
    /// When it runs.
    pub fn lose_ring(&mut self, index: usize) {
        let machine = &mut self.machines[index];
        assert!(machine.process.is_none(), "what a process has mapped stays");
        self.events.push(format!("the ring of replica {} is gone", index + 1));
        machine.ring = SimulatedMemory::new(self.group.ring_len as usize);
        machine.label.lose();
    }

    /// Tells a process to stop, and lets it write its log out, which takes as long as its disk
    /// does; then it has ended. Returns whether that worked: a process that is not open yet is
    /// killed.
    ///
    /// # Errors
    /// The node cannot stop.
    pub fn stop_cleanly(&mut self, index: usize, seed: u64) -> Result<bool, String> {
        let Some(process) = &mut self.machines[index].process else { return Ok(false) };
        let is_open = process.node.is_some();
        if let Some(node) = &mut process.node {
            node.stop();
        }
        for _ in 0..STOP_STEPS_MAX {
            let machine = &mut self.machines[index];
            let Some(process) = &mut machine.process else { break };
            let state = process.node.as_ref().map(|node| node.stop_state());
            match state {
                Some(StopState::Stopped) | None => break,
                Some(StopState::Stuck(why)) => return Err(format!("replica {index}: {why}")),
                Some(_) => {}
            }
            machine.disk.tick();
            // Its messages go nowhere: nobody listens to it any more.
            let _ = process.pump(self.now_ms);
        }
        let has_stopped = self.node(index).is_some_and(|n| n.stop_state() == StopState::Stopped);
        self.crash(index, None, seed);
        if is_open && !has_stopped {
            return Err(format!("replica {} does not stop", index + 1));
        }
        Ok(is_open)
    }

    /// The operations of a machine's disk so far.
    #[must_use]
    pub fn disk_stats(&self, index: usize) -> DiskStats {
        self.machines[index].disk.stats()
    }

    /// Plans that the `nth` call of a class of a machine's disk fails, from now on (1 is the next
    /// one). Its processes may end themselves for that, and clients' reads there may fail by it;
    /// the error must name it.
    pub fn fail_call(&mut self, index: usize, class: OperationClass, nth: u64, fault: Fault) {
        self.machines[index].disk.plan(class, nth, fault);
        self.failing = Some(index);
    }

    /// From now on, until the cluster has to come to rest, a machine's disk fails all writes into
    /// so many slots: the first of those that are granted to the primary, or else of the free ones
    /// but one. Its processes may not end for it.
    ///
    /// # Panics
    /// When the replica is down.
    pub fn refuse_writes(&mut self, index: usize, count: usize) {
        let pool = self.node(index).expect("the replica is up").pool();
        let (region, total) = (pool.region(), pool.counts().total);
        let of = |is_wanted: fn(SlotState) -> bool| {
            let slots = (0..total).map(SlotIndex);
            slots.filter(move |slot| pool.slot_state(*slot).is_some_and(is_wanted))
        };
        let granted = of(|state| matches!(state, SlotState::Granted { .. }));
        let slots: Vec<u64> = granted
            // The log may take the next free one, and must not meet such a slot.
            .chain(of(|state| state == SlotState::Free).skip(1))
            .map(|slot| region.slot_offset(slot))
            .take(count)
            .collect();
        let disk = &self.machines[index].disk;
        slots.into_iter().for_each(|offset| disk.fail_writes_in(offset, SLOT_LEN));
    }

    /// Whether a planned failing call has not come yet.
    #[must_use]
    pub fn is_call_to_fail(&self, index: usize) -> bool {
        self.machines[index].disk.faults_to_come() > 0
    }

    /// How often processes of all machines ended themselves.
    #[must_use]
    pub fn deaths(&self) -> usize {
        self.deaths.len()
    }

    /// Whether an error of a machine is that of its planned failing call.
    pub(super) fn is_of_failing_call(&self, index: usize, error: &str) -> bool {
        let says_so =
            ["simulated I/O error", "without room"].iter().any(|what| error.contains(what));
        self.failing == Some(index) && says_so
    }

    /// Kills a secondary whose disk lost the last commits of its placement log, if it may lose
    /// them.
    fn lose_commits(&mut self, index: usize) {
        let machine = &self.machines[index];
        let Some(process) =
            machine.process.as_ref().filter(|it| index != self.writer() && it.is_quiet())
        else {
            return;
        };
        let Some(node) = process.node.as_ref().filter(|node| !node.duties().append) else { return };
        let Some(writes) = machine.moments.going_back(node) else { return };
        self.note(format!("replica {} loses its last commits", index + 1));
        self.outcome.lost_commits += 1;
        self.kill(index, false);
        let disk = &self.machines[index].disk;
        writes.iter().for_each(|(offset, before)| disk.poke(*offset, before));
    }
}

//! The cluster: machines, the links between them, clients, and the seed that decides the next step
//! and the next fault.
//!
//! - [`options`]: the choices of a run. `machine`: disk, ring and process.
//! - `links`: frames between members. `net`: the ways between machines, and pauses.
//! - `load`: clients. `bulk`: bulk loads. `moves`: views, and a head that moves.
//!   `absences`: views without a member that comes back.
//! - `control`: controllers that decide on views, in place of the world.
//! - `faults`: failures of all kinds. `power`: the power cuts that the level's promise covers.
//! - `rot`: bits of files that flip. `flips`: bits that flip in memory, before files are shipped.
//!   `log_rot`: logs that rot.
//! - `marks`: states of all replicas at one position. `rest`: peace and the checks.
//! - [`outcome`]: counts of what a run did.

mod absences;
mod bulk;
mod control;
mod faults;
mod flips;
mod links;
mod load;
mod log_rot;
mod machine;
mod marks;
mod moves;
mod net;
pub mod options;
pub mod outcome;
mod power;
mod rest;
mod rot;

pub use control::{ControlFaults, ControlOptions};
pub use faults::Image;
pub use links::Kept;
pub use log_rot::StoppedLog;
pub use net::Part;
pub use options::{Faults, Options, Targets};
pub use outcome::Outcome;

use crate::client::{Client, Locks};
use crate::history::{self, Operation};
use crate::lost::Moments;
use crate::pipe::Pipe;
use crate::process::{Process, Wish};
use crate::{Random, check};
use control::Control;
use gabion_base::{Error, LogPosition, ReplicaId, Term, crc};
use gabion_control::Epoch;
use gabion_media::{MediumHandle, MemoryRegion};
use gabion_node::{AckLevel, GroupConfig, Node};
use gabion_pool::Trust;
use gabion_replication::GroupView;
use links::{Ended, Link};
use machine::{LeaseClock, Machine};
use net::Net;
use std::collections::{BTreeMap, VecDeque};

/// A cluster in one thread.
pub struct World {
    seed: u64,
    random: Random,
    options: Options,
    group: GroupConfig,
    /// The newest view.
    view: GroupView,
    machines: Vec<Machine>,
    links: BTreeMap<(usize, usize), Link>,
    /// Connections that one end has left: by the end that has still to learn of it, and the one
    /// that left.
    ended: BTreeMap<(usize, usize), VecDeque<Ended>>,
    next_link: u64,
    net: Net,
    /// The member that the newest view leaves out, or that was left out lately.
    absence: Option<absences::Absence>,
    /// The controllers that decide on views, if the world does not.
    control: Option<Box<Control>>,
    /// Term and end of the last record that was ever shown or acknowledged.
    promised: (Term, LogPosition),
    /// Frames with records, when a test keeps them.
    kept: Option<Vec<Kept>>,
    targets: Targets,
    /// Connections that no target took yet: the two machines, and the target's start then.
    untaken: Vec<(usize, usize, u64, [Pipe; 2])>,
    clients: Vec<Client>,
    locks: Locks,
    marking: marks::Marking,
    bulk: bulk::Bulk,
    history: Vec<Operation>,
    /// Values that will expire: the time, the key and the value.
    expiring: Vec<(u64, u64, u64)>,
    next_value: u64,
    moment: u64,
    now_ms: u64,
    outcome: Outcome,
    /// Kills and power cuts, for reports of failure.
    events: Vec<String>,
    deaths: Vec<String>,
    /// The machine whose disk has a planned failing call.
    failing: Option<usize>,
    /// An impossible result that a client saw.
    violation: Option<String>,
}

/// Less than the bytes of most files: every run meets the bound.
const UNSHIPPED_BYTES_MAX: u64 = 4 * 1024;

impl World {
    /// A cluster of empty pools.
    ///
    /// # Panics
    /// When the options cannot work.
    #[must_use]
    pub fn new(seed: u64, options: Options) -> Self {
        let mut random = Random::new(seed);
        let group = options::group(seed, &options);
        let spares = options.control.as_ref().map_or(0, |control| control.spares);
        let machines = (1..=options.replicas + spares).map(|id| {
            let new = if id <= options.replicas { Machine::new } else { Machine::joining };
            new(&group, ReplicaId(id), options.pool_len, &mut random)
        });
        let mut machines: Vec<Machine> = machines.collect();
        let mut clocks = Random::new(seed ^ 0x636c_6f63_6b73);
        machines.iter_mut().for_each(|machine| machine.clock = LeaseClock::new(&mut clocks));
        let control = options.control.as_ref();
        let mut view = group.founding_view();
        if let Some(control) = control {
            view.members_min = control.members_min;
        }
        let control = control.map(|it| Box::new(Control::new(seed, it, view.clone())));
        let clients = (0..options.clients).map(|_| Client::default()).collect();
        Self {
            seed,
            random,
            options,
            view,
            group,
            machines,
            links: BTreeMap::new(),
            ended: BTreeMap::new(),
            next_link: 1,
            net: Net::new(seed),
            absence: None,
            control,
            promised: (Term::ZERO, LogPosition::ZERO),
            kept: None,
            targets: Targets::Open,
            untaken: Vec::new(),
            clients,
            locks: Locks::new(),
            marking: marks::Marking::new(seed),
            bulk: bulk::Bulk::new(seed),
            history: Vec::new(),
            expiring: Vec::new(),
            next_value: 1,
            moment: 0,
            now_ms: 1,
            outcome: Outcome::default(),
            events: Vec::new(),
            deaths: Vec::new(),
            failing: None,
            violation: None,
        }
    }

    /// Runs a seed: faults and clients, then peace, then the checks.
    ///
    /// # Errors
    /// The broken rule, with the seed.
    pub fn run(seed: u64, options: Options) -> Result<Outcome, String> {
        Self::new(seed, options).run_to_end(seed)
    }

    /// The same for a world that has just begun, which can be looked at afterwards.
    ///
    /// # Errors
    /// As [`Self::run`].
    pub fn run_to_end(&mut self, seed: u64) -> Result<Outcome, String> {
        let result = self.run_all();
        result.map(|()| self.outcome()).map_err(|error| {
            let events = self.events.join("\n  ");
            let test = if self.control.is_some() { "failover" } else { "seeds" };
            format!("seed {seed}: {error}\nwhat happened:\n  {events}\nrepeat: GABION_FIRST_SEED={seed} GABION_SEEDS=1 cargo test -p gabion-sim --test {test}")
        })
    }

    /// The operations of clients so far, with results.
    #[must_use]
    pub fn history(&self) -> &[Operation] {
        &self.history
    }

    /// Steps with clients and faults, for a test that looks at the cluster in between. After the
    /// last come the checks of [`Self::finish`].
    ///
    /// # Errors
    /// The broken rule.
    pub fn advance(&mut self, steps: u64) -> Result<(), String> {
        for _ in 0..steps {
            self.inject_faults();
            self.inject_moves();
            self.inject_absences();
            self.inject_control_faults();
            self.clients_act();
            self.begin_load();
            self.step();
            self.verify();
            self.look_for_violation()?;
        }
        Ok(())
    }

    /// Peace, then the checks.
    ///
    /// # Errors
    /// The broken rule.
    pub fn finish(&mut self) -> Result<(), String> {
        self.settle()?;
        self.find_rot()?;
        self.final_reads()?;
        // A MemTable may have been sealed meanwhile, as nobody wrote for long, and jobs followed.
        self.settle()?;
        history::check(&self.history)?;
        check::at_rest(self)?;
        self.check_segments()?;
        let records = self.scan(self.reader())?;
        check::gone(&self.history, &records)
    }

    /// Changes what a primary meets at targets from now on.
    pub fn set_targets(&mut self, targets: Targets) {
        self.targets = targets;
        if targets == Targets::Silent {
            return;
        }
        self.reach_targets();
    }

    fn reach_targets(&mut self) {
        for (from, to, start, pipes) in std::mem::take(&mut self.untaken) {
            self.reach_target(from, to, start, pipes);
        }
    }

    fn run_all(&mut self) -> Result<(), String> {
        for step in 0..self.options.steps {
            if self.options.power_all_at == Some(step) {
                (0..self.machines.len()).for_each(|index| self.kill(index, true));
                if self.options.ack == AckLevel::Replicated {
                    return self.check_prefix();
                }
            }
            self.advance(1)?;
        }
        self.finish()
    }

    fn look_for_violation(&mut self) -> Result<(), String> {
        self.violation.take().map_or(Ok(()), Err)
    }

    /// The group's configuration.
    #[must_use]
    pub fn group(&self) -> &GroupConfig {
        &self.group
    }

    /// Machines.
    #[must_use]
    pub fn len(&self) -> usize {
        self.machines.len()
    }

    /// Whether there is no machine.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.machines.is_empty()
    }

    /// A machine's replica, when it is up.
    #[must_use]
    pub fn node(&self, index: usize) -> Option<&Node> {
        self.machines[index].process.as_ref()?.node.as_deref()
    }

    // ---- one step

    fn step(&mut self) {
        self.now_ms += self.random.below(3);
        self.moment += 1;
        self.expire();
        self.start_processes();
        self.tell_of_return();
        self.pass_over_net();
        self.step_control();
        self.connect_links();
        for index in 0..self.machines.len() {
            for _ in 0..self.random.below(3) {
                if !self.machines[index].is_hung(self.now_ms) {
                    self.machines[index].disk.tick();
                }
            }
            self.deliver(index);
            self.pump(index);
        }
        self.note_promised();
        self.poll_clients();
        self.go_on_loading();
    }

    fn start_processes(&mut self) {
        for index in 0..self.machines.len() {
            let machine = &self.machines[index];
            if machine.process.is_none() && self.now_ms >= machine.down_until_ms {
                let handle = machine.disk.handle();
                let machine = &mut self.machines[index];
                (machine.epoch, machine.is_told) = (Epoch::default(), false);
                self.open(index, handle);
            }
        }
    }

    /// Opens a machine's replica over what reaches its disk, once nothing is under way there.
    fn open(&mut self, index: usize, handle: MediumHandle) {
        let (now_ms, options) = (self.now_ms, options::node_options(&self.options));
        let machine = &mut self.machines[index];
        machine.starts += 1;
        let ring: Box<dyn MemoryRegion> = Box::new(machine.ring.clone());
        let ring = (ring, Some(machine.label.clone()));
        let random = self.random.fork();
        let flush_had_failed = machine.disk.flush_had_failed();
        let trust = if flush_had_failed { Trust::Flushed } else { Trust::Readable };
        let starts = machine.starts;
        let mut process = Process::start_on(starts, handle, ring, options, trust, now_ms, random);
        process.replace_cache(self.options.cache_len);
        if self.control.is_some() && !machine.is_told {
            process.await_word();
        }
        if let Some(damage) = self.options.foreign_targets {
            process.serve_foreign(damage);
        }
        machine.process = Some(process);
    }

    /// The replica is opened anew in its process: what the disk was given goes on, and nothing that
    /// it holds in memory is lost.
    fn reopen(&mut self, index: usize, reason: &Error) {
        self.trace(b"reopen");
        self.note(format!("replica {} is opened anew: {reason}", index + 1));
        self.end_node(index, false);
        self.outcome.reopenings += 1;
        let machine = &mut self.machines[index];
        machine.moments = Moments::default();
        let Some(process) = machine.process.take() else { return };
        self.open(index, process.into_medium());
    }

    /// The clock of all, in ms.
    #[must_use]
    pub fn now_ms(&self) -> u64 {
        self.now_ms
    }

    /// Time passes before the next step, besides the step's own.
    pub fn pass_time(&mut self, ms: u64) {
        self.now_ms += ms;
    }

    /// A machine's replica, for a test that writes to it.
    pub fn node_mut(&mut self, index: usize) -> Option<&mut Node> {
        self.machines[index].process.as_mut()?.node.as_deref_mut()
    }

    /// Gives the caches of a machine's replica other budgets, in bytes, until its process ends: for
    /// blocks, and for the memory of open files.
    pub fn set_cache(&mut self, index: usize, blocks_len: usize, open_len: usize) {
        if let Some(process) = &mut self.machines[index].process {
            process.set_cache(blocks_len, open_len);
        }
    }

    fn pump(&mut self, index: usize) {
        let now_ms = self.now_ms;
        if self.is_paused(index) {
            return;
        }
        let Some(process) = &mut self.machines[index].process else { return };
        let was_open = process.node.is_some();
        let wishes = process.pump(now_ms);
        if !was_open && process.node.is_some() {
            self.machines[index].disk.forget_failed_flush();
        }
        self.machines[index].fill_up(now_ms);
        self.flip_on_disk(index);
        self.check_unshipped(index);
        self.check_noted(index);
        if self.options.faults.lost > 0 {
            self.machines[index].remember();
        }
        for wish in wishes {
            match wish {
                Wish::Send(frame) => self.send(index, frame),
                Wish::Disconnect(peer, connection, _) => {
                    if let Some(other) = self.index_of(peer) {
                        self.leave(index, other, connection);
                    }
                }
                Wish::ConnectTarget(to, admin, io) => {
                    let Some(to) = self.index_of(to) else { continue };
                    self.note_pipes(index, to, &[admin.clone(), io.clone()]);
                    self.reach_target(index, to, self.machines[to].starts, [admin, io]);
                }
                Wish::Report(violation) => {
                    let text = format!("replica {}: {violation}", index + 1);
                    self.violation.get_or_insert(text);
                }
                Wish::Tell(notice) => {
                    self.note(format!("replica {} says: {notice}", index + 1));
                    self.machines[index].notices.push(notice);
                }
                Wish::Reopen(reason) => self.reopen(index, &reason),
                Wish::Die(error) => {
                    self.deaths.push(format!("replica {}: {error}", index + 1));
                    let death = format!("replica {} ended itself: {error}", index + 1);
                    if self.is_of_failing_call(index, &death) {
                        self.note(death);
                    } else {
                        self.violation.get_or_insert(death);
                    }
                    self.kill(index, false);
                }
            }
        }
    }

    /// A connection arrives at a machine with this many starts when it was made.
    fn reach_target(&mut self, from: usize, to: usize, start: u64, pipes: [Pipe; 2]) {
        let is_cut = self.is_cut(from, to) || self.is_cut(to, from);
        let machine = &mut self.machines[to];
        let process = machine.process.as_mut().filter(|_| machine.starts == start);
        match (process, self.targets) {
            (Some(_), Targets::Open) if is_cut => self.untaken.push((from, to, start, pipes)),
            (Some(process), Targets::Open) => {
                pipes.into_iter().for_each(|pipe| process.accept_target(pipe));
            }
            (Some(_), Targets::Silent) => self.untaken.push((from, to, start, pipes)),
            _ => pipes.iter().for_each(Pipe::cut),
        }
    }

    /// No job begins while too many built bytes of others wait in memory, nor builds a further file
    /// while too many of its own do.
    fn check_unshipped(&mut self, index: usize) {
        let Some(process) = &self.machines[index].process else { return };
        let Some(node) = &process.node else { return };
        let unshipped_of_job = process.unshipped_of_job_max;
        let unshipped = node.counters().unshipped_bytes_at_job_max;
        if unshipped > UNSHIPPED_BYTES_MAX {
            let what = format!("a job was begun while {unshipped} bytes were not shipped");
            self.violation.get_or_insert(what);
        }
        if unshipped_of_job > UNSHIPPED_BYTES_MAX {
            let what =
                format!("a job went on while {unshipped_of_job} bytes of its files were waiting");
            self.violation.get_or_insert(what);
        }
    }

    fn trace(&mut self, bytes: &[u8]) {
        self.outcome.trace = crc::append(self.outcome.trace, bytes);
    }
}

//! Machines, instances, the network between them, the store, and what goes wrong.
//!
//! A seed's faults keep the promise that the library is made for: of the copies that the map in the
//! store names f+1 can always answer in the end. A seed that breaks it is marked, and then nothing
//! has to come back; but what comes back has to be right all the same.
//!
//! A world may share memory: the library grants records to its program, which writes them to the
//! peers, also while the library is stopped. A dead peer's memory stays mapped, and its gates open,
//! until the library learns of it. That it does soon, as such a peer is on the same machine.

use crate::check::{History, Model};
use crate::copies;
use crate::direct::{Slips, Tally};
use crate::images::ProgramImages;
use crate::peers::{LIMIT, Machine, Random};
use crate::program::Program;
use gabion_base::{Error, Term};
use gabion_control::store::MemoryStore;
use gabion_control::{Store, Version};
use gabion_media::remote::{ClientId, ConnectionGeneration, Notice, PeerId, Reply};
use gabion_ncl::map::{ApMap, Member, map_name, peer_name};
use gabion_ncl::{Application, Asker, Command, Options, Output, Sizes, StoreOperation, StoreReply};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

pub(crate) const OWNER: &str = "app";
const F: usize = 1;

/// How often each thing goes wrong: once in so many ms on average; 0: never.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Faults {
    pub(crate) crash: u64,
    pub(crate) pause: u64,
    /// A second instance starts while the first lives.
    pub(crate) takeover: u64,
    pub(crate) machine: u64,
    pub(crate) revoke: u64,
    pub(crate) cut: u64,
    pub(crate) stall: u64,
    pub(crate) store: u64,
    pub(crate) set_back: u64,
    pub(crate) late_ms: u64,
    /// A machine has no memory to lend for a while.
    pub(crate) full: u64,
}

impl Faults {
    pub(crate) fn of_seed(random: &mut Random) -> Self {
        let mut often = |ms: u64| if random.once_in(3) { 0 } else { ms / 2 + random.below(ms) };
        Self {
            crash: often(900),
            pause: often(900),
            takeover: often(1500),
            machine: often(700),
            revoke: often(900),
            cut: often(300),
            stall: often(500),
            store: often(600),
            set_back: often(1500),
            late_ms: 1 + often(6),
            full: often(600),
        }
    }
}

/// A connection of an instance to a machine. Messages keep their order; each end goes by itself.
struct Connection {
    client: ClientId,
    generation: ConnectionGeneration,
    /// None: the instance has given it up, and what is under way still arrives.
    instance: Option<usize>,
    machine: PeerId,
    requests: VecDeque<(u64, Term, Command)>,
    replies: VecDeque<(u64, Answer)>,
    is_stalled_until_ms: u64,
    /// It broke: nothing more gets through.
    is_broken: bool,
}

enum Answer {
    Reply(Reply),
    Notice(Notice),
    Ended,
}

struct Asked {
    at_ms: u64,
    instance: usize,
    asker: Asker,
    /// None: it was carried out, and its answer was lost.
    operation: Option<StoreOperation>,
}

pub(crate) struct Instance {
    pub(crate) application: Application<ProgramImages>,
    pub(crate) images: ProgramImages,
    pub(crate) program: Option<Program>,
    client: ClientId,
    generation: u64,
    paused_until_ms: u64,
    /// Its program is paused with it.
    program_is_paused: bool,
    skew_ms: u64,
    /// Outputs that were carried out.
    pub(crate) outputs: u64,
    /// Its lineage goes on in a later instance.
    is_former: bool,
}

/// The outcome of a run.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) operations: u64,
    pub(crate) acknowledged: u64,
    pub(crate) recoveries: u64,
    pub(crate) crashes: u64,
    pub(crate) losses: u64,
    pub(crate) revocations: u64,
    pub(crate) takeovers: u64,
    pub(crate) fenced: u64,
    pub(crate) set_backs: u64,
    /// Regions that peers had no room for, and changes for which there was no memory.
    pub(crate) refused: u64,
    pub(crate) denied: u64,
    /// Calls that gave memory back.
    pub(crate) trimmed: u64,
    /// Of records that programs wrote to the peers.
    pub(crate) direct: Tally,
}

impl Outcome {
    pub(crate) fn add(&mut self, other: &Self) {
        self.operations += other.operations;
        self.acknowledged += other.acknowledged;
        self.recoveries += other.recoveries;
        self.crashes += other.crashes;
        self.losses += other.losses;
        self.revocations += other.revocations;
        self.takeovers += other.takeovers;
        self.fenced += other.fenced;
        self.set_backs += other.set_backs;
        self.refused += other.refused;
        self.denied += other.denied;
        self.trimmed += other.trimmed;
        self.direct.add(&other.direct);
    }
}

pub(crate) struct World {
    pub(crate) random: Random,
    pub(crate) now_ms: u64,
    pub(crate) faults: Faults,
    pub(crate) machines: BTreeMap<PeerId, Machine>,
    pub(crate) instances: BTreeMap<usize, Instance>,
    connections: Vec<Connection>,
    store: MemoryStore,
    earlier_store: MemoryStore,
    store_away_until_ms: u64,
    asked: Vec<Asked>,
    started: usize,
    /// The operations of the last instance that ran.
    /// That of instances that start.
    pub(crate) patience_ms: u64,
    history: History,
    /// The copies are fewer than promised: nothing need come back.
    pub(crate) is_disaster: bool,
    /// When a machine lost something last.
    lost_ms: u64,
    /// The store was set back, and the instance has not told it again yet.
    pub(crate) is_set_back: bool,
    /// Programs share memory with the peers.
    pub(crate) is_shared: bool,
    /// Planted defects of the programs.
    pub(crate) slips: Slips,
    pub(crate) outcome: Outcome,
    #[cfg(feature = "planted")]
    pub(crate) mutant: Option<gabion_ncl::Mutant>,
}

type Checked = Result<(), String>;

impl World {
    pub(crate) fn new(seed: u64, machines: u64, faults: Faults) -> Self {
        let mut world = Self {
            random: Random(seed),
            now_ms: 1_000_000,
            faults,
            machines: (1..=machines).map(|id| (PeerId(id), Machine::new(id))).collect(),
            instances: BTreeMap::new(),
            connections: Vec::new(),
            store: MemoryStore::default(),
            earlier_store: MemoryStore::default(),
            store_away_until_ms: 0,
            asked: Vec::new(),
            started: 0,
            history: History::default(),
            patience_ms: Self::options(0, false).patience_ms,
            is_disaster: false,
            lost_ms: 0,
            is_set_back: false,
            is_shared: false,
            slips: Slips::default(),
            outcome: Outcome::default(),
            #[cfg(feature = "planted")]
            mutant: None,
        };
        world.register();
        world.earlier_store = world.store.clone();
        world
    }

    pub(crate) fn options(instance: u64, takes_over: bool) -> Options {
        Options {
            lease_ms: 200,
            takes_over,
            patience_ms: 80,
            cooling_ms: 60,
            outstanding_max: 64,
            outstanding_bytes_max: 64 << 10,
            lag_bytes_max: 64 << 10,
            window_requests: 16,
            window_bytes: 32 << 10,
            sizes: Sizes {
                part_min: 4096,
                part_max: 16384,
                record_max: 2048,
                file_max: 1 << 20,
                names_max: 2048,
            },
            ..Options::new(OWNER, instance)
        }
    }

    /// Some machines have little memory until all heals: one copy may be too much for them, and a
    /// second one beside it.
    pub(crate) fn lack_memory(&mut self) {
        let (most, few) = (64 + self.random.below(200), self.random.once_in(3));
        for machine in self.machines.values_mut() {
            if !(few && self.random.once_in(2)) {
                machine.set_limit((40 + self.random.below(most)) << 10);
            }
        }
    }

    /// Another instance starts.
    pub(crate) fn start(&mut self, takes_over: bool) -> usize {
        self.started += 1;
        let id = self.started;
        let options =
            Options { patience_ms: self.patience_ms, ..Self::options(id as u64, takes_over) };
        let skew_ms = self.random.below(2_000_000);
        let now_ms = self.now_ms + skew_ms;
        let images = ProgramImages::default();
        #[cfg(feature = "planted")]
        let application = Application::planted(options, images.clone(), now_ms, self.mutant);
        #[cfg(not(feature = "planted"))]
        let application = Application::new(options, images.clone(), now_ms);
        let application = application.expect("the options are valid");
        let client = ClientId(id as u64);
        let (paused_until_ms, program_is_paused) = (0, false);
        let (generation, outputs, is_former) = (0, 0, false);
        let instance = Instance {
            application,
            images,
            program: None,
            client,
            generation,
            paused_until_ms,
            program_is_paused,
            skew_ms,
            outputs,
            is_former,
        };
        self.instances.insert(id, instance);
        id
    }

    // The store.

    fn register(&mut self) {
        for machine in self.machines.values().filter(|machine| machine.peer.is_some()) {
            let (name, value) = (peer_name(machine.id), machine.record().encode());
            let found = self.store.get(&name).expect("it answers");
            if found.as_ref().is_none_or(|found| found.value != value) {
                let version = found.map_or(Version::NONE, |found| found.version);
                self.store.swap(&name, version, &value).expect("it answers");
            }
        }
    }

    pub(crate) fn map(&mut self) -> Option<ApMap> {
        let found = self.store.get(&map_name(OWNER)).expect("it answers");
        found.map(|found| ApMap::decode(&found.value).expect("the map is whole"))
    }

    fn answer_store(&mut self) {
        let due: Vec<usize> =
            (0..self.asked.len()).rev().filter(|at| self.asked[*at].at_ms <= self.now_ms).collect();
        let mut due: Vec<Asked> = due.into_iter().map(|at| self.asked.remove(at)).collect();
        due.reverse();
        for Asked { instance, asker, operation, .. } in due {
            let is_away = self.now_ms < self.store_away_until_ms;
            let mut reply = Err(Error::unavailable("no answer"));
            if let Some(operation) = operation.filter(|_| !is_away || self.random.once_in(2)) {
                reply = operation.run(&mut self.store);
            }
            if is_away {
                reply = Err(Error::unavailable("the store is away"));
            }
            self.hand_store(instance, asker, reply);
        }
    }

    fn hand_store(&mut self, id: usize, asker: Asker, reply: gabion_base::Result<StoreReply>) {
        let now_ms = self.now_ms;
        let Some(instance) = self.instances.get_mut(&id) else { return };
        if now_ms < instance.paused_until_ms {
            // It finds the answer when it wakes: an error is as good then.
            let (at_ms, operation) = (instance.paused_until_ms, None);
            return self.asked.push(Asked { at_ms, instance: id, asker, operation });
        }
        instance.application.handle_store(now_ms + instance.skew_ms, asker, reply);
    }

    // The network.

    /// Carries out what an instance wants. False once it has nothing more.
    pub(crate) fn carry_out(&mut self, id: usize) -> bool {
        let Some(instance) = self.instances.get_mut(&id) else { return false };
        let Some(output) = instance.application.poll_output() else { return false };
        instance.outputs += 1;
        match output {
            Output::Connect { peer, .. } => {
                instance.generation += 1;
                let (client, generation) = (instance.client, instance.generation);
                self.connections.push(Connection {
                    client,
                    generation: ConnectionGeneration(generation),
                    instance: Some(id),
                    machine: peer,
                    requests: VecDeque::new(),
                    replies: VecDeque::new(),
                    is_stalled_until_ms: 0,
                    is_broken: false,
                });
            }
            Output::Disconnect { peer, .. } => self.give_up(id, peer),
            Output::Send { peer, term, command } => {
                let at_ms = self.now_ms + self.random.below(self.faults.late_ms.max(1));
                if let Some(connection) = self.connection(id, peer) {
                    let last = connection.requests.back().map_or(0, |(at_ms, ..)| *at_ms);
                    connection.requests.push_back((at_ms.max(last), term, command));
                }
            }
            Output::Store { asker, operation } => {
                let at_ms = self.now_ms + self.random.below(4);
                let operation = Some(operation);
                self.asked.push(Asked { at_ms, instance: id, asker, operation });
            }
        }
        true
    }

    fn connection(&mut self, id: usize, peer: PeerId) -> Option<&mut Connection> {
        let mut found = self.connections.iter_mut().rev();
        found.find(|it| it.instance == Some(id) && it.machine == peer)
    }

    /// The instance's end of a connection is gone; what is under way may arrive, late or in part.
    fn give_up(&mut self, id: usize, peer: PeerId) {
        let keep = self.random.below(4);
        let late_ms = self.now_ms + self.random.below(100);
        if let Some(connection) = self.connection(id, peer) {
            connection.instance = None;
            connection.is_stalled_until_ms = late_ms;
            if keep == 0 {
                connection.requests.clear();
            }
        }
    }

    /// A connection breaks: a beginning of what is under way arrives, and of the next write a part.
    fn break_off(&mut self, at: usize) {
        let mut connection = self.connections.remove(at);
        if connection.is_broken {
            return self.connections.push(connection);
        }
        let arrives = self.random.below(connection.requests.len() as u64 + 1);
        for _ in 0..arrives {
            self.deliver_request(&mut connection);
        }
        if let (Some((_, term, Command::Write { chain })), Some(machine)) =
            (connection.requests.front(), self.machines.get_mut(&connection.machine))
        {
            machine.land_in_part(OWNER, connection.client, *term, chain, &mut self.random);
        }
        if let Some(id) = connection.instance.filter(|id| self.instances.contains_key(id)) {
            connection.requests.clear();
            connection.replies.clear();
            connection.is_broken = true;
            connection.replies.push_back((self.now_ms + 1, Answer::Ended));
            connection.instance = Some(id);
            self.connections.push(connection);
        }
    }

    fn deliver_request(&mut self, connection: &mut Connection) {
        let Some((_, term, command)) = connection.requests.pop_front() else { return };
        let Some(machine) = self.machines.get_mut(&connection.machine) else { return };
        let (client, generation) = (connection.client, connection.generation);
        if connection.is_broken {
            return;
        }
        if machine.peer.is_none() {
            connection.replies.push_back((self.now_ms + 1, Answer::Ended));
            return;
        }
        if let Some(reply) = machine.handle(OWNER, client, generation, term, &command) {
            let at_ms = self.now_ms + self.random.below(self.faults.late_ms.max(1));
            connection.replies.push_back((at_ms, Answer::Reply(reply)));
        }
    }

    fn deliver(&mut self) {
        let mut connections = std::mem::take(&mut self.connections);
        for connection in &mut connections {
            while self.now_ms >= connection.is_stalled_until_ms
                && connection.requests.front().is_some_and(|(at_ms, ..)| *at_ms <= self.now_ms)
            {
                self.deliver_request(connection);
            }
            self.deliver_replies(connection);
        }
        connections.retain(|it| {
            let is_over = it.instance.is_none_or(|id| !self.instances.contains_key(&id));
            !(is_over && it.requests.is_empty())
        });
        self.connections.append(&mut connections);
    }

    fn deliver_replies(&mut self, connection: &mut Connection) {
        let (now_ms, peer) = (self.now_ms, connection.machine);
        let Some(id) = connection.instance else { return };
        let Some(instance) = self.instances.get_mut(&id) else { return };
        let stalled_ms = connection.is_stalled_until_ms;
        let mut last_ms = 0;
        while now_ms >= stalled_ms.max(instance.paused_until_ms)
            && connection.replies.front().is_some_and(|(at_ms, _)| (*at_ms).max(last_ms) <= now_ms)
            && let Some((at_ms, answer)) = connection.replies.pop_front()
        {
            last_ms = at_ms;
            let (at_ms, application) = (now_ms + instance.skew_ms, &mut instance.application);
            match answer {
                Answer::Reply(reply) => application.handle_reply(at_ms, peer, reply),
                Answer::Notice(notice) => application.handle_notice(at_ms, peer, &notice),
                Answer::Ended => {
                    connection.instance = None;
                    let error = Error::unavailable("the connection ended");
                    return application.handle_disconnected(at_ms, peer, error);
                }
            }
        }
    }

    // Faults.

    fn is_time(&mut self, every_ms: u64) -> bool {
        every_ms > 0 && self.random.once_in(every_ms)
    }

    /// An instance dies.
    pub(crate) fn crash(&mut self, id: usize) {
        let Some(instance) = self.instances.remove(&id) else { return };
        self.outcome.crashes += 1;
        let is_amid = instance.program.as_ref().is_some_and(Program::is_amid);
        self.outcome.direct.died += u64::from(is_amid);
        self.note_direct(&instance);
        self.keep_history(&instance);
        for at in (0..self.connections.len()).rev() {
            if self.connections[at].instance == Some(id) {
                self.break_off(at);
            }
        }
        self.asked.retain(|asked| asked.instance != id || asked.asker == Asker::Map);
    }

    fn keep_history(&mut self, instance: &Instance) {
        if let Some(program) = instance.program.as_ref().filter(|_| !instance.is_former) {
            self.history = program.history.clone();
        }
    }

    /// Whether f+1 of the copies in the store's map are left without this machine's, also if a
    /// change of the map that is under way takes effect.
    ///
    /// A loss that an instance has not noticed yet, as it sleeps or owes its peers patience, is one
    /// of the f: it may name that copy still.
    fn can_spare(&mut self, peer: PeerId) -> bool {
        let wakes_ms = self.instances.values().map(|it| it.paused_until_ms).max();
        if self.now_ms < self.lost_ms.max(wakes_ms.unwrap_or(0)) + 150 {
            return false;
        }
        let stored = self.map();
        let under_way = self.asked.iter().filter_map(|asked| match &asked.operation {
            Some(StoreOperation::Swap(name, _, value)) if *name == map_name(OWNER) => {
                Some(ApMap::decode(value).expect("the map is whole"))
            }
            _ => None,
        });
        // A store that was set back has an older map than the instance that tells it again.
        let own = self.instances.values().filter(|it| self.is_set_back && it.program.is_some());
        let own = own.map(|it| it.application.status().map);
        let maps: Vec<ApMap> = under_way.chain(stored).chain(own).collect();
        let is_left = |map: &ApMap| self.copies(map).filter(|it| *it != peer).count() > F;
        maps.iter().all(|map| map.member(peer).is_none() || is_left(map))
    }

    /// The peers of a map that have their copies.
    pub(crate) fn copies(&self, map: &ApMap) -> impl Iterator<Item = PeerId> {
        let is_there = |it: &&Member| self.machines[&it.peer].has_copy(it.incarnation);
        map.members.iter().filter(is_there).map(|member| member.peer)
    }

    fn any_machine(&mut self) -> PeerId {
        PeerId(1 + self.random.below(self.machines.len() as u64))
    }

    pub(crate) fn kill_machine(&mut self, peer: PeerId, down_ms: u64) {
        self.outcome.losses += 1;
        self.lost_ms = self.now_ms;
        let machine = self.machines.get_mut(&peer).expect("it is there");
        machine.peer = None;
        machine.up_at_ms = self.now_ms + down_ms;
        for connection in self.connections.iter_mut().filter(|it| it.machine == peer) {
            connection.requests.clear();
            connection.is_broken = true;
            connection.replies.push_back((self.now_ms + 1, Answer::Ended));
            if self.is_shared {
                // A client on the same machine learns of it at once.
                connection.is_stalled_until_ms = 0;
            }
        }
    }

    pub(crate) fn revoke(&mut self, peer: PeerId) {
        let revoked = self.machines.get_mut(&peer).expect("it is there").revoke();
        if revoked.is_empty() {
            return;
        }
        self.outcome.revocations += 1;
        self.lost_ms = self.now_ms;
        // The notice may be late: then a write finds out.
        let at_ms = self.now_ms + self.random.below(100);
        for connection in self.connections.iter_mut().filter(|it| it.machine == peer) {
            let notice = Answer::Notice(Notice::Revoked(revoked.clone()));
            connection.replies.push_back((at_ms, notice));
        }
    }

    /// The connection of an instance to a machine breaks.
    pub(crate) fn cut(&mut self, id: usize, peer: PeerId) {
        let is_it = |it: &Connection| it.instance == Some(id) && it.machine == peer;
        if let Some(at) = self.connections.iter().rposition(is_it) {
            self.break_off(at);
        }
    }

    /// Changes of the map that are asked for take effect, and their answers are lost.
    pub(crate) fn change_map_unheard(&mut self) {
        let changes = |it: &StoreOperation| matches!(it, StoreOperation::Swap(..));
        let asks = |it: &&mut Asked| it.asker == Asker::Map;
        for asked in self.asked.iter_mut().filter(asks) {
            if let Some(operation) = asked.operation.take_if(|it| changes(it)) {
                operation.run(&mut self.store).expect("it answers");
            }
        }
    }

    /// A machine's connections bring nothing for so long.
    pub(crate) fn slow(&mut self, peer: PeerId, ms: u64) {
        let until_ms = self.now_ms + ms;
        let connections = self.connections.iter_mut().filter(|it| it.machine == peer);
        connections.for_each(|it| it.is_stalled_until_ms = until_ms);
    }

    /// The library of an instance is stopped, and its program goes on.
    pub(crate) fn stop_library(&mut self, id: usize, ms: u64) {
        let instance = self.instances.get_mut(&id).expect("it is there");
        (instance.paused_until_ms, instance.program_is_paused) = (self.now_ms + ms, false);
    }

    fn misfortune(&mut self) {
        let faults = self.faults;
        let peer = self.any_machine();
        if self.is_time(faults.machine) && self.can_spare(peer) {
            let down_ms = self.random.below(400);
            self.kill_machine(peer, down_ms);
        }
        let peer = self.any_machine();
        if self.is_time(faults.revoke) && self.can_spare(peer) {
            self.revoke(peer);
        }
        if self.is_time(faults.cut) && !self.connections.is_empty() {
            let at = self.random.below(self.connections.len() as u64) as usize;
            self.break_off(at);
        }
        if self.is_time(faults.stall) && !self.connections.is_empty() {
            let at = self.random.below(self.connections.len() as u64) as usize;
            let until_ms = self.now_ms + self.random.below(200);
            if !(self.is_shared && self.connections[at].is_broken) {
                self.connections[at].is_stalled_until_ms = until_ms;
            }
        }
        let peer = self.any_machine();
        if self.is_time(faults.full) {
            let (more, ms) = (self.random.below(32 << 10), self.random.below(600));
            let (until_ms, all) = (self.now_ms + ms, self.random.once_in(2));
            let full = self.machines.values_mut().filter(|machine| all || machine.id == peer);
            full.for_each(|machine| machine.fill_up(more, until_ms));
        }
        if self.is_time(faults.store) {
            self.store_away_until_ms = self.now_ms + self.random.below(300);
        }
        self.misfortune_of_instances();
    }

    fn misfortune_of_instances(&mut self) {
        let faults = self.faults;
        let Some(id) = self.instances.keys().next().copied() else { return };
        let is_alone = self.instances.len() == 1;
        let runs = self.instances[&id].program.is_some();
        if self.is_set_back {
            // The instance that lives tells the store again; until then it must not end.
            let own = self.instances[&id].application.status();
            self.is_set_back = !self.is_told(&own.map) && own.phase == "running";
            return;
        }
        if self.is_time(faults.crash) {
            let last = self.instances.keys().next_back().copied().unwrap_or(id);
            let dies = if self.random.once_in(2) { id } else { last };
            return self.crash(dies);
        }
        let mut is_replaced = false;
        if self.is_time(faults.pause)
            && let Some(instance) = self.instances.get_mut(&id)
        {
            instance.paused_until_ms = self.now_ms + 20 + self.random.below(800);
            instance.program_is_paused = !self.is_shared || self.random.once_in(2);
            // Its program goes on while another instance takes its place.
            is_replaced = !instance.program_is_paused && is_alone && self.random.once_in(2);
        }
        if is_replaced || self.is_time(faults.takeover) && is_alone {
            self.outcome.takeovers += 1;
            let takes_over = self.random.once_in(2);
            self.start(takes_over);
        } else if self.is_time(faults.set_back) && is_alone && runs {
            let paused = self.instances[&id].paused_until_ms > self.now_ms;
            let is_running = self.instances[&id].application.status().phase == "running";
            if !paused && is_running && self.asked.is_empty() {
                self.outcome.set_backs += 1;
                self.set_back();
            }
        }
        if self.random.once_in(200) {
            self.keep_store();
        }
    }

    /// The store is as it was when it was kept.
    pub(crate) fn set_back(&mut self) {
        self.store = self.earlier_store.clone();
        self.is_set_back = true;
    }

    pub(crate) fn keep_store(&mut self) {
        self.earlier_store = self.store.clone();
    }

    /// Whether the store that was set back has the instance's map again, and f+1 of the copies that
    /// it names are there. The map alone is not enough. A change whose answer was lost may have
    /// been undone: then the instance knows the map of before, and finds nothing wrong. But a peer
    /// that the change replaced may have seen it, and given its copy back. To the map of before
    /// that is one more loss, and with a machine's more than f; which an instance survives as long
    /// as it lives, as its mirrors have everything and it enters the next copies that are whole.
    fn is_told(&mut self, own: &ApMap) -> bool {
        self.map().is_some_and(|map| map == *own && self.copies(&map).count() > F)
    }

    // Time.

    /// One ms of everything.
    pub(crate) fn step(&mut self) -> Checked {
        self.now_ms += 1;
        self.misfortune();
        for machine in self.machines.values_mut() {
            if machine.peer.is_none() && machine.up_at_ms <= self.now_ms {
                machine.start();
            }
            if machine.is_full_until_ms > 0 && machine.is_full_until_ms <= self.now_ms {
                machine.fill_no_more();
            }
        }
        if self.now_ms.is_multiple_of(20) {
            self.register();
        }
        if self.instances.is_empty() {
            self.start(true);
        }
        if self.now_ms.is_multiple_of(100) {
            self.collect();
        }
        self.deliver();
        self.answer_store();
        let ids: Vec<usize> = self.instances.keys().copied().collect();
        for id in ids {
            self.step_instance(id)?;
        }
        Ok(())
    }

    pub(crate) fn collect(&mut self) {
        let map = self.map();
        let machines = self.machines.values_mut();
        machines.for_each(|machine| machine.collect(map.as_ref()));
    }

    fn step_instance(&mut self, id: usize) -> Checked {
        let now_ms = self.now_ms;
        let mut operates = self.random.below(8).saturating_sub(5);
        let Some(instance) = self.instances.get_mut(&id) else { return Ok(()) };
        if instance.images.shared.open().is_some() {
            // Nothing is waited for.
            operates += self.random.below(3);
        }
        if now_ms < instance.paused_until_ms {
            let program = instance.program.as_mut().filter(|_| !instance.program_is_paused);
            if let Some(program) = program {
                (0..operates).for_each(|_| program.step_alone(&instance.images, &mut self.random));
            }
            return self.note_acknowledged(id);
        }
        instance.application.handle_time(now_ms + instance.skew_ms);
        let status = instance.application.status();
        if status.phase == "ended" {
            self.outcome.fenced += 1;
            self.crash(id);
            return Ok(());
        }
        if status.phase == "running" && instance.program.is_none() {
            self.note_recovered(id)?;
        }
        let Some(instance) = self.instances.get_mut(&id) else { return Ok(()) };
        if let Some(program) = &mut instance.program {
            while operates > 0 {
                program.step(&mut instance.application, &instance.images, &mut self.random);
                operates -= 1;
            }
        }
        while self.carry_out(id) {}
        self.grant(id);
        self.note_acknowledged(id)
    }

    /// An instance has its files: they are compared with what was done before.
    fn note_recovered(&mut self, id: usize) -> Checked {
        self.outcome.recoveries += 1;
        let former: Vec<usize> = self.instances.keys().copied().filter(|it| *it != id).collect();
        for former in former {
            if let Some(mut instance) = self.instances.remove(&former) {
                self.keep_history(&instance);
                instance.is_former = instance.program.is_some();
                self.instances.insert(former, instance);
            }
        }
        let instance = self.instances.get_mut(&id).expect("it is there");
        let number = instance.application.status().acknowledged;
        let found = Model::of(&instance.application)?;
        self.history.check(&found, number)?;
        let acknowledged = self.history.acknowledged.max(number);
        let mut program = Program::new(found, acknowledged);
        (program.is_shared, program.slips) = (self.is_shared, self.slips);
        // The files that it shows count as acknowledged from now on.
        self.history = program.history.clone();
        instance.program = Some(program);
        Ok(())
    }

    fn note_acknowledged(&mut self, id: usize) -> Checked {
        let Some(instance) = self.instances.get_mut(&id) else { return Ok(()) };
        let Some(program) = &mut instance.program else { return Ok(()) };
        let number = program.acknowledged(instance.application.status().acknowledged);
        if number <= program.history.acknowledged {
            return Ok(());
        }
        if instance.is_former && number > self.history.acknowledged {
            return Err(format!("{number} is acknowledged to an instance that was replaced"));
        }
        self.outcome.acknowledged += number.0 - program.history.acknowledged.0;
        program.history.acknowledged = number;
        Ok(())
    }

    /// Runs for so long.
    pub(crate) fn run(&mut self, ms: u64) -> Checked {
        for _ in 0..ms {
            self.step()?;
        }
        Ok(())
    }

    /// Everything that is broken is mended.
    pub(crate) fn heal(&mut self) {
        self.faults = Faults { late_ms: 2, ..Faults::default() };
        self.store_away_until_ms = 0;
        for machine in self.machines.values_mut() {
            machine.up_at_ms = 0;
            machine.set_limit(LIMIT);
        }
        for connection in &mut self.connections {
            connection.is_stalled_until_ms = 0;
        }
        self.instances.values_mut().for_each(|instance| instance.paused_until_ms = 0);
    }

    /// After everything has healed: an instance runs, all it issued is acknowledged, and no peer
    /// has a region that no file has.
    pub(crate) fn settle(&mut self) -> Checked {
        self.heal();
        let mut calm_ms = 0;
        for _ in 0..5_000 {
            self.step()?;
            let runs = |it: &Instance| it.application.status().phase == "running";
            if self.instances.values().any(runs) {
                // Others wait for its lease for ever.
                let waits = |it: &Instance| it.application.status().phase == "leasing";
                let waiting = self.instances.iter().filter(|(_, it)| waits(it));
                let waiting: Vec<usize> = waiting.map(|(id, _)| *id).collect();
                waiting.into_iter().for_each(|id| self.crash(id));
            }
            let is_over = self.instances.len() == 1
                && self.instances.values().all(|it| {
                    let status = it.application.status();
                    status.copies == status.wanted && status.issued.0 > 0
                });
            // A request of a dead instance may still replace the one that lives.
            calm_ms = if is_over { calm_ms + 1 } else { 0 };
            if calm_ms == 300 {
                return self.quiesce();
            }
        }
        if self.is_disaster {
            return Ok(());
        }
        let status = self.instances.values().map(|it| it.application.status());
        Err(format!("nothing runs 5 s after the last fault: {:?}", status.collect::<Vec<_>>()))
    }

    /// The program does nothing more: all is acknowledged, all copies are whole.
    fn quiesce(&mut self) -> Checked {
        let id = *self.instances.keys().next().expect("one runs");
        self.finish_program(id)?;
        let rests = |it: &Instance| {
            let status = it.application.status();
            status.acknowledged == status.issued && status.copies == status.wanted
        };
        for _ in 0..500 {
            self.step()?;
            if self.instances.get(&id).is_some_and(rests) {
                break;
            }
        }
        self.collect();
        self.run(200)?;
        self.collect();
        let instance = self.instances.get(&id).ok_or("it ended at rest")?;
        if !rests(instance) {
            return Err(format!("it does not rest: {:?}", instance.application.status()));
        }
        let program = instance.program.as_ref().ok_or("its files are not there")?;
        self.outcome.operations += program.operations;
        self.outcome.direct.claimed += instance.images.shared.claimed();
        self.outcome.direct.add(&program.tally);
        self.outcome.refused += instance.application.status().refused;
        self.outcome.denied += program.denied;
        self.outcome.trimmed += program.trimmed;
        if program.model != Model::of(&instance.application)? {
            return Err("the mirrors are not what was written".to_owned());
        }
        let map = &instance.application.status().map;
        for machine in self.machines.values().filter(|it| map.member(it.id).is_some()) {
            copies::check(machine, &instance.application)?;
        }
        let names = instance.application.list("").map_err(|error| error.to_string())?;
        let files: BTreeSet<_> = names.into_iter().map(|(_, file)| file).collect();
        let parts = |file| instance.application.stat(file).map_or(0, |it| it.entry.parts.len());
        let ahead = files.len();
        let parts: usize = files.into_iter().map(parts).sum();
        self.check_regions(parts, ahead)
    }

    /// No peer has a region that no file of so many parts has, and `ahead` may have one ahead.
    fn check_regions(&mut self, parts: usize, ahead: usize) -> Checked {
        let map = self.map().ok_or("there is no map")?;
        for machine in self.machines.values() {
            let is_member = map.member(machine.id).is_some();
            let (regions, published) = (machine.regions(), machine.published());
            // The two files of the table have one part each, or some more.
            let most = (parts + ahead) as u64 + 8;
            let are_named = (parts as u64 + 2..=most).contains(&published);
            let is_right = if is_member { regions == published && are_named } else { regions == 0 };
            if !is_right {
                return Err(format!(
                    "peer {}, member: {is_member}, has {regions} regions, {published} published, \
                     {parts} parts are named",
                    machine.id
                ));
            }
        }
        Ok(())
    }

    /// The program of an instance does nothing more, and has no grant.
    fn finish_program(&mut self, id: usize) -> Checked {
        let Some(instance) = self.instances.get_mut(&id) else { return Ok(()) };
        if let Some(program) = &mut instance.program {
            program.is_over = true;
        }
        if !instance.images.shared.is_granted() {
            return Ok(());
        }
        let ended = instance.application.edit_names(&[]);
        ended.map(|_| ()).map_err(|error| format!("a grant does not end: {error}"))
    }

    /// Adds what a program did to the peers itself.
    fn note_direct(&mut self, instance: &Instance) {
        let (images, program) = (&instance.images, &instance.program);
        self.outcome.direct.claimed += images.shared.claimed();
        self.outcome.direct.add(&program.as_ref().map_or_else(Tally::default, |it| it.tally));
        self.outcome.refused += instance.application.status().refused;
        self.outcome.denied += program.as_ref().map_or(0, |it| it.denied);
        self.outcome.trimmed += program.as_ref().map_or(0, |it| it.trimmed);
    }
}

//! The thread that owns the controller's machine.
//!
//! ```text
//!   links: Report, Ask ┐                   ┌─► links: Tell, Answer, Users
//!   questions ──────┼─► inbox ─► Controller┼─► gabion-store: swap, read ─► inbox
//!   every 20 ms ────┘                      └─► events, as they are stored
//! ```
//!
//! Nothing here waits for a disk or a replica: the store has a thread, and so has each replica.

use super::history::History;
pub(crate) use super::link::ReplicaDoor;
use super::link::{Link, Target};
use super::store::record_name;
use super::{AnyStore, unix_ms};
use gabion_base::{Error, ErrorKind, GroupId, ReplicaId, Result};
use gabion_control::record::Event;
use gabion_control::store::{Swapped, Version, Versioned};
use gabion_control::users::{USERS, UserKeeper, UserOutput};
use gabion_control::wire::ControlMessage;
use gabion_control::{Command, Controller, Epoch, GroupRecord, Moment, Output, Patience};
use gabion_tls::MutualTls;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const TICK: Duration = Duration::from_millis(20);
/// Pause before a store that did not answer is asked again.
const READ_AGAIN: Duration = Duration::from_millis(200);

/// How groups are looked after.
pub(crate) struct Setup {
    pub(crate) patience: Patience,
    pub(crate) epoch: Epoch,
    /// Certificates of this process; none where all replicas are on this machine.
    pub(crate) tls: Option<Arc<MutualTls>>,
}

/// A group that is looked after: its record, as it is stored, and its replicas, spares too, with
/// their doors for members.
pub(crate) struct Watched {
    pub(crate) record: (Version, GroupRecord),
    pub(crate) doors: Vec<(ReplicaId, ReplicaDoor)>,
}

impl Watched {
    fn group(&self) -> GroupId {
        self.record.1.complete.group
    }
}

enum Input {
    Heard(GroupId, ReplicaId, Box<ControlMessage>),
    Swapped(GroupId, Result<Swapped>),
    UsersSwapped(Result<Swapped>),
    UsersRead(Result<Option<Versioned>>),
    Read(GroupId, Result<Option<Versioned>>),
    Asked(Question),
    Watch(Box<Watched>),
    Door(GroupId, ReplicaId, Option<ReplicaDoor>),
    Stop,
}

type Question = Box<dyn FnOnce(&mut Controller, Moment) + Send>;

/// Calls to the store.
enum Call {
    Swap(GroupId, Version, Vec<u8>),
    Read(GroupId),
    SwapUsers(Version, Vec<u8>),
    ReadUsers,
}

/// The running controller; it ends when this is dropped.
pub(crate) struct Driver {
    handle: Handle,
    thread: Option<JoinHandle<()>>,
}

/// A way to ask the controller.
#[derive(Clone)]
pub(crate) struct Handle {
    inbox: Sender<Input>,
    seen: Arc<Seen>,
    /// Certificates of this process.
    tls: Option<Arc<MutualTls>>,
}

/// Observations of the thread that are no part of the machine.
#[derive(Default)]
struct Seen {
    /// Why the store's last answer was none.
    store: Mutex<Option<String>>,
    /// The load of each group.
    histories: Mutex<BTreeMap<GroupId, History>>,
    /// Replicas to which no connection is made, as their certificates have expired.
    expired: Mutex<BTreeSet<(GroupId, ReplicaId)>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Handle {
    /// The answers of the machine.
    ///
    /// # Errors
    /// Unavailable when the controller has ended.
    pub(crate) fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&mut Controller, Moment) -> T + Send + 'static,
    ) -> Result<T> {
        let gone = || Error::unavailable("the controller has ended");
        let (sender, answer) = channel();
        let question: Question = Box::new(move |controller, now| {
            // The asker may be gone.
            let _ = sender.send(question(controller, now));
        });
        self.inbox.send(Input::Asked(question)).map_err(|_| gone())?;
        answer.recv().map_err(|_| gone())
    }

    /// Looks after one group more.
    pub(crate) fn watch(&self, watched: Watched) {
        // A controller that has ended looks after nothing.
        let _ = self.inbox.send(Input::Watch(Box::new(watched)));
    }

    /// A replica of a group is reached there from now on; none: it is no replica any more.
    pub(crate) fn set_door(&self, group: GroupId, replica: ReplicaId, door: Option<ReplicaDoor>) {
        let _ = self.inbox.send(Input::Door(group, replica, door));
    }

    /// Why the controller's store does not answer, if its last answer was none.
    pub(crate) fn store_failure(&self) -> Option<String> {
        locked(&self.seen.store).clone()
    }

    /// Whether no connection with a replica is made, as its certificate has expired.
    pub(crate) fn is_expired(&self, group: GroupId, replica: ReplicaId) -> bool {
        locked(&self.seen.expired).contains(&(group, replica))
    }

    /// When the certificate of this process ends, if it has one, in seconds since 1970.
    pub(crate) fn certificate_until_s(&self) -> Option<i64> {
        self.tls.as_ref()?.until_s()
    }

    /// The load of a group over the last hour, as JSON; null before the first sample.
    pub(crate) fn history(&self, group: GroupId) -> Value {
        locked(&self.seen.histories).get(&group).map_or(Value::Null, History::json)
    }
}

impl Driver {
    /// Starts the controller on records of its store. `heard` gets the events that are stored from
    /// now on.
    ///
    /// # Errors
    /// I/O when a thread cannot start.
    pub(crate) fn start(
        setup: &Setup,
        groups: Vec<Watched>,
        store: AnyStore,
        heard: impl Fn(GroupId, Event) + Send + 'static,
    ) -> Result<Self> {
        let (sender, inbox) = channel();
        let tls = setup.tls.clone();
        let handle = Handle { inbox: sender, seen: Arc::default(), tls };
        let (calls, waiting) = channel();
        let answers = handle.inbox.clone();
        spawn("gabion-store", move || serve_store(store, &waiting, &answers))?;
        let now = Moment { now_ms: 0, unix_ms: unix_ms() };
        let mut machine = Machine {
            controller: Controller::new(setup.patience, setup.epoch, [], now),
            begun: Instant::now(),
            tls: setup.tls.clone(),
            links: BTreeMap::new(),
            reports: handle.inbox.clone(),
            seen: handle.seen.clone(),
            calls,
            told: BTreeMap::new(),
            users: UserKeeper::new(),
        };
        groups.into_iter().try_for_each(|watched| machine.watch(watched, now))?;
        let thread = spawn("gabion-control", move || machine.run(&inbox, &heard))?;
        Ok(Self { handle, thread: Some(thread) })
    }

    pub(crate) fn handle(&self) -> Handle {
        self.handle.clone()
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let _ = self.handle.inbox.send(Input::Stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The machine and what carries out its outputs.
struct Machine {
    controller: Controller,
    begun: Instant,
    tls: Option<Arc<MutualTls>>,
    /// Each ends with its entry.
    links: BTreeMap<(GroupId, ReplicaId), Link>,
    /// For the links.
    reports: Sender<Input>,
    calls: Sender<Call>,
    seen: Arc<Seen>,
    /// The events of each group that were told.
    told: BTreeMap<GroupId, VecDeque<Event>>,
    users: UserKeeper<Asker>,
}

/// A replica that asks.
type Asker = (GroupId, ReplicaId);

impl Machine {
    /// A group's record may be there already, as another controller of this life read it.
    fn watch(&mut self, watched: Watched, now: Moment) -> Result<()> {
        let group = watched.group();
        for (replica, door) in &watched.doors {
            self.connect(group, *replica, door.clone())?;
        }
        self.told.entry(group).or_insert_with(|| watched.record.1.events.clone());
        self.controller.handle_group(watched.record, now);
        Ok(())
    }

    /// Connects with a replica, and ends the connection before.
    fn connect(&mut self, group: GroupId, replica: ReplicaId, door: ReplicaDoor) -> Result<()> {
        let reports = self.reports.clone();
        let heard = move |message| {
            let _ = reports.send(Input::Heard(group, replica, Box::new(message)));
        };
        let seen = self.seen.clone();
        let noted = move |is_expired| {
            let (mut expired, key) = (locked(&seen.expired), (group, replica));
            let _ = if is_expired { expired.insert(key) } else { expired.remove(&key) };
        };
        let target = Target { group, replica, door, tls: self.tls.clone() };
        let link = Link::start(target, heard, noted)?;
        self.links.insert((group, replica), link);
        Ok(())
    }

    fn run(&mut self, inbox: &Receiver<Input>, heard: &dyn Fn(GroupId, Event)) {
        loop {
            let input = match inbox.recv_timeout(TICK) {
                Ok(Input::Stop) | Err(RecvTimeoutError::Disconnected) => return,
                Ok(input) => Some(input),
                Err(RecvTimeoutError::Timeout) => None,
            };
            let now = self.now();
            // Before anything that came: after a pause of this process everything that waits here
            // is old, and nobody is judged by it.
            self.controller.handle_tick(now);
            if let Some(input) = input {
                self.take(input, now);
            }
            while let Some(output) = self.controller.poll_output() {
                self.carry_out(output);
            }
            while let Some(output) = self.users.poll_output() {
                self.carry_out_for_users(output);
            }
            self.tell_events(heard);
            self.sample(now);
        }
    }

    /// Takes the samples of the groups' load that are due.
    fn sample(&self, now: Moment) {
        let mut histories = locked(&self.seen.histories);
        for group in self.told.keys() {
            let history = histories.entry(*group).or_default();
            if history.is_due(now.now_ms)
                && let Some(status) = self.controller.status(*group, now)
            {
                history.take(&status, now.now_ms, now.unix_ms);
            }
        }
    }

    /// Notes whether the store answers.
    fn note_store<T>(&self, answer: &Result<T>) {
        let why = answer.as_ref().err().map(|error| error.message().to_owned());
        *locked(&self.seen.store) = why;
    }

    /// `Instant` is a clock that stands still while the machine is suspended.
    fn now(&self) -> Moment {
        Moment { now_ms: self.begun.elapsed().as_millis() as u64, unix_ms: unix_ms() }
    }

    fn take(&mut self, input: Input, now: Moment) {
        match input {
            Input::Heard(group, from, message) => self.hear(group, from, *message, now),
            Input::Swapped(group, swapped) => {
                self.note_store(&swapped);
                self.controller.handle_swapped(group, swapped, now);
            }
            Input::Read(group, read) => {
                self.note_store(&read);
                self.controller.handle_read(group, read, now);
            }
            Input::UsersSwapped(swapped) => {
                self.note_store(&swapped);
                self.users.handle_swapped(swapped);
            }
            Input::UsersRead(read) => {
                self.note_store(&read);
                self.users.handle_read(read);
            }
            Input::Asked(question) => question(&mut self.controller, now),
            Input::Watch(watched) => noted(self.watch(*watched, now)),
            Input::Door(group, replica, Some(door)) => noted(self.connect(group, replica, door)),
            Input::Door(group, replica, None) => drop(self.links.remove(&(group, replica))),
            Input::Stop => {}
        }
    }

    fn hear(&mut self, group: GroupId, from: ReplicaId, message: ControlMessage, now: Moment) {
        match message {
            ControlMessage::Report(report) => self.controller.handle_report(report, now),
            ControlMessage::Ask { number, to } => {
                let command = Command::FailOver(to);
                let asked = self.controller.handle_command(group, command, now);
                let refused = asked.err().map(|error| error.message().to_owned());
                if let Some(link) = self.links.get(&(group, from)) {
                    link.tell(&ControlMessage::Answer { number, refused });
                }
            }
            ControlMessage::Users(record) => self.users.handle_record(record),
            ControlMessage::UsersKnown(stamp) => self.users.handle_known((group, from), stamp),
            ControlMessage::ChangeUsers(change) => self.users.handle_change((group, from), change),
            // The link refuses them.
            ControlMessage::Tell { .. }
            | ControlMessage::Answer { .. }
            | ControlMessage::UsersChanged { .. } => {}
        }
    }

    fn carry_out_for_users(&self, output: UserOutput<Asker>) {
        match output {
            UserOutput::Read => drop(self.calls.send(Call::ReadUsers)),
            UserOutput::Swap { expected, record } => {
                let _ = self.calls.send(Call::SwapUsers(expected, record));
            }
            UserOutput::Tell { to, record } => {
                let message = ControlMessage::Users(record);
                let is_asked = |asker: &Asker| to.is_none_or(|to| to == *asker);
                let asked = self.links.iter().filter(|(asker, _)| is_asked(asker));
                asked.for_each(|(_, link)| link.tell(&message));
            }
            UserOutput::Answer { to, number, outcome } => {
                if let Some(link) = self.links.get(&to) {
                    link.tell(&ControlMessage::UsersChanged { number, outcome });
                }
            }
        }
    }

    fn carry_out(&self, output: Output) {
        match output {
            Output::Tell { to, view, epoch } => {
                if let Some(link) = self.links.get(&(view.group, to)) {
                    link.tell(&ControlMessage::Tell { epoch, view });
                }
            }
            // The thread of the store ends after this one.
            Output::Swap { group, expected, record } => {
                let _ = self.calls.send(Call::Swap(group, expected, record));
            }
            Output::Read { group } => {
                let _ = self.calls.send(Call::Read(group));
            }
        }
    }

    /// Tells the events that came since the last time.
    fn tell_events(&mut self, heard: &dyn Fn(GroupId, Event)) {
        for (group, told) in &mut self.told {
            let Some(record) = self.controller.record(*group) else { continue };
            if record.events == *told {
                continue;
            }
            let last = told.back();
            let known = last.and_then(|last| record.events.iter().rposition(|it| it == last));
            let from = known.map_or(0, |at| at + 1);
            record.events.iter().skip(from).for_each(|event| heard(*group, event.clone()));
            told.clone_from(&record.events);
        }
    }
}

/// A thread that could not start: the replica counts as silent, and the log says why.
fn noted(outcome: Result<()>) {
    if let Err(error) = outcome {
        gabion_server::note!("controller: {error}");
    }
}

/// The thread of the store.
fn serve_store(mut store: AnyStore, calls: &Receiver<Call>, answers: &Sender<Input>) {
    for call in calls {
        let answer = match call {
            Call::Swap(group, expected, record) => {
                Input::Swapped(group, store.swap(&record_name(group), expected, &record))
            }
            Call::Read(group) => {
                let read = store.get(&record_name(group));
                if read.is_err() {
                    std::thread::sleep(READ_AGAIN);
                }
                Input::Read(group, read)
            }
            Call::SwapUsers(expected, record) => {
                Input::UsersSwapped(store.swap(USERS, expected, &record))
            }
            Call::ReadUsers => {
                let read = store.get(USERS);
                if read.is_err() {
                    std::thread::sleep(READ_AGAIN);
                }
                Input::UsersRead(read)
            }
        };
        if answers.send(answer).is_err() {
            return;
        }
    }
}

pub(crate) fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
    let started = std::thread::Builder::new().name(name.to_owned()).spawn(body);
    started.map_err(|e| Error::with_source(ErrorKind::Io, format!("thread {name} cannot start"), e))
}

//! The thread that owns the controller's machine.
//!
//! ```text
//!   links: Report, Ask ┐                   ┌─► links: Tell, Answer
//!   questions ──────┼─► inbox ─► Controller┼─► gabion-store: swap, read ─► inbox
//!   every 20 ms ────┘                      └─► events, as they are stored
//! ```
//!
//! Nothing here waits for a disk or a replica: the store has a thread, and so has each replica.

use super::link::{Link, Target};
use super::store::record_name;
use super::{AnyStore, unix_ms};
use gabion_base::{Error, ErrorKind, GroupId, ReplicaId, Result};
use gabion_control::record::Event;
use gabion_control::store::{Swapped, Version, Versioned};
use gabion_control::wire::ControlMessage;
use gabion_control::{Command, Controller, Epoch, GroupRecord, Moment, Output, Patience};
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const TICK: Duration = Duration::from_millis(20);
/// Pause before a store that did not answer is asked again.
const READ_AGAIN: Duration = Duration::from_millis(200);

/// The group that is looked after, and its replicas: spares too.
pub(super) struct Setup {
    pub(super) group: GroupId,
    pub(super) patience: Patience,
    pub(super) epoch: Epoch,
    pub(super) doors: Vec<(ReplicaId, SocketAddr)>,
}

enum Input {
    Heard(ReplicaId, Box<ControlMessage>),
    Swapped(GroupId, Result<Swapped>),
    Read(GroupId, Result<Option<Versioned>>),
    Asked(Question),
    Stop,
}

type Question = Box<dyn FnOnce(&mut Controller, Moment) + Send>;

/// Calls to the store.
enum Call {
    Swap(GroupId, Version, Vec<u8>),
    Read(GroupId),
}

/// The running controller; it ends when this is dropped.
pub(super) struct Driver {
    handle: Handle,
    thread: Option<JoinHandle<()>>,
    stopped: Arc<AtomicBool>,
}

/// A way to ask the controller.
#[derive(Clone)]
pub(super) struct Handle(Sender<Input>);

impl Handle {
    /// The answers of the machine.
    ///
    /// # Errors
    /// Unavailable when the controller has ended.
    pub(super) fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&mut Controller, Moment) -> T + Send + 'static,
    ) -> Result<T> {
        let gone = || Error::unavailable("the controller has ended");
        let (sender, answer) = channel();
        let question: Question = Box::new(move |controller, now| {
            // The asker may be gone.
            let _ = sender.send(question(controller, now));
        });
        self.0.send(Input::Asked(question)).map_err(|_| gone())?;
        answer.recv().map_err(|_| gone())
    }
}

impl Driver {
    /// Starts the controller on a record of its store. `heard` gets the events that are stored from
    /// now on.
    ///
    /// # Errors
    /// I/O when a thread cannot start.
    pub(super) fn start(
        setup: Setup,
        record: (Version, GroupRecord),
        store: AnyStore,
        heard: impl Fn(Event) + Send + 'static,
    ) -> Result<Self> {
        let (sender, inbox) = channel();
        let handle = Handle(sender);
        let stopped = Arc::new(AtomicBool::new(false));
        let mut links = BTreeMap::new();
        for (replica, door) in &setup.doors {
            let target = Target { group: setup.group, replica: *replica, door: *door };
            let reports = handle.0.clone();
            let from = *replica;
            let heard = move |message| {
                let _ = reports.send(Input::Heard(from, Box::new(message)));
            };
            links.insert(*replica, Link::start(target, stopped.clone(), heard)?);
        }
        let (calls, waiting) = channel();
        let answers = handle.0.clone();
        spawn("gabion-store", move || serve_store(store, &waiting, &answers))?;
        let begun = Instant::now();
        let told = record.1.events.clone();
        let now = Moment { now_ms: 0, unix_ms: unix_ms() };
        let controller = Controller::new(setup.patience, setup.epoch, [record], now);
        let group = setup.group;
        let mut machine = Machine { controller, group, begun, links, calls, told };
        let thread = spawn("gabion-control", move || machine.run(&inbox, &heard))?;
        Ok(Self { handle, thread: Some(thread), stopped })
    }

    pub(super) fn handle(&self) -> Handle {
        self.handle.clone()
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::Relaxed);
        let _ = self.handle.0.send(Input::Stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The machine and what carries out its outputs.
struct Machine {
    controller: Controller,
    group: GroupId,
    begun: Instant,
    links: BTreeMap<ReplicaId, Link>,
    calls: Sender<Call>,
    /// The events that were told.
    told: VecDeque<Event>,
}

impl Machine {
    fn run(&mut self, inbox: &Receiver<Input>, heard: &dyn Fn(Event)) {
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
            self.tell_events(heard);
        }
    }

    /// `Instant` is a clock that stands still while the machine is suspended.
    fn now(&self) -> Moment {
        Moment { now_ms: self.begun.elapsed().as_millis() as u64, unix_ms: unix_ms() }
    }

    fn take(&mut self, input: Input, now: Moment) {
        match input {
            Input::Heard(from, message) => self.hear(from, *message, now),
            Input::Swapped(group, swapped) => self.controller.handle_swapped(group, swapped, now),
            Input::Read(group, read) => self.controller.handle_read(group, read, now),
            Input::Asked(question) => question(&mut self.controller, now),
            Input::Stop => {}
        }
    }

    fn hear(&mut self, from: ReplicaId, message: ControlMessage, now: Moment) {
        match message {
            ControlMessage::Report(report) => self.controller.handle_report(report, now),
            ControlMessage::Ask { number, to } => {
                let command = Command::FailOver(to);
                let asked = self.controller.handle_command(self.group, command, now);
                let refused = asked.err().map(|error| error.message().to_owned());
                if let Some(link) = self.links.get(&from) {
                    link.tell(&ControlMessage::Answer { number, refused });
                }
            }
            // The link refuses them.
            ControlMessage::Tell { .. } | ControlMessage::Answer { .. } => {}
        }
    }

    fn carry_out(&self, output: Output) {
        match output {
            Output::Tell { to, view, epoch } => {
                if let Some(link) = self.links.get(&to) {
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
    fn tell_events(&mut self, heard: &dyn Fn(Event)) {
        let Some(record) = self.controller.record(self.group) else { return };
        if record.events == self.told {
            return;
        }
        let last = self.told.back();
        let known = last.and_then(|last| record.events.iter().rposition(|event| event == last));
        let from = known.map_or(0, |at| at + 1);
        record.events.iter().skip(from).for_each(|event| heard(event.clone()));
        self.told.clone_from(&record.events);
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
        };
        if answers.send(answer).is_err() {
            return;
        }
    }
}

pub(super) fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
    let started = std::thread::Builder::new().name(name.to_owned()).spawn(body);
    started.map_err(|e| Error::with_source(ErrorKind::Io, format!("thread {name} cannot start"), e))
}

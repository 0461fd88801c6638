//! `gabion node`: the process that holds replicas on one machine, as a controller tells it.
//!
//! ```text
//!   asking thread: what it has ─► controller ─► orders ─► main thread: Hosted, one per replica
//!        ▲                                                     │ every 100 ms: start, mend, stop
//!        └───────────────── words on the replicas ◄────────────┘
//! ```
//!
//! Without a controller it goes on with what it has, also after a restart. The main thread starts
//! all processes, so that each can ask the kernel to end with it.

use super::config::NodeConfig;
use super::hosted::Hosted;
use super::registrar::{Order, ReplicaWord};
use super::registry::NodeRecord;
use super::trust::Certificates;
use super::wire::Asker;
use super::{load_file, save_file, say};
use crate::child;
use crate::cluster::{self, Lock, failed, free_by};
use crate::control::driver::spawn;
use crate::control::random_number;
use crate::options::NodeRunOptions;
use crate::screen::put;
use crate::signals;
use crate::units::size;
use gabion_base::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How often processes are checked.
const TICK: Duration = Duration::from_millis(100);
/// How often a controller is asked.
const ASK_EVERY: Duration = Duration::from_millis(500);
/// How long doors of a process that was just killed may stay occupied.
const DOORS_MAX: Duration = Duration::from_secs(2);
const FILE: &str = "node.json";
/// Its version.
const FORMAT: u32 = 1;

/// `node.json`: the node that a directory belongs to.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
struct Identity {
    format: u32,
    made_by: String,
    name: String,
    /// Random.
    id: u64,
    /// The cluster that it joined first.
    cluster: Option<u64>,
}

/// Runs until a signal comes.
pub(crate) fn run(options: &NodeRunOptions) -> Result<u8> {
    let config = NodeConfig::load(&options.config)?;
    if options.check {
        return check(&config, &options.config);
    }
    let certificates = config.certificates()?;
    config.check_users()?;
    let (events, inbox) = channel();
    let told = events.clone();
    signals::watch(move |signal| told.send(Event::Stop(signal)).is_ok())?;
    let data = &config.data;
    std::fs::create_dir_all(data).map_err(|e| failed(data, "cannot be made", e))?;
    let _lock = Lock::take(data)?;
    let identity = Identity::load_or_make(&config)?;
    check_doors(&config)?;
    let hosted = Hosted::load_all(data, identity.id, &config.listen(), &config.process())?;
    let words = Words::default();
    let (unmade, complaint) = (Vec::new(), None);
    let mut node = Node { config, certificates, identity, hosted, words, unmade, complaint };
    node.tell();
    node.ask(&events)?;
    say(&format!(
        "node {} runs; its data is in {}, its clients come to {}",
        node.config.name,
        node.config.data.display(),
        node.config.listen().clients
    ));
    node.run(&inbox)
}

/// `--check`: all that can be known without starting.
fn check(config: &NodeConfig, path: &Path) -> Result<u8> {
    if let Some(identity) = Identity::load(&config.data)? {
        identity.check(config)?;
    }
    config.certificates()?;
    config.check_users()?;
    let free = cluster::free_at(&config.data)?;
    let is_new = !Hosted::is_any(&config.data);
    if is_new && free < config.room_needed() {
        return Err(Error::no_space(format!(
            "data is {}, which has {} free, and its replicas take {}: pool_size is {}, with a \
             ring, for each group",
            config.data.display(),
            size(free),
            size(config.room_needed()),
            size(config.pool_size)
        )));
    }
    put(&format!(
        "{}: fine; node {} in {}, with data in {} ({} free)\n",
        path.display(),
        config.name,
        config.failure_domain(),
        config.data.display(),
        size(free)
    ));
    for ((door, listen), (_, reached)) in config.listen().each().zip(config.reached_at().each()) {
        put(&format!("   {door}: listens on {listen}, is reached at {reached}\n"));
    }
    Ok(0)
}

/// Refuses doors that somebody else has, before the first replica does.
fn check_doors(config: &NodeConfig) -> Result<()> {
    let until = Instant::now() + DOORS_MAX;
    for (what, address) in config.doors() {
        free_by(until, address).map_err(|error| {
            let text = format!("{what} is {address}, which cannot be listened on");
            Error::with_source(ErrorKind::Busy, text, error)
        })?;
    }
    Ok(())
}

impl Identity {
    fn load(data: &Path) -> Result<Option<Self>> {
        load_file(&data.join(FILE), FORMAT, |found: &Self| found.format)
    }

    fn load_or_make(config: &NodeConfig) -> Result<Self> {
        if let Some(found) = Self::load(&config.data)? {
            found.check(config)?;
            return Ok(found);
        }
        let made = Self {
            format: FORMAT,
            made_by: env!("CARGO_PKG_VERSION").to_owned(),
            name: config.name.clone(),
            id: random_number()?,
            cluster: None,
        };
        made.save(&config.data)?;
        Ok(made)
    }

    fn check(&self, config: &NodeConfig) -> Result<()> {
        if self.name == config.name {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "data is {}, which belongs to node {}, and name is {}: it is another node's disk",
            config.data.display(),
            self.name,
            config.name
        )))
    }

    fn save(&self, data: &Path) -> Result<()> {
        save_file(data, FILE, self)
    }
}

/// The events that the main thread waits for.
enum Event {
    Stop(i32),
    Answer(Result<Answer>),
}

/// A controller's answer.
#[derive(Deserialize)]
struct Answer {
    cluster: u64,
    orders: Vec<Order>,
}

/// The node's words on its replicas, for the thread that asks.
#[derive(Clone, Default)]
struct Words(Arc<Mutex<(Vec<ReplicaWord>, Option<u64>)>>);

struct Node {
    config: NodeConfig,
    certificates: Certificates,
    identity: Identity,
    hosted: Vec<Hosted>,
    words: Words,
    /// Words on replicas that could not be made, by the last orders.
    unmade: Vec<ReplicaWord>,
    /// The last one, so that it is said once.
    complaint: Option<String>,
}

impl Node {
    fn run(&mut self, inbox: &Receiver<Event>) -> Result<u8> {
        loop {
            match inbox.recv_timeout(TICK) {
                Ok(Event::Stop(signal)) => {
                    say(&format!("signal {signal} came"));
                    return self.stop(inbox);
                }
                Ok(Event::Answer(Ok(answer))) => self.obey(&answer),
                Ok(Event::Answer(Err(error))) => self.complain(error.to_string()),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Error::io("the thread that watches signals is gone"));
                }
            }
            self.hosted.retain_mut(|hosted| {
                let name = hosted.name();
                !hosted.look_after(&mut |line| say(&format!("{name}: {line}")))
            });
            self.tell();
        }
    }

    /// Says what is wrong, once.
    fn complain(&mut self, text: String) {
        if self.complaint.as_ref() != Some(&text) {
            say(&text);
            self.complaint = Some(text);
        }
    }

    fn obey(&mut self, answer: &Answer) {
        if self.identity.cluster.is_none() {
            let joined = Identity { cluster: Some(answer.cluster), ..self.identity.clone() };
            match joined.save(&self.config.data) {
                Ok(()) => self.identity = joined,
                Err(error) => return self.complain(error.to_string()),
            }
        }
        match self.take_orders(&answer.orders) {
            Ok(()) if self.complaint.take().is_some() => say("the controller answers again"),
            Ok(()) => {}
            Err(error) => self.complain(error.to_string()),
        }
    }

    fn take_orders(&mut self, orders: &[Order]) -> Result<()> {
        self.unmade.clear();
        for order in orders {
            if let Some(hosted) = self.hosted.iter_mut().find(|hosted| hosted.is_of(order)) {
                hosted.take(order)?;
                continue;
            }
            // Nothing of it is here, which its word will say.
            if order.is_released {
                continue;
            }
            let of = order.restored.as_ref().map_or_else(String::new, |it| format!(" of {it}"));
            say(&format!("{} {}: is made here{of}", order.name, order.replica));
            let (listen, process) = (self.config.listen(), self.config.process());
            let (all, data) = (&mut self.hosted, &self.config.data);
            let made = Hosted::create(all, data, order, self.identity.id, &listen, &process);
            made.inspect_err(|error| self.unmade.push(order.cannot_be_made(error)))?;
        }
        if let Some(unknown) = self.hosted.iter().find_map(|hosted| hosted.unknown(orders)) {
            return Err(Error::invalid(format!(
                "{unknown}: the controller knows of no such replica here, and it goes on as it is"
            )));
        }
        Ok(())
    }

    /// Has the asking thread know what is here.
    fn tell(&self) {
        let words = self.hosted.iter().flat_map(Hosted::words);
        let words = words.chain(self.unmade.iter().cloned()).collect();
        let mut told = self.words.0.lock().unwrap_or_else(PoisonError::into_inner);
        *told = (words, self.identity.cluster);
    }

    /// Starts the thread that asks.
    fn ask(&self, events: &Sender<Event>) -> Result<()> {
        let config = &self.config;
        let mut record = NodeRecord::new(
            config.name.clone(),
            self.identity.id,
            config.reached_at(),
            config.pool_size,
            config.failure_domain().to_owned(),
        );
        record.groups_max = config.groups_max();
        record.clients_tls = config.clients_tls();
        let mut asking = Asking {
            controllers: config.controllers.clone(),
            certificates: self.certificates.clone(),
            next: 0,
            asker: None,
            record,
            data: config.data.clone(),
            words: self.words.clone(),
        };
        let events = events.clone();
        let ask = move || {
            while events.send(Event::Answer(asking.ask())).is_ok() {
                std::thread::sleep(ASK_EVERY);
            }
        };
        spawn("gabion-ask", ask).map(drop)
    }

    /// Ends the processes; the files stay.
    fn stop(&mut self, inbox: &Receiver<Event>) -> Result<u8> {
        let told = |wait: Duration| {
            let begun = Instant::now();
            loop {
                match inbox.recv_timeout(wait.checked_sub(begun.elapsed())?) {
                    Ok(Event::Stop(signal)) => return Some(signal),
                    Ok(Event::Answer(_)) => {}
                    Err(_) => return None,
                }
            }
        };
        let replicas = self.hosted.iter_mut().map(|hosted| &mut hosted.replica).collect();
        let stopped = child::stop_all(replicas, told, |left| {
            say(&format!("still writing out the log of replica {left}"));
        });
        say("stopped");
        stopped.code(0)
    }
}

/// The thread that asks.
struct Asking {
    controllers: Vec<SocketAddr>,
    certificates: Certificates,
    /// The controller that is asked next.
    next: usize,
    asker: Option<Asker>,
    record: NodeRecord,
    data: PathBuf,
    words: Words,
}

impl Asking {
    /// Asks the controller that answered last, or else the next one.
    fn ask(&mut self) -> Result<Answer> {
        let (replicas, cluster) =
            self.words.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let question = json!({
            "do": "node",
            "node": self.record,
            "cluster": cluster,
            "free": cluster::free_at(&self.data).unwrap_or(0),
            "replicas": replicas,
        });
        let answer = self.ask_one(&question);
        if answer.as_ref().is_err_and(|error| error.kind() == ErrorKind::Unavailable) {
            self.asker = None;
            self.next = (self.next + 1) % self.controllers.len();
        }
        let refused = |error| Error::invalid(format!("a controller's orders: {error}"));
        serde_json::from_value(answer?).map_err(refused)
    }

    fn ask_one(&mut self, question: &Value) -> Result<Value> {
        let address = self.controllers[self.next];
        let asker = match &mut self.asker {
            Some(asker) => asker,
            None => {
                let what = "an address of controllers";
                self.asker.insert(Asker::connect(what, address, &self.certificates)?)
            }
        };
        asker.ask(question)
    }
}

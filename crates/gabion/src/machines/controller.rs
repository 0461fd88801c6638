//! `gabion controller`: the process that looks after groups on nodes.
//!
//! - [`leaders`]: several of them over one store, of which one leads.

mod leaders;

use super::config::{ControllerConfig, StoreChoice};
use super::registrar::{Names, Registrar, StatusPage};
use super::registry::{GroupState, Registry};
use super::trust::{Caller, Certificates};
use super::{say, trust, wire};
use crate::cluster::{self, Lock, failed};
use crate::control::driver::{Driver, Setup, Watched, spawn};
use crate::control::store::{DbStore, SharedStore, next_epoch, record_of};
use crate::control::{AnyStore, STORE_LEN, founding_record, random_number};
use crate::options::ControllerOptions;
use crate::screen::put;
use crate::signals;
use crate::units::{size, utc};
use gabion_base::{Error, GroupId, Result};
use gabion_control::Patience;
use gabion_server::metrics::Door;
use gabion_tls::BlockingStream;
use std::io::{BufReader, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

/// How long a replica may take to report to a controller that takes the lead over from another: ten
/// times as long as between two reports. One that starts just then, and takes longer, is left out
/// and comes back.
const TAKEOVER_MS: u64 = 1_000;
/// How long somebody may say nothing. A node asks twice a second.
const SILENCE_MAX: Duration = Duration::from_secs(10);
/// Connections at a time.
const CONNECTIONS_MAX: usize = 1_024;

/// Runs until a signal comes.
pub(crate) fn run(options: &ControllerOptions) -> Result<u8> {
    let config = ControllerConfig::load(&options.config)?;
    if options.check {
        return check(&config, &options.config);
    }
    let certificates = config.certificates()?;
    let (sender, signals) = channel();
    signals::watch(move |signal| sender.send(signal).is_ok())?;
    let data = &config.data;
    std::fs::create_dir_all(data).map_err(|e| failed(data, "cannot be made", e))?;
    let _lock = Lock::take(data)?;
    // Before the store is opened: the epoch grows with each opening.
    let door = trust::listen("listen", config.listen, &certificates)?;
    if let StoreChoice::Etcd(url) = &config.store {
        // Nodes and commands find nobody here until this controller leads, and ask another one.
        drop(door);
        return leaders::run(&config, &certificates, url, &signals);
    }
    let page = StatusPage::default();
    let _page_door = serve_page(&config, &page)?;
    let (registrar, _driver) =
        open(&config, certificates.clone(), Box::new(DbStore::open(&store_dir(data))?), false)?;
    let registrar = Arc::new(registrar);
    page.lead(registrar.clone());
    let address = door.local_addr().map_err(|e| Error::io(format!("listen: {e}")))?;
    let serve = move || serve(&door, &certificates, &registrar, &|| true);
    spawn("gabion-door", serve)?;
    say(&format!("ready: nodes and commands on {address}; the store is in {}", data.display()));
    match signals.recv() {
        Ok(signal) => say_end(signal),
        Err(_) => return Err(unwatched()),
    }
    Ok(0)
}

/// Serves the status page, where the configuration has an address for it.
fn serve_page(config: &ControllerConfig, page: &StatusPage) -> Result<Option<Door>> {
    let Some(address) = config.page.listen else { return Ok(None) };
    let door = Door::start(address, page.routes(), say)?;
    say(&format!("status page on http://{address}/"));
    Ok(Some(door))
}

fn say_end(signal: i32) {
    say(&format!("signal {signal} came; nodes go on without a controller"));
}

fn unwatched() -> Error {
    Error::io("the thread that watches signals is gone")
}

/// `--check`: all that can be known without starting.
fn check(config: &ControllerConfig, path: &Path) -> Result<u8> {
    config.certificates()?;
    config.store_tls()?;
    let store = store_dir(&config.data);
    let is_embedded = config.store == StoreChoice::Embedded;
    if is_embedded && !store.join("pool").exists() {
        let free = cluster::free_at(&config.data)?;
        if free < STORE_LEN {
            return Err(Error::no_space(format!(
                "data is {}, which has {} free, and the store needs {}",
                config.data.display(),
                size(free),
                size(STORE_LEN)
            )));
        }
    }
    put(&format!(
        "{}: fine; nodes and commands on {}, the store in {}\n",
        path.display(),
        config.listen,
        match &config.store {
            StoreChoice::Embedded => store.display().to_string(),
            StoreChoice::Etcd(url) => url.to_string(),
        }
    ));
    Ok(0)
}

fn store_dir(data: &Path) -> PathBuf {
    data.join("store")
}

/// Looks after what is in a store, which no other controller changes from now on. `takes_over`:
/// another one did until now, so that replicas run already.
fn open(
    config: &ControllerConfig,
    tls: Certificates,
    store: AnyStore,
    takes_over: bool,
) -> Result<(Registrar, Driver)> {
    let mut store = SharedStore::new(store);
    let epoch = next_epoch(&mut store, random_number()?)?;
    let mut registry = Registry::open(store.clone(), random_number()?)?;
    let mut groups = Vec::new();
    let names = Names::default();
    let made = registry.groups().filter(|spec| spec.state == GroupState::Made);
    for spec in made.cloned().collect::<Vec<_>>() {
        let settings = spec.settings()?;
        let record = record_of(registry.store(), founding_record(&settings))?;
        names.insert(settings.group, &spec.name);
        groups.push(Watched { record, doors: spec.doors() });
    }
    let mut patience = Patience { replace_ms: config.replace_after, ..Patience::default() };
    if takes_over {
        patience.start_ms = TAKEOVER_MS;
    }
    let known = names.clone();
    let heard = move |group: GroupId, event: gabion_control::Event| {
        put(&format!("{}  {}: {}\n", utc(event.unix_ms), known.get(group), event.text));
    };
    let driver = Driver::start(&Setup { patience, epoch, tls }, groups, Box::new(store), heard)?;
    Ok((Registrar::new(registry, driver.handle(), names), driver))
}

/// Whether answers may still be given.
trait MayAnswer: Fn() -> bool + Send + Sync {}

impl<T: Fn() -> bool + Send + Sync> MayAnswer for T {}

/// Answers whoever connects, each on a thread of its own, while that is allowed.
fn serve(
    door: &TcpListener,
    certificates: &Certificates,
    registrar: &Arc<Registrar>,
    may_answer: &(impl MayAnswer + Clone + 'static),
) {
    let count = Arc::new(AtomicUsize::new(0));
    for stream in door.incoming() {
        if !may_answer() {
            return;
        }
        // The system is short of something: it may have it later.
        let Ok(stream) = stream else {
            std::thread::sleep(Duration::from_millis(100));
            continue;
        };
        if count.fetch_add(1, Ordering::Relaxed) >= CONNECTIONS_MAX {
            count.fetch_sub(1, Ordering::Relaxed);
            continue;
        }
        let (registrar, own, may_answer) = (registrar.clone(), count.clone(), may_answer.clone());
        let certificates = certificates.clone();
        let started = spawn("gabion-asked", move || {
            let from = stream.peer_addr();
            match trust::accept(stream, &certificates) {
                // An asker that goes, or says nothing, is not waited for.
                Ok((stream, caller)) => {
                    drop(converse(&stream, &caller, &registrar, &may_answer));
                }
                Err(error) => {
                    let from = from.map_or_else(|_| "?".to_owned(), |from| from.to_string());
                    registrar.note_stranger(&from, &error);
                }
            }
            own.fetch_sub(1, Ordering::Relaxed);
        });
        if started.is_err() {
            count.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Answers one question after the other.
fn converse(
    stream: &BlockingStream,
    caller: &Caller,
    registrar: &Registrar,
    may_answer: &impl MayAnswer,
) -> std::io::Result<()> {
    let socket = stream.socket();
    socket.set_nodelay(true)?;
    socket.set_read_timeout(Some(SILENCE_MAX))?;
    socket.set_write_timeout(Some(SILENCE_MAX))?;
    let (mut reader, mut writer) = (BufReader::new(stream), stream);
    while let Some(line) = wire::read_line(&mut reader, wire::QUESTION_LEN_MAX)? {
        let answer = registrar.answer(&line, caller);
        // A process that stood still would answer with what it knew before.
        if !may_answer() {
            return Ok(());
        }
        writer.write_all(format!("{answer}\n").as_bytes())?;
    }
    Ok(())
}

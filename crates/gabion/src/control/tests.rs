//! The store through crashes, and the driver against replicas that are models on real sockets.

use super::driver::{Driver, Setup, Watched};
use super::store::{DbStore, next_epoch, read_at_rest, record_of};
use super::{control_dir, events_at_rest, founding_record, open_store, socket};
use crate::cluster::Settings;
use crate::options::FixedOptions;
use gabion_base::units::GIB;
use gabion_base::{ConfigNumber, ErrorKind, GroupId, ReplicaId};
use gabion_control::record::Event;
use gabion_control::store::{MemoryStore, Store, Swapped, Version};
use gabion_control::wire::{CONTROLLER, ControlMessage};
use gabion_control::{Epoch, Patience, Probe, Report, store};
use gabion_replication::{GroupView, Member};
use serde_json::json;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How long anything is waited for: no test passes by its length.
const LIMIT: Duration = Duration::from_secs(60);

/// A directory of one test, removed at its end.
struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Self {
        let dir =
            std::env::temp_dir().join(format!("gabion-control-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).unwrap();
        Self(dir)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn the_embedded_store_keeps_the_contract_and_is_there_when_it_is_opened_again() {
    let dir = Dir::new("contract");
    let mut embedded = DbStore::open(&dir.0).unwrap();
    store::contract(&mut embedded);
    let before = embedded.list("").unwrap();
    let busy = DbStore::open(&dir.0).err().map(|error| error.kind());
    assert_eq!(busy, Some(ErrorKind::Busy), "one has it");
    drop(embedded);
    assert_eq!(DbStore::open(&dir.0).unwrap().list("").unwrap(), before);
}

/// After a swap the device has a whole store with all swaps: files that were copied just then are
/// as after a kill, and without the ring as after a power cut.
/// docs/faults.md: R8
#[test]
fn each_swap_survives_a_crash_right_after_it() {
    let (dir, crashed) = (Dir::new("crash"), Dir::new("crashed"));
    let mut embedded = DbStore::open(&dir.0).unwrap();
    let mut version = Version::NONE;
    for round in 0..4_u64 {
        let value = round.to_le_bytes();
        let Swapped::Stored(next) = embedded.swap("a", version, &value).unwrap() else {
            panic!("nobody else writes");
        };
        version = next;
        for name in ["pool", "ring"] {
            std::fs::copy(dir.0.join(name), crashed.0.join(name)).unwrap();
        }
        if round % 2 == 1 {
            std::fs::remove_file(crashed.0.join("ring")).unwrap();
        }
        let found = DbStore::open(&crashed.0).unwrap().get("a").unwrap().unwrap();
        assert_eq!((found.version, &found.value[..]), (version, &value[..]), "round {round}");
        std::fs::remove_dir_all(&crashed.0).unwrap();
        std::fs::create_dir_all(&crashed.0).unwrap();
    }
}

fn settings() -> Settings {
    Settings::new(&FixedOptions::default(), 6379, Path::new("/d"), 100 * GIB).unwrap()
}

#[test]
fn an_epoch_is_greater_with_each_start_and_a_record_is_made_once() {
    let mut store = MemoryStore::default();
    let numbers: Vec<u64> = (0..3).map(|id| next_epoch(&mut store, id).unwrap().number).collect();
    assert_eq!(numbers, [1, 2, 3]);
    let founding = founding_record(&settings());
    assert_eq!((founding.complete.members_min, founding.wanted), (2, 3));
    let (version, made) = record_of(&mut store, founding.clone()).unwrap();
    assert_eq!(made, founding);
    let mut other = founding.clone();
    other.wanted = 4;
    assert_eq!(record_of(&mut store, other).unwrap(), (version, founding), "the stored one counts");
}

/// docs/faults.md: R8
#[test]
fn a_damaged_store_is_put_aside_and_its_events_are_read_while_nothing_runs() {
    let data = Dir::new("damaged");
    let (settings, dir) = (settings(), control_dir(&data.0));
    let mut embedded = open_store(&dir, |line| panic!("{line}")).unwrap();
    let mut record = founding_record(&settings);
    record.note(7, "it began");
    record_of(&mut embedded, record).unwrap();
    drop(embedded);
    let events = events_at_rest(&data.0, &settings).unwrap();
    assert_eq!(events, [Event { unix_ms: 7, text: "it began".into() }]);
    assert_eq!(read_at_rest(&dir, "nothing").unwrap(), None);
    // The placement log's blocks, all of them.
    let pool = std::fs::File::options().write(true).open(dir.join("pool")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&pool, &vec![0xa5; 1 << 20], 64 << 10).unwrap();
    let mut said = Vec::new();
    let mut anew = open_store(&dir, |line| said.push(line.to_owned())).unwrap();
    assert!(said[0].contains("damaged and was put aside"), "{said:?}");
    assert!(anew.list("").unwrap().is_empty());
}

/// A replica that does what it is told, on a socket.
struct Model {
    member: Member,
    group: GroupId,
    door: SocketAddr,
    state: Arc<Mutex<State>>,
    stopped: Arc<AtomicBool>,
}

#[derive(Clone, Default)]
struct State {
    view: Option<GroupView>,
    epoch: Epoch,
}

impl Model {
    fn start(group: GroupId, id: u32, door: Option<SocketAddr>, view: Option<GroupView>) -> Self {
        let begun = Instant::now();
        let door = door.unwrap_or_else(|| SocketAddr::from(([127, 0, 0, 1], 0)));
        let listener = loop {
            match TcpListener::bind(door) {
                Ok(listener) => break listener,
                Err(error) => assert!(begun.elapsed() < LIMIT, "{error}"),
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let model = Self {
            member: Member::new(ReplicaId(id)),
            group,
            door: listener.local_addr().unwrap(),
            state: Arc::new(Mutex::new(State { view, ..State::default() })),
            stopped: Arc::default(),
        };
        listener.set_nonblocking(true).unwrap();
        let (stopped, state) = (model.stopped.clone(), model.state.clone());
        let (member, group) = (model.member.clone(), model.group);
        std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                match listener.accept() {
                    Ok((stream, _)) => serve(stream, &member, group, &state, &stopped),
                    Err(_) => std::thread::sleep(Duration::from_millis(5)),
                }
            }
        });
        model
    }

    fn config(&self) -> u64 {
        self.state.lock().unwrap().view.as_ref().map_or(0, |view| view.config.get())
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::Relaxed);
    }
}

fn serve(
    mut stream: TcpStream,
    member: &Member,
    group: GroupId,
    state: &Mutex<State>,
    stopped: &AtomicBool,
) {
    stream.set_nonblocking(false).unwrap();
    let mut greeting = [0; 28];
    if stream.read_exact(&mut greeting).is_err() {
        return;
    }
    assert_eq!(greeting[..], gabion_server::preamble(group, CONTROLLER, member.replica)[..]);
    stream.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    let (mut input, mut scratch) = (Vec::new(), [0; 4096]);
    while !stopped.load(Ordering::Relaxed) {
        let State { view, epoch } = state.lock().unwrap().clone();
        let founded = view.as_ref().map_or(ConfigNumber::ZERO, |view| view.config);
        let report = Report {
            member: member.clone(),
            group,
            is_filled: true,
            is_whole: false,
            filling: None,
            vitals: None,
            unheard: Vec::new(),
            view,
            founded,
            probe: Probe::Well,
            epoch,
        };
        if stream.write_all(&ControlMessage::Report(report).encode()).is_err() {
            return;
        }
        match stream.read(&mut scratch) {
            Ok(0) => return,
            Ok(len) => input.extend_from_slice(&scratch[..len]),
            Err(_) => {}
        }
        while let Some((message, len)) = ControlMessage::decode(&input).unwrap() {
            input.drain(..len);
            let (epoch, view) = match message {
                ControlMessage::Tell { epoch, view } => (epoch, view),
                // A model has no clients, and so no users.
                ControlMessage::Users(_) => continue,
                other => panic!("{other:?}"),
            };
            let mut state = state.lock().unwrap();
            state.epoch = epoch;
            if state.view.as_ref().is_none_or(|known| known.config < view.config) {
                state.view = Some(view);
            }
        }
    }
}

/// A controller and its models: the founders, and spares that know of no view.
struct Rig {
    driver: Driver,
    models: Vec<Model>,
    events: Receiver<Event>,
    group: GroupId,
}

impl Rig {
    fn new(spares: u32, patience: Patience) -> Self {
        let (settings, group) = (settings(), GroupId(9));
        let mut record = founding_record(&settings);
        record.complete.group = group;
        let view = record.complete.clone();
        let models: Vec<Model> = (1..=3 + spares)
            .map(|id| Model::start(group, id, None, Some(view.clone()).filter(|_| id <= 3)))
            .collect();
        let mut store = MemoryStore::default();
        let found = record_of(&mut store, record).unwrap();
        let doors = models.iter().map(|model| (model.member.replica, model.door.into())).collect();
        let setup = Setup { patience, epoch: Epoch { number: 1, id: 5 }, tls: None };
        let (sender, events) = channel();
        let heard = move |_, event| drop(sender.send(event));
        let watched = vec![Watched { record: found, doors }];
        let driver = Driver::start(&setup, watched, Box::new(store), heard).unwrap();
        Self { driver, models, events, group }
    }

    fn wait_for(&self, part: &str) {
        let begun = Instant::now();
        let mut heard = Vec::new();
        while begun.elapsed() < LIMIT {
            if let Ok(event) = self.events.recv_timeout(Duration::from_millis(100)) {
                heard.push(event.text);
                if heard.last().is_some_and(|text| text.contains(part)) {
                    return;
                }
            }
        }
        panic!("`{part}` does not happen: {heard:#?}");
    }

    fn members(&self) -> Vec<u32> {
        let group = self.group;
        let record =
            self.driver.handle().ask(move |controller, _| controller.record(group).cloned());
        let view = record.unwrap().unwrap().newest().clone();
        view.full().map(|member| member.replica.get()).collect()
    }

    /// A model is gone, its connection too; it is returned as it may come back.
    fn stop(&mut self, at: usize) -> (SocketAddr, Option<GroupView>) {
        let model = &self.models[at];
        model.stopped.store(true, Ordering::Relaxed);
        (model.door, model.state.lock().unwrap().view.clone())
    }
}

#[test]
fn a_replica_that_stops_is_left_out_and_taken_back_when_it_is_there_again() {
    let mut rig = Rig::new(0, Patience::default());
    let (door, view) = rig.stop(0);
    rig.wait_for("without replica 1");
    rig.wait_for("c2 is complete: replica 2 takes writes, replica 3 answers reads");
    assert_eq!(rig.members(), [2, 3]);
    assert_eq!(rig.models[1].config(), 2);
    rig.models[0] = Model::start(rig.group, 1, Some(door), view);
    rig.wait_for("replica 1 is being filled");
    rig.wait_for("c4 is complete: replica 2 takes writes, replica 1 answers reads");
    assert_eq!(rig.members(), [2, 3, 1]);
}

#[test]
fn a_spare_takes_over_for_a_replica_that_stays_away() {
    let mut rig = Rig::new(1, Patience { replace_ms: 200, ..Patience::default() });
    rig.stop(2);
    rig.wait_for("without replica 3");
    rig.wait_for("replica 4 is being filled");
    rig.wait_for("replica 1 takes writes, replica 4 answers reads");
    assert_eq!(rig.members(), [1, 2, 4]);
}

#[test]
fn operators_ask_through_a_socket_that_is_their_own() {
    use std::os::unix::fs::PermissionsExt;
    let rig = Rig::new(0, Patience::default());
    // Longer than a socket's path may be.
    let data = Dir::new(&"x".repeat(100));
    let opened = socket::Socket::open(&data.0, rig.driver.handle(), rig.group).unwrap();
    let path = super::socket_path(&data.0);
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let ask = |question| socket::ask(&data.0, &question);
    let begun = Instant::now();
    loop {
        let group = ask(json!({ "do": "status" })).unwrap()["group"].take();
        let replicas = group["replicas"].as_array().unwrap().clone();
        if replicas.iter().all(|it| it["verdict"] == "well") {
            assert_eq!((&group["writer"], &group["reader"]), (&json!(1), &json!(3)));
            assert!(replicas.iter().all(|it| it["state"] == "full"), "{replicas:?}");
            let lines = super::ask::lines(&group);
            let expected = "group: c1, term 0; 3 members wanted, 2 needed for writes";
            assert_eq!(lines[0], expected);
            assert_eq!(lines[1], "   replica 1: full, takes writes (well)");
            break;
        }
        assert!(begun.elapsed() < LIMIT, "{group}");
        std::thread::sleep(Duration::from_millis(20));
    }
    for (question, part) in [
        (json!({ "do": "fail" }), "unknown"),
        (json!({ "do": "remove" }), "`replica` is missing"),
        (json!({ "do": "add", "replica": "x" }), "a replica's number is expected"),
        (json!({ "do": "failover", "replica": 9 }), "replica 9 is no full member"),
    ] {
        let error = ask(question).unwrap_err();
        assert!(error.message().contains(part), "{error}");
    }
    ask(json!({ "do": "failover", "replica": null })).unwrap();
    rig.wait_for("told to have replica 2 take writes");
    rig.wait_for("c2 is complete: replica 2 takes writes");
    assert_eq!(rig.members(), [2, 1, 3]);
    drop(opened);
    assert_eq!(ask(json!({ "do": "status" })).unwrap_err().kind(), ErrorKind::NotFound);
}

//! A target and its hosts on real sockets and files: the order of reports, fences, connections that
//! are cut or fall silent.

use super::*;
use crate::engine::{Ended, Engine, Job};
use crate::file::Chosen;
use crate::{Backend, DirectIo, FileMedium, MediumOptions, PoolFile, preallocate};
use gabion_base::{Error, ErrorKind, crc};
use gabion_media::nvme::{Backing, InitiatorConfig, InitiatorState, TargetConfig};
use gabion_media::{AlignedBuf, Bytes, OperationKind};
use std::future::Future;
use std::iter;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
/// The namespace lies in the middle of its pool.
const START: u64 = MIB;
const NAMESPACE_LEN: u64 = 16 * MIB;
const PATIENCE: Duration = Duration::from_secs(30);

fn pool(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("gabion-{name}-{}", std::process::id()));
    let _ = std::fs::remove_file(&path);
    preallocate(&path, START + NAMESPACE_LEN + MIB).unwrap();
    path
}

/// A pool file, the target that serves from it, and its events.
struct Target {
    path: PathBuf,
    server: TargetServer,
    events: Receiver<TargetEvent>,
}

impl Target {
    /// One that is open for session 1.
    fn opened(name: &str) -> Self {
        let target = Self::start(name);
        target.open(1);
        target.wait_opened(1);
        target
    }

    fn start(name: &str) -> Self {
        let path = pool(name);
        let file = PoolFile::open(&path, DirectIo::Try).unwrap();
        let medium = file.medium(MediumOptions::default()).unwrap();
        Self::serve(path, medium)
    }

    fn serve(path: PathBuf, medium: FileMedium) -> Self {
        Self::serve_from(path, medium, Backing::from(START..START + NAMESPACE_LEN))
    }

    fn serve_from(path: PathBuf, medium: FileMedium, backing: Backing) -> Self {
        let (sender, events) = channel();
        let len = backing.len();
        let options = TargetOptions {
            listener: TcpListener::bind("127.0.0.1:0").unwrap(),
            medium,
            backing,
            config: TargetConfig::new(String::new(), Vec::new(), len, [7; 16]),
            buffer_len: 0,
            ciphers: None,
            nice: 0,
        };
        let server = TargetServer::start(options, move |event| {
            let _ = sender.send(event);
        })
        .unwrap();
        Self { path, server, events }
    }

    fn open(&self, session: u64) {
        self.server.send(TargetCommand::Open {
            subsystem: subsystem(session),
            session,
            hosts: vec![HOST.to_owned()],
        });
    }

    /// Grants pairs of offset and length to a host.
    fn admit(&self, host: &str, ranges: &[(u64, u64)]) {
        let ranges = ranges.iter().map(|(at, len)| *at..at + len).collect();
        self.server.send(TargetCommand::Admit { host: host.to_owned(), ranges });
    }

    /// Waits for the event that `wanted` picks, and drops those before it.
    fn wait<T>(&self, wanted: impl Fn(&TargetEvent) -> Option<T>) -> T {
        loop {
            let event = self.events.recv_timeout(PATIENCE).expect("an event in time");
            if let Some(found) = wanted(&event) {
                return found;
            }
        }
    }

    fn wait_opened(&self, wanted: u64) {
        self.wait(|event| match event {
            TargetEvent::Opened { session } if *session == wanted => Some(()),
            _ => None,
        });
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

const HOST: &str = "nqn.2026-01.org.gabion:host";

fn subsystem(session: u64) -> String {
    format!("nqn.2026-01.org.gabion:g1:t1:s{session}")
}

fn config(session: u64) -> InitiatorConfig {
    InitiatorConfig::new(HOST.to_owned(), [1; 16], subsystem(session))
}

/// Runs a future and the connections that it waits for.
fn run<T>(remotes: &mut Remotes<u32>, future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let until = Instant::now() + PATIENCE;
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return value;
        }
        remotes.turn(Duration::from_millis(20)).unwrap();
        assert!(Instant::now() < until, "the future is not ready after {PATIENCE:?}");
    }
}

fn connect(remotes: &mut Remotes<u32>, key: u32, to: SocketAddr, session: u64) -> InitiatorState {
    connect_with(remotes, key, to, config(session))
}

fn connect_with(
    remotes: &mut Remotes<u32>,
    key: u32,
    to: SocketAddr,
    config: InitiatorConfig,
) -> InitiatorState {
    remotes.connect(key, to, config, 0).unwrap();
    let until = Instant::now() + PATIENCE;
    loop {
        match remotes.get(&key).unwrap().state() {
            InitiatorState::Connecting => assert!(Instant::now() < until),
            state => return state,
        }
        remotes.turn(Duration::from_millis(20)).unwrap();
    }
}

fn assert_ready(state: &InitiatorState) {
    assert!(matches!(state, InitiatorState::Ready), "{state:?}");
}

fn pattern(len: u64, salt: u8) -> Bytes {
    let bytes: Vec<u8> = (0..len).map(|i| (i / 100) as u8 ^ salt).collect();
    AlignedBuf::copy_of(&bytes).freeze()
}

#[test]
fn shipped_bytes_land_in_the_region_and_are_reported_before_the_host_knows() {
    let target = Target::opened("ship");
    target.admit(HOST, &[(0, 4 * MIB)]);
    let mut remotes = Remotes::new(Readiness::new().unwrap());
    assert_ready(&connect(&mut remotes, 1, target.server.address(), 1));
    let remote = remotes.get(&1).unwrap();
    assert_eq!(remote.handle().properties().len, NAMESPACE_LEN);

    let data = pattern(4 * MIB, 3);
    for i in 0..4 {
        let part = data.slice((i * MIB) as usize..((i + 1) * MIB) as usize);
        remote.note_crc(i * MIB, part.len(), crc::crc32c(&part));
    }
    let handle = remote.handle().clone();
    run(&mut remotes, handle.write_all(0, data.clone())).unwrap();
    let mut reported: Vec<(u64, u32, u32)> = target
        .events
        .try_iter()
        .filter_map(|event| match event {
            TargetEvent::Wrote { session: 1, offset, len, crc } => Some((offset, len, crc)),
            _ => None,
        })
        .collect();
    reported.sort_unstable();
    let expected: Vec<(u64, u32, u32)> = (0..4)
        .map(|i| {
            let part = &data[(i * MIB) as usize..((i + 1) * MIB) as usize];
            (i * MIB, MIB as u32, crc::crc32c(part))
        })
        .collect();
    assert_eq!(reported, expected);

    run(&mut remotes, handle.flush()).unwrap();
    let read = run(&mut remotes, handle.read(MIB, MIB as usize)).unwrap();
    assert!(read[..] == data[MIB as usize..2 * MIB as usize]);
    let on_disk = std::fs::read(&target.path).unwrap();
    assert!(on_disk[START as usize..][..data.len()] == data[..]);
    assert!(on_disk[..START as usize].iter().all(|&b| b == 0), "nothing outside the region");
    let (sent, received) = remotes.get(&1).unwrap().wire_bytes();
    assert!(sent > 4 * MIB && received > MIB);
    let counted = target.server.wire_bytes().received.load(Ordering::Relaxed);
    assert_eq!(counted, sent);
}

/// docs/faults.md: H8
#[test]
fn writes_outside_what_is_admitted_are_refused_and_a_wrong_checksum_is_damage() {
    let target = Target::opened("grants");
    target.admit(HOST, &[(MIB, MIB), (4 * MIB, 2 * MIB)]);
    target.server.send(TargetCommand::Revoke(iter::once(5 * MIB..6 * MIB).collect()));
    let mut remotes = Remotes::new(Readiness::new().unwrap());
    assert_ready(&connect(&mut remotes, 1, target.server.address(), 1));
    let handle = remotes.get(&1).unwrap().handle().clone();
    let mut write = |offset| run(&mut remotes, handle.write(offset, pattern(MIB, 1)));
    assert!(write(MIB).is_ok() && write(4 * MIB).is_ok());
    for outside in [0, 2 * MIB, MIB + 4096, 5 * MIB, NAMESPACE_LEN - MIB] {
        assert!(write(outside).is_err(), "offset {outside}");
    }
    remotes.get(&1).unwrap().note_crc(MIB, MIB as usize, 0xbad);
    assert!(run(&mut remotes, handle.write(MIB, pattern(MIB, 2))).is_err());
    let on_disk = std::fs::read(&target.path).unwrap();
    assert!(on_disk[(START + MIB) as usize..][..MIB as usize] == pattern(MIB, 1)[..]);
}

/// Such as a group's former head and its new one, or the heads of two groups.
/// docs/faults.md: H8
#[test]
fn a_host_writes_into_slots_of_another_and_not_a_byte_is_changed() {
    const OTHER: &str = "nqn.2026-01.org.gabion:other";
    let target = Target::opened("hosts");
    let mut remotes = Remotes::new(Readiness::new().unwrap());
    let address = target.server.address();
    let other = || InitiatorConfig::new(OTHER.to_owned(), [2; 16], subsystem(1));
    let state = connect_with(&mut remotes, 2, address, other());
    assert!(matches!(state, InitiatorState::Failed(_)), "nothing is granted to it: {state:?}");
    target.admit(HOST, &[(0, 2 * MIB)]);
    target.admit(OTHER, &[(4 * MIB, 2 * MIB)]);
    assert_ready(&connect(&mut remotes, 1, address, 1));
    assert_ready(&connect_with(&mut remotes, 2, address, other()));
    let handles = [1, 2].map(|key| remotes.get(&key).unwrap().handle().clone());
    let mut write = |host: usize, at, salt| {
        run(&mut remotes, handles[host].write(at, pattern(MIB, salt))).map_err(|e| e.kind())
    };
    assert_eq!((write(0, 0, 1), write(1, 4 * MIB, 2)), (Ok(()), Ok(())));
    let before = std::fs::read(&target.path).unwrap();
    // Refused like a range that is granted to nobody; so is one that begins or ends in an own slot.
    assert_eq!(write(0, 8 * MIB, 3), Err(ErrorKind::Fenced));
    for (host, at) in
        [(1, 0), (1, MIB), (0, 4 * MIB), (0, 5 * MIB), (0, 2 * MIB - 4096), (1, 4 * MIB - 4096)]
    {
        assert_eq!(write(host, at, 3), Err(ErrorKind::Fenced), "host {host} at {at}");
    }
    assert!(std::fs::read(&target.path).unwrap() == before, "not a byte is changed");
    // A slot that is granted anew has one writer, the new one.
    target.admit(OTHER, &[(0, MIB)]);
    assert_eq!(write(0, 0, 4), Err(ErrorKind::Fenced));
    assert_eq!((write(1, 0, 5), write(0, MIB, 6)), (Ok(()), Ok(())));
    let after = std::fs::read(&target.path).unwrap();
    assert!(after[START as usize..][..MIB as usize] == pattern(MIB, 5)[..]);
}

#[test]
fn a_namespace_of_two_extents_is_written_where_they_lie_and_not_across() {
    let path = pool("extents");
    let file = PoolFile::open(&path, DirectIo::Try).unwrap();
    let medium = file.medium(MediumOptions::default()).unwrap();
    let ranges = vec![START + 8 * MIB..START + 12 * MIB, START..START + 4 * MIB];
    let target = Target::serve_from(path, medium, Backing::new(ranges));
    target.open(1);
    target.wait_opened(1);
    target.admit(HOST, &[(0, 8 * MIB)]);
    let mut remotes = Remotes::new(Readiness::new().unwrap());
    assert_ready(&connect(&mut remotes, 1, target.server.address(), 1));
    let handle = remotes.get(&1).unwrap().handle().clone();
    assert_eq!(handle.properties().len, 8 * MIB);
    run(&mut remotes, handle.write(3 * MIB, pattern(MIB, 1))).unwrap();
    run(&mut remotes, handle.write(4 * MIB, pattern(MIB, 2))).unwrap();
    let before = std::fs::read(&target.path).unwrap();
    assert!(before[(START + 11 * MIB) as usize..][..MIB as usize] == pattern(MIB, 1)[..]);
    assert!(before[START as usize..][..MIB as usize] == pattern(MIB, 2)[..]);
    let across = 4 * MIB - MIB / 2;
    assert!(run(&mut remotes, handle.write(across, pattern(MIB, 3))).is_err());
    assert!(run(&mut remotes, handle.read(across, MIB as usize)).is_err());
    assert!(std::fs::read(&target.path).unwrap() == before, "not a byte is changed");
}

/// docs/faults.md: H5
#[test]
fn a_new_session_fences_the_old_one() {
    let target = Target::opened("fence");
    target.admit(HOST, &[(0, NAMESPACE_LEN)]);
    let mut remotes = Remotes::new(Readiness::new().unwrap());
    assert_ready(&connect(&mut remotes, 1, target.server.address(), 1));
    let handle = remotes.get(&1).unwrap().handle().clone();
    // Many writes are under way when the new session opens.
    let late: Vec<_> = (0..16).map(|i| handle.write_all(i * MIB, pattern(MIB, 9))).collect();
    let mut late: Vec<_> = late.into_iter().map(Box::pin).collect();
    let mut context = Context::from_waker(Waker::noop());
    for write in &mut late {
        assert!(write.as_mut().poll(&mut context).is_pending());
    }
    remotes.turn(Duration::ZERO).unwrap();
    target.open(2);
    target.admit(HOST, &[(0, MIB)]);
    target.wait_opened(2);
    let fenced = std::fs::read(&target.path).unwrap();
    for write in late {
        // Done before the fence, refused, or cut off: never left hanging.
        if let Err(error) = run(&mut remotes, write) {
            assert!(matches!(error.kind(), ErrorKind::Unknown | ErrorKind::Io), "{error}");
        }
    }
    let state = remotes.get(&1).unwrap().state();
    assert!(matches!(state, InitiatorState::Failed(_)), "{state:?}");
    assert!(std::fs::read(&target.path).unwrap() == fenced, "nothing landed after the fence");
    // The old name is refused, the new one served, with its own grants.
    let refused = connect(&mut remotes, 1, target.server.address(), 1);
    assert!(matches!(refused, InitiatorState::Failed(_)));
    assert_ready(&connect(&mut remotes, 2, target.server.address(), 2));
    let handle = remotes.get(&2).unwrap().handle().clone();
    assert!(run(&mut remotes, handle.write(0, pattern(MIB, 1))).is_ok());
    assert!(run(&mut remotes, handle.write(MIB, pattern(MIB, 1))).is_err());
}

#[test]
fn several_remotes_share_a_thread_and_a_dead_one_hinders_nobody() {
    let targets = [Target::start("many-a"), Target::start("many-b")];
    let mut remotes = Remotes::new(Readiness::new().unwrap());
    // Nobody listens here: the connection is refused, or unanswered until the limit.
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    remotes.connect(9, nobody, config(1), 0).unwrap();
    for (i, target) in (0..).zip(&targets) {
        target.open(1);
        target.admit(HOST, &[(0, MIB)]);
        target.wait_opened(1);
        assert_ready(&connect(&mut remotes, i, target.server.address(), 1));
    }
    let handles: Vec<_> = (0..2).map(|i| remotes.get(&i).unwrap().handle().clone()).collect();
    run(&mut remotes, async {
        handles[0].write(0, pattern(MIB, 1)).await.unwrap();
        handles[1].write(0, pattern(MIB, 2)).await.unwrap();
    });
    for (salt, target) in (1..).zip(&targets) {
        let on_disk = std::fs::read(&target.path).unwrap();
        assert!(on_disk[START as usize..][..MIB as usize] == pattern(MIB, salt)[..]);
    }
    let state = remotes.get(&9).unwrap().state();
    assert!(matches!(state, InitiatorState::Failed(_)), "{state:?}");
}

#[test]
fn a_dropped_remote_ends_its_operations_as_unknown() {
    let target = Target::start("drop");
    target.open(1);
    target.admit(HOST, &[(0, MIB)]);
    target.wait_opened(1);
    let mut remotes = Remotes::new(Readiness::new().unwrap());
    assert_ready(&connect(&mut remotes, 1, target.server.address(), 1));
    let handle = remotes.get(&1).unwrap().handle().clone();
    let mut write = Box::pin(handle.write(0, pattern(MIB, 1)));
    assert!(write.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    // The command is on its way when the sockets close.
    remotes.turn(Duration::ZERO).unwrap();
    remotes.remove(&1);
    match run(&mut remotes, write) {
        Ok(()) => {}
        Err(error) => assert_eq!(error.kind(), ErrorKind::Unknown, "{error}"),
    }
    let after = run(&mut remotes, handle.flush());
    assert!(after.is_err(), "a dropped connection does nothing more");
    let ended: Error = target.wait(|event| match event {
        TargetEvent::Ended { error, .. } => Some(error.clone()),
        _ => None,
    });
    assert!(!ended.message().is_empty());
}

#[test]
fn a_target_refuses_a_namespace_outside_its_medium_and_closes_on_command() {
    let target = Target::opened("close");
    target.server.send(TargetCommand::Close);
    target.wait(|event| matches!(event, TargetEvent::Closed).then_some(()));
    let mut remotes = Remotes::new(Readiness::new().unwrap());
    let state = connect(&mut remotes, 1, target.server.address(), 1);
    assert!(matches!(state, InitiatorState::Failed(_)), "nothing is served");

    let path = std::env::temp_dir().join(format!("gabion-outside-{}", std::process::id()));
    preallocate(&path, MIB).unwrap();
    let file = PoolFile::open(&path, DirectIo::Try).unwrap();
    let from = |start: u64| Backing::from(start..start.saturating_add(MIB));
    let halves = Backing::new(vec![0..MIB / 2, MIB / 2..MIB - 4096]);
    for (backing, notify) in
        [(from(4096), true), (from(u64::MAX), true), (halves, true), (from(0), false)]
    {
        let options = TargetOptions {
            listener: TcpListener::bind("127.0.0.1:0").unwrap(),
            medium: file.medium(MediumOptions { notify, ..MediumOptions::default() }).unwrap(),
            backing,
            config: TargetConfig::new(String::new(), Vec::new(), MIB, [7; 16]),
            buffer_len: 0,
            ciphers: None,
            nice: 0,
        };
        let error = TargetServer::start(options, |_| {}).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    }
    std::fs::remove_file(path).unwrap();
}

/// Forwards one connection after another to `target`. Passes on `limit` bytes of each towards the
/// target, then cuts both sides.
fn cutting_proxy(target: SocketAddr, limit: usize) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        // The admin and the I/O connection of one initiator.
        for accepted in listener.incoming().take(2) {
            let (host, there) = (accepted.unwrap(), TcpStream::connect(target).unwrap());
            let (mut back_from, mut back_to) =
                (there.try_clone().unwrap(), host.try_clone().unwrap());
            std::thread::spawn(move || std::io::copy(&mut back_from, &mut back_to));
            std::thread::spawn(move || {
                let mut first = std::io::Read::take(&host, limit as u64);
                let _ = std::io::copy(&mut first, &mut &there);
                let _ = there.shutdown(Shutdown::Both);
                let _ = host.shutdown(Shutdown::Both);
            });
        }
    });
    address
}

/// docs/faults.md: H6
#[test]
fn a_connection_cut_after_any_byte_leaves_no_operation_hanging_and_the_target_drains() {
    let target = Target::start("cut");
    let mut ready = 0;
    let limits = [0, 1, 127, 128, 129, 700, 1300, 2000, 5000, 70_000, MIB as usize, 2_100_000];
    for (session, limit) in (1..).zip(limits) {
        target.open(session);
        target.wait_opened(session);
        target.admit(HOST, &[(0, 4 * MIB)]);
        let proxy = cutting_proxy(target.server.address(), limit);
        let mut remotes = Remotes::new(Readiness::new().unwrap());
        let state = connect(&mut remotes, 1, proxy, session);
        let handle = remotes.get(&1).unwrap().handle().clone();
        if matches!(state, InitiatorState::Ready) {
            ready += 1;
            let error = run(&mut remotes, handle.write_all(0, pattern(4 * MIB, 1))).unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::Unknown | ErrorKind::Io), "{error}");
        }
        assert!(run(&mut remotes, handle.flush()).is_err(), "cut after {limit} bytes");
        assert_eq!(handle.in_flight(), 0);
    }
    assert!(ready >= 2, "some cuts fall into the writes: {ready}");
    target.server.send(TargetCommand::Close);
    target.wait(|event| matches!(event, TargetEvent::Closed).then_some(()));
}

#[test]
fn the_waker_ends_the_sleep_of_a_shipping_thread() {
    let readiness = Readiness::new().unwrap();
    let waker = readiness.waker();
    let (sender, receiver) = channel();
    let thread = std::thread::spawn(move || {
        let mut remotes: Remotes<u32> = Remotes::new(readiness);
        let started = Instant::now();
        remotes.turn(10 * PATIENCE).unwrap();
        sender.send(started.elapsed()).unwrap();
    });
    waker.wake().unwrap();
    assert!(receiver.recv_timeout(PATIENCE).unwrap() < PATIENCE);
    thread.join().unwrap();
}

#[test]
fn a_connection_on_which_nothing_happens_lives_and_is_seldom_looked_at() {
    let target = Target::opened("idle");
    let mut remotes = Remotes::new(Readiness::new().unwrap());
    let idle = InitiatorConfig { keep_alive_ms: 2_000, ..config(1) };
    assert_ready(&connect_with(&mut remotes, 1, target.server.address(), idle));
    let sent = |remotes: &Remotes<u32>| remotes.get(&1).unwrap().wire_bytes().0;
    let (mut last, mut signs, mut turns) = (sent(&remotes), 0, 0);
    while signs < 2 {
        remotes.turn(PATIENCE).unwrap();
        turns += 1;
        signs += u32::from(std::mem::replace(&mut last, sent(&remotes)) != last);
    }
    assert_ready(&remotes.get(&1).unwrap().state());
    // A sign of life in each second: by turns of 50 ms there would be 20 between two.
    assert!(turns <= 2 * 10, "{turns}");
}

#[test]
fn a_host_that_falls_silent_is_noticed_by_a_target_that_does_nothing_else() {
    let target = Target::opened("silent");
    let mut remotes = Remotes::new(Readiness::new().unwrap());
    let hasty = InitiatorConfig { keep_alive_ms: 200, ..config(1) };
    assert_ready(&connect_with(&mut remotes, 1, target.server.address(), hasty));
    // No turn from here on.
    let why = target.wait(|event| match event {
        TargetEvent::Ended { error, .. } => Some(error.to_string()),
        _ => None,
    });
    assert!(why.contains("no sign of life for 200 ms"), "{why}");
}

#[test]
fn connections_that_say_nothing_keep_no_host_out() {
    let target = Target::opened("mute");
    let mut remotes = Remotes::new(Readiness::new().unwrap());
    assert_ready(&connect(&mut remotes, 1, target.server.address(), 1));
    let mute = || TcpStream::connect(target.server.address()).unwrap();
    let crowd: Vec<TcpStream> = iter::repeat_with(mute).take(100).collect();
    assert_ready(&connect(&mut remotes, 2, target.server.address(), 1));
    let is_gone = |event: &TargetEvent| match event {
        TargetEvent::Ended { peer, .. } => Some(*peer),
        _ => None,
    };
    assert_eq!(target.wait(is_gone), crowd[0].local_addr().unwrap(), "the oldest goes first");
    let first = remotes.get(&1).unwrap().handle().clone();
    assert!(run(&mut remotes, first.flush()).is_ok(), "a host that is connected stays");
}

#[test]
fn a_panic_of_the_target_is_reported() {
    let path = pool("panic");
    let file = PoolFile::open(&path, DirectIo::Try).unwrap();
    let (sender, events) = channel();
    let options = TargetOptions {
        listener: TcpListener::bind("127.0.0.1:0").unwrap(),
        medium: file.medium(MediumOptions::default()).unwrap(),
        backing: Backing::from(START..START + NAMESPACE_LEN),
        config: TargetConfig::new(String::new(), Vec::new(), NAMESPACE_LEN, [7; 16]),
        buffer_len: 0,
        ciphers: None,
        nice: 0,
    };
    let server = TargetServer::start(options, move |event| {
        assert!(!matches!(event, TargetEvent::Opened { .. }), "planted: on the target's thread");
        let _ = sender.send(event);
    });
    let target = Target { path, server: server.unwrap(), events };
    target.open(1);
    let error = target.wait(|event| match event {
        TargetEvent::Failed(error) => Some(error.to_string()),
        _ => None,
    });
    assert!(error.contains("panicked"), "{error}");
}

/// A device that takes writes and holds them until the gate opens.
struct Gated {
    path: PathBuf,
    jobs: Vec<Job>,
    held: Arc<AtomicUsize>,
    open: Arc<AtomicBool>,
}

impl Engine for Gated {
    fn start(&mut self, job: Job) {
        self.jobs.push(job);
        self.held.store(self.jobs.len(), Ordering::SeqCst);
    }
    fn submit(&mut self) {}
    fn collect(&mut self, ended: &mut Vec<Ended>) {
        if !self.open.load(Ordering::SeqCst) {
            return;
        }
        for job in self.jobs.drain(..) {
            let OperationKind::Write { offset, data } = &job.kind else { unreachable!("writes") };
            let file = std::fs::OpenOptions::new().write(true).open(&self.path).unwrap();
            file.write_all_at(data, *offset).unwrap();
            let result = Ok(data.len());
            ended.push(Ended { job, result });
        }
    }
    fn running(&self) -> usize {
        self.jobs.len()
    }
    fn wait(&mut self) {
        std::thread::yield_now();
    }
}

/// docs/faults.md: H5
#[test]
fn a_fence_is_not_answered_while_an_old_write_could_still_land() {
    let path = pool("gate");
    let (held, open) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let engine =
        Gated { path: path.clone(), jobs: Vec::new(), held: held.clone(), open: open.clone() };
    let notify = rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK).unwrap();
    let file = PoolFile::open(&path, DirectIo::Try).unwrap();
    let chosen: Chosen = (Box::new(engine), Backend::Threads, None);
    let target = Target::serve(path.clone(), FileMedium::with_engine(file, chosen, Some(notify)));
    target.open(1);
    target.wait_opened(1);
    target.admit(HOST, &[(0, MIB)]);
    let mut remotes = Remotes::new(Readiness::new().unwrap());
    assert_ready(&connect(&mut remotes, 1, target.server.address(), 1));
    let handle = remotes.get(&1).unwrap().handle().clone();
    let mut write = Box::pin(handle.write(0, pattern(MIB, 4)));
    assert!(write.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    while held.load(Ordering::SeqCst) == 0 {
        remotes.turn(Duration::from_millis(1)).unwrap();
    }
    // The host goes away and a new session begins, but the device still has the write.
    remotes.remove(&1);
    assert_eq!(run(&mut remotes, write).unwrap_err().kind(), ErrorKind::Unknown);
    target.open(2);
    let early = iter::from_fn(|| target.events.recv_timeout(Duration::from_millis(250)).ok())
        .find(|event| matches!(event, TargetEvent::Opened { .. }));
    assert!(early.is_none(), "{early:?}");
    open.store(true, Ordering::SeqCst);
    target.wait_opened(2);
    let on_disk = std::fs::read(&path).unwrap();
    assert!(on_disk[START as usize..][..MIB as usize] == pattern(MIB, 4)[..]);
}

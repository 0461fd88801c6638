//! Files at real peers: over sockets and in shared memory, in one process.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test of a shell: it has sockets, threads and a clock"
)]

#[path = "support/peers.rs"]
mod peers;

use gabion_base::ErrorKind;
use gabion_control::Store;
use gabion_fabric::remote::PeerServer;
use gabion_media::remote::{Incarnation, PeerConfig, PeerId};
use gabion_ncl::map::PeerRecord;
use gabion_ncl::{FileNumber, Metadata, OnLoss};
use gabion_ncl_driver::registry::Registrar;
use gabion_ncl_driver::{Logs, LogsOptions, PeerFiles};
use peers::{Shared, Way};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
const APP: &str = "app";

struct Rig {
    store: Shared,
    way: Way,
    dir: PathBuf,
    peers: Vec<Option<(PeerServer, Registrar)>>,
    runs: u32,
}

impl Drop for Rig {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

impl Rig {
    fn new(way: Way, peers: usize) -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("gabion-logs-{}-{count}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let mut rig = Self { store: Shared::default(), way, dir, peers: Vec::new(), runs: 0 };
        for _ in 0..peers {
            rig.peers.push(None);
            rig.start(rig.peers.len() - 1);
        }
        rig
    }

    /// A run of a peer.
    fn start(&mut self, index: usize) {
        self.peers[index] = None;
        self.runs += 1;
        let (peer, incarnation) = (PeerId(index as u64 + 1), Incarnation(self.runs));
        let path = self.dir.join(format!("peer-{index}-{}", self.runs));
        let config = PeerConfig::new(peer, incarnation, 64 * MIB);
        self.peers[index] = Some(peers::start(&self.store, self.way, &path, config));
    }

    fn kill(&mut self, index: usize) {
        self.peers[index] = None;
    }

    fn options(&self) -> LogsOptions {
        let mut options = LogsOptions::new(APP);
        options.core.takes_over = true;
        options.core.cooling_ms = 100;
        options
    }

    fn open(&self, options: LogsOptions) -> Logs {
        let logs = Logs::start(options, Box::new(self.store.clone())).unwrap();
        logs.wait_until_ready().unwrap();
        logs
    }

    /// Options for `f` of 1, after an instance with this `f` has kept a file and crashed.
    fn after_a_run_with(&self, f: usize) -> LogsOptions {
        let mut options = self.options();
        options.core.f = f;
        let logs = self.open(options.clone());
        keep(&logs, "a.log", b"kept");
        std::mem::forget(logs);
        options.core.f = 1;
        options
    }
}

/// A new file whose bytes are synced.
fn keep(logs: &Logs, name: &str, bytes: &[u8]) -> FileNumber {
    let file = logs.create(name, Metadata::default()).unwrap();
    logs.append(file, bytes).unwrap();
    logs.sync().unwrap();
    file
}

fn bytes(logs: &Logs, name: &str) -> Vec<u8> {
    let file = logs.find(name).unwrap().expect("it is there");
    let mut bytes = vec![0; logs.stat(file).unwrap().len as usize];
    assert_eq!(logs.read(file, 0, &mut bytes).unwrap(), bytes.len());
    bytes
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !is_so() {
        assert!(Instant::now() < end, "not within 20 s: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn what_was_synced_is_there_for_the_next_instance() {
    for way in [Way::Tcp, Way::SharedMemory] {
        let rig = Rig::new(way, 3);
        let first = rig.open(rig.options());
        let file = first.create("a.log", Metadata { mode: 0o600, ..Metadata::default() }).unwrap();
        let mut expected = Vec::new();
        for at in 0..2_000u32 {
            let record = [at as u8; 100];
            first.append(file, &record).unwrap();
            expected.extend(record);
            if at % 10 == 0 {
                first.sync().unwrap();
            }
        }
        // Past the first part of a file, so that further regions are lent.
        first.write(file, 3 << 20, &[7; 5000]).unwrap();
        expected.resize(3 << 20, 0);
        expected.extend([7; 5000]);
        first.sync().unwrap();
        let (_, counts) = first.status().unwrap();
        let shared = if way == Way::SharedMemory { 3 } else { 0 };
        assert_eq!((counts.shared, counts.connected), (shared, 3), "{way:?}");
        // Nothing is said to the store: as after a crash.
        std::mem::forget(first);
        let second = rig.open(rig.options());
        assert!(bytes(&second, "a.log") == expected, "{way:?}: other bytes");
        assert_eq!(second.stat(file).unwrap().entry.metadata.mode, 0o600);
    }
}

/// docs/faults.md: N2
#[test]
fn a_lost_peer_is_replaced_under_load_and_nothing_is_lost() {
    for way in [Way::Tcp, Way::SharedMemory] {
        let mut rig = Rig::new(way, 4);
        let logs = rig.open(rig.options());
        let file = logs.create("a.log", Metadata::default()).unwrap();
        let count = AtomicU64::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for at in 0..u64::MAX {
                    logs.append(file, &at.to_le_bytes()).unwrap();
                    logs.sync().unwrap();
                    if count.fetch_add(1, Ordering::Relaxed) == u64::MAX / 2 {
                        return;
                    }
                }
            });
            for victim in 0..4 {
                let before = count.load(Ordering::Relaxed);
                until("it writes", || count.load(Ordering::Relaxed) > before + 100);
                rig.kill(victim);
                let is_whole = || {
                    let (status, counts) = logs.status().unwrap();
                    let gone = status.map.members.iter().all(|it| it.peer.0 != victim as u64 + 1);
                    gone && status.copies == 3 && counts.connected == 3
                };
                until("it is replaced", is_whole);
                rig.start(victim);
            }
            count.store(u64::MAX / 2, Ordering::Relaxed);
        });
        let (_, counts) = logs.status().unwrap();
        println!("{way:?}: {counts:?}");
        assert!(counts.replaced >= 3, "{counts:?}");
        let expected = bytes(&logs, "a.log");
        std::mem::forget(logs);
        let next = rig.open(rig.options());
        let found = bytes(&next, "a.log");
        assert!(found == expected, "{way:?}: {} of {} bytes", found.len(), expected.len());
        for (at, record) in found.chunks(8).enumerate() {
            assert_eq!(record, (at as u64).to_le_bytes());
        }
    }
}

/// docs/faults.md: N7
#[test]
fn a_former_instance_cannot_write_once_there_is_another() {
    for way in [Way::Tcp, Way::SharedMemory] {
        let rig = Rig::new(way, 3);
        let former = rig.open(rig.options());
        let file = keep(&former, "a.log", b"old");
        let next = rig.open(rig.options());
        let written = former.append(file, b"late").and_then(|number| former.wait_for(number));
        let error = written.expect_err("it was replaced");
        assert_eq!(error.kind(), ErrorKind::Fenced, "{way:?}: {error}");
        assert_eq!(former.append(file, b"x").unwrap_err().kind(), ErrorKind::Fenced);
        next.append(file, b"new").unwrap();
        next.sync().unwrap();
        drop((former, next));
        let last = rig.open(rig.options());
        assert_eq!(bytes(&last, "a.log"), b"oldnew");
    }
}

#[test]
fn with_too_few_peers_calls_wait_and_then_say_how_many_there_are() {
    let mut rig = Rig::new(Way::SharedMemory, 2);
    let mut options = rig.options();
    options.core.on_loss = OnLoss::FailAfter(300);
    let logs = Logs::start(options.clone(), Box::new(rig.store.clone())).unwrap();
    let error = logs.wait_until_ready().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("2 peers are registered"), "{error}");
    assert!(error.to_string().contains("a new application takes 3"), "{error}");
    drop(logs);
    rig.peers.push(None);
    rig.start(2);
    let logs = rig.open(options.clone());
    let file = keep(&logs, "a.log", b"kept");
    // One may be lost.
    rig.kill(0);
    logs.append(file, b", too").unwrap();
    logs.sync().unwrap();
    rig.kill(1);
    let lost = logs.append(file, b"!").and_then(|number| logs.wait_for(number)).unwrap_err();
    assert_eq!(lost.kind(), ErrorKind::Unavailable, "{lost}");
    assert!(lost.to_string().contains("of 3 copies are within reach"), "{lost}");
    assert!(lost.to_string().contains("peers are registered; "), "it says why: {lost}");
    drop(logs);
    // The one that is left has all, but nobody can know that: nothing empty or shorter is shown.
    let logs = Logs::start(options, Box::new(rig.store.clone())).unwrap();
    let error = logs.wait_until_ready().unwrap_err();
    assert!(error.to_string().contains("1 of 3 copies are within reach"), "{error}");
    assert!(logs.list("").is_err());
}

/// docs/faults.md: N5
#[test]
fn a_run_with_a_smaller_f_recovers_from_a_majority_of_the_copies_that_there_were() {
    let mut rig = Rig::new(Way::SharedMemory, 5);
    let mut options = rig.after_a_run_with(2);
    let logs = rig.open(options.clone());
    assert_eq!(bytes(&logs, "a.log"), b"kept");
    assert_eq!(logs.status().unwrap().0.map.members.len(), 3);
    std::mem::forget(logs);
    options.core.f = 2;
    std::mem::forget(rig.open(options.clone()));
    (0..3).for_each(|index| rig.kill(index));
    (options.core.f, options.core.on_loss) = (1, OnLoss::FailAfter(300));
    // Two copies of five would be enough for three peers, and may both lack what was acknowledged.
    let logs = Logs::start(options, Box::new(rig.store.clone())).unwrap();
    let error = logs.wait_until_ready().unwrap_err();
    assert!(error.to_string().contains("2 of 5 copies are within reach"), "{error}");
    assert!(error.to_string().contains("3 are needed"), "{error}");
}

/// The instance meets seven copies and wants three.
#[test]
fn a_run_that_wants_far_fewer_copies_lets_the_others_go() {
    let rig = Rig::new(Way::SharedMemory, 7);
    let logs = rig.open(rig.after_a_run_with(3));
    assert_eq!(bytes(&logs, "a.log"), b"kept");
    keep(&logs, "b.log", b"more");
    // Two of the three suffice for all this; the others go with the third.
    until("the others go", || {
        let (status, counts) = logs.status().unwrap();
        (status.map.members.len(), counts.connected) == (3, 3)
    });
}

/// docs/faults.md: N6
#[test]
fn regions_that_nobody_names_any_more_are_freed_by_their_peer() {
    let mut rig = Rig::new(Way::Tcp, 4);
    let logs = rig.open(rig.options());
    logs.create("a.log", Metadata::default()).unwrap();
    let used = |rig: &Rig, index: usize| {
        let (server, _) = rig.peers[index].as_ref().unwrap();
        server.with(|peer| peer.usage().regions).unwrap()
    };
    let free_leaks = |rig: &mut Rig, index: usize| {
        let (server, registrar) = rig.peers[index].as_mut().unwrap();
        registrar.free_leaks(server).unwrap()
    };
    let with: Vec<usize> = (0..4).filter(|index| used(&rig, *index) > 0).collect();
    assert_eq!(with.len(), 3);
    for index in &with {
        assert_eq!(free_leaks(&mut rig, *index), 0, "peer {index} has what the map names");
    }
    // A peer says that it is to end: it is replaced, and has its regions for nothing.
    let (server, _) = rig.peers[with[0]].as_ref().unwrap();
    server.with(gabion_media::remote::Peer::drain).unwrap();
    until("another has the copy", || {
        (0..4).all(|index| index == with[0] || used(&rig, index) > 0)
            && logs.status().unwrap().0.copies == 3
    });
    until("its regions are known to be nobody's", || free_leaks(&mut rig, with[0]) > 0);
    assert_eq!(used(&rig, with[0]), 0);
}

#[test]
fn many_threads_write_at_once() {
    for way in [Way::Tcp, Way::SharedMemory] {
        let rig = Rig::new(way, 3);
        let logs = rig.open(rig.options());
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let logs = &logs;
                scope.spawn(move || {
                    let name = format!("{thread}.log");
                    let file = logs.create(&name, Metadata::default()).unwrap();
                    for at in 0..300u64 {
                        let number = logs.append(file, &at.to_le_bytes()).unwrap();
                        logs.wait_for(number).unwrap();
                    }
                });
            }
        });
        std::mem::forget(logs);
        let next = rig.open(rig.options());
        for thread in 0..8 {
            let expected: Vec<u8> = (0..300u64).flat_map(u64::to_le_bytes).collect();
            assert!(bytes(&next, &format!("{thread}.log")) == expected, "{way:?}");
        }
    }
}

#[test]
fn a_peer_that_registers_again_is_one_record_and_an_earlier_run_of_it_is_told() {
    let mut rig = Rig::new(Way::Tcp, 1);
    let (_, mut former) = rig.peers[0].take().unwrap();
    rig.start(0);
    let mut store = rig.store.clone();
    let listed = store.list("ncl/peers/").unwrap();
    assert_eq!(listed.len(), 1);
    assert_eq!(PeerRecord::decode(&listed[0].1.value).unwrap().incarnation, Incarnation(2));
    let error = former.withdraw().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Fenced, "{error}");
    let (_, registrar) = rig.peers[0].as_mut().unwrap();
    registrar.withdraw().unwrap();
    let listed = store.list("ncl/peers/").unwrap();
    let record = PeerRecord::decode(&listed[0].1.value).unwrap();
    assert_eq!((record.free_bytes, record.address.as_str()), (0, ""));
}

#[test]
fn the_interposers_store_has_names_of_any_bytes_and_exchanges_two() {
    use gabion_mirror::files::{LogFiles, Metadata, NameChange};
    let rig = Rig::new(Way::SharedMemory, 3);
    let mut files = PeerFiles::new(Arc::new(rig.open(rig.options())));
    assert_eq!(files.recover().unwrap(), []);
    let metadata = Metadata { mode: 0o640, user: 3, group: 4 };
    let one = files.create(b"a\xff", metadata).unwrap();
    let two = files.create(b"b%", metadata).unwrap();
    files.pwrite(one, 0, b"one").unwrap();
    files.pwrite(two, 2, b"two").unwrap();
    files.sync().unwrap();
    let changes = [NameChange::Set(b"b%".to_vec(), one), NameChange::Set(b"a\xff".to_vec(), two)];
    files.edit_names(&changes).unwrap();
    files.truncate(one, 2).unwrap();
    files.sync().unwrap();
    let mut next = PeerFiles::new(Arc::new(rig.open(rig.options())));
    let found = next.recover().unwrap();
    let named = |name: &[u8]| found.iter().find(|it| it.names == [name.to_vec()]).unwrap();
    assert_eq!((named(b"b%").file, named(b"b%").len), (one, 2));
    assert_eq!((named(b"a\xff").file, named(b"a\xff").len), (two, 5));
    assert_eq!(named(b"b%").metadata, metadata);
    let mut read = [9; 5];
    assert_eq!(next.read(two, 0, &mut read).unwrap(), 5);
    assert_eq!(&read, b"\0\0two");
    next.edit_names(&[NameChange::Remove(b"b%".to_vec())]).unwrap();
    assert_eq!(next.recover().unwrap().len(), 1);
}

#[test]
fn names_that_are_too_long_are_refused_and_nothing_ends() {
    use gabion_mirror::files::{LogFiles, Metadata, NameChange};
    let rig = Rig::new(Way::SharedMemory, 3);
    let mut files = PeerFiles::new(Arc::new(rig.open(rig.options())));
    files.recover().unwrap();
    let metadata = Metadata { mode: 0o640, user: 3, group: 4 };
    let file = files.create(&[b'%'; 1_365], metadata).unwrap();
    // Three bytes each.
    let long = [b'%'; 1_366];
    let changes = [NameChange::Set(long.to_vec(), file)];
    let refused = [
        files.create(&long, metadata).map(|_| ()),
        files.prepare_names(&changes),
        files.edit_names(&changes),
        // 33 of the longest names fill a record.
        files.prepare_names(
            &(0..33)
                .map(|number| NameChange::Set([&[b'a'; 4_093], &[number][..]].concat(), file))
                .collect::<Vec<_>>(),
        ),
    ];
    for refused in refused {
        assert_eq!(refused.unwrap_err().kind(), std::io::ErrorKind::InvalidInput);
    }
    let changes = [NameChange::Set(b"short".to_vec(), file)];
    files.prepare_names(&changes).unwrap();
    files.edit_names(&changes).unwrap();
    files.sync().unwrap();
}

/// A program changes the memory itself and the store is told afterwards: that memory is the mirror.
#[test]
fn memory_that_a_program_changes_is_what_the_next_instance_has() {
    use gabion_mirror::files::{LogFiles, Metadata};
    use std::os::unix::fs::FileExt;
    let rig = Rig::new(Way::SharedMemory, 3);
    let open = || {
        let options = rig.options();
        PeerFiles::new(Arc::new(rig.open(LogsOptions { has_program: true, ..options })))
    };
    let mut files = open();
    let metadata = Metadata { mode: 0o640, user: 3, group: 4 };
    let file = files.create(b"a", metadata).unwrap();
    let memory = files.memory(file).unwrap().unwrap();
    memory.write_all_at(b"abcdef", 0).unwrap();
    files.pwrite(file, 0, b"abc").unwrap();
    assert_eq!(memory.metadata().unwrap().len(), 6, "the store changes nothing of it");
    files.sync().unwrap();
    let mut next = open();
    assert_eq!(next.recover().unwrap()[0].len, 3, "of the other bytes nobody told");
    let mut found = [0; 8];
    let memory = next.memory(file).unwrap().unwrap();
    assert_eq!((memory.read_at(&mut found, 0).unwrap(), &found[..3]), (3, &b"abc"[..]));
    let mut own = PeerFiles::new(Arc::new(rig.open(rig.options())));
    assert!(own.memory(file).unwrap().is_none(), "a reader has its own");
    assert_eq!((own.read(file, 0, &mut found).unwrap(), &found[..3]), (3, &b"abc"[..]));
}

/// Copies of many turns: to a new peer while records go on, and at a start out of mapped regions.
#[test]
fn a_log_of_many_turns_is_copied_to_a_new_peer_while_records_go_on_and_recovered() {
    for way in [Way::SharedMemory, Way::Tcp] {
        let mut rig = Rig::new(way, 4);
        let logs = rig.open(rig.options());
        let file = logs.create("a.log", Metadata::default()).unwrap();
        let mut expected: Vec<u8> = (0..12 * MIB).map(|at| ((at * 31) >> 5) as u8).collect();
        logs.write(file, 0, &expected).unwrap();
        logs.sync().unwrap();
        let lost = logs.status().unwrap().0.map.members[0].peer.0 as usize - 1;
        rig.kill(lost);
        until("the copy is there", || {
            let number = logs.append(file, &[7; 100]).unwrap();
            logs.wait_for(number).unwrap();
            expected.extend([7; 100]);
            let (status, counts) = logs.status().unwrap();
            counts.losses > 0 && status.copies == 3
        });
        std::mem::forget(logs);
        let logs = rig.open(rig.options());
        assert!(bytes(&logs, "a.log") == expected, "{way:?}: other bytes");
    }
}

/// The record of a number: it goes to one of two files, and round and round in it.
fn record(number: u64) -> (usize, u64, Vec<u8>) {
    let bytes = number.to_le_bytes().repeat(RECORD_LEN / 8);
    (number as usize % 2, number / 2 % SLOTS * RECORD_LEN as u64, bytes)
}

/// Large enough that its data and its cell are far apart in time.
const RECORD_LEN: usize = 96_000;
const SLOTS: u64 = 20;

/// A take-over amid synced records of two files, whose gates close one after the other.
#[test]
fn an_instance_that_is_replaced_amid_large_writes_leaves_what_was_acknowledged() {
    let rig = Rig::new(Way::SharedMemory, 3);
    for round in 0..6u64 {
        let (first, second) = (rig.open(rig.options()), rig.options());
        let names = [format!("{round}-x.log"), format!("{round}-y.log")];
        let files = [0, 1].map(|at: usize| first.create(&names[at], Metadata::default()).unwrap());
        let acknowledged = AtomicU64::new(0);
        let next = std::thread::scope(|scope| {
            scope.spawn(|| {
                for number in 0.. {
                    let (file, offset, bytes) = record(number);
                    let written = first.write(files[file], offset, &bytes);
                    if written.and_then(|number| first.wait_for(number)).is_err() {
                        return;
                    }
                    acknowledged.store(number + 1, Ordering::SeqCst);
                }
            });
            std::thread::sleep(Duration::from_millis(20 + 7 * round));
            rig.open(second)
        });
        let found = names.each_ref().map(|name| bytes(&next, name));
        // The one that was under way is there whole, in part or not.
        let end = acknowledged.load(Ordering::SeqCst);
        let begin = end.saturating_sub(2 * SLOTS - 1);
        for number in begin..end {
            let (file, offset, bytes) = record(number);
            let there = found[file].get(offset as usize..offset as usize + RECORD_LEN);
            assert!(there == Some(&bytes[..]), "round {round}: record {number} of {end}");
        }
        names.iter().for_each(|name| next.unlink(name).unwrap());
    }
}

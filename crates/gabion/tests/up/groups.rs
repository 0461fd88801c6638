//! Keys that are spread over several groups.

use super::{PATIENCE, Place, kill, said};
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

const KEYS: usize = 60;

/// A place where the ports of three groups are free: above those that other tests take, which are
/// so close together that further doors of one would be the first of another, and below those that
/// the system gives to whoever connects.
fn place(name: &str) -> Place {
    let is_free = |port: u16| TcpListener::bind(("127.0.0.1", port)).is_ok();
    let mut place = Place::new(name);
    // Tests beside each other look for ports far apart, as none holds those that it has found.
    static PLACES: AtomicU16 = AtomicU16::new(0);
    let first = (std::process::id() % 250) as u16 + 60 * PLACES.fetch_add(1, Ordering::SeqCst);
    let firsts = (0..250).map(|step| 30_600 + (first + step) % 250 * 4);
    for port in firsts {
        place.port = port;
        let of_group = [0, 1, 2, 50, 51, 52, 100, 101, 102, 200, 201, 202];
        let mut ports =
            [0, 400, 800].iter().flat_map(|group| of_group.map(|above| place.port + group + above));
        if ports.all(is_free) {
            return place;
        }
    }
    panic!("no ports are free for three groups");
}

/// Repeats a command at a door until this is the reply.
fn insist(place: &Place, door: u16, command: &str, expected: &str) {
    let begun = Instant::now();
    loop {
        let reply = place.resp(door, command);
        if reply == expected {
            return;
        }
        assert!(begun.elapsed() < PATIENCE, "{command} at door {door}: {reply}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn has_all(place: &Place, door: u16) {
    for number in 0..KEYS {
        let value = number.to_string();
        insist(
            place,
            door,
            &format!("GET key-{number}"),
            &format!("${}\r\n{value}\r\n", value.len()),
        );
    }
    insist(place, door, "DBSIZE", &format!(":{KEYS}\r\n"));
}

/// Commands about all groups, or about one that is named.
fn all_groups_are_meant(place: &Place) {
    // A replica that has just come back has asked the tail nothing yet.
    let begun = Instant::now();
    let mut verified = place.run(&["verify"]);
    while !verified.status.success() && begun.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(20));
        verified = place.run(&["verify"]);
    }
    let text = said(&verified);
    assert!(verified.status.success() && text.contains("group 3: "), "{text}");
    let second = place.data.join("group-2").display().to_string();
    let program = super::GABION;
    let verified = Command::new(program).args(["verify", "--data", &second]).output().unwrap();
    assert!(verified.status.success(), "{}", said(&verified));
    assert!(!said(&verified).contains("group 3"), "{}", said(&verified));
}

/// All groups in one directory, from which as many are made again.
/// docs/faults.md: P9
#[test]
fn a_backup_of_several_groups_is_made_and_restored_as_one() {
    let from = place("groups-backup");
    let up = from.up(&["--groups", "3"]);
    (0..KEYS).for_each(|n| assert_eq!(from.resp(0, &format!("SET key-{n} {n}")), "+OK\r\n"));
    let dir = from.data.with_extension("backups").display().to_string();
    let backup = |of: &Place, words: &[&str]| {
        let made = of.run(&[&["backup", &dir[..]], words].concat());
        (made.status.code(), said(&made))
    };
    let looked = |words: &[&str]| Command::new(super::GABION).args(words).output().unwrap();
    for number in ["backup 1 of", "backup 2 of"] {
        let (code, told) = backup(&from, &[]);
        assert_eq!((code, told.matches(number).count()), (Some(0), 3), "{told}");
    }
    // One of one group has its own.
    let second = from.data.join("group-2").display().to_string();
    let refused = looked(&["backup", &dir, "--data", &second]);
    assert!(said(&refused).contains("is no directory of backups"), "{}", said(&refused));
    let verified = looked(&["backup", "verify", &dir]);
    assert_eq!(said(&verified).matches("all as it was written").count(), 3, "{}", said(&verified));
    up.signal("-TERM");
    assert_eq!(up.wait(), 0);

    let to = place("groups-restored");
    let restored = to.run(&["restore", &dir, "--port", &to.port.to_string()]);
    assert!(said(&restored).contains("9 replicas of backup 2"), "{}", said(&restored));
    let up = to.up(&[]);
    (0..3).for_each(|door| has_all(&to, door));
    up.signal("-TERM");
    assert_eq!(up.wait(), 0);

    // Backups of another group in the place of one of them.
    let [first, second, away] = ["group-1", "group-2", "away"].map(|it| Path::new(&dir).join(it));
    for (from, to) in [(&first, &away), (&second, &first), (&away, &second)] {
        std::fs::rename(from, to).unwrap();
    }
    let other = place("groups-misplaced");
    let refused = other.run(&["restore", &dir, "--port", &other.port.to_string()]);
    assert!(!refused.status.success(), "{}", said(&refused));
    assert!(said(&refused).contains("belong there"), "{}", said(&refused));
    // One that not all groups have is none.
    for (from, to) in [(&first, &away), (&second, &first), (&away, &second)] {
        std::fs::rename(from, to).unwrap();
    }
    std::fs::remove_file(second.join("000002.manifest")).unwrap();
    let restored = other.run(&["restore", &dir, "--port", &other.port.to_string()]);
    assert!(said(&restored).contains("9 replicas of backup 1"), "{}", said(&restored));
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn keys_are_spread_over_groups_which_go_on_one_by_one_when_a_process_is_killed() {
    let place = place("groups");
    let up = place.up(&["--groups", "3"]);
    for number in 0..KEYS {
        let door = (number % 3) as u16;
        assert_eq!(place.resp(door, &format!("SET key-{number} {number}")), "+OK\r\n");
    }
    for door in 0..3 {
        has_all(&place, door);
        let crossed = place.resp(door, "MSET key-1 1 key-2 2");
        assert_eq!(crossed, "-CROSSSLOT Keys in request don't hash to the same slot\r\n");
    }
    // Each group has keys, and each process has the head of one.
    let nodes = place.resp(0, "CLUSTER NODES");
    let masters: Vec<u16> = nodes
        .lines()
        .filter(|line| line.contains("master"))
        .map(|line| {
            let address = line.split([' ', '@']).nth(1).unwrap();
            address.rsplit(':').next().unwrap().parse().unwrap()
        })
        .collect();
    assert_eq!(masters, [place.port + 50, place.port + 401, place.port + 802], "{nodes}");
    for master in &masters {
        let size = place.resp(master - place.port, "DBSIZE");
        let size: usize = size[1..].trim().parse().unwrap();
        assert!((1..KEYS).contains(&size), "port {master}: {size} keys");
    }
    // All three groups lose a replica, the first one its head.
    kill(place.pids()[0], "-9");
    has_all(&place, 1);
    for number in 0..KEYS {
        insist(&place, 2, &format!("SET key-{number} {number}"), "+OK\r\n");
    }
    up.wait_for("group 3, replica 1 is back");
    has_all(&place, 0);
    let status = place.run(&["status"]);
    assert!(said(&status).contains("group 3\n"), "{}", said(&status));
    assert_eq!(place.status().len(), 9);
    all_groups_are_meant(&place);
    insist(&place, 2, "FLUSHALL", "+OK\r\n");
    insist(&place, 1, "DBSIZE", ":0\r\n");
    assert_eq!(place.resp(0, "SET kept yes"), "+OK\r\n");
    up.signal("-INT");
    assert_eq!(up.wait(), 0);
    let refused = place.run(&["up", "--groups", "2"]);
    let text = said(&refused);
    assert!(!refused.status.success() && text.contains("--groups 2"), "{text}");
    assert!(text.contains("was made with 3, and that is fixed"), "{text}");
    let up = place.up(&[]);
    insist(&place, 1, "GET kept", "$3\r\nyes\r\n");
    up.signal("-INT");
    assert_eq!(up.wait(), 0);
    let removed = place.run(&["destroy", "--yes"]);
    assert!(removed.status.success(), "{}", said(&removed));
    assert!(!place.data.exists(), "{}", said(&removed));
}

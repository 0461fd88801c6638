//! Keys that are spread over several groups.

use super::{PATIENCE, Place, kill, said};
use std::net::TcpListener;
use std::process::Command;
use std::time::{Duration, Instant};

const KEYS: usize = 60;

/// A place where the ports of three groups are free: above those that other tests take, which are
/// so close together that further doors of one would be the first of another, and below those that
/// the system gives to whoever connects.
fn place(name: &str) -> Place {
    let is_free = |port: u16| TcpListener::bind(("127.0.0.1", port)).is_ok();
    let mut place = Place::new(name);
    let first = (std::process::id() % 250) as u16;
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

/// Commands that would say that all is well, or that all is saved, and look at one group alone.
fn one_group_is_to_be_named(place: &Place) {
    let backups = place.data.with_extension("backups").display().to_string();
    for command in [&["verify"][..], &["backup", &backups]] {
        let refused = place.run(command);
        let text = said(&refused);
        assert!(!refused.status.success() && text.contains("has 3 groups"), "{text}");
    }
    let second = place.data.join("group-2").display().to_string();
    let program = super::GABION;
    let verified = Command::new(program).args(["verify", "--data", &second]).output().unwrap();
    assert!(verified.status.success(), "{}", said(&verified));
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
    one_group_is_to_be_named(&place);
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

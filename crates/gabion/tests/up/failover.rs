//! A group that loses a member serves without it, loses nothing that was acknowledged, and is whole
//! again by itself.

use super::logged::Logged;
use super::{PATIENCE, Place, Up, kill, logged, said};
use serde_json::Value;
use std::time::{Duration, Instant};

/// A client of the third replica's door.
fn client_of(place: &Place) -> Logged {
    Logged::start(([127, 0, 0, 1], place.port + 2).into())
}

/// Every write that was acknowledged is there.
fn has_all(place: &Place, door: u16, acknowledged: &[u64]) {
    logged::has_all(([127, 0, 0, 1], place.port + door).into(), acknowledged);
}

impl Place {
    fn group(&self) -> Value {
        let output = self.run(&["status", "--json"]);
        let value: Value = serde_json::from_slice(&output.stdout).expect("status is JSON");
        value["group"].clone()
    }

    /// Waits until all three are full members in a view that is carried out.
    fn is_whole(&self) {
        let begun = Instant::now();
        loop {
            let group = self.group();
            let full = group["replicas"].as_array().map_or(0, |replicas| {
                replicas.iter().filter(|it| it["state"] == "full" && it["lost"] == false).count()
            });
            if full == 3 && group["complete"] == true {
                return;
            }
            assert!(begun.elapsed() < PATIENCE, "it is not whole again: {group:#}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn writer(&self) -> u16 {
        self.group()["writer"].as_u64().expect("a writer") as u16
    }
}

fn heard(up: &Up) -> String {
    up.heard.borrow().join("\n")
}

/// docs/faults.md: R1
#[test]
fn a_head_that_hangs_is_done_without_and_nothing_is_lost() {
    let place = Place::new("head");
    let up = place.up(&[]);
    let client = client_of(&place);
    client.goes_on();
    assert_eq!(place.writer(), 1);
    // One that is stopped is not restarted: whatever goes on now goes on without it.
    let pid = place.pids()[0];
    kill(pid, "-STOP");
    up.wait_for("without replica 1 (replica 1: silent for");
    client.goes_on();
    assert_eq!(place.writer(), 2);
    // Writes move without a fault, too.
    let moved = place.run(&["failover"]);
    assert!(moved.status.success(), "{}", said(&moved));
    client.goes_on();
    assert_eq!(place.writer(), 3);
    let acknowledged = client.end();
    has_all(&place, 2, &acknowledged);
    let verify = place.run(&["verify"]);
    assert!(verify.status.success(), "{}\n{}", said(&verify), heard(&up));

    // The events are there while it runs, and afterwards.
    let told = said(&place.run(&["events"]));
    assert!(told.contains("told to have replica 3 take writes"), "{told}");
    kill(pid, "-9");
    up.wait_for("replica 1 starts again");
    up.signal("-TERM");
    assert_eq!(up.wait(), 0);
    let later = said(&place.run(&["events"]));
    assert!(later.starts_with(&told), "{told}\n{later}");
    let offline = place.run(&["verify", "--offline"]);
    assert!(offline.status.success(), "{}", said(&offline));
    let destroy = place.run(&["destroy", "--yes"]);
    assert!(destroy.status.success() && !place.data.exists(), "{}", said(&destroy));
}

/// docs/faults.md: R2, R5
#[test]
fn a_tail_that_is_left_alone_answers_reads_and_refuses_writes_until_the_others_are_back() {
    let place = Place::new("alone");
    let up = place.up(&[]);
    assert_eq!(place.resp(0, "SET kept 1"), "+OK\r\n");
    assert_eq!((place.writer(), place.group()["reader"].as_u64()), (1, Some(3)));
    // Those that are stopped are not restarted.
    let pids = place.pids();
    pids[..2].iter().for_each(|pid| kill(*pid, "-STOP"));
    up.wait_for("too few are left to take writes: waits for replica");
    let begun = Instant::now();
    while !place.resp(2, "GET kept").starts_with('$') {
        assert!(begun.elapsed() < PATIENCE, "the tail answers no reads: {:#}", place.group());
        std::thread::sleep(Duration::from_millis(20));
    }
    // Ten leases long.
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(3) {
        assert_eq!(place.resp(2, "GET kept"), "$1\r\n1\r\n");
        std::thread::sleep(Duration::from_millis(50));
    }
    let refused = place.resp(2, "SET kept 2");
    let reason = "1 full replicas are left, the group needs 2 to take writes";
    assert!(refused.starts_with('-') && refused.contains(reason), "{refused}");
    let status = said(&place.run(&["status"]));
    assert!(status.contains("(waits for members that are kept)"), "{status}");
    assert!(status.contains(": kept, lost"), "{status}");
    pids[..2].iter().for_each(|pid| kill(*pid, "-CONT"));
    place.is_whole();
    assert_eq!(place.resp(0, "SET kept 3"), "+OK\r\n");
    assert_eq!(place.resp(1, "GET kept"), "$1\r\n3\r\n");
    up.wait_for("is back");
}

/// docs/faults.md: R1
#[test]
fn a_head_that_was_killed_comes_back_whole() {
    let place = Place::new("killed-head");
    let up = place.up(&[]);
    let client = client_of(&place);
    client.goes_on();
    let pids = place.pids();
    kill(pids[0], "-9");
    client.goes_on();
    place.is_whole();
    // One that is stopped is not restarted: whatever goes on now goes on without it.
    let head = place.writer();
    assert_ne!(head, 3, "the door of the client: {}", heard(&up));
    let pid = place.pids()[usize::from(head) - 1];
    kill(pid, "-STOP");
    up.wait_for(&format!("without replica {head} (replica {head}: silent for"));
    client.goes_on();
    assert_ne!(place.writer(), head);
    kill(pid, "-9");
    up.wait_for(&format!("replica {head} is full"));
    place.is_whole();
    let acknowledged = client.end();
    has_all(&place, 2, &acknowledged);
    let verify = place.run(&["verify"]);
    assert!(verify.status.success(), "{}\n{}", said(&verify), heard(&up));
}

/// docs/faults.md: R11
#[test]
fn a_replica_whose_directory_is_gone_is_made_anew_and_filled_while_the_others_serve() {
    let place = Place::new("wiped");
    let up = place.up(&[]);
    let client = client_of(&place);
    client.goes_on();
    let head = place.writer();
    std::fs::remove_dir_all(place.data.join(format!("replica-{head}"))).unwrap();
    up.wait_for(&format!("replica {head}: its pool is gone; it is made anew, empty"));
    client.goes_on();
    // Left out and filled, or back before a controller on a busy machine had given it up.
    up.wait_for(&format!("replica {head} is back and has caught up"));
    place.is_whole();
    let acknowledged = client.end();
    has_all(&place, 2, &acknowledged);
    let verify = place.run(&["verify"]);
    assert!(verify.status.success(), "{}\n{}", said(&verify), heard(&up));

    // The same while nothing runs.
    up.signal("-TERM");
    assert_eq!(up.wait(), 0);
    std::fs::remove_dir_all(place.data.join("replica-2")).unwrap();
    let up = place.up(&[]);
    assert!(heard(&up).contains("replica 2: its pool is gone"), "{}", heard(&up));
    place.is_whole();
    has_all(&place, 1, &acknowledged);
}

/// docs/faults.md: R11
#[test]
fn a_pool_that_is_damaged_is_put_aside_and_filled_anew_where_the_others_are_whole() {
    let place = Place::new("damaged");
    let up = place.up(&[]);
    assert_eq!(place.resp(0, "SET colour green"), "+OK\r\n");
    up.signal("-TERM");
    assert_eq!(up.wait(), 0);
    // Superblocks stay, the placement log goes.
    let pool = place.data.join("replica-2/pool");
    let file = std::fs::File::options().write(true).open(&pool).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &vec![0xa5; 1 << 20], 64 << 10).unwrap();
    let up = place.up(&[]);
    for part in ["replica 2: its files are now", "replica 2: its pool is gone; it is made anew"] {
        if !heard(&up).contains(part) {
            up.wait_for(part);
        }
    }
    place.is_whole();
    // The users were put aside with the pool: the controller tells them anew.
    let begun = Instant::now();
    let mut colour = place.resp(1, "GET colour");
    while colour.starts_with("-LOADING") {
        assert!(begun.elapsed() < PATIENCE, "{colour}");
        colour = place.resp(1, "GET colour");
    }
    assert_eq!(colour, "$5\r\ngreen\r\n");
    let put_aside = std::fs::read_dir(&place.data).unwrap().filter(|entry| {
        let name = entry.as_ref().unwrap().file_name();
        name.to_string_lossy().starts_with("replica-2.broken-")
    });
    assert_eq!(put_aside.count(), 1);
    up.signal("-TERM");
    assert_eq!(up.wait(), 0);
    let destroy = place.run(&["destroy", "--yes"]);
    assert!(destroy.status.success() && !place.data.exists(), "{}", said(&destroy));
}

#[test]
fn a_spare_takes_over_for_a_replica_that_stays_away_and_operators_change_members() {
    let place = Place::new("spare");
    let up = place.up(&["--spare", "1", "--replace-after", "1s"]);
    assert_eq!(place.resp(0, "SET colour green"), "+OK\r\n");
    let pids = place.pids();
    assert_eq!(pids.len(), 4);
    kill(pids[2], "-STOP");
    up.wait_for("without replica 3");
    up.wait_for("replica 4 is full");
    kill(pids[2], "-CONT");
    place.is_whole();
    assert_eq!(place.resp(0, "GET colour"), "$5\r\ngreen\r\n");
    // 3 is the spare now, and comes back by hand.
    let begun = Instant::now();
    loop {
        let replaced = place.run(&["group", "replace", "4", "3"]);
        if replaced.status.success() {
            break;
        }
        assert!(begun.elapsed() < PATIENCE, "{}", said(&replaced));
        std::thread::sleep(Duration::from_millis(100));
    }
    up.wait_for("replica 4 leaves, as it was told to");
    place.is_whole();
    let refused = place.run(&["group", "remove", "7"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(said(&refused).contains("replica 7 is no member"), "{}", said(&refused));
    let removed = place.run(&["group", "remove", "1"]);
    assert!(removed.status.success(), "{}", said(&removed));
    let refused = place.run(&["group", "remove", "2"]);
    assert!(said(&refused).contains("needs 2 to take writes"), "{}", said(&refused));
    assert_eq!(place.resp(1, "GET colour"), "$5\r\ngreen\r\n");
    // Replica 1 runs, and is no member any more.
    let asked = place.run(&["cli", "get", "colour"]);
    assert!(said(&asked).contains("green"), "{}", said(&asked));
    let verify = place.run(&["verify"]);
    assert!(verify.status.success(), "{}\n{}", said(&verify), heard(&up));
}

#[test]
fn a_group_that_can_lose_nobody_says_so_and_one_that_compacts_everywhere_has_no_controller() {
    let place = Place::new("two");
    let up = place.up(&["--replicas", "2"]);
    assert!(heard(&up).contains("the loss of any replica stops writes"), "{}", heard(&up));
    drop(up);
    let place = Place::new("everywhere");
    let _up = place.up(&["--compaction", "every-replica"]);
    assert!(place.group().is_null());
    assert!(!place.data.join("control").exists());
    for words in [&["events"][..], &["failover"], &["group", "add", "4"], &["group"]] {
        let refused = place.run(words);
        assert!(said(&refused).contains("no controller looks after this group"), "{words:?}");
    }
    let refused = place.resp(0, "FAILOVER");
    assert!(refused.starts_with("-ERR FAILOVER needs a controller"), "{refused}");
}

#[test]
fn clients_ask_for_a_fail_over_as_they_do_of_redis() {
    let place = Place::new("asked");
    let up = place.up(&[]);
    assert_eq!(place.resp(0, "SET colour green"), "+OK\r\n");
    let target = format!("FAILOVER TO 127.0.0.1 {} TIMEOUT 5000", place.port + 2);
    assert_eq!(place.resp(1, &target), "-ERR FAILOVER is not valid when server is a replica.\r\n");
    assert_eq!(place.resp(0, "FAILOVER ABORT"), "-ERR No failover in progress.\r\n");
    let elsewhere = place.resp(0, "FAILOVER TO 127.0.0.1 1");
    assert_eq!(elsewhere, "-ERR FAILOVER target HOST and PORT is not a replica.\r\n");
    // The controller connects some moments after the group answers, and a busy machine may have a
    // replica look unwell for some.
    let begun = Instant::now();
    loop {
        let reply = place.resp(0, &target);
        if reply == "+OK\r\n" {
            break;
        }
        let is_soon = reply.starts_with("-ERR replica 3 ") || reply.contains("none is connected");
        assert!(begun.elapsed() < PATIENCE && is_soon, "{reply}");
        std::thread::sleep(Duration::from_millis(50));
    }
    up.wait_for("told to have replica 3 take writes");
    place.is_whole();
    assert_eq!(place.writer(), 3);
    assert_eq!(place.resp(0, "GET colour"), "$5\r\ngreen\r\n");
    let shown = said(&place.run(&["group"]));
    assert!(shown.contains("replica 3: full, takes writes (well)"), "{shown}");
}

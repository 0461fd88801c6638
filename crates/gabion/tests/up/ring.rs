//! The rings of replicas: the reports of `up`, `status`, `verify --offline` and `db` on a lost one,
//! and no loss after a clean stop.

use super::{PATIENCE, Place, Up, assert_gone, kill, said};
use serde_json::Value;
use std::time::Instant;

impl Place {
    fn ring(&self, replica: u32) -> std::path::PathBuf {
        self.data.join(format!("replica-{replica}/ring"))
    }

    fn set(&self, from: u32) {
        for n in from..from + 5 {
            assert_eq!(self.resp(0, &format!("SET key-{n} value-{n}")), "+OK\r\n");
        }
    }

    /// The last replica answers reads.
    fn has(&self, tail: u16, keys: u32) {
        for n in 0..keys {
            let expected = format!("${}\r\nvalue-{n}\r\n", format!("value-{n}").len());
            assert_eq!(self.resp(tail, &format!("GET key-{n}")), expected);
        }
    }

    fn kill(&self, up: Up) {
        let pids = self.pids();
        up.signal("-9");
        assert_gone(&pids);
        drop(up);
    }

    fn stop(up: Up) {
        up.signal("-TERM");
        assert_eq!(up.wait(), 0);
    }

    /// A replica's report on its ring once its fate is known.
    fn fate(&self, replica: usize) -> Value {
        let begun = Instant::now();
        loop {
            let ring = self.status()[replica - 1]["ring"].clone();
            if ring["fate"] != "open" {
                return ring;
            }
            assert!(begun.elapsed() < PATIENCE, "its fate stays open: {ring}");
        }
    }
}

/// docs/faults.md: P25
#[test]
fn after_a_clean_stop_a_single_replica_needs_no_ring() {
    let place = Place::new("ring-clean");
    for round in 0..2 {
        let up = place.up(&["--replicas", "1"]);
        place.has(0, 5 * round);
        assert_eq!(place.status()[0]["ring"], Value::Null);
        place.set(5 * round);
        Place::stop(up);
        let log = std::fs::read_to_string(place.data.join("replica-1/log")).unwrap();
        assert!(log.contains("stopped cleanly: the log is flushed up to "), "{log}");
        std::fs::remove_file(place.ring(1)).unwrap();
        // A mere look agrees that all is there.
        assert!(place.run(&["verify", "--offline"]).status.success());
        let got = place.run(&["db", "get", "key-4"]);
        assert!(got.status.success() && said(&got).contains("nothing is lost"), "{}", said(&got));
        assert!(said(&got).contains("value-4"), "{}", said(&got));
    }
    let up = place.up(&["--replicas", "1"]);
    place.has(0, 10);
    assert!(
        !up.heard.borrow().iter().any(|line| line.contains("its ring")),
        "nothing is to be told"
    );
}

/// The same words in all places, until the replica has been stopped cleanly.
/// docs/faults.md: P25
#[test]
fn after_a_kill_a_ring_that_is_missing_is_told_by_all_who_look() {
    let place = Place::new("ring-killed");
    let up = place.up(&["--replicas", "1"]);
    place.set(0);
    place.kill(up);
    std::fs::remove_file(place.ring(1)).unwrap();
    let finding = "its ring is missing, and it had not stopped cleanly: its log from @";
    let gone = "may be missing, as no other ring has it";
    let verified = place.run(&["verify", "--offline"]);
    let looked = place.run(&["db", "get", "key-1"]);
    for output in [&verified, &looked] {
        let text = said(output);
        assert!(text.contains(finding) && text.contains(gone), "{text}");
        assert_eq!(output.status.code(), Some(1), "{text}");
    }
    let opened = place.run(&["db", "open", "get", "key-1"]);
    assert!(!opened.status.success() && said(&opened).contains(finding), "{}", said(&opened));
    for round in 0..3 {
        let up = place.up(&["--replicas", "1"]);
        let heard = up.heard.borrow().join("\n");
        assert_eq!(heard.contains(finding) && heard.contains(gone), round < 2, "{round}: {heard}");
        let ring = place.fate(1);
        let status = said(&place.run(&["status"]));
        if round == 2 {
            assert_eq!((ring, status.contains("ring lost")), (Value::Null, false), "{status}");
            break;
        }
        assert_eq!(ring["fate"], "gone");
        assert!(ring["message"].as_str().unwrap().contains(finding), "{ring}");
        assert!(status.contains("replica 1: ring lost at "), "{status}");
        assert_eq!(place.resp(0, "GET key-1"), "$-1\r\n");
        match round {
            0 => place.kill(up),
            _ => Place::stop(up),
        }
    }
}

#[test]
fn a_group_that_was_stopped_cleanly_needs_no_rings() {
    let place = Place::new("ring-group-clean");
    for round in 0..2 {
        let up = place.up(&[]);
        place.has(2, 5 * round);
        place.set(5 * round);
        Place::stop(up);
        (1..=3).for_each(|replica| std::fs::remove_file(place.ring(replica)).unwrap());
        let verified = place.run(&["verify", "--offline"]);
        assert!(verified.status.success(), "{}", said(&verified));
    }
    let up = place.up(&[]);
    place.has(2, 10);
    assert!(
        !up.heard.borrow().iter().any(|line| line.contains("its ring")),
        "nothing is to be told"
    );
}

/// docs/faults.md: P25
#[test]
fn a_group_that_was_killed_fills_one_ring_from_others_and_says_that_all_are_lost() {
    let place = Place::new("ring-group-killed");
    let mut up = place.up(&[]);
    place.set(0);
    for lost in [1, 2, 3] {
        place.kill(up);
        std::fs::remove_file(place.ring(lost)).unwrap();
        up = place.up(&[]);
        let ring = place.fate(lost as usize);
        let source = ring["source"].as_u64().unwrap();
        assert!((1..=3).contains(&source) && source != u64::from(lost), "{ring}");
        assert_eq!(ring["fate"], "taken-over", "{ring}");
        // Before it is ready, or now.
        let is_it = |line: &String| line.contains("taken over from replica");
        if !up.heard.borrow().iter().any(is_it) {
            up.wait_for("taken over from replica");
        }
        place.has(2, 5);
    }
    place.kill(up);
    (1..=3).for_each(|replica| std::fs::remove_file(place.ring(replica)).unwrap());
    let up = place.up(&[]);
    for replica in 1..=3 {
        assert_eq!(place.fate(replica)["fate"], "gone");
    }
    assert_eq!(place.resp(2, "GET key-0"), "$-1\r\n");
    place.set(0);
    place.has(2, 5);
    Place::stop(up);
    let _up = place.up(&[]);
    place.has(2, 5);
    assert!((1..=3).all(|replica| place.fate(replica) == Value::Null));
}

/// A replica does not start over on a possible mix-up: it says so, and `up` with it.
/// docs/faults.md: P25
#[test]
fn the_ring_of_another_replica_is_refused_and_named_on_the_terminal() {
    let place = Place::new("ring-other");
    let up = place.up(&[]);
    place.set(0);
    place.kill(up);
    let own = place.data.join("own");
    std::fs::rename(place.ring(2), &own).unwrap();
    std::fs::copy(place.ring(3), place.ring(2)).unwrap();
    let port = place.port.to_string();
    let output = place.run(&["up", "--port", &port]);
    let text = said(&output);
    assert!(!output.status.success() && text.contains("is not the ring of this pool"), "{text}");
    assert!(text.contains("It had not stopped cleanly"), "{text}");
    for words in [&["verify", "--offline"][..], &["db", "--replica", "2", "get", "key-1"]] {
        let text = said(&place.run(words));
        assert!(text.contains("is not the ring of this pool"), "{text}");
    }
    std::fs::rename(&own, place.ring(2)).unwrap();
    let _up = place.up(&[]);
    place.has(2, 5);
}

/// docs/faults.md: P25
#[test]
fn a_second_signal_ends_a_stop_at_once() {
    let place = Place::new("ring-twice");
    let up = place.up(&["--replicas", "1"]);
    place.set(0);
    let pid = place.pids()[0];
    // It cannot write anything out while SIGSTOP holds it.
    kill(pid, "-STOP");
    up.signal("-TERM");
    up.wait_for("stopping 1 replica");
    up.wait_for("still writing out the log of replica 1; Ctrl-C again stops at once");
    up.signal("-TERM");
    up.wait_for("killed; the data stays in");
    assert_eq!(up.wait(), 128 + 15);
    let _up = place.up(&["--replicas", "1"]);
    place.has(0, 5);
}

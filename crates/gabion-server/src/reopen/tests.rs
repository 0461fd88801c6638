//! Replicas that are opened again while others go on, and what becomes of the commands that wait
//! meanwhile.

use crate::rig::{PATIENCE, Rig, group, text};
use crate::{BackendChoice, ExitReason};
use gabion_base::ErrorKind;
use gabion_host::replica::ReplicaFiles;
use gabion_node::AckLevel;
use std::time::Instant;

#[test]
fn one_replica_of_a_process_is_opened_again_while_another_goes_on_answering() {
    let groups = [7, 8].map(|number| group(number, 1, AckLevel::Replicated));
    let mut rig = Rig::new("reopen-two", &groups);
    let (mut first, mut second) = (rig.client(0), rig.client(1));
    rig.fill(&mut first);
    assert_eq!(rig.text(&mut first, &["SET", "key", "of the first"]), "+OK\r\n");
    assert_eq!(rig.insist(&mut second, &["SET", "key", "of the second"]), "+OK\r\n");
    let set = [
        ("gabion-compactions-max", "3"),
        ("gabion-value-compression", "zstd:4"),
        ("gabion-collection-rate", "2097152"),
    ];
    for (option, value) in set {
        assert_eq!(rig.text(&mut first, &["CONFIG", "SET", option, value]), "+OK\r\n");
    }
    let size = rig.text(&mut first, &["DBSIZE"]);
    // It comes in the turn in which the first closes.
    second.send(&["GET", "key"]);
    rig.reopen(0);
    assert_eq!(second.poll().as_ref().map(text).as_deref(), Some("$13\r\nof the second\r\n"));
    let held = ReplicaFiles::lock(&rig.dir.join("7-1"), BackendChoice::Auto).err().unwrap();
    assert_eq!(held.kind(), ErrorKind::Busy, "the lock stays: {held}");
    // A request and a connection that come while it is closed wait for it.
    first.send(&["GET", "key"]);
    let mut late = rig.client(0);
    late.send(&["GET", "key"]);
    while !rig.service(0).is_open() {
        assert_eq!(rig.text(&mut second, &["INCR", "counter"]).chars().next(), Some(':'));
    }
    for client in [&mut first, &mut late] {
        assert_eq!(text(&rig.receive(client)), "$12\r\nof the first\r\n");
    }
    assert_eq!(rig.text(&mut first, &["DBSIZE"]), size);
    for (option, value) in set {
        let now = rig.text(&mut first, &["CONFIG", "GET", option]);
        assert!(now.ends_with(&format!("\r\n{value}\r\n")), "what was set stays: {now}");
    }
    // And again, with what was written since.
    assert_eq!(rig.insist(&mut first, &["SET", "key", "again"]), "+OK\r\n");
    rig.reopen(0);
    rig.await_open(0);
    assert_eq!(rig.text(&mut late, &["GET", "key"]), "$5\r\nagain\r\n");
}

#[test]
fn a_write_that_waits_when_the_view_changes_is_told_that_nobody_knows() {
    let mut rig = Rig::new("reopen-view", &[group(7, 1, AckLevel::Durable)]);
    let mut client = rig.client(0);
    assert_eq!(rig.insist(&mut client, &["SET", "key", "old"]), "+OK\r\n");
    client.send(&["SET", "key", "new"]);
    rig.until("the write is in the log", |rig| !rig.service(0).replica.turns.open.is_empty());
    assert!(client.poll().is_none(), "it is not durable");
    rig.service(0).give_up_view();
    let reply = text(&rig.receive(&mut client));
    assert!(reply.starts_with("-UNKNOWN another configuration began"), "{reply}");
    assert_eq!(rig.text(&mut client, &["GET", "key"]), "$3\r\nnew\r\n");
    assert_eq!(rig.text(&mut client, &["SET", "key", "newer"]), "+OK\r\n");
}

#[test]
fn what_waits_when_its_replica_is_opened_again_is_unknown_in_the_log_and_else_begins_anew() {
    let mut rig = Rig::new("reopen-waits", &[group(7, 1, AckLevel::Durable)]);
    let (mut writer, mut watcher, mut getter) = (rig.client(0), rig.client(0), rig.client(0));
    rig.fill(&mut writer);
    rig.until("all is flushed", |rig| {
        rig.service(0).replica.node.borrow().tree().sealed_count() == 0
    });
    assert_eq!(rig.text(&mut watcher, &["WATCH", "key"]), "+OK\r\n");
    // One that has begun and waits for its key, one that reads the device, one that is in the log.
    rig.lock_for_ever("key-3");
    let mut reader = rig.client(0);
    reader.send(&["APPEND", "key-3", "x"]);
    getter.send(&["STRLEN", "key-4"]);
    writer.send(&["SET", "key", "new"]);
    rig.until("the write is in the log", |rig| !rig.service(0).replica.turns.open.is_empty());
    rig.reopen(0);
    let reply = text(&rig.receive(&mut writer));
    assert!(reply.starts_with("-UNKNOWN another configuration began"), "{reply}");
    assert_eq!(rig.text(&mut writer, &["GET", "key"]), "$3\r\nnew\r\n", "the ring has it");
    assert_eq!(text(&rig.receive(&mut getter)), ":65536\r\n");
    let appended = text(&rig.receive(&mut reader));
    // It has done nothing, and begins anew: at a replica that is still starting it is refused.
    match appended.starts_with("-TRYAGAIN") {
        true => assert_eq!(rig.text(&mut reader, &["STRLEN", "key-3"]), ":65536\r\n"),
        false => assert_eq!(appended, ":65537\r\n"),
    }
    assert_eq!(rig.text(&mut watcher, &["MULTI"]), "+OK\r\n");
    assert_eq!(rig.text(&mut watcher, &["PING"]), "+QUEUED\r\n");
    assert_eq!(rig.text(&mut watcher, &["EXEC"]), "*-1\r\n", "it may have changed");
}

#[test]
fn members_that_forward_to_a_replica_that_is_opened_again_are_answered_and_join_it_anew() {
    let mut rig = Rig::new("reopen-group", &[group(7, 2, AckLevel::Durable)]);
    let (mut at_head, mut at_tail) = (rig.client(0), rig.client(1));
    assert_eq!(rig.insist(&mut at_tail, &["SET", "key", "old"]), "+OK\r\n");
    assert_eq!(rig.insist(&mut at_head, &["GET", "key"]), "$3\r\nold\r\n");
    at_tail.send(&["SET", "key", "new"]);
    rig.until("the head has logged it", |rig| !rig.service(0).peer_replies.is_empty());
    rig.reopen(0);
    assert_eq!(text(&rig.receive(&mut at_tail)), "+OK\r\n", "it is found in the log, or made");
    rig.await_open(0);
    assert_eq!(rig.insist(&mut at_tail, &["GET", "key"]), "$3\r\nnew\r\n");
    assert_eq!(rig.insist(&mut at_tail, &["SET", "key", "newer"]), "+OK\r\n");
    // A read on its way to the tail waits until that is back.
    rig.reopen(1);
    at_head.send(&["GET", "key"]);
    assert_eq!(text(&rig.receive(&mut at_head)), "$5\r\nnewer\r\n");
    assert_eq!(rig.insist(&mut at_head, &["SET", "key", "newest"]), "+OK\r\n");
    assert_eq!(rig.insist(&mut at_tail, &["GET", "key"]), "$6\r\nnewest\r\n");
}

#[test]
fn a_replica_that_cannot_be_opened_again_ends_the_process_and_says_why() {
    let mut rig = Rig::new("reopen-lost", &[group(7, 1, AckLevel::Replicated)]);
    let mut client = rig.client(0);
    assert_eq!(rig.insist(&mut client, &["SET", "key", "value"]), "+OK\r\n");
    std::fs::remove_file(rig.dir.join("7-1/ring")).unwrap();
    rig.reopen(0);
    let begun = Instant::now();
    let ends = loop {
        if let Some(reason) = rig.server.turn(&mut rig.events).unwrap() {
            break reason;
        }
        assert!(begun.elapsed() < PATIENCE, "it goes on");
    };
    let ExitReason::Failed(error) = ends else { panic!("{ends:?}") };
    let text = error.to_string();
    assert!(text.contains("cannot be opened again") && text.contains("ring"), "{text}");
}

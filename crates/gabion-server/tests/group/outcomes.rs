//! A door tells its client what became of a write that another node was to make.

use crate::await_refusal;
use crate::support::{Client, Group, PATIENCE};
use gabion_node::AckLevel;
use gabion_resp::Reply;
use std::process::Command;
use std::time::{Duration, Instant};

/// Has a replica's process run on.
fn resume(group: &Group, id: u32) {
    let pid = group.pid(id).to_string();
    assert!(Command::new("kill").args(["-CONT", &pid]).status().unwrap().success());
}

/// Stops a replica's process. Its threads stop some time after the signal, so that is waited for.
fn pause(group: &Group, id: u32) {
    let pid = group.pid(id).to_string();
    assert!(Command::new("kill").args(["-STOP", &pid]).status().unwrap().success());
    let begun = Instant::now();
    while !is_stopped(&pid) {
        assert!(begun.elapsed() < PATIENCE, "replica {id} does not stop");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Whether the kernel says of every thread of a process that it is stopped (proc(5), `State`).
fn is_stopped(pid: &str) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let mut states = tasks.map(|task| std::fs::read_to_string(task.unwrap().path().join("status")));
    states.all(|status| status.is_ok_and(|text| text.contains("State:\tT")))
}

fn end_of_log(client: &mut Client) -> u64 {
    client.json(&["GABION", "STATUS"])["log"]["end"].as_u64().unwrap()
}

/// Has a write in the head's log that the tail, which is paused, does not acknowledge.
fn append_unacknowledged(group: &Group, client: &mut Client, words: &[&str]) {
    let mut head = group.client(1);
    pause(group, 3);
    let (begun, before) = (Instant::now(), end_of_log(&mut head));
    client.send(words);
    while end_of_log(&mut head) == before {
        assert!(begun.elapsed() < PATIENCE, "the write is not in the log");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// docs/faults.md: R1
#[test]
fn a_door_whose_head_dies_between_append_and_reply_hears_from_the_next_head_what_it_said() {
    let mut group = Group::start("outcomes-made", 3, AckLevel::Replicated);
    group.await_ready();
    let mut client = group.client(2);
    assert_eq!(client.text(&["INCR", "key"]), ":1\r\n");
    append_unacknowledged(&group, &mut client, &["INCR", "key"]);
    group.kill(1);
    resume(&group, 3);
    client.send(&["INCR", "key"]);
    group.start_replica(1);
    assert_eq!([client.receive(), client.receive()], [2, 3].map(Reply::Integer));
    assert_ne!(client.call(&["WAIT", "1", "0"]), Reply::Integer(0), "nothing is in doubt");
}

#[test]
fn a_door_whose_head_dies_between_append_and_reply_says_that_the_write_may_have_been_made() {
    let mut group = Group::start("outcomes-unknown", 3, AckLevel::Replicated);
    group.await_ready();
    let mut client = group.client(2);
    assert_eq!(client.text(&["SET", "key", "old"]), "+OK\r\n");
    append_unacknowledged(&group, &mut client, &["SET", "key", "new"]);
    group.kill(1);
    let Reply::Error(text) = client.receive() else { panic!("the write was not acknowledged") };
    let text = String::from_utf8_lossy(&text).into_owned();
    assert!(text.starts_with("UNKNOWN no head has told"), "{text}");
    assert_eq!(client.call(&["WAIT", "1", "0"]), Reply::Integer(0), "it is in doubt");
}

#[test]
fn a_client_waits_for_devices_and_for_more_replicas_than_there_are_as_long_as_it_says() {
    let group = Group::start("outcomes-waits", 2, AckLevel::Replicated);
    group.await_ready();
    let mut head = group.client(1);
    assert_eq!(head.text(&["SET", "key", "1"]), "+OK\r\n");
    assert_eq!(head.call(&["WAIT", "1", "0"]), Reply::Integer(1));
    let begun = Instant::now();
    assert_eq!(head.call(&["WAIT", "2", "300"]), Reply::Integer(1));
    assert!(begun.elapsed() >= Duration::from_millis(300), "it waits for a second one");
    // Nothing else has an idle group flush its log.
    let both = Reply::Array(vec![Reply::Integer(1); 2]);
    assert_eq!(head.call(&["WAITAOF", "1", "1", "0"]), both);
    let status = head.json(&["GABION", "STATUS"]);
    assert!(status["log"]["durable"].as_u64().unwrap() > 0, "{status}");
    // One that is gone waits for nothing, and its requests behind it are run.
    head.send(&["WAIT", "9", "0"]);
    drop(head);
    let mut tail = group.client(2);
    tail.send(&["WAIT", "9", "200"]);
    tail.send(&["SET", "key", "2"]);
    assert_eq!(tail.receive(), Reply::Integer(1));
    assert_eq!(tail.receive(), Reply::OK);
    let refused = tail.text(&["FAILOVER"]);
    assert!(refused.starts_with("-ERR FAILOVER is not valid"), "{refused}");
    let refused = group.client(1).text(&["FAILOVER"]);
    assert!(refused.starts_with("-ERR FAILOVER needs a controller"), "{refused}");
}

#[test]
fn a_door_whose_head_refuses_a_write_hands_on_the_refusal_and_nothing_is_in_doubt() {
    let mut group = Group::start("outcomes-not-made", 3, AckLevel::Replicated);
    group.await_ready();
    let mut client = group.client(2);
    assert_eq!(client.text(&["SET", "key", "old"]), "+OK\r\n");
    group.kill(3);
    let mut head = group.client(1);
    await_refusal(&mut head);
    let before = end_of_log(&mut head);
    let Reply::Error(text) = client.call(&["SET", "key", "new"]) else { panic!("it was made") };
    let text = String::from_utf8_lossy(&text).into_owned();
    assert!(text.starts_with("TRYAGAIN writes are refused"), "{text}");
    assert_ne!(client.call(&["WAIT", "1", "0"]), Reply::Integer(0), "nothing is in doubt");
    assert_eq!(end_of_log(&mut head), before, "nothing was written");
    group.start_replica(3);
    group.await_ready();
    assert_eq!(group.client(2).text(&["GET", "key"]), "$3\r\nold\r\n");
}

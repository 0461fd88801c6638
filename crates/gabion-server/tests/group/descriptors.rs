//! Replicas that may have few descriptors, and clients that are too many for them.

use super::fill;
use super::support::unprivileged::unprivileged;
use super::support::{Client, Group, PATIENCE};
use gabion_node::AckLevel;
use gabion_resp::Reply;
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use std::collections::BTreeSet;
use std::fs::File;
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A replica that may have so many descriptors; what it says goes to the file `log` in the group's directory.
fn limited(group: &Group, id: u32, limit: u32) -> Child {
    let replica = group.command(id);
    let log = File::create(group.dir.join(format!("log-{id}"))).unwrap();
    let mut command = Command::new("sh");
    let script = format!("ulimit -n {limit}; exec \"$0\" \"$@\"");
    command.args(["-c", &script]).arg(replica.get_program()).args(replica.get_args());
    command.envs(replica.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
    unprivileged(|| command.spawn().unwrap())
}

fn log(group: &Group, id: u32) -> String {
    std::fs::read_to_string(group.dir.join(format!("log-{id}"))).unwrap()
}

fn descriptors_of(process: u32) -> BTreeSet<usize> {
    let list = std::fs::read_dir(format!("/proc/{process}/fd")).unwrap();
    list.map(|entry| entry.unwrap().file_name().to_str().unwrap().parse().unwrap()).collect()
}

/// A connection that is answered. Until the replica has seen that earlier ones are gone, it may be told otherwise.
fn admitted(group: &Group, id: u32) -> Client {
    let begun = Instant::now();
    loop {
        let mut client = group.client(id);
        if client.call(&["PING"]) == Reply::simple("PONG") {
            return client;
        }
        assert!(begun.elapsed() < PATIENCE, "nobody is admitted");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Connects and says nothing; what it is told.
fn told(group: &Group, id: u32) -> Reply {
    Client::new(TcpStream::connect(("127.0.0.1", group.door(id))).unwrap()).receive()
}

/// Clients come until one is turned away. A descriptor that the replica had for a moment, for a
/// client that left or a file that it read, is taken by one that comes before it, which is kept.
fn until_turned_away(group: &Group, id: u32, kept: &mut Vec<Client>) {
    loop {
        let mut client = group.client(id);
        match client.call(&["PING"]) {
            reply if reply == Reply::simple("PONG") => kept.push(client),
            reply => return assert_eq!(reply, TOO_MANY),
        }
        assert!(kept.len() < 16, "nobody is turned away");
    }
}

const TOO_MANY: Reply = Reply::error("ERR max number of clients reached");

#[test]
fn with_few_descriptors_maxclients_follows_and_who_is_over_it_is_told() {
    let mut group = Group::start("descriptors", 3, AckLevel::Replicated);
    group.await_ready();
    let mut processes = Vec::new();
    for id in 1..=3 {
        group.stop(id);
    }
    for id in 1..=3 {
        let replica = limited(&group, id, 64);
        processes.push(replica.id());
        group.adopt(id, replica);
    }
    group.await_ready();
    for id in 1..=3 {
        let mut first = admitted(&group, id);
        let shown = first.text(&["CONFIG", "GET", "maxclients"]);
        let most: usize = shown.split("\r\n").nth(4).unwrap().parse().unwrap();
        assert!((4..=16).contains(&most), "{shown}");
        let said =
            format!("maxclients is {most} and not 20000: the process may have 64 descriptors");
        assert!(log(&group, id).contains(&said), "{}", log(&group, id));
        let mut clients: Vec<Client> = (1..most).map(|_| admitted(&group, id)).collect();
        assert_eq!(told(&group, id), TOO_MANY);
        // All that the replica does for itself goes on: members, flushes, statistics.
        fill(&mut first, &"v".repeat(1_000), 3_000);
        let status = first.status();
        assert!(status["counters"]["edits"].as_u64().unwrap() > 0, "{status}");
        assert!(clients.iter_mut().all(|client| client.call(&["PING"]) == Reply::simple("PONG")));
        let open = descriptors_of(processes[id as usize - 1]);
        assert!(open.len() < 64, "{open:?}");
        let rejected = first.text(&["INFO", "stats"]);
        assert!(!rejected.contains("rejected_connections:0\r\n"), "{rejected}");
        assert!(log(&group, id).contains("no more are accepted: maxclients is"));
        clients.pop();
        admitted(&group, id);
    }
}

#[test]
fn a_client_for_whom_there_is_no_descriptor_is_told_and_the_next_is_served_when_there_is() {
    let mut group = Group::start("no-descriptor", 1, AckLevel::Replicated);
    group.await_ready();
    group.stop(1);
    let replica = limited(&group, 1, 256);
    let process = replica.id();
    group.adopt(1, replica);
    group.await_ready();
    let mut first = admitted(&group, 1);
    let set_limit = |count: usize| {
        let limit = Rlimit { current: Some(count as u64), maximum: Some(256) };
        prlimit(Some(Pid::from_raw(process as i32).unwrap()), Resource::Nofile, limit).unwrap();
    };
    // The replica does not know that it may have no more than it has: none is free below the limit.
    let open = descriptors_of(process);
    set_limit((0..).find(|number| !open.contains(number)).unwrap());
    let mut kept = Vec::new();
    for _ in 0..100 {
        until_turned_away(&group, 1, &mut kept);
    }
    assert!(log(&group, 1).contains("no more are accepted: Too many open files"));
    assert_eq!(first.call(&["SET", "key", "value"]), Reply::OK);
    set_limit(256);
    assert_eq!(admitted(&group, 1).call(&["GET", "key"]), Reply::Bulk("value".into()));
}

#[test]
fn too_few_descriptors_for_a_replica_itself_end_it_with_a_sentence_that_says_how_many_it_needs() {
    let mut group = Group::start("too-few", 1, AckLevel::Replicated);
    group.await_ready();
    group.stop(1);
    for limit in [20, 40] {
        let status = limited(&group, 1, limit).wait().unwrap();
        let said = log(&group, 1);
        assert_eq!(status.code(), Some(78), "{said}");
        let sentence = format!("the process may have {limit} descriptors (ulimit -n), and needs ");
        assert!(said.starts_with(&sentence) && said.lines().count() == 1, "{said}");
    }
}

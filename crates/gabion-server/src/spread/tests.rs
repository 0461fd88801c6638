use super::{BACKLOG_MAX, NodeDoors, SpreadConfig};
use crate::commands::locks::KeySet;
use crate::commands::slots::slot_of;
use crate::commands::{Spread, Work};
use crate::rig::{Client, Rig, text};
use bytes::Bytes;
use gabion_base::ReplicaId;
use gabion_control::users::{Edit, UserRecord};
use gabion_replication::Member;
use gabion_resp::encode_request;
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::{Poll, Waker};

const KEYS: usize = 200;

fn key(number: usize) -> String {
    format!("key-{number:03}")
}

/// A rig of several groups, and a client at the common door.
fn rig(name: &str, groups: u32) -> (Rig, Client) {
    let mut rig = Rig::spread(name, groups);
    let mut client = rig.client(0);
    assert_eq!(rig.insist(&mut client, &["FLUSHALL"]), "+OK\r\n");
    (rig, client)
}

/// The first key that a group has.
fn key_of(group: usize, groups: u32) -> String {
    let spread = Spread::new(groups, 0).unwrap();
    (0..).map(key).find(|key| spread.group_of(slot_of(key.as_bytes())) == group).unwrap()
}

/// The keys that a whole SCAN gives, in the order of their coming.
fn scan(rig: &mut Rig, client: &mut Client) -> Vec<String> {
    let (mut keys, mut cursor) = (Vec::new(), "0".to_owned());
    loop {
        let reply = rig.text(client, &["SCAN", &cursor, "COUNT", "7"]);
        let mut words = reply.split("\r\n").filter(|word| !word.starts_with(['*', '$', '-']));
        cursor = words.next().unwrap().to_owned();
        keys.extend(words.filter(|word| !word.is_empty()).map(str::to_owned));
        if cursor == "0" {
            return keys;
        }
    }
}

fn doors(text: &str) -> NodeDoors {
    text.parse().unwrap()
}

#[test]
fn doors_are_told_as_text_and_anything_else_is_refused() {
    let at = |port| SocketAddr::from(([1, 2, 3, 4], port));
    let plain = NodeDoors { plain: at(7000), tls: None };
    let both = NodeDoors { plain: at(7000), tls: Some(at(7100)) };
    let wide = "[::1]:7000,tls:[::1]:7100";
    for (text, expected) in [("1.2.3.4:7000", plain), ("1.2.3.4:7000,tls:1.2.3.4:7100", both)] {
        assert_eq!(doors(text), expected);
        assert_eq!(expected.to_string(), text);
    }
    assert_eq!(doors(wide).to_string(), wide);
    for text in [
        "",
        "1.2.3.4",
        "a-name:7000",
        "1.2.3.4:70000",
        "1.2.3.4:7000 ",
        "1.2.3.4:7000,",
        "1.2.3.4:7000,tls:",
        "1.2.3.4:7000,1.2.3.4:7100",
        "1.2.3.4:7000,tls:a-name:7100",
        ",tls:1.2.3.4:7100",
        "1.2.3.4:7000,tls:1.2.3.4:7100,tls:1.2.3.4:7200",
    ] {
        let error = text.parse::<NodeDoors>().unwrap_err().to_string();
        assert!(error.contains(&format!("doors {text:?}")), "{error}");
    }
}

fn config(own: u32, listen: &str) -> SpreadConfig {
    SpreadConfig {
        spread: Spread::new(2, own).unwrap(),
        listen: doors(listen),
        doors: doors("10.0.0.1:7000"),
        others: [2, 3].map(|it| (ReplicaId(it), doors("10.0.0.9:7000"))).into(),
    }
}

#[test]
fn the_view_says_where_nodes_are_before_the_settings_and_a_node_knows_its_own_doors() {
    let config = config(0, "127.0.0.1:7000");
    let of = |replica: u32, told: &str| {
        let mut member = Member::new(ReplicaId(replica));
        member.addresses.clients = told.to_owned();
        config.doors_of(&member, ReplicaId(1)).map(|doors| doors.to_string())
    };
    let (told, known) = ("10.0.0.2:7000,tls:10.0.0.2:7100", "10.0.0.9:7000");
    assert_eq!(of(2, told).as_deref(), Some(told));
    assert_eq!(of(4, told).as_deref(), Some(told), "it came after the start");
    assert_eq!(of(3, "").as_deref(), Some(known));
    assert_eq!(of(3, "a-name:7000").as_deref(), Some(known), "names are not resolved");
    assert_eq!(of(4, ""), None);
    assert_eq!(of(1, told).as_deref(), Some("10.0.0.1:7000"));
}

#[test]
fn doors_that_do_not_fit_the_groups_place_are_refused() {
    let (plain, both) = ("127.0.0.1:70", "127.0.0.1:70,tls:127.0.0.1:71");
    let [a, b, c] = [70, 71, 72].map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
    let check = |own, listen, resp, tls| config(own, listen).check(resp, tls);
    for (own, listen, resp, tls) in [
        (0, plain, c, None),
        (0, plain, a, None),
        (0, plain, c, Some(b)),
        (0, both, c, Some(c)),
        (1, plain, a, None),
        (1, both, a, Some(b)),
    ] {
        assert!(check(own, listen, resp, tls).is_ok(), "{own} {listen} {resp} {tls:?}");
    }
    for own in [0, 1] {
        let error = check(own, both, a, None).unwrap_err().to_string();
        assert!(error.contains("listen on 127.0.0.1:71 for clients that use TLS"), "{error}");
        assert!(error.contains("has no certificate"), "{error}");
    }
    for (listen, resp, tls) in [(plain, c, None), (plain, a, Some(b)), (both, a, Some(c))] {
        let error = check(1, listen, resp, tls).unwrap_err().to_string();
        assert!(error.starts_with("group 2 of the cluster has but its own doors, "), "{error}");
    }
}

#[test]
fn clients_are_told_of_doors_other_than_those_that_listen() {
    let mut rig = Rig::spread_with("spread-told", 2, |config| {
        let spread = config.spread.as_mut().unwrap();
        spread.doors.plain.set_ip([10, 0, 0, 7].into());
    });
    let mut client = rig.client(0);
    assert_eq!(rig.insist(&mut client, &["FLUSHALL"]), "+OK\r\n");
    let port = rig.service(1).spread.as_ref().unwrap().listen.plain.port();
    let slots = rig.text(&mut client, &["CLUSTER", "SLOTS"]);
    assert!(slots.contains(&format!("$8\r\n10.0.0.7\r\n:{port}\r\n")), "{slots}");
    let there = key_of(1, 2);
    let mut at_first = rig.client_of_group(0);
    let moved = rig.text(&mut at_first, &["GET", &there]);
    let slot = slot_of(there.as_bytes());
    assert_eq!(moved, format!("-MOVED {slot} 10.0.0.7:{port}\r\n"));
}

#[test]
fn a_common_door_takes_any_command_and_answers_for_all_groups() {
    let (mut rig, mut client) = rig("spread-common", 3);
    for number in 0..KEYS {
        client.send(&["SET", &key(number), &number.to_string()]);
    }
    for number in 0..KEYS {
        assert_eq!(text(&rig.receive(&mut client)), "+OK\r\n", "{number}");
    }
    for number in 0..KEYS {
        let value = number.to_string();
        let expected = format!("${}\r\n{value}\r\n", value.len());
        assert_eq!(rig.text(&mut client, &["GET", &key(number)]), expected);
    }
    assert_eq!(rig.text(&mut client, &["DBSIZE"]), format!(":{KEYS}\r\n"));
    let mut sizes = Vec::new();
    for group in 0..3 {
        let mut client = rig.client_of_group(group);
        let size = rig.text(&mut client, &["DBSIZE"]);
        sizes.push(size[1..].trim().parse::<usize>().unwrap());
    }
    assert_eq!(sizes.iter().sum::<usize>(), KEYS, "{sizes:?}");
    assert!(sizes.iter().all(|size| *size > KEYS / 6), "{sizes:?}");
    let mut found = scan(&mut rig, &mut client);
    found.sort();
    assert_eq!(found, (0..KEYS).map(key).collect::<Vec<_>>());
    let range = rig.text(&mut client, &["RANGE", "key-005", "+", "LIMIT", "2"]);
    assert_eq!(range, "*4\r\n$7\r\nkey-005\r\n$1\r\n5\r\n$7\r\nkey-006\r\n$1\r\n6\r\n");
    let keys = rig.text(&mut client, &["KEYS", "key-01[0-1]"]);
    assert_eq!(keys, "*2\r\n$7\r\nkey-010\r\n$7\r\nkey-011\r\n");
    assert!(rig.text(&mut client, &["RANDOMKEY"]).contains("key-"));
    assert_eq!(rig.text(&mut client, &["FLUSHALL"]), "+OK\r\n");
    assert_eq!(rig.text(&mut client, &["DBSIZE"]), ":0\r\n");
    assert_eq!(rig.text(&mut client, &["RANDOMKEY"]), "$-1\r\n");
}

#[test]
fn commands_keep_to_one_slot_and_what_hash_tags_hold_together_runs_in_its_group() {
    let (mut rig, mut client) = rig("spread-slots", 2);
    let crossed = "-CROSSSLOT Keys in request don't hash to the same slot\r\n";
    let [here, there] = [0, 1].map(|group| key_of(group, 2));
    assert_eq!(rig.text(&mut client, &["MSET", &here, "1", &there, "2"]), crossed);
    for tag in [&here, &there] {
        let [a, b] = ["a", "b"].map(|name| format!("{{{tag}}}{name}"));
        assert_eq!(rig.text(&mut client, &["MSET", &a, "1", &b, "2"]), "+OK\r\n");
        assert_eq!(rig.text(&mut client, &["MULTI"]), "+OK\r\n");
        assert_eq!(rig.text(&mut client, &["INCR", &a]), "+QUEUED\r\n");
        assert_eq!(rig.text(&mut client, &["PING"]), "+QUEUED\r\n");
        assert_eq!(rig.text(&mut client, &["GET", &b]), "+QUEUED\r\n");
        let exec = rig.text(&mut client, &["EXEC"]);
        assert_eq!(exec, "*3\r\n:2\r\n+PONG\r\n$1\r\n2\r\n");
        // Another connection's write makes EXEC answer nil.
        assert_eq!(rig.text(&mut client, &["WATCH", &a]), "+OK\r\n");
        let mut other = rig.client(0);
        assert_eq!(rig.text(&mut other, &["SET", &a, "9"]), "+OK\r\n");
        rig.text(&mut client, &["MULTI"]);
        rig.text(&mut client, &["SET", &b, "lost"]);
        assert_eq!(rig.text(&mut client, &["EXEC"]), "*-1\r\n");
        assert_eq!(rig.text(&mut client, &["GET", &b]), "$1\r\n2\r\n");
        let script = "return redis.call('GET', KEYS[1])";
        assert_eq!(rig.text(&mut client, &["EVAL", script, "1", &a]), "$1\r\n9\r\n");
    }
    for commands in [[["GET", &here], ["GET", &there]], [["GET", &here], ["KEYS", "*"]]] {
        rig.text(&mut client, &["MULTI"]);
        for command in commands {
            assert_eq!(rig.text(&mut client, &command), "+QUEUED\r\n");
        }
        assert_eq!(rig.text(&mut client, &["EXEC"]), crossed);
    }
    // A WATCH that was refused has EXEC answer nil.
    assert_eq!(rig.text(&mut client, &["WATCH", &here, &there]), crossed);
    rig.text(&mut client, &["MULTI"]);
    rig.text(&mut client, &["GET", &here]);
    assert_eq!(rig.text(&mut client, &["EXEC"]), "*-1\r\n");
    let script = "return redis.call('SET', ARGV[1], 'x')";
    let stray = rig.text(&mut client, &["EVAL", script, "1", &here, &there]);
    assert!(stray.contains("non local key"), "{stray}");
    let all = rig.text(&mut client, &["EVAL", "return redis.call('DBSIZE')", "1", &here]);
    assert!(all.contains("access all keys"), "{all}");
}

#[test]
fn a_groups_door_is_a_node_of_a_cluster() {
    let (mut rig, mut client) = rig("spread-doors", 2);
    assert!(rig.text(&mut client, &["INFO", "cluster"]).contains("cluster_enabled:1"));
    let [here, there] = [0, 1].map(|group| key_of(group, 2));
    let slot = slot_of(there.as_bytes());
    assert_eq!(rig.text(&mut client, &["CLUSTER", "KEYSLOT", &there]), format!(":{slot}\r\n"));
    assert_eq!(rig.text(&mut client, &["SET", &there, "1"]), "+OK\r\n");
    let [first, second] =
        [0, 1].map(|place| rig.service(place).spread.as_ref().unwrap().doors.plain.port());
    let slots = rig.text(&mut client, &["CLUSTER", "SLOTS"]);
    assert!(slots.contains(&format!(":{first}\r\n")), "{slots}");
    assert!(slots.contains(&format!(":8192\r\n:16383\r\n*4\r\n$9\r\n127.0.0.1\r\n:{second}\r\n")));
    let mut at_first = rig.client_of_group(0);
    let moved = rig.text(&mut at_first, &["GET", &there]);
    assert_eq!(moved, format!("-MOVED {slot} 127.0.0.1:{second}\r\n"));
    let mut at_second = rig.client_of_group(1);
    assert_eq!(rig.text(&mut at_second, &["READONLY"]), "+OK\r\n");
    assert_eq!(rig.text(&mut at_second, &["GET", &there]), "$1\r\n1\r\n");
    assert_eq!(rig.text(&mut at_second, &["KEYS", "*"]), format!("*1\r\n$7\r\n{there}\r\n"));
    let moved = rig.text(&mut at_second, &["SET", &here, "1"]);
    assert!(moved.starts_with("-MOVED "), "{moved}");
    let ids: Vec<String> =
        [&mut at_first, &mut at_second].map(|it| rig.text(it, &["CLUSTER", "MYID"])).into();
    assert_ne!(ids[0], ids[1]);
}

#[test]
fn a_connection_that_goes_takes_along_what_stood_for_it_in_other_groups() {
    let (mut rig, client) = rig("spread-gone", 2);
    rig.until("it stands for one", |rig| rig.service(1).within.len() == 1);
    drop(client);
    rig.until("nothing stands for it", |rig| rig.service(1).within.is_empty());
    assert!(rig.service(1).clients.iter().all(Option::is_none));
}

#[test]
fn a_step_of_scan_that_is_held_back_goes_on_where_its_cursor_is() {
    let (mut rig, mut client) = rig("spread-held", 2);
    let locked: &'static str = key_of(0, 2).leak();
    rig.lock_for_ever(locked);
    rig.turn();
    // A read waits for a write before it, and that one for the lock.
    client.send(&["APPEND", locked, "1"]);
    client.send(&["SCAN", "8"]);
    let cursor = |rig: &mut Rig| {
        let clients = rig.service(0).clients.iter().flatten();
        let mut held = clients.filter_map(|client| client.held.as_ref());
        held.next().map(|held| match &held.work {
            Work::Call(call) => call.args()[1].clone(),
            _ => panic!("no call is held back"),
        })
    };
    rig.until("it is held back", |rig| cursor(rig).is_some());
    (0..5).for_each(|_| rig.turn());
    assert_eq!(cursor(&mut rig).as_deref(), Some(&b"4"[..]));
}

#[test]
fn users_who_go_at_two_groups_in_one_turn_lose_their_connections_at_both() {
    let (mut rig, mut first) = rig("spread-revoked", 2);
    let mut second = rig.client_of_group(1);
    let mut theirs = Vec::new();
    for user in ["alice", "bob"] {
        let rules = ["ACL", "SETUSER", user, "on", ">secret", "~*", "+@all"];
        assert_eq!(rig.text(&mut first, &rules), "+OK\r\n");
        let mut client = rig.client_of_group(1);
        assert_eq!(rig.text(&mut client, &["AUTH", user, "secret"]), "+OK\r\n");
        theirs.push(client);
    }
    first.send(&["ACL", "DELUSER", "alice"]);
    second.send(&["ACL", "DELUSER", "bob"]);
    assert_eq!(text(&rig.receive(&mut first)), ":1\r\n");
    assert_eq!(text(&rig.receive(&mut second)), ":1\r\n");
    rig.until("both are gone", |rig| rig.service(1).commands.clients_count() == 1);
}

#[test]
fn users_are_those_of_all_groups() {
    let (mut rig, mut client) = rig("spread-users", 2);
    let mut at_second = rig.client_of_group(1);
    let rules = ["ACL", "SETUSER", "alice", "on", ">secret", "~*", "+@all"];
    assert_eq!(rig.text(&mut client, &rules), "+OK\r\n");
    assert_eq!(rig.text(&mut at_second, &["AUTH", "alice", "secret"]), "+OK\r\n");
    assert_eq!(rig.text(&mut client, &["ACL", "DELUSER", "alice"]), ":1\r\n");
    rig.until("its connection ends", |rig| rig.service(1).commands.clients_count() == 0);
}

/// The lock of a key, which a task holds until it is told.
#[derive(Default)]
struct Lock {
    is_over: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

impl Lock {
    fn of(rig: &mut Rig, group: usize, key: &str) -> Rc<Self> {
        let lock = Rc::new(Self::default());
        let service = rig.service(group);
        let (commands, key, held) =
            (service.commands.clone(), Bytes::from(key.to_owned()), lock.clone());
        service.replica.executor.spawn(async move {
            let end = poll_fn(|cx| {
                held.waker.replace(Some(cx.waker().clone()));
                if held.is_over.get() { Poll::Ready(()) } else { Poll::Pending }
            });
            commands.locks.hold(|| KeySet::of([&key].into_iter()), end).await;
        });
        rig.turn();
        lock
    }

    fn end(&self) {
        self.is_over.set(true);
        self.waker.take().unwrap().wake();
    }
}

#[test]
fn a_group_that_stands_has_little_waiting_for_it_and_stops_nobody_else() {
    let (mut rig, mut other) = rig("spread-full", 2);
    let [here, there] = [0, 1].map(|group| key_of(group, 2));
    let lock = Lock::of(&mut rig, 1, &there);
    let value = "v".repeat(2 << 20);
    let mut requests = Vec::new();
    // A read waits for the write before it, and that one for the lock.
    encode_request(&["APPEND", &there, "1"], &mut requests);
    encode_request(&["GET", &there], &mut requests);
    const BEHIND: usize = 10;
    (0..BEHIND).for_each(|_| encode_request(&["SETNX", &there, &value], &mut requests));
    let mut senders: Vec<_> = (0..6).map(|_| (rig.client(0), requests.clone())).collect();
    let waiting = |rig: &mut Rig| rig.service(0).exchange.backlogs[1].bytes.get();
    let mut most = 0;
    for _ in 0..200 {
        senders.iter_mut().for_each(|(client, rest)| client.send_some(rest));
        rig.turn();
        most = most.max(waiting(&mut rig));
    }
    assert!(most > BACKLOG_MAX && most < BACKLOG_MAX + (3 << 20), "{most} bytes waited");
    assert!(senders.iter().any(|(_, rest)| !rest.is_empty()), "some were read to the end");
    assert_eq!(rig.text(&mut other, &["SET", &here, "1"]), "+OK\r\n");
    let mut late = rig.client(0);
    late.send(&["DBSIZE"]);
    (0..20).for_each(|_| rig.turn());
    assert!(late.poll().is_none(), "it is for all groups, one of which takes no more");
    // One that goes meanwhile leaves nothing behind.
    senders.truncate(5);
    lock.end();
    assert_eq!(text(&rig.receive(&mut late)), ":2\r\n");
    for (client, rest) in &mut senders {
        let mut replies = 0;
        rig.until("all is answered", |rig| {
            client.send_some(rest);
            while client.poll().is_some() {
                replies += 1;
            }
            let _ = rig;
            replies == BEHIND + 2
        });
    }
    rig.until("nothing waits", |rig| waiting(rig) == 0);
}

#[test]
fn connections_at_all_doors_of_the_process_are_counted_together() {
    let (mut rig, mut client) = rig("spread-many", 2);
    let mut second = rig.client_of_group(1);
    assert_eq!(rig.text(&mut second, &["PING"]), "+PONG\r\n");
    assert_eq!(rig.text(&mut second, &["CONFIG", "SET", "maxclients", "3"]), "+OK\r\n");
    let most = rig.text(&mut client, &["CONFIG", "GET", "maxclients"]);
    assert_eq!(most, "*2\r\n$10\r\nmaxclients\r\n$1\r\n3\r\n");
    let mut third = rig.client_of_group(0);
    assert_eq!(rig.text(&mut third, &["PING"]), "+PONG\r\n");
    let refused = "-ERR max number of clients reached\r\n";
    let doors = [rig.client(0), rig.client_of_group(0), rig.client_of_group(1)];
    for mut client in doors {
        assert_eq!(text(&rig.receive(&mut client)), refused);
    }
    // Clients within take no place, and one that goes makes room at all doors.
    assert!(!rig.service(1).within.is_empty());
    drop(second);
    rig.until("it is gone", |rig| rig.service(0).host.seats.taken() == 2);
    let mut fourth = rig.client(0);
    assert_eq!(rig.text(&mut fourth, &["PING"]), "+PONG\r\n");
}

#[test]
fn a_common_door_knows_the_connections_of_all_groups_and_a_groups_door_its_own() {
    let (mut rig, mut client) = rig("spread-clients", 2);
    let mut second = rig.client_of_group(1);
    let mut ids = Vec::new();
    for (client, name) in [(&mut client, "first"), (&mut second, "second")] {
        assert_eq!(rig.text(client, &["CLIENT", "SETNAME", name]), "+OK\r\n");
        ids.push(rig.text(client, &["CLIENT", "ID"])[1..].trim().to_owned());
    }
    assert_ne!(ids[0], ids[1]);
    let names = |list: &str| {
        let names = list.split(' ').filter_map(|word| word.strip_prefix("name="));
        names.map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(names(&rig.text(&mut client, &["CLIENT", "LIST"])), ["first", "second"]);
    assert_eq!(names(&rig.text(&mut client, &["CLIENT", "LIST", "ID", &ids[1]])), ["second"]);
    assert_eq!(names(&rig.text(&mut second, &["CLIENT", "LIST"])), ["second"]);
    assert_eq!(rig.text(&mut second, &["CLIENT", "KILL", "ID", &ids[0]]), ":0\r\n");
    assert_eq!(rig.text(&mut client, &["CLIENT", "KILL", "ID", &ids[1]]), ":1\r\n");
    rig.until("it is closed", |rig| rig.service(1).commands.clients_count() == 0);
    let _third = rig.client_of_group(1);
    rig.until("it is there", |rig| rig.service(1).commands.clients_count() == 1);
    let list = rig.text(&mut client, &["CLIENT", "LIST"]);
    let address = |word: &'_ str| word.strip_prefix("addr=").map(str::to_owned);
    let address = list.split(' ').filter_map(address).next_back().unwrap();
    assert_eq!(rig.text(&mut client, &["CLIENT", "KILL", &address]), "+OK\r\n");
    rig.until("it is closed", |rig| rig.service(1).commands.clients_count() == 0);
    assert_eq!(rig.text(&mut client, &["PING"]), "+PONG\r\n");
    let said = rig.text(&mut client, &["CONFIG", "GET", "cluster-enabled"]);
    assert_eq!(said, "*2\r\n$15\r\ncluster-enabled\r\n$3\r\nyes\r\n");
}

#[test]
fn users_that_a_controller_tells_one_group_are_those_of_all_and_are_kept_in_the_first_ones_file() {
    let mut rig = Rig::spread_with("spread-told-users", 2, |config| {
        config.security.users_kept = Some(config.data.join("users"));
    });
    let rules = b"on nopass ~* &* +@all".to_vec();
    let edit = |expected, rules| [Edit { name: b"alice".to_vec(), expected, rules }];
    let with = UserRecord::default().changed(&edit(None, Some(rules.clone()))).unwrap().unwrap();
    let without = with.changed(&edit(Some(rules), None)).unwrap().unwrap();
    rig.service(1).take_users(0, with);
    let mut client = rig.client(0);
    assert_eq!(rig.text(&mut client, &["AUTH", "alice", "any"]), "+OK\r\n");
    rig.service(1).take_users(0, without.clone());
    rig.until("its connection ends", |rig| rig.service(0).commands.clients_count() == 0);
    // The other group hears the same, which changes nothing.
    rig.service(0).take_users(0, without.clone());
    let files = [1, 2].map(|group| rig.dir.join(format!("{group}-1/users")));
    let kept = |at: usize| crate::users::read(&files[at]).unwrap();
    rig.until("they are kept", |_| kept(0).as_ref() == Some(&without));
    assert_eq!(kept(1), None);
}

#[test]
fn a_replica_that_has_not_been_told_its_users_lets_nobody_in_and_says_why() {
    let mut rig = Rig::spread_with("spread-untold-users", 2, |config| {
        config.security.users_kept = Some(config.data.join("users"));
    });
    let mut client = rig.client(0);
    for words in [
        &["GET", "k"][..],
        &["AUTH", "any"],
        &["AUTH", "default", "any"],
        &["HELLO", "3"],
        &["HELLO", "3", "AUTH", "default", "any"],
        &["FLUSHALL"],
    ] {
        let reply = rig.text(&mut client, words);
        assert!(reply.starts_with("-LOADING the controller has yet to tell"), "{words:?}: {reply}");
    }
    rig.service(0).take_users(0, UserRecord::default());
    assert_eq!(rig.text(&mut client, &["GET", "k"]), "$-1\r\n");
}

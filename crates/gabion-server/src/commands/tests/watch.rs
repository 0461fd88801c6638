//! WATCH: what makes EXEC do nothing, and what does not.

use super::support::{Client, FixedHost, Node, request, request_of};
use crate::commands::{Step, Work};
use core::future::Future;
use core::task::{Context, Poll, Waker};
use gabion_resp::{Excess, Reply, TooLarge};

const NIL: &str = "*-1\r\n";
const PONG: &str = "*1\r\n+PONG\r\n";

/// MULTI, the command, EXEC.
fn exec(client: &mut Client, line: &str) -> String {
    assert_eq!(client.ask("MULTI"), "+OK\r\n");
    client.ask(line);
    client.ask("EXEC")
}

/// What EXEC says after `before`, WATCH of `watched`, and `between` by another connection.
fn outcome(before: &[&str], watched: &str, between: &[&str]) -> String {
    let node = Node::new();
    let (mut client, mut other) = (node.client(), node.client());
    before.iter().for_each(|line| drop(other.ask(line)));
    assert_eq!(client.ask(&format!("WATCH {watched}")), "+OK\r\n");
    between.iter().for_each(|line| drop(other.ask(line)));
    exec(&mut client, "PING")
}

#[test]
fn exec_does_nothing_when_a_watched_key_was_written_to() {
    for between in [
        "SET x 1",
        "SET x new",
        "MSET a 1 x 2",
        "INCR x",
        "DEL x",
        "GETDEL x",
        "EXPIRE x 100",
        "SET x 1 EX 100",
        "PEXPIREAT x 1",
        "FLUSHALL",
        "FLUSHDB",
    ] {
        assert_eq!(outcome(&["SET x 1"], "a x b", &[between]), NIL, "{between}");
    }
    assert_eq!(outcome(&[], "x", &["SET x 1", "DEL x"]), NIL, "it was there for a while");
    assert_eq!(outcome(&["SET x 1"], "x", &["MULTI", "DEL x", "SET x 1", "EXEC"]), NIL);
}

#[test]
fn exec_runs_when_no_watched_key_was_written_to() {
    for (before, between) in [
        ("SET x 1", "SET y 1"),
        ("SET x 1", "GET x"),
        ("SET x 1", "SET x 2 NX"),
        ("SET x 1", "SET x 2 IFEQ 3"),
        ("SET x 1", "APPEND none ''"),
        ("SET x a", "INCR x"),
        ("DEL x", "DEL x"),
        ("DEL x", "FLUSHALL"),
        ("DEL x", "EXPIRE x 10"),
        ("SET x 1", "PERSIST x"),
        ("SET x 1", "WATCH x"),
    ] {
        assert_eq!(outcome(&[before], "x", &[between]), PONG, "{before}; {between}");
    }
}

#[test]
fn one_exec_discard_unwatch_or_reset_ends_the_watch() {
    let node = Node::new();
    let (mut client, mut other) = (node.client(), node.client());
    for end in
        ["UNWATCH", "MULTI;DISCARD", "MULTI;EXEC", "RESET", "MULTI;NOPE;EXEC", "MULTI;EXEC x"]
    {
        client.ask("WATCH x");
        other.ask("INCR x");
        end.split(';').for_each(|line| drop(client.ask(line)));
        assert_eq!(exec(&mut client, "PING"), PONG, "{end}");
        other.ask("INCR x");
        assert_eq!(exec(&mut client, "PING"), PONG, "{end}");
    }
    // Its own writes count too, those of a transaction end with it.
    client.ask("WATCH x");
    client.ask("INCR x");
    assert_eq!(exec(&mut client, "INCR x"), NIL);
    client.ask("WATCH x");
    assert_eq!(exec(&mut client, "SET x 7"), "*1\r\n+OK\r\n");
    assert_eq!(exec(&mut client, "INCR x"), "*1\r\n:8\r\n");
}

#[test]
fn nothing_is_written_when_exec_answers_nil_in_either_protocol() {
    let node = Node::new();
    let (mut client, mut other) = (node.client(), node.client());
    client.ask("WATCH x");
    other.ask("SET x 1");
    let records = node.store.records.borrow().len();
    client.ask("MULTI");
    ["SET x 2", "SET y 2", "INCR z"].iter().for_each(|line| drop(client.ask(line)));
    assert_eq!(client.ask("EXEC"), NIL);
    assert_eq!(node.store.records.borrow().len(), records);
    client.ask("HELLO 3");
    client.ask("WATCH x");
    other.ask("SET x 1");
    assert_eq!(exec(&mut client, "SET x 2"), "_\r\n");
}

#[test]
fn a_key_that_was_watched_and_changed_is_not_watched_anew() {
    let node = Node::new();
    let (mut client, mut other) = (node.client(), node.client());
    client.ask("WATCH x");
    other.ask("SET x 1");
    client.ask("WATCH x y x");
    assert_eq!(exec(&mut client, "PING"), NIL);
}

#[test]
fn a_watched_key_that_expires_counts_as_changed_and_one_that_had_does_not() {
    let node = Node::new();
    let (mut client, mut other) = (node.client(), node.client());
    other.ask("SET x 1 PX 100");
    client.ask("WATCH x");
    node.store.pass(99);
    assert_eq!(exec(&mut client, "PING"), PONG);
    client.ask("WATCH x");
    node.store.pass(1);
    // Who watches it from now on finds it gone, and takes the first watch off nobody.
    other.ask("WATCH x");
    assert_eq!(exec(&mut client, "PING"), NIL);
    for between in ["EXISTS x", "DEL x", "FLUSHALL"] {
        assert_eq!(
            other.ask(between).chars().next(),
            Some(if between == "FLUSHALL" { '+' } else { ':' })
        );
    }
    assert_eq!(exec(&mut other, "PING"), PONG);
}

/// EXEC looks at it before it waits for what it reads, and once more before it writes.
#[test]
fn a_watched_key_that_expires_while_exec_waits_fails_it() {
    for (passed_ms, expected) in
        [(99, Reply::Array(vec![Reply::Null, Reply::OK])), (100, Reply::NullArray)]
    {
        let node = Node::new();
        let mut client = node.client();
        client.ask("SET x 1 PX 100");
        for line in ["WATCH x", "MULTI", "GET a", "SET y 1"] {
            client.ask(line);
        }
        node.store.is_slow.set(true);
        let step = node.commands.handle(&mut client.session, request("EXEC"), &FixedHost);
        let Step::Run(work) = step else { panic!("{step:?}") };
        let mut exec = Box::pin(node.commands.execute(&*node.store, &work));
        let mut cx = Context::from_waker(Waker::noop());
        assert!(exec.as_mut().poll(&mut cx).is_pending());
        node.store.pass(passed_ms);
        node.store.release(0);
        node.store.is_slow.set(false);
        let is_run = expected != Reply::NullArray;
        assert_eq!(exec.as_mut().poll(&mut cx), Poll::Ready(expected));
        assert_eq!(client.ask("EXISTS y"), format!(":{}\r\n", u8::from(is_run)));
    }
}

#[test]
fn a_change_of_the_head_fails_exec() {
    let node = Node::new();
    let mut client = node.client();
    client.ask("WATCH x");
    node.store.term.set(1);
    assert_eq!(exec(&mut client, "SET x 1"), NIL);
    client.ask("WATCH x");
    assert_eq!(exec(&mut client, "SET x 1"), "*1\r\n+OK\r\n");
}

#[test]
fn watch_inside_multi_is_refused_and_ends_nothing() {
    Node::new().client().script(&[
        ("WATCH", "-ERR wrong number of arguments for 'watch' command\r\n"),
        ("UNWATCH", "+OK\r\n"),
        ("MULTI", "+OK\r\n"),
        ("WATCH x", "-ERR WATCH inside MULTI is not allowed\r\n"),
        ("UNWATCH", "+QUEUED\r\n"),
        ("PING", "+QUEUED\r\n"),
        ("EXEC", "*2\r\n+OK\r\n+PONG\r\n"),
    ]);
}

#[test]
fn a_connection_watches_so_many_keys_and_an_error_fails_its_exec() {
    let node = Node::new();
    let mut client = node.client();
    let keys = |range: core::ops::Range<usize>| range.map(|n| format!(" k{n}")).collect::<String>();
    assert_eq!(client.ask(&format!("WATCH{}", keys(0..4000))), "+OK\r\n");
    assert_eq!(client.ask(&format!("WATCH{}", keys(0..4096))), "+OK\r\n");
    assert_eq!(
        client.ask("WATCH another"),
        "-ERR 4097 watched keys of 19377 bytes are over the limit of 4096 keys and 1048576 bytes\r\n"
    );
    assert_eq!(exec(&mut client, "SET a 1"), NIL);
    assert_eq!(client.ask("WATCH another"), "+OK\r\n");
    assert_eq!(exec(&mut client, "SET a 1"), "*1\r\n+OK\r\n");
    // What the head said of it is not known.
    client.ask("WATCH a");
    client.session.lose_watch();
    assert_eq!(exec(&mut client, "SET a 2"), NIL);
}

#[test]
fn exec_fails_after_a_watch_that_was_not_even_begun() {
    let mut client = Node::new().client();
    let long = vec![b'k'; 65_537];
    let large = TooLarge { name: "watch".into(), excess: Excess::Sum { len: 1 << 25 } };
    for (watched, watch) in [
        (true, Some(request_of(&[b"WATCH", b"x", &long]))),
        (false, Some(request_of(&[b"WATCH", &long]))),
        (false, Some(request("WATCH"))),
        (false, None),
    ] {
        if watched {
            client.ask("WATCH y");
        }
        let reply = match watch {
            Some(request) => client.reply(request),
            None => {
                let commands = client.node.commands.clone();
                match commands.handle_too_large(&mut client.session, &large, &FixedHost) {
                    Step::Reply(reply) => reply,
                    step => panic!("{step:?}"),
                }
            }
        };
        assert!(reply.is_error(), "{reply:?}");
        // A further one makes up for nothing.
        assert_eq!(client.ask("WATCH z"), "+OK\r\n");
        assert_eq!(exec(&mut client, "SET a 1"), NIL);
        assert_eq!(exec(&mut client, "SET a 1"), "*1\r\n+OK\r\n");
    }
}

#[test]
fn what_all_connections_of_a_node_watch_is_bounded() {
    let node = Node::new();
    let mut words = vec![b"WATCH".to_vec()];
    words.extend((0..16).map(|n| vec![n; 65_536]));
    let words: Vec<&[u8]> = words.iter().map(|word| &word[..]).collect();
    let mut clients: Vec<Client> = (0..64).map(|_| node.client()).collect();
    let replies: Vec<Reply> = clients.iter_mut().map(|it| it.reply(request_of(&words))).collect();
    assert!(replies[..63].iter().all(|reply| *reply == Reply::OK));
    let refused = "TRYAGAIN the watched keys of all connections would take 67239936 bytes, over the limit of 67108864";
    assert_eq!(replies[63], Reply::error(refused));
    assert_eq!(exec(&mut clients[63], "SET a 1"), NIL);
    // What ends gives its place to others: an EXEC, a connection, a watch that is lost.
    exec(&mut clients[0], "PING");
    assert_eq!(clients[63].reply(request_of(&words)), Reply::OK);
    clients.remove(1);
    assert_eq!(clients[0].reply(request_of(&words)), Reply::OK);
    clients[1].ask("WATCH");
    let mut another = node.client();
    assert_eq!(another.reply(request_of(&words)), Reply::OK);
    drop((clients, another));
    assert_eq!(node.commands.watched_memory.get(), 0);
}

/// WATCH, GET, MULTI, INCR, EXEC in one go, while the look-up of WATCH waits for the device.
#[test]
fn exec_right_behind_a_watch_that_waits_is_run_after_it() {
    let node = Node::new();
    let (mut client, mut other) = (node.client(), node.client());
    node.store.is_slow.set(true);
    let mut steps = Vec::new();
    for line in ["WATCH n", "MULTI", "SET n 1", "EXEC"] {
        if let Step::Run(work) =
            node.commands.handle(&mut client.session, request(line), &FixedHost)
        {
            steps.push(work);
        }
    }
    let [watch, exec] = &steps[..] else { panic!("{steps:?}") };
    assert!(matches!(watch, Work::Watch(_)));
    let mut watch = Box::pin(node.commands.execute(&*node.store, watch));
    let mut exec = Box::pin(node.commands.execute(&*node.store, exec));
    let mut cx = Context::from_waker(Waker::noop());
    assert!(watch.as_mut().poll(&mut cx).is_pending());
    assert!(exec.as_mut().poll(&mut cx).is_pending(), "it waits for the key");
    node.store.release(0);
    node.store.is_slow.set(false);
    assert_eq!(watch.as_mut().poll(&mut cx), Poll::Ready(Reply::OK));
    assert_eq!(exec.as_mut().poll(&mut cx), Poll::Ready(Reply::Array(vec![Reply::OK])));
    assert_eq!(other.ask("GET n"), "$1\r\n1\r\n");
}

/// Each increments by WATCH, GET and SET, in any order of steps; none is lost.
#[test]
fn increments_under_watch_lose_none() {
    let node = Node::new();
    let mut clients: Vec<Client> = (0..5).map(|_| node.client()).collect();
    let mut read = [None::<u64>; 5];
    let (mut done, mut seed) = (0, 1_u64);
    while done < 200 {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let n = (seed >> 33) as usize % 5;
        let client = &mut clients[n];
        match read[n].take() {
            None => {
                client.ask("WATCH n");
                let value = client.ask("GET n");
                read[n] = Some(value.lines().nth(1).map_or(0, |text| text.parse().unwrap()));
            }
            Some(value) => {
                done += u64::from(exec(client, &format!("SET n {}", value + 1)) != NIL);
            }
        }
    }
    assert_eq!(clients[0].ask("GET n"), "$3\r\n200\r\n");
}

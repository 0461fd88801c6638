//! Keys that expire, as a client sets and sees them.
//!
//! docs/faults.md: P11

use super::support::{Client, FixedHost, Node, block_on, request};
use crate::commands::{Op, Step, Work};
use core::future::Future;
use gabion_resp::Reply;

const NOT_AN_INTEGER: &str = "-ERR value is not an integer or out of range\r\n";
const SYNTAX: &str = "-ERR syntax error\r\n";

fn node() -> Node {
    let node = Node::new();
    node.store.pass(1_000_000);
    node
}

#[test]
fn a_key_that_is_set_with_a_time_is_gone_when_it_has_passed() {
    let node = node();
    let mut client = node.client();
    client.script(&[
        ("SET a 1 EX 10", "+OK\r\n"),
        ("SET b 1 px 10500", "+OK\r\n"),
        ("SET c 1 EXAT 1010", "+OK\r\n"),
        ("SET d 1 PXAT 1010500", "+OK\r\n"),
        ("SETEX e 10 1", "+OK\r\n"),
        ("PSETEX f 10500 1", "+OK\r\n"),
        ("SET g 1", "+OK\r\n"),
        ("PTTL a", ":10000\r\n"),
        ("TTL b", ":11\r\n"),
        ("EXPIRETIME c", ":1010\r\n"),
        ("PEXPIRETIME d", ":1010500\r\n"),
        ("EXPIRETIME d", ":1011\r\n"),
        ("TTL g", ":-1\r\n"),
        ("EXPIRETIME g", ":-1\r\n"),
        ("PTTL none", ":-2\r\n"),
        ("PEXPIRETIME none", ":-2\r\n"),
        ("DBSIZE", ":7\r\n"),
    ]);
    node.store.pass(9_999);
    client.script(&[("EXISTS a b c d e f g", ":7\r\n"), ("PTTL a", ":1\r\n")]);
    node.store.pass(1);
    client.script(&[
        ("GET a", "$-1\r\n"),
        ("MGET c b", "*2\r\n$-1\r\n$1\r\n1\r\n"),
        ("KEYS *", "*4\r\n$1\r\nb\r\n$1\r\nd\r\n$1\r\nf\r\n$1\r\ng\r\n"),
        ("DEL a c e", ":0\r\n"),
        ("TTL a", ":-2\r\n"),
        ("SETNX a 2", ":1\r\n"),
        ("TTL a", ":-1\r\n"),
    ]);
    // By the clock it is late, by the group's time the key is there.
    node.store.clock_ms.set(2_000_000);
    client.script(&[("PTTL b", ":0\r\n"), ("TTL b", ":0\r\n"), ("EXISTS b", ":1\r\n")]);
}

#[test]
fn times_of_day_are_the_systems_wherever_that_clock_was_set_and_lengths_are_not() {
    // An hour behind, as after it was set back; ten years ahead, as after it was wrong at a start.
    for ahead_ms in [-3_600_000, 10 * 31_536_000_000] {
        let node = Node::new();
        node.store.pass(7_200_000);
        node.store.system_ahead_ms.set(ahead_ms);
        let system_ms = 7_200_000 + ahead_ms;
        let mut client = node.client();
        client.script(&[
            (&format!("SET a 1 PXAT {}", system_ms + 3_000), "+OK\r\n"),
            ("PTTL a", ":3000\r\n"),
            ("PEXPIRETIME a", &format!(":{}\r\n", system_ms + 3_000)),
            ("SET b 1 PX 3000", "+OK\r\n"),
            ("PTTL b", ":3000\r\n"),
            ("SET c 1", "+OK\r\n"),
            (&format!("EXPIREAT c {}", system_ms / 1_000 + 3), ":1\r\n"),
            ("PTTL c", ":3000\r\n"),
            (&format!("GETEX c EXAT {}", system_ms / 1_000 + 4), "$1\r\n1\r\n"),
            ("PTTL c", ":4000\r\n"),
            (&format!("SET d 1 PXAT {system_ms}"), "+OK\r\n"),
            ("SET e 1 PXAT 1", "+OK\r\n"),
            ("EXISTS d e", ":0\r\n"),
        ]);
        node.store.pass(3_000);
        client.script(&[("EXISTS a b c", ":1\r\n"), ("PTTL c", ":1000\r\n")]);
    }
}

#[test]
fn a_plain_set_clears_the_expiry_and_what_changes_a_value_keeps_it() {
    node().client().script(&[
        ("SET n 1 EX 10", "+OK\r\n"),
        ("INCR n", ":2\r\n"),
        ("DECRBY n 5", ":-3\r\n"),
        ("APPEND n 0", ":3\r\n"),
        ("SETRANGE n 1 4", ":3\r\n"),
        ("GET n", "$3\r\n-40\r\n"),
        ("PTTL n", ":10000\r\n"),
        ("SET n 5 KEEPTTL", "+OK\r\n"),
        ("PTTL n", ":10000\r\n"),
        ("SET n 6 XX KEEPTTL GET", "$1\r\n5\r\n"),
        ("PTTL n", ":10000\r\n"),
        ("SET n 7 XX PX 20 GET", "$1\r\n6\r\n"),
        ("PTTL n", ":20\r\n"),
        ("SET n 8 NX EX 10", "$-1\r\n"),
        ("PTTL n", ":20\r\n"),
        ("SET n 9", "+OK\r\n"),
        ("TTL n", ":-1\r\n"),
        ("SET m 1 KEEPTTL", "+OK\r\n"),
        ("TTL m", ":-1\r\n"),
        ("SET m 1 EX 10", "+OK\r\n"),
        ("GETSET m 2", "$1\r\n1\r\n"),
        ("TTL m", ":-1\r\n"),
        ("SET m 1 EX 10", "+OK\r\n"),
        ("MSET m 2", "+OK\r\n"),
        ("TTL m", ":-1\r\n"),
    ]);
}

#[test]
fn expire_sets_the_time_of_a_key_that_is_there_under_its_condition() {
    let node = node();
    let mut client = node.client();
    client.script(&[
        ("EXPIRE a 10", ":0\r\n"),
        ("SET a 1", "+OK\r\n"),
        ("EXPIRE a 10 XX", ":0\r\n"),
        ("EXPIRE a 10 GT", ":0\r\n"),
        ("EXPIRE a 10 lt", ":1\r\n"),
        ("EXPIRE a 20 NX", ":0\r\n"),
        ("EXPIRE a 20 LT", ":0\r\n"),
        ("EXPIRE a 10 GT", ":0\r\n"),
        ("PEXPIRE a 20000 XX GT", ":1\r\n"),
        ("PTTL a", ":20000\r\n"),
        ("EXPIREAT a 1005", ":1\r\n"),
        ("PTTL a", ":5000\r\n"),
        ("PEXPIREAT a 1000001 XX LT", ":1\r\n"),
        ("PTTL a", ":1\r\n"),
        ("PERSIST a", ":1\r\n"),
        ("PERSIST a", ":0\r\n"),
        ("PERSIST none", ":0\r\n"),
        ("TTL a", ":-1\r\n"),
        ("EXPIRE a 10 NX", ":1\r\n"),
        ("GET a", "$1\r\n1\r\n"),
    ]);
    // A time that has passed deletes, now.
    for line in
        ["EXPIRE a 0", "PEXPIRE a -1", "EXPIREAT a 1000", "PEXPIREAT a -9223372036854775808"]
    {
        client.script(&[("SET a 1", "+OK\r\n"), (line, ":1\r\n"), ("EXISTS a", ":0\r\n")]);
        let last = node.store.records.borrow().last().cloned();
        assert_eq!(last, Some(vec![Op::Delete("a".into())]));
    }
    client.script(&[("SET a 1 EXAT 1000", "+OK\r\n"), ("EXISTS a", ":0\r\n")]);
}

#[test]
fn getex_returns_the_value_and_changes_the_expiry_alone() {
    node().client().script(&[
        ("GETEX a EX 10", "$-1\r\n"),
        ("SET a 1", "+OK\r\n"),
        ("GETEX a", "$1\r\n1\r\n"),
        ("TTL a", ":-1\r\n"),
        ("GETEX a EX 10", "$1\r\n1\r\n"),
        ("PTTL a", ":10000\r\n"),
        ("GETEX a", "$1\r\n1\r\n"),
        ("PTTL a", ":10000\r\n"),
        ("GETEX a PXAT 1000500", "$1\r\n1\r\n"),
        ("PTTL a", ":500\r\n"),
        ("GETEX a PERSIST", "$1\r\n1\r\n"),
        ("TTL a", ":-1\r\n"),
        ("GETEX a EX 10 PERSIST", SYNTAX),
        ("GETEX a PERSIST EX 10", SYNTAX),
        ("GETEX a KEEPTTL", SYNTAX),
        ("GETEX a EX", SYNTAX),
        ("GETEX a EX 0", "-ERR invalid expire time in 'getex' command\r\n"),
        ("GETEX a EXAT 1", "$1\r\n1\r\n"),
        ("EXISTS a", ":0\r\n"),
    ]);
}

#[test]
fn times_that_make_no_sense_are_refused_in_redis_words() {
    let node = node();
    let mut client = node.client();
    client.ask("SET a 1");
    let records = node.store.records.borrow().len();
    for (line, name) in [
        ("SET a 2 EX 0", "set"),
        ("SET a 2 PX -1", "set"),
        ("SET a 2 EXAT 0", "set"),
        ("SET a 2 EX 9223372036854775807", "set"),
        ("SET a 2 PX 9223372036854775807", "set"),
        ("SETEX a 0 2", "setex"),
        ("PSETEX a 9223372036854775807 2", "psetex"),
        ("EXPIRE a 9223372036854775807", "expire"),
        ("EXPIRE a -9223372036854775808", "expire"),
        ("PEXPIRE a 9223372036854775807", "pexpire"),
        ("EXPIREAT a 9223372036854775807", "expireat"),
    ] {
        let wanted = format!("-ERR invalid expire time in '{name}' command\r\n");
        assert_eq!(client.ask(line), wanted, "{line}");
    }
    client.script(&[
        ("SET a 2 PXAT x", NOT_AN_INTEGER),
        ("SETEX a 1.5 2", NOT_AN_INTEGER),
        ("EXPIRE a x", NOT_AN_INTEGER),
        ("PEXPIREAT a 9223372036854775808", NOT_AN_INTEGER),
        ("SET a 2 EX 10 KEEPTTL", SYNTAX),
        ("SET a 2 KEEPTTL PX 10", SYNTAX),
        ("SET a 2 PERSIST", SYNTAX),
        ("EXPIRE a 10 YY", "-ERR Unsupported option YY\r\n"),
        ("EXPIRE a 10 GT LT", "-ERR GT and LT options at the same time are not compatible\r\n"),
        (
            "EXPIRE a 10 NX XX",
            "-ERR NX and XX, GT or LT options at the same time are not compatible\r\n",
        ),
        (
            "EXPIRE a 10 GT NX",
            "-ERR NX and XX, GT or LT options at the same time are not compatible\r\n",
        ),
        ("TTL a", ":-1\r\n"),
    ]);
    assert_eq!(node.store.records.borrow().len(), records);
    // The last time that there is.
    client.script(&[
        ("PEXPIREAT a 9223372036854775807", ":1\r\n"),
        ("PEXPIRETIME a", ":9223372036854775807\r\n"),
        ("EXPIRETIME a", ":9223372036854776\r\n"),
    ]);
}

#[test]
fn a_transaction_sees_its_own_times_and_writes_them_as_one() {
    let node = node();
    let mut client = node.client();
    client.script(&[
        ("SET b 5 EX 10", "+OK\r\n"),
        ("MULTI", "+OK\r\n"),
        ("SET a 1 EX 10", "+QUEUED\r\n"),
        ("PTTL a", "+QUEUED\r\n"),
        ("INCR b", "+QUEUED\r\n"),
        ("PERSIST a", "+QUEUED\r\n"),
        ("TTL a", "+QUEUED\r\n"),
        ("EXPIRE c 1", "+QUEUED\r\n"),
        ("EXPIRE a 0", "+QUEUED\r\n"),
        ("EXISTS a b", "+QUEUED\r\n"),
        ("EXEC", "*8\r\n+OK\r\n:10000\r\n:6\r\n:1\r\n:-1\r\n:0\r\n:1\r\n:1\r\n"),
        ("PTTL b", ":10000\r\n"),
    ]);
    let last = node.store.records.borrow().last().cloned();
    let b = Op::PutExpiring("b".into(), "6".into(), 1_010_000);
    assert_eq!(last, Some(vec![Op::Delete("a".into()), b]));
}

/// What the last of these lines has run.
fn work_of(client: &mut Client, lines: &str) -> Work {
    let node = client.node.clone();
    let steps = lines
        .split(';')
        .map(|line| node.commands.handle(&mut client.session, request(line), &FixedHost));
    match steps.last() {
        Some(Step::Run(work)) => work,
        other => panic!("{lines}: {other:?}"),
    }
}

/// Others may have seen it gone: a write that rests on it would bring it back.
/// docs/faults.md: P11
#[test]
fn what_expires_while_a_command_waits_is_not_brought_back() {
    for (lines, wanted) in [
        ("EXPIRE a 100", ":0\r\n"),
        ("PERSIST a", ":0\r\n"),
        ("GETEX a PERSIST", "$-1\r\n"),
        ("INCR a", ":1\r\n"),
        ("SET a 7 XX", "$-1\r\n"),
        ("MULTI;PERSIST a;EXEC", "*1\r\n:0\r\n"),
        ("MULTI;RANGE - +;INCR b;EXEC", "*2\r\n*0\r\n:1\r\n"),
        ("MULTI;DBSIZE;INCR b;EXEC", "*2\r\n:0\r\n:1\r\n"),
    ] {
        let node = node();
        let mut client = node.client();
        assert_eq!(client.ask("SET a 6 PX 50"), "+OK\r\n");
        let work = work_of(&mut client, lines);
        node.store.is_slow.set(true);
        let store = node.store.clone();
        let run = async { node.commands.execute(&*store, &work).await };
        let mut run = core::pin::pin!(run);
        let mut context = core::task::Context::from_waker(core::task::Waker::noop());
        assert!(run.as_mut().poll(&mut context).is_pending());
        // The read began before the key expired, and ends after.
        node.store.pass(50);
        node.store.is_slow.set(false);
        node.store.release(0);
        let reply: Reply = block_on(run);
        let mut out = Vec::new();
        reply.encode(gabion_resp::Protocol::Resp2, &mut out);
        assert_eq!(String::from_utf8_lossy(&out), wanted, "{lines}");
        let is_there = if lines == "INCR a" { ":1\r\n" } else { ":0\r\n" };
        assert_eq!(client.ask("EXISTS a"), is_there, "{lines}");
    }
}

#[test]
fn what_always_meets_an_expiry_ends_and_nothing_was_done() {
    let node = node();
    let mut client = node.client();
    for i in 1..100 {
        assert_eq!(client.ask(&format!("SET key-{i} 1 PX {}", i * 10)), "+OK\r\n");
    }
    let records = node.store.records.borrow().len();
    let work = work_of(&mut client, "MULTI;RANGE - +;INCR n;EXEC");
    node.store.is_slow.set(true);
    let mut run = core::pin::pin!(node.commands.execute(&*node.store, &work));
    let mut context = core::task::Context::from_waker(core::task::Waker::noop());
    let reply = loop {
        match run.as_mut().poll(&mut context) {
            core::task::Poll::Ready(reply) => break reply,
            core::task::Poll::Pending => {
                node.store.pass(10);
                node.store.release(0);
            }
        }
    };
    let Reply::Error(text) = reply else { panic!("{reply:?}") };
    assert!(text.starts_with(b"TRYAGAIN busy: a key expired"), "{text:?}");
    assert_eq!(node.store.records.borrow().len(), records);
}

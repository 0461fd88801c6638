//! Commands on values and keys: replies byte for byte.

use super::support::{Node, request, request_of};
use bytes::Bytes;
use gabion_base::units::{KEY_LEN_MAX, RECORD_OPS_MAX, VALUE_LEN_MAX};
use gabion_base::{Error, ErrorKind};
use gabion_resp::Reply;

fn text(reply: &Reply) -> String {
    match reply {
        Reply::Error(text) | Reply::Simple(text) => String::from_utf8_lossy(text).into_owned(),
        other => panic!("no text: {other:?}"),
    }
}

#[test]
fn strings_are_set_and_read() {
    Node::new().client().script(&[
        ("GET a", "$-1\r\n"),
        ("SET a 1", "+OK\r\n"),
        ("get a", "$1\r\n1\r\n"),
        ("SET a 2 NX", "$-1\r\n"),
        ("SET a 2 XX", "+OK\r\n"),
        ("SET b 2 XX", "$-1\r\n"),
        ("SET b 2 nx", "+OK\r\n"),
        ("SET b 3 GET", "$1\r\n2\r\n"),
        ("SET c 3 GET", "$-1\r\n"),
        ("SET c 4 NX GET", "$1\r\n3\r\n"),
        ("GET c", "$1\r\n3\r\n"),
        ("SET d 4 NX GET", "$-1\r\n"),
        ("GET d", "$1\r\n4\r\n"),
        ("SETNX a x", ":0\r\n"),
        ("SETNX e x", ":1\r\n"),
        ("GETSET e y", "$1\r\nx\r\n"),
        ("GETSET f y", "$-1\r\n"),
        ("GETDEL e", "$1\r\ny\r\n"),
        ("GETDEL e", "$-1\r\n"),
        ("STRLEN a", ":1\r\n"),
        ("STRLEN none", ":0\r\n"),
        ("SET empty ''", "+OK\r\n"),
        ("GET empty", "$0\r\n\r\n"),
        ("EXISTS empty", ":1\r\n"),
    ]);
}

#[test]
fn a_key_is_set_or_deleted_only_if_it_has_a_value() {
    let node = Node::new();
    node.client().script(&[
        ("SET a new IFEQ old", "$-1\r\n"),
        ("EXISTS a", ":0\r\n"),
        ("SET a old", "+OK\r\n"),
        ("SET a new IFEQ ol", "$-1\r\n"),
        ("SET a new ifeq old", "+OK\r\n"),
        ("SET a x IFEQ old GET", "$3\r\nnew\r\n"),
        ("GET a", "$3\r\nnew\r\n"),
        ("SET a x GET IFEQ new PX 10", "$3\r\nnew\r\n"),
        ("PTTL a", ":10\r\n"),
        ("SET a y KEEPTTL IFEQ z", "$-1\r\n"),
        ("SET a y KEEPTTL IFEQ x", "+OK\r\n"),
        ("PTTL a", ":10\r\n"),
        ("SET none x IFEQ '' GET", "$-1\r\n"),
        ("DELIFEQ none ''", ":0\r\n"),
        ("DELIFEQ a x", ":0\r\n"),
        ("DELIFEQ a y", ":1\r\n"),
        ("DELIFEQ a y", ":0\r\n"),
        ("SET a '' EX 10", "+OK\r\n"),
        ("DELIFEQ a ''", ":1\r\n"),
        ("SET a 1 IFEQ 1 NX", "-ERR syntax error\r\n"),
        ("SET a 1 XX IFEQ 1", "-ERR syntax error\r\n"),
        ("SET a 1 IFEQ 1 IFEQ 1", "-ERR syntax error\r\n"),
        ("SET a 1 IFEQ", "-ERR syntax error\r\n"),
        ("DELIFEQ a", "-ERR wrong number of arguments for 'delifeq' command\r\n"),
        ("DELIFEQ a b c", "-ERR wrong number of arguments for 'delifeq' command\r\n"),
    ]);
    // What fails its condition writes nothing.
    node.store.records.borrow_mut().clear();
    node.client().script(&[("SET a 1 IFEQ 1", "$-1\r\n"), ("DELIFEQ a 1", ":0\r\n")]);
    assert!(node.store.records.borrow().is_empty());
}

#[test]
fn set_refuses_what_it_does_not_know_in_redis_words() {
    Node::new().client().script(&[
        ("SET a 1 NX XX", "-ERR syntax error\r\n"),
        ("SET a 1 FOO", "-ERR syntax error\r\n"),
        ("SET a 1 EX", "-ERR syntax error\r\n"),
        ("SET a 1 EX 10 PX 10", "-ERR syntax error\r\n"),
        ("SET a 1 EX x", "-ERR value is not an integer or out of range\r\n"),
        ("EXISTS a", ":0\r\n"),
        ("TTL a", ":-2\r\n"),
        ("SET a 1", "+OK\r\n"),
        ("TTL a", ":-1\r\n"),
        ("PTTL a", ":-1\r\n"),
        ("TYPE a", "+string\r\n"),
        ("TYPE b", "+none\r\n"),
    ]);
}

#[test]
fn many_keys_are_set_and_read_at_once() {
    let node = Node::new();
    node.client().script(&[
        ("MSET a 1 b 2 a 3", "+OK\r\n"),
        ("MGET a b c a", "*4\r\n$1\r\n3\r\n$1\r\n2\r\n$-1\r\n$1\r\n3\r\n"),
        ("MSET a", "-ERR wrong number of arguments for 'mset' command\r\n"),
        ("MSET a 1 b", "-ERR wrong number of arguments for 'mset' command\r\n"),
        ("MSETNX a 1 x 2", ":0\r\n"),
        ("EXISTS x", ":0\r\n"),
        ("MSETNX x 1 y 2", ":1\r\n"),
        ("MSETNX z", "-ERR wrong number of arguments for 'msetnx' command\r\n"),
        ("EXISTS a a b none", ":3\r\n"),
        ("DEL a a b none", ":2\r\n"),
        ("DEL a", ":0\r\n"),
        ("UNLINK x y", ":2\r\n"),
        ("DBSIZE", ":0\r\n"),
    ]);
    // One record for each command that changed something.
    assert_eq!(node.store.records.borrow().len(), 4);
}

#[test]
fn numbers_count_and_overflow_as_in_redis() {
    let not_an_integer = "-ERR value is not an integer or out of range\r\n";
    let overflow = "-ERR increment or decrement would overflow\r\n";
    Node::new().client().script(&[
        ("INCR n", ":1\r\n"),
        ("INCRBY n 41", ":42\r\n"),
        ("DECR n", ":41\r\n"),
        ("DECRBY n 50", ":-9\r\n"),
        ("GET n", "$2\r\n-9\r\n"),
        ("INCRBY n x", not_an_integer),
        ("INCRBY n 1.5", not_an_integer),
        ("INCRBY n 9223372036854775808", not_an_integer),
        ("SET n 9223372036854775807", "+OK\r\n"),
        ("INCR n", overflow),
        ("GET n", "$19\r\n9223372036854775807\r\n"),
        ("SET n -9223372036854775808", "+OK\r\n"),
        ("DECR n", overflow),
        ("DECRBY n -9223372036854775808", "-ERR decrement would overflow\r\n"),
        ("SET n abc", "+OK\r\n"),
        ("INCR n", not_an_integer),
        ("SET n ' 1'", "+OK\r\n"),
        ("INCR n", not_an_integer),
    ]);
}

/// The digits are held against Redis's in `long_double/tests.rs`.
#[test]
fn numbers_with_decimals_are_added_to_and_keep_their_expiry() {
    let not_a_float = "-ERR value is not a valid float\r\n";
    let not_finite = "-ERR increment would produce NaN or Infinity\r\n";
    Node::new().client().script(&[
        ("INCRBYFLOAT n 1", "$1\r\n1\r\n"),
        ("INCRBYFLOAT n 0.25", "$4\r\n1.25\r\n"),
        ("GET n", "$4\r\n1.25\r\n"),
        ("SET n 17179869184 EX 100", "+OK\r\n"),
        ("INCRBYFLOAT n 1.5", "$13\r\n17179869185.5\r\n"),
        ("TTL n", ":100\r\n"),
        ("SET n 3", "+OK\r\n"),
        ("INCRBYFLOAT n -1.1", "$3\r\n1.9\r\n"),
        ("INCR n", "-ERR value is not an integer or out of range\r\n"),
        ("INCRBYFLOAT n x", not_a_float),
        ("INCRBYFLOAT n ' 1'", not_a_float),
        ("INCRBYFLOAT n nan", not_a_float),
        ("INCRBYFLOAT n +inf", not_finite),
        ("INCRBYFLOAT none -inf", not_finite),
        ("EXISTS none", ":0\r\n"),
        ("SET s ' 11'", "+OK\r\n"),
        ("INCRBYFLOAT s 1.0", not_a_float),
        ("SET s '11 '", "+OK\r\n"),
        ("INCRBYFLOAT s 1.0", not_a_float),
        ("GET n", "$3\r\n1.9\r\n"),
    ]);
}

#[test]
fn parts_of_values_are_read_and_written() {
    Node::new().client().script(&[
        ("SET s 'Hello World'", "+OK\r\n"),
        ("GETRANGE s 0 4", "$5\r\nHello\r\n"),
        ("GETRANGE s -5 -1", "$5\r\nWorld\r\n"),
        ("GETRANGE s 0 -1", "$11\r\nHello World\r\n"),
        ("GETRANGE s 5 2", "$0\r\n\r\n"),
        ("GETRANGE s -1 -5", "$0\r\n\r\n"),
        ("GETRANGE s -100 2", "$3\r\nHel\r\n"),
        ("GETRANGE s 20 30", "$0\r\n\r\n"),
        ("GETRANGE s 0 9223372036854775807", "$11\r\nHello World\r\n"),
        ("GETRANGE s -9223372036854775808 0", "$1\r\nH\r\n"),
        ("GETRANGE none 0 -1", "$0\r\n\r\n"),
        ("SUBSTR s 0 0", "$1\r\nH\r\n"),
        ("GETRANGE s a 1", "-ERR value is not an integer or out of range\r\n"),
        ("SETRANGE s 6 Redis", ":11\r\n"),
        ("GET s", "$11\r\nHello Redis\r\n"),
        ("SETRANGE t 2 x", ":3\r\n"),
        ("GET t", "$3\r\n\0\0x\r\n"),
        ("SETRANGE u 5 ''", ":0\r\n"),
        ("EXISTS u", ":0\r\n"),
        ("SETRANGE s -1 x", "-ERR offset is out of range\r\n"),
        ("SETRANGE s 8388608 x", "-ERR string exceeds maximum allowed size (8388608 bytes)\r\n"),
        ("APPEND s !", ":12\r\n"),
        ("APPEND v new", ":3\r\n"),
        ("GET v", "$3\r\nnew\r\n"),
    ]);
}

/// A reply counts as its own bytes, so it must not keep more than them.
#[test]
fn a_part_of_a_value_does_not_keep_the_value_in_memory() {
    let node = Node::new();
    let value = Bytes::from(vec![b'v'; 1000]);
    node.store.hold("k".into(), value.clone());
    let mut client = node.client();
    for (end, is_whole) in [(0, false), (998, false), (999, true), (-1, true)] {
        let reply = client.reply(request(&format!("GETRANGE k 0 {end}")));
        let Reply::Bulk(part) = reply else { panic!("{reply:?}") };
        assert_eq!(part.as_ptr() == value.as_ptr(), is_whole, "to {end}");
    }
}

#[test]
fn flushing_empties_the_store() {
    Node::new().client().script(&[
        ("MSET a 1 b 2", "+OK\r\n"),
        ("FLUSHALL", "+OK\r\n"),
        ("DBSIZE", ":0\r\n"),
        ("SET a 1", "+OK\r\n"),
        ("FLUSHDB ASYNC", "+OK\r\n"),
        ("EXISTS a", ":0\r\n"),
        ("FLUSHALL sync", "+OK\r\n"),
        ("FLUSHALL now", "-ERR syntax error\r\n"),
        ("FLUSHALL SYNC SYNC", "-ERR syntax error\r\n"),
    ]);
}

/// docs/faults.md: E14
#[test]
fn keys_and_values_are_taken_at_their_limit_and_refused_one_byte_over() {
    let node = Node::new();
    let mut client = node.client();
    let (key, value) = (vec![b'k'; KEY_LEN_MAX], vec![b'v'; VALUE_LEN_MAX]);
    assert_eq!(client.reply(request_of(&[b"SET", &key, &value])), Reply::OK);
    assert_eq!(client.reply(request_of(&[b"STRLEN", &key])), Reply::Integer(8 << 20));

    let long_key = [&key[..], b"k"].concat();
    for request in [
        request_of(&[b"GET", &long_key]),
        request_of(&[b"SET", &long_key, b"v"]),
        request_of(&[b"MSET", b"a", b"1", &long_key, b"2"]),
        request_of(&[b"DEL", b"a", &long_key]),
    ] {
        let reply = client.reply(request);
        assert_eq!(text(&reply), "ERR key is 65537 bytes long, over the limit of 65536");
    }
    let long_value = [&value[..], b"v"].concat();
    let over = "ERR value is 8388609 bytes long, over the limit of 8388608";
    for request in [
        request_of(&[b"SET", b"a", &long_value]),
        request_of(&[b"SET", b"a", &long_value, b"NX"]),
        request_of(&[b"SETNX", b"a", &long_value]),
        request_of(&[b"GETSET", b"a", &long_value]),
        request_of(&[b"MSET", b"a", &long_value]),
        request_of(&[b"APPEND", b"a", &long_value]),
    ] {
        assert_eq!(text(&client.reply(request)), over);
    }
    let reply = client.reply(request_of(&[b"APPEND", &key, b"v"]));
    assert_eq!(text(&reply), "ERR string exceeds maximum allowed size (8388608 bytes)");
    assert_eq!(node.store.records.borrow().len(), 1);
}

#[test]
fn writes_that_no_record_could_hold_are_refused_whole() {
    let node = Node::new();
    let mut client = node.client();
    let mset = |count: usize| {
        let mut words = vec![Bytes::from_static(b"MSET")];
        for i in 0..count {
            words.push(Bytes::from(format!("{i}")));
            words.push(Bytes::new());
        }
        gabion_resp::Request { args: words.into_iter().collect() }
    };
    assert_eq!(client.reply(mset(RECORD_OPS_MAX)), Reply::OK);
    let reply = client.reply(mset(RECORD_OPS_MAX + 1));
    assert_eq!(
        text(&reply),
        "ERR 65537 writes in one command or transaction are over the limit of 65536"
    );

    // To clear is a write too.
    client.ask("MULTI");
    client.ask("FLUSHALL");
    client.reply(mset(RECORD_OPS_MAX));
    assert_eq!(
        client.ask("EXEC"),
        "-ERR 65537 writes in one command or transaction are over the limit of 65536\r\n"
    );

    let half = vec![b'v'; VALUE_LEN_MAX];
    let reply = client.reply(request_of(&[b"MSET", b"x", &half, b"y", &half]));
    assert!(text(&reply).contains("over the limit of 16711680"), "{reply:?}");
    assert_eq!(client.ask("EXISTS x y"), ":0\r\n");
}

#[test]
fn an_error_of_the_store_reaches_the_client_with_a_code_to_act_on() {
    let node = Node::new();
    let mut client = node.client();
    for (kind, expected) in [
        (ErrorKind::NoSpace, "OOM no space: full"),
        (ErrorKind::Unavailable, "TRYAGAIN unavailable: full"),
        (ErrorKind::Fenced, "READONLY fenced: full"),
        (ErrorKind::Io, "ERR I/O error: full"),
        (ErrorKind::LimitExceeded, "ERR full"),
    ] {
        *node.store.refuses_writes.borrow_mut() = Some(Error::new(kind, "full"));
        for line in ["SET a 1", "INCR n", "MSET a 1 b 2", "FLUSHALL"] {
            assert_eq!(client.ask(line), format!("-{expected}\r\n"), "{line}");
        }
        client.ask("MULTI");
        client.ask("SET a 1");
        assert_eq!(client.ask("EXEC"), format!("-{expected}\r\n"));
    }
    *node.store.refuses_writes.borrow_mut() = None;
    assert_eq!(client.ask("DBSIZE"), ":0\r\n");
}

/// A long value lies apart from its key and costs a read of the device: commands that need none of
/// it ask for its length alone, in scripts and transactions too.
#[test]
fn commands_that_need_no_value_read_none() {
    let node = Node::new();
    for key in ["a", "b", "c", "d", "e"] {
        node.store.hold(key.into(), Bytes::from(vec![b'v'; 100_000]));
    }
    let mut client = node.client();
    client.script(&[
        ("EXISTS a b none a", ":3\r\n"),
        ("TOUCH a b", ":2\r\n"),
        ("TYPE a", "+string\r\n"),
        ("STRLEN a", ":100000\r\n"),
        ("TTL a", ":-1\r\n"),
        ("PTTL b", ":-1\r\n"),
        ("EXPIRETIME c", ":-1\r\n"),
        ("SETNX a x", ":0\r\n"),
        ("SET a x NX", "$-1\r\n"),
        ("SET a x XX KEEPTTL", "+OK\r\n"),
        ("MSETNX a 1 none 2", ":0\r\n"),
        ("RANGE - + KEYS LIMIT 2", "*2\r\n$1\r\na\r\n$1\r\nb\r\n"),
        ("RANGE - + REV KEYS LIMIT 1", "*1\r\n$1\r\ne\r\n"),
        ("DBSIZE", ":5\r\n"),
        ("KEYS [ab]", "*2\r\n$1\r\na\r\n$1\r\nb\r\n"),
        ("WATCH a b", "+OK\r\n"),
        ("MULTI", "+OK\r\n"),
        ("EXISTS b c", "+QUEUED\r\n"),
        ("RANGE b c KEYS", "+QUEUED\r\n"),
        ("DEL b none", "+QUEUED\r\n"),
        ("EXISTS b c", "+QUEUED\r\n"),
        ("EXEC", "*4\r\n:2\r\n*1\r\n$1\r\nb\r\n:1\r\n:1\r\n"),
        ("DEL c d", ":2\r\n"),
        ("EVAL 'return redis.call(\"EXISTS\",KEYS[1],KEYS[2])' 2 a e", ":2\r\n"),
    ]);
    assert!(client.ask("MEMORY USAGE e").starts_with(":100"));
    assert!(client.ask("SCAN 0").contains("$1\r\ne\r\n"));
    assert_eq!(node.store.values_read.get(), 0);
    assert_eq!(client.ask("SET a y GET"), "$1\r\nx\r\n");
    assert_eq!(node.store.values_read.get(), 1);
}

//! The whole way: bytes in, bytes out.

use super::support::{FixedHost, Node, block_on};
use crate::commands::{Step, TABLE};
use bytes::BytesMut;
use gabion_resp::{Incoming, Protocol, Reply, ReplyParser, RequestParser, encode_request};
use proptest::prelude::*;

/// What a node answers to `wire`, which arrives in pieces of `chunk` bytes. A protocol error is
/// answered and ends the connection.
fn converse(node: &Node, wire: &[u8], chunk: usize) -> Vec<u8> {
    let mut client = node.client();
    let (mut parser, mut buffer, mut out) = (RequestParser::new(), BytesMut::new(), Vec::new());
    for piece in wire.chunks(chunk) {
        buffer.extend_from_slice(piece);
        loop {
            let incoming = match parser.parse(&mut buffer) {
                Ok(Some(incoming)) => incoming,
                Ok(None) => break,
                Err(error) => {
                    let reply = Reply::error_from(format!("ERR {error}"));
                    reply.encode(client.session.protocol(), &mut out);
                    return out;
                }
            };
            let step = match incoming {
                Incoming::Request(request) => {
                    node.commands.handle(&mut client.session, request, &FixedHost)
                }
                Incoming::TooLarge(large) => {
                    node.commands.handle_too_large(&mut client.session, &large, &FixedHost)
                }
            };
            let protocol = client.session.protocol();
            match step {
                Step::Reply(reply) | Step::Wait(reply) => reply.encode(protocol, &mut out),
                Step::Run(work) => {
                    block_on(node.commands.execute(&*node.store, &work)).encode(protocol, &mut out);
                }
                Step::Ask(_) | Step::Await(_) => Reply::Null.encode(protocol, &mut out),
                Step::Close(reply) => {
                    reply.encode(protocol, &mut out);
                    return out;
                }
                Step::Drop => return out,
            }
        }
    }
    out
}

/// A request of which one argument is so long.
fn long(before: &[&str], len: usize, after: &[&str]) -> Vec<u8> {
    let bulk = |word: &str| format!("${}\r\n{word}\r\n", word.len()).into_bytes();
    let mut wire = format!("*{}\r\n", before.len() + 1 + after.len()).into_bytes();
    before.iter().for_each(|word| wire.extend(bulk(word)));
    wire.extend(format!("${len}\r\n").into_bytes());
    wire.resize(wire.len() + len, b'v');
    wire.extend_from_slice(b"\r\n");
    after.iter().for_each(|word| wire.extend(bulk(word)));
    wire
}

#[test]
fn what_is_too_large_is_answered_by_its_command_and_those_after_it_run() {
    let node = Node::new();
    let incr = &b"INCR n\r\n"[..];
    let half = "v".repeat(6 << 20);
    let mset = long(&["MSET", "a", &half, "b", &half, "c"], 5 << 20, &[]);
    let sum = "the arguments of one command or transaction take 17825799 bytes, over the limit of 16777216";
    let cases = [
        (
            long(&["SET", "k"], 9_000_000, &[]),
            "value is 9000000 bytes long, over the limit of 8388608",
        ),
        (
            long(&["SET", "k"], 8_388_609, &["NX"]),
            "value is 8388609 bytes long, over the limit of 8388608",
        ),
        (long(&["SET"], 9_000_000, &["v"]), "key is 9000000 bytes long, over the limit of 65536"),
        (long(&["SET"], 65_537, &["v"]), "key is 65537 bytes long, over the limit of 65536"),
        (
            long(&["MSET", "a", "1"], 9_000_000, &["2"]),
            "key is 9000000 bytes long, over the limit of 65536",
        ),
        (long(&["nope"], 9_000_000, &[]), "unknown command 'nope', with args beginning with: "),
        (
            long(&[], 9_000_000, &["a"]),
            "argument 0 is 9000000 bytes long, over the limit of 8388608",
        ),
        (mset, sum),
    ];
    for (i, (request, expected)) in cases.into_iter().enumerate() {
        let wire = [incr, &request, incr].concat();
        let replies = String::from_utf8(converse(&node, &wire, 1 << 16)).unwrap();
        let (first, last) = (2 * i + 1, 2 * i + 2);
        assert_eq!(replies, format!(":{first}\r\n-ERR {expected}\r\n:{last}\r\n"));
    }
    assert_eq!(converse(&node, b"EXISTS a b c k\r\n", 100), b":0\r\n");
}

#[test]
fn what_is_too_large_spoils_a_transaction_in_the_same_words_as_a_command() {
    let node = Node::new();
    let part = "v".repeat(6 << 20);
    let set = |key: &str| long(&["SET", key], 6 << 20, &[]);
    let sum = |len: usize| {
        format!(
            "-ERR the arguments of one command or transaction take {len} bytes, over the limit of 16777216\r\n"
        )
    };
    let (queued, aborted) =
        ("+QUEUED\r\n", "-EXECABORT Transaction discarded because of previous errors.\r\n");
    for (request, expected) in [
        (
            long(&["SET", "k"], 9_000_000, &[]),
            "-ERR value is 9000000 bytes long, over the limit of 8388608\r\n".to_owned(),
        ),
        (long(&["MSET", "a", &part, "b", &part, "c"], 6 << 20, &[]), sum(3 * (6 << 20) + 7)),
        (
            [set("a"), set("b"), set("c")].concat(),
            format!("{queued}{queued}{}", sum(3 * (6 << 20) + 12)),
        ),
    ] {
        let wire = [b"MULTI\r\n", &request[..], b"SET k v\r\nEXEC\r\nGET k\r\n"].concat();
        let replies = String::from_utf8(converse(&node, &wire, 1 << 16)).unwrap();
        assert_eq!(replies, format!("+OK\r\n{expected}{queued}{aborted}$-1\r\n"));
    }
    // EXEC itself, and a word that a browser sends.
    let wire =
        [b"MULTI\r\nSET k v\r\n", &long(&["EXEC"], 9_000_000, &[])[..], b"GET k\r\n"].concat();
    let because = "value is 9000000 bytes long, over the limit of 8388608";
    let expected =
        format!("+OK\r\n{queued}-EXECABORT Transaction discarded because of: {because}\r\n$-1\r\n");
    assert_eq!(String::from_utf8(converse(&node, &wire, 1 << 16)).unwrap(), expected);
    let wire = [&long(&["POST"], 9_000_000, &[])[..], b"SET k v\r\n"].concat();
    assert_eq!(converse(&node, &wire, 1 << 16), b"");
}

fn wire_of(requests: &[Vec<Vec<u8>>]) -> Vec<u8> {
    let mut wire = Vec::new();
    requests.iter().for_each(|request| encode_request(request, &mut wire));
    wire
}

#[test]
fn a_pipeline_is_answered_in_order_and_each_reply_in_the_version_of_its_moment() {
    let wire =
        b"GET a\r\n*1\r\n$4\r\nPING\r\nHELLO 3\r\nGET a\r\nSET a 1\r\nRESET\r\nGET b\r\nnope\r\n\
        *1\r\n+nonsense\r\nPING\r\n";
    let replies = String::from_utf8(converse(&Node::new(), wire, 1000)).unwrap();
    assert!(replies.starts_with("$-1\r\n+PONG\r\n%7\r\n"), "{replies}");
    let end = "_\r\n+OK\r\n+RESET\r\n$-1\r\n\
        -ERR unknown command 'nope', with args beginning with: \r\n\
        -ERR Protocol error: expected '$', got '+'\r\n";
    assert!(replies.ends_with(end), "{replies}");
}

#[test]
fn nothing_is_answered_after_quit() {
    let replies = converse(&Node::new(), b"PING\r\nQUIT\r\nPING\r\n", 3);
    assert_eq!(replies, b"+PONG\r\n+OK\r\n");
}

/// Words that commands take for keys, values, numbers and options.
fn word() -> impl Strategy<Value = Vec<u8>> {
    let known = [
        "a",
        "b",
        "0",
        "1",
        "-1",
        "-",
        "+",
        "*",
        "[a-",
        "9223372036854775807",
        "-9223372036854775808",
        "18446744073709551615",
        "nx",
        "xx",
        "get",
        "ex",
        "limit",
        "count",
        "match",
        "type",
        "keys",
        "values",
        "string",
        "setname",
        "auth",
        "2",
        "3",
        "list",
        "info",
        "docs",
        "getkeys",
        "id",
        "filterby",
        "pattern",
        "aclcat",
        "default",
        "all",
        "",
    ];
    prop_oneof![
        9 => prop::sample::select(known.to_vec()).prop_map(|word| word.as_bytes().to_vec()),
        1 => prop::collection::vec(any::<u8>(), 0..6),
    ]
}

fn any_request() -> impl Strategy<Value = Vec<Vec<u8>>> {
    let names: Vec<&str> = TABLE.iter().map(|spec| spec.name).collect();
    let name = prop::sample::select(names).prop_map(|name| name.as_bytes().to_vec());
    let name = prop_oneof![9 => name, 1 => word()];
    (name, prop::collection::vec(word(), 0..6)).prop_map(|(name, mut args)| {
        // An offset of its largest would make a value of 8 MiB each time: allowed, but slow.
        if name.eq_ignore_ascii_case(b"setrange") {
            args.truncate(1);
        }
        args.insert(0, name);
        args
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn any_words_get_one_whole_reply_each_and_chunks_do_not_matter(
        requests in prop::collection::vec(any_request(), 1..30), chunk in 1..60_usize,
    ) {
        let wire = wire_of(&requests);
        let replies = converse(&Node::new(), &wire, wire.len());
        prop_assert_eq!(&converse(&Node::new(), &wire, chunk), &replies);

        let (mut parser, mut buffer) = (ReplyParser::new(), BytesMut::from(&replies[..]));
        let mut count = 0;
        while let Some(reply) = parser.parse(&mut buffer).unwrap() {
            prop_assert!(!matches!(reply, Reply::Push(_)));
            count += 1;
        }
        prop_assert!(buffer.is_empty());
        let quit = requests.iter().position(|words| words[0].eq_ignore_ascii_case(b"quit"));
        prop_assert_eq!(count, quit.map_or(requests.len(), |at| at + 1));
    }

    #[test]
    fn arbitrary_bytes_never_panic(wire in prop::collection::vec(any::<u8>(), 0..200)) {
        converse(&Node::new(), &wire, 7);
    }
}

#[test]
fn every_command_answers_with_its_least_words() {
    let node = Node::new();
    for spec in TABLE {
        let mut words = vec![spec.name.as_bytes().to_vec()];
        words.resize(spec.arity.unsigned_abs() as usize, b"1".to_vec());
        let mut out = Vec::new();
        let mut client = node.client();
        let request =
            gabion_resp::Request { args: words.into_iter().map(bytes::Bytes::from).collect() };
        client.reply(request).encode(Protocol::Resp2, &mut out);
        let text = String::from_utf8_lossy(&out);
        assert!(!text.contains("unknown command"), "{}: {text}", spec.name);
        assert!(!text.contains("wrong number") || spec.name == "config", "{}: {text}", spec.name);
    }
}

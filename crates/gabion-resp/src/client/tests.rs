//! Replies read from pieces of any size: every kind, and the limits.

use super::*;
use crate::mangle::{change, mangle};
use crate::reply::Protocol;
use alloc::format;
use alloc::string::ToString;
use alloc::vec;
use proptest::prelude::*;

type Outcome = (Vec<Reply>, Option<ProtocolError>);

fn run<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Outcome {
    let (mut parser, mut buffer) = (ReplyParser::new(), BytesMut::new());
    let mut replies = Vec::new();
    for piece in pieces {
        buffer.extend_from_slice(piece);
        loop {
            match parser.parse(&mut buffer) {
                Ok(Some(reply)) => replies.push(reply),
                Ok(None) => break,
                Err(error) => return (replies, Some(error)),
            }
        }
    }
    (replies, None)
}

fn text(max: usize) -> impl Strategy<Value = Bytes> {
    prop::collection::vec(0x20..0x7f_u8, 0..max).prop_map(Bytes::from)
}

fn data() -> impl Strategy<Value = Bytes> {
    prop::collection::vec(any::<u8>(), 0..16).prop_map(Bytes::from)
}

/// Replies that RESP3 can express without loss (no `Pairs`, no `NullArray`, no NaN).
fn reply() -> impl Strategy<Value = Reply> {
    let leaf = prop_oneof![
        text(12).prop_map(Reply::Simple),
        text(12).prop_map(Reply::Error),
        any::<i64>().prop_map(Reply::Integer),
        data().prop_map(Reply::Bulk),
        Just(Reply::Null),
        any::<bool>().prop_map(Reply::Boolean),
        any::<f64>().prop_filter("NaN equals nothing", |d| !d.is_nan()).prop_map(Reply::Double),
        any::<i64>().prop_map(|n| Reply::BigNumber(Bytes::from(n.to_string()))),
        data().prop_map(|d| Reply::Verbatim(*b"txt", d)),
    ];
    leaf.prop_recursive(3, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Reply::Array),
            prop::collection::vec((inner.clone(), inner.clone()), 0..3).prop_map(Reply::Map),
            prop::collection::vec(inner.clone(), 0..4).prop_map(Reply::Set),
            prop::collection::vec(inner, 0..4).prop_map(Reply::Push),
        ]
    })
}

proptest! {
    #[test]
    fn a_reply_in_resp3_is_read_back_however_it_is_split(
        replies in prop::collection::vec(reply(), 0..4), chunk in 1..40_usize,
    ) {
        let mut wire = Vec::new();
        replies.iter().for_each(|reply| reply.encode(Protocol::Resp3, &mut wire));
        prop_assert_eq!(&run([&wire[..]]), &(replies.clone(), None));
        prop_assert_eq!(&run(wire.chunks(chunk)), &(replies, None));
    }

    #[test]
    fn a_reply_in_resp2_is_whole_too(reply in reply(), chunk in 1..40_usize) {
        let mut wire = Vec::new();
        reply.encode(Protocol::Resp2, &mut wire);
        let (replies, error) = run(wire.chunks(chunk));
        prop_assert_eq!((replies.len(), error), (1, None));
        // Read as RESP2 and written as RESP2 again it is the same.
        let mut again = Vec::new();
        replies[0].encode(Protocol::Resp2, &mut again);
        prop_assert_eq!(again, wire);
    }

    /// Replies with changed counts and lengths, and with lines repeated, left out, exchanged or
    /// cut.
    /// docs/faults.md: E14
    #[test]
    fn mangled_replies_never_panic_and_never_depend_on_the_split(
        replies in prop::collection::vec(reply(), 1..4),
        changes in prop::collection::vec(change(), 1..6),
        chunk in 1..40_usize,
    ) {
        let mut wire = Vec::new();
        replies.iter().for_each(|reply| reply.encode(Protocol::Resp3, &mut wire));
        let wire = mangle(&wire, &changes);
        let whole = format!("{:?}", run([&wire[..]]));
        prop_assert_eq!(format!("{:?}", run(wire.chunks(chunk))), whole);
    }

    #[test]
    fn arbitrary_bytes_never_panic_and_never_depend_on_the_split(
        input in prop::collection::vec(
            prop_oneof![any::<u8>(), prop::sample::select(&b"+-:$*%~>|_#,(!=019\r\n"[..])], 0..80),
        chunk in 1..9_usize,
    ) {
        let whole = format!("{:?}", run([&input[..]]));
        let split = format!("{:?}", run(input.chunks(chunk)));
        prop_assert_eq!(split, whole);
    }
}

#[test]
fn an_attribute_is_read_and_dropped() {
    let wire = b"*2\r\n|1\r\n+ttl\r\n:3\r\n:1\r\n:2\r\n|0\r\n+OK\r\n";
    let expected = vec![Reply::Array(vec![Reply::Integer(1), Reply::Integer(2)]), Reply::OK];
    assert_eq!(run([&wire[..]]), (expected, None));
}

#[test]
fn a_blob_error_and_nulls_of_resp2_are_read() {
    let wire = b"!8\r\nERR a\r\nb\r\n$-1\r\n*-1\r\n:+5\r\n";
    let expected =
        vec![Reply::error("ERR a\r\nb"), Reply::Null, Reply::NullArray, Reply::Integer(5)];
    assert_eq!(run([&wire[..]]), (expected, None));
}

#[test]
fn nesting_ends_at_its_limit() {
    let nested = |depth: usize| ["*1\r\n".repeat(depth), ":1\r\n".to_string()].concat();
    assert_eq!(run([nested(REPLY_DEPTH_MAX).as_bytes()]).0.len(), 1);
    let over = run([nested(REPLY_DEPTH_MAX + 1).as_bytes()]);
    assert_eq!(over, (vec![], Some(ProtocolError::TooDeep)));
}

#[test]
fn lengths_over_their_caps_are_refused_before_anything_is_reserved() {
    let error = |wire: &str| run([wire.as_bytes()]).1.unwrap().to_string();
    assert!(error("$9223372036854775807\r\n").contains("over the limit of 536870912"));
    assert!(error("*1048577\r\n").contains("1048577 elements are over the limit of 1048576"));
    assert!(error("%9223372036854775807\r\n").contains("over the limit"));
    assert_eq!(error("*-2\r\n"), "Protocol error: malformed reply of type '*'");
    assert_eq!(error("?"), "Protocol error: unknown reply type '?'");
    assert_eq!(error("=3\r\nabc\r\n"), "Protocol error: malformed reply of type '='");
    assert_eq!(error("+a\n"), "Protocol error: malformed reply of type '+'");
    let long = ["+", &"a".repeat(REPLY_LINE_LEN_MAX + 2)].concat();
    assert_eq!(error(&long), "Protocol error: malformed reply of type '+'");
}

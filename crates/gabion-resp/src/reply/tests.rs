//! The bytes of every reply in both versions of the protocol.

use super::*;
use alloc::string::ToString;
use alloc::vec;

fn encoded(reply: &Reply, protocol: Protocol) -> String {
    let mut out = Vec::new();
    reply.encode(protocol, &mut out);
    String::from_utf8(out).unwrap()
}

/// Golden: every client in use expects these bytes.
#[test]
fn every_reply_has_its_bytes_in_both_versions() {
    let pair = (Bytes::from_static(b"k"), Bytes::from_static(b"v"));
    let one = || vec![Reply::Integer(1)];
    for (reply, resp2, resp3) in [
        (Reply::OK, "+OK\r\n", "+OK\r\n"),
        (Reply::error("ERR no"), "-ERR no\r\n", "-ERR no\r\n"),
        (Reply::Integer(-42), ":-42\r\n", ":-42\r\n"),
        (Reply::bulk("foo"), "$3\r\nfoo\r\n", "$3\r\nfoo\r\n"),
        (Reply::bulk(""), "$0\r\n\r\n", "$0\r\n\r\n"),
        (Reply::Encoded(Bytes::from_static(b":7\r\n")), ":7\r\n", ":7\r\n"),
        (Reply::Null, "$-1\r\n", "_\r\n"),
        (Reply::NullArray, "*-1\r\n", "_\r\n"),
        (Reply::Array(vec![]), "*0\r\n", "*0\r\n"),
        (Reply::Array(vec![Reply::Null, Reply::OK]), "*2\r\n$-1\r\n+OK\r\n", "*2\r\n_\r\n+OK\r\n"),
        (
            Reply::Map(vec![(Reply::bulk("a"), Reply::Integer(1))]),
            "*2\r\n$1\r\na\r\n:1\r\n",
            "%1\r\n$1\r\na\r\n:1\r\n",
        ),
        (
            Reply::Pairs(vec![pair]),
            "*2\r\n$1\r\nk\r\n$1\r\nv\r\n",
            "*1\r\n*2\r\n$1\r\nk\r\n$1\r\nv\r\n",
        ),
        (Reply::Set(one()), "*1\r\n:1\r\n", "~1\r\n:1\r\n"),
        (Reply::Push(one()), "*1\r\n:1\r\n", ">1\r\n:1\r\n"),
        (Reply::Boolean(true), ":1\r\n", "#t\r\n"),
        (Reply::Boolean(false), ":0\r\n", "#f\r\n"),
        (Reply::Double(1.5), "$3\r\n1.5\r\n", ",1.5\r\n"),
        (Reply::Double(10.0), "$2\r\n10\r\n", ",10\r\n"),
        (Reply::Double(f64::NEG_INFINITY), "$4\r\n-inf\r\n", ",-inf\r\n"),
        (Reply::Double(f64::INFINITY), "$3\r\ninf\r\n", ",inf\r\n"),
        (Reply::Double(f64::NAN), "$3\r\nnan\r\n", ",nan\r\n"),
        (Reply::BigNumber(Bytes::from_static(b"-12")), "$3\r\n-12\r\n", "(-12\r\n"),
        (Reply::Verbatim(*b"txt", Bytes::from_static(b"hi")), "$2\r\nhi\r\n", "=6\r\ntxt:hi\r\n"),
    ] {
        assert_eq!(encoded(&reply, Protocol::Resp2), resp2, "{reply:?}");
        assert_eq!(encoded(&reply, Protocol::Resp3), resp3, "{reply:?}");
    }
}

#[test]
fn line_ends_in_an_error_cannot_forge_a_second_reply() {
    let reply = Reply::error_from("ERR key 'a\r\n+OK\r\n'".to_string());
    assert_eq!(encoded(&reply, Protocol::Resp2), "-ERR key 'a  +OK  '\r\n");
}

#[test]
fn aggregates_inside_aggregates_keep_the_version() {
    let reply = Reply::Array(vec![Reply::Map(vec![(Reply::bulk("a"), Reply::Null)])]);
    assert_eq!(encoded(&reply, Protocol::Resp3), "*1\r\n%1\r\n$1\r\na\r\n_\r\n");
    assert_eq!(encoded(&reply, Protocol::Resp2), "*1\r\n*2\r\n$1\r\na\r\n$-1\r\n");
}

#[test]
fn a_reply_takes_at_least_its_data_and_its_elements() {
    let data = || Bytes::from(vec![b'x'; 1000]);
    let one = size_of::<Reply>();
    assert_eq!(Reply::Null.memory(), one);
    assert_eq!(Reply::Bulk(data()).memory(), one + 1000);
    assert_eq!(Reply::Array(vec![Reply::Bulk(data()); 3]).memory(), one + 3 * (one + 1000));
    assert_eq!(Reply::Map(vec![(Reply::Null, Reply::OK)]).memory(), 3 * one + 2);
    assert!(Reply::Pairs(vec![(data(), data())]).memory() > one + 2000);
}

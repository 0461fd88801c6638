//! DUMP and RESTORE: bytes as Redis 7.0.15 gave them, with `rdbcompression no` and then `yes`.

use super::support::{Client, Node, request_of};
use crate::commands::{Call, Op, Work};
use bytes::Bytes;
use gabion_base::units::VALUE_LEN_MAX;
use gabion_resp::Reply;
use proptest::prelude::*;

const BAR: &[u8] = b"\x00\x03bar\x0a\x00\xe6\xbeI`\xeef\xfd\x17";

const DUMPS: &[(&[u8], &[u8])] = &[
    (b"bar", b"\x00\x03bar\x0a\x00\xe6\xbeI`\xeef\xfd\x17"),
    (b"", b"\x00\x00\x0a\x00]\x9b\x5c@\x0f\x7f\xa2\xda"),
    (b"0", b"\x00\xc0\x00\x0a\x00\x98@\xa7x\xf8P\x03\x08"),
    (b"-1", b"\x00\xc0\xff\x0a\x00\x0c\x93~$\x85\x08\x9d\xc5"),
    (b"127", b"\x00\xc0\x7f\x0a\x00\x0d\xb5\xeb1RT\xc5\x14"),
    (b"128", b"\x00\xc1\x80\x00\x0a\x00\xebz\xb3\xb5\x10\xcfKe"),
    (b"-128", b"\x00\xc0\x80\x0a\x00\x99f2m/\x0c[\xd9"),
    (b"-129", b"\x00\xc1\x7f\xff\x0a\x00\x17`\x82(T\x80\x84\x80"),
    (b"32767", b"\x00\xc1\xff\x7f\x0a\x00IZ7\xda\x17\xf4\xd5+"),
    (b"32768", b"\x00\xc2\x00\x80\x00\x00\x0a\x00E\xd8.\xed\xd5\xbd\xa9\x10"),
    (b"-32769", b"\x00\xc2\xff\x7f\xff\xff\x0a\x00\xae\xe3LM\x06\xc6\x856"),
    (b"2147483647", b"\x00\xc2\xff\xff\xff\x7f\x0a\x00,t\xe5\x9e\xe0.\xad\xa1"),
    (b"-2147483648", b"\x00\xc2\x00\x00\x00\x80\x0a\x00\xc7O\x87>3U\x81\x87"),
    (b"2147483648", b"\x00\x0a2147483648\x0a\x00\xe7\xb1)\xa3L\x1dv\xee"),
    (b"-2147483649", b"\x00\x0b-2147483649\x0a\x00\xc2a7y\x08\xf2\x02\x8c"),
    (b"007", b"\x00\x03007\x0a\x00rX\xe2{Li\xba\xd9"),
    (b"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx", b"\x00?xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\x0a\x00\x14\x0cy\x5c\xdf\xfb\xaa\xfb"),
    (b"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx", b"\x00@@xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\x0a\x007l\x9d\x02=\xc5)s"),
];

const COMPRESSED: &[(&[u8], &[u8])] = &[
    (
        b"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
        b"\x00\xc3\x09\x1e\x01aa\xe0\x11\x00\x01aa\x0a\x00Es|\xbb+d{\xbb",
    ),
    (
        b"abcabcabcabcabcabcabcabcabc-",
        b"\x00\xc3\x0b\x1c\x03abca\xe0\x0d\x02\x01c-\x0a\x00\x1ep\xd4\xd5m\xb9\xfd7",
    ),
];

fn dump(client: &mut Client) -> Bytes {
    let Reply::Bulk(payload) = client.reply(request_of(&[b"DUMP", b"k"])) else {
        panic!("no payload");
    };
    payload
}

fn restore(client: &mut Client, payload: &[u8]) -> Reply {
    client.reply(request_of(&[b"RESTORE", b"k", b"0", payload, b"REPLACE"]))
}

fn value(client: &mut Client) -> Bytes {
    let Reply::Bulk(value) = client.reply(request_of(&[b"GET", b"k"])) else { panic!("no value") };
    value
}

#[test]
fn values_are_dumped_as_by_redis_and_restored() {
    let mut client = Node::new().client();
    assert_eq!(client.ask("DUMP k"), "$-1\r\n");
    for (bytes, payload) in DUMPS {
        client.reply(request_of(&[b"SET", b"k", bytes]));
        assert_eq!(&dump(&mut client)[..], *payload);
        client.ask("DEL k");
        assert_eq!(restore(&mut client, payload), Reply::OK);
        assert_eq!(&value(&mut client)[..], *bytes);
    }
    for (len, header) in [(16_383, &b"\x00\x7f\xff"[..]), (16_384, b"\x00\x80\x00\x00\x40\x00")] {
        client.reply(request_of(&[b"SET", b"k", &vec![b'x'; len]]));
        let payload = dump(&mut client);
        assert_eq!((&payload[..header.len()], payload.len()), (header, header.len() + len + 10));
    }
    assert!(dump(&mut client).ends_with(b"\x0a\x00\xfc\xb0\xfa)Iu\xb7\xb8"));
}

#[test]
fn what_redis_has_compressed_is_restored() {
    let mut client = Node::new().client();
    for (bytes, payload) in COMPRESSED {
        assert_eq!(restore(&mut client, payload), Reply::OK);
        assert_eq!(&value(&mut client)[..], *bytes);
    }
    // Copies from far back, and long ones.
    let digits =
        b"\x00\xc3\x15A\x90\x0a01234567890\xe0\xff\x09\xe1r\x0d\x0189\x0a\x00\x15Ph\x17\xa6$P`";
    assert_eq!(restore(&mut client, digits), Reply::OK);
    assert_eq!(value(&mut client), "0123456789".repeat(40));
    let letters = b"\x00\xc3)A^\x19ABCDEFGHIJKLMNOPQRSTUVWXYx\xe0\xff\x00\xe0\x1a\x00\x00A\xe1\x0dD\x01XY\x0a\x00;\x14\x9b\xd8L=E\xe5";
    assert_eq!(restore(&mut client, letters), Reply::OK);
    let alphabet: String = ('A'..='Y').collect();
    assert_eq!(value(&mut client), alphabet.clone() + &"x".repeat(300) + &alphabet);
}

/// A payload of these bytes with a footer that is right.
fn payload_of(body: &[u8], version: u16) -> Vec<u8> {
    let mut payload = [body, &version.to_le_bytes()].concat();
    let crc = crate::commands::dump::crc64::crc64(0, &payload);
    payload.extend_from_slice(&crc.to_le_bytes());
    payload
}

#[test]
fn what_is_no_string_of_a_known_version_is_refused() {
    let checksum = "ERR DUMP payload version or checksum are wrong";
    let format = "ERR Bad data format";
    let list = b"\x12\x01\x02\x0a\x0a\x00\x00\x00\x01\x00\x81a\x02\xff\x0a\x00\x09\xb9\xed\xf5\x94\xde\xd9\x95";
    let packed = |bytes: &[u8]| payload_of(bytes, 10);
    let long_len = (VALUE_LEN_MAX as u32 + 1).to_be_bytes();
    for (payload, error) in [
        (b"".to_vec(), checksum),
        (b"bar".to_vec(), checksum),
        ([BAR, b"x"].concat(), checksum),
        (BAR[..BAR.len() - 1].to_vec(), checksum),
        (payload_of(b"\x00\x03bar", 13), checksum),
        (list.to_vec(), "ERR Bad data format: a value of type 18; the only type is string, 0"),
        (packed(b""), format),
        (packed(b"\x00"), format),
        (packed(b"\x00\x04bar"), format),
        (packed(b"\x00\x03bars"), format),
        (packed(b"\x00\x40"), format),
        (packed(b"\x00\x82\x00"), format),
        (packed(b"\x00\xc0"), format),
        (packed(b"\x00\xc4\x00"), format),
        // Compressed: shorter and longer than it says, from before the beginning, cut off.
        (packed(b"\x00\xc3\x02\x02\x00a"), format),
        (packed(b"\x00\xc3\x03\x01\x01ab"), format),
        (packed(b"\x00\xc3\x04\x09\x00a\x20\x01"), format),
        (packed(b"\x00\xc3\x04\x02\x00a\x20\x00"), format),
        (packed(b"\x00\xc3\x03\x09\x00a\x20"), format),
        (packed(b"\x00\xc3\x03\x09\x00a\xe0"), format),
        (packed(b"\x00\xc3\x81\xff\xff\xff\xff\xff\xff\xff\xff\x01"), format),
        (
            packed(&[b"\x00\x80", &long_len[..]].concat()),
            "ERR value is 8388609 bytes long, over the limit of 8388608",
        ),
        (
            packed(b"\x00\xc3\x01\x81\xff\xff\xff\xff\xff\xff\xff\xff"),
            "ERR value is 18446744073709551615 bytes long, over the limit of 8388608",
        ),
    ] {
        let node = Node::new();
        assert_eq!(
            restore(&mut node.client(), &payload),
            Reply::error_from(error.into()),
            "{payload:x?}"
        );
        assert!(node.store.records.borrow().is_empty());
    }
    // What is new in newer versions is not in strings.
    assert_eq!(restore(&mut Node::new().client(), &payload_of(b"\x00\x03bar", 12)), Reply::OK);
    assert_eq!(restore(&mut Node::new().client(), &payload_of(b"\x00\x03bar", 1)), Reply::OK);
}

#[test]
fn restored_keys_expire_and_replace_only_where_that_is_asked() {
    let node = Node::new();
    node.store.pass(1_000_000);
    let mut client = node.client();
    let mut ask = |words: &str| {
        let (time, options) = words.split_once(' ').unwrap_or((words, ""));
        let mut args: Vec<&[u8]> = vec![b"RESTORE", b"k", time.as_bytes(), BAR];
        args.extend(options.split_whitespace().map(str::as_bytes));
        let mut out = Vec::new();
        client.reply(request_of(&args)).encode(gabion_resp::Protocol::Resp2, &mut out);
        (String::from_utf8(out).unwrap(), node.client().ask("PTTL k"))
    };
    let (ok, busy) = ("+OK\r\n", "-BUSYKEY Target key name already exists.\r\n");
    for (words, reply, ttl) in [
        ("-1", "-ERR Invalid TTL value, must be >= 0\r\n", ":-2\r\n"),
        ("x", "-ERR value is not an integer or out of range\r\n", ":-2\r\n"),
        ("0 foo", "-ERR syntax error\r\n", ":-2\r\n"),
        ("0 IDLETIME", "-ERR syntax error\r\n", ":-2\r\n"),
        ("0 IDLETIME 1 FREQ 1", "-ERR syntax error\r\n", ":-2\r\n"),
        ("0 IDLETIME -1", "-ERR Invalid IDLETIME value, must be >= 0\r\n", ":-2\r\n"),
        ("0 FREQ 256", "-ERR Invalid FREQ value, must be >= 0 and <= 255\r\n", ":-2\r\n"),
        ("5000", ok, ":5000\r\n"),
        ("0", busy, ":5000\r\n"),
        ("-1", busy, ":5000\r\n"),
        ("0 replace", ok, ":-1\r\n"),
        ("1003000 ABSTTL REPLACE", ok, ":3000\r\n"),
        ("9223372036854775807 REPLACE IDLETIME 7", ok, ":9223372036853775807\r\n"),
        ("1000 ABSTTL REPLACE FREQ 7", ok, ":-2\r\n"),
        ("1000000 ABSTTL", ok, ":-2\r\n"),
    ] {
        assert_eq!(ask(words), (reply.to_string(), ttl.to_string()), "{words}");
    }
    let records = node.store.records.borrow();
    assert_eq!(
        records.last(),
        Some(&vec![Op::Delete("k".into())]),
        "what has expired is not written"
    );
}

#[test]
fn the_time_of_day_of_a_restored_key_is_that_of_the_systems_clock() {
    for (ahead_ms, at, ttl) in [
        (5_000, "1008000", ":3000\r\n"),
        (-5_000, "998000", ":3000\r\n"),
        (5_000, "1005000", ":-2\r\n"),
        (5_000, "4000", ":-2\r\n"),
        (-5_000, "9223372036854775807", ":9223372036853775807\r\n"),
    ] {
        let node = Node::new();
        node.store.pass(1_000_000);
        node.store.system_ahead_ms.set(ahead_ms);
        let mut client = node.client();
        let words = [&b"RESTORE"[..], b"k", at.as_bytes(), BAR, b"ABSTTL"];
        assert_eq!(client.reply(request_of(&words)), Reply::OK);
        assert_eq!(client.ask("PTTL k"), ttl, "{ahead_ms} {at}");
    }
}

#[test]
fn others_come_between_the_parts_of_a_long_value() {
    let node = Node::new();
    node.store.hold("k".into(), Bytes::from(vec![b'v'; 4 << 20]));
    let payload = dump(&mut node.client());
    let polls = |words: &[&[u8]]| node.polls(&Work::Call(Call::new(request_of(words)).unwrap()));
    assert_eq!(polls(&[b"DUMP", b"k"]), 4);
    assert_eq!(polls(&[b"RESTORE", b"l", b"0", &payload]), 4);
    assert_eq!(node.client().ask("STRLEN l"), ":4194304\r\n");
}

proptest! {
    #[test]
    fn every_value_comes_back(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let mut client = Node::new().client();
        client.reply(request_of(&[b"SET", b"k", &bytes]));
        let payload = dump(&mut client);
        prop_assert_eq!(restore(&mut client, &payload), Reply::OK);
        prop_assert_eq!(&value(&mut client)[..], &bytes[..]);
    }

    /// Bytes that nearly are a value, also compressed: an error or a value, never more.
    #[test]
    fn bad_bytes_do_no_harm(
        kind in prop_oneof![Just(0xc3_u8), any::<u8>()],
        bytes in prop::collection::vec(any::<u8>(), 0..40),
    ) {
        let payload = payload_of(&[&[0, kind], &bytes[..]].concat(), 10);
        let mut client = Node::new().client();
        let reply = restore(&mut client, &payload);
        prop_assert!(reply.is_error() || value(&mut client).len() <= VALUE_LEN_MAX);
    }
}

//! Bits of values, and integers within them: replies as Redis 7.0.15 gave them.

use super::support::{Node, request, request_of};
use bytes::Bytes;
use gabion_base::units::VALUE_LEN_MAX;
use gabion_resp::Reply;
use proptest::prelude::*;

const NOT_AN_INTEGER: &str = "-ERR value is not an integer or out of range\r\n";
const OFFSET: &str = "-ERR bit offset is not an integer or out of range\r\n";
const BIT: &str = "-ERR bit is not an integer or out of range\r\n";
const SYNTAX: &str = "-ERR syntax error\r\n";

fn node_with(value: &[u8]) -> Node {
    let node = Node::new();
    node.store.hold("k".into(), Bytes::copy_from_slice(value));
    node
}

#[test]
fn a_bit_is_set_and_read_and_the_value_grows_as_far_as_to_it() {
    let node = Node::new();
    let mut client = node.client();
    client.script(&[
        ("SETBIT k 1 1", ":0\r\n"),
        ("GET k", "$1\r\n@\r\n"),
        ("SETBIT k 1 0", ":1\r\n"),
        ("SETBIT k 23 1", ":0\r\n"),
        ("GET k", "$3\r\n\0\0\u{1}\r\n"),
        ("GETBIT k 23", ":1\r\n"),
        ("GETBIT k 22", ":0\r\n"),
        ("GETBIT k 24", ":0\r\n"),
        ("GETBIT none 100", ":0\r\n"),
        ("SET n 1234 EX 100", "+OK\r\n"),
        ("SETBIT n 6 1", ":0\r\n"),
        ("GET n", "$4\r\n3234\r\n"),
        ("TTL n", ":100\r\n"),
    ]);
    // A bit that is so already is nothing to write; a key that is new is.
    let records = node.store.records.borrow().len();
    client.script(&[("SETBIT k 23 1", ":1\r\n"), ("SETBIT k 0 0", ":0\r\n")]);
    assert_eq!(node.store.records.borrow().len(), records);
    client.script(&[("SETBIT new 9 0", ":0\r\n"), ("GET new", "$2\r\n\0\0\r\n")]);
}

#[test]
fn offsets_that_no_value_has_are_refused_with_the_limit() {
    let over = |offset: u64| {
        format!(
            "-ERR bit offset is not an integer or out of range: {offset} is not below 67108864, \
             the bits of the longest value (8388608 bytes)\r\n"
        )
    };
    let mut client = Node::new().client();
    client.script(&[
        ("SETBIT k -1 1", OFFSET),
        ("SETBIT k x 1", OFFSET),
        ("GETBIT k 1.5", OFFSET),
        ("SETBIT k 0 2", BIT),
        ("SETBIT k 0 -1", BIT),
        ("SETBIT k 0 x", BIT),
        ("SETBIT k 67108864 1", &over(67_108_864)),
        ("GETBIT k 4294967296", &over(4_294_967_296)),
        ("BITFIELD k GET u8 67108864", &over(67_108_864)),
        ("BITFIELD k SET u8 67108857 1", &over(67_108_864)),
        ("BITFIELD k SET i64 #1048576 1", &over(67_108_864)),
        ("BITFIELD k GET i64 #9223372036854775807", OFFSET),
        ("EXISTS k", ":0\r\n"),
        ("SETBIT k 67108863 1", ":0\r\n"),
        ("BITFIELD k GET u8 67108860 SET u8 67108856 255", "*2\r\n:16\r\n:1\r\n"),
        ("STRLEN k", ":8388608\r\n"),
    ]);
}

#[test]
fn bits_are_counted_in_bytes_or_bits_from_either_end() {
    // "foobar": 26 bits are set.
    node_with(b"foobar").client().script(&[
        ("BITCOUNT k", ":26\r\n"),
        ("BITCOUNT none", ":0\r\n"),
        ("BITCOUNT k 0 0", ":4\r\n"),
        ("BITCOUNT k 1 1 byte", ":6\r\n"),
        ("BITCOUNT k 0 -5", ":10\r\n"),
        ("BITCOUNT k 5 30 BIT", ":17\r\n"),
        ("BITCOUNT k 1 1 BIT", ":1\r\n"),
        ("BITCOUNT k 0 0 BIT", ":0\r\n"),
        ("BITCOUNT k -4 -1 BIT", ":1\r\n"),
        ("BITCOUNT k -2 -3", ":0\r\n"),
        ("BITCOUNT k -100 -200", ":0\r\n"),
        ("BITCOUNT k 0 -200", ":4\r\n"),
        ("BITCOUNT k 6 100", ":0\r\n"),
        ("BITCOUNT k 0 9223372036854775807", ":26\r\n"),
        ("BITCOUNT k -9223372036854775808 9223372036854775807 bit", ":26\r\n"),
        ("BITCOUNT k 0", SYNTAX),
        ("BITCOUNT k 0 1 foo", SYNTAX),
        ("BITCOUNT k 0 1 bit x", SYNTAX),
        ("BITCOUNT k a b", NOT_AN_INTEGER),
        // As Redis does from 7.2 on.
        ("BITCOUNT none a b", NOT_AN_INTEGER),
    ]);
}

#[test]
fn the_first_bit_is_found_and_zeros_follow_where_no_end_is_given() {
    node_with(b"\xff\xf0\x00").client().script(&[
        ("BITPOS k 1", ":0\r\n"),
        ("BITPOS k 0", ":12\r\n"),
        ("BITPOS k 1 2", ":-1\r\n"),
        ("BITPOS k 0 0 0", ":-1\r\n"),
        ("BITPOS k 0 1", ":12\r\n"),
        ("BITPOS k 1 5 100 BIT", ":5\r\n"),
        ("BITPOS k 0 5 11 BIT", ":-1\r\n"),
        ("BITPOS k 0 5 12 BIT", ":12\r\n"),
        ("BITPOS k 1 -16 -9 bit", ":8\r\n"),
        ("BITPOS k 0 -1 -3", ":-1\r\n"),
        ("BITPOS k 1 -20 -30", ":0\r\n"),
        ("BITPOS none 0", ":0\r\n"),
        ("BITPOS none 1", ":-1\r\n"),
        ("BITPOS k 2", "-ERR The bit argument must be 1 or 0.\r\n"),
        ("BITPOS k x", NOT_AN_INTEGER),
        ("BITPOS k 0 x", NOT_AN_INTEGER),
        ("BITPOS k 0 0 x", NOT_AN_INTEGER),
        ("BITPOS k 0 0 1 foo", SYNTAX),
        ("BITPOS k 0 0 1 bit x", SYNTAX),
        ("SET ones \"\\xff\\xff\"", "+OK\r\n"),
        ("BITPOS ones 0", ":16\r\n"),
        ("BITPOS ones 0 1", ":16\r\n"),
        ("BITPOS ones 0 2", ":-1\r\n"),
        ("BITPOS ones 0 0 -1", ":-1\r\n"),
        ("SET empty ''", "+OK\r\n"),
        ("BITPOS empty 0", ":-1\r\n"),
    ]);
}

#[test]
fn bitop_joins_values_of_different_lengths() {
    let node = Node::new();
    node.client().script(&[
        ("MSET a \"\\xf0\\xff\\x01\" b \"\\x3c\\x0f\" c abc", "+OK\r\n"),
        ("BITOP AND t a b", ":3\r\n"),
        ("BITFIELD_RO t GET u24 0", "*1\r\n:3149568\r\n"),
        ("BITOP or t a b", ":3\r\n"),
        ("BITFIELD_RO t GET u24 0", "*1\r\n:16580353\r\n"),
        ("BITOP XOR t b a", ":3\r\n"),
        ("BITFIELD_RO t GET u24 0", "*1\r\n:13430785\r\n"),
        ("BITOP NOT t a", ":3\r\n"),
        ("BITFIELD_RO t GET u24 0", "*1\r\n:983294\r\n"),
        ("BITOP AND t c none c", ":3\r\n"),
        ("GET t", "$3\r\n\0\0\0\r\n"),
        ("BITOP XOR c c c", ":3\r\n"),
        ("GET c", "$3\r\n\0\0\0\r\n"),
        ("SET t 1 EX 100", "+OK\r\n"),
        ("BITOP OR t a", ":3\r\n"),
        ("TTL t", ":-1\r\n"),
        ("BITOP OR t none nothing", ":0\r\n"),
        ("EXISTS t", ":0\r\n"),
        ("BITOP NOT t none", ":0\r\n"),
        ("BITOP NOT t a b", "-ERR BITOP NOT must be called with a single source key.\r\n"),
        ("BITOP foo t a", SYNTAX),
        ("BITOP NOT t", "-ERR wrong number of arguments for 'bitop' command\r\n"),
    ]);
}

#[test]
fn bitop_reads_no_more_than_it_may_and_lets_others_come_between() {
    let node = node_with(&vec![0x55; VALUE_LEN_MAX]);
    let mut client = node.client();
    // With a source that is not there nothing is left to join.
    let mut bit_op = |sources: usize| {
        let mut words: Vec<&[u8]> = vec![b"BITOP", b"AND", b"t", b"none"];
        words.resize(4 + sources, b"k");
        client.reply(request_of(&words))
    };
    let error = "ERR the values that BITOP reads are over the limit of 1073741824 bytes";
    assert_eq!(bit_op(129), Reply::error(error));
    assert!(node.store.records.borrow().is_empty());
    assert_eq!(bit_op(128), Reply::Integer(8 << 20));

    let call = crate::commands::Call::new(request("BITOP AND t k k k")).unwrap();
    assert_eq!(node.polls(&crate::commands::Work::Call(call)), 3, "one after each MiB");
}

#[test]
fn bitfields_read_set_and_add() {
    Node::new().client().script(&[
        ("BITFIELD k", "*0\r\n"),
        ("EXISTS k", ":0\r\n"),
        ("BITFIELD k SET i8 0 -100 GET i8 0", "*2\r\n:0\r\n:-100\r\n"),
        ("BITFIELD k set i8 0 101", "*1\r\n:-100\r\n"),
        ("BITFIELD k SET u8 0 255 GET i8 0 GET u4 4", "*3\r\n:101\r\n:-1\r\n:15\r\n"),
        ("BITFIELD k SET u8 #0 65 SET u8 #1 66 SET u8 #2 67", "*3\r\n:255\r\n:0\r\n:0\r\n"),
        ("GET k", "$3\r\nABC\r\n"),
        ("BITFIELD k INCRBY u8 #0 1 INCRBY u8 8 1", "*2\r\n:66\r\n:67\r\n"),
        ("BITFIELD_RO k GET u8 0 GET i64 1000", "*2\r\n:66\r\n:0\r\n"),
        (
            "BITFIELD k SET i64 5 -9223372036854775808 GET i64 5",
            "*2\r\n:5217525721424986112\r\n:-9223372036854775808\r\n",
        ),
        ("BITFIELD k INCRBY i64 5 -1", "*1\r\n:9223372036854775807\r\n"),
        ("BITFIELD k OVERFLOW FAIL INCRBY i64 5 1", "*1\r\n$-1\r\n"),
    ]);
}

#[test]
fn a_number_that_does_not_fit_wraps_saturates_or_fails() {
    let node = Node::new();
    let mut client = node.client();
    client.script(&[
        ("BITFIELD k SET u8 0 100", "*1\r\n:0\r\n"),
        ("BITFIELD k OVERFLOW wrap INCRBY u8 0 257", "*1\r\n:101\r\n"),
        ("BITFIELD k INCRBY u8 0 -102", "*1\r\n:255\r\n"),
        ("BITFIELD k OVERFLOW sat INCRBY u8 0 257", "*1\r\n:255\r\n"),
        ("BITFIELD k OVERFLOW sat INCRBY u8 0 -255 INCRBY u8 0 -1", "*2\r\n:0\r\n:0\r\n"),
        ("BITFIELD k OVERFLOW SAT SET u8 0 -1 GET u8 0", "*2\r\n:0\r\n:255\r\n"),
        ("BITFIELD k OVERFLOW FAIL SET u8 0 256 GET u8 0", "*2\r\n$-1\r\n:255\r\n"),
        ("BITFIELD k SET i8 0 127", "*1\r\n:-1\r\n"),
        ("BITFIELD k INCRBY i8 0 1", "*1\r\n:-128\r\n"),
        (
            "BITFIELD k OVERFLOW SAT INCRBY i8 0 -1 OVERFLOW WRAP INCRBY i8 0 -1",
            "*2\r\n:-128\r\n:127\r\n",
        ),
        ("BITFIELD k SET i8 0 200 GET i8 0", "*2\r\n:127\r\n:-56\r\n"),
    ]);
    // Redis makes room for a write before it knows that it fails; where there is room nothing is written.
    client.script(&[
        ("BITFIELD new OVERFLOW FAIL INCRBY u2 14 4", "*1\r\n$-1\r\n"),
        ("GET new", "$2\r\n\0\0\r\n"),
    ]);
    let records = node.store.records.borrow().len();
    client.script(&[("BITFIELD new OVERFLOW FAIL INCRBY u2 14 4", "*1\r\n$-1\r\n")]);
    assert_eq!(node.store.records.borrow().len(), records);
    client.ask("HELLO 3");
    client.script(&[("BITFIELD new OVERFLOW FAIL INCRBY u2 14 4", "*1\r\n_\r\n")]);
}

#[test]
fn bitfields_that_mean_nothing_get_the_words_of_redis() {
    let kind = "-ERR Invalid bitfield type. Use something like i16 u8. \
                Note that u64 is not supported but i64 is.\r\n";
    let only_get = "-ERR BITFIELD_RO only supports the GET subcommand\r\n";
    Node::new().client().script(&[
        ("BITFIELD k GET u64 0", kind),
        ("BITFIELD k GET i65 0", kind),
        ("BITFIELD k GET u0 0", kind),
        ("BITFIELD k GET x8 0", kind),
        ("BITFIELD k GET U8 0", kind),
        ("BITFIELD k GET i 0", kind),
        ("BITFIELD k GET u8 -1", OFFSET),
        ("BITFIELD k GET u8 #", OFFSET),
        ("BITFIELD k GET u8 #-1", OFFSET),
        ("BITFIELD k SET u8 0 x", NOT_AN_INTEGER),
        ("BITFIELD k SET u8 0", SYNTAX),
        ("BITFIELD k GET u8", SYNTAX),
        ("BITFIELD k FOO u8 0", SYNTAX),
        ("BITFIELD k OVERFLOW", SYNTAX),
        ("BITFIELD k OVERFLOW foo", "-ERR Invalid OVERFLOW type specified\r\n"),
        ("BITFIELD_RO k SET u8 0 1", only_get),
        ("BITFIELD_RO k GET u8 0 INCRBY u8 0 1", only_get),
        ("EXISTS k", ":0\r\n"),
    ]);
}

/// The bits of a value, the first one first.
fn bits_of(value: &[u8]) -> Vec<bool> {
    value.iter().flat_map(|byte| (0..8).map(move |bit| byte & 0x80 >> bit != 0)).collect()
}

proptest! {
    /// Counting and finding, held against the bits one by one.
    #[test]
    fn ranges_of_bits_are_what_they_say(
        value in prop::collection::vec(prop_oneof![Just(0_u8), Just(0xff), any::<u8>()], 0..40),
        start in -50..50_i64,
        end in -50..50_i64,
        in_bits: bool,
        wanted: bool,
    ) {
        let mut client = node_with(&value).client();
        let bits = bits_of(&value);
        let unit = if in_bits { 1 } else { 8 };
        let len = (bits.len() / unit) as i64;
        let resolve = |at: i64| if at < 0 { (len + at).max(0) } else { at };
        let places = (resolve(start)..=resolve(end).min(len - 1))
            .flat_map(|at| (0..unit).map(move |bit| at as usize * unit + bit));
        let count = match start < 0 && end < 0 && start > end {
            true => 0,
            false => places.clone().filter(|&at| bits[at]).count(),
        };
        let first = places.clone().find(|&at| bits[at] == wanted).map_or(-1, |at| at as i64);
        let name = if in_bits { "BIT" } else { "BYTE" };
        let counted = client.ask(&format!("BITCOUNT k {start} {end} {name}"));
        prop_assert_eq!(counted, format!(":{count}\r\n"));
        let found = client.ask(&format!("BITPOS k {} {start} {end} {name}", u8::from(wanted)));
        prop_assert_eq!(found, format!(":{first}\r\n"));
    }

    /// A field reads what was set, and its neighbours stay as they were.
    #[test]
    fn a_field_changes_its_own_bits_only(
        value in prop::collection::vec(any::<u8>(), 0..24),
        offset in 0..150_usize,
        width in 1..=64_usize,
        number: i64,
    ) {
        let node = node_with(&value);
        let mut client = node.client();
        let reply = client.ask(&format!("BITFIELD k SET i{width} {offset} {number} GET i{width} {offset}"));
        let kept = (i128::from(number) << (128 - width)) >> (128 - width);
        prop_assert!(reply.ends_with(&format!(":{kept}\r\n")), "{}", reply);
        let Reply::Bulk(new) = client.reply(request("GET k")) else { panic!("no value") };
        let mut expected = bits_of(&value);
        expected.resize(expected.len().max((offset + width).next_multiple_of(8)), false);
        for bit in 0..width {
            expected[offset + bit] = number >> (width - 1 - bit) & 1 == 1;
        }
        prop_assert_eq!(bits_of(&new), expected);
    }
}

//! LCS: replies as Redis 7.0.15 gave them.

use super::support::{Node, request};
use crate::commands::{Call, Work};
use bytes::Bytes;
use core::pin::pin;
use core::task::{Context, Waker};
use gabion_resp::Reply;
use proptest::prelude::*;

const SYNTAX: &str = "-ERR syntax error\r\n";

#[test]
fn the_longest_common_subsequence_comes_as_text_length_or_pieces() {
    let node = Node::new();
    let mut client = node.client();
    client.script(&[
        ("MSET a ohmytext b mynewtext", "+OK\r\n"),
        ("LCS a b", "$6\r\nmytext\r\n"),
        ("LCS a b LEN", ":6\r\n"),
        (
            "LCS a b IDX",
            "*4\r\n$7\r\nmatches\r\n*2\r\n*2\r\n*2\r\n:4\r\n:7\r\n*2\r\n:5\r\n:8\r\n\
             *2\r\n*2\r\n:2\r\n:3\r\n*2\r\n:0\r\n:1\r\n$3\r\nlen\r\n:6\r\n",
        ),
        (
            "LCS a b idx MINMATCHLEN 4 withmatchlen",
            "*4\r\n$7\r\nmatches\r\n*1\r\n*3\r\n*2\r\n:4\r\n:7\r\n*2\r\n:5\r\n:8\r\n:4\r\n\
             $3\r\nlen\r\n:6\r\n",
        ),
        ("LCS a b IDX MINMATCHLEN 5", "*4\r\n$7\r\nmatches\r\n*0\r\n$3\r\nlen\r\n:6\r\n"),
        ("LCS a none", "$0\r\n\r\n"),
        ("LCS a none LEN", ":0\r\n"),
        ("LCS a none IDX", "*4\r\n$7\r\nmatches\r\n*0\r\n$3\r\nlen\r\n:0\r\n"),
        ("LCS a a", "$8\r\nohmytext\r\n"),
        (
            "LCS a b LEN IDX",
            "-ERR If you want both the length and indexes, please just use IDX.\r\n",
        ),
        ("LCS a b MINMATCHLEN", SYNTAX),
        ("LCS a b foo", SYNTAX),
        ("LCS a b MINMATCHLEN x", "-ERR value is not an integer or out of range\r\n"),
        ("LCS a", "-ERR wrong number of arguments for 'lcs' command\r\n"),
    ]);
    client.ask("HELLO 3");
    client.script(&[(
        "LCS a b IDX MINMATCHLEN 5",
        "%2\r\n$7\r\nmatches\r\n*0\r\n$3\r\nlen\r\n:6\r\n",
    )]);
}

#[test]
fn values_that_are_too_long_together_are_refused_with_the_limit() {
    let node = Node::new();
    node.store.hold("a".into(), Bytes::from(vec![b'a'; 16_383]));
    node.store.hold("b".into(), Bytes::from(vec![b'b'; 8_192]));
    assert_eq!(
        node.client().ask("LCS a b LEN"),
        "-ERR Insufficient memory, transient memory for LCS exceeds proto-max-bulk-len: the \
         lengths plus one, multiplied, are 134234112, over the limit of 134217728\r\n"
    );
}

#[test]
fn others_come_between_but_no_other_lcs() {
    let node = Node::new();
    node.store.hold("a".into(), Bytes::from(vec![b'a'; 2 << 10]));
    node.store.hold("b".into(), Bytes::from(vec![b'b'; 2 << 10]));
    let call = |line: &str| Work::Call(Call::new(request(line)).unwrap());
    let work = call("LCS a b");
    assert_eq!(node.polls(&work), 4, "one for each million of four");

    let mut cx = Context::from_waker(Waker::noop());
    let mut first = pin!(node.commands.execute(&*node.store, &work));
    assert!(first.as_mut().poll(&mut cx).is_pending());
    let reads = node.store.look_ups.get();
    let small = call("LCS none none");
    let mut second = pin!(node.commands.execute(&*node.store, &small));
    assert!(second.as_mut().poll(&mut cx).is_pending());
    assert_eq!(node.client().ask("EXISTS a"), ":1\r\n");
    assert_eq!(node.store.look_ups.get(), reads, "it has not begun");
    while first.as_mut().poll(&mut cx).is_pending() {}
    assert!(second.as_mut().poll(&mut cx).is_ready());
}

/// The length by the definition, without keeping anything.
fn len_of(a: &[u8], b: &[u8]) -> usize {
    match (a, b) {
        ([x, a @ ..], [y, b @ ..]) if x == y => 1 + len_of(a, b),
        ([_, rest_a @ ..], [_, rest_b @ ..]) => len_of(rest_a, b).max(len_of(a, rest_b)),
        _ => 0,
    }
}

proptest! {
    #[test]
    fn pieces_lie_in_both_values_and_make_the_subsequence(a in "[abc]{1,9}", b in "[abc]{1,9}") {
        let mut client = Node::new().client();
        client.ask(&format!("MSET a {a} b {b}"));
        let Reply::Bulk(text) = client.reply(request("LCS a b")) else { panic!("no text") };
        prop_assert_eq!(text.len(), len_of(a.as_bytes(), b.as_bytes()));
        let Reply::Map(parts) = client.reply(request("LCS a b IDX")) else { panic!("no map") };
        let Reply::Array(pieces) = &parts[0].1 else { panic!("no pieces") };
        let mut joined = String::new();
        for piece in pieces.iter().rev() {
            let Reply::Array(places) = piece else { panic!("{piece:?}") };
            let of = |value: &str, place: &Reply| match place {
                Reply::Array(ends) => match ends[..] {
                    [Reply::Integer(start), Reply::Integer(end)] => {
                        value[start as usize..=end as usize].to_string()
                    }
                    _ => panic!("{ends:?}"),
                },
                _ => panic!("{place:?}"),
            };
            let (in_a, in_b) = (of(&a, &places[0]), of(&b, &places[1]));
            prop_assert_eq!(&in_a, &in_b);
            joined += &in_a;
        }
        prop_assert_eq!(joined.as_bytes(), &text[..]);
    }
}

//! The words of members beside frames, fed to their parsers as bytes that nearly are what these
//! read ([`gabion_sim::hostile`]): the preamble of a connection, commands that are forwarded and
//! their replies, and the parts in which both come.
#![allow(clippy::unwrap_used, reason = "a test that meets an error has failed")]

use crate::commands::watch::{Watch, WatchId};
use crate::commands::{Call, Transaction, Work};
use crate::forward::{self, Outcome, WriteId};
use crate::peers::{PREAMBLE_LEN, Preamble};
use bytes::Bytes;
use gabion_base::{Error, Frontier, GroupId, LogPosition, ReplicaId, Result, crc};
use gabion_resp::{Protocol, Reply, Request};
use gabion_sim::hostile::{Counting, Format};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn call(words: &[&str]) -> Call {
    let args = words.iter().map(|word| Bytes::from(word.to_string())).collect();
    Call::new(Request { args }).unwrap()
}

fn at(position: u64) -> Frontier {
    Frontier::of(LogPosition(position))
}

/// A call, one with many words, transactions, and WATCH.
fn commands() -> Vec<Vec<u8>> {
    let keys: Vec<String> = (0..40).map(|n| format!("key{n:04}")).collect();
    let many: Vec<&str> = ["del"].into_iter().chain(keys.iter().map(String::as_str)).collect();
    let transaction = Transaction::of(vec![
        call(&["incrby", "a", "-7"]),
        call(&["mset", "a", "", "b", "2"]),
        call(&["get", "a"]),
    ]);
    let watch = Watch {
        id: WatchId { node: 7, number: 0x0102_0304 },
        keys: ["a", "", "key"].map(|key| Bytes::from_static(key.as_bytes())).to_vec(),
    };
    let calls = vec![call(&["incr", "a"])];
    let id = WriteId { session: 3 << 32 | 9, number: 0x0708 };
    let watched = Transaction { watch: Some(watch.clone()), ..Transaction::of(calls) };
    [
        (Work::Call(call(&["set", "key", "value", "px", "1000"])), Protocol::Resp2),
        (Work::Call(call(&many)), Protocol::Resp3),
        (Work::Transaction(transaction), Protocol::Resp3),
        (Work::Transaction(watched), Protocol::Resp2),
        (Work::Watch(watch), Protocol::Resp2),
    ]
    .map(|(work, protocol)| forward::encode(&work, protocol, at(0x0102_0304_0500), id, false))
    .to_vec()
}

fn read_command(bytes: &[u8]) -> Result<Option<Vec<u8>>> {
    let command = forward::decode(&Bytes::copy_from_slice(bytes))?;
    let forward::Command { work, protocol, frontier, id, is_again } = command;
    Ok(Some(forward::encode(&work, protocol, frontier, id, is_again)))
}

fn read_reply(bytes: &[u8]) -> Result<Option<Vec<u8>>> {
    let (outcome, reply) = forward::decode_reply(&Bytes::copy_from_slice(bytes))?;
    Ok(Some(forward::encode_reply(outcome, &Reply::Encoded(reply), Protocol::Resp2)))
}

/// Joined parts are never longer.
const JOINED_MAX: usize = 400;

/// A body of so many bytes in parts, each behind its length, which is this test's own.
fn in_parts(len: usize, part_len: usize) -> Vec<u8> {
    let body: Vec<u8> = (0..len).map(|n| n as u8).collect();
    let count = len.div_ceil(part_len);
    let parts = body.chunks(part_len).enumerate().map(|(i, part)| {
        let more = u8::from(i + 1 < count);
        [&[part.len() as u8 + 1, more][..], part].concat()
    });
    parts.collect::<Vec<_>>().concat()
}

/// Joins what comes; a body is what its parts say.
fn join_parts(bytes: &[u8]) -> Result<Option<Vec<u8>>> {
    let (mut joined, mut said, mut rest) = (Vec::new(), Vec::new(), bytes);
    while let Some((&len, after)) = rest.split_first() {
        let (part, after) = after.split_at(usize::from(len).min(after.len()));
        rest = after;
        let whole = forward::join(&mut joined, &Bytes::copy_from_slice(part), JOINED_MAX)?;
        said.extend_from_slice(&part[1..]);
        assert!(joined.len() <= JOINED_MAX && said.len() <= JOINED_MAX, "no more than is allowed");
        if let Some(whole) = whole {
            assert_eq!(whole, said, "a body is what its parts say");
            assert!(joined.is_empty(), "the next begins anew");
            said.clear();
        } else {
            assert_eq!(joined, said, "what came so far is kept");
        }
    }
    Ok(None)
}

fn read_preamble(bytes: &[u8]) -> Result<Option<Vec<u8>>> {
    let whole: &[u8; PREAMBLE_LEN] =
        bytes.try_into().map_err(|_| Error::invalid("as many bytes are read as it has"))?;
    Ok(Some(Preamble::decode(whole)?.encode()))
}

fn seal_preamble(bytes: &mut [u8]) {
    let (body, sum) = bytes.split_at_mut(PREAMBLE_LEN - 4);
    sum.copy_from_slice(&crc::crc32c(body).to_le_bytes());
}

/// docs/faults.md: E14
#[test]
fn nothing_that_members_say_beside_frames_panics_or_reserves_much() {
    let preamble =
        Preamble { group: GroupId(9), from: ReplicaId(3), to: ReplicaId(1), is_guest: false };
    let formats = [
        Format::new("forwarded command", commands(), read_command),
        Format::new(
            "reply to a forwarded command",
            [Outcome::Made, Outcome::NotMade, Outcome::Unknown, Outcome::Forgotten]
                .map(|outcome| forward::encode_reply(outcome, &Reply::OK, Protocol::Resp3))
                .to_vec(),
            read_reply,
        ),
        Format::new(
            "parts of a forwarded command",
            vec![in_parts(10, 10), in_parts(300, 40), in_parts(JOINED_MAX, 200)],
            join_parts,
        ),
        Format {
            keeps_len: true,
            // Two bytes mean nothing yet.
            is_canonical: false,
            repair: Box::new(|bytes| seal_preamble(bytes)),
            ..Format::new("preamble of a member", vec![preamble.encode()], read_preamble)
        },
    ];
    formats.iter().for_each(Format::run);
}

//! The bytes on the wire: `tests/golden/frames.txt` pins one frame of each kind. A change of format
//! changes the version and this file in one commit (`GABION_REWRITE=1` writes it).
//!
//! docs/faults.md: R15

use crate::frame::{HEADER_LEN, MAGIC, PAYLOAD_FRAME_LEN_MAX, PREFIX_LEN, VERSION};
use crate::message::TEXT_LEN_MAX;
use crate::spans::{OPEN, Span};
use crate::{
    Addresses, Frame, GroupView, Lease, LogKind, Lost, Member, MemberState, Message, Progress,
    Spans, Watermarks,
};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;
use bytes::Bytes;
use gabion_base::codec::{FIELD_CRITICAL, put_field};
use gabion_base::units::{CONTROL_FRAME_LEN_MAX, RECORD_LEN_MAX};
use gabion_base::{
    ConfigNumber, ErrorKind, Frontier, GroupId, LogPosition, ReplicaId, ShardId, Term, crc,
};
use proptest::prelude::*;

fn spans() -> Spans {
    let span = |term, start, end| Span { term: Term(term), start: LogPosition(start), end };
    Spans::new(vec![span(1, 0, LogPosition(5000)), span(3, 8192, OPEN)]).unwrap()
}

fn at(position: u64) -> Frontier {
    Frontier::of(LogPosition(position))
}

fn lease() -> Lease {
    Lease { asked_ms: 0x0102, lasts_ms: 500 }
}

fn view() -> GroupView {
    let mut view = GroupView::founding(
        GroupId(7),
        &[ReplicaId(1), ReplicaId(2), ReplicaId(3)],
        LogKind::Shared,
    );
    view.term = Term(3);
    view.members_min = 2;
    view.members[2] = Member {
        is_full: false,
        node: 9,
        incarnation: 4,
        pool_id: [0xab; 16],
        addresses: Addresses { members: "host-3:7001".to_string(), ..Addresses::default() },
        ..Member::new(ReplicaId(3))
    };
    view
}

fn progress() -> Progress {
    Progress { end: at(0x500), durable: at(0x400), flushed: at(0x300), edit: 7 }
}

fn marks() -> Watermarks {
    Watermarks { commit: at(0x280), durable: at(0x270), flushed: at(0x260), edit: 6 }
}

fn one_of_each() -> Vec<Message> {
    vec![
        Message::Hello(MemberState {
            versions: (2, 2),
            incarnation: 6,
            session: 2,
            oldest: LogPosition(0x100),
            last_crc: 0xdead_beef,
            progress: progress(),
            spans: spans(),
            lost: None,
            gap: None,
        }),
        Message::NewTerm {
            oldest: LogPosition(0x100),
            end: LogPosition(8192),
            last_crc: 0x1234_5678,
            marks: marks(),
            spans: spans(),
        },
        Message::TermAccepted { last_crc: 0x1234_5678, progress: progress() },
        Message::Records {
            from: LogPosition(8192),
            term: Term(3),
            marks: marks(),
            bytes: vec![Bytes::from_static(b"record 1"), Bytes::from_static(b"record 2")],
        },
        Message::Ack(progress(), lease()),
        Message::Heartbeat(marks(), lease()),
        Message::PullLog { from: LogPosition(0x500), bytes_max: 1 << 20 },
        Message::Refused { reason: "needs a full copy".to_string() },
        Message::View(view()),
        Message::Node { bytes: Bytes::from_static(b"the node's own") },
        Message::Forward { id: 99, bytes: Bytes::from_static(b"SET k v") },
        Message::ForwardReply { id: 99, frontier: at(0x500), bytes: Bytes::from_static(b"+OK") },
        Message::Hello(MemberState {
            versions: (2, 2),
            incarnation: 6,
            session: 3,
            oldest: LogPosition(0x100),
            last_crc: 0xdead_beef,
            progress: progress(),
            spans: spans(),
            lost: Some(Lost { from: LogPosition(0x500), to: LogPosition(0x2800), term: Term(3) }),
            gap: None,
        }),
        Message::Hello(MemberState {
            versions: (2, 2),
            incarnation: 6,
            session: 4,
            oldest: LogPosition(0x100),
            last_crc: 0xdead_beef,
            progress: progress(),
            spans: spans(),
            lost: None,
            gap: Some(Term(0x0102_0304)),
        }),
    ]
}

fn frame(message: Message) -> Frame {
    Frame {
        group: GroupId(7),
        shard: ShardId::ZERO,
        config: ConfigNumber(1),
        term: Term(3),
        from: ReplicaId(1),
        to: ReplicaId(2),
        connection: 42,
        message,
    }
}

/// The message with its payload in one piece, as a receiver has it.
fn received(mut message: Message) -> Message {
    if let Message::Records { bytes, .. } = &mut message {
        *bytes = vec![Bytes::from(bytes.concat())];
    }
    message
}

/// Puts the right checksum and length into a frame that a test has changed.
fn seal(bytes: &mut [u8]) -> Bytes {
    let len = (bytes.len() - 4) as u32;
    bytes[0..4].copy_from_slice(&len.to_le_bytes());
    let crc = crc::append(crc::crc32c(&bytes[..12]), &bytes[PREFIX_LEN..]);
    bytes[12..16].copy_from_slice(&crc.to_le_bytes());
    Bytes::copy_from_slice(bytes)
}

#[test]
#[expect(clippy::disallowed_methods, reason = "tests read and rewrite their data files")]
fn frames_have_the_bytes_that_are_written_down() {
    let mut out = String::new();
    for message in one_of_each() {
        out.push_str(&format!("kind {}\n", message.kind()));
        for line in frame(message).encode().unwrap().concat().chunks(32) {
            let hex: Vec<_> = line.iter().map(|b| format!("{b:02x}")).collect();
            out.push_str(&format!("  {}\n", hex.join(" ")));
        }
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/frames.txt");
    if std::env::var_os("GABION_REWRITE").is_some() {
        std::fs::write(path, &out).unwrap();
    }
    assert_eq!(std::fs::read_to_string(path).unwrap(), out);
}

#[test]
fn every_message_survives_the_wire() {
    for message in one_of_each() {
        let frame = frame(message);
        let bytes = frame.encode().unwrap().concat();
        assert_eq!(Frame::len_of(&bytes[..PREFIX_LEN]).unwrap(), Some(bytes.len()));
        assert_eq!(Frame::len_of(&bytes[..PREFIX_LEN - 1]).unwrap(), None);
        let decoded = Frame::decode(&bytes).unwrap();
        assert_eq!(decoded.message, received(frame.message));
        assert_eq!((decoded.term, decoded.connection), (Term(3), 42));
    }
}

#[test]
fn record_bytes_are_shared_not_copied() {
    let record = Bytes::from(vec![7u8; 4096]);
    let message = Message::Records {
        from: LogPosition::ZERO,
        term: Term(1),
        marks: marks(),
        bytes: vec![record.clone()],
    };
    let encoded = frame(message).encode().unwrap();
    assert_eq!(encoded.payload[0].as_ptr(), record.as_ptr());
    assert!(encoded.head.len() < 200, "{} bytes before the records", encoded.head.len());
    let whole = encoded.concat();
    let Message::Records { bytes, .. } = Frame::decode(&whole).unwrap().message else {
        panic!("not records");
    };
    assert_eq!(bytes[0].as_ptr(), whole[encoded.head.len()..].as_ptr());
}

/// Every bit of a frame, but for record bytes, which carry their own checksum.
/// docs/faults.md: H8
#[test]
fn any_flipped_bit_is_found() {
    for message in one_of_each() {
        let is_records = matches!(message, Message::Records { .. });
        let encoded = frame(message).encode().unwrap();
        let whole = encoded.concat();
        let covered = if is_records { encoded.head.len() } else { whole.len() };
        for bit in 0..covered * 8 {
            let mut bytes = whole.to_vec();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(Frame::decode(&Bytes::from(bytes)).is_err(), "bit {bit} flipped unseen");
        }
    }
}

#[test]
fn lengths_are_refused_before_memory_is_reserved() {
    let prefix = |len: u32, kind: u8| {
        let mut bytes = len.to_le_bytes().to_vec();
        bytes.extend(MAGIC.to_le_bytes());
        bytes.extend([VERSION as u8, 0, kind, 1, 0, 0, 0, 0]);
        bytes
    };
    for (kind, len_max) in [(5, CONTROL_FRAME_LEN_MAX), (4, PAYLOAD_FRAME_LEN_MAX)] {
        let at = Frame::len_of(&prefix(len_max as u32 - 4, kind)).unwrap();
        assert_eq!(at, Some(len_max));
        for len in [len_max as u32 - 3, u32::MAX] {
            let error = Frame::len_of(&prefix(len, kind)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::LimitExceeded);
        }
    }
    assert!(Frame::len_of(&prefix(HEADER_LEN as u32 - 5, 5)).is_err());
    const { assert!(PAYLOAD_FRAME_LEN_MAX > RECORD_LEN_MAX + HEADER_LEN + 100) };
    let too_long = Message::Forward { id: 1, bytes: Bytes::from(vec![0; PAYLOAD_FRAME_LEN_MAX]) };
    assert_eq!(frame(too_long).encode().unwrap_err().kind(), ErrorKind::LimitExceeded);
}

/// A newer build's message is refused or ignored, as that build asked.
/// docs/faults.md: R15
#[test]
fn unknown_kinds_and_fields_are_ignored_unless_they_are_critical() {
    let ack = frame(Message::Ack(progress(), lease())).encode().unwrap().head;
    let with = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = ack.clone();
        change(&mut bytes);
        let body_len = (bytes.len() - HEADER_LEN) as u32;
        bytes[60..64].copy_from_slice(&body_len.to_le_bytes());
        Frame::decode(&seal(&mut bytes))
    };
    assert_eq!(
        with(&|b| put_field(b, 9, 0, b"new")).unwrap().message,
        Message::Ack(progress(), lease())
    );
    let critical = with(&|b| put_field(b, 9, FIELD_CRITICAL, b"new")).unwrap_err();
    assert_eq!(critical.kind(), ErrorKind::Unsupported);
    let unknown = |flags| with(&move |b: &mut Vec<u8>| (b[10], b[11]) = (200, flags));
    assert_eq!(unknown(0).unwrap().message, Message::Unknown { kind: 200 });
    assert_eq!(unknown(1).unwrap_err().kind(), ErrorKind::Unsupported);
    assert_eq!(unknown(2).unwrap_err().kind(), ErrorKind::Unsupported);
    let version = with(&|b| b[8] = 1).unwrap_err();
    assert_eq!(version.message(), "frame of version 1; this build speaks version 2");
}

#[test]
fn a_long_sentence_is_cut_at_a_character() {
    let reason = "é".repeat(TEXT_LEN_MAX);
    let bytes = frame(Message::Refused { reason }).encode().unwrap().concat();
    let Message::Refused { reason } = Frame::decode(&bytes).unwrap().message else {
        panic!("not a refusal");
    };
    assert_eq!(reason, "é".repeat(TEXT_LEN_MAX / 2));
}

#[test]
fn a_count_of_spans_over_what_follows_is_refused() {
    let accepted = frame(Message::Hello(MemberState::default())).encode().unwrap().head;
    let mut bytes = accepted.clone();
    let at = bytes.len() - 4;
    bytes[at..].copy_from_slice(&u32::MAX.to_le_bytes());
    let error = Frame::decode(&seal(&mut bytes)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corruption);
    assert!(error.message().starts_with("4294967295 spans announced, 0 bytes follow"));
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(bytes: Vec<u8>) {
        let _ = Frame::len_of(&bytes);
        let _ = Frame::decode(&Bytes::from(bytes));
    }

    /// Arbitrary bodies under a valid header and checksum.
    #[test]
    fn arbitrary_bodies_never_panic(kind in 0u8..24, body: Vec<u8>, cut: u16) {
        let mut bytes = frame(Message::Ack(progress(), lease())).encode().unwrap().head;
        bytes.truncate(HEADER_LEN);
        bytes[10] = kind;
        bytes.extend(&body);
        let body_len = u32::from(cut) % (body.len() as u32 + 3);
        bytes[60..64].copy_from_slice(&body_len.to_le_bytes());
        let sealed = seal(&mut bytes);
        if let Ok(frame) = Frame::decode(&sealed) {
            let again = frame.encode().unwrap().concat();
            prop_assert_eq!(Frame::decode(&again).unwrap(), frame);
        }
    }
}

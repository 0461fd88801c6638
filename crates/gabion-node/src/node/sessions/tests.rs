use super::*;
use alloc::string::ToString;
use gabion_base::ErrorKind;

const DOOR: u64 = 1 << 32 | 7;
const OTHER: u64 = 2 << 32 | 7;

fn table(segment_len: u64) -> Sessions {
    Sessions::new(segment_len, true)
}

fn made(reply: &[u8]) -> WriteFate {
    WriteFate::Made(Some(reply.to_vec()))
}

/// docs/faults.md: R1
#[test]
fn a_number_is_known_with_its_reply_and_one_that_is_not_there_was_not_made() {
    let mut table = table(1 << 20);
    for (number, reply) in [(3, &b":1\r\n"[..]), (9, b""), (5, b"+OK\r\n")] {
        table.note(DOOR, number, reply, LogIndex(number));
        table.invariants();
    }
    table.note(OTHER, 4, b"$1\r\na\r\n", LogIndex(10));
    assert_eq!(table.look_up(DOOR, 3), made(b":1\r\n"));
    assert_eq!(table.look_up(DOOR, 5), made(b"+OK\r\n"));
    assert_eq!(table.look_up(DOOR, 9), WriteFate::Made(None), "its reply was too long");
    assert_eq!(table.look_up(OTHER, 4), made(b"$1\r\na\r\n"));
    for number in [1, 4, 8, 10] {
        assert_eq!(table.look_up(DOOR, number), WriteFate::NotMade, "{number}");
    }
    assert_eq!(table.look_up(3 << 32, 4), WriteFate::NotMade, "a door that has written nothing");
}

/// docs/faults.md: R1
#[test]
fn of_a_number_that_may_have_been_forgotten_nobody_knows() {
    // 4 KiB of writes: 14 bytes each.
    let mut table = table(16 << 10);
    table.note(OTHER, 1, b"+OK\r\n", LogIndex(1));
    for number in 2..=1000 {
        table.note(DOOR, number, b"+OK\r\n", LogIndex(number));
        table.invariants();
    }
    let kept = (4096 / 14 - 1) as u64;
    assert_eq!(table.look_up(DOOR, 1000 - kept + 1), made(b"+OK\r\n"));
    assert_eq!(table.look_up(DOOR, 1000 - kept), WriteFate::Unknown);
    assert_eq!(table.look_up(DOOR, 1), WriteFate::Unknown, "below what was forgotten");
    assert_eq!(table.look_up(DOOR, 1001), WriteFate::NotMade);
    assert_eq!(table.look_up(OTHER, 1), made(b"+OK\r\n"), "the one with most forgets");
}

#[test]
fn a_replica_has_one_session_and_the_table_a_bound_of_replicas() {
    let mut table = table(1 << 20);
    table.note(DOOR, 8, b"+OK\r\n", LogIndex(1));
    table.note(DOOR + 1, 1, b":1\r\n", LogIndex(2));
    assert_eq!(table.look_up(DOOR + 1, 1), made(b":1\r\n"));
    assert_eq!(table.look_up(DOOR + 1, 8), WriteFate::NotMade, "of the start before");
    for replica in 2..=SESSIONS_MAX as u64 + 1 {
        table.note(replica << 32, 1, b"+OK\r\n", LogIndex(replica + 1));
        table.invariants();
    }
    assert_eq!(table.look_up(DOOR + 1, 1), WriteFate::Unknown, "longest without a write");
    assert_eq!(table.look_up(2 << 32, 1), made(b"+OK\r\n"));
    assert_eq!(table.look_up(2 << 32, 2), WriteFate::NotMade);
    assert_eq!(table.look_up(99 << 32, 1), WriteFate::Unknown, "it may have had a place");
}

#[test]
fn a_table_comes_back_from_its_record_and_one_that_differs_is_refused() {
    let mut one = table(1 << 20);
    one.note(DOOR, 3, b":1\r\n", LogIndex(4));
    one.note(OTHER, 9, b"", LogIndex(5));
    let payload = one.begin_record();
    let mut other = Sessions::new(1 << 20, false);
    assert_eq!(other.look_up(DOOR, 3), WriteFate::Unknown, "its log has not told yet");
    assert!(other.is_due());
    other.take(&payload).unwrap();
    assert_eq!((other.look_up(DOOR, 3), other.is_due()), (made(b":1\r\n"), false));
    assert_eq!(other.look_up(OTHER, 9), WriteFate::Made(None));
    assert_eq!(other.begin_record(), payload);
    other.note(DOOR, 4, b":2\r\n", LogIndex(6));
    let error = one.take(&other.begin_record()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corruption, "{error}");
    for len in 0..payload.len() {
        assert_eq!(decode(&payload[..len]).unwrap_err().kind(), ErrorKind::Corruption, "{len}");
    }
    let mut twice = payload.clone();
    twice[2..6].copy_from_slice(&2_u32.to_le_bytes());
    twice[6 + 29 + 9 + 4..][..8].copy_from_slice(&(DOOR + 1).to_le_bytes());
    assert!(decode(&twice).unwrap_err().to_string().contains("two of replica 1"));
    let refused = |at: usize, byte: u8| {
        let mut bytes = payload.clone();
        bytes[at] = byte;
        decode(&bytes).unwrap_err().to_string()
    };
    assert!(refused(0, 2).contains("version 2; this build knows version 1"));
    assert!(refused(1, 2).contains("flag 2"));
    assert!(refused(2, 65).contains("65 sessions"));
    assert!(refused(6 + 29 + 8, 65).contains("a reply of 65 bytes; the limit is 64"));
    assert!(refused(6 + 24, 5).contains("5 before one; the limit is 4"));
}

/// docs/faults.md: R1
#[test]
fn a_late_write_of_a_door_that_started_anew_takes_nothing_from_the_new_session() {
    let mut table = table(1 << 20);
    table.note(DOOR, 1, b"+OK\r\n", LogIndex(1));
    table.note(DOOR + 1, 1, b":1\r\n", LogIndex(2));
    table.note(DOOR, 2, b"+OK\r\n", LogIndex(3));
    assert_eq!(table.look_up(DOOR + 1, 1), made(b":1\r\n"));
    assert_eq!(table.look_up(DOOR, 2), WriteFate::Unknown, "its session is over");
    let payload = table.begin_record();
    let mut other = Sessions::new(1 << 20, false);
    other.take(&payload).unwrap();
    other.note(DOOR, 3, b"+OK\r\n", LogIndex(4));
    assert_eq!(other.begin_record(), payload, "as the one that has the whole log");
    for start in 2..9 {
        table.note(DOOR + start, 1, b"+OK\r\n", LogIndex(start + 3));
        table.invariants();
    }
    for over in 4..8 {
        table.note(DOOR + over, 2, b"+OK\r\n", LogIndex(20));
    }
    assert_eq!(table.look_up(DOOR + 8, 1), made(b"+OK\r\n"), "of the last start");
}

/// docs/faults.md: R1
#[test]
fn a_head_whose_log_does_not_tell_says_so_to_all() {
    let mut blind = Sessions::new(1 << 20, false);
    let payload = blind.begin_record();
    let mut knows = table(1 << 20);
    knows.note(DOOR, 3, b":1\r\n", LogIndex(4));
    knows.take(&payload).unwrap();
    for table in [&mut blind, &mut knows] {
        assert_eq!(table.look_up(DOOR, 3), WriteFate::Unknown);
        table.note(DOOR, 5, b":2\r\n", LogIndex(7));
        assert_eq!(table.look_up(DOOR, 5), made(b":2\r\n"));
        assert_eq!(table.look_up(DOOR, 6), WriteFate::Unknown, "it may be from before");
    }
}

/// A change here is a change of format: it needs a new version.
///
/// docs/faults.md: R15
#[test]
fn the_bytes_of_a_table_are_as_they_always_were() {
    let mut table = table(1 << 20);
    table.note(DOOR, 3, b":1\r\n", LogIndex(4));
    table.note(OTHER, 9, b"", LogIndex(0x0506));
    let golden: [&[u8]; 8] = [
        &[1, 0, 2, 0, 0, 0],
        &[7, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        &[4, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0],
        &[3, 0, 0, 0, 0, 0, 0, 0, 4],
        b":1\r\n",
        &[7, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        &[6, 5, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0],
        &[9, 0, 0, 0, 0, 0, 0, 0, 0],
    ];
    assert_eq!(table.begin_record(), golden.concat());
}

//! The bytes of what nodes say to each other, of a group's configuration and of a replica's state,
//! pinned. A change here is a change of format: a new kind of message or a new field, never another
//! meaning of an old one. `GABION_REWRITE=1` writes the files anew.
//!
//! None of the three carries a checksum: frames and records of the placement log, in which they
//! travel and lie, cover them. Should damage come through nevertheless, it must not panic.
//!
//! docs/faults.md: R15
#![expect(clippy::unwrap_used, reason = "a test that meets an error has failed")]

use gabion_base::units::SLOT_LEN;
use gabion_base::{
    ConfigNumber, Error, ErrorKind, FileId, Generation, GroupId, LogIndex, LogPosition, ReplicaId,
    ShardId, SlotIndex, Term,
};
use gabion_engine::TreeConfig;
use gabion_log::{Anchor, Span};
use gabion_node::message::{NodeMessage, ShippedFile, Spare};
use gabion_node::ring::{Fate, RingLoss, RingState};
use gabion_node::{AckLevel, CompactionMode, CopyMark, GroupConfig, ReplicaState};
use gabion_pool::{Geometry, Placed};
use gabion_replication::{GroupView, LogKind};
use std::fmt::Debug;

/// The pinned bytes, in `tests/golden`, 32 to a line.
macro_rules! golden {
    ($name:literal) => {
        (
            concat!("golden/", $name, ".hex"),
            include_str!(concat!("golden/", $name, ".hex")).split_whitespace().collect::<String>(),
        )
    };
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[track_caller]
#[expect(clippy::disallowed_methods, reason = "tests read and rewrite their data files")]
fn assert_golden(bytes: &[u8], (name, golden): (&str, String)) {
    let lines = bytes.chunks(32).map(|line| hex(line) + "\n").collect::<String>();
    if std::env::var_os("GABION_REWRITE").is_some() {
        let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(name);
        return std::fs::write(file, lines).unwrap();
    }
    assert!(hex(bytes) == golden, "{name}: the bytes are now\n{lines}");
}

fn group_config() -> GroupConfig {
    GroupConfig {
        group: GroupId(0x0102_0304),
        founders: vec![ReplicaId(1), ReplicaId(2), ReplicaId(3)],
        compaction: CompactionMode::EveryReplica,
        ack: AckLevel::Replicated,
        ring_len: 64 << 20,
        segment_len: 16 << 20,
        tree: TreeConfig::default(),
    }
}

/// What builds wrote whose filters had as many bits everywhere.
fn older_group_config() -> GroupConfig {
    let tree = TreeConfig { upper_filter_bits_extra: 0, ..TreeConfig::default() };
    GroupConfig { tree, ..group_config() }
}

fn view() -> GroupView {
    let founders = [ReplicaId(1), ReplicaId(2)];
    let view = GroupView::founding(GroupId(7), &founders, LogKind::Shared);
    GroupView { term: Term(3), ..view }
}

fn replica_state() -> ReplicaState {
    ReplicaState {
        me: ReplicaId(2),
        view: view(),
        view_waits: false,
        incarnation: 0x0506,
        session: 0x1122_3344_5566,
        spans: vec![
            Span { term: Term(1), start: LogPosition(0), end: Some(LogPosition(100)) },
            Span { term: Term(3), start: LogPosition(4096), end: None },
        ],
        trimmed: Anchor { position: LogPosition(1 << 40), index: LogIndex(7), crc: 0xdead_beef },
        durable: LogPosition(1 << 41),
        trimmed_ms: 0,
        ring: RingState::default(),
        copy: CopyMark::None,
    }
}

fn messages() -> Vec<(NodeMessage, (&'static str, String))> {
    let placed =
        |slot, generation| Placed { slot: SlotIndex(slot), generation: Generation(generation) };
    let file = ShippedFile {
        file: FileId::sst(0x1122_3344),
        term: Term(2),
        len: SLOT_LEN + 4096,
        checksum: 0xdead_beef,
        chunk_crcs: vec![1, 2, 3],
        slots: vec![placed(3, 9), placed(300, 1_000_000)],
    };
    let grant = NodeMessage::Grant {
        session: 3,
        writer: ReplicaId(1),
        pool_id: *b"0123456789abcdef",
        subsystem: "nqn.2026-01.org.gabion:g1:t2:s3".to_owned(),
        port: 4420,
        region: Geometry::namespace_of([2027, 300]).unwrap(),
        slots: vec![placed(1, 7), placed(2, 1 << 33)],
    };
    vec![
        (grant, golden!("message_grant")),
        (NodeMessage::WantGrant { slots: 8 }, golden!("message_want_grant")),
        (NodeMessage::Placement { session: 3, file: file.clone() }, golden!("message_placement")),
        (NodeMessage::CopyAt { session: 3, file }, golden!("message_copy_at")),
        (NodeMessage::NoCopy { file: FileId::sst(1) }, golden!("message_no_copy")),
        (NodeMessage::Have { file: FileId::sst(1) }, golden!("message_have")),
        (
            NodeMessage::NeedFile { file: FileId::log_segment(ShardId::ZERO, 2) },
            golden!("message_need_file"),
        ),
        (
            NodeMessage::Discard { files: vec![FileId::sst(1), FileId::sst(1 << 40)] },
            golden!("message_discard"),
        ),
        (
            NodeMessage::Room(Spare { total: 2027, available: 300, for_jobs: 40, for_log: 96 }),
            golden!("message_room"),
        ),
        (NodeMessage::WantState { number: 5, at: 1 << 20 }, golden!("message_want_state")),
        (
            NodeMessage::State { number: 5, total: 1 << 21, at: 1 << 20, bytes: vec![1, 2, 3] },
            golden!("message_state"),
        ),
        (NodeMessage::KnownSession { session: 1 << 40 }, golden!("message_known_session")),
    ]
}

#[test]
fn messages_between_nodes_have_these_bytes() {
    for (message, golden) in messages() {
        assert_golden(&message.encode(), golden);
        assert_eq!(NodeMessage::decode(&message.encode()).unwrap(), message);
    }
}

#[test]
fn a_groups_configuration_has_these_bytes() {
    for (config, golden) in [
        (group_config(), golden!("group_config_filters")),
        (older_group_config(), golden!("group_config")),
    ] {
        let bytes = config.encode();
        assert_golden(&bytes, golden);
        assert_eq!(GroupConfig::decode(&bytes).unwrap(), config);
    }
}

#[test]
fn a_replicas_state_has_these_bytes() {
    let bytes = replica_state().encode();
    assert_golden(&bytes, golden!("replica_state"));
    assert_eq!(ReplicaState::decode(&bytes).unwrap(), replica_state());
}

/// Version 1 began with its first field, whose tag is 1.
#[test]
fn a_state_of_version_1_is_refused_by_name_and_terms_without_file_numbers_are_too() {
    let refused = |bytes: &[u8]| ReplicaState::decode(bytes).unwrap_err();
    let bytes = replica_state().encode();
    let error = refused(&bytes[2..]);
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.message().contains("has version 1, this build knows 2"), "{error}");
    assert_eq!(refused(&bytes[..1]).kind(), ErrorKind::Corruption);
    let late =
        ReplicaState { view: GroupView { term: Term(1 << 32), ..view() }, ..replica_state() };
    let mut in_a_span = replica_state();
    in_a_span.spans[1].term = Term(1 << 32);
    for state in [late, in_a_span] {
        let error = refused(&state.encode());
        assert_eq!(error.kind(), ErrorKind::Corruption);
        assert!(error.message().contains("t4294967296"), "{error}");
        assert!(error.message().contains("limit"), "{error}");
        assert!(error.message().contains("t4294967295"), "{error}");
    }
}

#[test]
fn a_state_with_the_time_at_which_its_log_begins_has_these_bytes() {
    let state = ReplicaState { trimmed_ms: 0x0102_0304_0506, ..replica_state() };
    assert_golden(&state.encode(), golden!("replica_state_with_time"));
    assert_eq!(ReplicaState::decode(&state.encode()).unwrap(), state);
}

#[test]
fn a_state_of_a_replica_that_is_being_filled_has_these_bytes() {
    let behind = CopyMark::LogBehind(LogPosition(0x0102_0304_0506));
    for (copy, golden) in [
        (CopyMark::Begun, golden!("replica_state_copy_begun")),
        (behind, golden!("replica_state_copy_log_behind")),
    ] {
        let state = ReplicaState { copy, ..replica_state() };
        assert_golden(&state.encode(), golden);
        assert_eq!(ReplicaState::decode(&state.encode()).unwrap(), state);
    }
}

#[test]
fn a_state_whose_view_waits_has_these_bytes_and_acts_in_no_view() {
    let state = ReplicaState { view_waits: true, ..replica_state() };
    assert_golden(&state.encode(), golden!("replica_state_view_waits"));
    assert_eq!(ReplicaState::decode(&state.encode()).unwrap(), state);
    assert_eq!(state.view_in_effect().config, ConfigNumber::ZERO);
    assert_eq!(replica_state().view_in_effect(), view());
}

/// What is known of a ring: another than the first, an unclean stop, and what may be gone; or a
/// clean stop.
fn states_of_rings() -> [ReplicaState; 2] {
    let loss = RingLoss {
        why: "is missing".into(),
        from: LogPosition(0x0102_0304),
        len_max: 1 << 20,
        since_ms: 0x0506_0708_090a,
        term: Term(3),
        fate: Fate::TakenOver(ReplicaId(3)),
        is_told: false,
    };
    let lost = RingState { number: 7, stopped: None, loss: Some(loss) };
    let stopped = RingState { stopped: Some(LogPosition(1 << 41)), ..RingState::default() };
    [lost, stopped].map(|ring| ReplicaState { ring, ..replica_state() })
}

#[test]
fn a_state_that_knows_of_its_ring_has_these_bytes() {
    let [lost, stopped] = states_of_rings();
    assert_golden(&lost.encode(), golden!("replica_state_ring_lost"));
    assert_golden(&stopped.encode(), golden!("replica_state_stopped"));
    for state in [lost, stopped] {
        assert_eq!(ReplicaState::decode(&state.encode()).unwrap(), state);
    }
}

/// Flips every bit and cuts at every byte; what is not refused must survive its own bytes. Returns
/// how many flips were refused. `whole_at` are cuts that leave what an older build wrote.
fn mangle<T: PartialEq + Debug>(
    bytes: &[u8],
    decode: fn(&[u8]) -> Result<T, Error>,
    encode: fn(&T) -> Vec<u8>,
    whole_at: &[usize],
) -> usize {
    let mut refused = 0;
    let whole = decode(bytes).unwrap();
    for bit in 0..bytes.len() * 8 {
        let mut flipped = bytes.to_vec();
        flipped[bit / 8] ^= 1 << (bit % 8);
        match decode(&flipped) {
            Ok(decoded) => assert_eq!(decode(&encode(&decoded)).unwrap(), decoded, "bit {bit}"),
            Err(error) => {
                let kind = error.kind();
                let expected =
                    [ErrorKind::Corruption, ErrorKind::Unsupported, ErrorKind::InvalidInput];
                assert!(expected.contains(&kind), "bit {bit}: {error}");
                refused += 1;
            }
        }
    }
    for len in (0..bytes.len()).filter(|len| !whole_at.contains(len)) {
        assert!(decode(&bytes[..len]).is_err(), "{whole:?} cut at {len}");
    }
    assert!(decode(&[bytes, &[0]].concat()).is_err(), "{whole:?} with a byte too many");
    refused
}

/// docs/faults.md: E5
#[test]
fn a_flipped_bit_or_a_cut_never_panics_a_decoder() {
    for (message, _) in messages() {
        let refused = mangle(&message.encode(), NodeMessage::decode, NodeMessage::encode, &[]);
        assert!(refused > 0, "{message:?}");
    }
    let group = group_config().encode();
    assert!(mangle(&group, GroupConfig::decode, GroupConfig::encode, &[]) > 100);
    let before = ReplicaState { durable: LogPosition::ZERO, ..replica_state() }.encode().len();
    let state = replica_state().encode();
    assert!(mangle(&state, ReplicaState::decode, ReplicaState::encode, &[before]) > 100);
    // The state, with the number of its ring where it has another than the first, and all.
    let [lost, stopped] = states_of_rings().map(|state| state.encode());
    let whole = [before, state.len(), state.len() + 16];
    assert!(mangle(&lost, ReplicaState::decode, ReplicaState::encode, &whole) > 100);
    assert!(mangle(&stopped, ReplicaState::decode, ReplicaState::encode, &whole[..2]) > 100);
}

/// A member of a later version may say or store what this one does not know.
#[test]
fn what_a_later_version_added_is_refused_by_name_or_skipped() {
    let error = NodeMessage::decode(&[13, 0, 0]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    for (flags, refused) in [(gabion_base::codec::FIELD_CRITICAL, true), (0, false)] {
        let mut config = group_config().encode();
        let mut state = replica_state().encode();
        for bytes in [&mut config, &mut state] {
            gabion_base::codec::put_field(bytes, 999, flags, b"new");
        }
        let config = GroupConfig::decode(&config).map(|found| assert_eq!(found, group_config()));
        let state = ReplicaState::decode(&state).map(|found| assert_eq!(found, replica_state()));
        for outcome in [config, state] {
            let kind = outcome.err().map(|error| error.kind());
            assert_eq!(kind, refused.then_some(ErrorKind::Unsupported));
        }
    }
}

/// Checksums say that somebody wrote it so, not that it can work.
#[test]
fn a_configuration_whose_log_cannot_work_is_refused_by_its_lengths() {
    let with = |ring_len, segment_len| GroupConfig { ring_len, segment_len, ..group_config() };
    for (config, wanted) in [
        (with(0, 0), "log segment of 0 bytes: it must be a multiple of 4096"),
        (with(1 << 20, 5_000), "log segment of 5000 bytes"),
        (with(1 << 30, 1 << 28), "log segment of 268435456 bytes"),
        (with(5 << 19, 1 << 20), "ring of 2621440 bytes: it must be two or more whole segments"),
        (with(2 << 20, 1 << 20), "ring of 2097152 bytes: it must be at least four log segments"),
    ] {
        let error = GroupConfig::decode(&config.encode()).unwrap_err();
        assert!(error.to_string().contains(wanted), "{error}");
    }
}

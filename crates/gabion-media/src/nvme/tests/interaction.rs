//! What the two ends do together when nothing is damaged, however the stream is cut.

use super::*;
use crate::nvme::fabrics::NamespaceInfo;
use alloc::format;
use gabion_base::ErrorKind;
use proptest::prelude::*;

#[test]
fn what_is_written_is_read_back_however_the_stream_is_cut() {
    for cuts in [Cuts::Whole, Cuts::OneByte, Cuts::seeded(1), Cuts::seeded(2), Cuts::seeded(3)] {
        let mut world = World::new(&cuts).ready();
        let lens: &[usize] = match cuts {
            Cuts::OneByte => &[4096, 20_480],
            _ => &[4096, 16_384, 20_480, 1 << 20],
        };
        for &len in lens {
            let data = pattern(len as u64, len);
            assert!(is_done(&world.write(8192, &data)));
            let read = world.read(8192, len);
            assert!(is_done(&read.outcome), "{:?}", read.outcome);
            assert!(read.buffer.unwrap()[..] == data[..]);
        }
        assert!(is_done(&world.one(OperationKind::Flush).outcome));
        assert_eq!(world.subsystem.in_flight(), 0);
        assert!(world.connections.iter().all(|c| c.data_reserved() == 0));
    }
}

#[test]
fn the_medium_has_the_size_blocks_and_transfer_length_of_the_namespace() {
    let world = World::new(&Cuts::Whole).ready();
    let properties = world.initiator.properties();
    assert_eq!(properties.len, NAMESPACE_LEN);
    assert_eq!(properties.alignment, 4096);
    assert_eq!(properties.transfer_len_max, 1 << 20);
    assert!(!properties.durable_at_completion);
}

#[test]
fn every_choice_of_digests_works() {
    for (header_digest, data_digest) in [(false, false), (false, true), (true, false)] {
        let config = InitiatorConfig { header_digest, data_digest, ..initiator_config() };
        let mut world = World::with(&Cuts::seeded(5), config, target_config()).ready();
        let data = pattern(3, 1 << 20);
        assert!(is_done(&world.write(0, &data)));
        assert!(world.read(0, 1 << 20).buffer.unwrap()[..] == data[..]);
    }
}

#[test]
fn a_target_without_digests_is_refused_by_a_host_that_wants_them() {
    let target = TargetConfig { digests: Digests::default(), ..target_config() };
    let mut world = World::with(&Cuts::Whole, initiator_config(), target);
    world.run();
    let InitiatorState::Failed(error) = world.initiator.state() else { panic!() };
    assert_eq!(error.kind(), ErrorKind::Unsupported);
}

#[test]
fn a_write_may_take_several_r2ts_of_several_pdus_each() {
    for (r2t_len_max, h2c_len_max) in [(100_000, 4096), (65_536, 1 << 20), (1 << 20, 300_000)] {
        let target = TargetConfig { r2t_len_max, h2c_len_max, ..target_config() };
        let mut world = World::with(&Cuts::seeded(9), initiator_config(), target).ready();
        let data = pattern(4, 1 << 20);
        // The driver checks that the combined checksum is that of the whole.
        assert!(is_done(&world.write(4096, &data)));
        assert!(world.disk[4096..4096 + (1 << 20)] == data[..]);
    }
}

#[test]
fn a_write_of_one_mebibyte_is_one_r2t_and_one_data_pdu() {
    let mut world = World::new(&Cuts::Whole).ready();
    let before = [0, 1].map(|lane: usize| world.lanes[1][lane].borrow().log.len());
    assert!(is_done(&world.write(0, &pattern(1, 1 << 20))));
    let after = [0, 1].map(|lane: usize| world.lanes[1][lane].borrow().log.len());
    // Command and H2CData up, R2T and response down, each with a header digest.
    assert_eq!(after[0] - before[0], 76 + 28 + (1 << 20) + 4);
    assert_eq!(after[1] - before[1], 28 + 28);
}

#[test]
fn a_checksum_that_is_known_becomes_the_data_digest() {
    let mut world = World::new(&Cuts::Whole).ready();
    for len in [8192, 1 << 20] {
        let data = pattern(6, len);
        let right = crc::crc32c(&data);
        for (crc, intact) in [(right, true), (right ^ 1, false)] {
            let data = Bytes::copy_from_slice(&data);
            world.initiator.submit_write_with_crc(77, 0, data, crc);
            world.run();
            let outcome = world.completed.pop().unwrap().outcome;
            match outcome {
                Outcome::Done => assert!(intact),
                Outcome::Failed(error) => {
                    assert!(!intact);
                    assert_eq!(error.kind(), ErrorKind::Corruption);
                }
                Outcome::Unknown(error) => panic!("{error}"),
            }
        }
    }
    assert!(matches!(world.initiator.state(), InitiatorState::Ready));
}

#[test]
fn a_chain_is_done_in_order_and_stops_where_it_fails() {
    let mut world = World::new(&Cuts::Whole).ready();
    let write = |offset: u64| OperationKind::Write {
        offset,
        data: Bytes::copy_from_slice(&pattern(offset, 4096)),
    };
    let kinds =
        [write(0), OperationKind::Flush, write(4096), write(NAMESPACE_LEN - 4096), write(0)];
    world.submit(kinds, true);
    assert_eq!(world.trace, ["write 0 4096", "flush", "write 4096 4096"]);
    world.completed.sort_by_key(|c| c.tag);
    let done: Vec<bool> = world.completed.iter().map(|c| is_done(&c.outcome)).collect();
    assert_eq!(done, [true, true, true, false, false]);
    assert_eq!(world.initiator.in_flight(), 0);
}

#[test]
fn an_operation_that_breaks_the_rules_never_reaches_the_wire() {
    let mut world = World::new(&Cuts::Whole).ready();
    let sent = world.initiator.bytes_sent();
    for (offset, len) in [(1, 4096), (0, 100), (NAMESPACE_LEN, 4096), (0, (1 << 20) + 4096)] {
        let ended = world.read(offset, len);
        let Outcome::Failed(error) = ended.outcome else { panic!() };
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(ended.buffer.is_some());
    }
    assert_eq!(world.initiator.bytes_sent(), sent);
}

/// docs/faults.md: H2
#[test]
fn the_same_write_twice_leaves_the_same_bytes() {
    let mut world = World::new(&Cuts::Whole).ready();
    let data = pattern(8, 65_536);
    for _ in 0..2 {
        assert!(is_done(&world.write(0, &data)));
        assert!(world.disk[..65_536] == data[..]);
    }
}

fn refused(outcome: &Outcome) -> ErrorKind {
    let Outcome::Failed(error) = outcome else { panic!("{outcome:?}") };
    error.kind()
}

#[test]
fn a_write_outside_the_grants_is_refused_and_changes_nothing() {
    let mut world = World::new(&Cuts::Whole).ready();
    let end = NAMESPACE_LEN / 2;
    for (offset, len) in [(end, 4096), (end - 4096, 8192), (end - 4096, 65_536)] {
        let outcome = world.write(offset, &pattern(1, len));
        assert_eq!(refused(&outcome), ErrorKind::Fenced, "{offset} {len}");
    }
    assert!(world.trace.is_empty());
    assert!(is_done(&world.write(end - 4096, &pattern(1, 4096))));
    world.subsystem.revoke(end - 4096..end);
    assert_eq!(refused(&world.write(end - 4096, &pattern(1, 4096))), ErrorKind::Fenced);
    world.subsystem.revoke_all();
    assert_eq!(refused(&world.write(0, &pattern(1, 4096))), ErrorKind::Fenced);
    world.subsystem.admit(HOST, 0..4096);
    assert!(is_done(&world.write(0, &pattern(1, 4096))));
    assert!(is_done(&world.read(end, 4096).outcome));
}

#[test]
fn a_grant_revoked_while_the_data_travel_refuses_the_write() {
    let mut world = World::new(&Cuts::seeded(2)).ready();
    let data = Bytes::copy_from_slice(&pattern(1, 1 << 20));
    let kind = OperationKind::Write { offset: 0, data };
    world.initiator.submit(vec![Operation { tag: 1, kind, then: false }]);
    let before = world.connections[1].bytes_received();
    while world.connections[1].bytes_received() < before + 100_000 {
        world.step();
    }
    world.subsystem.revoke(4096..8192);
    world.run();
    assert_eq!(refused(&world.completed.pop().unwrap().outcome), ErrorKind::Fenced);
    assert!(world.trace.is_empty());
}

#[test]
fn a_closed_subsystem_answers_what_the_driver_has_and_then_ends() {
    let mut world = World::new(&Cuts::Whole).ready();
    world.hold = true;
    let write = |tag, offset, len| {
        let data = Bytes::copy_from_slice(&pattern(tag, len));
        Operation { tag, kind: OperationKind::Write { offset, data }, then: false }
    };
    world.initiator.submit(vec![write(1, 0, 65_536)]);
    world.run();
    assert_eq!(world.subsystem.in_flight(), 1);
    world.subsystem.close();
    world.initiator.submit(vec![write(2, 65_536, 65_536)]);
    world.run();
    assert_eq!(world.subsystem.in_flight(), 1, "the driver still writes");
    assert!(!world.connections[1].is_finished());
    world.release();
    assert_eq!(world.subsystem.in_flight(), 0);
    world.run();
    assert!(world.connections.iter().all(TargetConnection::is_finished));
    assert_eq!(world.trace, ["write 0 65536"]);
    // The driver drops what is finished, which closes its transport.
    world.connections.clear();
    world.run();
    world.completed.sort_by_key(|c| c.tag);
    assert!(is_done(&world.completed[0].outcome));
    assert!(matches!(world.completed[1].outcome, Outcome::Unknown(_)));
    assert!(matches!(world.initiator.state(), InitiatorState::Failed(_)));
    assert_eq!(world.subsystem.controllers(), 0);
}

#[test]
fn what_was_answered_before_the_end_stays_answered() {
    let mut world = World::new(&Cuts::Whole).ready();
    let write = |tag: u64| {
        let data = Bytes::copy_from_slice(&pattern(tag, 4096));
        Operation { tag, kind: OperationKind::Write { offset: 0, data }, then: false }
    };
    world.initiator.submit(vec![write(1)]);
    world.initiator.progress(world.now_ms);
    // The target answers and goes; meanwhile the host has more to send.
    for _ in 0..2 {
        let connection = &mut world.connections[1];
        connection.progress(&mut world.subsystem, world.now_ms);
        while let Some(io) = connection.poll_io() {
            connection.complete_io(&mut world.subsystem, io.id, Ok(None));
        }
    }
    world.connections.clear();
    world.initiator.submit(vec![write(2)]);
    world.run();
    world.completed.sort_by_key(|c| c.tag);
    assert!(is_done(&world.completed[0].outcome));
    assert!(matches!(world.completed[1].outcome, Outcome::Unknown(_)));
}

#[test]
fn a_closed_subsystem_takes_no_connection() {
    let mut world = World::new(&Cuts::Whole);
    world.subsystem.close();
    world.run();
    assert!(world.connections.iter().all(TargetConnection::is_finished));
}

/// docs/faults.md: H9
#[test]
fn only_the_named_host_and_the_named_subsystem_come_together() {
    let stranger = InitiatorConfig { host_nqn: "nqn.2026-01.x:y".into(), ..initiator_config() };
    let astray = InitiatorConfig { subsystem_nqn: "nqn.2026-01.x:z".into(), ..initiator_config() };
    for (config, kind) in [(stranger, ErrorKind::Fenced), (astray, ErrorKind::Io)] {
        let mut world = World::with(&Cuts::Whole, config, target_config());
        world.run();
        let InitiatorState::Failed(error) = world.initiator.state() else { panic!() };
        assert_eq!(error.kind(), kind, "{error}");
        assert_eq!(world.subsystem.controllers(), 0);
    }
}

#[test]
fn keep_alives_hold_the_controller_and_silence_loses_it() {
    let mut world = World::new(&Cuts::Whole).ready();
    for _ in 0..30 {
        world.now_ms += 1_000;
        world.run();
    }
    assert!(matches!(world.initiator.state(), InitiatorState::Ready));
    world.now_ms += 5_001;
    for connection in &mut world.connections {
        connection.progress(&mut world.subsystem, world.now_ms);
    }
    assert!(world.connections.iter().all(TargetConnection::is_finished));
    assert_eq!(world.subsystem.controllers(), 0);
}

#[test]
fn a_pause_of_the_target_is_not_taken_for_silence_of_the_host() {
    let mut world = World::new(&Cuts::Whole).ready();
    for _ in 0..9 {
        world.now_ms += 1_000;
        world.initiator.progress(world.now_ms);
    }
    world.run();
    assert!(matches!(world.initiator.state(), InitiatorState::Ready));
}

/// docs/faults.md: H6
#[test]
fn a_silent_connection_ends_and_its_writes_with_unknown_outcome() {
    let mut world = World::new(&Cuts::Whole).ready();
    world.hold = true;
    let data = Bytes::copy_from_slice(&[1; 4096]);
    let kinds = [
        OperationKind::Write { offset: 0, data },
        OperationKind::Read { offset: 0, into: AlignedBuf::zeroed(4096) },
    ];
    world.submit(kinds, false);
    world.now_ms += 9_999;
    world.run();
    assert!(world.completed.is_empty());
    world.now_ms += 1;
    world.run();
    world.completed.sort_by_key(|c| c.tag);
    assert!(matches!(world.completed[0].outcome, Outcome::Unknown(_)));
    assert!(matches!(world.completed[1].outcome, Outcome::Failed(_)));
    assert!(world.completed[1].buffer.is_some());
    // What is submitted afterwards fails at once.
    world.completed.clear();
    let late = world.write(0, &[1; 4096]);
    assert_eq!(refused(&late), ErrorKind::Unavailable);
}

#[test]
fn answers_to_a_burst_go_out_together_and_so_does_the_next_grant_with_a_response() {
    let target = TargetConfig { data_in_flight_max: 2 << 20, ..target_config() };
    let mut world = World::with(&Cuts::Whole, initiator_config(), target).ready();
    world.hold = true;
    let data = AlignedBuf::zeroed(1 << 20).freeze();
    let write = |tag| OperationKind::Write { offset: tag << 20, data: data.clone() };
    let batch = (0..4).map(|tag| Operation { tag, kind: write(tag), then: false });
    world.initiator.submit(batch.collect());
    let sends = |world: &World| world.lanes[1][1].borrow().sends;
    let before = sends(&world);
    world.run();
    assert_eq!((sends(&world) - before, world.held.len()), (1, 2), "two R2Ts in one send");
    world.release();
    world.run();
    assert_eq!((sends(&world) - before, world.held.len()), (2, 2), "two responses, two R2Ts");
}

/// docs/faults.md: E15
#[test]
fn a_target_that_is_slow_and_goes_on_is_waited_for() {
    let target = TargetConfig { data_in_flight_max: 4 << 20, ..target_config() };
    let mut world = World::with(&Cuts::Whole, initiator_config(), target).ready();
    world.hold = true;
    let data = AlignedBuf::zeroed(1 << 20).freeze();
    let write = |tag| OperationKind::Write { offset: (tag % 4) << 20, data: data.clone() };
    let batch = (0..32).map(|tag| Operation { tag, kind: write(tag), then: false });
    world.initiator.submit(batch.collect());
    world.run();
    // A mebibyte in 2 s: a minute for two files, of which the last bytes wait all the while.
    for done in 0..32 {
        assert_eq!(world.completed.len(), done);
        world.now_ms += 2_000;
        let (connection, id, kind) = world.held.remove(0);
        let result = world.execute(kind);
        world.connections[connection].complete_io(&mut world.subsystem, id, Ok(result));
        world.run();
    }
    assert!(world.completed.iter().all(|c| is_done(&c.outcome)), "{:?}", world.completed);
}

/// docs/faults.md: E15
#[test]
fn a_command_that_is_lost_ends_the_connection_though_others_are_answered() {
    let mut world = World::new(&Cuts::Whole).ready();
    world.hold = true;
    let submit = |world: &mut World, tag| {
        let kind = OperationKind::Write { offset: 0, data: [1; 4096][..].into() };
        world.initiator.submit(vec![Operation { tag, kind, then: false }]);
        world.run();
    };
    submit(&mut world, 0);
    for second in 1..600 {
        submit(&mut world, second);
        let (connection, id, kind) = world.held.remove(1);
        let result = world.execute(kind);
        world.connections[connection].complete_io(&mut world.subsystem, id, Ok(result));
        world.now_ms += 1_000;
        world.run();
        assert_eq!(world.completed.len() as u64, second);
    }
    world.now_ms += 1_000;
    world.run();
    let lost = world.completed.iter().find(|c| c.tag == 0).expect("it ended");
    assert!(
        matches!(&lost.outcome, Outcome::Unknown(e) if e.to_string().contains("answers others"))
    );
}

#[test]
fn a_flush_may_take_a_minute_and_what_stands_behind_it_too() {
    let mut world = World::new(&Cuts::Whole).ready();
    world.hold = true;
    let kinds =
        [OperationKind::Flush, OperationKind::Write { offset: 0, data: [1; 4096][..].into() }];
    world.submit(kinds, false);
    // The admin queue is used meanwhile: a target that is gone does not last as long.
    for _ in 0..59 {
        world.now_ms += 1_000;
        world.run();
    }
    world.now_ms += 999;
    world.run();
    assert!(world.completed.is_empty());
    world.now_ms += 1;
    world.run();
    world.completed.sort_by_key(|c| c.tag);
    assert!(matches!(world.completed[0].outcome, Outcome::Failed(_)));
    assert!(matches!(world.completed[1].outcome, Outcome::Unknown(_)));
}

#[test]
fn bad_options_are_refused_by_name() {
    let wrong = [
        InitiatorConfig { queue_depth: 0, ..initiator_config() },
        InitiatorConfig { queue_depth: 1025, ..initiator_config() },
        InitiatorConfig { command_timeout_ms: 0, ..initiator_config() },
        InitiatorConfig { host_nqn: "x".repeat(224), ..initiator_config() },
    ];
    for config in wrong {
        let world = World::with(&Cuts::Whole, config, target_config());
        let InitiatorState::Failed(error) = world.initiator.state() else { panic!() };
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
    }
    let wrong = [
        TargetConfig { namespace_len: 4097, ..target_config() },
        TargetConfig { namespace_len: 0, ..target_config() },
        TargetConfig { namespace_uuid: [0; 16], ..target_config() },
        TargetConfig { queue_depth: 1, ..target_config() },
        TargetConfig { queues_max: 0, ..target_config() },
        TargetConfig { h2c_len_max: 4098, ..target_config() },
        TargetConfig { r2t_len_max: 512, ..target_config() },
        TargetConfig { data_in_flight_max: 4096, ..target_config() },
        TargetConfig { subsystem_nqn: String::new(), ..target_config() },
    ];
    for config in wrong {
        assert_eq!(Subsystem::new(config).unwrap_err().kind(), ErrorKind::InvalidInput);
    }
}

#[test]
fn connecting_gives_up_in_time() {
    let mut world = World::new(&Cuts::Whole);
    world.initiator.progress(5);
    world.initiator.progress(10_004);
    assert!(matches!(world.initiator.state(), InitiatorState::Connecting));
    world.initiator.progress(10_005);
    assert!(matches!(world.initiator.state(), InitiatorState::Failed(_)));
}

#[test]
fn data_buffers_stay_within_the_limit_of_the_connection() {
    let target = TargetConfig { data_in_flight_max: 2 << 20, ..target_config() };
    let mut world = World::with(&Cuts::seeded(11), initiator_config(), target).ready();
    let batch = (0..24u64).map(|tag| {
        let offset = (tag % 4) << 20;
        let kind = match tag % 3 {
            0 => OperationKind::Read { offset, into: AlignedBuf::zeroed(1 << 20) },
            _ => OperationKind::Write { offset, data: AlignedBuf::zeroed(1 << 20).freeze() },
        };
        Operation { tag, kind, then: false }
    });
    world.initiator.submit(batch.collect());
    while world.completed.len() < 24 {
        world.step();
        assert!(world.connections[1].data_reserved() <= 2 << 20);
    }
    assert!(world.completed.iter().all(|c| is_done(&c.outcome)));
}

#[test]
fn blocks_of_512_bytes_are_understood() {
    let info = NamespaceInfo { blocks: 1000, block_order: 9 };
    let decoded = NamespaceInfo::decode(&info.encode(&[1; 16])).unwrap();
    assert_eq!((decoded, decoded.len()), (info, 512_000));
    let mut with_metadata = info.encode(&[1; 16]);
    with_metadata[128] = 8;
    let error = NamespaceInfo::decode(&with_metadata).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn many_operations_at_once_leave_what_a_plain_disk_would(
        seed: u64,
        r2t_order in 14u32..21,
        steps in prop::collection::vec((0u8..5, 0u64..64, 1usize..40), 1..60),
    ) {
        let target = TargetConfig { r2t_len_max: 1 << r2t_order, ..target_config() };
        let cuts = Cuts::seeded(seed);
        let mut world = World::with(&cuts, initiator_config(), target).ready();
        // Operations of one chain happen in order, so a model can follow them.
        let mut model = vec![0u8; NAMESPACE_LEN as usize];
        let mut expected = Vec::new();
        let mut batch = Vec::new();
        for (tag, (kind, block, blocks)) in steps.into_iter().enumerate() {
            let (offset, len) = (block * 4096, blocks * 4096);
            let range = offset as usize..offset as usize + len;
            expected.push(None);
            let kind = match kind {
                0 => OperationKind::Flush,
                1 | 2 => {
                    expected[tag] = Some(model[range].to_vec());
                    OperationKind::Read { offset, into: AlignedBuf::zeroed(len) }
                }
                _ => {
                    let data = pattern(seed ^ tag as u64, len);
                    model[range].copy_from_slice(&data);
                    OperationKind::Write { offset, data: data.into() }
                }
            };
            batch.push(Operation { tag: tag as u64, kind, then: true });
        }
        let count = batch.len();
        world.initiator.submit(batch);
        world.run();
        prop_assert_eq!(world.completed.len(), count);
        for ended in &world.completed {
            prop_assert!(is_done(&ended.outcome), "{}", format!("{:?}", ended.outcome));
            if let Some(bytes) = &expected[ended.tag as usize] {
                prop_assert!(ended.buffer.as_ref().unwrap()[..] == bytes[..]);
            }
        }
        prop_assert!(world.disk == model);
    }
}

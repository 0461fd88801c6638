//! Damage and loss on the way (docs/faults.md H6, H8).

use super::*;
use alloc::collections::BTreeSet;

/// Two writes, by R2T and in the capsule, a read and a flush; each in its own place.
fn traffic(world: &mut World) {
    let write = |offset, len| {
        let data = Bytes::copy_from_slice(&pattern(offset + 1, len));
        OperationKind::Write { offset, data }
    };
    let read = OperationKind::Read { offset: 1 << 20, into: AlignedBuf::zeroed(8192) };
    let kinds = [write(0, 20_480), write(65_536, 4096), read, OperationKind::Flush];
    let operations = kinds.into_iter().enumerate();
    let operations =
        operations.map(|(i, kind)| Operation { tag: i as u64, kind, then: false }).collect();
    world.initiator.submit(operations);
    world.run();
}

fn fresh(digests: Digests) -> World {
    let config = InitiatorConfig {
        header_digest: digests.header,
        data_digest: digests.data,
        ..initiator_config()
    };
    let mut world = World::with(&Cuts::Whole, config, target_config());
    let known = pattern(99, 8192);
    world.disk[1 << 20..(1 << 20) + 8192].copy_from_slice(&known);
    world
}

/// What must hold however the connection ended.
fn check(world: &World, what: &str) {
    assert_eq!(world.completed.len(), 4, "{what}");
    let mut tags: Vec<u64> = world.completed.iter().map(|c| c.tag).collect();
    tags.sort_unstable();
    assert_eq!(tags, [0, 1, 2, 3], "{what}");
    for ended in &world.completed {
        let expected: Option<(usize, Vec<u8>)> = match ended.tag {
            0 => Some((0, pattern(1, 20_480))),
            1 => Some((65_536, pattern(65_537, 4096))),
            _ => None,
        };
        match (&expected, &ended.outcome) {
            (Some((offset, data)), outcome) => {
                let on_disk = &world.disk[*offset..*offset + data.len()];
                let nothing = on_disk.iter().all(|&b| b == 0);
                assert!(nothing || on_disk == &data[..], "{what}: damaged data were written");
                match outcome {
                    Outcome::Done => assert!(!nothing, "{what}: done, but nothing was written"),
                    Outcome::Failed(_) => assert!(nothing, "{what}: failed, but written"),
                    Outcome::Unknown(_) => {}
                }
            }
            (None, Outcome::Done) if ended.tag == 2 => {
                let bytes = ended.buffer.as_ref().unwrap();
                assert!(bytes[..] == pattern(99, 8192)[..], "{what}: damaged data were read");
            }
            (None, Outcome::Unknown(_)) => panic!("{what}: a read or flush of unknown outcome"),
            (None, _) => {}
        }
        assert!(ended.tag != 2 || ended.buffer.is_some(), "{what}: a read lost its buffer");
    }
}

/// Runs the traffic with one lane of the I/O connection tampered with after the handshake.
fn tampered(digests: Digests, lane: usize, tamper: impl Fn(&mut Lane, u64)) -> World {
    let mut world = fresh(digests).ready();
    let start = world.lanes[1][lane].borrow().log.len() as u64;
    tamper(&mut world.lanes[1][lane].borrow_mut(), start);
    traffic(&mut world);
    // Whoever found the damage has dropped the connection; the other end learns by the deadline.
    world.connections.retain(|c| !c.is_finished());
    world.run();
    world.now_ms += 20_000;
    world.run();
    world
}

/// Places of the traffic worth tampering with, counted from its start: around every boundary of a
/// PDU within `reach` bytes, and a sample of the rest.
fn places(digests: Digests, lane: usize, reach: u64) -> BTreeSet<u64> {
    let mut world = fresh(digests).ready();
    let start = world.lanes[1][lane].borrow().log.len();
    traffic(&mut world);
    let lane = world.lanes[1][lane].borrow();
    let traffic = &lane.log[start..];
    let len = traffic.len() as u64;
    let mut places: BTreeSet<u64> = (0..len).step_by(997).collect();
    let mut at = 0;
    while at < len {
        places.extend(at.saturating_sub(reach.min(6))..len.min(at + reach));
        let plen = &traffic[at as usize + 4..at as usize + 8];
        at += u64::from(u32::from_le_bytes(plen.try_into().unwrap()));
    }
    assert_eq!(at, len);
    places.extend(len - reach.min(6)..len);
    places
}

const BOTH: Digests = Digests { header: true, data: true };

/// docs/faults.md: H8
#[test]
fn a_flipped_bit_anywhere_is_found_and_never_becomes_data() {
    for lane in [0, 1] {
        for at in places(BOTH, lane, 76) {
            let bit = at * 8 + at % 8;
            let world = tampered(BOTH, lane, |lane, start| lane.flip_bit = Some(start * 8 + bit));
            let what = alloc::format!("lane {lane}, bit {bit}");
            check(&world, &what);
            let all_done = world.completed.iter().all(|c| is_done(&c.outcome));
            assert!(!all_done, "{what}: not noticed");
        }
    }
}

#[test]
fn every_bit_of_a_header_is_covered() {
    for bit in 0..28 * 8 {
        let world = tampered(BOTH, 1, |lane, start| lane.flip_bit = Some(start * 8 + bit));
        let what = alloc::format!("bit {bit} down");
        check(&world, &what);
        assert!(!world.completed.iter().all(|c| is_done(&c.outcome)), "{what}");
    }
    for bit in (0..76 * 8).filter(|bit| *bit < 64 || bit % 5 == 0) {
        let world = tampered(BOTH, 0, |lane, start| lane.flip_bit = Some(start * 8 + bit));
        check(&world, &alloc::format!("bit {bit} up"));
        assert!(!world.completed.iter().all(|c| is_done(&c.outcome)), "bit {bit} up");
    }
}

/// To whoever ships, a write that was cut short may be there or not.
/// docs/faults.md: H1, H6
#[test]
fn a_connection_cut_after_any_byte_leaves_writes_done_or_unknown() {
    for digests in [BOTH, Digests::default()] {
        for lane in [0, 1] {
            for at in places(digests, lane, 4) {
                let world = tampered(digests, lane, |lane, _| lane.cut_after = Some(at));
                let what = alloc::format!("lane {lane} cut after {at} of {digests:?}");
                check(&world, &what);
                for ended in world.completed.iter().filter(|c| c.tag < 2) {
                    assert!(!matches!(ended.outcome, Outcome::Failed(_)), "{what}");
                }
            }
        }
    }
}

#[test]
fn a_handshake_cut_after_any_byte_fails_clearly() {
    for connection in [0, 1] {
        for lane in [0, 1] {
            let world = fresh(BOTH).ready();
            let len = world.lanes[connection][lane].borrow().log.len() as u64;
            for at in (0..len).step_by(67).chain(len - 10..len) {
                let mut world = fresh(BOTH);
                world.lanes[connection][lane].borrow_mut().cut_after = Some(at);
                world.run();
                world.connections.retain(|c| !c.is_finished());
                world.run();
                world.now_ms += 20_000;
                world.run();
                assert!(
                    matches!(world.initiator.state(), InitiatorState::Failed(_)),
                    "connection {connection}, lane {lane} cut after {at}"
                );
            }
        }
    }
}

#[test]
fn a_damaged_read_fails_alone_and_the_connection_goes_on() {
    let mut world = fresh(BOTH).ready();
    let start = world.lanes[1][1].borrow().log.len() as u64;
    // A byte in the middle of the data: the digest, not the header, finds it.
    world.lanes[1][1].borrow_mut().flip_bit = Some((start + 28 + 4000) * 8);
    let read = world.read(1 << 20, 8192);
    let Outcome::Failed(error) = read.outcome else { panic!() };
    assert_eq!(error.kind(), gabion_base::ErrorKind::Corruption);
    assert!(is_done(&world.read(1 << 20, 8192).outcome));
}

#[test]
fn a_damaged_write_is_refused_and_may_be_sent_again() {
    for len in [4096, 65_536] {
        let mut world = fresh(BOTH).ready();
        let start = world.lanes[1][0].borrow().log.len() as u64;
        world.lanes[1][0].borrow_mut().flip_bit = Some((start + 76 + 28 + 2000) * 8);
        let data = pattern(1, len);
        let Outcome::Failed(error) = world.write(0, &data) else { panic!() };
        assert_eq!(error.kind(), gabion_base::ErrorKind::Corruption);
        assert!(world.trace.is_empty());
        assert!(is_done(&world.write(0, &data)));
    }
}

#[test]
fn a_handshake_with_a_flipped_bit_fails_or_agrees_on_the_truth() {
    let expected = fresh(BOTH).ready().initiator.properties();
    for connection in [0, 1] {
        for lane in [0, 1] {
            let world = fresh(BOTH).ready();
            let len = world.lanes[connection][lane].borrow().log.len() as u64;
            // All that says something of ICReq and ICResp, and a sample of what the digests cover.
            for bit in (0..128).chain((128..len).map(|at| at * 8 + at % 8).step_by(41)) {
                let mut world = fresh(BOTH);
                world.lanes[connection][lane].borrow_mut().flip_bit = Some(bit);
                world.run();
                let what = alloc::format!("connection {connection}, lane {lane}, bit {bit}");
                if matches!(world.initiator.state(), InitiatorState::Ready) {
                    assert_eq!(world.initiator.properties(), expected, "{what}");
                    traffic(&mut world);
                }
                world.connections.retain(|c| !c.is_finished());
                world.run();
                world.now_ms += 20_000;
                world.run();
                if world.completed.is_empty() {
                    let InitiatorState::Failed(_) = world.initiator.state() else {
                        panic!("{what}");
                    };
                } else {
                    check(&world, &what);
                }
            }
        }
    }
}

//! The life of slots and files, call by call.

use super::*;
use crate::{Drained, QuarantineOrigin, SlotState};
use alloc::format;
use gabion_base::{ErrorKind, Generation, ReplicaId, SlotIndex};

const PEER: ReplicaId = ReplicaId(2);

/// docs/faults.md: E10
#[test]
fn allocation_is_all_or_nothing_and_the_error_says_wanted_free_and_limit() {
    let mut rig = Rig::new();
    let total = rig.pool.counts().total;
    let error = rig.pool.allocate(total + 1).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    let message = format!("{} slots wanted, {total} free of {total}", total + 1);
    assert_eq!(error.message(), message);
    assert_eq!(rig.pool.counts().free, total);
    assert_eq!(rig.pool.allocate(total).unwrap().len(), total as usize);
    assert_eq!(rig.pool.counts().free, 0);
    assert!(rig.pool.allocate(0).unwrap().is_empty());
    rig.pool.invariants();
}

#[test]
fn neighbours_are_preferred_and_fragments_taken_when_there_are_none() {
    let mut rig = Rig::new();
    let all = rig.pool.allocate(rig.pool.counts().total).unwrap();
    rig.pool.release(&[all[0], all[2], all[5], all[6], all[9], all[10], all[11]]).unwrap();
    let slots = |placed: Vec<Placed>| placed.iter().map(|p| p.slot.0).collect::<Vec<_>>();
    assert_eq!(slots(rig.pool.allocate(2).unwrap()), [5, 6]);
    assert_eq!(slots(rig.pool.allocate(4).unwrap()), [9, 10, 11, 0]);
    rig.pool.invariants();
}

#[test]
fn a_file_needs_slots_that_are_held_in_that_generation() {
    let mut rig = Rig::new();
    let held = rig.pool.allocate(2).unwrap();
    let stale = Placed { generation: Generation(held[1].generation.0 - 1), ..held[1] };
    let free = Placed { slot: SlotIndex(20), generation: held[0].generation };
    for bad in [stale, free] {
        let error = rig.pool.add_file(placement(1, &[held[0], bad])).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Fenced, "{error}");
        assert_eq!(rig.pool.counts().allocated, 2, "nothing changed");
    }
    let outside = Placed { slot: SlotIndex(1000), generation: held[0].generation };
    for (slots, len) in [
        (&[held[0], held[0]][..], None),
        (&[outside], None),
        (&held[..], Some(SLOT_LEN)),
        (&held[..1], Some(100)),
        (&held[..1], Some(0)),
    ] {
        let mut bad = placement(1, slots);
        bad.len = len.unwrap_or(bad.len);
        assert_eq!(rig.pool.add_file(bad).unwrap_err().kind(), ErrorKind::InvalidInput);
    }
    rig.pool.add_file(placement(1, &held)).unwrap();
    rig.pool.invariants();
}

/// docs/faults.md: H2
#[test]
fn the_same_file_in_the_same_place_is_added_once_and_elsewhere_never() {
    let mut rig = Rig::new();
    let held = rig.pool.allocate(2).unwrap();
    rig.pool.add_file(placement(1, &held[..1])).unwrap();
    rig.commit();
    rig.pool.add_file(placement(1, &held[..1])).unwrap();
    assert!(rig.pool.take_commit().is_none(), "a duplicate stages nothing");
    assert!(rig.pool.add_file(placement(1, &held[1..])).is_err());
}

/// A slot is granted, voided, freed and granted again; what belongs to the first grant
/// never gets it.
/// docs/faults.md: H4
#[test]
fn a_late_placement_into_a_slot_that_was_granted_anew_is_refused() {
    let mut rig = Rig::new();
    let old = rig.pool.grant(Term(3), 1, PEER, 1).unwrap();
    rig.commit();
    assert_eq!(rig.pool.void_grants(2), [old[0].slot]);
    let error = rig.pool.add_file(placement(1, &old)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Fenced, "quarantined: {error}");
    assert!(rig.pool.release_quarantined(Drained::SessionsBelow(1)).is_empty(), "not drained yet");
    assert!(rig.pool.release_quarantined(Drained::Local).is_empty());
    assert_eq!(rig.pool.release_quarantined(Drained::SessionsBelow(2)), [old[0].slot]);
    assert!(rig.pool.add_file(placement(1, &old)).is_err(), "free");
    let new = rig.pool.grant(Term(4), 2, PEER, 1).unwrap();
    assert_eq!(new[0].slot, old[0].slot, "the first free slot is the same one");
    assert!(new[0].generation > old[0].generation);
    assert_eq!(rig.pool.add_file(placement(1, &old)).unwrap_err().kind(), ErrorKind::Fenced);
    rig.pool.add_file(placement(2, &new)).unwrap();
    assert!(rig.pool.add_file(placement(1, &old)).is_err(), "live");
    rig.commit();
    rig.pool.invariants();
}

/// docs/faults.md: H4
#[test]
fn a_session_that_was_voided_gets_no_grants_also_after_a_restart() {
    let mut rig = Rig::new();
    rig.pool.void_grants(5);
    rig.commit();
    let mut rig = rig.reopen();
    assert_eq!(rig.pool.session_floor(), 5);
    assert_eq!(rig.pool.grant(Term(3), 4, PEER, 1).unwrap_err().kind(), ErrorKind::Fenced);
    rig.pool.grant(Term(3), 5, PEER, 1).unwrap();
    rig.checkpoint(b"");
    let mut rig = rig.reopen();
    assert_eq!(rig.pool.session_floor(), 5);
    assert_eq!(rig.pool.void_grants(6).len(), 1);
}

/// RubbleDB's code frees a slot as soon as an edit has removed its file, also under a live read.
/// docs/faults.md: E12
#[test]
fn a_retired_file_keeps_its_slots_until_its_last_reader_left() {
    let mut rig = Rig::new();
    let held = rig.pool.allocate(2).unwrap();
    rig.pool.add_file(placement(1, &held)).unwrap();
    rig.commit();
    assert!(rig.pool.free_file(FileId::sst(1)).is_err(), "live files are not freed");
    rig.pool.retire_file(FileId::sst(1)).unwrap();
    rig.commit();
    assert!(rig.pool.placement(FileId::sst(1)).is_some(), "still readable");
    assert_eq!(rig.pool.files().count(), 0);
    assert_eq!(rig.pool.counts().retired, 2);
    assert!(rig.pool.retire_file(FileId::sst(1)).is_err());
    rig.pool.free_file(FileId::sst(1)).unwrap();
    assert_eq!(rig.pool.counts().retired, 0);
    assert!(rig.pool.placement(FileId::sst(1)).is_none());
    rig.pool.invariants();
}

#[test]
fn slots_of_a_retired_file_are_not_reused_before_the_retirement_is_durable() {
    let mut rig = Rig::new();
    let held = rig.pool.allocate(1).unwrap();
    rig.pool.add_file(placement(1, &held)).unwrap();
    rig.commit();
    rig.pool.retire_file(FileId::sst(1)).unwrap();
    rig.pool.free_file(FileId::sst(1)).unwrap();
    assert_eq!(rig.pool.counts().retired, 1, "a crash now would bring the file back");
    let commit = rig.pool.take_commit().unwrap();
    assert_eq!(rig.pool.counts().retired, 1);
    let number = commit.number;
    rig.block_on(write_commit(&rig.handle, commit)).unwrap();
    rig.pool.committed(number);
    assert_eq!(rig.pool.counts().retired, 0);
}

/// docs/faults.md: H5
#[test]
fn a_write_of_unknown_outcome_takes_its_slots_out_until_the_device_is_opened_anew() {
    let mut rig = Rig::new();
    let held = rig.pool.allocate(2).unwrap();
    rig.pool.quarantine(&held).unwrap();
    assert_eq!(rig.pool.release(&held).unwrap_err().kind(), ErrorKind::Fenced);
    rig.commit();
    let mut rig = rig.reopen();
    let origin = QuarantineOrigin::Local;
    assert_eq!(rig.pool.slot_state(held[0].slot), Some(SlotState::Quarantined { origin }));
    assert!(rig.pool.release_quarantined(Drained::SessionsBelow(u64::MAX)).is_empty());
    assert_eq!(rig.pool.release_quarantined(Drained::Local).len(), 2);
    rig.commit();
    assert_eq!(rig.reopen().pool.counts().quarantined, 0);
}

#[test]
fn one_commit_is_on_its_way_at_a_time_and_the_rest_goes_with_the_next() {
    let mut rig = Rig::new();
    rig.pool.stage_opaque(1, b"first".to_vec());
    let commit = rig.pool.take_commit().unwrap();
    rig.pool.stage_opaque(2, b"second".to_vec());
    rig.pool.stage_opaque(3, b"third".to_vec());
    assert!(rig.pool.take_commit().is_none());
    assert_eq!(rig.pool.checkpoint(b"").unwrap_err().kind(), ErrorKind::Unavailable);
    let number = commit.number;
    rig.block_on(write_commit(&rig.handle, commit)).unwrap();
    rig.pool.committed(number);
    let next = rig.pool.take_commit().unwrap();
    assert_eq!(next.number, number + 1);
    rig.block_on(write_commit(&rig.handle, next)).unwrap();
    assert!(rig.pool.take_commit().is_none());
    let opaque = rig.reopen().opaque;
    assert_eq!(opaque, [(1, b"first".to_vec()), (2, b"second".to_vec()), (3, b"third".to_vec())]);
}

#[test]
fn a_full_area_asks_for_a_checkpoint_and_a_snapshot_that_is_too_long_is_refused() {
    let mut rig = Rig::new();
    let mut commits = 0;
    while !rig.pool.needs_checkpoint() {
        rig.pool.stage_opaque(1, b"entry".to_vec());
        rig.commit();
        commits += 1;
    }
    assert!(commits > 1);
    rig.pool.stage_opaque(1, alloc::vec![0; 10 * BLOCK_LEN]);
    assert!(rig.pool.take_commit().is_none(), "it does not fit");
    let error = rig.pool.checkpoint(&[0; 9 * BLOCK_LEN]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LimitExceeded);
    rig.checkpoint(b"state");
    assert!(!rig.pool.needs_checkpoint());
    let rig = rig.reopen();
    assert_eq!((&rig.snapshot[..], rig.opaque.len()), (&b"state"[..], 0));
}

/// docs/faults.md: E2
#[test]
fn opening_again_and_again_fills_no_area() {
    let mut rig = Rig::new();
    for _ in 0..40 {
        rig = rig.reopen();
    }
    assert!(rig.pool.needs_checkpoint());
    assert_eq!(rig.pool.allocate(1).unwrap_err().kind(), ErrorKind::Unavailable);
    rig.checkpoint(b"");
    rig.pool.allocate(1).unwrap();
}

#[test]
fn allocation_goes_on_past_a_reservation_of_generations() {
    let mut rig = Rig::new();
    let first = rig.pool.allocate(1).unwrap();
    rig.pool.release(&first).unwrap();
    let mut refused = 0;
    for _ in 0..1_200_000 {
        match rig.pool.allocate(1) {
            Ok(placed) => rig.pool.release(&placed).unwrap(),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Unavailable);
                refused += 1;
                rig.commit();
            }
        }
    }
    assert_eq!(refused, 1, "one commit raises the limit by a whole step");
}

/// docs/faults.md: E5
#[test]
fn a_file_that_rotted_moves_to_other_slots_and_the_old_ones_rest_until_the_next_start() {
    let mut rig = Rig::new();
    let slots = rig.pool.allocate(4).unwrap();
    let (old, new) = slots.split_at(2);
    rig.pool.add_file(placement(1, old)).unwrap();
    rig.commit();
    let free = rig.pool.counts().free;
    rig.pool.replace_file(placement(1, new)).unwrap();
    rig.pool.invariants();
    assert_eq!(rig.pool.placement(FileId::sst(1)).unwrap().slots, new);
    let counts = rig.pool.counts();
    assert_eq!((counts.live, counts.quarantined, counts.free), (2, 2, free));
    assert!(rig.pool.allocate(free + 1).is_err(), "nobody writes where something rotted");
    rig.commit();
    assert_eq!(rig.pool.counts().quarantined, 2, "nor once it is durable");
    let mut rig = rig.reopen();
    assert_eq!(rig.pool.placement(FileId::sst(1)).unwrap().slots, new);
    assert_eq!(rig.pool.counts().quarantined, 2);
    assert_eq!(rig.pool.release_quarantined(Drained::Local).len(), 2);
    rig.pool.invariants();
}

#[test]
fn a_file_is_replaced_by_the_same_one_only_and_in_slots_that_are_held() {
    let mut rig = Rig::new();
    let slots = rig.pool.allocate(2).unwrap();
    rig.pool.add_file(placement(1, &slots[..1])).unwrap();
    let other = FilePlacement { checksum: 9, ..placement(1, &slots[1..]) };
    let error = rig.pool.replace_file(other).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corruption, "{error}");
    let unheld = Placed { slot: SlotIndex(20), generation: slots[1].generation };
    let error = rig.pool.replace_file(placement(1, &[unheld])).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Fenced, "{error}");
    let error = rig.pool.replace_file(placement(2, &slots[1..])).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    assert_eq!(rig.pool.placement(FileId::sst(1)).unwrap().slots, slots[..1]);
    assert_eq!(rig.pool.counts().quarantined, 0, "nothing changed");
    rig.pool.invariants();
}

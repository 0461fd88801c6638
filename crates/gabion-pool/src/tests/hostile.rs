//! Records whose checksum is right and whose content is not: written by a bug or by hand. Opening
//! refuses them or lives with them; it never panics and never breaks an invariant.

use super::*;
use crate::QuarantineOrigin;
use crate::placement_log::{Operation, RecordHeader, encode_record};
use alloc::sync::Arc;
use gabion_base::{ErrorKind, FileKind, Generation, ReplicaId, SlotIndex};
use proptest::prelude::*;

fn number() -> impl Strategy<Value = u64> {
    prop_oneof![0u64..40, (1u64 << 20)..(1 << 20) + 40, Just(u64::MAX), any::<u64>()]
}

fn slot() -> impl Strategy<Value = SlotIndex> {
    prop_oneof![9 => 0u32..30, 1 => any::<u32>()].prop_map(SlotIndex)
}

fn placed() -> impl Strategy<Value = Vec<Placed>> {
    let one = (slot(), number());
    let one =
        one.prop_map(|(slot, generation)| Placed { slot, generation: Generation(generation) });
    prop::collection::vec(one, 0..4)
}

fn file() -> impl Strategy<Value = FileId> {
    (1u8..4, 0u64..6)
        .prop_map(|(kind, number)| FileId { kind: FileKind::from_byte(kind).unwrap(), number })
}

fn operation() -> impl Strategy<Value = Operation> {
    let len = prop_oneof![0u64..6, any::<u64>()];
    prop_oneof![
        4 => (file(), placed(), len, any::<bool>()).prop_map(|(file, slots, len, fits)| {
            let fitting = slots.len() as u64 * SLOT_LEN;
            let len = if fits { fitting } else { len };
            Operation::FileLive(Arc::new(FilePlacement { file, term: Term(1), len, checksum: 1, slots }))
        }),
        2 => file().prop_map(Operation::FileRetired),
        2 => (number(), placed()).prop_map(|(session, slots)| {
            Operation::SlotsGranted { term: Term(1), session, to: ReplicaId(1), slots }
        }),
        1 => number().prop_map(|below_session| Operation::GrantsVoided { below_session }),
        2 => (prop::collection::vec(slot(), 0..4), prop::option::of(number())).prop_map(|(slots, s)| {
            let origin = s.map_or(QuarantineOrigin::Local, QuarantineOrigin::Session);
            Operation::SlotsQuarantined { origin, slots }
        }),
        1 => prop::collection::vec(slot(), 0..4).prop_map(Operation::SlotsReleased),
        1 => number().prop_map(|up_to| Operation::GenerationReserved { up_to }),
        1 => (any::<u16>(), any::<Vec<u8>>()).prop_map(|(kind, bytes)| {
            Operation::Opaque { kind, bytes }
        }),
        1 => any::<Vec<u8>>().prop_map(Operation::OpaqueSnapshot),
    ]
}

/// A pool with a file and a grant, whose next commit has this body.
fn with_commit(body: &[u8]) -> Result<Rig> {
    let mut rig = Rig::with_area(64, b"");
    let slots = rig.pool.allocate(2)?;
    rig.pool.add_file(placement(1, &slots))?;
    rig.pool.grant(Term(1), 1, ReplicaId(1), 3)?;
    rig.disk.start_recording();
    rig.commit();
    let recording = rig.disk.recording().unwrap();
    let gabion_media::simulated::Recorded::Write { offset, data, .. } = &recording.effects()[0]
    else {
        panic!("a commit is one write");
    };
    let (_, last) = RecordHeader::peek(data).unwrap();
    let next = RecordHeader { number: last.number + 1, previous_crc: last.crc, ..last };
    rig.disk.poke(offset + data.len() as u64, &encode_record(&next, body, 2).1);
    Rig::open(rig.disk)
}

#[test]
fn operations_that_the_state_does_not_allow_are_refused_with_their_place() {
    let placed =
        |slot, generation| Placed { slot: SlotIndex(slot), generation: Generation(generation) };
    let live = |number, slots: &[Placed]| Operation::FileLive(Arc::new(placement(number, slots)));
    let granted = |slots: &[Placed]| {
        let slots = slots.to_vec();
        Operation::SlotsGranted { term: Term(1), session: 1, to: ReplicaId(1), slots }
    };
    let cases = [
        (live(1, &[placed(9, 9)]), "000001.sst is live twice"),
        (live(2, &[placed(0, 9)]), "slot 0 gen 9 is not held for writing"),
        (live(2, &[placed(2, 9)]), "slot 2 gen 9 is not held for writing: it is Granted"),
        (live(2, &[placed(9, 1 << 40)]), "1048577 and above were never reserved"),
        (live(2, &[placed(99, 9)]), "slot 99 is outside the region"),
        (live(2, &[placed(9, 9), placed(9, 10)]), "slot 9 is named twice"),
        (Operation::FileRetired(FileId::sst(2)), "000002.sst is not live"),
        (granted(&[placed(0, 9)]), "slot 0 is Live"),
        (granted(&[placed(9, 9), placed(9, 9)]), "slot 9 is Granted"),
        (Operation::SlotsReleased(alloc::vec![SlotIndex(0)]), "slot 0 is Some(Live"),
        (
            Operation::SlotsQuarantined {
                origin: QuarantineOrigin::Local,
                slots: alloc::vec![SlotIndex(1)],
            },
            "slot 1 is Live",
        ),
        (Operation::GenerationReserved { up_to: 5 }, "generations reserved up to 5"),
        (Operation::GenerationReserved { up_to: u64::MAX }, "the limit is"),
    ];
    for (operation, reason) in cases {
        let mut body = Vec::new();
        operation.encode(&mut body);
        is_refused(&body, reason);
    }
    let mut body = Vec::new();
    Operation::GrantsVoided { below_session: 2 }.encode(&mut body);
    granted(&[placed(9, 9)]).encode(&mut body);
    is_refused(&body, "session 1 is below the floor of 2");
}

fn is_refused(body: &[u8], reason: &str) {
    let error = with_commit(body).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Corruption, "{error}");
    let text = alloc::format!("{error}");
    assert!(text.starts_with("placement log, commit 4 at byte "), "{text}");
    assert!(text.contains(reason), "{text} should say: {reason}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn any_operations_in_a_whole_record_are_refused_or_keep_the_invariants(
        operations in prop::collection::vec(operation(), 0..6),
    ) {
        let mut body = Vec::new();
        for operation in &operations {
            operation.encode(&mut body);
        }
        match with_commit(&body) {
            Ok(mut rig) => {
                rig.pool.invariants();
                rig.checkpoint(b"");
                let counts = rig.pool.counts();
                prop_assert_eq!(rig.reopen().pool.counts(), counts);
            }
            Err(error) => prop_assert_eq!(error.kind(), ErrorKind::Corruption),
        }
    }

    #[test]
    fn any_bytes_in_a_whole_record_are_refused_or_kept(body: Vec<u8>) {
        if let Err(error) = with_commit(&body) {
            let kind = error.kind();
            prop_assert!(kind == ErrorKind::Corruption || kind == ErrorKind::Unsupported);
        }
    }
}

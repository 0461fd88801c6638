//! Rot in what the pool itself keeps: every bit, every block, both copies (docs/faults.md E3–E7).
//!
//! docs/faults.md: E5

use super::*;
use crate::Counts;
use crate::recovery::recover;
use crate::superblock::Area;
use alloc::format;
use gabion_base::ErrorKind;
use gabion_media::simulated::{Fault, OperationClass};

const BLOCK: u64 = BLOCK_LEN as u64;
/// Blocks of an area here: snapshot, opening twice, two commits twice, and one never used.
const AREA_BLOCKS: u64 = 8;

/// What a pool says, in a form that can be compared.
type State = (Vec<FilePlacement>, Counts, u64, Vec<u8>, Vec<(u16, Vec<u8>)>);

fn state(disk: &SimulatedDisk) -> Result<State> {
    let handle = disk.handle();
    let found = disk.block_on(&handle, recover(&handle))?.recovered;
    let files = found.pool.files().map(|file| (**file).clone()).collect();
    let (counts, floor) = (found.pool.counts(), found.pool.session_floor());
    Ok((files, counts, floor, found.opaque_snapshot.to_vec(), found.opaque))
}

fn areas() -> [Area; 2] {
    Superblock::plan_with_area(&config(), AREA_BLOCKS * BLOCK).unwrap().areas
}

/// A pool in its second area, with an older state in the first: two commits behind the opening.
fn sample() -> SimulatedDisk {
    let mut rig = Rig::with_area(AREA_BLOCKS, b"first");
    let slots = rig.pool.allocate(9).unwrap();
    rig.pool.add_file(placement(1, &slots[..2])).unwrap();
    rig.pool.void_grants(4);
    rig.commit();
    rig.pool.grant(Term(3), 4, gabion_base::ReplicaId(2), 5).unwrap();
    rig.pool.quarantine(&slots[8..]).unwrap();
    rig.checkpoint(b"second");
    rig.pool.add_file(placement(2, &slots[2..5])).unwrap();
    rig.pool.stage_opaque(1, b"an edit".to_vec());
    rig.commit();
    rig.pool.retire_file(FileId::sst(1)).unwrap();
    rig.pool.stage_opaque(2, b"another edit".to_vec());
    rig.commit();
    rig.disk
}

/// Flips every bit of what is in use and, of the zeros behind it, one bit in each `zeros_step`
/// bytes, of both superblocks and both areas. Each is repaired from the second copy, of no
/// interest, or refused; the pool never says something else.
fn flip_bits(zeros_step: u64) {
    let disk = sample();
    let expected = state(&disk).unwrap();
    assert_eq!((&expected.3[..], expected.4.len()), (&b"second"[..], 2));
    let snapshot = areas()[1].offset..areas()[1].offset + BLOCK;
    let log = areas()[0].offset..areas()[1].offset + AREA_BLOCKS * BLOCK;
    for block in (0..2 * BLOCK).chain(log).step_by(BLOCK_LEN) {
        let bytes = disk.peek(block, BLOCK_LEN - 4);
        let used = bytes.iter().rposition(|&b| b != 0).map_or(0, |last| last as u64 + 1);
        for at in block..block + BLOCK {
            let in_use = at - block < used || at - block >= BLOCK - 4;
            let is_chosen = |bit| {
                in_use || zeros_step == 0 || (at % zeros_step, at / zeros_step % 8) == (0, bit)
            };
            for bit in (0..8).filter(|&bit| is_chosen(bit)) {
                disk.flip_bit(at, bit as u8);
                match state(&disk) {
                    Ok(found) => {
                        assert!(found == expected, "bit {bit} of byte {at}");
                        assert!(!snapshot.contains(&at), "a snapshot has no second copy: {at}");
                    }
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::Corruption, "{at}: {error}");
                        assert!(snapshot.contains(&at), "everything else has one: {at}: {error}");
                        assert!(format!("{error}").contains(&format!("{}", snapshot.start)));
                    }
                }
                disk.flip_bit(at, bit as u8);
            }
        }
    }
    assert!(state(&disk).unwrap() == expected, "every bit was put back");
}

/// docs/faults.md: E5
#[test]
fn no_flipped_bit_changes_what_a_pool_says() {
    flip_bits(16);
}

#[test]
#[ignore = "half a million openings: a minute or two, for the soak"]
fn no_flipped_bit_changes_what_a_pool_says_even_in_the_zeros() {
    flip_bits(0);
}

#[test]
fn opening_repairs_a_bad_copy_so_that_the_next_fault_is_survived_too() {
    let clean = sample();
    let blocks = [0, 1].into_iter().chain((1..7).map(|i| areas()[1].offset / BLOCK + i));
    for block in blocks {
        let at = block * BLOCK;
        let disk = clean.fork();
        disk.poke(at, &[0xee; BLOCK_LEN]);
        let expected = state(&disk).unwrap();
        // No room is left for a commit, so opening writes repairs and nothing else.
        disk.plan(OperationClass::Write, 2, Fault::Fail);
        Rig::open(disk.clone()).unwrap();
        assert!(disk.peek(at, BLOCK_LEN) == clean.peek(at, BLOCK_LEN), "block {block}");
        assert!(state(&disk).unwrap() == expected);
        assert!(expected == state(&clean).unwrap());
    }
}

/// Both copies of a commit are gone and a later one is there.
/// docs/faults.md: E4
#[test]
fn rot_in_the_middle_is_refused_with_its_place() {
    let clean = sample();
    let [_, area] = areas();
    for (first, number) in [(1, 4), (3, 5)] {
        let disk = clean.fork();
        let at = area.offset + first * BLOCK;
        for copy in [at, at + BLOCK] {
            disk.flip_bit(copy + 20, 1);
        }
        let error = state(&disk).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corruption);
        let message = format!(
            "placement log, area B: no whole commit {number} at byte {at}, but commit 6 of epoch 2 \
             is whole at byte {}",
            area.offset + 5 * BLOCK
        );
        assert_eq!(error.message(), message);
    }
}

/// The tail was torn before it could be acknowledged.
/// docs/faults.md: E3
#[test]
fn a_tail_with_both_copies_torn_is_dropped_whole() {
    let clean = sample();
    let at = areas()[1].offset + 5 * BLOCK;
    let disk = clean.fork();
    disk.poke(at + 30, &[1; 10]);
    disk.poke(at + BLOCK + 30, &[1; 10]);
    let (files, _, _, snapshot, opaque) = state(&disk).unwrap();
    assert_eq!(files.len(), 2, "the retirement was in the tail");
    assert_eq!((&snapshot[..], &opaque[..]), (&b"second"[..], &[(1, b"an edit".to_vec())][..]));
}

/// A commit's write went nowhere or elsewhere and was reported as done.
/// docs/faults.md: E6, E7
#[test]
fn a_lost_or_misdirected_commit_is_found_once_another_follows() {
    for fault in [Fault::Lost, Fault::Misdirected { to: 40 * MIB }] {
        let mut rig = Rig::new();
        rig.pool.stage_opaque(1, b"lost".to_vec());
        rig.disk.plan(OperationClass::Write, 1, fault);
        rig.commit();
        rig.pool.stage_opaque(1, b"written".to_vec());
        rig.commit();
        assert_eq!(state(&rig.disk).unwrap_err().kind(), ErrorKind::Corruption);
    }
    // A snapshot that was lost and its opening that was not.
    let mut rig = Rig::new();
    rig.disk.plan(OperationClass::Write, 1, Fault::Lost);
    rig.checkpoint(b"lost");
    assert_eq!(state(&rig.disk).unwrap_err().kind(), ErrorKind::Corruption);
}

#[test]
fn an_old_commit_in_the_place_of_a_new_one_is_not_taken_for_it() {
    let clean = sample();
    let [_, area] = areas();
    let block = |i: u64| clean.peek(area.offset + i * BLOCK, BLOCK_LEN);
    for (from, to) in (1..7u64).flat_map(|a| (1..7u64).map(move |b| (a, b))) {
        let disk = clean.fork();
        disk.poke(area.offset + to * BLOCK, &block(from));
        assert!(state(&disk).unwrap() == state(&clean).unwrap(), "block {from} over block {to}");
    }
}

/// A checkpoint whose opening was torn in its zeros alone, and later made whole by bits of another
/// write: the area that went on instead is the newer one.
#[test]
fn a_checkpoint_that_never_finished_does_not_come_back() {
    for area in 0..2 {
        let mut rig = Rig::new();
        if area == 1 {
            rig.checkpoint(b"once more");
        }
        let commit = rig.pool.checkpoint(b"never finished").unwrap();
        let opening = commit.stages[1].offset;
        rig.block_on(write_commit(&rig.handle, commit)).unwrap();
        let torn = |disk: &SimulatedDisk, byte: u8| {
            disk.poke(opening + 3000, &[byte; 512]);
            disk.poke(opening + BLOCK + 3000, &[byte; 512]);
        };
        torn(&rig.disk, 9);
        let mut rig = rig.reopen();
        rig.pool.stage_opaque(1, b"acknowledged".to_vec());
        rig.commit();
        torn(&rig.disk, 0);
        assert_eq!(rig.reopen().opaque, [(1, b"acknowledged".to_vec())]);
    }
}

#[test]
fn an_unreadable_block_is_like_a_bad_one_but_never_like_a_torn_tail() {
    let clean = sample();
    let expected = state(&clean).unwrap();
    let [a, b] = areas();
    let unreadable = |ranges: &[(u64, u64)]| {
        let disk = clean.fork();
        for &(at, len) in ranges {
            disk.fail_reads_in(at, len);
        }
        state(&disk)
    };
    for i in (0..2).chain((1..7).map(|i| b.offset / BLOCK + i)) {
        assert!(unreadable(&[(i * BLOCK, 1)]).unwrap() == expected, "block {i}");
    }
    let error = unreadable(&[(b.offset + 5 * BLOCK, 2 * BLOCK)]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io, "an acknowledged commit may be there: {error}");
    assert_eq!(unreadable(&[(b.offset, 1)]).unwrap_err().kind(), ErrorKind::Corruption);
    for i in 0..AREA_BLOCKS {
        assert!(
            unreadable(&[(a.offset + i * BLOCK, 1)]).unwrap() == expected,
            "old area, block {i}"
        );
    }
    assert_eq!(unreadable(&[(b.offset, 3 * BLOCK)]).unwrap_err().kind(), ErrorKind::Io);
    assert!(unreadable(&[(a.offset, AREA_BLOCKS * BLOCK)]).is_err(), "it may be the newer area");
    assert_eq!(unreadable(&[(0, 2 * BLOCK)]).unwrap_err().kind(), ErrorKind::Io);
    assert_eq!(unreadable(&[(0, POOL_LEN)]).unwrap_err().kind(), ErrorKind::Io);
}

/// After a failed write or flush nothing of that commit counts; the pool is opened anew.
/// docs/faults.md: E8
#[test]
fn a_commit_that_fails_leaves_the_state_before_or_after_it() {
    for (class, nth) in [(OperationClass::Write, 1), (OperationClass::Flush, 1)] {
        for seed in 0..20 {
            let mut rig = Rig::new();
            rig.pool.stage_opaque(1, b"kept".to_vec());
            rig.commit();
            rig.pool.stage_opaque(1, b"failing".to_vec());
            rig.disk.plan(class, nth, Fault::Fail);
            let commit = rig.pool.take_commit().unwrap();
            assert!(rig.block_on(write_commit(&rig.handle, commit)).is_err());
            assert!(rig.pool.take_commit().is_none(), "nothing more from this pool");
            rig.disk.crash_power(seed);
            let opaque = Rig::open(rig.disk).unwrap().opaque;
            assert_eq!(opaque[0], (1, b"kept".to_vec()));
            assert!(opaque.len() <= 2);
        }
    }
}

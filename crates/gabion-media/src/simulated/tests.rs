//! What the simulated disk promises, each of its faults, and that a seed repeats all of it.

use super::*;
use crate::AlignedBuf;
use crate::medium::{OperationKind, Outcome};
use alloc::format;
use alloc::string::String;
use gabion_base::{ErrorKind, Result};
use proptest::prelude::*;

const DISK_LEN: u64 = 1 << 20;
const BLOCK: u64 = BLOCK_LEN as u64;

fn block_of(byte: u8) -> Bytes {
    AlignedBuf::copy_of(&[byte; BLOCK_LEN]).freeze()
}

fn write(disk: &SimulatedDisk, handle: &MediumHandle, block: u64, byte: u8) -> Result<()> {
    disk.block_on(handle, handle.write(block * BLOCK, block_of(byte)))
}

fn flush(disk: &SimulatedDisk, handle: &MediumHandle) -> Result<()> {
    disk.block_on(handle, handle.flush())
}

fn immediate() -> (SimulatedDisk, MediumHandle) {
    let disk = SimulatedDisk::new(DiskOptions::immediate(DISK_LEN));
    let handle = disk.handle();
    (disk, handle)
}

fn block(disk: &SimulatedDisk, block: u64) -> Vec<u8> {
    disk.peek(block * BLOCK, BLOCK_LEN)
}

#[test]
fn what_is_written_is_read_and_what_is_not_is_zero() {
    let (disk, handle) = immediate();
    write(&disk, &handle, 3, 7).unwrap();
    let read = disk.block_on(&handle, handle.read(2 * BLOCK, 3 * BLOCK_LEN)).unwrap();
    assert!(read[..BLOCK_LEN].iter().all(|&b| b == 0));
    assert!(read[BLOCK_LEN..2 * BLOCK_LEN].iter().all(|&b| b == 7));
    assert!(read[2 * BLOCK_LEN..].iter().all(|&b| b == 0));
    assert_eq!(disk.stats().written_bytes, BLOCK);
}

#[test]
fn operations_that_break_the_rules_fail_with_range_and_rule() {
    let (disk, handle) = immediate();
    let short = AlignedBuf::copy_of(&[1; 100]).freeze();
    let cases = [
        (0, short.clone(), "is not aligned"),
        (512, block_of(1), "is not aligned"),
        (DISK_LEN, block_of(1), "reaches past the end"),
        (u64::MAX - 4095, block_of(1), "reaches past the end"),
        (0, AlignedBuf::zeroed((1 << 20) + BLOCK_LEN).freeze(), "longer than the largest"),
        (0, AlignedBuf::zeroed(2 * BLOCK_LEN).freeze().slice(512..512 + BLOCK_LEN), "buffer"),
        (0, Bytes::new(), "is empty"),
    ];
    for (offset, data, rule) in cases {
        let error = disk.block_on(&handle, handle.write(offset, data)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(format!("{error}").contains(rule), "{error} should say: {rule}");
    }
}

#[test]
fn flushed_writes_survive_a_power_cut_and_unflushed_ones_may_not() {
    let mut fates = alloc::collections::BTreeSet::new();
    for seed in 0..200 {
        let (disk, handle) = immediate();
        write(&disk, &handle, 0, 1).unwrap();
        flush(&disk, &handle).unwrap();
        write(&disk, &handle, 0, 2).unwrap();
        write(&disk, &handle, 1, 3).unwrap();
        disk.crash_power(seed);
        let left = block(&disk, 0);
        fates.insert(match () {
            () if left.iter().all(|&b| b == 1) => "old",
            () if left.iter().all(|&b| b == 2) => "new",
            () if left.iter().all(|&b| b == 1 || b == 2) => "torn",
            () => "damaged",
        });
        for sector in left.chunks(SECTOR_LEN).filter(|sector| sector.contains(&1)) {
            let whole = sector.iter().all(|&b| b == 1);
            assert!(whole || !sector.iter().all(|&b| b == 1 || b == 2), "sectors are atomic");
        }
        if seed == 0 {
            assert_eq!((left[0], block(&disk, 1)[0]), (1, 0));
        } else if seed == 1 {
            assert_eq!((left[0], block(&disk, 1)[0]), (2, 3));
        }
    }
    assert_eq!(fates.len(), 4, "all four fates were seen: {fates:?}");
}

#[test]
fn a_flushed_block_is_never_touched_by_a_power_cut() {
    for seed in 0..200 {
        let (disk, handle) = immediate();
        write(&disk, &handle, 0, 1).unwrap();
        flush(&disk, &handle).unwrap();
        write(&disk, &handle, 1, 2).unwrap();
        disk.crash_power(seed);
        assert_eq!(block(&disk, 0), [1; BLOCK_LEN]);
    }
}

#[test]
fn a_flush_covers_only_what_had_ended_when_it_was_submitted() {
    let (disk, handle) = immediate();
    let kinds = || {
        let data = block_of(9);
        alloc::vec![OperationKind::Write { offset: 0, data }, OperationKind::Flush]
    };
    for pending in handle.submit(kinds(), false) {
        assert!(matches!(disk.block_on(&handle, pending).outcome, Outcome::Done));
    }
    disk.crash_power(0);
    assert_eq!(block(&disk, 0)[0], 0, "side by side: not covered");

    let handle = disk.handle();
    for pending in handle.submit(kinds(), true) {
        assert!(matches!(disk.block_on(&handle, pending).outcome, Outcome::Done));
    }
    disk.crash_power(0);
    assert_eq!(block(&disk, 0)[0], 9, "chained: covered");
}

#[test]
fn a_killed_process_keeps_what_ended_and_its_media_are_dead() {
    let (disk, handle) = immediate();
    write(&disk, &handle, 0, 1).unwrap();
    disk.crash_process(5);
    assert_eq!(block(&disk, 0), [1; BLOCK_LEN]);
    let mut dead =
        handle.submit(alloc::vec![OperationKind::Write { offset: 0, data: block_of(2) }], false);
    disk.tick();
    assert_eq!(handle.drive(), 0);
    let mut context = Context::from_waker(Waker::noop());
    assert!(core::pin::Pin::new(&mut dead[0]).poll(&mut context).is_pending());
    assert_eq!(block(&disk, 0), [1; BLOCK_LEN], "a dead process writes nothing");
    disk.crash_power(0);
    assert_eq!(block(&disk, 0)[0], 0, "its write was never flushed");
}

#[test]
fn a_write_in_flight_at_a_kill_lands_or_not_or_late() {
    let mut fates = alloc::collections::BTreeSet::new();
    for seed in 0..100 {
        let disk = SimulatedDisk::new(DiskOptions::delayed(DISK_LEN, seed, 5));
        let handle = disk.handle();
        let _pending = handle
            .submit(alloc::vec![OperationKind::Write { offset: 0, data: block_of(2) }], false);
        disk.crash_process(seed);
        let before = block(&disk, 0);
        let _next = disk.medium();
        let after = block(&disk, 0);
        for _ in 0..20 {
            disk.tick();
        }
        assert_eq!(block(&disk, 0), after, "nothing lands once the next process has opened");
        fates.insert(match (before.iter().all(|&b| b == 2), after.iter().all(|&b| b == 2)) {
            (true, true) => "landed",
            (false, true) => "late",
            _ if after.iter().all(|&b| b == 0) => "never",
            _ => "torn",
        });
    }
    assert_eq!(fates.len(), 4, "{fates:?}");
}

#[test]
fn the_nth_operation_of_a_class_fails_and_no_other() {
    let (disk, handle) = immediate();
    disk.plan(OperationClass::Write, 2, Fault::Fail);
    disk.plan(OperationClass::Read, 1, Fault::Fail);
    assert!(write(&disk, &handle, 0, 1).is_ok());
    let error = write(&disk, &handle, 1, 1).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io);
    assert!(format!("{error}").contains("write of 4096 bytes at 4096"), "{error}");
    assert!(write(&disk, &handle, 2, 1).is_ok());
    assert!(disk.block_on(&handle, handle.read(0, BLOCK_LEN)).is_err());
    assert!(disk.block_on(&handle, handle.read(0, BLOCK_LEN)).is_ok());
}

/// docs/faults.md: E10
#[test]
fn a_write_without_room_leaves_a_beginning_of_itself_and_says_no_space() {
    let mut lens = alloc::collections::BTreeSet::new();
    for seed in 0..50 {
        let disk = SimulatedDisk::new(DiskOptions { len: DISK_LEN, seed, delay_ticks_max: 0 });
        let handle = disk.handle();
        write(&disk, &handle, 1, 1).unwrap();
        disk.plan(OperationClass::Write, 1, Fault::NoSpace);
        let error = write(&disk, &handle, 1, 2).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoSpace);
        assert!(format!("{error}").contains("write of 4096 bytes at 4096"), "{error}");
        let left = block(&disk, 1);
        let len = left.iter().take_while(|&&b| b == 2).count();
        assert!(left[len..].iter().all(|&b| b == 1), "the rest is as it was");
        assert!(len.is_multiple_of(SECTOR_LEN) && len < BLOCK_LEN, "{len} bytes");
        lens.insert(len);
        assert!(write(&disk, &handle, 1, 3).is_ok());
    }
    assert!(lens.len() > 4, "{lens:?}");
}

#[test]
fn a_full_range_takes_no_write_until_it_is_given_room_and_is_read_all_the_while() {
    let (disk, handle) = immediate();
    write(&disk, &handle, 3, 1).unwrap();
    disk.fill_up(alloc::vec![(2 * BLOCK, 2 * BLOCK)]);
    for _ in 0..3 {
        assert_eq!(write(&disk, &handle, 3, 2).unwrap_err().kind(), ErrorKind::NoSpace);
    }
    assert!(write(&disk, &handle, 1, 2).is_ok());
    assert!(write(&disk, &handle, 4, 2).is_ok());
    assert!(disk.block_on(&handle, handle.read(3 * BLOCK, BLOCK_LEN)).is_ok());
    assert!(flush(&disk, &handle).is_ok());
    disk.fill_up(Vec::new());
    assert!(write(&disk, &handle, 3, 4).is_ok());
    assert_eq!(block(&disk, 3), [4; BLOCK_LEN]);
}

/// docs/faults.md: E8
#[test]
fn after_a_failed_flush_that_of_the_next_medium_succeeds_and_proves_nothing() {
    let mut lost = 0;
    for seed in 0..50 {
        let disk = SimulatedDisk::new(DiskOptions { len: DISK_LEN, seed, delay_ticks_max: 0 });
        let handle = disk.handle();
        disk.plan(OperationClass::Flush, 1, Fault::Fail);
        write(&disk, &handle, 0, 1).unwrap();
        assert_eq!((disk.faults_to_come(), disk.flush_had_failed()), (1, false));
        assert!(flush(&disk, &handle).is_err());
        assert_eq!((disk.faults_to_come(), disk.flush_had_failed()), (0, true));
        assert!(flush(&disk, &handle).is_err(), "nothing of this process counts any more");
        assert!(flush(&disk, &disk.handle()).is_ok());
        assert!(disk.flush_had_failed(), "only who wrote everything again may say otherwise");
        assert_eq!(block(&disk, 0), [1; BLOCK_LEN], "readers see the pages that were dropped");
        disk.crash_power(1);
        assert!(!disk.flush_had_failed(), "what can be read now is what is there");
        lost += usize::from(block(&disk, 0) != [1; BLOCK_LEN]);
    }
    assert!(lost > 10, "{lost} of 50");
}

#[test]
fn lost_and_misdirected_writes_are_reported_as_done() {
    let (disk, handle) = immediate();
    disk.plan(OperationClass::Write, 1, Fault::Lost);
    disk.plan(OperationClass::Write, 2, Fault::Misdirected { to: 5 * BLOCK });
    write(&disk, &handle, 0, 1).unwrap();
    write(&disk, &handle, 1, 2).unwrap();
    assert_eq!((block(&disk, 0)[0], block(&disk, 1)[0], block(&disk, 5)[0]), (0, 0, 2));
}

#[test]
fn a_write_of_unknown_outcome_may_land_after_it_was_reported() {
    let (disk, handle) = immediate();
    disk.plan(OperationClass::Write, 1, Fault::Unknown);
    let error = write(&disk, &handle, 0, 1).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unknown);
    assert_eq!(block(&disk, 0)[0], 0);
    for _ in 0..10 {
        disk.tick();
    }
    assert_eq!(block(&disk, 0)[0], 1);
}

#[test]
fn a_held_operation_ends_when_it_is_released() {
    let (disk, handle) = immediate();
    disk.plan(OperationClass::Write, 1, Fault::Hold);
    let pending =
        handle.submit(alloc::vec![OperationKind::Write { offset: 0, data: block_of(1) }], false);
    disk.tick();
    assert_eq!((handle.drive(), disk.in_flight()), (0, 1));
    disk.release_held();
    assert_eq!((handle.drive(), block(&disk, 0)[0]), (1, 1));
    drop(pending);
}

#[test]
fn the_rest_of_a_chain_fails_without_having_started() {
    let (disk, handle) = immediate();
    disk.plan(OperationClass::Write, 2, Fault::Fail);
    let kinds =
        (0..4).map(|i| OperationKind::Write { offset: i * BLOCK, data: block_of(1) }).collect();
    let ended: Vec<bool> = handle
        .submit(kinds, true)
        .into_iter()
        .map(|pending| disk.block_on(&handle, pending).outcome.into_result().is_ok())
        .collect();
    assert_eq!(ended, [true, false, false, false]);
    assert_eq!((block(&disk, 2)[0], block(&disk, 3)[0]), (0, 0));
}

#[test]
fn bad_ranges_and_bit_flips_hit_exactly_their_place() {
    let (disk, handle) = immediate();
    write(&disk, &handle, 0, 0).unwrap();
    disk.flip_bit(10, 3);
    assert_eq!(disk.peek(9, 3), [0, 8, 0]);
    disk.fail_reads_in(BLOCK + 100, 1);
    assert!(disk.block_on(&handle, handle.read(0, BLOCK_LEN)).is_ok());
    assert!(disk.block_on(&handle, handle.read(0, 2 * BLOCK_LEN)).is_err());
    assert!(disk.block_on(&handle, handle.read(2 * BLOCK, BLOCK_LEN)).is_ok());
    disk.fail_writes_in(2 * BLOCK, BLOCK);
    assert!(write(&disk, &handle, 1, 1).is_ok());
    assert!(write(&disk, &handle, 2, 1).is_err());
    assert!(write(&disk, &handle, 2, 1).is_err(), "it is the place, and not the call");
    disk.clear_faults();
    assert!(write(&disk, &handle, 2, 1).is_ok());
    assert!(disk.block_on(&handle, handle.read(BLOCK, BLOCK_LEN)).is_ok());
}

/// A workload with everything in flight at once; returns what happened, as text.
fn trace(seed: u64) -> String {
    let disk = SimulatedDisk::new(DiskOptions::delayed(DISK_LEN, seed, 20));
    disk.plan(OperationClass::Write, 7, Fault::Fail);
    disk.start_recording();
    let mut medium = disk.medium();
    let operation = |i: u64| Operation {
        tag: i,
        kind: match i % 5 {
            4 => OperationKind::Flush,
            3 => OperationKind::Read { offset: 0, into: AlignedBuf::zeroed(BLOCK_LEN) },
            _ => OperationKind::Write { offset: i % 8 * BLOCK, data: block_of(i as u8) },
        },
        then: i.is_multiple_of(3),
    };
    medium.submit((0..40).map(operation).collect());
    let mut text = String::new();
    while medium.in_flight() > 0 {
        disk.tick();
        let mut ended = Vec::new();
        medium.poll(&mut ended);
        text += &format!("{:?}\n", ended.iter().map(|c| (c.tag, &c.outcome)).collect::<Vec<_>>());
    }
    disk.crash_power(seed);
    let crc = gabion_base::crc::crc32c(&disk.peek(0, DISK_LEN as usize));
    text + &format!("{crc}")
}

#[test]
fn the_same_seed_gives_the_same_trace_and_another_seed_another() {
    for seed in 0..20 {
        assert_eq!(trace(seed), trace(seed));
        assert_ne!(trace(seed), trace(seed + 1));
    }
}

#[test]
fn recorded_images_show_every_boundary() {
    let (disk, handle) = immediate();
    write(&disk, &handle, 0, 1).unwrap();
    flush(&disk, &handle).unwrap();
    disk.start_recording();
    write(&disk, &handle, 0, 2).unwrap();
    write(&disk, &handle, 1, 3).unwrap();
    flush(&disk, &handle).unwrap();
    write(&disk, &handle, 2, 4).unwrap();
    let recording = disk.recording().unwrap();
    let firsts = |k, variant| {
        let image = recording.image_at(k, variant);
        [block(&image, 0)[0], block(&image, 1)[0], block(&image, 2)[0]]
    };
    assert_eq!(recording.effects().len(), 4);
    assert_eq!((firsts(0, 0), firsts(0, 1)), ([1, 0, 0], [1, 0, 0]));
    assert_eq!((firsts(2, 0), firsts(2, 1)), ([1, 0, 0], [2, 3, 0]));
    assert_eq!((firsts(3, 0), firsts(4, 0), firsts(4, 1)), ([2, 3, 0], [2, 3, 0], [2, 3, 4]));
    for variant in 2..50 {
        assert_eq!(firsts(4, variant)[..2], [2, 3], "flushed blocks are the same in each variant");
    }
    // The images are disks of their own.
    let image = recording.image_at(4, 0);
    write(&image, &image.handle(), 0, 9).unwrap();
    assert_eq!(block(&disk, 0)[0], 2);
    assert_eq!(firsts(4, 0), [2, 3, 0]);
}

#[test]
fn a_replay_of_a_failed_flush_leaves_what_the_disk_left() {
    for seed in 0..20 {
        let disk = SimulatedDisk::new(DiskOptions { len: DISK_LEN, seed, delay_ticks_max: 0 });
        let handle = disk.handle();
        disk.start_recording();
        disk.plan(OperationClass::Flush, 1, Fault::Fail);
        write(&disk, &handle, 0, 1).unwrap();
        write(&disk, &handle, 1, 2).unwrap();
        assert!(flush(&disk, &handle).is_err());
        let handle = disk.handle();
        write(&disk, &handle, 2, 3).unwrap();
        flush(&disk, &handle).unwrap();
        let recording = disk.recording().unwrap();
        let image = recording.image_at(recording.effects().len(), 0);
        disk.crash_power(0);
        assert_eq!(image.peek(0, DISK_LEN as usize), disk.peek(0, DISK_LEN as usize));
    }
}

#[test]
fn a_driver_keeps_its_medium_and_sees_whether_anybody_still_waits() {
    let disk = SimulatedDisk::new(DiskOptions::immediate(DISK_LEN));
    let medium = Rc::new(RefCell::new(disk.medium()));
    let handle = MediumHandle::new(medium.clone());
    assert!(!handle.is_shared());
    let flush = handle.submit(alloc::vec![OperationKind::Flush], false);
    assert!(handle.is_shared());
    assert_eq!(medium.borrow().in_flight(), 1);
    assert_eq!(handle.drive(), 1);
    drop(flush);
    assert!(!handle.is_shared());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn ended_operations_in_any_order_agree_with_a_model(
        seed: u64,
        steps in prop::collection::vec((0u64..16, 1u8..255, 0u8..4), 1..60),
    ) {
        let disk = SimulatedDisk::new(DiskOptions::delayed(16 * BLOCK, seed, 7));
        let handle = disk.handle();
        let mut now = [0u8; 16];
        let mut dirty = [false; 16];
        for (place, byte, what) in steps {
            let i = place as usize;
            match what {
                0 => {
                    flush(&disk, &handle).unwrap();
                    dirty = [false; 16];
                }
                1 => {
                    let read = disk.block_on(&handle, handle.read(place * BLOCK, BLOCK_LEN));
                    prop_assert!(read.unwrap().iter().all(|&b| b == now[i]));
                }
                _ => {
                    write(&disk, &handle, place, byte).unwrap();
                    (now[i], dirty[i]) = (byte, true);
                }
            }
        }
        disk.crash_power(seed);
        for i in (0..16).filter(|&i| !dirty[i]) {
            prop_assert_eq!(block(&disk, i as u64), [now[i]; BLOCK_LEN]);
        }
    }
}

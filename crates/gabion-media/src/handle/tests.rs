//! Reads of several ranges: their order, buffers that are used again, refusals, errors.

use super::*;
use crate::simulated::{DiskOptions, Fault, OperationClass, SimulatedDisk};
use gabion_base::ErrorKind;
use gabion_base::units::BLOCK_LEN;

const BLOCK: u64 = BLOCK_LEN as u64;
const TRANSFER: u64 = TRANSFER_LEN_MAX as u64;
const DISK_LEN: u64 = 8 * TRANSFER;

/// A disk of which each block says its number, and which answers in any order.
fn disk(seed: u64) -> (SimulatedDisk, MediumHandle) {
    let disk = SimulatedDisk::new(DiskOptions::delayed(DISK_LEN, seed, 9));
    for at in (0..DISK_LEN).step_by(BLOCK_LEN) {
        disk.poke(at, &content(at, BLOCK_LEN));
    }
    let handle = disk.handle();
    (disk, handle)
}

/// What lies in a range of such a disk.
fn content(offset: u64, len: usize) -> Vec<u8> {
    let blocks = offset / BLOCK..(offset + len as u64) / BLOCK;
    blocks.flat_map(|block| [block.to_le_bytes(); BLOCK_LEN / 8]).flatten().collect()
}

fn read(
    disk: &SimulatedDisk,
    handle: &MediumHandle,
    ranges: &[(u64, usize)],
) -> Result<Vec<Bytes>> {
    disk.block_on(handle, handle.read_ranges(ranges.iter().copied()))
}

#[track_caller]
fn assert_read(disk: &SimulatedDisk, handle: &MediumHandle, ranges: &[(u64, usize)]) {
    let parts = read(disk, handle, ranges).unwrap();
    assert_eq!(parts.len(), ranges.len());
    for (part, (offset, len)) in parts.iter().zip(ranges) {
        assert!(part[..] == content(*offset, *len)[..], "{len} bytes at {offset}");
    }
    assert_eq!(handle.in_flight(), 0);
}

#[test]
fn ranges_side_by_side_far_apart_backwards_and_twice_come_in_the_order_of_the_list() {
    for seed in 0..20 {
        let (disk, handle) = disk(seed);
        let side_by_side: Vec<_> = (0..9).map(|i| (i * 2 * BLOCK, 2 * BLOCK_LEN)).collect();
        assert_read(&disk, &handle, &side_by_side);
        let backwards: Vec<_> = side_by_side.iter().rev().copied().collect();
        assert_read(&disk, &handle, &backwards);
        let apart = [(0, BLOCK_LEN), (DISK_LEN - BLOCK, BLOCK_LEN), (3 * TRANSFER, 5 * BLOCK_LEN)];
        assert_read(&disk, &handle, &apart);
        assert_read(&disk, &handle, &[(BLOCK, 3 * BLOCK_LEN), (2 * BLOCK, BLOCK_LEN)]);
        assert_read(&disk, &handle, &[(BLOCK, BLOCK_LEN), (BLOCK, BLOCK_LEN)]);
    }
}

#[test]
fn no_ranges_are_no_bytes_and_no_operation() {
    let (disk, handle) = disk(1);
    assert!(read(&disk, &handle, &[]).unwrap().is_empty());
    assert_eq!((disk.stats().reads, handle.in_flight()), (0, 0));
}

#[test]
fn whole_transfers_keep_their_bytes_while_they_are_held_though_buffers_are_used_again() {
    let (disk, handle) = disk(2);
    let whole = |at: u64| (at * TRANSFER, TRANSFER_LEN_MAX);
    let held = read(&disk, &handle, &[whole(0), whole(1)]).unwrap();
    for at in 2..8 {
        assert_read(&disk, &handle, &[whole(at), (at * BLOCK, BLOCK_LEN), whole(7)]);
    }
    let addresses = held.iter().map(|part| part.as_ptr()).collect::<Vec<_>>();
    assert!(held[0][..] == content(0, TRANSFER_LEN_MAX)[..]);
    assert!(held[1][..] == content(TRANSFER, TRANSFER_LEN_MAX)[..]);
    drop(held);
    let again = read(&disk, &handle, &[whole(5), whole(6), whole(7), whole(0)]).unwrap();
    assert!(again.iter().any(|part| addresses.contains(&part.as_ptr())), "a buffer is used again");
}

#[test]
fn a_range_longer_than_a_transfer_is_refused_and_the_others_are_waited_for() {
    let (disk, handle) = disk(3);
    let long = TRANSFER_LEN_MAX + BLOCK_LEN;
    for at in 0..3 {
        let mut ranges = [(0, BLOCK_LEN); 3];
        ranges[at] = (BLOCK, long);
        let reads = disk.stats().reads;
        let error = read(&disk, &handle, &ranges).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        let text = alloc::format!("read of {long} bytes at {BLOCK} is longer than the largest");
        assert!(error.message().contains(&text), "{error}");
        assert_eq!((handle.in_flight(), disk.stats().reads), (0, reads + 3));
    }
}

#[test]
fn the_first_error_of_the_list_is_returned_when_nothing_is_under_way_any_more() {
    for seed in 0..20 {
        let (disk, handle) = disk(seed);
        let ranges: Vec<_> = (0..9).map(|i| (i * TRANSFER / 2, 2 * BLOCK_LEN)).collect();
        for nth in [4, 7] {
            disk.plan(OperationClass::Read, nth, Fault::Fail);
        }
        let error = read(&disk, &handle, &ranges).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io);
        let first = alloc::format!("read of {} bytes at {}", 2 * BLOCK_LEN, ranges[3].0);
        assert!(error.message().contains(&first), "{error}");
        assert_eq!((handle.in_flight(), disk.stats().reads), (0, 9));
        assert_read(&disk, &handle, &ranges);
    }
}

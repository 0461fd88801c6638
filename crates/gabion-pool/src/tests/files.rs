//! Files and slot headers on the disk.

use super::*;
use crate::{Geometry, SlotHeader, extents, file_headers, read_file, read_files, read_slot_header};
use crate::{verify_file, write_file};
use alloc::format;
use gabion_base::units::CHUNK_LEN;
use gabion_base::{ErrorKind, Generation, ShardId, SlotIndex, crc};
use gabion_media::simulated::{Fault, OperationClass};
use gabion_media::{AlignedBuf, Bytes};
use proptest::prelude::*;

/// Bytes that differ from place to place.
fn content(len: u64) -> Bytes {
    let mut buf = AlignedBuf::with_capacity(len as usize);
    for word in 0..len / 8 {
        buf.extend(&word.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
    }
    buf.freeze()
}

fn chunk_crcs(data: &Bytes) -> Vec<u32> {
    data.chunks(CHUNK_LEN as usize).map(crc::crc32c).collect()
}

/// A file of `len` bytes in the given slots, written but not added.
fn write(rig: &Rig, slots: &[Placed], len: u64) -> (FilePlacement, Bytes) {
    let data = content(len);
    let mut file = placement(1, slots);
    (file.len, file.checksum) = (len, crc::crc32c(&data));
    let geometry = rig.pool.region();
    let crcs = chunk_crcs(&data);
    rig.block_on(write_file(&rig.handle, geometry, POOL_ID, GROUP, &file, &data, &crcs)).unwrap();
    (file, data)
}

/// Five slots, of which only two are neighbours.
fn scattered(rig: &mut Rig) -> Vec<Placed> {
    let all = rig.pool.allocate(12).unwrap();
    alloc::vec![all[3], all[4], all[9], all[1], all[7]]
}

#[test]
fn extents_join_neighbours_and_stop_at_the_range() {
    let placed = |slot| Placed { slot: SlotIndex(slot), generation: Generation(1) };
    let file = placement(1, &[placed(3), placed(4), placed(9), placed(8)]);
    let geometry = Geometry::new(0, 16);
    let at = |slot: u64| (1 + slot) * SLOT_LEN;
    let of = |offset, len| extents(&geometry, &file, offset, len).collect::<Vec<_>>();
    assert_eq!(
        of(0, file.len),
        [(at(3), 2 * SLOT_LEN), (at(9), SLOT_LEN), (at(8), BLOCK_LEN as u64)]
    );
    assert_eq!(of(SLOT_LEN - 4096, 8192), [(at(4) - 4096, 8192)]);
    assert_eq!(of(SLOT_LEN * 2 - 4096, 8192), [(at(5) - 4096, 4096), (at(9), 4096)]);
    assert_eq!(of(5, 0), []);
    assert_eq!(of(0, u64::MAX).len(), 3, "nothing beyond the last slot");
}

#[test]
fn any_part_of_a_file_reads_back_across_slots_and_transfers() {
    let mut rig = Rig::new();
    let slots = scattered(&mut rig);
    let len = 4 * SLOT_LEN + 3 * 4096;
    let (file, data) = write(&rig, &slots, len);
    let geometry = rig.pool.region();
    let read = |offset, len| rig.block_on(read_file(&rig.handle, geometry, &file, offset, len));
    for (offset, n) in [
        (0, len),
        (0, 1),
        (len - 1, 1),
        (4095, 2),
        (SLOT_LEN - 1, 2),
        (2 * SLOT_LEN - 1, 2),
        (SLOT_LEN + 17, 2 * SLOT_LEN),
        (len, 0),
    ] {
        let expected = data.slice(offset as usize..(offset + n) as usize);
        assert!(read(offset, n).unwrap() == expected, "{n} bytes at {offset}");
    }
    for (offset, n) in [(len, 1), (0, len + 1), (u64::MAX, 2), (1, u64::MAX)] {
        assert_eq!(read(offset, n).unwrap_err().kind(), ErrorKind::InvalidInput);
    }
    rig.block_on(verify_file(&rig.handle, geometry, POOL_ID, GROUP, &file)).unwrap();
}

/// Ranges of several files, some of which do not exist, are read at once; each has its own end.
/// docs/faults.md: P4
#[test]
fn many_ranges_are_read_at_once_and_fail_one_by_one() {
    let mut rig = Rig::new();
    let slots = scattered(&mut rig);
    let len = 4 * SLOT_LEN + 4096;
    let (file, data) = write(&rig, &slots, len);
    let geometry = rig.pool.region();
    let ranges =
        [0..1, 4095..4097, len..len + 1, SLOT_LEN - 1..3 * SLOT_LEN + 5, 7..7, len - 1..len];
    let reads: Vec<_> = ranges.iter().map(|range| (&file, range.clone())).collect();
    let check = |bad: &[usize]| {
        let results = rig.block_on(read_files(&rig.handle, geometry, &reads));
        assert_eq!(results.len(), reads.len());
        for (at, (result, range)) in results.into_iter().zip(&ranges).enumerate() {
            if bad.contains(&at) {
                let error = alloc::format!("{}", result.unwrap_err());
                assert!(error.contains("000001.sst"), "{error}");
                continue;
            }
            assert_eq!(result.unwrap(), data[range.start as usize..range.end as usize]);
        }
    };
    check(&[2]);
    // The fifth transfer is in the middle of the long range.
    rig.disk.plan(OperationClass::Read, 5, Fault::Fail);
    check(&[2, 3]);
}

#[test]
fn a_namespace_is_written_with_the_same_arithmetic_as_the_device() {
    let mut rig = Rig::new();
    let slots = scattered(&mut rig);
    let (file, data) = write(&rig, &slots, 4 * SLOT_LEN + 4096);
    let geometry = rig.pool.region();
    let start = geometry.extents().next().unwrap().offset;
    let remote = SimulatedDisk::new(DiskOptions::immediate(geometry.len()));
    let handle = remote.handle();
    let namespace = geometry.namespace();
    let crcs = chunk_crcs(&data);
    let written = write_file(&handle, &namespace, POOL_ID, GROUP, &file, &data, &crcs);
    remote.block_on(&handle, written).unwrap();
    let mut at = 0;
    while at < geometry.len() {
        let step = (geometry.len() - at).min(MIB) as usize;
        assert!(rig.disk.peek(start + at, step) == remote.peek(at, step), "at {at}");
        at += step as u64;
    }
}

#[test]
fn headers_are_written_after_all_data_and_say_what_the_slot_holds() {
    let mut rig = Rig::new();
    let slots = scattered(&mut rig);
    rig.disk.start_recording();
    let (file, data) = write(&rig, &slots, 4 * SLOT_LEN + 4096);
    let geometry = rig.pool.region();
    let offsets: Vec<u64> = rig
        .disk
        .recording()
        .unwrap()
        .effects()
        .iter()
        .map(|effect| match effect {
            gabion_media::simulated::Recorded::Write { offset, .. } => *offset,
            other => panic!("{other:?}"),
        })
        .collect();
    let first_header = offsets.len() - slots.len();
    let data_start = geometry.slot_offset(SlotIndex(0));
    assert!(offsets[..first_header].iter().all(|&at| at >= data_start));
    assert!(offsets[first_header..].iter().all(|&at| at < data_start));
    for (index, placed) in slots.iter().enumerate() {
        let header = rig.block_on(read_slot_header(&rig.handle, geometry, placed.slot)).unwrap();
        let start = index * SLOT_LEN as usize;
        let bytes = &data[start..data.len().min(start + SLOT_LEN as usize)];
        assert_eq!(header, SlotHeader::of(POOL_ID, GROUP, &file, index, crc::crc32c(bytes)));
        assert_eq!(header.len as usize, bytes.len());
    }
}

/// A header or data of another slot, pool, generation, group, term or file.
/// docs/faults.md: E6, H9
#[test]
fn what_stands_in_the_wrong_place_is_found_and_the_difference_named() {
    let mut rig = Rig::new();
    let slots = scattered(&mut rig);
    let (file, data) = write(&rig, &slots, 4 * SLOT_LEN + 4096);
    let geometry = rig.pool.region();
    let verify = |disk: &SimulatedDisk, pool_id, group, file: &FilePlacement| {
        let handle = disk.handle();
        disk.block_on(&handle, verify_file(&handle, geometry, pool_id, group, file)).unwrap_err()
    };
    let check = |error: Error, word: &str| {
        assert_eq!(error.kind(), ErrorKind::Corruption, "{error}");
        assert!(format!("{error}").contains(word), "{error} should name {word}");
    };
    use gabion_base::Error;
    let header_at = |i: usize| geometry.header_offset(slots[i].slot);
    // A misdirected header: slot 0's block in slot 1's place, and the reverse.
    let swapped = rig.disk.fork();
    swapped.poke(header_at(1), &rig.disk.peek(header_at(0), BLOCK_LEN));
    check(verify(&swapped, POOL_ID, GROUP, &file), "slot is slot 3, expected slot 4");
    check(verify(&rig.disk, *b"another test poo", GROUP, &file), "pool is");
    check(verify(&rig.disk, POOL_ID, GroupId(8), &file), "group is g7, expected g8");
    let mut other = file.clone();
    other.slots[0].generation = Generation(77);
    check(verify(&rig.disk, POOL_ID, GROUP, &other), "generation is");
    let other = FilePlacement { term: Term(9), ..file.clone() };
    check(verify(&rig.disk, POOL_ID, GROUP, &other), "term is t3, expected t9");
    let other = FilePlacement { file: FileId::log_segment(ShardId::ZERO, 1), ..file.clone() };
    check(verify(&rig.disk, POOL_ID, GROUP, &other), "file is 000001.sst, expected 000001.log");
    let mut other = file.clone();
    other.len -= SLOT_LEN;
    other.slots.pop();
    check(verify(&rig.disk, POOL_ID, GROUP, &other), "length is");
    let other = FilePlacement { checksum: 1, ..file.clone() };
    check(verify(&rig.disk, POOL_ID, GROUP, &other), "expected 0x00000001");
    // Data that was lost, damaged, or belongs elsewhere.
    let lost = rig.disk.fork();
    lost.poke(geometry.slot_offset(slots[2].slot), &[0; BLOCK_LEN]);
    check(verify(&lost, POOL_ID, GROUP, &file), "slot 9: checksum");
    lost.poke(geometry.slot_offset(slots[2].slot), &data[..BLOCK_LEN]);
    check(verify(&lost, POOL_ID, GROUP, &file), "slot 9: checksum");
    // A header that never arrived.
    let blank = rig.disk.fork();
    blank.poke(header_at(4), &[0; BLOCK_LEN]);
    let error = verify(&blank, POOL_ID, GROUP, &file);
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
}

#[test]
fn data_chunks_and_placement_must_agree_before_anything_is_written() {
    let mut rig = Rig::new();
    let slots = rig.pool.allocate(2).unwrap();
    let (file, data) = write(&rig, &slots, SLOT_LEN + 4096);
    let geometry = rig.pool.region();
    let before = rig.disk.stats().writes;
    let crcs = chunk_crcs(&data);
    let mut wrong = crcs.clone();
    wrong[1] ^= 1;
    for (data, crcs) in
        [(data.slice(4096..), &crcs[..]), (data.clone(), &crcs[1..]), (data.clone(), &wrong)]
    {
        let written = write_file(&rig.handle, geometry, POOL_ID, GROUP, &file, &data, crcs);
        assert_eq!(rig.block_on(written).unwrap_err().kind(), ErrorKind::InvalidInput);
    }
    assert_eq!(rig.disk.stats().writes, before);
    assert_eq!(file_headers(POOL_ID, GROUP, &file, &crcs).unwrap().len(), 2);
}

#[test]
fn an_unknown_outcome_among_failures_is_told_as_unknown() {
    let mut rig = Rig::new();
    let slots = rig.pool.allocate(2).unwrap();
    let data = content(2 * SLOT_LEN);
    let mut file = placement(1, &slots);
    (file.len, file.checksum) = (2 * SLOT_LEN, crc::crc32c(&data));
    rig.disk.plan(OperationClass::Write, 1, Fault::Fail);
    rig.disk.plan(OperationClass::Write, 3, Fault::Unknown);
    let (geometry, crcs) = (rig.pool.region(), chunk_crcs(&data));
    let written = write_file(&rig.handle, geometry, POOL_ID, GROUP, &file, &data, &crcs);
    let error = rig.block_on(written).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unknown);
    assert!(error.message().contains("000001.sst"), "{error}");
    assert!(
        rig.block_on(read_slot_header(&rig.handle, geometry, slots[0].slot)).is_err(),
        "no header after data that failed"
    );
}

/// docs/faults.md: E5
#[test]
fn every_flipped_bit_of_a_slot_header_is_found() {
    let placed = Placed { slot: SlotIndex(5), generation: Generation(9) };
    let header = SlotHeader::of(POOL_ID, GROUP, &placement(1, &[placed]), 0, 0xabcd);
    let block = header.encode();
    assert_eq!(SlotHeader::decode(&block).unwrap(), header);
    for bit in 0..block.len() * 8 {
        let mut damaged = block.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        let error = SlotHeader::decode(&damaged).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corruption, "bit {bit}");
    }
    assert_eq!(SlotHeader::decode(&[0; BLOCK_LEN]).unwrap_err().kind(), ErrorKind::NotFound);
}

proptest! {
    #[test]
    fn arbitrary_blocks_never_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..5000)) {
        let _ = SlotHeader::decode(&bytes);
        let _ = Superblock::decode(&bytes);
        let _ = crate::placement_log::Operation::decode_all(&bytes);
        for magic in [crate::slot_header::SLOT_HEADER_MAGIC, crate::superblock::SUPERBLOCK_MAGIC] {
            bytes.splice(..bytes.len().min(8), magic);
            let _ = SlotHeader::decode(&bytes);
            let _ = Superblock::decode(&bytes);
        }
    }
}

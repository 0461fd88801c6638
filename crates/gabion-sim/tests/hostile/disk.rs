//! The pool's own data: superblock, slot headers, placement log, and all of them together.

use crate::depth::{Deep, Depth};
use crate::{Format, Parsed};
use gabion_base::units::{BLOCK_LEN, MIB, SLOT_LEN};
use gabion_base::{Error, FileId, Generation, GroupId, ReplicaId, ShardId, SlotIndex, Term, crc};
use gabion_media::Bytes;
use gabion_media::simulated::{DiskOptions, SimulatedDisk};
use gabion_pool::inspect::{AreaScan, Seen, superblock};
use gabion_pool::placement_log::{Operation, RecordHeader, RecordKind, encode_record};
use gabion_pool::{
    Extent, FilePlacement, Geometry, Placed, PoolConfig, QuarantineOrigin, SlotHeader, Superblock,
    Trust, write_commit,
};
use std::rc::Rc;
use std::sync::Arc;

const POOL_ID: [u8; 16] = *b"0123456789abcdef";
const LEN: u64 = 16 * MIB;
const GROUP: GroupId = GroupId(7);

fn config(len: u64) -> PoolConfig {
    PoolConfig { pool_id: POOL_ID, group: GROUP, len, region_id: 1 }
}

fn placed(slot: u32, generation: u64) -> Placed {
    Placed { slot: SlotIndex(slot), generation: Generation(generation) }
}

fn placement(number: u64, slots: &[Placed]) -> FilePlacement {
    FilePlacement {
        file: FileId::sst(number),
        term: Term(5),
        len: (slots.len() as u64 - 1) * SLOT_LEN + BLOCK_LEN as u64,
        checksum: 0xdead_beef,
        slots: slots.to_vec(),
    }
}

fn operations() -> Vec<Operation> {
    vec![
        Operation::FileLive(Arc::new(placement(0x1122, &[placed(3, 9), placed(300, 1_000_000)]))),
        Operation::FileRetired(FileId::log_segment(ShardId::ZERO, 6)),
        Operation::SlotsGranted {
            term: Term(5),
            session: 2,
            to: ReplicaId(1),
            slots: vec![placed(4, 10)],
        },
        Operation::GrantsVoided { below_session: 2 },
        Operation::SlotsQuarantined {
            origin: QuarantineOrigin::Session(1),
            slots: vec![SlotIndex(5), SlotIndex(6)],
        },
        Operation::SlotsReleased(vec![SlotIndex(5)]),
        Operation::GenerationReserved { up_to: 1 << 20 },
        Operation::Opaque { kind: 0x0a0b, bytes: b"opaque".to_vec() },
        Operation::OpaqueSnapshot(b"snapshot".to_vec()),
    ]
}

fn body_of(operations: &[Operation]) -> Vec<u8> {
    let mut body = Vec::new();
    operations.iter().for_each(|operation| operation.encode(&mut body));
    body
}

/// Puts the checksum of the bytes before a place at it.
fn seal(bytes: &mut [u8], at: usize) {
    if bytes.len() >= at + 4 {
        let sum = crc::crc32c(&bytes[..at]);
        bytes[at..at + 4].copy_from_slice(&sum.to_le_bytes());
    }
}

const RECORD_CRC_AT: usize = 52;
const RECORD_HEADER_LEN: usize = 56;

/// Makes a record of the placement log whole; returns its length with padding, and its checksum.
fn seal_record(bytes: &mut [u8]) -> Option<(usize, u32)> {
    let (_, header) = RecordHeader::peek(bytes)?;
    let body = bytes.get(RECORD_HEADER_LEN..RECORD_HEADER_LEN + header.body_len as usize)?;
    let sum = crc::append(crc::crc32c(&bytes[..RECORD_CRC_AT]), body);
    bytes[RECORD_CRC_AT..RECORD_HEADER_LEN].copy_from_slice(&sum.to_le_bytes());
    Some((header.padded_len() as usize, sum))
}

fn read_record(bytes: &[u8]) -> Result<Option<Vec<u8>>, Error> {
    let none = || Error::corruption("no header of a record");
    let (version, header) = RecordHeader::peek(bytes).ok_or_else(none)?;
    if version != 1 {
        return Err(Error::unsupported("a record of another version"));
    }
    if !header.is_whole(bytes) {
        return Err(Error::corruption("a record that is not whole"));
    }
    let body = header.body(&Bytes::copy_from_slice(bytes));
    let operations = Operation::decode_all(&body)?;
    Ok(Some(encode_record(&header, &body_of(&operations), 1).1.to_vec()))
}

pub(crate) fn formats() -> Vec<Format> {
    let superblocks = [16 * MIB, 4 << 30, 8 << 40];
    let superblocks = superblocks.map(|len| Superblock::plan(&config(len)).unwrap().encode());
    let mut grown = Superblock::plan(&config(4 << 30)).unwrap();
    let extents = [(64 * MIB, 3), (80 * MIB, 1), (1 << 30, 600)];
    let extents = extents.map(|(offset, slots)| Extent { offset, slots });
    grown.regions[0].geometry = Geometry::of_extents(&extents).unwrap();
    let superblocks = [&superblocks[..], &[grown.encode()]].concat();
    let file = placement(0x1122, &[placed(3, 9), placed(300, 1_000_000)]);
    let headers = [0, 1].map(|i| SlotHeader::of(POOL_ID, GROUP, &file, i, 0x0102_0304).encode());
    let body = body_of(&operations());
    let header = RecordHeader {
        kind: RecordKind::Commit,
        body_len: 0,
        pool_id: POOL_ID,
        epoch: 3,
        number: 0x0102,
        previous_crc: 0xa1b2_c3d4,
        crc: 0,
    };
    let record = encode_record(&header, &body, 1).1.to_vec();
    vec![
        Format {
            keeps_len: true,
            repair: Box::new(|bytes| seal(bytes, BLOCK_LEN - 4)),
            // Data of a later version in its zeros is ignored.
            is_canonical: false,
            ..Format::new("superblock", superblocks, |bytes| {
                let none = || Error::not_found("no superblock");
                Ok(Some(Superblock::decode(bytes)?.ok_or_else(none)?.encode()))
            })
        },
        Format {
            keeps_len: true,
            repair: Box::new(|bytes| seal(bytes, 76)),
            ..Format::new("slot header", headers.to_vec(), |bytes| {
                Ok(Some(SlotHeader::decode(bytes)?.encode()))
            })
        },
        Format {
            fields_at: Some(0),
            is_canonical: false,
            ..Format::new("placement operations", vec![body], |bytes| {
                Ok(Some(body_of(&Operation::decode_all(bytes)?)))
            })
        },
        Format {
            fields_at: Some(RECORD_HEADER_LEN),
            is_canonical: false,
            repair: Box::new(|bytes| {
                // Fields grow and shrink: the body is everything up to the zeros.
                bytes.truncate(BLOCK_LEN);
                bytes.resize(BLOCK_LEN, 0);
                let _ = seal_record(bytes);
            }),
            ..Format::new("placement record", vec![record], read_record)
        },
        pool(),
    ]
}

/// Blocks at the front of each area of the placement log that are changed.
const AREA_BLOCKS: usize = 10;
const AREA_LEN: usize = AREA_BLOCKS * BLOCK_LEN;

/// The places of a pool's changed parts: both superblocks and the used part of both areas.
fn parts() -> [(u64, usize); 3] {
    let areas = Superblock::plan(&config(LEN)).unwrap().areas;
    [(0, 2 * BLOCK_LEN), (areas[0].offset, AREA_LEN), (areas[1].offset, AREA_LEN)]
}

/// A pool with files, grants and a quarantine, in its second area.
fn some_pool() -> SimulatedDisk {
    let disk = SimulatedDisk::new(DiskOptions::immediate(LEN));
    let handle = disk.handle();
    disk.block_on(&handle, gabion_pool::create(&handle, &config(LEN), b"first")).unwrap();
    let opening = gabion_pool::open(&handle, Trust::Readable);
    let mut pool = disk.block_on(&handle, opening).unwrap().pool;
    for round in 0..3 {
        if round == 1 {
            let commit = pool.checkpoint(b"second").unwrap();
            let number = commit.number;
            disk.block_on(&handle, write_commit(&handle, commit)).unwrap();
            pool.committed(number);
        }
        match round {
            0 => {
                let slots = pool.allocate(1).unwrap();
                pool.add_file(placement(1, &slots)).unwrap();
            }
            1 => _ = pool.grant(Term(3), 4, ReplicaId(2), 1).unwrap(),
            _ => pool.stage_opaque(1, b"an edit".to_vec()),
        }
        let commit = pool.take_commit().unwrap();
        let number = commit.number;
        disk.block_on(&handle, write_commit(&handle, commit)).unwrap();
        pool.committed(number);
    }
    drop((handle, pool));
    disk
}

/// A whole pool: the content of its blocks is changed, and all of it opened.
fn pool() -> Format {
    let disk = some_pool();
    let sample: Vec<u8> = parts().iter().flat_map(|&(at, len)| disk.peek(at, len)).collect();
    let read = move |bytes: &[u8]| {
        let disk = disk.fork();
        let mut rest = bytes;
        for (at, len) in parts() {
            let (part, others) = rest.split_at(len);
            disk.poke(at, part);
            rest = others;
        }
        let handle = disk.handle();
        let recovered = disk.block_on(&handle, gabion_pool::open(&handle, Trust::Readable))?;
        recovered.pool.invariants();
        Ok(None)
    };
    Format {
        keeps_len: true,
        repair: Box::new(|bytes| seal_pool(bytes)),
        // An area is read in pieces, and the disk's own pages are counted.
        memory_max: 16 << 20,
        rare: 10,
        ..Format::new("whole pool", vec![sample], read)
    }
}

/// Makes both superblocks and every record whole.
fn seal_pool(bytes: &mut [u8]) {
    let (first, areas) = bytes.split_at_mut(2 * BLOCK_LEN);
    for block in first.chunks_mut(BLOCK_LEN) {
        seal(block, BLOCK_LEN - 4);
    }
    seal_areas(areas);
}

/// Makes every record whole, each the next of the one before, and second copies like first ones.
fn seal_areas(areas: &mut [u8]) {
    for area in areas.chunks_mut(AREA_LEN) {
        let (mut at, mut previous) = (0, None);
        while at + BLOCK_LEN <= area.len() {
            let record = &mut area[at..];
            if let (Some(previous), true) = (previous, record.len() >= RECORD_CRC_AT) {
                let is_record = RecordHeader::peek(record).is_some();
                if is_record {
                    let sum: u32 = previous;
                    record[RECORD_CRC_AT - 4..RECORD_CRC_AT].copy_from_slice(&sum.to_le_bytes());
                }
            }
            let Some((len, sum)) = seal_record(record) else {
                at += BLOCK_LEN;
                continue;
            };
            let is_commit = record[10] == 2;
            if is_commit && record.len() >= 2 * len {
                record.copy_within(..len, len);
                at += len;
            }
            previous = Some(sum);
            at += len;
        }
    }
}

const CHANGED: &str = "a record that was changed";
const BAD: &str = "what begins like a record and is none";
const OTHER: &str = "blocks of no record";

/// Both areas of the placement log, each scanned from its beginning to its end, as tools do.
pub(crate) fn scanned() -> Deep {
    let disk = some_pool();
    let [_, first, second] = parts();
    let areas = [first, second];
    let sample: Vec<u8> = areas.iter().flat_map(|&(at, len)| disk.peek(at, len)).collect();
    let depth = Rc::new(Depth::default());
    let (before, counted) = (sample.clone(), depth.clone());
    let read = move |bytes: &[u8]| -> Parsed {
        counted.begin();
        let disk = disk.fork();
        for (part, (at, _)) in bytes.chunks(AREA_LEN).zip(areas) {
            disk.poke(at, part);
        }
        let mut result = Ok(None);
        let areas = before.chunks(AREA_LEN).zip(bytes.chunks(AREA_LEN));
        for (index, area) in areas.enumerate() {
            let scanned = scan_area(&disk, index, area, &counted);
            result = result.and(scanned.map(|()| None));
        }
        result
    };
    let format = Format {
        keeps_len: true,
        repair: Box::new(|bytes| seal_areas(bytes)),
        // An area is read in pieces, and the disk's own pages are counted.
        memory_max: 16 << 20,
        rare: 10,
        ..Format::new("areas of a placement log, scanned", vec![sample], read)
    };
    Deep { format, depth, places: &[CHANGED, BAD, OTHER] }
}

/// Scans all of an area, with its beginning given before and after the change: the scan must show
/// everything but zeros. Returns the first bad thing.
fn scan_area(
    disk: &SimulatedDisk,
    index: usize,
    (before, part): (&[u8], &[u8]),
    depth: &Depth,
) -> Result<(), Error> {
    let handle = disk.handle();
    let found = disk.block_on(&handle, superblock(&handle))?;
    let area = found.areas[index];
    let mut scan = AreaScan::new(&handle, &found, index);
    let (mut end, mut bad) = (0, Ok(()));
    while let Some(seen) = disk.block_on(&handle, scan.next())? {
        let (offset, len) = match &seen {
            Seen::Record { offset, header, .. } => (*offset, header.padded_len()),
            Seen::Bad { offset, .. } => (*offset, BLOCK_LEN as u64),
            Seen::Other { offset, len } => (*offset, *len),
        };
        let at = (offset - area.offset) as usize;
        let place = at..at + len as usize;
        assert!(at >= end && at.is_multiple_of(BLOCK_LEN), "{offset} after {end}");
        assert!(part[end..at].iter().all(|&byte| byte == 0), "what is left out is zeros");
        match seen {
            Seen::Record { header, body, .. } => {
                assert!(header.is_whole(&part[place.clone()]), "it is there as it is seen");
                if before[place.clone()] != part[place.clone()] {
                    depth.reach(CHANGED);
                }
                bad = bad.and(Operation::decode_all(&body).map(|_| ()));
            }
            Seen::Bad { error, .. } => {
                depth.reach(BAD);
                bad = bad.and(Err(error));
            }
            Seen::Other { .. } => depth.reach(OTHER),
        }
        end = place.end;
    }
    assert!(part[end..].iter().all(|&byte| byte == 0), "what is left out is zeros");
    bad
}

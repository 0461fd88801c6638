//! Golden bytes of the pool's formats. A change here is a change of format: it needs a new version
//! number and an entry in docs/formats.md.
//!
//! docs/faults.md: R15

use gabion_base::codec::put_field;
use gabion_base::crc::crc32c;
use gabion_base::{FileId, Generation, GroupId, ReplicaId, ShardId, SlotIndex, Term};
use gabion_pool::placement_log::{Operation, RecordHeader, RecordKind, encode_record};
use gabion_pool::{
    Extent, FilePlacement, Geometry, Label, Placed, PoolConfig, Purpose, QuarantineOrigin,
    SlotHeader, Superblock,
};
use std::sync::Arc;

const POOL_ID: [u8; 16] = *b"0123456789abcdef";

/// 16 bytes per line as hex, up to the last byte that is not zero, and what the whole adds up to.
fn dump(bytes: &[u8]) -> String {
    let mut out = String::new();
    for (i, line) in bytes.chunks(16).enumerate() {
        if line.iter().any(|&byte| byte != 0) {
            out += &format!("{:04x}:", i * 16);
            for byte in line {
                out += &format!(" {byte:02x}");
            }
            out.push('\n');
        }
    }
    out + &format!("{} bytes, crc32c {:08x}", bytes.len(), crc32c(bytes))
}

#[track_caller]
fn assert_golden(bytes: &[u8], golden: &str) {
    let found = dump(bytes);
    assert!(found == golden.trim(), "the bytes are now\n{found}");
}

fn placed(slot: u32, generation: u64) -> Placed {
    Placed { slot: SlotIndex(slot), generation: Generation(generation) }
}

fn file() -> FilePlacement {
    FilePlacement {
        file: FileId::sst(0x1122_3344),
        term: Term(5),
        len: (2 << 20) + 4096,
        checksum: 0xdead_beef,
        slots: vec![placed(3, 9), placed(300, 1_000_000)],
    }
}

#[test]
fn superblock() {
    let config = PoolConfig { pool_id: POOL_ID, group: GroupId(7), len: 4 << 30, region_id: 1 };
    let block = Superblock::plan(&config).unwrap();
    assert_eq!(Superblock::decode(&block.encode()).unwrap(), Some(block.clone()));
    assert_golden(
        &block.encode(),
        "
0000: 47 41 42 50 4f 4f 4c 00 02 00 00 00 01 00 00 00
0010: 30 31 32 33 34 35 36 37 38 39 61 62 63 64 65 66
0030: 00 00 00 00 00 00 00 00 01 00 00 00 00 00 00 00
0040: 00 00 00 00 01 00 00 00 00 00 10 00 00 00 00 00
0050: 00 00 00 01 00 00 00 00 00 00 10 01 00 00 00 00
0060: 00 00 00 01 00 00 00 00 00 00 00 00 00 00 00 00
0070: 01 00 00 00 01 00 00 00 07 00 00 00 00 00 00 00
0470: 00 00 20 02 00 00 00 00 eb 07 00 00 00 00 00 00
0ff0: 00 00 00 00 00 00 00 00 00 00 00 00 95 ba e6 aa
4096 bytes, crc32c 48674bc7",
    );
}

/// A pool that has grown: another extent behind the first.
#[test]
fn superblock_of_two_extents() {
    let config = PoolConfig { pool_id: POOL_ID, group: GroupId(7), len: 4 << 30, region_id: 1 };
    let mut block = Superblock::plan(&config).unwrap();
    let extents = [(0x0220_0000, 3), (0x0102_0304_0000_0000, 0x0506)];
    let extents = extents.map(|(offset, slots)| Extent { offset, slots });
    block.regions[0].geometry = Geometry::of_extents(&extents).unwrap();
    block.len = 1 << 60;
    assert_eq!(Superblock::decode(&block.encode()).unwrap(), Some(block.clone()));
    assert_golden(
        &block.encode(),
        "
0000: 47 41 42 50 4f 4f 4c 00 02 00 00 00 01 00 00 00
0010: 30 31 32 33 34 35 36 37 38 39 61 62 63 64 65 66
0030: 00 00 00 00 00 00 00 00 01 00 00 00 00 00 00 00
0040: 00 00 00 00 00 00 00 10 00 00 10 00 00 00 00 00
0050: 00 00 00 01 00 00 00 00 00 00 10 01 00 00 00 00
0060: 00 00 00 01 00 00 00 00 00 00 00 00 00 00 00 00
0070: 01 00 00 00 02 00 00 00 07 00 00 00 00 00 00 00
0470: 00 00 20 02 00 00 00 00 03 00 00 00 00 00 00 00
0480: 00 00 00 00 04 03 02 01 06 05 00 00 00 00 00 00
0ff0: 00 00 00 00 00 00 00 00 00 00 00 00 dd b1 49 b3
4096 bytes, crc32c 48674bc7",
    );
}

#[test]
fn label() {
    let label = Label { purpose: Purpose::Ring, pool_id: POOL_ID, len: 128 << 20, number: 0 };
    assert_eq!(Label::decode(&label.encode()), Some(label));
    assert_golden(
        &label.encode(),
        "
0000: 47 41 42 4c 41 42 4c 00 01 00 00 00 02 00 00 00
0010: 30 31 32 33 34 35 36 37 38 39 61 62 63 64 65 66
0020: 00 00 00 08 00 00 00 00 00 00 00 00 00 00 00 00
0ff0: 00 00 00 00 00 00 00 00 00 00 00 00 12 48 59 d0
4096 bytes, crc32c 48674bc7",
    );
}

#[test]
fn slot_header() {
    let header = SlotHeader::of(POOL_ID, GroupId(7), &file(), 1, 0x0102_0304);
    assert_eq!(SlotHeader::decode(&header.encode()).unwrap(), header);
    assert_golden(
        &header.encode(),
        "
0000: 47 41 42 53 4c 4f 54 00 01 00 01 00 2c 01 00 00
0010: 30 31 32 33 34 35 36 37 38 39 61 62 63 64 65 66
0020: 40 42 0f 00 00 00 00 00 07 00 00 00 00 00 00 00
0030: 05 00 00 00 00 00 00 00 44 33 22 11 00 00 00 00
0040: 01 00 00 00 00 10 00 00 04 03 02 01 92 91 71 f9
4096 bytes, crc32c 9fcf36d8",
    );
}

#[test]
fn commit_with_every_operation() {
    let operations = [
        Operation::FileLive(Arc::new(file())),
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
        Operation::SlotsQuarantined { origin: QuarantineOrigin::Local, slots: vec![SlotIndex(7)] },
        Operation::SlotsReleased(vec![SlotIndex(5)]),
        Operation::GenerationReserved { up_to: 1 << 20 },
        Operation::Opaque { kind: 0x0a0b, bytes: b"opaque".to_vec() },
        Operation::OpaqueSnapshot(b"snapshot".to_vec()),
    ];
    let mut body = Vec::new();
    for operation in &operations {
        operation.encode(&mut body);
    }
    assert_eq!(Operation::decode_all(&body).unwrap(), operations);
    put_field(&mut body, 999, 0, b"ignored by this version");
    assert_eq!(Operation::decode_all(&body).unwrap(), operations);
    let header = RecordHeader {
        kind: RecordKind::Commit,
        body_len: 0,
        pool_id: POOL_ID,
        epoch: 3,
        number: 0x0102,
        previous_crc: 0xa1b2_c3d4,
        crc: 0,
    };
    let (crc, record) = encode_record(&header, &body, 2);
    let (first, second) = record.split_at(record.len() / 2);
    assert_eq!(first, second);
    let expected = RecordHeader { body_len: body.len() as u32, crc, ..header };
    assert_eq!(RecordHeader::peek(first), Some((1, expected)));
    assert!(expected.is_whole(first));
    assert_golden(
        first,
        "
0000: 47 41 42 50 4c 41 43 45 01 00 02 00 af 00 00 00
0010: 30 31 32 33 34 35 36 37 38 39 61 62 63 64 65 66
0020: 03 00 00 00 00 00 00 00 02 01 00 00 00 00 00 00
0030: d4 c3 b2 a1 e6 20 f8 db 01 00 01 00 17 00 00 00
0040: 01 c4 e6 88 89 01 05 80 a0 80 01 ef be ad de 02
0050: 03 09 ac 02 c0 84 3d 02 00 01 00 02 00 00 00 02
0060: 06 03 00 01 00 09 00 00 00 05 02 01 00 00 00 01
0070: 04 0a 04 00 01 00 01 00 00 00 02 05 00 01 00 05
0080: 00 00 00 01 01 02 05 06 05 00 01 00 03 00 00 00
0090: 00 01 07 06 00 01 00 02 00 00 00 01 05 07 00 01
00a0: 00 03 00 00 00 80 80 40 08 00 01 00 08 00 00 00
00b0: 0b 0a 6f 70 61 71 75 65 09 00 01 00 08 00 00 00
00c0: 73 6e 61 70 73 68 6f 74 e7 03 00 00 17 00 00 00
00d0: 69 67 6e 6f 72 65 64 20 62 79 20 74 68 69 73 20
00e0: 76 65 72 73 69 6f 6e 00 00 00 00 00 00 00 00 00
4096 bytes, crc32c 27c21e25",
    );
}

//! The bytes of SSTs, batches and file descriptions, pinned. A change here is a change of format:
//! it raises `sst::FORMAT_VERSION` in the same commit.
//!
//! docs/faults.md: R15

use gabion_base::{FileId, FileKind, GroupId, SequenceNumber, ShardId, Term, crc};
use gabion_engine::range_delete::{Deleted, Fragment, RangeDeletes};
use gabion_engine::{
    BatchBuilder, Compression, EntryKind, FileMeta, FileReference, FinishedFile, Keyspace, Operand,
    Operands, SstBuilder, SstOptions, Trailer, counter::Step,
};

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Lines of 32 bytes.
fn dump(bytes: &[u8]) -> String {
    bytes.chunks(32).map(|line| hex(line) + "\n").collect()
}

fn small() -> FinishedFile {
    let options = SstOptions { block_len: 512, ..SstOptions::default() };
    let mut builder = SstBuilder::new(&options, GroupId(1), FileId::sst(7), Term(3));
    let trailer = |n, kind| Trailer::new(SequenceNumber(n), kind);
    builder.add(b"\x01", trailer(9, EntryKind::Clear), b"");
    builder.add(b"\x01apple", trailer(12, EntryKind::Put), b"red");
    builder.add(b"\x01apple", trailer(10, EntryKind::Delete), b"");
    builder.add(b"\x01apricot", trailer(11, EntryKind::Put), &[b'x'; 200]);
    builder.finish()
}

/// With keys that expire.
fn expiring() -> FinishedFile {
    let options = SstOptions { block_len: 512, ..SstOptions::default() };
    let mut builder = SstBuilder::new(&options, GroupId(1), FileId::sst(8), Term(3));
    let put = |n| Trailer::new(SequenceNumber(n), EntryKind::ExpiringPut);
    let stored = |expires_ms: u64, value: &[u8]| [&expires_ms.to_le_bytes()[..], value].concat();
    builder.add(b"\x01apple", put(12), &stored(0x0102_0304_0506, b"red"));
    builder.add(b"\x01pear", put(11), &stored(0x0102_0304_0405, b""));
    builder.add(b"\x01plum", Trailer::new(SequenceNumber(10), EntryKind::Put), b"blue");
    builder.finish()
}

/// With operands: one addition, and several that became one.
fn added() -> FinishedFile {
    let options = SstOptions { block_len: 512, ..SstOptions::default() };
    let mut builder = SstBuilder::new(&options, GroupId(1), FileId::sst(9), Term(3));
    let merge = |n| Trailer::new(SequenceNumber(n), EntryKind::Merge);
    let several = Step::add(5).then(Step::add(-3));
    builder.add(b"\x01apples", merge(12), &Operand::add(-2, 0x0102_0304_0506).encode());
    let operand = Operand { at_ms: 0x0102_0304_0405, step: several };
    builder.add(b"\x01pears", merge(11), &operand.encode());
    builder.add(b"\x01pears", Trailer::new(SequenceNumber(10), EntryKind::Put), b"40");
    builder.finish()
}

/// With range deletes: beside an entry, and alone.
fn ranges(with_entry: bool) -> FinishedFile {
    let options = SstOptions { block_len: 512, ..SstOptions::default() };
    let mut builder = SstBuilder::new(&options, GroupId(1), FileId::sst(10), Term(3));
    if with_entry {
        builder.add(b"\x01kiwi", Trailer::new(SequenceNumber(15), EntryKind::Put), b"green");
    }
    let mut add = |start: &[u8], end: &[u8], sequences: &[u64]| {
        let sequences = sequences.iter().copied().map(SequenceNumber).collect();
        builder.add_range(Fragment { start: start.into(), end: end.into(), sequences });
    };
    add(b"\x01apple", b"\x01fig", &[14, 9]);
    add(b"\x01fig", b"\x01lime", &[12]);
    add(b"\x01pear", b"\x01pear\0", &[11]);
    builder.finish()
}

/// Values that compress by half, numbered keys, versions and deletes.
fn large(options: &SstOptions) -> FinishedFile {
    let mut builder = SstBuilder::new(options, GroupId(0x0102_0304), FileId::sst(99), Term(5));
    let mut random = 1u64;
    for n in 0..20_000u64 {
        let key = format!("\u{1}user{n:012}");
        let value: Vec<u8> = (0..100 + n % 50)
            .map(|i| {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                if i / 16 % 2 == 0 { (random >> 56) as u8 } else { b'-' }
            })
            .collect();
        if n % 7 == 0 {
            let delete = Trailer::new(SequenceNumber(40_000 + n), EntryKind::Delete);
            builder.add(key.as_bytes(), delete, b"");
        }
        builder.add(key.as_bytes(), Trailer::new(SequenceNumber(n), EntryKind::Put), &value);
    }
    builder.finish()
}

#[test]
fn a_small_sst_has_these_bytes() {
    let file = small();
    let (image, zeros) = file.bytes.split_at(file.meta.len as usize);
    assert!(zeros.iter().all(|&byte| byte == 0));
    assert_eq!(dump(image), include_str!("golden/small_sst.hex"));
}

#[test]
fn a_files_description_has_these_bytes() {
    let mut out = Vec::new();
    small().meta.encode(&mut out);
    assert_eq!(dump(&out), include_str!("golden/file_meta.hex"));
}

#[test]
fn a_description_with_references_has_these_bytes() {
    let segment = FileId::log_segment(ShardId(0), 0x0102);
    let values = FileId { kind: FileKind::Values, number: FileId::first_number(Term(3)) + 5 };
    let references = [(segment, 70_000), (values, 1 << 20)];
    let references =
        references.map(|(file, live_bytes)| FileReference { file, live_bytes }).to_vec();
    let meta = FileMeta { references, ..small().meta };
    let mut out = Vec::new();
    meta.encode(&mut out);
    assert_eq!(dump(&out), include_str!("golden/references_file_meta.hex"));
    assert_eq!(FileMeta::decode(&out).unwrap(), meta);
}

#[test]
fn a_file_with_keys_that_expire_and_its_description_have_these_bytes() {
    let (sst, meta) =
        (include_str!("golden/expiring_sst.hex"), include_str!("golden/expiring_file_meta.hex"));
    has_these_bytes(&expiring(), sst, meta);
}

/// The file and its description, which reads as what it was.
fn has_these_bytes(file: &FinishedFile, sst: &str, meta: &str) {
    assert_eq!(dump(&file.bytes[..file.meta.len as usize]), sst);
    let mut out = Vec::new();
    file.meta.encode(&mut out);
    assert_eq!(dump(&out), meta);
    assert_eq!(FileMeta::decode(&out).unwrap(), file.meta);
}

/// docs/faults.md: P13
#[test]
fn a_file_with_operands_and_its_description_have_these_bytes() {
    let file = added();
    let (sst, meta) =
        (include_str!("golden/operands_sst.hex"), include_str!("golden/operands_file_meta.hex"));
    has_these_bytes(&file, sst, meta);
    let operands = Operands { count: 2, first_ms: 0x0102_0304_0405 };
    assert_eq!(file.meta.operands, Some(operands));
    for count in [0, 4] {
        let operands = Some(Operands { count, ..operands });
        let mut out = Vec::new();
        FileMeta { operands, ..file.meta.clone() }.encode(&mut out);
        let error = FileMeta::decode(&out).unwrap_err();
        assert!(error.message().contains(&format!("{count} operands among 3 entries")), "{error}");
    }
}

/// docs/faults.md: P16
#[test]
fn files_with_range_deletes_and_their_descriptions_have_these_bytes() {
    let file = ranges(true);
    let (sst, meta) =
        (include_str!("golden/ranges_sst.hex"), include_str!("golden/ranges_file_meta.hex"));
    has_these_bytes(&file, sst, meta);
    let said = RangeDeletes {
        fragments: 3,
        sequences: 4,
        key_bytes: 30,
        first_sequence: SequenceNumber(9),
        widest: vec![
            Deleted {
                start: b"\x01apple".to_vec(),
                end: b"\x01lime".to_vec(),
                sequence: SequenceNumber(12),
                seen_from: SequenceNumber(14),
            },
            Deleted {
                start: b"\x01pear".to_vec(),
                end: b"\x01pear\0".to_vec(),
                sequence: SequenceNumber(11),
                seen_from: SequenceNumber(11),
            },
        ],
    };
    assert_eq!(file.meta.ranges.as_ref(), Some(&said));
    let broken = [
        RangeDeletes { fragments: 0, ..said.clone() },
        RangeDeletes { sequences: 2, ..said.clone() },
        RangeDeletes { key_bytes: 5, ..said.clone() },
        RangeDeletes { first_sequence: SequenceNumber(16), ..said.clone() },
        RangeDeletes { widest: said.widest.iter().rev().cloned().collect(), ..said.clone() },
        RangeDeletes { widest: vec![said.widest[0].clone(); 5], ..said },
    ];
    for ranges in broken {
        let mut out = Vec::new();
        FileMeta { ranges: Some(ranges), ..file.meta.clone() }.encode(&mut out);
        let error = FileMeta::decode(&out).unwrap_err();
        assert_eq!(error.kind(), gabion_base::ErrorKind::Corruption, "{error}");
    }

    let alone = ranges(false);
    let (sst, meta) = (
        include_str!("golden/ranges_alone_sst.hex"),
        include_str!("golden/ranges_alone_file_meta.hex"),
    );
    has_these_bytes(&alone, sst, meta);
    assert_eq!((alone.meta.entries, &alone.meta.smallest[..]), (0, &b"\x01apple"[..]));
    assert_eq!(alone.meta.largest, b"\x01pear");
}

/// docs/faults.md: P12
#[test]
fn large_ssts_have_these_checksums() {
    let lz4 = SstOptions { compression: Compression::Lz4, ..SstOptions::default() };
    let wide = SstOptions { block_len: 100_000, ..lz4.clone() };
    let zstd = |level, block_len| SstOptions {
        compression: Compression::Zstd { level },
        block_len,
        ..SstOptions::default()
    };
    let options = [
        SstOptions::default(),
        lz4,
        wide,
        zstd(1, 4_096),
        zstd(3, 4_096),
        zstd(3, 100_000),
        zstd(7, 32_768),
        zstd(12, 100_000),
        zstd(19, 16_384),
    ];
    let found: Vec<(u64, u32)> = options
        .iter()
        .map(|options| {
            let file = large(options);
            assert_eq!(crc::crc32c(&file.bytes), file.meta.checksum);
            (file.meta.len, file.meta.checksum)
        })
        .collect();
    assert_eq!(
        found,
        [
            (2_858_581, 0x3b14_0f68),
            (2_035_504, 0x20be_9b10),
            (1_955_384, 0xe87a_6807),
            (1_708_872, 0x07dd_d55e),
            (1_705_975, 0x0fad_59a4),
            (1_544_920, 0x6c5b_c358),
            (1_552_492, 0x7876_9916),
            (1_518_385, 0x26bf_548c),
            (1_573_598, 0x36f3_eb6e),
        ]
    );
}

/// With a block that zstd makes shorter, and one that it does not.
fn packed() -> FinishedFile {
    let compression = Compression::ZSTD;
    let options = SstOptions { block_len: 512, compression, ..SstOptions::default() };
    let mut builder = SstBuilder::new(&options, GroupId(1), FileId::sst(11), Term(3));
    let put = |n| Trailer::new(SequenceNumber(n), EntryKind::Put);
    for n in 0..12 {
        builder.add(format!("\u{1}fig{n:02}").as_bytes(), put(20 + n), b"purple, purple, purple!!");
    }
    let noise: Vec<u8> = (0..60u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    builder.add(b"\x01grape", put(19), &noise);
    builder.finish()
}

/// docs/faults.md: P12
#[test]
fn a_file_with_zstd_and_its_description_have_these_bytes() {
    let file = packed();
    assert_eq!(file.meta.compression, Compression::ZSTD);
    let (sst, meta) =
        (include_str!("golden/zstd_sst.hex"), include_str!("golden/zstd_file_meta.hex"));
    has_these_bytes(&file, sst, meta);
}

#[test]
fn a_batch_has_these_bytes() {
    let mut batch = BatchBuilder::new();
    batch.put(Keyspace::User, b"apple", &[b'x'; 200]).unwrap();
    batch.delete(Keyspace::System, b"pear").unwrap();
    batch.clear(Keyspace::User).unwrap();
    let expected =
        format!("01 06 01 6170706c65 c801 {} 00 05 00 70656172 03 01 01", "78".repeat(200));
    assert_eq!(hex(batch.as_bytes()), expected.replace(' ', ""));
}

//! What descriptions say, and what is refused.

use super::*;
use crate::entry::ENGINE_KEY_LEN_MAX;
use alloc::vec;
use gabion_base::codec::{FIELD_CRITICAL, put_field};
use gabion_base::{FileKind, ShardId};
use proptest::prelude::*;

pub(crate) fn example() -> FileMeta {
    let len = 2 * CHUNK_LEN + 5000;
    let chunk_crcs = vec![1, 2, 3];
    FileMeta {
        id: FileId::sst(7),
        term: Term(3),
        len,
        checksum: combine_chunks(&chunk_crcs, round_up_to_block(len)),
        chunk_crcs,
        smallest: b"\x01a".to_vec(),
        largest: b"\x01b".to_vec(),
        smallest_sequence: SequenceNumber(4),
        largest_sequence: SequenceNumber(9),
        entries: 6,
        deletes: 2,
        raw_key_bytes: 12,
        raw_value_bytes: 40,
        clears: vec![(Keyspace::User, SequenceNumber(8)), (Keyspace::User, SequenceNumber(5))],
        expiry: Some(ExpirySpan { first_ms: 5, last_ms: 7 }),
        operands: Some(Operands { count: 6, first_ms: 3 }),
        ranges: Some(RangeDeletes {
            fragments: 2,
            sequences: 3,
            key_bytes: 40,
            first_sequence: SequenceNumber(7),
            widest: alloc::vec![Deleted {
                start: b"\x01a".to_vec(),
                end: b"\x01b".to_vec(),
                sequence: SequenceNumber(7),
                seen_from: SequenceNumber(8),
            }],
        }),
        compression: Compression::ZSTD,
        references: Vec::new(),
    }
}

#[test]
fn a_description_survives_encoding() {
    let mut meta = example();
    let mut out = Vec::new();
    meta.encode(&mut out);
    assert_eq!(FileMeta::decode(&out).unwrap(), meta);
    meta.clears.clear();
    (meta.expiry, meta.operands) = (None, None);
    out.clear();
    meta.encode(&mut out);
    assert_eq!(FileMeta::decode(&out).unwrap(), meta);
    meta.compression = Compression::None;
    let with_codec = core::mem::take(&mut out);
    meta.encode(&mut out);
    assert_eq!(FileMeta::decode(&out).unwrap(), meta);
    // The last field, which a build that does not know it may skip.
    assert_eq!(with_codec[..out.len()], out);
    assert_eq!(with_codec[out.len()..][..4], [13, 0, 0, 0]);
    let mut none = out.clone();
    put_field(&mut none, 13, 0, &Compression::None.encode());
    assert_eq!(FileMeta::decode(&none).unwrap_err().kind(), ErrorKind::Corruption);
    let mut newer = out;
    put_field(&mut newer, 13, 0, b"\x01\0\0\0brotli");
    assert_eq!(FileMeta::decode(&newer).unwrap_err().kind(), ErrorKind::Unsupported);
    assert_eq!(meta.rounded_len(), 2 * CHUNK_LEN + 8192);
}

#[test]
fn long_bounds_have_fields_of_their_own_which_other_builds_refuse() {
    let mut meta = example();
    let mut short = Vec::new();
    meta.encode(&mut short);
    let long = |tail: &[u8]| [&[1u8; 256][..], tail].concat();
    (meta.ranges, meta.smallest, meta.largest) = (None, long(b"ab"), long(b"b"));
    let mut out = Vec::new();
    meta.encode(&mut out);
    assert_eq!(FileMeta::decode(&out).unwrap(), meta);
    // Tag, flags (critical), length, as every field has them.
    let fields = [
        &[14, 0, 1, 0, 2, 1, 0, 0][..],
        &[1; 256],
        b"ab",
        &[15, 0, 1, 0, 1, 1, 0, 0],
        &[1; 256],
        b"b",
    ]
    .concat();
    assert!(out.ends_with(&fields), "{:?}", &out[out.len() - fields.len()..]);
    // What stands in the fields that all builds know is 256 bytes long, and no bound for its own
    // sake.
    let known = out.len() - fields.len();
    let cut = FileMeta::decode(&out[..known]).unwrap();
    assert_eq!(cut.smallest, long(b""));
    assert_eq!(cut.largest, [&[1u8; 255][..], &[2]].concat());
    for (tag, len) in [(14, 256), (15, 256), (14, ENGINE_KEY_LEN_MAX + 1)] {
        let mut refused = short.clone();
        put_field(&mut refused, tag, FIELD_CRITICAL, &vec![1; len]);
        assert_eq!(FileMeta::decode(&refused).unwrap_err().kind(), ErrorKind::Corruption);
    }
}

fn values(number: u64, live_bytes: u64) -> FileReference {
    FileReference { file: FileId { kind: FileKind::Values, number }, live_bytes }
}

#[test]
fn references_survive_encoding_and_wrong_ones_are_refused() {
    let segment = FileReference { file: FileId::log_segment(ShardId::ZERO, 7), live_bytes: 1 };
    let described = |references: Vec<FileReference>| {
        let mut out = Vec::new();
        FileMeta { references, ..example() }.encode(&mut out);
        FileMeta::decode(&out)
    };
    let most = |count| (0..count as u64).map(|n| values(n, FILE_LEN_MAX)).collect::<Vec<_>>();
    let right = [vec![segment], vec![segment, values(0, 5)], most(FILE_REFERENCES_MAX)];
    for references in right {
        assert_eq!(described(references.clone()).unwrap().references, references);
    }
    let sst = FileReference { file: FileId::sst(1), live_bytes: 5 };
    for (wrong, message) in [
        (vec![sst], "references 5 bytes of 000001.sst"),
        (vec![values(1, 0)], "references 0 bytes of 000001.val"),
        (vec![values(1, FILE_LEN_MAX + 1)], "references 2147483649 bytes of"),
        (vec![values(1, 5), segment], "do not ascend"),
        (vec![values(1, 5), values(1, 5)], "do not ascend"),
        (most(FILE_REFERENCES_MAX + 1), "references to 4097 files, expected 1 to 4096"),
    ] {
        let error = described(wrong).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corruption);
        assert!(error.message().contains(message), "{message:?} expected, {error}");
    }
    // The field is critical, and a part of a reference is none.
    let mut out = Vec::new();
    FileMeta { references: vec![segment], ..example() }.encode(&mut out);
    let field = out.len() - 8 - 17;
    assert_eq!(out[field..field + 10], [16, 0, 1, 0, 17, 0, 0, 0, 2, 7]);
    for len in [0, 16, 18] {
        let mut other = out[..field].to_vec();
        put_field(&mut other, 16, FIELD_CRITICAL, &[2; 18][..len]);
        assert_eq!(FileMeta::decode(&other).unwrap_err().kind(), ErrorKind::Corruption);
    }
}

#[test]
fn nonsense_is_refused() {
    let refuse = |change: &dyn Fn(&mut FileMeta)| {
        let mut meta = example();
        change(&mut meta);
        let mut out = Vec::new();
        meta.encode(&mut out);
        FileMeta::decode(&out).unwrap_err()
    };
    for error in [
        refuse(&|m| m.len = 0),
        refuse(&|m| m.len = FILE_LEN_MAX + 1),
        refuse(&|m| m.term = Term(1 << 32)),
        refuse(&|m| m.checksum ^= 1),
        refuse(&|m| m.chunk_crcs.push(1)),
        refuse(&|m| m.smallest = b"\x01c".to_vec()),
        refuse(&|m| m.largest = vec![2; ENGINE_KEY_LEN_MAX + 1]),
        refuse(&|m| m.smallest_sequence = SequenceNumber(10)),
        refuse(&|m| m.largest_sequence = SequenceNumber(1 << 56)),
        refuse(&|m| m.deletes = 7),
        refuse(&|m| m.expiry = Some(ExpirySpan { first_ms: 2, last_ms: 1 })),
        refuse(&|m| m.operands = Some(Operands { count: 7, first_ms: 1 })),
    ] {
        assert_eq!(error.kind(), ErrorKind::Corruption, "{error}");
    }
}

#[test]
fn changed_bytes_are_found_with_their_chunk() {
    let mut bytes = vec![5u8; CHUNK_LEN as usize + 4096];
    let mut meta = example();
    meta.len = bytes.len() as u64 - 7;
    meta.chunk_crcs = bytes.chunks(CHUNK_LEN as usize).map(crc::crc32c).collect();
    meta.checksum = combine_chunks(&meta.chunk_crcs, bytes.len() as u64);
    assert_eq!(meta.checksum, crc::crc32c(&bytes));
    meta.verify(&bytes).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    assert!(meta.verify(&bytes).unwrap_err().message().starts_with("000007.sst: chunk 1 has"));
    assert!(meta.verify(&bytes[1..]).is_err());
}

proptest! {
    #[test]
    fn bounds_enclose_their_key(tail in prop::collection::vec(prop_oneof![Just(0xffu8), any::<u8>()], 0..600)) {
        let key = [&[1u8][..], &tail].concat();
        let (lower, upper) = (lower_bound_of(&key), upper_bound_of(&key));
        prop_assert!(lower <= key && key <= upper);
        prop_assert!(lower.len() <= EDIT_KEY_BOUND_LEN_MAX && upper.len() <= EDIT_KEY_BOUND_LEN_MAX);
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes: Vec<u8>, flip in any::<prop::sample::Index>(), bit in 0u8..8) {
        let _ = FileMeta::decode(&bytes);
        let mut out = Vec::new();
        example().encode(&mut out);
        let at = flip.index(out.len());
        out[at] ^= 1 << bit;
        let _ = FileMeta::decode(&out);
        let _ = FileMeta::decode(&out[..at]);
    }
}

#[test]
fn an_upper_bound_of_ff_bytes_carries_into_the_keyspace() {
    let mut key = vec![0xff; 300];
    key[0] = 1;
    assert_eq!(upper_bound_of(&key), b"\x02");
}

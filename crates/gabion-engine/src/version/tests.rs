use super::*;
use crate::edit::{Edit, Flushed};
use crate::file::FileMeta;
use crate::sst::Compression;
use core::ptr;
use gabion_base::{LogPosition, MemTableId, SequenceNumber, Term};
use proptest::prelude::*;
use std::vec;

fn meta(number: u64, smallest: &[u8], largest: &[u8]) -> FileMeta {
    FileMeta {
        id: FileId::sst(number),
        term: Term(1),
        len: 1,
        checksum: 0,
        chunk_crcs: vec![0],
        smallest: smallest.to_vec(),
        largest: largest.to_vec(),
        smallest_sequence: SequenceNumber(number),
        largest_sequence: SequenceNumber(number),
        entries: 1,
        deletes: 0,
        compression: Compression::None,
        raw_key_bytes: 1,
        raw_value_bytes: 1,
        clears: vec![],
        expiry: None,
        operands: None,
        ranges: None,
    }
}

/// Files that are disjoint and in order, from keys in order; a pair of equal ones is a file of one key.
fn disjoint(first: u64, keys: &BTreeSet<Vec<u8>>, with_single: bool) -> Vec<FileMeta> {
    let keys: Vec<_> = keys.iter().collect();
    let step = if with_single { 1 } else { 2 };
    let pairs = keys.chunks(step).map(|part| (part[0], part[part.len() - 1]));
    pairs.zip(first..).map(|((from, to), number)| meta(number, from, to)).collect()
}

/// What [`Version::files_for`] is to find, one file after the other.
fn one_by_one(version: &Version, key: &[u8]) -> Vec<FileId> {
    let files = version.files().filter(|(_, file)| file.may_hold(key));
    files.map(|(_, file)| file.id).collect()
}

/// Keys of few different bytes, zeros among them, that often begin alike: nothing, a long prefix, another keyspace.
fn key() -> impl Strategy<Value = Vec<u8>> {
    let prefix = prop::sample::select(vec![&b"\x01"[..], b"\x01user\0\0\0\0", b"\0", b""]);
    (prefix, prop::collection::vec(0..3u8, 0..12))
        .prop_map(|(prefix, rest)| [prefix, &rest].concat())
}

fn version_of(newest: &[(Vec<u8>, Vec<u8>)], below: &[(BTreeSet<Vec<u8>>, bool)]) -> Version {
    let bounds = newest.iter().map(|(a, b)| (a.min(b), a.max(b)));
    let mut files: Vec<_> =
        bounds.zip(1..).map(|((from, to), number)| (0, meta(number, from, to))).collect();
    for (level, (keys, with_single)) in (1..).zip(below) {
        let disjoint = disjoint(1000 * u64::from(level), keys, *with_single);
        files.extend(disjoint.into_iter().map(|file| (level, file)));
    }
    Version::of(4, files)
}

proptest! {
    #[test]
    fn files_for_a_key_are_those_whose_bounds_hold_it(
        newest in prop::collection::vec((key(), key()), 0..5),
        below in prop::collection::vec((prop::collection::btree_set(key(), 0..20), any::<bool>()), 0..4),
        sought in prop::collection::vec(key(), 0..40),
    ) {
        let version = version_of(&newest, &below);
        let bounds = version.files().flat_map(|(_, file)| [file.smallest.clone(), file.largest.clone()]);
        let mut keys: Vec<_> = bounds.chain(sought).collect();
        keys.sort();
        for key in &keys {
            let found: Vec<_> = version.files_for(key).map(|file| file.meta.id).collect();
            prop_assert_eq!(found, one_by_one(&version, key), "{:?}", key);
        }
        prop_assert!(keys.is_sorted_by_key(|key| version.rank(key)), "a smaller rank is a smaller key");
    }
}

fn edit(kind: JobKind, removed: Vec<(u8, FileId)>, added: Vec<(u8, FileMeta)>) -> Edit {
    let flushed =
        Flushed { memtable: MemTableId(1), position: LogPosition(8), sequence: SequenceNumber(9) };
    Edit {
        number: 1,
        kind,
        term: Term(1),
        removed,
        added,
        flushed: (kind == JobKind::Flush).then_some(flushed),
        next_file: 5000,
        floor: None,
        recipe: None,
    }
}

#[test]
fn a_file_keeps_its_reader_when_it_moves_and_when_the_versions_prefix_changes() {
    let files =
        [(1, meta(1, b"\x01user3", b"\x01user4")), (1, meta(2, b"\x01user6", b"\x01user8"))];
    let first = Version::of(4, files.to_vec());
    let place = |version: &Version, level, at| ptr::from_ref(version.file_at(level, at).opened);
    let (one, two) = (place(&first, 1, 0), place(&first, 1, 1));
    let moved =
        edit(JobKind::TrivialMove, vec![(1, FileId::sst(1))], vec![(2, files[0].1.clone())]);
    let second = first.apply(&moved).unwrap();
    assert_eq!((place(&second, 2, 0), place(&second, 1, 0)), (one, two));
    assert_eq!(second.rank(b"\x01user3"), second.rank(b"\x01user3\0"));
    assert!(second.rank(b"\x01user3") < second.rank(b"\x01user4"));
    // Another prefix makes other ranks, of levels too that the edit leaves alone.
    let flushed = edit(JobKind::Flush, vec![], vec![(0, meta(10, b"\x01a", b"\x01z"))]);
    let third = second.apply(&flushed).unwrap();
    assert_ne!(third.rank(b"\x01user3"), second.rank(b"\x01user3"));
    assert_eq!((place(&third, 2, 0), place(&third, 1, 0)), (one, two));
    for key in [&b"\x01user3"[..], b"\x01user5", b"\x01user8", b"\x01", b"\x01zz", b""] {
        let found: Vec<_> = third.files_for(key).map(|file| file.meta.id).collect();
        assert_eq!(found, one_by_one(&third, key), "{key:?}");
    }
}

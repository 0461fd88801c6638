use super::*;
use crate::edit::{Edit, Flushed};
use crate::file::{FileMeta, FileReference};
use core::ptr;
use gabion_base::{FileKind, Frontier, LogPosition, MemTableId, SequenceNumber, Term};
use proptest::prelude::*;
use std::vec;

fn meta(number: u64, smallest: &[u8], largest: &[u8]) -> FileMeta {
    FileMeta {
        len: 1,
        chunk_crcs: vec![0],
        smallest: smallest.to_vec(),
        largest: largest.to_vec(),
        smallest_sequence: SequenceNumber(number),
        largest_sequence: SequenceNumber(number),
        entries: 1,
        deletes: number % 2,
        raw_key_bytes: number,
        raw_value_bytes: 3 * number,
        references: references(number),
        ..FileMeta::new(FileId::sst(number), Term(1))
    }
}

/// Of two files in three none; the others share a few files of values.
fn references(number: u64) -> Vec<FileReference> {
    let kind = FileKind::Values;
    let one = |n| FileReference { file: FileId { kind, number: n }, live_bytes: number + n };
    if number.is_multiple_of(3) { (number % 4..5).map(one).collect() } else { Vec::new() }
}

/// Files that are disjoint and in order, from keys in order; a pair of equal ones is a file of one
/// key.
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

/// Keys of few different bytes, zeros among them, that often begin alike: nothing, a long prefix,
/// another keyspace.
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

/// Descriptions of all values files that a version's files reference and that `known` does not
/// have, of as many bytes as anybody wants.
pub(super) fn values_of(version: &Version, known: &ValuesFiles) -> Vec<FileMeta> {
    let wanted = version.referenced.as_map().keys().filter(|file| file.kind == FileKind::Values);
    let wanted = wanted.filter(|file| known.get(**file).is_none());
    let meta = |file: &FileId| FileMeta {
        raw_value_bytes: 1 << 40,
        len: 1,
        ..FileMeta::new(*file, Term(0))
    };
    wanted.map(meta).collect()
}

impl Edit {
    pub(super) fn nothing() -> Self {
        edit(JobKind::Compaction, Vec::new(), Vec::new())
    }
}

fn edit(kind: JobKind, removed: Vec<(u8, FileId)>, added: Vec<(u8, FileMeta)>) -> Edit {
    let flushed = Flushed {
        memtable: MemTableId(1),
        frontier: Frontier::of(LogPosition(8)),
        sequence: SequenceNumber(9),
    };
    Edit {
        number: 1,
        kind,
        term: Term(1),
        removed,
        added,
        values: Vec::new(),
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

/// What happens to a file: it goes, stays or comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Goes,
    Stays,
    Comes,
}

fn fates() -> impl Strategy<Value = Vec<Fate>> {
    let fate = prop::sample::select(vec![Fate::Goes, Fate::Stays, Fate::Stays, Fate::Comes]);
    prop::collection::vec(fate, 64)
}

proptest! {
    #[test]
    fn an_edit_makes_of_a_version_what_its_files_make_anew(
        newest in prop::collection::vec((key(), key()), 0..5),
        below in prop::collection::vec((prop::collection::btree_set(key(), 0..20), any::<bool>()), 0..4),
        fates in fates(),
    ) {
        let all = version_of(&newest, &below);
        let all: Vec<_> = all.files().zip(fates.iter().cycle()).collect();
        let of = |fates: &[Fate]| -> Vec<(u8, FileMeta)> {
            let files = all.iter().filter(|(_, fate)| fates.contains(fate));
            files.map(|((level, file), _)| (*level, FileMeta::clone(file))).collect()
        };
        let removed: Vec<_> = of(&[Fate::Goes]).iter().map(|(level, file)| (*level, file.id)).rev().collect();
        prop_assume!(!removed.is_empty());
        let before = Version::of(4, of(&[Fate::Goes, Fate::Stays]));
        let added: Vec<_> = of(&[Fate::Comes]).into_iter().rev().collect();
        let mut versions = Versions::new(before.clone());
        let anew = Version::of(4, of(&[Fate::Stays, Fate::Comes]));
        let mut edit = edit(JobKind::Compaction, removed.clone(), added);
        edit.values = values_of(&anew, &before.values);
        versions.apply(&edit).unwrap();
        let after = versions.current();
        prop_assert_eq!(&**after, &anew);
        prop_assert_eq!(&after.finder, &anew.finder);
        after.invariants();
        prop_assert_eq!(after.referenced(), anew.referenced());
        prop_assert_eq!(after.values_stats(), anew.values_stats());
        prop_assert!(after.values_files().eq(anew.values_files()));
        let readers = |version: &Version| -> BTreeMap<FileId, *const _> {
            let places = (0..4).flat_map(|level| (0..version.level(level).len()).map(move |at| (level, at)));
            let files = places.map(|(level, at)| version.file_at(level, at));
            files.map(|file| (file.meta.id, ptr::from_ref(file.opened))).collect()
        };
        let (had, has) = (readers(&before), readers(after));
        for (_, file) in of(&[Fate::Stays]) {
            prop_assert_eq!(had[&file.id], has[&file.id], "{}", file.id);
        }
        let leaving: BTreeSet<_> = versions.leaving().iter().map(|file| file.id).collect();
        prop_assert_eq!(leaving, removed.iter().map(|(_, id)| *id).collect::<BTreeSet<_>>());
        for (level, file) in after.files() {
            prop_assert!(after.file(level, file.id).is_some_and(|found| Arc::ptr_eq(found, file)));
            prop_assert!(after.file(level + 1, file.id).is_none());
        }
    }
}

#[test]
fn live_bytes_of_a_file_of_values_are_the_sum_over_the_files_that_reference_it() {
    let one = (1, meta(6, b"\x01a", b"\x01b"));
    let version = Version::of(4, vec![one.clone(), (1, meta(9, b"\x01c", b"\x01d"))]);
    let sums = |version: &Version| -> Vec<(u64, u64)> {
        version.invariants();
        version.referenced().iter().map(|(file, live)| (file.number, *live)).collect()
    };
    assert_eq!(sums(&version), [(1, 10), (2, 8 + 11), (3, 9 + 12), (4, 10 + 13)]);
    let removed = vec![(1, FileId::sst(6))];
    let moved = edit(JobKind::TrivialMove, removed.clone(), vec![(2, one.1)]);
    assert_eq!(sums(&version.apply(&moved).unwrap()), sums(&version));
    let without = version.apply(&edit(JobKind::Drop, removed, vec![])).unwrap();
    assert_eq!(sums(&without), [(1, 10), (2, 11), (3, 12), (4, 13)]);
    let none = edit(JobKind::Drop, vec![(1, FileId::sst(9))], vec![]);
    assert_eq!(sums(&without.apply(&none).unwrap()), []);
}

#[test]
fn an_edit_that_does_not_fit_names_the_file() {
    let version = Version::of(
        4,
        vec![
            (1, meta(1, b"\x01b", b"\x01d")),
            (1, meta(2, b"\x01f", b"\x01h")),
            (2, meta(3, b"\x01a", b"\x01z")),
        ],
    );
    let refused = |removed: &[(u8, u64)], added: &[(u8, FileMeta)]| {
        let removed = removed.iter().map(|(level, number)| (*level, FileId::sst(*number)));
        let edit = edit(JobKind::Compaction, removed.collect(), added.to_vec());
        alloc::string::ToString::to_string(&version.apply(&edit).unwrap_err())
    };
    let says = |text: &str, removed: &[(u8, u64)], added: &[(u8, FileMeta)]| {
        let error = refused(removed, added);
        assert!(error.contains(text), "{error}");
    };
    says("not there: 000009.sst at level 1", &[(1, 1), (1, 9)], &[]);
    says("not there: 000001.sst at level 2", &[(2, 1)], &[]);
    says("twice: 000001.sst", &[(1, 1), (1, 1)], &[]);
    says("already there: 000002.sst", &[(1, 1)], &[(2, meta(2, b"\x01f", b"\x01h"))]);
    says(
        "already there: 000008.sst",
        &[(1, 1)],
        &[(1, meta(8, b"\x01b", b"\x01c")), (1, meta(8, b"\x01d", b"\x01d"))],
    );
    says("a level that is not there: 000008.sst", &[(1, 1)], &[(5, meta(8, b"\x01b", b"\x01c"))]);
    says("changes it: 000001.sst", &[(1, 1)], &[(3, meta(1, b"\x01b", b"\x01e"))]);
    says(
        "000008.sst and 000002.sst overlap at level 1",
        &[(1, 1)],
        &[(1, meta(8, b"\x01b", b"\x01f"))],
    );
    says(
        "000001.sst and 000008.sst overlap at level 1",
        &[(1, 2)],
        &[(1, meta(8, b"\x01d", b"\x01f"))],
    );
    says("bounds of 000008.sst are in reverse", &[(1, 1)], &[(3, meta(8, b"\x01f", b"\x01b"))]);
    let both = [(1, meta(8, b"\x01i", b"\x01k")), (1, meta(9, b"\x01k", b"\x01l"))];
    says("000008.sst and 000009.sst overlap at level 1", &[(1, 1)], &both);
}

//! What a merge keeps and drops, judged by what every snapshot sees of it, and where its files are cut.

use super::*;
use crate::entry::Trailer;
use crate::sst::SstOptions;
use alloc::collections::BTreeMap;
use alloc::vec;
use gabion_base::{MemTableId, Term};
use proptest::prelude::*;

/// Group time in every recipe here.
const NOW_MS: u64 = 10;

fn recipe(snapshots: Vec<SequenceNumber>, floor: SequenceNumber, bottommost: bool) -> Recipe {
    Recipe {
        kind: JobKind::Flush,
        term: Term(1),
        memtables: vec![MemTableId(1)],
        inputs: Vec::new(),
        output_level: 0,
        output_first: 1,
        output_count: 1000,
        output_len: 16 << 20,
        cuts: Vec::new(),
        bottommost,
        snapshots,
        now_ms: NOW_MS,
        floor,
        sst: SstOptions::default(),
    }
}

type Entries = Vec<(Vec<u8>, Trailer, Vec<u8>)>;

/// What a reader at `at` sees of each key by group time `now_ms`, deletes, cleared and expired entries left
/// out.
fn seen(
    entries: &Entries,
    at: SequenceNumber,
    floor: SequenceNumber,
    now_ms: u64,
) -> BTreeMap<Vec<u8>, u64> {
    let mut seen = BTreeMap::new();
    let mut done = Vec::new();
    for (key, trailer, value) in entries {
        let sequence = trailer.sequence();
        if sequence > at || done.contains(key) {
            continue;
        }
        done.push(key.clone());
        let cleared = floor <= at && sequence < floor && key[0] == 1;
        let is_there = match trailer.kind() {
            EntryKind::Put => true,
            EntryKind::ExpiringPut => now_ms < u64::from_le_bytes(*value.first_chunk().unwrap()),
            _ => false,
        };
        if is_there && !cleared {
            seen.insert(key.clone(), sequence.get());
        }
    }
    seen
}

fn keep(recipe: &Recipe, entries: &Entries) -> Entries {
    let mut visibility = Visibility::new(recipe);
    let mut kept = Vec::new();
    for (key, trailer, value) in entries {
        let entry = Entry { key, trailer: *trailer, value };
        if let Some(written) = visibility.keep(&entry).unwrap() {
            kept.push((written.key.to_vec(), written.trailer, written.value.to_vec()));
        }
    }
    kept
}

proptest! {
    #[test]
    fn what_is_dropped_is_seen_by_no_snapshot_and_by_nobody_after(
        ops in prop::collection::vec((0u8..2, 0u8..4, 0u64..40), 0..40),
        snapshots in prop::collection::btree_set(1u64..40, 0..4),
        floor in 0u64..40,
        bottommost: bool,
    ) {
        let mut entries: Entries = Vec::new();
        for (at, (space, key, kind)) in ops.iter().enumerate() {
            let (kind, value) = match kind {
                0..10 => (EntryKind::Delete, Vec::new()),
                10..20 => (EntryKind::Put, Vec::new()),
                expires_ms => (EntryKind::ExpiringPut, (expires_ms - 20).to_le_bytes().to_vec()),
            };
            let trailer = Trailer::new(SequenceNumber(at as u64 + 1), kind);
            entries.push((vec![*space, *key], trailer, value));
        }
        entries.sort_by(|a, b| crate::entry::compare(&a.0, a.1, &b.0, b.1));
        let snapshots: Vec<_> = snapshots.into_iter().map(SequenceNumber).collect();
        let floor = SequenceNumber(floor);
        let recipe = recipe(snapshots.clone(), floor, bottommost);
        let kept = keep(&recipe, &entries);
        // A snapshot may judge by any time before the job, everyone after it by the job's or a later one.
        let snapshots_at = snapshots.iter().flat_map(|at| (0..=NOW_MS).map(|now_ms| (*at, now_ms)));
        let newest_at = (NOW_MS..25).map(|now_ms| (SequenceNumber(100), now_ms));
        for (at, now_ms) in snapshots_at.chain(newest_at) {
            let (after, before) = (seen(&kept, at, floor, now_ms), seen(&entries, at, floor, now_ms));
            prop_assert_eq!(after, before, "at {} by {} ms", at, now_ms);
        }
        if snapshots.is_empty() && bottommost {
            let newest = seen(&entries, SequenceNumber(100), floor, NOW_MS);
            prop_assert_eq!(kept.len(), newest.len(), "nothing invisible stays at the bottom");
        }
    }
}

#[test]
fn a_tombstone_stays_while_a_deeper_level_may_hold_its_key() {
    let entries: Entries =
        vec![(b"\x01k".to_vec(), Trailer::new(SequenceNumber(5), EntryKind::Delete), vec![])];
    assert_eq!(keep(&recipe(vec![], SequenceNumber(0), false), &entries).len(), 1);
    assert_eq!(keep(&recipe(vec![], SequenceNumber(0), true), &entries).len(), 0);
}

#[test]
fn what_has_expired_is_a_tombstone_while_a_deeper_level_may_hold_its_key_and_stays_for_a_snapshot()
{
    let put = |expires_ms: u64| {
        let trailer = Trailer::new(SequenceNumber(5), EntryKind::ExpiringPut);
        (b"\x01k".to_vec(), trailer, [&expires_ms.to_le_bytes()[..], b"value"].concat())
    };
    let (gone, there) = (vec![put(NOW_MS)], vec![put(NOW_MS + 1)]);
    let tombstone = Trailer::new(SequenceNumber(5), EntryKind::Delete);
    let floor = SequenceNumber(0);
    let above = recipe(vec![], floor, false);
    assert_eq!(keep(&above, &gone), [(b"\x01k".to_vec(), tombstone, vec![])]);
    assert_eq!(keep(&above, &there), there);
    assert_eq!(keep(&recipe(vec![], floor, true), &gone), []);
    assert_eq!(keep(&recipe(vec![], floor, true), &there), there);
    let (before, after) = (vec![SequenceNumber(4)], vec![SequenceNumber(5)]);
    assert_eq!(keep(&recipe(before, floor, true), &gone), [(b"\x01k".to_vec(), tombstone, vec![])]);
    assert_eq!(keep(&recipe(after, floor, true), &gone), gone);
}

#[test]
fn a_reserved_kind_ends_a_job_instead_of_being_guessed_at() {
    let recipe = recipe(vec![], SequenceNumber(0), true);
    let trailer = Trailer::new(SequenceNumber(5), EntryKind::Merge);
    let entry = Entry { key: b"\x01k", trailer, value: b"" };
    let error = Visibility::new(&recipe).keep(&entry).unwrap_err();
    assert_eq!(error.kind(), gabion_base::ErrorKind::Unsupported);
}

#[test]
fn keys_whose_cut_bounds_would_touch_stay_in_one_file() {
    let long = |tail: &[u8]| [&[1u8][..], &[7; 255], tail].concat();
    assert!(bounds_touch(&long(b"a"), &long(b"b")), "the first 256 bytes are equal");
    assert!(bounds_touch(&long(b""), &long(b"b")));
    assert!(!bounds_touch(b"\x01a", b"\x01b"));
    assert!(!bounds_touch(b"\x01\x06", &long(b"b")));
    assert!(!bounds_touch(&long(b"a"), b"\x01\x09"));
    let mut next = long(b"");
    next[255] = 8;
    assert!(bounds_touch(&long(b"a"), &next), "the bound rounded up is the next key");
    assert!(!bounds_touch(&long(b""), &next), "a key of 256 bytes is its own bound");
}

#[test]
fn inputs_and_output_can_be_sent_to_a_thread() {
    fn is_send<T: Send>() {}
    is_send::<JobInputs>();
    is_send::<JobOutput>();
}

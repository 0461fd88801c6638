//! A merge keeps and drops entries, judged by what readers see of it, and cuts its files.

use super::*;
use crate::entry::{ENGINE_KEY_LEN_MAX, Trailer};
use crate::expiry::ExpirySpan;
use crate::file::{FILE_LEN_MAX, FinishedFile};
use crate::range_delete::Fragment;
use crate::recipe::Merging;
use crate::sst::SstBuilder;
use crate::sst::SstOptions;
use alloc::collections::BTreeMap;
use alloc::string::{String, ToString};
use alloc::vec;
use core::pin::pin;
use core::task::{Context, Poll, Waker};
use gabion_base::units::EDIT_KEY_BOUND_LEN_MAX;
use gabion_base::{ErrorKind, FileId, MemTableId, Term};
use proptest::prelude::*;

const GROUP: GroupId = GroupId(5);
/// Group time in every recipe here.
const NOW_MS: u64 = 10;

fn recipe(floor: SequenceNumber, bottommost: bool) -> Recipe {
    Recipe {
        kind: JobKind::Flush,
        term: Term(1),
        memtables: vec![MemTableId(1)],
        inputs: Vec::new(),
        output_level: 0,
        output_first: FileId::first_number(Term(1)),
        output_count: 1000,
        output_len: 16 << 20,
        cuts: Vec::new(),
        bottommost,
        now_ms: NOW_MS,
        floor,
        sst: SstOptions::default(),
        merging: None,
        parted_from: 0,
        large_from: 0,
        emptied: Vec::new(),
        kept: Vec::new(),
        kept_from: 0,
    }
}

type Entries = Vec<(Vec<u8>, Trailer, Vec<u8>)>;

/// What readers see of each key by group time `now_ms`: its value, and when that expires. Deletes,
/// cleared and expired entries are left out. Goes from old to new, as no reader of the
/// engine does. A range delete is an entry here, of its start, with its end as the value.
fn seen(
    entries: &[&Entries],
    floor: SequenceNumber,
    now_ms: u64,
) -> BTreeMap<Vec<u8>, (Vec<u8>, Option<u64>)> {
    let mut oldest_first: Vec<_> = entries.iter().flat_map(|entries| entries.iter()).collect();
    oldest_first.sort_by_key(|(_, trailer, _)| *trailer);
    let mut seen = BTreeMap::new();
    for (key, trailer, stored) in oldest_first {
        let sequence = trailer.sequence();
        if sequence < floor && key[0] == 1 {
            seen.remove(key);
            continue;
        }
        match trailer.kind() {
            EntryKind::Put => drop(seen.insert(key.clone(), (stored.clone(), None))),
            EntryKind::ExpiringPut => {
                let (at_ms, value) = stored.split_first_chunk().unwrap();
                seen.insert(key.clone(), (value.to_vec(), Some(u64::from_le_bytes(*at_ms))));
            }
            EntryKind::Merge => add(&mut seen, key, Operand::decode(stored).unwrap()),
            EntryKind::RangeDelete => seen.retain(|other, _| other < key || other >= stored),
            _ => drop(seen.remove(key)),
        }
    }
    seen.retain(|_, (_, expires_ms)| expires_ms.is_none_or(|at| at > now_ms));
    seen
}

fn add(seen: &mut BTreeMap<Vec<u8>, (Vec<u8>, Option<u64>)>, key: &[u8], operand: Operand) {
    let there = seen.get(key).filter(|(_, at)| at.is_none_or(|at| at > operand.at_ms));
    let (number, expires_ms) = match there {
        None => (Some(0), None),
        Some((value, at)) => (gabion_base::number::parse_i64(value), *at),
    };
    if let Some(number) = number {
        let sum = operand.step.apply(number).to_string().into_bytes();
        seen.insert(key.to_vec(), (sum, expires_ms));
    }
}

/// What is kept of entries, and of range deletes among them.
fn keep(recipe: &Recipe, entries: &Entries) -> Entries {
    let (ranges, entries): (Entries, Entries) = entries
        .iter()
        .cloned()
        .partition(|(_, trailer, _)| trailer.kind() == EntryKind::RangeDelete);
    let fragment = |(start, trailer, end): &(Vec<u8>, Trailer, Vec<u8>)| Fragment {
        start: start[..].into(),
        end: end[..].into(),
        sequences: vec![trailer.sequence()],
    };
    let ranges: Vec<_> = ranges.iter().map(fragment).collect();
    let ranges = Fragments::merged(ranges.iter());
    let mut kept = keep_under(recipe, &entries, &ranges);
    for Fragment { start, end, sequences } in ranges::kept(recipe, &ranges).as_slice() {
        for &sequence in sequences {
            let trailer = Trailer::new(sequence, EntryKind::RangeDelete);
            kept.push((start.to_vec(), trailer, end.to_vec()));
        }
    }
    kept
}

fn keep_under(recipe: &Recipe, entries: &Entries, ranges: &Fragments) -> Entries {
    let mut visibility = Visibility::new(recipe, ranges);
    let mut kept = Vec::new();
    let write = |kept: &mut Entries, entry: Entry<'_>| {
        kept.push((entry.key.to_vec(), entry.trailer, entry.value.to_vec()));
    };
    for (key, trailer, value) in entries {
        let entry = Entry { key, trailer: *trailer, value };
        if visibility.is_folding() {
            for made in visibility.go_on_folding(&entry).unwrap() {
                write(&mut kept, made.entry(&visibility.folding_key));
            }
        }
        if let Some(written) = visibility.keep(&entry).unwrap() {
            write(&mut kept, written);
        }
    }
    for made in visibility.end_folding().unwrap() {
        write(&mut kept, made.entry(&visibility.folding_key));
    }
    let is_sorted = kept.is_sorted_by(|a, b| crate::entry::compare(&a.0, a.1, &b.0, b.1).is_lt());
    assert!(is_sorted, "{kept:?}");
    kept
}

/// A range of up to four keys, some of which exist, and some of whose ends are keys.
fn any_range(key: &mut Vec<u8>, kind: u64) -> Vec<u8> {
    let mut end = key.clone();
    end[1] += 1 + (kind % 3) as u8;
    if kind.is_multiple_of(3) {
        key.push(0);
    }
    end.push((kind % 2) as u8);
    end
}

/// A delete, a number, something else, either of them expiring, or an operand that is written at
/// `at_ms`.
fn any_entry(sequence: u64, kind: u64, at_ms: u64) -> (EntryKind, Vec<u8>) {
    let value = match sequence % 3 {
        0 => "text".to_string(),
        _ => (sequence as i64 - 20).to_string(),
    };
    match kind {
        0..8 => (EntryKind::Delete, Vec::new()),
        8..16 => (EntryKind::Put, value.into_bytes()),
        16..36 => {
            let stored = [&(kind - 16).to_le_bytes()[..], value.as_bytes()].concat();
            (EntryKind::ExpiringPut, stored)
        }
        _ => (EntryKind::Merge, Operand::add(kind as i64 - 45, at_ms).encode()),
    }
}

fn expiries(entries: &[&Entries]) -> Option<ExpirySpan> {
    let entries = entries.iter().flat_map(|entries| entries.iter());
    let times = entries.filter_map(|(_, trailer, stored)| expiry_of(*trailer, stored).unwrap().0);
    times.map(ExpirySpan::at).reduce(ExpirySpan::with)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]
    /// docs/faults.md: P11, P13, P16
    #[test]
    fn what_is_dropped_is_seen_by_nobody_after(
        ops in prop::collection::vec((0u8..2, 0u8..3, 0u64..72, 0u64..3), 0..60),
        floor in prop_oneof![Just(0u64), 0u64..60],
        (below_len, above_len) in prop_oneof![Just((0, 0)), (0usize..30, 0usize..20)],
    ) {
        let mut entries: Entries = Vec::new();
        let mut at_ms = 0;
        for (at, (space, key, kind, passed)) in ops.iter().enumerate() {
            // What lies above may have been written while the job ran.
            at_ms = (at_ms + passed / 2).min(if at + above_len < ops.len() { NOW_MS } else { 20 });
            let mut key = vec![*space, *key];
            let (kind, value) = match *kind {
                60.. => (EntryKind::RangeDelete, any_range(&mut key, *kind)),
                kind => any_entry(at as u64 + 1, kind, at_ms),
            };
            let trailer = Trailer::new(SequenceNumber(at as u64 + 1), kind);
            entries.push((key, trailer, value));
        }
        let above = entries.split_off(entries.len() - above_len.min(entries.len()));
        let below: Entries = entries.drain(..below_len.min(entries.len())).collect();
        entries.sort_by(|a, b| crate::entry::compare(&a.0, a.1, &b.0, b.1));
        let floor = SequenceNumber(floor);
        let mut recipe = recipe(floor, below.is_empty());
        let operands = above.iter().filter(|(_, trailer, _)| trailer.kind() == EntryKind::Merge);
        let above_from_ms = operands.map(|(.., stored)| Operand::decode(stored).unwrap().at_ms).min();
        recipe.merging = Some(Merging { expiries: expiries(&[&entries, &below]), above_from_ms });
        let kept = keep(&recipe, &entries);
        // Everyone after the job judges by its time or a later one.
        for now_ms in NOW_MS..25 {
            let after = seen(&[&kept, &below, &above], floor, now_ms);
            let before = seen(&[&entries, &below, &above], floor, now_ms);
            prop_assert_eq!(after, before, "by {} ms", now_ms);
        }
        if below.is_empty() && above.is_empty() {
            let newest = seen(&[&entries], floor, NOW_MS);
            prop_assert_eq!(kept.len(), newest.len(), "nothing invisible stays at the bottom");
        }
    }
}

fn operand(sequence: u64, delta: i64, at_ms: u64) -> (Vec<u8>, Trailer, Vec<u8>) {
    let trailer = Trailer::new(SequenceNumber(sequence), EntryKind::Merge);
    (b"\x01k".to_vec(), trailer, Operand::add(delta, at_ms).encode())
}

/// docs/faults.md: P13
#[test]
fn operands_become_one_unless_an_expiry_lies_between_them() {
    let entries: Entries = (1..=6).rev().map(|n| operand(n, 10, n)).collect();
    let kept = |bottommost, expiries| {
        let mut recipe = recipe(SequenceNumber(0), bottommost);
        recipe.merging = Some(Merging { expiries, above_from_ms: None });
        let kept = keep(&recipe, &entries);
        let described = kept.iter().map(|(_, trailer, stored)| match trailer.kind() {
            EntryKind::Merge => {
                let delta = Operand::decode(stored).unwrap().step.delta().unwrap();
                (trailer.sequence().get(), delta)
            }
            _ => {
                (1000 + trailer.sequence().get(), String::from_utf8_lossy(stored).parse().unwrap())
            }
        });
        described.collect::<Vec<_>>()
    };
    assert_eq!(kept(false, None), [(6, 60)]);
    assert_eq!(kept(true, None), [(1006, 60)], "nothing beneath: a value");
    let expiries = |first_ms, last_ms| Some(ExpirySpan { first_ms, last_ms });
    assert_eq!(kept(false, expiries(4, 5)), [(6, 20), (4, 10), (3, 30)]);
    assert_eq!(kept(false, expiries(7, 9)), [(6, 60)]);
    assert_eq!(kept(false, expiries(0, 1)), [(6, 60)]);
}

/// docs/faults.md: P13
#[test]
fn more_operands_than_memory_holds_apart_are_written_as_they_are_and_none_is_lost() {
    let count = 5_000;
    for base in [None, Some(3_000u64), Some(10)] {
        let mut entries: Entries = (2..=count).rev().map(|n| operand(n, 1, n)).collect();
        entries.extend(base.map(|expires_ms| {
            let trailer = Trailer::new(SequenceNumber(1), EntryKind::ExpiringPut);
            (b"\x01k".to_vec(), trailer, [&expires_ms.to_le_bytes()[..], b"7"].concat())
        }));
        let floor = SequenceNumber(0);
        let mut recipe = Recipe { now_ms: count, ..recipe(floor, true) };
        let expiries = Some(ExpirySpan { first_ms: 1, last_ms: count });
        recipe.merging = Some(Merging { expiries, above_from_ms: None });
        let kept = keep(&recipe, &entries);
        assert!((3_900..4_000).contains(&kept.len()), "{}", kept.len());
        let sum = |entries: &Entries| seen(&[entries], floor, count);
        assert_eq!(sum(&kept), sum(&entries), "{base:?}");
        // Once more, and again: fewer each time.
        let again = keep(&recipe, &kept);
        assert!(again.len() < kept.len() - 900, "{}", again.len());
        assert_eq!(sum(&again), sum(&entries), "{base:?}");
    }
}

/// docs/faults.md: P13
#[test]
fn what_expired_stays_while_older_operands_above_it_must_find_it_gone() {
    let trailer = Trailer::new(SequenceNumber(5), EntryKind::ExpiringPut);
    let put = vec![(b"\x01k".to_vec(), trailer, b"\x08\0\0\0\0\0\0\x007".to_vec())];
    let kept = |above_from_ms| {
        let mut recipe = recipe(SequenceNumber(0), true);
        recipe.merging = Some(Merging { expiries: None, above_from_ms });
        keep(&recipe, &put)
    };
    assert_eq!(kept(None), []);
    assert_eq!(kept(Some(8)), [], "what was written at its expiry begins anew anyway");
    assert_eq!(kept(Some(7)), put);
}

/// docs/faults.md: P13
#[test]
fn an_operand_under_a_recipe_without_an_operator_is_corruption() {
    let recipe = recipe(SequenceNumber(0), true);
    let (key, trailer, stored) = operand(5, 1, 1);
    let entry = Entry { key: &key, trailer, value: &stored };
    let error = Visibility::new(&recipe, &Fragments::default()).keep(&entry).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corruption);
}

#[test]
fn a_tombstone_stays_while_a_deeper_level_may_hold_its_key() {
    let entries: Entries =
        vec![(b"\x01k".to_vec(), Trailer::new(SequenceNumber(5), EntryKind::Delete), vec![])];
    assert_eq!(keep(&recipe(SequenceNumber(0), false), &entries).len(), 1);
    assert_eq!(keep(&recipe(SequenceNumber(0), true), &entries).len(), 0);
}

/// docs/faults.md: P11
#[test]
fn what_has_expired_is_a_tombstone_while_a_deeper_level_may_hold_its_key() {
    let put = |expires_ms: u64| {
        let trailer = Trailer::new(SequenceNumber(5), EntryKind::ExpiringPut);
        (b"\x01k".to_vec(), trailer, [&expires_ms.to_le_bytes()[..], b"value"].concat())
    };
    let (gone, there) = (vec![put(NOW_MS)], vec![put(NOW_MS + 1)]);
    let tombstone = Trailer::new(SequenceNumber(5), EntryKind::Delete);
    let floor = SequenceNumber(0);
    let above = recipe(floor, false);
    assert_eq!(keep(&above, &gone), [(b"\x01k".to_vec(), tombstone, vec![])]);
    assert_eq!(keep(&above, &there), there);
    assert_eq!(keep(&recipe(floor, true), &gone), []);
    assert_eq!(keep(&recipe(floor, true), &there), there);
}

#[test]
fn a_reserved_kind_ends_a_job_instead_of_being_guessed_at() {
    let recipe = recipe(SequenceNumber(0), true);
    let trailer = Trailer::new(SequenceNumber(5), EntryKind::Relocation);
    let entry = Entry { key: b"\x01k", trailer, value: b"" };
    let error = Visibility::new(&recipe, &Fragments::default()).keep(&entry).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
}

#[test]
fn inputs_and_output_can_be_sent_to_a_thread() {
    fn is_send<T: Send>() {}
    is_send::<JobInputs>();
    is_send::<JobOutput>();
}

#[test]
fn a_file_is_left_out_when_one_range_delete_hides_all_of_it() {
    let mut builder = SstBuilder::new(&SstOptions::default(), GroupId(1), FileId::sst(1), Term(1));
    builder.add(b"\x01b", Trailer::new(SequenceNumber(5), EntryKind::Put), b"");
    builder.add(b"\x01c", Trailer::new(SequenceNumber(6), EntryKind::Put), b"");
    let file = Arc::new(builder.finish().meta);
    let is_left_out = |start: &[u8], end: &[u8], sequence| {
        let inputs = JobInputs {
            recipe: recipe(SequenceNumber(0), false),
            memtables: Vec::new(),
            files: vec![(1, file.clone())],
            emptied: Vec::new(),
            places: Arc::default(),
            layout: None,
        };
        let fragment = Fragment {
            start: start.into(),
            end: end.into(),
            sequences: vec![SequenceNumber(sequence)],
        };
        let fragments = Fragments::merged([fragment].iter());
        let (left, len) = ranges::without_hidden(&inputs, &fragments);
        assert_eq!(len, if left.is_empty() { file.len } else { 0 });
        left.is_empty()
    };
    assert!(is_left_out(b"\x01b", b"\x01c\0", 9));
    assert!(!is_left_out(b"\x01b", b"\x01c", 9), "its last key is not deleted");
    assert!(!is_left_out(b"\x01b\0", b"\x01d", 9), "nor its first");
    assert!(!is_left_out(b"\x01a", b"\x01d", 4), "what is newer stays");
    assert!(!is_left_out(b"\x01a", b"\x01d", 6), "as new as what it holds");
    assert!(is_left_out(b"\x01a", b"\x01d", 7));
}

/// Files in memory, as a job writes them.
#[derive(Default)]
struct Written(Vec<FinishedFile>);

impl FileSink for Written {
    async fn finished(&mut self, file: FinishedFile) -> Result<()> {
        self.0.push(file);
        Ok(())
    }
}

impl FileSource for Written {
    async fn read(&self, file: FileId, offset: u64, len: usize) -> Result<bytes::Bytes> {
        let file = self.0.iter().find(|it| it.meta.id == file).unwrap();
        Ok(file.bytes.slice(offset as usize..offset as usize + len))
    }
}

/// The result of a future that never has to wait.
fn now<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("the future had to wait"),
    }
}

/// What [`Outputs`] make of entries of one value and of a range delete that is older than these.
fn written(
    inputs: &JobInputs,
    keys: impl Iterator<Item = Vec<u8>>,
    value: &[u8],
    deleted: &Fragment,
) -> Written {
    let ranges = Fragments::merged([deleted].into_iter());
    let (recipe, mut sink) = (inputs.recipe.clone(), Written::default());
    let mut output =
        JobOutput { recipe, added: Vec::new(), values: Vec::new(), stats: JobStats::default() };
    let mut outputs = Outputs::new(inputs, GROUP, ranges);
    for key in keys {
        let trailer = Trailer::new(SequenceNumber(2), EntryKind::Put);
        let entry = Entry { key: &key, trailer, value };
        now(outputs.write::<false>(&entry, &mut sink, &mut output)).unwrap();
    }
    now(outputs.finish(&mut sink, &mut output)).unwrap();
    sink
}

/// A range delete over keys as long as may be would keep a file from ending until it is too long.
/// docs/faults.md: P16
#[test]
fn files_end_among_keys_as_long_as_may_be_under_a_range_delete() {
    const PREFIX: usize = 300;
    const VALUE_LEN: usize = 8 << 20;
    // The next key after one of these is what the next of them begins with.
    let key = |n: u8| {
        let mut key = vec![0xff; ENGINE_KEY_LEN_MAX];
        key[..PREFIX].fill(1);
        key[PREFIX] = n;
        key
    };
    // What a file must have for such bounds: there are no shorter ones.
    let bounds_len = ENGINE_KEY_LEN_MAX + PREFIX + 1 - 2 * EDIT_KEY_BOUND_LEN_MAX;
    let count = FILE_PER_BOUND * bounds_len as u64 / VALUE_LEN as u64 + 2;
    let mut inputs = JobInputs {
        recipe: recipe(SequenceNumber::ZERO, false),
        memtables: Vec::new(),
        files: Vec::new(),
        emptied: Vec::new(),
        places: Arc::default(),
        layout: None,
    };
    let (start, end) = ([1, 1][..].into(), [1, 2][..].into());
    let deleted = Fragment { start, end, sequences: vec![SequenceNumber(1)] };
    let keys = (0..count as u8).map(key);
    let files = written(&inputs, keys.clone(), &vec![0; VALUE_LEN], &deleted);
    let [first, second] = &files.0[..] else { panic!("{} files", files.0.len()) };
    let (first, second) = (&first.meta, &second.meta);
    let last = first.entries as u8 - 1;
    assert_eq!(
        (&first.largest, &second.smallest),
        (&key(last), &key(last + 1)[..=PREFIX].to_vec())
    );
    let ranges_of = |files: &Written, meta: &FileMeta| {
        let meta = FileMeta::decode(&encoded(meta)).unwrap();
        let reader = now(SstReader::open(files, GROUP, &meta)).unwrap();
        let [range] = reader.ranges().as_slice() else { panic!("one each") };
        range.clone()
    };
    // Nothing is uncovered between the two, and nothing covered by both.
    let halves = [ranges_of(&files, first), ranges_of(&files, second)];
    assert_eq!((&halves[0].start, &halves[1].end), (&deleted.start, &deleted.end));
    assert_eq!((&halves[0].end, &halves[1].start[..]), (&halves[1].start, &second.smallest[..]));
    // And whoever writes the first file anew, without the second, keeps to its bounds.
    inputs.files.push((1, Arc::new(first.clone())));
    let again = written(&inputs, keys.take(1), &[0], &halves[0]);
    assert_eq!(again.0[0].meta.largest, first.largest);
    assert_eq!(ranges_of(&again, &again.0[0].meta), halves[0]);
}

/// A job that more slots do not help must not be told as one that they help: it would write a file
/// of 1 GiB for each try.
/// docs/faults.md: P16
#[test]
fn what_no_file_can_hold_is_not_said_to_want_slots() {
    assert!(outputs::check_len_of_one(FILE_LEN_MAX / 2).is_ok());
    let error = outputs::check_len_of_one(FILE_LEN_MAX / 2 + 1).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    assert!(error.message().contains("comes to 1073741825 bytes, a file holds at most 1073741824"));
}

fn encoded(meta: &FileMeta) -> Vec<u8> {
    let mut bytes = Vec::new();
    meta.encode(&mut bytes);
    bytes
}

//! Range deletes where they are cut, sink and vanish: each way in which deleted keys came back, or
//! kept ones went, in stores that had range deletes before.

use crate::support::*;
use crate::tree_rules::{Driven, eager};
use gabion_base::{FileId, MemTableId, SequenceNumber};
use gabion_engine::range_delete::{Fragments, MEMTABLE_RANGES_MAX};
use gabion_engine::*;
use proptest::prelude::*;
use std::sync::Arc;

fn delete_range(driven: &mut Driven, from: &str, to: &str) {
    let to = (!to.is_empty()).then_some(to.as_bytes());
    driven.write(|batch| _ = batch.delete_range(Keyspace::User, from.as_bytes(), to).unwrap());
}

fn fill(driven: &mut Driven, numbers: std::ops::Range<u32>, value: &[u8]) {
    driven.write(|batch| {
        for n in numbers {
            batch.put(Keyspace::User, format!("key{n:05}").as_bytes(), value).unwrap();
        }
    });
}

/// All keys, forwards; backwards they must be the same.
fn keys(driven: &Driven, view: &ReadView) -> Vec<String> {
    let tables = &driven.replica.tables;
    let mut iterator = view.scan(tables, &[], None);
    let (mut keys, mut back) = (Vec::new(), Vec::new());
    while let Some((key, _)) = step(&mut iterator, Move::Next) {
        keys.push(String::from_utf8(key[1..].to_vec()).unwrap());
    }
    while let Some((key, _)) = step(&mut iterator, Move::Prev) {
        back.push(String::from_utf8(key[1..].to_vec()).unwrap());
    }
    back.reverse();
    assert_eq!(keys, back);
    for name in &keys {
        assert!(block_on(view.get(tables, &key(name.as_bytes()))).unwrap().is_some(), "{name}");
    }
    keys
}

fn now(driven: &Driven) -> Vec<String> {
    keys(driven, &driven.replica.tree.view())
}

fn files(driven: &Driven) -> Vec<(u8, FileMeta)> {
    let version = driven.replica.tree.version();
    version.files().map(|(level, meta)| (level, (**meta).clone())).collect()
}

/// Eight hundred keys over several levels.
fn deep() -> Driven {
    let mut driven = Driven::new(small_config());
    for round in 0..8 {
        fill(&mut driven, round * 100..round * 100 + 100, &[7; 200]);
        driven.flush();
        driven.settle();
    }
    let deep = files(&driven).iter().filter(|(level, _)| *level >= 2).count();
    assert!(deep >= 3, "{deep} files lie deep enough for these tests");
    driven
}

/// Settles while nothing of the files can be read that lie within these range deletes.
fn settle_unread(driven: &mut Driven, ranges: &[(&str, &str)]) -> Vec<JobKind> {
    let held = driven.replica.files.clone();
    let is_within = |meta: &FileMeta| {
        let covers = |(from, to): &(&str, &str)| {
            meta.smallest >= key(from.as_bytes()) && meta.largest < key(to.as_bytes())
        };
        ranges.iter().any(covers)
    };
    let covered = files(driven).into_iter().filter(|(_, meta)| is_within(meta));
    let covered: Vec<_> = covered.map(|(_, meta)| (meta.id, held.bytes(meta.id))).collect();
    assert!(covered.len() >= ranges.len(), "{}", covered.len());
    covered.iter().for_each(|(id, _)| held.remove(*id));
    let kinds = driven.settle();
    covered.into_iter().for_each(|(id, bytes)| held.insert(id, bytes));
    kinds
}

/// docs/faults.md: P16
#[test]
fn what_a_range_delete_covers_goes_unread_and_a_file_of_nothing_else_sinks_and_vanishes() {
    let mut driven = deep();
    delete_range(&mut driven, "key00100", "key00700");
    let expected: Vec<_> = (0..100).chain(700..800).map(|n| format!("key{n:05}")).collect();
    assert_eq!(now(&driven), expected);
    driven.flush();
    let slim = files(&driven).into_iter().find(|(_, meta)| meta.ranges.is_some());
    let (level, slim) = slim.expect("the flush wrote the range delete");
    assert_eq!((level, slim.entries, slim.deletes), (0, 0, 0));
    assert_eq!((slim.smallest, slim.largest), (key(b"key00100"), key(b"key00700")));
    assert_eq!(now(&driven), expected);
    let kinds = settle_unread(&mut driven, &[("key00100", "key00700")]);
    assert_eq!(kinds[0], JobKind::Drop);
    assert_eq!(now(&driven), expected);
    let entries: u64 = files(&driven).iter().map(|(_, meta)| meta.entries).sum();
    assert!(entries < 350, "{entries}: all but what shares a file with what is left");
    // The rest too: nothing is left that it could hide.
    delete_range(&mut driven, "", "");
    driven.flush();
    driven.settle();
    assert_eq!(files(&driven), []);
}

/// docs/faults.md: P16
#[test]
fn more_range_deletes_than_a_description_tells_of_leave_what_they_cover_unread_too() {
    let mut driven = deep();
    let ends: Vec<_> =
        (0..7).map(|n| (format!("key{n:03}50"), format!("key{:03}49", n + 1))).collect();
    let ranges: Vec<_> = ends.iter().map(|(from, to)| (&from[..], &to[..])).collect();
    ranges.iter().for_each(|(from, to)| delete_range(&mut driven, from, to));
    driven.flush();
    let described = files(&driven).into_iter().find_map(|(_, meta)| meta.ranges).unwrap();
    assert_eq!((described.fragments, described.widest.len()), (7, 4));
    let is_left = |n: &u32| *n < 50 || *n >= 749 || n % 100 == 49;
    let expected: Vec<_> = (0..800).filter(is_left).map(|n| format!("key{n:05}")).collect();
    assert_eq!(now(&driven), expected);
    settle_unread(&mut driven, &ranges);
    assert_eq!(now(&driven), expected);
}

/// docs/faults.md: P16
#[test]
fn what_a_view_sees_it_sees_to_its_end_though_nothing_of_it_is_in_the_tree() {
    let mut driven = Driven::new(eager());
    fill(&mut driven, 0..60, &[7; 100]);
    driven.flush();
    driven.settle();
    let view = driven.replica.tree.view();
    delete_range(&mut driven, "key00010", "key00050");
    fill(&mut driven, 20..21, b"new");
    let later = driven.replica.tree.view();
    delete_range(&mut driven, "key00000", "");
    driven.flush();
    assert!(files(&driven).iter().any(|(_, meta)| meta.ranges.is_some()), "above what it hides");
    driven.settle();
    driven.replica.collect();
    assert_eq!(keys(&driven, &view).len(), 60);
    let seen: Vec<_> = (0..10).chain([20]).chain(50..60).map(|n| format!("key{n:05}")).collect();
    assert_eq!(keys(&driven, &later), seen);
    assert_eq!(now(&driven), Vec::<String>::new());
    drop(later);
    driven.replica.tree.compact_range(&[], None);
    driven.settle();
    driven.replica.collect();
    assert_eq!(keys(&driven, &view).len(), 60);
    assert_eq!(now(&driven), Vec::<String>::new());
    assert_eq!(files(&driven), [], "nothing is left of anything");
    drop(view);
    driven.replica.collect();
    assert_eq!(driven.replica.files.ids(), [], "nor kept for anybody");
}

/// docs/faults.md: P16
#[test]
fn a_range_delete_in_l0_hides_what_is_older_there_and_not_what_is_newer() {
    let mut driven = Driven::new(TreeConfig { l0_trigger: 9, l0_slowdown: 10, ..small_config() });
    let padding = vec![1; 3000];
    for (name, is_range) in [("a", false), ("m", false), ("", true), ("m", false), ("b", false)] {
        // Long enough for the file not to sink by itself.
        driven.put("padding", &padding);
        match is_range {
            true => delete_range(&mut driven, "a", "n"),
            false => driven.put(name, name.as_bytes()),
        }
        driven.flush();
    }
    assert_eq!(files(&driven).len(), 5);
    assert_eq!(now(&driven), ["b", "m", "padding"]);
    driven.replica.tree.compact_range(&[], None);
    driven.settle();
    assert_eq!(now(&driven), ["b", "m", "padding"]);
}

/// docs/faults.md: P16
#[test]
fn counters_and_expiring_keys_begin_anew_behind_a_range_delete() {
    let mut driven = Driven::new(eager());
    let add = |driven: &mut Driven, delta| {
        let operand = Operand::add(delta, driven.replica.tree.now_ms());
        driven.write(|batch| _ = batch.merge(Keyspace::User, b"counter", operand).unwrap());
    };
    let expiring = |driven: &mut Driven, at_ms| {
        driven.write(|batch| {
            batch.put_expiring(Keyspace::User, b"expiring", b"7", at_ms).unwrap();
        });
    };
    // Everything in memory, then each step in a file of its own, then in two levels.
    for flushes in [0, 1, 2] {
        let step = |driven: &mut Driven| {
            if flushes > 0 {
                driven.flush();
            }
            if flushes > 1 {
                driven.settle();
            }
        };
        driven.put("counter", b"40");
        expiring(&mut driven, 1_000);
        step(&mut driven);
        add(&mut driven, 2);
        assert_eq!(driven.get("counter"), Some(b"42".to_vec()));
        step(&mut driven);
        let before = driven.replica.tree.view();
        delete_range(&mut driven, "counter", "z");
        assert_eq!(now(&driven), Vec::<String>::new());
        step(&mut driven);
        add(&mut driven, 5);
        step(&mut driven);
        add(&mut driven, 1);
        assert_eq!(driven.get("counter"), Some(b"6".to_vec()), "{flushes} flushes");
        assert_eq!(now(&driven), ["counter"]);
        let seen = block_on(before.get(&driven.replica.tables, &key(b"counter"))).unwrap();
        assert_eq!(seen.as_deref(), Some(&b"42"[..]));
        assert_eq!(keys(&driven, &before), ["counter", "expiring"]);
        driven.flush();
        driven.replica.tree.compact_range(&[], None);
        driven.settle();
        assert_eq!(driven.get("counter"), Some(b"6".to_vec()), "{flushes} flushes, compacted");
    }
}

/// docs/faults.md: P16
#[test]
fn a_memtable_is_full_of_range_deletes_long_before_it_is_full_of_bytes() {
    let mut driven = Driven::new(TreeConfig { memtable_len: 64 << 20, ..small_config() });
    for n in 0..MEMTABLE_RANGES_MAX {
        assert!(!driven.replica.tree.needs_seal(), "{n}");
        delete_range(&mut driven, &format!("a{n:04}"), &format!("z{n:04}"));
    }
    assert!(driven.replica.tree.needs_seal());
    driven.put("b", b"1");
    assert_eq!(now(&driven), ["b"]);
    driven.flush();
    assert_eq!(now(&driven), ["b"]);
    let (_, meta) = files(&driven).remove(0);
    assert_eq!((meta.entries, meta.ranges), (1, None), "alone in the tree it keeps none");
}

/// docs/faults.md: P16
#[test]
fn an_iterator_steps_over_what_was_deleted_deeper_down() {
    let mut driven = Driven::new(TreeConfig {
        memtable_len: 1 << 20,
        sst_len: 1 << 20,
        level1_len: 4 << 20,
        ..small_config()
    });
    fill(&mut driven, 0..20_000, &[7; 20]);
    driven.flush();
    delete_range(&mut driven, "key00010", "key19990");
    fill(&mut driven, 10_000..10_001, b"new");
    let view = driven.replica.tree.view();
    let cache = || driven.replica.tables.cache.blocks.stats();
    let before = cache();
    let expected: Vec<_> =
        (0..10).chain([10_000]).chain(19_990..20_000).map(|n| format!("key{n:05}")).collect();
    assert_eq!(keys(&driven, &view), expected);
    let blocks = cache().hits + cache().misses - before.hits - before.misses;
    assert!(blocks < 60, "{blocks} of about 200 blocks were looked at, there and back");
}

#[test]
fn an_iterator_does_not_step_over_what_was_written_again_beside_its_range_delete() {
    let mut driven = Driven::new(TreeConfig { memtable_len: 1 << 20, ..small_config() });
    // Below the range delete, which would not be written above nothing.
    fill(&mut driven, 0..200, b"older");
    driven.flush();
    fill(&mut driven, 0..200, b"old");
    let view = driven.replica.tree.view();
    delete_range(&mut driven, "key00010", "key00190");
    fill(&mut driven, 100..101, b"new");
    let expected: Vec<_> =
        (0..10).chain([100]).chain(190..200).map(|n| format!("key{n:05}")).collect();
    assert_eq!(now(&driven), expected, "in one MemTable");
    let edit = driven.flush();
    let [(_, meta)] = &edit.added[..] else { panic!("{} files", edit.added.len()) };
    assert!(meta.ranges.is_some() && meta.entries == expected.len() as u64, "{meta:?}");
    assert_eq!(now(&driven), expected, "in files of one flush");
    driven.settle();
    assert_eq!(now(&driven), expected, "in a level");
    assert_eq!(keys(&driven, &view).len(), 200);
}

/// Points and ranges by number; long keys share their beginning beyond what a bound holds.
fn name(n: u16, is_long: bool) -> Vec<u8> {
    let mut name = if is_long { vec![b'l'; 250 + usize::from(n % 7)] } else { Vec::new() };
    name.extend_from_slice(format!("{n:03}").as_bytes());
    if n.is_multiple_of(5) {
        name.push(0);
    }
    name
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    /// docs/faults.md: P16
    #[test]
    fn files_are_cut_so_that_each_has_its_part_of_each_range_delete_and_none_its_neighbours(
        ranges in prop::collection::vec((0..300u16, 1..300u16), 0..40),
        tiny in prop::collection::vec((0..300u16, 1..4u16), 0..300),
        points in prop::collection::btree_set(0..300u16, 0..80),
        cuts in prop::collection::btree_set(0..300u16, 0..6),
        value_len in 0..2000usize,
        is_long: bool,
    ) {
        let table = MemTable::new(MemTableId(1));
        let mut sequence = 0;
        for n in &points {
            sequence += 1;
            let value = vec![7; value_len];
            table.insert(&key(&name(*n, is_long)), SequenceNumber(sequence), EntryKind::Put, &value);
        }
        let mut written = Vec::new();
        for (from, len) in ranges.iter().chain(&tiny) {
            sequence += 1;
            let (start, end) = (key(&name(*from, is_long)), key(&name(from + len, is_long)));
            if start < end {
                let (start, end) = (start.into(), end.into());
                written.push(RangeDelete { start, end, sequence: SequenceNumber(sequence) });
            }
        }
        // Some points are newer than all of them.
        for n in points.iter().step_by(3) {
            sequence += 1;
            table.insert(&key(&name(*n, is_long)), SequenceNumber(sequence), EntryKind::Put, b"new");
        }
        let table = if written.is_empty() { table } else { table.with_range_deletes(written.clone()) };
        let mut cuts: Vec<_> = cuts.iter().map(|n| key(&name(*n, is_long))).collect();
        cuts.sort();
        let recipe = Recipe {
            kind: JobKind::Flush,
            term: TERM,
            memtables: vec![MemTableId(1)],
            inputs: Vec::new(),
            output_level: 0,
            output_first: FileId::first_number(TERM),
            output_count: 10_000,
            output_len: 4096,
            cuts,
            bottommost: false,
            now_ms: 0,
            floor: SequenceNumber(0),
            sst: SstOptions::default(),
            merging: None,
            parted_from: 0,
            large_from: 0,
            emptied: Vec::new(),
            kept: Vec::new(),
            kept_from: 0,
        };
        let (memtables, files, emptied) = (vec![Arc::new(table)], Vec::new(), Vec::new());
        let (places, layout) = (Arc::default(), None);
        let inputs = JobInputs { recipe, memtables, files, emptied, places, layout };
        let files = Files::default();
        let output = block_on(run_job(&inputs, GROUP, &files, &mut files.clone())).unwrap();
        let metas: Vec<_> = output.added.iter().map(|(_, meta)| meta).collect();
        for pair in metas.windows(2) {
            prop_assert!(pair[0].largest < pair[1].smallest, "{:?}", (&pair[0].largest, &pair[1].smallest));
        }
        let slots: u64 = metas.iter().map(|meta| meta.len.div_ceil(2 << 20)).sum();
        prop_assert!(slots <= inputs.slots_max(), "{} files, {} slots", metas.len(), inputs.slots_max());
        let readers: Vec<_> = metas
            .iter()
            .map(|meta| block_on(SstReader::open(&files, GROUP, meta)).unwrap())
            .collect();
        let whole = Fragments::of(&written);
        for n in 0..620u16 {
            for tail in [&b""[..], b"\0", b"\xff"] {
                let key = key(&[&name(n, is_long)[..], tail].concat());
                let found: Vec<_> =
                    readers.iter().filter_map(|r| r.ranges().newest(&key, SequenceNumber::MAX)).collect();
                prop_assert!(found.len() <= 1, "one file has it");
                prop_assert_eq!(found.first().copied(), whole.newest(&key, SequenceNumber::MAX));
                let place = metas.iter().zip(&readers).filter(|(meta, _)| meta.may_hold(&key));
                let (mut covers, mut holders) = (false, 0);
                for (_, reader) in place {
                    holders += 1;
                    covers |= reader.ranges().newest(&key, SequenceNumber::MAX).is_some();
                }
                prop_assert!(holders <= 1);
                prop_assert_eq!(covers, whole.newest(&key, SequenceNumber::MAX).is_some(), "within its bounds");
            }
        }
    }
}

/// docs/faults.md: P16
#[test]
fn a_range_delete_over_everything_is_cut_where_the_level_below_says_and_by_length() {
    let mut driven = Driven::new(eager());
    fill(&mut driven, 0..400, &[7; 200]);
    driven.flush();
    driven.settle();
    delete_range(&mut driven, "a", "z");
    driven.seal();
    let mut job = driven.replica.tree.next_flush(&context()).unwrap();
    let below = files(&driven).into_iter().map(|(_, meta)| meta.smallest);
    job.recipe.cuts = below.collect();
    job.recipe.cuts.sort();
    assert!(job.recipe.cuts.len() > 3, "{}", job.recipe.cuts.len());
    let edit = driven.edit(&job);
    driven.replica.tree.apply_edit(&edit).unwrap();
    let starts: Vec<_> = edit.added.iter().map(|(_, meta)| &meta.smallest).collect();
    assert_eq!(starts.len(), job.recipe.cuts.len() + 1, "one before the first cut");
    assert!(edit.added.iter().all(|(_, meta)| meta.ranges.is_some()), "each has its part");
    assert!(now(&driven).is_empty());
    driven.settle();
    assert_eq!(files(&driven), [], "all of it goes with what it covers");
    // A thousand small ones fill several files without an entry.
    let mut driven = Driven::new(TreeConfig { memtable_len: 1 << 20, ..small_config() });
    driven.put("k", b"v");
    driven.put("l", b"v");
    driven.flush();
    for n in 0..900 {
        delete_range(&mut driven, &format!("k{n:04}a"), &format!("k{n:04}b"));
    }
    driven.seal();
    let mut job = driven.replica.tree.next_flush(&context()).unwrap();
    (job.recipe.output_len, job.recipe.output_count) = (small_config().sst_len, 100);
    let edit = driven.edit(&job);
    driven.replica.tree.apply_edit(&edit).unwrap();
    let lens: Vec<_> = edit.added.iter().map(|(_, meta)| meta.len).collect();
    assert!(lens.len() >= 3 && lens.iter().all(|len| *len <= 8 << 10), "{lens:?}");
    assert!(edit.added.iter().all(|(_, meta)| meta.entries == 0));
    assert_eq!(now(&driven), ["k", "l"]);
}

/// docs/faults.md: P16
#[test]
fn a_fork_has_the_range_deletes_that_its_view_sees_and_no_later_ones() {
    let mut driven = Driven::new(small_config());
    fill(&mut driven, 0..10, b"v");
    driven.flush();
    delete_range(&mut driven, "key00003", "key00005");
    let view = driven.replica.tree.lasting_view();
    delete_range(&mut driven, "key00007", "");
    let mut fork = Tree::fork(&view, small_config(), GROUP).unwrap();
    let expected = ["key00000", "key00001", "key00002", "key00005", "key00006", "key00007"];
    let mut number = 0;
    let files = driven.replica.files.clone();
    loop {
        let found = scan(&fork.view(), &driven.replica.tables, &[], None);
        let found: Vec<_> =
            found.iter().map(|(key, _)| String::from_utf8_lossy(&key[1..])).collect();
        assert_eq!(found[..6], expected);
        assert_eq!(found.len(), 8);
        let Some(job) = fork.next_job(&context()) else { break };
        let output = block_on(run_job(&job, GROUP, &files, &mut files.clone())).unwrap();
        number += 1;
        let edit = fork.finish_job(output, number).unwrap();
        fork.apply_edit(&edit).unwrap();
    }
    assert!(number > 0);
    assert!(fork.version().files().all(|(_, meta)| meta.id != FileId::sst(0)));
}

//! Iterators read the values of pairs ahead: several at once, in order, within bounds of memory,
//! and nobody sees a difference.

use crate::each::mixed;
use crate::support::*;
use crate::values::{Store, config, large};
use gabion_base::{ErrorKind, FileId, FileKind, Result};
use gabion_engine::*;
use gabion_media::Bytes;
use std::cell::RefCell;
use std::rc::Rc;

/// A source that notes the reads of values which are under way at once.
#[derive(Clone)]
struct Waves {
    files: Files,
    /// The lengths of each wave.
    waves: Rc<RefCell<Vec<Vec<usize>>>>,
}

impl Waves {
    fn note(&self, ranges: &[FileRange]) {
        let of_values = ranges.iter().filter(|range| range.file.kind == FileKind::Values);
        let lens: Vec<_> = of_values.map(|range| range.len).collect();
        if !lens.is_empty() {
            self.waves.borrow_mut().push(lens);
        }
    }
}

impl FileSource for Waves {
    async fn read(&self, file: FileId, offset: u64, len: usize) -> Result<Bytes> {
        self.note(&[FileRange { file, offset, len }]);
        self.files.read(file, offset, len).await
    }

    async fn read_many(&self, ranges: &[FileRange]) -> Vec<Result<Bytes>> {
        self.note(ranges);
        self.files.read_many(ranges).await
    }

    fn note_damage(&self, file: FileId, error: &gabion_base::Error) {
        self.files.note_damage(file, error);
    }
}

fn waves(files: &Files, cache_len: usize) -> Tables<Waves> {
    let source = Waves { files: files.clone(), waves: Rc::default() };
    Tables { source, cache: Rc::new(LocalCache::new(cache_len)), group: GROUP }
}

fn name(n: u64) -> String {
    format!("k{n:03}")
}

/// A store with so many values in a file.
fn filled(count: u64, value: impl Fn(u64) -> Vec<u8>) -> Store {
    let len = 4 << 20;
    let config = TreeConfig { memtable_len: 4 << 10, sst_len: len, level1_len: len, ..config() };
    let mut store = Store::new(config);
    for n in 0..count {
        store.put(&name(n), &value(n));
    }
    store.flush();
    assert!(store.stats().files > 0, "values lie apart");
    store
}

#[test]
fn the_further_an_iterator_goes_the_more_values_it_reads_at_once() {
    let store = filled(300, |n| large(n).repeat(20));
    let view = store.replica.tree.view();
    for is_backwards in [false, true] {
        let tables = waves(&store.replica.files, 0);
        let mut iterator = view.scan(&tables, &[], None);
        let mut places: Vec<u64> = (0..300).collect();
        let (first, step) = match is_backwards {
            false => (Move::First, Move::Next),
            true => (Move::Last, Move::Prev),
        };
        if is_backwards {
            places.reverse();
        }
        let mut to = first;
        for (passed, n) in places.into_iter().enumerate() {
            assert!(block_on(iterator.go(to)).unwrap());
            assert_eq!(iterator.key().unwrap(), key(name(n).as_bytes()));
            assert_eq!(iterator.value().unwrap(), large(n).repeat(20));
            let waves = tables.source.waves.borrow().len();
            let allowed = [1, 2, 2, 3, 3, 3, 3].get(passed).copied().unwrap_or(10);
            assert!(waves <= allowed, "{waves} waves for {passed} pairs and one");
            to = step;
        }
        assert!(!block_on(iterator.go(step)).unwrap());
    }
    // A caller that says how many it wants waits once.
    let tables = waves(&store.replica.files, 0);
    let mut iterator = view.scan(&tables, &[], None).expecting(10);
    (0..10).for_each(|_| assert!(block_on(iterator.go(Move::Next)).unwrap()));
    assert_eq!(tables.source.waves.borrow().len(), 1);
}

/// The values that an iterator holds ahead stay within its bound, however long they are, but for
/// one that is longer.
#[test]
fn values_ahead_take_no_more_memory_than_they_may() {
    let lens = |n: u64| match n % 40 {
        7 => 1_500_000,
        11..20 => 300_000,
        _ => 40_000,
    };
    let store = filled(80, |n| vec![n as u8; lens(n)]);
    let view = store.replica.tree.view();
    let tables = waves(&store.replica.files, 0);
    let mut iterator = view.scan(&tables, &[], None).expecting(64);
    let mut count = 0;
    while block_on(iterator.go(Move::Next)).unwrap() {
        assert_eq!(iterator.value().unwrap(), vec![count as u8; lens(count)]);
        count += 1;
    }
    assert_eq!(count, 80);
    let waves = tables.source.waves.borrow();
    for wave in &*waves {
        let (len, longest) = (wave.iter().sum::<usize>(), wave.iter().max().unwrap());
        let gaps = 8 * wave.len();
        assert!(wave.len() <= 64 && (wave.len() == 1 || len <= (1 << 20) + 64 * gaps), "{wave:?}");
        assert!(*longest <= 1_500_000);
    }
    assert!(waves.iter().any(|wave| wave.len() > 2), "{waves:?}");
}

/// Pairs in place that an iterator meets on its look for further values are held too, unpacked.
#[test]
fn packed_values_in_place_count_as_memory_of_what_lies_ahead() {
    let long = |n: u64| vec![n as u8; 300_000];
    for (count, waves_wanted) in [(2, 1), (8, 2), (20, 2)] {
        let mut store = filled(1, |n| large(n).repeat(20));
        store.put("k900", &large(900).repeat(20));
        store.flush();
        let mut packer = Packer::of(Compression::Lz4).unwrap();
        for n in 1..=count {
            let (value, name) = (long(n), name(n));
            let packed = packer.pack(&value).unwrap();
            let put = |batch: &mut BatchBuilder| {
                batch.put_packed(Keyspace::User, name.as_bytes(), packed, None).map(drop).unwrap();
            };
            store.write(put);
        }
        let view = store.replica.tree.view();
        let tables = waves(&store.replica.files, 0);
        let mut iterator = view.scan(&tables, &[], None).expecting(64);
        assert!(block_on(iterator.go(Move::Next)).unwrap());
        for n in 1..=count {
            assert!(block_on(iterator.go(Move::Next)).unwrap());
            assert_eq!(iterator.value().unwrap(), long(n));
        }
        assert!(block_on(iterator.go(Move::Next)).unwrap());
        assert_eq!(iterator.value().unwrap(), large(900).repeat(20));
        let waves = tables.source.waves.borrow();
        let reads: usize = waves.iter().map(Vec::len).sum();
        assert_eq!((waves.len(), reads), (waves_wanted, 2), "{count} pairs between them");
    }
}

#[test]
fn iterators_that_turn_round_see_what_those_see_that_read_one_value_at_a_time() {
    for seed in [1, 3, 5, 7, 9] {
        let driven = mixed(seed);
        let mut random = Random::new(seed);
        let view = driven.replica.tree.view();
        let all = scan(&view, &driven.replica.tables, &[], None);
        assert!(driven.replica.tree.version().values_stats().files > 0, "values lie apart");
        let files = driven.replica.files.yielding(seed);
        for cache_len in [0, 3_000, 1 << 20] {
            let cache = Rc::new(LocalCache::new(cache_len));
            let tables = Tables { cache, ..tables(&files) };
            let pairs = 1 + random.below(100) as usize;
            let mut iterator = view.scan(&tables, &[], None).expecting(pairs);
            let mut steps = Steps::new(all.clone());
            let mut backwards = false;
            for _ in 0..400 {
                let sought = key(format!("{:04}", random.below(620)).as_bytes());
                let to = any_move(&mut random, &mut backwards, &sought);
                let found = step(&mut iterator, to);
                let found = found.map(|(key, value)| (key.to_vec(), value.to_vec()));
                assert_eq!(found, steps.go(to), "seed {seed}: {to:?}");
            }
        }
    }
}

/// The limit of entries that others set for their turn holds, and where an iterator stops another
/// goes on, with no pair lost.
#[test]
fn an_iterator_with_a_limit_gives_what_it_read_ahead_before_it_stops() {
    for seed in [1, 3, 5] {
        let driven = mixed(seed);
        let view = driven.replica.tree.view();
        let all = scan(&view, &driven.replica.tables, &[], None);
        for (limit, is_backwards) in [(1, false), (7, false), (50, true), (300, false), (3, true)] {
            let (mut found, mut from, mut to) = (Vec::new(), Vec::new(), None);
            loop {
                let tables = waves(&driven.replica.files, 0);
                let mut iterator =
                    view.scan(&tables, &from, to.as_deref()).limited(limit).expecting(64);
                let first = if is_backwards { Move::Last } else { Move::First };
                let is_cut = block_on(iterator.each(first, |pair| {
                    found.push((pair.key().to_vec(), pair.value_bytes().to_vec()));
                    true
                }));
                assert!(!is_cut.unwrap());
                let Some(stopped) = iterator.stopped_at() else { break };
                match is_backwards {
                    true => to = Some(stopped.to_vec()),
                    false => from = [stopped, &[0]].concat(),
                }
            }
            if is_backwards {
                found.reverse();
            }
            assert!(found == all, "seed {seed}, limit {limit}: {} of {}", found.len(), all.len());
        }
    }
}

#[test]
fn entries_that_do_not_show_are_passed_ahead_of_nobody_for_ever() {
    let mut store = filled(4, large);
    for n in 100..20_000 {
        store.write(|batch| batch.delete(Keyspace::User, format!("k0z{n:05}").as_bytes()).unwrap());
    }
    store.put("z", b"small");
    let view = store.replica.tree.view();
    let tables = waves(&store.replica.files, 0);
    let mut iterator = view.scan(&tables, &[], None).expecting(64).limited(2_000);
    (0..4).for_each(|_| assert!(block_on(iterator.go(Move::Next)).unwrap()));
    assert_eq!(iterator.value().unwrap(), large(3));
    assert!(!block_on(iterator.go(Move::Next)).unwrap());
    assert!(iterator.stopped_at().is_some(), "the limit is for the way on, too");
}

/// docs/faults.md: E5
#[test]
fn a_damaged_value_ahead_is_told_when_its_pair_comes_and_not_before() {
    let store = filled(40, large);
    let [file] = store.values_files()[..] else { panic!("one values file") };
    let mut bytes = store.replica.files.bytes(file).to_vec();
    let at = bytes.windows(9).position(|part| part == b"value 23 ").unwrap();
    bytes[at] ^= 1;
    store.replica.files.insert(file, bytes.into());
    let view = store.replica.tree.view();
    let tables = waves(&store.replica.files, 0);
    let mut iterator = view.scan(&tables, &[], None).expecting(64);
    for n in 0..23 {
        assert!(block_on(iterator.go(Move::Next)).unwrap());
        assert_eq!(iterator.value().unwrap(), large(n));
    }
    let error = block_on(iterator.go(Move::Next)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corruption);
    assert!(error.message().starts_with(&format!("{file} at offset {at}: ")), "{error}");
    assert_eq!(store.replica.files.take_damaged(), [file]);
    assert!(block_on(iterator.go(Move::Next)).is_err(), "it goes no further");
}

/// Values and blocks share one budget, whichever way values come: one by one, ahead, or many keys
/// at once. Values that are looked up again come from memory.
#[test]
fn values_are_cached_within_the_budget_of_blocks() {
    let budget = 300_000;
    let store = filled(200, |n| large(n).repeat(if n.is_multiple_of(20) { 500 } else { 20 }));
    let view = store.replica.tree.view();
    let tables = waves(&store.replica.files, budget);
    let within = || {
        let stats = tables.cache.blocks.stats();
        assert!(stats.bytes <= budget, "{stats:?}");
        stats
    };
    let mut iterator = view.scan(&tables, &[], None);
    while block_on(iterator.go(Move::Next)).unwrap() {
        within();
    }
    let names: Vec<_> = (0..200).map(|n| key(name(n).as_bytes())).collect();
    for name in &names {
        block_on(view.get(&tables, name)).unwrap().unwrap();
        within();
    }
    block_on(view.look_up_many(&tables, &names, |_, found| found.map(|_| _ = within()))).unwrap();
    assert!(within().evictions > 0, "there are more than the budget has room for");
    for _ in 0..3 {
        block_on(view.get(&tables, &names[7])).unwrap().unwrap();
    }
    let before = tables.source.waves.borrow().len();
    block_on(view.get(&tables, &names[7])).unwrap().unwrap();
    assert_eq!(tables.source.waves.borrow().len(), before);
}

#[test]
fn a_view_that_is_ended_ends_its_iterators_with_what_they_read_ahead() {
    let mut store = filled(60, large);
    let view = store.replica.tree.view();
    let tables = waves(&store.replica.files, 0);
    let mut iterator = view.scan(&tables, &[], None).expecting(64);
    assert!(block_on(iterator.go(Move::Next)).unwrap());
    drop(view);
    for round in 1..4 {
        (0..60).for_each(|n| store.put(&name(n), &large(100 * round + n)));
        store.flush();
        store.compact();
    }
    let budget = PinBudget { age_ms_max: 1_000, states_max: 64 };
    store.replica.tree.limit_readers(0, budget);
    store.replica.tree.limit_readers(5_000, budget);
    let error = block_on(iterator.go(Move::Next)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::SnapshotTooOld);
    assert!(iterator.key().is_none() && iterator.value().is_none());
}

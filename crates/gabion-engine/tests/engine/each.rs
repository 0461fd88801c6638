//! Pairs that are lent one after the other: the same, and in the same order, as those that are
//! asked for one by one.

use crate::support::*;
use crate::tree_rules::{Driven, eager};
use gabion_engine::*;
use std::rc::Rc;

type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

fn name(n: u64) -> String {
    format!("{n:04}")
}

/// A tree with values, counters, deleted keys and deleted ranges, in memory and in files of several
/// levels. Values of odd seeds lie apart from their keys, if they are long.
pub(crate) fn mixed(seed: u64) -> Driven {
    let mut random = Random::new(seed);
    let large_values = if seed.is_multiple_of(2) { 0 } else { 100 };
    let mut driven = Driven::new(TreeConfig { large_values, ..eager() });
    for round in 0..30 {
        for _ in 0..40 {
            let n = name(random.below(600));
            match random.below(8) {
                0 | 1 => {
                    let operand = Operand::add(1, driven.replica.tree.now_ms());
                    driven.write(|batch| {
                        batch.put(Keyspace::User, n.as_bytes(), b"7").unwrap();
                        batch.merge(Keyspace::User, n.as_bytes(), operand).unwrap();
                    });
                }
                2 => driven.write(|batch| batch.delete(Keyspace::User, n.as_bytes()).unwrap()),
                _ => driven.put(&n, &vec![round; random.below(300) as usize]),
            }
        }
        let (from, to) = (random.below(600), random.below(20));
        driven.write(|batch| {
            let (from, to) = (name(from), name(from + to));
            if from < to {
                batch.delete_range(Keyspace::User, from.as_bytes(), Some(to.as_bytes())).unwrap();
            }
        });
        // What came last is in memory alone.
        if round < 28 {
            driven.flush();
            if random.one_in(2) {
                driven.settle();
            }
        }
    }
    driven
}

/// Pairs as `each` lends them from a move on, at most so many, and whether it was cut short.
fn lent(iterator: &mut ReadIterator<Files>, to: Move<'_>, most: usize) -> (Pairs, bool) {
    let mut pairs = Pairs::new();
    let is_cut = block_on(iterator.each(to, |pair| {
        pairs.push((pair.key().to_vec(), pair.value_bytes().to_vec()));
        pairs.len() < most
    }));
    (pairs, is_cut.unwrap())
}

/// The same by single steps from where an iterator is.
fn one_by_one(iterator: &mut ReadIterator<Files>, to: Move<'_>) -> Option<(Vec<u8>, Vec<u8>)> {
    step(iterator, to).map(|(key, value)| (key.to_vec(), value.to_vec()))
}

#[test]
fn all_pairs_are_lent_both_ways_whether_their_blocks_are_in_memory_or_not() {
    for seed in [1, 2] {
        lend_all(&mixed(seed));
    }
}

fn lend_all(driven: &Driven) {
    let view = driven.replica.tree.view();
    let all = scan(&view, &driven.replica.tables, &[], None);
    assert!(all.len() > 200, "{}", all.len());
    assert!(all.iter().any(|(_, value)| value == b"8"), "a counter");
    let files = driven.replica.files.yielding(2);
    let cold = || Tables { cache: Rc::new(LocalCache::new(0)), ..tables(&files) };
    let backwards: Pairs = all.iter().rev().cloned().collect();
    for tables in [driven.replica.tables.clone(), cold()] {
        for (to, expected) in [(Move::First, &all), (Move::Last, &backwards)] {
            let mut iterator = view.scan(&tables, &[], None);
            assert_eq!(lent(&mut iterator, to, usize::MAX), (expected.clone(), false));
            let after = if to == Move::First { Move::Next } else { Move::Prev };
            assert_eq!(lent(&mut iterator, after, 9), (Vec::new(), false));
        }
        let (from, to) = (key(b"0100"), key(b"0300"));
        let within: Pairs =
            all.iter().filter(|(name, _)| (&from..&to).contains(&name)).cloned().collect();
        let mut iterator = view.scan(&tables, &from, Some(&to));
        assert_eq!(lent(&mut iterator, Move::First, usize::MAX), (within, false));
    }
}

#[test]
fn a_walk_that_was_cut_short_goes_on_from_the_pair_at_which_it_was() {
    for seed in 0..8 {
        let driven = mixed(seed);
        let mut random = Random::new(seed);
        let view = driven.replica.tree.view();
        let all = scan(&view, &driven.replica.tables, &[], None);
        let files = driven.replica.files.yielding(seed);
        let cold = Tables { cache: Rc::new(LocalCache::new(20_000)), ..tables(&files) };
        let (mut iterator, mut steps) = (view.scan(&cold, &[], None), Steps::new(all));
        let mut backwards = false;
        for _ in 0..150 {
            let sought = key(name(random.below(620)).as_bytes());
            let to = any_move(&mut random, &mut backwards, &sought);
            if random.one_in(3) {
                assert_eq!(one_by_one(&mut iterator, to), steps.go(to), "seed {seed}: {to:?}");
                continue;
            }
            let most = 1 + random.below(30) as usize;
            let (pairs, is_cut) = lent(&mut iterator, to, most);
            let step = match to {
                Move::First | Move::Next | Move::Seek(_) => Move::Next,
                Move::Last | Move::Prev | Move::SeekForPrev(_) => Move::Prev,
            };
            let mut expected = Pairs::new();
            let mut next = steps.go(to);
            while let Some(pair) = next.take() {
                expected.push(pair);
                next = if expected.len() < most { steps.go(step) } else { None };
            }
            assert_eq!(pairs, expected, "seed {seed}: {to:?}, {most} at most");
            assert_eq!(is_cut, pairs.len() == most, "seed {seed}: {to:?}");
        }
    }
}

#[test]
fn a_pair_is_lent_with_its_expiry_both_ways() {
    let mut driven = Driven::new(eager());
    let expiry = |n: u64| n.is_multiple_of(3).then_some(1_000_000 + n);
    for n in 0..30 {
        driven.write(|batch| {
            let (name, user) = (name(n), Keyspace::User);
            match expiry(n) {
                Some(at) => batch.put_expiring(user, name.as_bytes(), b"7", at).map(drop).unwrap(),
                None => batch.put(user, name.as_bytes(), b"7").map(drop).unwrap(),
            }
        });
        // What came last is in memory alone.
        if n == 20 {
            driven.flush();
        }
    }
    let view = driven.replica.tree.view();
    let wanted: Vec<_> = (0..30).map(expiry).collect();
    for (to, wanted) in
        [(Move::First, wanted.clone()), (Move::Last, wanted.into_iter().rev().collect())]
    {
        let mut found = Vec::new();
        let each = |pair: Lent<'_, _, _>| {
            found.push(pair.expires_ms());
            true
        };
        assert!(!block_on(view.scan(&driven.replica.tables, &[], None).each(to, each)).unwrap());
        assert_eq!(found, wanted);
    }
}

/// A tree of which little shows: deleted keys and ranges, counters that have expired, and what was
/// written again among them, in files and in memory.
fn mostly_gone(seed: u64) -> Driven {
    let mut random = Random::new(seed);
    let mut driven = Driven::new(eager());
    for round in 0..8 {
        for _ in 0..150 {
            let n = name(random.below(600));
            match random.below(5) {
                0 => driven.write(|batch| batch.delete(Keyspace::User, n.as_bytes()).unwrap()),
                1 => {
                    driven.write(|batch| {
                        batch.put_expiring(Keyspace::User, n.as_bytes(), b"7", 100).unwrap();
                    });
                    add(&mut driven, &n);
                }
                2 => (0..3).for_each(|_| add(&mut driven, &n)),
                _ => driven.put(&n, &[round; 40]),
            }
        }
        let (from, to) = (random.below(600), 1 + random.below(200));
        driven.write(|batch| {
            let (from, to) = (name(from), name(from + to));
            batch.delete_range(Keyspace::User, from.as_bytes(), Some(to.as_bytes())).unwrap();
        });
        // What came last is in memory alone.
        if round < 6 {
            driven.flush();
            if random.one_in(2) {
                driven.settle();
            }
        }
    }
    driven.replica.tree.pass_time(1_000);
    driven
}

fn add(driven: &mut Driven, name: &str) {
    let operand = Operand::add(1, driven.replica.tree.now_ms());
    driven.write(|batch| {
        batch.merge(Keyspace::User, name.as_bytes(), operand).unwrap();
    });
}

/// Writes that an earlier view does not see, to keys of which it sees something and to others.
fn write_on(driven: &mut Driven, seed: u64) {
    let mut random = Random::new(seed + 100);
    for _ in 0..200 {
        let n = name(random.below(650));
        match random.below(3) {
            0 => driven.write(|batch| batch.delete(Keyspace::User, n.as_bytes()).unwrap()),
            1 => add(driven, &n),
            _ => driven.put(&n, b"later"),
        }
    }
}

/// What pages that pass so many entries each lend together, from one end to the other, and how many
/// pairs each has.
fn paged(
    view: &ReadView,
    tables: &Tables<Files>,
    way: Move<'_>,
    entries: u64,
) -> (Pairs, Vec<usize>) {
    let (mut pairs, mut lens) = (Pairs::new(), Vec::new());
    let (mut from, mut to): (Vec<u8>, Option<Vec<u8>>) = (Vec::new(), None);
    loop {
        let mut iterator = view.scan(tables, &from, to.as_deref()).limited(entries);
        let (page, is_cut) = lent(&mut iterator, way, usize::MAX);
        assert!(!is_cut, "it was not told to end");
        let last = iterator.stopped_at().map(<[u8]>::to_vec);
        lens.push(page.len());
        pairs.extend(page);
        let on = if way == Move::First { Move::Next } else { Move::Prev };
        assert_eq!(lent(&mut iterator, on, 9), (Pairs::new(), false));
        assert_eq!(iterator.stopped_at(), last.as_deref(), "a stop is no end, and the end no stop");
        let Some(last) = last else { return (pairs, lens) };
        assert!(from <= last && to.as_ref().is_none_or(|to| last < *to), "no key was passed");
        match way {
            Move::First => from = [&last[..], &[0]].concat(),
            _ => to = Some(last),
        }
    }
}

/// docs/faults.md: P3
#[test]
fn pages_that_pass_so_many_entries_lend_together_what_one_walk_does() {
    for seed in 0..3 {
        for (mut driven, what) in [(mixed(seed), "mixed"), (mostly_gone(seed), "mostly gone")] {
            let view = driven.replica.tree.view();
            write_on(&mut driven, seed);
            let warm = driven.replica.tables.clone();
            let files = driven.replica.files.yielding(seed);
            let cold = Tables { cache: Rc::new(LocalCache::new(0)), ..tables(&files) };
            let mut whole = view.scan(&warm, &[], None);
            let (all, _) = lent(&mut whole, Move::First, usize::MAX);
            assert!(all.len() > 50 && whole.stopped_at().is_none(), "{what}: {}", all.len());
            let backwards: Pairs = all.iter().rev().cloned().collect();
            for entries in 1..=50 {
                let tables = if entries % 10 == 7 { &cold } else { &warm };
                for (way, expected) in [(Move::First, &all), (Move::Last, &backwards)] {
                    let (pairs, _) = paged(&view, tables, way, entries);
                    assert!(pairs == *expected, "seed {seed}, {what}: {entries} a page, {way:?}");
                }
            }
        }
    }
}

/// The pairs of pages of 100 entries, forwards and backwards: how many each has.
fn lens_of_pages(driven: &Driven) -> [Vec<usize>; 2] {
    let view = driven.replica.tree.view();
    [Move::First, Move::Last].map(|way| paged(&view, &driven.replica.tables, way, 100).1)
}

/// Writes something of each of a thousand names.
fn for_a_thousand(driven: &mut Driven, fill: impl Fn(&mut BatchBuilder, &[u8])) {
    driven.write(|batch| {
        for n in 0..1_000 {
            fill(batch, name(n).as_bytes());
        }
    });
}

/// docs/faults.md: P3
#[test]
fn a_page_passes_as_many_entries_as_it_may_whether_they_show_or_not() {
    // A thousand deleted keys, each with its value in a file and its delete in memory.
    let mut driven = Driven::new(eager());
    for_a_thousand(&mut driven, |batch, name| batch.put(Keyspace::User, name, b"7").unwrap());
    driven.flush();
    for_a_thousand(&mut driven, |batch, name| batch.delete(Keyspace::User, name).unwrap());
    for lens in lens_of_pages(&driven) {
        assert!((19..=22).contains(&lens.len()), "2,000 entries in {} pages", lens.len());
        assert!(lens.iter().all(|len| *len == 0), "{lens:?}");
    }

    // As many expired counters: their operands are passed, and nothing comes of it.
    let mut driven = Driven::new(eager());
    for_a_thousand(&mut driven, |batch, name| {
        batch.put_expiring(Keyspace::User, name, b"7", 100).unwrap();
        batch.merge(Keyspace::User, name, Operand::add(1, 0)).unwrap();
    });
    driven.replica.tree.pass_time(1_000);
    for lens in lens_of_pages(&driven) {
        assert!((19..=22).contains(&lens.len()), "2,000 entries in {} pages", lens.len());
        assert!(lens.iter().all(|len| *len == 0), "{lens:?}");
    }

    // Counters of more operands than a page may pass: one a page, whole.
    let mut driven = Driven::new(eager());
    for n in 0..5 {
        (0..200).for_each(|_| add(&mut driven, &name(n)));
    }
    for lens in lens_of_pages(&driven) {
        assert_eq!(lens, [1, 1, 1, 1, 1, 0]);
    }
}

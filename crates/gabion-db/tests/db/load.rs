//! Bulk loads: the pairs that they replace and that replace them, the levels of their files, and
//! the remains of a failed load.

use super::{Dir, Model, Random, check, key, options};
use gabion_base::ErrorKind;
use gabion_base::units::KEY_LEN_MAX;
use gabion_db::{Db, Expiry, Loaded, Options, RunOptions};
use std::time::Duration;

/// Ascending keys by chance, with values that tell the load.
fn pairs(random: &mut Random, round: u64) -> Vec<(Vec<u8>, Vec<u8>)> {
    let (mut at, end) = (random.below(2_000), 1_000 + random.below(2_000));
    let step = 1 + random.below(9);
    let mut pairs = Vec::new();
    while at < end {
        let value = format!("load {round} {at}").repeat(1 + random.below(20) as usize);
        pairs.push((key(at), value.into_bytes()));
        at += 1 + random.below(step);
    }
    pairs
}

fn write_some(db: &Db, model: &mut Model, random: &mut Random) {
    for _ in 0..random.below(600) {
        let at = key(random.below(3_000));
        if random.below(4) == 0 {
            db.delete(&at).unwrap();
            model.remove(&at);
        } else {
            let value = vec![random.below(256) as u8; random.below(300) as usize];
            db.put(&at, &value).unwrap();
            model.insert(at, value);
        }
    }
    match random.below(6) {
        0 => db.flush().unwrap(),
        1 => db.wait_until_quiet().unwrap(),
        _ => {}
    }
}

fn all(pairs: gabion_db::Range) -> Vec<(Vec<u8>, Vec<u8>)> {
    pairs.map(|pair| pair.unwrap()).map(|(key, value)| (key.to_vec(), value.to_vec())).collect()
}

/// docs/faults.md: P10
#[test]
fn a_load_replaces_what_was_there_when_it_finished_and_is_replaced_by_what_follows() {
    let (dir, mut random) = (Dir::new("load-model"), Random(11));
    let mut model = Model::new();
    let mut db = Db::create(&dir.0, &options()).unwrap();
    for round in 0..10 {
        write_some(&db, &mut model, &mut random);
        let before = (db.snapshot(), model.clone());
        let pairs = pairs(&mut random, round);
        let mut load = db.bulk_load().unwrap();
        for (n, (key, value)) in pairs.iter().enumerate() {
            load.put(key, value).unwrap();
            if n == pairs.len() / 2 {
                write_some(&db, &mut model, &mut random);
            }
        }
        check(&db, &model, &mut random);
        // Each third load is given up.
        let is_kept = round % 3 < 2;
        if is_kept {
            let loaded = load.finish().unwrap();
            assert_eq!(loaded.entries, pairs.len() as u64);
            model.extend(pairs);
        } else {
            drop(load);
        }
        check(&db, &model, &mut random);
        let then: Vec<_> = before.1.into_iter().collect();
        assert_eq!(all(before.0.iter(..)), then);
        drop(before.0);
        write_some(&db, &mut model, &mut random);
        if round % 4 == 1 {
            drop(db);
            db = Db::open(&dir.0, &options()).unwrap();
        }
        if round % 5 == 3 {
            db.compact_range(..).unwrap();
        }
        check(&db, &model, &mut random);
    }
    db.wait_until_quiet().unwrap();
    assert_eq!(all(db.iter(..)), model.into_iter().collect::<Vec<_>>());
}

/// docs/faults.md: P10
#[test]
fn a_load_into_an_empty_range_lies_in_the_last_level_and_is_written_once() {
    let dir = Dir::new("load-empty");
    let db = Db::create(&dir.0, &options()).unwrap();
    // On both sides of the range, and in memory.
    db.put(&key(1), b"before").unwrap();
    db.flush().unwrap();
    db.put(&key(90_000), b"behind").unwrap();
    let written = db.stats().counters;
    let pairs = || (100..5_100).map(|n| (key(n), vec![n as u8; 300]));
    let loaded = db.load_sorted(pairs()).unwrap();
    assert_eq!(loaded.entries, 5_000);
    db.wait_until_quiet().unwrap();
    let stats = db.stats();
    let last = stats.levels.last().unwrap();
    assert_eq!(last.files, loaded.files, "{:?}", stats.levels);
    assert!(last.files > 20 && last.bytes <= loaded.bytes && loaded.bytes < 1_900_000);
    let jobs = stats.counters.job_written_bytes - written.job_written_bytes;
    assert!(jobs < 10_000, "{jobs} bytes were written by jobs");
    assert_eq!((stats.counters.loads, stats.counters.loaded_bytes), (1, loaded.bytes));
    for n in [100, 2_345, 5_099] {
        assert_eq!(db.get(&key(n)).unwrap().unwrap(), vec![n as u8; 300]);
    }
    assert_eq!(db.get(&key(90_000)).unwrap().unwrap(), &b"behind"[..]);
    // Again, over existing keys; a pair that a later put replaced is replaced as well.
    db.put(&key(200), b"later").unwrap();
    db.load_sorted((100..5_100).map(|n| (key(n), b"anew"))).unwrap();
    assert_eq!(db.get(&key(200)).unwrap().unwrap(), &b"anew"[..]);
    assert_eq!(db.iter(..).count(), 5_002);
    assert_eq!(db.load_sorted(std::iter::empty::<(&[u8], &[u8])>()).unwrap(), Loaded::default());
}

/// docs/faults.md: P10
#[test]
fn what_is_not_ascending_or_too_long_is_refused_by_name_and_the_load_goes_on() {
    let dir = Dir::new("load-order");
    let db = Db::create(&dir.0, &options()).unwrap();
    let mut load = db.bulk_load().unwrap();
    load.put(b"elm\xff", b"1").unwrap();
    for wrong in [&b"elm\xff"[..], b"elm", b""] {
        let error = load.put(wrong, b"2").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        let shown = format!("key \"{}\" is not after \"elm\\xff\"", wrong.escape_ascii());
        assert!(error.message().contains(&shown), "{error}");
    }
    let long = vec![b'z'; KEY_LEN_MAX + 1];
    let error = load.put(&long, b"").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LimitExceeded);
    load.put(&long[..KEY_LEN_MAX], b"3").unwrap();
    let loaded = load.finish().unwrap();
    assert_eq!(loaded.entries, 2);
    assert_eq!(db.iter(..).count(), 2);
    let error = db.load_sorted([(b"b", b"1"), (b"a", b"1")]).unwrap_err();
    assert!(error.message().contains("key \"a\" is not after \"b\""), "{error}");
    assert_eq!(db.get(b"b").unwrap(), None);
}

/// A load that was dropped, or that the pool has no space for, leaves nothing; the store goes on.
/// docs/faults.md: P10
#[test]
fn a_load_that_does_not_finish_leaves_nothing_and_gives_its_room_back() {
    let dir = Dir::new("load-full");
    let options = Options { pool_len: 128 << 20, ..options() };
    let db = Db::create(&dir.0, &options).unwrap();
    db.put(b"a", b"there").unwrap();
    db.flush().unwrap();
    let slots = |db: &Db| {
        db.wait_until_quiet().unwrap();
        db.stats().slot_bytes
    };
    let before = slots(&db);
    let value = vec![7; 50_000];
    for finishes in [false, true] {
        let mut load = db.bulk_load().unwrap();
        let added = (0..100_000).map(|n| load.put(&key(n), &value)).take_while(Result::is_ok);
        let added = if finishes { added.count() } else { added.take(15).count() };
        if finishes {
            assert!(added > 15, "{added}");
            let error = load.put(b"z", b"").unwrap_err();
            assert!(error.message().contains("has failed"), "{error}");
        }
        assert!(db.get(&key(1)).unwrap().is_none());
        drop(load);
        assert_eq!(slots(&db), before);
    }
    let mut load = db.bulk_load().unwrap();
    let error = (0..100_000).find_map(|n| load.put(&key(n), &value).err()).unwrap();
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    assert!(error.message().contains("slots left for a load"), "{error}");
    // Others go on beside it, and its drop gives its slots back.
    db.put(b"b", &value).unwrap();
    db.flush().unwrap();
    let error = load.finish().unwrap_err();
    assert!(error.message().contains("has failed"), "{error}");
    let small = db.load_sorted((0..15).map(|n| (key(n), &value))).unwrap();
    assert_eq!(small.entries, 15);
    drop(db);
    let db = Db::open(&dir.0, &options).unwrap();
    assert_eq!(db.iter(..).count(), 17);
}

/// docs/faults.md: P10
#[test]
fn pairs_that_expire_are_gone_at_their_time() {
    let dir = Dir::new("load-expiry");
    let db = Db::create(&dir.0, &options()).unwrap();
    let mut load = db.bulk_load().unwrap();
    load.put_expiring(b"gone", b"1", Expiry::AtMs(1_000)).unwrap();
    load.put_expiring(b"long", b"2", Expiry::In(Duration::from_secs(3_600))).unwrap();
    load.put_expiring(b"soon", b"3", Expiry::In(Duration::from_millis(300))).unwrap();
    load.put(b"stays", b"4").unwrap();
    load.finish().unwrap();
    let has = |name: &[u8]| db.get(name).unwrap().is_some();
    assert!(!has(b"gone") && has(b"long") && has(b"stays"));
    assert!(
        db.expires_at(b"long").unwrap().is_some() && db.expires_at(b"stays").unwrap().is_none()
    );
    let end = std::time::Instant::now() + Duration::from_secs(20);
    while has(b"soon") {
        assert!(std::time::Instant::now() < end);
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(has(b"long") && has(b"stays"));
}

/// Loads of several threads, beside writers, with more compactions than one under way.
/// docs/faults.md: P10
#[test]
fn loads_and_writes_of_several_threads_do_not_lose_each_other() {
    let dir = Dir::new("load-threads");
    let run = RunOptions { compactions_max: 3, ..options().run };
    let db = Db::create(&dir.0, &Options { run, ..options() }).unwrap();
    let name = |thread: u64, n: u64| format!("{:05}-{thread}", n).into_bytes();
    let value = |thread: u64, round: u64| vec![(16 * round + thread) as u8; 150];
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let db = &db;
            scope.spawn(move || {
                for round in 0..4 {
                    let pairs = (0..1_500).map(|n| (name(thread, n), value(thread, round)));
                    db.load_sorted(pairs).unwrap();
                    let got = db.get(&name(thread, 77)).unwrap().unwrap();
                    assert_eq!(got, value(thread, round));
                }
            });
            scope.spawn(move || {
                for round in 0..4 {
                    for n in 0..1_500 {
                        db.put(&name(thread + 2, n), &value(thread + 2, round)).unwrap();
                    }
                }
            });
        }
    });
    for pair in db.iter(..) {
        let (key, found) = pair.unwrap();
        let thread = u64::from(key[6] - b'0');
        assert_eq!(found, value(thread, 3), "{}", key.escape_ascii());
    }
    assert_eq!(db.iter(..).count(), 6_000);
}

/// docs/faults.md: P10
#[test]
fn a_checkpoint_has_what_was_loaded_before_it() {
    let dir = Dir::new("load-copy");
    let db = Db::create(&dir.0.join("store"), &options()).unwrap();
    db.load_sorted((0..900).map(|n| (key(n), vec![n as u8; 200]))).unwrap();
    db.put(&key(3), b"later").unwrap();
    db.checkpoint(&dir.0.join("copy")).unwrap();
    db.load_sorted((0..900).map(|n| (key(n), b"after"))).unwrap();
    let copy = Db::open(&dir.0.join("copy"), &options()).unwrap();
    for n in 0..900 {
        let expected = if n == 3 { b"later".to_vec() } else { vec![n as u8; 200] };
        assert_eq!(copy.get(&key(n)).unwrap().unwrap(), expected, "{n}");
    }
    // And goes on from there, below and above.
    copy.load_sorted((0..10).map(|n| (key(n), b"of the copy"))).unwrap();
    copy.put(&key(4), b"newest").unwrap();
    copy.compact_range(..).unwrap();
    assert_eq!(copy.get(&key(3)).unwrap().unwrap(), &b"of the copy"[..]);
    assert_eq!(copy.get(&key(4)).unwrap().unwrap(), &b"newest"[..]);
}

#[test]
fn a_range_that_was_deleted_is_filled_by_a_load_and_one_that_was_loaded_is_emptied() {
    let dir = Dir::new("load-ranges");
    let db = Db::create(&dir.0, &options()).unwrap();
    for round in 0..4 {
        db.load_sorted((0..600).map(|n| (key(n), vec![round; 100]))).unwrap();
        assert_eq!(db.iter(..).count(), 600);
        db.delete_range(key(100)..key(500)).unwrap();
        if round % 2 == 0 {
            db.flush().unwrap();
        }
        assert_eq!(db.iter(..).count(), 200);
        db.load_sorted((150..160).map(|n| (key(n), b"again"))).unwrap();
        assert_eq!(db.iter(..).count(), 210);
        let names: Vec<_> = (90..170).map(key).collect();
        let values = db.multi_get(names.iter().map(|name| &name[..])).into_iter();
        assert_eq!(values.filter_map(Result::unwrap).count(), 20);
        if round == 2 {
            db.compact_range(..).unwrap();
            assert_eq!(db.iter(..).count(), 210);
        }
    }
}

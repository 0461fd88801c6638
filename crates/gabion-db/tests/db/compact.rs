//! Compaction on demand.

use super::{Dir, Model, Random, check, key, options};
use gabion_db::{Db, DbStats, Options, RunOptions};
use gabion_engine::{Codecs, Compression};
use gabion_host::replica;
use std::sync::atomic::{AtomicBool, Ordering};

/// Levels that hold files.
fn levels(stats: &DbStats) -> Vec<usize> {
    let levels = stats.levels.iter().enumerate();
    levels.filter(|(_, level)| level.files > 0).map(|(number, _)| number).collect()
}

fn file_bytes(stats: &DbStats) -> u64 {
    stats.levels.iter().map(|level| level.bytes).sum()
}

/// docs/faults.md: P34
#[test]
fn what_is_compacted_lies_in_one_level_without_what_was_deleted_or_replaced() {
    let dir = Dir::new("compact");
    let db = Db::create(&dir.0, &options()).unwrap();
    let (mut model, mut random) = (Model::new(), Random(3));
    for round in 0..3_u8 {
        for n in 0..2_000 {
            db.put(&key(n), &[round; 200]).unwrap();
            model.insert(key(n), vec![round; 200]);
        }
    }
    for n in (0..2_000).filter(|n| n % 3 > 0) {
        db.delete(&key(n)).unwrap();
        model.remove(&key(n));
    }
    db.compact_range(..).unwrap();
    check(&db, &model, &mut random);
    let stats = db.stats();
    assert_eq!(levels(&stats).len(), 1, "{:?}", stats.levels);
    let live: u64 = model.iter().map(|(key, value)| (key.len() + value.len()) as u64).sum();
    assert!(file_bytes(&stats) < live * 13 / 10, "{} of {live}", file_bytes(&stats));
    // The tree rests: nothing has to be compacted again for its size.
    db.wait_until_quiet().unwrap();
    assert_eq!(db.stats().levels, stats.levels);
    assert_eq!(db.stats().compaction_debt, 0);
    db.compact_range(..).unwrap();
    assert_eq!(db.stats().counters.compactions, stats.counters.compactions);

    model.keys().for_each(|key| db.delete(key).unwrap());
    db.compact_range(..).unwrap();
    assert_eq!(file_bytes(&db.stats()), 0, "{:?}", db.stats().levels);
    drop(db);
    let db = Db::open(&dir.0, &options()).unwrap();
    assert_eq!(db.iter(..).count(), 0);
}

/// docs/faults.md: P12
#[test]
fn codecs_change_while_a_store_runs_and_what_lies_at_the_bottom_is_written_anew() {
    let dir = Dir::new("codecs");
    let db = Db::create(&dir.0, &options()).unwrap();
    let (mut model, mut random) = (Model::new(), Random(4));
    let fill = |db: &Db, model: &mut Model, round: u64| {
        for n in 0..2_000 {
            let value = format!("{:x}/{n:0100}", n * n * 7_919 + round).into_bytes();
            db.put(&key(n), &value).unwrap();
            model.insert(key(n), value);
        }
        db.compact_range(..).unwrap();
    };
    fill(&db, &mut model, 1);
    let plain = file_bytes(&db.stats());

    // Keys that were compacted before have the new codec after a compaction that finds nothing else
    // to do.
    let before = db.run_options();
    let codecs = Codecs { upper: Compression::Lz4, bottom: Some(Compression::ZSTD) };
    db.set_run_options(RunOptions { codecs: Some(codecs), ..before }).unwrap();
    db.compact_range(..).unwrap();
    let stats = db.stats();
    let packed = file_bytes(&stats);
    assert!(packed * 2 < plain, "{packed} of {plain} bytes");
    check(&db, &model, &mut random);
    db.compact_range(..).unwrap();
    assert_eq!(db.stats().counters.compactions, stats.counters.compactions);

    // So have later writes.
    fill(&db, &mut model, 2);
    check(&db, &model, &mut random);
    let packed = file_bytes(&db.stats());
    assert!(packed * 2 < plain, "{packed} of {plain} bytes");
    assert_eq!(db.codecs(), codecs);
    db.set_run_options(before).unwrap();
    assert_eq!(db.codecs(), Codecs::default());
    fill(&db, &mut model, 3);
    check(&db, &model, &mut random);
    let unpacked = file_bytes(&db.stats());
    assert!(unpacked > plain * 9 / 10, "{unpacked} and {plain} bytes");
    drop(db);

    let run = RunOptions { codecs: Some(codecs), ..options().run };
    let db = Db::open(&dir.0, &Options { run, ..options() }).unwrap();
    db.compact_range(..).unwrap();
    assert!(file_bytes(&db.stats()) * 2 < plain);
    check(&db, &model, &mut random);
}

/// docs/faults.md: P12
#[test]
fn a_file_at_the_bottom_that_would_be_moved_there_has_the_bottoms_codec() {
    let dir = Dir::new("codecs-moved");
    let mut options = options();
    options.tree.sst.compression = Compression::Lz4;
    options.tree.bottom_compression = Some(Compression::Zstd { level: 5 });
    let db = Db::create(&dir.0, &options).unwrap();
    // Ascending keys, each file of which would go down as it is.
    (0..20_000).for_each(|n| db.put(&key(n), format!("{n:0100}").as_bytes()).unwrap());
    db.flush().unwrap();
    db.wait_until_quiet().unwrap();
    let stats = db.stats();
    assert!(levels(&stats).into_iter().max() >= Some(2), "{:?}", stats.levels);
    drop(db);
    let node = replica::open_replica(
        &dir.0,
        options.io,
        gabion_node::NodeOptions::default(),
        replica::LostRing::Refuse,
        &gabion_host::clock::Clock::start(),
        |_, _| Ok(()),
    );
    let version = node.unwrap().node.tree().version().clone();
    for (level, file) in version.files() {
        let wanted = if level == 0 { Compression::Lz4 } else { Compression::Zstd { level: 5 } };
        assert_eq!(file.compression, wanted, "L{level}: {}", file.id);
    }
    // Written once when it was flushed and once when it came to lie at the bottom.
    let most = stats.counters.flushes + stats.counters.flushes / 4;
    assert!(stats.counters.compactions <= most, "{:?}", stats.counters);
}

/// A value that begins with this many bytes that do not compress.
fn packable(seed: u64, noise: usize) -> Vec<u8> {
    let mut random = Random(seed);
    let noise = (0..noise).map(|_| random.below(256) as u8);
    noise.chain(std::iter::repeat(7)).take(1_000).collect()
}

/// Puts the values that `of` makes of numbers, in no order.
fn fill_with(db: &Db, model: &mut Model, of: impl Fn(u64) -> Vec<u8>) {
    for n in (0..4_000).map(|n| n * 7 % 4_000) {
        db.put(&key(n), &of(n)).unwrap();
        model.insert(key(n), of(n));
    }
}

fn use_codecs(db: &Db, codecs: Codecs) {
    db.set_run_options(RunOptions { codecs: Some(codecs), ..db.run_options() }).unwrap();
}

#[test]
fn what_packs_to_a_fraction_is_written_anew_unpacked_when_the_codec_changes() {
    let dir = Dir::new("codecs-unpacked");
    let mut options = options();
    options.tree.bottom_compression = Some(Compression::ZSTD);
    let db = Db::create(&dir.0, &options).unwrap();
    let (mut model, mut random) = (Model::new(), Random(6));
    fill_with(&db, &mut model, |n| packable(n, 8));
    db.compact_range(..).unwrap();
    let packed = file_bytes(&db.stats());
    assert!(packed < 400_000, "{packed} bytes of 4 MB");
    use_codecs(&db, Codecs::default());
    db.compact_range(..).unwrap();
    let unpacked = file_bytes(&db.stats());
    assert!((4_000_000..4_400_000).contains(&unpacked), "{unpacked} bytes, {packed} before");
    check(&db, &model, &mut random);
    drop(db);
    let db = Db::open(&dir.0, &options).unwrap();
    check(&db, &model, &mut random);
}

#[test]
fn levels_that_are_not_packed_go_down_to_what_was_the_bottom_and_is_packed() {
    let dir = Dir::new("codecs-between");
    let mut options = options();
    options.tree.bottom_compression = Some(Compression::ZSTD);
    options.tree.level1_len = 64 << 10;
    options.tree.level_multiplier = 2;
    let db = Db::create(&dir.0, &options).unwrap();
    let (mut model, mut random) = (Model::new(), Random(7));
    for round in 0..3 {
        fill_with(&db, &mut model, |n| packable(n ^ round, 100));
    }
    db.wait_until_quiet().unwrap();
    check(&db, &model, &mut random);
    let levels = levels(&db.stats());
    assert!(levels.last() >= Some(&4), "{levels:?}");
}

/// Four files in L0. Each compresses well, all together do not: each has one value of its own.
fn fill_with_what_packs_only_apart(db: &Db, model: &mut Model, keys: u64) {
    for part in 0..4 {
        for n in (part..keys).step_by(4) {
            db.put(&key(n), &packable(part, 1_000)).unwrap();
            model.insert(key(n), packable(part, 1_000));
        }
        db.flush().unwrap();
    }
}

fn with_zstd_and_a_large_level0() -> Options {
    let mut options = options();
    options.tree.sst.compression = Compression::ZSTD;
    options.tree.memtable_len = 256 << 10;
    options.tree.l0_trigger = 30;
    options.tree.l0_slowdown = 100;
    options.tree.l0_stop = 200;
    options.tree.level1_len = 64 << 20;
    options
}

#[test]
fn a_merge_that_packs_worse_than_its_inputs_is_given_more_slots() {
    let dir = Dir::new("codecs-apart");
    let db = Db::create(&dir.0, &with_zstd_and_a_large_level0()).unwrap();
    let (mut model, mut random) = (Model::new(), Random(8));
    fill_with_what_packs_only_apart(&db, &mut model, 4_000);
    let apart = file_bytes(&db.stats());
    db.compact_range(..).unwrap();
    let together = file_bytes(&db.stats());
    assert!(together > 3 * apart, "{together} bytes of {apart}");
    check(&db, &model, &mut random);
}

#[test]
fn a_merge_that_packs_worse_than_the_pool_has_room_for_waits_and_the_store_goes_on() {
    let dir = Dir::new("codecs-apart-full");
    let options = Options { pool_len: 150 << 20, ..with_zstd_and_a_large_level0() };
    let db = Db::create(&dir.0, &options).unwrap();
    let (mut model, mut random) = (Model::new(), Random(9));
    fill_with_what_packs_only_apart(&db, &mut model, 6_500);
    let error = db.compact_range(..).unwrap_err();
    assert_eq!(error.kind(), gabion_base::ErrorKind::NoSpace, "{error}");
    assert!(db.failure().is_none());
    check(&db, &model, &mut random);
    drop(db);
    // Nor does the next start find anything wrong.
    let db = Db::open(&dir.0, &options).unwrap();
    assert_eq!(db.compact_range(..).unwrap_err().kind(), gabion_base::ErrorKind::NoSpace);
    check(&db, &model, &mut random);
    // Space is left for operations that free space.
    db.delete_range(key(0)..key(6_500)).unwrap();
    db.compact_range(..).unwrap();
    assert_eq!(file_bytes(&db.stats()), 0, "{:?}", db.stats().levels);
    db.put(b"key", b"value").unwrap();
}

/// docs/faults.md: P34
#[test]
fn a_range_is_compacted_and_what_lies_outside_of_it_is_left_alone() {
    let dir = Dir::new("compact-range");
    // L0 is so large that nothing is compacted by itself.
    let mut large = options();
    large.tree.l0_trigger = 30;
    large.tree.l0_slowdown = 100;
    large.tree.l0_stop = 200;
    large.tree.level1_len = 64 << 20;
    let db = Db::create(&dir.0, &large).unwrap();
    for from in [0, 1_000] {
        (from..from + 200).for_each(|n| db.put(&key(n), &[1; 100]).unwrap());
        db.flush().unwrap();
    }
    db.compact_range(..).unwrap();
    let before = db.stats();
    // The first file has a deleted key, too, and nobody asks to compact that.
    db.delete(&key(0)).unwrap();
    db.flush().unwrap();
    (1_000..1_200).for_each(|n| db.delete(&key(n)).unwrap());
    db.flush().unwrap();
    db.compact_range(key(1_000)..).unwrap();
    let stats = db.stats();
    assert_eq!(levels(&before), [1], "{:?}", before.levels);
    let half = file_bytes(&before) / 2;
    let left = file_bytes(&stats);
    assert!((half - 2_000..half + 2_000).contains(&left), "{left} of {:?}", stats.levels);
    assert_eq!(db.iter(..).count(), 199);
    db.compact_range(..).unwrap();
    assert_eq!(db.iter(..).count(), 199);
    assert_eq!(levels(&db.stats()).len(), 1);
}

/// docs/faults.md: P34
#[test]
fn a_compaction_ends_while_writers_go_on_and_several_take_turns() {
    let dir = Dir::new("compact-busy");
    let db = Db::create(&dir.0, &options()).unwrap();
    (0..3_000).for_each(|n| db.put(&key(n), &[0; 200]).unwrap());
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = Random(9);
            while !ended.load(Ordering::Relaxed) {
                db.put(&key(random.below(3_000)), &[1; 200]).unwrap();
            }
        });
        let compact = |from| {
            let db = db.clone();
            scope.spawn(move || (0..2).for_each(|_| db.compact_range(from..).unwrap()))
        };
        let calls = [compact(b"" as &[u8]), compact(b"key01")];
        calls.into_iter().for_each(|call| call.join().unwrap());
        ended.store(true, Ordering::Relaxed);
    });
    assert_eq!(db.iter(..).count(), 3_000);
}

/// Snapshots keep every file that is replaced, until no slot is left for the next one.
/// docs/faults.md: P34
#[test]
fn a_compaction_without_room_says_so_and_the_store_goes_on() {
    let dir = Dir::new("compact-full");
    let db = Db::create(&dir.0, &Options { pool_len: 192 << 20, ..options() }).unwrap();
    (0..2_000).for_each(|n| db.put(&key(n), &[1; 800]).unwrap());
    let mut kept = vec![db.snapshot()];
    let (error, deleted) = (0..20)
        .find_map(|round| {
            (0..20).for_each(|n| db.delete(&key(n * 100 + round)).unwrap());
            let result = db.compact_range(..);
            kept.push(db.snapshot());
            result.err().map(|error| (error, (round as usize + 1) * 20))
        })
        .expect("the pool holds no twenty copies");
    assert_eq!(error.kind(), gabion_base::ErrorKind::NoSpace, "{error}");
    assert_eq!(kept[0].iter(..).count(), 2_000);
    assert!(db.failure().is_none());
    kept.clear();
    db.compact_range(..).unwrap();
    assert_eq!(db.iter(..).count(), 2_000 - deleted);
    assert_eq!(levels(&db.stats()).len(), 1);
}

/// Snapshots keep replaced files, until a compaction that is due by itself has no space, or a
/// flush.
/// docs/faults.md: P34
#[test]
fn who_flushes_or_waits_for_quiet_is_told_that_there_is_no_room() {
    let dir = Dir::new("quiet-full");
    let db = Db::create(&dir.0, &Options { pool_len: 192 << 20, ..options() }).unwrap();
    (0..1_000).for_each(|n| db.put(&key(n), &[1; 800]).unwrap());
    db.wait_until_quiet().unwrap();
    let mut kept = Vec::new();
    let error = (0..60).find_map(|round| {
        kept.push(db.snapshot());
        for n in 0..40 {
            let key = key(n * 25 + round % 25);
            // A full pool still takes deletes.
            db.put(&key, &[2; 800]).or_else(|_| db.delete(&key)).unwrap();
        }
        db.flush().and_then(|()| db.wait_until_quiet()).err()
    });
    let error = error.expect("the pool holds no sixty copies");
    assert_eq!(error.kind(), gabion_base::ErrorKind::NoSpace, "{error}");
    assert!(error.to_string().contains("a flush or compaction needs more than the "), "{error}");
    assert_eq!(db.wait_until_quiet().unwrap_err().to_string(), error.to_string());
    assert!(db.failure().is_none());
    kept.clear();
    db.wait_until_quiet().unwrap();
    db.flush().unwrap();
}

//! The names that a user of the crate can write, with no other crate of Gabion's.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test that meets an error has failed; this one has files"
)]

use gabion_db::{
    Backend, BackendChoice, Bounds, BulkLoad, Bytes, Codecs, Compression, Copied, Counters, Cursor,
    Db, DbStats, Durability, Error, ErrorKind, Expiry, Found, Held, LevelStats, Loaded, Memory,
    MemoryKind, Options, Range, RangeSize, Result, RunOptions, SequenceNumber, SlotCounts,
    Snapshot, SstOptions, StoppedMs, StoreTime, TreeConfig, WarmStats, WriteBatch, WriteLimits,
};
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::time::Duration;

struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Self {
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("names-{name}"));
        let _ = std::fs::remove_dir_all(&dir);
        Self(dir)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Each public type in a method's signature, by its name in this crate alone.
#[derive(Default)]
#[expect(dead_code, reason = "that they have names is what is looked at")]
struct Everything {
    options: Options,
    run: RunOptions,
    tree: TreeConfig,
    sst: SstOptions,
    codecs: Codecs,
    compression: Compression,
    limits: Option<WriteLimits>,
    io: BackendChoice,
    backend: Option<Backend>,
    durability: Durability,
    expiry: Option<Expiry>,
    batch: WriteBatch,
    kind: Option<ErrorKind>,
    stats: DbStats,
    levels: Vec<LevelStats>,
    counters: Counters,
    stopped: StoppedMs,
    slots: SlotCounts,
    held: Held,
    warmed: WarmStats,
    memory: Memory,
    memory_kind: Option<MemoryKind>,
    size: RangeSize,
    time: Option<StoreTime>,
    copied: Option<Copied>,
    loaded: Option<Loaded>,
    found: Option<Found>,
    sequence: Option<SequenceNumber>,
    load: Option<BulkLoad>,
    cursor: Option<Cursor>,
    range: Option<Range>,
}

fn shared<T: Send + Sync + 'static>() {}
fn cloned<T: Clone + Send + Sync + 'static>() {}

#[test]
fn every_type_of_a_signature_has_a_name_here_and_goes_to_other_threads() -> Result<()> {
    let dir = Dir::new("types");
    let everything = Everything::default();
    let db = Db::create(&dir.0, &Options { run: everything.run, ..everything.options })?;
    let all = Everything {
        stats: db.stats(),
        levels: db.stats().levels,
        counters: db.stats().counters,
        stopped: db.stats().counters.writes_stopped_ms,
        slots: db.stats().slots,
        held: db.stats().held,
        warmed: db.stats().warmed,
        memory: db.stats().memory,
        size: db.approximate_size(..)?,
        time: Some(db.time()),
        limits: Some(db.write_limits()),
        codecs: db.codecs(),
        sequence: Some(db.snapshot().sequence()),
        load: Some(db.bulk_load()?),
        cursor: Some(db.cursor(..)),
        range: Some(db.iter(..)),
        found: db.look_up("nothing")?,
        ..Everything::default()
    };
    assert!(all.found.is_none());
    cloned::<(Db, Snapshot, WriteBatch, Options, RunOptions)>();
    cloned::<(Error, Durability, Expiry, DbStats)>();
    shared::<(Cursor, Range)>();
    fn sent<T: Send + 'static>() {}
    sent::<BulkLoad>();
    drop(all);
    Ok(())
}

fn in_a_box(dir: &Path) -> std::result::Result<(), Box<dyn std::error::Error + Send + Sync>> {
    Db::open(dir, &Options::default())?;
    Ok(())
}

#[test]
fn errors_are_errors_with_a_kind_a_message_and_a_source() {
    let dir = Dir::new("errors");
    let error = Db::open(&dir.0, &Options::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    let source = std::error::Error::source(&error).expect("what the system said").to_string();
    assert!(error.to_string().ends_with(&source) && !error.message().contains(&source), "{error}");
    assert!(error.to_string().contains(&dir.0.display().to_string()), "{error}");
    assert_eq!(in_a_box(&dir.0).unwrap_err().to_string(), error.to_string());
}

#[test]
fn paths_keys_and_values_may_be_whatever_is_one() -> Result<()> {
    let dir = Dir::new("args");
    let path: &str = dir.0.to_str().unwrap();
    drop(Db::create(path, &Options::default())?);
    drop(Db::open(String::from(path), &Options::default())?);
    drop(Db::open_or_create(Path::new(path), &Options::default())?);
    let db = Db::open_or_create(&dir.0, &Options::default())?;
    db.put("a", "b")?;
    db.put(b"array", [1, 2, 3])?;
    db.put(String::from("string"), vec![1])?;
    db.put(&String::from("borrowed"), Bytes::from_static(b"bytes"))?;
    db.put_with("flushed", "", Durability::Flushed)?;
    db.put_expiring("hour", "x", Expiry::In(Duration::from_secs(3_600)))?;
    db.add("count", 3)?;
    db.delete("string")?;
    let mut batch = WriteBatch::new();
    batch.put("batched", String::from("value"));
    batch.delete("nothing");
    batch.add(b"count", -1);
    db.write(&batch, Durability::Ring)?;
    let text = |value: Option<Bytes>| value.map(|value| String::from_utf8(value.to_vec()).unwrap());
    assert_eq!(text(db.get("count")?), Some("2".to_owned()));
    assert_eq!(text(db.snapshot().get(&String::from("a"))?), Some("b".to_owned()));
    let both = db.multi_get(["a", "string"]).into_iter().collect::<Result<Vec<_>>>()?;
    assert_eq!((both[0].is_some(), both[1].is_some()), (true, false));

    let mut keys = Vec::new();
    for pair in db.iter(..) {
        let (key, _) = pair?;
        keys.push(String::from_utf8(key.to_vec()).unwrap());
    }
    assert_eq!(keys, ["a", "array", "batched", "borrowed", "count", "flushed", "hour"]);
    let bounds = (Bound::Excluded("a"), Bound::Included("batched"));
    assert_eq!(db.iter(&bounds).count(), 2);
    assert_eq!(db.range("b".."d").rev().count(), 3);
    assert_eq!(db.range(String::from("b")..=String::from("d")).count(), 3);
    assert_eq!(db.prefix("b").take(1).count(), 1);
    let mut cursor = db.cursor("b"..);
    assert!(cursor.seek("c")? && cursor.key() == Some(b"count"));
    db.compact_range("a".."c")?;
    db.delete_prefix("b")?;
    db.delete_range("c"..="flushed")?;
    assert_eq!(db.iter(..).count(), 3);
    let mut load = db.bulk_load()?;
    load.put("z", "last")?;
    load.finish()?;
    db.checkpoint(dir.0.join("copy"))?;
    let copy = Db::open(dir.0.join("copy"), &Options::default())?;
    assert_eq!(copy.iter(..).count(), 4);
    fn takes_bounds(bounds: impl Bounds, db: &Db) -> usize {
        db.iter(bounds).count()
    }
    assert_eq!(takes_bounds("z".., &copy), 1);
    Ok(())
}

/// A caller that names a fixed option believes that it holds.
#[test]
fn an_option_that_is_fixed_and_differs_is_refused_with_both_values() -> Result<()> {
    let dir = Dir::new("fixed");
    let made = Options {
        pool_len: 768 << 20,
        ring_len: 64 << 20,
        segment_len: 8 << 20,
        tree: TreeConfig { memtable_len: 8 << 20, ..TreeConfig::default() },
        ..Options::default()
    };
    drop(Db::create(&dir.0, &made)?);
    let tree = TreeConfig { memtable_len: 4 << 20, ..TreeConfig::default() };
    for (other, named, had) in [
        (Options { pool_len: 512 << 20, ..made.clone() }, "pool_len is 536870912", "805306368"),
        (Options { ring_len: 32 << 20, ..made.clone() }, "ring_len is 33554432", "67108864"),
        (Options { segment_len: 4 << 20, ..made.clone() }, "segment_len is 4194304", "8388608"),
        (Options { tree, ..made.clone() }, "memtable_len: 4194304", "memtable_len: 8388608"),
    ] {
        let ways: [fn(&Path, &Options) -> Result<Db>; 2] = [
            |dir, options| Db::open(dir, options),
            |dir, options| Db::open_or_create(dir, options),
        ];
        for open in ways {
            let error = open(&dir.0, &other).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
            let text = error.to_string();
            assert!(text.contains(named) && text.contains(had), "{text}");
            assert!(text.contains("that is fixed"), "{text}");
        }
    }
    for same in [&made, &Options::default()] {
        drop(Db::open_or_create(&dir.0, same)?);
    }
    Ok(())
}

#[test]
fn a_length_that_no_pool_has_is_refused_by_its_option_and_nothing_is_made() {
    let dir = Dir::new("lengths");
    for len in [0, 1, 4096, 1 << 20, (8 << 40) + 1, u64::MAX] {
        let options = Options { pool_len: len, ..Options::default() };
        let ways: [fn(&Path, &Options) -> Result<Db>; 2] = [
            |dir, options| Db::create(dir, options),
            |dir, options| Db::open_or_create(dir, options),
        ];
        for create in ways {
            let error = create(&dir.0, &options).unwrap_err();
            let text = error.to_string();
            assert!(text.contains(&format!("pool_len is {len}")), "{text}");
            assert_eq!(error.kind(), ErrorKind::LimitExceeded, "{text}");
            assert!(!dir.0.exists(), "{len}");
        }
    }
    let options = Options::default();
    let db = Db::create(&dir.0, &options).unwrap();
    assert!(
        db.checkpoint_sized(dir.0.join("copy"), 0).unwrap_err().to_string().contains("0 bytes")
    );
    assert!(!dir.0.join("copy").exists() && !dir.0.join("copy.tmp").exists());
}

#[test]
fn a_pool_that_is_none_is_told_with_its_length_and_what_was_expected() {
    let dir = Dir::new("no-pool");
    std::fs::create_dir(&dir.0).unwrap();
    for (bytes, what) in [(vec![], "an empty file"), (vec![b'x'; 16], "a file of 16 bytes")] {
        std::fs::write(dir.0.join("pool"), &bytes).unwrap();
        let error = Db::open(&dir.0, &Options::default()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        let text = error.to_string();
        let expected =
            format!("{}: is not a Gabion pool: it is {what}", dir.0.join("pool").display());
        assert!(text.starts_with(&expected) && text.contains("`GABPOOL`"), "{text}");
        assert_eq!(std::fs::read(dir.0.join("pool")).unwrap(), bytes);
    }
}

//! Copies of a store that is in use.

use super::{CHILD, Dir, Model, Random, check, key, last_told, options};
use gabion_base::units::SLOT_LEN;
use gabion_base::{ErrorKind, FileKind};
use gabion_db::{Db, Durability, Options, WriteBatch};
use gabion_fabric::{BlockingMedium, DirectIo, MediumOptions, PoolFile};
use gabion_pool::{Label, Purpose};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Puts, deletes and batches at random, in the store and in the model.
fn write(db: &Db, model: &mut Model, random: &mut Random, count: usize) {
    for _ in 0..count {
        let (at, len) = (random.below(3_000), random.below(400) as usize);
        let value = vec![random.below(256) as u8; len];
        if random.below(5) == 0 {
            let mut batch = WriteBatch::new();
            batch.delete(&key(at));
            batch.put(&key(at + 1), &value);
            db.write(&batch, Durability::Ring).unwrap();
            model.remove(&key(at));
            model.insert(key(at + 1), value);
        } else {
            db.put(&key(at), &value).unwrap();
            model.insert(key(at), value);
        }
    }
}

/// The copy is compared with the model of the moment, and is then a store like any other: written
/// to, flushed, compacted, opened again, and copied itself.
/// docs/faults.md: P9
#[test]
fn a_checkpoint_holds_exactly_what_was_written_before_it_and_is_a_store_of_its_own() {
    let (dir, mut random) = (Dir::new("checkpoint"), Random(11));
    let mut model = Model::new();
    let store = Db::create(&dir.0.join("0"), &options()).unwrap();
    let mut source = store.clone();
    for round in 0..4 {
        write(&source, &mut model, &mut random, 1_500);
        // In turn: with MemTables full of writes, and with all in files.
        if round == 2 {
            source.flush().unwrap();
            source.wait_until_quiet().unwrap();
        }
        let to = dir.0.join((round + 1).to_string());
        let copied = source.checkpoint(&to).unwrap();
        assert_eq!(copied.flushed_files > 0, round != 2, "{copied:?}");
        let then = model.clone();
        let mut later = model.clone();
        write(&source, &mut later, &mut random, 300);
        let copy = Db::open(&to, &options()).unwrap();
        check(&copy, &then, &mut random);
        check(&source, &later, &mut random);
        source = copy;
    }
    for _ in 0..3 {
        write(&source, &mut model, &mut random, 1_500);
        source.flush().unwrap();
        source.compact_range(..).unwrap();
        check(&source, &model, &mut random);
        drop(source);
        source = Db::open(&dir.0.join("4"), &options()).unwrap();
        check(&source, &model, &mut random);
    }
    assert!(store.failure().is_none());
}

#[test]
fn whoever_waits_for_a_checkpoint_is_told_how_far_it_is() {
    let dir = Dir::new("checkpoint-progress");
    let db = Db::create(&dir.0.join("store"), &options()).unwrap();
    for round in 0..3 {
        (0..1_000).for_each(|at| db.put(&key(at * 3 + round), &[7; 100]).unwrap());
        db.flush().unwrap();
    }
    db.put(b"in memory", b"1").unwrap();
    db.wait_until_quiet().unwrap();
    let mut told = Vec::new();
    let mut note = |done: u64, total: u64| told.push((done, total));
    let copied = db.checkpoint_with(&dir.0.join("copy"), Some(256 << 20), &mut note).unwrap();
    let all = copied.file_bytes;
    assert_eq!(told.len() as u64, copied.files + 1);
    assert_eq!((told.first(), told.last()), (Some(&(0, all)), Some(&(all, all))));
    assert!(told.is_sorted_by(|a, b| a.0 < b.0 && a.1 == b.1), "{told:?}");
    let copy = dir.0.join("copy/pool");
    assert_eq!(copy.metadata().unwrap().len(), 256 << 20);
}

/// docs/faults.md: P9
#[test]
fn an_empty_store_has_an_empty_checkpoint() {
    let dir = Dir::new("checkpoint-empty");
    let db = Db::create(&dir.0.join("a"), &options()).unwrap();
    let copied = db.checkpoint(&dir.0.join("b")).unwrap();
    assert_eq!((copied.files, copied.flushed_files, copied.sequence), (0, 0, 0));
    let copy = Db::open(&dir.0.join("b"), &options()).unwrap();
    assert_eq!(copy.iter(..).count(), 0);
    copy.put(b"a", b"1").unwrap();
    assert_eq!(copy.get(b"a").unwrap().as_deref(), Some(&b"1"[..]));
}

/// The writer's batches have the same number at both ends of the keyspace, and each number has its
/// own key.
/// docs/faults.md: P9
#[test]
fn a_checkpoint_while_writes_go_on_is_one_moment_of_them() {
    let dir = Dir::new("checkpoint-busy");
    let db = Db::create(&dir.0.join("store"), &options()).unwrap();
    let (acknowledged, last) = (AtomicU64::new(0), AtomicU64::new(u64::MAX));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 1_u64.. {
                let mut batch = WriteBatch::new();
                batch.put(b"a", &n.to_be_bytes());
                batch.put(&key(n), &[n as u8; 300]);
                if n > 500 {
                    batch.delete(&key(n - 500));
                }
                batch.put(b"z", &n.to_be_bytes());
                db.write(&batch, Durability::Ring).unwrap();
                acknowledged.store(n, Ordering::Release);
                if n >= last.load(Ordering::Relaxed) {
                    return;
                }
            }
        });
        for round in 0..5_u64 {
            while acknowledged.load(Ordering::Acquire) < (round + 1) * 700 {
                std::thread::yield_now();
            }
            let to = dir.0.join(round.to_string());
            let before = acknowledged.load(Ordering::Acquire);
            db.checkpoint(&to).unwrap();
            let after = acknowledged.load(Ordering::Acquire) + 1;
            let copy = Db::open(&to, &options()).unwrap();
            let number = |key| {
                let value = copy.get(key).unwrap().expect("it was written");
                u64::from_be_bytes(value[..].try_into().unwrap())
            };
            let n = number(b"a");
            assert_eq!(n, number(b"z"), "of a batch all or nothing");
            assert!((before..=after).contains(&n), "{n} is not in {before}..={after}");
            let keys: Vec<_> = copy.iter("key".."kez").map(|p| p.unwrap().0).collect();
            let first = n.saturating_sub(499).max(1);
            assert!(keys.iter().map(|key| key.to_vec()).eq((first..=n).map(key)));
        }
        last.store(0, Ordering::Relaxed);
    });
    assert!(db.stats().counters.compactions > 0, "files were replaced meanwhile");
}

pub(super) fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).unwrap();
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// docs/faults.md: P9, P32
#[test]
fn a_checkpoint_that_cannot_be_made_leaves_nothing_and_says_why() {
    let dir = Dir::new("checkpoint-refused");
    let db = Db::create(&dir.0.join("store"), &options()).unwrap();
    (0..500).for_each(|n| db.put(&key(n), &[7; 4_000]).unwrap());
    db.flush().unwrap();
    std::fs::create_dir(dir.0.join("there")).unwrap();
    let error = db.checkpoint(&dir.0.join("there")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(error.to_string().contains("there: is there already"), "{error}");
    let error = db.checkpoint(&dir.0.join("nowhere/copy")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    // The file system has less than the first; the pool of four slots is too small for the files.
    for (len, part) in [(7 << 40, "bytes free"), (24 << 20, "the copy takes")] {
        let error = db.checkpoint_sized(&dir.0.join("copy"), len).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
        assert!(error.to_string().contains(part), "{error}");
        assert_eq!(names(&dir.0), ["store", "there"]);
    }
    // A directory that no checkpoint left is not removed.
    std::fs::create_dir(dir.0.join("copy.tmp")).unwrap();
    std::fs::write(dir.0.join("copy.tmp/thesis"), b"").unwrap();
    let error = db.checkpoint(&dir.0.join("copy")).unwrap_err();
    assert!(error.to_string().contains("copy.tmp: is in the way"), "{error}");
    assert_eq!(names(&dir.0.join("copy.tmp")), ["thesis"]);
    std::fs::remove_file(dir.0.join("copy.tmp/thesis")).unwrap();
    // Nor is a store of that name, whether it is open or not.
    std::fs::remove_dir(dir.0.join("copy.tmp")).unwrap();
    let other = Db::create(&dir.0.join("copy.tmp"), &options()).unwrap();
    for _ in 0..2 {
        let error = db.checkpoint(&dir.0.join("copy")).unwrap_err();
        assert!(error.to_string().contains("is in the way"), "{error}");
        assert_eq!(names(&dir.0.join("copy.tmp")), ["pool", "ring"]);
    }
    drop(other);
    std::fs::remove_dir_all(dir.0.join("copy.tmp")).unwrap();
    let label = Label { purpose: Purpose::Checkpoint, pool_id: [0; 16], len: 0, number: 0 };
    std::fs::create_dir(dir.0.join("copy.tmp")).unwrap();
    std::fs::write(dir.0.join("copy.tmp/checkpoint.unfinished"), label.encode()).unwrap();
    // While one is at it, no other is.
    let holder = std::fs::File::open(dir.0.join("copy.tmp")).unwrap();
    gabion_fabric::lock::lock_exclusive(&holder, &dir.0).unwrap();
    let error = db.checkpoint(&dir.0.join("copy")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    drop(holder);
    db.checkpoint(&dir.0.join("copy")).unwrap();
    assert_eq!(names(&dir.0), ["copy", "store", "there"]);
    assert_eq!(names(&dir.0.join("copy")), ["pool", "ring"]);
    assert!(db.failure().is_none());
}

/// Flips a byte of the first file of the store.
pub(super) fn flip_a_byte(store: &Path) -> String {
    let path = store.join("pool");
    let file = PoolFile::open(&path, DirectIo::Never).unwrap();
    let options = MediumOptions { notify: false, ..MediumOptions::default() };
    let medium = BlockingMedium::new(file.medium(options).unwrap());
    let pool = medium.block_on(gabion_pool::read(medium.handle())).unwrap().recovered.pool;
    let placement = pool.files().find(|file| file.file.kind == FileKind::Sst).unwrap();
    let (at, _) = gabion_pool::extents(pool.region(), placement, 5_000, 1).next().unwrap();
    let bytes = std::fs::File::options().read(true).write(true).open(&path).unwrap();
    let mut byte = [0];
    bytes.read_exact_at(&mut byte, at).unwrap();
    bytes.write_all_at(&[!byte[0]], at).unwrap();
    placement.file.to_string()
}

/// docs/faults.md: P9
#[test]
fn a_file_that_is_not_what_was_written_is_not_copied() {
    let dir = Dir::new("checkpoint-damaged");
    let store = dir.0.join("store");
    let db = Db::create(&store, &options()).unwrap();
    (0..500).for_each(|n| db.put(&key(n), &[7; 100]).unwrap());
    db.flush().unwrap();
    drop(db);
    let file = flip_a_byte(&store);
    let db = Db::open(&store, &options()).unwrap();
    let error = db.checkpoint(&dir.0.join("copy")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corruption, "{error}");
    assert!(error.to_string().contains(&file), "{error}");
    assert_eq!(names(&dir.0), ["store"]);
}

/// Not a test of its own: the process that is killed while it copies its store, again and again.
#[test]
#[ignore = "run by a_checkpoint_that_was_killed_does_not_open_and_is_made_anew"]
fn child_that_is_killed_in_a_checkpoint() {
    let Some(dir) = std::env::var_os(CHILD).map(std::path::PathBuf::from) else { return };
    let db = Db::open(&dir.join("store"), &options()).unwrap();
    let progress = std::fs::OpenOptions::new().append(true).open(dir.join("progress")).unwrap();
    for n in 1_u64.. {
        std::io::Write::write_all(&mut &progress, &n.to_be_bytes()).unwrap();
        db.checkpoint(&dir.join("copy")).unwrap();
        std::fs::remove_dir_all(dir.join("copy")).unwrap();
    }
}

/// docs/faults.md: E16
#[test]
fn a_checkpoint_that_was_killed_does_not_open_and_is_made_anew() {
    let dir = Dir::new("checkpoint-killed");
    let db = Db::create(&dir.0.join("store"), &options()).unwrap();
    (0..5_000).for_each(|n| db.put(&key(n), &[7; 1_000]).unwrap());
    drop(db);
    let (copy, tmp) = (dir.0.join("copy"), dir.0.join("copy.tmp"));
    let mut half_made = 0;
    for round in 0..6 {
        std::fs::write(dir.0.join("progress"), b"").unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "checkpoint::child_that_is_killed_in_a_checkpoint", "--ignored"])
            .env(CHILD, &dir.0)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        while last_told(&dir.0, "progress") == 0 || !tmp.join("pool.new").exists() {
            assert!(child.try_wait().unwrap().is_none(), "the child ended by itself");
            std::thread::sleep(Duration::from_millis(round));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        // The killed one is either not there, or whole under one of its names.
        if tmp.join("pool.new").exists() {
            half_made += 1;
            let error = Db::open(&tmp, &options()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NotFound);
            assert!(error.to_string().contains("its pool is not whole"), "{error}");
        }
        if copy.exists() {
            if copy.join("ring").exists() && copy.join("pool").exists() {
                assert_eq!(Db::open(&copy, &options()).unwrap().iter(..).count(), 5_000);
            }
            std::fs::remove_dir_all(&copy).unwrap();
        }
        let db = Db::open(&dir.0.join("store"), &options()).unwrap();
        db.checkpoint(&copy).unwrap();
        assert_eq!(names(&dir.0), ["copy", "progress", "store"]);
        assert_eq!(Db::open(&copy, &options()).unwrap().iter(..).count(), 5_000);
        std::fs::remove_dir_all(&copy).unwrap();
    }
    assert!(half_made > 0, "no kill came in the middle");
}

/// docs/faults.md: P9
#[test]
fn a_checkpoint_into_a_larger_pool_gives_a_full_store_room() {
    let dir = Dir::new("checkpoint-full");
    let small = Options { pool_len: 64 << 20, ..options() };
    let db = Db::create(&dir.0.join("store"), &small).unwrap();
    let mut kept = 0;
    let error = loop {
        match db.put(&key(kept), &[7; 8_000]) {
            Ok(()) => kept += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
    let to = dir.0.join("copy");
    db.checkpoint_sized(&to, 256 << 20).unwrap();
    let error = Db::open(&to, &small).unwrap_err();
    assert!(error.to_string().contains("pool_len is 67108864"), "{error}");
    let copy = Db::open(&to, &Options { pool_len: 256 << 20, ..small }).unwrap();
    assert_eq!(copy.iter(..).count() as u64, kept);
    copy.put(&key(kept), &[7; 8_000]).unwrap();
    assert!(copy.stats().slot_bytes >= SLOT_LEN);
}

//! The ring, and the end of the last process. After a clean close the ring is not needed. After a
//! kill a store without it is not opened as if nothing were missing.

use super::{Dir, key, options};
use gabion_base::ErrorKind;
use gabion_base::units::BLOCK_LEN;
use gabion_db::{Db, Durability, Options};
use gabion_pool::Label;
use rustix::fs::SeekFrom;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// A fate of the file `ring`: its name, and its effect on the file.
type Damage = (&'static str, fn(&Path));

/// Gives the ring another pool or number, and none of its content.
fn other_ring(path: &Path, change: fn(&mut Label)) {
    let ring = std::fs::File::options().read(true).write(true).open(path).unwrap();
    let (len, mut block) = (options().ring_len, vec![0; BLOCK_LEN]);
    ring.read_exact_at(&mut block, len).unwrap();
    let mut label = Label::decode(&block).unwrap();
    change(&mut label);
    ring.set_len(0).unwrap();
    ring.set_len(len + BLOCK_LEN as u64).unwrap();
    ring.write_all_at(&label.encode(), len).unwrap();
}

/// Each leaves a store without its ring; with the store's message.
const LOSSES: [Damage; 2] = [
    ("its ring is missing", |ring| std::fs::remove_file(ring).unwrap()),
    ("its ring was lost before a start that was interrupted", |ring| {
        other_ring(ring, |label| label.number += 1);
    }),
];

/// Each leaves something that is not the ring; with the store's message.
const OTHERS: [Damage; 7] = [
    ("it is an empty file", |ring| std::fs::write(ring, b"").unwrap()),
    ("it is a file of 1000000 bytes", |ring| {
        std::fs::File::options().write(true).open(ring).unwrap().set_len(1_000_000).unwrap();
    }),
    ("it is a file of 8388608 bytes", |ring| {
        std::fs::File::options().write(true).open(ring).unwrap().set_len(8 << 20).unwrap();
    }),
    ("not labelled as Gabion's", |ring| {
        let len = std::fs::metadata(ring).unwrap().len();
        std::fs::write(ring, vec![0; len as usize]).unwrap();
    }),
    ("belong to pool 0909", |ring| other_ring(ring, |label| label.pool_id = [9; 16])),
    ("it is ring 5 of the pool, which has had ring 0 since", |ring| {
        other_ring(ring, |label| label.number = 5);
    }),
    ("it is a directory", |ring| {
        std::fs::remove_file(ring).unwrap();
        std::fs::create_dir(ring).unwrap();
    }),
];

fn value(n: u64) -> Vec<u8> {
    vec![n as u8; 1 + (n as usize * 37) % 700]
}

fn put(db: &Db, keys: std::ops::Range<u64>) {
    keys.for_each(|n| db.put(&key(n), &value(n)).unwrap());
}

fn check(db: &Db, count: u64) {
    let pairs: Vec<_> = db.iter(..).map(|pair| pair.unwrap()).collect();
    assert_eq!(pairs.len() as u64, count);
    for (n, (found, bytes)) in pairs.iter().enumerate() {
        assert_eq!((&found[..], &bytes[..]), (&key(n as u64)[..], &value(n as u64)[..]));
    }
}

/// Copies the written parts of a file. Not by another program: while that starts it has a copy of
/// each open file, and so of each lock that another test takes.
fn copy_file(from: &Path, to: &Path) {
    let (from, to) = (std::fs::File::open(from).unwrap(), std::fs::File::create(to).unwrap());
    let len = from.metadata().unwrap().len();
    to.set_len(len).unwrap();
    let mut at = 0;
    while let Ok(data) = rustix::fs::seek(&from, SeekFrom::Data(at)) {
        at = rustix::fs::seek(&from, SeekFrom::Hole(data)).unwrap();
        let mut bytes = vec![0; (at - data) as usize];
        from.read_exact_at(&mut bytes, data).unwrap();
        to.write_all_at(&bytes, data).unwrap();
    }
}

/// The store as a kill of its process would leave it now.
fn killed(store: &Path, to: &Path) -> PathBuf {
    let _ = std::fs::remove_dir_all(to);
    std::fs::create_dir_all(to).unwrap();
    ["pool", "ring"].iter().for_each(|name| copy_file(&store.join(name), &to.join(name)));
    to.to_owned()
}

fn accepting() -> Options {
    Options { accept_lost_ring: true, ..options() }
}

/// docs/faults.md: P25
#[test]
fn after_a_clean_close_nothing_is_lost_without_the_ring_whatever_became_of_it() {
    let dir = Dir::new("ring-clean");
    // One short record; some that end within a block; more than a MemTable and a segment.
    for count in [1, 200, 5_000] {
        let store = dir.0.join(format!("store-{count}"));
        let db = Db::create(&store, &options()).unwrap();
        put(&db, 0..count);
        db.close().unwrap();
        for (what, damage) in LOSSES {
            let copy = killed(&store, &dir.0.join("copy"));
            damage(&copy.join("ring"));
            let db = Db::open(&copy, &options()).unwrap();
            let notices = db.take_notices().join("; ");
            assert!(notices.contains(what) && notices.contains("nothing is lost"), "{notices}");
            check(&db, count);
            // It goes on in the new ring, as ever.
            put(&db, count..count + 10);
            let again = killed(&copy, &dir.0.join("again"));
            drop(db);
            for opened in [copy, again] {
                let db = Db::open(&opened, &options()).unwrap();
                assert_eq!(db.take_notices().iter().find(|text| text.contains("ring")), None);
                check(&db, count + 10);
            }
        }
    }
}

#[test]
fn a_store_that_is_dropped_is_closed_and_one_that_was_only_read_too() {
    let dir = Dir::new("ring-dropped");
    let ring = dir.0.join("ring");
    let db = Db::create(&dir.0, &options()).unwrap();
    put(&db, 0..5);
    drop(db);
    for _ in 0..3 {
        std::fs::remove_file(&ring).unwrap();
        check(&Db::open(&dir.0, &options()).unwrap(), 5);
    }
    // Nothing was ever written to this store.
    let dir = Dir::new("ring-fresh");
    drop(Db::create(&dir.0, &options()).unwrap());
    std::fs::remove_file(dir.0.join("ring")).unwrap();
    check(&Db::open(&dir.0, &options()).unwrap(), 0);
}

#[test]
fn what_no_log_has_is_in_a_file_once_the_store_is_closed() {
    let dir = Dir::new("ring-unlogged");
    let db = Db::create(&dir.0, &options()).unwrap();
    put(&db, 0..5);
    db.put_with(&key(5), &value(5), Durability::MemTable).unwrap();
    db.close().unwrap();
    std::fs::remove_file(dir.0.join("ring")).unwrap();
    check(&Db::open(&dir.0, &options()).unwrap(), 6);
}

/// A store that was killed after writes. The first hundred are flushed; the others are in its ring,
/// unless that took ten seconds.
fn killed_store(dir: &Dir) -> PathBuf {
    let store = dir.0.join("store");
    let db = Db::create(&store, &options()).unwrap();
    put(&db, 0..100);
    db.sync().unwrap();
    put(&db, 100..105);
    killed(&store, &dir.0.join("killed"))
}

fn told(db: &Db) -> usize {
    let notices = db.take_notices();
    notices.into_iter().filter(|text| text.contains("not stopped cleanly")).count()
}

/// docs/faults.md: P25
#[test]
fn after_a_kill_a_store_without_its_ring_is_refused_until_that_is_accepted() {
    let dir = Dir::new("ring-killed");
    let store = killed_store(&dir);
    for (what, damage) in LOSSES {
        let copy = killed(&store, &dir.0.join("copy"));
        damage(&copy.join("ring"));
        for _ in 0..2 {
            let error = Db::open(&copy, &options()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corruption);
            let text = error.to_string();
            for part in [what, "had not stopped cleanly", "from @", "since 20", "accept_lost_ring"]
            {
                assert!(text.contains(part), "{part}: {text}");
            }
        }
        let db = Db::open(&copy, &accepting()).unwrap();
        assert_eq!(told(&db), 1, "{what}");
        let count = db.iter(..).count() as u64;
        assert!((100..=105).contains(&count), "{count} of 105, of which 100 were flushed");
        check(&db, count);
    }
}

#[test]
fn a_store_that_was_refused_is_as_it_was_once_its_ring_is_back() {
    let dir = Dir::new("ring-back");
    let store = killed_store(&dir);
    let (ring, elsewhere) = (store.join("ring"), dir.0.join("elsewhere"));
    std::fs::rename(&ring, &elsewhere).unwrap();
    Db::open(&store, &options()).unwrap_err();
    assert!(!ring.exists());
    std::fs::rename(&elsewhere, &ring).unwrap();
    let db = Db::open(&store, &options()).unwrap();
    assert_eq!(told(&db), 0);
    check(&db, 105);
}

/// An operator who accepts a loss is told of it again after each further kill, until the store was
/// closed.
/// docs/faults.md: P25
#[test]
fn a_loss_is_told_until_a_store_that_told_it_was_closed() {
    let dir = Dir::new("ring-told");
    let mut store = killed_store(&dir);
    std::fs::remove_file(store.join("ring")).unwrap();
    drop(Db::open(&store, &options()).unwrap_err());
    for n in 0..3 {
        let db = Db::open(&store, &Options { accept_lost_ring: n == 0, ..options() }).unwrap();
        assert_eq!(told(&db), 1, "{n}");
        store = killed(&store, &dir.0.join(format!("killed-{n}")));
    }
    drop(Db::open(&store, &options()).unwrap());
    assert_eq!(told(&Db::open(&store, &options()).unwrap()), 0);
}

/// Nothing overwrites a file that is not the ring; the message says whether the ring is missed.
/// docs/faults.md: P25
#[test]
fn what_lies_in_place_of_the_ring_is_refused_and_said_whether_the_ring_is_missed() {
    let dir = Dir::new("ring-other");
    let store = dir.0.join("store");
    let db = Db::create(&store, &options()).unwrap();
    put(&db, 0..5);
    let was_killed = killed(&store, &dir.0.join("killed"));
    db.close().unwrap();
    for (what, damage) in OTHERS {
        for (from, cleanly) in [(&store, true), (&was_killed, false)] {
            let copy = killed(from, &dir.0.join("copy"));
            let ring = copy.join("ring");
            damage(&ring);
            for accepts in [false, true] {
                let options = Options { accept_lost_ring: accepts, ..options() };
                let text = Db::open(&copy, &options).unwrap_err().to_string();
                assert!(text.contains("is not the ring of this pool"), "{text}");
                let missed =
                    "It had not stopped cleanly, so its ring may hold what nothing else does";
                assert!(text.contains(what) && text.contains(missed) != cleanly, "{what}: {text}");
                assert_eq!(text.contains("move this away, and nothing is lost"), cleanly, "{text}");
            }
            match ring.is_dir() {
                true => std::fs::remove_dir(&ring).unwrap(),
                false => std::fs::remove_file(&ring).unwrap(),
            }
            assert_eq!(Db::open(&copy, &options()).is_ok(), cleanly, "{what}");
        }
    }
}

/// The marker of a clean close counts for the writes before it, and not for later ones.
/// docs/faults.md: P25
#[test]
fn a_write_after_a_clean_close_needs_the_ring_again_at_once() {
    let dir = Dir::new("ring-void");
    let store = dir.0.join("store");
    let db = Db::create(&store, &options()).unwrap();
    put(&db, 0..5);
    db.close().unwrap();
    let db = Db::open(&store, &options()).unwrap();
    for n in 5..10 {
        put(&db, n..n + 1);
        let copy = killed(&store, &dir.0.join("copy"));
        std::fs::remove_file(copy.join("ring")).unwrap();
        let error = Db::open(&copy, &options()).unwrap_err();
        assert!(error.to_string().contains("had not stopped cleanly"), "{error}");
        let copy = killed(&store, &copy);
        check(&Db::open(&copy, &options()).unwrap(), n + 1);
    }
}

/// It could be the ring of an earlier build, which has no label; but such a pool had no other ring
/// before.
#[test]
fn a_ring_without_a_label_is_none_of_a_pool_that_has_had_another() {
    let dir = Dir::new("ring-unlabelled");
    let db = Db::create(&dir.0, &options()).unwrap();
    let ring = dir.0.join("ring");
    put(&db, 0..50);
    drop(db);
    let unlabel = || {
        let file = std::fs::File::options().write(true).open(&ring).unwrap();
        file.set_len(options().ring_len).unwrap();
    };
    unlabel();
    check(&Db::open(&dir.0, &options()).unwrap(), 50);
    std::fs::remove_file(&ring).unwrap();
    put(&Db::open(&dir.0, &options()).unwrap(), 50..60);
    unlabel();
    let error = Db::open(&dir.0, &options()).unwrap_err();
    assert!(error.to_string().contains("not labelled as Gabion's"), "{error}");
}

#[test]
fn a_closed_store_takes_nothing_more_from_any_handle_and_is_still_read() {
    let dir = Dir::new("ring-closed");
    let db = Db::create(&dir.0, &options()).unwrap();
    put(&db, 0..5);
    let (other, snapshot) = (db.clone(), db.snapshot());
    db.close().unwrap();
    let errors = [other.put(b"k", b"v"), other.delete(b"k"), other.sync(), other.flush()];
    for error in errors.map(Result::unwrap_err) {
        assert_eq!(error.to_string(), "the store is closed");
    }
    check(&other, 5);
    assert_eq!(snapshot.get(&key(3)).unwrap().as_deref(), Some(&value(3)[..]));
    assert_eq!(Db::open(&dir.0, &options()).unwrap_err().kind(), ErrorKind::Busy);
    other.close().unwrap();
    drop(snapshot);
    std::fs::remove_file(dir.0.join("ring")).unwrap();
    check(&Db::open(&dir.0, &options()).unwrap(), 5);
}

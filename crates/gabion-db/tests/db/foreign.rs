//! Foreign files at every name that a store uses, and the remains of an interrupted creation
//! (docs/faults.md E16).

use super::{CHILD, Dir, key, last_told, options};
use gabion_base::units::BLOCK_LEN;
use gabion_base::{Error, ErrorKind};
use gabion_db::Db;
use gabion_pool::label::POOL_LABEL_AT;
use gabion_pool::{Label, Purpose};
use std::collections::BTreeMap;
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Things of another owner.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Thing {
    Text,
    /// As long as a ring with its label.
    Long,
    /// As long as a ring of an earlier version.
    OldRing,
    Empty,
    Directory,
    FullDirectory,
    Link,
    LinkToNowhere,
    Fifo,
}

const THINGS: [Thing; 9] = [
    Thing::Text,
    Thing::Long,
    Thing::OldRing,
    Thing::Empty,
    Thing::Directory,
    Thing::FullDirectory,
    Thing::Link,
    Thing::LinkToNowhere,
    Thing::Fifo,
];

fn put_there(thing: Thing, path: &Path) {
    let ring_len = options().ring_len as usize;
    let made = match thing {
        Thing::Text => std::fs::write(path, b"somebody's words"),
        Thing::Long => std::fs::write(path, vec![b'x'; ring_len + BLOCK_LEN]),
        Thing::OldRing => std::fs::write(path, vec![0; ring_len]),
        Thing::Empty => std::fs::write(path, b""),
        Thing::Directory => std::fs::create_dir(path),
        Thing::FullDirectory => {
            std::fs::create_dir(path).unwrap();
            std::fs::write(path.join("pool.new"), b"somebody's words")
        }
        Thing::Link => {
            let target = path.parent().unwrap().join("theirs");
            std::fs::write(&target, b"somebody's words").unwrap();
            symlink(target, path)
        }
        Thing::LinkToNowhere => symlink("nowhere", path),
        Thing::Fifo => {
            use rustix::fs::{CWD, FileType, Mode, mknodat};
            mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).map_err(Into::into)
        }
    };
    made.unwrap();
}

/// Everything below a directory: the kind and the bytes by name.
fn tree(dir: &Path) -> BTreeMap<PathBuf, (String, Vec<u8>)> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let data = path.symlink_metadata().unwrap();
        let kind = format!("{:?} {:?} {}", data.file_type(), data.modified().unwrap(), data.len());
        let bytes = match data.file_type() {
            // A running store writes its pool.
            kind if kind.is_file() && data.len() < options().pool_len => {
                std::fs::read(&path).unwrap()
            }
            kind if kind.is_symlink() => {
                std::fs::read_link(&path).unwrap().into_os_string().into_encoded_bytes()
            }
            _ => Vec::new(),
        };
        if data.is_dir() {
            found.extend(tree(&path));
        }
        found.insert(path, (kind, bytes));
    }
    found
}

fn names_it(error: &Error, path: &Path, case: &str) {
    let text = error.to_string();
    assert!(text.contains(&path.display().to_string()), "{case}: {text}");
    assert!(
        text.contains("Gabion") || text.contains("not the ring of this pool"),
        "{case}: {text}"
    );
}

#[test]
fn creation_writes_and_removes_nothing_that_is_not_gabions_at_any_name() {
    let dir = Dir::new("foreign-creation");
    for name in ["pool", "pool.new", "ring", "ring.new"] {
        for thing in THINGS {
            let ways: [fn(&Path) -> gabion_base::Result<Db>; 2] =
                [|dir| Db::create(dir, &options()), |dir| Db::open_or_create(dir, &options())];
            for create in ways {
                let case = format!("{thing:?} called {name}");
                let store = dir.0.join("store");
                std::fs::create_dir(&store).unwrap();
                put_there(thing, &store.join(name));
                let before = tree(&store);
                let error = create(&store).expect_err(&case);
                names_it(&error, &store.join(name), &case);
                assert!(tree(&store) == before, "{case}: {:?}", tree(&store).keys());
                std::fs::remove_dir_all(&store).unwrap();
            }
        }
    }
}

#[test]
fn opening_changes_no_ring_and_no_pool_that_is_not_its_own() {
    let dir = Dir::new("foreign-opening");
    let store = dir.0.join("store");
    Db::create(&store, &options()).unwrap().put(b"stone", b"grey").unwrap();
    let aside = dir.0.join("aside");
    for name in ["pool", "ring"] {
        std::fs::rename(store.join(name), &aside).unwrap();
        for thing in THINGS {
            let case = format!("{thing:?} called {name}");
            put_there(thing, &store.join(name));
            let others = |name: &PathBuf| !name.ends_with("pool") && !name.ends_with("aside");
            let seen =
                || -> Vec<_> { tree(&dir.0).into_iter().filter(|(n, _)| others(n)).collect() };
            let before = seen();
            let error = Db::open(&store, &options()).expect_err(&case);
            names_it(&error, &store.join(name), &case);
            assert!(seen() == before, "{case}");
            let _ = std::fs::remove_file(store.join(name));
            let _ = std::fs::remove_dir_all(store.join(name));
            let _ = std::fs::remove_file(store.join("theirs"));
        }
        std::fs::rename(&aside, store.join(name)).unwrap();
    }
    let db = Db::open(&store, &options()).unwrap();
    assert_eq!(db.get(b"stone").unwrap().as_deref(), Some(&b"grey"[..]));
}

#[test]
fn what_is_called_as_the_mark_of_a_failed_flush_and_is_none_stays() {
    let dir = Dir::new("foreign-mark");
    for thing in THINGS {
        // Operators are told to make an empty file.
        if thing == Thing::Empty {
            continue;
        }
        let store = dir.0.join("store");
        std::fs::create_dir(&store).unwrap();
        put_there(thing, &store.join("pool.new.unflushed"));
        put_there(thing, &store.join("pool.unflushed"));
        let before = tree(&store);
        let db = Db::create(&store, &options()).unwrap();
        db.put(b"stone", b"grey").unwrap();
        let notices = db.take_notices().join("; ");
        assert!(notices.contains("pool.unflushed: stays, as it is not Gabion's"), "{notices}");
        drop(db);
        let after = tree(&store);
        assert!(before.iter().all(|(name, was)| after.get(name) == Some(was)), "{thing:?}");
        std::fs::remove_dir_all(&store).unwrap();
    }
}

#[test]
fn a_ring_that_is_gone_is_made_anew_over_nobody_elses() {
    let dir = Dir::new("foreign-new-ring");
    let store = dir.0.join("store");
    drop(Db::create(&store, &options()).unwrap());
    std::fs::remove_file(store.join("ring")).unwrap();
    for thing in THINGS {
        put_there(thing, &store.join("ring.new"));
        let error = Db::open(&store, &options()).expect_err(&format!("{thing:?}"));
        names_it(&error, &store.join("ring.new"), &format!("{thing:?}"));
        assert!(!store.join("ring").exists());
        let _ = std::fs::remove_file(store.join("ring.new"));
        let _ = std::fs::remove_dir_all(store.join("ring.new"));
        let _ = std::fs::remove_file(store.join("theirs"));
    }
    // A file that was to become a ring is ours.
    let label = Label { purpose: Purpose::Ring, pool_id: [1; 16], len: 1 << 20, number: 0 };
    std::fs::write(store.join("ring.new"), label.encode()).unwrap();
    let db = Db::open(&store, &options()).unwrap();
    assert!(db.take_notices().join("; ").contains("its ring is missing"));
    assert!(!store.join("ring.new").exists());
}

#[test]
fn the_ring_of_another_store_is_refused_and_named() {
    let dir = Dir::new("ring-of-another");
    let (one, other) = (dir.0.join("one"), dir.0.join("other"));
    for store in [&one, &other] {
        Db::create(store, &options()).unwrap().put(b"stone", b"grey").unwrap();
    }
    let own = std::fs::read(one.join("ring")).unwrap();
    std::fs::copy(other.join("ring"), one.join("ring")).unwrap();
    let before = std::fs::read(one.join("ring")).unwrap();
    let error = Db::open(&one, &options()).unwrap_err();
    assert!(error.to_string().contains("belong to pool "), "{error}");
    assert_eq!(std::fs::read(one.join("ring")).unwrap(), before);
    // A ring whose pool was carried off is not thrown away either.
    std::fs::remove_file(one.join("pool")).unwrap();
    let error = Db::open_or_create(&one, &options()).unwrap_err();
    assert!(error.to_string().contains("which is not here"), "{error}");
    assert_eq!(std::fs::read(one.join("ring")).unwrap(), before);
    assert_ne!(own, before);
}

#[test]
fn a_ring_of_an_earlier_version_is_known_by_its_records_and_gets_a_label() {
    let dir = Dir::new("old-ring");
    let store = dir.0.join("store");
    let db = Db::create(&store, &options()).unwrap();
    (0..50).for_each(|n| db.put(&key(n), b"value").unwrap());
    drop(db);
    let ring = std::fs::File::options().read(true).write(true).open(store.join("ring")).unwrap();
    let len = options().ring_len;
    let mut label = vec![0; BLOCK_LEN];
    ring.read_exact_at(&mut label, len).unwrap();
    // Without it, and with the remains of it after a power cut.
    for (left, cut) in [(0, 0), (BLOCK_LEN, 0), (BLOCK_LEN, 512)] {
        let part = [&label[..cut], &vec![0; left - cut]].concat();
        ring.set_len(len).unwrap();
        ring.write_all_at(&part, len).unwrap();
        assert_eq!(Db::open(&store, &options()).unwrap().iter(..).count(), 50);
        let mut found = vec![0; BLOCK_LEN];
        ring.read_exact_at(&mut found, len).unwrap();
        assert!(found == label);
    }
    // The label alone is no reason to accept another length.
    ring.set_len(len / 2).unwrap();
    ring.write_all_at(&label, len / 2).unwrap();
    assert!(Db::open(&store, &options()).is_err());
}

#[test]
fn a_checkpoint_writes_and_removes_nothing_that_is_not_gabions() {
    let dir = Dir::new("foreign-checkpoint");
    let db = Db::create(&dir.0.join("store"), &options()).unwrap();
    db.put(b"stone", b"grey").unwrap();
    let place = dir.0.join("place");
    std::fs::create_dir(&place).unwrap();
    let (copy, tmp) = (place.join("copy"), place.join("copy.tmp"));
    let refuses = |path: &Path, case: &str| {
        let before = tree(&place);
        let error = db.checkpoint(&copy).expect_err(case);
        assert!(error.to_string().contains(&path.display().to_string()), "{case}: {error}");
        assert!(tree(&place) == before, "{case}: {:?}", tree(&place).keys());
    };
    for thing in THINGS {
        for path in [&copy, &tmp] {
            put_there(thing, path);
            refuses(path, &format!("{thing:?} called {}", path.display()));
            std::fs::remove_dir_all(&place).unwrap();
            std::fs::create_dir(&place).unwrap();
        }
        for name in ["checkpoint.unfinished", "pool", "pool.new", "ring", "ring.new", "thesis"] {
            std::fs::create_dir(&tmp).unwrap();
            if name != "checkpoint.unfinished" {
                let label =
                    Label { purpose: Purpose::Checkpoint, pool_id: [0; 16], len: 0, number: 0 };
                std::fs::write(tmp.join("checkpoint.unfinished"), label.encode()).unwrap();
            }
            put_there(thing, &tmp.join(name));
            // The link's target has a name that no checkpoint leaves either.
            refuses(&tmp, &format!("{thing:?} called {name}"));
            std::fs::remove_dir_all(&tmp).unwrap();
        }
    }
    db.checkpoint(&copy).unwrap();
    assert_eq!(std::fs::read_dir(&place).unwrap().count(), 1);
}

/// Copies the parts that are not zero.
fn copy_sparse(from: &Path, to: &Path) {
    let (from, to) = (std::fs::File::open(from).unwrap(), std::fs::File::create(to).unwrap());
    let mut chunk = vec![0; 1 << 20];
    let len = from.metadata().unwrap().len();
    for at in (0..len).step_by(chunk.len()) {
        from.read_exact_at(&mut chunk, at).unwrap();
        if chunk.iter().any(|&byte| byte != 0) {
            to.write_all_at(&chunk, at).unwrap();
        }
    }
    to.set_len(len).unwrap();
}

/// The directory after each step of a creation, made from a whole one.
fn steps(whole: &Path, into: &Path, step: usize) {
    std::fs::create_dir(into).unwrap();
    let ring_len = options().ring_len;
    let ring = std::fs::read(whole.join("ring")).unwrap();
    let label_of_ring = &ring[ring_len as usize..];
    let pool_id = Label::decode(label_of_ring).unwrap().pool_id;
    let (purpose, len) = (Purpose::NewPool, options().pool_len);
    let label = Label { purpose, pool_id, len, number: 0 }.encode();
    let pool = into.join(if step < 8 { "pool.new" } else { "pool" });
    if step >= 4 {
        copy_sparse(&whole.join("pool"), &pool);
    }
    let file =
        std::fs::File::options().create(true).truncate(false).write(true).open(&pool).unwrap();
    file.write_all_at(&label, POOL_LABEL_AT).unwrap();
    let zeros = [0; BLOCK_LEN];
    match step {
        // Named, with its label.
        0 => {}
        // All of it reserved.
        1 => file.set_len(options().pool_len).unwrap(),
        // The first of the superblocks torn, then alone.
        2 => file.write_all_at(b"GABPOOL\0", 0).unwrap(),
        3 => {
            let mut first = vec![0; BLOCK_LEN];
            let of = std::fs::File::open(whole.join("pool")).unwrap();
            of.read_exact_at(&mut first, 0).unwrap();
            file.write_all_at(&first, 0).unwrap();
            file.set_len(options().pool_len).unwrap();
        }
        // The second torn; filled.
        4 => file.write_all_at(&zeros[512..], BLOCK_LEN as u64 + 512).unwrap(),
        5 | 8 => {}
        // The ring named, then there.
        6 => {
            let new = std::fs::File::create(into.join("ring.new")).unwrap();
            new.write_all_at(label_of_ring, ring_len).unwrap();
        }
        _ => {}
    }
    if step >= 7 {
        std::fs::write(into.join("ring"), &ring).unwrap();
    }
}

#[test]
fn after_each_step_of_a_creation_there_is_no_store_or_a_whole_one_and_the_next_one_works() {
    let dir = Dir::new("creation-steps");
    let whole = dir.0.join("whole");
    drop(Db::create(&whole, &options()).unwrap());
    for step in 0..9 {
        let store = dir.0.join(format!("step-{step}"));
        steps(&whole, &store, step);
        match Db::open(&store, &options()) {
            Ok(_) => assert_eq!(step, 8),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::NotFound, "{step}: {error}");
                assert!(error.to_string().contains("its pool is not whole"), "{step}: {error}");
            }
        }
        let db = Db::open_or_create(&store, &options()).unwrap_or_else(|e| panic!("{step}: {e}"));
        db.put(b"stone", b"grey").unwrap();
        drop(db);
        assert_eq!(super::checkpoint::names(&store), ["pool", "ring"], "{step}");
        let db = Db::open(&store, &options()).unwrap();
        assert_eq!(db.get(b"stone").unwrap().as_deref(), Some(&b"grey"[..]));
        // A whole pool is not half-made, whatever its name: it is not thrown away.
        drop(db);
        std::fs::rename(store.join("pool"), store.join("pool.new")).unwrap();
        assert!(Db::open_or_create(&store, &options()).is_err());
        assert!(store.join("pool.new").exists() && store.join("ring").exists());
        std::fs::remove_dir_all(&store).unwrap();
    }
}

/// Not a test of its own: the process that is killed while it makes stores, one after the other.
#[test]
#[ignore = "run by a_creation_that_was_killed_is_made_anew"]
fn child_that_is_killed_in_a_creation() {
    let Some(dir) = std::env::var_os(CHILD).map(PathBuf::from) else { return };
    for n in 1_u64.. {
        std::fs::write(dir.join("progress"), n.to_be_bytes()).unwrap();
        drop(Db::create(&dir.join("store"), &options()).unwrap());
        std::fs::remove_dir_all(dir.join("store")).unwrap();
    }
}

#[test]
fn a_creation_that_was_killed_is_made_anew() {
    let dir = Dir::new("creation-killed");
    let store = dir.0.join("store");
    for round in 0..12 {
        std::fs::write(dir.0.join("progress"), b"").unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "foreign::child_that_is_killed_in_a_creation", "--ignored"])
            .env(CHILD, &dir.0)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        while last_told(&dir.0, "progress") == 0 {
            assert!(child.try_wait().unwrap().is_none(), "the child ended by itself");
        }
        std::thread::sleep(Duration::from_millis(round));
        child.kill().unwrap();
        child.wait().unwrap();
        // `remove_dir_all` removes name by name: a store without its pool is no half-made one.
        if store.exists() && store.join("ring").exists() && !store.join("pool.new").exists() {
            let _ = std::fs::remove_dir_all(&store);
        }
        let db = Db::open_or_create(&store, &options()).unwrap();
        db.put(b"stone", b"grey").unwrap();
        drop(db);
        assert_eq!(super::checkpoint::names(&store), ["pool", "ring"]);
        std::fs::remove_dir_all(&store).unwrap();
    }
}

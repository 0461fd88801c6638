//! A fork of a process that has a store open. The child is refused whatever it tries, nothing hangs
//! although its threads are not there, and the parent loses nothing. A program of its own, which no
//! harness runs on threads.
#![allow(
    clippy::disallowed_methods,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a test with real processes, which fails where it stands"
)]

use gabion_db::{Db, Durability, Options, RunOptions, WriteBatch};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// One test, in a directory that is not there.
type Test = fn(&Path);

const CHILD: &str = "GABION_FORK_PARENT";
const KEYS: u32 = 1_000;
/// A hanging child is found, however slow the machine is.
const PATIENCE: Duration = Duration::from_secs(60);

fn options() -> Options {
    Options { pool_len: 256 << 20, segment_len: 1 << 20, ring_len: 4 << 20, ..Options::default() }
}

fn directory(name: &str) -> PathBuf {
    let dir = std::env::temp_dir().join(format!("gabion-db-fork-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    dir
}

/// Runs `child` in a fork and waits for its end. Returns whether it ended without a panic.
fn in_fork(child: impl FnOnce()) -> bool {
    // SAFETY: the child has one thread and ends in this function, by `_exit`, which runs nothing
    // that its parent set up. What it does before needs no lock that another thread may have had
    // but those of the allocator, which glibc gives it anew, and those that the store must not
    // touch, which is what is tested: a child that hangs is killed below.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "{}", std::io::Error::last_os_error());
    if pid == 0 {
        let is_good = catch_unwind(AssertUnwindSafe(child)).is_ok();
        // SAFETY: ends the process, whatever is under way in it.
        unsafe { libc::_exit(i32::from(!is_good)) }
    }
    let begun = Instant::now();
    loop {
        let mut status = 0;
        // SAFETY: `status` is a place for an i32, and `pid` is a child that nobody else waits for.
        match unsafe { libc::waitpid(pid, &raw mut status, libc::WNOHANG) } {
            0 if begun.elapsed() > PATIENCE => {
                // SAFETY: the child has not been waited for, so the number is still its.
                unsafe { libc::kill(pid, libc::SIGKILL) };
                panic!("the child hangs");
            }
            0 => std::thread::sleep(Duration::from_millis(5)),
            _ => return libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0,
        }
    }
}

fn refused<T>(what: &str, result: gabion_base::Result<T>) {
    let text = result.err().unwrap_or_else(|| panic!("{what} is taken in a fork")).to_string();
    assert!(text.contains("the store was opened by process"), "{what}: {text}");
}

/// A call that returns no error panics, with the same words.
fn panics<T>(what: &str, call: impl FnOnce() -> T) {
    let Err(why) = catch_unwind(AssertUnwindSafe(call)) else {
        panic!("{what} is taken in a fork")
    };
    let text = why.downcast_ref::<String>().map_or("", String::as_str);
    assert!(text.contains("the store was opened by process"), "{what}: {text}");
}

/// All calls on a store, and on things made from it before the fork.
fn try_everything(db: &Db, dir: &Path) {
    let (key, value) = (&b"key-3"[..], &b"of the child"[..]);
    for durability in [Durability::MemTable, Durability::Ring, Durability::Flushed] {
        refused("put_with", db.put_with(key, value, durability));
        let mut batch = WriteBatch::new();
        batch.put(key, value);
        refused("write", db.write(&batch, durability));
    }
    refused("put", db.put(key, value));
    refused("add", db.add(b"counter", 1));
    refused("delete", db.delete(key));
    refused("delete_range", db.delete_range(.."x"));
    refused("sync", db.sync());
    refused("flush", db.flush());
    refused("wait_until_quiet", db.wait_until_quiet());
    refused("compact_range", db.compact_range(..));
    refused("bulk_load", db.bulk_load());
    refused("checkpoint", db.checkpoint(&dir.join("copy")));
    refused("set_run_options", db.set_run_options(RunOptions::default()));
    refused("get", db.get(key));
    refused("approximate_size", db.approximate_size(..));
    db.multi_get([key, value]).into_iter().for_each(|one| refused("multi_get", one));
    panics("snapshot", || db.snapshot());
    panics("iter", || db.iter(..));
    panics("cursor", || db.cursor(..));
    panics("prefix", || db.prefix(b"key"));
    panics("stats", || db.stats());
    panics("run_options", || db.run_options());
    panics("codecs", || db.codecs());
    panics("write_limits", || db.write_limits());
    panics("adopt_system_time", || db.adopt_system_time());
    assert!(db.take_notices().join("").contains("the store was opened by process"));
    assert!(db.failure().unwrap().to_string().contains("the store was opened by process"));
    refused("close", db.clone().close());
    assert!(Db::open(dir, &options()).unwrap_err().to_string().contains("in use by process"));
}

fn put(db: &Db, keys: std::ops::Range<u32>) {
    keys.for_each(|n| db.put(format!("key-{n}").as_bytes(), &n.to_le_bytes()).unwrap());
}

fn check(db: &Db, count: u32) {
    for n in 0..count {
        let found = db.get(format!("key-{n}").as_bytes()).unwrap();
        assert_eq!(found.as_deref(), Some(&n.to_le_bytes()[..]), "key-{n}");
    }
    assert_eq!(db.iter(..).count(), count as usize);
}

/// Things made before the fork are of no use either, and dropping them does nothing.
/// docs/faults.md: P25
fn a_child_is_refused_whatever_it_tries(dir: &Path) {
    let db = Db::create(dir, &options()).unwrap();
    put(&db, 0..KEYS);
    let (snapshot, mut cursor) = (db.snapshot(), db.cursor(..));
    assert!(cursor.next().unwrap());
    let mut load = db.bulk_load().unwrap();
    load.put(b"loaded", b"before").unwrap();
    let ring = std::fs::read(dir.join("ring")).unwrap();
    let (db_of_child, snapshot_of_child) = (db.clone(), snapshot.clone());
    assert!(in_fork(|| {
        std::panic::set_hook(Box::new(|_| {}));
        try_everything(&db_of_child, dir);
        refused("Snapshot::get", snapshot_of_child.get(b"key-3"));
        refused("Snapshot::approximate_size", snapshot_of_child.approximate_size(..));
        snapshot_of_child
            .multi_get([&b"key-3"[..]])
            .into_iter()
            .for_each(|one| refused("many", one));
        refused("Cursor::next", cursor.next());
        refused("Cursor::seek", cursor.seek(b"key-3"));
        refused("Range", snapshot_of_child.iter(..).next().unwrap());
        drop(snapshot_of_child.clone());
        refused("BulkLoad::put", load.put(b"more", b"by the child"));
        refused("BulkLoad::finish", load.finish());
        drop((cursor, snapshot_of_child, snapshot, db_of_child));
        drop(db.clone());
        // It may have a store of its own.
        let own = dir.join("own");
        let db = Db::create(&own, &options()).unwrap();
        put(&db, 0..10);
        check(&db, 10);
        db.close().unwrap();
    }));
    assert!(std::fs::read(dir.join("ring")).unwrap() == ring, "the child wrote to the ring");
}

/// Locks that threads of the parent have when it forks are never given back in the child.
/// docs/faults.md: P25
fn a_child_of_a_busy_parent_does_not_hang(dir: &Path) {
    let db = Db::create(dir, &options()).unwrap();
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..3_u32 {
            let (db, ends) = (&db, &ends);
            scope.spawn(move || {
                let mut n = 0_u32;
                while !ends.load(Ordering::Relaxed) {
                    db.put(&[&thread.to_le_bytes()[..], &n.to_le_bytes()].concat(), &[7; 100])
                        .unwrap();
                    drop(db.snapshot());
                    n = (n + 1) % 10_000;
                }
            });
        }
        for _ in 0..30 {
            let of_child = db.clone();
            assert!(in_fork(|| {
                std::panic::set_hook(Box::new(|_| {}));
                refused("put", of_child.put(b"k", b"v"));
                refused("get", of_child.get(b"k"));
                panics("snapshot", || of_child.snapshot());
                drop(of_child);
            }));
        }
        ends.store(true, Ordering::Relaxed);
    });
}

/// The input of the report: puts of a child, then the parent goes on and is killed.
/// docs/faults.md: P25
fn what_a_parent_acknowledged_is_there_after_its_kill(dir: &Path) {
    let program = std::env::current_exe().unwrap();
    let mut parent = Command::new(program).env(CHILD, dir).spawn().unwrap();
    let begun = Instant::now();
    while !dir.join("ready").exists() {
        assert!(parent.try_wait().unwrap().is_none(), "the parent ended by itself");
        assert!(begun.elapsed() < PATIENCE, "the parent does not come to its end");
        std::thread::sleep(Duration::from_millis(5));
    }
    parent.kill().unwrap();
    parent.wait().unwrap();
    check(&Db::open(dir, &options()).unwrap(), KEYS);
}

fn parent(dir: &Path) {
    let db = Db::create(dir, &options()).unwrap();
    put(&db, 0..KEYS / 2);
    assert!(in_fork(|| (0..10).for_each(|_| refused("put", db.put(b"of the child", b"value")))));
    put(&db, KEYS / 2..KEYS);
    std::fs::write(dir.join("ready"), b"").unwrap();
    loop {
        std::thread::park();
    }
}

fn main() {
    if let Some(dir) = std::env::var_os(CHILD) {
        return parent(Path::new(&dir));
    }
    let tests: [(&str, Test); 3] = [
        ("a_child_is_refused_whatever_it_tries", a_child_is_refused_whatever_it_tries),
        ("a_child_of_a_busy_parent_does_not_hang", a_child_of_a_busy_parent_does_not_hang),
        (
            "what_a_parent_acknowledged_is_there_after_its_kill",
            what_a_parent_acknowledged_is_there_after_its_kill,
        ),
    ];
    for (name, test) in tests {
        let dir = directory(name);
        test(&dir);
        println!("test {name} ... ok");
        std::fs::remove_dir_all(&dir).unwrap();
    }
}

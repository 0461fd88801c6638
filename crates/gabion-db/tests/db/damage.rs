//! A store with a damaged file, and no replica to repair it from.

use super::checkpoint::flip_a_byte;
use super::{Dir, Model, key, options};
use gabion_base::{Error, ErrorKind};
use gabion_db::{Db, Durability, WriteBatch};
use std::sync::mpsc;
use std::time::Duration;

/// Returns the result of `call`, which must not wait for something that will not come.
fn in_time<T: Send + 'static>(what: &str, call: impl FnOnce() -> T + Send + 'static) -> T {
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        let _ = tell.send(call());
    });
    told.recv_timeout(Duration::from_secs(30)).unwrap_or_else(|_| panic!("{what} does not end"))
}

fn names(file: &str, error: &Error) {
    assert_eq!(error.kind(), ErrorKind::Corruption, "{error}");
    assert!(error.to_string().contains(file), "{error}");
}

/// Writes past the log until a write is refused. The accepted writes go into the model.
fn fill(db: &Db, model: &mut Model, round: u8) -> Error {
    for n in (0..2_000).cycle() {
        let value = vec![round; 200];
        match db.put_with(&key(n), &value, Durability::MemTable) {
            Ok(()) => model.insert(key(n), value),
            Err(error) => return error,
        };
    }
    unreachable!("a cycle has no end")
}

/// docs/faults.md: E9
#[test]
fn a_store_whose_compactions_need_what_is_damaged_says_so_and_neither_waits_nor_loses_anything() {
    let dir = Dir::new("damage");
    let mut small = options();
    (small.tree.l0_trigger, small.tree.l0_slowdown, small.tree.l0_stop) = (2, 6, 6);
    let db = Db::create(&dir.0, &small).unwrap();
    // A file of L0, which the first compaction reads.
    (0..200).for_each(|n| db.put(&key(10 * n), &[0; 200]).unwrap());
    db.flush().unwrap();
    drop(db);
    let file = flip_a_byte(&dir.0);

    let mut model = Model::new();
    for round in 1..3 {
        let db = Db::open(&dir.0, &small).unwrap();
        let (error, db, filled) =
            in_time("a put", move || (fill(&db, &mut model, round), db, model));
        model = filled;
        names(&file, &error);
        let calls: [fn(&Db) -> gabion_base::Result<()>; 4] = [
            |db| db.put(b"key", b"value"),
            |db| db.delete(b"key"),
            |db| {
                let mut batch = WriteBatch::new();
                batch.delete_prefix(b"key");
                db.write(&batch, Durability::Flushed)
            },
            |db| db.compact_range(..),
        ];
        for (at, call) in calls.into_iter().enumerate() {
            let db = db.clone();
            names(&file, &in_time(&format!("call {at}"), move || call(&db)).unwrap_err());
        }
        // The writes are kept all the same: in the first round as the store closes.
        let keeping = db.clone();
        in_time("a sync", move || keeping.sync()).unwrap();
        if round == 2 {
            let keeping = db.clone();
            in_time("a flush", move || keeping.flush()).unwrap();
        }
        assert_eq!(db.stats().damaged_files, 1);
        assert!(db.failure().is_none());
        for (key, value) in &model {
            assert_eq!(db.get(key).unwrap().as_deref(), Some(&value[..]));
        }
        in_time("the end", move || drop(db));
    }
    assert!(model.len() > 1_000);
    let db = Db::open(&dir.0, &small).unwrap();
    for (key, value) in &model {
        assert_eq!(db.get(key).unwrap().as_deref(), Some(&value[..]));
    }
}

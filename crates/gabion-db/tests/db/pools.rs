//! Small pools: their default lengths, and how much they hold.

use super::Dir;
use gabion_db::{Db, ErrorKind, Options};

const MIB: u64 = 1 << 20;

/// Puts values of 1,000 bytes under keys in no order until the pool is full. Returns the bytes.
fn fill(db: &Db, from: u64) -> u64 {
    let there = db.iter(..).count() as u64;
    for n in from.. {
        let key = n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
        if let Err(error) = db.put(key, [n as u8; 1_000]) {
            assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
            assert!(error.to_string().contains("the pool is full"), "{error}");
            assert_eq!(db.iter(..).count() as u64, there + n - from);
            return (n - from) * 1_008;
        }
    }
    unreachable!("a pool is never full")
}

/// The table of docs/operations.md, "What a pool holds", promises this much.
#[test]
fn a_pool_of_any_length_holds_what_the_documents_say() {
    // The longest takes as long as the others together: in CI.
    let is_whole = std::env::var_os("GABION_TIMES").is_some();
    for (pool, holds) in [(64, 10), (128, 50), (256, 140)] {
        if pool == 256 && !is_whole {
            continue;
        }
        let dir = Dir::new(&format!("pools-{pool}"));
        let options = Options { pool_len: pool * MIB, ..Options::default() };
        let db = Db::create(&dir.0, &options).unwrap();
        let took = fill(&db, 0);
        println!("{pool} MiB hold {:.1} MiB", took as f64 / MIB as f64);
        assert!(took >= holds * MIB, "{pool} MiB: {took}");
        // A full pool gives deleted space back.
        db.delete_range([0]..[0x80]).unwrap();
        db.flush().unwrap();
        db.wait_until_quiet().unwrap();
        assert!(fill(&db, took) > 0);
        drop(db);
        // Both ways to state how it was made.
        for options in [options, Options::default()] {
            assert!(Db::open(&dir.0, &options).unwrap().iter(..).count() > 0);
        }
    }
}

#[test]
fn a_pool_that_would_hold_nothing_is_refused() {
    for pool_len in [16 * MIB, 32 * MIB, 64 * MIB - 1] {
        let dir = Dir::new("pools-refused");
        let store = dir.0.join("store");
        let error = Db::create(&store, &Options { pool_len, ..Options::default() }).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::LimitExceeded);
        assert!(error.to_string().starts_with(&format!("pool_len is {pool_len}: ")), "{error}");
        assert!(!store.exists());
    }
}

/// Lengths that a caller states and that differ, and lengths too long for the pool, are refused
/// before any file is made.
#[test]
fn lengths_that_are_said_hold_and_must_fit() {
    let dir = Dir::new("pools-said");
    let said =
        Options { pool_len: 64 * MIB, segment_len: MIB, ring_len: 4 * MIB, ..Options::default() };
    let db = Db::create(&dir.0, &said).unwrap();
    let error = db.put("k", vec![1; 1 << 20]).unwrap_err();
    assert!(error.to_string().contains("1040384"), "{error}");
    drop(db);
    std::fs::remove_dir_all(&dir.0).unwrap();
    let mut large = said;
    let long = Options { segment_len: 15 * MIB, ring_len: 60 * MIB, ..large.clone() };
    large.tree.memtable_len = 32 * MIB;
    for (options, says) in [(large, "memtable_len is 33554432"), (long, "segment_len is 15728640")]
    {
        let text = Db::create(&dir.0, &options).unwrap_err().to_string();
        assert!(text.contains(says) && text.contains("is the most"), "{text}");
        assert!(!dir.0.exists());
    }
}

//! Blocks that a cursor has in hand ahead of its own: in a cache that has all, some or none of
//! them, and when the cursor goes elsewhere meanwhile.

use super::*;
use crate::cache::ReadCache as _;

/// A file of 100 blocks and more, and its rows.
fn long() -> (FinishedFile, Vec<Row>) {
    let options = SstOptions { block_len: 512, ..SstOptions::default() };
    let key = |n: u64| format!("\u{1}key{n:05}").into_bytes();
    let rows: Vec<Row> = (0..600).map(|n| (key(n), put(n), vec![n as u8; 150])).collect();
    (build(&options, 7, &rows), rows)
}

/// A cache that has the blocks of which `is_kept` says so, by their places.
fn cache_of(
    source: &Memory,
    reader: &Arc<SstReader>,
    is_kept: impl Fn(usize) -> bool,
) -> Rc<LocalCache> {
    let (all, some) = (LocalCache::new(1 << 20), LocalCache::new(1 << 20));
    for at in 0..reader.block_count() {
        let handle = reader.block_at(at).unwrap();
        let block = now(reader.read_block(&source, &all, handle)).unwrap();
        if is_kept(at) {
            some.keep_block(reader.id(), u64::from(handle.offset), block);
        }
    }
    source.reads.borrow_mut().clear();
    Rc::new(some)
}

#[test]
fn a_walk_meets_every_entry_whichever_blocks_are_in_the_cache() {
    let (file, rows) = long();
    let source = Memory::of(&[&file]);
    let reader = open(&source, &file.meta).unwrap();
    let blocks = reader.block_count();
    assert!(blocks > 100);
    let kept: [&dyn Fn(usize) -> bool; 4] =
        [&|_| true, &|_| false, &|at| at % 3 != 0, &|at| at / 10 % 2 == 0];
    for is_kept in kept {
        let cache = cache_of(&source, &reader, is_kept);
        let mut iter = SstIter::new(reader.clone(), &source, cache.clone());
        now(iter.seek_to_first()).unwrap();
        for row in &rows {
            assert_eq!(row_of(&iter).as_ref(), Some(row));
            now(iter.advance()).unwrap();
        }
        assert!(iter.entry().is_none());
        let absent = (0..blocks).filter(|at| !is_kept(*at)).count();
        let reads = source.reads.take();
        // A block that was looked for ahead and is not there counts as missed when its turn comes,
        // and not before.
        let stats = cache.blocks.stats();
        assert_eq!(stats.misses, reads.len() as u64);
        let read: u64 = reads.iter().map(|(_, len)| *len as u64).sum();
        match absent {
            0 => assert_eq!((stats.hits, read), (blocks as u64, 0)),
            _ if absent == blocks => {
                assert_eq!(read, u64::from(reader.data_len()), "each block is read once");
                assert!(reads.len() < 8, "{reads:?}");
            }
            _ => assert!(reads.len() <= absent),
        }
    }
}

#[test]
fn a_block_that_was_read_ahead_and_is_damaged_is_an_error_when_its_turn_comes() {
    let (file, rows) = long();
    let reader = open(&Memory::of(&[&file]), &file.meta).unwrap();
    let bad = reader.block_at(30).unwrap();
    let mut bytes = file.bytes.to_vec();
    bytes[bad.offset as usize + 5] ^= 1;
    let source = Memory::image(file.meta.id, bytes);
    let mut iter = SstIter::new(reader, &source, Rc::new(LocalCache::new(1 << 20)));
    now(iter.seek_to_first()).unwrap();
    let mut met = 0;
    let error = loop {
        assert_eq!(row_of(&iter).as_ref(), Some(&rows[met]));
        met += 1;
        if let Err(error) = now(iter.advance()) {
            break error;
        }
    };
    assert_eq!(error.kind(), ErrorKind::Corruption);
    assert!(error.message().contains(&format!("at {}", bad.offset)), "{error}");
    assert!((60..200).contains(&met), "{met}: all entries before it, and none behind");
    assert!(iter.entry().is_none());
}

#[test]
fn a_cursor_with_blocks_in_hand_goes_back_and_elsewhere() {
    let (file, rows) = long();
    let source = Memory::of(&[&file]);
    let reader = open(&source, &file.meta).unwrap();
    let cache = cache_of(&source, &reader, |at| at % 17 != 0);
    for steps in 0..80 {
        let mut iter = SstIter::new(reader.clone(), &source, cache.clone());
        let from = 37;
        now(iter.seek(&rows[from].0, SequenceNumber::MAX)).unwrap();
        (0..steps).for_each(|_| now(iter.advance()).unwrap());
        for at in (from..=from + steps).rev() {
            assert_eq!(row_of(&iter).as_ref(), Some(&rows[at]), "{steps} steps");
            now(iter.retreat()).unwrap();
        }
        (0..steps).for_each(|_| now(iter.advance()).unwrap());
        let at = from - 1 + steps;
        assert_eq!(row_of(&iter).as_ref(), Some(&rows[at]), "{steps} steps");
        now(iter.seek(&rows[3].0, SequenceNumber::MAX)).unwrap();
        (0..20).for_each(|_| now(iter.advance()).unwrap());
        assert_eq!(row_of(&iter).as_ref(), Some(&rows[23]), "{steps} steps");
    }
}

#[test]
fn what_is_taken_without_waiting_ends_where_a_block_is_missing() {
    let (file, rows) = long();
    let source = Memory::of(&[&file]);
    let reader = open(&source, &file.meta).unwrap();
    let cache = cache_of(&source, &reader, |at| at != 20);
    let mut iter = SstIter::new(reader, &source, cache);
    now(iter.seek_to_first()).unwrap();
    let mut met = 1;
    while let Some(advanced) = iter.try_advance() {
        advanced.unwrap();
        assert_eq!(row_of(&iter).as_ref(), Some(&rows[met]));
        met += 1;
    }
    assert!(source.reads.borrow().is_empty());
    assert!(met > 40, "{met}");
    assert!(iter.try_advance().is_none(), "and again");
    now(iter.advance()).unwrap();
    assert_eq!(row_of(&iter).as_ref(), Some(&rows[met]));
    assert_eq!(source.reads.borrow().len(), 1);
}

//! The cache of blocks against a model, and its order of eviction.

use super::*;
use alloc::vec;
use proptest::prelude::*;

fn block(n: u64, len: usize) -> Bytes {
    Bytes::from(vec![n as u8; len])
}

fn file(n: u64) -> FileId {
    FileId::sst(n)
}

/// What the cache holds, counted block by block.
fn invariants(cache: &BlockCache) {
    let inner = cache.inner.borrow();
    let live = || inner.slots.iter().filter_map(|s| s.block.as_ref().map(|b| (s, charge(b))));
    assert_eq!(inner.stats.bytes, live().map(|(_, c)| c).sum::<usize>());
    assert_eq!(inner.stats.blocks, live().count());
    let small: usize = live().filter(|(s, _)| s.in_small).map(|(_, c)| c).sum();
    assert_eq!(inner.small_bytes, small);
    assert!(inner.stats.bytes <= inner.capacity);
    assert_eq!(inner.table.len(), inner.stats.blocks);
    assert_eq!(inner.files.values().map(|f| f.count as usize).sum::<usize>(), inner.stats.blocks);
    for (file, blocks) in &inner.files {
        let (mut before, mut at, mut count) = (NONE, blocks.first, 0);
        while at != NONE {
            let slot = &inner.slots[at as usize];
            assert!(slot.file() == *file && slot.before == before && slot.block.is_some());
            assert_eq!(inner.find(*file, slot.offset), Some(at));
            (before, at, count) = (at, slot.after, count + 1);
        }
        assert_eq!(count, blocks.count);
    }
    assert_eq!(inner.small.len() + inner.main.len() + inner.free.len(), inner.slots.len());
    assert!(inner.ghost_names.len() <= inner.ghosts.len());
}

/// Bytes of all by which blocks are found and chosen.
fn tables_len(cache: &BlockCache) -> usize {
    let inner = cache.inner.borrow();
    let queues = inner.free.capacity() + inner.small.capacity() + inner.main.capacity();
    let name_len = size_of::<(FileId, u64)>();
    inner.slots.capacity() * size_of::<Slot>()
        + queues * size_of::<u32>()
        + inner.table.memory_used()
        + inner.files.capacity() * size_of::<(FileId, Blocks)>()
        + (inner.ghosts.capacity() + inner.ghost_names.capacity()) * name_len
}

/// The order in which blocks make room survives, too: what was used again stays longest.
/// docs/faults.md: P19
#[test]
fn a_cache_that_is_made_smaller_gives_back_what_found_the_blocks_that_went() {
    let len = 1 + BLOCK_OVERHEAD;
    let cache = BlockCache::new(100_000 * len);
    for n in 0..100_000 {
        cache.insert(file(n % 1_000), n, block(n, 1));
    }
    let used = |n: u64| cache.get(file(n % 1_000), n).is_some();
    assert_eq!((0..500).filter(|n| used(*n)).count(), 500);
    let before = tables_len(&cache);
    assert!(before > 64 * 100_000);
    cache.set_capacity(1_000 * len);
    let stats = cache.stats();
    assert_eq!((stats.blocks, stats.bytes), (1_000, 1_000 * len));
    assert!(tables_len(&cache) < before / 50, "{} bytes of {before}", tables_len(&cache));
    assert_eq!((0..500).filter(|n| used(*n)).count(), 500);
    invariants(&cache);
    cache.set_capacity(0);
    assert_eq!(cache.stats().bytes, 0);
    assert!(tables_len(&cache) < 4_000, "{} bytes", tables_len(&cache));
    cache.set_capacity(1_000 * len);
    for n in 0..2_000 {
        cache.insert(file(n % 7), n, block(n, 1));
    }
    assert_eq!(cache.stats().blocks, 1_000);
    invariants(&cache);
}

proptest! {
    /// docs/faults.md: P19
    #[test]
    fn a_cache_returns_what_was_put_in_or_nothing(
        ops in prop::collection::vec((0u8..13, 0u64..4, 0u64..40, 1usize..900), 0..400),
    ) {
        let cache = BlockCache::new(8_000);
        for (op, f, offset, len) in ops {
            match op {
                0 => {
                    cache.evict_file(file(f));
                    let mut left = Vec::new();
                    cache.blocks_of(file(f), &mut left);
                    prop_assert!(left.is_empty());
                    prop_assert!((0..40).all(|o| cache.get(file(f), o).is_none()));
                }
                10 => {
                    cache.set_capacity(len * 10);
                    prop_assert_eq!(cache.capacity(), len * 10);
                }
                11..=12 => {
                    let new = block(f * 40 + offset, len);
                    let was_here = cache.get(file(f), offset).is_some();
                    let is_taken = cache.insert_warm(file(f), offset, new);
                    prop_assert!(!(was_here && is_taken));
                    prop_assert_eq!(cache.get(file(f), offset).is_some(), was_here || is_taken);
                }
                1..=4 => cache.insert(file(f), offset, block(f * 40 + offset, len)),
                _ => {
                    if let Some(found) = cache.get(file(f), offset) {
                        prop_assert!(found.iter().all(|&b| b == (f * 40 + offset) as u8));
                    }
                }
            }
            invariants(&cache);
        }
    }
}

#[test]
fn a_long_scan_does_not_displace_blocks_in_use() {
    let cache = BlockCache::new(100 * (1_000 + BLOCK_OVERHEAD));
    for offset in 0..50 {
        cache.insert(file(1), offset, block(1, 1_000));
    }
    for _ in 0..2 {
        (0..50).for_each(|offset| assert!(cache.get(file(1), offset).is_some()));
    }
    for offset in 0..10_000 {
        cache.insert(file(2), offset, block(2, 1_000));
    }
    let kept = (0..50).filter(|&offset| cache.get(file(1), offset).is_some()).count();
    assert_eq!(kept, 50);
    invariants(&cache);
}

#[test]
fn a_block_that_comes_back_soon_is_kept() {
    let cache = BlockCache::new(10 * (100 + BLOCK_OVERHEAD));
    for offset in 0..11 {
        cache.insert(file(1), offset, block(1, 100));
    }
    assert!(cache.get(file(1), 0).is_none());
    cache.insert(file(1), 0, block(1, 100));
    for offset in 100..105 {
        cache.insert(file(2), offset, block(2, 100));
    }
    assert!(cache.get(file(1), 0).is_some());
    let stats = cache.stats();
    assert_eq!((stats.hits, stats.misses, stats.blocks), (1, 1, 10));
}

#[test]
fn files_that_come_and_go_leave_nothing_behind() {
    let cache = BlockCache::new(1 << 20);
    for n in 0..1_000 {
        (0..20).for_each(|offset| cache.insert(file(n), offset, block(n, 10)));
        cache.evict_file(file(n));
    }
    assert!(cache.inner.borrow().slots.len() < 200);
    assert_eq!(cache.stats().bytes, 0);
    invariants(&cache);
}

#[test]
fn a_block_over_the_budget_is_not_taken_and_a_budget_of_nothing_takes_none() {
    for capacity in [0, 500] {
        let cache = BlockCache::new(capacity);
        cache.insert(file(1), 0, block(1, 500));
        assert_eq!(cache.stats().blocks, 0);
    }
}

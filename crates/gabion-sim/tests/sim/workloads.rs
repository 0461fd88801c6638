//! Workloads for a replica alone in its group, for tests that break it at every point: each takes
//! another way through the log, flushes, compactions and the pool's books.

use crate::rig::{Turn, expiring, group};
use gabion_engine::Compression;
use gabion_node::{AckLevel, CompactionMode, GroupConfig};
use gabion_sim::Random;
use gabion_sim::client::{LONG_KEYS, TWINS};

/// A group's shape and its writes.
pub(crate) struct Workload {
    pub(crate) name: &'static str,
    pub(crate) group: GroupConfig,
    pub(crate) turns: Vec<Turn>,
}

const fn put(key: u64, number: u64) -> (u64, Option<u64>) {
    (key, Some(number << 8))
}

/// A put of the number whose value is one of the longest, up to 3 KB.
fn put_long(key: u64, number: u64) -> (u64, Option<u64>) {
    let is_long = |value: &u64| value.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 60 == 0;
    let value = (number << 8..).find(is_long).expect("one in 16 is");
    (key, Some(value))
}

/// A put of the number that expires at a time of the group.
const fn put_until(key: u64, number: u64, at_ms: u64) -> (u64, Option<u64>) {
    (key, Some(expiring(number << 8, at_ms)))
}

fn workload(
    name: &'static str,
    group: GroupConfig,
    count: u64,
    mut turn: impl FnMut(u64) -> Turn,
) -> Workload {
    Workload { name, group, turns: (1..count).map(&mut turn).collect() }
}

fn replicated() -> GroupConfig {
    group(AckLevel::Replicated, Compression::None)
}

fn durable() -> GroupConfig {
    group(AckLevel::Durable, Compression::None)
}

/// The same in a group in which every replica compacts for itself: no log has its changes of files.
/// With a codec of its own at the bottom.
fn everywhere(workload: Workload, name: &'static str, bottom: Compression) -> Workload {
    let mut group = workload.group;
    group.compaction = CompactionMode::EveryReplica;
    group.tree.bottom_compression = Some(bottom);
    Workload { name, group, ..workload }
}

/// Puts and overwrites with flushes and compactions.
pub(crate) fn puts() -> Workload {
    let mut random = Random::new(1);
    workload("puts", replicated(), 400, |n| Turn::Write(vec![put(random.below(60), n)]))
}

/// Batches of deletes and puts, clears of everything, LZ4.
pub(crate) fn deletes() -> Workload {
    let mut random = Random::new(2);
    workload("deletes", group(AckLevel::Replicated, Compression::Lz4), 300, |n| {
        let (key, twins) = (random.below(40), TWINS + random.below(5));
        match random.below(60) {
            0 => Turn::Clear,
            1..15 => Turn::Write(vec![(key, None), (key + 1, None)]),
            15..20 => Turn::Write(vec![(twins, None), (key, None)]),
            _ => Turn::Write(vec![put(key, n), put(twins, n), put(key + 7, n)]),
        }
    })
}

/// Batches that are acknowledged when they are durable, over segments and trims.
pub(crate) fn durable_batches() -> Workload {
    let mut random = Random::new(3);
    workload("durable", durable(), 160, |n| {
        let (key, twins) = (random.below(30), TWINS + random.below(4));
        match random.once_in(5) {
            true => Turn::Write(vec![(key, None), (twins, None)]),
            false => Turn::Write(vec![put(twins, n), put(key, n)]),
        }
    })
}

/// Batches, some of them durable, beside whatever flushes are under way.
pub(crate) fn syncs() -> Workload {
    let mut random = Random::new(19);
    workload("syncs", replicated(), 260, |n| match random.below(9) {
        0 | 1 => Turn::Sync,
        2 => Turn::Write(vec![(random.below(40), None), (TWINS + n % 4, None)]),
        _ => Turn::Write(vec![put(TWINS + n % 4, n), put(random.below(40), n)]),
    })
}

/// Long values that stay in the log's segments, which are as long as a MemTable; overwritten, so
/// that compactions empty them. The ring has room for all MemTables: it is drained for these alone.
pub(crate) fn kept() -> Workload {
    let mut random = Random::new(24);
    let mut group = replicated();
    (group.segment_len, group.ring_len) = (16 * 1024, 128 * 1024);
    group.tree.large_values = 64;
    workload("kept", group, 120, |n| match random.below(30) {
        0 => Turn::Restart,
        1 => Turn::Write(vec![(random.below(20), None), (random.below(20), None)]),
        _ => Turn::Write(vec![put_long(random.below(40), n)]),
    })
}

/// Ascending keys: flushed files overlap nothing and are moved down as they are.
pub(crate) fn ascending() -> Workload {
    workload("ascending", replicated(), 160, |n| Turn::Write(vec![put(n, n), put(1_000 + n, n)]))
}

/// Descending keys.
pub(crate) fn descending() -> Workload {
    workload("descending", replicated(), 160, |n| Turn::Write(vec![put(5_000 - n, n)]))
}

/// A few keys again and again: compaction drops most entries.
pub(crate) fn hot() -> Workload {
    workload("hot", group(AckLevel::Replicated, Compression::Lz4), 220, |n| {
        Turn::Write(vec![put(n % 3, n), put(TWINS, n)])
    })
}

/// Values that fill blocks, and batches that fill a good part of a segment.
pub(crate) fn long_values() -> Workload {
    workload("long", replicated(), 50, |n| {
        let writes = 0..1 + n % 9;
        Turn::Write(writes.map(|i| put_long((n * 7 + i) % 40, 100 * n + i)).collect())
    })
}

/// Fills and empties a range in turns: levels of tombstones, files that compact to nothing.
pub(crate) fn fill_and_empty() -> Workload {
    workload("fill and empty", replicated(), 200, |n| {
        let key = n % 40;
        match n / 40 % 2 {
            0 => Turn::Write(vec![put(key, n), put(key + 40, n)]),
            _ => Turn::Write(vec![(key, None), (key + 40, None)]),
        }
    })
}

/// Deletes of absent keys and ranges, ascending, beside a pair and over a few: MemTables of
/// tombstones alone, which make no file, or one that is dropped.
pub(crate) fn tombstones() -> Workload {
    workload("tombstones", replicated(), 320, |n| {
        let none = 100 + 2 * n;
        match n % 40 {
            3 => Turn::Write(vec![put(n % 7, n), put(100 + n, n)]),
            12 => Turn::DeleteRange(none..none + 30),
            13 | 21 | 22 => Turn::Seal,
            30 if n > 200 => Turn::Restart,
            33 => Turn::Sync,
            _ => Turn::Write((none..none + 4).map(|key| (key, None)).collect()),
        }
    })
}

/// Clears of everything between puts: files below the floor are dropped unread.
pub(crate) fn clears() -> Workload {
    workload("clears", replicated(), 200, |n| match n % 33 {
        0 => Turn::Clear,
        _ => Turn::Write(vec![put(n % 25, n), put(TWINS + n % 3, n)]),
    })
}

/// MemTables that are sealed before they are full, and compactions on demand.
pub(crate) fn on_demand() -> Workload {
    let mut random = Random::new(4);
    workload("on demand", replicated(), 150, |n| match n % 25 {
        7 | 15 => Turn::Seal,
        24 => Turn::Compact,
        _ => Turn::Write(vec![put(random.below(30), n)]),
    })
}

/// A process that is killed and started again amid everything, at level durable.
pub(crate) fn restarts() -> Workload {
    let mut random = Random::new(5);
    workload("restarts", durable(), 120, |n| match n % 30 {
        29 => Turn::Restart,
        13 => Turn::Seal,
        _ => Turn::Write(vec![put(random.below(30), n), put(TWINS + random.below(3), n)]),
    })
}

/// Counters that are added to and never read, over flushes, compactions, clears and restarts: the
/// value under an operand may lie anywhere.
pub(crate) fn counters() -> Workload {
    let mut random = Random::new(7);
    workload("counters", replicated(), 200, |n| match n % 50 {
        49 => Turn::Restart,
        25 if n > 100 => Turn::Clear,
        37 => Turn::Compact,
        10 | 20 | 30 => Turn::Seal,
        _ if n % 3 == 0 => {
            Turn::Write(vec![put(100 + random.below(20), n), (random.below(9), None)])
        }
        _ => {
            let counters = 0..1 + random.below(4);
            Turn::Add(counters.map(|_| (random.below(9), 1 + random.below(50))).collect())
        }
    })
}

/// Ranges that are deleted, small ones and large, over flushes, compactions and restarts: the
/// deleted keys may lie anywhere, and files that hold nothing else sink.
pub(crate) fn range_deletes() -> Workload {
    let mut random = Random::new(8);
    workload("range deletes", replicated(), 220, |n| match n % 44 {
        43 => Turn::Restart,
        // So that a start has segments of a log to read.
        39 => Turn::Sync,
        31 => Turn::Compact,
        10 | 20 | 21 | 36 => Turn::Seal,
        _ if n % 5 == 0 => {
            let (first, len) =
                (random.below(60), 1 + random.below(if n % 20 == 0 { 60 } else { 6 }));
            Turn::DeleteRange(first..first + len)
        }
        _ if n % 7 == 0 => {
            let first = TWINS + random.below(5);
            Turn::DeleteRange(first..first + 1 + random.below(3))
        }
        _ => Turn::Write(vec![
            put(random.below(60), n),
            put(TWINS + random.below(6), n),
            put(random.below(60), n),
        ]),
    })
}

/// Loads of sorted input between writes, flushes, compactions and restarts, over existing keys and
/// beside them.
pub(crate) fn loads() -> Workload {
    let mut random = Random::new(8);
    workload("loads", replicated(), 120, |n| match n % 20 {
        6 | 13 => {
            let (first, step) = (random.below(30), 1 + random.below(4));
            let keys = (0..8).map(|i| first + i * step).chain([TWINS + n % 3]);
            Turn::Load(keys.map(|key| put(key, n)).collect())
        }
        19 if n % 40 == 39 => Turn::Restart,
        10 => Turn::Seal,
        17 => Turn::Compact,
        _ if n % 5 == 4 => Turn::Write(vec![(random.below(40), None)]),
        _ => Turn::Write(vec![put(random.below(60), n), put(TWINS + random.below(3), n)]),
    })
}

/// Writes past the log among others: MemTables of both, of either, and seals, edits and records
/// behind numbers that no record has. At last a clear past the log, with nothing in the MemTable.
pub(crate) fn past_the_log() -> Workload {
    let mut random = Random::new(9);
    let mut workload = workload("past the log", replicated(), 260, |n| match n % 65 {
        20 | 33 | 34 | 64 => Turn::Seal,
        50 => Turn::Compact,
        58 => Turn::Rest,
        // A MemTable of nothing else.
        21..=32 => Turn::Unlogged,
        _ if random.once_in(3) => Turn::Unlogged,
        _ => Turn::Write(vec![put(random.below(40), n), (random.below(40), None)]),
    });
    workload.turns.extend([Turn::Rest, Turn::ClearUnlogged, Turn::Seal]);
    workload
}

/// Keys that expire a while after they are put, soon or after flushes and compactions, over others
/// and under them, and restarts with a clock that begins anew: until it has caught up, the group's
/// time stands still. All in zstd.
pub(crate) fn expiries() -> Workload {
    let mut random = Random::new(10);
    let group = group(AckLevel::Replicated, Compression::Zstd { level: 3 });
    workload("expiries", group, 176, |n| match n % 60 {
        59 => Turn::Restart,
        40 => Turn::Compact,
        15 | 30 | 55 => Turn::Seal,
        50 => Turn::Rest,
        _ => {
            let at_ms = n + 1 + random.below(if n % 4 == 0 { 300 } else { 50 });
            let (some, other) = (random.below(40), random.below(40));
            let twins = put_until(TWINS + random.below(4), n, at_ms);
            match n % 3 {
                0 => Turn::Write(vec![put(some, n), (other, None), twins]),
                _ => Turn::Write(vec![put_until(some, n, at_ms), put(other, n), twins]),
            }
        }
    })
}

/// Keys of 288 bytes that differ where bounds of files are usually cut.
pub(crate) fn long_keys() -> Workload {
    let mut random = Random::new(11);
    workload("long keys", replicated(), 220, |n| match n % 110 {
        50 => Turn::Compact,
        80 => Turn::Restart,
        _ => {
            let mut key = || LONG_KEYS + random.below(150);
            Turn::Write(vec![put(key(), n), put(key(), n), (key(), None)])
        }
    })
}

/// [`expiries`], [`deletes`] and [`clears`] where every replica compacts.
pub(crate) fn expiries_everywhere() -> Workload {
    everywhere(expiries(), "expiries everywhere", Compression::Lz4)
}

pub(crate) fn deletes_everywhere() -> Workload {
    everywhere(deletes(), "deletes everywhere", Compression::Zstd { level: 1 })
}

pub(crate) fn clears_everywhere() -> Workload {
    everywhere(clears(), "clears everywhere", Compression::Lz4)
}

/// Few writes and long pauses: idle work (drains, trims, repairs of books) has its time. LZ4 above
/// zstd.
pub(crate) fn pauses() -> Workload {
    let mut random = Random::new(6);
    let mut group = group(AckLevel::Replicated, Compression::Lz4);
    group.tree.bottom_compression = Some(Compression::Zstd { level: 3 });
    workload("pauses", group, 120, |n| match n % 10 {
        9 => Turn::Rest,
        _ => Turn::Write(vec![put(random.below(20), n), (random.below(20), None)]),
    })
}

/// The least workload with most of it: batches, overwrites, deletes, a clear, seals, flushes, a
/// compaction and a restart. For tests that take every crash point of every recovery.
pub(crate) fn little() -> Workload {
    let group = GroupConfig { segment_len: 16 * 1024, ring_len: 64 * 1024, ..durable() };
    workload("little", group, 24, |n| match n {
        6 | 12 | 20 => Turn::Seal,
        9 => Turn::Clear,
        14 => Turn::Compact,
        17 => Turn::Restart,
        _ if n % 4 == 3 => Turn::Write(vec![(n % 5, None), put(TWINS, n)]),
        _ => Turn::Write(vec![put(n % 5, n), put(5 + n % 3, n)]),
    })
}

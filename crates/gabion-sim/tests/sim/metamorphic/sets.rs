//! Options under which the same operations must give the same history.

use gabion_base::units::{KIB, MIB};
use gabion_engine::{Compression, PinBudget, SstOptions, TreeConfig};
use gabion_node::{AckLevel, CompactionMode};
use gabion_sim::{Faults, Options};

/// A group's options.
pub(super) struct Set {
    pub(super) name: &'static str,
    pub(super) options: Options,
    /// Whether readers go past their budget before they are given up.
    pub(super) ends_readers: bool,
}

/// Three replicas with no faults but the script's.
fn base() -> Options {
    Options {
        replicas: 3,
        clients: 0,
        twins: 0,
        marks: 0,
        faults: Faults::default(),
        tree: Some(shape()),
        ..Options::default()
    }
}

/// A tree that has several levels soon.
fn shape() -> TreeConfig {
    TreeConfig {
        memtable_len: 16 * KIB,
        sst_len: 32 * KIB,
        level1_len: 64 * KIB,
        level_multiplier: 4,
        l0_trigger: 2,
        ..TreeConfig::default()
    }
}

fn tree(change: impl FnOnce(&mut TreeConfig)) -> Options {
    let mut tree = shape();
    change(&mut tree);
    Options { tree: Some(tree), ..base() }
}

fn sst(sst: SstOptions) -> Options {
    tree(|tree| tree.sst = sst)
}

/// With one codec above and another at the bottom.
fn bottom(above: Compression, bottom: Compression) -> Options {
    tree(|tree| {
        tree.sst.compression = above;
        tree.bottom_compression = Some(bottom);
    })
}

/// With filters of so many bits at the bottom and so many more above.
fn filters(filter_bits_per_key: u32, more: u32) -> Options {
    tree(|tree| {
        tree.sst.filter_bits_per_key = filter_bits_per_key;
        tree.upper_filter_bits_extra = more;
    })
}

fn set(name: &'static str, options: Options) -> Set {
    Set { name, options, ends_readers: false }
}

/// All of them.
pub(super) fn all() -> Vec<Set> {
    let sets = [of_trees(), of_files(), of_replicas(), together(), of_values()];
    sets.into_iter().flatten().collect()
}

fn of_trees() -> Vec<Set> {
    vec![
        set("a small tree of three replicas", base()),
        set("the shape of the other tests", Options { tree: None, ..base() }),
        set(
            "the shape that is the default",
            Options { tree: Some(TreeConfig::default()), ..base() },
        ),
        set("MemTables of 4 KiB", tree(|tree| tree.memtable_len = 4 * KIB)),
        set("MemTables of 64 KiB", tree(|tree| tree.memtable_len = 64 * KIB)),
        set("MemTables of 1 MiB", tree(|tree| tree.memtable_len = MIB)),
        set("one sealed MemTable", tree(|tree| tree.sealed_max = 1)),
        set("files of 4 KiB", tree(|tree| tree.sst_len = 4 * KIB)),
        set("files of 1 MiB", tree(|tree| (tree.sst_len, tree.level1_len) = (MIB, MIB))),
        set("levels of twice the one above", tree(|tree| tree.level_multiplier = 2)),
        set(
            "many small levels",
            tree(|tree| {
                (tree.sst_len, tree.level1_len) = (8 * KIB, 8 * KIB);
                (tree.level_multiplier, tree.levels) = (2, 16);
            }),
        ),
        set("two levels", tree(|tree| tree.levels = 2)),
        set("a first level of 4 MiB", tree(|tree| tree.level1_len = 4 * MIB)),
        set("every flush is compacted", tree(|tree| tree.l0_trigger = 1)),
        set("eight files in L0", tree(|tree| tree.l0_trigger = 8)),
        set(
            "writers slow down from two files in L0 on",
            tree(|tree| (tree.l0_slowdown, tree.l0_stop) = (2, 30)),
        ),
        set("writers wait for L0 at once", tree(|tree| (tree.l0_slowdown, tree.l0_stop) = (2, 3))),
    ]
}

fn of_files() -> Vec<Set> {
    let other = SstOptions::default;
    let lz4 = Compression::Lz4;
    vec![
        set("blocks of 512 bytes", sst(SstOptions { block_len: 512, ..other() })),
        set("blocks of 64 KiB", sst(SstOptions { block_len: 64 << 10, ..other() })),
        set(
            "whole keys everywhere",
            sst(SstOptions { restart_interval: 1, index_restart_interval: 1, ..other() }),
        ),
        set(
            "one whole key in a block",
            sst(SstOptions { restart_interval: 1024, index_restart_interval: 1024, ..other() }),
        ),
        set("no filter", sst(SstOptions { filter_bits_per_key: 0, ..other() })),
        set(
            "a filter that says yes to most",
            sst(SstOptions { filter_bits_per_key: 1, ..other() }),
        ),
        set("a filter of 32 bits", sst(SstOptions { filter_bits_per_key: 32, ..other() })),
        set("the same filter everywhere", filters(10, 0)),
        set("a filter that says yes to most at the bottom alone", filters(1, 24)),
        set("LZ4", sst(SstOptions { compression: lz4, ..other() })),
        set(
            "LZ4 in blocks of 16 KiB",
            sst(SstOptions { compression: lz4, block_len: 16 << 10, ..other() }),
        ),
        set("zstd", sst(SstOptions { compression: Compression::ZSTD, ..other() })),
        set("LZ4 above zstd", bottom(lz4, Compression::ZSTD)),
        set("nothing above LZ4", bottom(Compression::None, lz4)),
        set("nothing above zstd", bottom(Compression::None, Compression::ZSTD)),
        set("LZ4 above nothing", bottom(lz4, Compression::None)),
    ]
}

fn of_replicas() -> Vec<Set> {
    let every = CompactionMode::EveryReplica;
    let durable = AckLevel::Durable;
    let few = PinBudget { age_ms_max: 50, states_max: 2 };
    let ends = Options { pin_budget: few, ..base() };
    vec![
        set("no cache", Options { cache_len: 0, ..base() }),
        set("a cache of one block", Options { cache_len: 5_000, ..base() }),
        set("a cache of 64 MiB", Options { cache_len: 64 << 20, ..base() }),
        set("four compactions at once", Options { compactions_max: 4, ..base() }),
        Set { name: "readers end soon", options: ends, ends_readers: true },
        set("segments of 64 KiB", Options { segment_len: 64 * KIB, ..base() }),
        set("segments of 1 MiB", Options { segment_len: MIB, ..base() }),
        set("durable", Options { ack: durable, ..base() }),
        set("one replica", Options { replicas: 1, ..base() }),
        set("one replica, durable", Options { replicas: 1, ack: durable, ..base() }),
        set("two replicas", Options { replicas: 2, ..base() }),
        set("four replicas", Options { replicas: 4, ..base() }),
        set("every replica compacts", Options { compaction: every, ..base() }),
        set(
            "every replica compacts, durable",
            Options { compaction: every, ack: durable, ..base() },
        ),
        set("targets of another make", Options { foreign_targets: Some(0), ..base() }),
    ]
}

/// Several of them at once.
fn together() -> Vec<Set> {
    let small = TreeConfig {
        memtable_len: 4 * KIB,
        sst_len: 4 * KIB,
        level1_len: 4 * KIB,
        l0_trigger: 1,
        sst: SstOptions {
            block_len: 512,
            restart_interval: 1,
            compression: Compression::Lz4,
            filter_bits_per_key: 0,
            ..SstOptions::default()
        },
        bottom_compression: Some(Compression::Zstd { level: 1 }),
        ..TreeConfig::default()
    };
    let (every, durable) = (CompactionMode::EveryReplica, AckLevel::Durable);
    let all_small = Options {
        replicas: 1,
        tree: Some(small.clone()),
        cache_len: 0,
        segment_len: 64 * KIB,
        compactions_max: 4,
        ..base()
    };
    let each_small = Options {
        compaction: every,
        ack: durable,
        tree: Some(TreeConfig { levels: 3, ..small }),
        segment_len: 64 * KIB,
        ..base()
    };
    vec![
        set("all that is small, one replica", all_small),
        set("all that is small, three levels, every replica, durable", each_small),
    ]
}

/// Large values apart from the tree. The fifth is among the first that `cargo test` takes.
fn of_values() -> Vec<Set> {
    let apart = |from| tree(move |tree| tree.large_values = from);
    let every = CompactionMode::EveryReplica;
    let small = tree(|tree| {
        (tree.large_values, tree.sst_len) = (64, 8 * KIB);
        tree.sst.compression = Compression::Lz4;
    });
    let packed = |codec| {
        tree(move |tree| {
            (tree.large_values, tree.value_compression) = (64, codec);
        })
    };
    vec![
        set("values from 300 bytes on apart", apart(300)),
        set("values apart from a tree of LZ4 in small files", small),
        set("values apart, every replica compacts", Options { compaction: every, ..apart(64) }),
        set(
            "values apart, no cache, one replica",
            Options { replicas: 1, cache_len: 0, ..apart(64) },
        ),
        set("values from 64 bytes on apart", apart(64)),
        set("values apart and packed with zstd", packed(Compression::ZSTD)),
        set("values apart and packed with LZ4", packed(Compression::Lz4)),
        set(
            "values apart, garbage collected slowly",
            Options { collection_bytes_per_s: Some(10_000), ..apart(64) },
        ),
    ]
}

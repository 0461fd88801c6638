//! Filters have more bits above the bottom: which files of a tree have them, and what that saves who looks for keys.

use crate::support::*;
use crate::tree_rules::Driven;
use gabion_base::{FileId, Result};
use gabion_engine::sst::inspect::Inspector;
use gabion_engine::*;
use gabion_media::Bytes;
use std::cell::Cell;
use std::rc::Rc;

const KEYS: u64 = 30_000;

/// Files whose reads are counted.
#[derive(Clone)]
struct Counted {
    files: Files,
    reads: Rc<Cell<usize>>,
}

impl FileSource for Counted {
    async fn read(&self, file: FileId, offset: u64, len: usize) -> Result<Bytes> {
        self.reads.set(self.reads.get() + 1);
        self.files.read(file, offset, len).await
    }
}

fn put_some(driven: &mut Driven, random: &mut Random, count: u64) {
    for _ in 0..count {
        let name = format!("key{:05}", random.below(KEYS));
        driven.put(&name, &[7; 40]);
    }
}

/// All keys at the bottom, some in the levels above it and in six files of L0.
fn grown(config: TreeConfig) -> Driven {
    let mut driven = Driven::new(config);
    let mut random = Random::new(5);
    (0..KEYS).for_each(|n| driven.put(&format!("key{n:05}"), &[1; 40]));
    for _ in 0..12 {
        put_some(&mut driven, &mut random, 1_000);
        driven.flush();
        driven.settle();
    }
    for _ in 0..6 {
        put_some(&mut driven, &mut random, 500);
        driven.flush();
    }
    driven
}

/// Levels of four times the one above, with small files.
fn config(filter_bits_per_key: u32, upper_filter_bits_extra: u32) -> TreeConfig {
    let (sst_len, level1_len) = (32 << 10, 64 << 10);
    let sst = SstOptions { filter_bits_per_key, ..SstOptions::default() };
    let level_multiplier = 4;
    TreeConfig {
        sst_len,
        level1_len,
        level_multiplier,
        sst,
        upper_filter_bits_extra,
        ..small_config()
    }
}

/// Reads of files for a look-up of each key, no block of which is in memory, while all files are open.
fn reads(driven: &Driven) -> usize {
    let source = Counted { files: driven.replica.files.clone(), reads: Rc::default() };
    let reads = source.reads.clone();
    let tables = Tables { source, cache: Rc::new(LocalCache::new(0)), group: GROUP };
    let view = driven.replica.tree.view();
    let look_up_all = || {
        for n in 0..KEYS {
            let found = block_on(view.get(&tables, &key(format!("key{n:05}").as_bytes())));
            assert!(found.unwrap().is_some());
        }
        reads.take()
    };
    look_up_all();
    look_up_all()
}

/// The bits of a file's filter, as it says itself.
fn bits_of(driven: &Driven, file: &FileMeta) -> u32 {
    let source = driven.replica.files.clone();
    let opened = block_on(Inspector::open(source, GROUP, file.id, file.rounded_len()));
    block_on(opened.unwrap().properties()).unwrap().options.filter_bits_per_key
}

/// Of each file its level and its bits.
fn bits(driven: &Driven) -> Vec<(u8, u32)> {
    let files = driven.replica.tree.version().files();
    files.map(|(level, file)| (level, bits_of(driven, file))).collect()
}

/// Files of L0 and levels lie above most keys, and each of their filters is wrong about one in a hundred of those that it
/// is asked for, or one in a thousand.
#[test]
fn a_look_up_at_the_bottom_reads_next_to_nothing_in_vain_where_filters_above_have_more_bits() {
    let (same, more) = (grown(config(10, 0)), grown(config(10, 6)));
    let in_vain = [reads(&same), reads(&more)].map(|reads| reads - KEYS as usize);
    // For the documentation's figures: `cargo test -p gabion-engine --test engine filters -- --nocapture`.
    println!("of {KEYS} look-ups read in vain, without and with more bits above: {in_vain:?}");
    assert!(in_vain[0] > 300, "{in_vain:?}: the test has to see filters that are wrong");
    assert!(in_vain[1] * 5 < in_vain[0], "{in_vain:?}");
    assert!(bits(&same).iter().all(|(_, bits)| *bits == 10));
    let bits = bits(&more);
    let deepest = bits.iter().map(|(level, _)| *level).max().unwrap();
    assert!(deepest > 1, "{bits:?}");
    let of = |level| bits.iter().filter(move |file| file.0 == level).map(|file| file.1);
    assert!(of(0).count() >= 6 && of(0).all(|bits| bits == 16), "{bits:?}");
    // But for a few that were moved there as they were.
    let (all, usual) = (of(deepest).count(), of(deepest).filter(|bits| *bits == 10).count());
    assert!(all > 20 && usual * 10 > all * 9, "{bits:?}");
    assert!((1..deepest).any(|level| of(level).any(|bits| bits == 16)), "{bits:?}");
}

/// What a recipe says of the filter is what its files have, at whoever makes them; and a tree without filters has none.
#[test]
fn a_recipe_says_what_filter_its_files_have() {
    for (config, above, at_bottom) in [(config(10, 6), 16, 10), (config(0, 6), 0, 0)] {
        let mut driven = Driven::new(config);
        let mut random = Random::new(9);
        let mut seen = [false; 2];
        for _ in 0..40 {
            put_some(&mut driven, &mut random, 100);
            let is_first = driven.replica.tree.version().files().next().is_none();
            let flush = driven.flush().recipe.unwrap();
            let bits = if is_first { at_bottom } else { above };
            assert_eq!((flush.bottommost, flush.sst.filter_bits_per_key), (is_first, bits));
            while let Some(job) = driven.replica.tree.next_job(&context()) {
                let edit = driven.edit(&job);
                driven.replica.tree.apply_edit(&edit).unwrap();
                let recipe = edit.recipe.unwrap();
                if recipe.kind == JobKind::Compaction {
                    let bits = if recipe.bottommost { at_bottom } else { above };
                    assert_eq!(recipe.sst.filter_bits_per_key, bits);
                    assert!(edit.added.iter().all(|(_, file)| bits_of(&driven, file) == bits));
                    seen[usize::from(recipe.bottommost)] = true;
                }
            }
        }
        assert_eq!(seen, [true; 2]);
    }
}

/// Keys that come in their order never have anything below them, though their flushes are not alone in the tree.
#[test]
fn what_is_written_in_order_has_the_filters_of_the_bottom() {
    let mut driven = Driven::new(config(10, 6));
    for n in 0..2_000 {
        driven.put(&format!("key{n:05}"), &[1; 40]);
        if n % 200 == 199 {
            driven.flush();
            driven.settle();
        }
    }
    assert!(bits(&driven).iter().all(|(_, bits)| *bits == 10), "{:?}", bits(&driven));
    // An older MemTable may hold something of the range, and becomes a file below.
    driven.put("z", b"1");
    driven.seal();
    driven.put("y", b"1");
    driven.put("zz", b"1");
    driven.seal();
    let first = driven.replica.tree.next_flush(&context()).unwrap();
    let second = driven.replica.tree.next_flush(&context()).unwrap();
    let bits = [first, second].map(|job| job.recipe.sst.filter_bits_per_key);
    assert_eq!(bits, [10, 16]);
}

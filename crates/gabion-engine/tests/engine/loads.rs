//! Files of bulk loads: how they are read, and where they may lie.

use crate::support::*;
use crate::tree_rules::Driven;
use gabion_base::{ErrorKind, SequenceNumber};
use gabion_engine::load::Loaded;
use gabion_engine::*;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

/// Files of these keys, each of which is its own value twice; so short that there are several.
fn files(driven: &mut Driven, names: &[&str]) -> Vec<FileMeta> {
    files_of(driven, 700, names.iter().map(|name| (*name, name.repeat(2).into_bytes())))
}

/// Files of at most so many bytes, of these keys and values.
fn files_of<N: AsRef<str>>(
    driven: &mut Driven,
    len: u64,
    pairs: impl Iterator<Item = (N, Vec<u8>)>,
) -> Vec<FileMeta> {
    let (sst, files) = (
        driven.replica.tree.config().sst_of_job(JobKind::Load, false),
        driven.replica.files.clone(),
    );
    let mut builder = LoadBuilder::new(GROUP, TERM, sst, len);
    let mut made = Vec::new();
    for (name, value) in pairs {
        let tree = &mut driven.replica.tree;
        let number = || tree.number_file(TERM);
        made.extend(builder.put(name.as_ref().as_bytes(), &value, None, number).unwrap());
    }
    made.extend(builder.finish());
    let keep = |file: FinishedFile| {
        files.insert(file.meta.id, file.bytes);
        file.meta
    };
    made.into_iter().map(keep).collect()
}

fn edit(driven: &mut Driven, names: &[&str]) -> Edit {
    let files = files(driven, names);
    edit_of(driven, files)
}

fn edit_of(driven: &mut Driven, files: Vec<FileMeta>) -> Edit {
    let tree = &mut driven.replica.tree;
    let sequence = tree.last_sequence().next();
    tree.skip_sequences(sequence, 1).unwrap();
    let loaded = Loaded { term: TERM, files, sequence };
    let edit = tree.finish_load(loaded, &tree.version().clone(), tree.last_edit() + 1).unwrap();
    assert_eq!(Edit::decode(&edit.encode().unwrap()).unwrap(), edit);
    edit
}

fn load(driven: &mut Driven, names: &[&str]) -> Vec<u8> {
    let edit = edit(driven, names);
    driven.replica.tree.apply_edit(&edit).unwrap();
    edit.added.iter().map(|(level, _)| *level).collect()
}

/// docs/faults.md: P10
#[test]
fn a_file_that_was_loaded_is_read_with_the_number_of_its_edit() {
    let mut driven = Driven::new(small_config());
    driven.put("b", b"older");
    driven.put("c", b"older");
    driven.flush();
    let names: Vec<String> = (0..40).map(|n| format!("b{n:02}")).collect();
    let mut names: Vec<&str> = names.iter().map(|name| &name[..]).collect();
    names.insert(0, "b");
    let before = driven.replica.tree.view();
    let edit = edit(&mut driven, &names);
    let sequence = edit.added[0].1.largest_sequence;
    assert!(edit.added.len() > 1);
    driven.replica.tree.apply_edit(&edit).unwrap();
    driven.put("b", b"newer");
    assert_eq!(driven.get("b").unwrap(), b"newer");
    assert_eq!(driven.get("b07").unwrap(), b"b07b07");
    assert_eq!(driven.get("c").unwrap(), b"older");
    let tables = driven.replica.tables.clone();
    assert_eq!(block_on(before.get(&tables, &key(b"b07"))).unwrap(), None);
    // A reader of the past on the version of now.
    let shared = driven.replica.tree.lasting_view();
    for (at, is_there) in [(sequence, true), (SequenceNumber(sequence.get() - 1), false)] {
        let past = shared.at(at, 0);
        for name in ["b", "b00", "b39"] {
            let found = block_on(past.get(&tables, &key(name.as_bytes()))).unwrap();
            let older = if name == "b" { Some(&b"older"[..]) } else { None };
            let loaded = name.repeat(2);
            assert_eq!(found.as_deref(), if is_there { Some(loaded.as_bytes()) } else { older });
        }
    }
    // Cursors tell the number, and one that reads the past skips what it does not see.
    let meta = &edit.added[0].1;
    let reader = Arc::new(block_on(SstReader::open(&tables.source, GROUP, meta)).unwrap());
    let mut iter = SstIter::new(reader, tables.source.clone(), Rc::new(LocalCache::new(0)));
    block_on(iter.seek(&key(b"b"), sequence)).unwrap();
    let entry = iter.entry().unwrap();
    assert_eq!((entry.key, entry.trailer.sequence()), (&key(b"b")[..], sequence));
    block_on(iter.seek(&key(b"b"), SequenceNumber(sequence.get() - 1))).unwrap();
    assert_eq!(iter.entry().unwrap().key, &key(b"b00")[..]);
    // Its bytes are those of no other number, and the file of an edit with none is refused.
    let other = FileMeta { smallest_sequence: SequenceNumber(1), ..meta.clone() };
    let refused = block_on(SstReader::open(&tables.source, GROUP, &other));
    assert_eq!(refused.err().unwrap().kind(), ErrorKind::Corruption);
    // Compacted with what is above and below it, it is an ordinary file.
    driven.flush();
    driven.settle();
    driven.replica.tree.compact_range(&[], None);
    driven.settle();
    assert_eq!(driven.get("b").unwrap(), b"newer");
    assert_eq!(driven.get("b39").unwrap(), b"b39b39");
    let snapshot = driven.replica.tree.snapshot();
    let config = driven.replica.tree.config().clone();
    assert_eq!(Tree::open(config, GROUP, &snapshot).unwrap().snapshot(), snapshot);
}

/// docs/faults.md: P10
#[test]
fn a_load_lies_as_deep_as_its_range_is_free_and_an_edit_that_says_otherwise_is_refused() {
    let mut driven = Driven::new(small_config());
    assert_eq!(load(&mut driven, &["m", "n"]), [4]);
    assert_eq!(load(&mut driven, &["a", "b"]), [4]);
    assert_eq!(load(&mut driven, &["c", "o"]), [3], "over m and n");
    assert_eq!(load(&mut driven, &["n"]), [2]);
    driven.put("x", b"flushed");
    driven.put("z", b"flushed");
    driven.flush();
    assert_eq!(load(&mut driven, &["y"]), [0], "L0 has x to z");
    assert_eq!(load(&mut driven, &["y"]), [0]);
    assert_eq!(driven.get("y").unwrap(), b"yy");
    // The newer load of y is first, whatever the files' numbers; so is what is flushed later.
    let newest = driven.replica.tree.version().level(0).to_vec();
    assert!(newest.is_sorted_by(|a, b| a.largest_sequence > b.largest_sequence));
    driven.put("y", b"flushed");
    driven.flush();
    assert_eq!(driven.get("y").unwrap(), b"flushed");

    let mut deep = edit(&mut driven, &["n"]);
    assert_eq!(deep.added[0].0, 1);
    deep.added[0].0 = 4;
    let error = driven.replica.tree.apply_edit(&deep).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corruption);
    assert!(error.message().contains("on the wrong side of"), "{error}");
    // What is newer than the load must not lie below it.
    let mut late = edit(&mut driven, &["n"]);
    let old = SequenceNumber(1);
    (late.added[0].1.smallest_sequence, late.added[0].1.largest_sequence) = (old, old);
    late.added[0].0 = 1;
    let error = driven.replica.tree.apply_edit(&late).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corruption, "{error}");
    let recipe = deep.recipe.unwrap();
    let error = driven.replica.tree.inputs_of(&recipe).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.message().contains("had as bytes alone"), "{error}");
}

/// A tree with a part of 4,000 keys in files, and what it holds.
fn in_use(config: TreeConfig) -> (Driven, BTreeMap<String, Vec<u8>>) {
    let (mut driven, mut model) = (Driven::new(config), BTreeMap::new());
    let mut random = Random::new(1);
    for round in 0..60 {
        write_some(&mut driven, &mut model, &mut random, round);
        driven.settle();
    }
    (driven, model)
}

/// A MemTable of keys of the whole range, flushed.
fn write_some(
    driven: &mut Driven,
    model: &mut BTreeMap<String, Vec<u8>>,
    random: &mut Random,
    round: u8,
) {
    for _ in 0..30 {
        let (name, value) = (format!("{:04}", random.below(4_000)), vec![round; 200]);
        driven.put(&name, &value);
        model.insert(name, value);
    }
    driven.flush();
}

fn holds(driven: &Driven, model: &BTreeMap<String, Vec<u8>>) {
    let view = driven.replica.tree.view();
    let found = scan(&view, &driven.replica.tables, &key(b""), None);
    let wanted = model.iter().map(|(name, value)| (key(name.as_bytes()), value.clone()));
    assert!(found.into_iter().eq(wanted), "a scan is not what was written");
    let wanted = model.range("1990".to_owned().."2010".to_owned());
    let found = scan(&view, &driven.replica.tables, &key(b"1990"), Some(&key(b"2010")));
    assert_eq!(found.len(), wanted.count());
    let names: Vec<Vec<u8>> = (0..4_000).map(|n| key(format!("{n:04}").as_bytes())).collect();
    for names in names.chunks(250) {
        let give = |at: usize, found: gabion_base::Result<Option<Found>>| {
            let name = std::str::from_utf8(&names[at][1..]).unwrap();
            let found = found?.map(|found| found.value.to_vec());
            assert_eq!(found.as_ref(), model.get(name), "{name}");
            assert_eq!(driven.get(name).as_ref(), model.get(name), "{name}");
            Ok(())
        };
        block_on(view.look_up_many(&driven.replica.tables, names, give)).unwrap();
    }
}

/// A load of half of the keys, in 63 files, that lies under a MemTable of keys of the whole range.
fn load_half(driven: &mut Driven, model: &mut BTreeMap<String, Vec<u8>>) -> Edit {
    let pairs = (0..4_000).step_by(2).map(|n| (format!("{n:04}"), vec![200; 220]));
    model.extend(pairs.clone());
    let files = files_of(driven, 8 << 10, pairs);
    let edit = edit_of(driven, files);
    driven.replica.tree.apply_edit(&edit).unwrap();
    let in_l0 = edit.added.iter().filter(|(level, _)| *level == 0).count();
    assert!(in_l0 > 60, "{in_l0} of {} in L0", edit.added.len());
    edit
}

/// Its next compaction, if there is one.
fn compact(driven: &mut Driven) -> Option<Recipe> {
    let job = driven.replica.tree.next_compaction(&context())?;
    let edit = driven.edit(&job);
    let decoded = Edit::decode(&edit.encode().unwrap()).unwrap();
    driven.replica.tree.apply_edit(&decoded).unwrap();
    Some(job.recipe)
}

/// docs/faults.md: P10
#[test]
fn a_load_over_a_store_in_use_is_one_run_of_l0_and_leaves_it_in_few_jobs() {
    let (mut driven, mut model) = in_use(TreeConfig { l0_trigger: 4, ..small_config() });
    let mut random = Random::new(2);
    write_some(&mut driven, &mut model, &mut random, 100);
    load_half(&mut driven, &mut model);
    assert_eq!(driven.replica.tree.write_state(), WriteState::Ok);
    write_some(&mut driven, &mut model, &mut random, 101);
    holds(&driven, &model);
    let snapshot = driven.replica.tree.snapshot();
    let config = driven.replica.tree.config().clone();
    let again = Tree::open(config, GROUP, &snapshot).unwrap();
    assert_eq!(again.version().runs(), driven.replica.tree.version().runs());
    let mut out_of_l0 = 0;
    while let Some(recipe) = compact(&mut driven) {
        if recipe.inputs[0].0 == 0 {
            out_of_l0 += 1;
            holds(&driven, &model);
        }
    }
    assert!(out_of_l0 <= 4, "{out_of_l0} jobs for 64 files in L0");
    holds(&driven, &model);
}

/// docs/faults.md: P27
#[test]
fn writers_go_on_while_a_load_sinks() {
    let (mut driven, mut model) = in_use(TreeConfig { l0_trigger: 4, ..small_config() });
    let mut random = Random::new(2);
    write_some(&mut driven, &mut model, &mut random, 100);
    load_half(&mut driven, &mut model);
    let (mut stopped, mut longest) = (0, 0);
    for _ in 0..200 {
        if matches!(driven.replica.tree.write_state(), WriteState::Stop(_)) {
            stopped += 1;
            longest = longest.max(stopped);
        } else {
            stopped = 0;
            write_some(&mut driven, &mut model, &mut random, 102);
        }
        compact(&mut driven);
    }
    assert!(longest <= 1, "writers stopped for {longest} jobs");
    driven.settle();
    holds(&driven, &model);
}

/// docs/faults.md: P10
#[test]
fn a_load_into_a_gap_sinks_in_a_few_edits() {
    let (mut driven, mut model) = (Driven::new(small_config()), BTreeMap::new());
    for name in ["0", "9"] {
        driven.put(name, b"first");
        model.insert(name.to_string(), b"first".to_vec());
    }
    driven.flush();
    load_half(&mut driven, &mut model);
    let (mut moves, mut moved, mut merges) = (0, 0, 0);
    while let Some(recipe) = compact(&mut driven) {
        if recipe.kind == JobKind::TrivialMove {
            (moves, moved) = (moves + 1, moved + recipe.inputs.len());
        } else {
            merges += 1;
        }
    }
    assert!(moved > 100 && moves <= 8 && merges <= 4, "{moved} moves in {moves}, {merges} merges");
    holds(&driven, &model);
}

/// docs/faults.md: P10
#[test]
fn a_load_that_spans_a_large_level_lies_far_enough_above_it_to_sink_in_parts() {
    let mut driven = Driven::new(small_config());
    let mut model = BTreeMap::new();
    let all = (0..2_000).map(|n| (format!("{n:04}"), vec![1; 100]));
    model.extend(all.clone());
    let files = files_of(&mut driven, 8 << 10, all);
    assert!(files.len() > 25, "{}", files.len());
    let edit = edit_of(&mut driven, files);
    assert!(edit.added.iter().all(|(level, _)| *level == 4));
    driven.replica.tree.apply_edit(&edit).unwrap();
    let sparse = (0..2_000).step_by(50).map(|n| (format!("{n:04}"), vec![2; 20]));
    model.extend(sparse.clone());
    let files = files_of(&mut driven, 8 << 10, sparse);
    let edit = edit_of(&mut driven, files);
    assert_eq!(edit.added.iter().map(|(level, _)| *level).collect::<Vec<_>>(), [2]);
    let mut narrow = edit.added[0].1.clone();
    (narrow.smallest, narrow.largest) = (key(b"0990"), key(b"1010"));
    let loaded = Loaded { term: TERM, files: vec![narrow], sequence: SequenceNumber(9) };
    let narrow = driven.replica.tree.finish_load(loaded, driven.replica.tree.version(), 9).unwrap();
    assert_eq!(narrow.added[0].0, 3, "it overlaps little of the last level");
    driven.replica.tree.apply_edit(&edit).unwrap();
    holds(&driven, &model);
    driven.replica.tree.compact_range(&[], None);
    let mut inputs = Vec::new();
    while let Some(recipe) = compact(&mut driven) {
        inputs.push(recipe.inputs.len());
    }
    assert!(inputs.iter().all(|inputs| *inputs <= 13), "{inputs:?} files in a job");
    holds(&driven, &model);
}

#[test]
fn files_of_a_load_end_within_keys_that_are_alike_for_long() {
    let mut driven = Driven::new(small_config());
    let names: Vec<String> = (0..200).map(|n| format!("{}{n:03}", "p".repeat(260))).collect();
    let names: Vec<&str> = names.iter().map(|name| &name[..]).collect();
    let levels = load(&mut driven, &names);
    assert!(levels.len() > 1, "one file of {} keys", names.len());
    let files = driven.replica.tree.version().clone();
    for (_, file) in files.files() {
        assert!(file.len <= 4096 * 16 + 4096, "{} has {} bytes", file.id, file.len);
    }
    for name in names {
        let found = driven.replica.get(name.as_bytes());
        assert_eq!(found.as_deref(), Some(name.repeat(2).as_bytes()));
    }
}

/// Each is named where it goes, in a few bytes, and the few that they become in full.
#[test]
fn thousands_of_small_files_become_one_when_a_wide_one_comes_down() {
    let mut driven =
        Driven::new(TreeConfig { sst_len: 16 << 20, level1_len: 64 << 20, ..small_config() });
    let (first, last) = (0..2_400, 2_400..4_800);
    for numbers in [first, last] {
        let pairs = numbers.map(|n| (format!("k{n:04}"), b"loaded".to_vec()));
        let files = files_of(&mut driven, 1, pairs);
        assert_eq!(files.len(), 2_400);
        let edit = edit_of(&mut driven, files);
        driven.replica.tree.apply_edit(&edit).unwrap();
    }
    for _ in 0..2 {
        driven.put("a", b"newer");
        driven.put("z", b"newer");
        driven.flush();
    }
    let edit = driven.edit_of_next_compaction();
    assert_eq!((edit.removed.len(), edit.added.len()), (4_802, 1));
    let edit = Edit::decode(&edit.encode().unwrap()).unwrap();
    driven.replica.tree.apply_edit(&edit).unwrap();
    assert_eq!(driven.replica.tree.version().files().count(), 1);
    assert_eq!(driven.get("k4799").unwrap(), b"loaded");
}

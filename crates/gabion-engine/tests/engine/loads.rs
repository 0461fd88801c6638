//! Files of bulk loads: how they are read, and where they may lie.

use crate::support::*;
use crate::tree_rules::Driven;
use gabion_base::{ErrorKind, FileId, SequenceNumber};
use gabion_engine::load::Loaded;
use gabion_engine::*;
use std::rc::Rc;
use std::sync::Arc;

/// Files of these keys, each of which is its own value twice; so short that there are several.
fn files(driven: &mut Driven, names: &[&str]) -> Vec<FileMeta> {
    let (sst, files) = (
        driven.replica.tree.config().sst_of_job(JobKind::Load, false),
        driven.replica.files.clone(),
    );
    let mut builder = LoadBuilder::new(GROUP, TERM, sst, 700);
    let mut made = Vec::new();
    for name in names {
        let tree = &mut driven.replica.tree;
        let number = || {
            let number = tree.files_reserved();
            tree.reserve_files(number + 1);
            Ok(FileId::sst(number))
        };
        made.extend(builder.put(name.as_bytes(), name.repeat(2).as_bytes(), None, number).unwrap());
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
    let shared = driven.replica.tree.shared_view();
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

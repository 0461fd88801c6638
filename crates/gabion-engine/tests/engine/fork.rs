//! A tree of its own from a view: what a checkpoint is made of.

use crate::support::*;
use crate::tree_rules::Driven;
use gabion_base::{LogPosition, SequenceNumber};
use gabion_engine::*;

/// Files of its own, and in them what the fork's version names.
fn copied(fork: &Tree, from: &Files) -> Files {
    let files = Files::default();
    for (_, meta) in fork.version().files() {
        files.insert(meta.id, from.bytes(meta.id));
    }
    files
}

/// Flushes all that is in the fork's memory.
fn flush(fork: &mut Tree, files: &Files) {
    while let Some(job) = fork.next_flush(&context(&[])) {
        let output = block_on(run_job(&job, GROUP, files, &mut files.clone())).unwrap();
        let edit = fork.finish_job(output, fork.last_edit() + 1).unwrap();
        fork.apply_edit(&edit).unwrap();
    }
    assert_eq!(fork.sealed_count(), 0);
}

fn pairs(tree: &Tree, files: &Files) -> Vec<(Vec<u8>, Vec<u8>)> {
    scan(&tree.view(), &tables(files), &[], None)
}

#[test]
fn a_fork_holds_what_its_view_sees_and_nothing_that_is_written_later() {
    let mut driven = Driven::new(small_config());
    driven.put("a", b"in a file");
    driven.put("b", b"in a file");
    driven.flush();
    driven.put("b", b"sealed");
    driven.seal();
    driven.put("c", b"active");
    let view = driven.replica.tree.shared_view();
    let then = pairs(&driven.replica.tree, &driven.replica.files);
    // Into the view's own MemTable, and into later ones.
    driven.put("a", b"later");
    driven.put("d", b"later");
    driven.seal();
    driven.put("e", b"later");
    let mut fork = Tree::fork(&view, small_config(), GROUP).unwrap();
    driven.put("f", b"later");
    let files = copied(&fork, &driven.replica.files);
    flush(&mut fork, &files);
    assert_eq!(pairs(&fork, &files), then);
    assert_eq!(fork.last_sequence(), view.sequence());

    // It opens from its snapshot, without a log, and goes on where the view was.
    let mut opened = Tree::open(small_config(), GROUP, &fork.snapshot()).unwrap();
    assert_eq!(pairs(&opened, &files), then);
    assert_eq!(opened.flushed().position, LogPosition::ZERO);
    let mut batch = BatchBuilder::new();
    batch.put(Keyspace::User, b"g", b"new").unwrap();
    opened.apply_batch(view.sequence().next(), batch.as_bytes()).unwrap();
    // What was written later at the source has these sequence numbers there, and is not seen here by them.
    let expected = [&then[..], &[(key(b"g"), b"new".to_vec())]].concat();
    assert_eq!(pairs(&opened, &files), expected);
    let newest = fork.version().files().map(|(_, file)| file.largest_sequence).max();
    assert_eq!(newest, Some(view.sequence()));
    let ids: Vec<_> = fork.version().files().map(|(_, file)| file.id).collect();
    assert!(ids.iter().all(|id| id.number < opened.files_reserved()), "numbers are used once");
}

#[test]
fn a_fork_of_an_empty_tree_and_one_with_all_in_files_need_no_flush() {
    let mut driven = Driven::new(small_config());
    let mut fork = Tree::fork(&driven.replica.tree.shared_view(), small_config(), GROUP).unwrap();
    assert!(fork.next_flush(&context(&[])).is_none());
    assert_eq!(fork.last_sequence(), SequenceNumber::ZERO);
    driven.put("a", b"1");
    driven.flush();
    let view = driven.replica.tree.shared_view();
    let mut fork = Tree::fork(&view, small_config(), GROUP).unwrap();
    assert!(fork.next_flush(&context(&[])).is_none());
    let opened = Tree::open(small_config(), GROUP, &fork.snapshot()).unwrap();
    assert_eq!(opened.last_sequence(), view.sequence());
    assert_eq!(pairs(&opened, &driven.replica.files).len(), 1);
}

/// What was cleared stays so: a clear is a number, and no entry that could be copied.
#[test]
fn a_fork_knows_what_was_cleared() {
    let mut driven = Driven::new(small_config());
    driven.put("a", b"1");
    driven.flush();
    driven.put("b", b"2");
    driven.clear();
    driven.put("c", b"3");
    driven.clear();
    let view = driven.replica.tree.shared_view();
    let mut fork = Tree::fork(&view, small_config(), GROUP).unwrap();
    let files = copied(&fork, &driven.replica.files);
    flush(&mut fork, &files);
    let opened = Tree::open(small_config(), GROUP, &fork.snapshot()).unwrap();
    assert_eq!(pairs(&opened, &files), []);
    assert_eq!(opened.last_sequence(), view.sequence(), "the clear has a number too");
}

#[test]
fn files_of_a_fork_are_kept_until_it_is_gone() {
    let mut driven = Driven::new(eager_two());
    driven.put("a", &[1; 3000]);
    driven.flush();
    let fork =
        Tree::fork(&driven.replica.tree.shared_view(), driven.replica.tree.config().clone(), GROUP)
            .unwrap();
    driven.put("a", &[2; 3000]);
    driven.flush();
    driven.settle();
    assert_eq!(driven.replica.tree.obsolete_files().len(), 1, "the newer of two that were merged");
    drop(fork);
    assert_eq!(driven.replica.tree.obsolete_files().len(), 1);
}

fn eager_two() -> TreeConfig {
    TreeConfig { l0_trigger: 2, ..small_config() }
}

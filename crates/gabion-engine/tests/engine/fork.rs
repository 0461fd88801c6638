//! A tree of its own from a view: what a checkpoint is made of.

use crate::support::*;
use crate::tree_rules::{Driven, eager};
use gabion_base::{Frontier, LogPosition, SequenceNumber};
use gabion_engine::*;

/// Files of its own, and in them what the fork's version names.
pub(crate) fn copied(fork: &Tree, from: &Files) -> Files {
    let files = Files::default();
    for (_, meta) in fork.version().files() {
        files.insert(meta.id, from.bytes(meta.id));
    }
    files
}

/// Flushes all that is in the fork's memory.
pub(crate) fn flush(fork: &mut Tree, files: &Files) {
    while let Some(job) = fork.next_flush(&context()) {
        let output = block_on(run_job(&job, GROUP, files, &mut files.clone())).unwrap();
        let edit = fork.finish_job(output, fork.last_edit() + 1).unwrap();
        fork.apply_edit(&edit).unwrap();
    }
    assert_eq!(fork.sealed_count(), 0);
}

pub(crate) fn pairs(tree: &Tree, files: &Files) -> Vec<(Vec<u8>, Vec<u8>)> {
    scan(&tree.view(), &tables(files), &[], None)
}

/// docs/faults.md: P9
#[test]
fn a_fork_holds_what_its_view_sees_and_nothing_that_is_written_later() {
    let mut driven = Driven::new(small_config());
    driven.put("a", b"in a file");
    driven.put("b", b"in a file");
    driven.flush();
    driven.put("b", b"sealed");
    driven.seal();
    driven.put("c", b"active");
    let view = driven.replica.tree.lasting_view();
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
    assert_eq!(opened.flushed().frontier, Frontier::ZERO);
    let mut batch = BatchBuilder::new();
    batch.put(Keyspace::User, b"g", b"new").unwrap();
    opened.apply_batch(view.sequence().next(), batch.as_bytes()).unwrap();
    // What was written later at the source has these sequence numbers there, and is not seen here
    // by them.
    let expected = [&then[..], &[(key(b"g"), b"new".to_vec())]].concat();
    assert_eq!(pairs(&opened, &files), expected);
    let newest = fork.version().files().map(|(_, file)| file.largest_sequence).max();
    assert_eq!(newest, Some(view.sequence()));
    let ids: Vec<_> = fork.version().files().map(|(_, file)| file.id).collect();
    assert!(ids.iter().all(|id| id.number < opened.next_file()), "numbers are used once");
}

#[test]
fn a_fork_of_an_empty_tree_and_one_with_all_in_files_need_no_flush() {
    let mut driven = Driven::new(small_config());
    let mut fork = Tree::fork(&driven.replica.tree.lasting_view(), small_config(), GROUP).unwrap();
    assert!(fork.next_flush(&context()).is_none());
    assert_eq!(fork.last_sequence(), SequenceNumber::ZERO);
    driven.put("a", b"1");
    driven.flush();
    let view = driven.replica.tree.lasting_view();
    let mut fork = Tree::fork(&view, small_config(), GROUP).unwrap();
    assert!(fork.next_flush(&context()).is_none());
    let opened = Tree::open(small_config(), GROUP, &fork.snapshot()).unwrap();
    assert_eq!(opened.last_sequence(), view.sequence());
    assert_eq!(pairs(&opened, &driven.replica.files).len(), 1);
}

/// What was cleared stays so: a clear is a number, and no entry that could be copied.
/// docs/faults.md: P9
#[test]
fn a_fork_knows_what_was_cleared() {
    let mut driven = Driven::new(small_config());
    driven.put("a", b"1");
    driven.flush();
    driven.put("b", b"2");
    driven.clear();
    driven.put("c", b"3");
    driven.clear();
    let view = driven.replica.tree.lasting_view();
    let mut fork = Tree::fork(&view, small_config(), GROUP).unwrap();
    let files = copied(&fork, &driven.replica.files);
    flush(&mut fork, &files);
    let opened = Tree::open(small_config(), GROUP, &fork.snapshot()).unwrap();
    assert_eq!(pairs(&opened, &files), []);
    assert_eq!(opened.last_sequence(), view.sequence(), "the clear has a number too");
}

/// What a shared view shows, read in three ways that must agree.
fn shown(view: &ReadView, driven: &Driven, names: &[&str]) -> Vec<(Vec<u8>, Vec<u8>)> {
    let tables = &driven.replica.tables;
    let (mut scanned, mut scan) = (Vec::new(), view.scan(tables, &[], None));
    while block_on(scan.go(Move::Next)).unwrap() {
        scanned.push((scan.key().unwrap().to_vec(), scan.value().unwrap().to_vec()));
    }
    let keys: Vec<_> = names.iter().map(|name| key(name.as_bytes())).collect();
    let mut many = vec![None; keys.len()];
    let give = |at: usize, found: gabion_base::Result<Option<Found>>| {
        many[at] = found?.map(|found| found.value.to_vec());
        Ok(())
    };
    block_on(view.look_up_many(tables, &keys, give)).unwrap();
    for (key, many) in keys.iter().zip(many) {
        let one = block_on(view.get(tables, key)).unwrap();
        let pair = scanned.iter().find(|(at, _)| at == key);
        assert_eq!(one.as_deref(), pair.map(|(_, value)| &value[..]), "{key:?}");
        assert_eq!(one.as_deref(), many.as_deref(), "{key:?}");
    }
    scanned
}

fn pair(name: &str, value: &[u8]) -> (Vec<u8>, Vec<u8>) {
    (key(name.as_bytes()), value.to_vec())
}

/// A view whose shape is that of after a batch that clears, as readers have it who were not told of
/// the batch yet.
/// docs/faults.md: P21
#[test]
fn a_batch_with_a_clear_amid_it_is_read_whole_or_not_at_all_and_so_forked() {
    let mut driven = Driven::new(small_config());
    driven.put("a", b"in a file");
    driven.put("k", b"in a file");
    driven.flush();
    driven.put("k", b"old");
    // One clear was shown before, another is in the batch twice.
    for cleared_before in [false, true] {
        if cleared_before {
            driven.clear();
            driven.put("k", b"old");
        }
        let names = ["a", "k", "n", "o", "p"];
        let before = driven.replica.tree.lasting_view();
        let old = shown(&before, &driven, &names);
        assert!(old.contains(&pair("k", b"old")));
        driven.write(|batch| {
            batch.put(Keyspace::User, b"n", b"cleared").unwrap();
            batch.clear(Keyspace::User).unwrap();
            batch.put(Keyspace::User, b"o", b"cleared").unwrap();
            batch.clear(Keyspace::User).unwrap();
            batch.put(Keyspace::User, b"k", b"new").unwrap();
        });
        let after = driven.replica.tree.lasting_view();
        let half = after.clone().replacing(&before);
        let then = half.at(before.sequence(), 0);
        assert_eq!(shown(&then, &driven, &names), old);
        let now = half.at(after.sequence(), 0);
        assert_eq!(shown(&now, &driven, &names), [pair("k", b"new")]);

        // A copy of either goes on where its view ended: what it writes first is below the source's
        // clears.
        for (view, mut expected) in [(then, old), (now, vec![pair("k", b"new")])] {
            let mut fork = Tree::fork(&view, small_config(), GROUP).unwrap();
            let files = copied(&fork, &driven.replica.files);
            flush(&mut fork, &files);
            assert_eq!(pairs(&fork, &files), expected);
            let mut opened = Tree::open(small_config(), GROUP, &fork.snapshot()).unwrap();
            for name in ["x", "y", "z"] {
                let mut batch = BatchBuilder::new();
                batch.put(Keyspace::User, name.as_bytes(), b"in the copy").unwrap();
                let next = opened.last_sequence().next();
                opened.apply_batch(next, batch.as_bytes()).unwrap();
                expected.push(pair(name, b"in the copy"));
            }
            opened.seal(opened.active_id(), Frontier::of(LogPosition(1))).unwrap();
            flush(&mut opened, &files);
            assert_eq!(pairs(&opened, &files), expected);
        }
        driven.put("k", b"old");
    }
}

/// What the fork wrote next would count as cleared: acknowledged, and never seen. Such is the view
/// of a tree whose log is not replayed: a job of after a clear was logged, and the clear is in no
/// file.
/// docs/faults.md: P21
#[test]
fn a_view_that_ends_before_its_floor_is_not_forked() {
    let mut driven = Driven::new(eager());
    driven.put("k", &[1; 3000]);
    driven.flush();
    driven.put("k", b"old");
    driven.clear();
    assert_eq!(driven.settle(), [JobKind::Drop]);
    let config = driven.replica.tree.config().clone();
    let opened = Tree::open(config.clone(), GROUP, &driven.replica.tree.snapshot()).unwrap();
    let error = Tree::fork(&opened.lasting_view(), config.clone(), GROUP).err().unwrap();
    assert_eq!(error.kind(), gabion_base::ErrorKind::InvalidInput);
    let text = "a view that ends at #1, its floor is #3";
    assert!(error.message().contains(text), "{error}");
    Tree::fork(&driven.replica.tree.lasting_view(), config, GROUP).unwrap();
}

/// docs/faults.md: P9
#[test]
fn files_of_a_fork_are_kept_until_it_is_gone() {
    let mut driven = Driven::new(eager_two());
    driven.put("a", &[1; 3000]);
    driven.flush();
    let fork = Tree::fork(
        &driven.replica.tree.lasting_view(),
        driven.replica.tree.config().clone(),
        GROUP,
    )
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

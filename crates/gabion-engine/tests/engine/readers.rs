//! The pin budget: which readers end, when, and what comes back then.

use crate::support::*;
use crate::tree_rules::{Driven, eager};
use gabion_base::{Error, ErrorKind, FileId, Result};
use gabion_engine::*;
use gabion_media::Bytes;
use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// Files of a device that answers only while it is let.
#[derive(Clone)]
struct Slow {
    files: Files,
    answers: Rc<Cell<bool>>,
}

impl FileSource for Slow {
    async fn read(&self, file: FileId, offset: u64, len: usize) -> Result<Bytes> {
        let wait = |_: &mut Context<'_>| match self.answers.get() {
            true => Poll::Ready(()),
            false => Poll::Pending,
        };
        poll_fn(wait).await;
        self.files.read(file, offset, len).await
    }
}

const BUDGET: PinBudget = PinBudget { age_ms_max: 1_000, states_max: 3 };

fn is_too_old(error: &Error) -> bool {
    error.kind() == ErrorKind::SnapshotTooOld
}

/// Puts the same key again and compacts: every file that there was leaves the tree.
fn rewrite(driven: &mut Driven, value: &[u8]) {
    driven.put("k", value);
    driven.flush();
    driven.settle();
}

/// Nothing is deleted as yet.
fn driven() -> Driven {
    let mut driven = Driven::new(eager());
    rewrite(&mut driven, &[1; 3000]);
    driven.replica.collect();
    driven
}

/// docs/faults.md: P1
#[test]
fn past_the_age_the_oldest_readers_end_and_their_files_and_memtables_come_back() {
    let mut driven = driven();
    let tables = driven.replica.tables.clone();
    let first = driven.replica.files.ids();
    driven.put("m", b"in memory");
    let old = driven.replica.tree.view();
    let mut iterator = old.scan(&tables, &[], None);
    block_on(iterator.next()).unwrap().unwrap();
    rewrite(&mut driven, &[2; 3000]);
    driven.replica.tree.limit_readers(5_000, BUDGET);
    let young = driven.replica.tree.view();
    rewrite(&mut driven, &[3; 3000]);
    driven.replica.tree.limit_readers(6_000, BUDGET);
    let stats = driven.replica.tree.readers(6_000);
    assert_eq!((stats.open, stats.states_kept, stats.oldest_ms, stats.ended), (3, 2, 1_000, 0));
    assert!(stats.memtable_bytes > 0);
    driven.replica.collect();
    assert!(driven.replica.files.ids().contains(&first[0]), "1,000 ms are not over 1,000 ms");

    driven.replica.tree.limit_readers(6_001, BUDGET);
    // An iterator lets go at its next step.
    let step = block_on(iterator.next()).unwrap_err();
    driven.replica.collect();
    assert!(!driven.replica.files.ids().contains(&first[0]), "view and iterator are still there");
    for error in [
        step,
        block_on(old.get(&tables, &key(b"k"))).unwrap_err(),
        block_on(old.scan(&tables, &[], None).next()).unwrap_err(),
        block_on(iterator.next()).unwrap_err(),
        old.pin().err().unwrap(),
    ] {
        assert!(is_too_old(&error), "{error}");
        assert!(error.message().contains("ended 1001 ms after"), "{error}");
        assert!(error.message().contains("keep it for 1000 ms"), "{error}");
    }
    let stats = driven.replica.tree.readers(6_001);
    assert_eq!((stats.open, stats.states_kept, stats.oldest_ms, stats.ended), (1, 1, 1, 2));
    assert_eq!(block_on(young.get(&tables, &key(b"k"))).unwrap().unwrap(), vec![2; 3000]);
    drop((old, iterator, young));
    driven.replica.collect();
    assert!(driven.replica.tree.leaving_files().is_empty());
    let stats = driven.replica.tree.readers(6_001);
    assert_eq!(stats, ReaderStats { ended: 2, ..ReaderStats::default() });
}

/// docs/faults.md: P1
#[test]
fn past_the_count_of_states_the_oldest_ends_however_many_read_one() {
    let mut driven = driven();
    let tables = driven.replica.tables.clone();
    let mut views = Vec::new();
    for n in 0..5 {
        // As many as like may read one state.
        views.push(vec![driven.replica.tree.view(); 10]);
        rewrite(&mut driven, &[n; 3000]);
        driven.replica.tree.limit_readers(7, BUDGET);
    }
    driven.replica.collect();
    for (n, views) in views.iter().enumerate() {
        let found = block_on(views[9].get(&tables, &key(b"k")));
        match n {
            0 | 1 => {
                let error = found.unwrap_err();
                assert!(is_too_old(&error), "{error}");
                let text = "the oldest of 4 such states of the tree, readers may keep 3";
                assert!(error.message().contains(text), "{error}");
            }
            _ => assert_eq!(found.unwrap().unwrap(), vec![n as u8 - 1; 3000]),
        }
    }
    assert_eq!(driven.replica.tree.readers(7).ended, 20);
}

/// docs/faults.md: P1
#[test]
fn a_reader_of_what_the_tree_still_has_lives_however_old_it_is() {
    let mut driven = Driven::new(eager());
    driven.put("k", b"v");
    driven.flush();
    let tables = driven.replica.tables.clone();
    driven.put("m", b"w");
    let view = driven.replica.tree.view();
    driven.seal();
    let kinds = {
        let edit = driven.edit_of_next_compaction();
        driven.replica.tree.apply_edit(&edit).unwrap();
        edit.kind
    };
    assert_eq!(kinds, JobKind::TrivialMove);
    for now_ms in [0, u64::MAX] {
        driven.replica.tree.limit_readers(now_ms, PinBudget { age_ms_max: 0, states_max: 0 });
    }
    assert_eq!(driven.replica.tree.readers(u64::MAX).states_kept, 0);
    assert_eq!(block_on(view.get(&tables, &key(b"m"))).unwrap().unwrap(), "w");
    assert_eq!(scan(&view, &tables, &[], None).len(), 2);
    // The age counts from the edit that takes something away, here the flush.
    driven.settle();
    driven.replica.tree.limit_readers(50, BUDGET);
    driven.replica.tree.limit_readers(1_050, BUDGET);
    block_on(view.get(&tables, &key(b"m"))).unwrap().unwrap();
    driven.replica.tree.limit_readers(1_051, BUDGET);
    assert!(is_too_old(&block_on(view.get(&tables, &key(b"m"))).unwrap_err()));
}

/// docs/faults.md: E12
#[test]
fn a_read_under_way_keeps_its_file_until_it_is_done() {
    let mut driven = driven();
    let first = driven.replica.files.ids();
    let answers = Rc::new(Cell::new(false));
    let source = Slow { files: driven.replica.files.clone(), answers: answers.clone() };
    let tables = Tables { source, cache: Rc::new(LocalCache::new(1 << 20)), group: GROUP };
    let view = driven.replica.tree.view();
    let mut iterator = view.scan(&tables, &[], None);
    let name = key(b"k");
    {
        let mut get = pin!(view.get(&tables, &name));
        let mut next = pin!(iterator.next());
        let mut context = Context::from_waker(Waker::noop());
        assert!(get.as_mut().poll(&mut context).is_pending());
        assert!(next.as_mut().poll(&mut context).is_pending());
        rewrite(&mut driven, &[2; 3000]);
        driven.replica.tree.limit_readers(1, BUDGET);
        driven.replica.tree.limit_readers(5_000, BUDGET);
        assert_eq!(driven.replica.tree.readers(5_000).ended, 2);
        driven.replica.collect();
        assert!(driven.replica.files.ids().contains(&first[0]), "both read it");
        answers.set(true);
        // The last step of a look-up: what was read is right, and given.
        assert_eq!(block_on(get).unwrap().unwrap(), vec![1; 3000]);
        assert!(is_too_old(&block_on(next).unwrap_err()), "there are further steps");
    }
    driven.replica.collect();
    assert!(!driven.replica.files.ids().contains(&first[0]), "the iterator holds it still");
    assert!(is_too_old(&block_on(iterator.next()).unwrap_err()));
}

use super::*;
use crate::cache::LocalCache;
use crate::entry::EntryKind;
use crate::read::{ReadIterator, ReadPoint, ReadView, Tables};
use crate::skip_list::SkipList;
use alloc::rc::Rc;
use gabion_base::{FileId, GroupId, SequenceNumber};
use gabion_media::Bytes;
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

/// No file is there.
#[derive(Clone)]
struct NoFiles;

impl crate::FileSource for NoFiles {
    async fn read(&self, file: FileId, _: u64, _: usize) -> Result<Bytes> {
        Err(Error::not_found(alloc::format!("{file}")))
    }
}

fn now<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("nothing waits for a disk here"),
    }
}

/// A state of one MemTable with two entries, and the MemTable's memory.
fn kept() -> (Kept, Weak<SkipList>) {
    let table = Arc::new(MemTable::new(MemTableId(1)));
    table.insert(&[1, b'a'], SequenceNumber(1), EntryKind::Put, b"1");
    table.insert(&[1, b'b'], SequenceNumber(2), EntryKind::Put, b"2");
    let memory = table.memory();
    let shape = Shape { memtables: alloc::vec![table], version: Arc::new(Version::new(2)) };
    (Kept::new(shape), memory)
}

fn tables() -> Tables<NoFiles> {
    Tables { source: NoFiles, cache: Rc::new(LocalCache::new(0)), group: GroupId(1) }
}

const POINT: ReadPoint =
    ReadPoint { sequence: SequenceNumber(2), floor: SequenceNumber::ZERO, now_ms: 0 };

fn view(kept: &Kept) -> ReadView {
    ReadView::budgeted(kept.state.clone(), POINT)
}

fn next(iterator: &mut ReadIterator<NoFiles>) -> Result<Option<Bytes>> {
    now(iterator.next()).map(|pair| pair.map(|(_, value)| value))
}

/// docs/faults.md: P1
#[test]
fn an_idle_iterator_gives_its_memtables_back_at_its_next_step_when_its_view_ended() {
    let (kept, memory) = kept();
    let mut readers = Readers::default();
    let view = view(&kept);
    let mut iterator = view.scan(&tables(), &[], None);
    assert_eq!(next(&mut iterator).unwrap().unwrap(), "1");
    readers.replaced(kept);
    readers.gave_up();
    let budget = PinBudget { age_ms_max: 10, states_max: 1 };
    readers.limit(100, budget);
    readers.limit(110, budget);
    assert!(memory.upgrade().is_some() && view.pin().is_ok(), "10 ms are allowed");
    readers.limit(111, budget);
    let errors = [view.pin().err().unwrap(), next(&mut iterator).unwrap_err()];
    assert!(memory.upgrade().is_none(), "view and iterator are still there");
    for error in errors {
        assert_eq!(error.kind(), ErrorKind::SnapshotTooOld);
        assert!(error.message().contains("11 ms after an edit"), "{error}");
        assert!(error.message().ends_with("readers may keep it for 10 ms"), "{error}");
    }
}

/// docs/faults.md: P1
#[test]
fn a_view_ends_at_once_unless_it_lasts_also_where_both_read_the_same() {
    let (kept, memory) = kept();
    let mut readers = Readers::default();
    let (ends, lasts) = (view(&kept), ReadView::lasting(Pin(kept.shape.clone()), POINT));
    readers.replaced(kept);
    readers.gave_up();
    readers.limit(100, PinBudget { age_ms_max: 0, states_max: 0 });
    assert_eq!(ends.pin().err().unwrap().kind(), ErrorKind::SnapshotTooOld);
    assert_eq!(now(lasts.get(&tables(), &[1, b'a'])).unwrap().unwrap(), "1");
    assert!(memory.upgrade().is_some());
    drop(lasts);
    assert!(memory.upgrade().is_none(), "the one that was ended is still there");
}

#[test]
fn states_without_readers_are_forgotten() {
    let mut readers = Readers::default();
    for _ in 0..100 {
        readers.replaced(kept().0);
    }
    assert!(readers.earlier.is_empty(), "{} states are remembered", readers.earlier.len());
}

#[test]
fn a_view_whose_tree_was_closed_says_so() {
    let (kept, _) = kept();
    let view = view(&kept);
    drop(kept);
    assert_eq!(view.pin().err().unwrap().kind(), ErrorKind::Unavailable);
}

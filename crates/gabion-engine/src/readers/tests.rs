use super::*;
use crate::cache::LocalCache;
use crate::entry::EntryKind;
use crate::read::{ReadIterator, ReadPoint, ReadView, Tables};
use crate::skip_list::SkipList;
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
fn state() -> (Rc<State>, alloc::sync::Weak<SkipList>) {
    let table = Arc::new(MemTable::new(MemTableId(1)));
    table.insert(&[1, b'a'], SequenceNumber(1), EntryKind::Put, b"1");
    table.insert(&[1, b'b'], SequenceNumber(2), EntryKind::Put, b"2");
    let memory = table.memory();
    let shape = Shape { memtables: alloc::vec![table], version: Arc::new(Version::new(2)) };
    (State::new(shape), memory)
}

fn tables() -> Tables<NoFiles> {
    Tables { source: NoFiles, cache: Rc::new(LocalCache::new(0)), group: GroupId(1) }
}

fn view(state: &Rc<State>) -> ReadView {
    let point = ReadPoint { sequence: SequenceNumber(2), floor: SequenceNumber::ZERO, now_ms: 0 };
    ReadView { state: state.clone(), point }
}

fn next(iterator: &mut ReadIterator<NoFiles>) -> Result<Option<Bytes>> {
    now(iterator.next()).map(|pair| pair.map(|(_, value)| value))
}

/// docs/faults.md: P1
#[test]
fn an_idle_iterator_gives_its_memtables_back_when_its_view_ends() {
    let (state, memory) = state();
    let mut readers = Readers::default();
    let mut iterator = view(&state).scan(&tables(), &[], None);
    assert_eq!(next(&mut iterator).unwrap().unwrap(), "1");
    readers.replaced(&state);
    drop(state);
    readers.gave_up();
    let budget = PinBudget { age_ms_max: 10, states_max: 1 };
    readers.limit(100, budget);
    readers.limit(110, budget);
    assert!(memory.upgrade().is_some(), "10 ms are allowed");
    readers.limit(111, budget);
    assert!(memory.upgrade().is_none(), "the iterator is still there and keeps the MemTable");
    let error = next(&mut iterator).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::SnapshotTooOld);
    assert!(error.message().contains("11 ms after an edit"), "{error}");
    assert!(error.message().ends_with("readers may keep it for 10 ms"), "{error}");
}

#[test]
fn states_without_readers_and_iterators_that_are_gone_are_forgotten() {
    let (state, _) = state();
    for _ in 0..10_000 {
        let mut iterator = view(&state).scan(&tables(), &[], None);
        next(&mut iterator).unwrap();
    }
    let Held::Shape { cursors, .. } = &*state.0.borrow() else { panic!("it was not ended") };
    assert!(cursors.len() < 20, "{} iterators are remembered", cursors.len());
    let mut readers = Readers::default();
    for _ in 0..100 {
        readers.replaced(&self::state().0);
    }
    assert!(readers.earlier.len() < 2, "{} states are remembered", readers.earlier.len());
}

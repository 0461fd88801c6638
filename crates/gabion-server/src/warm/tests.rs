//! The line: how long it may be, who leaves it, and what is left of it when the thread is to end.

use super::*;
use crate::server::WAKER;
use gabion_base::units::MIB;
use gabion_base::{Generation, GroupId, ReplicaId, SequenceNumber, SlotIndex, Term};
use gabion_engine::cache::WarmCache;
use gabion_engine::{
    EntryKind, FileSource, FinishedFile, ReadCache, SstBuilder, SstOptions, SstReader, Trailer,
    TreeConfig,
};
use gabion_fabric::BackendChoice;
use gabion_host::clock::Clock;
use gabion_host::replica::{LostRing, OpenedReplica, create_replica, open_replica};
use gabion_media::{AlignedBuf, Bytes};
use gabion_node::{AckLevel, CompactionMode, GroupConfig, NodeOptions};
use gabion_pool::{Placed, write_file};
use std::path::PathBuf;
use std::time::{Duration, Instant};

const GROUP: GroupId = GroupId(5);

/// A pool in a directory of the test's own, and what warms from it, without a thread.
struct Rig {
    dir: PathBuf,
    pool: OpenedReplica,
    warmer: Warmer,
    events: Receiver<Event>,
    _poll: mio::Poll,
}

impl Drop for Rig {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// A file in memory.
struct Built<'a>(&'a Bytes);

impl FileSource for Built<'_> {
    async fn read(&self, _: FileId, offset: u64, len: usize) -> Result<Bytes> {
        Ok(self.0.slice(offset as usize..offset as usize + len))
    }
}

fn id(number: u64) -> FileId {
    FileId::sst(number)
}

/// A file of the keys that all have.
fn build(number: u64) -> FinishedFile {
    let mut builder = SstBuilder::new(&SstOptions::default(), GROUP, id(number), Term(1));
    for key in 0..200_u64 {
        let trailer = Trailer::new(SequenceNumber(key + 1), EntryKind::Put);
        builder.add(format!("\u{1}{key:08}").as_bytes(), trailer, &[key as u8; 100]);
    }
    builder.finish()
}

/// The edit of a flush.
fn flush(file: (Arc<FileMeta>, Arc<FilePlacement>)) -> Replaced {
    Replaced { removed: Vec::new(), added: vec![file] }
}

impl Rig {
    fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("gabion-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        let group = GroupConfig {
            group: GROUP,
            founders: vec![ReplicaId(1)],
            compaction: CompactionMode::Primary,
            ack: AckLevel::Replicated,
            ring_len: 4 * MIB,
            segment_len: MIB,
            tree: TreeConfig { memtable_len: MIB, ..TreeConfig::default() },
        };
        create_replica(&dir, 64 * MIB, &group, ReplicaId(1)).unwrap();
        let options = NodeOptions::default();
        let (io, clock, lost) = (BackendChoice::Threads, Clock::start(), LostRing::GoOn);
        let pool = open_replica(&dir, io, options, lost, &clock, |_, _| Ok(())).unwrap();
        let (sender, events) = channel();
        let poll = mio::Poll::new().unwrap();
        let waker = mio::Waker::new(poll.registry(), WAKER).unwrap();
        let cache = Arc::new(SharedCache::new(64 << 20, 64 << 20));
        let mailbox = Mailbox::new(sender, Arc::new(waker), cache.clone(), GROUP);
        // Nothing is warmed where nobody reads.
        (0..1_000).for_each(|n| assert!(cache.block(id(1_000_000), n).is_none()));
        let warmer = Warmer {
            parts: pool.parts.clone(),
            cache,
            mailbox,
            line: VecDeque::new(),
            under_way: None,
            device: OnceCell::new(),
            shown: Arc::default(),
        };
        Self { dir, pool, warmer, events, _poll: poll }
    }

    /// Where a file lies, in a slot of its own; nothing is there yet.
    fn place(meta: &FileMeta) -> Arc<FilePlacement> {
        let slot = SlotIndex(meta.id.number as u32 % 16);
        Arc::new(FilePlacement {
            file: meta.id,
            term: meta.term,
            len: meta.rounded_len(),
            checksum: meta.checksum,
            slots: vec![Placed { slot, generation: Generation(1) }],
        })
    }

    /// A file that is described and nowhere.
    fn described(file: &FinishedFile, number: u64) -> (Arc<FileMeta>, Arc<FilePlacement>) {
        let meta = FileMeta { id: id(number), ..file.meta.clone() };
        let place = Self::place(&meta);
        (Arc::new(meta), place)
    }

    /// A file on the device, as it was built or with other bytes.
    fn written(&self, file: &FinishedFile, bytes: &Bytes) -> (Arc<FileMeta>, Arc<FilePlacement>) {
        let (meta, store) = (Arc::new(file.meta.clone()), &self.pool.local);
        let place = Self::place(&meta);
        let (geometry, crcs) = (&store.geometry, &meta.chunk_crcs);
        let writing =
            write_file(&store.medium, geometry, store.pool_id, GROUP, &place, bytes, crcs);
        self.pool.medium.block_on(writing).unwrap();
        (meta, place)
    }

    /// Readers open a file.
    fn open(&self, number: u64) {
        let file = build(number);
        let source = Built(&file.bytes);
        let opening = SstReader::open(&source, GROUP, &file.meta);
        let reader = self.pool.medium.block_on(opening).unwrap();
        self.warmer.cache.keep_reader(id(number), Arc::new(reader));
    }

    /// The edit that makes files out of some that readers may have open.
    fn replace(&mut self, removed: impl Iterator<Item = u64>, added: &[u64], file: &FinishedFile) {
        let added = added.iter().map(|number| Self::described(file, *number)).collect();
        self.warmer.take_replaced(Replaced { removed: removed.map(id).collect(), added });
    }

    fn line(&self) -> Vec<u64> {
        self.warmer.line.iter().map(|next| next.file.id.number).collect()
    }

    fn given_up(&self) -> u64 {
        self.warmer.cache.warmed().given_up
    }

    fn is_warm(&self, number: u64) -> bool {
        !self.warmer.cache.blocks_here(id(number)).is_empty()
    }
}

/// docs/faults.md: P5
#[test]
fn a_file_in_line_is_opened_then_read_and_damage_in_it_is_told() {
    let mut rig = Rig::new("warm-read");
    let (good, bad) = (build(1), build(2));
    let mut bytes = bad.bytes.to_vec();
    bytes[100] ^= 1;
    let bytes = AlignedBuf::copy_of(&bytes).freeze();
    let (good, bad) = (rig.written(&good, &good.bytes), rig.written(&bad, &bytes));
    let place = bad.1.clone();
    rig.warmer.take_replaced(flush(good));
    rig.warmer.take_replaced(flush(bad));
    assert_eq!((rig.line(), rig.warmer.files_left()), (vec![1, 2], 2));
    rig.warmer.work();
    assert!(rig.warmer.under_way.is_some() && !rig.is_warm(1));
    assert_eq!((rig.line(), rig.warmer.files_left()), (vec![2], 2));
    rig.warmer.work();
    assert!(rig.warmer.under_way.is_none() && rig.is_warm(1));
    assert!(rig.warmer.shown.read_bytes.load(Ordering::Relaxed) > 20_000);
    assert_eq!((rig.warmer.files_left(), rig.given_up()), (1, 0));
    rig.warmer.work();
    rig.warmer.work();
    assert_eq!((rig.warmer.files_left(), rig.given_up()), (0, 1));
    assert!(!rig.is_warm(2));
    let told = rig.events.try_iter().map(|event| match event {
        Event::Damaged(place, _) => place,
        _ => panic!("it is damage"),
    });
    assert_eq!(told.collect::<Vec<_>>(), [place]);
}

/// docs/faults.md: P5
#[test]
fn of_a_line_that_is_full_the_oldest_are_given_up_and_those_that_readers_would_miss_counted() {
    let mut rig = Rig::new("warm-full");
    let file = build(1);
    (101..=170).for_each(|number| rig.warmer.take_replaced(flush(Rig::described(&file, number))));
    assert!(rig.line().into_iter().eq(107..=170));
    assert_eq!(rig.given_up(), 0, "nobody had anything of them in a file");
    // Nobody has the files open that these are made of.
    rig.replace(2..4, &[200], &file);
    assert_eq!(rig.line().len(), 64);
    rig.open(1);
    let more: Vec<u64> = (201..=264).collect();
    rig.replace(1..4, &more, &file);
    assert_eq!((rig.line(), rig.given_up()), (more, 0));
    rig.replace(1..2, &[301, 302, 303], &file);
    assert!(rig.line().into_iter().eq((204..=264).chain(301..=303)));
    assert_eq!(rig.given_up(), 3);
}

/// docs/faults.md: P5
#[test]
fn the_line_keeps_the_indexes_of_so_many_files_and_no_more() {
    let mut rig = Rig::new("warm-had");
    let file = build(1);
    (1..=200).for_each(|number| rig.open(number));
    rig.replace(1..101, &[1_001, 1_002], &file);
    rig.warmer.take_replaced(flush(Rig::described(&file, 1_003)));
    rig.replace(101..129, &[1_004], &file);
    assert_eq!((rig.warmer.had_files(), rig.given_up()), (HAD_FILES_MAX, 0));
    rig.replace(129..130, &[1_005], &file);
    assert_eq!((rig.line(), rig.warmer.had_files()), (vec![1_003, 1_004, 1_005], 29));
    assert_eq!(rig.given_up(), 2);
    // One edit that would keep too many takes no other's place.
    rig.replace(1..201, &[1_006], &file);
    assert_eq!((rig.line(), rig.warmer.had_files()), (vec![1_003, 1_004, 1_005], 29));
    assert_eq!(rig.given_up(), 3);
}

/// docs/faults.md: P5
#[test]
fn a_file_that_leaves_the_tree_leaves_the_line_and_what_readers_had_goes_to_its_successor() {
    let mut rig = Rig::new("warm-leaves");
    let file = build(1);
    (1..=3).for_each(|number| rig.open(number));
    rig.replace(1..3, &[11, 12], &file);
    // 11 is made into 13, of which readers had what they had of 1 and 2, and 3.
    rig.replace([11, 3].into_iter(), &[13], &file);
    assert_eq!((rig.line(), rig.given_up()), (vec![12, 13], 1));
    let had = |rig: &Rig| rig.warmer.line.back().unwrap().had.as_ref().unwrap().open_files();
    assert_eq!(had(&rig), 3);
    // 12 is put elsewhere, or dropped with all there is.
    rig.warmer.forget(&[id(12)]);
    assert_eq!((rig.line(), rig.given_up()), (vec![13], 2));
    rig.replace([13].into_iter(), &[], &file);
    assert_eq!((rig.line(), rig.given_up()), (vec![], 3));
    // A flush's, which nobody had in a file.
    rig.warmer.take_replaced(flush(Rig::described(&file, 14)));
    rig.warmer.forget(&[id(14)]);
    assert_eq!((rig.line(), rig.given_up()), (vec![], 3));
}

/// docs/faults.md: P5
#[test]
fn a_file_that_leaves_while_it_is_read_is_read_no_further() {
    let mut rig = Rig::new("warm-half");
    for (number, given_up) in [(1, 1), (2, 2)] {
        let file = build(number);
        rig.warmer.take_replaced(flush(rig.written(&file, &file.bytes)));
        rig.warmer.work();
        assert_eq!(rig.warmer.under_way.as_ref().unwrap().next.file.id, id(number));
        match number {
            1 => rig.replace([1].into_iter(), &[3], &file),
            _ => rig.warmer.forget(&[id(2)]),
        }
        assert!(rig.warmer.under_way.is_none());
        assert_eq!(rig.given_up(), given_up);
        assert!(!rig.is_warm(number));
        if number == 1 {
            // Readers will want of its successor what they were about to have of it.
            let next = rig.warmer.line.pop_front().unwrap();
            assert_eq!((next.file.id, next.had.unwrap().open_files()), (id(3), 1));
        }
    }
    assert_eq!(rig.warmer.files_left(), 0);
}

/// docs/faults.md: P5
#[test]
fn without_a_device_nothing_waits() {
    let mut rig = Rig::new("warm-none");
    rig.warmer.device = OnceCell::from(None);
    let file = build(1);
    (1..=3).for_each(|number| rig.warmer.take_replaced(flush(Rig::described(&file, number))));
    rig.warmer.work();
    assert_eq!((rig.warmer.files_left(), rig.given_up()), (0, 3));
}

/// What has come is looked at, and nothing is read any more.
/// docs/faults.md: P5
#[test]
fn when_the_loop_is_gone_the_line_is_left_as_it_is() {
    let mut rig = Rig::new("warm-end");
    let (sender, inbox) = channel();
    let files: Vec<_> = (1..=3).map(build).collect();
    for file in &files {
        let written = rig.written(file, &file.bytes);
        sender.send(WarmCommand::Replaced(flush(written))).unwrap();
    }
    sender.send(WarmCommand::Gone(vec![id(2)])).unwrap();
    drop(sender);
    rig.open(2);
    let (shown, cache) = (rig.warmer.shown.clone(), rig.warmer.cache.clone());
    shown.left.store(3, Ordering::Relaxed);
    let mailbox = rig.warmer.mailbox.clone();
    let idle = Warmer {
        parts: rig.pool.parts.clone(),
        cache: cache.clone(),
        mailbox,
        line: VecDeque::new(),
        under_way: None,
        device: OnceCell::new(),
        shown: Arc::default(),
    };
    std::mem::replace(&mut rig.warmer, idle).run(&inbox);
    assert_eq!(shown.left.load(Ordering::Relaxed), 2, "1 and 3");
    assert_eq!(shown.read_bytes.load(Ordering::Relaxed), 0);
    assert!((1..=3).all(|number| cache.reader(id(number)).is_none()));
}

/// docs/faults.md: P5
#[test]
fn the_thread_warms_what_it_is_told_of_and_ends_with_files_in_line() {
    let rig = Rig::new("warm-thread");
    let (parts, cache) = (&rig.pool.parts, &rig.warmer.cache);
    let thread = WarmThread::start(parts, cache, 0, &rig.warmer.mailbox).unwrap();
    let files: Vec<_> = (1..=8).map(build).collect();
    for file in &files {
        thread.send(WarmCommand::Replaced(flush(rig.written(file, &file.bytes))));
    }
    let begun = Instant::now();
    while thread.left() > 0 {
        assert!(begun.elapsed() < Duration::from_secs(30), "{} are left", thread.left());
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!((1..=8).all(|number| rig.is_warm(number)));
    assert!(thread.read_bytes() > 8 * 20_000);
    thread.send(WarmCommand::Gone((1..=8).map(id).collect()));
    for number in 101..=300 {
        thread.send(WarmCommand::Replaced(flush(Rig::described(&files[0], number))));
    }
    drop(thread);
    assert!((1..=8).all(|number| !rig.is_warm(number)));
    let died = rig.events.try_iter().any(|event| matches!(event, Event::Died(_)));
    assert!(!died);
}

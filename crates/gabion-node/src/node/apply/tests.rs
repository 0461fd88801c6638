//! Which edits may come again: those that a restart replays, and nothing else. A replica alone,
//! with a log to which the test appends what no primary would. Behind that the applier alone, in
//! front of a tree of its own.

use super::*;
use crate::Node;
use crate::node::effects::Effect;
use crate::node::facts::facts;
use crate::node::testing::{HEAD, Ring, TAIL, one_of_two};
use crate::work::{self, Done, Work};
use crate::{
    AckLevel, CompactionMode, GroupConfig, LocalStore, NodeOptions, Output, WriteGate, open,
};
use alloc::boxed::Box;
use alloc::string::ToString;
use gabion_base::units::MIB;
use gabion_base::{ErrorKind, FileKind, GroupId, MemTableId, ReplicaId, Result, Term};
use gabion_base::{SEGMENT_ORDINAL_MAX, ShardId};
use gabion_engine::{FileReference, Flushed, Keyspace, TreeConfig};
use gabion_log::{RecordFlags, Stamp};
use gabion_media::MediumHandle;
use gabion_media::MemoryRegion;
use gabion_media::simulated::{DiskOptions, SimulatedDisk};
use gabion_pool::{FilePlacement, Trust};

const RING_LEN: u64 = 256 * 1024;

fn group(compaction: CompactionMode) -> GroupConfig {
    GroupConfig {
        group: GroupId(1),
        founders: alloc::vec![ReplicaId(1)],
        compaction,
        ack: AckLevel::Replicated,
        ring_len: RING_LEN,
        segment_len: RING_LEN / 4,
        tree: TreeConfig { memtable_len: 16 * 1024, ..TreeConfig::default() },
    }
}

/// What of a replica a restart leaves.
struct Machine {
    disk: SimulatedDisk,
    handle: MediumHandle,
    ring: Ring,
}

impl Machine {
    fn new(compaction: CompactionMode) -> Self {
        let disk = SimulatedDisk::new(DiskOptions::immediate(64 * MIB));
        let (handle, ring) = (disk.handle(), Ring::new(RING_LEN));
        let group = group(compaction);
        let created = open::create(&handle, &group, ReplicaId(1), [1; 16]);
        disk.block_on(&handle, created).unwrap();
        Self { disk, handle, ring }
    }

    fn open(&self) -> Result<(Node, LocalStore)> {
        self.disk.block_on(&self.handle, async {
            let pool = open::open_pool(&self.handle, Trust::Readable).await?;
            let store = pool.store();
            let ring = Box::new(self.ring.clone());
            let (node, _) = pool.open_node(ring, NodeOptions::default(), 0).await?;
            Ok((node, store))
        })
    }

    /// Carries out all that is to be done.
    fn run(&self, node: &mut Node, store: &LocalStore) {
        node.handle_tick(node.now_ms + 1);
        loop {
            node.advance(node.now_ms);
            let Some(output) = node.poll_output() else { return };
            match output {
                Output::Work(id, work) => {
                    let done = self.disk.block_on(&self.handle, carry_out(id, work, node, store));
                    node.handle_done(id, done);
                }
                Output::Fatal(error) => panic!("the replica ended itself: {error}"),
                _ => {}
            }
        }
    }

    /// A replica whose tree has some edits.
    fn with_edits(&self, count: u64) -> Node {
        let (mut node, store) = self.open().unwrap();
        while node.tree.last_edit() < count {
            self.run(&mut node, &store);
            if node.write_gate() == WriteGate::Open {
                node.put(Keyspace::User, b"key", &[7; 1_000]).unwrap();
                node.end_turn().unwrap();
            }
        }
        self.run(&mut node, &store);
        node
    }
}

async fn carry_out(id: work::WorkId, work: Work, node: &mut Node, store: &LocalStore) -> Done {
    match work {
        Work::Job(order) => {
            let built = |file| node.handle_job_file(id, file);
            Done::Job(work::run_job(*order, store, built, async || Ok(())).await)
        }
        work => work::run_local(work, store).await,
    }
}

/// An edit of this number that removes a file.
fn edit(number: u64, file: u64) -> Vec<u8> {
    let edit = Edit {
        number,
        kind: JobKind::Drop,
        term: Term(1),
        removed: alloc::vec![(0, FileId::sst(file))],
        added: Vec::new(),
        values: Vec::new(),
        flushed: None,
        next_file: 0,
        floor: None,
        recipe: None,
    };
    edit.encode().unwrap()
}

fn append(node: &mut Node, encoded: &[u8]) -> Record {
    let (first_sequence, now_ms) = (node.tree.last_sequence(), node.now_ms);
    let stamp = Stamp { first_sequence, count: 0, now_ms, flags: RecordFlags::BLOCK_END };
    node.log.append(RecordKind::Edit, encoded, stamp).unwrap().record
}

fn assert_corruption<T>(result: Result<T>, record: &Record, wanted: &str) {
    let error = result.err().expect("corruption");
    assert_eq!(error.kind(), ErrorKind::Corruption);
    let (text, place) = (error.to_string(), alloc::format!("{}", record.header.position));
    assert!(text.contains(&alloc::format!("log record at {place}")), "{text}");
    assert!(text.contains(wanted), "{text}");
}

/// docs/faults.md: H3
#[test]
fn an_edit_with_an_old_number_is_corruption_that_names_numbers_and_place() {
    let mut node = Machine::new(CompactionMode::Primary).with_edits(2);
    for number in [1, 2] {
        let record = append(&mut node, &edit(number, 1));
        let end = record.end();
        let wanted = alloc::format!(
            "edit {number} at {end} follows edit 2: the numbers must not come twice"
        );
        assert_corruption(node.apply_record(&record), &record, &wanted);
    }
    let record = append(&mut node, &edit(4, 1));
    let wanted = "follows edit 2: the numbers must not have a gap";
    assert_corruption(node.apply_record(&record), &record, wanted);
    assert_eq!((node.edits_waiting(), node.tree.last_edit()), (0, 2));
    let record = append(&mut node, &edit(3, 1));
    node.apply_record(&record).unwrap();
    assert_eq!(node.edits_waiting(), 1, "one with the next number is put in line");
    let record = append(&mut node, &edit(3, 1));
    let wanted = "follows edit 3: the numbers must not come twice";
    assert_corruption(node.apply_record(&record), &record, wanted);
}

/// docs/faults.md: H3
#[test]
fn a_restart_replays_edits_that_were_applied_and_refuses_an_old_number_behind_them() {
    for compaction in [CompactionMode::Primary, CompactionMode::EveryReplica] {
        let machine = Machine::new(compaction);
        drop(machine.with_edits(2));
        let (node, _) = machine.open().unwrap();
        assert_eq!((node.edits_waiting(), node.tree.last_edit()), (0, 2), "{compaction:?}");
    }
    let machine = Machine::new(CompactionMode::Primary);
    let mut node = machine.with_edits(2);
    append(&mut node, &edit(3, 1));
    let record = append(&mut node, &edit(3, 1));
    drop(node);
    let wanted = alloc::format!("edit 3 at {} follows edit 3 at ", record.end());
    assert_corruption(machine.open(), &record, &wanted);
}

/// docs/faults.md: H3
#[test]
fn a_replayed_edit_that_is_not_the_one_that_was_applied_is_corruption() {
    let mut node = Machine::new(CompactionMode::Primary).with_edits(2);
    node.apply.begin_replay([(2, edit(2, 1))].into());
    let same = append(&mut node, &edit(2, 1));
    node.apply_record(&same).unwrap();
    assert_eq!((node.edits_waiting(), node.tree.last_edit()), (0, 2));
    node.apply.begin_replay([(2, edit(2, 1))].into());
    let other = append(&mut node, &edit(2, 7));
    let wanted = "is not the edit 2 that was applied";
    assert_corruption(node.apply_record(&other), &other, wanted);
}

/// docs/faults.md: P11
#[test]
fn a_record_under_a_clock_that_went_back_has_the_groups_time() {
    let machine = Machine::new(CompactionMode::Primary);
    let mut node = machine.with_edits(1);
    let told = |node: &mut Node, now_ms| {
        let from = node.log.end();
        node.pass_time(now_ms);
        node.put(Keyspace::User, b"key", b"value").unwrap();
        node.end_turn().unwrap();
        let mut head = [0; 88];
        machine.ring.read(from.get() % RING_LEN, &mut head);
        // Where a long header says it, or a short one.
        let now = if head.starts_with(b"GBLR") { &head[80..88] } else { &head[18..24] };
        now.iter().rev().fold(0, |now, byte| now << 8 | u64::from(*byte))
    };
    assert_eq!(told(&mut node, 10_000), 10_000);
    assert_eq!(told(&mut node, 9_000), 10_000);
    assert_eq!(told(&mut node, 10_001), 10_001);
}

// ---- the applier alone

const CORRUPTION: ErrorKind = ErrorKind::Corruption;

/// An edit of this number that adds some files and removes others.
fn change(number: u64, added: &[u64], removed: &[u64]) -> Edit {
    let meta = |file| (0, FileMeta::new(FileId::sst(file), Term(1)));
    Edit {
        added: added.iter().map(|file| meta(*file)).collect(),
        values: Vec::new(),
        removed: removed.iter().map(|file| (0, FileId::sst(*file))).collect(),
        number,
        ..Edit::decode(&edit(1, 1)).unwrap()
    }
}

/// The applier of a member, and the effects that it asked for.
struct Alone {
    node: Node,
    apply: Applying,
    asked: Effects,
}

impl Alone {
    fn of(me: ReplicaId) -> Self {
        let node = one_of_two(me, NodeOptions::default());
        Self { apply: Applying::new(node.tree.floor()), node, asked: Effects::default() }
    }

    fn queue(&mut self, edit: Edit, end: u64) -> Result<()> {
        let end = LogPosition(end);
        let facts = facts!(self.node);
        let (asked, tree) = (&mut self.asked, &mut self.node.tree);
        let queued = self.apply.queue(&facts, asked, tree, edit, Vec::new(), end);
        self.apply.invariants(self.node.tree.last_edit());
        queued
    }

    fn ready(&mut self) -> Option<usize> {
        self.apply.edits_ready(&facts!(self.node), self.node.tree.version(), |_| false)
    }

    fn next(&mut self) -> Result<Option<Ready>> {
        self.apply.next_ready(&facts!(self.node), &mut self.asked)
    }

    /// The members that were asked for files, and these.
    fn ask(&mut self) -> Vec<(ReplicaId, FileId)> {
        let version = self.node.tree.version().clone();
        let facts = facts!(self.node);
        self.apply.ask_for_missing_files(&facts, &mut self.asked, &version, |_| false);
        let effects = core::iter::from_fn(|| self.asked.next_effect());
        let wanted = effects.filter_map(|effect| match effect {
            Effect::Tell(to, NodeMessage::NeedFile { file }) => Some((to, file)),
            _ => None,
        });
        wanted.collect()
    }
}

/// docs/faults.md: H3
#[test]
fn edits_out_of_order_or_repeated_are_refused_and_the_line_stays_as_it_was() {
    let mut alone = Alone::of(HEAD);
    for number in [2, 0] {
        assert_eq!(alone.queue(change(number, &[], &[]), 0).unwrap_err().kind(), CORRUPTION);
    }
    assert!(alone.ready().is_none() && alone.next().unwrap().is_none());
    alone.queue(change(1, &[], &[]), 0).unwrap();
    alone.queue(change(2, &[], &[]), 0).unwrap();
    for number in [1, 2, 4] {
        assert_eq!(alone.queue(change(number, &[], &[]), 0).unwrap_err().kind(), CORRUPTION);
        assert_eq!((alone.apply.waiting_count(), alone.apply.last_appended(0)), (2, 2));
    }
    let due = core::iter::from_fn(|| alone.asked.next_effect());
    assert_eq!(due.filter(|effect| matches!(effect, Effect::Due(_))).count(), 2);
    assert_eq!(alone.next().unwrap().map(|ready| ready.edit.number), Some(1));
}

/// docs/faults.md: H3
#[test]
fn an_edit_that_keeps_values_elsewhere_than_in_whole_segments_of_this_log_is_refused() {
    let mut alone = Alone::of(HEAD);
    let len = alone.node.config.segment_len;
    let shard = alone.node.log.config().shard;
    let other = ShardId(shard.0 + 1);
    let refused = [
        (FileId::log_segment(shard, 3), len - 1, "a segment of this log has"),
        (FileId::log_segment(other, 3), len, "is a log segment of shard"),
        (FileId::log_segment(shard, SEGMENT_ORDINAL_MAX), len, "whose last possible one is"),
    ];
    let keeping = |file: FileId, len: u64| Edit {
        values: alloc::vec![FileMeta { len, ..FileMeta::new(file, Term(1)) }],
        ..change(1, &[], &[])
    };
    for (file, len, wanted) in refused {
        let error = alone.queue(keeping(file, len), 0).unwrap_err();
        assert_eq!(error.kind(), CORRUPTION);
        let error = error.to_string();
        assert!(error.contains(wanted) && error.contains("edit 1"), "{error}");
        assert_eq!(alone.apply.waiting_count(), 0);
    }
    alone.queue(keeping(FileId::log_segment(shard, 3), len), 0).unwrap();
}

/// docs/faults.md: H3
#[test]
fn a_values_file_is_waited_for_until_an_edit_leaves_nothing_that_references_it() {
    let mut alone = Alone::of(HEAD);
    let term = Term(1);
    let file = FileId { kind: FileKind::Values, number: 3 };
    let flushed = Flushed {
        memtable: MemTableId(1),
        frontier: Frontier::of(LogPosition(8)),
        sequence: SequenceNumber(9),
    };
    let mut flush = Edit {
        kind: JobKind::Flush,
        flushed: Some(flushed),
        next_file: 100,
        values: alloc::vec![FileMeta { raw_value_bytes: 10, ..FileMeta::new(file, term) }],
        ..change(1, &[7], &[])
    };
    flush.added[0].1.references = alloc::vec![FileReference { file, live_bytes: 10 }];
    alone.queue(flush, 0).unwrap();
    assert_eq!(alone.ready(), None, "neither is here");
    assert!(!alone.apply.has_files(&facts!(alone.node), alone.node.tree.version()));
    assert!(alone.apply.names(file) && alone.apply.added(file).is_some());
    alone.queue(change(2, &[], &[7]), 0).unwrap();
    assert_eq!(alone.ready(), Some(2), "both are wanted no more");
    assert!(alone.apply.has_files(&facts!(alone.node), alone.node.tree.version()));
}

/// docs/faults.md: H3
#[test]
fn an_edit_waits_for_its_record_to_be_durable_and_its_files_to_be_those_that_it_names() {
    let mut alone = Alone::of(HEAD);
    alone.queue(change(1, &[7], &[]), 8).unwrap();
    let (file, term) = (FileId::sst(7), Term(1));
    let Node { pool, files, .. } = &mut alone.node;
    let slots = pool.allocate(1).unwrap();
    files.add(pool, FilePlacement { file, term, len: 4_096, checksum: 7, slots }).unwrap();
    assert!(files.placed(pool, file));
    assert_eq!(alone.ready(), None, "its record may be lost");
    let mut alone = Alone { node: alone.node, ..Alone::of(HEAD) };
    alone.queue(change(1, &[7], &[]), 0).unwrap();
    assert_eq!(alone.ready(), Some(1));
    let error = alone.next().err().expect("other bytes lie here");
    assert_eq!(error.kind(), CORRUPTION);
    assert!(error.to_string().contains("and checksum 00000007, edit 1 names"), "{error}");
}

/// docs/faults.md: E7
#[test]
fn a_file_that_is_nowhere_any_more_is_skipped_with_the_edit_that_removes_it() {
    let mut alone = Alone::of(TAIL);
    alone.queue(change(1, &[7], &[]), 0).unwrap();
    assert_eq!((alone.ready(), alone.ask()), (None, Vec::new()), "it may be on its way");
    alone.node.now_ms += alone.node.options.placement_wait_ms;
    assert_eq!(alone.ask(), [(HEAD, FileId::sst(7))]);
    assert_eq!(alone.ask(), [], "it was asked for");
    alone.node.now_ms += ASK_AGAIN_MS;
    assert_eq!(alone.ask(), [(HEAD, FileId::sst(7))], "the answer is lost");
    alone.queue(change(2, &[8], &[7]), 0).unwrap();
    assert_eq!(alone.ready(), None, "the other one is missing, too");
    alone.queue(change(3, &[], &[8, 5]), 0).unwrap();
    let coming = alone
        .apply
        .edits_ready(&facts!(alone.node), alone.node.tree.version(), |file| file == FileId::sst(8));
    assert_eq!((coming, alone.ready()), (None, Some(3)));
    let gone = (0..3).map(|_| alone.next().unwrap().expect("three are in line").gone);
    assert_eq!(
        gone.collect::<Vec<_>>(),
        [alloc::vec![], alloc::vec![], alloc::vec![FileId::sst(5)]]
    );
    alone.apply.end_group(&facts!(alone.node), &mut alone.asked);
    alone.apply.invariants(3);
    let effects = core::iter::from_fn(|| alone.asked.next_effect());
    let unneeded: BTreeSet<FileId> = effects
        .filter_map(|effect| match effect {
            Effect::Signal(Signal::Unneeded(file)) => Some(file),
            _ => None,
        })
        .collect();
    assert_eq!(unneeded, [FileId::sst(7), FileId::sst(8)].into(), "they are not taken any more");
    let mut counters = Counters::default();
    alone.apply.count_into(&mut counters);
    assert_eq!((counters.edits, counters.skipped_files, counters.pulled_files), (3, 2, 2));
}

/// docs/faults.md: E7
#[test]
#[should_panic(expected = "a file is in the tree and not here")]
fn a_group_of_edits_that_leaves_a_missing_file_in_the_tree_is_never_whole() {
    let mut alone = Alone::of(TAIL);
    alone.queue(change(1, &[7], &[]), 0).unwrap();
    alone.queue(change(2, &[], &[7]), 0).unwrap();
    assert_eq!(alone.ready(), Some(2));
    assert!(alone.next().unwrap().is_some());
    alone.apply.end_group(&facts!(alone.node), &mut alone.asked);
}

#[test]
#[should_panic(expected = "behind one at")]
fn a_seal_below_the_last_one_is_no_place_to_trim_at() {
    let seal = |position| Anchor { position: LogPosition(position), ..Anchor::START };
    let mut apply = Applying::default();
    apply.note_seal(seal(64), 1);
    apply.note_seal(seal(128), 2);
    apply.note_seal(seal(192), 3);
    assert_eq!(apply.pass_seals(LogPosition(63)), None);
    assert_eq!(apply.pass_seals(LogPosition(130)), Some((seal(128), 2)));
    assert!(apply.is_seal(LogPosition(192)) && !apply.is_seal(LogPosition(64)));
    apply.note_seal(seal(192), 4);
}

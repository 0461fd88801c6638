//! Which edits may come again: those that a restart replays, and nothing else. A replica alone,
//! with a log to which the test appends what no primary would.

use super::*;
use crate::node::testing::Ring;
use crate::work::{self, Done, Work};
use crate::{
    AckLevel, CompactionMode, GroupConfig, LocalStore, NodeOptions, Output, WriteGate, open,
};
use alloc::boxed::Box;
use alloc::string::ToString;
use gabion_base::units::MIB;
use gabion_base::{ErrorKind, GroupId, ReplicaId, Result};
use gabion_engine::{Keyspace, TreeConfig};
use gabion_log::{RecordFlags, Stamp};
use gabion_media::MediumHandle;
use gabion_media::MemoryRegion;
use gabion_media::simulated::{DiskOptions, SimulatedDisk};
use gabion_pool::Trust;

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
        term: gabion_base::Term(1),
        removed: alloc::vec![(0, FileId::sst(file))],
        added: Vec::new(),
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
    node.begin_replay([(2, edit(2, 1))].into());
    let same = append(&mut node, &edit(2, 1));
    node.apply_record(&same).unwrap();
    assert_eq!((node.edits_waiting(), node.tree.last_edit()), (0, 2));
    node.begin_replay([(2, edit(2, 1))].into());
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

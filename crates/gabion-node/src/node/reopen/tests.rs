//! A head whose log is cut, by an action that the test hands in where the protocol's come. It is
//! alone with a log that others could read.

use super::*;
use crate::node::testing::{Ring, ordered};
use crate::work::{self, Done, Work};
use crate::{AckLevel, CompactionMode, GroupConfig, LocalStore, NodeOptions, WriteGate, open};
use alloc::boxed::Box;
use alloc::string::ToString;
use gabion_base::units::MIB;
use gabion_base::{GroupId, LogKind, ReplicaId, ShardId};
use gabion_engine::{Keyspace, TreeConfig};
use gabion_media::MediumHandle;
use gabion_media::simulated::{DiskOptions, SimulatedDisk};
use gabion_pool::Trust;
use gabion_replication::GroupView;

/// What of a replica a restart leaves.
struct Machine {
    disk: SimulatedDisk,
    handle: MediumHandle,
    ring: Ring,
}

/// How a node ended.
enum End {
    Reopen(Error),
    Fatal(Error),
}

impl Machine {
    fn new() -> Self {
        let disk = SimulatedDisk::new(DiskOptions::immediate(64 * MIB));
        let handle = disk.handle();
        let group = GroupConfig {
            group: GroupId(1),
            founders: alloc::vec![ReplicaId(1)],
            compaction: CompactionMode::Primary,
            ack: AckLevel::Replicated,
            ring_len: MIB,
            segment_len: MIB / 4,
            tree: TreeConfig { memtable_len: 16 * 1024, ..TreeConfig::default() },
        };
        let view = GroupView { log: LogKind::Shared, ..group.founding_view() };
        let made = open::create_with(&handle, &group, view, ReplicaId(1), [1; 16]);
        disk.block_on(&handle, made).unwrap();
        Self { disk, handle, ring: Ring::new(MIB) }
    }

    fn open(&self) -> (Node, LocalStore) {
        let opened = async {
            let pool = open::open_pool(&self.handle, Trust::Readable).await?;
            let store = pool.store();
            let node = pool.open_node(Box::new(self.ring.clone()), NodeOptions::default(), 0);
            node.await.map(|(node, _)| (node, store))
        };
        self.disk.block_on(&self.handle, opened).unwrap()
    }

    /// Carries out all that is to be done.
    fn run(&self, node: &mut Node, store: &LocalStore) -> Option<End> {
        loop {
            node.advance(node.now_ms);
            match node.poll_output()? {
                Output::Work(id, work) => {
                    let done = async {
                        let Work::Job(order) = work else {
                            return work::run_local(work, store).await;
                        };
                        let built = |file| node.handle_job_file(id, file);
                        Done::Job(work::run_job(*order, store, built, async || Ok(())).await)
                    };
                    let done = self.disk.block_on(&self.handle, done);
                    node.handle_done(id, done);
                }
                Output::Reopen(reason) => return Some(End::Reopen(reason)),
                Output::Fatal(error) => return Some(End::Fatal(error)),
                _ => {}
            }
        }
    }

    fn write(&self, node: &mut Node, store: &LocalStore) {
        assert_eq!(node.write_gate(), WriteGate::Open);
        node.put(Keyspace::User, b"key", &[7; 500]).unwrap();
        node.end_turn().unwrap();
        assert!(self.run(node, store).is_none());
    }
}

fn truncate(node: &mut Node, at: LogPosition) {
    node.held = Some(Action::Truncate { shard: ShardId::ZERO, at });
}

/// docs/faults.md: R1
#[test]
fn a_cut_of_applied_records_is_durable_before_the_node_asks_to_be_opened_anew() {
    let machine = Machine::new();
    let (mut node, store) = machine.open();
    assert!(machine.run(&mut node, &store).is_none());
    machine.write(&mut node, &store);
    let (at, last) = (node.log.last().end, node.tree.last_sequence());
    machine.write(&mut node, &store);
    truncate(&mut node, at);
    node.advance(0);
    let Some((id, Work::Commit(commit))) = ordered(&mut node) else { panic!("no commit") };
    assert!(node.is_reopening());
    assert!(!node.is_readable());
    assert!(matches!(node.write_gate(), WriteGate::Refuse(_)));
    assert_eq!(node.acknowledged(), gabion_base::Frontier::ZERO);
    // A crash before the commit finds the log as it was.
    let (before, _) = machine.open();
    assert!(before.tree.last_sequence() > last);
    drop(before);

    let (mut node, store) = machine.open();
    assert!(machine.run(&mut node, &store).is_none());
    truncate(&mut node, at);
    let Some(End::Reopen(reason)) = machine.run(&mut node, &store) else { panic!("no end") };
    assert!(reason.to_string().contains(&format!("cut at {at}")), "{reason}");
    // It does nothing more, whatever it is told.
    node.handle_tick(1_000);
    assert!(machine.run(&mut node, &store).is_none());
    drop((node, id, commit));
    let (after, _) = machine.open();
    assert_eq!((after.log.last().end, after.tree.last_sequence()), (at, last));
}

/// docs/faults.md: R12
#[test]
fn a_cut_below_an_applied_edit_ends_the_process_and_names_position_and_edit() {
    let machine = Machine::new();
    let (mut node, store) = machine.open();
    assert!(machine.run(&mut node, &store).is_none());
    while node.tree.last_edit() == 0 {
        machine.write(&mut node, &store);
    }
    let (edit, kept) = (node.tree.last_edit(), node.state.durable);
    truncate(&mut node, LogPosition(kept.get() - 8));
    let Some(End::Fatal(error)) = machine.run(&mut node, &store) else { panic!("it goes on") };
    assert_eq!(error.kind(), ErrorKind::Fenced);
    for part in [
        format!("below {kept}"),
        format!("edit {edit}"),
        "needs a full copy".into(),
        "keep its data".into(),
    ] {
        assert!(error.message().contains(&part), "{part}: {error}");
    }
    assert!(!node.is_reopening());
    // The log is whole: a restart finds all of it.
    let end = node.log.last().end;
    drop(node);
    assert_eq!(machine.open().0.log.last().end, end);
}

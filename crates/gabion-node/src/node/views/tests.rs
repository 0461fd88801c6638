//! Views that leave a replica out, that mean another disk, and with too few members.

use super::*;
use crate::node::testing::{HEAD, Machine, TAIL};
use crate::{NodeOptions, WriteGate};
use gabion_base::{ErrorKind, Frontier, GroupId, LogPosition, Term};
use gabion_log::{RecordFlags, RecordKind};
use gabion_replication::{LogKind, Member};

/// Configuration `config` with these members, of which so many are full.
fn view(config: u64, members: &[ReplicaId], full: usize) -> GroupView {
    let mut view = GroupView::founding(GroupId(1), &[HEAD, TAIL], LogKind::Shared);
    view.config = ConfigNumber(config);
    let member = |(i, id): (usize, &ReplicaId)| Member { is_full: i < full, ..Member::new(*id) };
    view.members = members.iter().enumerate().map(member).collect();
    view
}

fn refusal(node: &Node) -> String {
    match node.write_gate() {
        WriteGate::Refuse(reason) => reason,
        other => format!("{other:?}"),
    }
}

/// The newest configuration that took effect.
fn in_effect(outputs: &[Output]) -> Option<u64> {
    let views = outputs.iter().filter_map(|output| match output {
        Output::View(view) => Some(view.config.get()),
        _ => None,
    });
    views.last()
}

#[test]
fn a_replica_that_is_left_out_rests_over_restarts_until_a_view_has_it() {
    let machine = Machine::new(HEAD);
    let mut node = machine.open(NodeOptions::default());
    node.handle_view(view(2, &[TAIL], 1)).unwrap();
    assert_eq!(in_effect(&machine.run(&mut node, 0)), Some(2));
    for _ in 0..2 {
        assert!(!node.view().is_member() && !node.is_readable() && !node.holds_lease());
        let reason = "this replica is no member of its group's newest view, configuration 2";
        assert_eq!(refusal(&node), reason);
        assert_eq!(node.view_told().map(|view| view.config), Some(ConfigNumber(2)));
        assert_eq!(node.acknowledged(), Frontier::ZERO);
        assert_eq!(node.founded(), ConfigNumber::ZERO);
        node = machine.open(NodeOptions::default());
        machine.run(&mut node, 0);
    }
    // It is filled, and then a member like any other.
    node.handle_view(view(3, &[TAIL, HEAD], 1)).unwrap();
    assert_eq!(in_effect(&machine.run(&mut node, 0)), Some(3));
    assert!(node.view().is_member() && !node.view().is_full() && node.duties().receive);
    node.handle_view(view(2, &[TAIL], 1)).unwrap();
    assert_eq!(in_effect(&machine.run(&mut node, 0)), None, "nobody goes back");
    assert!(node.view().is_member());
}

/// docs/faults.md: R10
#[test]
fn a_view_that_means_another_disk_is_refused() {
    let machine = Machine::new(TAIL);
    let mut node = machine.open(NodeOptions::default());
    let with = |pool_id, incarnation| {
        let mut view = view(2, &[HEAD, TAIL], 2);
        (view.members[1].pool_id, view.members[1].incarnation) = (pool_id, incarnation);
        view
    };
    let error = node.handle_view(with([7; 16], 0)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Fenced);
    assert!(error.message().contains("with the pool 0707"), "{error}");
    let mine = node.state().incarnation;
    let error = node.handle_view(with([1; 16], mine + 1)).unwrap_err();
    assert!(error.message().contains("it is older than the one that is meant"), "{error}");
    assert_eq!(in_effect(&machine.run(&mut node, 0)), None);
    node.handle_view(with([1; 16], mine)).unwrap();
    assert_eq!(in_effect(&machine.run(&mut node, 0)), Some(2));
}

#[test]
fn a_replica_that_joins_knows_of_no_view_before_it_is_told_one() {
    let spare = ReplicaId(9);
    let machine = Machine::joining(spare);
    let mut node = machine.open(NodeOptions::default());
    machine.run(&mut node, 0);
    assert_eq!(node.view_told(), None);
    assert_eq!(refusal(&node), "this replica has heard of no view of its group yet");
    assert!(!node.view().is_member());
    node.handle_view(view(5, &[HEAD, TAIL, spare], 2)).unwrap();
    assert_eq!(in_effect(&machine.run(&mut node, 0)), Some(5));
    assert!(node.view().is_member() && !node.view().is_full());
    let mut node = machine.open(NodeOptions::default());
    machine.run(&mut node, 0);
    assert_eq!(node.view_told().map(|view| view.config), Some(ConfigNumber(5)));
    // A founder may join as well: one whose disk was lost.
    let machine = Machine::joining(HEAD);
    let mut node = machine.open(NodeOptions::default());
    machine.run(&mut node, 0);
    assert_eq!((node.view_told(), node.view().is_member()), (None, false));
}

#[test]
fn with_too_few_full_members_a_term_begins_and_nothing_goes_into_the_log() {
    let machine = Machine::new(HEAD);
    let mut node = machine.open(NodeOptions::default());
    assert_eq!(view(2, &[HEAD], 1).members_min, 2);
    node.handle_view(view(2, &[HEAD], 1)).unwrap();
    assert_eq!(in_effect(&machine.run(&mut node, 0)), Some(2));
    machine.run(&mut node, 50);
    assert_eq!((node.protocol().term(), node.log.end()), (Term(1), LogPosition::ZERO));
    assert_eq!(refusal(&node), "1 full replicas are left, the group needs 2 to take writes");
    assert!(node.is_readable(), "its whole log is committed");
    assert_eq!(node.founded(), ConfigNumber(2));
    let sequence = node.tree.last_sequence();
    let record = node.append_record(RecordKind::Seal, &[], sequence, 0, RecordFlags::NONE);
    assert_eq!(record.unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(node.log.end(), LogPosition::ZERO);
    // One that is filled goes into no count.
    node.handle_view(view(3, &[HEAD, TAIL], 1)).unwrap();
    assert_eq!(in_effect(&machine.run(&mut node, 100)), Some(3));
    assert_eq!(node.protocol().term(), Term(2));
    assert!(node.is_readable() && node.log.end() == LogPosition::ZERO);
}

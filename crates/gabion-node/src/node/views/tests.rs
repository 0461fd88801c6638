//! Views that leave a replica out, that mean another disk, and with too few members.

use super::*;
use crate::node::testing::{HEAD, Machine, TAIL};
use crate::{NodeOptions, WriteGate};
use gabion_base::{ErrorKind, FileId, Frontier, GroupId, LogPosition, ShardId, Term};
use gabion_engine::{Edit, FileMeta, JobKind};
use gabion_log::{RecordFlags, RecordKind};
use gabion_replication::{
    Frame, Lease, LogKind, Member, MemberState, Message, Progress, Watermarks, frame,
};

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

/// docs/faults.md: R11
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

/// Nobody else would say that the group has gone on without it.
///
/// docs/faults.md: R11
#[test]
fn the_only_full_member_waits_for_a_controllers_word_and_no_other_one_does() {
    let machine = Machine::new(HEAD);
    let mut node = machine.open(NodeOptions::default());
    let alone = |config| GroupView { members_min: 1, ..view(config, &[HEAD], 1) };
    let with_one_to_fill = GroupView { members_min: 1, ..view(3, &[HEAD, TAIL], 1) };
    for lone in [alone(2), with_one_to_fill] {
        node.handle_view(lone.clone()).unwrap();
        machine.run(&mut node, 0);
        assert_eq!(node.write_gate(), WriteGate::Open, "it was told just now");
        node = machine.open(NodeOptions::default());
        node.await_word();
        machine.run(&mut node, 0);
        assert!(!node.is_readable() && !node.protocol().is_joined());
        let words = "waiting for a controller's word, as no other full member is there";
        assert!(refusal(&node).contains(words), "{}", refusal(&node));
        // One that is refused is no word.
        let other = GroupView {
            members: alloc::vec![Member { incarnation: 99, ..lone.members[0].clone() }],
            ..lone.clone()
        };
        assert_eq!(node.handle_told(other).unwrap_err().kind(), ErrorKind::InvalidInput);
        machine.run(&mut node, 0);
        assert!(!node.protocol().is_joined());
        node.handle_told(lone).unwrap();
        machine.run(&mut node, 0);
        assert!(node.is_readable());
        assert_eq!(node.write_gate(), WriteGate::Open);
    }
    node = machine.open(NodeOptions::default());
    node.await_word();
    node.handle_told(view(4, &[TAIL], 1)).unwrap();
    assert!(!node.protocol().is_joined());
    assert_eq!(in_effect(&machine.run(&mut node, 0)), Some(4));
    assert!(!node.view().is_member() && !node.is_readable());
    // A view that no controller has made.
    let machine = Machine::alone();
    let mut node = machine.open(NodeOptions::default());
    node.await_word();
    machine.run(&mut node, 0);
    assert!(node.is_readable());
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
    assert_eq!((node.protocol().term(), node.log.end()), (Term(66), LogPosition::ZERO));
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
    assert_eq!(node.protocol().term(), Term(131));
    assert!(node.is_readable() && node.log.end() == LogPosition::ZERO);
}

/// The same, with those that are not full kept.
fn keeping(config: u64, members: &[ReplicaId], full: usize) -> GroupView {
    let mut view = view(config, members, full);
    view.members.iter_mut().for_each(|member| member.is_kept = !member.is_full);
    view
}

/// docs/faults.md: R2
#[test]
fn a_survivor_answers_reads_in_a_view_that_waits_if_its_log_is_whole_and_appends_nothing() {
    let machine = Machine::new(HEAD);
    let mut node = machine.open(NodeOptions::default());
    let alone = GroupView { members_min: 1, ..view(2, &[HEAD], 1) };
    node.handle_view(alone).unwrap();
    machine.run(&mut node, 50);
    assert!(node.is_readable() && node.is_whole());
    let (term, end) = (node.protocol().term(), node.log.end());
    assert!(end > LogPosition::ZERO, "the first record of the term");
    node.handle_view(keeping(3, &[HEAD, TAIL], 1)).unwrap();
    assert_eq!(in_effect(&machine.run(&mut node, 100)), Some(3));
    machine.run(&mut node, 150);
    assert!(node.is_readable() && node.is_whole() && node.holds_lease());
    assert_eq!(node.acknowledged(), Frontier::of(end));
    assert_eq!(node.founded(), ConfigNumber(3));
    assert_eq!((node.protocol().term(), node.log.end()), (term, end), "no term begins");
    assert_eq!(refusal(&node), "1 full replicas are left, the group needs 2 to take writes");
    // It is so in the next such view, and not in the next process, which does not know.
    node.handle_view(keeping(4, &[HEAD, TAIL], 1)).unwrap();
    assert_eq!(in_effect(&machine.run(&mut node, 200)), Some(4));
    machine.run(&mut node, 250);
    assert!(node.is_readable());
    let mut node = machine.open(NodeOptions::default());
    machine.run(&mut node, 300);
    assert!(!node.is_readable() && !node.is_whole());
    assert_eq!(node.founded(), ConfigNumber(4), "it has what it had");
    // One that never had a term that ran knows nothing either.
    let machine = Machine::new(HEAD);
    let mut node = machine.open(NodeOptions::default());
    node.handle_view(keeping(2, &[HEAD, TAIL], 1)).unwrap();
    assert_eq!(in_effect(&machine.run(&mut node, 0)), Some(2));
    machine.run(&mut node, 50);
    assert!(!node.is_readable());
}

/// docs/faults.md: R11
#[test]
fn a_member_that_is_kept_is_not_filled() {
    let machine = Machine::new(TAIL);
    let mut node = machine.open(NodeOptions::default());
    node.handle_view(keeping(2, &[HEAD, TAIL], 1)).unwrap();
    assert_eq!(in_effect(&machine.run(&mut node, 0)), Some(2));
    assert!(node.view().is_kept() && !node.view().is_full() && !node.is_whole());
    assert!(node.fill_status().is_none() && !node.is_filled());
    node.begin_copy("a test says so");
    machine.run(&mut node, 50);
    assert!(node.fill_status().is_none() && !node.state().is_being_filled());
    assert_eq!(node.founded(), ConfigNumber::ZERO, "its word founds nothing");
    assert!(node.view_told().is_some());
}

/// The tail says something to the head in the first view.
fn hears(node: &mut Node, term: Term, message: Message) {
    let (group, shard, config) = (GroupId(1), ShardId::ZERO, ConfigNumber(1));
    let (from, to, connection) = (TAIL, HEAD, 3);
    let frame = Frame { group, shard, config, term, from, to, connection, message };
    node.handle_message(TAIL, 7, frame, 0);
}

/// The tail connects and says Hello to the head.
fn meets(node: &mut Node) {
    node.handle_connected(TAIL, 7, 0);
    let versions = (frame::VERSION, frame::VERSION);
    let hello = Message::Hello(MemberState { versions, ..MemberState::default() });
    hears(node, Term::ZERO, hello);
}

/// A term that runs here may be one that the others will never join.
#[test]
fn a_term_has_its_first_record_once_every_full_member_has_joined() {
    let machine = Machine::new(HEAD);
    let mut node = machine.open(NodeOptions::default());
    meets(&mut node);
    machine.run(&mut node, 0);
    let term = node.protocol().term();
    assert!(term > Term::ZERO && node.protocol().is_joined());
    assert_eq!((node.log.end(), node.founded()), (LogPosition::ZERO, ConfigNumber::ZERO));
    assert!(matches!(node.write_gate(), WriteGate::Refuse(_)));
    let progress = Progress::default();
    hears(&mut node, term, Message::TermAccepted { last_crc: 0, progress });
    machine.run(&mut node, 0);
    assert!(node.log.end() > LogPosition::ZERO);
    assert_eq!((node.founded(), node.write_gate()), (ConfigNumber(1), WriteGate::Open));
}

/// A member that has promised the reader something at 1,000 ms.
fn promised(node: &mut Node) {
    node.pass_lease_time(1_000);
    meets(node);
    let asked = Lease { asked_ms: 5, lasts_ms: 300 };
    hears(node, Term::ZERO, Message::Heartbeat(Watermarks::default(), asked));
    assert_eq!(node.protocol().promised_until_ms(TAIL), 1_300);
}

/// Ticks at this time, and the configuration that took effect with it.
fn tick(machine: &Machine, node: &mut Node, lease_ms: u64) -> Option<u64> {
    node.pass_lease_time(lease_ms);
    node.handle_tick(0);
    in_effect(&machine.run(node, 0))
}

/// A view that is taken while a promise stands waits for its end, and the last of several counts.
/// docs/faults.md: R5
#[test]
fn a_newer_view_takes_effect_once_the_last_promise_has_run_out() {
    let machine = Machine::new(HEAD);
    let mut node = machine.open(NodeOptions::default());
    // The process before this one has promised nothing that lasts.
    node.pass_lease_time(500);
    promised(&mut node);
    machine.run(&mut node, 0);
    node.handle_view(view(2, &[HEAD, TAIL], 1)).unwrap();
    assert_eq!(in_effect(&machine.run(&mut node, 0)), None);
    assert_eq!(node.view_told().map(|view| view.config), Some(ConfigNumber(2)));
    assert!(node.duties().append, "the view before goes on");
    assert_eq!(tick(&machine, &mut node, 1_301), None);
    node.handle_view(view(3, &[HEAD], 1)).unwrap();
    assert_eq!(in_effect(&machine.run(&mut node, 0)), None);
    // 500 parts in a million and 1 ms are added, and a whole ms passes.
    assert_eq!(tick(&machine, &mut node, 1_302), None);
    assert_eq!(tick(&machine, &mut node, 1_303), Some(3));
    // Nothing was promised in a view of this replica alone.
    node.handle_view(view(4, &[TAIL, HEAD], 2)).unwrap();
    assert_eq!(in_effect(&machine.run(&mut node, 0)), Some(4));
    assert!(!node.state().view_waits);
}

/// A store that was set back counts its views again.
/// docs/faults.md: R8
#[test]
fn a_known_number_with_other_members_is_refused_also_after_a_start() {
    let machine = Machine::new(HEAD);
    let mut node = machine.open(NodeOptions::default());
    node.handle_view(view(2, &[HEAD, TAIL], 1)).unwrap();
    assert_eq!(in_effect(&machine.run(&mut node, 0)), Some(2));
    for _ in 0..2 {
        let error = node.handle_view(view(2, &[HEAD, TAIL], 2)).unwrap_err();
        assert_eq!(error.message(), "configuration c2 is known with other members than these");
        assert_eq!(in_effect(&machine.run(&mut node, 0)), None);
        assert!(!node.view().group().has_full(TAIL));
        node.handle_view(view(2, &[HEAD, TAIL], 1)).unwrap();
        node = machine.open(NodeOptions::default());
        machine.run(&mut node, 0);
    }
}

/// Nothing counts in a view before those who hold a promise say Hello in it, where they are full.
/// docs/faults.md: R5
#[test]
fn a_view_that_keeps_those_who_were_promised_something_takes_effect_at_once() {
    for (config, order) in [(2, [TAIL, HEAD]), (2, [HEAD, TAIL])] {
        let machine = Machine::new(HEAD);
        let mut node = machine.open(NodeOptions::default());
        node.pass_lease_time(500);
        promised(&mut node);
        machine.run(&mut node, 0);
        node.handle_view(view(config, &order, 2)).unwrap();
        assert_eq!(in_effect(&machine.run(&mut node, 0)), Some(config));
        // An earlier promise still binds towards the next one, which lacks the other.
        node.handle_view(view(3, &[HEAD], 1)).unwrap();
        assert_eq!(in_effect(&machine.run(&mut node, 0)), None);
        assert_eq!(tick(&machine, &mut node, 1_302), None);
        assert_eq!(tick(&machine, &mut node, 1_303), Some(3));
    }
}

/// The process that promised is gone, and the next one does not know what it promised.
/// docs/faults.md: R5
#[test]
fn a_start_waits_one_lease_before_a_newer_view_also_if_it_was_durable_before() {
    let machine = Machine::new(HEAD);
    let mut node = machine.open(NodeOptions::default());
    assert_eq!(tick(&machine, &mut node, 1_000), None);
    node.handle_view(view(2, &[TAIL, HEAD], 2)).unwrap();
    assert_eq!(in_effect(&machine.run(&mut node, 0)), None);
    assert_eq!(tick(&machine, &mut node, 1_302), None);
    // It is durable and waits; then the process is killed.
    let mut node = machine.open(NodeOptions::default());
    assert_eq!(tick(&machine, &mut node, 2_000), None);
    assert_eq!(node.view_told().map(|view| view.config), Some(ConfigNumber(2)));
    assert!(!node.view().is_member() && !node.is_readable(), "it acts in no view");
    assert_eq!(tick(&machine, &mut node, 2_302), None);
    assert_eq!(tick(&machine, &mut node, 2_303), Some(2));
    // From then on it goes on in its view at once.
    let node = machine.open(NodeOptions::default());
    assert!(node.view().is_member() && node.view().group().config == ConfigNumber(2));
}

#[test]
fn a_head_that_stays_keeps_its_turns() {
    let machine = Machine::new(HEAD);
    let mut node = machine.open(NodeOptions::default());
    let orders = [(2, [HEAD, TAIL], true), (3, [TAIL, HEAD], false), (4, [HEAD, TAIL], false)];
    for (config, order, keeps) in orders {
        node.handle_view(view(config, &order, 2)).unwrap();
        assert_eq!(in_effect(&machine.run(&mut node, 0)), Some(config));
        assert_eq!(node.keeps_turns(), keeps, "configuration {config}");
    }
    node.handle_view(view(5, &[HEAD], 1)).unwrap();
    machine.run(&mut node, 0);
    assert!(node.keeps_turns());
}

/// An older disk lacks files that edits in the group's log add.
/// docs/faults.md: E7
#[test]
fn a_head_asks_in_each_view_for_the_files_that_it_lacks() {
    let machine = Machine::new(HEAD);
    let mut node = machine.open(NodeOptions::default());
    let added = Edit {
        number: 1,
        kind: JobKind::Flush,
        term: Term(1),
        values: Vec::new(),
        removed: Vec::new(),
        added: alloc::vec![(0, FileMeta::new(FileId::sst(7), Term(1)))],
        flushed: None,
        next_file: 8,
        floor: None,
        recipe: None,
    };
    node.queue_edit(added, Vec::new(), LogPosition::ZERO).unwrap();
    let asks = |node: &mut Node, now_ms| {
        node.handle_tick(now_ms);
        machine.run(node, now_ms);
        node.damaged_files().count() == 1
    };
    let wait_ms = node.options.placement_wait_ms;
    assert!(!asks(&mut node, 1), "it may be on its way");
    assert!(asks(&mut node, 1 + wait_ms));
    node.handle_view(view(2, &[HEAD, TAIL], 1)).unwrap();
    assert_eq!(in_effect(&machine.run(&mut node, 1 + wait_ms)), Some(2));
    assert!(!asks(&mut node, 2 + wait_ms), "others are asked from here on");
    assert!(asks(&mut node, 3 + 2 * wait_ms));
}

/// It acts in no view between its start and the end of its promise, and voids nothing at its start.
/// docs/faults.md: H4
#[test]
fn grants_of_before_a_start_are_void_where_a_view_that_waited_has_the_replica_ship() {
    let machine = Machine::new(TAIL);
    let mut node = machine.open(NodeOptions::default());
    assert_eq!(tick(&machine, &mut node, 1_000), None);
    node.pool.grant(Term(1), node.state.session, HEAD, 2).unwrap();
    node.handle_view(view(2, &[TAIL, HEAD], 1)).unwrap();
    assert_eq!(in_effect(&machine.run(&mut node, 0)), None);
    let mut node = machine.open(NodeOptions::default());
    assert_eq!(tick(&machine, &mut node, 2_000), None);
    assert_eq!(node.pool.counts().granted, 2, "the process before granted them");
    assert_eq!(tick(&machine, &mut node, 2_303), Some(2));
    assert!(node.duties().ship);
    assert_eq!(node.pool.counts().granted, 0);
    node.handle_target_open(node.state.session, 1);
    assert_eq!(node.pool.counts().quarantined, 0, "they are free once nothing can land there");
}

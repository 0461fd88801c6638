use super::*;
use crate::NodeOptions;
use crate::node::effects::Effect;
use crate::node::facts::facts;
use crate::node::testing::{HEAD, Machine, TAIL, built};
use crate::node::{Node, Output};
use gabion_base::{ConfigNumber, LogPosition};
use gabion_log::{Anchor, Span};
use gabion_replication::GroupView;

/// A member that is not full, with a file that no edit names, and the file.
fn to_be_filled(machine: &Machine) -> (Node, FileId) {
    let mut node = machine.open(NodeOptions::default());
    let slots = node.pool.allocate(1).unwrap();
    let file = built(FileId::sst(1), Term(0), slots, 4_096);
    node.files.add(&mut node.pool, FilePlacement::clone(&file.placement)).unwrap();
    machine.commit(&mut node);
    node.files.placed(&node.pool, file.meta.id);
    let mut view = node.view.group().clone();
    view.config = view.config.next();
    view.members[1].is_full = false;
    node.handle_view(view).unwrap();
    machine.commit(&mut node);
    assert!(node.fill_status().is_some(), "it does not count");
    (node, file.meta.id)
}

fn is_reopened(node: &mut Node) -> bool {
    core::iter::from_fn(|| node.poll_output()).any(|output| matches!(output, Output::Reopen(_)))
}

/// Has the copy begin, and the head offer a state. Returns whether the node ends for the mark.
fn is_offered(node: &mut Node) -> bool {
    node.begin_copy("the log is another one");
    let number = node.fill.number;
    node.handle_state(HEAD, (number + 1, 10, 0), &[1]);
    node.advance_copies();
    assert!(!node.is_reopening(), "that was another state");
    node.handle_state(HEAD, (number, 10, 0), &[1]);
    node.advance_copies();
    node.is_reopening()
}

/// docs/faults.md: E1
#[test]
fn a_start_behind_the_mark_finds_no_tree_and_no_log_and_all_files_and_refuses_to_count() {
    let machine = Machine::new(TAIL);
    let (mut node, file) = to_be_filled(&machine);
    assert!(is_offered(&mut node));
    drop(node);
    let mut node = machine.open(NodeOptions::default());
    assert!(!node.state().is_being_filled(), "a crash came before the mark was durable");
    assert!(is_offered(&mut node));
    machine.commit(&mut node);
    assert!(is_reopened(&mut node));
    drop(node);
    let mut node = machine.open(NodeOptions::default());
    assert!(node.state().is_being_filled() && !node.is_filled());
    assert_eq!((node.tree().last_edit(), node.log_end().only()), (0, LogPosition::ZERO));
    assert!(node.files.is_unnamed(file) && node.pool.placement(file).is_some());
    node.advance_copies();
    assert_eq!(node.fill_status().unwrap().step, FillStep::Asking);
    let mut view = node.view.group().clone();
    assert_eq!(node.view_told().map(|view| view.config), Some(view.config));
    (view.config, view.members[1].is_full) = (ConfigNumber(9), true);
    let error = node.handle_view(view.clone()).unwrap_err();
    assert!(error.message().contains("it is being filled"), "{error}");
    assert_eq!(node.view_told(), None, "the group has to go on without it first");
    (view.config, view.members[1].is_full) = (ConfigNumber(10), false);
    node.handle_view(view).unwrap();
    assert_eq!(node.view_told().map(|view| view.config), Some(ConfigNumber(10)));
    node.invariants();
}

/// The files of a state, as a machine takes them.
fn copying(node: &Node, files: &[FileMeta]) -> Fill {
    let mut fill = Fill::default();
    fill.begin(&facts!(node));
    for meta in files {
        fill.files.insert(meta.id, Arc::new(meta.clone()));
        fill.missing.push_back(meta.id);
        fill.bytes += meta.rounded_len();
    }
    let start = LogPosition::ZERO;
    fill.state = Some(CopiedState {
        term: Term(1),
        begin: Anchor::START,
        begin_ms: 0,
        applied_to: start,
        spans: alloc::vec![Span { term: Term(1), start, end: None }],
        tree: Vec::new(),
    });
    fill.step = Step::Copying;
    fill
}

fn described(number: u64) -> FileMeta {
    let meta = FileMeta::new(FileId::sst(number), Term(1));
    FileMeta { len: 4_096, checksum: 7, chunk_crcs: alloc::vec![number as u32], ..meta }
}

#[test]
fn a_file_that_comes_with_another_description_than_the_states_is_refused() {
    let machine = Machine::new(TAIL);
    let (node, _) = to_be_filled(&machine);
    let fill = copying(&node, &[described(5)]);
    let shipped = |number: u64| ShippedFile {
        file: FileId::sst(number),
        term: Term(1),
        len: 4_096,
        checksum: 7,
        chunk_crcs: alloc::vec![5],
        slots: Vec::new(),
    };
    fill.check_shipped(&shipped(5)).unwrap();
    fill.check_shipped(&shipped(6)).unwrap();
    for other in [
        ShippedFile { len: 8_192, ..shipped(5) },
        ShippedFile { checksum: 8, ..shipped(5) },
        ShippedFile { chunk_crcs: alloc::vec![6], ..shipped(5) },
    ] {
        let error = fill.check_shipped(&other).unwrap_err();
        assert!(error.message().contains("the state has"), "{error}");
    }
}

#[test]
fn a_file_that_the_head_does_not_have_whole_is_asked_for_later_and_then_another_state() {
    let machine = Machine::new(TAIL);
    let (node, _) = to_be_filled(&machine);
    let (mut fill, mut effects) = (copying(&node, &[described(5)]), Effects::default());
    let (file, number) = (FileId::sst(5), fill.number);
    for _ in 0..NO_COPIES_MAX {
        assert!(fill.takes_files());
        fill.missing.clear();
        fill.asked.insert(file);
        fill.no_copy(&facts!(node), &mut effects, file);
        assert!(fill.asked.is_empty());
        fill.invariants();
    }
    assert!(!fill.takes_files() && fill.number > number);
    assert!(fill.status().failure.is_some_and(|it| it.message().contains("no whole copy")));
    let told = core::iter::from_fn(|| effects.next_effect());
    assert!(told.filter(|it| matches!(it, Effect::Output(Output::Notice(_)))).count() == 1);
}

#[test]
fn files_are_fetched_at_the_rate_that_is_allowed_and_a_quarter_of_a_second_ahead_at_most() {
    let (rate, len) = (1_000_000, 50_000);
    let mut budget = Budget::default();
    let mut taken = 0;
    for now_ms in (0..=10_000).step_by(3) {
        while budget.has_some(rate, now_ms) {
            budget.spend(len);
            taken += len;
        }
    }
    let all = rate * 10;
    assert!(taken <= all + len && taken + 2 * len >= all, "{taken} bytes of {all}");
    // Nothing was fetched for long.
    let mut at_once = 0;
    while budget.has_some(rate, 100_000) {
        budget.spend(len);
        at_once += len;
    }
    assert_eq!(at_once, rate / 4);
    assert!(budget.has_some(0, 100_000), "no limit");
    let mut slow = Budget::default();
    let has_some = (0..4_000).filter(|now_ms| slow.has_some(1, *now_ms)).count();
    assert!(has_some > 0, "the least rate is one");
}

#[test]
fn fetches_are_held_back_only_while_the_log_of_the_group_grows() {
    let mut traffic = Traffic { grown_ms: 100, ..Traffic::default() };
    assert!(!traffic.is_quiet(100 + QUIET_MS - 1), "nobody knows yet");
    assert!(traffic.is_quiet(100 + QUIET_MS));
    let at = |position| Frontier::of(LogPosition(position));
    traffic.hear(at(4_096), 1_000);
    traffic.hear(at(4_096), 1_400);
    assert!(!traffic.is_quiet(1_000 + QUIET_MS - 1));
    assert!(traffic.is_quiet(1_000 + QUIET_MS), "the same again is no write");
    traffic.hear(at(4_104), 2_000);
    assert!(!traffic.is_quiet(2_000));
    assert!(!traffic.is_quiet(0), "a clock that goes back is no time that passed");
}

#[test]
fn a_view_that_leaves_a_member_out_ends_its_copy() {
    let machine = Machine::new(TAIL);
    let (mut node, _) = to_be_filled(&machine);
    node.begin_copy("the log is another one");
    assert!(node.fill.is_begun());
    let view = node.view.group().clone();
    let members = alloc::vec![view.members[0].clone()];
    node.handle_view(GroupView { config: view.config.next(), members, ..view }).unwrap();
    machine.commit(&mut node);
    assert!(!node.fill.is_begun() && node.fill_status().is_none());
}

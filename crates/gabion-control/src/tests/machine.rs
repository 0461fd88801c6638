//! The controller alone: reports in, outputs out.

use crate::record::GroupRecord;
use crate::store::Versioned;
use crate::{
    Command, Controller, Epoch, Moment, Output, Patience, Probe, Report, Swapped, Verdict, Version,
};
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use gabion_base::{ConfigNumber, Error, GroupId, LogKind, ReplicaId};
use gabion_replication::{GroupView, Member};

const GROUP: GroupId = GroupId(1);
const EPOCH: Epoch = Epoch { number: 5, id: 77 };

/// A controller of a group of three, at a time of ours.
struct Rig {
    controller: Controller,
    now_ms: u64,
    view: GroupView,
    version: u64,
}

impl Rig {
    fn new(members_min: u8) -> Self {
        let founders: Vec<_> = (1..=3).map(ReplicaId).collect();
        let mut view = GroupView::founding(GROUP, &founders, LogKind::Shared);
        view.members_min = members_min;
        for member in &mut view.members {
            member.pool_id = [member.replica.get() as u8; 16];
        }
        let records = [(Version(1), GroupRecord::founding(view.clone()))];
        let now = Moment { now_ms: 1_000, unix_ms: 0 };
        // As long as one that reported, where a test does not say otherwise.
        let patience = Patience { start_ms: 400, replace_ms: 60_000, ..Patience::default() };
        let controller = Controller::new(patience, EPOCH, records, now);
        Self { controller, now_ms: 1_000, view, version: 1 }
    }

    fn now(&self) -> Moment {
        Moment { now_ms: self.now_ms, unix_ms: self.now_ms }
    }

    fn report(&self, id: u32) -> Report {
        let mut member = Member::new(ReplicaId(id));
        member.pool_id = [id as u8; 16];
        Report {
            group: GROUP,
            member,
            view: Some(self.view.clone()),
            founded: self.view.config,
            is_filled: false,
            is_whole: false,
            filling: None,
            vitals: None,
            unheard: Vec::new(),
            probe: Probe::Well,
            epoch: EPOCH,
        }
    }

    /// For so long these report, every 100 ms, as `change` has it.
    fn pass(&mut self, ms: u64, reporting: &[u32], change: impl Fn(&mut Report)) {
        for _ in 0..ms / 20 {
            self.now_ms += 20;
            self.controller.handle_tick(self.now());
            if self.now_ms.is_multiple_of(100) {
                for id in reporting {
                    let mut report = self.report(*id);
                    change(&mut report);
                    self.controller.handle_report(report, self.now());
                }
            }
        }
    }

    fn outputs(&mut self) -> Vec<Output> {
        core::iter::from_fn(|| self.controller.poll_output()).collect()
    }

    /// The record that is to be stored; nothing else is asked.
    fn swap(&mut self) -> GroupRecord {
        match &self.outputs()[..] {
            [Output::Swap { group: GROUP, expected, record }] => {
                assert_eq!(*expected, Version(self.version));
                GroupRecord::decode(record).unwrap()
            }
            other => panic!("one change of the record is expected, not {other:?}"),
        }
    }

    /// The record that is to be stored, beside views that are told.
    fn swap_amid_others(&mut self) -> GroupRecord {
        let swapped = self.outputs().into_iter().find_map(|output| match output {
            Output::Swap { record, .. } => Some(GroupRecord::decode(&record).unwrap()),
            _ => None,
        });
        swapped.unwrap()
    }

    fn stored(&mut self) {
        self.version += 1;
        let stored = Swapped::Stored(Version(self.version));
        self.controller.handle_swapped(GROUP, Ok(stored), self.now());
    }

    fn events(&self) -> Vec<String> {
        let record = self.controller.record(GROUP).unwrap();
        record.events.iter().map(|event| event.text.clone()).collect()
    }
}

fn ids(view: &GroupView) -> Vec<u32> {
    view.members.iter().map(|member| member.replica.get()).collect()
}

#[test]
fn a_silent_member_is_left_out_and_the_others_are_told_once_that_is_stored() {
    let mut rig = Rig::new(2);
    rig.pass(3_000, &[1, 2, 3], |_| {});
    assert_eq!(rig.outputs(), []);
    rig.pass(400, &[2, 3], |_| {});
    assert_eq!(rig.outputs(), [], "nobody fails in 400 ms");
    rig.pass(40, &[2, 3], |_| {});
    let record = rig.swap();
    let next = record.intended.clone().unwrap();
    assert_eq!((ids(&next), next.config), ([2, 3].to_vec(), ConfigNumber(2)));
    rig.stored();
    let told: Vec<_> = rig.outputs().into_iter().collect();
    let expected =
        [1, 2, 3].map(|id| Output::Tell { to: ReplicaId(id), view: next.clone(), epoch: EPOCH });
    assert_eq!(told, expected, "also the one that is out, which may run");
    // They act in it, and it is complete with the first record of its term at both.
    let old = rig.view.config;
    rig.view = next;
    rig.pass(100, &[2, 3], |report| report.founded = old);
    assert_eq!(rig.outputs(), []);
    rig.pass(100, &[2], |_| {});
    assert_eq!(rig.outputs(), []);
    rig.pass(100, &[2, 3], |_| {});
    let record = rig.swap();
    assert_eq!((record.intended, ids(&record.complete)), (None, [2, 3].to_vec()));
    rig.stored();
    let events = rig.events();
    assert!(events[0].starts_with("without replica 1 (replica 1: silent for 4"), "{events:?}");
    assert_eq!(events[1], "c2 is complete: replica 2 takes writes, replica 3 answers reads");
}

#[test]
fn below_the_minimum_it_is_said_once_and_the_members_stay() {
    let mut rig = Rig::new(2);
    rig.pass(1_000, &[3], |_| {});
    let record = rig.swap();
    assert_eq!(record.intended, None);
    rig.stored();
    rig.pass(5_000, &[3], |_| {});
    assert_eq!(rig.outputs(), []);
    assert_eq!(rig.events().len(), 1);
    assert!(rig.events()[0].contains("fewer full members are left than the 2"));
}

/// docs/faults.md: R8
#[test]
fn a_controller_that_did_not_run_judges_nobody_by_it() {
    let mut rig = Rig::new(2);
    rig.pass(1_000, &[1, 2, 3], |_| {});
    rig.now_ms += 60_000;
    rig.controller.handle_tick(rig.now());
    assert_eq!(rig.outputs(), []);
    rig.pass(1_000, &[1, 2, 3], |_| {});
    rig.now_ms += 60_000;
    let report = rig.report(1);
    rig.controller.handle_report(report, rig.now());
    assert_eq!(rig.outputs(), [], "a report came before the first tick");
    rig.pass(300, &[1, 2], |_| {});
    assert_eq!(rig.outputs(), [], "they have their whole patience again");
    rig.pass(300, &[1, 2], |_| {});
    assert_eq!(ids(rig.swap().newest()), [1, 2]);
}

/// docs/faults.md: R8
#[test]
fn of_a_swap_whose_outcome_nobody_knows_the_record_is_read_again() {
    let mut rig = Rig::new(2);
    rig.pass(1_000, &[2, 3], |_| {});
    let planned = rig.swap();
    let unknown = || Error::unavailable("the store is away");
    rig.controller.handle_swapped(GROUP, Err(unknown()), rig.now());
    assert_eq!(rig.outputs(), [Output::Read { group: GROUP }]);
    rig.controller.handle_read(GROUP, Err(unknown()), rig.now());
    assert_eq!(rig.outputs(), [Output::Read { group: GROUP }]);
    rig.pass(2_000, &[2, 3], |_| {});
    assert_eq!(rig.outputs(), [], "nothing is planned on a record that may not be there");
    let found = Versioned { version: Version(9), value: planned.encode() };
    rig.controller.handle_read(GROUP, Ok(Some(found)), rig.now());
    assert_eq!(rig.controller.record(GROUP), Some(&planned));
    rig.version = 9;
    rig.pass(100, &[2, 3], |_| {});
    let told = rig.outputs();
    assert!(told.iter().all(|output| matches!(output, Output::Tell { .. })), "{told:?}");
    assert!(!told.is_empty(), "members are told on their next report");
}

#[test]
fn of_two_controllers_the_second_takes_what_the_first_stored() {
    let mut rig = Rig::new(1);
    rig.pass(1_000, &[2, 3], |_| {});
    let ours = rig.swap();
    let mut theirs = ours.clone();
    theirs.intended.as_mut().unwrap().members.remove(0);
    theirs.trusted = [ReplicaId(3)].to_vec();
    let lost = Swapped::Lost(Some(Versioned { version: Version(4), value: theirs.encode() }));
    rig.controller.handle_swapped(GROUP, Ok(lost), rig.now());
    assert_eq!(rig.controller.record(GROUP), Some(&theirs));
    // The controller plans nothing on a record that it cannot read.
    let mut rig = Rig::new(1);
    rig.pass(1_000, &[2, 3], |_| {});
    rig.swap();
    let lost = Swapped::Lost(Some(Versioned { version: Version(4), value: [9, 9].to_vec() }));
    rig.controller.handle_swapped(GROUP, Ok(lost), rig.now());
    assert_eq!(rig.outputs(), [Output::Read { group: GROUP }]);
}

#[test]
fn a_full_pool_is_a_members_fault_only_where_others_have_room() {
    let mut rig = Rig::new(2);
    rig.pass(3_000, &[1, 2, 3], |report| report.probe = Probe::Full);
    assert_eq!(rig.outputs(), []);
    let second_is_full = |report: &mut Report| {
        report.probe = if report.member.replica.get() == 2 { Probe::Full } else { Probe::Well };
    };
    rig.pass(100, &[1, 2, 3], |_| {});
    rig.pass(1_000, &[1, 2, 3], second_is_full);
    assert_eq!(rig.outputs(), [], "the others may be full in a moment, too");
    rig.pass(200, &[1, 2, 3], second_is_full);
    let record = rig.swap();
    assert_eq!(ids(record.newest()), [1, 3]);
    assert_eq!(record.events[0].text, "without replica 2 (replica 2: its pool is full)");
}

#[test]
fn a_stuck_disk_is_a_failure_though_its_replica_reports() {
    let mut rig = Rig::new(2);
    let mut stuck_ms = 0;
    for _ in 0..10 {
        rig.pass(100, &[1, 2, 3], |report| {
            if report.member.replica.get() == 1 {
                report.probe = Probe::Running(stuck_ms);
            }
        });
        stuck_ms += 100;
        assert_eq!(rig.outputs(), []);
    }
    rig.pass(200, &[1, 2, 3], |report| {
        if report.member.replica.get() == 1 {
            report.probe = Probe::Running(1_100);
        }
    });
    assert_eq!(ids(rig.swap().newest()), [2, 3]);
    let status = rig.controller.status(GROUP, rig.now()).unwrap();
    assert!(matches!(status.replicas[0].verdict, Some(Verdict::Stuck(_))), "{status:?}");
    assert!(status.is_complete, "nothing is stored yet");
}

/// docs/faults.md: R11
#[test]
fn a_wiped_foreign_or_older_disk_is_no_member_and_joins_anew() {
    type Change = fn(&mut Report);
    let changes: [Change; 3] = [
        |report| report.view = None,
        |report| report.member.pool_id = [9; 16],
        |report| {
            report.member.pool_id = [9; 16];
            report.view = None;
        },
    ];
    for change in changes {
        let mut rig = Rig::new(2);
        let change = |report: &mut Report| {
            if report.member.replica.get() == 3 {
                change(report);
            }
        };
        rig.pass(600, &[1, 2, 3], change);
        let mut swaps = rig.outputs().into_iter().filter_map(|output| match output {
            Output::Swap { record, .. } => GroupRecord::decode(&record).ok(),
            _ => None,
        });
        let next = swaps.next_back().unwrap();
        assert_eq!(ids(next.newest()), [1, 2]);
        rig.stored();
        rig.outputs();
        rig.view = next.newest().clone();
        rig.pass(100, &[1, 2], |_| {});
        assert!(rig.swap().intended.is_none());
        rig.stored();
        rig.pass(200, &[1, 2, 3], |report| {
            change(report);
            if report.member.replica.get() == 3 {
                report.view = None;
            }
        });
        let last = rig.outputs().into_iter().rev().find_map(|output| match output {
            Output::Swap { record, .. } => GroupRecord::decode(&record).ok(),
            _ => None,
        });
        let view = last.unwrap().newest().clone();
        assert_eq!(ids(&view), [1, 2, 3]);
        assert!(!view.members[2].is_full, "it is filled first");
    }
}

/// docs/faults.md: R11
#[test]
fn one_that_lost_what_it_had_is_told_no_view_in_which_it_is_full() {
    let mut rig = Rig::new(2);
    rig.view.members.iter_mut().for_each(|member| member.pool_id = [0; 16]);
    let records = [(Version(1), GroupRecord::founding(rig.view.clone()))];
    rig.controller = Controller::new(Patience::default(), EPOCH, records, rig.now());
    let is_wiped = |report: &mut Report| {
        if report.member.replica.get() == 3 {
            report.view = None;
        }
    };
    rig.pass(600, &[1, 2, 3], is_wiped);
    let next = rig.swap().newest().clone();
    assert_eq!(ids(&next), [1, 2]);
    assert_eq!(next.members[0].pool_id, [1; 16], "from now on the view says which disks it means");
    rig.stored();
    let told = rig.outputs();
    let is_to = |id: u32| {
        told.iter().any(|output| matches!(output, Output::Tell { to, .. } if to.get() == id))
    };
    assert!(is_to(1) && is_to(2) && is_to(3), "a view without it says that it is out: {told:?}");
}

/// docs/faults.md: R11, R12
#[test]
fn no_view_relies_on_members_that_may_have_lost_their_disks() {
    let mut rig = Rig::new(2);
    rig.pass(300, &[], |_| {});
    let are_wiped = |report: &mut Report| report.view = None;
    rig.pass(3_000, &[2, 3], are_wiped);
    let record = rig.swap();
    assert_eq!(ids(record.newest()), [1], "the one that is silent has everything");
}

/// docs/faults.md: R8
#[test]
fn reports_that_were_on_their_way_when_another_controller_completed_a_view_accuse_nobody() {
    let mut rig = Rig::new(2);
    rig.pass(1_000, &[1, 2], |_| {});
    let mut theirs = rig.swap();
    theirs.complete = theirs.intended.take().unwrap();
    let old = rig.view.clone();
    rig.view = theirs.complete.clone();
    let lost = Swapped::Lost(Some(Versioned { version: Version(4), value: theirs.encode() }));
    rig.controller.handle_swapped(GROUP, Ok(lost), rig.now());
    rig.version = 4;
    rig.pass(300, &[1, 2], |report| report.view = Some(old.clone()));
    assert_eq!(rig.outputs(), []);
    rig.pass(1_000, &[1, 2], |_| {});
    assert_eq!(rig.outputs(), []);
}

#[test]
fn a_store_that_was_set_back_learns_the_newest_view_from_the_members() {
    let mut rig = Rig::new(2);
    rig.view.config = ConfigNumber(7);
    rig.view.members.remove(0);
    rig.pass(100, &[2], |_| {});
    let record = rig.swap();
    assert_eq!((record.newest().config, ids(record.newest())), (ConfigNumber(7), [2, 3].to_vec()));
    assert!(record.trusted.is_empty(), "whom the views between left out is not known");
    rig.stored();
    rig.outputs();
    rig.pass(100, &[2, 3], |_| {});
    let record = rig.swap();
    assert_eq!(record.complete.config, ConfigNumber(7));
    assert_eq!(record.trusted, [ReplicaId(2), ReplicaId(3)]);
}

/// No controller could read the record: the group would be without any.
/// docs/faults.md: R8
#[test]
fn a_record_that_no_controller_could_read_is_not_stored_and_the_group_goes_on_without_the_change() {
    let mut rig = Rig::new(2);
    let of_another = |report: &mut Report| {
        let view = report.view.as_mut().unwrap();
        (view.group, view.config) = (GroupId(2), ConfigNumber(9));
    };
    rig.pass(300, &[3], of_another);
    let record = rig.swap();
    assert_eq!(record.newest(), &rig.view);
    rig.stored();
    let events = rig.events();
    let last = events.last().unwrap();
    assert!(last.contains("nothing is changed: c9 of g2 is intended after c1 of g1"), "{last}");
    rig.pass(300, &[3], of_another);
    assert_eq!(rig.outputs(), [], "it is said once");
    // Once that is over the group is looked after as before.
    rig.pass(3_000, &[1, 3], |_| {});
    assert!(!rig.swap_amid_others().newest().has_full(ReplicaId(2)), "it has failed");
}

#[test]
fn nobody_is_judged_by_a_store_that_was_set_back_until_every_member_has_reported() {
    let mut rig = Rig::new(1);
    let later = Epoch { number: 5, id: 78 };
    rig.pass(3_000, &[1], |report| report.epoch = later);
    let outputs = rig.outputs();
    assert!(outputs.iter().all(|output| matches!(output, Output::Tell { .. })), "{outputs:?}");
    rig.pass(100, &[1, 2, 3], |_| {});
    rig.outputs();
    rig.pass(4_000, &[1], |_| {});
    assert_eq!(ids(rig.swap().newest()), [1]);
}

#[test]
fn two_views_of_one_number_are_followed_by_the_members_of_both() {
    let mut rig = Rig::new(1);
    let view = rig.view.clone();
    rig.view.members.remove(0);
    rig.pass(100, &[2], |_| {});
    let record = rig.swap();
    let next = record.newest();
    assert_eq!((next.config, ids(next)), (view.config.next(), [2, 3, 1].to_vec()));
    assert!(!next.members[2].is_full, "the other list left it out, and may have begun");
    assert_eq!(record.trusted, [ReplicaId(2), ReplicaId(3)]);
}

/// The view of the next record that is to be stored, which is stored.
fn next_view(rig: &mut Rig) -> GroupView {
    let record = rig.swap_amid_others();
    rig.stored();
    record.newest().clone()
}

/// The members act in the view that is stored, until it is complete.
fn complete(rig: &mut Rig, view: GroupView, reporting: &[u32]) {
    rig.outputs();
    rig.view = view;
    rig.pass(100, reporting, |_| {});
    rig.outputs();
    rig.stored();
    assert_eq!(rig.controller.record(GROUP).unwrap().intended, None);
}

#[test]
fn a_spare_waits_for_a_member_that_may_be_back_and_takes_over_then() {
    let mut rig = Rig::new(2);
    let is_spare = |report: &mut Report| {
        if report.member.replica.get() == 4 {
            (report.view, report.founded) = (None, ConfigNumber::ZERO);
        }
    };
    rig.pass(1_000, &[1, 2, 3, 4], is_spare);
    rig.outputs();
    rig.pass(500, &[1, 2, 4], is_spare);
    let without = next_view(&mut rig);
    assert_eq!(ids(&without), [1, 2]);
    rig.view = without;
    rig.pass(100, &[1, 2, 4], is_spare);
    assert_eq!(next_view(&mut rig).config, rig.view.config, "it is complete");
    rig.pass(58_000, &[1, 2, 4], is_spare);
    let outputs = rig.outputs();
    assert!(outputs.iter().all(|o| matches!(o, Output::Tell { .. })), "{outputs:?}");
    // The controller's own pause is not the member's absence.
    rig.now_ms += 600_000;
    rig.pass(1_000, &[1, 2, 4], is_spare);
    let outputs = rig.outputs();
    assert!(outputs.iter().all(|o| matches!(o, Output::Tell { .. })), "{outputs:?}");
    rig.pass(2_000, &[1, 2, 4], is_spare);
    let next = next_view(&mut rig);
    assert_eq!((ids(&next), next.members[2].is_full), ([1, 2, 4].to_vec(), false));
    let status = rig.controller.status(GROUP, rig.now()).unwrap();
    assert_eq!((status.wanted, status.replicas.len()), (3, 4));
}

#[test]
fn writes_move_to_another_full_member_when_an_operator_says_so() {
    let mut rig = Rig::new(2);
    rig.pass(500, &[1, 2, 3], |_| {});
    let now = rig.now();
    let refused = |rig: &mut Rig, command| {
        let error = rig.controller.handle_command(GROUP, command, now).unwrap_err();
        assert_eq!(rig.outputs(), []);
        error.to_string()
    };
    let fail_over = |id| Command::FailOver(Some(ReplicaId(id)));
    assert!(refused(&mut rig, fail_over(1)).contains("takes writes already"));
    assert!(refused(&mut rig, fail_over(4)).contains("no full member: 2, 3 could"));
    rig.controller.handle_command(GROUP, Command::FailOver(None), rig.now()).unwrap();
    let busy = rig.controller.handle_command(GROUP, fail_over(3), now).unwrap_err();
    assert_eq!(busy.kind(), gabion_base::ErrorKind::Busy);
    let view = next_view(&mut rig);
    assert_eq!((ids(&view), view.config), ([2, 1, 3].to_vec(), ConfigNumber(2)));
    let busy = rig.controller.handle_command(GROUP, fail_over(3), now).unwrap_err();
    assert!(busy.to_string().contains("c2 is being carried out"), "{busy}");
    complete(&mut rig, view, &[1, 2, 3]);
    rig.controller.handle_command(GROUP, fail_over(3), rig.now()).unwrap();
    assert_eq!(ids(&next_view(&mut rig)), [3, 2, 1]);
    assert_eq!(rig.events()[0], "told to have replica 2 take writes");
}

#[test]
fn an_operator_removes_no_member_that_the_group_needs() {
    let mut rig = Rig::new(2);
    rig.pass(500, &[1, 2, 3], |_| {});
    let remove = |id| Command::Remove(ReplicaId(id));
    let now = rig.now();
    let error = rig.controller.handle_command(GROUP, remove(4), now).unwrap_err();
    assert!(error.to_string().contains("replica 4 is no member: members are 1, 2, 3"), "{error}");
    rig.controller.handle_command(GROUP, remove(1), now).unwrap();
    assert_eq!(next_view(&mut rig).config, ConfigNumber(1), "first the wish is stored");
    rig.pass(100, &[1, 2, 3], |_| {});
    let view = next_view(&mut rig);
    assert_eq!(ids(&view), [2, 3]);
    complete(&mut rig, view, &[2, 3]);
    rig.pass(1_000, &[1, 2, 3], |_| {});
    assert!(rig.controller.record(GROUP).unwrap().intended.is_none(), "it is not taken again");
    rig.outputs();
    let error = rig.controller.handle_command(GROUP, remove(2), rig.now()).unwrap_err();
    let expected = "without replica 2 the group has 1 full members, and needs 2 to take writes";
    assert!(error.to_string().contains(expected), "{error}");
    // A member that was removed can be added.
    rig.controller.handle_command(GROUP, Command::Add(ReplicaId(1)), rig.now()).unwrap();
    next_view(&mut rig);
    rig.pass(100, &[1, 2, 3], |_| {});
    let view = next_view(&mut rig);
    assert_eq!((ids(&view), view.members[2].is_full), ([2, 3, 1].to_vec(), false));
}

/// Its files may go then.
#[test]
fn one_that_is_withdrawn_is_taken_no_more_whoever_fails() {
    let mut rig = Rig::new(2);
    let withdraw = |rig: &mut Rig, id| {
        let now = rig.now();
        rig.controller.handle_command(GROUP, Command::Withdraw(ReplicaId(id)), now)
    };
    rig.pass(1_000, &[1, 2, 3, 4], |_| {});
    let error = withdraw(&mut rig, 3).unwrap_err();
    assert!(error.message().contains("replica 3 is a member"), "{error}");
    withdraw(&mut rig, 4).unwrap();
    assert_eq!(rig.swap().leaving, [ReplicaId(4)]);
    rig.stored();
    rig.pass(1_000, &[2, 3, 4], |_| {});
    let view = next_view(&mut rig);
    assert_eq!(ids(&view), [2, 3]);
    complete(&mut rig, view, &[2, 3, 4]);
    // Longer than anybody waits for a member.
    rig.pass(70_000, &[2, 3, 4], |_| {});
    let said = rig.outputs();
    assert!(said.iter().all(|it| matches!(it, Output::Tell { .. })), "it is no spare: {said:?}");
}

#[test]
fn an_operator_replaces_a_member_by_a_spare_that_is_filled_first() {
    let mut rig = Rig::new(2);
    rig.pass(500, &[1, 2, 3], |_| {});
    let replace = |old, new: Option<u32>| Command::Replace(ReplicaId(old), new.map(ReplicaId));
    let now = rig.now();
    for (command, part) in [
        (replace(3, None), "no spare reports"),
        (replace(3, Some(5)), "replica 5 does not report"),
        (replace(3, Some(2)), "replica 2 is a member already"),
        (replace(7, Some(5)), "replica 7 is no member"),
        (replace(3, Some(3)), "cannot replace itself"),
        (Command::Add(ReplicaId(2)), "replica 2 is a member already"),
    ] {
        let error = rig.controller.handle_command(GROUP, command, now).unwrap_err();
        assert!(error.to_string().contains(part), "{error}");
    }
    let change = |report: &mut Report| {
        if report.member.replica.get() > 3 {
            (report.view, report.founded) = (None, ConfigNumber::ZERO);
        }
    };
    rig.pass(100, &[1, 2, 3, 4, 5], change);
    rig.outputs();
    rig.controller.handle_command(GROUP, replace(1, Some(5)), rig.now()).unwrap();
    next_view(&mut rig);
    rig.pass(100, &[1, 2, 3, 4, 5], change);
    let view = next_view(&mut rig);
    assert_eq!(ids(&view), [1, 2, 3, 5], "the one that was named");
    complete(&mut rig, view, &[1, 2, 3, 5]);
    rig.pass(100, &[1, 2, 3, 5], |report| report.is_filled = true);
    let view = next_view(&mut rig);
    assert!(view.members.iter().all(|member| member.is_full));
    complete(&mut rig, view, &[1, 2, 3, 5]);
    rig.pass(100, &[1, 2, 3, 5], |_| {});
    assert_eq!(ids(&next_view(&mut rig)), [2, 3, 5]);
}

/// Pairs of which the first does not hear the second, in a group of three for a second.
fn after_cuts(cuts: &[(u32, u32)]) -> Vec<Vec<u32>> {
    let mut rig = Rig::new(2);
    rig.pass(500, &[1, 2, 3], |_| {});
    rig.pass(1_000, &[1, 2, 3], |report| miss(report, cuts));
    let swaps = rig.outputs().into_iter().filter_map(|output| match output {
        Output::Swap { record, .. } => Some(GroupRecord::decode(&record).unwrap()),
        _ => None,
    });
    swaps.map(|record| ids(record.newest())).collect()
}

fn miss(report: &mut Report, cuts: &[(u32, u32)]) {
    let me = report.member.replica.get();
    let missed = cuts.iter().filter(|(of, _)| *of == me);
    report.unheard = missed.map(|(_, to)| ReplicaId(*to)).collect();
}

/// docs/faults.md: R4
#[test]
fn of_members_that_do_not_hear_each_other_one_goes() {
    assert_eq!(after_cuts(&[]), Vec::<Vec<u32>>::new());
    // Not the writer, whichever way the link is cut.
    for cuts in [&[(1, 2), (2, 1)][..], &[(1, 2)], &[(2, 1)]] {
        assert_eq!(after_cuts(cuts), [[1, 3]], "{cuts:?}");
    }
    assert_eq!(after_cuts(&[(2, 3), (3, 2)]), [[1, 2]], "the later one");
    // Unless it is the one that hears nobody.
    assert_eq!(after_cuts(&[(1, 2), (1, 3)]), [[2, 3]]);
    assert_eq!(after_cuts(&[(2, 1), (3, 1)]), [[2, 3]]);
}

/// docs/faults.md: R2
#[test]
fn of_two_that_die_at_once_the_one_that_misses_both_stays() {
    let mut rig = Rig::new(1);
    rig.pass(500, &[1, 2, 3], |_| {});
    rig.pass(1_000, &[3], |report| miss(report, &[(3, 1), (3, 2)]));
    assert_eq!(ids(rig.swap().newest()), [3]);
}

/// A controller whose group waits with 3 alone, which is silent too by now.
fn waiting_for_the_last() -> Rig {
    let mut rig = Rig::new(2);
    rig.pass(500, &[1, 2, 3], |_| {});
    rig.pass(1_000, &[3], |report| {
        report.is_whole = true;
        miss(report, &[(3, 1), (3, 2)]);
    });
    let waiting = rig.swap().newest().clone();
    assert!(waiting.waits() && ids(&waiting) == [3, 1, 2], "{waiting:?}");
    rig.stored();
    rig.view = waiting;
    rig.pass(1_000, &[], |_| {});
    let told = rig.outputs();
    assert!(told.iter().all(|it| matches!(it, Output::Tell { .. })), "{told:?}");
    rig
}

fn give_up(rig: &mut Rig, id: u32) -> Result<(), Error> {
    rig.controller.handle_command(GROUP, Command::GiveUp(ReplicaId(id)), rig.now())
}

/// A lone survivor that may still answer reads is waited for, until an operator gives it up.
/// docs/faults.md: R2
#[test]
fn a_survivor_that_is_waited_for_can_be_given_up() {
    let mut rig = waiting_for_the_last();
    let before = ConfigNumber(1);
    rig.pass(1_000, &[1, 2], |report| report.founded = before);
    assert_eq!(rig.swap_amid_others().newest(), &rig.view);
    rig.stored();
    let said = "writes wait for replica 3, which may still answer reads";
    assert_eq!(rig.events().last().unwrap(), said);
    for (id, reason) in [(1, "replica 1 has not failed"), (4, "members are 3, 1, 2")] {
        let error = give_up(&mut rig, id).unwrap_err();
        assert!(error.message().contains(reason), "{error}");
    }
    give_up(&mut rig, 3).unwrap();
    let record = rig.swap_amid_others();
    assert_eq!((record.newest(), &record.given_up[..]), (&rig.view, &[ReplicaId(3)][..]));
    rig.stored();
    rig.pass(100, &[1, 2], |report| report.founded = before);
    let next = rig.swap_amid_others();
    assert_eq!((ids(next.newest()), next.newest().waits()), ([1, 2].to_vec(), false));
    assert_eq!(next.given_up, [], "it is no member any more");
}

/// The word counts for one absence.
#[test]
fn one_that_was_given_up_and_is_back_is_waited_for_again() {
    let mut rig = waiting_for_the_last();
    give_up(&mut rig, 3).unwrap();
    assert_eq!(rig.swap().given_up, [ReplicaId(3)]);
    rig.stored();
    rig.pass(500, &[], |_| {});
    rig.outputs();
    rig.pass(120, &[3], |report| report.is_whole = true);
    assert_eq!(rig.swap().given_up, []);
    rig.stored();
    assert_eq!(rig.events().last().unwrap(), "replica 3 is back, which was given up");
}

#[test]
fn a_member_that_was_missed_in_passing_stays() {
    let mut rig = Rig::new(2);
    for _ in 0..5 {
        rig.pass(200, &[1, 2, 3], |report| miss(report, &[(1, 2), (2, 1)]));
        rig.pass(100, &[1, 2, 3], |_| {});
    }
    assert_eq!(rig.outputs(), []);
    assert!(!Verdict::Well.is_failure() && Verdict::CutOff.is_failure());
}

/// It would go again at once.
#[test]
fn a_filled_member_is_not_full_while_a_link_of_its_is_cut() {
    let mut rig = Rig::new(2);
    let cut = [(2, 3)];
    rig.pass(800, &[1, 2, 3], |report| miss(report, &cut));
    let view = next_view(&mut rig);
    assert_eq!(ids(&view), [1, 2]);
    complete(&mut rig, view, &[1, 2]);
    rig.pass(200, &[1, 2, 3], |report| miss(report, &cut));
    let view = next_view(&mut rig);
    assert_eq!((ids(&view), view.has_full(ReplicaId(3))), ([1, 2, 3].to_vec(), false));
    complete(&mut rig, view, &[1, 2]);
    let filled = |report: &mut Report| report.is_filled = report.member.replica == ReplicaId(3);
    rig.pass(3_000, &[1, 2, 3], |report| {
        filled(report);
        miss(report, &cut);
    });
    let outputs = rig.outputs();
    assert!(outputs.iter().all(|o| matches!(o, Output::Tell { .. })), "{outputs:?}");
    rig.pass(300, &[1, 2, 3], filled);
    assert!(next_view(&mut rig).has_full(ReplicaId(3)));
}

#[test]
fn a_group_that_is_made_later_is_looked_after_and_a_known_one_is_not_begun_again() {
    let mut rig = Rig::new(2);
    rig.pass(3_000, &[1, 2, 3], |_| {});
    let mut other = rig.view.clone();
    other.group = GroupId(2);
    let (now, record) = (rig.now(), GroupRecord::founding(other));
    rig.controller.handle_group((Version(9), record.clone()), now);
    assert_eq!(rig.controller.record(GroupId(2)), Some(&record));
    let mut known = rig.controller.record(GROUP).unwrap().clone();
    known.wanted = 1;
    rig.controller.handle_group((Version(9), known), now);
    assert_eq!(rig.controller.record(GROUP).unwrap().wanted, 3, "what was stored last counts");
    let status = rig.controller.status(GROUP, now).unwrap();
    assert!(status.replicas.iter().all(|it| it.verdict == Some(Verdict::Well)), "{status:?}");
}

#[test]
fn the_next_view_says_where_its_members_say_that_they_are_reached() {
    let mut rig = Rig::new(2);
    let told = |report: &mut Report| {
        let id = report.member.replica.get();
        report.member.node = u64::from(id) * 100;
        report.member.addresses.members = alloc::format!("127.0.0.{id}:7600");
    };
    rig.pass(3_000, &[1, 2, 3], told);
    assert_eq!(rig.outputs(), [], "an address alone is no reason for a view");
    rig.pass(440, &[2, 3], told);
    let next = rig.swap().intended.unwrap();
    let where_at = |at: usize| (next.members[at].node, &next.members[at].addresses.members[..]);
    assert_eq!((where_at(0), where_at(1)), ((200, "127.0.0.2:7600"), (300, "127.0.0.3:7600")));
}

#[test]
fn one_that_began_just_now_is_missed_for_a_while_before_anybody_goes_for_it() {
    let mut rig = Rig::new(2);
    let misses = |report: &mut Report| {
        if report.member.replica != ReplicaId(1) {
            report.unheard = [ReplicaId(1)].to_vec();
        }
    };
    // The others have missed it since before it was there.
    rig.pass(300, &[2, 3], misses);
    rig.pass(600, &[1, 2, 3], misses);
    assert_eq!(rig.outputs(), []);
    rig.pass(400, &[1, 2, 3], misses);
    let next = rig.swap().intended.unwrap();
    assert_eq!(ids(&next), [2, 3], "it stays unheard");
}

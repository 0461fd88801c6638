//! Replicas whose controllers are the test's own.

mod fail_over;
mod retries;

use super::*;
use crate::rig::{ControllerEnd, PATIENCE, Rig, group, text};
use gabion_base::GroupId;
use gabion_node::AckLevel;
use std::time::Instant;

const FIRST: ConfigNumber = ConfigNumber(1);
const SECOND: ConfigNumber = ConfigNumber(2);

fn epoch(number: u64, id: u64) -> Epoch {
    Epoch { number, id }
}

/// The view that comes after the one that a replica reported, with the same members.
fn next_view(report: &Report) -> GroupView {
    let mut view = report.view.clone().unwrap();
    view.config = ConfigNumber(view.config.get() + 1);
    view
}

#[test]
fn a_controller_hears_who_a_replica_is_and_again_and_again_that_it_lives() {
    let mut rig = Rig::new("control-reports", &[group(7, 2, AckLevel::Replicated)]);
    let mut controller = rig.controller(0);
    rig.until_reported(&mut controller, "its term has begun", |report| report.founded == FIRST);
    let report = controller.last.clone().unwrap();
    let (pool_id, incarnation) = {
        let replica = &rig.service(0).replica;
        (replica.parts.pool_id, replica.node.borrow().state().incarnation)
    };
    assert!(incarnation > 0, "it was started");
    assert_eq!(report.member, Member { incarnation, pool_id, ..Member::new(ReplicaId(1)) });
    assert_eq!((report.group, report.epoch), (GroupId(7), Epoch::default()));
    assert_eq!(report.view.as_ref().map(|view| view.config), Some(FIRST));
    assert!(matches!(report.probe, Probe::Well | Probe::Running(_)), "{:?}", report.probe);
    let count = controller.count + 5;
    let begun = Instant::now();
    while controller.count < count {
        assert!(begun.elapsed() < PATIENCE, "it says no more");
        rig.turn();
        controller.poll();
    }
}

#[test]
fn a_view_that_is_told_runs_and_is_reported_and_one_that_cannot_be_ends_nothing() {
    let mut rig = Rig::new("control-tells", &[group(7, 2, AckLevel::Replicated)]);
    let mut client = rig.client(0);
    let (mut first, mut second) = (rig.controller(0), rig.controller(0));
    rig.until_reported(&mut first, "its term has begun", |report| report.founded == FIRST);
    let view = next_view(first.last.as_ref().unwrap());
    first.tell(epoch(3, 9), &view);
    second.tell(epoch(2, 1), &view);
    for controller in [&mut first, &mut second] {
        let runs = |report: &Report| {
            let config = report.view.as_ref().map(|view| view.config);
            (config, report.founded, report.epoch) == (Some(SECOND), SECOND, epoch(3, 9))
        };
        rig.until_reported(controller, "the second view runs", runs);
    }
    let mut other = view;
    other.members.swap(0, 1);
    let mut foreign = other.clone();
    foreign.group = GroupId(8);
    for view in [other, foreign] {
        second.tell(epoch(4, 0), &view);
    }
    let count = second.count + 2;
    let heard = |report: &Report| report.epoch == epoch(4, 0) && report.founded == SECOND;
    rig.until_reported(&mut second, "nothing but the epoch counts", heard);
    rig.until("it goes on", |_| {
        second.poll();
        second.count > count
    });
    assert!(rig.service(0).control.complaint.contains("is not taken"));
    assert_eq!(rig.text(&mut client, &["SET", "key", "value"]), "+OK\r\n");
}

#[test]
fn nonsense_ends_the_connection_that_it_came_on_alone_and_the_oldest_of_five_goes() {
    let mut rig = Rig::new("control-links", &[group(7, 2, AckLevel::Replicated)]);
    let mut all: Vec<_> = (0..CONTROLS_MAX).map(|_| rig.controller(0)).collect();
    for controller in &mut all {
        rig.until_reported(controller, "it is heard", |_| true);
    }
    let report = all[0].last.clone().unwrap();
    let too_long = u32::try_from(MESSAGE_LEN_MAX + 1).unwrap().to_le_bytes();
    let nonsense = [too_long.to_vec(), ControlMessage::Report(report).encode()];
    for (place, bytes) in [1, 2].into_iter().zip(nonsense) {
        all[place].send(&bytes);
        rig.until("it is ended", |_| {
            all[place].poll();
            all[place].is_over
        });
    }
    // The two that are left and three more.
    all.extend((0..3).map(|_| rig.controller(0)));
    let counts: Vec<usize> = all.iter().map(|controller| controller.count + 1).collect();
    rig.until("those that are left are told on", |_| {
        all.iter_mut().for_each(ControllerEnd::poll);
        let mut left = all.iter().zip(&counts).skip(3);
        left.all(|(controller, count)| controller.count > *count) && all[0].is_over
    });
    let is_over: Vec<bool> = all.iter().map(|controller| controller.is_over).collect();
    assert_eq!(is_over, [true, true, true, false, false, false, false]);
    // Half of a message waits for the rest of it.
    let tell =
        ControlMessage::Tell { epoch: epoch(5, 5), view: next_view(all[3].last.as_ref().unwrap()) };
    let bytes = tell.encode();
    all[3].send(&bytes[..70]);
    rig.turn();
    all[3].send(&bytes[70..]);
    rig.until_reported(&mut all[3], "it is taken", |report| report.founded == SECOND);
}

#[test]
fn a_replica_that_is_opened_again_reports_that_it_lives_and_takes_what_it_was_told_meanwhile() {
    let mut rig = Rig::new("control-reopen", &[group(7, 2, AckLevel::Replicated)]);
    let mut client = rig.client(0);
    let mut controller = rig.controller(0);
    rig.until_reported(&mut controller, "its term has begun", |report| report.founded == FIRST);
    let view = next_view(controller.last.as_ref().unwrap());
    let incarnation = controller.last.as_ref().unwrap().member.incarnation;
    rig.reopen(0);
    // One that comes meanwhile is heard as well.
    let mut late = rig.controller(0);
    late.tell(epoch(1, 1), &view);
    controller.poll();
    let report = controller.last.as_ref().unwrap();
    assert_eq!((report.founded, report.member.incarnation), (ConfigNumber::ZERO, incarnation));
    assert_eq!(report.view.as_ref().map(|view| view.config), Some(FIRST));
    rig.until_reported(&mut late, "the view runs", |report| report.founded == SECOND);
    assert_eq!(late.last.as_ref().unwrap().member.incarnation, incarnation + 1);
    assert_eq!(rig.insist(&mut client, &["SET", "key", "value"]), "+OK\r\n");
}

/// Its disk may be an older one, which was put back.
///
/// docs/faults.md: R11
#[test]
fn the_only_full_member_that_starts_anew_serves_nobody_before_a_controllers_word() {
    let mut rig = Rig::new("control-word", &[group(7, 1, AckLevel::Replicated)]);
    let mut client = rig.client(0);
    let mut controller = rig.controller(0);
    rig.until_reported(&mut controller, "it is heard", |_| true);
    let view = next_view(controller.last.as_ref().unwrap());
    controller.tell(epoch(1, 1), &view);
    let has_second = |it: &Report| it.view.as_ref().is_some_and(|view| view.config == SECOND);
    rig.until_reported(&mut controller, "the view is kept", has_second);
    assert_eq!(rig.insist(&mut client, &["SET", "key", "value"]), "+OK\r\n");
    rig.restart();
    // Opened anew in its process it has heard as little.
    rig.reopen(0);
    rig.await_open(0);
    let is_member = |rig: &mut Rig| rig.service(0).is_member();
    rig.until("its view is in effect", is_member);
    let asked = [&["GET", "key"][..], &["SET", "key", "other"]].map(|words| {
        let mut client = rig.client(0);
        client.send(words);
        client
    });
    for mut client in asked {
        let said = text(&rig.receive(&mut client));
        assert!(said.starts_with("-TRYAGAIN"), "{said}");
    }
    let mut controller = rig.controller(0);
    rig.until_reported(&mut controller, "it has heard nobody", |it| it.epoch == Epoch::default());
    controller.tell(epoch(1, 1), &view);
    let mut client = rig.client(0);
    assert_eq!(rig.insist(&mut client, &["GET", "key"]), "$5\r\nvalue\r\n");
    rig.reopen(0);
    rig.await_open(0);
    assert_eq!(rig.insist(&mut client, &["SET", "key", "other"]), "+OK\r\n", "it has heard");
}

/// Nobody waits for ever: the controller judges by silence.
#[test]
fn a_replica_that_is_closed_for_too_long_says_nothing_any_more() {
    let mut rig = Rig::new("control-closed", &[group(7, 1, AckLevel::Replicated)]);
    let mut controller = rig.controller(0);
    rig.until_reported(&mut controller, "it is heard", |_| true);
    let now_ms = |rig: &mut Rig| rig.service(0).clock.running_us() / 1_000;
    let since_ms = now_ms(&mut rig) + 1;
    rig.until("as long has passed", |rig| now_ms(rig) >= since_ms + REOPENING_MAX_MS);
    rig.service(0).control.closed_ms = Some(since_ms - 1);
    controller.poll();
    let (count, until_ms) = (controller.count, now_ms(&mut rig) + 300);
    rig.until("reports were due", |rig| now_ms(rig) > until_ms);
    controller.poll();
    assert_eq!(controller.count, count);
    rig.service(0).open_control();
    rig.until("it reports again", |_| {
        controller.poll();
        controller.count > count
    });
}

#[test]
fn members_of_a_view_connect_with_each_other_and_turn_away_whom_it_leaves_out() {
    let mut rig = Rig::new("control-mesh", &[group(7, 3, AckLevel::Replicated)]);
    let mut client = rig.client(0);
    assert_eq!(rig.insist(&mut client, &["SET", "key", "of three"]), "+OK\r\n");
    let mut controllers = [0, 1].map(|place| rig.controller(place));
    for controller in &mut controllers {
        rig.until_reported(controller, "its term has begun", |report| report.founded == FIRST);
    }
    let mut view = next_view(controllers[0].last.as_ref().unwrap());
    view.members.pop();
    view.members_min = 2;
    for controller in &mut controllers {
        controller.tell(epoch(1, 1), &view);
        rig.until_reported(controller, "it runs", |report| report.founded == SECOND);
    }
    assert_eq!(rig.insist(&mut client, &["SET", "key", "of two"]), "+OK\r\n");
    // The third has not heard of it, and tries to connect.
    for place in [0, 1] {
        rig.until("it is turned away", |rig| {
            let third = &rig.service(place).peers[1];
            third.complaint.contains("is no member in the view that runs here")
        });
        let third = &rig.service(place).peers[1];
        assert!(third.id == ReplicaId(3) && third.link.is_none() && !third.is_member);
    }
    assert_eq!(rig.insist(&mut client, &["GET", "key"]), "$6\r\nof two\r\n");
}

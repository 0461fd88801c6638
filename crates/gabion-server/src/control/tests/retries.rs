//! Writes of doors that live while their head goes: each is made once, and gets its own reply.

use super::fail_over::Three;
use super::{FIRST, SECOND, next_view};
use crate::rig::{Rig, group, text};
use gabion_base::{ConfigNumber, Frontier, ReplicaId};
use gabion_node::{AckLevel, WriteFate};

/// How many writes a client has on their way.
const PIPELINE: usize = 8;

/// A client that counts up, some commands at a time, and what it has heard.
struct Counter {
    /// Its place among the clients.
    at: usize,
    key: String,
    sent: usize,
    heard: usize,
}

impl Counter {
    fn of(at: usize) -> Self {
        Self { at, key: format!("counter-{at}"), sent: 0, heard: 0 }
    }

    fn send(&mut self, three: &mut Three) {
        three.clients[self.at].send(&["INCR", &self.key]);
        self.sent += 1;
    }

    /// Takes what came; each reply is one more than the one before.
    fn hear(&mut self, three: &mut Three) {
        while let Some(reply) = three.clients[self.at].poll() {
            self.heard += 1;
            assert_eq!(text(&reply), format!(":{}\r\n", self.heard), "of {}", self.key);
        }
    }

    /// Hears so many in all, with new ones on their way all the time.
    fn count_to(&mut self, three: &mut Three, heard: usize) {
        three.until("it counts on", |three| {
            while self.sent < self.heard + PIPELINE {
                self.send(three);
            }
            self.hear(three);
            (self.heard >= heard).then_some(())
        });
    }
}

/// docs/faults.md: R1
#[test]
fn a_door_that_lives_counts_on_while_its_head_dies_and_no_write_is_made_twice() {
    let mut three = Three::start("retries-head");
    three.insist(1, &["SET", "counter-1", "0"]);
    let mut counter = Counter::of(1);
    counter.count_to(&mut three, 50);
    three.reported(&[1, 2], "the group runs", |report| report.founded == FIRST);
    let before = three.report(1).clone();

    // Some of what is on its way is in all logs and not answered, some is nowhere.
    let end = |rig: &mut Rig, place: usize| rig.service(place).replica.node.borrow().log_end();
    let logged = end(&mut three.others, 1);
    (0..PIPELINE).for_each(|_| counter.send(&mut three));
    while end(&mut three.others, 1) == logged {
        three.head.turn();
        three.others.turn();
    }
    three.is_stopped = true;
    (0..2 * PIPELINE).for_each(|_| counter.send(&mut three));
    (0..20).for_each(|_| three.others.turn());
    for place in [0, 1] {
        three.others.service(place).disconnect(ReplicaId(1), None, "a test cuts it");
    }
    let mut without = next_view(&before);
    without.members.remove(0);
    without.members_min = 1;
    three.tell(&[1, 2], &without);
    let sent = counter.sent;
    counter.count_to(&mut three, sent + 100);
    let sent = counter.sent;
    three.until("all are heard", |three| {
        counter.hear(three);
        (counter.heard == sent).then_some(())
    });
    three.reported(&[1, 2], "they go on", |report| report.founded == SECOND);
    assert_eq!(
        three.insist(2, &["GET", "counter-1"]),
        format!("${}\r\n{sent}\r\n", sent.to_string().len())
    );
}

/// docs/faults.md: R1
#[test]
fn a_write_whose_reply_was_lost_with_the_link_gets_it_over_the_next_one() {
    let mut three = Three::start("retries-link");
    three.insist(1, &["SET", "counter-2", "0"]);
    let mut counter = Counter::of(2);
    for round in 1..=6 {
        counter.count_to(&mut three, round * 50);
        // In the head's log, and not answered.
        let logged = three.head.service(0).replica.node.borrow().log_end();
        counter.send(&mut three);
        three.until("the head has logged one", |three| {
            let head = three.head.service(0);
            let is_logged = head.replica.node.borrow().log_end() != logged;
            (is_logged && !head.peer_replies.is_empty()).then_some(())
        });
        three.others.service(1).disconnect(ReplicaId(1), None, "a test cuts it");
    }
    let sent = counter.sent;
    three.until("all are heard", |three| {
        counter.hear(three);
        (counter.heard == sent).then_some(())
    });
}

/// docs/faults.md: R1
#[test]
fn doors_count_on_while_the_duty_to_write_moves_from_one_member_to_another() {
    let mut three = Three::start("retries-moves");
    let mut counters = [0, 1, 2].map(Counter::of);
    for counter in &counters {
        three.insist(counter.at, &["SET", &counter.key, "0"]);
    }
    three.reported(&[0, 1, 2], "the group runs", |report| report.founded == FIRST);
    let mut view = next_view(three.report(0));
    for _ in 0..4 {
        view.members.rotate_left(1);
        for counter in &mut counters {
            let heard = counter.heard + 30;
            counter.count_to(&mut three, heard);
        }
        three.tell(&[0, 1, 2], &view);
        let runs = view.config;
        three.until("the next view runs", |three| {
            for counter in &mut counters {
                counter.send(three);
                counter.hear(three);
            }
            let is_run = |at: usize| {
                three.controllers[at].poll();
                three.controllers[at].last.as_ref().is_some_and(|report| report.founded == runs)
            };
            (0..3).all(is_run).then_some(())
        });
        view.config = ConfigNumber(runs.get() + 1);
    }
    for counter in &mut counters {
        let sent = counter.sent;
        three.until("all are heard", |three| {
            counter.hear(three);
            (counter.heard == sent).then_some(())
        });
    }
}

/// docs/faults.md: R1
#[test]
fn a_doors_writes_are_known_after_a_start_with_a_log_without_its_beginning() {
    let mut rig = Rig::new("retries-trimmed", &[group(7, 2, AckLevel::Replicated)]);
    let mut client = rig.client(1);
    assert_eq!(rig.insist(&mut client, &["INCR", "counter"]), ":1\r\n");
    let door = rig.service(1);
    let (session, numbers) = (door.session, 0..door.next_item);
    let head = rig.service(0).replica.node.clone();
    let made = WriteFate::Made(Some(b":1\r\n".to_vec()));
    let is_made = |number: &u64| head.borrow_mut().fate_of_write(session, *number).unwrap() == made;
    let number = numbers.into_iter().find(is_made).unwrap();
    let logged = head.borrow().log_end();
    drop(head);
    rig.until("the log begins behind it", |rig| {
        rig.fill(&mut client);
        let begins = |place: usize| {
            Frontier::of(rig.server.services[place].replica.node.borrow().state().trimmed.position)
        };
        [0, 1].map(begins).iter().all(|at| at.covers(&logged))
    });
    for place in [0, 1] {
        rig.reopen(place);
        rig.await_open(place);
        let node = rig.service(place).replica.node.clone();
        let fate = |number| node.borrow_mut().fate_of_write(session, number).unwrap();
        assert_eq!(fate(number), made);
        assert_eq!(fate(u64::MAX), WriteFate::NotMade);
    }
    assert_eq!(rig.insist(&mut client, &["INCR", "counter"]), ":2\r\n");
}

//! A head whose process stands still is left out, and comes back as a member that is filled.

use super::{FIRST, SECOND, epoch, next_view};
use crate::rig::{Client, ControllerEnd, PATIENCE, Rig, group, text};
use gabion_base::{ConfigNumber, ReplicaId};
use gabion_control::Report;
use gabion_node::AckLevel;
use gabion_replication::GroupView;
use std::time::Instant;

const THIRD: ConfigNumber = ConfigNumber(3);

/// Three replicas: the first one's process, and that of the others. A client and a controller of
/// each, in the same order.
pub(super) struct Three {
    pub(super) head: Rig,
    pub(super) others: Rig,
    pub(super) clients: [Client; 3],
    pub(super) controllers: [ControllerEnd; 3],
    /// The head's process stands still.
    pub(super) is_stopped: bool,
}

impl Three {
    pub(super) fn start(name: &str) -> Self {
        let [head, others] = Rig::apart(name, group(7, 3, AckLevel::Replicated), 0);
        let clients = [head.client(0), others.client(0), others.client(1)];
        let controllers = [head.controller(0), others.controller(0), others.controller(1)];
        Self { head, others, clients, controllers, is_stopped: false }
    }

    pub(super) fn until<T>(
        &mut self,
        what: &str,
        mut found: impl FnMut(&mut Self) -> Option<T>,
    ) -> T {
        let begun = Instant::now();
        loop {
            if let Some(found) = found(self) {
                return found;
            }
            assert!(begun.elapsed() < PATIENCE, "not after {PATIENCE:?}: {what}");
            if !self.is_stopped {
                self.head.turn();
            }
            self.others.turn();
        }
    }

    /// Waits until these replicas report so.
    pub(super) fn reported(&mut self, at: &[usize], what: &str, is_so: impl Fn(&Report) -> bool) {
        for &at in at {
            self.until(what, |three| {
                let controller = &mut three.controllers[at];
                controller.poll();
                controller.last.as_ref().filter(|report| is_so(report)).map(|_| ())
            });
        }
    }

    pub(super) fn report(&self, at: usize) -> &Report {
        self.controllers[at].last.as_ref().unwrap()
    }

    pub(super) fn tell(&mut self, at: &[usize], view: &GroupView) {
        at.iter().for_each(|at| self.controllers[*at].tell(epoch(1, 1), view));
    }

    fn receive(&mut self, at: usize) -> String {
        text(&self.until("a reply", |three| three.clients[at].poll()))
    }

    fn text(&mut self, at: usize, words: &[&str]) -> String {
        self.clients[at].send(words);
        self.receive(at)
    }

    /// Repeats a command until it gives no error.
    pub(super) fn insist(&mut self, at: usize, words: &[&str]) -> String {
        let begun = Instant::now();
        loop {
            let text = self.text(at, words);
            if !text.starts_with('-') {
                return text;
            }
            assert!(begun.elapsed() < PATIENCE, "{words:?}: {text}");
        }
    }

    /// The head logs a write that comes to nobody, and its process stops.
    fn log_a_phantom(&mut self, words: &[&str]) {
        let end = self.head.service(0).replica.node.borrow().log_end();
        self.clients[0].send(words);
        self.head.until("the write is in the log", |rig| {
            let replica = &rig.service(0).replica;
            !replica.turns.open.is_empty() && replica.node.borrow().log_end() != end
        });
        self.is_stopped = true;
        for place in [0, 1] {
            self.others.service(place).disconnect(ReplicaId(1), None, "a test cuts it");
        }
    }

    /// Waits until all say that they hold the same; what that is.
    fn digest(&mut self) -> String {
        self.until("all hold the same", |three| {
            let digests = [0, 1, 2].map(|at| three.text(at, &["GABION", "DIGEST"]));
            let is_same = digests.iter().all(|digest| *digest == digests[0]);
            is_same.then(|| digests[0].clone())
        })
    }
}

/// A replica that is left out has members run the commands of its clients.
fn door_is_a_guests(three: &mut Three) {
    assert_eq!(three.insist(0, &["GET", "key"]), "$7\r\nphantom\r\n", "as it was asked again");
    for (words, reply) in [
        (&["GET", "other"][..], "$3\r\nnew\r\n"),
        (&["SET", "key", "guest"], "+OK\r\n"),
        (&["GET", "key"], "$5\r\nguest\r\n"),
        (&["DBSIZE"], ":2\r\n"),
        (&["PING"], "+PONG\r\n"),
    ] {
        assert_eq!(three.text(0, words), reply, "{words:?}");
    }
    assert_eq!(three.insist(1, &["GET", "key"]), "$5\r\nguest\r\n");
    let info = three.text(0, &["INFO", "replication"]);
    assert!(info.contains("role:slave\r\n"), "{info}");
    assert!(info.contains("master_link_status:down\r\n"), "{info}");
    spare_says(three, "\"ready\":true", "\"reason\":null");
    // Its own connections break, and it may make no other ones.
    let cut = |three: &mut Three, retry_at_ms: u64| {
        let service = three.head.service(0);
        for at in [2, 3].map(ReplicaId) {
            service.disconnect(at, None, "a test cuts it");
            let place = service.peer_place(at).unwrap();
            service.peers[place].retry_at_ms = retry_at_ms;
        }
    };
    cut(three, u64::MAX);
    let why = "\"reason\":\"the head of the chain, replica 2, is not connected: a test cuts it\"";
    spare_says(three, "\"ready\":false", why);
    cut(three, 0);
    spare_says(three, "\"ready\":true", "\"reason\":null");
}

/// Waits until the first replica, a spare, says so of itself.
fn spare_says(three: &mut Three, ready: &str, reason: &str) {
    let begun = Instant::now();
    loop {
        let status = three.text(0, &["GABION", "STATUS"]);
        for field in ["\"role\":\"spare\"", "\"membership\":\"none\""] {
            assert!(status.contains(field), "{field}: {status}");
        }
        if status.contains(ready) && status.contains(reason) {
            return;
        }
        assert!(begun.elapsed() < PATIENCE, "{ready}, {reason}: {status}");
    }
}

/// docs/faults.md: R1
#[test]
fn a_head_that_stood_still_is_left_out_and_comes_back_without_what_nobody_else_had() {
    let mut three = Three::start("fail-over");
    assert_eq!(three.insist(0, &["SET", "key", "acknowledged"]), "+OK\r\n");
    assert_eq!(three.insist(1, &["GET", "key"]), "$12\r\nacknowledged\r\n");
    three.reported(&[0, 1, 2], "the group runs", |report| report.founded == FIRST);
    let before = three.report(0).clone();
    three.log_a_phantom(&["SET", "key", "phantom"]);

    // The others go on without it.
    let mut without = next_view(&before);
    without.members.remove(0);
    without.members_min = 1;
    three.tell(&[1, 2], &without);
    three.reported(&[1, 2], "they go on", |report| report.founded == SECOND);
    assert_eq!(three.insist(2, &["SET", "other", "new"]), "+OK\r\n");
    let found = three.insist(1, &["MGET", "key", "other"]);
    assert_eq!(found, "*2\r\n$12\r\nacknowledged\r\n$3\r\nnew\r\n");

    // It runs again, and is told.
    three.is_stopped = false;
    three.tell(&[0], &without);
    let knows = |report: &Report| report.view.as_ref().is_some_and(|view| view.config == SECOND);
    three.reported(&[0], "it knows", knows);
    // Nobody else had the write, and it is made once, where writes are taken now.
    assert_eq!(three.receive(0), "+OK\r\n");
    door_is_a_guests(&mut three);

    // It comes back behind the others.
    let mut back = without.clone();
    back.config = THIRD;
    let mut member = before.view.unwrap().members[0].clone();
    member.is_full = false;
    back.members.push(member);
    three.tell(&[0, 1, 2], &back);
    three.reported(&[0, 1, 2], "it is back", |report| report.founded == THIRD);
    let starts = three.report(0).member.incarnation - before.member.incarnation;
    assert_eq!(starts, 1, "it was opened again in its process");
    assert_eq!(three.insist(0, &["GET", "key"]), "$5\r\nguest\r\n");
    assert_eq!(three.insist(0, &["SET", "key", "newer"]), "+OK\r\n");
    assert_eq!(three.insist(1, &["GET", "key"]), "$5\r\nnewer\r\n");
    let digest = three.digest();
    assert!(digest.contains("\"records\":2"), "{digest}");
    let status = three.text(0, &["GABION", "STATUS"]);
    assert!(status.contains("\"role\":\"filling\""), "{status}");
}

/// docs/faults.md: R3
#[test]
fn a_write_that_waits_for_a_member_that_is_left_out_is_made_where_the_writer_stays() {
    let [mut tail, mut others] = Rig::apart("turns-stay", group(7, 3, AckLevel::Replicated), 2);
    let mut client = others.client(0);
    let begun = Instant::now();
    client.send(&["SET", "key", "old"]);
    let mut replies = 0;
    while replies < 1 {
        assert!(begun.elapsed() < PATIENCE, "the group does not start");
        tail.turn();
        others.turn();
        match client.poll().as_ref().map(text).as_deref() {
            Some("+OK\r\n") => replies += 1,
            Some(_) => client.send(&["SET", "key", "old"]),
            None => {}
        }
    }
    // The tail's process stands still.
    client.send(&["SET", "key", "new"]);
    client.send(&["SET", "key", "other", "NX"]);
    others.until("both are in turns that wait", |rig| {
        let turns = &rig.service(0).replica.turns;
        !turns.open.is_empty() && !turns.is_used
    });
    let mut controllers = [others.controller(0), others.controller(1)];
    others.until_reported(&mut controllers[0], "it is heard", |report| report.founded == FIRST);
    let mut view = next_view(controllers[0].last.as_ref().unwrap());
    view.members.pop();
    view.members_min = 1;
    controllers.iter_mut().for_each(|controller| controller.tell(epoch(1, 1), &view));
    for expected in ["+OK\r\n", "$-1\r\n"] {
        assert_eq!(text(&others.receive(&mut client)), expected);
    }
    assert_eq!(others.insist(&mut client, &["GET", "key"]), "$3\r\nnew\r\n");
}

/// docs/faults.md: R3
#[test]
fn commands_wait_while_writer_and_reader_move() {
    let mut three = Three::start("moved");
    assert_eq!(three.insist(0, &["MSET", "key", "old", "other", "kept"]), "+OK\r\n");
    three.reported(&[0, 1, 2], "the group runs", |report| report.founded == FIRST);
    let mut moved = next_view(three.report(0));
    moved.members.rotate_left(1);

    // On its way to the reader of before when the door itself becomes the reader.
    three.clients[0].send(&["GET", "other"]);
    three.head.until("the read is on its way", |rig| !rig.service(0).forwarded.is_empty());
    three.controllers[0].tell(epoch(1, 1), &moved);
    three.head.until("the door knows", |rig| {
        let node = rig.service(0).replica.node.borrow();
        node.view().group().config == SECOND && node.begins_term_for_ms().is_none()
    });
    assert!(three.clients[0].poll().is_none(), "nobody has told it that nobody else answers");

    // Writes at the door of another and at the new writer, before its term has begun.
    three.tell(&[1, 2], &moved);
    let is_told = |three: &mut Three| {
        let node = three.others.service(0).replica.node.borrow();
        node.begins_term_for_ms().map(|_| ())
    };
    three.until("the writer is told", is_told);
    three.clients[1].send(&["SET", "key", "new"]);
    three.clients[1].send(&["INCR", "count"]);
    three.clients[2].send(&["INCR", "count"]);
    assert_eq!(three.receive(0), "$4\r\nkept\r\n");
    assert_eq!(three.receive(1), "+OK\r\n");
    let mut counts = [three.receive(1), three.receive(2)];
    counts.sort();
    assert_eq!(counts, [":1\r\n", ":2\r\n"]);
    assert_eq!(three.text(0, &["GET", "key"]), "$3\r\nnew\r\n");
}

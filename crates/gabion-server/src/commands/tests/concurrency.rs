//! Reads that wait, commands that meet meanwhile: nothing is lost, nothing overtakes.

use super::support::{FixedHost, Node, request};
use crate::commands::{Call, Step, Transaction, Work};
use core::cell::RefCell;
use core::future::Future;
use core::task::{Context, Poll, Waker};
use gabion_media::task::Executor;
use gabion_resp::{Protocol, Reply};
use proptest::prelude::*;
use std::rc::Rc;

/// Commands of many clients in flight at once on a slow store.
struct Race {
    node: Node,
    executor: Executor,
    replies: Rc<RefCell<Vec<(usize, String)>>>,
    started: usize,
}

impl Race {
    fn new() -> Self {
        let node = Node::new();
        node.store.is_slow.set(true);
        Self { node, executor: Executor::new(), replies: Rc::default(), started: 0 }
    }

    /// Starts a command (several, separated by `;`: a transaction) and lets it run as far as it can.
    fn start(&mut self, line: &str) {
        let node = self.node.clone();
        let mut client = node.client();
        let mut lines: Vec<&str> = line.split(';').collect();
        if lines.len() > 1 {
            lines.insert(0, "MULTI");
            lines.push("EXEC");
        }
        let mut work: Option<Work> = None;
        for line in lines {
            let step = node.commands.handle(&mut client.session, request(line), &FixedHost);
            if let Step::Run(run) = step {
                work = Some(run);
            }
        }
        let (work, number) = (work.unwrap(), self.started);
        let replies = self.replies.clone();
        self.executor.spawn(async move {
            let reply: Reply = node.commands.execute(&*node.store, &work).await;
            let mut out = Vec::new();
            reply.encode(Protocol::Resp2, &mut out);
            replies.borrow_mut().push((number, String::from_utf8_lossy(&out).into_owned()));
        });
        self.started += 1;
        self.settle();
    }

    fn settle(&mut self) {
        while self.executor.run_ready() > 0 {}
    }

    /// Lets one waiting read go on.
    fn release(&mut self, choice: usize) {
        self.node.store.release(choice);
        self.settle();
    }

    /// Lets everything end.
    fn finish(&mut self) {
        while self.node.store.waiting_count() > 0 {
            self.release(0);
        }
        assert!(self.executor.is_empty(), "a command waits for ever");
        assert!(self.node.commands.locks.is_idle(), "a lock was left behind");
    }

    fn done(&self) -> Vec<usize> {
        self.replies.borrow().iter().map(|(number, _)| *number).collect()
    }

    /// Replies in the order in which commands were started.
    fn replies(&self) -> Vec<String> {
        let mut replies = self.replies.borrow().clone();
        replies.sort();
        replies.into_iter().map(|(_, reply)| reply).collect()
    }

    fn value(&self, key: &str) -> Option<String> {
        let keys = self.node.store.keys.borrow();
        keys.get(key.as_bytes()).map(|value| String::from_utf8_lossy(&value.value).into_owned())
    }
}

#[test]
fn increments_that_wait_for_the_same_key_count_each() {
    let mut race = Race::new();
    (0..10).for_each(|_| race.start("INCR n"));
    // Only the first has got to its read.
    assert_eq!(race.node.store.waiting_count(), 1);
    race.finish();
    assert_eq!(race.value("n").as_deref(), Some("10"));
    let expected: Vec<String> = (1..=10).map(|n| format!(":{n}\r\n")).collect();
    assert_eq!(race.replies(), expected);
}

#[test]
fn commands_on_other_keys_do_not_wait() {
    let mut race = Race::new();
    race.start("INCR a");
    race.start("INCR b");
    race.start("SET c 1");
    assert_eq!(race.node.store.waiting_count(), 2);
    assert_eq!(race.done(), [2]);
    race.release(1);
    assert_eq!(race.done(), [2, 1]);
    race.finish();
}

#[test]
fn a_blind_write_queues_behind_the_holder_of_its_key() {
    let mut race = Race::new();
    race.start("APPEND k x");
    race.start("SET k 5");
    race.start("INCR k");
    race.start("MSET other 1 k 9");
    assert!(race.done().is_empty());
    race.finish();
    assert_eq!(race.done(), [0, 1, 2, 3]);
    assert_eq!(race.replies(), [":1\r\n", "+OK\r\n", ":6\r\n", "+OK\r\n"]);
    assert_eq!(race.value("k").as_deref(), Some("9"));
}

#[test]
fn commands_over_several_keys_wait_for_all_of_them_and_never_for_each_other() {
    let mut race = Race::new();
    race.start("GET a;INCR a;INCR b");
    race.start("GET b;INCR b;INCR a");
    race.start("MSETNX b 1 c 1");
    race.start("INCR c");
    race.finish();
    assert_eq!(race.done(), [0, 1, 2, 3]);
    assert_eq!(race.value("a").as_deref(), Some("2"));
    assert_eq!(race.value("b").as_deref(), Some("2"));
    assert_eq!(race.value("c").as_deref(), Some("1"));
}

#[test]
fn flushing_waits_for_all_before_it_and_all_after_wait_for_it() {
    let mut race = Race::new();
    race.start("INCR a");
    race.start("INCR b");
    race.start("FLUSHALL");
    race.start("SET c 1");
    race.start("INCR a");
    assert!(race.done().is_empty());
    race.release(0);
    assert_eq!(race.done(), [0]);
    race.release(0);
    assert_eq!(race.done(), [0, 1, 2, 3]);
    race.finish();
    assert_eq!(race.replies(), [":1\r\n", ":1\r\n", "+OK\r\n", "+OK\r\n", ":1\r\n"]);
    assert_eq!((race.value("a"), race.value("b")), (Some("1".to_string()), None));
}

#[test]
fn a_cancelled_command_leaves_its_locks() {
    let mut race = Race::new();
    let node = race.node.clone();
    {
        let work = Work::Call(Call::new(request("INCR k")).unwrap());
        let mut cancelled = Box::pin(node.commands.execute(&*node.store, &work));
        let mut cx = Context::from_waker(Waker::noop());
        assert!(cancelled.as_mut().poll(&mut cx).is_pending());
        race.start("INCR k");
        assert_eq!(race.node.store.waiting_count(), 1);
    }
    race.settle();
    race.finish();
    assert_eq!(race.value("k").as_deref(), Some("1"));
}

#[test]
fn a_command_that_is_cancelled_while_it_queues_lets_nobody_past_the_holder() {
    let mut race = Race::new();
    let node = race.node.clone();
    race.start("INCR k");
    race.start("INCR k");
    {
        let work = Work::Call(Call::new(request("INCR k")).unwrap());
        let mut cancelled = Box::pin(node.commands.execute(&*node.store, &work));
        let mut cx = Context::from_waker(Waker::noop());
        assert!(cancelled.as_mut().poll(&mut cx).is_pending());
        race.start("INCR k");
    }
    race.settle();
    assert_eq!(race.node.store.waiting_count(), 1, "only the holder reads");
    race.finish();
    assert_eq!(race.replies(), [":1\r\n", ":2\r\n", ":3\r\n"]);
}

#[test]
fn a_transaction_that_waits_shows_none_of_its_writes() {
    let mut race = Race::new();
    race.start("SET a 1;INCR n;SET b 1");
    assert_eq!((race.value("a"), race.value("b")), (None, None));
    race.start("SET b 2");
    race.finish();
    assert_eq!(race.value("b").as_deref(), Some("2"));
    assert_eq!(race.node.store.records.borrow().len(), 2);
}

#[test]
fn others_come_between_the_commands_of_a_long_transaction_and_see_none_or_all_of_it() {
    let node = Node::new();
    node.store.hold("k".into(), vec![b'v'; 1 << 20].into());
    let mut client = node.client();
    let transaction = ["MULTI", "APPEND k x", "APPEND k x", "APPEND k x", "STRLEN k", "EXEC"];
    let steps = transaction
        .map(|line| node.commands.handle(&mut client.session, request(line), &FixedHost));
    let [.., Step::Run(exec)] = steps else { panic!("EXEC is to be run") };
    let set = Work::Call(Call::new(request("SET k 1")).unwrap());
    let mut exec = core::pin::pin!(node.commands.execute(&*node.store, &exec));
    let mut set = core::pin::pin!(node.commands.execute(&*node.store, &set));
    let mut cx = Context::from_waker(Waker::noop());
    let mut other = node.client();
    for turn in 1..=3 {
        assert!(exec.as_mut().poll(&mut cx).is_pending(), "turn {turn}");
        assert_eq!(other.ask("INCR n"), format!(":{turn}\r\n"));
        assert_eq!(other.ask("STRLEN k"), ":1048576\r\n");
        assert!(set.as_mut().poll(&mut cx).is_pending(), "its key is locked");
    }
    let Poll::Ready(reply) = exec.as_mut().poll(&mut cx) else { panic!("it has not ended") };
    let lens = [1, 2, 3, 3].map(|more| Reply::Integer((1 << 20) + more));
    assert_eq!(reply, Reply::Array(lens.to_vec()));
    assert_eq!(node.store.records.borrow().len(), 4, "three of the other's, one of its own");
    assert_eq!(other.ask("STRLEN k"), ":1048579\r\n");
    assert!(set.as_mut().poll(&mut cx).is_ready());
    assert!(node.commands.locks.is_idle());
}

#[test]
fn a_transaction_of_many_short_commands_lets_others_come_between_too() {
    let node = Node::new();
    let calls = vec![Call::new(request("GET k")).unwrap(); 40_000];
    let work = Work::Transaction(Transaction::of(calls));
    let mut exec = core::pin::pin!(node.commands.execute(&*node.store, &work));
    let mut cx = Context::from_waker(Waker::noop());
    let polls = (0..).take_while(|_| exec.as_mut().poll(&mut cx).is_pending()).count();
    assert_eq!(polls, 2);
}

#[test]
fn a_transaction_that_writes_too_much_one_over_the_other_is_refused_and_writes_nothing() {
    let node = Node::new();
    node.store.hold("k".into(), vec![b'v'; 8 << 20].into());
    let mut client = node.client();
    let mut exec = |count| {
        client.ask("MULTI");
        (0..count).for_each(|_| drop(client.ask("EXPIRE k 100")));
        client.ask("EXEC")
    };
    assert_eq!(
        exec(512),
        "-ERR what EXEC writes, one over the other, is over the limit of 4294967296 bytes: \
         no key was changed\r\n"
    );
    assert!(node.store.records.borrow().is_empty());
    assert!(exec(511).starts_with("*511\r\n:1\r\n"));
}

#[test]
fn commands_that_find_everything_end_at_once_and_touch_no_lock() {
    let node = Node::new();
    let mut cx = Context::from_waker(Waker::noop());
    for line in ["SET a 1", "GET a", "INCR a", "MSET a 1 b 2", "DEL a b", "APPEND a x", "FLUSHALL"]
    {
        let work = Work::Call(Call::new(request(line)).unwrap());
        let execution = core::pin::pin!(node.commands.execute(&*node.store, &work));
        assert!(execution.poll(&mut cx).is_ready(), "{line}");
        assert!(node.commands.locks.is_idle());
    }
}

fn command() -> impl Strategy<Value = String> {
    let key = || prop::sample::select(&["a", "b", "c"][..]);
    prop_oneof![
        4 => key().prop_map(|k| format!("INCR {k}")),
        2 => (key(), 0..9_u8).prop_map(|(k, v)| format!("SET {k} {v}")),
        1 => (key(), 0..9_u8).prop_map(|(k, v)| format!("SETNX {k} {v}")),
        1 => key().prop_map(|k| format!("GETDEL {k}")),
        1 => (key(), 0..3_u8).prop_map(|(k, v)| format!("SET {k} 9 IFEQ {v}")),
        1 => (key(), 0..3_u8).prop_map(|(k, v)| format!("DELIFEQ {k} {v}")),
        1 => (key(), key()).prop_map(|(k, l)| format!("DEL {k} {l}")),
        1 => (key(), key()).prop_map(|(k, l)| format!("MSET {k} 1 {l} 2")),
        1 => (key(), key()).prop_map(|(k, l)| format!("MSETNX {k} 1 {l} 2")),
        2 => (key(), key()).prop_map(|(k, l)| format!("INCR {k};APPEND {l} 1;DEL {k};INCR {l}")),
        1 => key().prop_map(|k| format!("INCR {k};DBSIZE")),
        1 => Just("FLUSHALL".to_string()),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// However reads are delayed, the outcome is that of running the commands one after the
    /// other, in the order in which they came (they meet on keys first come, first served; those
    /// that share no key commute).
    #[test]
    fn delays_change_nothing_that_can_be_seen(
        commands in prop::collection::vec(command(), 1..14),
        delays in prop::collection::vec((0..3_usize, 0..8_usize), 14),
    ) {
        let mut race = Race::new();
        for (line, (count, choice)) in commands.iter().zip(delays) {
            race.start(line);
            (0..count).for_each(|_| race.release(choice));
        }
        race.finish();

        let mut serial = Race::new();
        serial.node.store.is_slow.set(false);
        commands.iter().for_each(|line| serial.start(line));
        prop_assert_eq!(race.replies(), serial.replies());
        prop_assert_eq!(&*race.node.store.keys.borrow(), &*serial.node.store.keys.borrow());
    }
}

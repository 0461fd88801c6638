//! Promises about reads: who asks for them, who gives them, and for how long they are held.

use super::cluster::HEARTBEAT_MS;
use super::protocol::{actions, config, frame, hello};
use crate::{Action, Chain, Config, Lease, LocalState, Message, Progress, Protocol, Watermarks};
use alloc::vec;
use alloc::vec::Vec;
use gabion_base::ReplicaId;

const LEASE_MS: u32 = 300;

/// Replica `me` of three, connected with both others, which have said Hello. The last of them is
/// not full where `full` is 2.
fn member(me: u32, full: usize, lease_ms: Option<u64>) -> Chain {
    let mut config: Config = config(me);
    config.view.members.iter_mut().skip(full).for_each(|member| member.is_full = false);
    config.view.members_min = 2;
    config.lease_ms = LEASE_MS;
    let mut chain = Chain::new(config, LocalState::default(), 0).unwrap();
    lease_ms.into_iter().for_each(|now_ms| chain.pass_lease_time(now_ms));
    for peer in (1..4).filter(|peer| *peer != me) {
        chain.handle_connected(ReplicaId(peer), u64::from(peer), 0);
        say(&mut chain, peer, me, Message::Hello(hello()));
    }
    actions(&mut chain);
    chain
}

/// Until when replicas 1, 2 and 3 were promised something.
fn promised(chain: &Chain) -> [u64; 3] {
    [1, 2, 3].map(|to| chain.promised_until_ms(ReplicaId(to)))
}

fn say(chain: &mut Chain, from: u32, to: u32, message: Message) {
    let frame = frame(from, to, 0, message);
    chain.handle_message(ReplicaId(from), u64::from(from), frame, 0).unwrap();
}

fn lease(asked_ms: u64, lasts_ms: u32) -> Lease {
    Lease { asked_ms, lasts_ms }
}

fn given(asked_ms: u64, lasts_ms: u32) -> Message {
    Message::Ack(Progress::default(), lease(asked_ms, lasts_ms))
}

fn asked(asked_ms: u64, lasts_ms: u32) -> Message {
    Message::Heartbeat(Watermarks::default(), lease(asked_ms, lasts_ms))
}

/// With whom, when it was asked for, and for how long.
type Given = (u32, u64, u32);

/// The promises that are asked for, and given.
fn leases(chain: &mut Chain) -> (Vec<(u32, u64)>, Vec<Given>) {
    let (mut asks, mut gives) = (vec![], vec![]);
    for action in actions(chain) {
        let Action::Send { frame } = action else { continue };
        let to = frame.to.get();
        match frame.message {
            Message::Heartbeat(_, lease) if lease.lasts_ms > 0 => asks.push((to, lease.asked_ms)),
            Message::Ack(progress, lease) if lease.lasts_ms > 0 => {
                assert_eq!(progress, Progress::default(), "it says nothing else");
                gives.push((to, lease.asked_ms, lease.lasts_ms));
            }
            _ => {}
        }
    }
    (asks, gives)
}

/// The time of a tick for the rest does not count: the clock of promises is one of its own.
fn tick(chain: &mut Chain, lease_ms: u64) -> Vec<(u32, u64)> {
    chain.pass_lease_time(lease_ms);
    chain.handle_tick(0);
    leases(chain).0
}

/// docs/faults.md: R5
#[test]
fn reader_and_writer_ask_every_other_full_member_and_count_from_their_asking() {
    for (me, others) in [(1, [2, 3]), (3, [1, 2])] {
        let mut chain = member(me, 3, Some(1_000));
        assert!(!chain.holds_lease());
        let both = |at| others.map(|id| (id, at)).to_vec();
        assert_eq!(tick(&mut chain, 1_000), both(1_000));
        assert_eq!(tick(&mut chain, 1_000 + HEARTBEAT_MS - 1), []);
        assert_eq!(tick(&mut chain, 1_000 + HEARTBEAT_MS), both(1_100));
        chain.pass_lease_time(1_200);
        say(&mut chain, others[0], me, given(1_000, LEASE_MS));
        assert!(!chain.holds_lease(), "one of them has not promised");
        say(&mut chain, others[1], me, given(1_100, LEASE_MS));
        // However late the answer came.
        chain.pass_lease_time(1_299);
        assert!(chain.holds_lease());
        chain.pass_lease_time(1_300);
        assert!(!chain.holds_lease());
        say(&mut chain, others[0], me, given(1_100, LEASE_MS));
        assert!(chain.holds_lease());
        chain.pass_lease_time(1_000);
        chain.pass_lease_time(1_400);
        assert!(!chain.holds_lease());
        // No promise is longer than what was asked for, and none is of a time to come.
        say(&mut chain, others[0], me, given(1_500, LEASE_MS));
        say(&mut chain, others[1], me, given(1_400, u32::MAX));
        assert!(!chain.holds_lease());
        chain.pass_lease_time(1_700);
        assert!(!chain.holds_lease());
    }
}

#[test]
fn a_member_in_the_middle_asks_for_nothing_and_one_that_is_filled_is_not_asked() {
    let mut chain = member(2, 3, Some(1_000));
    assert_eq!(tick(&mut chain, 1_000), []);
    assert!(!chain.holds_lease(), "it answers from nothing");
    let mut chain = member(2, 2, Some(1_000));
    assert_eq!(tick(&mut chain, 1_000), [(1, 1_000)]);
    say(&mut chain, 1, 2, given(1_000, LEASE_MS));
    assert!(chain.holds_lease());
    // One that is filled neither holds nor gives any.
    let mut chain = member(3, 2, Some(1_000));
    assert_eq!(tick(&mut chain, 1_000), []);
    say(&mut chain, 1, 3, asked(5, LEASE_MS));
    assert_eq!((leases(&mut chain).1, promised(&chain)), (vec![], [0; 3]));
}

#[test]
fn promises_are_given_to_reader_and_writer_until_a_newer_view_is_taken() {
    let mut chain = member(2, 3, Some(50));
    say(&mut chain, 3, 2, asked(7_000, LEASE_MS));
    assert_eq!(leases(&mut chain).1, [(3, 7_000, LEASE_MS)]);
    assert_eq!(promised(&chain), [0, 0, 50 + u64::from(LEASE_MS)]);
    chain.pass_lease_time(60);
    say(&mut chain, 1, 2, asked(9, u32::MAX));
    assert_eq!(leases(&mut chain).1, [(1, 9, LEASE_MS)], "as long as it is ready to wait");
    assert_eq!(promised(&chain), [360, 0, 350]);
    chain.stop_promising();
    chain.pass_lease_time(100);
    say(&mut chain, 3, 2, asked(7_100, LEASE_MS));
    assert_eq!((leases(&mut chain).1, promised(&chain)), (vec![], [360, 0, 350]));
    // The head does not ask the one in the middle to promise to itself.
    let mut chain = member(1, 3, Some(50));
    say(&mut chain, 2, 1, asked(7_000, LEASE_MS));
    assert_eq!((leases(&mut chain).1, promised(&chain)), (vec![], [0; 3]));
}

#[test]
fn a_node_that_is_told_no_clock_asks_for_nothing_and_promises_nothing() {
    let mut chain = member(3, 3, None);
    chain.handle_tick(0);
    say(&mut chain, 1, 3, asked(5, LEASE_MS));
    assert_eq!(leases(&mut chain), (vec![], vec![]));
    assert_eq!((chain.holds_lease(), promised(&chain)), (true, [0; 3]));
}

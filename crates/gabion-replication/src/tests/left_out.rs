//! A replica that its group's newest view leaves out, or that has heard of none.

use super::protocol::{actions, config, frame, hello};
use crate::{Action, Config, LeftOut, LocalState, Message, Protocol, begin};
use alloc::vec::Vec;
use gabion_base::{ConfigNumber, ErrorKind, Frontier, ReplicaId, Term};

/// Replica 3, which configuration 4 of replicas 1 and 2 leaves out.
fn left_out() -> Config {
    let mut config = config(3);
    config.view.config = ConfigNumber(4);
    config.view.members.pop();
    config
}

fn sent(actions: &[Action]) -> Vec<&Message> {
    let frames = actions.iter().filter_map(|action| match action {
        Action::Send { frame } => Some(&frame.message),
        _ => None,
    });
    frames.collect()
}

#[test]
fn it_takes_part_in_nothing_and_says_why() {
    let state = LocalState { term: Term(7), ..LocalState::default() };
    let mut unknown = config(3);
    unknown.view.config = ConfigNumber::ZERO;
    for (config, reason) in [
        (left_out(), "this replica is no member of its group's newest view, configuration 4"),
        (unknown, "this replica has heard of no view of its group yet"),
    ] {
        let mut replica = begin(config, state.clone(), 0).unwrap();
        let all = actions(&mut *replica);
        assert!(matches!(&all[..], [Action::NotReady { reason: said }] if said == reason));
        assert_eq!(replica.not_ready_reason(), Some(reason));
        assert!(!replica.is_joined() && !replica.is_readable() && !replica.holds_lease());
        assert_eq!((replica.term(), replica.commit()), (Term(7), Frontier::ZERO));
        let forward = Message::Node { bytes: bytes::Bytes::new() };
        let error = replica.send(ReplicaId(1), forward).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
    }
    let error = LeftOut::new(config(3), state, 0).err().unwrap();
    assert_eq!(error.message(), "replica 3 is a member in configuration 1");
}

#[test]
fn it_tells_the_view_to_who_has_an_older_one_and_takes_a_newer_one() {
    let mut replica = LeftOut::new(left_out(), LocalState::default(), 0).unwrap();
    replica.handle_connected(ReplicaId(1), 9, 0);
    let all = actions(&mut replica);
    assert!(matches!(sent(&all)[..], [Message::Hello(_)]), "{all:?}");
    let mut say = |config: u64, message: Message| {
        let mut frame = frame(1, 3, 2, message);
        frame.config = ConfigNumber(config);
        replica.handle_message(ReplicaId(1), 9, frame, 0).map(|()| actions(&mut replica))
    };
    let all = say(3, Message::Hello(hello())).unwrap();
    assert!(matches!(sent(&all)[..], [Message::View(view)] if view.config.get() == 4), "{all:?}");
    assert!(say(3, Message::Hello(hello())).unwrap().is_empty(), "once in each connection");
    assert!(say(4, Message::Hello(hello())).unwrap().is_empty());
    let mut view = left_out().view;
    view.members.pop();
    let error = say(4, Message::View(view.clone())).unwrap_err();
    assert!(error.message().contains("with other members"), "{error}");
    view.config = ConfigNumber(5);
    let all = say(5, Message::View(view)).unwrap();
    assert!(matches!(&all[..], [Action::View { view }] if view.config.get() == 5), "{all:?}");
}

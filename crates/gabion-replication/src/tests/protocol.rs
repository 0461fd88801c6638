//! What the chain refuses, cuts and passes on, case by case.

use super::cluster::{Cluster, HEARTBEAT_MS, TIMEOUT_MS};
use crate::spans::{OPEN, Span};
use crate::{Action, Chain, ChainConfig, Frame, LocalState, Message, Progress, Role, Spans, Whole};
use alloc::format;
use alloc::vec;
use alloc::vec::Vec;
use bytes::Bytes;
use gabion_base::{ConfigNumber, ErrorKind, GroupId, LogPosition, ReplicaId, ShardId, Term};

fn config(me: u32) -> ChainConfig {
    ChainConfig {
        group: GroupId(7),
        config: ConfigNumber(1),
        members: vec![ReplicaId(1), ReplicaId(2), ReplicaId(3)],
        me: ReplicaId(me),
        heartbeat_ms: HEARTBEAT_MS,
        timeout_ms: TIMEOUT_MS,
        window_bytes: 1000,
        segment_len: 16_384,
        ring_len: 65_536,
    }
}

fn spans(list: &[(u64, u64, u64)]) -> Spans {
    let span = |&(term, start, end): &(u64, u64, u64)| Span {
        term: Term(term),
        start: LogPosition(start),
        end: LogPosition(end),
    };
    Spans::new(list.iter().map(span).collect()).unwrap()
}

fn frame(from: u32, to: u32, term: u64, message: Message) -> Frame {
    Frame {
        group: GroupId(7),
        shard: ShardId::ZERO,
        config: ConfigNumber(1),
        term: Term(term),
        from: ReplicaId(from),
        to: ReplicaId(to),
        connection: 70,
        message,
    }
}

/// Replica 2 in term 1 with a log of `end` bytes, connected to the head.
fn middle(end: u64) -> Chain {
    let progress = Progress { end: LogPosition(end), ..Progress::default() };
    let state = LocalState {
        term: Term(1),
        spans: spans(&[(1, 0, OPEN.get())]),
        progress,
        last_crc: 5,
        ..LocalState::default()
    };
    let mut chain = Chain::new(config(2), state, 0).unwrap();
    chain.handle_connected(ReplicaId(1), 9, 0);
    let hello = Message::Hello(crate::MemberState::default());
    chain.handle_message(ReplicaId(1), 9, frame(1, 2, 1, hello), 0).unwrap();
    actions(&mut chain);
    chain
}

fn actions(chain: &mut Chain) -> Vec<Action> {
    core::iter::from_fn(|| chain.poll(0)).collect()
}

fn new_term(end: u64, last_crc: u32, list: &[(u64, u64, u64)]) -> Message {
    let marks = crate::Watermarks::default();
    let oldest = LogPosition::ZERO;
    Message::NewTerm { oldest, end: LogPosition(end), last_crc, marks, spans: spans(list) }
}

#[test]
fn a_member_with_more_log_than_the_head_knew_says_hello_again() {
    let mut chain = middle(200);
    let message = new_term(4096, 0, &[(1, 0, 100), (2, 4096, OPEN.get())]);
    chain.handle_message(ReplicaId(1), 9, frame(1, 2, 2, message), 0).unwrap();
    let all = actions(&mut chain);
    let Some(Action::Send { frame }) = all.first() else { panic!("{all:?}") };
    let Message::Hello(state) = &frame.message else { panic!("{all:?}") };
    assert_eq!(state.progress.end, LogPosition(200));
    assert_eq!(all.len(), 1);
}

/// A tail of a lower term than the head's last records is cut, in the same step as the term.
#[test]
fn a_divergent_tail_is_cut_when_the_term_is_adopted() {
    let mut chain = middle(200);
    let list = [(1, 0, 100), (2, 4096, 5000), (3, 8192, OPEN.get())];
    let message = new_term(8192, 7, &list);
    chain.handle_message(ReplicaId(1), 9, frame(1, 2, 3, message), 0).unwrap();
    let expected = Action::AdoptTerm { term: Term(3), spans: spans(&list), end: LogPosition(4096) };
    assert_eq!(format!("{:?}", actions(&mut chain)), format!("{:?}", vec![expected]));
    assert_eq!(chain.progress().end, LogPosition(4096));
    chain.handle_term_adopted(Term(2));
    assert!(!chain.is_joined(), "an older adoption counts for nothing");
    chain.handle_term_adopted(Term(3));
    assert!(chain.is_joined());
    let sent = actions(&mut chain);
    assert!(
        sent.iter().any(|a| matches!(a, Action::Send { frame }
            if frame.term == Term(3) && matches!(frame.message, Message::TermAccepted { .. }))),
        "{sent:?}"
    );
}

#[test]
fn a_cut_below_what_is_flushed_is_refused() {
    let mut chain = middle(200);
    chain.handle_durable(LogPosition(200));
    chain.handle_edit_applied(1, LogPosition(150));
    let message = new_term(8192, 7, &[(1, 0, 100), (2, 4096, 5000), (3, 8192, OPEN.get())]);
    chain.handle_message(ReplicaId(1), 9, frame(1, 2, 3, message), 0).unwrap();
    actions(&mut chain);
    assert_eq!(
        chain.not_ready_reason(),
        Some(
            "replica 2 needs a full copy: its log agrees with the primary's up to @100 only and \
             ends at @200"
        )
    );
    assert_eq!(chain.term(), Term(1));
}

#[test]
fn logs_of_equal_length_with_different_last_records_are_refused() {
    let mut chain = middle(200);
    let message = new_term(200, 6, &[(1, 0, OPEN.get())]);
    chain.handle_message(ReplicaId(1), 9, frame(1, 2, 1, message), 0).unwrap();
    actions(&mut chain);
    let reason = chain.not_ready_reason().unwrap();
    assert!(reason.contains("last record has checksum 0x00000005"), "{reason}");
}

#[test]
fn frames_for_others_and_from_others_are_refused() {
    let mut chain = middle(200);
    let heartbeat = || frame(1, 2, 1, Message::Heartbeat(crate::Watermarks::default()));
    for (change, about) in [
        (Frame { group: GroupId(8), ..heartbeat() }, "g8"),
        (Frame { shard: ShardId(1), ..heartbeat() }, "s1"),
        (Frame { from: ReplicaId(3), ..heartbeat() }, "from r3"),
        (Frame { to: ReplicaId(1), ..heartbeat() }, "to r1"),
        (Frame { config: ConfigNumber(2), ..heartbeat() }, "configuration c2"),
        (Frame { connection: 71, ..heartbeat() }, "connection 71"),
        (frame(1, 2, 1, new_term(0, 0, &[])), "announces"),
    ] {
        let error = chain.handle_message(ReplicaId(1), 9, change, 0).unwrap_err();
        assert!(format!("{error}").contains(about), "{error}");
    }
    // Another connection than the current one says nothing at all, whatever it says.
    let other = Frame { group: GroupId(7), ..heartbeat() };
    chain.handle_message(ReplicaId(1), 8, other, 0).unwrap();
}

/// docs/faults.md: H3
#[test]
fn records_that_do_not_continue_the_log_close_the_connection() {
    let mut cluster = Cluster::new(2);
    cluster.start(1);
    cluster.start(2);
    cluster.connect_all();
    assert!(cluster.settle());
    let records = |from, term, len: usize| Message::Records {
        from: LogPosition(from),
        term: Term(term),
        marks: crate::Watermarks::default(),
        bytes: vec![Bytes::from(vec![0; len])],
    };
    let [(_, theirs), (_, ours)] = cluster.connections[0].ends;
    for bad in [
        records(8, 1, 40),
        records(0, 2, 40),
        records(0, 1, 0),
        records(0, 1, 41),
        records(u64::MAX - 7, 1, 40),
    ] {
        let bad = Frame { connection: theirs, ..frame(1, 2, 1, bad) };
        let chain = cluster.chain(2).unwrap();
        assert!(chain.handle_message(ReplicaId(1), ours, bad, 0).is_err());
    }
}

#[test]
fn an_ack_beyond_the_log_closes_the_connection() {
    let mut cluster = Cluster::new(2);
    cluster.start(1);
    cluster.start(2);
    cluster.connect_all();
    assert!(cluster.settle());
    let [(_, ours), (_, theirs)] = cluster.connections[0].ends;
    for (end, durable) in [(48, 0), (0, 8)] {
        let progress = Progress {
            end: LogPosition(end),
            durable: LogPosition(durable),
            ..Progress::default()
        };
        let ack = Frame { connection: theirs, ..frame(2, 1, 1, Message::Ack(progress)) };
        assert!(cluster.chain(1).unwrap().handle_message(ReplicaId(2), ours, ack, 0).is_err());
    }
    assert_eq!(cluster.chain(1).unwrap().commit(), LogPosition::ZERO);
}

#[test]
fn the_nodes_own_messages_arrive_in_order() {
    let mut cluster = Cluster::new(3);
    for id in 1..=3 {
        cluster.start(id);
    }
    let message = |id| Message::Forward { id, bytes: Bytes::from_static(b"GET k") };
    let early = cluster.chain(2).unwrap().send(ReplicaId(3), message(1)).unwrap_err();
    assert_eq!(early.kind(), ErrorKind::Unavailable);
    cluster.connect_all();
    assert!(cluster.settle());
    let own = || Message::Node { bytes: Bytes::from_static(b"a grant") };
    let chain = cluster.chain(2).unwrap();
    chain.send(ReplicaId(3), message(1)).unwrap();
    chain.send(ReplicaId(3), own()).unwrap();
    chain.send(ReplicaId(3), message(3)).unwrap();
    let foreign = chain.send(ReplicaId(3), Message::Ack(Progress::default())).unwrap_err();
    assert_eq!(foreign.kind(), ErrorKind::InvalidInput);
    cluster.drain(2);
    assert!(cluster.settle());
    assert_eq!(cluster.node(3).delivered, vec![(2, message(1)), (2, own()), (2, message(3))]);
}

#[test]
fn what_is_in_flight_stays_within_the_window() {
    let mut cluster = Cluster::new(2);
    cluster.window_bytes = 200;
    cluster.start(1);
    cluster.start(2);
    cluster.connect_all();
    assert!(cluster.settle());
    for _ in 0..20 {
        cluster.append(40);
    }
    while cluster.answer_read(1) {}
    let in_flight = cluster.connections[0].queues[0].iter().flatten().map(|frame| {
        match Frame::decode(frame).unwrap().message {
            Message::Records { bytes, .. } => bytes.iter().map(Bytes::len).sum(),
            _ => 0,
        }
    });
    assert_eq!(in_flight.sum::<usize>(), 200);
    assert!(cluster.settle());
    assert_eq!(cluster.chain(1).unwrap().commit(), LogPosition(800));
}

/// docs/faults.md: E15, R14, F13
#[test]
fn a_member_with_a_slow_disk_is_sent_what_its_ring_holds_and_the_rest_once_it_has_flushed() {
    let mut cluster = Cluster::new(3);
    cluster.lengths = (4096, 16_384);
    (1..=3).for_each(|id| cluster.start(id));
    cluster.connect_all();
    assert!(cluster.settle());
    let work = |cluster: &mut Cluster| {
        // As `settle`, but no disk flushes.
        for _ in 0..200 {
            for i in 0..cluster.connections.len() {
                (0..2).for_each(|side| while cluster.deliver(i, side) {});
            }
            (1..=3).for_each(|id| while cluster.work(id) || cluster.answer_read(id) {});
        }
    };
    let mut appended = 0;
    // Head and middle have fast disks.
    for _ in 0..100 {
        appended += u64::from(cluster.append(400));
        work(&mut cluster);
        (1..=2).for_each(|id| cluster.make_durable(id));
    }
    assert_eq!(appended, 100);
    let end = |cluster: &mut Cluster, id| cluster.chain(id).unwrap().progress().end.get();
    let ends = [1, 2, 3].map(|id| end(&mut cluster, id));
    assert_eq!(ends[..2], [40_000, 40_000]);
    assert!((8192..=12_288).contains(&ends[2]), "{ends:?}");
    assert!(cluster.chain(3).unwrap().is_joined());
    // Each flush makes room, also where the end of the log stays where it is.
    for _ in 0..5 {
        cluster.make_durable(3);
        work(&mut cluster);
    }
    assert_eq!(end(&mut cluster, 3), 40_000);
    assert_eq!(cluster.chain(1).unwrap().commit(), LogPosition(40_000));
}

#[test]
fn configurations_that_cannot_work_are_refused() {
    let bad = [
        ChainConfig { members: vec![], ..config(1) },
        ChainConfig { members: vec![ReplicaId(2)], ..config(1) },
        ChainConfig { members: vec![ReplicaId(1), ReplicaId(1)], ..config(1) },
        ChainConfig { members: (1..66).map(ReplicaId).collect(), ..config(1) },
        ChainConfig { heartbeat_ms: 0, ..config(1) },
        ChainConfig { timeout_ms: HEARTBEAT_MS, ..config(1) },
        ChainConfig { window_bytes: 0, ..config(1) },
        ChainConfig { segment_len: 0, ..config(1) },
        ChainConfig { ring_len: 65_535, ..config(1) },
    ];
    for config in bad {
        let refused = Chain::new(config.clone(), LocalState::default(), 0);
        assert_eq!(refused.err().map(|e| e.kind()), Some(ErrorKind::InvalidInput), "{config:?}");
    }
    let state = LocalState {
        term: Term(1),
        spans: spans(&[(2, 0, OPEN.get())]),
        progress: Progress { end: LogPosition(8), ..Progress::default() },
        ..LocalState::default()
    };
    let refused = Chain::new(config(1), state, 0);
    assert_eq!(refused.err().map(|e| e.kind()), Some(ErrorKind::Corruption));
}

#[test]
fn roles_and_status_name_every_member() {
    let mut cluster = Cluster::new(3);
    for id in 1..=3 {
        cluster.start(id);
    }
    cluster.connect_all();
    assert!(cluster.settle());
    cluster.append(40);
    let roles: Vec<_> =
        cluster.nodes.iter().flat_map(|n| n.chain.as_ref()).map(Chain::role).collect();
    assert_eq!(roles, vec![Role::Head, Role::Middle, Role::Tail]);
    let status: Vec<_> = cluster.chain(1).unwrap().members().collect();
    assert!(status.iter().all(|s| s.is_connected && s.is_joined && s.refused.is_none()));
    let lags: Vec<_> = status.iter().map(|s| (s.id.get(), s.lag_bytes)).collect();
    assert_eq!(lags, vec![(1, 0), (2, 40), (3, 40)]);
    cluster.kill(3, true);
    assert!(cluster.settle());
    let status: Vec<_> = cluster.chain(1).unwrap().members().collect();
    assert!(!status[2].is_connected);
    assert_eq!(status[1].lag_bytes, 0);
}

#[test]
fn log_that_is_trimmed_under_a_reader_means_a_full_copy_not_a_failure() {
    let mut cluster = Cluster::new(2);
    cluster.start(1);
    cluster.start(2);
    cluster.connect_all();
    assert!(cluster.settle());
    // Records that were sent and lost are read again.
    cluster.append(40);
    cluster.break_connection(0, 0);
    cluster.deliver_rest_of(2);
    cluster.connect(1, 2);
    while cluster.node(1).reads.is_empty() {
        assert!(
            (0..cluster.connections.len()).any(|i| cluster.deliver(i, 0) || cluster.deliver(i, 1))
        );
    }
    let Some(Action::SendLog { ticket, .. }) = cluster.node(1).reads.pop_front() else {
        panic!("no read");
    };
    let gone = Err(gabion_base::Error::not_found("segment 0 is trimmed"));
    cluster.chain(1).unwrap().handle_log_read(ticket, gone);
    cluster.drain(1);
    assert!(cluster.settle());
    let reason = cluster.chain(1).unwrap().not_ready_reason().unwrap();
    assert!(reason.starts_with("replica 2 needs a full copy"), "{reason}");
    let status: Vec<_> = cluster.chain(1).unwrap().members().collect();
    assert_eq!((status[0].refused.is_some(), status[1].refused.is_some()), (false, true));
}

/// A head that learns of a longer log or a later term stops taking writes at once.
#[test]
fn a_head_that_learns_of_more_log_starts_over() {
    let mut cluster = Cluster::new(2);
    cluster.start(1);
    cluster.start(2);
    cluster.connect_all();
    assert!(cluster.settle());
    assert!(cluster.chain(1).unwrap().is_ready());
    let [(_, ours), (_, theirs)] = cluster.connections[0].ends;
    let state = crate::MemberState {
        progress: Progress { end: LogPosition(80), ..Progress::default() },
        spans: spans(&[(1, 0, 80)]),
        ..crate::MemberState::default()
    };
    let hello = Frame { connection: theirs, ..frame(2, 1, 1, Message::Hello(state)) };
    let chain = cluster.chain(1).unwrap();
    chain.handle_message(ReplicaId(2), ours, hello, 0).unwrap();
    assert!(!chain.is_ready());
    let pulls = actions(chain).into_iter().any(|action| {
        matches!(action, Action::Send { frame }
            if matches!(frame.message, Message::PullLog { from: LogPosition(0), .. }))
    });
    assert!(pulls);
}

/// Any well-formed frames, in any order, from members that lie: refused or ignored, never a panic.
fn hostile_message(pick: &mut impl FnMut(usize) -> usize) -> (u64, Message) {
    const NUMBERS: [u64; 8] = [0, 40, 80, 100, 4096, 8192, 1 << 62, u64::MAX];
    const TERMS: [u64; 5] = [0, 1, 2, 3, u64::MAX];
    let term = TERMS[pick(5)];
    let mut position = || LogPosition(NUMBERS[pick(8)]);
    let progress = Progress {
        end: position(),
        durable: position(),
        flushed: position(),
        edit: position().get(),
    };
    let marks =
        crate::Watermarks { commit: position(), durable: position(), flushed: position(), edit: 1 };
    let (from, oldest) = (position(), position());
    let lists: [&[(u64, u64, u64)]; 6] = [
        &[],
        &[(1, 0, 40)],
        &[(1, 0, 100), (2, 4096, 4136)],
        &[(1, 0, u64::MAX)],
        &[(1, 0, 100), (2, 4096, u64::MAX)],
        &[(1, 0, 40), (3, 4096, u64::MAX)],
    ];
    let spans = spans(lists[pick(6)]);
    let len = [0, 8, 40, 41][pick(4)];
    let end = if pick(2) == 0 { spans.tip().1 } else { progress.end };
    let message = match pick(9) {
        0 | 1 => Message::Hello(crate::MemberState {
            session: 1,
            oldest,
            last_crc: 3,
            progress: Progress { end, ..progress },
            spans,
            lost: [None, Some(crate::Lost { from, to: oldest, term: Term(2) })][len % 3 % 2],
            gap: [None, Some(Term(2)), Some(crate::ANY_TERM)][len % 3],
        }),
        2 => Message::NewTerm { oldest, end, last_crc: 4, marks, spans },
        3 => Message::TermAccepted { last_crc: 5, progress },
        4 => Message::Records {
            from,
            term: Term(TERMS[pick(5)]),
            marks,
            bytes: vec![Bytes::from(vec![0; len])],
        },
        5 => Message::Ack(progress),
        6 => Message::Heartbeat(marks),
        7 => Message::PullLog { from, bytes_max: len as u32 },
        _ => Message::Refused { reason: "no".into() },
    };
    (term, message)
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(2000))]
    #[test]
    fn no_message_makes_a_chain_panic(choices in proptest::collection::vec(0usize..10_000, 600)) {
        let mut next = choices.iter().copied().cycle();
        let mut pick = |n: usize| next.next().unwrap_or(0) % n;
        let me = 1 + pick(3) as u32;
        let mut chain = Chain::new(config(me), LocalState::default(), 0).unwrap();
        let mut connection = 0;
        for step in 0..40 {
            let peer = 1 + pick(3) as u32;
            connection += 1;
            if peer == me {
                continue;
            }
            chain.handle_connected(ReplicaId(peer), connection, step);
            for _ in 0..1 + pick(8) {
                let (term, message) = hostile_message(&mut pick);
                let message = frame(peer, me, term, message);
                if chain.handle_message(ReplicaId(peer), connection, message, step).is_err() {
                    break;
                }
                carry_out(&mut chain);
            }
        }
    }
}

/// Does what a chain asks for, without a log behind it.
fn carry_out(chain: &mut Chain) {
    let mut budget = 50;
    while let Some(action) = chain.poll(0)
        && budget > 0
    {
        budget -= 1;
        match action {
            Action::AdoptTerm { term, .. } => chain.handle_term_adopted(term),
            Action::Place { from, bytes, .. } => {
                let len = bytes.iter().map(Bytes::len).sum::<usize>() as u64;
                chain.handle_placed(LogPosition(from.get() + len), 9);
            }
            Action::SendLog { ticket, from, until, .. } => {
                let len = (until.get() - from.get()).min(40) as usize;
                chain.handle_log_read(ticket, Ok(vec![Bytes::from(vec![0; len])]));
            }
            _ => {}
        }
    }
}

/// docs/faults.md: P25
#[test]
fn who_lost_its_ring_learns_whether_another_has_what_was_there() {
    let hello = |gap| Message::Hello(crate::MemberState { gap, ..crate::MemberState::default() });
    let say = |chain: &mut Chain, from: u32, gap| {
        chain.handle_connected(ReplicaId(from), u64::from(from), 0);
        let frame = Frame { connection: 1, ..frame(from, 2, 1, hello(gap)) };
        chain.handle_message(ReplicaId(from), u64::from(from), frame, 0).unwrap();
    };
    let (term, any) = (Term(4), Some(crate::ANY_TERM));
    let mut chain =
        Chain::new(config(2), LocalState { gap: any, ..LocalState::default() }, 0).unwrap();
    assert_eq!(chain.whole_member(term), Whole::Unknown);
    say(&mut chain, 1, any);
    assert_eq!(chain.whole_member(term), Whole::Unknown, "the third has not said anything");
    say(&mut chain, 3, any);
    assert_eq!(chain.whole_member(term), Whole::Nobody);
    // One that lost what was there before this one did is whole since.
    say(&mut chain, 3, Some(term.next()));
    assert_eq!(chain.whole_member(term), Whole::Nobody);
    say(&mut chain, 3, Some(term));
    assert_eq!(chain.whole_member(term), Whole::Member(ReplicaId(3)));
    say(&mut chain, 3, any);
    say(&mut chain, 1, None);
    assert_eq!(chain.whole_member(term), Whole::Member(ReplicaId(1)));
    assert!(!chain.has_caught_up(), "no term runs");
}

//! Frames and records that the chain refuses, cuts or passes on, case by case.

use super::cluster::{Cluster, HEARTBEAT_MS, LEASE_MS, TIMEOUT_MS};
use crate::frame::VERSION;
use crate::spans::{OPEN, Span};
use crate::{
    Action, Chain, Config, Frame, GroupView, Lease, LocalState, LogKind, Lost, Member, MemberState,
    Message, Progress, Protocol, Spans, Whole,
};
use alloc::format;
use alloc::vec;
use alloc::vec::Vec;
use bytes::Bytes;
use gabion_base::{
    ConfigNumber, ErrorKind, Frontier, GroupId, LogPosition, ReplicaId, ShardId, Term,
};

pub(super) fn config(me: u32) -> Config {
    let founders = [ReplicaId(1), ReplicaId(2), ReplicaId(3)];
    Config {
        view: GroupView::founding(GroupId(7), &founders, LogKind::Shared),
        me: ReplicaId(me),
        heartbeat_ms: HEARTBEAT_MS,
        timeout_ms: TIMEOUT_MS,
        lease_ms: LEASE_MS,
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

pub(super) fn frame(from: u32, to: u32, term: u64, message: Message) -> Frame {
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
    middle_with(end, &[(1, 0, OPEN.get())])
}

/// The same in the term of the last of these spans.
fn middle_with(end: u64, list: &[(u64, u64, u64)]) -> Chain {
    let progress = Progress { end: at(end), ..Progress::default() };
    let state = LocalState {
        term: list.last().map_or(Term::ZERO, |span| Term(span.0)),
        spans: spans(list),
        progress,
        last_crc: 5,
        ..LocalState::default()
    };
    let mut chain = Chain::new(config(2), state, 0).unwrap();
    chain.handle_connected(ReplicaId(1), 9, 0);
    let hello = Message::Hello(hello());
    chain.handle_message(ReplicaId(1), 9, frame(1, 2, 1, hello), 0).unwrap();
    actions(&mut chain);
    chain
}

pub(super) fn hello() -> MemberState {
    MemberState { versions: (VERSION, VERSION), ..MemberState::default() }
}

fn at(position: u64) -> Frontier {
    Frontier::of(LogPosition(position))
}

pub(super) fn actions(chain: &mut dyn Protocol) -> Vec<Action> {
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
    assert_eq!(state.progress.end, at(200));
    assert_eq!(all.len(), 1);
}

/// A tail of a lower term than the head's last records cuts its log, in the same step as the term.
#[test]
fn a_divergent_tail_is_cut_when_the_term_is_adopted() {
    let mut chain = middle(200);
    let list = [(1, 0, 100), (2, 4096, 5000), (3, 8192, OPEN.get())];
    let message = new_term(8192, 7, &list);
    chain.handle_message(ReplicaId(1), 9, frame(1, 2, 3, message), 0).unwrap();
    let (shard, spans, end) = (ShardId::ZERO, spans(&list), LogPosition(4096));
    let expected = Action::AdoptTerm { shard, term: Term(3), spans, end };
    assert_eq!(format!("{:?}", actions(&mut chain)), format!("{:?}", vec![expected]));
    assert_eq!(chain.progress().end, at(4096));
    chain.handle_term_adopted(ShardId::ZERO, Term(2));
    assert!(!chain.is_joined(), "an older adoption counts for nothing");
    chain.handle_term_adopted(ShardId::ZERO, Term(3));
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
    chain.handle_durable(at(200));
    chain.handle_edit_applied(1, at(150));
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

/// The commit stands where a span begins that the new head's log does not have: nothing of that
/// span is committed.
#[test]
fn a_span_of_which_only_the_start_is_committed_can_be_cut() {
    let of_mine = [(1, 0, 100), (2, 4096, OPEN.get())];
    for (commit, is_refused) in [(4096, false), (4100, true)] {
        let mut chain = middle_with(4200, &of_mine);
        let marks = crate::Watermarks { commit: at(commit), ..crate::Watermarks::default() };
        let (oldest, end, spans) = (LogPosition::ZERO, LogPosition(4200), spans(&of_mine));
        let joining = Message::NewTerm { oldest, end, last_crc: 5, marks, spans };
        chain.handle_message(ReplicaId(1), 9, frame(1, 2, 2, joining), 0).unwrap();
        assert!(chain.is_joined());
        let message = new_term(5000, 0, &[(1, 0, 100), (3, 4096, OPEN.get())]);
        chain.handle_message(ReplicaId(1), 9, frame(1, 2, 3, message), 0).unwrap();
        let all = actions(&mut chain);
        let is_cut = all.iter().any(
            |action| matches!(action, Action::AdoptTerm { end, .. } if *end == LogPosition(4096)),
        );
        assert_eq!(is_cut, !is_refused, "{all:?}");
        let is_blocked = chain.not_ready_reason().is_some_and(|it| it.contains("a full copy"));
        assert_eq!(is_blocked, is_refused, "{:?}", chain.not_ready_reason());
    }
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
    let heartbeat =
        || frame(1, 2, 1, Message::Heartbeat(crate::Watermarks::default(), Lease::default()));
    for (change, about) in [
        (Frame { group: GroupId(8), ..heartbeat() }, "g8"),
        (Frame { shard: ShardId(1), ..heartbeat() }, "s1"),
        (Frame { from: ReplicaId(3), ..heartbeat() }, "from r3"),
        (Frame { to: ReplicaId(1), ..heartbeat() }, "to r1"),
        (Frame { connection: 71, ..heartbeat() }, "connection 71"),
        (frame(1, 2, 1, new_term(0, 0, &[])), "announces"),
    ] {
        let error = chain.handle_message(ReplicaId(1), 9, change, 0).unwrap_err();
        assert!(format!("{error}").contains(about), "{error}");
    }
    // A frame on another connection than the current one is ignored, whatever its content.
    let other = Frame { group: GroupId(7), ..heartbeat() };
    chain.handle_message(ReplicaId(1), 8, other, 0).unwrap();
}

/// The content of a frame of another view is ignored. An older view is answered with the running
/// one, once for each connection; a newer one waits until its view is here.
/// docs/faults.md: R4
#[test]
fn a_frame_of_an_older_view_is_answered_with_the_running_one() {
    let mut chain = Chain::new(
        Config { view: GroupView { config: ConfigNumber(5), ..config(2).view }, ..config(2) },
        LocalState { term: Term(3), ..LocalState::default() },
        0,
    )
    .unwrap();
    chain.handle_connected(ReplicaId(1), 9, 0);
    actions(&mut chain);
    let old = |message| Frame { config: ConfigNumber(4), ..frame(1, 2, 7, message) };
    let records = Message::Records {
        from: LogPosition(0),
        term: Term(7),
        marks: crate::Watermarks::default(),
        bytes: vec![Bytes::from_static(b"12345678")],
    };
    for message in [Message::Hello(hello()), records] {
        chain.handle_message(ReplicaId(1), 9, old(message), 0).unwrap();
    }
    let all = actions(&mut chain);
    let [Action::Send { frame: answer }] = &all[..] else { panic!("{all:?}") };
    let Message::View(view) = &answer.message else { panic!("{answer:?}") };
    assert_eq!((view.config, view.term), (ConfigNumber(5), Term(3)));
    let newer = Frame { config: ConfigNumber(6), ..frame(1, 2, 7, Message::Hello(hello())) };
    chain.handle_message(ReplicaId(1), 9, newer, 0).unwrap();
    assert!(actions(&mut chain).is_empty(), "its sender answers our Hello");
}

/// A file message of an older term is stale: grants and placements of that term are void.
/// docs/faults.md: R4
#[test]
fn a_file_message_of_an_older_term_is_answered_with_the_view_and_not_delivered() {
    let mut chain = middle(200);
    let of_node = || Message::Node { bytes: Bytes::from_static(b"a grant") };
    chain.handle_message(ReplicaId(1), 9, frame(1, 2, 0, of_node()), 0).unwrap();
    let all = actions(&mut chain);
    let [Action::Send { frame: answer }] = &all[..] else { panic!("{all:?}") };
    assert!(matches!(answer.message, Message::View(_)), "{answer:?}");
    chain.handle_message(ReplicaId(1), 9, frame(1, 2, 1, of_node()), 0).unwrap();
    assert!(matches!(&actions(&mut chain)[..], [Action::Deliver { .. }]));
}

/// docs/faults.md: R8
#[test]
fn a_view_is_taken_when_it_is_newer_and_refused_when_it_contradicts() {
    let mut chain = middle(200);
    let told = |config, order: &[u32]| {
        let mut view = GroupView { config: ConfigNumber(config), ..config_view() };
        view.members = order.iter().map(|id| Member::new(ReplicaId(*id))).collect();
        Frame { config: ConfigNumber(config), ..frame(1, 2, 1, Message::View(view)) }
    };
    chain.handle_message(ReplicaId(1), 9, told(1, &[1, 2, 3]), 0).unwrap();
    assert!(actions(&mut chain).is_empty(), "it is the view that runs here");
    let other = chain.handle_message(ReplicaId(1), 9, told(1, &[2, 1, 3]), 0).unwrap_err();
    assert!(format!("{other}").contains("configuration c1 of g7 with other members"), "{other}");
    chain.handle_message(ReplicaId(1), 9, told(2, &[2, 1, 3]), 0).unwrap();
    let all = actions(&mut chain);
    let [Action::View { view }] = &all[..] else { panic!("{all:?}") };
    assert_eq!((view.config, view.writer()), (ConfigNumber(2), ReplicaId(2)));
}

fn config_view() -> GroupView {
    config(1).view
}

/// docs/faults.md: R15
#[test]
fn a_member_that_speaks_no_common_version_is_refused_by_name() {
    let mut chain = Chain::new(config(2), LocalState::default(), 0).unwrap();
    chain.handle_connected(ReplicaId(1), 9, 0);
    let later = MemberState { versions: (VERSION + 1, VERSION + 3), ..MemberState::default() };
    let frame = frame(1, 2, 1, Message::Hello(later));
    let error = chain.handle_message(ReplicaId(1), 9, frame, 0).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(format!("{error}").contains("replica 1 speaks versions"), "{error}");
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
        let progress = Progress { end: at(end), durable: at(durable), ..Progress::default() };
        let ack = Frame {
            connection: theirs,
            ..frame(2, 1, 1, Message::Ack(progress, Lease::default()))
        };
        assert!(cluster.chain(1).unwrap().handle_message(ReplicaId(2), ours, ack, 0).is_err());
    }
    assert_eq!(cluster.chain(1).unwrap().commit(), Frontier::ZERO);
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
    let foreign =
        chain.send(ReplicaId(3), Message::Ack(Progress::default(), Lease::default())).unwrap_err();
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
    assert_eq!(cluster.chain(1).unwrap().commit(), at(800));
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
    let end = |cluster: &mut Cluster, id| cluster.chain(id).unwrap().progress().end.only().get();
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
    assert_eq!(cluster.chain(1).unwrap().commit(), at(40_000));
}

/// A successor may be in a new term before its predecessor. It says once that its log is durable,
/// and its ring has room from then on.
/// docs/faults.md: R14
#[test]
fn a_successor_that_flushed_before_its_predecessor_is_in_the_term_gets_the_log() {
    const END: u64 = 40_960;
    let mut chain = middle(END);
    let hear = |chain: &mut Chain, from: u32, term, message| {
        let frame = frame(from, 2, term, message);
        chain.handle_message(ReplicaId(from), 8 + u64::from(from), frame, 0).unwrap();
    };
    chain.handle_connected(ReplicaId(3), 11, 0);
    hear(&mut chain, 3, 1, Message::Hello(hello()));
    let progress = Progress { end: at(END), ..Progress::default() };
    hear(&mut chain, 3, 2, Message::TermAccepted { last_crc: 0, progress });
    let durable = Progress { durable: at(END), ..progress };
    hear(&mut chain, 3, 2, Message::Ack(durable, Lease::default()));
    hear(&mut chain, 1, 2, new_term(END, 0, &[(1, 0, END), (2, END, OPEN.get())]));
    // It adopts the term now.
    actions(&mut chain);
    chain.handle_term_adopted(ShardId::ZERO, Term(2));
    actions(&mut chain);
    let (from, marks) = (LogPosition(END), crate::Watermarks::default());
    let bytes = vec![Bytes::from_static(&[0; 40])];
    hear(&mut chain, 1, 2, Message::Records { from, term: Term(2), marks, bytes });
    actions(&mut chain);
    chain.handle_placed(ShardId::ZERO, LogPosition(END + 40), 1);
    let is_passed_on = |action: &Action| {
        matches!(action, Action::Send { frame }
            if frame.to == ReplicaId(3) && matches!(frame.message, Message::Records { .. }))
    };
    let all = actions(&mut chain);
    assert!(all.iter().any(is_passed_on), "{all:?}");
}

#[test]
fn configurations_that_cannot_work_are_refused() {
    let with_members = |members: &[u32]| {
        let mut config = config(1);
        config.view.members = members.iter().map(|id| Member::new(ReplicaId(*id))).collect();
        config
    };
    let bad = [
        with_members(&[]),
        with_members(&[2]),
        with_members(&[1, 1]),
        with_members(&(1..66).collect::<Vec<_>>()),
        Config { heartbeat_ms: 0, ..config(1) },
        Config { timeout_ms: HEARTBEAT_MS, ..config(1) },
        Config { lease_ms: HEARTBEAT_MS as u32, ..config(1) },
        Config { window_bytes: 0, ..config(1) },
        Config { segment_len: 0, ..config(1) },
        Config { ring_len: 65_535, ..config(1) },
    ];
    for config in bad {
        let refused = Chain::new(config.clone(), LocalState::default(), 0);
        assert_eq!(refused.err().map(|e| e.kind()), Some(ErrorKind::InvalidInput), "{config:?}");
    }
    let state = LocalState {
        term: Term(1),
        spans: spans(&[(2, 0, OPEN.get())]),
        progress: Progress { end: at(8), ..Progress::default() },
        ..LocalState::default()
    };
    let refused = Chain::new(config(1), state, 0);
    assert_eq!(refused.err().map(|e| e.kind()), Some(ErrorKind::Corruption));
}

#[test]
fn status_names_every_member() {
    let mut cluster = Cluster::new(3);
    for id in 1..=3 {
        cluster.start(id);
    }
    cluster.connect_all();
    assert!(cluster.settle());
    cluster.append(40);
    let status = cluster.chain(1).unwrap().members();
    assert!(status.iter().all(|s| s.is_connected && s.is_joined && s.refused.is_none()));
    let lags: Vec<_> = status.iter().map(|s| (s.id.get(), s.lag_bytes)).collect();
    assert_eq!(lags, vec![(1, 0), (2, 40), (3, 40)]);
    cluster.kill(3, true);
    assert!(cluster.settle());
    let status = cluster.chain(1).unwrap().members();
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
    // Records lost on the way are read again.
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
    let status = cluster.chain(1).unwrap().members();
    assert_eq!((status[0].refused.is_some(), status[1].refused.is_some()), (false, true));
}

/// The log that is left may begin further on than the window reaches, and with a later span.
///
/// docs/faults.md: R12
#[test]
fn a_stream_from_below_what_is_left_is_refused_also_where_that_is_beyond_the_window() {
    let all = [(1, 0, 8000), (2, 8192, OPEN.get())];
    for (list, oldest) in [(&all[..], 8200), (&all[1..], 4096)] {
        let mut config = config(2);
        config.view.members[2].is_full = false;
        let term = list.last().unwrap().0;
        let progress = Progress { end: at(9500), durable: at(9500), ..Progress::default() };
        let spans = spans(list);
        let state = LocalState { term: Term(term), spans, progress, ..LocalState::default() };
        let mut chain = Chain::new(config, state, 0).unwrap();
        for (peer, connection) in [(1, 9), (3, 8)] {
            chain.handle_connected(ReplicaId(peer), connection, 0);
            let hello = frame(peer, 2, term, Message::Hello(hello()));
            chain.handle_message(ReplicaId(peer), connection, hello, 0).unwrap();
        }
        let begins = frame(1, 2, term, new_term(9500, 0, list));
        chain.handle_message(ReplicaId(1), 9, begins, 0).unwrap();
        assert!(chain.is_joined());
        let accepted = Message::TermAccepted { last_crc: 0, progress: Progress::default() };
        chain.handle_message(ReplicaId(3), 8, frame(3, 2, term, accepted), 0).unwrap();
        chain.handle_trimmed(at(oldest));
        let refusals = actions(&mut chain).into_iter().filter_map(|action| {
            let Action::Send { frame } = action else { return None };
            match frame.message {
                Message::Refused { reason } if frame.to == ReplicaId(3) => Some(reason),
                _ => None,
            }
        });
        let expected = format!(
            "replica 3 needs a full copy: its log ends at @0, that of replica 2 begins at @{oldest}"
        );
        assert_eq!(refusals.collect::<Vec<_>>(), [expected]);
    }
}

/// A member that gives up a copy, as a new term may have its log followed, is told again if it
/// cannot be.
///
/// docs/faults.md: R12
#[test]
fn a_member_that_is_filled_asks_for_a_copy_once_in_each_term_that_it_cannot_follow() {
    let mut config = config(3);
    config.view.members[2].is_full = false;
    let progress = Progress { end: at(100), ..Progress::default() };
    let spans = spans(&[(1, 0, OPEN.get())]);
    let state = LocalState { term: Term(1), spans, progress, ..LocalState::default() };
    let mut chain = Chain::new(config, state, 0).unwrap();
    for (peer, connection) in [(1, 9), (2, 8)] {
        chain.handle_connected(ReplicaId(peer), connection, 0);
        let hello = frame(peer, 3, 1, Message::Hello(hello()));
        chain.handle_message(ReplicaId(peer), connection, hello, 0).unwrap();
    }
    let lists = [&[(1, 0, 100), (2, 4096, OPEN.get())][..], &[(1, 0, 100), (3, 4096, OPEN.get())]];
    for (term, list) in [2, 3].into_iter().zip(lists) {
        let begins = frame(1, 3, term, new_term(4096, 0, list));
        chain.handle_message(ReplicaId(1), 9, begins, 0).unwrap();
        chain.handle_term_adopted(ShardId::ZERO, Term(term));
        actions(&mut chain);
        let asked = [true, false].map(|_| {
            let refused = Message::Refused { reason: "its log is trimmed".into() };
            chain.handle_message(ReplicaId(2), 8, frame(2, 3, term, refused), 0).unwrap();
            let all = actions(&mut chain);
            all.iter().filter(|action| matches!(action, Action::NeedsCopy { .. })).count()
        });
        assert_eq!(asked, [1, 0], "term {term}");
    }
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
    let state = MemberState {
        progress: Progress { end: at(80), ..Progress::default() },
        spans: spans(&[(1, 0, 80)]),
        ..hello()
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
    let mut frontier = || Frontier::of(position());
    let (end, durable, flushed) = (frontier(), frontier(), frontier());
    let progress = Progress { end, durable, flushed, edit: frontier().only().get() };
    let (commit, durable, flushed) = (frontier(), frontier(), frontier());
    let marks = crate::Watermarks { commit, durable, flushed, edit: 1 };
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
    let end = if pick(2) == 0 { spans.tip().1 } else { progress.end.only() };
    let message = match pick(10) {
        0 | 1 => Message::Hello(MemberState {
            versions: (VERSION, VERSION),
            incarnation: 1,
            session: 1,
            oldest,
            last_crc: 3,
            progress: Progress { end: Frontier::of(end), ..progress },
            spans,
            lost: [None, Some(Lost { from, to: oldest, term: Term(2) })][len % 3 % 2],
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
        5 => Message::Ack(progress, Lease::default()),
        6 => Message::Heartbeat(marks, Lease::default()),
        7 => Message::PullLog { from, bytes_max: len as u32 },
        8 => {
            Message::View(GroupView { config: ConfigNumber(1 + len as u64 % 3), ..config(1).view })
        }
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
            Action::AdoptTerm { term, .. } => chain.handle_term_adopted(ShardId::ZERO, term),
            Action::Place { from, bytes, .. } => {
                let len = bytes.iter().map(Bytes::len).sum::<usize>() as u64;
                chain.handle_placed(ShardId::ZERO, LogPosition(from.get() + len), 9);
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
    let hello = |gap| Message::Hello(MemberState { gap, ..hello() });
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
    // A member whose ring was lost earlier than this one's is whole since.
    say(&mut chain, 3, Some(term.next()));
    assert_eq!(chain.whole_member(term), Whole::Nobody);
    say(&mut chain, 3, Some(term));
    assert_eq!(chain.whole_member(term), Whole::Member(ReplicaId(3)));
    say(&mut chain, 3, any);
    say(&mut chain, 1, None);
    assert_eq!(chain.whole_member(term), Whole::Member(ReplicaId(1)));
    assert!(!chain.has_caught_up(), "no term runs");
}

/// A member's loss is reported by the name of a segment. A place that no segment has is refused,
/// and not named.
#[test]
fn a_loss_where_no_segment_has_a_name_is_refused() {
    for (place, is_refused) in [(1 << 62, true), ((1 << 62) - 8, false)] {
        let mut chain = Chain::new(config(1), LocalState::default(), 0).unwrap();
        chain.handle_connected(ReplicaId(2), 7, 0);
        let place = LogPosition(place);
        let lost = Some(Lost { term: Term(9), from: place, to: place });
        let hello = Message::Hello(MemberState { lost, ..hello() });
        let frame = Frame { connection: 7, ..frame(2, 1, 1, hello) };
        let answer = chain.handle_message(ReplicaId(2), 7, frame, 0);
        assert_eq!(answer.is_err(), is_refused, "{place}: {answer:?}");
        actions(&mut chain);
    }
}

/// docs/faults.md: R2, R5
#[test]
fn in_a_view_that_waits_reads_begin_once_all_full_members_are_in_it_and_no_term_does() {
    let say = |chain: &mut Chain, from: u32| {
        let message = Message::Hello(hello());
        chain.handle_connected(ReplicaId(from), u64::from(from), 0);
        let frame = Frame { connection: 1, ..frame(from, 2, 1, message) };
        chain.handle_message(ReplicaId(from), u64::from(from), frame, 0).unwrap();
        actions(chain)
    };
    for is_whole in [true, false] {
        let mut config = config(2);
        config.view.members.rotate_left(1);
        config.view.members.swap(0, 1);
        let kept = &mut config.view.members[2];
        (kept.is_full, kept.is_kept) = (false, true);
        assert_eq!(kept.replica, ReplicaId(1));
        config.view.members_min = 3;
        let state = LocalState { is_whole, ..LocalState::default() };
        let mut chain = Chain::new(config, state, 0).unwrap();
        let commit = chain.commit();
        say(&mut chain, 1);
        assert!(!chain.waits_with_all() && !chain.is_readable(), "3 may be in another view");
        let told = say(&mut chain, 3);
        assert!(chain.waits_with_all());
        assert_eq!(chain.is_readable(), is_whole, "{told:?}");
        let reason = "2 full replicas are left, the group needs 3 to take writes";
        assert_eq!(chain.not_ready_reason(), Some(reason));
        assert!(!chain.is_joined() && chain.commit() == commit);
        chain.pass_lease_time(1_000);
        assert!(!chain.holds_lease(), "3 has promised nothing");
    }
}

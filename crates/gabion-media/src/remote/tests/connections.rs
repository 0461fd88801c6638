//! One client and the peer over a connection: order, bounds, generations, timeouts.

use super::*;
use crate::remote::message::TRANSFER_LEN_MAX;
use gabion_base::ErrorKind;

fn write_of<'a>(parts: &'a [Part<'a>]) -> Request<'a> {
    Request::Write { term: Term(1), parts: Parts::Given(parts) }
}

#[test]
fn writes_complete_in_order_with_one_reply_and_one_call_for_many() {
    let mut rig = Rig::new(&[]);
    let (region, key, _) = lent(&rig.ask(&lend("a", b"log", 1, PAGE)));
    let sends = |pipe: &Pipe| pipe.out.borrow().sends;
    let before = (sends(rig.client.transport()), sends(rig.serving.transport()));
    let mut numbers = Vec::new();
    for at in 0..64u64 {
        let parts = [
            Part { region, key, offset: 1024 + at, data: &[at as u8; 16] },
            Part { region, key, offset: at * 8, data: &at.to_le_bytes() },
        ];
        numbers.push(rig.client.submit(&write_of(&parts), 0).unwrap().unwrap());
    }
    rig.turn();
    let after = (sends(rig.client.transport()), sends(rig.serving.transport()));
    assert_eq!((after.0 - before.0, after.1 - before.1), (1, 1), "one system call each");
    rig.client.progress(0).unwrap();
    let completed: Vec<_> = core::iter::from_fn(|| rig.client.poll_completed()).collect();
    let expected: Vec<_> =
        numbers.iter().map(|number| Completed { number: *number, reply: Reply::Written }).collect();
    assert_eq!(completed, expected);
}

#[test]
fn a_refused_write_amid_others_is_told_apart_and_has_no_effect() {
    let mut rig = Rig::new(&[]);
    let (region, key, _) = lent(&rig.ask(&lend("a", b"log", 1, PAGE)));
    let good = [Part { region, key, offset: 0, data: b"good" }];
    let bad = [
        Part { region, key, offset: 0, data: b"evil" },
        Part { region, key, offset: PAGE - 1, data: b"past" },
    ];
    for parts in [&good[..], &bad, &good[..0], &good] {
        if !parts.is_empty() {
            rig.client.submit(&write_of(parts), 0).unwrap().unwrap();
        }
    }
    assert_eq!(rig.next(), Reply::Written);
    assert_eq!(
        rig.next(),
        Reply::Refused(Refusal::new(RefusalReason::OutOfBounds, PAGE + 3, PAGE))
    );
    assert_eq!(rig.next(), Reply::Written);
    let read = Request::Read { region, key, term: Term(1), offset: 0, len: 4 };
    assert_eq!(rig.ask(&read), Reply::Bytes(b"good".to_vec()));
}

#[test]
fn outstanding_requests_are_bounded_by_count_and_by_bytes() {
    let (near, _far) = pipe(&[]);
    let mut config = ClientConfig::new(CLIENT, ConnectionGeneration(1));
    (config.outstanding_max, config.outstanding_bytes_max) = (8, 1000);
    let mut client = ClientConnection::connect(near, config, 0).unwrap();
    for _ in 1..8 {
        assert!(client.submit(&Request::Usage, 0).unwrap().is_some());
    }
    assert_eq!(client.submit(&Request::Usage, 0).unwrap(), None, "the ninth waits");

    let (near, _far) = pipe(&[]);
    let mut config = ClientConfig::new(CLIENT, ConnectionGeneration(1));
    config.outstanding_bytes_max = 1000;
    let mut client = ClientConnection::connect(near, config, 0).unwrap();
    let parts = [Part { region: RegionId(1), key: Key(1), offset: 0, data: &[0; 900] }];
    assert!(client.submit(&write_of(&parts), 0).unwrap().is_some());
    assert_eq!(client.submit(&Request::Usage, 0).unwrap(), None, "1,000 bytes are under way");
}

#[test]
fn a_request_over_a_limit_is_refused_before_it_is_sent_by_name_value_and_limit() {
    let mut rig = Rig::new(&[]);
    let data = vec![0; TRANSFER_LEN_MAX + 1];
    let parts = [Part { region: RegionId(1), key: Key(1), offset: 0, data: &data }];
    let error = rig.client.submit(&write_of(&parts), 0).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LimitExceeded);
    assert_eq!(error.message(), "bytes of a write: 262145, at most 262144 are possible");
    let error = rig.client.submit(&lend("", b"", 1, 1), 0).unwrap_err();
    assert_eq!(error.message(), "owner of 0 bytes: 1 to 255 are valid");
    assert!(matches!(rig.ask(&Request::Usage), Reply::Usage(_)), "the connection goes on");
}

#[test]
fn the_longest_write_and_read_cross_a_stream_in_small_pieces() {
    let mut rig = Rig::new(&[1, 7, 1000, 60_000, 3]);
    let len = TRANSFER_LEN_MAX.min(64 * PAGE as usize);
    let (region, key, _) = lent(&rig.ask(&lend("a", b"log", 1, len as u64)));
    let data: Vec<u8> = (0..len).map(|at| (at % 251) as u8).collect();
    let parts = [Part { region, key, offset: 0, data: &data }];
    assert_eq!(rig.ask(&write_of(&parts)), Reply::Written);
    let read = Request::Read { region, key, term: Term(1), offset: 0, len: len as u32 };
    assert_eq!(rig.ask(&read), Reply::Bytes(data));
}

/// docs/faults.md: N10
#[test]
fn a_newer_connection_of_a_client_ends_the_older_and_an_old_one_is_refused() {
    let mut rig = Rig::new(&[]);
    let connect = |generation| {
        let (near, far) = pipe(&[]);
        let config = ClientConfig::new(CLIENT, ConnectionGeneration(generation));
        let client = ClientConnection::connect(near, config, 0).unwrap();
        (client, PeerConnection::new(far, ConnectionConfig::default(), 0))
    };
    let (mut newer, mut served) = connect(2);
    newer.progress(0).unwrap();
    served.progress(&mut rig.peer, 0);
    newer.progress(0).unwrap();
    assert!(matches!(newer.poll_completed().unwrap().reply, Reply::Welcome { .. }));

    // Bytes of the old connection arrive after the new one's greeting.
    let (region, key) = (RegionId::new(Incarnation(5), 1), Key(1));
    let parts = [Part { region, key, offset: 0, data: b"late" }];
    rig.client.submit(&write_of(&parts), 0).unwrap();
    rig.client.progress(0).unwrap();
    rig.serving.progress(&mut rig.peer, 0);
    assert!(rig.serving.is_over(), "the old connection ends");
    assert_eq!(rig.peer.usage().connections, 1, "and takes the new one's place from nobody");

    for generation in [1, 2] {
        let (mut late, mut served) = connect(generation);
        late.progress(0).unwrap();
        served.progress(&mut rig.peer, 0);
        late.progress(0).unwrap();
        let reply = late.poll_completed().unwrap().reply;
        assert_eq!(refused(&reply), RefusalReason::OldConnection);
        assert!(served.is_over());
    }
}

/// A connection that was lost leaves bytes behind, which come when the client has fenced anew.
/// docs/faults.md: N10
#[test]
fn late_bytes_of_a_lost_connection_carry_dead_keys() {
    let mut peer = peer();
    let (region, old_key, _) = lent(&peer.handle(CLIENT, &lend("a", b"log", 1, PAGE)));
    let fenced = regions(&peer.handle(CLIENT, &Request::Fence { owner: "a", term: Term(1) }));
    assert_eq!(fenced.len(), 1);
    assert_ne!(fenced[0].key, old_key);
    let late = write_one(&mut peer, (region, old_key), 1, 0, b"late");
    assert_eq!(refused(&late), RefusalReason::WrongKey);
    assert_eq!(write_one(&mut peer, (region, fenced[0].key), 1, 0, b"new"), Reply::Written);
}

/// docs/faults.md: N7
#[test]
fn after_a_fence_no_write_of_the_old_term_lands_and_its_regions_can_be_read() {
    let mut peer = peer();
    let (region, key, _) = lent(&peer.handle(CLIENT, &lend("a", b"log", 1, PAGE)));
    assert_eq!(write_one(&mut peer, (region, key), 1, 0, b"old"), Reply::Written);
    let fenced = regions(&peer.handle(ClientId(8), &Request::Fence { owner: "a", term: Term(2) }));
    let new_key = fenced[0].key;
    for (key, term, reason) in [
        (key, 1, RefusalReason::OldTerm),
        (new_key, 1, RefusalReason::OldTerm),
        (key, 2, RefusalReason::WrongKey),
        (new_key, 2, RefusalReason::ReadOnly),
        (new_key, 3, RefusalReason::NewTerm),
    ] {
        let reply = write_one(&mut peer, (region, key), term, 0, b"late");
        assert_eq!(refused(&reply), reason, "term {term}");
    }
    for request in [
        Request::Fence { owner: "a", term: Term(1) },
        lend("a", b"log", 1, PAGE),
        Request::List { owner: "a", term: Term(1), after: RegionId(0) },
        Request::Free { owner: "a", term: Term(1), regions: Regions::Given(&[]) },
    ] {
        let reply = peer.handle(CLIENT, &request);
        assert_eq!(reply, Reply::Refused(Refusal::new(RefusalReason::OldTerm, 1, 2)));
    }
    assert_eq!(read(&mut peer, (region, new_key), 2, 0, 3), Reply::Bytes(b"old".to_vec()));
}

/// docs/faults.md: N1
#[test]
fn a_peer_that_started_again_knows_no_region_of_before() {
    let mut before = peer();
    let (region, key, _) = lent(&before.handle(CLIENT, &lend("a", b"log", 1, PAGE)));
    let mut config = config();
    config.incarnation = Incarnation(config.incarnation.0 + 1);
    let mut after = Peer::new(config, SimulatedSupply::new(2)).unwrap();
    let (other, ..) = lent(&after.handle(CLIENT, &lend("b", b"log", 1, PAGE)));
    assert_ne!(other, region, "no number is used twice");
    let reply = write_one(&mut after, (region, key), 1, 0, b"x");
    assert_eq!(refused(&reply), RefusalReason::UnknownRegion);
    let fence = Request::Fence { owner: "a", term: Term(2) };
    assert_eq!(regions(&after.handle(CLIENT, &fence)), vec![]);
    let Reply::Welcome { incarnation, .. } = after.greet(CLIENT, ConnectionGeneration(1), b"")
    else {
        panic!("the client is welcome");
    };
    assert_eq!(incarnation, Incarnation(6));
}

#[test]
fn a_connection_that_does_not_greet_ends_and_one_that_greets_with_another_token_too() {
    let mut config = config();
    config.token = Some(b"secret".to_vec());
    let mut peer = Peer::new(config, SimulatedSupply::new(1)).unwrap();
    let (_near, far) = pipe(&[]);
    let mut silent = PeerConnection::new(far, ConnectionConfig::default(), 0);
    silent.progress(&mut peer, 5_000);
    assert!(!silent.is_over());
    silent.progress(&mut peer, 5_001);
    assert!(silent.is_over());

    for (token, is_taken) in [(&b"secret"[..], true), (b"secreT", false), (b"", false)] {
        let (near, far) = pipe(&[]);
        let mut config = ClientConfig::new(ClientId(9), ConnectionGeneration(1));
        config.token = token.to_vec();
        let mut client = ClientConnection::connect(near, config, 0).unwrap();
        let mut served = PeerConnection::new(far, ConnectionConfig::default(), 0);
        client.progress(0).unwrap();
        served.progress(&mut peer, 0);
        client.progress(0).unwrap();
        let reply = client.poll_completed().unwrap().reply;
        assert_eq!(matches!(reply, Reply::Welcome { .. }), is_taken, "{reply:?}");
        assert_eq!(served.is_over(), !is_taken);
    }
}

#[test]
fn a_request_before_the_greeting_ends_the_connection() {
    let mut peer = peer();
    let (near, far) = pipe(&[]);
    let mut bytes = Vec::new();
    Request::Usage.encode(&mut bytes, ConnectionGeneration(1), RequestNumber(1));
    near.out.borrow_mut().bytes.extend(bytes);
    let mut served = PeerConnection::new(far, ConnectionConfig::default(), 0);
    served.progress(&mut peer, 0);
    assert!(served.is_over());
}

#[test]
fn a_peer_that_is_silent_for_too_long_breaks_the_connection() {
    let mut rig = Rig::new(&[]);
    rig.client.submit(&Request::Usage, 100).unwrap();
    assert_eq!(rig.client.deadline_ms(), Some(5_100));
    rig.client.progress(5_100).unwrap();
    let error = rig.client.progress(5_101).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert_eq!(error.message(), "the peer has not replied for 5001 ms, the limit is 5000");
    assert!(rig.client.submit(&Request::Usage, 0).is_err(), "nothing more is sent");
}

/// docs/faults.md: N10
#[test]
fn a_connection_that_is_reset_amid_a_frame_leaves_nothing_of_its_write() {
    let mut rig = Rig::new(&[]);
    let (region, key, _) = lent(&rig.ask(&lend("a", b"log", 1, PAGE)));
    let parts = [
        Part { region, key, offset: 0, data: b"data" },
        Part { region, key, offset: 64, data: b"cell" },
    ];
    rig.client.submit(&write_of(&parts), 0).unwrap();
    rig.client.flush().unwrap();
    let lane = rig.client.transport().out.clone();
    let len = lane.borrow().bytes.len() - 1;
    lane.borrow_mut().bytes.truncate(len);
    lane.borrow_mut().closed = true;
    for _ in 0..3 {
        rig.serving.progress(&mut rig.peer, 0);
    }
    assert!(rig.serving.is_over());
    assert_eq!(read(&mut rig.peer, (region, key), 1, 0, 4), Reply::Bytes(vec![0; 4]));
}

//! Regions that nobody names, and those that go when memory is short.

use super::*;
use crate::remote::peer::Entry;

fn lend_at(peer: &mut Peer<SimulatedSupply>, label: &[u8], epoch: u64, pages: u64) -> RegionId {
    let request = Request::Lend { owner: "a", label, epoch, term: Term(1), bytes: pages * PAGE };
    lent(&peer.handle(CLIENT, &request)).0
}

fn publish(peer: &mut Peer<SimulatedSupply>, regions: &[RegionId]) {
    let reply = peer.handle(
        CLIENT,
        &Request::Publish {
            owner: "a",
            term: Term(1),
            regions: Regions::Given(regions),
            withdraw: Regions::Given(&[]),
        },
    );
    assert_eq!(reply, Reply::Published);
}

/// docs/faults.md: N6
#[test]
fn a_region_is_freed_once_the_entry_has_its_epoch_and_does_not_name_it() {
    for (epoch, is_named, is_freed) in [
        (0, false, false),
        (3, false, false),
        (4, false, true),
        (5, false, true),
        (3, true, false),
        (4, true, false),
        (9, true, false),
    ] {
        let mut peer = peer();
        let region = lend_at(&mut peer, b"log", 4, 1);
        let entry = Entry { epoch, is_named };
        assert_eq!(peer.handle_entry(region, entry), is_freed, "{entry:?}");
        assert_eq!(peer.usage().regions, u64::from(!is_freed));
        assert!(!peer.handle_entry(RegionId(77), entry), "a region that is not there is no leak");
    }
}

#[test]
fn lends_returns_and_refusals_are_counted_by_kind() {
    let mut peer = peer();
    let first = lend_at(&mut peer, b"a", 1, 1);
    while peer.step(u64::MAX) > 0 {}
    let readied = peer.tally().readied_bytes;
    assert!(readied >= PAGE, "the length that was asked for is made ready: {readied}");
    let second = lend_at(&mut peer, b"a", 1, 1);
    publish(&mut peer, &[first]);
    publish(&mut peer, &[second]);
    let old = Request::Fence { owner: "a", term: Term(0) };
    assert!(matches!(peer.handle(CLIENT, &old), Reply::Refused(_)));
    let tally = peer.tally();
    assert_eq!((tally.lent_made, tally.lent_ready, tally.given_back), (1, 1, 1), "{tally:?}");
    let requests = Request::KINDS.iter().zip(tally.requests).filter(|(_, count)| *count > 0);
    let requests: Vec<_> = requests.map(|(kind, count)| (*kind, count)).collect();
    assert_eq!(requests, [("lend", 2), ("fence", 1), ("publish", 2)]);
    let old_term = RefusalReason::OldTerm as usize - 1;
    assert_eq!(tally.refused_others[old_term], 1, "{tally:?}");
    assert_eq!(tally.refused_writes.iter().sum::<u64>(), 0, "{tally:?}");
}

/// docs/faults.md: N6
#[test]
fn every_region_is_looked_up_page_by_page() {
    let mut peer = peer();
    let lent: Vec<_> = (0..10).map(|epoch| lend_at(&mut peer, b"log", epoch, 1)).collect();
    let (mut found, mut after) = (Vec::new(), RegionId(0));
    loop {
        let page = peer.checks(after, 3);
        let Some(last) = page.last() else { break };
        after = last.region;
        found.extend(page.iter().map(|check| check.region));
        assert!(page.iter().all(|check| check.owner == "a" && check.label == b"log"));
    }
    assert_eq!(found, lent);
}

/// docs/faults.md: N2
#[test]
fn short_memory_takes_the_newest_copy_under_way_and_then_the_smallest_that_is_enough() {
    let mut peer = peer();
    let pages = [8, 2, 4, 4, 1];
    let labelled = pages.into_iter().zip([b"a", b"b", b"c", b"d", b"e"]);
    let lent: Vec<_> = labelled.map(|(pages, label)| lend_at(&mut peer, label, 1, pages)).collect();
    publish(&mut peer, &lent[..3]);
    assert_eq!(peer.set_limit(19 * PAGE), vec![], "nothing goes while all fits");
    assert_eq!(peer.set_limit(18 * PAGE), vec![lent[4]]);
    assert_eq!(peer.set_limit(17 * PAGE), vec![lent[3]]);
    assert_eq!(peer.set_limit(11 * PAGE), vec![lent[2]], "4 pages are enough for 3, 2 are not");
    assert_eq!(peer.set_limit(PAGE), vec![lent[0], lent[1]], "the largest where none is enough");
    assert_eq!(peer.usage().revocations, 5);
}

/// docs/faults.md: N2
#[test]
fn a_revoked_region_is_denied_told_of_and_never_readable_again() {
    let mut rig = Rig::new(&[]);
    let (region, key, bytes) = lent(&rig.ask(&lend("a", b"log", 1, PAGE)));
    assert_eq!(rig.peer.set_limit(0), vec![region]);
    rig.turn();
    rig.turn();
    assert_eq!(rig.client.poll_notice(), Some(Notice::Revoked(vec![region])));
    let parts = [Part { region, key, offset: bytes - 1, data: b"x" }];
    let reply = rig.ask(&Request::Write { term: Term(1), parts: Parts::Given(&parts) });
    assert_eq!(refused(&reply), RefusalReason::Revoked);
}

#[test]
fn a_draining_peer_lends_no_more_and_says_so_once() {
    let mut rig = Rig::new(&[]);
    let (region, key, _) = lent(&rig.ask(&lend("a", b"log", 1, PAGE)));
    rig.peer.drain();
    rig.turn();
    rig.turn();
    assert_eq!(rig.client.poll_notice(), Some(Notice::Draining));
    assert_eq!(refused(&rig.ask(&lend("a", b"log", 1, PAGE))), RefusalReason::Draining);
    assert_eq!(rig.client.poll_notice(), None);
    let parts = [Part { region, key, offset: 0, data: b"x" }];
    let reply = rig.ask(&Request::Write { term: Term(1), parts: Parts::Given(&parts) });
    assert_eq!(reply, Reply::Written, "what is lent stands to the end");
}

#[test]
fn memory_that_comes_back_is_zeroed_in_steps_before_it_is_lent_again() {
    let mut peer = peer();
    let mut last = None;
    for round in 0..5 {
        let (region, key, bytes) = lent(&peer.handle(CLIENT, &lend("a", b"log", 1, 4 * PAGE)));
        assert_eq!(bytes, 4 * PAGE);
        let Reply::Bytes(zeros) = read(&mut peer, (region, key), 1, 0, 4 * PAGE as u32) else {
            panic!("a region can be read");
        };
        assert!(zeros.iter().all(|byte| *byte == 0), "round {round}");
        let written = write_one(&mut peer, (region, key), 1, 0, &[0xff; 4 * PAGE as usize]);
        assert_eq!(written, Reply::Written);
        let regions = [region];
        let free = Request::Free { owner: "a", term: Term(1), regions: Regions::Given(&regions) };
        assert_eq!(peer.handle(CLIENT, &free), Reply::Freed { bytes: 4 * PAGE });
        let mut steps = 0;
        while peer.step(PAGE) > 0 {
            steps += 1;
            peer.invariants();
        }
        last = Some(steps);
    }
    assert!(last.is_some_and(|steps| steps <= 16), "{last:?}");
    assert!(peer.usage().ready_bytes >= 4 * PAGE, "memory lies ready for the next");
    assert!(peer.usage().ready_bytes <= config().ready_bytes);
}

//! The first record of a term: the head waits with it until every full member has joined.

use super::cluster::Cluster;
use crate::planted::Mutant;
use alloc::vec;
use alloc::vec::Vec;

/// Sends all that is on its way between two nodes.
fn deliver_between(cluster: &mut Cluster, a: u32, b: u32) {
    let is_between = |ids: [u32; 2]| ids == [a, b] || ids == [b, a];
    for i in 0..cluster.connections.len() {
        if is_between(cluster.connections[i].ends.map(|end| end.0)) {
            while cluster.deliver(i, 0) || cluster.deliver(i, 1) {}
        }
    }
}

/// Lengths of the records of each node.
fn lengths(cluster: &Cluster) -> Vec<Vec<u64>> {
    cluster.nodes.iter().map(|node| node.records.values().map(|it| it.len).collect()).collect()
}

/// Three nodes with one durable record of 48 bytes, besides the one that began their term.
fn three() -> Cluster {
    let mut cluster = Cluster::new(3);
    cluster.has_term_starts = true;
    (1..=3).for_each(|id| cluster.start(id));
    cluster.connect_all();
    assert!(cluster.settle() && cluster.append(48) && cluster.settle());
    (1..=3).for_each(|id| cluster.make_durable(id));
    assert!(cluster.settle());
    cluster
}

/// The tail gets a record of 56 bytes after its Hello to a head that lost it, and shows it. Then
/// the one that sent it loses it as well, and says Hello without it.
fn tail_with_more_than_its_hello(mutant: Option<Mutant>) -> Cluster {
    let mut cluster = three();
    cluster.mutant = mutant;
    assert!(cluster.append(56));
    deliver_between(&mut cluster, 1, 2);
    assert!(cluster.work(2));
    cluster.kill(1, false);
    cluster.start(1);
    cluster.connect(1, 3);
    deliver_between(&mut cluster, 1, 3);
    deliver_between(&mut cluster, 2, 3);
    assert!(cluster.work(3) && cluster.chain(3).unwrap().is_readable());
    cluster.kill(2, false);
    cluster.start(2);
    cluster
}

#[test]
fn what_a_tail_got_after_its_hello_and_showed_is_not_cut() {
    for (mutant, is_kept) in [(None, true), (Some(Mutant::AppendsBeforeAllJoined), false)] {
        let mut cluster = tail_with_more_than_its_hello(mutant);
        assert_eq!(lengths(&cluster), [vec![40, 48], vec![40, 48], vec![40, 48, 56]]);
        cluster.connect_all();
        assert!(cluster.settle());
        let expected = if is_kept { vec![40, 48, 56, 40] } else { vec![40, 48, 40] };
        assert_eq!(lengths(&cluster), [expected.clone(), expected.clone(), expected]);
    }
}

/// A full member that said Hello and never joins holds the first record back, as it does writes. It
/// follows once the member is there, and no other is needed from then on.
#[test]
fn the_first_record_waits_for_a_full_member_and_comes_once_it_has_joined() {
    let mut cluster = three();
    cluster.kill(1, true);
    cluster.start(1);
    cluster.connect(1, 2);
    cluster.connect(1, 3);
    // Of all that is said no more than both Hellos.
    deliver_between(&mut cluster, 1, 2);
    deliver_between(&mut cluster, 1, 3);
    cluster.kill(3, true);
    assert!(cluster.work(1), "its new term");
    assert!(cluster.settle());
    let chain = cluster.chain(1).unwrap();
    assert!(chain.is_joined() && !chain.may_append() && !chain.is_ready());
    assert_eq!(lengths(&cluster)[0], [40, 48]);
    cluster.start(3);
    cluster.connect_all();
    assert!(cluster.settle());
    assert!(cluster.chain(1).unwrap().is_ready());
    assert_eq!(lengths(&cluster), vec![[40, 48, 40]; 3]);
    cluster.kill(3, true);
    assert!(cluster.chain(1).unwrap().may_append(), "it was in the term");
}

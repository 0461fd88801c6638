//! The page of the controller of near-compute logs.

use super::{COUNTER, GAUGE, finish};
use gabion_control::store_wire::Question;
use gabion_control::tally::{Outcome, Reason};
use gabion_ncl_driver::store::{Kept, KeptPeer, StoreFigures};
use gabion_server::metrics::{Kind, Page};
use std::time::Duration;

/// A peer registers every 30 s: one that did not for so long is gone, or does not get through.
const SILENT_AFTER: Duration = Duration::from_secs(90);
/// Peers that are told of one by one: the first ones by name.
const PEERS_SHOWN_MAX: usize = 256;

/// The whole page.
pub(in crate::ncl) fn page(figures: &StoreFigures) -> String {
    let mut page = Page::new(&[]);
    write_requests(&mut page, figures);
    write_connections(&mut page, figures);
    let help = "Time in which the store took a value, until it was flushed to the disk.";
    let name = "gabion_ncl_controller_flush_duration_seconds";
    let (counts, sum_ns) = &figures.stored;
    page.family(name, Kind::Histogram, help).times(&[], counts, *sum_ns);
    // It is not known what a store has that has failed.
    if let Some(kept) = &figures.kept {
        write_kept(&mut page, kept);
        write_peers(&mut page, &kept.peers);
    }
    finish(page)
}

fn write_requests(page: &mut Page, figures: &StoreFigures) {
    let help = "Requests by kind and outcome: conflicts are compare-and-sets that found another \
                version than they expected.";
    let mut family = page.family("gabion_ncl_controller_requests_total", COUNTER, help);
    for (kind, counts) in Question::KINDS.iter().zip(figures.tally.questions) {
        let is_change = *kind == Question::KINDS[Question::SWAP];
        for (outcome, count) in Outcome::ALL.into_iter().zip(counts) {
            if outcome != Outcome::Conflict || is_change {
                family.sample(&[("request", kind), ("outcome", outcome.name())], count);
            }
        }
    }
    let help = "Clients that were refused, by reason: with another token, say, or with bytes that \
                are no request.";
    let mut family = page.family("gabion_ncl_controller_refusals_total", COUNTER, help);
    for (reason, count) in Reason::ALL.iter().zip(figures.tally.refusals) {
        family.sample(&[("reason", reason.name())], count);
    }
}

fn write_connections(page: &mut Page, figures: &StoreFigures) {
    let over = [("tcp", figures.tcp), ("unix", figures.unix)];
    let help = "Connections of peers, programs and operators.";
    let mut family = page.family("gabion_ncl_controller_connections", GAUGE, help);
    over.iter().for_each(|(name, traffic)| family.sample(&[("over", name)], traffic.open));
    let help = "Connections since the start, by what became of them.";
    let mut family = page.family("gabion_ncl_controller_connections_total", COUNTER, help);
    for (name, traffic) in over {
        family.sample(&[("over", name), ("result", "accepted")], traffic.accepted);
        family.sample(&[("over", name), ("result", "rejected")], traffic.rejected);
    }
}

fn write_kept(page: &mut Page, kept: &Kept) {
    page.gauge("gabion_ncl_controller_values", "Values in the store.", kept.values);
    let help = "Bytes of these and of their names.";
    page.gauge("gabion_ncl_controller_value_bytes", help, kept.bytes);
    let help = "Applications that have files at log peers.";
    page.gauge("gabion_ncl_controller_applications", help, kept.applications);
}

/// The state of a peer as its record tells it.
fn state(peer: &KeptPeer) -> &'static str {
    match peer.age > SILENT_AFTER {
        _ if peer.has_ended => "ended",
        true => "silent",
        false => "heard",
    }
}

fn write_peers(page: &mut Page, peers: &[KeptPeer]) {
    let help = "Peers that ever registered: heard within the last 90 s, silent for longer, or \
                ended by themselves.";
    let mut family = page.family("gabion_ncl_controller_peers", GAUGE, help);
    for name in ["heard", "silent", "ended"] {
        let count = peers.iter().filter(|peer| state(peer) == name).count();
        family.sample(&[("state", name)], count);
    }
    let shown = || peers.iter().filter(|peer| !peer.has_ended).take(PEERS_SHOWN_MAX);
    let help = "Bytes that a peer could lend when it registered last; of the first 256 by name.";
    let mut family = page.family("gabion_ncl_controller_peer_free_bytes", GAUGE, help);
    for peer in shown() {
        let labels = [("peer", peer.peer.as_str()), ("failure_domain", &peer.domain)];
        family.sample(&labels, peer.free_bytes);
    }
    let help = "Time since a peer registered last, every 30 s is usual; since the controller's \
                start, if that was before.";
    let mut family = page.family("gabion_ncl_controller_peer_age_seconds", GAUGE, help);
    for peer in shown() {
        family.sample(&[("peer", &peer.peer)], peer.age.as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_are_heard_silent_or_ended_and_those_that_ended_are_not_told_of_one_by_one() {
        let peer = |name: &str, has_ended, seconds| KeptPeer {
            peer: name.to_owned(),
            domain: "rack \"1\"".to_owned(),
            free_bytes: 7,
            has_ended,
            age: Duration::from_secs(seconds),
        };
        let peers = [peer("a", false, 90), peer("b", false, 91), peer("c", true, 5)];
        let mut page = Page::new(&[]);
        write_peers(&mut page, &peers);
        let text = page.finish();
        for name in ["heard", "silent", "ended"] {
            let line = format!("gabion_ncl_controller_peers{{state=\"{name}\"}} 1\n");
            assert!(text.contains(&line), "{text}");
        }
        let told: Vec<&str> = text.lines().filter(|line| line.contains("peer=")).collect();
        assert_eq!(told.len(), 4, "{text}");
        assert!(told.iter().all(|line| !line.contains("peer=\"c\"")), "{text}");
        assert!(told[0].contains("failure_domain=\"rack \\\"1\\\"\""), "{text}");
    }
}

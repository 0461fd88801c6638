//! The page of a log peer.

use super::{COUNTER, GAUGE, finish};
use gabion_base::Result;
use gabion_fabric::remote::{PeerFigures, PeerServer};
use gabion_media::remote::{RefusalReason, Request};
use gabion_server::metrics::Page;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// The place of a peer at its controller, as the thread that keeps it saw it last.
#[derive(Default)]
pub(in crate::ncl) struct Registration {
    is_there: AtomicBool,
    failures: AtomicU64,
    /// When the controller took the record last.
    at: Mutex<Option<Instant>>,
}

impl Registration {
    /// The outcome of a look at the controller, and when it took the record last.
    pub(in crate::ncl) fn note(&self, is_there: bool, at: Option<Instant>) {
        self.is_there.store(is_there, Relaxed);
        self.failures.fetch_add(u64::from(!is_there), Relaxed);
        if at.is_some() {
            *self.at.lock().unwrap_or_else(PoisonError::into_inner) = at;
        }
    }
}

/// The whole page. Peers without a controller have no registration.
///
/// # Errors
/// Unavailable when the peer's thread is gone.
pub(in crate::ncl) fn page(
    server: &PeerServer,
    registration: Option<&Registration>,
) -> Result<String> {
    let figures = server.figures()?;
    let peer = figures.usage.peer.to_string();
    let mut page = Page::new(&[("peer", &peer)]);
    write_peer(&mut page, &figures);
    write_memory(&mut page, &figures);
    write_regions(&mut page, &figures);
    write_applications(&mut page, &figures);
    write_requests(&mut page, &figures);
    write_connections(&mut page, &figures);
    if let Some(registration) = registration {
        write_registration(&mut page, registration);
    }
    Ok(finish(page))
}

fn write_peer(page: &mut Page, figures: &PeerFigures) {
    let usage = &figures.usage;
    let help = "The machine or rack that this peer fails together with.";
    let domain = usage.failure_domain.as_str();
    page.family("gabion_ncl_peer_info", GAUGE, help).sample(&[("failure_domain", domain)], 1_u64);
    let help =
        "The run of this peer: one more at each start, and regions of earlier ones are gone.";
    page.gauge("gabion_ncl_peer_incarnation", help, usage.incarnation.0);
    page.gauge("gabion_ncl_peer_draining", "1 while it lends no more.", usage.is_draining);
}

fn write_memory(page: &mut Page, figures: &PeerFigures) {
    let usage = &figures.usage;
    let help = "Bytes by whether they are lent or can be lent.";
    let mut family = page.family("gabion_ncl_peer_memory_bytes", GAUGE, help);
    family.sample(&[("state", "lent")], usage.lent_bytes);
    family.sample(&[("state", "free")], usage.free_bytes());
    let help = "Bytes that are lent at most.";
    page.gauge("gabion_ncl_peer_memory_limit_bytes", help, usage.limit_bytes);
    let help = "Free bytes that lie zeroed, so that a new copy has them at once.";
    page.gauge("gabion_ncl_peer_memory_ready_bytes", help, usage.ready_bytes);
    let help = "Bytes that were zeroed, or brought in, ahead of need.";
    page.counter("gabion_ncl_peer_readied_bytes_total", help, figures.tally.readied_bytes);
    let help = "Time that the peer's thread took for that, and for memory that went to the system.";
    let seconds = figures.readying.as_secs_f64();
    page.counter("gabion_ncl_peer_readying_seconds_total", help, seconds);
}

fn write_regions(page: &mut Page, figures: &PeerFigures) {
    let (usage, tally) = (&figures.usage, &figures.tally);
    let help = "Regions that are lent: published ones are whole copies, others are under way.";
    let mut family = page.family("gabion_ncl_peer_regions", GAUGE, help);
    family.sample(&[("state", "published")], usage.published);
    family.sample(&[("state", "unpublished")], usage.regions.saturating_sub(usage.published));
    let help = "Regions that programs of this machine have mapped.";
    page.gauge("gabion_ncl_peer_regions_mapped", help, figures.mapped);
    let help = "Regions that were lent, by whether their memory lay ready or was made for them.";
    let mut family = page.family("gabion_ncl_peer_regions_lent_total", COUNTER, help);
    family.sample(&[("memory", "ready")], tally.lent_ready);
    family.sample(&[("memory", "made")], tally.lent_made);
    let help = "Regions that ended: given back; leaked, as no entry at the controller named them; \
                or revoked, as memory was short.";
    let mut family = page.family("gabion_ncl_peer_regions_ended_total", COUNTER, help);
    family.sample(&[("reason", "given_back")], tally.given_back);
    family.sample(&[("reason", "leaked")], usage.leaks_freed);
    family.sample(&[("reason", "revoked")], usage.revocations);
}

fn write_applications(page: &mut Page, figures: &PeerFigures) {
    let usage = &figures.usage;
    let help = "Applications with regions here.";
    page.gauge("gabion_ncl_peer_applications", help, usage.owners_count);
    let help = "Bytes that are lent to an application; of the first 256 by name.";
    let mut family = page.family("gabion_ncl_peer_application_bytes", GAUGE, help);
    for owner in &usage.owners {
        family.sample(&[("app", &owner.owner)], owner.bytes);
    }
}

fn write_requests(page: &mut Page, figures: &PeerFigures) {
    let (usage, tally) = (&figures.usage, &figures.tally);
    let help = "Requests that reached the peer, those that it refused included; its connection \
                refuses some before, and writes into shared memory are not seen.";
    let mut family = page.family("gabion_ncl_peer_requests_total", COUNTER, help);
    for (kind, count) in Request::KINDS.iter().zip(tally.requests) {
        family.sample(&[("request", kind)], count);
    }
    let help = "Bytes of regions that requests over connections wrote and read.";
    let mut family = page.family("gabion_ncl_peer_data_bytes_total", COUNTER, help);
    family.sample(&[("request", "write")], usage.write_bytes);
    family.sample(&[("request", "read")], usage.read_bytes);
    let help = "Refused requests: chains of writes, and others, by reason.";
    let mut family = page.family("gabion_ncl_peer_refusals_total", COUNTER, help);
    for (request, counts) in [("write", &tally.refused_writes), ("other", &tally.refused_others)] {
        for (reason, count) in RefusalReason::ALL.iter().zip(counts) {
            family.sample(&[("request", request), ("reason", &word(*reason))], *count);
        }
    }
}

/// `OldTerm` is `old_term` in a label.
fn word(reason: RefusalReason) -> String {
    let mut word = String::new();
    for c in reason.name().chars() {
        if c.is_ascii_uppercase() && !word.is_empty() {
            word.push('_');
        }
        word.push(c.to_ascii_lowercase());
    }
    word
}

fn write_connections(page: &mut Page, figures: &PeerFigures) {
    let over = [("tcp", &figures.sockets.tcp), ("unix", &figures.sockets.unix)];
    let help = "Connections: over TCP, and over the Unix socket, whose clients may share memory.";
    let mut family = page.family("gabion_ncl_peer_connections", GAUGE, help);
    over.iter().for_each(|(name, traffic)| family.sample(&[("over", name)], traffic.open));
    let help = "Connections since the start, by what became of them.";
    let mut family = page.family("gabion_ncl_peer_connections_total", COUNTER, help);
    for (name, traffic) in over {
        family.sample(&[("over", name), ("result", "accepted")], traffic.accepted);
        family.sample(&[("over", name), ("result", "rejected")], traffic.rejected);
    }
    let help = "Bytes of requests and replies.";
    let mut family = page.family("gabion_ncl_peer_wire_bytes_total", COUNTER, help);
    for (name, traffic) in over {
        family.sample(&[("over", name), ("direction", "received")], traffic.received);
        family.sample(&[("over", name), ("direction", "sent")], traffic.sent);
    }
}

fn write_registration(page: &mut Page, registration: &Registration) {
    let help = "1 while the controller answers, and has this run of the peer.";
    page.gauge("gabion_ncl_peer_registered", help, registration.is_there.load(Relaxed));
    let help = "Looks at the controller, one a second, that failed.";
    let failures = registration.failures.load(Relaxed);
    page.counter("gabion_ncl_peer_registration_failures_total", help, failures);
    let help = "Time since the controller took this peer's record last; every 30 s is usual.";
    let mut family = page.family("gabion_ncl_peer_registration_age_seconds", GAUGE, help);
    let at = *registration.at.lock().unwrap_or_else(PoisonError::into_inner);
    at.into_iter().for_each(|at| family.sample(&[], at.elapsed().as_secs_f64()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_words_of_labels() {
        assert_eq!(word(RefusalReason::OldTerm), "old_term");
        assert_eq!(word(RefusalReason::Revoked), "revoked");
        assert_eq!(word(RefusalReason::OtherCertificate), "other_certificate");
    }
}

//! The names by which the two ends of a shipping connection know each other.

use alloc::format;
use alloc::string::String;
use gabion_base::{GroupId, ReplicaId, Term};

/// Name of the subsystem that a secondary serves in a term and session.
#[must_use]
pub(super) fn subsystem_name(
    group: GroupId,
    term: Term,
    session: u64,
    pool_id: &[u8; 16],
) -> String {
    let mut pool = String::new();
    for byte in &pool_id[..8] {
        pool.push_str(&format!("{byte:02x}"));
    }
    format!("nqn.2026-11.dev.gabion:{group}:{term}:s{session}:{pool}")
}

/// Name by which a member makes itself known to targets as the writer of a group in a term.
#[must_use]
pub(super) fn host_name(group: GroupId, term: Term, writer: ReplicaId) -> String {
    format!("nqn.2026-11.dev.gabion:host:{group}:{term}:{writer}")
}

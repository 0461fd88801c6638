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
    format!("{HOST}{group}:{term}:{writer}")
}

/// The front of each host's name.
const HOST: &str = "nqn.2026-11.dev.gabion:host:";

/// The replica that a host's name is of, as members make them.
#[must_use]
pub fn replica_of_host(name: &str) -> Option<ReplicaId> {
    let (_, replica) = name.strip_prefix(HOST)?.rsplit_once(':')?;
    replica.strip_prefix('r')?.parse().ok().map(ReplicaId)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hosts_name_says_its_replica_and_another_text_none() {
        let name = host_name(GroupId(7), Term(3), ReplicaId(12));
        assert_eq!(replica_of_host(&name), Some(ReplicaId(12)));
        for other in
            ["", "nqn.2026-11.dev.gabion:host:", "nqn.x:r1", &name[1..], &name[..name.len() - 1]]
        {
            assert_ne!(replica_of_host(other), Some(ReplicaId(12)), "{other}");
        }
        assert_eq!(replica_of_host("nqn.2026-11.dev.gabion:host:g7:t3:4"), None);
    }
}

//! The view that a replica acts in: who the members are, and which duties this replica has among
//! them.
//!
//! ```text
//!   GroupConfig, member ──► View ──► duties: append · compact · ship · receive · serve reads · log edits
//!                            │
//!                            └─────► writer (takes writes), reader (answers reads), others
//! ```
//!
//! Parts of the node ask "is this my duty?" and "who takes writes?". None asks for the head, for a
//! place in the order or for the number of members: what those mean is decided here alone.

use crate::config::{CompactionMode, GroupConfig};
use alloc::vec::Vec;
use gabion_base::ReplicaId;

/// The duties of one replica in its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Duties {
    /// It gives records their places in the log: it takes writes, seals MemTables and begins loads.
    pub append: bool,
    /// It flushes and compacts.
    pub compact: bool,
    /// It ships the files that it makes to every other member.
    pub ship: bool,
    /// Its files come from the member that ships.
    pub receive: bool,
    /// It answers reads.
    pub serve_reads: bool,
    /// Edits are records of the log: they are appended by the member that compacts, and applied by
    /// all.
    pub log_edits: bool,
}

/// The readers of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogKind {
    /// This replica alone, at its next start.
    Private,
    /// Every member.
    Shared,
}

/// The members, and the duties of this replica among them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    me: ReplicaId,
    members: Vec<ReplicaId>,
    duties: Duties,
    has_one_tree: bool,
    log_kind: LogKind,
}

impl View {
    /// The view of a member of a group in chain replication: the first member takes writes and the
    /// last answers reads (RubbleDB §4.1).
    #[must_use]
    pub fn of_chain(group: &GroupConfig, me: ReplicaId) -> Self {
        let has_one_tree = group.compaction == CompactionMode::Primary;
        let append = group.head() == me;
        let log_kind = group.log_kind();
        let duties = Duties {
            append,
            compact: append || !has_one_tree,
            ship: append && has_one_tree && log_kind == LogKind::Shared,
            receive: !append && has_one_tree,
            serve_reads: group.tail() == me,
            log_edits: has_one_tree && log_kind == LogKind::Shared,
        };
        let view = Self { me, members: group.members.clone(), duties, has_one_tree, log_kind };
        view.invariants();
        view
    }

    /// The duties of this replica.
    #[must_use]
    pub const fn duties(&self) -> Duties {
        self.duties
    }

    /// The member that takes writes. It ships the files, where files are shipped.
    #[must_use]
    pub fn writer(&self) -> ReplicaId {
        self.members[0]
    }

    /// The member that answers reads.
    #[must_use]
    pub fn reader(&self) -> ReplicaId {
        self.members[self.members.len() - 1]
    }

    /// The members but this replica, in their order.
    pub fn others(&self) -> impl Iterator<Item = ReplicaId> + '_ {
        self.members.iter().copied().filter(|member| *member != self.me)
    }

    /// Whether one tree is every member's: edits have the same numbers and files the same bytes
    /// everywhere, and who has a file can give it to the others.
    #[must_use]
    pub const fn has_one_tree(&self) -> bool {
        self.has_one_tree
    }

    /// The members that may have a copy of a file that is damaged here, in the order in which they
    /// are asked.
    #[must_use]
    pub fn copies_at(&self) -> Vec<ReplicaId> {
        match (self.duties.receive, self.duties.ship) {
            (true, _) => alloc::vec![self.writer()],
            (_, true) => self.others().collect(),
            _ => Vec::new(),
        }
    }

    /// Whether nobody but this replica reads its log: it may end where a flush has put everything
    /// into files, and what its records do not say of themselves nobody else has to know.
    #[must_use]
    pub fn log_is_private(&self) -> bool {
        self.log_kind == LogKind::Private
    }

    /// Checks what holds of every view.
    fn invariants(&self) {
        let Duties { append, compact, ship, receive, log_edits, .. } = self.duties;
        assert!(self.members.contains(&self.me), "{} has no duties in its view", self.me);
        assert_eq!(append, self.writer() == self.me, "one member takes writes");
        assert!(!(ship && receive), "a member that ships its files receives none");
        assert!(compact || receive, "files come from somewhere");
        assert!(!ship || compact, "who ships files makes them");
        assert!(!log_edits || self.has_one_tree, "edits of one tree are logged for all");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::AckLevel;
    use gabion_base::{ConfigNumber, GroupId};
    use gabion_engine::TreeConfig;

    fn view(count: u32, compaction: CompactionMode, me: u32) -> View {
        let group = GroupConfig {
            group: GroupId(1),
            config: ConfigNumber(1),
            members: (1..=count).map(ReplicaId).collect(),
            compaction,
            ack: AckLevel::Replicated,
            ring_len: 4 << 20,
            segment_len: 1 << 20,
            tree: TreeConfig::default(),
        };
        View::of_chain(&group, ReplicaId(me))
    }

    /// The duties that a view gives, by their first letters.
    fn duties(view: &View) -> alloc::string::String {
        let Duties { append, compact, ship, receive, serve_reads, log_edits } = view.duties();
        let all = [append, compact, ship, receive, serve_reads, log_edits];
        all.iter()
            .zip("acsrvl".chars())
            .map(|(has, letter)| if *has { letter } else { '-' })
            .collect()
    }

    #[test]
    fn duties_follow_from_the_place_in_the_chain_and_from_who_compacts() {
        use CompactionMode::{EveryReplica, Primary};
        for (count, mode, expected) in [
            (1, Primary, &["ac--v-"][..]),
            (3, Primary, &["acs--l", "---r-l", "---rvl"]),
            (3, EveryReplica, &["ac----", "-c----", "-c--v-"]),
            (1, EveryReplica, &["ac--v-"]),
        ] {
            for (me, expected) in (1..).zip(expected) {
                assert_eq!(duties(&view(count, mode, me)), *expected, "{me} of {count}, {mode:?}");
            }
        }
    }

    #[test]
    fn copies_lie_where_files_are_the_same() {
        use CompactionMode::{EveryReplica, Primary};
        let all = |ids: &[u32]| ids.iter().map(|id| ReplicaId(*id)).collect::<Vec<_>>();
        assert_eq!(view(3, Primary, 1).copies_at(), all(&[2, 3]));
        assert_eq!(view(3, Primary, 3).copies_at(), all(&[1]));
        assert_eq!(view(3, EveryReplica, 1).copies_at(), []);
        assert_eq!(view(1, Primary, 1).copies_at(), []);
    }
}

//! The view that a replica acts in: the members, and the duties of this replica among them.
//!
//! ```text
//!   GroupView, member ──► View ──► duties: append · compact · ship · receive · serve reads · log edits
//!                            │
//!                            └─────► writer (takes writes), reader (answers reads), others
//! ```
//!
//! A view reaches the node by [`Node::handle_view`](crate::Node::handle_view) alone. It takes
//! effect when it is durable, and may change at any time.
//!
//! Parts of the node ask "is this my duty?" and "who takes writes?". None asks for the head, for a
//! place in the order or for the number of members: their meaning is decided here alone.

use crate::config::CompactionMode;
use alloc::vec::Vec;
use gabion_base::ReplicaId;
use gabion_replication::{GroupView, LogKind};

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

/// The group's view, and the duties of this replica in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    me: ReplicaId,
    group: GroupView,
    duties: Duties,
    has_one_tree: bool,
}

impl View {
    /// The view of a member of a group in chain replication: the first member takes writes and the
    /// last answers reads (RubbleDB §4.1).
    ///
    /// # Panics
    /// When this replica is no member of it, which the caller checks first.
    #[must_use]
    pub fn new(compaction: CompactionMode, group: GroupView, me: ReplicaId) -> Self {
        let has_one_tree = compaction == CompactionMode::Primary;
        let append = group.writer() == me;
        let is_shared = group.log == LogKind::Shared;
        let duties = Duties {
            append,
            compact: append || !has_one_tree,
            ship: append && has_one_tree && is_shared,
            receive: !append && has_one_tree,
            serve_reads: group.reader() == me,
            log_edits: has_one_tree && is_shared,
        };
        let view = Self { me, group, duties, has_one_tree };
        view.invariants();
        view
    }

    /// The part that is the same at every member.
    #[must_use]
    pub const fn group(&self) -> &GroupView {
        &self.group
    }

    /// The duties of this replica.
    #[must_use]
    pub const fn duties(&self) -> Duties {
        self.duties
    }

    /// The member that takes writes. It ships the files, where files are shipped.
    #[must_use]
    pub fn writer(&self) -> ReplicaId {
        self.group.writer()
    }

    /// The member that answers reads.
    #[must_use]
    pub fn reader(&self) -> ReplicaId {
        self.group.reader()
    }

    /// The members but this replica, in their order.
    pub fn others(&self) -> impl Iterator<Item = ReplicaId> + '_ {
        self.group.others(self.me)
    }

    /// Whether all members share one tree. Then edits have the same numbers and files the same
    /// bytes everywhere, and a member that has a file can give it to the others.
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

    /// Whether this replica alone reads its log. Such a log may end where a flush has put
    /// everything into files, and need not say what only other readers would have to know.
    #[must_use]
    pub const fn log_is_private(&self) -> bool {
        matches!(self.group.log, LogKind::Private)
    }

    /// Checks the invariants of every view.
    fn invariants(&self) {
        let Duties { append, compact, ship, receive, log_edits, .. } = self.duties;
        assert!(self.group.place_of(self.me).is_some(), "{} has no duties in its view", self.me);
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
    use gabion_base::GroupId;

    fn view(count: u32, compaction: CompactionMode, me: u32) -> View {
        let founders: Vec<_> = (1..=count).map(ReplicaId).collect();
        let log = if count == 1 { LogKind::Private } else { LogKind::Shared };
        let group = GroupView::founding(GroupId(1), &founders, log);
        View::new(compaction, group, ReplicaId(me))
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

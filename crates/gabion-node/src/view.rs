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
use gabion_base::{ConfigNumber, ReplicaId};
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
    is_member: bool,
    has_one_tree: bool,
    has_too_few: bool,
}

impl View {
    /// The view of a replica of a group in chain replication: the first member takes writes and the
    /// last full one answers reads (RubbleDB §4.1). A replica that is no member has no duties. A
    /// view with the number zero has no members: what it names is only where the group began.
    #[must_use]
    pub fn new(compaction: CompactionMode, group: GroupView, me: ReplicaId) -> Self {
        let has_one_tree = compaction == CompactionMode::Primary;
        let is_member = group.config > ConfigNumber::ZERO && group.place_of(me).is_some();
        let append = is_member && group.writer() == me;
        let is_shared = group.log == LogKind::Shared;
        let duties = Duties {
            append,
            compact: append || (is_member && !has_one_tree),
            ship: append && has_one_tree && is_shared,
            receive: is_member && !append && has_one_tree,
            serve_reads: is_member && group.reader() == me,
            log_edits: has_one_tree && is_shared,
        };
        let has_too_few = group.too_few().is_some();
        let view = Self { me, group, duties, is_member, has_one_tree, has_too_few };
        view.invariants();
        view
    }

    /// Whether this replica is a member. One that is not keeps all that it has as it is.
    #[must_use]
    pub const fn is_member(&self) -> bool {
        self.is_member
    }

    /// Whether this replica has all that the group has, as a full member.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.is_member && self.group.has_full(self.me)
    }

    /// Whether this replica is a member that has everything and does not count for now: it keeps
    /// what it has, and is not filled.
    #[must_use]
    pub fn is_kept(&self) -> bool {
        self.is_member && self.group.keeps(self.me)
    }

    /// Whether the group has too few full members: nothing at all is appended then.
    #[must_use]
    pub const fn has_too_few(&self) -> bool {
        self.has_too_few
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

    /// The other full members, in their order. Nothing waits for those that are not.
    pub fn others_full(&self) -> impl Iterator<Item = ReplicaId> + '_ {
        let others = self.group.full().map(|member| member.replica);
        others.filter(|member| *member != self.me)
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
        let is_writer = self.is_member && self.writer() == self.me;
        assert_eq!(append, is_writer, "one member takes writes");
        assert!(!(ship && receive), "a member that ships its files receives none");
        assert_eq!(
            compact || receive,
            self.is_member,
            "files come from somewhere at members alone"
        );
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
    fn a_replica_that_is_left_out_has_no_duties_and_one_that_is_filled_does_not_serve() {
        let founders = [ReplicaId(1), ReplicaId(2), ReplicaId(3)];
        let mut group = GroupView::founding(GroupId(1), &founders, LogKind::Shared);
        group.members[2].is_full = false;
        let view = |group: &GroupView, mode, me| View::new(mode, group.clone(), ReplicaId(me));
        let all = |group: &GroupView, mode| {
            (1..5).map(|me| duties(&view(group, mode, me))).collect::<Vec<_>>()
        };
        let modes = [CompactionMode::Primary, CompactionMode::EveryReplica];
        assert_eq!(all(&group, modes[0]), ["acs--l", "---rvl", "---r-l", "-----l"]);
        assert_eq!(all(&group, modes[1]), ["ac----", "-c--v-", "-c----", "------"]);
        assert!(view(&group, modes[0], 3).is_member() && !view(&group, modes[0], 3).is_full());
        // Nothing is known of the members under the number zero.
        group.config = ConfigNumber::ZERO;
        assert_eq!(all(&group, modes[0]), ["-----l"; 4]);
        assert!(view(&group, modes[0], 1).has_too_few(), "of three that it needs it has two");
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

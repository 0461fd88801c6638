//! The next view of a group: a pure function of what the store has and of who has failed.
//!
//! ```text
//!   record, verdicts ─► full members that may stay ─► enough? ─┬─ lost:     without the failed
//!                                                     │        ├─ leaving:  without it
//!                                                     │        ├─ filled:   full, and last
//!                                                     │        └─ newcomer: last, to be filled
//!                                                     └─ too few: writes wait for the failed, but
//!                                                                 not for those without a disk
//! ```
//!
//! A later view relies on *trusted* members alone: those that were full in every view since one in
//! which they are known to have had everything. A member is known to, once the first record of a
//! term of a view in which it is full is in its log, as the log before that is everything that was
//! acknowledged. So a member that was filled counts from then on; until then the next view takes it
//! back, and one that a view left out does not count, whether that view took effect or not.
//!
//! A seat that a member left by failing is its own for a while: a spare takes it when the member
//! has stayed away for too long, when its disk is gone, or when writes wait for a member.
//!
//! The order of the members stays, so that the successor of a head is the next in the chain, and
//! the one before a tail is the next tail (RubbleDB §4.1, van Renesse and Schneider 2004 §3).

use crate::record::GroupRecord;
use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use gabion_base::ReplicaId;
use gabion_replication::{GroupView, Member};

/// The facts about a group's replicas that a plan rests on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known<'a> {
    /// Members that have failed.
    pub failed: &'a [ReplicaId],
    /// Those of them that will never be back: their disks are gone.
    pub gone: &'a [ReplicaId],
    /// Full members whose log has the first record of the newest view's term.
    pub founded: &'a [ReplicaId],
    /// Members, not full, that have all that the group has.
    pub filled: &'a [ReplicaId],
    /// Replicas that are no members, run and could be filled.
    pub newcomers: &'a [Member],
    /// Preferred replicas that do not run, and may be back in time.
    pub awaited: &'a [ReplicaId],
}

/// A change of membership.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// These members go.
    Lose(Vec<ReplicaId>),
    /// This one is full from now on.
    Fill(ReplicaId),
    /// This one is to be filled.
    Take(ReplicaId),
    /// This one goes by an operator's word.
    Leave(ReplicaId),
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lose(members) => {
                let names: Vec<String> =
                    members.iter().map(|member| alloc::format!("{}", member.get())).collect();
                write!(f, "without replica {}", names.join(", "))
            }
            Self::Fill(member) => write!(f, "replica {} is full", member.get()),
            Self::Take(member) => write!(f, "replica {} is being filled", member.get()),
            Self::Leave(member) => write!(f, "replica {} leaves, as it was told to", member.get()),
        }
    }
}

/// Whether another view follows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Plan {
    /// This record, with another intended view, by these changes.
    Next(Box<GroupRecord>, Vec<Change>),
    /// The members stay as they are.
    Keep,
    /// So many full members would be left, fewer than the group needs to take writes.
    TooFew(usize),
}

/// The next view, if there is to be one.
#[must_use]
pub fn next(record: &GroupRecord, known: &Known<'_>) -> Plan {
    let newest = record.newest();
    let trusted: Vec<ReplicaId> = newest
        .full()
        .map(|member| member.replica)
        .filter(|id| record.trusted.contains(id) || known.founded.contains(id))
        .collect();
    let is_failed = |member: &Member| known.failed.contains(&member.replica);
    let staying = trusted.iter().filter(|member| !known.failed.contains(member)).count();
    let lost: Vec<ReplicaId> =
        newest.members.iter().filter(|member| is_failed(member)).map(|m| m.replica).collect();
    let is_enough = staying >= usize::from(newest.members_min);
    // Where too few would be left, a failed one stays in the view and writes wait for it: but not
    // for one that never comes, as long as another has everything.
    let is_gone = |replica: &ReplicaId| known.gone.contains(replica);
    let has_heir = trusted.iter().any(|member| !is_gone(member));
    let goes = |member: &Member| {
        let is_vain = has_heir && is_gone(&member.replica);
        is_failed(member) && (is_enough || is_vain || !member.is_full)
    };
    let mut members: Vec<Member> =
        newest.members.iter().filter(|member| !goes(member)).cloned().collect();
    let mut changes = Vec::new();
    if members.len() < newest.members.len() {
        let gone = newest.members.iter().filter(|member| goes(member)).map(|m| m.replica);
        changes.push(Change::Lose(gone.collect()));
        // A member that was made full by a view that never began may lack what the others have.
        let may_lack = |member: &Member| member.is_full && !trusted.contains(&member.replica);
        members.iter_mut().filter(|m| may_lack(m)).for_each(|m| m.is_full = false);
        members.sort_by_key(|member| !member.is_full);
    } else if record.intended.is_none() {
        let left = leave(record, known, &mut members);
        changes.extend(left.or_else(|| add(record, known, &mut members)));
    }
    if changes.is_empty() {
        return if lost.is_empty() || is_enough { Plan::Keep } else { Plan::TooFew(staying) };
    }
    if members.iter().all(|member| !member.is_full) {
        // Nobody is known to have everything: nothing is decided on that ground.
        return Plan::TooFew(0);
    }
    let mut next = record.clone();
    next.preferred = preferred(record, known, &members, &changes);
    // One that was filled just now is not among them, and no longer one that goes.
    let is_full = |id: &ReplicaId| members.iter().any(|m| m.replica == *id && m.is_full);
    next.trusted = trusted.into_iter().filter(is_full).collect();
    next.intended = Some(GroupView { config: newest.config.next(), members, ..newest.clone() });
    Plan::Next(Box::new(next), changes)
}

/// The replicas that come first where a member is missing, after these changes.
fn preferred(
    record: &GroupRecord,
    known: &Known<'_>,
    members: &[Member],
    changes: &[Change],
) -> Vec<ReplicaId> {
    let mut next = record.clone();
    for change in changes {
        let Change::Lose(lost) = change else { continue };
        let was_full = |id: &&ReplicaId| record.newest().full().any(|m| m.replica == **id);
        let is_awaited =
            |id: &&ReplicaId| !known.gone.contains(*id) && !record.leaving.contains(*id);
        lost.iter().filter(was_full).filter(is_awaited).for_each(|id| next.prefer(*id, false));
    }
    // Of a group that is whole nobody is missing any more.
    let full = members.iter().filter(|m| m.is_full && !record.leaving.contains(&m.replica)).count();
    if full >= usize::from(record.wanted) { Vec::new() } else { next.preferred }
}

/// Lets a member go that is to leave, once the others are enough without it.
fn leave(record: &GroupRecord, known: &Known<'_>, members: &mut Vec<Member>) -> Option<Change> {
    let leaves = |member: &Member| record.leaving.contains(&member.replica);
    let stays = |member: &&Member| {
        member.is_full && !leaves(member) && !known.failed.contains(&member.replica)
    };
    let staying = members.iter().filter(stays).count();
    let enough = usize::from(record.wanted.max(record.newest().members_min));
    let goes = |member: &Member| leaves(member) && (!member.is_full || staying >= enough);
    let at = members.iter().position(goes)?;
    Some(Change::Leave(members.remove(at).replica))
}

/// Adds one member at a time: first makes full who was filled, as the group then has what it wants.
fn add(record: &GroupRecord, known: &Known<'_>, members: &mut Vec<Member>) -> Option<Change> {
    let is_failed = |member: &Member| known.failed.contains(&member.replica);
    let is_filled = |m: &Member| !m.is_full && known.filled.contains(&m.replica) && !is_failed(m);
    if let Some(at) = members.iter().position(is_filled) {
        let mut member = members.remove(at);
        let replica = member.replica;
        member.is_full = true;
        let full = members.iter().filter(|member| member.is_full).count();
        members.insert(full, member);
        return Some(Change::Fill(replica));
    }
    let wanted = usize::from(record.wanted).min(GroupView::MEMBERS_MAX);
    let leaves = |replica: &ReplicaId| record.leaving.contains(replica);
    let lasting = members.iter().filter(|m| !is_failed(m) && !leaves(&m.replica)).count();
    if lasting >= wanted || members.len() >= GroupView::MEMBERS_MAX {
        return None;
    }
    let newcomer = newcomer(record, known, members, wanted - lasting)?;
    members.push(Member { is_full: false, ..newcomer.clone() });
    Some(Change::Take(newcomer.replica))
}

/// The next to be filled, where so many are missing.
fn newcomer<'a>(
    record: &GroupRecord,
    known: &Known<'a>,
    members: &[Member],
    missing: usize,
) -> Option<&'a Member> {
    let may_come = |member: &&Member| {
        let id = member.replica;
        members.iter().all(|old| old.replica != id) && !record.leaving.contains(&id)
    };
    let mut preferred = record.preferred.iter();
    let named = |id: &ReplicaId| known.newcomers.iter().filter(may_come).find(|m| m.replica == *id);
    if let Some(first) = preferred.find_map(named) {
        return Some(first);
    }
    let serves = |member: &&Member| member.is_full && !known.failed.contains(&member.replica);
    let serving = members.iter().filter(serves).count();
    let takes_writes = serving >= usize::from(record.newest().members_min);
    if takes_writes && known.awaited.len() >= missing {
        return None;
    }
    known.newcomers.iter().find(may_come)
}

/// The record with another writer in its next view: a member that is full in the complete one. The
/// others keep their order.
///
/// # Panics
/// While a view is being carried out, or when the member is not full.
#[must_use]
pub fn hand_over(record: &GroupRecord, to: ReplicaId) -> GroupRecord {
    assert!(record.intended.is_none(), "one change at a time");
    let mut next = record.clone();
    let mut view = record.complete.clone();
    let at = view.members.iter().position(|member| member.replica == to && member.is_full);
    assert!(at.is_some(), "only a full member takes writes");
    view.members[..=at.unwrap_or(0)].rotate_right(1);
    view.config = view.config.next();
    next.intended = Some(view);
    next
}

#[cfg(test)]
mod tests {
    use super::*;
    use gabion_base::{ConfigNumber, GroupId, LogKind};

    fn ids(list: &[u32]) -> Vec<ReplicaId> {
        list.iter().map(|id| ReplicaId(*id)).collect()
    }

    fn record(members: &[u32], members_min: u8) -> GroupRecord {
        let mut view = GroupView::founding(GroupId(1), &ids(members), LogKind::Shared);
        view.members_min = members_min;
        GroupRecord::founding(view)
    }

    /// The members of a view in order; one that is not full in brackets.
    fn shape(view: &GroupView) -> String {
        let name = |m: &Member| match m.is_full {
            true => alloc::format!("{}", m.replica.get()),
            false => alloc::format!("({})", m.replica.get()),
        };
        view.members.iter().map(name).collect::<Vec<_>>().join(" ")
    }

    #[derive(Clone, Default)]
    struct World {
        failed: Vec<ReplicaId>,
        gone: Vec<ReplicaId>,
        founded: Vec<ReplicaId>,
        filled: Vec<ReplicaId>,
        newcomers: Vec<Member>,
        awaited: Vec<ReplicaId>,
    }

    impl World {
        fn next(&self, record: &GroupRecord) -> Plan {
            let Self { failed, gone, founded, filled, newcomers, awaited } = self;
            next(record, &Known { failed, gone, founded, filled, newcomers, awaited })
        }

        /// The next view's shape, which is intended from now on.
        fn intend(&self, record: &mut GroupRecord) -> String {
            match self.next(record) {
                Plan::Next(next, _) => {
                    next.validate().unwrap();
                    assert_eq!(next.newest().config, record.newest().config.next());
                    *record = *next;
                    shape(record.newest())
                }
                other => alloc::format!("{other:?}"),
            }
        }
    }

    fn complete(record: &mut GroupRecord) {
        record.complete = record.intended.take().unwrap();
        record.trusted = record.complete.full().map(|member| member.replica).collect();
    }

    #[test]
    fn the_successor_of_each_member_is_its_neighbour() {
        for (failed, expected) in [(1, "2 3"), (2, "1 3"), (3, "1 2")] {
            let world = World { failed: ids(&[failed]), ..World::default() };
            assert_eq!(world.intend(&mut record(&[1, 2, 3], 2)), expected);
        }
        assert_eq!(World::default().intend(&mut record(&[1, 2, 3], 2)), "Keep");
    }

    #[test]
    fn below_the_minimum_the_members_stay_and_writes_wait() {
        let world = World { failed: ids(&[1, 2]), ..World::default() };
        assert_eq!(world.next(&record(&[1, 2, 3], 2)), Plan::TooFew(1));
        assert_eq!(world.intend(&mut record(&[1, 2, 3], 1)), "3");
        let world = World { failed: ids(&[2]), ..World::default() };
        assert_eq!(world.next(&record(&[1, 2], 2)), Plan::TooFew(1), "any loss stops two");
    }

    #[test]
    fn a_newcomer_is_filled_before_it_counts_and_is_the_tail_then() {
        let mut record = record(&[1, 2, 3], 2);
        let mut world = World { failed: ids(&[1]), ..World::default() };
        assert_eq!(world.intend(&mut record), "2 3");
        world.newcomers = alloc::vec![Member::new(ReplicaId(1))];
        world.failed.clear();
        assert_eq!(world.intend(&mut record), "Keep", "one change at a time");
        complete(&mut record);
        assert_eq!(world.intend(&mut record), "2 3 (1)");
        complete(&mut record);
        assert_eq!(world.intend(&mut record), "Keep", "it is being filled");
        world.filled = ids(&[1]);
        assert_eq!(world.intend(&mut record), "2 3 1");
        complete(&mut record);
        world.newcomers = alloc::vec![Member::new(ReplicaId(4))];
        assert_eq!(world.intend(&mut record), "Keep", "three are wanted");
    }

    #[test]
    fn a_member_that_a_view_left_out_or_made_full_in_vain_is_not_trusted() {
        // The view without 1 may be in effect, and may have acknowledged what 1 lacks.
        let mut record = record(&[1, 2, 3], 1);
        let world = World { failed: ids(&[1]), ..World::default() };
        assert_eq!(world.intend(&mut record), "2 3");
        let world = World { failed: ids(&[2]), ..World::default() };
        assert_eq!(world.intend(&mut record), "3", "1 is back, and does not count");
        // A filled member counts from its view's completion on.
        let mut record = self::record(&[2, 3], 2);
        record.wanted = 3;
        let mut world =
            World { newcomers: alloc::vec![Member::new(ReplicaId(1))], ..World::default() };
        assert_eq!(world.intend(&mut record), "2 3 (1)");
        complete(&mut record);
        world.filled = ids(&[1]);
        assert_eq!(world.intend(&mut record), "2 3 1");
        world.failed = ids(&[2]);
        assert_eq!(world.next(&record), Plan::TooFew(1), "1 is not trusted yet");
        world.founded = ids(&[1]);
        assert_eq!(world.intend(&mut record.clone()), "3 1", "the view has begun at 1");
        world.founded = ids(&[3]);
        assert_eq!(world.next(&record), Plan::TooFew(1), "that 3 has it says nothing of 1");
        complete(&mut record);
        assert_eq!(world.intend(&mut record), "3 1");
        assert_eq!(record.trusted, ids(&[3, 1]));
    }

    #[test]
    fn a_lost_disk_is_not_waited_for() {
        let mut record = record(&[1, 2], 2);
        let mut world = World { failed: ids(&[2]), gone: ids(&[2]), ..World::default() };
        assert_eq!(world.intend(&mut record), "1");
        assert!(record.newest().too_few().is_some(), "it takes no writes");
        complete(&mut record);
        world.newcomers = alloc::vec![Member::new(ReplicaId(2))];
        (world.failed, world.gone) = (Vec::new(), Vec::new());
        assert_eq!(world.intend(&mut record), "1 (2)");
        complete(&mut record);
        world.filled = ids(&[2]);
        assert_eq!(world.intend(&mut record), "1 2");
        // Nobody has everything where all disks are gone: an operator is needed.
        let world = World { failed: ids(&[1, 2]), gone: ids(&[1, 2]), ..World::default() };
        assert_eq!(world.next(&self::record(&[1, 2], 1)), Plan::TooFew(0));
    }

    #[test]
    fn a_group_below_its_minimum_fills_a_third_to_get_above() {
        let mut record = record(&[1, 2], 2);
        record.wanted = 2;
        let mut world = World {
            failed: ids(&[2]),
            newcomers: alloc::vec![Member::new(ReplicaId(5))],
            ..World::default()
        };
        assert_eq!(world.intend(&mut record), "1 2 (5)");
        complete(&mut record);
        world.filled = ids(&[5]);
        assert_eq!(world.intend(&mut record), "1 2 5");
        complete(&mut record);
        assert_eq!(world.intend(&mut record), "1 5");
        assert_eq!(record.newest().config, ConfigNumber(4));
    }

    fn spares(list: &[u32]) -> Vec<Member> {
        list.iter().map(|id| Member::new(ReplicaId(*id))).collect()
    }

    #[test]
    fn a_spare_takes_the_seat_of_a_member_that_is_no_longer_awaited() {
        let mut record = record(&[1, 2, 3], 2);
        let mut world = World { failed: ids(&[3]), newcomers: spares(&[4]), ..World::default() };
        assert_eq!(world.intend(&mut record), "1 2");
        assert_eq!(record.preferred, ids(&[3]));
        complete(&mut record);
        (world.failed, world.awaited) = (Vec::new(), ids(&[3]));
        assert_eq!(world.intend(&mut record), "Keep", "3 may be back in time");
        let mut early = record.clone();
        world.newcomers = spares(&[3, 4]);
        world.awaited.clear();
        assert_eq!(world.intend(&mut early), "1 2 (3)", "and is taken then");
        world.newcomers = spares(&[4]);
        assert_eq!(world.intend(&mut record), "1 2 (4)");
        complete(&mut record);
        (world.newcomers, world.filled) = (spares(&[3]), ids(&[4]));
        assert_eq!(world.intend(&mut record), "1 2 4", "3 is the spare now");
        assert!(record.preferred.is_empty(), "nobody is missing");
    }

    #[test]
    fn a_spare_comes_at_once_for_a_lost_disk_and_where_writes_wait() {
        let mut record = record(&[1, 2, 3], 2);
        let (failed, gone) = (ids(&[3]), ids(&[3]));
        let mut world = World { failed, gone, newcomers: spares(&[4]), ..World::default() };
        assert_eq!(world.intend(&mut record), "1 2");
        assert!(record.preferred.is_empty(), "its seat is nobody's");
        complete(&mut record);
        (world.failed, world.gone) = (Vec::new(), Vec::new());
        assert_eq!(world.intend(&mut record), "1 2 (4)");
        // Of three, two are missed: below the minimum nobody is waited for.
        let mut record = self::record(&[1, 2, 3], 2);
        let mut world = World { failed: ids(&[3]), newcomers: spares(&[4]), ..World::default() };
        assert_eq!(world.intend(&mut record), "1 2");
        complete(&mut record);
        (world.failed, world.awaited) = (ids(&[2]), ids(&[3]));
        assert_eq!(world.intend(&mut record), "1 2 (4)");
        // Two seats are free, and one of their members may be back.
        let mut record = self::record(&[1, 2, 3, 4], 2);
        let mut world = World { failed: ids(&[3, 4]), newcomers: spares(&[5]), ..World::default() };
        assert_eq!(world.intend(&mut record), "1 2");
        complete(&mut record);
        (world.failed, world.awaited) = (Vec::new(), ids(&[3]));
        assert_eq!(world.intend(&mut record), "1 2 (5)");
        complete(&mut record);
        world.newcomers = spares(&[6]);
        assert_eq!(world.intend(&mut record), "Keep", "the other seat is kept for 3");
    }

    #[test]
    fn a_member_that_is_to_leave_goes_once_the_others_are_enough() {
        let mut record = record(&[1, 2, 3], 2);
        record.leave(ReplicaId(1)).unwrap();
        let mut world = World { newcomers: spares(&[4]), ..World::default() };
        assert_eq!(world.intend(&mut record), "1 2 3 (4)", "replaced: first the other is filled");
        complete(&mut record);
        assert_eq!(world.intend(&mut record), "Keep");
        world.filled = ids(&[4]);
        assert_eq!(world.intend(&mut record), "1 2 3 4");
        complete(&mut record);
        assert_eq!(world.intend(&mut record), "2 3 4");
        complete(&mut record);
        world.newcomers = spares(&[1]);
        assert_eq!(world.intend(&mut record), "Keep");
        // Fewer are wanted where one is removed.
        let mut record = self::record(&[1, 2, 3], 2);
        record.wanted = 2;
        record.leave(ReplicaId(2)).unwrap();
        assert_eq!(World::default().intend(&mut record), "1 3");
        complete(&mut record);
        let world = World { newcomers: spares(&[2]), ..World::default() };
        record.wanted = 3;
        assert_eq!(world.intend(&mut record), "Keep", "it is not taken again");
        let world = World { failed: ids(&[3]), ..World::default() };
        record.leave(ReplicaId(1)).unwrap();
        assert_eq!(world.next(&record), Plan::TooFew(1), "it stays while it is needed");
    }

    #[test]
    fn writes_are_handed_to_another_full_member() {
        for (to, expected) in [(2, "2 1 3"), (3, "3 1 2"), (1, "1 2 3")] {
            let next = hand_over(&record(&[1, 2, 3], 2), ReplicaId(to));
            next.validate().unwrap();
            assert_eq!((shape(next.newest()).as_str(), next.newest().config.get()), (expected, 2));
        }
    }
}

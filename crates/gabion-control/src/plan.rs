//! The next view of a group: a pure function of what the store has and of who has failed.
//!
//! ```text
//!   record, verdicts ─► full members that may stay ─► enough? ─┬─ lost:     without the failed
//!                                                     │        ├─ leaving:  without it
//!                                                     │        ├─ filled:   full, and last
//!                                                     │        └─ newcomer: last, to be filled
//!                                                     └─ too few: writes wait for the failed, but
//!                                                        │        not for those without a disk
//!                                                        └─ one can answer alone: they are kept
//! ```
//!
//! A later view relies on *trusted* members alone: those that were full in every view since one in
//! which they are known to have had everything. A member is known to, once the first record of a
//! term of a view in which it is full is in its log, as the log before that is everything that was
//! acknowledged. So a member that was filled counts from then on; until then the next view takes it
//! back, and one that a view left out does not count, whether that view took effect or not.
//!
//! Below the minimum the failed members are *kept*, if a survivor can answer reads without them:
//! they are not full in the next view, and still trusted. One that is full alone answers without
//! anybody's promise, and so nothing goes on without it: it may be paused. It is a *witness*: it
//! was full in each view that may be in effect somewhere, and ends it by taking the next one. Every
//! view has a witness as a full member, unless the disks of all are gone. A view that was complete
//! has no older one beside it, and all its full members are witnesses.
//!
//! A seat that a member left by failing is its own for a while: a spare takes it when the member
//! has stayed away for too long, when its disk is gone, or when writes wait for a member.
//!
//! The order of the members stays, so that the successor of a head is the next in the chain, and
//! the one before a tail is the next tail (RubbleDB §4.1, van Renesse and Schneider 2004 §3).

use crate::detector::{Verdict, in_words};
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
    /// Full members that miss one that has failed, and whose log has all that was acknowledged and
    /// nothing else, as far as they know: reads could be answered there.
    pub survivors: &'a [ReplicaId],
    /// Members that are kept and report from the newest view. One that has not is not back yet,
    /// however long it has been silent: each controller counts by itself.
    pub back: &'a [ReplicaId],
}

impl Known<'_> {
    /// Whether a member of this view can be full in the next one.
    fn has_here(&self, newest: &GroupView, id: &ReplicaId) -> bool {
        !self.failed.contains(id) && (newest.has_full(*id) || self.back.contains(id))
    }
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
    /// Too few are left, and reads go on without these, which keep what they have.
    Await(Vec<ReplicaId>),
    /// These were waited for and are back.
    Return(Vec<ReplicaId>),
}

/// Replicas in a sentence.
pub(crate) fn names(members: &[ReplicaId]) -> String {
    let names: Vec<String> = members.iter().map(|it| alloc::format!("{}", it.get())).collect();
    names.join(", ")
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lose(members) => write!(f, "without replica {}", names(members)),
            Self::Await(members) => {
                write!(f, "too few are left to take writes: waits for replica {}", names(members))
            }
            Self::Return(members) => write!(f, "replica {} is back", names(members)),
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
    /// One of these may still answer reads by itself, so nothing goes on without one of them.
    WaitFor(Vec<ReplicaId>),
}

/// A group's full and kept members, as the next view looks at them.
struct Standing {
    /// Those that have all that was acknowledged, but for an end of the log that another of them
    /// has, in the order of the view.
    trusted: Vec<ReplicaId>,
    /// Those of them that were full in every view that may be in effect anywhere.
    witnesses: Vec<ReplicaId>,
    /// The witnesses are gone for good, and with them whoever may answer reads.
    has_no_reader: bool,
}

impl Standing {
    fn of(record: &GroupRecord, known: &Known<'_>) -> Self {
        let newest = record.newest();
        let has_begun = |id: &ReplicaId| known.founded.contains(id);
        // In a view that waits all full members are by then, and a member is kept if it is trusted.
        let waits_with_all = newest.waits() && newest.full().any(|m| has_begun(&m.replica));
        let is_trusted = |member: &&Member| {
            let id = &member.replica;
            record.trusted.contains(id)
                || (member.is_full && has_begun(id))
                || (member.is_kept && waits_with_all)
        };
        let counted = newest.members.iter().filter(|member| member.is_full || member.is_kept);
        let trusted: Vec<ReplicaId> = counted.filter(is_trusted).map(|m| m.replica).collect();
        let was_always_full = |id: &&ReplicaId| {
            newest.has_full(**id) && (!record.kept.contains(*id) || has_begun(id))
        };
        let witnesses: Vec<ReplicaId> = trusted.iter().filter(was_always_full).copied().collect();
        let is_gone = |id: &ReplicaId| known.gone.contains(id);
        let has_no_reader = !witnesses.is_empty() && witnesses.iter().all(is_gone);
        Self { trusted, witnesses, has_no_reader }
    }
}

/// A member's part in the next view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Goes,
    Full,
    Kept,
    Filled,
}

/// The parts of a view's members in the next one, so that the failed do not hold it up.
fn parts(record: &GroupRecord, known: &Known<'_>, standing: &Standing) -> Vec<Part> {
    let newest = record.newest();
    let Standing { trusted, has_no_reader, .. } = standing;
    let has_failed = |id: &ReplicaId| known.failed.contains(id);
    let is_gone = |id: &ReplicaId| known.gone.contains(id);
    let is_here = |id: &ReplicaId| known.has_here(newest, id);
    let staying = trusted.iter().filter(|id| is_here(id)).count();
    let are_all_back = newest.waits() && trusted.iter().all(|id| is_here(id) || is_gone(id));
    // Of several that come back at once none is left out.
    let is_coming = trusted.iter().any(|id| !has_failed(id) && !is_here(id));
    let is_enough = staying >= usize::from(newest.members_min) && !is_coming;
    let goes_on = is_enough || (are_all_back && staying > 0);
    // Nobody waits for one that never comes, as long as another has everything.
    let has_heir = trusted.iter().any(|id| !is_gone(id));
    // Reads go on without those that are out, if one that misses them can answer alone.
    let left = newest.full().map(|m| m.replica).filter(|id| trusted.contains(id));
    let last = left.filter(|id| !has_failed(id)).last();
    let has_survivor = last.is_some_and(|id| known.survivors.contains(&id));
    let is_lone = has_survivor || (*has_no_reader && staying > 0);
    let part = |member: &Member| {
        let id = &member.replica;
        let (is_out, is_trusted) = (has_failed(id), trusted.contains(id));
        match (member.is_full, member.is_kept) {
            _ if is_out && (goes_on || (has_heir && is_gone(id))) => Part::Goes,
            (false, false) if is_out => Part::Goes,
            (false, false) => Part::Filled,
            _ if goes_on && is_trusted => Part::Full,
            _ if goes_on => Part::Filled,
            (_, true) if *has_no_reader && is_here(id) && is_trusted => Part::Full,
            (_, true) => Part::Kept,
            _ if !is_lone || !is_out => Part::Full,
            _ if is_trusted => Part::Kept,
            _ => Part::Goes,
        }
    };
    newest.members.iter().map(part).collect()
}

/// The members of the next view without the failed, and what changes, if anything does.
fn without_failed(
    newest: &GroupView,
    parts: &[Part],
    standing: &Standing,
) -> Option<(Vec<Member>, Vec<Change>)> {
    let with = |wanted: fn(&Member, Part) -> bool| -> Vec<ReplicaId> {
        let all = newest.members.iter().zip(parts);
        all.filter(|(member, part)| wanted(member, **part)).map(|(m, _)| m.replica).collect()
    };
    let lost = with(|_, part| part == Part::Goes);
    let kept = with(|member, part| part == Part::Kept && !member.is_kept);
    let back = with(|member, part| part == Part::Full && !member.is_full);
    let mut changes = Vec::new();
    changes.extend((!lost.is_empty()).then_some(Change::Lose(lost)));
    changes.extend((!kept.is_empty()).then_some(Change::Await(kept)));
    changes.extend((!back.is_empty()).then_some(Change::Return(back)));
    if changes.is_empty() {
        return None;
    }
    let mut members = Vec::with_capacity(newest.members.len());
    for (member, part) in newest.members.iter().zip(parts) {
        // A member that was made full by a view that never began may lack what the others have.
        let has_all = standing.trusted.contains(&member.replica);
        let is_full = *part == Part::Full && has_all;
        let is_kept = *part == Part::Kept && has_all;
        let next = Member { is_full, is_kept, ..member.clone() };
        members.extend((*part != Part::Goes).then_some(next));
    }
    members.sort_by_key(|member| !member.is_full);
    Some((members, changes))
}

/// The next view, if there is to be one.
#[must_use]
pub fn next(record: &GroupRecord, known: &Known<'_>) -> Plan {
    let newest = record.newest();
    let standing = Standing::of(record, known);
    let has_failed = |id: &ReplicaId| known.failed.contains(id);
    let staying = standing.trusted.iter().filter(|id| known.has_here(newest, id)).count();
    let parts = parts(record, known, &standing);
    let (members, changes) = match without_failed(newest, &parts, &standing) {
        Some(next) => next,
        None if record.intended.is_none() => {
            let mut members = newest.members.clone();
            let left = leave(record, known, &mut members);
            let changes = left.or_else(|| add(record, known, &mut members));
            (members, changes.into_iter().collect())
        }
        None => (Vec::new(), Vec::new()),
    };
    if changes.is_empty() {
        let is_enough = staying >= usize::from(newest.members_min);
        let is_whole = !newest.waits() && !newest.members.iter().any(|m| has_failed(&m.replica));
        return if is_whole || is_enough { Plan::Keep } else { Plan::TooFew(staying) };
    }
    if members.iter().all(|member| !member.is_full) {
        // Nobody is known to have everything: nothing is decided on that ground.
        return Plan::TooFew(0);
    }
    let mut next = record.clone();
    next.preferred = preferred(record, known, &members, &changes);
    // One that was filled just now is not among them, and no longer one that goes.
    let of = |id: &ReplicaId| members.iter().find(|member| member.replica == *id);
    let counts = |id: &ReplicaId| of(id).is_some_and(|member| member.is_full || member.is_kept);
    next.trusted = standing.trusted.iter().copied().filter(counts).collect();
    let is_witness = |id: &ReplicaId| {
        let is_full = of(id).is_some_and(|member| member.is_full);
        is_full && (standing.has_no_reader || standing.witnesses.contains(id))
    };
    next.kept = next.trusted.iter().copied().filter(|id| !is_witness(id)).collect();
    next.given_up.retain(|id| of(id).is_some());
    if next.kept.len() == next.trusted.len() {
        return Plan::WaitFor(standing.witnesses);
    }
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
        let newest = record.newest();
        let was_full = |id: &&ReplicaId| newest.has_full(**id) || newest.keeps(**id);
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

/// The view after two that have one number, if there can be one: members that both have as full
/// ones have all that either acknowledged.
pub(crate) fn after_both(ours: &GroupView, theirs: &GroupView) -> Option<GroupView> {
    let has_all = |replica| theirs.has_full(replica) || theirs.keeps(replica);
    let mut next = ours.clone();
    for member in &mut next.members {
        let had_all = member.is_full || member.is_kept;
        member.is_full &= theirs.has_full(member.replica);
        member.is_kept = had_all && !member.is_full && has_all(member.replica);
    }
    next.members.sort_by_key(|member| !member.is_full);
    next.config = ours.config.next();
    next.validate().ok().map(|()| next)
}

/// A change, and why it is made.
pub(crate) fn in_a_sentence(change: &Change, verdicts: &[(ReplicaId, Verdict)]) -> String {
    let (Change::Lose(members) | Change::Await(members)) = change else {
        return alloc::format!("{change}");
    };
    let why = |member: &ReplicaId| {
        let found = verdicts.iter().find(|(id, _)| id == member);
        let verdict = found.map_or(Verdict::Well, |(_, verdict)| *verdict);
        match verdict {
            Verdict::Silent(ms) => {
                alloc::format!("replica {}: silent for {}", member.get(), in_words(ms))
            }
            verdict => alloc::format!("replica {}: {verdict}", member.get()),
        }
    };
    let reasons: Vec<String> = members.iter().map(why).collect();
    alloc::format!("{change} ({})", reasons.join("; "))
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

    /// The members of a view in order; one that is kept in square brackets, another one that is not
    /// full in round ones.
    fn shape(view: &GroupView) -> String {
        let name = |m: &Member| match (m.is_full, m.is_kept) {
            (true, _) => alloc::format!("{}", m.replica.get()),
            (_, true) => alloc::format!("[{}]", m.replica.get()),
            _ => alloc::format!("({})", m.replica.get()),
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
        survivors: Vec<ReplicaId>,
        /// Those that are kept and do not report from the newest view.
        late: Vec<ReplicaId>,
    }

    impl World {
        fn next(&self, record: &GroupRecord) -> Plan {
            let Self { failed, gone, founded, filled, newcomers, awaited, survivors, late } = self;
            let is_back = |id: &ReplicaId| !failed.contains(id) && !late.contains(id);
            let kept = record.newest().kept().map(|member| member.replica);
            let back: Vec<ReplicaId> = kept.filter(is_back).collect();
            let back = &back[..];
            let known =
                Known { failed, gone, founded, filled, newcomers, awaited, survivors, back };
            next(record, &known)
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
        record.kept.clear();
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

    /// A group of five that needs three, of which 1 to 3 have failed.
    fn five_without_three() -> (GroupRecord, World) {
        let world = World { failed: ids(&[1, 2, 3]), survivors: ids(&[4, 5]), ..World::default() };
        (record(&[1, 2, 3, 4, 5], 3), world)
    }

    /// A group of three that needs two: 3 answers reads, and 1 and 2, which have failed, are kept.
    fn three_that_wait_for_two() -> (GroupRecord, World) {
        let world = World { failed: ids(&[1, 2]), survivors: ids(&[3]), ..World::default() };
        let mut record = record(&[1, 2, 3], 2);
        assert_eq!(world.intend(&mut record), "3 [1] [2]");
        (record, world)
    }

    #[test]
    fn below_the_minimum_a_survivor_answers_reads_and_the_failed_are_kept() {
        let (mut record, mut world) = three_that_wait_for_two();
        assert_eq!((&record.trusted, &record.kept), (&ids(&[1, 2, 3]), &ids(&[1, 2])));
        assert!(record.newest().waits() && record.newest().too_few().is_some());
        assert_eq!(world.next(&record), Plan::TooFew(1));
        // It is founded, not complete, and the ones that are out may come back as they are.
        world.founded = ids(&[3]);
        assert_eq!(world.next(&record), Plan::TooFew(1));
        world.failed = ids(&[2]);
        world.late = ids(&[1]);
        assert_eq!(world.next(&record), Plan::TooFew(1), "another controller missed it");
        (world.failed, world.late) = (Vec::new(), ids(&[2]));
        assert_eq!(world.next(&record), Plan::Keep, "2 is about to be here, too");
        (world.failed, world.late) = (ids(&[2]), Vec::new());
        assert_eq!(world.intend(&mut record.clone()), "3 1", "enough");
        world.failed = ids(&[]);
        assert_eq!(world.intend(&mut record), "3 1 2");
        assert_eq!(record.kept, ids(&[1, 2]), "until that is complete");
        complete(&mut record);
        assert_eq!(world.intend(&mut record), "Keep");
    }

    #[test]
    fn without_a_survivor_that_could_answer_nobody_is_kept() {
        let world = World { failed: ids(&[2, 3]), survivors: ids(&[3]), ..World::default() };
        assert_eq!(world.next(&record(&[1, 2, 3], 2)), Plan::TooFew(1), "1 may have more");
        let (record, mut world) = five_without_three();
        world.survivors = ids(&[4]);
        assert_eq!(world.next(&record), Plan::TooFew(2), "5 answers reads");
    }

    #[test]
    fn whoever_may_answer_reads_alone_is_waited_for() {
        let (mut record, mut world) = three_that_wait_for_two();
        world.failed = ids(&[3]);
        assert_eq!(world.next(&record), Plan::WaitFor(ids(&[3])), "it may be paused");
        // A view that takes the others back has not begun, and changes nothing about that.
        let mut begun = record.clone();
        (world.failed, world.survivors) = (Vec::new(), ids(&[1, 2]));
        assert_eq!(world.intend(&mut begun), "3 1 2");
        world.failed = ids(&[3]);
        assert_eq!(world.next(&begun), Plan::WaitFor(ids(&[3])));
        world.failed = ids(&[3, 1]);
        assert_eq!(world.next(&begun), Plan::WaitFor(ids(&[3])));
        world.founded = ids(&[2]);
        assert_eq!(world.intend(&mut begun.clone()), "2 [3] [1]", "it has begun at 3 as well");
        world.failed = ids(&[3]);
        assert_eq!(world.intend(&mut begun), "1 2");
        assert_eq!(begun.kept, ids(&[1]), "that one has not said that it has begun");
        // A disk that is gone answers nothing.
        (world.gone, world.founded) = (ids(&[3]), Vec::new());
        assert_eq!(world.intend(&mut record.clone()), "1 2");
        world.failed = ids(&[1, 2, 3]);
        assert_eq!(world.next(&record), Plan::TooFew(0), "nobody else is there");
        world.failed = ids(&[2, 3]);
        assert_eq!(world.intend(&mut record), "1 [2]");
        assert_eq!(record.kept, ids(&[2]));
    }

    #[test]
    fn of_two_survivors_one_is_enough_to_go_on() {
        let (mut record, mut world) = five_without_three();
        assert_eq!(world.intend(&mut record), "4 5 [1] [2] [3]");
        world.failed = ids(&[1, 2, 3, 5]);
        let mut fewer = record.clone();
        assert_eq!(world.intend(&mut fewer), "4 [5] [1] [2] [3]");
        world.failed = ids(&[3, 4]);
        assert_eq!(world.next(&fewer), Plan::WaitFor(ids(&[4])), "it answered alone");
        assert_eq!(world.intend(&mut record), "5 1 2");
        assert_eq!(record.kept, ids(&[1, 2]));
        (world.failed, world.survivors) = (ids(&[3, 4, 1]), ids(&[2]));
        assert_eq!(world.intend(&mut record), "5 2 [1]");
    }

    #[test]
    fn members_that_are_kept_and_gone_are_not_waited_for() {
        let (mut record, mut world) = three_that_wait_for_two();
        world.gone = ids(&[1]);
        assert_eq!(world.intend(&mut record), "3 [2]");
        let mut back = record.clone();
        world.failed.clear();
        assert_eq!(world.intend(&mut back), "3 2");
        (world.failed, world.gone) = (ids(&[2]), ids(&[2]));
        assert_eq!(world.intend(&mut record), "3");
        assert!(!record.newest().waits() && record.kept.is_empty(), "it has a term, and fills");
        // If too few are there though nobody is out, the term begins all the same.
        let (mut record, mut world) = five_without_three();
        (record.complete.members_min, world.gone) = (4, ids(&[2, 3]));
        assert_eq!(world.intend(&mut record), "4 5 [1]");
        (world.failed, world.gone) = (Vec::new(), Vec::new());
        assert_eq!(world.intend(&mut record), "4 5 1");
        assert!(record.newest().too_few().is_some() && !record.newest().waits());
    }

    #[test]
    fn one_that_was_not_founded_yet_is_not_kept() {
        let mut record = record(&[2, 3], 2);
        (record.wanted, record.complete.members[1].is_full) = (3, true);
        let mut world =
            World { newcomers: alloc::vec![Member::new(ReplicaId(1))], ..World::default() };
        assert_eq!(world.intend(&mut record), "2 3 (1)");
        complete(&mut record);
        world.filled = ids(&[1]);
        assert_eq!(world.intend(&mut record), "2 3 1");
        (world.failed, world.survivors) = (ids(&[2]), ids(&[3]));
        assert_eq!(world.intend(&mut record.clone()), "3 [2] (1)");
        world.failed = ids(&[1, 2]);
        assert_eq!(world.intend(&mut record), "3 [2]");
    }

    #[test]
    fn after_a_store_was_set_back_a_view_that_waits_tells_whom_to_trust() {
        let (mut record, mut world) = three_that_wait_for_two();
        record.trusted.clear();
        record.kept.clear();
        world.failed.clear();
        assert_eq!(world.next(&record), Plan::TooFew(0));
        world.founded = ids(&[3]);
        assert_eq!(world.intend(&mut record), "3 1 2");
        assert_eq!(record.kept, ids(&[1, 2]));
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

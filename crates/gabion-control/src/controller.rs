//! The controller's machine.
//!
//! ```text
//!            a member failed, was filled, came
//!   Rests ──────────────────────────────────────► Swap(intended)
//!     ▲                                               │ stored: members are told
//!     │          stored                               ▼
//!     └──────────────── Swap(complete) ◄──── Carries out ──┐ another member failed:
//!                        every full member has the view,   └──► Swap(another intended)
//!                        and its term's first record
//! ```
//!
//! A view is stored as intended before anybody hears of it, under the version of the record that it
//! was planned on. So of two controllers one plans, and the other finds what it planned. Nothing is
//! undone: whoever is controller after a crash carries out what is intended, or plans the view
//! after it.
//!
//! Reports are the only source of facts, and each has the whole view of its replica. A view that is
//! newer than the store's is taken into the store: the store was set back, and members act in it.

use crate::cut::{self, Hearing, Unheard};
use crate::detector::{Detector, Patience, Verdict};
use crate::plan::{self, Known, Plan};
use crate::planted::{Mutant, Planted};
use crate::record::GroupRecord;
use crate::spoken::{Epoch, GroupStatus, Moment, Output, ReplicaStatus, Report};
use crate::store::{Swapped, Version, Versioned};
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::format;
use alloc::vec::Vec;
use core::cmp::Ordering;
use gabion_base::{ConfigNumber, GroupId, ReplicaId, Result};
use gabion_replication::{Addresses, GroupView, Member};

pub(crate) struct Replica {
    pub(crate) detector: Detector,
    pub(crate) report: Option<Report>,
    /// When nothing spoke against it last, in ms.
    well_ms: u64,
    /// Since when its reports have been those of another disk than this one.
    accused: Option<(Named, u64)>,
    pub(crate) unheard: Unheard,
}

/// The disk that a view means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Named {
    pool_id: [u8; 16],
    incarnation: u64,
    /// The last complete view, if it has taken that.
    taken: Option<ConfigNumber>,
}

impl Replica {
    fn new(patience: &Patience, now_ms: u64) -> Self {
        let detector = Detector::new(patience, now_ms);
        let unheard = Unheard::default();
        Self { detector, report: None, well_ms: now_ms, accused: None, unheard }
    }

    /// Nobody was heard for so many ms, and that was nobody's silence.
    fn skip(&mut self, ms: u64) {
        self.detector.skip(ms);
        self.well_ms = self.well_ms.saturating_add(ms);
        self.unheard.skip(ms);
    }
}

/// The request to the store that is under way.
enum Storing {
    Nothing,
    Swap(Box<GroupRecord>),
    Read,
}

pub(crate) struct Group {
    pub(crate) record: GroupRecord,
    version: Version,
    storing: Storing,
    pub(crate) replicas: BTreeMap<ReplicaId, Replica>,
    /// The store was set back. Until every member has reported, nobody is judged by it.
    is_set_back: bool,
    planted: Planted,
}

/// The controller of some groups.
pub struct Controller {
    pub(crate) patience: Patience,
    epoch: Epoch,
    pub(crate) groups: BTreeMap<GroupId, Group>,
    /// When it ran last.
    ran_ms: u64,
    planted: Planted,
    pub(crate) outputs: VecDeque<Output>,
}

impl Controller {
    /// A controller that read these records. Every replica has its patience from now on.
    #[must_use]
    pub fn new(
        patience: Patience,
        epoch: Epoch,
        records: impl IntoIterator<Item = (Version, GroupRecord)>,
        now: Moment,
    ) -> Self {
        let mut controller = Self {
            patience,
            epoch,
            groups: BTreeMap::new(),
            ran_ms: now.now_ms,
            planted: Planted::default(),
            outputs: VecDeque::new(),
        };
        records.into_iter().for_each(|read| controller.handle_group(read, now));
        controller
    }

    /// A record was read, or stored for the first time: its group is looked after from now on. One
    /// that is looked after already stays as it is.
    pub fn handle_group(&mut self, (version, record): (Version, GroupRecord), now: Moment) {
        self.run_at(now);
        let patience = &self.patience;
        self.groups.entry(record.complete.group).or_insert_with(|| {
            let mut group = Group {
                record,
                version,
                storing: Storing::Nothing,
                replicas: BTreeMap::new(),
                is_set_back: false,
                planted: self.planted,
            };
            group.expect_members(patience, now.now_ms);
            group
        });
    }

    /// The controller with a defect.
    #[cfg(feature = "planted")]
    #[must_use]
    pub fn planted(mut self, mutant: Option<Mutant>) -> Self {
        self.planted = Planted { mutant };
        self.groups.values_mut().for_each(|group| group.planted = Planted { mutant });
        self
    }

    /// The controller runs at this time: to be called before anything is judged. While it did not
    /// run it heard nobody, and that was nobody's silence.
    fn run_at(&mut self, now: Moment) {
        let missed_ms = now.now_ms.saturating_sub(self.ran_ms);
        let paused_ms = missed_ms.saturating_sub(self.patience.report_ms);
        self.ran_ms = self.ran_ms.max(now.now_ms);
        if paused_ms > 0 && !self.planted.has(Mutant::PauseIsSilence) {
            let replicas = self.groups.values_mut().flat_map(|group| group.replicas.values_mut());
            replicas.for_each(|replica| replica.skip(paused_ms));
        }
    }

    /// A replica reports. One of a group that no record is of is ignored.
    pub fn handle_report(&mut self, report: Report, now: Moment) {
        self.run_at(now);
        let Some(group) = self.groups.get_mut(&report.group) else { return };
        let (patience, epoch) = (&self.patience, self.epoch);
        let named = group.is_of_other_disk(&report);
        let id = report.member.replica;
        let replica =
            group.replicas.entry(id).or_insert_with(|| Replica::new(patience, now.now_ms));
        let since = replica.accused.filter(|(before, _)| Some(*before) == named);
        replica.accused = since.or_else(|| named.map(|named| (named, now.now_ms)));
        replica.detector.hear(report.probe, now.now_ms);
        let (config, incarnation) = (report.config(), report.member.incarnation);
        replica.unheard.hear(config, &report.unheard, incarnation, now.now_ms);
        let is_later = report.epoch.number > epoch.number;
        let is_other = report.epoch.number == epoch.number && report.epoch.id != epoch.id;
        group.is_set_back |= (is_later || is_other) && report.epoch != Epoch::default();
        let to = report.member.replica;
        let is_behind = report.config() < group.record.newest().config || report.epoch != epoch;
        replica.report = Some(report);
        if is_behind && !group.is_storing() && group.may_tell(to) {
            group.tell(&mut self.outputs, to, epoch);
        }
        group.advance(&mut self.outputs, patience, now);
    }

    /// Time passed. To be called a few times in each [`Patience::report_ms`].
    pub fn handle_tick(&mut self, now: Moment) {
        self.run_at(now);
        for group in self.groups.values_mut() {
            group.note_well(&self.patience, now.now_ms);
            group.advance(&mut self.outputs, &self.patience, now);
        }
    }

    /// The outcome of an [`Output::Swap`]. After an error nobody knows whether the record was
    /// stored, so it is read again.
    pub fn handle_swapped(&mut self, group: GroupId, swapped: Result<Swapped>, now: Moment) {
        self.run_at(now);
        let Some(found) = self.groups.get_mut(&group) else { return };
        let Storing::Swap(record) = core::mem::replace(&mut found.storing, Storing::Nothing) else {
            debug_assert!(false, "an outcome without a swap");
            return;
        };
        match swapped {
            Ok(Swapped::Stored(version)) => {
                assert!(version > found.version, "versions of a record grow");
                (found.record, found.version) = (*record, version);
                found.expect_members(&self.patience, now.now_ms);
                found.tell_all(&mut self.outputs, self.epoch);
                found.advance(&mut self.outputs, &self.patience, now);
            }
            Ok(Swapped::Lost(Some(theirs))) => self.take(group, &theirs, now),
            Ok(Swapped::Lost(None)) | Err(_) => found.read(&mut self.outputs, group),
        }
    }

    /// The outcome of an [`Output::Read`]; an error has it read again at once, so a driver waits
    /// before it answers with one.
    pub fn handle_read(&mut self, group: GroupId, read: Result<Option<Versioned>>, now: Moment) {
        self.run_at(now);
        let Some(found) = self.groups.get_mut(&group) else { return };
        found.storing = Storing::Nothing;
        match read {
            Ok(Some(theirs)) => self.take(group, &theirs, now),
            // A record that was there is gone: the store is another one, and gets what is known.
            Ok(None) => {
                found.is_set_back = true;
                found.version = Version::NONE;
                let record = found.record.clone();
                found.swap(&mut self.outputs, record);
            }
            Err(_) => found.read(&mut self.outputs, group),
        }
    }

    /// The next thing to do, if any.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// A group's record, as it was last stored or read.
    #[must_use]
    pub fn record(&self, group: GroupId) -> Option<&GroupRecord> {
        self.groups.get(&group).map(|group| &group.record)
    }

    /// A group, for status.
    #[must_use]
    pub fn status(&self, group: GroupId, now: Moment) -> Option<GroupStatus> {
        let group = self.groups.get(&group)?;
        let view = group.record.newest().clone();
        let replicas = group.replicas.iter().map(|(id, replica)| {
            let member = view.members.iter().find(|member| member.replica == *id);
            ReplicaStatus {
                replica: *id,
                is_member: member.is_some(),
                is_full: member.is_some_and(|member| member.is_full),
                verdict: replica
                    .report
                    .as_ref()
                    .map(|_| replica.detector.verdict(&self.patience, now.now_ms)),
                config: replica.report.as_ref().map(Report::config),
                is_filled: replica.report.as_ref().is_some_and(|report| report.is_filled),
                filling: replica.report.as_ref().and_then(|report| report.filling),
                is_leaving: group.record.leaving.contains(id),
                vitals: replica.report.as_ref().and_then(|report| report.vitals.clone()),
            }
        });
        let replicas = replicas.collect();
        let views = group.reports().filter_map(|report| report.view.as_ref());
        Some(GroupStatus {
            term: views.map(|view| view.term).max().unwrap_or(view.term),
            wanted: group.record.wanted,
            view,
            is_complete: group.record.intended.is_none(),
            replicas,
        })
    }

    /// Takes a record that another controller stored.
    fn take(&mut self, group: GroupId, theirs: &Versioned, now: Moment) {
        let Some(found) = self.groups.get_mut(&group) else { return };
        match GroupRecord::decode(&theirs.value) {
            Ok(record) if record.complete.group == group => {
                (found.record, found.version) = (record, theirs.version);
                found.expect_members(&self.patience, now.now_ms);
                found.advance(&mut self.outputs, &self.patience, now);
            }
            // Nothing is planned on a record that this build cannot read, or of another group.
            _ => found.read(&mut self.outputs, group),
        }
    }
}

impl Group {
    pub(crate) const fn is_storing(&self) -> bool {
        !matches!(self.storing, Storing::Nothing)
    }

    /// Every member has a detector, also one that never reports, and so have those whose return
    /// is waited for.
    fn expect_members(&mut self, patience: &Patience, now_ms: u64) {
        let members = self.record.newest().members.iter().map(|member| member.replica);
        for id in members.chain(self.record.preferred.iter().copied()) {
            self.replicas.entry(id).or_insert_with(|| Replica::new(patience, now_ms));
        }
    }

    /// Notes who is well just now.
    fn note_well(&mut self, patience: &Patience, now_ms: u64) {
        for replica in self.replicas.values_mut().filter(|replica| replica.report.is_some()) {
            if replica.detector.verdict(patience, now_ms) == Verdict::Well {
                replica.well_ms = replica.well_ms.max(now_ms);
            }
        }
    }

    /// Those whose seats are kept: preferred, away, and not for too long yet.
    fn awaited(&self, patience: &Patience, now_ms: u64) -> Vec<ReplicaId> {
        let view = self.record.newest();
        let is_awaited = |id: &&ReplicaId| {
            let Some(replica) = self.replicas.get(id) else { return false };
            let away_ms = now_ms.saturating_sub(replica.well_ms);
            view.place_of(**id).is_none() && away_ms <= patience.replace_ms
        };
        self.record.preferred.iter().filter(is_awaited).copied().collect()
    }

    /// Whether the newest view means this replica with the disk that it has. One that lacks what it
    /// had is told no view in which it is full: it would take it, and look like the one that had
    /// everything.
    fn may_tell(&self, to: ReplicaId) -> bool {
        let report = self.replicas.get(&to).and_then(|replica| replica.report.as_ref());
        let newest = self.record.newest();
        let counts = newest.has_full(to) || newest.keeps(to);
        !counts || report.is_none_or(|report| self.is_of_other_disk(report).is_none())
    }

    /// Whether this replica had taken a later view than it says: every full member of a complete
    /// one has. A full member whose log nobody's continues says that it has none.
    fn lacks_what_it_kept(&self, report: &Report) -> bool {
        let is_full_in =
            |view: &GroupView| view.full().any(|member| member.replica == report.member.replica);
        let complete = &self.record.complete;
        let is_behind = is_full_in(complete) && report.config() < complete.config;
        // No member is full before it has taken some view.
        let newest = self.record.newest();
        let counts = is_full_in(newest) || newest.keeps(report.member.replica);
        is_behind || (counts && report.view.is_none())
    }

    fn tell(&self, outputs: &mut VecDeque<Output>, to: ReplicaId, epoch: Epoch) {
        outputs.push_back(Output::Tell { to, view: self.record.newest().clone(), epoch });
    }

    fn tell_all(&self, outputs: &mut VecDeque<Output>, epoch: Epoch) {
        let config = self.record.newest().config;
        for (id, replica) in &self.replicas {
            let is_older = |report: &Report| report.config() < config;
            if replica.report.as_ref().is_some_and(is_older) && self.may_tell(*id) {
                self.tell(outputs, *id, epoch);
            }
        }
    }

    pub(crate) fn swap(&mut self, outputs: &mut VecDeque<Output>, record: GroupRecord) {
        assert!(!self.is_storing(), "one change of a record at a time");
        let (group, expected) = (record.complete.group, self.version);
        if self.planted.has(Mutant::ToldBeforeStored) {
            let (view, epoch) = (record.newest(), Epoch::default());
            let tell = |to: &ReplicaId| Output::Tell { to: *to, view: view.clone(), epoch };
            outputs.extend(self.replicas.keys().map(tell));
        }
        outputs.push_back(Output::Swap { group, expected, record: record.encode() });
        self.storing = Storing::Swap(Box::new(record));
    }

    fn read(&mut self, outputs: &mut VecDeque<Output>, group: GroupId) {
        self.storing = Storing::Read;
        outputs.push_back(Output::Read { group });
    }

    fn reports(&self) -> impl Iterator<Item = &Report> {
        self.replicas.values().filter_map(|replica| replica.report.as_ref())
    }

    /// Does what the reports make possible: at most one change of the record.
    fn advance(&mut self, outputs: &mut VecDeque<Output>, patience: &Patience, now: Moment) {
        if self.is_storing() {
            return;
        }
        let next = match self.other_view() {
            Some(other) => self.reconciled(other, now),
            None => self.completed(now).or_else(|| self.planned(patience, now)),
        };
        let Some(record) = next.and_then(|record| self.readable(record, now)) else { return };
        assert!(record.newest().config >= self.record.newest().config, "views never go back");
        self.swap(outputs, record);
    }

    /// The record, if controllers can read it once it is stored. Else the one that is there, with
    /// the reason: the group goes on as it is, and whoever looks at it sees why.
    fn readable(&self, record: GroupRecord, now: Moment) -> Option<GroupRecord> {
        let Err(error) = record.validate() else { return Some(record) };
        self.with_event(self.record.clone(), &format!("nothing is changed: {error}"), now)
    }

    /// A view that a replica has and the store never had.
    fn other_view(&self) -> Option<&GroupView> {
        if self.planted.has(Mutant::OldStoreBelieved) {
            return None;
        }
        let newest = self.record.newest();
        let is_other = |view: &&GroupView| match view.config.cmp(&newest.config) {
            Ordering::Less => false,
            Ordering::Equal => view.members != newest.members,
            Ordering::Greater => true,
        };
        let views = self.reports().filter_map(|report| report.view.as_ref());
        views.filter(is_other).max_by_key(|view| view.config)
    }

    /// The record with a view that members have and the store has not: the store was set back.
    fn reconciled(&self, theirs: &GroupView, now: Moment) -> Option<GroupRecord> {
        let newest = self.record.newest();
        let mut record = self.record.clone();
        if theirs.config > newest.config {
            record.intended = Some(theirs.clone());
            // The store does not know whom the views in between left out: those that have begun
            // this one say so.
            record.trusted.clear();
            record.kept.clear();
            let text = format!(
                "{} is known to replicas, and the store had {}: it was set back",
                theirs.config, newest.config
            );
            record.note(now.unix_ms, &text);
            return Some(record);
        }
        record.intended = plan::after_both(newest, theirs);
        let text = match &record.intended {
            Some(next) => format!(
                "{} has two lists of members, as the store was set back: {} has those of both",
                newest.config, next.config
            ),
            None => format!(
                "{} has two lists of members, as the store was set back, and too few are in both: \
                 nothing is changed",
                newest.config
            ),
        };
        match record.intended {
            Some(_) => record.trust_only(|id| self.record.trusted.contains(id)),
            None => record.intended.clone_from(&self.record.intended),
        }
        self.with_event(record, &text, now)
    }

    /// The record with an event, unless nothing but the same event would be added again.
    fn with_event(&self, mut record: GroupRecord, text: &str, now: Moment) -> Option<GroupRecord> {
        let is_noted = record.events.back().is_some_and(|event| event.text == text);
        if is_noted && record.newest() == self.record.newest() {
            return None;
        }
        record.note(now.unix_ms, text);
        Some(record)
    }

    /// The record with its intended view complete, if it is.
    fn completed(&self, now: Moment) -> Option<GroupRecord> {
        let intended = self.record.intended.as_ref().filter(|view| !view.waits())?;
        let founded: Vec<ReplicaId> = self.founded().collect();
        let mut full = intended.full();
        let is_complete = match self.planted.has(Mutant::CompleteWithFirst) {
            true => full.any(|member| founded.contains(&member.replica)),
            false => full.all(|member| founded.contains(&member.replica)),
        };
        if !is_complete {
            return None;
        }
        let mut record = self.record.clone();
        let text = format!(
            "{} is complete: replica {} takes writes, replica {} answers reads",
            intended.config,
            intended.writer().get(),
            intended.reader().get()
        );
        record.note(now.unix_ms, &text);
        record.complete = record.intended.take()?;
        record.trusted = record.complete.full().map(|member| member.replica).collect();
        record.kept.clear();
        Some(record)
    }

    /// The record with the next view, if there is to be one.
    fn planned(&self, patience: &Patience, now: Moment) -> Option<GroupRecord> {
        let is_unheard =
            |id: &ReplicaId| self.replicas.get(id).is_none_or(|replica| replica.report.is_none());
        let mut members = self.record.newest().members.iter().map(|member| member.replica);
        if self.is_set_back && members.any(|id| is_unheard(&id)) {
            return None;
        }
        let verdicts = self.verdicts(patience, now.now_ms);
        let failed: Vec<ReplicaId> = verdicts.iter().map(|(id, _)| *id).collect();
        if self.is_in_doubt(&failed) {
            return None;
        }
        if let Some(record) = self.returned(&failed, now) {
            return Some(record);
        }
        let filled: Vec<ReplicaId> = self.filled().collect();
        let newcomers = self.newcomers(patience, now.now_ms);
        let is_lost = |(id, verdict): &&(ReplicaId, Verdict)| {
            *verdict == Verdict::OtherDisk || self.record.given_up.contains(id)
        };
        let lost = verdicts.iter().filter(is_lost);
        let mut gone: Vec<ReplicaId> = lost.map(|(id, _)| *id).collect();
        self.planted.give_up(&self.record, &failed, &mut gone);
        let founded: Vec<ReplicaId> = self.founded().collect();
        let awaited = self.awaited(patience, now.now_ms);
        let survivors: Vec<ReplicaId> = self.survivors(&failed).collect();
        let back: Vec<ReplicaId> = self.back().collect();
        let known = Known {
            failed: &failed,
            gone: &gone,
            founded: &founded,
            filled: &filled,
            newcomers: &newcomers,
            awaited: &awaited,
            survivors: &survivors,
            back: &back,
        };
        match plan::next(&self.record, &known) {
            Plan::Next(record, changes) => {
                let mut record = *record;
                self.name_disks(&mut record, &failed);
                self.planted.change(&mut record);
                for change in &changes {
                    record.note(now.unix_ms, &plan::in_a_sentence(change, &verdicts));
                }
                Some(record)
            }
            Plan::Keep => None,
            // It was said with the view.
            Plan::TooFew(_) if self.record.newest().waits() => None,
            Plan::WaitFor(members) => {
                let text = format!(
                    "writes wait for replica {}, which may still answer reads",
                    plan::names(&members)
                );
                self.with_event(self.record.clone(), &text, now)
            }
            Plan::TooFew(_) => {
                let text = format!(
                    "writes wait: fewer full members are left than the {} that the group needs",
                    self.record.newest().members_min
                );
                self.with_event(self.record.clone(), &text, now)
            }
        }
    }

    /// The record without the word that one is gone for good which reports and has not failed.
    fn returned(&self, failed: &[ReplicaId], now: Moment) -> Option<GroupRecord> {
        let is_back = |id: &&ReplicaId| {
            let replica = self.replicas.get(*id);
            replica.is_some_and(|it| it.report.is_some()) && !failed.contains(id)
        };
        let back = self.record.given_up.iter().find(is_back).copied()?;
        let mut record = self.record.clone();
        record.given_up.retain(|id| *id != back);
        record.note(now.unix_ms, &format!("replica {} is back, which was given up", back.get()));
        Some(record)
    }

    /// The next view says which disks it means, and where members say that they are reached.
    fn name_disks(&self, record: &mut GroupRecord, failed: &[ReplicaId]) {
        let members = record.intended.iter_mut().flat_map(|view| &mut view.members);
        for member in members.filter(|member| !failed.contains(&member.replica)) {
            let replica = self.replicas.get(&member.replica);
            let Some(said) = replica.and_then(|replica| replica.report.as_ref()) else { continue };
            if said.member.addresses != Addresses::default() {
                member.addresses.clone_from(&said.member.addresses);
                member.node = said.member.node;
            }
            if member.pool_id == [0; 16] {
                member.pool_id = said.member.pool_id;
            }
            if member.pool_id == said.member.pool_id {
                member.incarnation = member.incarnation.max(said.member.incarnation);
            }
        }
    }

    /// Members that have failed, and how.
    pub(crate) fn verdicts(&self, patience: &Patience, now_ms: u64) -> Vec<(ReplicaId, Verdict)> {
        let members = self.record.newest().members.iter();
        let mut all: Vec<(ReplicaId, Verdict)> = members
            .filter_map(|member| {
                let replica = self.replicas.get(&member.replica)?;
                let verdict = replica.detector.verdict(patience, now_ms);
                let is_other = self.is_other_disk(replica, patience);
                Some((member.replica, if is_other { Verdict::OtherDisk } else { verdict }))
            })
            .collect();
        let is_settled =
            |id: &ReplicaId| self.replicas.get(id).is_some_and(|it| it.unheard.is_settled(now_ms));
        let is_well = |id: &ReplicaId| all.contains(&(*id, Verdict::Well)) && is_settled(id);
        let newest = self.record.newest();
        if let Some(cut_off) = cut::cut_off(newest, &self.hearings(), is_well, patience)
            && let Some((_, verdict)) = all.iter_mut().find(|(id, _)| *id == cut_off)
        {
            *verdict = Verdict::CutOff;
        }
        // A pool that is full everywhere is no member's fault; they are not full, and do not have
        // room again, all at one moment.
        let has_room = all.iter().any(|(id, verdict)| {
            let room_ms = self.replicas.get(id).and_then(|r| r.detector.room_ms(now_ms));
            *verdict == Verdict::Well && room_ms > Some(patience.probe_ms)
        });
        let is_failure = |verdict: Verdict| match verdict {
            Verdict::Full(ms) => has_room && ms > patience.probe_ms,
            verdict => verdict.is_failure(),
        };
        all.into_iter().filter(|(_, verdict)| is_failure(*verdict)).collect()
    }

    /// The disk that the newest view means, if a report of its member is of another one: it is
    /// empty, foreign, or older than what the group knows of it.
    fn is_of_other_disk(&self, report: &Report) -> Option<Named> {
        let said = &report.member;
        let newest = self.record.newest();
        let member = newest.members.iter().find(|member| member.replica == said.replica)?;
        let is_behind = self.lacks_what_it_kept(report);
        let is_foreign = member.pool_id != [0; 16] && said.pool_id != member.pool_id;
        let taken = is_behind.then_some(self.record.complete.config);
        let (pool_id, incarnation) = (member.pool_id, member.incarnation);
        let is_other = is_behind || is_foreign || said.incarnation < incarnation;
        is_other.then_some(Named { pool_id, incarnation, taken })
    }

    /// Whether a member that has not failed may be one with another disk, or was not heard yet: no
    /// view relies on it before that is known, which takes as long as a silence.
    fn is_in_doubt(&self, failed: &[ReplicaId]) -> bool {
        let is_of_other = |id: &ReplicaId| {
            let report = self.replicas.get(id).and_then(|replica| replica.report.as_ref());
            report.is_none_or(|report| self.is_of_other_disk(report).is_some())
        };
        let members = self.record.newest().members.iter().map(|member| member.replica);
        !self.planted.has(Mutant::OtherDiskStays)
            && members.filter(|id| !failed.contains(id)).any(|id| is_of_other(&id))
    }

    /// Whether reports of this member have been of another disk for as long as a silence is. One
    /// that was on its way when the view was made says nothing: it is of before.
    fn is_other_disk(&self, replica: &Replica, patience: &Patience) -> bool {
        let now = replica.report.as_ref().and_then(|report| self.is_of_other_disk(report));
        let lasts = |(named, since_ms): (Named, u64)| {
            let lasted_ms = replica.detector.heard_ms().saturating_sub(since_ms);
            now == Some(named) && lasted_ms > patience.silence_ms_min
        };
        !self.planted.has(Mutant::OtherDiskStays) && replica.accused.is_some_and(lasts)
    }

    /// Whom the replicas hear, as they report.
    fn hearings(&self) -> Vec<Hearing<'_>> {
        let mut hearings = Vec::with_capacity(self.replicas.len());
        for (id, replica) in &self.replicas {
            let Some(report) = &replica.report else { continue };
            let (acts_in, at_ms) = (report.config(), replica.detector.heard_ms());
            hearings.push(Hearing { id: *id, acts_in, unheard: &replica.unheard, at_ms });
        }
        hearings
    }

    fn founded(&self) -> impl Iterator<Item = ReplicaId> {
        let config = self.record.newest().config;
        let has_it = move |report: &&Report| report.founded >= config;
        self.reports().filter(has_it).map(|report| report.member.replica)
    }

    /// Members that could answer reads without those that have failed: they miss one of them.
    /// If all are heard, the group goes on, whatever the controller hears.
    fn survivors(&self, failed: &[ReplicaId]) -> impl Iterator<Item = ReplicaId> {
        let misses = |report: &&Report| report.unheard.iter().any(|id| failed.contains(id));
        let all = self.reports().filter(|report| report.is_whole);
        all.filter(misses).map(|report| report.member.replica)
    }

    /// Members that are kept, run, and have taken the view that keeps them.
    fn back(&self) -> impl Iterator<Item = ReplicaId> {
        let newest = self.record.newest();
        let acts = |report: &&Report| report.config() == newest.config;
        let all = self.reports().filter(acts).map(|report| report.member.replica);
        all.filter(|id| newest.keeps(*id))
    }

    fn filled(&self) -> impl Iterator<Item = ReplicaId> {
        let config = self.record.newest().config;
        let (newest, hearings) = (self.record.newest(), self.hearings());
        self.reports()
            .filter(move |report| report.is_filled && report.config() == config)
            .map(|report| report.member.replica)
            .filter(move |id| !cut::has_cut_link(newest, &hearings, *id))
    }

    /// Replicas that run and are no members, in the order of their numbers.
    pub(crate) fn newcomers(&self, patience: &Patience, now_ms: u64) -> Vec<Member> {
        let view = self.record.newest();
        let runs = |replica: &&Replica| replica.detector.verdict(patience, now_ms) == Verdict::Well;
        let replicas = self.replicas.values().filter(runs);
        let members = replicas.filter_map(|replica| Some(replica.report.as_ref()?.member.clone()));
        members.filter(|member| view.place_of(member.replica).is_none()).collect()
    }
}

//! An operator's commands. Each changes the record, and the planner does the rest as it does after
//! a failure: another controller that takes over carries the command out.

use crate::controller::{Controller, Group};
use crate::detector::{Patience, Verdict};
use crate::plan;
use crate::record::GroupRecord;
use crate::spoken::Moment;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use gabion_base::{Error, ErrorKind, GroupId, ReplicaId, Result};
use gabion_replication::{GroupView, Member};

/// A command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// This member takes writes from now on; none named: the next full one in the order.
    FailOver(Option<ReplicaId>),
    /// The group has one member more, this one.
    Add(ReplicaId),
    /// The group has one member fewer: without this one.
    Remove(ReplicaId),
    /// This replica is no member, and is not to be taken as one.
    Withdraw(ReplicaId),
    /// This failed member's process has ended and will not be back with its disk: nobody waits for
    /// it any more. A lie here may have reads answered from the past.
    GiveUp(ReplicaId),
    /// The second replica is filled and then takes the place of the first; none named: a spare.
    Replace(ReplicaId, Option<ReplicaId>),
}

impl Controller {
    /// Begins to carry out a command: the record that says so is on its way to the store when it
    /// returns. [`Controller::status`] shows how far it is.
    ///
    /// # Errors
    /// Busy while another change is carried out: try again. Not found for a group that no record is
    /// of. Invalid input with the reason where the command cannot be carried out.
    pub fn handle_command(&mut self, group: GroupId, command: Command, now: Moment) -> Result<()> {
        let Some(found) = self.groups.get_mut(&group) else {
            return Err(Error::not_found(format!("no record of {group}")));
        };
        // A view that waits for a member is not complete before that is back, or given up.
        let gives_up = matches!(command, Command::GiveUp(_));
        if found.is_storing() || (found.record.intended.is_some() && !gives_up) {
            return Err(Error::new(
                ErrorKind::Busy,
                format!("{} is being carried out: try again", found.record.newest().config),
            ));
        }
        let asked = Asked { group: found, patience: &self.patience, now };
        let mut record = match command {
            Command::FailOver(to) => asked.fail_over(to)?,
            Command::Add(replica) => asked.add(replica)?,
            Command::Remove(replica) => asked.remove(replica)?,
            Command::Withdraw(replica) => asked.withdraw(replica)?,
            Command::GiveUp(replica) => asked.give_up(replica)?,
            Command::Replace(old, new) => asked.replace(old, new)?,
        };
        record.0.note(now.unix_ms, &record.1);
        record.0.validate()?;
        assert!(record.0.newest().config >= found.record.newest().config, "views never go back");
        found.swap(&mut self.outputs, record.0);
        Ok(())
    }
}

/// A group at the time of a command.
struct Asked<'a> {
    group: &'a Group,
    patience: &'a Patience,
    now: Moment,
}

/// The record that a command leads to, and its event.
type Answer = Result<(GroupRecord, String)>;

impl Asked<'_> {
    fn view(&self) -> &GroupView {
        &self.group.record.complete
    }

    /// Whether nothing speaks against a replica that reports.
    fn is_well(&self, id: ReplicaId) -> bool {
        let replica = self.group.replicas.get(&id).filter(|replica| replica.report.is_some());
        let verdict = replica.map(|it| it.detector.verdict(self.patience, self.now.now_ms));
        verdict == Some(Verdict::Well)
    }

    fn has_failed(&self, id: ReplicaId) -> bool {
        let verdicts = self.group.verdicts(self.patience, self.now.now_ms);
        verdicts.iter().any(|(failed, _)| *failed == id)
    }

    fn fail_over(&self, to: Option<ReplicaId>) -> Answer {
        let writer = self.view().full().map(|member| member.replica).next();
        let others = || self.view().full().map(|m| m.replica).filter(|id| Some(*id) != writer);
        let to = match to {
            Some(to) if Some(to) == writer => {
                return Err(Error::invalid(format!("replica {} takes writes already", to.get())));
            }
            Some(to) if others().all(|id| id != to) => {
                return Err(Error::invalid(format!(
                    "replica {} is no full member: {} could take writes",
                    to.get(),
                    names(others())
                )));
            }
            Some(to) if !self.is_well(to) => {
                return Err(Error::invalid(format!("replica {} is not well", to.get())));
            }
            Some(to) => to,
            None => others().find(|id| self.is_well(*id)).ok_or_else(|| {
                Error::invalid("no other full member is well: nobody could take writes")
            })?,
        };
        let text = format!("told to have replica {} take writes", to.get());
        Ok((plan::hand_over(&self.group.record, to), text))
    }

    fn add(&self, id: ReplicaId) -> Answer {
        let mut record = self.group.record.clone();
        let is_member = self.view().place_of(id).is_some();
        if is_member && !record.leaving.contains(&id) {
            return Err(Error::invalid(format!("replica {} is a member already", id.get())));
        }
        if usize::from(record.wanted) >= GroupView::MEMBERS_MAX {
            return Err(Error::limit(format!(
                "the group has {} members, the limit",
                record.wanted
            )));
        }
        if !is_member {
            self.check_newcomer(id)?;
        }
        record.wanted += 1;
        record.leaving.retain(|other| *other != id);
        record.prefer(id, true);
        Ok((record, format!("told to add replica {}", id.get())))
    }

    fn remove(&self, id: ReplicaId) -> Answer {
        let mut record = self.group.record.clone();
        self.check_seat(id)?;
        let left = self.staying().filter(|other| *other != id).count();
        let min = self.view().members_min;
        let wanted = record.wanted.saturating_sub(1);
        if left < usize::from(min) || wanted < min {
            return Err(Error::invalid(format!(
                "without replica {} the group has {} full members, and needs {min} to take writes",
                id.get(),
                left.min(usize::from(wanted))
            )));
        }
        record.wanted = wanted;
        record.leave(id)?;
        Ok((record, format!("told to remove replica {}", id.get())))
    }

    fn withdraw(&self, id: ReplicaId) -> Answer {
        if self.view().place_of(id).is_some() {
            let text = format!("replica {} is a member: it has to be removed first", id.get());
            return Err(Error::invalid(text));
        }
        let mut record = self.group.record.clone();
        record.leave(id)?;
        Ok((record, format!("told to take replica {} no more", id.get())))
    }

    fn give_up(&self, id: ReplicaId) -> Answer {
        let mut record = self.group.record.clone();
        let newest = record.newest();
        if newest.place_of(id).is_none() {
            let members = names(newest.members.iter().map(|member| member.replica));
            return Err(Error::invalid(format!(
                "replica {} is no member: members are {members}",
                id.get()
            )));
        }
        if !self.has_failed(id) {
            return Err(Error::invalid(format!(
                "replica {} has not failed: only one that is gone can be given up",
                id.get()
            )));
        }
        if !record.given_up.contains(&id) {
            record.given_up.push(id);
        }
        Ok((record, format!("told that replica {} is gone for good", id.get())))
    }

    fn replace(&self, old: ReplicaId, new: Option<ReplicaId>) -> Answer {
        let mut record = self.group.record.clone();
        self.check_seat(old)?;
        let new = match new {
            Some(new) => new,
            None => {
                let newcomers = self.group.newcomers(self.patience, self.now.now_ms);
                let may_come = |m: &&Member| !record.leaving.contains(&m.replica);
                let first = newcomers.iter().find(may_come).map(|member| member.replica);
                first.filter(|id| *id != old).ok_or_else(|| {
                    Error::invalid("no spare reports: `gabion up --spare 1` starts one")
                })?
            }
        };
        if new == old {
            return Err(Error::invalid(format!("replica {} cannot replace itself", old.get())));
        }
        self.check_newcomer(new)?;
        record.leave(old)?;
        record.leaving.retain(|other| *other != new);
        record.prefer(new, true);
        let text = format!("told to replace replica {} by replica {}", old.get(), new.get());
        Ok((record, text))
    }

    /// Full members that run and are to stay.
    fn staying(&self) -> impl Iterator<Item = ReplicaId> {
        let leaving = &self.group.record.leaving;
        let full = self.view().full().map(|member| member.replica);
        full.filter(|id| self.is_well(*id) && !leaving.contains(id))
    }

    /// Refuses a replica that is no member and no longer awaited as one.
    fn check_seat(&self, id: ReplicaId) -> Result<()> {
        let record = &self.group.record;
        let is_leaving = record.leaving.contains(&id);
        if !is_leaving && (self.view().place_of(id).is_some() || record.preferred.contains(&id)) {
            return Ok(());
        }
        let why = if is_leaving { "is leaving already" } else { "is no member" };
        let members = self.view().members.iter().map(|member| member.replica);
        Err(Error::invalid(format!("replica {} {why}: members are {}", id.get(), names(members))))
    }

    /// Refuses a replica that cannot be filled now.
    fn check_newcomer(&self, id: ReplicaId) -> Result<()> {
        if self.view().place_of(id).is_some() {
            return Err(Error::invalid(format!("replica {} is a member already", id.get())));
        }
        if !self.is_well(id) {
            return Err(Error::invalid(format!(
                "replica {} does not report, or is not well: `gabion up --spare N` starts replicas \
                 without data",
                id.get()
            )));
        }
        Ok(())
    }
}

fn names(replicas: impl Iterator<Item = ReplicaId>) -> String {
    let names: Vec<String> = replicas.map(|id| format!("{}", id.get())).collect();
    if names.is_empty() { "nobody".into() } else { names.join(", ") }
}

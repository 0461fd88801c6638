//! When the group is whole again.

use super::ControlFaults;
use crate::world::{Faults, World};
use gabion_control::GroupRecord;

/// Time in ms within which the group is whole again after the last fault has healed.
const WHOLE_MS_MAX: u64 = 10_000;

impl World {
    /// Waits until the group has what it wants, once everything is healed.
    ///
    /// # Errors
    /// The lack of a group that is not whole after ten seconds.
    pub(in crate::world) fn become_whole(&mut self) -> Result<(), String> {
        let Some(control) = &mut self.control else { return Ok(()) };
        control.heal();
        let began_ms = self.now_ms;
        while let Some(what) = self.lacks() {
            if self.now_ms > began_ms + WHOLE_MS_MAX {
                let record = self.record();
                let events = record.iter().flat_map(|record| &record.events);
                let texts: Vec<String> =
                    events.map(|it| format!("{} ms: {}", it.unix_ms, it.text)).collect();
                return Err(format!(
                    "the group is not whole after {WHOLE_MS_MAX} ms: {what}\nthe controller's \
                     record:\n  {}\n{}",
                    texts.join("\n  "),
                    self.describe()
                ));
            }
            self.step();
            self.go_on_verifying();
            self.look_for_violation()?;
        }
        self.check_left_out()?;
        let took_ms = self.now_ms - began_ms;
        self.outcome.whole_ms_max = self.outcome.whole_ms_max.max(took_ms);
        Ok(())
    }

    /// Nobody was left out in a run in which no machine and no way had a fault.
    fn check_left_out(&mut self) -> Result<(), String> {
        let Some(control) = &self.control else { return Ok(()) };
        let ControlFaults { crash, pause, .. } = control.options.faults;
        let harmless = ControlFaults { crash, pause, ..ControlFaults::default() };
        if self.options.faults != Faults::default() || control.options.faults != harmless {
            return Ok(());
        }
        match &self.control_events()[..] {
            [] => Ok(()),
            events => Err(format!("somebody is left out for nothing: {events:?}")),
        }
    }

    /// The lack of the group, of all that it wants.
    pub(in crate::world) fn lacks(&mut self) -> Option<String> {
        let record = self.record()?;
        let view = &record.complete;
        if let Some(intended) = &record.intended {
            return Some(format!("{} is not complete", intended.config));
        }
        let full = view.full().count();
        if full < usize::from(record.wanted) {
            return Some(format!("{full} full members of {}", record.wanted));
        }
        if full < view.members.len() {
            return Some("a member is not full".into());
        }
        view.full().find_map(|member| self.lacks_of(member.replica, &record))
    }

    fn lacks_of(&self, replica: gabion_base::ReplicaId, record: &GroupRecord) -> Option<String> {
        let node = self.index_of(replica).and_then(|index| self.node(index));
        let Some(node) = node else { return Some(format!("{replica} is down")) };
        let config = record.complete.config;
        if node.view().group().config != config || node.founded() != config {
            return Some(format!("{replica} has not begun {config}"));
        }
        let is_writer = record.complete.writer() == replica;
        (is_writer && !node.protocol().is_ready()).then(|| "the head takes no writes".into())
    }

    /// The events of the controller's record, oldest first.
    #[must_use]
    pub fn control_events(&mut self) -> Vec<String> {
        let record = self.control.as_mut().map(|control| control.record());
        record.into_iter().flat_map(|record| record.events).map(|event| event.text).collect()
    }
}

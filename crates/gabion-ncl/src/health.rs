//! Whether the files of an instance can be used and changed now, and why not.

use crate::application::{Application, OnLoss, Phase, State};
use crate::files::{Files, Images};
use crate::link::Stage;
use crate::log::{Log, Record};
use crate::number::Number;
use alloc::format;
use alloc::string::String;
use gabion_base::{Error, Result};

impl<S: Images> Application<S> {
    /// Whether another record may be issued; else peers have to take older ones first, which the
    /// caller hands in as replies. Beyond the limits those may that a new copy waits for: nothing
    /// might be acknowledged without it. One change of an image may be as long as its file, so of
    /// these no more bytes are kept than a peer may lag behind. They are kept until they are sent,
    /// and no peer waits for an acknowledgement before it takes more: a slow one is waited for, and
    /// one that does not reply is lost.
    #[must_use]
    pub fn has_room(&self) -> bool {
        let (options, len) = (&self.options, self.unacknowledged.len());
        let is_within = len < options.outstanding_max
            && (len == 0 || self.unacknowledged_bytes < options.outstanding_bytes_max);
        let unsent = || self.state.as_ref().map_or(0, |state| state.log.bytes());
        is_within || (self.wants_changes() && unsent() < options.lag_bytes_max.max(1))
    }

    /// Whether a new copy waits for records of changes that images have already. They are to be
    /// issued before anything is waited for: without that copy perhaps nothing is acknowledged.
    #[must_use]
    pub fn wants_changes(&self) -> bool {
        let waits =
            |state: &State<S>| self.links.values().any(|link| link.waits_for_changes(&state.files));
        self.state.as_ref().is_some_and(waits)
    }

    pub(crate) fn health(&self) -> Result<()> {
        if let Some(error) = &self.ended {
            return Err(error.clone());
        }
        let (OnLoss::FailAfter(limit_ms), Some(since_ms)) =
            (self.options.on_loss, self.short_since_ms)
        else {
            return Ok(());
        };
        let short_ms = self.now_ms.saturating_sub(since_ms);
        if short_ms < limit_ms {
            return Ok(());
        }
        Err(Error::unavailable(format!(
            "application '{}': {} for {short_ms} ms (limit {limit_ms} ms)",
            self.options.owner,
            self.shortage()
        )))
    }

    /// Why files cannot be used now, or why nothing can be acknowledged, in words.
    #[must_use]
    pub fn shortage(&self) -> String {
        let (copies, of, needed) = match self.phase {
            Phase::Leasing if self.lease.is_watched() => {
                return String::from("another instance runs and renews its lease");
            }
            Phase::Recovering | Phase::Loading => (
                self.links.values().filter(|link| link.stage >= Stage::Known).count(),
                self.map.members.len(),
                self.copies_to_recover(),
            ),
            Phase::Running => (self.counted().count(), 2 * self.options.f + 1, self.options.f + 1),
            // Entries of former copies make up for those that are missing in the new map.
            _ => {
                let wanted = 2 * self.options.f + 1;
                let copies = self.links.values().filter(|link| link.stage >= Stage::Known);
                let lacking = wanted.saturating_sub(self.map.members.len());
                (copies.count(), wanted, lacking.max(self.options.f + 1))
            }
        };
        let memory = self.memory();
        format!("{copies} of {of} copies are within reach, {needed} are needed{memory}")
    }

    pub(crate) fn state(&self) -> Result<&State<S>> {
        self.health()?;
        match &self.state {
            Some(state) if self.phase == Phase::Running => Ok(state),
            _ => Err(Error::unavailable(format!(
                "application '{}': its files are being recovered",
                self.options.owner
            ))),
        }
    }

    /// Whether a change may be made now.
    pub(crate) fn begin_change(&mut self) -> Result<()> {
        self.state()?;
        self.recall();
        if !self.has_room() {
            let limit = self.options.outstanding_max;
            return Err(Error::unavailable(format!(
                "{} records ({} bytes) are not acknowledged, limit {limit} records",
                self.unacknowledged.len(),
                self.unacknowledged_bytes
            )));
        }
        Ok(())
    }

    /// Runs a change of files and counts its records.
    pub(crate) fn apply<R>(
        &mut self,
        change: impl FnOnce(&mut Files<S>, &mut Log) -> Result<R>,
    ) -> Result<R> {
        let state = self.state.as_mut().expect("it is there");
        let before = state.log.issued();
        let changed = change(&mut state.files, &mut state.log);
        for number in before.0 + 1..=state.log.issued().0 {
            let bytes = state.log.get(Number(number)).map_or(0, Record::bytes);
            self.unacknowledged.push_back(bytes);
            self.unacknowledged_bytes += bytes;
        }
        self.step();
        changed
    }
}

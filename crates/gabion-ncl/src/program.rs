//! Operations of programs on their files.

use crate::application::{Application, OnLoss, Phase, State, Status};
use crate::files::{Files, Images, Stat};
use crate::link::Stage;
use crate::log::{Log, Record};
use crate::names::{Change as NameChange, Metadata, NameEdit};
use crate::number::{FileNumber, Number};
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use gabion_base::{Error, Result};
impl<S: Images> Application<S> {
    /// Whether files can be used. False while they are recovered.
    ///
    /// # Errors
    /// Fenced once a newer instance runs; unavailable by [`OnLoss`].
    pub fn is_ready(&self) -> Result<bool> {
        self.health()?;
        Ok(self.phase == Phase::Running)
    }

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

    fn health(&self) -> Result<()> {
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
            // The map of a state that is new has all of its copies.
            _ => {
                let wanted = 2 * self.options.f + 1;
                let copies = self.links.values().filter(|link| link.stage >= Stage::Known);
                (copies.count(), wanted, wanted)
            }
        };
        format!("{copies} of {of} copies are within reach, {needed} are needed")
    }

    fn state(&self) -> Result<&State<S>> {
        self.health()?;
        match &self.state {
            Some(state) if self.phase == Phase::Running => Ok(state),
            _ => Err(Error::unavailable(format!(
                "application '{}': its files are being recovered",
                self.options.owner
            ))),
        }
    }

    /// Runs a change of files and counts its records.
    fn change<R>(
        &mut self,
        change: impl FnOnce(&mut Files<S>, &mut Log) -> Result<R>,
    ) -> Result<R> {
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

    /// Whether a record and all before it are acknowledged.
    ///
    /// # Durability
    /// True: they survive the loss of any f peers at a time, and of this process.
    ///
    /// # Errors
    /// Fenced once a newer instance runs, unavailable by [`OnLoss`]. Then nobody knows whether the
    /// record will be there.
    pub fn check(&self, number: Number) -> Result<bool> {
        if number <= self.acknowledged && self.phase >= Phase::Running {
            return Ok(true);
        }
        self.health().map(|()| false)
    }

    /// The record up to which all are acknowledged; none before the files are there.
    ///
    /// # Errors
    /// Those of [`Self::check`]: no more will be.
    pub fn acknowledged(&self) -> Result<Number> {
        self.health()?;
        Ok(if self.phase >= Phase::Running { self.acknowledged } else { Number::ZERO })
    }

    /// The record that was issued last: a sync waits for it.
    #[must_use]
    pub fn issued(&self) -> Number {
        self.state.as_ref().map_or(Number::ZERO, |state| state.log.issued())
    }

    /// A new file. Open it, or it ends with its last name.
    ///
    /// # Errors
    /// Invalid input where the name is taken or no name; those of [`Self::is_ready`].
    pub fn create(&mut self, path: &str, metadata: Metadata) -> Result<FileNumber> {
        let path = path.to_string();
        self.change(|files, log| {
            let (file, bytes) = (files.names.next(), files.part_min());
            files.create(log, &NameChange::Create { file, metadata, bytes, path })?;
            Ok(file)
        })
    }

    /// The file of a name.
    ///
    /// # Errors
    /// Those of [`Self::is_ready`].
    pub fn find(&self, path: &str) -> Result<Option<FileNumber>> {
        Ok(self.state()?.files.names.get(path))
    }

    /// The names that begin with a text, in their order.
    ///
    /// # Errors
    /// Those of [`Self::is_ready`].
    pub fn list(&self, prefix: &str) -> Result<Vec<(String, FileNumber)>> {
        let found = self.state()?.files.names.list(prefix);
        Ok(found.map(|(name, file)| (name.to_string(), file)).collect())
    }

    /// The attributes of a file.
    ///
    /// # Errors
    /// Not found; those of [`Self::is_ready`].
    pub fn stat(&self, file: FileNumber) -> Result<Stat> {
        self.state()?.files.stat(file)
    }

    /// Bytes of a file, from the mirror. Returns how many there are before its end.
    ///
    /// # Errors
    /// Not found; those of [`Self::is_ready`].
    pub fn read(&self, file: FileNumber, offset: u64, into: &mut [u8]) -> Result<usize> {
        self.state()?.files.read(file, offset, into)
    }

    /// The mirror of a file.
    ///
    /// # Errors
    /// Not found; those of [`Self::is_ready`].
    pub fn image(&self, file: FileNumber) -> Result<&S::Image> {
        self.state()?.files.image(file)
    }

    /// One more holder of a file: it outlives its names.
    ///
    /// # Errors
    /// Not found; those of [`Self::is_ready`].
    pub fn open(&mut self, file: FileNumber) -> Result<()> {
        self.change(|files, _| files.open(file))
    }

    /// A holder less.
    ///
    /// # Errors
    /// Not found; those of [`Self::is_ready`].
    pub fn release(&mut self, file: FileNumber) -> Result<()> {
        self.change(|files, log| files.close(log, file))
    }

    /// Bytes at an offset. The mirror has them at once; wait for the number by [`Self::check`].
    ///
    /// # Errors
    /// Limit exceeded for a file that is too long; not found; unavailable without room.
    pub fn write(&mut self, file: FileNumber, offset: u64, data: &[u8]) -> Result<Number> {
        self.change(|files, log| files.write(log, file, offset, data))
    }

    /// Bytes at the end.
    ///
    /// # Errors
    /// As [`Self::write`].
    pub fn append(&mut self, file: FileNumber, data: &[u8]) -> Result<Number> {
        self.change(|files, log| {
            let end = files.stat(file)?.len;
            files.write(log, file, end, data)
        })
    }

    /// Another length.
    ///
    /// # Errors
    /// As [`Self::write`].
    pub fn truncate(&mut self, file: FileNumber, len: u64) -> Result<Number> {
        self.change(|files, log| files.truncate(log, file, len))
    }

    /// Other metadata.
    ///
    /// # Errors
    /// Not found; unavailable without room.
    pub fn set_metadata(&mut self, file: FileNumber, metadata: Metadata) -> Result<Number> {
        self.change(|files, log| files.rename(log, &NameChange::Metadata { file, metadata }))
    }

    /// Another name; a file that has it loses it, in one step.
    ///
    /// # Errors
    /// Not found; unavailable without room.
    pub fn rename(&mut self, from: &str, to: &str) -> Result<Number> {
        let (from, to) = (from.to_string(), to.to_string());
        self.change(|files, log| files.rename(log, &NameChange::Rename { from, to }))
    }

    /// One more name.
    ///
    /// # Errors
    /// Not found; invalid input where the name is taken; unavailable without room.
    pub fn link(&mut self, file: FileNumber, path: &str) -> Result<Number> {
        let path = path.to_string();
        self.change(|files, log| files.rename(log, &NameChange::Link { file, path }))
    }

    /// A name less.
    ///
    /// # Errors
    /// Not found; unavailable without room.
    pub fn unlink(&mut self, path: &str) -> Result<Number> {
        let path = path.to_string();
        self.change(|files, log| files.rename(log, &NameChange::Unlink { path }))
    }

    /// Whether [`edit_names`](Self::edit_names) would take these changes.
    ///
    /// # Errors
    /// Not found and limit exceeded, as there; unavailable during recovery.
    pub fn check_names(&self, edits: &[NameEdit]) -> Result<()> {
        self.state()?.files.check_edit(edits)
    }

    /// Several changes of names in one step: all of them survive, or none.
    ///
    /// # Errors
    /// Not found for a file that does not exist; limit exceeded for changes that are no one record;
    /// unavailable without room.
    pub fn edit_names(&mut self, edits: &[NameEdit]) -> Result<Number> {
        self.change(|files, log| files.edit(log, edits))
    }

    /// Copies that count now, and those that are wanted.
    #[must_use]
    pub fn copies(&self) -> (usize, usize) {
        (self.counted().count(), 2 * self.options.f + 1)
    }

    /// Its status, for operators.
    #[must_use]
    pub fn status(&self) -> Status {
        let phase = match self.phase {
            Phase::Leasing => "leasing",
            Phase::Claiming => "claiming",
            Phase::Recovering => "recovering",
            Phase::Loading => "loading",
            Phase::Filling => "filling",
            Phase::Running => "running",
            Phase::Ended => "ended",
        };
        Status {
            phase,
            term: self.term,
            copies: self.counted().count(),
            wanted: 2 * self.options.f + 1,
            issued: self.issued(),
            acknowledged: self.acknowledged,
            unacknowledged_bytes: self.unacknowledged_bytes,
            unsent_bytes: self.state.as_ref().map_or(0, |state| state.log.bytes()),
            map: self.map.clone(),
            replaced: self.replaced,
            registered: self.registry.as_ref().map_or(0, BTreeMap::len),
        }
    }
}

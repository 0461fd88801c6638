//! Operations of programs on their files.

use crate::application::{Application, Phase, Status};
use crate::files::{Files, Images, Stat};
use crate::log::Log;
use crate::names::{Change as NameChange, Metadata, NameEdit};
use crate::number::{FileNumber, Number};
use alloc::collections::BTreeMap;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use gabion_base::Result;

/// Bytes at most that a new file has in the table beside its name.
const NEW_FILE_LEN_MAX: u64 = 64;

impl<S: Images> Application<S> {
    /// Whether files can be used. False while they are recovered.
    ///
    /// # Errors
    /// Fenced once a newer instance runs; unavailable by [`OnLoss`](crate::OnLoss).
    pub fn is_ready(&self) -> Result<bool> {
        self.health()?;
        Ok(self.phase == Phase::Running)
    }

    /// Runs a change of files that makes the table so many bytes longer at most.
    fn change<R>(
        &mut self,
        more: u64,
        change: impl FnOnce(&mut Files<S>, &mut Log) -> Result<R>,
    ) -> Result<R> {
        self.begin_change()?;
        let table = self.make_table_room(more)?;
        let changed = self.apply(|files, log| {
            files.grow_table(log, &table);
            change(files, log)
        });
        self.forget_wants();
        changed
    }

    /// Whether a record and all before it are acknowledged.
    ///
    /// # Durability
    /// True: they survive the loss of any f peers at a time, and of this process.
    ///
    /// # Errors
    /// Fenced once a newer instance runs, unavailable by [`OnLoss`](crate::OnLoss). Then nobody
    /// knows whether the record will be there.
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
        self.begin_change()?;
        self.state()?.files.names.check_new(&path)?;
        let more = self.added(&[&path], &[])? + NEW_FILE_LEN_MAX;
        self.make_first_part(more)?;
        self.change(more, |files, log| {
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
        self.change(0, |files, _| files.open(file))
    }

    /// A holder less.
    ///
    /// # Errors
    /// Not found; those of [`Self::is_ready`].
    pub fn release(&mut self, file: FileNumber) -> Result<()> {
        self.change(0, |files, log| files.close(log, file))
    }

    /// Bytes at an offset. The mirror has them at once; wait for the number by [`Self::check`].
    ///
    /// # Errors
    /// Limit exceeded for a file that is too long; not found; unavailable without room.
    pub fn write(&mut self, file: FileNumber, offset: u64, data: &[u8]) -> Result<Number> {
        self.begin_change()?;
        let end = self.state()?.files.end_of(file, offset, data.len())?;
        self.make_room(file, if data.is_empty() { 0 } else { end })?;
        self.apply(|files, log| files.write(log, file, offset, data))
    }

    /// Bytes at the end.
    ///
    /// # Errors
    /// As [`Self::write`].
    pub fn append(&mut self, file: FileNumber, data: &[u8]) -> Result<Number> {
        self.begin_change()?;
        let end = self.state()?.files.stat(file)?.len;
        self.write(file, end, data)
    }

    /// Another length.
    ///
    /// # Errors
    /// As [`Self::write`].
    pub fn truncate(&mut self, file: FileNumber, len: u64) -> Result<Number> {
        self.begin_change()?;
        let end = self.state()?.files.end_of(file, len, 0)?;
        self.make_room(file, end)?;
        self.apply(|files, log| files.truncate(log, file, len))
    }

    /// Other metadata.
    ///
    /// # Errors
    /// Not found; unavailable without room.
    pub fn set_metadata(&mut self, file: FileNumber, metadata: Metadata) -> Result<Number> {
        self.rename_in_table(0, &NameChange::Metadata { file, metadata })
    }

    /// Another name; a file that has it loses it, in one step.
    ///
    /// # Errors
    /// Not found; unavailable without room.
    pub fn rename(&mut self, from: &str, to: &str) -> Result<Number> {
        let (from, to) = (from.to_string(), to.to_string());
        let more = self.added(&[&to], &[&from])?;
        self.rename_in_table(more, &NameChange::Rename { from, to })
    }

    fn rename_in_table(&mut self, more: u64, change: &NameChange) -> Result<Number> {
        self.change(more, |files, log| files.rename(log, change))
    }

    /// One more name.
    ///
    /// # Errors
    /// Not found; invalid input where the name is taken; unavailable without room.
    pub fn link(&mut self, file: FileNumber, path: &str) -> Result<Number> {
        let path = path.to_string();
        let more = self.added(&[&path], &[])?;
        self.rename_in_table(more, &NameChange::Link { file, path })
    }

    /// A name less.
    ///
    /// # Errors
    /// Not found; unavailable without room.
    pub fn unlink(&mut self, path: &str) -> Result<Number> {
        let path = path.to_string();
        self.rename_in_table(0, &NameChange::Unlink { path })
    }

    /// Whether [`edit_names`](Self::edit_names) would take these changes. Peers have lent the
    /// memory for them then, unless another change needs it first.
    ///
    /// # Errors
    /// Not found and limit exceeded, as there; no space where f+1 copies cannot have the memory;
    /// busy while peers are asked: call again once something was handed in; unavailable during
    /// recovery, or without room for records.
    pub fn prepare_names(&mut self, edits: &[NameEdit]) -> Result<()> {
        // To ask is no change, and ends no grant.
        if self.are_prepared(edits)? {
            return Ok(());
        }
        let more = self.added_by(edits)?;
        self.begin_change()?;
        self.make_table_room(more).map(|_| ())
    }

    /// Whether [`edit_names`](Self::edit_names) would take these changes, and needs no more memory.
    ///
    /// # Errors
    /// Not found and limit exceeded, as there; unavailable during recovery.
    pub fn are_prepared(&self, edits: &[NameEdit]) -> Result<bool> {
        let files = &self.state()?.files;
        files.check_edit(edits)?;
        Ok(files.table_needs(self.added_by(edits)?).is_empty())
    }

    /// Bytes at most that the table is longer once it has some names and lacks others.
    fn added(&self, set: &[&str], removed: &[&str]) -> Result<u64> {
        Ok(self.state()?.files.names.added(set, removed))
    }

    fn added_by(&self, edits: &[NameEdit]) -> Result<u64> {
        let (mut set, mut removed) = (Vec::new(), Vec::new());
        for edit in edits {
            match edit {
                NameEdit::Set { path, .. } => set.push(path.as_str()),
                NameEdit::Remove { path } => removed.push(path.as_str()),
            }
        }
        self.added(&set, &removed)
    }

    /// Several changes of names in one step: all of them survive, or none.
    ///
    /// # Errors
    /// Not found for a file that does not exist; limit exceeded for changes that are no one record;
    /// unavailable without room.
    pub fn edit_names(&mut self, edits: &[NameEdit]) -> Result<Number> {
        let more = self.added_by(edits)?;
        self.change(more, |files, log| files.edit(log, edits))
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
            refused: self.refused,
        }
    }
}

//! A program that does anything to its files, and knows what it was told.

use crate::check::{History, Issued, Model, Operation};
use crate::images::ProgramImages;
use crate::peers::Random;
use gabion_base::{ErrorKind, Result};
use gabion_ncl::{Application, FileNumber, Metadata, NameEdit, Number};
use std::collections::VecDeque;

/// Changes of images at most whose records are not issued yet.
const AHEAD_MAX: u64 = 6;

/// A program over one instance.
#[derive(Clone, Debug, Default)]
pub(crate) struct Program {
    pub(crate) model: Model,
    pub(crate) history: History,
    pub(crate) operations: u64,
    /// Changes that the images have and that no record tells of yet.
    ahead: VecDeque<Operation>,
    /// No record is issued before those of before are stored.
    is_synced: bool,
    /// Steps that it is kept from running.
    kept: u64,
    /// It does nothing more.
    pub(crate) is_over: bool,
}

impl Program {
    /// One that begins with recovered files.
    pub(crate) fn new(model: Model, acknowledged: Number) -> Self {
        let history = History { base: model.clone(), issued: Vec::new(), acknowledged };
        Self {
            model,
            history,
            operations: 0,
            ahead: VecDeque::new(),
            is_synced: acknowledged.0.is_multiple_of(2),
            kept: 0,
            is_over: false,
        }
    }

    /// Does something: a change of bytes is one of the image first, and its record comes later.
    /// Changes of names wait for all records before them.
    pub(crate) fn step(
        &mut self,
        application: &mut Application<ProgramImages>,
        images: &ProgramImages,
        random: &mut Random,
    ) {
        if self.is_over {
            return self.catch_up(application, images);
        }
        // Its processes may be kept from running between a change and its record.
        self.kept = if random.once_in(60) { random.below(80) } else { self.kept.saturating_sub(1) };
        if self.kept > 0 && !self.ahead.is_empty() {
            return;
        }
        if random.once_in(2) {
            self.catch_up(application, images);
        }
        if self.ahead.len() as u64 >= AHEAD_MAX {
            return;
        }
        let operation = self.choose(random);
        if matches!(operation, Operation::Write(..) | Operation::Truncate(..)) {
            images.change(&operation);
            self.model.apply(&operation);
            self.ahead.push_back(operation);
            if self.ahead.len() as u64 > random.below(AHEAD_MAX) {
                self.catch_up(application, images);
            }
            return;
        }
        while !self.ahead.is_empty() && application.has_room() && !self.waits(application) {
            self.catch_up(application, images);
        }
        if self.ahead.is_empty()
            && application.has_room()
            && let Some(operation) = self.issue(application, operation)
        {
            self.model.apply(&operation);
        }
    }

    /// Issues the record of the oldest change. A program that could not do so is at its end: its
    /// images have what no record tells of.
    fn catch_up(&mut self, application: &mut Application<ProgramImages>, images: &ProgramImages) {
        if !application.has_room() || self.waits(application) {
            return;
        }
        let Some(operation) = self.ahead.pop_front() else { return };
        match self.issue(application, operation) {
            Some(_) => images.issued(),
            None => {
                self.ahead.clear();
                self.is_over = true;
            }
        }
    }

    /// Its owner waits until earlier records are stored, unless a copy needs more.
    fn waits(&self, application: &Application<ProgramImages>) -> bool {
        let status = application.status();
        self.is_synced && status.acknowledged < status.issued && !application.wants_changes()
    }

    fn issue(
        &mut self,
        application: &mut Application<ProgramImages>,
        operation: Operation,
    ) -> Option<Operation> {
        let first = application.issued().next();
        match self.perform(application, operation) {
            Ok(Some(operation)) => {
                self.operations += 1;
                let last = application.issued();
                let issued = Issued { first, last, operation: operation.clone() };
                self.history.issued.push(issued);
                Some(operation)
            }
            Ok(None) => None,
            Err(error) => {
                let is_end = matches!(error.kind(), ErrorKind::Fenced | ErrorKind::Unavailable);
                assert!(is_end, "{error}");
                None
            }
        }
    }

    fn any_file(&self, random: &mut Random) -> Option<FileNumber> {
        let at = random.below(self.model.files.len().max(1) as u64);
        self.model.files.keys().nth(at as usize).copied()
    }

    fn any_name(&self, random: &mut Random) -> Option<String> {
        let at = random.below(self.model.names.len().max(1) as u64);
        self.model.names.keys().nth(at as usize).cloned()
    }

    fn choose(&self, random: &mut Random) -> Operation {
        let path = format!("dir/{}", random.below(8));
        let metadata = Metadata {
            mode: random.below(512) as u32,
            user: random.below(9) as u32,
            ..Metadata::default()
        };
        let create = Operation::Create(FileNumber(0), path.clone(), metadata);
        let (Some(file), Some(name)) = (self.any_file(random), self.any_name(random)) else {
            return create;
        };
        let len = self.model.files[&file].0.len() as u64;
        let most = if random.once_in(12) { 9000 } else { 200 };
        // Logs that end in zeros are as good as others.
        let fill = if random.once_in(4) { 0 } else { 1 + random.below(255) as u8 };
        let mut data = vec![fill; 1 + random.below(most) as usize];
        if let Some(first) = data.first_mut() {
            *first = random.below(256) as u8;
        }
        match random.below(20) {
            0 => create,
            1 => Operation::Rename(name, path),
            2 if !self.model.names.contains_key(&path) => Operation::Link(file, path),
            3 if random.once_in(2) => Operation::Unlink(name),
            3 => {
                // Two files change their names, and a third name goes, in one step.
                let other = self.any_file(random).unwrap_or(file);
                let set = |path, file| NameEdit::Set { path, file };
                let edits = vec![set(name, other), set(path, file)];
                let gone = self.any_name(random).map(|path| NameEdit::Remove { path });
                Operation::Names(edits.into_iter().chain(gone).collect())
            }
            4 => Operation::Metadata(file, metadata),
            5 => Operation::Truncate(file, random.below(len.max(1) + 1)),
            6 => Operation::Truncate(file, random.below(30_000)),
            7..=9 if len < 60_000 => Operation::Write(file, random.below(len + 2000), data),
            10..=11 => Operation::Write(file, random.below(len.max(1)), data),
            _ if len < 60_000 => Operation::Write(file, len, data),
            _ => Operation::Truncate(file, 0),
        }
    }

    fn perform(
        &self,
        application: &mut Application<ProgramImages>,
        operation: Operation,
    ) -> Result<Option<Operation>> {
        match &operation {
            Operation::Create(_, path, metadata) => {
                if self.model.names.contains_key(path) {
                    return Ok(None);
                }
                let file = application.create(path, *metadata)?;
                return Ok(Some(Operation::Create(file, path.clone(), *metadata)));
            }
            Operation::Write(file, offset, data) => application.write(*file, *offset, data)?,
            Operation::Truncate(file, len) => application.truncate(*file, *len)?,
            Operation::Rename(from, to) => application.rename(from, to)?,
            Operation::Link(file, path) => application.link(*file, path)?,
            Operation::Unlink(path) => application.unlink(path)?,
            Operation::Names(edits) => application.edit_names(edits)?,
            Operation::Metadata(file, metadata) => application.set_metadata(*file, *metadata)?,
        };
        Ok(Some(operation))
    }
}

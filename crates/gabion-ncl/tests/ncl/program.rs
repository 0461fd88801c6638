//! A program that does anything to its files, and knows what it was told.

use crate::check::{Claimed, History, Issued, Model, Operation};
use crate::direct::{Record, Slips, Tally, Went};
use crate::images::ProgramImages;
use crate::peers::Random;
use gabion_base::{Error, ErrorKind, Result};
use gabion_ncl::{Application, FileNumber, Metadata, NameEdit, Number};
use std::collections::VecDeque;

/// Changes of images at most whose records are not issued yet.
const AHEAD_MAX: u64 = 6;

/// An error of a call that may be made later, or of an instance that ends.
fn assert_not_now(error: &Error) {
    let kinds = [ErrorKind::Fenced, ErrorKind::Unavailable, ErrorKind::Busy];
    assert!(kinds.contains(&error.kind()), "{error}");
}

/// A program over one instance.
#[derive(Clone, Debug, Default)]
pub(crate) struct Program {
    pub(crate) model: Model,
    pub(crate) history: History,
    pub(crate) operations: u64,
    /// The last record that counted.
    counted: Number,
    /// Changes that the images have and that no record tells of yet.
    ahead: VecDeque<Operation>,
    /// No record is issued before those of before are stored.
    is_synced: bool,
    /// Steps that it is kept from running.
    kept: u64,
    /// Steps that it changes nothing.
    rests: u64,
    /// It does nothing more.
    pub(crate) is_over: bool,
    /// It has the peers' memory mapped.
    pub(crate) is_shared: bool,
    /// The record that it is writing to the peers.
    record: Option<Record>,
    pub(crate) slips: Slips,
    pub(crate) tally: Tally,
    /// Changes for which peers had no memory.
    pub(crate) denied: u64,
    /// Times at which it had memory given back.
    pub(crate) trimmed: u64,
}

impl Program {
    /// One that begins with recovered files.
    pub(crate) fn new(model: Model, acknowledged: Number) -> Self {
        let history = History { base: model.clone(), acknowledged, ..History::default() };
        let is_synced = acknowledged.0.is_multiple_of(2);
        Self { model, history, is_synced, ..Self::default() }
    }

    /// Does something: a change of bytes is one of the image first, and its record comes later.
    /// Changes of names wait for all records before them.
    pub(crate) fn step(
        &mut self,
        application: &mut Application<ProgramImages>,
        images: &ProgramImages,
        random: &mut Random,
    ) {
        if images.is_own.get() {
            return;
        }
        if self.is_over {
            self.go_on(images, random);
            return self.catch_up(application, images);
        }
        // Its processes may be kept from running between a change and its record.
        self.kept = if random.once_in(60) { random.below(80) } else { self.kept.saturating_sub(1) };
        if self.is_redone() && random.once_in(8) {
            self.change_names(application, images, random);
        }
        let is_amid = self.record.is_some() || !self.ahead.is_empty();
        if self.kept > 0 && is_amid || self.writes(images, random) {
            return;
        }
        if self.rests(random) {
            return self.catch_up(application, images);
        }
        if random.once_in(2) {
            self.catch_up(application, images);
        }
        if self.ahead.len() as u64 >= AHEAD_MAX {
            return;
        }
        let operation = self.choose(random);
        if matches!(operation, Operation::Write(..) | Operation::Truncate(..)) {
            if !self.reserve(application, &operation, random) {
                return;
            }
            images.change(&operation);
            self.model.apply(&operation);
            images.shared.revoke();
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
            && let Some(operation) = self.issue(application, images, operation)
        {
            self.model.apply(&operation);
        }
    }

    /// Does what a test wants, if peers have the memory; else nothing has changed.
    pub(crate) fn make(
        &mut self,
        application: &mut Application<ProgramImages>,
        images: &ProgramImages,
        operation: Operation,
    ) -> Result<()> {
        assert!(self.ahead.is_empty() && self.record.is_none(), "it is at rest");
        let Some((file, end)) = operation.end() else {
            let first = application.issued().next();
            let operation = self.perform(application, operation)?.expect("it can be done");
            let last = application.issued();
            self.model.apply(&operation);
            self.history.issued.push(Issued { first, last, operation });
            return Ok(());
        };
        application.reserve(file, end)?;
        if !application.has_room() {
            return Err(Error::new(
                ErrorKind::Busy,
                "a part's record is the last there is room for",
            ));
        }
        images.change(&operation);
        self.model.apply(&operation);
        self.issue(application, images, operation).expect("its memory was lent");
        images.issued();
        Ok(())
    }

    /// Whether peers have memory for what a file will be. If not, nothing of it has changed.
    fn reserve(
        &mut self,
        application: &mut Application<ProgramImages>,
        operation: &Operation,
        random: &mut Random,
    ) -> bool {
        let (file, end) = operation.end().expect("it changes bytes");
        if !application.has_room() {
            return false;
        }
        match application.reserve(file, end) {
            Ok(capacity) => {
                assert!(capacity >= end, "{file} has room for {capacity} of {end} bytes");
                return true;
            }
            Err(error) if error.kind() == ErrorKind::NoSpace => {
                self.denied += 1;
                assert!(error.message().contains("has no room for"), "{error}");
            }
            Err(error) => assert_not_now(&error),
        }
        // As its owner does it: while nobody changes a file.
        if self.ahead.is_empty() && self.record.is_none() && random.once_in(2) {
            let lens =
                self.model.files.iter().map(|(file, (bytes, _))| (*file, bytes.len() as u64));
            match application.trim(&lens.collect()) {
                Ok(is_trimmed) => self.trimmed += u64::from(is_trimmed),
                Err(error) => assert_not_now(&error),
            }
        }
        false
    }

    /// The file whose records it would write itself, if it has none under way.
    pub(crate) fn wanted(&self, random: &mut Random) -> Option<FileNumber> {
        self.any_file(random).filter(|_| !self.is_over && self.record.is_none())
    }

    /// Whether it is amid a record that peers may have.
    pub(crate) fn is_amid(&self) -> bool {
        self.record.is_some()
    }

    /// Steps that are left of it.
    pub(crate) fn steps_left(&self) -> Option<usize> {
        self.record.as_ref().map(Record::left)
    }

    /// The program goes on while its library does nothing.
    pub(crate) fn step_alone(&mut self, images: &ProgramImages, random: &mut Random) {
        let before = self.tally.records;
        self.writes(images, random);
        self.tally.alone += self.tally.records - before;
    }

    /// Writes records to the peers itself. False if it has something else to do.
    fn writes(&mut self, images: &ProgramImages, random: &mut Random) -> bool {
        if self.record.is_some() {
            self.go_on(images, random);
            return true;
        }
        let Some((file, len)) = images.shared.open().filter(|_| self.ahead.is_empty()) else {
            return false;
        };
        if random.once_in(12) || !self.model.files.contains_key(&file) {
            return false;
        }
        let offset = if random.once_in(3) { random.below(len + 1) } else { len };
        let most = if random.once_in(8) { 2000 } else { 200 };
        let mut data = vec![random.below(256) as u8; 1 + random.below(most) as usize];
        data[0] = random.below(256) as u8;
        let operation = Operation::Write(file, offset, data);
        self.record = images.shared.turn(&operation, random);
        if self.record.is_some() {
            images.change(&operation);
            self.model.apply(&operation);
            self.go_on(images, random);
            return true;
        }
        false
    }

    /// Whether it changes nothing for a while, so that a grant can be given.
    fn rests(&mut self, random: &mut Random) -> bool {
        self.rests = match self.rests {
            0 if self.is_shared && random.once_in(10) => 10 + random.below(20),
            rests => rests.saturating_sub(1),
        };
        self.rests > 0
    }

    /// Goes on with the record that it is writing, some steps.
    fn go_on(&mut self, images: &ProgramImages, random: &mut Random) {
        while let Some(mut record) = self.record.take() {
            match record.step(&images.shared, self.slips) {
                Went::On => {}
                Went::Claimed => {
                    let (number, operation) = (record.number, record.operation.clone());
                    self.history.claimed.push(Claimed { number, operation, redone: None });
                }
                Went::Counted => return self.count(images, record),
                went => {
                    self.tally.closed += u64::from(went == Went::Closed);
                    images.shared.revoke();
                    return self.ahead.push_front(record.operation);
                }
            }
            self.record = Some(record);
            if random.once_in(3) && !self.is_over {
                return;
            }
        }
    }

    /// A record counts: it is acknowledged.
    fn count(&mut self, images: &ProgramImages, record: Record) {
        let Record { number, operation, .. } = record;
        self.history.claimed.pop().expect("it was claimed");
        self.history.issued.push(Issued { first: number, last: number, operation });
        self.counted = number;
        images.issued();
        self.operations += 1;
        self.tally.records += 1;
    }

    /// Whether a record that was claimed is under way, or is to be issued anew.
    fn is_redone(&self) -> bool {
        self.history.claimed.last().is_some_and(|claimed| claimed.redone.is_none())
    }

    /// Another process of the program changes names meanwhile.
    fn change_names(
        &mut self,
        application: &mut Application<ProgramImages>,
        images: &ProgramImages,
        random: &mut Random,
    ) {
        let is_possible = application.has_room() && !self.waits(application);
        let operation = self.choose(random);
        let is_harmless = matches!(operation, Operation::Create(..) | Operation::Metadata(..));
        if is_possible
            && is_harmless
            && let Some(operation) = self.issue(application, images, operation)
        {
            self.model.apply(&operation);
        }
    }

    /// The last record that it was told of, of those that are acknowledged by now.
    pub(crate) fn acknowledged(&self, acknowledged: Number) -> Number {
        self.history.told(acknowledged).max(self.counted)
    }

    /// Issues the record of the oldest change. A program that could not do so is at its end: its
    /// images have what no record tells of.
    fn catch_up(&mut self, application: &mut Application<ProgramImages>, images: &ProgramImages) {
        if !application.has_room() || self.waits(application) {
            return;
        }
        let Some(operation) = self.ahead.pop_front() else { return };
        match self.issue(application, images, operation) {
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
        images: &ProgramImages,
        operation: Operation,
    ) -> Option<Operation> {
        if images.shared.is_granted() {
            // No change of names is a change all the same: it ends the grant. An error of it is
            // one of the operation, too.
            let _ = application.edit_names(&[]);
        }
        let first = application.issued().next();
        let is_bytes = matches!(operation, Operation::Write(..) | Operation::Truncate(..));
        match self.perform(application, operation) {
            Ok(Some(operation)) => {
                self.operations += 1;
                let last = application.issued();
                if let Some(claimed) = self.history.claimed.last_mut().filter(|_| is_bytes) {
                    claimed.redone.get_or_insert(first);
                }
                let issued = Issued { first, last, operation: operation.clone() };
                self.history.issued.push(issued);
                Some(operation)
            }
            Ok(None) => None,
            Err(error) => {
                self.denied += u64::from(error.kind() == ErrorKind::NoSpace);
                // Names may come later. Bytes are there already, and their memory was lent.
                assert!(!is_bytes || error.kind() != ErrorKind::NoSpace, "{error}");
                assert!(!is_bytes || error.kind() != ErrorKind::Busy, "{error}");
                if error.kind() != ErrorKind::NoSpace {
                    assert_not_now(&error);
                }
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
            Operation::Names(edits) => {
                application.prepare_names(edits)?;
                application.edit_names(edits).expect("its memory was lent")
            }
            Operation::Metadata(file, metadata) => application.set_metadata(*file, *metadata)?,
        };
        Ok(Some(operation))
    }
}

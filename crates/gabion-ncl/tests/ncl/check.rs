//! The checker: a plain model of files, the history of operations, and the comparison of recovered
//! files with both.

use crate::images::ProgramImages;
use gabion_ncl::{Application, FileNumber, Metadata, NameEdit, Number};
use std::collections::BTreeMap;

/// An operation of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Create(FileNumber, String, Metadata),
    Write(FileNumber, u64, Vec<u8>),
    Truncate(FileNumber, u64),
    Rename(String, String),
    Link(FileNumber, String),
    Unlink(String),
    Names(Vec<NameEdit>),
    Metadata(FileNumber, Metadata),
}

impl Operation {
    /// The file whose bytes it changes, and how long that is then at least.
    pub(crate) fn end(&self) -> Option<(FileNumber, u64)> {
        match self {
            Self::Write(file, offset, data) => Some((*file, offset + data.len() as u64)),
            Self::Truncate(file, len) => Some((*file, *len)),
            _ => None,
        }
    }
}

/// Files as they are after some operations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Model {
    pub(crate) names: BTreeMap<String, FileNumber>,
    pub(crate) files: BTreeMap<FileNumber, (Vec<u8>, Metadata)>,
}

impl Model {
    pub(crate) fn apply(&mut self, operation: &Operation) {
        match operation {
            Operation::Create(file, path, metadata) => {
                self.names.insert(path.clone(), *file);
                self.files.insert(*file, (Vec::new(), *metadata));
            }
            Operation::Write(file, ..) | Operation::Truncate(file, _) => {
                let (bytes, _) = self.files.get_mut(file).expect("the file is there");
                Self::change(bytes, operation);
            }
            Operation::Rename(from, to) => {
                if self.names.get(from) != self.names.get(to) {
                    let file = self.names.remove(from).expect("the name is there");
                    self.names.insert(to.clone(), file);
                }
            }
            Operation::Link(file, path) => drop(self.names.insert(path.clone(), *file)),
            Operation::Unlink(path) => drop(self.names.remove(path)),
            Operation::Names(edits) => {
                for edit in edits {
                    match edit {
                        NameEdit::Set { path, file } => {
                            self.names.insert(path.clone(), *file);
                        }
                        NameEdit::Remove { path } => {
                            self.names.remove(path);
                        }
                    }
                }
            }
            Operation::Metadata(file, metadata) => {
                self.files.get_mut(file).expect("the file is there").1 = *metadata;
            }
        }
        let named: Vec<FileNumber> = self.names.values().copied().collect();
        self.files.retain(|file, _| named.contains(file));
    }

    /// Changes the bytes of the operation's file.
    pub(crate) fn change(bytes: &mut Vec<u8>, operation: &Operation) {
        match operation {
            Operation::Write(_, offset, data) => {
                let end = *offset as usize + data.len();
                bytes.resize(bytes.len().max(end), 0);
                bytes[*offset as usize..end].copy_from_slice(data);
            }
            Operation::Truncate(_, len) => bytes.resize(*len as usize, 0),
            other => unreachable!("{other:?} changes no bytes"),
        }
    }

    /// The files of an application.
    pub(crate) fn of(application: &Application<ProgramImages>) -> Result<Self, String> {
        let mut model = Self::default();
        let names = application.list("").map_err(|error| error.to_string())?;
        for (name, file) in names {
            model.names.insert(name, file);
            let stat = application.stat(file).map_err(|error| error.to_string())?;
            let mut bytes = vec![0; stat.len as usize + 3];
            let read = application.read(file, 0, &mut bytes).map_err(|error| error.to_string())?;
            bytes.truncate(read);
            if read as u64 != stat.len {
                return Err(format!("{file}: {read} bytes of {} are read", stat.len));
            }
            model.files.insert(file, (bytes, stat.entry.metadata));
        }
        Ok(model)
    }
}

/// An operation and the records that it became.
#[derive(Clone, Debug)]
pub(crate) struct Issued {
    pub(crate) first: Number,
    pub(crate) last: Number,
    pub(crate) operation: Operation,
}

/// An operation whose program began to write its record to the peers, which did not count, or not
/// yet: some peers may have it, or a part of it.
#[derive(Clone, Debug)]
pub(crate) struct Claimed {
    pub(crate) number: Number,
    pub(crate) operation: Operation,
    /// The first of the records that it became afterwards.
    pub(crate) redone: Option<Number>,
}

impl Claimed {
    /// Whether copies up to `number` may have it or a part of it.
    fn may_be_in(&self, number: Number) -> bool {
        self.number <= number.next() && self.redone.is_none_or(|first| first > number)
    }
}

/// The operations of one instance since its files were there.
#[derive(Clone, Debug, Default)]
pub(crate) struct History {
    pub(crate) base: Model,
    pub(crate) issued: Vec<Issued>,
    /// Those that no record was issued for at first.
    pub(crate) claimed: Vec<Claimed>,
    /// The greatest number that any instance was told is acknowledged.
    pub(crate) acknowledged: Number,
}

impl History {
    /// The last record up to `number` that an operation became: one that was claimed may be none.
    pub(crate) fn told(&self, number: Number) -> Number {
        let is_of = |issued: &Issued| issued.first <= number && number <= issued.last;
        let is_claimed = self.claimed.iter().any(|it| it.number == number);
        if is_claimed && !self.issued.iter().rev().any(is_of) {
            return Number(number.0 - 1);
        }
        number
    }

    /// Whether what was recovered up to `number` is what was done: all that was acknowledged, no
    /// byte that nobody wrote, and of the first record that is not there some bytes at most. So it
    /// is with one that was claimed.
    pub(crate) fn check(&self, found: &Model, number: Number) -> Result<(), String> {
        if number < self.acknowledged {
            return Err(format!("{} was acknowledged, {number} is recovered", self.acknowledged));
        }
        let mut expected = self.base.clone();
        let mut partial = None;
        for issued in &self.issued {
            if issued.last <= number {
                expected.apply(&issued.operation);
            } else if partial.is_none() && issued.first.0 <= number.0 + 1 {
                partial = Some(&issued.operation);
            }
        }
        let claimed = self.claimed.iter().filter(|it| it.may_be_in(number));
        let partial: Vec<&Operation> =
            partial.into_iter().chain(claimed.map(|it| &it.operation)).collect();
        let mut after = expected.clone();
        partial.iter().for_each(|operation| after.apply(operation));
        if found.names != expected.names && found.names != after.names {
            return Err(format!("names {:?}, expected {:?}", found.names, expected.names));
        }
        for (file, (bytes, metadata)) in &found.files {
            let none = (Vec::new(), *metadata);
            let (before, old) = expected.files.get(file).unwrap_or(&none);
            let (later, new) = after.files.get(file).unwrap_or(&none);
            if metadata != old && metadata != new {
                return Err(format!("{file}: {metadata:?}, expected {old:?}"));
            }
            check_bytes(*file, bytes, before, later, &partial)
                .map_err(|failure| format!("{failure}, at {number}, then {partial:?}"))?;
        }
        Ok(())
    }
}

fn check_bytes(
    file: FileNumber,
    bytes: &[u8],
    before: &[u8],
    later: &[u8],
    partial: &[&Operation],
) -> Result<(), String> {
    let lens = before.len().min(later.len())..=before.len().max(later.len());
    if !lens.contains(&bytes.len()) {
        return Err(format!("{file}: {} bytes, expected {lens:?}", bytes.len()));
    }
    let written = |operation: &&Operation| match operation {
        Operation::Write(of, offset, data) if *of == file => {
            Some((*offset as usize..*offset as usize + data.len(), data.clone()))
        }
        _ => None,
    };
    let written: Vec<_> = partial.iter().filter_map(written).collect();
    for (at, &byte) in bytes.iter().enumerate() {
        let old = before.get(at).copied().unwrap_or(0);
        let is_new = written
            .iter()
            .any(|(range, data)| range.contains(&at) && data[at - range.start] == byte);
        if byte != old && !is_new {
            return Err(format!("{file}: byte {at} of {} is {byte}, was {old}", bytes.len()));
        }
    }
    Ok(())
}

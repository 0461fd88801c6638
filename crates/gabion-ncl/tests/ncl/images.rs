//! Images that the program changes itself, as the interposer's programs do: a change is there
//! first, and its record comes later, or never if the program dies between.

use crate::check::{Model, Operation};
use crate::direct::Shared;
use gabion_base::Result;
use gabion_ncl::{FileNumber, Image, Images, Recalled};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

type Bytes = Rc<RefCell<Vec<u8>>>;

/// The images of one instance.
#[derive(Clone, Debug, Default)]
pub(crate) struct ProgramImages {
    files: Rc<RefCell<BTreeMap<FileNumber, Bytes>>>,
    /// Changes that were made, and those whose records are issued.
    made: Rc<Cell<u64>>,
    issued: Rc<Cell<u64>>,
    /// The grant, if there is one.
    pub(crate) shared: Shared,
    /// The program changes no image itself, and does only what a test wants.
    pub(crate) is_own: Rc<Cell<bool>>,
}

impl ProgramImages {
    /// The program changes bytes.
    pub(crate) fn change(&self, operation: &Operation) {
        self.made.set(self.made.get() + 1);
        let (Operation::Write(file, ..) | Operation::Truncate(file, _)) = operation else {
            unreachable!("{operation:?} changes no bytes");
        };
        let files = self.files.borrow();
        let mut bytes = files.get(file).expect("the file has an image").borrow_mut();
        Model::change(&mut bytes, operation);
    }

    /// Whether there is a record of each change.
    pub(crate) fn is_at_rest(&self) -> bool {
        self.made == self.issued
    }

    /// The record of the oldest change was issued, or counts.
    pub(crate) fn issued(&self) {
        self.issued.set(self.issued.get() + 1);
        assert!(self.issued.get() <= self.made.get(), "a record without a change");
    }
}

impl Images for ProgramImages {
    type Image = ProgramImage;

    fn create(&mut self, file: FileNumber) -> Result<ProgramImage> {
        if file.is_names() || self.is_own.get() {
            return Ok(ProgramImage::Own(Vec::new()));
        }
        let bytes = Bytes::default();
        self.files.borrow_mut().insert(file, Rc::clone(&bytes));
        Ok(ProgramImage::Shared(bytes))
    }

    fn mark(&self) -> u64 {
        self.made.get()
    }

    fn has_issued(&self, mark: u64) -> bool {
        self.issued.get() >= mark
    }

    fn recall(&mut self) -> Option<Recalled> {
        self.shared.recall()
    }
}

/// An image: of the table of names, or one that the program has too.
#[derive(Debug)]
pub(crate) enum ProgramImage {
    Own(Vec<u8>),
    Shared(Bytes),
}

impl Image for ProgramImage {
    fn write(&mut self, offset: u64, data: &[u8]) -> Result<()> {
        match self {
            Self::Own(bytes) => bytes.write(offset, data),
            Self::Shared(bytes) => bytes.borrow_mut().write(offset, data),
        }
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        match self {
            Self::Own(bytes) => bytes.read(offset, into),
            Self::Shared(bytes) => bytes.borrow().read(offset, into),
        }
    }

    fn resize(&mut self, len: u64) -> Result<()> {
        match self {
            Self::Own(bytes) => Image::resize(bytes, len),
            Self::Shared(bytes) => Image::resize(&mut *bytes.borrow_mut(), len),
        }
    }

    fn is_ahead(&self) -> bool {
        matches!(self, Self::Shared(_))
    }
}

//! Mirrors: of this process alone, or shared with the program that the interposer is in.

use gabion_base::{Error, ErrorKind, Result};
use gabion_mirror::files::memory_file;
use gabion_mirror::shared::Shared;
use gabion_ncl::{FileNumber, Image, Images, Recalled};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, OnceLock};

/// The memory in which a program's processes note their changes of mirrors; none until there are
/// such processes.
pub(crate) type Changes = Arc<OnceLock<Shared>>;

/// The maker of an instance's mirrors.
#[derive(Debug)]
pub(crate) struct Mirrors {
    /// The program changes the mirrors itself. None: they are of this process alone.
    pub(crate) program: Option<Changes>,
}

impl Mirrors {
    fn changes(&self) -> Option<&Shared> {
        self.program.as_ref()?.get()
    }
}

impl Images for Mirrors {
    type Image = Mirror;

    fn create(&mut self, file: FileNumber) -> Result<Mirror> {
        if self.program.is_none() || file.is_names() {
            return Ok(Mirror::Own(Vec::new()));
        }
        memory_file().map(Mirror::OfProgram).map_err(|error| refused(file.to_string(), error))
    }

    fn mark(&self) -> u64 {
        self.changes().map_or(0, Shared::mark)
    }

    fn advance(&self, mark: u64) -> u64 {
        self.changes().map_or(mark, |changes| changes.advance(mark))
    }

    fn has_issued(&self, mark: u64) -> bool {
        self.changes().is_none_or(|changes| changes.has_issued(mark))
    }

    fn recall(&mut self) -> Option<Recalled> {
        self.changes().and_then(Shared::recall)
    }
}

/// A mirror.
#[derive(Debug)]
pub(crate) enum Mirror {
    /// Of this process.
    Own(Vec<u8>),
    /// A memory file that the program has open.
    OfProgram(File),
}

impl Mirror {
    /// A descriptor of the program's file, if it is one.
    pub(crate) fn memory(&self) -> io::Result<Option<File>> {
        match self {
            Self::Own(_) => Ok(None),
            Self::OfProgram(file) => file.try_clone().map(Some),
        }
    }
}

fn refused(what: String, error: io::Error) -> Error {
    Error::with_source(ErrorKind::Io, format!("the mirror of {what}"), error)
}

impl Image for Mirror {
    fn write(&mut self, offset: u64, data: &[u8]) -> Result<()> {
        match self {
            Self::Own(bytes) => bytes.write(offset, data),
            Self::OfProgram(file) => {
                let written = file.write_all_at(data, offset);
                written.map_err(|e| refused(format!("{} bytes at {offset}", data.len()), e))
            }
        }
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        match self {
            Self::Own(bytes) => bytes.read(offset, into),
            Self::OfProgram(file) => {
                let what = |e| refused(format!("{offset}"), e);
                let mut done = 0;
                while done < into.len() {
                    match file.read_at(&mut into[done..], offset + done as u64).map_err(what)? {
                        0 => break,
                        some => done += some,
                    }
                }
                // Cut off by the program, or not written yet.
                into[done..].fill(0);
                Ok(())
            }
        }
    }

    fn resize(&mut self, len: u64) -> Result<()> {
        match self {
            Self::Own(bytes) => Image::resize(bytes, len),
            Self::OfProgram(file) => {
                file.set_len(len).map_err(|e| refused(format!("{len} bytes"), e))
            }
        }
    }

    fn is_ahead(&self) -> bool {
        matches!(self, Self::OfProgram(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_kinds_of_mirrors_hold_the_same_bytes() {
        let both = [None, Some(Changes::default())];
        for program in both {
            let is_ahead = program.is_some();
            let mut mirrors = Mirrors { program };
            assert!(mirrors.has_issued(mirrors.mark()), "nobody changes anything");
            let mut mirror = mirrors.create(FileNumber(9)).unwrap();
            assert_eq!(
                (mirror.is_ahead(), mirror.memory().unwrap().is_some()),
                (is_ahead, is_ahead)
            );
            mirror.write(3, b"abc").unwrap();
            let mut found = [1; 8];
            mirror.read(0, &mut found).unwrap();
            assert_eq!(found, *b"\0\0\0abc\0\0");
            mirror.resize(4).unwrap();
            mirror.resize(6).unwrap();
            mirror.read(2, &mut found).unwrap();
            assert_eq!(found, *b"\0a\0\0\0\0\0\0");
            assert!(!mirrors.create(FileNumber::NAMES[0]).unwrap().is_ahead());
        }
    }
}

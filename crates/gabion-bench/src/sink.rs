//! The destination of measurements as they come, one JSON value a line, so that a run that fails
//! late leaves the earlier ones.

use gabion_base::{Error, ErrorKind, Result};
use std::fmt::Display;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// The target of `--json`.
pub(crate) enum Sink {
    /// Nothing.
    Nowhere,
    /// The standard output, which has nothing else then.
    Stdout,
    File(PathBuf, File),
}

impl Sink {
    /// `-` is the standard output.
    ///
    /// # Errors
    /// The file is there, or cannot be made.
    pub(crate) fn open(path: Option<&Path>) -> Result<Self> {
        match path {
            None => Ok(Self::Nowhere),
            Some(path) if path == Path::new("-") => Ok(Self::Stdout),
            Some(path) => {
                let file = File::create_new(path).map_err(|error| match error.kind() {
                    io::ErrorKind::AlreadyExists => Error::invalid(format!(
                        "--json names {}, which is there: name another file, or remove it",
                        path.display()
                    )),
                    _ => {
                        Error::with_source(ErrorKind::Io, format!("make {}", path.display()), error)
                    }
                })?;
                Ok(Self::File(path.to_path_buf(), file))
            }
        }
    }

    /// Whether the standard output is taken.
    pub(crate) const fn is_stdout(&self) -> bool {
        matches!(self, Self::Stdout)
    }

    /// Writes a line; `out` is the standard output.
    ///
    /// # Errors
    /// It cannot be written.
    pub(crate) fn write(&mut self, json: &impl Display, out: &mut dyn Write) -> Result<()> {
        let line = format!("{json}\n");
        match self {
            Self::Nowhere => Ok(()),
            Self::Stdout => print(&line, out),
            Self::File(path, file) => file.write_all(line.as_bytes()).map_err(|error| {
                Error::with_source(ErrorKind::Io, format!("write {}", path.display()), error)
            }),
        }
    }
}

/// Writes a part of a report to the standard output, at once.
///
/// # Errors
/// It cannot be written.
pub(crate) fn print(text: &str, out: &mut dyn Write) -> Result<()> {
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(|e| Error::with_source(ErrorKind::Io, "the report cannot be written", e))
}

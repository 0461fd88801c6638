//! The sources that a program is built from, so that an older program is found out.
//!
//! ```text
//!   gabion bench …                     engine-rocksdb, replica-rocksdb …
//!     Build::own ◄──── the same? ──── built-from ─► one line of JSON
//! ```

use gabion_base::{Error, ErrorKind, Result};
use serde_json::{Value, json};
use std::io::Write;

/// The sources of a program, and its profile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Build {
    /// A number, in hexadecimal digits, for the sources of the workloads, the instrument and the
    /// peers' programs with their settings and locked versions (`build.rs`): programs with the same
    /// number measure the same.
    pub sources: String,
    /// `release`, or `debug` for a build with checks, whose figures say nothing about the other.
    pub profile: String,
}

impl Build {
    /// The word that asks a peer's program for this, as the first of its command line.
    pub const WORD: &'static str = "built-from";

    /// The build of this program.
    #[must_use]
    pub fn own() -> Self {
        let profile = if cfg!(debug_assertions) { "debug" } else { "release" };
        Self { sources: env!("GABION_WORKLOAD_SOURCES").to_owned(), profile: profile.to_owned() }
    }

    /// The fields as rows and the output have them.
    #[must_use]
    pub fn json(&self) -> Value {
        json!({"sources": self.sources, "profile": self.profile})
    }

    /// Reads a program's output; none if it is something else.
    #[must_use]
    pub fn parse(text: &[u8]) -> Option<Self> {
        let value: Value = serde_json::from_slice(text).ok()?;
        let text = |name: &str| Some(value[name].as_str()?.to_owned());
        Some(Self { sources: text("sources")?, profile: text("profile")? })
    }

    /// Prints the build of this program on standard output, if the first word of the command line
    /// asks for it.
    ///
    /// # Errors
    /// I/O: it cannot be printed.
    pub fn print_if_asked() -> Result<bool> {
        if std::env::args_os().nth(1).is_none_or(|word| word != Self::WORD) {
            return Ok(false);
        }
        let line = format!("{}\n", Self::own().json());
        let printed = std::io::stdout().write_all(line.as_bytes());
        printed.map(|()| true).map_err(|error| {
            Error::with_source(ErrorKind::Io, "what this is built from cannot be printed", error)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_program_prints_of_its_build_is_read_back() {
        let own = Build::own();
        assert_eq!(Build::parse(own.json().to_string().as_bytes()), Some(own.clone()));
        assert_eq!(own.sources.len(), 16);
        for text in ["", "ready 1 2", "{}", r#"{"sources":1,"profile":"release"}"#] {
            assert_eq!(Build::parse(text.as_bytes()), None, "{text}");
        }
    }
}

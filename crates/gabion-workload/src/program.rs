//! The `main` of an engine's program: `engine-NAME run --workload … --dir …`, one row on standard
//! output, its progress on standard error.

use crate::args::RunArgs;
use crate::build::Build;
use crate::engine::Engine;
use crate::run::run;
use clap::{CommandFactory, FromArgMatches, Parser};
use gabion_base::{Error, ErrorKind, Result};
use std::io::Write;
use std::process::ExitCode;

/// Measures one engine on one workload.
#[derive(Parser)]
enum Line {
    /// Run one workload and print its row as JSON
    Run(Box<RunArgs>),
    /// Print what this program is built from, as JSON
    BuiltFrom,
}

/// Reads the command line (a `run`, or [`Build::WORD`]), carries it out, prints the row. Exit
/// codes: 0 fine, 1 a wrong read, 2 the command could not be carried out.
#[must_use]
pub fn program<E: Engine>() -> ExitCode {
    let command = Line::command().bin_name(format!("engine-{}", E::NAME));
    let line = command.try_get_matches().and_then(|matches| Line::from_arg_matches(&matches));
    let outcome = match line {
        Ok(Line::Run(args)) => run_and_print::<E>(&args),
        Ok(Line::BuiltFrom) => Build::print_if_asked().map(|_| ()),
        Err(error) => error.exit(),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("engine-{}: {error}", E::NAME);
            let is_wrong = error.kind() == ErrorKind::Corruption;
            ExitCode::from(if is_wrong { 1 } else { 2 })
        }
    }
}

/// Carries out the options' run and prints the row on standard output, its progress on standard
/// error.
///
/// # Errors
/// Corruption for a wrong read; the error of the options or the engine; I/O when the row cannot be
/// printed.
pub fn run_and_print<E: Engine>(args: &RunArgs) -> Result<()> {
    let mut say = |what: &str| eprintln!("{}: {what}", E::NAME);
    let row = run::<E>(&args.plan()?, &mut say)?;
    let line = format!("{}\n", row.json());
    let printed = std::io::stdout().write_all(line.as_bytes());
    printed.map_err(|error| Error::with_source(ErrorKind::Io, "the row cannot be printed", error))
}

/// The version of a package in the text of a `Cargo.lock`: the one that a program of that workspace
/// was built with. Of two versions the first.
#[must_use]
pub fn locked_version<'a>(lock: &'a str, package: &str) -> Option<&'a str> {
    let name = format!("name = \"{package}\"");
    let mut lines = lock.lines().skip_while(|line| *line != name);
    lines.nth(1)?.strip_prefix("version = \"")?.strip_suffix('"')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_that_of_the_lock() {
        let lock = "[[package]]\nname = \"ab\"\nversion = \"1.0.0\"\n\n[[package]]\nname = \"a\"\n\
                    version = \"0.49.0+11.12.0\"\nsource = \"registry\"\n";
        assert_eq!(locked_version(lock, "a"), Some("0.49.0+11.12.0"));
        assert_eq!(locked_version(lock, "ab"), Some("1.0.0"));
        assert_eq!(locked_version(lock, "b"), None);
    }
}

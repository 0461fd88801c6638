//! The `main` of an engine's program: `engine-NAME run --workload … --dir …`, one row on standard
//! output, what it is at on standard error.

use crate::args::RunArgs;
use crate::engine::Engine;
use crate::run::run;
use clap::{CommandFactory, FromArgMatches, Parser};
use std::io::Write;
use std::process::ExitCode;

/// Measures one engine on one workload.
#[derive(Parser)]
enum Line {
    /// Run one workload and print its row as JSON
    Run(RunArgs),
}

/// Reads the command line, runs what it says, prints the row. Exit codes: 0 fine, 1 a wrong read, 2
/// the command could not be carried out.
#[must_use]
pub fn program<E: Engine>() -> ExitCode {
    let command = Line::command().bin_name(format!("engine-{}", E::NAME));
    let line = command.try_get_matches().and_then(|matches| Line::from_arg_matches(&matches));
    let Line::Run(args) = match line {
        Ok(line) => line,
        Err(error) => error.exit(),
    };
    let mut say = |what: &str| eprintln!("{}: {what}", E::NAME);
    let outcome = args.plan().and_then(|plan| run::<E>(&plan, &mut say));
    match outcome {
        Ok(row) => {
            let line = format!("{}\n", row.json());
            match std::io::stdout().write_all(line.as_bytes()) {
                Ok(()) => ExitCode::SUCCESS,
                Err(_) => ExitCode::from(2),
            }
        }
        Err(error) => {
            eprintln!("engine-{}: {error}", E::NAME);
            let is_wrong = error.kind() == gabion_base::ErrorKind::Corruption;
            ExitCode::from(if is_wrong { 1 } else { 2 })
        }
    }
}

/// The version of a package in the text of a `Cargo.lock`: what a program of that workspace was built
/// with. Of two versions the first.
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

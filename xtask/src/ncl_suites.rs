//! Redis's units of the append-only file and SQLite's of journals, locks and failures, as they are
//! published: each without the interposer and with it. No test may fail with it alone.
//!
//! ```text
//! Debian's sources ─► units ─┬─────────────────────► how each test ended ─┐
//!                            └─► gabion ncl run ───► how each test ended ─┴─► no failure more
//! ```
//!
//! The whole suite is one interposed application: the servers, the interpreters of Tcl that read,
//! cut and change their files, and the tools that these start.

mod redis;
mod sqlite;

use crate::cluster::{program, said};
use crate::steps::Step;
use crate::suites::keep;
use crate::suites::list::{Outcome, numbered};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// Seconds after which a unit hangs.
const UNIT_MAX: &str = "1800";

/// How often a unit may be run when it differs. Some tests of both suites depend on time.
const TRIES: usize = 3;

/// A suite's units, with and without the interposer.
trait Suite {
    /// How it is called.
    fn name(&self) -> &'static str;

    /// The option of `gabion ncl run` that says which files are interposed, and its value.
    fn files(&self) -> [&'static str; 2];

    /// The names of the units.
    fn units(&self) -> Result<Vec<String>, String>;

    /// An empty directory, below which the unit's files are.
    fn empty_place(&self) -> Result<PathBuf, String>;

    /// The program that runs the unit, its arguments and its directory.
    fn unit(&self, unit: &str, place: &Path) -> (Vec<String>, PathBuf);

    /// How each test ended, by the suite's output.
    fn outcomes(unit: &str, text: &str) -> Result<Vec<Outcome>, String>;
}

/// The suites of these names, or all.
pub(crate) fn check(names: &[&str]) -> Step {
    let known = [redis::NAME, sqlite::NAME, sqlite::NAME_SPLIT];
    if let Some(name) = names.iter().find(|name| !known.contains(name)) {
        return Err(format!("'{name}' is no suite: {}", known.join(", ")));
    }
    let is_wanted = |name| names.is_empty() || names.contains(&name);
    println!("\n── The suites of Redis and SQLite under the interposer");
    let begun = Instant::now();
    let gabion = program()?;
    let mut problems = Vec::new();
    if is_wanted(redis::NAME) {
        problems.extend(compare_units(&redis::Redis::new()?, &gabion)?);
    }
    for name in [sqlite::NAME, sqlite::NAME_SPLIT].into_iter().filter(|name| is_wanted(name)) {
        let is_split = name == sqlite::NAME_SPLIT;
        problems.extend(compare_units(&sqlite::Sqlite::new(is_split)?, &gabion)?);
    }
    println!("── {:.0} s", begun.elapsed().as_secs_f64());
    if problems.is_empty() { Ok(()) } else { Err(problems.join("\n")) }
}

/// Runs all units of a suite; the problems, a line each.
fn compare_units<S: Suite>(suite: &S, gabion: &Path) -> Result<Vec<String>, String> {
    let (mut tests, mut failed_anyway, mut problems) = (0, 0, Vec::new());
    let mut is_used = false;
    let units = suite.units()?;
    for unit in &units {
        let mut differing: Option<Vec<String>> = None;
        for attempt in 1..=TRIES {
            let (plain, _) = run_unit(suite, unit, None)?;
            let (interposed, uses) = run_unit(suite, unit, Some(gabion))?;
            is_used |= uses;
            let (count, failed) = (interposed.len(), plain.values().flatten().count());
            println!("  {unit}: {count} tests, {failed} fail without the interposer");
            let found = differences(&plain, &interposed);
            for line in &found {
                println!("    attempt {attempt}: {line}");
            }
            let before = differing.replace(found).unwrap_or_default();
            if attempt == 1 {
                tests += count;
                failed_anyway += failed;
            } else if let Some(found) = &mut differing {
                found.retain(|line| before.contains(line));
            }
            if differing.as_ref().is_some_and(Vec::is_empty) {
                break;
            }
        }
        problems.extend(differing.unwrap_or_default());
    }
    let (name, units, alone) = (suite.name(), units.len(), problems.len());
    println!("{name}: {tests} tests of {units} units, {failed_anyway} fail without the interposer");
    println!("{name}: {alone} fail with it alone");
    if tests == 0 || !is_used {
        problems.push(format!("{name}: no test ran, or none of their files was mirrored"));
    }
    Ok(problems)
}

/// How the tests of a unit ended: by name, the failure of each that failed.
type Ends = BTreeMap<String, Option<String>>;

/// Runs a unit. Returns also whether any of its files was mirrored.
fn run_unit<S: Suite>(
    suite: &S,
    unit: &str,
    gabion: Option<&Path>,
) -> Result<(Ends, bool), String> {
    let place = suite.empty_place()?;
    let store = place.with_extension("store");
    let _ = std::fs::remove_dir_all(&store);
    let (words, directory) = suite.unit(unit, &place);
    let mut command = Command::new("timeout");
    command.args(["-k", "10", UNIT_MAX]);
    if let Some(gabion) = gabion {
        std::fs::create_dir_all(&store).map_err(|error| format!("{store:?}: {error}"))?;
        command.arg(gabion).args(["ncl", "run"]).args(suite.files());
        command.arg("--store").arg(&store).arg("--root").arg(&place).arg("--");
    }
    let output = command.args(words).current_dir(directory).output();
    let output = output.map_err(|error| format!("{unit}: {error}"))?;
    let text = said(&output);
    let how = if gabion.is_some() { "interposed" } else { "plain" };
    keep(&format!("ncl-{}-{}-{how}.log", suite.name(), unit.replace('/', "-")), &text)?;
    // A unit that breaks off does so as one test more.
    let broken = |why| vec![Outcome { name: format!("{unit}: to its end"), failure: Some(why) }];
    let outcomes = numbered(S::outcomes(unit, &text).unwrap_or_else(broken));
    let ends = outcomes.into_iter().map(|outcome| (outcome.name, outcome.failure)).collect();
    Ok((ends, was_used(&store)))
}

/// Whether the store ever had a file: its names are a file that begins empty.
fn was_used(store: &Path) -> bool {
    store.join("names").metadata().is_ok_and(|status| status.len() > 0)
}

/// Failures of a unit with the interposer alone. Some units draw how many tests they have, so that
/// not each of them must be there.
fn differences(plain: &Ends, interposed: &Ends) -> Vec<String> {
    let mut lines = Vec::new();
    for (name, failure) in interposed {
        let fails_anyway = plain.get(name).is_some_and(Option::is_some);
        if let (Some(failure), false) = (failure, fails_anyway) {
            lines.push(format!("fails with the interposer alone: {name} | {failure}"));
        }
    }
    if interposed.len() < plain.len() / 2 {
        lines.push(format!("{} of {} tests run with it", interposed.len(), plain.len()));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(tests: &[(&str, Option<&str>)]) -> Ends {
        let end =
            |&(name, failure): &(&str, Option<&str>)| (name.to_owned(), failure.map(str::to_owned));
        tests.iter().map(end).collect()
    }

    #[test]
    fn failures_with_the_interposer_alone_and_too_few_tests_are_differences() {
        let plain = ends(&[("a", None), ("b", Some("why")), ("c", None), ("d", Some("why"))]);
        let interposed = ends(&[("a", Some("new")), ("b", Some("other")), ("d", None)]);
        assert_eq!(differences(&plain, &interposed), ["fails with the interposer alone: a | new"]);
        assert_eq!(differences(&plain, &ends(&[("c", None)])), ["1 of 4 tests run with it"]);
        assert!(differences(&plain, &plain).is_empty());
    }
}

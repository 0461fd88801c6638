//! The units of Redis's own test suite, in its external mode.

use super::list::{List, Outcome};
use super::{judge, keep};
use crate::cluster::{need, said};
use crate::sources::REDIS;
use std::process::Command;

const LIST: &str = include_str!("../../suites/tcl.txt");

/// The units that apply to a store of strings.
const UNITS: [&str; 13] = [
    "unit/type/string",
    "unit/type/incr",
    "unit/keyspace",
    "unit/scan",
    "unit/expire",
    "unit/multi",
    "unit/protocol",
    "unit/introspection",
    "unit/introspection-2",
    "unit/other",
    "unit/quit",
    "unit/bitops",
    "unit/bitfield",
];

/// Tests with these marks need DEBUG, Redis's stream of replication, SAVE, or a memory limit that
/// is set at run time. The suite itself leaves out the tests marked as not for an external server
/// and, with `--singledb`, those that need a second database.
const LEFT_OUT: &str = "-needs:debug -needs:repl -needs:config-maxmemory -needs:save";

/// Runs the units at a port. Returns the contradictions to the list.
pub(super) fn check(port: u16) -> Result<Vec<String>, String> {
    need("tclsh", "tcl")?;
    let source = REDIS.directory()?;
    let list = List::read(LIST, "").map_err(|error| format!("xtask/suites/tcl.txt: {error}"))?;
    let mut outcomes = Vec::new();
    for unit in UNITS {
        let mut command = Command::new("timeout");
        command.args(["900", "./runtest", "--host", "127.0.0.1", "--port", &port.to_string()]);
        // `--durable`: a test that breaks off has failed, and the next one runs. The timeout is for
        // a hang: one test pipelines 100,000 times a GET behind a SET, each of which waits for the
        // acknowledgement before it.
        command.args(["--singledb", "--durable", "--timeout", "600", "--tags", LEFT_OUT]);
        command.args(["--single", unit]).current_dir(&source);
        for skipped in list.skips.keys().filter_map(|name| name.strip_prefix(unit)) {
            command.args(["--skiptest", skipped.trim_start_matches(": ")]);
        }
        let ended = command.output().map_err(|error| format!("runtest: {error}"))?;
        let text = without_colours(&said(&ended));
        keep(&format!("tcl-{}.log", unit.replace('/', "-")), &text)?;
        let found = outcomes_of(unit, &text).map_err(|why| format!("Redis's {unit}: {why}"))?;
        let passed = found.iter().filter(|outcome| outcome.failure.is_none()).count();
        println!("  {unit}: {passed} of {} tests pass", found.len());
        outcomes.extend(found);
    }
    Ok(judge("Redis's suite", &list, outcomes))
}

/// How each test of a unit ended, by the suite's output without colours.
pub(crate) fn outcomes_of(unit: &str, text: &str) -> Result<Vec<Outcome>, String> {
    let (tests, _) = text.split_once("                   The End\n").ok_or_else(|| {
        // The exception and, in the lines behind it, its place.
        let why = text.find("[exception]").map_or("without a word", |at| &text[at..]);
        format!("it broke off: {}", why.lines().take(6).collect::<Vec<_>>().join("\n"))
    })?;
    let mut outcomes = Vec::new();
    let mut lines = tests.lines().peekable();
    while let Some(line) = lines.next() {
        if let Some(passed) = line.strip_prefix("[ok]: ") {
            // `name (12 ms)`.
            let name = passed.rsplit_once(" (").map_or(passed, |(name, _)| name);
            outcomes.push(Outcome { name: format!("{unit}: {name}"), failure: None });
        } else if let Some(failed) = line.strip_prefix("[err]: ") {
            let (name, why) = match failed.rsplit_once(" in tests/") {
                // The expected value, or the exception and, in the line behind, all of it.
                Some((name, _)) => (name, [lines.next(), lines.peek().copied()]),
                None => ("between its tests", [Some(failed), lines.peek().copied()]),
            };
            let failure = why.map(Option::unwrap_or_default).join(" / ").trim().to_owned();
            outcomes.push(Outcome { name: format!("{unit}: {name}"), failure: Some(failure) });
        }
    }
    Ok(outcomes)
}

/// Text without the codes of a terminal's colours.
pub(crate) fn without_colours(text: &str) -> String {
    let mut parts = text.split("\u{1b}[");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| text + part.split_once('m').map_or(part, |(_, rest)| rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_of_tests_are_read_from_what_the_suite_says() {
        let text = without_colours(
            "Testing unit/x\n[\u{1b}[0;32mok\u{1b}[0m]: A (of b) (3 ms)\n[ignore]: C: denied\n\
             [err]: D in tests/unit/x.tcl\nwn command 'e'\nERR unknown command 'e'\n    while executing\n\
             [err]: broke off\nhere\n[1/1 done]: unit/x (1 seconds)\n\n                   The End\n\n\
             *** [err]: D in tests/unit/x.tcl\n",
        );
        let found = outcomes_of("unit/x", &text).unwrap();
        let names: Vec<_> = found.iter().map(|outcome| &*outcome.name).collect();
        assert_eq!(names, ["unit/x: A (of b)", "unit/x: D", "unit/x: between its tests"]);
        assert_eq!(found[0].failure, None);
        let failures = ["wn command 'e' / ERR unknown command 'e'", "broke off / here"];
        assert_eq!(found[1].failure.as_deref(), Some(failures[0]));
        assert_eq!(found[2].failure.as_deref(), Some(failures[1]));
    }

    #[test]
    fn a_unit_that_does_not_come_to_its_end_broke_off() {
        let found = outcomes_of("unit/x", "[ok]: A (3 ms)\n[exception]: x\n");
        assert_eq!(found, Err("it broke off: [exception]: x".to_owned()));
    }
}

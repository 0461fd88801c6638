//! The tests of redis-py, over both versions of the protocol.

use super::list::{List, Outcome};
use super::{directory, judge, keep};
use crate::cluster::{run, said};
use crate::python;
use std::path::PathBuf;
use std::process::Command;

const VERSION: &str = "8.1.0";
const LIST: &str = include_str!("../../suites/redis-py.txt");

/// The packages that the tests need beside redis-py itself.
const PACKAGES: [&str; 5] = [
    "pytest==9.2.0",
    "pytest-asyncio==1.5.0",
    "pytest-timeout==2.4.0",
    "packaging==26.3",
    "async-timeout==5.0.1",
];

/// Files whose tests talk to one server of Redis without modules, TLS, sentinels and pub/sub.
const FILES: [&str; 15] = [
    "client",
    "command_parser",
    "commands",
    "connect",
    "connection",
    "connection_pool",
    "data_structure",
    "encoding",
    "exceptions",
    "function",
    "lock",
    "multiprocessing",
    "pipeline",
    "retry",
    "scripting",
];

/// The library's own marks of tests for another server than a single one.
const MARKS: &str = "not onlycluster and not redismod and not ssl";

/// Runs the tests at a port. Returns the contradictions to the list.
pub(super) fn check(port: u16) -> Result<Vec<String>, String> {
    let source = source()?;
    let python = python::environment("suites/redis-py", &PACKAGES)?;
    let mut problems = Vec::new();
    for protocol in ["2", "3"] {
        let run = format!("resp{protocol}");
        let list = List::read(LIST, &run);
        let list = list.map_err(|error| format!("xtask/suites/redis-py.txt: {error}"))?;
        let mut command = Command::new("timeout");
        command.arg("600").arg(&python).args(["-m", "pytest", "-q", "--tb=native", "--color=no"]);
        // `addopts` of the suite show the tests' output; `-r` asks for a line of each test at the
        // end.
        command.args(["-rfEpxX", "-p", "no:cacheprovider", "-W", "ignore", "-o", "addopts="]);
        command.args(["--timeout", "30", "-m", MARKS, "--protocol", protocol]);
        command.arg(format!("--redis-url=redis://127.0.0.1:{port}/0"));
        command.args(FILES.map(|file| format!("tests/test_{file}.py")));
        command.args(list.skips.keys().map(|name| format!("--deselect=tests/{name}")));
        // Otherwise pytest cuts the lines of its summary at the width of a terminal.
        let ended = command.env("COLUMNS", "300").current_dir(&source).output();
        let ended = ended.map_err(|error| format!("pytest: {error}"))?;
        let text = said(&ended);
        keep(&format!("redis-py-{run}.log"), &text)?;
        // 1: some tests failed. Larger codes are the suite's own end.
        if !matches!(ended.status.code(), Some(0 | 1)) {
            return Err(format!("redis-py, {run}: pytest: {}\n{}", ended.status, tail(&text)));
        }
        problems.extend(judge(&format!("redis-py, {run}"), &list, outcomes_of(&text)));
    }
    Ok(problems)
}

fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(20)..].join("\n")
}

/// How each test ended, by pytest's summary. A test that fails and whose teardown fails as well has
/// two lines.
fn outcomes_of(text: &str) -> Vec<Outcome> {
    let mut outcomes: Vec<Outcome> = Vec::new();
    for line in text.lines() {
        let Some((word, rest)) = line.split_once(" tests/test_") else { continue };
        let (name, why) = rest.split_once(" - ").unwrap_or((rest, ""));
        let failure = match word {
            // A test that the suite itself expects to fail proves nothing, whichever way it ends.
            "PASSED" | "XFAIL" | "XPASS" => None,
            "FAILED" | "ERROR" => Some(format!("{word} {why}")),
            _ => continue,
        };
        let name = format!("test_{name}");
        match outcomes.iter_mut().find(|outcome| outcome.name == name) {
            Some(known) => known.failure = failure.or_else(|| known.failure.take()),
            None => outcomes.push(Outcome { name, failure }),
        }
    }
    outcomes
}

/// The directory of redis-py's source distribution, which holds its tests.
fn source() -> Result<PathBuf, String> {
    let directory = directory()?;
    let name = format!("redis-{VERSION}");
    let source = directory.join(&name);
    if source.exists() {
        return Ok(source);
    }
    let python = python::environment("suites/redis-py", &PACKAGES)?;
    let download = directory.join("download");
    let mut command = Command::new(python);
    command.args(["-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", "redis", "-d"]);
    run(command.arg(&download).arg(format!("redis=={VERSION}")))?;
    let archive = download.join(format!("{name}.tar.gz"));
    // Renamed when it is complete.
    run(Command::new("tar").arg("-xzf").arg(&archive).arg("-C").arg(&download))?;
    std::fs::rename(download.join(&name), &source).map_err(|error| format!("{name}: {error}"))?;
    Ok(source)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_of_tests_are_read_from_the_summary() {
        let text = "..F.s\nPASSED tests/test_a.py::A::test_b[2-x]\n\
                    FAILED tests/test_a.py::A::test_c - redis.ResponseError: a - b\n\
                    PASSED tests/test_a.py::test_d\nERROR tests/test_a.py::test_d - left open\n\
                    SKIPPED [2] tests/test_a.py:3: old\nXFAIL tests/test_a.py::test_e\n2 failed\n";
        let found = outcomes_of(text);
        let names: Vec<_> = found.iter().map(|outcome| &*outcome.name).collect();
        let expected = ["A::test_b[2-x]", "A::test_c", "test_d", "test_e"];
        assert_eq!(names, expected.map(|name| format!("test_a.py::{name}")));
        assert_eq!(found[0].failure, None);
        assert_eq!(found[1].failure.as_deref(), Some("FAILED redis.ResponseError: a - b"));
        assert_eq!(found[2].failure.as_deref(), Some("ERROR left open"));
        assert_eq!(found[3].failure, None);
    }
}

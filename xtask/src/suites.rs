//! The test suites of Redis and of its Python library, as they are published, against a real
//! cluster.
//!
//! ```text
//! Debian's source of Redis ── tests/unit/*.tcl ─┐
//!                                               ├─► gabion up ─► how each test ended ─┐
//! redis-py's source from PyPI ── tests/*.py ────┘                                     ├─► the step
//!                              xtask/suites/*.txt: each test that fails, and why ─────┘
//! ```
//!
//! Nothing of the suites is changed or kept here. Lists only shrink: the step fails on a listed
//! test that passes, on an unlisted one that fails, and on a number of tests other than the
//! recorded one.

pub(crate) mod list;
mod redis_py;
pub(crate) mod tcl;

use crate::cluster::{Cluster, program};
use crate::sources::directory;
use crate::steps::Step;
use list::{List, Outcome};
use std::time::Instant;

/// Both suites; `only` names one.
pub(crate) fn check(only: Option<&str>) -> Step {
    println!("\n── The suites of Redis and redis-py");
    let begun = Instant::now();
    let mut cluster = Cluster::new("suites", &program()?, &["--pool-size", "1GiB"])?;
    cluster.start()?;
    cluster.wait_ready()?;
    let mut problems = Vec::new();
    if only != Some("redis-py") {
        problems.extend(tcl::check(cluster.port)?);
    }
    if only != Some("tcl") {
        problems.extend(redis_py::check(cluster.port)?);
    }
    // A replica that ended amid a suite, or one that differs, fails the step whatever the tests
    // report.
    cluster.wait_ready()?;
    cluster.verify_same(&[])?;
    cluster.stop()?;
    println!("── {:.0} s", begun.elapsed().as_secs_f64());
    if problems.is_empty() {
        return Ok(());
    }
    let what_to_do = "mend it, or change the list in xtask/suites; what the suites said is in";
    let place = directory()?;
    Err(format!("{}\n{what_to_do} {}", problems.join("\n"), place.display()))
}

/// Keeps a suite's output.
pub(crate) fn keep(name: &str, said: &str) -> Step {
    let path = directory()?.join(name);
    std::fs::write(&path, said).map_err(|error| format!("{}: {error}", path.display()))
}

/// Prints the counts of a run and returns the contradictions to its list.
fn judge(suite: &str, list: &List, outcomes: Vec<Outcome>) -> Vec<String> {
    let outcomes = list::numbered(outcomes);
    let passed = outcomes.iter().filter(|outcome| outcome.failure.is_none()).count();
    println!(
        "{suite}: {passed} of {} tests pass, {} are listed as failing, {} are left out",
        outcomes.len(),
        list.fails.len(),
        list.skips.len()
    );
    let problems = list::contradictions(list, &outcomes);
    problems.into_iter().map(|problem| format!("{suite}: {problem}")).collect()
}

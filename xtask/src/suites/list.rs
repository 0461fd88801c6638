//! The list of tests of a suite that fail, with the reason of each.
//!
//! ```text
//! # a comment
//! ran 421                                    how many tests run
//! ran[resp3] 430                             the same, of one of several runs
//! fail unit/type/incr: INCR … a list | lists   runs and fails
//! fail[resp3] test_lock.py::… | …            the same, in one of several runs
//! skip unit/multi: MULTI with … | …            is not run: it would spoil others or break off the run
//! ```

use std::collections::{BTreeMap, BTreeSet};

/// The end of a test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) name: String,
    /// Its message when it failed, in a line.
    pub(crate) failure: Option<String>,
}

/// Names of tests and the reasons why they fail or are left out.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct List {
    pub(crate) ran: usize,
    pub(crate) fails: BTreeMap<String, String>,
    pub(crate) skips: BTreeMap<String, String>,
}

impl List {
    /// Reads the lines that hold for `run`.
    ///
    /// # Errors
    /// A line that is none of the above, gives no reason or names a test again.
    pub(crate) fn read(text: &str, run: &str) -> Result<Self, String> {
        let mut list = Self::default();
        for (number, line) in text.lines().enumerate() {
            let line = line.trim();
            if !line.is_empty() && !line.starts_with('#') {
                list.take(line, run)
                    .map_err(|why| format!("line {}: {why}: {line}", number + 1))?;
            }
        }
        Ok(list)
    }

    fn take(&mut self, line: &str, run: &str) -> Result<(), &'static str> {
        let (word, rest) = line.split_once(' ').ok_or("only one word")?;
        let (word, only) = match word.strip_suffix(']').and_then(|word| word.split_once('[')) {
            Some((word, only)) => (word, only),
            None => (word, run),
        };
        if only != run {
            return Ok(());
        }
        let names = match word {
            "ran" => {
                self.ran = rest.parse().map_err(|_| "not a number of tests")?;
                return Ok(());
            }
            "fail" => &mut self.fails,
            "skip" => &mut self.skips,
            _ => return Err("neither 'ran' nor 'fail' nor 'skip'"),
        };
        let (name, reason) = rest.rsplit_once(" | ").ok_or("no reason behind ' | '")?;
        match names.insert(name.trim().to_owned(), reason.trim().to_owned()) {
            None => Ok(()),
            Some(_) => Err("a name that stands above already"),
        }
    }
}

/// The same outcomes, with a number behind each repeated name.
pub(crate) fn numbered(outcomes: Vec<Outcome>) -> Vec<Outcome> {
    let mut seen = BTreeMap::new();
    let number = |mut outcome: Outcome| {
        let times: &mut u32 = seen.entry(outcome.name.clone()).or_default();
        *times += 1;
        if *times > 1 {
            outcome.name = format!("{} ({times})", outcome.name);
        }
        outcome
    };
    outcomes.into_iter().map(number).collect()
}

/// The contradictions to the list, a line each.
pub(crate) fn contradictions(list: &List, outcomes: &[Outcome]) -> Vec<String> {
    let mut lines = Vec::new();
    let mut ran = BTreeSet::new();
    for Outcome { name, failure } in outcomes {
        ran.insert(name);
        match (failure, list.fails.contains_key(name)) {
            (Some(failure), false) => lines.push(format!("fails, not listed: {name} | {failure}")),
            (None, true) => lines.push(format!("passes, so its line has to go: {name}")),
            _ => {}
        }
    }
    for name in list.fails.keys().filter(|name| !ran.contains(name)) {
        lines.push(format!("is listed and did not run: {name}"));
    }
    if outcomes.len() != list.ran {
        let (found, recorded) = (outcomes.len(), list.ran);
        lines.push(format!("{found} tests ran, and {recorded} are recorded"));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passed(name: &str) -> Outcome {
        Outcome { name: name.into(), failure: None }
    }

    fn failed(name: &str) -> Outcome {
        Outcome { name: name.into(), failure: Some("why".into()) }
    }

    const TEXT: &str =
        "# tests\nran 3\nran[3] 4\n\nfail a | lists\nfail[3] b | c | lists\nskip d | hangs\n";

    #[test]
    fn a_list_is_read_for_one_run_and_mistakes_are_named_by_line() {
        let list = List::read(TEXT, "2").unwrap();
        assert_eq!((list.ran, list.fails.len(), list.skips.len()), (3, 1, 1));
        let list = List::read(TEXT, "3").unwrap();
        assert_eq!(list.ran, 4);
        assert_eq!(list.fails["b | c"], "lists");
        for (text, line) in [
            ("fail", "line 1: only one word: fail"),
            ("ran 3\nran x", "line 2: not a number of tests: ran x"),
            ("fail a", "line 1: no reason behind ' | ': fail a"),
            ("pass a | b", "line 1: neither 'ran' nor 'fail' nor 'skip': pass a | b"),
            ("fail a | b\nfail a | c", "line 2: a name that stands above already: fail a | c"),
        ] {
            assert_eq!(List::read(text, ""), Err(line.to_owned()));
        }
    }

    #[test]
    fn what_agrees_with_the_list_is_no_contradiction() {
        let list = List::read(TEXT, "2").unwrap();
        assert!(contradictions(&list, &[failed("a"), passed("b"), passed("c")]).is_empty());
    }

    #[test]
    fn failures_beyond_the_list_passes_on_it_and_missing_tests_are_contradictions() {
        let list = List::read(TEXT, "2").unwrap();
        let found = contradictions(&list, &[passed("a"), failed("b"), passed("c")]);
        let expected = ["passes, so its line has to go: a", "fails, not listed: b | why"];
        assert_eq!(found, expected);
        let found = contradictions(&list, &[passed("b"), passed("c")]);
        let expected = ["is listed and did not run: a", "2 tests ran, and 3 are recorded"];
        assert_eq!(found, expected);
    }

    #[test]
    fn a_name_that_comes_again_is_told_from_the_first() {
        let names: Vec<_> = numbered(vec![passed("a"), failed("a"), passed("b"), passed("a")]);
        assert_eq!(names, [passed("a"), failed("a (2)"), passed("b"), passed("a (3)")]);
    }
}

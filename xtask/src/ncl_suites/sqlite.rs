//! The units of SQLite's suite about its journals, its locks, and failures of machine and disk.

use super::Suite;
use crate::cluster::{need_what, run, scratch};
use crate::sources::SQLITE;
use crate::suites::list::Outcome;
use std::path::{Path, PathBuf};
use std::process::Command;

/// SQLite's suite is built without syncs. Here they are of interest.
const WITH_SYNCS: &str = "TEMP_STORE=-DSQLITE_TEMP_STORE=1 -USQLITE_NO_SYNC";

/// How the names of the units begin.
const KINDS: [&str; 4] = ["wal", "crash", "ioerr", "lock"];

/// Journals are mirrored.
pub(super) const NAME: &str = "sqlite";
/// Journals and databases are split.
pub(super) const NAME_SPLIT: &str = "sqlite-split";

pub(super) struct Sqlite {
    is_split: bool,
    source: PathBuf,
    program: PathBuf,
    place: PathBuf,
}

impl Sqlite {
    pub(super) fn new(is_split: bool) -> Result<Self, String> {
        need_what("tclConfig.sh", "tcl-dev", &|| configuration().is_some())?;
        let source = SQLITE.directory()?;
        let program = build(&source)?;
        Ok(Self { is_split, source, program, place: scratch("ncl-suites")?.join("place") })
    }
}

impl Drop for Sqlite {
    fn drop(&mut self) {
        let _ = self.place.parent().map(std::fs::remove_dir_all);
    }
}

/// The directory that tells how Tcl is used.
fn configuration() -> Option<PathBuf> {
    let libraries = std::fs::read_dir("/usr/lib").ok()?.flatten().map(|entry| entry.path());
    libraries.into_iter().find(|path| path.join("tclConfig.sh").exists())
}

/// The program that runs the units, built once.
fn build(source: &Path) -> Result<PathBuf, String> {
    let built = source.join("built");
    let program = built.join("testfixture");
    if program.exists() {
        return Ok(program);
    }
    std::fs::create_dir_all(&built).map_err(|error| format!("{}: {error}", built.display()))?;
    let tcl = configuration().ok_or("tclConfig.sh is missing")?;
    let mut configure = Command::new("../configure");
    configure.arg(format!("--with-tcl={}", tcl.display())).env("CFLAGS", "-O1");
    run(configure.current_dir(&built))?;
    run(Command::new("make").args(["-s", "testfixture", WITH_SYNCS]).current_dir(&built))?;
    Ok(program)
}

impl Suite for Sqlite {
    fn name(&self) -> &'static str {
        if self.is_split { NAME_SPLIT } else { NAME }
    }

    fn files(&self) -> [&'static str; 2] {
        match self.is_split {
            true => ["--split", "*-wal,*-journal,*.db,*.db?"],
            false => ["--match", "*-wal,*-journal"],
        }
    }

    fn units(&self) -> Result<Vec<String>, String> {
        let tests = self.source.join("test");
        let listed = std::fs::read_dir(&tests);
        let listed = listed.map_err(|error| format!("{}: {error}", tests.display()))?;
        let names = listed.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        let units = names.filter_map(|name| name.strip_suffix(".test").map(str::to_owned));
        let is_wanted = |unit: &String| KINDS.iter().any(|kind| unit.starts_with(kind));
        let mut units: Vec<String> = units.filter(is_wanted).collect();
        units.sort();
        Ok(units)
    }

    fn empty_place(&self) -> Result<PathBuf, String> {
        let _ = std::fs::remove_dir_all(&self.place);
        std::fs::create_dir_all(&self.place)
            .map_err(|error| format!("{}: {error}", self.place.display()))?;
        Ok(self.place.clone())
    }

    fn unit(&self, unit: &str, place: &Path) -> (Vec<String>, PathBuf) {
        let script = self.source.join("test").join(format!("{unit}.test"));
        let words = [&self.program, &script].map(|path| path.display().to_string());
        (words.to_vec(), place.to_path_buf())
    }

    fn outcomes(unit: &str, text: &str) -> Result<Vec<Outcome>, String> {
        outcomes_of(unit, text)
    }
}

/// `NAME... Ok`, or `! NAME expected: …` and `! NAME got: …`; at the end a line with the numbers.
fn outcomes_of(unit: &str, text: &str) -> Result<Vec<Outcome>, String> {
    let ends = |line: &str| line.contains(" errors out of ") && line.contains(" tests on ");
    if !text.lines().any(ends) {
        let last: Vec<&str> = text.lines().rev().take(6).collect();
        let last: Vec<&str> = last.into_iter().rev().collect();
        return Err(format!("it broke off: {}", last.join(" / ")));
    }
    let mut outcomes = Vec::new();
    for line in text.lines() {
        if let Some(name) = line.strip_suffix("... Ok") {
            outcomes.push(Outcome { name: format!("{unit}: {name}"), failure: None });
        } else if let Some((name, _)) = failed(line, " expected:") {
            outcomes
                .push(Outcome { name: format!("{unit}: {name}"), failure: Some(String::new()) });
        } else if let Some((name, got)) = failed(line, " got:")
            && let Some(Outcome { name: last, failure: Some(failure) }) = outcomes.last_mut()
            && last.ends_with(name)
        {
            *failure = format!("got {}", got.trim());
        }
    }
    Ok(outcomes)
}

fn failed<'a>(line: &'a str, word: &str) -> Option<(&'a str, &'a str)> {
    line.strip_prefix("! ")?.split_once(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_of_tests_are_read_from_what_the_suite_says() {
        let text = "wal-0.1... Ok\nwal-1.0...\n! wal-1.0 expected: [1]\n! wal-1.0 got:      [2]\n\
                    wal-1.1... Ok\n1 errors out of 3 tests on host Linux 64-bit little-endian\n";
        let found = outcomes_of("wal", text).unwrap();
        let ended = |name: &str, failure: Option<&str>| Outcome {
            name: format!("wal: {name}"),
            failure: failure.map(str::to_owned),
        };
        let expected =
            [ended("wal-0.1", None), ended("wal-1.0", Some("got [2]")), ended("wal-1.1", None)];
        assert_eq!(found, expected);
    }

    #[test]
    fn a_unit_that_does_not_come_to_its_end_broke_off() {
        let found = outcomes_of("wal", "wal-0.1... Ok\nSegmentation fault\n");
        assert_eq!(found, Err("it broke off: wal-0.1... Ok / Segmentation fault".to_owned()));
    }
}

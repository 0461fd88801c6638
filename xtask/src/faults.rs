//! The tests that stand for each fault: collected from the sources, written into docs/faults.md.
//!
//! ```text
//! /// docs/faults.md: E4, E5      above a test's attributes: this test
//! //! docs/faults.md: E1          at the head of a file: all tests of that file
//! # docs/faults.md: H8            in a text file: the interaction that it tells
//! ```
//!
//! Each row of the page that begins with a fault's number ends with the cell of its tests. The
//! command writes that cell. Everything else in the page is written by hand, and so is the text
//! after `also: ` in the cell, as rigs and suites are no functions.

#[cfg(test)]
mod tests;

use crate::steps::Step;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

const PAGE: &str = "docs/faults.md";

/// The directories of tests that can stand for a fault. Not this crate: its tests quote lines of
/// the form.
const SOURCES: [&str; 3] = ["crates", "baseline", "peers"];

/// The beginning of a line that names faults, behind the marks of its comment.
const FORM: &str = "docs/faults.md:";

/// The sections of the catalogue by their letters.
const SECTIONS: [char; 7] = ['A', 'E', 'H', 'R', 'N', 'F', 'P'];

/// The text of a cell where no test names the fault.
const NONE: &str = "none";

/// The beginning of the part of a cell that is written by hand.
const ALSO: &str = "also: ";

/// The number of a fault: `E4`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Fault {
    section: char,
    number: u32,
}

impl Fault {
    fn parse(text: &str) -> Option<Self> {
        let section = text.chars().next().filter(|section| SECTIONS.contains(section))?;
        let digits = &text[1..];
        let is_plain = digits.bytes().all(|byte| byte.is_ascii_digit()) && !digits.starts_with('0');
        let number = digits.parse().ok().filter(|_| is_plain)?;
        Some(Self { section, number })
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.section, self.number)
    }
}

/// Tests by fault, and by the crate that they are in.
#[derive(Debug, Default, PartialEq, Eq)]
struct Tests(BTreeMap<Fault, BTreeMap<String, BTreeSet<String>>>);

impl Tests {
    fn add(&mut self, faults: &[Fault], room: &str, name: &str) {
        for fault in faults {
            let rooms = self.0.entry(*fault).or_default();
            rooms.entry(room.to_owned()).or_default().insert(name.to_owned());
        }
    }

    /// The tests in the cell of a fault; nothing where there are none.
    fn cell(&self, fault: Fault) -> Option<String> {
        let rooms = self.0.get(&fault)?.iter().map(|(room, names)| {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            format!("`{room}` {}", names.join(", "))
        });
        Some(rooms.collect::<Vec<_>>().join("; "))
    }
}

/// Compares the page with the sources; writes it anew when asked to.
///
/// # Errors
/// When a line of the sources is malformed or names a fault that the page lacks, and when the page
/// differs and is not to be written.
pub(crate) fn check(rewrite: bool) -> Step {
    println!("\n── tests by fault");
    let tests = of_sources()?;
    let page = read(Path::new(PAGE))?;
    let wanted = fill(&page, &tests)?;
    println!("{PAGE}: tests are named for {} faults", tests.0.len());
    if page == wanted {
        return Ok(());
    }
    if rewrite {
        return fs::write(PAGE, wanted).map_err(|error| format!("{PAGE}: {error}"));
    }
    Err(difference(&page, &wanted))
}

/// The message about a page that differs from the wanted one, with the first line that differs.
fn difference(page: &str, wanted: &str) -> String {
    let same = page.lines().zip(wanted.lines()).take_while(|(is, wanted)| is == wanted).count();
    format!(
        "{PAGE}:{}: not the tests that the sources name; `cargo xtask faults` writes them",
        same + 1
    )
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

fn of_sources() -> Result<Tests, String> {
    let mut paths = Vec::new();
    for root in SOURCES {
        collect(Path::new(root), &mut paths)?;
    }
    let mut tests = Tests::default();
    for path in paths {
        of_file(&path, &read(&path)?, &mut tests)?;
    }
    Ok(tests)
}

/// Every file below a directory that may name faults; not build output.
fn collect(directory: &Path, paths: &mut Vec<PathBuf>) -> Step {
    let failed = |error: std::io::Error| format!("{}: {error}", directory.display());
    for entry in fs::read_dir(directory).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.is_dir() {
            if path.file_name().is_some_and(|name| name != "target") {
                collect(&path, paths)?;
            }
        } else if path.extension().is_some_and(|extension| extension == "rs" || extension == "txt")
        {
            paths.push(path);
        }
    }
    Ok(())
}

/// Adds the tests of one file.
fn of_file(path: &Path, text: &str, tests: &mut Tests) -> Step {
    let room = room(path);
    let is_rust = path.extension().is_some_and(|extension| extension == "rs");
    let lines: Vec<&str> = text.lines().collect();
    let (mut whole, mut single) = (Vec::new(), Vec::new());
    for (index, line) in lines.iter().enumerate() {
        let wrong = |what: &str| format!("{}:{}: {what}", path.display(), index + 1);
        let Some((mark, faults)) = named(line).map_err(|what| wrong(&what))? else { continue };
        match mark {
            "//!" if is_rust => whole.extend(faults),
            "///" if is_rust => {
                let name = test_below(&lines, index).map_err(|what| wrong(&what))?;
                single.push((faults, name));
            }
            "#" if !is_rust => whole.extend(faults),
            _ => {
                return Err(wrong("faults are named in a doc comment, or behind # in a text file"));
            }
        }
    }
    for (mut faults, name) in single {
        // A file that stands for a fault as a whole is named once.
        faults.retain(|fault| !whole.contains(fault));
        tests.add(&faults, &room, &name);
    }
    let name = if is_rust { format!("all of {}", module(path)) } else { file_name(path) };
    tests.add(&whole, &room, &name);
    Ok(())
}

/// The marks of the comment and the faults that a line names; nothing when it lacks the form.
fn named(line: &str) -> Result<Option<(&str, Vec<Fault>)>, String> {
    let line = line.trim();
    let Some((mark, list)) = line.split_once(FORM) else { return Ok(None) };
    let mark = mark.trim_end();
    let list = list.strip_prefix(' ').unwrap_or(list);
    if !mark.chars().all(|character| "/!#".contains(character)) {
        // Otherwise a rewrapped comment would take the test off the page unseen.
        if mark.starts_with("//") && list.split(", ").all(|text| Fault::parse(text).is_some()) {
            return Err(format!("'{FORM} {list}' stands behind words: it takes a line of its own"));
        }
        return Ok(None);
    }
    let fault = |text: &str| {
        Fault::parse(text).ok_or_else(|| format!("'{text}' is not the number of a fault, like E4"))
    };
    let faults = list.split(", ").map(fault).collect::<Result<_, _>>()?;
    Ok(Some((mark, faults)))
}

/// The name of the test below a line, and whether `cargo test` leaves it out.
fn test_below(lines: &[&str], index: usize) -> Result<String, String> {
    let (mut has_attribute, mut is_ignored) = (false, false);
    for line in lines[index + 1..].iter().map(|line| line.trim()) {
        if let Some(name) = function(line) {
            // A test program with its own harness runs functions by their names.
            let quoted = format!("\"{name}\"");
            if has_attribute || lines.iter().any(|line| line.contains(&quoted)) {
                return Ok(if is_ignored { format!("{name} (ignored)") } else { name.to_owned() });
            }
            return Err(format!("{name} is not a test"));
        }
        if line.is_empty() || line.starts_with('}') {
            break;
        }
        is_ignored |= line.starts_with("#[ignore");
        has_attribute |= line.starts_with("#[") && line.ends_with("test]");
    }
    Err("no test is below it".into())
}

/// The name of the function that begins in a line.
fn function(line: &str) -> Option<&str> {
    let (before, rest) = line.split_once("fn ")?;
    let is_word =
        |word: &str| ["pub", "pub(crate)", "pub(super)", "async", "const"].contains(&word);
    let name = rest.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next()?;
    (before.split_whitespace().all(is_word) && !name.is_empty()).then_some(name)
}

/// The crate of a file.
fn room(path: &Path) -> String {
    let mut parts = path.iter().map(|part| part.to_string_lossy());
    match (parts.next(), parts.next()) {
        (Some(root), Some(room)) if root == "crates" => room.into_owned(),
        (Some(root), Some(room)) if root == "peers" => format!("peers/{room}"),
        (Some(root), _) => format!("gabion-{root}"),
        (None, _) => String::new(),
    }
}

/// The module that a file of Rust is.
fn module(path: &Path) -> String {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let directory = path.parent().map(file_name).unwrap_or_default();
    match &*stem {
        "main" | "mod" | "lib" => directory,
        // Every crate has one.
        "tests" | "golden" if directory != "tests" && directory != "src" => {
            format!("{directory}::{stem}")
        }
        _ => stem.into_owned(),
    }
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// The page with the tests in the cells of its rows.
fn fill(page: &str, tests: &Tests) -> Result<String, String> {
    let mut rows = BTreeSet::new();
    let mut filled = String::new();
    for (index, line) in page.lines().enumerate() {
        let wrong = |what: &str| format!("{PAGE}:{}: {what}", index + 1);
        match row(line) {
            Some(fault) => {
                if !rows.insert(fault) {
                    return Err(wrong(&format!("{fault} has a row already")));
                }
                let (before, old) = line
                    .strip_suffix('|')
                    .and_then(|line| line.rsplit_once(" | "))
                    .ok_or_else(|| wrong("a row ends with a cell of tests and |"))?;
                filled += &format!("{before} | {} |\n", cell(tests.cell(fault), old));
            }
            None => filled += &format!("{line}\n"),
        }
    }
    match tests.0.iter().find(|(fault, _)| !rows.contains(fault)) {
        Some((fault, rooms)) => {
            Err(format!("{fault} has no row in {PAGE}; named by {:?}", rooms.values().next()))
        }
        None => Ok(filled),
    }
}

/// The fault of a row of a table.
fn row(line: &str) -> Option<Fault> {
    let (first, _) = line.strip_prefix("| ")?.split_once(" | ")?;
    Fault::parse(first)
}

/// The cell of tests, with what was written by hand in the old one.
fn cell(tests: Option<String>, old: &str) -> String {
    let also = old.find(ALSO).map(|at| old[at..].trim_end());
    match (tests, also) {
        (Some(tests), Some(also)) => format!("{tests}; {also}"),
        (Some(tests), None) => tests,
        (None, Some(also)) => also.to_owned(),
        (None, None) => NONE.to_owned(),
    }
}

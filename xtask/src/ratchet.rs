//! Numbers of the sources that may only improve.
//!
//! ```text
//! git ls-files ── sources ── code ──┬── functions, assertions ──┐
//!                    │              └── cycles ─────────────────┼── against xtask/ratchet.txt
//!                    └── long lines ────────────────────────────┘
//! ```
//!
//! | number | of | how it is counted |
//! | --- | --- | --- |
//! | assertions | cores | `assert!`, `assert_eq!`, `assert_ne!`, their `debug_` forms; not in tests |
//! | functions over 70 lines | crates | from `fn` to the last brace, comments too; not in tests |
//! | files in cycles, in the largest | cores | files that call each other ([`cycles`]) |
//! | lines over 100 columns | all | characters of `.rs` and `.md`, tests too; not what is generated |
//! | files over 800 lines | cores | lines without tests; a list of paths |

mod code;
mod cycles;
mod record;
mod sources;

use crate::rooms::{CORES, ROOMS};
use crate::steps::Step;
use code::Code;
use cycles::Cycles;
use record::{MEASURES, Measure, Record};
use sources::Texts;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::time::Instant;

const PATH: &str = "xtask/ratchet.txt";
const LONG_FUNCTION: usize = 70;
const LONG_LINE: usize = 100;
const LONG_FILE: usize = 800;
/// A function that is longer should assert something.
const SHORT_FUNCTION: usize = 10;
/// How many places a failure shows.
const SHOWN: usize = 8;

/// Texts that a test writes by `GABION_REWRITE`: whole files, or the text between two lines.
const GENERATED: &[(&str, Option<(&str, &str)>)] = &[
    ("crates/gabion-bench/src/page/samples/summary.md", None),
    ("docs/redis.md", Some(("<!-- table: begin -->", "<!-- table: end -->"))),
];

/// A part of a file that counts into a number.
#[derive(Debug)]
struct Place {
    path: String,
    first: usize,
    last: usize,
    what: String,
}

/// The current numbers of the sources.
#[derive(Debug, Default)]
struct Measured {
    record: Record,
    /// The places of each number, the worst first.
    places: BTreeMap<(String, Measure), Vec<Place>>,
    /// By core: the assertions within functions, and the functions over ten lines.
    functions: BTreeMap<String, (usize, usize)>,
    /// Lines of the files that are too long.
    lengths: BTreeMap<String, usize>,
}

impl Measured {
    fn set(&mut self, owner: &str, measure: Measure, number: usize, places: Vec<Place>) {
        let numbers = self.record.numbers.entry(owner.to_owned()).or_default();
        numbers.insert(measure, number);
        self.places.insert((owner.to_owned(), measure), places);
    }
}

/// Lines that changed since the numbers were recorded, by path; `None` for a new file.
type Changed = BTreeMap<String, Option<Vec<(usize, usize)>>>;

/// Fails where a number is worse than its record.
pub(crate) fn check() -> Step {
    println!("\n── numbers that only become better ({PATH})");
    let start = Instant::now();
    let measured = measure(&sources::texts()?)?;
    print!("{}", table(&measured));
    let record = std::fs::read_to_string(PATH).map_err(|error| format!("{PATH}: {error}"))?;
    let record = Record::parse(&record).map_err(|error| format!("{PATH}:{error}"))?;
    let better = better(&measured, &record);
    if !better.is_empty() {
        println!("better than recorded, which `cargo xtask ratchet` writes: {}", better.join("; "));
    }
    println!("── {:.1} s", start.elapsed().as_secs_f64());
    refuse_worse(&measured, &record)
}

/// Writes the numbers if none is worse than its record. The first record has the current ones.
pub(crate) fn tighten() -> Step {
    let measured = measure(&sources::texts()?)?;
    print!("{}", table(&measured));
    match std::fs::read_to_string(PATH) {
        Ok(record) => {
            let record = Record::parse(&record).map_err(|error| format!("{PATH}:{error}"))?;
            refuse_worse(&measured, &record)?;
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => return Err(format!("{PATH}: {error}")),
    }
    std::fs::write(PATH, measured.record.text()).map_err(|error| format!("{PATH}: {error}"))
}

fn refuse_worse(measured: &Measured, record: &Record) -> Step {
    // If the changes are unknown, the worst places are shown.
    let worse = worse(measured, record, &changed().unwrap_or_default());
    if worse.is_empty() {
        return Ok(());
    }
    Err(format!(
        "{}\nThe numbers are recorded in {PATH}, better ones by `cargo xtask ratchet`; a worse one \
         is written by hand, and its commit says why",
        worse.join("\n")
    ))
}

fn measure(texts: &Texts) -> Result<Measured, String> {
    let mut measured = Measured::default();
    let codes = sources::codes(texts)?;
    let owner_of = |path: &str| sources::name_of(sources::directory_of(path, texts)).to_owned();
    let mut owners: BTreeMap<String, BTreeMap<&str, &Code>> = BTreeMap::new();
    for (path, code) in &codes {
        owners.entry(owner_of(path)).or_default().insert(path, code);
    }
    let methods: BTreeMap<&str, BTreeSet<&str>> =
        owners.iter().map(|(owner, files)| (&**owner, public_methods(files))).collect();
    for (owner, files) in &owners {
        let long = functions(files, |function| function.lines() > LONG_FUNCTION);
        measured.set(owner, Measure::LongFunctions, long.len(), long);
        if CORES.contains(&&**owner) {
            let used = ROOMS.iter().filter(|(room, _)| room == owner).flat_map(|(_, used)| *used);
            let foreign = used.filter_map(|room| methods.get(room)).flatten().copied().collect();
            measure_core(&mut measured, owner, files, &foreign);
        }
    }
    let mut lines: BTreeMap<String, Vec<Place>> = BTreeMap::new();
    for (path, text) in texts.iter().filter(|(path, _)| !path.ends_with(".toml")) {
        lines.entry(owner_of(path)).or_default().extend(long_lines(path, text));
    }
    for (owner, mut places) in lines {
        // By their length, which the words begin with.
        places.sort_by(|one, other| other.what.cmp(&one.what));
        measured.set(&owner, Measure::LongLines, places.len(), places);
    }
    Ok(measured)
}

fn public_methods<'a>(files: &BTreeMap<&'a str, &'a Code>) -> BTreeSet<&'a str> {
    let all = files.values().flat_map(|code| &code.definitions);
    all.filter(|one| one.method && one.public).map(|one| &*one.name).collect()
}

fn measure_core(
    measured: &mut Measured,
    owner: &str,
    files: &BTreeMap<&str, &Code>,
    foreign: &BTreeSet<&str>,
) {
    let assertions = files.values().map(|code| code.assertions).sum();
    let bare =
        functions(files, |function| function.lines() > SHORT_FUNCTION && function.assertions == 0);
    measured.set(owner, Measure::Assertions, assertions, bare);
    let all = functions(files, |function| function.lines() > SHORT_FUNCTION).len();
    // Assertions outside functions hold or fail when the crate is compiled.
    let functions = files.values().flat_map(|code| &code.functions);
    let within = functions.map(|function| function.assertions).sum();
    measured.functions.insert(owner.to_owned(), (within, all));

    let sources: BTreeMap<&str, &Code> = files
        .iter()
        .filter(|(path, _)| path.starts_with(&format!("crates/{owner}/src/")))
        .map(|(path, code)| (*path, *code))
        .collect();
    let cycles = Cycles::of(&sources, foreign);
    let places = || {
        let place = |call: &cycles::Edge| Place {
            path: call.from.to_owned(),
            first: call.line,
            last: call.line,
            what: format!("calls {} of {}", call.name, call.to),
        };
        cycles.calls.iter().map(place).collect()
    };
    let largest = cycles.files.first().map_or(0, Vec::len);
    measured.set(owner, Measure::LargestCycle, largest, places());
    let in_cycles = cycles.files.iter().map(Vec::len).sum();
    measured.set(owner, Measure::FilesInCycles, in_cycles, places());

    for (path, code) in sources.iter().filter(|(_, code)| code.lines > LONG_FILE) {
        measured.record.long_files.insert((*path).to_owned());
        measured.lengths.insert((*path).to_owned(), code.lines);
    }
}

/// The functions that `which` accepts, the longest first.
fn functions(files: &BTreeMap<&str, &Code>, which: impl Fn(&code::Function) -> bool) -> Vec<Place> {
    let all = files
        .iter()
        .flat_map(|(path, code)| code.functions.iter().map(move |function| (*path, function)));
    let mut found: Vec<_> = all.filter(|(_, function)| which(function)).collect();
    found.sort_by_key(|(_, function)| std::cmp::Reverse(function.lines()));
    let place = |(path, function): (&str, &code::Function)| Place {
        path: path.to_owned(),
        first: function.first,
        last: function.last,
        what: format!("{}: {} lines", function.name, function.lines()),
    };
    found.into_iter().map(place).collect()
}

fn long_lines(path: &str, text: &str) -> Vec<Place> {
    let generated = GENERATED.iter().find(|(name, _)| *name == path).map(|(_, between)| between);
    if generated == Some(&None) {
        return Vec::new();
    }
    let mut found = Vec::new();
    let mut inside = false;
    for (index, line) in text.lines().enumerate() {
        if let Some(Some((begin, end))) = generated {
            inside = line == *begin || inside && line != *end;
        }
        let columns = line.chars().count();
        if columns > LONG_LINE && !inside {
            let what = format!("{columns:4} columns");
            found.push(Place { path: path.to_owned(), first: index + 1, last: index + 1, what });
        }
    }
    found
}

fn owners<'a>(measured: &'a Measured, record: &'a Record) -> BTreeSet<&'a String> {
    measured.record.numbers.keys().chain(record.numbers.keys()).collect()
}

/// Counts that are worse than their record, each with places: those that changed since, or else the
/// worst.
fn worse(measured: &Measured, record: &Record, changed: &Changed) -> Vec<String> {
    let mut worse = Vec::new();
    for owner in owners(measured, record) {
        for measure in MEASURES {
            let is = measured.record.number(owner, measure);
            let was = record.number(owner, measure);
            // A crate that is gone has nothing that could be worse.
            let gone = !measured.record.numbers.contains_key(owner);
            if gone || !measure.is_worse(is, was) {
                continue;
            }
            let mut text = format!("{owner}: {is} {}, recorded are {was}; ", measure.name());
            let empty = Vec::new();
            let places = measured.places.get(&(owner.clone(), measure)).unwrap_or(&empty);
            let mut shown: Vec<_> = places.iter().filter(|one| is_changed(one, changed)).collect();
            let (all, of) = match (measure, shown.is_empty()) {
                (Measure::Assertions, true) => (true, "the longest functions without one"),
                (Measure::Assertions, false) => (false, "functions without one that changed"),
                (_, true) => (true, "the worst"),
                (_, false) => (false, "of those that changed since"),
            };
            if all {
                shown = places.iter().collect();
            }
            text += of;
            for place in shown.iter().take(SHOWN) {
                let _ = write!(text, "\n  {}:{} {}", place.path, place.first, place.what);
            }
            worse.push(text);
        }
    }
    for path in measured.record.long_files.difference(&record.long_files) {
        let lines = measured.lengths.get(path).copied().unwrap_or(0);
        worse.push(format!(
            "{path}:1 has {lines} lines without tests; a file of a core has at most {LONG_FILE}"
        ));
    }
    worse
}

fn is_changed(place: &Place, changed: &Changed) -> bool {
    let within = |(first, last): &(usize, usize)| *first <= place.last && place.first <= *last;
    match changed.get(&place.path) {
        None => false,
        Some(None) => true,
        Some(Some(ranges)) => ranges.iter().any(within),
    }
}

fn better(measured: &Measured, record: &Record) -> Vec<String> {
    let mut better = Vec::new();
    for owner in owners(measured, record) {
        if !measured.record.numbers.contains_key(owner) {
            better.push(format!("{owner} is gone"));
            continue;
        }
        for measure in MEASURES {
            let is = measured.record.number(owner, measure);
            let was = record.number(owner, measure);
            if measure.is_worse(was, is) {
                better.push(format!("{owner}: {} {was}, now {is}", measure.name()));
            }
        }
    }
    let shorter = record.long_files.difference(&measured.record.long_files);
    better.extend(shorter.map(|path| format!("{path} is no longer over {LONG_FILE} lines")));
    better
}

/// Lines that changed since the commit that recorded the numbers.
fn changed() -> Result<Changed, String> {
    let commit = sources::git(&["log", "-1", "--format=%H", "--", PATH])?;
    let mut changed = Changed::new();
    let Some(commit) = commit.first() else { return Ok(changed) };
    for path in sources::git(&["ls-files", "--others", "--exclude-standard"])? {
        changed.insert(path, None);
    }
    let options = ["--unified=0", "--no-ext-diff", "--no-color", "--no-prefix", "--no-relative"];
    let lines = sources::git(&[&["diff"][..], &options, &[commit]].concat())?;
    changed.extend(changed_in(&lines));
    Ok(changed)
}

/// The new lines of a diff without context.
fn changed_in(diff: &[String]) -> Changed {
    let mut changed = Changed::new();
    let mut ranges = None;
    for line in diff {
        if let Some(path) = line.strip_prefix("+++ ") {
            ranges = changed.entry(path.to_owned()).or_insert(Some(Vec::new())).as_mut();
        }
        // `@@ -3,2 +5,4 @@`; a count of 1 is left out, and one of 0 is a removal before the next.
        let new = line.strip_prefix("@@ -").and_then(|line| line.split(['+', ' ']).nth(2));
        let Some((new, ranges)) = new.zip(ranges.as_mut()) else { continue };
        let (first, count) = new.split_once(',').unwrap_or((new, "1"));
        if let (Ok(first), Ok(count)) = (first.parse::<usize>(), count.parse::<usize>()) {
            ranges.push((first, (first + count).saturating_sub(1).max(first)));
        }
    }
    changed
}

/// All numbers, a crate a line.
fn table(measured: &Measured) -> String {
    let row = |cells: [&str; 8]| {
        let [owner, numbers @ ..] = cells;
        let mut row = format!("{owner:21}");
        for (cell, width) in numbers.iter().zip([11, 20, 10, 8, 9, 12, 11]) {
            let _ = write!(row, "{cell:>width$}");
        }
        row.trim_end().to_owned() + "\n"
    };
    let mut text = String::new();
    for head in [
        [
            "",
            "assertions",
            "within functions,",
            "functions",
            "largest",
            "files in",
            "lines over",
            "files over",
        ],
        ["", "", "per one over 10 (of)", "over 70", "cycle", "cycles", "100 columns", "800 lines"],
    ] {
        text += &row(head);
    }
    for (owner, numbers) in &measured.record.numbers {
        let number = |measure| numbers.get(&measure).map_or(String::new(), usize::to_string);
        let functions = measured.functions.get(owner);
        let rate = functions.map_or(String::new(), |(within, all)| {
            let hundredths = within * 100 / (*all).max(1);
            format!("{}.{:02} ({all})", hundredths / 100, hundredths % 100)
        });
        let of_owner = |path: &&String| path.starts_with(&format!("crates/{owner}/"));
        let long = functions.map_or(String::new(), |_| {
            measured.lengths.keys().filter(of_owner).count().to_string()
        });
        text += &row([
            owner,
            &number(Measure::Assertions),
            &rate,
            &number(Measure::LongFunctions),
            &number(Measure::LargestCycle),
            &number(Measure::FilesInCycles),
            &number(Measure::LongLines),
            &long,
        ]);
    }
    for (path, lines) in &measured.lengths {
        let _ = writeln!(text, "{path}: {lines} lines without tests");
    }
    text
}

#[cfg(test)]
mod tests;

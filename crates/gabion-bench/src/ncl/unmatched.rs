//! Calls on files that are not matched, by a program of ours, under `gabion ncl run` and without
//! it.

use super::house::{COPIES, House, directory, failed, said};
use super::rows::{Disk, Key, Row, Side};
use super::{Bench, Part};
use crate::figures::median;
use clap::Args;
use gabion_base::{Error, ErrorKind, Result};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Files that the program does not have.
const MATCHED: &str = "*.matched";
const NAME: &str = "file";
/// Bytes of a write and of a read.
const LEN: usize = 128;
/// Calls between two looks at the clock, and bytes of the file.
const BATCH: usize = 1000;
/// The time of a round is divided into so many turns, with and without the interposer.
const TURNS: u32 = 4;

/// The options of [`calls`].
#[derive(Args, Clone, Debug)]
pub struct CallsArgs {
    /// The directory of its file
    pub directory: PathBuf,
    /// Seconds of each call
    pub seconds: f64,
}

/// A call, as rows name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Stat,
    Open,
    Write,
    Read,
}

impl Call {
    const ALL: [Self; 4] = [Self::Stat, Self::Open, Self::Write, Self::Read];

    const fn as_str(self) -> &'static str {
        match self {
            Self::Stat => "stat",
            Self::Open => "open and close",
            Self::Write => "write of 128 bytes",
            Self::Read => "read of 128 bytes",
        }
    }

    /// A batch of them, at the file's begin. Each is one call of the C library, or two.
    fn batch(self, path: &Path, mut file: &File) -> std::io::Result<Duration> {
        file.seek(SeekFrom::Start(0))?;
        let mut bytes = [7; LEN];
        let begun = Instant::now();
        for _ in 0..BATCH {
            match self {
                Self::Stat => {
                    std::fs::metadata(path)?;
                }
                Self::Open => drop(File::open(path)?),
                Self::Write => file.write_all(&bytes)?,
                Self::Read => file.read_exact(&mut bytes)?,
            }
        }
        Ok(begun.elapsed())
    }
}

/// Has this process make each call for a time, and writes a line for each: ns of one, the median of
/// batches, and its name.
///
/// # Errors
/// The file cannot be made, or a call fails.
pub fn calls(args: &CallsArgs, out: &mut dyn Write) -> Result<()> {
    let path = args.directory.join(NAME);
    let failed = failed(&path);
    std::fs::write(&path, vec![1; BATCH * LEN]).map_err(&failed)?;
    let file = File::options().read(true).write(true).open(&path).map_err(&failed)?;
    for call in Call::ALL {
        let mut batches = Vec::new();
        let begun = Instant::now();
        while batches.is_empty() || begun.elapsed().as_secs_f64() < args.seconds {
            let took = call.batch(&path, &file).map_err(&failed)?;
            batches.push(took.as_nanos() as f64 / BATCH as f64);
        }
        let ns = median(&mut batches).unwrap_or_default();
        let closed = |e| Error::with_source(ErrorKind::Io, "standard output", e);
        writeln!(out, "{ns} {}", call.as_str()).map_err(closed)?;
    }
    Ok(())
}

/// The line of each call.
fn read_lines(text: &str) -> Result<[f64; 4]> {
    let ns = |call: Call| {
        let words = text.lines().find_map(|line| line.strip_suffix(call.as_str()));
        let bad = || Error::corruption(format!("no time of '{}' in '{text}'", call.as_str()));
        words.and_then(|ns| ns.trim().parse().ok()).ok_or_else(bad)
    };
    let [stat, open, write, read] = Call::ALL.map(ns);
    Ok([stat?, open?, write?, read?])
}

pub(super) fn measure(bench: &mut Bench<'_>) -> Result<()> {
    bench.begin("calls on files that are not matched")?;
    let house = House::start(bench, Side::Shared, COPIES)?;
    let place = directory(bench.local(), "unmatched")?;
    for round in 1..=bench.args.rounds {
        // Of each call, without the interposer and with it.
        let mut found = [(); 4].map(|()| [Vec::new(), Vec::new()]);
        for turn in 0..2 * TURNS {
            bench.check()?;
            // Another one is first each time.
            let side = ((turn + turn / 2) % 2) as usize;
            let mut command = match side {
                0 => Command::new(bench.program),
                _ => {
                    let mut command = house.run("unmatched", &["--match", MATCHED]);
                    command.arg(bench.program);
                    command
                }
            };
            let seconds = (bench.time() / TURNS / 4).as_secs_f64().to_string();
            command.args(["bench", "calls"]).arg(&place).arg(seconds).current_dir(&place);
            let lines = read_lines(&said(&mut command)?)?;
            found.iter_mut().zip(lines).for_each(|(found, ns)| found[side].push(ns));
        }
        for (call, mut found) in Call::ALL.into_iter().zip(found) {
            let [without, with] = found.each_mut().map(|ns| median(ns).unwrap_or_default());
            let key = Key {
                program: "calls",
                disk: Some(Disk::Local),
                ..Key::library(Part::Unmatched, call.as_str(), Side::Shared, LEN as u64)
            };
            let figures =
                vec![("without_ns", without), ("with_ns", with), ("more_ns", with - without)];
            bench.keep(Row::new(key, round, figures))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launch::ScratchDir;

    #[test]
    fn the_program_has_a_line_for_each_call_which_are_read_and_a_missing_one_is_told() {
        let dir = ScratchDir::new(&std::env::temp_dir()).unwrap();
        let args = CallsArgs { directory: dir.path().to_owned(), seconds: 0.0 };
        let mut out = Vec::new();
        calls(&args, &mut out).unwrap();
        let said = String::from_utf8(out).unwrap();
        assert_eq!(said.lines().count(), Call::ALL.len());
        assert!(read_lines(&said).unwrap().iter().all(|ns| *ns > 0.0));
        let len = std::fs::metadata(dir.path().join(NAME)).unwrap().len();
        assert_eq!(len, (BATCH * LEN) as u64);
        let error = read_lines(&said.replace("stat", "start")).unwrap_err();
        assert!(error.to_string().contains("no time of 'stat'"), "{error}");
        let error = calls(&CallsArgs { directory: "/nowhere".into(), ..args }, &mut Vec::new());
        assert!(error.unwrap_err().to_string().contains("/nowhere/file"));
    }
}

//! Two processes that write one split file at the same time.

use crate::allowed::{Allowed, History};
use crate::bytes::bytes;
use crate::common::{Rng, Run};
use crate::split_house::{House, results};
use crate::{house_with, lose_disk};
use std::fmt::Write as _;
use std::process::{Child, Stdio};

/// Bytes of each process's range in the file that both write.
const RANGE: usize = 12_000;

/// Starts scripts at once, each with the name of its file.
pub(crate) fn start_at_once(house: &House, run: &Run, texts: &[(&str, &str)]) -> Vec<Child> {
    let start = |(name, text): &(&str, &str)| {
        let mut command = house.command(run, name, text);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    texts.iter().map(start).collect()
}

/// The result of each line of a script, once it has ended.
pub(crate) fn ended(child: Child) -> Vec<String> {
    let output = child.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {errors}", output.status);
    results(&output.stdout)
}

fn len(rng: &mut Rng) -> u64 {
    [40, 300, 300, 700, 999, 1_000, 1_500][rng.below(7) as usize]
}

/// Writes in a range of one file, and appends to another one; about half of them are synced.
fn script(process: u64, rng: &mut Rng) -> String {
    let mut text = "open 0 a.db 2 600\nopen 1 b.db 1026 600".to_owned();
    for number in 1..=70 {
        let (seed, len) = (1_000 * process + number, len(rng));
        match rng.below(2) {
            0 => {
                let offset = process * RANGE as u64 + rng.below(RANGE as u64 - len);
                let _ = write!(text, "\npwrite 0 {seed} {len} {offset}");
            }
            _ => {
                let _ = write!(text, "\nwrite 1 {seed} {len}");
            }
        }
        let _ = write!(text, "{}", ["\nfsync 0", "\nfsync 1", ""][rng.below(3) as usize]);
    }
    text
}

/// Bytes that a process appended, in order, and how many of them it has synced.
fn appended(text: &str, said: &[String]) -> (Vec<Vec<u8>>, usize) {
    let (mut records, mut synced) = (Vec::new(), 0);
    for (line, said) in text.lines().zip(said) {
        let words: Vec<&str> = line.split(' ').collect();
        if let ["write", "1", seed, len] = words[..] {
            assert_eq!(said, len, "{line}");
            records.push(bytes(seed.parse().unwrap(), len.parse().unwrap()));
        } else if line == "fsync 1" {
            synced = records.len();
        }
    }
    (records, synced)
}

/// Whether a file is of records of both processes, each in its order, with all that were synced.
fn check_appended(mut found: &[u8], processes: &[(Vec<Vec<u8>>, usize)]) -> Result<(), String> {
    let mut next = vec![0; processes.len()];
    'records: while !found.is_empty() {
        for (next, (records, _)) in next.iter_mut().zip(processes) {
            if let Some(rest) =
                records.get(*next).and_then(|record| found.strip_prefix(&record[..]))
            {
                (found, *next) = (rest, *next + 1);
                continue 'records;
            }
        }
        // The beginning of one that was not synced.
        let pending =
            next.iter().zip(processes).filter_map(|(next, (records, _))| records.get(*next));
        let len = found.len();
        if !pending.into_iter().any(|record| record.starts_with(found)) {
            return Err(format!("{len} bytes at the end are of no record, behind {next:?}"));
        }
        found = &[];
    }
    let lacks = |(next, (_, synced)): (&usize, &(Vec<Vec<u8>>, usize))| next < synced;
    match next.iter().zip(processes).any(lacks) {
        true => Err(format!("{next:?} records, of more that were synced")),
        false => Ok(()),
    }
}

fn check_ranges(found: &[u8], histories: &[History]) -> Result<(), String> {
    histories.iter().enumerate().try_for_each(|(process, history)| {
        let from = (process * RANGE).min(found.len());
        let to = (from + RANGE).min(found.len());
        history.files.get("a.db").map_or(Ok(()), |file: &Allowed| file.check_part(&found[from..to]))
    })
}

/// The script as if its range began at 0.
fn at_zero(text: &str, process: usize) -> String {
    let line = |line: &str| match line.strip_prefix("pwrite").and_then(|_| line.rsplit_once(' ')) {
        Some((rest, offset)) => {
            format!("{rest} {}", offset.parse::<usize>().unwrap() - process * RANGE)
        }
        None => line.to_owned(),
    };
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}

fn write_at_once(seed: u64) -> u64 {
    let mut house = house_with("split-writers", &["a.db", "b.db"]);
    let mut rng = Rng::new(seed);
    let run = house.start();
    let texts = [0, 1].map(|process| script(process, &mut rng));
    let both = [("first", texts[0].as_str()), ("second", texts[1].as_str())];
    let said: Vec<_> = start_at_once(&house, &run, &both).into_iter().map(ended).collect();
    let errors = said.iter().flatten().filter(|said| said.starts_with('E')).count();
    assert_eq!(errors, 0, "{said:?}");
    let frames = run.owner.shared().split_counts().frames;
    run.abandon();
    if seed.is_multiple_of(2) {
        lose_disk(&mut house);
    }
    house.start().stop();
    let processes = [0, 1].map(|process| appended(&texts[process], &said[process]));
    let histories =
        [0, 1].map(|process| History::of(&at_zero(&texts[process], process), &said[process]));
    let checked = check_ranges(&house.bytes("a.db"), &histories)
        .and_then(|()| check_appended(&house.bytes("b.db"), &processes));
    checked.unwrap_or_else(|text| panic!("seed {seed}: {text}"));
    frames
}

/// docs/faults.md: N11, N13
#[test]
fn two_processes_that_write_and_append_at_once_lose_nothing_that_either_has_synced() {
    let frames: u64 = (1..=8).map(write_at_once).sum();
    assert!(frames > 100, "{frames} frames");
}

#[test]
fn records_that_overlap_or_lack_are_found() {
    let record = |seed| bytes(seed, 50);
    let processes = [(vec![record(1), record(2)], 2), (vec![record(3), record(4)], 1)];
    let file = |seeds: &[u64]| seeds.iter().flat_map(|seed| record(*seed)).collect::<Vec<u8>>();
    let with_tail = [file(&[3, 1, 2]), record(4)[..20].to_vec()].concat();
    for good in [file(&[1, 3, 2]), file(&[3, 4, 1, 2]), with_tail] {
        assert_eq!(check_appended(&good, &processes), Ok(()));
    }
    for bad in
        [file(&[1, 2]), file(&[2, 1, 3]), file(&[1, 3, 3, 2]), file(&[1, 3, 2])[..120].to_vec()]
    {
        assert!(check_appended(&bad, &processes).is_err());
    }
}

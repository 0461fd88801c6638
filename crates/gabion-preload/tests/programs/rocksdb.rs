//! RocksDB with synced writes of several threads, flushes and new WALs all the time.

use crate::common::{self, Rng, Run, disk};
use crate::{kill, program, rounds};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

const THREADS: usize = 8;
/// Names that are mirrored: the WAL. `LOG` is no such name.
const GLOBS: &str = "*.log";

fn rocksdb(run: &Run, root: &Path, shadow: &Path, what: &str) -> Command {
    let mut command = run.command(&common::example("rocksdb"));
    common::note_syncs(&mut command, shadow, root);
    command.arg(what).arg(root).arg(THREADS.to_string());
    command
}

/// The program's words. It has to succeed.
fn said(mut command: Command) -> String {
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    said
}

/// A thread and a number.
fn pair(line: &str) -> (usize, u64) {
    let (thread, number) = line.trim_end().split_once(' ').expect("a thread and a number");
    (thread.parse().unwrap(), number.parse().unwrap())
}

/// Every thread writes `count` numbers after those that it has; killed once `until` writes were
/// acknowledged. All that was acknowledged goes into `told`.
fn load(mut child: Child, told: &mut [u64], count: u64, until: u64) {
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut first = String::new();
    output.read_line(&mut first).unwrap();
    assert_eq!(first, "open\n");
    let mut text = String::new();
    for step in 1..=count {
        for (thread, last) in told.iter().enumerate() {
            text.push_str(&format!("{thread} {}\n", last + step));
        }
    }
    let mut input = child.stdin.take().unwrap();
    // It reads all of them ahead, and writes while it is told more.
    let writer = std::thread::spawn(move || input.write_all(text.as_bytes()).map(|()| input));
    let mut child = Some(child);
    for (heard, line) in output.lines().enumerate() {
        let (thread, number) = pair(&line.unwrap());
        assert_eq!(number, told[thread] + 1, "thread {thread}: in order");
        told[thread] = number;
        if heard as u64 == until {
            kill(child.take().expect("killed once"));
        }
    }
    assert!(child.is_none(), "it ended by itself");
    // It may have been gone before all was read.
    drop(writer.join().unwrap());
}

/// docs/faults.md: N13
#[test]
#[ignore = "needs RocksDB: cargo xtask ncl"]
fn rocksdb_that_syncs_its_log_loses_no_write_when_killed_amid_flushes() {
    let home = common::directory("rocksdb");
    let (mut root, shadow) = (home.join("root"), home.join("shadow"));
    std::fs::create_dir_all(&root).unwrap();
    disk::all_synced(&shadow, &root).unwrap();
    let mut run = Run::start(&home, &root, GLOBS, false);
    let (mut rng, mut told) = (Rng::new(5), vec![0_u64; THREADS]);
    for round in 0..rounds() {
        let mut command = rocksdb(&run, &root, &shadow, "write");
        // WAL files are used again, or not.
        command.arg(if round % 4 < 2 { "0" } else { "2" }).process_group(0);
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        load(child, &mut told, 300, 200 + rng.below(1500));
        run.stop();
        let next = home.join(format!("moved-{round}"));
        if round % 2 == 0 {
            disk::after_a_loss(&shadow, &root, &next).unwrap();
        } else {
            common::copy_plain(&root, &next);
        }
        std::fs::remove_dir_all(&root).unwrap();
        std::fs::remove_dir_all(&shadow).unwrap();
        root = next;
        disk::all_synced(&shadow, &root).unwrap();
        run = Run::start(&home, &root, GLOBS, round % 2 == 1);
        let mut ldb = run.command(&program("ldb"));
        ldb.arg("--db=.").arg("checkconsistency").current_dir(&root);
        assert_eq!(said(ldb).trim(), "OK", "round {round}");
        for (thread, last) in said(rocksdb(&run, &root, &shadow, "check")).lines().map(pair) {
            let (told, most) = (told[thread], told[thread] + 1);
            assert!((told..=most).contains(&last), "round {round}: {last} of {told} by {thread}");
        }
    }
    run.stop();
    let total: u64 = told.iter().sum();
    eprintln!("rocksdb: {total} writes of {THREADS} threads, killed {} times", rounds());
    std::fs::remove_dir_all(home).unwrap();
}

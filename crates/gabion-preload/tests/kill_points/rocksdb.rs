//! RocksDB with synced writes of several threads, whose WAL is at the peers.

use crate::common::{self, disk};
use crate::{Client, House, Kind, Program, every_point};
use std::io::{BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::Stdio;

const THREADS: usize = 3;

pub(crate) struct RocksDb;

/// Notes of the file system's syncs.
pub(crate) fn shadow(house: &House) -> PathBuf {
    house.home.join("shadow")
}

/// Half of the times all that was written, half of the times what was synced and nothing else.
pub(crate) fn survive(house: &House, point: u64, next: &Path) {
    let shadow = shadow(house);
    if point.is_multiple_of(2) {
        common::copy_plain(&house.root, next);
    } else {
        disk::after_a_loss(&shadow, &house.root, next).unwrap();
    }
    std::fs::remove_dir_all(&shadow).unwrap();
    disk::all_synced(&shadow, next).unwrap();
}

impl Kind for RocksDb {
    const NAME: &'static str = "rocksdb";
    const GLOBS: &'static str = "*.log";
    const WRITES: u64 = 60;
    const CALLS: u64 = 4_000;

    fn start(house: &House, point: u64, end_at: Option<&str>) -> Option<Program> {
        std::fs::create_dir_all(shadow(house)).unwrap();
        let program = common::example("rocksdb");
        let mut command = house.command(program.to_str().unwrap());
        common::note_syncs(&mut command, &shadow(house), &house.root);
        // WAL files are used again, or not.
        let kept = if point % 4 < 2 { "0" } else { "2" };
        command.arg("write").arg(&house.root).args([&*THREADS.to_string(), kept]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        command.envs(end_at.map(|at| ("GABION_NCL_END_AT", at)));
        let mut child = command.spawn().unwrap();
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let mut program = Program { child, client: Client::Sqlite(input, output) };
        let said = program.line()?;
        assert_eq!(said, "open");
        Some(program)
    }

    /// One write of each thread, all at once.
    fn write(program: &mut Program, number: u64) -> Option<()> {
        let Client::Sqlite(input, _) = &mut program.client else { unreachable!("it has pipes") };
        let lines = (0..THREADS).map(|thread| format!("{thread} {number}\n"));
        input.write_all(lines.collect::<String>().as_bytes()).ok()?;
        (0..THREADS).try_for_each(|_| {
            let said = program.line()?;
            assert!(said.ends_with(&format!(" {number}")), "{said}, not {number}");
            Some(())
        })
    }

    fn check(house: &House, _: u64) -> u64 {
        if house.root.join("CURRENT").exists() {
            let output = house.command("ldb").arg("--db=.").arg("checkconsistency").output();
            let output = output.unwrap();
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success() && said.trim() == "OK", "ldb: {said}{errors}");
        }
        let program = common::example("rocksdb");
        let mut command = house.command(program.to_str().unwrap());
        // It opens the database, which writes.
        common::note_syncs(&mut command, &shadow(house), &house.root);
        let output = command.args(["check", ".", &THREADS.to_string()]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}{errors}");
        let last = |line: &str| line.split_once(' ').unwrap().1.parse::<u64>().unwrap();
        let lasts: Vec<u64> = said.lines().map(last).collect();
        assert_eq!(lasts.len(), THREADS, "{said}");
        let (least, greatest) = (*lasts.iter().min().unwrap(), *lasts.iter().max().unwrap());
        // Threads begin a number together.
        assert!(greatest - least <= 1, "{said}");
        least
    }

    fn survive(house: &House, point: u64, next: &Path) {
        survive(house, point, next);
    }
}

/// docs/faults.md: N13
#[test]
#[ignore = "needs RocksDB: cargo xtask ncl"]
fn rocksdb_that_ends_at_any_call_loses_no_write_while_peers_are_lost() {
    every_point::<RocksDb>();
}

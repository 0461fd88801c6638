//! `gabion bench ncl`, with measurements that are too short to tell anything.

use super::demo::Emptied;
use super::*;
use std::collections::BTreeSet;

fn bench(place: &Emptied, words: &[&str]) -> Command {
    let mut command = Command::new(GABION);
    command.args(["bench", "ncl", "--seconds", "0.05", "--rounds", "1", "--dir"]);
    command.arg(&place.0).args(["--log-size", "1MiB", "--memory", "8MiB"]).args(words);
    command
}

/// The rows that it prints.
fn rows(command: &mut Command) -> Vec<Value> {
    let output = command.arg("--json").output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let lines = text(&output.stdout);
    lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Each row has a figure above zero, and these parts, programs and sides are there.
fn check(rows: &[Value], figure: &str, expected: &[(&str, &str, &str)]) {
    let name = |row: &Value, field: &str| row[field].as_str().unwrap().to_owned();
    for row in rows {
        assert!(row[figure].as_f64().is_some_and(|value| value > 0.0), "{row}");
    }
    let found: BTreeSet<_> = rows
        .iter()
        .map(|row| (name(row, "part"), name(row, "program"), name(row, "side")))
        .collect();
    let expected =
        expected.iter().map(|(a, b, c)| ((*a).to_owned(), (*b).to_owned(), (*c).to_owned()));
    assert_eq!(found, expected.collect());
}

#[test]
fn the_benchmark_of_the_library_has_each_side_and_leaves_nothing() {
    let place = Emptied::new("bench");
    let sides = ["peers, shared memory", "peers, TCP", "unsynced", "synced"];
    let speeds = rows(&mut bench(&place, &["--only", "latency,threads"]));
    let mut expected: Vec<_> = sides.map(|side| ("latency", "library", side)).to_vec();
    expected.extend(sides[..2].iter().map(|side| ("threads", "library", *side)));
    check(&speeds, "per_second", &expected);
    let replaced = rows(&mut bench(&place, &["--only", "replacement"]));
    let expected: Vec<_> =
        sides[..2].iter().map(|side| ("replacement", "library", *side)).collect();
    check(&replaced, "total_ms", &expected);
    let calls = rows(&mut bench(&place, &["--only", "unmatched"]));
    check(&calls, "with_ns", &[("unmatched", "calls", sides[0])]);
    check(&calls, "without_ns", &[("unmatched", "calls", sides[0])]);
    let loads: BTreeSet<_> = calls.iter().map(|row| row["load"].as_str().unwrap()).collect();
    let expected = ["open and close", "read of 128 bytes", "stat", "write of 128 bytes"];
    assert_eq!(loads, expected.into());
}

#[test]
#[ignore = "needs redis-server and sqlite3: cargo xtask ncl"]
fn the_benchmark_of_programs_has_each_side_and_leaves_nothing() {
    let place = Emptied::new("bench-programs");
    let words = ["--only", "programs", "--programs", "redis,sqlite", "--records", "1000"];
    let words = [&words[..], &["--clients", "2"]].concat();
    let sides = ["peers, shared memory", "peers, TCP", "unsynced", "synced"];
    let expected: Vec<_> = ["redis", "sqlite"]
        .into_iter()
        .flat_map(|program| sides.map(|side| ("programs", program, side)))
        .collect();
    check(&rows(&mut bench(&place, &words)), "per_second", &expected);
    let words = ["--only", "recovery,failures,memory", "--programs", "redis,sqlite"];
    let mut command = bench(&place, &words);
    let pictures = place.0.join("pictures");
    let output = command.arg("--draw").arg(&pictures).output().unwrap();
    let said = text(&output.stdout);
    assert!(output.status.success(), "{said}{}", text(&output.stderr));
    let memory = ["Memory", "redis with a log at peers", "sqlite with a log at peers"];
    for title in ["Figure 11: recovery", "Figure 12: peers", "Aims"].iter().chain(&memory) {
        assert!(said.contains(title), "{title}: {said}");
    }
    for name in ["figure-11-reads", "figure-11-recovery", "figure-12-shared", "figure-12-tcp"] {
        std::fs::remove_file(pictures.join(format!("{name}.svg"))).unwrap();
    }
    std::fs::remove_dir(&pictures).unwrap();
}

#[test]
#[ignore = "needs postgresql: cargo xtask ncl"]
fn the_benchmark_of_postgresql_has_each_side_of_both_scripts_and_leaves_nothing() {
    let place = Emptied::new("bench-postgresql");
    // The server's user goes through it.
    std::fs::set_permissions(&place.0, std::os::unix::fs::PermissionsExt::from_mode(0o711))
        .unwrap();
    let words = ["--only", "programs", "--programs", "postgresql", "--clients", "2"];
    let rows = rows(&mut bench(&place, &words));
    let sides = ["peers, shared memory", "peers, TCP", "unsynced", "synced"];
    check(&rows, "per_second", &sides.map(|side| ("programs", "postgresql", side)));
    check(&rows, "p50_us", &sides.map(|side| ("programs", "postgresql", side)));
    let of = |script| rows.iter().filter(|row| row["load"] == script).count();
    assert_eq!((of("tpcb-like"), of("simple-update"), rows.len()), (4, 4, 8));
}

#[test]
fn a_program_that_is_named_and_not_installed_is_told_before_anything_runs() {
    let place = Emptied::new("bench-missing");
    let mut command = bench(&place, &["--only", "programs", "--programs", "sqlite"]);
    let output = command.env("PATH", &place.0).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stdout));
    let said = text(&output.stderr);
    assert!(said.contains("sqlite3 is not installed"), "{said}");
    let words = ["--only", "programs", "--programs", "rocksdb", "--peer-dir"];
    let output = bench(&place, &words).arg(&place.0).output().unwrap();
    let said = text(&output.stderr);
    assert!(said.contains("replica-rocksdb is not built"), "{said}");
    let mut command = bench(&place, &["--only", "latency", "--slow-sync", "2", "--peer-dir"]);
    let output = command.arg(&place.0).output().unwrap();
    let said = text(&output.stderr);
    assert!(said.contains("slow-syncs is not built") && !said.contains("RocksDB"), "{said}");
}

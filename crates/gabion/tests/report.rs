//! `gabion bench` as it is typed: a cluster of its own, and `gabion bench report` on its output.
#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "a test with real processes and files, which fails where it stands"
)]

use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

/// A directory that goes when the test ends.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("gabion-report-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // The remains are named after this process, so a failure here is visible and harmless.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn bench(words: &[&str]) -> Output {
    let program = env!("CARGO_BIN_EXE_gabion");
    Command::new(program).arg("bench").args(words).output().unwrap()
}

#[test]
fn a_cluster_of_its_own_is_loaded_and_read_and_nothing_of_it_is_left() {
    let scratch = Scratch::new();
    let dir = scratch.path("clusters");
    let load = ["ycsb", "--records=2000", "--workloads=load,a,c", "--pool-size=256MiB"];
    let run = bench(&[&load[..], &["--dir", &dir, "--json"]].concat());
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    let row: serde_json::Value = serde_json::from_slice(&run.stdout).unwrap();
    assert_eq!(row["phases"].as_array().unwrap().len(), 3, "{row}");
    assert_eq!(std::fs::read_dir(dir).unwrap().count(), 0);
}

#[test]
fn a_row_that_an_engine_prints_becomes_a_report_and_what_is_none_is_refused_in_a_line() {
    let scratch = Scratch::new();
    let (row, page) = (scratch.path("row.json"), scratch.path("report.html"));
    let store = scratch.path("store");
    let words = ["engine-run", "--workload=ycsb-a", "--records=1000", "--quick", "--dir", &store];
    let run = bench(&words);
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    std::fs::write(&row, &run.stdout).unwrap();
    let report = bench(&["report", &row, "--html", &page, "--markdown", "-"]);
    let (told, failed) =
        (String::from_utf8(report.stdout).unwrap(), String::from_utf8(report.stderr).unwrap());
    assert!(report.status.success() && failed.is_empty(), "{failed}");
    assert!(told.contains("| ycsb-a, gabion "), "{told}");
    assert!(std::fs::read_to_string(&page).unwrap().contains("ycsb-a, gabion"));

    let bad = scratch.path("bad.json");
    std::fs::write(&bad, String::from_utf8(run.stdout).unwrap().replace("\"p99_us\":", "\"p99\":"))
        .unwrap();
    let report = bench(&["report", &row, &bad, "--markdown", "-"]);
    let failed = String::from_utf8(report.stderr).unwrap();
    assert_eq!(report.status.code(), Some(2), "{failed}");
    assert!(report.stdout.is_empty());
    assert_eq!(failed.lines().count(), 1, "{failed}");
    assert!(failed.contains("bad.json:1: p99_us is missing, needed is a value"), "{failed}");
}

use super::*;
use crate::args::RunArgs;
use crate::memory::{Memory, defect};
use clap::Parser;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    args: RunArgs,
}

/// A small run of a workload; its directory is its own.
fn plan(workload: Workload) -> Plan {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let name = format!("gabion-workload-{}-{number}", std::process::id());
    let directory = std::env::temp_dir().join(name);
    let words = ["run", "--workload", workload.as_str(), "--records", "2000", "--dir"];
    let line = Line::parse_from(words.iter().map(PathBuf::from).chain([directory]));
    let mut plan = line.args.plan().unwrap();
    // By number, not by time, so that a slow machine makes the same requests.
    plan.operations = plan.operations.min(4000);
    plan.limit = None;
    plan.warm_up = Duration::from_millis(1);
    plan
}

fn run_with<const DEFECT: u8>(workload: Workload) -> Result<Row> {
    run::<Memory<DEFECT>>(&plan(workload), &mut |_| {})
}

fn caught<const DEFECT: u8>(workload: Workload, what: &str) {
    let name = workload.as_str();
    match run_with::<DEFECT>(workload) {
        Ok(row) => panic!("{name} with defect {DEFECT} passed: {}", row.json()),
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Corruption, "{name}: {error}");
            assert!(error.message().contains(what), "{name}: {error}");
        }
    }
}

#[test]
fn a_run_that_takes_more_memory_than_it_may_fails() {
    let plan = |memory_max| Plan { memory_max, ..plan(Workload::Fillseq) };
    let run = |plan: &Plan| run::<Memory<{ defect::NONE }>>(plan, &mut |_| {});
    let row = run(&plan(Some(1 << 40))).unwrap();
    let peak = row.json()["peak_memory_checked"].as_u64().unwrap();
    assert_eq!(row.json()["instrument_memory"], 4 * 2000);
    assert!(row.json()["peak_memory"].as_u64().unwrap() <= peak);
    let error = run(&plan(Some(1 << 20))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LimitExceeded);
    assert!(error.message().contains("--memory-max is 1048576"), "{error}");
}

#[test]
fn every_workload_passes_on_a_map() {
    for &workload in Workload::all() {
        let row = run_with::<{ defect::NONE }>(workload).unwrap();
        let row = row.json();
        let name = workload.as_str();
        assert_eq!(row["workload"], name);
        assert!(row["operations"].as_u64().unwrap() >= 1000, "{name}: {row}");
        assert_eq!(row["quiet_seconds"].is_null(), !workload.writes(), "{name}: {row}");
        assert_eq!(row["per_second_quiet"].is_null(), !workload.writes(), "{name}: {row}");
        let has_writer = workload == Workload::Readwhilewriting;
        assert_eq!(row["writer_bytes_per_second"].is_number(), has_writer, "{name}: {row}");
        assert_eq!(row["write_amp"].is_null(), !workload.writes(), "{name}: {row}");
        let returns = workload.reads() && workload != Workload::Readmissing;
        assert_eq!(row["read_amp"].is_null(), !returns, "{name}: {row}");
    }
}

#[test]
fn a_row_names_the_engine_the_workload_and_every_figure() {
    let row = run_with::<{ defect::NONE }>(Workload::YcsbA).unwrap();
    let row = row.json();
    let texts = ["engine", "version", "workload", "log", "compression"];
    assert!(texts.iter().all(|name| row[name].is_string()), "{row}");
    let numbers = [
        "value_size",
        "operations",
        "per_second",
        "per_second_quiet",
        "cpu_us_per_op",
        "p50_us",
        "p99_us",
        "p999_us",
        "write_amp",
        "read_amp",
        "space_amp",
        "space_amp_files",
        "peak_memory",
        "wall_seconds",
        "quiet_seconds",
        "cpu_us_per_op_quiet",
    ];
    for name in numbers {
        assert!(row[name].is_number(), "{name}: {row}");
    }
    assert_eq!(row["operations"], 2000);
    assert_eq!(row["limits"], json!(["it has no files", "nor a device"]));
    assert_eq!(row["ring_bytes"], 7);
    for name in ["cpu_seconds", "cpu_share", "stolen_seconds", "stolen_share"] {
        assert!(row["others"][name].as_f64().unwrap() >= 0.0, "{name}: {row}");
    }
    if cfg!(target_env = "gnu") {
        assert!(row["allocator"]["in_use"].as_u64().unwrap() > 100_000, "{row}");
        assert!(row["allocator"]["free"].is_u64(), "{row}");
    }
    assert_eq!((&row["settings"]["block_size"], &row["block_size"]), (&1.into(), &Value::Null));
    assert_eq!(row["stalls"]["seconds"], 0.5);
    assert_eq!(row["program"], crate::Build::own().json());
    assert_eq!(row["own_options"], Value::Array(Vec::new()));
}

#[test]
fn speed_until_it_is_quiet_and_space_without_logs_are_drawn_from_their_parts() {
    let row = run_with::<{ defect::NONE }>(Workload::Overwrite).unwrap();
    let figure = |name: &str| row.json()[name].as_f64().unwrap();
    let per_second = figure("operations") / figure("quiet_seconds");
    assert!((figure("per_second_quiet") / per_second - 1.0).abs() < 1e-9, "{}", row.json());
    assert!(figure("per_second_quiet") <= figure("per_second"), "{}", row.json());
    let data_len = 2000.0 * 116.0;
    assert_eq!(figure("space_amp"), 1e6 / data_len);
    assert_eq!(figure("log_space_bytes"), 4e5);
    assert_eq!(figure("space_amp_files"), 6e5 / data_len);
}

#[test]
fn the_writer_beside_reads_tells_what_it_wrote_in_a_second() {
    let long = Plan {
        operations: u64::MAX >> 1,
        limit: Some(Duration::from_millis(400)),
        ..plan(Workload::Readwhilewriting)
    };
    let row = run::<Memory<{ defect::NONE }>>(&long, &mut |_| {}).unwrap();
    let rate = row.json()["writer_bytes_per_second"].as_f64().unwrap();
    // It writes no more than its rate; a busy machine may make it write less.
    assert!((1e5..11e6).contains(&rate), "{}", row.json());
}

#[test]
fn a_write_that_is_lost_is_caught() {
    caught::<{ defect::LOST_PUT }>(Workload::Fillrandom, "wrong scan");
    caught::<{ defect::LOST_PUT }>(Workload::Readrandom, "wrong scan");
    caught::<{ defect::LOST_AT_CLOSE }>(Workload::Readrandom, "wrong scan");
}

#[test]
fn a_version_that_was_overwritten_is_caught() {
    caught::<{ defect::STALE }>(Workload::Overwrite, "has version 0x1");
    for workload in [Workload::YcsbA, Workload::YcsbF, Workload::YcsbG] {
        caught::<{ defect::STALE }>(workload, "has version 0x1");
    }
}

#[test]
fn a_wrong_byte_is_caught() {
    for workload in [Workload::Readrandom, Workload::ReadrandomUncached, Workload::YcsbC] {
        caught::<{ defect::WRONG_BYTE }>(workload, "differs at byte 99");
    }
    // Write-only workloads: the records are read in every way afterwards.
    caught::<{ defect::WRONG_BYTE }>(Workload::Fillrandom, "differs at byte 99");
    caught::<{ defect::EXCHANGED }>(Workload::Fillrandom, "of record");
    caught::<{ defect::NEIGHBOUR }>(Workload::Deleterandom, "of record");
}

#[test]
fn a_deleted_record_that_is_there_is_caught() {
    caught::<{ defect::NO_DELETE }>(Workload::Deleterandom, "though deleted");
}

#[test]
fn a_key_that_nobody_wrote_is_caught() {
    caught::<{ defect::NEIGHBOUR }>(Workload::Readmissing, "nobody wrote");
}

#[test]
fn a_record_that_a_scan_leaves_out_is_caught() {
    caught::<{ defect::SKIP_LONG }>(Workload::Fillseq, "wrong scan");
    caught::<{ defect::SKIP_SHORT }>(Workload::Seekrandom, "in its place");
    caught::<{ defect::BEGIN_BEHIND }>(Workload::YcsbE, "a scan begins behind");
}

#[test]
fn values_of_several_keys_that_are_exchanged_are_caught() {
    caught::<{ defect::EXCHANGED }>(Workload::Multireadrandom, "is that of record");
}

#[test]
fn a_directory_with_content_and_a_small_disk_are_refused_and_left_alone() {
    let mut plan = plan(Workload::Fillseq);
    let directory = plan.engine.directory.clone();
    plan.records = 1 << 40;
    let error = run::<Memory<0>>(&plan, &mut |_| {}).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    assert!(!directory.exists());
    fs::create_dir(&directory).unwrap();
    fs::write(directory.join("mine"), b"1").unwrap();
    let error = run::<Memory<0>>(&plan, &mut |_| {}).unwrap_err();
    assert!(error.message().contains("not empty"), "{error}");
    assert_eq!(fs::read(directory.join("mine")).unwrap(), b"1");
    fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn nothing_is_left_of_a_run() {
    let plan = plan(Workload::Fillseq);
    run::<Memory<0>>(&plan, &mut |_| {}).unwrap();
    assert!(!plan.engine.directory.exists());
}

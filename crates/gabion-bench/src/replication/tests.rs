//! Whole runs against made-up replicas, and a program that is one in name only.

use super::baseline::Chain;
use super::*;
use crate::fake::{FakeCluster, FakeLauncher, Faults};
use crate::launch::{RunningCluster, ScratchDir};
use crate::text::Style;
use clap::Parser;
use serde_json::Value;
use std::net::SocketAddr;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    args: ReplicationArgs,
}

fn args(words: &[&str]) -> ReplicationArgs {
    let small = ["bench", "--records=1000", "--value-size=100", "--clients=2", "--pipeline=5"];
    Line::try_parse_from([&small, words].concat()).unwrap().args
}

/// Only the first cell of a plan.
fn first_cell(words: &[&str]) -> Cell {
    let own = ["bench", "--value-size=100"];
    let args = Line::try_parse_from([&own, words].concat()).unwrap().args;
    args.plan().unwrap().1[0][0]
}

fn run(words: &[&str]) -> Result<String> {
    let chain = |cell: &Cell, dir: &Path| {
        assert!(dir.is_dir() && cell.system == System::Rocksdb);
        let replicas = cell.cluster.replicas;
        let fake = FakeCluster::start(replicas, "rocksdb", Faults::default());
        Ok(Box::new(fake) as Box<dyn RunningCluster>)
    };
    let mut out = Vec::new();
    let code = replication_to(&args(words), &FakeLauncher::default(), &chain, &mut out)?;
    assert_eq!(code, 0);
    Ok(String::from_utf8(out).unwrap())
}

/// Runs as they were written: a line each.
fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn each_system_runs_in_turn_for_each_number_of_replicas_and_is_told_in_json() {
    let text = run(&["--replicas=2,3", "--workloads=load,f", "--json"]).unwrap();
    let runs = lines(&text);
    let names: Vec<_> = runs
        .iter()
        .map(|run| (run["config"]["replicas"].as_u64().unwrap(), &run["config"]["compaction"]))
        .collect();
    let systems = ["rocksdb", "primary", "every-replica"].map(Value::from);
    let expected: Vec<_> =
        [2, 3].iter().flat_map(|r| systems.iter().map(move |s| (*r, s))).collect();
    assert_eq!(names, expected);
    assert!(runs.iter().all(|run| run["config"]["baseline_log"] == "on"));
    assert!(runs.iter().all(|run| run["config"].get("offered_of").is_none()));
    let cache = memory::BLOCK_CACHE_LEN + memory::indexes_len(1000, 100);
    assert!(runs.iter().all(|run| run["config"]["baseline_cache_bytes"] == cache));
    assert!(runs.iter().all(|run| run["config"]["baseline_jobs_nice"] == 10));
    assert_eq!(runs[0]["config"]["store_version"], "1.2.3");
}

#[test]
fn the_tables_have_every_system_in_every_workload_and_ratios_by_the_first() {
    let text = run(&["--workloads=load,a,c", "--ack=durable"]).unwrap();
    for start in ["  load rocksdb ", "  a primary ", "  c every-replica "] {
        assert_eq!(text.lines().filter(|line| line.starts_with(start)).count(), 2, "{text}");
    }
    let cells = |start: &str| {
        let line = text.lines().find(|line| line.starts_with(start)).unwrap();
        line.split_whitespace().count()
    };
    // Workload, system, and of seven figures all but the latency of reads, and that of the
    // machine's processors, whose time may be counted too coarsely for so short a run.
    assert!(matches!(cells("  load rocksdb "), 7 | 8), "{text}");
    assert!(cells("  load primary ") > 10, "{text}");
    assert!(text.contains("÷: by rocksdb."), "{text}");
}

#[test]
fn groups_side_by_side_run_in_every_system_after_those_of_one_group() {
    let words = ["--co-location=1,2", "--replicas=2", "--workloads=load,a", "--offered=10"];
    let runs = lines(&run(&[&words[..], &["--json"]].concat()).unwrap());
    let shapes: Vec<_> = runs
        .iter()
        .map(|run| ["co_location", "replicas"].map(|name| run["config"][name].as_u64().unwrap()))
        .collect();
    assert_eq!(shapes, [[[1, 2]; 3], [[2, 2]; 3]].concat());
    for run in &runs {
        let [groups, replicas] = ["co_location", "replicas"].map(|name| &run["config"][name]);
        let len = (groups.as_u64().unwrap() * replicas.as_u64().unwrap()) as usize;
        assert_eq!(run["phases"][0]["replicas"].as_array().unwrap().len(), len);
        // The primary beside every-replica with as many groups; the later one has the comparison.
        if run["config"]["compaction"] == "every-replica" {
            assert_eq!(&run["comparison"]["co_location"], groups);
            assert_eq!(&run["comparison"]["replicas"], replicas);
        }
    }
    // One load is offered to both groups together: to all systems the same share of the first one's
    // answers with as many.
    let offered = |run: &Value| run["phases"][2]["offered_per_second"].as_f64().unwrap();
    for systems in runs.chunks(3) {
        assert!(systems.iter().all(|run| offered(run) == offered(&systems[0])));
        let operations = systems[2]["operations"].as_array().unwrap().iter();
        let at_10 = operations.filter(|operation| operation["workload"] == "a@10");
        let (mut count, mut per_second) = (0, 0.0);
        for operation in at_10 {
            count += operation["count"].as_u64().unwrap();
            per_second += operation["per_second"].as_f64().unwrap();
        }
        assert_eq!(count, 1000);
        assert!(per_second < 1.1 * offered(&systems[2]), "{per_second}: no more than was offered");
    }
    let text = run(&["--co-location=2", "--workloads=load", "--markdown"]).unwrap();
    let head = "## 3 replicas, 2 groups\n\n**Who is ahead**\n";
    assert!(text.starts_with(head), "{text}");
    let note = "2 groups side by side (co-location factor 2), each with the records whose keys' hashes \
                are its own; all figures are of all of them.\n";
    assert!(text.contains(note), "{text}");
    assert!(!run(&["--workloads=load"]).unwrap().contains("group"), "nothing of the kind of one");
}

#[test]
fn loads_are_offered_to_all_systems_by_what_the_first_answers() {
    let words = ["--workloads=load,a", "--systems=rocksdb,primary", "--offered=10,5"];
    let json = run(&[&words[..], &["--json"]].concat()).unwrap();
    let runs = lines(&json);
    let offered = |run: &Value| {
        let phases = run["phases"].as_array().unwrap().iter();
        let of = |phase: &Value| (phase["workload"].clone(), phase["offered_per_second"].as_f64());
        phases.map(of).collect::<Vec<_>>()
    };
    let loads = offered(&runs[0]);
    let names: Vec<_> = loads.iter().map(|(name, _)| name.as_str().unwrap()).collect();
    assert_eq!(names, ["load", "a", "a@10", "a@5"]);
    assert!(runs.iter().all(|run| run["config"]["offered_of"] == "rocksdb"));
    let [at_10, at_5] = [loads[2].1.unwrap(), loads[3].1.unwrap()];
    assert_eq!(loads[1].1, None);
    // A share of the first one's answers, each rounded by itself.
    assert!((at_10 - 2.0 * at_5).abs() <= at_10 * 4.0 * f64::EPSILON, "{at_10} of {at_5}");
    assert_eq!(offered(&runs[1]), loads);
    let operations = runs[0]["operations"].as_array().unwrap().iter();
    let of_5 = operations.filter(|operation| operation["workload"] == "a@5");
    let answered: f64 = of_5.map(|operation| operation["per_second"].as_f64().unwrap()).sum();
    assert!(answered < 1.1 * at_5, "{answered}: no more than was offered");
}

#[test]
fn rounds_have_another_system_first_each_and_json_has_all_of_them() {
    let words = ["--workloads=load,a", "--replicas=2", "--rounds=2", "--offered=10", "--json"];
    let runs = lines(&run(&words).unwrap());
    let config = |run: &Value| {
        let config = &run["config"];
        (config["round"].as_u64().unwrap(), config["compaction"].as_str().unwrap().to_owned())
    };
    let turns = [(1, "rocksdb"), (1, "primary"), (1, "every-replica")];
    let turns = [turns, [(2, "primary"), (2, "every-replica"), (2, "rocksdb")]].concat();
    let expected: Vec<_> =
        turns.into_iter().map(|(round, name)| (round, name.to_owned())).collect();
    assert_eq!(runs.iter().map(config).collect::<Vec<_>>(), expected);
    // A percent refers to the first system's answers in the first round: one load in all rounds.
    let offered = |run: &Value| run["phases"][2]["offered_per_second"].as_f64().unwrap();
    assert!(runs.iter().all(|run| offered(run) == offered(&runs[0])));
    // Each round's primary beside its own every-replica.
    assert!([2, 4].iter().all(|i| runs[*i]["comparison"]["replicas"] == 2));
    assert_eq!(runs.iter().filter(|run| run.get("comparison").is_some()).count(), 2);
}

#[test]
fn the_tables_have_medians_over_the_rounds() {
    let rounds: Vec<[Run; 2]> = [5.0, 2.0, 1.0]
        .map(|seconds| {
            let mut runs: [Run; 2] = crate::report::tests::runs().try_into().unwrap();
            runs[0].phases[0].requests_seconds = seconds;
            runs
        })
        .into();
    let sides: Vec<Vec<&Run>> =
        [0, 1].map(|side| rounds.iter().map(|round| &round[side]).collect()).into();
    // 1,000 requests in 2 seconds.
    let text = tables::compare(&sides, Style::Plain);
    let line = |start: &str| {
        let line = text.lines().find(|line| line.starts_with(start)).unwrap();
        line.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(line("  load primary ")[2], "500", "{text}");
    assert_eq!(line("  load every-replica ")[2..4], ["500", "1.00"], "{text}");
    assert!(text.contains("Medians of 3 rounds."), "{text}");
    let once = tables::compare(&[vec![sides[0][0]], vec![sides[1][0]]], Style::Plain);
    assert!(once.contains(" 200 ") && !once.contains("Medians"), "{once}");
}

#[test]
fn a_run_that_fails_leaves_those_that_were_measured_before_it() {
    let dir = ScratchDir::new(&std::env::temp_dir()).unwrap();
    let file = dir.path().join("runs.json");
    let name = file.display().to_string();
    let words = ["--workloads=load", "--replicas=2", "--systems=primary,rocksdb", "--json", &name];
    let chain = |_: &Cell, _: &Path| Err(Error::unavailable("no ports"));
    let mut out = Vec::new();
    let launcher = FakeLauncher::default();
    let error = replication_to(&args(&words), &launcher, &chain, &mut out).unwrap_err();
    assert_eq!((error.message(), out.len()), ("no ports", 0));
    let told = lines(&std::fs::read_to_string(&file).unwrap());
    assert_eq!(told.len(), 1);
    assert_eq!(told[0]["config"]["compaction"], "primary");
    let words = ["--workloads=load", "--systems=primary", "--json", &name];
    let error = run(&words).unwrap_err().to_string();
    assert!(error.contains("runs.json, which is there: name another file"), "{error}");
    // A run that fails has its tables as well.
    std::fs::remove_file(&file).unwrap();
    let text = run(&words).unwrap();
    assert!(text.starts_with("3 replicas\n"), "{text}");
    assert_eq!(lines(&std::fs::read_to_string(&file).unwrap()).len(), 1);
}

#[test]
fn jobs_of_a_system_that_did_other_work_than_the_first_are_told() {
    let told = |written: u64| {
        let mut runs = crate::report::tests::runs();
        for replica in &mut runs[1].phases[0].replicas {
            replica.usage.job_written_bytes = written;
        }
        tables::compare(&[vec![&runs[1]], vec![&runs[0]]], Style::Plain)
    };
    assert!(!told(100_000_000).contains("different work"));
    let text = told(150_000_000);
    let words = "R = 3: jobs wrote 0.100 GB at the primary, and 0.150 GB at a replica of every-replica on average: \
                 ratios of CPU compare different work.\n";
    assert!(text.contains(words), "{text}");
}

#[test]
fn a_load_that_was_not_reached_is_told_and_its_latencies_are_marked() {
    // 1,000 requests of a load of 500 a second, in 2.0 seconds, and in 2.1 by the other.
    let told = |seconds: f64| {
        let mut runs = crate::report::tests::runs();
        for run in &mut runs {
            run.phases[0].workload = WorkloadChoice::C;
            let load = OpenLoad::PerSecond(500);
            run.phases[0].offered = Some(crate::report::Offered { load, per_second: 500.0 });
        }
        runs[1].phases[0].requests_seconds = seconds;
        tables::compare(&[vec![&runs[0]], vec![&runs[1]]], Style::Markdown)
    };
    let reached = told(2.03);
    assert!(!reached.contains('!') && !reached.contains("offered, so"), "{reached}");
    let text = told(2.1);
    let warning = "every-replica, workload c@500/s: answered 476 of the 500 requests a second that were offered, \
                   so latencies are of a queue, whose length --operations decides (!).\n";
    assert!(text.contains(warning), "{text}");
    let row = |start: &str| {
        let line = text.lines().find(|line| line.starts_with(start)).unwrap();
        line.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert!(row("| c@500/s every-replica ").contains("| 990 ! | 1.00 ! |"), "{text}");
    assert_eq!(row("| c@500/s every-replica ").matches(" ! |").count(), 2, "{text}");
    assert!(!row("| c@500/s primary ").contains('!'), "{text}");
}

#[test]
fn a_load_in_requests_a_second_is_the_same_in_every_run_of_the_command() {
    let words = ["--workloads=load,a", "--systems=rocksdb,primary", "--replicas=2,3"];
    let loads = ["--offered=10", "--offered-per-second=4000,2000"];
    let text = run(&[&words[..], &loads, &["--json"]].concat()).unwrap();
    let runs = lines(&text);
    assert_eq!(runs.len(), 4);
    for run in &runs {
        assert_eq!(run["config"]["offered_per_second"], serde_json::json!([4000, 2000]));
        let rates = |name: &str| {
            let phases = run["phases"].as_array().unwrap().iter();
            let own = phases.filter(|phase| phase["workload"] == name);
            own.map(|phase| phase["offered_per_second"].as_f64().unwrap()).collect::<Vec<_>>()
        };
        assert_eq!((rates("a@4000/s"), rates("a@2000/s")), (vec![4000.0], vec![2000.0]));
        assert_eq!(rates("a@10").len(), 1);
    }
    let text = run(&[&words[..2], &loads].concat()).unwrap();
    assert!(text.contains(", a@4000/s at 4,000 a second, a@2000/s at 2,000 a second. "), "{text}");
}

#[test]
fn a_bad_option_is_refused_by_name_and_limit() {
    let cases = [
        (&["--replicas=1"][..], "--replicas is 1, allowed are 2 to 16"),
        (&["--systems=primary,primary"], "--systems names primary twice"),
        (&["--offered=0"], "--offered is 0, allowed are 1 to 1000"),
        (&["--offered=80,80"], "--offered names 80 twice"),
        (&["--json", "--markdown"], "--markdown and --json without a file"),
        (&["--rounds=0"], "--rounds is 0, allowed are 1 to 100"),
        (&["--offered-per-second=0"], "--offered-per-second is 0, allowed are 1 to 100000000"),
        (&["--offered-per-second=9,9"], "--offered-per-second names 9 twice"),
        (
            &["--compression=lz4", "--bottom-compression=zstd"],
            "(its RocksDB is built without zstd); lz4 above zstd:3 was asked for",
        ),
        (&["--co-location=9"], "--co-location is 9, allowed are 1 to 8"),
        (&["--co-location=2,1,2"], "--co-location names 2 twice"),
        (&["--workloads=a"], "`load` comes first"),
        (&["--seed=1", "--threads=9"], "--threads is 9, allowed are 1 to 2"),
    ];
    for (words, message) in cases {
        let error = args(words).plan().unwrap_err().to_string();
        assert!(error.contains(message), "{words:?}: {error}");
    }
    let logs = [(&[][..], Log::On), (&["--ack=durable"], Log::Synced), (&["--log=off"], Log::Off)];
    for (words, log) in logs {
        assert_eq!(args(words).plan().unwrap().1[0][0].log, log);
    }
}

#[test]
fn the_baseline_has_for_its_cache_what_blocks_and_indexes_of_a_replica_take() {
    let indexes =
        |words: &[&str]| first_cell(words).cluster.baseline_cache_len - memory::BLOCK_CACHE_LEN;
    let load = ["--workloads=load,a", "--records=1000000"];
    let with = |words: &[&str]| indexes(&[&load, words].concat());
    let one = with(&[]);
    assert_eq!(one, memory::indexes_len(1_000_000, 100));
    assert!((2_500_000..4_500_000).contains(&one), "{one}: some 3 % of 123 MB");
    // For each group by itself.
    assert_eq!(with(&["--co-location=2"]), memory::indexes_len(500_000, 100));
    // With the records that D and E insert, 5 % of the requests of each.
    let inserting = ["--workloads=load,d,e", "--records=1000000", "--operations=2000000"];
    assert_eq!(indexes(&inserting), memory::indexes_len(1_200_000, 100));
}

#[test]
fn jobs_of_the_baseline_stand_back_by_as_many_steps_as_those_of_gabion() {
    // By default; the measured replicas of Gabion are started without the option.
    let options = concat!(env!("CARGO_MANIFEST_DIR"), "/../gabion/src/options.rs");
    let options = std::fs::read_to_string(options).unwrap();
    assert!(options.contains(&format!("const JOBS_NICE: u8 = {JOBS_NICE};")));
    assert_eq!(first_cell(&[]).jobs_nice, JOBS_NICE);
    assert_eq!(first_cell(&["--baseline-jobs-nice=0"]).jobs_nice, 0);
    let error = args(&["--baseline-jobs-nice=20"]).plan().unwrap_err().to_string();
    assert!(error.contains("--baseline-jobs-nice is 20, allowed are 0 to 19"), "{error}");
}

#[test]
fn a_chain_is_started_from_its_tail_and_ends_with_what_kept_it() {
    use std::os::unix::fs::PermissionsExt;
    let dir = ScratchDir::new(&std::env::temp_dir()).unwrap();
    let program = dir.path().join("replica");
    let cell = args(&[]).plan().unwrap().1[0][0];
    let install = |script: &str| {
        std::fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    };
    // The place is its port; it prints its options, and waits as a replica does.
    let log = dir.path().join("log");
    install(&format!(
        "echo \"$@\" >> {}; echo ready 127.0.0.1:$2 127.0.0.1:100$2; read line",
        log.display()
    ));
    let chain = Chain::start(&program, &cell, dir.path()).unwrap();
    let ports: Vec<u16> = chain.addresses().iter().map(SocketAddr::port).collect();
    assert_eq!(ports, [1, 2, 3]);
    let told = std::fs::read_to_string(&log).unwrap();
    let lines: Vec<&str> = told.lines().collect();
    assert!(lines[0].starts_with("--place 3 --of 3 --log on ") && !lines[0].contains("--next"));
    let cache = format!(" --cache {} ", cell.cluster.baseline_cache_len);
    assert!(lines.iter().all(|line| line.contains(&cache)), "{told}");
    assert!(lines.iter().all(|line| line.contains(" --jobs-nice 10 ")), "{told}");
    assert!(lines.iter().all(|line| line.contains(" --growth-factor 10 ")), "{told}");
    assert!(!told.contains("--blobs-from"), "{told}");
    assert!(lines[2].starts_with("--place 1 ") && lines[2].ends_with("--next 127.0.0.1:1002"));
    drop(chain);
    let blobs = Cell { blobs_from: Some(512), ..cell };
    drop(Chain::start(&program, &blobs, dir.path()).unwrap());
    assert_eq!(std::fs::read_to_string(&log).unwrap().matches(" --blobs-from 512").count(), 3);
    install("echo no such option");
    let error = Chain::start(&program, &cell, dir.path()).err().unwrap().to_string();
    assert!(error.contains("replica 3 of 3: it said `no such option`"), "{error}");
}

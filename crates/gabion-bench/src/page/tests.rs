//! Reports of kept real runs (`samples/`: a few seconds each, so their figures mean nothing), and
//! of modified ones.

mod clusters;
mod groups;
mod loads;
mod pictures;
mod placement;

use self::clusters::{of_clusters, turns};
use super::*;
use crate::fake::FakeLauncher;
use crate::launch::ScratchDir;
use crate::run::ycsb_to;
use crate::{EngineArgs, PlacementArgs, ReplicationArgs, YcsbArgs};
use clap::Parser;
use document::{Block, Document};
use groups::side_by_side;
use serde_json::{Value, json};

const YCSB: &str = include_str!("samples/ycsb.json");
const ENGINES: &str = include_str!("samples/engines.json");

/// Four runs: the primary compacts or every replica, two replicas or three.
fn ycsb() -> Vec<Value> {
    serde_json::from_str(YCSB).unwrap()
}

/// Two rounds of two workloads on two engines.
fn rows() -> Vec<Value> {
    ENGINES.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The same measured beside RubbleDB's baseline, which needs twice the CPU of every-replica, and
/// four times with the machine's work for it.
fn beside_rocksdb() -> Vec<Value> {
    let mut runs = ycsb();
    let mut baseline = ycsb();
    baseline.retain(|run| run["config"]["compaction"] == "every-replica");
    for run in &mut baseline {
        run["config"]["compaction"] = "rocksdb".into();
        for phase in run["phases"].as_array_mut().unwrap() {
            for replica in phase["replicas"].as_array_mut().unwrap() {
                replica["cpu_seconds"] = json!(2.0 * replica["cpu_seconds"].as_f64().unwrap());
            }
            let totals = &mut phase["totals"];
            let [machine, clients] = ["machine_cpu_seconds", "client_cpu_seconds"]
                .map(|name| totals[name].as_f64().unwrap());
            totals["machine_cpu_seconds"] = json!(4.0 * (machine - clients) + clients);
        }
    }
    runs.extend(baseline);
    for run in &mut runs {
        run["config"]["baseline_log"] = "on".into();
        run["config"]["baseline_jobs_nice"] = 10.into();
    }
    runs
}

fn document(files: &[&[Value]]) -> Document {
    let mut inputs = Inputs::default();
    for (i, runs) in files.iter().enumerate() {
        let text: Vec<String> = runs.iter().map(Value::to_string).collect();
        inputs.add(&format!("{i}.json"), &text.join("\n")).unwrap();
    }
    contents::document(&inputs)
}

fn summary(files: &[&[Value]]) -> String {
    markdown::summary(&document(files))
}

/// The error for a file of these runs.
fn refusal(text: &str) -> String {
    Inputs::default().add("runs.json", text).unwrap_err().to_string()
}

/// The cells of a line of a table.
fn cells(line: &str) -> Vec<String> {
    line.trim_matches('|').split(" | ").map(|cell| cell.trim().to_owned()).collect()
}

fn lines_with<'a>(text: &'a str, start: &str) -> Vec<&'a str> {
    text.lines().filter(|line| line.starts_with(start)).collect()
}

/// `GABION_REWRITE=1 cargo test -p gabion-bench the_summary_of` rewrites it.
#[test]
fn the_summary_of_real_runs_is_the_one_that_was_kept() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/page/samples/summary.md");
    let mut inputs = Inputs::default();
    inputs.add("ycsb.json", YCSB).unwrap();
    inputs.add("engines.json", ENGINES).unwrap();
    let text = markdown::summary(&contents::document(&inputs));
    if std::env::var_os("GABION_REWRITE").is_some() {
        std::fs::write(path, text).unwrap();
    } else {
        assert_eq!(text, std::fs::read_to_string(path).unwrap());
    }
}

#[test]
fn what_a_run_writes_today_is_read() {
    let words = ["bench", "ycsb", "--records=2000", "--value-size=100", "--workloads=load,a,c"];
    let words = [&words[..], &["--compaction=both", "--replicas=2", "--json"]].concat();
    let Bench::Ycsb(args) = Bench::try_parse_from(words).unwrap() else { panic!("a run") };
    let mut out = Vec::new();
    ycsb_to(&args, &FakeLauncher::default(), &mut out).unwrap();
    let mut inputs = Inputs::default();
    inputs.add("today.json", &String::from_utf8(out).unwrap()).unwrap();
    let text = markdown::summary(&contents::document(&inputs));
    let start = "- **primary ÷ every-replica** (R = 2, load; 2,000 records of 100 bytes): ";
    assert_eq!(lines_with(&text, start).len(), 1, "{text}");
    assert!(!text.contains("not recorded"), "{text}");
}

#[test]
fn rounds_in_several_files_become_medians_with_their_spread() {
    let scaled = |by: f64| {
        let mut runs = ycsb();
        for run in &mut runs {
            for operation in run["operations"].as_array_mut().unwrap() {
                operation["per_second"] = json!(1000.0 * by);
            }
        }
        runs
    };
    let text = summary(&[&scaled(1.0), &scaled(3.0), &scaled(2.0)]);
    let line = lines_with(&text, "| R = 3, primary, load insert ")[0];
    assert_eq!(cells(line)[1], "2,000 ±50 % (≈ 1.00)");
    assert!(
        text.contains("- rounds: R = 2: 3 primary, 3 every-replica; R = 3: 3 primary"),
        "{text}"
    );
    assert!(text.contains("- files: 0.json, 1.json, 2.json"), "{text}");
}

#[test]
fn runs_of_another_machine_commit_or_build_are_neither_rounds_nor_the_other_side() {
    let fields: [(&str, Value); 3] = [
        ("commit", json!("0123abcd")),
        ("machine", json!({"name": "another"})),
        ("build", json!("release")),
    ];
    for (field, value) in fields {
        let (mut once, mut everywhere) = (ycsb(), ycsb());
        once.retain(|run| run["config"]["compaction"] == "primary");
        everywhere.retain(|run| run["config"]["compaction"] == "every-replica");
        assert!(
            summary(&[&once, &everywhere]).contains("CPU of primary ÷"),
            "the same are compared"
        );
        for run in &mut everywhere {
            run["config"][field] = value.clone();
        }
        let text = summary(&[&once, &everywhere]);
        assert!(text.contains("Nothing is compared here"), "{field}: {text}");
        assert_eq!(lines_with(&text, "### Replication: ").len(), 2, "{field}");
        let mut others = rows();
        for row in others.iter_mut().filter(|row| row["engine"] == "fjall") {
            row["config"][field] = value.clone();
        }
        assert!(summary(&[&others]).contains("Nothing is compared here"), "{field}");
    }
}

#[test]
fn settings_that_differ_are_experiments_of_their_own() {
    let mut others = ycsb();
    for run in &mut others {
        run["config"]["value_size"] = 100.into();
        run["config"]["compressibility"] = 0.5.into();
    }
    let mut large = rows();
    for row in &mut large {
        row["value_size"] = 400.into();
    }
    let text = summary(&[&ycsb(), &others, &rows(), &large]);
    for title in [
        "### Replication: 20,000 records of 1,000 bytes",
        "### Replication: 20,000 records of 100 bytes, 50 % compressible",
        "### Engines alone: values of 100 bytes, log on",
        "### Engines alone: values of 400 bytes, log on",
    ] {
        assert_eq!(text.lines().filter(|line| *line == title).count(), 1, "{title}");
    }
}

#[test]
fn an_engine_with_options_of_its_own_is_another_engine_beside_the_same() {
    let mut tuned = rows();
    tuned.retain(|row| row["engine"] == "fjall");
    for row in &mut tuned {
        row["own_options"] = json!(["--own-block-size=4096"]);
        row["per_second"] = json!(3.0 * row["per_second"].as_f64().unwrap());
    }
    let text = summary(&[&rows(), &tuned]);
    for engine in ["fjall 3.1.13", "fjall 3.1.13 with --own-block-size=4096"] {
        for (line, count) in [("readrandom, ÷ ENGINE", 1), ("readrandom, ENGINE", 2)] {
            let start = line.replace("ENGINE", engine);
            let lines = lines_with(&text, &format!("| {start} "));
            let is_it = |line: &&&str| cells(line)[0] == start;
            assert_eq!(lines.iter().filter(is_it).count(), count, "{start}: {text}");
        }
    }
}

#[test]
fn workloads_with_other_records_stand_together_and_are_not_divided_by_each_other() {
    let mut rows = rows();
    for row in rows.iter_mut().filter(|row| row["workload"] == "readrandom") {
        row["records"] = 5_000.into();
    }
    let document = document(&[&rows]);
    let text = markdown::summary(&document);
    assert!(text.contains("- records: 5,000; 20,000"), "{text}");
    assert!(!text.contains("(no. 2)"), "{text}");
    assert_eq!(lines_with(&text, "| readrandom, ÷ fjall ").len(), 1, "{text}");
    let commands = commands(&document).join("\n");
    for words in ["--workloads fillrandom ", "--workloads readrandom "] {
        let line = commands.lines().find(|line| line.contains(words)).unwrap();
        let records = if words.contains("fill") { "--records 20000 " } else { "--records 5000 " };
        assert!(line.contains(records), "{line}");
    }
    // The same workload on two data sets is named by them.
    rows[0]["records"] = 5_000.into();
    let text = summary(&[&rows]);
    assert!(text.contains("| fillrandom, 5,000 records, gabion "), "{text}");
    assert!(text.contains("| fillrandom, 20,000 records, ÷ fjall "), "{text}");
}

#[test]
fn engines_that_did_not_do_as_much_of_a_workload_that_writes_are_told_at_the_top() {
    let told = |workload: &str| {
        let mut rows = rows();
        let others = |row: &&mut Value| row["engine"] == "fjall" && row["workload"] == workload;
        for row in rows.iter_mut().filter(others) {
            row["operations"] = 10_000.into();
        }
        summary(&[&rows])
    };
    let text = told("fillrandom");
    let line = "- Engines, values of 100 bytes, log on: fillrandom (gabion 20,000 operations, fjall 3.1.13 10,000): ";
    assert_eq!(lines_with(&text, line).len(), 1, "{text}");
    assert!(!told("readrandom").contains("different work"));
}

#[test]
fn others_work_beside_an_engine_is_told() {
    let with = |share: f64| {
        let mut rows = rows();
        rows[0]["others"] = json!({"cpu_share": 0.01, "stolen_share": share});
        summary(&[&rows])
    };
    assert!(!with(0.05).contains("had up to"));
    assert!(with(0.12).contains("others or its host had up to 12 % of the machine's processors"));
}

#[test]
fn a_ratio_has_its_first_side_above() {
    let mut rows = rows();
    for row in &mut rows {
        let own = row["engine"] == "gabion";
        row["per_second"] = if own { 3000.0 } else { 1000.0 }.into();
        row["cpu_us_per_op_quiet"] = if own { 1.0 } else { 4.0 }.into();
        row["space_amp"] = if own { 3.0 } else { 2.0 }.into();
    }
    let text = summary(&[&rows]);
    let header = cells(lines_with(&text, "| workload, ÷ engine ")[0]);
    let line = cells(lines_with(&text, "| fillrandom, ÷ fjall ")[0]);
    let ratio = |name: &str| line[header.iter().position(|word| word == name).unwrap()].as_str();
    assert_eq!(ratio("ops/s"), "▲ 3.00");
    assert_eq!(ratio("CPU per op"), "▲ 0.25");
    assert_eq!(ratio("space amp"), "▼ 1.50");
    let verdict = lines_with(&text, "- **gabion ÷ fjall")[0];
    assert!(verdict.contains("ahead in ops/s ×3.00"), "{verdict}");
    assert!(verdict.contains("behind in ") && verdict.contains("space amp ×1.50"), "{verdict}");
}

#[test]
fn the_cpu_ratio_stands_beside_the_formula_and_the_papers() {
    let text = summary(&[&ycsb()]);
    let comparison = &ycsb()[2]["comparison"];
    let (_, text) = text.split_once("\n| replicas | measured").unwrap();
    let line = lines_with(text, "| R = 3 ")[0];
    let line = cells(line);
    let phase = |run: usize| -> f64 {
        let replicas = ycsb()[run]["phases"][0]["replicas"].as_array().unwrap().clone();
        replicas.iter().map(|replica| replica["cpu_seconds"].as_f64().unwrap()).sum()
    };
    let measured = phase(2) / phase(3);
    assert!((measured - comparison["cpu_ratio"].as_f64().unwrap()).abs() < 1e-9);
    assert!(line[1].ends_with(&stats::significant(measured)), "{line:?}");
    let expected = ["formula", "s", "x", "shipping_us_per_kb", "job_us_per_kb"]
        .map(|name| stats::significant(comparison[name].as_f64().unwrap()));
    assert_eq!([&line[2], &line[4], &line[5], &line[6], &line[7]].map(String::clone), expected);
    assert_eq!(line[3], "0.56", "3,121 of 5,603 s");
}

#[test]
fn rubbledbs_baseline_is_a_third_system_by_which_the_others_are_divided() {
    let runs = beside_rocksdb();
    let text = summary(&[&runs]);
    for pair in ["primary ÷ rocksdb", "every-replica ÷ rocksdb", "primary ÷ every-replica"] {
        let start = format!("- **{pair}** (R = 3, load; ");
        assert_eq!(lines_with(&text, &start).len(), 1, "{pair}\n{text}");
        assert!(text.contains(&format!("**{pair}: 20,000 records of 1,000 bytes**")), "{text}");
    }
    let beside = lines_with(&text, "| R = 3, every-replica ÷ rocksdb ")[0];
    assert_eq!(cells(beside)[1..], ["▲ 0.50", "≈ 1.00", "▲ 4.00", "▲ 2.00"]);
    let (machine, replicas) =
        ("requests per CPU second of the machine", "requests per CPU second of replicas");
    let header = cells(lines_with(&text, "| replicas, sides ")[0]);
    assert_eq!(header[3..], [machine, replicas]);
    let overview = lines_with(&text, "| R = 3, load ");
    assert_eq!(cells(overview[1])[2], "▲ 4.00", "every-replica ÷ rocksdb: {}", overview[1]);
    let header = lines_with(&text, "| time spent ")[0];
    let systems = ["rocksdb: primary", "every-replica: primary", "primary: primary"];
    assert_eq!(cells(header)[1..].iter().step_by(2).collect::<Vec<_>>(), systems);
    let total = cells(lines_with(&text, "| Total ")[0]);
    assert!(!total[1].contains('('), "{total:?}");
    assert!(total[3].ends_with("(▲ 0.50)") && total[5].contains("(▲ 0."), "{total:?}");
    assert!(text.contains("| R = 3, rocksdb, load insert "), "{text}");
    assert!(!text.contains("no run beside RubbleDB's baseline"), "{text}");
    assert!(text.contains("latencies by offered load, as in Figure 10."), "{text}");
    // A run of the other command has other settings, as it does not record the baseline's log.
    let both = summary(&[&runs, &ycsb()]);
    assert_eq!(lines_with(&both, "### Replication: ").len(), 2);
    let page = html::page(&document(&[&runs]));
    assert!(page.contains("class=\"s2\""), "its bars have a colour of their own");
    for name in [machine, replicas] {
        assert!(page.contains(&format!("R = 3: {name}")), "{name}");
    }
}

#[test]
fn latencies_are_divided_by_those_of_the_same_type_of_request() {
    let mut runs = beside_rocksdb();
    for run in &mut runs {
        // Reads are slow on one side, writes on the other.
        let is_baseline = run["config"]["compaction"] == "rocksdb";
        for operation in run["operations"].as_array_mut().unwrap() {
            let is_read = operation["type"] == "read";
            let us = if is_read == is_baseline { 9000.0 } else { 1000.0 };
            operation["latency_us"]["p99"] = us.into();
        }
    }
    let text = summary(&[&runs]);
    let header = cells(lines_with(&text, "| replicas, workload ")[0]);
    let line = |workload: &str| cells(lines_with(&text, &format!("| R = 3, {workload} "))[0]);
    let ratio = |workload, name| {
        line(workload)[header.iter().position(|word| word == name).unwrap()].clone()
    };
    let [writes, reads] = ["p99 of writes", "p99 of reads"];
    assert_eq!([ratio("a", writes), ratio("a", reads)], ["▼ 9.00", "▲ 0.11"]);
    assert_eq!([ratio("load", writes), ratio("load", reads)], ["▼ 9.00", ""]);
}

#[test]
fn the_cache_of_the_baseline_is_told_and_another_one_is_another_experiment() {
    let with = |len: u64, mut runs: Vec<Value>| {
        runs.iter_mut().for_each(|run| run["config"]["baseline_cache_bytes"] = len.into());
        runs
    };
    let one = with(69_000_000, beside_rocksdb());
    let text = summary(&[&one]);
    assert!(text.contains("\n- cache of each replica of the baseline: 69.0 MB\n"), "{text}");
    // With groups that share the records it is another, and the experiment the same.
    let text = summary(&[&one, &with(68_000_000, side_by_side(beside_rocksdb(), 2))]);
    assert!(text.contains("baseline: 69.0 MB, 68.0 MB with 2 groups\n"), "{text}");
    assert_eq!(lines_with(&text, "### Replication: ").len(), 1, "{text}");
    let text = summary(&[&one, &with(67_108_864, beside_rocksdb())]);
    assert_eq!(lines_with(&text, "### Replication: ").len(), 2, "{text}");
    assert!(text.contains("- rounds: R = 2: 1 primary, 1 every-replica, 1 rocksdb;"), "{text}");
    assert!(
        !summary(&[&beside_rocksdb()]).contains("of the baseline:"),
        "files that do not say it"
    );
}

/// Every command that a report asks for.
fn commands(document: &Document) -> Vec<String> {
    let blocks = document.sections.iter().flat_map(|section| &section.blocks);
    let command = |block: &Block| match block {
        Block::Command { command, .. } => Some(command.clone()),
        _ => None,
    };
    blocks.filter_map(command).collect()
}

#[derive(Parser)]
enum Bench {
    Ycsb(YcsbArgs),
    Replication(ReplicationArgs),
    Placement(PlacementArgs),
    Engine(EngineArgs),
}

#[test]
fn what_is_missing_is_named_with_a_command_that_can_be_typed_and_makes_it_comparable() {
    let mut once = ycsb();
    once.retain(|run| run["config"]["compaction"] == "primary");
    let mut own = rows();
    own.retain(|row| row["engine"] == "gabion");
    let mut peers = rows();
    peers.retain(|row| row["engine"] == "fjall");
    let mut lacking = rows();
    lacking.retain(|row| row["engine"] == "gabion" || row["workload"] == "readrandom");
    let mut beside = beside_rocksdb();
    beside.retain(|run| run["config"]["compaction"] != "rocksdb");
    let groups = side_by_side(ycsb(), 2);
    let clusters = of_clusters(&[(2, 66)]);
    let cases: [(&[Value], &[&str]); 8] = [
        (&clusters, &["clusters 15, 19, 27, 31 of RubbleDB's Figure 9."]),
        (
            &groups,
            &[
                "R = 2,3,4 of RubbleDB's tables.",
                "R = 4, 2 groups of RubbleDB's Figure 8.",
                "no run beside RubbleDB's baseline",
            ],
        ),
        (&beside, &["no run of rocksdb at R = 2,3", "gabion bench replication --systems rocksdb "]),
        (
            &once,
            &[
                "no run of every-replica at R = 2,3",
                "R = 4 of RubbleDB",
                "workloads b, c, d, e, f, g of Figures 7, 8 and 10.",
                "no run beside RubbleDB's baseline",
            ],
        ),
        (&own, &["No run of a replicated cluster", "no row of rocksdb and of fjall."]),
        (&peers, &["no row of gabion, so no ratio", "no row of rocksdb."]),
        (&lacking, &["no row of fjall for fillrandom."]),
        (&ycsb(), &["No row of an engine alone"]),
    ];
    for (runs, expected) in cases {
        let document = document(&[runs]);
        let text = markdown::summary(&document);
        for words in expected {
            assert!(text.contains(words), "{words}\nis not in\n{text}");
        }
        for command in commands(&document).iter().flat_map(|command| turns(command)) {
            let words = command.split_whitespace().skip(1);
            match Bench::try_parse_from(words).unwrap_or_else(|e| panic!("{command}: {e}")) {
                Bench::Ycsb(args) => {
                    assert!(args.load.client.json.is_some() && args.plan().is_ok(), "{command}")
                }
                Bench::Replication(args) => {
                    assert!(args.load.client.json.is_some() && args.plan().is_ok(), "{command}");
                }
                Bench::Placement(args) => {
                    assert!(args.client.json.is_some() && args.plan().is_ok(), "{command}");
                }
                Bench::Engine(args) => assert!(args.json.is_some(), "{command}"),
            }
        }
    }
    let commands = commands(&document(&[&once])).join("\n");
    let own = "--records 20000 --value-size 1000 --compressibility 0 --compression none ";
    assert!(commands.contains(own), "{commands}");
    assert!(commands.contains("--memtable-size 1048576"), "{commands}");
    assert!(
        commands.contains("--compaction every-replica --workloads load,a --records"),
        "{commands}"
    );
}

#[test]
fn files_that_do_not_say_where_they_come_from_or_of_which_cluster_are_read() {
    let (mut runs, mut rows) = (ycsb(), rows());
    for run in &mut runs {
        let config = run["config"].as_object_mut().unwrap();
        // With --connect the last three are not known.
        for field in
            crate::provenance::FIELDS.iter().chain(&["ack", "memtable_bytes", "compression"])
        {
            config.shift_remove(*field);
        }
    }
    for row in &mut rows {
        row.as_object_mut().unwrap().shift_remove("config");
    }
    let text = summary(&[&runs, &rows]);
    assert_eq!(text.matches("- machine: machine not recorded").count(), 2, "{text}");
    assert_eq!(text.matches("- program: version not recorded").count(), 2, "{text}");
    assert_eq!(text.matches("- started: not recorded").count(), 2, "{text}");
    assert!(text.contains("gabion ÷ fjall"), "{text}");
}

#[test]
fn what_went_wrong_in_a_run_stands_at_the_top() {
    let sound = summary(&[&ycsb(), &ycsb()]);
    for words in ["WRONG READS", "was not quiet", "were refused", "one round of some runs"] {
        assert!(!sound.contains(words), "{words}\nis in\n{sound}");
    }
    assert!(sound.contains("measured by a debug build"), "{sound}");
    let mut runs = ycsb();
    runs[0]["phases"][0]["totals"]["settled"] = false.into();
    runs[1]["phases"][1]["wrong_reads"] = 3.into();
    runs[1]["config"]["round"] = 2.into();
    runs[2]["phases"][0]["refusals"] = json!({"TRYAGAIN": 4, "BUSY": 1});
    for run in &mut runs {
        run["config"]["build"] = "release".into();
    }
    let text = summary(&[&runs]);
    let (head, _) = text.split_once("### What was run").unwrap();
    for words in [
        "was not quiet when counting ended, so CPU and I/O lack a part (0.json, R = 2, primary, workload load)",
        "WRONG READS: 3 (0.json, R = 2, every-replica, round 2, workload a)",
        "were refused 5 times and tried again (0.json, R = 3, primary, workload load)",
        "one round of some runs",
    ] {
        assert!(head.contains(words), "{words}\nis not in\n{head}");
    }
    assert!(!head.contains("debug build"), "{head}");
}

/// The summary of runs with one total changed in all of them.
fn summary_with_total(name: &str, seconds: f64) -> String {
    let mut runs = ycsb();
    for run in &mut runs {
        for phase in run["phases"].as_array_mut().unwrap() {
            phase["totals"][name] = seconds.into();
        }
    }
    summary(&[&runs])
}

#[test]
fn runs_whose_baseline_stood_back_by_other_steps_are_other_experiments() {
    let runs = beside_rocksdb();
    let text = summary(&[&runs]);
    assert_eq!(text.matches("- nice of the baseline's jobs: 10").count(), 1, "{text}");
    let mut before = runs.clone();
    for run in &mut before {
        run["config"].as_object_mut().unwrap().shift_remove("baseline_jobs_nice");
    }
    let text = summary(&[&runs, &before]);
    assert_eq!(text.matches("\n**Replication: ").count(), 2, "{text}");
    for (runs, has_nice) in [(&runs, true), (&before, false)] {
        let commands = commands(&document(&[runs]));
        let mut replication =
            commands.iter().filter(|command| command.contains("bench replication "));
        let has = |command: &String| command.contains(" --baseline-jobs-nice 10 ") == has_nice;
        assert!(replication.clone().count() > 0 && replication.all(has), "{commands:?}");
    }
}

#[test]
fn others_work_on_the_machine_is_told() {
    let with = |seconds| summary_with_total("machine_cpu_seconds", seconds);
    assert!(!with(0.1).contains("busy with other things"));
    assert!(with(100.0).contains("busy with other things"));
}

#[test]
fn what_the_host_took_is_told() {
    let with = |seconds| summary_with_total("stolen_cpu_seconds", seconds);
    assert!(!with(0.0).contains("the host took"));
    assert!(with(10.0).contains("the host took processor time for others"));
}

#[test]
fn modes_whose_jobs_did_not_do_the_same_are_told() {
    let mut runs = ycsb();
    assert!(!summary(&[&runs]).contains("different work"));
    for run in runs.iter_mut().filter(|run| run["config"]["compaction"] == "every-replica") {
        for phase in run["phases"].as_array_mut().unwrap() {
            for replica in phase["replicas"].as_array_mut().unwrap() {
                replica["job_written_bytes"] = 80_000_000.into();
            }
        }
    }
    let text = summary(&[&runs]);
    assert!(text.contains("0.080 GB at a replica of every-replica"), "{text}");
    // Beside the baseline too, each with the place where it makes files.
    let mut runs = beside_rocksdb();
    assert!(!summary(&[&runs]).contains("different work"));
    for run in runs.iter_mut().filter(|run| run["config"]["compaction"] == "rocksdb") {
        for phase in run["phases"].as_array_mut().unwrap() {
            for replica in phase["replicas"].as_array_mut().unwrap() {
                replica["job_written_bytes"] = 90_000_000.into();
            }
        }
    }
    let text = summary(&[&runs]);
    for side in ["at the primary", "at a replica of every-replica on average"] {
        let told =
            format!(" GB {side}, and 0.090 GB at a replica of rocksdb on average: ratios of CPU");
        assert_eq!(text.matches(&told).count(), 2, "of two and of three replicas: {text}");
    }
}

#[test]
fn a_bad_file_is_refused_in_one_line_that_names_file_field_and_value() {
    let changed = |path: &str, value: Value| {
        let mut runs = ycsb();
        *runs[1].pointer_mut(path).unwrap() = value;
        Value::from(runs).to_string()
    };
    let row = |field: &str, value: Value| {
        let mut rows = rows();
        rows[1][field] = value;
        format!("{}\n{}", rows[0], rows[1])
    };
    let cases = [
        (String::new(), "runs.json: it holds 0 runs, needed is 1 at least"),
        ("[]".to_owned(), "runs.json: it holds 0 runs"),
        (
            "{\n\"a\": nothing".to_owned(),
            "runs.json:1: what begins here is no JSON: expected ident",
        ),
        (ENGINES[..ENGINES.len() - 9].to_owned(), "runs.json:8: what begins here is no JSON: EOF"),
        ("\n\n7".to_owned(), "runs.json:3: the run is 7, needed is a run of `gabion bench ycsb`"),
        ("[{\"a\": 1}]".to_owned(), "runs.json:1: [0] is {\"a\":1}, needed is a run of"),
        (
            changed("/config/records", json!("many")),
            "runs.json:1: [1].config.records is \"many\", needed is a whole number from 0 to",
        ),
        (changed("/config/records", json!(-1)), "[1].config.records is -1, needed is a whole"),
        (changed("/config/records", json!(1e300)), "[1].config.records is 1e+300"),
        (
            changed("/config/records", json!(u64::MAX)),
            "config.records is 18446744073709551615, needed",
        ),
        (
            changed("/phases/0/totals/machine_cpu_seconds", json!(1e19)),
            "machine_cpu_seconds is 1e+19",
        ),
        (
            changed("/config/compaction", json!("none")),
            "\"none\", needed is primary or every-replica or rocksdb",
        ),
        (changed("/config/replicas", json!(5)), "[1].config.replicas is 5, needed is as many as"),
        (changed("/config/machine", json!({"cores": "two"})), "config.machine.cores is \"two\""),
        (
            changed("/config/build", json!("fast")),
            "[1].config.build is \"fast\", needed is release",
        ),
        (
            changed("/operations/0/latency_us/p99", json!(null)),
            "operations[0].latency_us.p99 is null",
        ),
        (
            changed("/config", json!({})),
            "runs.json:1: [1].config.replicas is missing, needed is a value",
        ),
        (changed("/operations/0", json!(3)), "[1].operations[0] is 3, needed is an object"),
        (
            changed("/phases/0/replicas/1/cpu_seconds", json!(-0.5)),
            "[1].phases[0].replicas[1].cpu_seconds is -0.5, needed is a number from 0 to 1e18",
        ),
        (changed("/phases/0/refusals", json!({"X": "y"})), "[1].phases[0].refusals.X is \"y\""),
        (row("revision", json!(1)), "runs.json:2: revision is 1, needed is 3: only rows of one"),
        (row("per_second", json!("x".repeat(99))), "runs.json:2: per_second is \"xxxx"),
        (row("limits", json!([1])), "runs.json:2: limits[0] is 1, needed is a text"),
    ];
    for (text, words) in cases {
        let error = refusal(&text);
        assert!(error.contains(words), "{words}\nis not in\n{error}");
        assert!(!error.contains('\n') && error.len() < 200, "{error}");
    }
    let deep = "[".repeat(10_000);
    assert!(refusal(&deep).contains("recursion limit"), "nesting ends no process");
}

#[test]
fn the_largest_figures_that_are_read_make_no_figure_that_is_none() {
    fn raise(value: &mut Value) {
        match value {
            Value::Number(number) if number.is_u64() => *value = (1_u64 << 53).into(),
            Value::Number(_) => *value = 1e18.into(),
            Value::Array(items) => items.iter_mut().for_each(raise),
            Value::Object(fields) => fields
                .iter_mut()
                .filter(|(name, _)| !["replicas", "revision"].contains(&name.as_str()))
                .for_each(|(_, value)| raise(value)),
            _ => {}
        }
    }
    let (mut runs, mut rows) = (ycsb(), rows());
    for run in &mut runs {
        raise(run);
        for phase in run["phases"].as_array_mut().unwrap() {
            phase["replicas"].as_array_mut().unwrap().iter_mut().for_each(raise);
        }
    }
    rows.iter_mut().for_each(raise);
    let page = html::page(&document(&[&runs, &rows]));
    assert!(page.contains("9,007,199,254,740,992"), "what was raised is there");
    for word in ["NaN", "inf\"", ">inf", " inf"] {
        assert!(!page.contains(word), "{word}");
    }
}

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    args: ReportArgs,
}

fn args(words: &[&str]) -> Result<ReportArgs, String> {
    let line = Line::try_parse_from([&["report"], words].concat()).map_err(|e| e.to_string())?;
    Ok(line.args)
}

#[test]
fn files_go_in_and_a_page_and_a_summary_come_out() {
    let dir = ScratchDir::new(&std::env::temp_dir()).unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    std::fs::write(path("a.json"), YCSB).unwrap();
    std::fs::write(path("b.json"), ENGINES).unwrap();
    let (a, b, page) = (path("a.json"), path("b.json"), path("r.html"));
    let mut out = Vec::new();
    report(&args(&[&a, &b, "--html", &page, "--markdown", "-"]).unwrap(), &mut out).unwrap();
    assert!(std::fs::read_to_string(&page).unwrap().starts_with("<!DOCTYPE html>"));
    let printed = String::from_utf8(out).unwrap();
    assert!(printed.contains("gabion ÷ fjall") && printed.contains("primary ÷ every-replica"));
    let mut none = Vec::new();
    report(&args(&[&a, &b, "--markdown", &path("r.md")]).unwrap(), &mut none).unwrap();
    assert_eq!(std::fs::read_to_string(path("r.md")).unwrap(), printed);
    assert!(none.is_empty());
}

#[test]
fn nothing_is_written_when_an_input_is_bad_named_twice_or_would_be_written_over() {
    let dir = ScratchDir::new(&std::env::temp_dir()).unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    std::fs::write(path("a.json"), YCSB).unwrap();
    std::fs::write(path("bad.json"), "{}").unwrap();
    std::fs::create_dir(path("sub")).unwrap();
    let (a, page) = (path("a.json"), path("r.html"));
    let again = path("sub/../a.json");
    let gone = path("gone.json");
    let cases: [(&[&str], &str); 5] = [
        (&[&a, &path("bad.json"), "--html", &page], "bad.json:1: the run is {}"),
        (&[&a, &again, "--html", &page], "named twice"),
        (&[&a, "--html", &again], "named twice"),
        (&[&a, "--html", &page, "--markdown", &page], "named twice"),
        (&[&gone, "--html", &page], "gone.json"),
    ];
    for (words, message) in cases {
        let error = report(&args(words).unwrap(), &mut Vec::new()).unwrap_err().to_string();
        assert!(error.contains(message), "{message}\nis not in\n{error}");
        assert!(!Path::new(&page).exists(), "{words:?}");
        assert_eq!(std::fs::read_to_string(&a).unwrap(), YCSB);
    }
    assert!(args(&[&a]).unwrap_err().contains("--html <FILE>|--markdown <FILE>"), "one is needed");
    assert!(args(&["--html", &page]).unwrap_err().contains("<RUN.json>"));
}

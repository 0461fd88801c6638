//! Whole runs of `gabion bench ycsb` against made-up replicas, faults included.

use super::*;
use crate::fake::{FakeCluster, FakeLauncher, Faults};
use clap::Parser;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    args: YcsbArgs,
}

const SMALL: [&str; 7] = [
    "bench",
    "--records=2000",
    "--value-size=100",
    "--clients=3",
    "--pipeline=5",
    "--threads=2",
    "--json",
];

/// Runs it, and gives the run, or an array of several.
fn run(words: &[&str], faults: Faults) -> (Result<u8>, Value, Vec<ClusterSpec>) {
    let launcher = FakeLauncher { faults, ..FakeLauncher::default() };
    let line = Line::try_parse_from([&SMALL, words].concat()).unwrap();
    let mut out = Vec::new();
    let result = ycsb_to(&line.args, &launcher, &mut out);
    let lines = std::str::from_utf8(&out).unwrap().lines();
    let runs: Vec<Value> = lines.map(|line| serde_json::from_str(line).unwrap()).collect();
    let json = if let [run] = &runs[..] { run.clone() } else { runs.into() };
    (result, json, launcher.specs.into_inner().unwrap())
}

#[test]
fn load_a_and_c_run_in_a_cluster_that_is_gone_afterwards() {
    let (result, json, specs) = run(&["--workloads", "load,a,c"], Faults::default());
    assert_eq!(result.unwrap(), 0);
    let kinds: Vec<_> = json["operations"].as_array().unwrap().iter().collect();
    let count = |i: usize| kinds[i]["count"].as_u64().unwrap();
    assert_eq!(kinds.len(), 4);
    assert_eq!((&kinds[0]["type"], count(0)), (&json!("insert"), 2000));
    assert_eq!(count(1) + count(2), 2000, "half reads, half updates");
    assert_eq!((&kinds[3]["type"], count(3)), (&json!("read"), 2000));
    assert!(kinds.iter().all(|op| op["latency_us"]["p999"].as_f64().unwrap() > 0.0));
    assert_eq!(json["replicas"].as_array().unwrap().len(), 3);
    for field in crate::provenance::FIELDS {
        assert!(json["config"].get(field).is_some(), "config.{field} is missing");
    }
    assert_eq!(json["totals"]["settled"], true);
    assert!(json["totals"]["client_cpu_seconds"].as_f64().unwrap() > 0.0);
    assert!(!specs[0].dir.exists(), "{}", specs[0].dir.display());
}

#[test]
fn every_workload_of_ycsb_runs_and_its_requests_are_counted_by_type() {
    let (result, json, _) = run(&["--workloads", "load,b,d,e,f,g"], Faults::default());
    assert_eq!(result.unwrap(), 0, "{json}");
    let operations = json["operations"].as_array().unwrap();
    let kinds = |workload: &str| {
        let own = operations.iter().filter(|operation| operation["workload"] == workload);
        own.map(|operation| operation["type"].as_str().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(kinds("b"), ["read", "update"]);
    assert_eq!(kinds("d"), ["insert", "read"]);
    assert_eq!(kinds("e"), ["insert", "scan"]);
    assert_eq!(kinds("f"), ["read", "read-modify-write"]);
    assert_eq!(kinds("g"), ["update"]);
    let counts = operations.iter().map(|operation| operation["count"].as_u64().unwrap());
    assert_eq!(counts.sum::<u64>(), 6 * 2000);
}

#[test]
fn a_scan_that_leaves_a_record_out_is_a_wrong_read() {
    let faults = Faults { corrupt_every: 500, ..Faults::default() };
    let (result, json, _) = run(&["--workloads", "load,e"], faults);
    assert_eq!(result.unwrap(), 1);
    assert_eq!(json["phases"][1]["wrong_reads"], 3, "{}", json["phases"][1]);
    let example = json["phases"][1]["wrong_read_examples"][0].as_str().unwrap();
    assert!(example.starts_with("a scan "), "{example}");
}

#[test]
fn processor_time_is_told_beside_the_time_in_which_it_was_counted() {
    let (_, json, _) = run(&["--workloads", "load,c"], Faults::default());
    for totals in [&json["phases"][0]["totals"], &json["phases"][1]["totals"], &json["totals"]] {
        let seconds = |name: &str| totals[name].as_f64().unwrap();
        // Requests are answered, then debt is paid; both are within the time of the CPU figures.
        assert!(seconds("requests_seconds") > 0.0);
        assert!(
            seconds("wall_seconds") > seconds("requests_seconds") + seconds("settle_seconds"),
            "{totals}"
        );
    }
    let inserts = &json["operations"][0];
    let per_second = inserts["per_second"].as_f64().unwrap();
    let requests = json["phases"][0]["totals"]["requests_seconds"].as_f64().unwrap();
    assert!((per_second * requests - 2000.0).abs() < 1e-6, "{inserts}");
}

#[test]
fn the_bar_shows_whole_operations_per_second() {
    assert_eq!(rate(26_281.775_8), "26,281/s");
    assert_eq!(rate(0.4), "0/s");
}

/// docs/faults.md: P36
#[test]
fn a_run_whose_last_cluster_has_no_room_starts_none() {
    let launcher = FakeLauncher { room: Some(3), ..FakeLauncher::default() };
    let dir = std::env::temp_dir().join(format!("gabion-bench-room-{}", std::process::id()));
    let words = ["--replicas=2,9", &format!("--dir={}", dir.display())];
    let line = Line::try_parse_from([&SMALL[..], &words].concat()).unwrap();
    let error = ycsb_to(&line.args, &launcher, &mut Vec::new()).unwrap_err();
    assert!(error.to_string().contains("no room for 9 replicas"), "{error}");
    assert!(launcher.specs.into_inner().unwrap().is_empty());
    assert!(!dir.exists(), "a directory is made");
}

/// docs/faults.md: P36
#[test]
fn the_groups_of_a_cluster_need_room_together() {
    let launcher = FakeLauncher { room: Some(8), ..FakeLauncher::default() };
    let line = Line::try_parse_from([&SMALL[..], &["--co-location=1,3"]].concat()).unwrap();
    let error = ycsb_to(&line.args, &launcher, &mut Vec::new()).unwrap_err();
    assert!(error.to_string().contains("no room for 9 replicas"), "{error}");
    assert!(launcher.specs.into_inner().unwrap().is_empty());
}

#[test]
fn groups_side_by_side_hold_the_records_between_them_and_are_counted_together() {
    let words = ["--co-location=3", "--replicas=2", "--workloads=load,a,d,e,f"];
    let (result, json, specs) = run(&words, Faults::default());
    assert_eq!(result.unwrap(), 0, "each read is answered by the group that has the record");
    assert_eq!(specs.len(), 3);
    assert!(specs.iter().all(|spec| spec.replicas == 2 && !spec.dir.exists()));
    assert_eq!(
        (&json["config"]["co_location"], &json["config"]["replicas"]),
        (&json!(3), &json!(2))
    );
    let operations = json["operations"].as_array().unwrap();
    let counts = operations.iter().map(|operation| operation["count"].as_u64().unwrap());
    assert_eq!(counts.sum::<u64>(), 5 * 2000, "as many as with one group");
    let replicas = json["phases"][0]["replicas"].as_array().unwrap();
    let number = |replica: &Value, name: &str| replica[name].as_u64().unwrap();
    let names: Vec<_> = replicas.iter().map(|r| (number(r, "group"), number(r, "id"))).collect();
    assert_eq!(names, [(1, 1), (1, 2), (2, 1), (2, 2), (3, 1), (3, 2)]);
    // A made-up replica flushes a tenth of its group's writes.
    let flushes: Vec<u64> = replicas.iter().map(|replica| number(replica, "flushes")).collect();
    assert!(flushes.iter().all(|flushes| (60..=70).contains(flushes)), "{flushes:?}");
    assert!((2 * 197..=2 * 200).contains(&flushes.iter().sum::<u64>()), "{flushes:?}");
}

#[test]
fn a_report_names_the_group_of_each_replica_where_there_are_several() {
    let text = |words: &[&str]| {
        let line = Line::try_parse_from([&SMALL[..6], words].concat()).unwrap();
        let mut out = Vec::new();
        ycsb_to(&line.args, &FakeLauncher::default(), &mut out).unwrap();
        String::from_utf8(out).unwrap()
    };
    let one = text(&[]);
    assert!(
        one.starts_with("3 replicas, compaction: primary\n") && !one.contains("group"),
        "{one}"
    );
    let two = text(&["--co-location=2", "--replicas=2", "--compaction=both"]);
    assert!(two.starts_with("2 replicas, 2 groups, compaction: primary\n"), "{two}");
    for start in ["  group 1, 1 primary ", "  group 2, 2 tail "] {
        let lines = two.lines().filter(|line| line.starts_with(start));
        assert_eq!(lines.count(), 2 * 3, "CPU, device and network of both modes: {two}");
    }
    for start in ["  R = 2, 2 groups  ", "CPU time (s), R = 2, 2 groups"] {
        assert!(two.contains(start), "{start}: {two}");
    }
}

#[test]
fn a_group_that_does_not_start_ends_those_that_run() {
    struct Told(Arc<AtomicU64>);
    impl RunningCluster for Told {
        fn addresses(&self) -> Vec<SocketAddr> {
            Vec::new()
        }
    }
    impl Drop for Told {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    let line = Line::try_parse_from(["bench", "--co-location=4"]).unwrap();
    let Target::Own(clusters) = line.args.plan().unwrap().target else { panic!("of its own") };
    let dir = ScratchDir::new(&std::env::temp_dir()).unwrap();
    let ended = Arc::new(AtomicU64::new(0));
    let groups = Groups::start(&clusters[0], dir.path(), |dir| {
        assert!(dir.is_dir());
        match dir.ends_with("group-3") {
            true => Err(Error::unavailable("no ports")),
            false => Ok(Box::new(Told(Arc::clone(&ended)))),
        }
    });
    assert_eq!(groups.err().unwrap().message(), "no ports");
    assert_eq!(ended.load(Ordering::Relaxed), 2);
    assert!(!dir.path().join("group-4").exists(), "no other is begun");
}

#[test]
fn both_ways_of_compacting_are_two_objects_with_the_comparison() {
    let (result, json, specs) = run(&["--compaction=both", "--replicas=2"], Faults::default());
    assert_eq!(result.unwrap(), 0);
    assert_eq!(specs.len(), 2);
    let runs = json.as_array().unwrap();
    assert_eq!(runs[0]["config"]["compaction"], "primary");
    assert_eq!(runs[1]["config"]["compaction"], "every-replica");
    assert_eq!(runs[0].get("comparison"), None);
    assert_eq!(runs[1]["comparison"]["replicas"], 2, "with the one that comes last");
}

#[test]
fn refused_writes_are_tried_again_until_all_are_there() {
    let (result, json, _) =
        run(&["--workloads=load,c"], Faults { refuse_every: 7, ..Faults::default() });
    assert_eq!(result.unwrap(), 0);
    assert_eq!(json["operations"][0]["count"], 2000);
    let refusals = |code: &str| json["phases"][0]["refusals"][code].as_u64().unwrap();
    let both = refusals("TRYAGAIN") + refusals("UNKNOWN");
    assert_eq!(both, 2000 / 6, "every seventh of all attempts");
    assert!(refusals("UNKNOWN") >= 160);
}

#[test]
fn a_changed_byte_is_found_counted_and_told() {
    let faults = Faults { corrupt_every: 100, ..Faults::default() };
    let (result, json, _) = run(&["--workloads=load,c"], faults);
    assert_eq!(result.unwrap(), 1, "the exit code tells");
    assert_eq!(json["phases"][1]["wrong_reads"], 20);
    let example = json["phases"][1]["wrong_read_examples"][0].as_str().unwrap();
    assert!(example.contains("its value differs at byte 99"), "{example}");
}

#[test]
fn a_record_that_is_not_there_is_a_wrong_read() {
    let (result, json, _) =
        run(&["--workloads=load,c"], Faults { loses: true, ..Faults::default() });
    assert_eq!(result.unwrap(), 1);
    assert_eq!(json["phases"][1]["wrong_reads"], 2000);
}

#[test]
fn an_error_that_does_not_pass_ends_the_run_and_is_shown() {
    let faults = Faults { error: Some("OOM no space: the pool is full"), ..Faults::default() };
    let (result, _, specs) = run(&[], faults);
    let error = result.unwrap_err().to_string();
    assert!(error.contains("was refused: OOM no space: the pool is full"), "{error}");
    assert!(!specs[0].dir.exists());
}

#[test]
fn a_connection_that_ends_is_an_error_with_its_address() {
    let (result, ..) = run(&[], Faults { close_at: 500, ..Faults::default() });
    let error = result.unwrap_err().to_string();
    assert!(error.contains("127.0.0.1") && error.contains("closed the connection"), "{error}");
}

#[test]
fn a_running_cluster_is_measured_and_left_alone() {
    let cluster = FakeCluster::start(3, "primary", Faults::default());
    let addresses: Vec<String> = cluster.addresses().iter().map(ToString::to_string).collect();
    let connect = format!("--connect={}", addresses.join(","));
    let (result, json, specs) = run(&[&connect], Faults::default());
    assert_eq!(result.unwrap(), 0);
    assert!(specs.is_empty());
    assert_eq!(json["config"]["replicas"], 3);
    assert_eq!(cluster.keys(), 2000);
    // Another seed writes other values, so the values there now are not its own.
    let (result, ..) = run(&[&connect, "--workloads=c", "--seed=2"], Faults::default());
    assert_eq!(result.unwrap(), 1);
}

#[test]
fn a_cluster_that_is_named_in_part_is_refused() {
    let cluster = FakeCluster::start(3, "primary", Faults::default());
    let connect = format!("--connect={}", cluster.addresses()[0]);
    let error = run(&[&connect], Faults::default()).0.unwrap_err().to_string();
    assert!(error.contains("1 addresses for a group of 3 replicas"), "{error}");
}

//! Reports of made-up runs: the names that scripts read, the tables, the messages after failures.

use super::*;
use crate::figures::tests::canned;
use std::time::Duration;

fn phase(workload: WorkloadChoice, replicas: Vec<ReplicaUse>) -> Phase {
    let mut tally = Tally::new();
    let kind = if workload == WorkloadChoice::Load { Kind::Insert } else { Kind::Read };
    for us in 1..=1000 {
        tally.record(kind, Duration::from_micros(us));
    }
    tally.cpu_seconds = 0.5;
    Phase {
        offered: None,
        workload,
        tally,
        wall_seconds: 5.0,
        requests_seconds: 2.0,
        settle_seconds: 1.0,
        is_settled: true,
        machine: MachineTime { busy: 7.0, stolen: 0.2 },
        replicas,
        user: UserBytes::default(),
    }
}

/// A load where the primary compacts, and one where every replica does.
pub(crate) fn runs() -> Vec<Run> {
    let (once, everywhere) = canned();
    let run = |compaction: &str, replicas| {
        let mut config = Map::new();
        config.insert("records".into(), 1000.into());
        Run {
            config,
            compaction: compaction.to_owned(),
            phases: vec![phase(WorkloadChoice::Load, replicas)],
        }
    };
    vec![run("primary", once), run("every-replica", everywhere)]
}

fn keys(value: &Value) -> Vec<&str> {
    value.as_object().unwrap().keys().map(String::as_str).collect()
}

#[test]
fn the_names_in_the_json_are_those_that_scripts_read() {
    let json = json(&runs()[0], []);
    assert_eq!(keys(&json), ["config", "operations", "replicas", "totals", "phases", "figures"]);
    let operation = &json["operations"][0];
    assert_eq!(keys(operation), ["workload", "type", "count", "per_second", "latency_us"]);
    assert_eq!(keys(&operation["latency_us"]), ["p50", "p99", "p999"]);
    assert_eq!(operation["per_second"], 500.0);
    let replica = &json["replicas"][0];
    let expected = [
        "group",
        "id",
        "role",
        "cpu_seconds",
        "cpu_seconds_by_role",
        "flushes",
        "compactions",
        "trivial_moves",
        "compaction_read_bytes",
        "job_written_bytes",
        "read_bytes",
        "write_bytes",
        "net_sent_bytes",
        "net_sent_bytes_by_kind",
        "net_received_bytes",
        "net_received_bytes_by_kind",
        "shipped_bytes",
        "live_files",
        "live_bytes",
        "memory_bytes",
        "space_bytes",
    ];
    assert_eq!(keys(replica), expected);
    assert_eq!(keys(&replica["cpu_seconds_by_role"]), ROLES);
    assert_eq!(keys(&replica["net_sent_bytes_by_kind"]), KINDS);
    assert_eq!(replica["net_sent_bytes"], 203_000_000);
    let expected = [
        "cpu_seconds",
        "wall_seconds",
        "requests_seconds",
        "settle_seconds",
        "settled",
        "machine_cpu_seconds",
        "stolen_cpu_seconds",
        "client_cpu_seconds",
    ];
    assert_eq!(keys(&json["totals"]), expected);
    assert_eq!(json["totals"]["wall_seconds"], 5.0);
}

#[test]
fn the_later_of_two_runs_has_the_comparison_whichever_it_is() {
    let runs = runs();
    let told = json(&runs[1], [&runs[0]]);
    let comparison = &told["comparison"];
    let expected = [
        "co_location",
        "replicas",
        "cpu_ratio",
        "s",
        "x",
        "formula",
        "job_us_per_kb",
        "shipping_us_per_kb",
    ];
    assert_eq!(keys(comparison), expected);
    assert!((comparison["cpu_ratio"].as_f64().unwrap() - 0.515).abs() < 1e-9);
    assert_eq!(&json(&runs[0], [&runs[1]])["comparison"], comparison);
    assert_eq!(json(&runs[1], []).get("comparison"), None);
    let mut other = runs[0].clone();
    other.config.insert("round".into(), 2.into());
    assert_eq!(json(&runs[1], [&other]).get("comparison"), None, "of another round");
}

#[test]
fn workloads_add_up_but_the_load_alone_is_compared() {
    let (once, _) = canned();
    let mut run = runs().remove(0);
    run.phases.push(phase(WorkloadChoice::C, once));
    let cpu = |replicas: &[ReplicaUse]| sum(replicas).cpu_seconds;
    assert!((cpu(&run.replicas()) - 12.36).abs() < 1e-9);
    assert!((cpu(&run.compared()) - 6.18).abs() < 1e-9);
    assert_eq!(json(&run, [])["totals"]["wall_seconds"], 10.0);
}

#[test]
fn the_tables_have_the_form_of_the_papers() {
    let text = compare(&runs(), Style::Markdown);
    let expected = [
        "| R = 3    |     0.515 |   0.515 | 0.750 | 0.030 |          0.900 |          30.000 |",
        "| Compaction |                   3.00 |        6.00 |             3.00 |        0.00 |",
        "| Shipping   |                   0.00 |        0.00 |             0.06 |        0.12 |",
        "| Requests   |                   1.00 |        2.00 |             1.00 |        2.00 |",
        "| Total      |                  12.00 |             |             6.18 |             |",
        "| R = 3    |               0.150 | 0.600 |         0.150 | 0.600 |",
        "| R = 3    |                  0.012 |   0.006 |    0.000 |            0.012 |   0.006 |    0.2",
    ];
    for row in expected {
        assert!(text.contains(row), "{row}\nis not in\n{text}");
    }
    assert_eq!(compare(&runs()[..1], Style::Plain), "", "nothing to compare with");
}

#[test]
fn a_run_is_described_with_all_that_went_wrong() {
    let mut run = runs().remove(0);
    let text = describe(&run, Style::Plain);
    assert!(text.contains("load      insert  1,000         500     500     990"), "{text}");
    assert!(!text.contains("WRONG") && !text.contains("NOT quiet"), "{text}");
    run.phases[0].is_settled = false;
    run.phases[0].tally.refusal("TRYAGAIN");
    run.phases[0].tally.mismatch("record 7: it is not there".to_owned());
    let text = describe(&run, Style::Plain);
    for words in [
        "NOT quiet after",
        "Refused with TRYAGAIN",
        "WRONG READS: 1\n\n- record 7: it is not there",
    ] {
        assert!(text.contains(words), "{words}\nis not in\n{text}");
    }
}

#[test]
fn what_the_host_took_is_told_when_it_is_much() {
    let mut run = runs().remove(0);
    assert!(!describe(&run, Style::Plain).contains("The host took"));
    run.phases[0].machine.stolen = 2.5;
    let text = describe(&run, Style::Plain);
    assert!(text.contains("The host took 2.50 s of processor time for others"), "{text}");
}

#[test]
fn modes_whose_jobs_did_not_do_the_same_are_told_apart() {
    let mut runs = runs();
    assert!(!compare(&runs, Style::Plain).contains("different work"));
    for usage in &mut runs[1].phases[0].replicas {
        usage.usage.job_written_bytes = 80_000_000;
    }
    let text = compare(&runs, Style::Plain);
    assert!(text.contains("0.100 GB at the primary, and 0.080 GB at a replica"), "{text}");
}

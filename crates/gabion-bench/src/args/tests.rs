//! Options and the plans that they make; those that are refused, by name and limit.

use super::*;
use clap::Parser;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    args: YcsbArgs,
}

fn plan(words: &[&str]) -> Result<Plan, String> {
    let words = [&["bench"], words].concat();
    let line = Line::try_parse_from(words).map_err(|e| e.to_string())?;
    line.args.plan().map_err(|e| e.to_string())
}

#[test]
fn without_options_a_cluster_of_three_is_loaded() {
    let plan = plan(&[]).unwrap();
    assert_eq!(plan.workloads, [WorkloadChoice::Load]);
    let Target::Own(clusters) = plan.target else { panic!("a cluster of its own") };
    assert_eq!(clusters.len(), 1);
    assert_eq!((clusters[0].replicas, clusters[0].compaction), (3, CompactionMode::Primary));
}

#[test]
fn both_ways_of_compacting_run_for_each_number_of_replicas() {
    let plan = plan(&["--compaction", "both", "--replicas", "2,4"]).unwrap();
    let Target::Own(clusters) = plan.target else { panic!("clusters of its own") };
    let runs: Vec<_> = clusters.iter().map(|c| (c.replicas, c.compaction)).collect();
    use CompactionMode::{EveryReplica, Primary};
    assert_eq!(runs, [(2, Primary), (2, EveryReplica), (4, Primary), (4, EveryReplica)]);
}

#[test]
fn groups_side_by_side_share_the_records_and_so_the_bytes_of_pools() {
    let plan = plan(&["--co-location=1,4", "--replicas=2,3", "--records=4000000"]).unwrap();
    let Target::Own(clusters) = plan.target else { panic!("clusters of its own") };
    let runs: Vec<_> = clusters.iter().map(|c| (c.co_location, c.replicas)).collect();
    assert_eq!(runs, [(1, 2), (1, 3), (4, 2), (4, 3)]);
    assert_eq!(plan.records, 4_000_000, "of all groups");
    // The part that does not depend on the records is half a GiB and 32 MemTables of 16 MiB.
    let by_records = clusters.iter().map(|c| (c.pool_len - GIB) as f64).collect::<Vec<_>>();
    assert!((by_records[0] / by_records[2] - 4.0).abs() < 0.1, "{by_records:?}");
    assert_eq!(by_records[0], by_records[1]);
}

#[test]
fn values_that_can_be_compressed_are() {
    let compression = |words: &[&str]| match plan(words).unwrap().target {
        Target::Own(clusters) => clusters[0].codecs.upper,
        Target::Running(_) => panic!("a cluster of its own"),
    };
    assert_eq!(compression(&[]), Compression::None);
    assert_eq!(compression(&["--compressibility=0.5"]), Compression::Lz4);
    assert_eq!(compression(&["--compressibility=0.5", "--compression=none"]), Compression::None);
    assert_eq!(compression(&["--compression=zstd:9"]), Compression::Zstd { level: 9 });
}

#[test]
fn a_workload_of_twitter_has_records_of_its_size() {
    let len = |words: &[&str]| plan(words).map(|plan| plan.sizes.mean());
    assert_eq!(len(&[]).unwrap(), 1000);
    assert_eq!(len(&["--workloads=load,twitter-31"]).unwrap(), 33);
    assert_eq!(len(&["--workloads=load,twitter-31", "--value-size=50"]).unwrap(), 50);
    for workload in WorkloadChoice::value_variants() {
        assert_eq!(
            workload.to_possible_value().unwrap().get_name(),
            workload.as_str(),
            "the same on the command line and in JSON"
        );
        let value_len = workload.stated().map(Stated::value_len);
        assert!(value_len.is_none_or(|len| len >= VALUE_LEN_MIN), "{workload:?}");
        assert_eq!(workload.mix().is_none(), *workload == WorkloadChoice::Load);
    }
}

#[test]
fn a_bad_option_is_refused_by_name_and_limit() {
    let cases: [(&[&str], &str); 19] = [
        (
            &["--workloads=load,twitter-2,twitter-15"],
            "twitter-2 has values of 66 bytes and twitter-15 of 97",
        ),
        (&["--value-size", "8MiB", "--pipeline", "17"], "1140850688 bytes under way"),
        (&["--records", "0"], "--records is 0, allowed are 1 to"),
        (&["--value-size", "31"], "--value-size is 31, allowed are 32 to 8388608"),
        (&["--value-size", "9MiB"], "--value-size is 9437184"),
        (&["--compressibility", "1.5"], "--compressibility is 1.5, allowed are 0 to 1"),
        (&["--compressibility", "NaN"], "--compressibility is NaN"),
        (&["--clients", "0"], "--clients is 0"),
        (&["--threads", "9"], "--threads is 9, allowed are 1 to 8"),
        (&["--pipeline", "0"], "--pipeline is 0"),
        (&["--replicas", "3,3"], "--replicas names 3 twice"),
        (&["--replicas", "17"], "--replicas is 17, allowed are 1 to 16"),
        (&["--co-location", "0"], "--co-location is 0, allowed are 1 to 8"),
        (&["--co-location", "9"], "--co-location is 9, allowed are 1 to 8"),
        (&["--co-location", "2,2"], "--co-location names 2 twice"),
        (
            &["--co-location=1,8", "--clients=2000", "--pipeline=1"],
            "--clients times --co-location is 16000, at most 10000 are possible",
        ),
        (&["--growth-factor=1"], "--growth-factor is 1, allowed are 2 to 100"),
        (&["--workloads", "a"], "`load` comes first"),
        (&["--workloads", "load,c,load"], "`load` comes first and once"),
    ];
    for (words, message) in cases {
        let error = plan(words).unwrap_err();
        assert!(error.contains(message), "{words:?}: {error}");
    }
}

#[test]
fn a_running_cluster_has_its_properties_already() {
    for option in [
        "--compaction=both",
        "--replicas=2",
        "--co-location=2",
        "--memtable-size=1MiB",
        "--compression=none",
    ] {
        let error = plan(&["--connect", "127.0.0.1:6379", option]).unwrap_err();
        assert!(error.contains("cannot be used with"), "{error}");
    }
    assert!(plan(&["--connect", "127.0.0.1:6379", "--workloads", "c"]).is_ok());
}

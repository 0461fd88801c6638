//! Plans, and whole runs against made-up replicas.

use super::*;
use crate::fake::{FakeCluster, FakeLauncher, Faults};
use crate::launch::RunningCluster;
use clap::Parser;
use gabion_base::units::MIB;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    args: PlacementArgs,
}

fn args(words: &[&str]) -> PlacementArgs {
    Line::try_parse_from([&["bench"], words].concat()).unwrap().args
}

/// Mix, replicas and systems of each comparison.
fn planned(words: &[&str]) -> Vec<(&'static str, u32, Vec<&'static str>)> {
    let comparisons = args(words).plan().unwrap();
    let one = |it: &Comparison| {
        let sides = it.cells.iter().map(|(side, _)| side.as_str()).collect();
        (it.mix.as_str(), it.cells[0].1.cluster.replicas, sides)
    };
    comparisons.iter().map(one).collect()
}

fn run(words: &[&str], faults: Faults) -> (u8, String) {
    let small = ["--records=400", "--clients=2", "--pipeline=5"];
    let chain = |cell: &Cell, _: &Path| {
        let fake = FakeCluster::start(cell.cluster.replicas, "rocksdb", Faults::default());
        Ok(Box::new(fake) as Box<dyn RunningCluster>)
    };
    let launcher = FakeLauncher { faults, ..FakeLauncher::default() };
    let mut out = Vec::new();
    let args = args(&[&small, words].concat());
    let code = placement_to(&args, &launcher, &chain, &mut out).unwrap();
    (code, String::from_utf8(out).unwrap())
}

#[test]
fn systems_are_those_that_differ_in_a_mix_and_rocksdb_stands_beside_l_and_sd() {
    let all = planned(&[]);
    let of = |mix: &str| &all.iter().find(|it| it.0 == mix && it.1 == 3).unwrap().2;
    assert_eq!(all.len(), 12);
    assert_eq!(of("s"), &["every-replica", "primary"], "no value is large");
    assert_eq!(of("md").len(), 4);
    assert_eq!(of("sd"), &Side::ALL.map(Side::as_str));
    let few = planned(&["--systems=primary,primary-apart,blobdb", "--mixes=ld,m", "--replicas=2"]);
    let expected =
        [("ld", 2, vec!["primary", "primary-apart", "blobdb"]), ("m", 2, vec!["primary"])];
    assert_eq!(few, expected);
    assert_eq!(planned(&["--large-values=2000", "--mixes=l"])[0].2.len(), 3, "none is as large");
}

#[test]
fn a_cell_has_what_its_system_says_and_all_have_the_same_besides() {
    let comparisons = args(&["--mixes=sd", "--replicas=2"]).plan().unwrap();
    let [Comparison { plan, cells, .. }] = &comparisons[..] else { panic!("one mix") };
    let clusters = cells.iter().map(|(_, cell)| (cell.cluster.large_values, cell.blobs_from));
    let expected = [(0, None), (512, None), (0, None), (512, None), (0, None), (0, Some(512))];
    assert_eq!(clusters.collect::<Vec<_>>(), expected);
    assert!(cells.iter().all(|(_, cell)| cell.cluster.growth_factor == 8));
    assert!(cells.iter().all(|(_, cell)| cell.cluster.memtable_len == 4 * MIB));
    assert_eq!((plan.records, plan.operations), (1_000_000, 500_000));
    assert_eq!(plan.workloads, ALL_WORKLOADS);
    assert_eq!(args(&["--mixes=sd", "--replicas=3"]).plan().unwrap()[0].plan.workloads, WORKLOADS);
    assert_eq!(args(&["--mixes=l"]).plan().unwrap()[0].plan.workloads, WORKLOADS);
}

#[test]
fn a_bad_option_is_refused_by_name_and_limit() {
    let cases: [(&[&str], &str); 11] = [
        (&["--mixes=s,s"], "--mixes names s twice"),
        (&["--systems=primary,primary"], "--systems names primary twice"),
        (&["--systems=primary-apart", "--mixes=s"], "--systems names only some with values apart"),
        (&["--replicas=1"], "--replicas is 1, allowed are 2 to"),
        (&["--replicas=2,2"], "--replicas names 2 twice"),
        (&["--rounds=0"], "--rounds is 0, allowed are 1 to 100"),
        (&["--large-values=0"], "large_values is 1"),
        (&["--growth-factor=101"], "--growth-factor is 101, allowed are 2 to 100"),
        (&["--workloads=load,twitter-2"], "twitter-2 has records of its own size"),
        (&["--workloads=a"], "`load` comes first"),
        (
            &["--records=4000000000", "--operations=300000000"],
            "--records and all --operations is 4600000000, allowed are 1 to 4294967295",
        ),
    ];
    for (words, message) in cases {
        let error = args(words).plan().err().unwrap().to_string();
        assert!(error.contains(message), "{words:?}: {error}");
    }
}

#[test]
fn every_system_runs_in_its_turn_and_each_run_tells_mix_and_bytes_of_users() {
    let words = ["--mixes=sd", "--replicas=2", "--workloads=load,a,e", "--rounds=2", "--json"];
    let (code, text) = run(&words, Faults::default());
    assert_eq!(code, 0);
    let runs: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let systems: Vec<&str> =
        runs.iter().map(|it| it["config"]["system"].as_str().unwrap()).collect();
    let once = Side::ALL.map(Side::as_str);
    let mut again = once;
    again.rotate_left(1);
    assert_eq!(systems, [once, again].concat());
    for run in &runs {
        let config = &run["config"];
        assert_eq!((&config["mix"], &config["large_values"]), (&"sd".into(), &512.into()));
        assert_eq!(config["growth_factor"], 8);
        let user =
            |phase: usize, name: &str| run["phases"][phase]["user_bytes"][name].as_u64().unwrap();
        assert_eq!((user(0, "written"), user(0, "read")), (user(0, "live"), 0));
        assert!((200..400).contains(&(user(0, "live") / 400)), "{}", user(0, "live"));
        assert_eq!(user(1, "live"), user(0, "live"), "versions of a record have one size");
        assert!(user(1, "written") > 0 && user(1, "read") > 0);
        assert!(user(2, "live") > user(0, "live"), "E inserts");
        assert!(run["phases"][0]["replicas"][0]["memory_bytes"].as_u64().unwrap() > 0);
    }
}

#[test]
fn tables_have_each_system_and_the_papers_ranges_beside_ours() {
    let words = ["--mixes=s,l", "--replicas=2,3", "--systems=primary,every-replica,primary-apart"];
    let (_, text) = run(&words, Faults::default());
    for head in
        ["S (100 % small; 33 bytes on average), 2 replicas", "L (100 % large; 1228 bytes on"]
    {
        assert!(text.contains(head), "{text}");
    }
    let count = |start: &str| text.lines().filter(|line| line.starts_with(start)).count();
    assert_eq!(count("  load primary-apart "), 2, "{text}");
    assert_eq!(count("  a every-replica "), 4, "{text}");
    let line = text.lines().find(|line| line.starts_with("  R = 3, load, primary ")).unwrap();
    assert!(line.contains("1.05 – 2.46") && line.contains("1.11 – 1.42"), "{line}");
    let line = text.lines().find(|line| line.starts_with("  R = 2, a, primary ")).unwrap();
    assert!(line.ends_with("1.80 – 4.00"), "{line}");
}

#[test]
fn a_wrong_read_is_told_and_ends_with_another_exit_code() {
    let faults = Faults { corrupt_every: 50, ..Faults::default() };
    let words = ["--mixes=s", "--replicas=2", "--systems=primary"];
    let (code, text) = run(&words, faults);
    assert_eq!(code, 1);
    assert!(text.contains("WRONG READS: ") && text.contains("(primary, workload a)"), "{text}");
}

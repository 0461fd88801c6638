//! Tebis's mixes: runs of made-up replicas, their plots and the paper's figures beside them.

use super::*;
use crate::fake::{FakeCluster, Faults};
use crate::launch::RunningCluster;
use crate::placement::placement_to;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    args: PlacementArgs,
}

/// Runs of these mixes.
fn mixes(words: &[&str]) -> Vec<Value> {
    let small = ["bench", "--records=300", "--clients=2", "--pipeline=5", "--json"];
    let args = Line::try_parse_from([&small, words].concat()).unwrap().args;
    let chain = |_: &crate::replication::Cell, _: &Path| {
        let fake = FakeCluster::start(2, "rocksdb", Faults::default());
        Ok(Box::new(fake) as Box<dyn RunningCluster>)
    };
    let mut out = Vec::new();
    placement_to(&args, &FakeLauncher::default(), &chain, &mut out).unwrap();
    let text = String::from_utf8(out).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn mixes_stand_in_one_section_with_the_papers_figures_and_in_no_other() {
    let mut runs = mixes(&["--mixes=s,l", "--replicas=2,3", "--systems=primary,every-replica"]);
    runs.extend(mixes(&["--mixes=sd", "--replicas=2"]));
    for run in &mut runs {
        // A throughput that says which system it is of.
        let rate = if run["config"]["system"] == "primary" { 3000.0 } else { 2000.0 };
        for operation in run["operations"].as_array_mut().unwrap() {
            operation["per_second"] = json!(rate);
        }
    }
    let document = document(&[&runs]);
    let text = markdown::summary(&document);
    assert_eq!(lines_with(&text, "### Placement: Tebis's mixes").len(), 1, "{text}");
    assert!(lines_with(&text, "### Replication: ").is_empty(), "{text}");
    assert!(text.contains("Mixes of sizes are compared in their own section"), "{text}");
    let line = lines_with(&text, "| R = 2, load, primary ÷ every-replica ")[0];
    assert_eq!(cells(line)[1..3], ["1.50", "1.04 – 2.24"], "{line}");
    let line = lines_with(&text, "| R = 3, load, primary ÷ every-replica ")[0];
    assert_eq!(cells(line)[4], "1.20 – 2.10", "{line}");
    assert!(line.contains("1.11 – 1.42"), "{line}");
    for start in ["| sd, e, blobdb ", "| sd, load, primary-apart ", "| l, a, every-replica "] {
        assert!(!lines_with(&text, start).is_empty(), "{start}: {text}");
    }
    let page = html::page(&document);
    for title in [
        "R = 2, load: requests a second",
        "R = 3, a: network amplification",
        "R = 2, SD: CPU of a request (µs) by workload",
        "R = 3, S, load: device bytes by role",
    ] {
        assert!(page.contains(title), "{title}");
    }
    assert!(page.contains("Figure 12 (a). ×: primary ÷ every-replica"));
    assert!(text.contains("Tebis's mixes M, MD, LD."), "what is missing is named: {text}");
}

#[test]
fn mixes_of_other_settings_are_figures_of_their_own() {
    let words = ["--mixes=s", "--replicas=2", "--systems=primary,every-replica"];
    let mut runs = mixes(&words);
    runs.extend(mixes(&[&words[..], &["--growth-factor=10"]].concat()));
    let text = summary(&[&runs]);
    assert_eq!(lines_with(&text, "### Placement: Tebis's mixes").len(), 2, "{text}");
}

#[test]
fn an_unknown_mix_or_system_is_refused_by_its_field() {
    let mut run = mixes(&["--mixes=s", "--replicas=2", "--systems=primary"]).remove(0);
    run["config"]["mix"] = "xl".into();
    let error = refusal(&run.to_string());
    assert!(error.contains("config.mix is \"xl\""), "{error}");
    run["config"]["mix"] = "s".into();
    run["config"]["system"] = "leveldb".into();
    let error = refusal(&run.to_string());
    assert!(error.contains("config.system is \"leveldb\""), "{error}");
}

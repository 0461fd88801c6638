//! Reports of the mixes of Twitter's clusters, RubbleDB's Figure 9 in form.

use super::*;

/// Runs as if of these clusters of Twitter, with values of these bytes, beside RubbleDB's baseline.
/// The higher the number of a cluster, the more requests a second; compacting once answers twice as
/// many.
pub(super) fn of_clusters(clusters: &[(u64, u64)]) -> Vec<Value> {
    let mut all = Vec::new();
    for (cluster, value_size) in clusters {
        let workload = format!("twitter-{cluster}");
        for mut run in beside_rocksdb() {
            run["config"]["value_size"] = (*value_size).into();
            run["config"]["workloads"] = json!(["load", workload]);
            run["phases"][1]["workload"] = workload.clone().into();
            let factor = if run["config"]["compaction"] == "primary" { 2 } else { 1 };
            for operation in run["operations"].as_array_mut().unwrap() {
                if operation["workload"] == "a" {
                    operation["workload"] = workload.clone().into();
                    operation["per_second"] = (1000 * cluster * factor).into();
                }
            }
            all.push(run);
        }
    }
    all
}

/// The commands of a shell's loop over clusters, or the one that a command is.
pub(super) fn turns(command: &str) -> Vec<String> {
    let Some(body) = command.strip_prefix("for cluster in ") else {
        return vec![command.to_owned()];
    };
    let (clusters, body) = body.split_once("; do ").unwrap();
    let body = body.strip_suffix("; done").unwrap();
    clusters.split(' ').map(|cluster| body.replace("$cluster", cluster)).collect()
}

/// Not in the order of the paper, each with the published size of its records.
const ALL: [(u64, u64); 5] = [(31, 33), (2, 66), (15, 97), (27, 51), (19, 120)];

fn charts(document: &Document) -> Vec<&chart::Chart> {
    let blocks = document.sections.iter().flat_map(|section| &section.blocks);
    let charts = blocks.filter_map(|block| match block {
        Block::Charts(charts) => Some(charts),
        _ => None,
    });
    charts.flatten().filter(|chart| chart.note.contains("Figure 9")).collect()
}

#[test]
fn the_clusters_of_twitter_stand_side_by_side_in_the_form_of_figure_9() {
    let document = document(&[&of_clusters(&ALL)]);
    let found = charts(&document);
    let titles: Vec<&str> = found.iter().map(|chart| chart.title.as_str()).collect();
    let of = |shape: &str| {
        [
            "requests a second",
            "requests per CPU second of the machine",
            "requests per CPU second of replicas",
            "CPU of a request (µs)",
        ]
        .map(|what| format!("{shape}: {what}, Twitter's clusters"))
    };
    assert_eq!(titles, [of("R = 2"), of("R = 3")].concat());
    let names: Vec<&str> =
        found[4].groups.iter().map(|name| name.split(" ×").next().unwrap()).collect();
    assert_eq!(names, [2, 15, 19, 27, 31].map(|number| format!("cluster {number}")));
    assert!(found[4].groups.iter().all(|name| name.ends_with(" ×2.00")), "{:?}", found[4].groups);
    // Each system has a bar for each cluster, of the mix and not of its load.
    let systems: Vec<&str> = found[4].series.iter().map(|series| series.name.as_str()).collect();
    assert_eq!(systems, ["primary", "every-replica", "rocksdb"]);
    let medians = |series: &chart::Series| -> Vec<f64> {
        series.values.iter().map(|value| value.unwrap().median).collect()
    };
    let kinds = 2.0;
    let expected = [2.0, 15.0, 19.0, 27.0, 31.0].map(|cluster| kinds * 1000.0 * cluster);
    assert_eq!(medians(&found[4].series[2]), expected);
    assert_eq!(medians(&found[4].series[0]), expected.map(|value| 2.0 * value));
    let told =
        "More is better; the form of RubbleDB's Figure 9, without its traces. ×: primary ÷ rocksdb";
    assert_eq!(found[4].note, told);
    let [per_core, cost] = [&found[6].series[0], &found[7].series[0]].map(medians);
    assert!(per_core.iter().zip(cost).all(|(of, us)| (of * us - 1e6).abs() < 1.0));

    let text = markdown::summary(&document);
    assert_eq!(lines_with(&text, "### Twitter's clusters, 20,000 records").len(), 1, "{text}");
    assert!(text.contains("They cannot be had here: these are mixes with the shares"), "{text}");
    let line = |start: &str| cells(lines_with(&text, start)[0]);
    let of_15 = line("| R = 3, cluster 15, primary ");
    assert_eq!((of_15[1].as_str(), of_15[5].as_str()), ("60,000 (▲ 2.00)", "1.70"));
    assert_eq!(line("| R = 3, cluster 15, rocksdb ")[1], "30,000");
    // The paper's statement is about three replicas, and not about the read-only cluster.
    assert_eq!(line("| R = 2, cluster 15, primary ")[5], "");
    assert_eq!(line("| R = 3, cluster 2, primary ")[5], "");
    assert!(
        !text.contains("of RubbleDB's Figure 9.") && !text.contains("of Figures 7, 8"),
        "{text}"
    );
    assert!(!text.contains("no form of RubbleDB's Figure 9"), "{text}");
}

#[test]
fn clusters_of_another_size_are_named_so_and_other_settings_are_figures_of_their_own() {
    let mut others = of_clusters(&[(15, 97)]);
    for run in &mut others {
        run["config"]["records"] = 7.into();
    }
    let document = document(&[&of_clusters(&[(31, 1000), (19, 120)]), &others]);
    let names: Vec<Vec<&str>> = charts(&document)
        .iter()
        .step_by(4)
        .map(|chart| chart.groups.iter().map(|name| name.split(" ×").next().unwrap()).collect())
        .collect();
    let (first, second) = (vec!["cluster 19", "cluster 31, 1000 B"], vec!["cluster 15"]);
    assert_eq!(names, [first.clone(), first, second.clone(), second]);
    assert!(charts(&super::document(&[&ycsb()])).is_empty(), "without a mix there is no figure");
}

#[test]
fn clusters_that_are_not_there_are_missed_with_a_command_that_makes_them() {
    let told = |runs: &[Value]| {
        let document = document(&[runs]);
        (markdown::summary(&document), commands(&document).join("\n"))
    };
    let (text, commands) = told(&of_clusters(&[(31, 33), (19, 120)]));
    assert!(text.contains(": clusters 2, 15, 27 of RubbleDB's Figure 9."), "{text}");
    let start = "for cluster in 2 15 27; do gabion bench replication ";
    assert!(commands.contains(start), "{commands}");
    let end = "--replicas 2,3 --json more-$cluster.json; done";
    assert!(commands.contains(end), "{commands}");
    let (text, commands) = told(&ycsb());
    assert!(text.contains("no form of RubbleDB's Figure 9."), "{text}");
    let line = commands.lines().find(|line| line.starts_with("for cluster")).unwrap();
    let start = "for cluster in 2 15 19 27 31; do gabion bench ycsb --compaction both ";
    assert!(
        line.starts_with(start) && line.contains(" --workloads load,twitter-$cluster "),
        "{line}"
    );
    assert!(!line.contains("--value-size"), "it is that of each cluster's records: {line}");
}

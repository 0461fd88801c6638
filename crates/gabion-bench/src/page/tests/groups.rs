//! Reports of runs of several groups side by side, RubbleDB's Figure 8 in form.

use super::*;

/// Runs as if with so many groups side by side, all alike.
pub(super) fn side_by_side(mut runs: Vec<Value>, groups: u64) -> Vec<Value> {
    for run in &mut runs {
        run["config"]["co_location"] = groups.into();
        for phase in run["phases"].as_array_mut().unwrap() {
            let one = phase["replicas"].as_array().unwrap().clone();
            let group = |group: u64| {
                let of = move |replica: &Value| {
                    let mut replica = replica.clone();
                    replica["group"] = group.into();
                    replica
                };
                one.iter().map(of).collect::<Vec<_>>()
            };
            phase["replicas"] = (1..=groups).flat_map(group).collect();
        }
    }
    runs
}

#[test]
fn groups_side_by_side_are_figure_8_beside_figure_7() {
    let mut runs = beside_rocksdb();
    runs.extend(side_by_side(beside_rocksdb(), 2));
    let document = document(&[&runs]);
    let text = markdown::summary(&document);
    assert_eq!(lines_with(&text, "### Replication: ").len(), 1, "one experiment: {text}");
    for start in [
        "- **primary ÷ rocksdb** (R = 3, load; ",
        "- **primary ÷ rocksdb** (R = 3, 2 groups, load; ",
        "| R = 2, 2 groups, every-replica, a update ",
        "| R = 3, 2 groups, primary ÷ rocksdb ",
        "**CPU time (s), R = 3, 2 groups, load (the form of RubbleDB's Table 3)**",
        "Groups: so many run side by side on the machine (RubbleDB's co-location factor), ",
    ] {
        assert_eq!(lines_with(&text, start).len(), 1, "{start}\n{text}");
    }
    let rounds = "R = 3, 2 groups: 1 primary, 1 every-replica, 1 rocksdb";
    assert!(text.contains(rounds), "{text}");
    // Measured and predicted as with one group, at twice its CPU on both sides; the paper's table
    // has one.
    let of = |start: &str| {
        let mut lines = lines_with(&text, start).into_iter().map(cells);
        lines.find(|line| line.len() == 8).unwrap()
    };
    let (one, two) = (of("| R = 3 "), of("| R = 3, 2 groups "));
    assert_eq!((one[1..3].to_vec(), one[4..].to_vec()), (two[1..3].to_vec(), two[4..].to_vec()));
    assert_eq!((one[3].as_str(), two[3].as_str()), ("0.56", ""));
    let charts = |block: &Block| match block {
        Block::Charts(charts) => {
            charts.iter().map(|c| (c.title.clone(), c.note.clone())).collect::<Vec<_>>()
        }
        _ => Vec::new(),
    };
    let blocks = document.sections.iter().flat_map(|section| &section.blocks);
    let plots = blocks.map(charts).find(|plots| !plots.is_empty()).unwrap();
    let expected = [
        ("R = 2: requests a second", "Figure 7"),
        ("R = 3: requests a second", "Figure 7"),
        ("R = 2, 2 groups: requests a second", "Figure 8"),
        ("R = 3, 2 groups: requests a second", "Figure 8"),
    ];
    assert_eq!(plots.len(), expected.len());
    for ((title, note), (name, figure)) in plots.iter().zip(expected) {
        assert_eq!(title, name);
        let told = format!("More is better; the form of RubbleDB's {figure}. ×: primary ÷ rocksdb");
        assert_eq!(note, &told);
    }
}

#[test]
fn figure_8_is_missed_and_the_command_that_makes_it_comparable_is_told() {
    let told = |runs: &[Value]| {
        let document = document(&[runs]);
        (markdown::summary(&document), commands(&document).join("\n"))
    };
    let (text, commands) = told(&beside_rocksdb());
    assert!(text.contains(" R = 2,3,4, 2 groups of RubbleDB's Figure 8."), "{text}");
    assert!(commands.contains(" --replicas 2,3,4 --co-location 2 --json"), "{commands}");
    let mut runs = beside_rocksdb();
    runs.extend(side_by_side(beside_rocksdb(), 2));
    runs.retain(|run| run["config"]["co_location"].is_null() || run["config"]["replicas"] == 3);
    runs.retain(|run| run["config"]["compaction"] != "primary" || run["config"]["replicas"] == 2);
    let (text, commands) = told(&runs);
    assert!(text.contains(" R = 2,4, 2 groups of RubbleDB's Figure 8."), "{text}");
    assert!(text.contains("no run of primary at R = 3; R = 3, 2 groups, so no ratio"), "{text}");
    assert!(commands.contains(" --systems primary "), "{commands}");
    assert!(commands.contains(" --replicas 3 --co-location 1,2 --json"), "{commands}");
}

#[test]
fn a_number_of_groups_that_the_replicas_do_not_bear_out_is_refused() {
    let cases = [
        (json!(2), "replicas is 2, needed is as many as each of `phases` has for each of 2 groups"),
        (json!(0), "co_location is 0, needed is 1 at least"),
        (json!("two"), "co_location is \"two\", needed is a whole number"),
        (
            json!(1_u64 << 53),
            "replicas is 2, needed is as many as each of `phases` has for each of",
        ),
    ];
    for (value, words) in cases {
        let mut runs = ycsb();
        runs[1]["config"]["co_location"] = value;
        let error = refusal(&Value::from(runs).to_string());
        let told = format!("runs.json:1: [1].config.{words}");
        assert!(error.contains(&told), "{told}\nis not in\n{error}");
    }
    let mut runs = side_by_side(ycsb(), 2);
    for replica in runs[0]["phases"][0]["replicas"].as_array_mut().unwrap() {
        replica.as_object_mut().unwrap().shift_remove("group");
    }
    assert_eq!(document(&[&runs]).sections.len(), document(&[&ycsb()]).sections.len());
    runs[0]["phases"][0]["replicas"][1]["group"] = json!(-1);
    let error = refusal(&Value::from(runs).to_string());
    assert!(error.contains("[0].phases[0].replicas[1].group is -1, needed is a whole"), "{error}");
}

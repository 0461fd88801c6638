//! Reports of loads offered in open loops.

use super::*;

/// Runs beside RubbleDB's baseline with offered loads: A under other names, at so many requests a
/// second.
fn at_loads(loads: &[(&str, f64)]) -> Vec<Value> {
    let mut runs = beside_rocksdb();
    for run in &mut runs {
        let percents = loads.iter().filter_map(|(load, _)| load.parse::<u64>().ok());
        run["config"]["offered"] = percents.collect::<Vec<_>>().into();
        let rates = loads.iter().filter_map(|(load, _)| load.strip_suffix("/s"));
        let rates: Vec<u64> = rates.map(|rate| rate.parse().unwrap()).collect();
        run["config"]["offered_per_second"] = rates.into();
        for (load, rate) in loads {
            let name = format!("a@{load}");
            let mut phase = run["phases"][1].clone();
            phase["workload"] = name.clone().into();
            phase["offered_per_second"] = (*rate).into();
            run["phases"].as_array_mut().unwrap().push(phase);
            let operations = run["operations"].as_array_mut().unwrap();
            let mut own = operations.clone();
            own.retain(|operation| operation["workload"] == "a");
            for operation in &mut own {
                operation["workload"] = name.clone().into();
                // Half reads, half updates.
                operation["per_second"] = (rate / 2.0).into();
            }
            operations.extend(own);
        }
    }
    runs
}

#[test]
fn a_command_that_offers_percents_names_the_system_first_that_they_are_of() {
    let systems = |of: Option<&str>, load: &str| {
        let mut runs = at_loads(&[(load, 9872.0)]);
        runs.retain(|run| run["config"]["compaction"] != "every-replica");
        for run in &mut runs {
            run["config"]["offered_of"] = of.into();
            if of.is_none() {
                run["config"].as_object_mut().unwrap().shift_remove("offered_of");
            }
        }
        let commands = commands(&document(&[&runs]));
        let beside = commands.into_iter().filter(|line| line.contains("bench replication"));
        let words = beside.map(|line| line.split(' ').nth(4).unwrap().to_owned());
        words.collect::<Vec<_>>()
    };
    // First the missing parts of every-replica, then other numbers of replicas, groups and
    // workloads.
    let of_all = |first: &str, rest: &str| vec![format!("{first},{rest}"); 3];
    let told = systems(Some("primary"), "80");
    assert_eq!(told[0], "primary,every-replica");
    assert_eq!(told[1..4], of_all("primary", "every-replica,rocksdb"));
    for of in [Some("rocksdb"), None] {
        let told = systems(of, "80");
        assert_eq!(told[0], "rocksdb,every-replica");
        assert_eq!(told[1..4], of_all("rocksdb", "primary,every-replica"));
    }
    // A rate is the same, whichever system is first.
    assert_eq!(systems(None, "25000/s")[0], "every-replica");
}

#[test]
fn rounds_that_were_offered_other_rates_are_no_rounds_of_one_figure() {
    let rounds = [31_300.0, 32_700.0, 31_500.0].map(|rate| at_loads(&[("80", rate)]));
    let files: Vec<&[Value]> = rounds.iter().map(Vec::as_slice).collect();
    let told = document(&files);
    let text = markdown::summary(&told);
    assert!(lines_with(&text, "| R = 3, rocksdb, a@80 read ").is_empty(), "{text}");
    let cell = |name: &str| {
        cells(lines_with(&text, &format!("| R = 3, primary, {name} read "))[0])[1].clone()
    };
    // Two rounds have a spread, one has none.
    assert!(cell("a@80 (31,300/s)").contains('±'), "{text}");
    assert!(!cell("a@80 (32,700/s)").contains('±'), "{text}");
    let warning = "R = 3: rounds of a@80 were offered 31,300 and 32,700 requests a second, which are told apart";
    assert!(text.contains(warning), "{text}");
    let page = html::page(&told);
    assert!(page.contains("80 %, 31.3 k to 31.5 k/s") && page.contains("80 %, 32.7 k/s"), "{page}");
    // Named rates are the same in all rounds.
    let rounds = [(); 3].map(|()| at_loads(&[("32000/s", 32_000.0)]));
    let files: Vec<&[Value]> = rounds.iter().map(Vec::as_slice).collect();
    let told = document(&files);
    let text = markdown::summary(&told);
    assert!(cells(lines_with(&text, "| R = 3, primary, a@32000/s read ")[0])[1].contains('±'));
    assert!(!text.contains("told apart"), "{text}");
    assert!(html::page(&told).contains(">32.0 k/s<"));
}

#[test]
fn a_load_that_was_not_reached_is_told_at_the_top_and_marked_where_its_latencies_are() {
    let mut runs = at_loads(&[("80", 1000.0)]);
    for run in &mut runs {
        let is_slow = run["config"]["compaction"] == "rocksdb";
        for operation in run["operations"].as_array_mut().unwrap() {
            operation["per_second"] = json!(if is_slow { 480.0 } else { 495.0 });
        }
    }
    let document = document(&[&runs]);
    let text = markdown::summary(&document);
    let warning = "answered 960 of the 1,000 requests a second that were offered, so latencies are of a queue, whose \
                   length --operations decides (0.json, R = 3, rocksdb, workload a@80)";
    assert_eq!(text.matches("requests a second that were offered").count(), 2, "{text}");
    assert!(text.contains(warning), "{text}");
    let line = |system: &str, name: &str| {
        cells(lines_with(&text, &format!("| R = 3, {system}, {name} read "))[0])
    };
    assert!(line("rocksdb", "a@80")[2..].iter().all(|cell| cell.ends_with(" !")), "{text}");
    let beside = line("primary", "a@80");
    assert!(
        beside[2..].iter().all(|cell| cell.ends_with(" !)") && !cell.contains("! (")),
        "{text}"
    );
    assert!(!beside[1].contains('!') && !line("rocksdb", "a").concat().contains('!'), "{text}");
    assert!(text.contains("!: the load was not reached"), "{text}");
    assert!(html::page(&document).contains("80 %, 1,000/s, not reached by rocksdb"));
}

#[test]
fn latencies_by_offered_load_are_a_plot_for_each_type_of_request() {
    let document = document(&[&at_loads(&[("80", 9872.0), ("20", 2468.0)])]);
    let text = markdown::summary(&document);
    assert!(text.contains("| R = 2, rocksdb, a@80 read "), "{text}");
    assert!(text.contains("- loads in open loops: 80 %, 20 %"), "{text}");
    assert!(!text.contains("as in Figure 10."), "{text}");
    let page = html::page(&document);
    for kind in ["read", "update"] {
        let title = format!("R = 3: p99 of {kind} by load, workload a (µs)");
        assert!(page.contains(&title), "{title}");
    }
    assert!(page.contains("20 %, 2,468/s") && page.contains("80 %, 9,872/s"), "{page}");
}

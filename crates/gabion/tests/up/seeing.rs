//! Views for operators: `/metrics` of every process, and the rules and the dashboard on it.

use super::logged::Logged;
use super::scrape::{NCL, check_names, names, read, scrape, sum};
use super::{PATIENCE, Place, kill, page, said};
use serde_json::Value;
use std::collections::BTreeSet;
use std::net::TcpListener;

/// Four ports in a row that nobody listens on, below those of the other tests.
fn metrics_ports() -> u16 {
    let first = 13_000 + (std::process::id() % 600) as u16 * 10;
    let free = |port: u16| TcpListener::bind(("127.0.0.1", port)).is_ok();
    (first..20_000).step_by(4).find(|port| (0..4).all(|above| free(port + above))).unwrap()
}

/// docs/faults.md: R1
#[test]
fn the_status_page_names_a_member_that_hangs_and_is_well_again_once_it_is_whole() {
    let place = Place::new("page");
    let first = metrics_ports();
    let up = place.up(&["--metrics-port", &first.to_string()]);
    let address = ([127, 0, 0, 1], first).into();
    let client = Logged::start(([127, 0, 0, 1], place.port + 2).into());
    client.goes_on();
    let is_well = |told: &Value| {
        let group = &told["groups"][0];
        let is_full = |it: &Value| it["state"] == "full" && it["load"]["slots"].as_u64() > Some(0);
        let replicas = group["replicas"].as_array();
        replicas.is_some_and(|it| it.len() == 3 && it.iter().all(is_full))
            && group["problems"].as_array().is_some_and(Vec::is_empty)
    };
    page::wait(address, PATIENCE, is_well);
    let (head, html) = page::get(address, "/", "localhost").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 ") && html.starts_with("<!DOCTYPE html>"), "{head}");
    let loads = ["src=", "url(", "import", "<link rel=\"style"];
    assert!(loads.iter().all(|it| !html.contains(it)), "everything is in the page");
    let (head, _) = page::get(address, "/status.json", "example.org").unwrap();
    assert!(head.starts_with("HTTP/1.1 421 "), "{head}");
    // It is known how many commands there are, and how long they take.
    page::wait(address, PATIENCE, |told| {
        let load = &told["groups"][0]["load"];
        let is_some = |name: &str| {
            let all = load[name].as_array();
            all.is_some_and(|all| all.iter().any(|it| it.as_u64() > Some(0)))
        };
        ["commands_per_s", "served_p99_us", "acknowledged_p99_us"].iter().all(|it| is_some(it))
    });

    // One that is stopped is not restarted.
    let pid = place.pids()[0];
    kill(pid, "-STOP");
    page::wait(address, PATIENCE, |told| {
        let first = told["groups"][0]["problems"][0]["text"].as_str().unwrap_or_default();
        first.starts_with("Replica 1 is lost: ") && first.contains("2 of 3 full members are left")
    });
    let told = said(&place.run(&["group"]));
    assert!(told.contains("! Replica 1 is lost: "), "{told}");
    client.goes_on();
    kill(pid, "-9");
    page::wait(address, PATIENCE, is_well);
    client.end();
    up.signal("-TERM");
    assert_eq!(up.wait(), 0);
}

#[test]
fn every_process_is_scraped_and_rules_and_dashboard_name_what_is_there() {
    let place = Place::new("seeing");
    let first = metrics_ports();
    let up = place.up(&["--metrics-port", &first.to_string()]);
    place.fill();
    let replicas = [1, 2, 3].map(|number| scrape(first + number));
    for (number, page) in (1..).zip(&replicas) {
        let labels = page.lines().find(|line| line.starts_with("gabion_term{")).unwrap();
        assert!(labels.contains(&format!("replica=\"{number}\"")), "{labels}");
        assert!(page.contains("process_resident_memory_bytes "), "{page}");
    }
    let roles = ["primary", "middle", "tail"];
    let is_one = |page: &String, role: &str| {
        page.lines().any(|line| {
            line.starts_with("gabion_role{")
                && line.contains(&format!("role=\"{role}\""))
                && line.ends_with(" 1")
        })
    };
    for role in roles {
        assert_eq!(replicas.iter().filter(|page| is_one(page, role)).count(), 1, "{role}");
    }
    let controller = scrape(first);
    let full = controller
        .lines()
        .find(|line| line.starts_with("gabion_controller_replicas{") && line.contains("\"full\""));
    assert!(full.unwrap().ends_with(" 3"), "{controller}");
    assert_eq!(sum(&controller, "gabion_controller_writes_wait", &[]), 0.0);

    let there: BTreeSet<String> =
        replicas.iter().chain([&controller]).flat_map(|page| names(page)).collect();
    assert!(there.len() > 100, "{there:?}");
    // Those of near-compute logs are of other processes: the test `ncl_peers` has them.
    let is_ours = |name: &str| !name.starts_with(NCL);
    check_names("grafana/gabion.json", &there, 10, is_ours);

    let top = place.run(&["top", "--once"]);
    let text = said(&top);
    assert!(top.status.success(), "{text}");
    for word in ["primary", "middle", "tail", "ops/s", "lag"] {
        assert!(text.contains(word), "{word} is not in {text}");
    }
    up.signal("-TERM");
    assert_eq!(up.wait(), 0);
    let top = place.run(&["top", "--once"]);
    assert_eq!(top.status.code(), Some(1), "{}", said(&top));
}

#[test]
fn every_alert_says_how_long_it_waits_and_what_to_do() {
    let text = read("prometheus/alerts.yml");
    let rules: Vec<&str> = text.split("      - alert: ").skip(1).collect();
    assert!(rules.len() >= 9, "{}", rules.len());
    let mut seen = BTreeSet::new();
    for rule in rules {
        let name = rule.lines().next().unwrap();
        assert!(name.starts_with("Gabion") && seen.insert(name), "{name}");
        for part in
            ["        expr: ", "        for: ", "          severity: ", "          summary: "]
        {
            assert!(rule.contains(part), "{name}: no `{}`", part.trim());
        }
        let todo = rule.split("          description: >-\n").nth(1).expect("a description");
        let todo = todo.trim();
        assert!(todo.starts_with("Do: ") && todo.ends_with('.'), "{name}: {todo}");
    }
}

#[test]
fn the_doctor_says_of_each_thing_whether_it_is_well() {
    let place = Place::new("doctor");
    std::fs::create_dir_all(&place.data).unwrap();
    let port = place.port.to_string();
    let output = place.run(&["doctor", "-p", &port, "--json"]);
    let told: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let checks = told["checks"].as_array().unwrap();
    let is_bad = checks.iter().any(|check| check["state"] == "bad");
    assert_eq!(output.status.code(), Some(i32::from(is_bad)), "{}", said(&output));
    let mut names = BTreeSet::new();
    for check in checks {
        let text = |name: &str| check[name].as_str().unwrap_or_else(|| panic!("{check}"));
        assert!(["ok", "warn", "bad"].contains(&text("state")), "{check}");
        assert!(names.insert(text("check").to_owned()), "{check} twice");
        assert_eq!(text("change").is_empty(), text("state") == "ok", "{check}");
        assert!(!text("value").is_empty() && !text("limit").is_empty(), "{check}");
    }
    for wanted in ["kernel", "io_uring", "open files", "flush", "free space", "ports"] {
        assert!(names.contains(wanted), "{wanted} is not in {names:?}");
    }
    // Somebody has the port of the first replica.
    let _held = super::hold(place.port);
    let output = place.run(&["doctor", "-p", &port]);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(said(&output).contains(&format!("port {port}")), "{}", said(&output));
    let _ = std::fs::remove_dir_all(&place.data);
}

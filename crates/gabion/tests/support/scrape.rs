//! Pages of metrics as a scraper sees them, and the files that name metrics.

use serde_json::Value;
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Instant;

/// Deployment files, in the repository.
const DEPLOY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy");
/// Names of metrics of near-compute logs.
pub(crate) const NCL: &str = "gabion_ncl_";

/// A file by its path from there.
pub(crate) fn read(path: &str) -> String {
    std::fs::read_to_string(Path::new(DEPLOY).join(path)).unwrap()
}

/// A port that nobody listens on, below those that the system gives to others by itself.
pub(crate) fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    let first = 20_000 + (std::process::id() % 500) as u16 * 20;
    let next = || first + NEXT.fetch_add(1, Ordering::Relaxed);
    std::iter::repeat_with(next).find(free).unwrap()
}

/// The page at a port.
pub(crate) fn scrape(port: u16) -> String {
    let begun = Instant::now();
    loop {
        if let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) {
            let mut text = String::new();
            stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
            stream.read_to_string(&mut text).unwrap();
            let (head, body) = text.split_once("\r\n\r\n").unwrap();
            assert!(head.starts_with("HTTP/1.1 200 OK"), "{text}");
            return body.to_owned();
        }
        assert!(begun.elapsed() < super::PATIENCE, "nobody serves metrics at {port}");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}

/// Names of families on a page; of histograms also those of their samples.
pub(crate) fn names(page: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for line in page.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
        let (name, kind) = line.split_once(' ').unwrap();
        names.insert(name.to_owned());
        if kind == "histogram" {
            names.extend(["_bucket", "_sum", "_count"].map(|end| format!("{name}{end}")));
        }
    }
    names
}

/// Words of a text that look like names of metrics.
pub(crate) fn metrics_in(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != ':');
    let is_metric = |word: &&str| {
        (word.starts_with("gabion_") || word.starts_with("process_")) && !word.ends_with('_')
    };
    words.filter(is_metric).map(str::to_owned).collect()
}

/// The sum of the samples of this name that have all of these labels.
pub(crate) fn sum(page: &str, name: &str, labels: &[&str]) -> f64 {
    let is_one = |line: &&str| {
        let rest = line.strip_prefix(name);
        rest.is_some_and(|rest| rest.starts_with(['{', ' ']))
            && labels.iter().all(|it| line.contains(it))
    };
    let found: Vec<&str> = page.lines().filter(is_one).collect();
    assert!(!found.is_empty(), "no {name} with {labels:?} in\n{page}");
    found.iter().map(|line| line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap()).sum()
}

/// The expressions of the dashboard, and whether each panel says what it shows.
pub(crate) fn expressions(dashboard: &Value) -> String {
    let panels = dashboard["panels"].as_array().unwrap();
    let mut all = String::new();
    for panel in panels.iter().filter(|panel| panel["type"] != "row") {
        let words = panel["description"].as_str().unwrap_or("");
        assert!(words.ends_with('.'), "a panel without a description: {panel}");
        for target in panel["targets"].as_array().unwrap() {
            all += target["expr"].as_str().unwrap();
            all.push('\n');
        }
    }
    all
}

/// The dashboard, the rules and the page of the documents name nothing of ours that is not there,
/// and `least` of it each.
pub(crate) fn check_names(
    dashboard: &str,
    there: &BTreeSet<String>,
    least: usize,
    is_ours: impl Fn(&str) -> bool,
) {
    let panels: Value = serde_json::from_str(&read(dashboard)).unwrap();
    for (file, text) in [
        (dashboard, expressions(&panels)),
        ("alerts", read("prometheus/alerts.yml")),
        ("docs/seeing.md", read("../docs/seeing.md")),
    ] {
        let mut named = metrics_in(&text);
        named.retain(|name| is_ours(name));
        assert!(named.len() >= least, "{file}: {named:?}");
        let absent: Vec<&String> = named.difference(there).collect();
        assert!(absent.is_empty(), "{file} names {absent:?}");
    }
}

//! The page of real replicas, read by a strict parser that knows nothing of how it is written.

use crate::rig::{Client, Rig, group};
use gabion_node::AckLevel;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// A family: its kind, and its samples by name and labels.
#[derive(Debug, Default)]
struct Family {
    kind: String,
    samples: BTreeMap<(String, BTreeMap<String, String>), f64>,
}

fn is_name(name: &str) -> bool {
    let mut chars = name.chars();
    chars.next().is_some_and(|c| c.is_ascii_lowercase())
        && chars.all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
}

/// The labels in front of `}`, and what is behind it.
fn labels(mut text: &str) -> (BTreeMap<String, String>, &str) {
    let mut labels = BTreeMap::new();
    loop {
        let (name, rest) = text.split_once("=\"").unwrap_or_else(|| panic!("no label: {text}"));
        assert!(is_name(name), "{name}");
        let (mut value, mut chars) = (String::new(), rest.char_indices());
        let end = loop {
            match chars.next().unwrap_or_else(|| panic!("no end: {rest}")) {
                (at, '"') => break at,
                (_, '\\') => match chars.next() {
                    Some((_, c @ ('\\' | '"'))) => value.push(c),
                    Some((_, 'n')) => value.push('\n'),
                    other => panic!("escape {other:?} in {rest}"),
                },
                (_, c) => value.push(c),
            }
        };
        assert!(labels.insert(name.to_owned(), value).is_none(), "{name} twice");
        match rest[end + 1..].split_at(1) {
            (",", more) => text = more,
            ("}", more) => return (labels, more),
            other => panic!("{other:?} behind a label"),
        }
    }
}

/// Reads a page as the format's description says, and refuses whatever that does not allow.
fn parse(page: &str) -> BTreeMap<String, Family> {
    assert!(page.ends_with('\n'));
    let mut families: BTreeMap<String, Family> = BTreeMap::new();
    let mut current = String::new();
    let mut lines = page.lines().peekable();
    while let Some(line) = lines.next() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (name, text) = help.split_once(' ').unwrap();
            assert!(is_name(name) && text.ends_with('.'), "{line}");
            let kind = lines.next().unwrap().strip_prefix("# TYPE ").unwrap();
            let (again, kind) = kind.split_once(' ').unwrap();
            assert_eq!(again, name, "TYPE follows HELP");
            assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
            let family = Family { kind: kind.to_owned(), ..Family::default() };
            assert!(families.insert(name.to_owned(), family).is_none(), "{name} twice");
            current = name.to_owned();
            continue;
        }
        let at = line.find(['{', ' ']).unwrap_or_else(|| panic!("no value: {line}"));
        let (name, rest) = line.split_at(at);
        let (labels, value) = rest.strip_prefix('{').map_or((BTreeMap::new(), rest), labels);
        let value = value.strip_prefix(' ').unwrap_or_else(|| panic!("no blank: {line}"));
        let value = if value == "+Inf" { f64::INFINITY } else { value.parse().unwrap() };
        let family = families.get_mut(&current).unwrap();
        let suffix = name.strip_prefix(&*current).unwrap_or_else(|| panic!("{name} of {current}"));
        let allowed: &[&str] =
            if family.kind == "histogram" { &["_bucket", "_sum", "_count"] } else { &[""] };
        assert!(allowed.contains(&suffix), "{line}");
        let key = (name.to_owned(), labels);
        assert!(family.samples.insert(key, value).is_none(), "twice: {line}");
    }
    families.iter().for_each(|(name, family)| check(name, family));
    families
}

/// Checks a family against Prometheus's conventions, and that a histogram is one.
fn check(name: &str, family: &Family) {
    assert!(name.starts_with("gabion_") || name.starts_with("process_"), "{name}");
    for unit in ["_ms", "_us", "_ns", "_kib", "_mib", "_percent"] {
        assert!(!name.contains(&format!("{unit}_")) && !name.ends_with(unit), "{name}: base units");
    }
    assert_eq!(name.ends_with("_total"), family.kind == "counter", "{name}");
    assert!(family.samples.values().all(|value| !value.is_nan()), "{name}");
    if family.kind != "histogram" {
        return;
    }
    let without = |labels: &BTreeMap<String, String>| {
        let mut labels = labels.clone();
        labels.remove("le");
        labels
    };
    let series: BTreeSet<_> = family.samples.keys().map(|(_, labels)| without(labels)).collect();
    for labels in series {
        let mut buckets: Vec<(f64, f64)> = Vec::new();
        for ((sample, of), value) in &family.samples {
            if sample.ends_with("_bucket") && without(of) == labels {
                let le = of["le"].replace('+', "").to_lowercase();
                buckets.push((le.parse().unwrap(), *value));
            }
        }
        buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
        assert!(buckets.is_sorted_by(|a, b| a.1 <= b.1), "{name}: {buckets:?}");
        let last = buckets.last().unwrap();
        assert_eq!(last.0, f64::INFINITY);
        assert_eq!(family.samples[&(format!("{name}_count"), labels.clone())], last.1, "{name}");
        assert!(family.samples[&(format!("{name}_sum"), labels)] >= 0.0);
    }
}

impl Family {
    /// The sum of the samples that have all of these labels.
    fn sum(&self, wanted: &[(&str, &str)]) -> f64 {
        let has = |labels: &BTreeMap<String, String>| {
            wanted.iter().all(|(name, value)| labels.get(*name).is_some_and(|it| it == value))
        };
        self.samples.iter().filter(|((_, labels), _)| has(labels)).map(|(_, value)| value).sum()
    }
}

fn page(rig: &mut Rig, place: usize) -> BTreeMap<String, Family> {
    parse(&super::of_replica::page(rig.service(place)))
}

#[test]
fn the_page_of_a_group_is_well_formed_and_says_what_was_done() {
    let mut rig = Rig::new("metrics", &[group(1, 2, AckLevel::Replicated)]);
    let mut client = rig.client(0);
    rig.fill(&mut client);
    rig.text(&mut client, &["GET", "key-1"]);
    // A word of an error that a client made up.
    rig.text(&mut client, &["EVAL", "return redis.error_reply('A\"B\\\\C x')", "0"]);
    rig.until("members have it all", |rig| {
        let page = page(rig, 0);
        let is_flushed = page["gabion_flush_seconds_total"].sum(&[]) > 0.0;
        is_flushed && page["gabion_member_lag_bytes"].sum(&[]) == 0.0
    });
    let head = page(&mut rig, 0);
    let sum = |name: &str, labels: &[(&str, &str)]| head[name].sum(labels);
    assert!(sum("gabion_commands_total", &[("command", "set")]) >= 48.0);
    let key = |name: &str| {
        let labels = [("command", "set"), ("group", "1"), ("replica", "1")];
        let labels = labels.map(|(name, value)| (name.to_owned(), value.to_owned()));
        (format!("gabion_command_duration_seconds_{name}"), BTreeMap::from(labels))
    };
    let times = &head["gabion_command_duration_seconds"].samples;
    assert!(times[&key("count")] >= 48.0 && times[&key("sum")] > 0.0);
    assert!(sum("gabion_logged_bytes_total", &[]) > 3e6);
    assert!(sum("gabion_flushes_total", &[]) >= 1.0);
    assert_eq!(sum("gabion_errors_total", &[("error", "A\"B\\C")]), 1.0);
    assert_eq!(sum("gabion_role", &[("role", "primary")]), 1.0);
    assert_eq!(sum("gabion_role", &[]), 1.0);
    assert_eq!(sum("gabion_members", &[("state", "full")]), 2.0);
    assert_eq!(sum("gabion_member_connected", &[("member", "2")]), 1.0);
    assert_eq!(sum("gabion_member_lag_seconds", &[("member", "2")]), 0.0);
    assert_eq!(sum("gabion_pool_slots", &[]), sum("gabion_pool_slots_all", &[]));
    let acknowledged = &head["gabion_acknowledge_duration_seconds"];
    assert!(acknowledged.samples.values().any(|count| *count >= 48.0), "{acknowledged:?}");
    let tail = page(&mut rig, 1);
    assert_eq!(tail["gabion_role"].sum(&[("role", "tail")]), 1.0);
    assert!(tail["gabion_wire_bytes_total"].sum(&[("kind", "log")]) > 3e6);
    assert!(!tail.contains_key("gabion_member_lag_bytes"), "the tail hears of nobody");
}

fn status(rig: &mut Rig, client: &mut Client) -> Value {
    let text = rig.text(client, &["GABION", "STATUS"]);
    serde_json::from_str(text.split_once("\r\n").unwrap().1.trim_end()).unwrap()
}

#[test]
fn a_page_agrees_with_the_status_and_is_there_while_the_replica_is_opened_again() {
    let mut rig = Rig::new("metrics-closed", &[group(1, 1, AckLevel::Replicated)]);
    let mut client = rig.client(0);
    rig.fill(&mut client);
    let before = status(&mut rig, &mut client);
    let open = page(&mut rig, 0);
    let after = status(&mut rig, &mut client);
    // Flushes go on meanwhile.
    let between = |name: &str, labels: &[(&str, &str)], of: &dyn Fn(&Value) -> &Value| {
        let at = open[name].sum(labels);
        let range = of(&before).as_f64().unwrap()..=of(&after).as_f64().unwrap();
        assert!(range.contains(&at), "{name}: {at} in {range:?}");
    };
    between("gabion_term", &[], &|it| &it["term"]);
    for place in ["end", "commit", "durable", "trimmed"] {
        let labels = [("place", place)];
        between("gabion_log_position_bytes", &labels, &|it| &it["log"][place]);
    }
    between("gabion_logged_bytes_total", &[], &|it| &it["counters"]["logged_bytes"]);
    between("gabion_flushes_total", &[], &|it| &it["counters"]["flushes"]);
    assert_eq!(open["gabion_replica_open"].sum(&[]), 1.0);
    rig.reopen(0);
    let closed = page(&mut rig, 0);
    assert_eq!(closed["gabion_replica_open"].sum(&[]), 0.0);
    assert!(closed.contains_key("gabion_commands_total"));
    rig.await_open(0);
    assert!(page(&mut rig, 0).contains_key("gabion_ready"));
}

#[test]
fn the_page_of_a_process_has_the_usual_names() {
    let page = parse(&super::of_process::page());
    assert!(page["process_resident_memory_bytes"].sum(&[]) > 1e6);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let began = page["process_start_time_seconds"].sum(&[]);
    assert!((0.0..3_600.0).contains(&(now.as_secs_f64() - began + 1.0)), "{began}");
}

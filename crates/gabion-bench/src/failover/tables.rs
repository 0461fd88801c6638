//! Rounds as a line each, as JSON, and all of them as tables.

use super::args::FailoverArgs;
use super::samples::{Figures, Kind};
use super::{BIN_US, Fault, Role, Round};
use crate::text::{Style, Table, line as append};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// The figures of a round, in a line.
pub(super) fn line(round: &Round) -> String {
    let kinds = Kind::ALL.iter().zip(&round.figures).map(|(kind, figures)| {
        let failures = figures.failures.iter();
        let failures: Vec<String> =
            failures.map(|(failure, n)| format!("{n} {}", failure.as_str())).collect();
        let failures = match failures.is_empty() {
            true => String::new(),
            false => format!(", failed: {}", failures.join(", ")),
        };
        format!(
            "{} {} ms without an answer, 90 % of {:.0}/s after {} s{failures}",
            kind.as_str(),
            milliseconds(figures.gap_us),
            figures.rate,
            figures.recovered_us.map_or_else(|| "no".to_owned(), seconds),
        )
    });
    let changed = match round.has_changed {
        true => "; a process or the configuration had changed without a fault",
        false => "",
    };
    format!(
        "round {}: {} of the {} (replica {}): {}; whole after {} s{changed}\n",
        round.number,
        round.fault.as_str(),
        round.role.as_str(),
        round.replica,
        kinds.collect::<Vec<_>>().join("; "),
        seconds(whole_us(round))
    )
}

fn whole_us(round: &Round) -> u64 {
    round.times.whole_us.saturating_sub(round.times.fault_us)
}

fn milliseconds(us: u64) -> String {
    (us / 1000).to_string()
}

fn seconds(us: u64) -> String {
    format!("{:.2}", us as f64 / 1e6)
}

/// A round as a row.
pub(super) fn json(round: &Round, args: &FailoverArgs, provenance: Map<String, Value>) -> Value {
    let mut config = json!({
        "replicas": args.replicas,
        "clients": args.clients,
        "records": args.records,
        "value_size": args.value_size,
        "pool_bytes": args.pool_size,
        "ack": args.ack_level().as_str(),
        "timeout_ms": args.timeout_ms,
        "calm_seconds": args.calm,
        "stop_seconds": args.stop_for,
    });
    if let Some(config) = config.as_object_mut() {
        config.extend(provenance);
    }
    let times = round.times;
    let since_begin = |us: u64| us.saturating_sub(times.begun_us) / 1000;
    let [writes, reads] = &round.bins;
    json!({
        "benchmark": "failover",
        "round": round.number,
        "fault": round.fault.as_str(),
        "role": round.role.as_str(),
        "replica": round.replica,
        "changed_before": round.has_changed,
        "whole_ms": whole_us(round) / 1000,
        "writes": figures_json(&round.figures[0]),
        "reads": figures_json(&round.figures[1]),
        "timeline": {
            "bin_ms": BIN_US / 1000,
            "fault_ms": since_begin(times.fault_us),
            "whole_ms": since_begin(times.whole_us),
            "writes": writes,
            "reads": reads,
        },
        "config": config,
    })
}

fn figures_json(figures: &Figures) -> Value {
    let failures: Map<String, Value> = figures
        .failures
        .iter()
        .map(|(failure, n)| (failure.as_str().to_owned(), (*n).into()))
        .collect();
    let [before, after] = [figures.before_us, figures.after_us]
        .map(|pair| pair.map(|[p50, p99]| json!({"p50_us": p50, "p99_us": p99})));
    json!({
        "rate_before": figures.rate.round(),
        "gap_ms": figures.gap_us / 1000,
        "first_answer_ms": figures.first_answer_us.map(|us| us / 1000),
        "recovered_ms": figures.recovered_us.map(|us| us / 1000),
        "before": before,
        "after": after,
        "failed": failures,
    })
}

/// Median and worst of all rounds by fault and role: writes, then reads.
pub(super) fn tables(rounds: &[Round], style: Style) -> String {
    let mut groups: BTreeMap<(Fault, Role), Vec<&Round>> = BTreeMap::new();
    for round in rounds {
        groups.entry((round.fault, round.role)).or_default().push(round);
    }
    let mut out = String::new();
    append(&mut out, "");
    for (i, kind) in Kind::ALL.into_iter().enumerate() {
        let title = format!("{}: median / worst of the rounds", kind.as_str());
        let mut table = Table::new(title, &HEADER);
        for ((fault, role), rounds) in &groups {
            let figures: Vec<&Figures> = rounds.iter().map(|round| &round.figures[i]).collect();
            let whole = rounds.iter().map(|round| Some(whole_us(round)));
            let mut row = vec![format!("{}, {}", fault.as_str(), role.as_str())];
            row.push(rounds.len().to_string());
            row.extend(cells(&figures));
            row.push(both(whole, seconds));
            table.row(row);
        }
        table.write(style, &mut out);
    }
    out
}

const HEADER: [&str; 9] = [
    "fault, role",
    "rounds",
    "no answer (ms)",
    "90 % after (s)",
    "p50 before (µs)",
    "p50 after (µs)",
    "p99 before (µs)",
    "p99 after (µs)",
    "whole after (s)",
];

fn cells(figures: &[&Figures]) -> Vec<String> {
    let of = |value: &dyn Fn(&Figures) -> Option<u64>, show: fn(u64) -> String| {
        both(figures.iter().map(|figures| value(figures)), show)
    };
    let plain = |us: u64| us.to_string();
    let mut cells = vec![
        of(&|figures| Some(figures.gap_us), milliseconds),
        of(&|figures| figures.recovered_us, seconds),
    ];
    for place in 0..2 {
        cells.push(of(&|figures| figures.before_us.map(|pair| pair[place]), plain));
        cells.push(of(&|figures| figures.after_us.map(|pair| pair[place]), plain));
    }
    cells
}

/// Median and greatest; a value that was not reached is greater than every other, and shown as `–`.
fn both(values: impl Iterator<Item = Option<u64>>, show: fn(u64) -> String) -> String {
    let mut values: Vec<u64> = values.map(|value| value.unwrap_or(u64::MAX)).collect();
    values.sort_unstable();
    let show = |value: u64| if value == u64::MAX { "–".to_owned() } else { show(value) };
    // The lower of two in the middle would flatter.
    let median = values[values.len() / 2];
    format!("{} / {}", show(median), show(values[values.len() - 1]))
}

#[cfg(test)]
mod tests {
    use super::super::args::tests::args;
    use super::super::door::Failure;
    use super::super::samples::Times;
    use super::*;

    pub(crate) fn round(number: u64, gap_ms: u64) -> Round {
        let figures = Figures {
            rate: 2000.0,
            gap_us: gap_ms * 1000 + 400,
            first_answer_us: Some(gap_ms * 1000),
            recovered_us: (gap_ms < 1000).then_some(gap_ms * 2000),
            before_us: Some([100, 900]),
            after_us: Some([110, 950]),
            failures: BTreeMap::from([(Failure::TryAgain, 7), (Failure::Ended, 2)]),
        };
        let times = Times {
            begun_us: 1_000_000,
            fault_us: 6_000_000,
            whole_us: 9_500_000,
            ended_us: 10_550_000,
        };
        Round {
            number,
            fault: Fault::Kill,
            role: Role::Head,
            replica: 1,
            has_changed: false,
            times,
            figures: [figures.clone(), Figures { gap_us: 5_000, ..figures }],
            bins: [vec![200; 95], vec![300; 95]],
        }
    }

    #[test]
    fn a_round_is_told_in_a_line() {
        let expected = "round 4: kill of the head (replica 1): writes 600 ms without an answer, \
                        90 % of 2000/s after 1.20 s, failed: 2 connection ended, 7 TRYAGAIN; \
                        reads 5 ms without an answer, 90 % of 2000/s after 1.20 s, failed: 2 \
                        connection ended, 7 TRYAGAIN; whole after 3.50 s\n";
        assert_eq!(line(&round(4, 600)), expected);
        assert!(line(&round(4, 1600)).contains("90 % of 2000/s after no s"));
        let changed = Round { has_changed: true, ..round(4, 600) };
        assert!(line(&changed).ends_with("had changed without a fault\n"));
    }

    #[test]
    fn rounds_of_one_fault_and_role_are_a_row_with_median_and_worst() {
        let rounds = [round(1, 600), round(2, 1600), round(3, 500)];
        let text = tables(&rounds, Style::Markdown);
        let row = text.lines().find(|line| line.starts_with("| kill, head")).unwrap();
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let expected = [
            "kill, head",
            "3",
            "600 / 1600",
            "1.20 / –",
            "100 / 100",
            "110 / 110",
            "900 / 900",
            "950 / 950",
            "3.50 / 3.50",
        ];
        assert_eq!(cells, expected);
        assert!(text.contains("**reads: median / worst of the rounds**"));
    }

    #[test]
    fn a_row_of_json_has_figures_timeline_and_settings() {
        let row = json(&round(4, 600), &args(&["--calm", "2"]), Map::new());
        assert_eq!((&row["writes"]["gap_ms"], &row["reads"]["gap_ms"]), (&600.into(), &5.into()));
        assert_eq!(row["writes"]["failed"]["TRYAGAIN"], 7);
        assert_eq!(row["writes"]["after"]["p99_us"], 950);
        assert_eq!((&row["whole_ms"], &row["timeline"]["fault_ms"]), (&3500.into(), &5000.into()));
        assert_eq!(row["timeline"]["writes"].as_array().unwrap().len(), 95);
        assert_eq!(row["config"]["calm_seconds"], 2);
    }
}

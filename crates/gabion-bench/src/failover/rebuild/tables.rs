//! Peers and rounds as lines, as JSON, and as a table.

use super::Round;
use super::args::RebuildArgs;
use super::peers::Peers;
use crate::text::{Style, Table, line as append};
use serde_json::{Map, Value, json};

/// MB/s.
fn mb(bytes_per_s: f64) -> f64 {
    bytes_per_s / 1e6
}

/// The limits of the machine, in a line.
pub(super) fn peers(peers: &Peers) -> String {
    format!(
        "device: {:.0} MB/s written, {:.0} MB/s from file to file; loopback: {:.0} MB/s\n",
        mb(peers.write),
        mb(peers.copy),
        mb(peers.loopback)
    )
}

impl Round {
    /// Bytes a second, from the loss of the disk until the group was whole.
    fn rate(&self) -> f64 {
        self.bytes as f64 / self.whole.as_secs_f64().max(1e-9)
    }

    /// The same of the copy alone.
    fn copy_rate(&self) -> f64 {
        self.bytes as f64 / self.copy.as_secs_f64().max(1e-9)
    }

    /// How many times as long the 99th percentile took meanwhile, of writes and reads.
    fn p99_ratios(&self) -> [Option<f64>; 2] {
        [0, 1].map(|kind| {
            let [before, during] = [self.before_us[kind]?, self.during_us[kind]?];
            Some(during[1] as f64 / before[1].max(1) as f64)
        })
    }
}

/// A round in a line.
pub(super) fn line(round: &Round, peers: &Peers) -> String {
    let mut line = format!(
        "round {}, {}: replica {} of {:.0} MB full after {:.2} s; copied in {:.2} s: {:.0} MB/s, \
         {:.0} % of the device from file to file",
        round.number,
        round.kind.as_str(),
        round.replica,
        mb(round.bytes as f64),
        round.whole.as_secs_f64(),
        round.copy.as_secs_f64(),
        mb(round.copy_rate()),
        100.0 * round.copy_rate() / peers.copy
    );
    for (kind, name) in ["writes", "reads"].into_iter().enumerate() {
        if let (Some(before), Some(during)) = (round.before_us[kind], round.during_us[kind]) {
            line += &format!("; {name}: p99 {} µs before, {} µs meanwhile", before[1], during[1]);
        }
    }
    if round.failed > 0 {
        line += &format!("; {} requests failed", round.failed);
    }
    line + "\n"
}

/// A round as a row.
pub(super) fn json(
    round: &Round,
    peers: &Peers,
    args: &RebuildArgs,
    provenance: Map<String, Value>,
) -> Value {
    let mut config = json!({
        "replicas": args.replicas,
        "bytes": args.bytes,
        "clients": args.clients,
        "value_size": args.value_size,
        "pool_bytes": args.pool_size(),
        "ack": args.ack_level().as_str(),
        "rebuild_rate": args.rebuild_rate,
        "calm_seconds": args.calm,
    });
    if let Some(config) = config.as_object_mut() {
        config.extend(provenance);
    }
    let pair =
        |pair: Option<[u64; 2]>| pair.map(|[p50, p99]| json!({"p50_us": p50, "p99_us": p99}));
    let kind = |kind: usize| {
        json!({
            "before": pair(round.before_us[kind]),
            "during": pair(round.during_us[kind]),
            "p99_ratio": round.p99_ratios()[kind],
        })
    };
    json!({
        "benchmark": "rebuild",
        "round": round.number,
        "load": round.kind.as_str(),
        "replica": round.replica,
        "bytes": round.bytes,
        "whole_ms": round.whole.as_millis() as u64,
        "copy_ms": round.copy.as_millis() as u64,
        "bytes_per_s": round.rate().round(),
        "copy_bytes_per_s": round.copy_rate().round(),
        "device_write_bytes_per_s": peers.write.round(),
        "device_copy_bytes_per_s": peers.copy.round(),
        "loopback_bytes_per_s": peers.loopback.round(),
        "full_rate": round.full_rate.round(),
        "paced_rate": round.paced_rate.round(),
        "writes": kind(0),
        "reads": kind(1),
        "failed": round.failed,
        "config": config,
    })
}

const HEADER: [&str; 9] = [
    "load",
    "MB",
    "full after (s)",
    "copied in (s)",
    "copy (MB/s)",
    "of device write (%)",
    "of device copy (%)",
    "p99 writes: before / meanwhile (µs)",
    "p99 reads: before / meanwhile (µs)",
];

/// All rounds.
pub(super) fn table(rounds: &[Round], peers: &Peers, style: Style) -> String {
    let mut out = String::new();
    append(&mut out, "");
    let mut table = Table::new("A replica that lost its disk", &HEADER);
    for round in rounds {
        let p99 = |kind: usize| match (round.before_us[kind], round.during_us[kind]) {
            (Some(before), Some(during)) => format!("{} / {}", before[1], during[1]),
            _ => "–".to_owned(),
        };
        table.row(vec![
            round.kind.as_str().to_owned(),
            format!("{:.0}", mb(round.bytes as f64)),
            format!("{:.2}", round.whole.as_secs_f64()),
            format!("{:.2}", round.copy.as_secs_f64()),
            format!("{:.0}", mb(round.copy_rate())),
            format!("{:.0}", 100.0 * round.copy_rate() / peers.write),
            format!("{:.0}", 100.0 * round.copy_rate() / peers.copy),
            p99(0),
            p99(1),
        ]);
    }
    table.write(style, &mut out);
    out
}

#[cfg(test)]
mod tests {
    use super::super::args::LoadKind;
    use super::super::args::tests::args;
    use super::*;
    use std::time::Duration;

    fn round() -> Round {
        Round {
            number: 2,
            kind: LoadKind::Half,
            replica: 3,
            bytes: 2_000_000_000,
            whole: Duration::from_secs(5),
            copy: Duration::from_secs(4),
            before_us: [Some([100, 1_000]), None],
            during_us: [Some([120, 1_500]), Some([1, 2])],
            ..Round::default()
        }
    }

    const PEERS: Peers = Peers { write: 1e9, copy: 625e6, loopback: 3e9 };

    #[test]
    fn a_round_is_told_with_its_rate_and_what_the_device_gives() {
        assert_eq!(
            line(&round(), &PEERS),
            "round 2, half: replica 3 of 2000 MB full after 5.00 s; copied in 4.00 s: 500 MB/s, \
             80 % of the device from file to file; writes: p99 1000 µs before, 1500 µs meanwhile\n"
        );
        let expected =
            "device: 1000 MB/s written, 625 MB/s from file to file; loopback: 3000 MB/s\n";
        assert_eq!(peers(&PEERS), expected);
        let text = table(&[round()], &PEERS, Style::Markdown);
        let row = text.lines().find(|line| line.starts_with("| half")).unwrap();
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let expected = ["half", "2000", "5.00", "4.00", "500", "50", "80", "1000 / 1500", "–"];
        assert_eq!(cells, expected);
    }

    #[test]
    fn a_row_of_json_has_rates_ratios_and_settings() {
        let row = json(&round(), &PEERS, &args(&["--calm", "7"]), Map::new());
        assert_eq!((&row["bytes_per_s"], &row["copy_bytes_per_s"]), (&4e8.into(), &5e8.into()));
        assert_eq!(
            (&row["writes"]["p99_ratio"], &row["reads"]["p99_ratio"]),
            (&1.5.into(), &Value::Null)
        );
        assert_eq!((&row["config"]["calm_seconds"], &row["load"]), (&7.into(), &"half".into()));
    }
}

//! Rows as engines' programs print them, and medians of their figures.

use gabion_base::{Error, Result};
use gabion_workload::{REVISION, Workload};
use serde_json::{Map, Value};

/// The share of the machine's processors that others may have before it is reported. An engine that
/// works through the page cache has the kernel's threads write it back, and these count as others.
pub(crate) const OTHERS_MAX: f64 = 0.05;

/// How far the operations of two engines may differ, as a share of the more, before it is reported.
const OPERATIONS_APART_MAX: f64 = 0.03;

/// Whether two engines did such different amounts of a workload before its time was over that their
/// written bytes, their space and their debt must not be compared. If only the time ends a
/// workload, nothing follows from the amount.
pub(crate) fn is_other_work(workload: Workload, operations: [f64; 2]) -> bool {
    let [a, b] = operations;
    !workload.is_timed_only() && (a - b).abs() > a.max(b) * OPERATIONS_APART_MAX
}

/// The consequence, for readers of the figures.
pub(crate) const OTHER_WORK: &str = "the time was over before both had done all: amplification and \
                                     ops/s until quiet are of different work";

/// One run's row, with the round in which it ran.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct EngineRow(Value);

impl EngineRow {
    /// Reads the output of `engine`'s program, and adds its round and machine.
    pub(super) fn parse(
        engine: &str,
        text: &[u8],
        round: u64,
        config: Map<String, Value>,
    ) -> Result<Self> {
        let wrong = |what: String| Error::invalid(format!("engine-{engine} printed {what}"));
        let mut value: Value = serde_json::from_slice(text)
            .map_err(|error| wrong(format!("what is no JSON: {error}")))?;
        if value["revision"] != REVISION {
            return Err(wrong(format!(
                "a row of revision {} of the workloads, this program has {REVISION}: build both anew",
                value["revision"]
            )));
        }
        if value["engine"] != engine {
            return Err(wrong(format!("a row of {}", value["engine"])));
        }
        value["round"] = round.into();
        value["config"] = config.into();
        Ok(Self(value))
    }

    /// The same row under the name by which the engine is asked for.
    pub(super) fn named(mut self, engine: &str) -> Self {
        self.0["engine"] = engine.into();
        self
    }

    pub(super) fn json(&self) -> &Value {
        &self.0
    }

    /// The engine's name.
    pub(super) fn engine(&self) -> &str {
        self.0["engine"].as_str().unwrap_or_default()
    }

    /// The engine's version.
    pub(super) fn version(&self) -> &str {
        self.0["version"].as_str().unwrap_or_default()
    }

    /// The engine's name and version, with the options that only it had.
    pub(super) fn described(&self) -> String {
        let mut text = format!("{} is version {}", self.engine(), self.version());
        for (i, option) in self.texts("own_options").enumerate() {
            text.push_str(if i == 0 { " with " } else { " " });
            text.push_str(option);
        }
        text
    }

    fn texts(&self, name: &str) -> impl Iterator<Item = &str> {
        self.0[name].as_array().into_iter().flatten().filter_map(Value::as_str)
    }

    /// The others' use of the machine, in words, if it was so much that figures are not to be
    /// trusted.
    pub(super) fn disturbance(&self) -> Option<String> {
        let share = |name: &str| self.0["others"][name].as_f64().unwrap_or_default();
        let (others, host) = (share("cpu_share"), share("stolen_share"));
        (others.max(host) > OTHERS_MAX).then(|| {
            format!(
                "others had {:.0} % of the machine's processors meanwhile, its host {:.0} %",
                others * 100.0,
                host * 100.0
            )
        })
    }

    /// A figure; `None` where the workload has none.
    pub(super) fn figure(&self, name: &str) -> Option<f64> {
        self.0[name].as_f64()
    }

    /// The seconds of a slice of the run, and the requests a second in each.
    pub(super) fn rates_over_time(&self) -> Option<(f64, Vec<f64>)> {
        let (seconds, slices) = (&self.0["over_time"]["seconds"], &self.0["over_time"]["slices"]);
        let rates = slices.as_array()?.iter().map(|slice| slice["per_second"].as_f64());
        Some((seconds.as_f64()?, rates.collect::<Option<Vec<f64>>>()?))
    }

    /// Options that the engine could not honour.
    pub(super) fn limits(&self) -> impl Iterator<Item = &str> {
        self.texts("limits")
    }
}

/// The median of a figure over rounds: the middle one, or the mean of the two in the middle.
pub(super) fn median(rows: &[&EngineRow], name: &str) -> Option<f64> {
    let mut values: Vec<f64> = rows.iter().filter_map(|row| row.figure(name)).collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        len if len % 2 == 1 => Some(values[middle]),
        _ => Some(f64::midpoint(values[middle - 1], values[middle])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::provenance::{FIELDS, provenance};
    use serde_json::json;

    fn row(figure: f64) -> EngineRow {
        let text = json!({"engine": "a", "revision": REVISION, "x": figure}).to_string();
        EngineRow::parse("a", text.as_bytes(), 2, provenance()).unwrap()
    }

    #[test]
    fn a_row_of_another_engine_or_revision_is_refused() {
        assert_eq!(row(1.0).json()["round"], 2);
        let config = row(1.0).json()["config"].as_object().unwrap().clone();
        assert!(FIELDS.iter().all(|&name| config.contains_key(name)), "{config:?}");
        for text in ["", "{}", r#"{"engine":"b","revision":1}"#, r#"{"engine":"a","revision":0}"#] {
            assert!(EngineRow::parse("a", text.as_bytes(), 1, Map::new()).is_err(), "{text}");
        }
    }

    #[test]
    fn a_machine_that_others_used_is_told() {
        let told = |others: f64, host: f64| {
            let mut row = row(1.0);
            row.0["others"] = json!({"cpu_share": others, "stolen_share": host});
            row.disturbance()
        };
        assert_eq!(row(1.0).disturbance(), None);
        assert_eq!(told(0.05, 0.04), None);
        for (others, host, part) in [(0.061, 0.0, "had 6 %"), (0.0, 0.2, "its host 20 %")] {
            let text = told(others, host).unwrap();
            assert!(text.contains(part), "{text}");
        }
    }

    #[test]
    fn engines_that_did_not_do_as_much_of_what_has_an_end_are_told_from_those_that_did() {
        let is = |workload, a, b| is_other_work(workload, [a, b]);
        assert!(is(Workload::Fillrandom, 100.0, 96.0) && is(Workload::Fillrandom, 96.0, 100.0));
        assert!(!is(Workload::Fillrandom, 100.0, 98.0) && !is(Workload::YcsbG, 0.0, 0.0));
        assert!(!is(Workload::Readrandom, 100.0, 1.0) && !is(Workload::Readwhilewriting, 9.0, 1.0));
    }

    #[test]
    fn a_median_is_the_one_in_the_middle() {
        let rows = [row(3.0), row(1.0), row(10.0), row(2.0)];
        let all: Vec<&EngineRow> = rows.iter().collect();
        assert_eq!(median(&all[..3], "x"), Some(3.0));
        assert_eq!(median(&all, "x"), Some(2.5));
        assert_eq!(median(&all, "y"), None);
        assert_eq!(median(&[], "x"), None);
    }
}

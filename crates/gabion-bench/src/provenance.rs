//! The origin of a figure: program, commit, command, time and machine. Stands in `config` of every
//! run, so that figures of different machines or commits are never taken for rounds of one.

use serde_json::{Map, Value, json};
use std::time::{SystemTime, UNIX_EPOCH};

/// Names of the fields, in their order. They tell readers of runs which fields are no settings.
pub(crate) const FIELDS: [&str; 6] =
    ["version", "commit", "build", "command", "started_at", "machine"];

/// The build of this program. Figures of a build with the checks of `debug` say nothing about the
/// other.
const BUILD: &str = if cfg!(debug_assertions) { "debug" } else { "release" };

/// The provenance of a measurement of this process that begins now.
pub(crate) fn provenance() -> Map<String, Value> {
    let values = [
        env!("CARGO_PKG_VERSION").into(),
        option_env!("GABION_COMMIT").into(),
        BUILD.into(),
        command(std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned())).into(),
        started_at().into(),
        machine(),
    ];
    FIELDS.iter().map(|&name| name.to_owned()).zip(values).collect()
}

/// The command line as it can be typed again; the program's directory says nothing about a run.
fn command(words: impl Iterator<Item = String>) -> String {
    let mut line = "gabion".to_owned();
    for word in words {
        line.push(' ');
        line.push_str(&quoted(&word));
    }
    line
}

/// A word as a POSIX shell reads it back.
pub(crate) fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_@%+=:,./-".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Now, in UTC; `None` when the clock stands before 1970.
fn started_at() -> Option<String> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
    Some(utc(since.as_secs()))
}

/// Seconds since 1970 as RFC 3339 writes them.
fn utc(seconds: u64) -> String {
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = date(days);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// Year, month and day of a day since 1970-01-01 in the Gregorian calendar (H. Hinnant,
/// "chrono-compatible low-level date algorithms": years begin in March, so that the leap day is
/// last).
fn date(days: u64) -> (u64, u64, u64) {
    // Days since 0000-03-01; an era is 400 years.
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

/// The kernel's description of the machine; `null` for missing parts.
fn machine() -> Value {
    let read = |path: &str| std::fs::read_to_string(path).ok();
    let line = |path: &str| read(path).map(|text| text.trim().to_owned());
    json!({
        "name": line("/proc/sys/kernel/hostname"),
        "processor": read("/proc/cpuinfo").and_then(|text| processor(&text)),
        "cores": std::thread::available_parallelism().ok().map(std::num::NonZero::get),
        "memory_bytes": gabion_proc::machine_memory_bytes(),
        "kernel": line("/proc/sys/kernel/osrelease"),
    })
}

/// The first processor's name; some processors name none (some ARM kernels).
fn processor(cpuinfo: &str) -> Option<String> {
    let line = cpuinfo.lines().find(|line| line.starts_with("model name"))?;
    let (_, name) = line.split_once(':')?;
    Some(name.split_whitespace().collect::<Vec<_>>().join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_date_is_that_of_the_calendar() {
        let cases = [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (951_868_800, "2000-03-01T00:00:00Z"),
            (1_735_689_599, "2024-12-31T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ];
        for (seconds, text) in cases {
            assert_eq!(utc(seconds), text);
        }
    }

    #[test]
    fn a_command_can_be_typed_again() {
        let words =
            ["bench", "ycsb", "--dir", "it's here", "", "--replicas=2,3"].map(str::to_owned);
        assert_eq!(
            command(words.into_iter()),
            r"gabion bench ycsb --dir 'it'\''s here' '' --replicas=2,3"
        );
    }

    #[test]
    fn the_machine_is_what_the_kernel_says() {
        let cpuinfo = "processor\t: 0\nmodel name\t: Some  CPU @ 2.0GHz\nmodel name\t: Other\n";
        assert_eq!(processor(cpuinfo).as_deref(), Some("Some CPU @ 2.0GHz"));
        assert_eq!(processor("processor\t: 0\n"), None);
        let machine = machine();
        assert!(machine["cores"].as_u64().unwrap() > 0, "{machine}");
    }

    #[test]
    fn every_field_is_there_and_in_its_order() {
        let provenance = provenance();
        assert_eq!(provenance.keys().map(String::as_str).collect::<Vec<_>>(), FIELDS);
        assert!(provenance["started_at"].as_str().unwrap().ends_with('Z'));
    }
}

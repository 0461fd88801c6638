//! Sizes and times as people write and read them.

use gabion_base::units::{GIB, KIB, MIB};
use gabion_bench::grouped;

/// One TiB in bytes.
const TIB: u64 = 1 << 40;

/// A size in words: `4.0 GiB`.
pub(crate) fn size(bytes: u64) -> String {
    let (value, unit) = scaled(bytes);
    if unit.is_empty() { format!("{bytes} B") } else { format!("{value:.1} {unit}iB") }
}

/// A size in at most five characters: `4.0G`, `1023K`.
pub(crate) fn short_size(bytes: u64) -> String {
    match scaled(bytes) {
        (_, "") => bytes.to_string(),
        (value, unit) if value < 99.95 => format!("{value:.1}{unit}"),
        (value, unit) => format!("{value:.0}{unit}"),
    }
}

/// The exact size as an option takes it: `256MiB`, or bytes where no unit divides it.
pub(crate) fn exact_size(bytes: u64) -> String {
    for (scale, unit) in [(TIB, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")] {
        if bytes >= scale && bytes.is_multiple_of(scale) {
            return format!("{}{unit}", bytes / scale);
        }
    }
    bytes.to_string()
}

fn scaled(bytes: u64) -> (f64, &'static str) {
    for (scale, unit) in [(TIB, "T"), (GIB, "G"), (MIB, "M"), (KIB, "K")] {
        if bytes >= scale {
            return (bytes as f64 / scale as f64, unit);
        }
    }
    (bytes as f64, "")
}

/// CPU time in at most five characters: `12.3`, `1234`, `56k`, in seconds.
pub(crate) fn seconds(value: f64) -> String {
    if value < 999.95 { format!("{value:.1}") } else { short_count(value as u64) }
}

/// A number of things: `1 replica`, `1,200 files`.
pub(crate) fn count(number: u64, thing: &str) -> String {
    format!("{} {thing}{}", grouped(number), if number == 1 { "" } else { "s" })
}

/// A count in at most five characters: `9999`, `12k`, `4.5M`.
pub(crate) fn short_count(value: u64) -> String {
    match value {
        0..10_000 => value.to_string(),
        10_000..1_000_000 => format!("{:.0}k", value as f64 / 1e3),
        99_950_000.. => format!("{:.0}M", value as f64 / 1e6),
        _ => format!("{:.1}M", value as f64 / 1e6),
    }
}

/// A span of time: `7 s`, `12:34`, `3:12:34`.
pub(crate) fn span(seconds: u64) -> String {
    let (hours, minutes, rest) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    match (hours, minutes) {
        (0, 0) => format!("{rest} s"),
        (0, _) => format!("{minutes}:{rest:02}"),
        _ => format!("{hours}:{minutes:02}:{rest:02}"),
    }
}

/// A time as people write it: `2026-11-26 15:17:03.250 UTC`.
pub(crate) fn utc(unix_ms: u64) -> String {
    let (days, ms) = (unix_ms / 86_400_000, unix_ms % 86_400_000);
    // Years of 400 have the same days, counted from a first of March (Howard Hinnant's
    // civil_from_days).
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let date = day - (153 * month + 2) / 5 + 1;
    let (year, month) = match month {
        0..10 => (year + era * 400, month + 3),
        _ => (year + era * 400 + 1, month - 9),
    };
    format!(
        "{year:04}-{month:02}-{date:02} {:02}:{:02}:{:02}.{:03} UTC",
        ms / 3_600_000,
        ms / 60_000 % 60,
        ms / 1_000 % 60,
        ms % 1_000
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use gabion_bench::parse_bytes;

    #[test]
    fn sizes_are_read_in_the_units_that_people_use() {
        for (text, bytes) in
            [("4GiB", 4 * GIB), ("256M", 256 * MIB), ("64 kb", 64 * KIB), ("4096", 4096), ("0", 0)]
        {
            assert_eq!(parse_bytes(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_refused_with_an_example() {
        for text in ["", "GiB", "4.5G", "-1", "4X", "99999999999T"] {
            let error = parse_bytes(text).unwrap_err();
            assert!(error.contains(&format!("`{text}`")), "{error}");
        }
    }

    #[test]
    fn an_exact_size_reads_back_as_itself() {
        for bytes in [1, 4096, 1000, 256 * MIB, 4 * GIB, GIB + KIB] {
            assert_eq!(parse_bytes(&exact_size(bytes)), Ok(bytes));
        }
    }

    #[test]
    fn times_are_told_as_in_the_calendar() {
        for (ms, text) in [
            (0, "1970-01-01 00:00:00.000 UTC"),
            (951_782_400_007, "2000-02-29 00:00:00.007 UTC"),
            (1_709_251_199_999, "2024-02-29 23:59:59.999 UTC"),
            (1_709_251_200_000, "2024-03-01 00:00:00.000 UTC"),
            (4_102_444_800_000, "2100-01-01 00:00:00.000 UTC"),
        ] {
            assert_eq!(utc(ms), text);
        }
    }

    #[test]
    fn numbers_fit_their_columns() {
        for value in [0, 1, 999, 1023, 1024, MIB - 1, GIB - 1, 999 * GIB, 8 * TIB] {
            assert!(short_size(value).len() <= 5, "{}", short_size(value));
        }
        for value in [0, 9_999, 10_000, 999_999, 99_999_999, 4_000_000_000] {
            assert!(short_count(value).len() <= 5, "{}", short_count(value));
        }
        assert_eq!(seconds(1234.5), "1234");
        assert_eq!(
            (count(1, "file"), count(1200, "file")),
            ("1 file".into(), "1,200 files".into())
        );
        assert_eq!(
            (span(7), span(754), span(11_554)),
            ("7 s".into(), "12:34".into(), "3:12:34".into())
        );
    }
}

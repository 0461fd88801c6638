//! The progress of a member that is being filled, as people read it and as JSON has it.

use crate::units::{size, span};
use gabion_control::Filling;
use serde_json::{Value, json};

/// As in a replica's own status, as far as the controller hears of it.
pub(crate) fn as_json(filling: Option<Filling>) -> Value {
    filling.map_or(Value::Null, |filling| {
        json!({
            "step": filling.step.as_str(),
            "bytes": filling.bytes,
            "bytes_done": filling.bytes_done,
            "bytes_per_s": filling.bytes_per_s,
            "full_in_s": filling.full_in_s(),
        })
    })
}

/// The same in words: the step, bytes done of all, the rate, and when all will be there. Nothing
/// where nothing is filled.
pub(crate) fn in_words(filling: &Value) -> Option<String> {
    let number = |name: &str| filling[name].as_u64().unwrap_or(0);
    let mut words = filling["step"].as_str()?.to_owned();
    let (bytes, done) = (number("bytes"), number("bytes_done"));
    if bytes > 0 {
        let percent = u128::from(done) * 100 / u128::from(bytes);
        words += &format!(", {} of {} ({percent} %)", size(done), size(bytes));
    }
    if number("bytes_per_s") > 0 {
        words += &format!(", {}/s", size(number("bytes_per_s")));
    }
    if let Some(left_s) = filling["full_in_s"].as_u64() {
        words += &format!(", all there in about {}", span(left_s));
    }
    Some(words)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gabion_control::FillingStep;

    #[test]
    fn a_filling_is_told_with_bytes_rate_and_estimate_as_far_as_they_are_known() {
        let step = FillingStep::Copying;
        let copying = Filling { step, bytes: 2 << 30, bytes_done: 1 << 29, bytes_per_s: 200 << 20 };
        let said = in_words(&as_json(Some(copying))).unwrap();
        let expected =
            "copying files, 512.0 MiB of 2.0 GiB (25 %), 200.0 MiB/s, all there in about 8 s";
        assert_eq!(said, expected);
        let asking = as_json(Some(Filling::default()));
        assert_eq!(asking["full_in_s"], Value::Null);
        assert_eq!(in_words(&asking).unwrap(), "asking for a state");
        assert_eq!(in_words(&as_json(None)), None);
    }
}

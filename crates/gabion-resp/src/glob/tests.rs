//! Patterns against the documentation of Redis and a slow reference that is plainly right.

use super::*;
use alloc::string::String;
use proptest::prelude::*;

/// Redis's own algorithm, call by call: exponential, but plainly right.
fn reference(pattern: &[u8], text: &[u8]) -> bool {
    match pattern {
        [] => text.is_empty(),
        [b'*', rest @ ..] => (0..=text.len()).any(|taken| reference(rest, &text[taken..])),
        _ => match text {
            [] => false,
            [byte, rest @ ..] => {
                let Some((accepted, used)) = reference_one(pattern, *byte) else { return false };
                accepted && reference(&pattern[used..], rest)
            }
        },
    }
}

fn reference_one(pattern: &[u8], byte: u8) -> Option<(bool, usize)> {
    match pattern[0] {
        b'?' => Some((true, 1)),
        b'\\' if pattern.len() > 1 => Some((pattern[1] == byte, 2)),
        b'[' => {
            let mut at = 1;
            let not = pattern.get(at) == Some(&b'^');
            at += usize::from(not);
            let mut found = false;
            while at < pattern.len() && pattern[at] != b']' {
                let left = pattern.len() - at;
                if pattern[at] == b'\\' && left >= 2 {
                    found |= pattern[at + 1] == byte;
                    at += 2;
                } else if left >= 3 && pattern[at + 1] == b'-' {
                    let (a, b) =
                        (pattern[at].min(pattern[at + 2]), pattern[at].max(pattern[at + 2]));
                    found |= a <= byte && byte <= b;
                    at += 3;
                } else {
                    found |= pattern[at] == byte;
                    at += 1;
                }
            }
            Some((found != not, (at + 1).min(pattern.len())))
        }
        literal => Some((literal == byte, 1)),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn the_matcher_agrees_with_the_exponential_one(
        pattern in prop::collection::vec(prop::sample::select(&b"aabc**?[]^-\\"[..]), 0..10),
        text in prop::collection::vec(prop::sample::select(&b"aabc]^-\\"[..]), 0..10),
    ) {
        let (shown_p, shown_t) =
            (String::from_utf8_lossy(&pattern), String::from_utf8_lossy(&text));
        prop_assert_eq!(
            glob_match(&pattern, &text), reference(&pattern, &text), "{} on {}", shown_p, shown_t
        );
    }

    #[test]
    fn whatever_matches_begins_with_the_prefix(
        pattern in prop::collection::vec(prop::sample::select(&b"aabc*?[]\\"[..]), 0..8),
        text in prop::collection::vec(prop::sample::select(&b"aabc]\\"[..]), 0..8),
    ) {
        if glob_match(&pattern, &text) {
            prop_assert!(text.starts_with(glob_prefix(&pattern)));
        }
    }
}

#[test]
fn patterns_of_the_redis_documentation_match() {
    for (pattern, text, expected) in [
        ("h?llo", "hello", true),
        ("h*llo", "heeeello", true),
        ("h*llo", "hllo", true),
        ("h[ae]llo", "hallo", true),
        ("h[ae]llo", "hillo", false),
        ("h[^e]llo", "hallo", true),
        ("h[^e]llo", "hello", false),
        ("h[a-b]llo", "hbllo", true),
        ("h[b-a]llo", "hallo", true),
        (r"h\*llo", "h*llo", true),
        (r"h\*llo", "hello", false),
        ("", "", true),
        ("", "a", false),
        ("*", "", true),
    ] {
        assert_eq!(glob_match(pattern.as_bytes(), text.as_bytes()), expected, "{pattern} {text}");
    }
}

#[test]
fn many_stars_do_not_cost_exponential_time() {
    // Redis's own matcher would not end in a lifetime.
    let pattern = [&b"a*".repeat(40)[..], b"b"].concat();
    assert!(!glob_match(&pattern, &b"a".repeat(4000)));
}

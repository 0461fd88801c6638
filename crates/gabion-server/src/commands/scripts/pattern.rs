//! The patterns of Lua's string library, as Lua 5.1 matches them. Its own search may take as long and recurse as deep
//! as a pattern and a text make it; this one asks from time to time whether it may go on, and goes only so deep.

/// Most captures of a pattern.
const CAPTURES_MAX: usize = 32;
/// Deepest recursion.
const DEPTH_MAX: usize = 200;
/// Steps between two questions.
const STEPS: u32 = 4096;

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The pattern is wrong, in Lua's words.
    Malformed(&'static str),
    /// The script has to end.
    Stopped,
}

/// A part of the text that a pattern captured, or a place in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Capture {
    /// From here on, so long.
    Text(usize, usize),
    /// A place, counted from 0.
    Place(usize),
}

/// What was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Match {
    pub(crate) start: usize,
    pub(crate) end: usize,
    /// Empty when the pattern has none.
    pub(crate) captures: Vec<Capture>,
}

#[derive(Clone, Copy)]
enum Open {
    Unfinished,
    Place,
    Len(usize),
}

struct Matcher<'a> {
    text: &'a [u8],
    pattern: &'a [u8],
    captures: Vec<(usize, Open)>,
    depth: usize,
    steps: u32,
    may_go_on: &'a mut dyn FnMut() -> bool,
}

type Found = Result<Option<usize>, Failure>;

/// The first match at or after `from`. A leading `^` binds it to that place. `may_go_on` is asked from time to time.
///
/// # Errors
/// The pattern is wrong, or it may not go on.
pub(crate) fn find(
    text: &[u8],
    pattern: &[u8],
    from: usize,
    may_go_on: &mut dyn FnMut() -> bool,
) -> Result<Option<Match>, Failure> {
    let (is_anchored, first) = match pattern.first() {
        Some(b'^') => (true, 1),
        _ => (false, 0),
    };
    let mut matcher =
        Matcher { text, pattern, captures: Vec::new(), depth: 0, steps: 0, may_go_on };
    for start in from..=text.len() {
        matcher.captures.clear();
        if let Some(end) = matcher.run(start, first)? {
            let captures = matcher.captured()?;
            return Ok(Some(Match { start, end, captures }));
        }
        if is_anchored {
            break;
        }
    }
    Ok(None)
}

impl Matcher<'_> {
    fn step(&mut self) -> Result<(), Failure> {
        self.steps += 1;
        if self.steps < STEPS {
            return Ok(());
        }
        self.steps = 0;
        if (self.may_go_on)() { Ok(()) } else { Err(Failure::Stopped) }
    }

    fn captured(&self) -> Result<Vec<Capture>, Failure> {
        let capture = |&(start, open): &(usize, Open)| match open {
            Open::Len(len) => Ok(Capture::Text(start, len)),
            Open::Place => Ok(Capture::Place(start)),
            Open::Unfinished => Err(Failure::Malformed("unfinished capture")),
        };
        self.captures.iter().map(capture).collect()
    }

    /// Matches the pattern from `p` on at `s` of the text; returns where the match ends.
    fn run(&mut self, s: usize, p: usize) -> Found {
        if self.depth == DEPTH_MAX {
            return Err(Failure::Malformed("pattern too complex"));
        }
        self.depth += 1;
        let found = self.run_here(s, p);
        self.depth -= 1;
        found
    }

    fn run_here(&mut self, mut s: usize, mut p: usize) -> Found {
        loop {
            self.step()?;
            let Some(&byte) = self.pattern.get(p) else { return Ok(Some(s)) };
            match (byte, self.pattern.get(p + 1)) {
                (b'(', Some(b')')) => return self.open(s, p + 2, Open::Place),
                (b'(', _) => return self.open(s, p + 1, Open::Unfinished),
                (b')', _) => return self.close(s, p + 1),
                (b'$', None) => return Ok((s == self.text.len()).then_some(s)),
                (b'%', Some(b'b')) => match self.balance(s, p + 2)? {
                    Some(next) => (s, p) = (next, p + 4),
                    None => return Ok(None),
                },
                (b'%', Some(b'f')) => match self.frontier(s, p + 2)? {
                    Some(next) => p = next,
                    None => return Ok(None),
                },
                (b'%', Some(digit)) if digit.is_ascii_digit() => match self.repeat(s, *digit)? {
                    Some(next) => (s, p) = (next, p + 2),
                    None => return Ok(None),
                },
                _ => {
                    let end = self.class_end(p)?;
                    let is_match = self.is_single(s, p, end);
                    match self.pattern.get(end) {
                        Some(b'?') => {
                            if is_match && let Some(found) = self.run(s + 1, end + 1)? {
                                return Ok(Some(found));
                            }
                            p = end + 1;
                        }
                        Some(b'*') => return self.expand(s, p, end, 0),
                        Some(b'+') if is_match => return self.expand(s, p, end, 1),
                        Some(b'-') => return self.expand_least(s, p, end),
                        Some(b'+') => return Ok(None),
                        _ if is_match => (s, p) = (s + 1, end),
                        _ => return Ok(None),
                    }
                }
            }
        }
    }

    /// As many as there are, then fewer.
    fn expand(&mut self, s: usize, p: usize, end: usize, least: usize) -> Found {
        let mut count = least;
        while self.is_single(s + count, p, end) {
            self.step()?;
            count += 1;
        }
        loop {
            if let Some(found) = self.run(s + count, end + 1)? {
                return Ok(Some(found));
            }
            if count == least {
                return Ok(None);
            }
            count -= 1;
        }
    }

    /// As few as do.
    fn expand_least(&mut self, mut s: usize, p: usize, end: usize) -> Found {
        loop {
            if let Some(found) = self.run(s, end + 1)? {
                return Ok(Some(found));
            }
            if !self.is_single(s, p, end) {
                return Ok(None);
            }
            s += 1;
        }
    }

    fn open(&mut self, s: usize, p: usize, open: Open) -> Found {
        if self.captures.len() == CAPTURES_MAX {
            return Err(Failure::Malformed("too many captures"));
        }
        self.captures.push((s, open));
        let found = self.run(s, p)?;
        if found.is_none() {
            self.captures.pop();
        }
        Ok(found)
    }

    fn close(&mut self, s: usize, p: usize) -> Found {
        let is_open = |(_, open): &(usize, Open)| matches!(open, Open::Unfinished);
        let Some(at) = self.captures.iter().rposition(is_open) else {
            return Err(Failure::Malformed("invalid pattern capture"));
        };
        self.captures[at].1 = Open::Len(s - self.captures[at].0);
        let found = self.run(s, p)?;
        if found.is_none() {
            self.captures[at].1 = Open::Unfinished;
        }
        Ok(found)
    }

    /// `%b()`: up to where the two balance.
    fn balance(&mut self, s: usize, p: usize) -> Found {
        let (Some(&open), Some(&close)) = (self.pattern.get(p), self.pattern.get(p + 1)) else {
            return Err(Failure::Malformed("unbalanced pattern"));
        };
        if self.text.get(s) != Some(&open) {
            return Ok(None);
        }
        let mut depth = 1_usize;
        for at in s + 1..self.text.len() {
            self.step()?;
            let byte = self.text[at];
            if byte == close {
                depth -= 1;
                if depth == 0 {
                    return Ok(Some(at + 1));
                }
            } else if byte == open {
                depth += 1;
            }
        }
        Ok(None)
    }

    /// `%f[set]`: where the set begins. Returns where the pattern goes on.
    fn frontier(&self, s: usize, p: usize) -> Found {
        if self.pattern.get(p) != Some(&b'[') {
            return Err(Failure::Malformed("missing '[' after '%f' in pattern"));
        }
        let end = self.class_end(p)?;
        let before = if s == 0 { 0 } else { self.text[s - 1] };
        let here = self.text.get(s).copied().unwrap_or(0);
        let begins = !self.is_in_set(before, p, end - 1) && self.is_in_set(here, p, end - 1);
        Ok(begins.then_some(end))
    }

    /// `%1`: what was captured once more.
    fn repeat(&mut self, s: usize, digit: u8) -> Found {
        let number = usize::from(digit.wrapping_sub(b'1'));
        let Some(&(start, Open::Len(len))) = self.captures.get(number) else {
            return Err(Failure::Malformed("invalid capture index"));
        };
        let is_same = self.text[s..].starts_with(&self.text[start..start + len]);
        Ok(is_same.then_some(s + len))
    }

    /// Behind the single class at `p`.
    fn class_end(&self, p: usize) -> Result<usize, Failure> {
        match self.pattern[p] {
            b'%' if p + 1 == self.pattern.len() => {
                Err(Failure::Malformed("malformed pattern (ends with '%')"))
            }
            b'%' => Ok(p + 2),
            b'[' => self.set_end(p + 1),
            _ => Ok(p + 1),
        }
    }

    fn set_end(&self, mut p: usize) -> Result<usize, Failure> {
        const MISSING: Failure = Failure::Malformed("malformed pattern (missing ']')");
        if self.pattern.get(p) == Some(&b'^') {
            p += 1;
        }
        // A bracket that comes first is one of the set.
        loop {
            let byte = *self.pattern.get(p).ok_or(MISSING)?;
            p += if byte == b'%' { 2 } else { 1 };
            if self.pattern.get(p).ok_or(MISSING)? == &b']' {
                return Ok(p + 1);
            }
        }
    }

    fn is_single(&self, s: usize, p: usize, end: usize) -> bool {
        let Some(&byte) = self.text.get(s) else { return false };
        match self.pattern[p] {
            b'.' => true,
            b'%' => is_in_class(byte, self.pattern[p + 1]),
            b'[' => self.is_in_set(byte, p, end - 1),
            other => other == byte,
        }
    }

    /// Whether a byte is in the set between the brackets at `p` and `last`.
    fn is_in_set(&self, byte: u8, mut p: usize, last: usize) -> bool {
        let is_negated = self.pattern.get(p + 1) == Some(&b'^');
        p += 1 + usize::from(is_negated);
        while p < last {
            if self.pattern[p] == b'%' {
                if is_in_class(byte, self.pattern[p + 1]) {
                    return !is_negated;
                }
                p += 2;
            } else if self.pattern[p + 1] == b'-' && p + 2 < last {
                if (self.pattern[p]..=self.pattern[p + 2]).contains(&byte) {
                    return !is_negated;
                }
                p += 3;
            } else {
                if self.pattern[p] == byte {
                    return !is_negated;
                }
                p += 1;
            }
        }
        is_negated
    }
}

fn is_in_class(byte: u8, class: u8) -> bool {
    let is_in = match class.to_ascii_lowercase() {
        b'a' => byte.is_ascii_alphabetic(),
        b'c' => byte.is_ascii_control(),
        b'd' => byte.is_ascii_digit(),
        b'l' => byte.is_ascii_lowercase(),
        b'p' => byte.is_ascii_punctuation(),
        b's' => byte.is_ascii_whitespace() || byte == 0x0b,
        b'u' => byte.is_ascii_uppercase(),
        b'w' => byte.is_ascii_alphanumeric(),
        b'x' => byte.is_ascii_hexdigit(),
        b'z' => byte == 0,
        _ => return class == byte,
    };
    is_in != class.is_ascii_uppercase()
}

/// Whether a pattern means itself, so that a plain search does.
pub(crate) fn is_plain(pattern: &[u8]) -> bool {
    !pattern.iter().any(|byte| b"^$*+?.([%-".contains(byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str, pattern: &str) -> Result<Option<Match>, Failure> {
        find(text.as_bytes(), pattern.as_bytes(), 0, &mut || true)
    }

    fn span(text: &str, pattern: &str) -> Option<(usize, usize)> {
        found(text, pattern).unwrap().map(|found| (found.start, found.end))
    }

    #[test]
    fn patterns_match_as_in_lua() {
        for (text, pattern, expected) in [
            ("hello", "l+", Some((2, 4))),
            ("hello", "^l", None),
            ("hello", "o$", Some((4, 5))),
            ("a$b", "$b", Some((1, 3))),
            ("key = value", "%w+%s*=%s*%w+", Some((0, 11))),
            ("aaa", "a-", Some((0, 0))),
            ("<a><b>", "<.->", Some((0, 3))),
            ("<a><b>", "<.*>", Some((0, 6))),
            ("f(a(b)c)d", "%b()", Some((1, 8))),
            ("THE (quick) fox", "%f[%a]%a+", Some((0, 3))),
            ("x]y", "[]]", Some((1, 2))),
            ("x^y", "[x^]+", Some((0, 2))),
            ("abc-", "[a-c]+", Some((0, 3))),
            ("abc-", "[^a-c]", Some((3, 4))),
            ("a-", "[a-]+", Some((0, 2))),
            ("0x1F", "%x+", Some((0, 1))),
            ("abab", "(ab)%1", Some((0, 4))),
            ("ab", "ab?c?", Some((0, 2))),
            ("", "", Some((0, 0))),
            ("", "a", None),
            ("a.b", "%.", Some((1, 2))),
        ] {
            assert_eq!(span(text, pattern), expected, "{text} {pattern}");
        }
        let match_of = found("k=v", "()(%w)=(%w)").unwrap().unwrap();
        let captures = [Capture::Place(0), Capture::Text(0, 1), Capture::Text(2, 1)];
        assert_eq!(match_of.captures, captures);
    }

    #[test]
    fn wrong_patterns_are_refused_in_the_words_of_lua() {
        for (pattern, expected) in [
            ("%", "malformed pattern (ends with '%')"),
            ("[a", "malformed pattern (missing ']')"),
            ("[]", "malformed pattern (missing ']')"),
            ("[%", "malformed pattern (missing ']')"),
            ("(", "unfinished capture"),
            (")", "invalid pattern capture"),
            ("%1", "invalid capture index"),
            ("%b", "unbalanced pattern"),
            ("%f", "missing '[' after '%f' in pattern"),
        ] {
            assert_eq!(found("aaa", pattern), Err(Failure::Malformed(expected)), "{pattern}");
        }
        assert_eq!(found("", &"(".repeat(40)), Err(Failure::Malformed("too many captures")));
    }

    #[test]
    fn a_search_ends_when_it_is_told_to_and_goes_no_deeper_than_it_may() {
        let text = "a".repeat(10_000);
        let slow = ".-".repeat(50) + "b";
        let mut questions = 0;
        let mut may_go_on = || {
            questions += 1;
            questions < 10
        };
        let outcome = find(text.as_bytes(), slow.as_bytes(), 0, &mut may_go_on);
        assert_eq!((outcome, questions), (Err(Failure::Stopped), 10));
        let deep = found(&text, &"a?".repeat(10_000));
        assert_eq!(deep, Err(Failure::Malformed("pattern too complex")));
    }

    proptest::proptest! {
        #[test]
        fn no_pattern_panics(text in "[ab()]{0,12}", pattern in r"[\]\[ab%().*+?^$f1-]{0,12}") {
            let mut left = 100;
            let _ = find(text.as_bytes(), pattern.as_bytes(), 0, &mut || { left -= 1; left > 0 });
        }
    }
}

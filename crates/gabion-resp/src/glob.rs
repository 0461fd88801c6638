//! Patterns of KEYS, SCAN … MATCH and CONFIG GET.
//!
//! ```text
//!   *      any bytes, none included        [abc] [a-z] [^a]   one byte of a class
//!   ?      any one byte                    \x                 the byte x itself
//! ```
//!
//! Redis's matcher calls itself at each `*`, so a pattern of many stars costs exponential time.
//! This one remembers the last star only: when the pattern after it fails, the star takes one byte
//! more. No earlier star needs to be tried again: the last one can take everything that it could
//! take. Time is at most pattern × text.

/// Whether `pattern` matches the whole of `text`, as Redis's `stringmatchlen` defines it.
#[must_use]
pub fn glob_match(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    // The pattern after the last star, and the text that the star has not taken yet.
    let mut retry: Option<(usize, usize)> = None;
    loop {
        let advanced = match pattern.get(p) {
            Some(b'*') => {
                p += 1;
                retry = Some((p, t));
                continue;
            }
            Some(_) => text.get(t).and_then(|&byte| match_one(&pattern[p..], byte)),
            None if t == text.len() => return true,
            None => None,
        };
        match (advanced, retry) {
            (Some(used), _) => {
                p += used;
                t += 1;
            }
            (None, Some((after_star, taken))) if taken < text.len() => {
                retry = Some((after_star, taken + 1));
                (p, t) = (after_star, taken + 1);
            }
            _ => return false,
        }
    }
}

/// The bytes that every match of `pattern` begins with: a range of keys to look in.
#[must_use]
pub fn glob_prefix(pattern: &[u8]) -> &[u8] {
    let end = pattern.iter().position(|byte| matches!(byte, b'*' | b'?' | b'[' | b'\\'));
    &pattern[..end.unwrap_or(pattern.len())]
}

/// Matches one byte against the element at the front of `pattern` (not a star); returns the
/// element's length.
fn match_one(pattern: &[u8], byte: u8) -> Option<usize> {
    match pattern {
        [b'?', ..] => Some(1),
        [b'[', class @ ..] => {
            let (is_in, len) = match_class(class, byte);
            is_in.then_some(1 + len)
        }
        [b'\\', literal, ..] => (*literal == byte).then_some(2),
        [literal, ..] => (*literal == byte).then_some(1),
        [] => None,
    }
}

/// Whether `byte` is in the class that follows a `[`, and the length of the class with its `]`. An
/// unclosed class ends with the pattern, as in Redis.
fn match_class(class: &[u8], byte: u8) -> (bool, usize) {
    let negated = class.first() == Some(&b'^');
    let mut at = usize::from(negated);
    let mut found = false;
    loop {
        match &class[at..] {
            [] => break,
            [b'\\', literal, ..] => {
                found |= *literal == byte;
                at += 2;
            }
            [b']', ..] => {
                at += 1;
                break;
            }
            [from, b'-', to, ..] => {
                let (low, high) = if from <= to { (from, to) } else { (to, from) };
                found |= (low..=high).contains(&&byte);
                at += 3;
            }
            [literal, ..] => {
                found |= *literal == byte;
                at += 1;
            }
        }
    }
    (found != negated, at)
}

#[cfg(test)]
mod tests;

//! The names of files that are mirrored: globs with `*` and `?`.
//!
//! A glob without `/` is held against the last part of a path, one with `/` against the whole path
//! below the root; there too `*` does not pass a `/`.

/// Bytes of all globs together at most.
pub const LEN_MAX: usize = 1024;

/// True if one of the globs, which commas divide, matches a path below the root.
#[must_use]
pub fn matches(globs: &[u8], path: &[u8]) -> bool {
    globs.split(|byte| *byte == b',').any(|glob| {
        let whole = glob.contains(&b'/');
        glob_matches(glob, if whole { path } else { last(path) })
    })
}

/// True if a file with that last part of its path might match: all that is known before a path is
/// resolved. Never false for one that [`matches()`] takes.
#[must_use]
pub fn may_match(globs: &[u8], path: &[u8]) -> bool {
    let name = last(path);
    globs.split(|byte| *byte == b',').any(|glob| glob_matches(last(glob), name))
}

fn last(path: &[u8]) -> &[u8] {
    path.rsplit(|byte| *byte == b'/').next().unwrap_or_default()
}

/// The last `*` may take one byte more whenever the rest does not fit; those before it need not, as
/// whatever they could take it can take too.
fn glob_matches(glob: &[u8], text: &[u8]) -> bool {
    let (mut at, mut in_text) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while in_text < text.len() {
        let byte = text[in_text];
        match glob.get(at) {
            Some(b'*') => {
                star = Some((at + 1, in_text));
                at += 1;
            }
            Some(b'?') if byte != b'/' => (at, in_text) = (at + 1, in_text + 1),
            Some(same) if *same == byte => (at, in_text) = (at + 1, in_text + 1),
            _ => match star {
                Some((after, taken)) if text[taken] != b'/' => {
                    star = Some((after, taken + 1));
                    (at, in_text) = (after, taken + 1);
                }
                _ => return false,
            },
        }
    }
    glob[at..].iter().all(|byte| *byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globs_match_names_or_whole_paths() {
        for (glob, path, expected) in [
            ("*.aof", "dir/a.aof", true),
            ("*.aof", "a.aof.tmp", false),
            ("*-wal,*-journal", "x/db-journal", true),
            ("*.incr.*", "appendonly.aof.1.incr.aof", true),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("pg_wal/*", "pg_wal/000000010000000000000001", true),
            ("pg_wal/*", "pg_wal/archive_status/x", false),
            ("pg_wal/*", "x", false),
            ("*", "anything", true),
            ("**a*", "bab", true),
            ("*ab", "aab", true),
            ("", "a", false),
            ("log/?", "log//", false),
        ] {
            let (glob, path) = (glob.as_bytes(), path.as_bytes());
            assert_eq!(matches(glob, path), expected, "{glob:?} {path:?}");
            assert!(may_match(glob, path) || !expected);
        }
        assert!(may_match(b"pg_wal/*", b"x"), "the directory is not known yet");
    }
}

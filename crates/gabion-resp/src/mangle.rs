//! Changes of valid input, line by line, for tests of both parsers.

use alloc::vec::Vec;
use proptest::prelude::*;

/// The change of a line, or of the bytes from it on.
#[derive(Clone, Debug)]
pub(crate) enum Change {
    /// Another number behind its first byte.
    Number(prop::sample::Index, &'static str),
    /// Another first byte.
    Kind(prop::sample::Index, u8),
    Repeat(prop::sample::Index),
    Drop(prop::sample::Index),
    Swap(prop::sample::Index, prop::sample::Index),
    Cut(prop::sample::Index),
}

/// Counts and lengths that a peer may claim, some of them no numbers.
const NUMBERS: [&str; 18] = [
    "-1",
    "0",
    "1",
    "2",
    "8",
    "64",
    "1048576",
    "1048577",
    "8388608",
    "8388609",
    "536870912",
    "536870913",
    "2147483647",
    "4294967295",
    "9223372036854775807",
    "9223372036854775808",
    "+1",
    "",
];

pub(crate) fn change() -> impl Strategy<Value = Change> {
    let index = any::<prop::sample::Index>;
    prop_oneof![
        3 => (index(), prop::sample::select(&NUMBERS[..])).prop_map(|(at, n)| Change::Number(at, n)),
        1 => (index(), prop::sample::select(&b"+-:$*%~>|_#,(!="[..]))
            .prop_map(|(at, kind)| Change::Kind(at, kind)),
        1 => index().prop_map(Change::Repeat),
        1 => index().prop_map(Change::Drop),
        1 => (index(), index()).prop_map(|(a, b)| Change::Swap(a, b)),
        1 => index().prop_map(Change::Cut),
    ]
}

/// `wire` after the changes.
pub(crate) fn mangle(wire: &[u8], changes: &[Change]) -> Vec<u8> {
    let mut lines: Vec<Vec<u8>> =
        wire.split_inclusive(|&byte| byte == b'\n').map(<[u8]>::to_vec).collect();
    for change in changes.iter().filter(|_| !wire.is_empty()) {
        let count = lines.len().max(1);
        match change {
            Change::Number(at, number) => {
                if let Some(line) = lines.get_mut(at.index(count)) {
                    line.truncate(1);
                    line.extend_from_slice(number.as_bytes());
                    line.extend_from_slice(b"\r\n");
                }
            }
            Change::Kind(at, kind) => {
                if let Some(byte) = lines.get_mut(at.index(count)).and_then(|line| line.first_mut())
                {
                    *byte = *kind;
                }
            }
            Change::Repeat(at) => {
                if let Some(line) = lines.get(at.index(count)).cloned() {
                    lines.insert(at.index(count), line);
                }
            }
            Change::Drop(at) if !lines.is_empty() => drop(lines.remove(at.index(count))),
            Change::Swap(a, b) if !lines.is_empty() => lines.swap(a.index(count), b.index(count)),
            Change::Cut(at) => {
                let bytes = lines.concat();
                let end = at.index(bytes.len() + 1);
                lines = bytes[..end].split_inclusive(|&b| b == b'\n').map(<[u8]>::to_vec).collect();
            }
            Change::Drop(_) | Change::Swap(..) => {}
        }
    }
    lines.concat()
}

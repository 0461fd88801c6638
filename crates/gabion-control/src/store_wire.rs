//! Questions to a [`Store`](crate::Store) of another process, and its answers, in bytes. A client
//! asks one at a time over a connection that it makes; the first is a greeting.
//!
//! ```text
//!   u32 bytes that follow | u16 version, 1 | u8 kind | u8 zero | u64 number | body
//!   | u32 CRC32C of all before
//!
//!   kind  question  body                            kind  answer   body
//!      1  Greet     token                             11  Welcome
//!      2  Get       name                              12  Got      found
//!      3  List      prefix, the last name before      13  Listed   u8 more | u32 count, each:
//!      4  Swap      name | version u64 | value                     name | found
//!                                                     14  Swapped  u8 stored | version u64
//!                                                                  or, if lost: found
//!                                                     15  Failed   u8 refused | text
//!
//!   texts and values: prefixed with their length     found: u8 0: none, or 1 | version u64 | value
//! ```
//!
//! The number is the client's, and comes back. Answers to List are pages: the client asks again
//! from the last name on. Whether a question that failed without being refused took effect is not
//! known.

use crate::frame::{CRC_LEN, Frame, LEN_LEN};
use crate::store::{Swapped, Version, Versioned};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use gabion_base::codec::{Put, Reader};
use gabion_base::{Error, ErrorKind, Result};

/// Longest name or prefix in bytes.
pub const NAME_LEN_MAX: usize = 1024;
/// Longest value in bytes.
pub const VALUE_LEN_MAX: usize = 64 << 10;
/// Longest token in bytes.
pub const TOKEN_LEN_MAX: usize = 1024;
/// Longest message in bytes, its length aside: a page, and one value more.
pub const MESSAGE_LEN_MAX: usize = 256 << 10;
/// A page of a list ends behind the entry that brings it to so many bytes.
const PAGE_LEN: usize = 128 << 10;
/// Longest text of a failure in bytes; a longer one is cut.
const TEXT_LEN_MAX: usize = 1024;

const WHAT: &str = "message of a store";
const FRAME: Frame = Frame { what: WHAT, version: 1, head_len: HEAD_LEN, len_max: MESSAGE_LEN_MAX };
const HEAD_LEN: usize = 12;

const _: () = assert!(PAGE_LEN + NAME_LEN_MAX + VALUE_LEN_MAX + 64 < MESSAGE_LEN_MAX);

/// Question of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question<'a> {
    /// The first of a connection.
    Greet {
        /// Proof of the client, if the store asks for one.
        token: &'a [u8],
    },
    /// The value of a name.
    Get {
        /// The name.
        name: &'a str,
    },
    /// A page of the names that begin with a prefix, in their order.
    List {
        /// The prefix.
        prefix: &'a str,
        /// Only names behind this one; empty for the first page.
        after: &'a str,
    },
    /// A compare-and-set.
    Swap {
        /// The name.
        name: &'a str,
        /// The version that it must have.
        expected: Version,
        /// The new value.
        value: &'a [u8],
    },
}

/// Answer of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The client may ask.
    Welcome,
    /// The value, if there is one.
    Got(Option<Versioned>),
    /// A page, and whether more follow.
    Listed(Vec<(String, Versioned)>, bool),
    /// Outcome of a compare-and-set.
    Swapped(Swapped),
    /// It was not done, or nobody knows.
    Failed {
        /// It was not done, and will not be if it is asked again.
        is_refused: bool,
        /// Why.
        text: String,
    },
}

impl Question<'_> {
    /// The kinds, as words.
    pub const KINDS: &'static [&'static str] = &["greet", "get", "list", "compare_and_set"];
    /// The place of compare-and-sets among them.
    pub const SWAP: usize = 3;

    /// The place of its kind among [`Self::KINDS`].
    #[must_use]
    pub const fn kind(&self) -> usize {
        match self {
            Self::Greet { .. } => 0,
            Self::Get { .. } => 1,
            Self::List { .. } => 2,
            Self::Swap { .. } => Self::SWAP,
        }
    }

    /// The question in bytes.
    ///
    /// # Errors
    /// Limit exceeded for a name, a token or a value that is too long.
    pub fn encode(&self, number: u64) -> Result<Vec<u8>> {
        let mut out = begin(self.kind() as u8 + 1, number);
        match self {
            Self::Greet { token } => put(&mut out, "token", token, TOKEN_LEN_MAX)?,
            Self::Get { name } => put(&mut out, "name", name.as_bytes(), NAME_LEN_MAX)?,
            Self::List { prefix, after } => {
                put(&mut out, "prefix", prefix.as_bytes(), NAME_LEN_MAX)?;
                put(&mut out, "name", after.as_bytes(), NAME_LEN_MAX)?;
            }
            Self::Swap { name, expected, value } => {
                put(&mut out, "name", name.as_bytes(), NAME_LEN_MAX)?;
                out.put_u64(expected.0);
                put(&mut out, "value", value, VALUE_LEN_MAX)?;
            }
        }
        Ok(end(out))
    }
}

impl<'a> Question<'a> {
    /// The first question of what was received so far, its number and its length in bytes; nothing
    /// while it is not whole.
    ///
    /// # Errors
    /// Limit exceeded for a length that no message has; corruption; unsupported for another
    /// version. The connection is of no use then.
    pub fn decode(bytes: &'a [u8]) -> Result<Option<(Self, u64, usize)>> {
        let Some((kind, number, mut r, len)) = open(bytes)? else { return Ok(None) };
        let question = match kind {
            1 => Self::Greet { token: r.prefixed(TOKEN_LEN_MAX)? },
            2 => Self::Get { name: text(&mut r)? },
            3 => Self::List { prefix: text(&mut r)?, after: text(&mut r)? },
            4 => Self::Swap {
                name: text(&mut r)?,
                expected: Version(r.u64()?),
                value: r.prefixed(VALUE_LEN_MAX)?,
            },
            _ => return Err(Error::unsupported(format!("{WHAT}: {kind} is no question"))),
        };
        r.finish()?;
        Ok(Some((question, number, len)))
    }
}

impl Answer {
    /// The page of a list that goes with these entries, which begin behind the last page.
    #[must_use]
    pub fn page(entries: impl IntoIterator<Item = (String, Versioned)>) -> Self {
        let (mut page, mut len) = (Vec::new(), 0);
        for (name, found) in entries {
            if len >= PAGE_LEN {
                return Self::Listed(page, true);
            }
            len += name.len() + found.value.len() + 32;
            page.push((name, found));
        }
        Self::Listed(page, false)
    }

    /// A failure.
    #[must_use]
    pub fn failed(error: &Error) -> Self {
        let refused = [ErrorKind::InvalidInput, ErrorKind::LimitExceeded, ErrorKind::Unsupported];
        Self::Failed { is_refused: refused.contains(&error.kind()), text: error.to_string() }
    }

    /// The answer in bytes.
    ///
    /// # Errors
    /// Limit exceeded for a name or a value of the store that is too long for an answer.
    pub fn encode(&self, number: u64) -> Result<Vec<u8>> {
        let kind = match self {
            Self::Welcome => 11,
            Self::Got(_) => 12,
            Self::Listed(..) => 13,
            Self::Swapped(_) => 14,
            Self::Failed { .. } => 15,
        };
        let mut out = begin(kind, number);
        match self {
            Self::Welcome => {}
            Self::Got(found) => put_found(&mut out, found.as_ref())?,
            Self::Listed(entries, more) => {
                out.put_u8(u8::from(*more));
                out.put_u32(entries.len() as u32);
                for (name, found) in entries {
                    put(&mut out, "name", name.as_bytes(), NAME_LEN_MAX)?;
                    put_found(&mut out, Some(found))?;
                }
            }
            Self::Swapped(Swapped::Stored(version)) => {
                out.put_u8(1);
                out.put_u64(version.0);
            }
            Self::Swapped(Swapped::Lost(found)) => {
                out.put_u8(0);
                put_found(&mut out, found.as_ref())?;
            }
            Self::Failed { is_refused, text } => {
                out.put_u8(u8::from(*is_refused));
                out.put_prefixed(crate::record::cut(text, TEXT_LEN_MAX).as_bytes());
            }
        }
        Ok(end(out))
    }

    /// As [`Question::decode`].
    ///
    /// # Errors
    /// As there.
    pub fn decode(bytes: &[u8]) -> Result<Option<(Self, u64, usize)>> {
        let Some((kind, number, mut r, len)) = open(bytes)? else { return Ok(None) };
        let answer = match kind {
            11 => Self::Welcome,
            12 => Self::Got(found(&mut r)?),
            13 => {
                let (more, count) = (r.u8()? != 0, r.u32()?);
                let mut entries = Vec::new();
                for _ in 0..count {
                    let name = text(&mut r)?.to_string();
                    let found = found(&mut r)?;
                    let found = found.ok_or_else(|| Error::corruption(no_value(&name)))?;
                    entries.push((name, found));
                }
                Self::Listed(entries, more)
            }
            14 => Self::Swapped(match r.u8()? {
                0 => Swapped::Lost(found(&mut r)?),
                _ => Swapped::Stored(Version(r.u64()?)),
            }),
            15 => {
                let is_refused = r.u8()? != 0;
                Self::Failed { is_refused, text: utf8(r.prefixed(TEXT_LEN_MAX)?)?.to_string() }
            }
            _ => return Err(Error::unsupported(format!("{WHAT}: {kind} is no answer"))),
        };
        r.finish()?;
        Ok(Some((answer, number, len)))
    }
}

fn no_value(name: &str) -> String {
    format!("{WHAT}: '{name}' is listed without a value")
}

fn begin(kind: u8, number: u64) -> Vec<u8> {
    let mut out = FRAME.begin(128);
    out.put_u16(u16::from(kind));
    out.put_u64(number);
    out
}

fn end(out: Vec<u8>) -> Vec<u8> {
    let len = out.len() - LEN_LEN + CRC_LEN;
    assert!(len <= MESSAGE_LEN_MAX, "a message of {len} bytes");
    Frame::end(out)
}

/// Kind, number, body and length of the first message.
fn open(bytes: &[u8]) -> Result<Option<(u8, u64, Reader<'_>, usize)>> {
    let Some((mut r, len)) = FRAME.open(bytes)? else { return Ok(None) };
    match r.u16()?.to_le_bytes() {
        [kind, 0] => Ok(Some((kind, r.u64()?, r, len))),
        [_, flag] => Err(Error::unsupported(format!("{WHAT}: flag {flag} is unknown"))),
    }
}

fn put(out: &mut Vec<u8>, what: &str, bytes: &[u8], limit: usize) -> Result<()> {
    if bytes.len() > limit {
        let len = bytes.len();
        return Err(Error::limit(format!("{WHAT}: a {what} of {len} bytes, limit {limit}")));
    }
    out.put_prefixed(bytes);
    Ok(())
}

fn put_found(out: &mut Vec<u8>, found: Option<&Versioned>) -> Result<()> {
    out.put_u8(u8::from(found.is_some()));
    let Some(found) = found else { return Ok(()) };
    out.put_u64(found.version.0);
    put(out, "value", &found.value, VALUE_LEN_MAX)
}

fn found(r: &mut Reader<'_>) -> Result<Option<Versioned>> {
    if r.u8()? == 0 {
        return Ok(None);
    }
    let version = Version(r.u64()?);
    Ok(Some(Versioned { version, value: r.prefixed(VALUE_LEN_MAX)?.to_vec() }))
}

fn text<'a>(r: &mut Reader<'a>) -> Result<&'a str> {
    utf8(r.prefixed(NAME_LEN_MAX)?)
}

fn utf8(bytes: &[u8]) -> Result<&str> {
    let text = core::str::from_utf8(bytes);
    text.map_err(|_| Error::corruption(format!("{WHAT}: a text is not UTF-8")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    fn questions() -> Vec<Question<'static>> {
        vec![
            Question::Greet { token: b"secret" },
            Question::Get { name: "ncl/apps/a/map" },
            Question::List { prefix: "ncl/peers/", after: "" },
            Question::Swap { name: "x", expected: Version(7), value: &[1, 2, 3] },
        ]
    }

    fn answers() -> Vec<Answer> {
        let found = Versioned { version: Version(9), value: vec![4, 5] };
        vec![
            Answer::Welcome,
            Answer::Got(None),
            Answer::Got(Some(found.clone())),
            Answer::Listed(vec![("a".to_string(), found.clone())], true),
            Answer::Swapped(Swapped::Stored(Version(1))),
            Answer::Swapped(Swapped::Lost(None)),
            Answer::Swapped(Swapped::Lost(Some(found))),
            Answer::failed(&Error::limit("too much")),
        ]
    }

    #[test]
    fn messages_are_read_as_they_were_written_once_they_are_whole() {
        for question in questions() {
            let bytes = question.encode(5).expect("within limits");
            assert_eq!(Question::decode(&bytes).expect("whole"), Some((question, 5, bytes.len())));
            for cut in 0..bytes.len() {
                assert_eq!(Question::decode(&bytes[..cut]).expect("cut"), None, "{cut} bytes");
            }
            assert!(Answer::decode(&bytes).is_err(), "a question is no answer");
        }
        for answer in answers() {
            let bytes = answer.encode(6).expect("within limits");
            let len = bytes.len();
            assert_eq!(Answer::decode(&bytes).expect("whole"), Some((answer, 6, len)));
            for cut in 0..len {
                assert_eq!(Answer::decode(&bytes[..cut]).expect("cut"), None, "{cut} bytes");
            }
        }
    }

    #[test]
    fn a_flipped_bit_and_a_length_that_no_message_has_are_refused() {
        for question in questions() {
            let bytes = question.encode(5).expect("within limits");
            for bit in 0..bytes.len() * 8 {
                let mut flipped = bytes.clone();
                flipped[bit / 8] ^= 1 << (bit % 8);
                // A length that has grown waits for the rest.
                let read = Question::decode(&flipped);
                assert!(matches!(read, Err(_) | Ok(None)), "bit {bit}: {read:?}");
            }
        }
        for len in [0, 15, MESSAGE_LEN_MAX as u32 + 1, u32::MAX] {
            let error = Question::decode(&len.to_le_bytes()).expect_err("no message");
            assert_eq!(error.kind(), ErrorKind::LimitExceeded, "{error}");
        }
        let long = "n".repeat(NAME_LEN_MAX + 1);
        let error = Question::Get { name: &long }.encode(1).expect_err("too long");
        assert!(error.message().contains("a name of 1025 bytes, limit 1024"), "{error}");
        let value = vec![0; VALUE_LEN_MAX + 1];
        let swap = Question::Swap { name: "n", expected: Version::NONE, value: &value };
        assert!(swap.encode(1).is_err());
    }

    #[test]
    fn the_bytes_are_those_that_are_drawn() {
        let bytes = Question::Get { name: "ab" }.encode(3).expect("within limits");
        assert_eq!(bytes[..19], [19, 0, 0, 0, 1, 0, 2, 0, 3, 0, 0, 0, 0, 0, 0, 0, 2, b'a', b'b']);
        assert_eq!(bytes.len(), 23);
    }

    #[test]
    fn a_page_ends_before_it_is_longer_than_a_message_and_says_that_more_follow() {
        let value = Versioned { version: Version(1), value: vec![0; VALUE_LEN_MAX] };
        let entries = (0..9).map(|at| (format!("{at}"), value.clone()));
        let page = Answer::page(entries);
        let Answer::Listed(listed, more) = &page else { panic!("{page:?} is no page") };
        assert_eq!((listed.len(), *more), (2, true));
        page.encode(1).expect("a page fits");
        assert_eq!(Answer::page([]), Answer::Listed(Vec::new(), false));
    }
}

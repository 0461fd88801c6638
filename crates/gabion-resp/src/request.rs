//! Requests of clients, read from a growing buffer.
//!
//! ```text
//!   multibulk   *<count>CRLF  then <count> times  $<len>CRLF <len bytes> CRLF
//!   inline      words separated by blanks, "quoted" with escapes or 'quoted', ended by LF or CRLF
//! ```
//!
//! A count of zero or less is an empty request and is skipped, as in Redis. Redis does not look at
//! the two bytes after a bulk string. Here they must be CR LF, so that a client out of step gets an
//! error at once and not another's data.
//!
//! A request over a limit of [`crate::limits`] and within Redis's own is read to its end and
//! dropped as it comes. Its command is answered with an error, and the connection lives.

use crate::args::Args;
use crate::error::ProtocolError;
use crate::limits::{
    BULK_LEN_DROPPED_MAX, BULK_LEN_MAX, ELEMENTS_MAX, HEADER_LEN_MAX, INLINE_LEN_MAX,
    REQUEST_LEN_MAX,
};
use alloc::boxed::Box;
use alloc::vec::Vec;
use bytes::{Buf, Bytes, BytesMut};
use gabion_base::number::parse_i64;

/// One request: the command's name and its arguments, never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The name (in the client's own case) and its arguments.
    pub args: Args,
}

/// A request that was over a limit: it was read and dropped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TooLarge {
    /// The command's name; empty where the name itself is longer than any.
    pub name: Bytes,
    /// The limit that was passed first.
    pub excess: Excess,
}

/// The limit that a request has passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Excess {
    /// An argument is longer than [`BULK_LEN_MAX`].
    Argument {
        /// Its place; the name is argument 0.
        index: usize,
        /// How many arguments there are, with the name.
        count: usize,
        /// Its length in bytes.
        len: usize,
    },
    /// The arguments are together longer than [`REQUEST_LEN_MAX`].
    Sum {
        /// Their length in bytes.
        len: u64,
    },
}

/// The element at the front of a buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Incoming {
    /// A request.
    Request(Request),
    /// A request that was too large.
    TooLarge(TooLarge),
}

/// Lengths above which a request is dropped, and one above which the connection ends.
#[derive(Clone, Copy, Debug)]
struct Caps {
    bulk: usize,
    request: usize,
    dropped: usize,
}

impl Default for Caps {
    fn default() -> Self {
        Self { bulk: BULK_LEN_MAX, request: REQUEST_LEN_MAX, dropped: BULK_LEN_DROPPED_MAX }
    }
}

/// Longest kept name of a request that is too large. No command has a longer name, and an error
/// shows no more of it.
const NAME_LEN_MAX: usize = 128;

/// Reads requests off the front of a buffer. One per connection.
///
/// Between two calls the caller may only append to the buffer: the parser remembers how far it has
/// read. After an error the caller closes the connection.
#[derive(Debug, Default)]
pub struct RequestParser {
    /// Multibulk: bytes understood so far. Inline: bytes that hold no line end.
    position: usize,
    /// Arguments that the multibulk request has, and still lacks; 0 outside of one.
    count: usize,
    missing: usize,
    /// Length of the bulk string whose header has been read; if it is dropped, the rest to come.
    bulk: Option<usize>,
    /// The places in the buffer of the arguments found so far.
    ranges: Vec<(u32, u32)>,
    /// Sum of the arguments' lengths.
    bytes: u64,
    /// The request at hand is dropped; its sum is known at its end.
    dropped: Option<Box<TooLarge>>,
    caps: Caps,
}

impl RequestParser {
    /// A parser at the beginning of a connection.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A parser with short limits. Above `bulk` bytes in an argument or `request` in all a request
    /// is dropped; above `dropped` in an argument the connection ends.
    #[cfg(test)]
    fn with_caps(bulk: usize, request: usize, dropped: usize) -> Self {
        Self { caps: Caps { bulk, request, dropped }, ..Self::default() }
    }

    /// The bytes known to be missing for the current request when the buffer holds `buffered`
    /// bytes: a hint for the size of the next read, 0 when unknown.
    #[must_use]
    pub fn wanted(&self, buffered: usize) -> usize {
        if self.dropped.is_some() {
            return 0;
        }
        let end = self.bulk.map_or(0, |len| self.position + len + 2);
        end.saturating_sub(buffered)
    }

    /// Takes the next whole request off `buffer`. `None`: more bytes are needed.
    ///
    /// # Errors
    /// Bytes that are no request, or over a cap of [`crate::limits`].
    pub fn parse(&mut self, buffer: &mut BytesMut) -> Result<Option<Incoming>, ProtocolError> {
        loop {
            if self.missing > 0 {
                return self.multibulk(buffer);
            }
            match buffer.first() {
                None => return Ok(None),
                Some(b'*') => {
                    let too_long = ProtocolError::MultibulkHeaderTooLong;
                    let Some((line, end)) = header(buffer, 0, too_long)? else { return Ok(None) };
                    let count = parse_i64(line).ok_or(ProtocolError::InvalidMultibulkLength)?;
                    if count > ELEMENTS_MAX as i64 {
                        return Err(ProtocolError::TooManyArguments(count));
                    }
                    if count <= 0 {
                        buffer.advance(end);
                        continue;
                    }
                    self.count = count as usize;
                    self.missing = self.count;
                    self.position = end;
                }
                Some(_) => match self.inline(buffer)? {
                    Some(args) if args.is_empty() => {}
                    Some(args) => return Ok(Some(Incoming::Request(Request { args }))),
                    None => return Ok(None),
                },
            }
        }
    }

    fn multibulk(&mut self, buffer: &mut BytesMut) -> Result<Option<Incoming>, ProtocolError> {
        if self.dropped.is_some() {
            return self.drop_on(buffer);
        }
        while self.missing > 0 {
            let len = match self.bulk {
                Some(len) => len,
                None => match self.bulk_header(buffer)? {
                    Some(len) if len > self.caps.bulk || self.bytes > self.caps.request as u64 => {
                        self.begin_to_drop(buffer, len);
                        return self.drop_on(buffer);
                    }
                    Some(len) => len,
                    None => return Ok(None),
                },
            };
            let (start, end) = (self.position, self.position + len);
            let Some(line_end) = buffer.get(end..end + 2) else {
                self.bulk = Some(len);
                return Ok(None);
            };
            if line_end != b"\r\n" {
                return Err(ProtocolError::ExpectedLineEnd);
            }
            self.ranges.push((start as u32, end as u32));
            self.position = end + 2;
            self.bulk = None;
            self.missing -= 1;
        }
        Ok(Some(Incoming::Request(self.take(buffer))))
    }

    /// Reads `$<len>CRLF` at the position and moves behind it.
    #[inline(always)]
    fn bulk_header(&mut self, buffer: &BytesMut) -> Result<Option<usize>, ProtocolError> {
        match buffer.get(self.position) {
            None => return Ok(None),
            Some(b'$') => {}
            Some(&other) => return Err(ProtocolError::ExpectedDollar(other)),
        }
        let too_long = ProtocolError::BulkHeaderTooLong;
        let Some((line, end)) = header(buffer, self.position, too_long)? else { return Ok(None) };
        let len = parse_i64(line).ok_or(ProtocolError::InvalidBulkLength)?;
        if len < 0 {
            return Err(ProtocolError::InvalidBulkLength);
        }
        if len > self.caps.dropped as i64 {
            return Err(ProtocolError::BulkTooLong { len, max: self.caps.dropped });
        }
        self.bytes += len as u64;
        self.position = end;
        Ok(Some(len as usize))
    }

    /// With the header of this bulk string the current request is over a limit: its bytes so far
    /// are dropped, and so will be the rest.
    #[cold]
    fn begin_to_drop(&mut self, buffer: &mut BytesMut, len: usize) {
        let name = self.ranges.first().map(|&(start, end)| &buffer[start as usize..end as usize]);
        let name = name.filter(|name| name.len() <= NAME_LEN_MAX).unwrap_or_default();
        let excess = if len > self.caps.bulk {
            Excess::Argument { index: self.ranges.len(), count: self.count, len }
        } else {
            Excess::Sum { len: 0 }
        };
        let dropped = TooLarge { name: Bytes::copy_from_slice(name), excess };
        self.dropped = Some(Box::new(dropped));
        self.ranges = Vec::new();
        self.bulk = Some(len);
        buffer.advance(self.position);
        self.position = 0;
    }

    /// Reads on in a request that is dropped. The position stays at the front of the buffer.
    #[cold]
    fn drop_on(&mut self, buffer: &mut BytesMut) -> Result<Option<Incoming>, ProtocolError> {
        while self.missing > 0 {
            let len = match self.bulk {
                Some(len) => len,
                None => match self.bulk_header(buffer)? {
                    Some(len) => {
                        buffer.advance(self.position);
                        self.position = 0;
                        len
                    }
                    None => return Ok(None),
                },
            };
            let there = len.min(buffer.len());
            buffer.advance(there);
            self.bulk = Some(len - there);
            let line_end = if there == len { buffer.get(..2) } else { None };
            let Some(line_end) = line_end else { return Ok(None) };
            if line_end != b"\r\n" {
                return Err(ProtocolError::ExpectedLineEnd);
            }
            buffer.advance(2);
            self.bulk = None;
            self.missing -= 1;
        }
        let sum = core::mem::take(&mut self.bytes);
        Ok(self.dropped.take().map(|mut dropped| {
            if let Excess::Sum { len } = &mut dropped.excess {
                *len = sum;
            }
            Incoming::TooLarge(*dropped)
        }))
    }

    /// Takes the whole request off the front of the buffer; they share the memory.
    fn take(&mut self, buffer: &mut BytesMut) -> Request {
        let whole = buffer.split_to(self.position).freeze();
        let mut args = Args::with_room(self.ranges.len());
        for &(start, end) in &self.ranges {
            args.push(whole.slice(start as usize..end as usize));
        }
        self.ranges.clear();
        // A request of a million arguments leaves its table behind; do not keep it for ever.
        self.ranges.shrink_to(64);
        self.position = 0;
        self.bytes = 0;
        Request { args }
    }

    fn inline(&mut self, buffer: &mut BytesMut) -> Result<Option<Args>, ProtocolError> {
        let searched = self.position;
        let Some(found) = buffer[searched..].iter().position(|&byte| byte == b'\n') else {
            if buffer.len() > INLINE_LEN_MAX {
                return Err(ProtocolError::InlineTooLong);
            }
            self.position = buffer.len();
            return Ok(None);
        };
        self.position = 0;
        let end = searched + found;
        if end > INLINE_LEN_MAX {
            return Err(ProtocolError::InlineTooLong);
        }
        let line = buffer.split_to(end + 1).freeze();
        let line = line.slice(..end);
        let line = if line.ends_with(b"\r") { line.slice(..end - 1) } else { line };
        split_words(&line).map(Some)
    }
}

/// The text between the type byte at `from` and CR LF, and the start of the next line.
#[inline]
fn header(
    buffer: &[u8],
    from: usize,
    too_long: ProtocolError,
) -> Result<Option<(&[u8], usize)>, ProtocolError> {
    let rest = &buffer[from + 1..];
    let window = &rest[..rest.len().min(HEADER_LEN_MAX)];
    match window.iter().position(|&byte| byte == b'\r') {
        Some(end) => match rest.get(end + 1) {
            Some(b'\n') => Ok(Some((&rest[..end], from + 1 + end + 2))),
            // The CR becomes part of the number, which is invalid then.
            Some(_) => Ok(Some((&rest[..end + 1], from + 1 + end + 2))),
            None => Ok(None),
        },
        None if rest.len() >= HEADER_LEN_MAX => Err(too_long),
        None => Ok(None),
    }
}

/// Splits an inline request into words as Redis does (`sdssplitargs`).
fn split_words(line: &Bytes) -> Result<Args, ProtocolError> {
    let mut args = Args::new();
    let mut rest = &line[..];
    loop {
        let blanks = rest.iter().take_while(|byte| is_blank(**byte)).count();
        rest = &rest[blanks..];
        if rest.is_empty() {
            return Ok(args);
        }
        let (word, used) = split_word(rest)?;
        args.push(Bytes::from(word));
        rest = &rest[used..];
    }
}

/// The word at the front of `text` and how many bytes it takes there.
fn split_word(text: &[u8]) -> Result<(Vec<u8>, usize), ProtocolError> {
    let mut word = Vec::new();
    let mut at = 0;
    while let Some(&byte) = text.get(at) {
        match byte {
            _ if is_blank(byte) => break,
            b'"' | b'\'' => {
                at += quoted(&text[at..], &mut word)?;
                // Only a blank may follow a closing quote.
                if text.get(at).is_some_and(|&next| !is_blank(next)) {
                    return Err(ProtocolError::UnbalancedQuotes);
                }
                break;
            }
            _ => {
                word.push(byte);
                at += 1;
            }
        }
    }
    Ok((word, at))
}

/// Appends the text between the quotes at the front of `text`; returns its length with them.
fn quoted(text: &[u8], word: &mut Vec<u8>) -> Result<usize, ProtocolError> {
    let quote = text[0];
    let mut at = 1;
    loop {
        match (quote, &text[at..]) {
            (_, []) => return Err(ProtocolError::UnbalancedQuotes),
            (b'\'', [b'\\', b'\'', ..]) => {
                word.push(b'\'');
                at += 2;
            }
            (b'"', [b'\\', b'x', high, low, ..])
                if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() =>
            {
                word.push(hex_digit(*high) << 4 | hex_digit(*low));
                at += 4;
            }
            (b'"', [b'\\', escaped, ..]) => {
                word.push(match escaped {
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    b'b' => 8,
                    b'a' => 7,
                    other => *other,
                });
                at += 2;
            }
            (_, [byte, ..]) if *byte == quote => return Ok(at + 1),
            (_, [byte, ..]) => {
                word.push(*byte);
                at += 1;
            }
        }
    }
}

fn hex_digit(digit: u8) -> u8 {
    match digit {
        b'0'..=b'9' => digit - b'0',
        b'a'..=b'f' => digit - b'a' + 10,
        _ => digit.wrapping_sub(b'A').wrapping_add(10),
    }
}

const fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r' | 0x0b | 0x0c)
}

#[cfg(test)]
mod tests;

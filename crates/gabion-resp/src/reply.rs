//! Replies and their bytes on the wire.
//!
//! ```text
//!            RESP3                              RESP2
//!   Simple   +OK CRLF                           the same
//!   Error    -ERR text CRLF                     the same
//!   Integer  :42 CRLF                           the same
//!   Bulk     $3 CRLF foo CRLF                   the same
//!   Null     _ CRLF                             $-1 CRLF     (NullArray: *-1 CRLF)
//!   Array    *2 CRLF …                          the same
//!   Map      %2 CRLF key value key value        *4 CRLF key value key value
//!   Pairs    *2 CRLF *2 CRLF key value …        *4 CRLF key value key value
//!   Set      ~2 CRLF …                          *2 CRLF …
//!   Push     >2 CRLF …                          *2 CRLF …
//!   Boolean  #t CRLF                            :1 CRLF
//!   Double   ,1.5 CRLF                          $3 CRLF 1.5 CRLF
//!   BigNumber (123 CRLF                         $3 CRLF 123 CRLF
//!   Verbatim =7 CRLF txt:foo CRLF               $3 CRLF foo CRLF
//! ```

use alloc::string::String;
use alloc::vec::Vec;
use bytes::Bytes;
use core::fmt::Write;
use gabion_base::number::put_decimal;

/// The version of the protocol that a connection speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Protocol {
    /// The version of every connection at first.
    #[default]
    Resp2,
    /// After `HELLO 3`.
    Resp3,
}

/// A reply. Texts and data are reference-counted; a constant costs no allocation.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    /// A short text without line ends, such as `OK`.
    Simple(Bytes),
    /// An error: a code in capitals, a blank, a text. Line ends in it are sent as blanks.
    Error(Bytes),
    /// A signed number.
    Integer(i64),
    /// Data.
    Bulk(Bytes),
    /// Nothing, where data could be.
    Null,
    /// Nothing, where an array could be. The same as [`Reply::Null`] in RESP3.
    NullArray,
    /// A list.
    Array(Vec<Reply>),
    /// Keys and values; a flat list in RESP2.
    Map(Vec<(Reply, Reply)>),
    /// An *ordered* list of pairs of data: a list of two-element lists in RESP3, flat in RESP2, as
    /// Redis answers `ZRANGE … WITHSCORES`.
    Pairs(Vec<(Bytes, Bytes)>),
    /// An unordered list.
    Set(Vec<Reply>),
    /// A message that answers no request.
    Push(Vec<Reply>),
    /// True or false.
    Boolean(bool),
    /// A floating-point number.
    Double(f64),
    /// A decimal number of any length.
    BigNumber(Bytes),
    /// A text with a format of three bytes (`txt`, `mkd`).
    Verbatim([u8; 3], Bytes),
    /// A whole reply as another node encoded it, for the same version. A node that forwards a
    /// request passes the reply on without reading it.
    Encoded(Bytes),
}

impl Reply {
    /// `+OK`.
    pub const OK: Self = Self::Simple(Bytes::from_static(b"OK"));

    /// A constant simple string.
    #[must_use]
    pub const fn simple(text: &'static str) -> Self {
        Self::Simple(Bytes::from_static(text.as_bytes()))
    }

    /// A constant error: code, blank, text.
    #[must_use]
    pub const fn error(text: &'static str) -> Self {
        Self::Error(Bytes::from_static(text.as_bytes()))
    }

    /// An error made at run time.
    #[must_use]
    pub fn error_from(text: String) -> Self {
        Self::Error(Bytes::from(text))
    }

    /// A constant bulk string.
    #[must_use]
    pub const fn bulk(text: &'static str) -> Self {
        Self::Bulk(Bytes::from_static(text.as_bytes()))
    }

    /// A bulk string, or null.
    #[must_use]
    pub fn bulk_or_null(data: Option<Bytes>) -> Self {
        data.map_or(Self::Null, Self::Bulk)
    }

    /// Whether this is an error.
    #[must_use]
    pub const fn is_error(&self) -> bool {
        matches!(self, Self::Error(_))
    }

    /// Bytes that the reply takes until it is sent, approximately: texts, data and their
    /// bookkeeping.
    #[must_use]
    pub fn memory(&self) -> usize {
        let data = match self {
            Self::Simple(data)
            | Self::Error(data)
            | Self::Bulk(data)
            | Self::BigNumber(data)
            | Self::Verbatim(_, data)
            | Self::Encoded(data) => data.len(),
            Self::Array(items) | Self::Set(items) | Self::Push(items) => {
                items.iter().map(Self::memory).sum()
            }
            Self::Map(pairs) => {
                pairs.iter().map(|(key, value)| key.memory() + value.memory()).sum()
            }
            Self::Pairs(pairs) => {
                let of_pair = |(key, value): &(Bytes, Bytes)| key.len() + value.len();
                pairs.iter().map(of_pair).sum::<usize>() + size_of_val(&pairs[..])
            }
            Self::Integer(_) | Self::Null | Self::NullArray => 0,
            Self::Boolean(_) | Self::Double(_) => 0,
        };
        size_of::<Self>() + data
    }

    /// Appends the reply in the encoding of `protocol`.
    pub fn encode(&self, protocol: Protocol, out: &mut Vec<u8>) {
        let is_resp3 = protocol == Protocol::Resp3;
        let kind = |resp3: u8| if is_resp3 { resp3 } else { b'*' };
        match self {
            Self::Bulk(data) => put_bulk(out, data),
            Self::Simple(text) => put_line(out, b'+', text),
            Self::Integer(value) => put_header(out, b':', *value),
            Self::Null | Self::NullArray if is_resp3 => out.extend_from_slice(b"_\r\n"),
            Self::Null => out.extend_from_slice(b"$-1\r\n"),
            Self::NullArray => out.extend_from_slice(b"*-1\r\n"),
            Self::Error(text) => put_line(out, b'-', text),
            Self::Array(items) => put_items(out, b'*', items, protocol),
            Self::Set(items) => put_items(out, kind(b'~'), items, protocol),
            Self::Push(items) => put_items(out, kind(b'>'), items, protocol),
            Self::Map(pairs) => {
                let elements = if is_resp3 { pairs.len() } else { 2 * pairs.len() };
                put_header(out, kind(b'%'), elements as i64);
                for (key, value) in pairs {
                    key.encode(protocol, out);
                    value.encode(protocol, out);
                }
            }
            Self::Pairs(pairs) => put_pairs(out, pairs, protocol),
            Self::Boolean(value) if is_resp3 => {
                out.extend_from_slice(if *value { b"#t\r\n" } else { b"#f\r\n" });
            }
            Self::Boolean(value) => put_header(out, b':', i64::from(*value)),
            Self::Double(value) if is_resp3 => {
                put_line(out, b',', format_double(*value).as_bytes());
            }
            Self::Double(value) => put_bulk(out, format_double(*value).as_bytes()),
            Self::BigNumber(text) if is_resp3 => put_line(out, b'(', text),
            Self::Verbatim(format, text) if is_resp3 => {
                put_header(out, b'=', text.len() as i64 + 4);
                out.extend_from_slice(format);
                out.push(b':');
                out.extend_from_slice(text);
                out.extend_from_slice(b"\r\n");
            }
            Self::BigNumber(text) | Self::Verbatim(_, text) => put_bulk(out, text),
            Self::Encoded(bytes) => out.extend_from_slice(bytes),
        }
    }
}

/// Appends a type byte, a number and CR LF.
#[inline]
fn put_header(out: &mut Vec<u8>, kind: u8, value: i64) {
    out.push(kind);
    put_decimal(out, value);
    out.extend_from_slice(b"\r\n");
}

/// Appends data in the encoding of [`Reply::Bulk`], for callers with data in another kind of
/// memory.
#[inline]
pub fn put_bulk(out: &mut Vec<u8>, data: &[u8]) {
    // One growth, not five: the header is at most 23 bytes, the line end 2.
    out.reserve(data.len() + 25);
    put_header(out, b'$', data.len() as i64);
    out.extend_from_slice(data);
    out.extend_from_slice(b"\r\n");
}

/// Appends a type byte, a text and CR LF; line ends in the text become blanks.
fn put_line(out: &mut Vec<u8>, kind: u8, text: &[u8]) {
    out.push(kind);
    let start = out.len();
    out.extend_from_slice(text);
    for byte in &mut out[start..] {
        if matches!(byte, b'\r' | b'\n') {
            *byte = b' ';
        }
    }
    out.extend_from_slice(b"\r\n");
}

fn put_items(out: &mut Vec<u8>, kind: u8, items: &[Reply], protocol: Protocol) {
    put_header(out, kind, items.len() as i64);
    for item in items {
        item.encode(protocol, out);
    }
}

fn put_pairs(out: &mut Vec<u8>, pairs: &[(Bytes, Bytes)], protocol: Protocol) {
    let is_nested = protocol == Protocol::Resp3;
    // One growth instead of several, each of which copies the bytes so far: headers and line ends
    // are at most 25 bytes.
    let len_of = |(key, value): &(Bytes, Bytes)| key.len() + value.len() + 2 * 25 + 4;
    out.reserve(25 + pairs.iter().map(len_of).sum::<usize>());
    put_header(out, b'*', if is_nested { pairs.len() } else { 2 * pairs.len() } as i64);
    for (key, value) in pairs {
        if is_nested {
            out.extend_from_slice(b"*2\r\n");
        }
        put_bulk(out, key);
        put_bulk(out, value);
    }
}

/// The shortest decimal that reads back as `value`; `inf`, `-inf` and `nan` as RESP3 spells them.
fn format_double(value: f64) -> String {
    let mut text = String::new();
    if value.is_nan() {
        text.push_str("nan");
    } else if value.is_infinite() {
        text.push_str(if value > 0.0 { "inf" } else { "-inf" });
    } else {
        // Writing to a String cannot fail.
        let _ = write!(text, "{value}");
    }
    text
}

#[cfg(test)]
mod tests;

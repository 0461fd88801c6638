//! Errors that end a connection: bytes that are not the protocol. The texts are Redis's, followed
//! by the limit if one was passed.

use crate::limits;
use core::fmt;

/// Why bytes were refused. The connection cannot be brought back into step then: send `-ERR <this>`
/// and close.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ProtocolError {
    /// The count of a request's arguments is no number.
    InvalidMultibulkLength,
    /// The count of a request's arguments is over [`limits::ELEMENTS_MAX`].
    TooManyArguments(i64),
    /// The length of a bulk string is no number, or negative in a request.
    InvalidBulkLength,
    /// The length of a bulk string is over its cap.
    BulkTooLong {
        /// The length that was announced.
        len: i64,
        /// The cap in bytes.
        max: usize,
    },
    /// No line end within [`limits::HEADER_LEN_MAX`] of `*`.
    MultibulkHeaderTooLong,
    /// No line end within [`limits::HEADER_LEN_MAX`] of `$`.
    BulkHeaderTooLong,
    /// An argument does not begin with `$` but with this byte.
    ExpectedDollar(u8),
    /// A bulk string is not followed by CR LF.
    ExpectedLineEnd,
    /// An inline request is over [`limits::INLINE_LEN_MAX`].
    InlineTooLong,
    /// An inline request leaves a quote open.
    UnbalancedQuotes,
    /// A reply begins with a byte that names no type.
    UnknownType(u8),
    /// A reply of this type (its first byte) is malformed.
    InvalidReply(u8),
    /// A reply's array, map or set has more elements than [`limits::ELEMENTS_MAX`].
    TooManyElements(i64),
    /// A reply is nested deeper than [`limits::REPLY_DEPTH_MAX`].
    TooDeep,
}

impl fmt::Display for ProtocolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Protocol error: ")?;
        match *self {
            Self::InvalidMultibulkLength => f.write_str("invalid multibulk length"),
            Self::TooManyArguments(count) => write!(
                f,
                "invalid multibulk length: {count} arguments are over the limit of {}",
                limits::ELEMENTS_MAX
            ),
            Self::InvalidBulkLength => f.write_str("invalid bulk length"),
            Self::BulkTooLong { len, max } => {
                write!(f, "invalid bulk length: {len} bytes are over the limit of {max}")
            }
            Self::MultibulkHeaderTooLong => f.write_str("too big mbulk count string"),
            Self::BulkHeaderTooLong => f.write_str("too big bulk count string"),
            Self::ExpectedDollar(byte) => {
                write!(f, "expected '$', got '{}'", printable(byte))
            }
            Self::ExpectedLineEnd => f.write_str("expected CRLF after a bulk string"),
            Self::InlineTooLong => f.write_str("too big inline request"),
            Self::UnbalancedQuotes => f.write_str("unbalanced quotes in request"),
            Self::UnknownType(byte) => write!(f, "unknown reply type '{}'", printable(byte)),
            Self::InvalidReply(byte) => write!(f, "malformed reply of type '{}'", printable(byte)),
            Self::TooManyElements(count) => {
                write!(f, "{count} elements are over the limit of {}", limits::ELEMENTS_MAX)
            }
            Self::TooDeep => {
                write!(f, "reply nested deeper than the limit of {}", limits::REPLY_DEPTH_MAX)
            }
        }
    }
}

/// A byte as it may stand in a reply line: line ends as blanks, as Redis shows them, other
/// unprintable bytes as `?`.
fn printable(byte: u8) -> char {
    match byte {
        b'\r' | b'\n' => ' ',
        _ if byte.is_ascii_graphic() || byte == b' ' => byte as char,
        _ => '?',
    }
}

impl core::error::Error for ProtocolError {}

impl From<ProtocolError> for gabion_base::Error {
    fn from(error: ProtocolError) -> Self {
        Self::invalid(alloc::format!("{error}"))
    }
}

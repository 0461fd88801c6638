//! The client's end: requests out, replies in.
//!
//! Replies come as RESP2 or RESP3 (drawn in [`crate::reply`]); attributes (`|`) are read and
//! dropped, streamed strings and aggregates (`$?`) are refused, as no server sends them.

use crate::error::ProtocolError;
use crate::limits::{
    ELEMENTS_MAX, HEADER_LEN_MAX, REPLY_BULK_LEN_MAX, REPLY_DEPTH_MAX, REPLY_LINE_LEN_MAX,
};
use crate::reply::Reply;
use alloc::vec::Vec;
use bytes::{Buf, Bytes, BytesMut};
use gabion_base::number::{parse_i64, put_decimal};

/// Appends a request as an array of bulk strings.
pub fn encode_request<A: AsRef<[u8]>>(args: &[A], out: &mut Vec<u8>) {
    out.push(b'*');
    put_decimal(out, args.len() as i64);
    out.extend_from_slice(b"\r\n");
    for arg in args {
        let arg = arg.as_ref();
        out.push(b'$');
        put_decimal(out, arg.len() as i64);
        out.extend_from_slice(b"\r\n");
        out.extend_from_slice(arg);
        out.extend_from_slice(b"\r\n");
    }
}

/// The reply that an aggregate becomes when its last element has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Aggregate {
    Array,
    Map,
    Set,
    Push,
    /// A map that is dropped: the reply that it describes follows.
    Attribute,
}

#[derive(Debug)]
struct Frame {
    kind: Aggregate,
    /// Elements still to come; a map counts keys and values.
    missing: usize,
    items: Vec<Reply>,
}

/// One element, as far as it is known by itself.
enum Element {
    Value(Reply),
    Open(Aggregate, usize),
}

/// Reads replies off the front of a buffer. One per connection; after an error close it.
#[derive(Debug, Default)]
pub struct ReplyParser {
    open: Vec<Frame>,
}

impl ReplyParser {
    /// A parser at the beginning of a connection.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the next whole reply off `buffer`. `None`: more bytes are needed.
    ///
    /// # Errors
    /// Bytes that are no reply, or over a cap of [`crate::limits`].
    pub fn parse(&mut self, buffer: &mut BytesMut) -> Result<Option<Reply>, ProtocolError> {
        while let Some(element) = element(buffer)? {
            let value = match element {
                Element::Open(kind, missing) => {
                    if self.open.len() == REPLY_DEPTH_MAX {
                        return Err(ProtocolError::TooDeep);
                    }
                    self.open.push(Frame { kind, missing, items: Vec::new() });
                    None
                }
                Element::Value(value) => Some(value),
            };
            if let Some(reply) = self.close(value) {
                return Ok(Some(reply));
            }
        }
        Ok(None)
    }

    /// Puts `value` in its place and closes all aggregates that it completes. Returns the
    /// outermost.
    fn close(&mut self, mut value: Option<Reply>) -> Option<Reply> {
        loop {
            let Some(frame) = self.open.last_mut() else { return value };
            if let Some(item) = value.take() {
                frame.items.push(item);
                frame.missing -= 1;
            }
            if frame.missing > 0 {
                return None;
            }
            let frame = self.open.pop()?;
            value = match frame.kind {
                Aggregate::Array => Some(Reply::Array(frame.items)),
                Aggregate::Set => Some(Reply::Set(frame.items)),
                Aggregate::Push => Some(Reply::Push(frame.items)),
                Aggregate::Map => Some(Reply::Map(pair_up(frame.items))),
                Aggregate::Attribute => return None,
            };
        }
    }
}

fn pair_up(items: Vec<Reply>) -> Vec<(Reply, Reply)> {
    let mut items = items.into_iter();
    let mut pairs = Vec::with_capacity(items.len() / 2);
    while let (Some(key), Some(value)) = (items.next(), items.next()) {
        pairs.push((key, value));
    }
    pairs
}

/// Takes one element off the buffer, or leaves the buffer as it is when the element is not whole.
fn element(buffer: &mut BytesMut) -> Result<Option<Element>, ProtocolError> {
    let Some(&kind) = buffer.first() else { return Ok(None) };
    let len_max = match kind {
        b'+' | b'-' | b'(' => REPLY_LINE_LEN_MAX,
        // Shortest decimals of doubles have up to 340 characters.
        b',' => 512,
        b':' | b'_' | b'#' | b'$' | b'!' | b'=' | b'*' | b'%' | b'~' | b'>' | b'|' => {
            HEADER_LEN_MAX
        }
        other => return Err(ProtocolError::UnknownType(other)),
    };
    let window = &buffer[1..buffer.len().min(1 + len_max + 2)];
    let Some(end) = window.iter().position(|&byte| byte == b'\n') else {
        let is_over = window.len() == len_max + 2;
        return if is_over { Err(ProtocolError::InvalidReply(kind)) } else { Ok(None) };
    };
    let Some(text) = window[..end].strip_suffix(b"\r") else {
        return Err(ProtocolError::InvalidReply(kind));
    };
    let line_len = end + 2;
    match kind {
        b'$' | b'!' | b'=' => bulk(buffer, kind, line_len),
        b'*' | b'%' | b'~' | b'>' | b'|' => {
            let opened = aggregate(kind, text)?;
            buffer.advance(line_len);
            Ok(Some(opened))
        }
        _ => {
            let text_len = text.len();
            let line = buffer.split_to(line_len).freeze();
            scalar(kind, line.slice(1..1 + text_len)).map(|value| Some(Element::Value(value)))
        }
    }
}

fn scalar(kind: u8, text: Bytes) -> Result<Reply, ProtocolError> {
    let invalid = ProtocolError::InvalidReply(kind);
    Ok(match (kind, &text[..]) {
        (b'+', _) => Reply::Simple(text),
        (b'-', _) => Reply::Error(text),
        (b':', digits) => {
            let digits = digits.strip_prefix(b"+").unwrap_or(digits);
            Reply::Integer(parse_i64(digits).ok_or(invalid)?)
        }
        (b'_', b"") => Reply::Null,
        (b'#', b"t") => Reply::Boolean(true),
        (b'#', b"f") => Reply::Boolean(false),
        (b',', digits) => {
            let text = core::str::from_utf8(digits).map_err(|_| invalid)?;
            Reply::Double(text.parse().map_err(|_| invalid)?)
        }
        (b'(', digits) => {
            let bare = digits.strip_prefix(b"-").or(digits.strip_prefix(b"+")).unwrap_or(digits);
            if bare.is_empty() || !bare.iter().all(u8::is_ascii_digit) {
                return Err(invalid);
            }
            Reply::BigNumber(text)
        }
        _ => return Err(invalid),
    })
}

/// A length-prefixed value whose header line is `header_len` bytes long.
fn bulk(
    buffer: &mut BytesMut,
    kind: u8,
    header_len: usize,
) -> Result<Option<Element>, ProtocolError> {
    let invalid = ProtocolError::InvalidReply(kind);
    let len = parse_i64(&buffer[1..header_len - 2]).ok_or(invalid)?;
    if len == -1 && kind == b'$' {
        buffer.advance(header_len);
        return Ok(Some(Element::Value(Reply::Null)));
    }
    if len > REPLY_BULK_LEN_MAX as i64 {
        return Err(ProtocolError::BulkTooLong { len, max: REPLY_BULK_LEN_MAX });
    }
    let len = usize::try_from(len).map_err(|_| invalid)?;
    match buffer.get(header_len + len..header_len + len + 2) {
        None => return Ok(None),
        Some(b"\r\n") => {}
        Some(_) => return Err(ProtocolError::ExpectedLineEnd),
    }
    let whole = buffer.split_to(header_len + len + 2).freeze();
    let data = whole.slice(header_len..header_len + len);
    Ok(Some(Element::Value(match kind {
        b'$' => Reply::Bulk(data),
        b'!' => Reply::Error(data),
        _ => match data.first_chunk::<4>() {
            Some(&[a, b, c, b':']) => Reply::Verbatim([a, b, c], data.slice(4..)),
            _ => return Err(invalid),
        },
    })))
}

fn aggregate(kind: u8, text: &[u8]) -> Result<Element, ProtocolError> {
    let count = parse_i64(text).ok_or(ProtocolError::InvalidReply(kind))?;
    if count == -1 && kind == b'*' {
        return Ok(Element::Value(Reply::NullArray));
    }
    if count > ELEMENTS_MAX as i64 {
        return Err(ProtocolError::TooManyElements(count));
    }
    let count = usize::try_from(count).map_err(|_| ProtocolError::InvalidReply(kind))?;
    Ok(match kind {
        b'%' => Element::Open(Aggregate::Map, 2 * count),
        b'|' => Element::Open(Aggregate::Attribute, 2 * count),
        b'~' => Element::Open(Aggregate::Set, count),
        b'>' => Element::Open(Aggregate::Push, count),
        _ => Element::Open(Aggregate::Array, count),
    })
}

#[cfg(test)]
mod tests;

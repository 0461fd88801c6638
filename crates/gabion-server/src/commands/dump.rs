//! DUMP and RESTORE: a value in the bytes of Redis's RDB files, to carry it from and to a Redis.
//!
//! ```text
//!   u8 type, 0: string │ string │ u16 version │ u64 CRC-64 of all before     little-endian
//!
//!   string   length, bytes            00llllll, 01llllll llllllll, 10000000 u32, 10000001 u64 (big-endian)
//!            C0 i8, C1 i16, C2 i32    a number, in decimal
//!            C3 length, length, bytes so many bytes of LZF, which become so many
//! ```

pub(super) mod crc64;
mod lzf;

use super::errors;
use super::execute::Outcome;
use super::expiry::{When, put_until};
use super::keyspace::yield_now;
use super::store::Store;
use bytes::Bytes;
use crc64::crc64;
use gabion_base::number::{parse_i64, put_decimal};
use gabion_base::units::VALUE_LEN_MAX;
use gabion_resp::Reply;

/// The version that is written: that of Redis 7.0.
const VERSION: u16 = 10;
/// The newest that is read: that of Redis 7.4. Strings have been the same in all.
const VERSION_MAX: u16 = 12;
/// Bytes of version and checksum.
const FOOTER_LEN: usize = 10;
/// The type of a string.
const TYPE_STRING: u8 = 0;
/// Bytes that are summed before others have their turn.
const TURN_LEN: usize = 1 << 20;
/// Longest text that may be kept as a number.
const NUMBER_LEN_MAX: usize = 11;

pub(crate) async fn dump(store: &impl Store, args: &[Bytes]) -> Outcome {
    let Some(value) = store.get(&args[1]).await? else { return Ok(Reply::Null) };
    let mut out = Vec::with_capacity(value.len() + 16);
    out.push(TYPE_STRING);
    put_string(&mut out, &value);
    out.extend_from_slice(&VERSION.to_le_bytes());
    let crc = checksum(&out).await;
    out.extend_from_slice(&crc.to_le_bytes());
    Ok(Reply::Bulk(out.into()))
}

/// The CRC-64 of `data`. After each MiB others have their turn.
async fn checksum(data: &[u8]) -> u64 {
    let mut crc = 0;
    for (place, part) in data.chunks(TURN_LEN).enumerate() {
        if place > 0 {
            yield_now().await;
        }
        crc = crc64(crc, part);
    }
    crc
}

fn put_string(out: &mut Vec<u8>, value: &[u8]) {
    let number = parse_i64(value).filter(|_| value.len() <= NUMBER_LEN_MAX);
    if let Some(number) = number.and_then(|number| i32::try_from(number).ok()) {
        return put_number(out, number);
    }
    match value.len() {
        len @ ..0x40 => out.push(len as u8),
        len @ 0x40..0x4000 => out.extend_from_slice(&(0x4000 | len as u16).to_be_bytes()),
        len => {
            out.push(0x80);
            out.extend_from_slice(&(len as u32).to_be_bytes());
        }
    }
    out.extend_from_slice(value);
}

fn put_number(out: &mut Vec<u8>, number: i32) {
    let bytes = number.to_le_bytes();
    let (kind, len) = match number {
        -0x80..0x80 => (0xc0, 1),
        -0x8000..0x8000 => (0xc1, 2),
        _ => (0xc2, 4),
    };
    out.push(kind);
    out.extend_from_slice(&bytes[..len]);
}

/// Why bytes are no value.
#[derive(Debug, PartialEq, Eq)]
enum Bad {
    /// They are not what they claim to be.
    Format,
    /// A value of another type than string.
    Type(u8),
    /// A value of so many bytes.
    TooLong(u64),
}

impl From<Bad> for Reply {
    fn from(bad: Bad) -> Self {
        match bad {
            Bad::Format => errors::BAD_FORMAT,
            Bad::Type(kind) => Self::error_from(format!(
                "ERR Bad data format: a value of type {kind}; the only type is string, {TYPE_STRING}"
            )),
            Bad::TooLong(len) => errors::value_too_long(usize::try_from(len).unwrap_or(usize::MAX)),
        }
    }
}

/// Bytes that are read from their beginning.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], Bad> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or(Bad::Format)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Bad> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(Bad::Format)?;
        self.0 = rest;
        Ok(*taken)
    }

    fn len(&mut self) -> Result<u64, Bad> {
        let [first] = self.array()?;
        Ok(match first {
            0..0x40 => u64::from(first),
            0x40..0x80 => u64::from(first & 0x3f) << 8 | u64::from(self.array::<1>()?[0]),
            0x80 => u64::from(u32::from_be_bytes(self.array()?)),
            0x81 => u64::from_be_bytes(self.array()?),
            _ => return Err(Bad::Format),
        })
    }

    /// The length of a value.
    fn value_len(&mut self) -> Result<usize, Bad> {
        let len = self.len()?;
        if len > VALUE_LEN_MAX as u64 { Err(Bad::TooLong(len)) } else { Ok(len as usize) }
    }

    fn string(&mut self) -> Result<Vec<u8>, Bad> {
        let kind = *self.0.first().ok_or(Bad::Format)?;
        if kind < 0xc0 {
            let len = self.value_len()?;
            return Ok(self.take(len)?.to_vec());
        }
        self.0 = &self.0[1..];
        let number = match kind {
            0xc0 => i64::from(i8::from_le_bytes(self.array()?)),
            0xc1 => i64::from(i16::from_le_bytes(self.array()?)),
            0xc2 => i64::from(i32::from_le_bytes(self.array()?)),
            0xc3 => {
                let packed_len = usize::try_from(self.len()?).map_err(|_| Bad::Format)?;
                let len = self.value_len()?;
                return lzf::decompress(self.take(packed_len)?, len).ok_or(Bad::Format);
            }
            _ => return Err(Bad::Format),
        };
        let mut text = Vec::new();
        put_decimal(&mut text, number);
        Ok(text)
    }
}

/// The value in the bytes before the footer.
fn parse_value(body: &[u8]) -> Result<Vec<u8>, Bad> {
    let mut input = Input(body);
    match input.array()? {
        [TYPE_STRING] => {}
        [kind] => return Err(Bad::Type(kind)),
    }
    let value = input.string()?;
    if input.0.is_empty() { Ok(value) } else { Err(Bad::Format) }
}

/// The value that DUMP has told.
async fn parse(payload: &[u8]) -> Result<Vec<u8>, Reply> {
    let (body, footer) = payload.split_last_chunk::<FOOTER_LEN>().ok_or(errors::BAD_CHECKSUM)?;
    let [low, high, crc @ ..] = *footer;
    let is_known = u16::from_le_bytes([low, high]) <= VERSION_MAX;
    let checked = &payload[..payload.len() - size_of_val(&crc)];
    if !is_known || checksum(checked).await != u64::from_le_bytes(crc) {
        return Err(errors::BAD_CHECKSUM);
    }
    Ok(parse_value(body)?)
}

/// What stands behind `RESTORE key ttl value`.
#[derive(Default)]
struct Options {
    replaces: bool,
    is_absolute: bool,
    has_idle: bool,
    has_freq: bool,
}

impl Options {
    fn parse(words: &[Bytes]) -> Result<Self, Reply> {
        let mut options = Self::default();
        let mut rest = words;
        loop {
            let lower = rest.first().map(|word| word.to_ascii_lowercase());
            rest = match (lower.as_deref(), rest) {
                (None, _) => return Ok(options),
                (Some(b"replace"), [_, more @ ..]) => {
                    options.replaces = true;
                    more
                }
                (Some(b"absttl"), [_, more @ ..]) => {
                    options.is_absolute = true;
                    more
                }
                // Checked and not kept: nothing is evicted.
                (Some(b"idletime"), [_, idle, more @ ..]) if !options.has_freq => {
                    check_number(idle, i64::MAX, errors::BAD_IDLETIME)?;
                    options.has_idle = true;
                    more
                }
                (Some(b"freq"), [_, freq, more @ ..]) if !options.has_idle => {
                    check_number(freq, 255, errors::BAD_FREQ)?;
                    options.has_freq = true;
                    more
                }
                _ => return Err(errors::SYNTAX),
            };
        }
    }
}

fn check_number(text: &[u8], max: i64, error: Reply) -> Result<(), Reply> {
    let number = parse_i64(text).ok_or(errors::NOT_AN_INTEGER)?;
    if (0..=max).contains(&number) { Ok(()) } else { Err(error) }
}

pub(crate) async fn restore(store: &impl Store, args: &[Bytes]) -> Outcome {
    let options = Options::parse(&args[4..])?;
    let key = &args[1];
    let is_there = store.is_there(key).await?;
    if is_there && !options.replaces {
        return Err(errors::BUSY_KEY.into());
    }
    let ttl = parse_i64(&args[2]).ok_or(errors::NOT_AN_INTEGER)?;
    if ttl < 0 {
        return Err(errors::BAD_TTL.into());
    }
    let value = parse(&args[3]).await?;
    let when = if options.is_absolute { When::AtMilli } else { When::Millis };
    // Times are compared as signed numbers; one before the store's first has passed.
    let expires_ms = when.base_ms(store).saturating_add(ttl).max(0).unsigned_abs();
    if ttl == 0 {
        store.put(key, &value)?;
    } else if expires_ms > store.now_ms() || is_there {
        put_until(store, key, value.into(), Some(expires_ms))?;
    }
    Ok(Reply::OK)
}

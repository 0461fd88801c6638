//! BITFIELD: integers of 1 to 64 bits at any bit of a value, highest bit first.

use super::bits::check_offset;
use super::errors;
use super::execute::Outcome;
use super::expiry::put_keeping;
use super::store::Store;
use bytes::Bytes;
use gabion_base::number::parse_i64;
use gabion_resp::Reply;

/// The type of an integer: `u8`, `i16`.
#[derive(Clone, Copy)]
struct Kind {
    is_signed: bool,
    bits: u32,
}

impl Kind {
    fn parse(text: &[u8]) -> Result<Self, Reply> {
        let (is_signed, bits_max, digits) = match text {
            [b'i', digits @ ..] => (true, 64, digits),
            // Replies are signed.
            [b'u', digits @ ..] => (false, 63, digits),
            _ => return Err(errors::BITFIELD_TYPE),
        };
        let bits = parse_i64(digits).filter(|bits| (1..=bits_max).contains(bits));
        Ok(Self { is_signed, bits: bits.ok_or(errors::BITFIELD_TYPE)? as u32 })
    }

    const fn min(self) -> i128 {
        if self.is_signed { -(1 << (self.bits - 1)) } else { 0 }
    }

    const fn max(self) -> i128 {
        if self.is_signed { (1 << (self.bits - 1)) - 1 } else { (1 << self.bits) - 1 }
    }

    /// The number that these low bits mean.
    const fn of_bits(self, bits: u64) -> i64 {
        let unused = 64 - self.bits;
        let high = bits << unused;
        if self.is_signed { (high as i64) >> unused } else { (high >> unused) as i64 }
    }

    /// What is stored for `value`; `None` where it does not fit and that is not wanted.
    fn fit(self, value: i128, overflow: Overflow) -> Option<i64> {
        match overflow {
            _ if (self.min()..=self.max()).contains(&value) => Some(value as i64),
            Overflow::Wrap => Some(self.of_bits(value as u64)),
            Overflow::Saturate => Some(value.clamp(self.min(), self.max()) as i64),
            Overflow::Fail => None,
        }
    }
}

/// What is done with a number that does not fit.
#[derive(Clone, Copy)]
enum Overflow {
    Wrap,
    Saturate,
    Fail,
}

impl Overflow {
    fn parse(word: &[u8]) -> Result<Self, Reply> {
        match &word.to_ascii_lowercase()[..] {
            b"wrap" => Ok(Self::Wrap),
            b"sat" => Ok(Self::Saturate),
            b"fail" => Ok(Self::Fail),
            _ => Err(errors::BITFIELD_OVERFLOW),
        }
    }
}

#[derive(Clone, Copy)]
enum Action {
    Get,
    Set(i64, Overflow),
    Add(i64, Overflow),
}

/// One of the operations behind `BITFIELD key`.
struct Field {
    kind: Kind,
    offset: u64,
    action: Action,
}

impl Field {
    fn parse_all(words: &[Bytes]) -> Result<Vec<Self>, Reply> {
        let mut fields = Vec::new();
        let mut overflow = Overflow::Wrap;
        let mut rest = words;
        loop {
            let lower = rest.first().map(|word| word.to_ascii_lowercase());
            let (kind, offset, action) = match (lower.as_deref(), rest) {
                (None, _) => return Ok(fields),
                (Some(b"overflow"), [_, word, more @ ..]) => {
                    overflow = Overflow::parse(word)?;
                    rest = more;
                    continue;
                }
                (Some(b"get"), [_, kind, offset, more @ ..]) => {
                    rest = more;
                    (kind, offset, None)
                }
                (Some(name @ (b"set" | b"incrby")), [_, kind, offset, number, more @ ..]) => {
                    rest = more;
                    (kind, offset, Some((name == b"set", number)))
                }
                _ => return Err(errors::SYNTAX),
            };
            fields.push(Self::parse(kind, offset, action, overflow)?);
        }
    }

    /// `write`: whether it sets rather than adds, and the number.
    fn parse(
        kind: &[u8],
        offset: &[u8],
        write: Option<(bool, &Bytes)>,
        overflow: Overflow,
    ) -> Result<Self, Reply> {
        let kind = Kind::parse(kind)?;
        let (text, factor) = match offset {
            [b'#', text @ ..] => (text, u64::from(kind.bits)),
            text => (text, 1),
        };
        let number = parse_i64(text).and_then(|number| u64::try_from(number).ok());
        let offset = number.and_then(|number| number.checked_mul(factor));
        let offset = check_offset(offset.ok_or(errors::BIT_OFFSET)?)?;
        let Some((sets, number)) = write else {
            return Ok(Self { kind, offset, action: Action::Get });
        };
        let number = parse_i64(number).ok_or(errors::NOT_AN_INTEGER)?;
        check_offset(offset + u64::from(kind.bits) - 1)?;
        let action =
            if sets { Action::Set(number, overflow) } else { Action::Add(number, overflow) };
        Ok(Self { kind, offset, action })
    }

    const fn writes(&self) -> bool {
        !matches!(self.action, Action::Get)
    }

    /// The first byte that it does not touch.
    const fn end(&self) -> usize {
        (self.offset + self.kind.bits as u64).div_ceil(8) as usize
    }

    fn read(&self, value: &[u8]) -> i64 {
        // At most 64 bits, which begin in the first byte and end in the ninth.
        let first = (self.offset / 8) as usize;
        let bytes = (first..first + 9).map(|at| u128::from(value.get(at).copied().unwrap_or(0)));
        let window = bytes.fold(0, |window, byte| window << 8 | byte);
        let after = 72 - self.offset % 8 - u64::from(self.kind.bits);
        self.kind.of_bits((window >> after) as u64)
    }

    fn write(&self, value: &mut [u8], number: i64) {
        let bytes = &mut value[(self.offset / 8) as usize..self.end()];
        let window = bytes.iter().fold(0, |window, byte| window << 8 | u128::from(*byte));
        let after = 8 * bytes.len() as u64 - self.offset % 8 - u64::from(self.kind.bits);
        let mask = ((1_u128 << self.kind.bits) - 1) << after;
        let mut window = window & !mask | u128::from(number as u64) << after & mask;
        for byte in bytes.iter_mut().rev() {
            *byte = window as u8;
            window >>= 8;
        }
    }

    /// Does it; `None` where the number does not fit and so nothing was done.
    fn apply(&self, value: &mut [u8]) -> Option<i64> {
        let old = self.read(value);
        let (wanted, overflow) = match self.action {
            Action::Get => return Some(old),
            // Of a type without a sign a number below zero is one above its largest, as in Redis.
            Action::Set(number, overflow) if !self.kind.is_signed => {
                (i128::from(number as u64), overflow)
            }
            Action::Set(number, overflow) => (i128::from(number), overflow),
            Action::Add(by, overflow) => (i128::from(old) + i128::from(by), overflow),
        };
        let new = self.kind.fit(wanted, overflow)?;
        self.write(value, new);
        Some(if matches!(self.action, Action::Set(..)) { old } else { new })
    }
}

pub(crate) async fn bitfield(store: &impl Store, args: &[Bytes]) -> Outcome {
    let fields = Field::parse_all(&args[2..])?;
    let Some(end) = fields.iter().filter(|field| field.writes()).map(Field::end).max() else {
        return read_all(store, &args[1], &fields).await;
    };
    let found = store.look_up(&args[1]).await?;
    let expires_ms = found.as_ref().and_then(|found| found.expires_ms);
    let old = found.map(|found| found.value).unwrap_or_default();
    // As far as the furthest write reaches, also when that one fails.
    let mut value = old.to_vec();
    value.resize(old.len().max(end), 0);
    let number = |number: Option<i64>| number.map_or(Reply::Null, Reply::Integer);
    let replies = fields.iter().map(|field| number(field.apply(&mut value))).collect();
    if value[..] != old[..] {
        put_keeping(store, &args[1], value.into(), expires_ms)?;
    }
    Ok(Reply::Array(replies))
}

pub(crate) async fn bitfield_ro(store: &impl Store, args: &[Bytes]) -> Outcome {
    let fields = Field::parse_all(&args[2..])?;
    if fields.iter().any(Field::writes) {
        return Err(errors::BITFIELD_RO.into());
    }
    read_all(store, &args[1], &fields).await
}

async fn read_all(store: &impl Store, key: &Bytes, fields: &[Field]) -> Outcome {
    let value = store.get(key).await?.unwrap_or_default();
    Ok(Reply::Array(fields.iter().map(|field| Reply::Integer(field.read(&value))).collect()))
}

//! Commands on the bits of a value: bit 0 is the highest of its first byte. What lies behind its end is zero.

use super::errors;
use super::execute::Outcome;
use super::expiry::put_keeping;
use super::keyspace::yield_now;
use super::store::{Op, Store};
use bytes::Bytes;
use core::ops::Range;
use gabion_base::number::parse_i64;
use gabion_base::units::VALUE_LEN_MAX;
use gabion_resp::Reply;

/// Most bits of a value.
pub(crate) const BITS_MAX: u64 = VALUE_LEN_MAX as u64 * 8;
/// Bytes that BITOP reads before others have their turn.
const TURN_LEN: usize = 1 << 20;
/// What a source counts at least.
const SOURCE_LEN: usize = 64;
/// Most bytes that BITOP reads, for which its keys are locked.
const SOURCES_LEN_MAX: usize = 1 << 30;

/// The bit that an offset means. One behind the end of the longest value has no place.
pub(crate) fn parse_offset(text: &[u8]) -> Result<u64, Reply> {
    let offset = parse_i64(text).and_then(|offset| u64::try_from(offset).ok());
    check_offset(offset.ok_or(errors::BIT_OFFSET)?)
}

pub(crate) fn check_offset(offset: u64) -> Result<u64, Reply> {
    if offset < BITS_MAX { Ok(offset) } else { Err(errors::bit_offset_too_large(offset)) }
}

/// The byte of a bit, and the bit in it.
const fn place(offset: u64) -> (usize, u8) {
    ((offset / 8) as usize, 0x80 >> (offset % 8))
}

pub(crate) async fn get_bit(store: &impl Store, args: &[Bytes]) -> Outcome {
    let (byte, bit) = place(parse_offset(&args[2])?);
    let value = store.get(&args[1]).await?.unwrap_or_default();
    let is_set = value.get(byte).is_some_and(|byte| byte & bit != 0);
    Ok(Reply::Integer(i64::from(is_set)))
}

pub(crate) async fn set_bit(store: &impl Store, args: &[Bytes]) -> Outcome {
    let (byte, bit) = place(parse_offset(&args[2])?);
    let is_set = match parse_i64(&args[3]) {
        Some(0) => false,
        Some(1) => true,
        _ => return Err(errors::BIT.into()),
    };
    let found = store.look_up(&args[1]).await?;
    let expires_ms = found.as_ref().and_then(|found| found.expires_ms);
    let old = found.map(|found| found.value).unwrap_or_default();
    let was_set = old.get(byte).is_some_and(|byte| byte & bit != 0);
    // A bit as it was is nothing to write, unless the value reaches only now as far as to it.
    if was_set != is_set || byte >= old.len() {
        let mut value = old.to_vec();
        value.resize(old.len().max(byte + 1), 0);
        value[byte] = if is_set { value[byte] | bit } else { value[byte] & !bit };
        put_keeping(store, &args[1], value.into(), expires_ms)?;
    }
    Ok(Reply::Integer(i64::from(was_set)))
}

/// Whether `BIT` or `BYTE` stands behind a range.
fn counts_bits(unit: &[u8]) -> Result<bool, Reply> {
    if unit.eq_ignore_ascii_case(b"bit") {
        Ok(true)
    } else if unit.eq_ignore_ascii_case(b"byte") {
        Ok(false)
    } else {
        Err(errors::SYNTAX)
    }
}

/// The bits from `start` to `end`, which is included, in a value of `len` bytes; numbers below zero count from the
/// end.
fn bits_between(start: i64, end: i64, in_bits: bool, len: usize) -> Range<usize> {
    let factor = if in_bits { 1 } else { 8 };
    let total = (len * 8 / factor) as i64;
    let from_end = |at: i64| if at < 0 { total.saturating_add(at).max(0) } else { at };
    let (start, end) = (from_end(start), from_end(end).min(total - 1));
    if start > end { 0..0 } else { start as usize * factor..(end as usize + 1) * factor }
}

pub(crate) async fn bit_count(store: &impl Store, args: &[Bytes]) -> Outcome {
    let range = match &args[2..] {
        [] => None,
        [start, end, unit @ ..] if unit.len() <= 1 => {
            let start = parse_i64(start).ok_or(errors::NOT_AN_INTEGER)?;
            let end = parse_i64(end).ok_or(errors::NOT_AN_INTEGER)?;
            let in_bits = unit.first().map_or(Ok(false), |unit| counts_bits(unit))?;
            Some((start, end, in_bits))
        }
        _ => return Err(errors::SYNTAX.into()),
    };
    let value = store.get(&args[1]).await?.unwrap_or_default();
    let bits = match range {
        None => 0..value.len() * 8,
        // Of two that both count from the end the first must come first, however long the value is.
        Some((start, end, _)) if start < 0 && end < 0 && start > end => 0..0,
        Some((start, end, in_bits)) => bits_between(start, end, in_bits, value.len()),
    };
    Ok(Reply::Integer(count_ones(&value, bits) as i64))
}

/// How many of these bits are set.
fn count_ones(value: &[u8], bits: Range<usize>) -> usize {
    let (first, last) = (bits.start / 8, bits.end / 8);
    let ones = |bytes: &[u8]| {
        let (words, rest) = bytes.as_chunks::<8>();
        let in_words = words.iter().map(|word| u64::from_ne_bytes(*word).count_ones());
        in_words.chain(rest.iter().map(|byte| byte.count_ones())).map(|ones| ones as usize).sum()
    };
    // Up to the end of the range, less what comes before it.
    let before = |byte: usize, bit: usize| {
        let mask = !(0xff_u8 >> (bit % 8));
        value.get(byte).map_or(0, |byte| (byte & mask).count_ones() as usize)
    };
    let whole: usize = ones(&value[first..last]);
    whole + before(last, bits.end) - before(first, bits.start)
}

/// What stands behind `BITPOS key bit`.
struct Span {
    start: i64,
    end: Option<i64>,
    in_bits: bool,
}

impl Span {
    fn parse(words: &[Bytes]) -> Result<Self, Reply> {
        let number = |word: &Bytes| parse_i64(word).ok_or(errors::NOT_AN_INTEGER);
        let (start, end, unit) = match words {
            [] => return Ok(Self { start: 0, end: None, in_bits: false }),
            [start] => (start, None, None),
            [start, end] => (start, Some(end), None),
            [start, end, unit] => (start, Some(end), Some(unit)),
            _ => return Err(errors::SYNTAX),
        };
        let start = number(start)?;
        let in_bits = unit.map_or(Ok(false), |unit| counts_bits(unit))?;
        Ok(Self { start, end: end.map(number).transpose()?, in_bits })
    }
}

pub(crate) async fn bit_pos(store: &impl Store, args: &[Bytes]) -> Outcome {
    let is_set = match parse_i64(&args[2]).ok_or(errors::NOT_AN_INTEGER)? {
        0 => false,
        1 => true,
        _ => return Err(errors::BIT_ARGUMENT.into()),
    };
    let span = Span::parse(&args[3..])?;
    let Some(value) = store.get(&args[1]).await? else {
        return Ok(Reply::Integer(if is_set { -1 } else { 0 }));
    };
    let bits = bits_between(span.start, span.end.unwrap_or(-1), span.in_bits, value.len());
    let found = first_bit(&value, bits.clone(), is_set);
    Ok(Reply::Integer(match found {
        Some(at) => at as i64,
        // Behind the value there are zeros without an end, unless the range has one.
        None if !is_set && span.end.is_none() && !bits.is_empty() => bits.end as i64,
        None => -1,
    }))
}

/// The first of these bits that is set, or is not.
fn first_bit(value: &[u8], bits: Range<usize>, is_set: bool) -> Option<usize> {
    let is_wanted = |bit: &usize| (value[bit / 8] & (0x80 >> (bit % 8)) != 0) == is_set;
    let first_whole = bits.start.next_multiple_of(8).min(bits.end);
    let at = (bits.start..first_whole).find(is_wanted);
    at.or_else(|| {
        let skipped = if is_set { 0 } else { 0xff };
        let whole = &value[first_whole / 8..(bits.end / 8).max(first_whole / 8)];
        let same = whole.iter().take_while(|&&byte| byte == skipped).count();
        (first_whole + same * 8..bits.end).find(is_wanted)
    })
}

/// What BITOP does with the bits of several sources.
#[derive(Clone, Copy)]
enum Operation {
    And,
    Or,
    Xor,
}

impl Operation {
    fn of(word: &[u8]) -> Result<Self, Reply> {
        match &word.to_ascii_lowercase()[..] {
            b"and" => Ok(Self::And),
            b"or" => Ok(Self::Or),
            b"xor" => Ok(Self::Xor),
            _ => Err(errors::SYNTAX),
        }
    }

    /// Puts the next source into the result of those before it, which may have lost the zeros at its end.
    fn apply(self, result: &mut Vec<u8>, source: &[u8]) {
        match self {
            Self::And => result.truncate(source.len()),
            Self::Or | Self::Xor => result.resize(result.len().max(source.len()), 0),
        }
        let pairs = result.iter_mut().zip(source);
        match self {
            Self::And => pairs.for_each(|(byte, other)| *byte &= other),
            Self::Or => pairs.for_each(|(byte, other)| *byte |= other),
            Self::Xor => pairs.for_each(|(byte, other)| *byte ^= other),
        }
    }
}

pub(crate) async fn bit_op(store: &impl Store, args: &[Bytes]) -> Outcome {
    let (target, sources) = (&args[2], &args[3..]);
    if args[1].eq_ignore_ascii_case(b"not") {
        let [source] = sources else { return Err(errors::BITOP_NOT.into()) };
        let value = store.get(source).await?.unwrap_or_default();
        let result = value.iter().map(|byte| !byte).collect();
        return store_result(store, target, result).await;
    }
    let operation = Operation::of(&args[1])?;
    let (mut result, mut longest) = (Vec::new(), 0);
    let (mut read_len, mut turn_len) = (0, 0);
    // One after the other: together they may be far more than fits into memory.
    for (place, source) in sources.iter().enumerate() {
        let value = store.get(source).await?.unwrap_or_default();
        read_len += value.len();
        if read_len > SOURCES_LEN_MAX {
            return Err(errors::sources_too_long(SOURCES_LEN_MAX).into());
        }
        longest = longest.max(value.len());
        match place {
            0 => result = value.to_vec(),
            _ => operation.apply(&mut result, &value),
        }
        turn_len += SOURCE_LEN + value.len();
        if turn_len >= TURN_LEN {
            turn_len = 0;
            yield_now().await;
        }
    }
    result.resize(longest, 0);
    store_result(store, target, result).await
}

/// Sets the target of BITOP, or deletes it where there is nothing to set.
async fn store_result(store: &impl Store, target: &Bytes, result: Vec<u8>) -> Outcome {
    let len = result.len();
    if len > 0 {
        store.write(&[Op::Put(target.clone(), result.into())])?;
    } else if store.is_there(target).await? {
        store.write(&[Op::Delete(target.clone())])?;
    }
    Ok(Reply::Integer(len as i64))
}

//! Commands on the value of a key. Each ends with at most one write, after every check.

use super::errors;
use super::execute::Outcome;
use super::expiry::{When, put_keeping, put_until};
use super::keyspace::REPLY_LEN_MAX;
use super::long_double::LongDouble;
use super::store::{Op, Store, check_fits_record};
use bytes::Bytes;
use gabion_base::number::{parse_i64, put_decimal};
use gabion_base::units::VALUE_LEN_MAX;
use gabion_engine::{Found, FoundLen};
use gabion_resp::Reply;

pub(crate) async fn get(store: &impl Store, args: &[Bytes]) -> Outcome {
    Ok(Reply::bulk_or_null(store.get(&args[1]).await?))
}

pub(crate) fn set_blindly(store: &impl Store, key: &[u8], value: &[u8]) -> Outcome {
    check_value(value)?;
    store.put(key, value)?;
    Ok(Reply::OK)
}

/// What stands behind `SET key value`.
#[derive(Default)]
struct SetOptions {
    if_absent: bool,
    if_present: bool,
    /// IFEQ: the value that the key must have.
    if_equal: Option<Bytes>,
    returns_old: bool,
    keeps_expiry: bool,
    expiry: Option<(When, Bytes)>,
}

impl SetOptions {
    fn parse(words: &[Bytes]) -> Result<Self, Reply> {
        let mut options = Self::default();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let is = |name: &str| word.eq_ignore_ascii_case(name.as_bytes());
            if is("nx") && !options.if_present && options.if_equal.is_none() {
                options.if_absent = true;
            } else if is("xx") && !options.if_absent && options.if_equal.is_none() {
                options.if_present = true;
            } else if is("ifeq") && options.has_no_condition() {
                options.if_equal = Some(words.next().ok_or(errors::SYNTAX)?.clone());
            } else if is("get") {
                options.returns_old = true;
            } else if is("keepttl") && options.expiry.is_none() {
                options.keeps_expiry = true;
            } else if let Some(when) = When::of(word)
                && !options.keeps_expiry
                && options.expiry.as_ref().is_none_or(|(before, _)| *before == when)
            {
                options.expiry = Some((when, words.next().ok_or(errors::SYNTAX)?.clone()));
            } else {
                return Err(errors::SYNTAX);
            }
        }
        Ok(options)
    }

    const fn has_no_condition(&self) -> bool {
        !self.if_absent && !self.if_present && self.if_equal.is_none()
    }

    /// Whether the key's old value matters.
    const fn look_first(&self) -> bool {
        !self.has_no_condition() || self.returns_old || self.keeps_expiry
    }

    /// Whether the old value itself does, and not only that there is one.
    const fn needs_value(&self) -> bool {
        self.returns_old || self.if_equal.is_some()
    }

    /// Whether a key with this value, or none, may be set.
    fn allow(&self, old: Option<&Bytes>) -> bool {
        match (old, &self.if_equal) {
            (Some(old), Some(wanted)) => old == wanted,
            (Some(_), None) => !self.if_absent,
            (None, Some(_)) => false,
            (None, None) => !self.if_present,
        }
    }
}

pub(crate) async fn set(store: &impl Store, args: &[Bytes]) -> Outcome {
    let options = SetOptions::parse(&args[3..])?;
    let expiry = options.expiry.as_ref();
    let expiry = expiry.map(|(when, time)| when.expiry_ms(&args[0], time, store));
    let expires_ms = expiry.transpose()?;
    check_value(&args[2])?;
    if !options.look_first() {
        put_until(store, &args[1], args[2].clone(), expires_ms)?;
        return Ok(Reply::OK);
    }
    let old = match options.needs_value() {
        true => store.look_up(&args[1]).await?,
        false => {
            let there =
                |found: FoundLen| Found { value: Bytes::new(), expires_ms: found.expires_ms };
            store.look_up_len(&args[1]).await?.map(there)
        }
    };
    let is_met = options.allow(old.as_ref().map(|old| &old.value));
    if is_met && options.keeps_expiry {
        let expires_ms = old.as_ref().and_then(|old| old.expires_ms);
        put_keeping(store, &args[1], args[2].clone(), expires_ms)?;
    } else if is_met {
        put_until(store, &args[1], args[2].clone(), expires_ms)?;
    }
    Ok(match (options.returns_old, is_met) {
        (true, _) => Reply::bulk_or_null(old.map(|old| old.value)),
        (false, true) => Reply::OK,
        (false, false) => Reply::Null,
    })
}

pub(crate) async fn set_nx(store: &impl Store, args: &[Bytes]) -> Outcome {
    check_value(&args[2])?;
    if store.is_there(&args[1]).await? {
        return Ok(Reply::Integer(0));
    }
    store.put(&args[1], &args[2])?;
    Ok(Reply::Integer(1))
}

pub(crate) async fn get_set(store: &impl Store, args: &[Bytes]) -> Outcome {
    check_value(&args[2])?;
    let old = store.get(&args[1]).await?;
    store.put(&args[1], &args[2])?;
    Ok(Reply::bulk_or_null(old))
}

pub(crate) async fn get_del(store: &impl Store, args: &[Bytes]) -> Outcome {
    let old = store.get(&args[1]).await?;
    if old.is_some() {
        store.write(&[Op::Delete(args[1].clone())])?;
    }
    Ok(Reply::bulk_or_null(old))
}

/// DELIFEQ: deletes a key that has this value.
pub(crate) async fn del_if_equal(store: &impl Store, args: &[Bytes]) -> Outcome {
    if store.get(&args[1]).await?.as_ref() != Some(&args[2]) {
        return Ok(Reply::Integer(0));
    }
    store.write(&[Op::Delete(args[1].clone())])?;
    Ok(Reply::Integer(1))
}

pub(crate) async fn mget(store: &impl Store, args: &[Bytes]) -> Outcome {
    let values = store.get_many(&args[1..], REPLY_LEN_MAX).await?;
    Ok(Reply::Array(values.into_iter().map(Reply::bulk_or_null).collect()))
}

pub(crate) fn mset(store: &impl Store, args: &[Bytes]) -> Outcome {
    store.write(&pairs("mset", args)?)?;
    Ok(Reply::OK)
}

pub(crate) async fn mset_nx(store: &impl Store, args: &[Bytes]) -> Outcome {
    let ops = pairs("msetnx", args)?;
    let keys: Vec<_> = args[1..].iter().step_by(2).cloned().collect();
    if store.are_there(&keys).await?.contains(&true) {
        return Ok(Reply::Integer(0));
    }
    store.write(&ops)?;
    Ok(Reply::Integer(1))
}

/// The writes of MSET and MSETNX.
fn pairs(name: &str, args: &[Bytes]) -> Result<Vec<Op>, super::execute::Refusal> {
    let (pairs, rest) = args[1..].as_chunks::<2>();
    if !rest.is_empty() {
        return Err(errors::arity(name).into());
    }
    pairs.iter().try_for_each(|[_, value]| check_value(value))?;
    let ops: Vec<Op> =
        pairs.iter().map(|[key, value]| Op::Put(key.clone(), value.clone())).collect();
    check_fits_record(&ops)?;
    Ok(ops)
}

pub(crate) async fn str_len(store: &impl Store, args: &[Bytes]) -> Outcome {
    let len = store.look_up_len(&args[1]).await?.map_or(0, |found| found.len);
    Ok(Reply::Integer(len as i64))
}

pub(crate) async fn get_range(store: &impl Store, args: &[Bytes]) -> Outcome {
    let start = parse_i64(&args[2]).ok_or(errors::NOT_AN_INTEGER)?;
    let end = parse_i64(&args[3]).ok_or(errors::NOT_AN_INTEGER)?;
    let value = store.get(&args[1]).await?.unwrap_or_default();
    let range = resolve_range(start, end, value.len());
    if range.len() == value.len() {
        return Ok(Reply::Bulk(value));
    }
    // A copy: a view would keep the whole value in memory, and nothing would count it.
    Ok(Reply::Bulk(Bytes::copy_from_slice(&value[range])))
}

/// The bytes that `GETRANGE start end` means in a value of `len` bytes: negative numbers count from
/// the end, which is included.
fn resolve_range(start: i64, end: i64, len: usize) -> core::ops::Range<usize> {
    let len = len as i64;
    if start < 0 && end < 0 && start > end {
        return 0..0;
    }
    let from_end = |at: i64| if at < 0 { len.saturating_add(at).max(0) } else { at };
    let (start, end) = (from_end(start), from_end(end).min(len - 1));
    if start > end { 0..0 } else { start as usize..end as usize + 1 }
}

pub(crate) async fn set_range(store: &impl Store, args: &[Bytes]) -> Outcome {
    let offset = parse_i64(&args[2]).ok_or(errors::NOT_AN_INTEGER)?;
    let offset = usize::try_from(offset).map_err(|_| errors::OFFSET)?;
    let patch = &args[3];
    let found = store.look_up(&args[1]).await?;
    let expires_ms = found.as_ref().and_then(|found| found.expires_ms);
    let old = found.map(|found| found.value).unwrap_or_default();
    if patch.is_empty() {
        return Ok(Reply::Integer(old.len() as i64));
    }
    let end = offset.saturating_add(patch.len());
    if end > VALUE_LEN_MAX {
        return Err(errors::string_too_long().into());
    }
    let mut value = old.to_vec();
    value.resize(old.len().max(end), 0);
    value[offset..end].copy_from_slice(patch);
    let len = value.len();
    put_keeping(store, &args[1], value.into(), expires_ms)?;
    Ok(Reply::Integer(len as i64))
}

pub(crate) async fn append(store: &impl Store, args: &[Bytes]) -> Outcome {
    let suffix = &args[2];
    let Some(found) = store.look_up(&args[1]).await? else {
        check_value(suffix)?;
        store.put(&args[1], suffix)?;
        return Ok(Reply::Integer(suffix.len() as i64));
    };
    let len = found.value.len() + suffix.len();
    if len > VALUE_LEN_MAX {
        return Err(errors::string_too_long().into());
    }
    let value = [&found.value[..], suffix].concat();
    put_keeping(store, &args[1], value.into(), found.expires_ms)?;
    Ok(Reply::Integer(len as i64))
}

pub(crate) async fn incr_by(store: &impl Store, args: &[Bytes]) -> Outcome {
    let by = parse_i64(&args[2]).ok_or(errors::NOT_AN_INTEGER)?;
    add(store, &args[1], by).await
}

pub(crate) async fn decr_by(store: &impl Store, args: &[Bytes]) -> Outcome {
    let by = parse_i64(&args[2]).ok_or(errors::NOT_AN_INTEGER)?;
    let by = by.checked_neg().ok_or(errors::DECR_OVERFLOW)?;
    add(store, &args[1], by).await
}

/// Adds to the number that a key holds; none is 0.
pub(crate) async fn add(store: &impl Store, key: &Bytes, by: i64) -> Outcome {
    let found = store.look_up(key).await?;
    let old = match &found {
        Some(found) => parse_i64(&found.value).ok_or(errors::NOT_AN_INTEGER)?,
        None => 0,
    };
    let new = old.checked_add(by).ok_or(errors::OVERFLOW)?;
    let mut text = Vec::with_capacity(20);
    put_decimal(&mut text, new);
    put_keeping(store, key, text.into(), found.and_then(|found| found.expires_ms))?;
    Ok(Reply::Integer(new))
}

/// Adds to the number with decimals that a key holds; none is 0.
pub(crate) async fn incr_by_float(store: &impl Store, args: &[Bytes]) -> Outcome {
    let found = store.look_up(&args[1]).await?;
    let old = match &found {
        Some(found) => LongDouble::parse(&found.value).ok_or(errors::NOT_A_FLOAT)?,
        None => LongDouble::ZERO,
    };
    let by = LongDouble::parse(&args[2]).ok_or(errors::NOT_A_FLOAT)?;
    let sum = old.add(by).ok_or(errors::NO_FINITE_SUM)?;
    let text = Bytes::from(sum.to_text());
    put_keeping(store, &args[1], text.clone(), found.and_then(|found| found.expires_ms))?;
    Ok(Reply::Bulk(text))
}

pub(crate) fn check_value(value: &[u8]) -> Result<(), Reply> {
    if value.len() > VALUE_LEN_MAX { Err(errors::value_too_long(value.len())) } else { Ok(()) }
}

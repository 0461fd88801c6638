//! Commands on the time at which a key expires. A key's expiry is a part of its value in the store, so each of
//! them that changes it writes the value anew.

use super::errors;
use super::execute::{Outcome, Refusal};
use super::store::{Op, Store};
use bytes::Bytes;
use gabion_base::number::parse_i64;
use gabion_resp::Reply;

/// How a time is given.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum When {
    /// EX: seconds from now.
    Seconds,
    /// PX: milliseconds from now.
    Millis,
    /// EXAT: seconds since 1970.
    AtSecond,
    /// PXAT: milliseconds since 1970.
    AtMilli,
}

impl When {
    /// What an option's word means.
    pub(crate) fn of(word: &[u8]) -> Option<Self> {
        let is = |name: &str| word.eq_ignore_ascii_case(name.as_bytes());
        [
            ("ex", Self::Seconds),
            ("px", Self::Millis),
            ("exat", Self::AtSecond),
            ("pxat", Self::AtMilli),
        ]
        .into_iter()
        .find_map(|(name, when)| is(name).then_some(when))
    }

    const fn is_in_seconds(self) -> bool {
        matches!(self, Self::Seconds | Self::AtSecond)
    }

    /// The time that is reckoned from, in milliseconds of the store's time.
    pub(super) fn base_ms(self, store: &impl Store) -> i64 {
        match self {
            Self::Seconds | Self::Millis => store.now_ms() as i64,
            Self::AtSecond | Self::AtMilli => -store.system_ahead_ms(),
        }
    }

    /// The store's time that a positive number means, in milliseconds. `name` is the command's.
    pub(crate) fn expiry_ms(
        self,
        name: &[u8],
        text: &[u8],
        store: &impl Store,
    ) -> Result<u64, Reply> {
        let time = parse_i64(text).ok_or(errors::NOT_AN_INTEGER)?;
        let factor = if self.is_in_seconds() { 1_000 } else { 1 };
        let at = time.checked_mul(factor).and_then(|ms| ms.checked_add(self.base_ms(store)));
        // A time of day before the store's first one has passed.
        at.filter(|_| time > 0)
            .map(|at| at.max(0).unsigned_abs())
            .ok_or_else(|| errors::expire_time(name))
    }
}

/// Sets a key until a time, or deletes it where that has passed.
pub(crate) fn put_until(
    store: &impl Store,
    key: &Bytes,
    value: Bytes,
    expires_ms: Option<u64>,
) -> Result<(), Refusal> {
    let op = match expires_ms {
        None => return Ok(store.put(key, &value)?),
        Some(at) if at > store.now_ms() => Op::PutExpiring(key.clone(), value, at),
        Some(_) => Op::Delete(key.clone()),
    };
    Ok(store.write(&[op])?)
}

/// Sets a key and leaves its expiry as it was read, whatever the clock says by now.
pub(crate) fn put_keeping(
    store: &impl Store,
    key: &Bytes,
    value: Bytes,
    expires_ms: Option<u64>,
) -> Result<(), Refusal> {
    match expires_ms {
        None => store.put(key, &value)?,
        at => store.write(&[Op::put(key.clone(), value, at)])?,
    }
    Ok(())
}

/// SETEX and PSETEX.
pub(crate) fn set_ex(store: &impl Store, args: &[Bytes], when: When) -> Outcome {
    let expires_ms = when.expiry_ms(&args[0], &args[2], store)?;
    super::strings::check_value(&args[3])?;
    put_until(store, &args[1], args[3].clone(), Some(expires_ms))?;
    Ok(Reply::OK)
}

/// What stands behind `EXPIRE key time`.
#[derive(Default)]
struct Condition {
    if_none: bool,
    if_any: bool,
    if_later: bool,
    if_sooner: bool,
}

impl Condition {
    fn parse(words: &[Bytes]) -> Result<Self, Reply> {
        let mut condition = Self::default();
        for word in words {
            let flag = match &word.to_ascii_lowercase()[..] {
                b"nx" => &mut condition.if_none,
                b"xx" => &mut condition.if_any,
                b"gt" => &mut condition.if_later,
                b"lt" => &mut condition.if_sooner,
                _ => return Err(errors::unsupported_option(word)),
            };
            *flag = true;
        }
        if condition.if_none && (condition.if_any || condition.if_later || condition.if_sooner) {
            return Err(errors::NX_AND_OTHERS);
        }
        if condition.if_later && condition.if_sooner {
            return Err(errors::GT_AND_LT);
        }
        Ok(condition)
    }

    /// Whether a key that expires at `old_ms` is to expire at `new_ms`. One that never does counts as later
    /// than any.
    fn is_met(&self, old_ms: Option<u64>, new_ms: i64) -> bool {
        let compare = old_ms.map(|old_ms| new_ms.cmp(&(old_ms as i64)));
        !(self.if_none && old_ms.is_some()
            || self.if_any && old_ms.is_none()
            || self.if_later && compare.is_none_or(|order| order.is_le())
            || self.if_sooner && compare.is_some_and(|order| order.is_ge()))
    }
}

/// EXPIRE, PEXPIRE, EXPIREAT and PEXPIREAT.
pub(crate) async fn expire(store: &impl Store, args: &[Bytes], when: When) -> Outcome {
    let condition = Condition::parse(&args[3..])?;
    let time = parse_i64(&args[2]).ok_or(errors::NOT_AN_INTEGER)?;
    let factor = if when.is_in_seconds() { 1_000 } else { 1 };
    let at = time.checked_mul(factor);
    let at = at.and_then(|ms| ms.checked_add(when.base_ms(store)));
    let at = at.ok_or_else(|| errors::expire_time(&args[0]))?;
    let Some(found) = store.look_up(&args[1]).await? else { return Ok(Reply::Integer(0)) };
    if !condition.is_met(found.expires_ms, at) {
        return Ok(Reply::Integer(0));
    }
    // A time before 1970 has passed as well.
    put_until(store, &args[1], found.value, Some(u64::try_from(at).unwrap_or(0)))?;
    Ok(Reply::Integer(1))
}

pub(crate) async fn persist(store: &impl Store, args: &[Bytes]) -> Outcome {
    let found = store.look_up(&args[1]).await?;
    let Some(found) = found.filter(|found| found.expires_ms.is_some()) else {
        return Ok(Reply::Integer(0));
    };
    store.put(&args[1], &found.value)?;
    Ok(Reply::Integer(1))
}

/// How a time is told.
#[derive(Clone, Copy)]
pub(crate) struct Told {
    /// The time left, or else the time itself.
    pub(crate) is_left: bool,
    /// In seconds, rounded, or else in milliseconds.
    pub(crate) in_seconds: bool,
}

/// TTL, PTTL, EXPIRETIME and PEXPIRETIME.
pub(crate) async fn tell(store: &impl Store, args: &[Bytes], told: Told) -> Outcome {
    let Some(found) = store.look_up_len(&args[1]).await? else { return Ok(Reply::Integer(-2)) };
    let Some(expires_ms) = found.expires_ms else { return Ok(Reply::Integer(-1)) };
    // The clock may be ahead of the group's time, by which the key is still there.
    let ms = match told.is_left {
        true => expires_ms.saturating_sub(store.now_ms()),
        false => expires_ms.saturating_add_signed(store.system_ahead_ms()),
    };
    let time = if told.in_seconds { ms.saturating_add(500) / 1_000 } else { ms };
    Ok(Reply::Integer(i64::try_from(time).unwrap_or(i64::MAX)))
}

/// What stands behind `GETEX key`.
enum Change {
    Nothing,
    Persist,
    Expire(When, Bytes),
}

impl Change {
    fn parse(words: &[Bytes]) -> Result<Self, Reply> {
        let mut change = Self::Nothing;
        let mut words = words.iter();
        while let Some(word) = words.next() {
            change = match (When::of(word), &change) {
                (None, Self::Nothing | Self::Persist) if word.eq_ignore_ascii_case(b"persist") => {
                    Self::Persist
                }
                (Some(when), Self::Nothing) => {
                    Self::Expire(when, words.next().ok_or(errors::SYNTAX)?.clone())
                }
                (Some(when), Self::Expire(before, _)) if when == *before => {
                    Self::Expire(when, words.next().ok_or(errors::SYNTAX)?.clone())
                }
                _ => return Err(errors::SYNTAX),
            };
        }
        Ok(change)
    }
}

pub(crate) async fn get_ex(store: &impl Store, args: &[Bytes]) -> Outcome {
    let change = Change::parse(&args[2..])?;
    let Some(found) = store.look_up(&args[1]).await? else { return Ok(Reply::Null) };
    match change {
        Change::Expire(when, text) => {
            let expires_ms = when.expiry_ms(&args[0], &text, store)?;
            put_until(store, &args[1], found.value.clone(), Some(expires_ms))?;
        }
        Change::Persist if found.expires_ms.is_some() => store.put(&args[1], &found.value)?,
        Change::Persist | Change::Nothing => {}
    }
    Ok(Reply::Bulk(found.value))
}

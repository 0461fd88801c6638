//! RENAME, RENAMENX and COPY: a value under another key, with its expiry. A key's value lies where it was
//! written, so each writes it anew; what leaves one key and comes to another is one record.

use super::errors;
use super::execute::Outcome;
use super::expiry::put_keeping;
use super::store::{Op, Store};
use bytes::Bytes;
use gabion_base::number::parse_i64;
use gabion_resp::Reply;

pub(crate) async fn rename(store: &impl Store, args: &[Bytes]) -> Outcome {
    let (from, to) = (&args[1], &args[2]);
    let found = store.look_up(from).await?.ok_or(errors::NO_SUCH_KEY)?;
    if from != to {
        store.write(&[
            Op::Delete(from.clone()),
            Op::put(to.clone(), found.value, found.expires_ms),
        ])?;
    }
    Ok(Reply::OK)
}

pub(crate) async fn rename_nx(store: &impl Store, args: &[Bytes]) -> Outcome {
    let (from, to) = (&args[1], &args[2]);
    let found = store.look_up(from).await?.ok_or(errors::NO_SUCH_KEY)?;
    if store.is_there(to).await? {
        return Ok(Reply::Integer(0));
    }
    store.write(&[Op::Delete(from.clone()), Op::put(to.clone(), found.value, found.expires_ms)])?;
    Ok(Reply::Integer(1))
}

/// Whether `REPLACE` stands behind `COPY source destination`.
fn replaces(words: &[Bytes]) -> Result<bool, Reply> {
    let mut replaces = false;
    let mut words = words.iter();
    while let Some(word) = words.next() {
        if word.eq_ignore_ascii_case(b"replace") {
            replaces = true;
        } else if word.eq_ignore_ascii_case(b"db")
            && let Some(index) = words.next()
        {
            check_database(index)?;
        } else {
            return Err(errors::SYNTAX);
        }
    }
    Ok(replaces)
}

/// There is one database, number 0.
fn check_database(index: &[u8]) -> Result<(), Reply> {
    let index = parse_i64(index).ok_or(errors::NOT_AN_INTEGER)?;
    match i32::try_from(index) {
        Ok(0) => Ok(()),
        Ok(_) => Err(errors::NO_DATABASE),
        Err(_) => Err(errors::NOT_AN_INT),
    }
}

pub(crate) async fn copy(store: &impl Store, args: &[Bytes]) -> Outcome {
    let replaces = replaces(&args[3..])?;
    let (from, to) = (&args[1], &args[2]);
    if from == to {
        return Err(errors::SAME_OBJECT.into());
    }
    let Some(found) = store.look_up(from).await? else { return Ok(Reply::Integer(0)) };
    if !replaces && store.is_there(to).await? {
        return Ok(Reply::Integer(0));
    }
    put_keeping(store, to, found.value, found.expires_ms)?;
    Ok(Reply::Integer(1))
}

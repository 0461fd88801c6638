//! Messages of etcd's JSON gateway: numbers of 64 bits are texts, bytes are base64, and a field of
//! the default value is left out.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use gabion_base::{Error, Result};
use serde_json::{Value, json};

/// A key with its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pair {
    pub(crate) key: Vec<u8>,
    pub(crate) value: Vec<u8>,
    pub(crate) create_revision: u64,
    pub(crate) mod_revision: u64,
    pub(crate) lease: u64,
}

pub(crate) fn text(bytes: impl AsRef<[u8]>) -> String {
    STANDARD.encode(bytes)
}

fn unclear(what: &str, value: &Value) -> Error {
    const SHOWN: usize = 80;
    let shown: String = value.to_string().chars().take(SHOWN).collect();
    Error::io(format!("not an answer of etcd: {what} is {shown}"))
}

/// A number, 0 where there is none.
pub(crate) fn number(value: &Value, name: &str) -> Result<u64> {
    match &value[name] {
        Value::Null => Ok(0),
        Value::String(text) => text.parse().map_err(|_| unclear(name, &value[name])),
        Value::Number(number) => number.as_u64().ok_or_else(|| unclear(name, &value[name])),
        other => Err(unclear(name, other)),
    }
}

fn bytes(value: &Value, name: &str) -> Result<Vec<u8>> {
    match &value[name] {
        Value::Null => Ok(Vec::new()),
        Value::String(text) => STANDARD.decode(text).map_err(|_| unclear(name, &value[name])),
        other => Err(unclear(name, other)),
    }
}

/// The revision of the whole store that an answer is of.
pub(crate) fn revision(answer: &Value) -> Result<u64> {
    match number(&answer["header"], "revision")? {
        0 => Err(unclear("header", &answer["header"])),
        revision => Ok(revision),
    }
}

pub(crate) fn pair(value: &Value) -> Result<Pair> {
    Ok(Pair {
        key: bytes(value, "key")?,
        value: bytes(value, "value")?,
        create_revision: number(value, "create_revision")?,
        mod_revision: number(value, "mod_revision")?,
        lease: number(value, "lease")?,
    })
}

/// The elements of a list, which is left out when it is empty.
pub(crate) fn list<'a>(value: &'a Value, name: &str) -> Result<&'a [Value]> {
    match &value[name] {
        Value::Null => Ok(&[]),
        Value::Array(all) => Ok(all),
        other => Err(unclear(name, other)),
    }
}

/// The pairs of a range.
pub(crate) fn pairs(range: &Value) -> Result<Vec<Pair>> {
    list(range, "kvs")?.iter().map(pair).collect()
}

/// The pair of the range of one key.
pub(crate) fn one(range: &Value) -> Result<Option<Pair>> {
    Ok(pairs(range)?.pop())
}

/// Whether the condition of a transaction held.
pub(crate) fn has_succeeded(answer: &Value) -> Result<bool> {
    match &answer["succeeded"] {
        Value::Null => Ok(false),
        Value::Bool(has) => Ok(*has),
        other => Err(unclear("succeeded", other)),
    }
}

/// The answers of a transaction's ranges, of which there are `count`.
pub(crate) fn ranges(answer: &Value, count: usize) -> Result<Vec<&Value>> {
    let all = list(answer, "responses")?;
    let found: Vec<&Value> = all.iter().filter_map(|one| one.get("response_range")).collect();
    if found.len() == count { Ok(found) } else { Err(unclear("responses", &answer["responses"])) }
}

/// The end of the range of all keys that begin with this one.
pub(crate) fn end_of(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return end;
        }
    }
    // To the last key that there is.
    vec![0]
}

/// The request of one key.
pub(crate) fn range_of(key: &[u8]) -> Value {
    json!({ "key": text(key) })
}

/// The condition that a key was changed last at this revision; 0 for one that is not there.
pub(crate) fn is_at(key: &[u8], mod_revision: u64) -> Value {
    let revision = mod_revision.to_string();
    json!({ "key": text(key), "target": "MOD", "result": "EQUAL", "mod_revision": revision })
}

/// The condition that a key was made at this revision, and not removed since.
pub(crate) fn is_of(key: &[u8], create_revision: u64) -> Value {
    let revision = create_revision.to_string();
    json!({ "key": text(key), "target": "CREATE", "result": "EQUAL", "create_revision": revision })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_that_are_left_out_have_their_defaults_and_wrong_ones_are_refused() {
        let read = pair(&json!({ "key": "YQ==", "mod_revision": "7" })).unwrap();
        assert_eq!((&*read.key, read.mod_revision, read.lease), (&b"a"[..], 7, 0));
        for wrong in [
            json!({ "key": 7 }),
            json!({ "key": "=" }),
            json!({ "mod_revision": "-1" }),
            json!({ "mod_revision": [] }),
            json!({ "lease": "99999999999999999999999" }),
        ] {
            pair(&wrong).expect_err(&wrong.to_string());
        }
        revision(&json!({ "header": {} })).unwrap_err();
        ranges(&json!({ "responses": [{ "response_put": {} }] }), 1).unwrap_err();
    }

    #[test]
    fn the_range_of_a_prefix_ends_before_the_next_one() {
        assert_eq!(end_of(b"a/"), b"a0");
        assert_eq!(end_of(b"a\xff\xff"), b"b");
        assert_eq!(end_of(b"\xff"), [0]);
        assert_eq!(end_of(b""), [0]);
    }
}

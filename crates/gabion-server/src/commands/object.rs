//! OBJECT and MEMORY: what is known of one key's value beyond the value.

use super::execute::Outcome;
use super::store::Store;
use super::table::Id;
use super::{errors, subcommands};
use bytes::Bytes;
use gabion_base::number::parse_i64;
use gabion_engine::memtable::ENTRY_OVERHEAD;
use gabion_resp::Reply;

/// Longest value that Redis keeps beside its header, in one piece of memory.
const EMBEDDED_LEN_MAX: usize = 44;

const FREQ_UNTRACKED: Reply = Reply::error(
    "ERR An LFU maxmemory policy is not selected, access frequency not tracked. Please note that \
     when switching between policies at runtime LRU and LFU data will take some time to adjust.",
);
/// Redis has no words for a store that never evicts and so keeps no times.
const IDLE_UNTRACKED: Reply = Reply::error("ERR idle time not tracked");

pub(crate) async fn object(store: &impl Store, args: &[Bytes]) -> Outcome {
    let [_, sub, key] = args else {
        return Ok(subcommands::help(Id::Object));
    };
    let Some(value) = store.get(key).await? else { return Ok(Reply::Null) };
    Ok(match &sub.to_ascii_lowercase()[..] {
        b"encoding" => Reply::bulk(encoding(&value)),
        b"freq" => FREQ_UNTRACKED,
        b"idletime" => IDLE_UNTRACKED,
        b"refcount" => Reply::Integer(1),
        // Not what came here: it was checked.
        _ => errors::unknown_subcommand("object", sub),
    })
}

/// How Redis would keep a value that was set as a whole.
fn encoding(value: &[u8]) -> &'static str {
    match value.len() {
        _ if parse_i64(value).is_some() => "int",
        0..=EMBEDDED_LEN_MAX => "embstr",
        _ => "raw",
    }
}

pub(crate) async fn memory(store: &impl Store, args: &[Bytes]) -> Outcome {
    let [_, _, key, options @ ..] = args else {
        return Ok(subcommands::help(Id::Memory));
    };
    check_samples(options)?;
    let Some(found) = store.look_up_len(key).await? else { return Ok(Reply::Null) };
    Ok(Reply::Integer((key.len() + found.len + ENTRY_OVERHEAD) as i64))
}

/// `SAMPLES count`, which says how much of a value that has parts is looked at. A string has none.
fn check_samples(options: &[Bytes]) -> Result<(), Reply> {
    let (pairs, rest) = options.as_chunks::<2>();
    for [word, count] in pairs {
        if !word.eq_ignore_ascii_case(b"samples") {
            return Err(errors::SYNTAX);
        }
        let count = parse_i64(count).ok_or(errors::NOT_AN_INTEGER)?;
        if count < 0 {
            return Err(errors::SYNTAX);
        }
    }
    if rest.is_empty() { Ok(()) } else { Err(errors::SYNTAX) }
}

//! `gabion db get`, `scan` and `size`: the replica's answers as after a start.

use super::out::{Out, Told, bytes, quoted};
use super::scrub::entries_of;
use crate::at_rest::{AtRest, Replica};
use crate::options::{RangeOptions, ScanOptions};
use crate::screen::Progress;
use crate::units::size as size_text;
use bytes::Bytes;
use gabion_base::units::KEY_LEN_MAX;
use gabion_base::{Error, Result};
use gabion_engine::{Found, Keyspace, LocalCache, Move, RangeSize, Tables};
use gabion_node::{FileMap, PoolSource};
use serde_json::{Value, json};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::rc::Rc;

const CACHE_BYTES: usize = 16 << 20;

/// The files of a replica, for reads.
fn tables(replica: &Replica) -> Tables<PoolSource<FileMap>> {
    let (node, _, source, _) = replica;
    Tables {
        source: source.clone(),
        cache: Rc::new(LocalCache::new(CACHE_BYTES)),
        group: node.config().group,
    }
}

/// The value of a key in a pool that no process uses.
///
/// # Errors
/// Of the pool.
pub(crate) fn value_at_rest(pool: AtRest, key: &[u8]) -> Result<Option<Bytes>> {
    let engine_key = [&[Keyspace::User as u8], key].concat();
    let replica = pool.into_replica()?;
    let (node, _, _, medium) = &replica;
    let found = medium.block_on(node.read_view().look_up(&tables(&replica), &engine_key))?;
    Ok(found.map(|found| found.value))
}

pub(super) fn get(pool: AtRest, key: &OsStr, out: &mut Out) -> Told {
    let engine_key = user_key(key)?;
    let replica = pool.into_replica()?;
    let (node, _, _, medium) = &replica;
    let found = medium.block_on(node.read_view().look_up(&tables(&replica), &engine_key))?;
    tell_value(key.as_bytes(), found.as_ref(), out)
}

pub(super) fn scan(pool: AtRest, options: &ScanOptions, out: &mut Out) -> Told {
    let (from, to) = range(&options.range)?;
    let replica = pool.into_replica()?;
    let (node, _, _, medium) = &replica;
    let (view, tables) = (node.tree().lasting_view(), tables(&replica));
    let limit = options.limit.unwrap_or(u64::MAX);
    // Without a size no progress is drawn: the scan itself meets unreadable places and reports
    // them.
    let size = medium.block_on(view.approximate_size(&tables, &from, Some(&to)));
    let entries = size.map_or(0, |size| size.entries).min(limit);
    let mut progress = Progress::beside_lines();
    let mut pairs = view.scan(&tables, &from, Some(&to));
    for number in 0..limit {
        progress.bar_of(number, entries.max(number), "entries", "about");
        let to = match (options.reverse, number) {
            (false, _) => Move::Next,
            (true, 0) => Move::Last,
            (true, _) => Move::Prev,
        };
        medium.block_on(pairs.go(to))?;
        let Some((key, value)) = pairs.key().zip(pairs.value()) else { break };
        tell_pair(&key[1..], value, pairs.expires_ms(), out)?;
    }
    progress.clear();
    Ok(())
}

pub(super) fn size(pool: AtRest, options: &RangeOptions, out: &mut Out) -> Told {
    let (from, to) = range(options)?;
    let replica = pool.into_replica()?;
    let (node, _, _, medium) = &replica;
    let (view, tables) = (node.tree().lasting_view(), tables(&replica));
    tell_size(&medium.block_on(view.approximate_size(&tables, &from, Some(&to)))?, out)
}

/// Prints the size of a range.
pub(super) fn tell_size(size: &RangeSize, out: &mut Out) -> Told {
    let &RangeSize { file_bytes, memtable_bytes, entries } = size;
    if out.json {
        return out.document(&json!({
            "file_bytes": file_bytes, "memtable_bytes": memtable_bytes, "entries": entries,
        }));
    }
    out.text(&format!(
        "about {} in files, {} in memory; {}\n",
        size_text(file_bytes),
        size_text(memtable_bytes),
        entries_of(entries)
    ))
}

/// Prints the value of a key.
pub(super) fn tell_value(key: &[u8], found: Option<&Found>, out: &mut Out) -> Told {
    if out.json {
        let value = found.map(|found| &found.value[..]);
        return out.document(&pair(key, value, found.and_then(|found| found.expires_ms)));
    }
    match found {
        Some(found) => out.text(&(quoted(&found.value) + "\n")),
        None => out.text("(nil)\n"),
    }
}

/// One pair of many.
pub(super) fn tell_pair(key: &[u8], value: &[u8], expires_ms: Option<u64>, out: &mut Out) -> Told {
    if out.json {
        return out.text(&format!("{}\n", pair(key, Some(value), expires_ms)));
    }
    out.text(&format!("{} {}\n", quoted(key), quoted(value)))
}

/// A pair as `load` takes it back: with its expiry, or it would stay for good there.
fn pair(key: &[u8], value: Option<&[u8]>, expires_ms: Option<u64>) -> Value {
    let mut pair = json!({ "key": bytes(key), "value": value.map(bytes) });
    if let Some(at_ms) = expires_ms {
        pair["expires_ms"] = at_ms.into();
    }
    pair
}

/// A user's key that is not too long.
pub(super) fn checked(key: &OsStr) -> Result<&[u8]> {
    let key = key.as_bytes();
    if key.len() > KEY_LEN_MAX {
        return Err(Error::limit(format!(
            "KEY has {} bytes, the limit is {KEY_LEN_MAX}",
            key.len()
        )));
    }
    Ok(key)
}

/// The engine key of a user's key.
fn user_key(key: &OsStr) -> Result<Vec<u8>> {
    Ok([&[Keyspace::User as u8], checked(key)?].concat())
}

/// The engine keys from the first to show to the first after them.
fn range(options: &RangeOptions) -> Result<(Vec<u8>, Vec<u8>)> {
    let key = |option: &Option<OsString>| option.as_deref().map(user_key).transpose();
    let prefix = key(&options.prefix)?.unwrap_or_else(|| vec![Keyspace::User as u8]);
    let from = key(&options.from)?.map_or_else(|| prefix.clone(), |from| from.max(prefix.clone()));
    let end = after_prefix(&prefix);
    let to = key(&options.to)?.map_or_else(|| end.clone(), |to| to.min(end.clone()));
    Ok((from, to))
}

/// The first engine key after all that begin with `prefix`, which begins with a keyspace.
fn after_prefix(prefix: &[u8]) -> Vec<u8> {
    let kept = prefix.iter().rposition(|&byte| byte != 0xff).map_or(0, |at| at + 1);
    let mut after = prefix[..kept].to_vec();
    if let Some(last) = after.last_mut() {
        *last += 1;
    }
    after
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(from: Option<&str>, to: Option<&str>, prefix: Option<&str>) -> (Vec<u8>, Vec<u8>) {
        let option = |text: Option<&str>| text.map(OsString::from);
        let options = RangeOptions { from: option(from), to: option(to), prefix: option(prefix) };
        range(&options).unwrap()
    }

    #[test]
    fn a_range_is_the_part_that_all_options_agree_on() {
        assert_eq!(keys(None, None, None), (vec![1], vec![2]));
        assert_eq!(keys(Some("b"), Some("d"), None), (b"\x01b".to_vec(), b"\x01d".to_vec()));
        assert_eq!(keys(None, None, Some("ab")), (b"\x01ab".to_vec(), b"\x01ac".to_vec()));
        assert_eq!(
            keys(Some("abc"), Some("z"), Some("ab")),
            (b"\x01abc".to_vec(), b"\x01ac".to_vec())
        );
        assert_eq!(keys(Some("a"), None, Some("b")), (b"\x01b".to_vec(), b"\x01c".to_vec()));
    }

    #[test]
    fn a_prefix_of_the_highest_bytes_ends_with_the_keyspace() {
        assert_eq!(after_prefix(b"\x01a\xff\xff"), b"\x01b");
        assert_eq!(after_prefix(b"\x01\xff"), b"\x02");
    }

    #[test]
    fn a_key_over_the_limit_is_refused_with_the_limit() {
        let error = user_key(OsStr::new(&"k".repeat(KEY_LEN_MAX + 1))).unwrap_err();
        assert_eq!(error.to_string(), "KEY has 65537 bytes, the limit is 65536");
    }
}

//! The store.
//!
//! A swap is one transaction: if the name has this revision, and this handle still leads if it ever
//! did, the value is put. When an answer is lost, the same transaction is sent again. It cannot
//! take effect twice, as the first changes the revision, and the tag of the value that is found
//! then tells whether it is this one.

use crate::client::{Answer, CALL_MAX, Client, Failure, Operation, Reason};
use crate::lease::Held;
use crate::url::EtcdUrl;
use crate::wire::{self, Pair};
use gabion_base::{Error, ErrorKind, Result};
use gabion_control::store::{Store, Swapped, Version, Versioned};
use gabion_tls::ClientTls;
use serde_json::json;
use std::sync::Arc;

/// Bytes of a value. etcd takes requests of 1.5 MiB.
pub const VALUE_LEN_MAX: usize = 1 << 20;
/// Bytes of a name.
pub const NAME_LEN_MAX: usize = 512;
/// Names of one request of a list, so that its answer is bounded.
const PAGE: usize = 16;
/// Names of a list.
const LIST_MAX: usize = 100_000;
/// How often a list begins again whose revision was compacted meanwhile.
const LISTS_MAX: usize = 3;
const FORMAT: u8 = 1;
const HEADER_LEN: usize = 1 + 8 + 8;

/// The store. Each handle can lead once at a time; what it does then is refused from the moment at
/// which it leads no more.
pub struct EtcdStore {
    pub(crate) client: Arc<Client>,
    pub(crate) url: EtcdUrl,
    /// Random: tells what this handle writes from what others do.
    handle: u64,
    /// Writes of this handle.
    count: u64,
    /// Its lease while it leads; swaps are bound to it.
    pub(crate) held: Option<Held>,
}

/// The names under a prefix at one revision.
pub(crate) struct Listed {
    pub(crate) pairs: Vec<(String, Versioned)>,
    pub(crate) revision: u64,
}

impl EtcdStore {
    /// Opens the store of an etcd that answers. `tls` is for `etcd+tls://`, and for nothing else.
    ///
    /// # Errors
    /// Unavailable when no endpoint answers, or none is let in; invalid input where the URL and
    /// `tls` do not agree; of the system's random numbers.
    pub fn open(url: &EtcdUrl, tls: Option<&Arc<ClientTls>>) -> Result<Self> {
        if url.is_tls() != tls.is_some() {
            return Err(Error::invalid(match tls {
                None => format!("store {url}: TLS needs the file of an authority"),
                Some(_) => format!("store {url}: certificates are for etcd+tls:// alone"),
            }));
        }
        let mut random = [0; 8];
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())
            .map_err(|e| Error::with_source(ErrorKind::Io, "no random number is to be had", e))?;
        let (url, client) = (url.clone(), Client::new(url, tls));
        let handle = u64::from_le_bytes(random);
        let store = Self { client, url, handle, count: 0, held: None };
        store.leader()?;
        Ok(store)
    }

    /// The key of a name.
    fn key(&self, name: &str) -> Result<Vec<u8>> {
        let len = name.len();
        if len == 0 || len > NAME_LEN_MAX {
            let text = format!("a name of {len} bytes, and it may have 1 to {NAME_LEN_MAX}");
            return Err(Error::limit(text));
        }
        Ok([self.url.values().as_bytes(), name.as_bytes()].concat())
    }

    /// The leader's key.
    pub(crate) fn leader(&self) -> Result<Option<Pair>> {
        let key = self.url.leader();
        let operation = Operation { path: "/v3/kv/range", name: "get leader", is_write: false };
        let asked = self.client.call(operation, &wire::range_of(key.as_bytes()), CALL_MAX);
        wire::one(&asked.map_err(|failure| failure.error)?.value)
    }

    /// A value as it is stored by the next write of this handle.
    fn tagged(&mut self, value: &[u8]) -> Vec<u8> {
        self.count += 1;
        let mut bytes = Vec::with_capacity(HEADER_LEN + value.len());
        bytes.push(FORMAT);
        bytes.extend(self.handle.to_le_bytes());
        bytes.extend(self.count.to_le_bytes());
        bytes.extend(value);
        bytes
    }

    /// Has the outcome of a swap told by etcd's answer to it.
    fn swapped(&self, name: &str, put: &[u8], answer: &Answer) -> Result<Swapped> {
        let value = &answer.value;
        if wire::has_succeeded(value)? {
            return Ok(Swapped::Stored(Version(wire::revision(value)?)));
        }
        let ranges = wire::ranges(value, 1 + usize::from(self.held.is_some()))?;
        let found = wire::one(ranges[0])?;
        if let Some(stored) = found.as_ref().filter(|found| found.value == put) {
            return Ok(Swapped::Stored(Version(stored.mod_revision)));
        }
        let leader = ranges.get(1).map(|range| wire::one(range)).transpose()?.flatten();
        if let Some(held) = &self.held
            && leader.as_ref().is_none_or(|leader| leader.create_revision != held.revision())
        {
            return Err(held.lose(leader.as_ref()).within(format!("etcd: swap {name}")));
        }
        // The first attempt may have been carried out, and another handle have built on it since.
        if answer.is_repeated {
            let text =
                format!("etcd: swap {name}: an attempt was not answered, and {name} changed");
            return Err(Error::unknown(text));
        }
        let found = found.map(|pair| versioned(name, &pair)).transpose()?;
        Ok(Swapped::Lost(found))
    }
}

impl Store for EtcdStore {
    fn get(&mut self, name: &str) -> Result<Option<Versioned>> {
        let key = self.key(name)?;
        let operation = format!("get {name}");
        let operation = Operation { path: "/v3/kv/range", name: &operation, is_write: false };
        let asked = self.client.call(operation, &wire::range_of(&key), CALL_MAX);
        let found = wire::one(&asked.map_err(|failure| failure.error)?.value)?;
        found.map(|pair| versioned(name, &pair)).transpose()
    }

    fn list(&mut self, prefix: &str) -> Result<Vec<(String, Versioned)>> {
        list(&self.client, &self.url, prefix).map(|listed| listed.pairs)
    }

    fn swap(&mut self, name: &str, expected: Version, value: &[u8]) -> Result<Swapped> {
        let key = self.key(name)?;
        if value.len() > VALUE_LEN_MAX {
            let len = value.len();
            let text =
                format!("the value of {name} has {len} bytes, and {VALUE_LEN_MAX} are the most");
            return Err(Error::limit(text));
        }
        let mut conditions = vec![wire::is_at(&key, expected.0)];
        let mut reads = vec![json!({ "request_range": wire::range_of(&key) })];
        if let Some(held) = &self.held {
            // Nothing is asked on behalf of a lease that is known to be lost.
            held.check().map_err(|error| error.within(format!("etcd: swap {name}")))?;
            let leader = self.url.leader();
            conditions.push(wire::is_of(leader.as_bytes(), held.revision()));
            reads.push(json!({ "request_range": wire::range_of(leader.as_bytes()) }));
        }
        let put = self.tagged(value);
        let puts =
            json!([{ "request_put": { "key": wire::text(&key), "value": wire::text(&put) } }]);
        let body = json!({ "compare": conditions, "success": puts, "failure": reads });
        let operation = format!("swap {name}");
        let operation = Operation { path: "/v3/kv/txn", name: &operation, is_write: true };
        let answer = self.client.call(operation, &body, CALL_MAX);
        self.swapped(name, &put, &answer.map_err(|failure| failure.error)?)
    }
}

/// The names that begin with a prefix, all at one revision.
pub(crate) fn list(client: &Client, url: &EtcdUrl, prefix: &str) -> Result<Listed> {
    let mut begun = 1;
    loop {
        match list_once(client, url, prefix) {
            // The revision of the first page is too old by now: from the beginning, at a new one.
            Err(failure) if failure.reason == Reason::Compacted && begun < LISTS_MAX => begun += 1,
            other => return other.map_err(|failure| failure.error),
        }
    }
}

fn list_once(client: &Client, url: &EtcdUrl, prefix: &str) -> std::result::Result<Listed, Failure> {
    let values = url.values();
    let mut from = [values.as_bytes(), prefix.as_bytes()].concat();
    let end = wire::text(wire::end_of(&from));
    let operation = format!("list {prefix:?}");
    let operation = Operation { path: "/v3/kv/range", name: &operation, is_write: false };
    let odd = |error| Failure { reason: Reason::Refused, error };
    let mut listed = Listed { pairs: Vec::new(), revision: 0 };
    loop {
        let mut body =
            json!({ "key": wire::text(&from), "range_end": end, "limit": PAGE.to_string() });
        if listed.revision > 0 {
            body["revision"] = json!(listed.revision.to_string());
        }
        let answer = client.call(operation, &body, CALL_MAX)?.value;
        if listed.revision == 0 {
            listed.revision = wire::revision(&answer).map_err(odd)?;
        }
        let page = wire::pairs(&answer).map_err(odd)?;
        let Some(last) = page.last() else { return Ok(listed) };
        // The first key behind the last one.
        from = [&last.key[..], &[0]].concat();
        let is_whole = page.len() < PAGE;
        for pair in &page {
            listed.pairs.push(named(&values, pair).map_err(odd)?);
        }
        if is_whole {
            return Ok(listed);
        }
        if listed.pairs.len() > LIST_MAX {
            let text = format!("etcd: {}: more than {LIST_MAX} names", operation.name);
            return Err(odd(Error::limit(text)));
        }
    }
}

/// The name of a key and its value. `values` is the beginning of every key.
pub(crate) fn named(values: &str, pair: &Pair) -> Result<(String, Versioned)> {
    let name = name_of(values, &pair.key)?;
    let value = versioned(&name, pair)?;
    Ok((name, value))
}

/// The name of a key.
pub(crate) fn name_of(values: &str, key: &[u8]) -> Result<String> {
    let name = key.strip_prefix(values.as_bytes()).map(<[u8]>::to_vec);
    let name = name.and_then(|name| String::from_utf8(name).ok());
    name.ok_or_else(|| {
        let key = String::from_utf8_lossy(key);
        Error::corruption(format!("etcd: key {key:?} under {values} is of another program"))
    })
}

fn versioned(name: &str, pair: &Pair) -> Result<Versioned> {
    let bytes = &pair.value;
    if bytes.len() < HEADER_LEN {
        let len = bytes.len();
        let text = format!("etcd: {name} has {len} bytes, a tag alone has {HEADER_LEN}");
        return Err(Error::corruption(text));
    }
    if bytes[0] != FORMAT {
        let text = format!("etcd: {name} is of format {}, this build knows {FORMAT}", bytes[0]);
        return Err(Error::new(ErrorKind::Unsupported, text));
    }
    if pair.mod_revision == 0 {
        return Err(Error::io(format!(
            "not an answer of etcd: {name} is there without a revision"
        )));
    }
    Ok(Versioned { version: Version(pair.mod_revision), value: bytes[HEADER_LEN..].to_vec() })
}

//! Changes of names, without a gap.
//!
//! ```text
//!   read all names: Present ─► follow from the next revision: Put, Gone …
//!            ▲                          │   ▲
//!            │ failed, compacted,         │   │ ended: from behind the last event
//!            └── or etcd was set back ────┴───┘
//! ```
//!
//! etcd sends the changes from a revision on, or says that it no longer has them. So nothing is
//! missed between two streams, and where something would be, all names are read again. A stream is
//! cut after a while, as one that is silent may be one whose member stands still.

use crate::client::{Client, Operation, PAUSE};
use crate::store::{self, EtcdStore};
use crate::url::EtcdUrl;
use crate::wire::{self, Pair};
use gabion_base::{Error, Result};
use gabion_control::store::Versioned;
use serde_json::{Value, json};
use std::io::{BufRead, Read};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

/// How long a stream lasts.
const STREAM_MAX: Duration = Duration::from_secs(3);
/// Pause after all names could not be read.
const READ_AGAIN: Duration = Duration::from_millis(200);
/// Bytes of a message of a stream. Behind a longer one all names are read.
const MESSAGE_LEN_MAX: u64 = 16 << 20;
/// Changes that wait for their user. Then etcd waits, or compacts them.
const WAITING_MAX: usize = 64;

/// A change of names under a prefix.
#[derive(Clone, Debug)]
pub enum Change {
    /// All names, at first and whenever changes may have been missed. Others are gone.
    Present(Vec<(String, Versioned)>),
    /// A name has this value.
    Put(String, Versioned),
    /// A name is gone.
    Gone(String),
    /// etcd is not heard, so the last word may be old. All names follow once it is heard.
    Unheard(Error),
}

/// A thread that follows names. It ends at its next stream after this is dropped.
pub struct Watch(Receiver<Change>);

impl Watch {
    /// The next change, if one comes within so long.
    #[must_use]
    pub fn next(&self, wait: Duration) -> Option<Change> {
        self.0.recv_timeout(wait).ok()
    }
}

impl EtcdStore {
    /// Follows the names that begin with `prefix`.
    ///
    /// # Errors
    /// I/O when the thread cannot start.
    pub fn watch(&self, prefix: &str) -> Result<Watch> {
        let (sender, receiver) = sync_channel(WAITING_MAX);
        let (client, url, prefix) = (self.client.clone(), self.url.clone(), prefix.to_owned());
        let named = std::thread::Builder::new().name("gabion-watch".to_owned());
        let watcher = Watcher { client, url, prefix, sender, is_unheard: false };
        let started = named.spawn(move || watcher.run());
        started.map_err(|e| Error::io(format!("thread gabion-watch cannot start: {e}")))?;
        Ok(Watch(receiver))
    }
}

/// How a stream ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// At its time, or cut; or its user has enough.
    Ended,
    /// etcd does not have all that came from the revision on: it is compacted, or the revision is
    /// one of before a backup was restored.
    Missing,
}

struct Watcher {
    client: Arc<Client>,
    url: EtcdUrl,
    prefix: String,
    sender: SyncSender<Change>,
    is_unheard: bool,
}

/// The user of a watch is gone.
struct IsGone;

impl Watcher {
    fn run(mut self) {
        let mut from = None;
        while let Ok(next) = self.turn(from) {
            from = next;
        }
    }

    /// One reading, or one stream. Returns the revision from which to follow; none after a gap.
    fn turn(&mut self, from: Option<u64>) -> std::result::Result<Option<u64>, IsGone> {
        let Some(mut from) = from else {
            return match store::list(&self.client, &self.url, &self.prefix) {
                Ok(listed) => {
                    self.send(Change::Present(listed.pairs))?;
                    Ok(Some(listed.revision + 1))
                }
                Err(error) => {
                    self.fail(error)?;
                    std::thread::sleep(READ_AGAIN);
                    Ok(None)
                }
            };
        };
        let values = self.url.values();
        let key = [values.as_bytes(), self.prefix.as_bytes()].concat();
        let end = wire::end_of(&key);
        let (client, begun) = (self.client.clone(), Instant::now());
        let (place, endpoint) = client.endpoint();
        let mut is_gone = false;
        let ended = follow(&client, endpoint, &key, Some(&end), &mut from, STREAM_MAX, |event| {
            let change = match event {
                Event::Put(pair) => {
                    let (name, value) = store::named(&values, &pair)?;
                    Change::Put(name, value)
                }
                Event::Gone(key) => Change::Gone(store::name_of(&values, &key)?),
            };
            is_gone = self.send(change).is_err();
            Ok(!is_gone)
        });
        if is_gone {
            return Err(IsGone);
        }
        match ended {
            Ok(End::Missing) => return Ok(None),
            Ok(End::Ended) => {}
            Err(error) => {
                client.pass_on(place);
                self.fail(error)?;
                std::thread::sleep(PAUSE);
                return Ok(None);
            }
        }
        if begun.elapsed() < STREAM_MAX / 2 {
            std::thread::sleep(PAUSE);
        }
        Ok(Some(from))
    }

    fn send(&mut self, change: Change) -> std::result::Result<(), IsGone> {
        self.is_unheard = false;
        self.sender.send(change).map_err(|_| IsGone)
    }

    fn fail(&mut self, error: Error) -> std::result::Result<(), IsGone> {
        if std::mem::replace(&mut self.is_unheard, true) {
            return Ok(());
        }
        self.sender.send(Change::Unheard(error)).map_err(|_| IsGone)
    }
}

pub(crate) enum Event {
    Put(Pair),
    Gone(Vec<u8>),
}

/// Follows the keys from `key` to `end`, or one key, from a revision on, at one endpoint. `from` is
/// behind the last event that `take` got in the end; where that is false, or fails, it ends.
pub(crate) fn follow(
    client: &Client,
    endpoint: &str,
    key: &[u8],
    end: Option<&[u8]>,
    from: &mut u64,
    wait: Duration,
    mut take: impl FnMut(Event) -> Result<bool>,
) -> Result<End> {
    let mut request = json!({ "key": wire::text(key), "start_revision": from.to_string() });
    if let Some(end) = end {
        request["range_end"] = json!(wire::text(end));
    }
    let body = json!({ "create_request": request });
    let name = format!("watch from revision {from}");
    let operation = Operation { path: "/v3/watch", name: &name, is_write: false };
    let mut stream = client.stream(endpoint, operation, &body, wait.min(STREAM_MAX))?;
    let failed = |why: &str| Error::unavailable(format!("etcd at {endpoint}: {name}: {why}"));
    let (mut is_begun, mut line) = (false, Vec::new());
    loop {
        line.clear();
        let read = stream.by_ref().take(MESSAGE_LEN_MAX).read_until(b'\n', &mut line);
        if line.len() as u64 == MESSAGE_LEN_MAX {
            return Ok(End::Missing);
        }
        if read.is_err() || line.last() != Some(&b'\n') {
            return if is_begun { Ok(End::Ended) } else { Err(failed("no answer")) };
        }
        let message: Value = serde_json::from_slice(&line)
            .map_err(|error| failed(&format!("not an answer of etcd: {error}")))?;
        let result = &message["result"];
        if result["canceled"] == true {
            if wire::number(result, "compact_revision")? > 0 {
                return Ok(End::Missing);
            }
            return Err(failed(result["cancel_reason"].as_str().unwrap_or("canceled")));
        }
        if result.is_null() {
            return Err(failed(message["error"]["message"].as_str().unwrap_or("no result")));
        }
        // etcd would wait for a revision that is to come, and say nothing of those before it.
        let is_of_before = !is_begun && wire::revision(result)? + 1 < *from;
        if is_of_before {
            return Ok(End::Missing);
        }
        is_begun = true;
        let first = *from;
        for event in wire::list(result, "events")? {
            let pair = wire::pair(&event["kv"])?;
            let revision = pair.mod_revision;
            if revision < first {
                return Err(failed(&format!("not an answer of etcd: a change of {revision}")));
            }
            let is_gone = event["type"] == "DELETE";
            let event = if is_gone { Event::Gone(pair.key) } else { Event::Put(pair) };
            if !take(event)? {
                return Ok(End::Ended);
            }
            // An event of the same revision may follow. It comes in the same message.
            *from = (*from).max(revision);
        }
        if !wire::list(result, "events")?.is_empty() {
            *from += 1;
        }
    }
}

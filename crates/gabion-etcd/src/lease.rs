//! Leadership: one handle of all leads. It holds a key under a lease and has it confirmed.
//!
//! ```text
//!   lead ─► leader's key is free? grant, put it under the lease ─► Leads ──┐ every 500 ms
//!     ▲        │ no: follow the key until it is gone                       ├─► confirm the lease
//!     └────────┘                                                           │
//!   not confirmed for 3 s, or etcd says that it is gone, or another leads ─┴─► lost
//! ```
//!
//! The clock of a lease begins when its confirmation was sent, so it ends here before it does in
//! etcd. A machine that was suspended may see that late. Then etcd refuses its swaps, as each of
//! them has the leader's key among its conditions.

use crate::client::{CALL_MAX, Client, Operation, PAUSE, Reason};
use crate::store::EtcdStore;
use crate::watch::follow;
use crate::wire::{self, Pair};
use gabion_base::{Error, ErrorKind, Result};
use serde_json::json;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a leader leads that is not heard. etcd grants no less than 2 s with its defaults.
pub const LEASE: Duration = Duration::from_secs(3);
const CONFIRM_EVERY: Duration = Duration::from_millis(500);
/// How long it may take to give a lease back. It expires by itself as well.
const REVOKE_MAX: Duration = Duration::from_secs(1);
/// Bytes of the name of a leader.
const WHO_LEN_MAX: usize = 128;

/// The outcome of [`EtcdStore::lead`].
#[derive(Debug)]
pub enum Led {
    /// The handle leads.
    Leads(Leadership),
    /// Another one does; its name.
    Other(String),
}

/// The word on whether a handle still leads.
#[derive(Clone, Debug)]
pub struct Leadership(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    until: Instant,
    lost: Option<Error>,
    is_given_up: bool,
    /// Its thread is done, and has given it back if it was to.
    is_over: bool,
    /// Of the last confirmation that did not come.
    last: Option<Error>,
}

/// A lease that is confirmed until this is dropped; then it is given back.
pub(crate) struct Held {
    shared: Arc<Shared>,
    /// At which the leader's key was made.
    revision: u64,
    thread: Option<JoinHandle<()>>,
}

impl Leadership {
    /// Why the handle leads no more, if it does not. Waits for that for so long.
    #[must_use]
    pub fn lost(&self, wait: Duration) -> Option<Error> {
        let deadline = Instant::now() + wait;
        let mut state = self.0.lock();
        loop {
            let now = Instant::now();
            state.expire(now);
            if state.lost.is_some() || now >= deadline {
                return state.lost.clone();
            }
            let next = deadline.min(state.until).saturating_duration_since(now);
            let waited = self.0.changed.wait_timeout(state, next);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Leadership {
    /// Gives the lead up for the handle, which others may hold for longer: another one leads at
    /// once. Waits for etcd's answer, for a second at most.
    pub fn give_up(&self) {
        let deadline = Instant::now() + REVOKE_MAX;
        self.0.give_up();
        let mut state = self.0.lock();
        while !state.is_over {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            let waited = self.0.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Shared {
    fn give_up(&self) {
        let mut state = self.lock();
        state.is_given_up = true;
        state.lost.get_or_insert_with(|| Error::fenced("the lead was given up"));
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn expire(&mut self, now: Instant) {
        if self.lost.is_none() && now >= self.until {
            let text = format!("the lease was not confirmed for {} ms", LEASE.as_millis());
            self.lost = Some(match self.last.take() {
                Some(why) => Error::with_source(ErrorKind::Fenced, text, why),
                None => Error::fenced(text),
            });
        }
    }
}

impl Held {
    pub(crate) const fn revision(&self) -> u64 {
        self.revision
    }

    /// # Errors
    /// Fenced when the lease is lost.
    pub(crate) fn check(&self) -> Result<()> {
        let mut state = self.shared.lock();
        state.expire(Instant::now());
        state.lost.clone().map_or(Ok(()), Err)
    }

    /// etcd said that the key is another one's, or nobody's. Returns why this handle leads no more.
    pub(crate) fn lose(&self, leader: Option<&Pair>) -> Error {
        let mut state = self.shared.lock();
        let error = state.lost.get_or_insert_with(|| match leader {
            Some(other) => Error::fenced(format!("{} leads", name_of(other))),
            None => Error::fenced("the lease has expired"),
        });
        let error = error.clone();
        self.shared.changed.notify_all();
        error
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.shared.give_up();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl EtcdStore {
    /// Has this handle lead if none does. While another one leads, waits so long for it to go.
    /// Swaps of a handle that has led are refused as fenced from when it leads no more, until this
    /// is called again; so a controller that takes the lead reads everything anew.
    ///
    /// # Errors
    /// Limit exceeded for a long name; unavailable or unknown when etcd does not answer.
    pub fn lead(&mut self, who: &str, wait: Duration) -> Result<Led> {
        if who.is_empty() || who.len() > WHO_LEN_MAX {
            let len = who.len();
            let text =
                format!("a leader's name of {len} bytes, and it may have 1 to {WHO_LEN_MAX}");
            return Err(Error::limit(text));
        }
        self.resign();
        let begun = Instant::now();
        loop {
            if let Some(other) = self.leader()? {
                let left = wait.saturating_sub(begun.elapsed());
                if left.is_zero() {
                    return Ok(Led::Other(name_of(&other)));
                }
                self.follow_leader(&other, left);
            } else if let Some(held) = self.take_lead(who)? {
                let leadership = Leadership(held.shared.clone());
                self.held = Some(held);
                return Ok(Led::Leads(leadership));
            }
        }
    }

    /// Gives the lead up, if this handle has it: another one need not wait for the lease to expire.
    pub fn resign(&mut self) {
        self.held = None;
    }

    /// Waits until the leader's key changes, or for so long, or less when a watch fails.
    fn follow_leader(&self, leader: &Pair, wait: Duration) {
        let (place, endpoint) = self.client.endpoint();
        let key = self.url.leader();
        let mut from = leader.mod_revision + 1;
        let ended =
            follow(&self.client, endpoint, key.as_bytes(), None, &mut from, wait, |_| Ok(false));
        // The leader's key is read next, in any case.
        if ended.is_err() {
            self.client.pass_on(place);
            std::thread::sleep(PAUSE);
        }
    }

    /// Puts the leader's key, unless there is one.
    fn take_lead(&self, who: &str) -> Result<Option<Held>> {
        let granted = Instant::now();
        let body = json!({ "TTL": LEASE.as_secs().to_string() });
        let operation =
            Operation { path: "/v3/lease/grant", name: "grant a lease", is_write: true };
        let asked = self.client.call(operation, &body, CALL_MAX);
        let lease = wire::number(&asked.map_err(|failure| failure.error)?.value, "ID")?;
        let key = self.url.leader();
        let put = json!({
            "key": wire::text(&key), "value": wire::text(who), "lease": lease.to_string(),
        });
        let body = json!({
            "compare": [wire::is_of(key.as_bytes(), 0)],
            "success": [{ "request_put": put }],
            "failure": [{ "request_range": wire::range_of(key.as_bytes()) }],
        });
        let operation = Operation { path: "/v3/kv/txn", name: "take the lead", is_write: true };
        let answer = self.client.call(operation, &body, CALL_MAX);
        let value = answer.map_err(|failure| failure.error)?.value;
        let revision = if wire::has_succeeded(&value)? {
            Some(wire::revision(&value)?)
        } else {
            // An attempt that was not answered may have been carried out: the lease is its tag.
            let found = wire::one(wire::ranges(&value, 1)?[0])?;
            found.filter(|found| found.lease == lease).map(|found| found.create_revision)
        };
        let Some(revision) = revision else {
            revoke(&self.client, lease);
            return Ok(None);
        };
        Held::start(self.client.clone(), lease, revision, granted + LEASE).map(Some)
    }
}

impl Held {
    fn start(client: Arc<Client>, lease: u64, revision: u64, until: Instant) -> Result<Self> {
        let state = State { until, lost: None, is_given_up: false, is_over: false, last: None };
        let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() });
        let own = shared.clone();
        let named = std::thread::Builder::new().name("gabion-lease".to_owned());
        let run = move || {
            confirm_all(&client, lease, &own);
            own.lock().is_over = true;
            own.changed.notify_all();
        };
        let thread = named.spawn(run).map_err(|e| {
            Error::with_source(ErrorKind::Io, "thread gabion-lease cannot start", e)
        })?;
        Ok(Self { shared, revision, thread: Some(thread) })
    }
}

/// The thread of a lease.
fn confirm_all(client: &Client, lease: u64, shared: &Shared) {
    loop {
        let mut state = shared.lock();
        if !state.is_given_up {
            let waited = shared.changed.wait_timeout(state, CONFIRM_EVERY);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        if state.is_given_up {
            drop(state);
            revoke(client, lease);
            return;
        }
        let sent = Instant::now();
        state.expire(sent);
        if state.lost.is_some() {
            drop(state);
            shared.changed.notify_all();
            return;
        }
        let left = state.until.saturating_duration_since(sent);
        drop(state);
        let confirmed = confirm(client, lease, left);
        let mut state = shared.lock();
        match confirmed {
            Ok(()) => (state.until, state.last) = (sent + LEASE, None),
            Err(error) if error.kind() == ErrorKind::Fenced => {
                state.lost.get_or_insert(error);
                shared.changed.notify_all();
            }
            Err(error) => state.last = Some(error),
        }
    }
}

/// # Errors
/// Fenced when the lease has expired; unavailable.
fn confirm(client: &Client, lease: u64, patience: Duration) -> Result<()> {
    let body = json!({ "ID": lease.to_string() });
    let operation =
        Operation { path: "/v3/lease/keepalive", name: "confirm the lease", is_write: false };
    let gone = || Error::fenced("etcd: the lease has expired");
    match client.call(operation, &body, patience) {
        Ok(answer) => match wire::number(&answer.value["result"], "TTL")? {
            0 => Err(gone()),
            _ => Ok(()),
        },
        Err(failure) if failure.reason == Reason::NoLease => Err(gone()),
        Err(failure) => Err(failure.error),
    }
}

fn revoke(client: &Client, lease: u64) {
    let body = json!({ "ID": lease.to_string() });
    let operation = Operation { path: "/v3/lease/revoke", name: "revoke a lease", is_write: true };
    // It expires in any case.
    let _ = client.call(operation, &body, REVOKE_MAX);
}

fn name_of(leader: &Pair) -> String {
    String::from_utf8_lossy(&leader.value).into_owned()
}

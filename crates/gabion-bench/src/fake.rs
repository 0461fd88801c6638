//! A server in memory that speaks enough RESP for the benchmark, with faults on a test's request.

use crate::launch::{ClusterSpec, Launcher, RunningCluster};
use crate::status::tests::status_json;
use bytes::{Bytes, BytesMut};
use gabion_base::{Error, Result};
use gabion_resp::{Incoming, Protocol, Reply, Request, RequestParser};
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread;

/// The faults.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Faults {
    /// One in so many writes is refused, in turn with `TRYAGAIN` and with `UNKNOWN` though it is
    /// carried out; 0 for none.
    pub(crate) refuse_every: u64,
    /// One in so many reads has a changed byte; 0 for none.
    pub(crate) corrupt_every: u64,
    /// Reads find nothing.
    pub(crate) loses: bool,
    /// The error that every write gets.
    pub(crate) error: Option<&'static str>,
    /// The connection ends at this write; 0 for never.
    pub(crate) close_at: u64,
    /// Writes are acknowledged and not carried out.
    pub(crate) drops: bool,
    /// Writes that get `error` are carried out.
    pub(crate) makes: bool,
}

#[derive(Default)]
struct State {
    keys: Mutex<BTreeMap<Bytes, Bytes>>,
    writes: AtomicU64,
    refusals: AtomicU64,
    reads: AtomicU64,
    faults: Mutex<Faults>,
    compaction: &'static str,
}

/// A cluster whose replicas are one map.
pub(crate) struct FakeCluster {
    addresses: Vec<SocketAddr>,
    state: Arc<State>,
}

impl FakeCluster {
    pub(crate) fn start(replicas: u32, compaction: &'static str, faults: Faults) -> Self {
        let state = Arc::new(State { faults: Mutex::new(faults), compaction, ..State::default() });
        let addresses = (1..=replicas).map(|id| listen(id, replicas, Arc::clone(&state)));
        Self { addresses: addresses.collect(), state }
    }

    pub(crate) fn keys(&self) -> usize {
        self.state.keys.lock().unwrap().len()
    }

    /// Has other faults from now on.
    pub(crate) fn set(&self, faults: Faults) {
        *self.state.faults.lock().unwrap() = faults;
    }

    /// Loses the first key.
    pub(crate) fn forget_one(&self) {
        self.state.keys.lock().unwrap().pop_first().expect("a key that can be lost");
    }
}

impl RunningCluster for FakeCluster {
    fn addresses(&self) -> Vec<SocketAddr> {
        self.addresses.clone()
    }
}

/// Starts fakes and keeps the specifications that it was given.
#[derive(Default)]
pub(crate) struct FakeLauncher {
    pub(crate) faults: Faults,
    pub(crate) specs: Mutex<Vec<ClusterSpec>>,
    /// How many replicas there is space for in all groups; any number without it.
    pub(crate) room: Option<u32>,
}

impl Launcher for FakeLauncher {
    fn start(&self, spec: &ClusterSpec) -> Result<Box<dyn RunningCluster>> {
        assert!(spec.dir.is_dir());
        self.specs.lock().unwrap().push(spec.clone());
        Ok(Box::new(FakeCluster::start(spec.replicas, spec.compaction.as_str(), self.faults)))
    }

    fn check_room(&self, spec: &ClusterSpec, clusters: u32) -> Result<()> {
        assert!(self.specs.lock().unwrap().is_empty(), "all are checked before one starts");
        let replicas = clusters * spec.replicas;
        if replicas > self.room.unwrap_or(u32::MAX) {
            return Err(Error::no_space(format!("no room for {replicas} replicas")));
        }
        Ok(())
    }

    fn data_dir(&self) -> PathBuf {
        std::env::temp_dir()
    }
}

fn listen(id: u32, replicas: u32, state: Arc<State>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    // The thread ends with the test's process.
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (stream, state) = (stream.unwrap(), Arc::clone(&state));
            thread::spawn(move || serve(stream, id, replicas, &state));
        }
    });
    address
}

fn serve(mut stream: TcpStream, id: u32, replicas: u32, state: &State) {
    let (mut parser, mut input, mut out) = (RequestParser::new(), BytesMut::new(), Vec::new());
    let mut chunk = vec![0; 64 * 1024];
    while let Ok(len) = stream.read(&mut chunk) {
        if len == 0 {
            return;
        }
        input.extend_from_slice(&chunk[..len]);
        while let Some(Incoming::Request(request)) = parser.parse(&mut input).unwrap() {
            let Some(reply) = answer(&request, id, replicas, state) else { return };
            reply.encode(Protocol::Resp2, &mut out);
        }
        if stream.write_all(&out).is_err() {
            return;
        }
        out.clear();
    }
}

fn is_nth(counter: &AtomicU64, every: u64) -> bool {
    let number = counter.fetch_add(1, SeqCst) + 1;
    every > 0 && number.is_multiple_of(every)
}

fn answer(request: &Request, id: u32, replicas: u32, state: &State) -> Option<Reply> {
    let faults = *state.faults.lock().unwrap();
    let words: Vec<Bytes> = request.args.iter().cloned().collect();
    Some(match (&words[0][..], &words[1..]) {
        (b"SET", [key, value]) => {
            if let Some(error) = faults.error {
                if faults.makes {
                    state.keys.lock().unwrap().insert(key.clone(), value.clone());
                }
                return Some(Reply::error(error));
            }
            if is_nth(&state.writes, faults.refuse_every) {
                if state.refusals.fetch_add(1, SeqCst).is_multiple_of(2) {
                    return Some(Reply::error("TRYAGAIN full for now"));
                }
                state.keys.lock().unwrap().insert(key.clone(), value.clone());
                return Some(Reply::error("UNKNOWN a replica is out"));
            }
            if faults.close_at > 0 && state.writes.load(SeqCst) >= faults.close_at {
                return None;
            }
            if !faults.drops {
                state.keys.lock().unwrap().insert(key.clone(), value.clone());
            }
            Reply::OK
        }
        (b"GET", [key]) => {
            let found = state.keys.lock().unwrap().get(key).cloned();
            let mut value = found.filter(|_| !faults.loses);
            if let Some(bytes) =
                value.as_mut().filter(|_| is_nth(&state.reads, faults.corrupt_every))
            {
                let mut changed = bytes.to_vec();
                *changed.last_mut().unwrap() ^= 1;
                *bytes = changed.into();
            }
            Reply::bulk_or_null(value)
        }
        (b"RANGE", [start, _, _, limit]) => {
            let limit = String::from_utf8_lossy(limit).parse().unwrap();
            let keys = state.keys.lock().unwrap();
            let pairs = keys.range(start.clone()..).take(limit);
            let skipped = usize::from(is_nth(&state.reads, faults.corrupt_every));
            let pairs = pairs.skip(skipped).flat_map(|(key, value)| [key.clone(), value.clone()]);
            Reply::Array(pairs.map(Reply::Bulk).collect())
        }
        (b"GABION", [word]) if &word[..] == b"STATUS" => {
            Reply::Bulk(status(id, replicas, state).to_string().into())
        }
        _ => Reply::error("ERR unknown"),
    })
}

/// Counters that follow from the writes, so that they rise with the work and then rest.
fn status(id: u32, replicas: u32, state: &State) -> Value {
    let role = match id {
        1 => "primary",
        _ if id == replicas => "tail",
        _ => "middle",
    };
    let mut status = status_json(u64::from(id), role, state.writes.load(SeqCst) / 10);
    status["compaction"] = state.compaction.into();
    status["members"] = (1..=replicas).collect::<Vec<_>>().into();
    status
}

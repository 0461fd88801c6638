//! A chain in one process, with a store in memory that can be told to wait.

use crate::store::{Batch, Counters, Found, State, Store, Written};
use crate::{Place, Server};
use bytes::{Bytes, BytesMut};
use gabion_base::{Error, Result};
use gabion_resp::{Reply, ReplyParser, encode_request};
use gabion_workload::EngineOptions;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Pairs with their lengths before them.
#[derive(Default)]
struct Pairs(Vec<u8>);

impl Batch for Pairs {
    fn put(&mut self, key: &[u8], value: &[u8]) {
        for part in [key, value] {
            self.0.extend_from_slice(&(part.len() as u32).to_le_bytes());
            self.0.extend_from_slice(part);
        }
    }

    fn clear(&mut self) {
        self.0.clear();
    }

    fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// A map. Every `wait_every`-th call that may not wait would have to.
#[derive(Default)]
struct Memory {
    map: Mutex<BTreeMap<Vec<u8>, Vec<u8>>>,
    calls: AtomicU64,
    waited: AtomicU64,
    wait_every: u64,
}

impl Memory {
    fn waits(&self, may_wait: bool) -> bool {
        // With `wait_every` 0 none.
        let waits = (self.calls.fetch_add(1, SeqCst) + 1).is_multiple_of(self.wait_every);
        if may_wait {
            self.waited.fetch_add(1, SeqCst);
            // Long enough that others come meanwhile.
            thread::sleep(Duration::from_micros(200));
        }
        waits && !may_wait
    }
}

fn cut<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (len, rest) = bytes.split_first_chunk::<4>()?;
    let (part, rest) = rest.split_at_checked(u32::from_le_bytes(*len) as usize)?;
    *bytes = rest;
    Some(part)
}

impl Store for Memory {
    type Batch = Pairs;
    const NAME: &'static str = "memory";
    const THREADS: [&'static [&'static str]; 2] = [&[], &[]];

    fn version() -> String {
        "0".to_owned()
    }

    fn open(_: &EngineOptions) -> Result<Self> {
        Ok(Self::default())
    }

    fn batch(&self, parts: &[&[u8]]) -> Result<Pairs> {
        Ok(Pairs(parts.concat()))
    }

    fn write(&self, batch: &Pairs, may_wait: bool) -> Result<Written> {
        if self.waits(may_wait) {
            return Ok(Written::WouldWait);
        }
        let mut rest = batch.bytes();
        while !rest.is_empty() {
            let pair = cut(&mut rest).zip(cut(&mut rest));
            let (key, value) = pair.ok_or_else(|| Error::corruption("half a pair"))?;
            self.map.lock().unwrap().insert(key.to_vec(), value.to_vec());
        }
        Ok(Written::Done)
    }

    fn get(
        &self,
        keys: &[Bytes],
        may_wait: bool,
        found: &mut dyn FnMut(usize, Found<'_>),
    ) -> Result<()> {
        for (i, key) in keys.iter().enumerate() {
            if self.waits(may_wait) {
                found(i, Found::WouldWait);
                continue;
            }
            let value = self.map.lock().unwrap().get(&key[..]).cloned();
            found(i, value.as_deref().map_or(Found::Nothing, Found::Value));
        }
        Ok(())
    }

    fn scan(
        &self,
        from: &[u8],
        limit: usize,
        may_wait: bool,
        found: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<bool> {
        for (key, value) in self.map.lock().unwrap().range(from.to_vec()..).take(limit) {
            found(key, value);
        }
        Ok(!self.waits(may_wait))
    }

    fn state(&self) -> Result<State> {
        Ok(State { counters: Counters { flushes: 7, ..Counters::default() }, ..State::default() })
    }
}

/// Replicas that run until this is dropped.
struct Chain {
    stores: Vec<Arc<Memory>>,
    clients: Vec<SocketAddr>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Result<()>>>,
}

impl Chain {
    fn start(replicas: u32, wait_every: u64) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut chain = Self { stores: Vec::new(), clients: Vec::new(), stop, threads: Vec::new() };
        let mut next = None;
        for number in (1..=replicas).rev() {
            let store = Arc::new(Memory { wait_every, ..Memory::default() });
            let place = Place { number, replicas, clients: any, previous: any, next, readers: 2 };
            let server = Server::new(place, Arc::clone(&store)).unwrap();
            let [clients, previous] = server.addresses().unwrap();
            next = Some(previous);
            chain.stores.insert(0, store);
            chain.clients.insert(0, clients);
            let stop = Arc::clone(&chain.stop);
            chain.threads.push(thread::spawn(move || server.run(&stop)));
        }
        chain
    }

    fn client(&self, replica: usize) -> Caller {
        Caller {
            stream: TcpStream::connect(self.clients[replica]).unwrap(),
            parser: ReplyParser::new(),
            input: BytesMut::new(),
        }
    }

    /// Ends it, and tells how its replicas ended.
    fn end(mut self) -> Vec<Result<()>> {
        self.stop.store(true, SeqCst);
        self.threads.drain(..).map(|thread| thread.join().unwrap()).collect()
    }
}

struct Caller {
    stream: TcpStream,
    parser: ReplyParser,
    input: BytesMut,
}

impl Caller {
    fn reply(&mut self) -> Reply {
        loop {
            if let Some(reply) = self.parser.parse(&mut self.input).unwrap() {
                return reply;
            }
            let mut chunk = [0; 4096];
            let len = self.stream.read(&mut chunk).unwrap();
            assert!(len > 0, "the connection was closed");
            self.input.extend_from_slice(&chunk[..len]);
        }
    }

    /// Sends all requests at once and gives their replies.
    fn ask(&mut self, requests: &[Vec<String>]) -> Vec<Reply> {
        let mut bytes = Vec::new();
        requests.iter().for_each(|words| encode_request(words, &mut bytes));
        self.stream.write_all(&bytes).unwrap();
        requests.iter().map(|_| self.reply()).collect()
    }
}

fn words(text: &str) -> Vec<String> {
    text.split(' ').map(str::to_owned).collect()
}

fn bulk(text: impl Into<String>) -> Reply {
    Reply::Bulk(Bytes::from(text.into()))
}

/// Writes of several clients, then reads of all of it at the tail.
fn write_and_read(chain: &Chain) {
    let mut writers: Vec<Caller> = (0..3).map(|_| chain.client(0)).collect();
    for round in 0..20 {
        for (i, writer) in writers.iter_mut().enumerate() {
            let sets: Vec<_> =
                (0..50).map(|n| words(&format!("SET k{i}-{n:02} v{round}-{n}"))).collect();
            assert!(writer.ask(&sets).iter().all(|reply| *reply == Reply::OK));
        }
    }
    // What is acknowledged is in every store.
    let maps: Vec<_> = chain.stores.iter().map(|s| s.map.lock().unwrap().clone()).collect();
    assert_eq!(maps[0].len(), 150);
    assert!(maps.iter().all(|map| *map == maps[0]));
    let mut reader = chain.client(chain.clients.len() - 1);
    let gets: Vec<_> = (0..50).map(|n| words(&format!("GET k1-{n:02}"))).collect();
    let expected: Vec<_> = (0..50).map(|n| bulk(format!("v19-{n}"))).collect();
    for _ in 0..20 {
        assert_eq!(reader.ask(&gets), expected, "in the order of requests");
    }
    let mixed = ["GET k1-03", "RANGE k1-48 + LIMIT 3", "GET nothing", "PING"].map(words);
    let pairs = ["k1-48", "v19-48", "k1-49", "v19-49", "k2-00", "v19-0"].map(bulk).to_vec();
    let expected = [bulk("v19-3"), Reply::Array(pairs), Reply::Null, Reply::simple("PONG")];
    for _ in 0..20 {
        assert_eq!(reader.ask(&mixed), expected);
    }
}

#[test]
fn what_is_acknowledged_is_in_every_store_and_is_read_at_the_tail() {
    for replicas in [1, 2, 3, 4] {
        let chain = Chain::start(replicas, 0);
        write_and_read(&chain);
        let waited = chain.stores.iter().map(|store| store.waited.load(SeqCst)).sum::<u64>();
        assert_eq!(waited, 0, "no thread is woken when nothing waits");
        assert!(chain.end().iter().all(Result::is_ok));
    }
}

#[test]
fn a_store_that_would_have_to_wait_changes_nothing_but_the_thread() {
    let chain = Chain::start(3, 3);
    write_and_read(&chain);
    assert!(chain.stores.iter().all(|store| store.waited.load(SeqCst) > 0));
    assert!(chain.end().iter().all(Result::is_ok));
}

#[test]
fn requests_at_the_wrong_replica_and_unknown_ones_are_refused_by_name() {
    let chain = Chain::start(2, 0);
    let text =
        |replica: usize, request: &str| match &chain.client(replica).ask(&[words(request)])[0] {
            Reply::Error(text) => String::from_utf8_lossy(text).into_owned(),
            reply => panic!("{request}: {reply:?}"),
        };
    assert!(text(1, "SET a b").contains("writes go to the head of the chain"));
    assert!(text(0, "GET a").contains("reads go to the tail of the chain"));
    assert!(text(1, "RANGE a + LIMIT 65537").contains("LIMIT is `65537`, allowed are 0 to 65536"));
    assert!(text(0, "DEL a").contains("`DEL` with 1 arguments"));
    let mut value = words("SET a");
    value.push("v".repeat(gabion_base::units::VALUE_LEN_MAX + 1));
    let replies = chain.client(0).ask(&[value, words("SET a b")]);
    assert!(replies[0].is_error() && replies[1] == Reply::OK, "{replies:?}");
    assert!(chain.end().iter().all(Result::is_ok));
}

#[test]
fn a_replica_whose_neighbour_is_gone_ends() {
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let place =
        |number, next| Place { number, replicas: 2, clients: any, previous: any, next, readers: 1 };
    let tail = Server::new(place(2, None), Arc::new(Memory::default())).unwrap();
    let next = tail.addresses().unwrap()[1];
    let head = Server::new(place(1, Some(next)), Arc::new(Memory::default())).unwrap();
    drop(tail);
    let error = head.run(&AtomicBool::new(false)).unwrap_err().to_string();
    assert!(error.contains("a neighbour in the chain is lost"), "{error}");
    let error = Server::new(place(3, None), Arc::new(Memory::default())).err().unwrap();
    assert!(error.message().contains("replica 3 of 2"), "{error}");
}

#[test]
fn the_status_has_what_the_benchmark_reads() {
    let chain = Chain::start(2, 0);
    write_and_read(&chain);
    let Reply::Bulk(json) = &chain.client(0).ask(&[words("GABION STATUS")])[0] else {
        panic!("text")
    };
    let status: serde_json::Value = serde_json::from_slice(json).unwrap();
    assert_eq!((&status["role"], &status["ready"]), (&"primary".into(), &true.into()));
    assert_eq!(
        (&status["compaction"], &status["counters"]["flushes"]),
        (&"memory".into(), &7.into())
    );
    assert!(status["net"]["sent"]["peer"].as_u64().unwrap() > 3000 * 10, "{status}");
    assert!(status["cpu_seconds_by_role"]["requests"].as_f64().is_some());
    assert!(chain.end().iter().all(Result::is_ok));
}

/// As a replica of Gabion, whose `main` does the same (`gabion_server::run`).
#[test]
#[cfg(target_env = "gnu")]
fn the_program_of_a_replica_keeps_its_freed_memory_and_ends_with_its_input() {
    // What is mapped for one buffer alone begins behind the two words in which glibc keeps its size.
    let is_mapped = |buffer: &Vec<u8>| buffer.as_ptr() as usize % 4096 == 2 * size_of::<usize>();
    let buffers = || [24, 25, 26, 27].map(|mib| Vec::<u8>::with_capacity(mib << 20));
    // Kept, as the allocator learns from what is given back.
    let before = buffers();
    assert!(before.iter().all(is_mapped));
    let words = ["replica", "--place=2", "--of=2", "--dir=nowhere"];
    let args = <crate::ReplicaArgs as clap::Parser>::parse_from(words);
    let mut out = Vec::new();
    crate::program::run::<Memory>(&args, std::io::empty(), &mut out).unwrap();
    assert!(out.starts_with(b"ready 127.0.0.1:"), "{out:?}");
    assert!(!buffers().iter().all(is_mapped));
}

//! The store's end: a thread for each socket accepts, and one for each connection answers.

use super::figures::{Figures, Index, StoreFigures};
use super::{Connection, Stream, broken};
use crate::tls::{check_change, check_question};
use gabion_base::{Error, ErrorKind, Result};
use gabion_control::store_wire::{Answer, NAME_LEN_MAX, Question};
use gabion_control::tally::{Outcome, Reason};
use gabion_control::{Store, Swapped, Version};
use gabion_tls::{BlockingStream, Identity, MutualTls};
use std::collections::BTreeMap;
use std::io;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a client that connects may be silent.
const GREETING_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a client may be silent later. Every one of ours asks more often.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// Most connections at a time.
const CONNECTIONS_MAX: usize = 256;

/// Sockets of a store. Clients of TCP are those that have the token, if there is one.
#[derive(Default)]
pub struct StoreSockets {
    /// The TCP socket.
    pub tcp: Option<TcpListener>,
    /// The Unix socket.
    pub unix: Option<UnixListener>,
    /// Token that clients have to show.
    pub token: Option<Vec<u8>>,
    /// Certificates, which each end of TCP shows then.
    pub tls: Option<Arc<MutualTls>>,
}

struct Served {
    store: Mutex<Box<dyn Store + Send>>,
    token: Option<Vec<u8>>,
    tls: Option<Arc<MutualTls>>,
    stopping: AtomicBool,
    connections: Mutex<BTreeMap<u64, Stream>>,
    /// Taken after the store's lock, if both are.
    figures: Mutex<Figures>,
}

impl Served {
    fn figures(&self) -> MutexGuard<'_, Figures> {
        self.figures.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn refuse(&self, reason: Reason) {
        self.figures().tally.refuse(reason);
    }
}

/// A store that is served until this is dropped.
pub struct StoreServer {
    served: Arc<Served>,
    /// Threads that accept, and their sockets.
    accepting: Vec<(JoinHandle<()>, OwnedFd)>,
}

impl StoreServer {
    /// Serves a store on these sockets, each by a thread `gabion-accept`.
    ///
    /// # Errors
    /// I/O when the system refuses a thread.
    pub fn start(mut store: Box<dyn Store + Send>, sockets: StoreSockets) -> Result<Self> {
        let failed = |e| Error::with_source(ErrorKind::Io, "the store cannot be served", e);
        let figures = Figures::new(index_of(&mut *store));
        let served = Arc::new(Served {
            store: Mutex::new(store),
            token: sockets.token,
            tls: sockets.tls,
            stopping: AtomicBool::new(false),
            connections: Mutex::new(BTreeMap::new()),
            figures: Mutex::new(figures),
        });
        let mut server = Self { served, accepting: Vec::new() };
        if let Some(tcp) = sockets.tcp {
            let socket = tcp.try_clone().map_err(failed)?.into();
            let accept = move || {
                let (stream, _) = tcp.accept()?;
                stream.set_nodelay(true)?;
                Ok(Stream::Tcp(BlockingStream::plain(stream)))
            };
            server.accept(socket, accept).map_err(failed)?;
        }
        if let Some(unix) = sockets.unix {
            let socket = unix.try_clone().map_err(failed)?.into();
            let accept = move || Ok(Stream::Unix(unix.accept()?.0));
            server.accept(socket, accept).map_err(failed)?;
        }
        Ok(server)
    }

    /// Its numbers, for its operator. They wait for nobody who asks the store.
    #[must_use]
    pub fn figures(&self) -> StoreFigures {
        let mut figures = self.served.figures().read();
        for stream in connections(&self.served).values() {
            match stream {
                Stream::Tcp(_) => figures.tcp.open += 1,
                Stream::Unix(_) => figures.unix.open += 1,
            }
        }
        figures
    }

    fn accept(
        &mut self,
        socket: OwnedFd,
        accept: impl Fn() -> io::Result<Stream> + Send + 'static,
    ) -> io::Result<()> {
        let served = Arc::clone(&self.served);
        let body = move || {
            for number in 0u64.. {
                let accepted = accept();
                if served.stopping.load(Ordering::Acquire) {
                    return;
                }
                match accepted.and_then(|stream| serve(&served, number, stream)) {
                    Ok(()) => {}
                    // No descriptor, or no thread: others end theirs.
                    Err(_) => std::thread::sleep(Duration::from_millis(50)),
                }
            }
        };
        let thread = std::thread::Builder::new().name("gabion-accept".into()).spawn(body)?;
        self.accepting.push((thread, socket));
        Ok(())
    }
}

impl Drop for StoreServer {
    fn drop(&mut self) {
        self.served.stopping.store(true, Ordering::Release);
        for (thread, socket) in self.accepting.drain(..) {
            // The thread is woken, as nobody can be accepted any more.
            let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Both);
            // A panic was printed there.
            let _ = thread.join();
        }
        for stream in connections(&self.served).values() {
            stream.shut_down();
        }
    }
}

/// All that a store has. One that cannot be read now is read at the next question.
fn index_of(store: &mut dyn Store) -> Option<Index> {
    store.list("").ok().map(Index::of)
}

fn connections(served: &Served) -> MutexGuard<'_, BTreeMap<u64, Stream>> {
    served.connections.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Begins to serve a connection; one too many is closed.
fn serve(served: &Arc<Served>, number: u64, stream: Stream) -> io::Result<()> {
    let is_tcp = matches!(stream, Stream::Tcp(_));
    let begun = begin(served, number << 1 | u64::from(!is_tcp), stream);
    if !matches!(begun, Ok(true)) {
        served.figures().of(is_tcp).rejected += 1;
    }
    begun.map(|_| ())
}

/// Serves a connection by a thread of its own; false if there are too many. Numbers of the two
/// sockets differ in their last bit.
fn begin(served: &Arc<Served>, number: u64, stream: Stream) -> io::Result<bool> {
    {
        let mut open = connections(served);
        if open.len() >= CONNECTIONS_MAX {
            return Ok(false);
        }
        open.insert(number, stream.try_clone()?);
    }
    let owned = Arc::clone(served);
    let is_tcp = matches!(stream, Stream::Tcp(_));
    let body = move || {
        owned.figures().of(is_tcp).accepted += 1;
        // A connection that breaks is its client's business.
        let _ = welcome(&owned, stream).and_then(|stream| answer_all(&owned, stream));
        connections(&owned).remove(&number);
    };
    let begun = std::thread::Builder::new().name("gabion-store".into()).spawn(body);
    if begun.is_err() {
        connections(served).remove(&number);
    }
    begun.map(|_| true)
}

/// Shakes hands, where certificates are shown.
fn welcome(served: &Served, stream: Stream) -> Result<Stream> {
    let (Stream::Tcp(stream), Some(tls)) = (&stream, &served.tls) else { return Ok(stream) };
    let socket = stream.socket().try_clone().map_err(broken)?;
    let sealed = BlockingStream::handshake_within(socket, tls.accept()?, GREETING_TIMEOUT);
    sealed.map(Stream::Tcp).map_err(|error| {
        served.refuse(Reason::Handshake);
        broken(error)
    })
}

fn answer_all(served: &Served, stream: Stream) -> Result<()> {
    let found = match &stream {
        Stream::Tcp(stream) if stream.is_tls() => Some(stream.identity()),
        Stream::Tcp(_) | Stream::Unix(_) => None,
    };
    let mut connection = Connection::new(stream);
    let mut is_welcome = false;
    loop {
        let timeout = if is_welcome { IDLE_TIMEOUT } else { GREETING_TIMEOUT };
        let decode = |bytes: &[u8]| {
            let decoded = Question::decode(bytes).inspect_err(|error| {
                let is_long = error.kind() == ErrorKind::LimitExceeded;
                served.refuse(if is_long { Reason::TooLong } else { Reason::Malformed });
            });
            let Some((question, number, len)) = decoded? else { return Ok(None) };
            let answer = match question {
                Question::Greet { token } => greet(served, token),
                _ if !is_welcome => {
                    served.refuse(Reason::Greeting);
                    Err(Error::invalid("the first question is a greeting"))
                }
                question => answer(served, &question, found.as_ref()),
            };
            Ok(Some(((answer, question.kind(), number), len)))
        };
        let (answer, kind, number) = connection.receive(timeout, decode)?;
        let is_refused = !is_welcome && answer.is_err();
        is_welcome = true;
        let bytes = note(served, kind, answer, number)?;
        connection.stream.set_timeout(GREETING_TIMEOUT).map_err(broken)?;
        connection.stream.write_all(&bytes).map_err(broken)?;
        if is_refused {
            return Ok(());
        }
    }
}

/// The bytes of an answer, whose outcome is counted.
fn note(served: &Served, kind: usize, answer: Result<Answer>, number: u64) -> Result<Vec<u8>> {
    let mut answer = answer.unwrap_or_else(|error| Answer::failed(&error));
    let bytes = answer.encode(number).or_else(|error| {
        answer = Answer::failed(&error);
        answer.encode(number)
    })?;
    served.figures().tally.count(kind, Outcome::of(&answer));
    Ok(bytes)
}

fn greet(served: &Served, token: &[u8]) -> Result<Answer> {
    if let Some(wanted) = &served.token {
        // All bytes are looked at: the time does not tell where they differ.
        let differs = wanted.iter().zip(token).fold(0, |sum, (a, b)| sum | (a ^ b)) != 0;
        if differs || wanted.len() != token.len() {
            served.refuse(Reason::Token);
            return Err(Error::invalid("the token is not the controller's"));
        }
    }
    Ok(Answer::Welcome)
}

/// `found` is what the certificate says, where certificates are shown.
fn answer(
    served: &Served,
    question: &Question<'_>,
    found: Option<&Option<Identity>>,
) -> Result<Answer> {
    let of_certificate = |_: &Error| served.refuse(Reason::Certificate);
    if let Some(found) = found {
        check_question(found.as_ref(), question).inspect_err(of_certificate)?;
    }
    let mut store = served.store.lock().map_err(|_| Error::io("the store panicked"))?;
    if served.figures().index.is_none() {
        let index = index_of(&mut **store);
        served.figures().index = index;
    }
    if let (Some(found), Question::Swap { name, .. }) = (found, question)
        && let Some(there) = store.get(name)?
    {
        check_change(found.as_ref(), name, &there.value).inspect_err(of_certificate)?;
    }
    match *question {
        Question::Get { name } => Ok(Answer::Got(store.get(name)?)),
        Question::List { prefix, after } => {
            let all = store.list(prefix)?.into_iter();
            Ok(Answer::page(all.filter(|(name, _)| name.as_str() > after)))
        }
        Question::Swap { name, .. } if name.is_empty() || name.len() > NAME_LEN_MAX => {
            served.refuse(Reason::Name);
            let len = name.len();
            let text = format!("a name of {len} bytes; 1 to {NAME_LEN_MAX} are valid");
            Err(Error::invalid(text))
        }
        Question::Swap { name, expected, value } => {
            swap(served, &mut **store, name, expected, value)
        }
        Question::Greet { .. } => Ok(Answer::Welcome),
    }
}

/// The caller has the store's lock, so that the figures follow its changes in their order.
fn swap(
    served: &Served,
    store: &mut dyn Store,
    name: &str,
    expected: Version,
    value: &[u8],
) -> Result<Answer> {
    let begun = Instant::now();
    let swapped = store.swap(name, expected, value);
    let took = begun.elapsed();
    match &swapped {
        Ok(Swapped::Stored(_)) => served.figures().stored(name, value, took),
        Ok(Swapped::Lost(_)) => {}
        // Nobody knows what it has.
        Err(_) => served.figures().index = None,
    }
    Ok(Answer::Swapped(swapped?))
}

#[cfg(test)]
mod tests {
    use super::super::{RemoteStore, Traffic};
    use super::*;
    use gabion_control::store::MemoryStore;
    use gabion_control::store_wire::{MESSAGE_LEN_MAX, VALUE_LEN_MAX};
    use gabion_fabric::remote::LinkAddress;
    use gabion_media::remote::{Incarnation, PeerId};
    use gabion_ncl::map::{PeerRecord, map_name, peer_name};
    use std::io::{Read, Write};
    use std::net::TcpStream;

    /// The disk of a store, which may fail or hang.
    #[derive(Default)]
    struct Disk {
        fails: AtomicBool,
        is_asked: AtomicBool,
        hangs: Mutex<()>,
    }

    /// A store whose compare-and-sets are told as failed while its disk fails.
    struct Unsure(MemoryStore, Arc<Disk>);

    impl Store for Unsure {
        fn get(&mut self, name: &str) -> Result<Option<gabion_control::Versioned>> {
            self.0.get(name)
        }

        fn list(&mut self, prefix: &str) -> Result<Vec<(String, gabion_control::Versioned)>> {
            self.0.list(prefix)
        }

        fn swap(&mut self, name: &str, expected: Version, value: &[u8]) -> Result<Swapped> {
            let swapped = self.0.swap(name, expected, value)?;
            self.1.is_asked.store(true, Ordering::Release);
            drop(self.1.hangs.lock());
            if self.1.fails.load(Ordering::Relaxed) {
                return Err(Error::io("the disk is gone"));
            }
            Ok(swapped)
        }
    }

    struct House {
        server: StoreServer,
        address: std::net::SocketAddr,
        disk: Arc<Disk>,
    }

    impl House {
        fn new() -> Self {
            let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
            let (address, disk) = (tcp.local_addr().unwrap(), Arc::default());
            let store = Box::new(Unsure(MemoryStore::default(), Arc::clone(&disk)));
            let token = Some(b"secret".to_vec());
            let sockets = StoreSockets { tcp: Some(tcp), token, ..StoreSockets::default() };
            Self { server: StoreServer::start(store, sockets).unwrap(), address, disk }
        }

        fn client(&self, token: &str) -> RemoteStore {
            RemoteStore::new(LinkAddress::Tcp(self.address), token.as_bytes().to_vec())
        }

        /// Sends bytes, and waits until the connection has ended.
        fn send(&self, bytes: &[u8]) {
            let mut stream = TcpStream::connect(self.address).unwrap();
            stream.write_all(bytes).unwrap();
            // It may be reset, as it is closed before all was read.
            let _ = stream.read_to_end(&mut Vec::new());
        }

        fn refusals(&self) -> Vec<(&'static str, u64)> {
            let counts = self.server.figures().tally.refusals;
            let named = Reason::ALL.iter().map(|reason| reason.name()).zip(counts);
            named.filter(|(_, count)| *count > 0).collect()
        }
    }

    #[test]
    fn questions_are_counted_by_kind_and_outcome_and_refused_clients_by_reason() {
        let house = House::new();
        assert!(house.client("wrong").get("a").is_err());
        assert!(house.client("").get("a").is_err());
        let mut store = house.client("secret");
        assert!(store.swap("", Version::NONE, b"value").is_err());
        store.swap("a", Version::NONE, b"value").unwrap();
        assert_eq!(store.get("a").unwrap().map(|found| found.value), Some(b"value".to_vec()));
        assert!(matches!(store.swap("a", Version::NONE, b"other").unwrap(), Swapped::Lost(_)));
        store.list("").unwrap();
        house.send(&Question::Get { name: "a" }.encode(1).unwrap());
        house.send(&(MESSAGE_LEN_MAX as u32 + 1).to_le_bytes());
        let mut flipped = Question::Greet { token: b"secret" }.encode(1).unwrap();
        flipped[20] ^= 1;
        house.send(&flipped);
        let expected =
            [("token", 2), ("greeting", 1), ("name", 1), ("too_long", 1), ("malformed", 1)];
        assert_eq!(house.refusals(), expected);

        house.disk.fails.store(true, Ordering::Relaxed);
        assert!(store.swap("b", Version::NONE, &[7; VALUE_LEN_MAX]).is_err());
        let figures = house.server.figures();
        let [greets, gets, lists, swaps] = figures.tally.questions;
        assert_eq!(greets, [1, 0, 2, 0]);
        assert_eq!((gets, lists), ([1, 0, 1, 0], [1, 0, 0, 0]));
        assert_eq!(swaps, [1, 1, 1, 1]);
        assert_eq!(figures.stored.0.iter().sum::<u64>(), 1, "what was stored has its time");
        assert_eq!((figures.tcp.accepted, figures.unix), (6, Traffic::default()));
        assert!(figures.tcp.open >= 1, "{:?}", figures.tcp);
    }

    #[test]
    fn the_figures_are_there_while_the_disk_hangs() {
        let house = House::new();
        let mut store = house.client("secret");
        store.get("a").unwrap();
        let hangs = house.disk.hangs.lock().unwrap();
        let asks = std::thread::spawn(move || store.swap("a", Version::NONE, b"value"));
        while !house.disk.is_asked.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        let figures = house.server.figures();
        assert_eq!(figures.tally.questions[Question::SWAP], [0; 4]);
        assert_eq!((figures.tcp.open, figures.kept.unwrap().values), (1, 0));
        drop(hangs);
        // It may have waited for longer than it waits for an answer.
        let _ = asks.join().unwrap();
    }

    #[test]
    fn what_a_store_has_is_known_again_once_it_answers_after_a_failure() {
        let house = House::new();
        let mut store = house.client("secret");
        let domain = "rack".to_owned();
        let mut record = PeerRecord {
            incarnation: Incarnation(1),
            free_bytes: 7,
            domain,
            address: String::new(),
        };
        let peer = peer_name(PeerId(5));
        let gone = store.swap(&peer, Version::NONE, &record.encode()).unwrap();
        store.swap(&map_name("one"), Version::NONE, b"0123456789").unwrap();
        let kept = house.server.figures().kept.unwrap();
        assert_eq!((kept.values, kept.applications), (2, 1));
        let names = peer.len() + map_name("one").len();
        assert_eq!(kept.bytes as usize, names + record.encode().len() + 10);
        let [found] = kept.peers.as_slice() else { panic!("{kept:?}") };
        assert_eq!((found.domain.as_str(), found.free_bytes, found.has_ended), ("rack", 7, true));
        assert_eq!(format!("ncl/peers/{}", found.peer), peer);

        let Swapped::Stored(version) = gone else { panic!("{gone:?}") };
        record.address = "tcp 127.0.0.1:7000\n".to_owned();
        house.disk.fails.store(true, Ordering::Relaxed);
        assert!(store.swap(&peer, version, &record.encode()).is_err());
        assert_eq!(house.server.figures().kept, None);
        house.disk.fails.store(false, Ordering::Relaxed);
        store.get("a").unwrap();
        let kept = house.server.figures().kept.unwrap();
        assert_eq!(kept.peers.iter().map(|peer| peer.has_ended).collect::<Vec<_>>(), [false]);
    }
}

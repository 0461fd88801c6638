//! A small HTTP door: it answers GET for a few paths, on a thread of its own, and can hold nobody
//! up.
//!
//! ```text
//!   accept ─► read until the head is whole ─► page (kept for a moment) ─► write ─► close
//!      │             │                                                      │
//!      └ the oldest  └ 8 KiB, 5 s from accept to close ─────────────────────┘
//!        makes room
//! ```
//!
//! Everything that a stranger could ask for too much of is bounded: connections, bytes of a head,
//! the time that a connection lives, and how often a page is made. A connection that comes when
//! all places are taken gets the place of the oldest, so those that send nothing keep no scraper
//! out. All share one page while it is fresh.

use super::route::{Route, TYPE_TEXT, answer};
use gabion_base::{Error, ErrorKind, Result};
use gabion_host::jobs::thread;
use mio::event::Event;
use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token, Waker};
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Connections at a time.
const CONNECTIONS_MAX: usize = 8;
/// Connections that are accepted before others are served.
const ACCEPTS_MAX: usize = 16;
/// Bytes of a request's head, and headers in it.
const HEAD_LEN_MAX: usize = 8 << 10;
const HEADERS_MAX: usize = 64;
/// How long a connection may last.
const LIFE_MAX: Duration = Duration::from_secs(5);
/// How long a page is shown before another one is made.
pub(super) const KEPT: Duration = Duration::from_millis(250);
/// Between two tries to listen.
const LISTEN_EVERY: Duration = Duration::from_secs(5);
/// Steps of nice(2) behind those who serve clients.
const NICE: u8 = 10;

const DOOR: Token = Token(CONNECTIONS_MAX);
const WAKER: Token = Token(CONNECTIONS_MAX + 1);

/// A running door. It closes when this is dropped.
#[derive(Debug)]
pub struct Door {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    is_over: AtomicBool,
    waker: Waker,
}

impl Door {
    /// Opens a door that answers these paths. `said` hears when
    /// the port cannot be listened on, and that it can again; it is tried again and again.
    ///
    /// # Errors
    /// The system's, when it gives no thread or no readiness.
    pub fn start(
        address: SocketAddr,
        routes: Vec<Route>,
        said: impl Fn(&str) + Send + 'static,
    ) -> Result<Self> {
        let refused = |e| Error::with_source(ErrorKind::Io, "door for metrics: no readiness", e);
        let poll = Poll::new().map_err(refused)?;
        let waker = Waker::new(poll.registry(), WAKER).map_err(refused)?;
        let shared = Arc::new(Shared { is_over: AtomicBool::new(false), waker });
        let of_thread = shared.clone();
        let mut server = Server {
            poll,
            address,
            door: None,
            listen_at: Instant::now(),
            complaint: String::new(),
            places: Default::default(),
            routes,
            said: Box::new(said),
        };
        let thread = thread("gabion-metrics", NICE, move || server.run(&of_thread))?;
        Ok(Self { shared, thread: Some(thread) })
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Release);
        let _ = self.shared.waker.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// An answer, its head included; many may be sent the same.
pub(super) type Answer = Arc<[u8]>;

struct Connection {
    stream: TcpStream,
    since: Instant,
    input: Vec<u8>,
    /// The answer, how much of it was sent, and its length.
    output: Option<(Answer, usize, usize)>,
}

struct Server {
    poll: Poll,
    address: SocketAddr,
    door: Option<TcpListener>,
    listen_at: Instant,
    complaint: String,
    places: [Option<Connection>; CONNECTIONS_MAX],
    routes: Vec<Route>,
    said: Box<dyn Fn(&str) + Send>,
}

impl Server {
    fn run(&mut self, shared: &Shared) {
        let mut events = Events::with_capacity(32);
        let mut has_more = false;
        loop {
            self.listen();
            let timeout = if has_more { Duration::ZERO } else { self.wait() };
            match self.poll.poll(&mut events, Some(timeout)) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => {
                    return (self.said)(&format!("door for metrics: cannot wait: {error}"));
                }
                _ => {}
            }
            if shared.is_over.load(Ordering::Acquire) {
                return;
            }
            events.iter().map(Event::token).filter(|token| token.0 < CONNECTIONS_MAX).for_each(
                |token| {
                    self.serve(token.0);
                },
            );
            for place in &mut self.places {
                place.take_if(|connection| connection.since.elapsed() >= LIFE_MAX);
            }
            has_more = self.accept();
        }
    }

    /// How long nothing has to be done.
    fn wait(&self) -> Duration {
        let oldest = self.places.iter().flatten().map(|connection| connection.since.elapsed());
        let left = oldest.map(|age| LIFE_MAX.saturating_sub(age)).min();
        let listens = self.door.is_none().then(|| self.listen_at - Instant::now());
        left.into_iter().chain(listens).min().unwrap_or(LIFE_MAX)
    }

    fn listen(&mut self) {
        if self.door.is_some() || Instant::now() < self.listen_at {
            return;
        }
        let register = |mut door: TcpListener| {
            self.poll.registry().register(&mut door, DOOR, Interest::READABLE).map(|()| door)
        };
        match TcpListener::bind(self.address).and_then(register) {
            Ok(door) => {
                self.door = Some(door);
                if !self.complaint.is_empty() {
                    (self.said)(&format!("door for metrics: listens on {} now", self.address));
                }
            }
            Err(error) => {
                self.listen_at = Instant::now() + LISTEN_EVERY;
                let text = format!("door for metrics: cannot listen on {}: {error}", self.address);
                if text != self.complaint {
                    (self.said)(&format!("{text}; tried again every {} s", LISTEN_EVERY.as_secs()));
                    self.complaint = text;
                }
            }
        }
    }

    /// Takes in who waits. Returns whether more may.
    fn accept(&mut self) -> bool {
        let Some(door) = &self.door else { return false };
        for _ in 0..ACCEPTS_MAX {
            // Out of descriptors, or gone already: the next one may be luckier.
            let Ok((stream, _)) = door.accept() else { return false };
            let since = Instant::now();
            let mut connection = Connection { stream, since, input: Vec::new(), output: None };
            let free = self.places.iter().position(Option::is_none);
            let oldest = || {
                let places = self.places.iter().enumerate();
                places.min_by_key(|(_, it)| it.as_ref().map(|it| it.since)).map_or(0, |(at, _)| at)
            };
            let place = free.unwrap_or_else(oldest);
            // Before its number is given again.
            self.places[place] = None;
            let interest = Interest::READABLE | Interest::WRITABLE;
            let registry = self.poll.registry();
            if registry.register(&mut connection.stream, Token(place), interest).is_ok() {
                self.places[place] = Some(connection);
            }
        }
        true
    }

    fn serve(&mut self, place: usize) {
        let Some(connection) = &mut self.places[place] else { return };
        if connection.serve(&mut self.routes).unwrap_or(true) {
            self.places[place] = None;
        }
    }
}

impl Connection {
    /// Goes on as far as the socket lets it. Returns whether it is over.
    fn serve(&mut self, routes: &mut [Route]) -> io::Result<bool> {
        loop {
            let step = match self.output {
                None => self.read(routes),
                Some(_) => self.write(),
            };
            match step {
                Ok(false) => {}
                Ok(true) => return Ok(true),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn read(&mut self, routes: &mut [Route]) -> io::Result<bool> {
        let mut chunk = [0; 1024];
        let len = self.stream.read(&mut chunk)?;
        if len == 0 {
            return Ok(true);
        }
        self.input.extend_from_slice(&chunk[..len]);
        if let Some((answer, len)) = judge(&self.input, routes) {
            self.input = Vec::new();
            self.output = Some((answer, 0, len));
        }
        Ok(false)
    }

    fn write(&mut self) -> io::Result<bool> {
        let Some((answer, sent, len)) = &mut self.output else { return Ok(true) };
        *sent += self.stream.write(&answer[*sent..*len])?;
        if sent < len {
            return Ok(false);
        }
        // Unread input would have the system take the answer back.
        let _ = self.stream.shutdown(std::net::Shutdown::Write);
        let _ = self.stream.read(&mut [0; HEAD_LEN_MAX]);
        Ok(true)
    }
}

/// The answer to a request, and how much of it is to be sent; none before its head is whole.
fn judge(input: &[u8], routes: &mut [Route]) -> Option<(Answer, usize)> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    let refused = |status: &str, text: &str| {
        let answer = answer(status, TYPE_TEXT, "", text);
        let len = answer.len();
        Some((answer, len))
    };
    let too_large = "431 Request Header Fields Too Large";
    match request.parse(input) {
        Ok(httparse::Status::Complete(_)) => {}
        Ok(httparse::Status::Partial) if input.len() < HEAD_LEN_MAX => return None,
        Ok(httparse::Status::Partial) => {
            return refused(too_large, &format!("a request has {HEAD_LEN_MAX} bytes at most\n"));
        }
        Err(httparse::Error::TooManyHeaders) => {
            return refused(too_large, &format!("a request has {HEADERS_MAX} headers at most\n"));
        }
        Err(error) => return refused("400 Bad Request", &format!("no HTTP request: {error}\n")),
    }
    let path = request.path.unwrap_or_default().split('?').next().unwrap_or_default();
    let is_head = match request.method {
        Some("GET") => false,
        Some("HEAD") => true,
        _ => return refused("405 Method Not Allowed", "GET or HEAD\n"),
    };
    let Some(route) = routes.iter_mut().find(|route| route.path == path) else {
        let paths: Vec<&str> = routes.iter().map(|route| route.path).collect();
        return refused("404 Not Found", &format!("there is {}\n", paths.join(", ")));
    };
    let page = route.get(request.headers);
    let len = match is_head {
        true => page.windows(4).position(|four| four == b"\r\n\r\n").map_or(0, |at| at + 4),
        false => page.len(),
    };
    Some((page, len))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpStream as Plain;

    const PATIENCE: Duration = Duration::from_secs(20);

    fn free_address() -> SocketAddr {
        std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
    }

    /// A door whose pages are numbered.
    fn door() -> (SocketAddr, Door) {
        let (address, mut count) = (free_address(), 0);
        let page = move || {
            count += 1;
            Ok(format!("pages {count}\n"))
        };
        let door =
            Door::start(address, vec![Route::metrics(page)], |line| panic!("{line}")).unwrap();
        (address, door)
    }

    fn connect(address: SocketAddr) -> Plain {
        let begun = Instant::now();
        loop {
            if let Ok(stream) = Plain::connect(address) {
                stream.set_read_timeout(Some(PATIENCE)).unwrap();
                return stream;
            }
            assert!(begun.elapsed() < PATIENCE, "nobody listens");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn rest(mut stream: Plain) -> String {
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }

    fn ask(address: SocketAddr, request: &str) -> String {
        let mut stream = connect(address);
        stream.write_all(request.as_bytes()).unwrap();
        rest(stream)
    }

    #[test]
    fn a_page_is_given_to_whoever_asks_for_it_and_made_seldom() {
        let (address, _door) = door();
        let first = ask(address, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(first.starts_with("HTTP/1.1 200 OK\r\n"), "{first}");
        assert!(
            first.contains("text/plain; version=0.0.4") && first.ends_with("\r\n\r\npages 1\n"),
            "{first}"
        );
        let begun = Instant::now();
        for _ in 0..50 {
            ask(address, "GET /metrics?x=1 HTTP/1.0\r\n\r\n");
        }
        let most = 2 + begun.elapsed().as_millis() / KEPT.as_millis();
        std::thread::sleep(KEPT);
        let last = ask(address, "GET /metrics HTTP/1.1\r\n\r\n");
        let made: u128 = last.rsplit_once("pages ").unwrap().1.trim().parse().unwrap();
        assert!((2..=most + 1).contains(&made), "{made} of at most {most}");
        let head = ask(address, "HEAD /metrics HTTP/1.1\r\n\r\n");
        assert!(head.contains("Content-Length: ") && head.ends_with("\r\n\r\n"), "{head}");
    }

    #[test]
    fn what_is_no_request_for_the_page_is_refused_with_a_reason() {
        let (address, _door) = door();
        for (request, status) in [
            ("GET / HTTP/1.1\r\n\r\n".to_owned(), "404"),
            ("POST /metrics HTTP/1.1\r\n\r\n".to_owned(), "405"),
            ("SET k v\r\n\r\n".to_owned(), "400"),
            ("\u{0}\u{1}".to_owned(), "400"),
            (format!("GET /metrics HTTP/1.1\r\nA: {}", "a".repeat(HEAD_LEN_MAX)), "431"),
            (format!("GET /metrics HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(65)), "431"),
        ] {
            let said = ask(address, &request);
            assert!(said.starts_with(&format!("HTTP/1.1 {status} ")), "{request:.40}: {said}");
        }
    }

    #[test]
    fn a_page_for_browsers_is_given_under_a_name_of_this_machine_and_runs_nothing_foreign() {
        let address = free_address();
        let html = Route::html("/", "<style>p {}</style><script>1</script>");
        let json = Route::json("/status.json", || Ok("{}".to_owned()));
        let _door = Door::start(address, vec![html, json], |line| panic!("{line}")).unwrap();
        for (path, content) in [("/", "text/html"), ("/status.json", "application/json")] {
            let get = |host: &str| ask(address, &format!("GET {path} HTTP/1.1\r\n{host}\r\n"));
            let own = get("Host: localhost:1\r\n");
            assert!(own.starts_with("HTTP/1.1 200 ") && own.contains(content), "{own}");
            assert!(own.contains("nosniff") && own.contains("no-store"), "{own}");
            for host in ["", "Host: example.org\r\n", "Host: localhost\r\nHost: example.org\r\n"] {
                let said = get(host);
                assert!(said.starts_with("HTTP/1.1 421 "), "{host}: {said}");
            }
        }
        let page = ask(address, "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n");
        let policy = page.lines().find(|it| it.starts_with("Content-Security-Policy: ")).unwrap();
        assert!(policy.contains("default-src 'none'"), "{policy}");
        assert!(
            policy.contains("script-src 'sha256-a4ayc/80/OGda4BO/1o/V0etpOqiLx1JwB5S3beHW0s='")
        );
        assert!(!policy.contains("unsafe"), "{policy}");
        let said = ask(address, "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n");
        assert!(said.ends_with("there is /, /status.json\n"), "{said}");
        let said = ask(address, "POST / HTTP/1.1\r\nHost: localhost\r\n\r\n");
        assert!(said.starts_with("HTTP/1.1 405 "), "{said}");
    }

    #[test]
    fn those_who_say_nothing_keep_no_scraper_out_and_are_closed() {
        let (address, _door) = door();
        let begun = Instant::now();
        let silent: Vec<Plain> = (0..3 * CONNECTIONS_MAX).map(|_| connect(address)).collect();
        let mut slow = connect(address);
        slow.write_all(b"GET /metrics HT").unwrap();
        let page = ask(address, "GET /metrics HTTP/1.1\r\n\r\n");
        assert!(page.contains("200 OK"), "{page}");
        assert!(begun.elapsed() < LIFE_MAX, "nobody was waited for");
        for stream in silent.into_iter().chain([slow]) {
            assert_eq!(rest(stream), "");
        }
        assert!(begun.elapsed() < LIFE_MAX + PATIENCE);
    }

    #[test]
    fn a_port_that_is_taken_is_said_and_tried_again() {
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap();
        let (sender, said) = std::sync::mpsc::channel();
        let line = move |line: &str| sender.send(line.to_owned()).unwrap();
        let _door =
            Door::start(address, vec![Route::metrics(|| Ok("x 1\n".into()))], line).unwrap();
        let first = said.recv_timeout(PATIENCE).unwrap();
        assert!(first.contains(&format!("cannot listen on {address}")), "{first}");
        drop(taken);
        let then = said.recv_timeout(PATIENCE).unwrap();
        assert!(then.ends_with(&format!("listens on {address} now")), "{then}");
        assert!(ask(address, "GET /metrics HTTP/1.1\r\n\r\n").ends_with("x 1\n"));
    }

    #[test]
    fn a_page_that_cannot_be_made_is_an_answer() {
        let address = free_address();
        let page = || Err(Error::unavailable("the loop does not answer"));
        let _door = Door::start(address, vec![Route::metrics(page)], |_| ()).unwrap();
        let said = ask(address, "GET /metrics HTTP/1.1\r\n\r\n");
        assert!(said.starts_with("HTTP/1.1 503 "), "{said}");
        assert!(said.ends_with("the loop does not answer\n"), "{said}");
    }
}

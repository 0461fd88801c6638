//! Listeners in place of replicas that hang, and of replicas that are slow to answer.

use super::*;
use gabion_resp::{Incoming, Protocol, RequestParser};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Instant;

const LIMIT: Duration = Duration::from_millis(100);

/// Answers everything.
pub(crate) const ANSWERING: Habits =
    Habits { statuses_max: u32::MAX, statuses_first: 0, digests_ended: 0, log: Log::AtRest };
/// Likewise, and ends the first two digests.
pub(crate) const ENDING: Habits = Habits { digests_ended: 2, ..ANSWERING };
/// Likewise, and its log grows; it is asked a second late.
pub(crate) const LATE: Habits = Habits { log: Log::Growing, ..ANSWERING };
/// Likewise, and its log stops growing once it was measured.
pub(crate) const PAUSING: Habits = Habits { log: Log::Pausing, ..ANSWERING };
/// Accepts and says nothing.
pub(crate) const HANGING: Habits = Habits { statuses_max: 0, ..ANSWERING };

/// How a listener answers.
#[derive(Clone, Copy)]
pub(crate) struct Habits {
    /// How many STATUS requests are answered; later ones are not.
    statuses_max: u32,
    /// How many STATUS requests must come before anything else is answered.
    statuses_first: u32,
    /// How many digests end as too old.
    digests_ended: u32,
    log: Log,
}

/// The behaviour of its log.
#[derive(Clone, Copy)]
enum Log {
    AtRest,
    /// A kilobyte in a millisecond; a digest sees it a second later than it was asked.
    Growing,
    /// A kilobyte at each of the first four times that STATUS is asked.
    Pausing,
}

/// How often each question was asked.
#[derive(Default)]
struct Asked {
    statuses: AtomicU32,
    digests: AtomicU32,
    /// Bytes by which the log is longer than it grew.
    jumped: AtomicU64,
}

/// A listener in a replica's place until the tests end.
pub(crate) struct Stand {
    pub(crate) address: SocketAddr,
    asked: Arc<Asked>,
}

impl Stand {
    pub(crate) fn new(habits: Habits) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let asked = Arc::new(Asked::default());
        let by_all = Arc::clone(&asked);
        let begun = Instant::now();
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(io::Result::ok) {
                let asked = Arc::clone(&by_all);
                std::thread::spawn(move || answer(stream, habits, begun, &asked));
            }
        });
        Self { address, asked }
    }

    /// How many digests were asked for.
    pub(crate) fn digests(&self) -> u32 {
        self.asked.digests.load(Ordering::SeqCst)
    }
}

fn log_end(habits: Habits, begun: Instant, asked: &Asked) -> u64 {
    match habits.log {
        Log::AtRest => 7,
        Log::Growing => {
            begun.elapsed().as_millis() as u64 * 1_000 + asked.jumped.load(Ordering::SeqCst)
        }
        Log::Pausing => u64::from(asked.statuses.load(Ordering::SeqCst).min(4)) * 1_000,
    }
}

/// The answer to a digest at a position.
fn digest_at(position: u64, habits: Habits, begun: Instant, asked: &Asked) -> Reply {
    if asked.digests.fetch_add(1, Ordering::SeqCst) < habits.digests_ended {
        return Reply::error("TRYAGAIN snapshot too old: replaced");
    }
    if let Log::Growing = habits.log {
        asked.jumped.fetch_add(1_000_000, Ordering::SeqCst);
    }
    let end = log_end(habits, begun, asked);
    let is_reached = match habits.log {
        Log::AtRest | Log::Pausing => position == end,
        Log::Growing => position >= end,
    };
    if !is_reached {
        return Reply::error("TRYAGAIN unavailable: passed, or not reached");
    }
    let text = format!(r#"{{"log_end": {position}, "records": 3, "crc": "ab"}}"#);
    Reply::Bulk(text.into())
}

fn answer(mut stream: TcpStream, habits: Habits, begun: Instant, asked: &Asked) {
    let (mut parser, mut buffer) = (RequestParser::new(), BytesMut::new());
    let mut chunk = [0; 4096];
    while let Ok(n @ 1..) = stream.read(&mut chunk) {
        buffer.extend_from_slice(&chunk[..n]);
        let Ok(Some(Incoming::Request(request))) = parser.parse(&mut buffer) else { continue };
        let is_status = request.args.iter().any(|word| &word[..] == b"STATUS");
        let reply = if is_status {
            if asked.statuses.fetch_add(1, Ordering::SeqCst) >= habits.statuses_max {
                continue;
            }
            let end = log_end(habits, begun, asked);
            Reply::Bulk(format!(r#"{{"log": {{"end": {end}}}}}"#).into())
        } else {
            while asked.statuses.load(Ordering::SeqCst) < habits.statuses_first {
                std::thread::sleep(Duration::from_millis(1));
            }
            match &request.args[..] {
                [_, question, position] if &question[..] == b"DIGEST" => {
                    let position = String::from_utf8_lossy(position).parse().unwrap();
                    digest_at(position, habits, begun, asked)
                }
                _ => Reply::OK,
            }
        };
        let mut out = Vec::new();
        reply.encode(Protocol::Resp2, &mut out);
        if stream.write_all(&out).is_err() {
            return;
        }
    }
}

#[test]
fn a_reply_is_waited_for_as_long_as_the_replica_says_its_status_meanwhile() {
    let stand = Stand::new(Habits { statuses_first: 4, ..ANSWERING });
    // Long enough for a machine that has much else to do: each status has to come within it.
    let mut client = Client::connect_living(stand.address, 5 * LIMIT).unwrap();
    assert_eq!(client.call(&["SCRUB"]).unwrap(), Reply::OK);
}

#[test]
fn a_replica_that_hangs_while_it_is_waited_for_is_given_up() {
    let stand = Stand::new(Habits { statuses_max: 2, statuses_first: u32::MAX, ..ANSWERING });
    let mut client = Client::connect_living(stand.address, LIMIT).unwrap();
    let error = client.call(&["SCRUB"]).unwrap_err().to_string();
    assert!(error.contains(&format!("{} does not answer", stand.address)), "{error}");
}

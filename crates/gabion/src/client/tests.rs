//! Replicas that hang, and replicas that are slow to answer, stood in for by listeners.

use super::*;
use gabion_resp::{Protocol, RequestParser};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

const LIMIT: Duration = Duration::from_millis(100);

/// Answers everything.
pub(crate) const ANSWERING: Habits =
    Habits { statuses_max: u32::MAX, statuses_first: 0, digests_ended: 0 };
/// As well, and ends the first two digests.
pub(crate) const ENDING: Habits = Habits { digests_ended: 2, ..ANSWERING };
/// Accepts and says nothing.
pub(crate) const HANGING: Habits = Habits { statuses_max: 0, ..ANSWERING };

/// How something that listens answers.
#[derive(Clone, Copy)]
pub(crate) struct Habits {
    /// How often STATUS is answered; later ones are not.
    statuses_max: u32,
    /// How often STATUS must have been asked before anything else is answered.
    statuses_first: u32,
    /// How many digests are ended as too old.
    digests_ended: u32,
}

/// How often something was asked.
#[derive(Default)]
struct Asked {
    statuses: AtomicU32,
    digests: AtomicU32,
}

/// A listener in a replica's place until the tests end.
pub(crate) struct Stand {
    pub(crate) address: SocketAddr,
}

impl Stand {
    pub(crate) fn new(habits: Habits) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let asked = Arc::new(Asked::default());
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(io::Result::ok) {
                let asked = Arc::clone(&asked);
                std::thread::spawn(move || answer(stream, habits, &asked));
            }
        });
        Self { address }
    }
}

fn answer(mut stream: TcpStream, habits: Habits, asked: &Asked) {
    let (mut parser, mut buffer) = (RequestParser::new(), BytesMut::new());
    let mut chunk = [0; 4096];
    while let Ok(n @ 1..) = stream.read(&mut chunk) {
        buffer.extend_from_slice(&chunk[..n]);
        let Ok(Some(request)) = parser.parse(&mut buffer) else { continue };
        let is_status = request.args.iter().any(|word| &word[..] == b"STATUS");
        let reply = if is_status {
            if asked.statuses.fetch_add(1, Ordering::SeqCst) >= habits.statuses_max {
                continue;
            }
            Reply::bulk("{}")
        } else {
            while asked.statuses.load(Ordering::SeqCst) < habits.statuses_first {
                std::thread::yield_now();
            }
            match request.args.last().map_or(&b""[..], |word| word) {
                b"FILES" => Reply::bulk(r#"{"log_end": 7}"#),
                b"DIGEST"
                    if asked.digests.fetch_add(1, Ordering::SeqCst) < habits.digests_ended =>
                {
                    Reply::error("TRYAGAIN snapshot too old: replaced")
                }
                b"DIGEST" => Reply::bulk(r#"{"records": 3, "crc": "ab"}"#),
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
    let stand = Stand::new(Habits { statuses_first: 5, ..ANSWERING });
    let mut client = Client::connect_living(stand.address, LIMIT).unwrap();
    assert_eq!(client.call(&["SCRUB"]).unwrap(), Reply::OK);
}

#[test]
fn a_replica_that_hangs_while_it_is_waited_for_is_given_up() {
    let stand = Stand::new(Habits { statuses_max: 2, statuses_first: u32::MAX, ..ANSWERING });
    let mut client = Client::connect_living(stand.address, LIMIT).unwrap();
    let error = client.call(&["SCRUB"]).unwrap_err().to_string();
    assert!(error.contains(&format!("{} does not answer", stand.address)), "{error}");
}

//! A fake etcd that answers as it is told: what a real one does rarely.

use crate::client::{Client, Operation, Reason};
use crate::{Change, EtcdStore, EtcdUrl, Led, NAME_LEN_MAX, VALUE_LEN_MAX, wire};
use gabion_base::ErrorKind;
use gabion_control::store::{Store, Swapped, Version};
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const SOON: Duration = Duration::from_secs(10);

/// Reaction of the fake to a request.
enum Reply {
    Say(u16, String),
    /// The connection ends without an answer.
    Cut,
    /// No answer comes.
    Hang,
}

fn say(value: &Value) -> Reply {
    Reply::Say(200, value.to_string())
}

/// An answer with a revision.
fn at(revision: u64, mut value: Value) -> Reply {
    value["header"] = json!({ "revision": revision.to_string() });
    say(&value)
}

fn refuse(code: u64, message: &str) -> Reply {
    Reply::Say(400, json!({ "code": code, "message": message }).to_string())
}

/// A port at which nobody listens. One that was free a moment ago may be another test's by now.
const CLOSED: u16 = 1;

struct Fake {
    port: u16,
    asked: Arc<Mutex<Vec<(String, Value)>>>,
}

impl Fake {
    /// A fake whose answers follow from path and body.
    fn start(mut answer: impl FnMut(&str, &Value) -> Reply + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let list = asked.clone();
        std::thread::spawn(move || {
            let mut hanging = Vec::new();
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let Some((path, body)) = read_request(&stream) else { continue };
                list.lock().unwrap().push((path.clone(), body.clone()));
                match answer(&path, &body) {
                    Reply::Say(status, text) => {
                        let len = text.len();
                        let head = format!("HTTP/1.1 {status} X\r\nContent-Length: {len}\r\n");
                        let _ = write!(stream, "{head}Connection: close\r\n\r\n{text}");
                    }
                    Reply::Cut => {}
                    Reply::Hang => hanging.push(stream),
                }
            }
        });
        Self { port, asked }
    }

    /// One that answers the reading of the leader at the opening, then these in turn.
    fn script(replies: impl IntoIterator<Item = Reply>) -> Self {
        let mut replies: VecDeque<Reply> = replies.into_iter().collect();
        replies.push_front(at(1, json!({})));
        Self::start(move |path, _| {
            replies.pop_front().unwrap_or_else(|| panic!("{path} is one request too many"))
        })
    }

    fn open(&self) -> EtcdStore {
        let url = EtcdUrl::parse(&format!("etcd://127.0.0.1:{}/t", self.port)).unwrap();
        EtcdStore::open(&url, None).unwrap()
    }

    fn count(&self, path: &str) -> usize {
        self.asked.lock().unwrap().iter().filter(|(asked, _)| asked == path).count()
    }

    fn last(&self) -> Value {
        self.asked.lock().unwrap().last().unwrap().1.clone()
    }
}

fn client_of(port: u16) -> Arc<Client> {
    Client::new(&EtcdUrl::parse(&format!("etcd://127.0.0.1:{port}")).unwrap(), None)
}

fn read_request(stream: &TcpStream) -> Option<(String, Value)> {
    let mut reader = BufReader::new(stream);
    let (mut path, mut len) = (String::new(), 0);
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let line = line.trim_end().to_ascii_lowercase();
        if let Some(rest) = line.strip_prefix("post ") {
            path = rest.split(' ').next()?.to_owned();
        } else if let Some(number) = line.strip_prefix("content-length: ") {
            len = number.parse().ok()?;
        } else if line.is_empty() {
            break;
        }
    }
    let mut body = vec![0; len];
    reader.read_exact(&mut body).ok()?;
    Some((path, serde_json::from_slice(&body).ok()?))
}

/// A key of the store with a value as a handle has put it.
fn pair(name: &str, revision: u64, put: &str) -> Value {
    let revision = revision.to_string();
    let key = wire::text(format!("t/values/{name}"));
    json!({ "key": key, "create_revision": revision, "mod_revision": revision, "value": put })
}

/// A value of another handle.
fn foreign(value: &[u8]) -> String {
    wire::text([&[1; 17][..], value].concat())
}

/// The refusal of a transaction that found these.
fn found(ranges: &[Value]) -> Reply {
    let ranges: Vec<Value> =
        ranges.iter().map(|kvs| json!({ "response_range": { "kvs": kvs } })).collect();
    at(9, json!({ "responses": ranges }))
}

/// The value that a swap puts.
fn put_of(body: &Value) -> String {
    body["success"][0]["request_put"]["value"].as_str().unwrap().to_owned()
}

/// docs/faults.md: R9
#[test]
fn a_swap_whose_answer_was_lost_is_sent_again_and_finds_its_own_value() {
    let mut attempts = 0;
    let fake = Fake::start(move |path, body| {
        if path != "/v3/kv/txn" {
            return at(1, json!({}));
        }
        attempts += 1;
        match attempts {
            1 => Reply::Cut,
            _ => found(&[json!([pair("a", 7, &put_of(body))])]),
        }
    });
    let swapped = fake.open().swap("a", Version(3), b"one").unwrap();
    assert_eq!(swapped, Swapped::Stored(Version(7)));
    assert_eq!(fake.last()["compare"][0]["mod_revision"], "3");
}

/// docs/faults.md: R9
#[test]
fn a_swap_whose_answer_was_lost_is_unknown_once_another_value_is_there() {
    let fake = Fake::script([Reply::Cut, found(&[json!([pair("a", 8, &foreign(b"two"))])])]);
    let error = fake.open().swap("a", Version(3), b"one").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unknown, "{error}");
    assert!(error.message().contains("swap a"), "{error}");
}

#[test]
fn a_swap_that_was_refused_says_so_and_has_no_unknown_outcome() {
    let full = "etcdserver: mvcc: database space exceeded";
    let fake = Fake::script([
        found(&[json!([pair("a", 8, &foreign(b"two"))])]),
        refuse(8, full),
        refuse(3, "etcdserver: request is too large"),
        // An earlier attempt may have had room.
        Reply::Cut,
        refuse(8, full),
    ]);
    let mut store = fake.open();
    let Swapped::Lost(Some(theirs)) = store.swap("a", Version(3), b"one").unwrap() else {
        panic!("somebody else was first");
    };
    assert_eq!((theirs.version, &*theirs.value), (Version(8), &b"two"[..]));
    let mut kinds = Vec::new();
    for _ in 0..3 {
        let error = store.swap("a", Version(3), b"one").unwrap_err();
        let text = error.to_string();
        let endpoint = format!("127.0.0.1:{}", fake.port);
        assert!(text.contains("swap a") && text.contains(&endpoint), "{text}");
        kinds.push(error.kind());
    }
    assert_eq!(kinds, [ErrorKind::NoSpace, ErrorKind::InvalidInput, ErrorKind::Unknown]);
}

/// docs/faults.md: R9
#[test]
fn endpoints_are_asked_in_turn_and_the_one_that_answered_first_the_next_time() {
    let (stopped, fake) = (Fake::start(|_, _| Reply::Hang), Fake::start(|_, _| at(5, json!({}))));
    let hosts = [CLOSED, stopped.port, fake.port].map(|port| format!("127.0.0.1:{port}"));
    let url = EtcdUrl::parse(&format!("etcd://{}/t", hosts.join(","))).unwrap();
    let mut store = EtcdStore::open(&url, None).unwrap();
    let begun = Instant::now();
    assert_eq!(store.get("a").unwrap(), None);
    assert!(begun.elapsed() < Duration::from_secs(1), "the one that answers is known");
    assert_eq!(stopped.count("/v3/kv/range"), 1);
}

/// docs/faults.md: R9
#[test]
fn a_write_without_an_answer_is_unknown_and_one_that_was_not_sent_is_not() {
    let operation = |is_write| Operation { path: "/v3/kv/txn", name: "swap a", is_write };
    let patience = Duration::from_millis(500);
    let call = |port: u16, is_write| {
        let client = client_of(port);
        let begun = Instant::now();
        let failure = client.call(operation(is_write), &json!({}), patience).err().unwrap();
        assert!(begun.elapsed() < 2 * patience, "{:?}", begun.elapsed());
        assert!(failure.error.to_string().contains(&port.to_string()), "{}", failure.error);
        (failure.reason, failure.error.kind())
    };
    let stopped = Fake::start(|_, _| Reply::Hang);
    assert_eq!(call(stopped.port, true), (Reason::Unsure, ErrorKind::Unknown));
    assert_eq!(call(stopped.port, false), (Reason::Unsure, ErrorKind::Unavailable));
    assert_eq!(call(CLOSED, true), (Reason::Unsent, ErrorKind::Unavailable));
}

#[test]
fn names_and_values_are_bounded_before_anything_is_sent() {
    let fake = Fake::script([]);
    let mut store = fake.open();
    let long = "n".repeat(NAME_LEN_MAX + 1);
    for (name, len, limit) in [("", 1, "1 to 512"), (&*long, 1, "513"), ("a", 1 << 20, "1048576")] {
        let value = vec![0; len + 1];
        let error = store.swap(name, Version::NONE, &value).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::LimitExceeded);
        assert!(error.message().contains(limit), "{error}");
    }
    assert_eq!(VALUE_LEN_MAX, 1 << 20);
    assert_eq!(fake.count("/v3/kv/txn"), 0);
}

#[test]
fn answers_that_are_not_etcds_are_errors() {
    let short = json!({ "kvs": [pair("a", 5, &wire::text([1, 2]))] });
    let later = json!({ "kvs": [pair("a", 5, &wire::text([2; 20]))] });
    let undated = json!({ "kvs": [pair("a", 0, &foreign(b""))] });
    let many = json!({ "kvs": 7 });
    let fake = Fake::script([short, later, undated, many].map(|value| at(5, value)));
    let mut store = fake.open();
    let kinds = [ErrorKind::Corruption, ErrorKind::Unsupported, ErrorKind::Io, ErrorKind::Io];
    for kind in kinds {
        let error = store.get("a").unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
    }
    let html = Fake::start(|_, _| Reply::Say(200, "<html>".to_owned()));
    let client = client_of(html.port);
    let operation = Operation { path: "/v3/kv/range", name: "get a", is_write: false };
    let failure = client.call(operation, &json!({}), Duration::from_millis(300)).err().unwrap();
    assert!(failure.error.to_string().contains("not an answer of etcd"), "{}", failure.error);
}

/// docs/faults.md: R9
#[test]
fn a_list_whose_revision_is_compacted_between_pages_begins_anew() {
    let page = |revision: u64| -> Reply {
        let names = (0..16).map(|n| pair(&format!("{n:02}"), revision, &foreign(b"x")));
        at(revision, json!({ "kvs": names.collect::<Vec<_>>() }))
    };
    let fake = Fake::script([
        page(5),
        refuse(11, "etcdserver: mvcc: required revision has been compacted"),
        page(9),
        at(10, json!({ "kvs": [pair("16", 9, &foreign(b"y"))] })),
    ]);
    let listed = fake.open().list("").unwrap();
    assert_eq!(listed.len(), 17);
    assert!(listed.iter().all(|(_, value)| value.version == Version(9)));
    let last = fake.last();
    assert_eq!(last["revision"], "9", "all pages are of one revision");
    assert_eq!(last["key"], wire::text("t/values/15\0"));
}

/// docs/faults.md: R9
#[test]
fn a_lease_that_etcd_no_longer_has_is_lost_and_its_handle_asks_for_no_swap_more() {
    let fake = Fake::start(|path, _| match path {
        "/v3/lease/grant" => at(4, json!({ "ID": "77", "TTL": "3" })),
        "/v3/kv/txn" => at(5, json!({ "succeeded": true })),
        "/v3/lease/keepalive" => say(&json!({ "result": { "ID": "77" } })),
        _ => at(4, json!({})),
    });
    let mut store = fake.open();
    let Led::Leads(leadership) = store.lead("me", Duration::ZERO).unwrap() else {
        panic!("nobody leads");
    };
    let begun = Instant::now();
    let lost = leadership.lost(SOON).expect("it is told");
    assert!(begun.elapsed() < Duration::from_secs(2), "at the first confirmation");
    assert_eq!(lost.kind(), ErrorKind::Fenced, "{lost}");
    let error = store.swap("a", Version::NONE, b"").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Fenced, "{error}");
    assert_eq!(fake.count("/v3/kv/txn"), 1, "of the lead alone");
}

/// docs/faults.md: R9
#[test]
fn the_lead_that_was_taken_by_an_attempt_without_an_answer_is_known_by_its_lease() {
    let mut attempts = 0;
    let fake = Fake::start(move |path, body| match path {
        "/v3/lease/grant" => at(4, json!({ "ID": "77", "TTL": "3" })),
        "/v3/lease/keepalive" => say(&json!({ "result": { "ID": "77", "TTL": "3" } })),
        "/v3/kv/txn" if body["success"][0]["request_put"]["lease"] == "77" => {
            attempts += 1;
            let leader = json!([{ "create_revision": "6", "mod_revision": "6", "lease": "77" }]);
            if attempts == 1 { Reply::Cut } else { found(&[leader]) }
        }
        // Somebody else leads by now.
        "/v3/kv/txn" => found(&[json!([]), json!([{ "create_revision": "8", "value": "eW91" }])]),
        _ => at(4, json!({})),
    });
    let mut store = fake.open();
    let Led::Leads(leadership) = store.lead("me", Duration::ZERO).unwrap() else {
        panic!("this handle leads");
    };
    let error = store.swap("a", Version::NONE, b"").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Fenced, "{error}");
    assert_eq!(fake.last()["compare"][1]["create_revision"], "6");
    assert!(leadership.lost(Duration::ZERO).unwrap().message().contains("you leads"));
}

/// docs/faults.md: R9
#[test]
fn a_watch_with_a_hole_reads_all_names_again() {
    let header = |revision: u64| json!({ "revision": revision.to_string() });
    let line = move |revision: u64, mut result: Value| {
        result["header"] = header(revision);
        format!("{}\n", json!({ "result": result }))
    };
    let put = |name: &str, revision: u64| json!({ "kv": pair(name, revision, &foreign(b"")) });
    let mut streams = VecDeque::from([
        // Two changes, and the end: nothing is missing.
        line(5, json!({ "created": true }))
            + &line(9, json!({ "events": [put("a", 6), put("b", 7)] })),
        // Compacted.
        line(9, json!({ "created": true }))
            + &line(9, json!({ "canceled": true, "compact_revision": "9" })),
        // Set back.
        line(2, json!({ "created": true })),
        // Refused: by a member without a leader.
        line(20, json!({ "canceled": true, "cancel_reason": "etcdserver: no leader" })),
        // Changes of before.
        line(20, json!({ "created": true })) + &line(20, json!({ "events": [put("z", 3)] })),
    ]);
    let mut reads = 0;
    let fake = Fake::start(move |path, _| match path {
        "/v3/watch" => streams.pop_front().map_or(Reply::Hang, |text| Reply::Say(200, text)),
        _ => {
            reads += 1;
            // The first is the opening of the store.
            at(if reads <= 2 { 5 } else { 15 }, json!({}))
        }
    });
    let store = fake.open();
    let watch = store.watch("").unwrap();
    let mut seen = Vec::new();
    while seen.len() < 9 {
        seen.push(match watch.next(SOON).expect("there is more") {
            Change::Present(_) => "all".to_owned(),
            Change::Put(name, _) => name,
            Change::Gone(name) => format!("-{name}"),
            Change::Unheard(error) => error.to_string(),
        });
    }
    for unheard in [5, 7] {
        assert!(seen[unheard].contains("watch from revision 16"), "{}", seen[unheard]);
        seen[unheard] = "unheard".to_owned();
    }
    let expected = ["all", "a", "b", "all", "all", "unheard", "all", "unheard", "all"];
    assert_eq!(seen, expected);
    let asked = fake.asked.lock().unwrap();
    let from = asked.iter().filter(|(path, _)| path == "/v3/watch");
    let from: Vec<_> =
        from.map(|(_, body)| body["create_request"]["start_revision"].clone()).collect();
    assert_eq!(from[..3], ["6", "8", "16"], "the second begins behind the last event");
}

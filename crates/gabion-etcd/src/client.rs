//! A call: its deadline, the endpoints in turn, and what is known after a failure.

use crate::tls::{NotLetIn, TlsConnector};
use crate::url::EtcdUrl;
use gabion_base::{Error, ErrorKind, Result};
use gabion_tls::ClientTls;
use serde_json::Value;
use std::io::{self, BufReader};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use ureq::unversioned::resolver::DefaultResolver;
use ureq::unversioned::transport::{Connector, TcpConnector};

/// How long a call of the store may take: as long as etcd takes to elect a leader, and more.
pub(crate) const CALL_MAX: Duration = Duration::from_secs(5);
/// How long one endpoint may take before the next one is asked.
const ATTEMPT_MAX: Duration = Duration::from_millis(1_500);
/// Pause after every endpoint has failed.
pub(crate) const PAUSE: Duration = Duration::from_millis(100);
/// Bytes of an answer. The longest is a page of [`crate::store::list`].
const ANSWER_LEN_MAX: u64 = 32 << 20;
/// Has a member without a leader end a watch instead of staying silent.
const NEEDS_LEADER: (&str, &str) = ("Grpc-Metadata-hasleader", "true");

/// A call of the gateway.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operation<'a> {
    pub(crate) path: &'static str,
    /// In the words of an error: `swap groups/1`.
    pub(crate) name: &'a str,
    /// Whether it changes anything, so that an answer which is lost leaves the outcome open.
    pub(crate) is_write: bool,
}

/// Outcome of an attempt that failed, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// It did not reach etcd.
    Unsent,
    /// Nobody knows whether it took effect, or still will.
    Unsure,
    /// etcd refused it, and will again.
    Refused,
    /// The revision that it is about is compacted.
    Compacted,
    /// The lease that it is about has expired.
    NoLease,
}

impl Reason {
    const fn is_final(self) -> bool {
        !matches!(self, Self::Unsent | Self::Unsure)
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) reason: Reason,
    pub(crate) error: Error,
}

/// Reply of etcd.
pub(crate) struct Answer {
    pub(crate) value: Value,
    /// Whether an attempt before the one that was answered may have taken effect.
    pub(crate) is_repeated: bool,
}

/// Connections to the endpoints. One that answered is asked first the next time.
pub(crate) struct Client {
    agent: ureq::Agent,
    scheme: &'static str,
    endpoints: Vec<String>,
    at: AtomicUsize,
}

impl Client {
    /// Connections that are encrypted if there is `tls`.
    pub(crate) fn new(url: &EtcdUrl, tls: Option<&Arc<ClientTls>>) -> Arc<Self> {
        let endpoints = url.endpoints.clone();
        assert!(!endpoints.is_empty(), "an etcd has an endpoint");
        let config = ureq::Agent::config_builder()
            .proxy(None)
            .max_redirects(0)
            .http_status_as_error(false)
            .user_agent(concat!("gabion/", env!("CARGO_PKG_VERSION")))
            .build();
        let (scheme, agent) = match tls {
            None => ("http", config.into()),
            Some(tls) => {
                let tcp = TcpConnector::default();
                let connector = Connector::<()>::chain(tcp, TlsConnector(tls.clone()));
                let resolver = DefaultResolver::default();
                ("https", ureq::Agent::with_parts(config, connector, resolver))
            }
        };
        Arc::new(Self { agent, scheme, endpoints, at: AtomicUsize::new(0) })
    }

    /// Makes a call that may be made more than once, until an endpoint answers or refuses.
    pub(crate) fn call(
        &self,
        operation: Operation<'_>,
        body: &Value,
        patience: Duration,
    ) -> std::result::Result<Answer, Failure> {
        let body = body.to_string();
        let begun = Instant::now();
        let (mut is_unsure, mut attempts) = (false, 0);
        let mut before: Option<Failure> = None;
        loop {
            let left = patience.saturating_sub(begun.elapsed());
            let (place, endpoint) = self.endpoint();
            // Short patience is for more than one endpoint too.
            let share = ATTEMPT_MAX.min(patience / 3).min(left);
            let tried = self.attempt(endpoint, operation, &body, share);
            let failure = match tried {
                Ok(value) => return Ok(Answer { value, is_repeated: is_unsure }),
                Err(failure) => failure,
            };
            is_unsure |= failure.reason == Reason::Unsure;
            // An attempt of a moment fails for want of time: the one before it says more.
            let is_short = share < PAUSE && !failure.reason.is_final();
            let failure = before.take().filter(|_| is_short).unwrap_or(failure);
            let is_late = begun.elapsed() + PAUSE >= patience;
            if failure.reason.is_final() || is_late {
                return Err(given_up(failure, operation, is_unsure, begun.elapsed()));
            }
            before = Some(failure);
            self.pass_on(place);
            attempts += 1;
            if attempts % self.endpoints.len() == 0 {
                std::thread::sleep(PAUSE);
            }
        }
    }

    /// The endpoint to ask next, and its place.
    pub(crate) fn endpoint(&self) -> (usize, &str) {
        let place = self.at.load(Ordering::Relaxed) % self.endpoints.len();
        (place, &self.endpoints[place])
    }

    /// The endpoint at this place failed: the next is asked, if no other thread has passed on yet.
    pub(crate) fn pass_on(&self, place: usize) {
        let next = (place + 1) % self.endpoints.len();
        let _ = self.at.compare_exchange(place, next, Ordering::Relaxed, Ordering::Relaxed);
    }

    fn address(&self, endpoint: &str, operation: Operation<'_>) -> String {
        format!("{}://{endpoint}{}", self.scheme, operation.path)
    }

    fn attempt(
        &self,
        endpoint: &str,
        operation: Operation<'_>,
        body: &str,
        patience: Duration,
    ) -> std::result::Result<Value, Failure> {
        // Zero would be no limit.
        let patience = patience.max(Duration::from_millis(1));
        let request = self.agent.post(self.address(endpoint, operation));
        let request = request.config().timeout_global(Some(patience)).build();
        let request = request.content_type("application/json");
        let mut response =
            request.send(body).map_err(|error| unreached(endpoint, operation, error))?;
        let status = response.status().as_u16();
        let bytes = response.body_mut().with_config().limit(ANSWER_LEN_MAX).read_to_vec();
        let bytes = bytes.map_err(|error| Failure {
            reason: Reason::Unsure,
            error: io_error(endpoint, operation, error),
        })?;
        read_answer(status, &bytes).map_err(|(reason, error)| Failure {
            reason,
            error: error.within(format!("etcd at {endpoint}: {}", operation.name)),
        })
    }

    /// Opens a stream of answers at an endpoint, which is cut after `patience`.
    pub(crate) fn stream(
        &self,
        endpoint: &str,
        operation: Operation<'_>,
        body: &Value,
        patience: Duration,
    ) -> Result<BufReader<impl io::Read + use<>>> {
        let request = self.agent.post(self.address(endpoint, operation));
        let config = request.config();
        let config = config.timeout_connect(Some(ATTEMPT_MAX));
        let config = config.timeout_recv_response(Some(ATTEMPT_MAX));
        let request = config.timeout_recv_body(Some(patience)).build();
        let request = request.header(NEEDS_LEADER.0, NEEDS_LEADER.1);
        let request = request.content_type("application/json");
        let sent = request.send(body.to_string());
        let response = sent.map_err(|error| unreached(endpoint, operation, error).error)?;
        let status = response.status().as_u16();
        if status != 200 {
            let name = operation.name;
            return Err(Error::unavailable(format!("etcd at {endpoint}: {name}: HTTP {status}")));
        }
        Ok(BufReader::new(response.into_body().into_reader()))
    }
}

/// The error of a call of which no more attempts are made.
fn given_up(last: Failure, operation: Operation<'_>, is_unsure: bool, after: Duration) -> Failure {
    let is_open = is_unsure && operation.is_write;
    let name = operation.name;
    let message = match (is_open, last.reason.is_final()) {
        (false, true) => return last,
        (true, true) => format!("etcd: {name}: an earlier attempt may have been carried out"),
        (_, false) => format!("etcd: {name}: no answer within {} ms", after.as_millis()),
    };
    let kind = if is_open { ErrorKind::Unknown } else { ErrorKind::Unavailable };
    let reason = if is_open { Reason::Unsure } else { last.reason };
    Failure { reason, error: Error::with_source(kind, message, last.error) }
}

fn io_error(endpoint: &str, operation: Operation<'_>, error: ureq::Error) -> Error {
    let message = format!("etcd at {endpoint}: {}", operation.name);
    match NotLetIn::within(&error) {
        Some(why) => Error::io(format!("{message}: {why}")),
        None => Error::with_source(ErrorKind::Io, message, error),
    }
}

/// No answer came.
fn unreached(endpoint: &str, operation: Operation<'_>, error: ureq::Error) -> Failure {
    use ureq::Timeout::{Connect, Resolve};
    let is_unsent = match &error {
        ureq::Error::Timeout(Connect | Resolve)
        | ureq::Error::HostNotFound
        | ureq::Error::ConnectionFailed => true,
        ureq::Error::Io(error) => error.kind() == io::ErrorKind::ConnectionRefused,
        _ => false,
    };
    let reason = if is_unsent { Reason::Unsent } else { Reason::Unsure };
    Failure { reason, error: io_error(endpoint, operation, error) }
}

/// The codes of gRPC that etcd answers with.
mod code {
    pub(super) const INVALID_ARGUMENT: u64 = 3;
    pub(super) const NOT_FOUND: u64 = 5;
    pub(super) const PERMISSION_DENIED: u64 = 7;
    pub(super) const RESOURCE_EXHAUSTED: u64 = 8;
    pub(super) const FAILED_PRECONDITION: u64 = 9;
    pub(super) const OUT_OF_RANGE: u64 = 11;
    pub(super) const UNIMPLEMENTED: u64 = 12;
    pub(super) const UNAUTHENTICATED: u64 = 16;
}

fn read_answer(status: u16, bytes: &[u8]) -> std::result::Result<Value, (Reason, Error)> {
    let read: std::result::Result<Value, _> = serde_json::from_slice(bytes);
    let value = read.map_err(|error| {
        let message = format!("not an answer of etcd: HTTP {status}, {} bytes", bytes.len());
        (Reason::Unsure, Error::with_source(ErrorKind::Io, message, error))
    })?;
    // A stream of one answer has its error in it, under the status of a success.
    let refusal = if value["error"].is_object() { &value["error"] } else { &value };
    if status == 200 && refusal["code"].is_null() {
        return Ok(value);
    }
    let said = refusal["message"].as_str().unwrap_or("no reason is given");
    let text = format!("{said} (HTTP {status})");
    Err(match refusal["code"].as_u64() {
        Some(code::OUT_OF_RANGE) => (Reason::Compacted, Error::unavailable(text)),
        Some(code::NOT_FOUND) if said.contains("lease") => (Reason::NoLease, Error::fenced(text)),
        Some(code::RESOURCE_EXHAUSTED) if said.contains("space") => {
            (Reason::Refused, Error::no_space(text))
        }
        Some(
            code::INVALID_ARGUMENT
            | code::NOT_FOUND
            | code::PERMISSION_DENIED
            | code::FAILED_PRECONDITION
            | code::UNIMPLEMENTED
            | code::UNAUTHENTICATED,
        ) => (Reason::Refused, Error::invalid(text)),
        _ => (Reason::Unsure, Error::unavailable(text)),
    })
}

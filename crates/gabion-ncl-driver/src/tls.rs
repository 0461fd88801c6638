//! Certificates of log peers, programs and their controller, and who may do what with them.
//!
//! ```text
//!   program (client APP, or operator) ──► peer (node)         requests of APP alone; of any
//!   program, peer                     ──► controller          names of APP; of peers; all
//! ```
//!
//! A program's certificate is that of its application: role `client`, and the application's name.
//! So no program reads or fences the log of another. An operator's is that of all applications. TCP
//! alone is encrypted: a Unix socket belongs to its machine, and to the users that may open it.

use crate::address::PeerAddress;
use gabion_base::{Error, Result};
use gabion_control::store_wire::Question;
use gabion_fabric::remote::{LinkAddress, PeerLink};
use gabion_fabric::{Cipher, Ciphers};
use gabion_media::remote::ClientConfig;
use gabion_ncl::map::{APPS_PREFIX, PEERS_PREFIX, PeerRecord};
use gabion_tls::{Expected, Identity, MutualTls, Role, SharedSocket, TlsStream};
use std::io::{self, IoSlice};
use std::net::TcpStream;
use std::sync::Arc;

/// Whether a certificate may speak for an application.
///
/// # Errors
/// Invalid input with both names.
pub fn check_application(found: &Identity, application: &str) -> Result<()> {
    let may = match found.role() {
        Role::Operator => true,
        Role::Client => found.name() == application,
        Role::Node | Role::Controller => false,
    };
    if may {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "the certificate is of {found}: application '{application}' takes that of client \
         {application}, or of an operator"
    )))
}

/// Whether a certificate may ask a controller this.
///
/// # Errors
/// Invalid input with the identity and the name.
pub(crate) fn check_question(found: Option<&Identity>, question: &Question<'_>) -> Result<()> {
    let (name, change) = match *question {
        Question::Greet { .. } => return Ok(()),
        Question::Get { name } => (name, None),
        Question::List { prefix, .. } => (prefix, None),
        Question::Swap { name, value, .. } => (name, Some(value)),
    };
    let is_change = change.is_some();
    let is_of_peers = name.starts_with(PEERS_PREFIX);
    let is_of_apps = name.starts_with(APPS_PREFIX);
    let may = found.is_some_and(|found| match found.role() {
        Role::Operator => true,
        Role::Node => match change {
            Some(record) => is_of_peers && registers(found.name(), record),
            None => is_of_peers || is_of_apps,
        },
        Role::Client => {
            let own = name.strip_prefix(APPS_PREFIX).and_then(|rest| rest.split_once('/'));
            own.is_some_and(|(app, _)| app == found.name()) || (is_of_peers && !is_change)
        }
        Role::Controller => false,
    });
    if may {
        return Ok(());
    }
    let found = found.map_or_else(|| "nobody".to_owned(), Identity::to_string);
    let what = if is_change { "change" } else { "read" };
    Err(Error::invalid(format!(
        "the certificate is of {found}, and it would {what} '{name}': refused"
    )))
}

/// Whether a peer's record is this node's.
fn registers(node: &str, record: &[u8]) -> bool {
    let record = PeerRecord::decode(record);
    let address = record.and_then(|record| PeerAddress::decode(&record.address));
    address.is_ok_and(|address| address.node.as_deref() == Some(node))
}

/// Whether a certificate may change what is there: a node its own record alone.
///
/// # Errors
/// Invalid input with the identity and the name.
pub(crate) fn check_change(found: Option<&Identity>, name: &str, there: &[u8]) -> Result<()> {
    match found {
        Some(found) if found.role() == Role::Node && !registers(found.name(), there) => {
            Err(Error::invalid(format!(
                "the certificate is of {found}, and '{name}' is another node's: refused"
            )))
        }
        _ => Ok(()),
    }
}

/// Connections that programs make to a peer here.
pub struct FromPrograms(pub Arc<MutualTls>);

impl Ciphers for FromPrograms {
    fn begin(&self, socket: Arc<TcpStream>) -> Result<Box<dyn Cipher>> {
        let stream = TlsStream::new(SharedSocket(socket), self.0.accept()?);
        Ok(Box::new(End { stream, is_known: false }))
    }
}

/// Connections from here to a peer, which is this node.
struct ToPeer<'a> {
    tls: &'a MutualTls,
    expected: Expected,
}

impl Ciphers for ToPeer<'_> {
    fn begin(&self, socket: Arc<TcpStream>) -> Result<Box<dyn Cipher>> {
        let tls = self.tls.connect(self.expected.clone())?;
        let stream = TlsStream::new(SharedSocket(socket), tls);
        // The other end is checked in the handshake.
        Ok(Box::new(End { stream, is_known: true }))
    }
}

/// Connects to the peer at an address, whatever node it is: for those who ask no registry.
///
/// # Errors
/// Those of [`PeerLink::connect_by`].
pub fn connect_to_any(
    place: LinkAddress,
    config: ClientConfig,
    tls: Option<&MutualTls>,
) -> Result<PeerLink> {
    match tls {
        Some(tls) => {
            PeerLink::connect_by(place, config, Some(&ToPeer { tls, expected: Expected::AnyNode }))
        }
        None => PeerLink::connect(place, config),
    }
}

/// Connects to one of a peer's places.
///
/// # Errors
/// Those of [`PeerLink::connect_by`]; invalid input where one end has certificates and the other
/// has none.
pub fn connect(
    place: LinkAddress,
    config: ClientConfig,
    tls: Option<&MutualTls>,
    address: &PeerAddress,
) -> Result<PeerLink> {
    let is_tcp = matches!(place, LinkAddress::Tcp(_));
    match (tls, address.node.as_deref()) {
        (Some(tls), Some(node)) if is_tcp => {
            let expected = Expected::Node(node.to_owned());
            PeerLink::connect_by(place, config, Some(&ToPeer { tls, expected }))
        }
        (None, Some(node)) if is_tcp => Err(Error::invalid(format!(
            "peer at {place}: it shows the certificate of node {node}, and takes one: --identity"
        ))),
        (Some(_), None) if is_tcp => Err(Error::invalid(format!(
            "peer at {place}: it has no certificate, and nothing is sent to it in plain text"
        ))),
        _ => PeerLink::connect(place, config),
    }
}

/// An end of a connection.
struct End {
    stream: TlsStream<SharedSocket>,
    /// Whether the other end's role may connect.
    is_known: bool,
}

impl End {
    /// Refuses other roles, once it is known who is there.
    fn check(&mut self) -> io::Result<()> {
        if self.is_known || self.stream.is_handshaking() {
            return Ok(());
        }
        let found = self.stream.identity();
        let role = found.as_ref().map(Identity::role);
        self.is_known = matches!(role, Some(Role::Client | Role::Operator));
        if self.is_known {
            return Ok(());
        }
        let found = found.map_or_else(|| "nobody".to_owned(), |found| found.to_string());
        let text = format!(
            "the certificate is of {found}, and memory is lent to clients and operators alone"
        );
        Err(io::Error::new(io::ErrorKind::InvalidData, text))
    }
}

impl Cipher for End {
    fn send(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        self.check()?;
        self.stream.write_vectored(parts)
    }

    fn receive(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let result = self.stream.read(into);
        self.check()?;
        result
    }

    fn flush(&mut self) -> io::Result<bool> {
        self.stream.flush()
    }

    fn has_kept(&self) -> bool {
        self.stream.has_pending()
    }

    fn is_ended(&self) -> bool {
        self.stream.is_ended()
    }

    fn admits(&self, owner: &str) -> Result<()> {
        let found = self.stream.identity();
        let found = found.ok_or_else(|| Error::invalid("the certificate names nobody"))?;
        check_application(&found, owner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gabion_control::Version;
    use gabion_media::remote::Incarnation;

    fn identity(role: Role, name: &str) -> Identity {
        Identity::new(role, name).unwrap()
    }

    fn record_at(address: &PeerAddress) -> Vec<u8> {
        let (domain, address) = (String::new(), address.encode());
        PeerRecord { incarnation: Incarnation(1), free_bytes: 1, domain, address }.encode()
    }

    #[test]
    fn a_certificate_speaks_for_its_application_and_an_operators_for_all() {
        let may = |role, name, app| check_application(&identity(role, name), app).is_ok();
        assert!(may(Role::Client, "redis", "redis"));
        assert!(!may(Role::Client, "redis", "redis-2"));
        assert!(may(Role::Operator, "alice", "redis"));
        assert!(!may(Role::Node, "redis", "redis"));
        assert!(!may(Role::Controller, "redis", "redis"));
    }

    #[test]
    fn a_controller_answers_each_certificate_about_its_own_names() {
        let record = |node: &str| {
            let node = Some(node.to_owned());
            record_at(&PeerAddress { tcp: "127.0.0.1:1".parse().ok(), node, unix: None })
        };
        let (own, other) = (record("redis"), record("n2"));
        let swap = |name| Question::Swap { name, expected: Version::NONE, value: &own };
        let as_other =
            Question::Swap { name: "ncl/peers/1", expected: Version::NONE, value: &other };
        let get = |name| Question::Get { name };
        let list = |prefix| Question::List { prefix, after: "" };
        let table = [
            (Role::Client, get("ncl/apps/redis/map"), true),
            (Role::Client, swap("ncl/apps/redis/instance"), true),
            (Role::Client, get("ncl/apps/redis-2/map"), false),
            (Role::Client, get("ncl/apps/redis"), false),
            (Role::Client, list("ncl/apps/"), false),
            (Role::Client, list("ncl/peers/"), true),
            (Role::Client, swap("ncl/peers/1"), false),
            (Role::Client, list(""), false),
            (Role::Node, swap("ncl/peers/1"), true),
            (Role::Node, as_other, false),
            (Role::Node, get("ncl/apps/redis/map"), true),
            (Role::Node, swap("ncl/apps/redis/map"), false),
            (Role::Node, list(""), false),
            (Role::Operator, list(""), true),
            (Role::Operator, swap("ncl/apps/redis/map"), true),
            (Role::Controller, get("ncl/apps/redis/map"), false),
        ];
        for (role, question, may) in table {
            let found = check_question(Some(&identity(role, "redis")), &question);
            assert_eq!(found.is_ok(), may, "{role:?} {question:?}: {found:?}");
            assert!(check_question(None, &question).is_err(), "{question:?}");
        }
        let node = identity(Role::Node, "redis");
        assert!(check_change(Some(&node), "ncl/peers/1", &own).is_ok());
        assert!(check_change(Some(&node), "ncl/peers/1", &other).is_err());
        let plain = PeerAddress { tcp: "127.0.0.1:1".parse().ok(), ..PeerAddress::default() };
        assert!(!registers("redis", &record_at(&plain)), "a plain one is nobody's");
    }
}

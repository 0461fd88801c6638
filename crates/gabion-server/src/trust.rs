//! TLS with controllers, the other members and their targets, and whose certificates may say what.
//!
//! A controller's certificate speaks for controllers, and that of a node for the replicas that the
//! group's record places on it. That record comes to this process from outside ([`NodeNames`]), as
//! the view that runs here may be older.

use crate::stream::Stream;
use gabion_base::{Error, ReplicaId, Result};
use gabion_fabric::{Cipher, Ciphers};
use gabion_node::replica_of_host;
use gabion_tls::{Expected, Identity, MutualTls, Role, SharedSocket, TlsStream};
use mio::net::TcpStream;
use std::fmt;
use std::io::{self, IoSlice};
use std::sync::Arc;

/// The nodes on which replicas of this group are.
pub trait NodeNames: Send + Sync {
    /// The name of a replica's node, if there is such a replica.
    fn node_of(&self, replica: ReplicaId) -> Option<String>;

    /// Whether a node of this name holds a replica.
    fn holds_any(&self, node: &str) -> bool;
}

/// Certificates of this process, and the nodes of the others.
#[derive(Clone)]
pub struct MembersTls {
    /// Certificates, which are read again when their files change.
    pub tls: Arc<MutualTls>,
    /// The nodes of this group's replicas.
    pub nodes: Arc<dyn NodeNames>,
}

impl fmt::Debug for MembersTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MembersTls").field("tls", &self.tls).finish_non_exhaustive()
    }
}

impl PartialEq for MembersTls {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.tls, &other.tls)
    }
}

impl Eq for MembersTls {}

impl MembersTls {
    /// Begins to shake hands with who has connected.
    pub(crate) fn accept(&self, socket: TcpStream) -> Result<Stream> {
        Ok(Stream::Tls(Box::new(TlsStream::new(socket, self.tls.accept()?))))
    }

    /// Begins to shake hands with a replica.
    pub(crate) fn connect(&self, socket: TcpStream, to: ReplicaId) -> Result<Stream> {
        let tls = self.tls.connect(Expected::Node(self.node_of(to)?))?;
        Ok(Stream::Tls(Box::new(TlsStream::new(socket, tls))))
    }

    pub(crate) fn node_of(&self, replica: ReplicaId) -> Result<String> {
        self.nodes.node_of(replica).ok_or_else(|| {
            Error::unavailable(format!("no node is known that holds {replica} of this group"))
        })
    }

    /// Refuses whoever speaks for a replica of another node. `what` is asked for.
    pub(crate) fn check_member(
        &self,
        found: Option<&Identity>,
        from: ReplicaId,
        what: &str,
    ) -> Result<()> {
        let node = self.node_of(from).map_err(|error| error.within(said(found, from, what)))?;
        if found.is_some_and(|found| Expected::Node(node.clone()).is(found)) {
            return Ok(());
        }
        let said = said(found, from, what);
        Err(Error::invalid(format!("{said}, which node {node} holds: refused")))
    }
}

/// Connections that others make to the target here: each is of a node of this group, and a host of
/// its own replica's.
impl Ciphers for MembersTls {
    fn begin(&self, socket: Arc<std::net::TcpStream>) -> Result<Box<dyn Cipher>> {
        let stream = TlsStream::new(SharedSocket(socket), self.tls.accept()?);
        Ok(Box::new(Incoming { stream, tls: self.clone(), is_known: false }))
    }
}

/// An end at the target.
struct Incoming {
    stream: TlsStream<SharedSocket>,
    tls: MembersTls,
    /// Whether the other end is of a node of this group.
    is_known: bool,
}

impl Incoming {
    /// Refuses nodes of other groups, and other roles, once it is known who is there.
    fn check(&mut self) -> io::Result<()> {
        if self.is_known || self.stream.is_handshaking() {
            return Ok(());
        }
        let found = self.stream.identity();
        let is_node = |found: &Identity| found.role() == Role::Node;
        self.is_known = found
            .as_ref()
            .is_some_and(|found| is_node(found) && self.tls.nodes.holds_any(found.name()));
        if self.is_known {
            return Ok(());
        }
        let text = format!(
            "the certificate is of {}, and it would write into the pool: only nodes of this group \
             may",
            of(found.as_ref())
        );
        Err(io::Error::new(io::ErrorKind::InvalidData, text))
    }
}

impl Cipher for Incoming {
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

    fn admits(&self, host: &str) -> Result<()> {
        let Some(replica) = replica_of_host(host) else {
            let found = of(self.stream.identity().as_ref());
            return Err(Error::invalid(format!(
                "the certificate is of {found}, and its host {host:?} is none of a replica: refused"
            )));
        };
        self.tls.check_member(self.stream.identity().as_ref(), replica, "writes into the pool")
    }
}

/// Connections to the target of one node.
pub(crate) struct Outgoing<'a> {
    pub(crate) tls: &'a MembersTls,
    pub(crate) to: ReplicaId,
}

impl Ciphers for Outgoing<'_> {
    fn begin(&self, socket: Arc<std::net::TcpStream>) -> Result<Box<dyn Cipher>> {
        let tls = self.tls.tls.connect(Expected::Node(self.tls.node_of(self.to)?))?;
        Ok(Box::new(Sealed(TlsStream::new(SharedSocket(socket), tls))))
    }
}

/// An end at the initiator, which has checked the other one in the handshake.
struct Sealed(TlsStream<SharedSocket>);

impl Cipher for Sealed {
    fn send(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0.write_vectored(parts)
    }

    fn receive(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.0.read(into)
    }

    fn flush(&mut self) -> io::Result<bool> {
        self.0.flush()
    }

    fn has_kept(&self) -> bool {
        self.0.has_pending()
    }

    fn is_ended(&self) -> bool {
        self.0.is_ended()
    }

    /// It has no hosts.
    fn admits(&self, _: &str) -> Result<()> {
        Ok(())
    }
}

fn said(found: Option<&Identity>, from: ReplicaId, what: &str) -> String {
    format!("the certificate is of {}, and it {what} as {from}", of(found))
}

fn of(found: Option<&Identity>) -> String {
    found.map_or_else(|| "nobody".to_owned(), Identity::to_string)
}

/// Refuses whoever speaks as a controller and is none.
pub(crate) fn check_controller(found: Option<&Identity>) -> Result<()> {
    if found.is_some_and(|found| found.role() == Role::Controller) {
        return Ok(());
    }
    let found = of(found);
    Err(Error::invalid(format!(
        "the certificate is of {found}, and it would give views as a controller: refused"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use gabion_tls::MutualFiles;
    use gabion_tls::ca::{Authority, DAYS};

    struct Fixed;

    impl NodeNames for Fixed {
        fn node_of(&self, replica: ReplicaId) -> Option<String> {
            (replica == ReplicaId(2)).then(|| "b".to_owned())
        }

        fn holds_any(&self, node: &str) -> bool {
            node == "b"
        }
    }

    #[test]
    fn a_certificate_speaks_for_the_replicas_of_its_node_and_a_controllers_for_views() {
        let dir = std::env::temp_dir().join(format!("gabion-trust-{}", std::process::id()));
        Authority::init(&dir, DAYS + 1).unwrap();
        let identity = |role, name| Identity::new(role, name).unwrap();
        let a = identity(Role::Node, "a");
        let made = Authority::open(&dir).unwrap().issue(&a, &[], DAYS).unwrap();
        let files = MutualFiles {
            certificate: made.certificate,
            key: made.key,
            authority: dir.join("ca.pem"),
        };
        let tls = Arc::new(MutualTls::open(files, |_| {}).unwrap());
        std::fs::remove_dir_all(&dir).unwrap();
        let tls = MembersTls { tls, nodes: Arc::new(Fixed) };
        let refusal = |found: Option<&Identity>, from| {
            tls.check_member(found, ReplicaId(from), "writes").unwrap_err().to_string()
        };
        tls.check_member(Some(&identity(Role::Node, "b")), ReplicaId(2), "writes").unwrap();
        let line = refusal(Some(&a), 2);
        let said = "the certificate is of node a, and it writes as r2, which node b holds: refused";
        assert_eq!(line, said);
        assert!(refusal(None, 2).contains("of nobody"));
        assert!(refusal(Some(&identity(Role::Client, "b")), 2).contains("of client b"));
        assert!(refusal(Some(&identity(Role::Node, "b")), 3).contains("no node is known"));
        check_controller(Some(&identity(Role::Controller, "c"))).unwrap();
        for found in [None, Some(&a), Some(&identity(Role::Operator, "c"))] {
            assert!(check_controller(found).unwrap_err().to_string().contains("as a controller"));
        }
    }
}

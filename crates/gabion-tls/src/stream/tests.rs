use super::*;
use crate::ca::tests::{Scratch, issue_expired};
use crate::ca::{AUTHORITY_DAYS, Authority, Made};
use crate::{ClientCertificates, Identity, Role, ServerFiles, ServerTls, provider};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, ClientConnection, RootCertStore};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

/// A socket that holds so many bytes that were written.
#[derive(Default)]
struct Pipe {
    incoming: VecDeque<u8>,
    outgoing: VecDeque<u8>,
    room: usize,
    is_closed: bool,
}

#[derive(Clone, Default)]
struct Socket(Rc<RefCell<Pipe>>);

impl Read for Socket {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let pipe = &mut *self.0.borrow_mut();
        match pipe.incoming.read(out)? {
            0 if !pipe.is_closed => Err(io::ErrorKind::WouldBlock.into()),
            count => Ok(count),
        }
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let pipe = &mut *self.0.borrow_mut();
        let count = bytes.len().min(pipe.room - pipe.outgoing.len().min(pipe.room));
        pipe.outgoing.extend(&bytes[..count]);
        match count {
            0 => Err(io::ErrorKind::WouldBlock.into()),
            count => Ok(count),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

struct Rig {
    _scratch: Scratch,
    authority: Authority,
    server: ServerTls,
    roots: Arc<RootCertStore>,
}

impl Rig {
    fn new(clients: ClientCertificates) -> Self {
        let scratch = Scratch::new();
        let own = Authority::init(&scratch.0, AUTHORITY_DAYS).unwrap();
        let authority = Authority::open(&scratch.0).unwrap();
        let made = authority.issue(&Identity::new(Role::Node, "n1").unwrap(), &[], 9).unwrap();
        let files = ServerFiles {
            certificate: made.certificate,
            key: made.key,
            authorities: Some(own.certificate.clone()),
            clients,
        };
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(own.certificate).unwrap()).unwrap();
        let server = ServerTls::open(files).unwrap();
        Self { _scratch: scratch, authority, server, roots: roots.into() }
    }

    fn client(&self, shown: Option<&Made>) -> ClientConnection {
        let config = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_root_certificates(self.roots.clone());
        let config = match shown {
            None => config.with_no_client_auth(),
            Some(made) => {
                let chain = vec![CertificateDer::from_pem_file(&made.certificate).unwrap()];
                let key = PrivateKeyDer::from_pem_file(&made.key).unwrap();
                config.with_client_auth_cert(chain, key).unwrap()
            }
        };
        ClientConnection::new(config.into(), "localhost".try_into().unwrap()).unwrap()
    }

    fn stream(&self) -> (TlsStream<Socket>, Socket) {
        let socket = Socket::default();
        socket.0.borrow_mut().room = 1 << 20;
        (TlsStream::new(socket.clone(), self.server.accept().unwrap()), socket)
    }
}

/// Hands over what each has for the other, until neither has. Returns what the server read.
fn talk(
    client: &mut ClientConnection,
    stream: &mut TlsStream<Socket>,
    socket: &Socket,
) -> io::Result<Vec<u8>> {
    let mut got = Vec::new();
    loop {
        let mut is_over = true;
        while client.wants_write() {
            let mut out = Vec::new();
            client.write_tls(&mut out).unwrap();
            socket.0.borrow_mut().incoming.extend(out);
            is_over = false;
        }
        let mut buffer = [0; 100_000];
        match stream.read(&mut buffer) {
            Ok(count) => got.extend(&buffer[..count]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        let outgoing: Vec<u8> = socket.0.borrow_mut().outgoing.drain(..).collect();
        let mut rest = &outgoing[..];
        while !rest.is_empty() {
            client.read_tls(&mut rest).unwrap();
            client.process_new_packets().map_err(|e| io::Error::other(e.to_string()))?;
            is_over = false;
        }
        if is_over || stream.is_ended() {
            return Ok(got);
        }
    }
}

#[test]
fn bytes_pass_both_ways_and_the_client_is_known_by_its_certificate() {
    let rig = Rig::new(ClientCertificates::Required);
    let alice = Identity::new(Role::Client, "alice").unwrap();
    let made = rig.authority.issue(&alice, &[], 9).unwrap();
    let (mut stream, socket) = rig.stream();
    let mut client = rig.client(Some(&made));
    client.writer().write_all(b"PING").unwrap();
    assert_eq!(talk(&mut client, &mut stream, &socket).unwrap(), b"PING");
    assert_eq!(stream.identity(), Some(alice));
    assert_eq!(stream.write(b"PONG").unwrap(), 4);
    talk(&mut client, &mut stream, &socket).unwrap();
    let mut got = [0; 4];
    client.reader().read_exact(&mut got).unwrap();
    assert_eq!(&got, b"PONG");
    client.send_close_notify();
    assert_eq!(talk(&mut client, &mut stream, &socket).unwrap(), b"");
    assert!(stream.is_ended());
    assert_eq!(stream.write(b"late").unwrap(), 4, "it may still want to hear the answers");
}

#[test]
fn a_client_without_a_certificate_is_let_in_where_none_is_required_alone() {
    for (clients, is_in) in [
        (ClientCertificates::Required, false),
        (ClientCertificates::Optional, true),
        (ClientCertificates::Ignored, true),
    ] {
        let rig = Rig::new(clients);
        let (mut stream, socket) = rig.stream();
        let mut client = rig.client(None);
        client.writer().write_all(b"PING").unwrap();
        let got = talk(&mut client, &mut stream, &socket);
        assert_eq!(got.as_ref().is_ok_and(|got| got == b"PING"), is_in, "{clients:?} {got:?}");
        assert_eq!(stream.identity(), None);
    }
}

#[test]
fn a_certificate_of_another_authority_is_refused_also_where_it_is_optional() {
    let (rig, other) =
        (Rig::new(ClientCertificates::Optional), Rig::new(ClientCertificates::Optional));
    let made = other.authority.issue(&Identity::new(Role::Client, "eve").unwrap(), &[], 9).unwrap();
    let (mut stream, socket) = rig.stream();
    let mut client = rig.client(Some(&made));
    client.writer().write_all(b"PING").unwrap();
    talk(&mut client, &mut stream, &socket).unwrap_err();
    assert_eq!(stream.identity(), None);
}

#[test]
fn an_expired_certificate_is_refused_at_both_ends() {
    let rig = Rig::new(ClientCertificates::Required);
    let made = issue_expired(&rig.authority, &Identity::new(Role::Client, "bob").unwrap());
    let (mut stream, socket) = rig.stream();
    let mut client = rig.client(Some(&made));
    client.writer().write_all(b"PING").unwrap();
    let error = talk(&mut client, &mut stream, &socket).unwrap_err().to_string();
    assert!(error.contains("expired"), "{error}");

    let expired = issue_expired(&rig.authority, &Identity::new(Role::Node, "n2").unwrap());
    let files = ServerFiles {
        certificate: expired.certificate,
        key: expired.key,
        authorities: None,
        clients: ClientCertificates::Ignored,
    };
    let server = ServerTls::open(files).unwrap();
    let socket = Socket::default();
    socket.0.borrow_mut().room = 1 << 20;
    let mut stream = TlsStream::new(socket.clone(), server.accept().unwrap());
    let error = talk(&mut rig.client(None), &mut stream, &socket).unwrap_err().to_string();
    assert!(error.contains("expired"), "{error}");
}

#[test]
fn what_is_no_hello_and_a_hello_without_an_end_are_refused() {
    let rig = Rig::new(ClientCertificates::Ignored);
    for garbage in [&b"PING\r\n"[..], b"*1\r\n$4\r\nPING\r\n", &[0; 64], &[0xff; 64]] {
        let (mut stream, socket) = rig.stream();
        socket.0.borrow_mut().incoming.extend(garbage);
        let error = stream.read(&mut [0; 64]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{garbage:?}");
    }
    // Records that say of themselves to be parts of a hello of 64 KiB less one.
    let (mut stream, socket) = rig.stream();
    let mut sent = 0;
    let error = loop {
        let record = [&[22, 3, 1, 4, 0][..], &[1, 0, 0xff, 0xff], &[0; 1020]].concat();
        let record = if sent == 0 { record } else { [&[22, 3, 1, 4, 0][..], &[0; 1024]].concat() };
        sent += record.len();
        socket.0.borrow_mut().incoming.extend(record);
        match stream.read(&mut [0; 64]) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            result => break result.unwrap_err(),
        }
    };
    assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    assert!(sent <= HANDSHAKE_LEN_MAX + 2048, "{sent} bytes: {error}");
}

#[test]
fn a_socket_that_takes_nothing_has_little_kept_for_it() {
    let rig = Rig::new(ClientCertificates::Ignored);
    let (mut stream, socket) = rig.stream();
    let mut client = rig.client(None);
    talk(&mut client, &mut stream, &socket).unwrap();
    assert!(!stream.is_handshaking());
    socket.0.borrow_mut().room = 0;
    let bytes = vec![7; 1 << 20];
    assert_eq!(stream.write(&bytes).unwrap(), WRITE_LEN);
    assert!(stream.has_pending());
    assert_eq!(stream.write(&bytes).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    socket.0.borrow_mut().room = 1 << 20;
    assert!(stream.flush().unwrap());
    assert!(!stream.has_pending());
}

#[test]
fn a_connection_that_ends_in_its_handshake_gave_nothing() {
    let rig = Rig::new(ClientCertificates::Ignored);
    let (mut stream, socket) = rig.stream();
    socket.0.borrow_mut().is_closed = true;
    assert_eq!(stream.read(&mut [0; 64]).unwrap(), 0);
    assert!(stream.is_ended() && stream.is_handshaking());
}

#[test]
fn renewed_files_are_what_new_connections_see_and_broken_ones_change_nothing() {
    let mut rig = Rig::new(ClientCertificates::Ignored);
    assert!(!rig.server.refresh().unwrap());
    let seen = |rig: &Rig| {
        let (mut stream, socket) = rig.stream();
        let mut client = rig.client(None);
        talk(&mut client, &mut stream, &socket).unwrap();
        client.peer_certificates().unwrap()[0].clone().into_owned()
    };
    let first = seen(&rig);
    rig.authority.renew("n1", 3).unwrap();
    assert_eq!(seen(&rig), first);
    assert!(rig.server.refresh().unwrap());
    let second = seen(&rig);
    assert_ne!(second, first);
    let path = rig.server.files().certificate.clone();
    let good = std::fs::read(&path).unwrap();
    std::fs::write(&path, b"nonsense").unwrap();
    for _ in 0..2 {
        let error = rig.server.refresh().unwrap_err().to_string();
        assert!(error.contains("n1.pem"), "{error}");
    }
    assert_eq!(seen(&rig), second);
    std::fs::write(&path, good).unwrap();
    assert!(rig.server.refresh().unwrap());
    assert_eq!(seen(&rig), second);
}

//! Clients of a door where all is encrypted, those that may come in and those that may not.

use super::*;
use crate::rig::{PATIENCE, Rig, group};
use crate::{ClientCertificates, SecurityConfig, ServerConfig, ServerFiles};
use gabion_node::AckLevel;
use gabion_resp::{ReplyParser, encode_request};
use gabion_tls::ca::{AUTHORITY_DAYS, Authority, Made};
use gabion_tls::rustls::pki_types::pem::PemObject;
use gabion_tls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use gabion_tls::rustls::{ClientConfig, ClientConnection, RootCertStore, crypto, version};
use gabion_tls::{Identity, Role};
use std::io::{ErrorKind as IoKind, Read, Write};
use std::net::TcpStream as Socket;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// An authority with a node and a client, removed with it.
struct Certificates {
    dir: PathBuf,
    authority: Authority,
    node: Made,
    client: Made,
}

impl Certificates {
    fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("gabion-ca-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        Authority::init(&dir, AUTHORITY_DAYS).unwrap();
        let authority = Authority::open(&dir).unwrap();
        let issue =
            |name, role| authority.issue(&Identity::new(role, name).unwrap(), &[], 9).unwrap();
        let (node, client) = (issue("n1", Role::Node), issue("c1", Role::Client));
        Self { dir, authority, node, client }
    }

    fn rig(&self, name: &str, clients: ClientCertificates) -> Rig {
        Rig::with(name, group(1, 1, AckLevel::Replicated), |config: &mut ServerConfig| {
            config.security = self.security(([127, 0, 0, 1], 0).into(), clients);
        })
    }

    fn security(&self, address: SocketAddr, clients: ClientCertificates) -> SecurityConfig {
        let files = ServerFiles {
            certificate: self.node.certificate.clone(),
            key: self.node.key.clone(),
            authorities: Some(self.dir.join("ca.pem")),
            clients,
        };
        SecurityConfig { tls: Some(TlsDoor { address, files }), ..SecurityConfig::default() }
    }
}

impl Drop for Certificates {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// A client whose sockets never wait.
struct TlsClient {
    tls: ClientConnection,
    socket: Socket,
    parser: ReplyParser,
    buffer: bytes::BytesMut,
    is_over: bool,
}

fn address(rig: &mut Rig) -> SocketAddr {
    rig.service(0).tls.as_ref().unwrap().address
}

fn connect(rig: &mut Rig) -> Socket {
    connect_to(address(rig))
}

fn connect_to(address: SocketAddr) -> Socket {
    let socket = Socket::connect(address).unwrap();
    socket.set_nonblocking(true).unwrap();
    socket
}

impl TlsClient {
    fn new(rig: &mut Rig, trusted: &Path, shown: Option<&Made>) -> Self {
        Self::at(address(rig), trusted, shown)
    }

    fn at(address: SocketAddr, trusted: &Path, shown: Option<&Made>) -> Self {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(trusted.join("ca.pem")).unwrap()).unwrap();
        let provider = crypto::ring::default_provider();
        let config = ClientConfig::builder_with_provider(provider.into())
            .with_protocol_versions(&[&version::TLS13])
            .unwrap()
            .with_root_certificates(roots);
        let config = match shown {
            None => config.with_no_client_auth(),
            Some(made) => {
                let chain = vec![CertificateDer::from_pem_file(&made.certificate).unwrap()];
                let key = PrivateKeyDer::from_pem_file(&made.key).unwrap();
                config.with_client_auth_cert(chain, key).unwrap()
            }
        };
        let name = "localhost".try_into().unwrap();
        let mut tls = ClientConnection::new(config.into(), name).unwrap();
        tls.set_buffer_limit(None);
        Self {
            tls,
            socket: connect_to(address),
            parser: ReplyParser::new(),
            buffer: bytes::BytesMut::new(),
            is_over: false,
        }
    }

    fn send(&mut self, words: &[&[u8]]) {
        let mut out = Vec::new();
        encode_request(words, &mut out);
        self.tls.writer().write_all(&out).unwrap();
    }

    /// Sends and takes what the socket takes and has.
    fn pass(&mut self) {
        while self.tls.wants_write() {
            match self.tls.write_tls(&mut self.socket) {
                Ok(_) => {}
                Err(error) if error.kind() == IoKind::WouldBlock => break,
                Err(_) => return self.is_over = true,
            }
        }
        let mut bytes = [0; 64 << 10];
        for _ in 0..256 {
            match self.tls.read_tls(&mut self.socket) {
                Ok(0) => return self.is_over = true,
                Ok(_) if self.tls.process_new_packets().is_err() => return self.is_over = true,
                Ok(_) => {}
                Err(error) => return self.is_over |= error.kind() != IoKind::WouldBlock,
            }
            while let Ok(count @ 1..) = self.tls.reader().read(&mut bytes) {
                self.buffer.extend_from_slice(&bytes[..count]);
            }
        }
    }

    fn reply(&mut self, rig: &mut Rig) -> String {
        let begun = Instant::now();
        loop {
            if let Some(reply) = self.parser.parse(&mut self.buffer).unwrap() {
                return crate::rig::text(&reply);
            }
            assert!(!self.is_over, "the connection is over");
            assert!(begun.elapsed() < PATIENCE, "no reply");
            rig.turn();
            self.pass();
        }
    }

    /// Waits until the server has closed; no reply came before.
    fn until_refused(&mut self, rig: &mut Rig, what: &str) {
        let begun = Instant::now();
        while !self.is_over {
            assert!(begun.elapsed() < PATIENCE, "not refused: {what}");
            rig.turn();
            self.pass();
        }
        assert!(self.buffer.is_empty(), "{what}: {:?}", self.buffer);
    }
}

mod groups;

#[test]
fn pipelines_and_long_values_pass_and_a_half_closed_connection_gets_its_answers() {
    let certificates = Certificates::new("tls-data");
    let mut rig = certificates.rig("tls-data", ClientCertificates::Required);
    let mut client = TlsClient::new(&mut rig, &certificates.dir, Some(&certificates.client));
    let long = vec![b'v'; 2 << 20];
    client.send(&[b"SET", b"long", &long]);
    for number in 0..2_000 {
        client.send(&[b"ECHO", format!("{number}").as_bytes()]);
    }
    (0..9).for_each(|_| client.send(&[b"GET", b"long"]));
    assert_eq!(client.reply(&mut rig), "+OK\r\n");
    for number in 0..2_000 {
        let text = number.to_string();
        assert_eq!(client.reply(&mut rig), format!("${}\r\n{text}\r\n", text.len()));
    }
    // It reads nothing for a while: the socket is full, then empty.
    (0..50).for_each(|_| rig.turn());
    for _ in 0..9 {
        assert_eq!(client.reply(&mut rig).len(), long.len() + 12);
    }
    client.send(&[b"GET", b"long"]);
    client.send(&[b"PING"]);
    client.tls.send_close_notify();
    assert_eq!(client.reply(&mut rig).len(), long.len() + 12);
    assert_eq!(client.reply(&mut rig), "+PONG\r\n");
    client.until_refused(&mut rig, "it said that nothing more comes");
    rig.until("its place is free", |rig| rig.service(0).commands.clients_count() == 0);
}

#[test]
fn both_doors_serve_the_same_data_and_one_says_so_of_the_other() {
    let certificates = Certificates::new("tls-both");
    let mut rig = certificates.rig("tls-both", ClientCertificates::Optional);
    let mut plain = rig.client(0);
    let mut client = TlsClient::new(&mut rig, &certificates.dir, None);
    client.send(&[b"SET", b"k", b"v"]);
    assert_eq!(client.reply(&mut rig), "+OK\r\n");
    assert_eq!(rig.text(&mut plain, &["GET", "k"]), "$1\r\nv\r\n");
    let port = address(&mut rig).port().to_string();
    let said = rig.text(&mut plain, &["CONFIG", "GET", "tls-port"]);
    assert!(said.contains(&port), "{said}");
    let said = rig.text(&mut plain, &["CONFIG", "GET", "tls-auth-clients"]);
    assert!(said.contains("optional"), "{said}");
}

#[test]
fn who_shows_no_certificate_or_one_of_another_authority_gets_no_answer() {
    let (certificates, others) = (Certificates::new("tls-own"), Certificates::new("tls-other"));
    let mut rig = certificates.rig("tls-refuse", ClientCertificates::Required);
    let mut client = TlsClient::new(&mut rig, &certificates.dir, None);
    client.send(&[b"PING"]);
    client.until_refused(&mut rig, "no certificate");
    let mut client = TlsClient::new(&mut rig, &certificates.dir, Some(&others.client));
    client.send(&[b"PING"]);
    client.until_refused(&mut rig, "a certificate of another authority");
    let mut client = TlsClient::new(&mut rig, &others.dir, Some(&others.client));
    client.send(&[b"PING"]);
    client.until_refused(&mut rig, "it does not trust the server");
    rig.until("nobody is there", |rig| rig.service(0).commands.clients_count() == 0);
    assert_eq!(rig.service(0).commands.calls_count(), 0, "no command was handled");
}

#[test]
fn who_speaks_no_tls_gets_an_alert_at_most() {
    let certificates = Certificates::new("tls-garbage");
    let mut rig = certificates.rig("tls-garbage", ClientCertificates::Ignored);
    let flood = [&[22, 3, 1, 4, 0, 1, 0, 0xff, 0xff][..], &[0; 1020]].concat();
    let flood = [flood, [&[22, 3, 1, 4, 0][..], &[0; 1024]].concat().repeat(100)].concat();
    for garbage in [&b"*1\r\n$4\r\nPING\r\n"[..], b"GET / HTTP/1.1\r\n\r\n", &[0; 4096], &flood] {
        let mut socket = connect(&mut rig);
        // The server may close before it has read all.
        let _ = socket.write(garbage);
        let mut got = Vec::new();
        rig.until("it is closed", |rig| {
            let held = rig.service(0).sums.input.get();
            assert_eq!(held, 0, "nothing of it is a request");
            match socket.read(&mut [0; 512]) {
                Ok(0) => true,
                Ok(count) => {
                    got.resize(got.len() + count, 0);
                    false
                }
                Err(error) => error.kind() != IoKind::WouldBlock,
            }
        });
        assert!(got.len() <= 7, "{} bytes", got.len());
    }
    assert_eq!(rig.service(0).commands.calls_count(), 0);
}

#[test]
fn who_shakes_hands_for_ever_is_let_go() {
    let certificates = Certificates::new("tls-silent");
    let mut rig = certificates.rig("tls-silent", ClientCertificates::Ignored);
    let mut client = TlsClient::new(&mut rig, &certificates.dir, None);
    client.send(&[b"PING"]);
    assert_eq!(client.reply(&mut rig), "+PONG\r\n");
    let mut silent = connect(&mut rig);
    rig.until("it is there", |rig| rig.service(0).commands.clients_count() == 2);
    let now_ms = rig.service(0).now_ms;
    let tls = rig.service(0).tls.as_mut().unwrap();
    assert!(tls.handshakes.iter().all(|(until_ms, ..)| *until_ms > now_ms + HANDSHAKE_MS / 2));
    tls.handshakes.iter_mut().for_each(|(until_ms, ..)| *until_ms = 0);
    rig.until("the silent one is closed", |_| matches!(silent.read(&mut [0]), Ok(0)));
    client.send(&[b"PING"]);
    assert_eq!(client.reply(&mut rig), "+PONG\r\n", "who has shaken hands stays");
}

#[test]
fn one_too_many_is_closed_and_told_nothing() {
    let certificates = Certificates::new("tls-many");
    let mut rig = certificates.rig("tls-many", ClientCertificates::Ignored);
    let mut plain = rig.client(0);
    assert_eq!(rig.text(&mut plain, &["CONFIG", "SET", "maxclients", "1"]), "+OK\r\n");
    let mut socket = connect(&mut rig);
    rig.until("it is closed", |_| match socket.read(&mut [0; 64]) {
        Ok(count) => {
            assert_eq!(count, 0);
            true
        }
        Err(error) => error.kind() != IoKind::WouldBlock,
    });
}

#[test]
fn renewed_certificates_are_shown_to_whoever_comes_and_nobody_is_disturbed() {
    let certificates = Certificates::new("tls-renew");
    let mut rig = certificates.rig("tls-renew", ClientCertificates::Required);
    let mut old = TlsClient::new(&mut rig, &certificates.dir, Some(&certificates.client));
    old.send(&[b"PING"]);
    assert_eq!(old.reply(&mut rig), "+PONG\r\n");
    let shown =
        |client: &TlsClient| client.tls.peer_certificates().unwrap()[0].clone().into_owned();
    let begun = Instant::now();
    certificates.authority.renew("n1", 5).unwrap();
    loop {
        assert!(begun.elapsed() < PATIENCE, "the files are not read again");
        let mut new = TlsClient::new(&mut rig, &certificates.dir, Some(&certificates.client));
        for client in [&mut old, &mut new] {
            client.send(&[b"PING"]);
            assert_eq!(client.reply(&mut rig), "+PONG\r\n");
        }
        if shown(&new) != shown(&old) {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}

//! Peers, programs and their controller with certificates: who is let in, and that all that passes
//! over TCP is what was meant. docs/security.md.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test of a shell: it has sockets, threads and a clock"
)]

use gabion_base::{Error, ErrorKind, Term};
use gabion_control::Store;
use gabion_control::store::MemoryStore;
use gabion_control::tally::Reason;
use gabion_fabric::remote::{LinkAddress, PeerLink, PeerServer, ServerOptions};
use gabion_media::remote::{
    ClientConfig, ClientId, ConnectionGeneration, Incarnation, PeerConfig, PeerId, RefusalReason,
    Reply, Request,
};
use gabion_ncl::Metadata;
use gabion_ncl_driver::address::PeerAddress;
use gabion_ncl_driver::registry::Registrar;
use gabion_ncl_driver::store::{RemoteStore, StoreServer, StoreSockets};
use gabion_ncl_driver::tls::{FromPrograms, connect};
use gabion_ncl_driver::{Logs, LogsOptions};
use gabion_tls::ca::{Authority, DAYS};
use gabion_tls::{Identity, MutualFiles, MutualTls, Role};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const MIB: usize = 1 << 20;

/// A directory with an authority; it goes with this value.
struct House(PathBuf);

impl Drop for House {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl House {
    fn new() -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("gabion-ncl-certificates-{}-{count}", std::process::id());
        let dir = std::env::temp_dir().join(name);
        Authority::init(&dir, DAYS + 1).unwrap();
        Self(dir)
    }

    fn certificates(&self, role: Role, name: &str) -> Arc<MutualTls> {
        let identity = Identity::new(role, name).unwrap();
        let made = Authority::open(&self.0).unwrap().issue(&identity, &[], DAYS).unwrap();
        let files = MutualFiles {
            certificate: made.certificate,
            key: made.key,
            authority: self.0.join("ca.pem"),
        };
        Arc::new(MutualTls::open(files, |_| ()).unwrap())
    }
}

/// A controller and its peers on loopback, all with certificates.
struct Rig {
    house: House,
    controller: LinkAddress,
    peers: Vec<(PeerServer, LinkAddress)>,
    server: StoreServer,
}

fn local() -> (TcpListener, LinkAddress) {
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = LinkAddress::Tcp(tcp.local_addr().unwrap());
    (tcp, address)
}

fn rig(peers: u64) -> Rig {
    let house = House::new();
    let (tcp, controller) = local();
    let sockets = StoreSockets {
        tcp: Some(tcp),
        tls: Some(house.certificates(Role::Controller, "c")),
        ..StoreSockets::default()
    };
    let server = StoreServer::start(Box::<MemoryStore>::default(), sockets).unwrap();
    let mut rig = Rig { house, controller, peers: Vec::new(), server };
    for number in 1..=peers {
        let name = format!("n{number}");
        let tls = rig.house.certificates(Role::Node, &name);
        let (tcp, address) = local();
        let config = PeerConfig::new(PeerId(number), Incarnation(1), 64 * MIB as u64);
        let options = ServerOptions {
            config,
            tcp: Some(tcp),
            ciphers: Some(Arc::new(FromPrograms(tls.clone()))),
            unix: None,
            greeting_timeout_ms: 5_000,
        };
        rig.peers.push((PeerServer::start(options).unwrap(), address.clone()));
        let LinkAddress::Tcp(at) = address else { unreachable!("it is one of TCP") };
        let address = PeerAddress::here(Some(at), Some(&name), None);
        let of = (PeerId(number), Incarnation(1));
        let store = Box::new(rig.store(&tls));
        let mut registrar = Registrar::new(store, of, "", address, Duration::from_secs(60));
        registrar.register(64 * MIB as u64).unwrap();
    }
    rig
}

impl Rig {
    fn store(&self, tls: &Arc<MutualTls>) -> RemoteStore {
        RemoteStore::new(self.controller.clone(), Vec::new()).with_tls(Some(tls.clone()))
    }

    fn open(&self, tls: &Arc<MutualTls>) -> Logs {
        let mut options = LogsOptions::new("app");
        (options.core.takes_over, options.tls) = (true, Some(tls.clone()));
        let logs = Logs::start(options, Box::new(self.store(tls))).unwrap();
        logs.wait_until_ready().unwrap();
        logs
    }

    /// A connection to the first peer, as somebody who takes it for this node.
    fn link(&self, tls: Option<&Arc<MutualTls>>, node: Option<&str>) -> Result<PeerLink, Error> {
        let place = self.peers[0].1.clone();
        let LinkAddress::Tcp(at) = place else { unreachable!("it is one of TCP") };
        let mut config = ClientConfig::new(ClientId(9), ConnectionGeneration(1));
        config.reply_timeout_ms = 5_000;
        let address = PeerAddress::here(Some(at), node, None);
        connect(place, config, tls.map(|tls| &**tls), &address)
    }
}

/// Writes of all lengths go through records of TLS, in both directions, while sockets are full.
#[test]
fn what_was_synced_over_tls_is_there_for_the_next_instance() {
    let rig = rig(3);
    let tls = rig.house.certificates(Role::Client, "app");
    let logs = rig.open(&tls);
    let file = logs.create("a.log", Metadata::default()).unwrap();
    let large: Vec<u8> = (0..5 * MIB).map(|at| ((at * 31) >> 5) as u8).collect();
    let mut expected = Vec::new();
    for len in [1, 100, 4_096, 70_000, large.len()] {
        logs.append(file, &large[..len]).unwrap();
        logs.sync().unwrap();
        expected.extend(&large[..len]);
    }
    for at in 0..500u32 {
        logs.append(file, &at.to_le_bytes()).unwrap();
        expected.extend(at.to_le_bytes());
    }
    logs.sync().unwrap();
    drop(logs);
    let logs = rig.open(&tls);
    let file = logs.find("a.log").unwrap().unwrap();
    let mut found = vec![0; expected.len()];
    assert_eq!(logs.read(file, 0, &mut found).unwrap(), expected.len());
    assert!(found == expected, "other bytes");
    assert_eq!(logs.stat(file).unwrap().len, expected.len() as u64);
}

#[test]
fn a_peer_lends_to_the_application_of_the_certificate_and_to_operators() {
    let rig = rig(1);
    let fence = Request::Fence { owner: "app", term: Term(1) };
    for (role, name, may) in
        [(Role::Client, "app", true), (Role::Operator, "alice", true), (Role::Client, "b", false)]
    {
        let tls = rig.house.certificates(role, name);
        let mut link = rig.link(Some(&tls), Some("n1")).unwrap();
        match link.call(&fence).unwrap() {
            Reply::Regions { .. } => assert!(may, "{role} {name}"),
            Reply::Refused(refusal) => {
                assert!(!may, "{role} {name}: {refusal}");
                assert_eq!(refusal.reason, RefusalReason::OtherCertificate);
            }
            other => panic!("{role} {name}: {other:?}"),
        }
        // The report names all applications.
        let report = link.call(&Request::Usage).unwrap();
        assert_eq!(matches!(report, Reply::Usage(_)), role == Role::Operator, "{role} {name}");
    }
}

#[test]
fn strangers_get_no_byte_of_a_peer_and_a_client_sends_none_to_another_node() {
    let rig = rig(2);
    // Another role; another authority; no certificate; no TLS.
    let node = rig.house.certificates(Role::Node, "n3");
    let controller = rig.house.certificates(Role::Controller, "d");
    let elsewhere = House::new().certificates(Role::Client, "app");
    for tls in [&node, &controller, &elsewhere] {
        assert!(rig.link(Some(tls), Some("n1")).is_err(), "{}", tls.identity());
    }
    assert!(rig.link(None, None).is_err());
    let LinkAddress::Tcp(at) = rig.peers[0].1 else { unreachable!("it is one of TCP") };
    let mut plain = TcpStream::connect(at).unwrap();
    plain.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    plain.write_all(&[0; 64]).unwrap();
    let mut found = Vec::new();
    let _ = plain.read_to_end(&mut found);
    // An alert of TLS at most: its type is 21.
    assert!(found.is_empty() || (found[0] == 21 && found.len() <= 7), "{found:?}");

    let own = rig.house.certificates(Role::Client, "app");
    let error = rig.link(Some(&own), Some("n2")).map(drop).unwrap_err();
    assert!(format!("{error:?}").contains("node n2 is expected"), "{error:?}");
    let error = rig.link(Some(&own), None).map(drop).unwrap_err();
    assert!(error.message().contains("it has no certificate"), "{error}");
    let error = rig.link(None, Some("n1")).map(drop).unwrap_err();
    assert!(error.message().contains("--identity"), "{error}");
    assert!(rig.link(Some(&own), Some("n1")).is_ok());
}

#[test]
fn a_controller_answers_an_application_about_itself_and_no_stranger() {
    let rig = rig(1);
    let mut own = rig.store(&rig.house.certificates(Role::Client, "app"));
    assert_eq!(own.get("ncl/apps/app/map").unwrap(), None);
    assert_eq!(own.list("ncl/peers/").unwrap().len(), 1);
    let error = own.get("ncl/apps/b/map").unwrap_err();
    assert!(error.to_string().contains("client app"), "{error}");
    assert!(error.to_string().contains("would read 'ncl/apps/b/map'"), "{error}");
    // A refusal is no end: what is its own is answered still.
    assert_eq!(own.get("ncl/apps/app/map").unwrap(), None);

    let elsewhere = House::new().certificates(Role::Client, "app");
    assert!(rig.store(&elsewhere).get("ncl/apps/app/map").is_err());
    let mut plain = RemoteStore::new(rig.controller.clone(), Vec::new());
    assert!(plain.get("ncl/apps/app/map").is_err());
    let refused = |reason: Reason| rig.server.figures().tally.refusals[reason as usize];
    assert_eq!(refused(Reason::Certificate), 1);
    // The other end may hear of it first.
    let has_counted = (0..1_000).any(|_| {
        std::thread::sleep(Duration::from_millis(10));
        refused(Reason::Handshake) == 2
    });
    assert!(has_counted, "{} handshakes were refused", refused(Reason::Handshake));
    // A peer is no controller, whatever it says.
    let mut wrong = RemoteStore::new(rig.peers[0].1.clone(), Vec::new())
        .with_tls(Some(rig.house.certificates(Role::Client, "other")));
    assert!(wrong.get("ncl/apps/other/map").is_err());
}

#[test]
fn a_program_takes_no_certificate_of_another_application() {
    let rig = rig(1);
    let tls = rig.house.certificates(Role::Client, "b");
    let mut options = LogsOptions::new("app");
    options.tls = Some(tls.clone());
    let error = Logs::start(options, Box::new(rig.store(&tls))).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(error.message().contains("of client b: application 'app' takes"), "{error}");
}

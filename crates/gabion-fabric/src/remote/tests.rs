//! A peer's thread and clients, over TCP, over a Unix socket and in shared memory.

use super::*;
use gabion_base::{ErrorKind, Term};
use gabion_media::remote::message::{Parts, Regions};
use gabion_media::remote::{
    ClientConfig, ClientId, ConnectionGeneration, Incarnation, Key, Notice, Part, PeerConfig,
    PeerId, RegionId, Reply, Request,
};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;

/// A peer with both sockets; its directory is removed with it.
struct Rig {
    server: PeerServer,
    tcp: LinkAddress,
    unix: LinkAddress,
    dir: PathBuf,
}

impl Drop for Rig {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn rig(limit_bytes: u64) -> Rig {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let dir = std::env::temp_dir().join(format!("gabion-peer-{}-{count}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let path = dir.join("socket");
    let tcp = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = LinkAddress::Tcp(tcp.local_addr().unwrap());
    let unix = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let server = PeerServer::start(ServerOptions {
        config: PeerConfig::new(PeerId(1), Incarnation(1), limit_bytes),
        tcp: Some(tcp),
        ciphers: None,
        unix: Some(unix),
        greeting_timeout_ms: 5_000,
    });
    Rig { server: server.unwrap(), tcp: address, unix: LinkAddress::Unix(path), dir }
}

fn link(address: &LinkAddress, client: u64, generation: u64) -> PeerLink {
    let config = ClientConfig::new(ClientId(client), ConnectionGeneration(generation));
    PeerLink::connect(address.clone(), config).unwrap()
}

fn lend(link: &mut PeerLink, term: u64, bytes: u64) -> (RegionId, Key) {
    let request = Request::Lend { owner: "a", label: b"log", epoch: 1, term: Term(term), bytes };
    match link.call(&request).unwrap() {
        Reply::Lent { region, key, .. } => (region, key),
        other => panic!("{other:?} is no region"),
    }
}

fn fence(link: &mut PeerLink, term: u64) -> Vec<(RegionId, Key)> {
    match link.call(&Request::Fence { owner: "a", term: Term(term) }).unwrap() {
        Reply::Regions { regions, .. } => regions.iter().map(|it| (it.region, it.key)).collect(),
        other => panic!("{other:?} is no list"),
    }
}

fn read(link: &mut PeerLink, (region, key): (RegionId, Key), term: u64, offset: u64) -> u64 {
    let request = Request::Read { region, key, term: Term(term), offset, len: 8 };
    match link.call(&request).unwrap() {
        Reply::Bytes(bytes) => u64::from_le_bytes(bytes.try_into().unwrap()),
        other => panic!("{other:?} is no bytes"),
    }
}

#[test]
fn a_chain_is_written_and_read_over_tcp_and_over_a_unix_socket() {
    let rig = rig(16 * MIB);
    for address in [&rig.tcp, &rig.unix] {
        let mut link = link(address, 1, 1);
        assert_eq!((link.peer(), link.incarnation()), (PeerId(1), Incarnation(1)));
        let (region, key) = lend(&mut link, 1, MIB);
        let data: Vec<u8> = (0..200_000u32).map(|at| (at % 251) as u8).collect();
        let parts = [
            Part { region, key, offset: 5000, data: &data },
            Part { region, key, offset: 0, data: &77u64.to_le_bytes() },
        ];
        let write = Request::Write { term: Term(1), parts: Parts::Given(&parts) };
        assert_eq!(link.call(&write).unwrap(), Reply::Written);
        assert_eq!(read(&mut link, (region, key), 1, 0), 77);
        let request = Request::Read { region, key, term: Term(1), offset: 5000, len: 200_000 };
        assert_eq!(link.call(&request).unwrap(), Reply::Bytes(data));
        // The client of the other socket is another connection of the same one.
        drop(link);
        while rig.server.with(|peer| peer.usage().connections).unwrap() > 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

#[test]
fn thousands_of_writes_under_way_complete_in_order() {
    let rig = rig(16 * MIB);
    let mut link = link(&rig.tcp, 1, 1);
    let (region, key) = lend(&mut link, 1, MIB);
    let (mut sent, mut done) = (0u64, 0u64);
    while done < 20_000 {
        while sent < 20_000 {
            let number = sent.to_le_bytes();
            let parts = [
                Part { region, key, offset: 4096 + sent % 1000 * 128, data: &[sent as u8; 128] },
                Part { region, key, offset: sent % 64 * 8, data: &number },
            ];
            let write = Request::Write { term: Term(1), parts: Parts::Given(&parts) };
            if link.submit(&write).unwrap().is_none() {
                break;
            }
            sent += 1;
        }
        link.wait(Duration::from_secs(10)).unwrap();
        while let Some(completed) = link.poll_completed() {
            assert_eq!(completed.reply, Reply::Written);
            done += 1;
        }
    }
    assert_eq!(read(&mut link, (region, key), 1, 19_999 % 64 * 8), 19_999);
    assert_eq!(rig.server.with(|peer| peer.usage().writes).unwrap(), 20_000);
}

#[test]
fn a_mapped_region_is_written_without_the_peer_and_read_by_it() {
    let rig = rig(16 * MIB);
    let mut link = link(&rig.unix, 1, 1);
    let (region, key) = lend(&mut link, 1, MIB);
    let shared = link.map(region, key, Term(1)).unwrap();
    assert_eq!(shared.len(), MIB);
    write_chain(&[(&shared, 999, b"data"), (&shared, 0, &5u64.to_le_bytes())]).unwrap();
    assert_eq!(read(&mut link, (region, key), 1, 0), 5);
    assert_eq!(rig.server.with(|peer| peer.usage().writes).unwrap(), 0, "it took no part");
    let error = write_chain(&[(&shared, MIB - 3, b"data")]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");

    let mut many: Vec<_> = (0..100).map(|_| lend(&mut link, 1, 8192)).collect();
    many.push((region, key));
    for (region, key) in &many {
        link.submit(&Request::Map { region: *region, key: *key, term: Term(1) }).unwrap().unwrap();
    }
    let mut mapped = Vec::new();
    while mapped.len() < many.len() {
        link.wait(Duration::from_secs(10)).unwrap();
        while let Some(completed) = link.poll_completed() {
            let (region, _) = many[mapped.len()];
            mapped.push(link.take_mapped(region, &completed.reply).unwrap());
        }
    }
    for (at, shared) in mapped.iter().enumerate() {
        write_chain(&[(shared, 8, &(at as u64).to_le_bytes())]).unwrap();
    }
    for (at, named) in many.iter().enumerate() {
        assert_eq!(read(&mut link, *named, 1, 8), at as u64, "each has its own memory");
    }
}

#[test]
fn over_tcp_nothing_is_mapped() {
    let rig = rig(MIB);
    let mut link = link(&rig.tcp, 1, 1);
    let (region, key) = lend(&mut link, 1, 4096);
    let error = link.map(region, key, Term(1)).map(|_| ()).unwrap_err();
    assert_eq!(error.message(), "memory peer: the connection shares no memory");
}

/// docs/faults.md: N2
#[test]
fn memory_that_was_mapped_is_never_lent_again_and_its_last_writer_counts_nothing() {
    let rig = rig(MIB);
    let mut link = link(&rig.unix, 1, 1);
    for round in 0..20u64 {
        let (region, key) = lend(&mut link, 1, MIB);
        assert_eq!(read(&mut link, (region, key), 1, 4096), 0, "round {round}");
        let shared = link.map(region, key, Term(1)).unwrap();
        write_chain(&[(&shared, 4096, &[0xff; 8])]).unwrap();
        if round % 2 == 0 {
            let regions = [region];
            let regions = Regions::Given(&regions);
            let free = Request::Free { owner: "a", term: Term(1), regions };
            assert_eq!(link.call(&free).unwrap(), Reply::Freed { bytes: MIB });
        } else {
            let revoked = rig.server.with(|peer| {
                let revoked = peer.set_limit(0);
                peer.set_limit(MIB);
                revoked
            });
            assert_eq!(revoked.unwrap(), vec![region]);
            while link.poll_notice() != Some(Notice::Revoked(vec![region])) {
                link.wait(Duration::from_secs(10)).unwrap();
            }
        }
        let error = write_chain(&[(&shared, 4096, &[0xee; 8])]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Fenced, "{error}");
    }
}

/// Another instance fences while this one writes without pause. Each round, what counted before
/// the fence is there for who reads afterwards, and nothing counts after it.
/// docs/faults.md: N7
#[test]
fn no_write_that_counted_is_lost_from_what_the_next_instance_reads() {
    let rig = rig(64 * MIB);
    let mut old = link(&rig.unix, 1, 1);
    let mut new = link(&rig.unix, 2, 1);
    let mut overtaken = 0;
    for round in 0..150u64 {
        let term = 2 * round + 1;
        let (region, key) = lend(&mut old, term, 8192);
        let shared = old.map(region, key, Term(term)).unwrap();
        let (counted, stop) = (AtomicU64::new(0), AtomicBool::new(false));
        let number = std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                for number in 1u64.. {
                    let was_fenced = stop.load(Ordering::SeqCst);
                    let data = [number as u8; 128];
                    let cell = number.to_le_bytes();
                    match write_chain(&[(&shared, 4096, &data), (&shared, 0, &cell)]) {
                        Ok(()) => {
                            assert!(!was_fenced, "a write counts that began after the fence");
                            counted.store(number, Ordering::SeqCst);
                        }
                        Err(error) => {
                            assert_eq!(error.kind(), ErrorKind::Fenced, "{error}");
                            return number;
                        }
                    }
                }
                unreachable!("numbers end later than the test")
            });
            while counted.load(Ordering::SeqCst) < round % 50 {
                std::hint::spin_loop();
            }
            let fenced = fence(&mut new, term + 1);
            let (_, key) = *fenced.last().unwrap();
            let number = read(&mut new, (region, key), term + 1, 0);
            stop.store(true, Ordering::SeqCst);
            let last = writer.join().unwrap();
            assert!(counted.load(Ordering::SeqCst) <= number, "a counted write was lost");
            assert!(number <= last, "{number} was never written");
            overtaken += u64::from(number == last);
            number
        });
        assert!(number >= round % 50, "round {round}");
        let regions = [region];
        let regions = Regions::Given(&regions);
        let free = Request::Free { owner: "a", term: Term(term + 1), regions };
        assert!(matches!(new.call(&free).unwrap(), Reply::Freed { .. }));
    }
    println!("in {overtaken} of 150 rounds a write landed that does not count");
}

#[test]
fn regions_are_ready_ahead_once_their_length_was_asked_for() {
    let rig = rig(64 * MIB);
    let mut link = link(&rig.unix, 1, 1);
    lend(&mut link, 1, 8 * MIB);
    let until = Instant::now() + Duration::from_secs(30);
    while rig.server.with(|peer| peer.usage().ready_bytes).unwrap() < 8 * MIB {
        assert!(Instant::now() < until, "memory is made ready");
        std::thread::sleep(Duration::from_millis(5));
    }
    let (region, key) = lend(&mut link, 1, 8 * MIB);
    assert_eq!(read(&mut link, (region, key), 1, 8 * MIB - 8), 0);
}

#[test]
fn a_peer_that_ends_breaks_its_connections_and_an_address_without_one_is_told() {
    let rig = rig(MIB);
    let mut links = [link(&rig.tcp, 1, 1), link(&rig.unix, 2, 1)];
    let tcp = rig.tcp.clone();
    drop(rig);
    for link in &mut links {
        let error = link.call(&Request::Usage).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Io), "{error}");
    }
    let config = ClientConfig::new(ClientId(1), ConnectionGeneration(2));
    let error = PeerLink::connect(tcp, config).map(|_| ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
}

#[test]
fn a_wrong_token_is_refused_with_the_reason() {
    let mut config = PeerConfig::new(PeerId(1), Incarnation(1), MIB);
    config.token = Some(b"secret".to_vec());
    let tcp = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = LinkAddress::Tcp(tcp.local_addr().unwrap());
    let tcp = Some(tcp);
    let options =
        ServerOptions { config, tcp, ciphers: None, unix: None, greeting_timeout_ms: 5_000 };
    let _server = PeerServer::start(options).unwrap();
    let config = ClientConfig::new(ClientId(1), ConnectionGeneration(1));
    let error = PeerLink::connect(address.clone(), config).map(|_| ()).unwrap_err();
    assert!(error.to_string().contains("the token is not the peer's"), "{error}");
    let mut config = ClientConfig::new(ClientId(1), ConnectionGeneration(1));
    config.token = b"secret".to_vec();
    PeerLink::connect(address, config).unwrap();
}

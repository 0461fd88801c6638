//! Both ends against each other over pipes in memory that are split anywhere, and the peer against
//! a naive one.

mod connections;
mod golden;
mod leaks;
mod model;
mod wire;

use super::message::*;
use super::peer::{Peer, PeerConfig};
use super::serve::{ConnectionConfig, PeerConnection};
use super::simulated::SimulatedSupply;
use super::{ClientConfig, ClientConnection, Completed};
use crate::transport::Transport;
use alloc::collections::VecDeque;
use alloc::rc::Rc;
use alloc::vec;
use alloc::vec::Vec;
use core::cell::RefCell;
use gabion_base::{Error, Result, Term};

const PAGE: u64 = 4096;
const CLIENT: ClientId = ClientId(7);

/// One direction of a connection.
#[derive(Default)]
struct Lane {
    bytes: VecDeque<u8>,
    closed: bool,
    /// Calls that sent something.
    sends: usize,
}

/// One end of a connection; each call moves as many bytes as `limits` says in turn, or all.
struct Pipe {
    out: Rc<RefCell<Lane>>,
    into: Rc<RefCell<Lane>>,
    limits: Rc<RefCell<VecDeque<usize>>>,
}

impl Pipe {
    fn limit(&self) -> usize {
        let mut limits = self.limits.borrow_mut();
        let Some(limit) = limits.pop_front() else { return usize::MAX };
        limits.push_back(limit);
        limit
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        self.out.borrow_mut().closed = true;
        self.into.borrow_mut().closed = true;
    }
}

impl Transport for Pipe {
    fn send(&mut self, parts: &[&[u8]]) -> Result<usize> {
        let limit = self.limit();
        let mut lane = self.out.borrow_mut();
        if lane.closed {
            return Err(Error::io("broken pipe"));
        }
        let before = lane.bytes.len();
        let bytes = parts.iter().flat_map(|part| part.iter().copied()).take(limit);
        lane.bytes.extend(bytes);
        lane.sends += 1;
        Ok(lane.bytes.len() - before)
    }

    fn receive(&mut self, into: &mut [u8]) -> Result<Option<usize>> {
        assert!(!into.is_empty(), "there is room to receive into");
        let limit = self.limit();
        let mut lane = self.into.borrow_mut();
        let len = into.len().min(lane.bytes.len()).min(limit);
        if len == 0 {
            return Ok((lane.closed && lane.bytes.is_empty()).then_some(0));
        }
        for (at, byte) in lane.bytes.drain(..len).enumerate() {
            into[at] = byte;
        }
        Ok(Some(len))
    }
}

fn pipe(limits: &[usize]) -> (Pipe, Pipe) {
    let (a, b) = (Rc::new(RefCell::default()), Rc::new(RefCell::default()));
    let limits = Rc::new(RefCell::new(limits.iter().copied().collect::<VecDeque<_>>()));
    let near = Pipe { out: Rc::clone(&a), into: Rc::clone(&b), limits: Rc::clone(&limits) };
    (near, Pipe { out: b, into: a, limits })
}

fn config() -> PeerConfig {
    let mut config = PeerConfig::new(PeerId(3), Incarnation(5), 64 * PAGE);
    config.ready_bytes = 16 * PAGE;
    config
}

fn peer() -> Peer<SimulatedSupply> {
    Peer::new(config(), SimulatedSupply::new(1)).unwrap()
}

/// A client, its connection at the peer, and the peer.
struct Rig {
    client: ClientConnection<Pipe>,
    serving: PeerConnection<Pipe>,
    peer: Peer<SimulatedSupply>,
    now_ms: u64,
}

impl Rig {
    /// A greeted client over a pipe with these limits.
    fn new(limits: &[usize]) -> Self {
        let (near, far) = pipe(limits);
        let config = ClientConfig::new(CLIENT, ConnectionGeneration(1));
        let mut rig = Self {
            client: ClientConnection::connect(near, config, 0).unwrap(),
            serving: PeerConnection::new(far, ConnectionConfig::default(), 0),
            peer: peer(),
            now_ms: 0,
        };
        assert!(matches!(rig.next(), Reply::Welcome { .. }));
        rig
    }

    fn turn(&mut self) {
        self.client.progress(self.now_ms).unwrap();
        self.serving.progress(&mut self.peer, self.now_ms);
    }

    /// The next request that completes.
    fn next_completed(&mut self) -> Completed {
        for _ in 0..5_000_000 {
            if let Some(completed) = self.client.poll_completed() {
                return completed;
            }
            self.turn();
        }
        panic!("nothing completes");
    }

    fn next(&mut self) -> Reply {
        self.next_completed().reply
    }

    fn ask(&mut self, request: &Request<'_>) -> Reply {
        let number = self.client.submit(request, self.now_ms).unwrap().unwrap();
        let completed = self.next_completed();
        assert_eq!(completed.number, number, "requests complete in order");
        completed.reply
    }
}

fn lend<'a>(owner: &'a str, label: &'a [u8], term: u64, bytes: u64) -> Request<'a> {
    Request::Lend { owner, label, epoch: 1, term: Term(term), bytes }
}

fn lent(reply: &Reply) -> (RegionId, Key, u64) {
    match reply {
        Reply::Lent { region, key, bytes } => (*region, *key, *bytes),
        other => panic!("{other:?} is no region"),
    }
}

fn refused(reply: &Reply) -> RefusalReason {
    match reply {
        Reply::Refused(refusal) => refusal.reason,
        other => panic!("{other:?} is no refusal"),
    }
}

fn regions(reply: &Reply) -> Vec<RegionEntry> {
    match reply {
        Reply::Regions { regions, more: false, .. } => regions.clone(),
        other => panic!("{other:?} is no list"),
    }
}

/// A write of one part.
fn write_one(
    peer: &mut Peer<SimulatedSupply>,
    (region, key): (RegionId, Key),
    term: u64,
    offset: u64,
    data: &[u8],
) -> Reply {
    let parts = [Part { region, key, offset, data }];
    peer.handle(CLIENT, &Request::Write { term: Term(term), parts: Parts::Given(&parts) })
}

fn read(
    peer: &mut Peer<SimulatedSupply>,
    (region, key): (RegionId, Key),
    term: u64,
    offset: u64,
    len: u32,
) -> Reply {
    peer.handle(CLIENT, &Request::Read { region, key, term: Term(term), offset, len })
}

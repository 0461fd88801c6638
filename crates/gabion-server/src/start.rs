//! From a directory to a running replica: lock, pool, ring, threads, doors.

use crate::client::Sums;
use crate::commands::Commands;
use crate::descriptors::{Descriptors, Spare};
use crate::events::{Event, Mailbox};
use crate::host::{ServerHost, Traffic};
use crate::listen::{listen, listen_to_clients};
use crate::mesh::follow_addresses;
use crate::peers::Peer;
use crate::routing::ForwardedList;
use crate::run::WaitingReads;
use crate::server::{
    MEDIUM, PEER_DOOR, RESP, SIGNAL, STRANGERS_MAX, Server, Threads, scratch, waker,
};
use crate::settings::DoorSettings;
use crate::shipping::{SOCKET_LEN, ShipThread};
use crate::store::{NodeStore, Places, ProbeSource, SharedNode};
use crate::warm::WarmThread;
use crate::{ExitReason, ServerConfig};
use bytes::BytesMut;
use gabion_base::units::TRANSFER_LEN_MAX;
use gabion_base::{Error, ErrorKind, Frontier, Result};
use gabion_engine::Tables;
use gabion_fabric::nvme::{TargetEvent, TargetOptions, TargetServer};
use gabion_host::cache::SharedCache;
use gabion_host::clock::Clock;
use gabion_host::jobs::{JobThreads, thread};
use gabion_host::replica::{LostRing, OpenedReplica, open_replica, random_id};
use gabion_media::nvme::{Backing, TargetConfig};
use gabion_media::task::Executor;
use gabion_node::{GroupConfig, PoolSource, ReadMeter};
use mio::net::UnixStream;
use mio::unix::SourceFd;
use mio::{Interest, Poll};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Instant;

/// Bytes of data that one connection to the target has under way: four transfers keep the device
/// busy, and their buffers nearly stay in the processor's cache.
const TARGET_IN_FLIGHT_LEN: usize = 4 * TRANSFER_LEN_MAX;

/// Runs a replica until SIGTERM, SIGINT or a failure. The calling thread waits meanwhile.
///
/// # Errors
/// Why it cannot start: busy when another process has the pool, invalid input for a configuration
/// that does not fit, corruption, unsupported, I/O.
pub fn run(config: ServerConfig) -> Result<ExitReason> {
    config.check()?;
    gabion_proc::keep_freed_memory();
    let descriptors = Descriptors::take(&config)?;
    let (sender, receiver) = channel();
    let handle = thread("gabion-loop", 0, move || {
        let _ = sender.send(prepare(config, descriptors).and_then(Server::run));
    })?;
    let result = receiver.recv();
    let _ = handle.join();
    result.unwrap_or_else(|_| {
        Ok(ExitReason::Failed(Error::io("thread gabion-loop ended by a panic")))
    })
}

fn refused(what: impl Into<String>) -> impl FnOnce(io::Error) -> Error {
    let what = what.into();
    move |error| Error::with_source(ErrorKind::Io, what, error)
}

fn check_members(
    config: &ServerConfig,
    group: &GroupConfig,
    me: gabion_base::ReplicaId,
) -> Result<()> {
    if (group.group, me) != (config.group, config.replica) {
        return Err(Error::invalid(format!(
            "{}: belongs to replica {} of group {}, not to replica {} of group {}",
            config.data.display(),
            me.get(),
            group.group,
            config.replica.get(),
            config.group
        )));
    }
    for member in group.founders.iter().filter(|&&member| member != me) {
        if !config.peers.iter().any(|peer| peer.replica == *member) {
            let message = format!("no address is given for replica {} of the group", member.get());
            return Err(Error::invalid(message));
        }
    }
    Ok(())
}

/// Opens everything; what is returned runs.
#[expect(clippy::too_many_lines, reason = "a list of the server's parts, one a line")]
fn prepare(config: ServerConfig, descriptors: Descriptors) -> Result<Server> {
    let clock = Rc::new(Clock::start());
    let poll = Poll::new().map_err(refused("the loop gets no readiness"))?;
    let signals = watch_signals()?;
    let check = |group: &GroupConfig, me| check_members(&config, group, me);
    let (io, options) = (config.io, config.node.clone());
    let opened = open_replica(&config.data, io, options, LostRing::GoOn, &clock, check)?;
    for remark in opened.remarks.iter().chain(&descriptors.remark()) {
        note!("{remark}");
    }
    let resp = listen_to_clients(config.resp)?;
    let peer_door = listen(config.peer_listen, "door for members")?;
    let (sender, inbox) = channel();
    let cache = Arc::new(SharedCache::new(config.block_cache_bytes, config.open_files_bytes));
    let group = opened.parts.group;
    let mailbox = Mailbox::new(sender, Arc::new(waker(&poll)?), cache.clone(), group);
    let threads = start_threads(&config, &opened, &mailbox, &cache)?;
    let seed = random_id()?;
    let resp_address = resp.local_addr().map_err(refused("door for clients"))?;
    let OpenedReplica { node, local, parts, medium, readiness, .. } = opened;
    let me = node.id();
    let now_ms = clock.now_ms();
    let node: SharedNode = Rc::new(RefCell::new(node));
    let tables = Tables {
        source: Rc::new(ProbeSource {
            pool: PoolSource {
                store: local.clone(),
                locate: Places(node.clone()),
                meter: Rc::new(ReadMeter::default()),
            },
            is_probing: Cell::new(false),
        }),
        cache: cache.clone(),
        group: local.group,
    };
    let host = Rc::new(ServerHost {
        node: node.clone(),
        traffic: Traffic::default(),
        rate: RefCell::default(),
        peers: config.peers.clone(),
        resp: resp_address,
        run_id: seed,
        cache,
        jobs: Rc::downgrade(&threads.jobs),
        buffers: parts.buffers.clone(),
        clients_max: descriptors.clients_max(),
        jobs_nice: config.jobs_nice,
        door: Cell::new(DoorSettings::new(descriptors.clients_max())),
        began: Instant::now(),
        now_us: Cell::new(clock.now_us()),
        clock: clock.clone(),
    });
    let mut peers: Vec<Peer> = Vec::new();
    for member in node.borrow().view().others() {
        if let Some(peer) = config.peers.iter().find(|peer| peer.replica == member) {
            let is_ours = me > member;
            peers.push(Peer::new(member, peer.peer, peer.target, is_ours, now_ms));
        }
    }
    follow_addresses(&mut peers, node.borrow().view().group());
    let mut server = Server {
        me,
        clock: clock.clone(),
        now_ms,
        poll,
        resp,
        peer_door,
        signals,
        inbox,
        store: NodeStore::new(node.clone(), clock.clone(), tables),
        node,
        medium: medium.handle().clone(),
        local,
        parts,
        executor: Executor::new(),
        local_events: Rc::default(),
        finished: Rc::default(),
        threads,
        commands: Rc::new(Commands::new(u64::from_le_bytes(
            *seed.first_chunk().unwrap_or(&[0; 8]),
        ))),
        host,
        peers,
        strangers: Vec::with_capacity(STRANGERS_MAX),
        next_connection: 0,
        forwarded: ForwardedList::default(),
        next_forward: 0,
        lost: Vec::new(),
        incoming: BTreeMap::new(),
        peer_replies: VecDeque::new(),
        clients: Vec::new(),
        free_clients: Vec::new(),
        sums: Sums::default(),
        input_sum_max: config.client_input_bytes,
        spare: Spare::new(),
        door_is_stuck: false,
        door_has_more: false,
        full_noted_ms: None,
        http_noted_ms: None,
        target_noted_ms: None,
        listed: Vec::new(),
        eager: Vec::new(),
        ahead: VecDeque::new(),
        lingering: VecDeque::new(),
        held: Vec::new(),
        waiting_clients: VecDeque::new(),
        marks: BTreeMap::new(),
        scratch: scratch(),
        shared_input: BytesMut::new(),
        encoded: Vec::new(),
        turn: 1,
        turn_is_used: false,
        turns: VecDeque::new(),
        acknowledged_turn: 0,
        acknowledged_at: Frontier::ZERO,
        last_end: Frontier::ZERO,
        next_item: 0,
        gated: BTreeMap::new(),
        gated_bytes: 0,
        lagging: WaitingReads::default(),
        unsent: WaitingReads::default(),
        outputs: Vec::new(),
        exit: None,
    };
    watch(&mut server, readiness)?;
    announce(&server);
    Ok(server)
}

/// SIGTERM and SIGINT arrive as bytes in a socket.
fn watch_signals() -> Result<UnixStream> {
    let (ours, theirs) =
        std::os::unix::net::UnixStream::pair().map_err(refused("signals: no socket"))?;
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
        let end = theirs.try_clone().map_err(refused("signals: no socket"))?;
        signal_hook::low_level::pipe::register(signal, end)
            .map_err(refused("signals cannot be caught"))?;
    }
    ours.set_nonblocking(true).map_err(refused("signals: no socket"))?;
    Ok(UnixStream::from_std(ours))
}

fn start_threads(
    config: &ServerConfig,
    opened: &OpenedReplica,
    mailbox: &Mailbox,
    cache: &Arc<SharedCache>,
) -> Result<Threads> {
    let (parts, nice) = (&opened.parts, config.jobs_nice);
    let listener = std::net::TcpListener::bind(config.target_listen)
        .map_err(refused(format!("NVMe/TCP target: cannot listen on {}", config.target_listen)))?;
    let options = TargetOptions {
        listener,
        medium: parts.file.medium(parts.options)?,
        backing: Backing::new(parts.geometry.extents().map(|extent| extent.range()).collect()),
        config: TargetConfig {
            data_in_flight_max: TARGET_IN_FLIGHT_LEN,
            ..TargetConfig::new(String::new(), Vec::new(), parts.geometry.len(), parts.pool_id)
        },
        buffer_len: SOCKET_LEN,
        nice,
    };
    let target_mailbox = mailbox.clone();
    let target = TargetServer::start(options, move |event| {
        match event {
            // Looked at when the primary says what the bytes are, once it knows that they are here;
            // the loop takes what was left for it before it acts on what peers said.
            TargetEvent::Wrote { .. } | TargetEvent::Refused { .. } => {
                target_mailbox.leave(Event::Target(event))
            }
            _ => target_mailbox.tell(Event::Target(event)),
        }
    })?;
    let jobs = JobThreads::start(parts, config.node.compactions_max, nice, mailbox)?;
    Ok(Threads {
        jobs: Rc::new(RefCell::new(jobs)),
        warm: WarmThread::start(parts, cache, nice, mailbox)?,
        ship: ShipThread::start(nice, mailbox)?,
        target,
    })
}

fn watch(server: &mut Server, readiness: Option<i32>) -> Result<()> {
    let registry = server.poll.registry();
    let cannot = |what: &str| refused(format!("{what} cannot be watched"));
    registry
        .register(&mut server.resp, RESP, Interest::READABLE)
        .map_err(cannot("door for clients"))?;
    registry
        .register(&mut server.peer_door, PEER_DOOR, Interest::READABLE)
        .map_err(cannot("door for members"))?;
    registry
        .register(&mut server.signals, SIGNAL, Interest::READABLE)
        .map_err(cannot("signals"))?;
    if let Some(fd) = readiness {
        registry
            .register(&mut SourceFd(&fd), MEDIUM, Interest::READABLE)
            .map_err(cannot("the pool"))?;
    }
    Ok(())
}

fn announce(server: &Server) {
    let peer = server.peer_door.local_addr().map_or(0, |address| address.port());
    note!(
        "replica {} of group {}: clients {}, members port {peer}, target port {}",
        server.me.get(),
        server.parts.group.get(),
        server.host.resp,
        server.threads.target.address().port(),
    );
}

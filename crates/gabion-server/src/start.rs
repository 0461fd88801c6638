//! From a directory to a running replica: lock, pool, ring, threads, doors.

use crate::backup::Moments;
use crate::client::Sums;
use crate::commands::{Commands, Everywhere, Users};
use crate::connections::Seats;
use crate::control::Control;
use crate::descriptors::{Descriptors, Spare};
use crate::failover::AskedList;
use crate::host::{ServerHost, Traffic};
use crate::listen::{GroupDoor, listen, listen_to_clients};
use crate::mesh::address_of;
use crate::metrics::Metrics;
use crate::peers::Peer;
use crate::probe::ProbeThread;
use crate::replica::{Held, Replica, Turns, WhileOpen};
use crate::retries::{OwnWrites, Retries};
use crate::routing::ForwardedList;
use crate::routing::Unsent;
use crate::run::Waiting;
use crate::server::{
    PEER_DOOR, RESP, RESP_GROUP, RESP_GROUP_TLS, RESP_TLS, SERVICES_MAX, SIGNAL, STRANGERS_MAX,
    Server, WAKER, token,
};
use crate::service::{Service, scratch};
use crate::settings::DoorSettings;
use crate::spread::Exchange;
use crate::tls::Tls;
use crate::users::{Keeper, UserChanges};
use crate::{ExitReason, PeerAddress, SecurityConfig, ServerConfig};
use bytes::BytesMut;
use gabion_base::{Error, ErrorKind, ReplicaId, Result};
use gabion_host::cache::SharedCache;
use gabion_host::clock::Clock;
use gabion_host::jobs::thread;
use gabion_host::replica::random_id;
use gabion_node::{GroupConfig, View};
use mio::net::UnixStream;
use mio::{Interest, Poll, Registry, Waker};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Instant;

/// Why a process cannot start.
#[derive(Debug)]
pub(crate) struct Unopened {
    /// The group of which it cannot open its replica, if it is for that.
    place: Option<usize>,
    error: Error,
}

impl From<Error> for Unopened {
    fn from(error: Error) -> Self {
        Self { place: None, error }
    }
}

fn is_damage(error: &Error) -> bool {
    error.kind() == ErrorKind::Corruption
}

/// Runs a replica until SIGTERM, SIGINT or a failure. The calling thread waits meanwhile.
///
/// # Errors
/// Why it cannot start: busy when another process has the pool, invalid input for a configuration
/// that does not fit, corruption, unsupported, I/O.
pub fn run(config: ServerConfig) -> Result<ExitReason> {
    run_all(vec![config])
}

/// Runs replicas of several groups in one process: those of a cluster, in the order of its slots.
/// The first one's settings are the process's; with the first failure all end.
///
/// # Errors
/// As [`run`]; invalid input for none.
pub fn run_all(configs: Vec<ServerConfig>) -> Result<ExitReason> {
    configs.iter().try_for_each(ServerConfig::check)?;
    if configs.is_empty() {
        return Err(Error::invalid("no replica is to run"));
    }
    gabion_proc::keep_freed_memory();
    let descriptors = Descriptors::take(&configs)?;
    let (sender, receiver) = channel();
    let handle = thread("gabion-loop", 0, move || {
        let _ = sender.send(match prepare(configs, descriptors) {
            Ok(server) => server.run(),
            Err(Unopened { place: Some(place), error }) if is_damage(&error) => {
                Ok(ExitReason::Damaged { place, error })
            }
            Err(Unopened { error, .. }) => Err(error),
        });
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

fn check_owner(config: &ServerConfig, group: &GroupConfig, me: ReplicaId) -> Result<()> {
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
    Ok(())
}

/// Checks that every member that the replica is to reach has an address.
fn check_members(config: &ServerConfig, view: &View) -> Result<()> {
    let is_told = |member: ReplicaId| {
        let mut members = view.group().members.iter();
        members.any(|it| it.replica == member && address_of(it).is_some())
    };
    for member in view.others().filter(|_| view.is_member()) {
        if !config.peers.iter().any(|peer| peer.replica == member) && !is_told(member) {
            let message = format!("no address is given for replica {} of the group", member.get());
            return Err(Error::invalid(message));
        }
    }
    Ok(())
}

/// Opens everything; what is returned runs. Each configuration is of one replica.
///
/// # Errors
/// As [`run`]; limit exceeded for too many replicas.
pub(crate) fn prepare(
    configs: impl IntoIterator<Item = ServerConfig>,
    descriptors: Descriptors,
) -> Result<Server, Unopened> {
    let poll = Poll::new().map_err(refused("the loop gets no readiness"))?;
    let signals = watch_signals()?;
    let waker = Waker::new(poll.registry(), WAKER).map_err(refused("the loop gets no waker"))?;
    let registry = poll.registry().try_clone().map_err(refused("the loop gets no readiness"))?;
    let (registry, waker) = (Rc::new(registry), Arc::new(waker));
    let mut server = Server { poll, signals, services: Vec::new() };
    let configs: Vec<ServerConfig> = configs.into_iter().collect();
    check_spread(&configs)?;
    let is_spread = configs.iter().any(|config| config.spread.is_some());
    let seed = random_id()?;
    let exchange = Exchange::new(
        if is_spread { configs.len() } else { 0 },
        u64::from_le_bytes(*seed.first_chunk().unwrap_or(&[0; 8])),
    );
    let mut shared = None;
    let seats = Seats::new(descriptors.clients_max());
    for config in configs {
        let place = server.services.len();
        if place == SERVICES_MAX {
            let message = format!("more than {SERVICES_MAX} replicas in one process");
            return Err(Error::limit(message).into());
        }
        let of_cluster = match shared.take().filter(|_| is_spread) {
            Some(of_cluster) => of_cluster,
            None => OfCluster::new(&config.security)?,
        };
        shared = Some(of_cluster.clone());
        let process = Process {
            descriptors,
            registry: &registry,
            waker: &waker,
            of_cluster,
            seats: seats.clone(),
        };
        let (group, me, dir) = (config.group, config.replica, config.data.clone());
        let opened = open_service(place, config, process, exchange.clone());
        let service = opened.map_err(|error| {
            let error = match is_damage(&error) {
                true => error.within(format!(
                    "{}: files of replica {} of group {group} are damaged",
                    dir.display(),
                    me.get()
                )),
                false => error,
            };
            Unopened { place: Some(place), error }
        })?;
        server.services.push(service);
    }
    server
        .poll
        .registry()
        .register(&mut server.signals, SIGNAL, Interest::READABLE)
        .map_err(refused("signals cannot be watched"))?;
    Ok(server)
}

/// Checks that replicas of several groups of a cluster are those of all its groups, in their order.
fn check_spread(configs: &[ServerConfig]) -> Result<()> {
    let is_spread = configs.iter().any(|config| config.spread.is_some());
    for (place, config) in configs.iter().enumerate().filter(|_| is_spread) {
        let spread = config.spread.as_ref().map(|config| config.spread);
        if spread.is_none_or(|it| (it.own(), it.groups()) != (place, configs.len())) {
            return Err(Error::invalid(format!(
                "replica {} of group {} is not that of group {} of {} in the order of slots",
                config.replica.get(),
                config.group,
                place + 1,
                configs.len()
            )));
        }
    }
    Ok(())
}

/// The parts of a process that its services share.
struct Process<'a> {
    descriptors: Descriptors,
    registry: &'a Rc<Registry>,
    waker: &'a Arc<Waker>,
    of_cluster: OfCluster,
    seats: Rc<Seats>,
}

/// Things that groups of one cluster share in a process; others have theirs.
#[derive(Clone)]
struct OfCluster {
    users: Rc<Users>,
    /// The thread that keeps those.
    keeper: Option<Keeper>,
    everywhere: Rc<Everywhere>,
}

impl OfCluster {
    fn new(security: &SecurityConfig) -> Result<Self> {
        let users = Rc::new(security.users()?);
        let keeper = security.users_kept.as_deref().map(Keeper::start).transpose()?;
        Ok(Self { users, keeper, everywhere: Rc::default() })
    }
}

/// Opens a replica and its doors.
#[expect(clippy::too_many_lines, reason = "a list of the service's parts, one a line")]
fn open_service(
    place: usize,
    config: ServerConfig,
    process: Process<'_>,
    exchange: Rc<Exchange>,
) -> Result<Service> {
    let Process { descriptors, registry, waker, of_cluster, seats } = process;
    let OfCluster { users, keeper, everywhere } = of_cluster;
    let clock = Arc::new(Clock::start());
    let check = |group: &GroupConfig, me| check_owner(&config, group, me);
    let (held, mut contents) = Held::lock(&config, &clock, waker, check)?;
    check_members(&config, contents.view())?;
    contents.remark(descriptors.remark());
    config.security.check_doors(config.resp, &users)?;
    let user_changes = UserChanges::new(keeper)?;
    let resp = listen_to_clients(config.resp)?;
    let group_doors = group_doors(&config, &users)?;
    let group_door = group_doors.plain.map(GroupDoor::open).transpose()?;
    let tls = config.security.tls.as_ref().map(|it| Tls::open(it, group_doors.tls)).transpose()?;
    let peer_door = listen(config.peer_listen, "door for members")?;
    let cache = SharedCache::new(config.block_cache_bytes, config.open_files_bytes);
    let replica = Replica::start(held, contents, cache, Turns::new())?;
    replica.node.borrow_mut().await_word();
    let control = {
        let probe = ProbeThread::start(&config.data)?;
        let home = config.home.clone();
        Control::new(&replica.node.borrow(), replica.parts.pool_id, home, probe)
    };
    let seed = random_id()?;
    let resp_address = resp.local_addr().map_err(refused("door for clients"))?;
    let now_ms = clock.now_ms();
    let host = ServerHost {
        replica: WhileOpen::new(replica.shown()),
        traffic: Traffic::default(),
        rate: RefCell::default(),
        peers: config.peers.clone(),
        resp: resp_address,
        tls: tls.as_ref().map(|tls| (tls.address, tls.server.files().clone())),
        run_id: seed,
        clients_max: descriptors.clients_max(),
        jobs_nice: config.jobs_nice,
        door: Cell::new(DoorSettings::new(descriptors.clients_max())),
        seats,
        exchange: exchange.clone(),
        began: Instant::now(),
        now_us: Cell::new(clock.now_us()),
        clock: clock.clone(),
    };
    let me = replica.node.borrow().id();
    let mut service = Service {
        place,
        me,
        group: replica.parts.group,
        clock,
        now_ms,
        next_tick_ms: 0,
        next_second_ms: 0,
        registry: registry.clone(),
        resp,
        tls,
        group_door,
        spread: config.spread.clone(),
        exchange,
        within: BTreeMap::new(),
        peer_door,
        peers: peers(&config, now_ms),
        replica: WhileOpen::new(replica),
        to_reopen: None,
        reopening: None,
        finished: Rc::default(),
        commands: Rc::new(Commands::of_group(
            u64::from_le_bytes(*seed.first_chunk().unwrap_or(&[0; 8])),
            users,
            config.spread.as_ref().map(|it| it.spread),
            everywhere,
        )),
        host,
        strangers: Vec::with_capacity(STRANGERS_MAX),
        members_tls: config.security.members.clone(),
        control,
        metrics: Metrics::start(config.metrics, waker)?,
        next_connection: 0,
        forwarded: ForwardedList::default(),
        next_forward: 0,
        session: session_of(me, &seed),
        retries: Retries::default(),
        own_writes: OwnWrites::default(),
        writes_in_tasks: BTreeSet::new(),
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
        stranger_noted_ms: None,
        target_noted_ms: None,
        listed: Vec::new(),
        eager: Vec::new(),
        ahead: VecDeque::new(),
        lingering: VecDeque::new(),
        held: Vec::new(),
        awaited: 0,
        waiting_clients: VecDeque::new(),
        marks: BTreeMap::new(),
        backups: Moments::default(),
        waits: Vec::new(),
        asked: AskedList::default(),
        user_changes,
        scratch: scratch(),
        shared_input: BytesMut::new(),
        encoded: Vec::new(),
        next_item: 0,
        gated: BTreeMap::new(),
        gated_bytes: 0,
        lagging: Waiting::default(),
        unsent: Unsent::default(),
        unreadable_us: None,
        exit: None,
    };
    let view = service.replica.node.borrow().view().group().clone();
    service.follow_members(&view);
    watch_doors(&mut service)?;
    service.watch_medium()?;
    announce(&service);
    Ok(service)
}

/// The session of this start of a replica's door: the replica, and what tells its starts apart.
fn session_of(me: ReplicaId, seed: &[u8]) -> u64 {
    let start = seed.last_chunk().map_or(0, |end| u32::from_le_bytes(*end));
    u64::from(me.get()) << 32 | u64::from(start)
}

/// The other replicas of the group, members or not, and where they are reached.
fn peers(config: &ServerConfig, now_ms: u64) -> Vec<Peer> {
    let others = config.peers.iter().filter(|peer| peer.replica != config.replica);
    let peer = |it: &PeerAddress| {
        let is_ours = config.replica > it.replica;
        Peer::new(it.replica, it.peer, it.target, is_ours, now_ms)
    };
    others.map(peer).collect()
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

fn watch_doors(service: &mut Service) -> Result<()> {
    let doors = [
        (&mut service.resp, RESP, "door for clients"),
        (&mut service.peer_door, PEER_DOOR, "door for members"),
    ];
    let group = service.group_door.as_mut();
    let group = group.map(|door| (&mut door.listener, RESP_GROUP, "door of the group"));
    let tls = service.tls.as_mut().map(|Tls { listener, group, .. }| {
        let group = group.as_mut().map(|door| &mut door.listener);
        let group = group.map(|door| (door, RESP_GROUP_TLS, "door of the group with TLS"));
        [Some((listener, RESP_TLS, "door with TLS")), group]
    });
    let tls = tls.into_iter().flatten().flatten();
    for (door, local, what) in doors.into_iter().chain(group).chain(tls) {
        let token = token(service.place, local);
        service
            .registry
            .register(door, token, Interest::READABLE)
            .map_err(refused(format!("{what} cannot be watched")))?;
    }
    Ok(())
}

/// Addresses at which a group listens besides its replica's doors.
#[derive(Default)]
struct GroupDoors {
    plain: Option<SocketAddr>,
    tls: Option<SocketAddr>,
}

/// The doors of the first group alone; its others are common. Further groups have but their own.
fn group_doors(config: &ServerConfig, users: &Users) -> Result<GroupDoors> {
    let Some(spread) = &config.spread else { return Ok(GroupDoors::default()) };
    let plain = Some(spread.listen.plain).filter(|door| *door != config.resp);
    if let Some(door) = plain {
        config.security.check_doors(door, users)?;
    }
    let common = config.security.tls.as_ref().map(|tls| tls.address);
    let tls = spread.listen.tls.filter(|door| Some(*door) != common);
    if let Some(door) = tls {
        config.security.check_tls_door(door, users)?;
    }
    Ok(GroupDoors { plain, tls })
}

fn announce(service: &Service) {
    let peer = service.peer_door.local_addr().map_or(0, |address| address.port());
    note!(
        "replica {} of group {}: clients {}, members port {peer}, target port {}",
        service.me.get(),
        service.group.get(),
        service.host.resp,
        service.replica.threads.target.address().port(),
    );
}

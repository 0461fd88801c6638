//! `gabion ncl peer`: lends memory until it is told to end.

use super::identity::Identity;
use super::metrics;
use super::metrics::of_peer::{self, Registration};
use super::sockets::{SocketFile, check_listen, listen_tcp, say, signals};
use super::{PeerOptions, Shown, default_socket};
use crate::cluster::failed;
use crate::units::{count, size};
use gabion_base::units::MIB;
use gabion_base::{Error, ErrorKind, Result};
use gabion_fabric::Ciphers;
use gabion_fabric::remote::{PeerServer, ServerOptions};
use gabion_media::remote::PeerConfig;
use gabion_media::remote::message::DOMAIN_LEN_MAX;
use gabion_ncl::Sizes;
use gabion_ncl_driver::address::PeerAddress;
use gabion_ncl_driver::registry::Registrar;
use gabion_ncl_driver::tls::FromPrograms;
use gabion_tls::Role;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

const MEMORY_MIN: u64 = MIB;
/// Open files beside those of regions: connections, sockets, the terminal.
const OTHER_FILES: u64 = 512;
/// How long a client that connects may be silent.
const GREETING_TIMEOUT_MS: u64 = 5_000;
/// A log of this length finds its regions ready at a peer that nobody has asked for memory yet.
const EXPECTED_LOG: u64 = 64 << 20;
/// How often a peer looks after its place at the controller.
const REGISTER_EVERY: Duration = Duration::from_secs(1);
/// How often it registers though nothing has changed.
const RENEW_EVERY: Duration = Duration::from_secs(30);
/// How often a peer that drains, or might have failed, is looked at.
const TICK: Duration = Duration::from_millis(100);

pub(super) fn run(options: &PeerOptions) -> Result<u8> {
    let (token, identity) = (options.token_file.as_deref(), options.identity.as_deref());
    let shown = Shown::of_role(token, identity, Role::Node)?;
    check(options, &shown)?;
    raise_open_files(options.regions)?;
    let identity = Identity::begin(&options.directory)?;
    let path = options.socket.clone().unwrap_or_else(|| default_socket(&options.directory));
    let socket = SocketFile::listen(path, options.socket_mode)?;
    let tcp = listen_tcp(options.listen)?;
    let address = tcp.as_ref().and_then(|tcp| tcp.local_addr().ok());
    let registrar = registrar(options, &identity, &shown, (address, &socket.path));
    let mut config = PeerConfig::new(identity.id, identity.incarnation, options.memory);
    (config.regions_max, config.ready_bytes) = (options.regions, options.ready);
    config.expected = Sizes::default().regions(EXPECTED_LOG);
    config.failure_domain.clone_from(&options.failure_domain);
    config.token = shown.token;
    let is_sealed = shown.tls.is_some();
    let unix = socket.listener.try_clone().map_err(|e| failed(&socket.path, "is lost", e))?;
    let signals = signals()?;
    let server = Arc::new(PeerServer::start(ServerOptions {
        config,
        tcp,
        ciphers: shown.tls.map(|tls| Arc::new(FromPrograms(tls)) as Arc<dyn Ciphers>),
        unix: Some(unix),
        greeting_timeout_ms: GREETING_TIMEOUT_MS,
    })?);
    let registration = registrar.as_ref().map(|_| Arc::new(Registration::default()));
    let (of_server, told) = (server.clone(), registration.clone());
    let page = move || of_peer::page(&of_server, told.as_deref());
    let _door = metrics::serve(options.metrics, page, |line| say(&format!("  {line}")))?;

    let domain = match options.failure_domain.as_str() {
        "" => String::new(),
        name => format!(", failure domain {name}"),
    };
    say(&format!(
        "peer {}, run {}: lends {}{domain}",
        identity.id,
        identity.incarnation,
        size(options.memory)
    ));
    say(&format!("  Unix socket {}", socket.path.display()));
    if let Some(address) = address {
        say(&format!("  {} {address}", if is_sealed { "TLS" } else { "TCP" }));
    }
    if let Some(address) = options.metrics {
        say(&format!("  metrics http://{address}/metrics"));
    }
    let drain_timeout = Duration::from_secs(options.drain_timeout);
    let (ends, ended) = channel();
    std::thread::scope(|scope| {
        if let (Some(registrar), Some(registration)) = (registrar, &registration) {
            scope.spawn(|| keep_registered(&server, registrar, registration, ended));
        }
        let served = serve(&server, &signals, drain_timeout);
        drop(ends);
        served
    })
}

/// The place of this peer at the controller, if it has one. It shows there what it asks for here.
fn registrar(
    options: &PeerOptions,
    identity: &Identity,
    shown: &Shown,
    (tcp, socket): (Option<SocketAddr>, &Path),
) -> Option<Registrar> {
    let store = shown.store(options.controller.as_ref()?);
    let (peer, domain) = ((identity.id, identity.incarnation), &options.failure_domain);
    let node = shown.tls.as_ref().map(|tls| tls.identity().name());
    let address = PeerAddress::here(tcp, node, Some(socket));
    Some(Registrar::new(Box::new(store), peer, domain, address, RENEW_EVERY))
}

/// Registers, says again what has changed, and frees what has leaked, until `ended`. Then nobody is
/// to ask for this peer.
fn keep_registered(
    server: &PeerServer,
    mut registrar: Registrar,
    registration: &Registration,
    ended: Receiver<()>,
) {
    let mut said = None;
    loop {
        let done = server.with(|peer| peer.usage()).and_then(|usage| {
            match usage.is_draining {
                true => registrar.withdraw(),
                false => registrar.register(usage.free_bytes()),
            }?;
            registrar.free_leaks(server)
        });
        registration.note(done.is_ok(), registrar.registered_at());
        let word = match done {
            Ok(_) => "registered at the controller".to_owned(),
            Err(error) => format!("not registered: {error}"),
        };
        if said.as_ref() != Some(&word) {
            say(&format!("  {word}"));
            said = Some(word);
        }
        if ended.recv_timeout(REGISTER_EVERY) != Err(RecvTimeoutError::Timeout) {
            // A client that asks for it meanwhile finds nobody.
            let _ = registrar.withdraw();
            return;
        }
    }
}

fn serve(server: &PeerServer, signals: &Receiver<()>, drain_timeout: Duration) -> Result<u8> {
    while signals.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout) {
        if !server.is_running() {
            return Err(Error::io("the thread gabion-peer ended: its message stands above"));
        }
    }
    let until = Instant::now() + drain_timeout;
    let mut held = server.with(|peer| {
        peer.drain();
        peer.usage()
    })?;
    if held.regions > 0 {
        say(&format!(
            "draining: {} of {}; a second signal ends it at once",
            count(held.regions, "region"),
            count(held.owners_count, "owner")
        ));
    }
    while held.regions > 0 && Instant::now() < until {
        if signals.recv_timeout(TICK) != Err(RecvTimeoutError::Timeout) {
            break;
        }
        held = server.with(|peer| peer.usage())?;
    }
    match held.regions {
        0 => say("all regions were given back"),
        lost => say(&format!("{} with {}: lost", count(lost, "region"), size(held.lent_bytes))),
    }
    Ok(0)
}

fn check(options: &PeerOptions, shown: &Shown) -> Result<()> {
    if options.memory < MEMORY_MIN {
        return Err(Error::invalid(format!("--memory {}: 1MiB or more is valid", options.memory)));
    }
    if let Some(total) = gabion_proc::machine_memory_bytes()
        && options.memory > total
    {
        return Err(Error::invalid(format!(
            "--memory {}: this machine has {}",
            size(options.memory),
            size(total)
        )));
    }
    if options.failure_domain.len() > DOMAIN_LEN_MAX {
        return Err(Error::invalid(format!(
            "--failure-domain of {} bytes: {DOMAIN_LEN_MAX} or less are valid",
            options.failure_domain.len()
        )));
    }
    check_listen(options.listen, shown.is_any())
}

/// Each region is an open file, and most shells allow a thousand.
fn raise_open_files(regions: u32) -> Result<()> {
    let needed = u64::from(regions) + OTHER_FILES;
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current.is_none_or(|current| current >= needed) {
        return Ok(());
    }
    if let Some(maximum) = maximum.filter(|maximum| *maximum < needed) {
        return Err(Error::limit(format!(
            "--regions {regions}: they take {needed} open files, this process may have {maximum}"
        )));
    }
    setrlimit(Resource::Nofile, Rlimit { current: Some(needed), maximum }).map_err(|e| {
        let message = format!("--regions {regions}: {needed} open files are refused");
        Error::with_source(ErrorKind::Io, message, std::io::Error::from(e))
    })
}

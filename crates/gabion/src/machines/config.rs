//! `node.toml` and `controller.toml`. Every option is described in docs/machines.md and in the
//! examples in `deploy/`, which the tests read.

use super::trust::{self, Certificates, StoreTlsConfig, TlsConfig};
use crate::cluster::{POOL_LEN_MIN, RING_LEN, failed};
use crate::options::{
    Io, MetricsPort, NodeProcess, ProcessOptions, parse_collection_rate, parse_large_values,
    parse_memory, parse_metrics, parse_ms, parse_rebuild_rate,
};
use crate::security::SecurityOptions;
use crate::units::exact_size;
use clap::ValueEnum;
use gabion_base::units::MIB;
use gabion_base::{Error, Result};
use gabion_bench::parse_bytes;
use gabion_db::RunOptions;
use gabion_engine::sst::Compression;
use gabion_etcd::EtcdUrl;
use gabion_pool::superblock::POOL_LEN_MAX;
use gabion_server::commands::slots::GROUPS_MAX;
use gabion_server::{ClientCertificates, SecurityConfig, TlsDoor};
use gabion_tls::{ClientTls, Role};
use serde::de::{self, DeserializeOwned, Deserializer, Visitor};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Longest file in bytes: one that is longer is another one.
const FILE_LEN_MAX: u64 = 1 << 20;
/// Longest name of a node, a group or a failure domain in bytes.
pub(crate) const NAME_LEN_MAX: usize = 63;
/// Controllers of a node at most.
const CONTROLLERS_MAX: usize = 16;
/// How long a member may stay away before a spare takes its place, in ms.
const REPLACE_AFTER_MS: u64 = 600_000;

/// `controller.toml`.
#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub(crate) struct ControllerConfig {
    /// The directory of its lock, and of an embedded store.
    pub(crate) data: PathBuf,
    #[serde(default, deserialize_with = "store")]
    pub(crate) store: StoreChoice,
    store_tls: Option<StoreTlsConfig>,
    /// Address for nodes and commands.
    pub(crate) listen: SocketAddr,
    /// In ms.
    #[serde(default = "replace_after", deserialize_with = "milliseconds")]
    pub(crate) replace_after: u64,
    tls: Option<TlsConfig>,
    #[serde(default)]
    pub(crate) page: PageConfig,
}

/// The status page.
#[derive(Deserialize, Debug, Default)]
#[serde(deny_unknown_fields)]
pub(crate) struct PageConfig {
    /// Its address; none: there is no page.
    pub(crate) listen: Option<SocketAddr>,
}

/// The place of what the cluster knows of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum StoreChoice {
    /// In `data`: this controller is the only one.
    #[default]
    Embedded,
    /// In etcd, where several controllers reach it and one leads.
    Etcd(EtcdUrl),
}

/// `node.toml`.
#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub(crate) struct NodeConfig {
    /// The name by which operators and the controller know it.
    pub(crate) name: String,
    /// The directory of its pools.
    pub(crate) data: PathBuf,
    /// The controllers, asked in this order.
    pub(crate) controllers: Vec<SocketAddr>,
    /// The part of the installation that fails as one, such as a rack; its name without it.
    failure_domain: Option<String>,
    /// Bytes of a pool.
    #[serde(deserialize_with = "bytes")]
    pub(crate) pool_size: u64,
    clients: ClientsConfig,
    members: DoorConfig,
    targets: DoorConfig,
    /// For replicas of several groups; without it the node holds one.
    groups: Option<GroupsConfig>,
    #[serde(default)]
    limits: Limits,
    tls: Option<TlsConfig>,
}

/// A door's addresses.
#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
struct DoorConfig {
    listen: SocketAddr,
    /// The address that others are told; the same without it.
    reached_at: Option<SocketAddr>,
}

/// The door for clients, and who may come: as the options of `up` of the same names.
#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
struct ClientsConfig {
    listen: SocketAddr,
    reached_at: Option<SocketAddr>,
    /// A second door, where all is encrypted.
    tls_listen: Option<SocketAddr>,
    /// The address of it that commands are told.
    tls_reached_at: Option<SocketAddr>,
    tls_cert: Option<PathBuf>,
    tls_key: Option<PathBuf>,
    tls_ca: Option<PathBuf>,
    #[serde(default, deserialize_with = "client_certificates")]
    tls_auth_clients: ClientCertificates,
    aclfile: Option<PathBuf>,
    requirepass_file: Option<PathBuf>,
}

impl ClientsConfig {
    fn check(&self) -> Result<()> {
        for (what, path) in [
            ("clients.tls_cert", &self.tls_cert),
            ("clients.tls_key", &self.tls_key),
            ("clients.tls_ca", &self.tls_ca),
            ("clients.aclfile", &self.aclfile),
            ("clients.requirepass_file", &self.requirepass_file),
        ] {
            path.iter().try_for_each(|path| check_path(what, path))?;
        }
        if self.tls_listen.is_some() != (self.tls_cert.is_some() && self.tls_key.is_some()) {
            return Err(Error::invalid(
                "clients.tls_listen, clients.tls_cert and clients.tls_key: all three are needed, \
                 or none",
            ));
        }
        if let (Some(at), None) = (self.tls_reached_at, self.tls_listen) {
            return Err(Error::invalid(format!(
                "clients.tls_reached_at is {at}, and there is no clients.tls_listen"
            )));
        }
        if let Some(at) = self.tls_reached_at.filter(|at| at.port() == 0) {
            return Err(Error::invalid(format!(
                "clients.tls_reached_at is {at}: a port that is not 0 is needed"
            )));
        }
        self.check_users("clients.listen", self.listen)
    }

    fn check_users(&self, what: &str, listen: SocketAddr) -> Result<()> {
        let has_users = self.aclfile.is_some() || self.requirepass_file.is_some();
        if !listen.ip().is_loopback() && !has_users {
            return Err(Error::invalid(format!(
                "{what} is {listen}: anybody could do anything there; other than loopback \
                 addresses take a user with a password (clients.requirepass_file, clients.aclfile)"
            )));
        }
        Ok(())
    }

    /// The same for the process of a replica.
    fn security(&self) -> SecurityOptions {
        SecurityOptions {
            aclfile: self.aclfile.clone(),
            requirepass_file: self.requirepass_file.clone(),
            ..SecurityOptions::default()
        }
    }
}

/// Replicas of several groups over which keys are spread: one of each, in one process.
#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
struct GroupsConfig {
    /// Most groups.
    max: u32,
    /// The door for clients of clusters of the first group. The next group's is one port higher,
    /// and so on.
    listen: SocketAddr,
    reached_at: Option<SocketAddr>,
    /// The same where all is encrypted.
    tls_listen: Option<SocketAddr>,
    tls_reached_at: Option<SocketAddr>,
}

impl GroupsConfig {
    fn check(&self, clients: &ClientsConfig) -> Result<()> {
        if !(2..=GROUPS_MAX).contains(&self.max) {
            return Err(Error::limit(format!(
                "groups.max is {}, the limits are 2 and {GROUPS_MAX}; a node without [groups] \
                 holds a replica of one",
                self.max
            )));
        }
        if self.tls_listen.is_some() && clients.tls_listen.is_none() {
            return Err(Error::invalid(
                "groups.tls_listen: needs clients.tls_listen and its certificate",
            ));
        }
        if self.tls_reached_at.is_some() && self.tls_listen.is_none() {
            return Err(Error::invalid("groups.tls_reached_at: needs groups.tls_listen"));
        }
        clients.check_users("groups.listen", self.listen)
    }
}

/// The door of groups where all is encrypted.
const GROUPS_TLS: &str = "groups.tls";

/// The option with the address that a door listens on.
pub(crate) fn listen(door: &str) -> String {
    option(door, "listen")
}

/// The option with the address that others are told of a door.
pub(crate) fn reached_at(door: &str) -> String {
    option(door, "reached_at")
}

fn option(door: &str, what: &str) -> String {
    let joint = if door == GROUPS_TLS { '_' } else { '.' };
    format!("{door}{joint}{what}")
}

/// The doors of a node's replica, by one kind of address.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub(crate) struct DoorAddresses {
    /// RESP: of several groups, the first one's is for all of them.
    pub(crate) clients: SocketAddr,
    /// The protocol of the group, and controllers.
    pub(crate) members: SocketAddr,
    /// NVMe/TCP.
    pub(crate) targets: SocketAddr,
    /// RESP for clients of clusters, where a node may hold replicas of several groups.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) cluster: Option<ClusterDoors>,
}

/// The doors of a replica as a node of a cluster.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub(crate) struct ClusterDoors {
    pub(crate) plain: SocketAddr,
    pub(crate) tls: Option<SocketAddr>,
}

impl DoorAddresses {
    /// With their names, of which [`listen`] and [`reached_at`] make options.
    pub(crate) fn each(&self) -> impl Iterator<Item = (&'static str, SocketAddr)> + use<> {
        let of_group = self.cluster.map(|doors| ("groups", doors.plain));
        let tls = self.cluster.and_then(|doors| Some((GROUPS_TLS, doors.tls?)));
        let each =
            [("clients", self.clients), ("members", self.members), ("targets", self.targets)];
        each.into_iter().chain(of_group).chain(tls)
    }

    /// Those of a group behind the first, from the first one's.
    pub(crate) fn of_place(&self, place: u32) -> Self {
        if place == 0 {
            return *self;
        }
        let above = |mut address: SocketAddr| {
            // Configurations with ports that lie too high for all groups are refused.
            address.set_port(address.port().saturating_add(place as u16));
            address
        };
        let cluster = self
            .cluster
            .map(|doors| ClusterDoors { plain: above(doors.plain), tls: doors.tls.map(above) });
        Self {
            clients: cluster.map_or(self.clients, |doors| doors.plain),
            members: above(self.members),
            targets: above(self.targets),
            cluster,
        }
    }
}

/// How the process of a replica runs: as the options of `up` of the same names.
#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields, default)]
struct Limits {
    #[serde(deserialize_with = "io")]
    io: Io,
    #[serde(deserialize_with = "memory")]
    block_cache_bytes: usize,
    #[serde(deserialize_with = "memory")]
    open_files_bytes: usize,
    compactions_max: usize,
    #[serde(deserialize_with = "large_values")]
    large_values: Option<u32>,
    #[serde(deserialize_with = "codec")]
    value_compression: Compression,
    #[serde(deserialize_with = "collection_rate")]
    collection_rate: u64,
    jobs_nice: u8,
    #[serde(deserialize_with = "rebuild_rate")]
    rebuild_rate: u64,
    #[serde(deserialize_with = "metrics_port")]
    metrics_port: MetricsPort,
}

impl Default for Limits {
    fn default() -> Self {
        let ProcessOptions {
            io,
            block_cache_bytes,
            open_files_bytes,
            compactions_max,
            large_values,
            value_compression,
            collection_rate,
            jobs_nice,
            rebuild_rate,
            metrics_port,
            security: _,
            node: _,
        } = ProcessOptions::default();
        Self {
            io,
            block_cache_bytes,
            open_files_bytes,
            compactions_max,
            large_values,
            value_compression,
            collection_rate,
            jobs_nice,
            rebuild_rate,
            metrics_port,
        }
    }
}

impl ControllerConfig {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// Not found, I/O; invalid input with file, line, option and limit.
    pub(crate) fn load(path: &Path) -> Result<Self> {
        let config: Self = read(path)?;
        config.check().map_err(|error| error.within(path.display().to_string()))?;
        Ok(config)
    }

    fn check(&self) -> Result<()> {
        check_path("data", &self.data)?;
        check_tls(self.tls.as_ref())?;
        self.check_store_tls()?;
        trust::check("listen", self.listen, self.tls.is_some())?;
        let Some(page) = self.page.listen else { return Ok(()) };
        if !page.ip().is_loopback() {
            return Err(Error::invalid(format!(
                "page.listen is {page}: the page asks nobody for a name, so only loopback \
                 addresses are possible, 127.0.0.1 to 127.255.255.254 or ::1"
            )));
        }
        if page == self.listen {
            return Err(Error::invalid(format!("page.listen is {page}, which is listen already")));
        }
        Ok(())
    }

    fn check_store_tls(&self) -> Result<()> {
        let is_tls = matches!(&self.store, StoreChoice::Etcd(url) if url.is_tls());
        match &self.store_tls {
            Some(tls) if is_tls => {
                tls.check()?;
                tls.each().try_for_each(|(what, path)| check_path(what, path))
            }
            Some(_) => Err(Error::invalid("store_tls is for a store of etcd+tls:// alone")),
            None if is_tls => Err(Error::invalid(
                "store is of etcd+tls://: store_tls.ca is needed, the file of the authority of \
                 etcd's certificates",
            )),
            None => Ok(()),
        }
    }

    /// Its certificates, of files that are read now.
    ///
    /// # Errors
    /// As [`TlsConfig::open`].
    pub(crate) fn certificates(&self) -> Result<Certificates> {
        self.tls.as_ref().map(|tls| tls.open(Role::Controller, None)).transpose()
    }

    /// Those for connections to etcd, of files that are read now; none where it is plain.
    ///
    /// # Errors
    /// As [`StoreTlsConfig::open`].
    pub(crate) fn store_tls(&self) -> Result<Option<Arc<ClientTls>>> {
        self.store_tls.as_ref().map(StoreTlsConfig::open).transpose()
    }
}

impl NodeConfig {
    /// As [`ControllerConfig::load`].
    pub(crate) fn load(path: &Path) -> Result<Self> {
        let config: Self = read(path)?;
        config.check().map_err(|error| error.within(path.display().to_string()))?;
        Ok(config)
    }

    fn check(&self) -> Result<()> {
        check_name("name", &self.name)?;
        check_name("failure_domain", self.failure_domain())?;
        check_path("data", &self.data)?;
        check_tls(self.tls.as_ref())?;
        if !(1..=CONTROLLERS_MAX).contains(&self.controllers.len()) {
            return Err(Error::invalid(format!(
                "controllers has {} addresses, the limits are 1 and {CONTROLLERS_MAX}",
                self.controllers.len()
            )));
        }
        for controller in &self.controllers {
            trust::check("an address of controllers", *controller, self.tls.is_some())?;
        }
        if !(POOL_LEN_MIN..=POOL_LEN_MAX).contains(&self.pool_size) {
            return Err(Error::limit(format!(
                "pool_size is {}, the limits are {} and {}",
                exact_size(self.pool_size),
                exact_size(POOL_LEN_MIN),
                exact_size(POOL_LEN_MAX)
            )));
        }
        self.clients.check()?;
        self.groups.iter().try_for_each(|groups| groups.check(&self.clients))?;
        self.check_ports()?;
        self.check_doors()?;
        let limits = &self.limits;
        if !(1..=RunOptions::COMPACTIONS_MAX).contains(&limits.compactions_max) {
            return Err(Error::limit(format!(
                "limits.compactions_max is {}, the limits are 1 and {}",
                limits.compactions_max,
                RunOptions::COMPACTIONS_MAX
            )));
        }
        if limits.jobs_nice > gabion_proc::STEPS_MAX {
            return Err(Error::limit(format!(
                "limits.jobs_nice is {}, the limits are 0 and {}",
                limits.jobs_nice,
                gabion_proc::STEPS_MAX
            )));
        }
        Ok(())
    }

    /// Refuses first ports that leave none for the last group.
    fn check_ports(&self) -> Result<()> {
        let most = u16::MAX - (self.groups_max() - 1) as u16;
        let high = |at: &DoorAddresses, what| {
            let mut first = at.each().filter(|(door, _)| *door != "clients");
            let found = first.find(|(_, at)| at.port() > most);
            found.map(|(door, at)| (option(door, what), at))
        };
        let found =
            high(&self.listen(), "listen").or_else(|| high(&self.reached_at(), "reached_at"));
        let Some((what, address)) = found else { return Ok(()) };
        Err(Error::limit(format!(
            "{what} is {address}: each of {} groups has a port, so {most} is the highest first one",
            self.groups_max()
        )))
    }

    fn check_doors(&self) -> Result<()> {
        let reached = self.all_doors(&self.reached_at(), "reached_at");
        for each in [self.doors(), reached] {
            for (place, (what, address)) in each.iter().enumerate() {
                // Clients show passwords: see `ClientsConfig::check_users`.
                let is_for_clients = what.starts_with("clients.") || what.starts_with("groups.");
                let has_certificates = self.tls.is_some() || is_for_clients;
                trust::check(what, *address, has_certificates)?;
                if address.port() == 0 {
                    return Err(Error::invalid(format!(
                        "{what} is {address}: a port from 1 to 65535 is needed, as others have \
                         to know it"
                    )));
                }
                if let Some((other, _)) = each[..place].iter().find(|(_, it)| it == address) {
                    return Err(Error::invalid(format!(
                        "{what} is {address}, which is {other} already"
                    )));
                }
            }
        }
        let mut both = self.listen().each().zip(self.reached_at().each());
        if let Some(((door, at), (_, reached))) = both.find(|(_, (_, it))| it.ip().is_unspecified())
        {
            return Err(Error::invalid(match at == reached {
                true => format!(
                    "{} is {at}: say {}, the address by which others connect",
                    listen(door),
                    reached_at(door)
                ),
                false => format!("{} is {reached}, to which nobody can connect", reached_at(door)),
            }));
        }
        Ok(())
    }

    /// All addresses that are listened on, with their options.
    pub(crate) fn doors(&self) -> Vec<(String, SocketAddr)> {
        let mut doors = self.all_doors(&self.listen(), "listen");
        doors.extend(self.clients.tls_listen.map(|at| ("clients.tls_listen".to_owned(), at)));
        doors
    }

    /// Addresses of one kind of all groups, from those of the first, with their options.
    fn all_doors(&self, first: &DoorAddresses, what: &str) -> Vec<(String, SocketAddr)> {
        let mut all = Vec::new();
        for place in 0..self.groups_max() {
            let of = if place > 0 { format!(" of group {}", place + 1) } else { String::new() };
            let at = first.of_place(place);
            // The door for clients of a further group is that for clients of clusters.
            let own = at.each().filter(|(door, _)| place == 0 || *door != "clients");
            all.extend(own.map(|(door, at)| (option(door, what) + &of, at)));
        }
        all
    }

    /// Bytes that its replicas take once all are made: a pool and a ring for each group.
    pub(crate) fn room_needed(&self) -> u64 {
        (self.pool_size + RING_LEN) * u64::from(self.groups_max())
    }

    /// Groups of which the node may hold a replica each.
    pub(crate) fn groups_max(&self) -> u32 {
        self.groups.as_ref().map_or(1, |groups| groups.max)
    }

    /// The files with certificates, and the options that name them.
    pub(crate) fn certificate_files(&self) -> Vec<(&'static str, PathBuf)> {
        let own = self.tls.iter().flat_map(|tls| {
            [("tls.certificate", tls.certificate.clone()), ("tls.ca", tls.ca.clone())]
        });
        let of_clients = self.clients.tls_cert.clone().map(|path| ("clients.tls_cert", path));
        own.chain(of_clients).collect()
    }

    /// As [`ControllerConfig::certificates`].
    pub(crate) fn certificates(&self) -> Result<Certificates> {
        self.tls.as_ref().map(|tls| tls.open(Role::Node, Some(&self.name))).transpose()
    }

    /// Checks that the files of users and for TLS can be used, and that whoever reaches a door
    /// from elsewhere has to show something.
    ///
    /// # Errors
    /// I/O; invalid input, with door or file.
    pub(crate) fn check_users(&self) -> Result<()> {
        let process = self.process();
        let tls = process.node.clients_tls();
        let config = SecurityConfig { tls, ..process.security.of_replica(1)? };
        config.check(self.clients.listen)?;
        if let Some(groups) = &self.groups {
            let tls = config.tls.clone().zip(groups.tls_listen);
            let tls = tls.map(|(door, address)| TlsDoor { address, ..door });
            SecurityConfig { tls, ..config.clone() }.check(groups.listen)?;
        }
        match config.tls {
            Some(door) => gabion_tls::ServerTls::open(door.files).map(drop),
            None => Ok(()),
        }
    }

    pub(crate) fn failure_domain(&self) -> &str {
        self.failure_domain.as_deref().unwrap_or(&self.name)
    }

    /// The addresses that the doors listen on.
    pub(crate) fn listen(&self) -> DoorAddresses {
        DoorAddresses {
            clients: self.clients.listen,
            members: self.members.listen,
            targets: self.targets.listen,
            cluster: self
                .groups
                .as_ref()
                .map(|groups| ClusterDoors { plain: groups.listen, tls: groups.tls_listen }),
        }
    }

    /// The addresses that others are told; of several groups those of the first, as in
    /// [`Self::listen`].
    pub(crate) fn reached_at(&self) -> DoorAddresses {
        let of = |door: &DoorConfig| door.reached_at.unwrap_or(door.listen);
        DoorAddresses {
            clients: self.clients.reached_at.unwrap_or(self.clients.listen),
            members: of(&self.members),
            targets: of(&self.targets),
            cluster: self.groups.as_ref().map(|groups| ClusterDoors {
                plain: groups.reached_at.unwrap_or(groups.listen),
                tls: groups.tls_reached_at.or(groups.tls_listen),
            }),
        }
    }

    /// The door with TLS for clients, as commands are told it. One that listens everywhere is
    /// reached where the other one is.
    pub(crate) fn clients_tls(&self) -> Option<SocketAddr> {
        let mut listen = self.clients.tls_listen?;
        if listen.ip().is_unspecified() {
            listen.set_ip(self.reached_at().clients.ip());
        }
        Some(self.clients.tls_reached_at.unwrap_or(listen))
    }

    /// How its replicas' processes run.
    pub(crate) fn process(&self) -> ProcessOptions {
        let Limits {
            io,
            block_cache_bytes,
            open_files_bytes,
            compactions_max,
            large_values,
            value_compression,
            collection_rate,
            jobs_nice,
            rebuild_rate,
            metrics_port,
        } = self.limits;
        ProcessOptions {
            io,
            block_cache_bytes,
            open_files_bytes,
            compactions_max,
            large_values,
            value_compression,
            collection_rate,
            jobs_nice,
            rebuild_rate,
            metrics_port,
            security: self.clients.security(),
            node: NodeProcess {
                clients_tls_listen: self.clients.tls_listen,
                clients_tls_cert: self.clients.tls_cert.clone(),
                clients_tls_key: self.clients.tls_key.clone(),
                clients_tls_ca: self.clients.tls_ca.clone(),
                clients_tls_auth: self.clients.tls_auth_clients,
                ..self.tls.as_ref().map(TlsConfig::of_replica).unwrap_or_default()
            },
        }
    }
}

/// Refuses what is no name of a node, a group or a failure domain: it stands in command lines, so
/// it is short, and no number, as replicas have those.
///
/// # Errors
/// Invalid input with option, value and limits.
pub(crate) fn check_name(what: &str, name: &str) -> Result<()> {
    let is_usual = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_' || c == '.';
    let begins = name.starts_with(|c: char| c.is_ascii_alphabetic());
    if begins && name.len() <= NAME_LEN_MAX && name.chars().all(is_usual) {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "{what} is {name:?}: a name begins with a letter and has 1 to {NAME_LEN_MAX} letters, \
         digits, `-`, `_` and `.`"
    )))
}

fn check_tls(tls: Option<&TlsConfig>) -> Result<()> {
    let paths = tls.map(TlsConfig::each).into_iter().flatten();
    paths.into_iter().try_for_each(|(what, path)| check_path(what, path))
}

fn check_path(what: &str, path: &Path) -> Result<()> {
    if path.is_absolute() {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "{what} is {}: an absolute path is needed, as the process may start anywhere",
        path.display()
    )))
}

fn read<T: DeserializeOwned>(path: &Path) -> Result<T> {
    let file = path.metadata().map_err(|e| failed(path, "cannot be read", e))?;
    if !file.is_file() || file.len() > FILE_LEN_MAX {
        return Err(Error::invalid(format!(
            "{}: is no file of at most {}",
            path.display(),
            exact_size(FILE_LEN_MAX)
        )));
    }
    let text = std::fs::read_to_string(path).map_err(|e| failed(path, "cannot be read", e))?;
    from_text(&text).map_err(|error| error.within(path.display().to_string()))
}

/// Reads a file's text.
///
/// # Errors
/// Invalid input in one line, with the number of the file's.
pub(crate) fn from_text<T: DeserializeOwned>(text: &str) -> Result<T> {
    toml::from_str(text).map_err(|error: toml::de::Error| {
        let said: Vec<&str> = error.message().lines().map(str::trim).collect();
        let said = said.join("; ");
        let at = error.span().filter(|span| !span.is_empty()).map(|span| span.start);
        let line = at.and_then(|at| text.get(..at)).map(|text| text.matches('\n').count() + 1);
        let line = line.map_or_else(String::new, |line| format!("line {line}: "));
        Error::invalid(format!("{line}{said}"))
    })
}

/// A value that is written as text or as a number, and read as an option of the command line.
struct Written<T>(fn(&str) -> Result<T, String>);

impl<T> Visitor<'_> for Written<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number or a text with a unit, as \"64MiB\" or \"10m\"")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        self.0(text).map_err(E::custom)
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<T, E> {
        self.visit_str(&number.to_string())
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<T, E> {
        self.visit_str(&number.to_string())
    }
}

fn bytes<'de, D: Deserializer<'de>>(input: D) -> Result<u64, D::Error> {
    // A pool is made of whole MiB.
    let whole = |text: &str| parse_bytes(text).map(|len| len / MIB * MIB);
    input.deserialize_any(Written(whole))
}

fn milliseconds<'de, D: Deserializer<'de>>(input: D) -> Result<u64, D::Error> {
    input.deserialize_any(Written(parse_ms))
}

fn memory<'de, D: Deserializer<'de>>(input: D) -> Result<usize, D::Error> {
    input.deserialize_any(Written(parse_memory))
}

fn large_values<'de, D: Deserializer<'de>>(input: D) -> Result<Option<u32>, D::Error> {
    // As on the command line, where none is 0 and what is left out is as the group was made.
    let parse = |text: &str| match text {
        "auto" => Ok(None),
        text => parse_large_values(text).map(Some),
    };
    input.deserialize_any(Written(parse))
}

fn collection_rate<'de, D: Deserializer<'de>>(input: D) -> Result<u64, D::Error> {
    input.deserialize_any(Written(parse_collection_rate))
}

fn rebuild_rate<'de, D: Deserializer<'de>>(input: D) -> Result<u64, D::Error> {
    input.deserialize_any(Written(parse_rebuild_rate))
}

fn metrics_port<'de, D: Deserializer<'de>>(input: D) -> Result<MetricsPort, D::Error> {
    input.deserialize_any(Written(parse_metrics))
}

fn io<'de, D: Deserializer<'de>>(input: D) -> Result<Io, D::Error> {
    let parse = |text: &str| {
        Io::from_str(text, false).map_err(|_| format!("`{text}` is none of auto, uring, threads"))
    };
    input.deserialize_any(Written(parse))
}

fn store<'de, D: Deserializer<'de>>(input: D) -> Result<StoreChoice, D::Error> {
    let parse = |text: &str| match text {
        "embedded" => Ok(StoreChoice::Embedded),
        url if EtcdUrl::is_one(url) => {
            EtcdUrl::parse(url).map(StoreChoice::Etcd).map_err(|error| error.message().to_owned())
        }
        _ => Err(format!(
            "`{text}` is none of embedded, etcd://HOST:PORT,HOST:PORT/PREFIX, etcd+tls://"
        )),
    };
    input.deserialize_any(Written(parse))
}

fn client_certificates<'de, D: Deserializer<'de>>(
    input: D,
) -> Result<ClientCertificates, D::Error> {
    let parse = |text: &str| text.parse().map_err(|error: Error| error.message().to_owned());
    input.deserialize_any(Written(parse))
}

fn codec<'de, D: Deserializer<'de>>(input: D) -> Result<Compression, D::Error> {
    let parse = |text: &str| {
        let refused = |_| format!("`{text}` is none of none, lz4, zstd, zstd:1 to zstd:19");
        text.parse().map_err(refused)
    };
    input.deserialize_any(Written::<Compression>(parse))
}

const fn replace_after() -> u64 {
    REPLACE_AFTER_MS
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: &str = r#"
name = "a"
data = "/var/lib/gabion"
controllers = ["127.0.0.1:7400"]
pool_size = "4GiB"
clients.listen = "127.0.0.2:6379"
members.listen = "127.0.0.2:6479"
targets.listen = "127.0.0.2:6579"
"#;

    fn node(text: &str) -> Result<NodeConfig> {
        from_text::<NodeConfig>(text).and_then(|config| config.check().map(|()| config))
    }

    #[test]
    fn a_node_is_read_with_what_it_leaves_out() {
        let config = node(NODE).unwrap();
        assert_eq!((config.failure_domain(), config.pool_size), ("a", 4 << 30));
        assert_eq!(config.listen(), config.reached_at());
        assert_eq!(config.process(), ProcessOptions::default());
        let more = "[limits]\nio = \"threads\"\nblock_cache_bytes = 0\nlarge_values = \"1KiB\"\n\
                    value_compression = \"zstd:5\"\ncompactions_max = 4\n";
        let config = node(&format!("{NODE}clients.reached_at = \"127.0.0.3:1\"\n{more}")).unwrap();
        assert_eq!(config.reached_at().clients, "127.0.0.3:1".parse().unwrap());
        let process = config.process();
        assert_eq!((process.io, process.block_cache_bytes), (Io::Threads, 0));
        assert_eq!((process.large_values, process.compactions_max), (Some(1024), 4));
        assert_eq!(process.value_compression, Compression::Zstd { level: 5 });
    }

    #[test]
    fn each_of_several_groups_has_ports_of_its_own() {
        let wide = |text: &str| node(&format!("{NODE}[groups]\nmax = 3\n{text}"));
        let config = wide("listen = \"127.0.0.2:7000\"\n").unwrap();
        assert_eq!(config.groups_max(), 3);
        let third = config.listen().of_place(2);
        let ports = [third.clients, third.members, third.targets].map(|at| at.port());
        assert_eq!(ports, [7_002, 6_481, 6_581]);
        assert_eq!(config.doors().len(), 4 + 3 + 3);
        for (text, part) in [
            ("listen = \"127.0.0.2:6379\"", "groups.listen is 127.0.0.2:6379, which is clients."),
            ("listen = \"127.0.0.2:6480\"", "members.listen of group 2 is 127.0.0.2:6480"),
            ("listen = \"127.0.0.2:6377\"", "groups.listen of group 3 is 127.0.0.2:6379"),
            ("listen = \"127.0.0.2:65534\"", "so 65533 is the highest first one"),
            ("listen = \"10.0.0.2:7000\"", "groups.listen is 10.0.0.2:7000: anybody"),
            ("listen = \"127.0.0.2:7000\"\ntls_listen = \"127.0.0.2:7100\"", "clients.tls_listen"),
            ("", "missing field `listen`"),
        ] {
            let error = wide(&format!("{text}\n")).unwrap_err();
            assert!(error.message().contains(part), "{error}");
        }
        let one = format!("{NODE}[groups]\nmax = 1\nlisten = \"127.0.0.2:7000\"\n");
        assert!(node(&one).unwrap_err().message().contains("groups.max is 1, the limits are 2"));
    }

    #[test]
    fn the_page_of_a_controller_is_for_this_machine() {
        let controller = |page: &str| {
            let text = format!("data = \"/d\"\nlisten = \"127.0.0.1:7400\"\n{page}");
            let config: ControllerConfig = from_text(&text)?;
            config.check().map(|()| config.page.listen)
        };
        assert_eq!(controller("").unwrap(), None);
        let at = "127.0.0.1:7480";
        let found = controller(&format!("page.listen = \"{at}\"\n")).unwrap();
        assert_eq!(found, Some(at.parse().unwrap()));
        for (page, part) in [
            ("page.listen = \"0.0.0.0:7480\"", "page.listen is 0.0.0.0:7480: the page asks nobody"),
            ("page.listen = \"127.0.0.1:7400\"", "which is listen already"),
            ("page.at = 1", "unknown field `at`"),
        ] {
            let error = controller(page).unwrap_err();
            assert!(error.message().contains(part), "{error}");
        }
    }

    /// docs/faults.md: P36
    #[test]
    fn a_bad_option_is_refused_in_one_line_with_its_name_its_value_and_the_limit() {
        for (from, to, parts) in [
            ("name =", "nmae =", &["line 2", "unknown field `nmae`", "`name`"][..]),
            ("name = \"a\"", "", &["missing field `name`"]),
            ("\"a\"", "\"7\"", &["name is \"7\"", "begins with a letter"]),
            ("\"/var/lib/gabion\"", "\"here\"", &["data is here", "absolute"]),
            ("[\"127.0.0.1:7400\"]", "[]", &["controllers has 0", "1 and 16"]),
            ("127.0.0.1:7400", "10.0.0.1:7400", &["controllers is 10.0.0.1:7400", "certificates"]),
            ("127.0.0.2:6379", "0.0.0.0:6379", &["clients.listen is 0.0.0.0:6379"]),
            ("127.0.0.2:6379", "127.0.0.2", &["line 6", "socket address"]),
            ("127.0.0.2:6479", "127.0.0.2:0", &["members.listen is 127.0.0.2:0", "1 to 65535"]),
            ("127.0.0.2:6579", "127.0.0.2:6379", &["targets.listen", "clients.listen already"]),
            ("4GiB", "4", &["pool_size is 0", "256MiB"]),
            ("4GiB", "many", &["line 5", "`many` is no size"]),
            ("\"4GiB\"", "true", &["line 5", "boolean `true`"]),
        ] {
            assert!(NODE.contains(from), "{from}");
            let error = node(&NODE.replacen(from, to, 1)).unwrap_err();
            let line = error.message();
            assert!(!line.contains('\n'), "{line}");
            parts.iter().for_each(|part| assert!(line.contains(part), "{line}: {part}"));
        }
        for (more, part) in [
            ("clients.tls_listen = \"127.0.0.2:1\"", "clients.tls_key: all three are needed"),
            ("clients.reached_at = \"0.0.0.0:1\"", "clients.reached_at is 0.0.0.0:1, to which"),
            ("clients.aclfile = \"users\"", "clients.aclfile is users: an absolute path"),
            ("clients.tls_auth_clients = \"never\"", "'never': yes, no or optional"),
            ("tls.certificate = \"/a.pem\"", "missing field `key`"),
        ] {
            let error = node(&format!("{NODE}{more}\n")).unwrap_err();
            assert!(error.message().contains(part), "{error}");
        }
        let pair = "clients.tls_cert = \"/a.pem\"\nclients.tls_key = \"/a.key\"\n";
        for (at, part) in [
            ("127.0.0.2:0", "clients.tls_listen is 127.0.0.2:0: a port from 1 to 65535"),
            ("127.0.0.2:6579", "clients.tls_listen is 127.0.0.2:6579, which is targets.listen"),
        ] {
            let more = format!("clients.tls_listen = \"{at}\"\n{pair}");
            let error = node(&format!("{NODE}{more}")).unwrap_err();
            assert!(error.message().contains(part), "{error}");
        }
        // With certificates and a password the network is fine.
        let far = NODE.replace("127.0.0.", "10.0.0.");
        let tls = "tls = { certificate = \"/a.pem\", key = \"/a.key\", ca = \"/ca.pem\" }\n";
        node(&format!("{far}clients.requirepass_file = \"/password\"\n{tls}")).unwrap();
        let error = node(&format!("{far}{tls}")).unwrap_err();
        assert!(error.message().contains("a user with a password"), "{error}");
        // Any address of this machine, which others have to be told by one of them.
        for (door, port) in [("clients", 6379), ("members", 6479), ("targets", 6579)] {
            for any in [format!("0.0.0.0:{port}"), format!("[::]:{port}")] {
                let open = far.replace(&format!("10.0.0.2:{port}"), &any);
                let open = format!("{open}clients.requirepass_file = \"/password\"\n");
                let error = node(&format!("{open}{tls}")).unwrap_err();
                let part = format!("{door}.listen is {any}: say {door}.reached_at");
                assert!(error.message().contains(&part), "{error}");
                let more = format!("{door}.reached_at = \"10.0.0.2:{port}\"\n");
                node(&format!("{open}{more}{tls}")).unwrap();
            }
        }
        for (more, part) in [
            ("compactions_max = 65", "limits.compactions_max is 65, the limits are 1 and 64"),
            ("jobs_nice = 20", "limits.jobs_nice is 20, the limits are 0 and 19"),
            ("rebuild_rate = \"1KiB\"", "1048576 or more"),
            ("io = \"fast\"", "`fast` is none of auto, uring, threads"),
            ("cache = 1", "unknown field `cache`"),
        ] {
            let error = node(&format!("{NODE}[limits]\n{more}\n")).unwrap_err();
            assert!(error.message().contains(part), "{error}");
        }
    }

    #[test]
    fn a_controller_is_read_with_what_it_leaves_out() {
        let text = "data = \"/c\"\nlisten = \"127.0.0.1:7400\"\n";
        let config: ControllerConfig = from_text(text).unwrap();
        config.check().unwrap();
        assert_eq!(config.replace_after, 600_000);
        let config: ControllerConfig =
            from_text(&format!("{text}replace_after = \"90s\"")).unwrap();
        assert_eq!(config.replace_after, 90_000);
        assert_eq!(config.store, StoreChoice::Embedded);
        let url = "etcd://127.0.0.1:2379,127.0.0.2:2379/orders";
        let config: ControllerConfig = from_text(&format!("{text}store = \"{url}\"")).unwrap();
        assert_eq!(config.store, StoreChoice::Etcd(EtcdUrl::parse(url).unwrap()));
        for (more, part) in [
            ("stroe = 1", "unknown field `stroe`"),
            ("store = \"redis\"", "`redis` is none of embedded, etcd://"),
            ("store = \"etcd://a\"", "endpoint \"a\": HOST:PORT is needed"),
            ("replace_after = \"1d\"", "`d`"),
        ] {
            let error = from_text::<ControllerConfig>(&format!("{text}{more}")).unwrap_err();
            assert!(error.message().contains(part), "{error}");
        }
        let tls = "store = \"etcd+tls://a:1\"\n";
        let ca = "store_tls.ca = \"/ca.pem\"\n";
        let pair = "store_tls.certificate = \"/a.pem\"\nstore_tls.key = \"/a.key\"\n";
        for more in [[tls, ca].concat(), [tls, ca, pair].concat()] {
            let config: ControllerConfig = from_text(&format!("{text}{more}")).unwrap();
            config.check().unwrap();
            let error = config.store_tls().unwrap_err().to_string();
            assert!(error.contains("store_tls") && error.contains(".pem"), "{error}");
        }
        for (more, part) in [
            (tls.to_owned(), "store_tls.ca is needed"),
            (ca.to_owned(), "for a store of etcd+tls:// alone"),
            (format!("store = \"etcd://a:1\"\n{ca}"), "for a store of etcd+tls:// alone"),
            (format!("{tls}{}", ca.replace("/ca", "ca")), "store_tls.ca is ca.pem: an absolute"),
            (format!("{tls}{ca}store_tls.key = \"/a.key\""), "both are needed, or neither"),
        ] {
            let config: ControllerConfig = from_text(&format!("{text}{more}")).unwrap();
            let error = config.check().unwrap_err();
            assert!(error.message().contains(part), "{error}");
        }
        let open: ControllerConfig = from_text(&text.replace("127.0.0.1", "0.0.0.0")).unwrap();
        assert!(open.check().unwrap_err().message().contains("listen is 0.0.0.0:7400"));
    }

    #[test]
    fn the_examples_are_read() {
        let deploy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy");
        ControllerConfig::load(&deploy.join("controller.toml")).unwrap();
        let config = NodeConfig::load(&deploy.join("node.toml")).unwrap();
        assert_eq!(config.process(), ProcessOptions::default(), "what is shown is the default");
    }
}

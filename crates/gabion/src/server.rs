//! `gabion server`: one replica, as a child of `gabion up` or of `gabion node`.

use crate::cluster::{self, Doors, Settings, replica_dir};
use crate::control;
use crate::machines::DoorAddresses;
use crate::machines::hosted::{self, Told};
use crate::options::ServerOptions;
use gabion_base::{Error, ReplicaId, Result};
use gabion_node::NodeOptions;
use gabion_server::commands::Spread;
use gabion_server::{
    ExitReason, Home, NodeDoors, PeerAddress, SecurityConfig, ServerConfig, SpreadConfig, TlsDoor,
};
use rustix::process::{Pid, Signal};
use std::path::{Path, PathBuf};

pub(crate) fn run(options: &ServerOptions) -> Result<u8> {
    die_with(options.parent)?;
    // It was started by another name, /proc/self/exe. If it keeps that, only process lists are
    // harder to read.
    let _ = rustix::thread::set_name(c"gabion");
    let told = told(options)?;
    let mut configs = Vec::new();
    for (told, dir) in told {
        configs.push(config_of(options, told, &dir)?);
    }
    let result = gabion_server::run_all(configs);
    match &result {
        Ok(ExitReason::Signal) => {}
        Ok(ExitReason::Failed(error) | ExitReason::Damaged { error, .. }) | Err(error) => {
            gabion_server::note!("{error}")
        }
    }
    Ok(gabion_server::exit_code(&result))
}

/// Configuration of the replica of a group.
fn config_of(options: &ServerOptions, told: Told, dir: &Path) -> Result<ServerConfig> {
    let process = &options.process;
    let data = replica_dir(dir, told.replica);
    let mut security = security(options, dir)?;
    if told.is_controlled && security.aclfile.is_none() {
        security.users_kept = Some(control::users_path(&data));
    }
    if told.settings.place > 0 {
        // The first one's is for all groups, and further ones are for clients of clusters.
        let own = told.spread.as_ref().and_then(|spread| spread.listen.tls);
        security.tls = security.tls.zip(own).map(|(tls, address)| TlsDoor { address, ..tls });
    }
    let groups = told.settings.groups as usize;
    Ok(ServerConfig {
        group: told.settings.group,
        replica: ReplicaId(told.replica),
        data,
        spread: told.spread,
        resp: told.listen.clients,
        peer_listen: told.listen.members,
        target_listen: told.listen.targets,
        metrics: told.metrics,
        home: told.home,
        peers: told.peers,
        io: process.io.backend(),
        block_cache_bytes: process.block_cache_bytes / groups,
        open_files_bytes: process.open_files_bytes / groups,
        client_input_bytes: gabion_server::INPUT_BYTES,
        jobs_nice: process.jobs_nice,
        security,
        node: NodeOptions {
            compactions_max: process.compactions_max,
            rebuild_bytes_per_s: process.rebuild_rate,
            large_values: process.large_values,
            value_compression: Some(process.value_compression),
            collection_bytes_per_s: process.collection_rate,
            ..NodeOptions::default()
        },
    })
}

/// The slots of a group of `up`, and the doors of its replicas for clients of clusters.
fn spread_of(settings: &Settings, me: u32) -> Option<SpreadConfig> {
    let spread = Spread::new(settings.groups, settings.place)?;
    let doors = |number| Some(NodeDoors { plain: settings.node_door(number)?, tls: None });
    let (own, others) = (doors(me)?, settings.nodes().filter(|number| *number != me));
    let others = others.filter_map(|number| Some((ReplicaId(number), doors(number)?)));
    Some(SpreadConfig { spread, listen: own, doors: own, others: others.collect() })
}

/// Users and certificates of a replica with this directory.
fn security(options: &ServerOptions, dir: &Path) -> Result<SecurityConfig> {
    let config = options.process.security.of_replica(options.replica)?;
    let members = hosted::members_tls(dir, &options.node)?;
    Ok(SecurityConfig { members, tls: options.node.clients_tls().or(config.tls), ..config })
}

/// Configuration in the data: that of a node, or else that of `gabion up`, in which all is computed
/// from the first port.
fn told(options: &ServerOptions) -> Result<Vec<(Told, PathBuf)>> {
    let metrics = options.process.metrics_port;
    if let Some(told) = hosted::told(&options.data, options.replica, metrics)? {
        return Ok(told);
    }
    let groups = cluster::load_existing(&options.data)?.by_group(&options.data);
    Ok(groups.into_iter().map(|(dir, settings)| (told_of(options, settings), dir)).collect())
}

fn told_of(options: &ServerOptions, settings: Settings) -> Told {
    let others = settings.nodes().filter(|number| *number != options.replica);
    let peer = |number| {
        let Doors { resp, peer, target } = settings.doors(number);
        PeerAddress { replica: ReplicaId(number), peer, target, resp }
    };
    let peers = others.map(peer).collect();
    let doors = settings.doors(options.replica);
    let (clients, members, targets) = (doors.resp, doors.peer, doors.target);
    let listen = DoorAddresses { clients, members, targets, cluster: None };
    let metrics = options.process.metrics_port.of_group(settings.place);
    let metrics = metrics.address(settings.port, options.replica);
    let spread = spread_of(&settings, options.replica);
    // Of several groups each has a controller of its own, and the process has users once.
    let is_controlled = settings.has_controller() && settings.groups == 1;
    Told {
        replica: options.replica,
        settings,
        is_controlled,
        listen,
        metrics,
        spread,
        home: Home::default(),
        peers,
    }
}

/// Ends this process when its starter ends, however that happens.
fn die_with(parent: i32) -> Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|e| Error::io(format!("the parent's end cannot be watched: {e}")))?;
    // The starter may have ended before the call.
    if rustix::process::getppid() == Pid::from_raw(parent) {
        return Ok(());
    }
    Err(Error::invalid(format!("process {parent}, which started this replica, is gone")))
}

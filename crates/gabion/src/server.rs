//! `gabion server`: one replica, as a child of `gabion up` or of `gabion node`.

use crate::cluster::{self, Doors, replica_dir};
use crate::machines::DoorAddresses;
use crate::machines::hosted::{self, Told};
use crate::options::ServerOptions;
use gabion_base::{Error, ReplicaId, Result};
use gabion_node::NodeOptions;
use gabion_server::{Home, PeerAddress, SecurityConfig, ServerConfig};
use rustix::process::{Pid, Signal};

pub(crate) fn run(options: &ServerOptions) -> Result<u8> {
    die_with(options.parent)?;
    // It was started by another name, /proc/self/exe. If it keeps that, only process lists are
    // harder to read.
    let _ = rustix::thread::set_name(c"gabion");
    let told = told(options)?;
    let process = &options.process;
    let config = ServerConfig {
        group: told.settings.group,
        replica: ReplicaId(options.replica),
        data: replica_dir(&options.data, options.replica),
        resp: told.listen.clients,
        peer_listen: told.listen.members,
        target_listen: told.listen.targets,
        metrics: process.metrics_port.address(told.first_port, options.replica),
        home: told.home,
        peers: told.peers,
        io: process.io.backend(),
        block_cache_bytes: process.block_cache_bytes,
        open_files_bytes: process.open_files_bytes,
        client_input_bytes: gabion_server::INPUT_BYTES,
        jobs_nice: process.jobs_nice,
        security: security(options)?,
        node: NodeOptions {
            compactions_max: process.compactions_max,
            rebuild_bytes_per_s: process.rebuild_rate,
            large_values: Some(process.large_values),
            value_compression: Some(process.value_compression),
            collection_bytes_per_s: process.collection_rate,
            ..NodeOptions::default()
        },
    };
    let result = gabion_server::run(config);
    match &result {
        Ok(gabion_server::ExitReason::Signal) => {}
        Ok(gabion_server::ExitReason::Failed(error)) | Err(error) => {
            gabion_server::note!("{error}")
        }
    }
    Ok(gabion_server::exit_code(&result))
}

fn security(options: &ServerOptions) -> Result<SecurityConfig> {
    let config = options.process.security.of_replica(options.replica)?;
    let members = hosted::members_tls(&options.data, &options.node)?;
    Ok(SecurityConfig { members, tls: options.node.clients_tls().or(config.tls), ..config })
}

/// Configuration in the data: that of a node, or else that of `gabion up`, in which all is computed
/// from the first port.
fn told(options: &ServerOptions) -> Result<Told> {
    if let Some(told) = hosted::told(&options.data, options.replica)? {
        return Ok(told);
    }
    let settings = cluster::load_existing(&options.data)?;
    let others = settings.nodes().filter(|number| *number != options.replica);
    let peer = |number| {
        let Doors { resp, peer, target } = settings.doors(number);
        PeerAddress { replica: ReplicaId(number), peer, target, resp }
    };
    let peers = others.map(peer).collect();
    let doors = settings.doors(options.replica);
    let (clients, members, targets) = (doors.resp, doors.peer, doors.target);
    let listen = DoorAddresses { clients, members, targets };
    let first_port = settings.port;
    Ok(Told { settings, listen, first_port, home: Home::default(), peers })
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

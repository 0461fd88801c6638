//! Network namespaces that a bridge joins, one for each host.

use crate::cluster::{output, run};
use crate::steps::Step;
use std::net::Ipv4Addr;
use std::process::Command;

/// Hosts, and the last number of their addresses.
const HOSTS: [(&str, u8); 11] = [
    ("a", 11),
    ("b", 12),
    ("c", 13),
    ("d", 14),
    ("e", 15),
    ("ctl-1", 21),
    ("ctl-2", 22),
    ("etcd-1", 31),
    ("etcd-2", 32),
    ("etcd-3", 33),
    ("clients", 41),
];
const BRIDGE: &str = "walk";

/// Address of a host.
pub(super) fn address(host: &str) -> Ipv4Addr {
    let number = HOSTS.iter().find(|(name, _)| *name == host).map_or(0, |(_, number)| *number);
    assert!(number > 0, "there is no host {host}");
    Ipv4Addr::new(10, 77, 0, number)
}

pub(super) struct Network {}

impl Network {
    /// Makes all namespaces, within those of this process alone.
    pub(super) fn make() -> Result<Self, String> {
        // `ip netns` keeps names there; the machine's are not to be seen and not to be touched.
        run(Command::new("mount").args(["-t", "tmpfs", "none", "/run"]))?;
        ip("link set lo up")?;
        ip(&format!("link add {BRIDGE} type bridge"))?;
        ip(&format!("addr add 10.77.0.1/24 dev {BRIDGE}"))?;
        ip(&format!("link set {BRIDGE} up"))?;
        for (host, _) in HOSTS {
            let address = address(host);
            ip(&format!("netns add {host}"))?;
            ip(&format!("link add to-{host} type veth peer name eth0 netns {host}"))?;
            ip(&format!("link set to-{host} master {BRIDGE} up"))?;
            ip(&format!("-n {host} addr add {address}/24 dev eth0"))?;
            ip(&format!("-n {host} link set eth0 up"))?;
            ip(&format!("-n {host} link set lo up"))?;
        }
        Ok(Self {})
    }

    /// A program on a host.
    pub(super) fn command(&self, host: &str, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/run/netns/{host}")).arg(program);
        command
    }

    /// The processes of a host.
    pub(super) fn processes(&self, host: &str) -> Result<Vec<String>, String> {
        let pids = output(Command::new("ip").args(["netns", "pids", host]))?;
        Ok(pids.split_whitespace().map(str::to_owned).collect())
    }

    /// Cuts a host's link: nothing comes or goes any more, and nobody is told.
    pub(super) fn cut(&self, host: &str) -> Step {
        ip(&format!("link set to-{host} down"))
    }

    pub(super) fn join(&self, host: &str) -> Step {
        ip(&format!("link set to-{host} up"))
    }
}

fn ip(words: &str) -> Step {
    output(Command::new("ip").args(words.split(' '))).map(drop)
}

//! Addresses at which a peer listens, as the registry has them.
//!
//! ```text
//!   tcp 10.0.0.7:7000                       or, with certificates: tls n1 10.0.0.7:7000
//!   node n1                                 it listens on no TCP, or has ended
//!   unix 6c1f… /run/gabion/peer/socket       the machine's boot, then the path
//! ```
//!
//! A line each, any may be missing. By the last one programs of that machine map memory. A
//! boot is a random number of the kernel's, so a path is not tried on another machine; whoever
//! answers still has to be that peer.

use gabion_base::{Error, Result};
use gabion_fabric::remote::LinkAddress;
use gabion_tls::NAME_LEN_MAX;
use std::fmt::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// The name of the Unix socket in the directory of a controller or a peer.
pub const SOCKET: &str = "socket";
/// Longest path of a socket in bytes that is told: the kernel's limit.
const PATH_LEN_MAX: usize = 107;

/// The places of a peer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PeerAddress {
    /// For programs of any machine.
    pub tcp: Option<SocketAddr>,
    /// The node whose certificate it has; none: its TCP is plain.
    pub node: Option<String>,
    /// For programs of one machine: its boot, and a path there.
    pub unix: Option<(String, PathBuf)>,
}

/// The boot of this machine, or nothing where the kernel does not tell.
#[must_use]
pub fn boot() -> String {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    text.trim().replace('-', "")
}

impl PeerAddress {
    /// The places of a peer of this machine.
    #[must_use]
    pub fn here(tcp: Option<SocketAddr>, node: Option<&str>, socket: Option<&Path>) -> Self {
        let absolute = socket.and_then(|path| std::path::absolute(path).ok());
        Self { tcp, node: node.map(str::to_owned), unix: absolute.map(|path| (boot(), path)) }
    }

    /// As text. A path that is no line of UTF-8 is left out.
    #[must_use]
    pub fn encode(&self) -> String {
        let mut out = String::new();
        // A string takes all.
        let _ = match (self.tcp, &self.node) {
            (Some(tcp), Some(node)) => writeln!(out, "tls {node} {tcp}"),
            (Some(tcp), None) => writeln!(out, "tcp {tcp}"),
            (None, Some(node)) => writeln!(out, "node {node}"),
            (None, None) => Ok(()),
        };
        let unix = self.unix.as_ref().and_then(|(boot, path)| Some((boot, path.to_str()?)));
        if let Some((boot, path)) = unix.filter(|(_, path)| !path.contains('\n')) {
            let _ = writeln!(out, "unix {boot} {path}");
        }
        out
    }

    /// From text. Lines of later versions are passed over.
    ///
    /// # Errors
    /// Corruption for a line of a known kind that is none.
    pub fn decode(text: &str) -> Result<Self> {
        let mut address = Self::default();
        for line in text.lines() {
            let bad = || Error::corruption(format!("'{}' is no address", line.escape_debug()));
            if let Some(tcp) = line.strip_prefix("tcp ") {
                address.tcp = Some(tcp.parse().map_err(|_| bad())?);
            } else if let Some(tls) = line.strip_prefix("tls ") {
                let (node, tcp) = tls.split_once(' ').ok_or_else(bad)?;
                address.node = Some(name(node).ok_or_else(bad)?);
                address.tcp = Some(tcp.parse().map_err(|_| bad())?);
            } else if let Some(node) = line.strip_prefix("node ") {
                address.node = Some(name(node).ok_or_else(bad)?);
            } else if let Some(unix) = line.strip_prefix("unix ") {
                let (boot, path) = unix.split_once(' ').ok_or_else(bad)?;
                if path.is_empty() || path.len() > PATH_LEN_MAX {
                    return Err(bad());
                }
                address.unix = Some((boot.to_owned(), PathBuf::from(path)));
            }
        }
        Ok(address)
    }

    /// Addresses for connections from here, in the order of trial: that of shared memory first.
    #[must_use]
    pub fn places(&self, boot: &str) -> Vec<LinkAddress> {
        let unix = self.unix.iter().filter(|(of, _)| of == boot);
        let unix = unix.map(|(_, path)| LinkAddress::Unix(path.clone()));
        unix.chain(self.tcp.map(LinkAddress::Tcp)).collect()
    }
}

fn name(node: &str) -> Option<String> {
    (1..=NAME_LEN_MAX).contains(&node.len()).then(|| node.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_read_as_it_was_written_and_a_path_is_tried_on_its_machine_only() {
        let tcp: SocketAddr = "127.0.0.1:7000".parse().unwrap();
        let unix = (String::from("b1"), PathBuf::from("/run/a peer/socket"));
        let address = PeerAddress { tcp: Some(tcp), node: None, unix: Some(unix.clone()) };
        assert_eq!(address.encode(), "tcp 127.0.0.1:7000\nunix b1 /run/a peer/socket\n");
        assert_eq!(PeerAddress::decode(&address.encode()).unwrap(), address);
        assert_eq!(address.places("b1"), [LinkAddress::Unix(unix.1), LinkAddress::Tcp(tcp)]);
        assert_eq!(address.places("b2"), [LinkAddress::Tcp(tcp)]);
        let sealed = PeerAddress { node: Some("n1".to_owned()), ..address.clone() };
        assert!(sealed.encode().starts_with("tls n1 127.0.0.1:7000\n"));
        assert_eq!(PeerAddress::decode(&sealed.encode()).unwrap(), sealed);
        let ended = PeerAddress { tcp: None, unix: None, ..sealed };
        assert_eq!(ended.encode(), "node n1\n");
        assert_eq!(PeerAddress::decode(&ended.encode()).unwrap(), ended);
        assert_eq!(PeerAddress::decode("rdma x\n").unwrap(), PeerAddress::default());
        for bad in [
            "tcp x",
            "tls n1",
            "tls  127.0.0.1:1",
            "node ",
            "unix b1",
            "unix b1 ",
            &format!("unix b1 /{}", "x".repeat(107)),
        ] {
            assert!(PeerAddress::decode(bad).is_err(), "{bad}");
        }
    }
}

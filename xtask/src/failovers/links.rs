//! The cutter of links between replicas, for `gabion bench failover --cut-command`.
//!
//! ```text
//!   A's packets to B     end at B           end at A
//!   new connections      to a port of B,    from a port of A,
//!                        from cgroup A      to cgroup B
//!   older connections    their two ports, as /proc/net/tcp has them with their owners
//! ```
//!
//! All replicas have the address 127.0.0.1, so a link is known by processes. A connection's one end
//! is a port that its replica listens on; the other end has any port, and its socket the cgroup
//! that its process was in when it was made. Each replica's process is put into a cgroup of its own
//! before a round. Connections from before that are looked up when the link is cut.

use super::disks;
use crate::steps::Step;
use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

pub(super) const CGROUPS: &str = "/sys/fs/cgroup";
/// The cgroup whose children are those of replicas, named by process.
pub(super) const OWN: &str = "gabion-links";
const TABLE: &str = "gabion_links";

/// Mounts cgroup v2 where nft looks for it, whatever the machine has there. Only this mount
/// namespace sees it.
pub(crate) fn mount_cgroups() -> Step {
    crate::cluster::run(Command::new("mount").args(["-t", "cgroup2", "none", CGROUPS]))
}

/// Removes the cgroups of replicas that have ended.
pub(crate) fn clear_cgroups() {
    let own = Path::new(CGROUPS).join(OWN);
    let replicas = std::fs::read_dir(&own).into_iter().flatten().flatten();
    // Those of processes that run stay, and with them their parent.
    for path in replicas.map(|entry| entry.path()).chain([own]) {
        let _ = std::fs::remove_dir(path);
    }
}

/// `prepare PID...`, `cut PID PORTS PID PORTS`, `hang PID DIRECTORY`, `heal`: see `gabion bench
/// failover --help`.
pub(crate) fn cut_link(words: &[&str]) -> Step {
    match words {
        ["prepare", pids @ ..] => pids.iter().try_for_each(|pid| enter_cgroup(pid)),
        ["cut", from, from_ports, to, to_ports] => {
            let (from_ports, to_ports) = (ports(from_ports)?, ports(to_ports)?);
            let older = connections((from, &from_ports), (to, &to_ports))?;
            nft(&rules((from, &from_ports), (to, &to_ports), &older))
        }
        ["hang", pid, directory] => disks::hang(pid, directory),
        // The table may not be there.
        ["heal"] => nft(&format!("add table inet {TABLE}\ndelete table inet {TABLE}\n"))
            .and_then(|()| disks::heal()),
        _ => Err(format!(
            "{words:?}: prepare PID..., cut PID PORTS PID PORTS, hang PID DIRECTORY, or heal"
        )),
    }
}

fn ports(text: &str) -> Result<Vec<u16>, String> {
    let port = |port: &str| port.parse().map_err(|_| format!("'{port}' of '{text}' is no port"));
    text.split(',').map(port).collect()
}

fn enter_cgroup(pid: &str) -> Step {
    let dir = PathBuf::from(CGROUPS).join(OWN).join(pid);
    let entered =
        std::fs::create_dir_all(&dir).and_then(|()| std::fs::write(dir.join("cgroup.procs"), pid));
    entered.map_err(|error| format!("process {pid} into {}: {error}", dir.display()))
}

/// A replica: its process, and the ports that others connect to.
type End<'a> = (&'a str, &'a [u16]);

/// The pairs of ports, source first, of packets from one replica to another on the connections that
/// they have.
fn connections(from: End<'_>, to: End<'_>) -> Result<Vec<(u16, u16)>, String> {
    let table = read(Path::new("/proc/net/tcp"))?;
    let (from_sockets, to_sockets) = (sockets(from.0)?, sockets(to.0)?);
    let mut pairs = Vec::new();
    for socket in table.lines().filter_map(socket) {
        // Each end is a line of the table, with the ports as it sees them.
        if from_sockets.contains(&socket.inode) && to.1.contains(&socket.other) {
            pairs.push((socket.own, socket.other));
        }
        if to_sockets.contains(&socket.inode) && from.1.contains(&socket.other) {
            pairs.push((socket.other, socket.own));
        }
    }
    Ok(pairs)
}

fn read(path: &Path) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

/// The inodes of a process's sockets.
fn sockets(pid: &str) -> Result<BTreeSet<u64>, String> {
    let dir = format!("/proc/{pid}/fd");
    let files = std::fs::read_dir(&dir).map_err(|error| format!("{dir}: {error}"))?;
    let inode = |link: PathBuf| {
        let text = link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned();
        text.parse().ok()
    };
    let links = files.flatten().filter_map(|file| std::fs::read_link(file.path()).ok());
    Ok(links.filter_map(inode).collect())
}

#[derive(Debug, PartialEq)]
struct Socket {
    own: u16,
    other: u16,
    inode: u64,
}

/// A line of /proc/net/tcp: number, own address and port, the other's, state, …, inode at place 9.
fn socket(line: &str) -> Option<Socket> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let port = |word: &str| u16::from_str_radix(word.split_once(':')?.1, 16).ok();
    Some(Socket {
        own: port(words.get(1)?)?,
        other: port(words.get(2)?)?,
        inode: words.get(9)?.parse().ok()?,
    })
}

/// Rules that drop what one replica sends to another. They are added to those that are there.
fn rules(from: End<'_>, to: End<'_>, older: &[(u16, u16)]) -> String {
    let list = |ports: &[u16]| ports.iter().map(u16::to_string).collect::<Vec<_>>().join(", ");
    let of = |end: End<'_>| format!("socket cgroupv2 level 2 \"{OWN}/{}\"", end.0);
    let older: Vec<String> = older.iter().map(|(own, other)| format!("{own} . {other}")).collect();
    let older = match older.is_empty() {
        true => String::new(),
        false => format!(
            "add rule inet {TABLE} in tcp sport . tcp dport {{ {} }} drop\n",
            older.join(", ")
        ),
    };
    format!(
        "add table inet {TABLE}\n\
         add chain inet {TABLE} out {{ type filter hook output priority 0; }}\n\
         add chain inet {TABLE} in {{ type filter hook input priority 0; }}\n\
         add rule inet {TABLE} out tcp dport {{ {} }} {} drop\n\
         add rule inet {TABLE} in tcp sport {{ {} }} {} drop\n\
         {older}",
        list(to.1),
        of(from),
        list(from.1),
        of(to),
    )
}

fn nft(rules: &str) -> Step {
    let failed = |error: std::io::Error| format!("nft: {error}");
    let mut nft = Command::new("nft");
    let nft = nft.args(["-f", "-"]).stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut child = nft.spawn().map_err(failed)?;
    let input = child.stdin.take();
    input.ok_or("nft: no input")?.write_all(rules.as_bytes()).map_err(failed)?;
    let output = child.wait_with_output().map_err(failed)?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!("nft: {}\n{rules}", String::from_utf8_lossy(&output.stderr))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn a_line_of_the_kernels_table_has_ports_and_inode() {
        let header = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt";
        assert_eq!(socket(header), None);
        let line = "   0: 0100007F:18EB 0100007F:A2C4 01 00000000:00000000 00:00000000 00000000 \
                    0        0 31337 1 0000000000000000 20 4 30 10 -1";
        assert_eq!(socket(line), Some(Socket { own: 6379, other: 41668, inode: 31337 }));
    }

    /// Both ends are sockets of this process here, so each direction is found from either side.
    #[test]
    fn connections_of_now_are_found_by_their_owners_with_the_source_first() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let listens = listener.local_addr().unwrap().port();
        let client = TcpStream::connect(("127.0.0.1", listens)).unwrap();
        let (_server, _) = listener.accept().unwrap();
        let port = client.local_addr().unwrap().port();
        let pid = std::process::id().to_string();
        let none: &[u16] = &[];
        let to_listener = connections((&pid, none), (&pid, &[listens])).unwrap();
        assert_eq!(to_listener, [(port, listens)]);
        let from_listener = connections((&pid, &[listens]), (&pid, none)).unwrap();
        assert_eq!(from_listener, [(listens, port)]);
    }

    #[test]
    fn rules_drop_one_direction_of_old_and_new_connections() {
        let text = rules(("7", &[50, 60]), ("8", &[51, 61]), &[(50, 40_000), (40_001, 61)]);
        for rule in [
            "out tcp dport { 51, 61 } socket cgroupv2 level 2 \"gabion-links/7\" drop",
            "in tcp sport { 50, 60 } socket cgroupv2 level 2 \"gabion-links/8\" drop",
            "in tcp sport . tcp dport { 50 . 40000, 40001 . 61 } drop",
        ] {
            assert!(text.contains(rule), "{rule}\nis not in\n{text}");
        }
        assert!(!rules(("7", &[50]), ("8", &[51]), &[]).contains("tcp sport . tcp dport"));
        assert!(cut_link(&["cut", "7", "50,x", "8", "51"]).unwrap_err().contains("'x' of '50,x'"));
        assert!(cut_link(&["cut", "7"]).unwrap_err().contains("prepare PID..."));
    }
}

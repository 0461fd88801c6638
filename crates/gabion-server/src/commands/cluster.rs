//! CLUSTER, READONLY, READWRITE and ASKING: the map of slots, as Redis Cluster tells it.
//!
//! A *node* of Redis's is a replica of one group, which takes clients at a door of its own. So each
//! node has one role, and answers commands about all keys for the slots of its group alone, as
//! cluster-aware clients rely on. Slots do not move.
//!
//! A client that uses TLS is told of doors with TLS, and of no node without one.

use super::absent::NO_CLUSTER;
use super::session::Client;
use super::slots::{SLOTS, Spread, slot_of};
use super::subcommands;
use super::table::Id;
use super::{Commands, Host};
use crate::spread::NodeDoors;
use bytes::Bytes;
use gabion_resp::Reply;
use std::net::SocketAddr;

/// A group, as clients of a cluster may see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupShown {
    /// Its id.
    pub group: u64,
    /// Its full members, the one that takes writes first.
    pub nodes: Vec<NodeShown>,
    /// The replica here, which may be none of them.
    pub here: Option<NodeShown>,
    /// The term of its writer.
    pub term: u64,
    /// Bytes of its log.
    pub log_position: u64,
}

/// A replica of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeShown {
    /// Its number in the group, which it shares with the replicas of other groups at its place.
    pub replica: u32,
    /// The addresses at which clients of a cluster reach it.
    pub doors: NodeDoors,
}

/// The other port of a node in Redis Cluster, which clients do not use.
const BUS_PORT_ABOVE: u32 = 10_000;

/// Groups in the order of their slots, and who is asked.
struct Map {
    spread: Spread,
    groups: Vec<GroupShown>,
    replica: u32,
    is_tls: bool,
}

/// A run of slots, and who is asked for them.
struct Run<'a> {
    first: u16,
    last: u16,
    group: &'a GroupShown,
    /// The first takes writes.
    nodes: Vec<(&'a NodeShown, SocketAddr)>,
}

/// A node's name: the same however often it starts.
fn node_id(group: u64, replica: u32) -> String {
    format!("{group:016x}{replica:024x}")
}

fn shard_id(group: u64) -> String {
    format!("{group:040x}")
}

fn text(text: String) -> Reply {
    Reply::Bulk(Bytes::from(text))
}

fn pair(name: &'static str, value: Reply) -> (Reply, Reply) {
    (Reply::bulk(name), value)
}

impl Commands {
    /// READONLY, READWRITE and ASKING: any node takes any command, so they change nothing.
    pub(crate) fn cluster_mode(&self) -> Reply {
        if self.spread.is_some() { Reply::OK } else { NO_CLUSTER }
    }

    /// The lines of INFO, and `mode` of HELLO.
    pub(crate) const fn is_cluster(&self) -> bool {
        self.spread.is_some()
    }

    pub(crate) fn cluster(&self, client: &Client, args: &[Bytes], host: &impl Host) -> Reply {
        let (Some(spread), Some((groups, replica))) = (self.spread, host.cluster()) else {
            return NO_CLUSTER;
        };
        let map = Map { spread, groups, replica, is_tls: client.is_tls.get() };
        match (&args[1].to_ascii_lowercase()[..], &args[2..]) {
            (b"slots", []) => map.slots(),
            (b"shards", []) => map.shards(),
            (b"nodes", []) => text(map.nodes()),
            (b"info", []) => text(map.info()),
            (b"myid", []) => text(node_id(map.own().group, replica)),
            (b"myshardid", []) => text(shard_id(map.own().group)),
            (b"keyslot", [key]) => Reply::Integer(i64::from(slot_of(key))),
            (b"links", []) => Reply::Array(Vec::new()),
            (b"help", []) => subcommands::help(Id::Cluster),
            (name, _) => Reply::error_from(format!(
                "ERR CLUSTER {} is not supported: slots and members are chosen when the data is \
                 made",
                String::from_utf8_lossy(name).to_ascii_uppercase()
            )),
        }
    }
}

impl Map {
    fn own(&self) -> &GroupShown {
        &self.groups[self.spread.own()]
    }

    /// Groups that have somebody to ask.
    fn runs(&self) -> impl Iterator<Item = Run<'_>> {
        let runs = self.groups.iter().enumerate().map(|(place, group)| {
            let slots = self.spread.slots_of(place);
            let door = |node: &'_ NodeShown| node.doors.door(self.is_tls);
            let nodes = group.nodes.iter().filter_map(|node| Some((node, door(node)?))).collect();
            Run { first: slots.start, last: slots.end - 1, group, nodes }
        });
        runs.filter(|run| !run.nodes.is_empty())
    }

    fn slots(&self) -> Reply {
        let node = |group: &GroupShown, node: &NodeShown, door: SocketAddr| {
            Reply::Array(vec![
                text(door.ip().to_string()),
                Reply::Integer(i64::from(door.port())),
                text(node_id(group.group, node.replica)),
                Reply::Array(Vec::new()),
            ])
        };
        let range = |Run { first, last, group, nodes }: Run<'_>| {
            let mut range = vec![Reply::Integer(first.into()), Reply::Integer(last.into())];
            range.extend(nodes.into_iter().map(|(it, door)| node(group, it, door)));
            Reply::Array(range)
        };
        Reply::Array(self.runs().map(range).collect())
    }

    fn shards(&self) -> Reply {
        let node = |group: &GroupShown, place: usize, node: &NodeShown, door: SocketAddr| {
            let ip = door.ip().to_string();
            let mut fields = vec![pair("id", text(node_id(group.group, node.replica)))];
            // One address has the ports of both doors, as in Redis.
            for (name, is_tls) in [("port", false), ("tls-port", true)] {
                if let Some(at) = node.doors.door(is_tls).filter(|at| at.ip() == door.ip()) {
                    fields.push(pair(name, Reply::Integer(i64::from(at.port()))));
                }
            }
            fields.extend([
                pair("ip", text(ip.clone())),
                pair("endpoint", text(ip)),
                pair("role", Reply::bulk(if place == 0 { "master" } else { "replica" })),
                pair("replication-offset", Reply::Integer(group.log_position as i64)),
                pair("health", Reply::bulk("online")),
            ]);
            Reply::Map(fields)
        };
        let shard = |Run { first, last, group, nodes }: Run<'_>| {
            let slots = vec![Reply::Integer(first.into()), Reply::Integer(last.into())];
            let nodes = nodes.into_iter().enumerate();
            let nodes = nodes.map(|(place, (it, door))| node(group, place, it, door)).collect();
            Reply::Map(vec![pair("slots", Reply::Array(slots)), pair("nodes", Reply::Array(nodes))])
        };
        Reply::Array(self.runs().map(shard).collect())
    }

    /// One line for each node, as in a file `nodes.conf` of Redis.
    fn nodes(&self) -> String {
        let mut lines = String::new();
        for Run { first, last, group, nodes } in self.runs() {
            let master = node_id(group.group, nodes[0].0.replica);
            let is_own = group.group == self.own().group;
            let is_here = |node: &NodeShown| is_own && node.replica == self.replica;
            // Clients look for the line of whom they have asked, also where it is no full member.
            let here = group.here.as_ref().filter(|here| {
                is_here(here) && !nodes.iter().any(|(node, _)| node.replica == here.replica)
            });
            let here = here.and_then(|here| Some((here, here.doors.door(self.is_tls)?)));
            for (place, (node, door)) in nodes.iter().copied().chain(here).enumerate() {
                let (ip, port) = (door.ip(), door.port());
                let me = if is_here(node) { "myself," } else { "" };
                let bus = u32::from(port) + BUS_PORT_ABOVE;
                let (role, of, slots) = match place {
                    0 => ("master", "-", format!(" {first}-{last}")),
                    _ => ("slave", &master[..], String::new()),
                };
                let id = node_id(group.group, node.replica);
                let term = group.term;
                lines.push_str(&format!(
                    "{id} {ip}:{port}@{bus} {me}{role} {of} 0 0 {term} connected{slots}\n"
                ));
            }
        }
        lines
    }

    fn info(&self) -> String {
        // Whether all is well depends on no client.
        let has_nodes = |place: &usize| !self.groups[*place].nodes.is_empty();
        let served = (0..self.groups.len()).filter(has_nodes);
        let assigned: u32 = served.map(|place| self.spread.slots_of(place).len() as u32).sum();
        let state = if assigned == u32::from(SLOTS) { "ok" } else { "fail" };
        let nodes: usize = self.groups.iter().map(|group| group.nodes.len()).sum();
        let epoch = self.groups.iter().map(|group| group.term).max().unwrap_or(0);
        let lines = [
            ("cluster_state", state.to_owned()),
            ("cluster_slots_assigned", SLOTS.to_string()),
            ("cluster_slots_ok", assigned.to_string()),
            ("cluster_slots_pfail", "0".to_owned()),
            ("cluster_slots_fail", (u32::from(SLOTS) - assigned).to_string()),
            ("cluster_known_nodes", nodes.to_string()),
            ("cluster_size", self.groups.len().to_string()),
            ("cluster_current_epoch", epoch.to_string()),
            ("cluster_my_epoch", self.own().term.to_string()),
        ];
        lines.map(|(name, value)| format!("{name}:{value}\r\n")).concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    fn map() -> Map {
        let at = |port: u16| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let node = |replica: u32, port: u16| NodeShown {
            replica,
            doors: NodeDoors { plain: at(port), tls: Some(at(port + 100)) },
        };
        let group = |group, nodes| GroupShown {
            group,
            nodes,
            here: None,
            term: group + 5,
            log_position: 9,
        };
        let groups = vec![
            group(1, vec![node(1, 71), node(2, 72)]),
            group(2, vec![node(2, 82), node(1, 81)]),
        ];
        Map { spread: Spread::new(2, 1).unwrap(), groups, replica: 1, is_tls: false }
    }

    fn encoded(reply: &Reply) -> String {
        let mut out = Vec::new();
        reply.encode(gabion_resp::Protocol::Resp2, &mut out);
        String::from_utf8(out).unwrap().replace("\r\n", " ")
    }

    #[test]
    fn the_map_names_who_takes_writes_first_and_each_node_has_one_role() {
        let (a, b) = (node_id(1, 1), node_id(2, 2));
        assert_eq!(a.len(), 40);
        let slots = encoded(&map().slots());
        let first = format!("*2 *4 :0 :8191 *4 $9 127.0.0.1 :71 $40 {a} *0 *4 $9 127.0.0.1 :72 ");
        assert!(slots.starts_with(&first), "{slots}");
        let second = format!("*4 :8192 :16383 *4 $9 127.0.0.1 :82 $40 {b} *0 ");
        assert!(slots.contains(&second), "{slots}");
        let nodes = map().nodes();
        let lines: Vec<&str> = nodes.lines().collect();
        assert_eq!(lines[0], format!("{a} 127.0.0.1:71@10071 master - 0 0 6 connected 0-8191"));
        let own = node_id(2, 1);
        let expected = format!("{own} 127.0.0.1:81@10081 myself,slave {b} 0 0 7 connected");
        assert_eq!(lines[3], expected);
        let shards = encoded(&map().shards());
        assert!(shards.starts_with("*2 *4 $5 slots *2 :0 :8191 $5 nodes *2 "), "{shards}");
        let ports = format!("$40 {a} $4 port :71 $8 tls-port :171 $2 ip $9 127.0.0.1 ");
        assert!(shards.contains(&ports), "{shards}");
    }

    #[test]
    fn a_node_that_is_no_full_member_has_a_line_of_its_own_and_no_slots() {
        let mut map = Map { replica: 3, ..map() };
        let plain = ([127, 0, 0, 1], 83).into();
        map.groups[1].here = Some(NodeShown { replica: 3, doors: NodeDoors { plain, tls: None } });
        let nodes = map.nodes();
        let (own, master) = (node_id(2, 3), node_id(2, 2));
        let line = format!("{own} 127.0.0.1:83@10083 myself,slave {master} 0 0 7 connected");
        assert_eq!(nodes.lines().last(), Some(&line[..]), "{nodes}");
        assert!(!encoded(&map.slots()).contains(":83"));
    }

    #[test]
    fn clients_that_use_tls_are_told_doors_with_tls_and_no_node_without_one() {
        let mut map = Map { is_tls: true, ..map() };
        let (a, b) = (node_id(1, 1), node_id(2, 1));
        // The writer of the second group has none, and one of the other's is at another address.
        map.groups[1].nodes[0].doors.tls = None;
        map.groups[0].nodes[1].doors.tls = Some(([10, 0, 0, 2], 172).into());
        let slots = encoded(&map.slots());
        let first = format!("*2 *4 :0 :8191 *4 $9 127.0.0.1 :171 $40 {a} *0 *4 $8 10.0.0.2 :172 ");
        assert!(slots.starts_with(&first), "{slots}");
        let second = format!("*3 :8192 :16383 *4 $9 127.0.0.1 :181 $40 {b} *0 ");
        assert!(slots.ends_with(&second), "{slots}");
        let nodes = map.nodes();
        let lines: Vec<&str> = nodes.lines().collect();
        assert_eq!(lines.len(), 3, "{nodes}");
        assert_eq!(lines[0], format!("{a} 127.0.0.1:171@10171 master - 0 0 6 connected 0-8191"));
        let own = "127.0.0.1:181@10181 myself,master - 0 0 7 connected 8192-16383";
        assert_eq!(lines[2], format!("{b} {own}"));
        let shards = encoded(&map.shards());
        let both = "$4 port :71 $8 tls-port :171 $2 ip $9 127.0.0.1 ";
        assert!(shards.contains(both), "{shards}");
        let elsewhere = format!("$40 {} $8 tls-port :172 $2 ip $8 10.0.0.2 ", node_id(1, 2));
        assert!(shards.contains(&elsewhere), "{shards}");
        assert!(!shards.contains(":82 "), "{shards}");
        map.groups[1].nodes[1].doors.tls = None;
        assert!(encoded(&map.slots()).starts_with("*1 *4 :0 :8191 "));
        assert!(map.info().starts_with("cluster_state:ok\r\n"), "it is the same for all clients");
    }

    #[test]
    fn a_group_with_nobody_to_ask_leaves_its_slots_without_an_owner() {
        let mut map = map();
        assert!(map.info().starts_with("cluster_state:ok\r\ncluster_slots_assigned:16384\r\n"));
        map.groups[0].nodes.clear();
        let info = map.info();
        assert!(info.starts_with("cluster_state:fail\r\n"), "{info}");
        assert!(info.contains("cluster_slots_fail:8192\r\n"), "{info}");
        assert!(encoded(&map.slots()).starts_with("*1 *4 :8192 :16383 "));
    }
}

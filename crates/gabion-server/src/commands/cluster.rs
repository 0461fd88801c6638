//! CLUSTER, READONLY, READWRITE and ASKING: the map of slots, as Redis Cluster tells it.
//!
//! A *node* of Redis's is a replica of one group, which takes clients at a door of its own. So each
//! node has one role, and answers commands about all keys for the slots of its group alone, as
//! cluster-aware clients rely on. Slots do not move.

use super::absent::NO_CLUSTER;
use super::slots::{SLOTS, Spread, slot_of};
use super::subcommands;
use super::table::Id;
use super::{Commands, Host};
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
    /// The address at which clients of a cluster reach it.
    pub address: SocketAddr,
}

/// The other port of a node in Redis Cluster, which clients do not use.
const BUS_PORT_ABOVE: u32 = 10_000;

/// Groups in the order of their slots, and who is asked.
struct Map {
    spread: Spread,
    groups: Vec<GroupShown>,
    replica: u32,
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

    pub(crate) fn cluster(&self, args: &[Bytes], host: &impl Host) -> Reply {
        let (Some(spread), Some((groups, replica))) = (self.spread, host.cluster()) else {
            return NO_CLUSTER;
        };
        let map = Map { spread, groups, replica };
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

    /// Groups that have somebody to ask, with their first and last slot.
    fn ranges(&self) -> impl Iterator<Item = (u16, u16, &GroupShown)> {
        let groups = self.groups.iter().enumerate().filter(|(_, group)| !group.nodes.is_empty());
        groups.map(|(place, group)| {
            let slots = self.spread.slots_of(place);
            (slots.start, slots.end - 1, group)
        })
    }

    fn slots(&self) -> Reply {
        let node = |group: &GroupShown, node: &NodeShown| {
            Reply::Array(vec![
                text(node.address.ip().to_string()),
                Reply::Integer(i64::from(node.address.port())),
                text(node_id(group.group, node.replica)),
                Reply::Array(Vec::new()),
            ])
        };
        let range = |(first, last, group): (u16, u16, &GroupShown)| {
            let mut range = vec![Reply::Integer(first.into()), Reply::Integer(last.into())];
            range.extend(group.nodes.iter().map(|it| node(group, it)));
            Reply::Array(range)
        };
        Reply::Array(self.ranges().map(range).collect())
    }

    fn shards(&self) -> Reply {
        let node = |group: &GroupShown, place: usize, node: &NodeShown| {
            let ip = node.address.ip().to_string();
            Reply::Map(vec![
                pair("id", text(node_id(group.group, node.replica))),
                pair("port", Reply::Integer(i64::from(node.address.port()))),
                pair("ip", text(ip.clone())),
                pair("endpoint", text(ip)),
                pair("role", Reply::bulk(if place == 0 { "master" } else { "replica" })),
                pair("replication-offset", Reply::Integer(group.log_position as i64)),
                pair("health", Reply::bulk("online")),
            ])
        };
        let shard = |(first, last, group): (u16, u16, &GroupShown)| {
            let slots = vec![Reply::Integer(first.into()), Reply::Integer(last.into())];
            let nodes = group.nodes.iter().enumerate();
            let nodes = nodes.map(|(place, it)| node(group, place, it)).collect();
            Reply::Map(vec![pair("slots", Reply::Array(slots)), pair("nodes", Reply::Array(nodes))])
        };
        Reply::Array(self.ranges().map(shard).collect())
    }

    /// One line for each node, as in a file `nodes.conf` of Redis.
    fn nodes(&self) -> String {
        let mut lines = String::new();
        for (first, last, group) in self.ranges() {
            let master = node_id(group.group, group.nodes[0].replica);
            for (place, node) in group.nodes.iter().enumerate() {
                let is_own = group.group == self.own().group && node.replica == self.replica;
                let (ip, port) = (node.address.ip(), node.address.port());
                let me = if is_own { "myself," } else { "" };
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
        let assigned: u32 = self.ranges().map(|(first, last, _)| u32::from(last - first) + 1).sum();
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
        let node = |replica: u32, port: u16| NodeShown {
            replica,
            address: (Ipv4Addr::LOCALHOST, port).into(),
        };
        let group = |group, nodes| GroupShown { group, nodes, term: group + 5, log_position: 9 };
        let groups = vec![
            group(1, vec![node(1, 71), node(2, 72)]),
            group(2, vec![node(2, 82), node(1, 81)]),
        ];
        Map { spread: Spread::new(2, 1).unwrap(), groups, replica: 1 }
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

//! Invariants of any run, checked from the outside: logs on disks and rings, the head's commit
//! mark, the tail's answers, and messages on the wire. Nothing here looks inside a chain.

use super::cluster::{Cluster, Node, describe};
use crate::{Frame, GroupView, Message};
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use gabion_base::{ReplicaId, Term};

/// Position → checksum and end.
type Records = BTreeMap<u64, (u32, u64)>;

#[derive(Default)]
pub(crate) struct Checkers {
    /// Records that a client may have been told of: acknowledged, or shown by a tail.
    pub(crate) promised: Records,
    /// Records that were acknowledged as durable.
    pub(crate) promised_durable: Records,
    /// Per life of a process.
    commit: BTreeMap<(u32, u64), u64>,
    terms: BTreeMap<u32, Term>,
    /// The highest end that each member acknowledged to another, per connection of the other and
    /// term.
    acks: BTreeMap<(u32, u32, u64, Term), u64>,
    /// The connection of one member on which another spoke last.
    latest: BTreeMap<(u32, u32), u64>,
    heard: usize,
    any_wiped: bool,
}

/// Whether a node is a full member of a view.
pub(crate) fn is_full(view: &GroupView, node: &Node) -> bool {
    view.has_full(ReplicaId(node.id))
}

impl Checkers {
    /// Called after every step.
    pub(crate) fn check(&mut self, cluster: &Cluster) -> Result<(), String> {
        self.listen(cluster);
        for node in &cluster.nodes {
            self.check_terms(node)?;
            let Some(chain) = &node.chain else { continue };
            let commit = chain.commit().only().get();
            let (is_head, is_tail) = (node.view.writer(), node.view.reader());
            let (is_head, is_tail) = (is_head.get() == node.id, is_tail.get() == node.id);
            let before = self.commit.insert((node.id, node.session), commit).unwrap_or(0);
            if commit < before {
                return Err(format!("commit fell from {before} to {commit} at {}", node.id));
            }
            if is_head && commit > before {
                self.check_acks(cluster, node.id, chain.term(), before, commit)?;
                self.promise(cluster, node, commit)?;
            }
            if is_head {
                let durable = chain.durable_commit().only().get();
                let known = node.records.values().filter(|r| r.end() <= durable);
                self.promised_durable.extend(known.map(|r| (r.position, (r.crc(), r.end()))));
            }
            if chain.is_readable() && chain.holds_lease() && is_tail {
                self.check_shown(node)?;
            }
        }
        Ok(())
    }

    /// Terms that a replica made durable never fall.
    fn check_terms(&mut self, node: &Node) -> Result<(), String> {
        let known = self.terms.entry(node.id).or_default();
        if node.term < *known {
            return Err(format!("term of {} fell from {known} to {}", node.id, node.term));
        }
        *known = node.term;
        Ok(())
    }

    fn listen(&mut self, cluster: &Cluster) {
        for (to, connection, frame) in &cluster.heard[self.heard..] {
            let from = frame.from.get();
            let latest = self.latest.entry((*to, from)).or_default();
            *latest = (*latest).max(*connection);
            if let Frame {
                message: Message::Ack(p, _) | Message::TermAccepted { progress: p, .. },
                ..
            } = frame
            {
                let acked = self.acks.entry((*to, from, *connection, frame.term)).or_default();
                *acked = (*acked).max(p.end.only().get());
            }
        }
        self.heard = cluster.heard.len();
    }

    /// The head's commit mark covers only what each member acknowledged in this term, on its
    /// current connection.
    fn check_acks(
        &self,
        cluster: &Cluster,
        head: u32,
        term: Term,
        before: u64,
        commit: u64,
    ) -> Result<(), String> {
        let view = &cluster.nodes[head as usize - 1].view;
        for node in cluster.nodes.iter().filter(|node| node.id != head && is_full(view, node)) {
            let connection = self.latest.get(&(head, node.id)).copied().unwrap_or(0);
            let acked = self.acks.get(&(head, node.id, connection, term)).copied().unwrap_or(0);
            if acked < commit {
                return Err(format!(
                    "commit rose from {before} to {commit}, {} acknowledged {acked} in {term}",
                    node.id
                ));
            }
        }
        Ok(())
    }

    /// Committed records were in every member's log, and are the same everywhere.
    fn promise(&mut self, cluster: &Cluster, head: &Node, commit: u64) -> Result<(), String> {
        for record in head.records.values().filter(|r| r.end() <= commit) {
            let key = (record.position, record.crc());
            let lacks = |n: &&Node| {
                let has_had = n.ever_held.contains(&key) || n.oldest > record.position;
                is_full(&head.view, n) && !has_had
            };
            if let Some(node) = cluster.nodes.iter().find(lacks) {
                return Err(format!("{} is committed, {} never had it", describe(record), node.id));
            }
            self.promised.insert(record.position, (record.crc(), record.end()));
        }
        Ok(())
    }

    /// A tail that answers reads has everything that was acknowledged; it may show all that it has.
    fn check_shown(&mut self, node: &Node) -> Result<(), String> {
        for (&position, &(crc, _)) in self.promised.range(node.oldest..) {
            if node.records.get(&position).map(|r| r.crc()) != Some(crc) {
                return Err(format!("the tail answers reads without the record at {position}"));
            }
        }
        let shown = node.records.values().map(|r| (r.position, (r.crc(), r.end())));
        self.promised.extend(shown);
        Ok(())
    }

    /// Prefix property: a log that goes beyond a promised record has that record, at each member
    /// that is known to have everything. Costs a pass over all logs.
    pub(crate) fn check_prefixes(&self, cluster: &Cluster, counted: &[u32]) -> Result<(), String> {
        for node in cluster.nodes.iter().filter(|node| counted.contains(&node.id)) {
            let end = node.end();
            for (&position, &(crc, record_end)) in self.promised.range(node.oldest..end) {
                match node.records.get(&position) {
                    Some(r) if r.crc() == crc => {}
                    Some(r) => {
                        return Err(format!(
                            "{} holds {}, promised was another",
                            node.id,
                            describe(r)
                        ));
                    }
                    None if record_end <= end => {
                        return Err(format!("{} has a hole at {position}", node.id));
                    }
                    None => {}
                }
            }
        }
        Ok(())
    }

    /// At the end, with everyone in place: every log is the same and holds everything promised.
    pub(crate) fn check_whole(&self, cluster: &Cluster) -> Result<(), String> {
        let oldest = cluster.nodes.iter().map(|n| n.oldest).max().unwrap_or(0);
        let log =
            |n: &Node| -> Vec<_> { n.records.range(oldest..).map(|(_, r)| r.clone()).collect() };
        let head = log(&cluster.nodes[0]);
        for node in &cluster.nodes {
            if log(node) != head {
                return Err(format!("the log of {} is not the head's", node.id));
            }
            for (&position, &(crc, _)) in self.promised.range(oldest..) {
                if node.records.get(&position).map(|r| r.crc()) != Some(crc) {
                    return Err(format!("{} lost the promised record at {position}", node.id));
                }
            }
        }
        Ok(())
    }

    /// Whether one of these members holds everything promised, so that others may lose their rings.
    pub(crate) fn has_ring(&self, cluster: &Cluster, ids: &[u32]) -> bool {
        let holds = |node: &&Node| {
            ids.contains(&node.id)
                && self.promised.range(node.oldest..).all(|(position, (crc, _))| {
                    node.records.get(position).is_some_and(|r| r.crc() == *crc)
                })
        };
        cluster.nodes.iter().any(|n| holds(&n))
    }

    /// Whether one of these members holds on disk everything promised as durable, and in its log
    /// everything promised, so that others may lose their disks too.
    pub(crate) fn has_disk(&self, cluster: &Cluster, ids: &[u32]) -> bool {
        let on_disk = |node: &Node| {
            self.promised_durable.iter().all(|(position, (crc, end))| {
                let is_here = node.records.get(position).is_some_and(|r| r.crc() == *crc);
                *end <= node.oldest || (is_here && *end <= node.durable)
            })
        };
        let holds = |node: &Node| {
            self.promised.range(node.oldest..).all(|(position, (crc, _))| {
                node.records.get(position).is_some_and(|r| r.crc() == *crc)
            })
        };
        cluster.nodes.iter().any(|n| ids.contains(&n.id) && on_disk(n) && holds(n))
    }

    /// Every member loses power at once. Only records acknowledged as durable, on a disk that was
    /// not replaced since, must be there after.
    pub(crate) fn forget_volatile(&mut self, cluster: &Cluster) {
        let is_on_disk = |position: &u64, (crc, end): &(u32, u64)| {
            cluster.nodes.iter().any(|n| {
                let is_here = n.records.get(position).is_some_and(|r| r.crc() == *crc);
                n.oldest >= *end || (is_here && *end <= n.durable)
            })
        };
        let any_wiped = self.any_wiped;
        self.promised_durable.retain(|p, r| !any_wiped || is_on_disk(p, r));
        self.promised = self.promised_durable.clone();
    }

    /// The node's disk is new: it knows no term.
    pub(crate) fn forget_terms(&mut self, id: u32) {
        self.terms.remove(&id);
        self.any_wiped = true;
    }

    /// The node has the state of another.
    pub(crate) fn forget_copied(&mut self, id: u32) {
        self.terms.remove(&id);
    }
}

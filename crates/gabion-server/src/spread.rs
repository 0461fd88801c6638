//! Keys spread over several groups, whose replicas at this node share one process.
//!
//! ```text
//!   client ─► door's service ─► slots of the work ─┬─► own group: begun here
//!                 ▲                                └─► exchange ─► service of the other group:
//!                 └──────── replies ◄── exchange ◄──────────────── a client within ─► begun there
//! ```
//!
//! A service does for another what it does for a client: a *client within* stands for a connection
//! at another service's door, and has its order, its positions in the log and its retries. Its
//! replies go back one by one once they may be shown. What a connection does in different groups
//! is not ordered beyond the order of its replies.
//!
//! The backlog of a group is limited: above [`BACKLOG_MAX`] connections of other services that have
//! more for it are held back, until half is gone. Replies and the ends of connections are never
//! held back, so a group that stands stops nobody but those who want something of it.
//!
//! There are two kinds of doors. The *common* one, of the first group's service, takes any command
//! and answers for all groups. The *group's* own one behaves as a node of Redis Cluster: commands
//! about all keys are answered for its group, and keys of others are answered with MOVED. Either
//! kind may have a second door where all is encrypted, and clients are told of doors like theirs.

use crate::client::{Client, HeldWork, Kind};
use crate::commands::gather::{self, Gather, Spreading};
use crate::commands::slots::Slots;
use crate::commands::{GroupShown, NodeShown, Route, Spread, Work, errors};
use crate::run::WAIT_MAX_MS;
use crate::service::Service;
use crate::stream::ClientEnd;
use gabion_base::{Error, Frontier, ReplicaId};
use gabion_replication::Member;
use gabion_resp::{Protocol, Reply};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::fmt::{self, Display, Formatter};
use std::net::SocketAddr;
use std::rc::Rc;
use std::str::FromStr;

/// Between the two doors of a node, as text.
const TLS_DOOR: &str = ",tls:";

/// The doors of a replica as a node of a cluster. As text: `1.2.3.4:7000`, or
/// `1.2.3.4:7000,tls:1.2.3.4:7100`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeDoors {
    /// The door without TLS.
    pub plain: SocketAddr,
    /// The door with TLS, if there is one.
    pub tls: Option<SocketAddr>,
}

impl NodeDoors {
    /// The door for clients that use TLS, or for those that do not.
    pub(crate) const fn door(self, is_tls: bool) -> Option<SocketAddr> {
        if is_tls { self.tls } else { Some(self.plain) }
    }
}

impl Display for NodeDoors {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.tls {
            Some(tls) => write!(f, "{}{TLS_DOOR}{tls}", self.plain),
            None => self.plain.fmt(f),
        }
    }
}

impl FromStr for NodeDoors {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let parse = |door: &str| {
            door.parse::<SocketAddr>().map_err(|_| {
                Error::invalid(format!("doors {text:?}: {door:?} is no IP address with a port"))
            })
        };
        match text.split_once(TLS_DOOR) {
            Some((plain, tls)) => Ok(Self { plain: parse(plain)?, tls: Some(parse(tls)?) }),
            None => Ok(Self { plain: parse(text)?, tls: None }),
        }
    }
}

/// The place of a replica's group among several, and its nodes' doors for clients of clusters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpreadConfig {
    /// The slots of the group. The replica must be the process's of that number.
    pub spread: Spread,
    /// Addresses at which the doors of this replica's group listen. A door with TLS takes the
    /// certificates of [`crate::SecurityConfig::tls`].
    pub listen: NodeDoors,
    /// The same, as clients are told.
    pub doors: NodeDoors,
    /// Those of the group's other replicas, as far as the settings know them. The view that runs
    /// comes before.
    pub others: BTreeMap<ReplicaId, NodeDoors>,
}

impl SpreadConfig {
    fn doors_of(&self, member: &Member, me: ReplicaId) -> Option<NodeDoors> {
        if member.replica == me {
            return Some(self.doors);
        }
        let told = member.addresses.clients.parse().ok();
        told.or_else(|| self.others.get(&member.replica).copied())
    }

    /// Checks that the doors are those of a group at this place.
    ///
    /// # Errors
    /// Invalid input, with the doors.
    pub(crate) fn check(&self, resp: SocketAddr, tls: Option<SocketAddr>) -> Result<(), Error> {
        let group = self.spread.own() + 1;
        if let (Some(door), None) = (self.listen.tls, tls) {
            return Err(Error::invalid(format!(
                "group {group} of the cluster is to listen on {door} for clients that use TLS, and \
                 the process has no certificate for them"
            )));
        }
        // The first group has the common doors besides.
        let is_first = self.spread.own() == 0;
        let is_same = self.listen.plain == resp && (tls.is_none() || self.listen.tls == tls);
        if is_first || is_same {
            return Ok(());
        }
        let doors = NodeDoors { plain: resp, tls };
        Err(Error::invalid(format!(
            "group {group} of the cluster has but its own doors, {}, and its replica's are to be \
             {doors}",
            self.listen
        )))
    }
}

/// Bytes that wait for a group above which nothing more is handed to it.
const BACKLOG_MAX: usize = 32 << 20;

/// The bytes that were handed to a service: those of works that have not begun there, and of
/// replies that were not taken.
#[derive(Default)]
struct Backlog {
    bytes: Cell<usize>,
    /// More were there than may be, and more than half of that still are.
    is_full: Cell<bool>,
}

impl Backlog {
    fn count(self: &Rc<Self>, bytes: usize) -> Load {
        let bytes = bytes + size_of::<Handed>();
        self.bytes.set(self.bytes.get() + bytes);
        self.is_full.set(self.is_full.get() || self.bytes.get() > BACKLOG_MAX);
        Load { backlog: self.clone(), bytes }
    }
}

/// A part of a backlog, until it is dropped.
struct Load {
    backlog: Rc<Backlog>,
    bytes: usize,
}

impl Drop for Load {
    fn drop(&mut self) {
        let Backlog { bytes, is_full } = &*self.backlog;
        assert!(self.bytes <= bytes.get(), "{} bytes of {} go", self.bytes, bytes.get());
        bytes.set(bytes.get() - self.bytes);
        is_full.set(is_full.get() && bytes.get() > BACKLOG_MAX / 2);
    }
}

/// Works and replies that services of a process hand to each other.
#[derive(Default)]
pub(crate) struct Exchange {
    /// For each service, by its place.
    queues: Vec<RefCell<VecDeque<Handed>>>,
    /// Bytes that wait for each service.
    backlogs: Vec<Rc<Backlog>>,
    /// Each service's knowledge of its own group.
    shown: RefCell<Vec<Option<GroupShown>>>,
    /// For choices by chance.
    chance: Cell<u64>,
}

/// A connection at a door of another service: its service, place and serial.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Far {
    service: usize,
    token: usize,
    serial: u64,
}

/// A work or a reply that one service hands to another.
enum Handed {
    /// A connection's work, and the place of its reply.
    Work { of: Far, slot: u64, work: Work, protocol: Protocol, load: Load },
    /// The reply.
    Reply { token: usize, serial: u64, slot: u64, reply: Reply, is_in_doubt: bool, _load: Load },
    /// The connection is gone.
    Gone { of: Far },
}

/// The client of another service that a client within stands for.
pub(crate) struct Within {
    of: Far,
    /// Works that have not begun.
    waiting: VecDeque<(u64, Work, Protocol, Load)>,
    /// Of the work that is held back.
    held: Option<Load>,
    /// The places of replies at the door, of all that has begun and the one that is held back.
    slots: VecDeque<u64>,
}

impl Within {
    /// The work that was held back has begun.
    pub(crate) fn end_hold(&mut self) {
        self.held = None;
    }
}

impl Exchange {
    /// Between so many services.
    pub(crate) fn new(services: usize, chance: u64) -> Rc<Self> {
        Rc::new(Self {
            queues: (0..services).map(|_| RefCell::default()).collect(),
            backlogs: (0..services).map(|_| Rc::default()).collect(),
            shown: RefCell::new(vec![None; services]),
            chance: Cell::new(chance),
        })
    }

    /// Whether keys are spread over several groups.
    pub(crate) fn is_of_several(&self) -> bool {
        !self.queues.is_empty()
    }

    /// Whether anything waits for a service.
    #[inline]
    pub(crate) fn has_for(&self, service: usize) -> bool {
        self.queues.get(service).is_some_and(|queue| !queue.borrow().is_empty())
    }

    /// Those of some services, by their bits, for which too much waits.
    fn full(&self, services: u32) -> u32 {
        let backlogs = self.backlogs.iter().enumerate();
        let full = backlogs.filter(|(_, backlog)| backlog.is_full.get());
        full.fold(0, |full, (place, _)| full | 1 << place) & services
    }

    /// Whether one of these services was full and is no longer.
    #[inline]
    pub(crate) fn has_room_again(&self, services: u32) -> bool {
        services != 0 && self.full(services) != services
    }

    fn load(&self, service: usize, bytes: usize) -> Load {
        self.backlogs[service].count(bytes)
    }

    fn hand(&self, service: usize, handed: Handed) {
        self.queues[service].borrow_mut().push_back(handed);
    }

    fn take(&self, service: usize) -> VecDeque<Handed> {
        self.queues.get(service).map(RefCell::take).unwrap_or_default()
    }

    fn next_chance(&self) -> u64 {
        // The steps of a generator of Knuth's; its high bits are the better ones.
        let next = self.chance.get().wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        self.chance.set(next);
        next >> 33
    }

    /// The groups, as far as they are known.
    pub(crate) fn groups(&self) -> Vec<GroupShown> {
        let unknown =
            || GroupShown { group: 0, nodes: Vec::new(), here: None, term: 0, log_position: 0 };
        self.shown.borrow().iter().map(|group| group.clone().unwrap_or_else(unknown)).collect()
    }

    /// The door of the node that the map names first of a group.
    fn writer_of(&self, group: usize, is_tls: bool) -> Option<SocketAddr> {
        let shown = self.shown.borrow();
        shown.get(group)?.as_ref()?.nodes.iter().find_map(|node| node.doors.door(is_tls))
    }

    /// The fewest full replicas of these groups.
    fn replicas_min(&self, groups: impl Fn(usize) -> bool) -> Option<usize> {
        let shown = self.shown.borrow();
        let asked = shown.iter().enumerate().filter(|(place, _)| groups(*place));
        asked.map(|(_, group)| group.as_ref().map_or(1, |group| group.nodes.len())).min()
    }
}

/// The way of a client's work.
enum Way {
    /// To the door's own group; others answer as well where there is a gathering.
    Here(Work, Option<Gather>),
    There(usize, Work, Option<Gather>),
    Refused(Work, Reply),
}

impl Service {
    /// Begins a work of a connection at a door, in the group that has its keys, or in all.
    pub(crate) fn offer_spread(
        &mut self,
        token: usize,
        client: &mut Client,
        work: Work,
        protocol: Protocol,
        spread: Spread,
    ) {
        let (work, gather, group) = match self.way_of(client, work, spread) {
            Way::Here(work, gather) => (work, gather, None),
            Way::There(group, work, gather) => (work, gather, Some(group)),
            Way::Refused(work, reply) => {
                let slot = client.reserve(protocol, Kind::of(&work), false, 0);
                client.fill(slot, reply, 0);
                return self.mark(token, client);
            }
        };
        self.offer_held(token, client, HeldWork { work, protocol, gather, group });
    }

    /// Begins a work that goes here or to another group, or holds it back while too much waits
    /// where it goes.
    pub(crate) fn offer_held(&mut self, token: usize, client: &mut Client, held: HeldWork) {
        let full = self.exchange.full(self.targets_of(&held));
        if full != 0 {
            self.awaited |= full;
            return self.hold(token, client, held);
        }
        let HeldWork { work, protocol, gather, group } = held;
        let Some(group) = group else {
            return self.offer_here(token, client, work, protocol, gather);
        };
        let may_be_long = work.route() != Route::Write;
        let slot = client.reserve(protocol, Kind::of(&work), may_be_long, work.memory());
        let inner = if gather.is_some() { gather::PARTS_IN } else { protocol };
        if let Some(gather) = gather {
            client.gather(slot, gather);
        }
        self.hand_work(token, client, group, slot, work, inner);
    }

    /// The other groups to which a work goes, by their bits.
    fn targets_of(&self, held: &HeldWork) -> u32 {
        match (held.group, &held.gather) {
            (Some(group), _) => 1 << group,
            (None, Some(gather)) if gather.is_of_all() => !(1 << self.place),
            _ => 0,
        }
    }

    fn way_of(&self, client: &Client, work: Work, spread: Spread) -> Way {
        match Slots::of(&work) {
            Slots::None => Way::Here(work, None),
            Slots::Several => Way::Refused(work, errors::CROSS_SLOT),
            Slots::All if client.session.is_of_group() => Way::Here(work, None),
            Slots::All => match gather::spread(work.clone(), spread, self.exchange.next_chance()) {
                Spreading::Every(work, gather) => Way::Here(work, Some(gather)),
                Spreading::Step(group, work, gather) if group == spread.own() => {
                    Way::Here(work, Some(gather))
                }
                Spreading::Step(group, work, gather) => Way::There(group, work, Some(gather)),
                Spreading::Refused(error) => Way::Refused(work, error),
            },
            Slots::One(slot) => {
                let group = spread.group_of(slot);
                if group == spread.own() {
                    return Way::Here(work, None);
                }
                let is_tls = client.session.is_tls();
                match self
                    .exchange
                    .writer_of(group, is_tls)
                    .filter(|_| client.session.is_of_group())
                {
                    Some(at) => Way::Refused(work, Reply::error_from(format!("MOVED {slot} {at}"))),
                    None => Way::There(group, work, None),
                }
            }
        }
    }

    /// Has all other groups answer, too, where replies are gathered at a place.
    pub(crate) fn hand_to_others(
        &self,
        token: usize,
        client: &mut Client,
        slot: u64,
        work: &Work,
        mut gather: Gather,
    ) {
        let Some(spread) = self.spread() else { return };
        let others = (0..spread.groups()).filter(|group| *group != spread.own());
        if gather.is_of_all() {
            gather.expect(spread.groups() - 1);
            for group in others {
                self.hand_work(token, client, group, slot, work.clone(), gather::PARTS_IN);
            }
        }
        client.gather(slot, gather);
    }

    fn hand_work(
        &self,
        token: usize,
        client: &mut Client,
        group: usize,
        slot: u64,
        work: Work,
        protocol: Protocol,
    ) {
        client.groups |= 1 << group;
        let of = Far { service: self.place, token, serial: client.serial };
        let load = self.exchange.load(group, work.memory());
        self.exchange.hand(group, Handed::Work { of, slot, work, protocol, load });
    }

    /// A connection that had work done elsewhere is gone.
    pub(crate) fn tell_gone(&self, token: usize, client: &Client) {
        let of = Far { service: self.place, token, serial: client.serial };
        for group in (0..u32::BITS as usize).filter(|group| client.groups >> group & 1 == 1) {
            self.exchange.hand(group, Handed::Gone { of });
        }
    }

    /// The slots of this group, where there are several.
    #[inline]
    pub(crate) fn spread(&self) -> Option<Spread> {
        self.spread.as_ref().map(|config| config.spread)
    }

    /// Takes what other services have handed over.
    pub(crate) fn take_handed(&mut self) {
        if !self.exchange.has_for(self.place) {
            return;
        }
        let mut to_begin = Vec::new();
        let handed = self.exchange.take(self.place);
        // The process may have been stopped since this service's last tick.
        if handed.iter().any(|handed| matches!(handed, Handed::Work { .. })) {
            self.pass_lease_time();
        }
        for handed in handed {
            match handed {
                Handed::Work { of, slot, work, protocol, load } => {
                    let token = self.client_within(of);
                    let client = self.clients[token].as_mut();
                    if let Some(within) = client.and_then(|client| client.within.as_mut()) {
                        within.waiting.push_back((slot, work, protocol, load));
                        to_begin.push(token);
                    }
                }
                Handed::Reply { token, serial, slot, reply, is_in_doubt, _load } => {
                    if let Some(Some(client)) = self.clients.get_mut(token)
                        && client.serial == serial
                    {
                        client.take_handed(slot, reply, is_in_doubt);
                        self.list_client(token);
                    }
                }
                Handed::Gone { of } => {
                    if let Some(token) = self.within.remove(&of) {
                        self.clients[token] = None;
                        self.free_clients.push(token);
                    }
                }
            }
        }
        // One that is gone by now has nothing waiting.
        to_begin.into_iter().for_each(|token| self.serve_client(token));
    }

    /// The client within that stands for a connection; made where there is none.
    fn client_within(&mut self, of: Far) -> usize {
        if let Some(token) = self.within.get(&of) {
            return *token;
        }
        let session = self.commands.connect_within(&self.host);
        let serial = session.id();
        // Its door counts what it holds.
        let mut client = Client::new(ClientEnd::Within, session, serial, &Default::default());
        let (waiting, slots) = (VecDeque::new(), VecDeque::new());
        let within = Within { of, waiting, held: None, slots };
        (client.within, client.can_read) = (Some(Box::new(within)), false);
        let token = self.free_clients.pop().unwrap_or_else(|| {
            self.clients.push(None);
            self.clients.len() - 1
        });
        self.clients[token] = Some(Box::new(client));
        self.within.insert(of, token);
        token
    }

    /// Begins what a client within has waiting, as far as that is possible now.
    pub(crate) fn serve_within(&mut self, token: usize, client: &mut Client) {
        self.commands.begin_batch(&self.host);
        while client.held.is_none() {
            let Some(within) = &mut client.within else { return };
            let Some((slot, work, protocol, load)) = within.waiting.pop_front() else { return };
            within.slots.push_back(slot);
            self.offer_here(token, client, work, protocol, None);
            if let Some(within) = client.within.as_mut().filter(|_| client.held.is_some()) {
                within.held = Some(load);
            }
        }
    }

    /// Hands the replies of a client within, which may be shown, to the door.
    pub(crate) fn hand_back(&self, client: &mut Client) {
        let acknowledged = self.replica.turns.acknowledged;
        while let Some((reply, is_in_doubt)) = client.pop_shown(acknowledged) {
            let Some(within) = &mut client.within else { return };
            let Some(slot) = within.slots.pop_front() else { return };
            let Far { service, token, serial } = within.of;
            let _load = self.exchange.load(service, reply.memory());
            let handed = Handed::Reply { token, serial, slot, reply, is_in_doubt, _load };
            self.exchange.hand(service, handed);
        }
    }

    /// Sends on what others have handed over since this service's turn.
    pub(crate) fn pass_on(&mut self) {
        if self.is_open() && self.exchange.has_for(self.place) {
            self.take_handed();
            self.flush_clients();
        }
    }

    /// Tells the other services who is in the group.
    pub(crate) fn show_group(&self) {
        let Some(config) = &self.spread else { return };
        let node = self.replica.node.borrow();
        let writer = node.view().writer();
        let shown = |member: &Member| {
            let doors = config.doors_of(member, self.me)?;
            Some(NodeShown { replica: member.replica.get(), doors })
        };
        let view = node.view().group();
        let first = view.members.iter().filter(|member| member.replica == writer);
        let others = view.full().filter(|member| member.replica != writer);
        let shown = GroupShown {
            group: self.group.get(),
            nodes: first.chain(others).filter_map(shown).collect(),
            here: Some(NodeShown { replica: self.me.get(), doors: config.doors }),
            term: node.protocol().term().get(),
            log_position: node.log_end().bytes_since(&Frontier::ZERO),
        };
        if let Some(place) = self.exchange.shown.borrow_mut().get_mut(config.spread.own()) {
            *place = Some(shown);
        }
    }

    /// The reply to a WAIT of a connection that may have written to other groups: the fewest of
    /// all that it has asked.
    pub(crate) fn wait_over_groups(&self, client: &Client, reply: Reply) -> Reply {
        let others = client.groups;
        if others == 0 {
            return reply;
        }
        let full = self.exchange.replicas_min(|group| others >> group & 1 == 1).unwrap_or(1);
        let most = full.saturating_sub(1) as i64;
        match reply {
            Reply::Integer(own) => Reply::Integer(own.min(most)),
            Reply::Array(counts) if counts.len() == 2 => {
                let mut counts = counts.into_iter();
                let first = counts.next().unwrap_or(Reply::Integer(0));
                match counts.next() {
                    Some(Reply::Integer(own)) => {
                        Reply::Array(vec![first, Reply::Integer(own.min(most))])
                    }
                    _ => Reply::Array(vec![first, Reply::Integer(0)]),
                }
            }
            other => other,
        }
    }
}

/// The error of a WAIT for more replicas than there are, of a connection that has had work done in
/// other groups.
pub(crate) const CANNOT_WAIT: Reply = Reply::error(
    "ERR this connection has asked several groups: more replicas than there are cannot be waited \
     for, nor their devices; ask at the door of the group",
);

#[cfg(test)]
mod tests;

const _: () = assert!(crate::commands::slots::GROUPS_MAX <= u32::BITS, "a bit for each group");
const _: () = assert!(WAIT_MAX_MS > 0, "a work that is handed over waits as any other");

//! The view of a group: term, configuration, and the members in order. It is the same at every
//! member, stands in each member's placement log, and is the payload of a term's first record.
//!
//! ```text
//!   0 u16 version, 1   2 u8 kind of log   3 u8 least members   4 u32 zero
//!   8 u64 group   16 u64 config   24 u64 term
//!  32 u16 founders, u32 replica each
//!     u16 members, in order, each:
//!       u32 replica | u32 flags | u64 node | u64 incarnation | 16 bytes pool id
//!         flags: bit 0: full, bit 1: kept
//!       4 addresses (members, clients, NVMe, memory): varint length and UTF-8, empty if unknown
//! ```
//!
//! Two numbers order views. `config` counts memberships, and `term` counts tenures of a writer.
//! A replica takes a view with a greater `config` and never goes back; a term is adopted with the
//! log of its writer.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use gabion_base::codec::{Put, Reader};
use gabion_base::{ConfigNumber, Error, GroupId, LogKind, ReplicaId, Result, TERM_MAX, Term};

const VERSION: u16 = 1;
const FLAG_FULL: u32 = 1;
const FLAG_KEPT: u32 = 2;
/// Bytes of a member without its addresses.
const MEMBER_LEN_MIN: usize = 4 + 4 + 8 + 8 + 16 + 4;

/// A member's addresses: IP address and port as text. Each process uses the address from its own
/// settings where the text is empty or no IP address: names are not resolved.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Addresses {
    /// For the protocol of the group.
    pub members: String,
    /// For clients: the door without TLS, then `,tls:` and the one with it, where there is one.
    pub clients: String,
    /// For files: its NVMe/TCP target, whose port each grant says anew.
    pub nvme: String,
    /// For one-sided writes to its memory. No process reads it yet.
    pub memory: String,
}

impl Addresses {
    /// Longest address in bytes: what a name and a port would take.
    pub const LEN_MAX: usize = 255 + 6;

    fn each(&self) -> [&String; 4] {
        [&self.members, &self.clients, &self.nvme, &self.memory]
    }

    fn decode(reader: &mut Reader<'_>) -> Result<Self> {
        let mut next = || match core::str::from_utf8(reader.prefixed(Self::LEN_MAX)?) {
            Ok(text) => Ok(text.to_string()),
            Err(_) => Err(Error::corruption("view: an address is not UTF-8")),
        };
        Ok(Self { members: next()?, clients: next()?, nvme: next()?, memory: next()? })
    }
}

/// A member of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its number.
    pub replica: ReplicaId,
    /// Whether it has all that the group has. A member that is not full is being filled, and only
    /// receives.
    pub is_full: bool,
    /// It is out, and has everything that was acknowledged: the group goes on with it. Not full,
    /// and not filled either: it keeps what it has. A view with such a member has a survivor answer
    /// reads and does nothing else ([`GroupView::waits`]).
    pub is_kept: bool,
    /// The machine or process that it runs on; 0 where no registry of these exists.
    pub node: u64,
    /// Its durable counter of starts when the view was made; 0 if unknown.
    pub incarnation: u64,
    /// Its pool; zeros if unknown.
    pub pool_id: [u8; 16],
    /// Its addresses.
    pub addresses: Addresses,
}

impl Member {
    /// A full member with nothing else known.
    #[must_use]
    pub fn new(replica: ReplicaId) -> Self {
        Self {
            replica,
            is_full: true,
            is_kept: false,
            node: 0,
            incarnation: 0,
            pool_id: [0; 16],
            addresses: Addresses::default(),
        }
    }
}

/// The agreement of a group's members at one time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupView {
    /// The group.
    pub group: GroupId,
    /// Tenure of the writer; zero before the first.
    pub term: Term,
    /// The number of this membership.
    pub config: ConfigNumber,
    /// The readers of the group's log.
    pub log: LogKind,
    /// Fewest full members with which the group takes writes.
    pub members_min: u8,
    /// The members that the group was made with.
    pub founders: Vec<ReplicaId>,
    /// The members in order, those that are not full last. Of the full ones the first takes writes
    /// and the last answers reads (RubbleDB §4.1).
    pub members: Vec<Member>,
}

impl GroupView {
    /// Largest number of members, and of founders.
    pub const MEMBERS_MAX: usize = 16;

    /// The first view of a group: its founders, all full, and all of them needed.
    #[must_use]
    pub fn founding(group: GroupId, founders: &[ReplicaId], log: LogKind) -> Self {
        Self {
            group,
            term: Term::ZERO,
            config: ConfigNumber(1),
            log,
            members_min: u8::try_from(founders.len()).unwrap_or(u8::MAX),
            founders: founders.to_vec(),
            members: founders.iter().map(|replica| Member::new(*replica)).collect(),
        }
    }

    /// The member that takes writes.
    ///
    /// # Panics
    /// When the view has no member: [`Self::validate`] refuses it.
    #[must_use]
    pub fn writer(&self) -> ReplicaId {
        self.members[0].replica
    }

    /// The member that answers reads: the last full one.
    ///
    /// # Panics
    /// When the view has no full member: [`Self::validate`] refuses it.
    #[must_use]
    pub fn reader(&self) -> ReplicaId {
        self.members[self.full().count() - 1].replica
    }

    /// Whether a replica is a full member.
    #[must_use]
    pub fn has_full(&self, replica: ReplicaId) -> bool {
        self.full().any(|member| member.replica == replica)
    }

    /// A member's place in the order.
    #[must_use]
    pub fn place_of(&self, replica: ReplicaId) -> Option<usize> {
        self.members.iter().position(|member| member.replica == replica)
    }

    /// The members but one, in their order.
    pub fn others(&self, but: ReplicaId) -> impl Iterator<Item = ReplicaId> + '_ {
        self.members.iter().map(|member| member.replica).filter(move |replica| *replica != but)
    }

    /// The members that have all that the group has, in their order.
    pub fn full(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().filter(|member| member.is_full)
    }

    /// Members that are kept, in their order.
    pub fn kept(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().filter(|member| member.is_kept)
    }

    /// Whether a replica is a member that is kept.
    #[must_use]
    pub fn keeps(&self, replica: ReplicaId) -> bool {
        self.kept().any(|member| member.replica == replica)
    }

    /// Whether the view waits for members that it keeps: no term begins in it, nothing is appended
    /// and nothing commits, as they may found the next term without whoever is full here.
    #[must_use]
    pub fn waits(&self) -> bool {
        self.kept().next().is_some()
    }

    /// Why no writes are taken in this view, if it has too few full members, or waits for some.
    #[must_use]
    pub fn too_few(&self) -> Option<String> {
        let full = self.full().count();
        (self.waits() || full < usize::from(self.members_min)).then(|| {
            format!(
                "{full} full replicas are left, the group needs {} to take writes",
                self.members_min
            )
        })
    }

    /// Checks the rules that every view keeps.
    ///
    /// # Errors
    /// Invalid input that names the value and its limit.
    pub fn validate(&self) -> Result<()> {
        for (what, count) in [("members", self.members.len()), ("founders", self.founders.len())] {
            if count == 0 || count > Self::MEMBERS_MAX {
                return Err(Error::invalid(format!(
                    "a group with {count} {what}: 1 to {} are possible",
                    Self::MEMBERS_MAX
                )));
            }
        }
        for (i, member) in self.members.iter().enumerate() {
            if self.place_of(member.replica) != Some(i) {
                let replica = member.replica.get();
                return Err(Error::invalid(format!("replica {replica} is a member twice")));
            }
            if member.is_full && member.is_kept {
                return Err(Error::invalid(format!(
                    "replica {} is full and kept: a member that is kept is out",
                    member.replica.get()
                )));
            }
            let longest = member.addresses.each().into_iter().map(String::len).max();
            if longest > Some(Addresses::LEN_MAX) {
                return Err(Error::invalid(format!(
                    "an address of replica {} has {} bytes, the limit is {}",
                    member.replica.get(),
                    longest.unwrap_or_default(),
                    Addresses::LEN_MAX
                )));
            }
        }
        if self.full().next().is_none() {
            return Err(Error::invalid("a group without a full member: nobody has its records"));
        }
        let full = self.full().count();
        if let Some(early) = self.members.iter().take(full).find(|member| !member.is_full) {
            return Err(Error::invalid(format!(
                "replica {} is not full and stands before one that is",
                early.replica.get()
            )));
        }
        if self.members_min == 0 || usize::from(self.members_min) > Self::MEMBERS_MAX {
            return Err(Error::invalid(format!(
                "the group needs {} full members to take writes: 1 to {} are possible",
                self.members_min,
                Self::MEMBERS_MAX
            )));
        }
        if self.term > TERM_MAX {
            return Err(Error::invalid(format!("{} is over the limit {TERM_MAX}", self.term)));
        }
        if self.log == LogKind::Private && self.members.len() > 1 {
            return Err(Error::invalid(format!(
                "a private log with {} members: nobody but its replica reads one",
                self.members.len()
            )));
        }
        Ok(())
    }

    /// The view in bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(256);
        out.put_u16(VERSION);
        out.put_u8(self.log as u8);
        out.put_u8(self.members_min);
        out.put_u32(0);
        out.put_u64(self.group.get());
        out.put_u64(self.config.get());
        out.put_u64(self.term.get());
        out.put_u16(self.founders.len() as u16);
        self.founders.iter().for_each(|founder| out.put_u32(founder.get()));
        out.put_u16(self.members.len() as u16);
        for member in &self.members {
            out.put_u32(member.replica.get());
            let full = if member.is_full { FLAG_FULL } else { 0 };
            out.put_u32(full | if member.is_kept { FLAG_KEPT } else { 0 });
            out.put_u64(member.node);
            out.put_u64(member.incarnation);
            out.put_bytes(&member.pool_id);
            member.addresses.each().iter().for_each(|text| out.put_prefixed(text.as_bytes()));
        }
        out
    }

    /// Reads [`Self::encode`].
    ///
    /// # Errors
    /// Corruption for bytes that are no valid view; Unsupported for another version or flags.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut reader = Reader::new(bytes, "view");
        let r = &mut reader;
        let version = r.u16()?;
        if version != VERSION {
            return Err(Error::unsupported(format!(
                "view has version {version}, this build knows {VERSION}"
            )));
        }
        let log = LogKind::from_byte(r.u8()?)?;
        let members_min = r.u8()?;
        if r.u32()? != 0 {
            return Err(Error::corruption("view: unused bytes are not zero"));
        }
        let (group, config) = (GroupId(r.u64()?), ConfigNumber(r.u64()?));
        let term = Term(r.u64()?);
        let count = count(r, 4)?;
        let founders = (0..count).map(|_| r.u32().map(ReplicaId)).collect::<Result<_>>()?;
        let count = self::count(r, MEMBER_LEN_MIN)?;
        let members = (0..count).map(|_| read_member(r)).collect::<Result<_>>()?;
        reader.finish()?;
        let view = Self { group, term, config, log, members_min, founders, members };
        view.validate().map_err(|error| Error::corruption(format!("view: {error}")))?;
        Ok(view)
    }
}

fn count(r: &mut Reader<'_>, len_min: usize) -> Result<usize> {
    let count = usize::from(r.u16()?);
    if count > GroupView::MEMBERS_MAX || count * len_min > r.remaining() {
        return Err(Error::corruption(format!(
            "view: {count} replicas in {} bytes, the limit is {}",
            r.remaining(),
            GroupView::MEMBERS_MAX
        )));
    }
    Ok(count)
}

fn read_member(r: &mut Reader<'_>) -> Result<Member> {
    let (replica, flags) = (ReplicaId(r.u32()?), r.u32()?);
    if flags & !(FLAG_FULL | FLAG_KEPT) != 0 {
        return Err(Error::unsupported(format!("view: a member has flags {flags:#x}")));
    }
    Ok(Member {
        replica,
        is_full: flags & FLAG_FULL != 0,
        is_kept: flags & FLAG_KEPT != 0,
        node: r.u64()?,
        incarnation: r.u64()?,
        pool_id: r.array()?,
        addresses: Addresses::decode(r)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use gabion_base::ErrorKind;

    fn view() -> GroupView {
        let replicas = [ReplicaId(1), ReplicaId(2), ReplicaId(3)];
        let mut view = GroupView::founding(GroupId(7), &replicas, LogKind::Shared);
        view.members[1].addresses.clients = "host:6379".into();
        view
    }

    #[test]
    fn a_view_that_keeps_a_member_waits_whatever_the_group_needs() {
        let mut view = view();
        (view.members[2].is_full, view.members[2].is_kept) = (false, true);
        view.members_min = 2;
        assert_eq!(GroupView::decode(&view.encode()).unwrap(), view);
        assert!(view.waits() && view.keeps(ReplicaId(3)) && !view.has_full(ReplicaId(3)));
        assert!(view.too_few().is_some(), "it takes no writes");
        view.members[2].is_kept = false;
        assert!(!view.waits() && view.too_few().is_none());
    }

    #[test]
    fn a_view_survives_its_bytes_and_no_prefix_does() {
        let bytes = view().encode();
        assert_eq!(GroupView::decode(&bytes).unwrap(), view());
        for len in 0..bytes.len() {
            assert!(GroupView::decode(&bytes[..len]).is_err(), "{len} bytes");
        }
    }

    #[test]
    fn a_view_with_too_few_full_members_takes_no_writes() {
        let mut view = view();
        assert_eq!(view.too_few(), None);
        view.members[2].is_full = false;
        view.validate().unwrap();
        assert_eq!((view.writer(), view.reader()), (ReplicaId(1), ReplicaId(2)));
        let reason = "2 full replicas are left, the group needs 3 to take writes";
        assert_eq!(view.too_few().as_deref(), Some(reason));
        view.members_min = 2;
        assert_eq!(view.too_few(), None);
    }

    #[test]
    fn views_that_cannot_be_are_refused() {
        type Change = fn(&mut GroupView);
        let refused: [(Change, &str); 9] = [
            (|view| view.members.clear(), "0 members"),
            (|view| view.founders = vec![ReplicaId(1); 17], "17 founders"),
            (|view| view.members[1] = Member::new(ReplicaId(1)), "twice"),
            (|view| view.members.iter_mut().for_each(|m| m.is_full = false), "a full member"),
            (|view| view.members[1].is_full = false, "stands before"),
            (|view| view.members[1].is_kept = true, "full and kept"),
            (|view| view.members_min = 0, "1 to 16"),
            (|view| view.term = Term(1 << 32), "over the limit"),
            (|view| view.log = LogKind::Private, "private log"),
        ];
        for (change, expected) in refused {
            let mut view = view();
            change(&mut view);
            let error = view.validate().expect_err(expected);
            assert!(error.to_string().contains(expected), "{error}");
            assert!(GroupView::decode(&view.encode()).is_err(), "{expected}");
        }
    }

    #[test]
    fn a_version_or_a_flag_of_a_later_build_is_refused_by_name() {
        let mut bytes = view().encode();
        bytes[0] = 2;
        assert_eq!(GroupView::decode(&bytes).unwrap_err().kind(), ErrorKind::Unsupported);
        let mut bytes = view().encode();
        let flags = 32 + 2 + 3 * 4 + 2 + 4;
        bytes[flags] = 5;
        assert_eq!(GroupView::decode(&bytes).unwrap_err().kind(), ErrorKind::Unsupported);
    }
}

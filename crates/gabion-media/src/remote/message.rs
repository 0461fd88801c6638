//! Requests of clients to a peer, its replies, and the notices that it sends unasked.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use gabion_base::{Error, ErrorKind, Term};

/// Longest name of an owner in bytes.
pub const OWNER_LEN_MAX: usize = 255;
/// Longest label of a region in bytes.
pub const LABEL_LEN_MAX: usize = 1024;
/// Longest name of a failure domain in bytes.
pub const DOMAIN_LEN_MAX: usize = 255;
/// Longest token of a greeting in bytes.
pub const TOKEN_LEN_MAX: usize = 1024;
/// Longest data of one write, all parts together, and longest read, in bytes. A copy of a region
/// is many of them.
pub const TRANSFER_LEN_MAX: usize = 256 * 1024;
/// Most parts of one write.
pub const PARTS_MAX: usize = 64;
/// Most regions that one request names.
pub const NAMED_REGIONS_MAX: usize = 4096;

macro_rules! numbers {
    ($($(#[$doc:meta])* $name:ident($inner:ty) shown $format:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, $format, self.0)
            }
        }
    )*};
}

numbers! {
    /// A peer, for life: made at its first start and kept in its directory.
    PeerId(u64) shown "{:016x}";
    /// A run of a peer, counted durably. Regions of an earlier one are gone.
    Incarnation(u32) shown "{}";
    /// A region. No peer uses a number twice: the upper half is the incarnation.
    RegionId(u64) shown "{:x}";
    /// A client: one process of an application, by a random number of its own.
    ClientId(u64) shown "{:016x}";
    /// A connection of a client: greater than that of any before it to the same peer.
    ConnectionGeneration(u64) shown "{}";
    /// A request of a connection. They begin at 1 and ascend by 1.
    RequestNumber(u64) shown "{}";
}

impl RegionId {
    /// The region of this ordinal, from 1, in a run of a peer.
    #[must_use]
    pub const fn new(incarnation: Incarnation, ordinal: u32) -> Self {
        Self((incarnation.0 as u64) << 32 | ordinal as u64)
    }

    /// The run of the peer that lent it.
    #[must_use]
    pub const fn incarnation(self) -> Incarnation {
        Incarnation((self.0 >> 32) as u32)
    }

    /// Its place among the regions of that run.
    #[must_use]
    pub const fn ordinal(self) -> u32 {
        self.0 as u32
    }
}

/// The right to access a region: a random number that nobody guesses. Never logged.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Key(pub u128);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(…)")
    }
}

/// A part of a write: bytes to one place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part<'a> {
    /// The region.
    pub region: RegionId,
    /// Its key.
    pub key: Key,
    /// First byte in the region.
    pub offset: u64,
    /// The bytes.
    pub data: &'a [u8],
}

/// A request. Texts and bytes are borrowed: nothing is reserved to send or to read one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request<'a> {
    /// The first of a connection. → [`Reply::Welcome`]
    Hello {
        /// The client. Its older connections to this peer end.
        client: ClientId,
        /// The proof of it, where the peer asks for one.
        token: &'a [u8],
    },
    /// A region of zeros. A term above the owner's fences first. → [`Reply::Lent`]
    Lend {
        /// The application.
        owner: &'a str,
        /// The client's name for it: file and part. The peer keeps it and gives it back.
        label: &'a [u8],
        /// The epoch that the client's entry at the controller will have once it names the region.
        epoch: u64,
        /// The client's term.
        term: Term,
        /// Bytes wanted; rounded up to whole pages.
        bytes: u64,
    },
    /// From the reply on, accesses of lower terms fail and the owner's keys are new. Lists its
    /// regions from the lowest number. → [`Reply::Regions`]
    Fence {
        /// The application.
        owner: &'a str,
        /// The client's term: not below the owner's.
        term: Term,
    },
    /// The owner's regions above this number: further pages of a fence. → [`Reply::Regions`]
    List {
        /// The application.
        owner: &'a str,
        /// The owner's term.
        term: Term,
        /// The last region of the page before, or zero.
        after: RegionId,
    },
    /// A chain: the parts take effect in their order, all or none. → [`Reply::Written`]
    Write {
        /// The owner's term.
        term: Term,
        /// The parts, of regions of one owner.
        parts: Parts<'a>,
    },
    /// Bytes of a region. → [`Reply::Bytes`]
    Read {
        /// The region.
        region: RegionId,
        /// Its key.
        key: Key,
        /// The owner's term.
        term: Term,
        /// First byte in the region.
        offset: u64,
        /// Bytes, [`TRANSFER_LEN_MAX`] at most.
        len: u32,
    },
    /// Makes these regions *the* ones of their labels and frees others, in one step. Another
    /// published region with the label of one of them is freed too. → [`Reply::Published`]
    Publish {
        /// The application.
        owner: &'a str,
        /// The owner's term.
        term: Term,
        /// The regions to publish.
        regions: Regions<'a>,
        /// The regions to free.
        withdraw: Regions<'a>,
    },
    /// Gives regions back. One that is gone already is no error. → [`Reply::Freed`]
    Free {
        /// The application.
        owner: &'a str,
        /// The owner's term.
        term: Term,
        /// The regions.
        regions: Regions<'a>,
    },
    /// The region's memory itself, by a descriptor beside the reply, where the connection can carry
    /// one. From then on its memory is never lent again. → [`Reply::Mapped`]
    Map {
        /// The region.
        region: RegionId,
        /// Its key.
        key: Key,
        /// The owner's term.
        term: Term,
    },
    /// A report of the peer's holdings and work. → [`Reply::Usage`]
    Usage,
}

impl<'a> Request<'a> {
    /// The kinds, as words.
    pub const KINDS: &'static [&'static str] =
        &["hello", "lend", "fence", "list", "write", "read", "publish", "free", "map", "usage"];

    /// The place of its kind among [`Self::KINDS`].
    #[must_use]
    pub const fn kind(&self) -> usize {
        match self {
            Self::Hello { .. } => 0,
            Self::Lend { .. } => 1,
            Self::Fence { .. } => 2,
            Self::List { .. } => 3,
            Self::Write { .. } => 4,
            Self::Read { .. } => 5,
            Self::Publish { .. } => 6,
            Self::Free { .. } => 7,
            Self::Map { .. } => 8,
            Self::Usage => 9,
        }
    }

    /// The application that it speaks for; of a report that of all, which has no name. Others show
    /// the key of a region.
    #[must_use]
    pub const fn owner(&self) -> Option<&'a str> {
        match self {
            Self::Lend { owner, .. }
            | Self::Fence { owner, .. }
            | Self::List { owner, .. }
            | Self::Publish { owner, .. }
            | Self::Free { owner, .. } => Some(owner),
            Self::Usage => Some(""),
            Self::Hello { .. } | Self::Write { .. } | Self::Read { .. } | Self::Map { .. } => None,
        }
    }
}

/// The parts of a write: of the caller, or in the bytes of a frame.
#[derive(Clone, Copy, Debug)]
pub enum Parts<'a> {
    /// To be sent.
    Given(&'a [Part<'a>]),
    /// Arrived: part headers, then all their data. Counts and lengths were checked.
    Arrived {
        /// [`super::codec::PART_LEN`] bytes each.
        heads: &'a [u8],
        /// The data of all, one after the other.
        data: &'a [u8],
    },
}

/// Numbers of regions: of the caller, or in the bytes of a frame.
#[derive(Clone, Copy, Debug)]
pub enum Regions<'a> {
    /// To be sent.
    Given(&'a [RegionId]),
    /// Arrived: 8 bytes each.
    Arrived(&'a [u8]),
}

/// A region as its owner is told of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegionEntry {
    /// Its number.
    pub region: RegionId,
    /// Its key from now on.
    pub key: Key,
    /// Its length.
    pub bytes: u64,
    /// The epoch under which it was lent.
    pub epoch: u64,
    /// The term in which it was lent, and the only one that may write to it.
    pub term: Term,
    /// Whether it is *the* region of its label.
    pub is_published: bool,
    /// As it was lent.
    pub label: Vec<u8>,
}

/// A reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// The connection is taken.
    Welcome {
        /// The peer.
        peer: PeerId,
        /// Its run.
        incarnation: Incarnation,
        /// Bytes that it can still lend. A hint: others ask too.
        free_bytes: u64,
    },
    /// A region of zeros, not published.
    Lent {
        /// Its number.
        region: RegionId,
        /// Its key.
        key: Key,
        /// Its length: what was asked, rounded up to whole pages.
        bytes: u64,
    },
    /// Regions in the order of their numbers.
    Regions {
        /// The term that holds at the peer.
        term: Term,
        /// The regions.
        regions: Vec<RegionEntry>,
        /// Whether more follow the last of them: ask with [`Request::List`].
        more: bool,
    },
    /// All writes up to this number took effect.
    Written,
    /// The bytes that were read.
    Bytes(Vec<u8>),
    /// Published, and the others freed.
    Published,
    /// Given back.
    Freed {
        /// Bytes that this freed.
        bytes: u64,
    },
    /// The descriptors came beside: of the region's memory, then of the peer's gates.
    Mapped {
        /// The region's length.
        bytes: u64,
        /// The gate of the region: its index among the peer's gates, 8 bytes each. It holds the
        /// region's number while a write to it may count.
        gate: u32,
        /// Bytes of all gates.
        gates_bytes: u32,
    },
    /// The peer's holdings and work.
    Usage(Usage),
    /// Not done, and why. Nothing of the request took effect.
    Refused(Refusal),
    /// Not a reply: it has the number 0.
    Notice(Notice),
}

/// A message that a peer sends unasked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// These regions are gone: memory is short at the peer.
    Revoked(Vec<RegionId>),
    /// The peer is about to end and lends no more. Its regions stand until it does.
    Draining,
}

/// Why a request was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The reason.
    pub reason: RefusalReason,
    /// The value in question.
    pub value: u64,
    /// The limit that it breaks.
    pub limit: u64,
}

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $text:literal;)*) => {
        /// The reasons of a [`Refusal`]; the doc of each names its value and its limit.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum RefusalReason { $($(#[$doc])* $name = $number,)* }

        impl RefusalReason {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            const fn text(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }

            /// Its name here.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => stringify!($name),)* }
            }
        }
    };
}

reasons! {
    /// Bytes wanted; bytes that are free.
    NoMemory = 1, "bytes are more than are free";
    /// Bytes wanted; those that a region can have.
    RegionLength = 2, "bytes is no length of a region";
    /// Regions with this one; most at the peer.
    TooManyRegions = 3, "regions are too many";
    /// Owners with this one; most at the peer.
    TooManyOwners = 4, "owners are too many";
    /// The client's term; the owner's. Another instance took over.
    OldTerm = 5, "is an old term: a newer instance took over";
    /// The client's term; the owner's. The client has to fence first.
    NewTerm = 6, "is a term that has not fenced yet";
    /// The region; the last one lent. It was never lent in this run of the peer.
    UnknownRegion = 7, "is no region of this run of the peer";
    /// The region; the last one lent. It was revoked or freed.
    Revoked = 8, "is a region that was revoked or freed";
    /// The region; 0.
    WrongKey = 9, "is a region whose key is another";
    /// The region; the term in which it was lent, the only one that may write.
    ReadOnly = 10, "is a region of an earlier term: it takes no writes";
    /// The end of the access; the region's length.
    OutOfBounds = 11, "is past the end of the region";
    /// The region; 0. It belongs to another owner than the request says, or than other parts do.
    OtherOwner = 12, "is a region of another owner";
    /// Bytes; most that one request moves.
    TransferLength = 13, "bytes are more than one request moves";
    /// 0; 0. The peer is about to end.
    Draining = 14, "the peer is draining and lends no more";
    /// 0; 0. The connection carries no descriptors, or the memory cannot be shared.
    NotShared = 15, "the connection shares no memory";
    /// 0; 0. The token proves nothing here.
    BadToken = 16, "the token is not the peer's";
    /// The connection's generation; the newest of that client.
    OldConnection = 17, "is the generation of an old connection";
    /// The name's length; the longest. It is empty or too long.
    OwnerLength = 18, "bytes is no length of an owner's name";
    /// 0; 0. The system has no memory.
    SystemMemory = 19, "the system refuses memory";
    /// The region; 0. It, or its label, is named twice in one request.
    NamedTwice = 20, "is a region that one request names twice, or by one label with another";
    /// 0; 0. The certificate that the client showed is none for this owner.
    OtherCertificate = 21, "the certificate is of another application";
}

impl Refusal {
    /// A refusal for this reason.
    #[must_use]
    pub const fn new(reason: RefusalReason, value: u64, limit: u64) -> Self {
        Self { reason, value, limit }
    }

    /// The refusal as an error for those who cannot act on the reason.
    #[must_use]
    pub fn error(self) -> Error {
        use RefusalReason as R;
        let kind = match self.reason {
            R::NoMemory | R::SystemMemory => ErrorKind::NoSpace,
            R::TooManyRegions | R::TooManyOwners | R::TransferLength => ErrorKind::LimitExceeded,
            R::OldTerm | R::ReadOnly | R::WrongKey | R::OldConnection => ErrorKind::Fenced,
            R::Revoked | R::UnknownRegion => ErrorKind::NotFound,
            R::Draining => ErrorKind::Unavailable,
            _ => ErrorKind::InvalidInput,
        };
        Error::new(kind, alloc::format!("memory peer: {self}"))
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use RefusalReason as R;
        match self.reason {
            R::Draining | R::NotShared | R::BadToken | R::SystemMemory | R::OtherCertificate => {
                f.write_str(self.reason.text())
            }
            R::UnknownRegion | R::Revoked | R::WrongKey | R::OtherOwner | R::NamedTwice => {
                write!(f, "{} {}", RegionId(self.value), self.reason.text())
            }
            R::ReadOnly => {
                write!(f, "{} {} (limit {})", RegionId(self.value), self.reason.text(), self.limit)
            }
            _ => write!(f, "{} {} (limit {})", self.value, self.reason.text(), self.limit),
        }
    }
}

/// The holdings of a peer, and its work since it started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// The peer.
    pub peer: PeerId,
    /// Its run.
    pub incarnation: Incarnation,
    /// Bytes that it lends at most.
    pub limit_bytes: u64,
    /// Bytes lent.
    pub lent_bytes: u64,
    /// Bytes that lie zeroed and ready, out of those not lent.
    pub ready_bytes: u64,
    /// Regions lent.
    pub regions: u64,
    /// Those of them that are published.
    pub published: u64,
    /// Connections.
    pub connections: u64,
    /// Writes over connections. Those into shared memory are not seen here.
    pub writes: u64,
    /// Bytes of these.
    pub write_bytes: u64,
    /// Reads over connections.
    pub reads: u64,
    /// Bytes of these.
    pub read_bytes: u64,
    /// Requests refused.
    pub refusals: u64,
    /// Regions revoked for want of memory.
    pub revocations: u64,
    /// Regions freed because no entry at the controller named them.
    pub leaks_freed: u64,
    /// Fences.
    pub fences: u64,
    /// Whether it lends no more.
    pub is_draining: bool,
    /// The machine or rack that it fails together with, as its operator says. It may be empty.
    pub failure_domain: String,
    /// Owners with regions, by name; [`OWNERS_SHOWN_MAX`] at most.
    pub owners: Vec<OwnerUsage>,
    /// All owners with regions.
    pub owners_count: u64,
}

/// Most owners in a [`Usage`].
pub const OWNERS_SHOWN_MAX: usize = 256;

/// The holdings of an owner.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnerUsage {
    /// The application.
    pub owner: String,
    /// Its term.
    pub term: Term,
    /// Its regions.
    pub regions: u64,
    /// Those of them that are published.
    pub published: u64,
    /// Bytes of all.
    pub bytes: u64,
}

impl Usage {
    /// Bytes that can still be lent.
    #[must_use]
    pub const fn free_bytes(&self) -> u64 {
        if self.is_draining { 0 } else { self.limit_bytes.saturating_sub(self.lent_bytes) }
    }
}

//! Requests of the library to peers and to the store.

use crate::number::FileNumber;
use alloc::string::String;
use alloc::vec::Vec;
use bytes::Bytes;
use gabion_base::{Error, Result, Term};
use gabion_control::{Store, Swapped, Version, Versioned};
use gabion_media::remote::message::{Parts, Regions};
use gabion_media::remote::{ClientId, Key, Part, PeerId, RegionId, Request};

/// A region's label: file u64, part u32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Label {
    /// The file.
    pub file: FileNumber,
    /// The part of it.
    pub part: u32,
}

impl Label {
    /// Bytes of a label.
    pub const LEN: usize = 12;

    /// In bytes.
    #[must_use]
    pub fn encode(self) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        out[..8].copy_from_slice(&self.file.0.to_le_bytes());
        out[8..].copy_from_slice(&self.part.to_le_bytes());
        out
    }

    /// From bytes; none for a label that this library did not write.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (file, part) = bytes.split_first_chunk::<8>()?;
        let part = part.try_into().ok().map(u32::from_le_bytes)?;
        Some(Self { file: FileNumber(u64::from_le_bytes(*file)), part })
    }
}

/// A part of a chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChainPart {
    /// The region.
    pub region: RegionId,
    /// Its key.
    pub key: Key,
    /// First byte in the region.
    pub offset: u64,
    /// The bytes.
    pub data: Bytes,
}

/// Most parts of a record's chain: data across one border of parts, and a cell.
pub(crate) const CHAIN_MAX: usize = 3;

/// A request to a peer. The owner's name, the client and its token are the driver's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// The greeting: the first of a connection.
    Hello,
    /// Fence, and list the first regions.
    Fence,
    /// Further regions.
    List {
        /// The last of the page before.
        after: RegionId,
    },
    /// Lend a region.
    Lend {
        /// Its label.
        label: Label,
        /// The attempt's epoch.
        epoch: u64,
        /// Its length.
        bytes: u64,
    },
    /// A chain.
    Write {
        /// Its parts, in their order.
        chain: [Option<ChainPart>; CHAIN_MAX],
    },
    /// Bytes of a region.
    Read {
        /// The region.
        region: RegionId,
        /// Its key.
        key: Key,
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u32,
    },
    /// Publish some regions and free others.
    Publish {
        /// The regions of the copy.
        regions: Vec<RegionId>,
        /// Those of former copies.
        withdraw: Vec<RegionId>,
    },
    /// Free regions.
    Free {
        /// The regions.
        regions: Vec<RegionId>,
    },
}

impl Command {
    /// Calls `run` with the request that this is.
    pub fn with_request<R>(
        &self,
        owner: &str,
        term: Term,
        client: ClientId,
        token: &[u8],
        run: impl FnOnce(Request<'_>) -> R,
    ) -> R {
        match self {
            Self::Hello => run(Request::Hello { client, token }),
            Self::Fence => run(Request::Fence { owner, term }),
            Self::List { after } => run(Request::List { owner, term, after: *after }),
            Self::Lend { label, epoch, bytes } => {
                let (label, epoch, bytes) = (&label.encode(), *epoch, *bytes);
                run(Request::Lend { owner, label, epoch, term, bytes })
            }
            Self::Write { chain } => {
                let none = Part { region: RegionId(0), key: Key(0), offset: 0, data: &[] };
                let (mut parts, mut count) = ([none; CHAIN_MAX], 0);
                for ChainPart { region, key, offset, data } in chain.iter().flatten() {
                    parts[count] = Part { region: *region, key: *key, offset: *offset, data };
                    count += 1;
                }
                run(Request::Write { term, parts: Parts::Given(&parts[..count]) })
            }
            Self::Read { region, key, offset, len } => {
                let (region, key, offset, len) = (*region, *key, *offset, *len);
                run(Request::Read { region, key, term, offset, len })
            }
            Self::Publish { regions, withdraw } => {
                let (regions, withdraw) = (Regions::Given(regions), Regions::Given(withdraw));
                run(Request::Publish { owner, term, regions, withdraw })
            }
            Self::Free { regions } => {
                run(Request::Free { owner, term, regions: Regions::Given(regions) })
            }
        }
    }
}

/// An operation on the store. Its answer may take long, or never come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreOperation {
    /// The value of a name.
    Get(String),
    /// All values under a prefix.
    List(String),
    /// A compare-and-set.
    Swap(String, Version, Vec<u8>),
}

/// The outcome of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreReply {
    /// The value, if there is one.
    Got(Option<Versioned>),
    /// The values.
    Listed(Vec<(String, Versioned)>),
    /// Whether it was stored.
    Swapped(Swapped),
}

impl StoreOperation {
    /// Carries it out.
    ///
    /// # Errors
    /// Those of the store.
    pub fn run(&self, store: &mut dyn Store) -> Result<StoreReply> {
        Ok(match self {
            Self::Get(name) => StoreReply::Got(store.get(name)?),
            Self::List(prefix) => StoreReply::Listed(store.list(prefix)?),
            Self::Swap(name, expected, value) => {
                StoreReply::Swapped(store.swap(name, *expected, value)?)
            }
        })
    }
}

/// The part that asked the store: the answer goes there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asker {
    /// The instance's record.
    Instance,
    /// The ap-map.
    Map,
    /// The registry of peers.
    Registry,
}

/// An action for the caller to carry out.
#[derive(Clone, Debug)]
pub enum Output {
    /// Connect to a peer. Its commands follow.
    Connect {
        /// The peer.
        peer: PeerId,
        /// Its address in the registry; empty where none is known.
        address: String,
    },
    /// End the connection to a peer; whatever comes of it is dropped.
    Disconnect {
        /// The peer.
        peer: PeerId,
        /// Why.
        error: Error,
    },
    /// Send this over the newest connection to the peer, behind what went before.
    Send {
        /// The peer.
        peer: PeerId,
        /// The term of the request.
        term: Term,
        /// The command.
        command: Command,
    },
    /// Ask the store, and hand in the answer with this asker.
    Store {
        /// The part that asks.
        asker: Asker,
        /// The question.
        operation: StoreOperation,
    },
}

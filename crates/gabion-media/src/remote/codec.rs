//! The bodies of messages in bytes. All numbers are little-endian.
//!
//! ```text
//!   text, label, token: varint length, bytes        regions: u32 count, count × region u64
//!   key: 16 bytes
//!
//!   kind  request  body
//!      1  Hello    client u64 │ token
//!      2  Lend     term u64 │ epoch u64 │ bytes u64 │ owner │ label
//!      3  Fence    term u64 │ owner
//!      4  List     term u64 │ after u64 │ owner
//!      5  Write    term u64 │ parts u32 │ zero u32 │ parts × (region u64 │ key │ offset u64
//!                  │ length u32 │ zero u32) │ the data of all parts
//!      6  Read     term u64 │ region u64 │ key │ offset u64 │ length u32
//!      7  Publish  term u64 │ owner │ regions │ withdrawn regions
//!      8  Free     term u64 │ owner │ regions
//!      9  Map      term u64 │ region u64 │ key
//!     10  Usage
//!
//!   kind  reply      body
//!     65  Welcome    peer u64 │ incarnation u32 │ free bytes u64
//!     66  Lent       region u64 │ key │ bytes u64
//!     67  Regions    term u64 │ more u8 │ u32 count × (region u64 │ key │ bytes u64 │ epoch u64
//!                    │ term u64 │ published u8 │ label)
//!     68  Written    number, in the header: this write and all before it
//!     69  Bytes      the bytes
//!     70  Published
//!     71  Freed      bytes u64
//!     72  Mapped     bytes u64 │ gate u32 │ bytes of gates u32
//!     73  Usage      peer u64 │ incarnation u32 │ draining u8 │ failure domain │ its numbers in
//!                    their order, u64 each
//!                    │ u32 count × (owner │ term, regions, published, bytes u64)
//!     74  Refused    reason u8 │ value u64 │ limit u64
//!     96  Revoked    regions       (a notice)
//!     97  Draining                 (a notice)
//! ```

use super::frame::{self, BODY_LEN_MAX};
use super::message::{
    ClientId, ConnectionGeneration, DOMAIN_LEN_MAX, Incarnation, Key, LABEL_LEN_MAX,
    NAMED_REGIONS_MAX, Notice, OWNER_LEN_MAX, OWNERS_SHOWN_MAX, OwnerUsage, PARTS_MAX, Part, Parts,
    PeerId, Refusal, RefusalReason, RegionEntry, RegionId, Regions, Reply, Request, RequestNumber,
    TOKEN_LEN_MAX, TRANSFER_LEN_MAX, Usage,
};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use gabion_base::codec::{Put, Reader};
use gabion_base::{Error, Result, TERM_MAX, Term};

/// Bytes of the head of a part.
pub const PART_LEN: usize = 40;
/// Most bytes of the regions in one [`Reply::Regions`].
pub const PAGE_LEN_MAX: usize = 128 * 1024;
/// Most regions in one notice.
pub const NOTICE_REGIONS_MAX: usize = NAMED_REGIONS_MAX;
/// Bytes of a region in a page, its label aside.
const ENTRY_LEN: usize = 8 + 16 + 8 + 8 + 8 + 1;

const WHAT: &str = "memory message";

const HELLO: u8 = 1;
const LEND: u8 = 2;
const FENCE: u8 = 3;
const LIST: u8 = 4;
/// The kind of a write, which both ends look for before others.
pub const WRITE: u8 = 5;
const READ: u8 = 6;
const PUBLISH: u8 = 7;
const FREE: u8 = 8;
const MAP: u8 = 9;
const USAGE: u8 = 10;

const WELCOME: u8 = 65;
const LENT: u8 = 66;
const REGIONS: u8 = 67;
/// The kind of a `Written`, which both ends look for before others.
pub const WRITTEN: u8 = 68;
const BYTES: u8 = 69;
const PUBLISHED: u8 = 70;
const FREED: u8 = 71;
const MAPPED: u8 = 72;
const USED: u8 = 73;
const REFUSED: u8 = 74;
const REVOKED: u8 = 96;
const DRAINING: u8 = 97;

const _: () = assert!(PAGE_LEN_MAX + LABEL_LEN_MAX + ENTRY_LEN + 64 < BODY_LEN_MAX);
const _: () = assert!(TRANSFER_LEN_MAX + PARTS_MAX * PART_LEN + 64 < BODY_LEN_MAX);
const _: () = assert!(2 * (NAMED_REGIONS_MAX * 8) + OWNER_LEN_MAX + 64 < BODY_LEN_MAX);
const _: () =
    assert!(OWNERS_SHOWN_MAX * (OWNER_LEN_MAX + 40) + DOMAIN_LEN_MAX + 256 < BODY_LEN_MAX);

fn corrupt(what: impl core::fmt::Display) -> Error {
    Error::corruption(format!("{WHAT}: {what}"))
}

fn put_key(out: &mut Vec<u8>, key: Key) {
    out.put_bytes(&key.0.to_le_bytes());
}

fn read_key(r: &mut Reader<'_>) -> Result<Key> {
    r.array().map(u128::from_le_bytes).map(Key)
}

fn read_term(r: &mut Reader<'_>) -> Result<Term> {
    let term = Term(r.u64()?);
    if term > TERM_MAX {
        return Err(corrupt(format_args!("term {} is over the limit of {}", term.0, TERM_MAX.0)));
    }
    Ok(term)
}

fn read_text<'a>(r: &mut Reader<'a>, len_max: usize) -> Result<&'a str> {
    let bytes = r.prefixed(len_max)?;
    core::str::from_utf8(bytes).map_err(|_| corrupt("a name is not UTF-8"))
}

fn read_owner<'a>(r: &mut Reader<'a>) -> Result<&'a str> {
    read_text(r, OWNER_LEN_MAX)
}

impl<'a> Parts<'a> {
    /// The parts in their order.
    pub fn iter(self) -> impl Iterator<Item = Part<'a>> {
        let (given, heads, mut data): (&'a [Part<'a>], &'a [u8], &'a [u8]) = match self {
            Self::Given(parts) => (parts, &[], &[]),
            Self::Arrived { heads, data } => (&[], heads, data),
        };
        let arrived = heads.chunks_exact(PART_LEN).map_while(move |head| {
            let (mut part, len) = read_part(head)?;
            (part.data, data) = data.split_at_checked(len)?;
            Some(part)
        });
        given.iter().copied().chain(arrived)
    }

    /// How many they are.
    #[must_use]
    pub const fn len(self) -> usize {
        match self {
            Self::Given(parts) => parts.len(),
            Self::Arrived { heads, .. } => heads.len() / PART_LEN,
        }
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// Bytes of data in all of them.
    #[must_use]
    pub fn data_len(self) -> usize {
        match self {
            Self::Given(parts) => parts.iter().map(|part| part.data.len()).sum(),
            Self::Arrived { data, .. } => data.len(),
        }
    }
}

/// The head of a part, and the length of its data.
fn read_part(head: &[u8]) -> Option<(Part<'static>, usize)> {
    let mut r = Reader::new(head, WHAT);
    let (region, key) = (RegionId(r.u64().ok()?), read_key(&mut r).ok()?);
    let (offset, len) = (r.u64().ok()?, r.u32().ok()? as usize);
    Some((Part { region, key, offset, data: &[] }, len))
}

impl PartialEq for Parts<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len() && self.iter().eq(other.iter())
    }
}

impl Eq for Parts<'_> {}

impl<'a> Regions<'a> {
    /// The regions in their order.
    pub fn iter(self) -> impl Iterator<Item = RegionId> + 'a {
        let (given, arrived): (&'a [RegionId], &'a [u8]) = match self {
            Self::Given(regions) => (regions, &[]),
            Self::Arrived(bytes) => (&[], bytes),
        };
        let arrived =
            arrived.as_chunks().0.iter().map(|bytes| RegionId(u64::from_le_bytes(*bytes)));
        given.iter().copied().chain(arrived)
    }

    /// How many they are.
    #[must_use]
    pub const fn len(self) -> usize {
        match self {
            Self::Given(regions) => regions.len(),
            Self::Arrived(bytes) => bytes.len() / 8,
        }
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.len() == 0
    }

    fn put(self, out: &mut Vec<u8>) {
        out.put_u32(self.len() as u32);
        self.iter().for_each(|region| out.put_u64(region.0));
    }

    fn read(r: &mut Reader<'a>) -> Result<Self> {
        let count = r.u32()? as usize;
        if count > NAMED_REGIONS_MAX {
            return Err(corrupt(format_args!(
                "{count} regions are named, {NAMED_REGIONS_MAX} are possible"
            )));
        }
        r.bytes(count * 8).map(Regions::Arrived)
    }
}

impl PartialEq for Regions<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len() && self.iter().eq(other.iter())
    }
}

impl Eq for Regions<'_> {}

impl<'a> Request<'a> {
    /// Whether it can be sent: no text, list or transfer is over its limit.
    ///
    /// # Errors
    /// Invalid input or limit exceeded, with name, value and limit.
    pub fn check(&self) -> Result<()> {
        let within = |what: &str, value: usize, most: usize| match value {
            _ if value <= most => Ok(()),
            _ => Err(Error::limit(format!("{what}: {value}, at most {most} are possible"))),
        };
        match self {
            Self::Hello { token, .. } => within("bytes of the token", token.len(), TOKEN_LEN_MAX),
            Self::Lend { owner, label, term, .. } => {
                within("bytes of the label", label.len(), LABEL_LEN_MAX)?;
                check_owner(owner, *term)
            }
            Self::Fence { owner, term } | Self::List { owner, term, .. } => {
                check_owner(owner, *term)
            }
            Self::Write { parts, term } => {
                within("parts of a write", parts.len(), PARTS_MAX)?;
                within("bytes of a write", parts.data_len(), TRANSFER_LEN_MAX)?;
                within("the term", term.0 as usize, TERM_MAX.0 as usize)
            }
            Self::Read { len, .. } => within("bytes of a read", *len as usize, TRANSFER_LEN_MAX),
            Self::Publish { owner, term, regions, withdraw } => {
                within("regions to publish", regions.len(), NAMED_REGIONS_MAX)?;
                within("regions to withdraw", withdraw.len(), NAMED_REGIONS_MAX)?;
                check_owner(owner, *term)
            }
            Self::Free { owner, term, regions } => {
                within("regions to free", regions.len(), NAMED_REGIONS_MAX)?;
                check_owner(owner, *term)
            }
            Self::Map { .. } | Self::Usage => Ok(()),
        }
    }

    /// Appends the frame of a request that [`Self::check`] lets through.
    pub fn encode(
        &self,
        out: &mut Vec<u8>,
        generation: ConnectionGeneration,
        number: RequestNumber,
    ) {
        let start = frame::begin(out);
        let kind = match self {
            Self::Hello { client, token } => {
                out.put_u64(client.0);
                out.put_prefixed(token);
                HELLO
            }
            Self::Lend { owner, label, epoch, term, bytes } => {
                [term.0, *epoch, *bytes].into_iter().for_each(|number| out.put_u64(number));
                out.put_prefixed(owner.as_bytes());
                out.put_prefixed(label);
                LEND
            }
            Self::Fence { owner, term } => {
                out.put_u64(term.0);
                out.put_prefixed(owner.as_bytes());
                FENCE
            }
            Self::List { owner, term, after } => {
                out.put_u64(term.0);
                out.put_u64(after.0);
                out.put_prefixed(owner.as_bytes());
                LIST
            }
            Self::Write { term, parts } => {
                put_write(out, *term, *parts);
                WRITE
            }
            Self::Read { region, key, term, offset, len } => {
                out.put_u64(term.0);
                out.put_u64(region.0);
                put_key(out, *key);
                out.put_u64(*offset);
                out.put_u32(*len);
                READ
            }
            Self::Publish { owner, term, regions, withdraw } => {
                out.put_u64(term.0);
                out.put_prefixed(owner.as_bytes());
                regions.put(out);
                withdraw.put(out);
                PUBLISH
            }
            Self::Free { owner, term, regions } => {
                out.put_u64(term.0);
                out.put_prefixed(owner.as_bytes());
                regions.put(out);
                FREE
            }
            Self::Map { region, key, term } => {
                out.put_u64(term.0);
                out.put_u64(region.0);
                put_key(out, *key);
                MAP
            }
            Self::Usage => USAGE,
        };
        frame::end(out, start, kind, generation, number);
    }

    /// Reads the body of a request of this kind.
    ///
    /// # Errors
    /// Corruption; unsupported for an unknown kind.
    pub fn decode(kind: u8, body: &'a [u8]) -> Result<Self> {
        let r = &mut Reader::new(body, WHAT);
        let request = match kind {
            WRITE => read_write(r)?,
            HELLO => Self::Hello { client: ClientId(r.u64()?), token: r.prefixed(TOKEN_LEN_MAX)? },
            LEND => {
                let (term, epoch, bytes) = (read_term(r)?, r.u64()?, r.u64()?);
                let (owner, label) = (read_owner(r)?, r.prefixed(LABEL_LEN_MAX)?);
                Self::Lend { owner, label, epoch, term, bytes }
            }
            FENCE => Self::Fence { term: read_term(r)?, owner: read_owner(r)? },
            LIST => {
                Self::List { term: read_term(r)?, after: RegionId(r.u64()?), owner: read_owner(r)? }
            }
            READ => {
                let (term, region, key) = (read_term(r)?, RegionId(r.u64()?), read_key(r)?);
                Self::Read { region, key, term, offset: r.u64()?, len: r.u32()? }
            }
            PUBLISH => {
                let (term, owner) = (read_term(r)?, read_owner(r)?);
                let (regions, withdraw) = (Regions::read(r)?, Regions::read(r)?);
                Self::Publish { owner, term, regions, withdraw }
            }
            FREE => {
                let (term, owner) = (read_term(r)?, read_owner(r)?);
                Self::Free { owner, term, regions: Regions::read(r)? }
            }
            MAP => {
                let (term, region) = (read_term(r)?, RegionId(r.u64()?));
                Self::Map { region, key: read_key(r)?, term }
            }
            USAGE => Self::Usage,
            _ => return Err(Error::unsupported(format!("{WHAT}: request {kind} is unknown"))),
        };
        r.clone().finish()?;
        Ok(request)
    }
}

fn check_owner(owner: &str, term: Term) -> Result<()> {
    if owner.is_empty() || owner.len() > OWNER_LEN_MAX {
        return Err(Error::invalid(format!(
            "owner of {} bytes: 1 to {OWNER_LEN_MAX} are valid",
            owner.len()
        )));
    }
    if term > TERM_MAX {
        return Err(Error::limit(format!("term {}, {} is the last", term.0, TERM_MAX.0)));
    }
    Ok(())
}

fn put_write(out: &mut Vec<u8>, term: Term, parts: Parts<'_>) {
    out.put_u64(term.0);
    out.put_u32(parts.len() as u32);
    out.put_u32(0);
    for part in parts.iter() {
        out.put_u64(part.region.0);
        put_key(out, part.key);
        out.put_u64(part.offset);
        out.put_u32(part.data.len() as u32);
        out.put_u32(0);
    }
    parts.iter().for_each(|part| out.put_bytes(part.data));
}

fn read_write<'a>(r: &mut Reader<'a>) -> Result<Request<'a>> {
    let (term, count, _) = (read_term(r)?, r.u32()? as usize, r.u32()?);
    if count == 0 || count > PARTS_MAX {
        return Err(corrupt(format_args!("a write of {count} parts, 1 to {PARTS_MAX} are valid")));
    }
    let heads = r.bytes(count * PART_LEN)?;
    let data = r.bytes(r.remaining())?;
    let lens = heads.chunks_exact(PART_LEN).filter_map(read_part).map(|(_, len)| len);
    let expected: usize = lens.sum();
    if expected != data.len() || expected > TRANSFER_LEN_MAX {
        return Err(corrupt(format_args!(
            "{} bytes of a write whose parts have {expected}, at most {TRANSFER_LEN_MAX} are valid",
            data.len()
        )));
    }
    Ok(Request::Write { term, parts: Parts::Arrived { heads, data } })
}

impl RegionEntry {
    /// Bytes that it takes in a page.
    #[must_use]
    pub const fn encoded_len_max(&self) -> usize {
        ENTRY_LEN + 2 + self.label.len()
    }
}

impl Reply {
    /// Appends the frame of a reply.
    ///
    /// # Panics
    /// When a page, a transfer or a list of owners is over its limit: the peer keeps to them.
    pub fn encode(
        &self,
        out: &mut Vec<u8>,
        generation: ConnectionGeneration,
        number: RequestNumber,
    ) {
        let start = frame::begin(out);
        let kind = match self {
            Self::Written => WRITTEN,
            Self::Welcome { peer, incarnation, free_bytes } => {
                out.put_u64(peer.0);
                out.put_u32(incarnation.0);
                out.put_u64(*free_bytes);
                WELCOME
            }
            Self::Lent { region, key, bytes } => {
                out.put_u64(region.0);
                put_key(out, *key);
                out.put_u64(*bytes);
                LENT
            }
            Self::Regions { term, regions, more } => {
                put_entries(out, *term, regions, *more);
                REGIONS
            }
            Self::Bytes(bytes) => {
                out.put_bytes(bytes);
                BYTES
            }
            Self::Published => PUBLISHED,
            Self::Freed { bytes } => {
                out.put_u64(*bytes);
                FREED
            }
            Self::Mapped { bytes, gate, gates_bytes } => {
                out.put_u64(*bytes);
                out.put_u32(*gate);
                out.put_u32(*gates_bytes);
                MAPPED
            }
            Self::Usage(usage) => {
                put_usage(out, usage);
                USED
            }
            Self::Refused(refusal) => {
                out.put_u8(refusal.reason as u8);
                out.put_u64(refusal.value);
                out.put_u64(refusal.limit);
                REFUSED
            }
            Self::Notice(Notice::Revoked(regions)) => {
                Regions::Given(regions).put(out);
                REVOKED
            }
            Self::Notice(Notice::Draining) => DRAINING,
        };
        frame::end(out, start, kind, generation, number);
    }

    /// Reads the body of a reply of this kind.
    ///
    /// # Errors
    /// Corruption; unsupported for an unknown kind.
    pub fn decode(kind: u8, body: &[u8]) -> Result<Self> {
        let r = &mut Reader::new(body, WHAT);
        let reply = match kind {
            WRITTEN => Self::Written,
            WELCOME => Self::Welcome {
                peer: PeerId(r.u64()?),
                incarnation: Incarnation(r.u32()?),
                free_bytes: r.u64()?,
            },
            LENT => {
                let (region, key) = (RegionId(r.u64()?), read_key(r)?);
                Self::Lent { region, key, bytes: r.u64()? }
            }
            REGIONS => read_entries(r)?,
            BYTES => {
                if body.len() > TRANSFER_LEN_MAX {
                    return Err(corrupt(format_args!(
                        "{} bytes were read, {TRANSFER_LEN_MAX} are possible",
                        body.len()
                    )));
                }
                Self::Bytes(r.bytes(body.len())?.to_vec())
            }
            PUBLISHED => Self::Published,
            FREED => Self::Freed { bytes: r.u64()? },
            MAPPED => Self::Mapped { bytes: r.u64()?, gate: r.u32()?, gates_bytes: r.u32()? },
            USED => Self::Usage(read_usage(r)?),
            REFUSED => {
                let reason = r.u8()?;
                let known = RefusalReason::ALL.iter().find(|known| **known as u8 == reason);
                let reason = *known.ok_or_else(|| {
                    Error::unsupported(format!("{WHAT}: reason {reason} is unknown"))
                })?;
                Self::Refused(Refusal { reason, value: r.u64()?, limit: r.u64()? })
            }
            REVOKED => Self::Notice(Notice::Revoked(Regions::read(r)?.iter().collect())),
            DRAINING => Self::Notice(Notice::Draining),
            _ => return Err(Error::unsupported(format!("{WHAT}: reply {kind} is unknown"))),
        };
        r.clone().finish()?;
        Ok(reply)
    }
}

fn put_entries(out: &mut Vec<u8>, term: Term, regions: &[RegionEntry], more: bool) {
    out.put_u64(term.0);
    out.put_u8(u8::from(more));
    out.put_u32(regions.len() as u32);
    for entry in regions {
        out.put_u64(entry.region.0);
        put_key(out, entry.key);
        [entry.bytes, entry.epoch, entry.term.0].into_iter().for_each(|number| out.put_u64(number));
        out.put_u8(u8::from(entry.is_published));
        out.put_prefixed(&entry.label);
    }
}

fn read_flag(r: &mut Reader<'_>) -> Result<bool> {
    match r.u8()? {
        0 => Ok(false),
        1 => Ok(true),
        byte => Err(corrupt(format_args!("a flag is {byte}, 0 and 1 are valid"))),
    }
}

fn read_entries(r: &mut Reader<'_>) -> Result<Reply> {
    let (term, more, count) = (read_term(r)?, read_flag(r)?, r.u32()? as usize);
    let most = r.remaining() / (ENTRY_LEN + 1);
    if count > most {
        return Err(corrupt(format_args!("{count} regions, there is room for {most}")));
    }
    let mut regions = Vec::with_capacity(count);
    for _ in 0..count {
        regions.push(RegionEntry {
            region: RegionId(r.u64()?),
            key: read_key(r)?,
            bytes: r.u64()?,
            epoch: r.u64()?,
            term: read_term(r)?,
            is_published: read_flag(r)?,
            label: r.prefixed(LABEL_LEN_MAX)?.to_vec(),
        });
    }
    Ok(Reply::Regions { term, regions, more })
}

fn put_usage(out: &mut Vec<u8>, usage: &Usage) {
    out.put_u64(usage.peer.0);
    out.put_u32(usage.incarnation.0);
    out.put_u8(u8::from(usage.is_draining));
    out.put_prefixed(usage.failure_domain.as_bytes());
    let mut copy = usage.clone();
    usage_numbers(&mut copy).into_iter().for_each(|number| out.put_u64(*number));
    let owners = &usage.owners[..usage.owners.len().min(OWNERS_SHOWN_MAX)];
    out.put_u32(owners.len() as u32);
    for owner in owners {
        out.put_prefixed(owner.owner.as_bytes());
        [owner.term.0, owner.regions, owner.published, owner.bytes]
            .into_iter()
            .for_each(|number| out.put_u64(number));
    }
}

/// The numbers of a usage in the order of their bytes.
const fn usage_numbers(usage: &mut Usage) -> [&mut u64; 15] {
    [
        &mut usage.limit_bytes,
        &mut usage.lent_bytes,
        &mut usage.ready_bytes,
        &mut usage.regions,
        &mut usage.published,
        &mut usage.connections,
        &mut usage.writes,
        &mut usage.write_bytes,
        &mut usage.reads,
        &mut usage.read_bytes,
        &mut usage.refusals,
        &mut usage.revocations,
        &mut usage.leaks_freed,
        &mut usage.fences,
        &mut usage.owners_count,
    ]
}

fn read_usage(r: &mut Reader<'_>) -> Result<Usage> {
    let mut usage = Usage {
        peer: PeerId(r.u64()?),
        incarnation: Incarnation(r.u32()?),
        is_draining: read_flag(r)?,
        failure_domain: String::from(read_text(r, DOMAIN_LEN_MAX)?),
        ..Usage::default()
    };
    for number in usage_numbers(&mut usage) {
        *number = r.u64()?;
    }
    let count = r.u32()? as usize;
    if count > OWNERS_SHOWN_MAX {
        return Err(corrupt(format_args!("{count} owners, {OWNERS_SHOWN_MAX} are possible")));
    }
    for _ in 0..count {
        usage.owners.push(OwnerUsage {
            owner: String::from(read_owner(r)?),
            term: read_term(r)?,
            regions: r.u64()?,
            published: r.u64()?,
            bytes: r.u64()?,
        });
    }
    Ok(usage)
}

//! Messages between peers that lend memory and those who write into it.

use crate::Format;
use gabion_base::{Error, Result, Term, crc};
use gabion_media::remote::frame::{BODY_LEN_MAX, HEADER_LEN, Header};
use gabion_media::remote::message::{Notice, Parts, Regions, Reply, Request};
use gabion_media::remote::{
    ClientId, ConnectionGeneration, Incarnation, Key, OwnerUsage, Part, PeerId, Refusal,
    RefusalReason, RegionEntry, RegionId, RequestNumber, Usage,
};

const GENERATION: ConnectionGeneration = ConnectionGeneration(3);
const NUMBER: RequestNumber = RequestNumber(5);

fn seal(bytes: &mut [u8]) {
    if bytes.len() < HEADER_LEN {
        return;
    }
    let (head, body) = bytes.split_at_mut(HEADER_LEN);
    head[24..28].copy_from_slice(&(body.len() as u32).to_le_bytes());
    head[28..32].copy_from_slice(&crc::crc32c(body).to_le_bytes());
    let sum = crc::crc32c(&head[..32]);
    head[32..].copy_from_slice(&sum.to_le_bytes());
}

/// Header and body of a frame.
fn open(bytes: &[u8]) -> Result<(Header, &[u8])> {
    let short = || Error::corruption("the frame is not whole");
    let (head, rest) = bytes.split_first_chunk().ok_or_else(short)?;
    let header = Header::decode(head, BODY_LEN_MAX)?;
    let body = rest.get(..header.body_len).filter(|body| body.len() == rest.len());
    let body = body.ok_or_else(short)?;
    header.check_body(body)?;
    Ok((header, body))
}

fn read_request(bytes: &[u8]) -> Result<Option<Vec<u8>>> {
    let (header, body) = open(bytes)?;
    let (request, mut out) = (Request::decode(header.kind, body)?, Vec::new());
    match request.check() {
        Ok(()) => {
            request.encode(&mut out, header.generation, header.number);
            Ok(Some(out))
        }
        // A peer refuses it in a reply, which names the limit.
        Err(_) => Ok(None),
    }
}

fn read_reply(bytes: &[u8]) -> Result<Option<Vec<u8>>> {
    let (header, body) = open(bytes)?;
    let mut out = Vec::new();
    Reply::decode(header.kind, body)?.encode(&mut out, header.generation, header.number);
    Ok(Some(out))
}

pub(crate) fn formats() -> Vec<Format> {
    let format = |name, samples, read| Format {
        is_canonical: false,
        repair: Box::new(|bytes| seal(bytes)),
        ..Format::new(name, samples, read)
    };
    let request: fn(&[u8]) -> Result<Option<Vec<u8>>> = read_request;
    vec![
        format("request to a memory peer", requests(), request),
        format("reply of a memory peer", replies(), read_reply),
    ]
}

fn requests() -> Vec<Vec<u8>> {
    let (owner, term, key, region) = ("redis", Term(4), Key(7), RegionId(9));
    let parts = [
        Part { region, key, offset: 64, data: b"a record" },
        Part { region: RegionId(10), key, offset: 0, data: b"and its cell" },
    ];
    let named = [region, RegionId(10)];
    let regions = Regions::Given(&named);
    let all = [
        Request::Hello { client: ClientId(1), token: b"secret" },
        Request::Lend { owner, label: b"appendonly.aof", epoch: 2, term, bytes: 1 << 20 },
        Request::Fence { owner, term },
        Request::List { owner, term, after: region },
        Request::Write { term, parts: Parts::Given(&parts) },
        Request::Read { region, key, term, offset: 64, len: 100 },
        Request::Publish { owner, term, regions, withdraw: Regions::Given(&named[..1]) },
        Request::Free { owner, term, regions },
        Request::Map { region, key, term },
        Request::Usage,
    ];
    let bytes = all.iter().map(|request| {
        let mut out = Vec::new();
        request.encode(&mut out, GENERATION, NUMBER);
        out
    });
    bytes.collect()
}

fn replies() -> Vec<Vec<u8>> {
    let entry = RegionEntry {
        region: RegionId(9),
        key: Key(7),
        bytes: 1 << 20,
        epoch: 2,
        term: Term(4),
        is_published: true,
        label: b"appendonly.aof".to_vec(),
    };
    let owner =
        OwnerUsage { owner: "redis".into(), term: Term(4), regions: 2, published: 1, bytes: 9 };
    let usage = Usage {
        failure_domain: "rack-1".into(),
        owners: vec![owner.clone(), owner],
        ..Usage::default()
    };
    let all = [
        Reply::Written,
        Reply::Welcome { peer: PeerId(1), incarnation: Incarnation(2), free_bytes: 1 << 30 },
        Reply::Lent { region: RegionId(9), key: Key(7), bytes: 1 << 20 },
        Reply::Regions { term: Term(4), regions: vec![entry.clone(), entry], more: true },
        Reply::Bytes(b"a record".to_vec()),
        Reply::Published,
        Reply::Freed { bytes: 1 << 20 },
        Reply::Mapped { bytes: 1 << 20, gate: 3, gates_bytes: 4_096 },
        Reply::Usage(usage),
        Reply::Refused(Refusal { reason: RefusalReason::ALL[0], value: 9, limit: 8 }),
        Reply::Notice(Notice::Revoked(vec![RegionId(9)])),
        Reply::Notice(Notice::Draining),
    ];
    let bytes = all.iter().map(|reply| {
        let mut out = Vec::new();
        reply.encode(&mut out, GENERATION, NUMBER);
        out
    });
    bytes.collect()
}

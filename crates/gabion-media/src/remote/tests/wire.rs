//! Messages and frames: there and back, torn, flipped, and split anywhere.
//!
//! docs/faults.md: N10

use super::*;
use crate::remote::frame::{BODY_LEN_MAX, GREETING_LEN_MAX, HEADER_LEN, Header};
use crate::remote::stream::Inbox;
use alloc::string::String;
use proptest::collection::vec as many;
use proptest::prelude::*;

const GENERATION: ConnectionGeneration = ConnectionGeneration(9);

/// A request with what it borrows.
#[derive(Clone, Debug)]
struct Owned {
    kind: u8,
    owner: String,
    bytes: Vec<u8>,
    numbers: [u64; 3],
    key: u128,
    parts: Vec<(u64, u128, u64, Vec<u8>)>,
    regions: [Vec<u64>; 2],
}

prop_compose! {
    fn any_owned()(
        kind in 0u8..10,
        owner in "[a-zµ-]{1,60}",
        bytes in many(any::<u8>(), 0..1024),
        numbers: [u64; 3],
        key: u128,
        parts in many((any::<u64>(), any::<u128>(), any::<u64>(), many(any::<u8>(), 0..300)), 1..9),
        first in many(any::<u64>(), 0..40),
        second in many(any::<u64>(), 0..40),
    ) -> Owned {
        Owned { kind, owner, bytes, numbers, key, parts, regions: [first, second] }
    }
}

/// Hands the request that `owned` stands for to `with`.
fn with_request<R>(owned: &Owned, with: impl FnOnce(&Request<'_>) -> R) -> R {
    let [a, b, c] = owned.numbers;
    let (term, owner, key) = (Term(a >> 32), owned.owner.as_str(), Key(owned.key));
    let ids = |list: &[u64]| list.iter().map(|id| RegionId(*id)).collect::<Vec<_>>();
    let (first, second) = (ids(&owned.regions[0]), ids(&owned.regions[1]));
    let parts: Vec<Part<'_>> = owned
        .parts
        .iter()
        .map(|(region, key, offset, data)| Part {
            region: RegionId(*region),
            key: Key(*key),
            offset: *offset,
            data,
        })
        .collect();
    let (regions, withdraw) = (Regions::Given(&first), Regions::Given(&second));
    with(&match owned.kind {
        0 => Request::Hello { client: ClientId(a), token: &owned.bytes },
        1 => Request::Lend { owner, label: &owned.bytes, epoch: b, term, bytes: c },
        2 => Request::Fence { owner, term },
        3 => Request::List { owner, term, after: RegionId(b) },
        4 => Request::Write { term, parts: Parts::Given(&parts) },
        5 => Request::Read { region: RegionId(b), key, term, offset: c, len: a as u32 % 1000 },
        6 => Request::Publish { owner, term, regions, withdraw },
        7 => Request::Free { owner, term, regions },
        8 => Request::Map { region: RegionId(b), key, term },
        _ => Request::Usage,
    })
}

fn any_entry() -> impl Strategy<Value = RegionEntry> {
    (any::<[u64; 3]>(), any::<u128>(), any::<u32>(), any::<bool>(), many(any::<u8>(), 0..1024))
        .prop_map(|([region, bytes, epoch], key, term, is_published, label)| RegionEntry {
            region: RegionId(region),
            key: Key(key),
            bytes,
            epoch,
            term: Term(term.into()),
            is_published,
            label,
        })
}

fn any_reply() -> impl Strategy<Value = Reply> {
    let numbers = any::<[u64; 3]>();
    prop_oneof![
        (numbers, any::<u32>()).prop_map(|([a, b, _], c)| Reply::Welcome {
            peer: PeerId(a),
            incarnation: Incarnation(c),
            free_bytes: b,
        }),
        (numbers, any::<u128>()).prop_map(|([a, b, _], key)| Reply::Lent {
            region: RegionId(a),
            key: Key(key),
            bytes: b,
        }),
        (any::<u32>(), any::<bool>(), many(any_entry(), 0..20)).prop_map(
            |(term, more, regions)| Reply::Regions { term: Term(term.into()), more, regions }
        ),
        Just(Reply::Written),
        many(any::<u8>(), 0..5000).prop_map(Reply::Bytes),
        Just(Reply::Published),
        any::<u64>().prop_map(|bytes| Reply::Freed { bytes }),
        (any::<u64>(), any::<u32>(), any::<u32>())
            .prop_map(|(bytes, gate, gates_bytes)| Reply::Mapped { bytes, gate, gates_bytes }),
        (numbers, any::<u32>()).prop_map(|([a, b, c], run)| Reply::Usage(Usage {
            peer: PeerId(a),
            incarnation: Incarnation(run),
            lent_bytes: b,
            fences: c,
            owners_count: 1,
            owners: vec![OwnerUsage { owner: "a".into(), bytes: c, ..OwnerUsage::default() }],
            ..Usage::default()
        })),
        (0..RefusalReason::ALL.len(), numbers).prop_map(|(at, [value, limit, _])| {
            Reply::Refused(Refusal::new(RefusalReason::ALL[at], value, limit))
        }),
        many(any::<u64>().prop_map(RegionId), 0..99)
            .prop_map(|regions| Reply::Notice(Notice::Revoked(regions))),
        Just(Reply::Notice(Notice::Draining)),
    ]
}

/// Feeds bytes to an inbox as these limits split them, and gives the frames.
fn frames(bytes: &[u8], limits: &[usize]) -> Result<Vec<(Header, Vec<u8>)>> {
    let (mut near, far) = pipe(limits);
    near.into.borrow_mut().bytes.extend(bytes);
    drop(far);
    let (mut inbox, mut found) = (Inbox::default(), Vec::new());
    loop {
        while let Some((header, body)) = inbox.next_frame(BODY_LEN_MAX)? {
            found.push((header, inbox.body(body).to_vec()));
        }
        if inbox.fill(&mut near)? == Some(0) {
            return Ok(found);
        }
    }
}

proptest! {
    #[test]
    fn requests_come_out_of_any_split_of_the_stream_as_they_went_in(
        all in many(any_owned(), 1..12),
        limits in many(1usize..400, 1..8),
    ) {
        let mut bytes = Vec::new();
        for (at, owned) in all.iter().enumerate() {
            let number = RequestNumber(at as u64 + 1);
            with_request(owned, |request| {
                request.check().unwrap();
                request.encode(&mut bytes, GENERATION, number);
            });
        }
        let found = frames(&bytes, &limits).unwrap();
        prop_assert_eq!(found.len(), all.len());
        for (at, ((header, body), owned)) in found.iter().zip(&all).enumerate() {
            prop_assert_eq!(header.number.0, at as u64 + 1);
            prop_assert_eq!(header.generation, GENERATION);
            let decoded = Request::decode(header.kind, body).unwrap();
            with_request(owned, |request| assert_eq!(decoded, *request));
        }
    }

    #[test]
    fn replies_come_out_of_any_split_of_the_stream_as_they_went_in(
        all in many(any_reply(), 1..12),
        limits in many(1usize..400, 1..8),
    ) {
        let mut bytes = Vec::new();
        for reply in &all {
            reply.encode(&mut bytes, GENERATION, RequestNumber(4));
        }
        let found = frames(&bytes, &limits).unwrap();
        let decoded: Vec<_> =
            found.iter().map(|(header, body)| Reply::decode(header.kind, body).unwrap()).collect();
        prop_assert_eq!(decoded, all);
    }

    #[test]
    fn a_flipped_bit_anywhere_is_found(owned in any_owned(), at: prop::sample::Index) {
        let mut bytes = Vec::new();
        with_request(&owned, |request| request.encode(&mut bytes, GENERATION, RequestNumber(1)));
        let bit = at.index(bytes.len() * 8);
        bytes[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(frames(&bytes, &[]).is_err());
    }

    #[test]
    fn a_torn_frame_is_none(owned in any_owned(), at: prop::sample::Index) {
        let mut bytes = Vec::new();
        with_request(&owned, |request| request.encode(&mut bytes, GENERATION, RequestNumber(1)));
        bytes.truncate(at.index(bytes.len()));
        prop_assert_eq!(frames(&bytes, &[]).unwrap(), vec![]);
    }

    /// Bodies with a right checksum and wrong contents: a decoder gives an error or a message that
    /// encodes again, and never panics.
    #[test]
    fn any_body_of_any_kind_is_decoded_or_refused(
        kind: u8,
        owned in any_owned(),
        noise in many((any::<prop::sample::Index>(), any::<u8>()), 0..4),
    ) {
        let mut bytes = Vec::new();
        with_request(&owned, |request| request.encode(&mut bytes, GENERATION, RequestNumber(1)));
        let mut body = bytes.split_off(HEADER_LEN);
        for (at, byte) in noise {
            if !body.is_empty() {
                let at = at.index(body.len());
                body[at] = byte;
            }
        }
        if let Ok(request) = Request::decode(kind, &body) {
            let mut again = Vec::new();
            request.encode(&mut again, GENERATION, RequestNumber(1));
        }
        if let Ok(reply) = Reply::decode(kind, &body) {
            let mut again = Vec::new();
            reply.encode(&mut again, GENERATION, RequestNumber(1));
        }
    }
}

/// A header whose checksum is right, with a body of this length behind it.
fn header_of(body_len: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    Request::Usage.encode(&mut bytes, GENERATION, RequestNumber(1));
    bytes[24..28].copy_from_slice(&body_len.to_le_bytes());
    let sum = gabion_base::crc::crc32c(&bytes[..32]);
    bytes[32..36].copy_from_slice(&sum.to_le_bytes());
    bytes
}

#[test]
fn a_length_is_refused_before_memory_is_reserved() {
    let decode = |len: u32, most| {
        let bytes = header_of(len);
        Header::decode(bytes.first_chunk().unwrap(), most).map(|header| header.body_len)
    };
    for most in [GREETING_LEN_MAX, BODY_LEN_MAX] {
        assert_eq!(decode(most as u32, most).unwrap(), most);
        for over in [most as u32 + 1, u32::MAX] {
            let error = decode(over, most).unwrap_err();
            assert_eq!(error.kind(), gabion_base::ErrorKind::LimitExceeded, "{error}");
        }
    }
}

#[test]
fn a_body_under_another_header_is_found() {
    let mut bytes = [Vec::new(), Vec::new()];
    for (at, bytes) in bytes.iter_mut().enumerate() {
        let data = [at as u8; 8];
        Request::Hello { client: CLIENT, token: &data }.encode(bytes, GENERATION, RequestNumber(1));
    }
    let swapped = [&bytes[0][..HEADER_LEN], &bytes[1][HEADER_LEN..]].concat();
    assert!(frames(&swapped, &[]).is_err());
}

#[test]
fn a_frame_of_another_version_is_refused_as_unsupported() {
    let mut bytes = header_of(0);
    bytes[4] = 2;
    let sum = gabion_base::crc::crc32c(&bytes[..32]);
    bytes[32..36].copy_from_slice(&sum.to_le_bytes());
    let error = frames(&bytes, &[]).unwrap_err();
    assert_eq!(error.kind(), gabion_base::ErrorKind::Unsupported);
}

#[test]
fn every_refusal_reads_as_a_sentence_with_value_and_limit() {
    let refusal = Refusal::new(RefusalReason::NoMemory, 8192, 4096);
    assert_eq!(
        alloc::format!("{}", refusal.error()),
        "memory peer: 8192 bytes are more than are free (limit 4096)"
    );
    let old = Refusal::new(RefusalReason::OldTerm, 3, 4).error();
    assert_eq!(old.kind(), gabion_base::ErrorKind::Fenced);
    // Counts of refusals have a place for each.
    let numbers = RefusalReason::ALL.iter().map(|reason| *reason as usize);
    assert!(numbers.eq(1..=RefusalReason::ALL.len()), "reasons are numbered from 1");
}

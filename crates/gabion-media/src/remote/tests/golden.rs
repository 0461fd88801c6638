//! The bytes of version 1, one message of each kind. A change of the format changes the version and
//! `golden.txt` in one commit: `GABION_REWRITE=1` writes it.

extern crate std;

use super::*;
use alloc::format;
use alloc::string::String;

const GOLDEN: &str = include_str!("golden.txt");
const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/remote/tests/golden.txt");

fn requests(out: &mut Vec<(String, Vec<u8>)>) {
    let (region, key, term) = (RegionId::new(Incarnation(5), 1), Key(0x0102), Term(2));
    let parts = [
        Part { region, key, offset: 4096, data: b"data" },
        Part { region, key, offset: 64, data: b"cell" },
    ];
    let (some, none) = ([region, RegionId::new(Incarnation(5), 2)], []);
    let (regions, withdraw) = (Regions::Given(&some), Regions::Given(&none));
    let (owner, label) = ("app", &b"log"[..]);
    for request in [
        Request::Hello { client: CLIENT, token: b"token" },
        Request::Lend { owner, label, epoch: 3, term, bytes: 4096 },
        Request::Fence { owner, term },
        Request::List { owner, term, after: region },
        Request::Write { term, parts: Parts::Given(&parts) },
        Request::Read { region, key, term, offset: 64, len: 8 },
        Request::Publish { owner, term, regions, withdraw },
        Request::Free { owner, term, regions },
        Request::Map { region, key, term },
        Request::Usage,
    ] {
        let mut bytes = Vec::new();
        request.encode(&mut bytes, ConnectionGeneration(3), RequestNumber(4));
        let name = name(&format!("{request:?}"));
        assert_eq!(name.to_lowercase(), Request::KINDS[request.kind()], "a word for each kind");
        out.push((name, bytes));
    }
}

fn replies(out: &mut Vec<(String, Vec<u8>)>) {
    let (region, key, term) = (RegionId::new(Incarnation(5), 1), Key(0x0102), Term(2));
    let label = b"log".to_vec();
    let entry = RegionEntry { region, key, bytes: 4096, epoch: 3, term, is_published: true, label };
    let owner = OwnerUsage { owner: "app".into(), term, regions: 1, published: 1, bytes: 4096 };
    let usage = Usage {
        peer: PeerId(1),
        incarnation: Incarnation(5),
        limit_bytes: 2,
        lent_bytes: 3,
        owners_count: 16,
        owners: vec![owner],
        ..Usage::default()
    };
    for reply in [
        Reply::Welcome { peer: PeerId(1), incarnation: Incarnation(5), free_bytes: 7 },
        Reply::Lent { region, key, bytes: 4096 },
        Reply::Regions { term, regions: vec![entry], more: false },
        Reply::Written,
        Reply::Bytes(b"bytes".to_vec()),
        Reply::Published,
        Reply::Freed { bytes: 4096 },
        Reply::Mapped { bytes: 4096, gate: 1, gates_bytes: 8192 },
        Reply::Usage(usage),
        Reply::Refused(Refusal::new(RefusalReason::NoMemory, 9, 8)),
        Reply::Notice(Notice::Revoked(vec![region])),
        Reply::Notice(Notice::Draining),
    ] {
        let mut bytes = Vec::new();
        reply.encode(&mut bytes, ConnectionGeneration(3), RequestNumber(4));
        out.push((name(&format!("{reply:?}")), bytes));
    }
}

/// The first word, or what a notice tells.
fn name(debug: &str) -> String {
    let debug = debug.strip_prefix("Notice(").unwrap_or(debug);
    debug.chars().take_while(|c| c.is_alphanumeric()).collect()
}

#[test]
#[expect(clippy::disallowed_methods, reason = "the test rewrites its data file")]
fn one_message_of_each_kind_has_these_bytes() {
    let mut messages = Vec::new();
    requests(&mut messages);
    replies(&mut messages);
    let line = |(name, bytes): &(String, Vec<u8>)| {
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{name} {hex}\n")
    };
    let found: String = messages.iter().map(line).collect();
    if std::env::var_os("GABION_REWRITE").is_some() {
        return std::fs::write(PATH, found).unwrap();
    }
    assert_eq!(found, GOLDEN);
}

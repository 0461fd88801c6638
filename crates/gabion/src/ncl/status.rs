//! `gabion ncl status`: what a peer holds and has done.

use super::identity::client_number;
use super::{Shown, StatusOptions};
use crate::screen;
use crate::units::{count, size};
use gabion_base::{Error, Result};
use gabion_media::remote::{
    ClientConfig, ClientId, ConnectionGeneration, OwnerUsage, Reply, Request, Usage,
};
use gabion_ncl_driver::tls::connect_to_any;
use serde_json::{Value, json};
use std::fmt::Write;

pub(super) fn run(options: &StatusOptions) -> Result<u8> {
    let mut config = ClientConfig::new(ClientId(client_number()), ConnectionGeneration(1));
    let shown = Shown::open(options.token_file.as_deref(), options.identity.as_deref())?;
    config.token = shown.token();
    let mut link = connect_to_any(options.address(), config, shown.tls.as_deref())?;
    let usage = match link.call(&Request::Usage)? {
        Reply::Usage(usage) => usage,
        Reply::Refused(refusal) => return Err(refusal.error()),
        other => return Err(Error::corruption(format!("the peer replies {other:?}"))),
    };
    let text = match options.json {
        true => format!("{:#}\n", in_json(&usage)),
        false => in_words(&usage),
    };
    screen::put(&text);
    Ok(0)
}

fn in_json(usage: &Usage) -> Value {
    let owner = |owner: &OwnerUsage| {
        json!({
            "owner": owner.owner,
            "term": owner.term.0,
            "regions": owner.regions,
            "published": owner.published,
            "bytes": owner.bytes,
        })
    };
    json!({
        "peer": usage.peer.to_string(),
        "incarnation": usage.incarnation.0,
        "failure_domain": usage.failure_domain,
        "draining": usage.is_draining,
        "memory": {
            "limit": usage.limit_bytes,
            "lent": usage.lent_bytes,
            "free": usage.free_bytes(),
            "ready": usage.ready_bytes,
        },
        "regions": usage.regions,
        "published": usage.published,
        "connections": usage.connections,
        "writes": usage.writes,
        "write_bytes": usage.write_bytes,
        "reads": usage.reads,
        "read_bytes": usage.read_bytes,
        "refusals": usage.refusals,
        "revocations": usage.revocations,
        "leaks_freed": usage.leaks_freed,
        "fences": usage.fences,
        "owners_count": usage.owners_count,
        "owners": usage.owners.iter().map(owner).collect::<Vec<_>>(),
    })
}

fn in_words(usage: &Usage) -> String {
    let mut out = String::new();
    let mut line = |text: String| {
        // A string takes all.
        let _ = writeln!(out, "{text}");
    };
    let domain = match usage.failure_domain.as_str() {
        "" => String::new(),
        name => format!(", failure domain {name}"),
    };
    let draining = if usage.is_draining { ", draining" } else { "" };
    line(format!("peer {}, run {}{domain}{draining}", usage.peer, usage.incarnation));
    line(format!(
        "  memory   {} lent of {}, {} free, {} of it zeroed ahead",
        size(usage.lent_bytes),
        size(usage.limit_bytes),
        size(usage.free_bytes()),
        size(usage.ready_bytes)
    ));
    line(format!(
        "  regions  {}, {} published, of {}",
        usage.regions,
        usage.published,
        count(usage.owners_count, "owner")
    ));
    line(format!(
        "  traffic  {} with {}, {} with {}, by {}; writes into shared memory are not seen here",
        count(usage.writes, "write"),
        size(usage.write_bytes),
        count(usage.reads, "read"),
        size(usage.read_bytes),
        count(usage.connections, "connection")
    ));
    line(format!(
        "  events   {}, {}, {} freed, {}",
        count(usage.refusals, "refusal"),
        count(usage.revocations, "revocation"),
        count(usage.leaks_freed, "leak"),
        count(usage.fences, "fence")
    ));
    for owner in &usage.owners {
        line(format!(
            "  {}: term {}, {} ({} published), {}",
            owner.owner.escape_debug(),
            owner.term.0,
            count(owner.regions, "region"),
            owner.published,
            size(owner.bytes)
        ));
    }
    if usage.owners_count > usage.owners.len() as u64 {
        line(format!("  and {} more", usage.owners_count - usage.owners.len() as u64));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use gabion_base::Term;
    use gabion_media::remote::{Incarnation, PeerId};

    #[test]
    fn a_status_reads_in_words_and_as_json() {
        let owner = "redis\n".to_owned();
        let usage = Usage {
            peer: PeerId(0xab),
            incarnation: Incarnation(3),
            limit_bytes: 4 << 30,
            lent_bytes: 1 << 30,
            regions: 2,
            published: 1,
            writes: 1,
            failure_domain: "rack1".to_owned(),
            owners: vec![OwnerUsage { owner, term: Term(7), regions: 2, published: 1, bytes: 9 }],
            owners_count: 2,
            ..Usage::default()
        };
        let text = in_words(&usage);
        assert!(text.starts_with("peer 00000000000000ab, run 3, failure domain rack1\n"), "{text}");
        assert!(text.contains("1.0 GiB lent of 4.0 GiB, 3.0 GiB free"), "{text}");
        assert!(text.contains(r"redis\n: term 7, 2 regions (1 published), 9 B"), "{text}");
        assert!(text.ends_with("and 1 more\n"), "{text}");
        let value = in_json(&usage);
        assert_eq!(value["memory"]["free"], 3u64 << 30);
        assert_eq!(value["owners"][0]["term"], 7);
    }
}

//! Edits that come once more, from this term or an older one (docs/faults.md H3): they are refused,
//! and nothing changes.
#![expect(clippy::unwrap_used, reason = "a test that meets an error has failed")]

use gabion_base::{FileId, Frontier, Term};
use gabion_engine::Compression;
use gabion_log::{RecordKind, decode_header};
use gabion_node::{CompactionMode, Node};
use gabion_replication::Message;
use gabion_sim::{Faults, Kept, Options, World};
use std::collections::BTreeMap;

/// Runs until each kind of edit has come again: that depends on the seeds.
const SEEDS: core::ops::Range<u64> = 7..17;
/// Edits of one term that are delivered again.
const OF_A_TERM: usize = 2;
const DISGUISES: usize = 3;

/// Three replicas that ship files, and kills: each of the primary's begins a term.
fn options(seed: u64) -> Options {
    Options {
        replicas: 3,
        compaction: CompactionMode::Primary,
        compression: Compression::None,
        faults: Faults { kill: 700, ..Faults::default() },
        ..Options::of_seed(seed)
    }
}

fn has_edit(kept: &Kept, segment_len: u64) -> bool {
    let Message::Records { bytes, .. } = &kept.frame.message else { return false };
    let mut rest: &[u8] = &bytes.concat();
    while let Ok(header) = decode_header(rest) {
        if header.kind == RecordKind::Edit {
            return true;
        }
        let len = header.end(segment_len).get() - header.position.get();
        rest = rest.get(len as usize..).unwrap_or_default();
    }
    false
}

/// All that an edit changes.
#[derive(Debug, PartialEq)]
struct State {
    log_end: Frontier,
    edits_applied: u64,
    edits_waiting: usize,
    last_edit: u64,
    files: Vec<(u8, FileId, u32)>,
    placed: Vec<FileId>,
}

impl State {
    fn of(node: &Node) -> Self {
        let version = node.tree().version();
        Self {
            log_end: node.log_end(),
            edits_applied: node.counters().edits,
            edits_waiting: node.edits_waiting(),
            last_edit: node.tree().last_edit(),
            files: version.files().map(|(level, meta)| (level, meta.id, meta.checksum)).collect(),
            placed: node.pool().files().map(|placement| placement.file).collect(),
        }
    }
}

/// The frame as it was, as if it had come on the current connection, and as if it were of this term
/// too.
fn disguises(world: &World, kept: &Kept, now: Term) -> [Kept; DISGUISES] {
    let as_it_was = kept.clone();
    let mut on_this_connection = kept.clone();
    let connection = world.connection(kept.frame.from, kept.to);
    on_this_connection.frame.connection = connection.expect("members are connected at rest");
    let mut of_this_term = on_this_connection.clone();
    of_this_term.frame.term = now;
    [as_it_was, on_this_connection, of_this_term]
}

/// docs/faults.md: H3
#[test]
fn an_edit_that_comes_twice_or_from_an_old_term_is_refused_and_changes_nothing() {
    let (mut old, mut new) = (0, 0);
    for seed in SEEDS {
        let (of_old, of_this) = edits_come_again(seed);
        (old, new) = (old + of_old, new + of_this);
        if old > 0 && new > 0 {
            return;
        }
    }
    panic!("{old} edits of an old term came again, and {new} of the term that runs");
}

/// The counts for an old term, and for the running one.
fn edits_come_again(seed: u64) -> (usize, usize) {
    let mut world = World::new(seed, options(seed));
    world.keep_frames();
    world.advance(5_000).unwrap();
    world.settle().unwrap();
    let kept = world.take_kept();
    let segment_len = world.group().segment_len;
    let now = world.node(0).unwrap().protocol().term();
    let (mut old, mut new) = (0, 0);
    let mut per_term = BTreeMap::<Term, usize>::new();
    for kept in kept.iter().filter(|kept| has_edit(kept, segment_len)) {
        let term = kept.frame.term;
        let count = per_term.entry(term).or_default();
        *count += 1;
        if *count <= OF_A_TERM {
            comes_again(&mut world, kept, now);
            *if term < now { &mut old } else { &mut new } += 1;
        }
    }
    world.finish().unwrap();
    (old, new)
}

fn comes_again(world: &mut World, kept: &Kept, now: Term) {
    for number in 0..DISGUISES {
        let what = format!("disguise {number} of an edit of {}, {now} runs", kept.frame.term);
        let before = State::of(world.node(kept.to).unwrap());
        world.deliver_now(disguises(world, kept, now)[number].clone());
        assert_eq!(State::of(world.node(kept.to).unwrap()), before, "{what}");
        world.settle().unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!(State::of(world.node(kept.to).unwrap()), before, "{what}, at rest");
    }
}

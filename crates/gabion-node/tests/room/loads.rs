//! Writes at a head behind a bulk load that lies in L0.

use crate::replica::Replica;
use gabion_base::ErrorKind;
use gabion_base::units::{EDIT_LEN_MAX, GIB, KIB, MIB};
use gabion_engine::{FileMeta, FinishedFile, JobKind, LoadBuilder, TreeConfig};
use gabion_node::{LoadGate, LoadState, WriteGate};

/// Loads keys of 1,000 bytes each, from `key 000000` on. What is to be flushed for it is;
/// compactions stay as they are unless it waits for them.
fn load(replica: &mut Replica, keys: u32) -> usize {
    let node = &mut replica.node;
    let id = node.begin_load().unwrap();
    let tree = node.tree().config();
    let (sst, len) = (tree.sst_of_job(JobKind::Load, true), tree.sst_len);
    let mut builder = LoadBuilder::new(node.config().group, node.state().term(), sst, len);
    let mut files = Vec::new();
    for n in 0..keys {
        let (key, number) = (format!("key {n:06}"), || node.load_number(id));
        files.extend(builder.put(key.as_bytes(), &[b'l'; 1_000], None, number).unwrap());
    }
    files.extend(builder.finish());
    for file in &files {
        while replica.node.load_gate(id, file.bytes.len() as u64).unwrap() != LoadGate::Open {
            replica.pass(1);
        }
        assert!(replica.node.add_to_load(id, file).unwrap());
    }
    replica.pass(1);
    replica.node.end_load(id).unwrap();
    for _ in 0..100 {
        replica.pass(1);
        match replica.node.load_state(id) {
            LoadState::Done => return files.len(),
            LoadState::Failed(error) => panic!("{error}"),
            LoadState::Working => {}
        }
        if let Some(kind) = replica.kinds().first() {
            replica.succeed(*kind);
        }
    }
    panic!("the load does not come to its end");
}

/// docs/faults.md: P27
#[test]
fn writes_go_on_behind_a_load_of_more_files_than_l0_may_have() {
    let tree = TreeConfig {
        memtable_len: 16 * KIB,
        sst_len: 32 * KIB,
        level1_len: 64 * KIB,
        l0_trigger: 2,
        l0_slowdown: 4,
        l0_stop: 6,
        ..TreeConfig::default()
    };
    let mut replica = Replica::start(256 * MIB, tree, 64 * KIB);
    for _ in 0..3 {
        replica.seal();
        replica.work();
    }
    // In memory, on both sides of the load.
    replica.put("key");
    replica.put("key 9");
    replica.node.end_turn().unwrap();
    let files = load(&mut replica, 900);
    let in_l0 = replica.node.tree().version().level(0).len();
    let l0_stop = replica.node.tree().config().l0_stop as usize;
    assert!(in_l0 > l0_stop && in_l0 >= files, "{in_l0} of {files} files in L0");
    assert_eq!(replica.node.write_gate(), WriteGate::Open);
    replica.put("key 000700");
    replica.node.end_turn().unwrap();
    replica.pass(1);
    let before = replica.node.counters();
    replica.work();
    let after = replica.node.counters();
    let merges = after.compactions - before.compactions;
    let moves = after.trivial_moves - before.trivial_moves;
    assert!(merges <= 4 && moves <= 8, "{merges} compactions, {moves} moves of {files} files");
    assert_eq!(replica.node.tree().version().level(0).len(), 0);
    let view = replica.node.tree().view();
    let loaded = "l".repeat(1_000);
    for (key, value) in [("key", "value"), ("key 000700", "value"), ("key 000899", &*loaded)] {
        assert_eq!(replica.value(&view, key).as_deref(), Some(value), "{key}");
    }
}

/// A load of as many files as it takes ends as any other: were its edit too long, the head would
/// end itself.
#[test]
fn a_load_that_is_taken_to_its_limit_is_applied() {
    let mut replica = Replica::start(16 * GIB, TreeConfig::default(), MIB);
    let node = &mut replica.node;
    let id = node.begin_load().unwrap();
    let sst = node.tree().config().sst_of_job(JobKind::Load, true);
    let (group, term) = (node.config().group, node.state().term());
    let mut builder = LoadBuilder::new(group, term, sst, MIB);
    assert!(builder.put(b"key", b"value", None, || node.load_number(id)).unwrap().is_none());
    let first = builder.finish().unwrap();
    let described = |file: &FileMeta| {
        let mut out = Vec::new();
        file.encode(&mut out);
        out.len()
    };
    let (mut files, mut len) = (0, 0);
    let refused = loop {
        // Its bytes are of no matter here.
        let key = [&[1][..], format!("{files:05}").as_bytes()].concat();
        let number = if files == 0 { first.meta.id } else { node.load_number(id).unwrap() };
        let meta =
            FileMeta { id: number, smallest: key.clone(), largest: key, ..first.meta.clone() };
        let file = FinishedFile { meta, bytes: first.bytes.clone(), memory: first.memory.clone() };
        match node.add_to_load(id, &file) {
            Ok(taken) => assert!(taken),
            Err(error) => break error,
        }
        (files, len) = (files + 1, len + described(&file.meta));
    };
    assert_eq!(refused.kind(), ErrorKind::LimitExceeded);
    assert!(files > 4_096 && len + 16 * files > EDIT_LEN_MAX - 4_096, "{files} files");
    replica.pass(1);
    replica.node.end_load(id).unwrap();
    replica.pass(1);
    assert!(matches!(replica.node.load_state(id), LoadState::Done));
    assert_eq!(replica.node.tree().version().files().count(), files);
}

//! FAULTS.md E13: a file is a pure function of its recipe. The same recipe gives the same bytes on another
//! replica, on any thread, wherever its reads are held up, and however a MemTable came to hold its entries.

use crate::support::*;
use gabion_base::{FileId, LogPosition, MemTableId, SequenceNumber};
use gabion_engine::*;
use gabion_media::Bytes;
use proptest::prelude::*;
use std::sync::Arc;

/// A replica with several files in L0 and L1, all from one seed, and the next compaction.
fn replica_with_work(seed: u64) -> Replica {
    let mut random = Random::new(seed);
    let mut replica = Replica::new(small_config());
    let mut number = 0;
    for round in 0..12u64 {
        let mut batch = BatchBuilder::new();
        for _ in 0..60 {
            let name = format!("key{:04}", random.below(600)).into_bytes();
            if random.one_in(4) {
                batch.delete(Keyspace::User, &name).unwrap();
            } else if random.one_in(3) {
                let value = vec![random.below(256) as u8; random.below(300) as usize];
                let expires_ms = 100 * round + random.below(1000);
                batch.put_expiring(Keyspace::User, &name, &value, expires_ms).unwrap();
            } else {
                let value = vec![random.below(256) as u8; random.below(300) as usize];
                batch.put(Keyspace::User, &name, &value).unwrap();
            }
        }
        let first = replica.tree.last_sequence().next();
        replica.tree.apply_batch(first, batch.as_bytes()).unwrap();
        replica.tree.pass_time(100 * round);
        let active = replica.tree.active_id();
        replica.tree.seal(active, LogPosition(round + 1)).unwrap();
        while replica.tree.sealed_count() > 0 || round == 8 {
            let Some(job) = replica.tree.next_job(&context(&[])) else { break };
            number += 1;
            let (output, _) = run(&job, &replica.files);
            let edit = replica.tree.finish_job(output, number).unwrap();
            replica.tree.apply_edit(&edit).unwrap();
        }
    }
    replica
}

fn run(job: &JobInputs, files: &Files) -> (JobOutput, Vec<(FileId, Bytes)>) {
    let mut sink = files.clone();
    let output = block_on(run_job(job, GROUP, files, &mut sink)).unwrap();
    let made = output.added.iter().map(|(_, meta)| (meta.id, files.bytes(meta.id))).collect();
    (output, made)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    #[expect(clippy::disallowed_methods, reason = "another thread is one of the other places")]
    fn the_same_recipe_gives_the_same_bytes_wherever_it_runs(seed: u64, yields: u64) {
        let mut here = replica_with_work(seed);
        let snapshots = [SequenceNumber(100), SequenceNumber(500)];
        let Some(job) = here.tree.next_compaction(&context(&snapshots)) else {
            return Err(TestCaseError::reject("no compaction is due"));
        };
        let (output, made) = run(&job, &here.files);
        prop_assert!(!made.is_empty());
        prop_assert!(job.recipe.now_ms > 0);
        let mut recipe = Vec::new();
        job.recipe.encode(&mut recipe);
        for round in 0..3 {
            // Another instance with state of its own; only the recipe's bytes go over.
            let there = replica_with_work(seed);
            let inputs = there.tree.inputs_of(&Recipe::decode(&recipe).unwrap()).unwrap();
            let files = there.files.yielding(yields.wrapping_add(round));
            let (again, bytes) = std::thread::scope(|scope| {
                scope.spawn(|| run(&inputs, &files)).join().unwrap()
            });
            prop_assert_eq!(&again.added, &output.added);
            prop_assert_eq!(again.stats, output.stats);
            prop_assert_eq!(&bytes, &made);
        }
    }

    #[test]
    fn the_order_of_insertion_into_a_memtable_does_not_show(seed: u64, count in 1usize..300) {
        let mut random = Random::new(seed);
        let mut entries: Vec<_> = (1..=count as u64)
            .map(|sequence| {
                let name = key(format!("k{}", random.below(50)).as_bytes());
                let value = vec![random.below(256) as u8; random.below(100) as usize];
                let (kind, value) = match random.below(3) {
                    0 => (EntryKind::Delete, Vec::new()),
                    1 => (EntryKind::Put, value),
                    _ => {
                        let expiry = random.below(2_000).to_le_bytes();
                        (EntryKind::ExpiringPut, [&expiry[..], &value].concat())
                    }
                };
                (name, SequenceNumber(sequence), kind, value)
            })
            .collect();
        let flush = |entries: &[(Vec<u8>, SequenceNumber, EntryKind, Vec<u8>)]| {
            let table = MemTable::new(MemTableId(1));
            for (key, sequence, kind, value) in entries {
                table.insert(key, *sequence, *kind, value);
            }
            let mut tree = Tree::create(small_config(), GROUP).unwrap();
            tree.pass_time(1_000);
            tree.seal(MemTableId(1), LogPosition(1)).unwrap();
            let mut job = tree.next_flush(&context(&[SequenceNumber(20)])).unwrap();
            job.memtables = vec![Arc::new(table)];
            job.recipe.output_count = 100;
            run(&job, &Files::default())
        };
        let (in_order, bytes) = flush(&entries);
        for at in (1..entries.len()).rev() {
            entries.swap(at, random.below(at as u64 + 1) as usize);
        }
        let (shuffled, other_bytes) = flush(&entries);
        prop_assert_eq!(in_order.added, shuffled.added);
        prop_assert_eq!(bytes, other_bytes);
    }
}

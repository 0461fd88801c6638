//! docs/faults.md E13: a file is a pure function of its recipe. The same recipe gives the same
//! bytes on another replica, on any thread, beside any number of others, wherever its reads are
//! held up, with every codec, and however a MemTable came to hold its entries. What the processor
//! can do shows in checksums or nowhere: they are those of a portable implementation.

use crate::support::*;
use gabion_base::{FileId, Frontier, LogPosition, MemTableId, SequenceNumber, units::CHUNK_LEN};
use gabion_engine::*;
use gabion_media::Bytes;
use proptest::prelude::*;
use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Barrier};
use std::task::{Context, Poll, Waker};

/// Runs at once.
const RUNS: [usize; 3] = [1, 2, 7];

/// A replica with several files in L0 and L1 and a MemTable to be flushed, all from one seed, and
/// the next compaction.
fn replica_with_work(seed: u64, codecs: Codecs) -> Replica {
    let mut random = Random::new(seed);
    let sst = SstOptions { compression: codecs.upper, ..SstOptions::default() };
    let bottom_compression = codecs.bottom;
    let mut replica = Replica::new(TreeConfig { sst, bottom_compression, ..small_config() });
    let mut number = 0;
    for round in 0..12u64 {
        let mut batch = BatchBuilder::new();
        for _ in 0..60 {
            let name = format!("key{:04}", random.below(600)).into_bytes();
            if random.one_in(20) {
                let to = format!("key{:04}", random.below(40) + 560).into_bytes();
                let to = if to > name { to } else { [&name[..], b"0"].concat() };
                batch.delete_range(Keyspace::User, &name, Some(&to)).unwrap();
            } else if random.one_in(4) {
                batch.delete(Keyspace::User, &name).unwrap();
            } else if random.one_in(3) {
                let operand = Operand::add(random.below(9) as i64 - 4, 100 * round);
                batch.merge(Keyspace::User, &name, operand).unwrap();
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
        replica.tree.seal(active, Frontier::of(LogPosition(round + 1))).unwrap();
        while round < 11 && (replica.tree.sealed_count() > 0 || round == 8) {
            let Some(job) = replica.tree.next_job(&context()) else { break };
            number += 1;
            let (output, made) = run(&job, &replica.files, &Files::default());
            made.into_iter().for_each(|(id, bytes)| replica.files.insert(id, bytes));
            let edit = replica.tree.finish_job(output, number).unwrap();
            replica.tree.apply_edit(&edit).unwrap();
        }
    }
    replica
}

/// What a job makes of `files`, into an empty sink.
fn run(job: &JobInputs, files: &Files, sink: &Files) -> (JobOutput, Vec<(FileId, Bytes)>) {
    made_by(block_on(run_job(job, GROUP, files, &mut sink.clone())).unwrap(), sink)
}

fn made_by(output: JobOutput, sink: &Files) -> (JobOutput, Vec<(FileId, Bytes)>) {
    let made = sink.ids().into_iter().map(|id| (id, sink.bytes(id))).collect();
    (output, made)
}

/// A flush, and a compaction that makes files.
fn jobs(replica: &mut Replica) -> Option<[JobInputs; 2]> {
    let flush = replica.tree.next_flush(&context())?;
    let compaction = replica.tree.next_compaction(&context())?;
    let codecs = replica.tree.config().codecs();
    for Recipe { kind, bottommost, sst, .. } in [&flush.recipe, &compaction.recipe] {
        assert_eq!(sst.compression, codecs.of_job(*kind, *bottommost));
    }
    compaction.recipe.kind.makes_files().then_some([flush, compaction])
}

/// CRC32C bit by bit.
fn portable_crc32c(bytes: &[u8]) -> u32 {
    let shift = |crc: u32| crc >> 1 ^ (0x82f6_3b78 & 0u32.wrapping_sub(crc & 1));
    !bytes.iter().fold(!0, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), |crc, _| shift(crc)))
}

fn check_checksums(output: &JobOutput, made: &[(FileId, Bytes)]) -> Result<(), TestCaseError> {
    for ((_, meta), (_, bytes)) in output.added.iter().zip(made) {
        prop_assert_eq!(meta.checksum, portable_crc32c(bytes));
        let chunks: Vec<u32> = bytes.chunks(CHUNK_LEN as usize).map(portable_crc32c).collect();
        prop_assert_eq!(&meta.chunk_crcs, &chunks);
    }
    Ok(())
}

/// Polls to the end. Where it waits first, it waits for all the others to have begun too.
fn block_on_among<T>(future: impl Future<Output = T>, others: &Barrier) -> T {
    let (mut future, mut has_met) = (pin!(future), false);
    loop {
        let polled = future.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        if !std::mem::replace(&mut has_met, true) {
            others.wait();
        }
        if let Poll::Ready(value) = polled {
            return value;
        }
        std::thread::yield_now();
    }
}

/// Runs a recipe `count` times at once at another instance with state of its own; only its bytes go
/// over.
#[expect(clippy::disallowed_methods, reason = "other threads are among the other places")]
fn run_elsewhere(
    there: &Replica,
    recipe: &[u8],
    count: usize,
    yields: u64,
) -> Vec<(JobOutput, Vec<(FileId, Bytes)>)> {
    let inputs = there.tree.inputs_of(&Recipe::decode(recipe).unwrap()).unwrap();
    let others = Barrier::new(count);
    std::thread::scope(|scope| {
        let begin = |n: usize| {
            let seed = yields.wrapping_add(n as u64);
            let (files, sink) = (there.files.yielding(seed), Files::default().yielding(!seed));
            let (inputs, others) = (&inputs, &others);
            scope.spawn(move || {
                let mut into = sink.clone();
                let job = run_job(inputs, GROUP, &files, &mut into);
                made_by(block_on_among(job, others).unwrap(), &sink)
            })
        };
        let running: Vec<_> = (0..count).map(begin).collect();
        running.into_iter().map(|run| run.join().unwrap()).collect()
    })
}

/// The bytes of the files that the jobs of a seed make, the same wherever they run; none when no
/// compaction is due.
fn made_everywhere(seed: u64, yields: u64, of: Codecs) -> Result<Option<u64>, TestCaseError> {
    let mut here = replica_with_work(seed, of);
    let Some(jobs) = jobs(&mut here) else { return Ok(None) };
    let there = replica_with_work(seed, of);
    // Not of each: jobs that only pass deletes on merge nothing.
    prop_assert!(jobs.iter().any(|job| job.recipe.merging.is_some()));
    let mut len = 0;
    for job in jobs {
        let (output, made) = run(&job, &here.files, &Files::default());
        prop_assert!(!made.is_empty());
        prop_assert!(job.recipe.now_ms > 0);
        check_checksums(&output, &made)?;
        len += output.added.iter().map(|(_, meta)| meta.len).sum::<u64>();
        let mut recipe = Vec::new();
        job.recipe.encode(&mut recipe);
        for count in RUNS {
            for (again, bytes) in run_elsewhere(&there, &recipe, count, yields) {
                prop_assert_eq!(&again.added, &output.added);
                prop_assert_eq!(again.stats, output.stats);
                prop_assert_eq!(&bytes, &made);
            }
        }
    }
    Ok(Some(len))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]
    /// docs/faults.md: E13, P11, P12, P13, P16
    #[test]
    fn the_same_recipe_gives_the_same_bytes_wherever_it_runs(seed: u64, yields: u64) {
        let (plain, lz4) = (Codecs::default(), Compression::Lz4);
        let packed = Codecs { upper: lz4, bottom: None };
        let by_place = Codecs { upper: lz4, bottom: Some(Compression::Zstd { level: 5 }) };
        let plain = made_everywhere(seed, yields, plain)?;
        let packed = made_everywhere(seed, yields, packed)?;
        let by_place = made_everywhere(seed, yields, by_place)?;
        let (Some(plain), Some(packed), Some(by_place)) = (plain, packed, by_place) else {
            return Err(TestCaseError::reject("no compaction is due"));
        };
        prop_assert!(packed < plain, "{packed} bytes with LZ4, {plain} without");
        prop_assert!(by_place < plain, "{by_place} bytes with two codecs, {plain} without");
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
        // Range deletes come in another order, and other portions, too.
        let mut ranges: Vec<_> = (0..random.below(12))
            .map(|n| {
                let (start, len) = (random.below(50), 1 + random.below(20));
                let [start, end] = [start, start + len].map(|n| key(format!("k{n:02}").as_bytes()));
                let sequence = SequenceNumber(1_000 + n);
                RangeDelete { start: start.into(), end: end.into(), sequence }
            })
            .collect();
        let flush = |entries: &[(Vec<u8>, SequenceNumber, EntryKind, Vec<u8>)],
                     ranges: &[RangeDelete],
                     portion: usize| {
            let mut table = MemTable::new(MemTableId(1));
            for some in ranges.chunks(portion) {
                table = table.with_range_deletes(some.to_vec());
            }
            for (key, sequence, kind, value) in entries {
                table.insert(key, *sequence, *kind, value);
            }
            let mut tree = Tree::create(small_config(), GROUP).unwrap();
            tree.pass_time(1_000);
            tree.seal(MemTableId(1), Frontier::of(LogPosition(1))).unwrap();
            let mut job = tree.next_flush(&context()).unwrap();
            job.memtables = vec![Arc::new(table)];
            job.recipe.output_count = 100;
            // Or range deletes would not be written.
            job.recipe.bottommost = false;
            run(&job, &Files::default(), &Files::default())
        };
        let (in_order, bytes) = flush(&entries, &ranges, 1);
        for at in (1..entries.len()).rev() {
            entries.swap(at, random.below(at as u64 + 1) as usize);
        }
        ranges.reverse();
        let (shuffled, other_bytes) = flush(&entries, &ranges, 5);
        prop_assert_eq!(in_order.added, shuffled.added);
        prop_assert_eq!(bytes, other_bytes);
    }
}

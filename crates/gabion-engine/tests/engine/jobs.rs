//! Jobs at their limits: odd sizes, long keys, damaged inputs, failing sinks.

use crate::support::*;
use gabion_base::{Error, ErrorKind, Frontier, LogPosition, Result};
use gabion_engine::*;
use gabion_media::{AlignedBuf, Bytes};
use proptest::prelude::*;

/// Writes `pairs`, seals and flushes them; panics when any step fails.
fn flush(replica: &mut Replica, pairs: &[(Vec<u8>, Vec<u8>)]) -> Edit {
    let job = begin_flush(replica, pairs);
    apply(replica, &job)
}

fn begin_flush(replica: &mut Replica, pairs: &[(Vec<u8>, Vec<u8>)]) -> JobInputs {
    for (name, value) in pairs {
        let sequence = replica.tree.last_sequence().next();
        replica.tree.apply_operation(sequence, EntryKind::Put, &key(name), value).unwrap();
    }
    let active = replica.tree.active_id();
    replica.tree.seal(active, Frontier::of(LogPosition(active.get()))).unwrap();
    replica.tree.next_flush(&context()).unwrap()
}

fn apply(replica: &mut Replica, job: &JobInputs) -> Edit {
    let output = block_on(run_job(job, GROUP, &replica.files, &mut replica.files.clone())).unwrap();
    let slots: u64 = output.added.iter().map(|(_, meta)| meta.len.div_ceil(2 << 20)).sum();
    assert!(slots <= job.slots_max() || !job.recipe.kind.makes_files());
    let edit = replica.tree.finish_job(output, replica.tree.last_edit() + 1).unwrap();
    replica.tree.apply_edit(&Edit::decode(&edit.encode().unwrap()).unwrap()).unwrap();
    edit
}

fn settle(replica: &mut Replica) {
    while let Some(job) = replica.tree.next_job(&context()) {
        apply(replica, &job);
    }
    replica.collect();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn reserved_numbers_and_slots_suffice_for_entries_of_any_size(
        lens in prop::collection::vec(0usize..30_000, 1..40),
        seed: u64,
    ) {
        let mut random = Random::new(seed);
        let mut replica = Replica::new(small_config());
        let mut expected = std::collections::BTreeMap::new();
        for chunk in lens.chunks(10) {
            let pairs: Vec<_> = chunk
                .iter()
                .map(|&len| {
                    let len = if random.one_in(2) { len } else { len % 100 };
                    let name = format!("{:03}", random.below(60)).into_bytes();
                    (name, vec![random.below(256) as u8; len])
                })
                .collect();
            let edit = flush(&mut replica, &pairs);
            for (_, meta) in &edit.added {
                prop_assert!(meta.len <= 8 << 10 || meta.entries == 1, "{meta:?}");
            }
            settle(&mut replica);
            expected.extend(pairs.into_iter().map(|(name, value)| (key(&name), value)));
        }
        let found = scan(&replica.tree.view(), &replica.tables, &[], None);
        prop_assert_eq!(found, expected.into_iter().collect::<Vec<_>>());
    }

    /// Bounds are cut to 256 bytes: levels must stay sorted, and every key be found, whatever keys
    /// share.
    #[test]
    fn keys_longer_than_a_bound_are_found_wherever_files_are_cut(
        seed: u64,
        prefix in 250usize..262,
    ) {
        let mut random = Random::new(seed);
        let mut replica = Replica::new(TreeConfig { l0_trigger: 1, ..small_config() });
        let mut expected = std::collections::BTreeMap::new();
        for _ in 0..6 {
            let pairs: Vec<_> = (0..30)
                .map(|_| {
                    let byte = [b'a', b'b', 0xff][random.below(3) as usize];
                    let mut name = vec![byte; prefix - random.below(3) as usize];
                    name.extend_from_slice(format!("{}", random.below(40)).as_bytes());
                    (name, vec![1; random.below(800) as usize])
                })
                .collect();
            flush(&mut replica, &pairs);
            settle(&mut replica);
            expected.extend(pairs);
        }
        for (name, value) in &expected {
            let found = replica.get(name);
            prop_assert_eq!(found.as_deref(), Some(&value[..]));
        }
        prop_assert_eq!(scan(&replica.tree.view(), &replica.tables, &[], None).len(), expected.len());
    }
}

/// Files end where their length says although bounds of 256 bytes would not tell them apart:
/// however much there is of such keys, no file grows until it is too long. The levels below stay
/// apart, too, though jobs take parts of them.
#[test]
fn files_of_keys_that_are_alike_for_long_end_within_them() {
    for (seed, prefix) in [(1, 256), (2, 261), (3, 300)] {
        let mut random = Random::new(seed);
        let mut replica = Replica::new(TreeConfig { level1_len: 64 << 10, ..small_config() });
        let mut expected = std::collections::BTreeMap::new();
        for _ in 0..12 {
            let pairs: Vec<_> = (0..100)
                .map(|_| {
                    let name = format!("{}{:03}", "p".repeat(prefix), random.below(900));
                    (name.into_bytes(), vec![random.below(256) as u8; 1500])
                })
                .collect();
            flush(&mut replica, &pairs);
            settle(&mut replica);
            expected.extend(pairs);
        }
        let version = replica.tree.version();
        // Two bounds of at most so many bytes over 256, and an entry.
        let most = 4096 * 2 * (prefix as u64 + 4 - 256) + 4096;
        for (_, file) in version.files() {
            assert!(file.len <= most.max(12 << 10), "{} has {} bytes", file.id, file.len);
        }
        let longer = version.files().filter(|(_, file)| file.smallest.len() > 256);
        assert!(longer.count() > 1, "of {} files", version.files().count());
        let deep = |level: &u8| version.level(*level).len() > 1;
        assert!((1..version.level_count()).any(|level| deep(&level)));
        for (name, value) in &expected {
            assert_eq!(replica.get(name).as_deref(), Some(&value[..]));
        }
        let found = scan(&replica.tree.view(), &replica.tables, &[], None);
        assert_eq!(found.len(), expected.len());
        replica.tree =
            Tree::open(replica.tree.config().clone(), GROUP, &replica.tree.snapshot()).unwrap();
        let (name, value) = expected.iter().nth(expected.len() / 2).unwrap();
        assert_eq!(replica.get(name).as_deref(), Some(&value[..]));
    }
}

/// Each file of a flush is a run of L0, by which writers are slowed down and stopped.
/// docs/faults.md: P31
#[test]
fn a_flush_of_a_memtable_that_is_longer_than_a_file_is_one_run() {
    let mut replica = Replica::new(TreeConfig { memtable_len: 1 << 20, ..small_config() });
    let pairs: Vec<_> = (0..200).map(|n| (vec![n], vec![7; 4_000])).collect();
    let edit = flush(&mut replica, &pairs);
    assert!(edit.added[0].1.len > 4 * replica.tree.config().sst_len);
    assert_eq!(replica.tree.version().runs().len(), 1);
}

/// What one edit cannot name would end the replica: files become longer as it fills up.
/// docs/faults.md: P10
#[test]
fn files_become_longer_where_one_edit_could_not_name_them_all() {
    let sst_len = 4 << 10;
    let mut replica =
        Replica::new(TreeConfig { memtable_len: 64 << 20, sst_len, ..small_config() });
    // One is a file, with bounds of 250 bytes.
    let name = |n: u32| format!("{}{n:04}", "p".repeat(246)).into_bytes();
    let pairs: Vec<_> = (0..3_000).map(|n| (name(n), vec![n as u8; 2_200])).collect();
    let mut job = begin_flush(&mut replica, &pairs);
    (job.recipe.output_len, job.recipe.output_count) = (sst_len, 3_000);
    let edit = apply(&mut replica, &job);
    let lens: Vec<_> = edit.added.iter().map(|(_, file)| file.len).collect();
    let (usual, longer) = lens.split_at(lens.iter().position(|len| *len > sst_len).unwrap());
    assert!((1_200..1_500).contains(&usual.len()), "{} of the usual length", usual.len());
    assert!(longer.iter().any(|len| *len > 8 << 10) && longer.iter().all(|len| *len < 1 << 20));
    let found = scan(&replica.tree.view(), &replica.tables, &[], None);
    assert!(found.into_iter().eq(pairs.into_iter().map(|(name, value)| (key(&name), value))));
}

/// What an edit has to keep for the bounds of the inputs is no reason for no file to end any more.
#[test]
fn files_become_longer_also_between_inputs_with_the_longest_bounds() {
    let (len, level1_len) = (16 << 20, 64 << 20);
    let config = TreeConfig { memtable_len: len, sst_len: len, level1_len, ..small_config() };
    let mut replica = Replica::new(config);
    let name = |n: u32| format!("{}{n:04}", "p".repeat(246)).into_bytes();
    for round in 0..2 {
        let numbers = (0..3_000).filter(|n| n % 2 == round);
        let pairs: Vec<_> = numbers.map(|n| (name(n), vec![n as u8; 2_200])).collect();
        flush(&mut replica, &pairs);
    }
    let mut job = replica.tree.next_compaction(&context()).unwrap();
    assert_eq!((job.recipe.kind, job.files.len()), (JobKind::Compaction, 2));
    job.recipe.cuts.clear();
    job.recipe.output_len = 4 << 10;
    job.recipe.output_count = 4_096;
    // As they are where files end within keys that are alike for so long.
    for (_, file) in &mut job.files {
        let [smallest, largest] = [b'a', b'z'].map(|byte| vec![byte; 60_000]);
        *file = FileMeta { smallest: key(&smallest), largest: key(&largest), ..(**file).clone() }
            .into();
    }
    let mut files = replica.files.clone();
    let output = block_on(run_job(&job, GROUP, &replica.files, &mut files)).unwrap();
    let lens: Vec<_> = output.added.iter().map(|(_, file)| file.len).collect();
    assert!(lens.iter().all(|len| *len < 1 << 20), "{:?} bytes", lens.iter().max());
    assert!(output.stats.entries_out == 3_000 && lens.iter().any(|len| *len > 8 << 10));
}

/// A sink that takes so many files and then fails.
struct Failing(usize);

impl FileSink for Failing {
    async fn finished(&mut self, _: FinishedFile) -> Result<()> {
        if self.0 == 0 {
            return Err(Error::no_space("no free slot"));
        }
        self.0 -= 1;
        Ok(())
    }
}

/// A sink that sees how long the buffers are that a job asks for.
#[derive(Default)]
struct Reserving(Vec<usize>);

impl FileSink for Reserving {
    async fn finished(&mut self, _: FinishedFile) -> Result<()> {
        Ok(())
    }

    fn buffer(&mut self, capacity: usize) -> AlignedBuf {
        self.0.push(capacity);
        AlignedBuf::with_capacity(0)
    }
}

/// docs/faults.md: P8
#[test]
fn the_buffer_of_a_long_file_has_room_for_all_of_it() {
    let (replica, mut job) = with_work();
    for output_len in [16 << 20, 100 << 20, 768 << 20] {
        job.recipe.output_len = output_len;
        let mut sink = Reserving::default();
        block_on(run_job(&job, GROUP, &replica.files, &mut sink)).unwrap();
        let wanted = output_len as usize;
        let is_all = |len: &usize| (wanted..wanted + (1 << 20)).contains(len);
        assert!(!sink.0.is_empty() && sink.0.iter().all(is_all), "{output_len}: {:?}", sink.0);
    }
}

/// A replica with one compaction of several output files due.
fn with_work() -> (Replica, JobInputs) {
    let (sst_len, level1_len) = (32 << 10, 64 << 10);
    let config = TreeConfig { l0_trigger: 3, sst_len, level1_len, ..small_config() };
    let mut replica = Replica::new(config);
    for round in 0..3u8 {
        let pairs: Vec<_> = (0..60)
            .map(|n| {
                (format!("{:03}", 3 * n + usize::from(round)).into_bytes(), vec![round; 400 + n])
            })
            .collect();
        flush(&mut replica, &pairs);
    }
    let job = replica.tree.next_compaction(&context()).unwrap();
    assert_eq!(job.recipe.kind, JobKind::Compaction);
    (replica, job)
}

/// docs/faults.md: E9
#[test]
fn a_sink_that_fails_ends_the_job_and_the_tree_is_as_before() {
    for taken in 0..2 {
        let (mut replica, job) = with_work();
        let before = replica.tree.snapshot();
        let error =
            block_on(run_job(&job, GROUP, &replica.files, &mut Failing(taken))).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoSpace);
        assert_eq!(replica.tree.snapshot(), before);
        assert!(replica.tree.next_compaction(&context()).is_none(), "the inputs are busy");
        replica.tree.job_failed(&job.recipe);
        let again = replica.tree.next_compaction(&context()).unwrap();
        assert_eq!(again.recipe.inputs, job.recipe.inputs);
        apply(&mut replica, &again);
        assert_eq!(replica.get(b"016").as_deref(), Some(&[1; 405][..]));
    }
}

/// docs/faults.md: E9
#[test]
fn a_damaged_input_ends_the_job_with_corruption_and_is_never_copied() {
    let (replica, job) = with_work();
    let id = job.files[0].1.id;
    let whole = replica.files.bytes(id);
    let len = job.files[0].1.len as usize;
    for at in (0..len).step_by(41) {
        let mut bytes = whole.to_vec();
        bytes[at] ^= 1 << (at % 8);
        replica.files.insert(id, Bytes::from(bytes));
        let result = block_on(run_job(&job, GROUP, &replica.files, &mut Failing(usize::MAX)));
        let error = result.expect_err("a flipped bit was copied");
        assert_eq!(replica.files.take_damaged(), [id], "byte {at}: the source is told which");
        assert!(
            matches!(error.kind(), ErrorKind::Corruption | ErrorKind::Unsupported),
            "byte {at}: {error}"
        );
    }
    replica.files.insert(id, whole);
    block_on(run_job(&job, GROUP, &replica.files, &mut Failing(usize::MAX))).unwrap();
}

/// docs/faults.md: E5
#[test]
fn readers_tell_the_source_which_file_is_damaged() {
    let (mut replica, job) = with_work();
    let (meta, files) = (&job.files[0].1, &replica.files);
    let whole = files.bytes(meta.id);
    let mut view = replica.tree.view();
    let names = scan(&view, &replica.tables, &[], None);
    assert_eq!(files.take_damaged(), []);
    let mut point_reads = 0;
    for at in (0..meta.len as usize).step_by(41) {
        let mut bytes = whole.to_vec();
        bytes[at] ^= 1 << (at % 8);
        files.insert(meta.id, Bytes::from(bytes));
        // Else what was read of it before it was damaged is still there.
        replica.tree.close_files();
        view = replica.tree.view();
        let mut iterator = view.scan(&tables(files), &[], None);
        let error = loop {
            match block_on(iterator.next()) {
                Ok(pair) => assert!(pair.is_some(), "byte {at}: the scan met nothing"),
                Err(error) => break error,
            }
        };
        assert_eq!(files.take_damaged(), [meta.id], "byte {at}: {error}");
        let cold = tables(files);
        let met = names.iter().any(|(name, _)| block_on(view.get(&cold, name)).is_err());
        point_reads += usize::from(met);
        let told = if met { vec![meta.id] } else { vec![] };
        assert_eq!(files.take_damaged(), told, "byte {at}");
    }
    assert!(point_reads > 10, "{point_reads} damages were met by point reads");
    files.insert(meta.id, whole);
    assert_eq!(scan(&view, &tables(files), &[], None), names);
    assert_eq!(files.take_damaged(), []);
}

#[test]
fn a_job_whose_inputs_are_not_those_of_its_recipe_is_refused() {
    let (mut replica, mut job) = with_work();
    job.files.swap(0, 1);
    let run = |job: &JobInputs| block_on(run_job(job, GROUP, &Files::default(), &mut Failing(9)));
    assert_eq!(run(&job).unwrap_err().kind(), ErrorKind::InvalidInput);
    job.files.swap(0, 1);
    job.recipe.output_count = 1;
    let error = block_on(run_job(&job, GROUP, &replica.files, &mut Failing(9))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LimitExceeded, "{error}");
    let recipe = job.recipe.clone();
    apply_again(&mut replica, job);
    let error = replica.tree.inputs_of(&recipe).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::NotFound, "its edit is applied, its inputs are gone");
}

fn apply_again(replica: &mut Replica, job: JobInputs) {
    replica.tree.job_failed(&job.recipe);
    drop(job);
    settle(replica);
}

#[test]
fn several_jobs_run_at_a_time_and_their_edits_may_come_in_any_order() {
    let config = TreeConfig { l0_trigger: 1, level1_len: 16 << 10, ..small_config() };
    let mut replica = Replica::new(config);
    for round in 0..40u64 {
        let pairs: Vec<_> = (0..10)
            .map(|n| (format!("{:03}", (round * 37 + n * 13) % 400).into_bytes(), vec![3; 700]))
            .collect();
        flush(&mut replica, &pairs);
        let mut jobs = Vec::new();
        while let Some(job) = replica.tree.next_compaction(&context()) {
            jobs.push(job);
        }
        let mut inputs: Vec<_> = jobs.iter().flat_map(|job| job.recipe.inputs.clone()).collect();
        let count = inputs.len();
        inputs.sort();
        inputs.dedup();
        assert_eq!(inputs.len(), count, "jobs share no input");
        while let Some(job) = jobs.pop() {
            apply(&mut replica, &job);
        }
        replica.collect();
    }
    settle(&mut replica);
    assert_eq!(replica.get(b"013").as_deref(), Some(&[3; 700][..]));
}

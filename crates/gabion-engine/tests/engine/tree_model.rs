//! A primary and a secondary, driven by random operations through one log, held against a map with
//! expiry.
//!
//! Covers docs/faults.md E1 (reopen from any earlier snapshot), E12 (files stay while a view reads
//! them, and while a read is under way whose view was ended) and E13 (the secondary makes some
//! files itself and gets the same bytes).

mod changes;

use crate::support::*;
use changes::{NAMES, name};
use gabion_base::{ErrorKind, FileId, Frontier, SequenceNumber};
use gabion_engine::*;
use gabion_media::Bytes;
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// Values, and until when they are there.
type Model = BTreeMap<Vec<u8>, (Vec<u8>, Option<u64>)>;

/// A read that takes its time: gives its result and what it should be.
type Reading = Pin<Box<dyn Future<Output = (gabion_base::Result<Pairs>, Pairs)>>>;
type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

struct World {
    random: Random,
    log: Vec<Record>,
    primary: Replica,
    secondary: Replica,
    /// Records applied by the secondary.
    applied: usize,
    /// What was written and not replaced, expired or not.
    written: Model,
    /// Views that are still open, with what they have to show.
    pinned: Vec<(ReadView, Model)>,
    /// Reads under way.
    reading: Vec<Reading>,
    now_ms: u64,
    /// Group time, as the records tell it.
    group_ms: u64,
    /// Reads that came to their end, and those that were ended.
    read: u64,
    ended: u64,
    /// A snapshot of the primary's tree taken some time ago.
    snapshot: Vec<u8>,
    running: Vec<JobInputs>,
    appended_edit: u64,
    /// Of 400 operations so many delete a range.
    range_deletes: u64,
    /// Now and then nobody writes: the tree is then of few levels.
    rests: bool,
    /// The files of loads, which come by shipping alone.
    loaded: BTreeMap<FileId, Bytes>,
    begun: Begun,
}

/// What kinds of jobs were begun.
#[derive(Default)]
struct Begun {
    /// While few slots were left.
    in_little_room: u64,
    /// One file, of which a part has expired, written anew where it lies.
    expired: u64,
    loads: u64,
    /// Values went apart, and files of them were emptied; by a job for that alone.
    apart: u64,
    emptied: u64,
    emptied_in_place: u64,
}

impl Begun {
    fn note(&mut self, job: &JobInputs, is_short: bool, urgent: bool) {
        let recipe = &job.recipe;
        self.in_little_room += u64::from(is_short && recipe.kind == JobKind::Compaction);
        self.apart += u64::from(recipe.large_from > 0);
        self.emptied += u64::from(!recipe.emptied.is_empty());
        let [(level, file)] = &job.files[..] else { return };
        let is_in_place = recipe.kind == JobKind::Compaction && *level == recipe.output_level;
        self.expired += u64::from(urgent && is_in_place && file.expiry.is_some());
        self.emptied_in_place += u64::from(is_in_place && !recipe.emptied.is_empty());
    }
}

impl World {
    fn new(seed: u64, config: TreeConfig) -> Self {
        let primary = Replica::new(config.clone());
        Self {
            random: Random::new(seed),
            log: Vec::new(),
            snapshot: primary.tree.snapshot(),
            primary,
            secondary: Replica::new(config),
            applied: 0,
            written: Model::new(),
            pinned: Vec::new(),
            reading: Vec::new(),
            now_ms: 0,
            group_ms: 0,
            read: 0,
            ended: 0,
            running: Vec::new(),
            appended_edit: 0,
            range_deletes: 5,
            rests: seed.is_multiple_of(2),
            loaded: BTreeMap::new(),
            begun: Begun::default(),
        }
    }

    /// What is there by group time.
    fn model(&self) -> Model {
        let mut model = self.written.clone();
        model.retain(|_, (_, expires_ms)| expires_ms.is_none_or(|at| at > self.group_ms));
        model
    }

    fn append(&mut self, record: Record) {
        self.primary.apply(self.log.len(), &record).unwrap();
        self.log.push(record);
    }

    /// Begins jobs, now and then where few slots are left.
    fn begin_jobs(&mut self) {
        let slots_free = match self.random.below(3) {
            0 => self.random.below(60),
            _ => u64::MAX,
        };
        let urgent = self.random.one_in(3);
        self.begin_jobs_in(slots_free, urgent);
    }

    fn begin_jobs_in(&mut self, mut slots_free: u64, urgent: bool) {
        let is_short = slots_free < u64::MAX;
        while self.running.len() < 3 {
            let context = JobContext { slots_free, urgent, ..context() };
            let Some(job) = self.primary.tree.next_job(&context) else { return };
            let slots = self.primary.tree.job_slots(&job, slots_free);
            assert!(slots < 1000 && slots <= slots_free, "{slots} slots of {slots_free}");
            slots_free -= slots;
            self.begun.note(&job, is_short, urgent);
            self.running.push(job);
        }
    }

    /// Ends a random job: mostly its edit is appended, now and then it fails. Edits of flushes are
    /// appended in the order of the MemTables.
    fn end_job(&mut self) {
        if self.running.is_empty() {
            return;
        }
        let at = self.random.below(self.running.len() as u64) as usize;
        let fails = self.random.one_in(10);
        let older = self.primary.tree.flush_position(&self.running[at].recipe);
        if !fails && older.is_some_and(|older| older > 0) {
            return;
        }
        let job = self.running.remove(at);
        if fails {
            self.primary.tree.job_failed(&job.recipe);
            return;
        }
        let source = self.primary.files.clone();
        let mut sink = self.primary.files.clone();
        let output = block_on(run_job(&job, GROUP, &source, &mut sink)).unwrap();
        let made = output.added.iter().map(|(_, meta)| meta).chain(&output.values);
        let slots: u64 = made.map(|meta| meta.len.div_ceil(2 << 20)).sum();
        assert!(!job.recipe.kind.makes_files() || slots <= job.slots_max());
        self.appended_edit += 1;
        let edit = self.primary.tree.finish_job(output, self.appended_edit).unwrap();
        let bytes = edit.encode().unwrap();
        assert_eq!(Edit::decode(&bytes).unwrap(), edit);
        drop(job);
        self.append(Record::Edit(bytes));
    }

    /// The secondary applies records; files come by shipping or by the recipe.
    fn catch_up(&mut self) {
        let target = self.applied + self.random.below(40) as usize;
        while self.applied < self.log.len().min(target) {
            let record = self.log[self.applied].clone();
            if let Record::Edit(bytes) = &record {
                self.provide_files(&Edit::decode(bytes).unwrap());
            }
            self.secondary.apply(self.applied, &record).unwrap();
            self.applied += 1;
        }
        self.secondary.collect();
    }

    fn provide_files(&mut self, edit: &Edit) {
        if edit.kind == JobKind::Load {
            for (_, meta) in &edit.added {
                self.secondary.files.insert(meta.id, self.loaded[&meta.id].clone());
            }
            return;
        }
        let recipe = edit.recipe.as_ref().unwrap();
        if !recipe.kind.makes_files() {
            return;
        }
        if self.random.one_in(2) {
            for meta in edit.added.iter().map(|(_, meta)| meta).chain(&edit.values) {
                // The primary may have deleted it again by now; then only the recipe is left.
                if !self.primary.files.ids().contains(&meta.id) {
                    return self.make_files(edit);
                }
                self.secondary.files.insert(meta.id, self.primary.files.bytes(meta.id));
            }
            return;
        }
        self.make_files(edit);
    }

    fn make_files(&mut self, edit: &Edit) {
        let inputs = self.secondary.tree.inputs_of(edit.recipe.as_ref().unwrap()).unwrap();
        let source = self.secondary.files.yielding(self.random.next());
        let mut sink = source.clone();
        let output = block_on(run_job(&inputs, GROUP, &source, &mut sink)).unwrap();
        assert_eq!(output.added, edit.added, "same recipe, same files");
        assert_eq!(output.values, edit.values, "and values files");
    }

    fn check(&mut self) {
        let (view, model) = (self.primary.tree.view(), self.model());
        assert_eq!(view.now_ms(), self.group_ms);
        check_view(&mut self.random, &view, &self.primary.tables, &model);
        // Whatever expires is seen to, at once or within a tenth of a second.
        let due_ms = self.primary.tree.time_due_ms().unwrap_or(u64::MAX);
        let soonest_ms = model.values().filter_map(|(_, expires_ms)| *expires_ms).min();
        assert!(soonest_ms.is_none_or(|at| due_ms <= at.max(self.group_ms + 100)), "{due_ms}");
        self.pinned.retain(|(view, _)| view.pin().is_ok());
        for (view, model) in &self.pinned {
            check_view(&mut self.random, view, &self.primary.tables, model);
        }
        let live: Vec<_> = self.primary.tree.version().described().map(|f| f.id).collect();
        let held = self.primary.files.ids();
        assert!(live.iter().all(|id| held.contains(id)), "a live file was deleted");
    }

    fn pin_or_release(&mut self) {
        if self.pinned.len() < 3 && self.random.one_in(2) {
            self.pinned.push((self.primary.tree.view(), self.model()));
        } else if !self.pinned.is_empty() {
            let at = self.random.below(self.pinned.len() as u64) as usize;
            self.pinned.swap_remove(at);
        }
    }

    /// Begins a look-up or a scan of a view, whose reads yield.
    fn begin_reading(&mut self) {
        let source = self.primary.files.yielding(self.random.next());
        // Not the shared cache: what is in it need not be read.
        let tables = Tables { source, ..tables(&self.primary.files) };
        let now = (self.primary.tree.view(), self.model());
        let held = self.random.below(4) as usize;
        let (view, model) = self.pinned.get(held).cloned().unwrap_or(now);
        let name = key(&name(self.random.below(NAMES)));
        let is_scan = self.random.one_in(2);
        let others = (!is_scan && self.random.one_in(2)).then(|| any_key(&mut self.random));
        let is_backwards = self.random.one_in(2);
        self.reading.push(Box::pin(async move {
            if let Some(other) = others {
                let (names, mut pairs) = ([name, other], Pairs::new());
                let give = |at: usize, found: gabion_base::Result<Option<Found>>| {
                    pairs.extend(found?.map(|found| (names[at].clone(), found.value.to_vec())));
                    Ok(())
                };
                let told = view.look_up_many(&tables, &names, give).await;
                pairs.sort();
                let expected = names.iter().filter_map(|name| model.get_key_value(name));
                let mut expected: Pairs =
                    expected.map(|(name, value)| (name.clone(), value.0.clone())).collect();
                expected.sort();
                return (told.map(|()| pairs), expected);
            }
            if !is_scan {
                let found = view.get(&tables, &name).await;
                let pairs = found.map(|found| found.map(|v| (name.clone(), v.to_vec())));
                let expected = model.get(&name).map(|value| (name.clone(), value.0.clone()));
                return (
                    pairs.map(|pair| pair.into_iter().collect()),
                    expected.into_iter().collect(),
                );
            }
            let range = model.range(name.clone()..);
            let mut expected: Vec<_> = range.map(|(k, v)| (k.clone(), v.0.clone())).collect();
            let (first, step) = match is_backwards {
                true => (Move::Last, Move::Prev),
                false => (Move::First, Move::Next),
            };
            if is_backwards {
                expected.reverse();
            }
            let mut iterator = view.scan(&tables, &name, None);
            drop(view);
            let mut pairs = Vec::new();
            let mut to = first;
            let result = loop {
                match iterator.go(std::mem::replace(&mut to, step)).await {
                    Ok(true) => {
                        let (key, value) = iterator.to_pair().expect("it is at a pair");
                        pairs.push((key.to_vec(), value.to_vec()));
                    }
                    Ok(false) => break Ok(pairs),
                    Err(error) => break Err(error),
                }
            };
            (result, expected)
        }));
    }

    /// Carries reads on: each ends with what it should see, or as its view was past the budget.
    fn carry_on_reading(&mut self) {
        let mut context = Context::from_waker(Waker::noop());
        for mut reading in std::mem::take(&mut self.reading) {
            let steps = self.random.below(4);
            let polled = (0..steps).find_map(|_| match reading.as_mut().poll(&mut context) {
                Poll::Ready(ended) => Some(ended),
                Poll::Pending => None,
            });
            match polled {
                None => self.reading.push(reading),
                Some((Ok(found), expected)) => {
                    assert_eq!(found, expected);
                    self.read += 1;
                }
                Some((Err(error), _)) => {
                    assert_eq!(error.kind(), ErrorKind::SnapshotTooOld, "{error}");
                    self.ended += 1;
                }
            }
        }
    }

    /// Time passes, and the budget of readers is what it is. What they kept is deleted at once.
    fn limit_readers(&mut self) {
        self.now_ms += self.random.below(40);
        let age_ms_max = self.random.below(100);
        let states_max = self.random.below(6) as usize;
        let budget = PinBudget { age_ms_max, states_max };
        self.primary.tree.limit_readers(self.now_ms, budget);
        let stats = self.primary.tree.readers(self.now_ms);
        assert!(stats.oldest_ms <= age_ms_max && stats.states_kept <= states_max, "{stats:?}");
        self.primary.collect();
        if stats.states_kept > 0 || !self.reading.is_empty() || !self.running.is_empty() {
            return;
        }
        let held = self.primary.tree.leaving_files();
        assert!(held.is_empty(), "no reader keeps {held:?}");
    }

    /// The primary restarts: jobs and views are lost, the tree comes back from snapshot and log.
    fn restart(&mut self) {
        self.running.clear();
        self.pinned.clear();
        self.reading.clear();
        let before = self.primary.tree.snapshot();
        self.primary.reopen(&self.snapshot, &self.log);
        assert_eq!(self.primary.tree.snapshot(), before);
    }

    fn step(&mut self) {
        match self.random.below(100) {
            0..48 => self.write(),
            48 => match self.random.below(4) {
                0 => self.load(),
                1 if self.rests => self.rest(),
                _ => {}
            },
            49 => self.tune(),
            50..53 => self.begin_reading(),
            53..57 => self.carry_on_reading(),
            57..60 => self.limit_readers(),
            60..70 => self.begin_jobs(),
            70..80 => self.end_job(),
            80..88 => self.catch_up(),
            88..92 => self.check(),
            92..95 => self.pin_or_release(),
            95..98 => self.primary.collect(),
            98 => {
                if self.random.one_in(3) {
                    self.snapshot = self.primary.tree.snapshot();
                    // From here on nothing older is needed to open it.
                }
            }
            _ => self.restart(),
        }
    }

    /// Nobody writes while time passes and room is short: files are written anew in which much has
    /// expired.
    fn rest(&mut self) {
        self.append(Record::Seal(self.primary.tree.active_id()));
        for _ in 0..3 {
            self.group_ms += 60;
            self.append(Record::Time(self.group_ms));
            self.begin_jobs_in(u64::MAX, true);
            while !self.running.is_empty() {
                self.end_job();
                self.begin_jobs_in(u64::MAX, true);
            }
        }
    }

    /// Codecs, limits, and what caches may hold, are other ones from now on.
    fn tune(&mut self) {
        match self.random.below(4) {
            0 => {
                let any = [Compression::None, Compression::Lz4, Compression::ZSTD];
                let upper = any[self.random.below(3) as usize];
                let bottom = self.random.one_in(2).then(|| any[self.random.below(3) as usize]);
                self.primary.tree.set_codecs(Codecs { upper, bottom }).unwrap();
            }
            1 => self.primary.tables.cache.blocks.set_capacity(self.random.below(20_000) as usize),
            2 => {
                let l0_trigger = 1 + self.random.below(4) as u32;
                let (l0_slowdown, l0_stop) = (l0_trigger + 2, l0_trigger + 8);
                let memtable_len = (4 + self.random.below(8)) << 10;
                let limits = WriteLimits { memtable_len, l0_trigger, l0_slowdown, l0_stop };
                self.primary.tree.set_write_limits(limits).unwrap();
            }
            _ => {
                let capacity = self.random.below(5_000) as usize;
                if self.primary.tables.cache.open.borrow_mut().set_capacity(capacity) {
                    self.primary.tree.close_files();
                }
            }
        }
    }

    /// Returns how many reads came to their end and how many were ended, and what jobs were begun.
    fn finish(mut self) -> (u64, u64, Begun) {
        loop {
            self.begin_jobs_in(u64::MAX, false);
            if self.running.is_empty() {
                break;
            }
            self.end_job();
        }
        while self.applied < self.log.len() {
            self.catch_up();
        }
        self.check();
        let (a, b) = (&self.primary.tree, &self.secondary.tree);
        assert_eq!(a.snapshot(), b.snapshot(), "same log, same tree");
        assert_eq!(a.now_ms(), b.now_ms(), "same log, same group time");
        for meta in a.version().described() {
            assert_eq!(self.primary.files.bytes(meta.id), self.secondary.files.bytes(meta.id));
        }
        let (view, model) = (b.view(), self.model());
        check_view(&mut self.random, &view, &self.secondary.tables, &model);
        self.pinned.clear();
        while !self.reading.is_empty() {
            self.carry_on_reading();
        }
        self.primary.collect();
        self.secondary.collect();
        assert!(self.primary.tree.leaving_files().is_empty(), "no file is held for ever");
        let live: Vec<_> = self.secondary.tree.version().described().map(|f| f.id).collect();
        assert_eq!(self.secondary.files.ids().len(), live.len(), "no file leaks");
        (self.read, self.ended, self.begun)
    }
}

fn check_view(random: &mut Random, view: &ReadView, tables: &Tables<Files>, model: &Model) {
    for _ in 0..10 {
        let name = key(&name(random.below(NAMES)));
        let found = block_on(view.look_up(tables, &name)).unwrap();
        let found = found.map(|found| (found.value.to_vec(), found.expires_ms));
        assert_eq!(found.as_ref(), model.get(&name), "get {name:?}");
    }
    check_many(random, view, tables, model);
    let mut bounds = [random.below(NAMES), random.below(NAMES)].map(|n| key(&name(n)));
    bounds.sort();
    let [from, to] = bounds;
    let expected: Vec<_> =
        model.range(from.clone()..to.clone()).map(|(k, v)| (k.clone(), v.0.clone())).collect();
    assert_eq!(scan(view, tables, &from, Some(&to)), expected);
    check_moves(random, view, tables, model);
    if random.one_in(4) {
        let expected: Vec<_> = model.iter().map(|(k, v)| (k.clone(), v.0.clone())).collect();
        assert_eq!(scan(view, tables, &[], None), expected);
    }
}

/// Many keys at once, some twice, with all that was read before in memory and with nothing.
fn check_many(random: &mut Random, view: &ReadView, tables: &Tables<Files>, model: &Model) {
    let names: Vec<_> = (0..random.below(16)).map(|_| any_key(random)).collect();
    let cache = Rc::new(LocalCache::new(0));
    let cold = Tables { source: tables.source.yielding(random.next()), cache, group: GROUP };
    for tables in [tables, &cold] {
        let mut count = 0;
        let give = |at: usize, found: gabion_base::Result<Option<Found>>| {
            let found = found.unwrap().map(|found| (found.value.to_vec(), found.expires_ms));
            assert_eq!(found.as_ref(), model.get(&names[at]), "get {:?} among others", names[at]);
            count += 1;
            Ok(())
        };
        block_on(view.look_up_many(tables, &names, give)).unwrap();
        assert_eq!(count, names.len());
    }
}

/// A key of the model's, or one right beside it, or none at all.
fn any_key(random: &mut Random) -> Vec<u8> {
    let space = if random.one_in(20) { Keyspace::System } else { Keyspace::User };
    let mut key = [&[space as u8][..], &name(random.below(NAMES))].concat();
    match random.below(8) {
        0 => key.push(0),
        1 => key.truncate(random.below(key.len() as u64 + 1) as usize),
        2 => key.push(0xff),
        _ => {}
    }
    key
}

/// An iterator with any bounds goes to and fro, and turns round anywhere.
fn check_moves(random: &mut Random, view: &ReadView, tables: &Tables<Files>, model: &Model) {
    let (from, to) = match random.below(3) {
        0 => (any_key(random), Some(any_key(random))),
        1 => (any_key(random), None),
        _ => (Vec::new(), None),
    };
    let within = |key: &&Vec<u8>| **key >= from && to.as_ref().is_none_or(|to| *key < to);
    let expected = model.iter().filter(|(key, _)| within(key));
    let mut steps = Steps::new(expected.map(|(k, v)| (k.clone(), v.0.clone())).collect());
    let mut iterator = view.scan(tables, &from, to.as_deref());
    let mut backwards = random.one_in(2);
    for _ in 0..random.below(60) {
        let key = any_key(random);
        let to = any_move(random, &mut backwards, &key);
        let found = step(&mut iterator, to);
        let found = found.map(|(key, value)| (key.to_vec(), value.to_vec()));
        assert_eq!(found, steps.go(to), "{to:?}");
    }
}

fn run(seed: u64, config: TreeConfig, steps: usize) -> (Vec<LevelStats>, (u64, u64, Begun)) {
    run_with(seed, config, steps, 5)
}

#[expect(clippy::print_stdout, reason = "shown when the test fails: the seed that repeats it")]
fn run_with(
    seed: u64,
    config: TreeConfig,
    steps: usize,
    range_deletes: u64,
) -> (Vec<LevelStats>, (u64, u64, Begun)) {
    println!("seed {seed}, {range_deletes} range deletes of 400 operations, {config:?}");
    let mut world = World::new(seed, config);
    world.range_deletes = range_deletes;
    for _ in 0..steps {
        world.step();
    }
    let stats = world.primary.tree.level_stats();
    (stats, world.finish())
}

/// docs/faults.md: E12, P2, P4, P11, P13, P15, P16, P17, P18
#[test]
fn random_operations_agree_with_a_map_through_flushes_compactions_and_restarts() {
    let (mut deepest, mut read, mut ended, mut begun) = (0, 0, 0, Begun::default());
    // The last is one that grows a third level.
    for seed in (1..=11).chain([29]) {
        let (stats, reads) = run(seed, small_config(), 3000);
        (read, ended) = (read + reads.0, ended + reads.1);
        begun.loads += reads.2.loads;
        begun.expired += reads.2.expired;
        begun.in_little_room += reads.2.in_little_room;
        deepest = deepest.max(stats.iter().filter(|level| level.files > 0).count());
    }
    assert!(deepest >= 3, "the test has to reach the third level, it reached {deepest}");
    assert!(read > 100 && ended > 20, "{read} slow reads came to their end, {ended} were ended");
    let Begun { loads, expired, in_little_room, .. } = begun;
    assert!(loads > 20, "{loads} loads");
    assert!(expired > 5, "{expired} files were written anew without what has expired");
    assert!(in_little_room > 20, "{in_little_room} compactions began with few slots left");
}

/// docs/faults.md: E12, P2, P4, P11, P13, P15, P16, P17
#[test]
fn large_values_apart_from_the_tree_give_the_same_history() {
    let mut begun = Begun::default();
    for seed in (1..=8).chain([29]) {
        let large_values = 64 + (seed % 3) as u32 * 30;
        let config = TreeConfig { large_values, ..small_config() };
        let mut world = World::new(seed, config);
        for step in 0..2500 {
            // Values of later flushes stay in place, or go apart again.
            if step % 500 == 499 {
                let is_off = step % 1000 == 499 && seed % 2 == 0;
                let large_values = if is_off { 0 } else { large_values + 20 };
                world.primary.tree.set_large_values(large_values).unwrap();
            }
            world.step();
        }
        let (_, _, more) = world.finish();
        begun.apart += more.apart;
        begun.emptied += more.emptied;
        begun.emptied_in_place += more.emptied_in_place;
    }
    let Begun { apart, emptied, emptied_in_place, .. } = begun;
    assert!(apart > 200, "{apart} flushes put values apart");
    assert!(emptied > 100, "{emptied} compactions emptied files");
    assert!(emptied_in_place > 20, "{emptied_in_place} of them for that alone");
}

/// docs/faults.md: P12, P18
#[test]
fn other_shapes_of_tree_give_the_same_history() {
    let two_levels = TreeConfig { levels: 2, ..small_config() };
    let lazy = TreeConfig { l0_trigger: 5, level1_len: 64 << 10, ..small_config() };
    let compressed = TreeConfig {
        sst: SstOptions { compression: Compression::Lz4, block_len: 1024, ..SstOptions::default() },
        ..small_config()
    };
    let by_place = TreeConfig {
        bottom_compression: Some(Compression::ZSTD),
        upper_filter_bits_extra: 20,
        ..compressed.clone()
    };
    for config in [two_levels, lazy, compressed, by_place] {
        run(99, config, 2000);
    }
}

/// Shapes of tree in which range deletes are cut in many places, and by another rule in each.
fn shapes() -> [TreeConfig; 6] {
    let sst = SstOptions { filter_bits_per_key: 0, ..SstOptions::default() };
    [
        small_config(),
        TreeConfig { sst_len: 4 << 10, level1_len: 8 << 10, level_multiplier: 2, ..small_config() },
        TreeConfig { levels: 2, ..small_config() },
        TreeConfig {
            memtable_len: 4 << 10,
            sst_len: 64 << 10,
            level1_len: 64 << 10,
            ..small_config()
        },
        TreeConfig { l0_trigger: 5, level1_len: 64 << 10, ..small_config() },
        TreeConfig { sst, ..small_config() },
    ]
}

/// docs/faults.md: P16
#[test]
fn range_deletes_agree_with_a_map_in_trees_of_every_shape() {
    for (seed, config) in (1..).zip(shapes()) {
        run_with(seed, config.clone(), 500, 100);
        run_with(seed, config, 500, 350);
    }
}

#[test]
#[ignore = "thousands of trees: minutes, for the soak"]
fn range_deletes_agree_with_a_map_in_thousands_of_trees() {
    for seed in 0..400 {
        for (config, range_deletes) in shapes().into_iter().zip([5, 30, 100, 200, 350, 390]) {
            run_with(1000 + seed, config.clone(), 700, range_deletes);
            run_with(1_000_000 + seed, config, 700, 400 - range_deletes);
        }
    }
}

#[test]
fn a_batch_is_applied_whole_or_not_at_all() {
    let mut replica = Replica::new(small_config());
    let mut batch = BatchBuilder::new();
    batch.put(Keyspace::User, b"a", b"1").unwrap();
    let mut bytes = batch.finish();
    bytes.push(0xff);
    replica.tree.apply_batch(SequenceNumber(1), &bytes).unwrap_err();
    assert_eq!(replica.get(b"a"), None);
    assert_eq!(replica.tree.last_sequence(), SequenceNumber(0));
    bytes.pop();
    replica.tree.apply_batch(SequenceNumber(1), &bytes).unwrap();
    assert_eq!(replica.get(b"a").as_deref(), Some(&b"1"[..]));
    for first in [1, 3] {
        let error = replica.tree.apply_batch(SequenceNumber(first), &bytes).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corruption, "a repetition or a gap");
    }
    assert_eq!(replica.tree.flushed().frontier, Frontier::ZERO);
}

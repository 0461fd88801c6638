//! Random runs of whole groups: kills, power cuts, broken connections, late work, zombies' frames.
//! A run is its seed. Repeat one with `GABION_SEED=n cargo test -p gabion-replication one_seed`.

use super::checkers::Checkers;
use super::cluster::{Cluster, Defect, HEARTBEAT_MS, Node};
use crate::planted::Mutant;
use crate::{Frame, Message};
use alloc::collections::BTreeSet;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::ops::Range;
use gabion_base::{Error, ErrorKind, ReplicaId};

const STEPS: u64 = 1200;
/// Runs in which a planted defect must show.
const MUTANT_SEEDS: u64 = 6_000;

struct Random(u64);

impl Random {
    /// SplitMix64.
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n.max(1)
    }
}

struct Run {
    cluster: Cluster,
    checkers: Checkers,
    random: Random,
    /// Faults of single bytes and reads, apart so that seeds keep their other faults.
    noise: Random,
    /// Changes of the view, apart for the same reason.
    moves: Random,
    /// Members that are known to have everything that was acknowledged, as a controller knows it:
    /// those in whose log a view's term had a record that had one in the logs of all.
    trusted: Vec<u32>,
    /// How often faults happen: 0 to 20 per mille.
    faults: u64,
    /// How often faults of single bytes and reads happen. In every second run only, as they end
    /// connections and so hide other faults.
    noises: u64,
    /// How many records were appended and how many faults happened, to see that runs are not idle.
    appended: u64,
    broken: u64,
    wiped: u64,
    rotten: u64,
    flipped: u64,
    moved: u64,
    copied: u64,
}

impl Run {
    fn new(seed: u64, mutant: Option<Mutant>) -> Self {
        let mut random = Random(seed);
        let mut cluster = Cluster::new(1 + random.below(4) as u32);
        cluster.mutant = mutant;
        cluster.has_term_starts = true;
        cluster.window_bytes = [60, 600, 3000][random.below(3) as usize];
        // In some runs disks are slow for their rings.
        if seed.is_multiple_of(3) {
            cluster.lengths = (4096, 4 * 4096);
        }
        let faults = 2 + random.below(20);
        let checkers = Checkers::default();
        let (noise, noises) = (Random(!seed), 12 * faults * (seed % 2));
        let (appended, broken, wiped, rotten, flipped, moved, copied) = (0, 0, 0, 0, 0, 0, 0);
        let trusted = (1..=cluster.nodes.len() as u32).collect();
        let moves = Random(seed.rotate_left(32) ^ 0x6d6f_7665);
        let mut run = Self {
            cluster,
            checkers,
            random,
            noise,
            moves,
            trusted,
            faults,
            noises,
            appended,
            broken,
            wiped,
            rotten,
            flipped,
            moved,
            copied,
        };
        for id in 1..=run.count() {
            run.cluster.start(id);
        }
        run
    }

    fn count(&self) -> u32 {
        self.cluster.nodes.len() as u32
    }

    fn any_node(&mut self) -> u32 {
        1 + self.random.below(u64::from(self.count())) as u32
    }

    fn step(&mut self) -> Result<(), String> {
        if self.random.below(1000) < self.faults {
            self.fault();
            // Much may have arrived with it, before the view changes.
            self.checkers.check(&self.cluster)?;
        }
        if self.noise.below(1000) < self.noises {
            self.noise();
        }
        if self.moves.below(6000) < self.faults {
            self.change_view();
        }
        match self.random.below(100) {
            0..50 => self.deliver(),
            50..65 => {
                let id = self.any_node();
                self.cluster.work(id);
            }
            65..78 => {
                let id = self.any_node();
                self.cluster.answer_read(id);
            }
            78..86 => {
                let len = 40 + 8 * self.random.below(64);
                self.appended += u64::from(self.cluster.append(len));
            }
            86..90 => {
                let id = self.any_node();
                self.cluster.make_durable(id);
            }
            90..92 => {
                let id = self.any_node();
                self.cluster.flush(id);
            }
            92..94 => {
                let id = self.any_node();
                self.cluster.trim(id);
            }
            94..97 => {
                let ms = self.random.below(HEARTBEAT_MS);
                self.cluster.tick(ms);
            }
            _ => self.recover_something(),
        }
        Ok(())
    }

    fn deliver(&mut self) {
        if self.cluster.connections.is_empty() {
            return;
        }
        let i = self.random.below(self.cluster.connections.len() as u64) as usize;
        let side = self.random.below(2) as usize;
        self.cluster.deliver(i, side);
        let c = &self.cluster.connections[i];
        if c.is_broken && c.queues.iter().all(|q| q.is_empty()) {
            self.cluster.connections.remove(i);
        }
    }

    fn recover_something(&mut self) {
        let id = self.any_node();
        if self.cluster.node(id).chain.is_none() {
            self.cluster.start(id);
            return;
        }
        if self.cluster.node(id).wants_copy {
            return self.copy_to(id);
        }
        let other = self.any_node();
        if id != other && self.cluster.node(other).chain.is_some() {
            self.cluster.connect(id.min(other), id.max(other));
        }
    }

    /// A controller remembers who has founded the view, also when these are gone for a while.
    fn remember_founders(&mut self) {
        let founders = self.counted_but(0);
        let new = founders.into_iter().filter(|id| !self.trusted.contains(id));
        let new: Vec<u32> = new.collect();
        self.trusted.extend(new);
    }

    fn fault(&mut self) {
        self.broken += 1;
        self.remember_founders();
        let id = self.any_node();
        match self.random.below(15) {
            10 => self.wipe(id),
            11..15 => self.rot(id),
            0..2 => self.cluster.kill(id, true),
            2..4 => {
                let may_lose = self.checkers.has_ring(&self.cluster, &self.counted_but(id));
                self.cluster.kill(id, !may_lose);
            }
            4 if self.disks_suffice(&self.counted_but(0)) => {
                for id in 1..=self.count() {
                    self.cluster.kill(id, false);
                }
                self.checkers.forget_volatile(&self.cluster);
                self.cluster.nodes.iter_mut().for_each(Node::forget_volatile);
            }
            5..8 if !self.cluster.connections.is_empty() => {
                let i = self.random.below(self.cluster.connections.len() as u64) as usize;
                let keep = self.random.below(4) as usize;
                self.cluster.break_connection(i, keep);
            }
            _ => self.replay(),
        }
    }

    /// A bit of records flips past TCP's checksum (docs/faults.md H8), or the device fails a read
    /// of log.
    fn noise(&mut self) {
        let (id, bit) = (1 + self.noise.below(u64::from(self.count())) as u32, self.noise.next());
        if self.noise.below(2) == 0 {
            let error = Error::new(ErrorKind::Io, "the device fails a read");
            self.flipped += u64::from(self.cluster.fail_read(id, error));
            return;
        }
        let connections = 0..self.cluster.connections.len();
        let mut ends = connections.flat_map(|i| [(i, 0), (i, 1)]);
        self.flipped += u64::from(ends.any(|(i, side)| self.cluster.flip(i, side, bit)));
    }

    /// The full members of the newest view that are known to have everything, but for one.
    fn counted_but(&self, but: u32) -> Vec<u32> {
        let full = self.cluster.newest().full().map(|member| member.replica.get());
        let is_known = |id: &u32| self.trusted.contains(id) || self.cluster.has_founded(*id);
        full.filter(|id| *id != but && is_known(id)).collect()
    }

    /// The next view, as a controller may make it: some full members in any order, some that are
    /// being filled, and one that was filled may be full. Some are told; the rest hear of it from
    /// these, or not at all.
    fn change_view(&mut self) {
        let count = self.count();
        if count < 2 {
            return;
        }
        let newest = self.cluster.newest().clone();
        let mut full = self.counted_but(0);
        for i in (1..full.len()).rev() {
            full.swap(i, self.moves.below(i as u64 + 1) as usize);
        }
        let is_complete = newest.full().all(|m| self.cluster.has_founded(m.replica.get()));
        let mut stay = full.clone();
        stay.truncate(1 + self.moves.below(2 * full.len() as u64) as usize);
        if self.checkers.has_disk(&self.cluster, &stay) && self.disks_suffice(&stay) {
            full = stay;
        }
        self.trusted = full.clone();
        let filled = |id: &u32| {
            let node = &self.cluster.nodes[*id as usize - 1];
            let is_in_view = node.view == newest && !node.wants_copy;
            is_in_view && node.chain.as_ref().is_some_and(|chain| chain.has_caught_up())
        };
        let mut others = newest.members.iter().filter(|m| !m.is_full).map(|m| m.replica.get());
        let next = others.find(filled).filter(|_| is_complete && self.moves.below(4) > 0);
        full.extend(next);
        let mut rest: Vec<u32> = (1..=count).filter(|id| !full.contains(id)).collect();
        rest.retain(|_| self.moves.below(4) > 0);
        let view = self.cluster.next_view(&full, &rest);
        let first = full[self.moves.below(full.len() as u64) as usize];
        for id in 1..=count {
            if id == first || self.moves.below(2) == 0 {
                self.cluster.take_view(id, view.clone());
            }
        }
        self.moved += 1;
    }

    /// A member that is filled gets the state of the reader.
    fn copy_to(&mut self, id: u32) {
        let reader = self.cluster.reader();
        let node = &self.cluster.nodes[reader as usize - 1];
        let is_current = node.view.config == self.cluster.newest().config;
        if is_current && node.chain.as_ref().is_some_and(|chain| chain.has_caught_up()) {
            self.cluster.copy(reader, id);
            self.checkers.forget_copied(id);
            self.copied += 1;
        }
    }

    /// R11: a node returns with an empty disk. Only while the others hold everything and cannot
    /// have trimmed, as this node never said that it flushed: else it would rightly ask for a full
    /// copy.
    fn wipe(&mut self, id: u32) {
        let has_flushed = self.cluster.node(id).flushed > 0;
        let counted = self.counted_but(id);
        let is_full = self.cluster.newest().has_full(ReplicaId(id));
        if (has_flushed && is_full) || !self.checkers.has_ring(&self.cluster, &counted) {
            return;
        }
        if self.rotten > 0 && !self.may_lose_disk(id) {
            return;
        }
        self.cluster.kill(id, false);
        self.cluster.wipe(id);
        self.checkers.forget_terms(id);
        self.wiped += 1;
    }

    /// E4: a record that was durable is not whole when a node starts again. Only while the others
    /// hold everything, also on a disk, and have not trimmed the log that it will need.
    fn rot(&mut self, id: u32) {
        if !self.may_lose_disk(id) {
            return;
        }
        self.cluster.kill(id, true);
        self.cluster.deliver_rest_of(id);
        let nodes = self.cluster.nodes.iter();
        let trimmed = nodes
            .map(|n| n.oldest.max(n.chain.as_ref().map_or(0, |c| c.flushed_min().only().get())));
        let least = trimmed.chain(self.to_be_trimmed()).max().unwrap_or(0);
        let mut places = self.cluster.node(id).can_rot();
        places.retain(|(before, _)| *before >= least);
        if places.is_empty() || !self.may_lose_disk(id) {
            return;
        }
        let i = self.random.below(places.len() as u64) as usize;
        self.cluster.rot(id, places[i].1);
        self.rotten += 1;
    }

    /// Up to here members may trim once they have adopted the terms that they heard of.
    fn to_be_trimmed(&self) -> impl Iterator<Item = u64> {
        self.cluster.heard.iter().filter_map(|(_, _, frame)| match &frame.message {
            Message::NewTerm { marks, .. } => Some(marks.flushed.only().get()),
            _ => None,
        })
    }

    fn may_lose_disk(&self, id: u32) -> bool {
        let counted = self.counted_but(id);
        let known = self.cluster.nodes[id as usize - 1].known;
        let has_known = self.has_known(&counted, known);
        has_known && self.checkers.has_disk(&self.cluster, &counted) && self.disks_suffice(&counted)
    }

    /// Whether the disk of one of these has all that was known to be durable up to there.
    fn has_known(&self, ids: &[u32], known: u64) -> bool {
        let has = |n: &Node| ids.contains(&n.id) && (n.durable >= known || n.oldest >= known);
        self.cluster.nodes.iter().any(has)
    }

    /// Whether the disks of these have all that rotten ones lost.
    fn disks_suffice(&self, ids: &[u32]) -> bool {
        let needs = |n: &&Node| n.is_lost(n.end().min(n.durable));
        let mut rotten = self.cluster.nodes.iter().filter(needs);
        rotten.all(|lost| self.has_known(ids, lost.known))
    }

    /// Replays up to eight frames of older terms or connections, some as if they came on the
    /// current connection.
    fn replay(&mut self) {
        for _ in 0..8 {
            if self.cluster.heard.is_empty() {
                return;
            }
            let i = self.random.below(self.cluster.heard.len() as u64) as usize;
            let (to, old_number, frame) = self.cluster.heard[i].clone();
            self.replay_frame(to, old_number, frame);
        }
    }

    fn replay_frame(&mut self, to: u32, old_number: u64, mut frame: Frame) {
        let from = frame.from.get();
        let mut all = self.cluster.connections.iter().enumerate();
        let Some((i, theirs, ours)) = all.find_map(|(i, c)| {
            let side = c.ends.iter().position(|e| e.0 == from)?;
            let is_between = c.ends[1 - side].0 == to && !c.is_broken;
            is_between.then_some((i, c.ends[side].1, c.ends[1 - side].1))
        }) else {
            return;
        };
        if self.random.below(4) == 0 {
            // On its own, dead connection: its content is ignored.
            if old_number != ours {
                self.cluster.hand_in(to, i, old_number, frame);
            }
            return;
        }
        let is_of_a_term = matches!(
            frame.message,
            Message::Ack(..)
                | Message::TermAccepted { .. }
                | Message::Records { .. }
                | Message::NewTerm { .. }
                | Message::Heartbeat(..)
        );
        let receiver = &self.cluster.nodes[to as usize - 1];
        if is_of_a_term && frame.term < receiver.term {
            frame.connection = theirs;
            self.cluster.hand_in(to, i, ours, frame);
        }
    }

    /// No more faults: everyone comes back, is filled and full, and the group must take and commit
    /// a write with them.
    fn heal(&mut self) -> Result<(), String> {
        let all: Vec<u32> = (1..=self.count()).collect();
        self.calm()?;
        self.fill_again()?;
        if all.iter().any(|id| !self.cluster.newest().has_full(ReplicaId(*id))) {
            // The full members found the view, so that another may follow.
            self.commit_one()?;
            let full = self.counted_but(0);
            let rest: Vec<u32> = all.iter().copied().filter(|id| !full.contains(id)).collect();
            self.cluster.next_view(&full, &rest);
            self.calm()?;
            self.commit_one()?;
            for id in rest {
                let chain = self.cluster.node(id).chain.as_ref();
                if !chain.is_some_and(|chain| chain.has_caught_up()) {
                    let reason = chain.and_then(|c| c.not_ready_reason()).map(String::from);
                    return Err(format!("{id} is not filled: {reason:?}"));
                }
            }
            self.cluster.next_view(&all, &[]);
            self.calm()?;
        }
        self.commit_one()?;
        self.checkers.check_whole(&self.cluster)
    }

    /// A member that was filled and then called full may need a copy all the same: its log could be
    /// followed when that was decided, and was trimmed before the view came. As a controller does,
    /// the next view fills it again. One that is known to have everything never needs that.
    fn fill_again(&mut self) -> Result<(), String> {
        let newest = self.cluster.newest().clone();
        let counted = self.counted_but(0);
        let is_short = |node: &&Node| node.wants_copy && !counted.contains(&node.id);
        let short = self.cluster.nodes.iter().filter(is_short);
        if !short.map(|node| ReplicaId(node.id)).any(|id| newest.has_full(id)) {
            return Ok(());
        }
        let rest: Vec<u32> = (1..=self.count()).filter(|id| !counted.contains(id)).collect();
        self.cluster.next_view(&counted, &rest);
        self.calm()
    }

    /// Everyone is up, connected, and knows the newest view, for longer than anything waits.
    fn calm(&mut self) -> Result<(), String> {
        let view = self.cluster.newest().clone();
        for _ in 0..12 {
            for id in 1..=self.count() {
                if self.cluster.node(id).chain.is_none() {
                    self.cluster.start(id);
                }
                self.cluster.take_view(id, view.clone());
                if self.cluster.node(id).wants_copy {
                    self.copy_to(id);
                }
            }
            self.cluster.connect_all();
            if !self.cluster.settle() {
                return Err("the cluster does not come to rest".into());
            }
            self.checkers.check(&self.cluster)?;
            self.cluster.tick(HEARTBEAT_MS);
        }
        Ok(())
    }

    fn commit_one(&mut self) -> Result<(), String> {
        if !self.cluster.settle() || !self.cluster.append(48) {
            let writer = self.cluster.writer();
            let reason =
                self.cluster.chain(writer).and_then(|c| c.not_ready_reason().map(String::from));
            return Err(format!("the healthy group refuses writes: {reason:?}"));
        }
        self.cluster.settle();
        self.checkers.check(&self.cluster)?;
        let (writer, reader) = (self.cluster.writer(), self.cluster.reader());
        let end = self.cluster.node(writer).end();
        if self.cluster.chain(writer).is_none_or(|c| c.commit().only().get() != end) {
            return Err("the healthy group does not commit".into());
        }
        if self.cluster.chain(reader).is_none_or(|c| !c.is_readable() || !c.holds_lease()) {
            return Err("the healthy tail answers no reads".into());
        }
        Ok(())
    }

    fn run(&mut self) -> Result<(), String> {
        for step in 0..STEPS {
            self.step()?;
            self.checkers.check(&self.cluster)?;
            if step % 16 == 0 {
                self.checkers.check_prefixes(&self.cluster, &self.counted_but(0))?;
            }
        }
        self.heal()
    }
}

/// Runs a seed; a panic (an assertion of the chain) counts as a failure.
fn run_seed(seed: u64, mutant: Option<Mutant>) -> Result<[u64; 8], String> {
    run_seed_with(seed, mutant, None)
}

fn run_seed_with(
    seed: u64,
    mutant: Option<Mutant>,
    defect: Option<Defect>,
) -> Result<[u64; 8], String> {
    let result = std::panic::catch_unwind(|| {
        let mut run = Run::new(seed, mutant);
        run.cluster.defect = defect;
        run.run()?;
        let Run { appended, broken, wiped, rotten, flipped, moved, copied, .. } = run;
        let term = run.cluster.nodes[0].term.get();
        Ok([appended, broken, wiped, term, rotten, flipped, moved, copied])
    });
    match result {
        Ok(result) => result,
        Err(panic) => Err(panic
            .downcast_ref::<String>()
            .cloned()
            .or_else(|| panic.downcast_ref::<&str>().map(|s| s.to_string()))
            .unwrap_or_else(|| "panic".into())),
    }
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

fn seeds() -> Range<u64> {
    let first = number("GABION_FIRST_SEED").unwrap_or(0);
    first..first + number("GABION_SEEDS").unwrap_or(600)
}

/// docs/faults.md: E4, H8, R1, R2, R3, R5, R7, R10, R11, R12
#[test]
fn random_faults_never_break_a_promise_and_the_group_recovers() {
    let mut sums = [0; 8];
    for seed in seeds() {
        match run_seed(seed, None) {
            Ok(counts) => {
                sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
            }
            Err(e) => panic!("GABION_SEED={seed} cargo test -p gabion-replication one_seed: {e}"),
        }
    }
    // The runs must do something: on average many records, several faults, some terms per run.
    let seeds = seeds().count() as u64;
    let [appended, broken, wiped, terms, rotten, flipped, moved, copied] = sums;
    assert!(moved > seeds, "{moved} views in {seeds} runs");
    assert!(copied > seeds / 10, "{copied} full copies in {seeds} runs");
    assert!(flipped > seeds / 2, "{flipped} flipped bits and failed reads in {seeds} runs");
    assert!(rotten > seeds / 10, "{rotten} rotten logs in {seeds} runs");
    assert!(wiped > seeds / 20, "{wiped} empty disks in {seeds} runs");
    assert!(appended > 15 * seeds, "{appended} records in {seeds} runs");
    assert!(broken > 5 * seeds, "{broken} faults in {seeds} runs");
    assert!(terms > 2 * seeds, "{terms} terms in {seeds} runs");
}

/// Seeds that longer runs found. A log ended in a span that the head had forgotten. A head with a
/// blank disk chose a term again while it was being adopted. Such a head forgot its fetched log in
/// a restart, after the member that had it lost its disk too.
#[test]
fn seeds_that_have_failed_pass() {
    for seed in [13_002, 40_071, 94_439] {
        run_seed(seed, None).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    }
}

/// Kills everyone, lets the logs of some, or of all, rot, and starts everyone again. The group goes
/// on with all that was promised. Or it names the records that nobody has, and goes on once a disk
/// comes back. Returns whether it had to.
fn run_loss(seed: u64, mutant: Option<Mutant>) -> Result<bool, String> {
    let mut run = Run::new(seed, mutant);
    (run.faults, run.noises) = (0, 0);
    for _ in 0..400 {
        run.step()?;
        run.checkers.check(&run.cluster)?;
    }
    let nobody = run.count() + 1;
    (1..nobody).for_each(|id| run.cluster.kill(id, true));
    let saved: Vec<_> = run.cluster.nodes.iter().map(|n| n.records.clone()).collect();
    let spared = if run.random.below(2) == 0 { nobody } else { run.any_node() };
    let trimmed = run.cluster.nodes.iter().map(|n| n.oldest).max().unwrap_or(0);
    for id in (1..nobody).filter(|id| *id != spared) {
        let mut places = run.cluster.node(id).can_rot();
        places.retain(|(before, _)| *before >= trimmed);
        if !places.is_empty() {
            run.cluster.rot(id, places[run.random.below(places.len() as u64) as usize].1);
        }
    }
    let lost: Vec<_> = run.cluster.nodes.iter().map(|n| n.is_lost(n.end())).collect();
    if lost.contains(&false) {
        return run.heal().map(|()| false);
    }
    let terms: Vec<_> = run.cluster.nodes.iter().map(|n| n.term).collect();
    (1..nobody).for_each(|id| run.cluster.start(id));
    // A member that hears of a newer view ends its connections.
    for _ in 0..nobody {
        run.cluster.connect_all();
        run.cluster.settle();
    }
    for (node, term) in run.cluster.nodes.iter().zip(terms) {
        let reason = node.chain.as_ref().and_then(|c| c.not_ready_reason()).unwrap_or_default();
        if node.term != term || !reason.contains("no replica has all of it any more") {
            return Err(format!("replica {} in {}: {reason}", node.id, node.term));
        }
    }
    let id = run.any_node();
    run.cluster.kill(id, true);
    run.cluster.node(id).records = saved[id as usize - 1].clone();
    run.heal().map(|()| true)
}

/// Also when every member's log is rotten, in one place or in many.
/// docs/faults.md: E4
#[test]
fn what_every_member_lost_is_refused_and_never_forgotten() {
    let refused =
        seeds().filter(|seed| run_loss(*seed, None).unwrap_or_else(|e| panic!("seed {seed}: {e}")));
    let (refused, seeds_run) = (refused.count(), seeds().count());
    assert!(refused > seeds_run / 10, "{refused} of {seeds_run} groups had lost something");
    assert!(refused < seeds_run * 9 / 10, "{refused} of {seeds_run} groups had lost something");
    let is_caught = |seed: &u64| run_loss(*seed, Some(Mutant::LossIgnored)).is_err();
    assert!(seeds().any(|seed| is_caught(&seed)), "a head that ignores what is lost");
}

/// Seeds that failed once, and the cause.
const ONCE_FAILED: [(u64, &str); 8] = [
    (
        23_868,
        "a log that was rotten from the first record of a term on ends where the term before it \
         did, and the others had forgotten that one",
    ),
    (
        7_571,
        "log was trimmed past that of a member which was called full and had not heard of it, and \
         nobody filled it again",
    ),
    (
        41_535,
        "a former head flushed and trimmed a record that nobody else had: it went by the marks of \
         a term that it had yet to adopt",
    ),
    (
        68_298,
        "after all had lost power, the checker had forgotten what a member had trimmed before",
    ),
    (
        77_557,
        "a head fetched log that a member had named in its Hello and then refused to place, and \
         waited for it for ever",
    ),
    (
        103_444,
        "the controller forgot, when a member was started anew, that it had founded the view, and \
         went on with one alone whose log was rotten",
    ),
    (TERM_STARTS[0], TERM_START),
    (TERM_STARTS[1], TERM_START),
];

/// Seeds in which a member gets more log after its Hello, and the term begins without that log.
const TERM_STARTS: [u64; 2] = [94_694, 7_034_800];
const TERM_START: &str = "the head appended its term's first record before all had joined, and so \
                          cut what a member had got after its Hello and a reader had shown";

#[test]
fn seeds_that_once_failed_pass() {
    for (seed, what) in ONCE_FAILED {
        assert_eq!(run_seed(seed, None).err(), None, "{what}");
    }
}

#[test]
fn one_seed() {
    if let Some(seed) = number("GABION_SEED") {
        let mut run = Run::new(seed, None);
        run.cluster.is_tracing = true;
        let result = run.run();
        std::println!("{}", run.cluster.trace.join("\n"));
        result.unwrap();
    }
}

/// docs/faults.md: A1, A2
#[test]
fn every_planted_defect_is_caught() {
    let mutants = [
        Mutant::AckOfOldTerm,
        Mutant::MaxOfAcks,
        Mutant::ResendSkipsRecord,
        Mutant::AckBeforePlaced,
        Mutant::ShortestLogWins,
        Mutant::HeadKeepsItsLog,
        Mutant::ReadableAtOnce,
        Mutant::TrimByHeadOnly,
        Mutant::OldConnectionCounts,
        Mutant::FilledMembersCount,
        Mutant::ReadsWithoutLease,
        Mutant::PromiseAfterView,
        Mutant::LeaseFromReceipt,
    ];
    let hook = std::panic::take_hook();
    std::panic::set_hook(std::boxed::Box::new(|_| {}));
    let mut missed = Vec::new();
    let mut how = BTreeSet::new();
    for mutant in mutants {
        match (0..MUTANT_SEEDS).find_map(|s| run_seed(s, Some(mutant)).err().map(|e| (s, e))) {
            None => missed.push(mutant),
            Some((seed, e)) => {
                how.insert(format!("{mutant:?} by seed {seed}: {e}"));
            }
        }
    }
    let mut unseen = Vec::new();
    for defect in [Defect::LeaseNotWaitedFor, Defect::RestartForgetsPromise] {
        let caught = |seed| run_seed_with(seed, None, Some(defect)).err().map(|e| (seed, e));
        match (0..MUTANT_SEEDS).find_map(caught) {
            None => unseen.push(defect),
            Some((seed, e)) => {
                how.insert(format!("{defect:?} by seed {seed}: {e}"));
            }
        }
    }
    std::panic::set_hook(hook);
    std::println!("{how:#?}");
    assert!(unseen.is_empty(), "not caught in {MUTANT_SEEDS} seeds: {unseen:?}");
    assert!(missed.is_empty(), "not caught in {MUTANT_SEEDS} seeds: {missed:?}");
}

/// It is too rare for the first seeds.
#[test]
fn a_head_that_appends_before_all_have_joined_is_caught() {
    let is_caught = |seed| run_seed(seed, Some(Mutant::AppendsBeforeAllJoined)).is_err();
    assert_eq!(TERM_STARTS.map(is_caught), [true, true]);
}

#[test]
fn a_run_is_its_seed() {
    let trace = |seed| {
        let mut run = Run::new(seed, None);
        run.cluster.is_tracing = true;
        let _ = run.run();
        run.cluster.trace
    };
    assert_eq!(trace(3), trace(3));
    assert_ne!(trace(3), trace(4));
}

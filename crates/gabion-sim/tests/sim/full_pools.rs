//! Pools that fill up in a group (docs/faults.md E10). Each member has the same files but other
//! free slots, as grants, log segments and later edits take their part. Puts are refused with a
//! reason that names the member. Deletes and clears are taken and give the deleted space back. A
//! restart changes nothing.
//!
//! docs/faults.md: E10

use crate::times;
use gabion_base::FileKind;
use gabion_base::units::MIB;
use gabion_engine::{Compression, Keyspace};
use gabion_node::{AckLevel, CompactionMode, Node, WriteGate};
use gabion_sim::client::write_turn;
use gabion_sim::{Faults, Options, World};

/// Some 50 slots.
const POOL_LEN: u64 = 112 * MIB;
/// Steps in which the group must settle its state.
const STEPS: u64 = 20_000;
/// The limit of the log's segments, and one that is on its way out.
const SEGMENTS_MAX: usize = 4;
/// Keys of one record.
const BATCH: u64 = 60;

struct Filling {
    world: World,
    what: String,
    next: u64,
    /// Members may be out, so that a lagging one keeps the head from deletes for a time.
    may_lag: bool,
}

fn key(number: u64) -> u64 {
    // Scattered, so that files overlap.
    number * 7_919 % 1_000_003
}

impl Filling {
    fn new(seed: u64, replicas: u32, compaction: CompactionMode, ack: AckLevel) -> Self {
        Self::among(Faults::default(), seed, replicas, compaction, ack)
    }

    fn among(
        faults: Faults,
        seed: u64,
        replicas: u32,
        compaction: CompactionMode,
        ack: AckLevel,
    ) -> Self {
        let options = Options {
            replicas,
            compaction,
            ack,
            clients: 0,
            marks: 0,
            faults,
            compression: Compression::None,
            pool_len: POOL_LEN,
            ..Options::of_seed(seed)
        };
        let what = format!("seed {seed}, {replicas} replicas, {compaction:?}, {ack:?}");
        let may_lag = faults != Faults::default();
        Self { world: World::new(seed, options), what, next: 0, may_lag }
    }

    fn advance(&mut self, steps: u64) {
        self.world.advance(steps).unwrap_or_else(|error| panic!("{}: {error}", self.what));
        for node in (0..self.world.len()).filter_map(|index| self.world.node(index)) {
            let files = node.pool().files();
            let segments = files.filter(|file| file.file.kind == FileKind::LogSegment).count();
            assert!(segments <= SEGMENTS_MAX, "{}: {segments} segments", self.what);
        }
    }

    /// The head's gate, once writes do not wait any more.
    fn gate(&mut self) -> WriteGate {
        for _ in 0..STEPS / 10 {
            let gate = self.world.node(0).map(|node| node.write_gate());
            match gate {
                Some(gate @ (WriteGate::Open | WriteGate::Full { .. })) => return gate,
                _ => self.advance(10),
            }
        }
        // If faults keep coming it may be up for moments only. Peace must end the wait.
        self.world.settle().unwrap_or_else(|error| panic!("{}: {error}", self.what));
        if let Some(gate @ (WriteGate::Open | WriteGate::Full { .. })) =
            self.world.node(0).map(|node| node.write_gate())
        {
            return gate;
        }
        panic!("{}: writes wait for ever: {}", self.what, self.world.describe());
    }

    fn write(&mut self, writes: &[(u64, Option<u64>)]) {
        // A head that was killed since takes no writes.
        if let Some(node) = self.world.node_mut(0).filter(|node| is_taken(node, writes)) {
            write_turn(node, writes);
        }
        self.advance(4);
    }

    /// Puts until the pool is full; returns why.
    fn fill(&mut self) -> String {
        for _ in 0..20_000 {
            if let WriteGate::Full { reason, .. } = self.gate() {
                // It may be full for a moment only.
                self.advance(3_000);
                if matches!(self.gate(), WriteGate::Full { .. }) {
                    return reason;
                }
            }
            let numbers = self.next..self.next + BATCH;
            self.next += BATCH;
            let writes: Vec<_> = numbers.map(|n| (key(n), Some(n << 8))).collect();
            self.write(&writes);
        }
        panic!("{}: a pool without end", self.what);
    }

    /// Until the head takes deletes: they are never refused, unless a member may be out.
    fn wait_for_deletes(&mut self) {
        let takes_deletes = |gate: &WriteGate| {
            matches!(gate, WriteGate::Open | WriteGate::Full { takes_deletes: true, .. })
        };
        for _ in 0..STEPS / 100 {
            let gate = self.gate();
            if takes_deletes(&gate) {
                return;
            }
            // They may wait for those before them, or for a load, and are not refused.
            let is_refused = self.world.node(0).is_some_and(|node| node.jobs_pause());
            let describe = || self.world.describe();
            assert!(self.may_lag || !is_refused, "{}: {gate:?}: {}", self.what, describe());
            self.advance(100);
        }
        self.world.settle().unwrap_or_else(|error| panic!("{}: {error}", self.what));
        let gate = self.gate();
        assert!(takes_deletes(&gate), "{}: {gate:?}: {}", self.what, self.world.describe());
    }

    fn delete(&mut self, mut numbers: std::ops::Range<u64>) {
        while !numbers.is_empty() {
            self.wait_for_deletes();
            let writes: Vec<_> =
                numbers.by_ref().take(BATCH as usize).map(|n| (key(n), None)).collect();
            self.write(&writes);
        }
    }

    fn opens(&mut self) {
        for _ in 0..STEPS / 100 {
            if self.gate() == WriteGate::Open {
                return;
            }
            self.advance(100);
        }
        panic!("{}: it stays full: {}", self.what, self.world.describe());
    }

    fn clear(&mut self) {
        self.wait_for_deletes();
        let node = self.world.node_mut(0).expect("its gate was looked at");
        node.clear().expect("a clear is taken");
        node.end_turn().expect("a clear is taken");
        self.opens();
    }
}

fn is_taken(node: &Node, writes: &[(u64, Option<u64>)]) -> bool {
    match node.write_gate() {
        WriteGate::Open => true,
        WriteGate::Full { takes_deletes, .. } => {
            takes_deletes && writes.iter().all(|(_, value)| value.is_none())
        }
        _ => false,
    }
}

fn fill_delete_clear(seed: u64, replicas: u32, compaction: CompactionMode, ack: AckLevel) {
    let mut filling = Filling::new(seed, replicas, compaction, ack);
    let reason = filling.fill();
    assert!(reason.contains("is full: "), "{}: {reason}", filling.what);
    let first = filling.next;
    assert!(first > 1_000, "{}: full after {first} keys", filling.what);
    // After a restart of all, the log fits again, and the state is the same.
    filling.world.kill_all();
    filling.advance(3_000);
    assert!(matches!(filling.gate(), WriteGate::Full { .. }), "{}", filling.what);
    filling.delete(0..first / 2);
    filling.opens();
    filling.fill();
    let again = filling.next - first;
    assert!(again > first / 6, "{}: room for {again} after {first}", filling.what);
    filling.clear();
    filling.fill();
    filling.clear();
    filling.world.finish().unwrap_or_else(|error| panic!("{}: {error}", filling.what));
}

#[test]
fn a_group_whose_pools_are_full_takes_deletes_and_clears_and_then_puts_again() {
    use AckLevel::{Durable, Replicated};
    use CompactionMode::{EveryReplica, Primary};
    // The first of them in `cargo test`, all in `.ci/run`.
    let groups = [(3, Primary, Replicated), (3, EveryReplica, Replicated), (2, Primary, Durable)];
    for (seed, (replicas, compaction, ack)) in (1..).zip(groups).take(2 * times() as usize - 1) {
        fill_delete_clear(seed, replicas, compaction, ack);
    }
}

/// Deletes absent keys, ascending as a cleanup would, so many that their tombstones would fill the
/// pool; now and then all processes are killed.
fn delete_what_is_not_there(filling: &mut Filling, kills: bool) {
    const NONE: u64 = 1 << 40;
    // As long as a tombstone is in a file.
    let pad = "x".repeat(500);
    let (count, step) = (POOL_LEN / 500, 100);
    for first in (0..count).step_by(step as usize) {
        filling.wait_for_deletes();
        let numbers = NONE + first..NONE + first + step;
        if let Some(node) = filling.world.node_mut(0).filter(|node| is_taken(node, &[])) {
            for number in numbers {
                let key = format!("none {number}{pad}");
                node.delete(Keyspace::User, key.as_bytes()).expect("deletes are taken");
            }
            node.end_turn().expect("deletes are taken");
        }
        filling.advance(4);
        if kills && first.is_multiple_of(512 * step) {
            filling.world.kill_all();
            filling.advance(3_000);
        }
    }
}

#[test]
fn tombstones_alone_fill_no_pool_of_a_group_and_wedge_none_that_is_full() {
    let ways = [(1, CompactionMode::Primary)];
    let more = [(3, CompactionMode::Primary), (3, CompactionMode::EveryReplica)];
    let ways = ways.iter().chain(more.iter().filter(|_| times() > 1));
    for (seed, (replicas, compaction)) in (1..).zip(ways) {
        let mut filling = Filling::new(seed, *replicas, *compaction, AckLevel::Replicated);
        delete_what_is_not_there(&mut filling, false);
        filling.opens();
        filling.fill();
        let first = filling.next;
        assert!(first > 1_000, "{}: full after {first} keys", filling.what);
        delete_what_is_not_there(&mut filling, true);
        filling.delete(0..first);
        filling.opens();
        filling.fill();
        filling.clear();
        filling.world.finish().unwrap_or_else(|error| panic!("{}: {error}", filling.what));
    }
}

#[test]
fn full_pools_lose_nothing_and_get_room_again_while_all_else_breaks() {
    let faults = Faults { kill: 3_000, link: 2_000, pipe: 2_000, slow: 3_000, ..Faults::default() };
    for seed in 1..=times() {
        let ack = [AckLevel::Replicated, AckLevel::Durable][seed as usize % 2];
        let mut filling = Filling::among(faults, seed, 3, CompactionMode::Primary, ack);
        filling.fill();
        let first = filling.next;
        filling.delete(0..first);
        filling.opens();
        filling.world.finish().unwrap_or_else(|error| panic!("{}: {error}", filling.what));
    }
}

//! The log of a group of one: in the ring, until flushes take it off or it has been there for long.

use crate::no_space::start;
use crate::replica::Replica;
use gabion_base::units::{KIB, MIB};
use gabion_base::{FileId, FileKind};
use gabion_engine::{JobKind, Keyspace, TreeConfig};
use gabion_node::AckLevel;

/// Segments that the log has on the device.
fn segments(replica: &Replica) -> usize {
    let files = replica.node.pool().files();
    files.filter(|placement| placement.file.kind == FileKind::LogSegment).count()
}

/// Writes a MemTable and flushes it, and lets no other job begin.
fn flush(replica: &mut Replica) {
    replica.seal();
    replica.succeed(JobKind::Flush);
    replica.pass(1);
    assert_eq!(replica.node.tree().sealed_count(), 0);
}

#[test]
fn what_flushes_take_off_the_log_is_never_written_to_a_segment() {
    let mut replica = start();
    for round in 0..3 {
        flush(&mut replica);
        let begin = replica.node.tree().flushed().frontier;
        assert!(begin.only().get() > round * 16 * KIB);
        assert_eq!(replica.node.state().trimmed.position, begin.only());
        assert_eq!(replica.node.durable_everywhere(), begin, "the log begins there");
    }
    assert_eq!(segments(&replica), 0);
    // A power cut takes the ring: what is in files is there, what is written then, too.
    let sequence = replica.node.tree().flushed().sequence;
    let mut replica = replica.restart(0);
    assert_eq!(replica.node.tree().last_sequence(), sequence);
    flush(&mut replica);
    assert!(replica.node.tree().flushed().sequence > sequence);
    let view = replica.restart(0);
    assert!(
        view.has(&view.node.read_view(), "key 0") && view.has(&view.node.read_view(), "key 20")
    );
}

/// Where more comes all the time, what came behind the old fills its block.
#[test]
fn what_is_old_in_the_log_is_durable_without_a_record_where_more_comes() {
    let mut replica = start();
    replica.pass(20_000);
    let (begin, begun_ms) = (replica.node.log_end(), replica.now_ms());
    let mut ends = Vec::new();
    while replica.now_ms() < begun_ms + 12_000 {
        replica.put(&format!("key {:0400}", ends.len() % 20));
        ends.push(replica.node.end_turn().unwrap());
        replica.pass(300);
    }
    // Ten seconds before that are 33 records back.
    assert!(replica.node.durable_everywhere().covers(&ends[ends.len() - 35]));
    let record_len = ends[0].bytes_since(&begin).max(ends[1].bytes_since(&ends[0]));
    let len = replica.node.log_end().bytes_since(&begin);
    assert!(len <= record_len * ends.len() as u64, "{len} bytes of {} records", ends.len());
}

#[test]
fn what_has_been_in_the_log_for_long_is_durable() {
    let mut replica = start();
    for n in 0..20 {
        replica.put(&format!("key {n:0400}"));
        replica.node.end_turn().unwrap();
    }
    replica.put("last");
    replica.node.end_turn().unwrap();
    replica.pass(0);
    let written_ms = replica.now_ms();
    while segments(&replica) == 0 {
        replica.pass(100);
        assert!(replica.now_ms() <= written_ms + 10_200, "it is there for ever");
    }
    assert!(replica.now_ms() >= written_ms + 4_900, "it was not given the time");
    let end = replica.node.log_end();
    assert_eq!(replica.node.durable_everywhere(), end, "the last block, too");
    replica.pass(20_000);
    assert_eq!((replica.node.log_end(), segments(&replica)), (end, 1), "once is enough");
    let replica = replica.restart(0);
    let view = replica.node.read_view();
    assert!(replica.has(&view, &format!("key {:0400}", 0)) && replica.has(&view, "last"));
}

/// All MemTables that may wait for their flush would not fit into it.
#[test]
fn a_ring_that_is_short_is_drained_as_it_fills_up() {
    let tree = TreeConfig { memtable_len: 16 * KIB, ..TreeConfig::default() };
    let mut replica = Replica::start(128 * MIB, tree, 16 * KIB);
    // More than the ring holds.
    while replica.node.log_end().only().get() < 4 * 16 * KIB {
        replica.seal();
    }
    assert!(segments(&replica) > 1, "what was sealed is not flushed");
    let durable = replica.node.durable_everywhere();
    assert!(durable.only().get() > 16 * KIB, "{durable}");
    replica.work();
    assert_eq!(replica.node.tree().sealed_count(), 0);
    let replica = replica.restart(0);
    assert!(
        replica.node.log_end().covers(&durable) && replica.has(&replica.node.read_view(), "key 7")
    );
}

/// Each start is a term, and the state has a list of those that the log knows: a store that is
/// opened for one put at a time would have more of them in the end than a start takes.
/// docs/faults.md: P30
#[test]
fn a_store_that_is_opened_for_a_put_each_time_forgets_the_terms_that_are_in_files() {
    // Nothing but the number of terms lets such a log end.
    let tree = TreeConfig { memtable_len: 4 * MIB, ..TreeConfig::default() };
    let mut replica = Replica::start(256 * MIB, tree, MIB);
    let mut most = 0;
    for n in 0..300 {
        replica.put(&format!("key {n}"));
        replica.node.end_turn_at(AckLevel::Durable).unwrap();
        replica.pass(1_000);
        replica.work();
        most = most.max(replica.node.state().spans.len());
        replica = replica.restart(n * 1_000);
    }
    let left = replica.node.state().spans.len();
    assert!((200..260).contains(&most) && left < 100, "{most} terms at most, {left} at the end");
    let view = replica.node.read_view();
    assert!(replica.has(&view, "key 0") && replica.has(&view, "key 299"));
}

/// As above, by processes that end at once, killed or closed, some of them before a flush has
/// ended.
#[test]
fn terms_are_forgotten_also_where_no_process_lasts() {
    let tree = TreeConfig { memtable_len: 4 * MIB, ..TreeConfig::default() };
    let mut replica = Replica::start(256 * MIB, tree, MIB);
    let mut most = 0;
    for n in 0..700 {
        replica.put(&format!("key {n}"));
        replica.node.end_turn_at(AckLevel::Durable).unwrap();
        replica.pass(1);
        if n % 3 == 0 {
            replica.work();
        }
        most = most.max(replica.node.state().spans.len());
        replica = replica.restart(n);
    }
    assert!((256..300).contains(&most), "{most} terms at most");
    let view = replica.node.read_view();
    assert!(replica.has(&view, "key 0") && replica.has(&view, "key 699"));
}

#[test]
fn a_restarted_head_gives_files_numbers_of_its_new_term() {
    let mut replica = start();
    let mut terms = Vec::new();
    for _ in 0..3 {
        flush(&mut replica);
        let files = replica.node.tree().version().files();
        let newest = files.map(|(_, meta)| meta.clone()).max_by_key(|meta| meta.id).unwrap();
        assert_eq!(newest.id.term(), newest.term, "{}", newest.id);
        assert_eq!(newest.term, replica.node.state().term());
        terms.push(newest.term);
        replica = replica.restart(0);
    }
    assert!(terms.is_sorted_by(|a, b| a < b), "each start has a term of its own: {terms:?}");
}

/// Bytes of the log between seals, where large values may stay in its segments.
fn lens_of_memtables(memtable_len: u64, segment_len: u64) -> Vec<u64> {
    let tree = TreeConfig { memtable_len, large_values: 100, ..TreeConfig::default() };
    let mut replica = Replica::start(256 * MIB, tree, segment_len);
    let mut ends = vec![replica.node.log_end().only().get()];
    for _ in 0..8 {
        replica.seal();
        replica.work();
        ends.push(replica.node.log_end().only().get());
    }
    ends.windows(2).map(|ends| ends[1] - ends[0]).collect()
}

#[test]
fn memtables_that_cover_no_segment_are_as_long_as_without_large_values() {
    let lens = lens_of_memtables(32 * KIB, 64 * KIB);
    assert!(lens[1..].iter().all(|len| (30 * KIB..42 * KIB).contains(len)), "{lens:?}");
}

/// A MemTable seals with the end of a segment, and all segments stay.
#[test]
fn a_memtable_whose_values_stay_in_the_log_spans_as_many_segments_as_it_can_have_whole() {
    let segment = 64 * KIB;
    for segments in [1, 2, 4] {
        let memtable_len = segments * segment;
        let tree = TreeConfig { memtable_len, large_values: 100, ..TreeConfig::default() };
        let mut replica = Replica::start(256 * MIB, tree, segment);
        fill(&mut replica, 0..8 * memtable_len as u32 / 600);
        let flushed = replica.node.tree().flushed();
        let log = flushed.frontier.only().get();
        assert_eq!(log % segment, 0, "MemTables of {segments} segments");
        assert_eq!(log / segment, segments * flushed.memtable.get());
        let referenced = replica.node.tree().version().referenced().keys();
        let kept = referenced.filter(|file| file.kind == FileKind::LogSegment).count() as u64;
        assert_eq!(kept, log / segment, "MemTables of {segments} segments");
        assert!(flushed.memtable.get() >= 5, "{flushed:?}");
    }
}

/// The bytes of a segment, as they lie on the device.
fn bytes_of(replica: &Replica, segment: FileId) -> Vec<u8> {
    let len = replica.node.config().segment_len as usize;
    replica.disk.peek(replica.offset_of(segment), len)
}

/// A bit of each kept segment flips, in a record and in the first header of the segment. Pointers
/// lead there, so the log must not go on in one, whatever a start finds in it.
///
/// docs/faults.md: E4, E12
#[test]
fn a_segment_that_keeps_values_is_never_written_again_though_it_rots() {
    let segment_len = 64 * KIB;
    let tree =
        TreeConfig { memtable_len: 2 * segment_len, large_values: 100, ..TreeConfig::default() };
    let mut replica = Replica::start(256 * MIB, tree, segment_len);
    fill(&mut replica, 0..1_000);
    let mut bit = 0;
    for round in 1..4 {
        let referenced = replica.node.tree().version().referenced().keys().copied();
        let kept: Vec<FileId> = referenced.collect();
        assert!(kept.len() as u32 >= 4 * round, "{kept:?}");
        for segment in &kept {
            let at = replica.offset_of(*segment) + [2, 5_000][bit % 2];
            replica.disk.flip_bit(at, (bit % 8) as u8);
            bit += 1;
        }
        let rotten: Vec<Vec<u8>> = kept.iter().map(|file| bytes_of(&replica, *file)).collect();
        replica = replica.restart(0);
        fill(&mut replica, 1_000 * round..1_000 * (round + 1));
        let is_same = |(file, bytes): (&FileId, &Vec<u8>)| bytes_of(&replica, *file) == *bytes;
        let referenced = replica.node.tree().version().referenced();
        let mut here = kept.iter().zip(&rotten).filter(|(file, _)| referenced.contains_key(file));
        assert!(here.all(is_same), "round {round}: a kept segment was written");
    }
}

/// Puts large values, and does whatever follows.
fn fill(replica: &mut Replica, keys: core::ops::Range<u32>) {
    for key in keys {
        let key = format!("key {key}");
        replica.node.put(Keyspace::User, key.as_bytes(), &[7; 500]).unwrap();
        replica.node.end_turn().unwrap();
        replica.pass(0);
        replica.work();
    }
}

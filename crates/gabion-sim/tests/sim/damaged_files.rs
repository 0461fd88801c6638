//! Disks that return other bytes than were written (docs/faults.md E5, R13). No read returns them,
//! and the file is repaired from a replica that has it whole. If there is none, the error stays and
//! names the file.

use crate::times;
use gabion_base::{FileId, FileKind};
use gabion_engine::Compression;
use gabion_node::{CompactionMode, DamagedFile, Node, RepairState, WriteGate};
use gabion_sim::{Faults, Options, Outcome, World};

/// Steps until a repair is through, pauses included.
const REPAIR_STEPS: u64 = 6_000;

/// No faults but the test's own.
fn options(seed: u64, replicas: u32) -> Options {
    Options {
        replicas,
        compaction: CompactionMode::Primary,
        compression: Compression::None,
        faults: Faults::default(),
        ..Options::of_seed(seed)
    }
}

fn check<T>(what: &str, result: Result<T, String>) -> T {
    result.unwrap_or_else(|error| panic!("{what}: {error}"))
}

fn node(world: &World, index: usize) -> &Node {
    world.node(index).expect("the replica is up")
}

/// A cluster at rest, with files.
fn world(what: &str, options: Options, seed: u64) -> World {
    let mut world = World::new(seed, options);
    for _ in 0..10 {
        check(what, world.advance(2_000));
        check(what, world.settle());
        // Clients clear everything now and then.
        if !world.files(0).is_empty() {
            return world;
        }
    }
    panic!("{what}: there are no files")
}

fn damaged(world: &World, index: usize) -> Vec<DamagedFile> {
    node(world, index).damaged_files().collect()
}

/// Reads all of a replica past its caches, and wants an error that names the file.
fn read_meets(what: &str, world: &mut World, index: usize, file: FileId) {
    let error = world.scan(index).expect_err("it reads what rotted");
    assert!(error.contains(&file.to_string()), "{what}: {error}");
}

/// Each of a replica's files rots, one after the other; each is read, repaired and read again.
fn rots_and_is_repaired(replicas: u32, index: usize) {
    let what = format!("replica {} of {replicas}", index + 1);
    let mut world = world(&what, options(1, replicas), 1);
    for file in world.files(index) {
        world.rot(index, file);
        assert!(!world.is_whole(index, file), "{what}: {file}");
        world.restart(index);
        check(&what, world.settle());
        let before = node(&world, index).counters();
        // Dead values that rotted are met by no reader.
        let is_read = file.kind == FileKind::Sst || world.scan(index).is_err();
        if !is_read {
            continue;
        }
        read_meets(&what, &mut world, index, file);
        check(&what, world.settle());
        let counters = node(&world, index).counters();
        assert_eq!(counters.damaged_files, before.damaged_files + 1, "{what}: {file}");
        assert_eq!(counters.repaired_files, before.repaired_files + 1, "{what}: {file}");
        assert_eq!(damaged(&world, index).len(), 0, "{what}: {file}");
        assert!(world.is_whole(index, file), "{what}: {file}");
        check(&what, world.scan(index));
    }
    check(&what, world.advance(1_000));
    check(&what, world.finish());
}

/// docs/faults.md: E5, R13
#[test]
fn a_file_that_rotted_at_a_secondary_is_an_error_for_its_reader_and_then_whole() {
    rots_and_is_repaired(2, 1);
    rots_and_is_repaired(3, 1);
    rots_and_is_repaired(3, 2);
}

/// docs/faults.md: E5, R13
#[test]
fn a_file_that_rotted_at_the_primary_is_an_error_for_its_reader_and_then_whole() {
    rots_and_is_repaired(2, 0);
    rots_and_is_repaired(3, 0);
}

#[test]
fn a_primary_whose_connections_for_files_are_lost_makes_others_for_its_repair() {
    for replicas in [2, 3] {
        let what = format!("the primary of {replicas} has no connections for files");
        let mut world = world(&what, options(1, replicas), 1);
        let file = world.files(0)[0];
        world.rot(0, file);
        world.restart(0);
        check(&what, world.settle());
        world.cut_remotes(0);
        // Nothing is shipped meanwhile, which would make them anew.
        let shipped = world.outcome().shipped_files;
        read_meets(&what, &mut world, 0, file);
        check(&what, world.settle());
        assert_eq!(world.outcome().shipped_files, shipped, "{what}");
        assert_eq!(node(&world, 0).counters().repaired_files, 1, "{what}");
        assert!(world.is_whole(0, file), "{what}: {file}");
        check(&what, world.finish());
    }
}

/// docs/faults.md: E9, R13
#[test]
fn a_compaction_that_meets_damage_begins_anew_when_its_inputs_are_whole() {
    let (mut set_aside, what) = (0, "the primary's files rot");
    // At rest few levels are left with a compaction due soon.
    for seed in 1..=60 {
        if seed > 8 && set_aside > 0 {
            return;
        }
        let mut world = world(what, options(seed, 3), seed);
        for file in world.files(0) {
            world.rot(0, file);
        }
        let rotten = node(&world, 0).tree().version().level(0).to_vec();
        world.restart(0);
        check(what, world.advance(REPAIR_STEPS));
        check(what, world.settle());
        let counters = node(&world, 0).counters();
        assert!(counters.repaired_files > 0, "{what}: seed {seed} {counters:?}");
        set_aside += counters.jobs_set_aside;
        // Files that are set aside for good stay in place.
        let left = world.files(0);
        assert!(rotten.iter().all(|meta| !left.contains(&meta.id)), "{what}: seed {seed} {left:?}");
        check(what, world.finish());
    }
    assert!(set_aside > 0, "no compaction met damage");
}

/// docs/faults.md: R13
#[test]
fn damage_is_repaired_through_the_primary_when_only_another_secondary_has_the_file_whole() {
    let what = "two of three copies rot";
    let mut world = world(what, options(1, 3), 1);
    let file = world.files(0)[0];
    for index in [0, 2] {
        world.rot(index, file);
        world.restart(index);
    }
    check(what, world.settle());
    let session = node(&world, 2).state().session;
    assert!(world.files(2).contains(&file), "{what}: it was compacted");
    read_meets(what, &mut world, 2, file);
    // The primary has no whole copy at first, and is asked again after a pause.
    for _ in 0..30 {
        check(what, world.settle());
    }
    for index in [0, 2] {
        assert!(world.is_whole(index, file), "{what}: replica {}", index + 1);
        assert_eq!(node(&world, index).counters().repaired_files, 1, "{what}");
    }
    // Nobody had read the primary's copy; it compared the copy before it shipped any of it.
    assert_eq!(node(&world, 2).state().session, session, "{what}: it was sent what rotted");
    check(what, world.finish());
}

/// The file stays damaged at these replicas, and they report it; all else goes on.
fn stays(what: &str, world: &mut World, damaged_at: &[usize], file: FileId) {
    for index in damaged_at {
        read_meets(what, world, *index, file);
    }
    check(what, world.settle());
    for index in damaged_at {
        let list = damaged(world, *index);
        let states: Vec<_> = list.iter().map(|damaged| (damaged.file, damaged.state)).collect();
        assert_eq!(states, [(file, RepairState::NoGoodCopy)], "{what}");
        assert!(list[0].error.to_string().contains(&file.to_string()), "{what}: {list:?}");
    }
    let shipped = world.outcome().shipped_files;
    let reread = node(world, 0).counters().reship_read_bytes;
    let (log_end, operations) = (node(world, 0).log_end(), world.outcome().operations);
    let floor = node(world, 0).tree().floor();
    check(what, world.advance(2_000));
    // Cleared files go unread: the test wants a seed with which clients clear nothing here.
    assert_eq!(node(world, 0).tree().floor(), floor, "{what}");
    assert!(!log_end.covers(&node(world, 0).log_end()), "{what}: writes do not go on");
    assert!(world.outcome().operations > operations, "{what}: clients get no answers");
    assert!(!matches!(node(world, 0).write_gate(), WriteGate::Refuse(_)), "{what}");
    for index in damaged_at {
        // Otherwise a compaction, which found it whole in no replica, made something of it.
        assert!(world.files(*index).contains(&file), "{what}: {file} left the tree");
        assert!(!world.is_whole(*index, file), "{what}");
        assert_eq!(node(world, *index).counters().repaired_files, 0, "{what}");
    }
    let reread = node(world, 0).counters().reship_read_bytes - reread;
    let news = world.outcome().shipped_files - shipped;
    assert!(reread == 0, "{what}: {reread} bytes read again, {news} files shipped");
}

/// docs/faults.md: R13
#[test]
fn a_file_that_no_replica_has_whole_stays_an_error_that_names_it_and_the_group_lives_on() {
    for replicas in [2, 3] {
        let what = format!("all of {replicas} copies rot");
        let mut world = world(&what, options(6, replicas), 6);
        let file = world.files(0)[0];
        let all: Vec<usize> = (0..replicas as usize).collect();
        for index in &all {
            world.rot(*index, file);
            world.restart(*index);
        }
        check(&what, world.settle());
        stays(&what, &mut world, &all, file);
    }
}

/// docs/faults.md: R13
#[test]
fn a_replica_whose_files_nobody_else_has_says_so_and_asks_nobody() {
    // Cleared files go unread, damaged or not: with these seeds the file is not among them.
    let alone = options(6, 1);
    let each = Options { compaction: CompactionMode::EveryReplica, ..options(9, 3) };
    for (what, options, seed) in [("a replica alone", alone, 6), ("each compacts", each, 9)] {
        let mut world = world(what, options, seed);
        let index = world.len() - 1;
        let file = world.files(index)[0];
        world.rot(index, file);
        world.restart(index);
        check(what, world.settle());
        stays(what, &mut world, &[index], file);
        assert_eq!(world.outcome().pulled_files, 0, "{what}");
    }
}

/// A run of everything, with rot now and then.
fn run_with_rot(seed: u64) -> Outcome {
    let mut options = Options { compaction: CompactionMode::Primary, ..Options::of_seed(seed) };
    options.replicas = options.replicas.max(2);
    options.faults.rot = 60;
    // A secondary that lost a file needs the primary's, which must not be the rotten one.
    options.faults.lost = 0;
    World::run(seed, options).unwrap_or_else(|error| panic!("{error}"))
}

/// An edit removed a damaged file that the primary was asked for and had yet to ship, or one that
/// had come and whose new place was being committed. The primary was not told, kept its bytes, and
/// began no jobs. These seeds met one each, before the protocol's steps changed.
#[test]
fn a_repair_whose_file_is_removed_meanwhile_keeps_neither_slots_nor_bytes() {
    for seed in [6, 19] {
        assert!(run_with_rot(seed).repaired_files > 0);
    }
}

/// docs/faults.md: R13
#[test]
fn files_that_rot_now_and_then_while_all_else_breaks_are_repaired_and_nothing_is_lost() {
    let (mut total, seeds) = (Outcome::default(), 8 * times());
    for seed in 1..=seeds {
        total.add(&run_with_rot(seed));
    }
    eprintln!("coverage: damaged files, {seeds} seeds: {total:?}");
    assert!(total.rotten > 50 * times(), "too little rotted");
    assert!(total.failed_reads > 0, "no client met damage");
    assert!(total.jobs_set_aside > 0, "no compaction met damage");
    assert!(total.repaired_files > 15 * times(), "too little was repaired");
}

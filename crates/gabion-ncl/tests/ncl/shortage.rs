//! Full peers while something else goes on: copies are lost or replaced, or memory is on its
//! way back.

use crate::check::Operation;
use crate::memory::{create, fill, make, recovered, status, synced, world, write};
use crate::peers::LIMIT;
use crate::steps::{RECORD_MAX, calm, wait};
use crate::world::World;
use gabion_base::{ErrorKind, Result};
use gabion_media::remote::PeerId;
use gabion_ncl::{FileNumber, Metadata};

const METADATA: Metadata = Metadata { mode: 0o644, user: 0, group: 0, modified_ns: 0 };

fn set_limit(world: &mut World, peer: u64, limit: u64) {
    world.machines.get_mut(&PeerId(peer)).expect("it is there").set_limit(limit);
}

fn lent(world: &World, peer: u64) -> u64 {
    world.machines[&PeerId(peer)].peer.as_ref().expect("it is up").usage().lent_bytes
}

fn reserve(world: &mut World, file: FileNumber, end: u64) -> Result<u64> {
    world.instances.get_mut(&1).expect("it lives").application.reserve(file, end)
}

/// Of two full peers one can go, and another peer is there for it. It is not the one that has the
/// memory for a record on its way, which the other one lacks.
///
/// docs/faults.md: N15
#[test]
fn a_full_peer_stays_while_another_lacks_what_a_record_on_its_way_needs() {
    let mut both = 0;
    for ms in 0..60 {
        let mut world = world(ms + 1, LIMIT, 0);
        let file = create(&mut world, "a.log");
        synced(&mut world);
        let first = lent(&world, 1);
        set_limit(&mut world, 1, first + 8192);
        set_limit(&mut world, 2, 0);
        let long = Operation::Truncate(file, 20_000);
        assert_eq!(make(&mut world, long).expect_err("two are full").kind(), ErrorKind::NoSpace);
        set_limit(&mut world, 4, LIMIT);
        world.run(ms).expect("a copy is made");
        world.slow(PeerId(2), 30);
        create(&mut world, "b.log");
        for _ in 0..200 {
            world.step().expect("all is right");
            assert!(status(&world).copies >= 2, "after {ms} ms: {:?}", status(&world));
        }
        let map = world.map().expect("there is a map");
        both += u64::from(map.member(PeerId(4)).is_some());
        synced(&mut world);
    }
    assert!(both > 30, "another peer takes a place: {both}");
}

/// One of three is full and given up, another one is lost. The last one that counts has no memory
/// for a new file: so there is none, and the copies that come back are enough.
///
/// docs/faults.md: N1, N15
#[test]
fn the_last_copy_that_counts_is_not_given_up_for_a_change_that_it_has_no_memory_for() {
    let mut world = world(1, LIMIT, 0);
    let file = create(&mut world, "a.log");
    synced(&mut world);
    set_limit(&mut world, 3, 0);
    create(&mut world, "b.log");
    synced(&mut world);
    assert_eq!(status(&world).copies, 2);
    set_limit(&mut world, 1, 0);
    world.kill_machine(PeerId(2), 300);
    while status(&world).copies == 2 {
        world.step().expect("the loss is noticed");
    }
    let refused = make(&mut world, Operation::Create(FileNumber(0), "c".into(), METADATA));
    assert_eq!(refused.expect_err("it has no memory").kind(), ErrorKind::NoSpace);
    make(&mut world, Operation::Link(file, "d".into())).expect("it needs no memory");
    world.run(1_000).expect("the lost one is back");
    synced(&mut world);
    assert_eq!(status(&world).copies, 2);
    set_limit(&mut world, 1, LIMIT);
    set_limit(&mut world, 3, LIMIT);
    recovered(&mut world);
}

/// A file asked for memory and got none, while a peer that had lent it ahead of need had yet to
/// give back a file's that was removed.
///
/// docs/faults.md: N15
#[test]
fn what_nobody_wants_any_more_is_given_back_also_by_a_peer_that_is_behind() {
    let mut world = world(2, LIMIT, 0);
    let file = create(&mut world, "a.log");
    create(&mut world, "b.log");
    synced(&mut world);
    for peer in [2, 3] {
        set_limit(&mut world, peer, 0);
    }
    let before = lent(&world, 1);
    for _ in 0..20 {
        // Peer 1 lends it, the others do not answer yet.
        assert!(reserve(&mut world, file, 20_000).is_err());
        while world.carry_out(1) {}
        if lent(&world, 1) > before {
            break;
        }
        world.slow(PeerId(2), 20);
        world.slow(PeerId(3), 20);
        world.step().expect("all is right");
    }
    assert_eq!(lent(&world, 1), before + 16_384, "it is lent");
    world.run(2).expect("the application knows");
    make(&mut world, Operation::Unlink("b.log".into())).expect("it needs no memory");
    world.slow(PeerId(1), 70);
    let long = Operation::Truncate(file, 20_000);
    assert_eq!(make(&mut world, long).expect_err("two are full").kind(), ErrorKind::NoSpace);
    synced(&mut world);
    world.run(200).expect("all is right");
    assert_eq!(status(&world).copies, 3);
    assert_eq!(lent(&world, 1), before - 8192, "only what files have is lent");
}

/// A table of names that does not fit into a first part.
fn long_table(world: &mut World, file: FileNumber) {
    for link in 0..60 {
        make(world, Operation::Link(file, format!("{link}{}", "/directory".repeat(9))))
            .expect("there is room");
        synced(world);
    }
}

/// docs/faults.md: N15
#[test]
fn a_long_table_of_names_takes_no_more_memory_the_more_often_it_changes() {
    let mut world = world(4, LIMIT, 0);
    let file = create(&mut world, "a.log");
    long_table(&mut world, file);
    let mut most = 0;
    for turn in 0..2_000 {
        let (from, to) = if turn % 2 == 0 { ("a.log", "b.log") } else { ("b.log", "a.log") };
        make(&mut world, Operation::Rename(from.into(), to.into())).expect("there is room");
        synced(&mut world);
        if turn == 500 {
            most = lent(&world, 1);
        }
    }
    world.run(100).expect("all is right");
    assert_eq!(lent(&world, 1), most, "of the same names");
    recovered(&mut world);
}

/// docs/faults.md: N15
#[test]
fn with_a_long_table_of_names_memory_can_be_given_back_at_full_peers() {
    let mut world = world(5, LIMIT, 0);
    let (file, other) = (create(&mut world, "a.log"), create(&mut world, "b.log"));
    make(&mut world, Operation::Truncate(file, 20_000)).expect("there is room");
    long_table(&mut world, other);
    world.run(100).expect("all is answered");
    (1..=3).for_each(|peer| set_limit(&mut world, peer, 0));
    make(&mut world, Operation::Truncate(file, 0)).expect("it needs no memory");
    let lens = [(file, 0), (other, 0)].into();
    assert!(wait(&mut world, |it| it.trim(&lens)), "it has memory of no byte");
    let grown = Operation::Truncate(other, 8_000);
    make(&mut world, grown).expect("there is room now");
    // Names take none either, however often they change, and go.
    for turn in 0..200 {
        let (from, to) = if turn % 2 == 0 { ("a.log", "c.log") } else { ("c.log", "a.log") };
        make(&mut world, Operation::Rename(from.into(), to.into())).expect("there is room");
        synced(&mut world);
    }
    let names = world.instances[&1].application.list("").expect("it runs");
    for (name, _) in names {
        make(&mut world, Operation::Unlink(name)).expect("it needs no memory");
        synced(&mut world);
    }
}

/// A file of the library's own programs is cut, and they need not say so.
///
/// docs/faults.md: N15
#[test]
fn a_file_that_is_cut_makes_room_also_just_after_there_was_none() {
    let mut world = calm(6);
    let id = world.start(true);
    world.instances[&id].images.is_own.set(true);
    world.run(300).expect("it runs");
    let files = ["a.log", "b.log"].map(|name| wait(&mut world, |it| it.create(name, METADATA)));
    wait(&mut world, |it| it.truncate(files[0], 9_000));
    synced(&mut world);
    let ids: Vec<PeerId> = world.machines.keys().copied().collect();
    ids.into_iter().for_each(|peer| set_limit(&mut world, peer.0, 0));
    let write = |world: &mut World| {
        for _ in 0..1_000 {
            let application = &mut world.instances.get_mut(&id).expect("it lives").application;
            match application.write(files[1], 9_000, b"behind the first part") {
                Err(error) if error.kind() == ErrorKind::Busy => world.step().expect("it runs"),
                done => return done.map(|_| ()),
            }
        }
        panic!("peers do not answer");
    };
    assert_eq!(write(&mut world).expect_err("all are full").kind(), ErrorKind::NoSpace);
    wait(&mut world, |it| it.truncate(files[0], 10));
    write(&mut world).expect("there is room at once");
    synced(&mut world);
}

/// Of four equal peers three are full. With a copy the fourth has no room for more either, so its
/// copy would be made for nothing, and one after the other for ever.
///
/// docs/faults.md: N15
#[test]
fn a_full_peer_is_not_replaced_by_one_that_would_be_as_full() {
    let mut world = world(7, 100_000, 100_000);
    let file = create(&mut world, "a.log");
    let (len, _) = fill(&mut world, file);
    synced(&mut world);
    for _ in 0..30 {
        assert!(write(&mut world, file, len, RECORD_MAX).is_err(), "they are full");
        world.run(100).expect("all is right");
    }
    assert_eq!((status(&world).copies, status(&world).replaced), (3, 0));
    // One that has more takes a place.
    set_limit(&mut world, 4, 200_000);
    world.run(200).expect("a copy is made");
    assert_eq!((status(&world).copies, status(&world).replaced), (3, 1));
}

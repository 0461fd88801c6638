//! Peers that have no memory for more: nothing of what they have is lost, what needs none goes on,
//! and all goes on once there is room.

use crate::check::Operation;
use crate::peers::{LIMIT, Random};
use crate::steps::{RECORD_MAX, calm, wait};
use crate::world::World;
use gabion_base::{ErrorKind, Result};
use gabion_media::remote::PeerId;
use gabion_ncl::{FileNumber, Metadata, NameEdit, Number, Status};
use std::collections::BTreeMap;

/// Peers 1 to 3 have so many bytes, and peer 4 as many as it is said.
pub(crate) fn world(seed: u64, limit: u64, fourth: u64) -> World {
    let mut world = calm(seed);
    for (id, machine) in &mut world.machines {
        machine.set_limit(if id.0 < 4 { limit } else { fourth });
    }
    world.run(300).expect("it runs");
    let program = world.instances.get_mut(&1).and_then(|it| it.program.as_mut());
    program.expect("it runs").is_over = true;
    world.run(100).expect("what it changed is stored");
    let names = world.instances[&1].application.list("").expect("it runs");
    for (name, _) in names {
        make(&mut world, Operation::Unlink(name)).expect("it needs no memory");
    }
    world.run(100).expect("its files are gone");
    world
}

pub(crate) fn status(world: &World) -> Status {
    world.instances[&1].application.status()
}

/// The program does something, if there is memory for it.
pub(crate) fn make(world: &mut World, operation: Operation) -> Result<()> {
    for _ in 0..1_000 {
        let instance = world.instances.get_mut(&1).expect("it lives");
        let program = instance.program.as_mut().expect("it runs");
        match program.make(&mut instance.application, &instance.images, operation.clone()) {
            Err(error) if error.kind() == ErrorKind::Busy => world.step().expect("all is right"),
            done => return done,
        }
    }
    panic!("peers do not answer");
}

pub(crate) fn create(world: &mut World, name: &str) -> FileNumber {
    let create = Operation::Create(FileNumber(0), name.to_owned(), Metadata::default());
    make(world, create).expect("there is room");
    world.instances[&1].application.find(name).expect("it runs").expect("it is there")
}

pub(crate) fn write(world: &mut World, file: FileNumber, offset: u64, len: u64) -> Result<()> {
    make(world, Operation::Write(file, offset, vec![(offset as u8).wrapping_add(7); len as usize]))
}

/// Appends until there is no memory. Returns the length, and the error in words.
pub(crate) fn fill(world: &mut World, file: FileNumber) -> (u64, String) {
    let mut len = 0;
    loop {
        match write(world, file, len, RECORD_MAX) {
            Ok(()) => len += RECORD_MAX,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
                return (len, error.message().to_owned());
            }
        }
        roomy(world);
    }
}

/// Waits until another record may be issued.
pub(crate) fn roomy(world: &mut World) {
    for _ in 0..500 {
        if world.instances[&1].application.has_room() {
            return;
        }
        world.step().expect("records are taken");
    }
    panic!("no copy takes records: {:?}", status(world));
}

pub(crate) fn synced(world: &mut World) {
    for _ in 0..500 {
        let Status { acknowledged, issued, .. } = status(world);
        if acknowledged == issued && issued > Number::ZERO {
            return;
        }
        world.step().expect("all is right");
    }
    panic!("it is not acknowledged: {:?}", status(world));
}

/// Appends to four files at random until peers, each of its own size, have said several times that
/// they have no memory. Returns how often they did. Each time that is true, and no copy that is
/// needed ends.
pub(crate) fn fill_at_random(seed: u64) -> u64 {
    let mut random = Random(seed);
    let mut world = world(seed, 120_000, 0);
    for id in 1..4 {
        let limit = 120_000 + random.below(160_000);
        world.machines.get_mut(&PeerId(id)).expect("it is there").set_limit(limit);
    }
    world.run(3_000).expect("peers tell what they have");
    let mut files: Vec<(FileNumber, u64)> =
        (0..4).map(|name| (create(&mut world, &format!("{name}.log")), 0)).collect();
    let (mut denied, most) = (0, 1 + random.below(3));
    while denied < most {
        let (file, len) = &mut files[random.below(4) as usize];
        let more = 1 + random.below(RECORD_MAX - 100);
        if let Err(error) = write(&mut world, *file, *len, more) {
            assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
            denied += 1;
            world.run(3_000).expect("all is answered");
            assert!(write(&mut world, *file, *len, more).is_err(), "there was room: {error}");
        } else {
            *len += more;
        }
        // Others go on before peers have the last ones.
        roomy(&mut world);
    }
    synced(&mut world);
    let shortage = world.instances[&1].application.shortage();
    assert!(status(&world).copies >= 2, "{shortage}");
    recovered_with(&mut world, LIMIT);
    denied
}

/// The same once peers have so many bytes.
fn recovered_with(world: &mut World, limit: u64) {
    for machine in world.machines.values_mut() {
        machine.set_limit(limit);
    }
    recovered(world);
}

/// Another instance finds all that was acknowledged: the world compares it.
pub(crate) fn recovered(world: &mut World) {
    let before = world.outcome.recoveries;
    world.crash(1);
    world.start(true);
    for _ in 0..1_500 {
        world.step().expect("what was acknowledged is there");
        if world.outcome.recoveries > before {
            return;
        }
    }
    panic!("nothing is recovered");
}

/// docs/faults.md: N15
#[test]
fn three_full_peers_are_an_error_that_changes_nothing_and_no_loss() {
    let mut world = world(1, 160 << 10, 0);
    let (big, other) = (create(&mut world, "big"), create(&mut world, "other"));
    let (len, text) = fill(&mut world, big);
    assert!(len >= 96 << 10, "{len} bytes of 160 KiB are used");
    for word in ["'big'", "4096 bytes more", "at 2 peers", "peer 0000000000000001", "are lent"] {
        assert!(text.contains(word), "'{text}' does not say '{word}'");
    }
    synced(&mut world);
    let (_, losses) = (status(&world), world.outcome.losses);
    assert_eq!((status(&world).copies, status(&world).replaced, losses), (3, 0, 0));
    assert!(status(&world).refused > 0, "peers said so");
    // Bytes that are there can be written, and other files, too.
    write(&mut world, big, 5, 100).expect("it needs no memory");
    write(&mut world, other, 0, 3000).expect("it has room");
    synced(&mut world);
    assert!(write(&mut world, big, len, 5000).is_err(), "for this there is none");
    assert_eq!(world.instances[&1].application.stat(big).expect("it is there").len, len);
    // A file that is cut has its memory still, until another one wants it.
    make(&mut world, Operation::Truncate(big, 10)).expect("it needs no memory");
    assert!(write(&mut world, other, 20_000, 20_000).is_err(), "nobody gave it back");
    let lens = BTreeMap::from([(big, 10), (other, 3000)]);
    assert!(wait(&mut world, |it| it.trim(&lens)), "it has memory of no byte");
    write(&mut world, other, 20_000, 20_000).expect("now there is room");
    synced(&mut world);
    recovered_with(&mut world, LIMIT);
    world.settle().expect("all is there");
}

/// docs/faults.md: N15
#[test]
fn a_file_that_is_removed_makes_room_at_once() {
    let mut world = world(2, 128 << 10, 0);
    let (big, other) = (create(&mut world, "big"), create(&mut world, "other"));
    fill(&mut world, big);
    assert!(write(&mut world, other, 0, 30_000).is_err(), "there is no room");
    make(&mut world, Operation::Unlink("big".to_owned())).expect("it needs no memory");
    write(&mut world, other, 0, 30_000).expect("there is room without a pause");
    synced(&mut world);
    assert_eq!(status(&world).copies, 3);
}

/// docs/faults.md: N15
#[test]
fn names_for_which_there_is_no_room_are_refused_while_their_change_can_be_left() {
    let mut world = world(7, 160 << 10, 0);
    let (big, other) = (create(&mut world, "big"), create(&mut world, "other"));
    fill(&mut world, big);
    let path = |link: u32| format!("{link}{}", "/directory".repeat(180));
    let add = |world: &mut World, link: u32| {
        let edits = vec![NameEdit::Set { path: path(link), file: other }];
        make(world, Operation::Names(edits))
    };
    let refused = (0..1_000).find_map(|link| Some((link, add(&mut world, link).err()?)));
    let (link, error) = refused.expect("the table has no end");
    assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
    assert!(error.message().contains("for the table of names"), "{error}");
    let find = |world: &World, path: &str| world.instances[&1].application.find(path);
    assert_eq!(find(&world, &path(link)).expect("it runs"), None);
    synced(&mut world);
    assert_eq!(status(&world).copies, 3);
    make(&mut world, Operation::Unlink("big".to_owned())).expect("it needs no memory");
    add(&mut world, link).expect("there is room");
    synced(&mut world);
    recovered(&mut world);
}

/// docs/faults.md: N15
#[test]
fn a_peer_without_room_is_replaced_before_it_is_given_up_if_another_has_room() {
    let mut world = world(3, LIMIT, LIMIT);
    let file = create(&mut world, "a.log");
    write(&mut world, file, 0, RECORD_MAX).expect("there is room");
    let full = world.map().expect("there is a map").members[0].peer;
    world.machines.get_mut(&full).expect("it is there").set_limit(0);
    for at in 1..16 {
        write(&mut world, file, at * RECORD_MAX, RECORD_MAX).expect("others have room");
        world.run(40).expect("all is right");
        assert!(status(&world).copies >= 2, "nothing waits");
    }
    world.run(300).expect("all is right");
    assert_eq!(status(&world).copies, 3);
    assert!(world.map().expect("there is a map").member(full).is_none(), "another took its place");
    recovered(&mut world);
}

/// docs/faults.md: N15
#[test]
fn with_one_full_peer_and_no_other_the_application_goes_on_with_two() {
    let mut world = world(4, LIMIT, 0);
    let file = create(&mut world, "a.log");
    world.machines.get_mut(&PeerId(2)).expect("it is there").set_limit(0);
    for at in 0..40 {
        write(&mut world, file, at * RECORD_MAX, RECORD_MAX).expect("two have room");
        world.run(5).expect("all is right");
    }
    synced(&mut world);
    assert_eq!(status(&world).copies, 2);
    assert_eq!(world.map().expect("there is a map").members.len(), 3, "its entry stays");
    // Once it has room it gets a copy again.
    world.machines.get_mut(&PeerId(2)).expect("it is there").set_limit(LIMIT);
    world.run(500).expect("all is right");
    assert_eq!(status(&world).copies, 3);
    recovered(&mut world);
}

/// docs/faults.md: N15
#[test]
fn an_application_that_full_peers_cannot_recover_is_recovered_with_others_and_loses_nothing() {
    let mut world = world(5, 160 << 10, 0);
    let file = create(&mut world, "a.log");
    fill(&mut world, file);
    synced(&mut world);
    world.crash(1);
    let id = world.start(true);
    world.run(1_500).expect("it waits");
    let instance = &world.instances[&id];
    assert_eq!(instance.application.status().phase, "filling");
    let text = instance.application.shortage();
    for word in ["2 are needed", "peer 0000000000000003 has no room for", "are free, "] {
        assert!(text.contains(word), "'{text}' does not say '{word}'");
    }
    for machine in world.machines.values() {
        let usage = machine.peer.as_ref().expect("it is up").usage();
        assert!(machine.id.0 == 4 || usage.published > 0, "former copies stay");
    }
    world.machines.get_mut(&PeerId(4)).expect("it is there").set_limit(LIMIT);
    world.machines.get_mut(&PeerId(1)).expect("it is there").set_limit(LIMIT);
    let before = world.outcome.recoveries;
    world.run(1_000).expect("what was acknowledged is there");
    assert_eq!(world.outcome.recoveries, before + 1);
}

/// A new copy may wait for a record that only whoever asks for room hands in.
///
/// docs/faults.md: N8, N15
#[test]
fn where_too_few_copies_count_a_change_waits_for_them_and_not_for_memory() {
    let mut world = world(6, LIMIT, LIMIT);
    create(&mut world, "a.log");
    synced(&mut world);
    for id in 1..=4 {
        world.kill_machine(PeerId(id), 2_000);
    }
    while status(&world).copies > 1 {
        world.step().expect("the losses are noticed");
    }
    let instance = world.instances.get_mut(&1).expect("it lives");
    let program = instance.program.as_mut().expect("it runs");
    let create = Operation::Create(FileNumber(0), "b.log".to_owned(), Metadata::default());
    program.make(&mut instance.application, &instance.images, create).expect("it is made at once");
    world.run(6_000).expect("peers are back");
    synced(&mut world);
    assert!(world.instances[&1].application.find("b.log").expect("it runs").is_some());
    recovered(&mut world);
}

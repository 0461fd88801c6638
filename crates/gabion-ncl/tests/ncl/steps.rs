//! One fault at each step of a short run.

use crate::check::Operation;
use crate::copies;
use crate::direct::Tally;
use crate::images::ProgramImages;
use crate::world::{Faults, World};
use gabion_base::{ErrorKind, Result};
use gabion_media::remote::PeerId;
use gabion_ncl::{Application, FileNumber};

/// No misfortune but what a test brings; messages have some delay.
pub(crate) fn calm(seed: u64) -> World {
    World::new(seed, 4, Faults { late_ms: 4, ..Faults::default() })
}

/// Calls the first instance until it does not have to wait for peers.
pub(crate) fn wait<T>(
    world: &mut World,
    mut call: impl FnMut(&mut Application<ProgramImages>) -> Result<T>,
) -> T {
    for _ in 0..3_000 {
        let instance = world.instances.get_mut(&1).expect("it lives");
        match call(&mut instance.application) {
            Err(error) if error.kind() == ErrorKind::Busy => world.step().expect("all is right"),
            done => return done.expect("it can be done"),
        }
    }
    panic!("peers do not answer");
}

/// Runs until the instance has carried out so many outputs. False when it never does.
fn run_until(world: &mut World, outputs: u64, most_ms: u64) -> bool {
    for _ in 0..most_ms {
        world.step().expect("nothing is wrong");
        if world.instances.values().any(|instance| instance.outputs >= outputs) {
            return true;
        }
    }
    false
}

/// A new application waits for all of its copies, as it has no former ones, and for nothing else.
#[test]
fn a_new_application_has_its_files_as_soon_as_its_copies_are_there() {
    let mut world = calm(1);
    world.patience_ms = 4_000;
    let mut ms = 0;
    while world.map().is_none_or(|map| map.members.len() < 3) {
        world.step().expect("nothing is wrong");
        ms += 1;
        assert!(ms < 500, "a quarter of the patience is longer");
    }
}

/// docs/faults.md: N3, N5
#[test]
fn a_crash_at_each_step_of_a_start_and_of_the_recovery_after_it_loses_nothing() {
    let mut steps = 0;
    for outputs in (0..).step_by(2) {
        let mut world = calm(outputs + 1);
        if !run_until(&mut world, outputs, 400) || steps == 150 {
            break;
        }
        steps += 1;
        world.crash(1);
        // The recovery dies as early, and the one after it.
        run_until(&mut world, outputs % 60, 1_000);
        world.crash(2);
        world.run(200).expect("what was acknowledged is there");
        world.settle().unwrap_or_else(|failure| panic!("after {outputs} outputs: {failure}"));
    }
    assert!(steps > 50, "a start has steps: {steps}");
}

/// docs/faults.md: N1, N4
#[test]
fn a_peer_that_dies_at_each_step_of_a_replacement_and_the_program_after_it_lose_nothing() {
    for ms in 0..60 {
        let mut world = calm(ms + 1);
        world.run(300).expect("it runs");
        let first = world.map().expect("there is a map").members[0].peer;
        world.kill_machine(first, 10_000);
        world.run(ms).expect("it goes on with the others");
        let map = world.map().expect("there is a map");
        // The one that is being filled, or was entered just now: fewer than f+1 never stay.
        let other = (1..=4).map(PeerId).find(|peer| map.member(*peer).is_none() && *peer != first);
        if let Some(other) = other {
            world.kill_machine(other, 50);
        }
        world.crash(1);
        world.run(400).expect("what was acknowledged is there");
        world.settle().unwrap_or_else(|failure| panic!("{ms} ms after the first: {failure}"));
    }
}

/// A change of the map takes effect, and its answer is lost. A peer that it replaced gives its copy
/// back. Then the store is set back to the map that the instance still takes for its own, and that
/// names the peer.
///
/// docs/faults.md: N1, N4, N7
#[test]
fn a_store_that_forgets_a_change_that_the_instance_never_heard_of_is_told_a_later_one() {
    let mut found = 0;
    for seed in 1..20 {
        let mut world = calm(seed);
        world.run(300).expect("it runs");
        let map = world.map().expect("there is a map");
        let (dead, cut) = (map.members[0].peer, map.members[1].peer);
        world.keep_store();
        world.kill_machine(dead, 10_000);
        world.step().expect("it goes on with the others");
        world.cut(1, cut);
        // It enters a third peer, beside an entry of one of these two: that of the dead one here.
        for ms in 0.. {
            assert!(ms < 1_000, "seed {seed}: it enters the copy that it makes");
            world.step().expect("it goes on with what it has");
            world.change_map_unheard();
            if world.map().as_ref() != Some(&map) {
                break;
            }
        }
        if world.map().is_some_and(|map| map.member(cut).is_some()) {
            continue;
        }
        found += 1;
        world.collect();
        world.set_back();
        let status = world.instances[&1].application.status();
        assert_eq!((Some(&status.map), world.copies(&map).count()), (world.map().as_ref(), 1));
        world.step().expect("it has all in its mirrors");
        assert!(world.is_set_back, "seed {seed}: one copy is left to the map, and it must live");
        for ms in 0.. {
            assert!(ms < 1_000, "seed {seed}: it enters the copies that it makes");
            world.step().expect("it has all in its mirrors");
            if !world.is_set_back {
                break;
            }
        }
        world.crash(1);
        world.settle().unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
    }
    assert!(found > 10, "{found} changes were forgotten");
}

/// docs/faults.md: N2
#[test]
fn memory_that_is_taken_back_at_each_step_is_replaced() {
    for ms in 0..60 {
        let mut world = calm(ms + 1);
        world.run(100 + ms * 4).expect("it runs");
        let peer = world.map().expect("there is a map").members[0].peer;
        world.revoke(peer);
        world.run(100).expect("it goes on with the others");
        world.crash(1);
        world.settle().unwrap_or_else(|failure| panic!("{ms}: {failure}"));
    }
}

/// Runs until the program is amid a record that it writes to the peers, with so many steps left.
fn run_until_left(world: &mut World, left: usize) -> bool {
    for _ in 0..3_000 {
        world.step().expect("nothing is wrong");
        let program = world.instances.get(&1).and_then(|it| it.program.as_ref());
        if program.is_some_and(|program| program.steps_left() == Some(left)) {
            return true;
        }
    }
    false
}

/// docs/faults.md: N1, N2, N3, N7, N10
#[test]
fn whatever_ends_at_each_step_of_a_record_that_a_program_writes_itself_loses_nothing() {
    let (mut found, mut total) = (0, Tally::default());
    for (left, case) in (1..=20).flat_map(|left| (0..12).map(move |case| (left, case))) {
        let mut world = calm(left as u64 * 12 + case);
        world.share_memory();
        if !run_until_left(&mut world, left) {
            continue;
        }
        found += 1;
        let peer = world.map().expect("there is a map").members[case as usize / 4].peer;
        match case % 4 {
            0 => {}
            1 => world.kill_machine(peer, 50),
            2 => world.revoke(peer),
            _ => {
                world.stop_library(1, 200);
                world.start(true);
            }
        }
        // It goes on for a while, or dies there and then.
        let ms = if case % 4 == 0 { 0 } else { 15 + case * 5 };
        world.run(ms).expect("what it counts is right");
        world.crash(1);
        world.run(300).expect("what was acknowledged is there");
        world.settle().unwrap_or_else(|failure| panic!("{left} left, case {case}: {failure}"));
        total.add(&world.outcome.direct);
    }
    eprintln!("{found} runs: {total:?}");
    assert!(found > 100, "records have steps: {found}");
    assert!(total.closed > 20, "gates are found closed: {total:?}");
}

#[test]
fn an_append_goes_behind_the_records_that_the_program_wrote_itself() {
    let mut world = calm(1);
    world.share_memory();
    let (file, len) = loop {
        world.step().expect("nothing is wrong");
        let instance = world.instances.get(&1).expect("it lives");
        let Some((file, len)) = instance.images.shared.open() else { continue };
        if instance.application.stat(file).expect("it is there").len < len {
            break (file, len);
        }
    };
    let application = &mut world.instances.get_mut(&1).expect("it lives").application;
    application.append(file, b"behind").expect("there is room");
    assert_eq!(application.stat(file).expect("it is there").len, len + 6);
}

/// Bytes of a record at most, as `World` has it.
pub(crate) const RECORD_MAX: u64 = 2048;

/// A program died amid a record, and the file was cut before anything of it was issued: a copy may
/// have the record's bytes, and its cell, which says another length.
///
/// docs/faults.md: N9
#[test]
fn a_length_that_is_synced_again_takes_the_place_of_a_record_that_does_not_count() {
    let mut found = 0;
    for seed in 1..80 {
        let mut world = calm(seed);
        world.share_memory();
        if !run_until_left(&mut world, 1) {
            continue;
        }
        let instance = world.instances.get_mut(&1).expect("it lives");
        // Its grant may have been recalled already.
        let Some((file, _)) = instance.images.shared.open() else { continue };
        let application = &mut instance.application;
        let number = application.issued();
        application.edit_names(&[]).expect("it ends the grant");
        let len = application.stat(file).expect("it is there").len;
        let before = application.issued();
        assert!(before > number, "a number was passed over");
        let cut = application.truncate(file, len).expect("there is room");
        assert!(cut > before, "the length is a record, though it is the same");
        assert_eq!(application.truncate(file, len).expect("there is room"), cut, "once");
        let capacity: u64 = application.stat(file).expect("it is there").entry.parts.iter().sum();
        let longer = len + 3 * RECORD_MAX;
        if longer > capacity {
            continue;
        }
        let zeroed = application.truncate(file, longer).expect("there is room");
        let records = zeroed.0 - cut.0;
        assert!(records >= 3, "bytes that a copy may have past the end are zeroed: {records}");
        found += 1;
    }
    assert!(found > 5, "{found} programs were amid a record, with room behind");
}

/// docs/faults.md: N8, N12
#[test]
fn without_f_and_one_copies_nothing_is_acknowledged_and_nothing_empty_is_shown() {
    for seed in 1..20 {
        let mut world = calm(seed);
        world.run(300).expect("it runs");
        let members = world.map().expect("there is a map").members;
        world.is_disaster = true;
        // All peers that have a copy, but for one.
        for member in &members[1..] {
            world.kill_machine(member.peer, 50);
        }
        world.crash(1);
        world.run(2_000).expect("what is shown would be right");
        let statuses = world.instances.values().map(|it| it.application.status().phase);
        assert!(statuses.into_iter().all(|phase| phase == "recovering"), "it waits");
        let errors =
            world.instances.values().map(|it| it.application.check(it.application.issued().next()));
        assert!(
            errors.into_iter().all(|it| it.is_ok_and(|is_done| !is_done)),
            "by policy it waits"
        );
    }
}

/// docs/faults.md: N8
#[test]
fn a_program_that_lives_fills_new_peers_when_all_are_lost() {
    let mut world = calm(3);
    world.run(300).expect("it runs");
    for peer in 1..=4 {
        world.kill_machine(PeerId(peer), 100 + peer);
    }
    world.settle().expect("its mirrors have everything");
    assert!(world.outcome.acknowledged > 0, "records were acknowledged");
}

/// One change of an image that is many records, as of a range that is to be read again.
struct Long {
    file: FileNumber,
    data: Vec<u8>,
    issued: usize,
}

impl Long {
    /// The owner does not sleep: it issues as long as there is room.
    fn go_on(&mut self, application: &mut Application<ProgramImages>, images: &ProgramImages) {
        while self.issued < self.data.len() && application.has_room() {
            let to = self.data.len().min(self.issued + RECORD_MAX as usize);
            let (at, piece) = (self.issued as u64, &self.data[self.issued..to]);
            application.write(self.file, at, piece).expect("there is room");
            self.issued = to;
            if to == self.data.len() {
                images.issued();
            }
        }
    }
}

/// All copies are lost, so nothing is acknowledged before a new one has the whole of a long change.
///
/// docs/faults.md: N8
#[test]
fn records_that_a_copy_waits_for_are_issued_as_peers_take_them_and_not_all_at_once() {
    let options = World::options(0, false);
    let bound = options.lag_bytes_max + 4 * RECORD_MAX as usize;
    let (mut beyond, mut held) = (0, 0);
    for seed in 1..20 {
        let mut world = calm(seed);
        world.run(300).expect("it runs");
        let instance = world.instances.get_mut(&1).expect("it lives");
        instance.program.as_mut().expect("it runs").is_over = true;
        let data = vec![seed as u8; 5 * options.lag_bytes_max];
        let file = wait(&mut world, |it| it.create("long", Default::default()));
        wait(&mut world, |it| it.reserve(file, data.len() as u64));
        world.run(100).expect("changes that it made have records by now");
        for peer in 1..=4 {
            world.kill_machine(PeerId(peer), 20 + peer);
        }
        if seed % 2 == 0 {
            // Peers that do not reply keep nobody for ever.
            world.faults = Faults { late_ms: 4, stall: 60, cut: 200, ..Faults::default() };
        }
        let images = world.instances[&1].images.clone();
        images.change(&Operation::Write(file, 0, data.clone()));
        let mut long = Long { file, data, issued: 0 };
        let rests = |world: &World, long: &Long| {
            let status = world.instances[&1].application.status();
            long.issued == long.data.len()
                && status.acknowledged == status.issued
                && status.copies == status.wanted
        };
        for ms in 0.. {
            assert!(ms < 20_000, "it goes on: {} bytes are issued", long.issued);
            world.step().expect("nothing is wrong");
            let application = &mut world.instances.get_mut(&1).expect("it lives").application;
            long.go_on(application, &images);
            let status = application.status();
            assert!(status.unsent_bytes <= bound, "{} bytes are kept", status.unsent_bytes);
            beyond = beyond.max(status.unacknowledged_bytes);
            held += u64::from(application.wants_changes() && !application.has_room());
            if rests(&world, &long) {
                break;
            }
        }
        let members = world.map().expect("there is a map").members;
        for member in &members {
            copies::check(&world.machines[&member.peer], &world.instances[&1].application)
                .unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
        }
    }
    eprintln!("{beyond} bytes were not acknowledged, held back {held} times");
    assert!(beyond > 2 * options.outstanding_bytes_max, "the limits were passed: {beyond} bytes");
    assert!(held > 20, "somebody waited for peers: {held}");
}

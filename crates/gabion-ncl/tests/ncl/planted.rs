//! Planted defects: the checkers must be able to fail. Each defect runs seeds until something
//! reports it, and the same seed without it passes (docs/faults.md, "Seeded mutants"; SplitFT
//! §4.6).

use crate::direct::Slips;
use crate::peers::Random;
use crate::seeds::{failure, run};
use crate::world::{Faults, World};
use gabion_ncl::Mutant;

/// Seeds within which a defect must show.
const SEEDS_MAX: u64 = 300;

fn world(seed: u64, mutant: Mutant, is_planted: bool) -> World {
    if mutant == Mutant::ClaimedAgain {
        let mut world = shared_world(seed);
        world.mutant = is_planted.then_some(mutant);
        return world;
    }
    let mut random = Random(seed ^ 0x5eed);
    let faults = Faults { store: 0, set_back: 0, ..Faults::of_seed(&mut random) };
    let faults = match mutant {
        // Two instances at once.
        Mutant::KeysStay | Mutant::EpochIsClock | Mutant::ErrorCounts => {
            Faults { pause: 400, takeover: 300, ..faults }
        }
        // The same, and the former has something to change.
        Mutant::MapWithoutCompare => {
            Faults { pause: 300, takeover: 300, cut: 60, machine: 300, ..faults }
        }
        // A crash soon after the first record.
        Mutant::FirstNumberIsNone => Faults { crash: 25, machine: 0, late_ms: 4, ..faults },
        // A crash while one copy is all that was made.
        Mutant::LaggingNotCaughtUp => {
            Faults { crash: 120, machine: 0, cut: 40, stall: 40, ..faults }
        }
        // A crash soon after a copy counts.
        Mutant::CopyIsAhead => Faults { crash: 80, machine: 100, cut: 60, stall: 0, ..faults },
        // Copies that lack something, and recoveries.
        _ => Faults { crash: 300, machine: 200, cut: 100, stall: 60, ..faults },
    };
    let machines = if mutant == Mutant::MapWithoutCompare { 7 } else { 4 };
    let mut world = World::new(seed, machines, faults);
    world.mutant = is_planted.then_some(mutant);
    let keys_stay = is_planted && mutant == Mutant::KeysStay;
    world.machines.values_mut().for_each(|machine| machine.keys_stay = keys_stay);
    world
}

/// Programs that write to the peers themselves: libraries are stopped and replaced, and peers lost.
fn shared_world(seed: u64) -> World {
    let mut random = Random(seed ^ 0xd12ec7);
    let faults = Faults::of_seed(&mut random);
    let (crash, pause, takeover, revoke, cut, stall) = (150, 150, 300, 200, 80, 60);
    let often = Faults { crash, pause, takeover, revoke, cut, stall, ..faults };
    let faults = Faults { store: 0, set_back: 0, ..often };
    let mut world = World::new(seed, 4, faults);
    world.share_memory();
    world
}

/// Runs seeds until one fails with the defect, with one of these words in its failure.
fn is_caught(mutant: Mutant, words: &[&str]) {
    let world = |seed, is_planted| world(seed, mutant, is_planted);
    is_caught_in(&format!("{mutant:?}"), world, words);
}

/// The same for a defect of the program.
fn slips_are_caught(slips: Slips, words: &[&str]) {
    let world = |seed, is_planted: bool| {
        let mut world = shared_world(seed);
        if is_planted {
            world.slips = slips;
        }
        world
    };
    is_caught_in(&format!("{slips:?}"), world, words);
}

fn is_caught_in(defect: &str, world: impl Fn(u64, bool) -> World, words: &[&str]) {
    for seed in 1..=SEEDS_MAX {
        let Some(found) = failure(&mut world(seed, true), run) else { continue };
        let sound = failure(&mut world(seed, false), run);
        assert!(sound.is_none(), "seed {seed} without it: {sound:?}");
        if words.iter().any(|word| found.contains(word)) {
            eprintln!("{defect}: seed {seed}: {}", &found[..found.len().min(300)]);
            return;
        }
        eprintln!("{defect}: seed {seed} shows something else: {found}");
    }
    panic!("{defect} is not caught by {SEEDS_MAX} seeds");
}

/// Something that was acknowledged is not there, or something else is.
const LOST: &[&str] = &["was acknowledged", "names", "bytes, expected", "byte "];

/// docs/faults.md: A1
#[test]
fn an_acknowledgement_without_a_quorum_is_caught() {
    is_caught(Mutant::AckWithoutQuorum, LOST);
}

/// docs/faults.md: A2
#[test]
fn a_recovery_of_the_smallest_number_is_caught() {
    is_caught(Mutant::SmallestNumber, LOST);
}

/// docs/faults.md: A3
#[test]
fn a_first_number_that_means_no_copy_is_caught() {
    is_caught(Mutant::FirstNumberIsNone, LOST);
}

/// docs/faults.md: A4
#[test]
fn a_catch_up_that_takes_the_good_copies_first_is_caught() {
    is_caught(Mutant::CatchUpInPlace, &["nothing runs"]);
}

/// docs/faults.md: A5
#[test]
fn numbers_that_begin_again_after_recovery_are_caught() {
    is_caught(Mutant::NumbersRestart, LOST);
}

/// docs/faults.md: A6
#[test]
fn a_length_that_is_inferred_from_the_content_is_caught() {
    is_caught(Mutant::LengthByContent, LOST);
}

/// docs/faults.md: A7
#[test]
fn keys_that_stay_for_a_former_instance_are_caught() {
    is_caught(Mutant::KeysStay, &["was acknowledged", "was replaced", "byte "]);
}

/// docs/faults.md: A8
#[test]
fn a_map_that_is_set_without_a_comparison_is_caught() {
    is_caught(Mutant::MapWithoutCompare, &["was acknowledged", "was replaced", "parts are named"]);
}

/// docs/faults.md: A9
#[test]
fn a_term_that_is_the_wall_clock_is_caught() {
    is_caught(Mutant::EpochIsClock, &["was acknowledged", "was replaced", "nothing runs"]);
}

/// docs/faults.md: N3
#[test]
fn a_number_that_is_written_before_its_data_is_caught() {
    is_caught(Mutant::NumberBeforeData, LOST);
}

/// docs/faults.md: N4
#[test]
fn a_peer_that_counts_before_it_is_caught_up_is_caught() {
    is_caught(Mutant::MapBeforeCatchUp, &["was acknowledged", "nothing runs", "byte ", "names"]);
}

/// docs/faults.md: N5
#[test]
fn a_recovery_that_leaves_the_others_behind_is_caught() {
    is_caught(Mutant::LaggingNotCaughtUp, LOST);
}

/// docs/faults.md: N2
#[test]
fn a_refusal_that_counts_is_caught() {
    // A fenced instance is one that counts refusals, too.
    let words = ["was acknowledged", "was replaced", "nothing runs", "byte ", "names"];
    is_caught(Mutant::ErrorCounts, &words);
}

/// docs/faults.md: N4
#[test]
fn a_copy_that_counts_with_changes_of_no_record_is_caught() {
    is_caught(Mutant::CopyIsAhead, LOST);
}

/// docs/faults.md: N8
#[test]
fn regions_that_go_before_their_file_is_known_to_be_gone_are_caught() {
    is_caught(Mutant::FreedEarly, &["nothing runs"]);
}

/// docs/faults.md: N3
#[test]
fn a_claimed_number_that_is_given_again_is_caught() {
    is_caught(Mutant::ClaimedAgain, &["names", "Metadata"]);
}

/// docs/faults.md: N2
#[test]
fn a_program_that_counts_without_a_look_at_the_gates_is_caught() {
    slips_are_caught(Slips { gates: true, recall: false }, &["was acknowledged", "was replaced"]);
}

/// docs/faults.md: N3
#[test]
fn a_record_that_counts_after_its_grant_was_recalled_is_caught() {
    slips_are_caught(Slips { gates: false, recall: true }, LOST);
}

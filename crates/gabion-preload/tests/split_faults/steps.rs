//! The owner ends at each of its steps, amid emptying the journal and amid a start.

use crate::allowed::History;
use crate::split_house::{House, copy};
use crate::{at_rest, house_with, lose_disk, owner_calls};
use gabion_mirror::split::PREFIX;
use std::fmt::Write as _;

const NAMES: [&str; 3] = ["a.db", "b.db", "c.db"];

/// Small writes, each of them synced, of three files; large ones over them and a renaming, for
/// which the journal is emptied; small ones again.
fn script() -> String {
    let mut text = String::new();
    for (register, name) in NAMES.iter().enumerate() {
        let _ = writeln!(text, "open {register} {name} 2 600\nfsync {register}");
    }
    let mut seed = 0;
    let mut small = |text: &mut String| {
        for register in [0, 1, 2] {
            seed += 1;
            let offset = 90 * (seed % 7);
            let _ = writeln!(text, "pwrite {register} {seed} 300 {offset}\nfsync {register}");
        }
    };
    small(&mut text);
    let _ = writeln!(text, "pwrite 0 100 3000 50");
    small(&mut text);
    let _ = writeln!(text, "rename b.db d.db 0");
    small(&mut text);
    let _ = writeln!(text, "pwrite 2 101 2000 0\npwrite 1 102 20 10\nfsync 2\nfsync 1");
    small(&mut text);
    text.trim_end().to_owned()
}

fn check(house: &House, history: &History, what: &str) {
    for (name, file) in &history.files {
        let new = if name == "b.db" { "d.db" } else { name };
        let names = [name.as_str(), new];
        let found = names.into_iter().find(|name| house.root.join(name).exists());
        let found = house.bytes(found.unwrap_or_else(|| panic!("{what}: {name} is gone")));
        file.check(&found).unwrap_or_else(|text| panic!("{what}: {name}: {text}"));
    }
}

/// Runs the script with an owner that ends after so many steps. Whether it has.
fn run_and_recover(steps: i64, loses: bool) -> bool {
    let mut house = house_with(&format!("split-steps-{loses}"), &NAMES);
    let run = house.start();
    owner_calls::end_after(&house.home, steps);
    let text = script();
    let said = house.script(&run, &text);
    let history = History::of(&text, &said);
    let has_ended = owner_calls::has_ended(&house.home);
    let fails = said.iter().any(|said| said.starts_with('E'));
    assert!(has_ended || !fails, "{said:?}");
    run.abandon();
    if loses {
        lose_disk(&mut house);
    }
    let what = format!("{steps} steps, the disk lost: {loses}");
    let run = house.start();
    check(&house, &history, &what);
    run.stop();
    check(&house, &history, &what);
    assert_eq!(house.stored(), [""; 0], "{what}");
    has_ended
}

/// docs/faults.md: N12, N13
#[test]
fn an_owner_that_ends_at_any_step_amid_frames_and_emptyings_loses_nothing_with_its_disk() {
    let ended = (0..).take_while(|steps| run_and_recover(*steps, true)).count();
    assert!(ended > 20, "{ended} steps");
}

/// docs/faults.md: N12, N13
#[test]
fn an_owner_that_ends_at_any_step_puts_no_older_frame_over_what_the_disk_has() {
    let ended = (0..).take_while(|steps| run_and_recover(*steps, false)).count();
    assert!(ended > 20, "{ended} steps");
}

/// docs/faults.md: N13
#[test]
fn an_owner_that_ends_at_any_step_of_its_clean_end_leaves_a_journal_or_whole_files() {
    let text = script();
    let ends_at = |steps: i64| {
        let mut house = house_with("split-ends", &NAMES);
        let run = house.start();
        let history = History::of(&text, &house.script(&run, &text));
        owner_calls::end_after(&house.home, steps);
        let stopped = run.owner.stop();
        let has_ended = owner_calls::has_ended(&house.home);
        assert_eq!(stopped.is_err(), has_ended, "{steps} steps: {stopped:?}");
        lose_disk(&mut house);
        house.start().stop();
        check(&house, &history, &format!("{steps} steps"));
        assert_eq!(house.stored(), [""; 0]);
        has_ended
    };
    let ended = (0..).take_while(|steps| ends_at(*steps)).count();
    // A sync of each file, a head, and the names.
    assert!(ended >= 5, "{ended} steps");
}

/// docs/faults.md: N13
#[test]
fn a_start_that_ends_at_any_step_again_and_again_puts_all_frames_in_the_end() {
    let mut house = house_with("split-starts", &NAMES);
    let run = house.start();
    let text = script();
    let history = History::of(&text, &house.script(&run, &text));
    run.abandon();
    lose_disk(&mut house);
    assert!(house.stored().iter().any(|name| name.starts_with(PREFIX)));
    let kept = ["root", "store"].map(|name| house.home.join("kept").join(name));
    copy(&house.root, &kept[0]);
    copy(&house.home.join("store"), &kept[1]);
    let mut steps = 0;
    while ends(&mut house, steps) {
        // It ends at the same step again, of what the first one left on the disk.
        lose_disk(&mut house);
        ends(&mut house, steps);
        lose_disk(&mut house);
        house.start().stop();
        let what = format!("{steps} steps");
        check(&house, &history, &what);
        assert_eq!(house.stored(), [""; 0], "{what}");
        for (kept, place) in kept.iter().zip([house.root.clone(), house.home.join("store")]) {
            std::fs::remove_dir_all(&place).unwrap();
            copy(kept, &place);
        }
        at_rest(&house);
        steps += 1;
    }
    assert!(steps > 10, "{steps} steps");
}

/// Starts an owner that ends after so many steps. Whether it has; else it is abandoned.
fn ends(house: &mut House, steps: i64) -> bool {
    owner_calls::end_after(&house.home, steps);
    let started = house.try_start();
    let has_ended = owner_calls::has_ended(&house.home);
    assert_eq!(started.is_err(), has_ended, "{steps} steps");
    started.into_iter().for_each(|run| run.abandon());
    has_ended
}

//! A directory with more names below it than there are split files, which is moved.

use crate::bytes::bytes;
use crate::split_house::House;
use std::fmt::Write as _;

/// Split files are 512 of them.
const FILES: u64 = 2_000;
const MIRRORED: u64 = 300;

/// Opens all of them; then some are open by number: a split one, one that is not, and a mirrored
/// one.
fn opens() -> String {
    let mut text = "mkdir d".to_owned();
    for number in 0..FILES {
        let _ = write!(text, "\nopen 0 d/{number}.db 66 600");
        if number < MIRRORED {
            let _ = write!(text, "\nopen 0 d/{number}.log 66 600\nwrite 0 {number} 10");
        }
    }
    let _ = write!(text, "\nopen 0 d/7.db 2 600\nopen 1 d/1999.db 2 600\nopen 2 d/7.log 2 600");
    text + "\nfsync 0\nfsync 1"
}

/// The same write to each of the three.
fn writes(seed: u64, offset: u64) -> String {
    let write = |register: u64| {
        format!("\npwrite {register} {} 200 {offset}\nfsync {register}", 10 * seed + register)
    };
    (0..3).map(write).collect()
}

fn expected(register: u64) -> Vec<u8> {
    (1..=4).flat_map(|seed| bytes(10 * seed + register, 200)).collect()
}

/// docs/faults.md: N13
#[test]
fn frames_and_mirrored_files_follow_a_directory_of_thousands_of_names() {
    let house = House::new("split-directory");
    let run = house.start();
    let text = [opens(), writes(1, 0), "\nrename d e 0".to_owned(), writes(2, 200)].concat();
    let text = [text, writes(3, 400), "\nopen 3 e/7.db 2 600".to_owned(), writes(4, 600)].concat();
    let said = house.script(&run, &text);
    assert!(!said.iter().any(|said| said.starts_with('E')), "{said:?}");
    let counts = run.owner.shared().split_counts();
    assert_eq!((counts.frames, counts.emptied), (3, 1), "{counts:?}");
    let names = run.owner.files();
    assert_eq!(names.len() as u64, MIRRORED);
    assert!(names.iter().all(|(name, _)| name.starts_with(b"e/")), "a name stayed behind");
    run.abandon();
    check_split(&house);
    // The disk has what was synced behind the renaming, and the journal the rest.
    house.put("e/7.db", &expected(0)[..400]);
    let run = house.start();
    check_split(&house);
    let said =
        house.script(&run, "open 0 e/7.log 0 600\nread 0 800\nopen 1 e/299.log 0 600\nread 1 10");
    let lens = run.owner.files().into_iter().map(|(_, len)| len);
    assert_eq!(lens.filter(|len| *len == 10).count() as u64, MIRRORED - 1);
    assert!(said[1].starts_with("800 ") && said[3].starts_with("10 "), "{said:?}");
    run.stop();
    assert!(!house.root.join("d").exists());
}

fn check_split(house: &House) {
    for (register, name) in [(0, "e/7.db"), (1, "e/1999.db")] {
        assert_eq!(house.bytes(name), expected(register), "{name}");
    }
}

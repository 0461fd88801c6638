//! Disks that are full, and disks that fail to write back.

use crate::allowed::History;
use crate::common::disk;
use crate::{house_with, lose_disk};

/// docs/faults.md: N12
#[test]
fn on_a_full_disk_writes_fail_and_all_that_was_synced_is_there_once_it_has_room() {
    let mut house = house_with("split-full-disk", &["a.db"]);
    let run = house.start();
    let text = "open 0 a.db 2 600\nfsync 0\npwrite 0 1 300 0\nfsync 0\nopen 1 ../full 66 600\n\
                pwrite 0 2 300 300\npwrite 0 3 200 50\nfsync 0\npwrite 0 4 3000 100\nfsync 0\n\
                pwrite 0 5 100 20\nfsync 0\nunlink ../full\npwrite 0 6 300 300\nfsync 0\n\
                pwrite 0 7 300 600\nfsync 0";
    let said = house.script(&run, text);
    let expected = [
        "3", "0", "300", "0", "4", "E28", "200", "0", "200", "0", "100", "0", "0", "300", "0",
        "300", "0",
    ];
    assert_eq!(said, expected);
    let history = History::of(text, &said);
    let counts = run.owner.shared().split_counts();
    assert!(counts.frames >= 4, "the failed write is synced, and frames go on: {counts:?}");
    run.abandon();
    lose_disk(&mut house);
    let (before, stored) = (house.bytes("a.db"), house.stored());
    std::fs::write(house.home.join(disk::FULL), b"").unwrap();
    let error = house.try_start().unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::StorageFull);
    assert!(error.to_string().contains("a.db"), "{error}");
    assert_eq!((house.bytes("a.db").len(), house.stored()), (before.len(), stored));
    std::fs::remove_file(house.home.join(disk::FULL)).unwrap();
    house.start().stop();
    assert_eq!(history.files["a.db"].check(&house.bytes("a.db")), Ok(()));
    assert_eq!(house.bytes("a.db").len(), 900);
}

/// The kernel tells each descriptor of a failure once, and takes the bytes for clean from then on.
///
/// docs/faults.md: N12
#[test]
fn frames_outlive_a_sync_that_failed_though_the_next_one_of_the_program_succeeds() {
    let mut house = house_with("split-broken", &["a.db"]);
    let run = house.start();
    let said = house.script(
        &run,
        "open 0 a.db 2 600\nfsync 0\npwrite 0 1 300 0\nfsync 0\npwrite 0 2 2000 500\n\
         open 1 ../broken 66 600\nfsync 0\nfsync 0\npwrite 0 3 300 100\nfsync 0\n\
         open 1 ../owner-broken 66 600\npwrite 0 4 2000 0\nfsync 0\npwrite 0 5 10 0\nfsync 0",
    );
    let expected =
        ["3", "0", "300", "0", "2000", "4", "E5", "0", "300", "0", "5", "E5", "E5", "E5", "E5"];
    assert_eq!(said, expected);
    let bytes = house.bytes("a.db");
    run.abandon();
    lose_disk(&mut house);
    let on_disk = house.bytes("a.db");
    assert!(on_disk[..400].iter().all(|byte| *byte == 0), "the disk has lost what was dirty");
    house.start().stop();
    assert_eq!(house.bytes("a.db")[..400], bytes[..400]);
}

#[test]
fn a_file_that_cannot_be_synced_as_it_is_opened_is_as_ever() {
    let mut house = house_with("split-open", &["a.db"]);
    let run = house.start();
    std::fs::write(house.home.join(disk::OWNER_BROKEN), b"").unwrap();
    let text = "open 0 a.db 2 600\npwrite 0 1 300 0\nfsync 0\npwrite 0 2 300 0\nfsync 0";
    let said = house.script(&run, text);
    assert_eq!(said, ["3", "300", "0", "300", "0"]);
    assert!(!house.home.join(disk::OWNER_BROKEN).exists(), "nobody synced it");
    assert_eq!(run.owner.shared().split_counts().frames, 0);
    let bytes = house.bytes("a.db");
    run.abandon();
    lose_disk(&mut house);
    assert_eq!(house.bytes("a.db"), bytes);
    house.start().stop();
}

//! Split files on disks that are lost, full or broken, and under owners that end at any step; names
//! that change while others write. The rules one by one are in `split.rs`.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "tests of a shell")]

#[path = "split_faults/allowed.rs"]
mod allowed;
#[path = "../examples/script/bytes.rs"]
mod bytes;
mod common;
#[path = "split_faults/directories.rs"]
mod directories;
#[path = "split_faults/disks.rs"]
mod disks;
#[path = "common/owner_calls.rs"]
mod owner_calls;
#[path = "split_faults/races.rs"]
mod races;
#[path = "common/split_house.rs"]
mod split_house;
#[path = "split_faults/steps.rs"]
mod steps;
#[path = "split_faults/unseen.rs"]
mod unseen;
#[path = "split_faults/writers.rs"]
mod writers;

use common::disk;
use split_house::House;

/// A house whose disk can be lost, with empty files of these names.
fn house_with(name: &str, files: &[&str]) -> House {
    let mut house = House::new(name);
    house.shadow = Some(house.home.join("shadow"));
    owner_calls::mark(&house.home);
    files.iter().for_each(|name| house.put(name, b""));
    at_rest(&house);
    house
}

/// All that is at the root is on its disk.
fn at_rest(house: &House) {
    let shadow = house.shadow.as_ref().expect("a house whose syncs are noted");
    let _ = std::fs::remove_dir_all(shadow);
    disk::all_synced(shadow, &house.root).unwrap();
    owner_calls::note(shadow, &house.root);
}

/// The machine is lost, and another one has what was synced.
fn lose_disk(house: &mut House) {
    house.root = house.next_root();
    at_rest(house);
}

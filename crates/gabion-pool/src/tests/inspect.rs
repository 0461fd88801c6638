//! What tools see of a pool, whole and damaged.

use super::*;
use crate::inspect::{AreaScan, Seen, superblock, superblocks};
use crate::placement_log::RecordKind;
use crate::read;
use alloc::vec;

/// Everything in the first area: `s` a snapshot, `c` a commit, `!` bad, `?` other.
fn shape(disk: &SimulatedDisk) -> std::string::String {
    let handle = disk.handle();
    let found = disk.block_on(&handle, superblock(&handle)).unwrap();
    let mut scan = AreaScan::new(&handle, &found, 0);
    let mut shape = std::string::String::new();
    while let Some(seen) = disk.block_on(&handle, scan.next()).unwrap() {
        shape.push(match seen {
            Seen::Record { header, .. } if header.kind == RecordKind::Snapshot => 's',
            Seen::Record { .. } => 'c',
            Seen::Bad { .. } => '!',
            Seen::Other { .. } => '?',
        });
    }
    shape
}

fn sample() -> SimulatedDisk {
    let mut rig = Rig::with_area(16, b"state");
    let slots = rig.pool.allocate(1).unwrap();
    rig.pool.add_file(placement(1, &slots)).unwrap();
    rig.commit();
    rig.disk
}

#[test]
fn a_damaged_copy_hides_neither_the_other_nor_what_follows() {
    let disk = sample();
    // Snapshot, opening, the reservation of the opening, the file: commits twice each.
    assert_eq!(shape(&disk), "scccccc");
    let area = superblock_of(&disk).areas[0].offset;
    disk.flip_bit(area + 3 * BLOCK_LEN as u64 + 60, 0);
    assert_eq!(shape(&disk), "scc!ccc");
    disk.flip_bit(area + 3 * BLOCK_LEN as u64, 0);
    assert_eq!(shape(&disk), "scc?ccc", "without its magic it is no record at all");
    let handle = disk.handle();
    let found = disk.block_on(&handle, read(&handle)).unwrap();
    assert_eq!(found.bad_copies, vec![(area + 3 * BLOCK_LEN as u64, BLOCK_LEN as u64)]);
    assert!(found.recovered.pool.placement(FileId::sst(1)).is_some());
    assert_eq!(shape(&disk), "scc?ccc", "reading repairs nothing");
}

fn superblock_of(disk: &SimulatedDisk) -> Superblock {
    let handle = disk.handle();
    disk.block_on(&handle, superblock(&handle)).unwrap()
}

#[test]
fn each_copy_of_the_superblock_is_shown_as_it_is() {
    let disk = sample();
    disk.flip_bit(40, 0);
    let handle = disk.handle();
    let [first, second] = disk.block_on(&handle, superblocks(&handle));
    assert!(first.is_err());
    assert_eq!(second.unwrap().unwrap(), superblock_of(&disk));
}

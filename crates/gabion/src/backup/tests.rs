//! The directory of backups by itself: what is taken for whole, and what is removed.

use super::manifest::{Manifest, Part, StoredFile, is_name};
use super::place::{Place, join_pages, split_pages};
use gabion_base::{ErrorKind, FileId, FileKind, GroupId, crc};
use std::path::PathBuf;

struct Temporary(PathBuf);

impl Temporary {
    fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("gabion-backup-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        Self(dir)
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

const GROUP: GroupId = GroupId(7);

fn file(number: u64, bytes: &[u8]) -> StoredFile {
    let (id, crc) = (FileId { kind: FileKind::Sst, number }, crc::crc32c(bytes));
    StoredFile { id, len: bytes.len() as u64, checksum: crc, chunks: vec![crc] }
}

fn put(place: &Place, number: u64, bytes: &[u8]) -> StoredFile {
    let file = file(number, bytes);
    let mut unfinished = place.begin(&file).unwrap();
    unfinished.write(bytes).unwrap();
    unfinished.keep().unwrap();
    file
}

fn manifest(number: u64, files: Vec<StoredFile>) -> Manifest {
    Manifest {
        number,
        group: GROUP.get(),
        replica: 3,
        term: 2,
        config: 1,
        log_end: 4096,
        sequence: 9,
        begun_ms: 1,
        ended_ms: 2,
        pool_len: 1 << 28,
        version: "0.1.0".to_owned(),
        state: Part::of(b"state"),
        memory: Part::of(b"memory"),
        copied: 0,
        files,
    }
}

#[test]
fn a_manifest_survives_its_bytes_and_no_flipped_byte_or_prefix_does() {
    let made = manifest(4, vec![file(1, b"one"), file(2, b"two")]);
    let bytes = made.encode();
    assert_eq!(Manifest::decode(&bytes).unwrap(), made);
    for at in 0..bytes.len() {
        let mut flipped = bytes.clone();
        flipped[at] ^= 1;
        assert!(Manifest::decode(&flipped).is_err(), "byte {at}");
        assert!(Manifest::decode(&bytes[..at]).is_err(), "{at} bytes");
    }
}

#[test]
fn files_are_removed_once_no_backup_names_them_and_none_while_a_manifest_is_damaged() {
    let dir = Temporary::new("sweep");
    let place = Place::take(&dir.0, Some(GROUP)).unwrap();
    let (one, two) = (put(&place, 1, b"one"), put(&place, 2, b"two"));
    place.finish(&manifest(1, vec![one.clone(), two.clone()]), b"state", b"memory").unwrap();
    place.finish(&manifest(2, vec![two.clone()]), b"state", b"memory").unwrap();
    std::fs::write(place.path().join("files/mine.txt"), b"no file of a backup").unwrap();
    std::fs::write(place.path().join("000003.state"), b"of a backup that was killed").unwrap();
    assert_eq!(place.sweep().unwrap(), (0, 0));
    assert!(!place.path().join("000003.state").exists());
    place.remove(1).unwrap();
    let path = place.path().join("000002.manifest");
    let whole = std::fs::read(&path).unwrap();
    std::fs::write(&path, &whole[1..]).unwrap();
    assert_eq!(place.sweep().unwrap_err().kind(), ErrorKind::Corruption);
    assert!(place.has(&one));
    std::fs::write(&path, &whole).unwrap();
    assert_eq!(place.sweep().unwrap(), (1, 3));
    assert!(!place.has(&one));
    assert!(place.has(&two));
    assert!(place.path().join("files/mine.txt").exists(), "it is somebody else's");
    assert!(!place.path().join("000001.state").exists());
}

#[test]
fn a_file_that_was_given_up_leaves_nothing_and_one_with_a_flipped_bit_is_named() {
    let dir = Temporary::new("bit");
    let place = Place::take(&dir.0, Some(GROUP)).unwrap();
    drop(place.begin(&file(1, b"never whole")));
    assert_eq!(std::fs::read_dir(dir.0.join("files")).unwrap().count(), 0);
    let two = put(&place, 2, b"two");
    place.check(&two).unwrap();
    std::fs::write(place.file(&two), b"twp").unwrap();
    assert!(place.has(&two), "only its bytes tell");
    let error = place.check(&two).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corruption);
    assert!(error.message().contains("from 0 on"), "{error}");
}

#[test]
fn a_directory_of_another_group_or_of_something_else_is_refused() {
    let dir = Temporary::new("other");
    drop(Place::take(&dir.0, Some(GROUP)).unwrap());
    let error = Place::take(&dir.0, Some(GroupId(8))).err().expect("another group");
    assert!(error.message().contains("has backups of group 7, this is group 8"), "{error}");
    let home = Temporary::new("home");
    std::fs::create_dir_all(&home.0).unwrap();
    std::fs::write(home.0.join("letter"), b"dear").unwrap();
    let error = Place::take(&home.0, Some(GROUP)).err().expect("somebody's home");
    assert!(error.message().contains("not empty: it has letter"), "{error}");
    assert_eq!(Place::open(&home.0).err().expect("none").kind(), ErrorKind::NotFound);
}

#[test]
fn pages_lie_in_one_file_and_a_part_of_it_is_refused() {
    let pages = vec![b"first".to_vec(), Vec::new(), b"third".to_vec()];
    let bytes = join_pages(&pages);
    let split: Result<Vec<_>, _> = split_pages(&bytes).collect();
    assert_eq!(split.unwrap(), pages);
    assert!(split_pages(&bytes[..bytes.len() - 1]).any(|page| page.is_err()));
}

#[test]
fn names_of_files_are_known_again() {
    let file = file(3 << 32 | 12, b"x");
    assert!(is_name(&file.name()), "{}", file.name());
    assert!(is_name(&format!("{}.part", file.name())));
    for other in ["", "x.sst", "000003.manifest", "0000000300000012-1-zzzzzzzz.sst"] {
        assert!(!is_name(other), "{other}");
    }
}

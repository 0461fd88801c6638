//! Split files: which writes are in the journal, what a lost disk gets from it, and what is
//! refused. Programs that end at any of their calls are in `kill_points/split.rs`.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "tests of a shell")]

mod common;
#[path = "common/split_house.rs"]
mod split_house;

use common::{Hindered, Run, script_command};
use gabion_mirror::owner::{Settings, Splits};
use gabion_mirror::split::PREFIX;
use split_house::{House, JOURNAL_LEN};
use std::fs::File;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

/// docs/faults.md: N13
#[test]
fn small_writes_come_back_from_the_journal_over_what_the_disk_had() {
    let house = House::new("split-back");
    // A file with bytes becomes split as it is.
    house.put("a.db", &[7; 5_000]);
    let run = house.start();
    house.script(&run, "open 0 a.db 2 600\nfsync 0\npwrite 0 1 100 50\nfsync 0");
    let synced = house.bytes("a.db");
    house.script(
        &run,
        "open 0 a.db 2 600\npwrite 0 2 900 4990\npwrite 0 3 10 60\nfsync 0\nclose 0\n\
         open 0 b.db 66 600\nfsync 0\nwrite 0 4 999\nfsync 0",
    );
    let (a, b) = (house.bytes("a.db"), house.bytes("b.db"));
    assert_eq!((a.len(), b.len()), (5_890, 999));
    let counts = run.owner.shared().split_counts();
    assert_eq!((counts.frames, counts.large), (4, 0), "{counts:?}");
    run.abandon();
    // The disk has all of it, or only what was synced before the small writes; twice, as the
    // machine may be lost amid the recovery.
    house.start().abandon();
    assert_eq!((house.bytes("a.db"), house.bytes("b.db")), (a.clone(), b.clone()));
    let run = house.start();
    house
        .script(&run, "open 0 a.db 2 600\nfsync 0\npwrite 0 2 900 4990\npwrite 0 3 10 60\nfsync 0");
    run.abandon();
    house.put("a.db", &synced);
    let store = house.home.join("store");
    let before = house.home.join("before");
    split_house::copy(&store, &before);
    house.start().abandon();
    assert_eq!(house.bytes("a.db"), a);
    std::fs::remove_dir_all(&store).unwrap();
    std::fs::rename(&before, &store).unwrap();
    house.put("a.db", &synced);
    house.start().stop();
    assert_eq!(house.bytes("a.db"), a);
}

#[test]
fn a_large_write_goes_past_the_journal_and_so_does_all_until_the_next_sync() {
    let house = House::new("split-large");
    let run = house.start();
    let counts = |run: &Run| {
        let counts = run.owner.shared().split_counts();
        (counts.frames, counts.large, counts.emptied)
    };
    house.script(&run, "open 0 a.db 66 600\nfsync 0\nwrite 0 1 999\nwrite 0 2 1000\nwrite 0 3 5");
    assert_eq!(counts(&run), (1, 2, 0), "behind the frame, so it stays");
    house.script(&run, "open 0 a.db 2 600\nfsync 0\npwrite 0 4 5 2004\nfsync 0");
    assert_eq!(counts(&run), (2, 2, 0));
    house.script(&run, "open 0 a.db 2 600\npwrite 0 5 3000 100\nfsync 0");
    assert_eq!(counts(&run), (2, 3, 1), "over the frames, which are emptied before");
    house.script(&run, "open 0 a.db 2 600\npwrite 0 6 7 0\nftruncate 0 3\nfsync 0");
    assert_eq!(counts(&run), (3, 4, 2), "a cut is a change of the file system's alone");
    house.script(&run, "open 0 a.db 2 600\nfallocate 0 1 0 9000\npwrite 0 6 7 0\nfsync 0");
    assert_eq!(counts(&run), (4, 4, 2), "room that changes no length is none");
    house.script(&run, &format!("open 0 a.db {} 600\nwrite 0 6 7", libc::O_RDWR | libc::O_DSYNC));
    assert_eq!(counts(&run), (4, 5, 3), "the kernel syncs it itself");
    let bytes = house.bytes("a.db");
    run.stop();
    assert_eq!(house.bytes("a.db"), bytes);
    assert_eq!(house.stored(), [""; 0], "a run that ends leaves nothing in the store");
}

#[test]
fn a_journal_that_is_full_is_emptied_by_the_next_sync() {
    let house = House::new("split-full");
    let run = house.start();
    let write = "write 0 1 900\nfsync 0\n".repeat(2 * JOURNAL_LEN as usize / 900);
    let said = house.script(&run, &format!("open 0 a.db 66 600\nfsync 0\n{write}"));
    assert!(said.iter().skip(2).all(|said| said == "900" || said == "0"), "{said:?}");
    let counts = run.owner.shared().split_counts();
    assert!((2..=3).contains(&counts.emptied), "{counts:?}");
    assert!(counts.frames > 2_000 && counts.large < 10, "{counts:?}");
    run.stop();
}

/// docs/faults.md: N13
#[test]
fn a_file_that_is_renamed_or_removed_takes_its_frames_along_and_is_split_by_its_new_name() {
    let house = House::new("split-renamed");
    let run = house.start();
    let said = house.script(
        &run,
        "open 0 a.db 66 600\nfsync 0\nwrite 0 1 100\nfsync 0\nopen 1 gone.db 66 600\nfsync 1\n\
         write 1 1 100\nfsync 1\nrename a.db b.db 0\nunlink gone.db\nwrite 0 2 100\nfsync 0\n\
         write 0 3 100\nfsync 0\nwrite 1 1 100\nfsync 1\nmkdir d\nrename b.db d/c.db 0\n\
         write 0 4 100\nfsync 0\nwrite 0 5 100\nfsync 0\nrename d e 0\nfsync 0\nwrite 0 6 100\n\
         fsync 0\nwrite 0 7 100\nfsync 0",
    );
    assert!(!said.iter().any(|said| said.starts_with('E')), "{said:?}");
    let counts = run.owner.shared().split_counts();
    assert!(counts.frames >= 5, "{counts:?}");
    let bytes = house.bytes("e/c.db");
    assert_eq!(bytes.len(), 700);
    run.abandon();
    let names = house.stored();
    let of_files: Vec<&String> = names.iter().filter(|name| name.ends_with(".db")).collect();
    assert!(of_files.len() == 1 && of_files[0].ends_with("/e/c.db"), "{names:?}");
    // The last sync of the file system's own was the one after the last renaming.
    house.put("e/c.db", &bytes[..500]);
    house.start().stop();
    assert_eq!(house.bytes("e/c.db"), bytes);
    assert!(!house.root.join("gone.db").exists());
}

/// docs/faults.md: N14
#[test]
fn a_split_file_that_is_not_where_it_was_ends_the_start_and_nothing_is_changed() {
    let house = House::new("split-missing");
    let run = house.start();
    house.script(
        &run,
        "open 0 a.db 66 600\nfsync 0\nwrite 0 1 100\nfsync 0\nopen 0 b.db 66 600\nfsync 0\n\
         write 0 1 100\nfsync 0",
    );
    run.abandon();
    let (a, b) = (house.root.join("a.db"), house.root.join("b.db"));
    std::fs::rename(&b, house.home.join("kept")).unwrap();
    house.put("a.db", b"");
    let stored = house.stored();
    assert!(stored.iter().all(|name| name.starts_with(PREFIX)), "{stored:?}");
    for odd in [None, Some("link"), Some("directory")] {
        match odd {
            Some("link") => std::os::unix::fs::symlink(&a, &b).unwrap(),
            Some(_) => std::fs::create_dir(&b).unwrap(),
            None => {}
        }
        let error = house.try_start().unwrap_err().to_string();
        let _ = std::fs::remove_file(&b).or_else(|_| std::fs::remove_dir(&b));
        assert!(error.contains("b.db") && error.contains("--root"), "{error}");
        assert_eq!((house.bytes("a.db"), house.stored()), (vec![], stored.clone()));
    }
    std::fs::rename(house.home.join("kept"), &b).unwrap();
    house.start().stop();
    assert_eq!((house.bytes("a.db").len(), house.bytes("b.db").len()), (100, 100));
}

#[test]
fn a_file_of_several_names_is_left_alone_and_one_by_a_symbolic_link_is_split() {
    let house = House::new("split-links");
    house.put("a.db", b"");
    house.put("b.db", b"");
    std::fs::hard_link(house.root.join("a.db"), house.root.join("other")).unwrap();
    std::os::unix::fs::symlink("b.db", house.root.join("link")).unwrap();
    let run = house.start();
    let frames = |run: &Run| run.owner.shared().split_counts().frames;
    house.script(&run, "open 0 a.db 2 600\nfsync 0\nwrite 0 1 10\nfsync 0\nunlink other");
    assert_eq!(frames(&run), 0);
    house.script(&run, "open 0 link 2 600\nfsync 0\nwrite 0 1 10\nfsync 0");
    assert_eq!(frames(&run), 1);
    house.script(&run, "open 0 a.db 2 600\nfsync 0\nwrite 0 1 10\nfsync 0");
    assert_eq!(frames(&run), 1, "its writer might not be seen");
    run.stop();
    let run = house.start();
    house.script(&run, "open 0 a.db 2 600\nfsync 0\nwrite 0 1 10\nfsync 0");
    assert_eq!(frames(&run), 1, "it has one name now");
    run.stop();
}

#[test]
fn standard_output_that_only_looks_like_a_split_file_is_as_ever() {
    let house = House::new("split-output");
    let run = house.start();
    // Outside of the root, by a name that matches.
    let path = house.home.join("said.db");
    let (output, error) = (File::create(&path).unwrap(), File::create(&path).unwrap());
    let mut command = run.command(Path::new("/bin/echo"));
    command.arg("text").stdout(Stdio::from(output)).stderr(Stdio::from(error));
    let status = command.status().unwrap();
    assert_eq!((status.code(), std::fs::read(path).unwrap()), (Some(0), b"text\n".to_vec()));
    run.stop();
}

#[test]
fn files_beyond_the_limit_stay_in_the_file_system_and_others_are_still_mirrored() {
    let house = House::new("split-many");
    let run = house.start();
    let open = |file| format!("open 0 {file}.db 66 600\nclose 0\n");
    let text: String = (0..540).map(open).collect();
    let said = house.script(&run, &format!("{text}open 0 a.log 66 600\nwrite 0 1 9\nfsync 0"));
    assert!(!said.iter().any(|said| said.starts_with('E')), "{said:?}");
    assert_eq!(run.owner.files().len(), 1);
    run.abandon();
    let names = house.stored();
    assert_eq!(names.iter().filter(|name| name.ends_with(".db")).count(), 512);
    house.start().stop();
    assert_eq!(house.stored(), ["a.log"]);
}

#[test]
fn journals_and_bounds_that_cannot_be_are_refused() {
    let house = House::new("split-refused");
    for (glob, below, journal_len, why) in [
        ("*.db", 0, JOURNAL_LEN, "below 0 bytes, of 1 to 65536"),
        ("*.db", 65_537, JOURNAL_LEN, "below 65537 bytes, of 1 to 65536"),
        ("", 1, JOURNAL_LEN, "split files ''"),
        ("*.db", 1, 1_000, "a journal of 1000 bytes, of 1048576 to 1073741824"),
    ] {
        let splits = Splits { globs: vec![(glob.to_owned(), below)], journal_len };
        let store = house.store();
        let settings = Run::settings(&house.home, &house.root, "*.log");
        let settings = Settings { splits: Some(splits), ..settings };
        let error = Run::start_with(Box::new(store), settings).unwrap_err();
        assert!(error.to_string().contains(why), "{error}");
    }
}

/// A start would put the former frame over the bytes of one that the store does not have.
///
/// docs/faults.md: N12
#[test]
fn a_sync_by_the_file_system_waits_for_frames_too() {
    let house = House::new("split-waits");
    let (gate, waits) = std::sync::mpsc::channel::<()>();
    let mut frames = 0;
    let before_pwrite = Box::new(move || {
        frames += 1;
        // Of the head and the first frame nobody waits; the end opens it for all others.
        if frames == 3 {
            let _ = waits.recv();
        }
        Ok(())
    });
    let run = house.start_with(Box::new(Hindered { store: house.store(), before_pwrite })).unwrap();
    let path = house.home.join("script");
    let text = "open 0 a.db 66 600\nfsync 0\npwrite 0 1 9 0\nfsync 0\npwrite 0 2 9 0\n\
                pwrite 0 3 5000 100\nfsync 0";
    std::fs::write(&path, text).unwrap();
    let mut command = script_command(Some(&run), &house.root, &path);
    let mut child = command.stdout(Stdio::null()).spawn().unwrap();
    while house.root.join("a.db").metadata().map_or(0, |status| status.len()) < 5_100 {
        assert!(child.try_wait().unwrap().is_none(), "it ended before its large write");
        std::thread::yield_now();
    }
    std::thread::sleep(Duration::from_millis(100));
    assert!(child.try_wait().unwrap().is_none(), "it has synced what the store does not have");
    gate.send(()).unwrap();
    assert!(child.wait().unwrap().success());
    run.stop();
}

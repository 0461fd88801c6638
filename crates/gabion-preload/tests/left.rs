//! Files that match and are left in the file system: as long as they are there, and no longer.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "tests of a shell")]

mod common;

use common::{Run, directory, script};
use gabion_mirror::local::LocalFiles;
use gabion_mirror::owner::{Settings, Splits};
use std::path::Path;

fn start(home: &Path) -> Run {
    let splits = Splits { globs: vec![("*.db".to_owned(), 1_000)], journal_len: 1 << 20 };
    let settings = Settings { splits: Some(splits), ..Run::settings(home, home, "*.log") };
    let store = LocalFiles::open(&home.join("store")).unwrap();
    Run::start_with(Box::new(store), settings).unwrap()
}

/// The script has no call that fails.
fn run_script(run: &Run, home: &Path, text: &str) {
    let path = home.join("script");
    std::fs::write(&path, text).unwrap();
    let said = script(Some(run), home, &path);
    assert!(!said.contains(": E"), "{said}");
}

/// On ext4 the next file has the number of the one that was removed.
///
/// docs/faults.md: N11
#[test]
fn a_file_that_has_the_number_of_a_removed_one_is_mirrored_or_split() {
    let home = directory("left-number");
    let run = start(&home);
    let exclusive = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL;
    // Several times, as another test may take the number in between.
    for number in 0..8 {
        for kind in ["log", "db"] {
            run_script(
                &run,
                &home,
                &format!(
                    "open 0 next.tmp 66 600\nclose 0\nrename next.tmp a.{kind} 0\n\
                     unlink a.{kind}\nopen 0 {number}.{kind} {exclusive} 600\nfsync 0\n\
                     write 0 1 10\nfsync 0"
                ),
            );
        }
    }
    let mirrored = run.owner.files().into_iter().filter(|(name, _)| name.ends_with(b".log"));
    assert_eq!(mirrored.map(|(_, len)| len).collect::<Vec<_>>(), [10; 8]);
    assert_eq!(run.owner.shared().split_counts().frames, 8);
    assert_eq!(run.owner.shared().split_files(), (8, 8), "those that were renamed are left alone");
    run.stop();
    std::fs::remove_dir_all(home).unwrap();
}

#[test]
fn a_file_that_got_its_name_later_is_left_alone_until_it_is_gone() {
    let home = directory("left-renamed");
    let run = start(&home);
    // By a rename, a link and an exchange, while it is open by another name.
    run_script(
        &run,
        &home,
        "open 0 a.tmp 66 600\nrename a.tmp a.log 0\nopen 1 a.log 2 600\nwrite 1 1 10\n\
         open 0 b.tmp 66 600\nlink b.tmp b.log\nunlink b.tmp\nopen 1 b.log 2 600\nwrite 1 1 10\n\
         open 0 c.tmp 66 600\nopen 2 c.log 66 600\nrename c.tmp c.log 2\nopen 1 c.log 2 600\n\
         write 1 1 10\nopen 0 d.tmp 66 600\nrename d.tmp d.db 0\nopen 1 d.db 2 600\nwrite 1 1 10\n\
         fsync 1\nwrite 1 1 10\nfsync 1",
    );
    let files = run.owner.files();
    let names: Vec<&[u8]> = files.iter().map(|(name, _)| &name[..]).collect();
    assert!(!names.iter().any(|name| name.ends_with(b".log")), "{files:?}");
    assert_eq!(run.owner.shared().split_counts().frames, 0);
    assert_eq!(run.owner.shared().split_files(), (0, 1));
    run.stop();
    std::fs::remove_dir_all(home).unwrap();
}

#[test]
fn split_files_and_those_that_are_left_alone_are_counted() {
    let home = directory("left-counted");
    let run = start(&home);
    for name in ["several.db", "old.db"] {
        std::fs::write(home.join(name), b"bytes").unwrap();
    }
    std::fs::hard_link(home.join("several.db"), home.join("other")).unwrap();
    run_script(
        &run,
        &home,
        "open 0 several.db 2 600\nopen 1 several.db 0 600\nopen 2 old.db 2 600\n\
         open 3 new.db 66 600\nopen 4 a.log 66 600",
    );
    assert_eq!(run.owner.shared().split_files(), (2, 1));
    run_script(&run, &home, "unlink new.db");
    assert_eq!(run.owner.shared().split_files(), (1, 1));
    run.stop();
    std::fs::remove_dir_all(home).unwrap();
}

//! Owners and stores that fail, and processes that die amid a call: no sync succeeds that stored
//! nothing, and what others see is stored.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "tests of a shell")]

mod common;

use common::{Hindered, Run, script};
use gabion_mirror::local::LocalFiles;
use gabion_mirror::owner::{Settings, Splits};
use gabion_mirror::start;
use std::io;
use std::path::Path;
use std::process::Command;

fn run_script(run: Option<&Run>, home: &Path, text: &str) -> Vec<String> {
    let path = home.join("script");
    std::fs::write(&path, text).unwrap();
    let said = script(run, home, &path);
    said.lines().map(|line| line.rsplit(": ").next().unwrap().to_owned()).collect()
}

/// docs/faults.md: N12
#[test]
fn a_sync_fails_from_the_write_on_that_was_not_stored_and_so_do_all_later_calls() {
    let home = common::directory("failing");
    let store = LocalFiles::open(&home.join("store")).unwrap();
    let mut left = 1;
    let before_pwrite = Box::new(move || {
        left -= 1;
        if left < 0 { Err(io::Error::from_raw_os_error(libc::ENOSPC)) } else { Ok(()) }
    });
    let store = Box::new(Hindered { store, before_pwrite });
    let run = Run::with(store, &home, &home, "*.log", false);
    let said = run_script(
        Some(&run),
        &home,
        "open 0 a.log 66 600\nwrite 0 1 10\nfsync 0\nwrite 0 2 10\nfsync 0\nfsync 0\nwrite 0 3 10\n\
         open 1 b.log 66 600\nopen 2 c.txt 66 600\nwrite 2 1 10\nfsync 2\nread 0 100",
    );
    let expected =
        ["3", "10", "0", "10", "E5", "E5", "E5", "E5", "4", "10", "0", "0 cbf29ce484222325"];
    assert_eq!(said, expected);
    assert_eq!(run.owner.stop().unwrap_err().raw_os_error(), Some(libc::EIO));
    std::fs::remove_dir_all(home).unwrap();
}

/// docs/faults.md: N14
#[test]
fn without_an_owner_a_program_does_not_start_and_without_its_name_nothing_is_interposed() {
    let home = common::directory("alone");
    let missing = home.join("no-such-run");
    let output = start::command(Path::new("/bin/echo"), &common::interposer(), &missing)
        .arg("it runs")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(125), "{said}");
    assert!(said.contains("no `gabion ncl run` at") && said.contains("no-such-run"), "{said}");
    assert!(output.stdout.is_empty());
    let output = Command::new("/bin/sh")
        .args(["-c", "echo text > a.log; cat a.log"])
        .env("LD_PRELOAD", common::interposer())
        .env_remove("GABION_NCL")
        .current_dir(&home)
        .output()
        .unwrap();
    assert_eq!(output.stdout, b"text\n", "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(std::fs::read(home.join("a.log")).unwrap(), b"text\n");
    std::fs::remove_dir_all(home).unwrap();
}

#[test]
fn a_ring_of_io_uring_is_refused_and_the_rest_of_the_system_is_as_ever() {
    let home = common::directory("uring");
    let run = Run::start(&home, &home, "*.log", false);
    let said = run_script(Some(&run), &home, "uring a.log\nopen 0 a.txt 66 600");
    assert_eq!(said, ["E38", "3"]);
    run.stop();
    let alone = run_script(None, &home, "uring a.log");
    assert_ne!(alone, ["E38"], "this kernel has none, so the test shows nothing");
    std::fs::remove_dir_all(home).unwrap();
}

#[test]
fn a_shared_mapping_that_may_write_is_refused_with_a_sentence() {
    let home = common::directory("mapping");
    let run = Run::start(&home, &home, "*.log", false);
    let said = run_script(
        Some(&run),
        &home,
        "open 0 a.log 66 600\nopen 1 b.txt 66 600\nmapshared 0 1\nmapshared 1 1\nmapshared 0 3",
    );
    assert_eq!(said, ["3", "4", "E19", "0", "E19"]);
    run.stop();
    std::fs::remove_dir_all(home).unwrap();
}

/// docs/faults.md: N11
#[test]
fn asynchronous_writes_in_a_list_are_refused_and_those_of_other_files_are_made() {
    let home = common::directory("lio");
    let splits = Splits { globs: vec![("*.db".to_owned(), 100)], journal_len: 1 << 20 };
    let settings = Settings { splits: Some(splits), ..Run::settings(&home, &home, "*.log") };
    let store = LocalFiles::open(&home.join("store")).unwrap();
    let run = Run::start_with(Box::new(store), settings).unwrap();
    let said = run_script(
        Some(&run),
        &home,
        "open 0 a.log 66 600\nlio 0 1 10\nfsync 0\nopen 1 b.txt 66 600\nlio 1 1 10\n\
         open 2 c.db 66 600\nlio 2 1 10\nfsync 2",
    );
    assert_eq!(said, ["3", "E38", "0", "4", "0", "5", "E38", "0"]);
    assert_eq!(run.owner.files(), [(b"a.log".to_vec(), 0)]);
    assert_eq!(std::fs::metadata(home.join("b.txt")).unwrap().len(), 10);
    run.stop();
    std::fs::remove_dir_all(home).unwrap();
}

/// docs/faults.md: N11
#[test]
fn a_file_that_is_opened_by_its_handle_is_the_mirror() {
    let home = common::directory("handle");
    let run = Run::start(&home, &home, "*.log", false);
    let said = run_script(
        Some(&run),
        &home,
        "open 0 a.log 66 600\nwrite 0 1 10\nhandle 1 a.log 1\nwrite 1 2 30\nfsync 1",
    );
    // Root alone may, and not in each container.
    let may = run_script(None, &home, "open 0 b.txt 66 600\nhandle 1 b.txt 1")[1] == "4";
    let (expected, len) = match may {
        true => (["3", "10", "4", "30", "0"], 30),
        false => (["3", "10", "E1", "E9", "E9"], 10),
    };
    assert_eq!(said, expected);
    assert_eq!(run.owner.files(), [(b"a.log".to_vec(), len)]);
    run.stop();
    std::fs::remove_dir_all(home).unwrap();
}

/// docs/faults.md: N11
#[test]
fn a_link_of_another_name_leads_to_the_mirror() {
    let home = common::directory("link");
    let run = Run::start(&home, &home, "*.log", false);
    let said = run_script(
        Some(&run),
        &home,
        "open 0 a.log 66 600\nwrite 0 1 10\nsymlink a.log l.txt\nopen 1 l.txt 1025 600\n\
         write 1 2 20\nfopen 0 l.txt a\nfwrite 0 3 30\nfclose 0",
    );
    assert_eq!(said, ["3", "10", "0", "4", "20", "a stream", "30", "0"]);
    assert_eq!(run.owner.files(), [(b"a.log".to_vec(), 60)]);
    run.stop();
    std::fs::remove_dir_all(home).unwrap();
}

/// An opener by its own name finds the writes by the link.
///
/// docs/faults.md: N11
#[test]
fn a_file_that_is_made_by_a_link_of_another_name_is_mirrored_and_one_with_bytes_stays() {
    let home = common::directory("made-by-link");
    std::fs::write(home.join("b.log"), b"bytes").unwrap();
    std::fs::write(home.join("c.log"), b"bytes").unwrap();
    let run = Run::start(&home, &home, "*.log", false);
    let said = run_script(
        Some(&run),
        &home,
        "symlink a.log l.txt\nopen 0 l.txt 66 600\nopen 1 a.log 2 600\nwrite 0 1 10\n\
         symlink b.log m.txt\nopen 2 m.txt 513 600\nopen 3 b.log 2 600\nwrite 2 1 20\nfsync 2\n\
         open 2 c.log 513 600\nopen 3 c.log 2 600\nwrite 2 1 20\nfsync 2",
    );
    let opened = ["0", "3", "4", "10", "0", "5", "6", "20", "0"];
    assert_eq!(said, [&opened[..], &["7", "5", "20", "0"]].concat());
    assert_eq!(run.owner.files(), [(b"a.log".to_vec(), 10)]);
    run.stop();
    let len = |name: &str| home.join(name).metadata().unwrap().len();
    assert_eq!([len("b.log"), len("c.log")], [20, 20]);
    std::fs::remove_dir_all(home).unwrap();
}

/// RocksDB reserves as much as its write buffer for each of its logs.
#[test]
fn room_that_is_reserved_ahead_of_writes_takes_no_memory() {
    let home = common::directory("reserved");
    let run = Run::start(&home, &home, "*.log", false);
    let said = run_script(
        Some(&run),
        &home,
        "open 0 a.log 66 600\nwrite 0 1 10\nfallocate 0 1 0 8388608\nblocks 0\n\
         fallocate 0 1 0 0\nfallocate 0 1 9223372036854775807 1\nopen 1 a.log 0 600\n\
         fallocate 1 1 0 4096\nfallocate 0 0 0 8192\nblocks 0",
    );
    let expected = ["3", "10", "0", "8", "E22", "E27", "4", "E9", "0", "16"];
    assert_eq!(said, expected);
    assert_eq!(run.owner.files(), [(b"a.log".to_vec(), 8192)]);
    run.stop();
    std::fs::remove_dir_all(home).unwrap();
}

#[test]
fn bytes_that_belong_to_the_file_system_stay_there_whatever_their_names_become() {
    let home = common::directory("edge");
    std::fs::write(home.join("old.log"), b"old bytes").unwrap();
    let run = Run::start(&home, &home, "*.log", false);
    let said = run_script(
        Some(&run),
        &home,
        "open 0 old.log 1025 600\nwrite 0 1 4\nclose 0\n\
         open 0 tmp.txt 66 600\nwrite 0 2 5\nclose 0\n\
         rename tmp.txt new.log 0\nopen 0 new.log 1 600\nwrite 0 3 6\nclose 0\n\
         open 0 mine.log 66 600\nwrite 0 4 7\nclose 0\nrename mine.log mine.txt 0\n\
         open 0 mine.txt 1 600\nwrite 0 5 8\nfsync 0",
    );
    assert!(said.iter().all(|word| !word.starts_with('E')), "{said:?}");
    assert_eq!(run.owner.files(), [(b"mine.txt".to_vec(), 8)]);
    run.stop();
    assert_eq!(std::fs::metadata(home.join("old.log")).unwrap().len(), 13);
    assert_eq!(std::fs::metadata(home.join("new.log")).unwrap().len(), 6);
    let placeholder = std::fs::read_to_string(home.join("mine.txt")).unwrap();
    assert!(placeholder.starts_with("gabion-ncl 1 test "), "{placeholder}");
    std::fs::remove_dir_all(home).unwrap();
}

#[test]
fn a_name_of_the_store_that_a_file_with_bytes_has_too_ends_the_start() {
    let home = common::directory("both");
    let run = Run::start(&home, &home, "*.log", false);
    run_script(Some(&run), &home, "open 0 a.log 66 600\nwrite 0 1 10");
    run.stop();
    std::fs::write(home.join("a.log"), b"of another program").unwrap();
    let store = LocalFiles::open(&home.join("store")).unwrap();
    let error = Run::try_with(Box::new(store), &home, &home, "*.log", false).unwrap_err();
    assert!(error.to_string().contains("a.log"), "{error}");
    assert_eq!(std::fs::read(home.join("a.log")).unwrap(), b"of another program");
    std::fs::remove_dir_all(home).unwrap();
}

/// docs/faults.md: N11
#[test]
fn descriptors_pass_to_the_next_program_and_standard_output_to_a_log_is_refused() {
    let home = common::directory("exec");
    let run = Run::start(&home, &home, "*.log", false);
    let shell = |text: &str| {
        let mut command = run.command(Path::new("/bin/sh"));
        command.args(["-c", text]).current_dir(&home).output().unwrap()
    };
    let output = shell("exec 7> a.log; echo one >&7; sh -c 'echo more >&7'");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let output = shell("exec 7>> a.log; sh -c 'echo two >&7'");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let output = shell("/bin/echo unseen > b.log");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(125), "{said}");
    assert!(said.contains("near-compute log"), "{said}");
    run.stop();
    let run = Run::start(&home, &home, "*.log", false);
    let files = run.owner.files();
    assert_eq!(files, [(b"a.log".to_vec(), 4 + 5 + 4), (b"b.log".to_vec(), 0)]);
    run.stop();
    std::fs::remove_dir_all(home).unwrap();
}

//! Files that somebody may have open unseen are not split: frames would be put over bytes that were
//! synced later, past the interposer.

use crate::bytes::bytes;
use crate::common::disk;
use crate::split_house::House;
use crate::writers::start_at_once;
use crate::{house_with, writers};
use std::path::Path;
use std::time::Duration;

/// Register 0 has a file open unseen, and register 1 has it by a name that matches: writes by 1,
/// then by 0, each of them synced.
const WRITES: &str = "fsync 1\npwrite 1 1 100 0\nfsync 1\npwrite 0 2 100 0\nfsync 0";

/// Whether a file has what was written last, after a start.
fn is_last_write(house: &House, name: &str) {
    house.start().stop();
    assert_eq!(house.bytes(name)[..100], bytes(2, 100), "an older frame was put over it");
}

fn script(house: &House, text: &str) {
    let run = house.start();
    let said = house.script(&run, text);
    assert!(!said.iter().any(|said| said.starts_with('E')), "{said:?}");
    run.abandon();
}

#[test]
fn a_file_that_came_with_a_directory_is_not_split_where_others_may_have_it_open() {
    // By its new path alone it matches.
    let mut house = house_with("split-came", &[]);
    house.globs = "e/*.db";
    script(
        &house,
        &format!("mkdir d\nopen 0 d/x.db 66 600\nrename d e 0\nopen 1 e/x.db 2 600\n{WRITES}"),
    );
    is_last_write(&house, "e/x.db");
    // It was not below the root.
    let house = house_with("split-came-in", &[]);
    let text = "mkdir ../out\nopen 0 ../out/x.db 66 600\nrename ../out e 0\nopen 1 e/x.db 2 600";
    script(&house, &format!("{text}\n{WRITES}"));
    is_last_write(&house, "e/x.db");
}

#[test]
fn a_file_whose_renaming_or_link_was_the_last_call_of_a_process_is_not_split() {
    let temporary = libc::O_TMPFILE | libc::O_RDWR;
    for (opens, renames) in [
        ("open 0 x.txt 66 600".to_owned(), "rename x.txt a.db 0"),
        (format!("open 0 . {temporary} 600"), "linkfd 0 a.db"),
        ("mkdir ../out\nopen 0 ../out/a.db 66 600".to_owned(), "rename ../out d 0"),
    ] {
        let house = house_with("split-last", &[]);
        let name = if renames.ends_with("d 0") { "d/a.db" } else { "a.db" };
        // The child ends before the owner hears of its change.
        let child = format!("fork 2\nopen 1 ../{} 66 600\n{renames}", disk::ENDS);
        script(&house, &format!("{opens}\n{child}\nopen 1 {name} 2 600\n{WRITES}"));
        assert!(house.root.join(name).exists(), "{renames}");
        is_last_write(&house, name);
    }
}

#[test]
fn a_file_that_had_another_name_by_which_it_is_open_is_not_split() {
    for removes in ["unlink y.txt", "open 2 z.txt 66 600\nrename z.txt y.txt 0"] {
        let house = house_with("split-two", &["a.db"]);
        std::fs::hard_link(house.root.join("a.db"), house.root.join("y.txt")).unwrap();
        let opens = format!("open 0 y.txt 2 600\n{removes}\nopen 1 a.db 2 600");
        script(&house, &format!("{opens}\n{WRITES}"));
        is_last_write(&house, "a.db");
    }
}

fn until_there(path: &Path) {
    while !path.exists() {
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn whoever_opens_a_file_by_another_name_while_it_becomes_split_is_seen() {
    let house = house_with("split-linked", &["a.db"]);
    let run = house.start();
    let waits = house.home.join(disk::OWNER_WAITS[0]);
    std::fs::write(&waits, b"").unwrap();
    // While the owner waits it answers nobody, so all have begun before. The link is made without
    // either name, of which the owner would be asked.
    let links = format!(
        "open 0 a.db {} 600\nopen 1 ../links 66 600\nawait ../{}\nlinkfd 0 l.txt",
        libc::O_PATH,
        disk::OWNER_WAITS[1]
    );
    let writes = "open 1 ../writes 66 600\nawait l.txt\nopen 0 l.txt 2 600\n\
                  await ../written\npwrite 0 2 100 0\nfsync 0";
    let splits = "await ../links\nawait ../writes\nopen 0 a.db 2 600\nfsync 0\npwrite 0 1 100 0\n\
                  fsync 0\nopen 1 ../written 66 600";
    let texts = [("first", links.as_str()), ("second", writes), ("third", splits)];
    let children = start_at_once(&house, &run, &texts);
    until_there(&house.root.join("l.txt"));
    // It may be open by now.
    std::thread::sleep(Duration::from_millis(50));
    std::fs::remove_file(&waits).unwrap();
    children.into_iter().for_each(|child| drop(writers::ended(child)));
    run.abandon();
    is_last_write(&house, "a.db");
}

//! Programs that write records to the log peers themselves, while peers are lost and others do
//! other things: what they wrote is there afterwards, in its order.

use crate::{House, PEERS};
use std::process::Command;

/// Writes lines of a thousand bytes, with their numbers in front: the file gets further parts.
const LINES: &str = "
    x=$(printf %0990d 7); i=0
    while [ $i -lt 2000 ]; do i=$((i+1)); echo $(($1+i)) $x; done >> a.log";
const COUNT: usize = 2_000;

fn lines(house: &House, first: usize) -> Command {
    let mut command = house.command("sh");
    command.args(["-c", LINES, "sh", &first.to_string()]);
    command
}

/// The lines of each writer are there, in their order.
fn check(house: &House, writers: &[usize]) {
    let output = house.command("cat").arg("a.log").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let numbers: Vec<usize> =
        text.lines().map(|line| line.split_once(' ').unwrap().0.parse().unwrap()).collect();
    assert_eq!(numbers.len(), COUNT * writers.len());
    for first in writers {
        let expected: Vec<usize> = (first + 1..=first + COUNT).collect();
        let its = numbers.iter().copied().filter(|number| expected.contains(number));
        assert!(its.eq(expected.iter().copied()), "lines from {first} on");
    }
}

fn house(name: &str) -> House {
    let mut house = House::new(name, "*.log");
    // A program that waits for its records would rather write them itself.
    (house.is_near, house.every_write) = (true, true);
    (0..PEERS).for_each(|index| house.restart_peer(index));
    reopen(&mut house);
    house
}

fn direct(house: &House) -> u64 {
    house.owner.as_ref().unwrap().0.owner.shared().direct_records().0
}

/// Another owner, once all of it is at peers.
fn reopen(house: &mut House) {
    house.wait_for_copies();
    let (run, logs) = house.owner.take().unwrap();
    run.stop();
    drop(logs);
    house.open();
}

#[test]
#[ignore = "is of the interposer alone: cargo xtask ncl"]
fn records_of_a_log_are_the_programs_own_and_all_of_them_are_recovered() {
    let mut house = house("direct");
    assert!(lines(&house, 10_000).status().unwrap().success());
    let written = direct(&house);
    assert!(written > 200, "{written} of {COUNT} records were the program's own");
    reopen(&mut house);
    check(&house, &[10_000]);
}

/// docs/faults.md: N4
#[test]
#[ignore = "is of the interposer alone: cargo xtask ncl"]
fn peers_are_lost_while_a_program_writes_its_records_itself() {
    let mut house = house("direct-losses");
    let mut child = lines(&house, 10_000).spawn().unwrap();
    let mut losses = 0;
    while child.try_wait().unwrap().is_none() {
        house.lose_a_peer();
        losses += 1;
    }
    assert!(child.wait().unwrap().success());
    assert!(losses > 1 && direct(&house) > 0, "{losses} losses, {} records", direct(&house));
    reopen(&mut house);
    check(&house, &[10_000]);
}

/// Files come and go meanwhile, by other processes, and two write the same log.
#[test]
#[ignore = "is of the interposer alone: cargo xtask ncl"]
fn others_change_names_and_files_while_two_processes_write_their_records_themselves() {
    let mut house = house("direct-others");
    let mut first = lines(&house, 10_000).spawn().unwrap();
    let mut second = lines(&house, 50_000).spawn().unwrap();
    // A pause now and then: while names change all the time no records are granted.
    let others = "for i in 1 2 3 4 5 6 7 8 9; do echo $i > n.log; mv n.log m.log; rm m.log; done
        sleep 0.1";
    while first.try_wait().unwrap().is_none() {
        assert!(house.command("sh").args(["-c", others]).status().unwrap().success());
    }
    assert!(first.wait().unwrap().success() && second.wait().unwrap().success());
    let written = direct(&house);
    assert!(written > 0, "none was written so");
    reopen(&mut house);
    check(&house, &[10_000, 50_000]);
}

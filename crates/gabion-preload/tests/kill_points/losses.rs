//! More peers are lost than records survive the loss of, while the program lives: others are filled
//! from its mirrors, whatever it is about to write.

use crate::{House, PEERS};

/// Two processes write without a sync, one line after the other, and one cuts a file each time:
/// somebody is amid a change, and the owner amid a request, whenever a copy is made.
const SCRIPT: &str = "
    lines() { i=0; while [ $i -lt 400 ]; do i=$((i+1)); echo $i >> $1.log; : > cut.log; done; }
    lines a & lines b; wait";
const LINES: usize = 400;

/// docs/faults.md: N4
#[test]
#[ignore = "is of the interposer alone: cargo xtask ncl"]
fn all_peers_are_lost_again_and_again_and_a_program_that_lives_fills_others() {
    let mut house = House::new("losses", "*.log");
    let mut child = house.command("sh").args(["-c", SCRIPT]).spawn().unwrap();
    let mut rounds = 0;
    while child.try_wait().unwrap().is_none() {
        house.wait_for_copies();
        (0..PEERS).for_each(|index| house.restart_peer(index));
        rounds += 1;
    }
    assert!(child.wait().unwrap().success());
    assert!(rounds > 2, "peers were lost {rounds} times");
    // Without a program nothing fills those that were lost last.
    house.wait_for_copies();
    let (run, logs) = house.owner.take().unwrap();
    run.stop();
    drop(logs);
    house.open();
    let expected: Vec<String> = (1..=LINES).map(|number| number.to_string()).collect();
    for name in ["a.log", "b.log"] {
        let output = house.command("cat").arg(name).output().unwrap();
        let lines = String::from_utf8(output.stdout).unwrap();
        let lines: Vec<&str> = lines.lines().collect();
        assert_eq!(lines, expected, "{name}");
    }
}

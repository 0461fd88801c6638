//! Three peers whose memory a program fills.

use super::*;

/// Writes until there is no memory, then goes on with what there is.
const FILLS: &str = r#"
    head -c 3000000 /dev/zero | tr '\0' a | dd of=other.log 2> said
    dd if=/dev/zero bs=256k count=400 2> said | tr '\0' b | dd of=big.log bs=256k 2>> said
    grep -q 'No space left on device' said && echo full $(stat -c %s big.log)
    printf x | dd of=big.log bs=1 seek=5 conv=notrunc,fsync 2> /dev/null && echo within
    printf more >> other.log && sync other.log && echo other
    read line
    truncate -s 100 big.log && echo cut
    dd if=/dev/zero bs=1M count=20 2> /dev/null | dd of=third.log conv=fsync 2> /dev/null \
        && echo third
    rm third.log && echo removed
    dd if=/dev/zero bs=1M count=20 2> /dev/null | dd of=fourth.log conv=fsync 2> /dev/null \
        && echo fourth
    read line
    rm fourth.log
    dd if=/dev/zero bs=256k count=400 2> /dev/null | tr '\0' c | dd of=big.log bs=256k 2> /dev/null
    sync big.log && echo last $(stat -c %s big.log) $(cksum < big.log | tr ' ' -)
    read line
"#;

/// docs/faults.md: N15
#[test]
fn a_program_that_fills_its_peers_gets_enospc_loses_none_and_goes_on_once_there_is_room() {
    let mut house = House::new(0);
    (0..3).for_each(|index| house.add_peer_of(index, "48MiB", &[]));
    let place = house.directory("place");
    let options = ["--peer-timeout", "3"];
    let mut run = Process::start(&mut house.run(&place, &options, &["sh", "-c", FILLS]));
    let go_on = |run: &mut Process| run.child.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
    let line = run.line();
    let len: u64 = line.strip_prefix("full ").expect(&line).parse().unwrap();
    assert!(len >= 36 << 20, "{len} bytes of 48 MiB are used");
    for word in ["within", "other"] {
        assert_eq!(run.line(), word);
    }
    let found = house.application();
    assert_eq!((&found["copies"], &found["losses"]), (&3.into(), &0.into()), "{found:#}");
    go_on(&mut run);
    for word in ["cut", "third", "removed", "fourth"] {
        assert_eq!(run.line(), word);
    }
    go_on(&mut run);
    let last = run.line();
    run.kill();

    // A new copy has no room beside the former one: it waits, says so, and takes nothing away.
    let ls = ["cat", "--app", "test", "--peer-timeout", "8", "big.log"];
    let output = house.gabion(&ls).output().unwrap();
    let said = text(&output.stderr);
    assert!(!output.status.success(), "{said}");
    for (id, _) in &house.peers {
        assert!(said.contains(&format!("peer {id} has no room for ")), "{said}");
    }
    assert!(said.contains("lent to this application") && said.contains("2 are needed"), "{said}");
    for index in 3..5 {
        house.add_peer_of(index, "64MiB", &[]);
    }
    let script =
        "echo last $(stat -c %s big.log) $(cksum < big.log | tr ' ' -); tail -c 5 other.log";
    let output = house.shell(&house.directory("other"), &[], script);
    assert_eq!(text(&output.stdout), format!("{last}\namore"), "{}", text(&output.stderr));
}

/// docs/faults.md: N15
#[test]
fn peers_with_more_memory_take_the_place_of_full_ones_while_the_program_runs() {
    let mut house = House::new(0);
    (0..3).for_each(|index| house.add_peer_of(index, "16MiB", &[]));
    let place = house.directory("place");
    let script = "i=0; while i=$((i+1)); do
        head -c 100000 /dev/zero | dd of=a.log oflag=append conv=notrunc,fsync 2> /dev/null \
            && echo $i || { echo full; sleep 0.2; }
    done";
    let mut run = Process::start(&mut house.run(&place, &[], &["sh", "-c", script]));
    run.until("full");
    (3..6).for_each(|index| house.add_peer_of(index, "256MiB", &[]));
    let until = Instant::now() + PATIENCE;
    while run.line() == "full" {
        assert!(Instant::now() < until, "{:#}", house.application());
    }
    (0..20).for_each(|_| assert_ne!(run.line(), "full"));
    let found = house.application();
    assert!(found["replaced"].as_u64() >= Some(2), "{found:#}");
    run.kill();
    let output = house.shell(&house.directory("other"), &["--take-over"], "stat -c %s a.log");
    let len: Result<u64, _> = text(&output.stdout).trim().parse();
    let len = len.unwrap_or_else(|_| panic!("{}", text(&output.stderr)));
    assert!(len > 12 << 20, "{len}");
}

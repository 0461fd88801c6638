//! RocksDB with synced writes of several threads: program, `gabion ncl run` and a peer are killed.

#[path = "../../../gabion-preload/examples/disk/shadow.rs"]
mod disk;

use super::*;

const THREADS: usize = 4;

/// A program or library of the interposer's tests, built beside this one's.
fn example(name: &str) -> PathBuf {
    let path = Path::new(GABION).with_file_name("examples").join(name);
    assert!(path.exists(), "{name} is missing: cargo build -p gabion-preload --examples");
    path
}

/// The program under `gabion ncl run`, the syncs of its other files noted.
fn rocksdb(house: &House, place: &Path, what: &str) -> Command {
    let script = format!(
        "LD_PRELOAD={}:$LD_PRELOAD exec {} {what}",
        example("libdisk.so").display(),
        example("rocksdb").display()
    );
    let mut command = house.run(place, &["--take-over"], &["sh", "-c", &script]);
    command.env(disk::SHADOW, house.dir.join("shadow")).env(disk::ROOT, place);
    command
}

/// Each thread's last number. Every one before it was found, and is what was written.
fn check(house: &House, place: &Path) -> Vec<u64> {
    let ldb = ["ldb", "--db=.", "checkconsistency"];
    let output = house.run(place, &["--take-over"], &ldb).output().unwrap();
    let errors = text(&output.stderr);
    assert!(output.status.success() && text(&output.stdout).trim() == "OK", "{errors}");
    let output = rocksdb(house, place, &format!("check . {THREADS}")).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let last = |line: &str| line.split_once(' ').unwrap().1.parse().unwrap();
    text(&output.stdout).lines().map(last).collect()
}

/// docs/faults.md: N13
#[test]
#[ignore = "needs RocksDB: cargo xtask ncl"]
fn rocksdb_whose_machine_dies_amid_flushes_loses_no_write_while_peers_die_too() {
    let mut house = House::new(4);
    let (mut place, shadow) = (house.directory("place-0"), house.directory("shadow"));
    disk::all_synced(&shadow, &place).unwrap();
    let mut told = vec![0_u64; THREADS];
    for round in 0..kills() {
        let what = format!("write . {THREADS} {}", round % 2 * 2);
        let mut run = Process::start(&mut rocksdb(&house, &place, &what));
        assert_eq!(run.line(), "open", "round {round}");
        let mut lines = String::new();
        for step in 1..=400 {
            for (thread, last) in told.iter().enumerate() {
                lines.push_str(&format!("{thread} {}\n", last + step));
            }
        }
        run.child.stdin.as_mut().unwrap().write_all(lines.as_bytes()).unwrap();
        let mut heard = 0;
        loop {
            let line = run.line();
            // Its words from before it was killed are read to their end.
            let Some((thread, number)) = line.split_once(' ') else { break };
            told[thread.parse::<usize>().unwrap()] = number.parse().unwrap();
            heard += 1;
            if heard == 300 {
                restart_peer(&mut house, round as usize % 4);
            }
            if heard == 800 {
                run.kill();
            }
        }
        assert!(heard >= 800, "round {round}: it ended after {heard} writes");
        let next = house.directory(&format!("place-{}", round + 1));
        disk::after_a_loss(&shadow, &place, &next).unwrap();
        std::fs::remove_dir_all(&place).unwrap();
        std::fs::remove_dir_all(&shadow).unwrap();
        disk::all_synced(&shadow, &next).unwrap();
        place = next;
        let found = check(&house, &place);
        assert_eq!(found.len(), THREADS);
        let are_there =
            found.iter().zip(&told).all(|(found, told)| (*told..=told + 1).contains(found));
        assert!(are_there, "round {round}: {found:?} of {told:?} that were told");
    }
    let total: u64 = told.iter().sum();
    eprintln!("rocksdb: {total} writes, killed {} times with a peer each", kills());
}

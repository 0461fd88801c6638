//! PostgreSQL on a machine that dies, with all of its processes and `gabion ncl run`.

#[path = "../../../gabion-preload/tests/common/postgresql_client.rs"]
mod client;

use super::{House, Process, kills, restart_peer, text};
use client::{GLOBS, PATIENCE, Session, Workers, check, program, user};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

const SETTINGS: [&str; 6] = [
    "listen_addresses=",
    "min_wal_size=2MB",
    "max_wal_size=4MB",
    // The disk is one of before a checkpoint. A peer's 64 MiB hold former copies and new ones.
    "wal_keep_size=8",
    "recovery_init_sync_method=syncfs",
    "dynamic_shared_memory_type=mmap",
];

fn own(path: &Path) {
    if let Some((user, group)) = user() {
        std::os::unix::fs::chown(path, Some(user), Some(group)).unwrap();
    }
}

/// `gabion ncl run` of one of PostgreSQL's programs, as a user that it accepts.
fn run(house: &House, root: &Path, name: &str) -> Command {
    let words = ["run", "--app", "db", "--match", GLOBS, "--take-over", "--root"];
    let mut command = house.gabion(&[&words[..], &[root.to_str().unwrap()]].concat());
    command.arg("--").arg(program(name)).arg("-D").arg(root).current_dir(root);
    // The one of this test's user is not for others.
    command.env_remove("XDG_RUNTIME_DIR");
    if let Some((user, group)) = user() {
        command.uid(user).gid(group);
    }
    command
}

/// The sockets of the controller and the peers, for whoever runs PostgreSQL.
fn open_sockets(house: &House) {
    for entry in std::fs::read_dir(&house.dir).unwrap() {
        let path = entry.unwrap().path();
        let socket = path.join("socket");
        if socket.exists() {
            std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
            std::fs::set_permissions(socket, PermissionsExt::from_mode(0o777)).unwrap();
        }
    }
}

/// A server that takes sessions; its sockets are in a directory of its own.
fn start(house: &House, root: &Path, sockets: &Path) -> (Process, Session) {
    let mut command = run(house, root, "postgres");
    command.arg("-k").arg(sockets).args(SETTINGS.map(|setting| format!("-c{setting}")));
    let log = house.dir.join("postgresql.log");
    command.stderr(std::fs::File::create(&log).unwrap());
    let mut server = Process::start(&mut command);
    let said = || std::fs::read_to_string(&log).unwrap();
    let begun = Instant::now();
    loop {
        if let Ok(session) = Session::new(sockets) {
            return (server, session);
        }
        assert!(server.child.try_wait().unwrap().is_none(), "it has ended: {}", said());
        assert!(begun.elapsed() < PATIENCE, "no session: {}", said());
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

/// A copy of what a checkpoint has just synced, while nobody writes: the disk of the lost machine,
/// without the write-ahead log, and without the number of a process of that machine.
fn copy_synced(session: &mut Session, root: &Path, to: &Path) {
    session.ask("checkpoint").unwrap();
    let script = "cp -a \"$0\" \"$1\" && rm \"$1/postmaster.pid\" && \
                  find \"$1/pg_wal\" -maxdepth 1 -type f -delete";
    let output = Command::new("sh").args(["-c", script]).args([root, to]).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
}

fn initdb(house: &House) -> PathBuf {
    let root = house.directory("data-0");
    own(&root);
    let mut command = run(house, &root, "initdb");
    command.args(["-A", "trust", "-U", "postgres", "--locale=C", "--wal-segsize=1", "-N"]);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    root
}

/// docs/faults.md: N13
#[test]
#[ignore = "needs postgresql: cargo xtask ncl"]
fn postgresql_whose_machine_dies_loses_no_commit_while_peers_die_too() {
    let mut house = House::new(4);
    open_sockets(&house);
    let mut root = initdb(&house);
    let mut told = 0_u64;
    // A round takes as long as three of other programs.
    let kills = kills().div_ceil(3);
    for round in 0..=kills {
        let sockets = house.directory(&format!("sockets-{round}"));
        own(&sockets);
        let (mut server, mut session) = start(&house, &root, &sockets);
        let workers = Workers::new(&root);
        let made = "create table if not exists t(a bigint primary key, b text); \
                    create extension if not exists amcheck";
        session.ask(made).unwrap();
        check(&sockets).unwrap();
        let found = session.numbers("select count(*), coalesce(max(a), 0) from t").unwrap();
        let fine = found[0] == found[1] && (told..=told + 1).contains(&found[0]);
        assert!(fine, "round {round}: {told} commits were told of, {found:?}");
        told = found[0];
        if round == kills {
            break;
        }
        let disk = house.dir.join(format!("data-{}", round + 1));
        copy_synced(&mut session, &root, &disk);
        for step in 0..200 {
            if step == 70 {
                restart_peer(&mut house, round as usize % 4);
                open_sockets(&house);
            }
            if step % 50 == 49 {
                session.ask("select pg_switch_wal()").unwrap();
            }
            let len = step % 7 * 300;
            let insert = format!("insert into t values({}, repeat('x', {len}))", told + 1);
            session.ask(&insert).unwrap();
            told += 1;
        }
        // One more is under way.
        session.tell(&format!("insert into t values({}, '')", told + 1)).unwrap();
        server.kill();
        drop(workers);
        std::fs::remove_dir_all(&root).unwrap();
        root = disk;
    }
    eprintln!("postgresql: {told} commits, killed {kills} times with a peer each");
}

//! PostgreSQL, killed under load.

use super::postgresql_site::{GLOBS, PATIENCE, SEGMENT, Session, Site, Workers};
use super::{common, moved, rounds};
use common::{Rng, Run};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

/// Segments of 1 MiB that are kept for a disk of before a checkpoint.
const KEPT: u64 = 64;

const METHODS: [&str; 4] = ["fdatasync", "open_datasync", "fsync", "open_sync"];

/// A server; all of its processes are killed with this value.
struct Server {
    child: Child,
    _workers: Workers,
}

impl Server {
    /// `pg_ctl stop -m fast`: sessions end at once, and a last checkpoint is made.
    fn stop(&mut self) {
        // SAFETY: the child is not waited for yet; no memory is touched.
        assert_eq!(unsafe { libc::kill(self.child.id() as i32, libc::SIGINT) }, 0);
        let code = self.child.wait().unwrap();
        assert!(code.success(), "a fast shutdown: {code}");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        self.child.wait().unwrap();
    }
}

/// Numbers that clients were told, and whether they are to end.
struct Load {
    told: [AtomicU64; 3],
    is_over: AtomicBool,
}

impl Load {
    fn sum(&self) -> u64 {
        self.told.iter().map(|told| told.load(SeqCst)).sum()
    }
}

/// The rows of a client: none is missing, and the last is the last that it was told, or one more.
fn verify(session: &mut Session, client: usize, told: &AtomicU64) -> std::io::Result<()> {
    let rows = "select count(*), coalesce(max(n), 0), coalesce(sum(length(pad) - n % 7 * 200), 0)";
    let rows = session.numbers(&format!("{rows} from t where client = {client}"))?;
    let [count, last, differs] = rows[..] else { panic!("{rows:?}") };
    let before = told.load(SeqCst);
    let fine = count == last && differs == 0 && (before..=before + 1).contains(&last);
    assert!(fine, "client {client}: {before} commits were told of, {rows:?}");
    told.store(last, SeqCst);
    Ok(())
}

/// Commits one row after the other, in another session whenever one is lost.
fn client(site: &Site, load: &Load, client: usize) {
    let told = &load.told[client];
    while !load.is_over.load(SeqCst) {
        let Ok(mut session) = site.connect() else {
            std::thread::sleep(Duration::from_millis(5));
            continue;
        };
        if verify(&mut session, client, told).is_err() {
            continue;
        }
        loop {
            let next = told.load(SeqCst) + 1;
            let pad = next % 7 * 200;
            let insert = format!("insert into t values({client}, {next}, repeat('x', {pad}))");
            if session.ask(&insert).is_err() {
                break;
            }
            told.store(next, SeqCst);
        }
    }
}

/// One round: a server that recovers, is checked, has clients, and is killed amid their commits.
struct Round<'a> {
    site: &'a Site,
    root: &'a Path,
    number: u64,
    /// The directory of what a checkpoint synced, if that is all that survives the round.
    disk: Option<&'a Path>,
}

impl Round<'_> {
    fn start(&self, run: &Run) -> (Server, Session) {
        let method = METHODS[self.number as usize % METHODS.len()];
        // A copy of before a checkpoint needs what that makes superfluous.
        let kept = if self.disk.is_some() { KEPT } else { 0 };
        let how = if self.number.is_multiple_of(3) { "fsync" } else { "syncfs" };
        let archive = self.site.archive();
        let archive = archive.display();
        let settings = [
            format!("wal_sync_method={method}"),
            format!("wal_keep_size={kept}"),
            format!("recovery_init_sync_method={how}"),
            "archive_mode=on".to_owned(),
            // Children of the server read segments.
            format!("archive_command=cp %p {archive}/%f.new && mv {archive}/%f.new {archive}/%f"),
        ];
        let settings = settings.each_ref().map(String::as_str);
        let child = self.site.server(run, self.root, &settings).spawn().unwrap();
        let mut server = Server { child, _workers: Workers::new(self.root) };
        let session = self.site.wait(&mut server.child);
        let session = session.unwrap_or_else(|| panic!("it ended: {}", self.site.log()));
        (server, session)
    }

    fn verify(&self, session: &mut Session, load: &Load) {
        session
            .ask(
                "create table if not exists t(client int, n bigint, pad text, \
                 primary key(client, n))",
            )
            .unwrap();
        for (client, told) in load.told.iter().enumerate() {
            verify(session, client, told).unwrap();
        }
        self.site.check();
    }

    /// Commits, while segments are ended and recycled, and a process of the server is killed.
    fn load(&self, session: &mut Session, load: &Load, rng: &mut Rng, is_over: &dyn Fn() -> bool) {
        let wanted = load.sum() + 200 + rng.below(600);
        let mut is_killed = !self.number.is_multiple_of(4);
        let mut ended = 0;
        let mut last = (load.sum(), Instant::now());
        // A client ends early if it has found what must not be.
        while load.sum() < wanted && !is_over() {
            if load.sum() > last.0 {
                last = (load.sum(), Instant::now());
            }
            if last.1.elapsed() > PATIENCE {
                // The clients end, and the scope with them.
                load.is_over.store(true, SeqCst);
                panic!("no commit for {PATIENCE:?}:\n{}", self.site.log());
            }
            if session.is_lost {
                // It goes on by itself, and takes sessions again.
                match self.site.connect() {
                    Ok(again) => *session = again,
                    Err(_) => std::thread::sleep(Duration::from_millis(5)),
                }
                continue;
            }
            // The disk of before needs all segments since: no more of them than are kept.
            if self.disk.is_none() {
                let _ = session.ask("checkpoint");
            }
            if self.disk.is_none() || ended < KEPT / 2 {
                let _ = session.ask("select pg_switch_wal()");
                ended += 1;
            }
            if !is_killed && load.sum() + 150 > wanted {
                is_killed = self.kill_a_client(session);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Kills the process of one of the clients; the server ends all others, and recovers.
    fn kill_a_client(&self, session: &mut Session) -> bool {
        let other = "select pid from pg_stat_activity where backend_type = 'client backend' and \
                     pid <> pg_backend_pid() limit 1";
        let Ok(process) = session.ask(other).map(|process| process.parse::<i32>()) else {
            return false;
        };
        let Ok(process) = process else { return false };
        // SAFETY: the server has just told of it, and reaps it itself; no memory is touched.
        unsafe { libc::kill(process, libc::SIGKILL) == 0 }
    }
}

fn directory() -> PathBuf {
    let home = std::env::temp_dir().join(format!("gabion-postgresql-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&home);
    std::fs::create_dir_all(home.join("root")).unwrap();
    home
}

/// docs/faults.md: N13
#[test]
#[ignore = "needs postgresql: cargo xtask ncl"]
fn postgresql_loses_no_commit_when_killed_amid_recycled_segments_and_lost_disks() {
    let home = directory();
    let (mut root, disk) = (home.join("root"), home.join("disk"));
    let mut run = Run::start(&home, &root, GLOBS, false);
    let site = Site::new(&home);
    site.initdb(&run, &root);
    let mut rng = Rng::new(13);
    let told = [const { AtomicU64::new(0) }; 3];
    let mut load = Load { told, is_over: AtomicBool::new(false) };
    for number in 0..=rounds() {
        let lost = !number.is_multiple_of(2);
        let round = Round { site: &site, root: &root, number, disk: lost.then_some(&disk) };
        let (mut server, mut session) = round.start(&run);
        round.verify(&mut session, &load);
        if number == rounds() {
            break;
        }
        if lost {
            Site::copy_synced(&mut session, &root, &disk);
        }
        *load.is_over.get_mut() = false;
        std::thread::scope(|scope| {
            let (site, load) = (&site, &load);
            let clients = [0, 1, 2].map(|number| scope.spawn(move || client(site, load, number)));
            let is_over = || clients.iter().any(ScopedJoinHandle::is_finished);
            round.load(&mut session, load, &mut rng, &is_over);
            load.is_over.store(true, SeqCst);
            // In other rounds a process of its own may just have died, which fails a shutdown.
            if number % 4 == 2 {
                server.stop();
            }
            drop(server);
        });
        if lost {
            std::fs::remove_dir_all(&root).unwrap();
            std::fs::rename(&disk, &root).unwrap();
        }
        run = moved(run, &home, &mut root, GLOBS, number);
    }
    run.stop();
    let archived: Vec<PathBuf> =
        std::fs::read_dir(site.archive()).unwrap().map(|entry| entry.unwrap().path()).collect();
    for path in archived.iter().filter(|path| path.extension().is_none()) {
        assert_eq!(path.metadata().unwrap().len(), SEGMENT, "{}", path.display());
    }
    let (commits, archived) = (load.sum(), archived.len());
    eprintln!("postgresql: {commits} commits, {archived} segments archived, {} ends", rounds());
    assert!(archived as u64 > rounds(), "each round ends some segments");
    std::fs::remove_dir_all(home).unwrap();
}

//! PostgreSQL: any of its processes ends at a call, and with it the server.

use super::postgresql_site::{GLOBS, Site, Workers};
use super::{Client, House, Kind, Program, common};
use std::path::Path;

pub(super) struct Postgres;

/// After every other point nothing survives but what a checkpoint synced before the load.
fn loses_disk(point: u64) -> bool {
    !point.is_multiple_of(2)
}

impl Kind for Postgres {
    const NAME: &'static str = "postgres";
    const GLOBS: &'static str = GLOBS;
    const WRITES: u64 = 30;

    fn start(house: &House, point: u64, end_at: Option<&str>) -> Option<Program> {
        let site = Site::new(&house.home);
        let (run, root) = (&house.owner.as_ref().unwrap().0, &house.root);
        if !root.join("PG_VERSION").exists() {
            site.initdb(run, root);
        }
        let method = ["fdatasync", "open_datasync"][usize::from(point % 4 > 1)];
        let kept = if loses_disk(point) { 64 } else { 0 };
        let (method, kept) = (format!("wal_sync_method={method}"), format!("wal_keep_size={kept}"));
        // By default a start syncs file by file, and most points would lie there.
        let how = "recovery_init_sync_method=syncfs";
        let settings = [&method, &kept, how, "restart_after_crash=off"];
        let mut command = site.server(run, root, &settings);
        command.envs(end_at.map(|at| ("GABION_NCL_END_AT", at)));
        let mut child = command.spawn().unwrap();
        let workers = Workers::new(root);
        let session = site.wait(&mut child);
        if session.is_none() {
            child.wait().unwrap();
        }
        let mut program = Program { child, client: Client::Postgres(session?, workers) };
        program.ask("create table if not exists t(a bigint primary key, b text)")?;
        Some(program)
    }

    fn write(program: &mut Program, number: u64) -> Option<()> {
        match number % 12 {
            0 => drop(program.ask("checkpoint")?),
            6 => drop(program.ask("select pg_switch_wal()")?),
            _ => {}
        }
        let len = number % 7 * 300;
        program.ask(&format!("insert into t values({number}, repeat('x', {len}))")).map(drop)
    }

    fn check(house: &House, point: u64) -> u64 {
        let site = Site::new(&house.home);
        let mut program = Self::start(house, point, None);
        let program = program.as_mut().unwrap_or_else(|| panic!("it ended: {}", site.log()));
        site.check();
        let Client::Postgres(session, _) = &mut program.client else { unreachable!("a session") };
        let found = "select count(*), coalesce(max(a), 0), count(*) filter \
                     (where length(b) <> a % 7 * 300) from t";
        let found = session.numbers(found).unwrap();
        let [count, last, differs] = found[..] else { panic!("{found:?}") };
        assert!(count == last && differs == 0, "rows, the last of them, and those that differ");
        if loses_disk(point) {
            Site::copy_synced(session, &house.root, &house.home.join("disk"));
        }
        last
    }

    fn survive(house: &House, point: u64, next: &Path) {
        let disk = house.home.join("disk");
        // The first point has no checkpoint before it.
        let lost = loses_disk(point) && disk.exists();
        common::copy_plain(if lost { &disk } else { &house.root }, next);
    }
}

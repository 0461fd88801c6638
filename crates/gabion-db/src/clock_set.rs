//! Stores while the system's clock is set, between two openings and while they are open.

use crate::{Db, Expiry, Options};
use gabion_host::clock::{Clock, JUMP_MS_MAX};
use std::path::PathBuf;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const HOUR_MS: i64 = 3_600_000;
const TEN_YEARS_MS: i64 = 10 * 365 * 24 * HOUR_MS;
const A_MOMENT: Duration = Duration::from_millis(100);

/// A directory for a store, gone with it.
struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Self {
        let name = format!("gabion-db-clock-{name}-{}", std::process::id());
        let dir = Self(std::env::temp_dir().join(name));
        let _ = std::fs::remove_dir_all(&dir.0);
        Db::create(&dir.0, &Options::small()).unwrap();
        dir
    }

    fn open(&self, clock: fn() -> u64) -> Db {
        Db::open_at(&self.0, &Options::small(), Clock::of(clock)).unwrap()
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn system_us() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros() as u64
}

fn moved_us(by_ms: i64) -> u64 {
    system_us().saturating_add_signed(by_ms * 1_000)
}

fn an_hour_behind_us() -> u64 {
    moved_us(-HOUR_MS)
}

fn ten_years_ahead_us() -> u64 {
    moved_us(TEN_YEARS_MS)
}

fn wait_until_gone(db: &Db, key: &[u8]) {
    while db.get(key).unwrap().is_some() {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A life of a moment lasts a moment, and a time of day comes when the system's clock, `clock`,
/// shows it.
fn check_lives(db: &Db, clock: fn() -> u64) {
    db.put_expiring(b"moment", b"1", Expiry::In(A_MOMENT)).unwrap();
    let soon_ms = clock() / 1_000 + 10_000;
    db.put_expiring(b"soon", b"1", Expiry::AtMs(soon_ms)).unwrap();
    let shown_ms = db.expires_at(b"soon").unwrap().unwrap();
    assert!(shown_ms.abs_diff(soon_ms) < 1_000, "{shown_ms} in place of {soon_ms}");
    let mut cursor = db.cursor(&b"soon"[..]..);
    cursor.next().unwrap();
    let shown_ms = cursor.expires_at().unwrap();
    assert!(shown_ms.abs_diff(soon_ms) < 1_000, "{shown_ms} in place of {soon_ms}");
    wait_until_gone(db, b"moment");
    // Before the group's time, and also before the group's first one.
    for past_ms in [clock() / 1_000 - 1, 1] {
        db.put_expiring(b"past", b"1", Expiry::AtMs(past_ms)).unwrap();
        assert_eq!(db.get(b"past").unwrap(), None);
    }
    db.put_expiring(b"now", b"1", Expiry::AtMs(clock() / 1_000 + 100)).unwrap();
    wait_until_gone(db, b"now");
    assert!(db.get(b"soon").unwrap().is_some());
}

#[test]
fn a_clock_that_was_set_back_between_two_openings_keeps_no_key_alive_and_kills_none() {
    let dir = Dir::new("back");
    let db = dir.open(system_us);
    db.put_expiring(b"old", b"1", Expiry::In(Duration::from_secs(60))).unwrap();
    drop(db);
    let db = dir.open(an_hour_behind_us);
    let said = db.take_notices();
    assert!(said.iter().any(|said| said.contains("behind the store's last write")), "{said:?}");
    check_lives(&db, an_hour_behind_us);
    let left_ms = db.expires_at(b"old").unwrap().unwrap() - an_hour_behind_us() / 1_000;
    assert!(left_ms <= 60_000, "{left_ms} ms of a life of a minute are left");
}

#[test]
fn one_start_ten_years_ahead_ends_no_life_and_stops_no_clock() {
    let dir = Dir::new("ahead");
    let db = dir.open(system_us);
    db.put_expiring(b"old", b"1", Expiry::In(Duration::from_secs(3_600))).unwrap();
    drop(db);
    let db = dir.open(ten_years_ahead_us);
    let said = db.take_notices();
    assert!(said.iter().any(|said| said.contains("over the limit of 366 days")), "{said:?}");
    check_lives(&db, ten_years_ahead_us);
    assert!(db.get(b"old").unwrap().is_some());
    let time = db.time();
    assert!(time.system_ms - time.now_ms > JUMP_MS_MAX);
    drop(db);
    let db = dir.open(system_us);
    assert_eq!(db.take_notices(), [""; 0]);
    check_lives(&db, system_us);
    assert!(db.get(b"old").unwrap().is_some());
}

#[test]
fn ten_years_that_somebody_says_have_passed_have_passed_and_go_on_from_there() {
    let dir = Dir::new("adopted");
    let db = dir.open(system_us);
    db.put_expiring(b"old", b"1", Expiry::In(Duration::from_secs(3_600))).unwrap();
    drop(db);
    let db = dir.open(ten_years_ahead_us);
    assert!(db.adopt_system_time() > JUMP_MS_MAX);
    assert_eq!(db.get(b"old").unwrap(), None);
    assert_eq!(db.adopt_system_time(), 0, "once");
    check_lives(&db, ten_years_ahead_us);
    drop(db);
    // It was wrong all the same: time goes on, ten years ahead, and lives keep their length.
    let db = dir.open(system_us);
    check_lives(&db, system_us);
    assert_eq!(db.adopt_system_time(), 0, "time does not go back");
}

static SET_BY_MS: AtomicI64 = AtomicI64::new(0);

fn set_us() -> u64 {
    moved_us(SET_BY_MS.load(Ordering::Relaxed))
}

#[test]
fn a_clock_that_is_set_while_a_store_is_open_moves_times_of_day_alone() {
    let dir = Dir::new("while-open");
    let db = dir.open(set_us);
    let in_an_hour_ms = set_us() / 1_000 + 3_600_000;
    db.put_expiring(b"old", b"1", Expiry::AtMs(in_an_hour_ms)).unwrap();
    for by_ms in [TEN_YEARS_MS, -HOUR_MS, 0] {
        SET_BY_MS.store(by_ms, Ordering::Relaxed);
        check_lives(&db, set_us);
        let left_ms = db.expires_at(b"old").unwrap().unwrap() - set_us() / 1_000;
        assert!((1..=3_600_000).contains(&left_ms), "{left_ms} ms are left of an hour");
    }
}

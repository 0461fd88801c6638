//! etcd is killed, stands still, or loses its leader.

use crate::process::Etcd;
use crate::watches::Mirror;
use crate::{LONG, Tally, lead};
use gabion_base::ErrorKind;
use gabion_control::store::{Store, Swapped, Version};
use gabion_etcd::{LEASE, Led};
use rustix::process::Signal;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A thread that adds to a counter until it is told to stop.
struct Adder {
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<Tally>,
}

impl Adder {
    fn start(etcd: &Etcd) -> Self {
        let (mut store, is_over) = (etcd.open("t"), Arc::new(AtomicBool::new(false)));
        let told = is_over.clone();
        let thread = std::thread::spawn(move || {
            let mut tally = Tally::default();
            while !told.load(Ordering::Relaxed) {
                tally.add(&mut store, "counter");
            }
            tally
        });
        Self { is_over, thread }
    }

    fn end(self) -> Tally {
        self.is_over.store(true, Ordering::Relaxed);
        self.thread.join().expect("no addition failed in another way")
    }
}

/// docs/faults.md: R9
#[test]
#[ignore = "needs etcd: cargo xtask etcd"]
fn no_addition_is_lost_or_made_twice_while_etcd_is_killed_and_restarted() {
    adds_while_etcd_is_killed(Etcd::start("killed", 1));
}

/// docs/faults.md: R9
#[test]
#[ignore = "needs etcd: cargo xtask etcd"]
fn no_addition_is_lost_or_made_twice_over_tls_while_etcd_is_killed_and_restarted() {
    adds_while_etcd_is_killed(Etcd::start_tls("killed-tls", 1));
}

fn adds_while_etcd_is_killed(mut etcd: Etcd) {
    let mut store = etcd.open("t");
    let mut mirror = Mirror::new(&store);
    let adders = [Adder::start(&etcd), Adder::start(&etcd)];
    for round in 0..4_u64 {
        std::thread::sleep(Duration::from_millis(400 + 130 * round));
        etcd.kill(0);
        std::thread::sleep(Duration::from_millis(200 * round));
        etcd.restart(0);
        etcd.open("t");
    }
    std::thread::sleep(Duration::from_millis(500));
    let tallies = adders.map(Adder::end);
    let sum = |of: fn(&Tally) -> u64| tallies.iter().map(of).sum();
    let tally =
        Tally { stored: sum(|it| it.stored), unknown: sum(|it| it.unknown), ..Tally::default() };
    println!("{tallies:?}");
    assert!(tally.stored > 10, "{tallies:?}");
    tally.check(&mut store, "counter");
    mirror.catch_up(&mut store);
}

/// docs/faults.md: R9
#[test]
#[ignore = "needs etcd: cargo xtask etcd"]
fn a_leader_fences_itself_while_etcd_stands_still_for_longer_than_its_lease() {
    let etcd = Etcd::start("still", 1);
    let (mut a, mut b) = (etcd.open("t"), etcd.open("t"));
    let leadership = lead(&mut a, "a");
    let Swapped::Stored(version) = a.swap("x", Version::NONE, b"a").unwrap() else {
        panic!("x is new");
    };
    etcd.signal(0, Signal::STOP);
    let begun = Instant::now();
    let lost = leadership.lost(LONG).expect("it is told");
    let after = begun.elapsed();
    assert_eq!(lost.kind(), ErrorKind::Fenced, "{lost}");
    assert!(after <= LEASE + Duration::from_millis(500), "told after {after:?}");
    let refused = a.swap("x", version, b"again").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Fenced, "{refused}");
    etcd.signal(0, Signal::CONT);
    let Led::Leads(_leadership) = b.lead("b", LONG).unwrap() else { panic!("a leads no more") };
    assert_eq!(b.get("x").unwrap().unwrap().version, version);
    assert!(matches!(b.swap("x", version, b"b").unwrap(), Swapped::Stored(_)));
    // The one before may lead again, and not by what it knew.
    b.resign();
    let _leadership = lead(&mut a, "a");
    assert!(matches!(a.swap("x", version, b"a").unwrap(), Swapped::Lost(Some(_))));
}

/// docs/faults.md: R9
#[test]
#[ignore = "needs etcd: cargo xtask etcd"]
fn three_members_whose_leader_is_killed_or_stands_still_go_on_within_seconds() {
    let mut etcd = Etcd::start("three", 3);
    let mut store = etcd.open("t");
    let mut mirror = Mirror::new(&store);
    let mut leads = etcd.open("t");
    let mut tally = Tally::default();
    for (fault, is_kill) in [("killed", true), ("stopped", false), ("killed", true)] {
        let leadership = lead(&mut leads, "me");
        tally.add(&mut leads, "counter");
        let victim = etcd.leader();
        if is_kill {
            etcd.kill(victim);
        } else {
            etcd.signal(victim, Signal::STOP);
        }
        let (begun, before) = (Instant::now(), tally.stored);
        let mut lost = None;
        while tally.stored == before && lost.is_none() {
            assert!(begun.elapsed() < LONG, "{fault}: {tally:?}");
            lost = leadership.lost(Duration::ZERO);
            if lost.is_none() {
                add_as_leader(&mut tally, &mut leads);
            }
        }
        println!("{fault}: {lost:?} after {:?}, {tally:?}", begun.elapsed());
        assert!(begun.elapsed() < Duration::from_secs(8), "{fault}: {:?}", begun.elapsed());
        // Whether or not the lease was kept: another one leads as soon as this one has given up.
        leads.resign();
        let mut next = etcd.open("t");
        assert!(matches!(next.lead("next", LONG).unwrap(), Led::Leads(_)), "{fault}");
        tally.add(&mut next, "counter");
        drop(next);
        if is_kill {
            etcd.restart(victim);
        } else {
            etcd.signal(victim, Signal::CONT);
        }
        mirror.catch_up(&mut store);
        std::thread::sleep(Duration::from_secs(1));
    }
    tally.check(&mut store, "counter");
}

/// An addition by a handle that may be fenced meanwhile.
fn add_as_leader(tally: &mut Tally, store: &mut gabion_etcd::EtcdStore) {
    let Ok((version, number)) = crate::count(store, "counter") else { return };
    match store.swap("counter", version, &(number + 1).to_le_bytes()) {
        Ok(Swapped::Stored(_)) => tally.stored += 1,
        Ok(Swapped::Lost(_)) => panic!("only the leader adds"),
        // A refusal after an attempt without an answer leaves that open.
        Err(_) => tally.unknown += 1,
    }
}

//! Several handles, of which one leads.

use crate::process::{Etcd, signal_to};
use crate::{LONG, lead};
use gabion_base::ErrorKind;
use gabion_control::store::{Store, Swapped, Version};
use gabion_etcd::{EtcdStore, EtcdUrl, LEASE, Led};
use rustix::process::Signal;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Time that etcd takes beyond a lease to end it, and a watch to tell.
const LATE: Duration = Duration::from_millis(1_500);

fn version_of(store: &mut EtcdStore, name: &str) -> Version {
    store.get(name).expect("etcd answers").map_or(Version::NONE, |found| found.version)
}

/// docs/faults.md: R9
#[test]
#[ignore = "needs etcd: cargo xtask etcd"]
fn one_handle_leads_and_the_next_one_as_soon_as_it_gives_the_lead_up() {
    let etcd = Etcd::start("resign", 1);
    let (mut a, mut b) = (etcd.open("t"), etcd.open("t"));
    let leadership = lead(&mut a, "a");
    let Led::Other(who) = b.lead("b", Duration::from_millis(200)).unwrap() else {
        panic!("a leads");
    };
    assert_eq!(who, "a");
    assert!(matches!(a.swap("x", Version::NONE, b"a").unwrap(), Swapped::Stored(_)));
    std::thread::sleep(LEASE + LATE);
    assert!(leadership.lost(Duration::ZERO).is_none(), "its lease is confirmed all the time");
    let begun = Instant::now();
    let waits = std::thread::spawn(move || {
        let led = b.lead("b", LONG).unwrap();
        (matches!(led, Led::Leads(_)), begun.elapsed(), b)
    });
    std::thread::sleep(Duration::from_millis(500));
    leadership.give_up();
    assert!(leadership.lost(Duration::ZERO).is_some());
    assert_eq!(a.swap("x", Version::NONE, b"a").unwrap_err().kind(), ErrorKind::Fenced);
    let (leads, after, mut b) = waits.join().unwrap();
    assert!(leads && after < LEASE, "after {after:?}");
    let version = version_of(&mut b, "x");
    assert!(matches!(b.swap("x", version, b"b").unwrap(), Swapped::Stored(_)));
}

/// docs/faults.md: R9
#[test]
#[ignore = "needs etcd: cargo xtask etcd"]
fn of_many_handles_that_ask_at_once_one_leads() {
    let etcd = Etcd::start("race", 1);
    for round in 0..5 {
        let prefix = format!("t{round}");
        let handles: Vec<_> = (0..6)
            .map(|n| {
                let mut store = etcd.open(&prefix);
                std::thread::spawn(move || {
                    let led = store.lead(&format!("h{n}"), Duration::ZERO).unwrap();
                    (matches!(led, Led::Leads(_)), store)
                })
            })
            .collect();
        // All stay open until the last one has asked.
        let led: Vec<_> = handles.into_iter().map(|handle| handle.join().unwrap()).collect();
        assert_eq!(led.iter().filter(|(leads, _)| *leads).count(), 1, "round {round}");
    }
}

/// The process of the next test that leads, and is stopped: says what becomes of its swaps.
fn lead_and_swap(url: &str) {
    let url = EtcdUrl::parse(url).expect("a URL of etcd");
    let mut store = EtcdStore::open(&url, None).expect("etcd answers");
    let _leadership = lead(&mut store, "stopped");
    let mut version = Version::NONE;
    loop {
        match store.swap("x", version, b"stopped") {
            Ok(Swapped::Stored(stored)) => {
                version = stored;
                println!("\nstored");
            }
            Ok(Swapped::Lost(_)) => println!("\nlost"),
            Err(error) => {
                println!("\n{}", error.kind().as_str());
                return;
            }
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// docs/faults.md: R9
#[test]
#[ignore = "needs etcd: cargo xtask etcd"]
fn a_leader_that_stands_still_for_longer_than_its_lease_writes_nothing_afterwards() {
    const URL: &str = "GABION_ETCD_TEST_URL";
    if let Ok(url) = std::env::var(URL) {
        return lead_and_swap(&url);
    }
    let etcd = Etcd::start("stopped-leader", 1);
    let mut next = etcd.open("t");
    let name = std::thread::current().name().unwrap().to_owned();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &name, "--ignored", "--nocapture"])
        .env(URL, etcd.url("t").to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert!(said.by_ref().take(200).filter(|line| line == "stored").take(5).count() == 5);
    signal_to(&child, Signal::STOP);
    let begun = Instant::now();
    let Led::Leads(_leadership) = next.lead("next", LONG).unwrap() else {
        panic!("the stopped one still leads");
    };
    let after = begun.elapsed();
    assert!(after < LEASE + LATE, "the next one leads after {after:?}");
    // The value of the stopped one is not touched: its next swap would fit.
    signal_to(&child, Signal::CONT);
    let rest: Vec<String> = said.collect();
    child.wait().unwrap();
    let fenced = ErrorKind::Fenced.as_str();
    assert!(rest.iter().any(|line| line == fenced), "{rest:?}");
    // One may have been carried out before it was stopped.
    let stored = rest.iter().take_while(|line| *line != fenced).filter(|it| *it == "stored");
    assert!(stored.count() <= 1, "{rest:?}");
    assert!(!rest.iter().any(|line| line == "lost"), "{rest:?}");
}

/// docs/faults.md: R9
#[test]
#[ignore = "needs etcd: cargo xtask etcd"]
fn a_leader_whose_lease_ended_in_etcd_is_told_and_its_swaps_are_refused() {
    let etcd = Etcd::start("revoked", 1);
    let mut a = etcd.open("t");
    let leadership = lead(&mut a, "a");
    // An operator removes the key: the lease lives, and the lead is gone.
    let key = "{\"key\":\"dC9sZWFkZXI=\"}";
    etcd.ask(0, "/v3/kv/deleterange", key);
    let mut b = etcd.open("t");
    let _other = lead(&mut b, "b");
    let error = a.swap("x", Version::NONE, b"a").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Fenced, "{error}");
    assert!(error.to_string().contains("b leads"), "{error}");
    assert!(leadership.lost(Duration::ZERO).is_some(), "it is told as well");
    assert_eq!(a.get("x").unwrap(), None);
    assert!(matches!(b.swap("x", Version::NONE, b"b").unwrap(), Swapped::Stored(_)));
}

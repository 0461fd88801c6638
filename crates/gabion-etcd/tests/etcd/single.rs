//! One member that nothing happens to.

use crate::process::Etcd;
use crate::{Tally, lead};
use gabion_control::store::{Store, Swapped, Version, contract};
use gabion_etcd::{EtcdStore, VALUE_LEN_MAX};

#[test]
#[ignore = "needs etcd: cargo xtask etcd"]
fn the_store_keeps_the_contract_whether_it_leads_or_not() {
    for etcd in [Etcd::start("contract", 1), Etcd::start_tls("contract-tls", 1)] {
        contract(&mut etcd.open("plain"));
        let mut store = etcd.open("leads");
        let _leadership = lead(&mut store, "me");
        contract(&mut store);
        // Neither prefix has anything of the other's.
        assert_eq!(etcd.open("plain").list("").unwrap().len(), 2);
        assert_eq!(etcd.open("pla").list("").unwrap(), []);
    }
}

#[test]
#[ignore = "needs etcd: cargo xtask etcd"]
fn values_of_any_length_up_to_the_limit_are_kept_and_listed_in_pages() {
    keeps_all_lengths(&mut Etcd::start("lengths", 1).open("t"), VALUE_LEN_MAX);
    // Without optimisation a page of the longest values takes longer to decrypt than one endpoint
    // may take.
    let etcd = Etcd::start_tls("lengths-tls", 1);
    keeps_all_lengths(&mut etcd.open("t"), VALUE_LEN_MAX / 8);
    let longest = vec![7; VALUE_LEN_MAX];
    let mut store = etcd.open("longest");
    assert!(matches!(store.swap("x", Version::NONE, &longest), Ok(Swapped::Stored(_))));
    assert!(store.get("x").is_ok_and(|found| found.is_some_and(|it| it.value == longest)));
}

fn keeps_all_lengths(store: &mut EtcdStore, len_max: usize) {
    let mut stored = Vec::new();
    for n in 0..40_usize {
        let len = if n % 2 == 0 { len_max } else { n };
        let value: Vec<u8> = (0..len).map(|at| (at * 31 + n) as u8).collect();
        let name = format!("values/{n:02}/ü");
        let Swapped::Stored(version) = store.swap(&name, Version::NONE, &value).expect("stored")
        else {
            panic!("{name} is new");
        };
        stored.push((name, version, value));
    }
    let listed = store.list("values/").expect("listed");
    let listed: Vec<_> =
        listed.into_iter().map(|(name, found)| (name, found.version, found.value)).collect();
    assert!(listed == stored, "{} of {} are listed as stored", listed.len(), stored.len());
}

#[test]
#[ignore = "needs etcd: cargo xtask etcd"]
fn handles_that_add_to_one_counter_lose_no_addition() {
    let etcd = Etcd::start("counter", 1);
    let mut threads = Vec::new();
    for _ in 0..4 {
        let mut store = etcd.open("t");
        threads.push(std::thread::spawn(move || {
            let mut tally = Tally::default();
            while tally.stored < 50 {
                tally.add(&mut store, "counter");
            }
            tally
        }));
    }
    let tallies = threads.into_iter().map(|thread| thread.join().unwrap());
    let (mut stored, mut lost) = (0, 0);
    for tally in tallies {
        assert_eq!((tally.unknown, tally.unavailable), (0, 0), "nothing failed");
        (stored, lost) = (stored + tally.stored, lost + tally.lost);
    }
    assert!(lost > 0, "they met");
    Tally { stored, ..Tally::default() }.check(&mut etcd.open("t"), "counter");
}

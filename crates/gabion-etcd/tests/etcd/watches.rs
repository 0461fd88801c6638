//! A user of a watch that knows what the store has.

use crate::LONG;
use crate::process::Etcd;
use gabion_control::store::{Store, Swapped, Version, Versioned};
use gabion_etcd::{Change, EtcdStore, Watch};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Longer than a stream of a watch lasts.
const STREAM: Duration = Duration::from_secs(4);

/// Sum of the changes of a watch.
pub(crate) struct Mirror {
    watch: Watch,
    names: BTreeMap<String, Versioned>,
    pub(crate) readings: usize,
}

impl Mirror {
    pub(crate) fn new(store: &EtcdStore) -> Self {
        let watch = store.watch("").expect("a thread starts");
        Self { watch, names: BTreeMap::new(), readings: 0 }
    }

    fn take(&mut self, wait: Duration) -> bool {
        match self.watch.next(wait) {
            None => return false,
            Some(Change::Present(all)) => {
                self.names = all.into_iter().collect();
                self.readings += 1;
            }
            Some(Change::Put(name, value)) => {
                let before = self.names.insert(name, value.clone());
                assert!(before.is_none_or(|it| it.version < value.version), "it goes forward");
            }
            Some(Change::Gone(name)) => drop(self.names.remove(&name)),
            Some(Change::Unheard(error)) => println!("unheard: {error}"),
        }
        true
    }

    /// Waits until the changes add up to what the store has. Nobody else writes now.
    pub(crate) fn catch_up(&mut self, store: &mut EtcdStore) {
        let begun = Instant::now();
        while self.readings == 0 {
            assert!(begun.elapsed() < LONG, "names are read first");
            self.take(Duration::from_millis(100));
        }
        let all: BTreeMap<String, Versioned> =
            store.list("").expect("etcd answers").into_iter().collect();
        while self.names != all {
            assert!(
                begun.elapsed() < LONG,
                "{} names, the store has {}",
                self.names.len(),
                all.len()
            );
            self.take(Duration::from_millis(100));
        }
    }
}

/// docs/faults.md: R9
#[test]
#[ignore = "needs etcd: cargo xtask etcd"]
fn changes_come_as_they_are_made_also_after_a_quiet_time() {
    let etcd = Etcd::start("changes", 1);
    let mut store = etcd.open("t");
    let mut mirror = Mirror::new(&store);
    let mut version = Version::NONE;
    mirror.catch_up(&mut store);
    for pause in [0, 0, 4_000, 0] {
        std::thread::sleep(Duration::from_millis(pause));
        let Swapped::Stored(stored) = store.swap("a", version, b"x").unwrap() else {
            panic!("nobody else writes");
        };
        version = stored;
        let begun = Instant::now();
        mirror.catch_up(&mut store);
        assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
    }
    // A key that an operator removes: "t/values/a".
    etcd.ask(0, "/v3/kv/deleterange", "{\"key\":\"dC92YWx1ZXMvYQ==\"}");
    mirror.catch_up(&mut store);
    assert!(mirror.names.is_empty());
    assert_eq!(mirror.readings, 1, "nothing was missed, so nothing was read again");
}

/// docs/faults.md: R9
#[test]
#[ignore = "needs etcd: cargo xtask etcd"]
fn a_watch_that_fell_behind_a_compaction_reads_the_present_and_misses_nothing() {
    const NAMES: usize = 50;
    let etcd = Etcd::start("compacted", 1);
    let mut store = etcd.open("t");
    let mut mirror = Mirror::new(&store);
    mirror.catch_up(&mut store);
    let mut versions = [Version::NONE; NAMES];
    let value = vec![7; 256 << 10];
    for n in 0..200 {
        let name = format!("n{}", n % NAMES);
        let Swapped::Stored(version) = store.swap(&name, versions[n % NAMES], &value).unwrap()
        else {
            panic!("nobody else writes");
        };
        versions[n % NAMES] = version;
    }
    // The user sleeps until the stream is over, as what channels, sockets and etcd keep for it may
    // be all of these. The next stream begins behind what it took: there is the compaction.
    std::thread::sleep(STREAM);
    etcd.compact(versions[NAMES - 1].0);
    mirror.catch_up(&mut store);
    assert!(mirror.readings > 1, "the compaction was met");
    // It goes on as before.
    assert!(matches!(store.swap("last", Version::NONE, b"").unwrap(), Swapped::Stored(_)));
    mirror.catch_up(&mut store);
}

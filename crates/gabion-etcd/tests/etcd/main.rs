//! The store on a real etcd, which these tests start, stop, kill and freeze: `cargo xtask etcd`
//! builds one and runs them.
#![allow(
    clippy::disallowed_methods,
    reason = "tests of a shell crate: processes, clocks and threads are its subject"
)]
#![allow(
    clippy::print_stdout,
    reason = "how long each fault took; one test's process is its child"
)]

mod faults;
mod leaders;
mod process;
mod single;
mod tls;
mod watches;

use gabion_base::ErrorKind;
use gabion_control::store::{Store, Swapped, Version};
use gabion_etcd::{EtcdStore, Leadership, Led};
use std::time::Duration;

/// Longer than anything takes that ends.
const LONG: Duration = Duration::from_secs(30);

/// Has a handle lead that need not wait for another one.
fn lead(store: &mut EtcdStore, who: &str) -> Leadership {
    match store.lead(who, Duration::ZERO).expect("etcd answers") {
        Led::Leads(leadership) => leadership,
        Led::Other(other) => panic!("{other} leads, {who} does not"),
    }
}

/// Outcomes of many additions to one counter.
#[derive(Debug, Default, Clone, Copy)]
struct Tally {
    stored: u64,
    lost: u64,
    unknown: u64,
    unavailable: u64,
}

/// The counter of a name and its version.
fn count(store: &mut EtcdStore, name: &str) -> gabion_base::Result<(Version, u64)> {
    let found = store.get(name)?;
    let read = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("a counter"));
    Ok(found.map_or((Version::NONE, 0), |found| (found.version, read(&found.value))))
}

impl Tally {
    /// Adds one, or finds that it cannot.
    fn add(&mut self, store: &mut EtcdStore, name: &str) {
        let (version, number) = match count(store, name) {
            Ok(found) => found,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
                self.unavailable += 1;
                return;
            }
        };
        match store.swap(name, version, &(number + 1).to_le_bytes()) {
            Ok(Swapped::Stored(stored)) => {
                assert!(stored > version, "versions grow");
                self.stored += 1;
            }
            Ok(Swapped::Lost(_)) => self.lost += 1,
            Err(error) if error.kind() == ErrorKind::Unknown => self.unknown += 1,
            Err(error) if error.kind() == ErrorKind::Unavailable => self.unavailable += 1,
            Err(error) => panic!("{error:?}"),
        }
    }

    /// Everything that was stored counts once, and what nobody knows of at most once.
    fn check(&self, store: &mut EtcdStore, name: &str) {
        let (_, number) = count(store, name).expect("etcd answers");
        let most = self.stored + self.unknown;
        assert!((self.stored..=most).contains(&number), "{number}, and {self:?}");
    }
}

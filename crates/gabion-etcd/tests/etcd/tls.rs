//! Connections that are encrypted, and ends that do not let each other in.

use crate::lead;
use crate::process::{Etcd, authority, issue, tls_of};
use gabion_base::ErrorKind;
use gabion_control::store::{Store, Swapped, Version};
use gabion_etcd::{EtcdStore, EtcdUrl};
use gabion_tls::ca::{Authority, Made};
use gabion_tls::{ClientTls, Role};
use std::path::Path;
use std::sync::Arc;

/// Why a store cannot be opened.
fn refusal(url: &EtcdUrl, tls: Option<&Arc<ClientTls>>) -> String {
    let Err(error) = EtcdStore::open(url, tls) else { panic!("{url} is open") };
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    error.to_string()
}

#[test]
#[ignore = "needs etcd: cargo xtask etcd"]
fn a_store_that_is_not_let_in_is_told_why_in_a_sentence() {
    let etcd = Etcd::start_tls("refused", 1);
    etcd.open("t");
    let (url, ca) = (etcd.url("t"), etcd.ca());
    let others = ca.with_file_name("others");
    let eve = issue(&authority(&others), Role::Client, "eve");
    let ann = issue(&Authority::open(&ca).unwrap(), Role::Client, "ann");
    let (own_ca, other_ca) = (ca.join("ca.pem"), others.join("ca.pem"));

    let said = refusal(&url, Some(&tls_of(&other_ca, Some(&ann))));
    assert!(said.contains("the certificate there is of no authority in"), "{said}");
    assert!(said.contains(&other_ca.display().to_string()), "{said}");
    let said = refusal(&url, Some(&tls_of(&own_ca, None)));
    assert!(said.contains("a certificate is wanted there, and none is configured"), "{said}");
    let said = refusal(&url, Some(&tls_of(&own_ca, Some(&eve))));
    assert!(said.contains("eve.pem is not taken there"), "{said}");
    // The same member by a name that is not in its certificate.
    let text = url.to_string();
    let elsewhere = EtcdUrl::parse(&text.replace("127.0.0.1", "localhost")).unwrap();
    let said = refusal(&elsewhere, Some(&tls_of(&own_ca, Some(&ann))));
    assert!(said.contains("is not for localhost, but for"), "{said}");
    let plain = EtcdUrl::parse(&text.replace("etcd+tls", "etcd")).unwrap();
    refusal(&plain, None);

    for (url, tls) in [(&url, None), (&plain, Some(tls_of(&own_ca, Some(&ann))))] {
        let Err(error) = EtcdStore::open(url, tls.as_ref()) else { panic!("{url} is open") };
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    }
}

#[test]
#[ignore = "needs etcd: cargo xtask etcd"]
fn a_plain_etcd_is_told_from_one_with_tls() {
    let etcd = Etcd::start("plain-for-tls", 1);
    etcd.open("t");
    let dir = etcd.ca();
    authority(&dir);
    let url = EtcdUrl::parse(&etcd.url("t").to_string().replace("etcd", "etcd+tls")).unwrap();
    let said = refusal(&url, Some(&tls_of(&dir.join("ca.pem"), None)));
    assert!(said.contains("closed the connection, as if it spoke none"), "{said}");
}

/// Puts an authority and a certificate in the place of others.
fn put(from: &Path, made: &Made, to: &Path) {
    std::fs::create_dir_all(to).expect("a directory");
    for (from, name) in
        [(&from.join("ca.pem"), "ca.pem"), (&made.certificate, "own.pem"), (&made.key, "own.key")]
    {
        let new = to.join("new");
        std::fs::copy(from, &new).expect("a copy");
        std::fs::rename(new, to.join(name)).expect("a file");
    }
}

#[test]
#[ignore = "needs etcd: cargo xtask etcd"]
fn a_handle_goes_on_with_renewed_files_after_etcd_has_another_authority() {
    let mut etcd = Etcd::start_tls("renewed", 1);
    etcd.open("t");
    let (url, ca) = (etcd.url("t"), etcd.ca());
    let own = ca.with_file_name("own");
    put(&ca, &issue(&Authority::open(&ca).unwrap(), Role::Client, "ann"), &own);
    let files = Made { certificate: own.join("own.pem"), key: own.join("own.key"), until_s: 0 };
    let tls = tls_of(&own.join("ca.pem"), Some(&files));
    let mut store = EtcdStore::open(&url, Some(&tls)).unwrap();
    let Swapped::Stored(version) = store.swap("x", Version::NONE, b"before").unwrap() else {
        panic!("x is new");
    };

    etcd.kill(0);
    let renewed = authority(&ca);
    issue(&renewed, Role::Node, "etcd");
    etcd.restart(0);
    let made = issue(&renewed, Role::Client, "ann");
    // The files of before are of no use any more.
    let error = store.get("x").unwrap_err().to_string();
    assert!(error.contains("no TLS") || error.contains("refused"), "{error}");
    put(&ca, &made, &own);
    let begun = std::time::Instant::now();
    while let Err(error) = store.get("x") {
        assert!(begun.elapsed() < crate::LONG, "{error}");
    }
    let _leadership = lead(&mut store, "me");
    assert!(matches!(store.swap("x", version, b"after").unwrap(), Swapped::Stored(_)));
}

use super::*;
use crate::{ClientCertificates, ServerFiles, ServerTls};
use std::fs;
use std::os::unix::fs::PermissionsExt;

/// A directory of its own for a test, removed with it.
pub(crate) struct Scratch(pub(crate) PathBuf);

impl Scratch {
    pub(crate) fn new() -> Self {
        let tag = u64::from_le_bytes(crate::random().unwrap());
        Self(std::env::temp_dir().join(format!("gabion-tls-{tag:016x}")))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A certificate that was valid until a while ago.
pub(crate) fn issue_expired(authority: &Authority, identity: &Identity) -> Made {
    authority.issue_until(identity, &[], now_s().unwrap() - 60).unwrap()
}

fn node(name: &str) -> Identity {
    Identity::new(Role::Node, name).unwrap()
}

fn authority(directory: &Path) -> Authority {
    Authority::init(directory, AUTHORITY_DAYS).unwrap();
    Authority::open(directory).unwrap()
}

/// Whether the two files belong together.
fn is_pair(made: &Made) -> bool {
    let files = ServerFiles {
        certificate: made.certificate.clone(),
        key: made.key.clone(),
        authorities: None,
        clients: ClientCertificates::Ignored,
    };
    ServerTls::open(files).is_ok()
}

#[test]
fn keys_are_their_owners_alone_and_never_overwritten() {
    let scratch = Scratch::new();
    let authority = authority(&scratch.0);
    let made = authority.issue(&node("n1"), &[], DAYS).unwrap();
    let keys = [scratch.0.join("ca.key"), made.key.clone()];
    let before = keys.each_ref().map(|key| fs::read(key).unwrap());
    for key in &keys {
        assert_eq!(fs::metadata(key).unwrap().permissions().mode() & 0o777, 0o600, "{key:?}");
    }
    let error = Authority::init(&scratch.0, AUTHORITY_DAYS).unwrap_err().to_string();
    assert!(error.contains("ca.key is there already, and is never overwritten"), "{error}");
    let error = authority.issue(&node("n1"), &[], DAYS).unwrap_err().to_string();
    assert!(error.contains("n1.pem is there already"), "{error}");
    fs::remove_file(&made.certificate).unwrap();
    let error = authority.issue(&node("n1"), &[], DAYS).unwrap_err().to_string();
    assert!(error.contains("n1.key is there already, and is never overwritten"), "{error}");
    assert_eq!(keys.map(|key| fs::read(key).unwrap()), before);
}

#[test]
fn a_renewal_has_the_key_and_the_names_and_another_number() {
    let scratch = Scratch::new();
    let authority = authority(&scratch.0);
    let addresses = ["db.example".to_owned(), "10.0.0.7".to_owned()];
    let made = authority.issue(&node("n1"), &addresses, 1).unwrap();
    assert!(is_pair(&made));
    let before = fs::read(&made.certificate).unwrap();
    let renewed = authority.renew("n1", 2).unwrap();
    assert!(renewed.until_s > made.until_s);
    assert_ne!(fs::read(&made.certificate).unwrap(), before);
    assert!(is_pair(&renewed));
    let issued = authority.find("n1").unwrap();
    assert_eq!((issued.identity, &issued.addresses[..]), (node("n1"), &addresses[..]));
    let error = authority.renew("n2", 2).unwrap_err().to_string();
    assert!(error.contains("nothing was issued to 'n2'"), "{error}");
}

#[test]
fn what_cannot_be_is_refused_by_name_and_leaves_nothing() {
    let scratch = Scratch::new();
    let authority = authority(&scratch.0);
    let issue = |name: &str, addresses: &[&str], days| {
        let addresses: Vec<_> = addresses.iter().map(|&text| text.to_owned()).collect();
        let identity = Identity::new(Role::Node, name)?;
        authority.issue(&identity, &addresses, days)
    };
    let many = ["a.example"; ADDRESSES_MAX + 1];
    for (name, addresses, days, said) in [
        ("ca", &[][..], 1, "name 'ca' is that of the authority's files"),
        ("n/1", &[], 1, "name 'n/1'"),
        ("n1", &["10.0.0.1:6379"], 1, "address '10.0.0.1:6379'"),
        ("n1", &["a b"], 1, "address 'a b'"),
        ("n1", &many, 1, "65 addresses: 64 are possible at most"),
        ("n1", &[], 0, "0 days: 1 to 36500 are possible"),
        ("n1", &[], 36_501, "36501 days: 1 to 36500 are possible"),
        ("n1", &[], 3_651, "3651 days: the authority's own certificate is valid for 36"),
    ] {
        let error = issue(name, addresses, days).unwrap_err().to_string();
        assert!(error.contains(said), "{error}");
    }
    let mut left: Vec<_> =
        fs::read_dir(&scratch.0).unwrap().map(|e| e.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["ca.key", "ca.pem", "issued"]);
    assert_eq!(fs::read_to_string(scratch.0.join("issued")).unwrap().lines().count(), 1);
}

#[test]
fn damaged_files_of_an_authority_are_named() {
    let scratch = Scratch::new();
    let said = |directory: &Path| Authority::open(directory).err().unwrap().to_string();
    assert!(said(&scratch.0).contains("ca.key"));
    authority(&scratch.0);
    let list = scratch.0.join("issued");
    let good = fs::read(&list).unwrap();
    fs::write(&list, [&good[..], b"{\"name\"\n"].concat()).unwrap();
    assert!(said(&scratch.0).contains("issued: line 2"), "{}", said(&scratch.0));
    fs::write(&list, b"").unwrap();
    assert!(said(&scratch.0).contains("issued: names no authority"));
    fs::write(&list, good).unwrap();
    fs::write(scratch.0.join("ca.key"), b"nonsense").unwrap();
    assert!(said(&scratch.0).contains("ca.key: no key"), "{}", said(&scratch.0));
}

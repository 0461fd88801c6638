use super::*;
use crate::ca::tests::{Scratch, issue_expired};
use crate::ca::{AUTHORITY_DAYS, Authority, Made};
use crate::{BlockingStream, Identity};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

fn authority() -> (Scratch, Authority) {
    let scratch = Scratch::new();
    Authority::init(&scratch.0, AUTHORITY_DAYS).unwrap();
    let authority = Authority::open(&scratch.0).unwrap();
    (scratch, authority)
}

fn issue(authority: &Authority, role: Role, name: &str) -> Made {
    authority.issue(&Identity::new(role, name).unwrap(), &[], 9).unwrap()
}

fn files(trusts: &Scratch, made: &Made) -> MutualFiles {
    MutualFiles {
        certificate: made.certificate.clone(),
        key: made.key.clone(),
        authority: trusts.0.join("ca.pem"),
    }
}

fn open(trusts: &Scratch, made: &Made) -> MutualTls {
    MutualTls::open(files(trusts, made), |_| {}).unwrap()
}

/// The identity of who connects, or why it is refused, and what it read.
type Met = (std::io::Result<(Option<Identity>, Vec<u8>)>, std::io::Result<Vec<u8>>);

/// One connection: the end that listens answers `data` to one word.
fn meet(server: &MutualTls, client: &MutualTls, expected: Expected) -> Met {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::scope(|scope| {
        let serving = scope.spawn(|| {
            let socket = listener.accept().unwrap().0;
            let mut stream = BlockingStream::handshake(socket, server.accept().unwrap())?;
            let mut word = vec![0; 4];
            stream.read_exact(&mut word)?;
            stream.write_all(b"data")?;
            Ok((stream.identity(), word))
        });
        let asking = || {
            let socket = TcpStream::connect(address)?;
            let tls = client.connect(expected).unwrap();
            let mut stream = BlockingStream::handshake(socket, tls)?;
            stream.write_all(b"word")?;
            let mut answer = vec![0; 4];
            stream.read_exact(&mut answer)?;
            Ok(answer)
        };
        let asked = asking();
        (serving.join().unwrap(), asked)
    })
}

#[test]
fn both_ends_learn_the_identity_of_the_other_one() {
    let (scratch, authority) = authority();
    let server = open(&scratch, &issue(&authority, Role::Node, "a"));
    let client = open(&scratch, &issue(&authority, Role::Operator, "alice"));
    let (served, asked) = meet(&server, &client, Expected::Node("a".to_owned()));
    let alice = Identity::new(Role::Operator, "alice").unwrap();
    assert_eq!(served.unwrap(), (Some(alice), b"word".to_vec()));
    assert_eq!(asked.unwrap(), b"data");
}

#[test]
fn a_wrong_certificate_is_refused_at_either_end_before_anything_is_answered() {
    let (scratch, authority) = authority();
    let (other, others) = self::authority();
    let fine = issue(&authority, Role::Node, "a");
    let expired = issue_expired(&authority, &Identity::new(Role::Node, "late").unwrap());
    let foreign = issue(&others, Role::Node, "a");
    for (made, why) in [(&expired, "xpired"), (&foreign, "UnknownIssuer")] {
        // As the one that connects: the other end says why.
        let (served, asked) =
            meet(&open(&scratch, &fine), &open(&scratch, made), Expected::Node("a".to_owned()));
        let served = served.unwrap_err().to_string();
        assert!(served.contains(why), "{served}");
        asked.unwrap_err();
        // As the one that listens.
        let expected = Expected::Node(if why == "xpired" { "late" } else { "a" }.to_owned());
        let (served, asked) = meet(&open(&scratch, made), &open(&scratch, &fine), expected);
        let asked = asked.unwrap_err().to_string();
        assert!(asked.contains(why), "{asked}");
        served.unwrap_err();
    }
    drop(other);
}

#[test]
fn who_connects_sends_nothing_to_another_node_or_role() {
    let (scratch, authority) = authority();
    let client = open(&scratch, &issue(&authority, Role::Controller, "c"));
    let node = open(&scratch, &issue(&authority, Role::Node, "b"));
    for (expected, wanted) in
        [(Expected::Node("a".to_owned()), "node a"), (Expected::Controller, "a controller")]
    {
        let (served, asked) = meet(&node, &client, expected);
        let asked = asked.unwrap_err().to_string();
        let said = format!("the certificate there is of node b, and that of {wanted} is expected");
        assert_eq!(asked, said);
        served.unwrap_err();
    }
    // An operator opens no door.
    let operator = open(&scratch, &issue(&authority, Role::Operator, "alice"));
    let (served, asked) = meet(&operator, &client, Expected::Controller);
    assert!(served.is_err() && asked.is_err());
}

#[test]
fn renewed_files_count_for_the_next_connection_and_another_identity_never_does() {
    let (scratch, authority) = authority();
    let made = issue(&authority, Role::Node, "a");
    let tls = open(&scratch, &made);
    let look = |tls: &MutualTls| {
        tls.state.lock().unwrap().looked = Instant::now() - LOOK_EVERY;
        drop(tls.fresh());
        tls.state.lock().unwrap().stamps.clone()
    };
    let before = look(&tls);
    assert_eq!(tls.until_s(), Some(made.until_s));
    let until_s = authority.renew("a", 8).unwrap().until_s;
    assert_ne!(until_s, made.until_s);
    let renewed = look(&tls);
    assert_eq!(tls.until_s(), Some(until_s));
    assert_ne!(before, renewed);
    let other = issue(&authority, Role::Node, "b");
    std::fs::copy(&other.certificate, &made.certificate).unwrap();
    std::fs::copy(&other.key, &made.key).unwrap();
    assert_eq!(look(&tls), renewed, "what is in use stays");
    let peer = open(&scratch, &issue(&authority, Role::Controller, "c"));
    let (served, asked) = meet(&tls, &peer, Expected::Node("a".to_owned()));
    assert_eq!(served.unwrap().0.unwrap().name(), "c");
    asked.unwrap();
}

#[test]
fn a_certificate_without_a_role_is_refused_when_it_is_read() {
    let (scratch, _authority) = authority();
    let own =
        Made { certificate: scratch.0.join("ca.pem"), key: scratch.0.join("ca.key"), until_s: 0 };
    let error = MutualTls::open(files(&scratch, &own), |_| {}).unwrap_err();
    assert!(error.message().contains("names no role and name"), "{error}");
}

use super::*;
use crate::ca::tests::Scratch;
use crate::ca::{AUTHORITY_DAYS, Authority, Made};
use crate::{BlockingStream, ClientCertificates, Identity, Role, ServerFiles, ServerTls};
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

fn authority() -> (Scratch, Authority) {
    let scratch = Scratch::new();
    Authority::init(&scratch.0, AUTHORITY_DAYS).unwrap();
    let authority = Authority::open(&scratch.0).unwrap();
    (scratch, authority)
}

fn issue(authority: &Authority, role: Role, name: &str, addresses: &[&str]) -> Made {
    let addresses: Vec<String> = addresses.iter().map(|it| (*it).to_owned()).collect();
    authority.issue(&Identity::new(role, name).unwrap(), &addresses, 9).unwrap()
}

fn files(trusts: &Scratch, own: Option<&Made>) -> ClientFiles {
    ClientFiles {
        authorities: trusts.0.join("ca.pem"),
        own: own.map(|made| (made.certificate.clone(), made.key.clone())),
    }
}

fn open(trusts: &Scratch, own: Option<&Made>) -> ClientTls {
    ClientTls::open(files(trusts, own), |_| {}).unwrap()
}

fn server(trusts: &Scratch, made: &Made) -> ServerTls {
    ServerTls::open(ServerFiles {
        certificate: made.certificate.clone(),
        key: made.key.clone(),
        authorities: Some(trusts.0.join("ca.pem")),
        clients: ClientCertificates::Required,
    })
    .unwrap()
}

/// Asks a server as the client, for a host. Returns the name that the server has read from the
/// certificate, or why there is no connection.
fn meet(server: &ServerTls, client: &ClientTls, host: &str) -> Result<String, String> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let socket = listener.accept().unwrap().0;
            let mut stream = BlockingStream::handshake(socket, server.accept().unwrap())?;
            let name = stream.identity().map_or_else(String::new, |it| it.name().to_owned());
            stream.write_all(format!("{name}\n").as_bytes())
        });
        let ask = || {
            let tls = client.connect(host).unwrap();
            let socket = TcpStream::connect(address)?;
            let mut stream = BlockingStream::handshake(socket, tls)?;
            let mut name = String::new();
            stream.read_to_string(&mut name)?;
            Ok(name.trim_end().to_owned())
        };
        ask().map_err(|error: io::Error| client.refusal(&error).unwrap_or(format!("? {error}")))
    })
}

#[test]
fn a_server_is_taken_by_its_name_or_address_and_learns_who_asks() {
    let (scratch, authority) = authority();
    let door = issue(&authority, Role::Node, "door", &["door.example", "127.0.0.1", "::1"]);
    let own = issue(&authority, Role::Client, "ann", &[]);
    let (server, client) = (server(&scratch, &door), open(&scratch, Some(&own)));
    for host in ["door.example", "127.0.0.1", "[::1]", "::1"] {
        assert_eq!(meet(&server, &client, host), Ok("ann".to_owned()), "{host}");
    }
    for host in ["", "a b", "-"] {
        let error = client.connect(host).unwrap_err();
        assert!(error.message().contains("no name or address of a host"), "{error}");
    }
}

#[test]
fn an_end_that_is_not_let_in_is_told_why_in_a_sentence() {
    let ((scratch, own), (others, other)) = (authority(), authority());
    let door = issue(&own, Role::Node, "door", &["door.example"]);
    let ann = issue(&own, Role::Client, "ann", &[]);
    let eve = issue(&other, Role::Client, "eve", &[]);
    let server = server(&scratch, &door);
    let refused = |client: &ClientTls, host: &str, parts: &[&str]| {
        let why = meet(&server, client, host).unwrap_err();
        parts.iter().for_each(|part| assert!(why.contains(part), "{why}: {part}"));
    };
    let ann_here = open(&scratch, Some(&ann));
    refused(&ann_here, "other.example", &["is not for other.example, but for", "door.example"]);
    refused(&ann_here, "127.0.0.1", &["is not for 127.0.0.1"]);
    let elsewhere = others.0.join("ca.pem").display().to_string();
    refused(&open(&others, Some(&ann)), "door.example", &["of no authority in", &elsewhere]);
    refused(&open(&scratch, None), "door.example", &["is wanted there, and none is configured"]);
    let eves = eve.certificate.display().to_string();
    refused(&open(&scratch, Some(&eve)), "door.example", &[&eves, "is not taken there"]);
}

#[test]
fn an_end_that_speaks_no_tls_is_named_so() {
    let (scratch, _authority) = authority();
    let client = open(&scratch, None);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    listener.accept().unwrap().0.write_all(b"-ERR unknown command\r\n").unwrap();
    let tls = client.connect("127.0.0.1").unwrap();
    let error = BlockingStream::handshake(socket, tls).map(drop).unwrap_err();
    assert_eq!(client.refusal(&error).as_deref(), Some("no TLS is spoken there"));
    assert_eq!(client.refusal(&io::ErrorKind::ConnectionReset.into()), None);
}

#[test]
fn files_that_cannot_be_used_are_named() {
    let (scratch, authority) = authority();
    let (ann, bob) =
        (issue(&authority, Role::Client, "ann", &[]), issue(&authority, Role::Client, "bob", &[]));
    let text = scratch.0.join("issued");
    let fine = files(&scratch, Some(&ann));
    let with = |own: (&PathBuf, &PathBuf)| ClientFiles {
        own: Some((own.0.clone(), own.1.clone())),
        ..fine.clone()
    };
    for (files, parts) in [
        (
            ClientFiles { authorities: scratch.0.join("none.pem"), ..fine.clone() },
            ["cannot open", "none.pem"],
        ),
        (
            ClientFiles { authorities: text.clone(), ..fine.clone() },
            ["issued", "holds no certificate"],
        ),
        (with((&text, &ann.key)), ["issued", "holds no certificate"]),
        (with((&ann.certificate, &text)), ["issued", "no key in PEM"]),
        (with((&ann.certificate, &bob.key)), ["ann.pem", "bob.key"]),
    ] {
        let error = ClientTls::open(files, |_| {}).unwrap_err().to_string();
        parts.iter().for_each(|part| assert!(error.contains(part), "{error}: {part}"));
    }
}

#[test]
fn a_connection_begins_with_the_files_of_that_moment() {
    let ((old, old_authority), (new, new_authority)) = (authority(), authority());
    let client_files = Scratch::new();
    fs::create_dir_all(&client_files.0).unwrap();
    let path = |file: &str| client_files.0.join(file);
    let put = |from: &Scratch, made: &Made| {
        for (from, to) in [
            (&from.0.join("ca.pem"), "ca.pem"),
            (&made.certificate, "own.pem"),
            (&made.key, "own.key"),
        ] {
            fs::copy(from, path("new")).unwrap();
            fs::rename(path("new"), path(to)).unwrap();
        }
    };
    let own = |authority, name| issue(authority, Role::Client, name, &[]);
    put(&old, &own(&old_authority, "before"));
    let files =
        ClientFiles { authorities: path("ca.pem"), own: Some((path("own.pem"), path("own.key"))) };
    let client = ClientTls::open(files, |_| {}).unwrap();
    let door = |authority| issue(authority, Role::Node, "door", &["a"]);
    let (before, after) =
        (server(&old, &door(&old_authority)), server(&new, &door(&new_authority)));
    assert_eq!(meet(&before, &client, "a"), Ok("before".to_owned()));
    assert!(meet(&after, &client, "a").unwrap_err().contains("of no authority"));
    put(&new, &own(&new_authority, "after"));
    assert_eq!(meet(&after, &client, "a"), Ok("after".to_owned()));
    // Half of a renewal changes nothing.
    fs::write(path("own.key"), "no key").unwrap();
    assert_eq!(meet(&after, &client, "a"), Ok("after".to_owned()));
}

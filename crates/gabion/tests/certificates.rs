//! Controllers, nodes and commands with certificates of one authority: a group that goes on through
//! the loss of each, and everybody who shows a wrong certificate, or none, at each port.
#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "a test with real processes: it waits, and fails where it stands"
)]

#[path = "support/logged.rs"]
mod logged;
#[path = "support/processes.rs"]
#[expect(dead_code, reason = "commands show a certificate here")]
mod processes;

use gabion_base::{GroupId, ReplicaId};
use gabion_control::wire::CONTROLLER;
use gabion_server::preamble;
use gabion_tls::ca::{AUTHORITY_DAYS, Authority, DAYS, Made};
use gabion_tls::rustls::pki_types::CertificateDer;
use gabion_tls::rustls::pki_types::pem::PemObject;
use gabion_tls::rustls::{self, ClientConfig, ClientConnection, RootCertStore};
use gabion_tls::{BlockingStream, Expected, Identity, MutualFiles, MutualTls, Role};
use logged::{Logged, has_all};
use processes::{GABION, Processes, node_file};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(50);
const NODES: [&str; 3] = ["a", "b", "c"];

/// A controller and nodes, and the authority of their certificates.
struct Place {
    processes: Processes,
    authority: Authority,
    /// The second and third number of all addresses: those of this test alone.
    net: (u8, u8),
}

fn said(output: &Output) -> String {
    [&output.stdout[..], &output.stderr].map(String::from_utf8_lossy).concat()
}

fn issue(authority: &Authority, role: Role, name: &str) -> Made {
    issue_at(authority, role, name, &[])
}

fn issue_at(authority: &Authority, role: Role, name: &str, addresses: &[String]) -> Made {
    authority.issue(&Identity::new(role, name).unwrap(), addresses, DAYS).unwrap()
}

fn authority(dir: &Path) -> Authority {
    Authority::init(dir, AUTHORITY_DAYS).unwrap();
    Authority::open(dir).unwrap()
}

impl Place {
    /// Starts a controller, and these nodes. `test` is another number in each test.
    fn new(test: u8, nodes: &[&str]) -> Self {
        let pid = std::process::id();
        let dir = std::env::temp_dir().join(format!("gabion-certificates-{pid}-{test}"));
        let processes = Processes::new(dir);
        let authority = authority(&processes.dir.join("ca"));
        let mut place = Self { processes, authority, net: (32 + (pid % 192) as u8, test) };
        issue(&place.authority, Role::Controller, "controller");
        issue(&place.authority, Role::Operator, "alice");
        let text = format!(
            "data = \"{}\"\nlisten = \"{}\"\n{}",
            place.processes.dir.join("control-data").display(),
            place.address("controller", 7400),
            place.tls("controller")
        );
        place.processes.write("controller.toml", &text);
        place.start("controller");
        for node in nodes {
            let ip = place.address(node, 0).ip().to_string();
            issue_at(&place.authority, Role::Node, node, &[ip]);
            let text = place.node_file(node, node);
            place.processes.write(&format!("{node}.toml"), &text);
            place.start(node);
        }
        place.wait("the nodes are here", |place| place.here() == nodes.len());
        place
    }

    fn address(&self, name: &str, port: u16) -> SocketAddr {
        ([127, self.net.0, self.net.1, name.as_bytes()[0] + name.len() as u8], port).into()
    }

    /// The file of a node that shows a certificate.
    fn node_file(&self, node: &str, certificate: &str) -> String {
        let controllers = [self.address("controller", 7400)];
        let ip = self.address(node, 0).ip();
        let file = |ending: &str| self.file(&format!("{certificate}.{ending}"));
        let door = format!(
            "clients.tls_listen = \"{ip}:6380\"\nclients.tls_cert = \"{}\"\n\
             clients.tls_key = \"{}\"\nclients.tls_ca = \"{}\"\n",
            file("pem"),
            file("key"),
            self.file("ca.pem")
        );
        node_file(node, &self.data(node), &controllers, ip) + &door + &self.tls(certificate)
    }

    /// A file of the authority's directory.
    fn file(&self, name: &str) -> String {
        self.processes.dir.join("ca").join(name).display().to_string()
    }

    fn tls(&self, name: &str) -> String {
        let file = |file: &str| self.file(file);
        let (certificate, key) = (file(&format!("{name}.pem")), file(&format!("{name}.key")));
        let ca = file("ca.pem");
        format!("[tls]\ncertificate = \"{certificate}\"\nkey = \"{key}\"\nca = \"{ca}\"\n")
    }

    fn data(&self, node: &str) -> PathBuf {
        self.processes.dir.join(format!("data-{node}"))
    }

    fn start(&mut self, name: &str) {
        let role = if name == "controller" { "controller" } else { "node" };
        self.processes.gabion(role, name);
    }

    /// A command of the holder of a certificate; of nobody without one.
    fn run_as(&self, identity: Option<&Path>, words: &[&str]) -> Output {
        let mut command = Command::new(GABION);
        command.args(words).args(["--controller", &self.address("controller", 7400).to_string()]);
        command.env_remove("GABION_IDENTITY").stdin(Stdio::null());
        identity.map(|path| command.env("GABION_IDENTITY", path));
        command.output().unwrap()
    }

    fn run(&self, words: &[&str]) -> Output {
        self.run_as(Some(&self.processes.dir.join("ca").join("alice")), words)
    }

    fn succeeds(&self, words: &[&str]) -> String {
        let output = self.run(words);
        assert!(output.status.success(), "{words:?}: {}", said(&output));
        said(&output)
    }

    fn json(&self, words: &[&str]) -> Value {
        let output = self.run(&[words, &["--json"]].concat());
        serde_json::from_slice(&output.stdout).unwrap_or_default()
    }

    fn here(&self) -> usize {
        let listed = self.json(&["node", "list"])["nodes"].take();
        let listed = listed.as_array().cloned().unwrap_or_default();
        listed.iter().filter(|node| node["here"] == true).count()
    }

    fn wait(&self, what: &str, is_so: impl Fn(&Self) -> bool) {
        let begun = Instant::now();
        while !is_so(self) {
            assert!(begun.elapsed() < PATIENCE, "never: {what}");
            std::thread::sleep(PAUSE);
        }
    }

    /// How many full members a view has that is carried out, and none of them lost: a lost one
    /// is told before the view that leaves it out is begun.
    fn full(&self) -> usize {
        let group = self.json(&["status"])["group"].take();
        let replicas = group["replicas"].as_array().cloned().unwrap_or_default();
        let full = replicas.iter().filter(|it| it["state"] == "full");
        let is_whole = group["complete"] == true && full.clone().all(|it| it["lost"] == false);
        if is_whole { full.count() } else { 0 }
    }
}

#[test]
fn a_group_with_certificates_goes_on_through_the_loss_of_a_node_a_disk_and_the_controller() {
    let mut place = Place::new(21, &NODES);
    let told = place.succeeds(&["group", "create", "g", "--nodes", "a,b,c"]);
    assert!(told.ends_with("group g takes writes\n"), "{told}");
    place.wait("the group is whole", |place| place.full() == 3);
    reaches_tls_doors(&place);
    let load = Logged::start(place.address("b", 6379));
    load.goes_on();

    // The one that takes writes is lost, and its disk with it.
    place.processes.kill("a");
    place.wait("it is left out", |place| place.full() == 2);
    load.goes_on();
    std::fs::remove_dir_all(place.data("a")).unwrap();
    place.start("a");
    place.wait("it is filled", |place| place.full() == 3);
    load.goes_on();

    // The controller's certificate is renewed while another one is lost.
    place.authority.renew("controller", DAYS).unwrap();
    place.processes.kill("c");
    place.wait("it is left out", |place| place.full() == 2);
    place.processes.kill("controller");
    load.goes_on();
    place.start("controller");
    place.start("c");
    place.wait("it is whole again", |place| place.full() == 3);
    load.goes_on();
    let acknowledged = load.end();
    NODES.iter().for_each(|node| has_all(place.address(node, 6379), &acknowledged));
}

/// Commands to doors with TLS at all nodes, which the controller knows.
fn reaches_tls_doors(place: &Place) {
    let [ca, cert, key] = ["ca.pem", "alice.pem", "alice.key"].map(|name| place.file(name));
    let tls = ["--tls", "--cacert", &ca, "--cert", &cert, "--key", &key];
    let port = ["--port", "6380"];
    // A group that takes writes may take a moment until each door has heard of its reader.
    let words = [&["status"], &tls[..], &port].concat();
    place.wait("all are ready", |place| place.run(&words).status.success());
    let status = place.succeeds(&words);
    let rows = status.lines().filter(|line| line.starts_with(['1', '2', '3']));
    assert_eq!(rows.count(), 3, "{status}");
    // `run` says the controller behind these words, where those of a command would be `cli`'s.
    let output = place.run(&[&["verify"], &tls[..], &port].concat());
    assert!(output.status.success(), "{}", said(&output));
    // Without a port the controller says where those doors are.
    let status = place.succeeds(&[&["status"], &tls[..]].concat());
    let rows = status.lines().filter(|line| line.starts_with(['1', '2', '3']));
    assert_eq!(rows.count(), 3, "{status}");
    let output = place.run(&[&["verify"], &tls[..]].concat());
    assert!(output.status.success(), "{}", said(&output));
    let output = place.run(&[&["status"], &port[..]].concat());
    assert!(said(&output).contains("together they are for --tls"), "{}", said(&output));
}

/// The answer to somebody who sends this, until the other end closes or says nothing more.
fn heard(mut stream: impl Read + Write, words: &[u8]) -> Vec<u8> {
    let (mut heard, mut chunk) = (Vec::new(), [0; 4096]);
    // A refusal may have come already.
    let _ = stream.write_all(words);
    while let Ok(count @ 1..) = stream.read(&mut chunk) {
        heard.extend_from_slice(&chunk[..count]);
        if heard.ends_with(b"\n") || heard.len() >= 128 {
            break;
        }
    }
    heard
}

fn socket(door: SocketAddr) -> TcpStream {
    let socket = TcpStream::connect(door).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

/// The same by a certificate, to whoever is expected there.
fn heard_by(ca: &Path, made: &Made, door: SocketAddr, expected: Expected, words: &[u8]) -> Vec<u8> {
    let (certificate, key) = (made.certificate.clone(), made.key.clone());
    let files = MutualFiles { certificate, key, authority: ca.join("ca.pem") };
    let tls = MutualTls::open(files, |_| {}).unwrap().connect(expected).unwrap();
    match BlockingStream::handshake(socket(door), tls) {
        Ok(stream) => {
            stream.socket().set_read_timeout(Some(PATIENCE)).unwrap();
            heard(stream, words)
        }
        Err(_) => Vec::new(),
    }
}

/// The same without a certificate.
fn heard_by_nobody(ca: &Path, door: SocketAddr, words: &[u8]) -> Vec<u8> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(ca.join("ca.pem")).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let tls = ClientConnection::new(Arc::new(config), "localhost".try_into().unwrap()).unwrap();
    match BlockingStream::handshake(socket(door), tls) {
        Ok(stream) => heard(stream, words),
        Err(_) => Vec::new(),
    }
}

/// The first PDU of an NVMe/TCP host.
fn greeting_of_a_host() -> Vec<u8> {
    let mut bytes = vec![0; 128];
    (bytes[2], bytes[4]) = (128, 128);
    bytes
}

/// A port, whoever is there, words of its protocol, and the role that is let in.
type Door = (SocketAddr, Expected, Vec<u8>, Role);

/// Nobody is answered but the holders of certificates of the right role.
fn refuses_others(place: &Place, others: &Authority, door: &Door) {
    let (door, expected, words, right) = door;
    let ca = place.processes.dir.join("ca");
    let past = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs() - 60;
    let issue_late = |role: Role| {
        let late = Identity::new(role, &format!("late-{role}")).unwrap();
        place.authority.issue_until(&late, &[], past as i64).unwrap()
    };
    let by = |made: &Made| heard_by(&ca, made, *door, expected.clone(), words);
    let plain = heard(socket(*door), words);
    // At most an alert of TLS, which is seven bytes.
    assert!(plain.len() <= 7, "{door}: {plain:?}");
    assert_eq!(heard_by_nobody(&ca, *door, words), b"", "{door}: no certificate");
    assert_eq!(by(&issue(others, *right, &format!("x-{right}"))), b"", "{door}: authority");
    assert_eq!(by(&issue_late(*right)), b"", "{door}: expired");
    for role in Role::ALL.into_iter().filter(|role| role != right) {
        let name = format!("{role}-{}", door.port());
        let answer = by(&issue(&place.authority, role, &name));
        // A controller says why.
        let said = String::from_utf8_lossy(&answer);
        let is_refusal = door.port() == 7400
            && said.contains("\"ok\":false")
            && said.contains(&format!("of {role} {name}, and it asks `nodes`"));
        assert!(answer.is_empty() || is_refusal, "{door}: {role}: {said}");
    }
}

#[test]
fn whoever_shows_a_wrong_certificate_or_none_is_refused_at_each_port_with_nothing_answered() {
    let mut place = Place::new(22, &NODES);
    place.succeeds(&["group", "create", "g", "--nodes", "a,b,c"]);
    place.wait("the group is whole", |place| place.full() == 3);
    let ca = place.processes.dir.join("ca");
    let others = authority(&place.processes.dir.join("others"));
    let node = |name: &str| Expected::Node(name.to_owned());
    let group = place.json(&["group", "list"])["groups"][0]["group"].as_u64().unwrap();
    let of_replica = |from| preamble(GroupId(group), from, ReplicaId(1));

    let command = b"{\"do\":\"nodes\"}\n".to_vec();
    let doors: [Door; 3] = [
        (place.address("controller", 7400), Expected::Controller, command, Role::Operator),
        (place.address("a", 6479), node("a"), of_replica(CONTROLLER), Role::Controller),
        // The first one takes writes, and ships files to the others.
        (place.address("b", 6579), node("b"), greeting_of_a_host(), Role::Node),
    ];
    doors.iter().for_each(|door| refuses_others(&place, &others, door));
    // A node of no group, and nodes of the group in another's name.
    let stray = issue(&place.authority, Role::Node, "stray");
    let [_, _, (target, expected, words, _)] = &doors;
    assert_eq!(heard_by(&ca, &stray, *target, expected.clone(), words), b"");
    let own = |name: &str| Made {
        certificate: ca.join(format!("{name}.pem")),
        key: ca.join(format!("{name}.key")),
        until_s: 0,
    };
    let (members, as_second) = (place.address("a", 6479), of_replica(ReplicaId(2)));
    assert_eq!(heard_by(&ca, &own("c"), members, node("a"), &as_second), b"");
    let addresses = r#"{"clients":"127.0.0.1:1","members":"127.0.0.1:2","targets":"127.0.0.1:3"}"#;
    let record = format!(
        "{{\"do\":\"node\",\"node\":{{\"format\":1,\"name\":\"a\",\"id\":1,\
         \"addresses\":{addresses},\"pool_size\":268435456,\"failure_domain\":\"a\"}},\
         \"replicas\":[]}}\n"
    );
    let controller = place.address("controller", 7400);
    let answer = heard_by(&ca, &own("b"), controller, Expected::Controller, record.as_bytes());
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.contains("of node b, and it speaks as node a: refused"), "{answer}");
    let log = |node: &str, replica: &str| {
        let base = place.data(node).join(format!("group-{group}"));
        std::fs::read_to_string(base.join(replica).join("log")).unwrap()
    };
    // Refusals are said once a second at most.
    let pretender = issue(&place.authority, Role::Operator, "pretender");
    let as_controller = of_replica(CONTROLLER);
    let of_node = "of node c, and it connects as r2, which node b holds: refused";
    let of_operator = "of operator pretender, and it would give views as a controller";
    let tries = [(own("c"), &as_second, of_node), (pretender, &as_controller, of_operator)];
    for (made, words, said) in &tries {
        place.wait("the members' door says why", |_| {
            assert_eq!(heard_by(&ca, made, members, node("a"), words), b"");
            log("a", "replica-1").contains(said)
        });
    }
    place.wait("the target says why", |_| {
        heard_by(&ca, &stray, *target, expected.clone(), words);
        let said = "of node stray, and it would write into the pool: only nodes of this group may";
        log("b", "replica-2").contains(said)
    });
    assert!(place.processes.log("controller").contains("is not let in, and hears nothing"));

    // The right ones are answered, by the same words.
    for ((door, expected, words, _), name) in doors.iter().zip(["alice", "controller", "a"]) {
        let answer = heard_by(&ca, &own(name), *door, expected.clone(), words);
        assert!(!answer.is_empty() && !answer.starts_with(b"{\"ok\":false"), "{door}: {name}");
    }
    place.wait("the group goes on", |place| place.full() == 3);

    // Processes that would show another's certificate do not start.
    place.processes.kill("a");
    place.processes.write("a.toml", &place.node_file("a", "b"));
    place.start("a");
    assert_eq!(place.processes.running.get_mut("a").unwrap().wait().unwrap().code(), Some(2));
    let log = place.processes.log("a");
    assert!(log.contains("which is of node b, and name is a"), "{log}");
    let said = said(&place.run_as(None, &["node", "list"]));
    assert!(said.contains("it may take certificates"), "{said}");
}

/// A node's certificate is made anew, valid until so many seconds from now.
fn reissue(place: &Place, node: &str, left_s: i64) {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    let ip = place.address(node, 0).ip().to_string();
    ["pem", "key"].iter().for_each(|ending| {
        std::fs::remove_file(place.file(&format!("{node}.{ending}"))).unwrap();
    });
    let identity = Identity::new(Role::Node, node).unwrap();
    place.authority.issue_until(&identity, &[ip], now.cast_signed() + left_s).unwrap();
}

/// Waits until the first problem is of this kind, with these words, and returns its sentence.
fn first_problem(place: &Place, kind: &str, words: &[&str]) -> String {
    let begun = Instant::now();
    loop {
        let group = place.json(&["status"])["group"].take();
        let first = &group["problems"][0];
        let text = first["text"].as_str().unwrap_or_default().to_owned();
        if first["kind"] == kind && words.iter().all(|word| text.contains(word)) {
            return text;
        }
        assert!(begun.elapsed() < PATIENCE, "never {kind}, {words:?}: {group:#}");
        std::thread::sleep(PAUSE);
    }
}

#[test]
fn a_certificate_is_told_before_it_ends_and_after_and_one_more_mends_it_without_a_restart() {
    const DAY_S: i64 = 86_400;
    let mut place = Place::new(23, &NODES);
    place.succeeds(&["group", "create", "g", "--nodes", "a,b,c"]);
    place.wait("the group is whole", |place| place.full() == 3);
    let seats = place.json(&["status"])["group"]["seats"].take();
    let mut seats = seats.as_array().unwrap().iter();
    let replica = seats.find(|seat| seat["node"] == "b").unwrap()["replica"].clone();
    let of_b = format!("replica {replica} on node b");
    let doctor = |place: &Place| {
        let config = place.processes.dir.join("b.toml");
        let output = Command::new(GABION).arg("doctor").arg("--config").arg(config).output();
        said(&output.unwrap())
    };

    reissue(&place, "b", 9 * DAY_S + 3_600);
    first_problem(&place, "certificate-ends", &[&of_b, "expires in 9 days"]);
    assert!(doctor(&place).contains("9 days"), "{}", doctor(&place));
    reissue(&place, "b", -DAY_S - 60);
    let told = first_problem(&place, "certificate-expired", &[&of_b, "has expired, 1 day ago"]);
    for command in [&["top", "--once"][..], &["status"], &["group"]] {
        let output = said(&place.run(command));
        assert!(output.contains(&format!("! {told}")), "{command:?}: {output}");
    }
    let found = doctor(&place);
    assert!(found.contains("bad   tls.certificate") && found.contains("1 day ago"), "{found}");

    // Nobody takes a connection that begins with it.
    place.processes.kill("b");
    place.wait("it is left out", |place| place.full() == 2);
    place.start("b");
    let lost = "is lost: its certificate has expired";
    first_problem(&place, "certificate-expired", &[&of_b[1..], lost, "2 of 3 full members"]);
    reissue(&place, "b", 30 * DAY_S);
    place.wait("it is a member again, as it runs", |place| place.full() == 3);
    place.wait("nothing is wrong", |place| {
        let problems = place.json(&["status"])["group"]["problems"].take();
        problems.as_array().is_some_and(Vec::is_empty)
    });
}

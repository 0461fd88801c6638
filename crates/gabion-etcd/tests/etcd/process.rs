//! etcd as processes of a test.

use gabion_etcd::{EtcdStore, EtcdUrl};
use gabion_tls::ca::{AUTHORITY_DAYS, Authority, DAYS, Made};
use gabion_tls::{ClientFiles, ClientTls, Identity, Role};
use rustix::process::{Pid, Signal, kill_process};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The program, as the environment of `cargo xtask etcd` says.
const PROGRAM: &str = "GABION_ETCD";
/// How long etcd may take to answer after its start.
const START_MAX: Duration = Duration::from_secs(20);

/// Members of one etcd, with data of their own. They end with this.
pub(crate) struct Etcd {
    dir: PathBuf,
    members: Vec<Member>,
    /// Certificates of stores, where connections are encrypted.
    tls: Option<Arc<ClientTls>>,
}

struct Member {
    args: Vec<String>,
    client_port: u16,
    /// For questions of the test; the same one where nothing is encrypted.
    plain_port: u16,
    child: Option<Child>,
}

/// An authority of a test, in a directory of its own.
pub(crate) fn authority(dir: &Path) -> Authority {
    let _ = std::fs::remove_dir_all(dir);
    Authority::init(dir, AUTHORITY_DAYS).expect("a directory for the authority");
    Authority::open(dir).expect("it has just been made")
}

/// A certificate; for `127.0.0.1` alone if the role is one of a process that listens.
pub(crate) fn issue(authority: &Authority, role: Role, name: &str) -> Made {
    let identity = Identity::new(role, name).expect("a name");
    let addresses = if role.listens() { vec!["127.0.0.1".to_owned()] } else { Vec::new() };
    authority.issue(&identity, &addresses, DAYS).expect("a certificate")
}

/// Certificates of a store.
pub(crate) fn tls_of(authorities: &Path, own: Option<&Made>) -> Arc<ClientTls> {
    let own = own.map(|made| (made.certificate.clone(), made.key.clone()));
    let files = ClientFiles { authorities: authorities.to_owned(), own };
    Arc::new(ClientTls::open(files, |line| println!("{line}")).expect("files of certificates"))
}

/// A member's ports stay free of others while all of them are found.
fn free_ports(count: usize) -> Vec<u16> {
    let bind = |_| TcpListener::bind("127.0.0.1:0").expect("a free port");
    let listeners: Vec<TcpListener> = (0..count).map(bind).collect();
    listeners.iter().map(|it| it.local_addr().expect("an address").port()).collect()
}

impl Etcd {
    /// Starts `count` members. `test` names their directory.
    pub(crate) fn start(test: &str, count: usize) -> Self {
        Self::start_as(test, count, false)
    }

    /// The same, of members that take certificates of clients alone.
    pub(crate) fn start_tls(test: &str, count: usize) -> Self {
        Self::start_as(test, count, true)
    }

    fn start_as(test: &str, count: usize, is_tls: bool) -> Self {
        let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("etcd-{test}"));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).expect("a directory for etcd");
        let ca = dir.join("ca");
        let mut tls = None;
        if is_tls {
            let authority = authority(&ca);
            issue(&authority, Role::Node, "etcd");
            tls =
                Some(tls_of(&ca.join("ca.pem"), Some(&issue(&authority, Role::Client, "gabion"))));
        }
        let ports = free_ports(3 * count);
        let url = |port: u16| format!("http://127.0.0.1:{port}");
        let cluster: Vec<String> =
            (0..count).map(|at| format!("m{at}={}", url(ports[3 * at + 1]))).collect();
        let members = (0..count).map(|at| {
            let (mut client, peer) = (url(ports[3 * at]), url(ports[3 * at + 1]));
            let plain_port = if is_tls { ports[3 * at + 2] } else { ports[3 * at] };
            if is_tls {
                client = format!("https://127.0.0.1:{},{}", ports[3 * at], url(plain_port));
            }
            let data = dir.join(format!("m{at}")).to_string_lossy().into_owned();
            let args = [
                ("name", format!("m{at}")),
                ("data-dir", data),
                ("listen-client-urls", client.clone()),
                ("advertise-client-urls", client),
                ("listen-peer-urls", peer.clone()),
                ("initial-advertise-peer-urls", peer),
                ("initial-cluster", cluster.join(",")),
                ("initial-cluster-token", format!("gabion-{test}")),
                ("log-level", "error".to_owned()),
            ];
            let mut args = args.map(|(name, value)| format!("--{name}={value}")).to_vec();
            if is_tls {
                let file = |file: &str| ca.join(file).display().to_string();
                args.push(format!("--cert-file={}", file("etcd.pem")));
                args.push(format!("--key-file={}", file("etcd.key")));
                args.push(format!("--trusted-ca-file={}", file("ca.pem")));
                args.push("--client-cert-auth=true".to_owned());
            }
            Member { args, client_port: ports[3 * at], plain_port, child: None }
        });
        let mut etcd = Self { members: members.collect(), dir, tls };
        (0..count).for_each(|at| etcd.restart(at));
        etcd
    }

    /// The store's URL with all endpoints.
    pub(crate) fn url(&self, prefix: &str) -> EtcdUrl {
        let hosts: Vec<String> =
            self.members.iter().map(|it| format!("127.0.0.1:{}", it.client_port)).collect();
        let scheme = if self.tls.is_some() { "etcd+tls" } else { "etcd" };
        EtcdUrl::parse(&format!("{scheme}://{}/{prefix}", hosts.join(","))).expect("a URL")
    }

    /// The directory of its authority.
    pub(crate) fn ca(&self) -> PathBuf {
        self.dir.join("ca")
    }

    /// A handle, once etcd answers.
    pub(crate) fn open(&self, prefix: &str) -> EtcdStore {
        let begun = Instant::now();
        loop {
            match EtcdStore::open(&self.url(prefix), self.tls.as_ref()) {
                Ok(store) => return store,
                Err(error) if begun.elapsed() > START_MAX => panic!("etcd does not start: {error}"),
                Err(_) => {}
            }
        }
    }

    /// Starts a member that does not run.
    pub(crate) fn restart(&mut self, at: usize) {
        let program = std::env::var_os(PROGRAM).unwrap_or_else(|| {
            panic!("{PROGRAM} names the program of etcd: `cargo xtask etcd` builds and names it")
        });
        let log = std::fs::OpenOptions::new().create(true).append(true).open(self.dir.join("log"));
        let log = log.expect("a log");
        // It ends with this test, however that ends.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]).arg(program).args(&self.members[at].args);
        let spawned = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn();
        self.members[at].child = Some(spawned.expect("setpriv starts"));
    }

    pub(crate) fn kill(&mut self, at: usize) {
        if let Some(mut child) = self.members[at].child.take() {
            child.kill().expect("it runs");
            child.wait().expect("it is a child");
        }
    }

    pub(crate) fn signal(&self, at: usize, signal: Signal) {
        let child = self.members[at].child.as_ref().expect("it runs");
        signal_to(child, signal);
    }

    /// A question to one member, for what the store has no need of.
    pub(crate) fn ask(&self, at: usize, path: &str, body: &str) -> String {
        use std::io::{Read, Write};
        let mut stream = TcpStream::connect(("127.0.0.1", self.members[at].plain_port))
            .expect("the member listens");
        stream.set_read_timeout(Some(START_MAX)).expect("a socket");
        let len = body.len();
        let head = format!("POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n");
        write!(stream, "{head}Content-Length: {len}\r\n\r\n{body}").expect("the member reads");
        let mut said = String::new();
        stream.read_to_string(&mut said).expect("the member answers");
        assert!(said.starts_with("HTTP/1.1 200"), "{path}: {said}");
        said.split_once("\r\n\r\n").expect("a body").1.to_owned()
    }

    /// The member that is etcd's leader.
    pub(crate) fn leader(&self) -> usize {
        let field = |said: &str, name: &str| {
            let value = said.split(&format!("\"{name}\":\"")).nth(1);
            value.and_then(|rest| rest.split('"').next()).map(str::to_owned)
        };
        let leads = |at: &usize| {
            let said = self.ask(*at, "/v3/maintenance/status", "{}");
            let (own, leader) = (field(&said, "member_id"), field(&said, "leader"));
            assert!(own.is_some(), "{said}");
            own == leader
        };
        (0..self.members.len()).find(leads).expect("one leads")
    }

    /// Forgets what was before the newest revision.
    pub(crate) fn compact(&self, revision: u64) {
        let body = format!("{{\"revision\":\"{revision}\",\"physical\":true}}");
        self.ask(0, "/v3/kv/compaction", &body);
    }
}

pub(crate) fn signal_to(child: &Child, signal: Signal) {
    let pid = Pid::from_raw(child.id().cast_signed()).expect("a process has a number");
    kill_process(pid, signal).expect("it is a child that runs");
}

impl Drop for Etcd {
    fn drop(&mut self) {
        (0..self.members.len()).for_each(|at| self.kill(at));
        // The files of a failed test stay, to be looked at.
        if !std::thread::panicking() {
            let _ = std::fs::remove_dir_all(&self.dir);
        }
    }
}

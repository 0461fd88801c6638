//! A controller and nodes as processes of their own, on addresses of 127.0.0.0/8 as machines have
//! theirs: what an operator types, and what clients see through the loss of each.
#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "a test with real processes: it waits, and fails where it stands"
)]

#[path = "support/logged.rs"]
mod logged;
#[path = "support/page.rs"]
mod page;
#[path = "support/processes.rs"]
mod processes;

use logged::{Logged, has_all};
use processes::{GABION, Processes, ask, nodes_here};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Output};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(50);

/// A controller and nodes.
struct Machines {
    processes: Processes,
    /// The second and third number of all addresses: those of this test alone.
    net: (u8, u8),
    /// Groups of which a node may hold a replica each.
    groups: u32,
}

impl Machines {
    /// Starts a controller and these nodes. `test` is another number in each test.
    fn new(test: u8, nodes: &[&str]) -> Self {
        Self::with_groups(1, test, nodes)
    }

    fn with_groups(groups: u32, test: u8, nodes: &[&str]) -> Self {
        let pid = std::process::id();
        let dir = std::env::temp_dir().join(format!("gabion-machines-{pid}-{test}"));
        let net = (32 + (pid % 192) as u8, test);
        let mut machines = Self { processes: Processes::new(dir), net, groups };
        let text = format!(
            "data = \"{}\"\nlisten = \"{}\"\npage.listen = \"{}\"\n",
            machines.processes.dir.join("control-data").display(),
            machines.controller(),
            machines.page()
        );
        machines.write("controller.toml", &text);
        machines.start("controller");
        nodes.iter().for_each(|node| machines.add(node));
        machines.wait("all nodes are here", |machines| {
            nodes_here(machines.controller()) == nodes.len()
        });
        machines
    }

    fn controller(&self) -> SocketAddr {
        ([127, self.net.0, self.net.1, 1], 7400).into()
    }

    /// Address of the controller's status page.
    fn page(&self) -> SocketAddr {
        ([127, self.net.0, self.net.1, 1], 7480).into()
    }

    /// Waits until the page says this, or that all is well.
    fn is_seen(&self, sentence: Option<&str>) {
        page::wait(self.page(), PATIENCE, |told| {
            let problems = told["groups"][0]["problems"].as_array();
            problems.is_some_and(|problems| match (sentence, problems.first()) {
                (None, first) => first.is_none(),
                (Some(sentence), first) => first
                    .is_some_and(|it| it["text"].as_str().is_some_and(|it| it.contains(sentence))),
            })
        });
    }

    /// Address of a node for clients; names of nodes have one letter.
    fn clients(&self, node: &str) -> SocketAddr {
        ([127, self.net.0, self.net.1, node.as_bytes()[0]], 6379).into()
    }

    fn data(&self, node: &str) -> PathBuf {
        self.processes.dir.join(format!("data-{node}"))
    }

    fn write(&self, name: &str, text: &str) {
        self.processes.write(name, text);
    }

    /// Starts a node with a configuration of its own.
    fn add(&mut self, node: &str) {
        let groups = match self.groups {
            1 => String::new(),
            max => {
                let ip = self.clients(node).ip();
                format!("[groups]\nmax = {max}\nlisten = \"{ip}:7000\"\n")
            }
        };
        self.write(&format!("{node}.toml"), &(self.node_file(node, node) + &groups));
        self.start(node);
    }

    /// The file of a node; its data may be another's.
    fn node_file(&self, node: &str, data: &str) -> String {
        let ip = self.clients(node).ip();
        processes::node_file(node, &self.data(data), &[self.controller()], ip)
    }

    fn start(&mut self, name: &str) {
        let role = if name == "controller" { "controller" } else { "node" };
        self.processes.gabion(role, name);
    }

    /// Waits until a process has ended by itself.
    fn ended(&mut self, name: &str) -> ExitStatus {
        self.processes.running.get_mut(name).unwrap().wait().unwrap()
    }

    /// `kill -9`, and waits until the process is gone.
    fn kill(&mut self, name: &str) {
        self.processes.kill(name);
    }

    /// The same for a node that a controller looks after, until that has left it out.
    fn lose(&mut self, node: &str) {
        self.kill(node);
        self.wait("a lost node is left out", |machines| {
            let full = machines.full();
            !full.is_empty() && !full.iter().any(|it| it == node)
        });
    }

    fn log(&self, name: &str) -> String {
        self.processes.log(name)
    }

    /// A command that asks the controller.
    fn run(&self, words: &[&str]) -> Output {
        ask(self.controller(), words)
    }

    fn succeeds(&self, words: &[&str]) -> String {
        let output = self.run(words);
        assert!(output.status.success(), "{words:?}: {}", said(&output));
        said(&output)
    }

    fn refused(&self, words: &[&str]) -> String {
        let output = self.run(words);
        assert_eq!(output.status.code(), Some(2), "{words:?}: {}", said(&output));
        said(&output)
    }

    fn json(&self, words: &[&str]) -> Value {
        processes::json(self.controller(), words)
    }

    fn group(&self) -> Value {
        self.json(&["status"])["group"].clone()
    }

    /// One of several groups.
    fn part(&self, name: &str) -> Value {
        self.json(&["status", "--group", name])["group"].clone()
    }

    fn wait(&self, what: &str, is_so: impl Fn(&Self) -> bool) {
        let begun = Instant::now();
        while !is_so(self) {
            assert!(begun.elapsed() < PATIENCE, "{what}: {:#}", self.group());
            std::thread::sleep(PAUSE);
        }
    }

    /// The nodes whose replicas are full members of a view that is carried out; none while one of
    /// them is lost, which is told before the view that leaves it out is begun.
    fn full(&self) -> Vec<String> {
        Self::full_of(&self.group())
    }

    fn full_of(group: &Value) -> Vec<String> {
        let replicas = group["replicas"].as_array().cloned().unwrap_or_default();
        let full = replicas.iter().filter(|it| it["state"] == "full");
        if group["complete"] != true || full.clone().any(|it| it["lost"] != false) {
            return Vec::new();
        }
        let mut full: Vec<String> =
            full.map(|it| it["node"].as_str().unwrap_or("?").to_owned()).collect();
        full.sort();
        full
    }

    fn is_whole(&self, nodes: &[&str]) {
        self.wait("the group is whole", |machines| machines.full() == nodes);
    }

    /// Makes two groups on these nodes.
    fn create_two(&self, nodes: &str) {
        let told = self.succeeds(&["group", "create", "g", "--nodes", nodes, "--groups", "2"]);
        assert!(told.ends_with("group g-2 takes writes\n"), "{told}");
    }

    /// Waits until those are members of the two groups.
    fn are_whole(&self, first: &[&str], second: &[&str]) {
        self.wait("both groups are whole", |machines| {
            [("g-1", first), ("g-2", second)]
                .iter()
                .all(|(name, nodes)| Self::full_of(&machines.part(name)) == *nodes)
        });
    }

    /// Whether all replicas are ready, and no member is missing.
    fn is_well(&self) -> bool {
        self.run(&["status"]).status.success()
    }

    fn create(&self) {
        let told = self.succeeds(&["group", "create", "g", "--nodes", "a,b,c"]);
        assert!(told.ends_with("group g takes writes\n"), "{told}");
        self.is_whole(&["a", "b", "c"]);
    }

    /// The node whose replica takes writes.
    fn writer(&self) -> String {
        Self::writer_of(&self.group())
    }

    fn writer_of(group: &Value) -> String {
        let mut seats = group["seats"].as_array().unwrap().iter();
        let seat = seats.find(|seat| seat["replica"] == group["writer"]);
        seat.unwrap()["node"].as_str().unwrap().to_owned()
    }

    fn verify(&self) {
        self.succeeds(&["verify"]);
    }
}

fn said(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

/// docs/faults.md: R1
#[test]
fn a_group_of_three_nodes_loses_one_and_its_controller_and_nothing_that_was_acknowledged() {
    let mut machines = Machines::new(1, &["a", "b", "c"]);
    machines.create();
    assert_eq!(machines.writer(), "a");
    let client = Logged::start(machines.clients("b"));
    client.goes_on();

    // The machine of the one that takes writes.
    machines.kill("a");
    client.goes_on();
    machines.wait("a is left out", |machines| machines.full() == ["b", "c"]);
    machines.is_seen(Some("Replica 1 on node a is lost: "));
    machines.is_seen(Some("2 of 3 full members are left"));
    assert_eq!(machines.writer(), "b");
    let listed = machines.json(&["group", "list"]);
    machines.start("a");
    machines.is_whole(&["a", "b", "c"]);
    machines.is_seen(None);
    assert_eq!(listed["groups"][0]["name"], "g");

    // Without a controller the data path goes on, and nobody can ask.
    machines.kill("controller");
    client.goes_on();
    let refused = machines.refused(&["status"]);
    let expected = format!("no controller answers on {}", machines.controller());
    assert!(refused.contains(&expected), "{refused}");
    machines.start("controller");
    machines.is_whole(&["a", "b", "c"]);
    machines.succeeds(&["failover", "c"]);
    assert_eq!(machines.writer(), "c");
    client.goes_on();
    machines.lose("c");
    client.goes_on();
    machines.start("c");
    machines.is_whole(&["a", "b", "c"]);

    let acknowledged = client.end();
    ["a", "b", "c"].iter().for_each(|node| has_all(machines.clients(node), &acknowledged));
    machines.verify();
    let events = machines.succeeds(&["events"]);
    for part in ["without replica 1 (replica 1: silent for", "told to have replica 3 take writes"] {
        assert!(events.contains(part), "{events}");
    }
}

/// docs/faults.md: R8
#[test]
fn nodes_that_start_while_no_controller_is_there_serve_what_they_hold() {
    let mut machines = Machines::new(2, &["a", "b", "c"]);
    machines.create();
    let client = Logged::start(machines.clients("b"));
    client.goes_on();
    machines.kill("controller");
    ["a", "b", "c"].iter().for_each(|node| machines.kill(node));
    ["c", "b", "a"].iter().for_each(|node| machines.start(node));
    client.goes_on();
    assert!(machines.log("a").contains("no controller answers on"), "{}", machines.log("a"));
    machines.start("controller");
    machines.is_whole(&["a", "b", "c"]);
    let acknowledged = client.end();
    has_all(machines.clients("a"), &acknowledged);
    machines.verify();
}

/// docs/faults.md: R11
#[test]
fn a_disk_that_is_empty_or_older_is_filled_and_one_of_another_node_is_refused() {
    let mut machines = Machines::new(3, &["a", "b", "c"]);
    machines.create();
    let client = Logged::start(machines.clients("a"));
    client.goes_on();

    // An empty disk in the place of one that is lost.
    machines.lose("b");
    client.goes_on();
    std::fs::remove_dir_all(machines.data("b")).unwrap();
    machines.start("b");
    machines.is_whole(&["a", "b", "c"]);

    // A copy of the disk from before, after the others went on.
    machines.lose("c");
    let copy = machines.processes.dir.join("copy");
    let copied = Command::new("cp").arg("-a").arg(machines.data("c")).arg(&copy).status().unwrap();
    assert!(copied.success());
    machines.start("c");
    machines.is_whole(&["a", "b", "c"]);
    client.goes_on();
    machines.lose("c");
    std::fs::remove_dir_all(machines.data("c")).unwrap();
    std::fs::rename(&copy, machines.data("c")).unwrap();
    machines.start("c");
    machines.is_whole(&["a", "b", "c"]);

    // Another node's.
    machines.kill("b");
    machines.kill("c");
    machines.write("b.toml", &machines.node_file("b", "c"));
    machines.start("b");
    let ended = machines.ended("b");
    assert_eq!(ended.code(), Some(2));
    let log = machines.log("b");
    assert!(log.contains("belongs to node c, and name is b: it is another node's disk"), "{log}");
    machines.write("b.toml", &machines.node_file("b", "b"));
    let [theirs, ours] = ["c", "b"].map(|node| {
        let mut list = std::fs::read_dir(machines.data(node)).unwrap().flatten();
        let group = list.find(|it| it.file_name().to_string_lossy().starts_with("group-")).unwrap();
        group.path()
    });
    let away = machines.processes.dir.join("away");
    std::fs::rename(&ours, &away).unwrap();
    let copied = Command::new("cp").arg("-a").arg(&theirs).arg(&ours).status().unwrap();
    assert!(copied.success());
    machines.start("b");
    assert_eq!(machines.ended("b").code(), Some(2));
    assert!(machines.log("b").contains("was made by node"), "{}", machines.log("b"));
    std::fs::remove_dir_all(&ours).unwrap();
    std::fs::rename(&away, &ours).unwrap();
    machines.start("b");
    machines.start("c");
    machines.is_whole(&["a", "b", "c"]);

    let acknowledged = client.end();
    has_all(machines.clients("a"), &acknowledged);
    machines.verify();
}

#[test]
fn members_come_and_go_by_the_names_of_their_nodes_and_a_drained_node_holds_nothing() {
    let mut machines = Machines::new(4, &["a", "b", "c"]);
    machines.create();
    let client = Logged::start(machines.clients("b"));
    client.goes_on();
    let refused = machines.refused(&["node", "drain", "a"]);
    assert!(refused.contains("group g has no spare that is well"), "{refused}");
    machines.succeeds(&["node", "drain", "a", "--cancel"]);
    machines.add("d");
    machines.wait("d is here", |machines| machines.succeeds(&["node", "list"]).contains("d: here"));

    // The others learn of the newcomer by the view alone.
    machines.succeeds(&["group", "add", "d"]);
    machines.is_whole(&["a", "b", "c", "d"]);
    machines.succeeds(&["failover", "d"]);
    client.goes_on();
    let refused = machines.refused(&["group", "add", "d"]);
    assert!(refused.contains("replica 4 is a member already"), "{refused}");
    machines.succeeds(&["group", "remove", "a"]);
    machines.is_whole(&["b", "c", "d"]);
    let told = machines.succeeds(&["node", "drain", "a"]);
    assert!(told.ends_with("node a holds no replica\n"), "{told}");
    let left = std::fs::read_dir(machines.data("a")).unwrap().flatten();
    let left: Vec<_> = left.map(|entry| entry.file_name().into_string().unwrap()).collect();
    assert!(left.iter().all(|name| !name.starts_with("group-")), "{left:?}");
    let refused = machines.refused(&["group", "add", "a"]);
    assert!(refused.contains("`gabion node drain a --cancel` ends that"), "{refused}");

    // A free node takes over from one that is drained, which took writes.
    machines.succeeds(&["node", "drain", "a", "--cancel"]);
    machines.succeeds(&["node", "drain", "d"]);
    machines.is_whole(&["a", "b", "c"]);
    client.goes_on();
    let acknowledged = client.end();
    has_all(machines.clients("a"), &acknowledged);
    machines.verify();

    // The processes of before, too, know where the newcomers are.
    machines.lose("b");
    machines.start("b");
    machines.is_whole(&["a", "b", "c"]);
    has_all(machines.clients("b"), &acknowledged);
}

/// docs/faults.md: P36
#[test]
fn files_are_checked_and_what_cannot_be_is_refused_in_one_line_before_anything_is_made() {
    let mut machines = Machines::new(5, &["a"]);
    let check = |command: &str, file: &str| {
        let path = machines.processes.dir.join(file);
        let output =
            Command::new(GABION).args([command, "--check", "--config"]).arg(path).output().unwrap();
        (output.status.code(), said(&output))
    };
    let (code, told) = check("controller", "controller.toml");
    assert!(code == Some(0) && told.contains("controller.toml: fine"), "{told}");
    let (code, told) = check("node", "a.toml");
    assert!(code == Some(0) && told.contains("a.toml: fine; node a"), "{told}");
    let file = machines.node_file("e", "e");
    for (from, to, part) in [
        ("pool_size", "poolsize", "e.toml: line 4: unknown field `poolsize`"),
        ("clients.listen = \"127", "clients.listen = \"10", "take a user with a password"),
        ("256MiB", "1MiB", "pool_size is 1MiB, the limits are 256MiB and 8TiB"),
        ("256MiB", "8TiB", "pool_size is 8.0 TiB, with a ring, for each group"),
    ] {
        machines.write("e.toml", &file.replace(from, to));
        let (code, told) = check("node", "e.toml");
        assert!(code == Some(2) && told.contains(part) && told.lines().count() == 1, "{told}");
    }
    let taken = machines.node_file("e", "e");
    let taken =
        taken.replace(&machines.clients("e").to_string(), &machines.clients("a").to_string());
    let _held = std::net::TcpListener::bind(machines.clients("a")).unwrap();
    machines.write("e.toml", &taken);
    machines.start("e");
    assert_eq!(machines.ended("e").code(), Some(2));
    let log = machines.log("e");
    assert!(log.contains("clients.listen is") && log.contains("cannot be listened on"), "{log}");
    for (words, part) in [
        (
            &["group", "create", "g", "--nodes", "a,x"][..],
            "node \"x\" has not registered; known are a",
        ),
        (&["status"], "there is no group yet"),
        (&["group", "list", "--group"], "--group"),
        (&["status", "--port", "7000"], "--port"),
    ] {
        let told = machines.refused(words);
        assert!(told.contains(part), "{told}");
    }
}

/// The bytes of the reply to a command.
fn reply(door: SocketAddr, command: &str) -> String {
    const END: &str = "end-of-the-reply";
    let mut stream = TcpStream::connect(door).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(format!("{command}\r\nECHO {END}\r\n").as_bytes()).unwrap();
    let (mut text, mut bytes) = (String::new(), [0; 4096]);
    while !text.ends_with(&format!("{END}\r\n")) {
        let len = stream.read(&mut bytes).unwrap();
        assert!(len > 0, "{command}: the connection ended after {text}");
        text.push_str(std::str::from_utf8(&bytes[..len]).unwrap());
    }
    text.split_once(&format!("${}\r\n{END}", END.len())).unwrap().0.to_owned()
}

/// docs/faults.md: R1
#[test]
fn groups_over_which_keys_are_spread_share_nodes_and_go_on_through_the_loss_of_any() {
    let mut machines = Machines::with_groups(2, 6, &["a", "b", "c", "d"]);
    machines.create_two("a,b,c,d");
    let are_whole = Machines::are_whole;
    are_whole(&machines, &["a", "b", "c"], &["b", "c", "d"]);
    let writers = ["g-1", "g-2"].map(|name| Machines::writer_of(&machines.part(name)));
    assert_ne!(writers[0], writers[1]);
    let node_door = |machines: &Machines, node: &str, place: u16| {
        SocketAddr::from((machines.clients(node).ip(), 7_000 + place))
    };

    // Slots 0 to 8191 are the first group's: that of `foo` is 12182. Any node takes any command at
    // its common door, and a group's own door tells where others are.
    let d = machines.clients("d");
    assert_eq!(reply(d, "SET foo 1"), "+OK\r\n");
    assert_eq!(reply(machines.clients("a"), "GET foo"), "$1\r\n1\r\n");
    let second = node_door(&machines, &writers[1], 1);
    let moved = reply(node_door(&machines, &writers[0], 0), "GET foo");
    assert!(moved.contains(&format!("MOVED 12182 {second}")), "{moved}");
    assert_eq!(reply(second, "GET foo"), "$1\r\n1\r\n");
    let slots = reply(d, "CLUSTER SLOTS");
    assert!(slots.contains("16383") && slots.contains("7001"), "{slots}");

    // Nodes d of the first group and a of the second hold spares, whose doors serve all the same.
    machines.wait("spares are ready as members are", Machines::is_well);
    let told = said(&machines.run(&["status"]));
    assert!(told.contains("group g-1\n") && told.contains("group g-2\n"), "{told}");
    let spares = told.lines().filter(|line| line.contains(" spare  "));
    assert!(spares.count() == 2 && !told.contains("not ready"), "{told}");

    // Users are the same at all doors of all nodes.
    assert_eq!(reply(second, "ACL SETUSER ann on >pw +get ~*"), "+OK\r\n");
    for (node, place) in [("a", 0), ("b", 1), ("d", 1)] {
        let door = node_door(&machines, node, place);
        machines.wait("users are told", |_| reply(door, "ACL LIST").contains("user ann on"));
    }

    let client = Logged::start(d);
    client.goes_on();
    for node in ["a", "c"] {
        machines.kill(node);
        client.goes_on();
        machines.wait("it is left out", |machines| {
            ["g-1", "g-2"].iter().all(|name| {
                let full = Machines::full_of(&machines.part(name));
                !full.is_empty() && !full.iter().any(|it| it == node)
            })
        });
        assert!(!machines.is_well(), "a member is missing");
        machines.start(node);
        are_whole(&machines, &["a", "b", "c"], &["b", "c", "d"]);
        machines.wait("all doors serve again", Machines::is_well);
    }

    // Another node takes the place of one of each group, and has a replica of both.
    machines.add("e");
    machines.wait("e is here", |machines| machines.succeeds(&["node", "list"]).contains("e: here"));
    machines.succeeds(&["group", "replace", "a", "e", "--group", "g-1"]);
    are_whole(&machines, &["b", "c", "e"], &["b", "c", "d"]);
    let told = machines.succeeds(&["node", "drain", "b"]);
    assert!(told.ends_with("node b holds no replica\n"), "{told}");
    machines.wait("spares have taken over", |machines| {
        ["g-1", "g-2"].iter().all(|name| Machines::full_of(&machines.part(name)).len() == 3)
    });
    client.goes_on();
    let acknowledged = client.end();
    ["a", "e"].iter().for_each(|node| has_all(machines.clients(node), &acknowledged));
    for name in ["g-1", "g-2"] {
        machines.succeeds(&["verify", "--group", name]);
    }
    let left = std::fs::read_dir(machines.data("b")).unwrap().flatten();
    let mut left = left.map(|entry| entry.file_name().into_string().unwrap());
    assert!(left.all(|name| !name.starts_with("group-")));
}

impl Machines {
    /// The directory of a node's replica of one of the two groups, and its number there.
    fn replica_dir(&self, group: &str, node: &str) -> (PathBuf, u64) {
        let listed = self.json(&["group", "list"]);
        let found = listed["groups"].as_array().unwrap().iter().find(|it| it["name"] == group);
        let found = found.unwrap();
        let mut seats = found["seats"].as_array().unwrap().iter();
        let replica = seats.find(|seat| seat["node"] == node).unwrap()["replica"].as_u64().unwrap();
        let base = self.data(node).join(format!("group-{}", found["group"]));
        (base.join(format!("replica-{replica}")), replica)
    }

    /// Damages the pool of a replica whose process does not run: the placement log goes.
    fn damage(&self, group: &str, node: &str) -> (PathBuf, u64) {
        let (dir, replica) = self.replica_dir(group, node);
        let pool = std::fs::File::options().write(true).open(dir.join("pool")).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&pool, &vec![0xa5; 1 << 20], 64 << 10).unwrap();
        (dir, replica)
    }

    /// Whether the page has a problem of this kind with these words.
    fn is_told(&self, kind: &str, words: &[&str]) {
        page::wait(self.page(), PATIENCE, |told| {
            let groups = told["groups"].as_array().cloned().unwrap_or_default();
            let problems = groups.iter().filter_map(|group| group["problems"].as_array()).flatten();
            problems.filter(|it| it["kind"] == kind).any(|it| {
                let text = it["text"].as_str().unwrap_or_default();
                words.iter().all(|word| text.contains(word))
            })
        });
    }
}

/// The files of a replica that were put aside.
fn aside_of(dir: &Path) -> Option<PathBuf> {
    let start = format!("{}.broken-", dir.file_name().unwrap().to_string_lossy());
    let mut entries = std::fs::read_dir(dir.parent().unwrap()).unwrap().flatten();
    let found = entries.find(|it| it.file_name().to_string_lossy().starts_with(&start));
    found.map(|entry| entry.path())
}

/// docs/faults.md: R11
#[test]
fn a_damaged_pool_is_named_and_put_aside_alone_of_the_groups_of_a_node() {
    let mut machines = Machines::with_groups(2, 7, &["a", "b", "c"]);
    machines.create_two("a,b,c");
    machines.are_whole(&["a", "b", "c"], &["a", "b", "c"]);
    assert_eq!(reply(machines.clients("a"), "SET foo 1"), "+OK\r\n");
    let is_left_out = |machines: &Machines, node: &str| {
        let groups = ["g-1", "g-2"];
        groups.iter().all(|name| !Machines::full_of(&machines.part(name)).contains(&node.into()))
    };

    machines.kill("c");
    machines.wait("c is left out", |machines| is_left_out(machines, "c"));
    let (first, _) = machines.replica_dir("g-1", "c");
    let (second, replica) = machines.damage("g-2", "c");
    machines.start("c");
    machines.are_whole(&["a", "b", "c"], &["a", "b", "c"]);
    let aside = aside_of(&second).expect("the damaged files are kept");
    assert_eq!(aside_of(&first), None, "the other group's pool is whole");
    let log = machines.log("c");
    let named = format!("{}: files of replica {replica} of group", second.display());
    assert!(log.contains(&named), "{log}");
    let aside_text = aside.display().to_string();
    let node = format!("Replica {replica} on node c of group g-2");
    machines.is_told("put-aside", &[&node, &aside_text]);
    let listed =
        |machines: &Machines, words: &str| machines.succeeds(&["node", "list"]).contains(words);
    machines.wait("the list of nodes tells it", |machines| listed(machines, &aside_text));
    std::fs::remove_dir_all(&aside).unwrap();
    machines.is_seen(None);

    // The group cannot do without it: nothing is put aside, and all say why.
    machines.kill("b");
    machines.wait("b is left out", |machines| is_left_out(machines, "b"));
    machines.kill("c");
    let (second, replica) = machines.damage("g-2", "c");
    machines.start("c");
    let node = format!("Replica {replica} on node c of group g-2");
    let path = second.display().to_string();
    let advice = format!("gabion group give-up {replica} --group g-2");
    machines.is_told("trouble", &[&node, &path, "damaged", &advice]);
    machines.is_told("trouble", &["on node c of group g-1", "of group g-2 are damaged"]);
    machines.wait("the lists tell of it", |machines| {
        listed(machines, &path) && listed(machines, &advice)
    });
    assert_eq!(aside_of(&second), None);
    // Replica 1 of node a has all that it had.
    machines.succeeds(&["group", "give-up", "c", "--group", "g-2"]);
    machines.start("b");
    machines.are_whole(&["a", "b", "c"], &["a", "b", "c"]);
    assert_eq!(reply(machines.clients("c"), "GET foo"), "$1\r\n1\r\n");
    for name in ["g-1", "g-2"] {
        machines.succeeds(&["verify", "--group", name]);
    }
}

#[test]
fn groups_are_made_of_a_backup_on_nodes_of_another_cluster_with_all_that_it_has() {
    let machines = Machines::with_groups(2, 8, &["a", "b", "c"]);
    machines.create_two("a,b,c");
    machines.are_whole(&["a", "b", "c"], &["a", "b", "c"]);
    let door = machines.clients("a");
    for key in 0..200 {
        assert_eq!(reply(door, &format!("SET key:{key} {key}")), "+OK\r\n");
    }
    // It outlives the cluster of which it is.
    let dir = std::env::temp_dir().join(format!("gabion-machines-backup-{}", std::process::id()));
    let backups = dir.display().to_string();
    machines.succeeds(&["backup", &backups]);
    assert_eq!(reply(door, "SET late 1"), "+OK\r\n");
    let create = ["group", "create", "again", "--nodes", "a,b,c", "--from-backup", &backups];
    let refused = machines.refused(&create);
    assert!(refused.contains("holds replica"), "{refused}");
    drop(machines);

    let mut machines = Machines::with_groups(2, 9, &["a", "b", "c"]);
    let refused = machines.refused(&[&create[..], &["--backup", "7"]].concat());
    assert!(refused.contains("has no backup 7"), "{refused}");
    let told = machines.succeeds(&create);
    assert!(told.ends_with("group again-2 takes writes\n"), "{told}");
    let names = ["again-1", "again-2"];
    machines.wait("both groups are whole", |machines| {
        names.iter().all(|name| Machines::full_of(&machines.part(name)).len() == 3)
    });
    let door = machines.clients("b");
    for key in 0..200 {
        let value = key.to_string();
        let expected = format!("${}\r\n{value}\r\n", value.len());
        assert_eq!(reply(door, &format!("GET key:{key}")), expected);
    }
    assert_eq!(reply(door, "EXISTS late"), ":0\r\n");
    names.iter().for_each(|name| drop(machines.succeeds(&["verify", "--group", name])));

    // From there on it is a group as any other: a lost disk is filled by the others.
    assert_eq!(reply(door, "SET later 2"), "+OK\r\n");
    machines.kill("c");
    machines.wait("c is left out", |machines| {
        names.iter().all(|name| Machines::full_of(&machines.part(name)).len() == 2)
    });
    std::fs::remove_dir_all(machines.data("c")).unwrap();
    machines.start("c");
    machines.wait("both groups are whole", |machines| {
        names.iter().all(|name| Machines::full_of(&machines.part(name)).len() == 3)
    });
    assert_eq!(reply(machines.clients("c"), "GET later"), "$1\r\n2\r\n");
    std::fs::remove_dir_all(&dir).unwrap();
}

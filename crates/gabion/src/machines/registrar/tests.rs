//! Nodes and operators as lines, over a store in memory; the groups' replicas do not run.

use super::*;
use crate::control::driver::{Driver, Setup};
use crate::machines::config::{ClusterDoors, DoorAddresses};
use gabion_base::units::GIB;
use gabion_control::store::MemoryStore;
use gabion_control::{Epoch, Patience};

/// A registrar, and the driver that its groups are looked after by.
struct Rig {
    registrar: Registrar,
    store: SharedStore,
    _driver: Driver,
}

/// A free port of this machine, on which nobody listens: no replica runs here.
fn door(last: u8, port: u16) -> std::net::SocketAddr {
    ([127, 77, 0, last], port).into()
}

fn record(name: &str, last: u8) -> NodeRecord {
    let addresses = DoorAddresses {
        clients: door(last, 1),
        members: door(last, 2),
        targets: door(last, 3),
        cluster: None,
    };
    NodeRecord::new(name.to_owned(), u64::from(last), addresses, GIB, format!("rack-{name}"))
}

impl Rig {
    fn new() -> Self {
        Self::on(SharedStore::new(Box::new(MemoryStore::default())))
    }

    fn on(store: SharedStore) -> Self {
        let epoch = Epoch { number: 1, id: 1 };
        let setup = Setup { patience: Patience::default(), epoch, tls: None };
        let driver = Driver::start(&setup, Vec::new(), Box::new(store.clone()), |_, _| {}).unwrap();
        let registry = Registry::open(store.clone(), 7).unwrap();
        let registrar = Registrar::new(registry, driver.handle(), Names::default());
        Self { registrar, store, _driver: driver }
    }

    fn ask(&self, question: &Value) -> Value {
        self.registrar.answer(&question.to_string(), &Caller::Anyone)
    }

    fn refusal(&self, question: &Value) -> String {
        let answer = self.ask(question);
        assert_eq!(answer["ok"], false, "{answer}");
        answer["error"].as_str().unwrap().to_owned()
    }

    /// A node says what it is and has. Returns its orders.
    fn hear(&self, node: &NodeRecord, has: &[(u64, u32)]) -> Result<Vec<Order>> {
        let word = |(group, replica): &(u64, u32)| ReplicaWord {
            group: *group,
            replica: *replica,
            is_made: true,
            trouble: None,
            aside: None,
        };
        let words: Vec<ReplicaWord> = has.iter().map(word).collect();
        let question = json!({ "do": "node", "node": node, "free": 100 * GIB, "replicas": words });
        let answer = wire::accepted(self.ask(&question))?;
        Ok(serde_json::from_value(answer["orders"].clone()).unwrap())
    }

    fn create(&self) -> u64 {
        let question = json!({ "do": "create", "name": "g", "nodes": ["a", "b", "c"] });
        let answer = wire::accepted(self.ask(&question)).unwrap();
        answer["group"].as_u64().unwrap()
    }
}

#[test]
fn founders_run_once_all_pools_are_there_and_a_pool_that_is_lost_later_is_made_empty() {
    let rig = Rig::new();
    let nodes = [record("a", 2), record("b", 3), record("c", 4)];
    nodes.iter().for_each(|node| assert_eq!(rig.hear(node, &[]).unwrap(), []));
    let group = rig.create();
    let order = rig.hear(&nodes[0], &[]).unwrap().remove(0);
    assert_eq!((order.group, order.replica, order.make), (group, 1, Make::Founder));
    assert_eq!((order.runs, order.peers.len()), (false, 2));
    rig.hear(&nodes[0], &[(group, 1)]).unwrap();
    assert!(!rig.hear(&nodes[1], &[(group, 2)]).unwrap()[0].runs, "the third is missing");
    let order = rig.hear(&nodes[2], &[(group, 3)]).unwrap().remove(0);
    assert_eq!((order.runs, order.make), (true, Make::Empty));
    // Lost now.
    let order = rig.hear(&nodes[0], &[]).unwrap().remove(0);
    assert_eq!((order.runs, order.make), (true, Make::Empty));
    assert!(!order.may_be_made_anew, "nobody has reported");
    // One that comes later was never made, and then it was.
    let d = record("d", 5);
    rig.hear(&d, &[]).unwrap();
    rig.ask(&json!({ "do": "add", "group": "g", "replica": "d" }));
    assert!(rig.hear(&d, &[]).unwrap()[0].may_be_made_anew, "there is nothing to lose");
    rig.hear(&d, &[(group, 4)]).unwrap();
    assert!(!rig.hear(&d, &[]).unwrap()[0].may_be_made_anew, "its disk may be out");
    // A controller that comes later knows it all.
    let later = Rig::on(rig.store.clone());
    assert!(later.hear(&nodes[1], &[(group, 2)]).unwrap()[0].runs);
    let groups = later.ask(&json!({ "do": "groups" }))["groups"].take();
    assert_eq!((&groups[0]["name"], &groups[0]["state"]), (&json!("g"), &json!("made")));
}

#[test]
fn a_second_node_of_a_name_is_refused_and_one_with_a_new_disk_is_not() {
    let rig = Rig::new();
    let a = record("a", 2);
    rig.hear(&a, &[]).unwrap();
    let mut other = record("a", 2);
    other.id = 99;
    let error = rig.hear(&other, &[]).unwrap_err().to_string();
    assert!(error.contains("has that name and is here"), "{error}");
    // It was heard by a controller that is gone: nobody is here now.
    let later = Rig::on(rig.store.clone());
    later.hear(&other, &[]).unwrap();
    let error = later.hear(&a, &[]).unwrap_err().to_string();
    assert!(error.contains("0000000000000063"), "{error}");
}

#[test]
fn an_address_belongs_to_one_node_and_stays_while_it_holds_something() {
    let rig = Rig::new();
    let nodes = [record("a", 2), record("b", 3), record("c", 4)];
    nodes.iter().for_each(|node| drop(rig.hear(node, &[]).unwrap()));
    let mut same = record("d", 5);
    same.addresses.targets = door(2, 1);
    let error = rig.hear(&same, &[]).unwrap_err().to_string();
    let expected =
        "node d: targets.reached_at is 127.77.0.2:1, which is clients.reached_at of node a";
    assert_eq!(error, expected);
    let mut beyond = record("d", 5);
    beyond.addresses.members = ([10, 0, 0, 1], 2).into();
    let error = rig.hear(&beyond, &[]).unwrap_err().to_string();
    assert!(error.contains("members.reached_at of node d is 10.0.0.1:2"), "{error}");
    let mut any = record("d", 5);
    any.addresses.clients = ([0, 0, 0, 0], 1).into();
    let error = rig.hear(&any, &[]).unwrap_err().to_string();
    assert!(error.contains("clients.reached_at of node d is 0.0.0.0:1, to which"), "{error}");
    rig.create();
    let mut moved = record("a", 2);
    moved.addresses.members = door(2, 9);
    let error = rig.hear(&moved, &[]).unwrap_err().to_string();
    assert!(error.contains("reach its replica 1 of group g at 127.77.0.2:2"), "{error}");
    let mut free = record("d", 5);
    rig.hear(&free, &[]).unwrap();
    free.addresses.members = door(5, 9);
    rig.hear(&free, &[]).unwrap();
}

/// docs/faults.md: P36
#[test]
fn a_group_that_cannot_be_is_refused_with_what_is_wrong() {
    let rig = Rig::new();
    let mut small = record("s", 9);
    small.pool_size = 128 << 20;
    let mut near = record("n", 8);
    near.failure_domain = "rack-a".to_owned();
    let nodes = [record("a", 2), record("b", 3), record("c", 4), near, small];
    nodes.iter().for_each(|node| drop(rig.hear(node, &[]).unwrap()));
    let with = |more: Value| {
        let mut question = json!({ "do": "create", "name": "g", "nodes": ["a", "b"] });
        question.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        question
    };
    for (more, part) in [
        (json!({"name": "7"}), "a group's name is \"7\""),
        (json!({"nodes": ["a"]}), "a group of 1 members: 2 to 16 are possible"),
        (json!({"replicas": 3}), "--replicas 3: --nodes names 2"),
        (json!({"groups": 17}), "--groups 17: the limits are 1 and 16"),
        (json!({"groups": 2}), "node a may hold replicas of 1 groups, not of 2"),
        (json!({"nodes": ["a", "x"]}), "node \"x\" has not registered; known are a, b, c, n, s"),
        (json!({"nodes": ["a", "a"]}), "node a is named twice"),
        (json!({"nodes": ["a", "n"]}), "nodes a and n share the failure domain rack-a"),
        (json!({"nodes": ["a", "s"]}), "--pool-size 128MiB is too small"),
        (
            json!({"spares": ["s"]}),
            "node s has pool_size 128MiB, and the pools of the group have 1GiB",
        ),
        (json!({"min_replicas": 3}), "--min-replicas 3: the group has 2"),
        (json!({"min_replicas": 0}), "--min-replicas 0"),
        (json!({"memtable_size": 1}), "--memtable-size is 1"),
        (json!({"compression": "zip"}), "`compression` is \"zip\", which is no codec"),
        (json!({"nodes": "a"}), "`nodes` is \"a\", names are expected"),
    ] {
        let refusal = rig.refusal(&with(more));
        assert!(refusal.contains(part), "{refusal}");
    }
    let both = with(json!({"nodes": ["a", "n"], "share_domains": true}));
    wire::accepted(rig.ask(&both)).unwrap();
    assert!(rig.refusal(&with(json!({}))).contains("there is a group \"g\" already"));
    let other = with(json!({"name": "h"}));
    assert!(rig.refusal(&other).contains("node a holds replica 1 of group g"));
    for (question, part) in [
        (json!({"do": "status", "group": "x"}), "there is no group \"x\", but g"),
        (json!({"do": "status"}), "is being made"),
        (json!({"do": "drain", "node": "a"}), "the group is being made"),
        (json!({"do": "dance"}), "`do` is \"dance\", which is unknown"),
        (json!({"do": "node", "node": {}, "replicas": []}), "the words of a node cannot be read"),
    ] {
        let refusal = rig.refusal(&question);
        assert!(refusal.contains(part), "{refusal}");
    }
    assert!(
        rig.registrar.answer("x", &Caller::Anyone)["error"].as_str().unwrap().contains("no JSON")
    );
}

#[test]
fn a_group_that_is_given_up_goes_from_its_nodes_and_leaves_its_name() {
    let rig = Rig::new();
    let nodes = [record("a", 2), record("b", 3), record("c", 4)];
    nodes.iter().for_each(|node| drop(rig.hear(node, &[]).unwrap()));
    let group = rig.create();
    rig.hear(&nodes[0], &[(group, 1)]).unwrap();
    wire::accepted(rig.ask(&json!({ "do": "abandon", "group": "g" }))).unwrap();
    let order = rig.hear(&nodes[0], &[(group, 1)]).unwrap().remove(0);
    assert!(order.is_released && !order.runs);
    for node in &nodes {
        rig.hear(node, &[]).unwrap();
        assert_eq!(rig.hear(node, &[]).unwrap(), []);
    }
    assert_eq!(rig.ask(&json!({ "do": "groups" }))["groups"], json!([]));
    let again = rig.create();
    assert_ne!(again, group);
    // Made: it may hold data.
    for (replica, node) in (1..).zip(&nodes) {
        rig.hear(node, &[(again, replica)]).unwrap();
    }
    let refusal = rig.refusal(&json!({ "do": "abandon", "group": "g" }));
    assert!(refusal.contains("is made, and may hold data"), "{refusal}");
}

/// A node that may hold replicas of two groups.
fn wide(name: &str, last: u8) -> NodeRecord {
    let mut node = record(name, last);
    node.addresses.members = door(last, 20);
    node.addresses.targets = door(last, 30);
    let tls = Some(door(last, 50));
    node.addresses.cluster = Some(ClusterDoors { plain: door(last, 40), tls });
    node.groups_max = 2;
    node
}

#[test]
fn several_groups_begin_at_once_on_all_their_nodes_and_a_node_comes_and_goes_with_all_of_them() {
    let rig = Rig::new();
    let nodes = ["a", "b", "c", "d"].map(|name| wide(name, name.as_bytes()[0]));
    nodes.iter().for_each(|node| drop(rig.hear(node, &[]).unwrap()));
    let question = json!({
        "do": "create", "name": "g", "nodes": ["a", "b", "c", "d"], "groups": 2, "replicas": 3,
    });
    let answer = wire::accepted(rig.ask(&question)).unwrap();
    assert_eq!(answer["names"], json!(["g-1", "g-2"]));
    let first = answer["group"].as_u64().unwrap();
    let replicas = |node: &NodeRecord, has: &[(u64, u32)]| {
        let orders = rig.hear(node, has).unwrap();
        orders.iter().map(|it| (it.group - first, it.replica, it.make)).collect::<Vec<_>>()
    };
    // Each group begins on the node after that of the one before, and each node has both.
    use Make::{Empty, Founder};
    assert_eq!(replicas(&nodes[0], &[]), [(0, 1, Founder), (1, 4, Empty)]);
    assert_eq!(replicas(&nodes[1], &[]), [(0, 2, Founder), (1, 1, Founder)]);
    assert_eq!(replicas(&nodes[3], &[]), [(0, 4, Empty), (1, 3, Founder)]);
    let order = rig.hear(&nodes[1], &[]).unwrap().remove(1);
    assert_eq!(order.addresses, nodes[1].addresses.of_place(1));
    assert_eq!(order.addresses.members, door(b'b', 21));
    assert_eq!(order.addresses.clients, door(b'b', 41));
    let settings = Settings::from_json(&order.settings).unwrap();
    assert_eq!((settings.groups, settings.place), (2, 1));

    // None runs before all pools of both are there.
    let all = |node: usize| {
        let second = [4, 1, 2, 3][node];
        [(first, node as u32 + 1), (first + 1, second)]
    };
    for (place, node) in nodes.iter().enumerate().take(3) {
        assert!(rig.hear(node, &all(place)).unwrap().iter().all(|order| !order.runs), "{place}");
    }
    assert!(rig.hear(&nodes[3], &all(3)).unwrap().iter().all(|order| order.runs));
    let refusal = rig.refusal(&json!({ "do": "abandon", "group": "g" }));
    assert!(refusal.contains("group g-1 is made, and may hold data"), "{refusal}");
    let refusal = rig.refusal(&json!({ "do": "status", "group": "g" }));
    assert!(refusal.contains("g is several groups: say one of g-1, g-2"), "{refusal}");

    // One that holds less would leave a group without a replica there.
    let mut narrow = nodes[0].clone();
    narrow.groups_max = 1;
    let error = rig.hear(&narrow, &all(0)).unwrap_err().to_string();
    assert!(error.contains("node a: groups.max is 1, and it holds replicas of 2"), "{error}");
    let mut moved = nodes[0].clone();
    moved.addresses.cluster = Some(ClusterDoors { plain: door(b'a', 40), tls: None });
    let error = rig.hear(&moved, &all(0)).unwrap_err().to_string();
    assert!(error.contains("node a: groups.tls_reached_at is nowhere, and the others"), "{error}");

    // A newcomer to one of them gets a replica of each.
    let e = wide("e", b'e');
    rig.hear(&e, &[]).unwrap();
    rig.ask(&json!({ "do": "add", "group": "g-2", "replica": "e" }));
    assert_eq!(replicas(&e, &[]), [(0, 5, Empty), (1, 5, Empty)]);
}

#[test]
fn several_groups_are_given_up_together() {
    let rig = Rig::new();
    let mut nodes = ["a", "b"].map(|name| wide(name, name.as_bytes()[0]));
    nodes.iter_mut().for_each(|node| node.groups_max = 3);
    nodes.iter().for_each(|node| drop(rig.hear(node, &[]).unwrap()));
    let question = json!({ "do": "create", "name": "g", "nodes": ["a", "b"], "groups": 3 });
    let first = wire::accepted(rig.ask(&question)).unwrap()["group"].as_u64().unwrap();
    // All founders of the first are there, and it waits for those of the second.
    rig.hear(&nodes[0], &[(first, 1)]).unwrap();
    assert!(rig.hear(&nodes[1], &[(first, 2)]).unwrap().iter().all(|order| !order.runs));
    wire::accepted(rig.ask(&json!({ "do": "abandon", "group": "g" }))).unwrap();
    let orders = rig.hear(&nodes[0], &[(first, 1)]).unwrap();
    assert!(orders.iter().all(|order| order.is_released && !order.runs));
    for node in nodes.iter().chain(&nodes) {
        rig.hear(node, &[]).unwrap();
    }
    assert_eq!(rig.ask(&json!({ "do": "groups" }))["groups"], json!([]));
    // Fewer under the same name: what was given up counts no more.
    let fewer = json!({ "do": "create", "name": "g", "nodes": ["a", "b"], "groups": 2 });
    let first = wire::accepted(rig.ask(&fewer)).unwrap()["group"].as_u64().unwrap();
    rig.hear(&nodes[0], &[(first, 1), (first + 1, 2)]).unwrap();
    let orders = rig.hear(&nodes[1], &[(first, 2), (first + 1, 1)]).unwrap();
    assert!(orders.iter().all(|order| order.runs));
}

#[test]
fn several_groups_of_which_one_is_made_and_none_runs_can_be_given_up() {
    let rig = Rig::new();
    let nodes = ["a", "b"].map(|name| wide(name, name.as_bytes()[0]));
    nodes.iter().for_each(|node| drop(rig.hear(node, &[]).unwrap()));
    let question = json!({ "do": "create", "name": "g", "nodes": ["a", "b"], "groups": 2 });
    wire::accepted(rig.ask(&question)).unwrap();
    {
        // As after a controller that ended between the two.
        let mut inner = rig.registrar.lock();
        let mut spec = inner.registry.spec("g-1").unwrap().clone();
        spec.state = GroupState::Made;
        inner.registry.put_group(spec).unwrap();
    }
    wire::accepted(rig.ask(&json!({ "do": "abandon", "group": "g" }))).unwrap();
    assert!(rig.hear(&nodes[0], &[]).unwrap().iter().all(|order| order.is_released));
}

#[test]
fn a_node_may_get_doors_for_groups_while_it_holds_a_replica_of_one() {
    let rig = Rig::new();
    let nodes = [record("a", 2), record("b", 3), record("c", 4)];
    nodes.iter().for_each(|node| drop(rig.hear(node, &[]).unwrap()));
    let group = rig.create();
    let mut more = nodes[0].clone();
    more.addresses.cluster = Some(ClusterDoors { plain: door(2, 40), tls: None });
    more.groups_max = 2;
    assert_eq!(rig.hear(&more, &[(group, 1)]).unwrap().len(), 1);
}

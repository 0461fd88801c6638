//! The walk-through of docs/machines.md on a network of its own: nodes, controllers and members of
//! etcd, each with an address, and clients in three languages through the loss of each.
//!
//! ```text
//!   xtask walk ─► setpriv, unshare: network, mounts, processes ─► xtask walk-inside
//!
//!   a  b  c  d  e      nodes: gabion node ─► gabion server        10.77.0.11 …
//!   ctl-1  ctl-2       gabion controller, of which one leads      10.77.0.21 …
//!   etcd-1 … etcd-3    their store                                10.77.0.31 …
//!   clients            redis-py, ioredis, Lettuce                 10.77.0.41
//!   ───── bridge ──── xtask walk-inside: operators' commands      10.77.0.1
//! ```
//!
//! Each host has a network namespace, and a bridge joins them. The process `walk-inside` is the
//! first of its namespace of processes: however it ends, the kernel ends all others, and the
//! networks go with them.
//!
//! Clients log what was acknowledged, and when. Afterwards every logged write is there, and the
//! longest time between two of them is what a fault has cost a group.

mod load;
mod network;
mod place;

use crate::clients;
use crate::cluster::{need, need_space, program, run, scratch};
use crate::golang;
use crate::steps::Step;
use load::{Load, Window, now_ms};
use network::Network;
use place::Place;
use serde_json::{Value, json};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Groups over which the keys are spread.
const GROUPS: usize = 4;
/// Pools and rings of a replica of each group at each node, and logs.
const DISK: u64 = 8 << 30;
/// How long a fault lasts once the controllers have done what they can, and how long nothing
/// happens before the next one.
const CALM: Duration = Duration::from_secs(3);
/// The longest time without an answer for a group that lost a member.
const HIT_MS: u64 = 1_000;
/// The same where nothing tells clients that the node is gone: they give up a command first, and
/// perhaps a connection.
const HIT_UNTOLD_MS: u64 = 2_500;
/// The same where the leading controller or etcd's leader is lost with it.
const HIT_WITH_LEADER_MS: u64 = 5_000;
/// The longest time between two answers of a group that lost nothing: pauses of the client, which
/// makes connections anew for other groups, and of a machine that is shared.
const CALM_MS: u64 = 1_000;

/// A fault of the suite.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// `kill -9` of all processes of the node that takes a group's writes.
    Node,
    /// The same node's link is cut.
    Link,
    /// The leading controller.
    Controller,
    /// etcd's leader.
    Etcd,
    /// A node, and at once the leading controller.
    NodeAndController,
    /// A node, and at once etcd's leader.
    NodeAndEtcd,
}

impl Fault {
    const ALL: [Self; 6] = [
        Self::Node,
        Self::Controller,
        Self::Etcd,
        Self::Link,
        Self::NodeAndController,
        Self::NodeAndEtcd,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::Node => "node killed",
            Self::Link => "node's link cut",
            Self::Controller => "leading controller killed",
            Self::Etcd => "etcd's leader killed",
            Self::NodeAndController => "node and leading controller killed",
            Self::NodeAndEtcd => "node and etcd's leader killed",
        }
    }

    const fn has_node(self) -> bool {
        !matches!(self, Self::Controller | Self::Etcd)
    }

    const fn has_controller(self) -> bool {
        matches!(self, Self::Controller | Self::NodeAndController)
    }

    const fn has_etcd(self) -> bool {
        matches!(self, Self::Etcd | Self::NodeAndEtcd)
    }

    /// The longest time without an answer that a group should see.
    const fn allowed_ms(self, is_hit: bool) -> u64 {
        match is_hit {
            true if self.has_controller() || self.has_etcd() => HIT_WITH_LEADER_MS,
            true if matches!(self, Self::Link) => HIT_UNTOLD_MS,
            true => HIT_MS,
            false => CALM_MS,
        }
    }
}

/// The check, over several groups or over `one`.
pub(crate) fn check(words: &[&str]) -> Step {
    let groups = match words {
        [] => GROUPS,
        ["one"] => 1,
        _ => return Err(format!("{words:?}: nothing, or `one` for one group")),
    };
    println!("\n── The walk-through on a network of its own, through the loss of each part");
    let begun = Instant::now();
    need("ip", "iproute2")?;
    need("curl", "curl")?;
    need("setpriv", "util-linux")?;
    need_space("walk", DISK)?;
    let (program, etcd) = (program()?, golang::build("etcd", "etcd")?);
    let mut writers = vec![("redis-py", clients::redis_py("walk.py")?)];
    // Cluster clients want a cluster, which one group is not.
    if groups > 1 {
        writers.push(("ioredis", clients::node("walk.mjs")?));
        writers.push(("Lettuce", clients::java("Walk.java")?));
    }
    println!("── all is built, {:.0} s", begun.elapsed().as_secs_f64());
    let dir = scratch("walk")?;
    let setup = json!({ "program": program, "etcd": etcd, "groups": groups, "writers": writers });
    write(&dir.join("setup.json"), &setup.to_string())?;
    let own = std::env::current_exe().map_err(|error| format!("this program: {error}"))?;
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--", "unshare"]).args(ISOLATED).arg("--");
    let ran = run(command.arg(own).arg("walk-inside").arg(&dir));
    println!("── {:.0} s", begun.elapsed().as_secs_f64());
    match ran {
        // Files of options and logs of processes say more; pools are large.
        Err(error) => {
            place::remove_large(&dir);
            Err(format!("{error}; see {}", dir.display()))
        }
        Ok(()) => std::fs::remove_dir_all(&dir).map_err(|e| format!("{}: {e}", dir.display())),
    }
}

/// A network, mounts and processes of its own. The last two leave nothing behind: the first process
/// dies with its parent, and every other with it.
const ISOLATED: [&str; 6] = ["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"];

/// The part in a network of its own.
pub(crate) fn inside(dir: &str) -> Step {
    let dir = Path::new(dir);
    let text = std::fs::read(dir.join("setup.json")).map_err(|e| format!("setup.json: {e}"))?;
    let setup: Value = serde_json::from_slice(&text).map_err(|e| format!("setup.json: {e}"))?;
    let network = Network::make()?;
    let mut place = Place::new(dir, &setup, network)?;
    let walked = walk(&mut place, &setup);
    walked.map_err(|error| format!("{error}\n{}", place.logs()))
}

/// The walk-through itself, then the faults.
fn walk(place: &mut Place, setup: &Value) -> Step {
    let begun = Instant::now();
    place.issue_certificates()?;
    place.start_all()?;
    place.create_groups()?;
    place.add_user()?;
    println!("── the groups take writes after {:.1} s", begun.elapsed().as_secs_f64());
    let load = Load::start(place, setup)?;
    let mut windows = vec![window("nothing fails", place, None, 0, |_| {
        std::thread::sleep(CALM);
        Ok(())
    })?];
    for (turn, fault) in Fault::ALL.into_iter().enumerate() {
        windows.push(strike(place, fault, turn)?);
        load.all_go_on()?;
    }
    let logs = load.finish()?;
    // An answer that comes late after a fault counts as that fault's.
    for later in 1..windows.len() {
        windows[later - 1].until = windows[later].from;
    }
    if let Some(last) = windows.last_mut() {
        last.until = now_ms();
    }
    let too_long = load::table(&windows, &logs, place.groups());
    load::read_back(place, &logs)?;
    place.verify()?;
    if too_long.is_empty() { Ok(()) } else { Err(too_long.join("\n")) }
}

/// Runs a fault, and says when and for whom.
fn window(
    name: &str,
    place: &mut Place,
    node: Option<&str>,
    allowed_ms: u64,
    act: impl FnOnce(&mut Place) -> Step,
) -> Result<Window, String> {
    let hit = node.map_or_else(|| Ok(Vec::new()), |node| place.groups_on(node))?;
    println!("── {name}{}", node.map(|node| format!(" (node {node})")).unwrap_or_default());
    let from = now_ms();
    act(place)?;
    let name = name.to_owned();
    Ok(Window { name, hit, allowed_ms, calm_ms: CALM_MS, from, until: now_ms() })
}

/// A fault, until all is there again.
fn strike(place: &mut Place, fault: Fault, turn: usize) -> Result<Window, String> {
    // Each time another group loses the node that takes its writes.
    let node = match fault.has_node() {
        true => Some(place.writer_of(turn % place.groups().len())?),
        false => None,
    };
    let controller = fault.has_controller().then(|| place.leading_controller()).transpose()?;
    let etcd = fault.has_etcd().then(|| place.leading_etcd()).transpose()?;
    let lost: Vec<String> = [&node, &controller, &etcd].into_iter().flatten().cloned().collect();
    let allowed = fault.allowed_ms(true);
    window(fault.name(), place, node.as_deref(), allowed, |place| {
        match fault {
            Fault::Link => place.network.cut(&lost[0])?,
            _ => place.kill(&lost)?,
        }
        let begun = Instant::now();
        if let Some(node) = &node {
            place.wait_without(node)?;
        }
        if controller.is_some() {
            place.leading_controller()?;
        }
        println!("   carried out after {:.1} s", begun.elapsed().as_secs_f64());
        std::thread::sleep(CALM);
        match fault {
            Fault::Link => place.network.join(&lost[0])?,
            _ => lost.iter().try_for_each(|host| place.start(host))?,
        }
        place.wait_whole()?;
        println!("   whole again after {:.1} s", begun.elapsed().as_secs_f64());
        std::thread::sleep(CALM / 3);
        Ok(())
    })
}

fn write(path: &Path, text: &str) -> Step {
    std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
}

//! The commands that ask a controller: `gabion group create|list|abandon`, `gabion node
//! list|drain`. Those about one group are `up`'s too: [`crate::control::ask`].

use super::wire::Asker;
use super::{node, trust};
use crate::backup::restore::Stored;
use crate::cluster;
use crate::control::ask::{self as asking, Source};
use crate::door;
use crate::options::{
    CreateOptions, DataOption, GroupCommand, GroupOptions, NodeCommand, NodeCommandOptions,
    WhereOptions,
};
use crate::screen::put;
use crate::status;
use crate::units::{exact_size, size};
use gabion_base::{Error, ErrorKind, GroupId, Result};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// How long `create` waits until the group answers.
const CREATE_MAX: Duration = Duration::from_secs(120);
/// The same for one that is made of a backup, which may be large.
const RESTORE_MAX: Duration = Duration::from_secs(24 * 3_600);
/// How long nothing may change while a node is drained: a replica that is filled shows progress.
const DRAIN_QUIET_MAX: Duration = Duration::from_secs(120);
const ASK_EVERY: Duration = Duration::from_millis(100);

/// Asks a controller one question.
///
/// # Errors
/// Unavailable where none answers; its own.
pub(crate) fn ask(address: SocketAddr, question: &Value) -> Result<Value> {
    Asker::connect("--controller", address, &trust::shown()?)?.ask(question)
}

/// `gabion group`.
pub(crate) fn group(options: &GroupOptions) -> Result<u8> {
    let command = options.command.as_ref();
    trust::show(options.place.remote.identity.as_ref());
    let Some(controller) = options.place.remote.controller else {
        return asking::group(&options.place, command);
    };
    match command {
        Some(GroupCommand::Create(create)) => make(controller, create),
        Some(GroupCommand::List { json }) => list_groups(controller, *json),
        Some(GroupCommand::Abandon { name }) => {
            ask(controller, &json!({ "do": "abandon", "group": name })).map(|_| 0)
        }
        _ => asking::group(&options.place, command),
    }
}

/// `gabion node`.
pub(crate) fn node(options: &NodeCommandOptions) -> Result<u8> {
    match (&options.command, &options.run) {
        (Some(NodeCommand::List { controller, json }), _) => {
            trust::show(controller.identity.as_ref());
            list_nodes(controller.controller, *json)
        }
        (Some(NodeCommand::Drain { node, cancel, controller }), _) => {
            trust::show(controller.identity.as_ref());
            drain(controller.controller, node, *cancel)
        }
        (None, Some(run)) => node::run(run),
        (None, None) => Err(Error::invalid("--config names the file with the node's options")),
    }
}

/// The addresses for clients of a group's replicas. Of several groups over which keys are spread
/// the first one's doors are for all. With TLS they are the doors that nodes have for it, or those
/// with the port that the options say.
pub(crate) fn addresses(place: &WhereOptions) -> Result<Vec<(u32, SocketAddr)>> {
    trust::show(place.remote.identity.as_ref());
    let source = match (place.remote.controller, parts(place)?) {
        (Some(address), Some(parts)) => {
            Source::Controller { address, group: parts.names.into_iter().next() }
        }
        _ => Source::of(place)?,
    };
    let group = source.status()?;
    let seats = group["seats"].as_array().cloned().unwrap_or_default();
    let address = |seat: &Value| {
        let replica = seat["replica"].as_u64().and_then(|number| u32::try_from(number).ok())?;
        let is_told = door::is_tls() && place.port.is_none();
        let door = if is_told { "clients_tls" } else { "clients" };
        let mut address: SocketAddr = seat[door].as_str()?.parse().ok()?;
        if let (true, Some(port)) = (door::is_tls(), place.port) {
            address.set_port(port);
        }
        Some((replica, address))
    };
    let has_none = |seat: &&Value| seat["clients_tls"].is_null();
    if let (true, None, Some(seat)) = (door::is_tls(), place.port, seats.iter().find(has_none)) {
        return Err(Error::invalid(format!(
            "--tls: node {} has no door with TLS, clients.tls_listen (for each of several groups \
             groups.tls_listen)",
            seat["node"].as_str().unwrap_or("?")
        )));
    }
    let found: Option<Vec<_>> = seats.iter().map(address).collect();
    let found = found
        .filter(|found| !found.is_empty())
        .ok_or_else(|| Error::unavailable("the controller does not say where the replicas are"))?;
    let has_port = door::is_tls() && place.port.is_some();
    if let (true, Some(controller)) = (has_port, place.remote.controller) {
        check_group(controller, &group["name"], &found)?;
    }
    Ok(found)
}

/// Checks that the port of TLS doors is this group's: of several groups each has its own.
fn check_group(controller: SocketAddr, name: &Value, doors: &[(u32, SocketAddr)]) -> Result<()> {
    let answer = ask(controller, &json!({ "do": "groups" }))?;
    let groups = answer["groups"].as_array().cloned().unwrap_or_default();
    let Some(own) = groups.iter().find(|group| group["name"] == *name) else { return Ok(()) };
    // Where none answers the command itself says so.
    let told = doors.iter().find_map(|(_, at)| status::ask(*at).ok().map(|status| (at, status)));
    match told {
        Some((at, status)) if status["group"] != own["group"] => Err(Error::invalid(format!(
            "{at} is no door of group {}: --port says the port of its own TLS doors, and --group \
             which one is meant",
            name.as_str().unwrap_or("?")
        ))),
        _ => Ok(()),
    }
}

/// Groups over which keys are spread.
pub(crate) struct Groups {
    /// The number of the first one.
    pub(crate) first: GroupId,
    /// How each is named, in their order.
    pub(crate) each: Vec<WhereOptions>,
}

/// All groups that are meant, where they are several: those of a controller, or of the data of
/// `up`. None where one is named, or there is one.
///
/// # Errors
/// Of the controller; of the settings.
pub(crate) fn groups(place: &WhereOptions) -> Result<Option<Groups>> {
    if let Some(parts) = parts(place)? {
        let named = |name: String| {
            let mut place = place.clone();
            place.remote.group = Some(name);
            place
        };
        let each = parts.names.into_iter().map(named).collect();
        return Ok(Some(Groups { first: parts.first, each }));
    }
    if place.remote.controller.is_some() || place.port.is_some() {
        return Ok(None);
    }
    let data = cluster::data_dir(&place.data)?;
    let known = cluster::load(&data)?.filter(|known| known.groups > 1 && known.place == 0);
    let Some(settings) = known else { return Ok(None) };
    let of = |(dir, _)| {
        let mut place = place.clone();
        place.data = DataOption { data: Some(dir) };
        place
    };
    let each = settings.by_group(&data).into_iter().map(of).collect();
    Ok(Some(Groups { first: settings.group, each }))
}

struct Parts {
    names: Vec<String>,
    first: GroupId,
}

/// The groups of a controller where none is named, if keys are spread over all that there are.
fn parts(place: &WhereOptions) -> Result<Option<Parts>> {
    let (Some(controller), None) = (place.remote.controller, &place.remote.group) else {
        return Ok(None);
    };
    trust::show(place.remote.identity.as_ref());
    let answer = ask(controller, &json!({ "do": "groups" }))?;
    let mut groups = answer["groups"].as_array().cloned().unwrap_or_default();
    groups.sort_by_key(|group| group["part"]["place"].as_u64());
    let Some(first) = groups.first().filter(|group| group["part"]["of"].is_string()) else {
        return Ok(None);
    };
    let is_whole = groups.iter().all(|group| group["part"]["of"] == first["part"]["of"])
        && first["part"]["groups"] == groups.len();
    let names = groups.iter().filter_map(|group| group["name"].as_str().map(str::to_owned));
    let number = first["group"].as_u64().filter(|_| is_whole);
    Ok(number.map(|number| Parts { names: names.collect(), first: GroupId(number) }))
}

/// `gabion group create`: returns when the group takes writes.
fn make(controller: SocketAddr, options: &CreateOptions) -> Result<u8> {
    let restored = options.from_backup.as_deref().map(|dir| {
        let (backup, settings) = Stored::find(dir, options.backup)?;
        Ok::<_, Error>(json!({ "backup": backup, "settings": settings.to_json() }))
    });
    let restored = restored.transpose()?;
    let wait = if restored.is_some() { RESTORE_MAX } else { CREATE_MAX };
    let codec = |codec: Option<gabion_engine::sst::Compression>| codec.map(|it| it.to_string());
    let question = json!({
        "do": "create",
        "name": options.name,
        "nodes": options.nodes,
        "spares": options.spares,
        "replicas": options.replicas,
        "groups": options.groups,
        "share_domains": options.share_domains,
        "restored": restored,
        "min_replicas": options.min_replicas,
        "ack": options.ack.map(|ack| ack.level().as_str()),
        "memtable_size": options.memtable_size,
        "compression": codec(options.compression),
        "bottom_compression": codec(options.bottom_compression),
    });
    let answer = ask(controller, &question)?;
    let begun = Instant::now();
    for name in answer["names"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        wait_for_writes(controller, name, begun + wait).map_err(|error| {
            error.within(format!(
                "the controller goes on, see `gabion group list`, or give it up with `gabion \
                 group abandon {}`",
                options.name
            ))
        })?;
        put(&format!("group {name} takes writes\n"));
    }
    Ok(0)
}

/// Waits until a group takes writes, and says what it waits for.
fn wait_for_writes(controller: SocketAddr, name: &str, until: Instant) -> Result<()> {
    let begun = Instant::now();
    let mut said = String::new();
    let source = Source::Controller { address: controller, group: Some(name.to_owned()) };
    loop {
        let waits = match source.status() {
            Ok(group) => not_well(&group),
            Err(error) if error.kind() == ErrorKind::Busy => Some(not_made(controller, name)?),
            Err(error) => return Err(error),
        };
        let Some(waits) = waits else { return Ok(()) };
        if waits != said {
            put(&format!("{waits}\n"));
            said = waits;
        }
        if Instant::now() > until {
            return Err(Error::unavailable(format!(
                "group {name} does not take writes after {} s: {said}",
                begun.elapsed().as_secs()
            )));
        }
        std::thread::sleep(ASK_EVERY);
    }
}

/// The part of a new group that does not run yet; none when all of it runs.
fn not_well(group: &Value) -> Option<String> {
    let replicas = group["replicas"].as_array()?;
    let is_well = |seat: &Value| {
        let mut own = replicas.iter().filter(|it| it["replica"] == seat["replica"]);
        own.any(|it| it["verdict"] == "well")
    };
    let seats = group["seats"].as_array()?;
    let Some(first) = seats.iter().find(|seat| !is_well(seat)) else {
        let waits = group["writes_wait"].as_str().map(|why| format!("writes wait: {why}"));
        let is_complete = group["complete"] == true;
        return waits.or_else(|| (!is_complete).then(|| "a view is carried out".to_owned()));
    };
    let replica = first["replica"].as_u64().unwrap_or(0);
    Some(format!("replica {replica} on {} starts", first["node"].as_str().unwrap_or("?")))
}

/// The node whose pool a new group waits for.
fn not_made(controller: SocketAddr, name: &str) -> Result<String> {
    let answer = ask(controller, &json!({ "do": "groups" }))?;
    let groups = answer["groups"].as_array().cloned().unwrap_or_default();
    let own = groups.iter().find(|group| group["name"] == name);
    let seats = own.and_then(|group| group["seats"].as_array().cloned()).unwrap_or_default();
    let Some(first) = seats.iter().find(|seat| seat["made"] != true) else {
        return Ok("the pools are made".to_owned());
    };
    let node = first["node"].as_str().unwrap_or("?");
    Ok(match first["trouble"].as_str() {
        Some(trouble) => format!("node {node}: {trouble}"),
        None => format!("node {node} makes its pool"),
    })
}

fn list_groups(controller: SocketAddr, json: bool) -> Result<u8> {
    let answer = ask(controller, &json!({ "do": "groups" }))?;
    if json {
        put(&format!("{:#}\n", json!({ "groups": answer["groups"] })));
        return Ok(0);
    }
    let groups = answer["groups"].as_array().cloned().unwrap_or_default();
    for group in &groups {
        put(&group_line(group));
    }
    if groups.is_empty() {
        put("there is no group yet: `gabion group create` makes one\n");
    }
    Ok(0)
}

fn group_line(group: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or("?").to_owned();
    let seats = group["seats"].as_array().cloned().unwrap_or_default();
    let seats: Vec<String> = seats
        .iter()
        .map(|seat| format!("{} on {}{}", seat["replica"], text(&seat["node"]), trouble_of(seat)))
        .collect();
    let config = group["config"].as_u64().map_or_else(String::new, |it| format!(", c{it}"));
    let away = group["away"].as_array().cloned().unwrap_or_default();
    let away: Vec<String> = away.iter().map(text).collect();
    let away = match away.is_empty() {
        true => String::new(),
        false => format!("; away: {}", away.join(", ")),
    };
    let waits = group["writes_wait"].as_str().map(|why| format!("; writes wait: {why}"));
    format!(
        "{}: {}{config}; replicas {}{away}{}\n",
        text(&group["name"]),
        text(&group["state"]),
        seats.join(", "),
        waits.unwrap_or_default()
    )
}

/// The node's word on a replica, in brackets: what is wrong with it, and what is kept of it.
fn trouble_of(replica: &Value) -> String {
    let trouble = replica["trouble"].as_str().map(str::to_owned);
    let aside = replica["aside"].as_str().map(|dir| format!("its former files are {dir}"));
    trouble.or(aside).map_or_else(String::new, |text| format!(" ({text})"))
}

fn list_nodes(controller: SocketAddr, json: bool) -> Result<u8> {
    let answer = ask(controller, &json!({ "do": "nodes" }))?;
    let nodes = answer["nodes"].as_array().cloned().unwrap_or_default();
    if json {
        put(&format!("{:#}\n", json!({ "nodes": nodes })));
        return Ok(0);
    }
    for node in &nodes {
        put(&node_line(node));
    }
    if nodes.is_empty() {
        put("no node has registered yet: `gabion node --config node.toml` does\n");
    }
    Ok(0)
}

fn node_line(node: &Value) -> String {
    let text = |name: &str| node[name].as_str().unwrap_or("?").to_owned();
    let is_here = match (node["here"].as_bool(), node["heard_ms"].as_u64()) {
        (Some(true), _) => "here".to_owned(),
        (_, Some(ms)) => format!("away for {} s", ms / 1_000),
        _ => "away since the controller started".to_owned(),
    };
    let draining = if node["draining"] == true { ", drained" } else { "" };
    let replicas = node["replicas"].as_array().cloned().unwrap_or_default();
    let replicas: Vec<String> = replicas
        .iter()
        .map(|it| {
            let group = it["group"].as_str().unwrap_or("?");
            format!("replica {} of {group}{}", it["replica"], trouble_of(it))
        })
        .collect();
    let holds = if replicas.is_empty() { "nothing".to_owned() } else { replicas.join(", ") };
    let free = node["free"].as_u64().map(|free| format!(", {} free", size(free)));
    format!(
        "{}: {is_here}{draining}; in {}, pools of {}{}; clients {}; holds {holds}\n",
        text("name"),
        text("failure_domain"),
        exact_size(node["pool_size"].as_u64().unwrap_or(0)),
        free.unwrap_or_default(),
        text("clients"),
    )
}

/// `gabion node drain`: returns when the node holds nothing.
fn drain(controller: SocketAddr, node: &str, cancel: bool) -> Result<u8> {
    let (mut changed, mut said) = (Instant::now(), String::new());
    loop {
        let question = json!({ "do": "drain", "node": node, "cancel": cancel });
        let answer = ask(controller, &question)?;
        let text = answer["text"].as_str().unwrap_or("?").to_owned();
        if text != said {
            put(&format!("{text}\n"));
            (changed, said) = (Instant::now(), text);
        }
        if answer["done"] == true {
            return Ok(0);
        }
        if changed.elapsed() > DRAIN_QUIET_MAX {
            return Err(Error::unavailable(format!(
                "nothing has changed for {} s: {said}; the same command goes on with it",
                DRAIN_QUIET_MAX.as_secs()
            )));
        }
        std::thread::sleep(ASK_EVERY);
    }
}

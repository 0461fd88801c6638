//! `gabion ncl status --controller`: peers, programs and their files, as the controller knows them.

use super::identity::client_number;
use super::{Shown, StatusOptions};
use crate::screen;
use crate::units::{count, size};
use gabion_base::Result;
use gabion_control::{Store, Versioned};
use gabion_fabric::remote::LinkAddress;
use gabion_media::remote::{ClientConfig, ClientId, ConnectionGeneration, PeerId};
use gabion_ncl::map::{ApMap, InstanceRecord, PEERS_PREFIX, PeerRecord, instance_name, peer_of};
use gabion_ncl_driver::address::{PeerAddress, boot};
use gabion_ncl_driver::report::{FileReport, InstanceReport, report_name};
use gabion_ncl_driver::tls::connect;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

const APPS_PREFIX: &str = "ncl/apps/";
/// A running instance renews its lease more often.
const BEAT: Duration = Duration::from_millis(1_000);
/// How long a peer may take to greet.
const GREETING_MS: u64 = 1_000;
/// Files of an application that are shown in words.
const FILES_SHOWN_MAX: usize = 20;

struct Peer {
    record: PeerRecord,
    address: PeerAddress,
    /// Its run and free bytes by its own word, or why there is none.
    found: std::result::Result<(u32, u64), String>,
}

#[derive(Default)]
struct Application {
    map: ApMap,
    instance: Option<InstanceRecord>,
    /// Whether its instance renews the lease.
    is_running: bool,
    report: Option<(InstanceReport, u32)>,
}

pub(super) fn run(options: &StatusOptions, controller: &LinkAddress) -> Result<u8> {
    let shown = Shown::open(options.token_file.as_deref(), options.identity.as_deref())?;
    let mut store = shown.store(controller);
    let mut peers = BTreeMap::new();
    for (name, found) in store.list(PEERS_PREFIX)? {
        let Some(id) = peer_of(&name) else { continue };
        let record = PeerRecord::decode(&found.value)?;
        let address = PeerAddress::decode(&record.address)?;
        let found = greet(id, &address, &shown);
        peers.insert(id, Peer { record, address, found });
    }
    let mut applications = BTreeMap::new();
    for (name, found) in store.list(APPS_PREFIX)? {
        take(&mut applications, &name, &found)?;
    }
    if applications.values().any(|app| app.instance.is_some_and(|instance| instance.is_held)) {
        std::thread::sleep(BEAT);
    }
    for (owner, application) in &mut applications {
        let found = store.get(&instance_name(owner))?;
        let later = found.map(|found| InstanceRecord::decode(&found.value)).transpose()?;
        application.is_running =
            later != application.instance && later.is_some_and(|it| it.is_held);
        application.instance = later;
        let report = store.get(&report_name(owner))?;
        application.report = report.map(|it| InstanceReport::decode(&it.value)).transpose()?;
    }
    let text = match options.json {
        true => format!("{:#}\n", in_json(&peers, &applications)),
        false => in_words(&peers, &applications),
    };
    screen::put(&text);
    Ok(0)
}

fn take(
    applications: &mut BTreeMap<String, Application>,
    name: &str,
    found: &Versioned,
) -> Result<()> {
    let Some((owner, what)) = name.strip_prefix(APPS_PREFIX).and_then(|it| it.rsplit_once('/'))
    else {
        return Ok(());
    };
    let application = applications.entry(owner.to_owned()).or_default();
    match what {
        "map" => application.map = ApMap::decode(&found.value)?,
        "instance" => application.instance = Some(InstanceRecord::decode(&found.value)?),
        _ => {}
    }
    Ok(())
}

fn greet(
    id: PeerId,
    address: &PeerAddress,
    shown: &Shown,
) -> std::result::Result<(u32, u64), String> {
    let mut why = "it has ended".to_owned();
    for place in address.places(&boot()) {
        let mut config = ClientConfig::new(ClientId(client_number()), ConnectionGeneration(1));
        config.token = shown.token();
        config.reply_timeout_ms = GREETING_MS;
        match connect(place, config, shown.tls.as_deref(), address) {
            Ok(link) if link.peer() == id => return Ok((link.incarnation().0, link.free_bytes())),
            Ok(link) => why = format!("peer {} is there", link.peer()),
            Err(error) => why = error.to_string(),
        }
    }
    Err(why)
}

fn in_json(peers: &BTreeMap<PeerId, Peer>, applications: &BTreeMap<String, Application>) -> Value {
    let peer = |(id, peer): (&PeerId, &Peer)| {
        json!({
            "peer": id.to_string(),
            "incarnation": peer.record.incarnation.0,
            "failure_domain": peer.record.domain,
            "free": peer.found.as_ref().map_or(peer.record.free_bytes, |(_, free)| *free),
            "tcp": peer.address.tcp.map(|tcp| tcp.to_string()),
            "socket": peer.address.unix.as_ref().map(|(_, path)| path.display().to_string()),
            "reachable": peer.found.is_ok(),
            "error": peer.found.as_ref().err(),
        })
    };
    let file = |file: &FileReport| json!({ "name": file.name, "bytes": file.len });
    let application = |(owner, app): (&String, &Application)| {
        let report = app.report.as_ref().map(|(report, _)| report);
        let members = app.map.members.iter().map(|member| member.peer.to_string());
        json!({
            "application": owner,
            "term": app.instance.map_or(0, |instance| instance.term.0),
            "running": app.is_running,
            "peers": members.collect::<Vec<_>>(),
            "process": report.map(|it| it.process),
            "copies": report.map(|it| it.copies),
            "wanted": report.map(|it| it.wanted),
            "shared_memory": report.map(|it| it.shared),
            "losses": report.map(|it| it.losses),
            "replaced": report.map(|it| it.replaced),
            "last_loss_ms": report.map(|it| it.last_loss_ms),
            "files_count": app.report.as_ref().map(|(_, all)| *all),
            "files": report.map(|it| it.files.iter().map(file).collect::<Vec<_>>()),
        })
    };
    json!({
        "peers": peers.iter().map(peer).collect::<Vec<_>>(),
        "applications": applications.iter().map(application).collect::<Vec<_>>(),
    })
}

fn in_words(
    peers: &BTreeMap<PeerId, Peer>,
    applications: &BTreeMap<String, Application>,
) -> String {
    let mut out = String::new();
    let mut line = |text: String| {
        // A string takes all.
        let _ = writeln!(out, "{text}");
    };
    line(format!(
        "{}, {}",
        count(peers.len() as u64, "peer"),
        count(applications.len() as u64, "application")
    ));
    for (id, peer) in peers {
        let domain = match peer.record.domain.as_str() {
            "" => String::new(),
            name => format!(", failure domain {}", name.escape_debug()),
        };
        let state = match &peer.found {
            Ok((run, free)) => format!("run {run}{domain}, {} free", size(*free)),
            Err(why) => format!("run {}{domain}, not reached: {why}", peer.record.incarnation),
        };
        line(format!("  peer {id}: {state}"));
    }
    for (owner, application) in applications {
        words_of(&mut line, owner, application);
    }
    out
}

fn words_of(line: &mut impl FnMut(String), owner: &str, application: &Application) {
    let term = application.instance.map_or(0, |instance| instance.term.0);
    let members: Vec<String> =
        application.map.members.iter().map(|member| member.peer.to_string()).collect();
    let state = match (&application.report, application.is_running) {
        (Some((report, _)), true) => format!("runs as process {}", report.process),
        (None, true) => "starts".to_owned(),
        (_, false) => "does not run".to_owned(),
    };
    line(format!("  {}: term {term}, {state}", owner.escape_debug()));
    line(format!("    copies at {}", members.join(", ")));
    let Some((report, files)) = &application.report else { return };
    if application.is_running {
        line(format!(
            "    {} of {} copies, {} by shared memory; copies were missing {}, the last \
             time for {} ms; {} made anew",
            report.copies,
            report.wanted,
            report.shared,
            count(report.losses, "time"),
            report.last_loss_ms,
            report.replaced
        ));
    }
    for file in report.files.iter().take(FILES_SHOWN_MAX) {
        line(format!("    {} {}", file.name.escape_debug(), size(file.len)));
    }
    let shown = report.files.len().min(FILES_SHOWN_MAX) as u64;
    if u64::from(*files) > shown {
        line(format!("    and {} more", count(u64::from(*files) - shown, "file")));
    }
}

//! The controller's metrics, for Prometheus.

use super::driver::Handle;
use super::socket::state;
use gabion_base::{Error, GroupId};
use gabion_control::{GroupStatus, Verdict};
use gabion_server::metrics::{Kind, Page, Route, write_process};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A kind of events, and how their text is known.
type EventKind = (&'static str, fn(&str) -> bool);
const KINDS: [EventKind; 9] = [
    ("lost", |text| text.starts_with("without replica ")),
    ("filling", |text| text.ends_with(" is being filled")),
    ("filled", |text| text.ends_with(" is full")),
    ("left", |text| text.ends_with(" leaves, as it was told to")),
    ("told", |text| text.starts_with("told to ")),
    ("complete", |text| text.contains(" is complete: ")),
    ("writes_wait", |text| text.starts_with("writes wait: ")),
    ("store_set_back", |text| text.contains("set back")),
    ("other", |_| true),
];
/// The kind of which one ends each reconfiguration.
const COMPLETE: &str = "complete";
/// States of a replica as the controller names them.
const STATES: [&str; 6] = ["full", "kept", "filled", "filling", "removed", "spare"];

/// How many events of each kind there were since the controller began.
#[derive(Default)]
pub(super) struct EventCounts([AtomicU64; KINDS.len()]);

impl EventCounts {
    pub(super) fn count(&self, text: &str) {
        let kind = KINDS.iter().position(|(_, is_kind)| is_kind(text));
        let kind = kind.unwrap_or(KINDS.len() - 1);
        self.0[kind].fetch_add(1, Ordering::Relaxed);
    }

    fn each(&self) -> impl Iterator<Item = (&'static str, u64)> {
        KINDS.iter().zip(&self.0).map(|((kind, _), count)| (*kind, count.load(Ordering::Relaxed)))
    }
}

/// The controller's numbers, and those of this process.
pub(super) fn route(controller: Handle, group: GroupId, events: Arc<EventCounts>) -> Route {
    Route::metrics(move || {
        let status = controller.ask(move |controller, now| controller.status(group, now))?;
        let status = status.ok_or_else(|| Error::not_found(format!("no record of {group}")))?;
        let group = group.get().to_string();
        let mut page = Page::new(&[("group", &group)]);
        write_group(&mut page, &status);
        write_events(&mut page, &events);
        Ok(page.finish() + &of_process())
    })
}

/// The numbers of a process without a controller.
pub(crate) fn of_process() -> String {
    let mut page = Page::new(&[]);
    write_process(&mut page);
    page.finish()
}

fn write_group(page: &mut Page, status: &GroupStatus) {
    let view = &status.view;
    let help = "Replicas by their state: full, kept and filling members, those that will be \
                members, those that were told to leave, spares.";
    let mut family = page.family("gabion_controller_replicas", Kind::Gauge, help);
    for name in STATES {
        let count = status.replicas.iter().filter(|it| state(status, it) == name).count();
        family.sample(&[("state", name)], count);
    }
    let names: Vec<String> =
        status.replicas.iter().map(|it| it.replica.get().to_string()).collect();
    let help = "1 for a replica that has failed, or was not heard yet.";
    let mut family = page.family("gabion_controller_replica_lost", Kind::Gauge, help);
    for (replica, name) in status.replicas.iter().zip(&names) {
        let is_lost = replica.verdict.is_none_or(Verdict::is_failure);
        family.sample(&[("member", name)], is_lost);
    }
    let help = "Full members that the group is to have.";
    page.gauge("gabion_controller_members_wanted", help, u32::from(status.wanted));
    let help = "Full members without which the group takes no writes.";
    page.gauge("gabion_controller_members_min", help, u32::from(view.members_min));
    let help = "1 while too few full members are left for writes.";
    page.gauge("gabion_controller_writes_wait", help, view.too_few().is_some());
    let help = "1 where the newest list of members is in effect.";
    page.gauge("gabion_controller_complete", help, status.is_complete);
    let help = "The number of the newest list of members.";
    page.gauge("gabion_controller_config", help, view.config.get());
    page.gauge("gabion_controller_term", "The highest term of a replica.", status.term.get());
    let filling =
        || status.replicas.iter().zip(&names).filter_map(|(it, n)| Some((it.filling?, n)));
    let help = "Bytes that a member which is being filled is to have.";
    let mut family = page.family("gabion_controller_rebuild_bytes", Kind::Gauge, help);
    filling().for_each(|(filling, name)| family.sample(&[("member", name)], filling.bytes));
    let help = "Bytes of those that it has.";
    let mut family = page.family("gabion_controller_rebuild_done_bytes", Kind::Gauge, help);
    filling().for_each(|(filling, name)| family.sample(&[("member", name)], filling.bytes_done));
}

fn write_events(page: &mut Page, events: &EventCounts) {
    let help = "What the controller saw and did since it began, by kind: `gabion events` tells it.";
    let mut family = page.family("gabion_controller_events_total", Kind::Counter, help);
    for (kind, count) in events.each() {
        family.sample(&[("kind", kind)], count);
    }
    let done = events.each().find(|(kind, _)| *kind == COMPLETE).map_or(0, |(_, count)| count);
    let help = "Lists of members that took effect since the controller began.";
    page.counter("gabion_controller_reconfigurations_total", help, done);
}

#[cfg(test)]
mod tests {
    use super::*;
    use gabion_base::ReplicaId;
    use gabion_control::plan::Change;

    #[test]
    fn each_event_is_of_one_kind_and_every_change_of_its_own() {
        let id = ReplicaId(2);
        let lost = format!("{} (replica 2: silent for 420 ms)", Change::Lose(vec![id]));
        let changes = [Change::Fill(id), Change::Take(id), Change::Leave(id)];
        let texts: Vec<String> = changes.iter().map(ToString::to_string).collect();
        let others = [
            "told to remove replica 2",
            "c7 is complete: replica 1 takes writes, replica 3 answers reads",
            "writes wait: fewer full members are left than the 2 that the group needs",
            "c7 is known to replicas, and the store had c5: it was set back",
            "the moon is full of cheese",
        ];
        let counts = EventCounts::default();
        counts.count(&lost);
        texts.iter().for_each(|text| counts.count(text));
        others.iter().for_each(|text| counts.count(text));
        assert!(counts.each().all(|(_, count)| count == 1), "{:?}", Vec::from_iter(counts.each()));
    }
}

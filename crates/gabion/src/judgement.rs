//! Everything that is wrong with a group, in sentences, worst first: the one judgement that the
//! status page, `gabion status`, `gabion group` and `gabion top` show.

use crate::filling;
use crate::units::{count, size, span};
use gabion_base::ReplicaId;
use gabion_control::{GroupStatus, ReplicaStatus, Verdict};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// A disk is slow whose probe writes take longer, in µs: ten times the time of a slow hard disk.
const SLOW_PROBE_US: u64 = 100_000;
/// Part of a pool's slots, in percent, from which on it is told that it fills up.
const POOL_USED_MAX: u64 = 90;
/// Age of the oldest record that a full member lacks, in ms, from which on it is told.
const LAG_MS_MAX: u64 = 10_000;
/// Days before the end of a certificate from which on it is told.
pub(crate) const CERTIFICATE_DAYS_MIN: i64 = 14;
pub(crate) const DAY_S: i64 = 86_400;
/// The advice on a certificate that ends.
pub(crate) const RENEW: &str =
    "`gabion ca renew` makes another one; in the old one's place it is read without a restart.";

/// How much something matters, from the least.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Severity {
    /// It passes by itself.
    Note,
    /// It gets worse if nobody acts.
    Warn,
    /// Clients are refused, or data is at risk.
    Bad,
}

impl Severity {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Note => "note",
            Self::Warn => "warn",
            Self::Bad => "bad",
        }
    }
}

/// Kinds of problems, the worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    NoAnswer,
    BelowMinimum,
    FullDisk,
    Lost,
    HangingDisk,
    Trouble,
    Store,
    CertificateExpired,
    SlowDisk,
    Fewer,
    Lagging,
    PoolShort,
    CertificateEnds,
    NodeAway,
    Spare,
    Filling,
    PutAside,
    Starting,
}

impl Kind {
    const fn as_str(self) -> &'static str {
        match self {
            Self::NoAnswer => "no-answer",
            Self::BelowMinimum => "below-minimum",
            Self::FullDisk => "full-disk",
            Self::Lost => "lost",
            Self::HangingDisk => "hanging-disk",
            Self::Trouble => "trouble",
            Self::Store => "store",
            Self::CertificateExpired => "certificate-expired",
            Self::SlowDisk => "slow-disk",
            Self::Fewer => "fewer",
            Self::Lagging => "lagging",
            Self::PoolShort => "pool-short",
            Self::CertificateEnds => "certificate-ends",
            Self::NodeAway => "node-away",
            Self::Spare => "spare",
            Self::Filling => "filling",
            Self::PutAside => "put-aside",
            Self::Starting => "starting",
        }
    }
}

/// One thing that is wrong.
#[derive(Clone, Debug)]
pub(crate) struct Problem {
    pub(crate) kind: Kind,
    pub(crate) severity: Severity,
    /// One sentence.
    pub(crate) text: String,
    /// One sentence on what to do.
    pub(crate) advice: String,
}

impl Problem {
    pub(crate) fn new(
        kind: Kind,
        severity: Severity,
        text: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        Self { kind, severity, text: text.into(), advice: advice.into() }
    }

    pub(crate) fn json(&self) -> Value {
        json!({
            "severity": self.severity.as_str(),
            "kind": self.kind.as_str(),
            "text": self.text,
            "advice": self.advice,
        })
    }
}

/// Puts the worst first.
pub(crate) fn sort(problems: &mut [Problem]) {
    problems.sort_by_key(|it| (std::cmp::Reverse(it.severity), it.kind));
}

/// The sentences of an answer of the controller that are worth a line in a terminal.
pub(crate) fn sentences(group: &Value) -> impl Iterator<Item = &str> {
    let problems = group["problems"].as_array().map_or(&[][..], Vec::as_slice);
    problems.iter().filter_map(|it| it["text"].as_str())
}

/// The circumstances of a group that its replicas do not report.
#[derive(Clone, Debug, Default)]
pub(crate) struct Around {
    /// Its name, where there are several.
    pub(crate) group: Option<String>,
    /// The places of its replicas; empty where each is on this machine.
    pub(crate) seats: BTreeMap<ReplicaId, SeatNote>,
    /// Why the controller's store does not answer, if it does not.
    pub(crate) store: Option<String>,
    /// When the controller's own certificate ends, if it has one, in seconds since 1970.
    pub(crate) controller_until_s: Option<i64>,
    /// Seconds since 1970.
    pub(crate) unix_s: i64,
}

/// A replica's place on a node.
#[derive(Clone, Debug, Default)]
pub(crate) struct SeatNote {
    pub(crate) node: String,
    /// The node's word on what is wrong with it.
    pub(crate) trouble: Option<String>,
    /// Place of files that it had before, if any were put aside.
    pub(crate) aside: Option<String>,
    /// The node has not asked for its orders lately.
    pub(crate) is_away: bool,
    /// The controller does not connect with it, as its certificate has expired.
    pub(crate) is_expired: bool,
}

impl Around {
    /// The group, as a sentence begins with it.
    fn group(&self) -> String {
        self.group.as_ref().map_or_else(|| "The group".to_owned(), |name| format!("Group {name}"))
    }

    fn is_controller_expired(&self) -> bool {
        self.controller_until_s.is_some_and(|until_s| until_s <= self.unix_s)
    }

    /// A replica within a sentence.
    fn replica(&self, replica: ReplicaId) -> String {
        let mut name = format!("replica {}", replica.get());
        if let Some(seat) = self.seats.get(&replica) {
            name += &format!(" on node {}", seat.node);
        }
        if let Some(group) = &self.group {
            name += &format!(" of group {group}");
        }
        name
    }
}

/// Everything that is wrong with a group, the worst first.
pub(crate) fn judge(group: &GroupStatus, around: &Around) -> Vec<Problem> {
    let mut problems = Vec::new();
    of_group(group, around, &mut problems);
    of_store(around, &mut problems);
    of_controller(around, &mut problems);
    of_room(group, around, &mut problems);
    for replica in group.replicas.iter().filter(|it| counts(it, around)) {
        of_replica(group, replica, around, &mut problems);
    }
    sort(&mut problems);
    problems
}

/// Whether anybody cares about a replica: one that was removed is silent for ever.
fn counts(replica: &ReplicaStatus, around: &Around) -> bool {
    let has_seat = around.seats.is_empty() || around.seats.contains_key(&replica.replica);
    replica.is_member || (has_seat && !replica.is_leaving)
}

fn is_lost(replica: &ReplicaStatus) -> bool {
    replica.verdict.is_some_and(Verdict::is_failure)
}

/// Full members that are well.
fn left(group: &GroupStatus) -> usize {
    group.replicas.iter().filter(|it| it.is_full && !is_lost(it)).count()
}

fn of_group(group: &GroupStatus, around: &Around, problems: &mut Vec<Problem>) {
    let name = around.group();
    let members: Vec<&ReplicaStatus> = group.replicas.iter().filter(|it| it.is_member).collect();
    let is_heard = |it: &&ReplicaStatus| it.verdict.is_some() && !is_lost(it);
    let (left, needed) = (left(group), usize::from(group.view.members_min));
    if !members.is_empty() && !members.iter().any(is_heard) {
        let start = "Start its processes, or look whether the network between them and the \
                     controller is cut; nothing that was acknowledged is lost while their disks \
                     are there.";
        let (why, advice) = match around.is_controller_expired() {
            true => (", whose certificate has expired", RENEW),
            false => ("", start),
        };
        let text = format!("{name} does not answer: no member is heard by the controller{why}.");
        problems.push(Problem::new(Kind::NoAnswer, Severity::Bad, text, advice));
    } else if group.view.too_few().is_some() || left < needed {
        let is = if left == 1 { "is" } else { "are" };
        problems.push(Problem::new(
            Kind::BelowMinimum,
            Severity::Bad,
            format!(
                "{name} is below its minimum and takes no writes: {} {is} left, and it needs \
                 {needed}.",
                count(left as u64, "full member")
            ),
            "Bring a lost member back; `gabion group give-up` goes on without one that will never \
             be back.",
        ));
    } else if group.view.full().count() < usize::from(group.wanted)
        && members.iter().all(|it| it.is_full)
        && !group.replicas.iter().any(|it| counts(it, around) && is_lost(it))
    {
        problems.push(Problem::new(
            Kind::Fewer,
            Severity::Warn,
            format!(
                "{name} has {} of the {} that it is to have, and nobody is being filled.",
                count(group.view.full().count() as u64, "full member"),
                group.wanted
            ),
            "Bring the missing one back, or add a spare with `gabion group add`.",
        ));
    }
}

/// The controller's store, which all groups share.
fn of_store(around: &Around, problems: &mut Vec<Problem>) {
    if let Some(why) = &around.store {
        problems.push(Problem::new(
            Kind::Store,
            Severity::Bad,
            format!(
                "The controller is without its store: {why}; {} is served, but a member that \
                 fails now is not left out.",
                around
                    .group
                    .as_ref()
                    .map_or_else(|| "the group".to_owned(), |it| { format!("group {it}") })
            ),
            "Look at the controller's disk, or at etcd.",
        ));
    }
}

/// The pools of all members at once.
fn of_room(group: &GroupStatus, around: &Around, problems: &mut Vec<Problem>) {
    let members: Vec<&ReplicaStatus> = group.replicas.iter().filter(|it| it.is_member).collect();
    let name = around.group();
    let full: Vec<&&ReplicaStatus> =
        members.iter().filter(|it| matches!(it.verdict, Some(Verdict::Full(_)))).collect();
    if full.len() > 1 && full.len() == members.iter().filter(|it| !is_lost(it)).count() {
        problems.push(Problem::new(
            Kind::FullDisk,
            Severity::Bad,
            format!(
                "{name} has no room left: the pools of all its members are full, and writes \
                     are refused."
            ),
            "Delete keys, which are still taken, or move to larger pools.",
        ));
    }
}

fn of_replica(
    group: &GroupStatus,
    replica: &ReplicaStatus,
    around: &Around,
    problems: &mut Vec<Problem>,
) {
    let name = around.replica(replica.replica);
    let mut push = |kind, severity, text: String, advice: &str| {
        problems.push(Problem::new(kind, severity, sentence(&text), advice));
    };
    let seat = around.seats.get(&replica.replica);
    if let Some(trouble) = seat.and_then(|seat| seat.trouble.as_ref()) {
        let text = format!("{name} is not as it should be: {}.", trouble.trim_end_matches('.'));
        push(Kind::Trouble, Severity::Warn, text, "Its node tries again by itself.");
    }
    if let Some(aside) = seat.and_then(|seat| seat.aside.as_ref()) {
        let text = format!("{name} was made anew, and its former files are kept in {aside}.");
        let advice = "They were damaged, or not whole: look at its disk, and remove them.";
        push(Kind::PutAside, Severity::Note, text, advice);
    }
    match replica.verdict {
        None => {
            let text = format!("{name} has not been heard since the controller began.");
            push(Kind::Starting, Severity::Note, text, "It may be reading its log.");
            return;
        }
        Some(verdict) if verdict.is_failure() => {
            of_lost(group, replica, verdict, around, &mut push);
            return;
        }
        Some(Verdict::Full(ms)) => {
            let text = format!("The disk of {name} is full, for {}.", span(ms / 1_000));
            let advice = "Delete keys, which are still taken, or give it a larger pool.";
            push(Kind::FullDisk, Severity::Bad, text, advice);
        }
        Some(_) => {}
    }
    if replica.is_member && !replica.is_full && !replica.is_filled {
        let words = filling::in_words(&filling::as_json(replica.filling));
        let words = words.map_or_else(String::new, |words| format!(": {words}"));
        let text = format!("{name} is being filled{words}.");
        push(Kind::Filling, Severity::Note, text, "It counts as a member once it is full.");
    }
    of_lag(group, replica, &name, &mut push);
    of_vitals(replica, &name, around.unix_s, &mut push);
}

/// A sentence, with a capital letter.
fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| {
        first.to_uppercase().collect::<String>() + letters.as_str()
    })
}

fn of_lost(
    group: &GroupStatus,
    replica: &ReplicaStatus,
    verdict: Verdict,
    around: &Around,
    push: &mut impl FnMut(Kind, Severity, String, &str),
) {
    let name = around.replica(replica.replica);
    let left = format!("{} of {} full members are left", left(group), group.wanted);
    // Whether the group lacks it, or has another one in its place.
    let is_missed = usize::from(group.wanted) > self::left(group) || replica.is_member;
    if !is_missed {
        let text = format!("{name}, a spare, is lost: {verdict}.");
        let advice = "Bring it back: until then no spare may be there for the next failure.";
        return push(Kind::Spare, Severity::Warn, text, advice);
    }
    let seat = around.seats.get(&replica.replica);
    let is_away = seat.is_some_and(|seat| seat.is_away);
    let until_s = replica.vitals.as_ref().and_then(|vitals| vitals.certificate_until_s);
    let is_expired =
        seat.is_some_and(|it| it.is_expired) || until_s.is_some_and(|it| it <= around.unix_s);
    match verdict {
        Verdict::Silent(ms) if is_expired => {
            let silent = span(ms / 1_000);
            let text = format!(
                "{name} is lost: its certificate has expired, silent for {silent}; {left}."
            );
            push(Kind::CertificateExpired, Severity::Bad, text, RENEW);
        }
        Verdict::Silent(ms) => {
            let why = if is_away { "its node is away" } else { "it has stopped or is cut off" };
            let silent = span(ms / 1_000);
            let text = format!("{name} is lost: {why}, silent for {silent}; {left}.");
            let advice = "Start its process or its machine again; it is filled by the others.";
            push(Kind::Lost, Severity::Bad, text, advice);
        }
        Verdict::Stuck(ms) => {
            let text = format!(
                "The disk of {name} hangs: a write has taken {:.1} s; {left}.",
                ms as f64 / 1e3
            );
            let advice = "Look at the device and the kernel's log; replace the disk.";
            push(Kind::HangingDisk, Severity::Bad, text, advice);
        }
        Verdict::Refuses => {
            let text = format!("The disk of {name} refuses writes; {left}.");
            let advice = "Look at the device and the kernel's log; replace the disk, or make room.";
            push(Kind::HangingDisk, Severity::Bad, text, advice);
        }
        Verdict::CutOff => {
            let text = format!("{name} and another member do not hear each other; {left}.");
            push(Kind::Lost, Severity::Bad, text, "Look at the network between their machines.");
        }
        Verdict::OtherDisk | Verdict::Well | Verdict::Full(_) => {
            let text = format!("{name} is lost: {verdict}; {left}.");
            push(Kind::Lost, Severity::Bad, text, "It is filled by the others.");
        }
    }
}

/// How far it is behind, as the member that takes writes sees it.
fn of_lag(
    group: &GroupStatus,
    replica: &ReplicaStatus,
    name: &str,
    push: &mut impl FnMut(Kind, Severity, String, &str),
) {
    let Some((bytes, ms)) = lag_of(group, replica.replica) else { return };
    if replica.is_full && ms > LAG_MS_MAX {
        let text = format!("{name} lags by {} and {}.", span(ms / 1_000), size(bytes));
        let advice = "Look at its disk and at the network to it: the others wait for it.";
        push(Kind::Lagging, Severity::Warn, text, advice);
    }
}

/// Bytes and ms by which a member is behind, by the word of the member that takes writes.
pub(crate) fn lag_of(group: &GroupStatus, replica: ReplicaId) -> Option<(u64, u64)> {
    let writer = group.view.full().next()?.replica;
    let writer = group.replicas.iter().find(|it| it.replica == writer)?;
    let vitals = writer.vitals.as_ref().filter(|_| !is_lost(writer))?;
    vitals.lags.iter().find(|lag| lag.replica == replica).map(|lag| (lag.bytes, lag.ms))
}

/// The controller's own certificate.
fn of_controller(around: &Around, problems: &mut Vec<Problem>) {
    let Some(until_s) = around.controller_until_s else { return };
    let mut push = |kind, severity, text: String, advice: &str| {
        problems.push(Problem::new(kind, severity, sentence(&text), advice));
    };
    of_certificate("the controller", until_s - around.unix_s, &mut push);
}

fn of_vitals(
    replica: &ReplicaStatus,
    name: &str,
    unix_s: i64,
    push: &mut impl FnMut(Kind, Severity, String, &str),
) {
    let Some(vitals) = &replica.vitals else { return };
    if vitals.probe_us >= SLOW_PROBE_US {
        let text = format!(
            "The disk of {name} is slow: each small write takes {} ms or more.",
            vitals.probe_us / 1_000
        );
        let advice = "Look at what else uses the device, and at `gabion doctor` there: writes of \
                      the whole group wait for its slowest disk.";
        push(Kind::SlowDisk, Severity::Warn, text, advice);
    }
    let used = u64::from(vitals.slots - vitals.slots_free);
    let is_full = matches!(replica.verdict, Some(Verdict::Full(_)));
    if !is_full && used * 100 >= u64::from(vitals.slots.max(1)) * POOL_USED_MAX {
        let text = format!(
            "The pool of {name} fills up: {} of {} slots are free.",
            vitals.slots_free, vitals.slots
        );
        push(Kind::PoolShort, Severity::Warn, text, "Delete keys, or give it a larger pool.");
    }
    if let Some(until_s) = vitals.certificate_until_s {
        of_certificate(name, until_s - unix_s, push);
    }
}

/// The certificate of a replica or the controller, by the seconds that it is still valid.
fn of_certificate(name: &str, left_s: i64, push: &mut impl FnMut(Kind, Severity, String, &str)) {
    if left_s <= 0 {
        let text = format!(
            "The certificate of {name} has expired, {} ago: what begins with it is refused.",
            days(-left_s)
        );
        push(Kind::CertificateExpired, Severity::Bad, text, RENEW);
    } else if left_s < CERTIFICATE_DAYS_MIN * DAY_S {
        let text = format!("The certificate of {name} expires in {}.", days(left_s));
        push(Kind::CertificateEnds, Severity::Warn, text, RENEW);
    }
}

/// A time in days.
pub(crate) fn days(s: i64) -> String {
    match s / DAY_S {
        0 => "less than a day".to_owned(),
        days => count(days.unsigned_abs(), "day"),
    }
}

#[cfg(test)]
pub(crate) mod tests;

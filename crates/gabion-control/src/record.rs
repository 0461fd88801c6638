//! The record of a group in the controller's store: the view that is complete, the one that is
//! intended, and what happened. It is replaced as a whole, by compare-and-set.
//!
//! ```text
//!   u16 version = 1 | fields (gabion_base::codec), each at most once, all but events critical:
//!     1 complete  GroupView: every full member has it, and its term's first record
//!     2 intended  GroupView: decided, and maybe in effect at some members (absent: none)
//!     3 wanted    u8 replicas that the group is to have
//!     4 trusted   u32 replica each
//!     5 events    u64 ms since 1970, prefixed text, each
//!     6 preferred u32 replica each (absent: none)
//!     7 leaving   u32 replica each (absent: none)
//!     8 kept      u32 replica each (absent: none)
//!     9 given up  u32 replica each (absent: none)
//! ```
//!
//! A view is written as intended before any member hears of it. Each later controller carries it
//! out or replaces it, and never forgets it: members may act in it already.

use alloc::collections::VecDeque;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use gabion_base::codec::{FIELD_CRITICAL, Fields, Put, Reader, put_field};
use gabion_base::{Error, ReplicaId, Result};
use gabion_replication::GroupView;

const VERSION: u16 = 1;
const WHAT: &str = "record of a group";
const TAG_COMPLETE: u16 = 1;
const TAG_INTENDED: u16 = 2;
const TAG_WANTED: u16 = 3;
const TAG_TRUSTED: u16 = 4;
const TAG_EVENTS: u16 = 5;
const TAG_PREFERRED: u16 = 6;
const TAG_LEAVING: u16 = 7;
const TAG_KEPT: u16 = 8;
const TAG_GIVEN_UP: u16 = 9;

/// Something that the controller saw or did, for operators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// When, in ms since 1970.
    pub unix_ms: u64,
    /// One sentence without a full stop.
    pub text: String,
}

impl Event {
    /// Longest text in bytes; a longer one is cut.
    pub const TEXT_LEN_MAX: usize = 512;
}

/// The record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupRecord {
    /// The last view that every full member of it took, and in which its term has begun.
    pub complete: GroupView,
    /// A later view that is being carried out.
    pub intended: Option<GroupView>,
    /// Full members that the group is to have.
    pub wanted: u8,
    /// Full and kept members of the newest view that have every record that was ever acknowledged,
    /// but for an end of the log that another of them has: the only ones that a later view may rely
    /// on.
    pub trusted: Vec<ReplicaId>,
    /// Trusted members that a view since the complete one kept: in that view others may answer
    /// reads without their promise, so no later view relies on these alone.
    pub kept: Vec<ReplicaId>,
    /// The latest events, oldest first.
    pub events: VecDeque<Event>,
    /// Replicas that are taken before others where a member is missing, in this order: members that
    /// failed, and those that an operator named.
    pub preferred: Vec<ReplicaId>,
    /// Replicas that are to be no members, by an operator's word: they go once the others are
    /// enough, and are not taken.
    pub leaving: Vec<ReplicaId>,
    /// Members whose processes have ended for good, by an operator's word: while they fail, nobody
    /// waits for them.
    pub given_up: Vec<ReplicaId>,
}

impl GroupRecord {
    /// Events that are kept.
    pub const EVENTS_MAX: usize = 256;
    /// Most replicas that are preferred, and that are leaving.
    pub const LISTED_MAX: usize = 64;

    /// The record of a new group: its founding view, which its members have from their making.
    #[must_use]
    pub fn founding(view: GroupView) -> Self {
        let wanted = u8::try_from(view.members.len()).unwrap_or(u8::MAX);
        let trusted = view.full().map(|member| member.replica).collect();
        Self {
            complete: view,
            intended: None,
            wanted,
            trusted,
            kept: Vec::new(),
            events: VecDeque::new(),
            preferred: Vec::new(),
            leaving: Vec::new(),
            given_up: Vec::new(),
        }
    }

    /// This replica comes before others where a member is missing.
    pub(crate) fn prefer(&mut self, replica: ReplicaId, is_first: bool) {
        self.preferred.retain(|other| *other != replica);
        if self.preferred.len() == Self::LISTED_MAX {
            self.preferred.remove(0);
        }
        let at = if is_first { 0 } else { self.preferred.len() };
        self.preferred.insert(at, replica);
    }

    /// This replica is to be no member.
    ///
    /// # Errors
    /// Limit exceeded, where too many are named already.
    pub(crate) fn leave(&mut self, replica: ReplicaId) -> Result<()> {
        self.preferred.retain(|other| *other != replica);
        if self.leaving.contains(&replica) {
            return Ok(());
        }
        if self.leaving.len() == Self::LISTED_MAX {
            return Err(Error::limit(format!(
                "{} replicas are to be no members, the limit: `group add` ends that for one",
                Self::LISTED_MAX
            )));
        }
        self.leaving.push(replica);
        Ok(())
    }

    /// The newest view, which members may act in.
    #[must_use]
    pub fn newest(&self) -> &GroupView {
        self.intended.as_ref().unwrap_or(&self.complete)
    }

    /// Trusts those full or kept members of the newest view of which `is_trusted`.
    pub(crate) fn trust_only(&mut self, is_trusted: impl Fn(&ReplicaId) -> bool) {
        let newest = self.newest();
        let counts = newest.members.iter().filter(|member| member.is_full || member.is_kept);
        let counts: Vec<ReplicaId> = counts.map(|member| member.replica).collect();
        self.trusted = counts.into_iter().filter(is_trusted).collect();
        self.kept.retain(|id| self.trusted.contains(id));
    }

    /// Adds an event; the oldest goes where there are too many.
    pub fn note(&mut self, unix_ms: u64, text: &str) {
        if self.events.len() == Self::EVENTS_MAX {
            self.events.pop_front();
        }
        self.events.push_back(Event { unix_ms, text: cut(text, Event::TEXT_LEN_MAX).to_string() });
    }

    /// Checks what every record fulfils.
    ///
    /// # Errors
    /// Invalid input that names the value and its limit.
    pub fn validate(&self) -> Result<()> {
        self.complete.validate()?;
        let members_max = GroupView::MEMBERS_MAX;
        if self.wanted == 0 || usize::from(self.wanted) > members_max {
            return Err(Error::invalid(format!(
                "{} replicas are wanted: 1 to {members_max} are possible",
                self.wanted
            )));
        }
        let newest = self.newest();
        let counts = |id: &ReplicaId| newest.has_full(*id) || newest.keeps(*id);
        if let Some(other) = self.trusted.iter().find(|id| !counts(id)) {
            return Err(Error::invalid(format!(
                "{other} is trusted, and no full or kept member in {}",
                newest.config
            )));
        }
        if let Some(other) = self.kept.iter().find(|id| !self.trusted.contains(id)) {
            return Err(Error::invalid(format!(
                "{other} was kept, and is not trusted in {}",
                newest.config
            )));
        }
        if self.complete.waits() {
            return Err(Error::invalid(format!(
                "{} waits for members and is complete: no term begins in it",
                self.complete.config
            )));
        }
        let Some(intended) = &self.intended else { return Ok(()) };
        intended.validate()?;
        if intended.group != self.complete.group || intended.config <= self.complete.config {
            return Err(Error::invalid(format!(
                "{} of {} is intended after {} of {}",
                intended.config, intended.group, self.complete.config, self.complete.group
            )));
        }
        Ok(())
    }

    /// The record in bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(1024);
        out.put_u16(VERSION);
        put_field(&mut out, TAG_COMPLETE, FIELD_CRITICAL, &self.complete.encode());
        if let Some(intended) = &self.intended {
            put_field(&mut out, TAG_INTENDED, FIELD_CRITICAL, &intended.encode());
        }
        put_field(&mut out, TAG_WANTED, FIELD_CRITICAL, &[self.wanted]);
        put_field(&mut out, TAG_TRUSTED, FIELD_CRITICAL, &listed(&self.trusted));
        let mut events = Vec::new();
        for event in &self.events {
            events.put_u64(event.unix_ms);
            events.put_prefixed(event.text.as_bytes());
        }
        put_field(&mut out, TAG_EVENTS, 0, &events);
        let lists = [
            (TAG_PREFERRED, &self.preferred),
            (TAG_LEAVING, &self.leaving),
            (TAG_KEPT, &self.kept),
            (TAG_GIVEN_UP, &self.given_up),
        ];
        for (tag, list) in lists {
            if !list.is_empty() {
                put_field(&mut out, tag, FIELD_CRITICAL, &listed(list));
            }
        }
        out
    }

    /// Reads [`Self::encode`].
    ///
    /// # Errors
    /// Corruption for bytes that are no valid record; Unsupported for another version or a critical
    /// field that this build does not know.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut reader = Reader::new(bytes, WHAT);
        let version = reader.u16()?;
        if version != VERSION {
            return Err(Error::unsupported(format!(
                "{WHAT} has version {version}, this build knows {VERSION}"
            )));
        }
        let mut fields = Fields::new(reader.rest(), WHAT);
        let (mut complete, mut intended, mut wanted, mut trusted) = (None, None, None, None);
        let mut events = VecDeque::new();
        let (mut preferred, mut leaving, mut kept) = (Vec::new(), Vec::new(), Vec::new());
        let mut given_up = Vec::new();
        let mut last_tag = 0;
        while let Some(field) = fields.next_field()? {
            if field.tag <= last_tag {
                return Err(Error::corruption(format!(
                    "{WHAT}: field {} after field {last_tag}",
                    field.tag
                )));
            }
            last_tag = field.tag;
            match (field.tag, field.payload) {
                (TAG_COMPLETE, payload) => complete = Some(GroupView::decode(payload)?),
                (TAG_INTENDED, payload) => intended = Some(GroupView::decode(payload)?),
                (TAG_WANTED, [number]) => wanted = Some(*number),
                (TAG_WANTED, payload) => {
                    return Err(Error::corruption(format!(
                        "{WHAT}: {} bytes say how many replicas are wanted, not 1",
                        payload.len()
                    )));
                }
                (TAG_TRUSTED, payload) => {
                    trusted = Some(read_list(payload, "trusted members", GroupView::MEMBERS_MAX)?);
                }
                (TAG_EVENTS, payload) => events = read_events(payload)?,
                (TAG_PREFERRED, payload) => {
                    preferred = read_list(payload, "preferred replicas", Self::LISTED_MAX)?;
                }
                (TAG_LEAVING, payload) => {
                    leaving = read_list(payload, "replicas to leave", Self::LISTED_MAX)?;
                }
                (TAG_KEPT, payload) => {
                    kept = read_list(payload, "kept members", GroupView::MEMBERS_MAX)?;
                }
                (TAG_GIVEN_UP, payload) => {
                    given_up = read_list(payload, "given up members", GroupView::MEMBERS_MAX)?;
                }
                _ => field.skip_unknown(WHAT)?,
            }
        }
        let missing = |what| Error::corruption(format!("{WHAT}: it has no {what}"));
        let record = Self {
            complete: complete.ok_or_else(|| missing("complete view"))?,
            intended,
            wanted: wanted.ok_or_else(|| missing("number of replicas"))?,
            trusted: trusted.ok_or_else(|| missing("list of trusted members"))?,
            kept,
            events,
            preferred,
            leaving,
            given_up,
        };
        record.validate().map_err(|error| Error::corruption(format!("{WHAT}: {error}")))?;
        Ok(record)
    }
}

fn listed(replicas: &[ReplicaId]) -> Vec<u8> {
    let mut out = Vec::with_capacity(4 * replicas.len());
    replicas.iter().for_each(|replica| out.put_u32(replica.get()));
    out
}

fn read_list(payload: &[u8], what: &'static str, max: usize) -> Result<Vec<ReplicaId>> {
    if payload.len() > 4 * max {
        return Err(Error::corruption(format!(
            "{WHAT}: {} bytes of {what}, the limit is {}",
            payload.len(),
            4 * max
        )));
    }
    let mut reader = Reader::new(payload, what);
    let mut list = Vec::new();
    while !reader.is_empty() {
        list.push(ReplicaId(reader.u32()?));
    }
    Ok(list)
}

fn read_events(payload: &[u8]) -> Result<VecDeque<Event>> {
    let mut reader = Reader::new(payload, "events of a group");
    let mut events = VecDeque::new();
    while !reader.is_empty() {
        if events.len() == GroupRecord::EVENTS_MAX {
            return Err(Error::corruption(format!(
                "events of a group: more than {}",
                GroupRecord::EVENTS_MAX
            )));
        }
        let unix_ms = reader.u64()?;
        let text = core::str::from_utf8(reader.prefixed(Event::TEXT_LEN_MAX)?)
            .map_err(|_| Error::corruption("events of a group: a text is not UTF-8"))?;
        events.push_back(Event { unix_ms, text: text.to_string() });
    }
    Ok(events)
}

/// As much of a text as has room in so many bytes.
pub(crate) fn cut(text: &str, len_max: usize) -> &str {
    let mut len = text.len().min(len_max);
    while !text.is_char_boundary(len) {
        len -= 1;
    }
    &text[..len]
}

#[cfg(test)]
mod tests {
    use super::*;
    use gabion_base::{ConfigNumber, GroupId, LogKind, ReplicaId};

    fn record() -> GroupRecord {
        let founders = [ReplicaId(1), ReplicaId(2), ReplicaId(3)];
        let view = GroupView::founding(GroupId(7), &founders, LogKind::Shared);
        let mut record = GroupRecord::founding(view.clone());
        let mut next = view;
        next.config = ConfigNumber(2);
        next.members_min = 2;
        next.members.remove(0);
        record.intended = Some(next);
        record.trusted.retain(|replica| *replica != ReplicaId(1));
        record.note(1_000, "replica 1 is lost: silent for 420 ms");
        record
    }

    #[test]
    fn a_record_survives_its_bytes_and_no_prefix_is_one() {
        let bytes = record().encode();
        assert_eq!(GroupRecord::decode(&bytes).unwrap(), record());
        // The events come last, and may be missing: an older build has none.
        let events = bytes.len() - 8 - 8 - 1 - "replica 1 is lost: silent for 420 ms".len();
        for len in (0..bytes.len()).filter(|len| *len != events) {
            assert!(GroupRecord::decode(&bytes[..len]).is_err(), "{len} bytes");
        }
        assert!(GroupRecord::decode(&bytes[..events]).unwrap().events.is_empty());
    }

    #[test]
    fn lists_of_replicas_survive_and_have_a_limit() {
        let mut record = record();
        for id in 10..=100 {
            record.prefer(ReplicaId(id), false);
        }
        record.prefer(ReplicaId(50), true);
        let preferred = &record.preferred;
        assert_eq!((preferred.len(), preferred[0]), (GroupRecord::LISTED_MAX, ReplicaId(50)));
        for id in 1..=64 {
            record.leave(ReplicaId(id)).unwrap();
            record.leave(ReplicaId(id)).unwrap();
        }
        let error = record.leave(ReplicaId(65)).unwrap_err().to_string();
        assert!(error.contains("64 replicas"), "{error}");
        assert!(!record.preferred.contains(&ReplicaId(50)), "it cannot be both");
        assert_eq!(GroupRecord::decode(&record.encode()).unwrap(), record);
        record.leaving.push(ReplicaId(66));
        let error = GroupRecord::decode(&record.encode()).unwrap_err().to_string();
        assert!(error.contains("the limit is 256"), "{error}");
    }

    #[test]
    fn members_that_are_kept_survive_and_count() {
        let mut record = record();
        let view = record.intended.as_mut().unwrap();
        (view.members[1].is_full, view.members[1].is_kept) = (false, true);
        record.kept = record.trusted[1..].to_vec();
        assert_eq!(GroupRecord::decode(&record.encode()).unwrap(), record);
        let mut wrong = record.clone();
        wrong.trusted.pop();
        assert!(wrong.validate().unwrap_err().to_string().contains("r3 was kept"));
        record.complete = record.intended.take().unwrap();
        assert!(record.validate().unwrap_err().to_string().contains("c2 waits for members"));
    }

    #[test]
    fn an_intended_view_comes_after_the_complete_one() {
        let mut wrong = record();
        wrong.intended.as_mut().unwrap().config = ConfigNumber(1);
        assert!(wrong.validate().unwrap_err().to_string().contains("is intended after"));
        assert!(GroupRecord::decode(&wrong.encode()).is_err());
        let mut wrong = record();
        wrong.trusted.push(ReplicaId(1));
        assert!(wrong.validate().unwrap_err().to_string().contains("r1 is trusted"));
        let mut wrong = record();
        wrong.wanted = 0;
        assert!(wrong.validate().unwrap_err().to_string().contains("0 replicas are wanted"));
    }

    #[test]
    fn the_oldest_events_go_and_long_texts_are_cut_between_letters() {
        let mut record = record();
        for n in 0..1_000 {
            record.note(n, &format!("event {n}"));
        }
        assert_eq!(record.events.len(), GroupRecord::EVENTS_MAX);
        assert_eq!(record.events.back().unwrap().text, "event 999");
        record.note(0, &"ä".repeat(400));
        assert_eq!(record.events.back().unwrap().text.len(), Event::TEXT_LEN_MAX);
        record.note(0, &format!("a{}", "ä".repeat(400)));
        assert_eq!(record.events.back().unwrap().text.len(), Event::TEXT_LEN_MAX - 1);
        assert_eq!(GroupRecord::decode(&record.encode()).unwrap(), record);
    }

    #[test]
    fn fields_come_once_and_in_order() {
        let mut bytes = record().encode();
        let twice = bytes[2..].to_vec();
        bytes.extend(twice);
        assert!(GroupRecord::decode(&bytes).unwrap_err().to_string().contains("after field"));
        let mut unknown = record().encode();
        put_field(&mut unknown, 10, FIELD_CRITICAL, &[0; 4]);
        assert!(GroupRecord::decode(&unknown).unwrap_err().to_string().contains("unknown"));
    }
}

//! Messages between the controller and a replica, over a connection that the controller makes to
//! the replica's door for members. Its preamble names [`CONTROLLER`] as who connects.
//!
//! ```text
//!   u32 bytes that follow | u16 version, 3 | u8 kind | u8 zero | body | u32 CRC32C of all before
//!
//!   kind  name     body                                                          sent by
//!      1  Tell     epoch | view                                                  the controller
//!      3  Ask      u64 number | u32 replica, the greatest number for none          the replica
//!      4  Answer   u64 number | u8 refused | prefixed text, none where it is not  the controller
//!      2  Report   epoch | u64 group | u64 founded | u8 filled | u8 probe | u8 whole | u8 zero
//!                  | u64 ms of the probe | member, as a view of it alone | view
//!                  | u16 members unheard, u32 each | filling | vitals           the replica
//!      5  Users         record of users, prefixed                                   both
//!      6  UsersKnown    u64 version | u32 sum: the stamp of the replica's record    the replica
//!      7  ChangeUsers   change of users                                             the replica
//!      8  UsersChanged  u64 number | u8 0: stored, 1: conflict, 2: refused
//!                       | u64 version | prefixed text                               the controller
//!
//!   epoch: number u64, id u64    view, member: u32 length (0: none), then gabion_replication::view
//!   filling: u8 0: none, or its step from 1 | u64 bytes | u64 of these done | u64 bytes a second
//!   vitals: see the module of that name
//! ```
//!
//! Ask is for a fail-over: to a member, or to the next one. Its number is the replica's, and the
//! answer's: whether the controller carries it out.
//!
//! Users are those of [`crate::users`], the same in every group. A replica says which record it has
//! once a second. The controller tells it another one, and it answers an older one with its own.
//!
//! A replica reports every [`Patience::report_ms`](crate::Patience::report_ms) on each connection,
//! and at once when its view or its term has changed.

use crate::frame::Frame;
use crate::record::cut;
use crate::users::{
    ChangeOutcome, EDITS_MAX, RECORD_LEN_MAX, Stamp, UserChange, UserRecord, put_change,
    read_change,
};
use crate::vitals::{put_vitals, read_vitals};
use crate::{Epoch, Filling, FillingStep, Probe, Report};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use gabion_base::codec::{Put, Reader};
use gabion_base::{ConfigNumber, Error, GroupId, LogKind, ReplicaId, Result};
use gabion_replication::{GroupView, Member};

/// The number under which a controller connects. No member has it.
pub const CONTROLLER: ReplicaId = ReplicaId(u32::MAX);
/// Longest message in bytes, its length aside: a change between two longest records of users.
pub const MESSAGE_LEN_MAX: usize = 1024 * 1024;
const _: () = assert!(MESSAGE_LEN_MAX > 2 * RECORD_LEN_MAX + 16 * EDITS_MAX);

const WHAT: &str = "message of a controller";
const FRAME: Frame = Frame { what: WHAT, version: 3, head_len: HEAD_LEN, len_max: MESSAGE_LEN_MAX };
const KIND_TELL: u8 = 1;
const KIND_REPORT: u8 = 2;
const KIND_ASK: u8 = 3;
const KIND_ANSWER: u8 = 4;
const KIND_USERS: u8 = 5;
const KIND_USERS_KNOWN: u8 = 6;
const KIND_CHANGE_USERS: u8 = 7;
const KIND_USERS_CHANGED: u8 = 8;
/// Longest text of an answer in bytes; a longer one is cut.
const TEXT_LEN_MAX: usize = 512;
const HEAD_LEN: usize = 4;

/// A message.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "one at a time, and most are the large ones")]
pub enum ControlMessage {
    /// The newest view, and who is controller.
    Tell {
        /// The controller's life.
        epoch: Epoch,
        /// The view. The receiver may be no member of it.
        view: GroupView,
    },
    /// A replica's word on itself.
    Report(Report),
    /// A client of the replica asks for a fail-over.
    Ask {
        /// The replica's number for the question.
        number: u64,
        /// The full member that is to take writes; none named: the next one.
        to: Option<ReplicaId>,
    },
    /// Whether the controller does as it was asked.
    Answer {
        /// As it was asked.
        number: u64,
        /// Why not, in a sentence, if it does not.
        refused: Option<String>,
    },
    /// The users, as the sender knows them.
    Users(UserRecord),
    /// The record of users that a replica has.
    UsersKnown(Stamp),
    /// A client of the replica changes users.
    ChangeUsers(UserChange),
    /// The outcome of a change.
    UsersChanged {
        /// The change's.
        number: u64,
        /// The outcome.
        outcome: ChangeOutcome,
    },
}

impl ControlMessage {
    /// The message in bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = FRAME.begin(512);
        match self {
            Self::Tell { epoch, view } => {
                out.put_u16(u16::from(KIND_TELL));
                put_epoch(&mut out, *epoch);
                put_view(&mut out, Some(view));
            }
            Self::Report(report) => {
                out.put_u16(u16::from(KIND_REPORT));
                put_report(&mut out, report);
            }
            Self::Ask { number, to } => {
                out.put_u16(u16::from(KIND_ASK));
                out.put_u64(*number);
                out.put_u32(to.unwrap_or(CONTROLLER).get());
            }
            Self::Answer { number, refused } => {
                out.put_u16(u16::from(KIND_ANSWER));
                out.put_u64(*number);
                out.put_u8(u8::from(refused.is_some()));
                let text = refused.as_deref().unwrap_or_default();
                out.put_prefixed(cut(text, TEXT_LEN_MAX).as_bytes());
            }
            Self::Users(record) => {
                out.put_u16(u16::from(KIND_USERS));
                out.put_prefixed(&record.encode());
            }
            Self::UsersKnown(Stamp { version, sum }) => {
                out.put_u16(u16::from(KIND_USERS_KNOWN));
                out.put_u64(*version);
                out.put_u32(*sum);
            }
            Self::ChangeUsers(change) => {
                out.put_u16(u16::from(KIND_CHANGE_USERS));
                put_change(&mut out, change);
            }
            Self::UsersChanged { number, outcome } => {
                out.put_u16(u16::from(KIND_USERS_CHANGED));
                put_outcome(&mut out, *number, outcome);
            }
        }
        Frame::end(out)
    }

    /// The first message of what was received so far, and its length in bytes; nothing while it is
    /// not whole.
    ///
    /// # Errors
    /// Limit exceeded for a length that no message has; corruption; unsupported for another
    /// version. The connection is of no use then.
    pub fn decode(bytes: &[u8]) -> Result<Option<(Self, usize)>> {
        let Some((mut r, len)) = FRAME.open(bytes)? else { return Ok(None) };
        let message = match r.u16()?.to_le_bytes() {
            [KIND_TELL, 0] => {
                let epoch = read_epoch(&mut r)?;
                let view = read_view(&mut r)?;
                let view = view.ok_or_else(|| Error::corruption(format!("{WHAT}: no view")))?;
                Self::Tell { epoch, view }
            }
            [KIND_REPORT, 0] => Self::Report(read_report(&mut r)?),
            [KIND_ASK, 0] => {
                let (number, to) = (r.u64()?, ReplicaId(r.u32()?));
                Self::Ask { number, to: Some(to).filter(|to| *to != CONTROLLER) }
            }
            [KIND_ANSWER, 0] => {
                let (number, is_refused) = (r.u64()?, r.u8()? != 0);
                let text = read_text(&mut r)?;
                Self::Answer { number, refused: is_refused.then(|| text.to_string()) }
            }
            [KIND_USERS, 0] => Self::Users(UserRecord::decode(r.prefixed(RECORD_LEN_MAX)?)?),
            [KIND_USERS_KNOWN, 0] => Self::UsersKnown(Stamp { version: r.u64()?, sum: r.u32()? }),
            [KIND_CHANGE_USERS, 0] => Self::ChangeUsers(read_change(&mut r)?),
            [KIND_USERS_CHANGED, 0] => {
                let (number, outcome) = read_outcome(&mut r)?;
                Self::UsersChanged { number, outcome }
            }
            kind => {
                return Err(Error::unsupported(format!(
                    "{WHAT}: kind {} is unknown",
                    u16::from_le_bytes(kind)
                )));
            }
        };
        r.finish()?;
        Ok(Some((message, len)))
    }
}

fn read_text<'a>(r: &mut Reader<'a>) -> Result<&'a str> {
    core::str::from_utf8(r.prefixed(TEXT_LEN_MAX)?)
        .map_err(|_| Error::corruption(format!("{WHAT}: a text is not UTF-8")))
}

fn put_outcome(out: &mut Vec<u8>, number: u64, outcome: &ChangeOutcome) {
    let (kind, version, text) = match outcome {
        ChangeOutcome::Stored(version) => (0, *version, ""),
        ChangeOutcome::Conflict => (1, 0, ""),
        ChangeOutcome::Refused(text) => (2, 0, text.as_str()),
    };
    out.put_u64(number);
    out.put_u8(kind);
    out.put_u64(version);
    out.put_prefixed(cut(text, TEXT_LEN_MAX).as_bytes());
}

fn read_outcome(r: &mut Reader<'_>) -> Result<(u64, ChangeOutcome)> {
    let (number, kind, version) = (r.u64()?, r.u8()?, r.u64()?);
    let text = read_text(r)?;
    let outcome = match kind {
        0 => ChangeOutcome::Stored(version),
        1 => ChangeOutcome::Conflict,
        2 => ChangeOutcome::Refused(text.to_string()),
        _ => return Err(Error::corruption(format!("{WHAT}: outcome {kind} is unknown"))),
    };
    Ok((number, outcome))
}

fn put_epoch(out: &mut Vec<u8>, epoch: Epoch) {
    out.put_u64(epoch.number);
    out.put_u64(epoch.id);
}

fn read_epoch(r: &mut Reader<'_>) -> Result<Epoch> {
    Ok(Epoch { number: r.u64()?, id: r.u64()? })
}

fn put_view(out: &mut Vec<u8>, view: Option<&GroupView>) {
    let bytes = view.map_or_else(Vec::new, GroupView::encode);
    out.put_u32(bytes.len() as u32);
    out.put_bytes(&bytes);
}

fn read_view(r: &mut Reader<'_>) -> Result<Option<GroupView>> {
    let len = r.u32()? as usize;
    if len == 0 {
        return Ok(None);
    }
    let view = GroupView::decode(r.bytes(len)?)?;
    view.validate().map_err(|error| Error::corruption(format!("{WHAT}: {error}")))?;
    Ok(Some(view))
}

/// A view that has this replica alone: the form in which members are written down.
fn view_of(member: &Member, group: GroupId) -> GroupView {
    let mut view = GroupView::founding(group, &[member.replica], LogKind::Shared);
    view.members[0] = Member { is_full: true, is_kept: false, ..member.clone() };
    view
}

fn put_report(out: &mut Vec<u8>, report: &Report) {
    let (probe, ms) = match report.probe {
        Probe::Well => (0, 0),
        Probe::Running(ms) => (1, ms),
        Probe::Refused => (2, 0),
        Probe::Full => (3, 0),
    };
    put_epoch(out, report.epoch);
    out.put_u64(report.group.get());
    out.put_u64(report.founded.get());
    out.put_u8(u8::from(report.is_filled));
    out.put_u8(probe);
    out.put_u8(u8::from(report.is_whole));
    out.put_u8(0);
    out.put_u64(ms);
    put_view(out, Some(&view_of(&report.member, report.group)));
    put_view(out, report.view.as_ref());
    out.put_u16(report.unheard.len() as u16);
    report.unheard.iter().for_each(|replica| out.put_u32(replica.get()));
    put_filling(out, report.filling);
    put_vitals(out, report.vitals.as_ref());
}

fn put_filling(out: &mut Vec<u8>, filling: Option<Filling>) {
    let of = |step| FillingStep::ALL.iter().position(|it| *it == step);
    let step = filling.and_then(|filling| of(filling.step));
    out.put_u8(step.map_or(0, |at| at as u8 + 1));
    let Filling { bytes, bytes_done, bytes_per_s, .. } = filling.unwrap_or_default();
    [bytes, bytes_done, bytes_per_s].into_iter().for_each(|number| out.put_u64(number));
}

fn read_filling(r: &mut Reader<'_>) -> Result<Option<Filling>> {
    let step = r.u8()?;
    let (bytes, bytes_done, bytes_per_s) = (r.u64()?, r.u64()?, r.u64()?);
    if bytes_done > bytes {
        return Err(Error::corruption(format!("{WHAT}: {bytes_done} of {bytes} bytes are filled")));
    }
    let Some(at) = step.checked_sub(1) else { return Ok(None) };
    let step = FillingStep::ALL.get(usize::from(at)).ok_or_else(|| {
        let most = FillingStep::ALL.len();
        Error::corruption(format!("{WHAT}: step {step} of filling, {most} is the last"))
    })?;
    Ok(Some(Filling { step: *step, bytes, bytes_done, bytes_per_s }))
}

fn read_report(r: &mut Reader<'_>) -> Result<Report> {
    let corrupt = |what: &str| Error::corruption(format!("{WHAT}: {what}"));
    let epoch = read_epoch(r)?;
    let (group, founded) = (GroupId(r.u64()?), ConfigNumber(r.u64()?));
    let (filled, probe) = (r.u8()?, r.u8()?);
    let (whole, _) = (r.u8()?, r.u8()?);
    let ms = r.u64()?;
    let probe = match probe {
        0 => Probe::Well,
        1 => Probe::Running(ms),
        2 => Probe::Refused,
        3 => Probe::Full,
        _ => return Err(corrupt("its probe is of no known kind")),
    };
    let mut alone = read_view(r)?.ok_or_else(|| corrupt("it names no replica"))?;
    let member = match (alone.members.pop(), alone.members.is_empty()) {
        (Some(member), true) if member.replica != CONTROLLER => member,
        _ => return Err(corrupt("it is of more than one replica, or of a controller")),
    };
    let view = read_view(r)?;
    if alone.group != group || view.as_ref().is_some_and(|view| view.group != group) {
        return Err(corrupt("it is of two groups"));
    }
    let count = usize::from(r.u16()?);
    if count > GroupView::MEMBERS_MAX {
        return Err(Error::limit(format!(
            "{WHAT}: {count} members are unheard, a view has {} at most",
            GroupView::MEMBERS_MAX
        )));
    }
    let unheard = (0..count).map(|_| r.u32().map(ReplicaId)).collect::<Result<_>>()?;
    let (filling, vitals) = (read_filling(r)?, read_vitals(r, WHAT)?);
    let (is_filled, is_whole) = (filled != 0, whole != 0);
    Ok(Report {
        member,
        group,
        view,
        founded,
        is_filled,
        is_whole,
        filling,
        probe,
        vitals,
        unheard,
        epoch,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Vitals;
    use crate::frame::{CRC_LEN, LEN_LEN};
    use crate::users::Edit;
    use gabion_base::crc;
    use proptest::prelude::*;

    fn view() -> GroupView {
        let founders = [ReplicaId(1), ReplicaId(2), ReplicaId(3)];
        let mut view = GroupView::founding(GroupId(7), &founders, LogKind::Shared);
        view.members[2].is_full = false;
        view.members[0].addresses.members = "127.0.0.1:7679".into();
        view
    }

    fn report() -> Report {
        let mut member = Member::new(ReplicaId(2));
        (member.incarnation, member.pool_id) = (9, [3; 16]);
        Report {
            member,
            group: GroupId(7),
            view: Some(view()),
            founded: ConfigNumber(4),
            is_filled: true,
            is_whole: false,
            filling: None,
            probe: Probe::Running(250),
            vitals: None,
            unheard: alloc::vec![ReplicaId(1), ReplicaId(3)],
            epoch: Epoch { number: 3, id: 5 },
        }
    }

    fn of_users() -> Vec<ControlMessage> {
        let edit = |name: &str, expected: Option<&str>, rules: Option<&str>| Edit {
            name: name.into(),
            expected: expected.map(Into::into),
            rules: rules.map(Into::into),
        };
        let edits = alloc::vec![edit("u", None, Some("on")), edit("v", Some("off"), None)];
        let record = UserRecord::default().changed(&edits[..1]).unwrap().unwrap();
        let refused = ChangeOutcome::Refused("too long".to_string());
        let outcomes = [ChangeOutcome::Stored(3), ChangeOutcome::Conflict, refused];
        let mut all = alloc::vec![
            ControlMessage::UsersKnown(record.stamp()),
            ControlMessage::Users(record),
            ControlMessage::ChangeUsers(UserChange { number: 5, edits }),
        ];
        all.extend(outcomes.map(|outcome| ControlMessage::UsersChanged { number: 5, outcome }));
        all
    }

    fn all() -> Vec<ControlMessage> {
        let mut all = alloc::vec![
            ControlMessage::Tell { epoch: Epoch { number: 1, id: 2 }, view: view() },
            ControlMessage::Report(report()),
            ControlMessage::Report(Report { view: None, ..report() }),
        ];
        for to in [None, Some(ReplicaId(2))] {
            all.push(ControlMessage::Ask { number: 7, to });
        }
        for refused in [None, Some("replica 2 is not well".to_string())] {
            all.push(ControlMessage::Answer { number: 7, refused });
        }
        all.extend(of_users());
        for step in FillingStep::ALL {
            let filling = Some(Filling { step, bytes: 9 << 30, bytes_done: 1, bytes_per_s: 7 });
            all.push(ControlMessage::Report(Report { filling, ..report() }));
        }
        let vitals = Some(Vitals { commands: 7, slots: 3, ..Vitals::default() });
        all.push(ControlMessage::Report(Report { vitals, ..report() }));
        for probe in [Probe::Well, Probe::Refused, Probe::Full] {
            let (is_filled, is_whole) = (false, true);
            all.push(ControlMessage::Report(Report { probe, is_filled, is_whole, ..report() }));
        }
        all
    }

    #[test]
    fn messages_survive_their_bytes_and_wait_for_all_of_them() {
        for message in all() {
            let mut bytes = message.encode();
            assert!(bytes.len() <= MESSAGE_LEN_MAX);
            for len in 0..bytes.len() {
                assert_eq!(ControlMessage::decode(&bytes[..len]).unwrap(), None, "{len} bytes");
            }
            let len = bytes.len();
            bytes.extend(message.encode());
            assert_eq!(ControlMessage::decode(&bytes).unwrap(), Some((message, len)));
        }
    }

    #[test]
    fn lengths_and_sums_are_checked_before_anything_else() {
        let bytes = all()[0].encode();
        for len in [0_u32, 7, MESSAGE_LEN_MAX as u32 + 1, u32::MAX] {
            let error = ControlMessage::decode(&len.to_le_bytes()).unwrap_err().to_string();
            assert!(error.contains(&format!("{len} bytes")), "{error}");
        }
        for at in LEN_LEN..bytes.len() {
            let mut wrong = bytes.clone();
            wrong[at] ^= 1;
            assert!(ControlMessage::decode(&wrong).is_err(), "byte {at}");
        }
    }

    #[test]
    fn a_long_answer_is_cut_between_letters() {
        let refused = Some("ä".repeat(TEXT_LEN_MAX));
        let bytes = ControlMessage::Answer { number: 1, refused }.encode();
        let Some((ControlMessage::Answer { refused, .. }, _)) =
            ControlMessage::decode(&bytes).unwrap()
        else {
            panic!("an answer")
        };
        assert_eq!(refused.unwrap().len(), TEXT_LEN_MAX);
        assert_eq!(cut(&format!("a{}", "ä".repeat(400)), TEXT_LEN_MAX).len(), TEXT_LEN_MAX - 1);
    }

    #[test]
    fn a_filling_that_cannot_be_is_refused() {
        let filling = Some(Filling { bytes: 5, bytes_done: 6, ..Filling::default() });
        let bytes = ControlMessage::Report(Report { filling, ..report() }).encode();
        let error = ControlMessage::decode(&bytes).unwrap_err().to_string();
        assert!(error.contains("6 of 5 bytes"), "{error}");
        let mut bytes = ControlMessage::Report(report()).encode();
        let end = bytes.len() - CRC_LEN;
        bytes[end - 26] = 5;
        let sum = crc::crc32c(&bytes[..end]);
        bytes[end..].copy_from_slice(&sum.to_le_bytes());
        let error = ControlMessage::decode(&bytes).unwrap_err().to_string();
        assert!(error.contains("step 5 of filling"), "{error}");
    }

    proptest! {
        /// Bytes with a right checksum and nonsense within are an error or a message, no panic.
        #[test]
        fn nonsense_is_refused(body in prop::collection::vec(any::<u8>(), 0..200), kind in 0u8..9) {
            let mut bytes = ((HEAD_LEN + body.len() + CRC_LEN) as u32).to_le_bytes().to_vec();
            bytes.extend([3, 0, kind, 0]);
            bytes.extend(body);
            bytes.extend(crc::crc32c(&bytes).to_le_bytes());
            let _ = ControlMessage::decode(&bytes);
        }
    }
}

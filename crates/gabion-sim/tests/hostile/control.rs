//! All that a controller hears, says and stores, and the questions to its store with their answers.

use crate::Format;
use gabion_base::{ConfigNumber, Error, GroupId, ReplicaId, Result, Term, crc};
use gabion_control::detector::Probe;
use gabion_control::store_wire::{Answer, Question};
use gabion_control::users::{ChangeOutcome, Edit, UserChange, UserRecord};
use gabion_control::wire::ControlMessage;
use gabion_control::{
    Epoch, Filling, FillingStep, GroupRecord, Lag, Report, Swapped, Version, Versioned, Vitals,
};
use gabion_replication::{GroupView, LogKind};

const GROUP: GroupId = GroupId(7);

/// Of frames that begin with their length and end with their checksum.
fn seal(bytes: &mut [u8]) {
    if bytes.len() < 8 {
        return;
    }
    let len = bytes.len() as u32 - 4;
    bytes[..4].copy_from_slice(&len.to_le_bytes());
    let end = bytes.len() - 4;
    let sum = crc::crc32c(&bytes[..end]);
    bytes[end..].copy_from_slice(&sum.to_le_bytes());
}

/// Of what ends with its checksum.
fn seal_end(bytes: &mut [u8]) {
    if let Some(end) = bytes.len().checked_sub(4) {
        let sum = crc::crc32c(&bytes[..end]);
        bytes[end..].copy_from_slice(&sum.to_le_bytes());
    }
}

/// A message that is read as the first of what came, if it is all of it.
fn whole<T>(read: Result<Option<(T, usize)>>, len: usize) -> Result<T> {
    match read? {
        Some((message, used)) if used == len => Ok(message),
        Some((_, used)) => Err(Error::corruption(format!("{used} of {len} bytes are a message"))),
        None => Err(Error::corruption("the message is not whole")),
    }
}

fn framed(name: &'static str, samples: Vec<Vec<u8>>, read: fn(&[u8]) -> Result<Vec<u8>>) -> Format {
    Format {
        is_canonical: false,
        repair: Box::new(|bytes| seal(bytes)),
        ..Format::new(name, samples, move |bytes| read(bytes).map(Some))
    }
}

pub(crate) fn formats() -> Vec<Format> {
    let record = Format {
        fields_at: Some(2),
        is_canonical: false,
        ..Format::new("record of a group", records(), |bytes| {
            Ok(Some(GroupRecord::decode(bytes)?.encode()))
        })
    };
    let messages = framed("message of a controller", messages(), |bytes| {
        whole(ControlMessage::decode(bytes), bytes.len()).map(|message| message.encode())
    });
    let questions = framed("question to a store", questions(), |bytes| {
        let read = Question::decode(bytes)?.map(|(it, number, len)| ((it, number), len));
        let (question, number) = whole(Ok(read), bytes.len())?;
        question.encode(number)
    });
    let answers = framed("answer of a store", answers(), |bytes| {
        let read = Answer::decode(bytes)?.map(|(it, number, len)| ((it, number), len));
        let (answer, number) = whole(Ok(read), bytes.len())?;
        answer.encode(number)
    });
    let users = Format {
        repair: Box::new(|bytes| seal_end(bytes)),
        ..Format::new("record of users", users(), |bytes| {
            Ok(Some(UserRecord::decode(bytes)?.encode()))
        })
    };
    vec![record, messages, questions, answers, users]
}

fn view(config: u64) -> GroupView {
    let ids = [1, 2, 3].map(ReplicaId);
    let founding = GroupView::founding(GROUP, &ids, LogKind::Shared);
    GroupView { config: ConfigNumber(config), term: Term(config), ..founding }
}

fn records() -> Vec<Vec<u8>> {
    let mut first = GroupRecord::founding(view(1));
    first.note(1_000, "the group is made");
    let mut later = first.clone();
    later.intended = Some(view(2));
    later.preferred = vec![ReplicaId(2)];
    later.leaving = vec![ReplicaId(3), ReplicaId(9)];
    later.note(2_000, "without replica 3 (silent for 400 ms)");
    [first, later].map(|record| record.encode()).to_vec()
}

fn edits() -> Vec<Edit> {
    let rules = |text: &str| Some(text.as_bytes().to_vec());
    let edit = |name: &str, rules| Edit { name: name.into(), expected: None, rules };
    vec![edit("ann", rules("on ~a:* +@read")), edit("default", rules("off"))]
}

fn users() -> Vec<Vec<u8>> {
    let record = UserRecord::default().changed(&edits()).unwrap().unwrap();
    [UserRecord::default(), record].map(|record| record.encode()).to_vec()
}

fn messages() -> Vec<Vec<u8>> {
    let epoch = Epoch { number: 3, id: 0x1234 };
    let filling =
        Filling { step: FillingStep::ALL[1], bytes: 9 << 30, bytes_done: 1, bytes_per_s: 7 };
    let lag = Lag { replica: ReplicaId(2), bytes: 7, ms: 9 };
    let vitals = Vitals {
        slots: 9,
        slots_free: 3,
        levels: vec![1, 2],
        lags: vec![lag],
        ..Vitals::default()
    };
    let report = Report {
        member: view(1).members[0].clone(),
        group: GROUP,
        view: Some(view(5)),
        founded: ConfigNumber(4),
        is_filled: false,
        is_whole: true,
        filling: Some(filling),
        probe: Probe::Running(12),
        vitals: Some(vitals),
        unheard: vec![ReplicaId(2), ReplicaId(3)],
        epoch,
    };
    let report_of_little = Report { view: None, filling: None, vitals: None, ..report.clone() };
    let empty = Report { unheard: Vec::new(), ..report_of_little };
    let all = [
        ControlMessage::Tell { epoch, view: view(2) },
        ControlMessage::Report(report),
        ControlMessage::Report(empty),
        ControlMessage::Ask { number: 4, to: Some(ReplicaId(2)) },
        ControlMessage::Answer { number: 4, refused: Some("replica 2 is not well".into()) },
        ControlMessage::Users(UserRecord::default().changed(&edits()).unwrap().unwrap()),
        ControlMessage::UsersKnown(UserRecord::default().stamp()),
        ControlMessage::ChangeUsers(UserChange { number: 5, edits: edits() }),
        ControlMessage::UsersChanged { number: 5, outcome: ChangeOutcome::Stored(3) },
        ControlMessage::UsersChanged { number: 6, outcome: ChangeOutcome::Refused("no".into()) },
    ];
    all.iter().map(ControlMessage::encode).collect()
}

fn questions() -> Vec<Vec<u8>> {
    let all = [
        Question::Greet { token: b"secret" },
        Question::Get { name: "ncl/apps/a/map" },
        Question::List { prefix: "ncl/peers/", after: "ncl/peers/1" },
        Question::Swap { name: "x", expected: Version(7), value: &[1, 2, 3] },
    ];
    all.iter().map(|question| question.encode(9).unwrap()).collect()
}

fn answers() -> Vec<Vec<u8>> {
    let found = Versioned { version: Version(9), value: vec![4, 5] };
    let entries = (0..5).map(|n| (format!("ncl/peers/{n}"), found.clone())).collect();
    let all = [
        Answer::Welcome,
        Answer::Got(None),
        Answer::Got(Some(found.clone())),
        Answer::Listed(entries, true),
        Answer::Swapped(Swapped::Stored(Version(10))),
        Answer::Swapped(Swapped::Lost(Some(found))),
        Answer::Failed { is_refused: true, text: "the name is too long".into() },
    ];
    all.iter().map(|answer| answer.encode(9).unwrap()).collect()
}

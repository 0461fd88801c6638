//! The formats of the wire, and a replica's record of its group and itself.

use crate::Format;
use crate::samples::{frames, of_engine, of_node};
use gabion_base::codec::{FIELD_CRITICAL, put_field};
use gabion_base::{Error, ErrorKind, Result, crc};
use gabion_media::nvme::fabrics::{ConnectData, ControllerInfo, NamespaceInfo};
use gabion_media::nvme::initiator::{Initiator, InitiatorConfig, InitiatorState};
use gabion_media::nvme::target::{BackendKind, Subsystem, TargetConfig, TargetConnection};
use gabion_media::transport::Transport;
use gabion_media::{AlignedBuf, Bytes, Medium, Operation, OperationKind};
use gabion_node::message::NodeMessage;
use gabion_node::{GroupConfig, ReplicaState, Snapshot};
use gabion_replication::{Frame, Message};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

const FRAME_HEADER_LEN: usize = 64;
/// The kind of frame whose checksum leaves out its payload.
const RECORDS: u8 = 4;

fn seal_frame(bytes: &mut [u8]) {
    if bytes.len() < FRAME_HEADER_LEN {
        return;
    }
    let len = bytes.len() as u32 - 4;
    bytes[..4].copy_from_slice(&len.to_le_bytes());
    let body = u32::from_le_bytes([bytes[60], bytes[61], bytes[62], bytes[63]]) as usize;
    let end = match bytes[10] {
        RECORDS => bytes.len().min(FRAME_HEADER_LEN.saturating_add(body)),
        _ => bytes.len(),
    };
    let sum = crc::append(crc::crc32c(&bytes[..12]), &bytes[16..end]);
    bytes[12..16].copy_from_slice(&sum.to_le_bytes());
}

fn read_frame(bytes: &[u8]) -> Result<Option<Vec<u8>>> {
    if let Some(len) = Frame::len_of(bytes)? {
        assert!(len < 64 << 20, "a receiver would reserve {len} bytes");
    }
    let frame = Frame::decode(&Bytes::copy_from_slice(bytes))?;
    match frame.message {
        // Nobody sends on a later version's message.
        Message::Unknown { .. } => Ok(None),
        _ => Ok(Some(frame.encode()?.concat().to_vec())),
    }
}

fn checkpoint() -> Vec<u8> {
    let parts = [
        of_node!("group_config").remove(0),
        of_node!("replica_state_with_time").remove(0),
        of_engine!("tree_snapshot").remove(0),
    ];
    let mut out = Vec::new();
    for (tag, part) in (1..).zip(parts) {
        put_field(&mut out, tag, FIELD_CRITICAL, &part);
    }
    out
}

pub(crate) fn formats() -> Vec<Format> {
    let messages = of_node!(
        "message_copy_at",
        "message_discard",
        "message_grant",
        "message_have",
        "message_need_file",
        "message_no_copy",
        "message_placement",
        "message_room",
        "message_want_grant"
    );
    let states = of_node!("replica_state", "replica_state_with_time");
    let mut formats = vec![
        Format {
            is_canonical: false,
            repair: Box::new(|bytes| seal_frame(bytes)),
            ..Format::new("frame between members", frames(), read_frame)
        },
        Format::new("message between nodes", messages, |bytes| {
            Ok(Some(NodeMessage::decode(bytes)?.encode()))
        }),
        Format {
            fields_at: Some(0),
            is_canonical: false,
            ..Format::new(
                "configuration of a group",
                of_node!("group_config", "group_config_filters"),
                |bytes| Ok(Some(GroupConfig::decode(bytes)?.encode())),
            )
        },
        Format {
            fields_at: Some(0),
            is_canonical: false,
            ..Format::new("state of a replica", states, |bytes| {
                Ok(Some(ReplicaState::decode(bytes)?.encode()))
            })
        },
        Format {
            fields_at: Some(0),
            ..Format::new("checkpoint of a replica", vec![checkpoint()], |bytes| {
                Snapshot::decode(bytes).map(|_| None)
            })
        },
    ];
    formats.extend(of_fabrics());
    formats.extend(sessions());
    formats
}

const HOST: &str = "nqn.2026-01.io.gabion:host";
const SUBSYSTEM: &str = "nqn.2026-01.io.gabion:t1";
const NAMESPACE_LEN: u64 = 8 << 20;

/// The data structures of NVMe-oF.
fn of_fabrics() -> Vec<Format> {
    let connect = ConnectData {
        host_id: [7; 16],
        controller: 0xffff,
        subsystem_nqn: SUBSYSTEM.into(),
        host_nqn: HOST.into(),
    };
    let controller = ControllerInfo {
        controller: 1,
        transfer_order: 8,
        commands_max: 32,
        capsule_data_len: 8 << 10,
        capsule_data_offset: 0,
        write_cache: true,
        subsystem_nqn: SUBSYSTEM.into(),
    };
    let namespace = NamespaceInfo { blocks: 2_048, block_order: 12 };
    vec![
        Format {
            is_canonical: false,
            ..Format::new("data of a connect", vec![connect.encode().to_vec()], |bytes| {
                Ok(Some(ConnectData::decode(bytes)?.encode().to_vec()))
            })
        },
        Format::new(
            "identity of a controller",
            vec![controller.encode("serial").to_vec()],
            |bytes| ControllerInfo::decode(bytes).map(|_| None),
        ),
        Format::new(
            "identity of a namespace",
            vec![namespace.encode(&[3; 16]).to_vec()],
            |bytes| NamespaceInfo::decode(bytes).map(|_| None),
        ),
    ]
}

/// One direction of a connection: the bytes under way, and all that ever were.
#[derive(Default)]
struct Lane {
    bytes: VecDeque<u8>,
    sent: Vec<u8>,
}

/// An end of a connection in memory.
struct End {
    out: Rc<RefCell<Lane>>,
    into: Rc<RefCell<Lane>>,
}

impl Transport for End {
    fn send(&mut self, parts: &[&[u8]]) -> Result<usize> {
        let lane = &mut *self.out.borrow_mut();
        for part in parts {
            lane.bytes.extend(*part);
            lane.sent.extend_from_slice(part);
        }
        Ok(parts.iter().map(|part| part.len()).sum())
    }

    fn receive(&mut self, into: &mut [u8]) -> Result<Option<usize>> {
        let bytes = &mut self.into.borrow_mut().bytes;
        let len = bytes.len().min(into.len());
        into.iter_mut().zip(bytes.drain(..len)).for_each(|(to, from)| *to = from);
        Ok((len > 0).then_some(len))
    }
}

type Lanes = [Rc<RefCell<Lane>>; 2];

/// Both ends of a connection: the host's, the controller's, and the lanes from each to the other.
fn connection() -> (End, End, Lanes) {
    let lanes: Lanes = Default::default();
    let [up, down] = lanes.clone();
    (End { out: up.clone(), into: down.clone() }, End { out: down, into: up }, lanes)
}

fn subsystem() -> Subsystem {
    let config = TargetConfig::new(SUBSYSTEM.into(), vec![HOST.into()], NAMESPACE_LEN, [3; 16]);
    let mut subsystem = Subsystem::new(config).unwrap();
    subsystem.admit(HOST, 0..NAMESPACE_LEN);
    subsystem
}

/// Lets a target do all that it can. The driver's writes and reads end well.
fn drive(target: &mut TargetConnection<End>, subsystem: &mut Subsystem) {
    for _ in 0..4 {
        target.progress(subsystem, 1);
        while let Some(io) = target.poll_io() {
            let result = match io.kind {
                BackendKind::Read { offset, len } => {
                    assert!(offset + len as u64 <= NAMESPACE_LEN, "a read past the end");
                    Ok(Some(AlignedBuf::copy_of(&vec![1; len]).freeze()))
                }
                BackendKind::Write { offset, data, .. } => {
                    assert!(offset + data.len() as u64 <= NAMESPACE_LEN, "a write past the end");
                    Ok(None)
                }
                BackendKind::Flush => Ok(None),
            };
            target.complete_io(subsystem, io.id, result);
        }
    }
    target.progress(subsystem, 1);
}

/// The bytes of a connection.
#[derive(Default)]
struct Heard {
    /// To the controller, and to the host.
    streams: [Vec<u8>; 2],
    /// How much the host had sent and received at each step.
    steps: Vec<[usize; 2]>,
}

impl Heard {
    fn note(&mut self, lanes: &Lanes) {
        let step = [0, 1].map(|side| lanes[side].borrow().sent.len());
        if self.steps.last() != Some(&step) {
            self.steps.push(step);
        }
        self.streams = [0, 1].map(|side| lanes[side].borrow().sent.clone());
    }

    /// Sends the host of another session its part of a stream by now; `done` counts it.
    fn tell(&self, lanes: &Lanes, stream: &[u8], done: &mut usize) {
        let sent = lanes[0].borrow().sent.len();
        let by_now = self.steps.iter().take_while(|step| step[0] <= sent).last();
        let end = match by_now {
            Some(step) if self.steps.last() != Some(step) => step[1].min(stream.len()),
            Some(_) => stream.len(),
            None => 0,
        };
        lanes[1].borrow_mut().bytes.extend(stream.get(*done..end).unwrap_or_default());
        *done = end.max(*done);
    }
}

/// The bytes of the admin queue and of the other one.
struct Session {
    admin: Heard,
    io: Heard,
}

fn initiator(digests: bool, admin: End, io: End) -> Initiator<End> {
    let mut config = InitiatorConfig::new(HOST.into(), [7; 16], SUBSYSTEM.into());
    (config.header_digest, config.data_digest) = (digests, digests);
    Initiator::connect(config, admin, io)
}

fn operations() -> Vec<Operation> {
    let data = AlignedBuf::copy_of(&vec![5; 12 << 10]).freeze();
    vec![
        Operation { tag: 1, kind: OperationKind::Write { offset: 4096, data }, then: false },
        Operation {
            tag: 2,
            kind: OperationKind::Read { offset: 4096, into: AlignedBuf::zeroed(8192) },
            then: false,
        },
        Operation { tag: 3, kind: OperationKind::Flush, then: false },
    ]
}

/// A session between both real ends: handshake, a write, a read, a flush.
fn session(digests: bool) -> Session {
    let (admin_host, admin_end, admin) = connection();
    let (io_host, io_end, io) = connection();
    let mut subsystem = subsystem();
    let mut host = initiator(digests, admin_host, io_host);
    let mut targets = [TargetConnection::new(admin_end), TargetConnection::new(io_end)];
    let mut completed = Vec::new();
    let mut has_submitted = false;
    let mut heard = Session { admin: Heard::default(), io: Heard::default() };
    for _ in 0..60 {
        host.progress(1);
        targets.iter_mut().for_each(|target| drive(target, &mut subsystem));
        heard.admin.note(&admin);
        heard.io.note(&io);
        if matches!(host.state(), InitiatorState::Ready) && !has_submitted {
            host.submit(operations());
            has_submitted = true;
        }
        host.poll(&mut completed);
    }
    assert_eq!(completed.len(), 3, "a write, a read and a flush: {:?}", host.state());
    heard
}

/// Repairs the digests of a stream of PDUs, as long as their places are known.
fn seal_stream(bytes: &mut [u8]) {
    let mut at = 0;
    while let Some(head) = bytes.get(at..at + 8) {
        let (kind, flags, hlen, pdo) = (head[0], head[1], usize::from(head[2]), head[3]);
        let len = u32::from_le_bytes([head[4], head[5], head[6], head[7]]) as usize;
        if len < 8 || at.checked_add(len).is_none_or(|end| end > bytes.len()) {
            return;
        }
        let pdu = &mut bytes[at..at + len];
        // The first PDUs of both sides and those that end a connection have none.
        if kind > 3 {
            if flags & 1 != 0 && hlen + 4 <= len {
                let sum = crc::crc32c(&pdu[..hlen]);
                pdu[hlen..hlen + 4].copy_from_slice(&sum.to_le_bytes());
            }
            let data_at = usize::from(pdo);
            if flags & 2 != 0 && data_at > 0 && data_at + 4 <= len {
                let sum = crc::crc32c(&pdu[data_at..len - 4]);
                pdu[len - 4..].copy_from_slice(&sum.to_le_bytes());
            }
        }
        at += len;
    }
}

fn outcome(error: Option<Error>) -> Result<Option<Vec<u8>>> {
    error.map_or(Ok(None), Err)
}

/// Sends a target a stream on the admin queue, or behind a whole session of that one on the other.
fn feed_target(session: &Session, is_io: bool, stream: &[u8]) -> Result<Option<Vec<u8>>> {
    let mut subsystem = subsystem();
    let streams = if is_io { vec![&session.admin.streams[0][..], stream] } else { vec![stream] };
    let mut targets = Vec::new();
    for stream in streams {
        let (_host, end, lanes) = connection();
        lanes[0].borrow_mut().bytes.extend(stream);
        targets.push(TargetConnection::new(end));
        targets.iter_mut().for_each(|target| drive(target, &mut subsystem));
    }
    let last = targets.pop().expect("there is one");
    outcome(last.error().cloned())
}

/// An initiator hears a stream on one queue, and the recorded one on the other.
fn feed_host(
    session: &Session,
    digests: bool,
    is_io: bool,
    stream: &[u8],
) -> Result<Option<Vec<u8>>> {
    let (admin_host, _a, admin) = connection();
    let (io_host, _b, io) = connection();
    let mut host = initiator(digests, admin_host, io_host);
    let streams = match is_io {
        true => [&session.admin.streams[1][..], stream],
        false => [stream, &session.io.streams[1][..]],
    };
    let (mut completed, mut done, mut has_submitted) = (Vec::new(), [0, 0], false);
    for _ in 0..60 {
        host.progress(1);
        session.admin.tell(&admin, streams[0], &mut done[0]);
        session.io.tell(&io, streams[1], &mut done[1]);
        if matches!(host.state(), InitiatorState::Ready) && !has_submitted {
            host.submit(operations());
            has_submitted = true;
        }
        host.poll(&mut completed);
    }
    match host.state() {
        InitiatorState::Failed(error) => Err(error),
        state => {
            let is_whole =
                stream == &session.io.streams[1][..] || stream == &session.admin.streams[1][..];
            assert!(
                !is_whole || completed.len() == 3,
                "what was heard leads to the same: {state:?}"
            );
            Ok(None)
        }
    }
}

/// Both ends of NVMe/TCP. Each gets the other's recorded bytes, changed.
fn sessions() -> Vec<Format> {
    let mut formats = Vec::new();
    for digests in [false, true] {
        let session = Rc::new(session(digests));
        for is_io in [false, true] {
            let names = match (digests, is_io) {
                (false, false) => ["admin queue of a target", "admin queue of an initiator"],
                (false, true) => ["I/O queue of a target", "I/O queue of an initiator"],
                (true, false) => {
                    ["admin queue of a target, digests", "admin queue of an initiator, digests"]
                }
                (true, true) => {
                    ["I/O queue of a target, digests", "I/O queue of an initiator, digests"]
                }
            };
            let streams = if is_io { &session.io.streams } else { &session.admin.streams };
            for (side, name) in names.into_iter().enumerate() {
                let session = session.clone();
                let sample = streams[side].clone();
                let read = move |stream: &[u8]| match side {
                    0 => feed_target(&session, is_io, stream),
                    _ => feed_host(&session, digests, is_io, stream),
                };
                formats.push(Format {
                    repair: Box::new(|bytes| seal_stream(bytes)),
                    memory_max: 8 << 20,
                    // Errors in the other end's own words.
                    other_errors: &[ErrorKind::Io, ErrorKind::Unavailable],
                    rare: 5,
                    ..Format::new(name, vec![sample], read)
                });
            }
        }
    }
    formats
}

//! Peers that send anything: neither end panics, hangs on to memory or does what it must not.

use super::*;
use crate::nvme::command::{admin, io};
use crate::nvme::fabrics::{IDENTIFY_LEN, property};
use crate::nvme::pdu::{DataHeader, FatalStatus};
use proptest::prelude::*;

/// What the target said before it ended the connection.
fn term(host: &RawHost) -> (u16, u32) {
    assert!(host.target.error().is_some());
    match host.got.last() {
        Some((Pdu::Term { status, information }, _)) => (*status, *information),
        other => panic!("{other:?}, target: {:?}", host.target.error()),
    }
}

fn write_command(cid: u16, len: u32) -> Submission {
    Submission::transfer(io::WRITE, 0, len / 4096).with_cid(cid).with_data(len, false)
}

fn data_frame(host: &RawHost, header: DataHeader) -> Frame {
    let data = vec![1; header.len as usize].into();
    host.wire.assembly().data(PduKind::H2cData, &header, data, None)
}

/// An I/O queue with a write of 64 KiB whose R2T has come.
fn asked() -> (RawHost, DataHeader) {
    let mut host = RawHost::connected(1);
    let frame = host.wire.assembly().command(&write_command(5, 65_536), Bytes::new(), None);
    host.send(frame);
    let Some((Pdu::R2t(r2t), _)) = host.got.pop() else { panic!("{:?}", host.got) };
    assert_eq!((r2t.cid, r2t.offset, r2t.len), (5, 0, 65_536));
    let header =
        DataHeader { cid: 5, ttag: r2t.ttag, offset: 0, len: 65_536, last: true, success: false };
    (host, header)
}

#[test]
fn data_that_were_not_asked_for_end_the_connection() {
    let right = asked().1;
    let cases = [
        (DataHeader { cid: 6, ..right }, FatalStatus::InvalidHeader),
        (DataHeader { ttag: 3, ..right }, FatalStatus::InvalidHeader),
        (DataHeader { ttag: 0xffff, ..right }, FatalStatus::InvalidHeader),
        (DataHeader { offset: 4, ..right }, FatalStatus::DataOutOfRange),
        (DataHeader { offset: u32::MAX, ..right }, FatalStatus::DataOutOfRange),
        (DataHeader { len: 65_537, ..right }, FatalStatus::DataOutOfRange),
        (DataHeader { len: 4096, ..right }, FatalStatus::DataOutOfRange),
        (DataHeader { len: (1 << 20) + 4, ..right }, FatalStatus::LimitExceeded),
    ];
    for (header, status) in cases {
        let (mut host, _) = asked();
        let frame = data_frame(&host, header);
        host.send(frame);
        assert_eq!(term(&host).0, status as u16, "{header:?}");
        assert!(host.ios.is_empty());
    }
    let (mut host, header) = asked();
    let frame = data_frame(&host, header);
    host.send(frame.clone());
    assert!(matches!(host.ios[0].kind, BackendKind::Write { offset: 0, .. }));
    // The same data again: the R2T was answered.
    host.send(frame);
    assert_eq!(term(&host), (FatalStatus::InvalidHeader as u16, 8));
}

#[test]
fn a_first_pdu_other_than_icreq_ends_the_connection() {
    let mut host = RawHost::new();
    let frame = host.wire.assembly().command(&write_command(1, 4096), Bytes::new(), None);
    host.send(frame);
    assert_eq!(term(&host).0, FatalStatus::Sequence as u16);
    let mut host = RawHost::greeted(Digests::default(), 0);
    let ask = Initialize { format: 0, alignment: 0, digests: Digests::default(), limit: 0 };
    host.send(Assembly::initialize(PduKind::IcReq, &ask));
    assert_eq!(term(&host).0, FatalStatus::Sequence as u16);
}

#[test]
fn a_format_or_alignment_that_nobody_knows_ends_the_connection() {
    for (ask, at) in [((1, 0), 8), ((0, 32), 10)] {
        let mut host = RawHost::new();
        let (format, alignment) = ask;
        let ask = Initialize { format, alignment, digests: Digests::default(), limit: 0 };
        host.send(Assembly::initialize(PduKind::IcReq, &ask));
        assert_eq!(term(&host), (FatalStatus::UnsupportedParameter as u16, at));
    }
}

#[test]
fn a_host_that_wants_its_data_aligned_gets_them_so() {
    let mut host = RawHost::greeted(Digests { header: true, data: true }, 17);
    assert_eq!(host.connect(0, 0xffff, HOST, SUBSYSTEM).status, Status::SUCCESS);
    host.status(Submission::property_set(property::CC, CC_ENABLED).with_cid(1));
    let command = Submission::new(admin::IDENTIFY).with_dword(10, 1).with_cid(2);
    let (reply, data) = host.ask(command.with_data(4096, false), Bytes::new());
    assert_eq!((reply.status, data.len()), (Status::SUCCESS, IDENTIFY_LEN));
}

#[test]
fn more_commands_than_the_queue_has_entries_end_the_connection() {
    let mut host = RawHost::connected(1);
    for cid in 0..9 {
        let command = Submission::transfer(io::READ, 0, 1).with_cid(cid).with_data(4096, false);
        let frame = host.wire.assembly().command(&command, Bytes::new(), None);
        host.send(frame);
    }
    assert!(!host.target.is_finished(), "the driver has eight reads");
    assert!(host.target.error().is_some());
    for io in core::mem::take(&mut host.ios) {
        host.target.complete_io(&mut host.subsystem, io.id, Ok(Some(vec![0; 4096].into())));
    }
    assert!(host.target.is_finished());
    assert_eq!(host.subsystem.in_flight(), 0);
}

#[test]
fn too_much_data_in_a_capsule_ends_the_connection_before_a_buffer_is_made() {
    let mut host = RawHost::connected(1);
    let command = write_command(1, 20_480).with_data(20_480, true);
    let frame = host.wire.assembly().command(&command, vec![0; 20_480].into(), None);
    host.send(frame);
    assert_eq!(term(&host).0, FatalStatus::LimitExceeded as u16);
}

#[test]
fn wrong_io_commands_get_the_status_that_says_why() {
    let mut host = RawHost::connected(1);
    let read = |first, blocks| Submission::transfer(io::READ, first, blocks).with_cid(1);
    let cases = [
        (read(0, 1), Status::SGL_LENGTH),
        (read(0, 1).with_data(8192, false), Status::SGL_LENGTH),
        (read(0, 1).with_data(4096, true), Status::SGL_LENGTH),
        (read(NAMESPACE_LEN / 4096, 1).with_data(4096, false), Status::LBA_RANGE),
        (read(u64::MAX, 1).with_data(4096, false), Status::LBA_RANGE),
        (read(0, 257).with_data(257 * 4096, false), Status::INVALID_FIELD),
        (read(0, 1).with_namespace(2).with_data(4096, false), Status::INVALID_NAMESPACE),
        (Submission::new(0x08).with_cid(1), Status::INVALID_OPCODE),
        (Submission::property_get(property::CSTS, false).with_cid(1), Status::INVALID_FIELD),
    ];
    for (command, status) in cases {
        assert_eq!(host.status(command), status, "{command:?}");
    }
    let mut unflagged = *read(0, 1).as_bytes();
    unflagged[1] = 0;
    assert_eq!(host.status(Submission::parse(&unflagged)), Status::INVALID_FIELD);
    let mut keyed = *read(0, 1).with_data(4096, false).as_bytes();
    keyed[39] = 0x40;
    assert_eq!(host.status(Submission::parse(&keyed)), Status::SGL_TYPE);
    assert!(host.ios.is_empty());
    // A flush of all namespaces is one of ours.
    let flush = Submission::new(io::FLUSH).with_namespace(u32::MAX).with_cid(1);
    let frame = host.wire.assembly().command(&flush, Bytes::new(), None);
    host.send(frame);
    assert!(matches!(host.ios[0].kind, BackendKind::Flush));
    // Its identifier is in use as long as it is not answered.
    assert_eq!(host.status(read(0, 1).with_data(4096, false)), Status::CID_CONFLICT);
}

#[test]
fn a_write_that_must_be_durable_is_flushed_before_it_is_answered() {
    let mut host = RawHost::connected(1);
    let command = write_command(1, 4096).with_data(4096, true).with_dword(12, 1 << 30);
    let frame = host.wire.assembly().command(&command, vec![1; 4096].into(), None);
    host.send(frame);
    let write = host.ios.pop().unwrap();
    assert!(matches!(write.kind, BackendKind::Write { .. }));
    host.target.complete_io(&mut host.subsystem, write.id, Ok(None));
    host.run();
    assert!(host.got.is_empty());
    let flush = host.ios.pop().unwrap();
    assert!(matches!(flush.kind, BackendKind::Flush));
    host.target.complete_io(&mut host.subsystem, flush.id, Ok(None));
    host.target.complete_io(&mut host.subsystem, flush.id, Ok(None));
    host.run();
    let Some((Pdu::Response(reply), _)) = host.got.pop() else { panic!() };
    assert_eq!((reply.cid, reply.status, reply.queue_head), (1, Status::SUCCESS, 2));
    assert_eq!((host.subsystem.in_flight(), host.target.data_reserved()), (0, 0));
}

#[test]
fn a_failure_of_the_medium_reaches_the_host_as_a_status() {
    for (opcode, status) in [(io::READ, Status::READ_ERROR), (io::WRITE, Status::WRITE_FAULT)] {
        let mut host = RawHost::connected(1);
        let (in_capsule, data) = match opcode {
            io::WRITE => (true, vec![1; 4096].into()),
            _ => (false, Bytes::new()),
        };
        let command = Submission::transfer(opcode, 0, 1).with_data(4096, in_capsule);
        let frame = host.wire.assembly().command(&command, data, None);
        host.send(frame);
        let io = host.ios.pop().unwrap();
        host.target.complete_io(&mut host.subsystem, io.id, Err(Error::io("disk")));
        host.run();
        let Some((Pdu::Response(reply), _)) = host.got.pop() else { panic!() };
        assert_eq!(reply.status, status);
        assert_eq!(host.target.data_reserved(), 0);
    }
}

#[test]
fn nothing_but_connect_works_before_connect_and_connect_works_once() {
    let mut host = RawHost::greeted(Digests::default(), 0);
    let get = Submission::property_get(property::CAP, true);
    assert_eq!(host.status(get), Status::SEQUENCE);
    assert_eq!(host.connect(0, 1, HOST, SUBSYSTEM).result, 1 << 16 | 16);
    assert_eq!(host.connect(0, 0xffff, HOST, "nqn.other").result, 1 << 16 | 256);
    assert_eq!(host.connect(0, 0xffff, "nqn.other", SUBSYSTEM).status, Status::CONNECT_HOST);
    assert_eq!(host.connect(1, 1, HOST, SUBSYSTEM).status, Status::CONNECT_INVALID);
    assert_eq!(host.connect(0, 0xffff, HOST, SUBSYSTEM).status, Status::SUCCESS);
    assert_eq!(host.connect(0, 0xffff, HOST, SUBSYSTEM).status, Status::SEQUENCE);
    // Before the controller is enabled only properties answer.
    let identify = Submission::new(admin::IDENTIFY).with_dword(10, 1).with_data(4096, false);
    assert_eq!(host.status(identify), Status::SEQUENCE);
    assert_eq!(host.ask(get, Bytes::new()).0.result, 0x20_0201_007f);
}

#[test]
fn what_the_driver_never_fetched_is_not_in_flight_once_the_host_or_the_subsystem_is_gone() {
    for close in [false, true] {
        let mut host = RawHost::connected(1);
        let flush = Submission::new(io::FLUSH).with_namespace(1);
        let frame = host.wire.assembly().command(&flush, Bytes::new(), None);
        host.wire.push(frame);
        host.wire.flush(|_| {}).unwrap();
        host.target.progress(&mut host.subsystem, 0);
        assert_eq!(host.subsystem.in_flight(), 1);
        if close {
            host.subsystem.close();
        } else {
            drop(host.wire);
        }
        host.target.progress(&mut host.subsystem, 0);
        assert_eq!(host.subsystem.in_flight(), 0);
        assert!(host.target.poll_io().is_none());
        assert!(host.target.is_finished());
    }
}

#[test]
fn a_flood_of_commands_does_not_keep_the_thread() {
    let mut host = RawHost::greeted(Digests::default(), 0);
    let get = Submission::property_get(property::CAP, true);
    for _ in 0..3000 {
        let frame = host.wire.assembly().command(&get, Bytes::new(), None);
        host.wire.push(frame);
    }
    host.wire.flush(|_| {}).unwrap();
    let before = host.target.bytes_sent();
    host.target.progress(&mut host.subsystem, 0);
    let answered = (host.target.bytes_sent() - before) / 24;
    assert!((1000..=1024).contains(&answered), "{answered}");
    assert!(host.target.error().is_none());
}

#[test]
fn controllers_are_limited_and_leave_with_their_admin_queue() {
    let mut host = RawHost::connected(0);
    let mut others = Vec::new();
    for _ in 1..8 {
        let mut other = RawHost::greeted(Digests::default(), 0);
        core::mem::swap(&mut other.subsystem, &mut host.subsystem);
        assert_eq!(other.connect(0, 0xffff, HOST, SUBSYSTEM).status, Status::SUCCESS);
        core::mem::swap(&mut other.subsystem, &mut host.subsystem);
        others.push(other);
    }
    assert_eq!(host.subsystem.controllers(), 8);
    let mut late = RawHost::greeted(Digests::default(), 0);
    core::mem::swap(&mut late.subsystem, &mut host.subsystem);
    assert_eq!(late.connect(0, 0xffff, HOST, SUBSYSTEM).status, Status::CONNECT_BUSY);
    let mut gone = others.remove(3);
    drop(gone.wire);
    gone.target.progress(&mut late.subsystem, 0);
    assert!(gone.target.is_finished());
    let reply = late.connect(0, 0xffff, HOST, SUBSYSTEM);
    assert_eq!((reply.status, reply.result), (Status::SUCCESS, 9));
}

#[test]
fn an_io_queue_ends_when_its_controller_is_disabled() {
    let mut admin = RawHost::connected(0);
    admin.status(Submission::property_set(property::CC, CC_ENABLED));
    let mut queue = RawHost::greeted(Digests::default(), 0);
    core::mem::swap(&mut queue.subsystem, &mut admin.subsystem);
    assert_eq!(queue.connect(9, 1, HOST, SUBSYSTEM).result, 42);
    assert_eq!(queue.connect(1, 2, HOST, SUBSYSTEM).result, 1 << 16 | 16);
    assert_eq!(queue.connect(1, 1, HOST, SUBSYSTEM).status, Status::SUCCESS);
    core::mem::swap(&mut queue.subsystem, &mut admin.subsystem);
    admin.status(Submission::property_set(property::CC, 0));
    queue.target.progress(&mut admin.subsystem, 0);
    assert!(queue.target.is_finished());
    assert!(!admin.target.is_finished());
}

/// What a Linux host asks between Connect and its first read, in its order.
#[test]
fn the_questions_of_a_linux_host_are_answered() {
    let mut host = RawHost::connected(0);
    let get = |offset| Submission::property_get(offset, false);
    assert_eq!(host.ask(get(property::VS), Bytes::new()).0.result, 0x0001_0400);
    assert_eq!(host.ask(get(property::CSTS), Bytes::new()).0.result, 0);
    // Linux first disables, then enables.
    host.status(Submission::property_set(property::CC, 0));
    host.status(Submission::property_set(property::CC, CC_ENABLED));
    assert_eq!(host.ask(get(property::CSTS), Bytes::new()).0.result, 1);
    assert_eq!(host.ask(get(property::CC), Bytes::new()).0.result, u64::from(CC_ENABLED));
    assert_eq!(host.status(get(0x68)), Status::INVALID_FIELD);
    let mut identify = |structure: u32, namespace: u32| {
        let command = Submission::new(admin::IDENTIFY)
            .with_dword(10, structure)
            .with_namespace(namespace)
            .with_data(4096, false);
        let (reply, data) = host.ask(command, Bytes::new());
        (reply.status, data)
    };
    assert_eq!(identify(1, 0).0, Status::SUCCESS);
    assert_eq!(identify(6, 0).0, Status::SUCCESS);
    assert_eq!(identify(2, 0).1[..8], [1, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(identify(2, 1).1[..8], [0; 8]);
    let descriptors = identify(3, 1).1;
    assert_eq!(descriptors[..4], [3, 16, 0, 0]);
    assert_eq!(descriptors[4..20], [9; 16]);
    assert_eq!(descriptors[20..26], [4, 1, 0, 0, 0, 0]);
    assert_eq!(identify(0, 1).1[..8], (NAMESPACE_LEN / 4096).to_le_bytes());
    assert_eq!(identify(0, 2).0, Status::INVALID_NAMESPACE);
    assert_eq!(identify(8, 1).0, Status::INVALID_FIELD);
    let log = |page: u32, dwords: u32| {
        Submission::new(admin::GET_LOG_PAGE)
            .with_dword(10, page | (dwords - 1) << 16)
            .with_data(dwords * 4, false)
    };
    for (page, dwords) in [(1, 16), (2, 128), (3, 128), (4, 1024), (5, 1024)] {
        assert_eq!(host.status(log(page, dwords)), Status::SUCCESS, "page {page}");
    }
    assert_eq!(host.status(log(0x70, 4)), Status::INVALID_LOG_PAGE);
    assert_eq!(host.status(log(1, 65_536)), Status::INVALID_FIELD);
    let feature = |opcode, id: u32, value: u32| {
        Submission::new(opcode).with_dword(10, id).with_dword(11, value)
    };
    let queues = feature(admin::SET_FEATURES, 7, 3 << 16 | 3);
    assert_eq!(host.ask(queues, Bytes::new()).0.result, 3 << 16 | 3);
    assert_eq!(host.status(feature(admin::SET_FEATURES, 11, 0x100)), Status::SUCCESS);
    assert_eq!(host.status(feature(admin::SET_FEATURES, 15, 5000)), Status::SUCCESS);
    let kept = host.ask(feature(admin::GET_FEATURES, 15, 0), Bytes::new()).0.result;
    assert_eq!(kept, 5000);
    assert_eq!(host.status(Submission::new(admin::KEEP_ALIVE)), Status::SUCCESS);
    assert_eq!(host.ask(Submission::new(admin::ABORT), Bytes::new()).0.result, 1);
    assert_eq!(host.status(Submission::new(0x80)), Status::INVALID_OPCODE);
    // Event requests are held, up to a limit.
    for cid in 100..104 {
        let command = Submission::new(admin::ASYNC_EVENT).with_cid(cid);
        let frame = host.wire.assembly().command(&command, Bytes::new(), None);
        host.send(frame);
    }
    assert!(host.got.is_empty());
    let one_more = Submission::new(admin::ASYNC_EVENT).with_cid(104);
    assert_eq!(host.status(one_more), Status::ASYNC_LIMIT);
    // Shutting down is answered at once.
    host.status(Submission::property_set(property::CC, CC_ENABLED | 1 << 14));
    assert_eq!(host.ask(get(property::CSTS), Bytes::new()).0.result, 1 | 2 << 2);
    host.status(Submission::property_set(property::CC, 0));
    assert_eq!(host.ask(get(property::CSTS), Bytes::new()).0.result, 0);
}

/// The bytes of the four lanes of a session with writes and reads.
fn session(digests: bool) -> [Vec<u8>; 4] {
    let config =
        InitiatorConfig { header_digest: digests, data_digest: digests, ..initiator_config() };
    let mut world = World::with(&Cuts::Whole, config, target_config()).ready();
    assert!(is_done(&world.write(0, &pattern(1, 20_480))));
    assert!(is_done(&world.write(0, &pattern(1, 4096))));
    assert!(is_done(&world.read(0, 8192).outcome));
    [[0, 0], [0, 1], [1, 0], [1, 1]]
        .map(|[c, l]: [usize; 2]| world.lanes[c][l].borrow().log.clone())
}

#[derive(Clone, Debug)]
enum Mutation {
    Set(usize, u8),
    Cut(usize, usize),
    Repeat(usize, usize),
    Insert(usize, Vec<u8>),
}

fn mutation() -> impl Strategy<Value = Mutation> {
    prop_oneof![
        4 => (any::<usize>(), any::<u8>()).prop_map(|(at, to)| Mutation::Set(at, to)),
        1 => (any::<usize>(), 1usize..200).prop_map(|(at, len)| Mutation::Cut(at, len)),
        1 => (any::<usize>(), 1usize..2000).prop_map(|(at, len)| Mutation::Repeat(at, len)),
        1 => (any::<usize>(), prop::collection::vec(any::<u8>(), 1..40))
            .prop_map(|(at, bytes)| Mutation::Insert(at, bytes)),
    ]
}

fn mutate(bytes: &mut Vec<u8>, mutations: &[Mutation]) {
    for mutation in mutations {
        // Headers are where most happens: half the places lie among the first bytes.
        let place = |at: usize, len: usize| {
            if at.is_multiple_of(2) { at / 2 % len.min(1500) } else { at % len }
        };
        let len = bytes.len().max(1);
        match mutation {
            Mutation::Set(at, to) => {
                if let Some(byte) = bytes.get_mut(place(*at, len)) {
                    *byte = *to;
                }
            }
            Mutation::Cut(at, count) => {
                let at = place(*at, len).min(bytes.len());
                bytes.drain(at..(at + count).min(bytes.len()));
            }
            Mutation::Repeat(at, count) => {
                let at = place(*at, len).min(bytes.len());
                let part = bytes[at..(at + count).min(bytes.len())].to_vec();
                bytes.splice(at..at, part);
            }
            Mutation::Insert(at, new) => {
                let at = place(*at, len).min(bytes.len());
                bytes.splice(at..at, new.iter().copied());
            }
        }
    }
}

/// Feeds bytes to a world's four lanes in place of what the other end would say.
fn feed_target(admin: &[u8], io: &[u8]) {
    let mut subsystem = Subsystem::new(target_config()).unwrap();
    subsystem.admit(HOST, 0..NAMESPACE_LEN);
    let mut ends = Vec::new();
    for bytes in [admin, io] {
        let (mut host, controller, _) = pipe(&Cuts::Whole);
        let mut connection = TargetConnection::new(controller);
        let mut rest = bytes;
        // A pipe holds a part only, so that the target works while it is fed.
        for _ in 0..200 {
            let sent = host.send(&[rest]).unwrap_or(0);
            rest = &rest[sent..];
            connection.progress(&mut subsystem, 0);
            while let Some(io) = connection.poll_io() {
                let data = match io.kind {
                    BackendKind::Read { len, .. } => Some(vec![0; len].into()),
                    _ => None,
                };
                connection.complete_io(&mut subsystem, io.id, Ok(data));
            }
            let mut sink = [0; 4096];
            while let Ok(Some(1..)) = host.receive(&mut sink) {}
            let bound = subsystem.config().data_in_flight_max + 128 * 16_384;
            assert!(connection.data_reserved() <= bound);
            if rest.is_empty() {
                break;
            }
        }
        drop(host);
        connection.progress(&mut subsystem, 0);
        ends.push(connection);
    }
    for mut connection in ends {
        connection.progress(&mut subsystem, 60_000);
        connection.progress(&mut subsystem, 60_000);
        assert!(connection.is_finished());
    }
    assert_eq!((subsystem.in_flight(), subsystem.controllers()), (0, 0));
}

fn feed_initiator(admin: &[u8], io: &[u8], digests: bool) {
    let (host_admin, mut admin_end, _) = pipe(&Cuts::Whole);
    let (host_io, mut io_end, _) = pipe(&Cuts::Whole);
    let config =
        InitiatorConfig { header_digest: digests, data_digest: digests, ..initiator_config() };
    let mut initiator = Initiator::connect(config, host_admin, host_io);
    let mut submitted = false;
    let mut completed = Vec::new();
    let (mut admin, mut io) = (admin, io);
    for now_ms in 0..100 {
        initiator.progress(now_ms);
        if matches!(initiator.state(), InitiatorState::Ready) && !submitted {
            submitted = true;
            let kinds = [
                OperationKind::Write { offset: 0, data: vec![1; 20_480].into() },
                OperationKind::Write { offset: 0, data: vec![1; 4096].into() },
                OperationKind::Read { offset: 0, into: AlignedBuf::zeroed(8192) },
            ];
            let batch = kinds.into_iter().enumerate();
            let batch = batch.map(|(i, kind)| Operation { tag: i as u64, kind, then: true });
            initiator.submit(batch.collect());
        }
        // Few bytes at a time, so that answers come after their questions.
        for (end, bytes) in [(&mut admin_end, &mut admin), (&mut io_end, &mut io)] {
            let sent = end.send(&[&bytes[..bytes.len().min(500)]]).unwrap_or(0);
            *bytes = &bytes[sent..];
            let mut sink = [0; 4096];
            while let Ok(Some(1..)) = end.receive(&mut sink) {}
        }
        initiator.poll(&mut completed);
    }
    drop((admin_end, io_end));
    initiator.progress(200);
    initiator.progress(60_000);
    initiator.poll(&mut completed);
    assert!(matches!(initiator.state(), InitiatorState::Failed(_)));
    assert_eq!((completed.len(), initiator.in_flight()), (if submitted { 3 } else { 0 }, 0));
}

#[test]
fn a_recorded_session_is_understood_when_it_is_played_back() {
    // Or the mutations below would test nothing.
    for digests in [false, true] {
        let lanes = session(digests);
        feed_target(&lanes[0], &lanes[2]);
        feed_initiator(&lanes[1], &lanes[3], digests);
    }
}

proptest! {
    #[test]
    fn arbitrary_bytes_panic_neither_end(
        bytes in prop::collection::vec(any::<u8>(), 0..2000),
        greeted: bool,
    ) {
        let lanes = session(false);
        let prefix = |lane: usize| if greeted { &lanes[lane][..128] } else { &[][..] };
        feed_target(&[prefix(0), &bytes].concat(), &[prefix(2), &bytes].concat());
        feed_initiator(&[prefix(1), &bytes].concat(), &[prefix(3), &bytes].concat(), false);
    }

    #[test]
    fn mutated_streams_panic_neither_end(
        mutations in prop::collection::vec(mutation(), 1..6),
        lane in 0usize..4,
    ) {
        let mut lanes = session(false);
        mutate(&mut lanes[lane], &mutations);
        feed_target(&lanes[0], &lanes[2]);
        feed_initiator(&lanes[1], &lanes[3], false);
    }
}

#[test]
fn a_host_by_anothers_name_than_it_has_shown_is_refused_and_its_connection_is_over() {
    let greeted = |shown| RawHost::shown(Some(shown)).greet(Digests::default(), 0);
    let mut other = greeted("nqn.other");
    assert_eq!(other.connect(0, 0xffff, HOST, SUBSYSTEM).status, Status::CONNECT_HOST);
    let error = other.target.error().expect("its connection is over").to_string();
    assert!(error.contains(&format!("nqn.other is not {HOST}")), "{error}");
    let mut same = greeted(HOST);
    assert_eq!(same.connect(0, 0xffff, HOST, SUBSYSTEM).status, Status::SUCCESS);
    assert!(same.target.error().is_none());
}

//! A member that forwards more reads than it takes replies of.

use super::*;
use crate::commands::{Call, Work};
use crate::forward::{self, Origin, WriteId};
use crate::peers::{Link, Tie};
use crate::stream::Stream;
use bytes::Bytes;
use gabion_base::{ConfigNumber, Frontier, GroupId, ReplicaId, ShardId, Term};
use gabion_replication::{Frame, Message};
use gabion_resp::{Protocol, Request};

const GROUP: GroupId = GroupId(7);

/// A connection with a member, and the member's end of it.
fn link() -> (Link, std::net::TcpStream) {
    let door = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let other = std::net::TcpStream::connect(door.local_addr().unwrap()).unwrap();
    let stream = door.accept().unwrap().0;
    stream.set_nonblocking(true).unwrap();
    (
        Link::new(Stream::Plain(mio::net::TcpStream::from_std(stream)), Tie::Members, 1, true, 0),
        other,
    )
}

fn read(id: u64) -> Item {
    let args = ["GET", "key"].into_iter().map(Bytes::from).collect();
    let work = Work::Call(Call::new(Request { args }).unwrap());
    let origin = Origin::Peer { replica: ReplicaId(1), connection: 1, id };
    let (protocol, frontier) = (Protocol::Resp2, Frontier::ZERO);
    let len = work.memory();
    let write = WriteId { session: 1, number: id };
    Item {
        number: id,
        origin,
        work,
        protocol,
        frontier,
        since_ms: 0,
        begun_ns: 0,
        len,
        id: write,
        is_again: false,
    }
}

fn id_of(item: &Item) -> u64 {
    let Origin::Peer { id, .. } = item.origin else { panic!() };
    id
}

/// Gives the reply to a read, as the loop does.
fn answer(link: &mut Link, id: u64, reply: &[u8]) {
    link.replies.expect(reply.len());
    for bytes in forward::parts(reply) {
        send(link, Message::ForwardReply { id, frontier: Frontier::ZERO, bytes });
    }
}

fn send(link: &mut Link, message: Message) {
    let (group, shard, config, term) = (GROUP, ShardId::ZERO, ConfigNumber(1), Term(1));
    let (from, to) = (ReplicaId(3), ReplicaId(1));
    let connection = link.connection;
    let frame = Frame { group, shard, config, term, from, to, connection, message };
    link.queue_frame(&frame).unwrap();
}

/// Sends what the socket takes, and returns the frames that the member gets of it.
fn drain(link: &mut Link, other: &mut Link) -> Vec<Frame> {
    link.can_write = true;
    link.flush().unwrap();
    let mut scratch = vec![0; 1 << 20];
    let mut frames = Vec::new();
    while other.read(&mut scratch).unwrap().1 {
        while let Some(frame) = other.next_frame().unwrap() {
            frames.push(frame);
        }
    }
    frames.extend(std::iter::from_fn(|| other.next_frame().unwrap()));
    frames
}

#[test]
fn replies_to_a_member_that_takes_none_are_bounded_and_all_come_in_order_once_it_does() {
    const READS: u64 = 64;
    let (mut link, other) = link();
    other.set_nonblocking(true).unwrap();
    let mut other =
        Link::new(Stream::Plain(mio::net::TcpStream::from_std(other)), Tie::Members, 1, true, 0);
    let reply = vec![b'v'; VALUE_LEN_MAX];
    let bound = QUEUED_MAX + VALUE_LEN_MAX + 4096;
    for id in 0..READS {
        match link.replies.admit(read(id)) {
            Ok(item) => answer(&mut link, id_of(&item), &reply),
            Err(Begun::Later) => {}
            Err(Begun::Done(reply, _) | Begun::Refused(reply) | Begun::Forgotten(reply)) => {
                panic!("{reply:?}")
            }
        }
        assert!(link.replies.bytes() <= bound, "{} bytes wait", link.replies.bytes());
    }
    assert_eq!(link.replies.waiting() as u64, READS - (QUEUED_MAX / VALUE_LEN_MAX) as u64);
    assert!(!link.replies.may_go_on());
    assert_eq!(link.backlog(), 0, "what is forwarded the other way is not held back for them");
    // The chain's word, and the reply to a write, wait for no read.
    send(&mut link, Message::Refused { reason: "a word of the chain".into() });
    let id = u64::MAX;
    answer(&mut link, id, b"+OK\r\n");
    let (mut whole, mut part, mut behind) = (Vec::new(), 0, None);
    while whole.len() as u64 <= READS {
        for frame in drain(&mut link, &mut other) {
            let Message::ForwardReply { id, bytes, .. } = frame.message else {
                behind = Some(whole.len());
                continue;
            };
            part += bytes.len() - 1;
            if bytes[0] == 0 {
                whole.push((id, std::mem::take(&mut part)));
            }
        }
        while let Some(item) = link.replies.next() {
            answer(&mut link, id_of(&item), &reply);
            assert!(link.replies.bytes() <= bound, "{} bytes wait", link.replies.bytes());
        }
    }
    let most = QUEUED_MAX / VALUE_LEN_MAX;
    assert_eq!(behind, Some(most), "no more than may be queued lies before it");
    assert_eq!(whole.remove(most), (id, 5));
    assert_eq!(whole, (0..READS).map(|id| (id, VALUE_LEN_MAX)).collect::<Vec<_>>());
    assert_eq!((link.replies.bytes(), link.backlog()), (0, 0));
}

/// Lets reads that find nothing in memory come until one waits. Returns how many are under way of
/// them.
fn begin_all(replies: &mut Replies, from: u64) -> usize {
    let admitted = |&id: &u64| {
        let item = replies.admit(read(id)).map_err(|_| "no room for bytes").unwrap();
        replies.begin(item).is_ok()
    };
    (from..).take_while(admitted).count()
}

fn end(replies: &mut Replies, count: usize, bytes: usize) {
    for _ in 0..count {
        replies.end();
        replies.expect(bytes);
    }
}

#[test]
fn reads_under_way_count_by_the_longest_reply_of_late() {
    let mut replies = Replies::new();
    let mut under_way = begin_all(&mut replies, 0);
    assert_eq!(under_way, REPLIES_MAX / VALUE_LEN_MAX);
    while under_way < UNDER_WAY_MAX {
        end(&mut replies, under_way, 100);
        let item = replies.next().expect("who waited is next");
        assert!(replies.begin(item).is_ok());
        under_way = 1 + begin_all(&mut replies, 1000);
    }
    assert_eq!(under_way, UNDER_WAY_MAX);
    end(&mut replies, UNDER_WAY_MAX, 2 * REPLIES_MAX);
    let item = replies.next().expect("a few may always be under way, whatever came before");
    assert!(replies.begin(item).is_ok());
    assert_eq!(1 + begin_all(&mut replies, 2000), REPLIES_MAX / VALUE_LEN_MAX);
}

#[test]
fn reads_of_what_is_in_memory_pass_those_that_are_under_way_and_keep_none_of_them_waiting() {
    let mut replies = Replies::new();
    let under_way = begin_all(&mut replies, 0);
    // The last of them waits; those in memory go on, until bytes of theirs wait.
    while let Ok(_item) = replies.admit(read(100)) {
        replies.add(VALUE_LEN_MAX);
    }
    assert_eq!((replies.bytes(), replies.waiting()), (QUEUED_MAX, 2));
    assert!(!replies.may_go_on());
    end(&mut replies, under_way, VALUE_LEN_MAX);
    // One that comes now is behind it, though there is room again.
    assert!(replies.begin(read(101)).is_err());
    for expected in [under_way as u64, 101] {
        let item = replies.next().unwrap();
        assert_eq!(id_of(&item), expected);
        assert!(replies.begin(item).is_ok());
    }
    assert!(replies.next().is_none() && !replies.may_go_on());
    replies.remove(VALUE_LEN_MAX);
    assert!(replies.may_go_on());
    assert_eq!(replies.next().map(|item| id_of(&item)), Some(100));
    assert_eq!(replies.waiting_bytes, 0);
}

#[test]
fn reads_that_wait_are_bounded_and_one_too_many_is_told_so() {
    let mut replies = Replies::new();
    replies.add(REPLIES_MAX);
    let mut count = 0;
    let reply = loop {
        match replies.admit(read(count)) {
            Ok(_) => panic!("nothing was sent"),
            Err(Begun::Later) => count += 1,
            Err(Begun::Refused(reply)) => break reply,
            Err(Begun::Done(..) | Begun::Forgotten(_)) => panic!("it did not run"),
        }
    };
    assert!(count as usize * read(0).footprint() <= WAITING_MAX && count > 100_000, "{count}");
    assert!(matches!(&reply, Reply::Error(text) if text.starts_with(b"TRYAGAIN ")), "{reply:?}");
    replies.remove(REPLIES_MAX);
    for id in 0..count {
        assert_eq!(replies.next().map(|item| id_of(&item)), Some(id));
    }
    assert_eq!(replies.waiting_bytes, 0);
    // However long it is, when it is alone.
    replies.add(REPLIES_MAX);
    let long = Item { len: 2 * WAITING_MAX, ..read(0) };
    assert!(matches!(replies.admit(long), Err(Begun::Later)));
}

//! What waits for a client, and what a client has to wait for.

use super::*;
use crate::commands::Commands;
use crate::commands::tests::support::FixedHost;
use crate::stream::Stream;
use bytes::Bytes;
use mio::net::TcpStream;
use std::io::{Read, Write};
use std::net::Shutdown;

/// A connection and its other end, with the sum over all.
fn client(sum: &Rc<Cell<usize>>) -> (Client, std::net::TcpStream) {
    let door = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let other = std::net::TcpStream::connect(door.local_addr().unwrap()).unwrap();
    let stream = door.accept().unwrap().0;
    stream.set_nonblocking(true).unwrap();
    let session = Commands::new(1).connect(String::new(), String::new(), &FixedHost);
    let sums = Sums { unread: sum.clone(), ..Sums::default() };
    (
        Client::new(
            ClientEnd::Stream(Stream::Plain(TcpStream::from_std(stream))),
            session,
            1,
            &sums,
        ),
        other,
    )
}

fn long() -> Reply {
    Reply::Bulk(Bytes::from(vec![b'v'; VALUE_LEN_MAX]))
}

/// Begins commands until no more may be; returns their places.
fn begin_all(client: &mut Client) -> Vec<u64> {
    let begin =
        || (!client.is_blocked()).then(|| client.reserve(Protocol::Resp2, Kind::Other, true, 0));
    std::iter::from_fn(begin).collect()
}

#[test]
fn a_client_that_does_not_read_gets_a_bounded_amount_of_memory() {
    let sum = Rc::new(Cell::new(0));
    let (mut client, _other) = client(&sum);
    let reply = long();
    let mut scratch = Vec::new();
    for _ in 0..400 {
        for place in begin_all(&mut client) {
            client.fill(place, reply.clone(), 0);
        }
        client.flush(0, &mut scratch).unwrap();
    }
    assert!(client.is_blocked());
    assert!(sum.get() < UNREAD_MAX + 2 * VALUE_LEN_MAX, "{}", sum.get());
    drop(client);
    assert_eq!(sum.get(), 0);
}

#[test]
fn a_client_that_reads_goes_on_after_it_was_blocked() {
    let sum = Rc::new(Cell::new(0));
    let (mut client, mut other) = client(&sum);
    while !client.is_blocked() {
        client.push(Protocol::Resp2, long(), 0);
    }
    let (mut scratch, mut input) = (Vec::new(), vec![0; 1 << 20]);
    while !client.is_done() {
        client.can_write = true;
        client.flush(0, &mut scratch).unwrap();
        if !client.is_done() {
            assert!(other.read(&mut input).unwrap() > 0);
        }
    }
    assert!(!client.is_blocked());
    assert_eq!(sum.get(), 0);
}

#[test]
fn few_commands_are_under_way_until_their_replies_are_known_to_be_short() {
    let sum = Rc::new(Cell::new(0));
    let (mut client, _other) = client(&sum);
    let mut counts = Vec::new();
    let mut scratch = Vec::new();
    while counts.last() != Some(&SLOTS_MAX) {
        let places = begin_all(&mut client);
        counts.push(places.len());
        assert!(counts.len() < 8, "{counts:?}");
        places.into_iter().for_each(|place| client.fill(place, Reply::Null, 0));
        client.flush(0, &mut scratch).unwrap();
    }
    assert_eq!(counts[0], UNREAD_MAX / VALUE_LEN_MAX);
    let place = client.reserve(Protocol::Resp2, Kind::Other, true, 0);
    client.fill(place, long(), 0);
    assert!(begin_all(&mut client).len() < 8, "a long reply makes them few again");
}

#[test]
fn too_much_for_all_stops_who_has_not_read_and_nobody_else() {
    let sum = Rc::new(Cell::new(0));
    let ((mut lazy, _), (other, _)) = (client(&sum), client(&sum));
    sum.set(UNREAD_SUM_MAX);
    assert!(!lazy.is_blocked() && !other.is_blocked());
    lazy.push(Protocol::Resp2, Reply::OK, 0);
    assert!(lazy.is_blocked() && !other.is_blocked());
}

/// Nobody has read anything, and nobody has been answered: so it is where all are answered by
/// another node.
#[test]
fn commands_under_way_of_all_are_few_until_their_replies_are_known_to_be_short() {
    let sum = Rc::new(Cell::new(0));
    let mut clients: Vec<_> = (0..200).map(|_| client(&sum)).collect();
    let places: Vec<_> = clients.iter_mut().map(|(client, _)| begin_all(client)).collect();
    let count: usize = places.iter().map(Vec::len).sum();
    assert!(places.iter().all(|places| !places.is_empty()), "each may have one");
    assert!(count <= UNREAD_SUM_MAX / VALUE_LEN_MAX + clients.len(), "{count} replies of 8 MiB");
    // One that is answered has room again, however many are not.
    let (first, mut scratch) = (&mut clients[0].0, Vec::new());
    let mut most = 0;
    let mut places = places[0].clone();
    for _ in 0..100 {
        places.drain(..).for_each(|place| first.fill(place, Reply::Null, 0));
        first.flush(0, &mut scratch).unwrap();
        places = begin_all(first);
        most = most.max(places.len());
    }
    assert_eq!(most, SHORT_MAX / EXPECTED_MIN, "short replies are few bytes");
    clients.clear();
    assert_eq!(sum.get(), 0);
}

#[test]
fn the_words_of_requests_under_way_are_bounded_and_one_may_always_begin() {
    let (mut client, _other) = client(&Rc::new(Cell::new(0)));
    let begin =
        |client: &mut Client, words| client.reserve(Protocol::Resp2, Kind::Write, false, words);
    let mut places = Vec::new();
    while !client.is_blocked() {
        places.push(begin(&mut client, VALUE_LEN_MAX));
    }
    assert_eq!(places.len(), WORDS_MAX / VALUE_LEN_MAX);
    client.fill(places[1], Reply::OK, 0);
    assert!(!client.is_blocked(), "what is answered takes nothing any more");
    places.push(begin(&mut client, VALUE_LEN_MAX));
    // A second reply to the same place, as of a connection that was lost, counts nothing.
    client.fill(places[1], Reply::OK, 0);
    assert!(client.is_blocked());
    places.into_iter().for_each(|place| client.fill(place, Reply::OK, 0));
    assert_eq!(client.words_out, 0);
    assert!(!client.is_blocked(), "however long it is");
    begin(&mut client, 2 * WORDS_MAX);
    assert!(client.is_blocked());
}

#[test]
fn a_client_is_wanted_by_nobody_when_it_has_ended_or_is_gone() {
    let sum = Rc::new(Cell::new(0));
    let (mut ended, _other) = client(&sum);
    let (gone, _other) = client(&sum);
    let presences = [ended.presence(), gone.presence()];
    assert!(presences.iter().all(Presence::is_there));
    ended.finish();
    drop(gone);
    assert!(!presences.iter().any(Presence::is_there));
    assert!(!ended.presence().is_there());
}

/// What the other end has got so far.
fn received(client: &mut Client, other: &mut std::net::TcpStream, acknowledged: u64) -> String {
    client.flush(acknowledged, &mut Vec::new()).unwrap();
    other.set_nonblocking(true).unwrap();
    let mut bytes = vec![0; 4096];
    let count = other.read(&mut bytes).unwrap_or(0);
    String::from_utf8(bytes[..count].to_vec()).unwrap()
}

#[test]
fn wait_counts_nobody_while_the_last_write_before_it_is_in_doubt() {
    let (mut client, mut other) = client(&Rc::new(Cell::new(0)));
    let two = || Reply::Integer(2);
    let unknown = Reply::error("UNKNOWN it may have been made or not");
    let reserve = |client: &mut Client| client.reserve(Protocol::Resp2, Kind::Write, false, 0);
    let write = |client: &mut Client, reply: Reply, turn| {
        let place = reserve(client);
        client.fill(place, reply, turn);
        client.push_wait(Protocol::Resp2, two());
    };
    let lose = |client: &mut Client, reply: Reply| {
        let place = reserve(client);
        client.fill_in_doubt(place, reply);
        client.push_wait(Protocol::Resp2, two());
    };
    // Asked for before it is known what becomes of the write, as in a pipeline.
    write(&mut client, Reply::OK, 1);
    assert_eq!(received(&mut client, &mut other, 0), "");
    client.give_up(0, 1, &unknown);
    write(&mut client, Reply::OK, 2);
    let lost = "-UNKNOWN it may have been made or not\r\n:0\r\n";
    assert_eq!(received(&mut client, &mut other, 0), lost);
    assert_eq!(received(&mut client, &mut other, 2), "+OK\r\n:2\r\n");
    // The head's, as another node passes it on; then what made no write, and a later write.
    write(&mut client, Reply::OK, 0);
    lose(&mut client, Reply::Encoded("-UNKNOWN x\r\n".into()));
    let expected = "+OK\r\n:2\r\n-UNKNOWN x\r\n:0\r\n";
    assert_eq!(received(&mut client, &mut other, 2), expected);
    for (reply, expected) in [
        (Reply::Encoded("-ERR x\r\n".into()), "-ERR x\r\n:0\r\n"),
        (Reply::error("TRYAGAIN x"), "-TRYAGAIN x\r\n:0\r\n"),
        (Reply::Encoded("+OK\r\n".into()), "+OK\r\n:2\r\n"),
    ] {
        write(&mut client, reply, 0);
        assert_eq!(received(&mut client, &mut other, 2), expected);
    }
    // Reads say nothing of writes, and bad words are told as such.
    lose(&mut client, unknown.clone());
    client.push(Protocol::Resp2, Reply::OK, 0);
    client.push_wait(Protocol::Resp2, Reply::error("ERR x"));
    client.push_wait(Protocol::Resp2, two());
    assert_eq!(received(&mut client, &mut other, 2), format!("{lost}+OK\r\n-ERR x\r\n:0\r\n"));
}

/// Reads as often as it may, so many bytes at most; returns how many.
fn read_ahead(client: &mut Client, most: usize) -> usize {
    let (mut scratch, mut shared, mut count) = (vec![0; READ_LEN], BytesMut::new(), 0);
    while count < most && client.may_send_ahead() {
        count += client.read(&mut scratch, &mut shared, true).unwrap().unwrap_or(0);
    }
    count
}

#[test]
fn requests_are_read_ahead_only_while_their_client_reads_nothing_and_up_to_the_limit() {
    let (mut client, mut other) = client(&Rc::new(Cell::new(0)));
    let sender = std::thread::spawn(move || {
        let ping = b"*1\r\n$4\r\nPING\r\n".repeat(1 << 16);
        (0..=INPUT_MAX / ping.len() + 16).for_each(|_| other.write_all(&ping).unwrap());
        other
    });
    let places = begin_all(&mut client);
    assert!(client.is_blocked());
    assert!(!client.may_send_ahead(), "it waits for commands, not for its client");
    places.into_iter().for_each(|place| client.fill(place, long(), 0));
    client.flush(0, &mut Vec::new()).unwrap();
    assert!(client.is_blocked() && !client.can_write, "nothing reads the replies");
    while client.input.len() < INPUT_MAX {
        client.can_read = true;
        read_ahead(&mut client, INPUT_MAX);
    }
    client.count_input();
    assert!(!client.may_send_ahead() && client.is_too_far_ahead());
    assert!(client.input_bytes() < INPUT_MAX + READ_LEN && client.waiting.sum.get() >= INPUT_MAX);
    let sum = client.waiting.sum.clone();
    client.close_amid_requests();
    assert_eq!((sum.get(), client.is_too_far_ahead()), (0, false));
    // What still comes is thrown away, so that it can send all.
    while !sender.is_finished() {
        client.can_read = true;
        client.discard(&mut vec![0; READ_LEN], usize::MAX).unwrap();
    }
    assert!(!client.is_lingering() && client.is_discarding());
}

#[test]
fn a_client_that_is_closed_amid_its_requests_reads_its_replies_though_it_ends_first() {
    let (mut client, mut other) = client(&Rc::new(Cell::new(0)));
    other.write_all(b"more").unwrap();
    other.shutdown(Shutdown::Write).unwrap();
    client.push(Protocol::Resp2, Reply::OK, 0);
    client.close_amid_requests();
    let mut scratch = vec![0; READ_LEN];
    while !client.is_finished {
        assert!(client.discard(&mut scratch, usize::MAX).is_some(), "its replies are not sent yet");
    }
    assert!(!client.is_done() && !client.is_discarding());
    client.flush(0, &mut Vec::new()).unwrap();
    assert!(client.is_done() && !client.linger(), "there is nothing to wait for");
    drop(client);
    let mut all = Vec::new();
    other.read_to_end(&mut all).unwrap();
    assert_eq!(all, b"+OK\r\n");
}

#[test]
fn what_a_client_sends_without_an_end_is_thrown_away_up_to_a_limit() {
    let (mut client, mut other) = client(&Rc::new(Cell::new(0)));
    client.close_amid_requests();
    client.discards = Some(10);
    other.write_all(&[b'x'; 11]).unwrap();
    let mut scratch = vec![0; READ_LEN];
    while client.discard(&mut scratch, usize::MAX).is_some() {
        client.can_read = true;
    }
}

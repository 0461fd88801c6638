//! Users are kept by the controller, the same at every door.

use super::{PATIENCE, Place, kill};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// A connection that is this user.
fn connect_as(place: &Place, door: u16, user: &str) -> TcpStream {
    let mut stream = TcpStream::connect(("127.0.0.1", place.port + door)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    assert_eq!(ask(&mut stream, &format!("AUTH {user} pw")), "+OK\r\n");
    stream
}

fn ask(stream: &mut TcpStream, command: &str) -> String {
    stream.write_all(format!("{command}\r\n").as_bytes()).unwrap();
    let mut reply = [0; 4096];
    let len = stream.read(&mut reply).unwrap();
    String::from_utf8_lossy(&reply[..len]).into_owned()
}

/// Waits until a request has this reply at a door, which may be away for a while.
fn becomes(place: &Place, door: u16, command: &str, expected: &str) {
    let begun = Instant::now();
    loop {
        let mut reply = String::new();
        if let Ok(mut stream) = TcpStream::connect(("127.0.0.1", place.port + door)) {
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            let mut bytes = [0; 4096];
            let asked = stream.write_all(format!("{command}\r\n").as_bytes());
            let len = asked.and_then(|()| stream.read(&mut bytes)).unwrap_or(0);
            reply = String::from_utf8_lossy(&bytes[..len]).into_owned();
        }
        if reply.starts_with(expected) {
            return;
        }
        assert!(begun.elapsed() < PATIENCE, "door {door}: {command}: {reply}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn users_are_the_same_at_every_door_and_survive_kills() {
    let place = Place::new("users");
    let up = place.up(&[]);
    let pids = place.pids();
    assert_eq!(place.resp(1, "ACL SETUSER ann on >pw ~a:* +get"), "+OK\r\n");
    // The door that answered has it.
    assert_eq!(place.resp(1, "AUTH ann pw"), "+OK\r\n");
    assert!(place.resp(1, "ACL SETUSER ann +nonsense").starts_with("-ERR Error in ACL SETUSER"));
    (0..3).for_each(|door| becomes(&place, door, "AUTH ann pw", "+OK"));
    let mut theirs: Vec<_> = (0..3).map(|door| connect_as(&place, door, "ann")).collect();
    assert!(ask(&mut theirs[2], "SET a:1 x").starts_with("-NOPERM"));

    // Clients at all doors change users at once, some the same ones.
    std::thread::scope(|scope| {
        for door in 0..3 {
            let place = &place;
            scope.spawn(move || {
                for n in 0..8 {
                    let own = format!("ACL SETUSER u{door}-{n} on >pw{n} ~k{n}");
                    assert_eq!(place.resp(door, &own), "+OK\r\n");
                    let common = format!("ACL SETUSER all ~{door}-{n}");
                    assert_eq!(place.resp(door, &common), "+OK\r\n");
                }
            });
        }
    });
    let all = place.resp(0, "ACL GETUSER all");
    for (door, n) in (0..3).flat_map(|door| (0..8).map(move |n| (door, n))) {
        assert!(all.contains(&format!("~{door}-{n}")), "{all}");
    }
    let list = place.resp(0, "ACL LIST");
    assert!(list.starts_with("*27\r\n"), "{list}");
    (1..3).for_each(|door| becomes(&place, door, "ACL LIST", &list));

    // A removal ends connections everywhere.
    assert_eq!(place.resp(0, "ACL DELUSER ann nobody"), ":1\r\n");
    for stream in &mut theirs {
        assert_eq!(stream.read(&mut [0; 16]).unwrap_or(0), 0, "a connection of one that is gone");
    }
    assert_eq!(place.resp(2, "CONFIG SET requirepass secret"), "+OK\r\n");
    (0..3).for_each(|door| becomes(&place, door, "PING", "-NOAUTH"));

    // A replica that was killed knows them when it is back, and so do all after a start.
    kill(pids[1], "-KILL");
    becomes(&place, 1, "PING", "-NOAUTH");
    becomes(&place, 1, "AUTH all pw", "-WRONGPASS");
    becomes(&place, 1, "AUTH u0-1 pw1", "+OK");
    up.signal("-KILL");
    drop(up);
    let up = place.up(&[]);
    for door in 0..3 {
        becomes(&place, door, "PING", "-NOAUTH");
        becomes(&place, door, "AUTH secret", "+OK");
        becomes(&place, door, "AUTH u2-7 pw7", "+OK");
    }
    drop(up);
}

//! Clients of clusters that use TLS, at the doors of several groups.

use super::*;
use crate::NodeDoors;
use crate::commands::slots::slot_of;
use crate::rig::addresses;

/// Two groups, and the doors of each. The first has the common ones besides.
fn rig(certificates: &Certificates, name: &str) -> (Rig, [NodeDoors; 2]) {
    let [common, first, second] = addresses();
    let mut rig = Rig::spread_with(name, 2, |config| {
        let spread = config.spread.as_mut().unwrap();
        let (own, clients) = (spread.spread.own(), ClientCertificates::Required);
        let (at, group) = [(common, first), (second, second)][own];
        spread.listen.tls = Some(group);
        spread.doors.tls = Some(group);
        config.security = certificates.security(at, clients);
    });
    let doors = [0, 1].map(|place| rig.service(place).spread.as_ref().unwrap().doors);
    let mut plain = rig.client(0);
    assert_eq!(rig.insist(&mut plain, &["FLUSHALL"]), "+OK\r\n");
    (rig, doors)
}

fn ask(rig: &mut Rig, client: &mut TlsClient, words: &[&str]) -> String {
    let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
    client.send(&words);
    client.reply(rig)
}

/// `x` is of the second group, `b` of the first.
#[test]
fn clients_of_a_cluster_that_use_tls_are_led_from_door_to_door_with_tls() {
    let certificates = Certificates::new("tls-groups");
    let (mut rig, doors) = rig(&certificates, "tls-groups");
    let tls = doors.map(|doors| doors.tls.unwrap());
    let at = |address| TlsClient::at(address, &certificates.dir, Some(&certificates.client));
    let mut common = at(address(&mut rig));
    let slots = ask(&mut rig, &mut common, &["CLUSTER", "SLOTS"]);
    for (doors, tls) in doors.iter().zip(tls) {
        assert!(slots.contains(&format!(":{}\r\n", tls.port())), "{slots}");
        assert!(!slots.contains(&format!(":{}\r\n", doors.plain.port())), "{slots}");
    }
    // The common door serves all keys.
    assert_eq!(ask(&mut rig, &mut common, &["SET", "x", "1"]), "+OK\r\n");
    assert_eq!(ask(&mut rig, &mut common, &["SET", "b", "2"]), "+OK\r\n");
    let shards = ask(&mut rig, &mut common, &["CLUSTER", "SHARDS"]);
    let both = format!(":{}\r\n$8\r\ntls-port\r\n:{}\r\n", doors[1].plain.port(), tls[1].port());
    assert!(shards.contains(&both), "{shards}");
    let mut first = at(tls[0]);
    assert_eq!(ask(&mut rig, &mut first, &["GET", "b"]), "$1\r\n2\r\n");
    assert_eq!(ask(&mut rig, &mut first, &["DBSIZE"]), ":1\r\n");
    let slot = slot_of(b"x");
    let moved = ask(&mut rig, &mut first, &["GET", "x"]);
    assert_eq!(moved, format!("-MOVED {slot} {}\r\n", tls[1]));
    let listed = ask(&mut rig, &mut first, &["CLIENT", "INFO"]);
    assert!(listed.contains(&format!("laddr={}", tls[0])), "{listed}");
    let mut second = at(tls[1]);
    assert_eq!(ask(&mut rig, &mut second, &["GET", "x"]), "$1\r\n1\r\n");
    let moved = ask(&mut rig, &mut second, &["GET", "b"]);
    assert_eq!(moved, format!("-MOVED {} {}\r\n", slot_of(b"b"), tls[0]));
    // A client without TLS is told of doors without.
    let mut plain = rig.client_of_group(0);
    let moved = rig.text(&mut plain, &["GET", "x"]);
    assert_eq!(moved, format!("-MOVED {slot} {}\r\n", doors[1].plain));
}

#[test]
fn a_groups_door_with_tls_lets_in_whom_the_common_one_does_and_waits_as_long() {
    let certificates = Certificates::new("tls-groups-in");
    let (mut rig, doors) = rig(&certificates, "tls-groups-in");
    for doors in doors {
        let door = doors.tls.unwrap();
        let mut stranger = TlsClient::at(door, &certificates.dir, None);
        stranger.send(&[b"PING"]);
        stranger.until_refused(&mut rig, "no certificate");
        let place = usize::from(rig.service(1).tls.as_ref().unwrap().address == door);
        let shaking = |rig: &mut Rig| rig.service(place).tls.as_ref().unwrap().handshakes.len();
        let before = shaking(&mut rig);
        let _silent = connect_to(door);
        rig.until("it is waited for", |rig| shaking(rig) == before + 1);
    }
}

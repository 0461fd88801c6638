//! EVAL and EVALSHA at the doors of a group.

use crate::support::{Client, Group};
use gabion_node::AckLevel;
use gabion_resp::Reply;

const INCR: &str = "return redis.call('incrby', KEYS[1], ARGV[1])";

fn digest(client: &mut Client, script: &str) -> String {
    match client.call(&["SCRIPT", "LOAD", script]) {
        Reply::Bulk(text) => String::from_utf8_lossy(&text).into_owned(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn scripts_run_at_every_door_and_are_known_where_they_were_sent() {
    let mut group = Group::start("scripts", 3, AckLevel::Replicated);
    group.await_ready();
    for id in 1..=3 {
        let mut client = group.client(id);
        let script = format!("{INCR} -- {id}");
        let sum = |n: u32| format!(":{}\r\n", 10 * (id - 1) + n);
        assert_eq!(client.text(&["EVAL", &script, "1", "n", "3"]), sum(3));
        let sha = digest(&mut client, &script);
        assert_eq!(client.text(&["EVALSHA", &sha, "1", "n", "4"]), sum(7));
        // The next node was not sent it.
        let mut other = group.client(id % 3 + 1);
        let unknown = other.text(&["EVALSHA", &sha, "1", "n", "1"]);
        assert_eq!(unknown, "-NOSCRIPT No matching script. Please use EVAL.\r\n");
        for words in [&["MULTI"][..], &["PING"], &["EVALSHA", &sha, "1", "n", "3"], &["GET", "n"]] {
            client.text(words);
        }
        let expected = format!("*3\r\n+PONG\r\n:{}\r\n$2\r\n{}\r\n", 10 * id, 10 * id);
        assert_eq!(client.text(&["EXEC"]), expected);
        assert_eq!(client.text(&["GET", "n"]), format!("$2\r\n{}\r\n", 10 * id));
    }
    let mut client = group.client(3);
    let sha = digest(&mut client, INCR);
    group.kill(1);
    group.start_replica(1);
    group.await_ready();
    assert_eq!(client.insist(&["EVALSHA", &sha, "1", "n", "1"]), Reply::Integer(31));
    endless(&group);
    locks(&group);
    from_the_device(&mut group);
}

/// One that never ends is ended, and the head goes on.
fn endless(group: &Group) {
    let script = "redis.call('set', KEYS[1], 'x') while true do end";
    for id in 1..=3 {
        let mut client = group.client(id);
        let reply = client.text(&["EVAL", script, "1", "n"]);
        assert_eq!(reply, "-ERR script ran over the limit of 100 ms, so nothing was written\r\n");
        assert_eq!(client.text(&["GET", "n"]), "$2\r\n31\r\n");
    }
}

/// A lock that is taken and released by scripts guards a counter that is not atomic by itself.
fn locks(group: &Group) {
    let release = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0";
    std::thread::scope(|scope| {
        for id in 1..=3 {
            let mut client = group.client(id);
            scope.spawn(move || {
                let token = id.to_string();
                for _ in 0..30 {
                    while client.call(&["SET", "lock", &token, "NX", "PX", "60000"]) != Reply::OK {}
                    let count = match client.call(&["GET", "guarded"]) {
                        Reply::Bulk(text) => String::from_utf8_lossy(&text).parse().unwrap(),
                        _ => 0_u32,
                    };
                    client.call(&["SET", "guarded", &(count + 1).to_string()]);
                    let released = client.call(&["EVAL", release, "1", "lock", &token]);
                    assert_eq!(released, Reply::Integer(1));
                }
            });
        }
    });
    assert_eq!(group.client(1).call(&["GET", "guarded"]), Reply::Bulk("90".into()));
}

/// What a script reads may not be in memory.
fn from_the_device(group: &mut Group) {
    let mut client = group.client(2);
    let value = "v".repeat(50_000);
    // Some MemTables, so that the first are in files.
    for n in 0..200 {
        assert_eq!(client.insist(&["SET", &format!("far{n:03}"), &value]), Reply::OK);
    }
    (1..=3).for_each(|id| group.kill(id));
    (1..=3).for_each(|id| group.start_replica(id));
    group.await_ready();
    let script = "local sum = 0
        for i, key in ipairs(KEYS) do
            local ok, value = pcall(redis.call, 'get', key)
            sum = sum + #value
            redis.call('append', key, ARGV[1])
        end
        return {sum, #redis.call('get', 'far150'), redis.call('strlen', 'far151'), #redis.call('keys', 'far*')}";
    let keys: Vec<String> = (0..20).map(|n| format!("far{n:03}")).collect();
    let words = ["EVAL", script, "20"].into_iter().chain(keys.iter().map(String::as_str));
    let words: Vec<&str> = words.chain(["more"]).collect();
    let mut client = group.client(2);
    let expected = [1_000_000, 50_000, 50_000, 200].map(Reply::Integer).to_vec();
    assert_eq!(client.insist(&words), Reply::Array(expected));
    assert_eq!(client.call(&["STRLEN", "far019"]), Reply::Integer(50_004));
}

//! What tools and client libraries ask at their start: users, clusters, connections, times, roles.

use super::support::{CLOCK_STEP_NS, Client, FixedHost, Node, block_on, request, request_of};
use crate::commands::{Call, Step, Work};
use gabion_resp::Reply;

const NO_CLUSTER: &str = "-ERR This instance has cluster support disabled\r\n";
const NO_PASSWORD: &str = "-ERR AUTH <password> called without any password configured for the default user. Are you sure your configuration is correct?\r\n";
const WRONG_PASSWORD: &str = "-WRONGPASS invalid username-password pair or user is disabled.\r\n";

#[test]
fn the_one_user_is_let_in_with_any_password_and_others_are_not() {
    let mut client = Node::new().client();
    client.script(&[
        ("AUTH x", NO_PASSWORD),
        ("AUTH default x", "+OK\r\n"),
        ("AUTH default ''", "+OK\r\n"),
        ("AUTH foo x", WRONG_PASSWORD),
        ("AUTH a b c", "-ERR syntax error\r\n"),
        ("HELLO 3 AUTH foo x", WRONG_PASSWORD),
        ("HELLO 2 AUTH foo", "-ERR Syntax error in HELLO option 'AUTH'\r\n"),
        ("HELLO 4 AUTH default x", "-NOPROTO unsupported protocol version\r\n"),
    ]);
    // What was refused has changed nothing.
    assert_eq!(client.ask("GET none"), "$-1\r\n");
    assert!(client.ask("HELLO 3 AUTH default x SETNAME me").starts_with("%7\r\n"));
    client.script(&[("CLIENT GETNAME", "$2\r\nme\r\n"), ("GET none", "_\r\n")]);
}

#[test]
fn the_user_that_there_is_at_first_is_described() {
    let mut client = Node::new().client();
    client.script(&[
        ("ACL WHOAMI", "$7\r\ndefault\r\n"),
        ("ACL USERS", "*1\r\n$7\r\ndefault\r\n"),
        ("ACL LIST", "*1\r\n$51\r\nuser default on nopass sanitize-payload ~* &* +@all\r\n"),
        (
            "ACL GETUSER default",
            "*12\r\n$5\r\nflags\r\n*3\r\n$2\r\non\r\n$6\r\nnopass\r\n$16\r\nsanitize-payload\r\n$9\r\npasswords\r\n\
             *0\r\n$8\r\ncommands\r\n$5\r\n+@all\r\n$4\r\nkeys\r\n$2\r\n~*\r\n$8\r\nchannels\r\n$2\r\n&*\r\n$9\r\nselectors\r\n*0\r\n",
        ),
        ("ACL GETUSER x", "$-1\r\n"),
        ("ACL CAT foo", "-ERR Unknown category 'foo'\r\n"),
        ("ACL LOG", "*0\r\n"),
        ("ACL LOG RESET", "+OK\r\n"),
        ("ACL LOG x", "-ERR value is not an integer or out of range\r\n"),
        ("ACL DRYRUN x get a", "-ERR User 'x' not found\r\n"),
        ("ACL DRYRUN default get", "-ERR wrong number of arguments for 'get' command\r\n"),
        ("ACL DRYRUN default nope", "-ERR Command 'nope' not found\r\n"),
        ("ACL DRYRUN default get a", "+OK\r\n"),
        ("ACL DELUSER a b", ":0\r\n"),
        ("ACL DELUSER a default", "-ERR The 'default' user cannot be removed\r\n"),
        ("ACL WHOAMI x", "-ERR wrong number of arguments for 'acl|whoami' command\r\n"),
    ]);
    assert!(client.ask("ACL CAT").starts_with("*21\r\n$8\r\nkeyspace\r\n$4\r\nread\r\n"));
    let of_transactions = client.ask("ACL CAT transaction");
    assert!(of_transactions.starts_with("*5\r\n$5\r\nmulti\r\n"), "{of_transactions}");
    for line in ["ACL LOAD", "ACL SAVE"] {
        assert!(client.ask(line).starts_with("-ERR "), "{line}");
    }
}

#[test]
fn cluster_commands_say_that_there_is_no_cluster() {
    Node::new().client().script(&[
        ("CLUSTER INFO", NO_CLUSTER),
        ("cluster slots", NO_CLUSTER),
        ("CLUSTER HELP", NO_CLUSTER),
        ("CLUSTER KEYSLOT", "-ERR wrong number of arguments for 'cluster|keyslot' command\r\n"),
        ("CLUSTER foo", "-ERR unknown subcommand 'foo'. Try CLUSTER HELP.\r\n"),
        ("READONLY", NO_CLUSTER),
        ("READWRITE", NO_CLUSTER),
        ("ASKING", NO_CLUSTER),
    ]);
}

#[test]
fn what_there_is_none_of_is_answered_as_by_an_empty_redis() {
    let mut client = Node::new().client();
    client.script(&[
        ("FUNCTION LIST", "*0\r\n"),
        ("FUNCTION LIST WITHCODE LIBRARYNAME x*", "*0\r\n"),
        ("FUNCTION LIST foo", "-ERR Unknown argument foo\r\n"),
        ("FUNCTION LIST LIBRARYNAME", "-ERR library name argument was not given\r\n"),
        ("FUNCTION FLUSH", "+OK\r\n"),
        ("FUNCTION FLUSH ASYNC", "+OK\r\n"),
        ("FUNCTION FLUSH x", "-ERR FUNCTION FLUSH only supports SYNC|ASYNC option\r\n"),
        (
            "FUNCTION STATS",
            "*4\r\n$14\r\nrunning_script\r\n$-1\r\n$7\r\nengines\r\n*2\r\n$3\r\nLUA\r\n\
             *4\r\n$15\r\nlibraries_count\r\n:0\r\n$15\r\nfunctions_count\r\n:0\r\n",
        ),
        ("FUNCTION DELETE x", "-ERR Library not found\r\n"),
        ("FUNCTION KILL", "-NOTBUSY No scripts in execution right now.\r\n"),
        ("FUNCTION RESTORE x", "-ERR DUMP payload version or checksum are wrong\r\n"),
        ("FCALL f 0", "-ERR Function not found\r\n"),
        ("FCALL f x", "-ERR Bad number of keys provided\r\n"),
        ("FCALL_RO f 2 a", "-ERR Number of keys can't be greater than number of args\r\n"),
        ("FCALL f -1", "-ERR Number of keys can't be negative\r\n"),
        ("MODULE LIST", "*0\r\n"),
        ("LATENCY LATEST", "*0\r\n"),
        ("LATENCY HISTORY x", "*0\r\n"),
        ("LATENCY RESET x y", ":0\r\n"),
        ("LATENCY GRAPH x", "-ERR No samples available for event 'x'\r\n"),
        ("SWAPDB 0 0", "+OK\r\n"),
        ("SWAPDB 0 1", "-ERR DB index is out of range\r\n"),
        ("SWAPDB x 0", "-ERR invalid first DB index\r\n"),
        ("SWAPDB 0 x", "-ERR invalid second DB index\r\n"),
        ("MOVE a 0", "-ERR source and destination objects are the same\r\n"),
        ("MOVE a 1", "-ERR DB index is out of range\r\n"),
        ("MOVE a x", "-ERR value is not an integer or out of range\r\n"),
        ("REPLICAOF NO ONE", "+OK\r\n"),
        ("SLAVEOF no one", "+OK\r\n"),
        ("LASTSAVE", ":1700000000\r\n"),
    ]);
    let Reply::Bulk(dump) = client.reply(request_of(&[b"FUNCTION", b"DUMP"])) else { panic!() };
    assert_eq!(client.reply(request_of(&[b"FUNCTION", b"RESTORE", &dump])), Reply::OK);
    for line in [
        "FUNCTION LOAD x",
        "FUNCTION RESTORE 12345678901",
        "MODULE LOAD x",
        "REPLICAOF 127.0.0.1 1",
        "SAVE",
        "BGSAVE",
        "BGREWRITEAOF",
        "SHUTDOWN",
        "DEBUG SLEEP 0",
    ] {
        assert!(client.ask(line).starts_with("-ERR "), "{line}");
        // Nobody is told that it is to be had.
        let name = line.split(' ').next().unwrap_or_default();
        let is_described = client.ask(&format!("COMMAND INFO {name}")) != "*1\r\n$-1\r\n";
        assert_eq!(is_described, ["FUNCTION", "MODULE", "REPLICAOF"].contains(&name), "{name}");
    }
}

#[test]
fn the_role_and_who_holds_writes_are_told_in_positions_of_the_log() {
    let replica = |port| format!("*3\r\n$9\r\n127.0.0.1\r\n$4\r\n{port}\r\n$4\r\n4096\r\n");
    let role = format!("*3\r\n$6\r\nmaster\r\n:5000\r\n*2\r\n{}{}", replica(6381), replica(6382));
    Node::new().client().script(&[
        ("ROLE", &role),
        ("WAITAOF 2 0 0", "-ERR value is out of range, value must between 0 and 1\r\n"),
        ("WAITAOF x 0 0", "-ERR value is not an integer or out of range\r\n"),
        ("WAITAOF 0 -1 0", "-ERR value is out of range, must be positive\r\n"),
        ("WAITAOF 0 0 -1", "-ERR timeout is negative\r\n"),
    ]);
}

#[test]
fn a_line_of_client_list_has_all_fields_of_redis() {
    let mut client = Node::new().client();
    let line = |text: &str| {
        let (_, text) = text.split_once("\r\n").unwrap();
        text.trim_end().to_owned()
    };
    let expected = |qbuf: usize, argv: usize, total: usize, name: &str| {
        format!(
            "id=1 addr=127.0.0.1:5000 laddr=127.0.0.1:6380 fd=-1 name= age=0 idle=0 flags=N db=0 sub=0 psub=0 ssub=0 \
             multi=-1 qbuf={qbuf} qbuf-free=0 argv-mem={argv} multi-mem=0 rbs=0 rbp=0 obl=0 oll=0 omem=0 tot-mem={total} \
             events=r cmd={name} user=default redir=-1 resp=2 lib-name= lib-ver= watch=0"
        )
    };
    let own = size_of::<crate::commands::session::Client>();
    let list = line(&client.ask("CLIENT LIST"));
    assert_eq!(list, expected(26, 10, own + 36, "client|list"));
    let info = line(&client.ask("client info"));
    assert_eq!(info, expected(26, 10, own + 36, "client|info"));
    for line in ["CLIENT NO-EVICT on", "CLIENT NO-TOUCH on", "MULTI", "SET a 1"] {
        client.ask(line);
    }
    let mut other = client.node.client();
    let text = other.ask("CLIENT LIST ID 1");
    assert!(text.contains(" flags=xeT ") && text.contains(" multi=1 "), "{text}");
    assert!(!text.contains(" multi-mem=0 ") && text.contains(" cmd=set "), "{text}");
    client.ask("RESET");
    client.ask("WATCH a b a");
    let text = other.ask("CLIENT LIST ID 1");
    assert!(text.contains(" flags=N ") && text.contains(" watch=2\n"), "{text}");
    assert!(other.ask("INFO clients").contains("watching_clients:1\r\n"));
    client.ask("UNWATCH");
    assert!(other.ask("CLIENT LIST ID 1").contains(" watch=0\n"));
}

fn killed(client: &Client) -> Vec<(u64, bool)> {
    let killed = client.node.commands.take_killed();
    killed.into_iter().map(|killed| (killed.id, killed.after_replies)).collect()
}

#[test]
fn client_kill_names_who_is_to_be_closed() {
    for (line, expected, ids) in [
        ("CLIENT KILL ID 2", ":1\r\n", vec![(2, false)]),
        ("CLIENT KILL ID 1", ":0\r\n", vec![]),
        ("CLIENT KILL TYPE normal", ":2\r\n", vec![(2, false), (3, false)]),
        ("CLIENT KILL TYPE pubsub SKIPME no", ":0\r\n", vec![]),
        ("CLIENT KILL USER default ID 3", ":1\r\n", vec![(3, false)]),
        ("CLIENT KILL ADDR 127.0.0.1:5000", ":2\r\n", vec![(2, false), (3, false)]),
        ("CLIENT KILL ADDR 127.0.0.1:5001", ":0\r\n", vec![]),
        ("CLIENT KILL LADDR 127.0.0.1:6380 ID 9", ":0\r\n", vec![]),
        ("CLIENT KILL MAXAGE 1", ":0\r\n", vec![]),
        ("CLIENT KILL 1.2.3.4:5", "-ERR No such client\r\n", vec![]),
        ("CLIENT KILL ID 0", "-ERR client-id should be greater than 0\r\n", vec![]),
        ("CLIENT KILL ID str", "-ERR client-id should be greater than 0\r\n", vec![]),
        ("CLIENT KILL ID 2 x", "-ERR syntax error\r\n", vec![]),
        ("CLIENT KILL MAXAGE x", "-ERR maxage is not an integer or out of range\r\n", vec![]),
        ("CLIENT KILL MAXAGE 0", "-ERR maxage should be greater than 0\r\n", vec![]),
        ("CLIENT KILL TYPE x", "-ERR Unknown client type 'x'\r\n", vec![]),
        ("CLIENT KILL USER x", "-ERR No such user 'x'\r\n", vec![]),
        ("CLIENT KILL SKIPME x", "-ERR syntax error\r\n", vec![]),
        ("CLIENT KILL", "-ERR wrong number of arguments for 'client|kill' command\r\n", vec![]),
    ] {
        let node = Node::new();
        let (mut me, _second, _third) = (node.client(), node.client(), node.client());
        assert_eq!(me.ask(line), expected, "{line}");
        assert_eq!(killed(&me), ids, "{line}");
        assert!(!me.is_closed, "{line}");
    }
    // Who kills itself gets the answer first.
    let node = Node::new();
    let (mut me, _second, _third) = (node.client(), node.client(), node.client());
    assert_eq!(me.ask("CLIENT KILL SKIPME no ID 1"), ":1\r\n");
    assert_eq!(killed(&me), [(1, true)]);
    assert!(me.is_closed);
    let mut other = node.client();
    assert_eq!(other.ask("CLIENT KILL 127.0.0.1:5000"), "+OK\r\n");
    assert_eq!(killed(&other), [(2, false), (3, false), (4, true)]);
    assert!(other.is_closed);
}

#[test]
fn a_killed_connection_is_not_named_again() {
    let node = Node::new();
    let (mut me, _second) = (node.client(), node.client());
    assert_eq!(me.ask("CLIENT KILL ID 2"), ":1\r\n");
    for (line, expected) in [
        ("CLIENT KILL ID 2", ":0\r\n"),
        ("CLIENT KILL SKIPME yes", ":0\r\n"),
        ("CLIENT LIST ID 2", "$0\r\n\r\n"),
    ] {
        assert_eq!(me.ask(line), expected, "{line}");
    }
    assert!(!me.ask("CLIENT LIST").contains("id=2 "));
    assert_eq!(killed(&me), [(2, false)]);
}

#[test]
fn time_counts_where_the_call_does_and_is_shared_among_what_was_run() {
    CLOCK_STEP_NS.set(10_000_000);
    let node = Node::new();
    let mut client = node.client();
    client.ask("SCRIPT LOAD 'return 1'");
    assert_eq!(client.ask("EVALSHA e0e1f9fabfc9d4800c877a703b823ac0578ff8db 0"), ":1\r\n");
    assert!(client.ask("EVALSHA ffffffffffffffffffffffffffffffffffffffff 0").starts_with("-NOSC"));
    // What another node has sent.
    let work = Work::Call(Call::new(request("GET a")).unwrap());
    block_on(node.commands.execute(&*node.store, &work));
    let begun_ns = node.commands.next_begins_ns();
    node.commands.note_work(&work, begun_ns, Default::default, &FixedHost);
    CLOCK_STEP_NS.set(0);
    let stats = client.ask("INFO commandstats");
    for line in [
        "cmdstat_evalsha:calls=2,usec=10000,usec_per_call=10000.00,rejected_calls=0,failed_calls=1\r\n",
        "cmdstat_get:calls=0,usec=10000,usec_per_call=10000.00,rejected_calls=0,failed_calls=0\r\n",
    ] {
        assert!(stats.contains(line), "{line}\n{stats}");
    }
    assert!(!stats.contains("cmdstat_eval:"), "{stats}");
}

#[test]
fn the_replies_that_a_client_gets_are_those_that_it_wants() {
    let mut client = Node::new().client();
    let mut step = |line: &str, is_muted: bool| {
        client.ask(line);
        assert_eq!(client.session.is_muted(), is_muted, "{line}");
    };
    step("CLIENT REPLY OFF", true);
    step("PING", true);
    step("NOPE", true);
    step("SET a 1", true);
    step("CLIENT REPLY SKIP", true);
    step("PING", true);
    step("PING", true);
    step("CLIENT REPLY ON", false);
    step("PING", false);
    step("CLIENT REPLY SKIP", true);
    step("PING", true);
    step("PING", false);
    step("CLIENT REPLY SKIP", true);
    step("CLIENT REPLY ON", false);
    step("PING", false);
    step("CLIENT REPLY x", false);
    step("CLIENT REPLY OFF", true);
    step("RESET", false);
    step("PING", false);
}

#[test]
fn further_subcommands_of_client_answer_as_where_nothing_is_tracked_or_blocked() {
    let mut client = Node::new().client();
    client.script(&[
        ("CLIENT TRACKING OFF", "+OK\r\n"),
        ("CLIENT TRACKING foo", "-ERR syntax error\r\n"),
        ("CLIENT TRACKING OFF BCAST", "-ERR syntax error\r\n"),
        ("CLIENT GETREDIR", ":-1\r\n"),
        (
            "CLIENT TRACKINGINFO",
            "*6\r\n$5\r\nflags\r\n*1\r\n$3\r\noff\r\n$8\r\nredirect\r\n:-1\r\n$8\r\nprefixes\r\n*0\r\n",
        ),
        ("CLIENT UNPAUSE", "+OK\r\n"),
        ("CLIENT PAUSE x", "-ERR timeout is not an integer or out of range\r\n"),
        ("CLIENT PAUSE -1", "-ERR timeout is negative\r\n"),
        ("CLIENT PAUSE 1 foo", "-ERR CLIENT PAUSE mode must be WRITE or ALL\r\n"),
        ("CLIENT UNBLOCK 3", ":0\r\n"),
        ("CLIENT UNBLOCK 3 timeout", ":0\r\n"),
        ("CLIENT UNBLOCK x", "-ERR value is not an integer or out of range\r\n"),
        ("CLIENT UNBLOCK 3 foo", "-ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR\r\n"),
        ("CLIENT CACHING foo", "-ERR syntax error\r\n"),
        ("CLIENT LIST foo", "-ERR syntax error\r\n"),
        ("CLIENT LIST TYPE x", "-ERR Unknown client type 'x'\r\n"),
        ("CLIENT LIST ID a", "-ERR Invalid client ID\r\n"),
        ("CLIENT LIST ID 999", "$0\r\n\r\n"),
        ("CLIENT SETINFO lib-VER 'a b'", "-ERR lib-VER cannot contain spaces, newlines or special characters.\r\n"),
    ]);
    for line in ["CLIENT TRACKING ON", "CLIENT PAUSE 10 WRITE", "CLIENT CACHING yes"] {
        assert!(client.ask(line).starts_with("-ERR CLIENT "), "{line}");
    }
}

#[test]
fn help_lists_every_subcommand() {
    let mut client = Node::new().client();
    for (command, first) in [
        ("client", "CACHING (YES|NO)"),
        ("config", "GET <pattern> [<pattern> ...]"),
        ("slowlog", "GET [<count>]"),
        ("acl", "CAT [<category>]"),
    ] {
        let help = client.ask(&format!("{command} HELP"));
        let title = format!(
            "+{} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:\r\n+{first}\r\n+    ",
            command.to_ascii_uppercase()
        );
        assert!(help.contains(&title), "{help}");
        assert!(help.ends_with("+HELP\r\n+    Print this help.\r\n"), "{help}");
    }
}

#[test]
fn commands_that_took_long_are_listed_newest_first() {
    CLOCK_STEP_NS.set(10_000_000);
    let mut client = Node::new().client();
    client.script(&[
        ("SLOWLOG LEN", ":0\r\n"),
        ("CLIENT SETNAME me", "+OK\r\n"),
        ("SET a 1", "+OK\r\n"),
        ("MULTI", "+OK\r\n"),
        ("GET a", "+QUEUED\r\n"),
        ("EXEC", "*1\r\n$1\r\n1\r\n"),
        ("AUTH default secret", "+OK\r\n"),
    ]);
    let entry = |id: u32, words: &[&str]| {
        let words: String =
            words.iter().map(|word| format!("${}\r\n{word}\r\n", word.len())).collect();
        let count = words.matches('$').count();
        format!(
            "*6\r\n:{id}\r\n:1700000000\r\n:10000\r\n*{count}\r\n{words}$14\r\n127.0.0.1:5000\r\n$2\r\nme\r\n"
        )
    };
    let expected = [
        entry(5, &["AUTH", "(redacted)", "(redacted)"]),
        entry(4, &["EXEC", "GET", "a"]),
        entry(3, &["MULTI"]),
        entry(2, &["SET", "a", "1"]),
    ];
    assert_eq!(client.ask("SLOWLOG GET 4"), format!("*4\r\n{}", expected.concat()));
    // Without a change of the clock nothing takes time.
    CLOCK_STEP_NS.set(0);
    assert!(client.ask("SLOWLOG GET").starts_with("*7\r\n"));
    client.script(&[
        ("SLOWLOG LEN", ":7\r\n"),
        ("SLOWLOG GET x", "-ERR count should be greater than or equal to -1\r\n"),
        ("SLOWLOG GET -2", "-ERR count should be greater than or equal to -1\r\n"),
        ("SLOWLOG RESET", "+OK\r\n"),
        ("SLOWLOG GET -1", "*0\r\n"),
    ]);
    let stats = client.ask("INFO commandstats");
    let set =
        "cmdstat_set:calls=1,usec=10000,usec_per_call=10000.00,rejected_calls=0,failed_calls=0\r\n";
    assert!(stats.contains(set), "{stats}");
    assert!(stats.contains("cmdstat_slowlog|len:calls=2,"), "{stats}");
}

#[test]
fn an_entry_of_the_slowlog_is_bounded_and_so_are_they_all() {
    CLOCK_STEP_NS.set(20_000_000);
    let mut client = Node::new().client();
    let words: Vec<String> = (0..34).map(|i| format!("k{i}")).collect();
    client.ask(&format!("DEL {}", words.join(" ")));
    let slow = client.ask("SLOWLOG GET 1");
    assert!(slow.contains("*32\r\n$3\r\nDEL\r\n$2\r\nk0\r\n"), "{slow}");
    assert!(slow.contains("$3\r\nk29\r\n$22\r\n... (4 more arguments)\r\n"), "{slow}");
    client.ask(&format!("ECHO {}", "x".repeat(130)));
    let slow = client.ask("SLOWLOG GET 1");
    assert!(slow.contains(&format!("{}... (2 more bytes)\r\n", "x".repeat(128))), "{slow}");
    for _ in 0..200 {
        client.ask("PING");
    }
    CLOCK_STEP_NS.set(0);
    assert_eq!(client.ask("SLOWLOG LEN"), ":128\r\n");
}

#[test]
fn errors_are_counted_by_their_first_words() {
    let mut client = Node::new().client();
    for line in
        ["NOPE", "GET", "AUTH foo x", "SET s x", "INCR s", "MULTI", "INCR s", "EXEC", "EXEC"]
    {
        client.ask(line);
    }
    let stats = client.ask("INFO errorstats");
    assert!(
        stats.ends_with("errorstat_ERR:count=5\r\nerrorstat_WRONGPASS:count=1\r\n\r\n"),
        "{stats}"
    );
    assert!(client.ask("INFO stats").contains("total_error_replies:6\r\n"));
    assert!(client.ask("INFO commandstats").contains("cmdstat_auth:calls=1,"));
    client.ask("CONFIG RESETSTAT");
    assert!(client.ask("INFO errorstats").ends_with("# Errorstats\r\n\r\n"));
}

#[test]
fn the_answer_of_a_killed_connection_comes_before_its_end_also_from_a_transaction() {
    let node = Node::new();
    let mut client = node.client();
    for line in ["MULTI", "CLIENT KILL ID 1 SKIPME no"] {
        client.ask(line);
    }
    let request = request("EXEC");
    let step = node.commands.handle(&mut client.session, request, &FixedHost);
    assert!(matches!(step, Step::Close(Reply::Array(replies)) if replies == [Reply::Integer(1)]));
}

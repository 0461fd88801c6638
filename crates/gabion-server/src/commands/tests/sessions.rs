//! What belongs to a connection: protocol, name, transactions; and commands about the node.

use super::support::{Node, request};
use crate::commands::{Step, Work};
use bytes::Bytes;
use gabion_resp::Reply;

#[test]
fn errors_of_dispatch_have_the_words_of_redis() {
    Node::new().client().script(&[
        ("foo", "-ERR unknown command 'foo', with args beginning with: \r\n"),
        ("FOO a 'b c'", "-ERR unknown command 'FOO', with args beginning with: 'a' 'b c' \r\n"),
        ("GET", "-ERR wrong number of arguments for 'get' command\r\n"),
        ("get a b", "-ERR wrong number of arguments for 'get' command\r\n"),
        ("PING a b", "-ERR wrong number of arguments for 'ping' command\r\n"),
        ("CLIENT NOPE", "-ERR unknown subcommand 'NOPE'. Try CLIENT HELP.\r\n"),
        ("CLIENT SETNAME", "-ERR wrong number of arguments for 'client|setname' command\r\n"),
        ("CONFIG nope", "-ERR unknown subcommand 'nope'. Try CONFIG HELP.\r\n"),
        ("COMMAND nope", "-ERR unknown subcommand 'nope'. Try COMMAND HELP.\r\n"),
    ]);
}

#[test]
fn an_unknown_command_repeats_a_bounded_part_of_what_was_sent() {
    let reply = Node::new().client().ask(&format!("{} {} b", "x".repeat(300), "a".repeat(300)));
    let expected = format!(
        "-ERR unknown command '{}', with args beginning with: '{}' \r\n",
        "x".repeat(128),
        "a".repeat(128)
    );
    assert_eq!(reply, expected);
}

#[test]
fn connection_commands_answer() {
    Node::new().client().script(&[
        ("PING", "+PONG\r\n"),
        ("PING hi", "$2\r\nhi\r\n"),
        ("ECHO hi", "$2\r\nhi\r\n"),
        ("SELECT 0", "+OK\r\n"),
        ("SELECT 1", "-ERR DB index is out of range\r\n"),
        ("SELECT x", "-ERR value is not an integer or out of range\r\n"),
        ("CLIENT ID", ":1\r\n"),
        ("CLIENT GETNAME", "$-1\r\n"),
        ("CLIENT SETNAME me", "+OK\r\n"),
        ("CLIENT GETNAME", "$2\r\nme\r\n"),
        (
            "CLIENT SETNAME 'a b'",
            "-ERR Client names cannot contain spaces, newlines or special characters.\r\n",
        ),
        ("CLIENT SETINFO LIB-NAME redis-py", "+OK\r\n"),
        ("CLIENT SETINFO lib-ver 5.0", "+OK\r\n"),
        ("CLIENT SETINFO x y", "-ERR Unrecognized option 'x'\r\n"),
        (
            "CLIENT SETINFO lib-ver 'a b'",
            "-ERR lib-ver cannot contain spaces, newlines or special characters.\r\n",
        ),
        ("CLIENT NO-EVICT on", "+OK\r\n"),
        ("CLIENT NO-TOUCH off", "+OK\r\n"),
        ("CLIENT NO-TOUCH maybe", "-ERR syntax error\r\n"),
        ("TIME", "*2\r\n$10\r\n1700000000\r\n$6\r\n123456\r\n"),
        ("WAIT 1 0", ":2\r\n"),
        ("WAIT x 0", "-ERR value is not an integer or out of range\r\n"),
        ("WAIT 1 x", "-ERR timeout is not an integer or out of range\r\n"),
        ("WAIT 1 -1", "-ERR timeout is negative\r\n"),
        ("UNWATCH", "+OK\r\n"),
        ("CONFIG GET save", "*2\r\n$4\r\nsave\r\n$0\r\n\r\n"),
        ("CONFIG GET APP*", "*2\r\n$10\r\nappendonly\r\n$3\r\nyes\r\n"),
        ("CONFIG GET none", "*0\r\n"),
        ("CONFIG GET", "-ERR wrong number of arguments for 'config|get' command\r\n"),
    ]);
}

#[test]
fn what_config_set_cannot_do_is_refused_in_the_words_of_redis() {
    let refused = "-ERR CONFIG SET failed (possibly related to argument 'Save') - \
                   can't set immutable config\r\n";
    let unknown = "-ERR Unknown option or number of arguments for CONFIG SET - 'Nope'\r\n";
    Node::new().client().script(&[
        ("CONFIG SET maxmemory 0", "+OK\r\n"),
        ("CONFIG SET maxmemory 0 Save x", refused),
        ("CONFIG SET Nope 1", unknown),
        ("CONFIG SET maxmemory 0 save", "-ERR syntax error\r\n"),
        ("CONFIG SET", "-ERR wrong number of arguments for 'config|set' command\r\n"),
        ("CONFIG SET maxmemory", "-ERR wrong number of arguments for 'config|set' command\r\n"),
        ("CONFIG REWRITE", "-ERR The server is running without a config file\r\n"),
    ]);
}

#[test]
fn client_list_shows_every_connection_until_it_ends() {
    let node = Node::new();
    let (mut first, mut second) = (node.client(), node.client());
    first.ask("CLIENT SETNAME one");
    second.ask("MULTI");
    let list = first.ask("CLIENT LIST");
    assert!(
        list.contains("id=1 addr=127.0.0.1:5000 laddr=127.0.0.1:6380 fd=-1 name=one"),
        "{list}"
    );
    assert!(list.contains("id=2 ") && list.contains("flags=x") && list.contains("multi=0"));
    assert!(!first.ask("CLIENT LIST ID 2").contains("id=1 "));
    assert!(first.ask("CLIENT INFO").contains("cmd=client"));
    assert_eq!(first.ask("CLIENT LIST TYPE pubsub"), "$0\r\n\r\n");
    drop(second);
    assert!(!first.ask("CLIENT LIST").contains("id=2 "));
}

#[test]
fn hello_changes_the_protocol_and_says_who_the_server_is() {
    let mut client = Node::new().client();
    let fields = |proto: u8| {
        format!(
            "$6\r\nserver\r\n$5\r\nredis\r\n$7\r\nversion\r\n$5\r\n7.4.0\r\n$5\r\nproto\r\n\
             :{proto}\r\n$2\r\nid\r\n:1\r\n$4\r\nmode\r\n$10\r\nstandalone\r\n$4\r\nrole\r\n\
             $6\r\nmaster\r\n$7\r\nmodules\r\n*0\r\n"
        )
    };
    assert_eq!(client.ask("HELLO"), format!("*14\r\n{}", fields(2)));
    assert_eq!(client.ask("HELLO 3 SETNAME me"), format!("%7\r\n{}", fields(3)));
    client.script(&[
        ("GET none", "_\r\n"),
        ("CONFIG GET databases", "%1\r\n$9\r\ndatabases\r\n$1\r\n1\r\n"),
        ("CLIENT GETNAME", "$2\r\nme\r\n"),
        ("HELLO 4", "-NOPROTO unsupported protocol version\r\n"),
        ("HELLO x", "-ERR Protocol version is not an integer or out of range\r\n"),
        ("HELLO 2 FOO", "-ERR Syntax error in HELLO option 'FOO'\r\n"),
        ("GET none", "_\r\n"),
    ]);
    client.script(&[
        ("RESET", "+RESET\r\n"),
        ("GET none", "$-1\r\n"),
        ("CLIENT GETNAME", "$-1\r\n"),
    ]);
}

#[test]
fn a_transaction_runs_its_commands_in_one_record() {
    let node = Node::new();
    node.client().script(&[
        ("MULTI", "+OK\r\n"),
        ("SET a 1", "+QUEUED\r\n"),
        ("PING", "+QUEUED\r\n"),
        ("INCR a", "+QUEUED\r\n"),
        ("INCR b", "+QUEUED\r\n"),
        ("GET a", "+QUEUED\r\n"),
        ("SET s x", "+QUEUED\r\n"),
        ("INCR s", "+QUEUED\r\n"),
        ("DEL b", "+QUEUED\r\n"),
        ("CLIENT ID", "+QUEUED\r\n"),
        (
            "EXEC",
            "*9\r\n+OK\r\n+PONG\r\n:2\r\n:1\r\n$1\r\n2\r\n+OK\r\n\
             -ERR value is not an integer or out of range\r\n:1\r\n:1\r\n",
        ),
        ("MGET a b s", "*3\r\n$1\r\n2\r\n$-1\r\n$1\r\nx\r\n"),
    ]);
    assert_eq!(node.store.records.borrow().len(), 1);
}

/// docs/faults.md: P2
#[test]
fn a_transaction_sees_its_own_writes_in_scans() {
    Node::new().client().script(&[
        ("MSET a 1 b 2 c 3", "+OK\r\n"),
        ("MULTI", "+OK\r\n"),
        ("DEL b", "+QUEUED\r\n"),
        ("SET d 4", "+QUEUED\r\n"),
        ("KEYS *", "+QUEUED\r\n"),
        ("DBSIZE", "+QUEUED\r\n"),
        ("RANGE - + LIMIT 2", "+QUEUED\r\n"),
        ("RANGE - + KEYS REV LIMIT 2", "+QUEUED\r\n"),
        ("FLUSHALL", "+QUEUED\r\n"),
        ("DBSIZE", "+QUEUED\r\n"),
        ("SET e 5", "+QUEUED\r\n"),
        ("MGET a e", "+QUEUED\r\n"),
        (
            "EXEC",
            "*10\r\n:1\r\n+OK\r\n*3\r\n$1\r\na\r\n$1\r\nc\r\n$1\r\nd\r\n:3\r\n\
             *4\r\n$1\r\na\r\n$1\r\n1\r\n$1\r\nc\r\n$1\r\n3\r\n\
             *2\r\n$1\r\nd\r\n$1\r\nc\r\n\
             +OK\r\n:0\r\n+OK\r\n*2\r\n$-1\r\n$1\r\n5\r\n",
        ),
        ("KEYS *", "*1\r\n$1\r\ne\r\n"),
    ]);
}

/// docs/faults.md: P4
#[test]
fn a_transaction_sees_its_own_writes_in_many_keys_at_once() {
    Node::new().client().script(&[
        ("MSET a 1 b 2 c 3", "+OK\r\n"),
        ("MULTI", "+OK\r\n"),
        ("DEL b", "+QUEUED\r\n"),
        ("SET d 4", "+QUEUED\r\n"),
        ("MGET d c b a d", "+QUEUED\r\n"),
        ("EXISTS a b d d x", "+QUEUED\r\n"),
        ("DEL d c d b", "+QUEUED\r\n"),
        ("MSETNX d 1 e 1", "+QUEUED\r\n"),
        ("MSETNX a 1 f 1", "+QUEUED\r\n"),
        (
            "EXEC",
            "*7\r\n:1\r\n+OK\r\n*5\r\n$1\r\n4\r\n$1\r\n3\r\n$-1\r\n$1\r\n1\r\n$1\r\n4\r\n\
             :3\r\n:2\r\n:1\r\n:0\r\n",
        ),
        ("MGET a b c d e f", "*6\r\n$1\r\n1\r\n$-1\r\n$-1\r\n$1\r\n1\r\n$1\r\n1\r\n$-1\r\n"),
    ]);
}

#[test]
fn a_transaction_with_a_refused_command_is_discarded_whole() {
    let abort = "-EXECABORT Transaction discarded because of previous errors.\r\n";
    Node::new().client().script(&[
        ("EXEC", "-ERR EXEC without MULTI\r\n"),
        ("DISCARD", "-ERR DISCARD without MULTI\r\n"),
        ("MULTI", "+OK\r\n"),
        ("MULTI", "-ERR MULTI calls can not be nested\r\n"),
        ("WATCH a", "-ERR WATCH inside MULTI is not allowed\r\n"),
        ("SET a 1", "+QUEUED\r\n"),
        ("GET", "-ERR wrong number of arguments for 'get' command\r\n"),
        ("EXEC", abort),
        ("EXISTS a", ":0\r\n"),
        ("MULTI", "+OK\r\n"),
        ("NOPE", "-ERR unknown command 'NOPE', with args beginning with: \r\n"),
        ("EXEC", abort),
        ("MULTI", "+OK\r\n"),
        ("HELLO 3", "-ERR Command not allowed inside a transaction\r\n"),
        ("EXEC", abort),
        ("MULTI", "+OK\r\n"),
        ("SET a 1", "+QUEUED\r\n"),
        ("DISCARD", "+OK\r\n"),
        ("EXISTS a", ":0\r\n"),
        ("MULTI", "+OK\r\n"),
        ("SET a 1", "+QUEUED\r\n"),
        ("RESET", "+RESET\r\n"),
        ("EXEC", "-ERR EXEC without MULTI\r\n"),
        ("MULTI", "+OK\r\n"),
        (
            "EXEC x",
            "-EXECABORT Transaction discarded because of: wrong number of arguments for 'exec' command\r\n",
        ),
        ("EXEC", "-ERR EXEC without MULTI\r\n"),
        ("MULTI", "+OK\r\n"),
        ("EXEC", "*0\r\n"),
        ("MULTI", "+OK\r\n"),
        ("PING", "+QUEUED\r\n"),
        ("EXEC", "*1\r\n+PONG\r\n"),
        ("MULTI", "+OK\r\n"),
        ("WAIT 2 0", "+QUEUED\r\n"),
        ("EXEC", "*1\r\n:0\r\n"),
        ("MULTI", "+OK\r\n"),
        ("WAIT 2 0", "+QUEUED\r\n"),
        ("SET b 1", "+QUEUED\r\n"),
        ("EXEC", "*2\r\n:2\r\n+OK\r\n"),
    ]);
}

#[test]
fn a_subcommand_is_checked_when_it_is_queued_with_the_same_words_as_outside() {
    let node = Node::new();
    let mut client = node.client();
    let lines = [
        "CLIENT NOPE",
        "CLIENT ID x",
        "CLIENT HELP x",
        "CLIENT SETINFO lib-name",
        "CLIENT NO-EVICT",
        "CLIENT REPLY",
        "CONFIG NOPE",
        "CONFIG GET",
        "CONFIG SET maxmemory",
        "CONFIG rewrite x",
        "CONFIG RESETSTAT x",
        "COMMAND NOPE",
        "COMMAND COUNT x",
        "COMMAND GETKEYS",
    ];
    for line in lines {
        let error = client.ask(line);
        assert!(error.starts_with("-ERR "), "{line}: {error}");
        client.script(&[
            ("MULTI", "+OK\r\n"),
            ("SET a 1", "+QUEUED\r\n"),
            (line, &error),
            ("EXEC", "-EXECABORT Transaction discarded because of previous errors.\r\n"),
            ("EXISTS a", ":0\r\n"),
        ]);
    }
    assert_eq!(
        client.ask("Config Get"),
        "-ERR wrong number of arguments for 'config|get' command\r\n"
    );
    // What is wrong with it otherwise comes out when it runs.
    client.script(&[
        ("MULTI", "+OK\r\n"),
        ("CLIENT NO-EVICT maybe", "+QUEUED\r\n"),
        ("CONFIG GET none", "+QUEUED\r\n"),
        ("COMMAND COUNT", "+QUEUED\r\n"),
        ("COMMAND LIST x", "+QUEUED\r\n"),
    ]);
    let replies = client.ask("EXEC");
    assert!(replies.starts_with("*4\r\n-ERR syntax error\r\n*0\r\n:"), "{replies}");
}

#[test]
fn a_transaction_is_bounded() {
    let node = Node::new();
    let mut client = node.client();
    client.ask("MULTI");
    for _ in 0..65_536 {
        assert_eq!(client.ask("GET a"), "+QUEUED\r\n");
    }
    let over = "-ERR 65537 commands in one transaction are over the limit of 65536\r\n";
    assert_eq!(client.ask("GET a"), over);
    assert!(client.ask("EXEC").starts_with("-EXECABORT"));

    // Many empty arguments take memory too.
    client.ask("MULTI");
    let mget = || gabion_resp::Request {
        args: std::iter::once(&b"MGET"[..])
            .chain(std::iter::repeat_n(&b""[..], 1_000_000))
            .map(Bytes::from_static)
            .collect(),
    };
    assert_eq!(client.reply(mget()), Reply::simple("QUEUED"));
    assert!(client.reply(mget()).is_error());
    assert!(client.ask("EXEC").starts_with("-EXECABORT"));

    // Values that grow beyond a record are refused as a whole, though each command is small.
    client.ask("MULTI");
    for key in ["a", "b", "c"] {
        client.ask(&format!("SETRANGE {key} 8388000 x"));
    }
    assert!(client.ask("EXEC").contains("over the limit of 16711680"));
    assert_eq!(client.ask("DBSIZE"), ":0\r\n");
}

/// A request of a few bytes can ask for the longest value thousands of times.
#[test]
fn the_reply_of_a_transaction_is_bounded_and_one_over_the_limit_changes_nothing() {
    let node = Node::new();
    let mut client = node.client();
    node.store.hold("k".into(), Bytes::from(vec![b'v'; 8 << 20]));
    let mut exec = |reads: usize| {
        node.store.look_ups.set(0);
        client.ask("MULTI");
        client.ask(&format!("SET a {reads}"));
        (0..reads).for_each(|_| drop(client.ask("GET k")));
        client.reply(request("EXEC"))
    };
    let text = "ERR the reply of EXEC is over the limit of 1048576 keys or 67108864 bytes: no key was changed";
    assert!(exec(4000) == Reply::error(text));
    assert_eq!(node.store.look_ups.get(), 8, "no more is read than the reply that is too much");
    assert!(node.store.records.borrow().is_empty());
    assert!(matches!(exec(7), Reply::Array(replies) if replies.len() == 8));
    assert_eq!(node.store.records.borrow().len(), 1);

    // Replies that are hardly more than their bookkeeping, and those that are made at the door.
    (0..1000_u32).for_each(|i| node.store.hold(i.to_be_bytes().to_vec().into(), Bytes::new()));
    for line in ["RANGE - k", "COMMAND DOCS"] {
        client.ask("MULTI");
        client.ask("SET a 1");
        (0..6000).for_each(|_| drop(client.ask(line)));
        assert!(client.reply(request("EXEC")) == Reply::error(text), "{line}");
    }
    assert_eq!(node.store.records.borrow().len(), 1);
}

#[test]
fn a_queued_command_does_not_keep_the_read_buffer() {
    let node = Node::new();
    let mut client = node.client();
    let mut buffer =
        bytes::BytesMut::from(&b"MULTI\r\n*3\r\n$3\r\nSET\r\n$1\r\na\r\n$1\r\n1\r\n"[..]);
    buffer.reserve(1 << 20);
    let whole = buffer.capacity();
    let mut parser = gabion_resp::RequestParser::new();
    for expected in [Reply::OK, Reply::simple("QUEUED")] {
        let incoming = parser.parse(&mut buffer).unwrap().unwrap();
        let gabion_resp::Incoming::Request(request) = incoming else { panic!("{incoming:?}") };
        assert_eq!(client.reply(request), expected);
    }
    // Nobody else refers to the buffer's memory, so it can be used again.
    assert!(buffer.capacity() < whole);
    assert!(buffer.try_reclaim(whole));
    client.script(&[("EXEC", "*1\r\n+OK\r\n"), ("GET a", "$1\r\n1\r\n")]);
}

#[test]
fn names_of_clients_are_bounded() {
    let mut client = Node::new().client();
    assert_eq!(client.ask(&format!("CLIENT SETNAME {}", "n".repeat(1024))), "+OK\r\n");
    let over = "-ERR 1025 bytes are over the limit of 1024 for names of clients\r\n";
    assert_eq!(client.ask(&format!("CLIENT SETNAME {}", "n".repeat(1025))), over);
    assert_eq!(client.ask(&format!("CLIENT SETINFO LIB-VER {}", "n".repeat(1025))), over);
}

#[test]
fn quit_closes_also_inside_a_transaction() {
    let node = Node::new();
    for multi in [false, true] {
        let mut client = node.client();
        if multi {
            client.ask("MULTI");
        }
        assert_eq!(client.ask("QUIT"), "+OK\r\n");
        assert!(client.is_closed);
    }
}

#[test]
fn a_line_of_http_closes_the_connection_also_inside_a_transaction() {
    let node = Node::new();
    for line in ["POST / HTTP/1.1", "post", "Host: 127.0.0.1:6379", "HOST: x"] {
        for multi in [false, true] {
            let mut client = node.client();
            if multi {
                client.ask("MULTI");
            }
            client.ask(line);
            assert!(client.is_closed, "{line}");
        }
    }
    let mut client = node.client();
    client.ask("GET post");
    assert!(client.ask("hostname").starts_with("-ERR unknown command"));
    assert!(!client.is_closed);
}

#[test]
fn replies_of_a_transaction_run_elsewhere_are_put_together_at_the_door() {
    let node = Node::new();
    let mut client = node.client();
    for line in ["MULTI", "PING", "SET a 1", "ECHO x", "GET a", "PING"] {
        client.ask(line);
    }
    let step =
        node.commands.handle(&mut client.session, request("EXEC"), &super::support::FixedHost);
    let Step::Run(Work::Transaction(transaction)) = step else { panic!("{step:?}") };
    let received = crate::commands::Transaction::of(transaction.calls().to_vec());
    let received = Work::Transaction(received);
    let remote = node.commands.execute(&*node.store, &received);
    let Reply::Array(replies) = super::support::block_on(remote) else { panic!() };
    let mut out = Vec::new();
    transaction.merge(replies).encode(gabion_resp::Protocol::Resp2, &mut out);
    assert_eq!(out, b"*5\r\n+PONG\r\n+OK\r\n$1\r\nx\r\n$1\r\n1\r\n+PONG\r\n");
}

#[test]
fn info_shows_the_sections_that_are_asked_for() {
    let mut client = Node::new().client();
    let all = client.ask("INFO");
    for line in [
        "# Server\r\nredis_version:7.4.0\r\n",
        "tcp_port:6380\r\n",
        "connected_clients:1\r\n",
        "role:master\r\nconnected_slaves:2\r\n\
         slave0:ip=127.0.0.1,port=6381,state=online,offset=4096,lag=1\r\n\
         slave1:ip=127.0.0.1,port=6382,state=online,offset=4096,lag=1\r\n\
         master_failover_state:no-failover\r\n",
        "master_replid:0000000000000000000000000000000000000007\r\n",
        "master_repl_offset:5000\r\n",
        "used_memory_human:1.50M\r\n",
        "# Cluster\r\ncluster_enabled:0\r\n\r\n\
         # Keyspace\r\ndb0:keys=3,expires=1,avg_ttl=0,estimate=1\r\n",
        "loading:0\r\n",
        "used_cpu_user:1.500000\r\n",
        "# Gabion\r\nterm:4\r\n",
    ] {
        assert!(all.contains(line), "{line}\n{all}");
    }
    assert!(!all.contains("cmdstat_"));
    client.ask("GET");
    client.ask("GET a");
    let stats = client.ask("INFO commandstats");
    assert!(
        stats.contains(
            "cmdstat_get:calls=1,usec=0,usec_per_call=0.00,rejected_calls=1,failed_calls=0\r\n"
        ),
        "{stats}"
    );
    assert!(!stats.contains("# Server"));
    assert!(client.ask("INFO everything").contains("cmdstat_"));
    assert_eq!(client.ask("INFO nosuch"), "$0\r\n\r\n");
    let two = client.ask("INFO keyspace Cluster");
    assert!(two.contains("\r\n# Cluster\r\ncluster_enabled:0\r\n\r\n# Keyspace\r\n"), "{two}");
    assert!(client.ask("INFO default commandstats").contains("cmdstat_get"));
    client.ask("CONFIG RESETSTAT");
    assert!(!client.ask("INFO commandstats").contains("cmdstat_get"));
    client.ask("HELLO 3");
    assert!(client.ask("INFO server").starts_with('='));
}

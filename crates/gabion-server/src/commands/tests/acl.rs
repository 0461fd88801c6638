//! Users: passwords, rules, and what they keep from whom.

use super::support::{Client, Node, request};
use crate::commands::{Step, Work};
use bytes::Bytes;

const NO_AUTH: &str = "-NOAUTH Authentication required.\r\n";
const WRONG: &str = "-WRONGPASS invalid username-password pair or user is disabled.\r\n";
const NO_KEY: &str = "-NOPERM No permissions to access a key\r\n";

fn no_command(user: &str, command: &str) -> String {
    format!("-NOPERM User {user} has no permissions to run the '{command}' command\r\n")
}

/// A connection of a user that was made by these rules.
fn user(node: &Node, rules: &str) -> Client {
    let set = format!("ACL SETUSER u reset on >p {rules}");
    assert_eq!(node.client().ask(&set), "+OK\r\n", "{rules}");
    let mut client = node.client();
    client.script(&[("AUTH u p", "+OK\r\n")]);
    client
}

#[test]
fn without_the_password_nothing_is_done_but_to_say_who_one_is() {
    let node = Node::new();
    let mut before = node.client();
    before.script(&[("SET k v", "+OK\r\n"), ("CONFIG SET requirepass secret", "+OK\r\n")]);
    // It was let in when none was wanted.
    before.script(&[("GET k", "$1\r\nv\r\n")]);
    let mut client = node.client();
    client.script(&[
        ("GET k", NO_AUTH),
        ("PING", NO_AUTH),
        ("MULTI", NO_AUTH),
        (
            "EXEC",
            "-EXECABORT Transaction discarded because of: NOAUTH Authentication required.\r\n",
        ),
        ("EVAL 'return 1' 0", NO_AUTH),
        ("ACL WHOAMI", NO_AUTH),
        ("COMMAND", NO_AUTH),
        ("AUTH wrong", WRONG),
        ("AUTH default wrong", WRONG),
        ("AUTH nobody secret", WRONG),
        ("HELLO 3 AUTH default wrong", WRONG),
        ("GET k", NO_AUTH),
    ]);
    assert!(client.ask("HELLO 3").starts_with("-NOAUTH HELLO must be called"));
    client.script(&[("AUTH secret", "+OK\r\n"), ("GET k", "$1\r\nv\r\n")]);
    client.script(&[("RESET", "+RESET\r\n"), ("GET k", NO_AUTH)]);
    assert!(client.ask("HELLO 2 AUTH default secret").starts_with("*14\r\n"));
    client.script(&[("GET k", "$1\r\nv\r\n")]);
    let mut waiting = node.client();
    before.script(&[("CONFIG SET requirepass ''", "+OK\r\n")]);
    waiting.script(&[("GET k", "$1\r\nv\r\n")]);
    let said = before.ask("ACL LOG 1");
    assert!(said.contains("auth") && said.contains("AUTH"), "{said}");
}

#[test]
fn a_user_has_the_commands_that_rules_give_in_their_order() {
    let node = Node::new();
    let mut client = user(&node, "allkeys +get");
    client.script(&[("GET k", "$-1\r\n"), ("ACL WHOAMI", &no_command("u", "acl|whoami"))]);
    client.script(&[
        ("SET k v", &no_command("u", "set")),
        ("SHUTDOWN", &no_command("u", "shutdown")),
    ]);
    let mut client = user(&node, "allkeys +@all -@dangerous +flushall -config|set");
    client.script(&[
        ("KEYS *", &no_command("u", "keys")),
        ("CONFIG GET port", &no_command("u", "config|get")),
        ("FLUSHALL", "+OK\r\n"),
        ("SET k v", "+OK\r\n"),
    ]);
    let mut client = user(&node, "allkeys -@all +@read +@connection +client|id -client|setname");
    client.script(&[
        ("GET k", "$1\r\nv\r\n"),
        ("SET k w", &no_command("u", "set")),
        ("CLIENT SETNAME x", &no_command("u", "client|setname")),
        ("PING", "+PONG\r\n"),
    ]);
    // AUTH always goes, as in Redis.
    let mut client = user(&node, "nocommands");
    client.script(&[("AUTH u p", "+OK\r\n"), ("PING", &no_command("u", "ping"))]);
}

#[test]
fn keys_are_read_and_written_where_patterns_say() {
    let node = Node::new();
    node.client().script(&[("MSET app:1 a read:1 r other o", "+OK\r\n")]);
    let mut client = user(&node, "+@all ~app:* %R~read:* %W~write:*");
    client.script(&[
        ("GET app:1", "$1\r\na\r\n"),
        ("SET app:1 b", "+OK\r\n"),
        ("GET other", NO_KEY),
        ("GET read:1", "$1\r\nr\r\n"),
        ("SET read:1 x", NO_KEY),
        ("SET write:1 x", "+OK\r\n"),
        ("GET write:1", NO_KEY),
        // It tells the old value.
        ("SET write:1 x GET", NO_KEY),
        ("GETSET write:1 x", NO_KEY),
        ("APPEND write:1 x", ":2\r\n"),
        ("MGET app:1 read:1", "*2\r\n$1\r\nb\r\n$1\r\nr\r\n"),
        ("MGET app:1 other", NO_KEY),
        ("COPY read:1 write:2", ":1\r\n"),
        ("COPY write:2 read:1", NO_KEY),
        ("RENAME app:1 other", NO_KEY),
        ("DEL other", NO_KEY),
        ("BITOP NOT write:3 read:1", ":1\r\n"),
        ("WATCH other", NO_KEY),
        ("OBJECT ENCODING other", NO_KEY),
        ("MEMORY USAGE other", NO_KEY),
        // Whole ranges of keys with their values are for who may read all.
        ("RANGE a z", NO_KEY),
        ("RANGE app: app; KEYS", NO_KEY),
    ]);
    let mut client = user(&node, "+@all %R~*");
    client.script(&[("RANGE app: app; KEYS", "*1\r\n$5\r\napp:1\r\n"), ("SET app:1 x", NO_KEY)]);
}

#[test]
fn one_set_of_rules_is_enough_and_two_are_not_mixed() {
    let node = Node::new();
    let mut client = user(&node, "+get ~a* (+set ~b*) (+append +set %W~c*)");
    client.script(&[
        ("GET a", "$-1\r\n"),
        ("SET a 1", NO_KEY),
        ("SET b 1", "+OK\r\n"),
        ("GET b", NO_KEY),
        ("APPEND c 1", ":1\r\n"),
        ("APPEND b 1", NO_KEY),
        ("DEL a", &no_command("u", "del")),
    ]);
    let text = node.client().ask("ACL LIST");
    let rules = "~a* resetchannels -@all +get (~b* resetchannels -@all +set) \
                 (%W~c* resetchannels -@all +append +set)";
    assert!(text.contains(rules), "{text}");
}

#[test]
fn transactions_are_checked_when_queued_and_again_when_run() {
    let node = Node::new();
    let mut client = user(&node, "+@all ~a*");
    client.script(&[
        ("MULTI", "+OK\r\n"),
        ("SET b 1", NO_KEY),
        ("EXEC", "-EXECABORT Transaction discarded because of previous errors.\r\n"),
        ("MULTI", "+OK\r\n"),
        ("SET a 1", "+QUEUED\r\n"),
        ("GET a", "+QUEUED\r\n"),
    ]);
    node.client().script(&[("ACL SETUSER u -set", "+OK\r\n")]);
    let reply = client.ask("EXEC");
    assert_eq!(reply, format!("*2\r\n{}$-1\r\n", no_command("u", "set")));
    let said = node.client().ask("ACL LOG");
    assert!(said.contains("multi") && said.contains("username"), "{said}");
}

#[test]
fn a_script_does_what_its_user_may_do_also_where_it_is_sent() {
    let node = Node::new();
    let mut client = user(&node, "+@all -del ~a*");
    client.script(&[
        ("EVAL \"return redis.call('set', KEYS[1], 1)\" 1 a", "+OK\r\n"),
        ("EVAL \"return redis.call('set', KEYS[1], 1)\" 1 b", NO_KEY),
        (
            "EVAL \"return redis.pcall('set', 'b', 1)\" 0",
            "-NOPERM ACL failure in script: No permissions to access a key\r\n",
        ),
    ]);
    let said = client.ask("EVAL \"return redis.call('del', 'a')\" 0");
    assert!(said.starts_with("-NOPERM ACL failure in script: User u has no permissions"), "{said}");
    assert_eq!(client.ask("GET a"), "$1\r\n1\r\n");
    // As the node that runs it gets it.
    let words = request("EVAL \"return redis.pcall('get', 'b')\" 0");
    let step = client.node.commands.handle(&mut client.session, words, &super::support::FixedHost);
    let Step::Run(Work::Call(call)) = step else { panic!("{step:?}") };
    let rights = call.rights().unwrap();
    let read = crate::commands::Rights::decode(&rights.encode()).unwrap();
    assert_eq!(&read, &**rights);
    // And that of whoever may do everything goes without.
    let mut free = node.client();
    let words = request("EVAL \"return 1\" 0");
    let step = free.node.commands.handle(&mut free.session, words, &super::support::FixedHost);
    let Step::Run(Work::Call(call)) = step else { panic!("{step:?}") };
    assert!(call.rights().is_none());
}

#[test]
fn rules_that_cannot_be_have_the_words_of_redis_and_change_nothing() {
    let node = Node::new();
    let mut client = node.client();
    let wrong =
        |rule: &str, why: &str| format!("-ERR Error in ACL SETUSER modifier '{rule}': {why}\r\n");
    for (rules, expected) in [
        ("nonsense", wrong("nonsense", "Syntax error")),
        ("+nope", wrong("+nope", "Unknown command or category name in ACL")),
        ("+@nope", wrong("+@nope", "Unknown command or category name in ACL")),
        ("+client|nope", wrong("+client|nope", "Unknown command or category name in ACL")),
        ("%X~a", wrong("%X~a", "Syntax error")),
        ("%~a", wrong("%~a", "Syntax error")),
        ("%Ra", wrong("%Ra", "Syntax error")),
        (
            "<none",
            wrong("<none", "The password you are trying to remove from the user does not exist"),
        ),
        (
            "#abc",
            wrong(
                "#abc",
                "The password hash must be exactly 64 characters and contain only lowercase \
                 hexadecimal characters",
            ),
        ),
    ] {
        assert_eq!(client.ask(&format!("ACL SETUSER u on +get {rules}")), expected);
        assert_eq!(client.ask("ACL GETUSER u"), "$-1\r\n");
    }
    assert!(
        client.ask("ACL SETUSER u allkeys ~a").contains("Adding a pattern after the * pattern")
    );
    assert!(client.ask("ACL SETUSER u (+get").contains("Unmatched parenthesis"));
    assert!(client.ask("ACL SETUSER 'a b' on").contains("Usernames can't contain spaces"));
    assert!(
        client.ask("ACL SETUSER gabion:operator on").contains("The name is that of `gabion up`")
    );
}

#[test]
fn who_is_deleted_is_closed_and_who_is_off_comes_in_no_more() {
    let node = Node::new();
    let mut client = user(&node, "+@all allkeys");
    node.client().script(&[("ACL SETUSER u off", "+OK\r\n")]);
    client.script(&[("GET k", "$-1\r\n")]);
    node.client().script(&[("AUTH u p", WRONG), ("ACL DELUSER u nobody", ":1\r\n")]);
    assert!(client.session.is_killed());
    assert_eq!(node.commands.take_killed().len(), 1);
    node.client().script(&[("AUTH u p", WRONG)]);
}

#[test]
fn passwords_are_shown_as_hashes_and_several_count() {
    let node = Node::new();
    let hash = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b";
    let mut client = node.client();
    client.script(&[("ACL SETUSER u on >secret >other", "+OK\r\n")]);
    let said = client.ask("ACL GETUSER u");
    assert!(said.contains(hash) && !said.contains("secret"), "{said}");
    client.script(&[
        ("AUTH u secret", "+OK\r\n"),
        ("AUTH u other", "+OK\r\n"),
        ("AUTH default whatever", "+OK\r\n"),
    ]);
    client.ask(&format!("ACL SETUSER u !{hash}"));
    node.client().script(&[("AUTH u secret", WRONG), ("AUTH u other", "+OK\r\n")]);
    client.ask(&format!("ACL SETUSER u resetpass #{hash}"));
    node.client().script(&[("AUTH u secret", "+OK\r\n"), ("AUTH u other", WRONG)]);
    client.script(&[("ACL SETUSER u nopass", "+OK\r\n"), ("AUTH u anything", "+OK\r\n")]);
}

#[test]
fn made_passwords_are_as_long_as_asked_and_dry_runs_tell() {
    let node = Node::new();
    let mut client = node.client();
    assert!(client.ask("ACL GENPASS").starts_with("$64\r\n"));
    assert!(client.ask("ACL GENPASS 5").starts_with("$2\r\n"));
    assert_ne!(client.ask("ACL GENPASS"), client.ask("ACL GENPASS"));
    for bits in ["0", "4097", "x"] {
        assert!(
            client.ask(&format!("ACL GENPASS {bits}")).contains("a positive number up to 4096")
        );
    }
    client.ask("ACL SETUSER u +get ~a*");
    client.script(&[("ACL DRYRUN u get a", "+OK\r\n")]);
    let said = client.ask("ACL DRYRUN u get b");
    assert!(said.contains("User u has no permissions to access the 'b' key"), "{said}");
    let said = client.ask("ACL DRYRUN u set a 1");
    assert!(said.contains("User u has no permissions to run the 'set' command"), "{said}");
}

#[test]
fn what_is_shown_of_commands_is_what_counts_and_is_read_again_alike() {
    let node = Node::new();
    let mut client = node.client();
    for (rules, shown) in [
        ("+@all -get", "+@all -get"),
        ("+get +set -get", "-@all +set -get"),
        ("+client|id +client|list -client", "-@all -client"),
        ("+@read -@read +@write", "-@all -@read +@write"),
        ("+get nocommands +set", "-@all +set"),
        ("-@all +@all", "+@all"),
    ] {
        client.ask(&format!("ACL SETUSER u reset {rules}"));
        let said = client.ask("ACL GETUSER u");
        assert!(said.contains(&format!("\r\n{shown}\r\n")), "{rules}: {said}");
    }
}

#[test]
fn a_password_is_in_no_slow_log() {
    use crate::commands::work::Call;
    for line in [
        "AUTH secret",
        "AUTH u secret",
        "HELLO 3 AUTH u secret",
        "ACL SETUSER u on >secret ~a",
        "CONFIG SET timeout 1 requirepass secret",
    ] {
        let call = Call::new(request(line)).unwrap();
        let words = crate::commands::slowlog::words_of(&call);
        let is_secret = |word: &Bytes| word.windows(6).any(|part| part == b"secret");
        assert!(!words.iter().any(is_secret), "{line}: {words:?}");
    }
}

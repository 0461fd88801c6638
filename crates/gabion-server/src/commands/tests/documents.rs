//! COMMAND, and the page for people that is made of the same table.

use super::support::Node;
use crate::commands::describe::markdown;

#[test]
fn command_describes_what_is_served_and_nothing_else() {
    let mut client = Node::new().client();
    let key = |flags: &str| {
        format!(
            "*6\r\n$5\r\nflags\r\n{flags}$12\r\nbegin_search\r\n*4\r\n$4\r\ntype\r\n$5\r\nindex\r\n$4\r\nspec\r\n*2\r\n\
             $5\r\nindex\r\n:1\r\n$9\r\nfind_keys\r\n*4\r\n$4\r\ntype\r\n$5\r\nrange\r\n$4\r\nspec\r\n*6\r\n$7\r\nlastkey\r\n\
             :0\r\n$7\r\nkeystep\r\n:1\r\n$5\r\nlimit\r\n:0\r\n"
        )
    };
    assert_eq!(
        client.ask("COMMAND INFO get nosuch sadd get|key config|get|key"),
        format!(
            "*5\r\n*10\r\n$3\r\nget\r\n:2\r\n*2\r\n+readonly\r\n+fast\r\n:1\r\n:1\r\n:1\r\n\
             *3\r\n+@read\r\n+@string\r\n+@fast\r\n*0\r\n*1\r\n{}*0\r\n$-1\r\n$-1\r\n$-1\r\n$-1\r\n",
            key("*2\r\n+RO\r\n+access\r\n")
        )
    );
    assert_eq!(
        client.ask("COMMAND INFO Config|GET"),
        "*1\r\n*10\r\n$10\r\nconfig|get\r\n:-3\r\n*4\r\n+admin\r\n+noscript\r\n+loading\r\n+stale\r\n:0\r\n:0\r\n:0\r\n\
         *3\r\n+@admin\r\n+@slow\r\n+@dangerous\r\n*0\r\n*0\r\n*0\r\n"
    );
    let config = client.ask("COMMAND INFO config");
    assert!(config.contains("$14\r\nconfig|rewrite\r\n:2\r\n"), "{config}");
}

#[test]
fn commands_are_counted_listed_and_documented() {
    let mut client = Node::new().client();
    let count = client.ask("COMMAND COUNT");
    let listed = client.ask("COMMAND LIST");
    let all = client.ask("COMMAND");
    let number = count.trim_start_matches(':').trim_end();
    assert!(all.starts_with(&format!("*{number}\r\n")));
    assert!(!listed.contains("sadd") && !listed.contains("shutdown"));
    assert!(listed.contains("$11\r\nclient|list\r\n"));
    assert!(listed.contains("pexpireat"));
    let docs = "*2\r\n$3\r\nget\r\n*6\r\n$7\r\nsummary\r\n$27\r\nReturns the value of a key.\r\n\
                $5\r\nsince\r\n$5\r\n1.0.0\r\n$5\r\ngroup\r\n$6\r\nstring\r\n";
    assert_eq!(client.ask("COMMAND DOCS get"), docs);
    let docs = client.ask("COMMAND DOCS slowlog|len slowlog");
    assert!(docs.starts_with("*4\r\n$11\r\nslowlog|len\r\n"), "{docs}");
    assert_eq!(docs.matches("slowlog|len").count(), 2, "{docs}");
    client.ask("HELLO 3");
    assert!(client.ask("COMMAND INFO get").contains("~2\r\n+readonly\r\n"));
    assert!(client.ask("COMMAND DOCS").starts_with('%'));
}

#[test]
fn the_keys_of_a_request_and_commands_of_a_kind_are_found() {
    Node::new().client().script(&[
        ("COMMAND GETKEYS MSET a 1 b 2", "*2\r\n$1\r\na\r\n$1\r\nb\r\n"),
        ("COMMAND GETKEYS NOPE", "-ERR Invalid command specified\r\n"),
        ("COMMAND GETKEYS PING", "-ERR The command has no key arguments\r\n"),
        ("COMMAND GETKEYS GET", "-ERR Invalid number of arguments specified for command\r\n"),
        ("COMMAND GETKEYS CONFIG GET a", "-ERR The command has no key arguments\r\n"),
        ("COMMAND GETKEYS CONFIG nope", "-ERR Invalid command specified\r\n"),
        ("COMMAND GETKEYS fcall f 2 a b c", "*2\r\n$1\r\na\r\n$1\r\nb\r\n"),
        ("COMMAND GETKEYS fcall f 0", "*0\r\n"),
        (
            "COMMAND GETKEYSANDFLAGS MSET a 1 b 2",
            "*2\r\n*2\r\n$1\r\na\r\n*2\r\n+OW\r\n+update\r\n*2\r\n$1\r\nb\r\n*2\r\n+OW\r\n+update\r\n",
        ),
        (
            "COMMAND GETKEYSANDFLAGS set a 1",
            "*1\r\n*2\r\n$1\r\na\r\n*2\r\n+OW\r\n+update\r\n",
        ),
        (
            "COMMAND GETKEYSANDFLAGS set a 1 GET",
            "*1\r\n*2\r\n$1\r\na\r\n*3\r\n+RW\r\n+access\r\n+update\r\n",
        ),
        ("COMMAND LIST FILTERBY PATTERN m?et", "*2\r\n$4\r\nmget\r\n$4\r\nmset\r\n"),
        (
            "COMMAND LIST FILTERBY PATTERN config|*RE*",
            "*2\r\n$16\r\nconfig|resetstat\r\n$14\r\nconfig|rewrite\r\n",
        ),
        ("COMMAND LIST FILTERBY ACLCAT nope", "*0\r\n"),
        ("COMMAND LIST FILTERBY MODULE m", "*0\r\n"),
        ("COMMAND LIST x", "-ERR syntax error\r\n"),
        ("COMMAND LIST FILTERBY x", "-ERR syntax error\r\n"),
        ("COMMAND LIST FILTERBY x y", "-ERR syntax error\r\n"),
        (
            "COMMAND LIST FILTERBY ACLCAT blocking",
            "*2\r\n$4\r\nwait\r\n$7\r\nwaitaof\r\n",
        ),
    ]);
}

/// The table in `docs/redis.md` is the table of the code. To rewrite it after a change:
/// `GABION_REWRITE=1 cargo test -p gabion-server the_page`.
#[test]
fn the_page_for_people_shows_the_table_of_the_code() {
    const BEGIN: &str = "<!-- table: begin -->\n";
    const END: &str = "\n<!-- table: end -->";
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/redis.md");
    let text = std::fs::read_to_string(page).unwrap();
    let (before, rest) = text.split_once(BEGIN).unwrap();
    let (table, after) = rest.split_once(END).unwrap();
    if std::env::var_os("GABION_REWRITE").is_some() {
        std::fs::write(page, [before, BEGIN, &markdown(), END, after].concat()).unwrap();
    } else {
        assert_eq!(table, markdown(), "rewrite the page with GABION_REWRITE=1");
    }
}

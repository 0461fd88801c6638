//! COMMAND, and the page for people that is made of the same table.

use super::support::Node;
use crate::commands::describe::markdown;

#[test]
fn command_describes_what_is_served_and_nothing_else() {
    let mut client = Node::new().client();
    assert_eq!(
        client.ask("COMMAND INFO get nosuch sadd"),
        "*3\r\n*10\r\n$3\r\nget\r\n:2\r\n*2\r\n+readonly\r\n+fast\r\n:1\r\n:1\r\n:1\r\n\
         *3\r\n+@read\r\n+@string\r\n+@fast\r\n*0\r\n*0\r\n*0\r\n$-1\r\n$-1\r\n"
    );
    let count = client.ask("COMMAND COUNT");
    let listed = client.ask("COMMAND LIST");
    let all = client.ask("COMMAND");
    let number = count.trim_start_matches(':').trim_end();
    assert!(
        listed.starts_with(&format!("*{number}\r\n")) && all.starts_with(&format!("*{number}\r\n"))
    );
    assert!(!listed.contains("sadd"));
    assert!(listed.contains("pexpireat"));
    client.script(&[
        ("COMMAND GETKEYS MSET a 1 b 2", "*2\r\n$1\r\na\r\n$1\r\nb\r\n"),
        ("COMMAND GETKEYS NOPE", "-ERR Invalid command specified\r\n"),
        ("COMMAND GETKEYS PING", "-ERR The command has no key arguments\r\n"),
        ("COMMAND GETKEYS GET", "-ERR Invalid number of arguments specified for command\r\n"),
        ("COMMAND LIST FILTERBY PATTERN m?et", "*2\r\n$4\r\nmget\r\n$4\r\nmset\r\n"),
    ]);
    assert_eq!(
        client.ask("COMMAND DOCS get"),
        "*2\r\n$3\r\nget\r\n*6\r\n$7\r\nsummary\r\n$27\r\nReturns the value of a key.\r\n\
         $5\r\nsince\r\n$5\r\n1.0.0\r\n$5\r\ngroup\r\n$6\r\nstring\r\n"
    );
    client.ask("HELLO 3");
    assert!(client.ask("COMMAND INFO get").contains("~2\r\n+readonly\r\n"));
    assert!(client.ask("COMMAND DOCS").starts_with('%'));
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

//! Commands that touch no data: connection, CLIENT, CONFIG, TIME, WAIT.

use super::session::{Client, name_of_row};
use super::table::Id;
use super::{Commands, Host, REDIS_VERSION, errors};
use bytes::Bytes;
use core::fmt::Write;
use gabion_base::number::{parse_i64, parse_u64};
use gabion_resp::{Protocol, Reply, glob_match};

impl Commands {
    pub(crate) fn answer_plainly(
        &self,
        client: &Client,
        args: &[Bytes],
        id: Id,
        host: &impl Host,
    ) -> Reply {
        match id {
            Id::Ping => match args {
                [_] => Reply::simple("PONG"),
                [_, text] => Reply::Bulk(text.clone()),
                _ => errors::arity("ping"),
            },
            Id::Echo => Reply::Bulk(args[1].clone()),
            Id::Hello => hello(client, &args[1..], host.is_head()).unwrap_or_else(|error| error),
            Id::Auth if args.len() > 3 => errors::SYNTAX,
            Id::Auth => errors::NO_PASSWORD,
            Id::Client => self.client(client, args, host).unwrap_or_else(|error| error),
            Id::Select => select(&args[1]),
            Id::Wait => wait(args, host).unwrap_or_else(|error| error),
            Id::Config => self.config(args, host),
            Id::Info => self.info(&args[1..], host),
            Id::Command => super::describe::command(args),
            Id::Time => time(host.system_time_us()),
            _ => errors::unknown_command(args),
        }
    }

    fn client(&self, client: &Client, args: &[Bytes], host: &impl Host) -> Result<Reply, Reply> {
        let sub = args[1].to_ascii_lowercase();
        let now = host.unix_time_us();
        match (&sub[..], &args[2..]) {
            (b"id", []) => Ok(Reply::Integer(client.id as i64)),
            (b"getname", []) => {
                let name = client.name.borrow().clone();
                Ok(if name.is_empty() { Reply::Null } else { Reply::Bulk(name) })
            }
            (b"setname", [name]) => set_name(client, name),
            (b"setinfo", [option, value]) => set_info(client, option, value),
            (b"info", []) => {
                let mut text = String::new();
                describe(client, now, &mut text);
                Ok(Reply::Verbatim(*b"txt", Bytes::from(text)))
            }
            (b"list", filters) => self.client_list(filters, now),
            (b"no-evict", [switch]) => {
                client.no_evict.set(parse_switch(switch)?);
                Ok(Reply::OK)
            }
            // Nothing here is evicted by its use, so there is nothing to leave untouched.
            (b"no-touch", [switch]) => parse_switch(switch).map(|_| Reply::OK),
            (b"help", []) => Ok(errors::help(
                "CLIENT",
                &["GETNAME", "ID", "INFO", "LIST", "NO-EVICT", "NO-TOUCH", "SETINFO", "SETNAME"],
            )),
            // Not what came here: it was checked.
            _ => Err(errors::unknown_subcommand("client", &args[1])),
        }
    }

    fn client_list(&self, filters: &[Bytes], now: u64) -> Result<Reply, Reply> {
        let mut wanted: Option<Vec<u64>> = None;
        match filters {
            [] => {}
            [word, kind] if word.eq_ignore_ascii_case(b"type") => {
                match &kind.to_ascii_lowercase()[..] {
                    b"normal" => {}
                    b"master" | b"replica" | b"slave" | b"pubsub" => wanted = Some(Vec::new()),
                    _ => {
                        let kind = errors::shown(kind);
                        return Err(Reply::error_from(format!("ERR Unknown client type '{kind}'")));
                    }
                }
            }
            [word, ids @ ..] if word.eq_ignore_ascii_case(b"id") && !ids.is_empty() => {
                let ids: Option<Vec<u64>> = ids.iter().map(|id| parse_u64(id)).collect();
                wanted = Some(ids.ok_or(Reply::error("ERR Invalid client ID"))?);
            }
            _ => return Err(errors::SYNTAX),
        }
        let mut text = String::new();
        for client in self.clients.borrow().values() {
            if wanted.as_ref().is_none_or(|wanted| wanted.contains(&client.id)) {
                describe(client, now, &mut text);
            }
        }
        Ok(Reply::Verbatim(*b"txt", Bytes::from(text)))
    }

    fn config(&self, args: &[Bytes], host: &impl Host) -> Reply {
        let sub = args[1].to_ascii_lowercase();
        match (&sub[..], &args[2..]) {
            (b"get", patterns) => {
                let patterns: Vec<_> = patterns.iter().map(|p| p.to_ascii_lowercase()).collect();
                let is_asked = |name: &str| patterns.iter().any(|p| glob_match(p, name.as_bytes()));
                let mut options = host.options();
                options.sort_unstable();
                options.retain(|(name, _)| is_asked(name));
                let bulk = |text: String| Reply::Bulk(Bytes::from(text));
                Reply::Map(options.into_iter().map(|(name, v)| (bulk(name), bulk(v))).collect())
            }
            (b"resetstat", []) => {
                self.stats.reset();
                Reply::OK
            }
            (b"set", _) => {
                let (pairs, rest) = args[2..].as_chunks();
                let pairs: Vec<_> =
                    pairs.iter().cloned().map(|[name, value]| (name, value)).collect();
                match rest {
                    [] => host.set_options(&pairs).map_or_else(errors::not_set, |()| Reply::OK),
                    _ => errors::SYNTAX,
                }
            }
            (b"help", []) => errors::help("CONFIG", &["GET", "RESETSTAT", "SET"]),
            (b"rewrite", []) => Reply::error("ERR The server is running without a config file"),
            // Not what came here: it was checked.
            _ => errors::unknown_subcommand("config", &args[1]),
        }
    }
}

/// `HELLO [version [AUTH user password] [SETNAME name]]`.
fn hello(client: &Client, words: &[Bytes], is_head: bool) -> Result<Reply, Reply> {
    let mut protocol = client.protocol.get();
    let mut name = None;
    let mut rest = words;
    if let [version, options @ ..] = words {
        let version = parse_i64(version)
            .ok_or(Reply::error("ERR Protocol version is not an integer or out of range"))?;
        protocol = match version {
            2 => Protocol::Resp2,
            3 => Protocol::Resp3,
            _ => return Err(Reply::error("NOPROTO unsupported protocol version")),
        };
        rest = options;
    }
    loop {
        match rest {
            [] => break,
            [word, _, _, ..] if word.eq_ignore_ascii_case(b"auth") => {
                return Err(errors::NO_PASSWORD);
            }
            [word, given, more @ ..] if word.eq_ignore_ascii_case(b"setname") => {
                check_name(given)?;
                name = Some(given);
                rest = more;
            }
            [word, ..] => {
                let word = errors::shown(word);
                let text = format!("ERR Syntax error in HELLO option '{word}'");
                return Err(Reply::error_from(text));
            }
        }
    }
    if let Some(name) = name {
        client.name.replace(Bytes::copy_from_slice(name));
    }
    client.protocol.set(protocol);
    let version = if protocol == Protocol::Resp3 { 3 } else { 2 };
    Ok(Reply::Map(vec![
        (Reply::bulk("server"), Reply::bulk("redis")),
        (Reply::bulk("version"), Reply::bulk(REDIS_VERSION)),
        (Reply::bulk("proto"), Reply::Integer(version)),
        (Reply::bulk("id"), Reply::Integer(client.id as i64)),
        (Reply::bulk("mode"), Reply::bulk("standalone")),
        // As in Redis, whose INFO says `slave` of the same node.
        (Reply::bulk("role"), Reply::bulk(if is_head { "master" } else { "replica" })),
        (Reply::bulk("modules"), Reply::Array(Vec::new())),
    ]))
}

/// What may stand in CLIENT LIST without breaking its lines.
fn is_plain(text: &[u8]) -> bool {
    text.iter().all(u8::is_ascii_graphic)
}

/// Longest name or library name of a client; Redis has no limit.
const CLIENT_TEXT_LEN_MAX: usize = 1024;

fn check_client_text(text: &[u8]) -> Result<(), Reply> {
    if text.len() <= CLIENT_TEXT_LEN_MAX {
        return Ok(());
    }
    Err(Reply::error_from(format!(
        "ERR {} bytes are over the limit of {CLIENT_TEXT_LEN_MAX} for names of clients",
        text.len()
    )))
}

fn check_name(name: &[u8]) -> Result<(), Reply> {
    check_client_text(name)?;
    if is_plain(name) {
        return Ok(());
    }
    Err(Reply::error("ERR Client names cannot contain spaces, newlines or special characters."))
}

fn set_name(client: &Client, name: &Bytes) -> Result<Reply, Reply> {
    check_name(name)?;
    // A copy: a view would keep the whole read buffer in memory as long as the connection lives.
    client.name.replace(Bytes::copy_from_slice(name));
    Ok(Reply::OK)
}

fn set_info(client: &Client, option: &[u8], value: &Bytes) -> Result<Reply, Reply> {
    let (option, field) = if option.eq_ignore_ascii_case(b"lib-name") {
        ("lib-name", &client.library_name)
    } else if option.eq_ignore_ascii_case(b"lib-ver") {
        ("lib-ver", &client.library_version)
    } else {
        let option = errors::shown(option);
        return Err(Reply::error_from(format!("ERR Unrecognized option '{option}'")));
    };
    check_client_text(value)?;
    if !is_plain(value) {
        return Err(Reply::error_from(format!(
            "ERR {option} cannot contain spaces, newlines or special characters."
        )));
    }
    field.replace(Bytes::copy_from_slice(value));
    Ok(Reply::OK)
}

fn parse_switch(word: &[u8]) -> Result<bool, Reply> {
    match &word.to_ascii_lowercase()[..] {
        b"on" => Ok(true),
        b"off" => Ok(false),
        _ => Err(errors::SYNTAX),
    }
}

/// A line of CLIENT LIST. Buffers are the server's and not counted here.
fn describe(client: &Client, now: u64, out: &mut String) {
    let seconds_since = |then: u64| now.saturating_sub(then) / 1_000_000;
    let text =
        |field: &core::cell::RefCell<Bytes>| String::from_utf8_lossy(&field.borrow()).into_owned();
    let flags = match (client.queued.get() >= 0, client.no_evict.get()) {
        (false, false) => "N",
        (true, false) => "x",
        (false, true) => "e",
        (true, true) => "xe",
    };
    // Writing to a String cannot fail.
    let _ = writeln!(
        out,
        "id={} addr={} laddr={} name={} age={} idle={} flags={flags} db=0 sub=0 psub=0 ssub=0 \
         multi={} cmd={} user=default lib-name={} lib-ver={} resp={}",
        client.id,
        client.address,
        client.local_address,
        text(&client.name),
        seconds_since(client.connected_us),
        seconds_since(client.active_us.get()),
        client.queued.get(),
        name_of_row(client.last_row.get()),
        text(&client.library_name),
        text(&client.library_version),
        if client.protocol.get() == Protocol::Resp3 { 3 } else { 2 },
    );
}

fn select(index: &[u8]) -> Reply {
    match parse_i64(index) {
        None => errors::NOT_AN_INTEGER,
        Some(0) => Reply::OK,
        Some(_) => Reply::error("ERR DB index is out of range"),
    }
}

fn wait(args: &[Bytes], host: &impl Host) -> Result<Reply, Reply> {
    parse_i64(&args[1]).ok_or(errors::NOT_AN_INTEGER)?;
    let timeout =
        parse_i64(&args[2]).ok_or(Reply::error("ERR timeout is not an integer or out of range"))?;
    if timeout < 0 {
        return Err(Reply::error("ERR timeout is negative"));
    }
    Ok(Reply::Integer(i64::from(host.replicas().saturating_sub(1))))
}

fn time(now_us: u64) -> Reply {
    let bulk = |number: u64| Reply::Bulk(Bytes::from(number.to_string()));
    Reply::Array(vec![bulk(now_us / 1_000_000), bulk(now_us % 1_000_000)])
}

//! Commands that touch no data: where each is answered; and HELLO, ROLE, TIME, WAIT and WAITAOF.

use super::session::{Client, WaitFor};
use super::table::Id;
use super::work::Call;
use super::{Commands, Host, REDIS_VERSION, absent, clients, describe, errors, subcommands};
use bytes::Bytes;
use gabion_base::number::{parse_i64, parse_u64};
use gabion_resp::{Protocol, Reply};

impl Commands {
    pub(crate) fn answer_plainly(&self, client: &Client, call: &Call, host: &impl Host) -> Reply {
        let (args, spec) = (call.args(), call.spec());
        let is_help = args.len() == 2 && args[1].eq_ignore_ascii_case(b"help");
        match spec.id {
            Id::Ping => match args {
                [_] => Reply::simple("PONG"),
                [_, text] => Reply::Bulk(text.clone()),
                _ => errors::arity("ping"),
            },
            Id::Script => self.scripts.answer(args),
            Id::Echo => Reply::Bulk(args[1].clone()),
            Id::Hello => self.hello(client, &args[1..], host).unwrap_or_else(|error| error),
            Id::Auth => self.auth(client, args, host),
            Id::Select => absent::select(&args[1]),
            Id::Wait => wait(args, host).unwrap_or_else(|error| error),
            Id::WaitAof => wait_aof(args, host).unwrap_or_else(|error| error),
            Id::Time => time(host.system_time_us()),
            Id::Info => self.info(&args[1..], host),
            Id::ClusterMode => self.cluster_mode(),
            Id::Cluster => self.cluster(client, args, host),
            id if is_help && subcommands::is_container(id) => subcommands::help(id),
            Id::Client => self.client(client, args, host).unwrap_or_else(|error| error),
            Id::Config => self.config(args, host),
            Id::Command => describe::command(args),
            Id::Slowlog => self.slowlog(args),
            Id::Acl => self.acl(client, args, host),
            _ => answer_rarely(call, host),
        }
    }

    /// `HELLO [version [AUTH user password] [SETNAME name]]`.
    fn hello(&self, client: &Client, words: &[Bytes], host: &impl Host) -> Result<Reply, Reply> {
        let mut protocol = client.protocol.get();
        let mut name = None;
        let mut login = None;
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
                [word, user, password, more @ ..] if word.eq_ignore_ascii_case(b"auth") => {
                    login = Some((user, password));
                    rest = more;
                }
                [word, given, more @ ..] if word.eq_ignore_ascii_case(b"setname") => {
                    clients::check_name(given)?;
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
        match login {
            Some((user, password)) => self.authenticate(client, user, password, host)?,
            None => self.check_hello(client)?,
        }
        if let Some(name) = name {
            client.name.replace(Bytes::copy_from_slice(name));
        }
        client.protocol.set(protocol);
        let mode = if self.is_cluster() { "cluster" } else { "standalone" };
        let version = if protocol == Protocol::Resp3 { 3 } else { 2 };
        Ok(Reply::Map(vec![
            (Reply::bulk("server"), Reply::bulk("redis")),
            (Reply::bulk("version"), Reply::bulk(REDIS_VERSION)),
            (Reply::bulk("proto"), Reply::Integer(version)),
            (Reply::bulk("id"), Reply::Integer(client.id as i64)),
            (Reply::bulk("mode"), Reply::bulk(mode)),
            // As in Redis, whose INFO says `slave` of the same node.
            (Reply::bulk("role"), Reply::bulk(if host.is_head() { "master" } else { "replica" })),
            (Reply::bulk("modules"), Reply::Array(Vec::new())),
        ]))
    }
}

/// Commands that nobody is in a hurry for.
fn answer_rarely(call: &Call, host: &impl Host) -> Reply {
    let args = call.args();
    match call.spec().id {
        Id::Function => absent::function(args),
        Id::Latency => absent::latency(args),
        Id::Module => absent::module(args),
        Id::Role => role(host),
        Id::LastSave => {
            let started_s = (host.unix_time_us() / 1_000_000).saturating_sub(host.info().uptime_s);
            Reply::Integer(started_s as i64)
        }
        Id::Fcall => fcall(args),
        Id::Move => absent::move_key(&args[2]),
        Id::SwapDb => absent::swap(&args[1], &args[2]),
        Id::ReplicaOf => absent::replica_of(args, host),
        Id::Refused => absent::refused(call.spec()),
        _ => errors::unknown_command(args),
    }
}

/// The wait of a WAIT or WAITAOF; none if its reply is known: an error, or enough replicas.
pub(crate) fn wait_for(call: &Call, host: &impl Host) -> Option<WaitFor> {
    let (args, is_aof) = (call.args(), call.spec().id == Id::WaitAof);
    let checked = if is_aof { wait_aof(args, host) } else { wait(args, host) };
    checked.ok()?;
    let number = |at: usize| args.get(at).and_then(|word| parse_u64(word));
    let (local, at) = if is_aof { (number(1)?, 2) } else { (0, 1) };
    let replicas = number(at).unwrap_or(0);
    let others = u64::from(host.replicas().saturating_sub(1));
    let is_known = !is_aof || host.acknowledges_durable();
    if is_known && replicas <= others {
        return None;
    }
    Some(WaitFor { is_aof, local, replicas, timeout_ms: number(at + 1)? })
}

fn wait(args: &[Bytes], host: &impl Host) -> Result<Reply, Reply> {
    parse_i64(&args[1]).ok_or(errors::NOT_AN_INTEGER)?;
    check_timeout(&args[2])?;
    Ok(Reply::Integer(i64::from(host.replicas().saturating_sub(1))))
}

fn check_timeout(timeout: &[u8]) -> Result<(), Reply> {
    match parse_i64(timeout) {
        None => Err(Reply::error("ERR timeout is not an integer or out of range")),
        Some(..0) => Err(Reply::error("ERR timeout is negative")),
        Some(_) => Ok(()),
    }
}

/// `WAITAOF local replicas timeout`: which devices hold the connection's writes, as Redis's append-only files would.
fn wait_aof(args: &[Bytes], host: &impl Host) -> Result<Reply, Reply> {
    if parse_u64(&args[1]).is_none_or(|local| local > 1) {
        return Err(match parse_i64(&args[1]) {
            None => errors::NOT_AN_INTEGER,
            Some(_) => Reply::error("ERR value is out of range, value must between 0 and 1"),
        });
    }
    if parse_u64(&args[2]).is_none_or(|replicas| i64::try_from(replicas).is_err()) {
        return Err(errors::NEGATIVE);
    }
    check_timeout(&args[3])?;
    let counts = match host.acknowledges_durable() {
        true => [1, i64::from(host.replicas().saturating_sub(1))],
        false => [0, 0],
    };
    Ok(Reply::Array(counts.map(Reply::Integer).into()))
}

/// `FCALL function count key... arg...`: there are no functions.
fn fcall(args: &[Bytes]) -> Reply {
    match parse_i64(&args[2]) {
        None => Reply::error("ERR Bad number of keys provided"),
        Some(..0) => Reply::error("ERR Number of keys can't be negative"),
        Some(count) if count as u64 > args.len() as u64 - 3 => {
            Reply::error("ERR Number of keys can't be greater than number of args")
        }
        Some(_) => absent::NO_FUNCTION,
    }
}

/// ROLE: positions are those of the log.
fn role(host: &impl Host) -> Reply {
    let info = host.info();
    let bulk = |text: String| Reply::Bulk(Bytes::from(text));
    let position = Reply::Integer(info.log_position as i64);
    if host.is_head() {
        let replicas = info.replicas.iter().map(|replica| {
            let (ip, port) = (replica.address.ip(), replica.address.port());
            let words = [ip.to_string(), port.to_string(), replica.log_position.to_string()];
            Reply::Array(words.map(bulk).into())
        });
        return Reply::Array(vec![
            Reply::bulk("master"),
            position,
            Reply::Array(replicas.collect()),
        ]);
    }
    let (ip, port, is_up) = match &info.head {
        Some(head) => (head.address.ip().to_string(), head.address.port(), head.is_up),
        None => (String::new(), 0, false),
    };
    Reply::Array(vec![
        Reply::bulk("slave"),
        bulk(ip),
        Reply::Integer(i64::from(port)),
        Reply::bulk(if is_up { "connected" } else { "connect" }),
        position,
    ])
}

fn time(now_us: u64) -> Reply {
    let bulk = |number: u64| Reply::Bulk(Bytes::from(number.to_string()));
    Reply::Array(vec![bulk(now_us / 1_000_000), bulk(now_us % 1_000_000)])
}

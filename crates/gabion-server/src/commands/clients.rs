//! CLIENT: what is known of connections, and what is set or done to them.

use super::session::{Client, ReplyMode};
use super::{Commands, Host, KilledList, errors, subcommands};
use bytes::Bytes;
use core::fmt::Write;
use core::slice;
use gabion_base::number::{parse_i64, parse_u64};
use gabion_resp::{Protocol, Reply};
use std::rc::Rc;

const NO_PAUSE: Reply = Reply::error(
    "ERR CLIENT PAUSE is not supported: the clients of other nodes would go on reading and writing",
);
const NO_TRACKING: Reply =
    Reply::error("ERR CLIENT TRACKING ON is not supported: there are no invalidation messages");
const NO_CACHING: Reply = Reply::error(
    "ERR CLIENT CACHING can be called only when the client is in tracking mode with OPTIN or OPTOUT mode enabled",
);

/// A connection that is to be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Killed {
    pub(crate) id: u64,
    /// Its replies are sent before: it has killed itself.
    pub(crate) after_replies: bool,
}

impl Commands {
    /// Whether connections are to be closed.
    #[inline]
    pub(crate) fn has_killed(&self) -> bool {
        !self.killed.borrow().is_empty()
    }

    /// Connections that CLIENT KILL named since the last call, here or at another group's door.
    pub(crate) fn take_killed(&self) -> Vec<Killed> {
        self.close_revoked();
        self.killed.take()
    }

    pub(crate) fn client(
        &self,
        client: &Client,
        args: &[Bytes],
        host: &impl Host,
    ) -> Result<Reply, Reply> {
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
                client.describe(now, Some(args), &mut text);
                Ok(Reply::Verbatim(*b"txt", Bytes::from(text)))
            }
            (b"list", filters) => self.list(client, args, filters, now),
            (b"kill", [address]) => self.kill_address(client, address),
            (b"kill", options) => {
                let filter = KillFilter::parse(options)?;
                if let Some(user) = filter.user.filter(|user| self.users.get(user).is_none()) {
                    let user = errors::shown(user);
                    return Err(Reply::error_from(format!("ERR No such user '{user}'")));
                }
                self.kill(client, &filter, now)
            }
            (b"reply", [mode]) => set_reply(client, mode),
            (b"no-evict", [switch]) => {
                client.no_evict.set(parse_switch(switch)?);
                Ok(Reply::OK)
            }
            (b"no-touch", [switch]) => {
                client.no_touch.set(parse_switch(switch)?);
                Ok(Reply::OK)
            }
            (b"tracking", [switch, options @ ..]) => match parse_switch(switch)? {
                true => Err(NO_TRACKING),
                false if options.is_empty() => Ok(Reply::OK),
                false => Err(errors::SYNTAX),
            },
            (b"caching", [word]) => match &word.to_ascii_lowercase()[..] {
                b"yes" | b"no" => Err(NO_CACHING),
                _ => Err(errors::SYNTAX),
            },
            (b"getredir", []) => Ok(Reply::Integer(-1)),
            (b"trackinginfo", []) => Ok(tracking_info()),
            (b"pause", [timeout, mode @ ..]) => Err(no_pause(timeout, mode)),
            (b"unpause", []) => Ok(Reply::OK),
            (b"unblock", [id, reason @ ..]) => unblock(id, reason),
            _ => Err(errors::subcommand_syntax("client", &args[1])),
        }
    }

    fn list(
        &self,
        me: &Client,
        args: &[Bytes],
        filters: &[Bytes],
        now: u64,
    ) -> Result<Reply, Reply> {
        let mut wanted: Option<Vec<u64>> = None;
        match filters {
            [] => {}
            [word, kind] if word.eq_ignore_ascii_case(b"type") => {
                if !is_normal(kind)? {
                    wanted = Some(Vec::new());
                }
            }
            [word, ids @ ..] if word.eq_ignore_ascii_case(b"id") && !ids.is_empty() => {
                let ids: Option<Vec<u64>> = ids.iter().map(|id| parse_u64(id)).collect();
                wanted = Some(ids.ok_or(Reply::error("ERR Invalid client ID"))?);
            }
            _ => return Err(errors::SYNTAX),
        }
        let mut text = String::new();
        for (client, _) in self.seen_by(me) {
            if !client.is_killed.get()
                && wanted.as_ref().is_none_or(|wanted| wanted.contains(&client.id))
            {
                let running = (client.id == me.id).then_some(args);
                client.describe(now, running, &mut text);
            }
        }
        Ok(Reply::Verbatim(*b"txt", Bytes::from(text)))
    }

    /// The connections that one at a door is told of, in the order of ids, and where those are
    /// named that are to be closed. A group's own door tells of those of its group, as nodes of a
    /// cluster do, and a common door of all.
    fn seen_by(&self, me: &Client) -> Vec<(Rc<Client>, KilledList)> {
        let groups = self.everywhere.groups.borrow();
        let own = (self.clients.clone(), self.killed.clone());
        let groups = match me.is_of_group.get() || groups.is_empty() {
            true => slice::from_ref(&own),
            false => &groups[..],
        };
        let mut seen = Vec::new();
        for (clients, killed) in groups {
            seen.extend(clients.borrow().values().map(|client| (client.clone(), killed.clone())));
        }
        seen.sort_unstable_by_key(|(client, _)| client.id);
        seen
    }

    /// The old form: one connection by its address, which may be the client's own.
    fn kill_address(&self, me: &Client, address: &[u8]) -> Result<Reply, Reply> {
        let filter =
            KillFilter { address: Some(address), skips_me: false, ..KillFilter::default() };
        match self.kill(me, &filter, 0)? {
            Reply::Integer(0) => Err(Reply::error("ERR No such client")),
            _ => Ok(Reply::OK),
        }
    }

    fn kill(&self, me: &Client, filter: &KillFilter<'_>, now: u64) -> Result<Reply, Reply> {
        let mut count = 0;
        for (client, killed) in self.seen_by(me) {
            if filter.means(&client, me, now) {
                client.is_killed.set(true);
                let after_replies = client.id == me.id;
                killed.borrow_mut().push(Killed { id: client.id, after_replies });
                count += 1;
            }
        }
        Ok(Reply::Integer(count))
    }
}

/// Which connections CLIENT KILL means: those to which all of it applies.
#[derive(Default)]
struct KillFilter<'a> {
    id: Option<u64>,
    address: Option<&'a [u8]>,
    local_address: Option<&'a [u8]>,
    user: Option<&'a [u8]>,
    /// Connections of a kind that there is not.
    is_nobody: bool,
    age_min_s: u64,
    skips_me: bool,
}

impl<'a> KillFilter<'a> {
    fn parse(options: &'a [Bytes]) -> Result<Self, Reply> {
        let mut filter = Self { skips_me: true, ..Self::default() };
        let (pairs, rest) = options.as_chunks();
        for [option, value] in pairs {
            match &option.to_ascii_lowercase()[..] {
                b"id" => {
                    let id = parse_u64(value).filter(|id| *id > 0);
                    filter.id =
                        Some(id.ok_or(Reply::error("ERR client-id should be greater than 0"))?);
                }
                b"addr" => filter.address = Some(value),
                b"laddr" => filter.local_address = Some(value),
                b"type" => filter.is_nobody |= !is_normal(value)?,
                b"user" => filter.user = Some(value),
                b"maxage" => filter.age_min_s = parse_age(value)?,
                b"skipme" => filter.skips_me = parse_yes(value)?,
                _ => return Err(errors::SYNTAX),
            }
        }
        if rest.is_empty() { Ok(filter) } else { Err(errors::SYNTAX) }
    }

    fn means(&self, client: &Client, me: &Client, now: u64) -> bool {
        let is = |wanted: Option<&[u8]>, text: &str| wanted.is_none_or(|w| w == text.as_bytes());
        // Who was killed is as good as gone, and is not counted again.
        !self.is_nobody
            && !client.is_killed.get()
            && self.id.is_none_or(|id| id == client.id)
            && is(self.address, &client.address)
            && is(self.local_address, &client.local_address)
            && self.user.is_none_or(|user| user == &client.user.borrow().name[..])
            && (self.age_min_s == 0 || client.age_s(now) >= self.age_min_s)
            && !(self.skips_me && client.id == me.id)
    }
}

fn parse_age(value: &[u8]) -> Result<u64, Reply> {
    let age =
        parse_i64(value).ok_or(Reply::error("ERR maxage is not an integer or out of range"))?;
    match u64::try_from(age) {
        Ok(age @ 1..) => Ok(age),
        _ => Err(Reply::error("ERR maxage should be greater than 0")),
    }
}

fn parse_yes(word: &[u8]) -> Result<bool, Reply> {
    match &word.to_ascii_lowercase()[..] {
        b"yes" => Ok(true),
        b"no" => Ok(false),
        _ => Err(errors::SYNTAX),
    }
}

/// Whether a kind of connections is the one that there is.
fn is_normal(kind: &[u8]) -> Result<bool, Reply> {
    match &kind.to_ascii_lowercase()[..] {
        b"normal" => Ok(true),
        b"master" | b"replica" | b"slave" | b"pubsub" => Ok(false),
        _ => {
            let kind = errors::shown(kind);
            Err(Reply::error_from(format!("ERR Unknown client type '{kind}'")))
        }
    }
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

/// Whether a client may have this name.
pub(crate) fn check_name(name: &[u8]) -> Result<(), Reply> {
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
    let given = errors::shown(option);
    let field = if option.eq_ignore_ascii_case(b"lib-name") {
        &client.library_name
    } else if option.eq_ignore_ascii_case(b"lib-ver") {
        &client.library_version
    } else {
        return Err(Reply::error_from(format!("ERR Unrecognized option '{given}'")));
    };
    check_client_text(value)?;
    if !is_plain(value) {
        return Err(Reply::error_from(format!(
            "ERR {given} cannot contain spaces, newlines or special characters."
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

/// Only ON is answered: the others are about replies.
fn set_reply(client: &Client, mode: &[u8]) -> Result<Reply, Reply> {
    let mode = match &mode.to_ascii_lowercase()[..] {
        b"on" => ReplyMode::On,
        b"off" => ReplyMode::Off,
        // What is off stays off.
        b"skip" if client.reply_mode.get() == ReplyMode::Off => ReplyMode::Off,
        b"skip" => ReplyMode::SkipsNext,
        _ => return Err(errors::SYNTAX),
    };
    client.reply_mode.set(mode);
    client.is_muted.set(mode != ReplyMode::On);
    Ok(Reply::OK)
}

fn tracking_info() -> Reply {
    Reply::Map(vec![
        (Reply::bulk("flags"), Reply::Set(vec![Reply::bulk("off")])),
        (Reply::bulk("redirect"), Reply::Integer(-1)),
        (Reply::bulk("prefixes"), Reply::Array(Vec::new())),
    ])
}

fn no_pause(timeout: &[u8], mode: &[Bytes]) -> Reply {
    let is_mode =
        |mode: &Bytes| mode.eq_ignore_ascii_case(b"write") || mode.eq_ignore_ascii_case(b"all");
    match (parse_i64(timeout), mode) {
        (None, _) => Reply::error("ERR timeout is not an integer or out of range"),
        (Some(..0), _) => Reply::error("ERR timeout is negative"),
        (_, []) => NO_PAUSE,
        (_, [mode]) if is_mode(mode) => NO_PAUSE,
        (_, [_]) => Reply::error("ERR CLIENT PAUSE mode must be WRITE or ALL"),
        _ => errors::subcommand_syntax("client", b"pause"),
    }
}

/// No command blocks its connection for long.
fn unblock(id: &[u8], reason: &[Bytes]) -> Result<Reply, Reply> {
    match reason {
        [] => {}
        [word] if word.eq_ignore_ascii_case(b"timeout") || word.eq_ignore_ascii_case(b"error") => {}
        [_] => return Err(Reply::error("ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR")),
        _ => return Err(errors::subcommand_syntax("client", b"unblock")),
    }
    parse_i64(id).ok_or(errors::NOT_AN_INTEGER)?;
    Ok(Reply::Integer(0))
}

impl Client {
    fn age_s(&self, now: u64) -> u64 {
        now.saturating_sub(self.connected_us) / 1_000_000
    }

    fn flags(&self) -> String {
        let flags = [
            ('x', self.queued.get() >= 0),
            ('c', self.is_killed.get()),
            ('e', self.no_evict.get()),
            ('T', self.no_touch.get()),
        ];
        let flags: String = flags.into_iter().filter(|(_, is)| *is).map(|(flag, _)| flag).collect();
        if flags.is_empty() { "N".to_owned() } else { flags }
    }

    /// A line of CLIENT LIST. `running` are the words of the command that this connection waits for. Its input is counted
    /// while a command runs: what has come of the next one is not known here. `watch` stands last, so that the fields
    /// that Redis 7.0 has follow each other as there.
    /// As CLIENT INFO shows it.
    pub(crate) fn line(&self, now: u64) -> String {
        let mut line = String::new();
        self.describe(now, None, &mut line);
        line
    }

    fn describe(&self, now: u64, running: Option<&[Bytes]>, out: &mut String) {
        let text = |field: &core::cell::RefCell<Bytes>| {
            String::from_utf8_lossy(&field.borrow()).into_owned()
        };
        let words = running.unwrap_or_default();
        let argv: usize = words.iter().map(|word| word.len()).sum();
        let query = if words.is_empty() { 0 } else { request_len(words) };
        let (queued, output) = (self.queued_bytes.get(), self.output_bytes.get());
        // Writing to a String cannot fail.
        let _ = writeln!(
            out,
            "id={} addr={} laddr={} fd={} name={} age={} idle={} flags={} db=0 sub=0 psub=0 ssub=0 multi={} qbuf={query} \
             qbuf-free=0 argv-mem={argv} multi-mem={queued} rbs=0 rbp=0 obl=0 oll=0 omem={output} tot-mem={} events={} \
             cmd={} user={} redir=-1 resp={} lib-name={} lib-ver={} watch={}",
            self.id,
            self.address,
            self.local_address,
            self.descriptor.get(),
            text(&self.name),
            self.age_s(now),
            now.saturating_sub(self.active_us.get()) / 1_000_000,
            self.flags(),
            self.queued.get(),
            size_of::<Self>() + query + argv + queued + output,
            if output > 0 { "rw" } else { "r" },
            self.last_command.get().map_or("NULL", subcommands::name_of),
            String::from_utf8_lossy(&self.user.borrow().name),
            if self.protocol.get() == Protocol::Resp3 { 3 } else { 2 },
            text(&self.library_name),
            text(&self.library_version),
            self.watched.get(),
        );
    }
}

/// Bytes of a request on the wire.
fn request_len(words: &[Bytes]) -> usize {
    let digits = |number: usize| number.checked_ilog10().unwrap_or(0) as usize + 1;
    let word_len = |word: &Bytes| 1 + digits(word.len()) + 2 + word.len() + 2;
    1 + digits(words.len()) + 2 + words.iter().map(word_len).sum::<usize>()
}

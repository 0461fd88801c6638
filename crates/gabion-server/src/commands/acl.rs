//! ACL and AUTH: who a connection is, and what it may do; and the categories of commands.
//!
//! ```text
//!   request ─► Call ─► is its user free? ─► yes: nothing is asked
//!                              │ no
//!                              ▼
//!                       rules: command, keys ─► NOAUTH, NOPERM, or on its way
//! ```
//!
//! - [`rules`]: the rules of a user. - [`log`]: ACL LOG.
//! - [`users`]: all users, their passwords and their file.
//!
//! The node of its client alone checks a request. A script takes the rights of its user with it to
//! where it runs, as its commands are known there.

pub(crate) mod log;
pub(crate) mod rules;
pub(crate) mod users;

use super::describe::{Entry, find, served_with_subcommands};
use super::session::Client;
use super::table::{Id, accepts};
use super::work::Call;
use super::{Commands, Host, errors, subcommands};
use bytes::Bytes;
use gabion_base::number::parse_u64;
use gabion_control::users::{EDITS_MAX, Edit, UserRecord};
use gabion_resp::{Reply, Request};
use log::Context;
use rules::Denied;
use std::collections::BTreeSet;
use std::rc::Rc;
use users::{DEFAULT, User};

const NO_AUTH: Reply = Reply::error("NOAUTH Authentication required.");
/// Clients try again upon this word.
const NOT_TOLD: Reply =
    Reply::error("LOADING the controller has yet to tell this replica who its users are");
const NO_AUTH_HELLO: Reply = Reply::error(
    "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO \
     <proto> AUTH <user> <pass> option can be used to authenticate the client and select the RESP \
     protocol version at the same time",
);
/// Bits of a password that GENPASS makes, and most of them.
const PASSWORD_BITS: u64 = 256;
const PASSWORD_BITS_MAX: u64 = 4096;

const WRONG_PASSWORD: Reply =
    Reply::error("WRONGPASS invalid username-password pair or user is disabled.");
const NO_FILE: Reply = Reply::error(
    "ERR This Redis instance is not configured to use an ACL file. You may want to specify users via the ACL SETUSER \
     command and then issue a CONFIG REWRITE (assuming you have a Redis configuration file set) in order to store users \
     in the Redis configuration.",
);

/// Redis's categories, in its order.
const CATEGORIES: [&str; 21] = [
    "keyspace",
    "read",
    "write",
    "set",
    "sortedset",
    "list",
    "hash",
    "string",
    "bitmap",
    "hyperloglog",
    "geo",
    "stream",
    "pubsub",
    "admin",
    "fast",
    "slow",
    "blocking",
    "dangerous",
    "connection",
    "transaction",
    "scripting",
];

/// Dangerous though no flag says so.
const DANGEROUS: [&str; 8] =
    ["flushall", "flushdb", "info", "keys", "lastsave", "restore", "role", "swapdb"];
/// Of connections though they are listed elsewhere.
const CONNECTION: [&str; 3] = ["command", "wait", "waitaof"];
/// Of the keyspace though they are listed as the server's.
const KEYSPACE: [&str; 4] = ["dbsize", "flushall", "flushdb", "swapdb"];

/// The categories of a command, in Redis's order.
pub(crate) fn categories(entry: Entry) -> impl Iterator<Item = &'static str> {
    CATEGORIES.into_iter().filter(move |category| is_in(entry, category))
}

fn is_in(entry: Entry, category: &str) -> bool {
    let (spec, flags) = (entry.spec(), entry.flags());
    let has = |flag: &str| flags.contains(&flag);
    // A container does nothing by itself.
    let is_plain = !subcommands::is_container(spec.id) || matches!(entry, Entry::Subcommand(..));
    let is_scripting = spec.group == "scripting";
    match category {
        "keyspace" => {
            spec.group == "generic" && !CONNECTION.contains(&spec.name)
                || KEYSPACE.contains(&spec.name)
        }
        "read" => has("readonly") && !is_scripting,
        "write" => has("write") && !is_scripting,
        "string" | "bitmap" => spec.group == category,
        "admin" => has("admin") || matches!(spec.name, "lastsave" | "role"),
        "fast" => has("fast"),
        "slow" => !has("fast"),
        "blocking" => has("blocking"),
        "dangerous" => has("admin") || DANGEROUS.contains(&spec.name),
        "connection" => spec.group == "connection" && is_plain || CONNECTION.contains(&spec.name),
        "transaction" => spec.group == "transactions",
        "scripting" => is_scripting && is_plain,
        _ => false,
    }
}

/// The category of this name, which is in lower case.
pub(crate) fn category(name: &[u8]) -> Option<&'static str> {
    CATEGORIES.into_iter().find(|category| category.as_bytes() == name)
}

const NO_REMOVAL: Reply = Reply::error("ERR The 'default' user cannot be removed");
const IN_TRANSACTION: Reply = Reply::error(
    "ERR users are kept by the controller: they are changed outside of transactions and scripts",
);
const REQUIRED: Reply = Reply::error(
    "ERR CONFIG SET failed (possibly related to argument 'requirepass') - the replica was started \
     with --requirepass-file, which counts",
);
const NOT_ALONE: Reply = Reply::error(
    "ERR CONFIG SET failed (possibly related to argument 'requirepass') - the controller keeps it: \
     set it alone",
);
const TOO_MANY: Reply = Reply::error("ERR at most 1000 users are removed at once");

impl Commands {
    /// Whether the user of a connection may send a request. It is asked of those alone who may not
    /// do everything.
    pub(crate) fn check_rights(
        &self,
        client: &Client,
        call: &Call,
        context: Context,
        host: &impl Host,
    ) -> Result<(), Reply> {
        if self.users.is_nobody(&client.user.borrow()) {
            // It came when a password was wanted, which may not be so any more.
            client.user.replace(self.users.of_stranger());
        }
        let user = client.user.borrow().clone();
        if self.users.is_nobody(&user) {
            return match call.spec().id {
                Id::Hello | Id::Auth | Id::Quit | Id::Reset => Ok(()),
                _ => Err(self.to_stranger(NO_AUTH)),
            };
        }
        let Err(denied) = user.check(call) else { return Ok(()) };
        let (reason, object) = match &denied {
            Denied::Command(name) => ("command", name.as_bytes()),
            Denied::Key(key) => ("key", &key[..]),
        };
        self.acl_log.push(reason, context, object, &user.name, client, host);
        Err(Reply::error_from(format!("NOPERM {}", told(&user.name, &denied, false))))
    }

    /// Lets a connection be a user.
    ///
    /// # Errors
    /// That is not the user's password.
    pub(crate) fn authenticate(
        &self,
        client: &Client,
        name: &[u8],
        password: &[u8],
        host: &impl Host,
    ) -> Result<(), Reply> {
        match self.users.authenticate(name, password) {
            Some(user) => {
                client.user.replace(user);
                Ok(())
            }
            None if !self.users.are_known() => Err(NOT_TOLD),
            None => {
                let context =
                    if client.queued.get() < 0 { Context::Toplevel } else { Context::Multi };
                self.acl_log.push("auth", context, b"AUTH", name, client, host);
                Err(WRONG_PASSWORD)
            }
        }
    }

    /// `AUTH [user] password`.
    pub(crate) fn auth(&self, client: &Client, args: &[Bytes], host: &impl Host) -> Reply {
        let outcome = match args {
            [_, _] if self.default_is_open() => return errors::NO_PASSWORD,
            [_, password] => self.authenticate(client, DEFAULT, password, host),
            [_, user, password] => self.authenticate(client, user, password, host),
            _ => Err(errors::SYNTAX),
        };
        outcome.map_or_else(|error| error, |()| Reply::OK)
    }

    fn default_is_open(&self) -> bool {
        let is_open = |user: Rc<User>| user.body().is_without_password;
        self.users.are_known() && self.users.get(DEFAULT).is_some_and(is_open)
    }

    /// Whether a connection has yet to say who it is.
    pub(crate) fn is_stranger(&self, session: &super::Session) -> bool {
        self.users.is_nobody(&session.client.user.borrow())
    }

    /// The reply to a connection that is nobody: this one, once it is known who somebody is.
    fn to_stranger(&self, reply: Reply) -> Reply {
        if self.users.are_known() { reply } else { NOT_TOLD }
    }

    /// HELLO without AUTH is for those who are somebody.
    pub(crate) fn check_hello(&self, client: &Client) -> Result<(), Reply> {
        match self.users.is_nobody(&client.user.borrow()) {
            true => Err(self.to_stranger(NO_AUTH_HELLO)),
            false => Ok(()),
        }
    }

    pub(crate) fn acl(&self, client: &Client, args: &[Bytes], host: &impl Host) -> Reply {
        let sub = args[1].to_ascii_lowercase();
        match (&sub[..], &args[2..]) {
            (b"whoami", []) => Reply::Bulk(client.user.borrow().name.clone()),
            (b"users", []) => {
                let names = self.users.all().into_iter().map(|user| Reply::Bulk(user.name.clone()));
                Reply::Array(names.collect())
            }
            (b"list", []) => {
                let users = self.users.all();
                let lines = users.iter().map(|user| Reply::Bulk(users::line(user).into()));
                Reply::Array(lines.collect())
            }
            (b"getuser", [name]) => {
                self.users.get(name).map_or(Reply::Null, |user| get_user(&user))
            }
            (b"setuser", [name, rules @ ..]) => self.set_user(name, rules),
            (b"deluser", names) => self.delete_users(client, names),
            (b"cat", []) => Reply::Array(CATEGORIES.iter().map(|name| Reply::bulk(name)).collect()),
            (b"cat", [category]) => commands_in(category),
            (b"log", []) => self.acl_log.get(10, host),
            (b"log", [word]) if word.eq_ignore_ascii_case(b"reset") => {
                self.acl_log.reset();
                Reply::OK
            }
            (b"log", [count]) => match parse_u64(count) {
                Some(count) => self.acl_log.get(count as usize, host),
                None => errors::NOT_AN_INTEGER,
            },
            (b"genpass", []) => generate_password(PASSWORD_BITS),
            (b"genpass", [bits]) => match parse_u64(bits) {
                Some(bits @ 1..=PASSWORD_BITS_MAX) => generate_password(bits),
                _ => Reply::error(
                    "ERR ACL GENPASS argument must be the number of bits for the output \
                     password, a positive number up to 4096",
                ),
            },
            (b"dryrun", [user, request @ ..]) => self.dry_run(user, request),
            (b"load", []) if self.users.file().is_some() => match self.load_users(Some(client)) {
                Ok(()) => Reply::OK,
                Err(error) => Reply::error_from(format!(
                    "ERR {error} WARNING: ACL errors detected, no change to the previously active \
                     ACL rules was performed"
                )),
            },
            (b"save", []) if self.users.file().is_some() => match self.users.save() {
                Ok(()) => Reply::OK,
                Err(error) => {
                    note!("ACL SAVE: {error}");
                    Reply::error(
                        "ERR There was an error trying to save the ACLs. Please check the server \
                         logs for more information",
                    )
                }
            },
            (b"load" | b"save", []) => NO_FILE,
            _ => errors::subcommand_syntax("acl", &args[1]),
        }
    }

    fn set_user(&self, name: &Bytes, rules: &[Bytes]) -> Reply {
        if self.users.are_shared() {
            return IN_TRANSACTION;
        }
        let set = rules_of(name, rules).and_then(|rules| {
            self.users.set(name, &rules).map_err(|(rule, why)| wrong_rule(&rule, why))
        });
        set.map_or_else(|error| error, |()| Reply::OK)
    }

    fn delete_users(&self, client: &Client, names: &[Bytes]) -> Reply {
        if self.users.are_shared() {
            return IN_TRANSACTION;
        }
        if names.iter().any(|name| name == DEFAULT) {
            return NO_REMOVAL;
        }
        let gone: Vec<_> = names.iter().filter_map(|name| self.users.remove(name)).collect();
        self.end_connections_of(&gone, &[client.id]);
        Reply::Integer(gone.len() as i64)
    }

    /// Whether a request changes users that the controller keeps.
    pub(crate) fn is_for_controller(&self, args: &[Bytes]) -> bool {
        self.users.are_shared() && wishes(args)
    }

    /// The change that a request wishes for, and its reply once it is made.
    ///
    /// # Errors
    /// The error that the client gets.
    pub(crate) fn edits(&self, args: &[Bytes]) -> Result<(Vec<Edit>, Reply), Reply> {
        let edit = |name: &Bytes, rules: &[Bytes]| {
            let edit = self.users.edit(name, rules);
            let edit = edit.map_err(|(rule, why)| wrong_rule(&rule, why))?;
            Ok((vec![edit], Reply::OK))
        };
        match args {
            [_, sub, name, rules @ ..] if sub.eq_ignore_ascii_case(b"setuser") => {
                edit(name, &rules_of(name, rules)?)
            }
            [_, sub, names @ ..] if sub.eq_ignore_ascii_case(b"deluser") => self.removals(names),
            [_, _, _, password] => {
                if self.users.is_required() {
                    return Err(REQUIRED);
                }
                let rule = match password.is_empty() {
                    true => Bytes::from_static(b"nopass"),
                    false => [b">", &password[..]].concat().into(),
                };
                edit(&Bytes::from_static(DEFAULT), &[Bytes::from_static(b"resetpass"), rule])
            }
            _ => Err(NOT_ALONE),
        }
    }

    fn removals(&self, names: &[Bytes]) -> Result<(Vec<Edit>, Reply), Reply> {
        if names.iter().any(|name| name == DEFAULT) {
            return Err(NO_REMOVAL);
        }
        if names.len() > EDITS_MAX {
            return Err(TOO_MANY);
        }
        let record = self.users.record().unwrap_or_default();
        let names: BTreeSet<&Bytes> = names.iter().collect();
        let edit = |name: &Bytes| {
            let expected = Some(record.get(name)?.to_vec());
            Some(Edit { name: name.to_vec(), expected, rules: None })
        };
        let edits: Vec<Edit> = names.into_iter().filter_map(edit).collect();
        let count = edits.len() as i64;
        Ok((edits, Reply::Integer(count)))
    }

    /// Takes users that the controller told, and closes the connections of those that are gone: of
    /// `askers` after their replies.
    pub(crate) fn adopt_users(&self, record: UserRecord, askers: &[u64]) {
        let gone = self.users.adopt(record);
        self.end_connections_of(&gone, askers);
    }

    /// Reads the file of users again, and closes the connections of those that are gone or changed.
    ///
    /// # Errors
    /// The file cannot be read or has an error; nothing has changed.
    pub(crate) fn load_users(&self, asker: Option<&Client>) -> gabion_base::Result<()> {
        let changed = self.users.load()?;
        self.end_connections_of(&changed, asker.map(|asker| asker.id).as_slice());
        Ok(())
    }

    /// Reads the file of users again if somebody else has changed it. Called once a second.
    pub(crate) fn follow_users(&self) {
        if !self.users.is_file_changed() {
            return;
        }
        match self.load_users(None) {
            Ok(()) => note!("users: the file was read again"),
            Err(error) => {
                self.users.note_file();
                note!("users stay as they were, as the file cannot be used: {error}");
            }
        }
    }

    /// Those of this group, and then those of the others of the process.
    fn end_connections_of(&self, users: &[Rc<User>], askers: &[u64]) {
        // Another group may have told of others since.
        self.close_revoked();
        self.close_connections_of(users, askers);
        self.users.revoke(users);
        self.revoked.take();
    }

    /// Closes the connections of users who were taken away at another group of the process.
    pub(crate) fn close_revoked(&self) {
        if !self.revoked.borrow().is_empty() {
            self.close_connections_of(&self.revoked.take(), &[]);
        }
    }

    fn close_connections_of(&self, users: &[Rc<User>], askers: &[u64]) {
        let clients = self.clients.borrow();
        let is_theirs =
            |client: &&Rc<Client>| users.iter().any(|user| Rc::ptr_eq(user, &client.user.borrow()));
        let mut killed = self.killed.borrow_mut();
        for client in clients.values().filter(is_theirs) {
            client.is_killed.set(true);
            let after_replies = askers.contains(&client.id);
            killed.push(super::clients::Killed { id: client.id, after_replies });
        }
    }

    fn dry_run(&self, name: &[u8], request: &[Bytes]) -> Reply {
        let Some(user) = self.users.get(name) else {
            let user = errors::shown(name);
            return Reply::error_from(format!("ERR User '{user}' not found"));
        };
        let Some(entry) = find(&request[0]) else {
            let name = errors::shown(&request[0]);
            return Reply::error_from(format!("ERR Command '{name}' not found"));
        };
        if !accepts(entry.spec().arity, request.len()) {
            return errors::arity(entry.spec().name);
        }
        let call = Request { args: request.iter().cloned().collect() };
        match Call::new(call).map(|call| user.check(&call)) {
            Err(error) => error,
            Ok(Ok(())) => Reply::OK,
            Ok(Err(denied)) => Reply::Bulk(Bytes::from(told(&user.name, &denied, true))),
        }
    }
}

/// Whether a request changes users.
fn wishes(args: &[Bytes]) -> bool {
    let is = |at: usize, word: &str| {
        args.get(at).is_some_and(|it| it.eq_ignore_ascii_case(word.as_bytes()))
    };
    let is_option = |at: &usize| is(*at, "requirepass");
    (is(0, "acl") && args.len() > 2 && (is(1, "setuser") || is(1, "deluser")))
        || (is(0, "config") && is(1, "set") && (2..args.len()).step_by(2).any(|at| is_option(&at)))
}

/// The rules of SETUSER, those in parentheses joined.
fn rules_of(name: &Bytes, rules: &[Bytes]) -> Result<Vec<Bytes>, Reply> {
    if name.is_empty() || name.iter().any(|byte| byte.is_ascii_whitespace() || *byte == 0) {
        return Err(Reply::error("ERR Usernames can't contain spaces or null characters"));
    }
    users::join_selectors(rules).map_err(|_| {
        let error = "ERR Unmatched parenthesis in acl selector starting at";
        let open = rules.iter().find(|rule| rule.starts_with(b"("));
        let shown = errors::shown(open.map_or(b"", |rule| rule)).into_owned();
        Reply::error_from(format!("{error} '{shown}'."))
    })
}

fn wrong_rule(rule: &[u8], why: &str) -> Reply {
    Reply::error_from(format!("ERR Error in ACL SETUSER modifier '{}': {why}", errors::shown(rule)))
}

/// Reason of a denial, in Redis's words. The key is named only to those who ask about it.
pub(crate) fn told(user: &[u8], denied: &Denied, names_key: bool) -> String {
    let user = errors::shown(user);
    match denied {
        Denied::Command(name) => {
            format!("User {user} has no permissions to run the '{name}' command")
        }
        Denied::Key(key) if names_key => {
            format!("User {user} has no permissions to access the '{}' key", errors::shown(key))
        }
        Denied::Key(_) => "No permissions to access a key".to_owned(),
    }
}

/// Hexadecimal digits for so many bits.
fn generate_password(bits: u64) -> Reply {
    let digits = bits.div_ceil(4) as usize;
    let mut text = String::new();
    while text.len() < digits {
        match gabion_tls::random::<32>() {
            Ok(bytes) => text.extend(bytes.iter().map(|byte| format!("{byte:02x}"))),
            Err(error) => return Reply::error_from(format!("ERR {error}")),
        }
    }
    text.truncate(digits);
    Reply::Bulk(Bytes::from(text))
}

fn get_user(user: &User) -> Reply {
    let body = user.body();
    let bulk = |text: Vec<u8>| Reply::Bulk(Bytes::from(text));
    let passwords = body.passwords.iter().map(|hash| bulk(hash.to_vec())).collect();
    let rules = |selector: &rules::Selector| {
        [
            (Reply::bulk("commands"), bulk(selector.commands_text().into_bytes())),
            (Reply::bulk("keys"), bulk(selector.keys_text())),
            (Reply::bulk("channels"), bulk(selector.channels_text())),
        ]
    };
    let selectors = body.selectors[1..].iter().map(|it| Reply::Map(rules(it).into())).collect();
    let mut fields = vec![
        (Reply::bulk("flags"), Reply::Set(body.flags().map(Reply::bulk).collect())),
        (Reply::bulk("passwords"), Reply::Array(passwords)),
    ];
    fields.extend(rules(&body.selectors[0]));
    fields.push((Reply::bulk("selectors"), Reply::Array(selectors)));
    Reply::Map(fields)
}

fn commands_in(category: &[u8]) -> Reply {
    let (given, category) = (category, category.to_ascii_lowercase());
    if !CATEGORIES.iter().any(|name| name.as_bytes() == category) {
        let shown = errors::shown(given);
        return Reply::error_from(format!("ERR Unknown category '{shown}'"));
    }
    let is_in = |entry: &Entry| categories(*entry).any(|name| name.as_bytes() == category);
    let names = served_with_subcommands().filter(is_in).map(|entry| Reply::bulk(entry.name()));
    Reply::Array(names.collect())
}

//! The users of a node: their passwords and rules, who a connection is, and the file that keeps
//! them. This is the one place that knows where users come from.

use super::rules::{self, Denied, Rights, Selector, check_all};
use crate::commands::work::Call;
use bytes::Bytes;
use core::cell::{Cell, RefCell};
use gabion_base::{Error, ErrorKind, Result as BaseResult};
use gabion_control::users::{Edit, UserRecord};
use ring::digest::{SHA256, digest};
use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::rc::{Rc, Weak};
use std::time::SystemTime;
use subtle::ConstantTimeEq;

/// The user of whoever does not say who it is.
pub(crate) const DEFAULT: &[u8] = b"default";
/// The user that `gabion up` is at the replicas that it has started.
pub(crate) const OPERATOR: &[u8] = b"gabion:operator";
/// Most users.
const USERS_MAX: usize = 10_000;
/// Most passwords and selectors of one.
const EACH_MAX: usize = 1_000;
/// Longest file of users.
const FILE_LEN_MAX: u64 = 64 << 20;

const NO_SUCH_PASSWORD: &str = "The password you are trying to remove from the user does not exist";
const NO_HASH: &str = "The password hash must be exactly 64 characters and contain only lowercase \
    hexadecimal characters";
const TOO_MANY: &str = "A user has at most 1000 passwords and 1000 selectors";

/// SHA-256 in hexadecimal digits, as Redis shows it.
pub(crate) type Hash = [u8; 64];

pub(crate) fn hash(password: &[u8]) -> Hash {
    let mut hex = [0; 64];
    for (pair, byte) in hex.as_chunks_mut().0.iter_mut().zip(digest(&SHA256, password).as_ref()) {
        let digit = |nibble: u8| b"0123456789abcdef"[usize::from(nibble)];
        *pair = [digit(byte >> 4), digit(byte & 15)];
    }
    hex
}

/// Settings of a user.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Body {
    pub(crate) is_on: bool,
    pub(crate) is_without_password: bool,
    pub(crate) skips_sanitizing: bool,
    pub(crate) passwords: Vec<Hash>,
    /// The first is the user's own; the others stand in parentheses.
    pub(crate) selectors: Vec<Selector>,
}

impl Body {
    /// Of a user that was just made: it can do nothing.
    pub(crate) fn new() -> Self {
        Self {
            is_on: false,
            is_without_password: false,
            skips_sanitizing: false,
            passwords: Vec::new(),
            selectors: vec![Selector::nothing()],
        }
    }

    /// Of `default`, if nothing else is said.
    fn open() -> Self {
        let selectors = vec![Selector::everything()];
        Self { is_on: true, is_without_password: true, selectors, ..Self::new() }
    }

    /// Has this password alone, or needs none where it is empty.
    ///
    /// # Errors
    /// The rules would be too long with it.
    fn require(&mut self, password: &[u8]) -> Result<(), &'static str> {
        self.apply(b"resetpass")?;
        match password.is_empty() {
            true => self.apply(b"nopass")?,
            false => self.apply(&[b">", password].concat())?,
        }
        self.check_len()
    }

    /// Applies one rule.
    ///
    /// # Errors
    /// The fault of the rule, in Redis's words.
    pub(crate) fn apply(&mut self, rule: &[u8]) -> Result<(), &'static str> {
        match &rule.to_ascii_lowercase()[..] {
            b"on" => self.is_on = true,
            b"off" => self.is_on = false,
            b"nopass" => {
                self.is_without_password = true;
                self.passwords.clear();
            }
            b"resetpass" => {
                self.is_without_password = false;
                self.passwords.clear();
            }
            b"sanitize-payload" => self.skips_sanitizing = false,
            b"skip-sanitize-payload" => self.skips_sanitizing = true,
            b"clearselectors" => self.selectors.truncate(1),
            b"reset" => *self = Self::new(),
            _ => return self.apply_named(rule),
        }
        Ok(())
    }

    fn apply_named(&mut self, rule: &[u8]) -> Result<(), &'static str> {
        match rule {
            [b'>', password @ ..] => self.add(hash(password)),
            [b'#', hex @ ..] => self.add(parse_hash(hex)?),
            [b'<', password @ ..] => self.remove(&hash(password)),
            [b'!', hex @ ..] => self.remove(&parse_hash(hex)?),
            [b'(', rules @ .., b')'] => {
                if self.selectors.len() > EACH_MAX {
                    return Err(TOO_MANY);
                }
                let mut selector = Selector::nothing();
                let rules = rules.split(|byte| *byte == b' ').filter(|rule| !rule.is_empty());
                rules.into_iter().try_for_each(|rule| match rule {
                    // In a file the rules would end there.
                    [.., b')'] => Err(rules::SYNTAX),
                    rule => selector.apply(rule),
                })?;
                self.selectors.push(selector);
                Ok(())
            }
            _ => self.selectors[0].apply(rule),
        }
    }

    fn add(&mut self, hash: Hash) -> Result<(), &'static str> {
        if self.passwords.len() >= EACH_MAX {
            return Err(TOO_MANY);
        }
        if !self.passwords.contains(&hash) {
            self.passwords.push(hash);
        }
        self.is_without_password = false;
        Ok(())
    }

    fn remove(&mut self, hash: &Hash) -> Result<(), &'static str> {
        let at = self.passwords.iter().position(|known| known == hash);
        self.passwords.remove(at.ok_or(NO_SUCH_PASSWORD)?);
        Ok(())
    }

    /// The rules behind the name, as LIST shows them and as they are read again.
    pub(crate) fn text(&self) -> Vec<u8> {
        let mut words: Vec<Vec<u8>> = self.flags().map(|flag| flag.as_bytes().to_vec()).collect();
        words.extend(self.passwords.iter().map(|hash| [b"#", &hash[..]].concat()));
        words.push(self.selectors[0].text());
        words.extend(self.selectors[1..].iter().map(|it| [b"(", &it.text()[..], b")"].concat()));
        words.join(&b' ')
    }

    /// Whether it is as long as it may be at most: it goes with each script.
    fn check_len(&self) -> Result<(), &'static str> {
        if self.text().len() <= rules::RULES_LEN_MAX { Ok(()) } else { Err(rules::TOO_LONG) }
    }

    /// Its flags in Redis's words.
    pub(crate) fn flags(&self) -> impl Iterator<Item = &'static str> {
        let sanitize =
            if self.skips_sanitizing { "skip-sanitize-payload" } else { "sanitize-payload" };
        let no_password = self.is_without_password.then_some("nopass");
        [Some(if self.is_on { "on" } else { "off" }), no_password, Some(sanitize)]
            .into_iter()
            .flatten()
    }

    /// Whether this is its password. All are compared, and none faster where more bytes are right.
    fn accepts(&self, given: &Hash) -> bool {
        let is = |one: subtle::Choice, known: &Hash| one | known.ct_eq(given);
        let is_known = self.passwords.iter().fold(subtle::Choice::from(0), is);
        self.is_on && (self.is_without_password || bool::from(is_known))
    }
}

fn parse_hash(hex: &[u8]) -> Result<Hash, &'static str> {
    let is_digit = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    let hash = Hash::try_from(hex).map_err(|_| NO_HASH)?;
    if hash.iter().all(is_digit) { Ok(hash) } else { Err(NO_HASH) }
}

/// A user, whom connections share: what is changed of it counts for them at once.
pub(crate) struct User {
    pub(crate) name: Bytes,
    /// Nothing has to be asked before a command of it runs.
    is_free: Cell<bool>,
    body: RefCell<Body>,
}

impl User {
    fn new(name: Bytes, body: Body) -> Rc<Self> {
        let user = Self { name, is_free: Cell::new(false), body: RefCell::new(Body::new()) };
        user.set(body);
        Rc::new(user)
    }

    fn set(&self, body: Body) {
        self.is_free.set(body.selectors.iter().any(Selector::is_free));
        self.body.replace(body);
    }

    pub(crate) fn body(&self) -> Body {
        self.body.borrow().clone()
    }

    /// Whether it may do everything.
    #[inline]
    pub(crate) fn is_free(&self) -> bool {
        self.is_free.get()
    }

    pub(crate) fn check(&self, call: &Call) -> Result<(), Denied> {
        if self.is_free() {
            return Ok(());
        }
        check_all(&self.body.borrow().selectors, call)
    }

    /// Rights that go with a script; none if nothing is to be checked.
    pub(crate) fn rights(&self) -> Option<Rc<Rights>> {
        let selectors = || self.body.borrow().selectors.clone();
        let rights = || Rights { user: self.name.clone(), selectors: selectors() };
        (!self.is_free()).then(|| Rc::new(rights()))
    }
}

/// All of them.
pub(crate) struct Users {
    users: RefCell<BTreeMap<Bytes, Rc<User>>>,
    /// Of connections that have yet to say who they are.
    nobody: Rc<User>,
    /// The user of `gabion up` itself, which may do everything and is not listed, and its password.
    operator: Option<(Rc<User>, Hash)>,
    file: Option<PathBuf>,
    /// The password of `default` that this process was started with, whatever the file says.
    required: Option<Vec<u8>>,
    /// When the file was changed last, as far as is known.
    stamp: Cell<Option<SystemTime>>,
    /// Lists of the services that have connections of users.
    told: RefCell<Vec<Weak<UserList>>>,
    /// The users that the controller told last, if it ever did; none where it keeps none.
    shared: Option<RefCell<Option<UserRecord>>>,
}

/// Users whose connections are to end.
pub(crate) type Revoked = Rc<UserList>;
type UserList = RefCell<Vec<Rc<User>>>;

impl Users {
    /// One user, `default`, who may do everything.
    pub(crate) fn open() -> Self {
        let default = User::new(Bytes::from_static(DEFAULT), Body::open());
        Self {
            users: RefCell::new(BTreeMap::from([(default.name.clone(), default)])),
            nobody: User::new(Bytes::new(), Body::new()),
            operator: None,
            file: None,
            required: None,
            stamp: Cell::new(None),
            told: RefCell::default(),
            shared: None,
        }
    }

    /// Tells these connections from now on, too, whose users are gone or changed.
    pub(crate) fn tell(&self, revoked: &Revoked) {
        self.told.borrow_mut().push(Rc::downgrade(revoked));
    }

    /// Tells all whose users are gone or changed.
    pub(crate) fn revoke(&self, users: &[Rc<User>]) {
        for told in self.told.borrow().iter().filter_map(Weak::upgrade) {
            told.borrow_mut().extend_from_slice(users);
        }
    }

    /// Those that the controller keeps, and this replica has known last.
    pub(crate) fn of_controller(known: Option<UserRecord>) -> Self {
        let users = Self { shared: Some(RefCell::default()), ..Self::open() };
        if let Some(record) = known {
            users.adopt(record);
        }
        users
    }

    /// Those of a file.
    ///
    /// # Errors
    /// I/O; invalid input, with the line.
    pub(crate) fn of_file(path: &Path) -> BaseResult<Self> {
        let users = Self { file: Some(path.to_owned()), ..Self::open() };
        users.load()?;
        Ok(users)
    }

    /// The same, and the one that `gabion up` is, with its password.
    pub(crate) fn with_operator(mut self, password: Option<&str>) -> Self {
        let user = || User::new(Bytes::from_static(OPERATOR), Body::open());
        self.operator = password.map(|password| (user(), hash(password.as_bytes())));
        self
    }

    /// The same, where `default` has this password, also when the file is read again.
    ///
    /// # Errors
    /// As [`Self::set_password`].
    pub(crate) fn with_password(mut self, password: Vec<u8>) -> Result<Self, &'static str> {
        self.set_password(&password)?;
        self.required = Some(password);
        Ok(self)
    }

    /// Whether the controller keeps them.
    pub(crate) fn are_shared(&self) -> bool {
        self.shared.is_some()
    }

    /// The record that the controller told last.
    pub(crate) fn record(&self) -> Option<UserRecord> {
        self.shared.as_ref().and_then(|record| record.borrow().clone())
    }

    /// Takes what the controller told. Returns users that are gone: their connections have to go.
    ///
    /// A user with a rule that this build does not know can do nothing here.
    pub(crate) fn adopt(&self, record: UserRecord) -> Vec<Rc<User>> {
        let Some(shared) = &self.shared else { return Vec::new() };
        let mut told: BTreeMap<Bytes, Body> = BTreeMap::new();
        for (name, rules) in record.iter() {
            let body = read_rules(rules).unwrap_or_else(|why| {
                note!("users: {} can do nothing here: {why}", crate::commands::errors::shown(name));
                Body::new()
            });
            told.insert(Bytes::copy_from_slice(name), body);
        }
        let default = told.entry(Bytes::from_static(DEFAULT)).or_insert_with(Body::open);
        if let Some(password) = &self.required
            && default.require(password).is_err()
        {
            *default = Body::new();
        }
        shared.replace(Some(record));
        let mut users = self.users.borrow_mut();
        let (stay, gone) = std::mem::take(&mut *users)
            .into_iter()
            .partition::<BTreeMap<_, _>, _>(|(name, _)| told.contains_key(name));
        *users = stay;
        for (name, body) in told {
            match users.get(&name) {
                Some(user) => user.set(body),
                None => drop(users.insert(name.clone(), User::new(name, body))),
            }
        }
        gone.into_values().collect()
    }

    /// The change of a user by these rules, on what the controller told last.
    ///
    /// # Errors
    /// The rule that is wrong, and why.
    pub(crate) fn edit(
        &self,
        name: &Bytes,
        rules: &[Bytes],
    ) -> Result<Edit, (Bytes, &'static str)> {
        if &name[..] == OPERATOR {
            return Err((name.clone(), "The name is that of `gabion up`"));
        }
        let record = self.record();
        let expected = record.as_ref().and_then(|record| record.get(name)).map(<[u8]>::to_vec);
        let wrong = |why| (Bytes::new(), why);
        let mut body = match &expected {
            Some(rules) => read_rules(rules).map_err(wrong)?,
            None if &name[..] == DEFAULT => Body::open(),
            None => Body::new(),
        };
        for rule in rules {
            body.apply(rule).map_err(|why| (rule.clone(), why))?;
        }
        body.check_len().map_err(wrong)?;
        Ok(Edit { name: name.to_vec(), expected, rules: Some(body.text()) })
    }

    /// Whether `default` has a password of this process's start, whatever is told.
    pub(crate) fn is_required(&self) -> bool {
        self.required.is_some()
    }

    pub(crate) fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    pub(crate) fn is_nobody(&self, user: &Rc<User>) -> bool {
        Rc::ptr_eq(user, &self.nobody)
    }

    pub(crate) fn get(&self, name: &[u8]) -> Option<Rc<User>> {
        self.users.borrow().get(name).cloned()
    }

    pub(crate) fn all(&self) -> Vec<Rc<User>> {
        self.users.borrow().values().cloned().collect()
    }

    /// The user of a connection that has not said who it is.
    pub(crate) fn of_stranger(&self) -> Rc<User> {
        if self.are_known() { self.default_or_nobody() } else { self.nobody.clone() }
    }

    /// Whether these are the users. Until the controller has told them, nobody knows what `default`
    /// may do.
    pub(crate) fn are_known(&self) -> bool {
        self.shared.as_ref().is_none_or(|record| record.borrow().is_some())
    }

    fn default_or_nobody(&self) -> Rc<User> {
        let default = self.get(DEFAULT);
        let is_open = |user: &Rc<User>| {
            let body = user.body.borrow();
            body.is_on && body.is_without_password
        };
        default.filter(is_open).unwrap_or_else(|| self.nobody.clone())
    }

    /// Whether strangers may do something without a password.
    pub(crate) fn lets_strangers_in(&self) -> bool {
        !self.is_nobody(&self.default_or_nobody())
    }

    /// The user of this name, if that is its password.
    pub(crate) fn authenticate(&self, name: &[u8], password: &[u8]) -> Option<Rc<User>> {
        // Also where there is none, so that the time does not tell.
        let given = hash(password);
        if let Some((user, known)) = self.operator.as_ref().filter(|_| name == OPERATOR) {
            return bool::from(known.ct_eq(&given)).then(|| user.clone());
        }
        let user = self.get(name).filter(|_| self.are_known());
        user.filter(|user| user.body.borrow().accepts(&given))
    }

    /// Makes or changes a user by these rules: all or none.
    ///
    /// # Errors
    /// The rule that is wrong, and why.
    pub(crate) fn set(&self, name: &Bytes, rules: &[Bytes]) -> Result<(), (Bytes, &'static str)> {
        if &name[..] == OPERATOR {
            return Err((name.clone(), "The name is that of `gabion up`"));
        }
        let known = self.get(name);
        let mut body = known.as_ref().map_or_else(Body::new, |user| user.body());
        for rule in rules {
            body.apply(rule).map_err(|why| (rule.clone(), why))?;
        }
        body.check_len().map_err(|why| (Bytes::new(), why))?;
        match known {
            Some(user) => user.set(body),
            None if self.users.borrow().len() >= USERS_MAX => {
                return Err((name.clone(), "There are 10000 users, the most that there may be"));
            }
            None => {
                let name = Bytes::copy_from_slice(name);
                self.users.borrow_mut().insert(name.clone(), User::new(name, body));
            }
        }
        Ok(())
    }

    /// `requirepass`: the password of `default`, or none.
    ///
    /// # Errors
    /// The user's rules would be too long with it.
    pub(crate) fn set_password(&self, password: &[u8]) -> Result<(), &'static str> {
        let default = self.get(DEFAULT);
        let mut body = default.as_ref().map_or_else(Body::open, |user| user.body());
        body.require(password)?;
        let name = Bytes::from_static(DEFAULT);
        match default {
            Some(user) => user.set(body),
            None => drop(self.users.borrow_mut().insert(name.clone(), User::new(name, body))),
        }
        Ok(())
    }

    /// Removes a user; its connections have to go.
    pub(crate) fn remove(&self, name: &[u8]) -> Option<Rc<User>> {
        self.users.borrow_mut().remove(name)
    }

    /// Reads the file again. Returns users whose connections have to go: they are gone or changed.
    ///
    /// # Errors
    /// I/O; invalid input, with the line: nothing has changed.
    pub(crate) fn load(&self) -> BaseResult<Vec<Rc<User>>> {
        let Some(path) = &self.file else { return Ok(Vec::new()) };
        let stamp = stamp(path);
        let text = match fs::metadata(path) {
            Ok(data) if data.len() > FILE_LEN_MAX => {
                let text = format!("{}: longer than {FILE_LEN_MAX} bytes", path.display());
                return Err(Error::limit(text));
            }
            _ => fs::read(path).map_err(failed("cannot read", path))?,
        };
        let mut read = parse(path, &text)?;
        // One that the file does not name stays: its password may be from elsewhere.
        let default = || self.get(DEFAULT).map_or_else(Body::open, |user| user.body());
        let default = read.entry(Bytes::from_static(DEFAULT)).or_insert_with(default);
        if let Some(password) = &self.required {
            let text = |why| Error::limit(format!("{}: user default: {why}", path.display()));
            default.require(password).map_err(text)?;
        }
        self.stamp.set(stamp);
        let mut users = self.users.borrow_mut();
        let mut changed = Vec::new();
        users.retain(|name, user| {
            let stays = read.contains_key(name);
            if !stays {
                changed.push(user.clone());
            }
            stays
        });
        for (name, body) in read {
            match users.get(&name) {
                Some(user) if *user.body.borrow() == body => {}
                Some(user) => {
                    user.set(body);
                    if name != DEFAULT {
                        changed.push(user.clone());
                    }
                }
                None => drop(users.insert(name.clone(), User::new(name, body))),
            }
        }
        Ok(changed)
    }

    /// Whether somebody has changed the file since it was read or written here.
    pub(crate) fn is_file_changed(&self) -> bool {
        self.file.as_ref().is_some_and(|path| {
            let now = stamp(path);
            now.is_some() && now != self.stamp.get()
        })
    }

    /// As [`Self::is_file_changed`], until it changes again.
    pub(crate) fn note_file(&self) {
        self.stamp.set(self.file.as_ref().and_then(|path| stamp(path)));
    }

    /// Writes the file anew: whoever reads it has the old one or the new one.
    ///
    /// # Errors
    /// I/O.
    pub(crate) fn save(&self) -> BaseResult<()> {
        let Some(path) = &self.file else { return Ok(()) };
        let mut text = Vec::new();
        for user in self.all() {
            text.extend(line(&user));
            text.push(b'\n');
        }
        let new = path.with_extension(format!("new-{}", std::process::id()));
        let mut options = fs::OpenOptions::new();
        let file = options.write(true).create(true).truncate(true).mode(0o600).open(&new);
        let written = file.and_then(|mut file| {
            file.write_all(&text)?;
            file.sync_all()
        });
        written.and_then(|()| fs::rename(&new, path)).map_err(|error| {
            let _ = fs::remove_file(&new);
            failed("cannot write", path)(error)
        })?;
        self.note_file();
        Ok(())
    }
}

/// A user as LIST shows it and as the file keeps it.
pub(crate) fn line(user: &User) -> Vec<u8> {
    [b"user ", &user.name[..], b" ", &user.body().text()].concat()
}

fn stamp(path: &Path) -> Option<SystemTime> {
    fs::metadata(path).and_then(|data| data.modified()).ok()
}

fn failed(what: &str, path: &Path) -> impl FnOnce(std::io::Error) -> Error {
    let text = format!("{what} {}", path.display());
    move |error| Error::with_source(ErrorKind::Io, text, error)
}

fn parse(path: &Path, text: &[u8]) -> BaseResult<BTreeMap<Bytes, Body>> {
    let mut users = BTreeMap::new();
    for (at, line) in text.split(|byte| *byte == b'\n').enumerate() {
        let wrong = |why: &str| Error::invalid(format!("{}:{}: {why}", path.display(), at + 1));
        let line = line.trim_ascii();
        if line.is_empty() || line.starts_with(b"#") {
            continue;
        }
        let mut words = words(line).map_err(wrong)?.into_iter();
        if words.next().as_deref() != Some(b"user") {
            return Err(wrong("should start with user keyword followed by the username"));
        }
        let name = Bytes::from(words.next().ok_or_else(|| wrong("no name of a user"))?);
        let mut body = Body::new();
        for word in words {
            body.apply(&word).map_err(|why| {
                wrong(&format!("{}: {why}", crate::commands::errors::shown(redacted(&word))))
            })?;
        }
        body.check_len().map_err(wrong)?;
        if users.len() >= USERS_MAX {
            return Err(wrong("more than 10000 users"));
        }
        if users.insert(name, body).is_some() {
            return Err(wrong(
                "Duplicate user found. A user can only be defined once in config files",
            ));
        }
    }
    Ok(users)
}

/// The words of a line; a rule in parentheses has spaces in it. The name, the second word, may
/// begin with one.
fn words(line: &[u8]) -> Result<Vec<Vec<u8>>, &'static str> {
    let mut all: Vec<Vec<u8>> = Vec::new();
    let mut open: Option<Vec<u8>> = None;
    for word in line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty()) {
        match &mut open {
            Some(joined) => {
                joined.push(b' ');
                joined.extend(word);
            }
            None if word.starts_with(b"(") && all.len() >= 2 => open = Some(word.to_vec()),
            None => {
                all.push(word.to_vec());
                continue;
            }
        }
        if word.ends_with(b")") {
            all.extend(open.take());
        }
    }
    match open {
        Some(_) => Err("Unmatched parenthesis in selector definition."),
        None => Ok(all),
    }
}

/// The settings of a user whose rules stand in a record.
fn read_rules(rules: &[u8]) -> Result<Body, &'static str> {
    // The words of a line: behind the keyword and the name stand rules.
    let line = [b"user name ", rules].concat();
    let mut body = Body::new();
    words(&line)?.iter().skip(2).try_for_each(|word| body.apply(word))?;
    Ok(body)
}

/// A rule as it may be told: passwords are kept from it.
fn redacted(rule: &[u8]) -> &[u8] {
    match rule {
        [b'>' | b'<', ..] => &rule[..1],
        _ => rule,
    }
}

/// The rules of one request, those in parentheses joined.
pub(crate) fn join_selectors(rules: &[Bytes]) -> Result<Vec<Bytes>, &'static str> {
    let mut joined = Vec::new();
    let mut open: Option<Vec<u8>> = None;
    for rule in rules {
        match &mut open {
            Some(parts) => {
                parts.push(b' ');
                parts.extend_from_slice(rule);
            }
            None if rule.starts_with(b"(") => open = Some(rule.to_vec()),
            None => {
                joined.push(rule.clone());
                continue;
            }
        }
        if rule.ends_with(b")") {
            joined.extend(open.take().map(Bytes::from));
        }
    }
    if open.is_some() { Err(rules::SYNTAX) } else { Ok(joined) }
}

#[cfg(test)]
mod tests;

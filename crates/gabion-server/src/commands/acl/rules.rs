//! The rules of a user in Redis's grammar: commands, categories, keys; and whether a request is
//! within them.
//!
//! A [`Selector`] is one set of rules. A user has one, and may have further ones in parentheses: a
//! request has to be within one of them as a whole.

use super::is_in;
use crate::commands::describe::{Entry, find, meant};
use crate::commands::key_specs::key_specs;
use crate::commands::subcommands::{self, FIRST, SUBCOMMANDS};
use crate::commands::table::{Id, TABLE};
use crate::commands::work::Call;
use bytes::Bytes;
use gabion_resp::glob_match;

/// Places of counters: commands, then subcommands.
const PLACES: usize = FIRST + SUBCOMMANDS.len();
const WORDS: usize = PLACES.div_ceil(64);
/// Longest description of rules, in bytes.
pub(crate) const RULES_LEN_MAX: usize = 1 << 20;

pub(crate) const UNKNOWN: &str = "Unknown command or category name in ACL";
pub(crate) const SYNTAX: &str = "Syntax error";
const AFTER_ALL_KEYS: &str = "Adding a pattern after the * pattern (or the 'allkeys' flag) is not \
    valid and does not have any effect. Try 'resetkeys' to start with an empty list of patterns";
const AFTER_ALL_CHANNELS: &str = "Adding a pattern after the * pattern (or the 'allchannels' flag) \
    is not valid and does not have any effect. Try 'resetchannels' to start with an empty list of \
    channels";
pub(crate) const TOO_LONG: &str = "The rules of one user are over the limit of 1048576 bytes";

/// Why a request is not within the rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Denied {
    /// The command, by its full name.
    Command(&'static str),
    /// A key.
    Key(Bytes),
}

/// Keys that a pattern matches, to be read or written or both.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Pattern {
    glob: Vec<u8>,
    reads: bool,
    writes: bool,
}

/// One set of rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Selector {
    allowed: [u64; WORDS],
    /// The rules before were of all commands: allowed or not.
    is_all: bool,
    /// Those after it, as they are shown: sign and name.
    rules: Vec<String>,
    all_keys: bool,
    keys: Vec<Pattern>,
    all_channels: bool,
    channels: Vec<Vec<u8>>,
}

impl Selector {
    /// Nothing is allowed.
    pub(crate) const fn nothing() -> Self {
        Self {
            allowed: [0; WORDS],
            is_all: false,
            rules: Vec::new(),
            all_keys: false,
            keys: Vec::new(),
            all_channels: false,
            channels: Vec::new(),
        }
    }

    /// Everything is.
    pub(crate) fn everything() -> Self {
        let mut all = Self::nothing();
        all.set_all(true);
        (all.all_keys, all.all_channels) = (true, true);
        all
    }

    /// Whether nothing needs to be asked of it.
    pub(crate) fn is_free(&self) -> bool {
        self.is_all && self.rules.is_empty() && self.all_keys
    }

    fn set_all(&mut self, is_allowed: bool) {
        self.allowed = [if is_allowed { u64::MAX } else { 0 }; WORDS];
        self.is_all = is_allowed;
        self.rules.clear();
    }

    fn set(&mut self, place: usize, is_allowed: bool) {
        let bit = 1 << (place % 64);
        match is_allowed {
            true => self.allowed[place / 64] |= bit,
            false => self.allowed[place / 64] &= !bit,
        }
    }

    const fn allows(&self, place: usize) -> bool {
        self.allowed[place / 64] & 1 << (place % 64) != 0
    }

    /// Applies one rule.
    ///
    /// # Errors
    /// The fault of the rule, in Redis's words; nothing has changed.
    pub(crate) fn apply(&mut self, rule: &[u8]) -> Result<(), &'static str> {
        match &rule.to_ascii_lowercase()[..] {
            b"allkeys" | b"~*" => {
                self.all_keys = true;
                self.keys.clear();
            }
            b"resetkeys" => {
                self.all_keys = false;
                self.keys.clear();
            }
            b"allchannels" | b"&*" => {
                self.all_channels = true;
                self.channels.clear();
            }
            b"resetchannels" => {
                self.all_channels = false;
                self.channels.clear();
            }
            b"allcommands" | b"+@all" => self.set_all(true),
            b"nocommands" | b"-@all" => self.set_all(false),
            _ => return self.apply_named(rule),
        }
        Ok(())
    }

    fn apply_named(&mut self, rule: &[u8]) -> Result<(), &'static str> {
        match rule {
            [b'~', glob @ ..] => self.add_pattern(glob, true, true),
            [b'%', rest @ ..] => {
                let at = rest.iter().position(|byte| *byte == b'~').ok_or(SYNTAX)?;
                let (rights, glob) = (rest[..at].to_ascii_lowercase(), &rest[at + 1..]);
                let (reads, writes) = (rights.contains(&b'r'), rights.contains(&b'w'));
                let is_known = rights.iter().all(|byte| b"rw".contains(byte));
                if !is_known || rights.is_empty() || rights.len() > 2 {
                    return Err(SYNTAX);
                }
                self.add_pattern(glob, reads, writes)
            }
            [b'&', glob @ ..] => {
                if self.all_channels {
                    return Err(AFTER_ALL_CHANNELS);
                }
                check_glob(glob)?;
                if !self.channels.iter().any(|known| known == glob) {
                    self.channels.push(glob.to_vec());
                }
                Ok(())
            }
            [sign @ (b'+' | b'-'), b'@', category @ ..] => {
                self.apply_category(*sign == b'+', &category.to_ascii_lowercase())
            }
            [sign @ (b'+' | b'-'), name @ ..] => self.apply_command(*sign == b'+', name),
            _ => Err(SYNTAX),
        }
    }

    fn add_pattern(&mut self, glob: &[u8], reads: bool, writes: bool) -> Result<(), &'static str> {
        if self.all_keys {
            return Err(AFTER_ALL_KEYS);
        }
        check_glob(glob)?;
        match self.keys.iter_mut().find(|known| known.glob == glob) {
            // As in Redis, where it is merged with the one that is there.
            Some(known) => {
                known.reads |= reads;
                known.writes |= writes;
            }
            None => self.keys.push(Pattern { glob: glob.to_vec(), reads, writes }),
        }
        Ok(())
    }

    fn apply_category(&mut self, is_allowed: bool, category: &[u8]) -> Result<(), &'static str> {
        let name = super::category(category).ok_or(UNKNOWN)?;
        for (row, spec) in TABLE.iter().enumerate() {
            if is_in(Entry::Command(spec), name) {
                self.set(row, is_allowed);
            }
        }
        for (index, subcommand) in SUBCOMMANDS.iter().enumerate() {
            let parent = TABLE.iter().find(|spec| spec.id == subcommand.parent);
            if parent.is_some_and(|spec| is_in(Entry::Subcommand(spec, subcommand), name)) {
                self.set(FIRST + index, is_allowed);
            }
        }
        self.note(is_allowed, &format!("@{name}"));
        Ok(())
    }

    fn apply_command(&mut self, is_allowed: bool, name: &[u8]) -> Result<(), &'static str> {
        // Those that are only refused may be named, too.
        let row = crate::commands::table::row_of(name);
        let entry = row.map(|row| Entry::Command(&TABLE[row])).or_else(|| find(name));
        let entry = entry.ok_or(UNKNOWN)?;
        match entry {
            Entry::Command(spec) => {
                self.set(row.ok_or(UNKNOWN)?, is_allowed);
                for (index, subcommand) in SUBCOMMANDS.iter().enumerate() {
                    if subcommands::is_container(spec.id) && subcommand.parent == spec.id {
                        self.set(FIRST + index, is_allowed);
                    }
                }
            }
            Entry::Subcommand(_, row) => {
                let place = SUBCOMMANDS.iter().position(|other| other.full_name == row.full_name);
                self.set(FIRST + place.ok_or(UNKNOWN)?, is_allowed);
            }
        }
        self.note(is_allowed, entry.name());
        Ok(())
    }

    /// Keeps a rule to be shown. One that it makes void goes.
    fn note(&mut self, is_allowed: bool, name: &str) {
        let is_void = |rule: &String| {
            let rest = rule[1..].strip_prefix(name);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('|'))
        };
        self.rules.retain(|rule| !is_void(rule));
        self.rules.push(format!("{}{name}", if is_allowed { '+' } else { '-' }));
    }

    /// Whether a request is within the rules.
    pub(crate) fn check(&self, call: &Call) -> Result<(), Denied> {
        if !self.allows(call.counters()) && !call.spec().has_flag("no_auth") {
            return Err(Denied::Command(subcommands::name_of(call.counters())));
        }
        if self.all_keys {
            return Ok(());
        }
        // It returns values of keys that no request names.
        if call.spec().id == Id::Range && !self.reads_all() {
            return Err(Denied::Key(call.args()[1].clone()));
        }
        let Some(entry) = meant(call.args()) else { return Ok(()) };
        for spec in key_specs(entry) {
            for (key, flags) in spec.keys_of(call.args()) {
                let has = |flag: &str| flags.contains(&flag);
                let reads = has("access");
                let writes = has("update") || has("insert") || has("delete");
                if !self.may(&key, reads, writes) {
                    return Err(Denied::Key(key));
                }
            }
        }
        Ok(())
    }

    fn may(&self, key: &[u8], reads: bool, writes: bool) -> bool {
        let covers = |it: &&Pattern| (it.reads || !reads) && (it.writes || !writes);
        self.keys.iter().filter(covers).any(|pattern| glob_match(&pattern.glob, key))
    }

    fn reads_all(&self) -> bool {
        self.keys.iter().any(|pattern| pattern.reads && pattern.glob == b"*")
    }

    /// The rules of commands, as GETUSER shows them.
    pub(crate) fn commands_text(&self) -> String {
        let all = if self.is_all { "+@all" } else { "-@all" };
        self.rules.iter().fold(all.to_owned(), |text, rule| text + " " + rule)
    }

    /// The rules of keys.
    pub(crate) fn keys_text(&self) -> Vec<u8> {
        if self.all_keys {
            return b"~*".to_vec();
        }
        let pattern = |it: &Pattern| {
            let mark: &[u8] = match (it.reads, it.writes) {
                (true, true) => b"~",
                (true, false) => b"%R~",
                _ => b"%W~",
            };
            [mark, &it.glob].concat()
        };
        self.keys.iter().map(pattern).collect::<Vec<_>>().join(&b' ')
    }

    /// The rules of channels, of which there are none to be used.
    pub(crate) fn channels_text(&self) -> Vec<u8> {
        if self.all_channels {
            return b"&*".to_vec();
        }
        let all = self.channels.iter().map(|glob| [b"&", &glob[..]].concat());
        all.collect::<Vec<_>>().join(&b' ')
    }

    /// All of its rules, as LIST shows them and as they are read again.
    pub(crate) fn text(&self) -> Vec<u8> {
        let mut out = self.keys_text();
        if !out.is_empty() {
            out.push(b' ');
        }
        if !self.all_channels {
            out.extend(b"resetchannels ");
        }
        let channels = self.channels_text();
        if !channels.is_empty() {
            out.extend(channels);
            out.push(b' ');
        }
        out.extend(self.commands_text().as_bytes());
        out
    }
}

/// Rules are written with spaces between them.
fn check_glob(glob: &[u8]) -> Result<(), &'static str> {
    if glob.iter().any(|byte| byte.is_ascii_whitespace() || *byte == 0) {
        return Err(SYNTAX);
    }
    Ok(())
}

/// The rights of a user as they were when a request came, which go with a script to where it runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rights {
    pub(crate) user: Bytes,
    pub(crate) selectors: Vec<Selector>,
}

impl Rights {
    /// Whether a request is within the rules of one of the selectors. If it is not, a key is named
    /// rather than the command, as keys are checked after the command.
    pub(crate) fn check(&self, call: &Call) -> Result<(), Denied> {
        check_all(&self.selectors, call)
    }

    /// In bytes for another member: the user, and each selector, with line feeds between them.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let selectors = self.selectors.iter().map(Selector::text);
        core::iter::once(self.user.to_vec()).chain(selectors).collect::<Vec<_>>().join(&b'\n')
    }

    /// Reads [`Self::encode`].
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, &'static str> {
        let mut lines = bytes.split(|byte| *byte == b'\n');
        let user = Bytes::copy_from_slice(lines.next().unwrap_or_default());
        let mut selectors = Vec::new();
        for line in lines {
            let mut selector = Selector::nothing();
            let rules = line.split(|byte| *byte == b' ').filter(|rule| !rule.is_empty());
            rules.into_iter().try_for_each(|rule| selector.apply(rule))?;
            selectors.push(selector);
        }
        Ok(Self { user, selectors })
    }
}

/// Whether a request is within the rules of one of these.
pub(crate) fn check_all(selectors: &[Selector], call: &Call) -> Result<(), Denied> {
    let mut denied = Denied::Command(subcommands::name_of(call.counters()));
    for selector in selectors {
        match selector.check(call) {
            Ok(()) => return Ok(()),
            Err(key @ Denied::Key(_)) => denied = key,
            Err(Denied::Command(_)) => {}
        }
    }
    Err(denied)
}

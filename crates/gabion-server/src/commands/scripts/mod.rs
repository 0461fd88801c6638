//! Scripts in Lua 5.1: EVAL, EVALSHA and SCRIPT.
//!
//! ```text
//!   client's node: EVALSHA ─► cache of scripts ─► EVAL with the script ──► head: locks of KEYS
//!                                                                            │
//!                                  record ◄── one write ◄── overlay ◄── Engine::run
//! ```
//!
//! - `engine`: the state of Lua, and one run; `prelude.lua`, `library`, `pattern`, `json`: what scripts find there;
//!   `values`: between Lua and Redis. - `eval`: runs until a script ends, and what they read. - `sha1`: names of scripts.
//!
//! Each node keeps the scripts that its clients have sent. The head gets the script with each call, so it needs none of
//! theirs, and a change of the head changes nothing for EVALSHA.

mod engine;
mod eval;
mod json;
mod library;
mod pattern;
mod sha1;
mod values;

pub(crate) use eval::Held;
#[cfg(test)]
pub(in crate::commands) use eval::KEPT_TOGETHER_MAX;

use super::errors;
use super::table::Id;
use super::work::Call;
use bytes::Bytes;
use engine::{Caller, Clock, Ended, Engine, Over};
use gabion_base::HashMap;
use gabion_base::number::parse_i64;
use gabion_resp::{Reply, Request};
use sha1::{Digest, hex, parse_hex, sha1};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Instant;

/// Most scripts that a node keeps for EVALSHA.
const CACHED_MAX: usize = 10_000;
/// Most bytes of them.
const CACHED_BYTES_MAX: usize = 16 << 20;
/// What one takes beside its text.
const CACHED_OVERHEAD: usize = 160;

/// How long scripts run in one turn of the loop, in microseconds, before members and other clients are heard. One that has
/// begun goes on, for as long as it may.
const TURN_US_MAX: u64 = 10_000;

const NO_SCRIPT: Reply = Reply::error("NOSCRIPT No matching script. Please use EVAL.");

/// The scripts of a node.
pub(crate) struct Scripts {
    clock: Clock,
    /// How long scripts ran in this turn of the loop, in microseconds.
    turn_us: Cell<u64>,
    /// Bytes that scripts which wait have read so far.
    pub(in crate::commands) kept_bytes: Cell<usize>,
    engine: RefCell<Option<Engine>>,
    cache: RefCell<Cache>,
}

/// Scripts by their digests; those that were not asked for the longest go first.
#[derive(Default)]
struct Cache {
    scripts: HashMap<Digest, (Bytes, u64)>,
    /// Digests by when they were asked for last.
    order: BTreeMap<u64, Digest>,
    next: u64,
    bytes: usize,
}

impl Cache {
    fn get(&mut self, digest: &Digest) -> Option<Bytes> {
        let (body, place) = self.scripts.get_mut(digest)?;
        self.order.remove(place);
        *place = self.next;
        self.order.insert(self.next, *digest);
        self.next += 1;
        Some(body.clone())
    }

    fn insert(&mut self, digest: Digest, body: &[u8]) {
        if self.get(&digest).is_some() {
            return;
        }
        self.bytes += body.len() + CACHED_OVERHEAD;
        // A copy: a view would keep what the request came in.
        self.scripts.insert(digest, (Bytes::copy_from_slice(body), self.next));
        self.order.insert(self.next, digest);
        self.next += 1;
        while self.scripts.len() > CACHED_MAX || self.bytes > CACHED_BYTES_MAX {
            let Some((_, oldest)) = self.order.pop_first() else { break };
            if let Some((body, _)) = self.scripts.remove(&oldest) {
                self.bytes -= body.len() + CACHED_OVERHEAD;
            }
        }
    }
}

/// What a script says of itself in its first line.
struct Header<'a> {
    is_read_only: bool,
    /// The rest of the script, from the end of that line on.
    code: &'a [u8],
}

impl<'a> Header<'a> {
    fn parse(body: &'a [u8]) -> Result<Self, Reply> {
        if !body.starts_with(b"#!") {
            return Ok(Self { is_read_only: false, code: body });
        }
        let len = body.iter().position(|byte| *byte == b'\n').unwrap_or(body.len());
        let line = String::from_utf8_lossy(&body[..len]);
        let mut parts = line.split(' ');
        let engine = parts.next().unwrap_or_default();
        let refused = |what: &str, word: &str| {
            let word = errors::shown(word.as_bytes()).into_owned();
            Reply::error_from(format!("ERR {what}: {word}"))
        };
        if engine.trim_end() != "#!lua" {
            return Err(refused("Unexpected engine in script shebang", &engine[2..]));
        }
        let mut is_read_only = false;
        for part in parts.filter(|part| !part.is_empty()) {
            let flags = part.strip_prefix("flags=");
            let flags = flags.ok_or_else(|| refused("Unknown lua shebang option", part))?;
            for flag in flags.trim_end().split(',').filter(|flag| !flag.is_empty()) {
                match flag {
                    "no-writes" => is_read_only = true,
                    "allow-oom" | "allow-stale" | "no-cluster" | "allow-cross-slot-keys" => {}
                    _ => return Err(refused("Unexpected flag in script shebang", flag)),
                }
            }
        }
        Ok(Self { is_read_only, code: &body[len..] })
    }
}

/// Whether a command runs a script.
pub(crate) const fn is_script(id: Id) -> bool {
    matches!(id, Id::Eval | Id::EvalSha)
}

/// The keys and the other arguments of EVAL and its kin.
///
/// # Errors
/// The number of keys cannot be.
pub(crate) fn arguments(args: &[Bytes]) -> Result<(&[Bytes], &[Bytes]), Reply> {
    let (count, rest) = args.get(2..).and_then(<[Bytes]>::split_first).ok_or(errors::SYNTAX)?;
    let count = parse_i64(count).ok_or(errors::NOT_AN_INTEGER)?;
    if count > rest.len() as i64 {
        return Err(Reply::error("ERR Number of keys can't be greater than number of args"));
    }
    let count = usize::try_from(count);
    count
        .map(|count| rest.split_at(count))
        .map_err(|_| Reply::error("ERR Number of keys can't be negative"))
}

impl Scripts {
    pub(crate) fn new() -> Self {
        let start = Instant::now();
        Self::with_clock(Rc::new(move || start.elapsed().as_micros() as u64))
    }

    /// The same with a clock.
    pub(crate) fn with_clock(clock: Clock) -> Self {
        let (turn_us, kept_bytes) = Default::default();
        Self { clock, turn_us, kept_bytes, engine: RefCell::default(), cache: RefCell::default() }
    }

    /// A turn of the loop begins.
    #[inline]
    pub(crate) fn begin_turn(&self) {
        self.turn_us.set(0);
    }

    /// Whether scripts ran for so long in this turn that others are to be heard before the next one.
    pub(crate) fn is_turn_over(&self) -> bool {
        self.turn_us.get() > TURN_US_MAX
    }

    /// How many scripts are kept, and what they take with the state in which they run.
    pub(crate) fn stats(&self) -> (usize, usize) {
        let cache = self.cache.borrow();
        let engine = self.engine.borrow();
        (cache.scripts.len(), cache.bytes + engine.as_ref().map_or(0, Engine::memory))
    }

    /// Calls `f` with a state that has this script. A state that cannot be made or that is spent is replaced.
    fn with_script<R>(
        &self,
        digest: Digest,
        code: &[u8],
        f: impl FnOnce(&Engine) -> R,
    ) -> Result<R, Reply> {
        let mut place = self.engine.borrow_mut();
        if place.as_ref().is_some_and(Engine::is_spent) {
            *place = None;
        }
        let engine = match place.take() {
            Some(engine) => engine,
            None => Engine::new(self.clock.clone())
                .map_err(|error| Reply::error_from(format!("ERR Lua cannot begin: {error}")))?,
        };
        let engine = place.insert(engine);
        engine.compile(digest, code).map_err(|text| {
            let text = text.replace(['\r', '\n'], " ");
            Reply::error_from(format!("ERR Error compiling script (new function): {text}"))
        })?;
        Ok(f(engine))
    }

    /// Keeps a script that a client sent, if it is one.
    fn keep(&self, body: &[u8]) -> Result<Digest, Reply> {
        let digest = sha1(body);
        if self.cache.borrow_mut().get(&digest).is_none() {
            self.with_script(digest, Header::parse(body)?.code, |_| ())?;
            self.cache.borrow_mut().insert(digest, body);
        }
        Ok(digest)
    }

    /// What is to be run for EVAL or EVALSHA of a client: EVAL with the script itself.
    ///
    /// # Errors
    /// There is no such script, or it is none, or its keys cannot be.
    pub(crate) fn prepare(&self, call: Call) -> Result<Call, Reply> {
        let args = call.args();
        if call.spec().id == Id::Eval {
            arguments(args)?;
            self.keep(&args[1])?;
            return Ok(call);
        }
        let digest = parse_hex(&args[1]).ok_or(NO_SCRIPT)?;
        arguments(args)?;
        let body = self.cache.borrow_mut().get(&digest).ok_or(NO_SCRIPT)?;
        let name = if call.spec().name == "evalsha_ro" { "EVAL_RO" } else { "EVAL" };
        let words = [Bytes::from_static(name.as_bytes()), body];
        Call::new(Request { args: words.into_iter().chain(args[2..].iter().cloned()).collect() })
    }

    /// Runs a script.
    fn run<'c>(
        &self,
        body: &[u8],
        is_read_only: bool,
        (keys, argv): (&[Bytes], &[Bytes]),
        caller: impl FnOnce(bool) -> Box<dyn Caller + 'c>,
    ) -> Result<Ended, Reply> {
        let (digest, header) = (sha1(body), Header::parse(body)?);
        let caller = caller(is_read_only || header.is_read_only);
        let begun_us = (self.clock)();
        let ended = self
            .with_script(digest, header.code, |engine| engine.run(&digest, keys, argv, &*caller))?;
        let took_us = (self.clock)().saturating_sub(begun_us);
        self.turn_us.set(self.turn_us.get().saturating_add(took_us));
        if ended == Ended::Over(Over::Memory) {
            // What it left may be in use by nothing and take all there is.
            self.engine.replace(None);
        }
        Ok(ended)
    }

    /// SCRIPT.
    pub(crate) fn answer(&self, args: &[Bytes]) -> Reply {
        match (&args[1].to_ascii_lowercase()[..], &args[2..]) {
            (b"load", [body]) => match self.keep(body) {
                Ok(digest) => Reply::Bulk(Bytes::from(hex(&digest))),
                Err(error) => error,
            },
            (b"exists", digests) => {
                let mut cache = self.cache.borrow_mut();
                let mut is_there = |text: &Bytes| {
                    let digest = parse_hex(text);
                    digest.is_some_and(|digest| cache.get(&digest).is_some())
                };
                let found = digests.iter().map(|text| Reply::Integer(i64::from(is_there(text))));
                Reply::Array(found.collect())
            }
            (b"flush", how) => {
                let is_known = |word: &Bytes| {
                    [&b"async"[..], b"sync"].contains(&&word.to_ascii_lowercase()[..])
                };
                if how.len() > 1 || !how.iter().all(is_known) {
                    return Reply::error("ERR SCRIPT FLUSH only support SYNC|ASYNC option");
                }
                self.cache.replace(Cache::default());
                self.engine.replace(None);
                Reply::OK
            }
            (b"kill", []) => Reply::error("NOTBUSY No scripts in execution right now."),
            _ => errors::subcommand_syntax("script", &args[1]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scripts_that_are_kept_are_bounded_and_those_in_use_stay() {
        let digest = |n: u32| sha1(&n.to_le_bytes());
        let mut cache = Cache::default();
        let long = vec![b' '; 1 << 20];
        cache.insert(digest(0), &long);
        for n in 1..100 {
            cache.insert(digest(n), &long);
            assert!(cache.get(&digest(0)).is_some());
        }
        assert_eq!((cache.scripts.len(), cache.get(&digest(1))), (15, None));
        (100..CACHED_MAX as u32 + 200).for_each(|n| cache.insert(digest(n), b"x"));
        assert!(cache.scripts.len() == CACHED_MAX && cache.bytes <= CACHED_BYTES_MAX);
        assert_eq!(cache.scripts.len(), cache.order.len());
        // One that is too long for all of it is not kept.
        cache.insert(digest(1), &[long].concat().repeat(17));
        assert_eq!((cache.scripts.len(), cache.bytes), (0, 0));
    }
}

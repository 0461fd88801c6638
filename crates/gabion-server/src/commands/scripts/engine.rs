//! The state of Lua in which scripts run, and one run of one script.
//!
//! ```text
//!   script ─► redis.call ─► Caller ─► a command on the script's overlay
//!      ▲           │
//!      │           └─ what it reads is not in memory: the run is over, and begins anew when it is
//!      └── hook: every so many instructions the clock is asked
//! ```
//!
//! A run that is over (too late, too much memory, a read that has to wait) ends with an error that nothing in the script
//! can catch: `pcall` and its kin are the prelude's, which raise it on.

use super::library;
use super::pattern;
use super::sha1::{Digest, hex};
use super::values;
use crate::commands::errors;
use bytes::Bytes;
use gabion_base::HashMap;
use gabion_resp::Reply;
use gabion_resp::limits::REQUEST_LEN_MAX;
use mlua::{
    Error, Function, HookTriggers, Lua, LuaOptions, StdLib, Table, Value, Variadic, VmState,
};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// How long a run of a script may take, in µs.
pub(crate) const RUN_US_MAX: u64 = 100_000;
/// Most memory that a script may take, in bytes.
pub(crate) const MEMORY_MAX: usize = 64 << 20;
/// Instructions between two looks at the clock: some of them copy tens of MiB.
const HOOK_INSTRUCTIONS: u32 = 50;
/// Memory above which what a script left is collected at once.
const GARBAGE_MAX: usize = 4 << 20;
/// Memory above which a state is given up, after that.
const STATE_MAX: usize = 32 << 20;
/// Longest text that is compiled, in bytes: Lua's compiler takes time with the square of it, and nothing interrupts it.
pub(crate) const CODE_LEN_MAX: usize = 64 << 10;
/// References to values that a state has at once from the start. Lua may have 8,000 in a stack.
const REFERENCES: usize = 7_900;
/// Bytes that Rust copies or reads between two looks at the clock.
const PACE_BYTES: usize = 1 << 20;
/// Functions that a state keeps.
const FUNCTIONS_MAX: usize = 1_000;
/// Frames of a stack that are looked at.
const FRAMES_MAX: usize = 64;

/// Microseconds of a clock that only goes on.
pub(crate) type Clock = Rc<dyn Fn() -> u64>;

/// Why a run is over before its script ended.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Over {
    /// It took too long.
    Time,
    /// It took too much memory.
    Memory,
    /// It has to begin anew when something is there: who called knows what.
    Wait,
    /// Something else was over its limit.
    Refused(Reply),
}

/// How a run ended.
#[derive(Debug, PartialEq)]
pub(crate) enum Ended {
    /// With a value, or an error of the script.
    Reply(Reply),
    /// It was over before.
    Over(Over),
}

/// Runs the commands of a script.
pub(crate) trait Caller {
    /// The reply to a command, or why the run is over.
    fn call(&self, words: Vec<Bytes>, world: &World) -> Result<Reply, Over>;
}

/// What one run is about.
#[derive(Default)]
pub(crate) struct Run {
    started_us: Cell<u64>,
    is_running: Cell<bool>,
    over: RefCell<Option<Over>>,
    pub(crate) is_resp3: Cell<bool>,
    /// The state of `math.random`, 48 bits.
    pub(crate) random: Cell<u64>,
}

/// An error that a function raised: a text, or what a command answered.
#[derive(Debug)]
pub(crate) struct Raised {
    pub(crate) text: Vec<u8>,
    pub(crate) is_reply: bool,
}

impl std::fmt::Display for Raised {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.text))
    }
}

impl std::error::Error for Raised {}

/// A state of Lua.
pub(crate) struct Engine {
    lua: Lua,
    world: World,
    start: Function,
    functions: HashMap<Digest, Function>,
    /// What the last collection left.
    live: Cell<usize>,
}

/// What functions of a state share.
#[derive(Clone)]
pub(crate) struct World {
    pub(crate) run: Rc<Run>,
    pub(crate) clock: Clock,
    /// Its `over` tells the prelude that the run is.
    state: Table,
    pub(crate) names: Rc<Names>,
}

/// Fields of tables that mean more than a list, as strings of the state: to make one for each table takes longer than all else.
pub(crate) struct Names {
    pub(crate) err: mlua::String,
    pub(crate) ok: mlua::String,
    pub(crate) double: mlua::String,
    pub(crate) big_number: mlua::String,
    pub(crate) verbatim_string: mlua::String,
    pub(crate) map: mlua::String,
    pub(crate) set: mlua::String,
}

impl Names {
    fn new(lua: &Lua) -> mlua::Result<Self> {
        let name = |name: &str| lua.create_string(name);
        Ok(Self {
            err: name("err")?,
            ok: name("ok")?,
            double: name("double")?,
            big_number: name("big_number")?,
            verbatim_string: name("verbatim_string")?,
            map: name("map")?,
            set: name("set")?,
        })
    }
}

impl World {
    /// The error that ends the run.
    pub(crate) fn end(&self, over: Over) -> Error {
        self.run.over.borrow_mut().get_or_insert(over);
        // The field is there, so no memory is needed.
        let _ = self.state.raw_set("over", true);
        Error::external(Raised { text: b"the script is over".to_vec(), is_reply: false })
    }

    /// Whether there is time left. When not, the run is over.
    pub(crate) fn may_go_on(&self) -> bool {
        if !self.run.is_running.get() {
            return true;
        }
        let is_late = (self.clock)().saturating_sub(self.run.started_us.get()) > RUN_US_MAX;
        if is_late {
            self.end(Over::Time);
        }
        !is_late && self.run.over.borrow().is_none()
    }

    /// # Errors
    /// The run is over.
    pub(crate) fn check(&self) -> mlua::Result<()> {
        if self.may_go_on() { Ok(()) } else { Err(self.end(Over::Time)) }
    }
}

/// Looks at the clock from time to time while Rust does what no hook interrupts.
pub(crate) struct Pace<'a> {
    world: &'a World,
    left: usize,
}

impl<'a> Pace<'a> {
    pub(crate) const fn new(world: &'a World) -> Self {
        Self { world, left: PACE_BYTES }
    }

    /// So many bytes, or what takes as long, come next.
    ///
    /// # Errors
    /// The run is over.
    pub(crate) fn take(&mut self, bytes: usize) -> mlua::Result<()> {
        match self.left.checked_sub(bytes) {
            Some(left) => self.left = left,
            None => {
                self.left = PACE_BYTES;
                self.world.check()?;
            }
        }
        Ok(())
    }
}

impl Engine {
    /// A state without scripts.
    ///
    /// # Errors
    /// There is no memory for it.
    pub(crate) fn new(clock: Clock) -> mlua::Result<Self> {
        let libraries = StdLib::STRING | StdLib::TABLE | StdLib::MATH;
        // A panic of ours is not a script's to catch.
        let options = LuaOptions::new().catch_rust_panics(false);
        let lua = Lua::new_with(libraries, options)?;
        let state = lua.create_table()?;
        state.raw_set("over", false)?;
        let names = Rc::new(Names::new(&lua)?);
        let world = World { run: Rc::default(), clock, state: state.clone(), names };
        let native = library::native(&lua, &world)?;
        native.raw_set("state", state)?;
        let prelude = lua.load(include_str!("prelude.lua")).set_name("=(gabion)");
        let start = prelude.call::<Function>(native)?;
        let hooked = world.clone();
        let every = HookTriggers::new().every_nth_instruction(HOOK_INSTRUCTIONS);
        lua.set_global_hook(every, move |_, _| hooked.check().map(|()| VmState::Continue))?;
        grow_references(&lua)?;
        lua.set_memory_limit(MEMORY_MAX)?;
        // Collects before what a script leaves comes to as much again as it uses.
        lua.gc_set_pause(120);
        lua.gc_set_step_multiplier(400);
        Ok(Self { lua, world, start, functions: HashMap::default(), live: Cell::new(0) })
    }

    /// Bytes that the state takes.
    pub(crate) fn memory(&self) -> usize {
        self.lua.used_memory()
    }

    /// Makes a function of a script, unless there is one.
    ///
    /// # Errors
    /// Lua's words on what is wrong with it.
    pub(crate) fn compile(&mut self, digest: Digest, code: &[u8]) -> Result<(), String> {
        if self.functions.contains_key(&digest) {
            return Ok(());
        }
        if code.len() > CODE_LEN_MAX {
            return Err(code_too_long(code.len()));
        }
        let chunk = self.lua.load(code).set_name("@user_script").set_mode(mlua::ChunkMode::Text);
        let function = chunk.into_function().map_err(|error| match error {
            Error::SyntaxError { message, .. } => message,
            other => other.to_string(),
        })?;
        self.functions.insert(digest, function);
        Ok(())
    }

    /// Whether it should make room for a new one.
    pub(crate) fn is_spent(&self) -> bool {
        self.functions.len() > FUNCTIONS_MAX || self.memory() > STATE_MAX
    }

    /// Runs a script, which was compiled.
    pub(crate) fn run(
        &self,
        digest: &Digest,
        keys: &[Bytes],
        argv: &[Bytes],
        caller: &dyn Caller,
    ) -> Ended {
        let run = &self.world.run;
        run.started_us.set((self.world.clock)());
        run.over.replace(None);
        run.is_resp3.set(false);
        library::seed(run, 0);
        let _ = self.world.state.raw_set("over", false);
        run.is_running.set(true);
        let outcome = self.call(digest, keys, argv, caller);
        let ended = self.judge(digest, outcome);
        run.is_running.set(false);
        if self.memory() > self.live.get() + GARBAGE_MAX {
            let _ = self.lua.gc_collect();
            self.live.set(self.memory());
        }
        ended
    }

    fn call(
        &self,
        digest: &Digest,
        keys: &[Bytes],
        argv: &[Bytes],
        caller: &dyn Caller,
    ) -> mlua::Result<(bool, Value)> {
        let list = |words: &[Bytes]| {
            let list = self.lua.create_table_with_capacity(words.len(), 0)?;
            for (at, word) in words.iter().enumerate() {
                list.raw_set(at + 1, self.lua.create_string(word)?)?;
            }
            mlua::Result::Ok(list)
        };
        let (keys, argv) = (list(keys)?, list(argv)?);
        let script = &self.functions[digest];
        let world = &self.world;
        self.lua.scope(|scope| {
            let call = scope.create_function(|lua, words: Variadic<Value>| {
                call_command(lua, world, caller, &words, true)
            })?;
            let protected = scope.create_function(|lua, words: Variadic<Value>| {
                call_command(lua, world, caller, &words, false)
            })?;
            self.start.call((script, keys, argv, call, protected))
        })
    }

    /// What a run comes to.
    fn judge(&self, digest: &Digest, outcome: mlua::Result<(bool, Value)>) -> Ended {
        let over = self.world.run.over.borrow().clone();
        let (is_good, value) = match (over, outcome) {
            (Some(over), _) => return Ended::Over(over),
            (None, Ok(outcome)) => outcome,
            (None, Err(error)) if is_for_memory(&error) => return Ended::Over(Over::Memory),
            (None, Err(error)) => {
                let text = format!("ERR Error running script f_{}, {error}", hex(digest));
                return Ended::Reply(Reply::error_from(text));
            }
        };
        if is_good {
            return match values::to_reply(&value, &self.world) {
                Ok(reply) => Ended::Reply(reply),
                Err(over) => Ended::Over(over),
            };
        }
        match &value {
            Value::String(text) if *text == "not enough memory" => Ended::Over(Over::Memory),
            Value::Table(error) => Ended::Reply(values::to_error(error, digest)),
            // An error of the handler of errors.
            _ => Ended::Reply(Reply::error_from(format!(
                "ERR Error running script f_{}, execution failure",
                hex(digest)
            ))),
        }
    }
}

/// Takes the memory for references while there is a limit to none: where it is taken later and Lua refuses it, nothing
/// catches the error, and the process ends. It is kept for as long as the state is.
fn grow_references(lua: &Lua) -> mlua::Result<()> {
    let held: Vec<_> =
        (0..REFERENCES).map(|_| lua.create_string("")).collect::<mlua::Result<_>>()?;
    drop(held);
    Ok(())
}

/// Why a text of this length is not compiled.
pub(crate) fn code_too_long(len: usize) -> String {
    format!("the script is {len} bytes long, over the limit of {CODE_LEN_MAX}")
}

/// `redis.call`, or `redis.pcall`, which gives an error as a value.
fn call_command(
    lua: &Lua,
    world: &World,
    caller: &dyn Caller,
    words: &[Value],
    is_raised: bool,
) -> mlua::Result<Value> {
    world.check()?;
    let error = |text: &'static str| Reply::error(text);
    let len = values::texts_len(words);
    if len > REQUEST_LEN_MAX as u64 {
        return Err(world.end(Over::Refused(errors::arguments_too_long(len))));
    }
    let given: Option<Vec<Bytes>> = words.iter().map(values::word).collect();
    let is_resp3 = world.run.is_resp3.get();
    let reply = match given {
        _ if words.is_empty() => {
            error("ERR Please specify at least one argument for this redis lib call")
        }
        None => error("ERR Lua redis lib command arguments must be strings or integers"),
        Some(given) => caller.call(given, world).map_err(|over| world.end(over))?,
    };
    match reply {
        Reply::Error(text) if is_raised => {
            Err(Error::external(Raised { text: text.to_vec(), is_reply: true }))
        }
        reply => values::from_reply(lua, &reply, is_resp3),
    }
}

/// The error that a function raised, if it was one of ours.
fn raised(error: &Error) -> Option<&Raised> {
    match error {
        Error::CallbackError { cause, .. } | Error::WithContext { cause, .. } => raised(cause),
        Error::ExternalError(error) => error.downcast_ref(),
        _ => None,
    }
}

fn is_for_memory(error: &Error) -> bool {
    match error {
        Error::CallbackError { cause, .. } | Error::WithContext { cause, .. } => {
            is_for_memory(cause)
        }
        Error::MemoryError(_) => true,
        _ => false,
    }
}

/// An error that was caught, as a script sees it: a text, or a table as commands' errors are. That there is no memory
/// ends the run.
pub(crate) fn caught(lua: &Lua, world: &World, error: Value) -> mlua::Result<Value> {
    let error = match error {
        Value::String(text) if text == "not enough memory" => return Err(world.end(Over::Memory)),
        Value::Error(error) => error,
        other => return Ok(other),
    };
    if is_for_memory(&error) {
        return Err(world.end(Over::Memory));
    }
    match raised(&error) {
        Some(raised) if raised.is_reply => {
            let table = lua.create_table()?;
            table.raw_set("err", lua.create_string(&raised.text)?)?;
            Ok(Value::Table(table))
        }
        Some(raised) => Ok(Value::String(lua.create_string(&raised.text)?)),
        None => {
            let text = error.to_string();
            let line = text.lines().next().unwrap_or_default();
            Ok(Value::String(lua.create_string(line)?))
        }
    }
}

/// Where the script stands: the name of its chunk, that name as messages show it, and the line.
pub(crate) fn place(lua: &Lua) -> Option<(String, String, usize)> {
    let of_frame = |level| {
        lua.inspect_stack(level, |frame| {
            let source = frame.source();
            let text =
                |part: Option<std::borrow::Cow<'_, str>>| part.unwrap_or_default().into_owned();
            (text(source.source), text(source.short_src), frame.current_line())
        })
    };
    for level in 0..FRAMES_MAX {
        match of_frame(level)? {
            (source, shown, Some(line)) if source != "=(gabion)" => {
                return Some((source, shown, line));
            }
            _ => {}
        }
    }
    None
}

/// An error of the script at the place where it stands.
pub(crate) fn script_error(lua: &Lua, text: &str) -> Error {
    let place = place(lua);
    let at = place.map_or_else(String::new, |(_, shown, line)| format!("{shown}:{line}: "));
    Error::external(Raised { text: (at + text).into_bytes(), is_reply: false })
}

/// An error of a search, in the words of Lua.
pub(crate) fn search_error(lua: &Lua, world: &World, failure: pattern::Failure) -> Error {
    match failure {
        pattern::Failure::Malformed(text) => script_error(lua, text),
        pattern::Failure::Stopped => world.end(Over::Time),
    }
}

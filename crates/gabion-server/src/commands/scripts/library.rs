//! What scripts find beside Lua's own libraries, and what stands in the place of some of it.

use super::engine::{Over, Pace, Raised, Run, World, caught, place, script_error, search_error};
use super::pattern::{self, Capture, Match};
use super::sha1::{hex, sha1};
use super::{engine, json, values};
use crate::commands::REDIS_VERSION;
use mlua::{Error, Function, Lua, MultiValue, Table, Value, Variadic};

/// The functions that the prelude is given.
pub(crate) fn native(lua: &Lua, world: &World) -> mlua::Result<Table> {
    let native = lua.create_table()?;
    native.raw_set("memory_max", engine::MEMORY_MAX)?;
    let of = world.clone();
    let value = lua.create_function(move |lua, error: Value| caught(lua, &of, error))?;
    native.raw_set("value", value)?;
    native.raw_set("memory", lua.create_function(|lua, ()| Ok(lua.used_memory()))?)?;
    let at = |lua: &Lua, ()| Ok(place(lua).map(|(source, _, line)| (source, line)).unzip());
    native.raw_set("where", lua.create_function(at)?)?;
    let of = world.clone();
    let load = move |lua: &Lua, (text, name): (Value, Value)| load(lua, &of, &text, &name);
    native.raw_set("load", lua.create_function(load)?)?;
    let of = world.clone();
    native.raw_set("check", lua.create_function(move |_, ()| of.check())?)?;
    let of = world.clone();
    let clock = move |_: &Lua, ()| Ok((of.clock)() as f64 / 1e6);
    native.raw_set("clock", lua.create_function(clock)?)?;
    add_searches(lua, world, &native)?;
    add_random(lua, world, &native)?;
    native.raw_set("bit", bits(lua)?)?;
    native.raw_set("cjson", json::library(lua, world)?)?;
    native.raw_set("redis", redis(lua, world)?)?;
    Ok(native)
}

/// `load` of a text; of bytecode, which could break the state, never.
fn load(
    lua: &Lua,
    world: &World,
    text: &Value,
    name: &Value,
) -> mlua::Result<(Option<Function>, Option<String>)> {
    world.check()?;
    let Some(text) = text_of(text) else {
        return Err(script_error(lua, "bad argument #1 to 'loadstring' (string expected)"));
    };
    if text.len() > engine::CODE_LEN_MAX {
        return Ok((None, Some(engine::code_too_long(text.len()))));
    }
    let name = text_of(name).unwrap_or_default();
    let name = String::from_utf8_lossy(&name[..name.len().min(256)]).replace('\0', " ");
    let chunk = lua.load(text).set_name(name).set_mode(mlua::ChunkMode::Text);
    Ok(match chunk.into_function() {
        Ok(function) => (Some(function), None),
        Err(Error::SyntaxError { message, .. }) => (None, Some(message)),
        Err(Error::MemoryError(text)) => return Err(Error::MemoryError(text)),
        Err(other) => (None, Some(other.to_string())),
    })
}

/// What Lua takes for a string.
fn text_of(value: &Value) -> Option<Vec<u8>> {
    match value {
        Value::String(text) => Some(text.as_bytes().to_vec()),
        Value::Integer(_) | Value::Number(_) => value.to_string().ok().map(String::into_bytes),
        _ => None,
    }
}

fn argument(
    lua: &Lua,
    words: &Variadic<Value>,
    at: usize,
    name: &str,
) -> mlua::Result<mlua::String> {
    let value = words.get(at).cloned().unwrap_or(Value::Nil);
    if !matches!(value, Value::String(_) | Value::Integer(_) | Value::Number(_)) {
        let given = if at < words.len() { value.type_name() } else { "no value" };
        let given = if given == "integer" { "number" } else { given };
        let at = at + 1;
        let text = format!("bad argument #{at} to '{name}' (string expected, got {given})");
        return Err(script_error(lua, &text));
    }
    // As Lua writes numbers.
    lua.coerce_string(value)?.ok_or_else(|| script_error(lua, "string expected"))
}

// ---- searches

fn add_searches(lua: &Lua, world: &World, native: &Table) -> mlua::Result<()> {
    let of = world.clone();
    let find = move |lua: &Lua, words: Variadic<Value>| search(lua, &of, &words, "find");
    native.raw_set("find", lua.create_function(find)?)?;
    let of = world.clone();
    let matching = move |lua: &Lua, words: Variadic<Value>| search(lua, &of, &words, "match");
    native.raw_set("match", lua.create_function(matching)?)?;
    let of = world.clone();
    let from = move |lua: &Lua, (text, pattern, at): (mlua::String, mlua::String, usize)| {
        let (text, pattern) = (text.as_bytes(), pattern.as_bytes());
        let found = pattern::find(&text, &pattern, at - 1, &mut || of.may_go_on());
        let found = found.map_err(|failure| search_error(lua, &of, failure))?;
        found.map_or_else(|| Ok(MultiValue::new()), |found| span(lua, &text, &found))
    };
    native.raw_set("find_from", lua.create_function(from)?)?;
    let text = |lua: &Lua, (value, at, name): (Value, usize, String)| {
        argument(lua, &[vec![Value::Nil; at - 1], vec![value]].concat().into(), at - 1, &name)
    };
    native.raw_set("text_of", lua.create_function(text)?)?;
    let of = world.clone();
    let expand = move |lua: &Lua, words: Variadic<Value>| expand(lua, &of, &words);
    native.raw_set("expand", lua.create_function(expand)?)
}

/// `string.find` and `string.match`.
fn search(
    lua: &Lua,
    world: &World,
    words: &Variadic<Value>,
    name: &str,
) -> mlua::Result<MultiValue> {
    let (text, pattern) = (argument(lua, words, 0, name)?, argument(lua, words, 1, name)?);
    let (text, pattern) = (text.as_bytes(), pattern.as_bytes());
    let start = match words.get(2) {
        None | Some(Value::Nil) => 1.0,
        Some(value) => lua.coerce_number(value.clone())?.ok_or_else(|| {
            script_error(lua, &format!("bad argument #3 to '{name}' (number expected)"))
        })?,
    };
    let len = text.len() as f64;
    let start = if start < 0.0 { (len + start).max(0.0) } else { (start - 1.0).clamp(0.0, len) };
    let start = start as usize;
    let is_plain =
        words.get(3).is_some_and(|value| !matches!(value, Value::Nil | Value::Boolean(false)));
    let found = if name == "find" && (is_plain || pattern::is_plain(&pattern)) {
        world.check()?;
        // It takes time with the length of both, not with their product.
        let at = memchr::memmem::find(&text[start..], &pattern);
        at.map(|at| (start + at, start + at + pattern.len())).map(|(start, end)| Match {
            start,
            end,
            captures: Vec::new(),
        })
    } else {
        let found = pattern::find(&text, &pattern, start, &mut || world.may_go_on());
        found.map_err(|failure| search_error(lua, world, failure))?
    };
    match found {
        None => Ok(MultiValue::from_iter([Value::Nil])),
        Some(found) if name == "find" => span(lua, &text, &found),
        Some(found) if found.captures.is_empty() => {
            let whole = lua.create_string(&text[found.start..found.end])?;
            Ok(MultiValue::from_iter([Value::String(whole)]))
        }
        Some(found) => captures(lua, &text, &found).collect(),
    }
}

/// First and last byte of a match, and its captures.
fn span(lua: &Lua, text: &[u8], found: &Match) -> mlua::Result<MultiValue> {
    let ends = [found.start + 1, found.end].map(|at| Ok(Value::Number(at as f64)));
    ends.into_iter().chain(captures(lua, text, found)).collect()
}

fn captures<'a>(
    lua: &'a Lua,
    text: &'a [u8],
    found: &'a Match,
) -> impl Iterator<Item = mlua::Result<Value>> + 'a {
    found.captures.iter().map(move |capture| match *capture {
        Capture::Place(at) => Ok(Value::Number(at as f64 + 1.0)),
        Capture::Text(start, len) => {
            lua.create_string(&text[start..start + len]).map(Value::String)
        }
    })
}

/// The replacement that a text with `%1` in it means, for a match and its captures.
fn expand(lua: &Lua, world: &World, words: &Variadic<Value>) -> mlua::Result<mlua::String> {
    let with = argument(lua, words, 0, "gsub")?;
    let with = with.as_bytes();
    let mut out = Vec::with_capacity(with.len());
    let mut rest = &with[..];
    let mut pace = Pace::new(world);
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        pace.take(1)?;
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        let (&what, after) = rest.split_first().unwrap_or((&b'%', &[]));
        rest = after;
        if !what.is_ascii_digit() {
            out.push(what);
            continue;
        }
        // The whole match stands for the first capture where there is none.
        let number = usize::from(what - b'0');
        let at = if number == 1 && words.len() == 2 { 1 } else { number + 1 };
        if at >= words.len() {
            return Err(script_error(lua, "invalid capture index"));
        }
        let capture = argument(lua, words, at, "gsub")?;
        let capture = capture.as_bytes();
        pace.take(capture.len())?;
        // Lua's limit of memory knows of the text only when it is complete.
        if out.len() + capture.len() > engine::MEMORY_MAX {
            return Err(world.end(Over::Memory));
        }
        out.extend_from_slice(&capture);
    }
    lua.create_string(&out)
}

// ---- numbers

/// Begins the sequence of a seed.
pub(crate) fn seed(run: &Run, seed: u32) {
    run.random.set(u64::from(seed) << 16 | 0x330e);
}

/// The next of the sequence, below 2³¹, as Redis has it everywhere.
fn next_random(run: &Run) -> f64 {
    let next = run.random.get().wrapping_mul(0x5_deec_e66d).wrapping_add(0xb) & ((1 << 48) - 1);
    run.random.set(next);
    (next >> 17) as f64
}

fn add_random(lua: &Lua, world: &World, native: &Table) -> mlua::Result<()> {
    const RANDOM_MAX: f64 = i32::MAX as f64;
    let run = world.run.clone();
    let random = move |lua: &Lua, words: Variadic<Value>| {
        let part = (next_random(&run) % RANDOM_MAX) / RANDOM_MAX;
        let number = |at: usize| {
            let number = words.get(at).cloned().map(|value| lua.coerce_number(value));
            number.transpose()?.flatten().map(f64::trunc).ok_or_else(|| {
                let text = format!("bad argument #{} to 'random' (number expected)", at + 1);
                script_error(lua, &text)
            })
        };
        let (low, high) = match words.len() {
            0 => return Ok(part),
            1 => (1.0, number(0)?),
            2 => (number(0)?, number(1)?),
            _ => return Err(script_error(lua, "wrong number of arguments")),
        };
        if low > high {
            let at = words.len();
            let text = format!("bad argument #{at} to 'random' (interval is empty)");
            return Err(script_error(lua, &text));
        }
        Ok((part * (high - low + 1.0)).floor() + low)
    };
    native.raw_set("random", lua.create_function(random)?)?;
    let run = world.run.clone();
    let seeded = move |lua: &Lua, value: Value| {
        let number = lua.coerce_number(value)?.ok_or_else(|| {
            script_error(lua, "bad argument #1 to 'randomseed' (number expected)")
        })?;
        seed(&run, number as i64 as u32);
        Ok(())
    };
    native.raw_set("random_seed", lua.create_function(seeded)?)
}

type OfOne = (&'static str, fn(i32) -> i32);
type OfTwo = (&'static str, fn(i32, i32) -> i32);
type Shift = (&'static str, fn(i32, u32) -> i32);

/// The library `bit`: numbers of 32 bits.
fn bits(lua: &Lua) -> mlua::Result<Table> {
    let library = lua.create_table()?;
    let number = |lua: &Lua, value: Option<&Value>| -> mlua::Result<i32> {
        let number = value.map(|value| lua.coerce_number(value.clone())).transpose()?.flatten();
        let number = number.ok_or_else(|| script_error(lua, "bad argument (number expected)"))?;
        // The lowest 32 bits of the nearest whole number.
        Ok(number.round_ties_even().rem_euclid(4_294_967_296.0) as u32 as i32)
    };
    let of_one: [OfOne; 3] = [("tobit", |a| a), ("bnot", |a| !a), ("bswap", i32::swap_bytes)];
    for (name, f) in of_one {
        let f = move |lua: &Lua, words: Variadic<Value>| Ok(f(number(lua, words.first())?));
        library.raw_set(name, lua.create_function(f)?)?;
    }
    let of_many: [OfTwo; 3] =
        [("band", |a, b| a & b), ("bor", |a, b| a | b), ("bxor", |a, b| a ^ b)];
    for (name, f) in of_many {
        let f = move |lua: &Lua, words: Variadic<Value>| {
            let mut all = number(lua, words.first())?;
            for word in words.iter().skip(1) {
                all = f(all, number(lua, Some(word))?);
            }
            Ok(all)
        };
        library.raw_set(name, lua.create_function(f)?)?;
    }
    let shifts: [Shift; 5] = [
        ("lshift", |a, n| a << n),
        ("rshift", |a, n| ((a as u32) >> n) as i32),
        ("arshift", |a, n| a >> n),
        ("rol", i32::rotate_left),
        ("ror", i32::rotate_right),
    ];
    for (name, f) in shifts {
        let f = move |lua: &Lua, words: Variadic<Value>| {
            let by = number(lua, words.get(1))? as u32 & 31;
            Ok(f(number(lua, words.first())?, by))
        };
        library.raw_set(name, lua.create_function(f)?)?;
    }
    let to_hex = move |lua: &Lua, words: Variadic<Value>| {
        let digits = if words.len() > 1 { number(lua, words.get(1))? } else { 8 };
        let count = digits.unsigned_abs().min(8) as usize;
        let text = format!("{:08x}", number(lua, words.first())?);
        let text = text[8 - count..].to_owned();
        Ok(if digits < 0 { text.to_ascii_uppercase() } else { text })
    };
    library.raw_set("tohex", lua.create_function(to_hex)?)?;
    Ok(library)
}

// ---- redis

/// The library `redis`, but for what calls commands and what the prelude adds.
fn redis(lua: &Lua, world: &World) -> mlua::Result<Table> {
    let library = lua.create_table()?;
    let reply_error =
        |text: &str| Error::external(Raised { text: text.as_bytes().to_vec(), is_reply: true });
    let of = world.clone();
    let digest = move |_: &Lua, words: Variadic<Value>| match &words[..] {
        [text] => {
            // A long text takes as long as many instructions.
            of.check()?;
            Ok(match text {
                Value::String(text) => hex(&sha1(&text.as_bytes())),
                other => hex(&sha1(&values::word(other).unwrap_or_default())),
            })
        }
        _ => Err(reply_error("ERR wrong number of arguments")),
    };
    library.raw_set("sha1hex", lua.create_function(digest)?)?;
    let log = move |lua: &Lua, words: Variadic<Value>| {
        if words.len() < 2 {
            return Err(reply_error("ERR redis.log() requires two arguments or more."));
        }
        let level = lua.coerce_number(words[0].clone())?;
        let level =
            level.ok_or_else(|| reply_error("ERR First argument must be a number (log level)."))?;
        if !(0.0..=3.0).contains(&level) {
            return Err(reply_error("ERR Invalid debug level."));
        }
        Ok(())
    };
    library.raw_set("log", lua.create_function(log)?)?;
    for (at, name) in ["LOG_DEBUG", "LOG_VERBOSE", "LOG_NOTICE", "LOG_WARNING"].iter().enumerate() {
        library.raw_set(*name, at)?;
    }
    for (name, value) in
        [("REPL_NONE", 0), ("REPL_AOF", 1), ("REPL_SLAVE", 2), ("REPL_REPLICA", 2), ("REPL_ALL", 3)]
    {
        library.raw_set(name, value)?;
    }
    let run = world.run.clone();
    let set_resp = move |lua: &Lua, words: Variadic<Value>| {
        let [version] = &words[..] else {
            return Err(reply_error("ERR redis.setresp() requires one argument."));
        };
        match lua.coerce_number(version.clone())? {
            Some(2.0) => run.is_resp3.set(false),
            Some(3.0) => run.is_resp3.set(true),
            _ => return Err(reply_error("ERR RESP version must be 2 or 3.")),
        }
        Ok(())
    };
    library.raw_set("setresp", lua.create_function(set_resp)?)?;
    library.raw_set("REDIS_VERSION", REDIS_VERSION)?;
    let parts = REDIS_VERSION.split('.').filter_map(|part| part.parse::<u32>().ok());
    library.raw_set("REDIS_VERSION_NUM", parts.fold(0, |number, part| number << 8 | part))?;
    Ok(library)
}

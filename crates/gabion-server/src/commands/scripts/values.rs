//! Values between Redis and Lua, as Redis turns one into the other.

use super::engine::{Over, World};
use super::sha1::{Digest, hex};
use crate::commands::keyspace::REPLY_LEN_MAX;
use bytes::Bytes;
use gabion_resp::Reply;
use gabion_resp::limits::{ELEMENTS_MAX, REPLY_DEPTH_MAX};
use mlua::{Lua, Table, Value};

/// Deepest nesting of what a script answers: inside EXEC it is one deeper, and other nodes read it.
pub(crate) const DEPTH_MAX: usize = REPLY_DEPTH_MAX - 1;

/// Values that are converted between two looks at the clock.
const VALUES: usize = 1000;

/// An argument of a command; none for what cannot be one.
pub(crate) fn word(value: &Value) -> Option<Bytes> {
    match value {
        Value::String(text) => Some(Bytes::copy_from_slice(&text.as_bytes())),
        Value::Integer(number) => Some(Bytes::from(number.to_string())),
        Value::Number(number) => Some(Bytes::from(number_text(*number))),
        _ => None,
    }
}

/// Bytes of texts, which one string of Lua may give many times without taking them.
pub(crate) fn texts_len(values: &[Value]) -> u64 {
    let len = |value: &Value| match value {
        Value::String(text) => text.as_bytes().len() as u64,
        _ => 0,
    };
    values.iter().map(len).sum()
}

/// A number as an argument of a command: as short as it can be without being another.
pub(crate) fn number_text(number: f64) -> String {
    if number.is_nan() {
        return "nan".to_owned();
    }
    if number.is_infinite() {
        return if number > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    if number == number.trunc() && number.abs() < 9e18 {
        return (number as i64).to_string();
    }
    let (sign, scientific) = match format!("{:e}", number.abs()) {
        text if number < 0.0 => ("-", text),
        text => ("", text),
    };
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let digits: String = mantissa.chars().filter(|digit| *digit != '.').collect();
    let count = digits.len() as i32;
    // As the library that Redis uses decides between the two ways to write it.
    let last = exponent + 1 - count;
    if last >= 0 && exponent.abs() < count + 7 {
        return format!("{sign}{digits}{}", "0".repeat(last as usize));
    }
    if last < 0 && (last > -7 || exponent.abs() < 4) {
        return match exponent {
            0.. => {
                let (whole, rest) = digits.split_at(exponent as usize + 1);
                format!("{sign}{whole}.{rest}")
            }
            _ => format!("{sign}0.{}{digits}", "0".repeat((-exponent - 1) as usize)),
        };
    }
    let (first, rest) = digits.split_at(1);
    let point = if rest.is_empty() { "" } else { "." };
    let plus = if exponent < 0 { '-' } else { '+' };
    format!("{sign}{first}{point}{rest}e{plus}{}", exponent.abs())
}

/// What a command answered, as the script gets it.
pub(crate) fn from_reply(lua: &Lua, reply: &Reply, is_resp3: bool) -> mlua::Result<Value> {
    let text = |text: &Bytes| lua.create_string(text).map(Value::String);
    let tagged = |name: &str, value: Value| {
        let table = lua.create_table()?;
        table.raw_set(name, value)?;
        mlua::Result::Ok(Value::Table(table))
    };
    match reply {
        Reply::Bulk(data) => text(data),
        Reply::Integer(number) => Ok(Value::Number(*number as f64)),
        Reply::Simple(data) => tagged("ok", text(data)?),
        Reply::Error(data) => tagged("err", text(data)?),
        Reply::Null | Reply::NullArray if is_resp3 => Ok(Value::Nil),
        Reply::Null | Reply::NullArray => Ok(Value::Boolean(false)),
        Reply::Array(items) | Reply::Push(items) => from_list(lua, items, is_resp3),
        Reply::Set(items) if is_resp3 => {
            let set = lua.create_table()?;
            for item in items {
                set.raw_set(from_reply(lua, item, true)?, true)?;
            }
            tagged("set", Value::Table(set))
        }
        Reply::Set(items) => from_list(lua, items, false),
        Reply::Map(pairs) if is_resp3 => {
            let map = lua.create_table()?;
            for (key, value) in pairs {
                map.raw_set(from_reply(lua, key, true)?, from_reply(lua, value, true)?)?;
            }
            tagged("map", Value::Table(map))
        }
        Reply::Map(pairs) => {
            let items: Vec<Reply> =
                pairs.iter().flat_map(|(key, value)| [key.clone(), value.clone()]).collect();
            from_list(lua, &items, false)
        }
        Reply::Pairs(pairs) => from_pairs(lua, pairs, is_resp3),
        Reply::Boolean(is_true) if is_resp3 => Ok(Value::Boolean(*is_true)),
        Reply::Boolean(is_true) => Ok(Value::Number(f64::from(u8::from(*is_true)))),
        Reply::Double(number) if is_resp3 => tagged("double", Value::Number(*number)),
        Reply::Double(number) => text(&Bytes::from(number_text(*number))),
        Reply::BigNumber(data) if is_resp3 => tagged("big_number", text(data)?),
        Reply::BigNumber(data) => text(data),
        Reply::Verbatim(format, data) if is_resp3 => {
            let parts = lua.create_table()?;
            parts.raw_set("string", text(data)?)?;
            parts.raw_set("format", lua.create_string(format)?)?;
            tagged("verbatim_string", Value::Table(parts))
        }
        Reply::Verbatim(_, data) => text(data),
        // Of other nodes, which are not asked here.
        Reply::Encoded(_) => Ok(Value::Nil),
    }
}

fn from_list(lua: &Lua, items: &[Reply], is_resp3: bool) -> mlua::Result<Value> {
    let list = lua.create_table_with_capacity(items.len(), 0)?;
    for (at, item) in items.iter().enumerate() {
        list.raw_set(at + 1, from_reply(lua, item, is_resp3)?)?;
    }
    Ok(Value::Table(list))
}

fn from_pairs(lua: &Lua, pairs: &[(Bytes, Bytes)], is_resp3: bool) -> mlua::Result<Value> {
    let list = lua.create_table()?;
    for (at, (key, value)) in pairs.iter().enumerate() {
        let (key, value) = (lua.create_string(key)?, lua.create_string(value)?);
        if is_resp3 {
            list.raw_set(at + 1, [key, value])?;
        } else {
            list.raw_set(2 * at + 1, key)?;
            list.raw_set(2 * at + 2, value)?;
        }
    }
    Ok(Value::Table(list))
}

/// What a script gives, as the client gets it.
///
/// # Errors
/// It is over a limit of replies, or of the run's time.
pub(crate) fn to_reply(value: &Value, world: &World) -> Result<Reply, Over> {
    let is_resp3 = world.run.is_resp3.get();
    // The reply itself is no element of one.
    let mut room = Room { elements: ELEMENTS_MAX + 1, bytes: REPLY_LEN_MAX, is_resp3, world };
    room.reply(value, DEPTH_MAX)
}

/// What a reply may still have.
struct Room<'a> {
    elements: usize,
    bytes: usize,
    is_resp3: bool,
    world: &'a World,
}

impl Room<'_> {
    /// Every value counts, wherever it stands: one table may stand in another as often as that has places.
    fn reply(&mut self, value: &Value, depth: usize) -> Result<Reply, Over> {
        self.elements = self.elements.checked_sub(1).ok_or_else(too_large)?;
        if self.elements.is_multiple_of(VALUES) && !self.world.may_go_on() {
            return Err(Over::Time);
        }
        match value {
            Value::String(text) => Ok(Reply::Bulk(self.text(text)?)),
            Value::Integer(number) => Ok(Reply::Integer(*number)),
            Value::Number(number) => Ok(Reply::Integer(*number as i64)),
            Value::Boolean(is_true) if self.is_resp3 => Ok(Reply::Boolean(*is_true)),
            Value::Boolean(true) => Ok(Reply::Integer(1)),
            Value::Table(_) if depth == 0 => Err(Over::Refused(Reply::error_from(format!(
                "ERR the reply of the script is nested over {DEPTH_MAX} deep, so nothing was written"
            )))),
            Value::Table(table) => self.table(table, depth - 1),
            _ => Ok(Reply::Null),
        }
    }

    fn text(&mut self, text: &mlua::String) -> Result<Bytes, Over> {
        let text = text.as_bytes();
        self.bytes = self.bytes.checked_sub(text.len()).ok_or_else(too_large)?;
        Ok(Bytes::copy_from_slice(&text))
    }

    /// The same on one line, which is no longer than an error may be.
    fn line(&mut self, text: &mlua::String) -> Result<Bytes, Over> {
        let text = text.as_bytes();
        let mut line = text[..text.len().min(LINE_LEN_MAX)].to_vec();
        self.bytes = self.bytes.checked_sub(line.len()).ok_or_else(too_large)?;
        line.iter_mut().filter(|byte| matches!(byte, b'\r' | b'\n')).for_each(|byte| *byte = b' ');
        Ok(Bytes::from(line))
    }

    fn table(&mut self, table: &Table, depth: usize) -> Result<Reply, Over> {
        let names = self.world.names.clone();
        let field = |name: &mlua::String| table.raw_get::<Value>(name).unwrap_or(Value::Nil);
        if let Value::String(text) = field(&names.err) {
            return Ok(Reply::Error(self.line(&text)?));
        }
        if let Value::String(text) = field(&names.ok) {
            return Ok(Reply::Simple(self.line(&text)?));
        }
        match field(&names.double) {
            Value::Number(number) => return Ok(Reply::Double(number)),
            Value::Integer(number) => return Ok(Reply::Double(number as f64)),
            _ => {}
        }
        if let Value::String(text) = field(&names.big_number) {
            return Ok(Reply::BigNumber(self.line(&text)?));
        }
        if let Value::Table(parts) = field(&names.verbatim_string)
            && let Ok(Value::String(format)) = parts.raw_get("format")
            && let Ok(Value::String(text)) = parts.raw_get("string")
        {
            let mut name = *b"   ";
            name.iter_mut().zip(&*format.as_bytes()).for_each(|(to, from)| *to = *from);
            return Ok(Reply::Verbatim(name, self.text(&text)?));
        }
        if let Value::Table(map) = field(&names.map) {
            let pairs = map.pairs::<Value, Value>().map_while(Result::ok);
            let pairs = pairs
                .map(|(key, value)| Ok((self.reply(&key, depth)?, self.reply(&value, depth)?)));
            return Ok(Reply::Map(pairs.collect::<Result<_, Over>>()?));
        }
        if let Value::Table(set) = field(&names.set) {
            let keys = set.pairs::<Value, Value>().map_while(Result::ok);
            let keys = keys.map(|(key, _)| self.reply(&key, depth));
            return Ok(Reply::Set(keys.collect::<Result<_, Over>>()?));
        }
        self.list(table, depth)
    }

    fn list(&mut self, table: &Table, depth: usize) -> Result<Reply, Over> {
        let mut items = Vec::new();
        loop {
            match table.raw_get::<Value>(items.len() + 1).unwrap_or(Value::Nil) {
                Value::Nil => return Ok(Reply::Array(items)),
                item => items.push(self.reply(&item, depth)?),
            }
        }
    }
}

fn too_large() -> Over {
    Over::Refused(Reply::error_from(format!(
        "ERR the reply of the script is over the limit of {ELEMENTS_MAX} elements or \
         {REPLY_LEN_MAX} bytes, so nothing was written"
    )))
}

/// The error that ended a script, with its place.
pub(crate) fn to_error(error: &Table, digest: &Digest) -> Reply {
    let text = |name: &str| match error.raw_get(name) {
        Ok(Value::String(text)) => Some(text.as_bytes().to_vec()),
        Ok(Value::Integer(number)) => Some(number.to_string().into_bytes()),
        Ok(Value::Number(number)) => Some(number_text(number).into_bytes()),
        _ => None,
    };
    let mut out = text("err").unwrap_or_else(|| b"ERR unknown error".to_vec());
    if let (Some(source), Some(line)) = (text("source"), text("line")) {
        out.extend_from_slice(format!(" script: {}, on ", hex(digest)).as_bytes());
        out.extend_from_slice(&source);
        out.push(b':');
        out.extend_from_slice(&line);
        out.push(b'.');
    }
    out.iter_mut().filter(|byte| matches!(byte, b'\r' | b'\n')).for_each(|byte| *byte = b' ');
    out.truncate(LINE_LEN_MAX);
    Reply::Error(Bytes::from(out))
}

/// Longest text of an error, and of whatever else is one line.
const LINE_LEN_MAX: usize = 32 << 10;

#[cfg(test)]
mod tests {
    use super::number_text;

    #[test]
    fn numbers_are_written_as_redis_writes_arguments() {
        for (number, expected) in [
            (0.0, "0"),
            (-1.0, "-1"),
            (3.25, "3.25"),
            (0.1, "0.1"),
            (-0.5, "-0.5"),
            (0.0001, "0.0001"),
            (1e15, "1000000000000000"),
            (1e-7, "1e-7"),
            (1.5e300, "1.5e+300"),
            (0.3e-3, "0.0003"),
            (1023.2, "1023.2"),
            (123_456_789.125, "123456789.125"),
            (f64::INFINITY, "inf"),
            (f64::NEG_INFINITY, "-inf"),
        ] {
            assert_eq!(number_text(number), expected);
        }
        assert_eq!(number_text(f64::NAN), "nan");
    }
}

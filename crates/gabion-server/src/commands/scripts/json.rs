//! The library `cjson`: JSON of Lua's values and back, in the way of the library that Redis has.

use super::engine::{World, script_error};
use mlua::{LightUserData, Lua, Table, Value};

/// Deepest nesting, either way.
const DEPTH_MAX: usize = 128;
/// Longest text that is made.
const LEN_MAX: usize = super::engine::MEMORY_MAX;
/// Values between two looks at the clock.
const VALUES: usize = 1000;

/// The library.
pub(crate) fn library(lua: &Lua, world: &World) -> mlua::Result<Table> {
    let library = lua.create_table()?;
    library.raw_set("null", Value::LightUserData(LightUserData(std::ptr::null_mut())))?;
    let of = world.clone();
    let encode = move |lua: &Lua, value: Value| {
        let mut out = Encoder { lua, world: &of, out: Vec::new(), values: 0 };
        out.put(&value, 0)?;
        lua.create_string(&out.out)
    };
    library.raw_set("encode", lua.create_function(encode)?)?;
    let of = world.clone();
    let decode = move |lua: &Lua, value: Value| {
        let Some(text) = lua.coerce_string(value)? else {
            return Err(script_error(lua, "bad argument #1 to 'decode' (string expected)"));
        };
        let text = text.as_bytes();
        let mut decoder = Decoder { lua, world: &of, text: &text, at: 0, values: 0 };
        let value = decoder.value(0)?;
        decoder.skip();
        if decoder.at < text.len() { Err(decoder.expected("the end")) } else { Ok(value) }
    };
    library.raw_set("decode", lua.create_function(decode)?)?;
    Ok(library)
}

fn count(world: &World, values: &mut usize) -> mlua::Result<()> {
    *values += 1;
    if values.is_multiple_of(VALUES) { world.check() } else { Ok(()) }
}

struct Encoder<'a> {
    lua: &'a Lua,
    world: &'a World,
    out: Vec<u8>,
    values: usize,
}

impl Encoder<'_> {
    fn fail(&self, text: &str) -> mlua::Error {
        script_error(self.lua, text)
    }

    fn put(&mut self, value: &Value, depth: usize) -> mlua::Result<()> {
        count(self.world, &mut self.values)?;
        if self.out.len() > LEN_MAX {
            return Err(self.fail(&format!("Cannot serialise over {LEN_MAX} bytes")));
        }
        match value {
            Value::Nil => self.out.extend_from_slice(b"null"),
            Value::LightUserData(data) if data.0.is_null() => self.out.extend_from_slice(b"null"),
            Value::Boolean(true) => self.out.extend_from_slice(b"true"),
            Value::Boolean(false) => self.out.extend_from_slice(b"false"),
            Value::Integer(number) => self.number(*number as f64)?,
            Value::Number(number) => self.number(*number)?,
            Value::String(text) => self.text(&text.as_bytes()),
            Value::Table(_) if depth == DEPTH_MAX => {
                return Err(self.fail("Cannot serialise, excessive depth (129)"));
            }
            Value::Table(table) => match self.list_len(table)? {
                Some(len) if len > 0 => self.list(table, len, depth + 1)?,
                _ => self.object(table, depth + 1)?,
            },
            other => {
                let text = format!("Cannot serialise {}: type not supported", other.type_name());
                return Err(self.fail(&text));
            }
        }
        Ok(())
    }

    fn number(&mut self, number: f64) -> mlua::Result<()> {
        if !number.is_finite() {
            return Err(self.fail("Cannot serialise number: must not be NaN or Inf"));
        }
        self.out.extend_from_slice(general(number).as_bytes());
        Ok(())
    }

    /// The last index of a table that is a list.
    fn list_len(&self, table: &Table) -> mlua::Result<Option<usize>> {
        let (mut last, mut items) = (0, 0_usize);
        for pair in table.pairs::<Value, Value>() {
            let (key, _) = pair?;
            if items.is_multiple_of(VALUES) {
                self.world.check()?;
            }
            let index = match key {
                Value::Integer(index) if index > 0 => index as usize,
                Value::Number(index) if index > 0.0 && index.fract() == 0.0 => index as usize,
                _ => return Ok(None),
            };
            last = last.max(index);
            items += 1;
        }
        if last > 10 && last > items.saturating_mul(2) {
            return Err(self.fail("Cannot serialise table: excessively sparse array"));
        }
        Ok(Some(last))
    }

    fn list(&mut self, table: &Table, len: usize, depth: usize) -> mlua::Result<()> {
        self.out.push(b'[');
        for index in 1..=len {
            if index > 1 {
                self.out.push(b',');
            }
            self.put(&table.raw_get(index)?, depth)?;
        }
        self.out.push(b']');
        Ok(())
    }

    fn object(&mut self, table: &Table, depth: usize) -> mlua::Result<()> {
        self.out.push(b'{');
        let start = self.out.len();
        for pair in table.pairs::<Value, Value>() {
            let (key, value) = pair?;
            if self.out.len() > start {
                self.out.push(b',');
            }
            match &key {
                Value::String(text) => self.text(&text.as_bytes()),
                Value::Integer(number) => {
                    self.out.extend_from_slice(format!("\"{number}\"").as_bytes());
                }
                Value::Number(number) => {
                    self.out.extend_from_slice(format!("\"{}\"", general(*number)).as_bytes());
                }
                _ => {
                    let text = "Cannot serialise table: table key must be a number or string";
                    return Err(self.fail(text));
                }
            }
            self.out.push(b':');
            self.put(&value, depth)?;
        }
        self.out.push(b'}');
        Ok(())
    }

    fn text(&mut self, text: &[u8]) {
        self.out.push(b'"');
        for &byte in text {
            match byte {
                b'"' | b'\\' | b'/' => self.out.extend_from_slice(&[b'\\', byte]),
                8 => self.out.extend_from_slice(b"\\b"),
                9 => self.out.extend_from_slice(b"\\t"),
                10 => self.out.extend_from_slice(b"\\n"),
                12 => self.out.extend_from_slice(b"\\f"),
                13 => self.out.extend_from_slice(b"\\r"),
                0..32 | 127 => self.out.extend_from_slice(format!("\\u{byte:04x}").as_bytes()),
                _ => self.out.push(byte),
            }
        }
        self.out.push(b'"');
    }
}

/// A number with 14 digits at most, as C's `%.14g` writes it.
pub(crate) fn general(number: f64) -> String {
    if number == 0.0 {
        return if number.is_sign_negative() { "-0" } else { "0" }.to_owned();
    }
    let scientific = format!("{number:.13e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let trimmed = |text: &str| match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text.to_owned(),
    };
    if (-4..14).contains(&exponent) {
        return trimmed(&format!("{number:.*}", (13 - exponent) as usize));
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{}e{sign}{:02}", trimmed(mantissa), exponent.abs())
}

struct Decoder<'a> {
    lua: &'a Lua,
    world: &'a World,
    text: &'a [u8],
    at: usize,
    values: usize,
}

impl Decoder<'_> {
    fn skip(&mut self) {
        while self.text.get(self.at).is_some_and(|byte| b" \t\r\n".contains(byte)) {
            self.at += 1;
        }
    }

    fn expected(&self, what: &str) -> mlua::Error {
        let found = if self.at < self.text.len() { "invalid token" } else { "T_END" };
        let at = self.at + 1;
        let text = format!("Expected {what} but found {found} at character {at}");
        script_error(self.lua, &text)
    }

    fn takes(&mut self, word: &[u8]) -> bool {
        let is_it = self.text[self.at..].starts_with(word);
        self.at += if is_it { word.len() } else { 0 };
        is_it
    }

    fn value(&mut self, depth: usize) -> mlua::Result<Value> {
        count(self.world, &mut self.values)?;
        if depth > DEPTH_MAX {
            let text =
                format!("Found too many nested data structures ({depth}) at character {}", self.at);
            return Err(script_error(self.lua, &text));
        }
        self.skip();
        match self.text.get(self.at) {
            Some(b'{') => self.object(depth + 1),
            Some(b'[') => self.list(depth + 1),
            Some(b'"') => Ok(Value::String(self.lua.create_string(self.string()?)?)),
            Some(b'-' | b'0'..=b'9') => self.number(),
            _ if self.takes(b"true") => Ok(Value::Boolean(true)),
            _ if self.takes(b"false") => Ok(Value::Boolean(false)),
            _ if self.takes(b"null") => {
                Ok(Value::LightUserData(LightUserData(std::ptr::null_mut())))
            }
            _ => Err(self.expected("value")),
        }
    }

    fn list(&mut self, depth: usize) -> mlua::Result<Value> {
        let list = self.lua.create_table()?;
        self.at += 1;
        self.skip();
        if self.takes(b"]") {
            return Ok(Value::Table(list));
        }
        for index in 1.. {
            list.raw_set(index, self.value(depth)?)?;
            self.skip();
            if self.takes(b"]") {
                break;
            }
            if !self.takes(b",") {
                return Err(self.expected("comma or array end"));
            }
        }
        Ok(Value::Table(list))
    }

    fn object(&mut self, depth: usize) -> mlua::Result<Value> {
        let object = self.lua.create_table()?;
        self.at += 1;
        self.skip();
        if self.takes(b"}") {
            return Ok(Value::Table(object));
        }
        loop {
            self.skip();
            if self.text.get(self.at) != Some(&b'"') {
                return Err(self.expected("object key string"));
            }
            let key = self.lua.create_string(self.string()?)?;
            self.skip();
            if !self.takes(b":") {
                return Err(self.expected("colon"));
            }
            object.raw_set(key, self.value(depth)?)?;
            self.skip();
            if self.takes(b"}") {
                return Ok(Value::Table(object));
            }
            if !self.takes(b",") {
                return Err(self.expected("comma or object end"));
            }
        }
    }

    fn number(&mut self) -> mlua::Result<Value> {
        let rest = &self.text[self.at..];
        let is_part = |byte: &&u8| matches!(byte, b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E');
        let len = rest.iter().take_while(is_part).count();
        let number = std::str::from_utf8(&rest[..len]).ok().and_then(|text| text.parse().ok());
        let number: f64 = number.ok_or_else(|| self.expected("value"))?;
        self.at += len;
        Ok(Value::Number(number))
    }

    /// A string, from its quote on.
    fn string(&mut self) -> mlua::Result<Vec<u8>> {
        let mut out = Vec::new();
        self.at += 1;
        loop {
            let rest = &self.text[self.at..];
            let plain =
                rest.iter().take_while(|byte| !matches!(byte, b'"' | b'\\' | 0..32)).count();
            out.extend_from_slice(&rest[..plain]);
            self.at += plain;
            match self.text.get(self.at) {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(out);
                }
                Some(b'\\') => self.escape(&mut out)?,
                _ => return Err(self.expected("string end")),
            }
        }
    }

    fn escape(&mut self, out: &mut Vec<u8>) -> mlua::Result<()> {
        self.at += 2;
        out.push(match self.text.get(self.at - 1) {
            Some(&byte @ (b'"' | b'\\' | b'/')) => byte,
            Some(b'b') => 8,
            Some(b't') => 9,
            Some(b'n') => 10,
            Some(b'f') => 12,
            Some(b'r') => 13,
            Some(b'u') => {
                let text = self.unicode()?;
                let mut bytes = [0; 4];
                out.extend_from_slice(text.encode_utf8(&mut bytes).as_bytes());
                return Ok(());
            }
            _ => return Err(self.expected("a valid escape code")),
        });
        Ok(())
    }

    fn unit(&mut self) -> Option<u32> {
        let digits = self.text.get(self.at..self.at + 4)?;
        self.at += 4;
        let digit = |byte: &u8| char::from(*byte).to_digit(16);
        digits.iter().try_fold(0, |unit, byte| Some(unit * 16 + digit(byte)?))
    }

    /// A character of one unit of UTF-16 or of two.
    fn unicode(&mut self) -> mlua::Result<char> {
        let first = self.unit().ok_or_else(|| self.expected("a unicode escape"))?;
        let mut code = first;
        if (0xd800..0xdc00).contains(&first) {
            let second = if self.takes(b"\\u") { self.unit() } else { None };
            let second = second.filter(|unit| (0xdc00..0xe000).contains(unit));
            let second = second.ok_or_else(|| self.expected("a unicode escape"))?;
            code = 0x1_0000 + ((first - 0xd800) << 10) + (second - 0xdc00);
        }
        char::from_u32(code).ok_or_else(|| self.expected("a unicode escape"))
    }
}

#[cfg(test)]
mod tests {
    use super::general;

    #[test]
    fn numbers_have_fourteen_digits_at_most() {
        for (number, expected) in [
            (0.0, "0"),
            (1.0, "1"),
            (-5e3, "-5000"),
            (0.1 + 0.2, "0.3"),
            (1e14, "1e+14"),
            (12_345_678_901_234.0, "12345678901234"),
            (0.0001, "0.0001"),
            (0.000_01, "1e-05"),
            (1023.2, "1023.2"),
            (1.5e300, "1.5e+300"),
        ] {
            assert_eq!(general(number), expected);
        }
    }
}

//! `gabion db load`: sorted records become files of a store, as `scan --json` prints them.

use super::out::{Out, Told};
use crate::options::{CodecOptions, DbPlace};
use crate::screen::Progress;
use crate::units::{count, size};
use gabion_base::units::{KEY_LEN_MAX, VALUE_LEN_MAX};
use gabion_base::{Error, ErrorKind, Result};
use gabion_db::{BulkLoad, Db, Expiry, Loaded};
use serde_json::{Value, json};
use std::fs::{File, Metadata};
use std::io::{BufRead, BufReader, Read as _, stdin};
use std::path::Path;

/// Records between two updates of the progress.
const SAY_EVERY: u64 = 50_000;
/// Bytes of a line: the longest key and value, each of whose bytes takes up to six in JSON
/// (`\u0000`), and the rest of the object.
const LINE_LEN_MAX: usize = 6 * (KEY_LEN_MAX + VALUE_LEN_MAX) + 1024;

pub(super) fn run(place: &DbPlace, codecs: &CodecOptions, file: Option<&Path>) -> Result<u8> {
    let mut len = None;
    let input: Box<dyn BufRead> = match file.filter(|file| *file != Path::new("-")) {
        None => Box::new(stdin().lock()),
        Some(path) => {
            let opened = File::open(path).map_err(|error| {
                let what = format!("{}: cannot be opened", path.display());
                Error::with_source(ErrorKind::Io, what, error)
            })?;
            // A pipe or a device has no known length.
            len = opened.metadata().ok().filter(Metadata::is_file).map(|file| file.len());
            Box::new(BufReader::with_capacity(1 << 20, opened))
        }
    };
    let (db, _) = super::open_store(place, codecs, "to load into")?;
    let mut out = Out::new(std::io::stdout(), place.json);
    let told = tell(load(&db, input, len), &mut out);
    drop(db);
    out.end(told)
}

fn tell(loaded: Result<Loaded>, out: &mut Out) -> Told {
    let Loaded { entries, files, bytes } = loaded?;
    if out.json {
        return out.document(&json!({ "records": entries, "files": files, "bytes": bytes }));
    }
    let (records, files) = (count(entries, "record"), count(files, "file"));
    out.text(&format!("{records} loaded as {files} ({})\n", size(bytes)))
}

/// Loads all lines, or nothing. `len`: their bytes, if known.
fn load(db: &Db, input: impl BufRead, len: Option<u64>) -> Result<Loaded> {
    let mut progress = Progress::new();
    let mut load = db.bulk_load()?;
    let added = add(&mut load, input, len, &mut progress);
    let loaded = added.and_then(|()| finish(db, load, &mut progress));
    progress.clear();
    loaded
}

/// Adds all lines to a load.
fn add(
    load: &mut BulkLoad,
    mut input: impl BufRead,
    len: Option<u64>,
    progress: &mut Progress,
) -> Result<()> {
    let (mut line, mut number, mut done) = (Vec::new(), 0u64, 0u64);
    loop {
        line.clear();
        number += 1;
        let at = |error: Error| error.within(format!("line {number}"));
        let read = (&mut input).take(LINE_LEN_MAX as u64 + 1).read_until(b'\n', &mut line);
        let read = read.map_err(|e| Error::with_source(ErrorKind::Io, "it cannot be read", e));
        if read.map_err(at)? == 0 {
            return Ok(());
        }
        done += line.len() as u64;
        if line.len() > LINE_LEN_MAX {
            let what = format!("it is longer than {LINE_LEN_MAX} bytes, which no record takes");
            return Err(at(Error::limit(what)));
        }
        if line.trim_ascii().is_empty() {
            continue;
        }
        let (key, value, expires_ms) = record(&line).map_err(at)?;
        let added = match expires_ms {
            None => load.put(&key, &value),
            Some(at_ms) => load.put_expiring(&key, &value, Expiry::AtMs(at_ms)),
        };
        added.map_err(at)?;
        if number.is_multiple_of(SAY_EVERY) {
            let Loaded { entries, bytes, .. } = load.loaded();
            let so_far = format!("{}, {} written", count(entries, "record"), size(bytes));
            match len {
                Some(len) => progress.bar(done, len, &so_far),
                None => progress.say(&so_far),
            }
        }
    }
}

/// Ends a load, which waits for earlier writes to the store.
fn finish(db: &Db, load: BulkLoad, progress: &mut Progress) -> Result<Loaded> {
    let records = count(load.loaded().entries, "record");
    let written = || db.stats().counters.job_written_bytes;
    let then = written();
    let so_far = || {
        let written = size(written() - then);
        format!("{records}, waits for flush and compactions: {written} written")
    };
    progress.during(|| load.finish(), so_far)
}

type Record = (Vec<u8>, Vec<u8>, Option<u64>);

/// `{"key": …, "value": …}`, and `"expires_ms"` where the key expires.
fn record(line: &[u8]) -> Result<Record> {
    let parsed: Value = serde_json::from_slice(line)
        .map_err(|error| Error::invalid(format!("is no JSON object: {error}")))?;
    let part = |name: &str| {
        bytes_of(&parsed[name]).ok_or_else(|| {
            Error::invalid(format!("\"{name}\" is neither a string nor {{\"hex\": \"00ff\"}}"))
        })
    };
    let expires_ms = match &parsed["expires_ms"] {
        Value::Null => None,
        at => Some(at.as_u64().ok_or_else(|| {
            Error::invalid(format!("\"expires_ms\" is {at}, which is no number of milliseconds"))
        })?),
    };
    Ok((part("key")?, part("value")?, expires_ms))
}

fn bytes_of(value: &Value) -> Option<Vec<u8>> {
    if let Some(text) = value.as_str() {
        return Some(text.as_bytes().to_vec());
    }
    let (digits, rest) = value["hex"].as_str()?.as_bytes().as_chunks::<2>();
    let byte = |pair: &[u8; 2]| {
        let text = std::str::from_utf8(pair).ok()?;
        let is_hex = pair.iter().all(u8::is_ascii_hexdigit);
        u8::from_str_radix(text, 16).ok().filter(|_| is_hex)
    };
    rest.is_empty().then(|| digits.iter().map(byte).collect()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::db::out::bytes;
    use gabion_db::Options;
    use gabion_sim::hostile::{Counting, Format};

    #[global_allocator]
    static ALLOCATOR: Counting = Counting;

    /// The line of a record.
    fn line_of((key, value, expires_ms): &Record) -> Vec<u8> {
        let mut line = json!({ "key": bytes(key), "value": bytes(value) });
        if let Some(at_ms) = expires_ms {
            line["expires_ms"] = (*at_ms).into();
        }
        line.to_string().into_bytes()
    }

    /// docs/faults.md: E14
    #[test]
    fn no_line_panics_or_reserves_much_and_one_that_is_taken_is_a_record() {
        let records: [Record; 4] = [
            (b"key".to_vec(), b"value".to_vec(), None),
            (b"\xff\0".to_vec(), vec![b'"'; 40], Some(u64::MAX)),
            (b"a\nb\\".to_vec(), (0..=255).collect(), Some(1)),
            (Vec::new(), "\u{1f600}\u{7}".into(), None),
        ];
        let lines = records.iter().map(line_of).collect();
        let format = Format {
            // Spaces, escapes, hexadecimal digits and fields without a meaning.
            is_canonical: false,
            ..Format::new("line of a load", lines, |line| record(line).map(|it| Some(line_of(&it))))
        };
        format.run();
        for it in &records {
            assert_eq!(record(&line_of(it)).unwrap(), *it);
        }
    }

    /// `len` bytes of a line that never ends.
    struct Endless(usize);

    impl std::io::Read for Endless {
        fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
            into.fill(b' ');
            self.0 += into.len();
            Ok(into.len())
        }
    }

    /// docs/faults.md: E14
    #[test]
    fn a_line_that_does_not_end_is_refused_at_the_limit() {
        let dir = std::env::temp_dir().join(format!("gabion-db-load-line-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        let db = Db::create(&dir, &Options { pool_len: 128 << 20, ..Options::default() }).unwrap();
        let mut endless = Endless(0);
        let input = BufReader::with_capacity(1 << 20, &mut endless);
        let error = load(&db, input, None).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::LimitExceeded);
        assert!(error.to_string().contains("line 1: it is longer than 50"), "{error}");
        assert!(endless.0 < LINE_LEN_MAX + (2 << 20), "{} bytes were read", endless.0);
        drop(db);
        std::fs::remove_dir_all(&dir).unwrap();
    }

    /// docs/faults.md: P10
    #[test]
    fn lines_are_loaded_all_or_none_and_a_wrong_one_is_named() {
        let dir = std::env::temp_dir().join(format!("gabion-db-load-cli-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        let db = Db::create(&dir, &Options { pool_len: 128 << 20, ..Options::default() }).unwrap();
        let lines = "{\"key\":\"a\",\"value\":\"1\"}\n\n{\"key\":{\"hex\":\"61ff\"},\"value\":{\"hex\":\"00\"},\
                     \"expires_ms\":99999999999999}\n{\"key\":\"b\",\"value\":\"3\"}";
        let loaded = load(&db, lines.as_bytes(), None).unwrap();
        assert_eq!((loaded.entries, loaded.files), (3, 1));
        assert_eq!(db.get(b"a\xff").unwrap().as_deref(), Some(&b"\0"[..]));
        assert_eq!(db.expires_at(b"a\xff").unwrap(), Some(99_999_999_999_999));
        for (last, wrong) in [
            ("{\"key\":\"a\",\"value\":\"2\"}", "key \"a\" is not after \"c\""),
            ("{\"key\":\"d\"}", "\"value\" is neither a string"),
            ("{\"key\":\"d\",\"value\":{\"hex\":\"0\"}}", "\"value\" is neither a string"),
            ("{\"key\":\"d\",\"value\":\"\",\"expires_ms\":-1}", "is -1, which is no number"),
            ("d 1", "is no JSON object"),
        ] {
            let lines = format!("{{\"key\":\"c\",\"value\":\"2\"}}\n{last}\n");
            let error = load(&db, lines.as_bytes(), None).unwrap_err().to_string();
            assert!(error.contains("line 2") && error.contains(wrong), "{error}");
            assert_eq!(db.get(b"c").unwrap(), None);
        }
        drop(db);
        std::fs::remove_dir_all(&dir).unwrap();
    }
}

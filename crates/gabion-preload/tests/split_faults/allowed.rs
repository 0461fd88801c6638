//! Bytes that may be in a file after a crash: each is that of its last sync, or of a later write.

use crate::bytes::bytes;
use std::collections::BTreeMap;

/// A byte of a file.
#[derive(Clone, Default)]
struct Byte {
    /// In the file system's cache.
    last: u8,
    /// Bytes that the disk or the journal may still have in its place.
    others: Vec<u8>,
}

/// A file, by what was written to it and synced.
#[derive(Clone, Default)]
pub(crate) struct Allowed {
    bytes: Vec<Byte>,
    /// The file is so long, and was at its last sync: writes that failed add nothing.
    len: usize,
    synced: usize,
}

impl Allowed {
    /// A range in which nothing was written yet.
    pub(crate) fn new(len: usize) -> Self {
        Self { bytes: vec![Byte::default(); len], len: 0, synced: 0 }
    }

    fn at(&mut self, offset: usize, len: usize) -> &mut [Byte] {
        let end = self.bytes.len().max(offset + len);
        self.bytes.resize(end, Byte::default());
        &mut self.bytes[offset..offset + len]
    }

    pub(crate) fn write(&mut self, offset: usize, bytes: &[u8]) {
        self.len = self.len.max(offset + bytes.len());
        for (byte, new) in self.at(offset, bytes.len()).iter_mut().zip(bytes) {
            byte.others.push(std::mem::replace(&mut byte.last, *new));
        }
    }

    /// A write that failed may have changed the file or not.
    pub(crate) fn fail(&mut self, offset: usize, bytes: &[u8]) {
        for (byte, new) in self.at(offset, bytes.len()).iter_mut().zip(bytes) {
            byte.others.push(*new);
        }
    }

    pub(crate) fn sync(&mut self) {
        self.bytes.iter_mut().for_each(|byte| byte.others.clear());
        self.synced = self.len;
    }

    /// The same of bytes amid a file, whose length is others' too.
    pub(crate) fn check_part(&self, found: &[u8]) -> Result<(), String> {
        let mut part = found[..found.len().min(self.bytes.len())].to_vec();
        part.resize(self.bytes.len(), 0);
        self.check(&part)
    }

    /// Whether these may be the file's bytes; else a sentence.
    pub(crate) fn check(&self, found: &[u8]) -> Result<(), String> {
        if found.len() < self.synced || found.len() > self.bytes.len() {
            let (len, synced, all) = (found.len(), self.synced, self.bytes.len());
            return Err(format!("{len} bytes, of {synced} that were synced and {all} in all"));
        }
        let is_wrong =
            |(byte, found): (&Byte, &u8)| byte.last != *found && !byte.others.contains(found);
        match self.bytes.iter().zip(found).position(is_wrong) {
            Some(at) => Err(format!("byte {at} is {}, of {:?}", found[at], self.bytes[at].last)),
            None => Ok(()),
        }
    }
}

/// The files of a script of `open`, `pwrite`, `fsync` and `rename`, by their first names.
#[derive(Default)]
pub(crate) struct History {
    pub(crate) files: BTreeMap<String, Allowed>,
    /// First names by registers.
    open: BTreeMap<String, String>,
    /// First names by names.
    names: BTreeMap<String, String>,
}

impl History {
    /// The writes of a script, by the result of each line.
    pub(crate) fn of(text: &str, said: &[String]) -> Self {
        let mut history = Self::default();
        assert_eq!(text.lines().count(), said.len(), "{said:?}");
        for (line, said) in text.lines().zip(said) {
            history.line(&line.split(' ').collect::<Vec<_>>(), said);
        }
        history
    }

    fn line(&mut self, words: &[&str], said: &str) {
        let is_done = !said.starts_with('E');
        match words {
            ["open", register, name, ..] if is_done => {
                let first = self.names.entry((*name).to_owned()).or_insert((*name).to_owned());
                self.open.insert((*register).to_owned(), first.clone());
                self.files.entry(first.clone()).or_default();
            }
            ["pwrite", register, seed, len, offset] => {
                let bytes = bytes(seed.parse().unwrap(), len.parse().unwrap());
                let offset = offset.parse().unwrap();
                let Some(file) = self.file(register) else { return };
                match said.parse::<usize>() {
                    Ok(written) => file.write(offset, &bytes[..written]),
                    Err(_) => file.fail(offset, &bytes),
                }
            }
            ["fsync", register] if is_done => {
                self.file(register).into_iter().for_each(Allowed::sync)
            }
            ["rename", from, to, "0"] if is_done => {
                let first = self.names.remove(*from).expect("a name that is there");
                self.names.insert((*to).to_owned(), first);
            }
            _ => {}
        }
    }

    /// The file of a register; none if it was not opened.
    fn file(&mut self, register: &str) -> Option<&mut Allowed> {
        self.files.get_mut(self.open.get(register)?)
    }
}

#[test]
fn bytes_of_no_sync_and_no_later_write_are_found() {
    let mut file = Allowed::default();
    file.write(0, b"old");
    file.sync();
    file.write(1, b"EW!");
    file.fail(0, b"X");
    for good in [&b"old"[..], b"oEd", b"Xld!", b"oEW\0"] {
        assert_eq!(file.check(good), Ok(()), "{good:?}");
    }
    for bad in [&b"ol"[..], b"oXd", b"\0ld", b"oldxx"] {
        assert!(file.check(bad).is_err(), "{bad:?}");
    }
    file.fail(9, b"beyond");
    file.sync();
    assert_eq!(file.check(b"oEW!"), Ok(()), "a failed write is not synced");
    assert!(file.check(b"oEW").is_err());
}

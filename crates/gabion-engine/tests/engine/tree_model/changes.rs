//! What changes the tree and the map in the same way: batches, and bulk loads.

use super::World;
use crate::support::*;
use gabion_engine::load::Loaded;
use gabion_engine::*;

/// Names that there may be, in their order.
pub(super) const NAMES: u64 = 400;

/// A name by its number: names ascend as numbers do. Some are the beginning of others, some are
/// told apart by what lies behind the most bytes that bounds of files usually have.
pub(super) fn name(number: u64) -> Vec<u8> {
    /// As long as a bound of a file, but for the keyspace.
    const BOUND_LEN: usize = 255;
    let mut name = format!("key{number:03}").into_bytes();
    match number {
        100..126 => {
            name = b"key100".to_vec();
            name.resize(BOUND_LEN, b'x');
            name.push(b'a' + (number - 100) as u8);
        }
        300..306 => {
            name = b"key300".to_vec();
            name.resize(BOUND_LEN + 300, b'y');
            name.push(number as u8);
        }
        _ => name.resize(name.len() + (number % 3) as usize * 4, b'0'),
    }
    name
}

impl World {
    pub(super) fn write(&mut self) {
        let mut batch = BatchBuilder::new();
        for _ in 0..=self.random.below(8) {
            let space = if self.random.one_in(20) { Keyspace::System } else { Keyspace::User };
            // The empty name has the engine key of a clear.
            let name = match self.random.one_in(50) {
                true => Vec::new(),
                false => name(self.random.below(NAMES)),
            };
            let full = [&[space as u8][..], &name].concat();
            let n = self.random.below(400);
            if (1..=self.range_deletes).contains(&n) {
                self.delete_range(&mut batch, space);
                continue;
            }
            match n {
                0 => {
                    batch.clear(Keyspace::User).unwrap();
                    self.written.retain(|key, _| key[0] == 0);
                }
                1..60 => self.add(&mut batch, space, &name, full),
                60..120 => {
                    batch.delete(space, &name).unwrap();
                    self.written.remove(&full);
                }
                n => {
                    let value = match n % 3 {
                        0 => any_number(&mut self.random).to_string().into_bytes(),
                        _ => vec![n as u8; self.random.below(200) as usize],
                    };
                    // Some are gone before they are written.
                    let expires_ms = (n < 220)
                        .then(|| (self.group_ms + self.random.below(300)).saturating_sub(5));
                    match expires_ms {
                        None => batch.put(space, &name, &value).unwrap(),
                        Some(at) => _ = batch.put_expiring(space, &name, &value, at).unwrap(),
                    }
                    self.written.insert(full, (value, expires_ms));
                }
            }
        }
        let first = self.primary.tree.last_sequence().next();
        self.append(Record::Batch(first, batch.finish()));
        // A batch's own time comes with it. A head whose clock is behind changes nothing.
        if self.random.one_in(2) {
            let now_ms = self.group_ms + self.random.below(12);
            self.group_ms = self.group_ms.max(now_ms.saturating_sub(4));
            self.append(Record::Time(now_ms.saturating_sub(4)));
        }
        if self.primary.tree.needs_seal() || self.random.one_in(60) {
            self.append(Record::Seal(self.primary.tree.active_id()));
        }
    }

    /// Deletes a range: of a few keys, of many, to or from a key of another, to the end.
    fn delete_range(&mut self, batch: &mut BatchBuilder, space: Keyspace) {
        let first = self.random.below(NAMES);
        let most = if self.random.one_in(5) { 300 } else { 10 };
        let end = first + 1 + self.random.below(most);
        let mut from = name(first);
        let mut to = name(end);
        if self.random.one_in(6) {
            from.push(0);
        }
        if self.random.one_in(6) {
            to.push(0);
        }
        if self.random.one_in(30) {
            from.clear();
        }
        let to = (!self.random.one_in(20)).then_some(to);
        batch.delete_range(space, &from, to.as_deref()).unwrap();
        self.written.retain(|key, _| {
            let gone = key[0] == space as u8
                && key[1..] >= from[..]
                && to.as_ref().is_none_or(|to| key[1..] < to[..]);
            !gone
        });
    }

    /// Adds to a counter, of which keys with few others are most, so that operands meet operands.
    fn add(&mut self, batch: &mut BatchBuilder, space: Keyspace, name: &[u8], full: Vec<u8>) {
        for _ in 0..=self.random.below(3) {
            let delta = any_number(&mut self.random);
            batch.merge(space, name, Operand::add(delta, self.group_ms)).unwrap();
            let there = self.written.get(&full);
            let there = there.filter(|(_, at)| at.is_none_or(|at| at > self.group_ms));
            let (before, expires_ms) = match there {
                None => (Some(0), None),
                Some((value, at)) => (number(value), *at),
            };
            if let Some(before) = before {
                let value = before.saturating_add(delta).to_string().into_bytes();
                self.written.insert(full.clone(), (value, expires_ms));
            }
        }
    }

    /// Files of keys that ascend are there at once, with one number, above all that is older and
    /// below all that is newer. What is in memory is flushed before, while others go on writing;
    /// compactions rest meanwhile.
    pub(super) fn load(&mut self) {
        let first = self.primary.tree.last_sequence().next();
        self.append(Record::Skip(first, 1));
        self.append(Record::Seal(self.primary.tree.active_id()));
        let below = self.primary.tree.active_id();
        let files = self.loaded_files();
        let mut more = self.random.below(4);
        while !self.running.is_empty() || self.primary.tree.flushed().memtable.next() < below {
            if self.running.is_empty() {
                let flush = self.primary.tree.next_flush(&context());
                self.running.push(flush.expect("there is a MemTable to be flushed"));
            }
            self.end_job();
            if more > 0 {
                more -= 1;
                self.write();
            }
        }
        let number = self.appended_edit + 1;
        let loaded = Loaded { term: TERM, files, sequence: first };
        let version = self.primary.tree.version().clone();
        let edit = self.primary.tree.finish_load(loaded, &version, number).unwrap();
        self.appended_edit = number;
        self.append(Record::Edit(edit.encode().unwrap()));
        self.begun.loads += 1;
    }

    /// The files of a load, whose pairs are in the map from now on.
    fn loaded_files(&mut self) -> Vec<FileMeta> {
        let sst = self.primary.tree.config().sst_of_job(JobKind::Load, false);
        let mut builder = LoadBuilder::new(GROUP, TERM, sst, 4 << 10);
        let from = self.random.below(NAMES);
        let to = (from + 1 + self.random.below(80)).min(NAMES);
        let mut made = Vec::new();
        for number in (from..to).filter(|n| n % 3 != 1 || *n == from) {
            let value = vec![number as u8; self.random.below(200) as usize];
            let expires_ms = self.random.one_in(5).then(|| self.group_ms + self.random.below(300));
            let tree = &mut self.primary.tree;
            let file = || tree.number_file(TERM);
            made.extend(builder.put(&name(number), &value, expires_ms, file).unwrap());
            self.written.insert(key(&name(number)), (value, expires_ms));
        }
        made.extend(builder.finish());
        let mut metas = Vec::new();
        for file in made {
            self.loaded.insert(file.meta.id, file.bytes.clone());
            self.primary.files.insert(file.meta.id, file.bytes);
            metas.push(file.meta);
        }
        metas
    }
}

/// One that is small, mostly, or near an end.
fn any_number(random: &mut Random) -> i64 {
    match random.below(40) {
        0 => i64::MAX - random.below(9) as i64,
        1 => i64::MIN + random.below(9) as i64,
        _ => random.below(40) as i64 - 15,
    }
}

/// What a value counts as.
fn number(value: &[u8]) -> Option<i64> {
    let number: i64 = std::str::from_utf8(value).ok()?.parse().ok()?;
    (number.to_string().as_bytes() == value).then_some(number)
}

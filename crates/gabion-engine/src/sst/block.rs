//! The bodies of data and index blocks: written in place, searched in place, stepped through.
//! Layout: `sst/mod.rs`.

use crate::entry::{Entry, Trailer};
use alloc::format;
use alloc::vec::Vec;
use core::cmp::Ordering;
use core::ops::Range;
use gabion_base::{Error, Result};
use gabion_media::AlignedBuf;

/// Most bytes before an entry's key: two lengths of a key and one of a value.
const ENTRY_HEADER_LEN_MAX: usize = 15;
const TRAILER_LEN: usize = 8;

/// Bytes at the front of an aligned buffer that grows ahead of what is written. What is behind them
/// may be of an earlier use.
pub(crate) struct Area {
    buf: AlignedBuf,
    len: usize,
}

impl Area {
    /// Zeroed this much at a time: stays in the processor's cache until it is written.
    const STEP: usize = 64 * 1024;

    pub(crate) const fn new(buf: AlignedBuf) -> Self {
        Self { buf, len: 0 }
    }

    /// Bytes written.
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// Everything written.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.buf[..self.len]
    }

    /// Room for `len` bytes behind what is written; who fills it adds that to `len`.
    #[inline]
    fn room(&mut self, len: usize) -> &mut [u8] {
        let end = self.len + len;
        if end > self.buf.len() {
            self.buf.pad_to(end.next_multiple_of(Self::STEP));
        }
        &mut self.buf[self.len..end]
    }

    pub(crate) fn extend(&mut self, bytes: &[u8]) {
        self.room(bytes.len()).copy_from_slice(bytes);
        self.len += bytes.len();
    }

    /// Takes back everything from `len` on and writes `bytes` there.
    pub(super) fn replace_from(&mut self, len: usize, bytes: &[u8]) {
        assert!(len <= self.len, "only what was written is taken back");
        self.len = len;
        self.extend(bytes);
    }

    /// The buffer with zeros up to `rounded`, which is its new length or less.
    pub(crate) fn finish(mut self, rounded: usize) -> AlignedBuf {
        let written = self.len;
        self.room(rounded - written).fill(0);
        self.buf
    }
}

/// Writes the body of one block after the other behind what an [`Area`] holds.
pub(super) struct BlockWriter {
    restart_interval: u32,
    since_restart: u32,
    start: usize,
    restarts: Vec<u32>,
    last_key: Vec<u8>,
}

impl BlockWriter {
    pub(super) const fn new(restart_interval: u32) -> Self {
        Self {
            restart_interval,
            since_restart: 0,
            start: 0,
            restarts: Vec::new(),
            last_key: Vec::new(),
        }
    }

    /// The key of the last entry, in this block or the one before; empty before the first.
    pub(super) fn last_key(&self) -> &[u8] {
        &self.last_key
    }

    /// Whether the block has no entry.
    pub(super) const fn is_empty(&self) -> bool {
        self.restarts.is_empty()
    }

    /// Bytes that the body has if it ends now.
    pub(super) const fn body_len(&self, area: &Area) -> usize {
        let entries = if self.is_empty() { 0 } else { area.len() - self.start };
        entries + self.restarts_len()
    }

    /// Bytes that the restart points will take.
    pub(super) const fn restarts_len(&self) -> usize {
        4 * self.restarts.len() + 4
    }

    /// Appends an entry. The caller keeps the order.
    #[inline]
    pub(super) fn add(&mut self, area: &mut Area, key: &[u8], trailer: Trailer, value: &[u8]) {
        if self.is_empty() {
            self.start = area.len();
        }
        let shared = if self.since_restart == 0 {
            self.restarts.push((area.len() - self.start) as u32);
            self.since_restart = self.restart_interval;
            0
        } else {
            common_prefix_len(&self.last_key, key)
        };
        self.since_restart -= 1;
        let unshared = &key[shared..];
        let room = area.room(ENTRY_HEADER_LEN_MAX + unshared.len() + TRAILER_LEN + value.len());
        let mut at = put_varint(room, 0, shared as u32);
        at = put_varint(room, at, unshared.len() as u32);
        at = put_varint(room, at, value.len() as u32);
        let mut append = |bytes: &[u8]| {
            room[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        };
        append(unshared);
        append(&trailer.raw().to_le_bytes());
        append(value);
        area.len += at;
        self.last_key.truncate(shared);
        self.last_key.extend_from_slice(unshared);
    }

    /// Appends the restart points and returns where the body starts. The next entry begins a new
    /// one.
    pub(super) fn finish(&mut self, area: &mut Area) -> usize {
        for &restart in &self.restarts {
            area.extend(&restart.to_le_bytes());
        }
        area.extend(&(self.restarts.len() as u32).to_le_bytes());
        self.restarts.clear();
        self.since_restart = 0;
        self.start
    }
}

#[inline]
fn put_varint(out: &mut [u8], mut at: usize, mut value: u32) -> usize {
    while value >= 0x80 {
        out[at] = value as u8 | 0x80;
        value >>= 7;
        at += 1;
    }
    out[at] = value as u8;
    at + 1
}

/// Bytes that `a` and `b` begin with in common.
#[inline]
pub(super) fn common_prefix_len(a: &[u8], b: &[u8]) -> usize {
    let len = a.len().min(b.len());
    let mut at = 0;
    while let (Some(x), Some(y)) = (a[at..len].first_chunk::<8>(), b[at..len].first_chunk::<8>()) {
        let differ = u64::from_le_bytes(*x) ^ u64::from_le_bytes(*y);
        if differ != 0 {
            return at + differ.trailing_zeros() as usize / 8;
        }
        at += 8;
    }
    while at < len && a[at] == b[at] {
        at += 1;
    }
    at
}

/// A body that was checked against its checksum. Nothing else is trusted: whatever the bytes, a
/// view answers or errs, and reads nothing outside.
#[derive(Clone, Copy)]
pub(super) struct BlockView<'a> {
    entries: &'a [u8],
    restarts: &'a [u8],
}

/// Where an entry's parts lie in a body.
struct Parts {
    shared: usize,
    unshared: Range<usize>,
    value: Range<usize>,
    trailer: Trailer,
}

/// What a search found.
pub(super) struct Found {
    /// Where the entry begins in the body.
    start: usize,
    /// Bytes of its key that are those of the key that was looked for; the rest lies in the body.
    shared: usize,
    unshared: Range<usize>,
    /// The entry's trailer; a separator's may have no kind.
    pub(super) trailer: Trailer,
    /// Where its value lies in the body.
    pub(super) value: Range<usize>,
    /// Whether its key is the one that was looked for.
    pub(super) key_equal: bool,
}

impl<'a> BlockView<'a> {
    /// # Errors
    /// Corruption when the restart points do not fit the body.
    #[inline]
    pub(super) fn parse(body: &'a [u8]) -> Result<Self> {
        let split = || {
            let (rest, count) = body.split_last_chunk::<4>()?;
            let restarts_len = (u32::from_le_bytes(*count) as usize).checked_mul(4)?;
            let at = rest.len().checked_sub(restarts_len)?;
            (restarts_len > 0).then(|| rest.split_at(at))
        };
        let (entries, restarts) =
            split().ok_or_else(|| Error::corruption("block: restart points do not fit"))?;
        Ok(Self { entries, restarts })
    }

    #[inline]
    fn parts(&self, at: usize) -> Result<Parts> {
        parts_of(self.entries, at).ok_or_else(|| bad_entry(at))
    }

    fn restart(&self, index: usize) -> Result<(usize, &'a [u8], Trailer)> {
        let at = match self.restarts.get(4 * index..).and_then(|rest| rest.first_chunk::<4>()) {
            Some(bytes) => u32::from_le_bytes(*bytes) as usize,
            None => return Err(Error::corruption("block: no such restart point")),
        };
        let parts = self.parts(at)?;
        if parts.shared != 0 {
            return Err(bad_entry(at));
        }
        Ok((at, &self.entries[parts.unshared], parts.trailer))
    }

    /// Where to begin a linear search: the last restart point before (key, trailer), or the first
    /// one.
    fn last_restart_before(&self, key: &[u8], trailer: Trailer) -> Result<usize> {
        let mut low = 0;
        let mut high = self.restarts.len() / 4;
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            let (_, found_key, found) = self.restart(middle)?;
            match crate::entry::compare(found_key, found, key, trailer) {
                Ordering::Less => low = middle,
                _ => high = middle,
            }
        }
        self.restart(low).map(|(at, _, _)| at)
    }

    /// The last restart point before the entry at byte `start`, which is not the first.
    fn last_restart_before_offset(&self, start: usize) -> Result<usize> {
        let (restarts, _) = self.restarts.as_chunks::<4>();
        let count = restarts.partition_point(|at| (u32::from_le_bytes(*at) as usize) < start);
        let index = count.checked_sub(1).ok_or_else(|| bad_entry(start))?;
        let (at, ..) = self.restart(index)?;
        if at < start { Ok(at) } else { Err(bad_entry(start)) }
    }

    /// The first entry at or after (key, trailer), without building any key.
    pub(super) fn search(&self, key: &[u8], trailer: Trailer) -> Result<Option<Found>> {
        let mut at = self.last_restart_before(key, trailer)?;
        // Bytes that the entry before has in common with `key`; that entry is before the target.
        let mut matched = 0;
        while at < self.entries.len() {
            let start = at;
            let parts = self.parts(at)?;
            at = parts.value.end;
            if parts.shared > matched {
                // It differs from `key` where the entry before it did, so it is before it too.
                continue;
            }
            let unshared = &self.entries[parts.unshared.clone()];
            let rest = &key[parts.shared..];
            match unshared.cmp(rest) {
                Ordering::Less => {
                    matched = parts.shared + common_prefix_len(unshared, rest);
                    continue;
                }
                Ordering::Equal if parts.trailer > trailer => {
                    matched = key.len();
                    continue;
                }
                order => {
                    let key_equal = order == Ordering::Equal;
                    return Ok(Some(Found {
                        start,
                        shared: parts.shared,
                        unshared: parts.unshared,
                        trailer: parts.trailer,
                        value: parts.value,
                        key_equal,
                    }));
                }
            }
        }
        Ok(None)
    }
}

#[cold]
fn bad_entry(at: usize) -> Error {
    Error::corruption(format!("block: bad entry at byte {at}"))
}

#[inline]
fn parts_of(entries: &[u8], at: usize) -> Option<Parts> {
    let header = entries.get(at..)?;
    let (shared, unshared, value_len, header_len) = match *header.first_chunk::<4>()? {
        [shared, unshared, value, _] if shared | unshared | value < 0x80 => {
            (usize::from(shared), usize::from(unshared), usize::from(value), 3)
        }
        [shared, unshared, low, high] if shared | unshared | high < 0x80 => {
            let value = usize::from(low & 0x7f) | usize::from(high) << 7;
            (usize::from(shared), usize::from(unshared), value, 4)
        }
        _ => long_header(header)?,
    };
    let key_at = at + header_len;
    let trailer_at = key_at.checked_add(unshared)?;
    let value_at = trailer_at.checked_add(TRAILER_LEN)?;
    let end = value_at.checked_add(value_len)?;
    if end > entries.len() {
        return None;
    }
    let trailer = u64::from_le_bytes(*entries.get(trailer_at..)?.first_chunk::<TRAILER_LEN>()?);
    Some(Parts {
        shared,
        unshared: key_at..trailer_at,
        value: value_at..end,
        trailer: Trailer::from_raw_unchecked(trailer),
    })
}

#[cold]
fn long_header(header: &[u8]) -> Option<(usize, usize, usize, usize)> {
    let mut at = 0;
    let mut varint = || {
        let mut value = 0u32;
        for shift in [0, 7, 14, 21, 28] {
            let byte = *header.get(at)?;
            at += 1;
            value |= u32::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(value as usize);
            }
        }
        None
    };
    let (shared, unshared, value) = (varint()?, varint()?, varint()?);
    Some((shared, unshared, value, at))
}

/// A position in a body that the caller keeps: the entry there, its key put together.
///
/// It goes forwards by parsing the next entry. An entry does not say where the one before it
/// begins, so backwards it parses from the last restart point before it, and keeps what it met for
/// the next steps: every entry is parsed once per way through the body.
pub(super) struct BlockCursor {
    key: Vec<u8>,
    trailer: Trailer,
    /// Where the entry here begins; where the entries end when the cursor went past the last.
    start: usize,
    value: Range<usize>,
    /// Where the entries end; 0 before a body was entered.
    end: usize,
    valid: bool,
    before: Before,
}

/// Entries of a body right before the cursor's, put together when it went backwards.
struct Before {
    /// Their keys, one behind the other.
    keys: Vec<u8>,
    entries: Vec<Parsed>,
}

struct Parsed {
    start: usize,
    /// Where its key begins; it ends where the next one's begins.
    key_at: usize,
    trailer: Trailer,
    value: Range<usize>,
}

/// Bytes of keys kept ahead of a cursor that goes backwards, or one key's. With the default restart
/// interval less is needed even for long keys; without a limit a crafted body could ask for
/// gigabytes.
const BEFORE_LEN_MAX: usize = 1 << 20;

impl Before {
    const fn new() -> Self {
        Self { keys: Vec::new(), entries: Vec::new() }
    }

    fn clear(&mut self) {
        self.keys.clear();
        self.entries.clear();
    }

    /// Whether the last entry here is the one right before `start`.
    fn adjoins(&self, start: usize) -> bool {
        self.entries.last().is_some_and(|last| last.value.end == start)
    }

    fn push(&mut self, start: usize, key: &[u8], parts: Parts) {
        if self.keys.len() + key.len() > BEFORE_LEN_MAX {
            self.clear();
        }
        let (key_at, trailer, value) = (self.keys.len(), parts.trailer, parts.value);
        self.keys.extend_from_slice(key);
        self.entries.push(Parsed { start, key_at, trailer, value });
    }
}

impl BlockCursor {
    pub(super) const fn new() -> Self {
        Self {
            key: Vec::new(),
            trailer: Trailer::FIRST,
            start: 0,
            value: 0..0,
            end: 0,
            valid: false,
            before: Before::new(),
        }
    }

    /// Before the first entry of `body`.
    pub(super) fn enter(&mut self, body: &[u8]) -> Result<()> {
        self.leave();
        self.key.clear();
        self.end = BlockView::parse(body)?.entries.len();
        Ok(())
    }

    /// Past the last entry of `body`.
    pub(super) fn enter_at_end(&mut self, body: &[u8]) -> Result<()> {
        self.enter(body)?;
        self.start = self.end;
        self.value = self.end..self.end;
        Ok(())
    }

    /// To the next entry of `body`; false at its end.
    #[inline]
    pub(super) fn advance(&mut self, body: &[u8]) -> Result<bool> {
        let at = self.value.end;
        self.start = at;
        if at >= self.end {
            self.valid = false;
            return Ok(false);
        }
        let parts = parts_of(&body[..self.end], at).filter(|parts| parts.shared <= self.key.len());
        let Some(parts) = parts else {
            self.leave();
            return Err(bad_entry(at));
        };
        self.key.truncate(parts.shared);
        self.key.extend_from_slice(&body[parts.unshared]);
        self.trailer = parts.trailer;
        self.value = parts.value;
        self.valid = true;
        Ok(true)
    }

    /// To the entry of `body` before the one here, or to the last from past it; false at the
    /// beginning.
    pub(super) fn retreat(&mut self, body: &[u8]) -> Result<bool> {
        if self.start == 0 || self.end == 0 {
            self.valid = false;
            self.value = 0..0;
            self.key.clear();
            return Ok(false);
        }
        if !self.before.adjoins(self.start) {
            let parsed = self.parse_before(body);
            if parsed.is_err() {
                self.leave();
            }
            parsed?;
        }
        let Before { keys, entries } = &mut self.before;
        let found = entries.pop().expect("an entry before the first is an error of parsing");
        self.key.clear();
        self.key.extend_from_slice(&keys[found.key_at..]);
        keys.truncate(found.key_at);
        self.start = found.start;
        self.trailer = found.trailer;
        self.value = found.value;
        self.valid = true;
        Ok(true)
    }

    /// Parses the entries from the last restart point before the entry here, which is not the
    /// first.
    fn parse_before(&mut self, body: &[u8]) -> Result<()> {
        self.before.clear();
        let mut at = BlockView::parse(body)?.last_restart_before_offset(self.start)?;
        self.key.clear();
        while at < self.start {
            let parts =
                parts_of(&body[..self.end], at).filter(|parts| parts.shared <= self.key.len());
            let parts = parts.ok_or_else(|| bad_entry(at))?;
            let end = parts.value.end;
            self.key.truncate(parts.shared);
            self.key.extend_from_slice(&body[parts.unshared.clone()]);
            self.before.push(at, &self.key, parts);
            at = end;
        }
        // A restart point that is none leads past the entry here.
        if self.before.adjoins(self.start) { Ok(()) } else { Err(bad_entry(self.start)) }
    }

    /// To the first entry of `body` at or after (key, trailer); false if there is none.
    pub(super) fn seek(&mut self, body: &[u8], key: &[u8], trailer: Trailer) -> Result<bool> {
        self.leave();
        self.key.clear();
        let view = BlockView::parse(body)?;
        self.end = view.entries.len();
        let found = view.search(key, trailer);
        if found.is_err() {
            self.leave();
        }
        let Some(found) = found? else {
            self.start = self.end;
            self.value = self.end..self.end;
            return Ok(false);
        };
        self.key.extend_from_slice(&key[..found.shared]);
        self.key.extend_from_slice(&body[found.unshared]);
        self.trailer = found.trailer;
        self.start = found.start;
        self.value = found.value;
        self.valid = true;
        Ok(true)
    }

    /// At no entry, of no body.
    pub(super) fn leave(&mut self) {
        self.before.clear();
        self.start = 0;
        self.end = 0;
        self.value = 0..0;
        self.valid = false;
    }

    /// The entry here, in the body that the cursor entered.
    #[inline]
    pub(super) fn entry<'a>(&'a self, body: &'a [u8]) -> Option<Entry<'a>> {
        self.valid.then(|| Entry {
            key: &self.key,
            trailer: self.trailer,
            value: &body[self.value.clone()],
        })
    }

    /// The key of the entry here.
    #[inline]
    pub(super) fn key(&self) -> &[u8] {
        &self.key
    }

    /// The trailer of the entry here.
    #[inline]
    pub(super) const fn trailer(&self) -> Trailer {
        self.trailer
    }

    /// Where the value of the entry here lies in the body.
    pub(super) fn value_range(&self) -> Range<usize> {
        self.value.clone()
    }
}

#[cfg(test)]
mod tests;

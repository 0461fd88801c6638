//! LCS: the longest subsequence that two values share. The length of that of each two beginnings follows from shorter
//! ones; a row of them is kept, and one bit of each for the way back:
//!
//! ```text
//!          b ─►          a[i] = b[j]: one more than without both
//!    a   · · · · ·       else: the larger of that without a[i] and that without b[j];
//!    │   · · ┌─┬─┐             the bit says whether the first is larger
//!    ▼   · · └─┴─x
//! ```
//!
//! It takes a thirty-second of the memory that Redis takes, and has the same limit. Others have their turn
//! while it goes on. Only other LCS of the node wait for it, as each may take 17 MB.

use super::errors;
use super::execute::Outcome;
use super::keyspace::{REPLY_LEN_MAX, yield_now};
use super::store::Store;
use bytes::Bytes;
use gabion_base::number::parse_i64;
use gabion_resp::Reply;

/// Most pairs of beginnings: those of which Redis keeps four bytes each in 512 MB.
const CELLS_MAX: u64 = (512 << 20) / 4;
/// Pairs that are looked at before others have their turn.
const TURN_CELLS: usize = 1 << 20;

/// What stands behind `LCS key1 key2`.
#[derive(Default)]
struct Options {
    len_only: bool,
    with_matches: bool,
    with_lens: bool,
    len_min: i64,
}

impl Options {
    fn parse(words: &[Bytes]) -> Result<Self, Reply> {
        let mut options = Self::default();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            match &word.to_ascii_lowercase()[..] {
                b"idx" => options.with_matches = true,
                b"len" => options.len_only = true,
                b"withmatchlen" => options.with_lens = true,
                b"minmatchlen" => {
                    let len = words.next().ok_or(errors::SYNTAX)?;
                    options.len_min = parse_i64(len).ok_or(errors::NOT_AN_INTEGER)?;
                }
                _ => return Err(errors::SYNTAX),
            }
        }
        if options.len_only && options.with_matches {
            return Err(errors::LCS_LEN_AND_IDX);
        }
        Ok(options)
    }
}

pub(crate) async fn lcs(store: &impl Store, args: &[Bytes]) -> Outcome {
    let options = Options::parse(&args[3..])?;
    let mut values = store.get_many(&args[1..3], REPLY_LEN_MAX).await?.into_iter();
    let mut next = || values.next().flatten().unwrap_or_default();
    let (a, b) = (next(), next());
    let cells = (a.len() as u64 + 1) * (b.len() as u64 + 1);
    if cells > CELLS_MAX {
        return Err(errors::lcs_too_large(cells, CELLS_MAX).into());
    }
    let table = Table::fill(&a, &b, !options.len_only).await;
    if options.len_only {
        return Ok(Reply::Integer(i64::from(table.len)));
    }
    let path = table.trace(&a, &b).await;
    if !options.with_matches {
        return Ok(Reply::Bulk(path.text.into()));
    }
    let matches = path.matches.iter().filter(|found| found.len as i64 >= options.len_min);
    Ok(Reply::Map(vec![
        (
            Reply::bulk("matches"),
            Reply::Array(matches.map(|found| found.reply(options.with_lens)).collect()),
        ),
        (Reply::bulk("len"), Reply::Integer(i64::from(table.len))),
    ]))
}

/// A piece that lies in both values as one.
struct Match {
    a: usize,
    b: usize,
    len: usize,
}

impl Match {
    fn reply(&self, with_len: bool) -> Reply {
        let place = |start: usize| {
            let ends = [start, start + self.len - 1];
            Reply::Array(ends.map(|at| Reply::Integer(at as i64)).to_vec())
        };
        let mut parts = vec![place(self.a), place(self.b)];
        parts.extend(with_len.then_some(Reply::Integer(self.len as i64)));
        Reply::Array(parts)
    }
}

/// The subsequence, and its pieces from the last to the first.
struct Path {
    text: Vec<u8>,
    matches: Vec<Match>,
}

/// The way back from each two beginnings, and the length for both values.
struct Table {
    len: u32,
    /// For each byte of one value a row of the bytes of the other: whether the way goes on without the first.
    bits: Vec<u64>,
    width: usize,
}

impl Table {
    /// With the way back only where it `is_kept`.
    async fn fill(a: &[u8], b: &[u8], is_kept: bool) -> Self {
        let words = if is_kept { (a.len() * b.len()).div_ceil(64) } else { 0 };
        let mut table = Self { len: 0, bits: vec![0; words], width: b.len() };
        let mut row = vec![0_u32; b.len() + 1];
        let mut turn_cells = 0;
        for (i, byte) in a.iter().enumerate() {
            let mut diagonal = 0;
            for start in (0..b.len()).step_by(TURN_CELLS) {
                let end = b.len().min(start + TURN_CELLS);
                for j in start..end {
                    let (above, left) = (row[j + 1], row[j]);
                    let is_above = above > left && *byte != b[j];
                    if is_above && is_kept {
                        table.set(i, j);
                    }
                    row[j + 1] = if *byte == b[j] { diagonal + 1 } else { above.max(left) };
                    diagonal = above;
                }
                turn_cells += end - start;
                take_turns(&mut turn_cells).await;
            }
        }
        table.len = row[b.len()];
        table
    }

    fn set(&mut self, i: usize, j: usize) {
        let bit = i * self.width + j;
        self.bits[bit / 64] |= 1 << (bit % 64);
    }

    fn is_set(&self, i: usize, j: usize) -> bool {
        let bit = i * self.width + j;
        self.bits[bit / 64] >> (bit % 64) & 1 == 1
    }

    /// Goes the way back.
    async fn trace(&self, a: &[u8], b: &[u8]) -> Path {
        let mut path = Path { text: Vec::with_capacity(self.len as usize), matches: Vec::new() };
        let (mut i, mut j) = (a.len(), b.len());
        let mut is_joined = false;
        let mut turn_cells = 0;
        while i > 0 && j > 0 {
            if a[i - 1] == b[j - 1] {
                (i, j) = (i - 1, j - 1);
                path.text.push(a[i]);
                match path.matches.last_mut().filter(|_| is_joined) {
                    Some(last) => (last.a, last.b, last.len) = (i, j, last.len + 1),
                    None => path.matches.push(Match { a: i, b: j, len: 1 }),
                }
                is_joined = true;
            } else {
                (i, j) = if self.is_set(i - 1, j - 1) { (i - 1, j) } else { (i, j - 1) };
                is_joined = false;
            }
            turn_cells += 1;
            take_turns(&mut turn_cells).await;
        }
        path.text.reverse();
        path
    }
}

/// Others have their turn when this many are reached.
async fn take_turns(cells: &mut usize) {
    if *cells >= TURN_CELLS {
        *cells = 0;
        yield_now().await;
    }
}

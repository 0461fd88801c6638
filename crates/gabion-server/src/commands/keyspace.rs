//! Commands on keys and on the key space as a whole.

use super::cursors::CursorTable;
use super::errors;
use super::execute::{Outcome, Refusal};
use super::store::{Op, Order, Page, PageQuery, Store, check_fits_record, is_empty_range};
use bytes::Bytes;
use core::cell::RefCell;
use core::future::poll_fn;
use core::ops::Bound;
use core::task::Poll;
use gabion_base::number::{parse_i64, parse_u64};
use gabion_base::units::KEY_LEN_MAX;
use gabion_resp::limits::ELEMENTS_MAX;
use gabion_resp::{Reply, glob_match, glob_prefix};

/// Most bytes of keys and values in one reply.
pub const REPLY_LEN_MAX: usize = 64 << 20;
/// Largest COUNT of SCAN; a larger one, which is only a hint, counts as this.
pub const SCAN_COUNT_MAX: usize = 65_536;
/// COUNT of SCAN when it is not given, as in Redis.
const SCAN_COUNT_DEFAULT: usize = 10;
/// Keys that long walks take from the store at a time, before others get their turn.
const PAGE_KEYS: usize = 1024;
/// Bytes of such a page.
const PAGE_BYTES: usize = 1 << 20;

pub(crate) async fn del(store: &impl Store, args: &[Bytes]) -> Outcome {
    let mut keys = args[1..].to_vec();
    keys.sort_unstable();
    keys.dedup();
    let are_there = store.are_there(&keys).await?;
    let there = keys.into_iter().zip(are_there).filter(|(_, is_there)| *is_there);
    let ops: Vec<_> = there.map(|(key, _)| Op::Delete(key)).collect();
    check_fits_record(&ops)?;
    if !ops.is_empty() {
        store.write(&ops)?;
    }
    Ok(Reply::Integer(ops.len() as i64))
}

pub(crate) async fn exists(store: &impl Store, args: &[Bytes]) -> Outcome {
    let are_there = store.are_there(&args[1..]).await?;
    Ok(Reply::Integer(are_there.into_iter().filter(|is_there| *is_there).count() as i64))
}

pub(crate) async fn kind(store: &impl Store, args: &[Bytes]) -> Outcome {
    let is_there = store.look_up_len(&args[1]).await?.is_some();
    Ok(Reply::simple(if is_there { "string" } else { "none" }))
}

pub(crate) fn flush(store: &impl Store, args: &[Bytes]) -> Outcome {
    match &args[1..] {
        [] => {}
        [how] if how.eq_ignore_ascii_case(b"async") || how.eq_ignore_ascii_case(b"sync") => {}
        _ => return Err(errors::SYNTAX.into()),
    }
    store.write(&[Op::Clear])?;
    Ok(Reply::OK)
}

/// A walk over a part of the key space, a page at a time.
#[derive(Clone)]
pub(crate) struct Walk {
    start: Bound<Bytes>,
    end: Bound<Bytes>,
    order: Order,
}

impl Walk {
    /// Between two bounds.
    pub(crate) fn between(start: Bound<&[u8]>, end: Bound<&[u8]>, order: Order) -> Self {
        let own = |bound: Bound<&[u8]>| bound.map(Bytes::copy_from_slice);
        Self { start: own(start), end: own(end), order }
    }

    /// Over everything that can match `pattern`.
    pub(crate) fn over(pattern: &[u8]) -> Self {
        let prefix = glob_prefix(pattern);
        let start = Bound::Included(Bytes::copy_from_slice(prefix));
        let end = after_prefix(prefix).map_or(Bound::Unbounded, Bound::Excluded);
        Self { start, end, order: Order::Ascending }
    }

    pub(crate) async fn page(
        &self,
        store: &impl Store,
        limit: usize,
        bytes_max: usize,
        with_values: bool,
    ) -> Result<Page, Refusal> {
        let start = self.start.as_ref().map(|key| &key[..]);
        let end = self.end.as_ref().map(|key| &key[..]);
        if is_empty_range(start, end) {
            return Ok(Page::default());
        }
        let order = self.order;
        let query = PageQuery { start, end, limit, bytes_max, with_values, order };
        Ok(store.range(query).await?)
    }

    /// Up to so many keys. Goes on after them only where something may follow: a page that its limits end has not
    /// looked at what comes next.
    async fn page_to_its_end(&self, store: &impl Store, count: usize) -> Result<Page, Refusal> {
        let mut page = self.page(store, count + 1, PAGE_BYTES, false).await?;
        let last = page.pairs[..count.min(page.pairs.len())].last().map(|(key, _)| key.clone());
        if page.pairs.len() > count {
            page.pairs.truncate(count);
            page.resume_after = last;
        } else if page.resume_after.is_some() && page.resume_after == last {
            let start = last.map_or(Bound::Unbounded, Bound::Excluded);
            let rest = Self { start, ..self.clone() };
            let next = rest.page(store, 1, PAGE_BYTES, false).await?;
            if next.pairs.is_empty() {
                page.resume_after = next.resume_after;
            }
        }
        Ok(page)
    }

    /// Goes on where a page ended; false at the end of the walk. Others run before the next page.
    pub(crate) async fn advance(&mut self, resume_after: Option<Bytes>) -> bool {
        let Some(last) = resume_after else { return false };
        match self.order {
            Order::Ascending => self.start = Bound::Excluded(last),
            Order::Descending => self.end = Bound::Excluded(last),
        }
        yield_now().await;
        true
    }
}

/// The first key after all that begin with `prefix`; `None` when there is no such key.
pub(crate) fn after_prefix(prefix: &[u8]) -> Option<Bytes> {
    let last = prefix.iter().rposition(|&byte| byte != 0xff)?;
    let mut after = prefix[..=last].to_vec();
    after[last] += 1;
    Some(Bytes::from(after))
}

/// Lets the tasks that are ready run first.
pub(crate) async fn yield_now() {
    let mut has_yielded = false;
    poll_fn(|cx| {
        if has_yielded {
            return Poll::Ready(());
        }
        has_yielded = true;
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// What stands behind `SCAN cursor`.
struct ScanOptions<'a> {
    pattern: &'a [u8],
    count: usize,
    wants_strings: bool,
}

impl<'a> ScanOptions<'a> {
    fn parse(words: &'a [Bytes]) -> Result<Self, Reply> {
        let mut options = Self { pattern: b"*", count: SCAN_COUNT_DEFAULT, wants_strings: true };
        let (pairs, rest) = words.as_chunks::<2>();
        for [name, value] in pairs {
            if name.eq_ignore_ascii_case(b"count") {
                let count = parse_i64(value).ok_or(errors::NOT_AN_INTEGER)?;
                let count = usize::try_from(count).map_err(|_| errors::SYNTAX)?;
                if count == 0 {
                    return Err(errors::SYNTAX);
                }
                options.count = count.min(SCAN_COUNT_MAX);
            } else if name.eq_ignore_ascii_case(b"match") {
                options.pattern = value;
            } else if name.eq_ignore_ascii_case(b"type") {
                options.wants_strings = value.eq_ignore_ascii_case(b"string");
            } else {
                return Err(errors::SYNTAX);
            }
        }
        if rest.is_empty() { Ok(options) } else { Err(errors::SYNTAX) }
    }
}

pub(crate) async fn scan(
    store: &impl Store,
    cursors: &RefCell<CursorTable>,
    args: &[Bytes],
) -> Outcome {
    let cursor = parse_u64(&args[1]).ok_or(errors::INVALID_CURSOR)?;
    let options = ScanOptions::parse(&args[2..])?;
    let mut walk = Walk::over(options.pattern);
    if cursor != 0 {
        let Some(last) = cursors.borrow_mut().place(cursor) else {
            let text = format!("ERR unknown or expired cursor {cursor}: begin again with 0");
            return Err(Reply::error_from(text).into());
        };
        // Another pattern than last time may begin behind the cursor's place.
        if !matches!(&walk.start, Bound::Included(first) if last < *first) {
            walk.start = Bound::Excluded(last);
        }
    }
    let page = walk.page_to_its_end(store, options.count).await?;
    let next = match &page.resume_after {
        Some(last) => cursors.borrow_mut().remember(last, cursor),
        None => 0,
    };
    let keys = page.pairs.into_iter().map(|(key, _)| key);
    let matching = keys.filter(|key| options.wants_strings && glob_match(options.pattern, key));
    Ok(Reply::Array(vec![
        Reply::Bulk(Bytes::from(next.to_string())),
        Reply::Array(matching.map(Reply::Bulk).collect()),
    ]))
}

pub(crate) async fn keys(store: &impl Store, args: &[Bytes]) -> Outcome {
    let pattern = &args[1];
    let mut walk = Walk::over(pattern);
    let mut room = ReplyRoom::new("KEYS", "use SCAN");
    let mut found = Vec::new();
    loop {
        let page = walk.page(store, PAGE_KEYS, PAGE_BYTES, false).await?;
        for (key, _) in page.pairs {
            if glob_match(pattern, &key) {
                room.take(key.len())?;
                found.push(Reply::Bulk(key));
            }
        }
        if !walk.advance(page.resume_after).await {
            return Ok(Reply::Array(found));
        }
    }
}

/// Counts what a reply holds against its limits.
pub(crate) struct ReplyRoom {
    command: &'static str,
    advice: &'static str,
    elements: usize,
    bytes: usize,
}

impl ReplyRoom {
    pub(crate) const fn new(command: &'static str, advice: &'static str) -> Self {
        Self { command, advice, elements: ELEMENTS_MAX, bytes: REPLY_LEN_MAX }
    }

    /// Of a transaction, whose replies are counted with their bookkeeping ([`Reply::memory`]): those of many keys or
    /// of nulls hold little else.
    pub(crate) const fn of_exec() -> Self {
        Self::new("EXEC", "no key was changed")
    }

    /// Counts an element of so many bytes.
    ///
    /// # Errors
    /// The error that the client gets when it does not fit.
    pub(crate) fn take(&mut self, bytes: usize) -> Result<(), Reply> {
        let fits = self.elements > 0 && self.bytes >= bytes;
        if !fits {
            return Err(Reply::error_from(format!(
                "ERR the reply of {} is over the limit of {ELEMENTS_MAX} keys or {REPLY_LEN_MAX} \
                 bytes: {}",
                self.command, self.advice
            )));
        }
        self.elements -= 1;
        self.bytes -= bytes;
        Ok(())
    }
}

pub(crate) async fn db_size(store: &impl Store) -> Outcome {
    let mut walk = Walk::over(b"*");
    let mut count = 0;
    loop {
        let page = walk.page(store, PAGE_KEYS, PAGE_BYTES, false).await?;
        count += page.pairs.len();
        if !walk.advance(page.resume_after).await {
            return Ok(Reply::Integer(count as i64));
        }
    }
}

/// What stands behind `RANGE start end`.
pub(crate) struct RangeOptions {
    pub(crate) limit: usize,
    pub(crate) with_values: bool,
    pub(crate) order: Order,
}

impl RangeOptions {
    pub(crate) fn parse(words: &[Bytes]) -> Result<Self, Reply> {
        let mut options = Self { limit: usize::MAX, with_values: true, order: Order::Ascending };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            if word.eq_ignore_ascii_case(b"limit") {
                let limit = words.next().ok_or(errors::SYNTAX)?;
                let limit = parse_i64(limit).ok_or(errors::NOT_AN_INTEGER)?;
                options.limit = usize::try_from(limit).map_err(|_| errors::NEGATIVE)?;
            } else if word.eq_ignore_ascii_case(b"keys") {
                options.with_values = false;
            } else if word.eq_ignore_ascii_case(b"values") {
                options.with_values = true;
            } else if word.eq_ignore_ascii_case(b"rev") {
                options.order = Order::Descending;
            } else {
                return Err(errors::SYNTAX);
            }
        }
        Ok(options)
    }
}

/// The walk that `RANGE start end` means; `None` when it is empty.
fn range_walk(start: &Bytes, end: &Bytes, order: Order) -> Result<Option<Walk>, Reply> {
    // One byte more than a key: the last key of a page with a zero byte is where the next begins.
    if let Some(long) = [start, end].into_iter().find(|bound| bound.len() > KEY_LEN_MAX + 1) {
        return Err(errors::bound_too_long(long.len()));
    }
    let start = match &start[..] {
        b"-" => Bound::Unbounded,
        b"+" => return Ok(None),
        _ => Bound::Included(start.clone()),
    };
    let end = match &end[..] {
        b"+" => Bound::Unbounded,
        b"-" => return Ok(None),
        _ => Bound::Excluded(end.clone()),
    };
    Ok(Some(Walk { start, end, order }))
}

pub(crate) async fn range(store: &impl Store, args: &[Bytes]) -> Outcome {
    let options = RangeOptions::parse(&args[3..])?;
    let mut room = ReplyRoom::new("RANGE", "use LIMIT and go on where it ended");
    let mut pairs: Vec<(Bytes, Bytes)> = Vec::new();
    let mut walk = range_walk(&args[1], &args[2], options.order)?.filter(|_| options.limit > 0);
    while let Some(at) = &mut walk {
        let limit = (options.limit - pairs.len()).min(PAGE_KEYS);
        let mut page = at.page(store, limit, PAGE_BYTES, options.with_values).await?;
        page.pairs.truncate(options.limit - pairs.len());
        page.pairs.iter().try_for_each(|(key, value)| room.take(key.len() + value.len()))?;
        pairs.append(&mut page.pairs);
        if pairs.len() == options.limit || !at.advance(page.resume_after).await {
            walk = None;
        }
    }
    Ok(if options.with_values {
        Reply::Pairs(pairs)
    } else {
        Reply::Array(pairs.into_iter().map(|(key, _)| Reply::Bulk(key)).collect())
    })
}

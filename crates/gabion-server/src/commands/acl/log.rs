//! ACL LOG: what was denied, the newest first.

use crate::commands::Host;
use crate::commands::session::Client;
use bytes::Bytes;
use core::cell::{Cell, RefCell};
use gabion_resp::Reply;
use std::collections::VecDeque;

/// Entries that are kept, as many as in Redis.
const ENTRIES_MAX: usize = 128;
/// The same again within this time is one entry.
const SAME_US: u64 = 60_000_000;
/// Bytes of an object or a name that are kept.
const TEXT_LEN_MAX: usize = 256;

/// Context in which something was denied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Context {
    Toplevel,
    Multi,
}

struct Entry {
    id: u64,
    count: u64,
    reason: &'static str,
    context: Context,
    object: Bytes,
    user: Bytes,
    client: String,
    created_us: u64,
    updated_us: u64,
}

#[derive(Default)]
pub(crate) struct Log {
    entries: RefCell<VecDeque<Entry>>,
    next_id: Cell<u64>,
}

impl Log {
    /// Notes that something was denied.
    pub(crate) fn push(
        &self,
        reason: &'static str,
        context: Context,
        object: &[u8],
        user: &[u8],
        client: &Client,
        host: &impl Host,
    ) {
        let now = host.unix_time_us();
        let cut = |text: &[u8]| Bytes::copy_from_slice(&text[..text.len().min(TEXT_LEN_MAX)]);
        let (object, user) = (cut(object), cut(user));
        let described = client.line(now);
        let mut entries = self.entries.borrow_mut();
        let is_same = |entry: &Entry| {
            entry.reason == reason
                && entry.context == context
                && entry.object == object
                && entry.user == user
                && now.saturating_sub(entry.created_us) <= SAME_US
        };
        if let Some(at) = entries.iter().position(is_same)
            && let Some(mut entry) = entries.remove(at)
        {
            (entry.count, entry.updated_us, entry.client) = (entry.count + 1, now, described);
            return entries.push_front(entry);
        }
        let id = self.next_id.replace(self.next_id.get() + 1);
        entries.push_front(Entry {
            id,
            count: 1,
            reason,
            context,
            object,
            user,
            client: described,
            created_us: now,
            updated_us: now,
        });
        entries.truncate(ENTRIES_MAX);
    }

    pub(crate) fn reset(&self) {
        self.entries.take();
    }

    pub(crate) fn get(&self, count: usize, host: &impl Host) -> Reply {
        let now = host.unix_time_us();
        let describe = |entry: &Entry| {
            let context = match entry.context {
                Context::Toplevel => "toplevel",
                Context::Multi => "multi",
            };
            let age = now.saturating_sub(entry.created_us) as f64 / 1e6;
            let number = |number: u64| Reply::Integer(number as i64);
            let fields = [
                ("count", number(entry.count)),
                ("reason", Reply::bulk(entry.reason)),
                ("context", Reply::bulk(context)),
                ("object", Reply::Bulk(entry.object.clone())),
                ("username", Reply::Bulk(entry.user.clone())),
                ("age-seconds", Reply::Bulk(Bytes::from(format!("{age:.3}")))),
                ("client-info", Reply::Bulk(Bytes::from(entry.client.clone()))),
                ("entry-id", number(entry.id)),
                ("timestamp-created", number(entry.created_us / 1000)),
                ("timestamp-last-updated", number(entry.updated_us / 1000)),
            ];
            Reply::Map(fields.into_iter().map(|(name, value)| (Reply::bulk(name), value)).collect())
        };
        Reply::Array(self.entries.borrow().iter().take(count).map(describe).collect())
    }
}

//! About how many keys there are, from counts that files and MemTables keep anyway.

use super::Tree;

/// About how many keys of users there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeyEstimate {
    /// Keys.
    pub keys: u64,
    /// Those of them that may expire, at most.
    pub expiring: u64,
}

impl KeyEstimate {
    fn add(&mut self, keys: u64, may_expire: bool) {
        self.keys += keys;
        self.expiring += if may_expire { keys } else { 0 };
    }
}

impl Tree {
    /// About how many keys of users there are: a look at each MemTable and file, at none of their
    /// entries. What was set again counts until a compaction drops the older value; in files a
    /// delete is taken to hide one entry, in MemTables it counts as one.
    #[must_use]
    pub fn key_estimate(&self) -> KeyEstimate {
        let mut estimate = KeyEstimate::default();
        let sealed = self.sealed.iter().map(|sealed| &sealed.table);
        for table in sealed.chain([&self.active]) {
            // What was written before a clear lies there until the flush and shows no more.
            let last = table.largest_sequence().map_or(0, |last| last.get());
            let since_clear = last.saturating_sub(self.floor.get());
            estimate.add((table.len() as u64).min(since_clear), table.expiry().is_some());
        }
        let files = self.version().files().map(|(_, meta)| meta);
        for meta in files.filter(|meta| meta.largest_sequence >= self.floor) {
            let keys = meta.entries.saturating_sub(2 * meta.deletes);
            estimate.add(keys, meta.expiry.is_some());
        }
        estimate
    }
}

//! `gabion db` on stores of their own: what it loads, copies, shows and says meanwhile.

use super::db::fine;
use gabion_db::{Db, Options};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// A directory of this test run, and a small store in each of `names`.
fn stores(test: &str, names: &[&str]) -> (PathBuf, Vec<PathBuf>) {
    let dir = std::env::temp_dir().join(format!("gabion-db-{test}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir(&dir).unwrap();
    let options = Options {
        pool_len: 256 << 20,
        ring_len: 4 << 20,
        segment_len: 1 << 20,
        ..Options::default()
    };
    let stores: Vec<PathBuf> = names.iter().map(|name| dir.join(name)).collect();
    stores.iter().for_each(|store| drop(Db::create(store, &options).unwrap()));
    (dir, stores)
}

/// The number of the SST that a store's edits name last.
fn newest_sst(store: &Path) -> String {
    let edits = fine(store, &["dump", "edits"], "");
    let is_file = |line: &str| line.starts_with("added ") || line.starts_with("file ");
    let added = edits.lines().rfind(|line| is_file(line.trim_start()));
    let added = added.unwrap_or_else(|| panic!("{edits}"));
    let number = added.split("file=").nth(1).unwrap().split('.').next().unwrap();
    number.trim_start_matches('0').to_owned()
}

#[test]
fn keys_that_expire_are_copied_with_their_times_and_the_others_stay_for_good() {
    let (dir, stores) = stores("expiring", &["from", "to", "last"]);
    let lines = "{\"key\":\"a\",\"value\":\"1\"}\n\
                 {\"key\":\"b\",\"value\":\"2\",\"expires_ms\":99999999999999}\n\
                 {\"key\":{\"hex\":\"ff\"},\"value\":\"\",\"expires_ms\":18446744073709551615}\n";
    fine(&stores[0], &["load"], lines);
    // In memory too, not in files alone.
    fine(&stores[0], &["open", "put", "c", "3"], "");
    let lines = lines.replace("{\"key\":{", "{\"key\":\"c\",\"value\":\"3\"}\n{\"key\":{");
    let told = fine(&stores[0], &["scan", "--json"], "");
    assert_eq!(told, lines);
    fine(&stores[1], &["load"], &told);
    let told = fine(&stores[1], &["--json", "open", "scan"], "");
    assert_eq!(told, lines);
    fine(&stores[2], &["load"], &told);
    assert_eq!(fine(&stores[2], &["scan", "--json"], ""), lines);
    for get in [&["get", "b", "--json"][..], &["--json", "open", "get", "b"]] {
        let told: Value = serde_json::from_str(&fine(&stores[2], get, "")).unwrap();
        assert_eq!(told["value"], "2");
        assert_eq!(told["expires_ms"], 99_999_999_999_999_u64);
    }
    let told = fine(&stores[2], &["get", "a", "--json"], "");
    assert!(!told.contains("expires_ms"), "{told}");
    // In the file, its 8 bytes stand before the value.
    let entries = fine(&stores[2], &["dump", "file", &newest_sst(&stores[2]), "--entries"], "");
    let entry = entries.lines().find(|line| line.contains("expiring-put ")).unwrap();
    assert!(entry.ends_with(" key=b expires_ms=99999999999999 value=2"), "{entry}");
    assert_eq!(fine(&stores[2], &["scan", "--limit", "2"], ""), "\"a\" \"1\"\n\"b\" \"2\"\n");
    std::fs::remove_dir_all(&dir).unwrap();
}

//! Looking at backups that were made, and removing old ones.

use super::manifest::{Manifest, StoredFile};
use super::place::{Place, split_pages};
use crate::screen::Progress;
use crate::units::{count, size, utc};
use gabion_base::{Error, Result};
use gabion_node::backup::BackupState;
use gabion_node::checkpoint::Origin;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// The origin of pools that hold a backup. Everything is compared but the bytes of files.
///
/// # Errors
/// Corruption, naming what is damaged; I/O.
pub(super) fn origin(place: &Place, manifest: &Manifest) -> Result<Origin> {
    let (state, memory) = place.parts(manifest)?;
    let state = BackupState::decode(&state)?;
    if state.group.group.get() != manifest.group {
        return Err(Error::corruption(format!(
            "the state of backup {} is of {}",
            manifest.number, state.group.group
        )));
    }
    let origin = state.open(split_pages(&memory))?;
    let pin = origin.view.pin()?;
    let described: BTreeSet<String> =
        pin.version().described().map(|meta| StoredFile::of(meta).name()).collect();
    let named: BTreeSet<String> = manifest.files.iter().map(StoredFile::name).collect();
    match described == named {
        true => Ok(origin),
        false => Err(Error::corruption(format!(
            "backup {}: its manifest names other files than its state",
            manifest.number
        ))),
    }
}

/// An account of the backups of one group.
pub(super) struct Seen {
    /// The exit code.
    pub(super) code: u8,
    pub(super) json: Value,
    /// Whole lines.
    pub(super) text: String,
}

pub(super) fn list(dir: &Path) -> Result<Seen> {
    let place = Place::open(dir)?;
    let (mut lines, mut values, mut is_whole) = (Vec::new(), Vec::new(), true);
    for number in place.numbers()? {
        match place.manifest(number) {
            Ok(manifest) => {
                lines.push(line(&manifest));
                values.push(short(&manifest));
            }
            Err(error) => {
                is_whole = false;
                lines.push(format!("{number:>6}  DAMAGED {error}"));
                values.push(json!({ "backup": number, "damage": error.to_string() }));
            }
        }
    }
    let text = match lines.is_empty() {
        true => format!("{}: no backup yet\n", dir.display()),
        false => format!("{}\n", lines.join("\n")),
    };
    Ok(Seen { code: u8::from(!is_whole), json: json!({ "backups": values }), text })
}

fn line(manifest: &Manifest) -> String {
    format!(
        "{:>6}  {}  {} with {}, {} fetched for it; term {}, log up to {}",
        manifest.number,
        utc(manifest.begun_ms),
        count(manifest.files.len() as u64, "file"),
        size(manifest.file_bytes()),
        size(manifest.copied),
        manifest.term,
        manifest.log_end
    )
}

fn short(manifest: &Manifest) -> Value {
    let mut value = manifest.to_json();
    value["files"] = manifest.files.len().into();
    value["bytes"] = manifest.file_bytes().into();
    value
}

pub(super) fn verify(dir: &Path, number: Option<u64>) -> Result<Seen> {
    let place = Place::open(dir)?;
    let mut numbers = place.numbers()?;
    if let Some(number) = number {
        if !numbers.contains(&number) {
            return Err(Error::not_found(format!("{}: has no backup {number}", dir.display())));
        }
        numbers = vec![number];
    }
    if numbers.is_empty() {
        return Err(Error::not_found(format!("{}: no backup yet", dir.display())));
    }
    let (mut damage, mut files) = (Vec::new(), BTreeMap::new());
    for number in &numbers {
        let checked = place.manifest(*number).and_then(|manifest| {
            origin(&place, &manifest)?;
            Ok(manifest)
        });
        match checked {
            Ok(manifest) => {
                for file in manifest.files {
                    let entry = files.entry(file.name()).or_insert((file, Vec::new()));
                    entry.1.push(*number);
                }
            }
            Err(error) => damage.push((vec![*number], error.to_string())),
        }
    }
    let bytes = check_files(&place, files, &mut damage);
    Ok(told(dir, &numbers, bytes, &damage))
}

/// Compares each file once, and notes those that are damaged with the backups that have them.
/// Returns how many bytes there are.
fn check_files(
    place: &Place,
    files: BTreeMap<String, (StoredFile, Vec<u64>)>,
    damage: &mut Vec<(Vec<u64>, String)>,
) -> u64 {
    let mut progress = Progress::new();
    let total = files.values().map(|(file, _)| file.len).sum();
    let mut done = 0;
    for (file, of) in files.into_values() {
        if let Err(error) = place.check(&file) {
            damage.push((of, error.to_string()));
        }
        done += file.len;
        progress.bar(done, total, "compared");
    }
    progress.clear();
    total
}

fn told(dir: &Path, numbers: &[u64], bytes: u64, damage: &[(Vec<u64>, String)]) -> Seen {
    let each = damage.iter().map(|(of, what)| json!({ "backups": of, "damage": what }));
    let each: Vec<Value> = each.collect();
    let json = json!({ "backups": numbers, "bytes": bytes, "damage": each });
    let mut text = String::new();
    for (of, what) in damage {
        let of: Vec<String> = of.iter().map(u64::to_string).collect();
        text.push_str(&format!("DAMAGED (backup {}): {what}\n", of.join(", ")));
    }
    let number = numbers.len() as u64;
    text.push_str(&format!(
        "{}: {} with {} of files: {}\n",
        dir.display(),
        count(number, "backup"),
        size(bytes),
        match damage.len() {
            0 => "all as it was written".to_owned(),
            n => format!("{} damaged", count(n as u64, "thing")),
        }
    ));
    Seen { code: u8::from(!damage.is_empty()), json, text }
}

pub(super) fn prune(dir: &Path, keep: u64) -> Result<Seen> {
    let place = Place::take(dir, None)?;
    let numbers = place.numbers()?;
    let kept = usize::try_from(keep).unwrap_or(usize::MAX);
    let (old, stay) = numbers.split_at(numbers.len().saturating_sub(kept));
    // The backups that stay tell which files may go, so it is read before anything is removed.
    for number in stay {
        place.manifest(*number).map_err(|error| error.within("nothing is removed"))?;
    }
    for number in old {
        place.remove(*number)?;
    }
    let (files, bytes) = place.sweep()?;
    let text = format!(
        "{}: {} removed, with {} of {}; {} left\n",
        place.path().display(),
        count(old.len() as u64, "backup"),
        count(files, "file"),
        size(bytes),
        count(stay.len() as u64, "backup")
    );
    Ok(Seen { code: 0, json: Value::Null, text })
}

//! Invariants of a cluster at rest: replicas have the same files and the same records, and no slot
//! is lost or in quarantine except those whose bytes rotted.

use crate::client::{decode_value, engine_keys};
use crate::history::{Action, Operation};
use crate::world::World;
use gabion_base::{FileId, FileKind};
use gabion_node::{CapturedFile, CompactionMode, Node};
use gabion_pool::{QuarantineOrigin, SlotState};
use std::collections::{BTreeMap, BTreeSet};

/// Files by level, with their edit's description.
type Shape = Vec<(u8, FileId, u64, u32)>;

fn shape(node: &Node) -> Shape {
    let files = CapturedFile::all(node.tree().version());
    files.map(|it| (it.level, it.file, it.len, it.checksum)).collect()
}

/// Checks a cluster at rest.
///
/// # Errors
/// Says what differs, and where.
pub fn at_rest(world: &mut World) -> Result<(), String> {
    let mode = world.group().compaction;
    let mut first: Option<(Shape, BTreeMap<Vec<u8>, u64>, gabion_base::Frontier)> = None;
    for index in world.members() {
        let records = world.scan(index)?;
        let id = index + 1;
        let node = world.node(index).ok_or_else(|| format!("replica {id} is not up"))?;
        slots(node).map_err(|error| format!("replica {id}: {error}"))?;
        grants(world, node).map_err(|error| format!("replica {id}: {error}"))?;
        let (shape, end) = (shape(node), node.log_end());
        match &first {
            None => first = Some((shape, records, end)),
            Some((first_shape, first_records, first_end)) => {
                if end != *first_end {
                    return Err(format!("replica {id} ends at {end}, the first at {first_end}"));
                }
                if mode == CompactionMode::Primary && shape != *first_shape {
                    return Err(format!(
                        "replica {id} has other files:\n{shape:?}\nthe first:\n{first_shape:?}"
                    ));
                }
                if records != *first_records {
                    return Err(format!("replica {id} has other records than the first"));
                }
            }
        }
    }
    Ok(())
}

/// Every granted slot is known to the head: an unknown grant would never be used and never be
/// voided.
///
/// # Errors
/// Names how many there are and how many the head knows of.
pub fn grants(world: &World, node: &Node) -> Result<(), String> {
    let head = world.node(world.writer()).ok_or("the head is not up")?;
    let (_, known, _, _) = head.shipping_to(node.id());
    let granted = node.pool().counts().granted;
    if known as u32 == granted {
        return Ok(());
    }
    Err(format!("{granted} slots are granted, the head knows of {known}"))
}

/// A write that the target took in a session ended in a slot, or in its header, that the session
/// still has. The slot is granted in it, or kept out of use because a write of it may still land
/// (docs/faults.md H5).
///
/// # Errors
/// Names the slot's state.
pub fn landing(node: &Node, session: u64, offset: u64) -> Result<(), String> {
    let slot = node.pool().region().namespace().slot_at(offset).map(|(slot, _)| slot);
    let Some((slot, state)) = slot.and_then(|slot| Some((slot, node.pool().slot_state(slot)?)))
    else {
        return Err(format!("a write of session {session} landed at {offset}, outside of slots"));
    };
    let is_its_own = match state {
        SlotState::Granted { session: granted, .. } => granted == session,
        SlotState::Quarantined { origin } => origin == QuarantineOrigin::Session(session),
        _ => false,
    };
    if is_its_own {
        return Ok(());
    }
    Err(format!("a write of session {session} landed in {slot}, which is {state:?}"))
}

/// Every slot is free, granted, or part of a file of the tree or of a segment that the log needs,
/// and none of these is missing.
///
/// # Errors
/// Names the slot or file that breaks this.
pub fn slots(node: &Node) -> Result<(), String> {
    let counts = node.pool().counts();
    // A slot that rotted or refused a write gets no write before the next start. A file here takes
    // one slot.
    let counters = node.counters();
    let given_up =
        u64::from(counts.quarantined) == counters.repaired_files + counters.refused_slots;
    if !given_up || counts.allocated != 0 || counts.retired != 0 {
        return Err(format!("slots that nobody owns at rest: {counts:?}"));
    }
    let live: Vec<FileId> = node.tree().version().described().map(|meta| meta.id).collect();
    for placement in node.pool().files() {
        if placement.file.kind != FileKind::LogSegment && !live.contains(&placement.file) {
            return Err(format!("{} lies in slots and is not in the tree", placement.file));
        }
    }
    for file in &live {
        if node.pool().placement(*file).is_none() {
            return Err(format!("{file} is in the tree and in no slot"));
        }
    }
    segments(node)?;
    let in_files: u32 = node.pool().files().map(|placement| placement.slots.len() as u32).sum();
    let known = counts.free + counts.granted + counts.live + counts.quarantined;
    if in_files != counts.live || known != counts.total {
        return Err(format!("{in_files} slots in files, {counts:?}"));
    }
    Ok(())
}

/// The segments reach from the log's start to its end, and files of the tree may reference earlier
/// ones. A log that a crash shortened may have some beyond its end, as far as the ring reached
/// then; it will reach them.
fn segments(node: &Node) -> Result<(), String> {
    let config = node.config();
    let log = node.log_config();
    let (begin, durable) = (node.state().trimmed.position, node.durable_everywhere().only());
    // In a group a log may be cut at a rotten record, and is filled again.
    let (flushed, end) = (node.tree().flushed().frontier.only(), node.log_end().only());
    if node.view().log_is_private() && flushed > end {
        return Err(format!("files have the log up to {flushed}, it ends at {end}"));
    }
    let of = |position: u64| position / config.segment_len;
    let used = of(begin.get())..=of(end.get() + config.ring_len);
    let referenced = node.tree().version().referenced();
    let files = node.pool().files().map(|placement| placement.file);
    let segments = files.filter(|file| file.kind == FileKind::LogSegment);
    for file in segments.filter(|file| !referenced.contains_key(file)) {
        if log.check_segment(file).is_err() || !used.contains(&file.ordinal()) {
            return Err(format!(
                "{file} lies in slots, the log begins at {begin} and ends at {end}"
            ));
        }
    }
    let needed = of(begin.get())..durable.get().div_ceil(config.segment_len);
    for segment in needed.filter(|_| durable > begin).map(|ordinal| log.segment(ordinal)) {
        if node.pool().placement(segment).is_none() {
            return Err(format!(
                "{segment} is in no slot, the log is durable from {begin} to {durable}"
            ));
        }
    }
    Ok(())
}

/// Whether records are the result of a whole number of the history's writes, in their order. Only
/// for histories without increments, of one life of the head.
///
/// # Errors
/// When no number of writes leads there.
pub fn prefix(history: &[Operation], records: &BTreeMap<Vec<u8>, u64>) -> Result<(), String> {
    let expired = expired(history);
    let mut by_call: BTreeMap<u64, Vec<(u64, Option<u64>)>> = BTreeMap::new();
    for operation in history {
        if let Action::Write(value) = operation.action {
            by_call.entry(operation.called).or_default().push((operation.key, value));
        }
    }
    let mut model = BTreeMap::new();
    if model == *records {
        return Ok(());
    }
    for writes in by_call.values() {
        for (key, value) in writes {
            for engine_key in engine_keys(*key) {
                match value.filter(|value| !expired.contains(value)) {
                    Some(value) => _ = model.insert(engine_key, value),
                    None => _ = model.remove(&engine_key),
                }
            }
        }
        if model == *records {
            return Ok(());
        }
    }
    Err(format!(
        "{} records are left that no prefix of {} writes made",
        records.len(),
        by_call.len()
    ))
}

/// Values that have expired.
fn expired(history: &[Operation]) -> BTreeSet<u64> {
    let expired = history.iter().filter_map(|operation| match operation.action {
        Action::Expire(value) => Some(value),
        _ => None,
    });
    expired.collect()
}

/// Nothing expired is left; for a cluster at rest, where nothing is due any more.
///
/// # Errors
/// Names a record that should be gone.
pub fn gone(history: &[Operation], records: &BTreeMap<Vec<u8>, u64>) -> Result<(), String> {
    let expired = expired(history);
    match records.iter().find(|(_, value)| expired.contains(value)) {
        None => Ok(()),
        Some((key, value)) => {
            let name = String::from_utf8_lossy(key.get(1..).unwrap_or_default()).into_owned();
            Err(format!("{name} still has value {value}, which has expired"))
        }
    }
}

/// The number in each value.
///
/// # Errors
/// A value that is none.
pub fn numbers(records: Vec<(Vec<u8>, Vec<u8>)>) -> Result<BTreeMap<Vec<u8>, u64>, String> {
    records.into_iter().map(|(key, value)| Ok((key, decode_value(&value)?))).collect()
}

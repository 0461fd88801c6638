//! `gabion db dump superblock | slots | placements`.

use super::edits;
use super::out::{Out, Told, bytes, crc, hex};
use crate::at_rest::AtRest;
use crate::screen::Progress;
use gabion_base::units::{SLOT_LEN, TRANSFER_LEN_MAX};
use gabion_base::{Error, FileKind, Result, SlotIndex};
use gabion_engine::Edit;
use gabion_media::MediumHandle;
use gabion_node::{ReplicaState, opaque};
use gabion_pool::inspect::{self, AreaScan, Seen};
use gabion_pool::placement_log::{Operation, RecordHeader, RecordKind};
use gabion_pool::{
    FilePlacement, Geometry, Placed, Pool, QuarantineOrigin, SlotHeader, SlotState, Superblock,
};
use serde_json::{Value, json};
use std::io::{self, IsTerminal};

pub(super) fn superblock(pool: &AtRest, out: &mut Out) -> Told {
    for (copy, found) in pool.wait(inspect::superblocks(pool.medium())).into_iter().enumerate() {
        let missing = || Error::corruption("it does not begin like a superblock");
        let found = found.and_then(|found| found.ok_or_else(missing));
        let found = found.map_err(|e| e.within(format!("superblock, copy in block {copy}")));
        let Some(found) = out.readable(0, found)? else { continue };
        let mut fields = superblock_fields(&found);
        fields["block"] = copy.into();
        out.item(0, "superblock", fields)?;
        for (name, area) in ["A", "B"].iter().zip(found.areas) {
            let fields = json!({ "name": name, "offset": area.offset, "len": area.len });
            out.item(1, "area", fields)?;
        }
        for region in &found.regions {
            let fields = json!({
                "id": region.id, "group": region.group.get(), "slots": region.geometry.slots(),
                "len": region.geometry.len(),
            });
            out.item(1, "region", fields)?;
            for extent in region.geometry.extents() {
                let fields = json!({
                    "offset": extent.offset, "len": extent.len(), "slots": extent.slots,
                });
                out.item(2, "extent", fields)?;
            }
        }
    }
    Ok(())
}

/// The fields of a superblock about the pool as a whole.
pub(super) fn superblock_fields(superblock: &Superblock) -> Value {
    json!({
        "pool": hex(&superblock.pool_id),
        "version": gabion_pool::superblock::FORMAT_VERSION,
        "revision": superblock.revision,
        "len": superblock.len,
        "compatible": superblock.compatible,
        "ro_compatible": superblock.ro_compatible,
        "incompatible": superblock.incompatible,
    })
}

/// The common name of a slot's state.
fn state_name(state: Option<SlotState>) -> &'static str {
    match state {
        None => "unknown",
        Some(SlotState::Free) => "free",
        Some(SlotState::Allocated { .. }) => "allocated",
        Some(SlotState::Granted { .. }) => "granted",
        Some(SlotState::Live { .. }) => "live",
        Some(SlotState::Retired { .. }) => "retired",
        Some(SlotState::Quarantined { .. }) => "quarantined",
    }
}

pub(super) fn slots(pool: &AtRest, out: &mut Out) -> Told {
    let superblock = pool.wait(inspect::superblock(pool.medium()))?;
    let read = pool.wait(gabion_pool::read(pool.medium()));
    let found = out.readable(0, read)?.map(|read| read.recovered.pool);
    let [region] = &superblock.regions[..] else {
        return Err(Error::unsupported("the pool has other than one region").into());
    };
    let state = |slot| found.as_ref().and_then(|pool| pool.slot_state(slot));
    let slots = (0..region.geometry.slots()).map(SlotIndex).map(|slot| (slot, state(slot)));
    let used: Vec<_> = slots.filter(|(_, state)| *state != Some(SlotState::Free)).collect();
    // Reads the bytes of each. On a terminal the lines themselves show the progress.
    let is_watched = io::stdout().is_terminal();
    let mut progress = Progress::beside_lines();
    let total = used.len() as u64 * SLOT_LEN;
    let told = used.iter().enumerate().try_for_each(|(done, &slot)| {
        progress.bar(done as u64 * SLOT_LEN, total, &slot.0.to_string());
        one_slot(pool, &region.geometry, found.as_ref(), slot, out)?;
        if is_watched { out.show() } else { Ok(()) }
    });
    progress.clear();
    told
}

fn one_slot(
    pool: &AtRest,
    geometry: &Geometry,
    found: Option<&Pool>,
    (slot, state): (SlotIndex, Option<SlotState>),
    out: &mut Out,
) -> Told {
    let header = pool.wait(gabion_pool::read_slot_header(pool.medium(), geometry, slot));
    if found.is_none() && header.is_err() {
        // Without the placement log it is unknown whether this slot should have a header.
        return Ok(());
    }
    let mut fields = json!({ "index": slot.get(), "state": state_name(state) });
    let owner = match (state, found) {
        (Some(SlotState::Live { file, .. }), Some(pool)) => pool.placement(file),
        _ => None,
    };
    if let Some(placement) = &owner {
        fields["owner"] = placement.file.to_string().into();
    }
    if let Some(generation) = state.and_then(SlotState::generation) {
        fields["use"] = generation.get().into();
    }
    // Only files that are written whole have headers; in other slots an earlier use left it.
    let sst = owner.filter(|placement| placement.file.kind != FileKind::LogSegment);
    let mut wrong = None;
    match (header, sst) {
        (Ok(header), sst) => {
            header_fields(&header, &mut fields);
            if let (Some(placement), Some(found)) = (&sst, found) {
                wrong = check_header(&header, placement, slot, found).err();
            }
            if wrong.is_none() && (sst.is_some() || found.is_none()) {
                wrong = pool.wait(check_bytes(pool.medium(), geometry, &header)).err();
            } else if wrong.is_none() {
                fields["header"] = "earlier-use".into();
            }
        }
        (Err(error), Some(placement)) => wrong = Some(error.within(placement.file.to_string())),
        (Err(error), None) => {
            let blank = error.kind() == gabion_base::ErrorKind::NotFound;
            fields["header"] = if blank { "blank" } else { "bad" }.into();
        }
    }
    if fields["header"].is_null() {
        fields["header"] = if wrong.is_none() { "good" } else { "bad" }.into();
    }
    out.item(0, "slot", fields)?;
    wrong.map_or(Ok(()), |error| out.damaged(1, &error.within(format!("{slot}"))))
}

fn header_fields(header: &SlotHeader, fields: &mut Value) {
    fields["file"] = header.file.to_string().into();
    fields["part"] = header.index.into();
    fields["generation"] = header.generation.get().into();
    fields["group"] = header.group.get().into();
    fields["term"] = header.term.get().into();
    fields["len"] = header.len.into();
    fields["checksum"] = crc(header.checksum).into();
}

/// Whether the header agrees with the placement log.
fn check_header(
    header: &SlotHeader,
    placement: &FilePlacement,
    slot: SlotIndex,
    pool: &Pool,
) -> Result<()> {
    let part = placement.slots.iter().position(|placed| placed.slot == slot).unwrap_or_default();
    let checksum = header.checksum;
    header.check(&SlotHeader::of(pool.pool_id(), pool.group(), placement, part, checksum))
}

/// Whether the slot's bytes have the checksum in its header.
async fn check_bytes(
    medium: &MediumHandle,
    geometry: &Geometry,
    header: &SlotHeader,
) -> Result<()> {
    let len = u64::from(header.len).min(SLOT_LEN);
    let start = geometry.slot_offset(header.slot);
    let (mut at, mut found) = (0, 0);
    while at < len {
        let step = (len - at).min(TRANSFER_LEN_MAX as u64) as usize;
        let bytes = medium.read(start + at, step).await?;
        found = gabion_base::crc::append(found, &bytes);
        at += step as u64;
    }
    if found == header.checksum {
        return Ok(());
    }
    Err(Error::corruption(format!(
        "{}, part {} of it: its bytes have checksum {found:08x}, its header says {:08x}",
        header.file, header.index, header.checksum
    )))
}

pub(super) fn placements(pool: &AtRest, out: &mut Out) -> Told {
    let superblock = pool.wait(inspect::superblock(pool.medium()))?;
    // The pool decides what counts and whether it is whole; the list below shows everything.
    if let Some(read) = out.readable(0, pool.wait(gabion_pool::read(pool.medium())))? {
        for (offset, len) in read.bad_copies {
            let message = "is bad; another one is whole, and the next start writes this one again";
            let place = format!("copy of {len} bytes at byte {offset}");
            out.damaged(0, &Error::corruption(format!("{place} {message}")))?;
        }
    }
    for (index, name) in ["A", "B"].into_iter().enumerate() {
        let area = superblock.areas[index];
        let fields = json!({ "name": name, "offset": area.offset, "len": area.len });
        out.item(0, "area", fields)?;
        one_area(pool, &superblock, index, out)?;
    }
    Ok(())
}

fn one_area(pool: &AtRest, superblock: &Superblock, index: usize, out: &mut Out) -> Told {
    let mut scan = AreaScan::new(pool.medium(), superblock, index);
    let mut last: Option<RecordHeader> = None;
    let mut earlier = 0_u64;
    while let Some(seen) = pool.wait(scan.next())? {
        match seen {
            Seen::Record { header, .. } if last.is_some_and(|last| last.epoch > header.epoch) => {
                earlier += 1;
            }
            Seen::Record { offset, header, body } => {
                one_record(offset, &header, &body, last == Some(header), out)?;
                last = Some(header);
            }
            Seen::Bad { offset, error } => {
                let fields = json!({ "offset": offset, "message": error.to_string() });
                out.item(1, "bad", fields)?;
            }
            Seen::Other { offset, len } => {
                out.item(1, "other", json!({ "offset": offset, "len": len }))?;
            }
        }
    }
    if earlier > 0 {
        out.item(1, "earlier", json!({ "records": earlier }))?;
    }
    Ok(())
}

fn one_record(
    offset: u64,
    header: &RecordHeader,
    body: &[u8],
    is_second: bool,
    out: &mut Out,
) -> Told {
    let kind = match header.kind {
        RecordKind::Snapshot => "snapshot",
        RecordKind::Commit => "commit",
    };
    if is_second {
        return out.item(1, "copy", json!({ "number": header.number, "offset": offset }));
    }
    let fields = json!({
        "number": header.number, "epoch": header.epoch, "offset": offset,
        "len": header.padded_len(), "checksum": crc(header.crc),
    });
    out.item(1, kind, fields)?;
    for operation in out.readable(2, Operation::decode_all(body))?.unwrap_or_default() {
        one_operation(&operation, out)?;
    }
    Ok(())
}

fn placed(slots: &[Placed]) -> Value {
    let one = |placed: &Placed| format!("{}:{}", placed.slot.get(), placed.generation.get());
    slots.iter().map(one).collect::<Vec<_>>().into()
}

fn indexes(slots: &[SlotIndex]) -> Value {
    slots.iter().map(|slot| slot.get()).collect::<Vec<_>>().into()
}

fn one_operation(operation: &Operation, out: &mut Out) -> Told {
    let (what, fields) = match operation {
        Operation::FileLive(file) => (
            "file-live",
            json!({
                "file": file.file.to_string(), "term": file.term.get(), "len": file.len,
                "checksum": crc(file.checksum), "slots": placed(&file.slots),
            }),
        ),
        Operation::FileRetired(file) => ("file-retired", json!({ "file": file.to_string() })),
        Operation::SlotsGranted { term, session, to, slots } => (
            "slots-granted",
            json!({
                "to": to.get(), "term": term.get(), "session": session, "slots": placed(slots),
            }),
        ),
        Operation::GrantsVoided { below_session } => {
            ("grants-voided", json!({ "below_session": below_session }))
        }
        Operation::SlotsQuarantined { origin, slots } => {
            let origin = match origin {
                QuarantineOrigin::Local => "local".into(),
                QuarantineOrigin::Session(session) => format!("session:{session}"),
            };
            ("slots-quarantined", json!({ "origin": origin, "slots": indexes(slots) }))
        }
        Operation::SlotsReleased(slots) => ("slots-released", json!({ "slots": indexes(slots) })),
        Operation::GenerationReserved { up_to } => {
            ("generation-reserved", json!({ "up_to": up_to }))
        }
        Operation::Opaque { kind, bytes } => return one_entry(*kind, bytes, out),
        Operation::OpaqueSnapshot(bytes) => ("replica-snapshot", json!({ "len": bytes.len() })),
    };
    out.item(2, what, fields)
}

/// An entry of the replica.
fn one_entry(kind: u16, entry: &[u8], out: &mut Out) -> Told {
    match kind {
        opaque::EDIT => {
            let Some(edit) = out.readable(2, Edit::decode(entry))? else { return Ok(()) };
            out.item(2, "edit", edits::edit_fields(&edit))
        }
        opaque::STATE => {
            let state = out.readable(2, ReplicaState::decode(entry))?;
            state.map_or(Ok(()), |state| out.item(2, "state", state_fields(&state)))
        }
        kind => out.item(2, "entry", json!({ "kind": kind, "bytes": bytes(entry) })),
    }
}

/// The counters of a replica.
pub(super) fn state_fields(state: &ReplicaState) -> Value {
    json!({
        "replica": state.me.get(), "term": state.term().get(), "config": state.view.config.get(), "session": state.session,
        "trimmed": state.trimmed.position.get(),
        "durable": state.durable.get(),
        "spans": state.spans.iter().map(span_word).collect::<Vec<_>>(),
    })
}

/// A span as `term:start-end`; an open one has no end.
fn span_word(span: &gabion_log::Span) -> String {
    let end = span.end.map_or(String::new(), |end| end.get().to_string());
    format!("{}:{}-{end}", span.term.get(), span.start.get())
}

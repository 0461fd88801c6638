//! `gabion db dump file`: an SST, part by part, or a values file, record by record.

use super::edits::{clears, file_fields, options_fields, values_fields};
use super::log::{add_expiring, add_operand, add_packed, entry_name, keyspace_name};
use super::out::{Out, Told, bytes, crc, engine_key};
use crate::at_rest::AtRest;
use crate::screen::Progress;
use gabion_base::{Error, FileId, FileKind, GroupId, Result};
use gabion_engine::expiry::EXPIRY_LEN;
use gabion_engine::range_delete::Fragment;
use gabion_engine::sst::inspect::{DataBlock, IndexEntry, Inspector};
use gabion_engine::sst::{Footer, Properties};
use gabion_engine::{
    Entry, EntryKind, FileMeta, FileSource, Keyspace, Operand, Pointer, ValueRecords, packed,
};
use gabion_node::{LocalStore, PoolSource};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::rc::Rc;

pub(super) fn dump(pool: &AtRest, id: FileId, entries: bool, out: &mut Out) -> Told {
    let recovered = pool.wait(gabion_pool::read(pool.medium()))?.recovered;
    let Some(placement) = recovered.pool.placement(id) else {
        return Err(missing(id, &recovered.pool).into());
    };
    let slots: Vec<u32> = placement.slots.iter().map(|placed| placed.slot.get()).collect();
    let fields = json!({
        "file": id.to_string(), "term": placement.term.get(), "len": placement.len,
        "checksum": crc(placement.checksum), "slots": slots,
    });
    out.item(0, "placement", fields)?;
    // A damaged tree does not keep a file from being shown.
    if let Ok(opened) = pool.pool() {
        let found = opened.tree().version().files().find(|(_, meta)| meta.id == id);
        match found {
            Some((level, meta)) => out.item(0, "in-tree", file_fields(level, meta))?,
            None => match opened.tree().version().values_file(id) {
                Some(meta) => out.item(0, "in-tree", values_fields(meta))?,
                None => out.item(0, "in-no-tree", json!({ "file": id.to_string() }))?,
            },
        }
    }
    let store = LocalStore::of(pool.medium(), &recovered.pool);
    let (group, len) = (recovered.pool.group(), placement.len);
    let locate = BTreeMap::from([(id, placement)]);
    let source = PoolSource { store, locate, meter: Rc::default() };
    if id.kind == FileKind::Values {
        let meta = pool.pool()?.tree().version().values_file(id).cloned();
        let Some(meta) = meta else { return Ok(()) };
        let image = pool.wait(source.read(id, 0, len as usize))?;
        return records(&image, group, &meta, entries, out);
    }
    let file = pool.wait(Inspector::open(source, group, id, len));
    let Some(file) = out.readable(0, file)? else { return Ok(()) };
    parts(pool, &file, entries, out)
}

/// The records of a values file: each where it lies, and whether its value is whole.
fn records(image: &[u8], group: GroupId, meta: &FileMeta, entries: bool, out: &mut Out) -> Told {
    let records = ValueRecords::new(image, group, meta);
    let Some(records) = out.readable(0, records)? else { return Ok(()) };
    for record in records {
        let Some(record) = out.readable(0, record)? else { return Ok(()) };
        let keyspace = record.key.first().copied().and_then(Keyspace::from_byte);
        let mut fields = json!({
            "sequence": record.trailer.sequence().get(), "keyspace": keyspace_name(keyspace),
            "key": bytes(record.key.get(1..).unwrap_or_default()),
            "offset": record.pointer.offset, "len": record.pointer.len,
            "crc_ok": record.pointer.check(record.value).is_ok(),
        });
        if record.pointer.is_packed() {
            fields["raw_len"] = record.pointer.raw_len.into();
        }
        if entries {
            let value = packed::unpack_at(&record.pointer, record.value.to_vec().into());
            if let Some(value) = out.readable(0, value)? {
                fields["value"] = bytes(&value);
            }
        }
        out.item(0, "value", fields)?;
    }
    Ok(())
}

fn missing(id: FileId, pool: &gabion_pool::Pool) -> Error {
    let ssts = || pool.files().filter(|file| file.file.kind == id.kind).map(|file| file.file);
    match (ssts().min(), ssts().max()) {
        (Some(first), Some(last)) => {
            let count = ssts().count();
            let range = format!("the pool has {count} SSTs, {first} to {last}");
            Error::not_found(format!("{id} is not in the pool; {range}"))
        }
        _ => Error::not_found(format!("{id} is not in the pool, which has no SST")),
    }
}

fn parts<S: FileSource>(pool: &AtRest, file: &Inspector<S>, entries: bool, out: &mut Out) -> Told {
    out.item(0, "footer", footer_fields(file.footer()))?;
    if let Some(properties) = out.readable(0, pool.wait(file.properties()))? {
        out.item(0, "properties", properties_fields(&properties))?;
        out.item(0, "options", options_fields(&properties.options))?;
        if entries {
            range_deletes(&properties, out)?;
        }
    }
    if let Some(len) = out.readable(0, pool.wait(file.filter_len()))? {
        out.item(0, "filter", json!({ "offset": file.footer().filter_at, "len": len }))?;
    }
    let Some(index) = out.readable(0, pool.wait(file.index()))? else { return Ok(()) };
    let mut progress = Progress::beside_lines();
    for (number, entry) in index.iter().enumerate() {
        progress.bar_of(number as u64, index.len() as u64, "blocks", "data");
        let mut fields = index_fields(number, entry);
        match pool.wait(file.block(entry)) {
            Ok(mut block) => {
                fields["compression"] = block.codec.as_str().into();
                fields["raw_len"] = block.raw_len().into();
                fields["crc_ok"] = true.into();
                out.item(0, "block", fields)?;
                if entries {
                    block_entries(&mut block, entry, out)?;
                }
            }
            Err(error) => {
                fields["crc_ok"] = false.into();
                out.item(0, "block", fields)?;
                out.damaged(1, &error)?;
            }
        }
    }
    progress.clear();
    Ok(())
}

fn footer_fields(footer: &Footer) -> Value {
    json!({
        "file": footer.id.to_string(), "group": footer.group.get(), "term": footer.term.get(),
        "data_blocks": footer.data_blocks, "filter_at": footer.filter_at,
        "index_at": footer.index_at, "properties_at": footer.properties_at,
        "footer_at": footer.footer_at,
    })
}

fn properties_fields(properties: &Properties) -> Value {
    json!({
        "entries": properties.entries, "deletes": properties.deletes,
        "key_bytes": properties.raw_key_bytes, "value_bytes": properties.raw_value_bytes,
        "smallest_sequence": properties.smallest_sequence.get(),
        "largest_sequence": properties.largest_sequence.get(),
        "smallest": engine_key(&properties.smallest), "largest": engine_key(&properties.largest),
        "clears": clears(&properties.clears),
        "range_deletes": properties.ranges.as_slice().len(),
    })
}

fn range_deletes(properties: &Properties, out: &mut Out) -> Told {
    for Fragment { start, end, sequences } in properties.ranges.as_slice() {
        let fields = json!({
            "start": engine_key(start), "end": engine_key(end),
            "sequences": sequences.iter().map(|sequence| sequence.get()).collect::<Vec<_>>(),
        });
        out.item(0, "range-delete", fields)?;
    }
    Ok(())
}

fn index_fields(number: usize, entry: &IndexEntry) -> Value {
    json!({
        "number": number, "offset": entry.offset, "len": entry.stored_len,
        "separator": engine_key(&entry.separator),
        "separator_sequence": entry.trailer.map(|trailer| trailer.sequence().get()),
    })
}

fn block_entries(block: &mut DataBlock, index: &IndexEntry, out: &mut Out) -> Told {
    let within = |error: Error| error.within(format!("block at {}", index.offset));
    loop {
        let entry = block.next_entry().map_err(within);
        let Some(Some(entry)) = out.readable(1, entry)? else { return Ok(()) };
        let keyspace = entry.key.first().copied().and_then(Keyspace::from_byte);
        let mut fields = json!({
            "sequence": entry.trailer.sequence().get(), "keyspace": keyspace_name(keyspace),
            "key": bytes(entry.key.get(1..).unwrap_or_default()),
        });
        let added = add_value(&mut fields, &entry).map_err(within);
        if out.readable(1, added)?.is_some() {
            out.item(1, entry_name(entry.trailer.kind()), fields)?;
        }
    }
}

/// Adds the value of a key, by its kind.
fn add_value(fields: &mut Value, entry: &Entry<'_>) -> Result<()> {
    if entry.trailer.kind() == EntryKind::ExpiringPut {
        return add_expiring(fields, entry.value);
    }
    if entry.trailer.kind().is_pointer() {
        return add_pointer(fields, entry);
    }
    if entry.trailer.kind().is_packed() {
        return add_packed(fields, entry.trailer.kind(), entry.value);
    }
    fields["value"] = bytes(entry.value);
    if entry.trailer.kind() == EntryKind::Merge {
        add_operand(fields, Operand::decode(entry.value)?);
    }
    Ok(())
}

/// Adds where a value lies, and when its key is gone.
fn add_pointer(fields: &mut Value, entry: &Entry<'_>) -> Result<()> {
    let mut stored = entry.value;
    if let (true, Some((expiry, rest))) =
        (entry.trailer.kind().is_expiring(), stored.split_first_chunk::<EXPIRY_LEN>())
    {
        fields["expires_ms"] = u64::from_le_bytes(*expiry).into();
        stored = rest;
    }
    let Pointer { file, offset, len, raw_len, crc } = Pointer::decode(stored)?;
    fields["file"] = file.to_string().into();
    fields["offset"] = offset.into();
    fields["len"] = len.into();
    fields["raw_len"] = raw_len.into();
    fields["crc"] = format!("{crc:08x}").into();
    Ok(())
}

//! `gabion db dump log`: every readable record, from the beginning of the kept log.

use super::edits;
use super::out::{Out, Told, bytes, crc, engine_key};
use crate::at_rest::AtRest;
use crate::screen::Progress;
use gabion_base::{Error, LogPosition};
use gabion_engine::expiry::EXPIRY_LEN;
use gabion_engine::{BatchReader, Edit, EntryKind, Flushed, Keyspace, Operand};
use gabion_log::{Ending, Record, RecordFlags, RecordKind, RecordScan, RecoveryReport, Seal, Seen};
use gabion_media::MemoryRegion;
use gabion_node::ReplicaState;
use gabion_node::open::OpenedPool;
use gabion_node::ring::RingFound;
use serde_json::{Value, json};

pub(super) fn dump(pool: &AtRest, entries: bool, out: &mut Out) -> Told {
    let opened = pool.pool()?;
    let end = heading(pool, &opened, out)?;
    let ring = ring(pool, &opened, out)?;
    let segments = opened.segments();
    let (config, state) = (opened.log_config(), &opened.state);
    let mut scan = RecordScan::new(config, &state.spans, state.trimmed, ring)?;
    let from = state.trimmed.position.get();
    let total = end.map(|end| end.get().saturating_sub(from));
    let mut progress = Progress::beside_lines();
    while let Some(seen) = pool.wait(scan.next(&segments))? {
        match seen {
            Seen::Record { record, in_segment, in_ring } => {
                if let Some(total) = total {
                    let done = record.header.position.get().saturating_sub(from);
                    progress.bar(done, total, "records");
                }
                let mut fields = record_fields(&record, config.segment_len);
                fields["in"] = place(in_segment, in_ring).into();
                if end.is_some_and(|end| record.header.position >= end) {
                    fields["beyond_the_end"] = true.into();
                }
                out.item(0, kind_name(record.header.kind), fields)?;
                payload(&record, entries, out)?;
            }
            Seen::Bad { from, to, error } => bad(from, to, &error, end, config.segment_len, out)?,
        }
    }
    progress.clear();
    Ok(())
}

/// Prints recovery's report of the log; returns its end.
fn heading(pool: &AtRest, opened: &OpenedPool, out: &mut Out) -> Told<Option<LogPosition>> {
    let recovered = recover(pool, opened);
    let report = out.readable(0, recovered)?;
    let mut fields = log_fields(&opened.state, opened.tree().flushed(), report.as_ref());
    let state = &opened.state;
    fields["index"] = state.trimmed.index.get().into();
    fields["checksum"] = crc(state.trimmed.crc).into();
    out.item(0, "log", fields)?;
    for span in &state.spans {
        let fields = json!({
            "term": span.term.get(), "start": span.start.get(),
            "end": span.end.map(|end| end.get()),
        });
        out.item(1, "span", fields)?;
    }
    let segments = opened.segments();
    for placement in segments.placements() {
        let slots: Vec<u32> = placement.slots.iter().map(|placed| placed.slot.get()).collect();
        let file = placement.file.to_string();
        let start = placement.file.number * opened.group.segment_len;
        let fields = json!({ "file": file, "start": start, "slots": slots });
        out.item(1, "segment", fields)?;
    }
    Ok(report.map(|report| report.end))
}

/// The end of the log and its cause, as a start would find them.
pub(super) fn recover(pool: &AtRest, opened: &OpenedPool) -> Result<RecoveryReport, Error> {
    let ring = pool.ring(opened)?;
    pool.wait(opened.recover_log(ring, &opened.segments())).map(|(_, report)| report)
}

/// The log's range.
pub(super) fn log_fields(
    state: &ReplicaState,
    flushed: Flushed,
    report: Option<&RecoveryReport>,
) -> Value {
    let ending = |report: &RecoveryReport| match &report.ending {
        Ending::Clean => "clean".to_owned(),
        Ending::Torn(why) => format!("torn: {why}"),
    };
    json!({
        "trimmed": state.trimmed.position.get(),
        "flushed": flushed.frontier.only().get(),
        "end": report.map(|report| report.end.get()),
        "ending": report.map(ending),
        "in_segments": report.map(|report| report.in_segments.get()),
        "durable_everywhere": report.map(|report| report.watermark.get()),
        "records": report.map(|report| report.records),
    })
}

/// The ring, or nothing where it cannot be read.
fn ring(pool: &AtRest, opened: &OpenedPool, out: &mut Out) -> Told<Option<Box<dyn MemoryRegion>>> {
    match opened.ring_found() {
        // Already reported.
        RingFound::Lost(_) => Ok(None),
        RingFound::Whole => out.readable(0, pool.ring(opened)),
    }
}

fn bad(
    from: LogPosition,
    to: Option<LogPosition>,
    error: &Error,
    end: Option<LogPosition>,
    segment_len: u64,
    out: &mut Out,
) -> Told {
    let (segment, offset) = (from.get() / segment_len, from.get() % segment_len);
    if end.is_some_and(|end| from >= end) {
        let fields = json!({
            "position": from.get(), "next": to.map(|to| to.get()), "message": error.to_string(),
        });
        return out.item(0, "torn", fields);
    }
    let next = match to {
        Some(to) => format!("the next whole record is at {}", to.get()),
        None => "no whole record follows".to_owned(),
    };
    let place = format!("{:06}.log at {offset}, position {}; {next}", segment, from.get());
    out.damaged(0, &Error::corruption(error.to_string()).within(place))
}

fn place(in_segment: bool, in_ring: bool) -> &'static str {
    match (in_segment, in_ring) {
        (true, true) => "segment+ring",
        (true, false) => "segment",
        (false, _) => "ring",
    }
}

fn kind_name(kind: RecordKind) -> &'static str {
    match kind {
        RecordKind::Batch => "batch",
        RecordKind::Seal => "seal",
        RecordKind::Edit => "edit",
        RecordKind::Pad => "pad",
        RecordKind::TermStart => "term-start",
        RecordKind::Sessions => "sessions",
    }
}

fn record_fields(record: &Record, segment_len: u64) -> Value {
    let header = &record.header;
    let position = header.position.get();
    let names = [
        (RecordFlags::BLOCK_END, "block-end"),
        (RecordFlags::DURABLE_ACK, "durable-ack"),
        (RecordFlags::SHORT_AFTER, "short-after"),
    ];
    let flags = names.iter().filter(|(flag, _)| header.flags.has(*flag)).map(|(_, name)| *name);
    json!({
        "position": position, "file": format!("{:06}.log", position / segment_len),
        "offset": position % segment_len, "term": header.term.get(), "index": header.index.get(),
        "first_sequence": header.first_sequence.get(), "count": header.count,
        "len": record.bytes.len(), "payload_len": header.payload_len,
        "crc": crc(header.crc), "crc_ok": true, "flags": flags.collect::<Vec<_>>(),
        "header_len": header.len(),
        "durable": (!header.is_short).then(|| header.durable.get()), "now_ms": header.now_ms,
    })
}

fn payload(record: &Record, entries: bool, out: &mut Out) -> Told {
    let payload = record.payload();
    let within = |error: Error| error.within(format!("record at {}", record.header.position.get()));
    match record.header.kind {
        RecordKind::Batch if entries => batch(record, out),
        RecordKind::Seal => {
            let seal = out.readable(1, Seal::decode(&payload).map_err(within))?;
            let Some(seal) = seal else { return Ok(()) };
            for (shard, position) in seal.frontier.iter() {
                let fields = json!({
                    "memtable": seal.memtable.get(), "shard": shard.get(),
                    "position": position.get(), "sequence": seal.sequence.get(),
                });
                out.item(1, "sealed", fields)?;
            }
            Ok(())
        }
        RecordKind::Edit => {
            let Some(edit) = out.readable(1, Edit::decode(&payload).map_err(within))? else {
                return Ok(());
            };
            out.item(1, "edit", edits::edit_fields(&edit))?;
            edits::details(&edit, 2, out)
        }
        RecordKind::Batch | RecordKind::Pad | RecordKind::TermStart | RecordKind::Sessions => {
            Ok(())
        }
    }
}

fn batch(record: &Record, out: &mut Out) -> Told {
    let payload = record.payload();
    for (i, operation) in BatchReader::new(&payload).enumerate() {
        let Some(operation) = out.readable(1, operation)? else { continue };
        let mut fields = json!({
            "sequence": record.header.first_sequence.get() + i as u64,
            "keyspace": keyspace_name(Some(operation.keyspace())),
            "key": bytes(&operation.key[1..]),
        });
        if operation.kind == EntryKind::Put {
            fields["value"] = bytes(operation.value);
        }
        if operation.kind == EntryKind::RangeDelete {
            fields["end"] = engine_key(operation.value);
        }
        if operation.kind == EntryKind::ExpiringPut {
            out.readable(1, add_expiring(&mut fields, operation.value))?;
        }
        if operation.kind.is_packed() {
            out.readable(1, add_packed(&mut fields, operation.kind, operation.value))?;
        }
        if operation.kind == EntryKind::Merge
            && let Ok(operand) = Operand::decode(operation.value)
        {
            add_operand(&mut fields, operand);
        }
        out.item(1, entry_name(operation.kind), fields)?;
    }
    Ok(())
}

/// The parts of an expiring put: the time when its key is gone, and its value.
pub(super) fn add_expiring(fields: &mut Value, stored: &[u8]) -> Result<(), Error> {
    let Some((expiry, value)) = stored.split_first_chunk::<EXPIRY_LEN>() else {
        return Err(Error::corruption(format!(
            "an expiring put has {} bytes, its expiry alone has {EXPIRY_LEN}",
            stored.len()
        )));
    };
    fields["expires_ms"] = u64::from_le_bytes(*expiry).into();
    fields["value"] = bytes(value);
    Ok(())
}

/// The value of a packed put, unpacked, and how long it is packed.
pub(super) fn add_packed(fields: &mut Value, kind: EntryKind, stored: &[u8]) -> Result<(), Error> {
    let mut packed = stored;
    if let (true, Some((expiry, rest))) =
        (kind.is_expiring(), stored.split_first_chunk::<EXPIRY_LEN>())
    {
        fields["expires_ms"] = u64::from_le_bytes(*expiry).into();
        packed = rest;
    }
    fields["value"] = bytes(&gabion_engine::packed::unpack(packed)?);
    fields["packed_len"] = packed.len().into();
    Ok(())
}

/// The sum of an operand: one number, or the result of several, with the ends of their step.
pub(super) fn add_operand(fields: &mut Value, operand: Operand) {
    fields["operator"] = "add-i64".into();
    fields["at_ms"] = operand.at_ms.into();
    match operand.step.delta() {
        Some(delta) => fields["delta"] = delta.into(),
        None => {
            fields["to_smallest"] = operand.step.apply(i64::MIN).into();
            fields["to_0"] = operand.step.apply(0).into();
            fields["to_largest"] = operand.step.apply(i64::MAX).into();
        }
    }
}

/// The name of an entry's kind.
pub(super) fn entry_name(kind: EntryKind) -> &'static str {
    match kind {
        EntryKind::Delete => "delete",
        EntryKind::Put => "put",
        EntryKind::SingleDelete => "single-delete",
        EntryKind::Clear => "clear",
        EntryKind::RangeDelete => "range-delete",
        EntryKind::Merge => "merge",
        EntryKind::ExpiringPut => "expiring-put",
        EntryKind::Pointer => "pointer",
        EntryKind::Relocation => "relocation",
        EntryKind::ExpiringPointer => "expiring-pointer",
        EntryKind::PackedPut => "packed-put",
        EntryKind::ExpiringPackedPut => "expiring-packed-put",
    }
}

/// The name of a key's keyspace.
pub(super) fn keyspace_name(keyspace: Option<Keyspace>) -> &'static str {
    match keyspace {
        Some(Keyspace::System) => "system",
        Some(Keyspace::User) => "user",
        None => "unknown",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expiring_put_is_told_as_its_time_and_its_value() {
        let mut fields = json!({});
        add_expiring(&mut fields, b"\x01\x02\0\0\0\0\0\0\xff").unwrap();
        assert_eq!(fields, json!({ "expires_ms": 513, "value": { "hex": "ff" } }));
        let error = add_expiring(&mut fields, b"1234567").unwrap_err().to_string();
        assert!(error.contains("has 7 bytes, its expiry alone has 8"), "{error}");
    }
}

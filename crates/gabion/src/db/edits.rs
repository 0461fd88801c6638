//! `gabion db dump edits`: the tree of the last checkpoint and the edits since.

use super::log::keyspace_name;
use super::out::{Out, Told, crc, engine_key};
use super::pool::state_fields;
use crate::at_rest::AtRest;
use crate::screen::Progress;
use gabion_base::{FileId, SequenceNumber};
use gabion_engine::{
    Compression, Edit, FileMeta, FileReference, JobKind, Keyspace, Merging, Recipe, SstOptions,
    Tree,
};
use gabion_node::{ReplicaState, Snapshot, opaque};
use serde_json::{Value, json};

pub(super) fn dump(pool: &AtRest, out: &mut Out) -> Told {
    let recovered = pool.wait(gabion_pool::read(pool.medium()))?.recovered;
    if let Some(snapshot) = out.readable(0, Snapshot::decode(&recovered.opaque_snapshot))? {
        checkpoint(&snapshot, out)?;
    }
    let mut progress = Progress::beside_lines();
    let total = recovered.opaque.len() as u64;
    for (done, (kind, bytes)) in (0..).zip(&recovered.opaque) {
        progress.bar_of(done, total, "entries", "edits and states");
        match *kind {
            opaque::EDIT => {
                if let Some(edit) = out.readable(0, Edit::decode(bytes))? {
                    out.item(0, "edit", edit_fields(&edit))?;
                    details(&edit, 1, out)?;
                }
            }
            opaque::STATE => {
                if let Some(state) = out.readable(0, ReplicaState::decode(bytes))? {
                    out.item(0, "state", state_fields(&state))?;
                }
            }
            kind => out.item(0, "entry", json!({ "kind": kind, "len": bytes.len() }))?,
        }
    }
    progress.clear();
    Ok(())
}

fn checkpoint(snapshot: &Snapshot, out: &mut Out) -> Told {
    let group = &snapshot.group;
    let tree = Tree::open(group.tree.clone(), group.group, &snapshot.tree);
    let Some(tree) = out.readable(0, tree)? else { return Ok(()) };
    let flushed = tree.flushed();
    let fields = json!({
        "edit": tree.last_edit(), "files": tree.version().files().count(),
        "flushed_memtable": flushed.memtable.get(), "flushed_position": flushed.frontier.only().get(),
        "flushed_sequence": flushed.sequence.get(), "floor": tree.floor().get(),
    });
    out.item(0, "checkpoint", fields)?;
    out.item(1, "state", state_fields(&snapshot.state))?;
    for (level, meta) in tree.version().files() {
        out.item(1, "file", file_fields(level, meta))?;
    }
    for meta in tree.version().values_files() {
        out.item(1, "values-file", values_fields(meta))?;
    }
    Ok(())
}

fn kind_name(kind: JobKind) -> &'static str {
    match kind {
        JobKind::Flush => "flush",
        JobKind::Compaction => "compaction",
        JobKind::TrivialMove => "move",
        JobKind::Drop => "drop",
        JobKind::Load => "load",
    }
}

/// An edit without its files and recipe.
pub(super) fn edit_fields(edit: &Edit) -> Value {
    json!({
        "number": edit.number, "kind": kind_name(edit.kind), "term": edit.term.get(),
        "removed": edit.removed.len(), "added": edit.added.len(), "next_file": edit.next_file,
        "floor": edit.floor.map(|floor| floor.get()),
        "flushed_memtable": edit.flushed.map(|flushed| flushed.memtable.get()),
        "flushed_position": edit.flushed.map(|flushed| flushed.frontier.only().get()),
        "flushed_sequence": edit.flushed.map(|flushed| flushed.sequence.get()),
    })
}

/// Files and recipe of an edit.
pub(super) fn details(edit: &Edit, depth: usize, out: &mut Out) -> Told {
    for (level, id) in &edit.removed {
        out.item(depth, "removed", json!({ "level": level, "file": id.to_string() }))?;
    }
    for (level, meta) in &edit.added {
        out.item(depth, "added", file_fields(*level, meta))?;
    }
    for meta in &edit.values {
        out.item(depth, "values-file", values_fields(meta))?;
    }
    edit.recipe.as_ref().map_or(Ok(()), |recipe| out.item(depth, "recipe", recipe_fields(recipe)))
}

/// The fields of a file in an edit.
pub(super) fn file_fields(level: u8, meta: &FileMeta) -> Value {
    json!({
        "level": level, "file": meta.id.to_string(), "term": meta.term.get(), "len": meta.len,
        "checksum": crc(meta.checksum),
        "chunks": meta.chunk_crcs.iter().map(|&chunk| crc(chunk)).collect::<Vec<_>>(),
        "entries": meta.entries, "deletes": meta.deletes, "key_bytes": meta.raw_key_bytes,
        "value_bytes": meta.raw_value_bytes, "smallest": engine_key(&meta.smallest),
        "largest": engine_key(&meta.largest),
        "smallest_sequence": meta.smallest_sequence.get(),
        "largest_sequence": meta.largest_sequence.get(), "clears": clears(&meta.clears),
        "expiries_first_ms": meta.expiry.map(|span| span.first_ms),
        "expiries_last_ms": meta.expiry.map(|span| span.last_ms),
        "operands": meta.operands.map_or(0, |operands| operands.count),
        "operands_from_ms": meta.operands.map(|operands| operands.first_ms),
        "range_deletes": meta.ranges.as_ref().map_or(0, |ranges| ranges.fragments),
        "range_deletes_from": meta.ranges.as_ref().map(|ranges| ranges.first_sequence.get()),
        "references": references(meta),
        // None, or not recorded by the build that made it; the file itself has it.
        "codec": told_codec(meta).map(|codec| codec.to_string()),
    })
}

/// The fields of a values file in an edit.
pub(super) fn values_fields(meta: &FileMeta) -> Value {
    json!({
        "file": meta.id.to_string(), "term": meta.term.get(), "len": meta.len,
        "checksum": crc(meta.checksum), "chunks": meta.chunk_crcs.len(),
        "records": meta.entries, "key_bytes": meta.raw_key_bytes,
        "value_bytes": meta.raw_value_bytes, "smallest": engine_key(&meta.smallest),
        "largest": engine_key(&meta.largest),
        "smallest_sequence": meta.smallest_sequence.get(),
        "largest_sequence": meta.largest_sequence.get(),
    })
}

/// Values files and log segments that a file references, as `file:live bytes`.
fn references(meta: &FileMeta) -> Value {
    let one = |it: &FileReference| format!("{}:{}", it.file, it.live_bytes);
    meta.references.iter().map(one).collect::<Vec<_>>().into()
}

/// The codec in a description.
pub(super) fn told_codec(meta: &FileMeta) -> Option<Compression> {
    (meta.compression != Compression::None).then_some(meta.compression)
}

/// Clears of keyspaces as `keyspace:sequence`.
pub(super) fn clears(clears: &[(Keyspace, SequenceNumber)]) -> Value {
    let one = |(keyspace, at): &(Keyspace, SequenceNumber)| {
        format!("{}:{}", keyspace_name(Some(*keyspace)), at.get())
    };
    clears.iter().map(one).collect::<Vec<_>>().into()
}

fn recipe_fields(recipe: &Recipe) -> Value {
    let input = |(level, id): &(u8, FileId)| format!("{level}:{id}");
    let mut fields = json!({
        "kind": kind_name(recipe.kind), "term": recipe.term.get(),
        "memtables": recipe.memtables.iter().map(|id| id.get()).collect::<Vec<_>>(),
        "inputs": recipe.inputs.iter().map(input).collect::<Vec<_>>(),
        "output_level": recipe.output_level, "output_first": recipe.output_first,
        "output_count": recipe.output_count, "output_len": recipe.output_len,
        "cuts": recipe.cuts.iter().map(|key| engine_key(key)).collect::<Vec<_>>(),
        "bottommost": recipe.bottommost,
        "now_ms": recipe.now_ms, "floor": recipe.floor.get(),
    });
    if recipe.parted_from > 0 {
        fields["parted_from"] = recipe.parted_from.into();
    }
    if recipe.large_from > 0 {
        fields["large_from"] = recipe.large_from.into();
    }
    if !recipe.kept.is_empty() {
        let kept = recipe.kept.iter().map(FileId::to_string);
        fields["kept"] = kept.collect::<Vec<_>>().into();
        fields["kept_from"] = recipe.kept_from.into();
    }
    if !recipe.emptied.is_empty() {
        let emptied = recipe.emptied.iter().map(FileId::to_string);
        fields["emptied"] = emptied.collect::<Vec<_>>().into();
    }
    if let Some(Merging { expiries, above_from_ms }) = recipe.merging {
        fields["merge_operator"] = "add-i64".into();
        fields["expiries_first_ms"] = expiries.map(|span| span.first_ms).into();
        fields["expiries_last_ms"] = expiries.map(|span| span.last_ms).into();
        fields["operands_above_from_ms"] = above_from_ms.into();
    }
    if let (Value::Object(all), Value::Object(options)) = (&mut fields, options_fields(&recipe.sst))
    {
        all.extend(options);
    }
    fields
}

/// The options with which a file is written.
pub(super) fn options_fields(options: &SstOptions) -> Value {
    json!({
        "format": options.format_version, "block_len": options.block_len,
        "restart_interval": options.restart_interval,
        "index_restart_interval": options.index_restart_interval,
        "compression": options.compression.to_string(),
        "filter_bits_per_key": options.filter_bits_per_key,
    })
}

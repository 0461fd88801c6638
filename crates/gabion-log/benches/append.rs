//! What an append costs: `cargo bench -p gabion-log --bench append`.
//!
//! Prints nanoseconds of processor time per append at the head and per placement at a replica, for
//! payloads of several lengths, with a ring of 64 MiB of plain memory. Draining is counted apart.
//! Linux only: the time is that of the thread, so that a busy machine does not show.
#![expect(clippy::print_stdout, reason = "its output is its purpose")]

use gabion_base::{GroupId, Result, SequenceNumber, ShardId, Term};
use gabion_log::{Anchor, Log, LogConfig, LogKind, RecordBuilder, RecordFlags, RecordKind, Stamp};
use std::time::Duration;

/// Processor time of this thread.
#[expect(clippy::disallowed_methods, reason = "the kernel tells the processor time in a file")]
fn processor_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanos = stat.split_whitespace().next().and_then(|n| n.parse().ok());
    Duration::from_nanos(nanos.unwrap_or(0))
}

#[derive(Default)]
struct Spent {
    append: Duration,
    place: Duration,
    drain: Duration,
}

fn drain(log: &mut Log) {
    while let Some(order) = log.next_drain(true) {
        log.drained(order.end);
    }
    log.flushed(log.drained_end());
}

fn measure(payload: &[u8], total: usize) -> Result<()> {
    let config = LogConfig {
        group: GroupId(1),
        shard: ShardId(0),
        ring_len: 4 * LogConfig::SEGMENT_LEN,
        segment_len: LogConfig::SEGMENT_LEN,
        kind: LogKind::Shared,
    };
    let ring = || Box::new(vec![1; config.ring_len as usize]);
    let mut head = Log::create(config, ring(), Term(1), Anchor::START)?;
    let mut replica = Log::create(config, ring(), Term(1), Anchor::START)?;
    let mut spent = Spent::default();
    let turns = total / payload.len() / 1000;
    for turn in 0..turns {
        let start = processor_time();
        let mut sent = Vec::with_capacity(1001);
        for n in 0..1000 {
            let mut builder = RecordBuilder::new(RecordKind::Batch, payload.len());
            builder.payload().extend_from_slice(payload);
            let sequence = SequenceNumber((turn * 1000 + n) as u64);
            let stamp =
                Stamp { first_sequence: sequence, count: 1, now_ms: 1, flags: RecordFlags::NONE };
            let appended = head.append_built(builder, stamp)?;
            sent.extend(appended.pad.map(|pad| pad.bytes));
            sent.push(appended.record.bytes);
        }
        spent.append += processor_time() - start;
        let start = processor_time();
        for bytes in sent {
            replica.place(bytes)?;
            while replica.next_record().is_some() {}
        }
        spent.place += processor_time() - start;
        let start = processor_time();
        drain(&mut head);
        spent.drain += processor_time() - start;
        drain(&mut replica);
    }
    let count = (turns * 1000) as f64;
    let each = |time: Duration| time.as_nanos() as f64 / count;
    println!(
        "{:>7} bytes: append {:>7.0} ns, place {:>7.0} ns, drain (copy only) {:>7.0} ns",
        payload.len(),
        each(spent.append),
        each(spent.place),
        each(spent.drain)
    );
    Ok(())
}

fn main() -> Result<()> {
    for len in [100, 1000, 4000, 16_000] {
        measure(&vec![7; len], 1 << 30)?;
    }
    Ok(())
}

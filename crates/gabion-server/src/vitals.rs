//! A replica's word to controllers on its load and room: numbers of `GABION STATUS` and
//! `/metrics`, for the status page.

use crate::metrics::BUCKETS;
use crate::service::Service;
use crate::status;
use gabion_control::{Lag, Times, Vitals};

const _: () = assert!(BUCKETS == gabion_control::BUCKETS);

/// The numbers of a replica that is open.
pub(crate) fn of(service: &Service) -> Vitals {
    let node = service.replica.node.borrow();
    let (tree, slots, counters) = (node.tree(), node.pool().counts(), node.counters());
    let lags = status::lags(service, &node).into_iter();
    // That of the door for clients, and that between own processes.
    let ends = [
        service.tls.as_ref().and_then(|tls| tls.server.until_s()),
        service.members_tls.as_ref().and_then(|members| members.tls.until_s()),
    ];
    Vitals {
        uptime_ms: service.host.uptime_ms(),
        commands: service.commands.calls_count(),
        served: served(service),
        acknowledged: service.metrics.acknowledged.buckets.counts(),
        stalled_ms: counters.writes_stopped_ms.total() + counters.writes_slowed_ms,
        slots: slots.total,
        slots_free: slots.free,
        memtable_bytes: tree.active_len(),
        garbage_bytes: tree.version().values_stats().dead_bytes(),
        probe_us: service.control.probe_us(),
        certificate_until_s: ends.into_iter().flatten().min(),
        levels: tree.level_stats().iter().map(|level| level.bytes).collect(),
        lags: lags.map(|it| Lag { replica: it.member, bytes: it.bytes, ms: it.ms }).collect(),
    }
}

/// How many commands took how long, of all together.
fn served(service: &Service) -> Times {
    let mut all = Times::default();
    for (_, row) in service.commands.stats().rows() {
        for (sum, count) in all.iter_mut().zip(row.buckets.counts()) {
            *sum += count;
        }
    }
    all
}

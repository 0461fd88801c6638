//! Between a replica's own state and the protocol of its view.

use crate::state::ReplicaState;
use crate::{GroupConfig, NodeOptions};
use alloc::boxed::Box;
use alloc::vec::Vec;
use gabion_base::{Frontier, LogPosition, Result, Term};
use gabion_engine::Tree;
use gabion_log::{Log, Span};
use gabion_replication::{Config, LocalState, Progress, Protocol, Spans, Watermarks};

/// Begins the protocol of the view that a replica acts in, with the replica's own state.
pub(crate) fn begin_protocol(
    (group, options): (&GroupConfig, &NodeOptions),
    local: LocalState,
    state: &ReplicaState,
    now_ms: u64,
) -> Result<Box<dyn Protocol>> {
    let config = Config {
        view: state.view_in_effect(),
        me: state.me,
        heartbeat_ms: options.heartbeat_ms,
        timeout_ms: options.timeout_ms,
        lease_ms: options.lease_ms,
        window_bytes: options.window_bytes,
        segment_len: group.segment_len,
        ring_len: group.ring_len,
    };
    gabion_replication::begin(config, local, now_ms)
}

/// The state that a protocol begins with, as far as log and tree tell.
pub(crate) fn local_state(state: &ReplicaState, tree: &Tree, log: &Log) -> Result<LocalState> {
    let last = log.last();
    let spans: Vec<gabion_replication::Span> = log
        .spans()
        .iter()
        .filter(|span| span.term > Term::ZERO)
        .map(|span| gabion_replication::Span {
            term: span.term,
            start: span.start,
            end: span.end.unwrap_or(gabion_replication::OPEN),
        })
        .collect();
    Ok(LocalState {
        term: state.term(),
        incarnation: state.incarnation,
        session: state.session,
        spans: Spans::new(spans)?,
        oldest: state.trimmed.position,
        last_crc: last.crc,
        progress: Progress {
            end: Frontier::of(last.end),
            // It may lie in the gap behind the last record, where a term without records begins.
            durable: Frontier::of(log.durable_end().min(last.end)),
            flushed: tree.flushed().frontier,
            edit: tree.last_edit(),
        },
        lost: None,
        gap: None,
        marks: Watermarks::default(),
        is_whole: false,
        next_ticket: 0,
    })
}

/// The spans of another log, as the log takes them.
pub(crate) fn spans_of(spans: &Spans) -> Vec<Span> {
    let open = |end: LogPosition| (end != gabion_replication::OPEN).then_some(end);
    let spans = spans.as_slice().iter();
    spans.map(|span| Span { term: span.term, start: span.start, end: open(span.end) }).collect()
}

//! Tests of the layer as a client meets it: requests in, encoded replies out.

mod bits;
mod concurrency;
mod data;
mod documents;
mod expiry;
mod pipeline;
mod renames;
mod scans;
mod sessions;
pub(crate) mod support;
mod watch;

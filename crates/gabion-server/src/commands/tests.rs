//! Tests of the layer as a client meets it: requests in, encoded replies out.

mod concurrency;
mod data;
mod documents;
mod expiry;
mod pipeline;
mod scans;
mod sessions;
pub(crate) mod support;

//! Tests of the layer as a client meets it: requests in, encoded replies out.

mod concurrency;
mod data;
mod documents;
mod pipeline;
mod scans;
mod sessions;
pub(crate) mod support;

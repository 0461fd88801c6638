//! Tests of the layer as a client meets it: requests in, encoded replies out.

mod concurrency;
mod data;
mod documents;
mod scans;
mod sessions;
mod support;

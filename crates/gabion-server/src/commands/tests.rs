//! Tests of the layer as a client meets it: requests in, encoded replies out.

mod acl;
mod bits;
mod concurrency;
mod data;
mod documents;
mod dump;
mod expiry;
mod lcs;
mod pipeline;
mod renames;
mod scans;
mod scripts;
mod sessions;
pub(crate) mod support;
mod tools;
mod watch;

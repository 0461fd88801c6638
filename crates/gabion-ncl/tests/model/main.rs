//! A model of near-compute logs, explored without a gap: what peers, store and instances may do is
//! taken in every order, with every fault within a budget.
//!
//! ```text
//!   rules ── actions of a state ──► stateright ── every state once ──► properties
//!     │                                                                    │
//!     └─► peer, instance: one step each; the ap-map is the library's own   └─► a state that
//!                                                                              cannot go on
//! ```
//!
//! The simulator beside it (`--test ncl`) runs the library and the peers' core themselves, from
//! seeds. The model is small enough to be explored whole, and shares only the ap-map with them.
//! docs/testing.md has the sizes, and which of both catches which planted defect.

mod explored;
mod instance;
mod peer;
mod planted;
mod properties;
mod rules;
mod symmetry;
mod world;

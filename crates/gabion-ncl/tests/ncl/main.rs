//! The library and the peers' core, real both, in one thread from one seed. `world` is what lies
//! between them, `check` knows what must hold, and nothing of how it is done; `copies` compares
//! peers and mirrors at the end. In half of the seeds programs share memory with the peers and
//! write records there themselves: `direct`. `memory`: peers that have little of it.

mod check;
mod copies;
mod direct;
mod images;
mod large;
mod memory;
mod peers;
#[cfg(feature = "planted")]
mod planted;
mod program;
mod seeds;
mod shortage;
mod steps;
mod world;

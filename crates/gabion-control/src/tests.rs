//! The machine alone, and groups of model members under faults drawn from a seed.

mod machine;
mod model;

//! (skip list)

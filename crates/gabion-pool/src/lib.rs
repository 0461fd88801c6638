//! (to be written)
#![no_std]
extern crate alloc;

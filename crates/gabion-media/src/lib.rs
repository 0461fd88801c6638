#![no_std]
//! x
extern crate alloc;
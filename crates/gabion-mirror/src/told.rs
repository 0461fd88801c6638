//! Sentences that somebody was told once in a run, by whichever process.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Numbers of things that were told. Of more than these nobody is told.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Told([AtomicU64; 64]);

impl Told {
    /// Whether nobody was told of it before; from now on somebody was.
    pub(crate) fn is_first(&self, number: u64) -> bool {
        for place in &self.0 {
            match place.compare_exchange(0, number, Relaxed, Relaxed) {
                Ok(_) => return true,
                Err(found) if found == number => return false,
                Err(_) => {}
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_thing_is_told_once_and_no_more_of_them_than_there_is_room_for() {
        let told = Told([const { AtomicU64::new(0) }; 64]);
        let first = (1..=100).filter(|number| told.is_first(*number)).count();
        assert_eq!(first, 64);
        assert!(!(1..=100).any(|number| told.is_first(number)));
    }
}

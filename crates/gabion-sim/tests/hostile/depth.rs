//! How deep changed inputs got. If a parser goes on past damage, calling every changed input
//! damaged would pass as well. So the places that some inputs must reach are counted.

use crate::Format;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

/// From so many inputs on each place must have been reached.
const INPUTS_MIN: u64 = 50;

/// The places that a format's inputs reached.
#[derive(Default)]
pub(crate) struct Depth {
    inputs: Cell<u64>,
    reached: RefCell<BTreeMap<&'static str, u64>>,
}

impl Depth {
    /// Another input is read.
    pub(crate) fn begin(&self) {
        self.inputs.set(self.inputs.get() + 1);
    }

    /// The input reached this place.
    pub(crate) fn reach(&self, place: &'static str) {
        *self.reached.borrow_mut().entry(place).or_default() += 1;
    }
}

/// A format, and places that some of its changed inputs must reach.
pub(crate) struct Deep {
    pub(crate) format: Format,
    pub(crate) depth: Rc<Depth>,
    pub(crate) places: &'static [&'static str],
}

impl Deep {
    pub(crate) fn run(&self) {
        self.format.run();
        let (name, inputs, reached) =
            (self.format.name, self.depth.inputs.get(), self.depth.reached.borrow());
        eprintln!("coverage: hostile bytes, {name}: reached {reached:?}");
        for place in self.places {
            let is_reached = reached.contains_key(place);
            assert!(is_reached || inputs < INPUTS_MIN, "{name}: no input led to {place}");
        }
    }
}

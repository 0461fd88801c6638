//! Large values are packed once, before they go into the log.

use gabion_engine::{Compression, Packed, Packer, TreeConfig};

/// How the values of a turn are packed.
#[derive(Default)]
pub(super) struct Packing(Option<Codec>);

struct Codec {
    codec: Compression,
    packer: Packer,
    /// Shorter values stay as they are.
    from: usize,
}

impl Packing {
    /// Goes on with the options of a tree.
    pub(super) fn set(&mut self, config: &TreeConfig) {
        let (codec, from) = (config.value_compression, config.large_values as usize);
        self.0 = match self.0.take() {
            _ if from == 0 => None,
            Some(same) if same.codec == codec => Some(Codec { from, ..same }),
            _ => Packer::of(codec).map(|packer| Codec { codec, packer, from }),
        };
    }

    /// A value packed, where it is large and packing is worth it.
    #[inline]
    pub(super) fn pack(&mut self, value: &[u8]) -> Option<Packed<'_>> {
        let codec = self.0.as_mut().filter(|codec| value.len() >= codec.from)?;
        codec.packer.pack(value)
    }

    pub(super) fn memory_used(&self) -> usize {
        self.0.as_ref().map_or(0, |codec| codec.packer.memory_used())
    }
}

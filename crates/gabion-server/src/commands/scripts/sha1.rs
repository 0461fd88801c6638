//! SHA-1, by which clients name scripts. It protects nothing here.

/// The digest of a script.
pub(crate) type Digest = [u8; 20];

/// The SHA-1 of some bytes.
pub(crate) fn sha1(bytes: &[u8]) -> Digest {
    let mut state = [0x6745_2301_u32, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476, 0xc3d2_e1f0];
    let (blocks, rest) = bytes.as_chunks::<64>();
    blocks.iter().for_each(|block| mix(&mut state, block));
    let mut tail = [0; 128];
    tail[..rest.len()].copy_from_slice(rest);
    tail[rest.len()] = 0x80;
    let end = if rest.len() < 56 { 64 } else { 128 };
    tail[end - 8..end].copy_from_slice(&(bytes.len() as u64 * 8).to_be_bytes());
    let (blocks, _) = tail[..end].as_chunks::<64>();
    blocks.iter().for_each(|block| mix(&mut state, block));
    let mut digest = [0; 20];
    for (out, word) in digest.chunks_exact_mut(4).zip(state) {
        out.copy_from_slice(&word.to_be_bytes());
    }
    digest
}

fn mix(state: &mut [u32; 5], block: &[u8; 64]) {
    let mut words = [0_u32; 80];
    let (given, _) = block.as_chunks::<4>();
    for (word, bytes) in words.iter_mut().zip(given) {
        *word = u32::from_be_bytes(*bytes);
    }
    for i in 16..80 {
        words[i] = (words[i - 3] ^ words[i - 8] ^ words[i - 14] ^ words[i - 16]).rotate_left(1);
    }
    let [mut a, mut b, mut c, mut d, mut e] = *state;
    for (i, word) in words.iter().enumerate() {
        let (f, k) = match i / 20 {
            0 => ((b & c) | (!b & d), 0x5a82_7999),
            1 => (b ^ c ^ d, 0x6ed9_eba1),
            2 => ((b & c) | (b & d) | (c & d), 0x8f1b_bcdc),
            _ => (b ^ c ^ d, 0xca62_c1d6),
        };
        let next = a.rotate_left(5).wrapping_add(f).wrapping_add(e);
        let next = next.wrapping_add(k).wrapping_add(*word);
        (a, b, c, d, e) = (next, a, b.rotate_left(30), c, d);
    }
    for (old, new) in state.iter_mut().zip([a, b, c, d, e]) {
        *old = old.wrapping_add(new);
    }
}

/// A digest as clients write it.
pub(crate) fn hex(digest: &Digest) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The digest that a client wrote, in any case.
pub(crate) fn parse_hex(text: &[u8]) -> Option<Digest> {
    let digits: &[u8; 40] = text.try_into().ok()?;
    let mut digest = [0; 20];
    for (byte, pair) in digest.iter_mut().zip(digits.chunks_exact(2)) {
        let digit = |at: usize| char::from(pair[at]).to_digit(16);
        *byte = (digit(0)? * 16 + digit(1)?) as u8;
    }
    Some(digest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_those_that_others_compute() {
        for (text, expected) in [
            ("", "da39a3ee5e6b4b0d3255bfef95601890afd80709"),
            ("abc", "a9993e364706816aba3e25717850c26c9cd0d89d"),
            ("Pizza & Mandolino", "74822d82031af7493c20eefa13bd07ec4fada82f"),
            ("return 1+1", "a27e7e8a43702b7046d4f6a7ccf5b60cef6b9bd9"),
        ] {
            assert_eq!(hex(&sha1(text.as_bytes())), expected, "{text}");
            assert_eq!(parse_hex(expected.to_uppercase().as_bytes()), Some(sha1(text.as_bytes())));
        }
        let million = vec![b'a'; 1_000_000];
        assert_eq!(hex(&sha1(&million)), "34aa973cd4c4daa4f61eeb2bdbad27316534016f");
        // Both sides of where the length still fits into the last block.
        let digests: std::collections::BTreeSet<_> =
            (54..66).map(|n| sha1(&million[..n])).collect();
        assert_eq!(digests.len(), 12);
        assert_eq!(hex(&sha1(&million[..56])), "c2db330f6083854c99d4b5bfb6e8f29f201be699");
        for wrong in ["", "a9993e36", "g9993e364706816aba3e25717850c26c9cd0d89d"] {
            assert_eq!(parse_hex(wrong.as_bytes()), None);
        }
    }
}

//! LZF, by which Redis compresses strings: runs of literal bytes, and copies of what was written before.
//!
//! ```text
//!   000lllll                    l + 1 literal bytes follow
//!   lllddddd dddddddd           l + 2 bytes (l: 1 to 6) from d + 1 bytes back
//!   111ddddd llllllll dddddddd  l + 9 bytes from d + 1 bytes back
//! ```

/// The `len` bytes that `packed` holds; `None` when it does not hold just so many.
pub(super) fn decompress(packed: &[u8], len: usize) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(len);
    let mut rest = packed;
    while let [control, more @ ..] = rest {
        rest = more;
        if *control < 0x20 {
            let (literal, more) = rest.split_at_checked(usize::from(*control) + 1)?;
            out.extend_from_slice(literal);
            rest = more;
        } else {
            let mut count = usize::from(control >> 5) + 2;
            if count == 9 {
                let (more_count, more) = rest.split_first()?;
                count += usize::from(*more_count);
                rest = more;
            }
            let (low, more) = rest.split_first()?;
            rest = more;
            let back = (usize::from(control & 0x1f) << 8 | usize::from(*low)) + 1;
            let start = out.len().checked_sub(back)?;
            if out.len() + count > len {
                return None;
            }
            // What is copied may begin in what it writes.
            (start..start + count).for_each(|at| out.push(out[at]));
        }
        if out.len() > len {
            return None;
        }
    }
    (out.len() == len).then_some(out)
}

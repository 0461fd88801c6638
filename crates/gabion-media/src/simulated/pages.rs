//! Sparse bytes with cheap copies: a disk of gigabytes costs what was written to it, and a copy of
//! it (durable beside visible, an image per crash point) costs one pointer per 256 KiB in use.

use alloc::collections::BTreeMap;
use alloc::rc::Rc;
use gabion_base::units::BLOCK_LEN;

const CHUNK_PAGES: usize = 64;
const CHUNK_LEN: u64 = (CHUNK_PAGES * BLOCK_LEN) as u64;

type Page = [u8; BLOCK_LEN];

#[derive(Clone)]
struct Chunk([Option<Rc<Page>>; CHUNK_PAGES]);

/// Bytes by offset; what was never written is zero.
#[derive(Clone, Default)]
pub(super) struct Pages(BTreeMap<u64, Rc<Chunk>>);

impl Pages {
    pub(super) fn read(&self, offset: u64, into: &mut [u8]) {
        let mut at = offset;
        let mut rest = into;
        while !rest.is_empty() {
            let (chunk, page, inside) = place(at);
            let (part, tail) = rest.split_at_mut(rest.len().min(BLOCK_LEN - inside));
            match self.0.get(&chunk).and_then(|chunk| chunk.0[page].as_ref()) {
                Some(page) => part.copy_from_slice(&page[inside..inside + part.len()]),
                None => part.fill(0),
            }
            at += part.len() as u64;
            rest = tail;
        }
    }

    pub(super) fn write(&mut self, offset: u64, data: &[u8]) {
        let mut at = offset;
        let mut rest = data;
        while !rest.is_empty() {
            let (chunk, page, inside) = place(at);
            let (part, tail) = rest.split_at(rest.len().min(BLOCK_LEN - inside));
            let empty = || Rc::new(Chunk([const { None }; CHUNK_PAGES]));
            let chunk = Rc::make_mut(self.0.entry(chunk).or_insert_with(empty));
            let page = chunk.0[page].get_or_insert_with(|| Rc::new([0; BLOCK_LEN]));
            Rc::make_mut(page)[inside..inside + part.len()].copy_from_slice(part);
            at += part.len() as u64;
            rest = tail;
        }
    }
}

/// Chunk number, page in the chunk, byte in the page.
const fn place(offset: u64) -> (u64, usize, usize) {
    let page = (offset % CHUNK_LEN) as usize / BLOCK_LEN;
    (offset / CHUNK_LEN, page, (offset % BLOCK_LEN as u64) as usize)
}

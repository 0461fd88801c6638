//! A view in bytes, and the view that these make again: what a backup is made of.

use crate::fork::{copied, flush, pairs};
use crate::support::*;
use crate::tree_rules::Driven;
use gabion_base::Result;
use gabion_engine::*;

/// Image and pages of a view, each page as short as it can be.
fn told(view: &ReadView) -> (Vec<u8>, Vec<Vec<u8>>) {
    let (mut cursor, mut pages) = (PageCursor::default(), Vec::new());
    while let Some(page) = view.page(&mut cursor, 1).unwrap() {
        pages.push(page);
    }
    assert_eq!(view.page(&mut cursor, 1).unwrap(), None);
    (view.image().unwrap(), pages)
}

fn of_image(image: &[u8], pages: &[Vec<u8>]) -> Result<ReadView> {
    ReadView::of_image(image, pages.iter().cloned().map(Ok))
}

/// Entries in a file, in a sealed MemTable and in the active one; a range delete; a key of several
/// versions.
fn driven() -> Driven {
    let mut driven = Driven::new(small_config());
    driven.put("a", b"in a file");
    driven.put("b", b"in a file");
    driven.flush();
    driven.put("b", b"sealed");
    driven.put("x", b"to be deleted");
    driven.seal();
    driven.put("c", b"active");
    driven.put("c", b"active, again");
    driven.write(|batch| _ = batch.delete_range(Keyspace::User, b"x", Some(b"y")).unwrap());
    driven
}

/// docs/faults.md: P9
#[test]
fn a_view_made_of_its_image_and_pages_shows_the_same_and_nothing_later() {
    let mut driven = driven();
    let view = driven.replica.tree.lasting_view();
    let then = pairs(&driven.replica.tree, &driven.replica.files);
    driven.put("a", b"later");
    driven.put("d", b"later");
    let (image, pages) = told(&view);
    // b, x; then c twice, and the range delete.
    assert_eq!(pages.len(), 5);
    let again = of_image(&image, &pages).unwrap();
    assert_eq!((again.sequence(), again.now_ms()), (view.sequence(), view.now_ms()));
    let mut fork = Tree::fork(&again, small_config(), GROUP).unwrap();
    let files = copied(&fork, &driven.replica.files);
    flush(&mut fork, &files);
    assert_eq!(pairs(&fork, &files), then);
    let mut original = Tree::fork(&view, small_config(), GROUP).unwrap();
    let files = copied(&original, &driven.replica.files);
    flush(&mut original, &files);
    assert_eq!(fork.snapshot(), original.snapshot(), "the same files, byte for byte");
}

#[test]
fn long_pages_say_what_short_ones_do() {
    let driven = driven();
    let view = driven.replica.tree.lasting_view();
    let (mut cursor, mut pages) = (PageCursor::default(), Vec::new());
    while let Some(page) = view.page(&mut cursor, 1 << 20).unwrap() {
        pages.push(page);
    }
    assert_eq!(pages.len(), 3, "of each MemTable one, and one of range deletes");
    let of_long = of_image(&view.image().unwrap(), &pages).unwrap();
    assert_eq!(told(&of_long), told(&view));
}

/// docs/faults.md: P9
#[test]
fn no_flipped_byte_and_no_prefix_of_an_image_or_a_page_is_taken() {
    let driven = driven();
    let (image, pages) = told(&driven.replica.tree.lasting_view());
    for at in 0..image.len() {
        let mut flipped = image.clone();
        flipped[at] ^= 1;
        assert!(of_image(&flipped, &pages).is_err(), "byte {at}");
        assert!(of_image(&image[..at], &pages).is_err(), "{at} bytes");
    }
    for page in 0..pages.len() {
        for at in 0..pages[page].len() {
            let mut flipped = pages.clone();
            flipped[page][at] ^= 1;
            assert!(of_image(&image, &flipped).is_err(), "page {page}, byte {at}");
            flipped[page] = pages[page][..at].to_vec();
            assert!(of_image(&image, &flipped).is_err(), "page {page}, {at} bytes");
        }
    }
    let twice = [&pages[..], &pages[..1]].concat();
    assert!(of_image(&image, &twice).is_err(), "a page that comes twice");
}

#[test]
fn pages_of_another_view_are_refused() {
    let (image, _) = told(&driven().replica.tree.lasting_view());
    let mut other = Driven::new(small_config());
    for _ in 0..9 {
        other.put("k", b"v");
        other.seal();
    }
    let (_, pages) = told(&other.replica.tree.lasting_view());
    let error = of_image(&image, &pages).err().expect("MemTables that it lacks");
    assert!(error.message().contains("which it lacks"), "{error}");
}

//! Requests of a process to the owner and the replies: one connection each, as a descriptor that
//! stayed open could be closed by the program that it is in.
//!
//! ```text
//!  request  operation u32, flags u32, slot u32, generation u32, device u64, inode u64, value u64,
//!           length of the first path u32, of the second u32; the paths
//!  reply    errno u32, kind u32, slot u32, generation u32, attributes 11 × u64,
//!           length of text u32, 0 u32; the text. A descriptor comes behind it, with one more byte.
//! ```

/// Bytes of a request ahead of its paths.
pub const REQUEST: usize = 48;
/// Bytes of a reply ahead of its text.
pub const REPLY: usize = 112;
/// Bytes of a path at most: the kernel's own limit.
pub const PATH_MAX: usize = 4096;
/// Attributes in a reply: size, blocks, mode, user, group, then seconds and nanoseconds of the last
/// access, modification and change.
pub const ATTRIBUTES: usize = 11;
/// The variable by which a process finds the owner: it has the directory of its socket.
pub const ENVIRONMENT: &str = "GABION_NCL";
/// The socket in that directory.
pub const SOCKET: &str = "socket";
/// The name of mirrors, as the kernel shows it: a process that was started anew knows the
/// descriptors by it that it has inherited.
pub const MIRROR: &str = "gabion-ncl-mirror";

/// A kind of request of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Operation {
    /// A process begins. Reply: the shared memory; the globs.
    Hello = 1,
    /// A file was opened (its device, inode, path and the flags): the descriptor of its mirror.
    /// `value`: [`WAS_SPLIT`], of a descriptor that is open, or 0.
    Open = 2,
    /// The first path became the second. `value`: bits of [`moved`].
    Renamed = 3,
    /// The second path is a further name of a file.
    Linked = 4,
    /// The path is no name any more.
    Unlinked = 5,
    /// The attributes of a file.
    Attributes = 6,
    /// A file has `value` bytes from now on.
    Truncate = 7,
    /// Mode and ownership of the placeholder at the path changed: so do the mirror's.
    FromPlaceholder = 8,
    /// Times of the placeholder at the path changed: so do the mirror's.
    TimesFromPlaceholder = 9,
    /// Mode and ownership of the mirror changed: so do the placeholder's.
    FromMirror = 10,
    /// A renaming is about to be made, or a link. `EXDEV` if a mirrored file would have a name that
    /// is not below the root, or a directory has too many of them; `ENAMETOOLONG` if the store
    /// takes none so long; `ENOSPC` if it has no memory to note the names.
    MayName = 11,
    /// The memory of log peers (`value`: the window): descriptors; the description.
    Window = 12,
    /// The journal of split files: the descriptor of its memory.
    Journal = 13,
    /// The journal is to be emptied.
    EmptyJournal = 14,
    /// The names of these paths are about to change or to go. `value`: bits of [`moved`]. Split
    /// files of these names are split no more until `Arrive`. Reply: its number, as the slot.
    Leave = 15,
    /// The change of the `Leave` of this number was made, or failed.
    Arrive = 16,
    /// A file is to have `value` bytes: `ENOSPC` if the store has no memory for them.
    Reserve = 17,
}

/// The descriptor is of a file that was split. If it cannot be now, it is not to be again.
pub const WAS_SPLIT: u64 = 1;

/// The file has several names, so it is open by one that may not match, and is not to be split.
pub const HAS_NAMES: u64 = 2;

/// The generation of no file: of one that may be split later, but whose name is being changed.
pub const NO_GENERATION: u32 = 0;

/// Bits of a renaming.
pub mod moved {
    /// The two paths were exchanged.
    pub const EXCHANGED: u64 = 1;
    /// A directory was moved, and all below it.
    pub const DIRECTORY: u64 = 2;
}

/// Kinds of a reply to an opening.
pub mod kind {
    /// Not mirrored: the bytes are in the file system.
    pub const PLAIN: u32 = 0;
    /// Mirrored: a descriptor comes with the reply.
    pub const MIRRORED: u32 = 1;
    /// Split: the descriptor of the file itself stays. It may have [`NO_GENERATION`] yet.
    ///
    /// [`NO_GENERATION`]: super::NO_GENERATION
    pub const SPLIT: u32 = 2;
}

impl Operation {
    const ALL: [Self; 17] = [
        Self::Hello,
        Self::Open,
        Self::Renamed,
        Self::Linked,
        Self::Unlinked,
        Self::Attributes,
        Self::Truncate,
        Self::FromPlaceholder,
        Self::TimesFromPlaceholder,
        Self::FromMirror,
        Self::MayName,
        Self::Window,
        Self::Journal,
        Self::EmptyJournal,
        Self::Leave,
        Self::Arrive,
        Self::Reserve,
    ];
}

/// A request without its paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The kind of request.
    pub operation: Operation,
    /// Flags of `open`.
    pub flags: u32,
    /// The file, where one is meant.
    pub slot: u32,
    /// Its generation.
    pub generation: u32,
    /// Device of the placeholder.
    pub device: u64,
    /// Inode of the placeholder.
    pub inode: u64,
    /// See [`Operation`].
    pub value: u64,
    /// Bytes of the paths.
    pub paths: [u32; 2],
}

impl Request {
    /// A request that says nothing but what it is.
    #[must_use]
    pub fn new(operation: Operation) -> Self {
        let (device, inode, value) = (0, 0, 0);
        Self { operation, flags: 0, slot: 0, generation: 0, device, inode, value, paths: [0; 2] }
    }

    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; REQUEST] {
        let mut bytes = [0; REQUEST];
        let words = [self.operation as u32, self.flags, self.slot, self.generation];
        put_words(&mut bytes[..16], &words);
        put_longs(&mut bytes[16..40], &[self.device, self.inode, self.value]);
        put_words(&mut bytes[40..], &self.paths);
        bytes
    }

    /// The request of these bytes; `None` if they are none, or a path is longer than may be.
    #[must_use]
    pub fn parse(bytes: &[u8; REQUEST]) -> Option<Self> {
        let word = |at| u32::from_le_bytes(array(bytes, at));
        let long = |at| u64::from_le_bytes(array(bytes, at));
        let operation = Operation::ALL.into_iter().find(|one| *one as u32 == word(0))?;
        let [flags, slot, generation] = [4, 8, 12].map(word);
        let [device, inode, value] = [16, 24, 32].map(long);
        let paths = [40, 44].map(word);
        let fits = paths.iter().all(|len| *len as usize <= PATH_MAX);
        fits.then_some(Self { operation, flags, slot, generation, device, inode, value, paths })
    }
}

/// A reply without its text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reply {
    /// 0, or why it was not done.
    pub errno: u32,
    /// See [`kind`].
    pub kind: u32,
    /// The file.
    pub slot: u32,
    /// Its generation.
    pub generation: u32,
    /// See [`ATTRIBUTES`].
    pub attributes: [u64; ATTRIBUTES],
    /// Bytes of the text.
    pub text: u32,
}

impl Reply {
    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; REPLY] {
        let mut bytes = [0; REPLY];
        put_words(&mut bytes[..16], &[self.errno, self.kind, self.slot, self.generation]);
        put_longs(&mut bytes[16..104], &self.attributes);
        put_words(&mut bytes[104..], &[self.text, 0]);
        bytes
    }

    /// The reply of these bytes.
    #[must_use]
    pub fn parse(bytes: &[u8; REPLY]) -> Self {
        let word = |at| u32::from_le_bytes(array(bytes, at));
        let [errno, kind, slot, generation] = [0, 4, 8, 12].map(word);
        let attributes = std::array::from_fn(|at| u64::from_le_bytes(array(bytes, 16 + 8 * at)));
        Self { errno, kind, slot, generation, attributes, text: word(104) }
    }
}

fn put_words(into: &mut [u8], words: &[u32]) {
    for (place, word) in into.chunks_exact_mut(4).zip(words) {
        place.copy_from_slice(&word.to_le_bytes());
    }
}

fn put_longs(into: &mut [u8], longs: &[u64]) {
    for (place, long) in into.chunks_exact_mut(8).zip(longs) {
        place.copy_from_slice(&long.to_le_bytes());
    }
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    std::array::from_fn(|byte| bytes[at + byte])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_replies_come_back_as_they_were() {
        for operation in Operation::ALL {
            let request = Request {
                flags: 1,
                slot: 2,
                generation: 3,
                device: 4,
                inode: u64::MAX,
                value: 6,
                paths: [PATH_MAX as u32, 8],
                ..Request::new(operation)
            };
            assert_eq!(Request::parse(&request.encode()), Some(request));
        }
        let attributes = std::array::from_fn(|at| at as u64 * 1_000_000_007);
        let reply = Reply { errno: 5, kind: 1, slot: 9, generation: 8, attributes, text: 77 };
        assert_eq!(Reply::parse(&reply.encode()), reply);
    }

    #[test]
    fn a_path_that_is_too_long_and_an_unknown_operation_are_refused() {
        let request = Request { paths: [PATH_MAX as u32 + 1, 0], ..Request::new(Operation::Open) };
        assert_eq!(Request::parse(&request.encode()), None);
        assert_eq!(Request::parse(&[0xff; REQUEST]), None);
    }
}

//! The error of every public function: a small kind to act on, a message that names the thing, its
//! value and its limit, and the error that caused it.

use alloc::string::String;
use alloc::sync::Arc;
use core::fmt;

/// The kinds that a caller can act on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The caller's input breaks a rule; the same call fails again.
    InvalidInput,
    /// A size or count is over its limit.
    LimitExceeded,
    /// Bytes from a disk or a wire differ from the written ones. Never returned as data.
    Corruption,
    /// A device or connection failed the operation; nothing of it counts.
    Io,
    /// The outcome is not known: the operation may still take effect later.
    Unknown,
    /// No free slot, ring space or memory budget is left for the operation.
    NoSpace,
    /// Not possible now (a replica is out, the group is starting); worth a retry later.
    Unavailable,
    /// A newer term exists; the caller is no longer the writer that it was.
    Fenced,
    /// A format version, feature bit or field that this build does not know.
    Unsupported,
    /// A read point outlived its pin budget.
    SnapshotTooOld,
    /// The named thing does not exist.
    NotFound,
    /// Another process owns the thing (file lock).
    Busy,
}

impl ErrorKind {
    /// The kind as a word for messages and JSON.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::InvalidInput => "invalid input",
            Self::LimitExceeded => "limit exceeded",
            Self::Corruption => "corruption",
            Self::Io => "I/O error",
            Self::Unknown => "unknown outcome",
            Self::NoSpace => "no space",
            Self::Unavailable => "unavailable",
            Self::Fenced => "fenced",
            Self::Unsupported => "unsupported",
            Self::SnapshotTooOld => "snapshot too old",
            Self::NotFound => "not found",
            Self::Busy => "busy",
        }
    }
}

/// An error: kind, message, cause. Cheap to clone.
#[derive(Clone)]
pub struct Error(Arc<Inner>);

struct Inner {
    kind: ErrorKind,
    message: String,
    source: Option<Arc<dyn core::error::Error + Send + Sync>>,
}

impl Error {
    /// An error of this kind. The message names the thing, its value and its limit.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self(Arc::new(Inner { kind, message: message.into(), source: None }))
    }

    /// The same with the error that caused it.
    pub fn with_source(
        kind: ErrorKind,
        message: impl Into<String>,
        source: impl core::error::Error + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(Inner { kind, message: message.into(), source: Some(Arc::new(source)) }))
    }

    /// This error as the cause of another of the same kind, whose message says where it happened.
    #[must_use]
    pub fn within(self, message: impl Into<String>) -> Self {
        Self::with_source(self.kind(), message, self)
    }

    /// The kind to act on.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The message without its causes.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.0.message
    }
}

macro_rules! shorthand {
    ($($(#[$doc:meta])* $name:ident => $kind:ident;)*) => {
        impl Error {
            $($(#[$doc])* pub fn $name(message: impl Into<String>) -> Self {
                Self::new(ErrorKind::$kind, message)
            })*
        }
    };
}

shorthand! {
    /// [`ErrorKind::InvalidInput`].
    invalid => InvalidInput;
    /// [`ErrorKind::LimitExceeded`].
    limit => LimitExceeded;
    /// [`ErrorKind::Corruption`].
    corruption => Corruption;
    /// [`ErrorKind::Io`].
    io => Io;
    /// [`ErrorKind::Unknown`].
    unknown => Unknown;
    /// [`ErrorKind::NoSpace`].
    no_space => NoSpace;
    /// [`ErrorKind::Unavailable`].
    unavailable => Unavailable;
    /// [`ErrorKind::Fenced`].
    fenced => Fenced;
    /// [`ErrorKind::Unsupported`].
    unsupported => Unsupported;
    /// [`ErrorKind::NotFound`].
    not_found => NotFound;
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)?;
        if let Some(source) = &self.0.source {
            write!(f, ": {source}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}] {self}", self.0.kind.as_str())
    }
}

impl core::error::Error for Error {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        self.0.source.as_ref().map(|s| &**s as &(dyn core::error::Error + 'static))
    }
}

/// A result with this crate's [`Error`].
pub type Result<T, E = Error> = core::result::Result<T, E>;

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;

    #[test]
    fn an_error_prints_where_it_happened_and_why() {
        let inner = Error::corruption("block at 4096 has checksum 1, expected 2");
        let outer = inner.within("000007.sst");
        assert_eq!(outer.kind(), ErrorKind::Corruption);
        assert_eq!(format!("{outer}"), "000007.sst: block at 4096 has checksum 1, expected 2");
    }
}

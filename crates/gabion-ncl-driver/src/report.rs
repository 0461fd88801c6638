//! Report of a running instance in the store, for `gabion ncl status`.
//!
//! ```text
//!   ncl/apps/<owner>/report   version u16 = 1 | term u64 | instance u64 | process u32
//!                             | copies u32 | wanted u32 | shared u32
//!                             | losses u64 | replaced u64 | ms of the last loss u64
//!                             | files u32 | entries u32, each: name prefixed | bytes u64
//! ```
//!
//! Nothing is decided by it. Entries may be fewer than files: those that fit into a value.

use gabion_base::codec::Put;
use gabion_base::{Error, Result, Term};
use gabion_ncl::map::begin;

const VERSION: u16 = 1;
const WHAT: &str = "report of an instance";
/// Bytes of entries that are told; a value of the store has 64 KiB.
const ENTRIES_LEN_MAX: usize = 48 << 10;
/// Longest name in bytes.
const NAME_LEN_MAX: usize = 4095;

/// Name of the report of an application's instance.
#[must_use]
pub fn report_name(owner: &str) -> String {
    format!("ncl/apps/{owner}/report")
}

/// A file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileReport {
    /// Its name.
    pub name: String,
    /// Its length when it was told.
    pub len: u64,
}

/// An instance.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InstanceReport {
    /// Its term.
    pub term: Term,
    /// Its number.
    pub instance: u64,
    /// Its process.
    pub process: u32,
    /// Copies that counted.
    pub copies: u32,
    /// 2f+1.
    pub wanted: u32,
    /// Connected peers that share their memory.
    pub shared: u32,
    /// Times at which copies were missing.
    pub losses: u64,
    /// Copies that were made in the place of lost ones.
    pub replaced: u64,
    /// How long the last such time was, in ms.
    pub last_loss_ms: u64,
    /// Its files.
    pub files: Vec<FileReport>,
}

impl InstanceReport {
    /// Whether nothing but lengths differs.
    #[must_use]
    pub fn is_alike(&self, other: &Self) -> bool {
        let names = |report: &Self| -> Vec<String> {
            report.files.iter().map(|file| file.name.clone()).collect()
        };
        let rest = |report: &Self| Self { files: Vec::new(), ..report.clone() };
        rest(self) == rest(other) && names(self) == names(other)
    }

    /// In bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.put_u16(VERSION);
        out.put_u64(self.term.0);
        out.put_u64(self.instance);
        for number in [self.process, self.copies, self.wanted, self.shared] {
            out.put_u32(number);
        }
        for number in [self.losses, self.replaced, self.last_loss_ms] {
            out.put_u64(number);
        }
        out.put_u32(self.files.len() as u32);
        let (mut count, mut entries) = (0, Vec::new());
        for file in &self.files {
            if entries.len() + file.name.len() + 16 > ENTRIES_LEN_MAX {
                break;
            }
            entries.put_prefixed(file.name.as_bytes());
            entries.put_u64(file.len);
            count += 1;
        }
        out.put_u32(count);
        out.put_bytes(&entries);
        out
    }

    /// From bytes, and how many files there are.
    ///
    /// # Errors
    /// Corruption; unsupported for a later version.
    pub fn decode(bytes: &[u8]) -> Result<(Self, u32)> {
        let mut r = begin(bytes, WHAT, VERSION)?;
        let mut report = Self {
            term: Term(r.u64()?),
            instance: r.u64()?,
            process: r.u32()?,
            copies: r.u32()?,
            wanted: r.u32()?,
            shared: r.u32()?,
            losses: r.u64()?,
            replaced: r.u64()?,
            last_loss_ms: r.u64()?,
            files: Vec::new(),
        };
        let (all, count) = (r.u32()?, r.u32()?);
        for _ in 0..count {
            let name = core::str::from_utf8(r.prefixed(NAME_LEN_MAX)?);
            let name = name.map_err(|_| Error::corruption(format!("{WHAT}: a name")))?;
            report.files.push(FileReport { name: name.to_owned(), len: r.u64()? });
        }
        r.finish()?;
        Ok((report, all))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_read_as_it_was_written_and_one_of_many_files_is_cut() {
        let file = |at: usize| FileReport { name: format!("{at:0100}"), len: at as u64 };
        let mut report = InstanceReport { term: Term(3), replaced: 2, ..InstanceReport::default() };
        report.files = (0..3).map(file).collect();
        assert_eq!(InstanceReport::decode(&report.encode()).unwrap(), (report.clone(), 3));
        let bytes = report.encode();
        for cut in 0..bytes.len() {
            assert!(InstanceReport::decode(&bytes[..cut]).is_err(), "{cut} bytes");
        }
        let mut grown = report.clone();
        grown.files[0].len = 99;
        assert!(grown.is_alike(&report) && grown != report);
        report.files = (0..1000).map(file).collect();
        let (read, all) = InstanceReport::decode(&report.encode()).unwrap();
        assert!(read.files.len() > 300 && read.files.len() < 1000);
        assert_eq!(all, 1000);
        assert!(report.encode().len() < 60 << 10);
    }
}

//! Parsers fed with nearly valid inputs.
//!
//! A seed changes valid bytes of a format: bits, numbers of each width at their extremes, parts
//! that are repeated, left out, exchanged or taken from another input, cut ends, typed fields as
//! such. Then, for most inputs, the checksums are repaired, as otherwise nothing else would be
//! tested. For any input,
//!
//! - nothing panics;
//! - a parser's allocations are bounded by its input, as the allocator counts them;
//! - it fails with an error that names the defect, and of a kind that tells damage from another
//!   version;
//! - or it accepts the bytes. Then the value is encoded again: to the same bytes if a value has one
//!   encoding, or else to bytes that are read and encoded to themselves.
//!
//! `cargo test` takes a few hundred inputs of each format, `GABION_TIMES` multiplies them. A
//! failure names the seed: `GABION_FIRST_SEED=n GABION_SEEDS=1` repeats it.
//!
//! A test program that uses this has [`Counting`] as its allocator; [`Format::run`] fails with any
//! other.

mod memory;
mod mutate;

pub use memory::Counting;

use gabion_base::{Error, ErrorKind};
use memory::peak_of;
use mutate::Mutator;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Inputs of a format that `cargo test` takes.
const INPUTS: u64 = 600;

/// Repairs the checksums of changed bytes.
pub type Repair = Box<dyn Fn(&mut Vec<u8>)>;
/// The value read, in bytes, if it can be encoded; or why it cannot be read.
pub type Parsed = Result<Option<Vec<u8>>, Error>;
type Read = Box<dyn Fn(&[u8]) -> Parsed>;

/// A format and its parser.
pub struct Format {
    /// Its name, for messages.
    pub name: &'static str,
    /// Valid inputs.
    pub samples: Vec<Vec<u8>>,
    /// The start of the typed fields in each, if there are any.
    pub fields_at: Option<usize>,
    /// Whether inputs keep their length, as it gives the places in them.
    pub keeps_len: bool,
    /// Repairs checksums.
    pub repair: Repair,
    /// Reads; gives the bytes of the value, if it can be encoded.
    pub read: Read,
    /// Whether a value has one encoding.
    pub is_canonical: bool,
    /// Bytes that reading may take, besides 64 for each byte of the input.
    pub memory_max: usize,
    /// Kinds of errors that do not judge the bytes, and are right all the same.
    pub other_errors: &'static [ErrorKind],
    /// The divisor of the usual number of inputs, as each takes long.
    pub rare: u64,
}

impl Format {
    /// A format with one encoding per value, without checksums and typed fields, whose reader takes
    /// little memory.
    #[must_use]
    pub fn new(
        name: &'static str,
        samples: Vec<Vec<u8>>,
        read: impl Fn(&[u8]) -> Parsed + 'static,
    ) -> Self {
        Self {
            name,
            samples,
            fields_at: None,
            keeps_len: false,
            repair: Box::new(|_| {}),
            read: Box::new(read),
            is_canonical: true,
            memory_max: 64 << 10,
            other_errors: &[],
            rare: 1,
        }
    }

    /// Reads one input.
    ///
    /// # Errors
    /// The parser's violation.
    pub fn check(&self, input: &[u8], tally: &mut Tally) -> Result<(), String> {
        let read = || catch_unwind(AssertUnwindSafe(|| (self.read)(input)));
        let (result, peak) = peak_of(read);
        let result = result.map_err(|panic| {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).into()));
            format!("panicked: {}", text.unwrap_or_default())
        })?;
        tally.peak = tally.peak.max(peak);
        let peak_max = self.memory_max + 64 * input.len();
        if peak > peak_max {
            return Err(format!("reserved {peak} bytes for an input of {}", input.len()));
        }
        match result {
            Err(error) => tally.refuse(&error, self.other_errors),
            Ok(encoded) => {
                tally.taken += 1;
                match encoded {
                    Some(encoded) => self.check_encoded(input, &encoded),
                    None => Ok(()),
                }
            }
        }
    }

    fn check_encoded(&self, input: &[u8], encoded: &[u8]) -> Result<(), String> {
        if encoded == input {
            return Ok(());
        }
        if self.is_canonical {
            let at = input.iter().zip(encoded).take_while(|(a, b)| a == b).count();
            return Err(format!("encoded again it differs at byte {at}"));
        }
        match (self.read)(encoded) {
            Ok(Some(again)) if again == encoded => Ok(()),
            other => Err(format!("what was encoded again is read as {other:?}")),
        }
    }

    /// Reads valid inputs, all of which it must accept, and changed ones.
    ///
    /// # Panics
    /// When the parser breaks a rule; when repairs repair nothing; when all inputs are accepted, or
    /// none.
    pub fn run(&self) {
        let (probe, counted) = peak_of(|| vec![1_u8; 100]);
        assert!(counted >= probe.len(), "the allocator of this program does not count");
        let (mut tally, mut failures) = (Tally::default(), Vec::new());
        let (first, count) = (number("GABION_FIRST_SEED", 0), self.count());
        for sample in &self.samples {
            let outcome = self.check(sample, &mut tally);
            assert!(outcome.is_ok(), "{}: a sample: {outcome:?}", self.name);
        }
        assert_eq!(tally.taken, self.samples.len() as u64, "{}: every sample is taken", self.name);
        tally = Tally::default();
        for seed in first..first + count {
            let mut mutator = Mutator::new(seed);
            let mut input = mutator.change(&self.samples, self.fields_at, self.keeps_len);
            // The rest shows that the checksums are checked.
            let is_repaired = seed % 8 != 7;
            if is_repaired {
                (self.repair)(&mut input);
                tally.repaired += 1;
            }
            let before = tally.checksums;
            if let Err(what) = self.check(&input, &mut tally) {
                let bytes: String = input.iter().take(2_000).map(|b| format!("{b:02x}")).collect();
                failures.push(format!("seed {seed}: {what}\n{bytes}"));
            }
            tally.unrepaired += u64::from(is_repaired) * (tally.checksums - before);
        }
        eprintln!("coverage: hostile bytes, {}: {count} inputs, {tally}", self.name);
        let few: Vec<_> = failures.iter().take(3).collect();
        assert!(failures.is_empty(), "{}: {} inputs: {few:#?}", self.name, failures.len());
        // With a repair that does nothing, checksums would refuse most.
        let (unrepaired, repaired) = (tally.unrepaired, tally.repaired);
        assert!(unrepaired * 4 <= repaired, "{}: {unrepaired} of {repaired}", self.name);
        if count >= 100 {
            assert!(tally.taken > 0 && tally.refused > 0, "{}: {tally}", self.name);
        }
    }

    fn count(&self) -> u64 {
        let usual = INPUTS * number("GABION_TIMES", 1) / self.rare;
        number("GABION_SEEDS", usual)
    }
}

/// The outcomes of a format's inputs.
#[derive(Default)]
pub struct Tally {
    taken: u64,
    refused: u64,
    unsupported: u64,
    /// Refused for a checksum.
    checksums: u64,
    repaired: u64,
    /// Refused for a checksum though it had been repaired.
    unrepaired: u64,
    peak: usize,
}

impl Tally {
    fn refuse(&mut self, error: &Error, others: &[ErrorKind]) -> Result<(), String> {
        let text = error.to_string();
        self.refused += 1;
        self.checksums += u64::from(text.contains("checksum") || text.contains("digest"));
        match error.kind() {
            ErrorKind::Unsupported => self.unsupported += 1,
            ErrorKind::Corruption
            | ErrorKind::LimitExceeded
            | ErrorKind::InvalidInput
            | ErrorKind::NotFound => {}
            other if others.contains(&other) => {}
            _ => return Err(format!("an error of another kind: {error:?}")),
        }
        if text.len() < 8 { Err(format!("an error that says nothing: {text}")) } else { Ok(()) }
    }
}

impl std::fmt::Display for Tally {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} taken, {} refused ({} as of another version, {} for a checksum), at most {} bytes reserved",
            self.taken, self.refused, self.unsupported, self.checksums, self.peak
        )
    }
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
}

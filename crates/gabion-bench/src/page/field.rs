//! A field of a file that people made or kept, read with errors that name file, line, field and
//! value.

use gabion_base::{Error, Result};
use serde_json::Value;

/// Characters of a value that an error repeats.
const SHOWN_MAX: usize = 60;
/// Largest number: sums of any that a file can hold stay finite.
const NUMBER_MAX: f64 = 1e18;
/// Largest count, 2⁵³: JSON's numbers are exact up to there, and sums of any that a file can hold
/// do not overflow.
const COUNT_MAX: u64 = 1 << 53;

/// A value and its place.
#[derive(Clone, Debug)]
pub(super) struct Field<'a> {
    /// File and line of the start of its run.
    place: &'a str,
    /// Names and indexes from there, such as `operations[0].count`.
    path: String,
    value: &'a Value,
}

impl<'a> Field<'a> {
    pub(super) fn new(place: &'a str, path: String, value: &'a Value) -> Self {
        Self { place, path, value }
    }

    /// The error of an invalid value.
    pub(super) fn wrong(&self, needed: &str) -> Error {
        let text = self.value.to_string();
        let mut shown: String = text.chars().take(SHOWN_MAX).collect();
        if shown.len() < text.len() {
            shown.push('…');
        }
        let path = if self.path.is_empty() { "the run" } else { &self.path };
        Error::invalid(format!("{}: {path} is {shown}, needed is {needed}", self.place))
    }

    fn missing(&self, name: &str) -> Error {
        let path = self.child(name, self.value).path;
        Error::invalid(format!("{}: {path} is missing, needed is a value", self.place))
    }

    fn child(&self, name: &str, value: &'a Value) -> Self {
        let dot = if self.path.is_empty() { "" } else { "." };
        Self { place: self.place, path: format!("{}{dot}{name}", self.path), value }
    }

    /// A field of an object; `None` when it is not there or null.
    pub(super) fn find(&self, name: &str) -> Option<Self> {
        let value = self.value.get(name).filter(|value| !value.is_null())?;
        Some(self.child(name, value))
    }

    /// A required field of an object.
    pub(super) fn get(&self, name: &str) -> Result<Self> {
        if !self.value.is_object() {
            return Err(self.wrong("an object"));
        }
        self.find(name).ok_or_else(|| {
            let there = self.value.get(name).map(|value| self.child(name, value));
            there.map_or_else(|| self.missing(name), |null| null.wrong("a value"))
        })
    }

    pub(super) fn items(&self) -> Result<Vec<Self>> {
        let items = self.value.as_array().ok_or_else(|| self.wrong("an array"))?;
        let item =
            |(i, value)| Self { place: self.place, path: format!("{}[{i}]", self.path), value };
        Ok(items.iter().enumerate().map(item).collect())
    }

    /// A number; no figure of a run is below 0.
    pub(super) fn number(&self) -> Result<f64> {
        let number = self.value.as_f64().filter(|number| (0.0..=NUMBER_MAX).contains(number));
        number.ok_or_else(|| self.wrong(&format!("a number from 0 to {NUMBER_MAX:e}")))
    }

    pub(super) fn count(&self) -> Result<u64> {
        let count = self.value.as_u64().filter(|count| *count <= COUNT_MAX);
        count.ok_or_else(|| self.wrong(&format!("a whole number from 0 to {COUNT_MAX}")))
    }

    pub(super) fn flag(&self) -> Result<bool> {
        self.value.as_bool().ok_or_else(|| self.wrong("true or false"))
    }

    pub(super) fn text(&self) -> Result<String> {
        Ok(self.value.as_str().ok_or_else(|| self.wrong("a text"))?.to_owned())
    }

    pub(super) fn texts(&self) -> Result<Vec<String>> {
        self.items()?.iter().map(Self::text).collect()
    }

    /// One of these words.
    pub(super) fn word(&self, words: &[&str]) -> Result<String> {
        let word = self.value.as_str().filter(|word| words.contains(word));
        Ok(word.ok_or_else(|| self.wrong(&words.join(" or ")))?.to_owned())
    }

    /// The sum over an object of counters.
    pub(super) fn sum_of_counts(&self) -> Result<u64> {
        let object = self.value.as_object().ok_or_else(|| self.wrong("an object"))?;
        let counts = object.iter().map(|(name, value)| self.child(name, value).count());
        counts.sum()
    }
}

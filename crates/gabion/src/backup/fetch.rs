//! `gabion backup DIR`: a moment of a running group, into a directory.
//!
//! ```text
//!   find the replica that answers reads ─► BEGIN ─► image, pages ─► missing files ─► END
//!      ▲                                                                │              └─► finish
//!      └── it is lost, or its moment is over: another moment, with the files that are there ──┘
//! ```
//!
//! Deep files first: they live longest, so that another moment has most of them too.

use super::MakeOptions;
use super::look::Seen;
use super::manifest::{Manifest, Part, StoredFile};
use super::place::{Place, join_pages};
use super::several::{self, say_all};
use crate::client::Client;
use crate::cluster::addresses;
use crate::control::unix_ms;
use crate::machines;
use crate::options::WhereOptions;
use crate::screen::Progress;
use crate::status::STATUS_TIMEOUT;
use crate::units::{count, size, span, utc};
use bytes::Bytes;
use gabion_base::units::CHUNK_LEN;
use gabion_base::{Error, ErrorKind, GroupId, Result, crc};
use gabion_node::backup::BackupState;
use gabion_resp::Reply;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long a replica that answers reads is looked for, after the last byte came: no fail-over
/// takes longer.
const PATIENCE: Duration = Duration::from_secs(60);
/// The same where no replica has answered at all.
const PATIENCE_AT_FIRST: Duration = Duration::from_secs(10);
const BETWEEN_TRIES: Duration = Duration::from_millis(200);
/// How often a chunk that is not what was written is asked for: it is repaired within moments where
/// another replica has it.
const CHUNK_TRIES: u32 = 10;

pub(super) fn run(options: &MakeOptions) -> Result<u8> {
    options.door.take(&options.place)?;
    let no_name = || Error::invalid("no directory is named");
    let directory = options.directory.as_ref().ok_or_else(no_name)?;
    let each = match machines::groups(&options.place)? {
        Some(groups) => several::places(groups, directory)?,
        None => vec![(options.place.clone(), directory.clone())],
    };
    // The backups that one call makes of several groups have one number.
    let lasts = each.iter().map(|(_, directory)| several::last_of(directory));
    let number = lasts.collect::<Result<Vec<_>>>()?.into_iter().max().unwrap_or(0) + 1;
    let mut copied = Vec::new();
    for (of, directory) in &each {
        let seen = copy(options, of, directory, number).map_err(|error| match each.len() {
            1 => error,
            all => error.within(format!(
                "{} of {all} groups are copied as backup {number}, which is none without the \
                 others: make another one",
                copied.len()
            )),
        });
        copied.push(seen?);
    }
    say_all(&copied, options.json);
    Ok(0)
}

/// Copies one group, as a backup of this number or a higher one.
fn copy(options: &MakeOptions, of: &WhereOptions, directory: &Path, number: u64) -> Result<Seen> {
    let mut progress = Progress::new();
    // A directory of something else is refused before anything is asked.
    if let Err(error) = Place::open(directory)
        && error.kind() != ErrorKind::NotFound
    {
        return Err(error);
    }
    let mut backup = Backup::new(options, of, directory, number);
    let manifest = backup.make(&mut progress)?;
    progress.clear();
    let place = backup.place.as_ref().expect("it has been made");
    // The backup is there, whatever comes of what others left.
    let swept = place.sweep();
    if let Err(error) = &swept {
        eprintln!("gabion: the backup is whole, but {error}");
    }
    let is_fetched = |file: &&StoredFile| backup.whole.get(&file.name()).is_some_and(|n| *n > 0);
    let fetched = manifest.files.iter().filter(is_fetched).count() as u64;
    let (json, text) = (told(&manifest, fetched), said(&manifest, fetched, directory));
    Ok(Seen { code: 0, json, text })
}

fn told(manifest: &Manifest, fetched: u64) -> Value {
    json!({
        "backup": manifest.number,
        "group": manifest.group,
        "replica": manifest.replica,
        "term": manifest.term,
        "log_end": manifest.log_end,
        "sequence": manifest.sequence,
        "begun_ms": manifest.begun_ms,
        "ended_ms": manifest.ended_ms,
        "files": manifest.files.len(),
        "bytes": manifest.file_bytes(),
        "fetched_files": fetched,
        "fetched_bytes": manifest.copied,
        "memory_bytes": manifest.memory.len,
    })
}

fn said(manifest: &Manifest, fetched: u64, dir: &Path) -> String {
    format!(
        "{}: backup {} of {}, from replica {}: {} with {}, of which {} with {} were fetched, and \
         {} that had no file yet\n",
        dir.display(),
        manifest.number,
        utc(manifest.begun_ms),
        manifest.replica,
        count(manifest.files.len() as u64, "file"),
        size(manifest.file_bytes()),
        count(fetched, "file"),
        size(manifest.copied),
        size(manifest.memory.len)
    )
}

/// A backup under way.
struct Backup<'a> {
    options: &'a MakeOptions,
    /// The group.
    of: &'a WhereOptions,
    directory: &'a Path,
    number: u64,
    place: Option<Place>,
    /// Files that are there, as far as this call has seen, with the bytes that it fetched of each.
    whole: BTreeMap<String, u64>,
    bytes: u64,
    begun: Instant,
    /// When anything came last.
    moved: Instant,
    /// A replica has answered.
    is_answered: bool,
}

/// A moment that a replica gives away.
struct Moment {
    client: Client,
    id: u64,
    told: Value,
    begun_ms: u64,
}

impl<'a> Backup<'a> {
    fn new(
        options: &'a MakeOptions,
        of: &'a WhereOptions,
        directory: &'a Path,
        number: u64,
    ) -> Self {
        let now = Instant::now();
        let whole = BTreeMap::new();
        Self {
            options,
            of,
            directory,
            number,
            place: None,
            whole,
            bytes: 0,
            begun: now,
            moved: now,
            is_answered: false,
        }
    }

    fn make(&mut self, progress: &mut Progress) -> Result<Manifest> {
        loop {
            progress.say("asking which replica answers reads");
            let error = match self.attempt(progress) {
                Ok(manifest) => return Ok(manifest),
                Err(error) => error,
            };
            let may_pass =
                matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::SnapshotTooOld);
            let patience = if self.is_answered { PATIENCE } else { PATIENCE_AT_FIRST };
            if !may_pass || self.moved.elapsed() > patience {
                return Err(error);
            }
            progress.say(&format!("beginning again: {error}"));
            std::thread::sleep(BETWEEN_TRIES);
        }
    }

    fn attempt(&mut self, progress: &mut Progress) -> Result<Manifest> {
        let mut moment = self.begin()?;
        let result = self.fetch_moment(&mut moment, progress);
        moment.end();
        result
    }

    fn fetch_moment(&mut self, moment: &mut Moment, progress: &mut Progress) -> Result<Manifest> {
        let group = GroupId(moment.number("group"));
        if self.place.is_none() {
            let place = Place::take(self.directory, Some(group))?;
            place.sweep_parts(&place.numbers()?)?;
            self.place = Some(place);
        }
        let state = moment.bytes(&["IMAGE", &moment.id.to_string()])?;
        let state = state.ok_or_else(|| Error::corruption("a moment without a state"))?;
        let pages = moment.pages()?;
        let decoded = BackupState::decode(&state)?;
        // Also the check that all of it can be read again.
        let origin = decoded.open(pages.iter().cloned().map(Ok))?;
        if origin.group.group != group {
            return Err(Error::corruption(format!("the state is of {}", origin.group.group)));
        }
        self.moved = Instant::now();
        let pin = origin.view.pin()?;
        let mut files: Vec<StoredFile> =
            pin.version().described().map(|meta| StoredFile::of(meta)).collect();
        // Levels come from the top; what lies deepest is asked for first.
        files.reverse();
        self.fetch_all(moment, &files, progress)?;
        progress.say("flushing");
        let memory = join_pages(&pages);
        let place = self.place();
        let number = self.number.max(place.numbers()?.last().unwrap_or(&0) + 1);
        let copied = files.iter().filter_map(|file| self.whole.get(&file.name())).sum();
        let manifest = Manifest {
            number,
            group: group.get(),
            replica: moment.number("replica"),
            term: moment.number("term"),
            config: moment.number("config"),
            log_end: moment.number("log_end"),
            sequence: moment.number("sequence"),
            begun_ms: moment.begun_ms,
            ended_ms: unix_ms(),
            pool_len: moment.number("pool_size"),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            state: Part::of(&state),
            memory: Part::of(&memory),
            copied,
            files,
        };
        place.finish(&manifest, &state, &memory)?;
        Ok(manifest)
    }

    fn place(&self) -> &Place {
        self.place.as_ref().expect("it is taken with the first moment")
    }

    /// Asks the replica that answers reads for a moment.
    fn begin(&mut self) -> Result<Moment> {
        let mut why = Error::unavailable("no replica answers");
        for (number, address) in addresses(self.of)? {
            let begun_ms = unix_ms();
            let begun = Client::connect_living(address, STATUS_TIMEOUT).and_then(|client| {
                self.is_answered = true;
                Moment::begin(client, begun_ms)
            });
            match begun {
                Ok(Some(moment)) => return Ok(moment),
                Ok(None) => {}
                Err(error) if error.kind() == ErrorKind::Unavailable => {
                    why = error.within(format!("replica {number}"));
                }
                Err(error) => return Err(error),
            }
        }
        Err(why.within("no replica that answers reads gives a moment away"))
    }

    fn fetch_all(
        &mut self,
        moment: &mut Moment,
        files: &[StoredFile],
        progress: &mut Progress,
    ) -> Result<()> {
        let total = files.iter().map(|file| file.len).sum();
        let mut done = 0;
        for file in files {
            if !self.is_there(file) {
                self.fetch(moment, file, &mut |backup, len| {
                    progress.bar(done + len, total, &backup.speed(total - done - len));
                })?;
            }
            done += file.len;
            progress.bar(done, total, &self.speed(total - done));
        }
        Ok(())
    }

    /// The rate so far, and when what is left will have come.
    fn speed(&self, left: u64) -> String {
        let rate = self.bytes as f64 / self.begun.elapsed().as_secs_f64().max(0.001);
        if rate < 1.0 {
            return "nothing to fetch so far".to_owned();
        }
        let left_s = span((left as f64 / rate) as u64);
        format!("{}/s, done in about {left_s}", size(rate as u64))
    }

    fn is_there(&mut self, file: &StoredFile) -> bool {
        if self.whole.contains_key(&file.name()) {
            return true;
        }
        self.moved = Instant::now();
        let place = self.place();
        let is_whole = match self.options.check {
            true => place.check(file).is_ok(),
            false => place.has(file),
        };
        if is_whole {
            self.whole.insert(file.name(), 0);
        }
        is_whole
    }

    fn fetch(
        &mut self,
        moment: &mut Moment,
        file: &StoredFile,
        step: &mut dyn FnMut(&Self, u64),
    ) -> Result<()> {
        let mut unfinished = self.place().begin(file)?;
        let mut len = 0;
        for (chunk, expected) in file.chunks.iter().enumerate() {
            let wanted = CHUNK_LEN.min(file.len.saturating_sub(len));
            let bytes = moment.chunk(file, chunk, *expected, wanted)?;
            unfinished.write(&bytes)?;
            len += bytes.len() as u64;
            self.bytes += bytes.len() as u64;
            self.moved = Instant::now();
            step(self, len);
            self.hold_back();
        }
        if len != file.len {
            return Err(Error::corruption(format!("{} of {} bytes has {len}", file.id, file.len)));
        }
        unfinished.keep()?;
        self.whole.insert(file.name(), file.len);
        Ok(())
    }

    /// Waits until the bytes so far are no more than the rate allows.
    fn hold_back(&self) {
        let Some(rate) = self.options.rate else { return };
        let due = Duration::from_secs_f64(self.bytes as f64 / rate as f64);
        std::thread::sleep(due.saturating_sub(self.begun.elapsed()));
    }
}

impl Moment {
    /// Nothing where the replica does not answer reads.
    fn begin(mut client: Client, begun_ms: u64) -> Result<Option<Self>> {
        if client.ask("STATUS")?["readable"] != true {
            return Ok(None);
        }
        let told = client.ask("BACKUP BEGIN")?;
        let id = told["backup"].as_u64();
        let id = id.ok_or_else(|| {
            Error::corruption(format!("{}: a moment without a number", client.address()))
        })?;
        Ok(Some(Self { client, id, told, begun_ms }))
    }

    /// Gives the moment up. Nobody waits for the answer to be a good one: an idle one ends by
    /// itself.
    fn end(&mut self) {
        let _ = self.bytes(&["END", &self.id.to_string()]);
    }

    fn number(&self, name: &str) -> u64 {
        self.told[name].as_u64().unwrap_or(0)
    }

    /// The answer in bytes; nothing for null.
    fn bytes(&mut self, words: &[&str]) -> Result<Option<Bytes>> {
        let words: Vec<&str> = ["GABION", "BACKUP"].iter().chain(words).copied().collect();
        let address = self.client.address();
        match self.client.call(&words)? {
            Reply::Bulk(bytes) => Ok(Some(bytes)),
            Reply::Null | Reply::NullArray => Ok(None),
            Reply::Error(text) => {
                let kind = match &text[..] {
                    text if text.starts_with(b"TRYAGAIN snapshot too old") => {
                        ErrorKind::SnapshotTooOld
                    }
                    text if text.starts_with(b"TRYAGAIN") => ErrorKind::Unavailable,
                    _ => ErrorKind::Io,
                };
                let text = String::from_utf8_lossy(&text);
                Err(Error::new(kind, format!("{address}: {}: {text}", words.join(" "))))
            }
            _ => Err(Error::corruption(format!("{address}: an answer of no known kind"))),
        }
    }

    fn pages(&mut self) -> Result<Vec<Vec<u8>>> {
        let (id, mut pages) = (self.id.to_string(), Vec::new());
        while let Some(page) = self.bytes(&["PAGE", &id, &pages.len().to_string()])? {
            pages.push(page.to_vec());
        }
        Ok(pages)
    }

    /// A chunk of a file, compared. One that differs or cannot be read is repaired where another
    /// replica has it, as long as the group has the file: a later moment needs it no longer.
    fn chunk(&mut self, file: &StoredFile, chunk: usize, expected: u32, len: u64) -> Result<Bytes> {
        let (id, kind) = (self.id.to_string(), (file.id.kind as u8).to_string());
        let (number, at) = (file.id.number.to_string(), chunk.to_string());
        let mut damage = String::new();
        for attempt in 0..CHUNK_TRIES {
            if attempt > 0 {
                // It reads the file, finds the damage and has it repaired.
                let scrubbed = self.client.ask(&format!("SCRUB {number}"))?;
                if scrubbed["files"] == 0 {
                    let text = format!("{} is damaged, and has been replaced since", file.id);
                    return Err(Error::new(ErrorKind::SnapshotTooOld, text));
                }
                std::thread::sleep(BETWEEN_TRIES);
            }
            let bytes = match self.bytes(&["CHUNK", &id, &kind, &number, &at]) {
                Err(error) if error.kind() == ErrorKind::Io => {
                    damage = format!("unreadable ({error})");
                    continue;
                }
                bytes => bytes?.unwrap_or_default(),
            };
            let found = crc::crc32c(&bytes);
            if found == expected && bytes.len() as u64 == len {
                return Ok(bytes);
            }
            damage = format!("{} bytes with checksum {found:08x}", bytes.len());
        }
        Err(Error::corruption(format!(
            "{} at replica {}: the {len} bytes from {} on are {damage}, expected {expected:08x}, \
             and no replica repairs it",
            file.id,
            self.number("replica"),
            chunk as u64 * CHUNK_LEN
        )))
    }
}

//! A replica's load and room, as it reports them for people: no view depends on them.
//!
//! ```text
//!   u8 0: none, 1: they follow
//!   u64 uptime ms | u64 commands | 26 × u64 served | 26 × u64 acknowledged | u64 stalled ms
//!   | u32 slots | u32 slots free | u64 MemTable bytes | u64 garbage bytes | u64 probe µs
//!   | i64 certificate's end, unix s, 0: none
//!   | u16 levels, u64 each | u16 lags: u32 replica, u64 bytes, u64 ms each
//! ```

use alloc::format;
use alloc::vec::Vec;
use gabion_base::codec::{Put, Reader};
use gabion_base::{Error, ReplicaId, Result};
use gabion_replication::GroupView;

/// Buckets of times, as replicas count them: the first ends at 1,024 ns, each next one at twice the
/// time, and the last one has no end.
pub const BUCKETS: usize = 26;
/// Levels of a tree at most.
const LEVELS_MAX: usize = 16;

/// How many times fell into each bucket, since the process began or its counters were reset.
pub type Times = [u64; BUCKETS];

/// The numbers. Counters only grow, but begin anew with the process and with `CONFIG RESETSTAT`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Vitals {
    /// Age of the process in ms.
    pub uptime_ms: u64,
    /// Commands of clients that came to this replica.
    pub commands: u64,
    /// Times of the commands that were run here, from their arrival here to their end here.
    pub served: Times,
    /// Times from the end of a turn with writes to its acknowledgement by all members, at the
    /// primary.
    pub acknowledged: Times,
    /// Time in which writes waited or were slowed down, in ms.
    pub stalled_ms: u64,
    /// Slots of its pool.
    pub slots: u32,
    /// Of these, free ones.
    pub slots_free: u32,
    /// Bytes in MemTables that take writes.
    pub memtable_bytes: u64,
    /// Bytes of large values that nothing leads to any more.
    pub garbage_bytes: u64,
    /// The shortest of its last probe writes, in µs: a disk is slow where all of them are.
    pub probe_us: u64,
    /// The end of the certificate that its port with TLS shows, in seconds since 1970.
    pub certificate_until_s: Option<i64>,
    /// Bytes of files in each level of the tree.
    pub levels: Vec<u64>,
    /// The other members as the primary sees them; empty at any other.
    pub lags: Vec<Lag>,
}

/// How far a member is behind the primary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lag {
    /// The member.
    pub replica: ReplicaId,
    /// Bytes of the log that it has not acknowledged.
    pub bytes: u64,
    /// Age of the oldest of them, in ms.
    pub ms: u64,
}

pub(crate) fn put_vitals(out: &mut Vec<u8>, vitals: Option<&Vitals>) {
    out.put_u8(u8::from(vitals.is_some()));
    let Some(vitals) = vitals else { return };
    out.put_u64(vitals.uptime_ms);
    out.put_u64(vitals.commands);
    vitals.served.iter().chain(&vitals.acknowledged).for_each(|count| out.put_u64(*count));
    out.put_u64(vitals.stalled_ms);
    out.put_u32(vitals.slots);
    out.put_u32(vitals.slots_free);
    for number in [vitals.memtable_bytes, vitals.garbage_bytes, vitals.probe_us] {
        out.put_u64(number);
    }
    out.put_u64(vitals.certificate_until_s.unwrap_or(0) as u64);
    assert!(vitals.levels.len() <= LEVELS_MAX, "a tree has {LEVELS_MAX} levels at most");
    assert!(vitals.lags.len() <= GroupView::MEMBERS_MAX, "a lag is a member's");
    out.put_u16(vitals.levels.len() as u16);
    vitals.levels.iter().for_each(|bytes| out.put_u64(*bytes));
    out.put_u16(vitals.lags.len() as u16);
    for lag in &vitals.lags {
        out.put_u32(lag.replica.get());
        out.put_u64(lag.bytes);
        out.put_u64(lag.ms);
    }
}

/// Reads what [`put_vitals`] wrote.
///
/// # Errors
/// Corruption for numbers that cannot be; limit exceeded.
pub(crate) fn read_vitals(r: &mut Reader<'_>, what: &str) -> Result<Option<Vitals>> {
    if r.u8()? == 0 {
        return Ok(None);
    }
    let (uptime_ms, commands) = (r.u64()?, r.u64()?);
    let (served, acknowledged) = (read_times(r)?, read_times(r)?);
    let (stalled_ms, slots, slots_free) = (r.u64()?, r.u32()?, r.u32()?);
    if slots_free > slots {
        return Err(Error::corruption(format!("{what}: {slots_free} of {slots} slots are free")));
    }
    let (memtable_bytes, garbage_bytes, probe_us) = (r.u64()?, r.u64()?, r.u64()?);
    let until_s = r.u64()? as i64;
    let levels = read_count(r, what, "levels", LEVELS_MAX)?;
    let levels = (0..levels).map(|_| r.u64()).collect::<Result<_>>()?;
    let lags = read_count(r, what, "lags", GroupView::MEMBERS_MAX)?;
    let lag = |r: &mut Reader<'_>| {
        Ok(Lag { replica: ReplicaId(r.u32()?), bytes: r.u64()?, ms: r.u64()? })
    };
    let lags = (0..lags).map(|_| lag(r)).collect::<Result<_>>()?;
    Ok(Some(Vitals {
        uptime_ms,
        commands,
        served,
        acknowledged,
        stalled_ms,
        slots,
        slots_free,
        memtable_bytes,
        garbage_bytes,
        probe_us,
        certificate_until_s: Some(until_s).filter(|until_s| *until_s != 0),
        levels,
        lags,
    }))
}

fn read_times(r: &mut Reader<'_>) -> Result<Times> {
    let mut times = Times::default();
    for count in &mut times {
        *count = r.u64()?;
    }
    Ok(times)
}

fn read_count(r: &mut Reader<'_>, what: &str, of: &str, most: usize) -> Result<usize> {
    let count = usize::from(r.u16()?);
    if count > most {
        return Err(Error::limit(format!("{what}: {count} {of}, the limit is {most}")));
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vitals() -> Vitals {
        let lag = Lag { replica: ReplicaId(3), bytes: 7, ms: 9 };
        Vitals {
            commands: 5,
            served: core::array::from_fn(|at| at as u64),
            slots: 9,
            slots_free: 9,
            certificate_until_s: Some(-5),
            levels: alloc::vec![1; LEVELS_MAX],
            lags: alloc::vec![lag; GroupView::MEMBERS_MAX],
            ..Vitals::default()
        }
    }

    fn read(bytes: &[u8]) -> Result<Option<Vitals>> {
        let mut r = Reader::new(bytes, "vitals");
        let found = read_vitals(&mut r, "vitals")?;
        r.finish().map(|()| found)
    }

    #[test]
    fn vitals_survive_their_bytes() {
        for vitals in [None, Some(Vitals::default()), Some(vitals())] {
            let mut bytes = Vec::new();
            put_vitals(&mut bytes, vitals.as_ref());
            assert_eq!(read(&bytes).unwrap(), vitals);
            assert!(read(&bytes[..bytes.len() - 1]).is_err());
        }
    }

    #[test]
    fn numbers_that_cannot_be_are_refused() {
        let refused = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut bytes = Vec::new();
            put_vitals(&mut bytes, Some(&Vitals { slots: 2, ..Vitals::default() }));
            change(&mut bytes);
            alloc::string::ToString::to_string(&read(&bytes).unwrap_err())
        };
        // The slots are at the end of the times, the counts at the very end.
        let slots = 1 + 8 + 8 + 2 * 8 * BUCKETS + 8;
        let error = refused(&|bytes| bytes[slots + 4] = 3);
        assert!(error.contains("3 of 2 slots are free"), "{error}");
        let error = refused(&|bytes| {
            let at = bytes.len() - 4;
            bytes[at] = 17;
        });
        assert!(error.contains("17 levels, the limit is 16"), "{error}");
        let error = refused(&|bytes| {
            let at = bytes.len() - 1;
            bytes[at] = 1;
        });
        assert!(error.contains("256 lags, the limit is"), "{error}");
    }
}

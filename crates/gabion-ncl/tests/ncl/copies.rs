//! The copies that the map names, byte by byte, against the mirrors of the instance that runs.

use crate::images::ProgramImages;
use crate::peers::Machine;
use crate::world::OWNER;
use gabion_media::MemoryRegion;
use gabion_media::remote::RegionId;
use gabion_ncl::layout::{OwnerCrc, RING_LEN, cells};
use gabion_ncl::{Application, Label};

/// Whether a copy has what the mirrors have, of all files with a name.
pub(crate) fn check(
    machine: &Machine,
    application: &Application<ProgramImages>,
) -> Result<(), String> {
    let Some(peer) = &machine.peer else { return Ok(()) };
    for region in peer.checks(RegionId(0), usize::MAX) {
        let label = Label::decode(&region.label).ok_or("a region with another label")?;
        let Ok(stat) = application.stat(label.file) else { continue };
        let memory = peer.memory(region.region).ok_or("a region without memory")?;
        let (part, parts) = (label.part as usize, &stat.entry.parts);
        if part >= parts.len() {
            check_ahead(memory, part - parts.len())
                .map_err(|failure| format!("peer {}, {}: {failure}", machine.id, label.file))?;
            continue;
        }
        let begin: u64 = parts[..part].iter().sum();
        let ring = if part == 0 { RING_LEN } else { 0 };
        let mut mirror = vec![0; parts[part] as usize];
        let read = application.read(label.file, begin, &mut mirror).map_err(|it| it.to_string())?;
        let mut copy = vec![0; read];
        memory.read(ring, &mut copy);
        let place = format!("peer {}, {} part {part}", machine.id, label.file);
        if let Some(at) = copy.iter().zip(&mirror).position(|(copy, mirror)| copy != mirror) {
            let (here, there, of) = (copy[at], mirror[at], begin + at as u64);
            return Err(format!("{place}: the copy has byte {of} as {here}, the mirror {there}"));
        }
        if part == 0 {
            let mut bytes = vec![0; ring as usize];
            memory.read(0, &mut bytes);
            let newest = cells(&bytes, OwnerCrc::new(OWNER), label.file).first().copied();
            let len = newest.map_or(0, |cell| cell.file_len);
            if len != stat.len {
                return Err(format!("{place}: the copy is {len} long, the mirror {}", stat.len));
            }
        }
    }
    Ok(())
}

/// A part that was lent ahead of its need is the next one, and nobody wrote there.
fn check_ahead(memory: &impl MemoryRegion, beyond: usize) -> Result<(), String> {
    let mut bytes = vec![1; memory.len() as usize];
    memory.read(0, &mut bytes);
    match bytes.iter().all(|byte| *byte == 0) && beyond == 0 {
        true => Ok(()),
        false => Err(format!("a part that it has not, {} after the next, is written", beyond)),
    }
}
